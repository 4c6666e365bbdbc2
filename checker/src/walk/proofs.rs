//! Roots at which the programs differ, and what a proof of them gives to the walk.
//!
//! A root is walked in lock-step first. If anything differs there that no rule of the walk explains, what this walk asked for is put aside and the root is proven
//! ([`crate::prove`]). A proof replaces what was put aside by what it asks for itself. Without one, what differs is a violation, and what was put aside is asked for after all.
//!
//! **Invariant.** What a walk that was given up has recorded holds only under what its proof knows. So the functions that it came to are *proven ground*: a later walk that meets a
//! known pair there is proven too. Walks that were done before need nothing: all that they met was compared to the end.

use rustc_hash::FxHashSet;

use super::contexts::explain;
use super::relation::Recorded;
use super::{Canonical, Pair, Reach, Walk};
use crate::decode::{Inst, Kind};
use crate::faults::{Held, may_fault};
use crate::prove::{Effect, Liveness, Proof, Prover};
use crate::report::{Stats, Violation, ViolationKind};

#[derive(Default)]
pub(super) struct Proofs {
    prover: Option<Box<Prover>>,
    /// Frame descriptions of the input, those of proven ground.
    ground: FxHashSet<u32>,
    /// Roots that were proven, or for which there is no proof.
    settled: FxHashSet<(u64, u64)>,
}

/// How much there was before a root was walked.
pub(super) struct Marks {
    queue: usize,
    tables: usize,
    tries: usize,
    unmoved: usize,
    displaced: usize,
    calls: usize,
    inside: usize,
    violations: usize,
    stats: Stats,
}

impl Proofs {
    /// Proofs that begin with what earlier ones have found out about the input.
    pub(super) fn with(liveness: Liveness) -> Self {
        Self { prover: Some(Box::new(Prover::with(liveness))), ..Self::default() }
    }

    pub(super) fn into_liveness(self) -> Liveness {
        self.prover.map(|prover| prover.into_liveness()).unwrap_or_default()
    }
}

impl Walk<'_, '_> {
    /// Walks all that flows from a root.
    pub(super) fn walk_from(&mut self, root: Pair) {
        let marks = self.marks();
        if root.reach != Reach::Flow {
            self.enter(root.output);
        }
        if self.is_aside(root) {
            return;
        }
        self.touched.clear();
        self.recorded.clear();
        // What the first instructions belong to is noted with their rules.
        self.input_row = crate::unwind::Located::nowhere();
        self.began_at = None;
        let mut failures = Vec::new();
        self.flows.push(root);
        while let Some(pair) = self.flows.pop() {
            if let Err(violation) = self.run(pair) {
                failures.push(violation);
            }
        }
        let began_at = self.began_at;
        // What an address stands for does not depend on values.
        let is_open = failures.iter().all(|failure| failure.kind != ViolationKind::Conflict);
        if failures.is_empty() || (is_open && self.prove(root, &marks, &mut failures)) {
            self.contexts.add_root(began_at, root.reach == Reach::Call);
            return;
        }
        if is_open {
            let Err(rest) = self.put_aside(root, &marks, failures) else { return };
            failures = rest;
        }
        self.contexts.failed.extend((root.reach != Reach::Call).then_some(root.input));
        self.violations.append(&mut failures);
    }

    /// A walk comes to a pair that was recorded before. What is in the place of a call was recorded by walks of the function that calls.
    pub(super) fn meet_proven(&mut self, i: u64, o: u64, within: Option<u64>) -> Result<(), Violation> {
        if self.proofs.ground.is_empty() {
            return Ok(());
        }
        let fde = self.input.unwind.locate(within.unwrap_or(i)).fde;
        if !self.proofs.ground.contains(&fde) {
            return Ok(());
        }
        if self.proofs.settled.contains(&(i, o)) || self.contexts.is_root((i, o)) {
            self.met_proven += 1;
            return Ok(());
        }
        let message = format!("leads to what differs from the input's {i:#x}");
        Err(Violation::new(ViolationKind::InstructionMismatch, o, message).about(i))
    }

