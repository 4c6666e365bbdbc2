//! `.gcc_except_table`: for each run of output code with an exception table, what the input's tables say of it.
//!
//! **Method.** The call sites of each piece's table are intersected with the piece and shifted with it. Of code from which no exception can come, that computes in registers and jumps, nothing need be said, so
//! that rows which say the same become one if only such code is between. Action and type tables are copied, and left out where no call site of the run names an action.
//!
//! **Several functions** may share a table, since each entry less saves some thirty bytes. Code without a table lets exceptions pass, so that all of it is one call site without pad and action. Actions of one table come behind those of another; they
//! name types by numbers, which landing pads compare with, so the type tables have to agree as far as both go (`may_share`).
//!
//! A thread that is cancelled asynchronously is unwound from anywhere, but compilers do not provide for that unless asked (`-fnon-call-exceptions`), and then for what may fault.
//!
//! **Invariants.** An instruction that may call, fault or trap gets the pad and action that it has in the input, or no call site if it has none there (an exception must terminate the program then). Bytes that come from no
//! input byte (alignment, made-anew branches) raise none.
//! Pads count from the run's start, modulo 2⁶⁴ where they lie below it. No pad is at offset 0, which would mean "none": where a pad is the run's start, the run is to be
//! parted before the first call site with that pad. `LPStart` would say both too, but not every personality reads it: D's ends the program at any encoding
//! that is relative to something, and adds it to the function's start.
//!
//! Sizes depend on code addresses only, so they are known before the section has a place; addresses of its own are patched in by
//! [`LsdaBytes::write`]. Source: Itanium C++ ABI "Exception Handling Tables".

use lifter::Va;
use lifter::elf::lsda::{CallSite, Lsda};
use smallvec::SmallVec;

use crate::relink::eh_frame::{Piece, UnwindError, may_raise};

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

/// Whether some call site of a table names types.
pub(crate) fn names_types(lsda: &Lsda) -> bool {
    lsda.call_sites.iter().any(|site| site.action != 0)
}

/// Whether code of both tables, which name types, can have one: what actions name a type or a list of types by is told to landing pads, so a number has to stand for the same in both.
pub(crate) fn may_share(a: &Lsda, b: &Lsda) -> bool {
    let is_same_form = a.type_encoding == b.type_encoding || a.types.is_empty() || b.types.is_empty();
    let agree = |a: &[u8], b: &[u8]| a.iter().zip(b).all(|(a, b)| a == b);
    is_same_form && a.types.iter().zip(&b.types).all(|(a, b)| a == b) && agree(&a.specifications, &b.specifications)
}

/// A piece of output code, and the table of the input entry that it is of.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) piece: &'a Piece,
    pub(crate) table: Option<&'a Lsda>,
    /// The input's bytes of the piece; `None` where these are not known.
    pub(crate) code: Option<&'a [u8]>,
}

impl Part<'_> {
    /// Whether an exception could come from the piece's code between two distances from its start in the input.
    fn may_raise(&self, start: u64, end: u64) -> bool {
        let Piece { old_start, is_new, is_quiet, .. } = *self.piece;
        if is_new {
            return !is_quiet;
        }
        let bytes = self.code.and_then(|code| code.get(start as usize..end as usize));
        bytes.is_none_or(|bytes| may_raise(bytes, old_start + start))
    }
}

/// The action and type tables of one or more exception tables.
#[derive(Debug)]
struct Actions<'a> {
    bytes: Vec<u8>,
    /// Of the table that has the most.
    types: &'a [Option<Va>],
    type_encoding: u8,
    /// Likewise.
    specifications: &'a [u8],
}

impl<'a> Actions<'a> {
    fn none() -> Self {
        Actions { bytes: Vec::new(), types: &[], type_encoding: OMIT, specifications: &[] }
    }

    /// Has the actions of a table among its own, and says by how much they are further on. What an action says of the next one is a distance.
    fn add(&mut self, lsda: &'a Lsda) -> u64 {
        if self.type_encoding == OMIT || lsda.types.len() > self.types.len() {
            (self.types, self.type_encoding) = (&lsda.types, lsda.type_encoding);
        }
        if lsda.specifications.len() > self.specifications.len() {
            self.specifications = &lsda.specifications;
        }
        let known = memchr::memmem::find(&self.bytes, &lsda.actions);
        let at = known.unwrap_or(self.bytes.len());
        if known.is_none() {
            self.bytes.extend(&lsda.actions);
        }
        at as u64
    }
}

/// What the table of a stretch of code says of it; `None` where it has no call site.
type Handling = Option<(Option<Va>, u64)>;

/// Code of the input that its table handles alike.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Stretch<'a> {
    pub(crate) start: Va,
    pub(crate) end: Va,
    /// None where the table has none.
    pub(crate) site: Option<&'a CallSite>,
}

/// A range of the input, cut where call sites of its table begin or end.
pub(crate) fn stretches(lsda: &Lsda, start: Va, end: Va) -> SmallVec<[Stretch<'_>; 4]> {
    let mut all = SmallVec::new();
    let mut push = |start: Va, end: Va, site| {
        if start < end {
            all.push(Stretch { start, end, site });
        }
    };
    let mut reached = start;
    let first = lsda.call_sites.partition_point(|site| site.end <= start);
    for site in lsda.call_sites[first..].iter().take_while(|site| site.start < end) {
        let (site_start, site_end) = (site.start.max(reached), site.end.min(end));
        push(reached, site_start, None);
        push(site_start, site_end, Some(site));
        reached = site_end;
    }
    push(reached, end, None);
    all
}

