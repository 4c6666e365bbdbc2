//! What becomes of a table's address where an instruction names it.
//!
//! **Problem.** A table begins where the array before it ends, and who goes through that array compares with its end: such an instruction names the table's address and has no use for the table, which may be
//! another one in the output.
//!
//! **Method.** An address that is in a register which the next call may read is an argument. A jump through a table leads into the function that jumps, so that instruction stands in a part of the function that
//! names the table: in a function without an indirect jump, which does not run on into another one, none goes through it, and the address is that of data, which the output has at the same place.
//!
//! **Terminates**: windows are limited, and each instruction of a function's parts is looked at once.

use super::bounds::instruction_before;
use super::copies::is_through_thunk;
use crate::decode::{Inst, Kind, Shape};
use crate::walk::{Side, Walk};

/// How many instructions make the arguments of a call.
const CALL_WINDOW: usize = 16;

/// Whether the address that a `lea` makes is in a register that the next call may overwrite, and is no base of a jump before it.
pub(super) fn goes_to_call(side: &Side<'_>, from: u64) -> bool {
    let registers = |address, inst| {
        let bytes = side.code.bytes(address, inst);
        Shape::of(bytes).registers(bytes)
    };
    let Some(inst) = side.inst(from) else { return false };
    let Some([Some(register), ..]) = registers(from, inst) else { return false };
    if matches!(register, 3..=5 | 12..) {
        return false;
    }
    let mut address = from + u64::from(inst.len);
    for _ in 0..CALL_WINDOW {
        let Some(inst) = side.inst(address) else { return false };
        let used = registers(address, inst).unwrap_or_default();
        let is_pushed = matches!(*side.code.bytes(address, inst), [opcode @ 0x50..=0x57] if opcode & 7 == register);
        match inst.kind {
            Kind::Call => return true,
            Kind::IndirectCall => return used[1] != Some(register) && used[2] != Some(register),
            Kind::Lea if used[0] != Some(register) && used[2] != Some(register) => {}
            Kind::Plain | Kind::Lea | Kind::Nop if !used.contains(&Some(register)) && !is_pushed => {}
            _ => return false,
        }
        address += u64::from(inst.len);
    }
    false
}

/// Whether a jump may go through the table that an instruction of the input names. Of code without frame descriptions, or that does not decode, nothing is claimed.
pub(crate) fn may_be_jumped_through(walk: &Walk<'_, '_>, from: u64) -> bool {
    let side = walk.input;
    side.unwind.fde_at(from).is_none_or(|own| {
        may_jump(walk, own)
            || goes_to_call(side, from)
            || walk.survey.with_parts(vec![(from, own)]).into_iter().any(|(_, part)| may_jump(walk, part))
    })
}

/// Whether a frame description has an indirect jump, be it through a thunk, as far as linear decoding tells, or runs on into what may have one.
fn may_jump(walk: &Walk<'_, '_>, fde: u32) -> bool {
    let side = walk.input;
    let is_end = |inst: Inst| inst.ends_flow() || matches!(inst.kind, Kind::Call | Kind::IndirectCall | Kind::Trap | Kind::Nop);
    has(side, fde, |at, inst| inst.kind == Kind::IndirectJump || is_through_thunk(side, at, inst))
        || instruction_before(walk, side.unwind.fdes[fde as usize].end).is_none_or(|(_, last)| !is_end(last))
}

/// Whether it has one that may lead to its labels. A jump through a word at a fixed distance is the last call of a function of another file, as linkers' stubs and `-fno-plt` have it.
pub(crate) fn may_jump_to_labels(side: &Side<'_>, fde: u32) -> bool {
    has(side, fde, |_, inst| inst.kind == Kind::IndirectJump && inst.disp == 0)
}

/// Whether a frame description has such an instruction, or does not decode.
fn has(side: &Side<'_>, fde: u32, is_such: impl Fn(u64, Inst) -> bool) -> bool {
    let fde = &side.unwind.fdes[fde as usize];
    let mut address = fde.start;
    while address < fde.end {
        match side.inst(address) {
            Some(inst) if !is_such(address, inst) => address += u64::from(inst.len),
            _ => return true,
        }
    }
    false
}
