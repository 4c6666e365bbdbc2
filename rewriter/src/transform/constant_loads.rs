//! Loads of what never changes become what they load.
//!
//! | it was | it becomes |
//! | --- | --- |
//! | `mov reg, [rip + word]`, where the loader puts an address of this file's data | `lea reg, [rip + address]` |
//! | `mov`, `movzx`, `movsx`, `movsxd reg, [rip + constant]` | `mov reg, number` |
//! | `add`, `sub`, `and`, `or`, `xor`, `cmp reg, [rip + constant]` | the same with a number |
//! | `call [rip + word]`, where the loader puts the address of a function of this file | `call function` |
//!
//! **Safety.** What never changes: the bytes of segments that nobody may write, and the words of `.got` that the loader makes read-only once it has relocated them
//! (`PT_GNU_RELRO`). Of words that the loader relocates only those with `R_X86_64_RELATIVE` hold what the file says: the image's base and an addend. No other relocation may touch
//! the bytes, and they are none of those that relift itself writes (jump tables, words that follow moved code). A word of `.data.rel.ro` does not count: static programs and
//! the C library write some of them before they are protected. The load itself cannot fault, and a constant has no order with other accesses. A number
//! of 32 bits that is written to a 32-bit register clears the upper half as the load did; an operation with a number sets the flags that it set with memory.
//! In a file at a fixed address, what may be an address of code is left alone.
//!
//! **Profit.** A load less; mostly a byte or two less as well. Nothing becomes longer. Only in hot blocks.

use iced_x86::{Code, Encoder, Instruction, Mnemonic, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{Evidence, Program, RefData, RefKind, RefRole, RefTarget, SlotKind};
use object::elf;
use rayon::prelude::*;

use super::Context;
use crate::edit::{Change, EditPlan, NewCode, Replacement};

/// What a word always holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Known {
    Number(u64),
    /// A place of this file, wherever that is loaded.
    Address(RefTarget),
}

/// Where constants are, and where not.
struct Words<'a> {
    context: &'a Context<'a>,
    /// Starts and ends of jump tables, ascending.
    tables: Vec<(Va, Va)>,
}

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    let blocks = context.hot_blocks();
    let tables = context.program.tables.values().map(|table| (table.at, table.at + table.byte_len()));
    let mut words = Words { context, tables: tables.collect() };
    words.tables.sort_unstable();
    let sites: Vec<_> = blocks.par_iter().flat_map_iter(|&block| sites_in(&words, block)).collect();
    for (block, offset, len, code) in sites {
        let code = edits.codes.push(code);
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::ConstantLoad });
    }
}

fn sites_in(words: &Words<'_>, block: Block) -> Vec<(Block, u32, u32, NewCode)> {
    let reads_data = |r: &RefData| {
        matches!((r.role, r.target), (RefRole::Memory | RefRole::IndirectThroughSlot, RefTarget::Fixed(_)))
            && r.kind == RefKind::Rel32
    };
    let loads = words.context.instructions_with(block, reads_data);
    let site = |(offset, load, reference): (u32, Instruction, RefData)| {
        let RefTarget::Fixed(at) = reference.target else { return None };
        let len = load.len() as u32;
        let code = replaced(words, &load, at).filter(|code| code.bytes.len() as u32 <= len)?;
        Some((block, offset, len, code))
    };
    loads.into_iter().filter_map(site).collect()
}

/// What may stand in the place of an instruction that reads the word at an address.
fn replaced(words: &Words<'_>, load: &Instruction, at: Va) -> Option<NewCode> {
    let is_plain = load.is_ip_rel_memory_operand() && load.segment_prefix() == Register::None && !load.has_lock_prefix();
    if !is_plain || load.has_rep_prefix() || load.has_repne_prefix() {
        return None;
    }
    let size = load.memory_size().size() as u64;
    let known = || words.known(at, size);
    if load.code() == Code::Call_rm64 {
        return match known()? {
            Known::Address(target @ RefTarget::Block(_)) => Some(call(target)),
            _ => None,
        };
    }
    let is_load = load.op_count() == 2 && load.op0_kind() == OpKind::Register && load.op1_kind() == OpKind::Memory;
    let to = load.op0_register();
    if !is_load || !to.is_gpr() || !matches!(to.size(), 4 | 8) {
        return None;
    }
    let signed = |bits: u64, number: u64| ((number << (64 - bits)).cast_signed() >> (64 - bits)).cast_unsigned();
    match (load.mnemonic(), known()?) {
        // Which function an address of code is that of, who checks the output has to guess.
        (Mnemonic::Mov, Known::Address(target @ RefTarget::Fixed(_))) if to.size() == 8 => Some(address(to, target)),
        (Mnemonic::Mov | Mnemonic::Movzx, Known::Number(number)) => number_into(to, number),
        (Mnemonic::Movsx | Mnemonic::Movsxd, Known::Number(number)) => number_into(to, signed(size * 8, number)),
        (_, Known::Number(number)) => operation(load, signed(size * 8, number)),
        _ => None,
    }
}

fn call(target: RefTarget) -> NewCode {
    let evidence = Evidence::Derived;
    let reference = RefData { offset: 1, to_end: 4, kind: RefKind::Rel32, role: RefRole::Call, evidence, target };
    NewCode { bytes: vec![0xe8, 0, 0, 0, 0], refs: vec![reference], ..NewCode::default() }
}

/// `lea to, [rip + target]`.
fn address(to: Register, target: RefTarget) -> NewCode {
    let number = to.number() as u8;
    let bytes = vec![0x48 | (number >> 3) << 2, 0x8d, 5 | (number & 7) << 3, 0, 0, 0, 0];
    let evidence = Evidence::Derived;
    let reference = RefData { offset: 3, to_end: 4, kind: RefKind::Rel32, role: RefRole::Address, evidence, target };
    NewCode { bytes, refs: vec![reference], ..NewCode::default() }
}

