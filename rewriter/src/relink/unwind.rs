//! Unwind tables for the new places of code, and where those tables go.
//!
//! **Method.** Every fragment, and every range that stayed, is described to the writers as runs of input bytes at output addresses. The
//! three sections keep the space that they had, as one pool; padding behind the segment's last byte counts as theirs. What the pool can't
//! take goes to what the new text left free, to padding behind the text, or to the overflow, largest section first.

mod named;

use std::borrow::Cow;

use lifter::Image;
use lifter::address::Va;
use lifter::elf::Unwind;
use lifter::elf::eh_frame::CieData;
use lifter::elf::lsda::Lsda;
use lifter::entity::{Fde, SecondaryMap};
use lifter::ir::{BlockFlags, Program};
use lifter::x86::padding_len;
use object::elf;
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use crate::clones::CloneId;
use crate::encode::{Run, Shapes};
use crate::error::{Error, Result};
use crate::materialize::OutProgram;
use crate::plan::{Temperature, Throws};
use crate::relink::addresses::Addresses;
use crate::relink::eh_frame::{Describe, Piece, UnwindFragment, UnwindLayout};
use crate::relink::place::Placement;
use crate::relink::space::{Interval, PAGE, Space};
pub(crate) use named::{Named, TERMINATOR, named};

/// The sections that hold unwind tables, in the order of `Places`.
pub(crate) const SECTIONS: [&str; 3] = [".eh_frame_hdr", ".eh_frame", ".gcc_except_table"];
const ENTRIES: usize = 1;
pub(crate) const EXCEPTION_TABLES: usize = 2;

/// New addresses and sizes of the three sections; `None` where the input has no such section.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) sections: [Option<(Va, u64)>; 3],
    /// Segments that grow into the padding behind them: (index, new end).
    pub(crate) grown: Vec<(usize, Va)>,
    /// Where the text's section ends now, if its tail was given away.
    pub(crate) text_end: Option<Va>,
    /// Where in `.eh_frame` entries have to begin, ascending; its size is an upper bound until they do.
    pub(crate) begins: Vec<Va>,
    /// Where a terminator of `.eh_frame` stands by itself.
    pub(crate) terminators: Vec<Va>,
    /// What is left of the sections' old space.
    pub(crate) free: Vec<Interval>,
    /// What registers the entries follows them to where the section begins.
    pub(crate) moves_registered: bool,
    /// Exception tables that are not understood stay where they are, and the input's section with them.
    pub(crate) keeps_tables: bool,
}

impl Places {
    /// Room in a segment that is only read, behind all that it has: what lies there stays as far from the file's beginning as from the segment's, where libunwind looks for symbols and hash tables. `None` if its last page is full.
    pub(crate) fn behind(&mut self, image: &Image<'_>, segment: usize, size: u64) -> Option<Va> {
        let grown = self.grown.iter().find(|grown| grown.0 == segment).map(|grown| grown.1);
        let at = grown.unwrap_or(image.segments[segment].end()).align_up(ALIGN);
        if at + size > padding_end(image, segment)? {
            return None;
        }
        self.grown.retain(|grown| grown.0 != segment);
        self.grown.push((segment, at + size));
        Some(at)
    }

    /// Lets entries begin where they have to.
    pub(crate) fn begin_entries(&mut self, tables: &mut UnwindLayout<'_>) -> Result<()> {
        let Some((at, reserved)) = self.sections[ENTRIES].filter(|_| !self.begins.is_empty()) else { return Ok(()) };
        tables.begin_at(at, &self.begins)?;
        let size = tables.eh_frame_len;
        if size > reserved {
            return Err(Error::UnwindTablesNamed);
        }
        self.sections[ENTRIES] = Some((at, size));
        self.free.push(Interval { start: at + size, end: at + reserved });
        Ok(())
    }

    /// Where the entries are that start-up code registers, if that code has to follow them.
    pub(crate) fn registered(&self) -> Option<Va> {
        self.sections[ENTRIES].filter(|_| self.moves_registered).map(|(at, _)| at)
    }

