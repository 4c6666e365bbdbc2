//! Conditional constant propagation over one procedure, from what is known at its entry (Wegman and Zadeck's method on machine code).
//!
//! **Method.** States are those of the analysis of values, so that frame slots, calls, exceptions and the contract of registers are its affair, with the arithmetic flags
//! beside them. What an instruction computes from constants replaces what the analysis says of it. A block is reached only by ways that the
//! flags, or the known target of an indirect jump, leave open.
//!
//! **Constant memory.** A load from a read-only segment, of bytes that no relocation writes and that are no code, gives what the file has there.
//!
//! **Terminates**: a block's state is widened after a few visits (`values::state`), and its flags only get lost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use iced_x86::{Instruction, OpKind};
use lifter::Va;
use lifter::ir::{CodeTarget, StopKind, Terminator};
use lifter::x86::has_segment_base;

use super::evaluate::{Flags, cut, evaluate, operand_bits};
use super::known::Constant;
use super::prepared::{Prepared, general};
use crate::domain::{Base, Value};
use crate::values::calls::{Knowledge, call};
use crate::values::code::{Effect, Exit};
use crate::values::memory::{Address, sum_value};
use crate::values::transfer::step;
use crate::values::{Effects, State, Surroundings};

/// Visits of a block after which its state is widened.
const VISITS_BEFORE_WIDENING: u8 = 2;

/// What is known at one place.
#[derive(Clone, Debug)]
pub(super) struct Knowing {
    pub(super) state: State,
    pub(super) flags: Flags,
}

/// What is known at the start of each block that is reached.
pub(super) struct Solved {
    pub(super) at_start: Vec<Option<Knowing>>,
}

/// What propagation asks of the rest of the program.
#[derive(Copy, Clone)]
pub(super) struct Setting<'a> {
    pub(super) around: &'a Surroundings<'a>,
    pub(super) knowledge: Knowledge<'a>,
}

/// How a block is left.
pub(super) struct Ways {
    /// Successors, by number in the procedure.
    pub(super) successors: Vec<u32>,
    /// Calls in place of which it jumps out of the procedure; indices into the procedure's calls.
    pub(super) tails: Vec<u32>,
    /// Whether knowing has left fewer ways open than there are.
    pub(super) is_decided: bool,
}

pub(super) fn solve(setting: Setting<'_>, prepared: &Prepared, entry: State) -> Solved {
    let mut solver = Solver::new(setting, prepared);
    solver.run(entry);
    Solved { at_start: solver.at_start }
}

/// Takes one instruction's effect into account, calls included. The constant that operand 0 becomes, if it is known; or `None` for control that does not come back.
pub(super) fn advance(setting: Setting<'_>, prepared: &Prepared, knowing: &mut Knowing, number: u32) -> bool {
    let index = number as usize;
    let instruction = &prepared.instructions[index];
    let mut effects = Effects::default();
    let result = {
        let before = &knowing.state;
        let operands = |operand: u32| operand_value(setting, instruction, before, operand);
        evaluate(instruction, &operands, &mut knowing.flags)
    };
    let old = result.and_then(|_| old_register(instruction, &knowing.state));
    step(&prepared.code, &mut knowing.state, &mut effects, number, None);
    if let (Some(constant), true) = (result, prepared.actions[index].is_computation) {
        put(&mut knowing.state, instruction, constant, old);
    }
    let Effect::Call(number_of_call) = prepared.code.instructions[index].effect else { return true };
    knowing.flags = Flags::default();
    let callee = prepared.code.calls[number_of_call as usize].callee;
    call(&mut knowing.state, &mut effects, &setting.knowledge, callee, number, false)
}

fn old_register(instruction: &Instruction, state: &State) -> Option<Constant> {
    let register = (instruction.op0_kind() == OpKind::Register).then(|| general(instruction.op0_register())).flatten()?;
    Constant::of(&state.get(register))
}

/// Gives operand 0 its value, where it is a register of which then all is known.
fn put(state: &mut State, instruction: &Instruction, constant: Constant, old: Option<Constant>) {
    use iced_x86::Mnemonic::{Cmp, Test};
    if instruction.op0_kind() != OpKind::Register || matches!(instruction.mnemonic(), Cmp | Test) {
        return;
    }
    let (Some(register), Some(bits)) = (general(instruction.op0_register()), operand_bits(instruction, 0)) else { return };
    let whole = match (bits, constant, old) {
        (32 | 64, _, _) => Some(constant),
        (_, Constant::Number(low), Some(Constant::Number(old))) => {
            Some(Constant::Number(old & !cut(u64::MAX, bits) | cut(low, bits)))
        }
        _ => None,
    };
    if let Some(whole) = whole {
        state.set(register, whole.value());
    }
}

