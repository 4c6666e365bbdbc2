//! What a profile says of a lifted program once its flow is consistent: how often each block and edge runs.

use lifter::entity::{Block, Func};

/// The targets seen at one indirect call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectTargets {
    pub block: Block,
    /// Of the call instruction's last byte + 1 (the return address), from the block's start.
    pub return_offset: u32,
    /// Most frequent first.
    pub targets: Vec<(Func, u64)>,
    /// Calls whose target is outside the image or was not recorded for want of room.
    pub other: u64,
}

/// Execution counts by block and by edge, indexed like `Program::blocks` and `Program::edges`.
///
/// Invariant: the counts of a block's incoming edges add up to its own, unless execution may come to it from outside its function (an entry, a
/// landing pad, a block whose address is taken): then to at most that. Likewise those of its outgoing edges, unless execution may leave the
/// function at its end. `flow::FlowGraph` says which blocks these are; `infer::first_inconsistent` checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    pub blocks: Vec<u64>,
    pub edges: Vec<u64>,
    pub indirect: Vec<IndirectTargets>,
}

impl Weights {
    /// Nothing known: all counts zero.
    pub fn none(num_blocks: usize, num_edges: usize) -> Self {
        Self { blocks: vec![0; num_blocks], edges: vec![0; num_edges], indirect: Vec::new() }
    }
    pub fn has_counts(&self) -> bool {
        self.blocks.iter().any(|&count| count != 0)
    }
}
