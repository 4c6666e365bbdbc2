//! Which blocks are in loops: what is added there is executed over and over.
//!
//! **Method.** A block is in a loop if a way leads from it back to it, inside its function: strongly connected components of the blocks, by all ways that are known, jump tables and computed
//! `goto`s among them. What leaves a loop for good, as an error path does, is in none, wherever it stands. Ways by exceptions and by recursion don't count.
//!
//! **Termination.** Tarjan's algorithm, once for each function.

use analysis::graph::Components;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::Program;
use rayon::prelude::*;

/// The blocks that are in loops.
pub(crate) fn in_loops(program: &Program) -> SecondaryMap<Block, bool> {
    let funcs: Vec<Func> = program.funcs.keys().collect();
    let looping: Vec<Vec<Block>> = funcs.par_iter().map(|&func| looping_blocks(program, func)).collect();
    let mut is_looping = SecondaryMap::new(program.blocks.len(), false);
    looping.into_iter().flatten().for_each(|block| is_looping[block] = true);
    is_looping
}

fn looping_blocks(program: &Program, func: Func) -> Vec<Block> {
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
    let looping = components.members.iter().filter(is_loop).flatten();
    looping.map(|&block| Block::new(blocks.start + block as usize)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{End::*, ProgramBuilder, TestBlock};

    fn looping(blocks: &[TestBlock]) -> Vec<usize> {
        let program = ProgramBuilder::default().func(blocks.to_vec()).build();
        in_loops(&program).iter().filter(|(_, is_looping)| **is_looping).map(|(block, _)| block.index()).collect()
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
