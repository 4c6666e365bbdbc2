//! A procedure decoded for constant propagation: beside what the analysis of values has, each instruction itself and what it does to registers and flags.

use iced_x86::{Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register as Machine};
use lifter::x86::{decode_block, is_conditional_move};

use super::evaluate::{is_set, read_flags, written_flags};
use crate::procedures::Procedure;
use crate::values::code::{ARGUMENTS, ProcedureCode, RAX, RSP, Register, RegisterSet};
use crate::values::{Surroundings, build};

/// What an instruction does to registers and flags.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Action {
    /// Registers that it needs, the rest of partly written ones included.
    pub(super) reads: RegisterSet,
    /// Registers that it gives a value.
    pub(super) writes: RegisterSet,
    /// Those of them of which nothing old is left.
    pub(super) replaces: RegisterSet,
    pub(super) reads_flags: u8,
    pub(super) writes_flags: u8,
    /// It does nothing but to give registers and flags values, and can't fail, its memory accesses aside.
    pub(super) is_computation: bool,
}

#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) code: ProcedureCode,
    /// By number, as those of `code`.
    pub(super) instructions: Vec<Instruction>,
    pub(super) actions: Vec<Action>,
}

impl Prepared {
    pub(super) fn new(around: &Surroundings<'_>, procedure: Procedure) -> Self {
        let mut code = build(around, procedure);
        let mut instructions = Vec::with_capacity(code.instructions.len());
        for block in &code.blocks {
            instructions.extend(decode_block(around.image, around.program, block.block));
        }
        let any_where =
            |block: &crate::values::code::CodeBlock| around.procedures.may_be_entered_anywhere(around.program, block.block);
        code.is_opaque |= instructions.len() != code.instructions.len() || code.blocks.iter().any(any_where);
        let mut factory = InstructionInfoFactory::new();
        let actions = instructions.iter().map(|instruction| action(&mut factory, instruction)).collect();
        Prepared { code, instructions, actions }
    }
}

/// The general register that a register is part of.
pub(super) fn general(register: Machine) -> Option<Register> {
    register.is_gpr().then(|| (register.full_register() as u32 - Machine::RAX as u32) as Register)
}

fn action(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Action {
    let mut action =
        Action { reads_flags: read_flags(instruction), writes_flags: written_flags(instruction), ..Action::default() };
    let mut is_plain = true;
    for used in factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers() {
        let Some(register) = general(used.register()) else {
            is_plain &= used.register().is_segment_register();
            continue;
        };
        let bit = 1 << register;
        let is_partial = used.register().size() < 4;
        match used.access() {
            OpAccess::Read | OpAccess::CondRead => action.reads |= bit,
            OpAccess::Write if !is_partial => {
                action.writes |= bit;
                action.replaces |= bit;
            }
            OpAccess::ReadWrite if !is_partial => {
                action.reads |= bit;
                action.writes |= bit;
                action.replaces |= bit;
            }
            OpAccess::Write | OpAccess::ReadWrite | OpAccess::CondWrite | OpAccess::ReadCondWrite => {
                action.reads |= bit;
                action.writes |= bit;
            }
            OpAccess::None | OpAccess::NoMemAccess => {}
        }
    }
    if is_zeroing(instruction) {
        action.reads = 0;
    }
    // The kernel reads what the decoder does not tell.
    if matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int) {
        action.reads |= ARGUMENTS | 1 << RAX;
    }
    action.is_computation = is_plain && is_computation(instruction) && action.writes >> RSP & 1 == 0;
    action
}

/// `xor r, r` and `sub r, r`.
fn is_zeroing(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && instruction.op_count() == 2
        && instruction.op_kind(1) == OpKind::Register
        && instruction.op_kind(0) == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
        && instruction.op0_register().size() >= 4
}

fn is_computation(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let writes_memory = instruction.op_count() > 0
        && instruction.op0_kind() == OpKind::Memory
        && !matches!(instruction.mnemonic(), Cmp | Test | Bt);
    let is_listed = matches!(
        instruction.mnemonic(),
        Mov | Movzx
            | Movsx
            | Movsxd
            | Lea
            | Add
            | Sub
            | Adc
            | Sbb
            | And
            | Or
            | Xor
            | Not
            | Neg
            | Inc
            | Dec
            | Shl
            | Sal
            | Shr
            | Sar
            | Rol
            | Ror
            | Imul
            | Test
            | Cmp
            | Bt
            | Cdq
            | Cqo
            | Cdqe
            | Cwde
            | Bswap
            | Popcnt
            | Lzcnt
            | Tzcnt
    );
    !writes_memory && (is_listed || is_set(instruction) || is_conditional_move(instruction.mnemonic()))
}
