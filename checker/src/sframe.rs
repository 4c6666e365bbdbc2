//! Frames in GNU's simple form (`.sframe`, version 2): the code of which they are described.
//!
//! A section, or segment, that is not understood may describe all code.

use crate::image::{Image, Section};

const PT_GNU_SFRAME: u32 = 0x6474_e554;
/// The magic number, the version, flags, and x86-64's number.
const STARTS_WITH: [Option<u8>; 5] = [Some(0xe2), Some(0xde), Some(2), None, Some(3)];
const COUNTS_FROM_FIELD: u8 = 4;

/// What is described: all, or stretches of code by their starts and ends, ascending and apart from each other.
pub(crate) struct Frames {
    is_all: bool,
    functions: Vec<(u64, u64)>,
}

impl Frames {
    pub(crate) fn of(image: &Image<'_>) -> Self {
        let section = image.section(".sframe").filter(|section| Section::is_alloc(section));
        let section = section.map(|section| (section.address, section.end() - section.address));
        let headers = image.elf.program_headers.iter().filter(|header| header.p_type == PT_GNU_SFRAME);
        let places = section.into_iter().chain(headers.map(|header| (header.p_vaddr, header.p_memsz)));
        let read: Vec<Option<Vec<(u64, u64)>>> = places.map(|(address, size)| functions(image, address, size)).collect();
        let is_all = read.iter().any(Option::is_none);
        let mut functions: Vec<(u64, u64)> = read.into_iter().flatten().flatten().collect();
        functions.sort_unstable();
        functions.dedup_by(|next, last| {
            let is_joined = next.0 <= last.1;
            last.1 = if is_joined { last.1.max(next.1) } else { last.1 };
            is_joined
        });
        Self { is_all, functions }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_all && self.functions.is_empty()
    }

    /// Whether they may describe an address.
    pub(crate) fn describe(&self, address: u64) -> bool {
        let before = self.functions.partition_point(|function| function.0 <= address);
        self.is_all || before.checked_sub(1).is_some_and(|index| address < self.functions[index].1)
    }
}

fn functions(image: &Image<'_>, address: u64, size: u64) -> Option<Vec<(u64, u64)>> {
    let header = image.at(address, 28)?;
    if STARTS_WITH.iter().zip(header).any(|(wanted, byte)| wanted.is_some_and(|wanted| wanted != *byte)) {
        return None;
    }
    let number = |at: usize| Some(u64::from(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?)));
    let (count, first) = (number(8)?, 28 + u64::from(header[7]) + number(20)?);
    if first + count * 20 > size {
        return None;
    }
    let function = |index: u64| {
        let field = address.wrapping_add(first + index * 20);
        let from = if header[3] & COUNTS_FROM_FIELD != 0 { field } else { address };
        let start = from.wrapping_add_signed(i64::from(image.u32_at(field)?.cast_signed()));
        Some((start, start.checked_add(u64::from(image.u32_at(field.wrapping_add(4))?))?))
    };
    (0..count).map(function).collect()
}
