//! What single instructions do to the stack and its slots.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::cfg::body::general;

const RSP: u8 = 4;

/// Whether an instruction writes memory at `disp(base)`; `push` writes at `(%rsp)`.
pub(super) fn is_store_to(instruction: &Instruction, base: u8, disp: i64) -> bool {
    stored_slot(instruction, base) == Some(disp)
}

/// The displacement at which an instruction writes memory, from a base.
pub(super) fn stored_slot(instruction: &Instruction, base: u8) -> Option<i64> {
    if instruction.mnemonic() == Mnemonic::Push {
        return (base == RSP).then_some(0);
    }
    let is_memory = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory;
    let reads_only =
        matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop | Mnemonic::Call | Mnemonic::Jmp);
    let is_slot = is_memory
        && !reads_only
        && general(instruction.memory_base()) == Some(base)
        && instruction.memory_index() == Register::None;
    is_slot.then(|| instruction.memory_displacement64() as i64)
}

/// Whether an instruction leaves the frame for a stack that is not the function's own.
pub(super) fn switches_stack(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && instruction.op1_kind() == OpKind::Register
        && instruction.op1_register() != Register::RBP
}

/// What to add to a displacement from `rsp` to name the same place before the instruction.
pub(crate) fn stack_step(instruction: &Instruction) -> Option<i64> {
    let is_rsp =
        instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
    let constant = || {
        let is_constant = matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64);
        is_constant.then(|| instruction.immediate(1) as i64)
    };
    match instruction.mnemonic() {
        Mnemonic::Push => Some(-8),
        Mnemonic::Pop if !is_rsp => Some(8),
        Mnemonic::Sub if is_rsp => constant().map(|n| -n),
        Mnemonic::Add if is_rsp => constant(),
        Mnemonic::Lea if is_rsp && instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None => {
            Some(instruction.memory_displacement64() as i64)
        }
        _ => None,
    }
}
