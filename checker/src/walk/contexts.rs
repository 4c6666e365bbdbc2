//! Functions of the output that hold only under what their callers know: clones for constant arguments.
//!
//! **Problem.** A clone of a function does what the function does only where certain arguments are certain constants. Walked with nothing known, it differs from the function.
//!
//! **Method.** A pair that differs, for which there is no proof and that only direct calls have led to, is put aside as *entered with constants*. When all else is walked, the calls that lead to such
//! pairs are looked at: what is known at all of them is known at the pair's entry, and with that the pair is proven. At calls of what was walked in lock-step both programs hold the same, so the
//! input tells what that is ([`crate::prove::Prover::known_at`]); at those of what was proven the proof does. Calls
//! in what is proven so lead to further pairs with what is known there; what is taken for known at a pair is only ever weakened, until all calls agree with it.
//!
//! **Why this is sound.** At the end each pair that was put aside is proven under facts that hold at every call that leads to it: those of functions that hold whoever calls them,
//! and those of other pairs that were put aside, under their own facts (induction over the calls of an execution). Any other way to such a pair (a pointer, a symbol, an exception, a
//! table, a jump of something that is not proven with it) takes the constants away, and without them there is no proof. If roots or calls turn up later, all is settled anew.
//!
//! **Terminates**: facts of a pair are weakened at most once a register; and each round follows a new root, call or pair.

use rustc_hash::{FxHashMap, FxHashSet};

use super::proofs::Marks;
use super::{Canonical, Pair, Reach, Walk};
use crate::decode::Kind;
use crate::prove::{Called, Entry, Proof};
use crate::report::{Violation, ViolationKind};

/// Addresses in both programs.
type At = (u64, u64);

/// A pair that was put aside.
#[derive(Default)]
struct Aside {
    /// What differs with nothing known; taken when it is reported.
    failures: Vec<Violation>,
    /// Something other than a direct call leads there.
    is_open: bool,
    /// What it was proven with, or why it is not.
    outcome: Option<Result<Entry, Violation>>,
}

/// What was found in a group of functions.
struct Found {
    roots: Vec<u64>,
    sites: Vec<u64>,
    known: FxHashMap<u64, Entry>,
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
    /// What is known at all calls, of what was proven instead, that lead to a pair.
    proven: FxHashMap<At, Entry>,
    groups: FxHashMap<u32, Found>,
    /// Groups of the input's functions into which code without frame descriptions jumps.
    entered: Option<FxHashSet<u32>>,
    /// How many roots, calls and pairs put aside there were when all was settled.
    settled: (usize, usize, usize, bool),
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

    /// Pairs that may be copies for certain callers although they do not differ in themselves, but in what they call: functions that stand in several places, and that only calls lead to.
    /// Those of which a proof was sought in vain are none.
    fn likely_copies(&self) -> FxHashSet<At> {
        let mut places: FxHashMap<u64, usize> = FxHashMap::default();
        for at in self.roots.keys().chain(self.aside.keys()) {
            *places.entry(at.0).or_default() += 1;
        }
        let called = self.roots.iter().filter(|&(at, &is_called)| is_called && places[&at.0] > 1).map(|(&at, _)| at);
        let is_unproven = |at: &At| self.aside.get(at).is_some_and(|aside| !matches!(aside.outcome, Some(Ok(_))));
        self.copies.iter().copied().filter(|at| !is_unproven(at)).chain(called.filter(|at| !self.copies.contains(at))).collect()
    }

