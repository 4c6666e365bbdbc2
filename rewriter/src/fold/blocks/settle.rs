//! Which of the blocks that are alike are worth sharing.
//!
//! **Method.** Of each group one stays: one that must, else one that is run into, which then needs no jump. What would cost too much time is kept; then what nothing
//! leads to any more goes; at last what costs more bytes than it saves is kept. Blocks that go and lead to each other are judged as one.

use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::Program;
use rustc_hash::FxHashMap;

use super::{BlockFolding, Order, ROW_BYTES, next_of, pays, successors};
use crate::fold::shares::{Reach, Shares};
use crate::plan::LayoutPlan;

/// Bytes of a jump, and by how much one grows whose target is far away.
const JUMP: i64 = 5;
const JUMP_GROWTH: i64 = 4;
/// Bytes of a run of blocks that are counted, at most: what is longer is worth any jump that may be.
const RUN_MAX: u32 = 200;
/// As far as a short jump reaches, less what layout may change.
const SHORT_REACH: u64 = 100;

/// What is decided on.
pub(super) struct View<'a> {
    pub(super) program: &'a Program,
    pub(super) plan: &'a LayoutPlan,
    pub(super) order: &'a Order,
    pub(super) may_go: &'a SecondaryMap<Block, bool>,
    /// How often the unwind row changes in a block.
    pub(super) num_rows: &'a SecondaryMap<Block, u32>,
    pub(super) shares: &'a Shares,
    pub(super) reach: Reach,
}

impl View<'_> {
    /// Of blocks with their hashes, ascending, those that are not worth a copy of their own.
    pub(super) fn settle(&self, alike: &[(u128, Block)]) -> BlockFolding {
        let mut settling = Settling { view: self, groups: Vec::new(), goes: SecondaryMap::new(self.program.blocks.len(), false) };
        for same in alike.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            let placed = same.iter().filter_map(|&(_, block)| Some((self.apart(block), self.order.position[block]?, block)));
            let mut placed: Vec<(usize, u32, Block)> = placed.collect();
            placed.sort_unstable();
            for group in placed.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
                settling.add(group.iter().map(|&(_, _, block)| block).collect());
            }
        }
        settling.settle()
    }

    /// Blocks of which this differs don't share.
    fn apart(&self, block: Block) -> usize {
        if self.reach == Reach::Function { self.program.func_of(block).index() } else { 0 }
    }

    fn successors(&self, block: Block) -> impl Iterator<Item = Block> {
        successors(self.program, block).map(|next| self.plan.folded_blocks.stand_in(next))
    }
}

struct Settling<'a> {
    view: &'a View<'a>,
    /// Blocks that are alike, in the order of the plan. At least one of each stays.
    groups: Vec<Vec<Block>>,
    goes: SecondaryMap<Block, bool>,
}

/// What comes of a block that goes.
#[derive(Copy, Clone, Debug, Default)]
struct Gain {
    /// Of code.
    bytes: i64,
    /// Of unwind rows.
    rows: i64,
}

