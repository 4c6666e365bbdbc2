//! Segments cut in two where whole pages of them are not needed.
//!
//! **Problem.** What is freed in the middle of a segment stays in the file: one program header maps one run of it. Linkers that put
//! tables, code and constants in one segment (`gold`, `ld -z noseparate-code`) leave all that relocations and code give up in the middle.
//!
//! **Method.** A segment becomes two with the same rights, and what lies between them is neither in the file nor in memory. That takes a program
//! header: there are entries that say nothing, and [`super::tables`] makes room behind the header table; the holes with the most pages get the few that there are. The cut
//! is where a section starts, so that each section lies in one segment.
//!
//! **Why it is right.** What is left out is free or padding (see [`super::pack::needed_end`]), so nothing reads it. Loaders take any number of segments,
//! in order of address, and leave holes between them (gABI chapter 5). Only segments that are not written are cut: no `PT_GNU_RELRO` lies in one.
//! Parts share no page of memory, because at least a page lies between them.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{SectionData, Segment};

use super::pack::{self, Options, PAGE};
use super::section_table::SectionEdit;
use crate::relink::headers;

/// As many cuts as are worth having whatever they spare: each costs a loader a call of the kernel or two.
const CUTS_OF_ANY_SIZE: usize = 4;
/// As many as are made where each spares at least so many pages: hand-written code that stays can part a file in many places.
const CUTS_MAX: usize = 16;
const PAGES_MIN: u64 = 2;

/// What becomes a segment of its own.
#[derive(Copy, Clone, Debug)]
pub(super) struct Part {
    /// The input's segment, by index among those that are loaded.
    pub(super) load: usize,
    /// What it is a part of, from where it starts up to where the next part does.
    pub(super) old: Segment,
    /// One past its last byte that is needed.
    pub(super) end: Va,
}

/// Each loaded segment whole, up to where it is to end.
pub(super) fn whole(image: &Image<'_>, ends: &[Va]) -> Vec<Part> {
    image.loads().zip(ends).enumerate().map(|(load, (&old, &end))| Part { load, old, end }).collect()
}

/// Each loaded segment from where it is needed to where it is.
pub(super) fn trimmed(image: &Image<'_>, free: &[(Va, Va)]) -> Vec<Part> {
    let trim = |part: Part| {
        let start = needed_start(image, &part.old, free);
        let skipped = start - part.old.p_vaddr;
        let old = Segment {
            p_vaddr: start,
            p_offset: FileOffset(part.old.p_offset.0 + skipped),
            p_filesz: part.old.p_filesz - skipped,
            p_memsz: part.old.p_memsz - skipped,
            ..part.old
        };
        if skipped > 0 && start < part.end { Part { old, ..part } } else { part }
    };
    whole(image, &pack::needed_ends(image, free)).into_iter().map(trim).collect()
}

/// The first byte of a segment that something needs, if what comes before it is free.
fn needed_start(image: &Image<'_>, segment: &Segment, free: &[(Va, Va)]) -> Va {
    let is_open = !segment.is_writable() && segment.p_filesz == segment.p_memsz && segment.p_offset.0 > 0;
    let covers = |hole: &&(Va, Va)| hole.0 <= segment.p_vaddr && segment.p_vaddr < hole.1 && hole.1 < segment.end();
    let Some(&(_, start)) = free.iter().find(covers).filter(|_| is_open && image.has_section_headers) else {
        return segment.p_vaddr;
    };
    let touches = |s: &SectionData<'_>| s.is_alloc() && s.sh_size > 0 && s.sh_addr < start && segment.p_vaddr < s.end();
    let is_named = |s: &Segment| !s.is_load() && s.p_memsz > 0 && s.p_vaddr < start && segment.p_vaddr < s.end();
    if image.sections.values().any(touches) || image.segments.iter().any(is_named) { segment.p_vaddr } else { start }
}

/// Makes several sections of those with code that have large holes, so that the holes can be cut out. `None` where there are none.
///
/// Code that is pinned near the end of a section keeps everything before it in the file otherwise.
pub fn split_sections(bytes: &[u8], free: &[(Va, Va)]) -> Option<Vec<u8>> {
    const NAME: &str = ".text.relift.rest";
    let image = Image::parse(bytes).ok().filter(may_cut)?;
    let mut edit = SectionEdit::new(&image, bytes)?;
    let mut is_split = false;
    let movable = image.sections.iter().filter(|(id, s)| image.is_movable_code_section(*id) && s.sh_size > 0);
    for (id, section) in movable {
        if let Some(&(_, end)) = free.iter().find(|hole| hole.0 <= section.sh_addr && section.end() <= hole.1) {
            let skipped = end.min(image.segment_at(section.sh_addr)?.end()) - section.sh_addr;
            edit.set_place(id, section.sh_addr + skipped, section.sh_offset.0 + skipped, 0);
            is_split = true;
            continue;
        }
        let covers_front = |hole: &&(Va, Va)| hole.0 <= section.sh_addr && section.sh_addr < hole.1 && hole.1 < section.end();
        let is_worth_it = |hole: &&(Va, Va)| hole.1 - hole.0 >= PAGE || begins_segment(&image, section);
        if let Some(&(_, start)) = free.iter().find(covers_front).filter(is_worth_it) {
            let skipped = start - section.sh_addr;
            edit.set_place(id, start, section.sh_offset.0 + skipped, section.sh_size - skipped);
            is_split = true;
            continue;
        }
        let is_inside = |hole: &&(Va, Va)| section.sh_addr < hole.0 && hole.1 < section.end();
        let mut holes: Vec<(Va, Va)> = free.iter().filter(is_inside).filter(|hole| hole.1 - hole.0 >= PAGE).copied().collect();
        holes.sort_by_key(|hole| (std::cmp::Reverse(hole.1 - hole.0), hole.0));
        holes.truncate(worth_cutting(holes.iter().map(|hole| (hole.1 - hole.0) / PAGE)));
        holes.sort_unstable();
        if !holes.is_empty() {
            edit.split(id, &holes, NAME)?;
            is_split = true;
        }
    }
    if is_split { edit.write(bytes.to_vec()) } else { None }
}

