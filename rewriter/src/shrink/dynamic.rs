//! The dynamic section in another place, with room for more entries.
//!
//! **Problem.** Packed relocations need three entries. GNU `ld` leaves some to spare, `lld` and `mold` none.
//!
//! **Method.** The section moves behind the last byte of the segment that it is in, as far as the rest of the page goes; where that is too short, before
//! the first byte, as far as its page goes: memory that every loader maps with that segment, and that nothing else has. What linkers call
//! `.relro_padding` is that same memory.
//!
//! **Why it is right.** Loaders and debuggers find it by `PT_DYNAMIC` alone. It stays where it is if code, a relocated word or an exported symbol names it. What
//! lies behind it in the file moves on with its own segment. The word of the global offset table in which the psABI keeps its address for the loader's own use
//! keeps the old one: no loader reads it in anything but itself. `PT_GNU_RELRO` need not change: loaders make whole pages read-only, from the
//! start of the page in which it begins.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{SectionData, Segment};
use lifter::entity::Section;
use object::elf;

use super::cuts::{self, Part};
use super::pack::{self, Options, PAGE};
use super::section_table::SectionEdit;
use crate::relink::headers;

/// Bytes of an `Elf64_Dyn`.
const ENTRY: u64 = 16;
/// What `lld` calls the rest of the last page that is read-only after relocation.
const PADDING: &str = ".relro_padding";

/// The file with room for so many entries more. `None` where there is none, or where something names the section.
pub(super) fn with_room(bytes: &[u8], named: &[Va], num_entries: u64) -> Option<Vec<u8>> {
    let image = Image::parse(bytes).ok().filter(|image| image.has_section_headers && pack::may_move(image))?;
    let section = unnamed(&image, named)?;
    let data = &image.sections[section];
    let loads: Vec<Segment> = image.loads().copied().collect();
    let index =
        loads.iter().position(|l| l.is_writable() && l.p_vaddr <= data.sh_addr && data.end() <= l.p_vaddr + l.p_filesz)?;
    let size = ENTRY * (image.dynamic.len() as u64 + num_entries + 1);
    let Place { at, parts } = behind(&image, &loads, index, size).or_else(|| before(&image, &loads, index, size))?;
    let mut out = pack::lay_out(&image, &parts, Options::default()).ok()?;
    let room = Image::parse(&out).ok()?;
    let place = |va: Va| room.file_offset(va).map(|offset| offset.0 as usize);
    let (from, to) = (place(data.sh_addr)?, place(at)?);
    let content = image.section_bytes(section);
    let kept = content.get(..(ENTRY as usize * (image.dynamic.len() + 1)).min(content.len()))?;
    // What comes before the segment in the file comes along with its page.
    let cleared = size.max(loads[index].p_vaddr.0.saturating_sub(at.0)) as usize;
    let mut edit = SectionEdit::new(&room, &out)?;
    edit.set_place(section, at, to as u64, size);
    let (start, offset) = (at + size, to as u64 + size);
    let is_taken = |s: &SectionData<'_>| s.name == PADDING && s.sh_addr < start && at < s.end();
    for (id, padding) in image.sections.iter().filter(|(_, s)| is_taken(s)) {
        edit.set_place(id, start, offset, padding.end().0.saturating_sub(start.0));
    }
    edit.sort();
    // From here on the file is written into, of which nothing more is read.
    let (headers_at, headers) = program_headers(&room, at, size)?;
    out.get_mut(from..from + content.len())?.fill(0);
    out.get_mut(to..to + cleared)?.fill(0);
    out.get_mut(to..to + kept.len())?.copy_from_slice(kept);
    out.get_mut(headers_at..headers_at + headers.len())?.copy_from_slice(&headers);
    edit.write(out)
}

/// The dynamic section, if nothing names it.
fn unnamed(image: &Image<'_>, named: &[Va]) -> Option<Section> {
    let header = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC)?;
    let (section, data) = image.sections.iter().find(|(_, s)| s.sh_type == elf::SHT_DYNAMIC && s.sh_addr == header.p_vaddr)?;
    let is_inside = |va: Va| data.sh_addr <= va && va < data.end();
    let is_named = named.get(named.partition_point(|&va| va < data.sh_addr)).is_some_and(|&va| is_inside(va));
    let is_exported = image.dynamic_symbols.iter().any(|symbol| symbol.has_address() && is_inside(Va(symbol.st_value)));
    (!is_named && !is_exported).then_some(section)
}

/// The program headers that say where the section is, and their place in the file.
fn program_headers(room: &Image<'_>, at: Va, size: u64) -> Option<(usize, Vec<u8>)> {
    let mut segments = room.segments.clone();
    for segment in segments.iter_mut().filter(|s| s.p_type == elf::PT_DYNAMIC) {
        (segment.p_vaddr, segment.p_offset) = (at, room.file_offset(at)?);
        (segment.p_filesz, segment.p_memsz) = (size, size);
    }
    Some((room.e_phoff.0 as usize, headers::encode(&segments)))
}

/// Memory for the section, and the segments with it.
struct Place {
    at: Va,
    parts: Vec<Part>,
}

/// Behind the bytes of a segment, up to the end of their last page.
fn behind(image: &Image<'_>, loads: &[Segment], index: usize, size: u64) -> Option<Place> {
    let bytes_end = loads[index].p_vaddr + loads[index].p_filesz;
    let page_end = bytes_end.align_up(PAGE);
    let next = loads.get(index + 1).map_or(Va(u64::MAX), |next| next.p_vaddr);
    let is_used = |s: &SectionData<'_>| {
        let has_memory = s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0;
        has_memory && s.end() > bytes_end && s.sh_addr < page_end && s.name != PADDING
    };
    let at = bytes_end.align_up(ENTRY);
    if at + size > page_end.min(next) || image.sections.values().any(is_used) {
        return None;
    }
    let mut ends: Vec<Va> = loads.iter().map(|load| load.p_vaddr + load.p_filesz).collect();
    ends[index] = at + size;
    Some(Place { at, parts: cuts::whole(image, &ends) })
}

/// Before the bytes of a segment, from the start of their first page on.
fn before(image: &Image<'_>, loads: &[Segment], index: usize, size: u64) -> Option<Place> {
    let first = loads[index];
    let page = first.p_vaddr.0 & !(PAGE - 1);
    let at = Va(first.p_vaddr.0.checked_sub(size)? & !(ENTRY - 1));
    let last_end = index.checked_sub(1).map_or(Va(0), |before| loads[before].end());
    let longer = first.p_vaddr - at;
    if at.0 < page || last_end.0 > page || first.p_offset.0 < longer {
        return None;
    }
    let ends: Vec<Va> = loads.iter().map(|load| load.p_vaddr + load.p_filesz).collect();
    let mut parts = cuts::whole(image, &ends);
    parts[index].old = Segment {
        p_vaddr: at,
        p_offset: FileOffset(first.p_offset.0 - longer),
        p_filesz: first.p_filesz + longer,
        p_memsz: first.p_memsz + longer,
        ..first
    };
    Some(Place { at, parts })
}
