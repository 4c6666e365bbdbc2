//! The beginning of a function that uses no stack: which blocks are copied, how often each runs, and where control goes from them.
//!
//! **Method.** From the entry on, the more frequent way first, blocks join as long as they are fit (`is_stack_free`, `has_entry_row`), worth it (they run, or
//! take no more bytes than a call of them and a jump back) and few.
//!
//! **Terminates**: each block joins at most once.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program, RefData, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86::decode_block;

use crate::edit::NewCode;
use crate::terminator::SuccessorCounts;
use crate::transform::Context;
use crate::transform::entry_row;

const BLOCKS_MAX: usize = 12;
/// Bytes of a region: all branches of its copy are short.
const BYTES_MAX: u32 = 96;
/// A call and a short jump back: what a block that is not copied costs.
const EXIT_LEN: u32 = 7;
/// Blocks that run less often than this share of the entry's executions are not copied if they are longer than that.
const RARE: u64 = NewCode::WHOLE as u64 / 50;
/// Of which a profile says nothing, the less likely way of a branch is taken once in so many times.
const UNLIKELY: u64 = 8;
/// A `ret` alone, which goes when it is copied.
const RET_LEN_MAX: u32 = 2;

/// A place of a region.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// A block that is copied.
    Copy(Block),
    /// What is called because it is not, and whether the original went there by a jump of its own.
    Exit { target: RefTarget, is_tail_call: bool },
}

/// A way from one node to another and how often it is taken, in the unit of `NewCode::shares`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) to: Node,
    pub(super) share: u64,
}

/// How a copied block ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Ways {
    Return,
    /// `jmp` through a register or memory out of the function.
    IndirectTailCall,
    /// To one place; whether by a jump.
    One(Way, bool),
    /// `jcc`: the condition, where it leads, and where it falls.
    Two(lifter::ir::Condition, Way, Way),
}

/// What is copied.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// The entry first; each with how often it runs for each call.
    pub(super) blocks: Vec<(Block, u64)>,
}

impl Region {
    pub(super) fn share(&self, block: Block) -> Option<u64> {
        self.blocks.iter().find(|(known, _)| *known == block).map(|&(_, share)| share)
    }

    /// Where a copied block leads.
    pub(super) fn ways(&self, context: &Context<'_>, block: Block) -> Option<Ways> {
        ways(context, block, self.share(block)?, |target| self.share(target).is_some())
    }
}

/// The beginning of the function that is called at `entry`; `None` if there is none.
pub(super) fn of(context: &Context<'_>, entry: Block) -> Option<Region> {
    let mut region = Region { blocks: Vec::new() };
    let mut factory = InstructionInfoFactory::new();
    let mut open = vec![(entry, u64::from(NewCode::WHOLE))];
    let (func, entries) = (context.program.func_of(entry), context.count(entry));
    let mut len = 0;
    while let Some((block, guess)) = open.pop() {
        let data = &context.program.blocks[block];
        let counted = (u128::from(context.count(block)) << 16).checked_div(u128::from(entries));
        let share = counted.map_or(guess, |share| u64::try_from(share).unwrap_or(u64::MAX).min(1 << 24));
        let is_wanted = data.len <= EXIT_LEN || share >= RARE;
        let has_room = data.len <= RET_LEN_MAX || region.blocks.len() < BLOCKS_MAX && len + data.len <= BYTES_MAX;
        let is_known = region.share(block).is_some();
        if is_known || !is_wanted || !has_room || context.program.func_of(block) != func {
            continue;
        }
        if !has_entry_row(context.program, block) || !is_stack_free(context, block, block == entry, &mut factory) {
            continue;
        }
        let Some(ways) = ways(context, block, share, |target| context.program.func_of(target) == func) else { continue };
        len += data.len;
        region.blocks.push((block, share));
        let mut follow = |way: Way| {
            if let Node::Copy(next) = way.to {
                open.push((next, way.share));
            }
        };
        match ways {
            Ways::Return | Ways::IndirectTailCall => {}
            Ways::One(way, _) => follow(way),
            Ways::Two(_, taken, next) => {
                let (rare, usual) = if taken.share > next.share { (next, taken) } else { (taken, next) };
                follow(rare);
                follow(usual);
            }
        }
    }
    (region.blocks.first()?.0 == entry).then_some(region)
}

