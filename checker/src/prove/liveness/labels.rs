//! Where numbers may lead inside of functions of the input, in a file at a fixed address of which the linker left no relocations.
//!
//! **Problem.** A label whose address is taken is a number there like any other. An indirect jump that goes through no jump table may go to each of these; so may code come to the middle of
//! the instructions by which one goes through a table.
//!
//! **Method.** What may be the address of an instruction: each word of data at whatever byte, of 32 bits where all addresses have as many (which is the lower half of one of 64 bits), and each such word in an
//! instruction that is no displacement. Where no frame description is, all bytes are data. Of these, the ones that linear decoding of a frame description meets as an instruction, and that are no entry.
//!
//! **Assumes** that code addresses are not made by arithmetic from anything but addresses in instructions of the same function, as [`super::bodies`] does for all files.

use super::bodies::is_at_return_address;
use crate::decode::{Inst, Kind};
use crate::walk::Walk;

/// Addresses inside of functions that numbers may stand for, ascending.
#[derive(Debug, Default)]
pub(super) struct Labels(Vec<u64>);

impl Labels {
    /// `None` where nothing says what is data.
    pub(super) fn find(walk: &Walk<'_, '_>) -> Option<Self> {
        let side = walk.input;
        if side.image.sections.is_empty() {
            return None;
        }
        let has_wide = side.image.extent().is_none_or(|(_, end)| end > u64::from(u32::MAX));
        let mut found = Finder { walk, size: if has_wide { 8 } else { 4 }, labels: Vec::new() };
        for section in side.image.sections.iter().filter(|section| section.is_alloc() && !section.is_code()) {
            if !crate::data::is_by_meaning(&side.image, section) {
                found.words(side.image.section_bytes(section));
            }
        }
        for area in side.code.areas() {
            found.undescribed(area.start, area.start + area.bytes.len() as u64);
        }
        crate::leftover::each_instruction(side, |at, inst| found.instruction(at, inst));
        found.labels.sort_unstable();
        found.labels.dedup();
        Some(Labels(found.labels))
    }

    pub(super) fn has(&self, address: u64) -> bool {
        self.0.binary_search(&address).is_ok()
    }

    pub(super) fn has_in(&self, start: u64, end: u64) -> bool {
        let first = self.0.partition_point(|&label| label < start);
        self.0.get(first).is_some_and(|&label| label < end)
    }
}

struct Finder<'f, 'w, 'a> {
    walk: &'f Walk<'w, 'a>,
    /// Of a word that may be an address, in bytes.
    size: usize,
    labels: Vec<u64>,
}

impl Finder<'_, '_, '_> {
    fn words(&mut self, bytes: &[u8]) {
        for word in bytes.windows(self.size) {
            self.number(word.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
        }
    }

    fn number(&mut self, value: u64) {
        let side = self.walk.input;
        if !side.code.index(value).is_some_and(|index| self.walk.survey.is_boundary(index)) {
            return;
        }
        let is_entry = || side.unwind.starts_at(value) && is_at_return_address(self.walk, value);
        if !is_entry() {
            self.labels.push(value);
        }
    }

    /// What of an area of code no frame description covers.
    fn undescribed(&mut self, start: u64, end: u64) {
        let unwind = &self.walk.input.unwind;
        let mut at = start;
        let described = unwind.fdes.iter().map(|fde| (fde.start, fde.end)).filter(|&(from, to)| start < to && from < end);
        for (from, to) in described.chain([(end, end)]) {
            if at < from {
                // A word may begin before what is described, but not before what is not.
                let bytes = self.walk.input.image.at(at, (from - at) as usize);
                self.words(bytes.unwrap_or(&[]));
            }
            at = at.max(to);
        }
    }

    fn instruction(&mut self, at: u64, inst: Inst) {
        if matches!(inst.kind, Kind::Call | Kind::Jump | Kind::Branch | Kind::Loop) {
            return;
        }
        // The displacement of an address relative to the instruction is no number.
        let bytes = self.walk.input.code.bytes(at, inst);
        let first = if inst.disp == 0 { 1 } else { usize::from(inst.disp) + 4 };
        self.words(bytes.get(first..).unwrap_or(&[]));
    }
}