/// The value of an operand before the instruction, cut to its size.
pub(super) fn operand_value(setting: Setting<'_>, instruction: &Instruction, state: &State, operand: u32) -> Option<Constant> {
    if operand >= instruction.op_count() {
        return None;
    }
    match instruction.op_kind(operand) {
        OpKind::Register => {
            let bits = operand_bits(instruction, operand)?;
            match Constant::of(&state.get(general(instruction.op_register(operand))?))? {
                Constant::Number(number) => Some(Constant::Number(cut(number, bits))),
                address => (bits == 64).then_some(address),
            }
        }
        OpKind::Memory => load(setting, instruction, state, operand_bits(instruction, operand)?),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 | OpKind::FarBranch16 | OpKind::FarBranch32 => None,
        _ => instruction.try_immediate(operand).ok().map(Constant::Number),
    }
}

/// The address of the memory operand, as far as it is in the image.
fn image_address(setting: Setting<'_>, instruction: &Instruction, state: &State) -> Option<Va> {
    let is_position_independent = setting.around.image.kind.is_position_independent();
    if has_segment_base(instruction) {
        return None;
    }
    if instruction.is_ip_rel_memory_operand() {
        return Some(Va(instruction.ip_rel_memory_address()));
    }
    match Constant::of(&operand_address(instruction, state)?)? {
        Constant::Address(at) => Some(at),
        Constant::Number(number) => (!is_position_independent).then_some(Va(number)),
    }
}

fn operand_address(instruction: &Instruction, state: &State) -> Option<Value> {
    let part = |register: iced_x86::Register| match register {
        iced_x86::Register::None => Some(None),
        _ => general(register).filter(|_| register.size() == 8).map(Some),
    };
    let sum = crate::values::code::Sum {
        base: part(instruction.memory_base())?,
        index: part(instruction.memory_index())?,
        scale: i64::from(instruction.memory_index_scale()),
        constant: instruction.memory_displacement64().cast_signed(),
        is_image: false,
    };
    sum_value(state, &sum)
}

fn load(setting: Setting<'_>, instruction: &Instruction, state: &State, bits: u32) -> Option<Constant> {
    if let Some(at) = image_address(setting, instruction, state) {
        return constant_memory(setting, at, bits / 8).map(Constant::Number);
    }
    // What a slot of eight bytes holds from its start on.
    let address = operand_address(instruction, state).filter(|a| a.base == Base::FRAME)?;
    match Constant::of(&state.slot(address.offset()?)?.value)? {
        Constant::Number(number) => Some(Constant::Number(cut(number, bits))),
        constant => (bits == 64).then_some(constant),
    }
}

/// What constant memory holds.
pub(super) fn constant_memory(setting: Setting<'_>, at: Va, len: u32) -> Option<u64> {
    let image = setting.around.image;
    let segment = image.segment_at(at)?;
    let end = at + u64::from(len);
    let section = image.section_at(at)?;
    if segment.is_writable() || image.sections[section].is_executable() || image.sections[section].is_writable() {
        return None;
    }
    // A relocated word of up to eight bytes may begin before.
    let first = image.dynamic_relocs.partition_point(|r| r.slot.0 + 8 <= at.0);
    if image.dynamic_relocs.get(first).is_some_and(|r| r.slot < end) {
        return None;
    }
    let bytes = image.read(at, len as usize)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

struct Solver<'a> {
    setting: Setting<'a>,
    prepared: &'a Prepared,
    at_start: Vec<Option<Knowing>>,
    visits: Vec<u8>,
    rank: Vec<u32>,
    queue: BinaryHeap<Reverse<u32>>,
    is_queued: Vec<bool>,
    landing: Option<State>,
    landing_visits: u8,
    pads: Vec<u32>,
}

impl<'a> Solver<'a> {
    fn new(setting: Setting<'a>, prepared: &'a Prepared) -> Self {
        let code = &prepared.code;
        let count = code.blocks.len();
        let mut rank = vec![0; count];
        for (position, &block) in code.order.iter().enumerate() {
            rank[block as usize] = position as u32;
        }
        Solver {
            setting,
            prepared,
            at_start: vec![None; count],
            visits: vec![0; count],
            rank,
            queue: BinaryHeap::new(),
            is_queued: vec![false; count],
            landing: None,
            landing_visits: 0,
            pads: (0..count as u32).filter(|&b| code.blocks[b as usize].is_landing_pad).collect(),
        }
    }

    fn run(&mut self, entry: State) {
        let code = &self.prepared.code;
        self.arrive(code.entry, &entry, Flags::default());
        for block in 0..code.blocks.len() as u32 {
            let data = &code.blocks[block as usize];
            if data.is_arrival || data.is_landing_pad && code.has_unknown_landings {
                self.arrive(block, &State::at_arrival(block), Flags::default());
            }
        }
        while let Some(Reverse(position)) = self.queue.pop() {
            let block = code.order[position as usize];
            self.is_queued[block as usize] = false;
            self.visit(block);
        }
    }