impl Settling<'_> {
    fn add(&mut self, group: Vec<Block>) {
        let may_go = self.view.may_go;
        // One that has to stay anyway, else one that is run into.
        let fixed = group.iter().find(|&&block| !may_go[block]);
        let stays = fixed.or_else(|| group.iter().find(|&&block| self.view.order.before[block].is_some())).copied();
        let stays = stays.unwrap_or(group[0]);
        group.iter().filter(|&&block| block != stays && may_go[block]).for_each(|&block| self.goes[block] = true);
        self.groups.push(group);
    }

    fn settle(mut self) -> BlockFolding {
        self.keep_slow_ones();
        let num_ways = self.drop_unreached();
        let gains = self.gains(&self.stand_ins(&num_ways));
        let mut folding = BlockFolding::default();
        for block in self.view.program.blocks.keys() {
            let gain = gains.get(&block).filter(|(total, _)| *total > 0).map(|(_, own)| *own);
            self.goes[block] = gain.is_some();
            folding.saved = folding.saved.saturating_add_signed(gain.unwrap_or(0));
        }
        // Where one was kept after all, another that was to stay for it may have no way left that leads to it.
        let num_ways = self.drop_unreached();
        let late = self.goes.iter().filter(|(block, goes)| **goes && !gains.contains_key(block)).map(|(block, _)| block);
        folding.saved += late.map(|block| u64::from(self.view.program.blocks[block].len)).sum::<u64>();
        folding.pairs.extend(self.stand_ins(&num_ways));
        folding.pairs.sort_unstable();
        folding
    }

    /// For each block that goes, the one of its group that stays: one that something leads to, if there is such a one.
    fn stand_ins(&self, num_ways: &SecondaryMap<Block, u32>) -> FxHashMap<Block, Block> {
        let mut stand_ins = FxHashMap::default();
        for group in &self.groups {
            let staying = || group.iter().copied().filter(|&block| !self.goes[block]);
            let led_to = staying().find(|&block| !self.view.may_go[block] || num_ways[block] > 0);
            if let Some(stays) = led_to.or_else(|| staying().next()) {
                stand_ins.extend(group.iter().filter(|&&block| self.goes[block]).map(|&block| (block, stays)));
            }
        }
        stand_ins
    }

    /// Keeps what would cost a jump that is executed too often, or for little. What stays runs into what follows, so it goes on until nothing changes.
    fn keep_slow_ones(&mut self) {
        let View { order, shares, reach, .. } = *self.view;
        let mut rest: Vec<Block> = self.goes.iter().filter(|(_, goes)| **goes).map(|(block, _)| block).collect();
        loop {
            let is_dear = |&block: &Block| {
                let is_run_into = order.before[block].is_some_and(|before| !self.goes[before]);
                let (bytes, rows) = self.run_of(block);
                let saved = (bytes + ROW_BYTES * rows).saturating_sub(JUMP as u32);
                is_run_into && !(pays(reach, bytes, rows) && shares.allows_jump(block, reach, saved))
            };
            let (kept, left): (Vec<Block>, Vec<Block>) = rest.into_iter().partition(is_dear);
            rest = left;
            if kept.is_empty() {
                return;
            }
            kept.into_iter().for_each(|block| self.goes[block] = false);
        }
    }

    /// Bytes and changes of the unwind row from a block to the last that goes with it, one running into the next.
    fn run_of(&self, first: Block) -> (u32, u32) {
        let View { program, order, num_rows, .. } = *self.view;
        let (mut block, mut bytes, mut rows) = (first, 0u32, 0u32);
        loop {
            bytes = bytes.saturating_add(program.blocks[block].len);
            rows = rows.saturating_add(num_rows[block]);
            let next = next_of(program, block).map(|next| self.view.plan.folded_blocks.stand_in(next));
            match next.filter(|&next| next > block && order.before[next] == Some(block) && self.goes[next]) {
                Some(next) if bytes < RUN_MAX => block = next,
                _ => return (bytes, rows),
            }
        }
    }

    /// Drops what nothing leads to any more because all that led to it went, as long as another of its group stays. How many ways there are to each block.
    fn drop_unreached(&mut self) -> SecondaryMap<Block, u32> {
        let View { program, order, may_go, .. } = *self.view;
        let mut num_ways: SecondaryMap<Block, u32> = SecondaryMap::new(program.blocks.len(), 0);
        let is_there = |block: Block| order.position[block].is_some() || !program.funcs[program.func_of(block)].is_movable();
        for source in program.blocks.keys().filter(|&block| is_there(block) && !self.goes[block]) {
            self.view.successors(source).for_each(|target| num_ways[target] += 1);
        }
        loop {
            let mut has_changed = false;
            for group in &self.groups {
                let mut num_staying = group.iter().filter(|&&block| !self.goes[block]).count();
                for &block in group {
                    if num_staying > 1 && !self.goes[block] && may_go[block] && num_ways[block] == 0 {
                        self.goes[block] = true;
                        num_staying -= 1;
                        has_changed = true;
                        self.view.successors(block).for_each(|target| num_ways[target] -= 1);
                    }
                }
            }
            if !has_changed {
                return num_ways;
            }
        }
    }

    /// By block that goes: bytes saved by all that hang together with it, rows included, and bytes of code saved by itself.
    fn gains(&self, stand_ins: &FxHashMap<Block, Block>) -> FxHashMap<Block, (i64, i64)> {
        let View { program, order, num_rows, .. } = *self.view;
        let mut own: FxHashMap<Block, Gain> = FxHashMap::default();
        let mut leaders: FxHashMap<Block, Block> = FxHashMap::default();
        for (block, _) in self.goes.iter().filter(|(_, goes)| **goes) {
            let rows = i64::from(num_rows[block] * ROW_BYTES);
            own.insert(block, Gain { bytes: i64::from(program.blocks[block].len), rows });
            leaders.insert(block, block);
        }
        for source in program.blocks.keys().filter(|&block| order.position[block].is_some()) {
            for target in self.view.successors(source).filter(|&target| self.goes[target]) {
                if self.goes[source] {
                    join(&mut leaders, source, target);
                } else if let Some(gain) = own.get_mut(&target) {
                    gain.bytes -= self.cost(source, target, stand_ins);
                }
            }
        }
        let mut totals: FxHashMap<Block, i64> = FxHashMap::default();
        let led: Vec<(Block, Block)> = own.keys().map(|&block| (block, leader(&mut leaders, block))).collect();
        led.iter().for_each(|(block, leader)| *totals.entry(*leader).or_default() += own[block].bytes + own[block].rows);
        led.into_iter().map(|(block, leader)| (block, (totals[&leader], own[&block].bytes))).collect()
    }

    /// What it costs a block that stays to go on elsewhere.
    fn cost(&self, source: Block, target: Block, stand_ins: &FxHashMap<Block, Block>) -> i64 {
        let program = self.view.program;
        let is_run_into = self.view.order.before[target] == Some(source);
        let stays = stand_ins.get(&target).copied().unwrap_or(target);
        let distance = program.blocks[stays].start.0.abs_diff(program.blocks[source].end().0);
        let is_far = program.func_of(stays) != program.func_of(source) || distance > SHORT_REACH;
        match (is_run_into, is_far) {
            (true, true) => JUMP,
            (true, false) => JUMP - JUMP_GROWTH + 1,
            (false, true) => JUMP_GROWTH,
            (false, false) => 0,
        }
    }
}

/// Union-find with path halving.
fn leader(leaders: &mut FxHashMap<Block, Block>, mut block: Block) -> Block {
    while let Some(&above) = leaders.get(&block).filter(|&&above| above != block) {
        let next = leaders.get(&above).copied().unwrap_or(above);
        leaders.insert(block, next);
        block = next;
    }
    block
}

fn join(leaders: &mut FxHashMap<Block, Block>, a: Block, b: Block) {
    let (a, b) = (leader(leaders, a), leader(leaders, b));
    leaders.insert(a.max(b), a.min(b));
}
