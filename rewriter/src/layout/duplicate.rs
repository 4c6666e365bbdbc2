//! Tail duplication: a hot jump to a few instructions that leave the function is replaced by a copy of them.
//!
//! **Problem.** Compilers share epilogues and, in interpreters, the dispatch (`fetch; jmp *table`), so that hot paths end in a jump to it. Only one
//! path can run into the shared block; all others pay a taken branch, and the one indirect jump has to predict for all of them.
//!
//! **Method.** After layout, wherever a block still ends in a jump that runs often, or in a branch that is mostly taken, follow the target along the more frequent
//! successors. If that ends, within `CHAIN_BYTES_MAX`, in a return, an indirect jump or a jump out of the function, copy the chain behind the block;
//! its branches lead from the copy to the originals of what they leave the chain for. The jumps with the most executions saved per byte come first,
//! until the budget is used up.
//!
//! **Why it is safe.** A copy is the same instructions with the same references, entered from the one place that jumped to the original. The
//! original stays for everyone else. Unwind rows and call sites follow the input addresses that both stand for.
//!
//! **Why it pays.** A taken branch less for each execution of the jump, at a cost in bytes that is bounded and only spent on code that runs often.
//! (Mueller and Whalley, "Avoiding unconditional jumps by code replication", PLDI 1992.)

use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program, StopKind, Terminator};
use profiles::Weights;

use super::copies::{Budget, by_savings, execution_before};
use crate::plan::{FragmentPlan, PlannedBlock, Times};
use crate::terminator::SuccessorCounts;

/// The longest chain worth copying.
const CHAIN_BYTES_MAX: u32 = 64;
const CHAIN_BLOCKS_MAX: usize = 6;

/// A jump that may be replaced.
struct Candidate {
    /// Position of the fragment and, in it, of the block that ends in the jump.
    fragment: usize,
    position: usize,
    /// Taken branches.
    saved: u64,
    bytes: u32,
    /// Each block to copy, with how often that copy is expected to run.
    chain: Vec<(Block, u64)>,
}

/// Copies tails behind jumps that run at least `busy_count_min` times, within a budget.
pub(super) fn apply(
    program: &Program,
    weights: &Weights,
    busy_count_min: u64,
    mut budget: Budget,
    fragments: &mut [FragmentPlan],
) {
    let mut candidates = Vec::new();
    for (index, fragment) in fragments.iter().enumerate() {
        for position in 0..fragment.blocks.len() {
            candidates.extend(candidate(program, weights, busy_count_min, fragment, index, position));
        }
    }
    // Most executions saved per byte first; equal ones in output order.
    candidates.sort_by_key(|c| (by_savings(c.saved, c.bytes), c.fragment, c.position));
    candidates.retain(|c| budget.take(c.bytes, c.saved));
    insert(fragments, candidates);
}

fn candidate(
    program: &Program,
    weights: &Weights,
    busy_count_min: u64,
    fragment: &FragmentPlan,
    index: usize,
    position: usize,
) -> Option<Candidate> {
    let block = fragment.blocks[position].block;
    let following = fragment.blocks.get(position + 1).map(|next| next.block);
    let terminator = &program.blocks[block].terminator;
    let execution = execution_before(program, weights, block, following);
    // How often the copy is entered, and how many taken branches that saves.
    let (target, count, saved) = match (execution.jump, execution.conditional) {
        (Some((target, count)), _) => (target, count, count),
        // What ran on is jumped to once the branch is inverted.
        (None, Some(branch)) if matches!(terminator, Terminator::Branch { .. }) => {
            (branch.target, branch.taken, branch.taken.saturating_sub(branch.not_taken))
        }
        _ => return None,
    };
    if saved < busy_count_min.max(1) {
        return None;
    }
    let CodeTarget::Block(target) = target else { return None };
    let chain = chain(program, weights, block, target, count)?;
    let bytes = chain.iter().map(|&(b, _)| program.blocks[b].len).sum();
    Some(Candidate { fragment: index, position, saved, bytes, chain })
}

/// The blocks from `target` to where control leaves the function, if that is near; `count` is how often the copy is entered.
fn chain(program: &Program, weights: &Weights, from: Block, target: Block, mut count: u64) -> Option<Vec<(Block, u64)>> {
    let class_of = |block: Block| program.ranges[program.blocks[block].range as usize].unwind_class;
    let func = program.func_of(from);
    let mut chain: Vec<(Block, u64)> = Vec::new();
    let (mut block, mut bytes) = (target, 0);
    loop {
        let data = &program.blocks[block];
        bytes += data.len;
        let is_elsewhere = data.func != func || class_of(block) != class_of(from);
        let is_only_one = data.flags.contains(BlockFlags::KNOWN_BY_FAULT);
        let comes_back = block == from || chain.iter().any(|&(known, _)| known == block);
        if is_elsewhere || is_only_one || comes_back || bytes > CHAIN_BYTES_MAX || chain.len() == CHAIN_BLOCKS_MAX {
            return None;
        }
        chain.push((block, count));
        match data.terminator {
            Terminator::Stop(StopKind::Return | StopKind::ComputedJump | StopKind::TableJump(_) | StopKind::IndirectTailCall) => {
                return Some(chain);
            }
            Terminator::Jump { target: CodeTarget::Block(next) } if program.func_of(next) != func => return Some(chain),
            Terminator::Jump { target: CodeTarget::Fixed(_) } => return Some(chain),
            Terminator::Jump { target: CodeTarget::Block(next) } | Terminator::Fallthrough { next } => block = next,
            Terminator::Branch { taken: CodeTarget::Block(taken), next, .. } => {
                let counts = SuccessorCounts::of(program, weights, block);
                let (more, frequent) = if counts.taken > counts.next { (taken, counts.taken) } else { (next, counts.next) };
                let all = counts.taken.saturating_add(counts.next).max(1);
                count = (u128::from(count) * u128::from(frequent) / u128::from(all)) as u64;
                block = more;
            }
            Terminator::Branch { .. } | Terminator::Loop { .. } | Terminator::Stop(_) => return None,
        }
    }
}

fn insert(fragments: &mut [FragmentPlan], mut candidates: Vec<Candidate>) {
    candidates.sort_by_key(|c| (c.fragment, c.position));
    for group in candidates.chunk_by(|a, b| a.fragment == b.fragment) {
        let old = std::mem::take(&mut fragments[group[0].fragment].blocks);
        let mut wanted = group.iter().peekable();
        let mut blocks = Vec::with_capacity(old.len() + 2 * group.len());
        for (position, planned) in old.into_iter().enumerate() {
            blocks.push(planned);
            if let Some(candidate) = wanted.next_if(|c| c.position == position) {
                let copy = |&(block, count): &(Block, u64)| PlannedBlock { block, align: 1, copy: Some(Times::new(count)) };
                blocks.extend(candidate.chain.iter().map(copy));
            }
        }
        fragments[group[0].fragment].blocks = blocks;
    }
}
