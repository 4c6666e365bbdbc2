//! Functions in which other code names a place.
//!
//! **Problem.** A handler of signals asks where the program was interrupted: between the first label of a system call and the one behind it (the C libraries' cancellation), at the load
//! that may fault (Java's and other machines' probes), in the body of a copying loop. What it compares with are addresses of labels that it names, so no other instruction may come to lie
//! between two of them, none of those that lie there may leave, and none may have a copy elsewhere. Nothing in the function itself shows that.
//!
//! **Method.** A compiler names places of a function in the function itself (a computed `goto`, a landing place of `longjmp`), in data, and in unwind tables; of other functions it names
//! entries. So where code names a place behind the entry of a unit that it is not in, or the padding right behind one, somebody counts with what lies before that place, and the unit
//! stays, in one piece. At a fixed address any immediate may be such a name; there, one function has to name two addresses of the other, since round numbers happen to lead into some
//! functions of a large program. Numbers that only take part in operations on bits are none.
//!
//! A label that other files could name too is named through a word of `.got` in position-independent code. All code of the file may read that, so of what such a word names nothing is known but
//! that somebody does.
//!
//! **Side by side.** A handler may know the places from words of data instead (Valgrind's, around the system calls that it makes for its client; tables of instructions that may fault, each with where to go on).
//! Such words stand side by side, in whatever alignment, and name places of a function that has no indirect jump, nor have its parts: labels of a computed `goto` are of no use there. Something is pushed at these places, or they may be entries. Where two
//! words or more do, the function stays.
//!
//! **Marks.** Other words of data that name places are tables of computed `goto`s, in all but a few files, and say nothing. But a pointer may be marked in its low bits before the program runs
//! (`(char *)function + 1` is a constant in C), and where the first instruction is as short as that, it names the second one. Who takes the mark off again comes to where
//! the first one was. So a function stays if a word of data names an instruction in its first bytes, unless that is in a table of labels: a function's cold part may begin with some. Nor is a word an address of the file that
//! was marked in its high bits; where the loader relocates it, what it leads to without them stays.
//!
//! **Before.** `function - 1` is a constant too: a compiler folds a comparison with a range, or rounding up, into the address, and a program may mark pointers by less. It names the padding before the function, or the
//! end of another one, and nothing there moves with the function. So what begins a few bytes behind an address that code or a word names stays, unless an instruction begins at that address.

use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::{NamedBy, relocated_addresses};
use crate::discover::survey::{How, NumberRole, Survey};
use crate::discover::units::{Bounds, Unit, UnitData, unit_at};
use crate::discover::unseen::aligned_words;
use crate::elf::cfi;
use crate::entity::EntityId;
use crate::ir::{PinReason, RelinkMode};
use crate::symbolize::slots::static_words;
use crate::x86::{MAX_INSTRUCTION_LEN, padding_len};

/// Pointers to functions that are aligned to this have bits to mark them by.
const TAGS_END: u64 = 8;

/// Bits of the addresses that a program has: those above may mark pointers.
const ADDRESS_BITS: u32 = 48;

/// Where the frame is at a function's entry: 8 bytes above `rsp`.
const AT_ENTRY: Option<(u64, i64)> = Some((7, 8));

/// Bytes of an address.
const WORD: u64 = 8;

/// Arrays of flags and other small numbers look like addresses behind 0x1000000: so far goes what is none.
const SMALL_END: u8 = 16;

/// Other numbers look like addresses that are multiples of this, from a byte before where they are.
const SHIFTED: u64 = 256;

