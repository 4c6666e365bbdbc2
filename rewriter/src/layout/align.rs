//! What is aligned, and how far: bytes are spent only where code runs often.
//!
//! **Method.** Code that ran is packed; where a fragment begins, its placement decides (it may prefer the start of a cache line). On request, in
//! busy code the target of a backward jump is aligned to 16, a decode window's size, where it is seldom run into from above, since then the
//! padding is seldom executed. That is off by default: it costs instructions and lines, and its gain is not seen in time.
//! What has no counts keeps the alignment that it can be seen to have had.
//!
//! **Invariant.** An entry whose address is taken is even: a C++ pointer to member function uses bit 0 to mark virtual functions (Itanium
//! C++ ABI §2.3). It is a multiple of four where it was: programs mark such addresses in two bits (CLISP refuses to run otherwise, LLVM's `PointerIntPair` takes it for granted). No block
//! asks for more than its fragment.

use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program};
use profiles::Weights;
use rustc_hash::FxHashMap;

use super::copies::execution_before;
use super::{LayoutOptions, count_of};
use crate::plan::{FragmentPlan, Temperature};

const FULL: u8 = 16;
/// How far addresses of functions are aligned, at least, in programs that mark them.
const MARKED: u64 = 4;
/// How often a loop must go round for each time that it is run into.
const LOOP_ROUNDS_MIN: u64 = 8;
/// A loop head longer than this is fetched in several windows wherever it starts.
const LOOP_HEAD_BYTES_MAX: u32 = 64;

/// The alignment that a block must have wherever it is.
pub(super) fn demanded(program: &Program, block: Block) -> u8 {
    let data = &program.blocks[block];
    match data.flags.contains(BlockFlags::ENTRY | BlockFlags::ADDRESS_TAKEN) {
        true if data.start.0.is_multiple_of(MARKED) => MARKED as u8,
        true => 2,
        false => 1,
    }
}

/// Alignment by how often things run.
pub(super) fn apply(
    program: &Program,
    weights: &Weights,
    options: &LayoutOptions,
    busy_count_min: u64,
    fragments: &mut [FragmentPlan],
) {
    for fragment in fragments {
        let is_busy = |block: Block| count_of(weights, block) >= busy_count_min;
        let runs_busily =
            fragment.temperature == Temperature::Hot && fragment.blocks.iter().any(|planned| is_busy(planned.block));
        let loops = if runs_busily && options.align_loops { loop_heads(program, weights, fragment) } else { Vec::new() };
        for (index, planned) in fragment.blocks.iter_mut().enumerate() {
            planned.align = demanded(program, planned.block);
            if loops.binary_search(&index).is_ok() && is_busy(planned.block) {
                planned.align = FULL;
            }
        }
        raise_to_blocks(fragment);
    }
}

/// The input's alignment, as far as it shows: of entries, and of loop headers behind padding.
pub(super) fn keep(program: &Program, fragments: &mut [FragmentPlan]) {
    for fragment in fragments {
        let entry = program.funcs[fragment.func].entry;
        let mut previous_end = None;
        for planned in &mut fragment.blocks {
            let data = &program.blocks[planned.block];
            let is_padded_loop =
                data.flags.contains(BlockFlags::LOOP_HEADER) && previous_end.is_some_and(|end| end != data.start);
            planned.align = demanded(program, planned.block);
            if (planned.block == entry || is_padded_loop) && data.start.0.is_multiple_of(u64::from(FULL)) {
                planned.align = FULL;
            }
            previous_end = Some(data.end());
        }
        raise_to_blocks(fragment);
    }
}

/// No more than must be.
pub(super) fn demand(program: &Program, fragments: &mut [FragmentPlan]) {
    for fragment in fragments {
        for planned in &mut fragment.blocks {
            planned.align = demanded(program, planned.block);
        }
        raise_to_blocks(fragment);
    }
}

pub(super) fn raise_to_blocks(fragment: &mut FragmentPlan) {
    fragment.align = fragment.blocks.iter().map(|planned| planned.align).max().unwrap_or(1);
}

/// Indices, ascending, of blocks that backward jumps reach far more often than the block before runs into them.
fn loop_heads(program: &Program, weights: &Weights, fragment: &FragmentPlan) -> Vec<usize> {
    let blocks = &fragment.blocks;
    let indices: FxHashMap<Block, usize> = blocks.iter().enumerate().map(|(index, planned)| (planned.block, index)).collect();
    let mut from_behind = vec![0u64; blocks.len()];
    let mut from_above = vec![0u64; blocks.len()];
    for (index, planned) in blocks.iter().enumerate() {
        let following = blocks.get(index + 1).map(|planned| planned.block);
        let execution = execution_before(program, weights, planned.block, following);
        let conditional = execution.conditional.map(|branch| (branch.target, branch.taken));
        for (target, count) in conditional.into_iter().chain(execution.jump) {
            if let CodeTarget::Block(target) = target
                && let Some(&target) = indices.get(&target)
                && target <= index
            {
                from_behind[target] = from_behind[target].saturating_add(count);
            }
        }
        if let Some(above) = from_above.get_mut(index + 1) {
            *above = execution.runs_on;
        }
    }
    let is_head = |&index: &usize| {
        let is_short = program.blocks[blocks[index].block].len <= LOOP_HEAD_BYTES_MAX;
        is_short && from_behind[index] > 0 && from_behind[index] / LOOP_ROUNDS_MIN >= from_above[index]
    };
    (0..blocks.len()).filter(is_head).collect()
}
