//! `.gcc_except_table`: for each run of output code with an exception table, that table cut to the run.
//!
//! **Method.** The call sites of the input table are intersected with the pieces of the run and shifted with them. Rows that touch and say
//! the same become one. Action and type tables are copied, and left out where no call site of the run names an action.
//!
//! **Invariants.** A byte of the input without a call site gets none (there an exception must terminate the program), a byte with one
//! gets the same pad and action. Only bytes that come from no input byte (alignment, made-anew branches, none of which throws) may fall to a neighbor.
//! Pads count from the run's start, modulo 2⁶⁴ where they lie below it. No pad is at offset 0, which would mean "none": where a pad is the run's start, the run is to be
//! parted before the first call site with that pad. `LPStart` would say both too, but not every personality reads it: D's ends the program at any encoding
//! that is relative to something, and adds it to the function's start.
//!
//! Sizes depend on code addresses only, so they are known before the section has a place; addresses of its own are patched in by
//! [`LsdaBytes::write`]. Source: Itanium C++ ABI "Exception Handling Tables".

use lifter::Va;
use lifter::elf::lsda::{CallSite, Lsda};

use crate::relink::eh_frame::{Piece, UnwindError};

const OMIT: u8 = gimli::DW_EH_PE_omit.0;
const PCREL: u8 = gimli::DW_EH_PE_pcrel.0;

/// A field that holds an address, to be filled in when the table has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    offset: u32,
    encoding: u8,
    target: Va,
}

/// A table without its place. Two of equal value are interchangeable if they have no fields relative to their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LsdaBytes {
    bytes: Vec<u8>,
    fields: Vec<Field>,
    pub(crate) align: u32,
}

impl LsdaBytes {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
    /// The bytes that say all, if the table says the same at every place.
    pub(crate) fn position_independent(&self) -> Option<&[u8]> {
        self.fields.is_empty().then_some(&self.bytes)
    }
    /// Writes the table for an address to the start of `out`, which has at least its length.
    pub(crate) fn write(&self, at: Va, out: &mut [u8]) -> Result<(), UnwindError> {
        out[..self.bytes.len()].copy_from_slice(&self.bytes);
        for field in &self.fields {
            write_pointer(&mut out[field.offset as usize..], at + u64::from(field.offset), field.encoding, field.target)?;
        }
        Ok(())
    }
}

/// Bytes of a pointer in this encoding. Formats of no fixed size can't be sized before they have a value.
pub(crate) fn pointer_len(encoding: u8) -> Result<usize, UnwindError> {
    match gimli::DwEhPe(encoding & 0x0f) {
        gimli::DW_EH_PE_udata2 | gimli::DW_EH_PE_sdata2 => Ok(2),
        gimli::DW_EH_PE_udata4 | gimli::DW_EH_PE_sdata4 => Ok(4),
        gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => Ok(8),
        _ => Err(UnwindError::Encoding(encoding)),
    }
}

/// Writes an encoded pointer that lies at `at` to the start of `out`.
pub(crate) fn write_pointer(out: &mut [u8], at: Va, encoding: u8, target: Va) -> Result<(), UnwindError> {
    let value = if encoding & 0x70 == PCREL { target.distance(at) } else { target.0 as i64 };
    let out_of_reach = || UnwindError::OutOfReach { at, target };
    let len = pointer_len(encoding)?;
    let is_signed = encoding & 0x08 != 0;
    let fits = match (len, is_signed) {
        (8, _) => true,
        (4, true) => i32::try_from(value).is_ok(),
        (4, false) => u32::try_from(value).is_ok(),
        (_, true) => i16::try_from(value).is_ok(),
        (_, false) => u16::try_from(value).is_ok(),
    };
    let field = out.get_mut(..len).filter(|_| fits).ok_or_else(out_of_reach)?;
    field.copy_from_slice(&value.to_le_bytes()[..len]);
    Ok(())
}

pub(crate) fn push_uleb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn push_sleb(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let low = value as u8 & 0x7f;
        value >>= 7;
        let is_last = value == if low & 0x40 != 0 { -1 } else { 0 };
        out.push(if is_last { low } else { low | 0x80 });
        if is_last {
            return;
        }
    }
}

fn uleb_len(value: u64) -> u64 {
    u64::from((64 - (value | 1).leading_zeros()).div_ceil(7))
}

