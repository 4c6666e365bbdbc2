//! From the bytes of `.eh_frame` to [`Unwind`].
//!
//! **Method.** One walk over the length fields finds the entries; common entries are parsed when first named and deduplicated by
//! value; frame entries are then parsed in parallel, each into its call frame instructions with the advances folded into addresses.
//! Only what the bytes say unambiguously is accepted: 32-bit lengths, the augmentations `z`, `P`, `L`, `R` and `S`, pointers that are
//! absolute (in files at a fixed address) or relative to their place.
//!
//! **Dropped**: entries of length zero and entries whose code was removed by the linker (start 0, or no executable segment there).
//! Of overlapping entries those count that the search table lists; where that lists both, or there is none, they are an error: an unwinder's
//! binary search would find one or the other by accident.
//!
//! **Ends** because each step of the walk, and each instruction, takes at least one byte. Memory is bounded by the file's size; exception
//! tables, which hostile entries may share, have a budget of their own.
//!
//! Sources: LSB 5.0 §10.5 and §10.6, DWARF 5 §6.4.

use std::collections::hash_map::Entry;

use rayon::prelude::*;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::address::Va;
use crate::elf::cfi::Instruction;
use crate::elf::cursor::{Cursor, Problem};
use crate::elf::eh_frame::replaced::drop_shadowed;
use crate::elf::eh_frame::{CfiOp, CieData, FdeData, Unwind};
use crate::elf::image::Image;
use crate::elf::lsda::Lsda;
use crate::elf::lsda::parse::Budget;
use crate::error::{Error, Result};

/// A stretch of loaded bytes with entries. A linker may leave a terminator between two objects' entries; the search table still reaches
/// what follows.
struct Table<'a> {
    bytes: &'a [u8],
    at: Va,
}

/// A frame description entry that the walk has found.
struct Located {
    offset: usize,
    cie: CieId,
}

/// A common entry, and whether its augmentation begins with `z`, so that frame entries state the length of their augmentation data.
#[derive(Copy, Clone)]
struct CieId {
    index: u32,
    has_data_length: bool,
}

#[derive(Default)]
struct Cies {
    list: Vec<CieData>,
    by_value: FxHashMap<CieData, u32>,
    /// By offset in the table at hand.
    by_offset: FxHashMap<usize, CieId>,
}

/// What a frame description entry says, its exception table by address only.
pub(super) struct RawFde {
    /// Of the entry itself.
    pub(super) at: Va,
    pub(super) data: FdeData,
    lsda_at: Option<Va>,
}

fn malformed(at: Va) -> impl Fn(Problem) -> Error {
    move |why| Error::MalformedUnwind { at, why: why.into() }
}

impl Unwind {
    /// Reads all unwind information of a file. A file without any gives an empty result.
    pub fn parse(image: &Image<'_>) -> Result<Unwind> {
        let is_position_independent = image.kind.is_position_independent();
        let mut cies = Cies::default();
        let mut raw_fdes: Vec<RawFde> = Vec::new();
        for table in tables(image)? {
            let located = locate_entries(&table, &mut cies, is_position_independent)?;
            let parsed: Result<Vec<Option<RawFde>>> =
                located.par_iter().map(|l| parse_fde(image, &table, l, &cies.list[l.cie.index as usize])).collect();
            raw_fdes.extend(parsed?.into_iter().flatten());
        }
        raw_fdes.par_sort_by_key(|f| f.data.start);
        let listed = search_table(image)?;
        let replaced = match &listed {
            Some(table) => drop_shadowed(image, &mut raw_fdes, &table.listed),
            None => Vec::new(),
        };
        if let Some(pair) = raw_fdes.windows(2).find(|w| w[0].data.end > w[1].data.start) {
            return Err(malformed(pair[1].data.start)("two entries cover this address"));
        }
        if let Some(listed) = &listed {
            check_search_table(listed, &raw_fdes)?;
        }
        let lsdas = parse_lsdas(image, &mut raw_fdes)?;
        Ok(Unwind { cies: cies.list, fdes: raw_fdes.into_iter().map(|f| f.data).collect(), lsdas, replaced })
    }
}

