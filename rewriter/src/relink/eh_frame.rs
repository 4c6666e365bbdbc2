//! `.eh_frame`, `.eh_frame_hdr` and `.gcc_except_table` for code that has moved.
//!
//! **Method.** Two steps, because the sections' sizes decide where they go. [`UnwindLayout::plan`] knows where code went: it makes one
//! frame entry for each run of code (`runs`), its exception table (`lsda`), and sums up. [`UnwindLayout::write`] knows where the sections went and fills
//! in the pointers. Every pointer has a fixed size: entries name code relative to their place in four bytes.
//!
//! **Invariants.** Entries ascend by address in `.eh_frame` and in the search table and don't overlap. Only common entries that
//! are used are written, each value once. The section ends with a terminator. The output is the same for any number of threads.
//!
//! Sources: LSB 5.0 §10.5 to §10.6, DWARF 5 §6.4.

mod quiet;
mod rows;
mod runs;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use lifter::elf::Unwind;
use lifter::elf::eh_frame::CieData;
use lifter::entity::Fde;
use lifter::{Image, Va};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

pub(crate) use quiet::{are_quiet, may_raise};
pub(crate) use rows::{FrameRows, Row};

use crate::clones::CloneId;
use crate::relink::lsda::{self, LsdaBytes, pointer_len, push_sleb, push_uleb, write_pointer};

const PCREL_SDATA4: u8 = gimli::DW_EH_PE_pcrel.0 | gimli::DW_EH_PE_sdata4.0;

#[derive(Debug, thiserror::Error)]
pub enum UnwindError {
    #[error("the pieces of output code at {0} are not ascending or not inside their fragment")]
    Pieces(Va),
    #[error("the unwind entry of {0} can't be told for a deeper stack")]
    Deeper(Va),
    #[error("two entries would cover the output code at {0}")]
    Overlap(Va),
    #[error("the unwind entry of {0} nests too deep, names too many registers or restores what it never saved")]
    TooComplex(Va),
    #[error("the initial instructions of a common unwind entry can't be evaluated")]
    CommonEntry,
    #[error("the landing pad {pad} of the exception table at {lsda} is nowhere in the output")]
    LandingPadGone { pad: Va, lsda: Va },
    #[error("an exception table would make the code at {code} its own landing pad")]
    LandsOnItself { code: Va },
    #[error("the personality at {0} is in the middle of code that has moved")]
    PersonalityGone(Va),
    #[error("code at {code} has moved, but its exception table at {lsda} is not understood")]
    OpaqueTableMoved { code: Va, lsda: Va },
    #[error("pointer encoding {0:#x} has no fixed size")]
    Encoding(u8),
    #[error("{target} is out of reach of the pointer at {at}")]
    OutOfReach { at: Va, target: Va },
}

/// Whether all of `start..end`, code of one entry of the input, has the row of the common entry.
pub(crate) fn keeps_initial_row(unwind: &Unwind, fde: Fde, start: Va, end: Va) -> bool {
    let data = &unwind.fdes[fde];
    let cie = &unwind.cies[data.cie as usize];
    // Amid what can't stop it may say anything.
    if cie.is_sparse {
        return false;
    }
    if data.ops.is_empty() {
        return true;
    }
    let (Ok(rows), Ok(initial)) = (rows::Rows::evaluate(cie, data), rows::Row::initial(cie)) else { return false };
    *rows.at(start) == initial && rows.changes(start, end).all(|(at, row)| *at == end || *row == initial)
}

/// Whether an entry can be told for code with so many bytes more on the stack, on the way there too.
pub(crate) fn can_be_deeper(unwind: &Unwind, fde: Fde, by: u8) -> bool {
    let data = &unwind.fdes[fde];
    let cie = &unwind.cies[data.cie as usize];
    let is_told = |stack: u8| {
        let deeper = rows::deepened(cie, data, Deeper { stack, saves: by });
        deeper.is_some_and(|entry| rows::Rows::evaluate(cie, &entry).is_ok())
    };
    data.opaque_lsda.is_none() && is_told(by) && is_told(0)
}

/// By how many bytes things are lower on the stack than in the input, seen from the return address.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeper {
    /// The stack pointer.
    pub stack: u8,
    /// Where registers are saved.
    pub saves: u8,
}

