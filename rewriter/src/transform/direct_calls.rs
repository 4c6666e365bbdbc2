//! Calls through words that never change go straight to what these hold.
//!
//! `call *slot(%rip)`, where the loader puts the address of a function of this file into the slot, becomes `call function`. Compilers that are told to do without a procedure linkage table (`-fno-plt`, and rustc
//! always) call so whatever may be in another file, and linkers leave it where an object says that it is not to be relaxed.
//!
//! **Safety.** What never changes is said in [`super::unchanging`]. Both calls push the return address of the same place, and arrive in the same state. The load cannot fault. Where indirect branches are tracked, the function
//! is one that may be called so, and it keeps its mark, since the word still has its address.
//!
//! **Profit.** A byte less, a load less, and no entry among the predictions of indirect branches. It needs no profile.

use iced_x86::{Code, Instruction, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::{Evidence, Program, RefData, RefKind, RefRole, RefTarget};
use lifter::x86::decode_block_into;
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::unchanging::{Known, Words};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};

/// `call *slot(%rip)`.
pub(crate) const LEN: u32 = 6;

/// A call that always goes to the same function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectCall {
    pub block: Block,
    /// From the block's start.
    pub offset: u32,
    /// The entry of what is called.
    pub callee: Block,
}

/// The calls, ascending, of code that something leads to: other code is matched by its bytes alone. What runs is asked of the weights only where other code stays where it is.
pub fn find<'r>(
    image: &Image<'_>,
    program: &Program,
    weights: &Weights,
    reached: impl FnOnce() -> &'r SecondaryMap<Block, bool>,
) -> Vec<DirectCall> {
    let words = Words::of(image, program);
    let all_moves = program.is_replaceable();
    let runs = |block: Block| weights.blocks.get(block.index()).is_some_and(|&count| count != 0);
    let may_change = |block: &Block| program.funcs[program.func_of(*block)].is_movable() && (all_moves || runs(*block));
    let blocks: Vec<Block> = program.blocks.keys().filter(may_change).collect();
    let calls_of = |instructions: &mut Vec<_>, &block: &Block| calls_in(image, program, &words, block, instructions);
    let mut calls: Vec<DirectCall> = blocks.par_iter().with_min_len(64).map_init(Vec::new, calls_of).flatten_iter().collect();
    if !calls.is_empty() {
        let is_reached = reached();
        calls.retain(|call| is_reached[call.block]);
    }
    calls
}

/// Those of one block.
pub(crate) fn of_block(calls: &[DirectCall], block: Block) -> &[DirectCall] {
    let first = calls.partition_point(|call| call.block < block);
    let count = calls[first..].partition_point(|call| call.block == block);
    &calls[first..first + count]
}

/// Plans the calls, but for those that other edits already have.
pub fn plan(calls: &[DirectCall], edits: &mut EditPlan) {
    if calls.is_empty() {
        return;
    }
    let mut codes: FxHashMap<Block, NewCodeId> = FxHashMap::default();
    for call in calls {
        let code = *codes.entry(call.callee).or_insert_with(|| edits.codes.push(call_of(call.callee)));
        let DirectCall { block, offset, .. } = *call;
        edits.replacements.push(Replacement { block, offset, len: LEN, code, change: Change::DirectCall });
    }
    edits.settle();
}

fn calls_in(
    image: &Image<'_>,
    program: &Program,
    words: &Words<'_>,
    block: Block,
    instructions: &mut Vec<Instruction>,
) -> Vec<DirectCall> {
    let callee_of = |r: &RefData| match r.target {
        RefTarget::Fixed(slot) if r.role == RefRole::IndirectThroughSlot && r.kind == RefKind::Rel32 => {
            function_in(program, words, slot)
        }
        _ => None,
    };
    let known: Vec<(u32, Block)> =
        program.block_refs(block).iter().filter_map(|r| Some((r.offset.checked_sub(2)?, callee_of(r)?))).collect();
    if known.is_empty() {
        return Vec::new();
    }
    decode_block_into(image, program, block, instructions);
    let start = program.blocks[block].start;
    let is_plain = |call: &Instruction| {
        call.code() == Code::Call_rm64 && call.len() == LEN as usize && call.segment_prefix() == Register::None
    };
    let is_call = |offset: u32| {
        let at = start + u64::from(offset);
        instructions.binary_search_by_key(&at.0, Instruction::ip).is_ok_and(|index| is_plain(&instructions[index]))
    };
    known
        .into_iter()
        .filter(|&(offset, _)| is_call(offset))
        .map(|(offset, callee)| DirectCall { block, offset, callee })
        .collect()
}

/// The entry of the function whose address a word always holds.
fn function_in(program: &Program, words: &Words<'_>, slot: Va) -> Option<Block> {
    match words.known(slot, 8)? {
        Known::Address(RefTarget::Block(block)) => (program.funcs[program.func_of(block)].entry == block).then_some(block),
        _ => None,
    }
}

/// A reference to what a call at the start of new code calls.
pub(crate) fn reference_to(callee: Block, role: RefRole) -> RefData {
    let (kind, evidence, target) = (RefKind::Rel32, Evidence::Derived, RefTarget::Block(callee));
    RefData { offset: 1, to_end: 4, kind, role, evidence, target }
}

fn call_of(callee: Block) -> NewCode {
    NewCode { bytes: vec![0xe8, 0, 0, 0, 0], refs: vec![reference_to(callee, RefRole::Call)], ..NewCode::default() }
}
