//! Tables that find the unit of an address: `.debug_aranges` and `.gdb_index`; and `.debug_macro`, which names line tables.
//!
//! Sources: DWARF 5 §6.1.2, §6.3; GDB's manual, "Index Section Format", versions 5 to 9.

use std::ops::Range;

use gimli::LittleEndian;

use super::DebugError;
use super::lists::push_offset;
use super::map::CodeMap;
use super::unit::Field;

/// `.debug_aranges` anew.
pub(super) fn aranges(section: &[u8], map: &CodeMap<'_>) -> Result<Vec<u8>, DebugError> {
    let mut bytes = Vec::with_capacity(section.len());
    let mut headers = gimli::DebugAranges::new(section, LittleEndian).headers();
    while let Some(header) = headers.next()? {
        let encoding = header.encoding();
        let mut old: Vec<Range<u64>> = Vec::new();
        let mut entries = header.entries();
        while let Some(entry) = entries.next()? {
            old.push(entry.range().begin..entry.range().end);
        }
        let start = bytes.len();
        if encoding.format == gimli::Format::Dwarf64 {
            bytes.extend_from_slice(&[0xff; 4]);
        }
        let length_at = bytes.len();
        push_offset(&mut bytes, encoding.format, 0);
        let counted_from = bytes.len();
        bytes.extend_from_slice(&encoding.version.to_le_bytes());
        push_offset(&mut bytes, encoding.format, header.debug_info_offset().0 as u64);
        bytes.extend_from_slice(&[8, 0]);
        // Tuples begin at a multiple of their size, from the set's start.
        bytes.resize(start + (bytes.len() - start).next_multiple_of(16), 0);
        for range in map.ranges(old) {
            bytes.extend_from_slice(&range.start.to_le_bytes());
            bytes.extend_from_slice(&(range.end - range.start).to_le_bytes());
        }
        bytes.extend_from_slice(&[0; 16]);
        let len = (bytes.len() - counted_from) as u64;
        bytes[length_at..counted_from].copy_from_slice(&len.to_le_bytes()[..counted_from - length_at]);
    }
    Ok(bytes)
}

/// `.gdb_index` anew: its table of addresses is in the middle. `None` for versions that are not known.
pub(super) fn gdb_index(section: &[u8], map: &CodeMap<'_>) -> Option<Vec<u8>> {
    let word = |at: usize| section.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let num_offsets = match word(0)? {
        5..=8 => 5,
        9 => 6,
        _ => return None,
    };
    let offsets: Vec<u32> = (0..num_offsets).map(|index| word(4 + 4 * index)).collect::<Option<_>>()?;
    let (start, end) = (offsets[2] as usize, offsets[3] as usize);
    // The header stands before all that it names.
    if start < 4 + 4 * num_offsets {
        return None;
    }
    let mut entries: Vec<(Range<u64>, u32)> = Vec::new();
    for entry in section.get(start..end)?.chunks_exact(20) {
        let address = |at: usize| entry[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let unit = u32::from_le_bytes([entry[16], entry[17], entry[18], entry[19]]);
        let old = std::iter::once(address(0)..address(8));
        entries.extend(map.ranges(old).into_iter().map(|range| (range, unit)));
    }
    let mut bytes = section[..start].to_vec();
    for (range, unit) in entries {
        bytes.extend_from_slice(&range.start.to_le_bytes());
        bytes.extend_from_slice(&range.end.to_le_bytes());
        bytes.extend_from_slice(&unit.to_le_bytes());
    }
    let by = (bytes.len() as u32).wrapping_sub(end as u32);
    bytes.extend_from_slice(&section[end..]);
    for (index, offset) in offsets.iter().enumerate().skip(3) {
        bytes[4 + 4 * index..8 + 4 * index].copy_from_slice(&offset.wrapping_add(by).to_le_bytes());
    }
    Some(bytes)
}

/// Where the macros at an offset name their line table, and what they name (DWARF 5 §6.3.1); `None` where they name none.
pub(super) fn lines_of_macros(section: &[u8], at: usize) -> Result<Option<(Field, u64)>, DebugError> {
    let header = section.get(at..).and_then(|rest| rest.get(..3)).ok_or(DebugError::Macros(at))?;
    if header[2] & 2 == 0 {
        return Ok(None);
    }
    let field = Field { at: at + 3, len: if header[2] & 1 == 0 { 4 } else { 8 } };
    let bytes = section[field.at..].get(..usize::from(field.len)).ok_or(DebugError::Macros(at))?;
    let mut old = [0; 8];
    old[..bytes.len()].copy_from_slice(bytes);
    Ok(Some((field, u64::from_le_bytes(old))))
}
