//! Which blocks have to be looked at again when something changes at another: a relation of blocks, flattened.

use lifter::entity::{Block, EntityId};

/// By block, those that ask for what is known of it.
#[derive(Debug)]
pub(crate) struct Dependents {
    starts: Vec<u32>,
    blocks: Vec<Block>,
}

impl Dependents {
    /// From pairs of a block and one that asks for it, in any order and any number of times.
    pub(crate) fn from_pairs(num_blocks: usize, pairs: &[(Block, Block)]) -> Self {
        let mut starts = vec![0u32; num_blocks + 1];
        for (target, _) in pairs {
            starts[target.index() + 1] += 1;
        }
        for index in 0..num_blocks {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        let mut blocks = vec![Block::new(0); pairs.len()];
        for &(target, block) in pairs {
            let place = &mut next[target.index()];
            blocks[*place as usize] = block;
            *place += 1;
        }
        Dependents { starts, blocks }
    }

    /// From a list for each block.
    pub(crate) fn listed(lists: impl Iterator<Item = impl AsRef<[Block]>>) -> Self {
        let (mut starts, mut blocks) = (vec![0u32], Vec::new());
        for list in lists {
            blocks.extend_from_slice(list.as_ref());
            starts.push(blocks.len() as u32);
        }
        Dependents { starts, blocks }
    }

    pub(crate) fn of(&self, block: Block) -> &[Block] {
        &self.blocks[self.starts[block.index()] as usize..self.starts[block.index() + 1] as usize]
    }
}
