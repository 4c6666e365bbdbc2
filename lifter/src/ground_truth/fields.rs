//! Relocated fields of instructions against the references of the blocks that hold them.
//!
//! The instructions are decoded from each block's start, so a relocation that lies in no field shows that the block was decoded out of step. The linker
//! moves fields when it relaxes accesses to thread-local storage, and by one byte when a jump through a slot becomes a jump; nothing else may.

use iced_x86::{ConstantOffsets, Decoder, DecoderOptions, Instruction};
use object::elf;

use crate::address::Va;
use crate::elf::image::StaticReloc;
use crate::entity::Block;
use crate::ground_truth::oracle::{is_address, is_slot_access, place_of_field};
use crate::ground_truth::{Comparison, GroundTruth};
use crate::ir::{BlockData, CodeTarget, RefData, RefTarget, Terminator};

/// Relocations whose sequences of instructions the linker writes anew, fields and all.
const THREAD_LOCAL: [u32; 5] =
    [elf::R_X86_64_TLSGD, elf::R_X86_64_TLSLD, elf::R_X86_64_GOTPC32_TLSDESC, elf::R_X86_64_TLSDESC_CALL, elf::R_X86_64_GOTTPOFF];

/// How far behind such a relocation its sequence reaches.
const THREAD_LOCAL_REACH: u64 = 16;

/// The field of an instruction that a relocation lies in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Field {
    /// An 8-, 16-, 32- or 64-bit distance from the instruction's end to this place.
    Relative(Va),
    /// The address itself.
    Absolute(Va),
}

