//! The dynamic section in another place, with room for more entries.
//!
//! **Problem.** Packed relocations need three entries. GNU `ld` leaves some to spare, `lld` and `mold` none.
//!
//! **Method.** The section moves behind the last byte of the segment that it is in, as far as the rest of the page goes: memory that every loader maps with that
//! segment, and that nothing else has. What linkers call `.relro_padding` is that same memory.
//!
//! **Why it is right.** Loaders and debuggers find it by `PT_DYNAMIC` alone. It stays where it is if code, a relocated word or an exported symbol names it. What
//! lies behind it in the file moves on with its own segment. The word of the global offset table in which the psABI keeps its address for the loader's own use
//! keeps the old one: no loader reads it in anything but itself.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::SectionData;
use object::elf;

use super::cuts;
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
    let old = *image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC)?;
    let (section, data) = image.sections.iter().find(|(_, s)| s.sh_type == elf::SHT_DYNAMIC && s.sh_addr == old.p_vaddr)?;
    let is_inside = |va: Va| data.sh_addr <= va && va < data.end();
    let is_named = named.get(named.partition_point(|&va| va < data.sh_addr)).is_some_and(|&va| is_inside(va));
    if is_named || image.dynamic_symbols.iter().any(|symbol| symbol.has_address() && is_inside(Va(symbol.st_value))) {
        return None;
    }
    let loads: Vec<_> = image.loads().copied().collect();
    let index = loads.iter().position(|l| l.is_writable() && l.p_vaddr <= old.p_vaddr && data.end() <= l.p_vaddr + l.p_filesz)?;
    let bytes_end = loads[index].p_vaddr + loads[index].p_filesz;
    let next = loads.get(index + 1).map_or(Va(u64::MAX), |next| next.p_vaddr);
    let is_behind = |s: &SectionData<'_>| {
        s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0 && s.end() > bytes_end && s.sh_addr < bytes_end.align_up(PAGE)
    };
    let (at, size) = (bytes_end.align_up(ENTRY), ENTRY * (image.dynamic.len() as u64 + num_entries + 1));
    if at + size > bytes_end.align_up(PAGE).min(next) || image.sections.values().any(|s| is_behind(s) && s.name != PADDING) {
        return None;
    }
    let mut ends: Vec<Va> = loads.iter().map(|load| load.p_vaddr + load.p_filesz).collect();
    ends[index] = at + size;
    let room_bytes = pack::lay_out(&image, &cuts::whole(&image, &ends), Options::default()).ok()?;
    let room = Image::parse(&room_bytes).ok()?;
    let mut out = room_bytes.clone();
    let content = image.section_bytes(section).to_vec();
    let place = |va: Va| room.file_offset(va).map(|offset| offset.0 as usize);
    let (from, to) = (place(data.sh_addr)?, place(at)?);
    out.get_mut(from..from + content.len())?.fill(0);
    let kept = content.get(..(ENTRY as usize * (image.dynamic.len() + 1)).min(content.len()))?;
    out.get_mut(to..to + size as usize)?.fill(0);
    out.get_mut(to..to + kept.len())?.copy_from_slice(kept);
    let mut segments = room.segments.clone();
    for segment in segments.iter_mut().filter(|s| s.p_type == elf::PT_DYNAMIC) {
        (segment.p_vaddr, segment.p_offset) = (at, room.file_offset(at)?);
        (segment.p_filesz, segment.p_memsz) = (size, size);
    }
    let table = headers::encode(&segments);
    let start = room.e_phoff.0 as usize;
    out.get_mut(start..start + table.len())?.copy_from_slice(&table);
    let mut edit = SectionEdit::new(&room, &room_bytes)?;
    edit.set_place(section, at, to as u64, size);
    for (id, padding) in image.sections.iter().filter(|(_, s)| s.name == PADDING && is_behind(s)) {
        let start = at + size;
        edit.set_place(id, start, to as u64 + size, padding.end().0.saturating_sub(start.0));
    }
    edit.sort();
    edit.write(out)
}
