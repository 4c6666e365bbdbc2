//! From machine code to effects: which rule of the domain each instruction falls under.
//!
//! Only instructions whose whole effect on a 64-bit register is understood get a rule. A write of 32 bits clears the upper half (Intel SDM vol. 1, §3.4.1.1), one
//! of 8 or 16 bits keeps the rest, so that what is left is a mixture: a new base. What memory is touched is the decoder's knowledge,
//! implicit stack accesses included, corrected where its size or place is not the whole truth: repeated string instructions, bit strings
//! addressed by a register, gathers and scatters, state areas.

use iced_x86::{
    CodeSize, FlowControl, InstructionInfo, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register as Machine, UsedMemory,
};
use lifter::x86::is_conditional_move;

use super::code::{Effect, MemoryReference, Place, RAX, RBP, RCX, RSP, Register, RegisterSet, Sum};

/// The encoding of the 64-bit register that a general register is part of.
pub(super) fn general(register: Machine) -> Option<Register> {
    register.is_gpr().then(|| (register.full_register() as u32 - Machine::RAX as u32) as Register)
}

fn general_of_size(register: Machine, size: usize) -> Option<Register> {
    (register.size() == size).then(|| general(register)).flatten()
}

/// Translates instructions, reusing the decoder's buffers.
pub(super) struct Translator {
    factory: InstructionInfoFactory,
    /// Whether addresses in code are distances from the image's base.
    pub(super) is_position_independent: bool,
}

impl Translator {
    pub(super) fn new(is_position_independent: bool) -> Self {
        Self { factory: InstructionInfoFactory::new(), is_position_independent }
    }

    /// The effect of an instruction that is no call; appends the memory that it touches.
    pub(super) fn translate(
        &mut self,
        instruction: &iced_x86::Instruction,
        number: u32,
        references: &mut Vec<MemoryReference>,
    ) -> Effect {
        let is_position_independent = self.is_position_independent;
        let has_memory = touches_memory(instruction);
        let known = linear_effect(instruction, is_position_independent);
        if let (Some(effect), false) = (known, has_memory) {
            return effect;
        }
        let info = self.factory.info_options(instruction, InstructionInfoOptions::NONE);
        for memory in info.used_memory() {
            references.extend(reference(instruction, memory, number, is_position_independent));
        }
        known.unwrap_or_else(|| generic_effect(instruction, info))
    }
}

/// Whether an instruction reads or writes memory, by an operand or by what it is.
pub fn touches_memory(instruction: &iced_x86::Instruction) -> bool {
    use Mnemonic::*;
    let is_address_only = matches!(instruction.mnemonic(), Lea | Nop);
    let has_operand = instruction.op_count() > 0 && (0..instruction.op_count()).any(|i| is_memory(instruction.op_kind(i)));
    !is_address_only && (has_operand || instruction.is_stack_instruction() || instruction.is_string_instruction())
}

fn is_memory(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::Register
            | OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
            | OpKind::NearBranch16
            | OpKind::NearBranch32
            | OpKind::NearBranch64
    )
}

/// The sum that the memory operand of an instruction stands for.
fn operand_sum(instruction: &iced_x86::Instruction, is_position_independent: bool) -> Option<Sum> {
    if instruction.is_ip_rel_memory_operand() {
        let constant = instruction.ip_rel_memory_address() as i64;
        return Some(Sum { constant, is_image: is_position_independent, ..Sum::default() });
    }
    let part = |register: Machine| match register {
        Machine::None => Some(None),
        _ => general_of_size(register, 8).map(Some),
    };
    let (base, index) = (part(instruction.memory_base())?, part(instruction.memory_index())?);
    let scale = i64::from(instruction.memory_index_scale());
    Some(Sum { base, index, scale, constant: instruction.memory_displacement64() as i64, is_image: false })
}

fn place(instruction: &iced_x86::Instruction, memory: &UsedMemory, is_position_independent: bool) -> Place {
    let is_ip_relative =
        instruction.is_ip_rel_memory_operand() && memory.base() == Machine::None && memory.index() == Machine::None;
    let constant = memory.displacement() as i64;
    let sum = if is_ip_relative {
        Sum { constant, is_image: is_position_independent, ..Sum::default() }
    } else {
        let part = |register: Machine| match register {
            Machine::None => Some(None),
            _ => general_of_size(register, 8).map(Some),
        };
        let (Some(base), Some(index)) = (part(memory.base()), part(memory.index())) else { return Place::Unknown };
        if memory.address_size() != CodeSize::Code64 {
            return Place::Unknown;
        }
        Sum { base, index, scale: i64::from(memory.scale()), constant, is_image: false }
    };
    match memory.segment() {
        Machine::FS => Place::Thread(sum),
        Machine::GS => Place::Unknown,
        _ => Place::Sum(sum),
    }
}

