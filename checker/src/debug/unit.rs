//! One unit: where its entries say that code is, and all else that they say as a fingerprint.
//!
//! An entry is known by its offset, which a relink does not change. Ranges that begin outside of all code (tombstones of what a linker left out) say nothing of any
//! instruction.

use gimli::constants as dw;
use gimli::{Attribute, AttributeValue, Expression, Operation, Section, UnitHeader};

use super::facts::{Budget, Dwarf, IN_TYPES, Role, Single, Slice};
use super::lookup;
use super::timeline::{Interval, join, mix, mix_bytes};
use crate::image::Image;

const LIST: u64 = 0x6c69_7374;
/// Expressions of values at a caller's entry stand in expressions; deeper than any compiler nests them they are bytes.
const NESTED_MAX: usize = 8;

type Entry<'a> = gimli::DebuggingInformationEntry<Slice<'a>>;
type Value<'a> = AttributeValue<Slice<'a>>;

/// What is known of a unit.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) offset: u64,
    pub(super) fingerprint: u64,
    /// The offset of its line table.
    pub(super) lines: Option<usize>,
    /// The unit is the skeleton of one in another file.
    pub(super) is_elsewhere: bool,
    pub(super) ranges: Vec<Interval>,
    pub(super) locations: Vec<Interval>,
    pub(super) named: Vec<(Interval, u64)>,
    pub(super) singles: Vec<Single>,
    /// What calls say that they call.
    pub(super) origins: Vec<(u64, u64)>,
}

/// Where a unit begins.
pub(super) fn offset_of(header: &UnitHeader<Slice<'_>>) -> u64 {
    match (header.debug_info_offset(), header.debug_types_offset()) {
        (Some(offset), _) => offset.0 as u64,
        (None, Some(offset)) => offset.0 as u64 | IN_TYPES,
        (None, None) => u64::MAX,
    }
}

/// Reads a unit.
pub(super) fn collect<'a>(
    dwarf: &Dwarf<'a>,
    header: UnitHeader<Slice<'a>>,
    image: &Image<'_>,
    budget: &Budget,
) -> Result<Collected, String> {
    let offset = offset_of(&header);
    let mut reader = UnitReader::new(dwarf, header, image)?;
    reader.budget = Some(budget);
    reader.walk(|_, _| {})?;
    Ok(Collected { offset, ..reader.collected })
}

/// The fingerprint of each of a unit's entries.
pub(super) fn fingerprints<'a>(
    dwarf: &Dwarf<'a>,
    header: UnitHeader<Slice<'a>>,
    image: &Image<'_>,
) -> Result<Vec<(u64, u64)>, String> {
    let mut all = Vec::new();
    UnitReader::new(dwarf, header, image)?.walk(|die, fingerprint| all.push((die, fingerprint)))?;
    Ok(all)
}

struct UnitReader<'r, 'a> {
    dwarf: &'r Dwarf<'a>,
    unit: gimli::Unit<Slice<'a>>,
    image: &'r Image<'r>,
    /// None where intervals don't count.
    budget: Option<&'r Budget>,
    start: u64,
    collected: Collected,
}

impl<'r, 'a> UnitReader<'r, 'a> {
    fn new(dwarf: &'r Dwarf<'a>, header: UnitHeader<Slice<'a>>, image: &'r Image<'_>) -> Result<Self, String> {
        let start = offset_of(&header);
        let fail = |error: gimli::Error| format!("the unit at {start:#x} can't be read: {error}");
        if header.address_size() != 8 {
            return Err(format!("the unit at {start:#x} can't be read: addresses of {} bytes", header.address_size()));
        }
        let unit = dwarf.unit(header).map_err(fail)?;
        Ok(Self { dwarf, unit, image, budget: None, start, collected: Collected::default() })
    }

    /// Reads all entries; `visit` gets each one's offset and fingerprint.
    fn walk(&mut self, mut visit: impl FnMut(u64, u64)) -> Result<(), String> {
        let header = self.unit.header;
        let mut fingerprint =
            [u64::from(header.version()), header.length_including_self() as u64].into_iter().fold(self.start, mix);
        let abbreviations = self.unit.abbreviations.clone();
        let mut entries = header.entries(&abbreviations);
        loop {
            let read = entries.next_dfs().map_err(|error| format!("the unit at {:#x} can't be read: {error}", self.start));
            let Some(entry) = read? else { break };
            let die = self.start + entry.offset().0 as u64;
            let read = self.read_entry(die, entry).map_err(|error| format!("the entry at {die:#x} can't be read: {error}"));
            let of_entry = read?;
            fingerprint = mix(fingerprint, of_entry);
            visit(die, of_entry);
        }
        self.collected.is_elsewhere = self.unit.dwo_id.is_some();
        self.collected.fingerprint = fingerprint;
        Ok(())
    }