    /// Whether a section of this index is written anew, so that its old bytes are free.
    pub(crate) fn renews(&self, index: usize) -> bool {
        !(self.keeps_tables && index == EXCEPTION_TABLES)
    }
}

/// Output code that one unwind entry may cover: fragments that lie side by side, or stretches that stay.
#[derive(Debug)]
pub(crate) struct Covered<'a> {
    start: Va,
    len: u32,
    /// Ascending.
    members: SmallVec<[Member<'a>; 1]>,
}

#[derive(Copy, Clone, Debug)]
enum Member<'a> {
    Moved { at: Va, runs: &'a [Run], clone: Option<CloneId> },
    Kept { start: Va, end: Va },
}

impl Covered<'_> {
    /// Code that stays.
    fn kept(start: Va, end: Va) -> Self {
        Covered { start, len: (end - start) as u32, members: smallvec![Member::Kept { start, end }] }
    }
}

impl Describe for Covered<'_> {
    fn describe(&self) -> Cow<'_, UnwindFragment> {
        let mut pieces = Vec::new();
        for member in &self.members {
            match *member {
                Member::Kept { start, end } => pieces.push(Piece::in_place(start, end)),
                Member::Moved { at, runs, clone } => pieces.extend(runs.iter().map(|run| Piece {
                    old_start: run.old_start,
                    old_len: run.old_len,
                    new_start: at + u64::from(run.offset),
                    new_len: run.len,
                    is_new: run.is_new,
                    is_quiet: run.is_quiet,
                    deeper: run.deeper,
                    clone,
                })),
            }
        }
        Cow::Owned(UnwindFragment { start: self.start, len: self.len, pieces })
    }
}

/// All output code, as it is described to the unwind writers.
pub(crate) fn covered<'a>(
    image: &Image<'_>,
    program: &Program,
    out: &OutProgram<'_>,
    shapes: &'a Shapes,
    placement: &Placement,
) -> Vec<Covered<'a>> {
    debug_assert_eq!(shapes.count(), out.fragments.len());
    let mut kept: Vec<Covered<'_>> = Vec::new();
    let mut is_covered = SecondaryMap::<Fde, bool>::new(program.unwind.fdes.len(), false);
    for range in &program.ranges {
        if let Some(fde) = range.fde {
            is_covered[fde] = true;
        }
        let stays = !program.funcs[range.func].is_movable();
        if stays && range.fde.is_some() && range.start < range.end {
            kept.push(Covered::kept(range.start, range.end));
        }
    }
    // What the lifter made no function of (an entry for code that it doesn't know) stays too.
    let uncovered = program.unwind.fdes.iter().filter(|(fde, _)| !is_covered[*fde]);
    kept.extend(uncovered.map(|(_, data)| Covered::kept(data.start, data.end)));
    // Of code without unwind entries too, and of jumps at old addresses: they may lie in what looks like alignment.
    let mut starts: Vec<Va> = kept.iter().map(|fragment| fragment.start).chain(placement.fragments.iter().copied()).collect();
    starts.extend(program.ranges.iter().filter(|range| !program.funcs[range.func].is_movable()).map(|range| range.start));
    starts.extend(program.blocks.values().filter(|data| data.flags.contains(BlockFlags::ANCHOR)).map(|data| data.start));
    starts.sort_unstable();
    let moved =
        out.fragments.iter().zip(shapes.iter()).zip(&placement.fragments).filter(|((_, shape), _)| !shape.runs.is_empty());
    let moved = moved.map(|((fragment, shape), &at)| {
        let members = smallvec![Member::Moved { at, runs: shape.runs, clone: fragment.clone }];
        (fragment.temperature == Temperature::Cold, Covered { start: at, len: shape.len, members })
    });
    let mut moved: Vec<(bool, Covered<'_>)> = moved.collect();
    if out.hot_from.is_some() || out.window_worths.is_some() {
        // What is cold lies where it fits.
        moved.sort_by_key(|(_, fragment)| fragment.start);
    }
    let mut fragments = join_cold(moved, &starts);
    if out.joins_kept_entries {
        kept = join_kept(image, kept, &starts);
    }
    fragments.extend(kept);
    fragments
}

