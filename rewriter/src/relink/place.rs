//! Where each fragment and each copied table goes.
//!
//! **Method.** Fragments take the old text's place in plan order, hot ones so that they span no more cache lines than they need; cold and unknown ones may fill holes. Tables that may not be overwritten are
//! copied into what is left.
//!
//! **When a table is copied.** Overwriting is allowed where nothing else names its bytes and the count is proven, or at a fixed address each word leads inside of a function; otherwise the words
//! behind a wrong count would be someone's data. A copy that is too long harms nothing. Tables of addresses that a relocation names
//! word by word (`TableBase::Absolute` in *replace* mode) are slots, and follow as such. A clone has a copy of its own of each table that it names.

use std::collections::BTreeMap;

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::SectionData;
use lifter::entity::{Block, EntityId, SecondaryMap, Table};
use lifter::ir::{Program, RefTarget, TableBase};

use crate::clones::CloneId;
use crate::encode::Shapes;
use crate::materialize::{Out, OutFragment, OutProgram};
use crate::plan::{Filling, Temperature};
use crate::relink::space::{Alignment, Interval, Overflow, PAGE, Space, free_text, line_cost};
use crate::relink::unwind::Places;
use crate::relink::windows::Queue;

/// What becomes of a table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum TablePlace {
    /// Nothing to do: its words are slots, or nothing that it names moves.
    Untouched,
    InPlace,
    CopiedTo(Va),
}

#[derive(Debug)]
pub(crate) struct Placement {
    /// Of each fragment's first byte.
    pub(crate) fragments: Vec<Va>,
    pub(crate) tables: SecondaryMap<Table, TablePlace>,
    /// The copies of clones.
    pub(crate) clone_tables: BTreeMap<(CloneId, Table), Va>,
    /// Where copied tables are that got a section of their own, so that whoever reads the output knows them for data.
    pub(crate) copies: Option<(Va, Va)>,
    pub(crate) fitted: Fitted,
    pub(crate) space: Space,
}

/// Fragments that begin further on so that fewer of their branches lie on the ends of decode windows.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Fitted {
    pub num_fragments: u64,
    /// Left out before them.
    pub bytes: u64,
}

/// Places all code, then all tables that are copied.
pub(crate) fn place(
    image: &Image<'_>,
    program: &Program,
    out: &OutProgram<'_>,
    shapes: &Shapes,
    overflow: Overflow,
) -> Placement {
    let code = image.sections.iter().filter(|(id, _)| image.is_movable_code_section(*id));
    let ends: Vec<Va> = code.map(|(_, section)| section.end()).collect();
    let (mut tables, copied) = places_of_tables(program, out);
    let mut of_clones = clone_tables(program, out);
    let tables_of_clones: Vec<Table> = of_clones.keys().map(|key| key.1).collect();
    let free = free_text(image, program);
    let mut try_with = |free: Vec<Interval>, unused: Vec<Interval>, fits_windows: bool| {
        let mut space = Space::new(free, &ends, overflow);
        space.unused = unused;
        let (fragments, fitted) = place_fragments(out, shapes, fits_windows, &mut space);
        let copies = place_copies(program, &copied, &mut tables, &mut of_clones, &mut space);
        Placement { fragments, tables: tables.clone(), clone_tables: of_clones.clone(), copies, fitted, space }
    };
    let copies = copied.iter().copied().chain(tables_of_clones);
    let copies_len = copies.map(|table| copy_len(program, table)).sum::<u64>() + COPY_ALIGN;
    // With what is left over in few pieces.
    let mut in_few_pieces = |fits_windows: bool| {
        let needed = code_len(out, shapes, fits_windows, overflow) + copies_len;
        // How much stays unused before pinned code is only known when all is placed; what fits windows is not worth as much of it.
        let rests = if fits_windows { &RESTS[..RESTS_FOR_WINDOWS] } else { &RESTS[..] };
        rests
            .iter()
            .map_while(|rests| {
                let mut left = free.clone();
                let unused = take_away(image, &mut left, needed + rests, out.filling);
                (!unused.is_empty()).then(|| try_with(left, unused, fits_windows))
            })
            .find(|placement| placement.space.overflow.is_empty())
    };
    let fits_windows = out.window_worths.is_some();
    // What fits windows leaves bytes out, and holes between pinned code empty: there may be no room for that.
    if out.filling != Filling::FromStart {
        let with_windows = if fits_windows { in_few_pieces(true) } else { None };
        if let Some(placement) = with_windows.or_else(|| in_few_pieces(false)) {
            return placement;
        }
    }
    let placement = try_with(free.clone(), Vec::new(), fits_windows);
    if fits_windows && !placement.space.overflow.is_empty() { try_with(free.clone(), Vec::new(), false) } else { placement }
}

