//! What may be kept below the stack pointer.
//!
//! **Problem.** A push or a call that the program had not there overwrites the word below the stack pointer.
//!
//! **Method.** Nothing is kept in it in a function that addresses nothing there, and nothing below `%rbp` if that is made to count from the stack pointer, if it was not given up either: where control comes from an instruction
//! that raises the stack pointer, what was given up is still there, and OCaml's `caml_c_call` has its return address back so. A call overwrites the word. (In code that follows the psABI no function that calls reads such a word.)
//!
//! **Termination.** A block is looked at once more only when the word is first seen to be given up where it begins.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func};
use lifter::ir::{CodeTarget, EdgeKind, Program, StopKind, Terminator};
use lifter::x86::decode_block_into;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::plan::LayoutPlan;

/// What a function may have left in the word below the stack pointer.
pub(super) struct Below {
    /// Of blocks with instructions that say something, or where the word may be one that was given up.
    blocks: FxHashMap<Block, InBlock>,
}

/// What becomes of the word in a block.
#[derive(Default)]
struct InBlock {
    /// Whether it may be one that was given up where the block begins.
    at_start: bool,
    /// The same behind instructions, ascending.
    behind: SmallVec<[(Va, bool); 2]>,
}

impl InBlock {
    fn at(&self, at: Va) -> bool {
        let before = self.behind.partition_point(|behind| behind.0 <= at);
        before.checked_sub(1).map_or(self.at_start, |last| self.behind[last].1)
    }
}

impl Below {
    /// Looks at a function; `None` if it has code without unwind entries, addresses what is below the stack pointer, or may do so by `%rbp`.
    pub(super) fn of(image: &Image<'_>, program: &Program, func: Func) -> Option<Self> {
        let is_described = program.func_ranges(func).iter().all(|range| range.fde.is_some());
        if !is_described {
            return None;
        }
        let (mut instructions, mut blocks) = (Vec::new(), FxHashMap::default());
        let (mut is_frame_pointer, mut is_below_frame) = (false, false);
        for block in program.funcs[func].blocks.iter() {
            decode_block_into(image, program, block, &mut instructions);
            for instruction in &instructions {
                if addresses_below(instruction) {
                    return None;
                }
                is_frame_pointer |= makes_frame_pointer(instruction);
                is_below_frame |= is_below(instruction, Register::RBP);
            }
            let behind: SmallVec<[(Va, bool); 2]> = instructions.iter().filter_map(leaves_behind).collect();
            if !behind.is_empty() {
                blocks.insert(block, InBlock { at_start: false, behind });
            }
        }
        if is_frame_pointer && is_below_frame {
            return None;
        }
        let mut below = Self { blocks };
        below.spread(program);
        Some(below)
    }

    /// Follows words that were given up to where control goes.
    fn spread(&mut self, program: &Program) {
        let is_left = |behind: &InBlock| behind.behind.iter().any(|behind| behind.1);
        let mut pending: Vec<Block> =
            self.blocks.iter().filter(|(_, in_block)| is_left(in_block)).map(|(block, _)| *block).collect();
        while let Some(block) = pending.pop() {
            if !self.blocks.get(&block).is_some_and(|in_block| in_block.at(program.blocks[block].end())) {
                continue;
            }
            for next in ways_on(program, block) {
                if !begins_entry(program, next) && !std::mem::replace(&mut self.blocks.entry(next).or_default().at_start, true) {
                    pending.push(next);
                }
            }
        }
    }

    /// Whether nothing is kept in it anywhere in a block.
    pub(super) fn is_bare_throughout(&self, block: Block) -> bool {
        self.blocks.get(&block).is_none_or(|in_block| !in_block.at_start && in_block.behind.iter().all(|behind| !behind.1))
    }

    /// Whether nothing is kept in it at an instruction.
    pub(super) fn is_bare(&self, block: Block, at: Va) -> bool {
        !self.blocks.get(&block).is_some_and(|in_block| in_block.at(at))
    }
}

/// Blocks that stand for some in which something may be kept below the stack pointer; ascending.
pub fn unfit_stand_ins(image: &Image<'_>, program: &Program, plan: &LayoutPlan) -> Vec<Block> {
    let stand_in = |block: Block| plan.folded_blocks.stand_in(plan.folded.stand_in(program, block));
    let mut pairs: Vec<(Block, Block)> = stood_for(program, plan.folded_blocks.pairs(), stand_in).into_iter().collect();
    // So that those of a function come one after the other.
    pairs.par_sort_unstable();
    let funcs: Vec<&[(Block, Block)]> = pairs.chunk_by(|a, b| program.func_of(a.0) == program.func_of(b.0)).collect();
    let unfit_of = |pairs: &&[(Block, Block)]| -> Vec<Block> {
        let below = Below::of(image, program, program.func_of(pairs[0].0));
        let is_bare = |block: Block| below.as_ref().is_some_and(|below| below.is_bare_throughout(block));
        pairs.iter().filter(|(goes, _)| !is_bare(*goes)).map(|&(_, stand_in)| stand_in).collect()
    };
    let mut unfit: Vec<Block> = funcs.par_iter().flat_map_iter(unfit_of).collect();
    unfit.sort_unstable();
    unfit.dedup();
    unfit
}

/// Blocks, and others that stand for them: by the plan, or since control goes there from what stands for something that leads to them. Blocks that go on alike need not go on to one block: each of equal ones
/// may have kept its place.
fn stood_for(program: &Program, planned: &[(Block, Block)], stand_in: impl Fn(Block) -> Block) -> FxHashSet<(Block, Block)> {
    let mut found: FxHashSet<(Block, Block)> = planned.iter().copied().collect();
    let mut pending = planned.to_vec();
    while let Some((block, other)) = pending.pop() {
        for (next, instead) in leads_to(program, block).zip(leads_to(program, other)) {
            let pair = (next, stand_in(instead));
            if stand_in(next) != pair.1 && found.insert(pair) {
                pending.push(pair);
            }
        }
    }
    found
}

