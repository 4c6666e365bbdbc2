//! What an optimizer has left in the file: tables of the unwinder beside those that it wrote, and what it skipped to begin with a large page.
//!
//! **Problem.** BOLT writes `.eh_frame`, its header and exception tables anew, old entries included, and leaves the old ones in the file under other names. And it begins code and what is behind it with
//! pages of 2 MB, inside one segment.
//!
//! **Why they can go.** No program header and no section of the known name leads to the old tables, and nothing that code or a relocated word holds is in them. Exception tables are asked for by entries too. The
//! gaps are zeros, in no section, and nothing names a place in them.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::Unwind;
use lifter::elf::image::{SectionData, Segment, original_name};
use lifter::entity::Section;
use object::elf;

use super::pack::PAGE;
use super::section_table::SectionEdit;
use crate::relink::space::joined;
use crate::relink::unwind;

/// Adds what nothing needs of these to what is free, ascending and disjoint. `named` are the addresses that something holds, ascending. Where there are tables, the file with empty sections in
/// their place.
pub fn add(image: &Image<'_>, named: &[Va], free: &mut Vec<(Va, Va)>) -> Option<Vec<u8>> {
    let (tables, gaps) = (tables(image, named), gaps(image, named, free));
    let places = tables.iter().map(|&id| (image.sections[id].sh_addr, image.sections[id].end()));
    free.extend(places.chain(gaps));
    *free = joined(std::mem::take(free));
    let mut edit = SectionEdit::new(image, image.bytes).filter(|_| !tables.is_empty())?;
    for id in tables {
        let section = &image.sections[id];
        edit.set_place(id, section.sh_addr, section.sh_offset.0, 0);
    }
    edit.write(image.bytes.to_vec())
}

fn tables(image: &Image<'_>, named: &[Va]) -> Vec<Section> {
    let is_old = |name: &str| original_name(name) != name && unwind::SECTIONS.contains(&original_name(name));
    let old = image.sections.iter().filter(|(_, s)| s.is_alloc() && s.has_bytes() && s.sh_size > 0 && is_old(s.name));
    let mut tables: Vec<Section> = old.map(|(id, _)| id).collect();
    if tables.is_empty() {
        return tables;
    }
    let Ok(unwind) = Unwind::parse(image) else { return Vec::new() };
    let of_entries = unwind.lsdas.iter().map(|lsda| lsda.at).chain(unwind.fdes.values().filter_map(|fde| fde.opaque_lsda));
    let mut used: Vec<Va> = of_entries.collect();
    used.extend(image.segments.iter().filter(|s| s.p_type == elf::PT_GNU_EH_FRAME).map(|s| s.p_vaddr));
    used.extend(image.dynamic_symbols.iter().filter(|s| s.has_address()).map(|s| Va(s.st_value)));
    used.sort_unstable();
    tables.retain(|&id| {
        let place = (image.sections[id].sh_addr, image.sections[id].end());
        !holds(&used, place) && !holds(named, place)
    });
    tables
}

/// Pages between two sections of a segment that is not written, where all that is not free is zeros.
fn gaps(image: &Image<'_>, named: &[Va], free: &[(Va, Va)]) -> Vec<(Va, Va)> {
    let has_bytes = |s: &&SectionData<'_>| s.is_alloc() && s.sh_size > 0 && !s.is_tls_bss();
    let mut sections: Vec<(Va, Va)> = image.sections.values().filter(has_bytes).map(|s| (s.sh_addr, s.end())).collect();
    sections.sort_unstable();
    let is_open = |start: Va, end: Va| {
        let holds_both = |s: &Segment| s.p_vaddr <= start && end < s.p_vaddr + s.p_filesz;
        image.loads().any(|segment| !segment.is_writable() && holds_both(segment))
    };
    let is_unused = |start: Va, end: Va| {
        let first = free.partition_point(|hole| hole.1 <= start);
        let holes = free[first..].iter().take_while(|hole| hole.0 < end);
        let starts = std::iter::once(start).chain(holes.clone().map(|hole| hole.1));
        let ends = holes.map(|hole| hole.0).chain([end]);
        starts.zip(ends).filter(|(from, to)| from < to).all(|(from, to)| is_zero(image, from, to))
    };
    let between = sections.windows(2).map(|pair| (pair[0].1, pair[1].0)).filter(|(start, end)| *start + PAGE <= *end);
    // Where one section ends may be named as that.
    let is_named = |start: Va, end: Va| holds(named, (start + 1, end));
    between.filter(|&(start, end)| is_open(start, end) && !is_named(start, end) && is_unused(start, end)).collect()
}

fn is_zero(image: &Image<'_>, start: Va, end: Va) -> bool {
    image.read(start, (end - start) as usize).is_some_and(|bytes| bytes.iter().all(|&byte| byte == 0))
}

/// Whether one of some addresses, which ascend, lies in a place.
pub(super) fn holds(addresses: &[Va], (start, end): (Va, Va)) -> bool {
    addresses.get(addresses.partition_point(|&va| va < start)).is_some_and(|&va| va < end)
}