impl Deeper {
    pub fn by(bytes: u8) -> Self {
        Deeper { stack: bytes, saves: bytes }
    }
}

/// Whether an unwinder finds at an address of one entry of the input that these registers, by its numbers, and no others have been pushed.
pub(crate) fn has_pushed(unwind: &Unwind, fde: Fde, at: Va, registers: &[u64]) -> bool {
    let data = &unwind.fdes[fde];
    let cie = &unwind.cies[data.cie as usize];
    !cie.is_sparse && rows::Rows::evaluate(cie, data).is_ok_and(|rows| rows.at(at).has_pushed(registers, cie.data_alignment))
}

/// A run of input bytes that moved as one: byte `old_start + k` went to `new_start + k`, up to the branch at the end, which is made
/// anew and may be longer, shorter or gone. `old_len` is 0 for inserted code: it has the unwind row of `old_start`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub old_start: Va,
    pub old_len: u32,
    pub new_start: Va,
    pub new_len: u32,
    /// Other code than the input's: all of it has the row and the call site of `old_start`.
    pub is_new: bool,
    /// Of new code: nothing in it can stop by itself.
    pub is_quiet: bool,
    /// The rows are those of the input, `rows::deepened`.
    pub deeper: Deeper,
    /// The clone that it is part of: exceptions land there.
    pub clone: Option<CloneId>,
}

impl Piece {
    /// Code that stays.
    pub fn in_place(start: Va, end: Va) -> Self {
        let len = (end - start) as u32;
        let deeper = Deeper::default();
        Piece {
            old_start: start,
            old_len: len,
            new_start: start,
            new_len: len,
            is_new: false,
            is_quiet: false,
            deeper,
            clone: None,
        }
    }
    pub fn old_end(&self) -> Va {
        self.old_start + u64::from(self.old_len)
    }
    pub fn new_end(&self) -> Va {
        self.new_start + u64::from(self.new_len)
    }
    /// Where an address of `old_start..=old_end()` went; the end where it is gone.
    fn map(&self, old: Va) -> Va {
        if self.is_new && old != self.old_start {
            return self.new_end();
        }
        self.new_start + (old - self.old_start).min(u64::from(self.new_len))
    }
}

/// A contiguous stretch of output code: a fragment that moved, or a stretch that stays (one piece, which may span many entries).
#[derive(Clone, Debug)]
pub struct UnwindFragment {
    pub start: Va,
    pub len: u32,
    /// In output order, not overlapping. What lies between two (alignment) keeps the row of the first.
    pub pieces: Vec<Piece>,
}

/// What can be described by its pieces: those of a whole program would take much room.
pub trait Describe: Sync {
    fn describe(&self) -> Cow<'_, UnwindFragment>;
}

impl Describe for UnwindFragment {
    fn describe(&self) -> Cow<'_, UnwindFragment> {
        Cow::Borrowed(self)
    }
}

/// What entries need not say, and how much they may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choices<'a> {
    /// By common entry, how many bytes of code may share an entry with an exception table.
    pub joined_max: &'a [u64],
    /// The input, to be asked where its code can stop by itself. Without it, it can everywhere.
    pub image: Option<&'a Image<'a>>,
    /// Rows need only be right where code can stop by itself.
    pub is_sparse: bool,
}

/// Where an output entry's exception table is.
#[derive(Debug)]
enum Table {
    None,
    /// Not yet placed.
    Made(Box<LsdaBytes>),
    /// At this offset of the new section.
    New(u32),
    /// Still where the input has it.
    Kept(Va),
}

/// An output entry.
#[derive(Debug)]
struct PlannedFde {
    start: Va,
    len: u32,
    cie: u32,
    table: Table,
    instructions: Vec<u8>,
    /// In `.eh_frame`.
    offset: u32,
    /// No-ops at its end, in bytes, so that the next one begins where it has to.
    filled: u32,
}

