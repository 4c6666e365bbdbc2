//! Fields and words that follow moved code: fixups of the new code, references in pinned code, slots, tables, dynamic symbols, notes.
//!
//! **Method.** One buffer holds the loaded part of the file; everything is written through `OutBytes::write` at an output address. Only
//! what is named by the IR is written: no word is patched because it looks like a pointer.

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::{DynRelocPlace, Segment, SymbolData};
use lifter::entity::{Block, Table};
use lifter::ir::{BlockData, BlockFlags, Program, RefKind, Relay, SlotData, SlotKind, TableBase, TableData, Terminator};
use object::elf;
use rayon::prelude::*;

use crate::clones::CloneId;
use crate::encode::FragmentCode;
use crate::error::{Error, Result};
use crate::instrument::Start;
use crate::relink::addresses::Addresses;
use crate::relink::place::{Placement, TablePlace};
use crate::relink::space::{Overflow, PAGE, loaded_file_end};
use crate::relink::symbols::{Placed, size_at_identity};

/// The loaded part of the output file.
#[derive(Debug)]
pub(crate) struct OutBytes {
    pub(crate) bytes: Vec<u8>,
    /// Loaded segments of the input.
    loads: Vec<Segment>,
    overflow: Overflow,
}

impl OutBytes {
    pub(crate) fn new(image: &Image<'_>, overflow: Overflow) -> Self {
        /// In bytes. Pages are new to the process: touching them takes longer than the copy, and can be shared out.
        const CHUNK: usize = 1 << 20;
        let input = &image.bytes[..loaded_file_end(image) as usize];
        let len = if overflow.is_empty() { input.len() } else { (overflow.offset.0 + overflow.len()) as usize };
        let mut bytes = vec![0; len];
        bytes.par_chunks_mut(CHUNK).zip((0..len).into_par_iter().step_by(CHUNK)).for_each(|(chunk, start)| {
            let copied = input.len().saturating_sub(start).min(chunk.len());
            chunk[..copied].copy_from_slice(&input[start.min(input.len())..][..copied]);
            chunk[copied..].fill(0xcc);
        });
        OutBytes { bytes, loads: image.loads().copied().collect(), overflow }
    }

    /// The file offset of an output address: of the overflow, of an input segment, or of the padding that completes its last page.
    pub(crate) fn offset_of(&self, va: Va) -> FileOffset {
        if va >= self.overflow.start && va <= self.overflow.end && !self.overflow.is_empty() {
            return FileOffset(self.overflow.offset.0 + (va - self.overflow.start));
        }
        let holds = |s: &&Segment| s.p_vaddr <= va && va < s.p_vaddr + s.p_filesz;
        let completes = |s: &&Segment| s.p_vaddr <= va && va <= (s.p_vaddr + s.p_filesz).align_up(PAGE);
        let segment = self.loads.iter().find(holds).or_else(|| self.loads.iter().find(completes));
        FileOffset(segment.map_or(u64::MAX, |s| s.p_offset.0 + (va - s.p_vaddr)))
    }

    pub(crate) fn slice_mut(&mut self, va: Va, len: usize) -> Result<&mut [u8]> {
        let start = self.offset_of(va).0;
        let end = start.checked_add(len as u64);
        let range = end.map(|end| start as usize..end as usize);
        range
            .and_then(|range| self.bytes.get_mut(range))
            .ok_or_else(|| Error::Inconsistent(format!("{len} bytes at {va} are not in the file")))
    }

