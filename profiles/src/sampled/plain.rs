//! Counts of blocks from plain samples, and how far each can be trusted.
//!
//! A sample says where the program was, so samples in a block grow with the time spent there: how often it ran, times how long it takes.
//! Dividing by the number of instructions takes out most of the second. The results are scaled so that a fraction of a sample is not
//! lost to rounding. Edges stay unknown.
//!
//! **Trust.** An interrupt lands on whatever instruction the processor retires next, so that a short block may have many samples or none
//! whatever it does; over a long one this evens out. So changing a block's count by one costs in proportion to its length, up to the
//! length where nothing is gained any more. The absence of samples is worth more than their number: what never shows up
//! rarely runs. (That the number of samples varies by its square root matters less: trusting counts by it gave a
//! worse layout of Lua, −52 % instead of −64 % of its taken branches.)

use lifter::entity::EntityId;
use lifter::ir::Program;

use super::SampleQuality;
use crate::instrument::{Count, Counts};
use crate::samples::Samples;

/// What one sample in a block of one instruction counts.
const SCALE: u64 = 1000;
/// What changing the count of a block by one costs, for each instruction of it.
const COST_PER_INSTRUCTION: u32 = 10;
/// Blocks longer than this are trusted no more.
const TRUSTED_LEN_MAX: u32 = 8;

/// Counts, and by block the cost of changing its count by one.
pub(super) fn count(program: &Program, samples: &Samples, quality: &mut SampleQuality) -> (Counts, Vec<u32>) {
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
    let mut costs = vec![0; program.blocks.len()];
    for (block, data) in program.blocks.iter().filter(|(_, data)| is_touched[data.func.index()]) {
        let (seen, len) = (by_block[block.index()], u64::from(data.num_insts.max(1)));
        let count = seen.saturating_mul(SCALE) / len;
        counts.blocks[block.index()] = Count::new(i64::try_from(count).unwrap_or(i64::MAX / 4));
        costs[block.index()] = cost(seen, data.num_insts);
    }
    (counts, costs)
}

fn cost(seen: u64, len: u32) -> u32 {
    let cost = COST_PER_INSTRUCTION * len.clamp(1, TRUSTED_LEN_MAX);
    if seen == 0 { cost * 2 } else { cost }
}
