//! Code that finds the rest of the file by numbers: the large code model of position-independent code (psABI, 3.5.3).
//!
//! It takes an address of itself and adds a number of 64 bits (`lea .(%rip), %r15; movabs $GOT - ., %r11; add %r11, %r15`), and from the table that it finds so it finds functions by more such
//! numbers. To the walk each of them is a number like any other. Where a file does that, its code has to stay as it is, all of it.
//!
//! It is told by `movabs` with a number that fits into 32 bits, which only a linker puts there, near an address of the same function's code, if both together are an address of the file.
//! At a fixed address the numbers are addresses, and are compared as such.

use std::collections::VecDeque;

use crate::decode::{Inst, Kind};
use crate::leftover::each_instruction;
use crate::report::{Violation, ViolationKind};
use crate::walk::Side;

/// How many instructions may lie between the two.
const REACH: usize = 12;

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    if input.image.is_position_dependent() || !input.code.areas().iter().any(|area| may_have_one(area.bytes)) {
        return;
    }
    let Some(place) = find(input) else { return };
    if !keeps_code(input, output) {
        let message = "code finds the rest of the file by numbers from here (the input's address), and code has changed";
        violations.push(Violation::new(ViolationKind::StaleReference, place, message));
    }
}

/// Whether all code stands where it stood, byte for byte.
pub(crate) fn keeps_code(input: &Side<'_>, output: &Side<'_>) -> bool {
    let stays = |start: u64, bytes: &[u8]| output.image.at(start, bytes.len()) == Some(bytes);
    input.code.areas().iter().all(|area| stays(area.start, area.bytes))
}

/// Whether bytes look like such a `movabs` anywhere, wherever instructions begin.
fn may_have_one(bytes: &[u8]) -> bool {
    bytes.windows(10).any(|bytes| number_of(bytes).is_some())
}

/// The number that a `movabs` moves, if it fits into 32 bits.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let &[0x48 | 0x49, 0xb8..=0xbf, a, b, c, d, e, f, g, h, ..] = bytes else { return None };
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    (u32::try_from(number).is_ok() || i32::try_from(number.cast_signed()).is_ok()).then_some(number)
}

/// Where the first pair of a number and an address of the code around it is.
fn find(side: &Side<'_>) -> Option<u64> {
    // The last instructions: where they are, and the number or the address that they have.
    let mut last: VecDeque<(u64, Option<u64>, Option<u64>)> = VecDeque::new();
    let mut found = None;
    each_instruction(side, |address, inst| {
        if found.is_some() {
            return;
        }
        let number = number_of(side.code.bytes(address, inst));
        let place = own_address(side, address, inst);
        if number.is_some() || place.is_some() {
            let is_one = |number: Option<u64>, place: Option<u64>| {
                number.zip(place).is_some_and(|(number, place)| side.image.at(place.wrapping_add(number), 1).is_some())
            };
            let is_pair = |&(_, other, there): &(u64, Option<u64>, Option<u64>)| is_one(number, there) || is_one(other, place);
            found = last.iter().find(|last| is_pair(last)).map(|last| last.0);
        }
        last.push_back((address, number, place));
        if last.len() > REACH {
            last.pop_front();
        }
    });
    found
}

/// The address of code of the same frame description that an instruction makes.
fn own_address(side: &Side<'_>, address: u64, inst: Inst) -> Option<u64> {
    let place = (inst.kind == Kind::Lea && inst.disp != 0).then(|| side.operand(address, inst))?;
    let around = side.unwind.fde_at(address);
    (around.is_some() && around == side.unwind.fde_at(place)).then_some(place)
}
