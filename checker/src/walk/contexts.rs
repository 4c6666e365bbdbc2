//! Functions of the output that hold only under what their callers know: clones for constant arguments, and copies that are told a state.
//!
//! **Problem.** A clone of a function does what the function does only where certain arguments are certain constants. Walked with nothing known, it differs from the function.
//!
//! **Method.** A pair that differs, for which there is no proof and that only direct calls have led to, is put aside as *entered with constants*. When all else is walked, the calls that lead to such
//! pairs are looked at: what is known at all of them is known at the pair's entry, and with that the pair is proven. At calls of what was walked in lock-step both programs hold the same, so the
//! input tells what that is ([`crate::prove::Prover::known_at`]); at those of what was proven the proof does. Calls
//! in what is proven so lead to further pairs with what is known there; what is taken for known at a pair is only ever weakened, until all calls agree with it.
//!
//! Three things go beyond constants ([`crate::prove::Entry`]):
//! * a call may leave a register to be another than the input's, because the callee has no use for it: then the callee is proven with a register of which the output knows nothing;
//! * a pair may *leave* a register another than in the input where it returns: then no call of it may need that, which proofs of callers know, and liveness tells at all other calls;
//! * of a pair that is told a state there is a proof for each state.
//!
//! **Why this is sound.** At the end each pair that was put aside is proven under facts that hold at every call that leads to it: those of functions that hold whoever calls them,
//! and those of other pairs that were put aside, under their own facts (induction over the calls of an execution). Any other way to such a pair (a pointer, a symbol, an exception, a
//! table, a jump of something that is not proven with it) takes the constants away, and without them there is no proof. If roots or calls turn up later, all is settled anew.
//!
//! **Terminates**: facts of a pair and state are weakened at most three times a register, what it leaves grows a register at a time, the states are limited, and each round follows a new root, call or
//! pair.

mod known;

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::proofs::Marks;
use super::{Canonical, Pair, Reach, Walk, leads_to};
use crate::prove::{Called, Entry, Proof, Prover, Told};
use crate::report::{Violation, ViolationKind};
use known::Found;

/// Addresses in both programs.
type At = (u64, u64);

/// Of what holds for certain callers only, that none is known.
pub const NOTHING_LEADS: &str = "no call leads there";
/// States of one pair that are told apart; further ones are one.
const STATES_MAX: usize = 1_024;

/// A pair that was put aside.
#[derive(Default)]
struct Aside {
    /// What differs with nothing known; taken when it is reported.
    failures: Vec<Violation>,
    /// Something other than a direct call leads there.
    is_open: bool,
}

/// A proof of a pair with what is known at its entry.
#[derive(Clone)]
struct Proven {
    entry: Entry,
    outcome: Result<Rc<Proof>, Violation>,
    /// The rest of the walk knows of it.
    is_taken: bool,
}

/// What leads to pairs that are proven with what is known at their entries.
#[derive(Default)]
struct Leading {
    known: FxHashMap<Told, Entry>,
    /// Calls of the input of which all is the same behind them.
    sites: FxHashMap<Told, Vec<u64>>,
}

#[derive(Default)]
pub(super) struct Contexts {
    aside: FxHashMap<At, Aside>,
    /// Pairs that are put aside as soon as a call leads there.
    copies: FxHashSet<At>,
    /// Where walks began with nothing known and found all to correspond, and whether calls alone lead there.
    roots: FxHashMap<At, bool>,
    /// Direct calls of what was walked in lock-step, by indexes: in the input, and of what that of the output leads to.
    pub(super) calls: Vec<(u32, u32)>,
    /// The same where the input has called before and jumps: its call, and where both programs go.
    pub(super) inside: Vec<(u64, At)>,
    /// Where walks in the middle of functions began in the input that found what differs.
    pub(super) failed: Vec<u64>,
    /// Direct calls of what was proven with nothing known.
    proven: FxHashSet<Called>,
    /// One of them leaves a register another than in the input.
    has_differences: bool,
    outcomes: FxHashMap<Told, Proven>,
    groups: FxHashMap<u32, Found>,
    /// Groups of the input's functions into which code without frame descriptions jumps.
    entered: Option<FxHashSet<u32>>,
    /// How many roots, calls and pairs put aside there were when all was settled.
    settled: (usize, usize, usize, usize, bool),
}

impl Contexts {
    pub(super) fn with_copies(copies: FxHashSet<At>) -> Self {
        Self { copies, ..Self::default() }
    }

