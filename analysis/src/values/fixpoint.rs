//! The states at the starts of a function's blocks: the least solution that the transfer functions and the meet allow.
//!
//! **Method.** A worklist in reverse postorder. After a few visits a block's state is widened: intervals that grow become full, residues go to residue classes, and a
//! register whose base differs between ways becomes the arrival at the block, which is the end of it. So each location of each block changes a
//! bounded number of times.
//!
//! **Exceptions.** A call may come back at any landing pad of its function: with the callee-saved registers and the stack pointer as they were at the call (the unwinder
//! restores them, Itanium C++ ABI), the others new. All calls of a function share one such state.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::calls::{Knowledge, call};
use super::code::{Call, Callee, Effect, Exit, ProcedureCode, RSP};
use super::memory::Address;
use super::state::{Effects, State};
use super::summary::Summary;
use super::transfer::step;
use crate::domain::{Base, Value};

/// Visits of a block after which its state is widened.
const VISITS_BEFORE_WIDENING: u8 = 2;

/// What is known at the start of each block that is reached, and what that makes of the function.
#[derive(Clone, Debug)]
pub struct Solution {
    pub at_start: Vec<Option<State>>,
    pub summary: Summary,
}

/// Who wants to see states as they pass.
pub trait Observer {
    /// Whether `at_instruction` does anything: states in between are not kept for those who only look at calls.
    const SEES_INSTRUCTIONS: bool = true;
    /// Before an instruction, with the addresses of its references.
    fn at_instruction(&mut self, number: u32, state: &State, addresses: &[Address]);
    /// At a call or a jump out of the function.
    fn at_call(&mut self, call: &Call, state: &State, is_tail: bool);
}

/// Solves a function from a state at its entry.
pub fn solve(code: &ProcedureCode, knowledge: &Knowledge<'_>, entry: State) -> Solution {
    let mut solver = Solver::new(code, knowledge);
    solver.run(entry);
    Solution { at_start: solver.at_start, summary: solver.summary }
}

struct Solver<'a> {
    code: &'a ProcedureCode,
    knowledge: &'a Knowledge<'a>,
    at_start: Vec<Option<State>>,
    visits: Vec<u8>,
    /// By block, its place in reverse postorder.
    rank: Vec<u32>,
    queue: BinaryHeap<Reverse<u32>>,
    is_queued: Vec<bool>,
    /// Where exceptions arrive, what they bring.
    landing: Option<State>,
    landing_visits: u8,
    pads: Vec<u32>,
    summary: Summary,
}

impl<'a> Solver<'a> {
    fn new(code: &'a ProcedureCode, knowledge: &'a Knowledge<'a>) -> Self {
        let count = code.blocks.len();
        let mut rank = vec![0; count];
        for (position, &block) in code.order.iter().enumerate() {
            rank[block as usize] = position as u32;
        }
        let pads = (0..count as u32).filter(|&b| code.blocks[b as usize].is_landing_pad).collect();
        Solver {
            code,
            knowledge,
            at_start: vec![None; count],
            visits: vec![0; count],
            rank,
            queue: BinaryHeap::new(),
            is_queued: vec![false; count],
            landing: None,
            landing_visits: 0,
            pads,
            summary: Summary::UNSEEN,
        }
    }

    fn run(&mut self, entry: State) {
        self.arrive(self.code.entry, &entry);
        for block in 0..self.code.blocks.len() as u32 {
            let data = &self.code.blocks[block as usize];
            if data.is_arrival || data.is_landing_pad && self.code.has_unknown_landings {
                self.arrive(block, &State::at_arrival(block));
            }
        }
        while let Some(Reverse(position)) = self.queue.pop() {
            let block = self.code.order[position as usize];
            self.is_queued[block as usize] = false;
            self.visit(block);
        }
        // Exits are taken in at the end: before that they may still lose what would then count as lost.
        for block in 0..self.code.blocks.len() as u32 {
            self.leave(block);
        }
    }

    fn arrive(&mut self, block: u32, state: &State) {
        let index = block as usize;
        let has_changed = match &mut self.at_start[index] {
            Some(known) => {
                let is_widening = self.visits[index] >= VISITS_BEFORE_WIDENING;
                known.meet(state, block, is_widening, &mut self.summary.effects)
            }
            empty => {
                *empty = Some(state.clone());
                true
            }
        };
        if has_changed {
            self.visits[index] = self.visits[index].saturating_add(1);
            if !std::mem::replace(&mut self.is_queued[index], true) {
                self.queue.push(Reverse(self.rank[index]));
            }
        }
    }

