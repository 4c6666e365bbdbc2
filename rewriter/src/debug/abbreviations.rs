//! `.debug_abbrev` for entries of which some have several ranges now.
//!
//! **Method.** An entry of `.debug_info` must keep its size, so that all that names entries by their offsets stays true. A pair of bounds, `DW_AT_low_pc` and
//! `DW_AT_high_pc`, therefore becomes `DW_AT_ranges` in the field of one of the two that is large enough, with an attribute that says nothing for the bytes that are left. Such
//! entries get a new abbreviation, whose code is as long as the old one's. If no such code is free, the abbreviation itself is changed, and all its entries with it.
//!
//! Calls of functions in more than two parts lose the attribute that says what they call: GDB 12 and 13 write past the end of a buffer where it leads to more than two ranges.
//!
//! Source: DWARF 5 §7.5.3.

use std::collections::BTreeMap;

use gimli::{AttributeSpecification, DwAt, DwForm, Encoding, LittleEndian, Reader};
use rustc_hash::FxHashMap;

use super::unit::is_origin;
use crate::relink::lsda::{push_sleb, push_uleb};

/// An attribute that no reader knows, in the range for vendors (DWARF 5 §7.5.4): its bytes are only there.
pub(super) const NOTHING: DwAt = DwAt(0x3e51);

/// How a pair of bounds makes room for the offset of a list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conversion {
    /// The list is in the field of `DW_AT_high_pc`.
    InHigh { rest: u8 },
    /// The list is in the field of `DW_AT_low_pc`, and the other's says nothing.
    InLow { rest: u8 },
    /// A call that does not say what it calls.
    WithoutOrigin,
}

/// How the bounds of an abbreviation make room, if they do.
pub(crate) fn conversion(attributes: &[AttributeSpecification], encoding: Encoding) -> Option<Conversion> {
    let size_of = |name: DwAt| {
        let form = attributes.iter().find(|a| a.name() == name)?.form();
        match form {
            gimli::DW_FORM_addr | gimli::DW_FORM_data8 => Some(8u8),
            gimli::DW_FORM_data4 => Some(4),
            _ => Some(0),
        }
    };
    let word = encoding.format.word_size();
    let (low, high) = (size_of(gimli::DW_AT_low_pc)?, size_of(gimli::DW_AT_high_pc)?);
    let rest = |size: u8| size.checked_sub(word).filter(|rest| [0, 4].contains(rest));
    match (rest(high), rest(low)) {
        (Some(rest), _) => Some(Conversion::InHigh { rest }),
        (None, Some(rest)) => Some(Conversion::InLow { rest }),
        (None, None) => None,
    }
}

/// What becomes of an abbreviation of which some entries need a list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Converted {
    pub(crate) conversion: Conversion,
    /// The code of the abbreviation for these entries; `None`: it is changed itself.
    pub(crate) code: Option<u64>,
}

/// What is converted, by the offset of the table and the code.
pub(crate) type Conversions = BTreeMap<u64, BTreeMap<u64, Converted>>;

/// Finds codes for what is converted. The section's tables are those of the units.
pub(crate) fn assign(section: &[u8], conversions: &mut Conversions) -> gimli::Result<()> {
    for (&table, converted) in conversions.iter_mut().filter(|(_, converted)| !converted.is_empty()) {
        // Codes ascend without gaps in what compilers write, and a reader may count on that.
        let mut next = 1 + codes(section, table)?.into_iter().max().unwrap_or(0);
        for (&code, converted) in converted {
            if uleb_len(next) == uleb_len(code) {
                converted.code = Some(next);
                next += 1;
            }
        }
    }
    Ok(())
}

/// Bytes of a number.
pub(crate) fn uleb_len(value: u64) -> u8 {
    (64 - value.leading_zeros()).div_ceil(7).max(1) as u8
}

fn codes(section: &[u8], table: u64) -> gimli::Result<Vec<u64>> {
    let mut codes = Vec::new();
    read(section, table, |code, _, _, _| codes.push(code))?;
    Ok(codes)
}

/// An attribute's name, form, and the value that is in the abbreviation itself.
type Specification = (DwAt, DwForm, Option<i64>);

