//! Which procedures can be copied with some words more on the stack, between the return address and all that they put below it.
//!
//! **Problem.** A copy that keeps a hidden value in its own frame has everything else so much lower. That changes nothing for code that counts from its stack pointer
//! downward, and breaks code that looks at its return address or at arguments behind it.
//!
//! **Method.** The values of all registers at each instruction, from an entry of which nothing is known. The procedure is fit if the distance of `rsp` from the entry is one
//! known number everywhere; if no address at or above the return address is formed or used; if it leaves by returns and plain jumps with `rsp` where it was, and never jumps to its
//! own entry. An address that counts from the frame by an unknown index is in the object that the known part of it is in (`values::memory`); compilers let the known part begin a
//! little below an object, so it may not be within [`INDEX_MARGIN`] of the return address.
//!
//! **Frame pointers.** Who walks the chain of saved `rbp` finds the return address behind each. With something in between it would not, so procedures that make a link of that
//! chain are not fit.

use iced_x86::Register as Machine;
use lifter::Va;
use lifter::entity::Block;
use lifter::ir::{CodeTarget, StopKind, Terminator};

use super::known::Facts;
use super::outcome::Place;
use super::prepared::Prepared;
use super::solve::{Knowing, Setting, advance, solve};
use crate::domain::Base;
use crate::engine::Summaries;
use crate::procedures::Procedure;
use crate::values::State;
use crate::values::code::{Callee, Effect, Exit, MemoryReference, Place as Where, RBP, RSP, Sum};
use crate::values::memory::sum_value;

/// How far below the return address the known part of an indexed address has to be.
const INDEX_MARGIN: i64 = 64;

/// Why a procedure can't be copied so.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unfit {
    NotUnderstood,
    UnknownDepth,
    /// It uses what is at or above its return address.
    Arguments,
    FramePointer,
    LoopsToEntry,
    /// It jumps out of itself on a condition, or runs on into other code.
    LeavesOnCondition,
    /// It takes arguments off the stack.
    PopsArguments,
}

impl Unfit {
    pub fn name(self) -> &'static str {
        match self {
            Unfit::NotUnderstood => "not understood",
            Unfit::UnknownDepth => "depth of the stack",
            Unfit::Arguments => "arguments on the stack",
            Unfit::FramePointer => "frame pointer",
            Unfit::LoopsToEntry => "loop to the entry",
            Unfit::LeavesOnCondition => "conditional way out",
            Unfit::PopsArguments => "arguments taken off the stack",
        }
    }
}

/// How a procedure is left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Leaving {
    Return,
    Jump(CodeTarget),
    Indirect,
}

/// A procedure that can be copied with more on the stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracked {
    /// By the address behind each call, and of the end of each block that leaves: how far `rsp` is below the entry's before; ascending.
    depths: Vec<(Va, u32)>,
    /// Instructions that leave, each the last of its block; ascending.
    pub leaves: Vec<(Place, Leaving)>,
}

impl Tracked {
    pub fn of(summaries: &Summaries<'_>, procedure: Procedure) -> Result<Self, Unfit> {
        let setting = Setting { around: &summaries.around, knowledge: summaries.knowledge() };
        let prepared = Prepared::new(setting.around, procedure);
        let code = &prepared.code;
        let is_strange = code.is_opaque
            || code.has_unknown_landings
            || code.blocks.iter().any(|b| b.is_arrival)
            || code.calls.iter().any(|call| call.callee == Callee::Inside);
        if is_strange {
            return Err(Unfit::NotUnderstood);
        }
        if code.blocks.iter().any(|b| b.successors.contains(&code.entry)) {
            return Err(Unfit::LoopsToEntry);
        }
        let solved = solve(setting, &prepared, Facts::default().entry_state());
        let mut tracked = Tracked::default();
        for (block, start) in solved.at_start.iter().enumerate() {
            match start {
                Some(start) => tracked.walk(setting, &prepared, block, start)?,
                // What is not reached is not looked at; so it must not leave.
                None if code.blocks[block].exits.is_empty() => {}
                None => return Err(Unfit::NotUnderstood),
            }
        }
        tracked.depths.sort_unstable();
        tracked.leaves.sort_unstable_by_key(|leave| leave.0);
        Ok(tracked)
    }

    /// How far `rsp` is below the entry's before a call, by the address behind it, or before a jump that leaves, by the end of its block.
    pub fn depth_before(&self, at: Va) -> Option<u32> {
        self.depths.binary_search_by_key(&at, |d| d.0).ok().map(|found| self.depths[found].1)
    }
    /// The way out at the end of a block.
    pub fn leaving(&self, block: Block) -> Option<(Place, Leaving)> {
        self.leaves.binary_search_by_key(&block, |leave| leave.0.block).ok().map(|found| self.leaves[found])
    }