/// Makes one of code that stays side by side, as `join_cold` does, where nothing but the input's padding is between. `starts` is where any code starts, ascending. What lies in two sections stays apart: of an
/// entry for both, who relinks the file again keeps what is said of one.
fn join_kept<'a>(image: &Image<'_>, mut kept: Vec<Covered<'a>>, starts: &[Va]) -> Vec<Covered<'a>> {
    kept.sort_by_key(|fragment| fragment.start);
    let is_padding = |start: Va, end: Va| {
        let bytes = image.read(start, (end - start) as usize);
        bytes.is_some_and(|bytes| padding_len(bytes) == bytes.len())
    };
    let mut joined: Vec<Covered<'_>> = Vec::with_capacity(kept.len());
    for fragment in kept {
        let end_of = |last: &Covered<'_>| last.start + u64::from(last.len);
        let is_in_section_of = |last: &Covered<'_>| image.section_at(last.start) == image.section_at(fragment.start);
        let goes_on = |last: &Covered<'_>| {
            is_beside(last, &fragment, starts) && is_in_section_of(last) && is_padding(end_of(last), fragment.start)
        };
        let joins = joined.last().is_some_and(goes_on);
        push(&mut joined, fragment, joins);
    }
    joined
}

/// Appends a fragment, or makes the last one go on with it.
fn push<'a>(fragments: &mut Vec<Covered<'a>>, fragment: Covered<'a>, joins: bool) {
    match fragments.last_mut().filter(|_| joins) {
        Some(last) => {
            last.len = (fragment.start - last.start) as u32 + fragment.len;
            last.members.extend(fragment.members);
        }
        None => fragments.push(fragment),
    }
}

/// Makes one of cold fragments (`true`) that lie side by side, so that one unwind entry may cover them: each entry less saves some thirty bytes, and without
/// that the entries of split functions may not fit where the input's were. Unwinders run through a longer program for it, in code that
/// seldom runs. `starts` is where any code starts, ascending.
fn join_cold<'a>(moved: Vec<(bool, Covered<'a>)>, starts: &[Va]) -> Vec<Covered<'a>> {
    let mut joined: Vec<Covered<'_>> = Vec::with_capacity(moved.len());
    let mut is_last_cold = false;
    for (is_cold, fragment) in moved {
        let joins = is_cold && is_last_cold && joined.last().is_some_and(|last| is_beside(last, &fragment, starts));
        push(&mut joined, fragment, joins);
        is_last_cold = is_cold;
    }
    joined
}

/// The most code that joined fragments have, in bytes.
const JOINED_BYTES_MAX: u64 = 4096;
/// The same where exceptions are handled by their types and may be what a program spends its time on: unwinders read an entry and its exception table from the start. Of a program that does nothing but throw
/// through functions of a hundred bytes the instructions are 26 to 34 % more with 256 bytes, 61 % with 512, and four times as many with 2,048 (`benches/records/2026-11-28-exceptions.md`).
const HANDLED_BYTES_MAX: u64 = 256;
/// Personalities that only panics and cancelled threads come by.
const PERSONALITIES_OF_THE_END: [&str; 2] = ["rust_eh_personality", "__gcc_personality_v0"];

/// By common entry, how many bytes of code may share an entry and an exception table.
pub(crate) fn joined_max(image: &Image<'_>, unwind: &Unwind, throws: Throws) -> Vec<u64> {
    // Where no handler asks for a type, exceptions are no means of the language but how programs end.
    let names_type = |lsda: &Lsda| lsda.types.iter().any(Option::is_some) || lsda.specifications.iter().any(|&byte| byte != 0);
    let with_tables = unwind.fdes.values().filter(|fde| fde.lsda.is_some_and(|lsda| names_type(&unwind.lsdas[lsda as usize])));
    let handling: FxHashSet<Va> = with_tables.filter_map(|fde| Some(unwind.cies[fde.cie as usize].personality?.1)).collect();
    let name = |slot: Va| {
        let reloc = image.dynamic_relocs.iter().find(|reloc| reloc.slot == slot && reloc.symbol != 0)?;
        Some(image.dynamic_symbols.get(reloc.symbol as usize)?.name)
    };
    let handles = |slot: Va| handling.contains(&slot) || name(slot).is_some_and(|name| !PERSONALITIES_OF_THE_END.contains(&name));
    let handled = match throws {
        Throws::Seldom => JOINED_BYTES_MAX,
        Throws::Unknown => HANDLED_BYTES_MAX,
        Throws::Dear => 0,
    };
    let max = |cie: &CieData| if cie.personality.is_some_and(|(_, at)| handles(at)) { handled } else { JOINED_BYTES_MAX };
    unwind.cies.iter().map(max).collect()
}

