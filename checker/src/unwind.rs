//! The unwind table as the unwinder sees it: for each address the frame description and the rules in force.
//!
//! Own reader of `.eh_frame` (LSB Core, "Exception Frames"; DWARF 5 §6.4). Rows of both files are interned in one
//! [`Rows`], so that comparing the rules of two addresses is comparing two numbers.

mod buckets;
mod cfi;
mod lsda;
mod reader;

pub(crate) use lsda::{CallSite, CallSites};
pub(crate) use reader::Reader;

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::FileError;
use crate::image::Image;
use buckets::Buckets;
use cfi::Row;

/// Interned rules and frame properties of both files.
#[derive(Default)]
pub(crate) struct Rows {
    rows: FxHashMap<Row, u32>,
    /// By number of rules, what the proofs need of them.
    frames_of: Vec<FrameOf>,
    frames: FxHashMap<Frame, u32>,
}

impl Rows {
    fn row(&mut self, row: &Row) -> u32 {
        if let Some(&id) = self.rows.get(row) {
            return id;
        }
        let id = self.rows.len() as u32;
        self.rows.insert(row.clone(), id);
        let plain_saves = row.plain_saves();
        self.frames_of.push(FrameOf { address: row.address_of_frame(), saves: row.saves(), plain_saves });
        id
    }

    /// What the rules of this number say of the frame.
    pub(crate) fn frame_of(&self, row: u32) -> Option<&FrameOf> {
        self.frames_of.get(row as usize)
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        let id = self.frames.len() as u32;
        *self.frames.entry(frame).or_insert(id)
    }
}

/// Where rules put the frame and what is saved in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct FrameOf {
    /// The register, by the ABI's number, that the frame address is this far from; none if it is found otherwise.
    pub(crate) address: Option<(u64, i64)>,
    /// The slots in which registers are, by distance from the frame address; without the return address.
    pub(crate) saves: Vec<i64>,
    /// Registers, by the ABI's numbers, and their slots, where the rules say nothing else.
    pub(crate) plain_saves: Option<Vec<(u64, i64)>>,
}

/// Stands for any personality in the file's own code; the walk compares which.
const LOCAL: Option<(u64, bool)> = Some((0, false));

/// What a frame description says apart from ranges and rules.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Frame {
    personality: Option<(u64, bool)>,
    has_lsda: bool,
    is_signal: bool,
    return_register: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Fde {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) lsda: Option<u64>,
    /// What call sites in that count from.
    pub(crate) base: u64,
    /// The personality where it is code of this file and so may move.
    pub(crate) local_personality: Option<u64>,
    /// Address of the entry itself, for the search table.
    pub(crate) place: u64,
    frame: u32,
    /// The same without personality and exception table.
    pub(crate) bare_frame: u32,
    /// No frame of a signal's, and the return address where calls put it.
    is_plain: bool,
}

#[derive(Copy, Clone)]
struct RowEntry {
    start: u64,
    row: u32,
    fde: u32,
}

/// What listed descriptions, which ascend, leave of the code of one that is not, if each covers a jump away and nothing else, and the first stands where the code begins.
fn behind_jumps<T>(image: &Image<'_>, old: &Fde, listed: &[(Fde, T)]) -> Vec<(u64, u64)> {
    let first = listed.partition_point(|(fde, _)| fde.end <= old.start);
    let jumps: Vec<&Fde> = listed[first..].iter().map(|(fde, _)| fde).take_while(|fde| fde.start < old.end).collect();
    // `jmp` with a displacement of four bytes.
    let is_jump = |fde: &&Fde| fde.end - fde.start == 5 && image.at(fde.start, 1) == Some(&[0xe9]);
    if jumps.first().is_none_or(|jump| jump.start != old.start) || !jumps.iter().all(is_jump) {
        return Vec::new();
    }
    let ends = jumps[1..].iter().map(|jump| jump.start).chain([old.end]);
    jumps.iter().map(|jump| jump.end).zip(ends).filter(|(start, end)| start < end).collect()
}

/// The rules in force at an address, and how far they hold.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Located {
    start: u64,
    end: u64,
    /// Index of the description, `NONE` outside of any.
    pub(crate) fde: u32,
    pub(crate) frame: u32,
    pub(crate) row: u32,
}

pub(crate) const NONE: u32 = u32::MAX;
/// Rules that a file need not tell.
pub(crate) const UNKNOWN: u32 = NONE - 2;

impl Located {
    pub(crate) fn nowhere() -> Self {
        Self { start: 0, end: 0, fde: NONE, frame: NONE, row: NONE }
    }

