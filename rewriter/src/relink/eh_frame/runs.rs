//! From a fragment of output code to the frame entries that cover it.
//!
//! **Method.** The pieces of a fragment are cut where an input entry begins or ends and gathered into *runs*: neighbors of the same input
//! entry, or of entries that say the same in common and whose exception tables can be one (`Shared`). Each run becomes one output entry. Its instructions are
//! made in up to two ways and the shorter is taken:
//! * *Re-timed*, if the run keeps the input's order from the entry's start on: the input's instructions, each at the new place of its
//!   address.
//! * *Differences*, always: the row that each output address needs, and what leads to it from the row before.
//!
//! Where rows need only be right where code can stop by itself, those that hold at no such instruction are left out (`Asked`, `quiet`).
//!
//! **Invariant.** At every output instruction, or at those that can stop, the row is the one of its input instruction. Output bytes behind the last byte of
//! a piece (a branch that was inserted or grew) have the row of the address behind the piece in the input: control that runs on
//! past the piece had that row there, and where it does not run on, no instruction starts in these bytes. No-ops between two pieces, which align the second, have the row of that.

use std::borrow::Cow;

use lifter::address_index::AddressIndex;
use lifter::elf::Unwind;
use lifter::elf::eh_frame::{CieData, FdeData};
use lifter::elf::lsda::Lsda;
use lifter::entity::{EntityId, Fde};
use lifter::{Image, Va};

use crate::relink::eh_frame::quiet::stops;
use crate::relink::eh_frame::rows::{CommonRows, Row, Rows, deepened};
use crate::relink::eh_frame::{Choices, Deeper, Piece, UnwindError, UnwindFragment};
use crate::relink::lsda::{self, Part};

/// For how many pieces a run has room at first, at most: code that stays side by side is one fragment, of which each piece may be a run.
const PIECES_AT_FIRST: usize = 16;

/// Neighboring pieces that one output entry covers.
#[derive(Debug)]
pub(super) struct Run {
    /// Not empty; each inside the entry of the same index in `fdes`.
    pub(super) pieces: Vec<Piece>,
    fdes: Vec<Fde>,
}

impl Run {
    /// A run with room for so many pieces.
    fn new((piece, fde): (Piece, Fde), capacity: usize) -> Self {
        let mut run = Run { pieces: Vec::with_capacity(capacity), fdes: Vec::with_capacity(capacity) };
        run.pieces.push(piece);
        run.fdes.push(fde);
        run
    }
    pub(super) fn start(&self) -> Va {
        self.pieces[0].new_start
    }
    pub(super) fn end(&self) -> Va {
        self.pieces[self.pieces.len() - 1].new_end()
    }
    /// The first piece's entry.
    fn fde(&self) -> Fde {
        self.fdes[0]
    }
    /// The common entry, by index: of entries with a personality and such without the former's.
    pub(super) fn cie(&self, unwind: &Unwind) -> u32 {
        let mut with_tables = self.fdes.iter().map(|&fde| &unwind.fdes[fde]).filter(|data| data.lsda.is_some());
        with_tables.next().unwrap_or(&unwind.fdes[self.fde()]).cie
    }
    pub(super) fn tables(&self, unwind: &Unwind) -> Tables {
        let first = &unwind.fdes[self.fde()];
        match first.opaque_lsda {
            Some(at) => Tables::Opaque(first.start, at),
            None if self.fdes.iter().any(|&fde| unwind.fdes[fde].lsda.is_some()) => Tables::Known,
            None => Tables::None,
        }
    }
    /// The pieces with their exception tables.
    pub(super) fn parts<'u>(&'u self, entries: &'u Entries<'_>) -> impl Iterator<Item = Part<'u>> {
        let unwind = entries.unwind;
        let table = |fde: Fde| unwind.fdes[fde].lsda.map(|index| &unwind.lsdas[index as usize]);
        let image = entries.choices.image;
        let code = move |piece: &Piece| image.and_then(|image| image.read(piece.old_start, piece.old_len as usize));
        self.pieces.iter().zip(&self.fdes).map(move |(piece, &fde)| Part { piece, table: table(fde), code: code(piece) })
    }
    /// The code before an address inside the run, and that from it on. The address is in no new code but at its start.
    pub(super) fn part_at(mut self, at: Va) -> (Run, Run) {
        let index = self.pieces.partition_point(|piece| piece.new_end() <= at);
        let mut second = Run { pieces: self.pieces.split_off(index), fdes: self.fdes.split_off(index) };
        let piece = &mut second.pieces[0];
        if piece.new_start < at {
            let len = (at - piece.new_start) as u32;
            let copied = len.min(piece.old_len);
            self.pieces.push(Piece { old_len: copied, new_len: len, ..*piece });
            self.fdes.push(second.fdes[0]);
            *piece = Piece {
                old_start: piece.old_start + u64::from(copied),
                old_len: piece.old_len - copied,
                new_start: at,
                new_len: piece.new_len - len,
                ..*piece
            };
        }
        (self, second)
    }
    pub(super) fn is_in_place(&self) -> bool {
        self.pieces.iter().all(|p| p.old_start == p.new_start && p.old_len == p.new_len)
    }
}