/// The sections by name, or without section headers what `PT_GNU_EH_FRAME` names.
fn tables<'a>(image: &Image<'a>) -> Result<Vec<Table<'a>>> {
    let named: Vec<Table<'a>> = image
        .sections
        .iter()
        .filter(|(_, s)| s.name == ".eh_frame" && s.is_alloc())
        .map(|(id, s)| Table { bytes: image.section_bytes(id), at: s.sh_addr })
        .collect();
    if !named.is_empty() {
        return Ok(named);
    }
    let table = extent_by_search_table(image)?.map(|(at, end)| {
        let bytes = image.read(at, (end - at) as usize).unwrap_or(&[]);
        Table { bytes, at }
    });
    Ok(table.into_iter().collect())
}

/// Where `.eh_frame` begins and ends, by `PT_GNU_EH_FRAME`: it goes on as far as the search table names entries, and to the next
/// terminator. Entries behind that are of no code.
pub(crate) fn extent_by_search_table(image: &Image<'_>) -> Result<Option<(Va, Va)>> {
    let Some(header) = image.segments.iter().find(|s| s.p_type == object::elf::PT_GNU_EH_FRAME) else { return Ok(None) };
    let problem = malformed(header.p_vaddr);
    let start = read_header(image, header.p_vaddr, header.p_filesz).map_err(&problem)?;
    let listed = read_search_table(image, header.p_vaddr, header.p_filesz).map_err(&problem)?;
    let last = listed.as_ref().map(|listed| listed.iter().map(|l| l.1).max().unwrap_or_default());
    let bytes = image.segment_at(start).and_then(|s| {
        let len = s.p_filesz.checked_sub(start - s.p_vaddr)?;
        image.read(start, usize::try_from(len).ok()?)
    });
    // Where no code is described mold makes a search table of nothing.
    if bytes.is_none() && listed.as_ref().is_some_and(Vec::is_empty) {
        return Ok(None);
    }
    let bytes = bytes.ok_or_else(|| problem("the search table's pointer to .eh_frame leads out of the file"))?;
    let mut cursor = Cursor::new(bytes, start, image.kind.is_position_independent());
    loop {
        let at = cursor.va();
        let is_behind = last.is_some_and(|last| last < at);
        if cursor.rest().len() < 4 || is_behind && !cursor.rest().starts_with(&[0; 4]) {
            return Ok(Some((start, at)));
        }
        let is_terminator = next_entry(&mut cursor).map_err(malformed(at))?.is_none();
        if is_terminator && last.is_none_or(|last| last < at) {
            return Ok(Some((start, cursor.va())));
        }
    }
}

/// The search table that an unwinder goes by, with its address.
struct SearchTable {
    at: Va,
    /// Starts of code and the addresses of their entries, in the table's order.
    listed: Vec<(Va, Va)>,
}

fn search_table(image: &Image<'_>) -> Result<Option<SearchTable>> {
    let Some(header) = image.segments.iter().find(|s| s.p_type == object::elf::PT_GNU_EH_FRAME) else { return Ok(None) };
    let at = header.p_vaddr;
    let listed = read_search_table(image, at, header.p_filesz).map_err(malformed(at))?;
    Ok(listed.map(|listed| SearchTable { at, listed }))
}

/// An unwinder goes by the search table, so an entry that it leaves out, or has under another address, is none: then what the file says
/// of its code depends on who reads it. A table may list more than the entries of [`Unwind`]: those of no code.
fn check_search_table(SearchTable { at, listed }: &SearchTable, fdes: &[RawFde]) -> Result<()> {
    let starts_at: FxHashMap<Va, Va> = fdes.iter().map(|f| (f.at, f.data.start)).collect();
    if listed.iter().any(|(start, at)| starts_at.get(at).is_some_and(|known| known != start)) {
        return Err(malformed(*at)("the search table has an entry under another address"));
    }
    if !listed.is_sorted_by_key(|l| l.0) {
        return Err(malformed(*at)("the search table does not ascend"));
    }
    match fdes.iter().find(|f| listed.binary_search_by_key(&f.data.start, |l| l.0).is_err()) {
        Some(left_out) => Err(malformed(left_out.at)("the search table leaves this entry out")),
        None => Ok(()),
    }
}

