//! Small changes of the stack pointer by `push` and `pop`.
//!
//! `push` writes the word that `sub` only made room for. Nobody reads that word before something is written there, if it was not written before, below the stack pointer: so not in a function that
//! addresses anything there, or that keeps the stack pointer in `%rbp`, by which it could. Nor where control comes from an instruction that raises the stack pointer ([`Below`]): what was given up is still there, and OCaml's `caml_c_call`
//! has its return address back so. (In code that follows the psABI no function that calls reads such a word.)
//! `pop` reads a word and leaves it in a register; the next instructions write that anew, and none of them can fault. A register that functions keep is spoiled only where a `pop` restores it next: an unwinder
//! finds what it held on the stack, where it was saved.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func};
use lifter::ir::{CodeTarget, Program, StopKind, Terminator};
use lifter::x86::decode_block_into;
use rustc_hash::FxHashMap;
use smallvec::smallvec;

use super::ahead::Ahead;
use super::{Form, Here};

/// `sub $8, %rsp`
const LOWER: [u8; 4] = [0x48, 0x83, 0xec, 8];
/// `add $8, %rsp`
const RAISE: [u8; 4] = [0x48, 0x83, 0xc4, 8];
/// `push %rax`
const PUSH: u8 = 0x50;
/// `pop %rax`; the other registers follow.
const POP: u8 = 0x58;

/// What makes room for a word.
pub(super) fn lower<'b>(here: Here<'_>, ahead: &Ahead<'_, '_>, below: impl FnOnce() -> Option<&'b Below>) -> Option<Form> {
    let is_bare = || below().is_some_and(|below| below.is_bare(ahead.block, Va(here.instruction.ip())));
    let may = here.bytes == LOWER && ahead.has_no_reader_of_flags() && is_bare();
    may.then(|| Form::plain(smallvec![PUSH]))
}

/// What gives a word up.
pub(super) fn raise(here: Here<'_>, ahead: &Ahead<'_, '_>) -> Option<Form> {
    if here.bytes != RAISE || !ahead.has_no_reader_of_flags() {
        return None;
    }
    let register = ahead.written_next()?;
    let pop = POP | register & 7;
    let bytes = if register < 8 { smallvec![pop] } else { smallvec![0x41, pop] };
    Some(Form { spoils: Some(register), ..Form::plain(bytes) })
}

/// What a function may have left in the word below the stack pointer.
pub(super) struct Below {
    /// From where on in a block that may be a word that was given up.
    given_up: FxHashMap<Block, Va>,
}

impl Below {
    /// Looks at a function; `None` if it has code without unwind entries, addresses what is below the stack pointer, or has `%rbp` for a frame pointer.
    pub(super) fn of(image: &Image<'_>, program: &Program, func: Func) -> Option<Self> {
        let is_described = program.func_ranges(func).iter().all(|range| range.fde.is_some());
        if !is_described {
            return None;
        }
        let (mut instructions, mut given_up) = (Vec::new(), FxHashMap::default());
        for block in program.funcs[func].blocks.iter() {
            decode_block_into(image, program, block, &mut instructions);
            if instructions.iter().any(may_reach_below) {
                return None;
            }
            let first = instructions.iter().find(|instruction| may_raise(instruction));
            given_up.extend(first.map(|first| (block, Va(first.next_ip()))));
        }
        let mut pending: Vec<Block> = given_up.keys().copied().collect();
        while let Some(block) = pending.pop() {
            for next in ways_on(program, block) {
                let start = program.blocks[next].start;
                if !begins_entry(program, next) && given_up.insert(next, start) != Some(start) {
                    pending.push(next);
                }
            }
        }
        Some(Self { given_up })
    }

    fn is_bare(&self, block: Block, at: Va) -> bool {
        self.given_up.get(&block).is_none_or(|&from| at < from)
    }
}

/// Where control may go from a block, into other functions too, and behind calls that are said not to return.
fn ways_on(program: &Program, block: Block) -> impl Iterator<Item = Block> {
    let data = &program.blocks[block];
    let of = |target| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    };
    let behind = || {
        let order = &program.blocks_by_address;
        order.get(order.partition_point(|&other| program.blocks[other].start <= data.start)).copied()
    };
    let [taken, next] = match data.terminator {
        Terminator::Fallthrough { next } => [None, Some(next)],
        Terminator::Jump { target } => [of(target), None],
        Terminator::Branch { taken, next, .. } => [of(taken), Some(next)],
        Terminator::Loop { taken, next } => [Some(taken), Some(next)],
        Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap | StopKind::Unknown) => [None, behind()],
        Terminator::Stop(_) => [None, None],
    };
    taken.into_iter().chain(next).chain(program.block_edges(block).iter().map(|edge| edge.target))
}

/// Whether an unwind entry begins with a block: nobody hands a word on to it below the stack pointer.
fn begins_entry(program: &Program, block: Block) -> bool {
    let data = &program.blocks[block];
    program.ranges[data.range as usize].fde.is_some_and(|fde| program.unwind.fdes[fde].start == data.start)
}

fn may_raise(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_stack = |operand: u32| {
        instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand).full_register() == Register::RSP
    };
    let writes_stack =
        instruction.op_count() > 0 && is_stack(0) || instruction.op_count() > 1 && instruction.mnemonic() == Xchg && is_stack(1);
    match instruction.mnemonic() {
        Pop | Popf | Popfq | Leave => true,
        Push | Cmp | Test | And => false,
        Sub if matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64) => {
            writes_stack && instruction.immediate(1).cast_signed() < 0
        }
        Sub => false,
        _ => writes_stack,
    }
}

fn may_reach_below(instruction: &Instruction) -> bool {
    let is_stack = |register: Register| register.full_register() == Register::RSP;
    let by_stack = is_stack(instruction.memory_base());
    let is_below = by_stack && instruction.memory_displacement64().cast_signed() < 0;
    let is_frame_pointer = |register: Register| register.full_register() == Register::RBP;
    let writes_frame_pointer = instruction.op_count() > 0 && is_frame_pointer(instruction.op0_register());
    let takes_stack =
        by_stack && instruction.code() == Code::Lea_r64_m || instruction.op_count() > 1 && is_stack(instruction.op1_register());
    is_below || writes_frame_pointer && takes_stack || matches!(instruction.code(), Code::Enterq_imm16_imm8)
}
