//! What all that copy blocks have in common: how a block ends where it stands, what a copy is worth per byte, and how many bytes there are.

use std::cmp::Reverse;

use lifter::entity::Block;
use lifter::ir::Program;
use profiles::Weights;

use crate::terminator::{Execution, SuccessorCounts, emit_weighted};

/// How often the parts of the terminator run that `block` has before `following`.
pub(super) fn execution_before(program: &Program, weights: &Weights, block: Block, following: Option<Block>) -> Execution {
    let counts = SuccessorCounts::of(program, weights, block);
    let terminator = &program.blocks[block].terminator;
    Execution::of(emit_weighted(terminator, following, counts), terminator, counts)
}

/// Sorts what saves most per byte first.
pub(super) fn by_savings(saved: u64, bytes: u32) -> Reverse<u128> {
    Reverse(u128::from(saved) * 1024 / u128::from(bytes.max(1)))
}

/// Bytes that copies may still take, and what each must bring.
#[derive(Copy, Clone, Debug)]
pub(super) struct Budget {
    left: u64,
    saved_min_per_byte: u64,
}

impl Budget {
    /// So many thousandths of the bytes of movable code.
    pub(super) fn per_mille(program: &Program, per_mille: u64, saved_min_per_byte: u64) -> Self {
        let movable = program.blocks.values().filter(|block| program.funcs[block.func].is_movable());
        let left = movable.map(|block| u64::from(block.len)).sum::<u64>().saturating_mul(per_mille) / 1000;
        Self { left, saved_min_per_byte }
    }

    /// Takes this many, if they are there and save enough.
    pub(super) fn take(&mut self, bytes: u32, saved: u64) -> bool {
        let is_worth_it = saved >= self.saved_min_per_byte.saturating_mul(u64::from(bytes));
        let rest = self.left.checked_sub(u64::from(bytes)).filter(|_| is_worth_it);
        self.left = rest.unwrap_or(self.left);
        rest.is_some()
    }
}
