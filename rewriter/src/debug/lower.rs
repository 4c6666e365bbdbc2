//! A unit's new ranges, locations and addresses, as bytes over its entries and lists of its own.
//!
//! **Method.** First it is decided for each entry whether its bounds can stay bounds: they can if its code is in one part that begins where it is entered. Where they can't, the
//! entry gets another abbreviation (`abbreviations`), which entries of other units may share. Then everything is written.
//!
//! **Invariant.** Where an entry begins to run, its list does: debuggers take the first address of the first range for the entry.

use std::collections::BTreeMap;
use std::ops::Range;

use gimli::{DebugLocListsIndex, DebugRngListsIndex, Dwarf, LocationListsOffset, RangeListsOffset, Unit};
use rustc_hash::{FxHashMap, FxHashSet};

use super::abbreviations::{Conversion, Conversions, Converted, uleb_len};
use super::expression::{self, Named};
use super::lists::{Contribution, Entry, Lists};
use super::map::CodeMap;
use super::unit::{Bounds, Field, Item, Items, Meaning, Role, Site, Slice, conversion_of};
use super::{DebugError, Source};

/// What to write over a field.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Plain(u64),
    /// As long as the field is.
    Leb(u64),
    /// Offsets in the unit's contributions.
    Ranges(u64),
    Locations(u64),
    Lines(u64),
    Macros(u64),
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Patch {
    pub(super) field: Field,
    pub(super) value: Value,
}

/// A unit, decided.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) items: Items,
    /// For each pair of bounds its ranges, in the order of items.
    ranges: Vec<Vec<Range<u64>>>,
    /// Abbreviations of which an entry needs a list, by code.
    pub(super) converts: FxHashMap<u64, Conversion>,
    /// The entries of functions in more parts than debuggers can take for what is called.
    pub(super) in_many_parts: Vec<usize>,
}

/// What all units together ask for.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) conversions: Conversions,
    pub(super) in_many_parts: FxHashSet<usize>,
}

/// A unit, written.
#[derive(Debug)]
pub(super) struct Lowered {
    pub(super) patches: Vec<Patch>,
    /// New entries of `.debug_addr`, by offset; later ones count.
    pub(super) addresses: Vec<(usize, u64)>,
    pub(super) ranges: Vec<u8>,
    pub(super) locations: Vec<u8>,
    /// Entries with more parts than could be said.
    pub(super) partial: u32,
}

/// Decides.
pub(super) fn plan(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    items: Items,
    map: &CodeMap<'_>,
) -> Result<Planned, DebugError> {
    let (mut ranges, mut converts, mut in_many_parts) = (Vec::new(), FxHashMap::default(), Vec::new());
    for item in &items.items {
        let bounds = match item {
            Item::Bounds(bounds) => bounds,
            Item::Ranges { list, entry, begins, role: Role::Function, .. } => {
                let new = new_ranges(dwarf, unit, RangeListsOffset(*list as usize), (*begins, Role::Function), map)?;
                in_many_parts.extend((new.len() > PARTS_MAX).then_some(*entry));
                continue;
            }
            _ => continue,
        };
        let new = map.ranges([bounds.old.clone()]);
        let entry = map.place(bounds.old.start);
        let new = if bounds.role == Role::Unit { new } else { entry_first(new, entry) };
        if !stays_a_pair(unit, bounds, &new, entry)
            && let Some(conversion) = conversion_of(unit, bounds.code)
        {
            converts.insert(bounds.code, conversion);
        }
        in_many_parts.extend((new.len() > PARTS_MAX && bounds.role == Role::Function).then_some(bounds.entry));
        ranges.push(new);
    }
    Ok(Planned { items, ranges, converts, in_many_parts })
}

/// What a list of ranges becomes. `begins` is where its code begins to run, if not at the list's first address.
fn new_ranges(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    list: RangeListsOffset,
    (begins, role): (Option<u64>, Role),
    map: &CodeMap<'_>,
) -> Result<Vec<Range<u64>>, DebugError> {
    let mut ranges = dwarf.ranges(unit, list)?;
    let mut old = Vec::new();
    while let Some(range) = ranges.next()? {
        old.push(range.begin..range.end);
    }
    let begins = begins.or(old.first().map(|range| range.start)).filter(|_| role != Role::Unit);
    Ok(entry_first(map.ranges(old), begins.and_then(|begins| map.place(begins))))
}