/// Visits the abbreviations of a table: code, tag, whether there are children, attributes.
fn read(section: &[u8], table: u64, mut visit: impl FnMut(u64, u64, u8, &[Specification])) -> gimli::Result<()> {
    let rest = section.get(table as usize..).unwrap_or(&[]);
    let mut input = gimli::EndianSlice::new(rest, LittleEndian);
    let mut attributes = Vec::new();
    loop {
        let code = input.read_uleb128()?;
        if code == 0 {
            return Ok(());
        }
        let (tag, children) = (input.read_uleb128()?, input.read_u8()?);
        attributes.clear();
        loop {
            let (name, form) = (DwAt(input.read_uleb128_u16()?), DwForm(input.read_uleb128_u16()?));
            if name.0 == 0 && form.0 == 0 {
                break;
            }
            let value = if form == gimli::DW_FORM_implicit_const { Some(input.read_sleb128()?) } else { None };
            attributes.push((name, form, value));
        }
        visit(code, tag, children, &attributes);
    }
}

/// The section anew: its bytes, and for each table that a unit uses, by its old offset, the new one.
pub(crate) fn write(
    section: &[u8],
    tables: &[(u64, Encoding)],
    conversions: &Conversions,
) -> gimli::Result<(Vec<u8>, FxHashMap<u64, u64>)> {
    let (mut bytes, mut places) = (Vec::with_capacity(section.len() + section.len() / 8), FxHashMap::default());
    for &(table, encoding) in tables {
        if places.contains_key(&table) {
            continue;
        }
        places.insert(table, bytes.len() as u64);
        let mut added: Vec<(u64, Vec<u8>)> = Vec::new();
        read(section, table, |code, tag, children, attributes| {
            let converted = conversions.get(&table).and_then(|codes| codes.get(&code));
            let push = |bytes: &mut Vec<u8>, code: u64, conversion: Option<Conversion>| {
                push_uleb(bytes, code);
                push_uleb(bytes, tag);
                bytes.push(children);
                for attribute in attributes {
                    push_attribute(bytes, attribute, conversion, encoding);
                }
                bytes.extend_from_slice(&[0, 0]);
            };
            match converted {
                Some(Converted { conversion, code: None }) => push(&mut bytes, code, Some(*conversion)),
                Some(Converted { conversion, code: Some(new) }) => {
                    push(&mut bytes, code, None);
                    let mut other = Vec::new();
                    push(&mut other, *new, Some(*conversion));
                    added.push((*new, other));
                }
                None => push(&mut bytes, code, None),
            }
        })?;
        added.sort_unstable_by_key(|added| added.0);
        bytes.extend(added.into_iter().flat_map(|added| added.1));
        bytes.push(0);
    }
    Ok((bytes, places))
}

fn push_attribute(bytes: &mut Vec<u8>, &(name, form, value): &Specification, conversion: Option<Conversion>, encoding: Encoding) {
    let mut push = |name: DwAt, form: DwForm| {
        push_uleb(bytes, u64::from(name.0));
        push_uleb(bytes, u64::from(form.0));
    };
    let offset = match (encoding.version, encoding.format) {
        (4.., _) => gimli::DW_FORM_sec_offset,
        (_, gimli::Format::Dwarf32) => gimli::DW_FORM_data4,
        (_, gimli::Format::Dwarf64) => gimli::DW_FORM_data8,
    };
    match (name, conversion) {
        (gimli::DW_AT_high_pc, Some(Conversion::InHigh { rest })) | (gimli::DW_AT_low_pc, Some(Conversion::InLow { rest })) => {
            push(gimli::DW_AT_ranges, offset);
            if rest > 0 {
                push(NOTHING, gimli::DW_FORM_data4);
            }
        }
        (gimli::DW_AT_high_pc, Some(Conversion::InLow { .. })) => push(NOTHING, form),
        (name, Some(Conversion::WithoutOrigin)) if is_origin(name) => push(NOTHING, form),
        // They name a place in the old list of locations.
        (gimli::DW_AT_GNU_locviews, _) => push(NOTHING, form),
        _ => push(name, form),
    }
    if let Some(value) = value {
        push_sleb(bytes, value);
    }
}
