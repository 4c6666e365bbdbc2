//! Which functions give their cold blocks, and those that seldom run, fragments of their own.
//!
//! **Method.** A split costs bytes: an unwind entry with its row in the lookup table, and long forms for branches between the two parts.
//! It gains density of hot code: the bytes that leave. Splits are taken by gain per cost, those of busy functions first, until the
//! budget is spent. Without a split the cold blocks stay at the function's end, so branches are as good either way.
//!
//! A function that the compiler had split costs no new unwind entry; what it has too many is not counted as a gain.

use lifter::entity::Block;
use lifter::ir::Program;
use profiles::Weights;

use super::ext_tsp::BlockGraph;
use super::{Group, LayoutOptions, count_of};

/// An entry of `.eh_frame` with a few rows, and its row in `.eh_frame_hdr`.
const UNWIND_ENTRY_BYTES: u64 = 40;
/// The header of an exception table and its share of call sites.
const EXCEPTION_TABLE_BYTES: u64 = 12;
/// What a branch grows by where its target is out of an 8-bit reach.
const LONG_BRANCH_BYTES: u64 = 4;
/// What a byte that leaves a busy function is worth: it makes room in the cache.
const BUSY_GAIN: u64 = 16;
/// Less than this is not worth a fragment, whatever it costs.
const COLD_BYTES_MIN: u64 = 8;
/// The same of what does run: each fragment more has two ends in lines that are half used.
const WARM_BYTES_MIN: u64 = 128;

/// What leaves a group for fragments of its own.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) warm: bool,
    pub(super) cold: bool,
}

/// A part that may leave its group.
struct Candidate {
    is_busy: bool,
    gain: u64,
    cost: u64,
    group: usize,
    is_warm: bool,
}

/// For each group, what leaves it.
pub(super) fn choose(
    program: &Program,
    weights: &Weights,
    options: &LayoutOptions,
    busy_count_min: u64,
    groups: &[Group],
) -> Vec<Split> {
    let mut splits = vec![Split::default(); groups.len()];
    if !options.split {
        return splits;
    }
    let all_bytes =
        |group: &Group| [&group.hot, &group.warm, &group.cold].map(|blocks| bytes(program, blocks)).iter().sum::<u64>();
    let mut budget = groups.iter().map(all_bytes).sum::<u64>().saturating_mul(options.split_cost_per_mille_max) / 1000;
    let mut candidates: Vec<Candidate> = Vec::new();
    for (index, group) in groups.iter().enumerate().filter(|(_, group)| !group.hot.is_empty()) {
        let is_busy = group.hot.iter().any(|&block| count_of(weights, block) >= busy_count_min);
        for (part, is_warm, bytes_min) in [(&group.warm, true, WARM_BYTES_MIN), (&group.cold, false, COLD_BYTES_MIN)] {
            let gain = bytes(program, part);
            let cost = branch_cost(program, group, part) + unwind_cost(program, group);
            let worth = if is_busy { BUSY_GAIN } else { 2 };
            if gain >= bytes_min && gain * worth >= cost {
                candidates.push(Candidate { is_busy, gain, cost, group: index, is_warm });
            }
        }
    }
    // Busy ones first, then by gain per cost, then in input order.
    candidates.sort_by_key(|c| (!c.is_busy, std::cmp::Reverse((c.gain << 16) / c.cost.max(1)), c.group, c.is_warm));
    for Candidate { cost, group, is_warm, .. } in candidates {
        if cost <= budget {
            budget -= cost;
            *(if is_warm { &mut splits[group].warm } else { &mut splits[group].cold }) = true;
        }
    }
    splits
}

/// An order of blocks in two: what may leave the rest because it seldom runs, and the rest. A stretch that would take fallthroughs with
/// it stays, so that no branch more is taken; where all is seldom, nothing leaves.
pub(super) fn apart(graph: &BlockGraph, order: &[u32], is_warm: &[bool]) -> (Vec<u32>, Vec<u32>) {
    let (mut busy, mut seldom): (Vec<u32>, Vec<u32>) = (Vec::with_capacity(order.len()), Vec::new());
    let is_warm = |node: &u32| is_warm[*node as usize];
    if order.iter().all(is_warm) {
        return (order.to_vec(), seldom);
    }
    let falls = |from: Option<&u32>, to: Option<&u32>| match (from, to) {
        (Some(&from), Some(&to)) => graph.fallthrough_count(from, to),
        _ => 0,
    };
    let mut rest = order;
    for stretch in order.chunk_by(|a, b| is_warm(a) == is_warm(b)) {
        rest = &rest[stretch.len()..];
        let (before, after) = (busy.last(), rest.first());
        let kept = falls(before, stretch.first()) + falls(stretch.last(), after);
        let leaves = stretch.first().is_some_and(is_warm) && kept <= falls(before, after);
        (if leaves { &mut seldom } else { &mut busy }).extend(stretch);
    }
    (busy, seldom)
}

fn bytes(program: &Program, blocks: &[Block]) -> u64 {
    blocks.iter().map(|&block| u64::from(program.blocks[block].len)).sum()
}

fn unwind_cost(program: &Program, group: &Group) -> u64 {
    let blocks = group.hot.iter().chain(&group.warm).chain(&group.cold);
    let mut ranges: Vec<u32> = blocks.map(|&block| program.blocks[block].range).collect();
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

/// What the branches into and out of `part` grow by when it leaves.
fn branch_cost(program: &Program, group: &Group, part: &[Block]) -> u64 {
    let mut part = part.to_vec();
    part.sort_unstable();
    let leaves = |block| part.binary_search(&block).is_ok();
    let crossing = |&block: &Block| {
        program.block_edges(block).iter().filter(|edge| leaves(edge.source) != leaves(edge.target)).count() as u64
    };
    let num_crossing: u64 = group.hot.iter().chain(&group.warm).chain(&group.cold).map(crossing).sum();
    LONG_BRANCH_BYTES * num_crossing
}