    pub(crate) fn covers(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// All frame descriptions of a file.
#[derive(Default)]
pub(crate) struct Unwind {
    /// By start. Empty ranges are left out, and so is what the search table, if there is one, does not list.
    pub(crate) fdes: Vec<Fde>,
    entries: Vec<RowEntry>,
    /// Starts of descriptions that the search table leaves out: an unwinder that uses it does not see them.
    pub(crate) unlisted: Vec<u64>,
    /// Code of such a description that is of one function, since it begins with a jump away that a listed description covers alone: an optimizer has written the function elsewhere. Ascending.
    pub(crate) replaced: Vec<(u64, u64)>,
    /// Whether the file only says where code can stop what unwinders need: relift marks its common entries with a no-op before their rules.
    pub(crate) is_sparse: bool,
    /// Where the table is.
    pub(crate) table: Option<(u64, u64)>,
    entry_row: u32,
    /// Where to look in the list of descriptions, and in that of rules.
    fde_buckets: Buckets,
    entry_buckets: Buckets,
}

impl Unwind {
    pub(crate) fn parse(image: &Image<'_>, rows: &mut Rows) -> Result<Self, FileError> {
        let Some((address, bytes)) = table_of(image) else { return Ok(Self::default()) };
        let mut cies: FxHashMap<usize, reader::Cie> = FxHashMap::default();
        let mut found: Vec<(Fde, Vec<(u64, u32)>)> = Vec::new();
        let mut offset = 0;
        while let Some(entry) = reader::entry(bytes, offset)? {
            offset = entry.end;
            if entry.is_cie() {
                continue;
            }
            let cie_offset = entry.cie_offset()?;
            let cie = match cies.entry(cie_offset) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(reader::cie(image, address, bytes, cie_offset)?),
            };
            let fde = reader::fde(image, address, bytes, &entry, cie)?;
            if fde.start == fde.end {
                continue;
            }
            let table = cfi::rows(cie, &fde, entry.start)?.into_iter().map(|(start, row)| (start, rows.row(&row))).collect();
            let local_personality = cie.personality.filter(|&(target, is_cell)| !is_cell && image.in_code(target));
            let frame = Frame {
                personality: if local_personality.is_some() { LOCAL } else { cie.personality },
                has_lsda: fde.lsda.is_some(),
                is_signal: cie.is_signal,
                return_register: cie.return_register,
            };
            let place = address + entry.start as u64;
            let bare_frame = rows.frame(Frame { personality: None, has_lsda: false, ..frame.clone() });
            let (start, end, lsda) = (fde.start, fde.end, fde.lsda);
            let local_personality = local_personality.map(|(target, _)| target);
            let is_plain = !cie.is_signal && cie.return_register == cfi::RETURN_ADDRESS;
            let frame = rows.frame(frame);
            let base = start;
            found.push((Fde { start, end, lsda, base, local_personality, place, frame, bare_frame, is_plain }, table));
        }
        found.sort_by_key(|(fde, _)| (fde.start, fde.place));
        // Without section headers it ends with its last entry and the terminator behind that.
        let size = if image.sections.is_empty() { (offset + 4).min(bytes.len()) } else { bytes.len() };
        let entry_row = rows.row(&Row::entry());
        let mut unwind = Self { table: Some((address, address + size as u64)), entry_row, ..Self::default() };
        if let Some(entries) = search_table(image) {
            let listed: FxHashSet<u64> = entries.iter().map(|&(_, place)| place).collect();
            let real: FxHashSet<u64> = found.iter().map(|(fde, _)| fde.place).collect();
            // Linkers that fold functions may list a description of no code in place of the real one that begins there.
            let shadowed: FxHashSet<u64> =
                entries.iter().filter(|(_, place)| !real.contains(place)).map(|&(start, _)| start).collect();
            let is_used = |fde: &Fde| listed.contains(&fde.place) || shadowed.contains(&fde.start);
            let (used, rest) = found.into_iter().partition(|(fde, _)| is_used(fde));
            found = used;
            unwind.replaced = rest.iter().flat_map(|(fde, _)| behind_jumps(image, fde, &found)).collect();
            unwind.unlisted = Vec::into_iter(rest).map(|(fde, _)| fde.start).collect();
        }
        for (index, (fde, table)) in found.into_iter().enumerate() {
            let next = |start, row| RowEntry { start, row, fde: index as u32 };
            // A gap before this description ends the last row; an overlap is reported by the structure check.
            unwind.entries.extend(table.into_iter().map(|(start, row)| next(start, row)));
            unwind.entries.push(RowEntry { start: fde.end, row: NONE, fde: NONE });
            unwind.fdes.push(fde);
        }
        // At equal starts the end marker comes first, so that the description that begins there wins.
        unwind.entries.sort_by_key(|entry| (entry.start, entry.fde != NONE));
        unwind.is_sparse = cies.values().any(|cie| cie.is_sparse);
        unwind.index();
        Ok(unwind)
    }

    fn index(&mut self) {
        self.fde_buckets = Buckets::of(self.fdes.iter().map(|fde| fde.start));
        self.entry_buckets = Buckets::of(self.entries.iter().map(|entry| entry.start));
    }

    /// Has descriptions end and others of the same rules begin at places inside of them, which ascend.
    pub(crate) fn cut_at(&mut self, places: &[u64]) {
        let entries = places.iter().map(|&place| RowEntry { start: place, ..self.entry_at(place) });
        let begun: Vec<RowEntry> = entries.collect();
        let known = |entry: &RowEntry| places.binary_search(&entry.start).is_ok() && entry.fde != NONE;
        self.entries.retain(|entry| !known(entry));
        self.entries.extend(begun);
        self.entries.sort_by_key(|entry| (entry.start, entry.fde != NONE));
        let mut fdes = Vec::with_capacity(self.fdes.len() + places.len());
        // By description, the first one that it becomes.
        let mut firsts = Vec::with_capacity(self.fdes.len());
        for fde in std::mem::take(&mut self.fdes) {
            firsts.push(fdes.len());
            let inside = &places[places.partition_point(|&place| place <= fde.start)..];
            let inside = &inside[..inside.partition_point(|&place| place < fde.end)];
            let starts = std::iter::once(fde.start).chain(inside.iter().copied());
            let ends = inside.iter().copied().chain([fde.end]);
            fdes.extend(starts.zip(ends).map(|(start, end)| Fde { start, end, ..fde.clone() }));
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.fde != NONE) {
            let first = firsts[entry.fde as usize];
            let behind = fdes[first..].iter().take_while(|part: &&Fde| part.start <= entry.start);
            entry.fde = (first + behind.count() - 1) as u32;
        }
        self.fdes = fdes;
        self.index();
    }

    /// Forgets the rules in some stretches, which ascend and don't touch.
    pub(crate) fn forget_rules(&mut self, stretches: &[(u64, u64)]) {
        let known = std::mem::take(&mut self.entries);
        let mut entries = Vec::with_capacity(known.len());
        let mut next = 0;
        for (index, &entry) in known.iter().enumerate() {
            let end = known.get(index + 1).map_or(u64::MAX, |entry| entry.start);
            if entry.fde == NONE {
                entries.push(entry);
                continue;
            }
            let mut at = entry.start;
            while stretches.get(next).is_some_and(|stretch| stretch.1 <= at) {
                next += 1;
            }
            for &(start, until) in stretches[next..].iter().take_while(|stretch| stretch.0 < end) {
                if at < start {
                    entries.push(RowEntry { start: at, ..entry });
                }
                let start = start.max(at);
                entries.push(RowEntry { start, row: UNKNOWN, ..entry });
                at = until.min(end);
            }
            if at < end {
                entries.push(RowEntry { start: at, ..entry });
            }
        }
        self.entries = entries;
        self.index();
    }

    fn entry_at(&self, address: u64) -> RowEntry {
        let after = self.entries.partition_point(|entry| entry.start <= address);
        self.entries[..after].last().copied().unwrap_or(RowEntry { start: 0, row: NONE, fde: NONE })
    }

    pub(crate) fn locate(&self, address: u64) -> Located {
        let range = self.entry_buckets.range(address, self.entries.len());
        let after = range.start + self.entries[range].partition_point(|entry| entry.start <= address);
        let end = self.entries.get(after).map_or(u64::MAX, |entry| entry.start);
        let Some(entry) = self.entries[..after].last() else { return Located { end, ..Located::nowhere() } };
        let frame = self.fdes.get(entry.fde as usize).map_or(NONE, |fde| fde.frame);
        Located { start: entry.start, end, fde: entry.fde, frame, row: entry.row }
    }

    /// The rules of a description, by number.
    pub(crate) fn rows_of(&self, fde: u32) -> impl Iterator<Item = u32> + '_ {
        let (start, end) = self.fdes.get(fde as usize).map_or((0, 0), |fde| (fde.start, fde.end));
        let first = self.entries.partition_point(|entry| entry.start < start);
        self.entries[first..]
            .iter()
            .take_while(move |entry| entry.start < end)
            .filter(move |entry| entry.fde == fde && entry.row != UNKNOWN)
            .map(|entry| entry.row)
    }