/// What a run's exception tables are.
pub(super) enum Tables {
    None,
    /// One for an entry that starts here, and where it is.
    Opaque(Va, Va),
    Known,
}

/// The frame entries of the input, to be found by address.
pub(super) struct Entries<'a> {
    pub(super) unwind: &'a Unwind,
    by_end: AddressIndex,
    choices: Choices<'a>,
}

impl<'a> Entries<'a> {
    pub(super) fn of(unwind: &'a Unwind, choices: Choices<'a>) -> Self {
        Self { unwind, choices, by_end: AddressIndex::new(unwind.fdes.as_slice().iter().map(|fde| fde.end)) }
    }

    /// The first entry that ends behind an address; `near` is the one of the last address, which is often the same.
    fn first_behind(&self, at: Va, near: usize) -> usize {
        let fdes = self.unwind.fdes.as_slice();
        let is_behind = |index: usize| fdes.get(index).is_none_or(|f| f.end > at);
        let is_before = |index: usize| index.checked_sub(1).is_none_or(|last| !is_behind(last));
        if is_behind(near) && is_before(near) { near } else { self.by_end.count_up_to(at, fdes.len(), |index| fdes[index].end) }
    }
}

/// The runs of a fragment, ascending. Code that no input entry covers is in none.
pub(super) fn runs_of(entries: &Entries<'_>, fragment: &UnwindFragment) -> Vec<Run> {
    let unwind = entries.unwind;
    let mut runs: Vec<Run> = Vec::new();
    // Of the last run, if more may join it.
    let mut open: Option<Shared> = None;
    let mut near = 0;
    for (index, piece) in fragment.pieces.iter().enumerate() {
        let mut is_first_part = true;
        near = entries.first_behind(piece.old_start, near);
        for_each_part(unwind, (piece, near), |part, fde| {
            let may_join = std::mem::replace(&mut is_first_part, false);
            let Some(fde) = fde else {
                open = None;
                return;
            };
            let last = open.take().zip(runs.last_mut());
            // Entries that lie side by side in one piece stay apart: nothing is gained by a longer program for unwinders to run through.
            let joined = last.and_then(|(shared, run)| {
                let goes_on = goes_on(unwind, run, &part, fde);
                let shared = match goes_on {
                    true => Some(shared),
                    false => may_join.then(|| shared.with(entries, fde, part.new_end() - run.start())).flatten(),
                };
                shared.map(|shared| (shared, run))
            });
            match joined {
                Some((shared, run)) => {
                    run.pieces.push(part);
                    run.fdes.push(fde);
                    open = Some(shared);
                }
                None => {
                    runs.push(Run::new((part, fde), (fragment.pieces.len() - index).min(PIECES_AT_FIRST)));
                    open = Some(Shared::of(unwind, fde));
                }
            }
        });
    }
    runs.retain(|run| run.start() < run.end());
    runs
}

/// Whether code of `next` may continue an output entry that ends with code of the same entry.
fn goes_on(unwind: &Unwind, run: &Run, part: &Piece, next: Fde) -> bool {
    let data = &unwind.fdes[next];
    let has_table = data.lsda.is_some() || data.opaque_lsda.is_some();
    run.fdes.last() == Some(&next) && (run.pieces[0].clone == part.clone || !has_table)
}