    /// Collects what an entry says of code, and gives a fingerprint of the rest.
    fn read_entry(&mut self, die: u64, entry: &Entry<'a>) -> Result<u64, String> {
        self.read_ranges(die, entry).map_err(|error| self.explain(error))?;
        let mut macros = None;
        let depth = entry.depth().cast_unsigned() as u64;
        let mut fingerprint = [u64::from(entry.tag().0), depth, u64::from(entry.has_children())].into_iter().fold(die, mix);
        for attribute in entry.attrs() {
            if let AttributeValue::DebugLineRef(table) = attribute.value() {
                self.collected.lines = Some(table.0);
                continue;
            }
            if let AttributeValue::DebugMacroRef(offset) = attribute.value() {
                macros = lookup::lines_of_macros(self.dwarf.debug_macro.reader().slice(), offset.0);
            }
            if !is_of_tables(attribute.name()) {
                if is_call_site(entry.tag()) && is_origin(attribute.name()) {
                    self.collected.origins.push((die, fingerprint_of(attribute.raw_value())));
                    continue;
                }
                let value = self.read_attribute(die, entry, attribute).map_err(|error| self.explain(error))?;
                fingerprint = value.map_or(fingerprint, |value| mix(mix(fingerprint, u64::from(attribute.name().0)), value));
            }
        }
        // Macros name the line table with the unit's files.
        let is_same = macros.map_or(2, |lines| u64::from(Some(lines) == self.collected.lines.map(|lines| lines as u64)));
        Ok(mix(fingerprint, is_same))
    }

    fn explain(&self, error: Unread) -> String {
        match error {
            Unread::Dwarf(error) => error.to_string(),
            Unread::Shared(error) => error,
        }
    }

    fn count(&self) -> Result<(), Unread> {
        self.budget.map_or(Ok(()), Budget::take).map_err(Unread::Shared)
    }

    fn address(&self, value: Value<'a>) -> Result<Option<u64>, Unread> {
        Ok(self.dwarf.attr_address(&self.unit, value)?)
    }

    /// `DW_AT_low_pc`, `DW_AT_high_pc`, `DW_AT_ranges`, and what the first address is.
    fn read_ranges(&mut self, die: u64, entry: &Entry<'a>) -> Result<(), Unread> {
        let low = entry.attr_value(dw::DW_AT_low_pc).map(|value| self.address(value)).transpose()?.flatten();
        let first = self.collected.ranges.len();
        let key = mix(u64::from(dw::DW_AT_ranges.0), die);
        let mut begin = None;
        if let Some(ranges) = entry.attr_value(dw::DW_AT_ranges) {
            begin = self.add_list(die, key, ranges)?;
        } else if let (Some(start), Some(high)) = (low, entry.attr_value(dw::DW_AT_high_pc)) {
            let end = match high {
                AttributeValue::Udata(size) => start.saturating_add(size),
                value => self.address(value)?.unwrap_or(0),
            };
            begin = (start < end).then_some(start);
            self.add_range(Interval { key, start, end, die })?;
        } else if let (Some(address), false) = (low, is_unit(entry.tag())) {
            let is_return = entry.tag() == dw::DW_TAG_GNU_call_site;
            let role = if is_return { Role::Return } else { Role::Place };
            self.collected.singles.push(Single { die, attribute: dw::DW_AT_low_pc.0, address, role });
        } else {
            return Ok(());
        }
        join(&mut self.collected.ranges, first);
        let is_entered = match entry.tag() {
            dw::DW_TAG_subprogram => true,
            dw::DW_TAG_inlined_subroutine => !entry.has_attr(dw::DW_AT_entry_pc),
            _ => false,
        };
        // What the linker left out begins nowhere, and where it would is no fact of the program.
        if let (true, Some(address)) = (is_entered, begin.filter(|&address| self.image.in_code(address))) {
            self.collected.singles.push(Single { die, attribute: 0, address, role: Role::Place });
        }
        Ok(())
    }

    /// The ranges of a list; gives where the first one begins.
    fn add_list(&mut self, die: u64, key: u64, value: Value<'a>) -> Result<Option<u64>, Unread> {
        let mut begin = None;
        let Some(mut ranges) = self.dwarf.attr_ranges(&self.unit, value)? else { return Ok(None) };
        while let Some(range) = ranges.next()? {
            begin = begin.or(Some(range.begin));
            self.add_range(Interval { key, start: range.begin, end: range.end, die })?;
        }
        Ok(begin)
    }