/// Where each fragment goes, and what was left out before some so that they fit windows.
fn place_fragments(out: &OutProgram<'_>, shapes: &Shapes, fits_windows: bool, space: &mut Space) -> (Vec<Va>, Fitted) {
    let mut fitted = Fitted::default();
    if let Some(from) = out.hot_from {
        return (place_around(out, shapes, from, space), fitted);
    }
    let mut places = vec![Va(0); shapes.count()];
    let mut queue = Queue::new(out, shapes, fits_windows);
    while let Some(next) = queue.take(space.next_in_order()) {
        let fragment = &out.fragments[next.index];
        let (len, align) = (u64::from(shapes.len_of(next.index)), alignment(out, fragment));
        let is_hot = fragment.temperature == Temperature::Hot;
        let cost = |at: Va| next.cost_at(at) + if is_hot { line_cost(at, len) } else { 0 };
        places[next.index] = if !is_hot && next.is_indifferent() {
            take_cold(space, len, align)
        } else {
            let (at, skipped) = space.take_cheap_in_order(len, align, cost);
            if !next.is_indifferent() && skipped > 0 {
                fitted.num_fragments += 1;
                fitted.bytes += skipped;
            }
            at
        };
    }
    (places, fitted)
}

/// It is the first block that is aligned, not what stands before it.
fn alignment(out: &OutProgram<'_>, fragment: &OutFragment) -> Alignment {
    Alignment { to: u64::from(fragment.align), after: u64::from(out.lead_len(fragment)) }
}

/// Places what is hot in order, from an address on, and what is not wherever it fits, the longest first.
fn place_around(out: &OutProgram<'_>, shapes: &Shapes, from: Va, space: &mut Space) -> Vec<Va> {
    let size = |index: usize| (u64::from(shapes.len_of(index)), alignment(out, &out.fragments[index]));
    let (hot, mut others): (Vec<usize>, Vec<usize>) =
        (0..shapes.count()).partition(|&index| out.fragments[index].temperature == Temperature::Hot);
    others.sort_by_key(|&index| std::cmp::Reverse(shapes.len_of(index)));
    let mut places = vec![Va(0); shapes.count()];
    space.begin_at(from);
    for index in hot {
        let (len, align) = size(index);
        places[index] = space.take_lines_in_order(len, align);
    }
    space.give_up_order();
    for index in others {
        let (len, align) = size(index);
        places[index] = space.take_anywhere(len, align);
    }
    places
}

/// What becomes of each table, but for those that have to be copied, which come besides.
fn places_of_tables(program: &Program, out: &OutProgram<'_>) -> (SecondaryMap<Table, TablePlace>, Vec<Table>) {
    let mut tables = SecondaryMap::new(program.tables.len(), TablePlace::Untouched);
    let used = used_tables(program, out);
    let mut copied: Vec<Table> = Vec::new();
    for (table, data) in program.tables.iter() {
        if !used[table] {
            continue;
        }
        // Words with addresses are slots, or unseen pointers that anchors answer, unless all their readers are known.
        let is_words = data.base == TableBase::Absolute && (program.is_replaceable() || !data.is_exclusive);
        let names_moved = program.targets_of(table).iter().any(|&b| out.placed[b].is_some())
            || matches!(data.base, TableBase::Code(b) if out.placed[b].is_some());
        tables[table] = if is_words || !names_moved {
            TablePlace::Untouched
        } else if data.is_exclusive {
            TablePlace::InPlace
        } else {
            copied.push(table);
            continue;
        };
    }
    (tables, copied)
}

/// Bytes of all fragments, one after the other from where all of them are aligned.
fn code_len(out: &OutProgram<'_>, shapes: &Shapes, fits_windows: bool, overflow: Overflow) -> u64 {
    let all = Interval { start: Va(0), end: Va(u64::MAX / 2) };
    let mut space = Space::new(vec![all], &[], overflow);
    place_fragments(out, shapes, fits_windows, &mut space);
    space.next_in_order().0
}

