//! What of a unit's entries names code, or a list of it.
//!
//! **Method.** One pass over `.debug_info` (or `.debug_types`). Entries whose abbreviation has nothing of the kind are skipped. What is found is noted with its place in
//! the section, so that it can be written over where it stands.
//!
//! Source: DWARF 5 §2.17, §7.5.

use std::ops::Range;

use gimli::{Abbreviation, Attribute, AttributeValue, DwAt, Dwarf, EndianSlice, LittleEndian, Unit};
use rustc_hash::FxHashMap;

use super::DebugError;
use super::abbreviations::{Conversion, NOTHING, conversion};

pub(super) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A field of an entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// In the section.
    pub(super) at: usize,
    pub(super) len: u8,
}

/// An address, in place or by its number in `.debug_addr`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Here(Field),
    Numbered(u64),
}

/// What an address is to the code there.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Code begins there.
    Start,
    /// A call returns there.
    Return,
}

/// Something that has to change.
#[derive(Clone, Debug)]
pub(super) enum Item {
    Address {
        site: Site,
        old: u64,
        meaning: Meaning,
    },
    /// The bounds of an entry.
    Bounds(Bounds),
    /// A list by its offset.
    Ranges {
        field: Field,
        list: u64,
        entry: usize,
        begins: Option<u64>,
        role: Role,
    },
    Locations {
        field: Field,
        list: u64,
    },
    /// Where tables of lists begin.
    RangesBase(Field),
    LocationsBase(Field),
    Lines {
        field: Field,
        old: u64,
    },
    Macros {
        field: Field,
        old: u64,
    },
    /// The base that the ranges of a unit count from.
    Base(Field),
    /// An expression in the section.
    Expression(Range<usize>),
    /// A call with what it calls: the entry, its code, and the other entry in `.debug_info`.
    Call {
        entry: usize,
        code: u64,
        origin: usize,
    },
    /// A distance from where the entry begins, to where it is entered.
    EntryDistance {
        field: Field,
        begins: u64,
        old: u64,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Where the entry begins, and the code of its abbreviation.
    pub(super) entry: usize,
    pub(super) code: u64,
    pub(super) role: Role,
    pub(super) low: Site,
    pub(super) high: Field,
    pub(super) high_is_address: bool,
    /// Whether any number fits.
    pub(super) high_is_leb: bool,
    pub(super) old: Range<u64>,
}

/// What an entry with bounds or ranges is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Unit,
    Function,
    Other,
}

/// A unit's items, in the order of its entries.
#[derive(Debug)]
pub(super) struct Items {
    pub(super) items: Vec<Item>,
    /// Numbers of locations in `.debug_loclists` and of ranges in `.debug_rnglists`.
    pub(super) has_numbered_ranges: bool,
    pub(super) has_numbered_locations: bool,
}

/// Whether entries of an abbreviation may name code.
fn is_relevant(abbreviation: &Abbreviation) -> bool {
    abbreviation.attributes().iter().any(|a| {
        let is_address = matches!(
            a.form(),
            gimli::DW_FORM_addr
                | gimli::DW_FORM_addrx
                | gimli::DW_FORM_addrx1
                | gimli::DW_FORM_addrx2
                | gimli::DW_FORM_addrx3
                | gimli::DW_FORM_addrx4
                | gimli::DW_FORM_GNU_addr_index
                | gimli::DW_FORM_rnglistx
                | gimli::DW_FORM_loclistx
                | gimli::DW_FORM_exprloc
                | gimli::DW_FORM_sec_offset
        );
        is_address || is_list(a.name()) || a.name() == gimli::DW_AT_entry_pc
    })
}

/// Attributes that may name a list, of any class.
fn is_list(name: DwAt) -> bool {
    matches!(
        name,
        gimli::DW_AT_ranges
            | gimli::DW_AT_stmt_list
            | gimli::DW_AT_macros
            | gimli::DW_AT_GNU_macros
            | gimli::DW_AT_rnglists_base
            | gimli::DW_AT_loclists_base
            | gimli::DW_AT_location
            | gimli::DW_AT_string_length
            | gimli::DW_AT_return_addr
            | gimli::DW_AT_data_member_location
            | gimli::DW_AT_frame_base
            | gimli::DW_AT_segment
            | gimli::DW_AT_static_link
            | gimli::DW_AT_use_location
            | gimli::DW_AT_vtable_elem_location
    )
}