/// The search table: starts of code and the addresses of their entries; `None` if there is none.
fn read_search_table(image: &Image<'_>, at: Va, len: u64) -> Result<Option<Vec<(Va, Va)>>, Problem> {
    let bytes = usize::try_from(len).ok().and_then(|len| image.read(at, len)).ok_or("the search table is not in the file")?;
    let mut cursor = Cursor::new(bytes, at, image.kind.is_position_independent());
    if cursor.u8()? != 1 {
        return Err("unknown version of the search table");
    }
    let (frame, count, table) = (cursor.u8()?, cursor.u8()?, cursor.u8()?);
    cursor.pointer(frame)?;
    if count == gimli::DW_EH_PE_omit.0 || table == gimli::DW_EH_PE_omit.0 {
        return Ok(None);
    }
    // All linkers write tables of this form; libgcc searches no other.
    if count != gimli::DW_EH_PE_udata4.0 || table != gimli::DW_EH_PE_datarel.0 | gimli::DW_EH_PE_sdata4.0 {
        return Err("a search table of an unknown form");
    }
    let count = cursor.u32()?;
    let mut listed = Vec::new();
    for _ in 0..count {
        let mut field = || Ok::<_, Problem>(at.offset(i64::from(cursor.u32()? as i32)));
        listed.push((field()?, field()?));
    }
    Ok(Some(listed))
}

/// The address of `.eh_frame` from the start of `.eh_frame_hdr`.
fn read_header(image: &Image<'_>, at: Va, len: u64) -> Result<Va, Problem> {
    let bytes = usize::try_from(len).ok().and_then(|len| image.read(at, len)).ok_or("the search table is not in the file")?;
    let mut cursor = Cursor::new(bytes, at, image.kind.is_position_independent());
    if cursor.u8()? != 1 {
        return Err("unknown version of the search table");
    }
    let encoding = cursor.u8()?;
    cursor.u16()?; // the encodings of the count and of the table
    cursor.pointer(encoding)?.ok_or("the search table has no pointer to .eh_frame")
}

/// Walks over the length fields.
fn locate_entries(table: &Table<'_>, cies: &mut Cies, is_position_independent: bool) -> Result<Vec<Located>> {
    let mut located = Vec::new();
    let mut cursor = Cursor::new(table.bytes, table.at, is_position_independent);
    cies.by_offset.clear();
    // A tail of fewer than four bytes is alignment.
    while cursor.rest().len() >= 4 {
        let at = cursor.va();
        let offset = table.bytes.len() - cursor.rest().len();
        let Some(mut body) = next_entry(&mut cursor).map_err(malformed(at))? else { continue };
        let back = body.u32().map_err(malformed(at))? as usize;
        if back == 0 {
            continue; // a common entry, parsed when one is found that names it
        }
        let cie_offset = (offset + 4).checked_sub(back).ok_or_else(|| malformed(at)("names a common entry before the table"))?;
        let cie = cies.at_offset(table, cie_offset, is_position_independent).map_err(malformed(at))?;
        located.push(Located { offset, cie });
    }
    Ok(located)
}

/// The bytes of the next entry after its length field; `None` for a terminator.
fn next_entry<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Cursor<'a>>, Problem> {
    match cursor.u32()? {
        0 => Ok(None),
        0xffff_fff0.. => Err("64-bit entries are not supported"),
        len => cursor.split(u64::from(len)).map(Some),
    }
}

