//! Which blocks have to be looked at again when something changes at another: a relation of blocks, flattened.

use lifter::entity::{Block, EntityId};
use rayon::prelude::*;

/// By block, those that ask for what is known of it.
#[derive(Debug)]
pub(crate) struct Dependents {
    starts: Vec<u32>,
    blocks: Vec<Block>,
}

impl Dependents {
    /// From pairs of a block and one that asks for it, in any order and any number of times.
    pub(crate) fn from_pairs(num_blocks: usize, mut pairs: Vec<(Block, Block)>) -> Self {
        pairs.par_sort_unstable();
        pairs.dedup();
        let mut starts = vec![0u32; num_blocks + 1];
        for (target, _) in &pairs {
            starts[target.index() + 1] += 1;
        }
        for index in 0..num_blocks {
            starts[index + 1] += starts[index];
        }
        Dependents { starts, blocks: pairs.into_iter().map(|(_, block)| block).collect() }
    }

    pub(crate) fn of(&self, block: Block) -> &[Block] {
        &self.blocks[self.starts[block.index()] as usize..self.starts[block.index() + 1] as usize]
    }
}