/// All unwind sections but for the addresses of their own.
#[derive(Debug)]
pub struct UnwindLayout<'a> {
    /// Of `.gcc_except_table`, to be aligned to 4.
    pub except_table_len: u64,
    /// Of `.eh_frame`, to be aligned to 8.
    pub eh_frame_len: u64,
    /// Of `.eh_frame_hdr`, to be aligned to 4.
    pub eh_frame_hdr_len: u64,
    /// Of the common entries, with which `.eh_frame` begins.
    pub common_entries_len: u64,
    /// No-ops at the end of the last of them besides, in bytes.
    common_filled: u32,
    /// Rows are right where code can stop by itself.
    is_sparse: bool,
    /// Zeros at the end of `.eh_frame`.
    terminator_len: u64,
    unwind: &'a Unwind,
    /// Offsets in `.eh_frame` of the input's common entries that are used.
    cie_offsets: Vec<Option<u32>>,
    /// By common entry of the input: where its personality, or the slot that holds it, is now.
    personalities: Vec<Option<Va>>,
    /// Ascending by start.
    fdes: Vec<PlannedFde>,
    /// With their offsets in `.gcc_except_table`.
    lsdas: Vec<(u32, LsdaBytes)>,
}

/// The contents of the three sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindBytes {
    pub except_table: Vec<u8>,
    pub eh_frame: Vec<u8>,
    pub eh_frame_hdr: Vec<u8>,
}

impl<'a> UnwindLayout<'a> {
    /// Entries and exception tables for output code at its final addresses. `landing_pad` maps the address of an input landing pad, of
    /// a personality or of its slot to that of the output, for code of a clone or of no clone.
    pub fn plan(
        unwind: &'a Unwind,
        fragments: &[impl Describe],
        choices: Choices<'a>,
        landing_pad: impl Fn(Option<CloneId>, Va) -> Option<Va> + Sync,
    ) -> Result<Self, UnwindError> {
        let entries = runs::Entries::of(unwind, choices);
        let planned: Result<Vec<Vec<PlannedFde>>, UnwindError> = fragments
            .par_iter()
            .map_init(rows::CommonRows::default, |common, f| plan_fragment(&entries, &f.describe(), &landing_pad, common))
            .collect();
        let planned = planned?;
        let mut fdes: Vec<PlannedFde> = Vec::with_capacity(planned.iter().map(Vec::len).sum());
        fdes.extend(planned.into_iter().flatten());
        fdes.sort_by_key(|f| f.start);
        if let Some(pair) = fdes.windows(2).find(|w| w[0].start + u64::from(w[0].len) > w[1].start) {
            return Err(UnwindError::Overlap(pair[1].start));
        }
        let mut layout = UnwindLayout {
            except_table_len: 0,
            eh_frame_len: 0,
            eh_frame_hdr_len: HDR_HEADER_LEN + 8 * fdes.len() as u64,
            common_entries_len: 0,
            common_filled: 0,
            terminator_len: TERMINATOR_LEN,
            unwind,
            is_sparse: choices.is_sparse,
            cie_offsets: vec![None; unwind.cies.len()],
            personalities: unwind.cies.iter().map(|cie| landing_pad(None, cie.personality?.1)).collect(),
            fdes,
            lsdas: Vec::new(),
        };
        layout.place_lsdas();
        layout.place_entries()?;
        Ok(layout)
    }

    /// Whether some entry still names an exception table of the input, at its old place.
    pub fn keeps_tables(&self) -> bool {
        self.fdes.iter().any(|fde| matches!(fde.table, Table::Kept(_)))
    }

    /// Gives each exception table an offset; equal tables that say the same at every place share one.
    fn place_lsdas(&mut self) {
        let mut shared: FxHashMap<Vec<u8>, u32> = FxHashMap::default();
        let mut end = 0u64;
        for fde in &mut self.fdes {
            let lsda = match std::mem::replace(&mut fde.table, Table::None) {
                Table::Made(lsda) => lsda,
                kept => {
                    fde.table = kept;
                    continue;
                }
            };
            let offset = end.next_multiple_of(u64::from(lsda.align)) as u32;
            if let Some(bytes) = lsda.position_independent() {
                if let Some(&known) = shared.get(bytes) {
                    fde.table = Table::New(known);
                    continue;
                }
                shared.insert(bytes.to_vec(), offset);
            }
            end = u64::from(offset) + lsda.len() as u64;
            fde.table = Table::New(offset);
            self.lsdas.push((offset, *lsda));
        }
        self.except_table_len = end;
    }