    pub(super) fn add_root(&mut self, at: Option<At>, is_called: bool) {
        if let Some(at) = at {
            self.roots.entry(at).and_modify(|known| *known &= is_called).or_insert(is_called);
        }
    }

    /// Pairs that may be copies for certain callers although they do not differ in themselves, but in what they call or where jump tables lead: functions that stand in several places, and that only calls lead to.
    /// Those of which a proof was sought in vain are none.
    fn likely_copies(&self) -> FxHashSet<At> {
        let mut places: FxHashMap<u64, usize> = FxHashMap::default();
        for at in self.roots.keys().chain(self.aside.keys()) {
            *places.entry(at.0).or_default() += 1;
        }
        let called = self.roots.iter().filter(|&(at, &is_called)| is_called && places[&at.0] > 1).map(|(&at, _)| at);
        let unproven: FxHashSet<At> =
            self.outcomes.iter().filter(|(_, proven)| proven.outcome.is_err()).map(|(&(at, ..), _)| at).collect();
        self.copies
            .iter()
            .copied()
            .filter(|at| !unproven.contains(at))
            .chain(called.filter(|at| !self.copies.contains(at)))
            .collect()
    }

    pub(super) fn is_root(&self, at: At) -> bool {
        self.roots.contains_key(&at)
    }

    /// What a call enters, if that is proven with what is known there.
    fn told(&self, at: At, entry: &Entry) -> Option<Told> {
        let (differing, state) = (entry.differing(), entry.state());
        if !self.aside.contains_key(&at) && !entry.demands_proof() {
            return None;
        }
        let is_new = state.is_some() && !self.outcomes.contains_key(&(at, differing, state));
        let is_too_many = || self.outcomes.keys().filter(|told| told.0 == at).count() >= STATES_MAX;
        Some((at, differing, state.filter(|_| !is_new || !is_too_many())))
    }
}

impl Walk<'_, '_> {
    /// A direct call of the input and one of the output lead to a pair.
    pub(super) fn called(&mut self, from: u64, pair: Pair) {
        if let (Some(from), Some(to)) = (self.input.code.index(from), self.output.code.index(pair.output)) {
            self.contexts.calls.push((from as u32, to as u32));
        }
        self.queue.push(pair);
    }

    /// The same where the output calls in the body of a call of the input.
    pub(super) fn called_inside(&mut self, call: u64, pair: Pair) {
        self.contexts.inside.push((call, (pair.input, pair.output)));
        self.queue.push(pair);
    }

    /// Whether a pair is known to hold for certain callers only.
    pub(super) fn is_for_callers(&self, at: At) -> bool {
        let contexts = &self.contexts;
        (!contexts.aside.is_empty() || !contexts.copies.is_empty())
            && self
                .leads_to(at)
                .is_some_and(|at| contexts.aside.contains_key(&at) || contexts.copies.contains(&at) && !contexts.is_root(at))
    }

    /// Takes in the calls of what was proven with nothing known.
    pub(super) fn add_calls(&mut self, calls: &[Called]) {
        self.contexts.has_differences |= calls.iter().any(|called| called.entry.demands_proof());
        self.contexts.proven.extend(calls);
    }

    /// Whether a root needs no walk, because it holds only with what callers know. What is no call may not lead there.
    pub(super) fn is_aside(&mut self, root: Pair) -> bool {
        if self.contexts.aside.is_empty() && self.contexts.copies.is_empty() {
            return false;
        }
        let Some(at) = self.leads_to((root.input, root.output)) else { return false };
        let is_copy = self.contexts.copies.contains(&at) && !self.contexts.is_root(at);
        if is_copy && root.reach == Reach::Call {
            self.contexts.aside.entry(at).or_default();
            return true;
        }
        if is_copy {
            // It holds whoever calls it.
            self.contexts.aside.remove(&at);
            return false;
        }
        let Some(aside) = self.contexts.aside.get_mut(&at) else { return false };
        if root.reach == Reach::Call {
            return true;
        }
        aside.is_open = true;
        false
    }

    /// Puts a pair aside that differs where nothing is known, with all that its walk asked for. Gives the failures back if it may not be.
    pub(super) fn put_aside(&mut self, root: Pair, marks: &Marks, failures: Vec<Violation>) -> Result<(), Vec<Violation>> {
        if root.reach != Reach::Call {
            return Err(failures);
        }
        let Some(at) = self.leads_to((root.input, root.output)).filter(|&at| !self.contexts.is_root(at)) else {
            return Err(failures);
        };
        self.forget(marks);
        self.note_touched();
        self.relation.add_conditional(self.recorded.drain(..));
        self.contexts.aside.insert(at, Aside { failures, ..Aside::default() });
        Ok(())
    }

