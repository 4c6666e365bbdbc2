//! Where everything that moves goes: the order of blocks in a function, what is split off it as cold, the order of functions, and what
//! is aligned.
//!
//! **Method.** Each function that ran is laid out alone, all in parallel: its executed blocks by `chains`, per unwind class, the others in input
//! order behind them. `split` decides which of the seldom executed and of the cold parts are worth a fragment of their own; `functions` orders the
//! fragments that ran, `cold` those that did not. `align` has the last word on each block's alignment. A function that is known to be called,
//! but not which way it went, stays whole and goes where it would go if it were known.
//!
//! **Invariants.** Each block of each movable function is in the plan once; a pinned function's in none. A fragment's blocks have one
//! function and one unwind class. In a function that ran, the entry is the first block of its first fragment. The plan depends on the
//! program, the weights and the options alone, never on threads.

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, CodeTarget, EdgeKind, Program, Terminator};
use profiles::Weights;
use rayon::prelude::*;

use self::copies::Budget;
use self::ext_tsp::{BlockGraph, Jump, JumpKind};
use crate::edit::EditPlan;
use crate::fold::Folding;
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature};

mod align;
mod chains;
mod cold;
mod compact;
mod copies;
mod duplicate;
mod ext_tsp;
mod fit;
mod functions;
mod links;
mod polish;
mod shuffle;
mod split;
mod stay;
mod unroll;

pub use self::compact::compact;
#[cfg(test)]
pub(crate) use self::shuffle::Random;
pub use self::shuffle::shuffle;
pub use self::stay::{around_idle, pin_idle};

/// What shares of the executed instructions are given in: hundred thousandths.
const WHOLE: u64 = 100_000;
/// Jumps that execute less than this share of all instructions, taken together, are not worth a copy.
const DUPLICATE_SHARE_LEFT: u64 = 3000;
/// What runs less often than the blocks that make up all but this share of the executed instructions is not worth bytes.
const IDLE_SHARE: u64 = 1000;

/// What the layout may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutOptions {
    pub reorder_blocks: bool,
    pub reorder_functions: bool,
    /// Whether the cold part of a function may go to a fragment of its own.
    pub split: bool,
    /// Blocks that ran at most this often are cold.
    pub cold_count_max: u64,
    /// The most that splitting may cost, in thousandths of the bytes of movable code: unwind entries and longer branches.
    pub split_cost_per_mille_max: u64,
    /// Hundred thousandths of the executed instructions: the least executed blocks that make these up go away from the busy ones.
    pub warm_share: u64,
    /// Whether hot loops are aligned.
    pub align_loops: bool,
    /// Whether hot jumps to a few instructions that leave the function become a copy of them.
    pub duplicate_tails: bool,
    /// The most that such copies may take, in thousandths of the bytes of movable code.
    pub duplicate_per_mille_max: u64,
    /// Whether short hot loops are repeated behind themselves.
    pub unroll_loops: bool,
    /// The most that such copies may take, in thousandths of the bytes of movable code.
    pub unroll_per_mille_max: u64,
    /// Functions that others stand for; the weights are to know that already ([`Folding::weights`]).
    pub folded: Folding,
}

impl LayoutOptions {
    /// What `warm_share` is where it is wanted: the busy code then has no more pages than it needs, at a taken branch more in a hundred.
    pub const WARM_SHARE: u64 = 60;
}

impl Default for LayoutOptions {
    fn default() -> Self {
        Self {
            reorder_blocks: true,
            reorder_functions: true,
            split: true,
            cold_count_max: 0,
            split_cost_per_mille_max: 80,
            warm_share: Self::WARM_SHARE,
            align_loops: false,
            duplicate_tails: true,
            duplicate_per_mille_max: 10,
            unroll_loops: true,
            unroll_per_mille_max: 8,
            folded: Folding::default(),
        }
    }
}

/// The blocks of one function and unwind class, in output order.
#[derive(Clone, Debug)]
struct Group {
    func: Func,
    hot: Vec<Block>,
    /// What ran, but seldom.
    warm: Vec<Block>,
    cold: Vec<Block>,
}

