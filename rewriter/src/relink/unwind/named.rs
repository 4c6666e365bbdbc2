//! Unwind tables that code finds by their address.
//!
//! **Problem.** GCC's start-up code may register the entries of `.eh_frame` from one on; its address is a number in code, and so it may be a number of something else. What an unwinder
//! finds there in the output has to be an entry or a terminator, or it reads something else for entries.
//!
//! **Method.** With a search table a terminator will do: unwinders take a table that begins with one for empty, and go on to the search table. Terminators part the room that there is; where
//! the section fits in no part, it lies across such places, and the entries before them are filled up so that others begin there.
//!
//! Where the input has a terminator, nothing is registered, and nothing is in the output.
//!
//! Where nothing at all holds the address of an entry and there is no search table, nobody finds the table at run time, and it may lie anywhere: C's programs by musl, which have no unwinder.
//!
//! Otherwise, without a search table all entries have to come behind such a place. Where they don't fit, the table moves, if the lifter has shown of every number with that address that it is
//! registered: these are references then, and name where the table begins. What lay before the registered part in the input is found by the unwinder too then.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::eh_frame::entry_starts;
use lifter::ir::{Program, RefTarget};

use crate::error::{Error, Result};
use crate::relink::space::Interval;
use crate::relink::unwind::{ALIGN, ENTRIES, Places, RegionKind, SECTIONS, Sizes};

type Regions = Vec<(Interval, RegionKind)>;

/// The length of a terminator, which is zeros.
pub(crate) const TERMINATOR: u64 = 4;

/// What something else than a program header finds by its address: code that names the start of a section (which may just as well be the
/// end of the data before it), and start-up code that registers the entries of `.eh_frame` from some entry on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    pub(super) sections: [bool; 3],
    /// Where entries of `.eh_frame` begin that may be registered, ascending.
    pub(super) entries: Vec<Va>,
    /// Nothing but references to the unwind table names one of these, and they follow it.
    may_move: bool,
}

/// `has_clones`: copies of functions were made for what they are given, and the address of the table may be in them as a number.
pub(crate) fn named(image: &Image<'_>, program: &Program, has_clones: bool) -> Named {
    let sections = SECTIONS.map(|name| {
        let Some(section) = image.section_named(name).map(|id| &image.sections[id]) else { return false };
        program.refs.iter().any(|r| r.target == RefTarget::Fixed(section.sh_addr))
    });
    let mut entries = program.names_in_unwind.clone();
    if !entries.is_empty() {
        let starts = entry_starts(image);
        entries.retain(|va| starts.binary_search(va).is_ok());
    }
    let may_move = !has_clones && program.registered_table.is_some_and(|table| entries == [table]);
    Named { sections, entries, may_move }
}

/// Keeps a section whose start code names where it is, if it fits. If not, the old address must do for whoever uses it, as the end of the
/// data before it.
pub(super) fn keep_named(image: &Image<'_>, index: usize, size: u64, regions: &mut Regions, places: &mut Places) -> Result<()> {
    let Some(start) = image.section_named(SECTIONS[index]).map(|id| image.sections[id].sh_addr) else { return Ok(()) };
    if take_at(start, size, regions, places) {
        places.sections[index] = Some((start, size));
        return Ok(());
    }
    let is_end_of_data = image.sections.values().any(|s| s.is_alloc() && s.has_bytes() && s.sh_size > 0 && s.end() == start);
    if is_end_of_data { Ok(()) } else { Err(Error::UnwindTablesNamed) }
}