fn reference(
    instruction: &iced_x86::Instruction,
    memory: &UsedMemory,
    number: u32,
    is_position_independent: bool,
) -> Option<MemoryReference> {
    let (reads, writes) = accesses(memory.access());
    if !reads && !writes {
        return None;
    }
    let is_implicit = is_call_or_return(instruction) && memory.base() == Machine::RSP && !is_operand(instruction, memory);
    let mut address = place(instruction, memory, is_position_independent);
    let is_enter = instruction.mnemonic() == Mnemonic::Enter;
    if memory.vsib_size() != 0 || is_bit_string(instruction) || is_mixed_pop(instruction) || is_enter {
        address = Place::Unknown;
    }
    let size = match memory.memory_size() {
        _ if instruction.has_rep_prefix() || instruction.has_repne_prefix() => 0,
        _ if address == Place::Unknown => 0,
        // Zero where the length is in a register or in the processor (state areas, tiles).
        size => size.size() as u32,
    };
    Some(MemoryReference { instruction: number, address, size, reads, writes, is_implicit })
}

fn is_call_or_return(instruction: &iced_x86::Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall | FlowControl::Return)
}

fn is_operand(instruction: &iced_x86::Instruction, memory: &UsedMemory) -> bool {
    instruction.memory_base() == memory.base()
        && (0..instruction.op_count()).any(|i| instruction.op_kind(i) == OpKind::Memory)
        && instruction.memory_displacement64() == memory.displacement()
}

/// `bt` and its kin with a register count bits from the address on, however many.
fn is_bit_string(instruction: &iced_x86::Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Bt | Bts | Btr | Btc) && instruction.op_kind(1) == OpKind::Register
}

/// `pop` into memory: its address is computed after `rsp` has moved.
fn is_mixed_pop(instruction: &iced_x86::Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Pop && instruction.op_kind(0) == OpKind::Memory
}

fn accesses(access: OpAccess) -> (bool, bool) {
    match access {
        OpAccess::Read | OpAccess::CondRead => (true, false),
        OpAccess::Write | OpAccess::CondWrite => (false, true),
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => (true, true),
        OpAccess::None | OpAccess::NoMemAccess => (false, false),
    }
}

/// The rule of an instruction, if it has one.
fn linear_effect(instruction: &iced_x86::Instruction, is_position_independent: bool) -> Option<Effect> {
    use Mnemonic::*;
    match instruction.mnemonic() {
        Endbr64 | Nop | Jmp | Ud2 | Int3 | Hlt | Pause | Lfence | Mfence | Sfence | Cmp | Test | Ret => Some(Effect::None),
        _ if instruction.is_jcc_short_or_near() => Some(Effect::None),
        Mov => move_effect(instruction),
        Lea => lea_effect(instruction, is_position_independent),
        Movzx => extend_effect(instruction, false),
        Movsx | Movsxd => extend_effect(instruction, true),
        Cdqe => Some(Effect::Extend { to: RAX, from: RAX, bits: 32, is_signed: true, is_32: false }),
        Add | Sub | Inc | Dec | And | Xor | Shl | Sal | Shr | Imul => arithmetic_effect(instruction),
        Push => push_effect(instruction),
        Pop if instruction.op_kind(0) == OpKind::Register => {
            general_of_size(instruction.op0_register(), 8).filter(|&to| to != RSP).map(|to| Effect::Pop { to })
        }
        Leave if instruction.code() == iced_x86::Code::Leaveq => Some(Effect::Leave),
        Xchg => match (register_64(instruction, 0), register_64(instruction, 1)) {
            (Some(a), Some(b)) => Some(Effect::Exchange { a, b }),
            _ => None,
        },
        _ if instruction.is_jmp_near_indirect() => Some(Effect::None),
        _ if is_conditional_move(instruction.mnemonic()) => match (register_64(instruction, 0), register_64(instruction, 1)) {
            (Some(to), Some(from)) => Some(Effect::Select { to, from }),
            _ => None,
        },
        Syscall => Some(Effect::SystemCall),
        _ => None,
    }
}

fn register_64(instruction: &iced_x86::Instruction, operand: u32) -> Option<Register> {
    let is_register = operand < instruction.op_count() && instruction.op_kind(operand) == OpKind::Register;
    is_register.then(|| general_of_size(instruction.op_register(operand), 8)).flatten()
}