/// Whether there is nothing but alignment between two fragments, and both together are short.
fn is_beside(last: &Covered<'_>, next: &Covered<'_>, starts: &[Va]) -> bool {
    let end = last.start + u64::from(last.len);
    // Code of a few bytes may be all that is between.
    let is_empty = starts.get(starts.partition_point(|&start| start < end)).is_none_or(|&start| start >= next.start);
    let is_near = end <= next.start && next.start - end < 16 && is_empty;
    is_near && next.start - last.start + u64::from(next.len) <= JOINED_BYTES_MAX
}

/// The new place of a landing pad.
pub(crate) fn landing_pad(program: &Program, addresses: &Addresses<'_>, clone: Option<CloneId>, pad: Va) -> Option<Va> {
    match program.block_at(pad) {
        Some(block) => Some(addresses.block_in(clone, block)),
        // In code that is not lifted nothing moves, nor in the middle of a block of what is not understood.
        None => {
            let stays = |block| !program.funcs[program.func_of(block)].is_movable();
            program.block_containing(pad).is_none_or(stays).then_some(pad)
        }
    }
}

#[derive(Copy, Clone, Debug)]
pub(super) enum RegionKind {
    /// Of the unwind sections; the index is the segment's that may grow.
    Pool(Option<usize>),
    /// What the text leaves free at its end.
    TextTail,
    /// Padding behind the executable segment.
    Padding(usize),
}

/// In bytes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Sizes {
    /// Of the three sections; 0 for one that is not there.
    pub(crate) sections: [u64; 3],
    /// Of the common entries, with which `.eh_frame` begins.
    pub(crate) common_entries: u64,
    /// Of one other entry, at most.
    pub(crate) longest_entry: u64,
}

pub(crate) const ALIGN: u64 = 8;
/// What `.eh_frame_hdr` needs.
const HEADER_ALIGN: u64 = 4;