impl Cies {
    fn at_offset(&mut self, table: &Table<'_>, offset: usize, is_position_independent: bool) -> Result<CieId, Problem> {
        if let Some(&known) = self.by_offset.get(&offset) {
            return Ok(known);
        }
        let bytes = table.bytes.get(offset..).ok_or("names a common entry behind the table")?;
        let mut cursor = Cursor::new(bytes, table.at + offset as u64, is_position_independent);
        let body = next_entry(&mut cursor)?.ok_or("names the terminator as its common entry")?;
        let (cie, has_data_length) = parse_cie(body)?;
        let index = match self.by_value.entry(cie) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let index = self.list.len() as u32;
                self.list.push(new.key().clone());
                *new.insert(index)
            }
        };
        let id = CieId { index, has_data_length };
        self.by_offset.insert(offset, id);
        Ok(id)
    }
}

fn parse_cie(mut body: Cursor<'_>) -> Result<(CieData, bool), Problem> {
    if body.u32()? != 0 {
        return Err("names a frame entry as its common entry");
    }
    let version = body.u8()?;
    if !matches!(version, 1 | 3) {
        return Err("unknown version of a common entry");
    }
    let augmentation = body.zero_terminated()?;
    let code_alignment = body.uleb()?;
    let data_alignment = body.sleb()?;
    let return_register = if version == 1 { u64::from(body.u8()?) } else { body.uleb()? };
    if code_alignment == 0 || code_alignment > u64::from(u32::MAX) {
        return Err("a senseless code alignment factor");
    }
    let mut cie = CieData {
        code_alignment,
        data_alignment,
        return_register,
        fde_encoding: gimli::DW_EH_PE_absptr.0,
        lsda_encoding: None,
        personality: None,
        is_signal_frame: false,
        is_sparse: false,
        instructions: Vec::new(),
    };
    parse_augmentation(&mut body, augmentation, &mut cie)?;
    let instructions = initial_instructions(body, cie.data_alignment)?;
    let marks = instructions.iter().take_while(|&&byte| byte == gimli::DW_CFA_nop.0).count();
    cie.is_sparse = marks > 0;
    cie.instructions = instructions[marks..].to_vec();
    Ok((cie, !augmentation.is_empty()))
}

/// Pointers of frame entries are never looked up through a slot.
fn direct(encoding: u8) -> Result<u8, Problem> {
    if encoding & gimli::DW_EH_PE_indirect.0 == 0 { Ok(encoding) } else { Err("an indirect pointer in a frame entry") }
}

/// The initial instructions without the no-ops that fill the entry up. A zero byte may be an operand, so they are decoded.
fn initial_instructions(mut body: Cursor<'_>, data_alignment: i64) -> Result<&[u8], Problem> {
    let bytes = body.rest();
    let mut end = 0;
    while !body.is_empty() {
        match Instruction::read(&mut body, data_alignment)? {
            Instruction::Nop => {}
            Instruction::AdvanceLoc(_) | Instruction::SetLoc | Instruction::RememberState | Instruction::RestoreState => {
                return Err("initial instructions that move or nest");
            }
            Instruction::Restore(_) => return Err("initial instructions that restore themselves"),
            _ => end = bytes.len() - body.rest().len(),
        }
    }
    Ok(&bytes[..end])
}

fn parse_augmentation(body: &mut Cursor<'_>, augmentation: &[u8], cie: &mut CieData) -> Result<(), Problem> {
    let letters = match augmentation {
        [] => return Ok(()),
        [b'z', letters @ ..] => letters,
        _ => return Err("unknown augmentation"),
    };
    let len = body.uleb()?;
    let mut data = body.split(len)?;
    for letter in letters {
        match letter {
            b'R' => cie.fde_encoding = direct(data.u8()?)?,
            b'L' => {
                let encoding = data.u8()?;
                cie.lsda_encoding = if encoding == gimli::DW_EH_PE_omit.0 { None } else { Some(direct(encoding)?) };
            }
            b'S' => cie.is_signal_frame = true,
            b'P' => {
                let encoding = data.u8()?;
                if encoding != gimli::DW_EH_PE_omit.0 {
                    cie.personality = data.pointer(encoding)?.map(|va| (encoding, va));
                }
            }
            _ => return Err("unknown augmentation"),
        }
    }
    Ok(())
}