    pub(super) fn is_root(&self, at: At) -> bool {
        self.roots.contains_key(&at)
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

    /// Takes in the calls of what was proven with nothing known.
    pub(super) fn add_calls(&mut self, calls: &[Called]) {
        for &(at, entry) in calls {
            meet(&mut self.contexts.proven, at, entry);
        }
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
        self.contexts.aside.insert(at, Aside { failures, ..Aside::default() });
        Ok(())
    }

    /// Where jumps and padding lead in both programs.
    fn leads_to(&self, (input, output): At) -> Option<At> {
        match (Self::lead(self.input, input, |_, _| {}), Self::lead(self.output, output, |_, _| {})) {
            (Canonical::At(input, _), Canonical::At(output, _)) => Some((input, output)),
            _ => None,
        }
    }

    /// Proves what was put aside, as far as all that leads there is known. Whether there may be more to walk.
    pub(super) fn settle_contexts(&mut self, is_last: bool) -> bool {
        let contexts = &self.contexts;
        let size = (contexts.roots.len(), contexts.calls.len(), contexts.aside.len(), is_last);
        if contexts.aside.is_empty() || contexts.settled == size {
            return false;
        }
        self.contexts.settled = size;
        let first = self.known_at_entries(is_last);
        let (known, mut proofs) = self.weaken(first);
        let mut pairs: Vec<At> = known.keys().copied().collect();
        pairs.sort_unstable();
        for at in pairs {
            let entry = known[&at];
            let aside = self.contexts.aside.entry(at).or_default();
            match proofs.remove(&at) {
                Some(Ok(proof)) => {
                    let is_known = matches!(aside.outcome, Some(Ok(known)) if known == entry);
                    if !is_known {
                        aside.outcome = Some(Ok(entry));
                        self.stats.entered_with_constants += 1;
                        self.take_over(proof);
                    }
                }
                Some(Err(violation)) => aside.outcome = Some(Err(violation)),
                None => {}
            }
        }
        true
    }

    /// What nothing was found to lead to, or something that is no call, is not proven.
    pub(super) fn judge_contexts(&mut self) {
        let mut pairs: Vec<At> = self.contexts.aside.keys().copied().collect();
        pairs.sort_unstable();
        for at in pairs {
            let Some(aside) = self.contexts.aside.get_mut(&at) else { continue };
            let other = |what: &str| Violation::new(ViolationKind::InstructionMismatch, at.1, what);
            let why = match &aside.outcome {
                _ if aside.is_open => other("something other than a call leads there"),
                Some(Ok(_)) => continue,
                Some(Err(violation)) => violation.clone(),
                None => other("no call leads there"),
            };
            let mut failures = std::mem::take(&mut aside.failures);
            explain(&mut failures, &why);
            if failures.is_empty() {
                failures.push(why);
            }
            self.violations.append(&mut failures);
        }
    }

    /// Pairs to be put aside from the start, if what is wrong may be only that they were not.
    pub(crate) fn copies_to_try(&self) -> FxHashSet<At> {
        let likely = self.contexts.likely_copies();
        if likely == self.contexts.copies { FxHashSet::default() } else { likely }
    }

    /// What functions that hold whoever calls them know where they call what was put aside.
    fn known_at_entries(&mut self, is_last: bool) -> FxHashMap<At, Entry> {
        let mut known: FxHashMap<At, Entry> = FxHashMap::default();
        for (at, aside) in &self.contexts.aside {
            if aside.is_open {
                known.insert(*at, Entry::default());
            }
        }
        let proven: Vec<Called> = self.contexts.proven.iter().map(|(&called, &entry)| (called, entry)).collect();
        for (called, entry) in proven {
            if let Some(at) = self.leads_to(called).filter(|at| self.contexts.aside.contains_key(at)) {
                meet(&mut known, at, entry);
            }
        }
        let sites = self.sites_by_group();
        let mut roots: FxHashMap<u32, Vec<u64>> = FxHashMap::default();
        for &(at, _) in self.contexts.roots.keys() {
            let group = self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde));
            if let Some(group) = group.filter(|group| sites.contains_key(group)) {
                roots.entry(group).or_default().push(at);
            }
        }
        for (group, places) in sites {
            let mut wanted: Vec<u64> = places.iter().map(|&(from, _)| from).collect();
            let mut roots = roots.remove(&group).unwrap_or_default();
            for list in [&mut wanted, &mut roots] {
                list.sort_unstable();
                list.dedup();
            }
            self.follow_group(group, roots, wanted);
            let Some(found) = self.contexts.groups.get(&group) else { continue };
            for (place, at) in places {
                // What no root leads to yet may be reached later.
                match found.known.get(&place) {
                    Some(&entry) => {
                        meet(&mut known, at, entry);
                    }
                    None if is_last => {
                        meet(&mut known, at, Entry::default());
                    }
                    None => {}
                }
            }
        }
        known
    }

    /// The calls that may lead to what was put aside, with what they lead to, by group of the caller.
    fn sites_by_group(&mut self) -> FxHashMap<u32, Vec<(u64, At)>> {
        let mut sites: FxHashMap<u32, Vec<(u64, At)>> = FxHashMap::default();
        let outputs: FxHashSet<u64> = self.contexts.aside.keys().map(|at| at.1).collect();
        let mut leads: FxHashMap<u32, bool> = FxHashMap::default();
        for &(from, to) in &self.contexts.calls {
            let target = self.output.code.address(to as usize);
            let is_sought =
                *leads.entry(to).or_insert_with(|| self.output_leads_to(target).is_some_and(|at| outputs.contains(&at)));
            if !is_sought {
                continue;
            }
            let place = self.input.code.address(from as usize);
            let callee = self.input.inst(place).filter(|inst| inst.kind == Kind::Call);
            let callee = callee.map(|inst| self.input.target(place, inst));
            let Some(at) = callee.and_then(|callee| self.leads_to((callee, target))) else { continue };
            let group = self.input.unwind.fde_at(place).map_or(crate::unwind::NONE, |fde| self.survey.group_of(fde));
            sites.entry(group).or_default().push((place, at));
        }
        sites
    }

    /// Finds the calls of a group, if they are not known from before.
    fn follow_group(&mut self, group: u32, roots: Vec<u64>, sites: Vec<u64>) {
        if self.contexts.groups.get(&group).is_some_and(|found| found.roots == roots && found.sites == sites) {
            return;
        }
        let mut entered = self.contexts.entered.take();
        let is_closed = group != crate::unwind::NONE && !entered.get_or_insert_with(|| self.entered_groups()).contains(&group);
        self.contexts.entered = entered;
        let mut known = FxHashMap::default();
        if is_closed {
            let mut prover = self.take_prover();
            known = prover.known_at(self, group, &roots, &sites);
            self.give_back(prover);
        }
        self.contexts.groups.insert(group, Found { roots, sites, known });
    }

    /// Groups of functions into which code without frame descriptions jumps or runs.
    fn entered_groups(&self) -> FxHashSet<u32> {
        let mut entered = FxHashSet::default();
        let mut enter = |at: u64| entered.extend(self.input.unwind.fde_at(at).map(|fde| self.survey.group_of(fde)));
        crate::leftover::each_instruction(self.input, |address, inst| {
            if self.input.unwind.fde_at(address).is_some() {
                return;
            }
            if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) {
                enter(self.input.target(address, inst));
            }
            if !inst.ends_flow() && inst.kind != Kind::Nop {
                enter(address + u64::from(inst.len));
            }
        });
        entered
    }

    /// Proves pairs with what is known at their entries, which calls in other pairs weaken until nothing changes.
    #[allow(clippy::type_complexity)]
    fn weaken(&mut self, mut known: FxHashMap<At, Entry>) -> (FxHashMap<At, Entry>, FxHashMap<At, Result<Proof, Violation>>) {
        let mut proofs: FxHashMap<At, Result<Proof, Violation>> = FxHashMap::default();
        let mut work: Vec<At> = known.keys().copied().collect();
        work.sort_unstable();
        let mut prover = self.take_prover();
        while let Some(at) = work.pop() {
            let proof = prover.prove_entered(self, at, known[&at]);
            let mut weakened: Vec<At> = Vec::new();
            for &(called, entry) in proof.iter().flat_map(|proof| &proof.calls) {
                let callee = self.leads_to(called).filter(|at| self.contexts.aside.contains_key(at));
                weakened.extend(callee.filter(|&at| meet(&mut known, at, entry)));
            }
            proofs.insert(at, proof);
            work.retain(|at| !weakened.contains(at));
            work.append(&mut weakened);
        }
        self.give_back(prover);
        (known, proofs)
    }
}

/// Takes in what is known on one more way; whether that is less than before.
fn meet(known: &mut FxHashMap<At, Entry>, at: At, entry: Entry) -> bool {
    let old = known.get(&at).copied();
    let met = old.map_or(entry, |old| old.meet(&entry));
    known.insert(at, met);
    old != Some(met)
}

/// Says why what differs is not proven.
pub(super) fn explain(failures: &mut [Violation], why: &Violation) {
    if let Some(first) = failures.first_mut() {
        first.message.push_str(&format!("; not proven, because at {:#x} {}", why.address, why.message));
    }
}
