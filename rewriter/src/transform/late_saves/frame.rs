//! What the instructions of a block have to do with the frame: saves, room, their ends, or nothing.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use lifter::address::Va;

/// `rbx`, `rbp`, `r12` to `r15`.
const SAVED: u16 = 1 << 3 | 1 << 5 | 0xf000;

/// A step of a prologue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    Save(u8),
    /// The stack pointer goes down by so many bytes.
    Room(i32),
}

impl Made {
    /// Bytes by which the stack pointer goes down.
    pub(super) fn size(self) -> i64 {
        match self {
            Made::Save(_) => 8,
            Made::Room(by) => i64::from(by),
        }
    }
}

/// A step of a prologue, and the instruction that makes it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) made: Made,
    pub(super) at: Va,
    /// Whether it sets flags.
    pub(super) sets_flags: bool,
}

/// What one instruction is to the frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Make(Made),
    /// The step that it undoes.
    Undo(Made),
    /// It puts a register or a number into the frame.
    Store,
    /// It gets a register from the frame.
    Load,
    /// It has nothing to do with the stack and runs on.
    Free,
    /// It returns.
    Leave,
    Unfit,
}

/// Numbers of general registers that an instruction reads, and that it writes at all.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Used {
    pub(super) reads: u16,
    pub(super) writes: u16,
}

impl Used {
    pub(super) fn any(self) -> u16 {
        self.reads | self.writes
    }
}

pub(super) fn number(register: Register) -> Option<u8> {
    register.is_gpr().then(|| (register.full_register() as u32 - Register::RAX as u32) as u8)
}

pub(super) fn used(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Used {
    let mut used = Used::default();
    for register in factory.info(instruction).used_registers() {
        let Some(number) = number(register.register()) else { continue };
        match register.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Read | OpAccess::CondRead => used.reads |= 1 << number,
            OpAccess::Write => used.writes |= 1 << number,
            _ => {
                used.reads |= 1 << number;
                used.writes |= 1 << number;
            }
        }
    }
    used
}

fn saved(register: Register) -> Option<u8> {
    number(register).filter(|&number| SAVED >> number & 1 != 0)
}

/// What an instruction is to the frame; `is_last` if nothing of its block follows.
pub(super) fn part_of(instruction: &Instruction, is_last: bool, factory: &mut InstructionInfoFactory) -> Part {
    const STACK: u16 = 1 << 4;
    match instruction.code() {
        Code::Push_r64 => return saved(instruction.op0_register()).map_or(Part::Unfit, |r| Part::Make(Made::Save(r))),
        Code::Pop_r64 => return saved(instruction.op0_register()).map_or(Part::Unfit, |r| Part::Undo(Made::Save(r))),
        Code::Retnq if is_last => return Part::Leave,
        _ => {}
    }
    if let Some(down) = moves_stack(instruction) {
        return match down {
            1..=0xffff => Part::Make(Made::Room(down)),
            -0xffff..=-1 => Part::Undo(Made::Room(-down)),
            _ => Part::Unfit,
        };
    }
    if stored_at(instruction).is_some() {
        return Part::Store;
    }
    if loaded_at(instruction).is_some() {
        return Part::Load;
    }
    let names_stack = used(instruction, factory).any() & STACK != 0
        || factory.info(instruction).used_memory().iter().any(|m| [m.base(), m.index()].contains(&Register::RSP));
    if names_stack || instruction.is_stack_instruction() || instruction.is_privileged() {
        return Part::Unfit;
    }
    match instruction.flow_control() {
        FlowControl::Next if is_plain(instruction) => Part::Free,
        _ => Part::Unfit,
    }
}

fn is_plain(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_strange = matches!(instruction.mnemonic(), Syscall | Sysenter | Hlt | Cpuid | Rdtsc | Rdtscp | Xgetbv | Pause);
    // A locked access orders all others.
    !is_strange && !instruction.has_lock_prefix() && instruction.mnemonic() != Endbr64
}

/// How far an instruction that does nothing else moves the stack pointer down.
fn moves_stack(instruction: &Instruction) -> Option<i32> {
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register || instruction.op0_register() != Register::RSP {
        return None;
    }
    let by = |number: i64| i32::try_from(number).ok();
    match instruction.code() {
        Code::Sub_rm64_imm8 | Code::Sub_rm64_imm32 => by(instruction.immediate(1).cast_signed()),
        Code::Add_rm64_imm8 | Code::Add_rm64_imm32 => by(instruction.immediate(1).cast_signed().wrapping_neg()),
        Code::Lea_r64_m if instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None => {
            by(instruction.memory_displacement64().cast_signed().wrapping_neg())
        }
        _ => None,
    }
}

/// Where an instruction that does nothing else puts a register or a number: from the stack pointer, and how many bytes.
pub(super) fn stored_at(instruction: &Instruction) -> Option<(u64, u64)> {
    let is_move = matches!(
        instruction.code(),
        Code::Mov_rm64_r64
            | Code::Mov_rm32_r32
            | Code::Mov_rm16_r16
            | Code::Mov_rm8_r8
            | Code::Mov_rm64_imm32
            | Code::Mov_rm32_imm32
            | Code::Mov_rm16_imm16
            | Code::Mov_rm8_imm8
            | Code::Movups_xmmm128_xmm
            | Code::Movaps_xmmm128_xmm
            | Code::Movsd_xmmm64_xmm
            | Code::Movss_xmmm32_xmm
    );
    let is_plain = instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && !instruction.has_segment_prefix()
        && instruction.op1_register().full_register() != Register::RSP;
    let at = instruction.memory_displacement64();
    (is_move && is_plain && at <= 0xffff).then(|| (at, instruction.memory_size().size() as u64))
}

/// From where an instruction that does nothing else gets a general register: from the stack pointer, and how many bytes.
pub(super) fn loaded_at(instruction: &Instruction) -> Option<(u64, u64)> {
    let is_plain = matches!(instruction.code(), Code::Mov_r64_rm64 | Code::Mov_r32_rm32)
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && !instruction.has_segment_prefix()
        && instruction.op0_register().full_register() != Register::RSP;
    let at = instruction.memory_displacement64();
    (is_plain && at <= 0xffff).then(|| (at, instruction.memory_size().size() as u64))
}

/// Whether a store lies in the room that the last of these steps makes.
pub(super) fn is_in_room(store: &Instruction, steps: &[Step]) -> bool {
    match (stored_at(store), steps.last().map(|step| step.made)) {
        (Some((at, size)), Some(Made::Room(room))) => at + size <= u64::try_from(room).unwrap_or(0),
        _ => false,
    }
}

/// Whether an instruction may write a part of a register.
pub(super) fn writes(instruction: &Instruction, register: Register, factory: &mut InstructionInfoFactory) -> bool {
    let is_write =
        |access: OpAccess| !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead);
    let used = factory.info(instruction).used_registers();
    used.iter().any(|u| is_write(u.access()) && u.register().full_register() == register.full_register())
}

pub(super) fn sets_flags(instruction: &Instruction) -> bool {
    instruction.mnemonic() != Mnemonic::Lea
}
