//! Program headers of the output, and the entries more that added segments need.
//!
//! **Problem.** The program header table is followed at once by `.interp` and the notes; there is no room for an entry more, and moving
//! the table away breaks `strip` and kernels before 5.18 (which compute `AT_PHDR` from the first segment).
//!
//! **Method.** Entries that say nothing are given up: empty ones, and the property note, which linkers write as `PT_NOTE` and again as
//! `PT_GNU_PROPERTY`. Where these do not do, what follows the table and is only found through program headers (`.interp`, the
//! notes) or through the dynamic section (hash tables, `.dynsym`) makes room ([`head`](super::head)), and the table grows over its place. Where something else follows it (code, in the libraries of many Python packages), the entry goes that tells
//! where the build-id is, if a section tells it too: no loader asks for it, but who looks for build-ids in memory or in a core file does not find this one any more, of which the user is told.
//!
//! Sources: gABI chapter 5 (program header); psABI x86-64 §3.3 and the GNU property extension for `PT_GNU_PROPERTY`.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{BUILD_ID, SectionData, Segment};
use object::elf;

use crate::error::{Error, Result};
use crate::relink::head::Moved;
use crate::relink::space::{Overflow, PAGE};

/// Bytes of an `Elf64_Phdr`.
pub(crate) const ENTRY: u64 = 56;

/// How the table gets more entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    /// Entries that are given up, by index, ascending.
    dropped: Vec<usize>,
    /// What is behind the table and makes room.
    pub(crate) moves: Option<Behind>,
    /// One of those that are given up tells where the build-id is.
    pub(crate) gives_up_build_id: bool,
}

/// Bytes behind the table that are in its way.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    pub(crate) start: Va,
    pub(crate) end: Va,
    /// Up to where the table needs them.
    pub(crate) needed: Va,
}

/// Entries that say nothing, those first that say least.
pub(crate) fn idle(image: &Image<'_>) -> impl Iterator<Item = usize> {
    let is_empty = |s: &Segment| s.p_type == elf::PT_NULL;
    let empty = image.segments.iter().enumerate().filter(move |(_, s)| is_empty(s)).map(|(index, _)| index);
    empty.chain(redundant_note(image))
}

/// Finds room for `count` entries; `Err` where the file has none.
pub(crate) fn find_slots(image: &Image<'_>, count: usize) -> Result<Slots> {
    let mut dropped: Vec<usize> = idle(image).take(count).collect();
    dropped.sort_unstable();
    let missing = count - dropped.len();
    let moves = if missing == 0 { Ok(None) } else { room_behind(image, missing as u64 * ENTRY) };
    match (moves, build_id_note(image)) {
        (Err(_), Some(note)) if missing == 1 => {
            dropped.push(note);
            dropped.sort_unstable();
            Ok(Slots { dropped, moves: None, gives_up_build_id: true })
        }
        (moves, _) => Ok(Slots { dropped, moves: moves?, gives_up_build_id: false }),
    }
}

/// The entry that names just what the section of the build-id does.
fn build_id_note(image: &Image<'_>) -> Option<usize> {
    let section = &image.sections[image.section_named(BUILD_ID).filter(|_| image.has_section_headers)?];
    let is_it = |s: &Segment| s.p_type == elf::PT_NOTE && s.p_vaddr == section.sh_addr && s.p_filesz == section.sh_size;
    image.segments.iter().position(is_it)
}

/// Whether `count` entries more fit behind the table as it is.
pub(crate) fn has_room_behind(image: &Image<'_>, count: usize) -> bool {
    matches!(room_behind(image, count as u64 * ENTRY), Ok(None))
}

/// Where the table ends in memory.
pub(crate) fn table_end(image: &Image<'_>) -> Option<Va> {
    let at = image.e_phoff;
    let around = image.loads().find(|s| holds(s, at))?;
    Some(around.p_vaddr + (at.0 - around.p_offset.0) + ENTRY * image.segments.len() as u64)
}

/// The segment that the table is in.
pub(crate) fn segment_of_table(image: &Image<'_>) -> Option<usize> {
    image.segments.iter().position(|s| holds(s, image.e_phoff))
}

/// Whether a segment is loaded, or is the program header table.
pub(crate) fn is_load_or_headers(segment: &Segment) -> bool {
    [elf::PT_LOAD, elf::PT_PHDR].contains(&segment.p_type)
}