/// The 32- or 64-bit register that is operand 0, and whether it is a 32-bit one.
fn wide_target(instruction: &iced_x86::Instruction) -> Option<(Register, bool)> {
    if instruction.op_kind(0) != OpKind::Register {
        return None;
    }
    let register = instruction.op0_register();
    match register.size() {
        8 => general(register).map(|r| (r, false)),
        4 => general(register).map(|r| (r, true)),
        _ => None,
    }
}

fn immediate(instruction: &iced_x86::Instruction, operand: u32) -> Option<i64> {
    let is_immediate = operand < instruction.op_count()
        && !is_memory(instruction.op_kind(operand))
        && instruction.op_kind(operand) != OpKind::Register;
    is_immediate.then(|| instruction.immediate(operand) as i64)
}

/// A register operand of the same size as the target.
fn same_size_register(instruction: &iced_x86::Instruction, operand: u32) -> Option<Register> {
    if operand >= instruction.op_count() || instruction.op_kind(operand) != OpKind::Register {
        return None;
    }
    general_of_size(instruction.op_register(operand), instruction.op0_register().size())
}

fn constant(to: Register, constant: i64, is_32: bool) -> Effect {
    Effect::Linear { to, sum: Sum { constant, ..Sum::default() }, is_32 }
}

fn shifted(to: Register, from: Register, constant: i64, is_32: bool) -> Effect {
    Effect::Linear { to, sum: Sum { base: Some(from), constant, ..Sum::default() }, is_32 }
}

fn move_effect(instruction: &iced_x86::Instruction) -> Option<Effect> {
    if is_memory(instruction.op_kind(0)) {
        let from = register_64(instruction, 1)?;
        return is_plain_memory(instruction, 0).then_some(Effect::Store { from });
    }
    let (to, is_32) = wide_target(instruction)?;
    if let Some(number) = immediate(instruction, 1) {
        return Some(constant(to, number, is_32));
    }
    if is_memory(instruction.op_kind(1)) {
        return match is_32 {
            true => Some(Effect::Bounded { to, low: 0, high: i64::from(u32::MAX) }),
            false => is_plain_memory(instruction, 1).then_some(Effect::Load { to }),
        };
    }
    same_size_register(instruction, 1).map(|from| shifted(to, from, 0, is_32))
}

/// A memory operand that the only reference of the instruction describes.
fn is_plain_memory(instruction: &iced_x86::Instruction, operand: u32) -> bool {
    instruction.op_kind(operand) == OpKind::Memory
}

fn lea_effect(instruction: &iced_x86::Instruction, is_position_independent: bool) -> Option<Effect> {
    let (to, is_32) = wide_target(instruction)?;
    let sum = operand_sum(instruction, is_position_independent)?;
    Some(Effect::Linear { to, sum, is_32 })
}

fn extend_effect(instruction: &iced_x86::Instruction, is_signed: bool) -> Option<Effect> {
    let (to, is_32) = wide_target(instruction)?;
    let (bits, from) = match instruction.op_kind(1) {
        OpKind::Register => {
            let register = instruction.op1_register();
            let is_high_byte = matches!(register, Machine::AH | Machine::BH | Machine::CH | Machine::DH);
            (register.size() * 8, general(register).filter(|_| !is_high_byte))
        }
        _ => (instruction.memory_size().size() * 8, None),
    };
    if !matches!(bits, 8 | 16 | 32) {
        return None;
    }
    if let Some(from) = from {
        return Some(Effect::Extend { to, from, bits: bits as u8, is_signed, is_32 });
    }
    Some(match (is_signed, is_32) {
        (true, true) => Effect::Bounded { to, low: 0, high: i64::from(u32::MAX) },
        (true, false) => Effect::Bounded { to, low: -(1i64 << (bits - 1)), high: (1i64 << (bits - 1)) - 1 },
        (false, _) => Effect::Bounded { to, low: 0, high: (1i64 << bits) - 1 },
    })
}

