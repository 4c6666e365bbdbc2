//! Which blocks are in loops: what is added there is executed over and over, and in a short one is much of what is executed.
//!
//! **Method.** A block is in a loop if a way leads from it back to it, inside its function: strongly connected components of the blocks, by all ways that are known, jump tables and computed
//! `goto`s among them. What leaves a loop for good, as an error path does, is in none, wherever it stands. Ways by exceptions and by recursion don't count. The loop is short for the block if
//! less is executed on the shortest of these ways than [`LOOP_MIN`]: then a jump more is a large share of it.
//!
//! **Termination.** Tarjan's algorithm, once for each function; from each block a search of ways that are shorter than the limit, so of few blocks.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use analysis::graph::Components;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::Program;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::executed::work_of;

/// Instructions that a loop executes at least which is not short: a jump more is 1 % of them at most. With 24, as for functions, `perl` and `mawk` execute 1.8 and 1.7 % more than before they were shrunk,
/// with 128 as much as if no loop were touched, 1.5 and 1.0 %.
const LOOP_MIN: u32 = 128;

/// The blocks that are in loops.
pub(crate) fn in_loops(program: &Program) -> SecondaryMap<Block, bool> {
    in_loops_below(program, u32::MAX)
}

/// The blocks that are in short loops.
pub(crate) fn in_short_loops(program: &Program) -> SecondaryMap<Block, bool> {
    in_loops_below(program, LOOP_MIN)
}

/// The blocks that are in loops in which less than so many instructions are executed.
fn in_loops_below(program: &Program, limit: u32) -> SecondaryMap<Block, bool> {
    let funcs: Vec<Func> = program.funcs.keys().collect();
    let looping: Vec<Vec<Block>> = funcs.par_iter().map(|&func| looping_blocks(program, func, limit)).collect();
    let mut is_looping = SecondaryMap::new(program.blocks.len(), false);
    looping.into_iter().flatten().for_each(|block| is_looping[block] = true);
    is_looping
}

fn looping_blocks(program: &Program, func: Func, limit: u32) -> Vec<Block> {
    let blocks = program.funcs[func].blocks.as_usize();
    let (mut targets, mut ends): (Vec<u32>, Vec<usize>) = (Vec::new(), Vec::with_capacity(blocks.len()));
    for block in blocks.clone() {
        let edges = &program.edges[program.blocks[Block::new(block)].edges.as_usize()];
        let inside = edges.iter().map(|edge| edge.target.index()).filter(|target| blocks.contains(target));
        targets.extend(inside.map(|target| (target - blocks.start) as u32));
        ends.push(targets.len());
    }
    let successors = |block: u32| {
        let start = (block as usize).checked_sub(1).map_or(0, |before| ends[before]);
        &targets[start..ends[block as usize]]
    };
    let components = Components::find(blocks.len(), successors);
    let is_loop = |members: &&Vec<u32>| members.len() > 1 || members.iter().any(|&block| successors(block).contains(&block));
    let work = |block: u32| work_of(program, Block::new(blocks.start + block as usize));
    let is_below = |block: &&u32| limit == u32::MAX || is_below(**block, limit, work, successors);
    let looping = components.members.iter().filter(is_loop).flatten().filter(is_below);
    looping.map(|&block| Block::new(blocks.start + block as usize)).collect()
}

/// Whether a way leads from a block back to it on which less than `limit` instructions are executed.
fn is_below<'a>(block: u32, limit: u32, work: impl Fn(u32) -> u32, successors: impl Fn(u32) -> &'a [u32]) -> bool {
    let mut least: FxHashMap<u32, u32> = FxHashMap::default();
    let mut queue = BinaryHeap::from([Reverse((work(block), block))]);
    while let Some(Reverse((executed, at))) = queue.pop() {
        if executed >= limit {
            return false;
        }
        for &next in successors(at) {
            if next == block {
                return true;
            }
            let executed = executed + work(next);
            let known = least.entry(next).or_insert(u32::MAX);
            if executed < *known {
                *known = executed;
                queue.push(Reverse((executed, next)));
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    fn looping(blocks: &[TestBlock]) -> Vec<usize> {
        found(blocks, in_loops)
    }

    fn found(blocks: &[TestBlock], find: impl Fn(&Program) -> SecondaryMap<Block, bool>) -> Vec<usize> {
        let program = ProgramBuilder::default().func(blocks.to_vec()).build();
        find(&program).iter().filter(|(_, is_looping)| **is_looping).map(|(block, _)| block.index()).collect()
    }

    #[test]
    fn blocks_from_which_a_way_leads_back_are_in_loops() {
        assert_eq!(looping(&[TestBlock::new(4, Fallthrough), TestBlock::new(4, Branch(1)), TestBlock::new(4, Return)]), [1]);
        let outer = [
            TestBlock::new(4, Fallthrough),
            TestBlock::new(4, Fallthrough),
            TestBlock::new(4, Branch(1)),
            TestBlock::new(4, Return),
        ];
        assert_eq!(looping(&outer), [1, 2]);
    }

    #[test]
    fn a_loop_of_many_instructions_is_not_short_but_one_inside_of_it_may_be() {
        // Four bytes an instruction.
        let around =
            |len: u32| [TestBlock::new(4 * len, Fallthrough), TestBlock::new(8, Branch(1)), TestBlock::new(4, Branch(0))];
        assert_eq!(found(&around(LOOP_MIN - 4), in_short_loops), [0, 1, 2]);
        assert_eq!(found(&around(LOOP_MIN - 3), in_short_loops), [1]);
        assert_eq!(looping(&around(LOOP_MIN - 3)), [0, 1, 2]);
    }

    #[test]
    fn what_only_jumps_back_and_what_leaves_a_loop_is_in_none() {
        // A branch to the function's end, from where a jump leads back without a way around.
        let back = [TestBlock::new(4, Branch(2)), TestBlock::new(4, Return), TestBlock::new(4, Jump(1))];
        assert_eq!(looping(&back), []);
        // A loop of two blocks, and an error path between them.
        let error =
            [TestBlock::new(4, Branch(2)), TestBlock::new(9, Return), TestBlock::new(4, Branch(0)), TestBlock::new(4, Return)];
        assert_eq!(looping(&error), [0, 2]);
    }
}
