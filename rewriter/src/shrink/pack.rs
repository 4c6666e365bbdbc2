//! New file offsets, so that what nothing needs is not in the file.
//!
//! **Problem.** A loader maps pages. Linkers begin each segment on a page of its own in memory and, in most files, in the file too: on
//! average half a page is lost at each end. And what relift freed inside a segment is lost as well while the file still holds it.
//!
//! **Method.** No address changes. A segment of which nothing is written ends where its last needed byte is. Segments follow each other in the file as
//! closely as the one rule allows that a loader has: offset and address are congruent modulo the page size (gABI chapter 5). What
//! no loader reads (section headers, symbols, strings) goes into the holes that the rule leaves, the largest first, and behind
//! everything only where no hole takes it.
//!
//! **Why it is right.** A loader maps the same bytes to the same addresses with the same rights. What it maps besides, up to the ends of the
//! first and last page of a segment, is different: a neighbor's bytes or a string table instead of zeros. No section covers these, so no
//! program names them; the part that `p_memsz` claims is cleared by every loader. With [`Sharing::Safe`] no page of the file is
//! mapped executable that holds bytes of a segment which is not, beyond what the input does.
//!
//! **Invariants.** `p_align` stays what it was, unless a section table says that no section needs more than a page, or only code does that does not fill a page of that size. The order of
//! segments in the file is that in memory. The result depends on the input alone.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{SectionData, Segment};
use lifter::entity::{EntityId, Section};
use object::elf;

use super::cuts::{self, Part};
use crate::error::{Error, Result};
use crate::relink::{self, headers};

/// What a loader maps at least.
pub(super) const PAGE: u64 = 4096;
/// Bytes of an `Elf64_Shdr`.
const SECTION_HEADER: u64 = 64;
/// More than the alignment of most sections leaves between two.
const GAP_MAX: u64 = 64;

/// Whether a page of the file may be mapped twice with different rights.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// As `lld`, `gold` and older `ld` do: the end of one segment and the start of the next may share a page of the file.
    #[default]
    Tight,
    /// As `ld -z separate-code`: code shares no page with anything else.
    Safe,
}

#[derive(Copy, Clone, Debug, Default)]
pub struct Options {
    pub sharing: Sharing,
    /// Leave out what no loader reads, section headers included.
    pub strip: bool,
    /// Cut segments where pages are not needed.
    pub cuts: bool,
}

/// A file laid out anew.
#[derive(Clone, Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Segments that became two, and how many bytes that spares.
    pub num_cuts: usize,
    pub cut_bytes: u64,
}

/// Lays the file out anew. `free` are loaded bytes that nothing needs, ascending. `None` if the file's offsets have to stay.
pub fn pack(bytes: &[u8], free: &[(Va, Va)], options: Options) -> Result<Option<Packed>> {
    let image =
        Image::parse(bytes).map_err(|error| Error::Inconsistent(format!("what was relinked can't be read again: {error}")))?;
    if !may_move(&image) {
        return Ok(None);
    }
    let whole = cuts::trimmed(&image, free);
    let parts = if options.cuts { cuts::parts(&image, free, options) } else { whole.clone() };
    let bytes = lay_out(&image, &parts, options)?;
    let cut_bytes = total(&image, &whole, options).saturating_sub(bytes.len() as u64);
    Ok(Some(Packed { bytes, num_cuts: parts.len() - whole.len(), cut_bytes }))
}

/// One past the last byte that is needed of each loaded segment, in their order.
pub(super) fn needed_ends(image: &Image<'_>, free: &[(Va, Va)]) -> Vec<Va> {
    let end = |segment: &Segment| match !segment.is_writable() && segment.p_filesz == segment.p_memsz {
        true => needed_end(image, segment, free),
        false => segment.p_vaddr + segment.p_filesz,
    };
    image.loads().map(end).collect()
}

/// The file with these segments, whose ends may be behind where they are now.
pub(super) fn lay_out(image: &Image<'_>, parts: &[Part], options: Options) -> Result<Vec<u8>> {
    let bytes = image.bytes;
    let mut layout = Layout::of(image, parts, options);
    let image = &image;
    let mut out = layout.loaded(image);
    let segments = layout.segments(image);
    let table = headers::encode(&segments);
    let at = image.e_phoff.0 as usize;
    let place = out.get_mut(at..at + table.len());
    place.ok_or_else(|| Error::Inconsistent("the program headers are not loaded".into()))?.copy_from_slice(&table);
    let sections = if options.strip || !image.has_section_headers { None } else { Some(layout.unloaded(image, &mut out)) };
    let (start, count, names) = match &sections {
        Some((start, count)) => (*start, *count, half(bytes, 62)),
        None => (0, 0, 0),
    };
    out[40..48].copy_from_slice(&start.to_le_bytes());
    out[56..58].copy_from_slice(&(segments.len() as u16).to_le_bytes());
    out[60..62].copy_from_slice(&count.to_le_bytes());
    out[62..64].copy_from_slice(&names.to_le_bytes());
    Ok(out)
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |half| u16::from_le_bytes([half[0], half[1]]))
}