/// Reads a unit that begins at `start` of its section.
pub(super) fn read(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, start: usize) -> Result<Items, DebugError> {
    let mut reader = Reader { dwarf, unit, start, items: Items::none(), relevant: FxHashMap::default() };
    let mut entries = unit.entries_raw(None)?;
    let mut attributes: Vec<(Attribute<Slice<'_>>, Field)> = Vec::new();
    let mut is_unit = true;
    while !entries.is_empty() {
        let entry = start + entries.next_offset().0;
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        let is_relevant =
            *reader.relevant.entry(abbreviation.code()).or_insert_with(|| is_unit || self::is_relevant(abbreviation));
        if !is_relevant {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        attributes.clear();
        for &specification in abbreviation.attributes() {
            let at = start + entries.next_offset().0;
            let attribute = entries.read_attribute(specification)?;
            let len = start + entries.next_offset().0 - at;
            attributes.push((attribute, Field { at, len: u8::try_from(len).unwrap_or(u8::MAX) }));
            if let AttributeValue::Exprloc(expression) = attribute.value() {
                let end = at + len;
                reader.items.items.push(Item::Expression(end - expression.0.len()..end));
            }
        }
        reader.entry((entry, abbreviation), &attributes, is_unit)?;
        is_unit = false;
    }
    Ok(reader.items)
}

impl Items {
    fn none() -> Self {
        Items { items: Vec::new(), has_numbered_ranges: false, has_numbered_locations: false }
    }
}

struct Reader<'r, 'a> {
    dwarf: &'r Dwarf<Slice<'a>>,
    unit: &'r Unit<Slice<'a>>,
    start: usize,
    items: Items,
    relevant: FxHashMap<u64, bool>,
}

type Attributes<'a> = [(Attribute<Slice<'a>>, Field)];