fn stays_a_pair(unit: &Unit<Slice<'_>>, bounds: &Bounds, new: &[Range<u64>], entry: Option<u64>) -> bool {
    // The base of the unit's lists, which is to be 0.
    if bounds.role == Role::Unit && unit.encoding().version < 5 {
        return false;
    }
    match new {
        [] => true,
        [one] => {
            let begins = matches!(bounds.low, Site::Here(_)) || entry == Some(one.start);
            begins && (bounds.high_is_address || fits(one.end - one.start, bounds.high, bounds.high_is_leb))
        }
        _ => false,
    }
}

fn fits(value: u64, field: Field, is_leb: bool) -> bool {
    let bits = u32::from(field.len) * if is_leb { 7 } else { 8 };
    bits >= 64 || value >> bits == 0
}

/// The same ranges; the first begins where the entry does.
fn entry_first(mut ranges: Vec<Range<u64>>, entry: Option<u64>) -> Vec<Range<u64>> {
    if let Some(entry) = entry
        && let Some(index) = ranges.iter().position(|range| range.contains(&entry))
    {
        let range = ranges.remove(index);
        if range.start < entry {
            ranges.insert(index, range.start..entry);
        }
        ranges.insert(0, entry..range.end);
    }
    ranges
}

/// The calls of functions in many parts are to be converted too.
pub(super) fn convert_calls(planned: &mut Planned, in_many_parts: &FxHashSet<usize>) {
    for item in &planned.items.items {
        if let Item::Call { code, origin, .. } = item
            && in_many_parts.contains(origin)
        {
            planned.converts.insert(*code, Conversion::WithoutOrigin);
        }
    }
}

/// More ranges than debuggers can take for what is called.
const PARTS_MAX: usize = 2;

/// Writes.
pub(super) fn lower<'a>(
    source: &Source<'a>,
    unit: &Unit<Slice<'a>>,
    planned: &Planned,
    decided: &Decided,
    map: &CodeMap<'_>,
) -> Result<Lowered, DebugError> {
    let codes = decided.conversions.get(&(unit.header.debug_abbrev_offset().0 as u64));
    let has = |wanted: fn(&Item) -> bool| planned.items.items.iter().any(wanted);
    let of_ranges = (planned.items.has_numbered_ranges, has(|item| matches!(item, Item::RangesBase(_))));
    let of_locations = (planned.items.has_numbered_locations, has(|item| matches!(item, Item::LocationsBase(_))));
    let num_ranges = num_numbered(of_ranges, source.range_lists, unit.rnglists_base.0)?;
    let num_locations = num_numbered(of_locations, source.location_lists, unit.loclists_base.0)?;
    let mut writer = Writer {
        dwarf: &source.dwarf,
        unit,
        map,
        section: source.entries(unit),
        codes,
        in_many_parts: &decided.in_many_parts,
        ranges: Contribution::new(Lists::Ranges, unit.encoding(), num_ranges),
        locations: Contribution::new(Lists::Locations, unit.encoding(), num_locations),
        known: FxHashMap::default(),
        lowered: Lowered { patches: Vec::new(), addresses: Vec::new(), ranges: Vec::new(), locations: Vec::new(), partial: 0 },
        starts: Vec::new(),
    };
    writer.numbered(num_ranges, num_locations)?;
    let mut ranges = planned.ranges.iter();
    for item in &planned.items.items {
        if let Item::Bounds(bounds) = item {
            let new = ranges.next().map_or(&[][..], Vec::as_slice);
            let converted = codes.and_then(|codes| codes.get(&bounds.code)).copied();
            writer.bounds(bounds, new, converted)?;
        } else {
            writer.item(item)?;
        }
    }
    Ok(writer.finish())
}

/// How many lists a unit's table has; `is_used` and `is_named` say whether entries name them by number and whether the unit says where the table is.
fn num_numbered((is_used, is_named): (bool, bool), section: &[u8], base: usize) -> Result<usize, DebugError> {
    if !is_named {
        return if is_used { Err(DebugError::NoTable) } else { Ok(0) };
    }
    let field = base.checked_sub(4).and_then(|at| section.get(at..base)).ok_or(DebugError::NoTable)?;
    let count = u32::from_le_bytes([field[0], field[1], field[2], field[3]]) as usize;
    if count > section.len() { Err(DebugError::NoTable) } else { Ok(count) }
}

struct Writer<'w, 'a> {
    dwarf: &'w Dwarf<Slice<'a>>,
    unit: &'w Unit<Slice<'a>>,
    map: &'w CodeMap<'w>,
    section: &'w [u8],
    codes: Option<&'w BTreeMap<u64, Converted>>,
    in_many_parts: &'w FxHashSet<usize>,
    ranges: Contribution,
    locations: Contribution,
    /// Lists of ranges that are written.
    known: FxHashMap<Vec<Range<u64>>, u64>,
    lowered: Lowered,
    /// As `Lowered::addresses`, for those where code begins.
    starts: Vec<(usize, u64)>,
}