fn arithmetic_effect(instruction: &iced_x86::Instruction) -> Option<Effect> {
    use Mnemonic::*;
    // The one-operand `imul` writes two registers.
    if instruction.mnemonic() == Imul && instruction.op_count() == 1 {
        return None;
    }
    let (to, is_32) = wide_target(instruction)?;
    let (number, from) = (immediate(instruction, 1), same_size_register(instruction, 1));
    let scaled =
        |index: Register, scale: i64| Effect::Linear { to, sum: Sum { index: Some(index), scale, ..Sum::default() }, is_32 };
    match instruction.mnemonic() {
        Inc => Some(shifted(to, to, 1, is_32)),
        Dec => Some(shifted(to, to, -1, is_32)),
        Add => number.map(|n| shifted(to, to, n, is_32)).or_else(|| {
            from.map(|index| Effect::Linear {
                to,
                sum: Sum { base: Some(to), index: Some(index), scale: 1, ..Sum::default() },
                is_32,
            })
        }),
        Sub => match (number, from) {
            (Some(n), _) => Some(shifted(to, to, n.wrapping_neg(), is_32)),
            (None, Some(what)) => Some(Effect::Subtract { to, from: to, what, is_32 }),
            _ => None,
        },
        And => number.map(|mask| Effect::And { to, mask: if is_32 { mask & i64::from(u32::MAX) } else { mask }, is_32 }),
        Xor if from == Some(to) => Some(constant(to, 0, is_32)),
        Shl | Sal => shift_count(instruction, is_32).filter(|&n| n < 32).map(|n| scaled(to, 1i64 << n)),
        Shr => {
            let count = shift_count(instruction, is_32).filter(|&n| n > 0)?;
            let width = if is_32 { 32 } else { 64 };
            // Half an address may be put together again with the other half.
            is_32.then_some(Effect::Bounded { to, low: 0, high: (1i64 << (width - count)) - 1 })
        }
        Imul if instruction.op_count() == 3 => {
            let factor = immediate(instruction, 2)?;
            same_size_register(instruction, 1).map(|index| scaled(index, factor))
        }
        _ => None,
    }
}

fn shift_count(instruction: &iced_x86::Instruction, is_32: bool) -> Option<u32> {
    immediate(instruction, 1).map(|n| (n & if is_32 { 31 } else { 63 }) as u32)
}

fn push_effect(instruction: &iced_x86::Instruction) -> Option<Effect> {
    if instruction.stack_pointer_increment() != -8 {
        return None;
    }
    Some(Effect::Push { from: register_64(instruction, 0) })
}

/// What no rule covers.
fn generic_effect(instruction: &iced_x86::Instruction, info: &InstructionInfo) -> Effect {
    let (mut reads, mut writes): (RegisterSet, RegisterSet) = (0, 0);
    let mut is_full = true;
    for used in info.used_registers() {
        let Some(register) = general(used.register()) else { continue };
        let bit = 1 << register;
        let (does_read, does_write) = accesses(used.access());
        if does_write {
            writes |= bit;
        }
        // What a partial or a conditional write leaves of the old value is in the new one.
        let is_partial = used.register().size() < 8 || matches!(used.access(), OpAccess::CondWrite | OpAccess::ReadCondWrite);
        if does_write && is_partial {
            is_full = false;
        }
        if does_read || does_write && is_partial {
            reads |= bit;
        }
    }
    let addressing = addressing_only(instruction, info);
    let is_32 =
        is_full && writes.count_ones() == 1 && wide_target(instruction).is_some_and(|(to, is_32)| is_32 && writes == 1 << to);
    // Their registers beyond what the decoder tells.
    if matches!(instruction.mnemonic(), Mnemonic::Cpuid | Mnemonic::Rdtscp) {
        writes |= 1 << RAX | 1 << RCX | 1 << 2 | 1 << 3;
    }
    if matches!(instruction.mnemonic(), Mnemonic::Enter) {
        writes |= 1 << RSP | 1 << RBP;
    }
    Effect::Generic { reads: reads & !addressing, writes, is_32 }
}

/// Registers that are read for an address only.
fn addressing_only(instruction: &iced_x86::Instruction, info: &InstructionInfo) -> RegisterSet {
    let operands = (0..instruction.op_count()).filter(|&i| instruction.op_kind(i) == OpKind::Register);
    let is_operand = operands.filter_map(|i| general(instruction.op_register(i))).fold(0u16, |set, r| set | 1 << r);
    if instruction.is_string_instruction() || matches!(instruction.mnemonic(), Mnemonic::Lea) {
        return 0;
    }
    // Implicit operands (`rax` of `mul`, `cmpxchg`) are not among those of the address unless they are part of it too; then they count as read.
    let in_address = info.used_memory().iter().flat_map(|m| [m.base(), m.index()]).filter_map(general);
    let in_address = in_address.fold(0u16, |set, r| set | 1 << r);
    let has_implicit = matches!(
        instruction.mnemonic(),
        Mnemonic::Cmpxchg
            | Mnemonic::Cmpxchg8b
            | Mnemonic::Cmpxchg16b
            | Mnemonic::Mul
            | Mnemonic::Imul
            | Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Mulx
            | Mnemonic::Push
            | Mnemonic::Pop
            | Mnemonic::Enter
            | Mnemonic::Xlatb
    );
    if has_implicit { 0 } else { in_address & !is_operand }
}
