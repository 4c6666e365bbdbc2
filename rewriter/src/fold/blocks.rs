//! Blocks that go on alike share one copy: tails of functions, error paths, whole regions.
//!
//! **Problem.** Compilers merge equal tails inside a function at most. Across functions, and where inlining copied code, the same instructions followed by
//! the same are there many times over.
//!
//! **Method.** Two blocks are alike if they have the same instructions with the same references under the same unwind rows, and if what follows each is
//! alike or the very same block. That is computed bottom-up, as a hash of 128 bits of a block and of what follows it; where a path
//! comes back to a block on it, that block stands for itself. Of the blocks of one hash one stays, and the others stand where it stands.
//!
//! **Why it is safe.** From either block the same instructions run, with the same values, until both are at the same place: by induction over the order in
//! which hashes are made. Nothing may compare the addresses: a block goes only if nothing but jumps leads to it. Unwinders find
//! the same rows, and no exception table or the same one with the same landing pads. A hash that fails costs an output, which the checker finds.
//!
//! **Speed.** No jump is added inside a loop, none for a few bytes, and where a profile has counts, nothing that ran is touched. A block that is jumped to
//! costs nothing elsewhere; one that was run into costs a jump.
//!
//! **Termination.** A search in depth visits each block once; settling first only keeps more, then only drops more.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Program, RefKind, RefRole, RefTarget, StopKind, Terminator};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;
use xxhash_rust::xxh3::xxh3_128;

use super::Context;
use crate::materialize::block_bytes;
use crate::plan::LayoutPlan;
use crate::relink::eh_frame::FrameRows;

/// A block that was run into has to be this long to be worth a jump that is executed.
const RUN_INTO_BYTES_MIN: u32 = 16;
/// Bytes of a jump, and by how much one grows whose target is far away.
const JUMP: i64 = 5;
const JUMP_GROWTH: i64 = 4;
/// As far as a short jump reaches, less what layout may change.
const SHORT_REACH: u64 = 100;

/// Which blocks another one stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFolding {
    /// Each block that goes, ascending, and the one that stays for it.
    pairs: Vec<(Block, Block)>,
    /// Bytes that this saves, as far as is known before layout.
    saved: u64,
}

impl BlockFolding {
    /// All blocks of the plan that may share, of those that `is_open` allows. What ran by the counts stays.
    pub fn find(
        image: &Image<'_>,
        program: &Program,
        plan: &LayoutPlan,
        weights: &Weights,
        is_open: &SecondaryMap<Block, bool>,
    ) -> Self {
        let order = Order::of(program, plan);
        let context = Context::new(image, program);
        let mut funcs: Vec<Func> = plan.fragments.iter().map(|fragment| fragment.func).collect();
        funcs.sort_unstable();
        funcs.dedup();
        let hashes: Vec<Vec<(Block, u128)>> =
            funcs.par_iter().map(|&func| Hasher::new(&context, plan, func).all(program, func)).collect();
        let mut alike: Vec<(u128, u32, Block)> = hashes
            .into_iter()
            .flatten()
            .filter(|(block, _)| is_open[*block])
            .filter_map(|(block, hash)| Some((hash, order.position[block]?, block)))
            .collect();
        alike.par_sort_unstable();
        let may_go = may_go(program, weights);
        let mut goes = SecondaryMap::new(program.blocks.len(), false);
        let mut groups: Vec<Vec<Block>> = Vec::new();
        for same in alike.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            let group: Vec<Block> = same.iter().map(|&(_, _, block)| block).collect();
            // One that has to stay anyway, else one that is run into.
            let fixed = group.iter().find(|&&block| !may_go[block]);
            let stays = fixed.or_else(|| group.iter().find(|&&block| order.before[block].is_some()));
            let stays = stays.copied().unwrap_or(same[0].2);
            group.iter().filter(|&&block| block != stays && may_go[block]).for_each(|&block| goes[block] = true);
            groups.push(group);
        }
        Settling { program, order: &order, may_go: &may_go, groups, goes }.settle()
    }

    pub fn pairs(&self) -> &[(Block, Block)] {
        &self.pairs
    }
    pub fn saved(&self) -> u64 {
        self.saved
    }
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
    pub fn goes(&self, block: Block) -> bool {
        self.pairs.binary_search_by_key(&block, |&(goes, _)| goes).is_ok()
    }
}