    fn add_range(&mut self, interval: Interval) -> Result<(), Unread> {
        self.count()?;
        if interval.start < interval.end && self.image.in_code(interval.start) {
            self.collected.ranges.push(interval);
        }
        Ok(())
    }

    /// Reads another attribute; gives a fingerprint of what does not depend on where code is.
    fn read_attribute(&mut self, die: u64, entry: &Entry<'a>, attribute: &Attribute<Slice<'a>>) -> Result<Option<u64>, Unread> {
        let (name, value) = (attribute.name(), attribute.value());
        if let Some(address) = self.address(value)? {
            let role = if name == dw::DW_AT_call_return_pc { Role::Return } else { Role::Place };
            self.collected.singles.push(Single { die, attribute: name.0, address, role });
            return Ok(None);
        }
        if name == dw::DW_AT_entry_pc {
            let offset = value.udata_value().unwrap_or(0);
            let address = self.base_of(entry)?.saturating_add(offset);
            self.collected.singles.push(Single { die, attribute: name.0, address, role: Role::Place });
            return Ok(None);
        }
        if let Some(list) = self.dwarf.attr_locations(&self.unit, value)? {
            self.read_locations(die, name, list)?;
            return Ok(Some(LIST));
        }
        if self.dwarf.attr_ranges_offset(&self.unit, value)?.is_some() {
            let first = self.collected.ranges.len();
            self.add_list(die, mix(u64::from(name.0), die), value)?;
            join(&mut self.collected.ranges, first);
            return Ok(Some(LIST));
        }
        if let Some(expression) = expression_of(name, value) {
            let mut addresses = Vec::new();
            let fingerprint = self.read_expression(expression, &mut addresses, 0)?;
            let single = |address| Single { die, attribute: name.0, address, role: Role::Place };
            self.collected.singles.extend(addresses.into_iter().map(single));
            return Ok(Some(fingerprint));
        }
        Ok(Some(fingerprint_of(attribute.raw_value())))
    }

    /// What a constant `DW_AT_entry_pc` counts from.
    fn base_of(&self, entry: &Entry<'a>) -> Result<u64, Unread> {
        if let Some(low) = entry.attr_value(dw::DW_AT_low_pc) {
            return Ok(self.address(low)?.unwrap_or(0));
        }
        let Some(ranges) = entry.attr_value(dw::DW_AT_ranges) else { return Ok(0) };
        let Some(mut ranges) = self.dwarf.attr_ranges(&self.unit, ranges)? else { return Ok(0) };
        Ok(ranges.next()?.map_or(0, |range| range.begin))
    }

    /// Where each expression of a list holds, and by which name for each code that it names.
    fn read_locations(&mut self, die: u64, name: dw::DwAt, mut list: gimli::LocListIter<Slice<'a>>) -> Result<(), Unread> {
        let first = self.collected.locations.len();
        let attribute = mix(u64::from(name.0), die);
        while let Some(entry) = list.next()? {
            self.count()?;
            let (start, end) = (entry.range.begin, entry.range.end);
            let is_default = (start, end) == (0, u64::MAX);
            if !is_default && !self.image.in_code(start) {
                continue;
            }
            let mut addresses = Vec::new();
            let key = mix(attribute, self.read_expression(entry.data, &mut addresses, 0)?);
            let interval = Interval { key, start, end, die };
            self.collected.locations.push(interval);
            self.collected.named.extend(addresses.into_iter().map(|address| (interval, address)));
        }
        join(&mut self.collected.locations, first);
        Ok(())
    }

    /// A fingerprint of an expression, but for the addresses of code in it, which are put aside.
    fn read_expression(&self, expression: Expression<Slice<'a>>, addresses: &mut Vec<u64>, depth: usize) -> Result<u64, Unread> {
        let bytes = expression.0.slice();
        let mut fingerprint = bytes.len() as u64;
        let mut operations = expression.operations(self.unit.encoding());
        let mut start = 0;
        while let Some(operation) = operations.next()? {
            let end = operations.offset_from(&expression);
            let address = match operation {
                Operation::Address { address } => Some(address),
                Operation::AddressIndex { index } => Some(self.dwarf.address(&self.unit, index)?),
                _ => None,
            };
            fingerprint = match (operation, address) {
                (_, Some(address)) if self.image.in_code(address) => {
                    addresses.push(address);
                    mix(fingerprint, u64::from(bytes[start]))
                }
                (_, Some(address)) => mix(mix(fingerprint, u64::from(bytes[start])), address),
                (Operation::EntryValue { expression }, _) if depth < NESTED_MAX => {
                    mix(fingerprint, self.read_expression(Expression(expression), addresses, depth + 1)?)
                }
                _ => mix_bytes(fingerprint, &bytes[start..end]),
            };
            start = end;
        }
        Ok(fingerprint)
    }
}

