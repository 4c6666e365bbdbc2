//! The order in which pairs are walked: what must correspond first, then guesses, then what could only be judged when all was known.
//!
//! **Terminates**: [`Walk::settle`] ends because each pair relates something new or stops; a guess is walked from once a round and leaves
//! nothing behind if it is wrong.

use rustc_hash::FxHashSet;

use super::proofs::Proofs;
use super::{Canonical, Displaced, Finished, Pair, Reach, Unmoved, Walk};
use crate::decode::Kind;
use crate::prove::Liveness;
use crate::report::ViolationKind;
use crate::tables::{self, Doubtful};

/// In a file of which no call is known to be made in another way, as many guesses are made to find one.
const TRIES_MAX: usize = 256;

/// Functions that are aligned to this have bits to mark pointers to them by.
const TAGS_END: u64 = 8;

impl Walk<'_, '_> {
    /// Walks all that is queued, then reads the jump tables that turned up, until nothing is left but guesses.
    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(pair) = self.queue.pop() {
                self.walk_from(pair);
            }
            let Some(table) = self.tables.pop() else { return };
            tables::read(self, table);
        }
    }

    /// The same, and proves what holds only with what callers know.
    pub(crate) fn settle_all(&mut self, is_last: bool) {
        self.settle();
        while self.settle_contexts(is_last) {
            self.settle();
        }
    }

    /// Tries what may or may not be code that runs: after calls that never return, at addresses that may be data. What is not asked for is
    /// compared by content later, which knows of no other ways to call and no shorter forms: so it is tried too, but kept only if it has one, or at last ([`Walk::try_again`]).
    pub(crate) fn settle_tries(&mut self, which: impl Fn(Reach) -> bool) {
        let is_edited = self.relation.num_rewritten_calls() > 0 || self.tries.len() < TRIES_MAX;
        while let Some(pair) = self.tries.pop() {
            if pair.reach == Reach::Flow && (self.ends_function(pair.input) || self.is_known_apart(pair)) {
                continue;
            }
            let is_asked_for = which(pair.reach);
            if (is_asked_for || is_edited) && self.attempt_if(pair, !is_asked_for) {
                self.settle();
            } else if !is_asked_for {
                self.not_kept.push(pair);
            }
        }
    }

    /// Tries once more what was not kept, where nothing else has explained the output. Whether there was some.
    pub(crate) fn try_again(&mut self) -> bool {
        let mut has_found = false;
        for pair in std::mem::take(&mut self.not_kept) {
            let is_covered = self.output.code.index(pair.output).is_none_or(|index| self.relation.covered.contains(index));
            if !is_covered && self.attempt(pair) {
                has_found = true;
                self.settle();
            }
        }
        has_found
    }

    /// Tries where entries of tables lead that nobody may select, in a file that makes calls in other ways; kept is what makes one so, and the rest at last ([`Walk::try_again`]): it may lead to such calls through a table.
    pub(crate) fn try_doubtful(&mut self) {
        let entries: Vec<Pair> = match self.relation.num_rewritten_calls() {
            0 => Vec::new(),
            _ => self.doubtful.iter().map(|entry| Pair::new(entry.input, entry.output, entry.place, Reach::Flow)).collect(),
        };
        for pair in entries {
            if self.attempt_if(pair, true) {
                self.settle();
            } else {
                self.not_kept.push(pair);
            }
        }
    }

    /// Whether a function of the input ends before an address. Nothing says what lies behind it: the next function, which need not be the next in the output,
    /// and may resemble what is.
    fn ends_function(&self, address: u64) -> bool {
        let unwind = &self.input.unwind;
        let before = address.checked_sub(1).and_then(|last| unwind.fde_at(last));
        before.is_some() && before != unwind.fde_at(address)
    }

    /// Whether what stands at both places is known already. A call that never returns may end several functions that the output lets share it, and what lies behind it there belongs to one of them: code of
    /// another one may resemble it, up to calls of functions that differ.
    fn is_known_apart(&self, pair: Pair) -> bool {
        let is_seen = self.input.code.index(pair.input).is_some_and(|index| self.relation.seen.contains(index));
        is_seen && self.output.code.index(pair.output).is_some_and(|index| self.relation.covered.contains(index))
    }

    /// Uses what was found out about the input's registers before.
    pub(crate) fn begin_with(&mut self, liveness: Liveness) {
        self.proofs = Proofs::with(liveness);
    }

    pub(crate) fn into_liveness(self) -> Liveness {
        self.proofs.into_liveness()
    }

    /// Notes a guess for later.
    pub(crate) fn try_later(&mut self, pair: Pair) {
        self.tries.push(pair);
    }

    /// Walks from a guess; `false`, and nothing has happened, if it is wrong. What tables lead to is walked later, but a guess is wrong that names a table which must then be in conflict with what is known.
    pub(crate) fn attempt(&mut self, pair: Pair) -> bool {
        self.attempt_if(pair, false)
    }

    /// The same; with `is_edited`, a guess is wrong as well if all calls in it are made as in the input, and it leads to nothing that was changed.
    fn attempt_if(&mut self, pair: Pair, is_edited: bool) -> bool {
        let num_changed = self.relation.num_rewritten_calls() + self.met_proven;
        let queue = std::mem::take(&mut self.queue);
        let marks = (self.tables.len(), self.tries.len(), self.unmoved.len(), self.displaced.len(), self.returns.len());
        let (violations, stats, relied) = (self.violations.len(), self.stats, self.forms.relied.len());
        let (calls, inside) = (self.contexts.calls.len(), self.contexts.inside.len());
        self.relation.begin();
        self.queue.push(pair);
        let mut is_right = true;
        let mut roots = Vec::new();
        while let Some((next, is_root)) = self.flows.pop().map(|flow| (flow, false)).or_else(|| Some((self.queue.pop()?, true))) {
            self.began_at = None;
            if next.reach != Reach::Flow {
                self.enter(next.output);
            }
            // Other data is a copied table in code that must correspond, and a wrong guess otherwise.
            let names_other_data = |walk: &Self| {
                walk.displaced.len() > marks.3
                    || walk.tables[marks.0.min(walk.tables.len())..].iter().any(|&table| !tables::may_be_moved(walk, table))
            };
            if self.run(next).is_err() || self.violations.len() > violations || names_other_data(self) {
                is_right = false;
                break;
            }
            roots.extend(self.began_at.filter(|_| is_root));
        }
        is_right =
            is_right && !self.tables[marks.0.min(self.tables.len())..].iter().any(|&table| tables::contradicts(self, table));
        is_right &= !is_edited || self.relation.num_rewritten_calls() + self.met_proven > num_changed;
        if is_right {
            self.relation.commit();
            roots.into_iter().for_each(|root| self.contexts.add_root(Some(root), false));
        } else {
            self.relation.undo();
            self.tables.truncate(marks.0);
            self.tries.truncate(marks.1);
            self.unmoved.truncate(marks.2);
            self.displaced.truncate(marks.3);
            self.returns.truncate(marks.4);
            self.violations.truncate(violations);
            self.forms.relied.truncate(relied);
            self.contexts.calls.truncate(calls);
            self.contexts.inside.truncate(inside);
            self.stats = stats;
        }
        self.queue = queue;
        self.flows.clear();
        is_right
    }

    /// Code to which nothing else leads but branches that are decided otherwise never runs.
    pub(crate) fn cover_dead_ways(&mut self) {
        let mut work = std::mem::take(&mut self.never);
        while let Some(at) = work.pop() {
            let Some(index) = self.output.code.index(at).filter(|&index| !self.relation.covered.contains(index)) else {
                continue;
            };
            let Some(inst) = self.output.inst(at) else { continue };
            self.relation.pass(false, index, inst.len);
            if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) {
                work.push(self.output.target(at, inst));
            }
            if !inst.ends_flow() {
                work.push(at + u64::from(inst.len));
            }
        }
    }

    /// Without section headers, leaves out of what is to be explained as code what is compared by its meaning.
    pub(crate) fn cover_metadata(&mut self) {
        if !self.output.image.sections.is_empty() {
            return;
        }
        for (start, end) in self.output.metadata() {
            for area in self.output.code.areas() {
                for place in start.max(area.start)..end.min(area.end()) {
                    if let Some(index) = self.output.code.index(place) {
                        self.relation.cover_data(index, 1);
                    }
                }
            }
        }
    }

    /// Notes that a table's entry is what it should be.
    pub(crate) fn explain_entry(&mut self, place: u64, width: u8) {
        self.explained.push((place, u64::from(width)));
        if let Some(index) = self.output.code.index(place) {
            self.relation.cover_data(index, width);
        }
    }

    /// Explains entries that nobody may select by what is known now: they lead to what corresponds, or to what
    /// is reached on neither side. Code that is reached on one side only is compared now: the output may share a copy of it.
    pub(crate) fn settle_doubtful(&mut self) {
        for Doubtful { input, output, place, width } in std::mem::take(&mut self.doubtful) {
            let lead = |side, address| Self::lead(side, address, |_, _| {});
            let (Canonical::At(from, _), Canonical::At(to, _)) = (lead(self.input, input), lead(self.output, output)) else {
                continue;
            };
            let (Some(from), Some(to)) = (self.input.code.index(from), self.output.code.index(to)) else { continue };
            let relation = &self.relation;
            let is_reached = (
                relation.output_of(from).is_some() || relation.stands_in_body(from),
                relation.input_of(to).is_some() || relation.is_in_body(to),
            );
            let is_right = match is_reached {
                (false, false) => true,
                (true, true) => self.relation.is_for(to, from),
                _ => {
                    let is_right = self.attempt(Pair::new(input, output, place, Reach::Flow));
                    self.settle();
                    is_right
                }
            };
            if is_right {
                self.canonical(true, input);
                self.canonical(false, output);
                self.explain_entry(place, width);
            }
        }
    }

    /// The end: what could only be judged when everything was known.
    pub(crate) fn finish(mut self) -> Finished {
        self.settle_all(true);
        self.judge_contexts();
        self.judge_forms();
        tables::report_mixed(&mut self);
        tables::report_other_uses(&mut self);
        let copies = if self.violations.is_empty() { FxHashSet::default() } else { self.copies_to_try() };
        let mut unmoved = std::mem::take(&mut self.unmoved);
        unmoved.sort_by_key(|reference| (reference.address, reference.origin));
        unmoved.dedup_by_key(|reference| reference.address);
        for Unmoved { address, origin } in unmoved {
            self.judge_unmoved(address, origin);
        }
        for Displaced { input, output, origin } in std::mem::take(&mut self.displaced) {
            let in_clone = |&(from, to, size): &(u64, u64, u64)| {
                from <= input && input - from < size && input - from == output.wrapping_sub(to)
            };
            if !self.clones.iter().any(in_clone) {
                let message = format!("names {output:#x}; the input names {input:#x}");
                self.report(ViolationKind::OperandMismatch, origin, message);
            }
        }
        self.explained.sort_unstable();
        self.explained.dedup();
        Finished {
            violations: self.violations,
            stats: self.stats,
            explained: self.explained,
            copies,
            liveness: self.proofs.into_liveness(),
            relation: self.relation,
        }
    }

    /// Whether an address leads into the middle of an instruction that still stands there: nobody jumps to it. It is a pointer that is marked in its low bits, and what it leads to without the mark has not moved.
    fn is_in_instruction_that_stays(&self, address: u64) -> bool {
        let (input, output) = (self.input, self.output);
        let may_begin = |at: u64| input.code.index(at).filter(|&index| self.survey.may_be_instruction(index));
        let stays = |start: u64| {
            let covers = input.inst(start).is_some_and(|inst| start + u64::from(inst.len) > address);
            let place = may_begin(start).filter(|_| covers).and_then(|index| self.relation.output_of(index));
            place.is_some_and(|place| output.code.address(place) == start)
        };
        may_begin(address).is_none() && (1..TAGS_END).filter_map(|mark| address.checked_sub(mark)).any(stays)
    }

    fn judge_unmoved(&mut self, address: u64, origin: u64) {
        let is_in_filler = self.input.is_inside_filler(address) || self.input.is_inside_last_filler(address);
        if is_in_filler || self.is_in_instruction_that_stays(address) {
            return;
        }
        // What is behind a function may be filler of another kind.
        let end = self.input.unwind.fde_at(address).map(|fde| self.input.unwind.fdes[fde as usize].end);
        let size = end.map_or(8, |end| (end - address).min(8) as usize);
        let is_same = || self.input.image.at(address, size) == self.output.image.at(address, size);
        let stale = match Self::lead(self.input, address, |_, _| {}) {
            Canonical::At(input, _) => {
                let Some(index) = self.input.code.index(input) else { return };
                let leads_to = self.output_leads_to(address);
                let place = leads_to.and_then(|at| self.output.code.index(at));
                let stands_for_it = place.is_some_and(|at| self.relation.is_for(at, index));
                if place.is_some_and(|at| self.relation.call_rewritten_at(at) == Some(index)) {
                    return;
                }
                match self.relation.output_of(index) {
                    Some(_) => {
                        let stays = leads_to == Some(input) && self.input.inst(input) == self.output.inst(input);
                        !stands_for_it && !stays
                    }
                    None => !is_same(),
                }
            }
            // Nothing is behind what jumps to itself for ever.
            Canonical::Cycle if matches!(Self::lead(self.output, address, |_, _| {}), Canonical::Cycle) => false,
            _ => !is_same(),
        };
        if stale {
            let message = format!("still names {address:#x}, but what was there has moved");
            self.report(ViolationKind::StaleReference, origin, message);
        }
    }
}
