//! From the bytes of `.gcc_except_table` to [`Lsda`].
//!
//! **Method.** A table has no length of its own. The header gives the call-site table; its rows name chains in the action table; the
//! chains' filters name entries of the type table (positive) and exception specifications (negative). What the chains
//! reach is what the table holds, so each part is measured by following the one before it.
//!
//! **Refused**, so that the code stays where it is: rows that don't ascend or that leave the entry's code, pointers that only a relocation
//! completes, parts that overlap. **Ends** because each row takes bytes and a chain is left where it meets a record that was seen.
//!
//! Sources: Itanium C++ ABI "Exception Handling Tables", LSB 5.0 §10.5.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashSet;

use crate::address::Va;
use crate::elf::cursor::{Cursor, Problem};
use crate::elf::image::Image;
use crate::elf::lsda::{CallSite, Lsda};

/// Bytes that all tables of a file together may be read from. Honest tables don't overlap much; hostile entries could all name one
/// that fills the file. The sum does not depend on the order of reading, so neither does whether it runs out.
pub(crate) struct Budget(AtomicU64);

impl Budget {
    pub(crate) fn for_file(image: &Image<'_>) -> Self {
        Budget(AtomicU64::new((image.bytes.len() as u64).saturating_mul(2)))
    }
    pub(crate) fn is_exhausted(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
    fn spend(&self, bytes: u64) -> Result<(), Problem> {
        let spent = |left: u64| Some(left.saturating_sub(bytes));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent);
        if self.is_exhausted() { Err("exception tables that overlap") } else { Ok(()) }
    }
}

/// What the action chains reach.
#[derive(Default)]
struct Reach {
    /// Bytes of the action table.
    actions: u64,
    /// The highest type index.
    types: u64,
    /// Offsets behind the type table's base at which exception specifications start.
    specifications: Vec<u64>,
}

impl Lsda {
    /// Reads the table at an address, for the code of one frame entry.
    pub(crate) fn parse(image: &Image<'_>, at: Va, code: Range<Va>, budget: &Budget) -> Result<Lsda, Problem> {
        let bytes = bytes_from(image, at).ok_or("lies outside the file")?;
        let mut cursor = Cursor::new(bytes, at, image.kind.is_position_independent());
        let pad_base = match cursor.u8()? {
            OMIT => code.start,
            encoding => cursor.pointer(encoding)?.unwrap_or_default(),
        };
        let type_encoding = cursor.u8()?;
        let type_base = if type_encoding == OMIT {
            None
        } else {
            let distance = cursor.uleb()?;
            Some(cursor.va().0.checked_add(distance).map(Va).ok_or("a type table outside the address space")?)
        };
        let site_encoding = cursor.u8()?;
        let sites_len = cursor.uleb()?;
        let sites = cursor.split(sites_len)?;
        budget.spend(sites_len)?;
        let call_sites = parse_call_sites(sites, site_encoding, pad_base, code)?;
        let actions = cursor;
        let mut reach = reach_of_actions(actions, &call_sites, budget)?;
        let mut lsda = Lsda {
            at,
            len: actions.va() - at + reach.actions,
            call_sites,
            actions: actions.rest()[..reach.actions as usize].to_vec(),
            type_encoding,
            types: Vec::new(),
            specifications: Vec::new(),
        };
        if let Some(base) = type_base {
            lsda.parse_types(image, base, &mut reach, budget)?;
        } else if reach.types != 0 || !reach.specifications.is_empty() {
            return Err("filters without a type table");
        }
        Ok(lsda)
    }

    /// Reads the specifications behind the base, then the types before it.
    fn parse_types(&mut self, image: &Image<'_>, base: Va, reach: &mut Reach, budget: &Budget) -> Result<(), Problem> {
        let is_position_independent = image.kind.is_position_independent();
        let entry_size = entry_size(self.type_encoding)?;
        let actions_end = self.at + self.len;
        if !reach.specifications.is_empty() {
            let bytes = bytes_from(image, base).ok_or("specifications outside the file")?;
            let (len, max_type) = reach_of_specifications(Cursor::new(bytes, base, is_position_independent), reach, budget)?;
            reach.types = reach.types.max(max_type);
            self.specifications = bytes[..len].to_vec();
        }
        let size = reach.types.checked_mul(entry_size).ok_or("a type index out of range")?;
        let start = base.0.checked_sub(size).map(Va).filter(|&start| start >= actions_end);
        let start = start.ok_or("a type table that overlaps the action table")?;
        budget.spend(size)?;
        let bytes = usize::try_from(size).ok().and_then(|size| image.read(start, size)).ok_or("a type table outside the file")?;
        let mut cursor = Cursor::new(bytes, start, is_position_independent);
        while !cursor.is_empty() {
            self.types.push(cursor.pointer(self.type_encoding)?);
        }
        self.types.reverse();
        self.len = base - self.at + self.specifications.len() as u64;
        Ok(())
    }
}