/// Why something was not read.
enum Unread {
    Dwarf(gimli::Error),
    Shared(String),
}

impl From<gimli::Error> for Unread {
    fn from(error: gimli::Error) -> Self {
        Self::Dwarf(error)
    }
}

fn is_unit(tag: dw::DwTag) -> bool {
    [dw::DW_TAG_compile_unit, dw::DW_TAG_partial_unit, dw::DW_TAG_skeleton_unit, dw::DW_TAG_type_unit].contains(&tag)
}

fn is_call_site(tag: dw::DwTag) -> bool {
    [dw::DW_TAG_call_site, dw::DW_TAG_GNU_call_site].contains(&tag)
}

/// Whether an attribute of a call says what is called.
fn is_origin(name: dw::DwAt) -> bool {
    [dw::DW_AT_call_origin, dw::DW_AT_abstract_origin].contains(&name)
}

/// Attributes that are read elsewhere, or say where in the tables something stands, those beside lists that only count rows at one address, and those of vendors that
/// nobody knows: what they mean, no debugger tells.
fn is_of_tables(name: dw::DwAt) -> bool {
    if name >= dw::DW_AT_lo_user && name.static_string().is_none() {
        return true;
    }
    let read = [dw::DW_AT_low_pc, dw::DW_AT_high_pc, dw::DW_AT_ranges];
    let bases = [
        dw::DW_AT_addr_base,
        dw::DW_AT_rnglists_base,
        dw::DW_AT_loclists_base,
        dw::DW_AT_GNU_ranges_base,
        dw::DW_AT_GNU_addr_base,
        dw::DW_AT_GNU_locviews,
        dw::DW_AT_GNU_entry_view,
    ];
    read.contains(&name) || bases.contains(&name)
}

/// The expression that a value is; before DWARF 4 they were blocks like others.
fn expression_of<'a>(name: dw::DwAt, value: Value<'a>) -> Option<Expression<Slice<'a>>> {
    let of_calls = [
        dw::DW_AT_GNU_call_site_value,
        dw::DW_AT_GNU_call_site_data_value,
        dw::DW_AT_GNU_call_site_target,
        dw::DW_AT_GNU_call_site_target_clobbered,
    ];
    match value {
        AttributeValue::Exprloc(expression) => Some(expression),
        AttributeValue::Block(bytes) if of_calls.contains(&name) => Some(Expression(bytes)),
        _ => None,
    }
}

/// The raw value as a number.
fn fingerprint_of(value: Value<'_>) -> u64 {
    let number = |kind: u64, number: u64| mix(kind, number);
    match value {
        AttributeValue::Block(bytes) => mix_bytes(1, bytes.slice()),
        AttributeValue::String(bytes) => mix_bytes(2, bytes.slice()),
        AttributeValue::Data1(data) => number(3, u64::from(data)),
        AttributeValue::Data2(data) => number(3, u64::from(data)),
        AttributeValue::Data4(data) => number(3, u64::from(data)),
        AttributeValue::Data8(data) | AttributeValue::Udata(data) => number(3, data),
        AttributeValue::Data16(data) => mix_bytes(4, &data.to_le_bytes()),
        AttributeValue::Sdata(data) => number(3, data.cast_unsigned()),
        AttributeValue::Flag(flag) => number(5, u64::from(flag)),
        AttributeValue::SecOffset(offset) => number(6, offset as u64),
        AttributeValue::UnitRef(offset) => number(7, offset.0 as u64),
        AttributeValue::DebugInfoRef(offset) => number(8, offset.0 as u64),
        AttributeValue::DebugInfoRefSup(offset) => number(9, offset.0 as u64),
        AttributeValue::DebugTypesRef(signature) => number(10, signature.0),
        AttributeValue::DebugStrRef(offset) => number(11, offset.0 as u64),
        AttributeValue::DebugStrRefSup(offset) => number(12, offset.0 as u64),
        AttributeValue::DebugStrOffsetsIndex(index) => number(13, index.0 as u64),
        AttributeValue::DebugLineStrRef(offset) => number(14, offset.0 as u64),
        other => mix_bytes(15, format!("{other:?}").as_bytes()),
    }
}
