//! Small changes of the stack pointer by `push` and `pop`.
//!
//! `push` writes the word that `sub` only made room for. Nobody reads that word before something is written there, if it was not written before, below the stack pointer: so not in a function that
//! addresses anything there, or that keeps the stack pointer in `%rbp`, by which it could. (In code that follows the psABI no function that calls does.)
//! `pop` reads a word and leaves it in a register; the next instructions write that anew, and none of them can fault. A register that functions keep is spoiled only where a `pop` restores it next: an unwinder
//! finds what it held on the stack, where it was saved.

use iced_x86::{Code, Instruction, Register};
use lifter::Image;
use lifter::entity::Func;
use lifter::ir::Program;
use lifter::x86::decode_block_into;
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
pub(super) fn lower(here: Here<'_>, ahead: &Ahead<'_, '_>, is_bare_below: impl FnOnce() -> bool) -> Option<Form> {
    let may = here.bytes == LOWER && ahead.has_no_reader_of_flags() && is_bare_below();
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

/// Whether no instruction of a function with unwind entries addresses what is below the stack pointer, nor has `%rbp` for a frame pointer.
pub(super) fn is_bare_below(image: &Image<'_>, program: &Program, func: Func) -> bool {
    let mut instructions = Vec::new();
    let is_described = program.func_ranges(func).iter().all(|range| range.fde.is_some());
    is_described
        && program.funcs[func].blocks.iter().all(|block| {
            decode_block_into(image, program, block, &mut instructions);
            !instructions.iter().any(may_reach_below)
        })
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
