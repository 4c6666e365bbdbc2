//! Which functions give their cold blocks a fragment of their own.
//!
//! **Method.** A split costs bytes: an unwind entry with its row in the lookup table, and long forms for branches between the two parts.
//! It gains density of hot code: the bytes that leave. Splits are taken by gain per cost, those of busy functions first, until the
//! budget is spent. Without a split the cold blocks stay at the function's end, so branches are as good either way.
//!
//! A function that the compiler had split costs no new unwind entry; what it has too many is not counted as a gain.

use lifter::entity::Block;
use lifter::ir::Program;
use profiles::Weights;

use super::{Group, LayoutOptions, count_of};

/// An entry of `.eh_frame` with a few rows, and its row in `.eh_frame_hdr`.
const UNWIND_ENTRY_BYTES: u64 = 40;
/// The header of an exception table and its share of call sites.
const EXCEPTION_TABLE_BYTES: u64 = 12;
/// What a branch grows by where its target is out of an 8-bit reach.
const LONG_BRANCH_BYTES: u64 = 4;
/// Less than this is not worth a fragment, whatever it costs.
const COLD_BYTES_MIN: u64 = 32;

/// For each group, whether its cold blocks leave.
pub(super) fn choose(
    program: &Program,
    weights: &Weights,
    options: &LayoutOptions,
    busy_count_min: u64,
    groups: &[Group],
) -> Vec<bool> {
    let mut is_split = vec![false; groups.len()];
    if !options.split {
        return is_split;
    }
    let movable_bytes: u64 = groups.iter().map(|group| bytes(program, &group.hot) + bytes(program, &group.cold)).sum();
    let mut budget = movable_bytes.saturating_mul(options.split_cost_per_mille_max) / 1000;
    // Busy ones first, then by gain per cost, then in input order.
    let mut candidates: Vec<(bool, u64, usize, u64)> = Vec::new();
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| !group.hot.is_empty() && !group.cold.is_empty()) {
        let gain = bytes(program, &group.cold);
        let cost = branch_cost(program, group) + unwind_cost(program, group);
        if gain >= cost.max(COLD_BYTES_MIN) {
            let is_busy = group.hot.iter().any(|&block| count_of(weights, block) >= busy_count_min);
            candidates.push((!is_busy, u64::MAX - (gain << 16) / cost.max(1), index, cost));
        }
    }
    candidates.sort_unstable();
    for (_, _, index, cost) in candidates {
        if cost <= budget {
            budget -= cost;
            is_split[index] = true;
        }
    }
    is_split
}

fn bytes(program: &Program, blocks: &[Block]) -> u64 {
    blocks.iter().map(|&block| u64::from(program.blocks[block].len)).sum()
}

fn unwind_cost(program: &Program, group: &Group) -> u64 {
    let mut ranges: Vec<u32> = group.hot.iter().chain(&group.cold).map(|&block| program.blocks[block].range).collect();
    ranges.sort_unstable();
    ranges.dedup();
    let mut cost = 0;
    if let [range] = ranges[..] {
        let fde = program.ranges[range as usize].fde.and_then(|fde| program.unwind.fdes.get(fde));
        cost += fde.map_or(0, |_| UNWIND_ENTRY_BYTES);
        cost += fde.and_then(|fde| fde.lsda).map_or(0, |_| EXCEPTION_TABLE_BYTES);
    }
    cost
}

fn branch_cost(program: &Program, group: &Group) -> u64 {
    let mut cold = group.cold.clone();
    cold.sort_unstable();
    let is_cold = |block| cold.binary_search(&block).is_ok();
    let leaves = |&block: &Block| {
        program.block_edges(block).iter().filter(|edge| is_cold(edge.source) != is_cold(edge.target)).count() as u64
    };
    let num_crossing: u64 = group.hot.iter().chain(&group.cold).map(leaves).sum();
    LONG_BRANCH_BYTES * num_crossing
}
