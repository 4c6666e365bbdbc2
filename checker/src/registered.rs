//! The unwind table as start-up code registers it: by an address, which must still be that of a table.
//!
//! GCC's `crtbeginT.o` gives `__register_frame_info` the address where its own part of `.eh_frame` begins, somewhere inside the section. An
//! unwinder reads from there to the terminator. In the output there must be an entry; without a search table, which is asked next, the first one,
//! or what lies before is lost, unless it is what was lost in the input; a terminator where the input has one, so that nothing is registered in either. With one, a terminator will do: nothing is registered then.
//!
//! The start of the section may as well be named as the end of the data before it, and says nothing where there is a search table.
//!
//! **Operands that follow the table.** An operand may hold the start of the output's table where the input's holds the address of an entry, if it
//! *registers* that entry ([`registers`]): it puts the address where the first argument goes, and each instruction from there on is known up to one of a function that it is given to, which reads four
//! bytes there and asks whether they are zero. Why that is sound:
//! * What is read at is an address and no number, and at an entry's address lies nothing but the unwind table, of which all that the program can know is what an unwinder reads there. From the start of the output's table on, it reads all
//!   entries, which are compared by what they say ([`unwind`]).
//! * Nobody can tell the two addresses apart otherwise. The walk lets no other operand change, so wherever the address is gone from the output, each instruction that held it was such an operand, and all of them hold
//!   the same now. What [`check`] adds: in the input nothing but such operands holds the address, no word of data either, and the output holds it nowhere: in no instruction (of a copy made for what it is given, say), and at a fixed address in no four bytes of code.
//!   Where the output still holds it, it must be good as above, and no operand may have followed the table elsewhere: what is registered in one place and looked for in another is never found.
//! * The way from the operand to the read needs no comparison here: the walk compares it, since both programs take it.

use std::collections::{BTreeMap, BTreeSet};

use goblin::elf::program_header::PT_GNU_EH_FRAME;

use crate::data::by_meaning;
use crate::decode::{Inst, Kind, Shape};
use crate::image::{Image, Slot};
use crate::leftover::each_instruction;
use crate::report::{Violation, ViolationKind};
use crate::unwind;
use crate::walk::{Side, condition};

/// Instructions between an operand and what reads there.
const WAY_MAX: usize = 32;
/// The register of the first argument.
const ARGUMENT: u8 = 7;
/// The conditions of `je` and `jne`.
const EQUAL: u8 = 4;
const NOT_EQUAL: u8 = 5;

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    let (Some((start, end)), Some((new_start, _))) = (input.unwind.table, output.unwind.table) else { return };
    let is_inside = |address: u64| start <= address && address < end && (address > start || !has_search_table(input));
    let mut named = BTreeSet::new();
    each_instruction(input, |address, inst| named.extend(held(input, address, inst).filter(|&value| is_inside(value))));
    let begins = |side: &Side<'_>| -> BTreeSet<u64> { unwind::entries(&side.image).into_iter().collect() };
    let before = begins(input);
    if !has_search_table(input) {
        each_in_data(input, |value| named.extend(Some(value).filter(|value| before.contains(value))));
    }
    if named.is_empty() {
        return;
    }
    let after = begins(output);
    let is_wanted = |value: u64| named.contains(&value) && before.contains(&value) || value == new_start;
    let (old, new) = (Holders::of(input, is_wanted), Holders::of(output, is_wanted));
    for address in named.intersection(&before).copied() {
        let mut fail = |message: &str| violations.push(Violation::new(ViolationKind::UnwindTable, address, message));
        let is_empty = |side: &Side<'_>| side.image.u32_at(address) == Some(0);
        let is_only_registered = old.registered.keys().eq([&address]) && old.registered.get(&address) == old.all.get(&address);
        let follows = !new.all.contains_key(&address) && is_only_registered && new.registered.contains_key(&new_start);
        let is_good = match has_search_table(output) {
            _ if follows => true,
            true => is_empty(output) || after.contains(&address),
            false => address == new_start || is_empty(input) && is_empty(output) || loses_the_same(input, output, address),
        };
        if !is_good {
            fail("the program's code holds the address of an unwind table, and none begins there");
        }
        if follows && (is_in_data(input, address) || is_in_code(output, address)) {
            fail("the unwind table is registered elsewhere, and a word of data or code holds its old address");
        }
        let is_registered_anew = new.registered.get(&new_start) > old.registered.get(&new_start);
        if !follows && address != new_start && is_registered_anew {
            fail("the unwind table is registered elsewhere, and the program's code holds its old address");
        }
    }
}