/// What entries that code shares an entry of the output with have to agree with.
struct Shared {
    cie: u32,
    has_table: bool,
    is_opaque: bool,
    /// Of the exception tables that name types, by index, one that has the most, and one that has the most of lists of types.
    tables: Option<[u32; 2]>,
}

impl Shared {
    fn of(unwind: &Unwind, fde: Fde) -> Self {
        let data = &unwind.fdes[fde];
        let tables = data.lsda.filter(|&index| lsda::names_types(&unwind.lsdas[index as usize])).map(|index| [index; 2]);
        Shared { cie: data.cie, has_table: data.lsda.is_some(), is_opaque: data.opaque_lsda.is_some(), tables }
    }

    /// Both, if one entry can describe so many bytes of them: what is common to them is the same but for a personality that one of them has no table for, and their exception tables can be one.
    fn with(&self, entries: &Entries<'_>, fde: Fde, len: u64) -> Option<Self> {
        let unwind = entries.unwind;
        let next = Self::of(unwind, fde);
        let cie = |shared: &Self| &unwind.cies[shared.cie as usize];
        let adds_personality = |a: &Self, b: &Self| a.has_table && !b.has_table && cie(a).is_with_personality(cie(b));
        let adds_to_own = adds_personality(&next, self);
        let is_same = self.cie == next.cie || adds_to_own || adds_personality(self, &next);
        let table = |index: u32| &unwind.lsdas[index as usize];
        let tables = match (self.tables, next.tables) {
            (Some(own), Some([new, _])) => {
                if own.iter().any(|&own| !lsda::may_share(table(own), table(new))) {
                    return None;
                }
                let longer = |own: u32, len: fn(&Lsda) -> usize| if len(table(own)) < len(table(new)) { new } else { own };
                Some([longer(own[0], |lsda| lsda.types.len()), longer(own[1], |lsda| lsda.specifications.len())])
            }
            (own, new) => own.or(new),
        };
        let cie = if adds_to_own { next.cie } else { self.cie };
        let has_table = self.has_table || next.has_table;
        let is_short = !has_table || entries.choices.joined_max.get(cie as usize).is_none_or(|&max| len <= max);
        (is_same && is_short && !self.is_opaque && !next.is_opaque).then_some(Shared { cie, has_table, is_opaque: false, tables })
    }
}

/// Cuts a piece where input entries begin and end, of which `next` is the first that ends behind the piece's start. New bytes without an input byte belong to the last part.
fn for_each_part(unwind: &Unwind, (piece, mut next): (&Piece, usize), mut visit: impl FnMut(Piece, Option<Fde>)) {
    let fdes = unwind.fdes.as_slice();
    let mut at = piece.old_start;
    loop {
        let (fde, end) = match fdes.get(next) {
            Some(f) if f.start <= at => {
                next += 1;
                (Some(Fde::new(next - 1)), f.end)
            }
            Some(f) => (None, f.start),
            None => (None, piece.old_end()),
        };
        let is_last = end >= piece.old_end();
        let old_end = end.min(piece.old_end());
        let new_start = piece.map(at);
        let new_end = if is_last { piece.new_end() } else { piece.map(old_end) };
        let old_len = (old_end - at) as u32;
        let part = Piece { old_start: at, old_len, new_start, new_len: (new_end - new_start) as u32, ..*piece };
        visit(part, fde);
        if is_last {
            return;
        }
        at = end;
    }
}

/// Call frame instructions as they are written, with the address they have come to.
struct Writer {
    bytes: Vec<u8>,
    at: Va,
}