/// Keeps an entry or a terminator where code may register entries from, or lets that code follow. Without a search table, all entries have to come there and behind.
pub(super) fn keep_entries(
    image: &Image<'_>,
    named: &Named,
    sizes: &Sizes,
    regions: &mut Regions,
    places: &mut Places,
) -> Result<()> {
    let size = sizes.sections[ENTRIES];
    let section = image.section_named(SECTIONS[ENTRIES]).map(|id| image.sections[id].sh_addr);
    let entries = named.entries.as_slice();
    let is_kept = match (image.has_search_table(), entries) {
        (false, []) => true,
        (false, [only]) if image.read_u32(*only) == Some(0) => take_terminator(*only, regions, places),
        (has_search_table, [only]) if (!has_search_table || Some(*only) == section) && take_at(*only, size, regions, places) => {
            places.sections[ENTRIES] = Some((*only, size));
            true
        }
        (false, _) => false,
        (true, _) => keep_by_terminators(entries, sizes, regions, places),
    };
    places.moves_registered = !is_kept && named.may_move;
    if is_kept || named.may_move { Ok(()) } else { Err(Error::UnwindTablesNamed) }
}

fn keep_by_terminators(entries: &[Va], sizes: &Sizes, regions: &mut Regions, places: &mut Places) -> bool {
    let (mut parts, mut with_terminators) = (regions.clone(), places.clone());
    let is_kept = entries.iter().all(|&at| take_terminator(at, &mut parts, &mut with_terminators));
    let has_room = is_kept && first_room(&parts, sizes.sections[ENTRIES]).is_some();
    if !has_room && lie_across(entries, sizes, regions, places) {
        return true;
    }
    if is_kept {
        (*regions, *places) = (parts, with_terminators);
    }
    is_kept
}

fn take_terminator(at: Va, regions: &mut Regions, places: &mut Places) -> bool {
    places.terminators.push(at);
    take_at(at, TERMINATOR, regions, places)
}

/// Where the unwind sections' own room takes so many bytes.
fn first_room(regions: &Regions, size: u64) -> Option<Va> {
    let own = regions.iter().filter(|(_, kind)| matches!(kind, RegionKind::Pool(_)));
    own.map(|(region, _)| (region.start.align_up(ALIGN), region.end)).find(|&(at, end)| at + size <= end).map(|(at, _)| at)
}

/// Puts `.eh_frame` where entries of it will have to begin at such places, with room for filling entries up. Changes nothing if that can't be done.
fn lie_across(entries: &[Va], sizes: &Sizes, regions: &mut Regions, places: &mut Places) -> bool {
    let size = sizes.sections[ENTRIES] + entries.len() as u64 * (sizes.longest_entry + TERMINATOR);
    let Some(at) = first_room(regions, size) else { return false };
    let (inside, outside): (Vec<Va>, Vec<Va>) =
        entries.iter().partition(|&&entry| at <= entry && entry + TERMINATOR <= at + size);
    let can_begin = |entry: Va| entry == at || entry >= at + sizes.common_entries && (entry - at).is_multiple_of(TERMINATOR);
    // Another one fits between.
    let is_apart = inside.windows(2).all(|pair| pair[1] - pair[0] >= sizes.longest_entry);
    let (mut parts, mut changed) = (regions.clone(), places.clone());
    let is_kept = is_apart
        && inside.iter().all(|&entry| can_begin(entry))
        && take_at(at, size, &mut parts, &mut changed)
        && outside.iter().all(|&entry| take_terminator(entry, &mut parts, &mut changed));
    if is_kept {
        changed.sections[ENTRIES] = Some((at, size));
        changed.begins = inside;
        (*regions, *places) = (parts, changed);
    }
    is_kept
}

/// Takes exactly these bytes out of a region of the unwind sections' own.
fn take_at(start: Va, size: u64, regions: &mut Regions, places: &mut Places) -> bool {
    let holds =
        |r: &&mut (Interval, RegionKind)| matches!(r.1, RegionKind::Pool(_)) && r.0.start <= start && start + size <= r.0.end;
    let Some((region, kind)) = regions.iter_mut().find(holds) else { return false };
    let before = Interval { start: region.start, end: start };
    if let RegionKind::Pool(Some(segment)) = *kind {
        places.grown.push((segment, start + size));
    }
    region.start = start + size;
    if before.len() > 0 {
        regions.push((before, RegionKind::Pool(None)));
    }
    true
}