    /// Gives each entry an offset: first the common ones that are used, then the frame entries.
    fn place_entries(&mut self) -> Result<(), UnwindError> {
        let mut is_used = vec![false; self.unwind.cies.len()];
        for fde in &self.fdes {
            is_used[fde.cie as usize] = true;
        }
        let mut end = 0u64;
        for (index, _) in is_used.iter().enumerate().filter(|(_, used)| **used) {
            self.cie_offsets[index] = Some(end as u32);
            end += encode_cie(&self.unwind.cies[index], self.is_sparse, (None, None), 0)?.len() as u64;
        }
        self.common_entries_len = end;
        for fde in &mut self.fdes {
            fde.offset = end as u32;
            end += fde_len(fde, &self.unwind.cies[fde.cie as usize])?;
        }
        self.eh_frame_len = end + TERMINATOR_LEN;
        if self.eh_frame_len.max(self.except_table_len) > u64::from(u32::MAX) {
            return Err(UnwindError::OutOfReach { at: Va(0), target: Va(self.eh_frame_len) });
        }
        Ok(())
    }

    /// The longest entry that is no common one, in bytes.
    pub fn longest_entry_len(&self) -> Result<u64, UnwindError> {
        let mut lens = self.fdes.iter().map(|fde| fde_len(fde, &self.unwind.cies[fde.cie as usize]));
        lens.try_fold(0, |longest, len| Ok(len?.max(longest)))
    }

    /// Lets an entry or the end begin at each of these places, which ascend, are further apart than an entry is long, lie behind the common
    /// entries and are multiples of four from the section's start, `eh_frame_at`.
    pub fn begin_at(&mut self, eh_frame_at: Va, places: &[Va]) -> Result<(), UnwindError> {
        let mut places = places.iter().map(|&place| place - eh_frame_at).filter(|&place| place > 0).peekable();
        let mut end = self.common_entries_len;
        for index in 0..self.fdes.len() {
            let len = fde_len(&self.fdes[index], &self.unwind.cies[self.fdes[index].cie as usize])?;
            while places.next_if_eq(&end).is_some() {}
            if let Some(&place) = places.peek().filter(|&&place| place < end + len) {
                self.fill_before(index, (place - end) as u32)?;
                end = place;
                places.next();
            }
            self.fdes[index].offset = end as u32;
            end += len;
        }
        if let Some(&place) = places.peek() {
            self.fill_before(self.fdes.len(), (place.max(end) - end) as u32)?;
            end = place.max(end);
        }
        self.terminator_len = places.last().map_or(0, |last| last.max(end) - end) + TERMINATOR_LEN;
        self.eh_frame_len = end + self.terminator_len;
        Ok(())
    }

    /// Fills up the entry before one, which is the last common one before the first.
    fn fill_before(&mut self, index: usize, by: u32) -> Result<(), UnwindError> {
        match index.checked_sub(1) {
            Some(before) => self.fdes[before].filled += by,
            None if self.common_entries_len > 0 => self.common_filled += by,
            None => return Err(UnwindError::CommonEntry),
        }
        Ok(())
    }

    /// The sections' bytes, for sections at these addresses.
    pub fn write(&self, except_table_at: Va, eh_frame_at: Va, hdr_at: Va) -> Result<UnwindBytes, UnwindError> {
        let mut except_table = vec![0; self.except_table_len as usize];
        for (offset, lsda) in &self.lsdas {
            lsda.write(except_table_at + u64::from(*offset), &mut except_table[*offset as usize..])?;
        }
        let mut eh_frame = Vec::with_capacity(self.eh_frame_len as usize);
        let last = self.cie_offsets.iter().rposition(Option::is_some);
        for (index, _) in self.cie_offsets.iter().enumerate().filter(|(_, offset)| offset.is_some()) {
            let at = eh_frame_at + eh_frame.len() as u64;
            let cie = &self.unwind.cies[index];
            if let (Some((_, at)), None) = (cie.personality, self.personalities[index]) {
                return Err(UnwindError::PersonalityGone(at));
            }
            let filled = if last == Some(index) { self.common_filled } else { 0 };
            eh_frame.extend(encode_cie(cie, self.is_sparse, (Some(at), self.personalities[index]), filled)?);
        }
        for fde in &self.fdes {
            self.push_fde(fde, except_table_at, eh_frame_at, &mut eh_frame)?;
        }
        eh_frame.resize(eh_frame.len() + self.terminator_len as usize, 0);
        debug_assert_eq!(eh_frame.len() as u64, self.eh_frame_len);
        let eh_frame_hdr = self.write_hdr(eh_frame_at, hdr_at)?;
        Ok(UnwindBytes { except_table, eh_frame, eh_frame_hdr })
    }