/// Whether offsets may change: no payload counts on them, and the headers are where a loader looks.
pub(super) fn may_move(image: &Image<'_>) -> bool {
    let table_end = image.e_phoff.0 + headers::ENTRY * image.segments.len() as u64;
    let holds_headers = |s: &Segment| s.p_offset.0 == 0 && s.p_filesz >= table_end.max(64);
    let first = image.loads().min_by_key(|s| s.p_vaddr);
    let sorted = image.loads().zip(image.loads().skip(1)).all(|(a, b)| a.end() <= b.p_vaddr);
    relink::payload_behind(image).is_none() && first.is_some_and(holds_headers) && sorted
}

/// What the sections of a file ask for at most. That code begins with a page of 2 MB is for the sake of such pages: where no segment fills one, it begins with any page.
fn alignment(image: &Image<'_>, parts: &[Part]) -> u64 {
    let fills = |align: u64| {
        let holds_one = |part: &Part| part.old.p_align >= align && part.old.p_vaddr.align_up(align) + align <= part.end;
        parts.iter().any(|part| part.old.is_executable() && holds_one(part))
    };
    let counts = |s: &SectionData<'_>| !s.is_executable() || s.sh_addralign <= PAGE || fills(s.sh_addralign);
    let alignments = image.sections.values().filter(|s| s.is_alloc() && counts(s)).map(|s| s.sh_addralign);
    alignments.max().unwrap_or(u64::MAX)
}

/// A loaded segment of the output.
#[derive(Copy, Clone, Debug)]
struct Load {
    /// The input's, by index among those that are loaded.
    source: usize,
    /// The input's, or the part that this is of it.
    old: Segment,
    /// As `old`, in its new place.
    new: Segment,
}

struct Layout {
    /// By address.
    loads: Vec<Load>,
    /// Parts of the file that no segment uses.
    holes: Vec<(u64, u64)>,
    end: u64,
}

impl Layout {
    fn of(image: &Image<'_>, parts: &[Part], options: Options) -> Self {
        let mut layout = Layout { loads: Vec::new(), holes: Vec::new(), end: 0 };
        let needs_page_only = image.has_section_headers && alignment(image, parts) <= PAGE;
        let mut last_used = None;
        for &Part { load: source, old, end } in parts {
            let mut new = old;
            if end != old.p_vaddr + old.p_filesz {
                new.p_filesz = end - old.p_vaddr;
                new.p_memsz = if old.p_filesz < old.p_memsz { old.p_memsz.max(new.p_filesz) } else { new.p_filesz };
            }
            if new.p_filesz > 0 {
                let modulus = if needs_page_only { PAGE } else { old.p_align.max(PAGE) };
                let shares = last_used.is_none_or(|x| x == old.is_executable()) || options.sharing == Sharing::Tight;
                let from = if shares { layout.end } else { layout.end.next_multiple_of(PAGE) };
                let offset = congruent(from, old.p_vaddr.0, modulus);
                if layout.end < offset {
                    layout.holes.push((layout.end, offset));
                }
                new.p_offset = FileOffset(offset);
                layout.end = offset + new.p_filesz;
                last_used = Some(old.is_executable());
                if offset % old.p_align.max(1) != old.p_vaddr.0 % old.p_align.max(1) {
                    new.p_align = PAGE;
                }
            }
            // One of which nothing is needed goes.
            if new.p_memsz > 0 || old.p_memsz == 0 {
                layout.loads.push(Load { source, old, new });
            }
        }
        layout
    }

    /// The loaded part of the file.
    fn loaded(&self, image: &Image<'_>) -> Vec<u8> {
        let mut out = vec![0; self.end as usize];
        for load in self.loads.iter().filter(|load| load.new.p_filesz > 0) {
            let len = load.new.p_filesz.min(load.old.p_filesz) as usize;
            let (from, to) = (load.old.p_offset.0 as usize, load.new.p_offset.0 as usize);
            out[to..to + len].copy_from_slice(&image.bytes[from..from + len]);
        }
        out
    }

    /// How long the file becomes.
    fn total(mut self, image: &Image<'_>, options: Options) -> u64 {
        if !options.strip && image.has_section_headers {
            for (size, align, _) in unloaded_items(image) {
                self.take(size, align);
            }
        }
        self.end
    }