    fn visit(&mut self, block: u32) {
        let Some(mut state) = self.at_start[block as usize].clone() else { return };
        let code = self.code;
        let data = &code.blocks[block as usize];
        for number in code.instructions_of(data) {
            if !self.step(&mut state, number as u32) {
                return;
            }
        }
        for &successor in &data.successors {
            self.arrive(successor, &state);
        }
    }

    /// False if control does not come back.
    fn step(&mut self, state: &mut State, number: u32) -> bool {
        step(self.code, state, &mut self.summary.effects, number, None);
        let Effect::Call(index) = self.code.instructions[number as usize].effect else { return true };
        let callee = self.code.calls[index as usize].callee;
        let before = (!self.pads.is_empty()).then_some(state.registers);
        let returns = call(state, &mut self.summary.effects, self.knowledge, callee, number, false);
        if let Some(before) = before {
            self.throw(state, &before);
        }
        returns
    }

    /// An exception leaves a call. What memory and slots then hold is what it would be had the call returned.
    fn throw(&mut self, after: &State, before: &[Value; 16]) {
        if self.code.has_unknown_landings {
            return;
        }
        let landing = self.code.blocks.len() as u32;
        let thrown = after.thrown(before, landing);
        let has_changed = match &mut self.landing {
            Some(known) => {
                let is_widening = self.landing_visits >= VISITS_BEFORE_WIDENING;
                known.meet(&thrown, landing, is_widening, &mut self.summary.effects)
            }
            empty => {
                *empty = Some(thrown);
                true
            }
        };
        if has_changed {
            self.landing_visits = self.landing_visits.saturating_add(1);
            let Some(state) = self.landing.clone() else { return };
            for index in 0..self.pads.len() {
                self.arrive(self.pads[index], &state);
            }
        }
    }

    /// The ways out of a block, at its final state.
    fn leave(&mut self, block: u32) {
        let data = &self.code.blocks[block as usize];
        if data.exits.is_empty() {
            return;
        }
        let Some(mut state) = self.at_start[block as usize].clone() else { return };
        for number in self.code.instructions_of(data) {
            if !self.step(&mut state, number as u32) {
                return;
            }
        }
        for exit in &data.exits {
            let mut state = state.clone();
            match *exit {
                Exit::Return { extra } => self.leave_by_return(state, data.instructions.1.saturating_sub(1), extra),
                Exit::Tail(index) => {
                    let number = data.instructions.1.saturating_sub(1);
                    let callee = self.code.calls[index as usize].callee;
                    if call(&mut state, &mut self.summary.effects, self.knowledge, callee, number, true) {
                        self.summary.add_exit(&state);
                    }
                }
            }
        }
    }
}

impl Solver<'_> {
    /// The return address of an activation is in one place, where the frame counts from, unless the function has read it there and put it elsewhere. So a
    /// return that goes back to the caller finds the stack pointer there, whatever ways that are not taken say of it.
    fn leave_by_return(&mut self, mut state: State, number: u32, extra: i64) {
        let mut top = state.get(RSP);
        let has_copied = self.summary.effects.returns_twice;
        if !has_copied && top.base == Base::FRAME && !(top.offsets.contains(0) && top.residues.contains(0)) {
            // What it returns to was pushed: a jump.
            call(&mut state, &mut self.summary.effects, self.knowledge, Callee::Inside, number, true);
            return self.summary.add_exit(&state);
        }
        if !has_copied {
            top = Value::exact(Base::FRAME, 0);
        }
        state.set(RSP, top.add_constant(8 + extra));
        self.summary.add_exit(&state);
    }
}

/// Walks a block from its state at the start, showing each instruction and call. False if control does not reach its end.
pub fn walk<O: Observer>(code: &ProcedureCode, knowledge: &Knowledge<'_>, block: u32, start: &State, observer: &mut O) -> bool {
    let mut state = start.clone();
    // What is kept is known from the solution.
    let mut effects = Effects::default();
    let mut addresses = Vec::new();
    let data = &code.blocks[block as usize];
    for number in code.instructions_of(data) {
        let number = number as u32;
        if O::SEES_INSTRUCTIONS {
            addresses.clear();
            let before = state.clone();
            step(code, &mut state, &mut effects, number, Some(&mut addresses));
            observer.at_instruction(number, &before, &addresses);
        } else {
            step(code, &mut state, &mut effects, number, None);
        }
        if let Effect::Call(index) = code.instructions[number as usize].effect {
            let data = &code.calls[index as usize];
            observer.at_call(data, &state, false);
            if !call(&mut state, &mut effects, knowledge, data.callee, number, false) {
                return false;
            }
        }
    }
    for exit in &data.exits {
        if let Exit::Tail(index) = *exit {
            observer.at_call(&code.calls[index as usize], &state, true);
        }
    }
    true
}
