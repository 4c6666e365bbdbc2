//! How right lifting was, by the relocations that it did not look at.
//!
//! **Problem.** A wrong reference shows only when the program that was relinked by it runs the code in question. **Method.** A file linked with
//! `--emit-relocs` says of each field what it names. Lift it with [`LiftOptions::use_static_relocs`](crate::lift::LiftOptions) off, then
//! compare field by field: a field that names movable code must be a reference, a made-anew branch, an entry of a table, or a slot. Zero missed is
//! the only pass.
//!
//! The reverse is weaker: assemblers resolve what stays within one section themselves, so only data words without a relocation are invented for sure.

use object::elf;

use crate::address::Va;
use crate::elf::Image;
use crate::elf::image::{SectionData, StaticReloc};
use crate::entity::{EntityId, Section, Table};
use crate::ir::{BlockData, CodeTarget, Program, RefTarget, SlotKind, TableBase, Terminator};

/// Fields on which lifting and the linker disagree, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroundTruth {
    /// Relocated fields that were compared.
    pub num_compared: usize,
    /// Fields of instructions that name movable code, which lifting took for something else.
    pub missed_refs: Vec<Va>,
    /// Data words that hold the address of movable code and are no slot.
    pub missed_slots: Vec<Va>,
    /// Pc-relative data words that name movable code and are an entry of no table, or of one that reads them otherwise.
    pub missed_table_targets: Vec<Va>,
    /// Slots that are not relocated.
    pub invented_slots: Vec<Va>,
    /// Entries of tables that are not relocated: harmless, where tables are copied.
    pub num_extra_entries: usize,
}

impl GroundTruth {
    /// Whether nothing was missed, and no data word would be written that holds no address.
    pub fn is_sound(&self) -> bool {
        self.missed_refs.is_empty()
            && self.missed_slots.is_empty()
            && self.missed_table_targets.is_empty()
            && self.invented_slots.is_empty()
    }
}

/// Compares a program that was lifted without static relocations to what those say.
pub fn ground_truth(image: &Image<'_>, program: &Program) -> GroundTruth {
    let mut truth = GroundTruth::default();
    let comparison = Comparison { image, program };
    for section in image.sections.values().filter(|s| s.is_alloc()) {
        for reloc in image.static_relocs_in(section.sh_addr, section.end()) {
            comparison.compare(section, reloc, &mut truth);
        }
    }
    comparison.compare_slots(&mut truth);
    truth
}

#[derive(Copy, Clone)]
struct Comparison<'p> {
    image: &'p Image<'p>,
    program: &'p Program,
}