/// Call sites at their new addresses.
#[derive(Default)]
struct Sites {
    all: Vec<CallSite>,
    /// Behind the last of them there is code from which an exception could come, and must not.
    is_closed: bool,
}

impl Sites {
    /// Appends a stretch of code: the last site goes on to it, or one begins, if an exception could come from there at all.
    fn push(&mut self, (start, end): (Va, Va), handling: Handling, may_raise: impl FnOnce() -> bool) {
        let continued = self.all.last_mut().filter(|last| !self.is_closed && handling == Some((last.landing_pad, last.action)));
        match (continued, handling) {
            (Some(last), _) => last.end = end,
            (None, _) if !may_raise() => {}
            (None, Some((landing_pad, action))) => {
                self.all.push(CallSite { start, end, landing_pad, action });
                self.is_closed = false;
            }
            (None, None) => self.is_closed = true,
        }
    }
}

/// The call sites of a run's pieces, with what their actions are.
fn call_sites<'a>(
    parts: impl Iterator<Item = Part<'a>>,
    landing_pad: impl Fn(&Piece, Va) -> Option<Va>,
) -> Result<(Vec<CallSite>, Actions<'a>), UnwindError> {
    let (mut sites, mut actions) = (Sites::default(), Actions::none());
    for part in parts {
        let Part { piece, table, .. } = part;
        let copied = u64::from(if piece.is_new || table.is_none() { piece.new_len } else { piece.old_len.min(piece.new_len) });
        if copied == 0 {
            continue;
        }
        let Some(lsda) = table else {
            sites.push((piece.new_start, piece.new_end()), Some((None, 0)), || part.may_raise(0, u64::from(piece.old_len)));
            continue;
        };
        let mut shift = None;
        // Of new code all is as at its start.
        let old_end = piece.old_start + if piece.is_new { 1 } else { copied };
        for Stretch { start, end, site } in stretches(lsda, piece.old_start, old_end) {
            let handling = site.map(|site| {
                let gone = |pad: Va| UnwindError::LandingPadGone { pad, lsda: lsda.at };
                let new_pad = site.landing_pad.map(|pad| landing_pad(piece, pad).ok_or(gone(pad))).transpose()?;
                let action = match site.action {
                    0 => 0,
                    action => action + *shift.get_or_insert_with(|| actions.add(lsda)),
                };
                Ok((new_pad, action))
            });
            let (start, end) = (start - piece.old_start, end - piece.old_start);
            let new_end = if piece.is_new { piece.new_end() } else { piece.new_start + end };
            sites.push((piece.new_start + start, new_end), handling.transpose()?, || part.may_raise(start, end));
        }
    }
    Ok((sites.all, actions))
}

/// What becomes of the tables of a run.
#[derive(Debug)]
pub(crate) enum Cut {
    Table(LsdaBytes),
    /// There is none for all of the run: it must be parted at this address, inside it.
    Part(Va),
}

/// The table for a run of pieces that starts at `code_start` in the output. `landing_pad` says where a piece's pads are.
pub(crate) fn cut<'a>(
    parts: impl Iterator<Item = Part<'a>>,
    code_start: Va,
    landing_pad: impl Fn(&Piece, Va) -> Option<Va>,
) -> Result<Cut, UnwindError> {
    let (all, actions) = call_sites(parts, landing_pad)?;
    if let Some(site) = all.iter().find(|site| site.landing_pad == Some(code_start)) {
        let is_inside = site.start > code_start;
        return if is_inside { Ok(Cut::Part(site.start)) } else { Err(UnwindError::LandsOnItself { code: code_start }) };
    }
    let mut table = LsdaBytes { bytes: vec![OMIT], fields: Vec::new(), align: 1 };
    let mut bytes = Vec::new();
    for site in &all {
        push_uleb(&mut bytes, site.start - code_start);
        push_uleb(&mut bytes, site.end - site.start);
        push_uleb(&mut bytes, site.landing_pad.map_or(0, |pad| pad.0.wrapping_sub(code_start.0)));
        push_uleb(&mut bytes, site.action);
    }
    table.push_tables(&actions, &bytes)?;
    Ok(Cut::Table(table))
}

impl LsdaBytes {
    /// Appends everything behind the pad base.
    fn push_tables(&mut self, tables: &Actions<'_>, sites: &[u8]) -> Result<(), UnwindError> {
        let Actions { bytes: actions, types, type_encoding, specifications } = tables;
        let has_types = *type_encoding != OMIT && !(types.is_empty() && specifications.is_empty());
        let type_size = if has_types { pointer_len(*type_encoding)? as u64 } else { 0 };
        let type_bytes = type_size * types.len() as u64;
        let mut padding = 0;
        if has_types {
            self.align = 4;
            self.bytes.push(*type_encoding);
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
            for target in types.iter().rev() {
                let offset = self.bytes.len() as u32;
                self.fields.extend(target.map(|target| Field { offset, encoding: *type_encoding, target }));
                self.bytes.resize(self.bytes.len() + type_size as usize, 0);
            }
            self.bytes.extend(*specifications);
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
