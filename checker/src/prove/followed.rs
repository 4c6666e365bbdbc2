//! Callees that are parts of their callers: what the code of a file does where it calls straight code that is no function.
//!
//! **Problem.** Calls keep `rbx`, `rbp` and `r12` to `r15`, hand back `rax` and `rdx`, and leave their caller's frame alone, or so the psABI has it. Where relift put instructions once for many places ([`crate::walk`]), and its
//! output is the input now, they do not: the caller goes on with what these have written, in any register, and in slots of its own frame.
//!
//! **Method.** From where a call leads, instructions are followed as long as they are plain and address nothing by the stack pointer but what is above the return address: these are taken for the caller's, and what they address so is
//! as much lower as the return address takes. A function that a compiler made has saved what it keeps before it writes it, which ends them; so what such instructions write is what they
//! were to write for the caller. They may end with a `ret` ([`Followed::returns`]). What comes otherwise is a function that keeps to the psABI from there on. A call among them is followed too, if that comes back in
//! such a way; of a caller without a frame that calls otherwise, no more is followed than what is before that call.
//!
//! **Terminates**: [`STEPS_MAX`] instructions are looked at.

use std::rc::Rc;

use super::Prover;
use super::decoded::{Decoded, Memory, Operand, Reg};
use super::escape::makes_address;
use super::kept::{may_write, own_callee_of};
use super::liveness::KEPT;
use crate::decode::{Inst, Kind};
use crate::followed::{STEPS_MAX, is_plain_return};
use crate::walk::{Side, Walk};

const STACK: u8 = 4;
const BASE: u8 = 5;
/// Bytes of a return address.
const RETURN_ADDRESS: i64 = 8;
/// Calls in calls.
const DEPTH_MAX: usize = 4;

/// What is called, as far as it is a part of its caller.
#[derive(Default)]
pub(super) struct Followed {
    /// In order, with what they address as the caller would.
    pub(super) insts: Vec<(u64, Rc<Decoded>)>,
    /// It ends with a return, and is no function.
    pub(super) returns: bool,
    /// One of them is not known: it may do anything.
    pub(super) is_unknown: bool,
}

/// What of it is not as the psABI has it.
#[derive(Copy, Clone, Default)]
pub(super) struct Broken {
    /// Registers that calls keep, and this writes, as bits.
    pub(super) registers: u16,
    /// Slots of the caller's frame may be written.
    pub(super) frame: bool,
    /// An address of the caller's frame may go elsewhere.
    pub(super) is_let_out: bool,
}

impl Followed {
    pub(super) fn of(side: &Side<'_>, target: u64, mut decode: impl FnMut(u64, Inst) -> Option<Rc<Decoded>>) -> Self {
        let mut found = Self::default();
        // Where calls among them come back to, and how many there are before the first of these.
        let (mut back, mut sure) = (Vec::new(), 0);
        let mut at = target;
        for _ in 0..STEPS_MAX {
            let Some(inst) = side.inst(at) else { break };
            let after = at + u64::from(inst.len);
            at = match inst.kind {
                Kind::Nop | Kind::EndBranch => after,
                Kind::Jump => side.target(at, inst),
                Kind::Call if back.len() < DEPTH_MAX => {
                    if back.is_empty() {
                        sure = found.insts.len();
                    }
                    back.push(after);
                    side.target(at, inst)
                }
                Kind::Return if is_plain_return(side, at, inst) => match back.pop() {
                    Some(behind) => behind,
                    None => return Self { returns: true, ..found },
                },
                Kind::Plain | Kind::Lea => {
                    let Some(decoded) = decode(at, inst) else { return Self { is_unknown: true, ..found } };
                    let depth = RETURN_ADDRESS * (1 + back.len() as i64);
                    let Some(decoded) = as_of_caller(decoded, depth) else { break };
                    found.insts.push((at, decoded));
                    after
                }
                _ => break,
            };
        }
        if !back.is_empty() {
            found.insts.truncate(sure);
        }
        found
    }