/// Addresses that instructions hold.
#[derive(Default)]
struct Holders {
    /// How many instructions do.
    all: BTreeMap<u64, usize>,
    /// How many of these register them.
    registered: BTreeMap<u64, usize>,
}

impl Holders {
    fn of(side: &Side<'_>, is_wanted: impl Fn(u64) -> bool) -> Self {
        let mut found = Self::default();
        each_instruction(side, |address, inst| {
            for value in fields(side, address, inst).filter(|&value| is_wanted(value)) {
                *found.all.entry(value).or_default() += 1;
                if registers(side, address, inst) == Some(value) {
                    *found.registered.entry(value).or_default() += 1;
                }
            }
        });
        found
    }
}

/// All that may be an address in an instruction.
fn fields(side: &Side<'_>, address: u64, inst: Inst) -> impl Iterator<Item = u64> + use<> {
    let bytes = side.code.bytes(address, inst);
    let shape = Shape::of(bytes);
    let relative = (inst.disp != 0).then(|| side.operand(address, inst));
    let displacement = shape.wide_displacement(bytes).filter(|_| inst.disp == 0).and_then(|at| word(bytes, at));
    [relative, displacement, shape.wide_immediate(bytes)].into_iter().flatten()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}

/// Whether any four bytes of code are an address, be they decoded or not.
fn is_in_code(side: &Side<'_>, address: u64) -> bool {
    let wanted = u32::try_from(address).ok().filter(|_| side.image.is_position_dependent()).map(u32::to_le_bytes);
    let holds = |wanted: [u8; 4]| side.code.areas().iter().any(|area| area.bytes.windows(4).any(|word| word == wanted));
    wanted.is_some_and(holds)
}

/// Whether a word of data holds an address, or the loader writes it into one.
fn is_in_data(side: &Side<'_>, address: u64) -> bool {
    let mut is_held = false;
    each_in_data(side, |value| is_held |= value == address);
    is_held
}

/// What words of data hold, at any byte, and what the loader writes into them. Headers and what these name, the unwind tables too, say the same wherever they are.
fn each_in_data(side: &Side<'_>, mut visit: impl FnMut(u64)) {
    let image: &Image<'_> = &side.image;
    let tables = by_meaning(side, side);
    let is_table = |at: u64| tables.iter().any(|&(start, end)| start <= at && at < end);
    for area in image.loads.iter().filter(|area| !image.in_code(area.start)) {
        for (at, word) in (area.start..).zip(area.bytes.windows(8)) {
            if let Some(value) = word.try_into().ok().map(u64::from_le_bytes).filter(|_| !is_table(at)) {
                visit(value);
            }
        }
    }
    for &(_, slot) in &image.slots {
        if let Slot::Relative(target) = slot {
            visit(target);
        }
    }
}

/// Whether two instructions with the same bytes outside of a field register the unwind table, each its own program's.
pub(crate) fn follow_table(input: &Side<'_>, (i, a): (u64, Inst), output: &Side<'_>, (o, b): (u64, Inst)) -> bool {
    let (Some((start, end)), Some((new_start, _))) = (input.unwind.table, output.unwind.table) else { return false };
    let before = operand(input, i, a).filter(|before| (start..end).contains(before));
    let Some(before) = before.filter(|_| operand(output, o, b) == Some(new_start)) else { return false };
    let is_entry = input.image.u32_at(before).is_some_and(|length| length != 0) && output.image.u32_at(new_start) != Some(0);
    is_entry && unwind::entries(&input.image).contains(&before) && registers(input, i, a) == Some(before)
}

/// What `mov $table, %edi` or `lea table(%rip), %rdi` puts into the register of the first argument.
fn operand(side: &Side<'_>, address: u64, inst: Inst) -> Option<u64> {
    match side.code.bytes(address, inst) {
        bytes @ [0xbf, _, _, _, _] if inst.kind == Kind::Plain => word(bytes, 1).filter(|_| side.image.is_position_dependent()),
        [0x48, 0x8d, 0x3d, _, _, _, _] => Some(side.operand(address, inst)),
        _ => None,
    }
}

/// Where an argument is on the way to who reads it.
#[derive(Copy, Clone)]
enum Way {
    /// In the function that holds the address.
    Before,
    /// In one that it was given to.
    Within,
    /// Four bytes that were read there are in this register.
    Read(u8),
}

