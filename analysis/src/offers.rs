//! What a procedure's calls pass on to their callees, told without regard to who called the procedure itself.
//!
//! An offer says two things of a call: what it passes on in every context, and on which of the caller's own argument registers the rest depends. By it a context need not be analyzed that
//! knows nothing on which anything depends: it passes on what is offered. And it tells which callers may have anything to say to a callee.

use lifter::Va;

use crate::context::Context;
use crate::domain::Value;
use crate::graph::{CallGraph, SiteId};
use crate::values::calls::Knowledge;
use crate::values::code::{CALLEE_SAVED, Call, Callee, Effect, ProcedureCode, RSP, RegisterSet};
use crate::values::memory::Address;
use crate::values::{Observer, Solution, State, walk};

/// In place of a register: it can't be told which, and any one that is known may decide. No argument comes in it.
pub(crate) const ANY: RegisterSet = 1 << 15;

/// What a call passes on.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) site: SiteId,
    /// By argument register, on which entry registers of the caller its value depends.
    dependence: [RegisterSet; 16],
    /// What is known whoever calls the caller.
    pub(crate) context: Context,
}

impl Offer {
    /// The registers that are known, or may be once the caller's own are.
    fn tells(&self) -> RegisterSet {
        let known = self.context.iter().fold(0, |set, (register, _)| set | 1 << register);
        (0..16).filter(|&r| self.dependence[r] != 0).fold(known, |set, r| set | 1 << r)
    }
    /// Whether all registers of a need may be known to the callee.
    pub(crate) fn can_meet(&self, need: RegisterSet) -> bool {
        let tells = self.tells();
        if need & ANY != 0 { tells != 0 } else { need & !tells == 0 }
    }
    /// What the caller has to know for the callee to know some registers as well as it can.
    pub(crate) fn depends_on(&self, wanted: RegisterSet) -> RegisterSet {
        let registers = (0..16).filter(|r| wanted & ANY != 0 || wanted >> r & 1 != 0);
        registers.fold(0, |set, r: usize| set | self.dependence[r])
    }
}

/// The offers of all calls in a procedure, given its solution for an entry of which nothing is known.
pub(crate) fn offers(graph: &CallGraph, code: &ProcedureCode, knowledge: &Knowledge<'_>, solution: &Solution) -> Vec<Offer> {
    let mut observer = CallObserver { graph, code, list: Vec::new() };
    for block in code.blocks_with_calls() {
        if let Some(start) = &solution.at_start[block as usize] {
            walk(code, knowledge, block, start, &mut observer);
        }
    }
    observer.list
}

struct CallObserver<'p> {
    graph: &'p CallGraph,
    code: &'p ProcedureCode,
    list: Vec<Offer>,
}

impl Observer for CallObserver<'_> {
    const SEES_INSTRUCTIONS: bool = false;
    fn at_instruction(&mut self, _: u32, _: &State, _: &[Address]) {}
    fn at_call(&mut self, call: &Call, state: &State, is_tail: bool) {
        let Callee::Local(callee) = call.callee else { return };
        if let Some(site) = self.graph.site_at(self.code.procedure, Va(call.at), callee) {
            let of = |register: usize| dependence(self.code, &state.registers[register]).unwrap_or(0);
            self.list.push(Offer { site, dependence: std::array::from_fn(of), context: Context::at_call(state, is_tail) });
        }
    }
}

/// On which entry registers a value depends: none, those of the set, or `ANY`. `None` if no caller can say what it is.
pub(crate) fn dependence(code: &ProcedureCode, value: &Value) -> Option<RegisterSet> {
    const ARGUMENTS: RegisterSet = !CALLEE_SAVED & !(1 << RSP);
    if let Some(register) = value.base.entry_register() {
        let own = 1 << register & ARGUMENTS;
        // What was added may come from another register.
        return Some(if value.is_pure { own } else { own | ANY });
    }
    let Some(instruction) = value.base.defining_instruction() else {
        return Some(if value.base.is_stable() { 0 } else { ANY });
    };
    match code.instructions[instruction as usize].effect {
        Effect::Load { .. }
        | Effect::Pop { .. }
        | Effect::Leave
        | Effect::Call(_)
        | Effect::SystemCall
        | Effect::Generic { .. } => None,
        _ => Some(ANY),
    }
}