    /// Where an address is in the file; the end of the segment's bytes for what is not in the file.
    fn offset_of(&self, va: Va) -> Option<u64> {
        let load = self.loads.iter().find(|load| load.old.p_vaddr <= va && va <= load.old.end())?;
        let next = self.loads.iter().find(|load| load.old.p_vaddr == va).unwrap_or(load);
        Some(next.new.p_offset.0 + (va - next.new.p_vaddr).min(next.new.p_filesz))
    }

    /// The program headers. Those that say nothing go if the table would have no room otherwise.
    fn segments(&self, image: &Image<'_>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut num_loads = 0;
        let num_more = self.loads.len().saturating_sub(image.loads().count());
        let fits = |&num_dropped: &usize| num_dropped == num_more || headers::has_room_behind(image, num_more - num_dropped);
        let dropped: Vec<usize> = headers::idle(image).take((0..=num_more).find(fits).unwrap_or(0)).collect();
        for (index, segment) in image.segments.iter().enumerate() {
            if dropped.contains(&index) {
                continue;
            }
            if segment.is_load() {
                segments.extend(self.loads.iter().filter(|load| load.source == num_loads).map(|load| load.new));
                num_loads += 1;
            } else {
                segments.push(self.moved_segment(segment));
            }
        }
        let size = headers::ENTRY * segments.len() as u64;
        for table in segments.iter_mut().filter(|segment| segment.p_type == elf::PT_PHDR) {
            (table.p_filesz, table.p_memsz) = (size, size);
        }
        segments
    }

    /// A segment that is not loaded by itself.
    fn moved_segment(&self, segment: &Segment) -> Segment {
        if [elf::PT_NULL, elf::PT_GNU_STACK].contains(&segment.p_type) || segment.p_memsz == 0 {
            return *segment;
        }
        let offset = self.offset_of(segment.p_vaddr).map_or(segment.p_offset, FileOffset);
        Segment { p_offset: offset, ..*segment }
    }

    /// Puts what no loader reads into holes, else behind everything; returns place and number of the section headers.
    fn unloaded(&mut self, image: &Image<'_>, out: &mut Vec<u8>) -> (u64, u16) {
        let mut offsets = vec![0; image.sections.len()];
        let mut start = 0;
        for (size, align, id) in unloaded_items(image) {
            let at = self.take(size, align);
            let end = (at + size) as usize;
            if out.len() < end {
                out.resize(end, 0);
            }
            match id {
                Some(id) => {
                    offsets[id.index()] = at;
                    out[at as usize..end].copy_from_slice(image.section_bytes(id));
                }
                None => start = at,
            }
        }
        for (id, section) in image.sections.iter() {
            let header = self.section_header(image, id, section, offsets[id.index()]);
            let at = start as usize + SECTION_HEADER as usize * id.index();
            out[at..at + header.len()].copy_from_slice(&header);
        }
        (start, image.sections.len() as u16)
    }

    fn take(&mut self, size: u64, align: u64) -> u64 {
        let fits = |&(_, &(start, end)): &(usize, &(u64, u64))| start.next_multiple_of(align) + size <= end;
        let found = self.holes.iter().enumerate().filter(fits).min_by_key(|(_, (start, end))| end - start);
        match found.map(|(index, _)| index) {
            Some(index) => {
                let (start, end) = self.holes.swap_remove(index);
                let at = start.next_multiple_of(align);
                self.holes.extend([(start, at), (at + size, end)].into_iter().filter(|(start, end)| start < end));
                at
            }
            None => {
                let at = self.end.next_multiple_of(align);
                if self.end < at {
                    self.holes.push((self.end, at));
                }
                self.end = at + size;
                at
            }
        }
    }

    fn section_header(&self, image: &Image<'_>, id: Section, section: &SectionData<'_>, unloaded_at: u64) -> Vec<u8> {
        let old = header_bytes(image, id);
        let mut header = old.to_vec();
        let mut write = |at: usize, value: u64| header[at..at + 8].copy_from_slice(&value.to_le_bytes());
        if section.is_alloc() && section.sh_addr != Va(0) {
            let load = self.loads.iter().find(|load| load.old.p_vaddr <= section.sh_addr && section.sh_addr < load.old.end());
            if let Some(load) = load.filter(|_| section.has_bytes()) {
                let end = load.new.p_vaddr + load.new.p_filesz;
                let size = section.end().min(end).0.saturating_sub(section.sh_addr.0);
                if load.new.p_filesz < load.old.p_filesz {
                    write(32, size);
                    // Nothing is left of it: a mark at the segment's end.
                    write(16, section.sh_addr.min(end).0);
                }
            }
            // The end of a segment's bytes for what lies behind them, and of the file's for what is in no segment any more.
            let is_empty = section.sh_size == 0;
            if let Some(offset) = self.offset_of(section.sh_addr).or(is_empty.then_some(self.end)) {
                write(24, offset);
            }
        } else if section.has_bytes() {
            write(24, unloaded_at);
        }
        header
    }
}

