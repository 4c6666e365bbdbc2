//! Room for program headers where what follows their table has to go first.
//!
//! **Problem.** A cut takes a program header, and linkers leave no room behind the table: notes follow, or the loader's tables. Where these shrink they can make room themselves ([`super::tables`]);
//! in a static program there may be nothing in them that could.
//!
//! **Method.** The sections behind the table, as few as make enough room, go to free memory of a segment that is not written, all together and by a multiple of every alignment that they have. Tables that have to
//! stay in their segment ([`stays`]) only make room, and stand behind it.
//! Where one of them is large (the relocations of a static program), it leaves a hole itself, that takes a cut too: it goes if the file has several holes, with [`PAGES_MIN`] or more in all but the largest together.
//!
//! **Why it is right.** Program headers alone say where notes and the name of the interpreter are, and the dynamic section where the loader's tables are; both are written anew. What code, a relocated word
//! or an exported symbol names stays. Nothing that other sections cover is taken for free, whatever lies there.

use std::ops::Range;

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{SectionData, Segment};
use lifter::entity::Section;
use object::elf;

use super::pack;
use super::section_table::SectionEdit;
use super::tables::{stays, tag_of};
use crate::relink::headers;

/// More than notes and the tables of a program without symbols take; what is larger leaves a hole.
const SMALL_MAX: u64 = 4096;
/// Pages in further holes for which something large goes.
const PAGES_MIN: u64 = 16;
/// A multiple of all alignments that there are.
const ALIGN_MAX: u64 = 64;
/// Bytes of an `Elf64_Dyn`.
const DYN: usize = 16;

/// A file with room behind its program headers.
pub(super) struct Evicted {
    pub(super) bytes: Vec<u8>,
    /// What of the free memory is left, ascending.
    pub(super) free: Vec<(Va, Va)>,
}

/// Makes room for the program headers of cuts that spare so many pages each, in descending order, or some of them. `named` are the addresses that something holds, `free` what nothing needs, both
/// ascending. `None` where there can be none.
pub(super) fn for_cuts(bytes: &[u8], named: &[Va], free: &[(Va, Va)], cuts: &[u64]) -> Option<Evicted> {
    let image = Image::parse(bytes).ok().filter(|image| image.has_section_headers && pack::may_move(image))?;
    let with_room = |num_headers: usize, size_max: u64| {
        let tenants = Tenants::find(&image, named, num_headers).filter(|tenants| tenants.end - tenants.start <= size_max)?;
        tenants.evict(&image, bytes, free, num_headers)
    };
    let is_worth_hole = cuts.iter().skip(1).sum::<u64>() >= PAGES_MIN;
    // One more for the hole that is left.
    let with_large = || (3..=cuts.len() + 1).rev().filter(|_| is_worth_hole).find_map(|count| with_room(count, u64::MAX));
    let with_fewer = || (1..cuts.len()).rev().find_map(|count| with_room(count, SMALL_MAX));
    with_room(cuts.len(), SMALL_MAX).or_else(with_large).or_else(with_fewer)
}

/// What has to go.
struct Tenants {
    sections: Vec<Section>,
    start: Va,
    end: Va,
}

impl Tenants {
    fn find(image: &Image<'_>, named: &[Va], num_headers: usize) -> Option<Self> {
        let table_end = headers::table_end(image)?;
        let mut room_end = table_end + headers::ENTRY * num_headers as u64;
        let mut behind: Vec<(Section, &SectionData<'_>)> = image
            .sections
            .iter()
            .filter(|(_, s)| s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0 && s.end() > table_end)
            .collect();
        behind.sort_by_key(|(_, s)| s.sh_addr);
        let straddles = |s: &Segment, end: Va| !s.is_load() && s.p_vaddr >= table_end && s.p_vaddr < end && end < s.end();
        let is_named =
            |places: Range<Va>| named.get(named.partition_point(|&va| va < places.start)).is_some_and(|&va| va < places.end);
        let is_exported = |places: Range<Va>| {
            image.dynamic_symbols.iter().any(|symbol| symbol.has_address() && places.contains(&Va(symbol.st_value)))
        };
        let may_go = |s: &SectionData<'_>| {
            let is_found = s.sh_type == elf::SHT_NOTE || s.name == ".interp" || tag_of(image, s).is_some();
            let places = s.sh_addr..s.end();
            is_found && s.sh_addralign <= ALIGN_MAX && s.sh_addr >= table_end && !is_named(places.clone()) && !is_exported(places)
        };
        let (mut sections, mut end) = (Vec::new(), table_end);
        for (id, section) in behind {
            if section.sh_addr >= room_end && !image.segments.iter().any(|s| straddles(s, end)) {
                break;
            }
            if !may_go(section) {
                return None;
            }
            if stays(image, section) {
                room_end = (room_end.align_up(ALIGN_MAX) + section.sh_size).align_up(ALIGN_MAX);
            }
            sections.push(id);
            end = section.end();
        }
        let start = image.sections[*sections.first()?].sh_addr;
        // Code may find a table by where the one before it ends.
        let is_clear = !is_named(end..end + 1) || image.sections.values().any(|s| s.sh_addr == end);
        is_clear.then_some(Self { sections, start, end })
    }

