//! What is inserted into code: the plan of an instrumentation.
//!
//! An insertion has a length that is known before any address is, and bytes that are made once addresses are (`Snippet` says of
//! what). Insertions sit before the instruction at their offset; insertions on an edge get a block of their own.

use lifter::entity::Block;

/// What the inserted bytes do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Snippet {
    /// Increment a counter.
    Counter { index: u32, preserve_flags: bool },
    /// Record the target of the indirect call or jump that follows.
    RecordCall { site: u32 },
}

/// Bytes before the instruction at `offset` of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BlockInsertion {
    pub block: Block,
    /// From the block's start; an instruction boundary.
    pub offset: u32,
    /// In bytes.
    pub len: u32,
    pub snippet: Snippet,
}

/// Bytes on the way from one block to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EdgeInsertion {
    /// Into `Program::edges`; a `Fallthrough` or `Taken` edge.
    pub edge: u32,
    pub len: u32,
    pub snippet: Snippet,
}

/// All insertions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EditPlan {
    /// Ascending by block, then offset.
    pub blocks: Vec<BlockInsertion>,
    /// Ascending by edge.
    pub edges: Vec<EdgeInsertion>,
}

impl EditPlan {
    pub fn insertions_of(&self, block: Block) -> &[BlockInsertion] {
        let first = self.blocks.partition_point(|i| i.block < block);
        let count = self.blocks[first..].partition_point(|i| i.block == block);
        &self.blocks[first..first + count]
    }
    pub fn insertion_on(&self, edge: u32) -> Option<&EdgeInsertion> {
        self.edges.binary_search_by_key(&edge, |i| i.edge).ok().map(|found| &self.edges[found])
    }
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.edges.is_empty()
    }
}