    pub(crate) fn write(&mut self, va: Va, bytes: &[u8]) -> Result<()> {
        self.slice_mut(va, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    fn read_u64(&mut self, va: Va) -> Result<u64> {
        let mut word = [0; 8];
        word.copy_from_slice(self.slice_mut(va, 8)?);
        Ok(u64::from_le_bytes(word))
    }
}

/// The bytes of a field that names `target`.
fn field(at: Va, to_end: u8, kind: RefKind, target: Va) -> Result<([u8; 8], usize)> {
    let out_of_reach = || Error::OutOfReach { at, target };
    let mut bytes = [0; 8];
    let len = match kind {
        RefKind::Rel32 => {
            let distance = target.distance(at + u64::from(to_end));
            bytes[..4].copy_from_slice(&i32::try_from(distance).map_err(|_| out_of_reach())?.to_le_bytes());
            4
        }
        RefKind::Abs32 => {
            bytes[..4].copy_from_slice(&u32::try_from(target.0).map_err(|_| out_of_reach())?.to_le_bytes());
            4
        }
        RefKind::Abs32S => {
            bytes[..4].copy_from_slice(&i32::try_from(target.0 as i64).map_err(|_| out_of_reach())?.to_le_bytes());
            4
        }
        RefKind::Abs64 => {
            bytes = target.0.to_le_bytes();
            8
        }
    };
    Ok((bytes, len))
}

/// Fills in a fragment's fixups for its place, and uses them up.
pub(crate) fn resolve_fixups(code: &mut FragmentCode, at: Va, addresses: &Addresses<'_>) -> Result<()> {
    for fixup in std::mem::take(&mut code.fixups) {
        let place = at + u64::from(fixup.offset);
        let (bytes, len) = field(place, fixup.to_end, fixup.kind, addresses.fixup(fixup.target))?;
        let offset = fixup.offset as usize;
        code.bytes[offset..offset + len].copy_from_slice(&bytes[..len]);
    }
    Ok(())
}

/// Makes the references of code that stayed follow what moved.
pub(crate) fn patch_pinned(program: &Program, addresses: &Addresses<'_>, out: &mut OutBytes) -> Result<()> {
    for (block, data) in program.blocks.iter() {
        if program.funcs[data.func].is_movable() {
            continue;
        }
        for r in program.block_refs(block) {
            let at = data.start + u64::from(r.offset);
            let (bytes, len) = field(at, r.to_end, r.kind, addresses.reference(r.target, r.role))?;
            let changed = out.slice_mut(at, len)?;
            if changed != &bytes[..len] {
                changed.copy_from_slice(&bytes[..len]);
            }
        }
        patch_pinned_terminator(data, addresses, out)?;
    }
    Ok(())
}

fn patch_pinned_terminator(data: &BlockData, addresses: &Addresses<'_>, out: &mut OutBytes) -> Result<()> {
    let (target, short_len) = match data.terminator {
        Terminator::Jump { target } => (target, 2),
        Terminator::Branch { taken, .. } => (taken, 2),
        Terminator::Loop { taken, .. } => (lifter::ir::CodeTarget::Block(taken), u32::MAX),
        Terminator::Fallthrough { .. } | Terminator::Stop(_) => return Ok(()),
    };
    let terminator_len = data.len - data.body_len;
    if terminator_len == 0 {
        return Ok(());
    }
    let target = addresses.code(target);
    // A branch prefix makes a short branch three bytes long; a long one never has fewer than five.
    if terminator_len <= short_len.max(4) || short_len == u32::MAX {
        let at = data.end().offset(-1);
        let old = *out.slice_mut(at, 1)?.first().unwrap_or(&0) as i8;
        return if data.end().offset(i64::from(old)) == target { Ok(()) } else { Err(Error::ShortBranchFromPinned(at)) };
    }
    let at = data.end().offset(-4);
    let (bytes, len) = field(at, 4, RefKind::Rel32, target)?;
    out.write(at, &bytes[..len])
}

/// *Guard* mode: what stands at the old address of each anchor that moved. Returns how many there are.
pub(crate) fn write_anchors(program: &Program, has_ibt: bool, addresses: &Addresses<'_>, out: &mut OutBytes) -> Result<usize> {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let mut num_anchors = 0;
    for (block, data) in program.blocks.iter().filter(|(_, data)| data.flags.contains(BlockFlags::ANCHOR)) {
        let Some(to) = addresses.moved(block) else { continue };
        let relay =
            program.relays.binary_search_by_key(&data.start, |relay| relay.anchor).ok().map(|index| program.relays[index].at);
        let jump = relay.unwrap_or_else(|| data.start + (data.anchor_len(has_ibt) - Relay::LEN));
        if let Some(relay) = relay {
            let distance = relay.0.wrapping_sub((data.start + data.anchor_len(has_ibt)).0) as i8;
            out.write(data.start, &[0xeb, distance as u8])?;
        } else if jump != data.start {
            out.write(data.start, &ENDBR64)?;
        }
        // Behind a mark that was executed at the old address: the input has one, too.
        let is_marked_twice = relay.is_none() && jump != data.start && out.slice_mut(to, ENDBR64.len())? == ENDBR64;
        let to = if is_marked_twice { to + ENDBR64.len() as u64 } else { to };
        let (bytes, _) = field(jump + 1, 4, RefKind::Rel32, to)?;
        out.write(jump, &[0xe9])?;
        out.write(jump + 1, &bytes[..4])?;
        num_anchors += 1;
    }
    Ok(num_anchors)
}

/// Words outside code that name code.
pub(crate) fn patch_slots(image: &Image<'_>, program: &Program, addresses: &Addresses<'_>, out: &mut OutBytes) -> Result<()> {
    for slot in &program.slots {
        let target = addresses.block(slot.target);
        match slot.kind {
            SlotKind::Dynamic(index) => patch_dynamic_slot(image, slot, index, target, out)?,
            SlotKind::Abs64 => out.write(slot.at, &target.0.to_le_bytes())?,
            SlotKind::Abs32 => {
                let (bytes, len) = field(slot.at, 0, RefKind::Abs32, target)?;
                out.write(slot.at, &bytes[..len])?;
            }
            SlotKind::Rel32 { base } => {
                let distance = i32::try_from(target.distance(base)).map_err(|_| Error::OutOfReach { at: slot.at, target })?;
                out.write(slot.at, &distance.to_le_bytes())?;
            }
        }
    }
    Ok(())
}

fn patch_dynamic_slot(image: &Image<'_>, slot: &SlotData, index: u32, target: Va, out: &mut OutBytes) -> Result<()> {
    let reloc = image
        .dynamic_relocs
        .get(index as usize)
        .ok_or_else(|| Error::Inconsistent(format!("the slot at {} names no relocation", slot.at)))?;
    match reloc.place {
        DynRelocPlace::Relr => out.write(slot.at, &target.0.to_le_bytes()),
        DynRelocPlace::Rela(place) => {
            // `r_addend` is the third word of an Elf64_Rela.
            let at = place.0 as usize + 16;
            let addend = out.bytes.get_mut(at..at + 8);
            addend
                .ok_or_else(|| Error::Inconsistent(format!("the relocation of {} is not in a loaded segment", slot.at)))?
                .copy_from_slice(&target.0.to_le_bytes());
            // Some linkers store the addend in place too, and tools that don't relocate read it there.
            let holds_addend = image.read(slot.at, 8).is_some() && out.read_u64(slot.at)? == reloc.addend as u64;
            if holds_addend { out.write(slot.at, &target.0.to_le_bytes()) } else { Ok(()) }
        }
    }
}

/// Has a library run `stub` first when it is loaded.
pub(crate) fn redirect_start(image: &Image<'_>, program: &Program, start: Start, stub: Va, out: &mut OutBytes) -> Result<()> {
    let missing = |what: &str| Error::Inconsistent(format!("{what} is gone"));
    match start {
        Start::Entry => Ok(()),
        Start::Init(_) => {
            let segment = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC);
            let index = image.dynamic.iter().position(|&(tag, _)| tag == u64::from(elf::DT_INIT));
            let (segment, index) = segment.zip(index).ok_or_else(|| missing("DT_INIT"))?;
            out.write(segment.p_vaddr + 16 * index as u64 + 8, &stub.0.to_le_bytes())
        }
        Start::InitArray(at) => {
            let slot = program.slots.iter().find(|slot| slot.at == at).ok_or_else(|| missing("DT_INIT_ARRAY"))?;
            match slot.kind {
                SlotKind::Dynamic(index) => patch_dynamic_slot(image, slot, index, stub, out),
                _ => Err(missing("the relocation of DT_INIT_ARRAY")),
            }
        }
    }
}

/// Jump tables, in place or copied.
pub(crate) fn write_tables(
    program: &Program,
    placement: &Placement,
    addresses: &Addresses<'_>,
    out: &mut OutBytes,
) -> Result<()> {
    for (table, data) in program.tables.iter() {
        let at = match placement.tables[table] {
            TablePlace::Untouched => continue,
            TablePlace::InPlace => data.at,
            TablePlace::CopiedTo(va) => va,
        };
        write_table(program, data, table, (None, at), addresses, out)?;
    }
    for (&(clone, table), &at) in &placement.clone_tables {
        write_table(program, &program.tables[table], table, (Some(clone), at), addresses, out)?;
    }
    Ok(())
}

/// A table at its place, for the functions or for a clone.
fn write_table(
    program: &Program,
    data: &TableData,
    table: Table,
    (clone, at): (Option<CloneId>, Va),
    addresses: &Addresses<'_>,
    out: &mut OutBytes,
) -> Result<()> {
    let base = match data.base {
        TableBase::Own => at,
        TableBase::Code(block) => addresses.block(block),
        TableBase::Fixed(va) => va,
        TableBase::Absolute => Va(0),
    };
    let mut bytes = Vec::with_capacity(data.targets.len() * usize::from(data.entry_size));
    // A label whose old address is kept may be compared with it, by a number in code: it has that one address for whoever holds it.
    let keeps_identity = |block: Block| clone.is_none() && program.blocks[block].flags.contains(BlockFlags::ANCHOR);
    for &block in program.targets_of(table) {
        let target = if keeps_identity(block) { program.blocks[block].start } else { addresses.block_in(clone, block) };
        let value = target.distance(base);
        if data.entry_size == 8 {
            bytes.extend_from_slice(&value.to_le_bytes());
        } else {
            let value = i32::try_from(value).map_err(|_| Error::OutOfReach { at, target })?;
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    out.write(at, &bytes)
}

/// What names tables that may move.
const TABLES: [u32; 7] =
    [elf::DT_HASH, elf::DT_GNU_HASH, elf::DT_SYMTAB, elf::DT_STRTAB, elf::DT_VERSYM, elf::DT_VERDEF, elf::DT_VERNEED];

/// `.dynsym` values, sizes and section indices, `DT_INIT` and `DT_FINI`, and where tables are that moved.
pub(crate) fn patch_dynamic(
    image: &Image<'_>,
    placed: Placed<'_>,
    section_of: &(dyn Fn(Va) -> Option<u16> + Sync),
    remap_definition: &(dyn Fn(u16, Option<Va>) -> u16 + Sync),
    moved_address: &dyn Fn(Va) -> Option<Va>,
    out: &mut OutBytes,
) -> Result<()> {
    let Placed { program, addresses, .. } = placed;
    if let Some((_, dynsym)) = image.sections.iter().find(|(_, s)| s.sh_type == elf::SHT_DYNSYM) {
        let table = moved_address(dynsym.sh_addr).unwrap_or(dynsym.sh_addr);
        let renewed = |symbol: &SymbolData<'_>| {
            let address = symbol.has_address().then_some(Va(symbol.st_value));
            let shndx = remap_definition(symbol.st_shndx, address);
            let block = address.and_then(|address| program.block_at(address));
            let Some(block) = block else { return (shndx, None, None) };
            let va = addresses.identity(block);
            let size = size_at_identity(placed, block, image.has_ibt).filter(|_| symbol.st_size != 0);
            (section_of(va).unwrap_or(shndx), Some(va), size)
        };
        let symbols: Vec<(u16, Option<Va>, Option<u64>)> = image.dynamic_symbols.par_iter().map(renewed).collect();
        for (index, (shndx, va, size)) in symbols.into_iter().enumerate() {
            let at = table + 24 * index as u64;
            out.write(at + 6, &shndx.to_le_bytes())?;
            if let Some(va) = va {
                out.write(at + 8, &va.0.to_le_bytes())?;
            }
            if let Some(size) = size {
                out.write(at + 16, &size.to_le_bytes())?;
            }
        }
    }
    if let Some(segment) = image.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC) {
        for (index, &(tag, value)) in image.dynamic.iter().enumerate() {
            let is_any_of = |tags: &[u32]| tags.iter().any(|&t| u64::from(t) == tag);
            let moved = if is_any_of(&[elf::DT_INIT, elf::DT_FINI]) {
                program.block_at(Va(value)).map(|block| addresses.identity(block))
            } else if is_any_of(&TABLES) {
                moved_address(Va(value))
            } else {
                None
            };
            if let Some(va) = moved {
                out.write(segment.p_vaddr + 16 * index as u64 + 8, &va.0.to_le_bytes())?;
            }
        }
    }
    Ok(())
}