/// The address that an instruction gives to a function that takes it for that of an unwind table.
fn registers(side: &Side<'_>, at: u64, first: Inst) -> Option<u64> {
    let table = operand(side, at, first)?;
    let mut way = Way::Before;
    let mut tests_argument = false;
    let mut next = at + u64::from(first.len);
    for _ in 0..WAY_MAX {
        let (address, inst) = (next, side.inst(next)?);
        let bytes = side.code.bytes(address, inst);
        next += u64::from(inst.len);
        match (inst.kind, way) {
            (Kind::Nop | Kind::EndBranch, _) => continue,
            (Kind::Call, Way::Before) => (way, next) = (Way::Within, side.target(address, inst)),
            (Kind::Jump, _) => {
                next = side.target(address, inst);
                let is_start = matches!(way, Way::Before) && side.unwind.starts_at(next);
                way = if is_start { Way::Within } else { way };
                continue;
            }
            // The address is not zero.
            (Kind::Branch, Way::Within) if tests_argument && condition(bytes) == EQUAL => {}
            (Kind::Branch, Way::Within) if tests_argument && condition(bytes) == NOT_EQUAL => next = side.target(address, inst),
            (Kind::Plain, Way::Within) if length_read(bytes).is_some() => way = Way::Read(length_read(bytes)?),
            (Kind::Plain, Way::Read(length)) if tests_for_zero(bytes, length, false) => return Some(table),
            (Kind::Plain | Kind::Lea, Way::Read(length)) if is_harmless(inst, bytes, length) => {}
            (Kind::Plain | Kind::Lea, Way::Before | Way::Within) if is_harmless(inst, bytes, ARGUMENT) => {}
            _ => return None,
        }
        tests_argument = tests_for_zero(bytes, ARGUMENT, true);
    }
    None
}

/// The prefix that extends registers, and what follows it.
fn split(bytes: &[u8]) -> (u8, &[u8]) {
    match bytes {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0x40, bytes),
    }
}

/// The register and the other one of a ModRM without memory.
fn pair(rex: u8, modrm: u8) -> Option<(u8, u8)> {
    (modrm >> 6 == 3).then_some(((rex & 4) << 1 | modrm >> 3 & 7, (rex & 1) << 3 | modrm & 7))
}

/// `test` of a register with itself, of 64 bits or 32.
fn tests_for_zero(bytes: &[u8], register: u8, is_wide: bool) -> bool {
    let (rex, rest) = split(bytes);
    matches!(rest, &[0x85, modrm] if pair(rex, modrm) == Some((register, register))) && (rex & 8 != 0) == is_wide
}

/// The register into which four bytes are read from where the first argument points to.
fn length_read(bytes: &[u8]) -> Option<u8> {
    let (rex, rest) = split(bytes);
    match *rest {
        [0x8b, modrm] if modrm & 0xc7 == ARGUMENT && rex & 0xb == 0 => {
            Some((rex & 4) << 1 | modrm >> 3).filter(|&register| register != ARGUMENT)
        }
        _ => None,
    }
}

/// Whether an instruction only saves registers, makes room on the stack, or puts something into a register other than this one.
fn is_harmless(inst: Inst, bytes: &[u8], kept: u8) -> bool {
    let (rex, rest) = split(bytes);
    match *rest {
        // `push`, `test`.
        [0x50..=0x57] => true,
        [0x85, modrm] => modrm >> 6 == 3,
        // `sub $room, %rsp`.
        [0x83, 0xec, _] | [0x81, 0xec, _, _, _, _] => rex & 9 == 8,
        // `mov`, in both directions, and `xor` of a register with itself.
        [0x89, modrm] => pair(rex, modrm).is_some_and(|(_, to)| to != kept),
        [0x8b, modrm] => pair(rex, modrm).is_some_and(|(to, _)| to != kept),
        [0x31 | 0x33, modrm] => pair(rex, modrm).is_some_and(|(to, from)| to == from && to != kept),
        // `mov` of a number.
        [opcode @ 0xb8..=0xbf, ..] => (rex & 1) << 3 | opcode & 7 != kept,
        [0xc7, modrm, ..] => pair(rex, modrm).is_some_and(|(_, to)| to != kept),
        [0x8d, modrm, ..] => inst.disp != 0 && (rex & 4) << 1 | modrm >> 3 & 7 != kept,
        _ => false,
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
    // All of it: a number of 64 bits is no address for its lower half.
    shape.wide_immediate(bytes).filter(|_| is_held)
}
