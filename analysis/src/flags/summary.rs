//! What one block does to the flags, between its calls.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use lifter::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, Program, StopKind, Terminator};
use smallvec::SmallVec;

use super::FlagSet;

pub(super) const OF: FlagSet = RflagsBits::OF as FlagSet;
pub(super) const SF: FlagSet = RflagsBits::SF as FlagSet;
pub(super) const ZF: FlagSet = RflagsBits::ZF as FlagSet;
pub(super) const AF: FlagSet = RflagsBits::AF as FlagSet;
pub(super) const PF: FlagSet = RflagsBits::PF as FlagSet;
pub(super) const CF: FlagSet = RflagsBits::CF as FlagSet;
const ARITHMETIC: FlagSet = OF | SF | ZF | AF | PF | CF;

/// What a segment ends with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Callee {
    /// The end of the block.
    None,
    /// A direct call to a block of the program.
    Entry(Block),
    /// An indirect call, through a thunk as well, or one to a stub.
    Unknown,
}

/// Instructions between calls, and the call behind them.
#[derive(Copy, Clone, Debug)]
pub(super) struct Segment {
    /// Read before it is written in the segment.
    pub(super) reads: FlagSet,
    /// Surely written in the segment.
    pub(super) writes: FlagSet,
    pub(super) callee: Callee,
}

#[derive(Clone, Debug)]
pub(crate) struct BlockSummary {
    /// In program order, never empty.
    pub(super) segments: SmallVec<[Segment; 2]>,
}

impl BlockSummary {
    pub(super) fn calls(&self) -> impl Iterator<Item = Callee> + '_ {
        self.segments.iter().map(|s| s.callee).filter(|callee| *callee != Callee::None)
    }
}

/// Of a block's instructions.
pub(crate) fn summarize(program: &Program, block: Block, instructions: &[Instruction]) -> BlockSummary {
    let data = &program.blocks[block];
    let mut summary = BlockSummary { segments: SmallVec::new() };
    let mut segment = Segment { reads: 0, writes: 0, callee: Callee::None };
    let mut decoded_end = data.start;
    for instruction in instructions {
        decoded_end = Va(instruction.next_ip());
        let (reads, writes) = effects(instruction);
        segment.reads |= reads & !segment.writes;
        segment.writes |= writes;
        segment.callee = callee_of(program, instruction);
        if segment.callee != Callee::None {
            summary.segments.push(segment);
            segment = Segment { reads: 0, writes: 0, callee: Callee::None };
        }
    }
    // What lies behind the last thing understood may read anything.
    let is_complete = decoded_end == data.end() && data.terminator != Terminator::Stop(StopKind::Unknown);
    if !is_complete {
        segment.reads |= ARITHMETIC & !segment.writes;
    }
    summary.segments.push(segment);
    summary
}

fn callee_of(program: &Program, instruction: &Instruction) -> Callee {
    match instruction.flow_control() {
        FlowControl::Call if instruction.is_call_near() => {
            let entry = program.block_at(Va(instruction.near_branch_target()));
            entry.filter(|&b| !program.blocks[b].flags.contains(BlockFlags::THUNK)).map_or(Callee::Unknown, Callee::Entry)
        }
        // `syscall` and its kin come back with the flags as they were.
        FlowControl::Call if matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int) => {
            Callee::None
        }
        FlowControl::Call | FlowControl::IndirectCall => Callee::Unknown,
        _ => Callee::None,
    }
}

/// What an instruction reads and surely writes.
fn effects(instruction: &Instruction) -> (FlagSet, FlagSet) {
    if matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int) {
        return (0, 0);
    }
    let reads = arithmetic(instruction.rflags_read());
    let writes = arithmetic(instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set());
    (reads, if may_write_nothing(instruction) { 0 } else { writes })
}

fn arithmetic(rflags: u32) -> FlagSet {
    rflags as FlagSet & ARITHMETIC
}

/// Whether a count that may be zero decides if the instruction writes flags at all.
fn may_write_nothing(instruction: &Instruction) -> bool {
    let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    match instruction.mnemonic() {
        Mnemonic::Shl | Mnemonic::Sal | Mnemonic::Shr | Mnemonic::Sar => is_by_cl(instruction, 1),
        Mnemonic::Rol | Mnemonic::Ror | Mnemonic::Rcl | Mnemonic::Rcr => is_by_cl(instruction, 1),
        Mnemonic::Shld | Mnemonic::Shrd => is_by_cl(instruction, 2),
        Mnemonic::Cmpsb
        | Mnemonic::Cmpsw
        | Mnemonic::Cmpsq
        | Mnemonic::Scasb
        | Mnemonic::Scasw
        | Mnemonic::Scasd
        | Mnemonic::Scasq => is_repeated,
        Mnemonic::Cmpsd => is_repeated && matches!(instruction.code(), Code::Cmpsd_m32_m32),
        _ => false,
    }
}

fn is_by_cl(instruction: &Instruction, operand: u32) -> bool {
    instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand) == Register::CL
}
