//! Tables by which debuggers find the unit of an address: `.debug_aranges` and the address table of `.gdb_index`.
//!
//! And what macros say of their unit's line table.
//!
//! All are read here, since what ends such a table is what debuggers stop at: the first pair of zeros of a set.

use super::contents::Contents;
use super::timeline::{Interval, join, mix};
use crate::image::Image;

const ARANGES: u64 = 0x6172_6101;
const INDEX: u64 = 0x6172_6102;

/// Bytes that are read from the front.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, size: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        bytes.get_mut(..size)?.copy_from_slice(self.take(size)?);
        Some(u64::from_le_bytes(bytes))
    }
}

/// Adds what both tables say.
pub(super) fn collect(contents: &Contents<'_>, image: &Image<'_>, ranges: &mut Vec<Interval>) -> Result<(), String> {
    let first = ranges.len();
    let mut sets = Bytes(contents.of(".debug_aranges"));
    while !sets.0.is_empty() {
        add_set(&mut sets, image, ranges).ok_or(".debug_aranges can't be read")?;
    }
    let index = contents.of(".gdb_index");
    if !index.is_empty() {
        add_index(index, image, ranges).ok_or(".gdb_index can't be read")?;
    }
    join(ranges, first);
    Ok(())
}

/// The ranges of one unit.
fn add_set(sets: &mut Bytes<'_>, image: &Image<'_>, ranges: &mut Vec<Interval>) -> Option<()> {
    let whole = sets.0.len();
    let mut width = 4;
    let mut length = sets.number(4)?;
    if length == 0xffff_ffff {
        width = 8;
        length = sets.number(8)?;
    }
    let header = whole - sets.0.len();
    let mut set = Bytes(sets.take(usize::try_from(length).ok()?)?);
    let size = set.0.len();
    set.number(2)?;
    let die = set.number(width)?;
    let (address_size, segment_size) = (set.number(1)?, set.number(1)?);
    if (address_size, segment_size) != (8, 0) {
        return None;
    }
    // Pairs stand at multiples of their size, counted from the start of the set.
    let at = header + (size - set.0.len());
    set.take(at.next_multiple_of(16) - at)?;
    while set.0.len() >= 16 {
        let (start, length) = (set.number(8)?, set.number(8)?);
        if (start, length) == (0, 0) {
            break;
        }
        add(Interval { key: mix(ARANGES, die), start, end: start.saturating_add(length), die }, image, ranges);
    }
    Some(())
}

/// The address table of an index, with units by the offsets of the index's list of them.
fn add_index(index: &[u8], image: &Image<'_>, ranges: &mut Vec<Interval>) -> Option<()> {
    let mut header = Bytes(index);
    header.number(4)?;
    let mut field = || usize::try_from(header.number(4)?).ok();
    let (units, _types, addresses, symbols) = (field()?, field()?, field()?, field()?);
    for entry in index.get(addresses..symbols)?.chunks_exact(20) {
        let mut entry = Bytes(entry);
        let (start, end, number) = (entry.number(8)?, entry.number(8)?, entry.number(4)?);
        let place = units.checked_add(usize::try_from(number).ok()?.checked_mul(16)?)?;
        let die = Bytes(index.get(place..)?).number(8)?;
        add(Interval { key: mix(INDEX, die), start, end, die }, image, ranges);
    }
    Some(())
}

/// The line table that a list of macros names (DWARF 5 §6.3.1), if it names one.
pub(super) fn lines_of_macros(macros: &[u8], offset: usize) -> Option<u64> {
    let mut header = Bytes(macros.get(offset..)?);
    let (_version, flags) = (header.number(2)?, header.number(1)?);
    if flags & 2 == 0 {
        return None;
    }
    header.number(if flags & 1 == 0 { 4 } else { 8 })
}

fn add(interval: Interval, image: &Image<'_>, ranges: &mut Vec<Interval>) {
    if interval.start < interval.end && image.in_code(interval.start) {
        ranges.push(interval);
    }
}