impl<'a> Reader<'_, 'a> {
    fn entry(
        &mut self,
        (entry, abbreviation): (usize, &Abbreviation),
        attributes: &Attributes<'a>,
        is_unit: bool,
    ) -> Result<(), DebugError> {
        let find = |name: DwAt| attributes.iter().find(|(a, _)| a.name() == name);
        if is_unit && [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name].into_iter().any(|name| find(name).is_some()) {
            return Err(DebugError::Split(self.start));
        }
        let low = match find(gimli::DW_AT_low_pc) {
            Some((attribute, field)) => self.address(attribute, *field)?,
            None => None,
        };
        let high = find(gimli::DW_AT_high_pc);
        let role = match abbreviation.tag() {
            _ if is_unit => Role::Unit,
            gimli::DW_TAG_subprogram => Role::Function,
            _ => Role::Other,
        };
        if let (Some((site, old)), Some((attribute, field))) = (low, high) {
            self.bounds((entry, abbreviation), (site, old), (attribute, *field), role)?;
        } else if let Some((site, old)) = low {
            self.lone(abbreviation, (site, old), is_unit);
        }
        if is_call_site(abbreviation) {
            let origin = attributes.iter().find_map(|(attribute, _)| self.origin(attribute));
            self.items.items.extend(origin.map(|origin| Item::Call { entry, code: abbreviation.code(), origin }));
        }
        for (attribute, field) in attributes {
            self.attribute(attribute, *field, (entry, low.map(|low| low.1), role))?;
        }
        Ok(())
    }

    /// What a call calls.
    fn origin(&self, attribute: &Attribute<Slice<'a>>) -> Option<usize> {
        match (attribute.name(), attribute.raw_value()) {
            (name, AttributeValue::UnitRef(offset)) if is_origin(name) => self.start.checked_add(offset.0),
            (name, AttributeValue::DebugInfoRef(offset)) if is_origin(name) => Some(offset.0),
            _ => None,
        }
    }

    fn bounds(
        &mut self,
        (entry, abbreviation): (usize, &Abbreviation),
        (low, start): (Site, u64),
        (high, field): (&Attribute<Slice<'a>>, Field),
        role: Role,
    ) -> Result<(), DebugError> {
        let (end, high_is_address) = match self.address(high, field)? {
            Some((Site::Here(_), end)) => (end, true),
            Some((Site::Numbered(_), _)) => return Err(DebugError::Form(field.at)),
            None => (start.saturating_add(high.udata_value().ok_or(DebugError::Form(field.at))?), false),
        };
        let high_is_leb = high.form() == gimli::DW_FORM_udata;
        let code = abbreviation.code();
        let old = start..end;
        self.items.items.push(Item::Bounds(Bounds { entry, code, role, low, high: field, high_is_address, high_is_leb, old }));
        Ok(())
    }

    /// A low bound without a high one.
    fn lone(&mut self, abbreviation: &Abbreviation, (site, old): (Site, u64), is_unit: bool) {
        let is_call_site = is_call_site(abbreviation);
        let item = match site {
            Site::Here(field) if is_unit && self.unit.encoding().version < 5 => Item::Base(field),
            _ => Item::Address { site, old, meaning: if is_call_site { Meaning::Return } else { Meaning::Start } },
        };
        self.items.items.push(item);
    }

    fn address(&self, attribute: &Attribute<Slice<'a>>, field: Field) -> Result<Option<(Site, u64)>, DebugError> {
        match attribute.raw_value() {
            AttributeValue::Addr(old) => Ok(Some((Site::Here(field), old))),
            AttributeValue::DebugAddrIndex(index) => {
                let old = self.dwarf.address(self.unit, index)?;
                Ok(Some((Site::Numbered(index.0 as u64), old)))
            }
            _ => Ok(None),
        }
    }

    fn attribute(
        &mut self,
        attribute: &Attribute<Slice<'a>>,
        field: Field,
        (entry, low, role): (usize, Option<u64>, Role),
    ) -> Result<(), DebugError> {
        let item = match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_low_pc | gimli::DW_AT_high_pc, _) => return Ok(()),
            (gimli::DW_AT_start_scope, AttributeValue::RangeListsRef(_)) => return Err(DebugError::Form(field.at)),
            (_, AttributeValue::RangeListsRef(list)) => {
                let list = self.dwarf.ranges_offset_from_raw(self.unit, list);
                Item::Ranges { field, list: list.0 as u64, entry, begins: low.filter(|_| role != Role::Unit), role }
            }
            (_, AttributeValue::DebugRngListsIndex(_)) => {
                self.items.has_numbered_ranges = true;
                return Ok(());
            }
            // And what an update before this one left of them.
            (gimli::DW_AT_GNU_locviews | NOTHING, _) => return Ok(()),
            (_, AttributeValue::SecOffset(_)) => return Err(DebugError::Form(field.at)),
            (_, AttributeValue::LocationListsRef(list)) => Item::Locations { field, list: list.0 as u64 },
            (_, AttributeValue::DebugLocListsIndex(_)) => {
                self.items.has_numbered_locations = true;
                return Ok(());
            }
            (_, AttributeValue::DebugRngListsBase(_)) => Item::RangesBase(field),
            (_, AttributeValue::DebugLocListsBase(_)) => Item::LocationsBase(field),
            (_, AttributeValue::DebugLineRef(old)) => Item::Lines { field, old: old.0 as u64 },
            (_, AttributeValue::DebugMacroRef(old)) => Item::Macros { field, old: old.0 as u64 },
            (gimli::DW_AT_entry_pc, value) if value.udata_value().is_some() => {
                let begins = low.unwrap_or(self.unit.low_pc);
                Item::EntryDistance { field, begins, old: begins.wrapping_add(value.udata_value().unwrap_or(0)) }
            }
            (name, _) => {
                let Some((site, old)) = self.address(attribute, field)? else { return Ok(()) };
                let meaning = if name == gimli::DW_AT_call_return_pc { Meaning::Return } else { Meaning::Start };
                Item::Address { site, old, meaning }
            }
        };
        self.items.items.push(item);
        Ok(())
    }
}

fn is_call_site(abbreviation: &Abbreviation) -> bool {
    [gimli::DW_TAG_GNU_call_site, gimli::DW_TAG_call_site].contains(&abbreviation.tag())
}

/// Whether an attribute of a call says what is called.
pub(super) fn is_origin(name: DwAt) -> bool {
    [gimli::DW_AT_call_origin, gimli::DW_AT_abstract_origin].contains(&name)
}

/// How the bounds of an abbreviation of this unit make room for a list.
pub(super) fn conversion_of(unit: &Unit<Slice<'_>>, code: u64) -> Option<Conversion> {
    conversion(unit.abbreviations.get(code)?.attributes(), unit.encoding())
}