/// Where blocks are in the plan.
struct Order {
    position: SecondaryMap<Block, Option<u32>>,
    /// The block before, if it runs into this one.
    before: SecondaryMap<Block, Option<Block>>,
}

impl Order {
    fn of(program: &Program, plan: &LayoutPlan) -> Self {
        let count = program.blocks.len();
        let mut order = Order { position: SecondaryMap::new(count, None), before: SecondaryMap::new(count, None) };
        let mut position = 0;
        for fragment in &plan.fragments {
            let mut last: Option<Block> = None;
            for planned in fragment.blocks.iter().filter(|planned| planned.copy.is_none()) {
                order.position[planned.block] = Some(position);
                position += 1;
                order.before[planned.block] = last.filter(|&last| next_of(program, last) == Some(planned.block));
                last = Some(planned.block);
            }
        }
        order
    }
}

/// What a block goes on to without a jump if it is laid out behind it.
fn next_of(program: &Program, block: Block) -> Option<Block> {
    match program.blocks[block].terminator {
        Terminator::Fallthrough { next } | Terminator::Branch { next, .. } | Terminator::Loop { next, .. } => Some(next),
        Terminator::Jump { target: CodeTarget::Block(target) } => Some(target),
        Terminator::Jump { .. } | Terminator::Stop(_) => None,
    }
}

fn may_go(program: &Program, weights: &Weights) -> SecondaryMap<Block, bool> {
    let named =
        BlockFlags::ENTRY | BlockFlags::ADDRESS_TAKEN | BlockFlags::LANDING_PAD | BlockFlags::TABLE_TARGET | BlockFlags::ANCHOR;
    let mut may_go = SecondaryMap::new(program.blocks.len(), false);
    for (block, data) in program.blocks.iter() {
        let func = &program.funcs[data.func];
        let has_run = weights.blocks.get(block.index()).is_some_and(|&count| count > 0);
        may_go[block] = func.is_movable() && func.entry != block && !data.flags.intersects(named) && !has_run;
    }
    for reference in &program.refs {
        if let RefTarget::Block(target) = reference.target {
            may_go[target] = false;
        }
    }
    program.slots.iter().for_each(|slot| may_go[slot.target] = false);
    program.tables.keys().flat_map(|table| program.targets_of(table)).for_each(|&target| may_go[target] = false);
    may_go
}

/// Makes the hashes of one function's blocks.
struct Hasher<'a> {
    context: &'a Context<'a>,
    plan: &'a LayoutPlan,
    /// By range of the function; `None` where rows are not understood.
    rows: Vec<Option<FrameRows<'a>>>,
    first_range: usize,
    hashes: FxHashMap<Block, u128>,
}

