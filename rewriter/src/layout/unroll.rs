//! Loop unrolling by copies: the blocks of a short hot loop are repeated behind it, so that most of its rounds end by running on.
//!
//! **Problem.** However a loop is laid out, each round ends in a taken branch. In programs that spend their time in short loops (compressors,
//! parsers, searches) these are most of what block order leaves.
//!
//! **Method.** After layout, look for a block that jumps back to one before it in the same fragment, with nothing but the loop's own blocks
//! between. Copies of what a round runs through are put behind it. The branch at its end is inverted by the rule that makes all terminators: what it jumped
//! to now follows. The last copy jumps back to the original. Loops with the most branches saved per byte come first, until the
//! budget is used up.
//!
//! **Why it is safe.** A copy is the same instructions with the same references, run into from the one block that jumped to the original.
//! Branches out of a copy lead to the originals. No instruction is added or taken away but jumps.
//!
//! **Why it pays.** With `n` copies, `n` of `n + 1` rounds end without a taken branch; leaving the loop costs one where it would have run on. So only
//! loops that go round several times for each time they are left are taken. (Dynamic branches alone, as in
//! Davidson and Jinturkar, "Aggressive loop unrolling in a retargetable, optimizing compiler", CC 1996; no counters are merged.)

use lifter::entity::{Block, Func};
use lifter::ir::{BlockFlags, CodeTarget, Program, Terminator};
use profiles::Weights;
use rustc_hash::FxHashMap;

use super::copies::{Budget, by_savings, execution_before};
use super::count_of;
use crate::plan::{FragmentPlan, PlannedBlock, Times};

/// The longest loop that is copied, and how long it may get.
const LOOP_BYTES_MAX: u32 = 96;
const UNROLLED_BYTES_MAX: u32 = 160;
const COPIES_MAX: u32 = 3;
/// Rounds per exit.
const ROUNDS_MIN: u64 = 4;

/// A loop that may be copied.
struct Candidate {
    fragment: usize,
    /// Positions of the first and the last block of the stretch.
    first: usize,
    last: usize,
    /// The blocks of it that a round may run through without a jump: what a copy holds.
    body: Vec<Block>,
    copies: u32,
    bytes: u32,
    saved: u64,
    /// Rounds, and how often the last block leaves the loop.
    rounds: u64,
    exits: u64,
}

/// Copies loops that go round at least `busy_count_min` times, within a budget.
pub(super) fn apply(
    program: &Program,
    weights: &Weights,
    busy_count_min: u64,
    mut budget: Budget,
    fragments: &mut [FragmentPlan],
) {
    let mut candidates: Vec<Candidate> = Vec::new();
    for (index, fragment) in fragments.iter().enumerate() {
        if fragment.blocks.iter().any(|planned| count_of(weights, planned.block) >= busy_count_min) {
            candidates.extend(loops(program, weights, busy_count_min, fragment, index));
        }
    }
    candidates.sort_by_key(|c| (by_savings(c.saved, c.bytes), c.fragment, c.first));
    // Of nested or overlapping loops the one that saves more per byte.
    let mut taken: FxHashMap<usize, Vec<(usize, usize)>> = FxHashMap::default();
    candidates.retain(|c| {
        let known = taken.entry(c.fragment).or_default();
        let overlaps = known.iter().any(|&(first, last)| c.first <= last && first <= c.last);
        let fits = !overlaps && budget.take(c.bytes, c.saved);
        if fits {
            known.push((c.first, c.last));
        }
        fits
    });
    insert(weights, fragments, candidates);
}