/// Where the ways from a block lead, in an order that equal blocks have alike.
fn leads_to(program: &Program, block: Block) -> impl Iterator<Item = Block> {
    let of = |target| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    };
    let [taken, next] = match program.blocks[block].terminator {
        Terminator::Fallthrough { next } => [None, Some(next)],
        Terminator::Jump { target } => [None, of(target)],
        Terminator::Branch { taken, next, .. } => [of(taken), Some(next)],
        Terminator::Loop { taken, next } => [Some(taken), Some(next)],
        Terminator::Stop(_) => [None, None],
    };
    let tables = program.block_edges(block).iter().filter(|edge| edge.kind == EdgeKind::Table).map(|edge| edge.target);
    taken.into_iter().chain(next).chain(tables)
}

/// Where an instruction ends that gives words up, or writes the one below the stack pointer, and whether it gives up.
fn leaves_behind(instruction: &Instruction) -> Option<(Va, bool)> {
    let gives_up = may_raise(instruction);
    (gives_up || instruction.mnemonic() == Mnemonic::Call).then(|| (Va(instruction.next_ip()), gives_up))
}

/// Where control may go from a block, into other functions too, and behind calls that are said not to return.
fn ways_on(program: &Program, block: Block) -> impl Iterator<Item = Block> {
    let data = &program.blocks[block];
    let of = |target| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    };
    let behind = || {
        let order = &program.blocks_by_address;
        order.get(order.partition_point(|&other| program.blocks[other].start <= data.start)).copied()
    };
    let [taken, next] = match data.terminator {
        Terminator::Fallthrough { next } => [None, Some(next)],
        Terminator::Jump { target } => [of(target), None],
        Terminator::Branch { taken, next, .. } => [of(taken), Some(next)],
        Terminator::Loop { taken, next } => [Some(taken), Some(next)],
        Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap | StopKind::Unknown) => [None, behind()],
        Terminator::Stop(_) => [None, None],
    };
    taken.into_iter().chain(next).chain(program.block_edges(block).iter().map(|edge| edge.target))
}

/// Whether an unwind entry begins with a block: nobody hands a word on to it below the stack pointer.
fn begins_entry(program: &Program, block: Block) -> bool {
    let data = &program.blocks[block];
    program.ranges[data.range as usize].fde.is_some_and(|fde| program.unwind.fdes[fde].start == data.start)
}

fn may_raise(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_stack = |operand: u32| {
        instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand).full_register() == Register::RSP
    };
    let writes_stack =
        instruction.op_count() > 0 && is_stack(0) || instruction.op_count() > 1 && instruction.mnemonic() == Xchg && is_stack(1);
    match instruction.mnemonic() {
        Pop | Popf | Popfq | Leave => true,
        Push | Cmp | Test | And => false,
        Add | Sub if matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64) => {
            writes_stack && (instruction.immediate(1).cast_signed() < 0) == (instruction.mnemonic() == Sub)
        }
        Sub => false,
        _ => writes_stack,
    }
}

fn is_stack(register: Register) -> bool {
    register.full_register() == Register::RSP
}

/// Whether the operand in memory lies below what a register holds, whatever else is added.
fn is_below(instruction: &Instruction, base: Register) -> bool {
    instruction.memory_base().full_register() == base && instruction.memory_displacement64().cast_signed() < 0
}

fn addresses_below(instruction: &Instruction) -> bool {
    is_below(instruction, Register::RSP) || instruction.code() == Code::Enterq_imm16_imm8
}

/// Whether `%rbp` counts from the stack pointer then.
fn makes_frame_pointer(instruction: &Instruction) -> bool {
    let takes_stack = is_stack(instruction.memory_base()) && instruction.code() == Code::Lea_r64_m
        || instruction.op_count() > 1 && is_stack(instruction.op1_register());
    instruction.op_count() > 0 && instruction.op0_register().full_register() == Register::RBP && takes_stack
}

#[cfg(test)]
mod tests {
    use lifter::entity::EntityId;

    use super::*;
    use crate::testing::{End, ProgramBuilder, TestBlock};

    #[test]
    fn a_block_stands_for_what_others_go_on_to_for_which_the_one_before_it_stands() {
        let function = || {
            let ends = [End::Branch(2), End::Fallthrough, End::Fallthrough, End::Return];
            ends.map(|end| TestBlock::new(4, end)).to_vec()
        };
        let program = ProgramBuilder::default().func(function()).func(function()).func(function()).build();
        let stood_for = |planned: &[(usize, usize)]| {
            let planned: Vec<(Block, Block)> = planned.iter().map(|&(a, b)| (Block::new(a), Block::new(b))).collect();
            let stand_in = |block| planned.iter().find(|pair| pair.0 == block).map_or(block, |pair| pair.1);
            let mut found: Vec<(usize, usize)> =
                stood_for(&program, &planned, stand_in).into_iter().map(|(a, b)| (a.index(), b.index())).collect();
            found.sort_unstable();
            found
        };
        // Of the first function: the second block goes on in the second function, the last one in the third.
        assert_eq!(stood_for(&[(1, 5), (2, 6), (3, 11)]), [(1, 5), (2, 6), (3, 7), (3, 11)]);
        // All goes on to one block.
        assert_eq!(stood_for(&[(2, 6), (3, 11), (7, 11)]), [(2, 6), (3, 11), (7, 11)]);
        // Both ways of a branch.
        assert_eq!(stood_for(&[(0, 4)]), [(0, 4), (1, 5), (2, 6), (3, 7)]);
    }
}