/// The layout for speed that the weights ask for; the input's where they say nothing.
pub fn compute(program: &Program, weights: &Weights, edits: &EditPlan, options: &LayoutOptions) -> LayoutPlan {
    if !weights.has_counts() {
        let mut plan = original(program);
        plan.fold(options.folded.clone());
        return plan;
    }
    let warm_count_max = if options.split { warm_count_max(program, weights, options.warm_share) } else { 0 };
    let groups: Vec<Group> = program
        .funcs
        .as_slice()
        .par_iter()
        .enumerate()
        .filter(|(_, data)| data.is_movable())
        .flat_map_iter(|(index, _)| groups_of(program, weights, options, warm_count_max, Func::new(index)))
        .collect();
    let busy_count_min = busy_count_min(program, weights);
    let splits = split::choose(program, weights, options, busy_count_min, &groups);

    let (mut hot, mut warm, mut cold) = (Vec::new(), Vec::new(), Vec::new());
    for (mut group, split) in groups.into_iter().zip(splits) {
        if !group.hot.is_empty() {
            // What does not leave stays behind what is busier.
            if !split.cold {
                (if split.warm { &mut group.warm } else { &mut group.hot }).append(&mut group.cold);
            }
            if !split.warm {
                let at = group.hot.iter().rposition(|&block| count_of(weights, block) > 0).map_or(0, |last| last + 1);
                group.hot.splice(at..at, group.warm.drain(..));
            }
            let is_seldom = |&block: &Block| count_of(weights, block) <= warm_count_max;
            let is_warm = group.hot.iter().all(is_seldom) && entered(weights, group.func) <= warm_count_max;
            (if is_warm { &mut warm } else { &mut hot }).push(fragment(group.func, Temperature::Hot, &group.hot));
        }
        if !group.warm.is_empty() {
            warm.push(fragment(group.func, Temperature::Hot, &group.warm));
        }
        if !group.cold.is_empty() {
            cold.push(fragment(group.func, Temperature::Cold, &group.cold));
        }
    }
    let order = |fragments: Vec<FragmentPlan>| {
        if options.reorder_functions {
            functions::order(program, weights, (edits, &options.folded), fragments)
        } else {
            by_address(program, fragments)
        }
    };
    let mut fragments = order(hot);
    fragments.extend(order(warm));
    let cold = cold::order(program, &fragments, cold);
    fragments.extend(cold);
    align::apply(program, weights, options, busy_count_min, &mut fragments);
    let busy_min = least_count_of_share(program, weights, BUSY_SHARE_LEFT);
    let saved_min = saved_min_per_byte(program, weights, busy_min);
    if options.duplicate_tails {
        let least = least_count_of_share(program, weights, DUPLICATE_SHARE_LEFT);
        let budget = Budget::per_mille(program, options.duplicate_per_mille_max, saved_min);
        duplicate::apply(program, weights, least, budget, &mut fragments);
    }
    if options.unroll_loops {
        let budget = Budget::per_mille(program, options.unroll_per_mille_max, saved_min);
        unroll::apply(program, weights, busy_count_min, budget, &mut fragments);
    }
    let mut plan = LayoutPlan { fragments, ..LayoutPlan::default() };
    plan.fold(options.folded.clone());
    plan
}

/// The layout of the input: every movable function, a fragment for each of its code ranges, all in input order.
pub fn original(program: &Program) -> LayoutPlan {
    let movable = program.funcs.iter().filter(|(_, data)| data.is_movable());
    let ranges = |(func, data): (Func, &lifter::ir::FuncData)| {
        let blocks: Vec<Block> = data.blocks.iter().collect();
        let same_range = |a: &Block, b: &Block| program.blocks[*a].range == program.blocks[*b].range;
        blocks.chunk_by(same_range).map(|run| fragment(func, Temperature::Unknown, run)).collect::<Vec<_>>()
    };
    let mut fragments = by_address(program, movable.flat_map(ranges).collect());
    align::keep(program, &mut fragments);
    LayoutPlan { fragments, ..LayoutPlan::default() }
}

/// The layout of the input with no byte between its blocks that no one asks for. What an optimizer with a profile has told from what did not run keeps its order, before all else.
pub fn packed(program: &Program) -> LayoutPlan {
    let mut plan = original(program);
    align::demand(program, &mut plan.fragments);
    if program.blocks.values().any(|data| data.flags.contains(BlockFlags::COLD)) {
        let is_cold = |fragment: &FragmentPlan| {
            fragment.blocks.first().is_some_and(|first| program.blocks[first.block].flags.contains(BlockFlags::COLD))
        };
        plan.fragments.sort_by_key(is_cold);
        let num_hot = plan.fragments.partition_point(|fragment| !is_cold(fragment));
        plan.fragments[..num_hot].iter_mut().for_each(|fragment| fragment.temperature = Temperature::Hot);
    }
    plan
}

