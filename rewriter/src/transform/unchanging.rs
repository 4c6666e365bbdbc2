//! Words that hold the same for as long as the program runs.
//!
//! They are in bytes that nobody may write once the program runs ([`Image::never_changes`]). Of words that the loader relocates only those with `R_X86_64_RELATIVE` hold what the file says: the image's base and an addend. No other relocation may touch
//! the bytes, and they are none of those that relift itself writes (jump tables, words that follow moved code). In a file at a fixed address, what may be an address of code is left alone.

use lifter::Image;
use lifter::address::Va;
use lifter::ir::{Program, RefTarget, SlotKind};
use object::elf;

/// What a word always holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Number(u64),
    /// A place of this file, wherever that is loaded.
    Address(RefTarget),
}

/// Where constants are, and where not.
pub(super) struct Words<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    /// Starts and ends of jump tables, ascending.
    tables: Vec<(Va, Va)>,
}

impl<'a> Words<'a> {
    pub(super) fn of(image: &'a Image<'a>, program: &'a Program) -> Self {
        let mut tables: Vec<(Va, Va)> = program.tables.values().map(|table| (table.at, table.at + table.byte_len())).collect();
        tables.sort_unstable();
        Self { image, program, tables }
    }

    /// What the `size` bytes at an address always hold.
    pub(super) fn known(&self, at: Va, size: u64) -> Option<Known> {
        let Self { image, program, .. } = *self;
        if !matches!(size, 1 | 2 | 4 | 8) || !image.never_changes(at, size) || self.is_rewritten(at, size) {
            return None;
        }
        let relocs = &image.dynamic_relocs;
        let first = relocs.partition_point(|r| r.slot + 8 <= at);
        let mut touching = relocs[first..].iter().take_while(|r| r.slot < at + size);
        if let Some(reloc) = touching.next() {
            let is_whole = reloc.slot == at && size == 8 && reloc.r_type == elf::R_X86_64_RELATIVE && touching.next().is_none();
            let target = Va(reloc.addend.cast_unsigned());
            return if is_whole { place(image, program, target).map(Known::Address) } else { None };
        }
        let number = image.read(at, size as usize)?.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let may_be_code = !image.kind.is_position_independent() && size >= 4 && image.is_executable(Va(number));
        (!may_be_code).then_some(Known::Number(number))
    }

    /// Whether relift may write any of these bytes. The loader's words are written too, but hold what their relocations say.
    fn is_rewritten(&self, at: Va, size: u64) -> bool {
        let slots = &self.program.slots;
        let first = slots.partition_point(|slot| slot.at + 8 <= at);
        let mut slots = slots[first..].iter().take_while(|slot| slot.at < at + size);
        let before = self.tables.partition_point(|&(start, _)| start < at + size);
        slots.any(|slot| !matches!(slot.kind, SlotKind::Dynamic(_)))
            || before.checked_sub(1).is_some_and(|last| at < self.tables[last].1)
    }
}

/// A place that a word names, as a reference of code may name it.
fn place(image: &Image<'_>, program: &Program, target: Va) -> Option<RefTarget> {
    match program.block_containing(target) {
        // A block that moves is named by its start; its address is taken by the word already.
        Some(block) if program.blocks[block].start == target => Some(RefTarget::Block(block)),
        Some(_) => None,
        None => (!image.is_executable(target) && image.segment_at(target).is_some()).then_some(RefTarget::Fixed(target)),
    }
}
