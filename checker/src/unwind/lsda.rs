//! The language-specific data of a function as the C++ and Rust personalities read it (Itanium C++ ABI: Exception Handling, level II;
//! the encoding is that of GCC's `except.cc` output as the LSB and the ABI drafts describe it).
//!
//! Terminates: call sites consume bytes, and an action chain is followed for at most as many steps as it has bytes.

use std::cell::Cell;
use std::rc::Rc;

use super::reader::{OMIT, Reader};
use crate::image::Image;

/// One record of an action chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Handler {
    filter: i64,
    /// The type or, for an exception specification, the list of types, by address; indirect ones by their cell.
    types: Vec<u64>,
}

/// What happens when a call throws.
#[derive(Clone, Debug)]
pub(crate) struct CallSite {
    start: u64,
    end: u64,
    pub(crate) landing_pad: Option<u64>,
    pub(crate) handlers: Rc<Vec<Handler>>,
}

impl CallSite {
    /// Whether nothing is done with an exception.
    pub(crate) fn is_passing(&self) -> bool {
        self.landing_pad.is_none() && self.handlers.is_empty()
    }
}

/// The call sites of one function, by start.
#[derive(Debug)]
pub(crate) struct CallSites {
    sites: Vec<CallSite>,
    /// Whether landing pads count from a base of their own (`LPStart`), which not every personality reads: that of D gives up at most encodings.
    pub(crate) has_base: bool,
    /// Bytes of the table that were read.
    pub(crate) len: u64,
}

impl CallSites {
    /// Whether exceptions land at an address.
    pub(crate) fn land_at(&self, address: u64) -> bool {
        self.landing_pads().any(|pad| pad == address)
    }

    pub(crate) fn landing_pads(&self) -> impl Iterator<Item = u64> + '_ {
        self.sites.iter().filter_map(|site| site.landing_pad)
    }

    /// `None` if the table is not in this format.
    pub(crate) fn parse(image: &Image<'_>, address: u64, function_start: u64) -> Option<Self> {
        let bytes = image.tail(address)?;
        let mut reader = Reader::new(bytes, address);
        let base_encoding = reader.u8()?;
        let base = if base_encoding == OMIT { function_start } else { reader.encoded(base_encoding, 0, image)? };
        let type_encoding = reader.u8()?;
        let types = if type_encoding == OMIT {
            None
        } else {
            let offset = usize::try_from(reader.uleb()?).ok()?;
            Some(reader.at().checked_add(offset)?)
        };
        let site_encoding = reader.u8()?;
        let size = usize::try_from(reader.uleb()?).ok()?;
        let actions = reader.at().checked_add(size)?;
        let end = Cell::new(types.unwrap_or(actions).max(actions));
        let tables = Tables { image, address, bytes, actions, types, type_encoding, end };
        let mut sites = Vec::new();
        while reader.at() < actions {
            let start = reader.encoded_value(site_encoding)?;
            let size = reader.encoded_value(site_encoding)?;
            let pad = reader.encoded_value(site_encoding)?;
            let action = reader.uleb()?;
            let start = function_start.wrapping_add(start);
            sites.push(CallSite {
                start,
                end: start.wrapping_add(size),
                landing_pad: (pad != 0).then(|| base.wrapping_add(pad)),
                handlers: Rc::new(tables.handlers(action)?),
            });
        }
        sites.sort_by_key(|site| site.start);
        Some(Self { sites, has_base: base_encoding != OMIT, len: tables.end.get() as u64 })
    }

    pub(crate) fn find(&self, address: u64) -> Option<&CallSite> {
        let after = self.sites.partition_point(|site| site.start <= address);
        self.sites[..after].last().filter(|site| address < site.end)
    }
}

struct Tables<'a, 'i> {
    image: &'i Image<'a>,
    address: u64,
    bytes: &'a [u8],
    /// Offset of the action table, which begins where the call sites end.
    actions: usize,
    /// Offset of the end of the type table, which is read backward.
    types: Option<usize>,
    type_encoding: u8,
    /// The furthest offset that was read up to.
    end: Cell<usize>,
}

impl Tables<'_, '_> {
    fn handlers(&self, action: u64) -> Option<Vec<Handler>> {
        let mut handlers = Vec::new();
        let Some(first) = action.checked_sub(1) else { return Some(handlers) };
        let mut at = self.actions.checked_add(usize::try_from(first).ok()?)?;
        // A chain that is longer than any real one is a cycle.
        for _ in 0..4096 {
            let mut reader = Reader::new(self.bytes, self.address);
            reader.skip(at);
            let filter = reader.sleb()?;
            let next_at = reader.at();
            let next = reader.sleb()?;
            self.end.set(self.end.get().max(reader.at()));
            handlers.push(Handler { filter, types: self.types_of(filter)? });
            if next == 0 {
                return Some(handlers);
            }
            at = usize::try_from(i64::try_from(next_at).ok()?.checked_add(next)?).ok()?;
        }
        None
    }

    fn types_of(&self, filter: i64) -> Option<Vec<u64>> {
        if filter == 0 {
            return Some(Vec::new());
        }
        let end = self.types?;
        if filter > 0 {
            return Some(vec![self.type_at(filter.cast_unsigned())?]);
        }
        let mut reader = Reader::new(self.bytes, self.address);
        reader.skip(end.checked_add(usize::try_from(-(filter + 1)).ok()?)?);
        let mut list = Vec::new();
        loop {
            let index = reader.uleb()?;
            self.end.set(self.end.get().max(reader.at()));
            match index {
                0 => return Some(list),
                index => list.push(self.type_at(index)?),
            }
        }
    }

    fn type_at(&self, index: u64) -> Option<u64> {
        let size = match self.type_encoding & 0x07 {
            2 => 2,
            3 => 4,
            0 | 4 => 8,
            _ => return None,
        };
        let offset = self.types?.checked_sub(usize::try_from(index).ok()?.checked_mul(size)?)?;
        let mut reader = Reader::new(self.bytes, self.address);
        reader.skip(offset);
        reader.encoded(self.type_encoding, 0, self.image)
    }
}