impl PinContext<'_> {
    pub(super) fn pin_by_named_place(&self, pins: &mut Pins) {
        for (unit, data) in self.units.iter() {
            let survey = &self.surveys[unit.index()];
            let is_elsewhere = |va: &Va| *va < data.start || data.end < *va;
            let named = computed(survey).filter(is_elsewhere).filter_map(|va| self.unit_with_place(va));
            named.for_each(|named| pins.pin(self.clusters, named, PinReason::PlaceNamed));
            for named in self.units_with_places(numbers(survey).filter(is_elsewhere).collect()) {
                pins.pin(self.clusters, named, PinReason::PlaceNamed);
            }
        }
        for named in self.named_through_got().into_iter().filter_map(|va| self.unit_with_place(va)) {
            pins.pin(self.clusters, named, PinReason::PlaceNamed);
        }
        for unit in self.marked_above().into_iter().filter_map(|va| unit_at(self.units, va)) {
            pins.pin(self.clusters, unit, PinReason::PlaceNamed);
        }
        let is_pointer = |by: NamedBy| by.intersects(NamedBy::SLOT | NamedBy::WORD) && !by.contains(NamedBy::TABLE);
        for (va, _) in self.names.iter().filter(|&(_, by)| is_pointer(by)) {
            if let Some(unit) = unit_at(self.units, va).filter(|&unit| (1..TAGS_END).contains(&(va - self.units[unit].start))) {
                pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            }
        }
    }

    /// Functions of which something names the bytes before the first.
    pub(super) fn pin_by_address_before(&self, pins: &mut Pins) {
        let by_code = |survey| computed(survey).chain(numbers(survey)).filter_map(|va| self.unit_behind(va));
        let mut found: Vec<Unit> = self.surveys.par_iter().flat_map_iter(by_code).collect();
        let words: Vec<Va> = match self.mode {
            RelinkMode::Guard => aligned_words(self.image).collect(),
            RelinkMode::Replace => static_words(self.image).map(|(_, va, _)| va).collect(),
        };
        let words = relocated_addresses(self.image).map(|(_, va)| va).chain(words);
        found.extend(words.filter_map(|va| self.unit_behind(va)));
        found.into_iter().for_each(|unit| pins.pin(self.clusters, unit, PinReason::PlaceNamed));
    }

    /// The unit that begins a few bytes behind an address, where that is in padding or within an instruction.
    fn unit_behind(&self, va: Va) -> Option<Unit> {
        // Most addresses are those of data.
        if va >= self.units.as_slice().last()?.start {
            return None;
        }
        let first = self.units.as_slice().partition_point(|unit| unit.start <= va);
        let is_near = |data: &UnitData| data.start - va <= TAGS_END;
        // What was taken for padding, and is named, may be a unit of its own.
        let is_founded = |data: &UnitData| !matches!(data.bounds, Bounds::Gap | Bounds::LeftOver);
        let mut behind = (first..self.units.len()).map(Unit::new).take_while(|&unit| is_near(&self.units[unit]));
        let found = behind.find(|&unit| is_founded(&self.units[unit]))?;
        let is_between = match unit_at(self.units, va).filter(|&unit| is_founded(&self.units[unit])) {
            Some(unit) => {
                let survey = &self.surveys[unit.index()];
                !survey.is_opaque() && !survey.is_start(va - self.units[unit].start)
            }
            None => self.is_padding(va, self.units[found].start),
        };
        is_between.then_some(found)
    }

    /// Whether from an address on, or from the beginning of an instruction that it lies within, nothing but padding comes up to another one.
    fn is_padding(&self, va: Va, end: Va) -> bool {
        (0..MAX_INSTRUCTION_LEN as u64).filter_map(|distance| va.0.checked_sub(distance)).any(|start| {
            self.image.read(Va(start), (end.0 - start) as usize).is_some_and(|bytes| padding_len(bytes) == bytes.len())
        })
    }

    /// What words that the loader relocates hold in the bits of an address, where they hold something in the bits above as well.
    fn marked_above(&self) -> Vec<Va> {
        let image = self.image;
        let of_symbols = image.dynamic_relocs.iter().filter_map(|reloc| image.address_by_symbol(reloc));
        let all = relocated_addresses(image).map(|(_, va)| va).chain(of_symbols);
        all.filter(|va| va.0 >> ADDRESS_BITS != 0).map(|va| Va(va.0 & ((1 << ADDRESS_BITS) - 1))).collect()
    }

    /// Functions without indirect jumps of which words side by side name several places.
    pub(super) fn pin_by_places_side_by_side(&self, pins: &mut Pins) {
        let jumping = self.clusters_with_indirect_jumps();
        let is_marked = self.mode == RelinkMode::Replace;
        let is_number = |va: Va| va.0.is_multiple_of(SHIFTED) || va.0.to_le_bytes().iter().all(|&byte| byte < SMALL_END);
        let place = |(at, va): (Va, Va)| {
            if !is_marked && is_number(va) {
                return None;
            }
            let cluster = self.clusters.find(self.unit_with_place(va)?);
            (!jumping.contains(&cluster) && self.is_in_frame(va)).then_some((at, va, cluster))
        };
        let aligned = self.words_to_code();
        let mut words: Vec<(Va, Va, Unit)> =
            aligned.into_iter().chain(self.unaligned_words.iter().copied()).filter_map(place).collect();
        // Words at one distance from multiples of eight can stand side by side.
        words.sort_unstable_by_key(|&(at, va, ..)| (at.0 % WORD, at, va));
        let is_next = |one: &(Va, Va, Unit), next: &(Va, Va, Unit)| next.0 == one.0 + WORD && next.2 == one.2;
        for pair in words.windows(2).filter(|pair| is_next(&pair[0], &pair[1]) && pair[0].1 != pair[1].1) {
            pins.pin(self.clusters, pair[0].2, PinReason::PlaceNamed);
        }
    }

    /// Those in which labels may be for jumps.
    pub(super) fn clusters_with_indirect_jumps(&self) -> FxHashSet<Unit> {
        let jumping = self.units.iter().filter(|(unit, _)| self.surveys[unit.index()].has_indirect_jumps);
        jumping.map(|(unit, _)| self.clusters.find(unit)).collect()
    }

    /// Whether something is pushed at an address, by what unwinds from there: no call leads to it.
    fn is_in_frame(&self, va: Va) -> bool {
        let Some(fde) = self.unwind.fde_containing(va).map(|fde| &self.unwind.fdes[fde]) else { return false };
        let data_alignment = self.unwind.cies[fde.cie as usize].data_alignment;
        let (mut frame, mut remembered) = (AT_ENTRY, Vec::new());
        for op in fde.ops.iter().take_while(|op| op.at <= va) {
            match cfi::Instruction::decode(&op.bytes, data_alignment) {
                Some((cfi::Instruction::DefCfa { register, offset }, _)) => frame = Some((register, offset)),
                Some((cfi::Instruction::DefCfaOffset(offset), _)) => frame = frame.map(|(register, _)| (register, offset)),
                Some((cfi::Instruction::DefCfaRegister(register), _)) => frame = frame.map(|(_, offset)| (register, offset)),
                Some((cfi::Instruction::RememberState, _)) => remembered.push(frame),
                Some((cfi::Instruction::RestoreState, _)) => frame = remembered.pop().flatten(),
                Some((cfi::Instruction::DefCfaExpression(_), _)) => frame = None,
                _ => {}
            }
        }
        frame != AT_ENTRY
    }

    /// What the words of the global offset table name: addresses in this file, whoever else may define such a symbol too.
    pub(super) fn named_through_got(&self) -> Vec<Va> {
        self.got_entries().into_iter().map(|(_, va)| va).collect()
    }

    /// The words of the global offset table, and what they name. Ascending; where a word names several, one is as good as another.
    pub(super) fn got_entries(&self) -> Vec<(Va, Va)> {
        let image = self.image;
        let Some(id) = image.section_named(".got") else { return Vec::new() };
        let got = &image.sections[id];
        let is_inside = |slot: Va| got.sh_addr <= slot && slot < got.end();
        let relative = relocated_addresses(image).map(|(index, va)| (image.dynamic_relocs[index].slot, va));
        let of_symbols = image.dynamic_relocs.iter().filter_map(|reloc| Some((reloc.slot, image.address_by_symbol(reloc)?)));
        // At a fixed address the linker has filled them in.
        let words = image.section_bytes(id).as_chunks::<8>().0.iter().zip(0u64..);
        let words = words.map(|(&word, index)| (got.sh_addr + 8 * index, Va(u64::from_le_bytes(word))));
        let mut entries: Vec<(Va, Va)> =
            relative.chain(of_symbols).filter(|&(slot, _)| is_inside(slot)).chain(words.filter(|&(_, va)| va.0 != 0)).collect();
        entries.sort_unstable();
        entries
    }

    /// The units into which two of these numbers lead or more, one of them behind the entry.
    fn units_with_places(&self, mut numbers: Vec<Va>) -> Vec<Unit> {
        numbers.sort_unstable();
        numbers.dedup();
        let named = |&va: &Va| {
            let entry = unit_at(self.units, va).filter(|&unit| self.units[unit].start == va);
            self.unit_with_place(va).map(|unit| (unit, true)).or(entry.map(|unit| (unit, false)))
        };
        let named: Vec<(Unit, bool)> = numbers.iter().filter_map(named).collect();
        named
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|group| group.len() > 1 && group.iter().any(|n| n.1))
            .map(|group| group[0].0)
            .collect()
    }

    /// The unit that an address leads into behind its entry, or to the padding behind which.
    fn unit_with_place(&self, va: Va) -> Option<Unit> {
        let inside = unit_at(self.units, va);
        if let Some(unit) = inside.filter(|&unit| self.units[unit].start != va) {
            let survey = &self.surveys[unit.index()];
            return Some(unit).filter(|_| !survey.is_opaque() && survey.is_start(va - self.units[unit].start));
        }
        let before = unit_at(self.units, Va(va.0.checked_sub(1)?))?;
        // Padding that something names is a unit of its own.
        let ends_it = inside.is_none_or(|unit| self.units[unit].fde().is_none() && self.units[before].fde().is_some());
        ends_it.then_some(before)
    }
}

/// Addresses that instructions compute: in code, and outside of all units, of which padding counts.
fn computed(survey: &Survey) -> impl Iterator<Item = Va> {
    let in_code = survey.names.iter().filter(|name| name.how == How::Address).map(|name| name.target);
    in_code.chain(survey.data_names.iter().map(|name| name.0))
}

/// Numbers of instructions that may be addresses.
fn numbers(survey: &Survey) -> impl Iterator<Item = Va> {
    let held = survey.absolutes.iter().filter(|number| matches!(number.role, NumberRole::Value | NumberRole::Copied));
    held.map(|number| number.value)
}
