//! The unwind table as start-up code registers it: by an address, which must still be that of a table.
//!
//! GCC's `crtbeginT.o` gives `__register_frame_info` the address where its own part of `.eh_frame` begins, somewhere inside the section. An
//! unwinder reads from there to the terminator. In the output there must be an entry; without a search table, which is asked next, the first one,
//! or what lies before is lost, unless it is what was lost in the input. With one, a terminator will do: nothing is registered then.
//!
//! The start of the section may as well be named as the end of the data before it, and says nothing where there is a search table.

use std::collections::BTreeSet;

use goblin::elf::program_header::PT_GNU_EH_FRAME;

use crate::decode::{Inst, Kind, Shape};
use crate::leftover::each_instruction;
use crate::report::{Violation, ViolationKind};
use crate::unwind;
use crate::walk::Side;

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    let (Some((start, end)), Some((new_start, _))) = (input.unwind.table, output.unwind.table) else { return };
    let is_inside = |address: u64| start <= address && address < end && (address > start || !has_search_table(input));
    let mut named = BTreeSet::new();
    each_instruction(input, |address, inst| named.extend(held(input, address, inst).filter(|&value| is_inside(value))));
    if named.is_empty() {
        return;
    }
    let begins = |side: &Side<'_>| -> BTreeSet<u64> { unwind::entries(&side.image).into_iter().collect() };
    let (before, after) = (begins(input), begins(output));
    for address in named.intersection(&before).copied() {
        let is_empty = output.image.u32_at(address) == Some(0);
        let is_good = if has_search_table(output) {
            is_empty || after.contains(&address)
        } else {
            address == new_start || loses_the_same(input, output, address)
        };
        if !is_good {
            let message = "the program's code holds the address of an unwind table, and none begins there";
            violations.push(Violation::new(ViolationKind::UnwindTable, address, message));
        }
    }
}

/// Whether what lies before an entry is the same in both, and is about the same code.
fn loses_the_same(input: &Side<'_>, output: &Side<'_>, entry: u64) -> bool {
    let same = |start: u64, end: u64| {
        let bytes = |side: &Side<'_>| side.image.at(start, end.checked_sub(start)? as usize).map(<[u8]>::to_vec);
        bytes(input).is_some_and(|before| bytes(output) == Some(before))
    };
    let starts = (input.unwind.table, output.unwind.table);
    let (Some((start, _)), Some((new_start, _))) = starts else { return false };
    let lost = input.unwind.fdes.iter().filter(|fde| fde.place < entry);
    start == new_start && same(start, entry) && lost.into_iter().all(|fde| same(fde.start, fde.end))
}

fn has_search_table(side: &Side<'_>) -> bool {
    side.image.elf.program_headers.iter().any(|header| header.p_type == PT_GNU_EH_FRAME)
}

/// The address that an instruction puts into a register or on the stack.
fn held(side: &Side<'_>, address: u64, inst: Inst) -> Option<u64> {
    if inst.kind == Kind::Lea && inst.disp != 0 {
        return Some(side.operand(address, inst));
    }
    if inst.kind != Kind::Plain || !side.image.is_position_dependent() {
        return None;
    }
    let bytes = side.code.bytes(address, inst);
    let shape = Shape::of(bytes);
    let is_held = match *bytes.get(shape.opcode)? {
        0xb8..=0xbf | 0x68 => shape.map == 0,
        0xc7 => shape.map == 0 && bytes.get(shape.modrm).is_some_and(|modrm| modrm >> 6 == 3),
        _ => false,
    };
    let at = shape.opcode + 1 + usize::from(shape.modrm != 0);
    let field = bytes.get(at..at + 4).filter(|_| is_held)?;
    Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}