/// Whether a segment is loaded from a place of the file.
fn holds(segment: &Segment, at: FileOffset) -> bool {
    segment.is_load() && segment.p_offset <= at && at.0 < segment.p_offset.0 + segment.p_filesz
}

/// Whether the table can end `size` bytes later in what is loaded: its segment reaches so far, or nothing else is there, in the file or in memory.
fn is_loaded_with(image: &Image<'_>, size: u64) -> bool {
    let Some(around) = image.loads().find(|s| holds(s, image.e_phoff)) else { return false };
    let offset_end = image.e_phoff.0 + ENTRY * image.segments.len() as u64 + size;
    let end = around.p_vaddr + (offset_end - around.p_offset.0);
    let is_clear = |s: &Segment| {
        let lies_before = s.p_vaddr <= around.p_vaddr && s.p_offset <= around.p_offset;
        lies_before || s.p_filesz == 0 || end.align_up(PAGE) <= s.p_vaddr && offset_end <= s.p_offset.0
    };
    let may_grow = around.p_filesz == around.p_memsz && !around.is_writable();
    end <= around.end() || may_grow && image.loads().all(is_clear)
}

/// What has to move so that the table can grow by `size` bytes; `None` if nothing is there.
fn room_behind(image: &Image<'_>, size: u64) -> Result<Option<Behind>> {
    let table_end = table_end(image).ok_or(Error::NoProgramHeaderSlot)?;
    if !is_loaded_with(image, size) {
        return Err(Error::NoProgramHeaderSlot);
    }
    let mut behind: Vec<_> =
        image.sections.values().filter(|s| s.is_alloc() && s.sh_addr >= table_end && s.sh_size > 0).collect();
    behind.sort_by_key(|s| s.sh_addr);
    let mut end = table_end;
    for section in &behind {
        if section.sh_addr >= table_end + size {
            break;
        }
        if !is_found_through_headers(section) {
            return Err(Error::NoProgramHeaderSlot);
        }
        end = section.end();
    }
    if end == table_end {
        return if behind.is_empty() { Err(Error::NoProgramHeaderSlot) } else { Ok(None) };
    }
    // A segment that covers what moves must move whole.
    let straddles = |end: Va| {
        image
            .segments
            .iter()
            .filter(|s| !is_load_or_headers(s))
            .find(move |s| s.p_vaddr < end && s.end() > end && s.p_vaddr >= table_end)
    };
    while let Some(segment) = straddles(end) {
        end = segment.end();
    }
    let all_may_move = behind.iter().filter(|s| s.sh_addr < end).all(|s| is_found_through_headers(s));
    if !all_may_move {
        return Err(Error::NoProgramHeaderSlot);
    }
    Ok(Some(Behind { start: table_end, end, needed: table_end + size }))
}

/// Whether nothing but program headers and the dynamic section names the section, so that it may move with them.
fn is_found_through_headers(section: &SectionData<'_>) -> bool {
    [elf::SHT_NOTE, elf::SHT_HASH, elf::SHT_GNU_HASH, elf::SHT_DYNSYM].contains(&section.sh_type) || section.name == ".interp"
}

fn redundant_note(image: &Image<'_>) -> Option<usize> {
    let property = image.segments.iter().find(|s| s.p_type == elf::PT_GNU_PROPERTY)?;
    let same_place = |s: &Segment| s.p_offset == property.p_offset && s.p_filesz == property.p_filesz;
    image.segments.iter().position(|s| s.p_type == elf::PT_NOTE && same_place(s))
}

/// What changes in the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderChanges {
    /// The overflow, if anything is in it.
    pub(crate) overflow: Option<Overflow>,
    /// A segment of zero-filled memory behind everything else.
    pub(crate) zero_filled: Option<(Va, u64)>,
    pub(crate) slots: Slots,
    /// What made room for the table.
    pub(crate) moved: Vec<Moved>,
    /// `.eh_frame_hdr`'s new place and size.
    pub(crate) eh_frame_hdr: Option<(Va, u64)>,
    /// One past the last zero-filled byte that the last writable segment gets.
    pub(crate) zero_filled_end: Option<Va>,
    /// Read-only segments that grow into the padding behind them: (index, new end).
    pub(crate) grown: Vec<(usize, Va)>,
}