impl<'a> Hasher<'a> {
    fn new(context: &'a Context<'a>, plan: &'a LayoutPlan, func: Func) -> Self {
        let program = context.program;
        let rows = program.func_ranges(func).iter().map(|range| {
            let fde = program.unwind.fdes.get(range.fde?)?;
            FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)
        });
        let first_range = program.funcs[func].ranges.as_usize().start;
        Self { context, plan, rows: rows.collect(), first_range, hashes: FxHashMap::default() }
    }

    /// Blocks in post-order: what follows a block comes first, but for loops.
    fn all(mut self, program: &Program, func: Func) -> Vec<(Block, u128)> {
        let blocks = program.funcs[func].blocks;
        let mut found = Vec::with_capacity(blocks.iter().count());
        let mut is_seen: FxHashMap<Block, ()> = FxHashMap::default();
        for root in blocks.iter() {
            let mut path: Vec<(Block, usize)> = Vec::new();
            if is_seen.insert(root, ()).is_none() {
                path.push((root, 0));
            }
            while let Some((block, index)) = path.last_mut() {
                let next = successors(program, *block).nth(*index);
                *index += 1;
                match next {
                    Some(next) if program.func_of(next) == func && is_seen.insert(next, ()).is_none() => path.push((next, 0)),
                    Some(_) => {}
                    None => {
                        let block = *block;
                        if let Some(hash) = self.hash(block) {
                            self.hashes.insert(block, hash);
                            found.push((block, hash));
                        }
                        path.pop();
                    }
                }
            }
        }
        found
    }

    /// `None` where a block can't be compared.
    fn hash(&self, block: Block) -> Option<u128> {
        let Context { image, program, .. } = *self.context;
        let data = &program.blocks[block];
        let mut bytes = block_bytes(image, program, block).ok()?.get(..data.body_len as usize)?.to_vec();
        let mut words: Vec<u64> = vec![u64::from(data.body_len)];
        for reference in program.block_refs(block) {
            let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
            let offset = reference.offset as usize;
            bytes.get_mut(offset..offset + width)?.fill(0);
            words.extend([
                u64::from(reference.offset),
                u64::from(reference.to_end),
                reference.kind as u64,
                reference.role as u64,
            ]);
            match reference.target {
                RefTarget::Block(target) if matches!(reference.role, RefRole::Call | RefRole::Branch) => {
                    words.extend([1, self.plan.folded.stand_in(program, target).index() as u64]);
                }
                RefTarget::Block(target) => words.extend([2, target.index() as u64]),
                RefTarget::Fixed(va) => words.extend([3, va.0]),
                RefTarget::Table(table) => words.extend([4, table.index() as u64]),
            }
        }
        self.unwinding(block, &mut words, &mut bytes)?;
        self.terminator(block, &mut words, &mut bytes)?;
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Some(xxh3_128(&bytes))
    }

    fn terminator(&self, block: Block, words: &mut Vec<u64>, bytes: &mut Vec<u8>) -> Option<()> {
        let Context { image, program, .. } = *self.context;
        let data = &program.blocks[block];
        match data.terminator {
            // Whether a jump is there is a matter of layout.
            Terminator::Fallthrough { next } => self.target(CodeTarget::Block(next), words),
            Terminator::Jump { target } => self.target(target, words),
            Terminator::Branch { condition, taken, next } => {
                words.extend([12, u64::from(condition.0)]);
                self.target(taken, words);
                self.target(CodeTarget::Block(next), words);
            }
            Terminator::Loop { taken, next } => {
                let all = block_bytes(image, program, block).ok()?;
                bytes.extend(all.get(data.body_len as usize..data.len.checked_sub(1)? as usize)?);
                words.push(13);
                self.target(CodeTarget::Block(taken), words);
                self.target(CodeTarget::Block(next), words);
            }
            Terminator::Stop(stop) => words.push(match stop {
                StopKind::Return => 20,
                StopKind::IndirectTailCall => 21,
                StopKind::NoReturnCall => 22,
                StopKind::Trap => 23,
                StopKind::ComputedJump | StopKind::TableJump(_) | StopKind::Unknown => return None,
            }),
        }
        Some(())
    }

    fn target(&self, target: CodeTarget, words: &mut Vec<u64>) {
        match target {
            CodeTarget::Fixed(va) => words.extend([30, va.0]),
            CodeTarget::Block(block) => match self.hashes.get(&block) {
                Some(hash) => words.extend([31, *hash as u64, (hash >> 64) as u64]),
                None => words.extend([32, self.plan.folded.stand_in(self.context.program, block).index() as u64]),
            },
        }
    }

    /// What unwinders find at the block's instructions.
    fn unwinding(&self, block: Block, words: &mut Vec<u64>, bytes: &mut Vec<u8>) -> Option<()> {
        let program = self.context.program;
        let data = &program.blocks[block];
        let range = &program.ranges[data.range as usize];
        words.push(u64::from(range.unwind_class));
        let Some(fde) = range.fde.and_then(|fde| program.unwind.fdes.get(fde)) else {
            words.push(40);
            return Some(());
        };
        if fde.opaque_lsda.is_some() {
            return None;
        }
        let rows = self.rows.get((data.range as usize).checked_sub(self.first_range)?)?.as_ref()?;
        rows.describe(data.start, data.end(), bytes);
        words.extend([41, bytes.len() as u64]);
        if let Some(lsda) = fde.lsda {
            let lsda_data = program.unwind.lsdas.get(lsda as usize)?;
            words.extend([42, u64::from(lsda)]);
            let within = |va: Va| va.0.clamp(data.start.0, data.end().0) - data.start.0;
            for site in lsda_data.call_sites.iter().filter(|site| site.start < data.end() && data.start < site.end) {
                let pad = site.landing_pad.map_or(0, |pad| pad.0);
                words.extend([within(site.start), within(site.end), pad, site.action]);
            }
        }
        Some(())
    }
}