/// Takes away what `needed` bytes leave free.
fn take_away(image: &Image<'_>, free: &mut [Interval], needed: u64, filling: Filling) -> Vec<Interval> {
    let spare = free.iter().map(|interval| interval.len()).sum::<u64>().checked_sub(needed);
    match (spare, filling) {
        (None, _) | (_, Filling::FromStart) => Vec::new(),
        (Some(spare), Filling::FromEnd) => Vec::from_iter(take_front(image, free, spare)),
        (Some(spare), Filling::AroundHoles) => take_rooms(free, spare),
    }
}

/// Takes the ends of the largest rooms between what is pinned, as long as there is enough left over for a cut.
fn take_rooms(free: &mut [Interval], mut spare: u64) -> Vec<Interval> {
    free.sort_by_key(|interval| (std::cmp::Reverse(interval.len()), interval.start));
    let mut taken = Vec::new();
    for room in free.iter_mut().take(ROOMS_MAX) {
        let len = spare.min(room.len());
        if len == 0 || len < PAGE && !taken.is_empty() {
            break;
        }
        let start = Va(room.end.0 - len);
        taken.push(Interval { start, end: room.end });
        room.end = start;
        spare -= len;
    }
    free.sort_by_key(|interval| interval.start);
    taken
}

/// Takes it where the old text begins a segment and something stays behind it.
fn take_front(image: &Image<'_>, free: &mut [Interval], spare: u64) -> Option<Interval> {
    let first = free.first()?.start;
    let segment = image.segment_at(first).filter(|_| image.has_section_headers)?;
    let in_segment = |s: &SectionData<'_>| {
        s.is_alloc() && !s.is_tls_bss() && s.sh_size > 0 && segment.p_vaddr <= s.sh_addr && s.sh_addr < segment.end()
    };
    let (text, section) = image.sections.iter().filter(|(_, s)| in_segment(s)).min_by_key(|(_, s)| s.sh_addr)?;
    let stays_behind = image.sections.iter().any(|(id, s)| in_segment(s) && id != text && !image.is_movable_code_section(id));
    if section.sh_addr != first || !stays_behind {
        return None;
    }
    let front = free.first_mut()?;
    let start = Va((front.start + spare.min(front.len())).0 & !(FRAGMENT_ALIGN_MAX - 1));
    if start <= front.start {
        return None;
    }
    let taken = Interval { start: front.start, end: start };
    front.start = start;
    Some(taken)
}

/// In so many places room is left for cuts, each of which takes a program header.
const ROOMS_MAX: usize = 4;
/// What may stay unused before pinned code.
const RESTS: [u64; 5] = [0, 1 << 10, 1 << 12, 1 << 14, 1 << 16];
/// So many of these are tried where code fits windows.
const RESTS_FOR_WINDOWS: usize = 3;
/// No fragment asks for more.
const FRAGMENT_ALIGN_MAX: u64 = 64;
/// More than the words of any table ask for.
const COPY_ALIGN: u64 = 8;

fn copy_len(program: &Program, table: Table) -> u64 {
    program.tables[table].byte_len().next_multiple_of(COPY_ALIGN)
}

/// Copies follow each other where that needs no segment more, and else fill what is left.
fn place_copies(
    program: &Program,
    copied: &[Table],
    places: &mut SecondaryMap<Table, TablePlace>,
    of_clones: &mut BTreeMap<(CloneId, Table), Va>,
    space: &mut Space,
) -> Option<(Va, Va)> {
    let all = copied.iter().copied().chain(of_clones.keys().map(|key| key.1));
    let size: u64 = all.map(|table| copy_len(program, table)).sum();
    let run = if size == 0 { None } else { space.take_together(size, COPY_ALIGN) };
    let mut next = run;
    let mut take = |table: Table| {
        let data = &program.tables[table];
        let at = next.unwrap_or_else(|| space.take_anywhere(data.byte_len(), u64::from(data.entry_size)));
        next = next.map(|at| at + copy_len(program, table));
        at
    };
    for &table in copied {
        places[table] = TablePlace::CopiedTo(take(table));
    }
    for (&(_, table), at) in of_clones {
        *at = take(table);
    }
    run.map(|start| (start, start + size))
}