    fn push_fde(&self, fde: &PlannedFde, except_table_at: Va, eh_frame_at: Va, out: &mut Vec<u8>) -> Result<(), UnwindError> {
        let cie = &self.unwind.cies[fde.cie as usize];
        let start = out.len();
        let end = start + fde_len(fde, cie)? as usize;
        out.extend((end as u32 - start as u32 - 4).to_le_bytes());
        let cie_offset = self.cie_offsets[fde.cie as usize].unwrap_or_default();
        out.extend((out.len() as u32 - cie_offset).to_le_bytes());
        push_pointer(out, eh_frame_at, PCREL_SDATA4, Some(fde.start))?;
        out.extend(fde.len.to_le_bytes());
        match lsda_encoding(cie) {
            None => out.push(0),
            Some(encoding) => {
                out.push(pointer_len(encoding)? as u8);
                let table = match fde.table {
                    Table::New(offset) => Some(except_table_at + u64::from(offset)),
                    Table::Kept(at) => Some(at),
                    Table::None | Table::Made(_) => None,
                };
                push_pointer(out, eh_frame_at, encoding, table)?;
            }
        }
        out.extend(&fde.instructions);
        out.resize(end, gimli::DW_CFA_nop.0);
        Ok(())
    }

    fn write_hdr(&self, eh_frame_at: Va, hdr_at: Va) -> Result<Vec<u8>, UnwindError> {
        let mut out = Vec::with_capacity(self.eh_frame_hdr_len as usize);
        let table_encoding = gimli::DW_EH_PE_datarel.0 | gimli::DW_EH_PE_sdata4.0;
        out.extend([1, PCREL_SDATA4, gimli::DW_EH_PE_udata4.0, table_encoding]);
        push_pointer(&mut out, hdr_at, PCREL_SDATA4, Some(eh_frame_at))?;
        out.extend((self.fdes.len() as u32).to_le_bytes());
        for fde in &self.fdes {
            for target in [fde.start, eh_frame_at + u64::from(fde.offset)] {
                let value = i32::try_from(target.distance(hdr_at));
                out.extend(value.map_err(|_| UnwindError::OutOfReach { at: hdr_at, target })?.to_le_bytes());
            }
        }
        Ok(out)
    }
}

const TERMINATOR_LEN: u64 = 4;
/// Version, three encodings, the pointer and the count.
const HDR_HEADER_LEN: u64 = 12;
/// Length, pointer to the common entry, start, size, length of augmentation data.
const FDE_HEADER_LEN: u64 = 17;
/// Entries are padded to this. Eight is customary, four is what unwinders and the standard need.
const ENTRY_ALIGN: u64 = 4;

