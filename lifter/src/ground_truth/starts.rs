//! Function symbols against the functions of the program, and the room of the jumps that *guard* mode leaves.

use crate::address::Va;
use crate::entity::Block;
use crate::ground_truth::{Comparison, GroundTruth};
use crate::ir::{BlockFlags, PinReason};

impl Comparison<'_> {
    pub(super) fn compare_starts(&self, truth: &mut GroundTruth) {
        let starts = self.oracle.starts();
        truth.num_starts = starts.len();
        let mut range_starts: Vec<Va> = self.program.ranges.iter().map(|r| r.start).collect();
        range_starts.sort();
        let is_found = |va: Va| {
            let block = self.program.block_at(va);
            let is_entered = block.is_some_and(|b| self.program.blocks[b].flags.contains(BlockFlags::ENTRY));
            is_entered || range_starts.binary_search(&va).is_ok()
        };
        truth.missed_starts = starts.iter().copied().filter(|&va| !is_found(va)).collect();
        let funcs = self.program.funcs.values().filter(|f| f.pin != Some(PinReason::LinkerSection));
        let entries = funcs.map(|f| self.program.blocks[f.entry].start);
        truth.num_extra_starts = entries.filter(|va| starts.binary_search(va).is_err()).count();
        if self.is_guard() {
            truth.crowded_anchors = self.crowded_anchors();
        }
    }

    /// Anchors of what moves behind which, within the bytes of a jump, another anchor or pinned code begins.
    fn crowded_anchors(&self) -> Vec<Va> {
        let program = self.program;
        let is_movable = |block: Block| program.funcs[program.func_of(block)].is_movable();
        let stays = |block: Block| !is_movable(block) || program.blocks[block].flags.contains(BlockFlags::ANCHOR);
        let order = &program.blocks_by_address;
        let mut crowded = Vec::new();
        for (index, &block) in order.iter().enumerate() {
            let data = &program.blocks[block];
            if !is_movable(block) || !data.flags.contains(BlockFlags::ANCHOR) {
                continue;
            }
            let end = data.start + data.anchor_len(self.oracle.image.has_ibt);
            let mut behind = order[index + 1..].iter().take_while(|&&b| program.blocks[b].start < end);
            if behind.any(|&b| stays(b)) {
                crowded.push(data.start);
            }
        }
        crowded
    }
}