    /// Whether nothing is saved or pushed at an address. There may be handlers.
    pub(crate) fn has_no_frame(&self, address: u64) -> bool {
        let located = self.locate(address);
        let is_plain = self.fdes.get(located.fde as usize).is_some_and(|fde| fde.is_plain);
        is_plain && located.row == self.entry_row
    }

    /// Whether the rules are of a frame that a signal makes.
    pub(crate) fn is_of_signal(&self, located: &Located) -> bool {
        self.fdes.get(located.fde as usize).is_some_and(|fde| !fde.is_plain)
    }

    /// Whether the rules at an address are those that compilers write for a function's first instruction.
    pub(crate) fn is_row_of_entry(&self, address: u64) -> bool {
        self.locate(address).row == self.entry_row
    }

    /// The frame description that an address is in behind its start, or right behind the end of.
    pub(crate) fn described_around(&self, address: u64) -> Option<u32> {
        match self.fde_at(address) {
            Some(fde) => Some(fde).filter(|&fde| self.fdes[fde as usize].start != address),
            None => address.checked_sub(1).and_then(|last| self.fde_at(last)),
        }
    }

    pub(crate) fn fde_at(&self, address: u64) -> Option<u32> {
        let range = self.fde_buckets.range(address, self.fdes.len());
        let after = range.start + self.fdes[range].partition_point(|fde| fde.start <= address);
        let fde = self.fdes[..after].last()?;
        (address < fde.end).then(|| after as u32 - 1)
    }