    /// Passes a few instructions that differ but come to the same; gives where all is as before.
    pub(super) fn pass_changed(
        &mut self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
        within: Option<u64>,
    ) -> Result<Option<(u64, u64)>, Violation> {
        let is_plain = |inst: Inst| matches!(inst.kind, Kind::Plain | Kind::Lea);
        if !is_plain(a) && !is_plain(b) {
            return Ok(None);
        }
        let mut prover = self.take_prover();
        let outcome = prover.meet_again(self, (i, o), within);
        self.give_back(prover);
        let Ok(local) = outcome else { return Ok(None) };
        self.stats.changed_pieces += 1;
        self.stats.instructions += local.output.len() as u64;
        self.pass_all(within.is_none().then_some(&local.input), &local.output);
        for effect in local.effects {
            self.take_effect(effect)?;
        }
        Ok(Some(local.end))
    }

    fn pass_all(&mut self, input: Option<&Vec<(u64, u8)>>, output: &[(u64, u8)]) {
        for &(address, size) in input.into_iter().flatten() {
            if let Some(index) = self.input.code.index(address) {
                self.relation.pass(true, index, size);
            }
        }
        for &(address, size) in output {
            if let Some(index) = self.output.code.index(address) {
                self.relation.pass(false, index, size);
            }
        }
    }

    /// Whether there is a proof for a guess on proven ground, where no walk bears one out. Nothing has happened if there is none.
    pub(crate) fn attempt_proof(&mut self, guess: Pair) -> bool {
        if !self.input.unwind.fde_at(guess.input).is_some_and(|fde| self.proofs.ground.contains(&fde)) {
            return false;
        }
        let marks = self.marks();
        self.touched.clear();
        self.prove(guess, &marks, &mut [])
    }

    fn marks(&self) -> Marks {
        Marks {
            queue: self.queue.len(),
            tables: self.tables.len(),
            tries: self.tries.len(),
            unmoved: self.unmoved.len(),
            displaced: self.displaced.len(),
            calls: self.contexts.calls.len(),
            inside: self.contexts.inside.len(),
            violations: self.violations.len(),
            stats: self.stats,
        }
    }

    /// Whether there is a proof for a root, of which the rest of the walk then knows.
    fn prove(&mut self, root: Pair, marks: &Marks, failures: &mut [Violation]) -> bool {
        let lead = |side, address| match Self::lead(side, address, |_, _| {}) {
            Canonical::At(address, _) => Some(address),
            _ => None,
        };
        let (Some(input), Some(output)) = (lead(self.input, root.input), lead(self.output, root.output)) else { return false };
        if self.proofs.settled.contains(&(input, output)) {
            return true;
        }
        let mut prover = self.take_prover();
        let outcome = prover.prove(self, input, output);
        self.give_back(prover);
        match outcome {
            Ok(proof) => {
                self.forget(marks);
                self.proofs.settled.insert((input, output));
                self.note_touched();
                self.add_calls(&proof.calls);
                self.take_over(&proof, false);
                true
            }
            Err(violation) => {
                explain(failures, &violation);
                false
            }
        }
    }

    pub(crate) fn take_prover(&mut self) -> Box<Prover> {
        self.proofs.prover.take().unwrap_or_else(|| Box::new(Prover::with(Liveness::default())))
    }

    pub(crate) fn give_back(&mut self, prover: Box<Prover>) {
        self.proofs.prover = Some(prover);
    }

    /// Forgets what a walk that was given up has asked for.
    pub(super) fn forget(&mut self, marks: &Marks) {
        self.queue.truncate(marks.queue);
        self.tables.truncate(marks.tables);
        self.tries.truncate(marks.tries);
        self.unmoved.truncate(marks.unmoved);
        self.displaced.truncate(marks.displaced);
        self.contexts.calls.truncate(marks.calls);
        self.contexts.inside.truncate(marks.inside);
        self.violations.truncate(marks.violations);
        self.stats = marks.stats;
    }

    /// What a walk that was given up has come to is proven ground.
    pub(super) fn note_touched(&mut self) {
        let came_to: Vec<u32> = self.touched.drain(..).collect();
        self.add_ground(came_to);
    }