    fn arrive(&mut self, block: u32, state: &State, flags: Flags) {
        let index = block as usize;
        let has_changed = match &mut self.at_start[index] {
            Some(known) => {
                let met = known.flags.meet(flags);
                let is_widening = self.visits[index] >= VISITS_BEFORE_WIDENING;
                let lost = known.state.meet(state, block, is_widening, &mut Effects::default());
                lost | (std::mem::replace(&mut known.flags, met) != met)
            }
            empty => {
                *empty = Some(Knowing { state: state.clone(), flags });
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
        let Some(mut knowing) = self.at_start[block as usize].clone() else { return };
        let prepared = self.prepared;
        let range = prepared.code.instructions_of(&prepared.code.blocks[block as usize]);
        let last = range.clone().next_back();
        let mut before_last = None;
        for number in range {
            if Some(number) == last {
                before_last = Some(knowing.clone());
            }
            let is_call = matches!(prepared.code.instructions[number].effect, Effect::Call(_));
            let registers = (is_call && !self.pads.is_empty()).then_some(knowing.state.registers);
            let returns = advance(self.setting, prepared, &mut knowing, number as u32);
            if let Some(registers) = registers {
                self.throw(&knowing.state, &registers);
            }
            if !returns {
                return;
            }
        }
        let ways = ways(self.setting, prepared, block, before_last.as_ref());
        for successor in ways.successors {
            self.arrive(successor, &knowing.state, knowing.flags);
        }
    }

    /// As in `values::fixpoint`: an exception brings what callee-saved registers held at the call.
    fn throw(&mut self, after: &State, before: &[Value; 16]) {
        let code = &self.prepared.code;
        if code.has_unknown_landings {
            return;
        }
        let landing = code.blocks.len() as u32;
        let thrown = after.thrown(before, landing);
        let has_changed = match &mut self.landing {
            Some(known) => {
                let is_widening = self.landing_visits >= VISITS_BEFORE_WIDENING;
                known.meet(&thrown, landing, is_widening, &mut Effects::default())
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
                self.arrive(self.pads[index], &state, Flags::default());
            }
        }
    }
}

/// The ways out of a block that what is known before its last instruction leaves open.
pub(super) fn ways(setting: Setting<'_>, prepared: &Prepared, block: u32, before_last: Option<&Knowing>) -> Ways {
    let data = &prepared.code.blocks[block as usize];
    let tails = data.exits.iter().filter_map(|exit| match exit {
        Exit::Tail(call) => Some(*call),
        Exit::Return { .. } => None,
    });
    let all = Ways { successors: data.successors.clone(), tails: tails.collect(), is_decided: false };
    let Some(before) = before_last else { return all };
    let program = setting.around.program;
    let number = data.instructions.1.saturating_sub(1) as usize;
    let instruction = &prepared.instructions[number];
    let target = match program.blocks[data.block].terminator {
        Terminator::Branch { taken, next, .. } => match before.flags.decide(instruction.condition_code()) {
            Some(true) => taken,
            Some(false) => CodeTarget::Block(next),
            None => return all,
        },
        Terminator::Stop(StopKind::TableJump(_)) => match jump_target(setting, instruction, &before.state) {
            Some(at) => match program.block_at(at) {
                Some(target) => CodeTarget::Block(target),
                None => return all,
            },
            None => return all,
        },
        _ => return all,
    };
    only(setting, prepared, &all, target).unwrap_or(all)
}

fn jump_target(setting: Setting<'_>, instruction: &Instruction, state: &State) -> Option<Va> {
    let is_position_independent = setting.around.image.kind.is_position_independent();
    match operand_value(setting, instruction, state, 0)? {
        Constant::Address(at) => Some(at),
        Constant::Number(number) => (!is_position_independent).then_some(Va(number)),
    }
}

/// The one way that goes to a target; `None` if it can't be told which that is.
fn only(setting: Setting<'_>, prepared: &Prepared, all: &Ways, target: CodeTarget) -> Option<Ways> {
    let program = setting.around.program;
    let inside = match target {
        CodeTarget::Block(block) => all.successors.iter().copied().find(|&s| prepared.code.blocks[s as usize].block == block),
        CodeTarget::Fixed(_) => None,
    };
    if let Some(successor) = inside {
        return Some(Ways { successors: vec![successor], tails: Vec::new(), is_decided: true });
    }
    // Out of the procedure: the jump is the only one there is.
    let is_own = |block: lifter::entity::Block| prepared.code.blocks.iter().any(|b| b.block == block);
    let leaves = match target {
        CodeTarget::Block(block) => !is_own(block) && program.blocks.get(block).is_some(),
        CodeTarget::Fixed(_) => true,
    };
    (leaves && all.tails.len() == 1).then(|| Ways { successors: Vec::new(), tails: all.tails.clone(), is_decided: true })
}

/// The distance of an access from the frame, where it is to the frame's own part at a known place.
pub(super) fn is_own_frame(address: &Address) -> bool {
    address.value.base == Base::FRAME && address.value.offset().is_some_and(|offset| offset < 0)
}
