//! Counts of blocks from plain samples.
//!
//! A sample says where the program was, so samples in a block grow with the time spent there: how often it ran, times how long it takes.
//! Dividing by the number of instructions takes out most of the second. The results are scaled so that a fraction of a sample is not
//! lost to rounding. Edges stay unknown.

use lifter::entity::EntityId;
use lifter::ir::Program;

use super::SampleQuality;
use crate::instrument::{Count, Counts};
use crate::samples::Samples;

/// What one sample in a block of one instruction counts.
const SCALE: u64 = 1000;

pub(super) fn count(program: &Program, samples: &Samples, quality: &mut SampleQuality) -> Counts {
    let mut by_block = vec![0u64; program.blocks.len()];
    let mut is_touched = vec![false; program.funcs.len()];
    for &(at, count) in &samples.addresses {
        if let Some(block) = program.block_containing(at) {
            by_block[block.index()] = by_block[block.index()].saturating_add(count);
            is_touched[program.func_of(block).index()] = true;
            quality.mapped = quality.mapped.saturating_add(count);
        }
    }
    let mut counts = Counts::unknown(program);
    for (block, data) in program.blocks.iter().filter(|(_, data)| is_touched[data.func.index()]) {
        let count = by_block[block.index()] * SCALE / u64::from(data.num_insts.max(1));
        counts.blocks[block.index()] = Count::new(i64::try_from(count).unwrap_or(i64::MAX / 4));
    }
    counts
}