    fn walk(&mut self, setting: Setting<'_>, prepared: &Prepared, block: usize, start: &Knowing) -> Result<(), Unfit> {
        let data = &prepared.code.blocks[block];
        let mut knowing = start.clone();
        for number in prepared.code.instructions_of(data) {
            let depth = depth(&knowing.state)?;
            let is_last = number + 1 == data.instructions.1 as usize;
            if is_last && !data.exits.is_empty() {
                return self.leave(setting, prepared, block, number, depth);
            }
            check_addresses(prepared, number, &knowing.state)?;
            if let Effect::Call(call) = prepared.code.instructions[number].effect {
                self.depths.push((Va(prepared.code.calls[call as usize].at), depth));
            }
            if !advance(setting, prepared, &mut knowing, number as u32) {
                return Ok(());
            }
            check_registers(&knowing.state)?;
        }
        // A block without an instruction of its own at its end.
        if data.exits.is_empty() { Ok(()) } else { Err(Unfit::LeavesOnCondition) }
    }

    fn leave(&mut self, setting: Setting<'_>, prepared: &Prepared, block: usize, number: usize, depth: u32) -> Result<(), Unfit> {
        let data = &prepared.code.blocks[block];
        let program = setting.around.program;
        let lifted = &program.blocks[data.block];
        let instruction = &prepared.instructions[number];
        let offset = (instruction.ip() - lifted.start.0) as u32;
        let leaving = match (&data.exits[..], lifted.terminator) {
            ([Exit::Return { extra: 0 }], _) => Leaving::Return,
            ([Exit::Return { .. }], _) => return Err(Unfit::PopsArguments),
            ([Exit::Tail(_)], Terminator::Jump { target }) if data.successors.is_empty() => Leaving::Jump(target),
            ([Exit::Tail(_)], Terminator::Stop(StopKind::IndirectTailCall)) => Leaving::Indirect,
            _ => return Err(Unfit::LeavesOnCondition),
        };
        if depth != 0 {
            return Err(Unfit::UnknownDepth);
        }
        self.depths.push((lifted.end(), depth));
        self.leaves.push((Place { block: data.block, offset, len: instruction.len() as u32 }, leaving));
        Ok(())
    }
}

/// How far the stack pointer is below the entry's.
fn depth(state: &State) -> Result<u32, Unfit> {
    let pointer = state.get(RSP);
    let offset = pointer.offset().filter(|_| pointer.base == Base::FRAME);
    offset.and_then(|offset| u32::try_from(-offset).ok()).ok_or(Unfit::UnknownDepth)
}

/// Whether what an instruction names of the stack is below the return address.
fn check_addresses(prepared: &Prepared, number: usize, state: &State) -> Result<(), Unfit> {
    let instruction = &prepared.code.instructions[number];
    for reference in prepared.code.references_of(instruction) {
        check_reference(reference, state, prepared.instructions[number].memory_base())?;
    }
    match instruction.effect {
        Effect::Linear { to, sum, .. } if to != RSP => check_sum(&sum, 1, state),
        _ => Ok(()),
    }
}

fn check_reference(reference: &MemoryReference, state: &State, base: Machine) -> Result<(), Unfit> {
    match &reference.address {
        _ if reference.is_implicit => Ok(()),
        Where::Sum(sum) | Where::Thread(sum) => check_sum(sum, i64::from(reference.size.max(1)), state),
        Where::Unknown if base == Machine::RSP || base == Machine::ESP => Err(Unfit::UnknownDepth),
        Where::Unknown => Ok(()),
    }
}

fn check_sum(sum: &Sum, size: i64, state: &State) -> Result<(), Unfit> {
    let Some(value) = sum_value(state, sum).filter(|value| value.base == Base::FRAME) else { return Ok(()) };
    let is_below = value.offsets.high.checked_add(size).is_some_and(|end| end <= 0);
    // The stack pointer itself, copied or moved, is no address of anything.
    let is_pointer_itself = sum.base == Some(RSP) && sum.index.is_none() && sum.constant == 0 && size == 1;
    if is_below || is_pointer_itself {
        return Ok(());
    }
    let known_part = |register: Option<u8>| {
        let part = state.get(register?);
        part.offset().filter(|_| part.base == Base::FRAME)
    };
    match known_part(sum.base).or_else(|| known_part(sum.index).filter(|_| sum.scale == 1)) {
        _ if value.offset().is_some() || value.offsets.low >= 0 => Err(Unfit::Arguments),
        Some(known) if known.saturating_add(sum.constant) >= -INDEX_MARGIN => Err(Unfit::Arguments),
        _ => Ok(()),
    }
}

/// Whether all registers point below the return address, as far as they point into the stack, and none is a link of the chain of frames.
fn check_registers(state: &State) -> Result<(), Unfit> {
    depth(state)?;
    for register in (0..16u8).filter(|&r| r != RSP) {
        let value = state.get(register);
        if value.base == Base::FRAME && value.offsets.low >= 0 {
            return Err(Unfit::Arguments);
        }
    }
    let link = state.get(RBP);
    match link.base == Base::FRAME && link.offset() == Some(-8) {
        true => Err(Unfit::FramePointer),
        false => Ok(()),
    }
}
