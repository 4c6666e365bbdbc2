//! What one instruction reads, and what it surely writes.

use iced_x86::{
    Code, EncodingKind, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register as Machine,
};
use lifter::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, Program};

use super::Registers;

/// Whom an instruction calls.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Callee {
    None,
    /// A block of the program.
    Entry(Block),
    /// What keeps to the psABI: through a pointer or a stub.
    Boundary,
    /// `call *(%rax)`: it may be how the address of a thread-local variable is asked for, which keeps all registers but `rax`.
    Descriptor,
    /// A place inside of a block, a thunk, and what is no plain call.
    Anything,
}

/// An instruction as liveness sees it.
#[derive(Copy, Clone, Debug)]
pub struct Step {
    pub reads: Registers,
    pub writes: Registers,
    pub callee: Callee,
    /// The register that it pushes, or pops into: what may be a save or its end.
    pub pushes: Option<u8>,
    pub pops: Option<u8>,
}

/// What an instruction does to registers.
pub fn step(program: &Program, instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Step {
    let mut step =
        Step { reads: Registers::NONE, writes: Registers::NONE, callee: callee(program, instruction), pushes: None, pops: None };
    if instruction.mnemonic() == Mnemonic::Syscall {
        // The system call's number and its arguments; the kernel keeps all others but two (psABI, appendix A.2.1).
        step.reads = [0, 7, 6, 2, 10, 8, 9].into_iter().fold(Registers::NONE, |set, r| set.union(Registers::general(r)));
        step.writes = [0, 1, 11].into_iter().fold(Registers::NONE, |set, r| set.union(Registers::general(r)));
        return step;
    }
    for used in factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers() {
        let register = used.register();
        let (low, all) = locations(register);
        match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Write if replaces(instruction, register) => {
                let is_above_too = register.is_gpr() || instruction.encoding() != EncodingKind::Legacy;
                step.writes = step.writes.union(if is_above_too { all } else { low });
            }
            // What a partial write leaves is neither read nor gone.
            OpAccess::Write | OpAccess::CondWrite if register.is_gpr() => {}
            _ => step.reads = step.reads.union(if register.size() <= 16 { low } else { all }),
        }
    }
    if matches!(instruction.mnemonic(), Mnemonic::Vzeroupper | Mnemonic::Vzeroall | Mnemonic::Cpuid | Mnemonic::Rdtscp) {
        step.writes = Registers::NONE;
    }
    let operand = || (instruction.op0_kind() == OpKind::Register).then(|| general(instruction.op0_register())).flatten();
    match instruction.code() {
        Code::Push_r64 => step.pushes = operand(),
        Code::Pop_r64 => step.pops = operand(),
        _ => {}
    }
    if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
        // With a count of zero nothing is written.
        step.reads = step.reads.union(step.writes);
        step.writes = Registers::NONE;
    }
    step
}

fn callee(program: &Program, instruction: &Instruction) -> Callee {
    match instruction.flow_control() {
        FlowControl::Call if instruction.is_call_near() => {
            let target = Va(instruction.near_branch_target());
            match program.block_containing(target) {
                Some(block)
                    if program.blocks[block].start == target && !program.blocks[block].flags.contains(BlockFlags::THUNK) =>
                {
                    Callee::Entry(block)
                }
                Some(_) => Callee::Anything,
                None => Callee::Boundary,
            }
        }
        FlowControl::IndirectCall if is_descriptor_call(instruction) => Callee::Descriptor,
        FlowControl::IndirectCall => Callee::Boundary,
        FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Callee::None,
        FlowControl::Call | FlowControl::Interrupt => Callee::Anything,
        FlowControl::XbeginXabortXend => Callee::Anything,
        _ => Callee::None,
    }
}

fn is_descriptor_call(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.memory_base() == Machine::RAX
        && instruction.memory_index() == Machine::None
        && instruction.memory_displacement64() == 0
}

fn general(register: Machine) -> Option<u8> {
    register.is_gpr().then(|| (register.full_register() as u32 - Machine::RAX as u32) as u8)
}

/// The lower and all of the locations that a register is part of.
fn locations(register: Machine) -> (Registers, Registers) {
    if let Some(number) = general(register) {
        return (Registers::general(number), Registers::general(number));
    }
    if !register.is_vector_register() {
        return (Registers::NONE, Registers::NONE);
    }
    let number = register.number() as u32;
    match number {
        0..16 => (Registers(1 << (16 + number)), Registers(1 << (16 + number) | 1 << (32 + number))),
        _ => (Registers(1 << (32 + number)), Registers(1 << (32 + number))),
    }
}

/// Whether a write leaves nothing of what a register held, in the part that counts for one location.
fn replaces(instruction: &Instruction, register: Machine) -> bool {
    if register.is_gpr() {
        return register.size() >= 4;
    }
    // A masked write may leave elements; an SSE one may leave the upper half of its operand unless it is of the plain kinds.
    match instruction.encoding() {
        EncodingKind::Legacy => is_whole_sse_write(instruction),
        EncodingKind::VEX => true,
        EncodingKind::EVEX => !instruction.has_op_mask() || instruction.zeroing_masking(),
        _ => false,
    }
}

/// SSE instructions that write 128 bits of a register without reading any of them.
fn is_whole_sse_write(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let from_memory = instruction.op_count() == 2 && instruction.op1_kind() == OpKind::Memory;
    match instruction.mnemonic() {
        Movaps | Movapd | Movups | Movupd | Movdqa | Movdqu | Lddqu | Movddup | Movshdup | Movsldup | Pshufd | Movd | Movq => {
            true
        }
        Movss | Movsd => from_memory,
        // Of a register with itself: zero.
        Pxor | Xorps | Xorpd => {
            instruction.op1_kind() == OpKind::Register && instruction.op0_register() == instruction.op1_register()
        }
        _ => false,
    }
}