impl Writer<'_, '_> {
    fn finish(mut self) -> Lowered {
        self.lowered.addresses.append(&mut self.starts);
        Lowered { ranges: self.ranges.finish(), locations: self.locations.finish(), ..self.lowered }
    }

    fn patch(&mut self, field: Field, value: Value) {
        self.lowered.patches.push(Patch { field, value });
    }

    /// All lists that have numbers.
    fn numbered(&mut self, num_ranges: usize, num_locations: usize) -> Result<(), DebugError> {
        for index in 0..num_ranges {
            let list = self.dwarf.ranges_offset(self.unit, DebugRngListsIndex(index))?;
            let at = self.range_list(list, (None, Role::Other))?;
            self.ranges.set_indexed(index, at);
        }
        for index in 0..num_locations {
            let list = self.dwarf.locations_offset(self.unit, DebugLocListsIndex(index))?;
            let at = self.location_list(list)?;
            self.locations.set_indexed(index, at);
        }
        Ok(())
    }

    fn push_ranges(&mut self, ranges: Vec<Range<u64>>) -> u64 {
        if let Some(&at) = self.known.get(&ranges) {
            return at;
        }
        let entries: Vec<Entry<'_>> = ranges.iter().map(|range| (range.clone(), &[][..])).collect();
        let at = self.ranges.push(&entries, None);
        self.known.insert(ranges, at);
        at
    }

    fn range_list(&mut self, list: RangeListsOffset, begins: (Option<u64>, Role)) -> Result<u64, DebugError> {
        let new = new_ranges(self.dwarf, self.unit, list, begins, self.map)?;
        Ok(self.push_ranges(new))
    }

    fn location_list(&mut self, list: LocationListsOffset) -> Result<u64, DebugError> {
        let mut locations = self.dwarf.locations(self.unit, list)?;
        let mut always = None;
        let mut entries: Vec<(Range<u64>, Vec<u8>)> = Vec::new();
        while let Some(location) = locations.next()? {
            let mut description = location.data.0.slice().to_vec();
            self.expression(&mut description)?;
            if (location.range.begin, location.range.end) == (0, u64::MAX) {
                always = Some(description);
                continue;
            }
            let ranges = self.map.ranges_of_variables(location.range.begin..location.range.end);
            entries.extend(ranges.into_iter().map(|range| (range, description.clone())));
        }
        let entries: Vec<Entry<'_>> = entries.iter().map(|(range, description)| (range.clone(), &description[..])).collect();
        Ok(self.locations.push(&entries, always.as_deref()))
    }

    /// Brings a description up to date, at its length.
    fn expression(&mut self, bytes: &mut [u8]) -> Result<(), DebugError> {
        for named in expression::named(bytes, self.unit.encoding())? {
            match named {
                Named::Here { at, old } if self.map.is_code(old) => {
                    let new = self.map.place(old).unwrap_or(0).to_le_bytes();
                    bytes[at..at + 8].copy_from_slice(&new);
                }
                Named::Here { .. } => {}
                Named::Numbered(index) => {
                    let old = self.dwarf.address(self.unit, gimli::DebugAddrIndex(index as usize))?;
                    self.address(Site::Numbered(index), old, Meaning::Start);
                }
            }
        }
        Ok(())
    }

    fn address(&mut self, site: Site, old: u64, meaning: Meaning) {
        // Behind the last call of a section no code is.
        let is_code = self.map.is_code(old) || meaning == Meaning::Return && self.map.is_code(old.wrapping_sub(1));
        if !is_code {
            return;
        }
        let new = match meaning {
            Meaning::Start => self.map.place(old),
            Meaning::Return => self.map.end(old),
        };
        let new = new.unwrap_or(0);
        match (site, meaning) {
            (Site::Here(field), _) => self.patch(field, Value::Plain(new)),
            (Site::Numbered(index), Meaning::Start) => self.starts.push((self.entry_of(index), new)),
            (Site::Numbered(index), Meaning::Return) => {
                let entry = self.entry_of(index);
                self.lowered.addresses.push((entry, new));
            }
        }
    }

    fn entry_of(&self, index: u64) -> usize {
        self.unit.addr_base.0 + 8 * index as usize
    }

    fn bounds(&mut self, bounds: &Bounds, new: &[Range<u64>], converted: Option<Converted>) -> Result<(), DebugError> {
        if new.is_empty() && !self.map.is_code(bounds.old.start) && converted.is_none_or(|converted| converted.code.is_some()) {
            return Ok(());
        }
        let needs_list = !stays_a_pair(self.unit, bounds, new, self.map.place(bounds.old.start));
        match converted.filter(|converted| needs_list || converted.code.is_none()) {
            Some(converted) => self.list_for(bounds, new, converted),
            None => {
                self.pair(bounds, new);
                Ok(())
            }
        }
    }