/// Where a block leads, if it may be copied with such an end.
fn ways(context: &Context<'_>, block: Block, share: u64, is_copied: impl Fn(Block) -> bool) -> Option<Ways> {
    let program = context.program;
    let node = |target: CodeTarget, is_jump: bool| match target {
        CodeTarget::Block(next) if is_copied(next) => Node::Copy(next),
        CodeTarget::Block(next) => {
            let is_tail_call = is_jump && program.func_of(next) != program.func_of(block);
            Node::Exit { target: RefTarget::Block(next), is_tail_call }
        }
        CodeTarget::Fixed(va) => Node::Exit { target: RefTarget::Fixed(va), is_tail_call: is_jump },
    };
    Some(match program.blocks[block].terminator {
        Terminator::Stop(StopKind::Return) => Ways::Return,
        Terminator::Stop(StopKind::IndirectTailCall) => Ways::IndirectTailCall,
        Terminator::Fallthrough { next } => Ways::One(Way { to: node(CodeTarget::Block(next), false), share }, false),
        Terminator::Jump { target } => Ways::One(Way { to: node(target, true), share }, true),
        Terminator::Branch { condition, taken, next } => {
            let counts = SuccessorCounts::of(program, context.weights, block);
            let whole = u128::from(counts.taken) + u128::from(counts.next);
            let leads_back = matches!(taken, CodeTarget::Block(to) if program.blocks[to].start <= program.blocks[block].start);
            // Compilers let what is likely follow; of a loop, that is the next round.
            let guess = |is_taken: bool| if is_taken == leads_back { share - share / UNLIKELY } else { share / UNLIKELY };
            let part = |is_taken: bool, count: u64| {
                let part = (u128::from(share) * u128::from(count)).checked_div(whole);
                part.map_or_else(|| guess(is_taken), |part| part as u64)
            };
            let to_next = Way { to: node(CodeTarget::Block(next), false), share: part(false, counts.next) };
            // A conditional tail call has no jump of its own that could go.
            let to_taken = Way { to: node(taken, false), share: part(true, counts.taken) };
            Ways::Two(condition, to_taken, to_next)
        }
        Terminator::Loop { .. } | Terminator::Stop(_) => return None,
    })
}

/// Whether the frame description of a block says at each place what it says at an entry, and names no exception table.
fn has_entry_row(program: &Program, block: Block) -> bool {
    !entry_row::has_exception_table(program, block) && entry_row::has_entry_row(program, block, program.blocks[block].end())
}

/// Whether the instructions of a block leave the stack pointer and what it points to alone and run on, but for the one that leaves at its end.
fn is_stack_free(context: &Context<'_>, block: Block, is_entry: bool, factory: &mut InstructionInfoFactory) -> bool {
    let program = context.program;
    let data = &program.blocks[block];
    let named = |r: &RefData| matches!(r.target, RefTarget::Table(_)) || matches!(r.role, RefRole::Call | RefRole::Branch);
    if program.block_refs(block).iter().any(named) {
        return false;
    }
    let instructions = decode_block(context.image, program, block);
    let mut body = instructions.as_slice();
    if is_entry && data.flags.contains(BlockFlags::ENDBR) {
        body = body.get(1..).unwrap_or(&[]);
    }
    if is_entry && body.first().is_none_or(|first| first.mnemonic() == Mnemonic::Nop) {
        return false;
    }
    let body_end = data.start.0 + u64::from(data.body_len);
    body.iter().take_while(|instruction| instruction.ip() < body_end).all(|instruction| {
        let is_last = instruction.next_ip() == data.end().0;
        match instruction.flow_control() {
            FlowControl::Return => is_last && instruction.code() == Code::Retnq,
            FlowControl::IndirectBranch => is_last && instruction.code() == Code::Jmp_rm64 && !names_stack(instruction, factory),
            FlowControl::Next => {
                !instruction.is_stack_instruction()
                    && !instruction.is_privileged()
                    && !names_stack(instruction, factory)
                    && !matches!(
                        instruction.mnemonic(),
                        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Endbr64 | Mnemonic::Hlt
                    )
            }
            _ => false,
        }
    })
}

fn names_stack(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    let info = factory.info(instruction);
    let is_stack = |register: Register| register.full_register() == Register::RSP;
    info.used_registers().iter().any(|used| is_stack(used.register()))
        || info.used_memory().iter().any(|used| is_stack(used.base()) || is_stack(used.index()))
}
