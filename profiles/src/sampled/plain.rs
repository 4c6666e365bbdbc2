//! Counts of blocks from plain samples, and how far each can be trusted.
//!
//! A sample says where the program was, so samples in a block grow with the time spent there: how often it ran, times how long it takes.
//! Dividing by the number of instructions takes out most of the second. The results are scaled so that a fraction of a sample is not
//! lost to rounding. Edges stay unknown.
//!
//! **Trust.** The number of samples in a block varies as a Poisson variable does, by its square root; and a block's instructions
//! take longer or shorter than the average, which is an error in proportion. Changing a count by one unit costs the inverse of the standard deviation
//! that follows: a long block with many samples is believed, a short one is not, and a block without any samples may well have run.

use lifter::entity::EntityId;
use lifter::ir::Program;

use super::SampleQuality;
use crate::instrument::{Count, Counts};
use crate::samples::Samples;

/// What one sample in a block of one instruction counts.
const SCALE: u64 = 1000;
/// How far time per instruction varies from block to block.
const LATENCY_ERROR: f64 = 0.3;
/// The cost of changing a count by its standard deviation.
const DEVIATION_COST: f64 = 4.0e6;
const COST_MAX: f64 = 20_000.0;
const COST_MIN: f64 = 8.0;

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
        costs[block.index()] = cost(seen as f64, len as f64);
    }
    (counts, costs)
}

fn cost(seen: f64, len: f64) -> u32 {
    let by_chance = (seen + 1.0).sqrt() / len;
    let by_latency = LATENCY_ERROR * seen / len;
    let deviation = SCALE as f64 * by_chance.hypot(by_latency);
    (DEVIATION_COST / deviation).clamp(COST_MIN, COST_MAX) as u32
}
