//! Which registers a procedure, or what it calls, looks at before it gives them a value.
//!
//! **Two answers.** What is *read* is safe to build liveness on: code that is not known reads all that may bring it arguments, or everything. What is *of interest* leaves out what is
//! only passed on to such code: a constant there makes no context worth anything.
//!
//! **Method.** Backward over each procedure, callees first; cycles from nothing until nothing grows, or, after some rounds, with everything taken to be read.

use lifter::entity::EntityId;
use rayon::prelude::*;

use super::prepared::Prepared;
use crate::engine::Summaries;
use crate::liveness::{RegisterLiveness, Saves};
use crate::procedures::{Procedure, ProcedureData};
use crate::values::Surroundings;
use crate::values::code::{ARGUMENTS, Callee, Effect, Exit, RAX, RegisterSet};

/// Two sets of registers, worked on at once.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Uses {
    interesting: RegisterSet,
    read: RegisterSet,
}

impl Uses {
    const ALL: Self = Self { interesting: ARGUMENTS, read: RegisterSet::MAX };

    fn union(self, other: Self) -> Self {
        Uses { interesting: self.interesting | other.interesting, read: self.read | other.read }
    }
}

/// By procedure, registers that are read before they are written, and what is read where it returns.
#[derive(Clone, Debug)]
pub struct EntryUses {
    of: Vec<Uses>,
    /// Registers and whether flags are.
    returned: Vec<(RegisterSet, bool)>,
}

/// Rounds of a cycle after which everything counts as read.
const MAX_ROUNDS: usize = 12;

impl EntryUses {
    pub fn compute(summaries: &Summaries<'_>) -> Self {
        let Surroundings { image, program, procedures, .. } = &summaries.around;
        let (registers, flags) = RegisterLiveness::with_flags(image, program, Saves::Read);
        let returned = |data: &ProcedureData| (registers.at_return(data.func).0 as RegisterSet, flags.live_at_return(data.func));
        let returned = procedures.all.values().map(returned).collect();
        let mut uses = EntryUses { of: vec![Uses::default(); procedures.all.len()], returned };
        for level in summaries.components.by_height() {
            uses.settle(summaries, level);
        }
        uses
    }

    /// Procedures that depend on each other only in cycles.
    fn settle(&mut self, summaries: &Summaries<'_>, mut open: Vec<u32>) {
        for round in 0.. {
            let found: Vec<Uses> = open.par_iter().with_min_len(8).map(|&p| self.find(summaries, p)).collect();
            let mut next = Vec::new();
            for (&procedure, found) in open.iter().zip(found) {
                let known = &mut self.of[procedure as usize];
                let found = if round >= MAX_ROUNDS { Uses::ALL } else { found.union(*known) };
                if found != *known {
                    *known = found;
                    let component = summaries.components.of[procedure as usize];
                    let callers = summaries.graph.callers_of(Procedure::new(procedure as usize)).iter();
                    let callers = callers.map(|&site| summaries.graph.sites[site].caller.index() as u32);
                    next.extend(callers.filter(|&caller| summaries.components.of[caller as usize] == component));
                }
            }
            next.sort_unstable();
            next.dedup();
            if next.is_empty() {
                return;
            }
            open = next;
        }
    }

    /// Argument registers whose values matter to what can be seen.
    pub fn of_interest(&self, procedure: Procedure) -> RegisterSet {
        self.of[procedure.index()].interesting
    }
    /// Registers, and whether flags too, that some caller reads where it returns, whatever the psABI says.
    pub(super) fn read_behind(&self, procedure: Procedure) -> (RegisterSet, bool) {
        self.returned[procedure.index()]
    }
    /// All that may be read.
    pub fn read_by(&self, procedure: Procedure) -> RegisterSet {
        self.of[procedure.index()].read
    }

    fn find(&self, summaries: &Summaries<'_>, procedure: u32) -> Uses {
        let procedure = Procedure::new(procedure as usize);
        let prepared = Prepared::new(&summaries.around, procedure);
        if prepared.code.is_opaque || summaries.summaries[procedure.index()].is_none() {
            return Uses { interesting: 0, read: RegisterSet::MAX };
        }
        let code = &prepared.code;
        let mut at_start: Vec<Uses> = vec![Uses::default(); code.blocks.len()];
        loop {
            let mut has_changed = false;
            for &block in code.order.iter().rev() {
                let before = self.before(&prepared, block, &at_start);
                has_changed |= before != at_start[block as usize];
                at_start[block as usize] = before;
            }
            if !has_changed {
                let uses = at_start[code.entry as usize];
                return Uses { interesting: uses.interesting & ARGUMENTS, read: uses.read };
            }
        }
    }

    fn before(&self, prepared: &Prepared, block: u32, at_start: &[Uses]) -> Uses {
        let data = &prepared.code.blocks[block as usize];
        let mut uses = data.successors.iter().fold(Uses::default(), |uses, &s| uses.union(at_start[s as usize]));
        for exit in &data.exits {
            if let Exit::Tail(call) = exit {
                uses = uses.union(self.of_callee(prepared.code.calls[*call as usize].callee));
            }
        }
        for number in prepared.code.instructions_of(data).rev() {
            if let Effect::Call(call) = prepared.code.instructions[number].effect {
                // What is read behind a call may be what was there before it; arguments hardly are.
                uses.interesting &= !ARGUMENTS;
                uses = uses.union(self.of_callee(prepared.code.calls[call as usize].callee));
            }
            let action = &prepared.actions[number];
            uses.interesting = uses.interesting & !action.replaces | action.reads;
            uses.read = uses.read & !action.replaces | action.reads;
        }
        uses
    }

    fn of_callee(&self, callee: Callee) -> Uses {
        match callee {
            Callee::Local(procedure) => self.of[procedure.index()],
            Callee::Library(_) | Callee::Boundary => Uses { interesting: 0, read: ARGUMENTS | 1 << RAX },
            Callee::Inside => Uses { interesting: 0, read: RegisterSet::MAX },
        }
    }
}