impl Writer {
    /// The code alignment factor of the output is 1.
    fn advance(&mut self, to: Va) -> Result<(), UnwindError> {
        let delta = to - self.at;
        self.at = to;
        match delta {
            0 => {}
            1..0x40 => self.bytes.push(gimli::DW_CFA_advance_loc.0 | delta as u8),
            0x40..0x100 => self.bytes.extend([gimli::DW_CFA_advance_loc1.0, delta as u8]),
            0x100..0x1_0000 => {
                self.bytes.push(gimli::DW_CFA_advance_loc2.0);
                self.bytes.extend((delta as u16).to_le_bytes());
            }
            _ => {
                let delta = u32::try_from(delta).map_err(|_| UnwindError::Pieces(to))?;
                self.bytes.push(gimli::DW_CFA_advance_loc4.0);
                self.bytes.extend(delta.to_le_bytes());
            }
        }
        Ok(())
    }
}

/// The call frame instructions of a run. What can't be evaluated can still be re-timed.
pub(super) fn instructions<'a>(entries: &Entries<'a>, run: &Run, common: &mut CommonRows<'a>) -> Result<Vec<u8>, UnwindError> {
    if run.pieces.iter().any(|piece| piece.deeper != Deeper::default()) {
        return differences(entries, run, common);
    }
    let Some(retimed) = retimed(&entries.unwind.fdes[run.fde()], run)? else { return differences(entries, run, common) };
    Ok(match differences(entries, run, common) {
        Ok(differences) if differences.len() < retimed.len() => differences,
        _ => retimed,
    })
}

/// The input's instructions at the new places of their addresses; `None` if the run does not keep the input's order.
fn retimed(fde: &FdeData, run: &Run) -> Result<Option<Vec<u8>>, UnwindError> {
    let keeps_order = run.pieces[0].old_start == fde.start
        && run.fdes.iter().all(|&f| f == run.fde())
        && run.pieces.windows(2).all(|w| w[0].old_end() <= w[1].old_start);
    if !keeps_order {
        return Ok(None);
    }
    let mut writer = Writer { bytes: Vec::new(), at: run.start() };
    let mut pieces = run.pieces.iter().peekable();
    for op in &fde.ops {
        while pieces.next_if(|p| op.at > p.old_end()).is_some() {}
        let Some(piece) = pieces.peek() else { break };
        let at = piece.map(op.at.max(piece.old_start));
        if at >= run.end() {
            break;
        }
        writer.advance(at)?;
        writer.bytes.extend_from_slice(&op.bytes);
    }
    Ok(Some(writer.bytes))
}

fn deepened_where_needed<'a>(cie: &CieData, data: &'a FdeData, deeper: Deeper) -> Option<Cow<'a, FdeData>> {
    match deeper == Deeper::default() {
        true => Some(Cow::Borrowed(data)),
        false => deepened(cie, data, deeper).map(Cow::Owned),
    }
}