    /// Where jumps and padding lead in both programs.
    pub(crate) fn leads_to(&self, (input, output): At) -> Option<At> {
        match (Self::lead(self.input, input, |_, _| {}), Self::lead(self.output, output, |_, _| {})) {
            (Canonical::At(mark, a), Canonical::At(output, b)) if self.may_lose_mark((mark, a), b) => {
                leads_to(self.input, mark + u64::from(a.len)).map(|input| (input, output))
            }
            (Canonical::At(input, _), Canonical::At(output, _)) => Some((input, output)),
            _ => None,
        }
    }

    /// Proves what was put aside, as far as all that leads there is known. Whether there may be more to walk.
    pub(super) fn settle_contexts(&mut self, is_last: bool) -> bool {
        let contexts = &self.contexts;
        let size = (
            contexts.roots.len(),
            contexts.calls.len() + contexts.inside.len(),
            contexts.proven.len(),
            contexts.aside.len(),
            is_last,
        );
        if contexts.aside.is_empty() && !contexts.has_differences || contexts.settled == size {
            return false;
        }
        self.contexts.settled = size;
        let leading = self.leading(is_last);
        let known = self.weaken(leading.known);
        self.compare_sites(&leading.sites);
        let mut all: Vec<Told> = known.into_keys().collect();
        all.sort_unstable();
        for told in all {
            let Some(proven) = self.contexts.outcomes.get_mut(&told).filter(|proven| !proven.is_taken) else { continue };
            if let Ok(proof) = &proven.outcome {
                proven.is_taken = true;
                let proof = Rc::clone(proof);
                self.stats.entered_with_constants += 1;
                self.take_over(&proof, true);
            }
        }
        true
    }

    /// What nothing was found to lead to, or something that is no call, is not proven.
    pub(super) fn judge_contexts(&mut self) {
        let mut why: FxHashMap<At, Option<Violation>> = self.contexts.aside.keys().map(|&at| (at, None)).collect();
        let mut outcomes: Vec<(&Told, &Proven)> = self.contexts.outcomes.iter().collect();
        outcomes.sort_unstable_by_key(|(told, _)| **told);
        let mut has_outcome: FxHashSet<At> = FxHashSet::default();
        for (&(at, ..), proven) in outcomes {
            has_outcome.insert(at);
            if let Err(violation) = &proven.outcome {
                why.entry(at).or_default().get_or_insert_with(|| violation.clone());
            }
        }
        let mut all: Vec<(At, Option<Violation>)> = why.into_iter().collect();
        all.sort_unstable_by_key(|&(at, _)| at);
        for (at, why) in all {
            let nobody = || Violation::new(ViolationKind::InstructionMismatch, at.1, NOTHING_LEADS).about(at.0);
            let Some(why) = why.or_else(|| (!has_outcome.contains(&at)).then(nobody)) else { continue };
            let aside = self.contexts.aside.get_mut(&at);
            let is_open = aside.as_ref().is_some_and(|aside| aside.is_open);
            let mut failures = aside.map(|aside| std::mem::take(&mut aside.failures)).unwrap_or_default();
            if is_open {
                let message = "something other than a call leads there";
                explain(&mut failures, &Violation::new(ViolationKind::InstructionMismatch, at.1, message));
            }
            explain(&mut failures, &why);
            if failures.is_empty() {
                failures.push(Violation { input: Some(at.0), ..why });
            }
            self.violations.append(&mut failures);
        }
    }

    /// Pairs to be put aside from the start, if what is wrong may be only that they were not.
    pub(crate) fn copies_to_try(&self) -> FxHashSet<At> {
        let mut likely = self.contexts.likely_copies();
        if self.contexts.aside.is_empty() {
            likely.extend(self.called_around_failures());
        }
        if !likely.is_empty() || !self.contexts.copies.is_empty() {
            // What was walked in lock-step is to be proven if it calls them inside of what it calls.
            let inside = self.contexts.inside.iter().filter_map(|&(_, at)| self.leads_to(at));
            likely.extend(inside.filter(|at| self.contexts.aside.contains_key(at) && !self.contexts.copies.contains(at)));
        }
        if likely == self.contexts.copies { FxHashSet::default() } else { likely }
    }

