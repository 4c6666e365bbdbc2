//! What is written, read again by a library that has no part in writing it.

use std::ops::Range;

use gimli::{Encoding, EndianSlice, Format, LittleEndian, Reader};
use proptest::prelude::*;

use super::abbreviations::{Conversion, Conversions, Converted, assign, conversion, uleb_len, write};
use super::expression::{Named, named};
use super::indexes::lines_of_macros;
use super::lines::{Row, Writer};
use super::lists::{Contribution, Lists};
use super::padded;
use super::unit::Field;
use crate::relink::lsda::push_uleb;

fn encoding(version: u16) -> Encoding {
    Encoding { format: Format::Dwarf32, version, address_size: 8 }
}

fn slice(bytes: &[u8]) -> EndianSlice<'_, LittleEndian> {
    EndianSlice::new(bytes, LittleEndian)
}

/// The ranges at an offset, of a unit that begins at 0.
fn ranges_at(bytes: &[u8], at: u64, version: u16) -> Vec<Range<u64>> {
    let empty: &[u8] = &[];
    let (old, new) = if version < 5 { (bytes, empty) } else { (empty, bytes) };
    let lists = gimli::RangeLists::new(slice(old).into(), slice(new).into());
    let addresses = gimli::DebugAddr::from(slice(empty));
    let offset = gimli::RangeListsOffset(at as usize);
    let list = lists.ranges(offset, encoding(version), 0, &addresses, gimli::DebugAddrBase(0)).unwrap();
    list.map(|range| range.unwrap()).map(|range| range.begin..range.end).collect()
}

#[test]
fn a_list_of_ranges_is_read_as_it_was_written() {
    let lists: [&[Range<u64>]; 3] =
        [&[0x1000..0x1010, 0x1010..0x1011], &[0x2000..0x2001, 0x1000..0x1fff, 0x9000_0000..0x9000_0002], &[]];
    for version in [4, 5] {
        let mut contribution = Contribution::new(Lists::Ranges, encoding(version), 0);
        let push = |ranges: &[Range<u64>]| {
            let entries: Vec<_> = ranges.iter().map(|range| (range.clone(), &[][..])).collect();
            contribution.push(&entries, None)
        };
        let places: Vec<u64> = lists.into_iter().map(push).collect();
        let bytes = contribution.finish();
        for (at, wanted) in places.into_iter().zip(lists) {
            assert_eq!(ranges_at(&bytes, at, version), wanted, "DWARF {version}");
        }
    }
}

#[test]
fn a_numbered_list_of_locations_is_found_by_its_number() {
    let mut contribution = Contribution::new(Lists::Locations, encoding(5), 2);
    let base = contribution.base();
    let first = contribution.push(&[(0x10..0x20, &[0x50][..]), (0x40..0x44, &[0x51, 0x9f][..])], Some(&[0x53]));
    let second = contribution.push(&[(0x20..0x21, &[0x52][..])], None);
    contribution.set_indexed(0, second);
    contribution.set_indexed(1, first);
    let bytes = contribution.finish();
    let lists = gimli::LocationLists::new(slice(&[]).into(), slice(&bytes).into());
    let addresses = gimli::DebugAddr::from(slice(&[]));
    let read = |number: usize| -> Vec<(Range<u64>, Vec<u8>)> {
        let base = gimli::DebugLocListsBase(base as usize);
        let at = lists.get_offset(encoding(5), base, gimli::DebugLocListsIndex(number)).unwrap();
        let list = lists.locations(at, encoding(5), 0, &addresses, gimli::DebugAddrBase(0)).unwrap();
        list.map(|entry| entry.unwrap()).map(|e| (e.range.begin..e.range.end, e.data.0.slice().to_vec())).collect()
    };
    assert_eq!(read(0), [(0x20..0x21, vec![0x52])]);
    assert_eq!(read(1), [(0x10..0x20, vec![0x50]), (0x40..0x44, vec![0x51, 0x9f]), (0..u64::MAX, vec![0x53])]);
}