/// What leads from each row to the next, whatever the order.
fn differences<'a>(entries: &Entries<'a>, run: &Run, common: &mut CommonRows<'a>) -> Result<Vec<u8>, UnwindError> {
    let unwind = entries.unwind;
    let index = unwind.fdes[run.fde()].cie as usize;
    let cie = &unwind.cies[index];
    let initial = common.of(&unwind.cies, index)?;
    // Where a signal's frame is told, any instruction may be asked for.
    let sparse = entries.choices.image.filter(|_| entries.choices.is_sparse && !cie.is_signal_frame);
    let parts = || run.pieces.iter().zip(&run.fdes).filter(|(piece, _)| piece.new_len != 0);
    let mut told: Vec<((Fde, Deeper), Cow<'_, FdeData>)> = Vec::new();
    for (piece, &fde) in parts() {
        let key = (fde, piece.deeper);
        if told.iter().any(|(known, _)| *known == key) {
            continue;
        }
        let data = &unwind.fdes[fde];
        let entry = match deepened_where_needed(cie, data, piece.deeper) {
            Some(entry) => entry,
            // Where counters move the stack pointer for a few instructions, and that can't be told, they have the row of what follows them.
            None if piece.deeper.saves == 0 => Cow::Borrowed(data),
            None => return Err(UnwindError::Deeper(data.start)),
        };
        told.push((key, entry));
    }
    let mut rows_of: Vec<((Fde, Deeper), Rows<'_>)> = Vec::with_capacity(told.len());
    for (key, entry) in &told {
        rows_of.push((*key, Rows::evaluate_from(initial.clone(), cie, entry)?));
    }
    let mut changes_of_run: Vec<(Va, &Row<'_>)> = Vec::new();
    let mut reached = run.start();
    for (piece, &fde) in parts() {
        let Some((_, rows)) = rows_of.iter().find(|(known, _)| *known == (fde, piece.deeper)) else { continue };
        let mut asked = sparse.map(|image| Asked::of(image, piece, unwind.fdes[fde].start));
        // No-ops before an aligned piece are executed by what runs on into it.
        let first = (piece.old_start, std::mem::replace(&mut reached, piece.new_end()), rows.at(piece.old_start));
        let changes = rows.changes(piece.old_start, piece.old_end()).map(|(old, row)| (*old, piece.map(*old), row));
        let mut holding = std::iter::once(first).chain(changes).peekable();
        while let Some((_, at, row)) = holding.next() {
            let is_asked = asked.as_mut().is_none_or(|asked| asked.is_before(holding.peek().map(|next| next.0)));
            let current = changes_of_run.last().map_or(&initial, |(_, row)| row);
            if is_asked && at < piece.new_end() && row != current {
                changes_of_run.push((at, row));
            }
        }
    }
    emit(&initial, &changes_of_run, run.start(), cie.data_alignment)
}

/// Where rows of a piece are asked for, if only those are needed where code can stop by itself.
enum Asked {
    /// In all of it, up to its end, or in none.
    Whole(bool),
    /// At these places of the input, ascending.
    At(Vec<Va>),
}

impl Asked {
    /// For a piece of an entry that begins at `entry`. Where a function begins is one of the places: what relinks the file again looks for it there.
    fn of(image: &Image<'_>, piece: &Piece, entry: Va) -> Self {
        if piece.is_new {
            return Asked::Whole(!piece.is_quiet);
        }
        let Some(bytes) = image.read(piece.old_start, piece.old_len as usize) else { return Asked::Whole(true) };
        let begins = (piece.old_start == entry).then_some(entry);
        // Behind what was copied a jump may have been added.
        let ends = (piece.new_len > piece.old_len).then_some(piece.old_end());
        let mut places: Vec<Va> = begins.into_iter().chain(stops(bytes, piece.old_start)).chain(ends).collect();
        places.reverse();
        Asked::At(places)
    }

    /// Whether one of the places is before an address of the input, and not before the last one that was asked for.
    fn is_before(&mut self, end: Option<Va>) -> bool {
        let places = match self {
            Asked::Whole(all) => return *all,
            Asked::At(places) => places,
        };
        let count = places.len();
        while places.pop_if(|place| end.is_none_or(|end| *place < end)).is_some() {}
        places.len() < count
    }
}

/// The instructions for rows, each from its address on. Where functions share an entry, each begins with the common row: if that is shorter, it is remembered.
fn emit(initial: &Row<'_>, rows: &[(Va, &Row<'_>)], start: Va, data_alignment: i64) -> Result<Vec<u8>, UnwindError> {
    let befores = || std::iter::once(initial).chain(rows.iter().map(|(_, row)| *row));
    let mut told = Vec::new();
    let mut num_returns = 0;
    for (before, (_, row)) in befores().zip(rows).filter(|(_, (_, row))| *row == initial) {
        before.emit_difference(row, data_alignment, &mut told);
        num_returns += 1;
    }
    // The size of pushed arguments is not remembered.
    let is_plain = rows.iter().all(|(_, row)| row.has_args_size_of(initial));
    let remembers = is_plain && 2 * num_returns < told.len();
    let mut writer = Writer { bytes: Vec::new(), at: start };
    if remembers {
        writer.bytes.push(gimli::DW_CFA_remember_state.0);
    }
    for (before, &(at, row)) in befores().zip(rows) {
        writer.advance(at)?;
        if remembers && row == initial {
            num_returns -= 1;
            writer.bytes.push(gimli::DW_CFA_restore_state.0);
            if num_returns > 0 {
                writer.bytes.push(gimli::DW_CFA_remember_state.0);
            }
        } else {
            before.emit_difference(row, data_alignment, &mut writer.bytes);
        }
    }
    Ok(writer.bytes)
}
