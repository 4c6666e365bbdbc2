//! The blocks in which most instructions are executed, as bytes: what tools that judge code on its own want.

use std::fmt::Write as _;
use std::process::ExitCode;

use lifter::entity::{Block, EntityId};
use profiles::Weights;
use serde_json::json;

use super::super::{Style, print, print_json};
use crate::driver::Lifted;
use crate::failure::Result;
use crate::timing::Timing;

pub(super) fn run(lifted: &Lifted<'_>, weights: &Weights, count: usize, style: Style, timing: &Timing) -> Result<ExitCode> {
    let Lifted { image, program } = lifted;
    let executed = |block: Block| weights.blocks.get(block.index()).copied().unwrap_or(0);
    let instructions = |block: Block| u128::from(executed(block)) * u128::from(program.blocks[block].num_insts);
    let mut blocks: Vec<Block> = program.blocks.keys().filter(|&block| executed(block) > 0).collect();
    blocks.sort_by_key(|&block| (std::cmp::Reverse(instructions(block)), block));
    blocks.truncate(count);
    timing.finish();
    let hex = |block: Block| {
        let data = &program.blocks[block];
        let bytes = image.read(data.start, data.len as usize).unwrap_or_default();
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    };
    if style.json {
        let all: Vec<_> = blocks
            .iter()
            .map(|&b| json!({ "address": program.blocks[b].start.0, "executions": executed(b), "bytes": hex(b) }))
            .collect();
        print_json(&all)?;
    } else {
        let line = |&b: &Block| format!("{} {:>14} {}\n", program.blocks[b].start, executed(b), hex(b));
        print(&blocks.iter().map(line).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}
