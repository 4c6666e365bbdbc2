//! Loads of what never changes become what they load.
//!
//! | it was | it becomes |
//! | --- | --- |
//! | `mov reg, [rip + word]`, where the loader puts an address of this file's data | `lea reg, [rip + address]` |
//! | `mov`, `movzx`, `movsx`, `movsxd reg, [rip + constant]` | `mov reg, number` |
//! | `add`, `sub`, `and`, `or`, `xor`, `cmp reg, [rip + constant]` | the same with a number |
//!
//! **Safety.** What never changes is said in [`super::unchanging`]. The load itself cannot fault, and a constant has no order with other accesses. A number
//! of 32 bits that is written to a 32-bit register clears the upper half as the load did; an operation with a number sets the flags that it set with memory.
//!
//! **Profit.** A load less; mostly a byte or two less as well. Nothing becomes longer. Only in hot blocks.

use iced_x86::{Code, Encoder, Instruction, Mnemonic, OpKind, Register};
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{Evidence, RefData, RefKind, RefRole, RefTarget};
use rayon::prelude::*;

use super::Context;
use super::unchanging::{Known, Words};
use crate::edit::{Change, EditPlan, NewCode, Replacement};

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    let blocks = context.hot_blocks();
    let words = Words::of(context.image, context.program);
    let sites: Vec<_> = blocks.par_iter().flat_map_iter(|&block| sites_in(context, &words, block)).collect();
    for (block, offset, len, code) in sites {
        let code = edits.codes.push(code);
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::ConstantLoad });
    }
}

fn sites_in(context: &Context<'_>, words: &Words<'_>, block: Block) -> Vec<(Block, u32, u32, NewCode)> {
    let reads_data =
        |r: &RefData| matches!((r.role, r.target), (RefRole::Memory, RefTarget::Fixed(_))) && r.kind == RefKind::Rel32;
    let loads = context.instructions_with(block, reads_data);
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
