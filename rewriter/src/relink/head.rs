//! Where what lies behind the program headers goes, if they need its place.
//!
//! **Problem.** libunwind finds symbols, their names and hash tables in a file by their distance from the first segment, and only there. What moves out of the headers' way has to stay in that segment, whose last page may
//! have no room for a large hash table.
//!
//! **Method.** All of it moves behind the segment's last byte where that has room. Where it does not, the tables that are looked up move up by as much as the headers need, into the place of a table of versions behind them. That one and
//! the notes in front, which are found by addresses in memory, go behind the segment's last byte, or to the overflow; and so does all, if nothing can move up.
//!
//! **Invariant.** Nothing but program headers, section headers, symbols and the dynamic section names what moves ([`headers`]).
//!
//! Sources: gABI chapter 5, "Dynamic Section"; the symbol versioning of the LSB for `SHT_GNU_versym` and its relatives.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::{SectionData, Segment};
use object::elf;

use super::headers::{self, Behind, Slots};
use super::patch::OutBytes;
use super::space::Overflow;
use super::unwind::{ALIGN, Places};
use crate::error::Result;

/// Bytes that go elsewhere.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) start: Va,
    pub(crate) end: Va,
    pub(crate) to: Va,
}

impl Moved {
    fn address(&self, va: Va) -> Option<Va> {
        (self.start <= va && va < self.end).then(|| self.to + (va - self.start))
    }
}

/// The new address of something that moved.
pub(crate) fn address(moved: &[Moved], va: Va) -> Option<Va> {
    moved.iter().find_map(|moved| moved.address(va))
}

/// Finds room for what the headers grow over.
pub(crate) fn make_room(image: &Image<'_>, slots: &Slots, places: &mut Places, overflow: &mut Overflow) -> Vec<Moved> {
    let Some(behind @ Behind { start, end, .. }) = slots.moves else { return Vec::new() };
    let segment = headers::segment_of_table(image);
    let mut behind_all = |size: u64| segment.and_then(|segment| places.behind(image, segment, size));
    if let Some(to) = behind_all(end - start) {
        return vec![Moved { start, end, to }];
    }
    let Some((tables, gone)) = tables_to_move_up(image, behind) else {
        return vec![Moved { start, end, to: overflow.take(end - start, ALIGN) }];
    };
    let size_in_front = (tables.start - start).next_multiple_of(ALIGN);
    let size = size_in_front + gone.sh_size;
    let to = behind_all(size).unwrap_or_else(|| overflow.take(size, ALIGN));
    let in_front = Moved { start, end: tables.start, to };
    let gone = Moved { start: gone.sh_addr, end: gone.end(), to: to + size_in_front };
    [in_front, tables, gone].into_iter().filter(|moved| moved.start < moved.end).collect()
}

/// Writes what moved to where it is now.
pub(crate) fn write(image: &Image<'_>, moved: &[Moved], file: &mut OutBytes) -> Result<()> {
    for &Moved { start, end, .. } in moved {
        file.slice_mut(start, (end - start) as usize)?.fill(0);
    }
    for &Moved { start, end, to } in moved {
        file.write(to, image.read(start, (end - start) as usize).unwrap_or(&[]))?;
    }
    Ok(())
}

/// Tables that are looked up by their place and stand in the headers' way, where they move up to, and the smallest one of versions behind them that makes room.
fn tables_to_move_up<'i>(image: &'i Image<'_>, behind: Behind) -> Option<(Moved, &'i SectionData<'i>)> {
    // The dynamic section does not say where tables of versions end.
    if !image.has_section_headers {
        return None;
    }
    let mut sections: Vec<&SectionData<'_>> =
        image.sections.values().filter(|s| s.is_alloc() && s.sh_addr >= behind.start && s.sh_size > 0).collect();
    sections.sort_by_key(|section| section.sh_addr);
    let first = sections.iter().position(|section| is_looked_up(section))?;
    let tables = &sections[first..];
    let start = tables[0].sh_addr;
    let by = behind.needed.0.checked_sub(start.0)?.next_multiple_of(ALIGN);
    let makes_room = |&goes: &usize| {
        let (stay, gone) = (&tables[..goes], tables[goes]);
        is_of_versions(gone) && stay[goes - 1].end() + by <= gone.end() && may_move_up(image, stay, gone)
    };
    let goes = (1..tables.len()).filter(makes_room).min_by_key(|&goes| tables[goes].sh_size)?;
    Some((Moved { start, end: tables[goes - 1].end(), to: start + by }, tables[goes]))
}

/// Whether nothing but the dynamic section names tables, and the one behind them that makes them room.
fn may_move_up(image: &Image<'_>, tables: &[&SectionData<'_>], gone: &SectionData<'_>) -> bool {
    let is_table = |table: &SectionData<'_>| is_looked_up(table) || is_of_versions(table);
    let is_aligned = |table: &SectionData<'_>| table.sh_addralign <= ALIGN;
    let is_named = |s: &Segment| !headers::is_load_or_headers(s) && s.p_vaddr < gone.end() && tables[0].sh_addr < s.end();
    tables.iter().all(|table| is_table(table) && is_aligned(table)) && is_aligned(gone) && !image.segments.iter().any(is_named)
}

/// Whether libunwind looks for a table where it is.
fn is_looked_up(section: &SectionData<'_>) -> bool {
    [elf::SHT_HASH, elf::SHT_GNU_HASH, elf::SHT_DYNSYM, elf::SHT_STRTAB].contains(&section.sh_type)
}

fn is_of_versions(section: &SectionData<'_>) -> bool {
    [elf::SHT_GNU_VERSYM, elf::SHT_GNU_VERDEF, elf::SHT_GNU_VERNEED].contains(&section.sh_type)
}
