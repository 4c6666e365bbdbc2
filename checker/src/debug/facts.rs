//! What the debug sections of one file say of its code.
//!
//! Units are read on all threads; nothing is interpreted that does not depend on addresses of code, it only goes into the fingerprint of its unit.
//!
//! **Termination.** Lists may be shared by any number of entries, so the intervals are counted: there may be no more than the sections have bytes.

use std::sync::atomic::{AtomicUsize, Ordering};

use gimli::{EndianSlice, LittleEndian, UnitHeader};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::contents::Contents;
use super::timeline::Interval;
use super::{lookup, rows, unit};
use crate::image::Image;

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;
pub(super) type Dwarf<'a> = gimli::Dwarf<Slice<'a>>;

/// Marks the offsets of entries that are in `.debug_types`.
pub(super) const IN_TYPES: u64 = 1 << 63;

/// What a single address is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// That of an instruction.
    Place,
    /// That behind a call.
    Return,
}

/// An address that an entry names.
#[derive(Copy, Clone, Debug)]
pub(super) struct Single {
    pub(super) die: u64,
    /// Code of the attribute, 0 for the first address of the entry's ranges.
    pub(super) attribute: u16,
    pub(super) address: u64,
    pub(super) role: Role,
}

/// What does not depend on addresses of code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitFacts {
    pub(super) offset: u64,
    /// Of all entries.
    pub(super) fingerprint: u64,
    /// The first unit with the same line table, and a fingerprint of its files.
    pub(super) lines_of: Option<(u64, u64)>,
}

#[derive(Default)]
pub(super) struct Facts {
    pub(super) units: Vec<UnitFacts>,
    /// Where an entry's code is.
    pub(super) ranges: Vec<Interval>,
    /// Where an expression holds.
    pub(super) locations: Vec<Interval>,
    /// The same for a name of code in such an expression, and the name.
    pub(super) named: Vec<(Interval, u64)>,
    /// Where a row of a line table holds.
    pub(super) rows: Vec<Interval>,
    /// What rows say of their own address alone.
    pub(super) stops: Vec<Interval>,
    pub(super) singles: Vec<Single>,
    /// What calls say that they call, by entry.
    pub(super) origins: Vec<(u64, u64)>,
    /// A unit that is but the skeleton of one in another file.
    pub(super) elsewhere: Option<u64>,
}

/// How many intervals there may still be.
pub(super) struct Budget(AtomicUsize);

impl Budget {
    pub(super) fn take(&self) -> Result<(), String> {
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        before.map(|_| ()).map_err(|_| "its lists are shared by more entries than could be meant".to_owned())
    }
}

impl Facts {
    pub(super) fn read(image: &Image<'_>, contents: &Contents<'_>) -> Result<Self, String> {
        let dwarf = dwarf_of(contents);
        let budget = Budget(AtomicUsize::new(contents.size()));
        let headers = headers(&dwarf)?;
        let read: Result<Vec<unit::Collected>, String> =
            headers.par_iter().map(|header| unit::collect(&dwarf, *header, image, &budget)).collect();
        let read = read?;
        let mut facts = Self::default();
        // Line tables that units share are read once, for the first of them.
        let mut first_with: FxHashMap<usize, usize> = FxHashMap::default();
        for (index, collected) in read.iter().enumerate() {
            if let Some(table) = collected.lines.filter(|_| collected.offset & IN_TYPES == 0) {
                first_with.entry(table).or_insert(index);
            }
        }
        let mut tables: Vec<usize> = first_with.values().copied().collect();
        tables.sort_unstable();
        let rows: Result<Vec<rows::Table>, String> =
            tables.par_iter().map(|&index| rows::collect(&dwarf, headers[index], image, &budget)).collect();
        let mut first_units: FxHashMap<usize, (u64, u64)> = FxHashMap::default();
        for (index, table) in tables.into_iter().zip(rows?) {
            facts.rows.extend(table.rows);
            facts.stops.extend(table.stops);
            first_units.extend(read[index].lines.map(|lines| (lines, (read[index].offset, table.files))));
        }
        for collected in read {
            let lines_of = collected.lines.and_then(|table| first_units.get(&table).copied());
            facts.units.push(UnitFacts { offset: collected.offset, fingerprint: collected.fingerprint, lines_of });
            facts.ranges.extend(collected.ranges);
            facts.locations.extend(collected.locations);
            facts.named.extend(collected.named);
            facts.singles.extend(collected.singles);
            facts.origins.extend(collected.origins);
            facts.elsewhere = facts.elsewhere.or(collected.is_elsewhere.then_some(collected.offset));
        }
        facts.singles.sort_by_key(|single| (single.die, single.attribute));
        facts.origins.sort_unstable();
        lookup::collect(contents, image, &mut facts.ranges)?;
        Ok(facts)
    }
}

/// The fingerprint of each entry of a unit.
pub(super) fn entries(image: &Image<'_>, contents: &Contents<'_>, offset: u64) -> Result<Vec<(u64, u64)>, String> {
    let dwarf = dwarf_of(contents);
    let header = headers(&dwarf)?.into_iter().find(|header| unit::offset_of(header) == offset);
    header.map_or_else(|| Ok(Vec::new()), |header| unit::fingerprints(&dwarf, header, image))
}

fn dwarf_of<'c>(contents: &'c Contents<'_>) -> Dwarf<'c> {
    let load = |id: gimli::SectionId| Ok::<_, std::convert::Infallible>(Slice::new(contents.of(id.name()), LittleEndian));
    let Ok(mut dwarf) = Dwarf::load(load);
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::All);
    dwarf
}

fn headers<'a>(dwarf: &Dwarf<'a>) -> Result<Vec<UnitHeader<Slice<'a>>>, String> {
    let mut headers = Vec::new();
    let mut units = dwarf.units();
    while let Some(header) = units.next().map_err(|error| format!(".debug_info can't be read: {error}"))? {
        headers.push(header);
    }
    let mut units = dwarf.type_units();
    while let Some(header) = units.next().map_err(|error| format!(".debug_types can't be read: {error}"))? {
        headers.push(header);
    }
    Ok(headers)
}