/// `mov to, number`, as short as it gets without touching the flags.
fn number_into(to: Register, number: u64) -> Option<NewCode> {
    let number = if to.size() == 4 { number & u64::from(u32::MAX) } else { number };
    let instruction = match (u32::try_from(number), i32::try_from(number.cast_signed())) {
        (Ok(number), _) => Instruction::with2(Code::Mov_r32_imm32, to.full_register32(), number),
        (_, Ok(number)) => Instruction::with2(Code::Mov_rm64_imm32, to, number),
        _ => return None,
    };
    encoded(&instruction.ok()?)
}

/// The operation with a number in place of memory.
fn operation(load: &Instruction, number: u64) -> Option<NewCode> {
    use Code::*;
    let to = load.op0_register();
    let (wide, narrow) = match load.code() {
        Add_r32_rm32 => (Add_rm32_imm32, Add_rm32_imm8),
        Sub_r32_rm32 => (Sub_rm32_imm32, Sub_rm32_imm8),
        And_r32_rm32 => (And_rm32_imm32, And_rm32_imm8),
        Or_r32_rm32 => (Or_rm32_imm32, Or_rm32_imm8),
        Xor_r32_rm32 => (Xor_rm32_imm32, Xor_rm32_imm8),
        Cmp_r32_rm32 => (Cmp_rm32_imm32, Cmp_rm32_imm8),
        Add_r64_rm64 => (Add_rm64_imm32, Add_rm64_imm8),
        Sub_r64_rm64 => (Sub_rm64_imm32, Sub_rm64_imm8),
        And_r64_rm64 => (And_rm64_imm32, And_rm64_imm8),
        Or_r64_rm64 => (Or_rm64_imm32, Or_rm64_imm8),
        Xor_r64_rm64 => (Xor_rm64_imm32, Xor_rm64_imm8),
        Cmp_r64_rm64 => (Cmp_rm64_imm32, Cmp_rm64_imm8),
        _ => return None,
    };
    let number = i32::try_from(number.cast_signed()).ok()?;
    let code = if i8::try_from(number).is_ok() { narrow } else { wide };
    encoded(&Instruction::with2(code, to, number).ok()?)
}

fn encoded(instruction: &Instruction) -> Option<NewCode> {
    let mut encoder = Encoder::new(64);
    encoder.encode(instruction, 0).ok()?;
    Some(NewCode { bytes: encoder.take_buffer(), ..NewCode::default() })
}

impl Words<'_> {
    /// What the `size` bytes at an address always hold.
    fn known(&self, at: Va, size: u64) -> Option<Known> {
        let Context { image, program, .. } = self.context;
        if !matches!(size, 1 | 2 | 4 | 8) || !never_changes(image, at, size) || self.is_rewritten(at, size) {
            return None;
        }
        let relocs = &image.dynamic_relocs;
        let first = relocs.partition_point(|r| r.slot + 8 <= at);
        let mut touching = relocs[first..].iter().take_while(|r| r.slot < at + size);
        if let Some(reloc) = touching.next() {
            let is_whole = reloc.slot == at && size == 8 && reloc.r_type == elf::R_X86_64_RELATIVE && touching.next().is_none();
            let target = Va(reloc.addend.cast_unsigned());
            return if is_whole { place(image, program, target).map(Known::Address) } else { None };
        }
        let number = image.read(at, size as usize)?.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let may_be_code = !image.kind.is_position_independent() && size >= 4 && image.is_executable(Va(number));
        (!may_be_code).then_some(Known::Number(number))
    }

    /// Whether relift may write any of these bytes. The loader's words are written too, but hold what their relocations say.
    fn is_rewritten(&self, at: Va, size: u64) -> bool {
        let slots = &self.context.program.slots;
        let first = slots.partition_point(|slot| slot.at + 8 <= at);
        let mut slots = slots[first..].iter().take_while(|slot| slot.at < at + size);
        let before = self.tables.partition_point(|&(start, _)| start < at + size);
        slots.any(|slot| !matches!(slot.kind, SlotKind::Dynamic(_)))
            || before.checked_sub(1).is_some_and(|last| at < self.tables[last].1)
    }
}

/// A place that a word names, as a reference of code may name it.
fn place(image: &Image<'_>, program: &Program, target: Va) -> Option<RefTarget> {
    match program.block_containing(target) {
        // A block that moves is named by its start; its address is taken by the word already.
        Some(block) if program.blocks[block].start == target => Some(RefTarget::Block(block)),
        Some(_) => None,
        None => (!image.is_executable(target) && image.segment_at(target).is_some()).then_some(RefTarget::Fixed(target)),
    }
}

/// Whether the bytes at an address are what the file and the loader put there, for as long as the program runs.
pub(super) fn never_changes(image: &Image<'_>, at: Va, size: u64) -> bool {
    const PAGE: u64 = 4096;
    let end = at + size;
    let is_read_only = image.loads().any(|segment| {
        !segment.is_writable() && !segment.is_executable() && segment.p_vaddr <= at && end <= segment.p_vaddr + segment.p_filesz
    });
    let is_protected = || {
        let is_table = image.section_at(at).is_some_and(|id| {
            let section = &image.sections[id];
            section.name == ".got" && end <= section.end()
        });
        let relro = image.segments.iter().filter(|segment| segment.p_type == elf::PT_GNU_RELRO);
        is_table && relro.into_iter().any(|segment| segment.p_vaddr <= at && end.0 <= segment.end().0 & !(PAGE - 1))
    };
    is_read_only || is_protected()
}