    /// Functions that only calls lead to, where something differs behind a jump table: it may hold with what is known at the calls.
    fn called_around_failures(&self) -> Vec<At> {
        let group_at = |at| self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde));
        let failed: FxHashSet<u32> = self.contexts.failed.iter().filter_map(|&at| group_at(at)).collect();
        let is_around = |at: u64| group_at(at).is_some_and(|group| failed.contains(&group));
        let called = self.contexts.roots.iter().filter(|&(_, &is_called)| is_called).map(|(&at, _)| at);
        called.filter(|at| is_around(at.0) && self.input.slot_of_stub(at.0).is_none()).collect()
    }

    /// Proves pairs with what is known at their entries, which calls in other pairs weaken until nothing changes.
    fn weaken(&mut self, mut known: FxHashMap<Told, Entry>) -> FxHashMap<Told, Entry> {
        let mut callers: FxHashMap<Told, FxHashSet<Told>> = FxHashMap::default();
        let mut work: Vec<Told> = known.keys().copied().collect();
        work.sort_unstable();
        let mut prover = self.take_prover();
        while let Some(told) = work.pop() {
            let entry = known[&told];
            let old = self.contexts.outcomes.get(&told).filter(|old| old.entry == entry && self.still_holds(&prover, old));
            let outcome = match old {
                Some(old) => old.outcome.clone(),
                None => prover.prove_entered(self, told, entry).map(Rc::new),
            };
            let mut again: Vec<Told> = Vec::new();
            if let Ok(proof) = &outcome {
                if prover.add_left(told, proof.leaves) {
                    let affected = callers.get(&told).into_iter().flatten().copied();
                    again.extend(affected);
                    again.iter().for_each(|told| drop(self.contexts.outcomes.remove(told)));
                }
                for called in &proof.calls {
                    let Some(callee) = self.told(called.at, &called.entry) else { continue };
                    callers.entry(callee).or_default().insert(told);
                    if meet(&mut known, callee, called.entry) {
                        again.push(callee);
                    }
                }
            }
            // A function that calls itself may be among those to be proven again.
            let is_taken = self.contexts.outcomes.get(&told).is_some_and(|old| old.is_taken && old.entry == entry);
            if !again.contains(&told) {
                self.contexts.outcomes.insert(told, Proven { entry, outcome, is_taken });
            }
            again.sort_unstable();
            again.dedup();
            work.retain(|told| !again.contains(told));
            work.append(&mut again);
        }
        self.give_back(prover);
        known
    }

    /// Whether what is called leaves no more than was known when it was proven.
    fn still_holds(&self, prover: &Prover, proven: &Proven) -> bool {
        let leaves_no_more = |called: &Called| {
            let told = self.told(called.at, &called.entry);
            told.is_none_or(|told| prover.left(told) & !called.left == 0)
        };
        proven.outcome.as_ref().is_ok_and(|proof| proof.calls.iter().all(leaves_no_more)) || proven.outcome.is_err()
    }

    /// What a call enters, if that is proven with what is known there.
    pub(crate) fn told(&self, at: At, entry: &Entry) -> Option<Told> {
        self.leads_to(at).and_then(|at| self.contexts.told(at, entry))
    }

    /// At calls of what was not proven with it, nobody may read what a pair leaves other than the input.
    fn compare_sites(&mut self, sites: &FxHashMap<Told, Vec<u64>>) {
        let mut prover = self.take_prover();
        let mut read: Vec<(Told, Violation)> = Vec::new();
        for (&told, sites) in sites {
            let left = prover.left(told);
            for register in (0..16).filter(|register| left >> register & 1 == 1) {
                if let Some(site) = sites.iter().find(|&&site| !prover.is_dead_behind_call(self, site, register)) {
                    let message =
                        format!("leaves register {register} other than the input, which is read behind the call at {site:#x}");
                    read.push((told, Violation::new(ViolationKind::InstructionMismatch, told.0.1, message)));
                    break;
                }
            }
        }
        self.give_back(prover);
        for (told, violation) in read {
            if let Some(proven) = self.contexts.outcomes.get_mut(&told) {
                proven.outcome = Err(violation);
            }
        }
    }
}

/// Takes in what is known on one more way; whether that is less than before.
fn meet(known: &mut FxHashMap<Told, Entry>, told: Told, entry: Entry) -> bool {
    let old = known.get(&told).copied();
    let met = old.map_or(entry, |old| old.meet(&entry));
    known.insert(told, met);
    old != Some(met)
}

/// Says why what differs is not proven.
pub(super) fn explain(failures: &mut [Violation], why: &Violation) {
    if let Some(first) = failures.first_mut() {
        first.message.push_str(&format!("; not proven, because at {:#x} {}", why.address, why.message));
    }
}
