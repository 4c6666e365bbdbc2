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
//! **Speed.** A block that is jumped to costs nothing elsewhere; one that was run into costs a jump. None is added for fewer bytes than its share of what is executed is worth ([`super::shares`]), none across functions for a few bytes,
//! and where a profile has counts, nothing that ran is touched.
//!
//! **Termination.** A search in depth visits each block once; settling first only keeps more, then only drops more.

use lifter::Image;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Program, RefTarget, Terminator};
use profiles::Weights;
use rayon::prelude::*;

use super::shares::{Reach, Shares};
use super::{Context, FUNCS_AT_ONCE, Folding};
use crate::plan::LayoutPlan;
use hashes::{Hasher, Room, Suffix};
use settle::View;

pub(crate) mod hashes;
mod settle;

/// What it has to save with another function to be worth a jump that is executed.
const FAR_BYTES_MIN: u32 = 12;
/// What one row costs in `.eh_frame`: how far, what, and a number.
const ROW_BYTES: u32 = 3;
/// Bytes that sharing has to save inside a function, a short jump included.
const NEAR_BYTES_MIN: u32 = 4;

/// Whether code of so many bytes, with so many changes of the unwind row, is worth a jump to another copy.
pub(super) fn pays(reach: Reach, bytes: u32, rows: u32) -> bool {
    match reach {
        Reach::Function => bytes + ROW_BYTES * rows >= NEAR_BYTES_MIN,
        Reach::Program => bytes + ROW_BYTES * rows >= FAR_BYTES_MIN,
    }
}

/// Which blocks another one stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFolding {
    /// Each block that goes, ascending, and the one that stays for it.
    pairs: Vec<(Block, Block)>,
    /// Bytes that this saves, as far as is known before layout.
    saved: u64,
}

impl BlockFolding {
    /// Lets blocks of the plan share, of those that `is_open` allows: first inside of functions, where a jump is short, then across. What ran by the counts stays.
    pub fn apply(
        image: &Image<'_>,
        program: &Program,
        plan: &mut LayoutPlan,
        (weights, shares): (&Weights, &Shares),
        is_open: &SecondaryMap<Block, bool>,
    ) {
        let context = Context::new(image, program);
        let mut funcs: Vec<Func> = plan.fragments.iter().map(|fragment| fragment.func).collect();
        funcs.sort_unstable();
        funcs.dedup();
        let mut num_rows: SecondaryMap<Block, u32> = SecondaryMap::new(program.blocks.len(), 0);
        let mut alike: Vec<(u128, Block)> = Vec::new();
        for funcs in funcs.chunks(FUNCS_AT_ONCE) {
            let hashes: Vec<Vec<(Block, Suffix)>> =
                funcs.par_iter().map_init(Room::default, |room, &func| hashes_of(&context, &plan.folded, func, room)).collect();
            for (block, suffix) in hashes.into_iter().flatten().filter(|(block, _)| is_open[*block]) {
                num_rows[block] = suffix.num_rows;
                alike.push((suffix.hash, block));
            }
        }
        alike.par_sort_unstable();
        let may_go = may_go(program, weights);
        for reach in [Reach::Function, Reach::Program] {
            let order = Order::of(program, plan);
            let (may_go, num_rows) = (&may_go, &num_rows);
            let view = View { program, plan, order: &order, may_go, num_rows, shares, reach };
            let found = view.settle(&alike);
            plan.fold_blocks(found);
        }
    }

    /// What both leave out, where `later` was found of what this one leaves.
    #[must_use]
    pub(crate) fn and(self, later: Self) -> Self {
        let mut pairs = self.pairs;
        for (_, stays) in &mut pairs {
            *stays = later.stand_in(*stays);
        }
        pairs.extend(later.pairs);
        pairs.sort_unstable();
        Self { pairs, saved: self.saved + later.saved }
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
    /// The block that stands for this one: mostly itself.
    pub fn stand_in(&self, block: Block) -> Block {
        self.pairs.binary_search_by_key(&block, |&(goes, _)| goes).map_or(block, |index| self.pairs[index].1)
    }
}

/// Blocks of a function with what they do as a whole.
fn hashes_of(context: &Context<'_>, folded: &Folding, func: Func, room: &mut Room) -> Vec<(Block, Suffix)> {
    let mut hashes = Vec::new();
    Hasher::new(context, folded, func).each(func, room, |block, _, whole| hashes.push((block, whole)));
    hashes
}

/// Where blocks are in the plan.
struct Order {
    position: SecondaryMap<Block, Option<u32>>,
    /// The block before, if it runs into this one.
    before: SecondaryMap<Block, Option<Block>>,
}

impl Order {
    fn of(program: &Program, plan: &LayoutPlan) -> Self {
        let next = |block: Block| next_of(program, block).map(|next| plan.folded_blocks.stand_in(next));
        let count = program.blocks.len();
        let mut order = Order { position: SecondaryMap::new(count, None), before: SecondaryMap::new(count, None) };
        let mut position = 0;
        for fragment in &plan.fragments {
            let mut last: Option<Block> = None;
            for planned in fragment.blocks.iter().filter(|planned| planned.copy.is_none()) {
                order.position[planned.block] = Some(position);
                position += 1;
                order.before[planned.block] = last.filter(|&last| next(last) == Some(planned.block));
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

#[cfg(test)]
mod tests;