/// A table of two functions' abbreviations, by codes; `DW_AT_high_pc` has the form.
fn table(codes: &[u8], high: gimli::DwForm) -> Vec<u8> {
    let mut bytes = Vec::new();
    for &code in codes {
        bytes.extend_from_slice(&[code, gimli::DW_TAG_subprogram.0 as u8, 1]);
        bytes.extend_from_slice(&[gimli::DW_AT_low_pc.0 as u8, gimli::DW_FORM_addr.0 as u8]);
        bytes.extend_from_slice(&[gimli::DW_AT_high_pc.0 as u8, high.0 as u8, 0, 0]);
    }
    bytes.push(0);
    bytes
}

/// Sizes of the attributes of an abbreviation, and whether it has a list of ranges.
fn shape(table: &[u8], code: u64) -> (Vec<usize>, bool) {
    let tables = gimli::DebugAbbrev::new(table, LittleEndian);
    let abbreviations = tables.abbreviations(gimli::DebugAbbrevOffset(0)).unwrap();
    let attributes = abbreviations.get(code).unwrap().attributes().to_vec();
    let size = |form: gimli::DwForm| match form {
        gimli::DW_FORM_addr | gimli::DW_FORM_data8 => 8,
        gimli::DW_FORM_data4 | gimli::DW_FORM_sec_offset => 4,
        gimli::DW_FORM_data1 => 1,
        other => panic!("{other}"),
    };
    let has_list = attributes.iter().any(|a| a.name() == gimli::DW_AT_ranges && a.form() == gimli::DW_FORM_sec_offset);
    (attributes.iter().map(|a| size(a.form())).collect(), has_list)
}

#[test]
fn an_entry_with_a_list_is_as_long_as_the_one_with_bounds() {
    for (high, wanted) in [(gimli::DW_FORM_data8, 16), (gimli::DW_FORM_data4, 12), (gimli::DW_FORM_data1, 9)] {
        let section = table(&[1, 2], high);
        let tables = gimli::DebugAbbrev::new(&section, LittleEndian).abbreviations(gimli::DebugAbbrevOffset(0)).unwrap();
        let conversion = conversion(tables.get(1).unwrap().attributes(), encoding(5)).unwrap();
        let mut conversions: Conversions = [(0, [(1, Converted { conversion, code: None })].into())].into();
        assign(&section, &mut conversions).unwrap();
        assert_eq!(conversions[&0][&1].code, Some(3), "the next code is free");
        let (written, places) = write(&section, &[(0, encoding(5))], &conversions).unwrap();
        assert_eq!(places[&0], 0);
        let (old, new) = (shape(&written, 1), shape(&written, 3));
        assert!(!old.1 && new.1);
        assert_eq!((old.0.iter().sum::<usize>(), new.0.iter().sum::<usize>()), (wanted, wanted));
    }
}

#[test]
fn where_no_code_of_the_same_length_is_free_the_abbreviation_itself_is_changed() {
    let codes: Vec<u8> = (1..=127).collect();
    let section = table(&codes, gimli::DW_FORM_data8);
    let conversion = Conversion::InHigh { rest: 4 };
    let mut conversions: Conversions = [(0, [(5, Converted { conversion, code: None })].into())].into();
    assign(&section, &mut conversions).unwrap();
    assert_eq!(conversions[&0][&5].code, None);
    let (written, _) = write(&section, &[(0, encoding(5))], &conversions).unwrap();
    assert!(shape(&written, 5).1 && !shape(&written, 6).1);
}

#[test]
fn a_padded_number_is_read_as_itself() {
    for (value, len) in [(0u64, 1u8), (5, 1), (5, 3), (127, 2), (128, 2), (16_383, 2), (300, 8)] {
        let bytes = padded(value, len).to_le_bytes();
        let mut input = slice(&bytes);
        assert_eq!(input.read_uleb128().unwrap(), value);
        assert_eq!(8 - input.len(), usize::from(len), "{value} in {len} bytes");
        assert!(uleb_len(value) <= len);
    }
}