/// Whether nothing that is loaded comes before a section in its segment, headers of the file included.
fn begins_segment(image: &Image<'_>, section: &SectionData<'_>) -> bool {
    let Some(segment) = image.segment_at(section.sh_addr).filter(|segment| segment.p_offset.0 > 0) else { return false };
    let is_before =
        |s: &SectionData<'_>| s.is_alloc() && s.sh_size > 0 && segment.p_vaddr <= s.sh_addr && s.sh_addr < section.sh_addr;
    !image.sections.values().any(is_before)
}

/// A place to cut at: what comes before it is not needed from `from` on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Cut {
    load: usize,
    from: Va,
    to: Va,
}

impl Cut {
    fn num_pages(&self) -> u64 {
        (self.to - self.from) / PAGE
    }
}

/// All places where a cut spares a page, those that spare most first.
fn candidates(image: &Image<'_>, free: &[(Va, Va)]) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    let is_open = |segment: &Segment| !segment.is_writable() && segment.p_filesz == segment.p_memsz;
    for (load, segment) in image.loads().enumerate().filter(|(_, segment)| is_open(segment)) {
        let needed = pack::needed_end(image, segment, free);
        let starts = image.sections.values().filter(|s| s.is_alloc() && s.sh_size > 0).map(|s| s.sh_addr);
        for to in starts.filter(|&start| segment.p_vaddr < start && start < needed) {
            let head = Segment { p_filesz: to - segment.p_vaddr, p_memsz: to - segment.p_vaddr, ..*segment };
            let cut = Cut { load, from: pack::needed_end(image, &head, free), to };
            let is_inside = |s: &SectionData<'_>| s.is_alloc() && s.sh_addr < to && to < s.end();
            if cut.num_pages() > 0 && segment.p_vaddr < cut.from && !image.sections.values().any(is_inside) {
                cuts.push(cut);
            }
        }
    }
    // Of cuts in the same hole the one furthest on.
    cuts.sort_by_key(|cut| (cut.from, std::cmp::Reverse(cut.to)));
    cuts.dedup_by_key(|cut| cut.from);
    cuts.sort_by_key(|cut| (std::cmp::Reverse(cut.num_pages()), cut.from));
    cuts.truncate(worth_cutting(cuts.iter().map(Cut::num_pages)));
    cuts
}

/// How many holes are worth a cut, of those with so many pages, in descending order.
fn worth_cutting(pages: impl Iterator<Item = u64>) -> usize {
    let is_worth_it = |&(number, pages): &(usize, u64)| number < CUTS_OF_ANY_SIZE || pages >= PAGES_MIN;
    pages.enumerate().take_while(is_worth_it).take(CUTS_MAX).count()
}

/// The pages that each cut spares which the file is worth, in descending order.
pub(super) fn wanted(image: &Image<'_>, free: &[(Va, Va)]) -> Vec<u64> {
    if may_cut(image) { candidates(image, free).iter().map(Cut::num_pages).collect() } else { Vec::new() }
}

fn may_cut(image: &Image<'_>) -> bool {
    image.has_section_headers && pack::may_move(image)
}

/// How many program headers there is room for: behind the table, and in the place of entries that say nothing.
pub(super) fn spare_headers(image: &Image<'_>) -> usize {
    let num_idle = headers::idle(image).count();
    let has_room = |&count: &usize| count <= num_idle || headers::has_room_behind(image, count - num_idle);
    (1..=CUTS_MAX).rev().find(has_room).unwrap_or(0)
}

/// The file's segments, cut where that makes it shortest.
pub(super) fn parts(image: &Image<'_>, free: &[(Va, Va)], options: Options) -> Vec<Part> {
    let mut best = trimmed(image, free);
    let spare = if may_cut(image) { spare_headers(image) } else { 0 };
    let candidates = if spare > 0 { candidates(image, free) } else { Vec::new() };
    for cut in candidates.into_iter().take(spare) {
        let with = cut_at(&best, cut);
        if pack::total(image, &with, options) < pack::total(image, &best, options) {
            best = with;
        }
    }
    best
}

fn cut_at(parts: &[Part], cut: Cut) -> Vec<Part> {
    let mut all = Vec::with_capacity(parts.len() + 1);
    for &part in parts {
        let old = part.old;
        if part.load != cut.load || cut.to <= old.p_vaddr || old.p_vaddr + old.p_filesz <= cut.to {
            all.push(part);
            continue;
        }
        let len = cut.to - old.p_vaddr;
        let head = Segment { p_filesz: len, p_memsz: len, ..old };
        let tail = Segment {
            p_vaddr: cut.to,
            p_offset: FileOffset(old.p_offset.0 + len),
            p_filesz: old.p_filesz - len,
            p_memsz: old.p_memsz - len,
            ..old
        };
        all.push(Part { old: head, end: cut.from, ..part });
        all.push(Part { old: tail, ..part });
    }
    all
}
