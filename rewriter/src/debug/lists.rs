//! Lists of ranges and of locations, as they are written.
//!
//! **Method.** All addresses are absolute, so that no list depends on where its unit begins: in DWARF 5 several parts of a list share a base that the list names
//! itself, before that the base is the unit's, which is made 0.
//!
//! Sources: DWARF 5 §2.6.2, §2.17.3, §7.28, §7.29; DWARF 4 §2.6.2, §2.17.3.

use std::ops::Range;

use gimli::{Encoding, Format};

use crate::relink::lsda::push_uleb;

/// A range with a location's description; empty in lists of ranges.
pub(crate) type Entry<'a> = (Range<u64>, &'a [u8]);

/// What a list lists.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    Ranges,
    Locations,
}

/// The lists of one unit: one contribution to a section. Offsets count from its start.
#[derive(Debug)]
pub(crate) struct Contribution {
    lists: Lists,
    encoding: Encoding,
    bytes: Vec<u8>,
    /// What entries of the table of offsets count from, and how many there are.
    table: (usize, usize),
    has_lists: bool,
}

impl Contribution {
    /// For a unit whose lists are partly named by their numbers: `indexed` of them.
    pub(crate) fn new(lists: Lists, encoding: Encoding, indexed: usize) -> Self {
        let mut bytes = Vec::new();
        let mut table = 0;
        if encoding.version >= 5 {
            if encoding.format == Format::Dwarf64 {
                bytes.extend_from_slice(&[0xff; 4]);
            }
            push_offset(&mut bytes, encoding.format, 0);
            bytes.extend_from_slice(&[5, 0, 8, 0]);
            bytes.extend_from_slice(&(indexed as u32).to_le_bytes());
            table = bytes.len();
            bytes.resize(table + indexed * usize::from(encoding.format.word_size()), 0);
        }
        Contribution { lists, encoding, bytes, table: (table, indexed), has_lists: indexed > 0 }
    }

    /// Where the table of offsets begins.
    pub(crate) fn base(&self) -> u64 {
        self.table.0 as u64
    }

    /// Adds a list; `always` is the description that holds where no other does. Returns where it is.
    pub(crate) fn push(&mut self, entries: &[Entry<'_>], always: Option<&[u8]>) -> u64 {
        self.has_lists = true;
        let at = self.bytes.len() as u64;
        if self.encoding.version >= 5 {
            self.push_new(entries, always)
        } else {
            self.push_old(entries)
        }
        at
    }

    /// Says where the list of a number is.
    pub(crate) fn set_indexed(&mut self, index: usize, at: u64) {
        let size = usize::from(self.encoding.format.word_size());
        let value = at.saturating_sub(self.base()).to_le_bytes();
        if index < self.table.1 {
            let field = self.table.0 + index * size;
            self.bytes[field..field + size].copy_from_slice(&value[..size]);
        }
    }

    /// Its bytes; none if there are no lists.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if !self.has_lists {
            return Vec::new();
        }
        if self.encoding.version >= 5 {
            let (start, size) = if self.encoding.format == Format::Dwarf64 { (4, 8) } else { (0, 4) };
            let len = (self.bytes.len() - start - size) as u64;
            self.bytes[start..start + size].copy_from_slice(&len.to_le_bytes()[..size]);
        }
        self.bytes
    }

    fn push_new(&mut self, entries: &[Entry<'_>], always: Option<&[u8]>) {
        // The codes of both kinds of lists are told apart by the section alone, but for that of the length.
        let (end_of_list, offset_pair, base_address, start_length) = match self.lists {
            Lists::Ranges => (
                gimli::DW_RLE_end_of_list.0,
                gimli::DW_RLE_offset_pair.0,
                gimli::DW_RLE_base_address.0,
                gimli::DW_RLE_start_length.0,
            ),
            Lists::Locations => (
                gimli::DW_LLE_end_of_list.0,
                gimli::DW_LLE_offset_pair.0,
                gimli::DW_LLE_base_address.0,
                gimli::DW_LLE_start_length.0,
            ),
        };
        let base = entries.iter().map(|(range, _)| range.start).min().filter(|_| entries.len() > 1);
        if let Some(base) = base {
            self.bytes.push(base_address);
            self.bytes.extend_from_slice(&base.to_le_bytes());
        }
        for (range, description) in entries {
            match base {
                Some(base) => {
                    self.bytes.push(offset_pair);
                    push_uleb(&mut self.bytes, range.start - base);
                    push_uleb(&mut self.bytes, range.end - base);
                }
                None => {
                    self.bytes.push(start_length);
                    self.bytes.extend_from_slice(&range.start.to_le_bytes());
                    push_uleb(&mut self.bytes, range.end - range.start);
                }
            }
            self.push_description(description);
        }
        if let Some(description) = always {
            self.bytes.push(gimli::DW_LLE_default_location.0);
            self.push_description(description);
        }
        self.bytes.push(end_of_list);
    }

    fn push_description(&mut self, description: &[u8]) {
        if self.lists == Lists::Locations {
            push_uleb(&mut self.bytes, description.len() as u64);
            self.bytes.extend_from_slice(description);
        }
    }

    fn push_old(&mut self, entries: &[Entry<'_>]) {
        for (range, description) in entries {
            self.bytes.extend_from_slice(&range.start.to_le_bytes());
            self.bytes.extend_from_slice(&range.end.to_le_bytes());
            if self.lists == Lists::Locations {
                self.bytes.extend_from_slice(&(description.len() as u16).to_le_bytes());
                self.bytes.extend_from_slice(description);
            }
        }
        self.bytes.extend_from_slice(&[0; 16]);
    }
}

/// A field as wide as offsets are.
pub(crate) fn push_offset(bytes: &mut Vec<u8>, format: Format, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes()[..usize::from(format.word_size())]);
}