    /// The description at an address, and where it is the same one.
    pub(crate) fn span_at(&self, address: u64) -> Option<(u32, std::ops::Range<u64>)> {
        let number = self.fde_at(address)?;
        let fde = &self.fdes[number as usize];
        let next = self.fdes.get(number as usize + 1).map_or(u64::MAX, |next| next.start);
        Some((number, fde.start..fde.end.min(next)))
    }

    /// Whether a frame description begins at an address.
    pub(crate) fn starts_at(&self, address: u64) -> bool {
        self.fde_at(address).is_some_and(|index| self.fdes[index as usize].start == address)
    }
}

/// The addresses of the entries, the terminator included. Where there is none, what lies behind the table is something else.
pub(crate) fn entries(image: &Image<'_>) -> Vec<u64> {
    let Some((address, bytes)) = table_of(image) else { return Vec::new() };
    let mut places = vec![address];
    let mut offset = 0;
    while let Ok(Some(entry)) = reader::entry(bytes, offset) {
        offset = entry.end;
        places.extend((offset < bytes.len()).then_some(address + offset as u64));
    }
    places
}

/// Address and bytes of `.eh_frame`: by section, or by the pointer in the search table's header.
fn table_of<'a>(image: &Image<'a>) -> Option<(u64, &'a [u8])> {
    if let Some(section) = image.section(".eh_frame").filter(|section| section.is_alloc()) {
        return Some((section.address, image.section_bytes(section)));
    }
    let header = image.elf.program_headers.iter().find(|header| header.p_type == goblin::elf::program_header::PT_GNU_EH_FRAME)?;
    let bytes = image.at(header.p_vaddr, 8)?;
    let mut reader = Reader::new(bytes, header.p_vaddr);
    reader.skip(4);
    let address = reader.encoded(bytes[1], header.p_vaddr, image)?;
    Some((address, image.tail(address)?))
}

/// The entries of the search table (`.eh_frame_hdr`): function start and address of its description.
pub(crate) fn search_table(image: &Image<'_>) -> Option<Vec<(u64, u64)>> {
    let header = image.elf.program_headers.iter().find(|header| header.p_type == goblin::elf::program_header::PT_GNU_EH_FRAME)?;
    let bytes = image.tail(header.p_vaddr)?;
    let mut reader = Reader::new(bytes, header.p_vaddr);
    let (version, frame, count, table) = (reader.u8()?, reader.u8()?, reader.u8()?, reader.u8()?);
    if version != 1 || count == reader::OMIT || table == reader::OMIT {
        return None;
    }
    reader.encoded(frame, header.p_vaddr, image)?;
    let count = reader.encoded(count, header.p_vaddr, image)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        entries.push((reader.encoded(table, header.p_vaddr, image)?, reader.encoded(table, header.p_vaddr, image)?));
    }
    Some(entries)
}