    /// What is not as the psABI has it, for a caller whose frame is found by `rbp`, or is not.
    pub(super) fn broken(&self, has_base: bool) -> Broken {
        if self.is_unknown {
            return Broken { registers: KEPT & !(1 << STACK), frame: true, is_let_out: true };
        }
        let all = || self.insts.iter().map(|(_, decoded)| &**decoded);
        let is_written = |register: &u8| KEPT >> register & 1 == 1 && all().any(|decoded| may_write(decoded, *register));
        Broken {
            registers: (0..16)
                .filter(|&register| register != STACK)
                .filter(is_written)
                .fold(0, |set, register| set | 1 << register),
            frame: all().any(may_write_frame),
            is_let_out: all().any(|decoded| makes_address(decoded, has_base)),
        }
    }
}

impl Broken {
    pub(super) fn union(self, other: Self) -> Self {
        Self {
            registers: self.registers | other.registers,
            frame: self.frame || other.frame,
            is_let_out: self.is_let_out || other.is_let_out,
        }
    }
}

impl Prover {
    /// What a direct call of code of the file does for its caller; `None` of other calls.
    pub(super) fn followed(&mut self, walk: &Walk<'_, '_>, is_input: bool, place: u64) -> Option<Rc<Followed>> {
        let side = if is_input { walk.input } else { walk.output };
        let target = side.inst(place).and_then(|inst| own_callee_of(side, place, inst))?;
        if let Some(known) = self.followed.get(&(is_input, target)) {
            return Some(Rc::clone(known));
        }
        let found = Rc::new(Followed::of(side, target, |at, inst| self.decode(is_input, side, at, inst)));
        self.followed.insert((is_input, target), Rc::clone(&found));
        Some(found)
    }

    /// What of a call is not as the psABI has it.
    pub(super) fn broken_by_call(&mut self, walk: &Walk<'_, '_>, is_input: bool, place: u64, has_base: bool) -> Broken {
        self.followed(walk, is_input, place).map_or_else(Broken::default, |followed| followed.broken(has_base))
    }
}

/// The same instruction of a caller whose stack pointer is as much higher; `None` if it uses the stack pointer otherwise than to address what is above that, or does more than plain instructions do.
fn as_of_caller(decoded: Rc<Decoded>, depth: i64) -> Option<Rc<Decoded>> {
    let is_stack = |register: Reg| matches!(register, Reg::General(STACK, ..));
    let is_by_stack = |memory: &Memory| memory.base.is_some_and(is_stack);
    let has_other = decoded.operands.iter().any(|(operand, _)| match operand {
        Operand::Reg(register) => is_stack(*register),
        Operand::Memory(memory) => {
            memory.index.is_some_and(is_stack) || is_by_stack(memory) && memory.displacement.cast_signed() < depth
        }
        Operand::Immediate(_) => false,
    });
    // What it reads are registers of its operands too.
    let is_moved = decoded.writes.iter().any(|&register| is_stack(register));
    if has_other || is_moved || decoded.is_special {
        return None;
    }
    if !decoded.operands.iter().any(|(operand, _)| matches!(operand, Operand::Memory(memory) if is_by_stack(memory))) {
        return Some(decoded);
    }
    let mut lower = Decoded::clone(&decoded);
    for (operand, _) in &mut lower.operands {
        if let Operand::Memory(memory) = operand
            && is_by_stack(memory)
        {
            memory.displacement = memory.displacement.wrapping_sub(depth.cast_unsigned());
        }
    }
    Some(Rc::new(lower))
}

/// Whether an instruction may write what the stack pointer or `rbp` points to.
fn may_write_frame(decoded: &Decoded) -> bool {
    let is_frame = |register: Reg| matches!(register, Reg::General(STACK | BASE, ..));
    let is_of_frame = |memory: &Memory| memory.base.is_some_and(is_frame) || memory.index.is_some_and(is_frame);
    let only_reads = matches!(decoded.name.as_str(), "lea" | "cmp" | "test" | "bt");
    let is_moved = decoded.name.starts_with('x') || decoded.name.starts_with("lock");
    let mut operands = decoded.operands.iter().enumerate();
    operands.any(|(position, (operand, _))| {
        matches!(operand, Operand::Memory(memory) if is_of_frame(memory)) && !only_reads && (position == 0 || is_moved)
    })
}