fn fragment(func: Func, temperature: Temperature, blocks: &[Block]) -> FragmentPlan {
    let blocks = blocks.iter().map(|&block| PlannedBlock { block, align: 1, copy: None }).collect();
    FragmentPlan { func, temperature, align: 1, blocks, clone: None }
}

fn by_address(program: &Program, mut fragments: Vec<FragmentPlan>) -> Vec<FragmentPlan> {
    fragments.sort_by_key(|fragment| fragment.blocks.first().map(|first| (program.blocks[first.block].start, first.block)));
    fragments
}

fn count_of(weights: &Weights, block: Block) -> u64 {
    weights.blocks.get(block.index()).copied().unwrap_or(0)
}

/// How often a function was entered of which nothing else is known.
fn entered(weights: &Weights, func: Func) -> u64 {
    let known = weights.entered.binary_search_by_key(&func, |&(known, _)| known);
    known.map_or(0, |index| weights.entered[index].1)
}

/// How often a fragment is entered at its first block.
fn entries_of(weights: &Weights, fragment: &FragmentPlan) -> u64 {
    let first = fragment.blocks.first().map_or(0, |first| count_of(weights, first.block));
    if first == 0 { entered(weights, fragment.func) } else { first }
}

/// Blocks by unwind class, classes and blocks in the order in which they come.
pub(crate) fn blocks_by_class(program: &Program, blocks: impl Iterator<Item = Block>) -> Vec<Vec<Block>> {
    let mut classes: Vec<(u32, Vec<Block>)> = Vec::new();
    for block in blocks {
        let class = program.ranges[program.blocks[block].range as usize].unwind_class;
        match classes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, blocks)) => blocks.push(block),
            None => classes.push((class, vec![block])),
        }
    }
    classes.into_iter().map(|(_, blocks)| blocks).collect()
}

/// Lays out one function; the group with the entry comes first.
fn groups_of(program: &Program, weights: &Weights, options: &LayoutOptions, warm_count_max: u64, func: Func) -> Vec<Group> {
    let data = &program.funcs[func];
    let is_hot = |block: Block| count_of(weights, block) > options.cold_count_max;
    let has_run = data.blocks.iter().any(is_hot);
    // The primary range may lie behind a cold one.
    let (primary, other): (Vec<Block>, Vec<Block>) =
        data.blocks.iter().partition(|&block| program.blocks[block].range == data.primary_range);
    let in_order = primary.into_iter().chain(other);
    if !has_run {
        // Of a function that was entered nobody knows which way it went: it stays whole, but for what the compiler had split off.
        let is_hot = |block: &Block| entered(weights, func) > 0 && program.blocks[*block].range == data.primary_range;
        let group = |blocks: Vec<Block>| {
            let (hot, cold) = blocks.into_iter().partition(is_hot);
            Group { func, hot, warm: Vec::new(), cold }
        };
        return blocks_by_class(program, in_order).into_iter().map(group).collect();
    }
    let entry_first = std::iter::once(data.entry).chain(in_order.filter(|&block| block != data.entry));
    let group = |blocks: Vec<Block>| {
        let (mut hot, cold): (Vec<Block>, Vec<Block>) =
            blocks.into_iter().partition(|&block| is_hot(block) || block == data.entry);
        let mut warm = Vec::new();
        if options.reorder_blocks {
            let graph = block_graph(program, weights, func, &hot);
            let order = chains::order(&graph);
            let is_warm: Vec<bool> =
                hot.iter().map(|&block| block != data.entry && count_of(weights, block) <= warm_count_max).collect();
            let (busy, seldom) = split::apart(&graph, &order, &is_warm);
            let blocks_of = |nodes: Vec<u32>| nodes.into_iter().map(|node| hot[node as usize]).collect();
            (hot, warm) = (blocks_of(busy), blocks_of(seldom));
        }
        Group { func, hot, warm, cold }
    };
    blocks_by_class(program, entry_first).into_iter().map(group).collect()
}