/// The call sites of a table for a run of pieces, at their new addresses; landing pads are still the old ones.
fn cut_call_sites(call_sites: &[CallSite], pieces: &[Piece]) -> Vec<CallSite> {
    let mut cut: Vec<CallSite> = Vec::new();
    // Where a site must begin to continue the last one: bytes in between come from no input byte.
    let mut continues_at = None;
    for piece in pieces {
        let copied = u64::from(if piece.is_new { piece.new_len } else { piece.old_len.min(piece.new_len) });
        if copied == 0 {
            continue;
        }
        let old_end = piece.old_start + if piece.is_new { 1 } else { copied };
        let first = call_sites.partition_point(|s| s.end <= piece.old_start);
        let within = call_sites[first..].iter().take_while(|s| s.start < old_end);
        let mut reached = continues_at.take().map(|end| (end, piece.new_start));
        for site in within {
            let start = piece.new_start + (site.start.max(piece.old_start) - piece.old_start);
            let end = if piece.is_new { piece.new_end() } else { piece.new_start + (site.end.min(old_end) - piece.old_start) };
            let continued = cut.last_mut().filter(|last| {
                let touches = last.end == start || reached == Some((last.end, start));
                touches && (last.landing_pad, last.action) == (site.landing_pad, site.action)
            });
            match continued {
                Some(last) => last.end = end,
                None => cut.push(CallSite { start, end, ..*site }),
            }
            reached = None;
        }
        continues_at = Some(piece.new_start + copied);
    }
    cut
}

/// What becomes of a table that is cut to a run.
#[derive(Debug)]
pub(crate) enum Cut {
    Table(LsdaBytes),
    /// There is none for all of the run: it must be parted at this address, inside it.
    Part(Va),
}

/// The table for a run of pieces that starts at `code_start` in the output.
pub(crate) fn cut(
    lsda: &Lsda,
    code_start: Va,
    pieces: &[Piece],
    landing_pad: impl Fn(Va) -> Option<Va>,
) -> Result<Cut, UnwindError> {
    let mut call_sites = cut_call_sites(&lsda.call_sites, pieces);
    for site in &mut call_sites {
        if let Some(old) = site.landing_pad {
            site.landing_pad = Some(landing_pad(old).ok_or(UnwindError::LandingPadGone { pad: old, lsda: lsda.at })?);
        }
    }
    if let Some(site) = call_sites.iter().find(|site| site.landing_pad == Some(code_start)) {
        let lands_on_itself = || UnwindError::LandsOnItself { code: code_start, lsda: lsda.at };
        return if site.start > code_start { Ok(Cut::Part(site.start)) } else { Err(lands_on_itself()) };
    }
    let mut table = LsdaBytes { bytes: vec![OMIT], fields: Vec::new(), align: 1 };
    let mut sites = Vec::new();
    for site in &call_sites {
        push_uleb(&mut sites, site.start - code_start);
        push_uleb(&mut sites, site.end - site.start);
        push_uleb(&mut sites, site.landing_pad.map_or(0, |pad| pad.0.wrapping_sub(code_start.0)));
        push_uleb(&mut sites, site.action);
    }
    table.push_tables(lsda, &sites, call_sites.iter().any(|s| s.action != 0))?;
    Ok(Cut::Table(table))
}

impl LsdaBytes {
    /// Appends everything behind the pad base.
    fn push_tables(&mut self, lsda: &Lsda, sites: &[u8], has_actions: bool) -> Result<(), UnwindError> {
        let has_types = has_actions && lsda.type_encoding != OMIT && !(lsda.types.is_empty() && lsda.specifications.is_empty());
        let type_size = if has_types { pointer_len(lsda.type_encoding)? as u64 } else { 0 };
        let actions: &[u8] = if has_actions { &lsda.actions } else { &[] };
        let type_bytes = type_size * lsda.types.len() as u64;
        let mut padding = 0;
        if has_types {
            self.align = 4;
            self.bytes.push(lsda.type_encoding);
            // From behind the distance field to the type table's base, alignment not yet known.
            let unpadded = 1 + uleb_len(sites.len() as u64) + (sites.len() + actions.len()) as u64 + type_bytes;
            let field_at = self.bytes.len() as u64;
            // One length fits: alignment adds at most three, and where that carries into a longer field, the field is given that length.
            let field_len = uleb_len(unpadded + 3);
            padding = (field_at + field_len + unpadded).next_multiple_of(4) - (field_at + field_len + unpadded);
            push_uleb_padded(&mut self.bytes, unpadded + padding, field_len);
        } else {
            self.bytes.push(OMIT);
        }
        self.bytes.push(gimli::DW_EH_PE_uleb128.0);
        push_uleb(&mut self.bytes, sites.len() as u64);
        self.bytes.extend(sites);
        self.bytes.extend(actions);
        if has_types {
            self.bytes.resize(self.bytes.len() + padding as usize, 0);
            for target in lsda.types.iter().rev() {
                let offset = self.bytes.len() as u32;
                self.fields.extend(target.map(|target| Field { offset, encoding: lsda.type_encoding, target }));
                self.bytes.resize(self.bytes.len() + type_size as usize, 0);
            }
            self.bytes.extend(&lsda.specifications);
        }
        Ok(())
    }
}

/// A number in exactly `len` bytes, which are at least those it needs.
fn push_uleb_padded(out: &mut Vec<u8>, mut value: u64, len: u64) {
    for _ in 1..len {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8 & 0x7f);
}