    /// Asks for all that a proof relies on.
    pub(super) fn take_over(&mut self, proof: &Proof, is_entered: bool) {
        self.stats.proven_roots += 1;
        self.stats.add_proven(&proof.stats);
        self.pass_all(Some(&proof.input), &proof.output);
        let came_to = proof.input.iter().filter_map(|&(address, _)| self.input.unwind.fde_at(address));
        self.add_ground(came_to);
        for &effect in &proof.effects {
            if let Effect::Record { output, .. } = effect
                && let Some(output) = self.output.code.index(output)
            {
                self.relation.note_condition(output, is_entered);
            }
            if let Err(violation) = self.take_effect(effect) {
                self.violations.push(violation);
            }
        }
    }

    /// Notes functions that hold only under what a proof knows. Stubs are none of them: they do the same whatever holds.
    fn add_ground(&mut self, came_to: impl IntoIterator<Item = u32>) {
        let has_frame = |&fde: &u32| {
            let frame_of = |row| self.rows.and_then(|rows| rows.frame_of(row));
            self.input.unwind.rows_of(fde).all(|row| frame_of(row).is_some_and(|frame| frame.address.is_some()))
        };
        let functions: Vec<u32> = came_to.into_iter().filter(has_frame).collect();
        self.proofs.ground.extend(functions);
    }

    fn take_effect(&mut self, effect: Effect) -> Result<(), Violation> {
        match effect {
            Effect::Walk(pair) => self.queue.push(pair),
            Effect::Try(pair) => self.tries.push(pair),
            Effect::Never(output) => self.never.push(output),
            Effect::Followed(table) => crate::tables::read_followed(self, table),
            Effect::Reference { reference, input, output } => self.follow(Some(reference), input, output)?,
            Effect::CallSite { input, output } => {
                self.compare_rows(input, output)?;
                self.compare_call_sites(input, output)?;
            }
            Effect::Rewritten { input, output } => {
                if let (Some(from), Some(to)) = (self.input.code.index(input), self.output.code.index(output)) {
                    self.relation.rewrite(from, to);
                }
            }
            Effect::Record { input, output, within } => return self.record(input, output, within),
        }
        Ok(())
    }

    fn record(&mut self, input: u64, output: u64, within: Option<u64>) -> Result<(), Violation> {
        let (Some(from), Some(to)) = (self.input.code.index(input), self.output.code.index(output)) else { return Ok(()) };
        let len = |inst: Option<Inst>| inst.map_or(0, |inst| inst.len);
        let sizes = (len(self.input.inst(input)), len(self.output.inst(output)));
        match self.relation.record(from, to, sizes, within) {
            // A walk that failed may have come to it before.
            Recorded::Known | Recorded::New => {
                self.relation.note_proven(to);
                Ok(())
            }
            Recorded::Conflict(_) => {
                let message = format!("stands for the input's {input:#x} in place of another call");
                Err(Violation::new(ViolationKind::Conflict, output, message))
            }
        }
    }

    /// Whether an output address stands for an input one, as far as is known.
    pub(crate) fn stands_for(&self, output: u64, input: u64) -> bool {
        let lead = |side, address| match Self::lead(side, address, |_, _| {}) {
            Canonical::At(address, _) => Some(address),
            _ => None,
        };
        let input = lead(self.input, input).and_then(|address| self.input.code.index(address));
        let output = lead(self.output, output).and_then(|address| self.output.code.index(address));
        input.zip(output).is_some_and(|(input, output)| self.relation.is_for(output, input))
    }

    /// Whether an instruction of the input neither uses the stack pointer nor leaves.
    pub(crate) fn is_free_of_stack(&self, address: u64, inst: Inst) -> bool {
        self.stack_use.is_free(self.input.code.bytes(address, inst), address)
    }

    /// Whether a handler may know a fault of an instruction of the input by its place.
    pub(crate) fn is_known_by_fault(&self, address: u64, inst: Inst) -> bool {
        let held = || self.held.get_or_init(|| Held::of(self.input, self.absolute_fields));
        may_fault(self.input.code.bytes(address, inst), inst.kind) && held().has_first(self.input, address)
    }

    /// Whether nothing follows a call of the input.
    pub(crate) fn call_never_returns(&self, address: u64, inst: Inst) -> bool {
        self.noreturn.ends_at(self.input, address, inst)
    }
}