fn successors(program: &Program, block: Block) -> impl Iterator<Item = Block> {
    let targets = match program.blocks[block].terminator {
        Terminator::Fallthrough { next } => [Some(CodeTarget::Block(next)), None],
        Terminator::Jump { target } => [Some(target), None],
        Terminator::Branch { taken, next, .. } => [Some(taken), Some(CodeTarget::Block(next))],
        Terminator::Loop { taken, next } => [Some(CodeTarget::Block(taken)), Some(CodeTarget::Block(next))],
        Terminator::Stop(_) => [None, None],
    };
    targets.into_iter().flatten().filter_map(|target| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    })
}

/// Decides which of the blocks that could go are worth it.
struct Settling<'a> {
    program: &'a Program,
    order: &'a Order,
    may_go: &'a SecondaryMap<Block, bool>,
    /// Blocks that are alike, in the order of the plan. At least one of each stays.
    groups: Vec<Vec<Block>>,
    goes: SecondaryMap<Block, bool>,
}

impl Settling<'_> {
    fn settle(mut self) -> BlockFolding {
        self.keep_slow_ones();
        let num_ways = self.drop_unreached();
        let gains = self.gains(&self.stand_ins(&num_ways));
        let mut folding = BlockFolding::default();
        for block in self.program.blocks.keys() {
            let gain = gains.get(&block).filter(|(total, _)| *total > 0).map(|(_, own)| *own);
            self.goes[block] = gain.is_some();
            folding.saved = folding.saved.saturating_add_signed(gain.unwrap_or(0));
        }
        folding.pairs.extend(self.stand_ins(&num_ways));
        folding.pairs.sort_unstable();
        folding
    }

    /// For each block that goes, the one of its group that stays: one that something leads to, if there is such a one.
    fn stand_ins(&self, num_ways: &SecondaryMap<Block, u32>) -> FxHashMap<Block, Block> {
        let mut stand_ins = FxHashMap::default();
        for group in &self.groups {
            let staying = || group.iter().copied().filter(|&block| !self.goes[block]);
            let led_to = staying().find(|&block| !self.may_go[block] || num_ways[block] > 0);
            if let Some(stays) = led_to.or_else(|| staying().next()) {
                stand_ins.extend(group.iter().filter(|&&block| self.goes[block]).map(|&block| (block, stays)));
            }
        }
        stand_ins
    }

    /// Keeps what would cost a jump that is executed, in a loop or for little. What stays runs into what follows, so it goes on until nothing changes.
    fn keep_slow_ones(&mut self) {
        let is_looping = in_loops(self.program);
        let mut rest: Vec<Block> = self.goes.iter().filter(|(_, goes)| **goes).map(|(block, _)| block).collect();
        loop {
            let is_dear = |&block: &Block| {
                let is_run_into = self.order.before[block].is_some_and(|before| !self.goes[before]);
                is_run_into && (is_looping[block] || self.program.blocks[block].len < RUN_INTO_BYTES_MIN)
            };
            let (kept, left): (Vec<Block>, Vec<Block>) = rest.into_iter().partition(is_dear);
            rest = left;
            if kept.is_empty() {
                return;
            }
            kept.into_iter().for_each(|block| self.goes[block] = false);
        }
    }

    /// Drops what nothing leads to any more because all that led to it went, as long as another of its group stays. How many ways there are to each block.
    fn drop_unreached(&mut self) -> SecondaryMap<Block, u32> {
        let program = self.program;
        let mut num_ways: SecondaryMap<Block, u32> = SecondaryMap::new(program.blocks.len(), 0);
        let is_there = |block: Block| self.order.position[block].is_some() || !program.funcs[program.func_of(block)].is_movable();
        for source in program.blocks.keys().filter(|&block| is_there(block) && !self.goes[block]) {
            successors(program, source).for_each(|target| num_ways[target] += 1);
        }
        loop {
            let mut has_changed = false;
            for group in &self.groups {
                let mut num_staying = group.iter().filter(|&&block| !self.goes[block]).count();
                for &block in group {
                    if num_staying > 1 && !self.goes[block] && self.may_go[block] && num_ways[block] == 0 {
                        self.goes[block] = true;
                        num_staying -= 1;
                        has_changed = true;
                        successors(program, block).for_each(|target| num_ways[target] -= 1);
                    }
                }
            }
            if !has_changed {
                return num_ways;
            }
        }
    }

    /// By block that goes: bytes saved by all that hang together with it, and by itself.
    fn gains(&self, stand_ins: &FxHashMap<Block, Block>) -> FxHashMap<Block, (i64, i64)> {
        let program = self.program;
        let goes = |block: Block| self.goes[block];
        let mut own: FxHashMap<Block, i64> = FxHashMap::default();
        let mut leaders: FxHashMap<Block, Block> = FxHashMap::default();
        for (block, _) in self.goes.iter().filter(|(_, goes)| **goes) {
            own.insert(block, i64::from(program.blocks[block].len));
            leaders.insert(block, block);
        }
        for source in program.blocks.keys().filter(|&block| self.order.position[block].is_some()) {
            for target in successors(program, source).filter(|&target| goes(target)) {
                if goes(source) {
                    join(&mut leaders, source, target);
                } else if let Some(gain) = own.get_mut(&target) {
                    *gain -= self.cost(source, target, stand_ins);
                }
            }
        }
        let mut totals: FxHashMap<Block, i64> = FxHashMap::default();
        let led: Vec<(Block, Block)> = own.keys().map(|&block| (block, leader(&mut leaders, block))).collect();
        led.iter().for_each(|(block, leader)| *totals.entry(*leader).or_default() += own[block]);
        led.into_iter().map(|(block, leader)| (block, (totals[&leader], own[&block]))).collect()
    }

    /// What it costs a block that stays to go on elsewhere.
    fn cost(&self, source: Block, target: Block, stand_ins: &FxHashMap<Block, Block>) -> i64 {
        let program = self.program;
        let is_run_into = self.order.before[target] == Some(source);
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

/// Blocks that a branch back, by address, goes around.
fn in_loops(program: &Program) -> SecondaryMap<Block, bool> {
    let mut is_looping = SecondaryMap::new(program.blocks.len(), false);
    for func in program.funcs.values() {
        let mut spans: Vec<(Va, Va)> = Vec::new();
        for source in func.blocks.iter() {
            let data = &program.blocks[source];
            let back = successors(program, source).map(|target| &program.blocks[target]);
            spans.extend(
                back.filter(|target| target.func == data.func && target.start <= data.start).map(|t| (t.start, data.start)),
            );
        }
        spans.sort_unstable();
        let mut reach: Vec<(Va, Va)> = Vec::with_capacity(spans.len());
        for (start, end) in spans {
            match reach.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => reach.push((start, end)),
            }
        }
        for block in func.blocks.iter() {
            let start = program.blocks[block].start;
            let before = reach.partition_point(|span| span.0 <= start);
            is_looping[block] = before.checked_sub(1).is_some_and(|index| start <= reach[index].1);
        }
    }
    is_looping
}

#[cfg(test)]
mod tests;