/// One frame entry; `None` if it covers no code.
fn parse_fde(image: &Image<'_>, table: &Table<'_>, located: &Located, cie: &CieData) -> Result<Option<RawFde>> {
    let at = table.at + located.offset as u64;
    let mut cursor = Cursor::new(&table.bytes[located.offset..], at, image.kind.is_position_independent());
    // The walk has read these two fields before.
    let Some(mut body) = next_entry(&mut cursor).map_err(malformed(at))? else { return Ok(None) };
    let mut parse = || -> Result<Option<RawFde>, Problem> {
        body.u32()?;
        let start = body.pointer(cie.fde_encoding)?;
        let len = body.formatted(cie.fde_encoding)?;
        let Some(start) = start.filter(|&va| len != 0 && image.is_executable(va)) else { return Ok(None) };
        let end = Va(start.0.checked_add(len).ok_or("covers more than the address space")?);
        if image.segment_at(start).is_none_or(|s| end > s.end()) {
            return Err("covers more than its segment");
        }
        let lsda_at = if located.cie.has_data_length {
            let len = body.uleb()?;
            let mut data = body.split(len)?;
            cie.lsda_encoding.map(|encoding| data.pointer(encoding)).transpose()?.flatten()
        } else {
            None
        };
        let ops = parse_ops(body, cie, start)?;
        let data = FdeData { cie: located.cie.index, start, end, lsda: None, opaque_lsda: None, ops };
        Ok(Some(RawFde { at, data, lsda_at }))
    };
    parse().map_err(malformed(at))
}

/// The call frame instructions, each at the address from which on it holds.
fn parse_ops(mut body: Cursor<'_>, cie: &CieData, start: Va) -> Result<Vec<CfiOp>, Problem> {
    let mut ops = Vec::new();
    let mut at = start;
    let mut depth = 0u32;
    while !body.is_empty() {
        let before = body.rest();
        match Instruction::read(&mut body, cie.data_alignment)? {
            Instruction::Nop => continue,
            Instruction::AdvanceLoc(units) => {
                let bytes = units.checked_mul(cie.code_alignment).and_then(|delta| at.0.checked_add(delta));
                at = Va(bytes.ok_or("an advance past the end of the address space")?);
                continue;
            }
            Instruction::SetLoc => {
                let next = body.pointer(cie.fde_encoding)?.ok_or("a location of 0")?;
                if next < at {
                    return Err("locations that descend");
                }
                at = next;
                continue;
            }
            Instruction::RememberState => depth += 1,
            Instruction::RestoreState => depth = depth.checked_sub(1).ok_or("restores a state that none remembers")?,
            _ => {}
        }
        ops.push(CfiOp { at, bytes: SmallVec::from_slice(&before[..before.len() - body.rest().len()]) });
    }
    ops.shrink_to_fit();
    Ok(ops)
}

/// The exception tables that the entries name, one for each entry: call sites count from the entry's start.
fn parse_lsdas(image: &Image<'_>, fdes: &mut [RawFde]) -> Result<Vec<Lsda>> {
    let budget = Budget::for_file(image);
    let parsed: Vec<Option<Result<Lsda, Problem>>> =
        fdes.par_iter().map(|f| f.lsda_at.map(|at| Lsda::parse(image, at, f.data.start..f.data.end, &budget))).collect();
    if budget.is_exhausted() {
        let at = fdes.iter().find_map(|f| f.lsda_at).unwrap_or_default();
        return Err(malformed(at)("exception tables that overlap"));
    }
    let mut lsdas = Vec::new();
    for (fde, lsda) in fdes.iter_mut().zip(parsed) {
        match lsda {
            None => {}
            Some(Ok(lsda)) => {
                fde.data.lsda = Some(lsdas.len() as u32);
                lsdas.push(lsda);
            }
            Some(Err(_)) => fde.data.opaque_lsda = fde.lsda_at,
        }
    }
    Ok(lsdas)
}