    /// A list in the place of bounds.
    fn list_for(&mut self, bounds: &Bounds, new: &[Range<u64>], converted: Converted) -> Result<(), DebugError> {
        if let Some(code) = converted.code {
            self.patch(Field { at: bounds.entry, len: uleb_len(bounds.code) }, Value::Leb(code));
        }
        let word = self.unit.encoding().format.word_size();
        let list = self.push_ranges(new.to_vec());
        let (field, rest) = match (converted.conversion, bounds.low) {
            (Conversion::InHigh { rest }, _) => (bounds.high, rest),
            (Conversion::InLow { rest }, Site::Here(field)) => (field, rest),
            (Conversion::InLow { .. }, Site::Numbered(_)) | (Conversion::WithoutOrigin, _) => {
                return Err(DebugError::Form(bounds.high.at));
            }
        };
        self.patch(Field { len: word, ..field }, Value::Ranges(list));
        self.patch(Field { at: field.at + usize::from(word), len: rest }, Value::Plain(0));
        match bounds.low {
            Site::Here(low) if low != field => {
                let start = if bounds.role == Role::Unit { 0 } else { new.first().map_or(0, |first| first.start) };
                self.patch(low, Value::Plain(start));
            }
            Site::Here(_) => {}
            Site::Numbered(_) => self.address(bounds.low, bounds.old.start, Meaning::Start),
        }
        Ok(())
    }

    /// New bounds, of the first part if there are several.
    fn pair(&mut self, bounds: &Bounds, new: &[Range<u64>]) {
        self.lowered.partial += u32::from(new.len() > 1);
        let one = new.first().cloned().unwrap_or(0..0);
        match bounds.low {
            Site::Here(field) => self.patch(field, Value::Plain(one.start)),
            Site::Numbered(_) => self.address(bounds.low, bounds.old.start, Meaning::Start),
        }
        let len = one.end - one.start;
        let high = match (bounds.high_is_address, bounds.high_is_leb) {
            (true, _) => Value::Plain(one.end),
            (false, true) => Value::Leb(if fits(len, bounds.high, true) { len } else { 0 }),
            (false, false) => Value::Plain(if fits(len, bounds.high, false) { len } else { 0 }),
        };
        self.patch(bounds.high, high);
    }

    fn item(&mut self, item: &Item) -> Result<(), DebugError> {
        match item {
            Item::Bounds(_) => {}
            Item::Call { entry, code, origin } => {
                let new = self.codes.and_then(|codes| codes.get(code)?.code).filter(|_| self.in_many_parts.contains(origin));
                if let Some(new) = new {
                    self.patch(Field { at: *entry, len: uleb_len(*code) }, Value::Leb(new));
                }
            }
            Item::Address { site, old, meaning } => self.address(*site, *old, *meaning),
            Item::Ranges { field, list, begins, role, .. } => {
                let at = self.range_list(RangeListsOffset(*list as usize), (*begins, *role))?;
                self.patch(*field, Value::Ranges(at));
            }
            Item::Locations { field, list } => {
                let at = self.location_list(LocationListsOffset(*list as usize))?;
                self.patch(*field, Value::Locations(at));
            }
            Item::RangesBase(field) => self.patch(*field, Value::Ranges(self.ranges.base())),
            Item::LocationsBase(field) => self.patch(*field, Value::Locations(self.locations.base())),
            Item::Lines { field, old } => self.patch(*field, Value::Lines(*old)),
            Item::Macros { field, old } => self.patch(*field, Value::Macros(*old)),
            Item::Base(field) => self.patch(*field, Value::Plain(0)),
            Item::Expression(range) => {
                let section = self.section;
                let mut bytes = section.get(range.clone()).ok_or(DebugError::Form(range.start))?.to_vec();
                self.expression(&mut bytes)?;
                let changed = range.clone().zip(bytes).filter(|&(at, byte)| section[at] != byte);
                for (at, byte) in changed {
                    self.patch(Field { at, len: 1 }, Value::Plain(u64::from(byte)));
                }
            }
            Item::EntryDistance { field, begins, old } => {
                let distance =
                    self.map.place(*begins).zip(self.map.place(*old)).and_then(|(begins, new)| new.checked_sub(begins));
                // 0: it is entered where it begins.
                let distance = distance.filter(|&distance| fits(distance, *field, true)).unwrap_or(0);
                self.patch(*field, Value::Leb(distance));
            }
        }
        Ok(())
    }
}