/// The output's table. `offset_of` maps an output address to its file offset.
pub(crate) fn build(image: &Image<'_>, changes: &HeaderChanges, offset_of: &dyn Fn(Va) -> FileOffset) -> Vec<Segment> {
    let mut segments = image.segments.clone();
    for &(index, end) in &changes.grown {
        let size = end - segments[index].p_vaddr;
        segments[index].p_filesz = size;
        segments[index].p_memsz = size;
    }
    if let Some(end) = changes.zero_filled_end
        && let Some(last) = segments.iter_mut().filter(|s| s.is_load() && s.is_writable()).max_by_key(|s| s.p_vaddr)
    {
        last.p_memsz = end - last.p_vaddr;
    }
    if let Some((at, size)) = changes.eh_frame_hdr {
        for segment in segments.iter_mut().filter(|s| s.p_type == elf::PT_GNU_EH_FRAME) {
            segment.p_vaddr = at;
            segment.p_offset = offset_of(at);
            segment.p_filesz = size;
            segment.p_memsz = size;
        }
    }
    for &Moved { start, end, to } in &changes.moved {
        let moves = |s: &Segment| !is_load_or_headers(s) && start <= s.p_vaddr && s.end() <= end;
        let of_input = image.segments.iter().zip(&mut segments).filter(|(s, _)| moves(s));
        for (before, segment) in of_input {
            segment.p_vaddr = to + (before.p_vaddr - start);
            segment.p_offset = offset_of(segment.p_vaddr);
        }
    }
    if let Some((overflow, index)) = changes.overflow.and_then(|o| o.extends.map(|index| (o, index))) {
        let size = overflow.end - segments[index].p_vaddr;
        segments[index].p_filesz = size;
        segments[index].p_memsz = size;
    }
    add_segments(&mut segments, changes);
    load_table(&mut segments, image.e_phoff);
    segments
}

/// Lets the segment that the table is in reach to its end.
fn load_table(segments: &mut [Segment], table: FileOffset) {
    let end = table.0 + ENTRY * segments.len() as u64;
    if let Some(around) = segments.iter_mut().find(|s| holds(s, table)).filter(|s| s.p_offset.0 + s.p_filesz < end) {
        around.p_filesz = end - around.p_offset.0;
        around.p_memsz = around.p_memsz.max(around.p_filesz);
    }
}

/// Puts new segments behind the last one that is loaded, and takes out the entries that are given up.
fn add_segments(segments: &mut Vec<Segment>, changes: &HeaderChanges) {
    let mut added: Vec<Segment> = Vec::new();
    added.extend(changes.overflow.filter(|overflow| overflow.extends.is_none()).map(overflow_segment));
    added.extend(changes.zero_filled.map(|(at, size)| zero_filled_segment(at, size)));
    if added.is_empty() {
        return;
    }
    let after = segments.iter().rposition(Segment::is_load).map_or(segments.len(), |i| i + 1);
    let count = added.len();
    segments.splice(after..after, added);
    for &index in changes.slots.dropped.iter().rev() {
        segments.remove(if index >= after { index + count } else { index });
    }
    let size = ENTRY * segments.len() as u64;
    for segment in segments.iter_mut().filter(|s| s.p_type == elf::PT_PHDR) {
        segment.p_filesz = size;
        segment.p_memsz = size;
    }
}

fn zero_filled_segment(at: Va, size: u64) -> Segment {
    Segment {
        p_type: elf::PT_LOAD,
        p_flags: elf::PF_R | elf::PF_W,
        // Of no bytes of the file: at its start, which is congruent to every page.
        p_offset: FileOffset(0),
        p_vaddr: at,
        p_filesz: 0,
        p_memsz: size,
        p_align: PAGE,
    }
}

fn overflow_segment(overflow: Overflow) -> Segment {
    Segment {
        p_type: elf::PT_LOAD,
        p_flags: elf::PF_R | elf::PF_X,
        p_offset: overflow.offset,
        p_vaddr: overflow.start,
        p_filesz: overflow.len(),
        p_memsz: overflow.len(),
        p_align: PAGE,
    }
}

/// The table as bytes.
pub(crate) fn encode(segments: &[Segment]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(segments.len() * ENTRY as usize);
    for s in segments {
        bytes.extend_from_slice(&s.p_type.to_le_bytes());
        bytes.extend_from_slice(&s.p_flags.to_le_bytes());
        for word in [s.p_offset.0, s.p_vaddr.0, s.p_vaddr.0, s.p_filesz, s.p_memsz, s.p_align] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}