/// Finds room for the three sections. `named` ones keep their address or leave something harmless there.
/// With `keeps_tables`, exception tables of the input stay where they are, and new ones go elsewhere.
pub(crate) fn place(image: &Image<'_>, sizes: &Sizes, named: &Named, keeps_tables: bool, space: &mut Space) -> Result<Places> {
    let mut regions = pools(image, keeps_tables);
    let mut places = Places { keeps_tables, text_end: space.text_end, ..Places::default() };
    if !named.entries.is_empty() && sizes.sections[ENTRIES] > 0 {
        named::keep_entries(image, named, sizes, &mut regions, &mut places)?;
    }
    let sizes = sizes.sections;
    let is_open = |index: usize, places: &Places| places.sections[index].is_none() && places.renews(index);
    for index in (0..SECTIONS.len()).filter(|&index| named.sections[index]) {
        let is_registered = index == ENTRIES && !named.entries.is_empty();
        if is_open(index, &places) && !is_registered {
            named::keep_named(image, index, sizes[index], &mut regions, &mut places)?;
        }
    }
    if let Some(tail) = space.tail() {
        regions.push((tail, RegionKind::TextTail));
    }
    regions.extend(executable_padding(image, keeps_tables));
    let mut order: Vec<usize> = (0..SECTIONS.len()).filter(|&index| places.sections[index].is_none()).collect();
    // Where one region takes all of them, those that can still move when the code is fixed come last.
    let all: u64 = sizes.iter().map(|size| size.next_multiple_of(ALIGN)).sum();
    let has_room = |(region, _): &(Interval, RegionKind)| region.start.align_up(ALIGN) + all <= region.end;
    let is_roomy = regions.iter().any(|region| matches!(region.1, RegionKind::Pool(_)) && has_room(region));
    order.sort_by_key(|&i| (is_roomy && i != EXCEPTION_TABLES, std::cmp::Reverse(sizes[i])));
    for index in order {
        let size = sizes[index];
        if image.section_named(SECTIONS[index]).is_none() {
            // A search table is no one's if the input has none.
            if size > 0 && SECTIONS[index] != ".eh_frame_hdr" {
                return Err(Error::Inconsistent(format!("{} has contents but no section", SECTIONS[index])));
            }
            continue;
        }
        // Without entries it stays where it is.
        let align = if index == 0 && sizes[ENTRIES] == 0 { HEADER_ALIGN } else { ALIGN };
        let fits = regions
            .iter_mut()
            .filter(|(region, _)| region.start.align_up(align) + size <= region.end)
            .min_by_key(|(region, kind)| (!matches!(kind, RegionKind::Pool(_)), region.len()));
        let at = match fits {
            Some((region, kind)) => {
                let at = region.start.align_up(align);
                match *kind {
                    RegionKind::TextTail => {
                        places.text_end.get_or_insert(region.start);
                    }
                    RegionKind::Pool(Some(segment)) | RegionKind::Padding(segment) => {
                        places.grown.push((segment, at + size));
                    }
                    RegionKind::Pool(None) => {}
                }
                region.start = at + size;
                at
            }
            None => space.overflow.take(size, ALIGN),
        };
        places.sections[index] = Some((at, size));
    }
    if places.text_end.is_some() {
        space.close_tail();
    }
    let is_own = |kind: &RegionKind| !matches!(kind, RegionKind::Padding(_));
    places.free = regions.iter().filter(|(_, kind)| is_own(kind)).map(|&(region, _)| region).collect();
    places.grown.retain(|&(segment, end)| end > image.segments[segment].end());
    places.grown.sort();
    // Of several growths of one segment the last, highest one counts.
    places.grown.reverse();
    places.grown.dedup_by_key(|(segment, _)| *segment);
    Ok(places)
}

/// The space of the unwind sections, neighbours joined, with the padding that follows the last one.
fn pools(image: &Image<'_>, keeps_tables: bool) -> Vec<(Interval, RegionKind)> {
    let renewed = if keeps_tables { &SECTIONS[..EXCEPTION_TABLES] } else { &SECTIONS[..] };
    let mut own: Vec<Interval> = renewed
        .iter()
        .filter_map(|name| image.section_named(name))
        .map(|id| &image.sections[id])
        .filter(|s| s.is_alloc() && s.has_bytes())
        .map(|s| Interval { start: s.sh_addr, end: s.end() })
        .collect();
    own.sort_by_key(|i| i.start);
    let mut pools: Vec<(Interval, RegionKind)> = Vec::new();
    for interval in own {
        let reach = free_end(image, interval.end);
        let kind = match reach {
            Some((_, segment)) => RegionKind::Pool(segment),
            None => RegionKind::Pool(None),
        };
        let end = reach.map_or(interval.end, |(end, _)| end);
        match pools.last_mut() {
            Some((last, last_kind)) if last.end >= interval.start => {
                last.end = end;
                *last_kind = kind;
            }
            _ => pools.push((Interval { start: interval.start, end }, kind)),
        }
    }
    pools
}

/// How far the space behind `end` is free: up to the next section of the segment, or, where `end` is the segment's, up to the end of
/// its last page (and then the segment's index).
fn free_end(image: &Image<'_>, end: Va) -> Option<(Va, Option<usize>)> {
    let (index, segment) = image.segments.iter().enumerate().find(|(_, s)| s.is_load() && s.p_vaddr < end && end <= s.end())?;
    let next = image
        .sections
        .values()
        .filter(|s| s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0 && s.sh_addr >= end)
        .map(|s| s.sh_addr)
        .min();
    match next {
        Some(next) if next < segment.end() => Some((next, None)),
        _ => Some((padding_end(image, index)?, Some(index))),
    }
}