impl Comparison<'_> {
    pub(super) fn compare_fields(&self, truth: &mut GroundTruth) {
        for &block in &self.program.blocks_by_address {
            self.compare_block(block, truth);
        }
        self.find_uncovered(truth);
        truth.missed_refs.sort();
        truth.invented_refs.sort();
    }

    fn compare_block(&self, block: Block, truth: &mut GroundTruth) {
        let data = &self.program.blocks[block];
        let mut relocs = self.oracle.image.static_relocs_in(data.start, data.end()).iter().peekable();
        let bytes = self.oracle.image.read(data.start, data.len as usize).unwrap_or(&[]);
        let mut decoder = Decoder::with_ip(64, bytes, data.start.0, DecoderOptions::NONE);
        while relocs.peek().is_some() && decoder.can_decode() {
            let instruction = decoder.decode();
            let offsets = decoder.get_constant_offsets(&instruction);
            while let Some(reloc) = relocs.next_if(|r| r.at.0 < instruction.next_ip()) {
                if is_address(reloc.r_type) {
                    self.compare_reloc(block, reloc, &instruction, &offsets, truth);
                }
            }
        }
        self.count_unrelocated(block, truth);
    }

    fn compare_reloc(
        &self,
        block: Block,
        reloc: &StaticReloc,
        instruction: &Instruction,
        offsets: &ConstantOffsets,
        truth: &mut GroundTruth,
    ) {
        let data = &self.program.blocks[block];
        let is_own = self.program.funcs[data.func].is_movable();
        let relaxed_jump = is_slot_access(reloc.r_type).then(|| Va(reloc.at.0 - 1));
        let field = field_at(reloc.at, instruction, offsets).map(|field| (reloc.at, field));
        let field = field.or_else(|| relaxed_jump.and_then(|at| field_at(at, instruction, offsets).map(|field| (at, field))));
        let Some((at, field)) = field else {
            if !self.is_thread_local(reloc) {
                truth.num_refs += 1;
                // Whatever pinned bytes are, they stay; what they may name is pinned by the rule for bytes that are no instructions.
                if is_own { truth.missed_refs.push(reloc.at) } else { truth.num_idle_refs += 1 }
            }
            return;
        };
        let (Field::Relative(target) | Field::Absolute(target)) = field;
        let is_relative = matches!(field, Field::Relative(_));
        let moves = self.is_movable(target);
        // Absolute fields name the same place wherever the instruction lies.
        if !is_relative && !moves {
            return;
        }
        truth.num_refs += 1;
        if !is_relative && self.is_guard() && self.is_anchor(target) {
            return;
        }
        if self.lifted_target(data, self.program.block_refs(block), at) == Some(target) && !self.is_wrongly_fixed(block, at) {
            return;
        }
        if moves || is_own {
            truth.missed_refs.push(reloc.at);
        } else {
            truth.num_idle_refs += 1;
        }
    }

    /// What lifting says that the field at an address names.
    fn lifted_target(&self, data: &BlockData, refs: &[RefData], at: Va) -> Option<Va> {
        let offset = (at - data.start) as u32;
        if offset >= data.body_len {
            return branch_target(data).map(|target| match target {
                CodeTarget::Block(block) => self.program.blocks[block].start,
                CodeTarget::Fixed(va) => va,
            });
        }
        refs.iter().find(|r| r.offset == offset).map(|r| self.place_of(r.target))
    }

    fn place_of(&self, target: RefTarget) -> Va {
        match target {
            RefTarget::Block(target) => self.program.blocks[target].start,
            RefTarget::Fixed(va) | RefTarget::UnwindTable(va) => va,
            RefTarget::Table(table) => self.program.tables[table].at,
        }
    }

    /// Whether lifting says that a place stays which may move.
    fn is_wrongly_fixed(&self, block: Block, at: Va) -> bool {
        let data = &self.program.blocks[block];
        let offset = (at - data.start) as u32;
        let fixed = match offset >= data.body_len {
            true => branch_target(data).and_then(|t| if let CodeTarget::Fixed(va) = t { Some(va) } else { None }),
            false => self.program.block_refs(block).iter().find(|r| r.offset == offset).and_then(|r| match r.target {
                RefTarget::Fixed(va) => Some(va),
                _ => None,
            }),
        };
        fixed.is_some_and(|va| self.is_movable(va))
    }

    /// References that nothing relocates.
    fn count_unrelocated(&self, block: Block, truth: &mut GroundTruth) {
        let data = &self.program.blocks[block];
        let section_of = |va: Va| self.oracle.image.section_at(va);
        for reference in self.program.block_refs(block) {
            let at = data.start + u64::from(reference.offset);
            if !self.oracle.image.static_relocs_in(at, at + 2).is_empty() || self.is_behind_thread_local(at) {
                continue;
            }
            if section_of(self.place_of(reference.target)) == section_of(at) {
                truth.num_assembled_refs += 1;
            } else if self.oracle.is_compiled(at) {
                truth.invented_refs.push(at);
            }
        }
    }

    /// Relocated bytes of functions that may move, or that name such a function, and that no block holds.
    fn find_uncovered(&self, truth: &mut GroundTruth) {
        for section in self.oracle.code_sections() {
            for reloc in self.oracle.image.static_relocs_in(section.sh_addr, section.end()) {
                if !is_address(reloc.r_type) || self.program.block_containing(reloc.at).is_some() {
                    continue;
                }
                truth.num_refs += 1;
                let target = place_of_field(self.oracle.image, reloc);
                let moves = target.is_some_and(|va| !self.is_kept(va));
                if moves || self.is_in_movable_range(reloc.at) {
                    truth.missed_refs.push(reloc.at);
                } else {
                    truth.num_idle_refs += 1;
                }
            }
        }
    }

    fn is_in_movable_range(&self, va: Va) -> bool {
        let before = self.program.blocks_by_address.partition_point(|&b| self.program.blocks[b].start <= va);
        let Some(&block) = before.checked_sub(1).and_then(|i| self.program.blocks_by_address.get(i)) else { return false };
        let range = self.program.ranges[self.program.blocks[block].range as usize];
        va < range.end && self.program.funcs[range.func].is_movable()
    }

    fn is_thread_local(&self, reloc: &StaticReloc) -> bool {
        let symbol = self.oracle.image.symbols.get(reloc.symbol);
        THREAD_LOCAL.contains(&reloc.r_type) || symbol.is_some_and(|s| s.name.starts_with("__tls_get_addr"))
    }

    /// Whether a field may be what became of an access to thread-local storage.
    fn is_behind_thread_local(&self, at: Va) -> bool {
        let before = self.oracle.image.static_relocs_in(Va(at.0.saturating_sub(THREAD_LOCAL_REACH)), at);
        before.iter().any(|r| THREAD_LOCAL.contains(&r.r_type))
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

/// The field of an instruction that begins at an address.
fn field_at(at: Va, instruction: &Instruction, offsets: &ConstantOffsets) -> Option<Field> {
    if instruction.is_invalid() || at.0 < instruction.ip() {
        return None;
    }
    let offset = (at.0 - instruction.ip()) as usize;
    if offsets.has_displacement() && offsets.displacement_offset() == offset {
        return Some(match instruction.is_ip_rel_memory_operand() {
            true => Field::Relative(Va(instruction.ip_rel_memory_address())),
            false => Field::Absolute(Va(instruction.memory_displacement64())),
        });
    }
    if !offsets.has_immediate() || offsets.immediate_offset() != offset {
        return None;
    }
    use iced_x86::OpKind;
    let is_branch = matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64);
    Some(match is_branch {
        true => Field::Relative(Va(instruction.near_branch_target())),
        false => Field::Absolute(Va(instruction.immediate(instruction.op_count() - 1))),
    })
}