/// The jumps among some blocks of a function.
fn block_graph(program: &Program, weights: &Weights, func: Func, blocks: &[Block]) -> BlockGraph {
    let data = &program.funcs[func];
    let first = data.blocks.as_usize().start;
    let mut nodes: Vec<Option<u32>> = vec![None; data.blocks.len()];
    for (node, &block) in (0..).zip(blocks) {
        nodes[block.index() - first] = Some(node);
    }
    let node_of = |block: Block| block.index().checked_sub(first).and_then(|local| nodes.get(local).copied().flatten());
    let mut jumps = Vec::new();
    for (source, &block) in (0..).zip(blocks) {
        let terminator = &program.blocks[block].terminator;
        for edge in program.blocks[block].edges.as_usize() {
            let Some(target) = node_of(program.edges[edge].target) else { continue };
            let kind = jump_kind(terminator, program.edges[edge].kind);
            jumps.push(Jump { source, target, count: weights.edges.get(edge).copied().unwrap_or(0), kind });
        }
    }
    let sizes = blocks.iter().map(|&block| program.blocks[block].len).collect();
    let counts = blocks.iter().map(|&block| count_of(weights, block)).collect();
    BlockGraph::new(sizes, counts, jumps, node_of(data.entry))
}

fn jump_kind(terminator: &Terminator, edge: EdgeKind) -> JumpKind {
    // A branch to its own next block is emitted all the same.
    let is_idle = matches!(terminator, Terminator::Branch { taken, next, .. } if *taken == CodeTarget::Block(*next));
    match (terminator, edge) {
        (_, EdgeKind::Table | EdgeKind::Computed) | (Terminator::Loop { .. }, EdgeKind::Taken) => JumpKind::Indirect,
        (_, EdgeKind::Taken) if is_idle => JumpKind::Indirect,
        (Terminator::Branch { .. } | Terminator::Loop { .. }, _) => JumpKind::Conditional,
        (Terminator::Fallthrough { .. } | Terminator::Jump { .. } | Terminator::Stop(_), _) => JumpKind::Unconditional,
    }
}

/// The least count of the blocks that make up 99 % of the executed instructions.
fn busy_count_min(program: &Program, weights: &Weights) -> u64 {
    least_count_of_share(program, weights, IDLE_SHARE)
}

/// Blocks that ran at most this often make up `share` of the executed instructions.
fn warm_count_max(program: &Program, weights: &Weights, share: u64) -> u64 {
    if share == 0 { 0 } else { least_count_of_share(program, weights, share).saturating_sub(1) }
}

/// The least count of the blocks that make up all but `share` of the executed instructions.
pub(crate) fn least_count_of_share(program: &Program, weights: &Weights, share: u64) -> u64 {
    let executed = |(block, data): (Block, &lifter::ir::BlockData)| {
        let count = count_of(weights, block);
        (count != 0).then_some((count, u128::from(count) * u128::from(data.num_insts)))
    };
    let mut blocks: Vec<(u64, u128)> = program.blocks.iter().filter_map(executed).collect();
    blocks.sort_unstable_by(|a, b| b.cmp(a));
    let total: u128 = blocks.iter().map(|&(_, insts)| insts).sum();
    let mut covered = 0;
    for (count, insts) in blocks {
        covered += insts;
        if covered * u128::from(WHOLE) >= total * u128::from(WHOLE - share.min(WHOLE)) {
            return count;
        }
    }
    1
}

/// What is left of the executed instructions by the code that is called busy here, in hundred thousandths: blocks that execute less than that, taken together, are not worth a change.
pub(crate) const BUSY_SHARE_LEFT: u64 = 1000;
/// The executed instructions of which a byte of busy code saves or costs this share are worth it, in thousandths: more of it is more to fetch.
const SAVED_PER_MILLE: u64 = 25;

/// How many executed instructions or taken branches less a byte must bring that is added to busy code: a share of what a byte of it executes on average.
/// `least` is the least count of a busy block.
pub(crate) fn saved_min_per_byte(program: &Program, weights: &Weights, least: u64) -> u64 {
    let busy = program.blocks.iter().filter(|(block, _)| count_of(weights, *block) >= least);
    let (insts, bytes) = busy.fold((0u128, 0u128), |(insts, bytes), (block, data)| {
        (insts + u128::from(count_of(weights, block)) * u128::from(data.num_insts), bytes + u128::from(data.len))
    });
    (insts * u128::from(SAVED_PER_MILLE)).checked_div(bytes * 1000).map_or(0, |least| u64::try_from(least).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