/// One past the bytes that a read-only segment can grow to without moving anything, in memory or in the file.
fn padding_end(image: &Image<'_>, index: usize) -> Option<Va> {
    let segment = &image.segments[index];
    if segment.is_writable() || segment.p_filesz != segment.p_memsz {
        return None;
    }
    let file_end = segment.p_offset.0 + segment.p_filesz;
    let next_in_file = image.loads().filter(|s| s.p_filesz > 0 && s.p_offset.0 >= file_end).map(|s| s.p_offset.0).min()?;
    let in_file = segment.end() + (next_in_file - file_end);
    let next_page = image.loads().filter(|s| s.p_vaddr >= segment.end()).map(|s| s.p_vaddr.0 & !(PAGE - 1)).min();
    let in_memory = Va(next_page.unwrap_or(u64::MAX)).min(segment.end().align_up(PAGE));
    Some(in_file.min(in_memory))
}

fn executable_padding(image: &Image<'_>, keeps_tables: bool) -> Vec<(Interval, RegionKind)> {
    let executable = image.segments.iter().enumerate().filter(|(_, s)| s.is_load() && s.is_executable());
    executable
        .filter_map(|(index, s)| {
            let interval = Interval { start: s.end(), end: padding_end(image, index)? };
            // Where the unwind tables end the executable segment, its padding is theirs already.
            let is_pool =
                pools(image, keeps_tables).iter().any(|(pool, _)| pool.end > interval.start && pool.start < interval.end);
            (interval.len() > 0 && !is_pool).then_some((interval, RegionKind::Padding(index)))
        })
        .collect()
}

/// Whether a section is one of the three.
pub(crate) fn index_of(name: &str, sh_type: u32) -> Option<usize> {
    let is_content = sh_type == elf::SHT_PROGBITS || sh_type == elf::SHT_X86_64_UNWIND;
    is_content.then(|| SECTIONS.iter().position(|s| *s == name)).flatten()
}

#[cfg(test)]
mod tests {
    //! Which fragments share an entry.

    use super::*;

    fn joined(parts: &[(u64, u32, Temperature)], starts: &[Va]) -> Vec<(u64, u32, usize)> {
        let fragment = |&(start, len, temperature): &(u64, u32, Temperature)| {
            let fragment = Covered::kept(Va(start), Va(start) + u64::from(len));
            (temperature == Temperature::Cold, fragment)
        };
        let joined = join_cold(parts.iter().map(fragment).collect(), starts);
        joined.iter().map(|fragment| (fragment.start.0, fragment.len, fragment.members.len())).collect()
    }

    #[test]
    fn cold_neighbors_become_one_and_others_stay_apart() {
        use Temperature::{Cold, Hot};
        let parts = [(0x100, 8, Hot), (0x108, 8, Hot), (0x110, 8, Cold), (0x11c, 4, Cold), (0x140, 8, Cold), (0x148, 8, Hot)];
        assert_eq!(joined(&parts, &[]), [(0x100, 8, 1), (0x108, 8, 1), (0x110, 16, 2), (0x140, 8, 1), (0x148, 8, 1)]);
    }

    #[test]
    fn what_is_joined_stays_short() {
        let parts: Vec<(u64, u32, Temperature)> = (0..16).map(|i| (0x1000 + 512 * i, 512, Temperature::Cold)).collect();
        assert_eq!(joined(&parts, &[]), [(0x1000, 4096, 8), (0x2000, 4096, 8)]);
    }

    #[test]
    fn code_that_stays_between_two_fragments_keeps_them_apart() {
        let parts = [(0x100, 8, Temperature::Cold), (0x110, 8, Temperature::Cold)];
        assert_eq!(joined(&parts, &[Va(0x10c)]), [(0x100, 8, 1), (0x110, 8, 1)]);
        assert_eq!(joined(&parts, &[Va(0xf0), Va(0x118)]), [(0x100, 24, 2)]);
    }
}