#[test]
fn an_expression_that_nests_without_end_is_refused() {
    let nested = |depth: usize| {
        let mut bytes = vec![gimli::DW_OP_addr.0, 1, 2, 3, 4, 5, 6, 7, 8];
        for _ in 0..depth {
            let mut outer = vec![gimli::DW_OP_entry_value.0];
            push_uleb(&mut outer, bytes.len() as u64);
            outer.extend_from_slice(&bytes);
            bytes = outer;
        }
        bytes
    };
    let old = u64::from_le_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(named(&nested(1), encoding(5)).unwrap(), [Named::Here { at: 3, old }]);
    assert!(named(&nested(5000), encoding(5)).is_err());
}

#[test]
fn the_line_table_of_macros_is_read_where_they_name_one() {
    let with = [&[5, 0, 2][..], &[0x10, 0x20, 0, 0], &[0]].concat();
    assert_eq!(lines_of_macros(&with, 0).unwrap(), Some((Field { at: 3, len: 4 }, 0x2010)));
    assert_eq!(lines_of_macros(&[5, 0, 0, 0], 0).unwrap(), None);
    for at in [0, 6, usize::MAX] {
        assert!(lines_of_macros(&with[..5], at).is_err(), "{at}");
    }
}

/// The header of a program of DWARF 4 without files, for opcodes as GCC has them.
fn header(program_len: usize) -> Vec<u8> {
    let tail = [1, 1, 1, 0xf6, 242, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0];
    let mut bytes = ((2 + 4 + tail.len() + program_len) as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(&4u16.to_le_bytes());
    bytes.extend_from_slice(&(tail.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&tail);
    bytes
}

fn with_header(program: &[u8]) -> Vec<u8> {
    let mut bytes = header(program.len());
    bytes.extend_from_slice(program);
    bytes
}

prop_compose! {
    fn any_row()(
        file in 1u64..4, line in prop_oneof![0u64..40, 0u64..1 << 31], column in 0u64..300, discriminator in 0u64..3,
        is_stmt in any::<bool>(), basic_block in any::<bool>(), prologue_end in any::<bool>(), epilogue_begin in any::<bool>(),
    ) -> Row {
        Row { file, line, column, discriminator, isa: 0, is_stmt, basic_block, prologue_end, epilogue_begin }
    }
}

proptest! {
    #[test]
    fn rows_are_read_as_they_were_written(
        start in 0u64..1 << 40,
        steps in prop::collection::vec((prop_oneof![0u64..20, 0u64..100_000], any_row()), 1..30),
    ) {
        let empty = with_header(&[]);
        let lines = gimli::DebugLine::new(&empty, LittleEndian);
        let parsed = lines.program(gimli::DebugLineOffset(0), 8, None, None).unwrap();
        let mut writer = Writer::new(parsed.header());
        let mut wanted: Vec<(u64, Row)> = Vec::new();
        let mut address = start;
        writer.begin(start);
        for (by, row) in steps {
            address += by;
            writer.put(address, row);
            let goes_on = wanted.last().is_some_and(|last| row.goes_on_from(last.1));
            if !goes_on {
                wanted.push((address, row));
            }
        }
        writer.end(address + 7);
        let bytes = with_header(&writer.bytes);
        let lines = gimli::DebugLine::new(&bytes, LittleEndian);
        let mut rows = lines.program(gimli::DebugLineOffset(0), 8, None, None).unwrap().rows();
        let mut read = Vec::new();
        let mut end = None;
        while let Some((_, row)) = rows.next_row().unwrap() {
            if row.end_sequence() {
                end = Some(row.address());
            } else {
                read.push((row.address(), Row::of(row)));
            }
        }
        prop_assert_eq!(read, wanted);
        prop_assert_eq!(end, Some(address + 7));
    }
}
