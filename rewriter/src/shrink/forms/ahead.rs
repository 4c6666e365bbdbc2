//! What surely comes behind an instruction: whether the flags are read again, and which register is written next.
//!
//! The instructions that follow are looked at one after another, through jumps and on into the blocks that these lead to, until it is decided. Nothing is taken for decided where a branch comes first. Calls and returns hand on no flags
//! (psABI, section 3.2.1); a jump out of the file neither.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use lifter::Image;
use lifter::entity::Block;
use lifter::ir::{CodeTarget, Program, Terminator};
use lifter::x86::decode_block_into;

use super::vector;

/// Instructions that are looked at.
const DEPTH: usize = 24;
/// Blocks behind the first that are looked at.
const BLOCKS_MAX: usize = 3;

const ALL_FLAGS: u32 = RflagsBits::CF | RflagsBits::PF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::OF;

pub(in crate::shrink) struct Ahead<'r, 'a> {
    pub(in crate::shrink) image: &'a Image<'a>,
    pub(in crate::shrink) program: &'a Program,
    pub(in crate::shrink) block: Block,
    /// What follows in the block.
    pub(in crate::shrink) rest: &'r [Instruction],
}

/// What an instruction says of the question.
enum Answer<T> {
    Yes(T),
    No,
    /// The next one may say.
    Open,
}

impl Ahead<'_, '_> {
    /// Whether nobody reads the flags that are there now.
    pub(in crate::shrink) fn has_no_reader_of_flags(&self) -> bool {
        self.ask(Some(()), flags_are_dead).is_some()
    }

    /// A register that is written before it is read: one that calls may change, or one that is taken off the stack.
    pub(super) fn written_next(&self) -> Option<u8> {
        let mut read = 0;
        self.ask(None, |instruction| written_unread(instruction, &mut read))
    }

    /// What the first instruction says that says something; `outside` if there is none before the file is left.
    fn ask<T>(&self, outside: Option<T>, mut of: impl FnMut(&Instruction) -> Answer<T>) -> Option<T> {
        let mut left = DEPTH;
        let mut answer = first_answer(self.rest, &mut left, &mut of);
        let mut block = self.block;
        let mut behind = Vec::new();
        for _ in 0..BLOCKS_MAX {
            if !matches!(answer, Answer::Open) {
                break;
            }
            block = match self.program.blocks[block].terminator {
                Terminator::Fallthrough { next } | Terminator::Jump { target: CodeTarget::Block(next) } => next,
                Terminator::Jump { target: CodeTarget::Fixed(_) } => return outside,
                _ => return None,
            };
            decode_block_into(self.image, self.program, block, &mut behind);
            answer = first_answer(&behind, &mut left, &mut of);
        }
        match answer {
            Answer::Yes(answer) => Some(answer),
            Answer::No | Answer::Open => None,
        }
    }
}

/// `left` is how many instructions may still be asked.
fn first_answer<T>(instructions: &[Instruction], left: &mut usize, of: &mut impl FnMut(&Instruction) -> Answer<T>) -> Answer<T> {
    for instruction in instructions {
        if *left == 0 {
            return Answer::No;
        }
        *left -= 1;
        match of(instruction) {
            Answer::Open => {}
            answer => return answer,
        }
    }
    Answer::Open
}

fn flags_are_dead(instruction: &Instruction) -> Answer<()> {
    match instruction.flow_control() {
        FlowControl::Next => {}
        _ if matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::Call) => return Answer::Yes(()),
        FlowControl::UnconditionalBranch => return Answer::Open,
        _ => return Answer::No,
    }
    use Mnemonic::*;
    match instruction.mnemonic() {
        _ if instruction.rflags_read() == 0 && writes_all_flags(instruction) => Answer::Yes(()),
        Mov | Movzx | Movsx | Movsxd | Lea | Push | Pop | Nop | Not => Answer::Open,
        _ if vector::moves(instruction) => Answer::Open,
        _ => Answer::No,
    }
}

/// Whether of the flags that were there before nothing is left.
pub(in crate::shrink) fn writes_all_flags(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Add | Or | And | Sub | Xor | Cmp | Test | Neg)
        && instruction.rflags_modified() & ALL_FLAGS == ALL_FLAGS
}

/// Of what cannot fault only: whoever handles that would see the register.
fn written_unread(instruction: &Instruction, read: &mut u16) -> Answer<u8> {
    use Mnemonic::*;
    let bit = |register: Register| match register {
        register if register.is_gpr() => 1u16 << (register.full_register().number() & 15),
        _ => 0,
    };
    if instruction.flow_control() == FlowControl::UnconditionalBranch && instruction.op0_kind() == OpKind::NearBranch64 {
        return Answer::Open;
    }
    let to = instruction.op0_register();
    let is_whole = instruction.op0_kind() == OpKind::Register && to.is_gpr() && to.size() >= 4;
    let has_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let is_same = instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Register && to == instruction.op1_register();
    match instruction.mnemonic() {
        Xor if is_whole && is_same => {}
        Mov if is_whole && !has_memory => *read |= bit(instruction.op1_register()),
        Lea if is_whole => *read |= bit(instruction.memory_base()) | bit(instruction.memory_index()),
        Pop if is_whole && to.size() == 8 => {}
        _ => return Answer::No,
    }
    let is_free = instruction.mnemonic() == Pop || analysis::values::code::CALLEE_SAVED & bit(to) == 0;
    if is_free && *read & bit(to) == 0 && to.full_register() != Register::RSP {
        return Answer::Yes(to.number() as u8 & 15);
    }
    *read |= bit(to);
    Answer::Open
}