fn plan_fragment<'a>(
    entries: &runs::Entries<'a>,
    fragment: &UnwindFragment,
    landing_pad: &impl Fn(Option<CloneId>, Va) -> Option<Va>,
    common: &mut rows::CommonRows<'a>,
) -> Result<Vec<PlannedFde>, UnwindError> {
    let fragment_end = fragment.start + u64::from(fragment.len);
    let mut reached = fragment.start;
    for piece in &fragment.pieces {
        if piece.new_start < reached || piece.new_end() > fragment_end {
            return Err(UnwindError::Pieces(piece.new_start));
        }
        reached = piece.new_end();
    }
    let unwind = entries.unwind;
    let mut open = runs::runs_of(entries, fragment);
    open.reverse();
    let mut planned = Vec::with_capacity(open.len());
    while let Some(run) = open.pop() {
        let table = match run.tables(unwind) {
            runs::Tables::None => Table::None,
            runs::Tables::Opaque(code, lsda) if run.is_in_place() && run.start() == code => Table::Kept(lsda),
            runs::Tables::Opaque(code, lsda) => return Err(UnwindError::OpaqueTableMoved { code, lsda }),
            runs::Tables::Known => {
                match lsda::cut(run.parts(entries), run.start(), |piece, pad| landing_pad(piece.clone, pad))? {
                    lsda::Cut::Table(table) => Table::Made(Box::new(table)),
                    lsda::Cut::Part(at) => {
                        let (first, second) = run.part_at(at);
                        open.extend([second, first]);
                        continue;
                    }
                }
            }
        };
        let len = (run.end() - run.start()) as u32;
        let instructions = runs::instructions(entries, &run, common)?;
        planned.push(PlannedFde { start: run.start(), len, cie: run.cie(unwind), table, instructions, offset: 0, filled: 0 });
    }
    Ok(planned)
}

/// Pointers relative to their place get four bytes; absolute ones (only in files at a fixed address) keep their encoding.
fn output_encoding(encoding: u8) -> u8 {
    if encoding & 0x70 == gimli::DW_EH_PE_pcrel.0 { encoding & gimli::DW_EH_PE_indirect.0 | PCREL_SDATA4 } else { encoding }
}

fn lsda_encoding(cie: &CieData) -> Option<u8> {
    cie.lsda_encoding.map(output_encoding)
}

fn fde_len(fde: &PlannedFde, cie: &CieData) -> Result<u64, UnwindError> {
    let table_len = lsda_encoding(cie).map(pointer_len).transpose()?.unwrap_or(0) as u64;
    let len = (FDE_HEADER_LEN + table_len + fde.instructions.len() as u64).next_multiple_of(ENTRY_ALIGN);
    Ok(len + u64::from(fde.filled))
}

/// Appends a pointer to bytes that begin at `base`; zeros for none.
fn push_pointer(out: &mut Vec<u8>, base: Va, encoding: u8, target: Option<Va>) -> Result<(), UnwindError> {
    let offset = out.len();
    out.resize(offset + pointer_len(encoding)?, 0);
    match target {
        Some(target) => write_pointer(&mut out[offset..], base + offset as u64, encoding, target),
        None => Ok(()),
    }
}

/// A common entry for an address; without one, of the right length but without its pointer.
fn encode_cie(
    cie: &CieData,
    is_sparse: bool,
    (at, personality): (Option<Va>, Option<Va>),
    filled: u32,
) -> Result<Vec<u8>, UnwindError> {
    let mut out = vec![0; 8]; // the length, filled in below, and the zero that marks a common entry
    out.push(if cie.return_register < 0x80 { 1 } else { 3 });
    out.push(b'z');
    out.extend(cie.personality.map(|_| b'P'));
    out.extend(cie.lsda_encoding.map(|_| b'L'));
    out.push(b'R');
    out.extend(cie.is_signal_frame.then_some(b'S'));
    out.push(0);
    push_uleb(&mut out, 1); // code alignment: advances are in bytes
    push_sleb(&mut out, cie.data_alignment);
    push_uleb(&mut out, cie.return_register);
    let personality_len = cie.personality.map(|(encoding, _)| pointer_len(output_encoding(encoding))).transpose()?;
    let data_len = personality_len.map_or(0, |len| len + 1) + usize::from(cie.lsda_encoding.is_some()) + 1;
    push_uleb(&mut out, data_len as u64);
    if let Some((encoding, _)) = cie.personality {
        let encoding = output_encoding(encoding);
        out.push(encoding);
        push_pointer(&mut out, at.unwrap_or_default(), encoding, personality)?;
    }
    out.extend(lsda_encoding(cie));
    out.push(PCREL_SDATA4);
    out.extend(is_sparse.then_some(gimli::DW_CFA_nop.0));
    out.extend(&cie.instructions);
    out.resize(out.len().next_multiple_of(ENTRY_ALIGN as usize) + filled as usize, gimli::DW_CFA_nop.0);
    let len = out.len() as u32 - 4;
    out[..4].copy_from_slice(&len.to_le_bytes());
    Ok(out)
}