    /// Puts them into the smallest hole that has room; what is left is free, and so is where they were behind the headers.
    fn evict(&self, image: &Image<'_>, bytes: &[u8], free: &[(Va, Va)], num_headers: usize) -> Option<Evicted> {
        let (hole, to) =
            free.iter().filter_map(|&hole| Some((hole, self.place_in(image, hole)?))).min_by_key(|(hole, _)| hole.1 - hole.0)?;
        let size = self.end - self.start;
        let mut out = bytes.to_vec();
        let place = |va: Va| image.file_offset(va).map(|offset| offset.0 as usize);
        let (from_file, to_file) = (place(self.start)?, place(to)?);
        out.copy_within(from_file..from_file + size as usize, to_file);
        out.get_mut(from_file..from_file + size as usize)?.fill(0);
        let room_end = (headers::table_end(image)? + headers::ENTRY * num_headers as u64).align_up(ALIGN_MAX);
        let (places, rest) = self.places(image, to, room_end);
        if rest > self.end && places.iter().any(|&(id, _)| stays(image, &image.sections[id])) {
            return None;
        }
        self.tell_loader(image, (to, &places), &mut out)?;
        let mut edit = SectionEdit::new(image, bytes)?;
        for &(id, at) in &places {
            let section = image.sections[id];
            edit.set_place(id, at, image.file_offset(at)?.0, section.sh_size);
            if stays(image, &section) {
                let (old, new, size) = (place(section.sh_addr)?, place(at)?, section.sh_size as usize);
                out.get_mut(new..new + size)?.copy_from_slice(bytes.get(old..old + size)?);
            }
        }
        edit.sort();
        let bytes = edit.write(out)?;
        let has_room = Image::parse(&bytes).is_ok_and(|image| headers::has_room_behind(&image, num_headers));
        let mut free: Vec<(Va, Va)> = free.iter().copied().filter(|&other| other != hole).collect();
        free.extend([(hole.0, to), (to + size, hole.1), (rest, self.end)].into_iter().filter(|left| left.0 < left.1));
        free.sort_unstable();
        has_room.then_some(Evicted { bytes, free })
    }

    /// Where each section goes, and what is free behind those that stay in their segment, from where there is room for program headers up to an address on.
    fn places(&self, image: &Image<'_>, to: Va, room_end: Va) -> (Vec<(Section, Va)>, Va) {
        let mut rest = room_end;
        let place = |&id: &Section| {
            let section = &image.sections[id];
            if !stays(image, section) {
                return (id, to + (section.sh_addr - self.start));
            }
            let at = rest;
            rest = (at + section.sh_size).align_up(ALIGN_MAX);
            (id, at)
        };
        (self.sections.iter().map(place).collect(), rest)
    }

    /// Where in a hole they can be.
    fn place_in(&self, image: &Image<'_>, hole: (Va, Va)) -> Option<Va> {
        let to = self.start + hole.0.0.checked_sub(self.start.0)?.next_multiple_of(ALIGN_MAX);
        let end = to + (self.end - self.start);
        let is_in_file = |s: &Segment| !s.is_writable() && s.p_vaddr <= to && end.0 <= s.p_vaddr.0 + s.p_filesz;
        let is_covered = |s: &SectionData<'_>| s.is_alloc() && !s.is_tls_bss() && s.sh_addr < end && to < s.end();
        (end <= hole.1 && image.loads().any(is_in_file) && !image.sections.values().any(is_covered)).then_some(to)
    }

    /// Writes the program headers and the dynamic section that say where they are.
    fn tell_loader(&self, image: &Image<'_>, (to, places): (Va, &[(Section, Va)]), out: &mut [u8]) -> Option<()> {
        let shift = to - self.start;
        let is_moved = |va: Va| self.start <= va && va < self.end;
        let mut segments = image.segments.clone();
        for segment in segments.iter_mut().filter(|s| !s.is_load() && s.p_memsz > 0 && is_moved(s.p_vaddr)) {
            segment.p_vaddr = segment.p_vaddr + shift;
            segment.p_offset = FileOffset(image.file_offset(segment.p_vaddr)?.0);
        }
        let table = headers::encode(&segments);
        let at = image.e_phoff.0 as usize;
        out.get_mut(at..at + table.len())?.copy_from_slice(&table);
        let Some(dynamic) = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC) else { return Some(()) };
        let at = image.file_offset(dynamic.p_vaddr)?.0 as usize;
        let tags: Vec<(u32, Va)> =
            places.iter().filter_map(|&(id, at)| Some((tag_of(image, &image.sections[id])?, at))).collect();
        for (index, &(tag, _)) in image.dynamic.iter().enumerate() {
            if let Some((_, moved)) = tags.iter().find(|&&(moved, _)| u64::from(moved) == tag) {
                let field = at + index * DYN + 8;
                out.get_mut(field..field + 8)?.copy_from_slice(&moved.0.to_le_bytes());
            }
        }
        Some(())
    }
}