impl Comparison<'_> {
    fn compare(&self, section: &SectionData<'_>, reloc: &StaticReloc, truth: &mut GroundTruth) {
        // Written anew from what they say, not patched.
        if [".eh_frame", ".eh_frame_hdr"].contains(&section.name) || section.name.starts_with(".gcc_except_table") {
            return;
        }
        let is_relative = [elf::R_X86_64_PC32, elf::R_X86_64_PLT32].contains(&reloc.r_type);
        if section.is_executable() {
            self.compare_field(reloc, is_relative, truth);
        } else if is_relative {
            if self.names_code(reloc) {
                truth.num_compared += 1;
                if !self.is_table_entry(reloc.at) {
                    truth.missed_table_targets.push(reloc.at);
                }
            }
        } else if reloc.r_type == elf::R_X86_64_64 {
            let target = self.image.read_u64(reloc.at).map(Va);
            // A word that the loader fills from a symbol holds nothing in the file; then the addend does.
            let target = target.filter(|t| t.0 != 0).or_else(|| self.value(reloc));
            if target.is_some_and(|t| self.is_movable(t)) && self.names_code(reloc) {
                truth.num_compared += 1;
                let is_slot = self.program.slots.binary_search_by_key(&reloc.at, |s| s.at).is_ok();
                let dynamic = &self.image.dynamic_relocs;
                let first = dynamic.partition_point(|r| r.slot < reloc.at);
                let is_by_symbol = dynamic.get(first).is_some_and(|r| r.slot == reloc.at && r.symbol != 0);
                if !is_slot && !is_by_symbol {
                    truth.missed_slots.push(reloc.at);
                }
            }
        }
    }

    /// A field of an instruction.
    fn compare_field(&self, reloc: &StaticReloc, is_relative: bool, truth: &mut GroundTruth) {
        let Some(block) = self.program.block_containing(reloc.at) else { return };
        let data = &self.program.blocks[block];
        // What the linker relaxed from a load of a GOT entry to the address itself keeps the type it had.
        let is_relaxed = [elf::R_X86_64_GOTPCRELX, elf::R_X86_64_REX_GOTPCRELX].contains(&reloc.r_type);
        if !(is_relative || is_relaxed) || !self.names_code(reloc) {
            return;
        }
        let offset = (reloc.at - data.start) as u32;
        let lifted = match offset >= data.body_len {
            true => branch_target(data).and_then(|t| self.address(t)),
            false => self.program.block_refs(block).iter().find(|r| r.offset == offset).and_then(|r| match r.target {
                RefTarget::Block(target) => Some(self.program.blocks[target].start),
                RefTarget::Fixed(va) => Some(va),
                RefTarget::Table(_) => None,
            }),
        };
        // S + A - P is stored, and the processor adds the address of the instruction's end: P plus the bytes up to there.
        let to_end = match offset >= data.body_len {
            true => data.end() - reloc.at,
            false => self.program.block_refs(block).iter().find(|r| r.offset == offset).map_or(4, |r| u64::from(r.to_end)),
        };
        let stored = self.image.read_u32(reloc.at).map(|v| i64::from(v as i32));
        let expected = stored.map(|stored| (reloc.at + to_end).offset(stored));
        if !expected.is_some_and(|va| self.is_movable(va)) {
            return;
        }
        truth.num_compared += 1;
        if lifted != expected {
            truth.missed_refs.push(reloc.at);
        }
    }

    /// Whether an entry of a lifted table reads the word as what it names.
    fn is_table_entry(&self, at: Va) -> bool {
        let stored = self.image.read_u32(at).map(|v| i64::from(v as i32));
        // Tables are ascending, and those of differences do not overlap.
        let after = self.program.tables.as_slice().partition_point(|t| t.at <= at);
        let Some(id) = after.checked_sub(1).map(Table::new) else { return false };
        let table = &self.program.tables[id];
        let index = (at - table.at) / 4;
        let is_own = table.entry_size == 4 && table.base == TableBase::Own && (at - table.at).is_multiple_of(4);
        let target = self.program.targets_of(id).get(index as usize).filter(|_| is_own);
        target.is_some_and(|&t| stored.map(|stored| table.at.offset(stored)) == Some(self.program.blocks[t].start))
    }

    fn compare_slots(&self, truth: &mut GroundTruth) {
        let is_relocated = |va: Va| !self.image.static_relocs_in(va, va + 1).is_empty();
        for slot in self.program.slots.iter().filter(|s| !matches!(s.kind, SlotKind::Dynamic(_))) {
            if !is_relocated(slot.at) {
                truth.invented_slots.push(slot.at);
            }
        }
        for table in self.program.tables.values() {
            let words = (0..table.targets.len() as u64).map(|i| table.at + i * u64::from(table.entry_size));
            truth.num_extra_entries += words.filter(|&va| !is_relocated(va)).count();
        }
    }

    fn value(&self, reloc: &StaticReloc) -> Option<Va> {
        let symbol = self.image.symbols.get(reloc.symbol)?;
        Some(Va(symbol.st_value).offset(reloc.addend))
    }

    /// Whether the relocation's symbol lies in code that may move.
    fn names_code(&self, reloc: &StaticReloc) -> bool {
        let Some(symbol) = self.image.symbols.get(reloc.symbol) else { return false };
        let section = Section::new(usize::from(symbol.st_shndx));
        symbol.is_defined() && self.image.sections.get(section).is_some() && self.image.is_movable_code_section(section)
    }

    fn is_movable(&self, va: Va) -> bool {
        let block = self.program.block_containing(va);
        block.is_some_and(|b| self.program.funcs[self.program.func_of(b)].is_movable())
    }

    fn address(&self, target: CodeTarget) -> Option<Va> {
        match target {
            CodeTarget::Block(block) => Some(self.program.blocks[block].start),
            CodeTarget::Fixed(va) => Some(va),
        }
    }
}

fn branch_target(data: &BlockData) -> Option<CodeTarget> {
    match data.terminator {
        Terminator::Jump { target } => Some(target),
        Terminator::Branch { taken, .. } => Some(taken),
        Terminator::Loop { taken, .. } => Some(CodeTarget::Block(taken)),
        _ => None,
    }
}