/// How long the file becomes with these segments.
pub(super) fn total(image: &Image<'_>, parts: &[Part], options: Options) -> u64 {
    Layout::of(image, parts, options).total(image, options)
}

/// Size and alignment of what no loader reads, in the order in which it is placed; the one that is no section is their headers.
fn unloaded_items(image: &Image<'_>) -> Vec<(u64, u64, Option<Section>)> {
    let size = SECTION_HEADER * image.sections.len() as u64;
    let mut items: Vec<(u64, u64, Option<Section>)> = vec![(size, 8, None)];
    let contents = image.sections.iter().filter(|(_, s)| !s.is_alloc() && s.has_bytes());
    items.extend(contents.map(|(id, s)| (s.sh_size, s.sh_addralign.clamp(1, PAGE).next_power_of_two(), Some(id))));
    items.sort_by_key(|&(size, _, id)| (std::cmp::Reverse(size), id));
    items
}

fn header_bytes<'a>(image: &Image<'a>, id: Section) -> &'a [u8] {
    const EMPTY: [u8; SECTION_HEADER as usize] = [0; SECTION_HEADER as usize];
    let table = image.bytes.get(40..48).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default())) as usize;
    let at = table + SECTION_HEADER as usize * id.index();
    image.bytes.get(at..at + SECTION_HEADER as usize).unwrap_or(&EMPTY)
}

/// The smallest number from `from` on that equals `value` modulo `modulus`.
fn congruent(from: u64, value: u64, modulus: u64) -> u64 {
    from + (value.wrapping_sub(from) & (modulus - 1))
}

/// One past the last byte of a segment that something needs.
pub(super) fn needed_end(image: &Image<'_>, segment: &Segment, free: &[(Va, Va)]) -> Va {
    let mut end = segment.p_vaddr + segment.p_filesz;
    loop {
        let before = end;
        let last = free.partition_point(|&(start, _)| start < end).checked_sub(1).map(|index| free[index]);
        if let Some((start, _)) = last.filter(|&(start, stop)| end <= stop && segment.p_vaddr < start) {
            end = start;
        }
        end = gap_start(image, segment, free, end);
        if end == before {
            return end;
        }
    }
}

/// Whether a segment's type is one of those that lead to nothing but what sections or the loader's tables have.
fn is_in_sections(segment: &Segment) -> bool {
    let known = [elf::PT_NULL, elf::PT_LOAD, elf::PT_DYNAMIC, elf::PT_INTERP, elf::PT_NOTE, elf::PT_PHDR, elf::PT_TLS];
    let of_gnu = [elf::PT_GNU_EH_FRAME, elf::PT_GNU_STACK, elf::PT_GNU_RELRO, elf::PT_GNU_PROPERTY];
    known.contains(&segment.p_type) || of_gnu.contains(&segment.p_type)
}

/// Where the padding begins that a linker put before `end`; `end` if a section, or what is free of one, goes on up to there.
fn gap_start(image: &Image<'_>, segment: &Segment, free: &[(Va, Va)], end: Va) -> Va {
    let before = |s: &&SectionData<'_>| s.is_alloc() && !s.is_tls_bss() && s.sh_addr < end && segment.p_vaddr <= s.sh_addr;
    let freed = free[..free.partition_point(|&(start, _)| start < end)].last().map(|&(_, stop)| stop);
    let freed = freed.filter(|&stop| segment.p_vaddr < stop);
    // What is not known to be in sections: a linker may give a segment of its own some bytes more than its section has.
    let others = image.segments.iter().filter(|s| !is_in_sections(s) && segment.p_vaddr <= s.p_vaddr && s.p_vaddr < end);
    let others = others.map(|s| s.p_vaddr + s.p_filesz);
    let last = image.sections.values().filter(before).map(|s| s.end()).chain(freed).chain(others).max();
    // One that is aligned to more may have more before it.
    let begun = image.sections.values().filter(|s| s.is_alloc() && s.sh_addr == end).map(|s| s.sh_addralign.min(PAGE)).max();
    let gap_max = begun.unwrap_or(0).max(GAP_MAX);
    let Some(start) = last.filter(|&last| last < end && end - last < gap_max && image.has_section_headers) else { return end };
    let is_padding = |bytes: &[u8]| bytes.iter().all(|byte| [0, 0x90, 0xcc].contains(byte));
    if image.read(start, (end - start) as usize).is_some_and(is_padding) { start } else { end }
}