/// The tables that clones name, not yet placed.
fn clone_tables(program: &Program, out: &OutProgram<'_>) -> BTreeMap<(CloneId, Table), Va> {
    let mut named = BTreeMap::new();
    for fragment in &out.fragments {
        let Some(clone) = fragment.clone else { continue };
        for index in fragment.blocks.clone() {
            for r in program.block_refs(out.origins[Out::new(index as usize)]) {
                if let RefTarget::Table(table) = r.target {
                    named.insert((clone, table), Va(0));
                }
            }
        }
    }
    named
}

/// Brings tables back that alone would be behind the image, if the unwind tables left room for all of them: a segment more is dear.
pub(crate) fn recall_copies(image: &Image<'_>, program: &Program, placement: &mut Placement, places: &mut Places) {
    let Overflow { start, end, .. } = placement.space.overflow;
    let size_of = |table: Table| program.tables[table].byte_len().next_multiple_of(COPY_ALIGN);
    let is_behind = |place: TablePlace| matches!(place, TablePlace::CopiedTo(va) if va >= start);
    let behind: Vec<Table> = program.tables.keys().filter(|&table| is_behind(placement.tables[table])).collect();
    let size: u64 = behind.iter().map(|&table| size_of(table)).sum();
    let has_code = placement.fragments.iter().any(|&at| at >= start);
    let has_unwind = places.sections.iter().flatten().any(|&(at, _)| at >= start);
    if !placement.clone_tables.is_empty()
        || behind.is_empty()
        || start == end
        || has_code
        || has_unwind
        || placement.copies.is_some_and(|(at, _)| at < start)
    {
        return;
    }
    let fits = |region: &&mut Interval| {
        let at = region.start.align_up(COPY_ALIGN);
        let segment_end = image.segment_at(region.start).map_or(region.start, |segment| segment.end());
        at + size <= region.end.min(segment_end)
    };
    let Some(region) = places.free.iter_mut().find(fits) else { return };
    let from = region.start.align_up(COPY_ALIGN);
    let mut at = from;
    for table in behind {
        placement.tables[table] = TablePlace::CopiedTo(at);
        at = at + size_of(table);
    }
    region.start = at;
    placement.copies = Some((from, at));
    placement.space.overflow.end = start;
}

/// Small fragments first fill holes; others keep their order.
fn take_cold(space: &mut Space, len: u64, align: Alignment) -> Va {
    const SMALL: u64 = 512;
    let hole = if len <= SMALL { space.take_hole(len, align) } else { None };
    hole.unwrap_or_else(|| space.take_in_order(len, align))
}

/// Tables that some code of the output still names: moved code, or pinned code that follows a copy.
fn used_tables(program: &Program, out: &OutProgram<'_>) -> SecondaryMap<Table, bool> {
    let mut used = SecondaryMap::new(program.tables.len(), false);
    let is_there = |block: Block| out.placed[block].is_some() || !program.funcs[program.func_of(block)].is_movable();
    for block in program.blocks.keys().filter(|&block| is_there(block)) {
        for r in program.block_refs(block) {
            if let RefTarget::Table(table) = r.target {
                used[table] = true;
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs = Vec<(u64, u64)>;

    fn rooms(spare: u64) -> (Pairs, Pairs) {
        let interval = |(start, end)| Interval { start: Va(start), end: Va(end) };
        let pair = |interval: &Interval| (interval.start.0, interval.end.0);
        let mut free = [(0x1000, 0x5000), (0x1_0000, 0x2_0000), (0x3_0000, 0x3_8000)].map(interval);
        let taken = take_rooms(&mut free, spare);
        (taken.iter().map(pair).collect(), free.iter().map(pair).collect())
    }

    #[test]
    fn what_is_left_over_is_the_ends_of_the_largest_rooms() {
        let left = vec![(0x1000, 0x3000), (0x1_0000, 0x1_0000), (0x3_0000, 0x3_0000)];
        assert_eq!(rooms(0x1_a000), (vec![(0x1_0000, 0x2_0000), (0x3_0000, 0x3_8000), (0x3000, 0x5000)], left));
    }

    #[test]
    fn less_than_a_page_is_no_room_more_but_may_be_the_only_one() {
        let left = |end| vec![(0x1000, 0x5000), (0x1_0000, end), (0x3_0000, 0x3_8000)];
        assert_eq!(rooms(0x1_0800), (vec![(0x1_0000, 0x2_0000)], left(0x1_0000)));
        assert_eq!(rooms(0x800), (vec![(0x1_f800, 0x2_0000)], left(0x1_f800)));
        assert_eq!(rooms(0), (vec![], left(0x2_0000)));
    }
}