const OMIT: u8 = gimli::DW_EH_PE_omit.0;

/// The file's bytes from an address to the end of its segment.
fn bytes_from<'a>(image: &Image<'a>, at: Va) -> Option<&'a [u8]> {
    let segment = image.segment_at(at)?;
    let len = segment.p_filesz.checked_sub(at - segment.p_vaddr)?;
    image.read(at, usize::try_from(len).ok()?)
}

/// Type table entries are found by index, so only formats of a fixed size can occur.
fn entry_size(encoding: u8) -> Result<u64, Problem> {
    match gimli::DwEhPe(encoding & 0x0f) {
        gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => Ok(8),
        gimli::DW_EH_PE_udata4 | gimli::DW_EH_PE_sdata4 => Ok(4),
        gimli::DW_EH_PE_udata2 | gimli::DW_EH_PE_sdata2 => Ok(2),
        _ => Err("a type table with entries of no fixed size"),
    }
}

fn parse_call_sites(mut sites: Cursor<'_>, encoding: u8, pad_base: Va, code: Range<Va>) -> Result<Vec<CallSite>, Problem> {
    if encoding & 0xf0 != 0 {
        return Err("call sites that are not counted from the code's start");
    }
    let mut call_sites: Vec<CallSite> = Vec::new();
    let mut reached = code.start;
    while !sites.is_empty() {
        let start = sites.formatted(encoding)?;
        let len = sites.formatted(encoding)?;
        let pad = sites.formatted(encoding)?;
        let action = sites.uleb()?;
        let start =
            code.start.0.checked_add(start).map(Va).filter(|&start| start >= reached).ok_or("call sites that don't ascend")?;
        let end =
            start.0.checked_add(len).map(Va).filter(|&end| end <= code.end).ok_or("a call site outside the entry's code")?;
        reached = end;
        // A pad may lie in another part of the function, below the base: offsets count modulo 2^64.
        let landing_pad = (pad != 0).then(|| pad_base.offset(pad as i64));
        if start != end {
            call_sites.push(CallSite { start, end, landing_pad, action });
        }
    }
    Ok(call_sites)
}

/// Follows the chains that the call sites name: each record is a filter and the distance from the second field to the next record.
fn reach_of_actions(actions: Cursor<'_>, call_sites: &[CallSite], budget: &Budget) -> Result<Reach, Problem> {
    let mut reach = Reach::default();
    let mut seen = FxHashSet::default();
    for site in call_sites {
        let Some(mut at) = site.action.checked_sub(1) else { continue };
        while seen.insert(at) {
            budget.spend(2)?;
            let mut record = actions;
            record.take(at)?;
            match record.sleb()? {
                filter @ 1.. => reach.types = reach.types.max(filter as u64),
                filter @ ..0 => reach.specifications.push(filter.unsigned_abs() - 1),
                0 => {}
            }
            let from = record.va() - actions.va();
            let distance = record.sleb()?;
            reach.actions = reach.actions.max(record.va() - actions.va());
            if distance == 0 {
                break;
            }
            at = from.checked_add_signed(distance).ok_or("an action chain that leaves its table")?;
        }
    }
    Ok(reach)
}

/// The bytes of the specifications, lists of type indices that end with 0, and the highest index among them.
fn reach_of_specifications(base: Cursor<'_>, reach: &mut Reach, budget: &Budget) -> Result<(usize, u64), Problem> {
    reach.specifications.sort_unstable();
    reach.specifications.dedup();
    let mut end = 0;
    let mut max_type = 0;
    for &start in &reach.specifications {
        let mut list = base;
        if start < end {
            // Inside the list before: its tail, already measured.
            continue;
        }
        list.take(start)?;
        loop {
            budget.spend(1)?;
            let index = list.uleb()?;
            max_type = max_type.max(index);
            if index == 0 {
                break;
            }
        }
        end = list.va() - base.va();
    }
    Ok((end as usize, max_type))
}