/// The loops of a fragment that are worth copying.
fn loops<'a>(
    program: &'a Program,
    weights: &'a Weights,
    busy_count_min: u64,
    fragment: &'a FragmentPlan,
    index: usize,
) -> impl Iterator<Item = Candidate> + 'a {
    let blocks = &fragment.blocks;
    let positions: FxHashMap<Block, usize> = blocks
        .iter()
        .enumerate()
        .filter(|(_, planned)| planned.copy.is_none())
        .map(|(at, planned)| (planned.block, at))
        .collect();
    (0..blocks.len()).filter_map(move |last| {
        let following = blocks.get(last + 1).map(|planned| planned.block);
        let (target, rounds, exits, is_jump) = back_way(program, weights, blocks[last], following)?;
        let first = *positions.get(&target)?;
        let is_worth = rounds >= busy_count_min.max(1) && rounds / ROUNDS_MIN >= exits;
        if first > last || !is_worth || blocks[first..=last].iter().any(|planned| planned.copy.is_some()) {
            return None;
        }
        let body = run_through(program, &blocks[first..=last])?;
        let once: u32 = body.iter().map(|&block| program.blocks[block].len).sum();
        let is_only_one = body.iter().any(|&block| program.blocks[block].flags.contains(BlockFlags::KNOWN_BY_FAULT));
        if once == 0 || once > LOOP_BYTES_MAX || is_only_one || entered_within(program, weights, blocks, first, last) {
            return None;
        }
        let copies = (UNROLLED_BYTES_MAX / once).saturating_sub(1).clamp(1, COPIES_MAX);
        let (copies, rest) = (u64::from(copies), u64::from(copies) + 1);
        let lost = if is_jump { 0 } else { exits };
        let saved = (rounds / rest).saturating_mul(copies).saturating_sub(lost);
        let bytes = once * copies as u32;
        (saved > 0).then_some(Candidate {
            fragment: index,
            first,
            last,
            body,
            copies: copies as u32,
            bytes,
            saved,
            rounds,
            exits,
        })
    })
}

/// The blocks of a stretch that are run into one from the other, from the first to the last. What only a jump leads to is left out: in a copy
/// that jump goes to the original. `None` if the last is not among them.
fn run_through(program: &Program, stretch: &[PlannedBlock]) -> Option<Vec<Block>> {
    let mut body: Vec<Block> = Vec::with_capacity(stretch.len());
    for planned in stretch {
        let follows = |&before: &Block| program.block_edges(before).iter().any(|edge| edge.target == planned.block);
        if body.last().is_none_or(follows) {
            body.push(planned.block);
        }
    }
    (body.last() == stretch.last().map(|planned| &planned.block)).then_some(body)
}

/// Where the block at the end of a stretch jumps to, how often, how often not, and whether by a jump without a condition.
fn back_way(
    program: &Program,
    weights: &Weights,
    planned: PlannedBlock,
    following: Option<Block>,
) -> Option<(Block, u64, u64, bool)> {
    let terminator = &program.blocks[planned.block].terminator;
    let execution = execution_before(program, weights, planned.block, following);
    let (target, rounds, exits, is_jump) = match (execution.jump, execution.conditional) {
        (Some((target, count)), None) => (target, count, 0, true),
        (None, Some(branch)) if matches!(terminator, Terminator::Branch { .. }) => {
            (branch.target, branch.taken, branch.not_taken, false)
        }
        _ => return None,
    };
    match target {
        CodeTarget::Block(target) if planned.copy.is_none() => Some((target, rounds, exits, is_jump)),
        CodeTarget::Block(_) | CodeTarget::Fixed(_) => None,
    }
}

/// Whether the busiest block of a stretch runs far more often than its end: an inner loop, which is a candidate of its own.
fn entered_within(program: &Program, weights: &Weights, blocks: &[PlannedBlock], first: usize, last: usize) -> bool {
    let func: Func = program.func_of(blocks[last].block);
    let end = count_of(weights, blocks[last].block);
    blocks[first..=last]
        .iter()
        .any(|planned| program.func_of(planned.block) != func || count_of(weights, planned.block) > end.saturating_mul(2))
}

fn insert(weights: &Weights, fragments: &mut [FragmentPlan], mut candidates: Vec<Candidate>) {
    candidates.sort_by_key(|c| (c.fragment, c.last));
    for group in candidates.chunk_by(|a, b| a.fragment == b.fragment) {
        let old = std::mem::take(&mut fragments[group[0].fragment].blocks);
        let mut wanted = group.iter().peekable();
        let mut blocks = Vec::with_capacity(old.len() + 8 * group.len());
        for (position, &planned) in old.iter().enumerate() {
            blocks.push(planned);
            if let Some(c) = wanted.next_if(|c| c.last == position) {
                for _ in 0..c.copies {
                    blocks.extend(c.body.iter().map(|&block| copy(weights, block, c)));
                }
            }
        }
        fragments[group[0].fragment].blocks = blocks;
    }
}

/// One copy of a block, with the share of the rounds that fall to it: of those that go on, one in so many.
fn copy(weights: &Weights, block: Block, candidate: &Candidate) -> PlannedBlock {
    let all = u128::from(candidate.rounds) + u128::from(candidate.exits);
    let parts = u128::from(candidate.copies) + 1;
    let share = u128::from(count_of(weights, block)) * u128::from(candidate.rounds) / (all.max(1) * parts);
    PlannedBlock { block, align: 1, copy: Some(Times::new(share as u64)) }
}
