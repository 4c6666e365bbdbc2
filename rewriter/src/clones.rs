//! Copies of functions as functions of their own, each with edits of its own.
//!
//! **What a clone is.** Some blocks of one function, the entry among them. Ways between them stay in the clone; a block that is not in it, and everything that is named in another way (calls, addresses,
//! data), is what it is for the function itself. So a clone that has no edits does what the function does. Only new code whose `enters` says so leads to one: nothing
//! in the program names it.
//!
//! **Decided blocks** end in one way only, and with nothing but a jump there.
//!
//! **Unwinding.** A clone's rows are those of the blocks that it copies, told for a deeper stack where it has one (`deeper`). Exceptions land in the clone if it has the block; so who
//! makes one that has a call site sees to it that it has the landing pad. Jump tables that it names it has a copy of, which leads into the clone.

use lifter::entity::{Block, EntityId, Func, PrimaryMap};
use lifter::ir::{CodeTarget, Program};
use profiles::Weights;
use rustc_hash::FxHashMap;

use crate::edit::{Change, EditPlan, Replacement};
use crate::layout::blocks_by_class;
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature};

lifter::define_id!(
    /// A copy of a function.
    CloneId, "clone");

/// A copy of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloneData {
    pub func: Func,
    pub entry: Block,
    /// Ascending.
    pub blocks: Vec<Block>,
    /// Ascending by block, then offset; in place of those of the function.
    pub replacements: Vec<Replacement>,
    /// Blocks that go one way only; ascending by block.
    pub decided: Vec<(Block, CodeTarget)>,
    /// How often it is entered.
    pub count: u64,
    /// By how many bytes the stack pointer is lower in it than in the function, where its edits don't say otherwise.
    pub deeper: u8,
}

impl CloneData {
    pub fn contains(&self, block: Block) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }
    pub fn decided(&self, block: Block) -> Option<CodeTarget> {
        self.decided.binary_search_by_key(&block, |d| d.0).ok().map(|found| self.decided[found].1)
    }
}

/// Leaves all clones out: calls and the code before them are the functions' own again.
pub fn leave_out(edits: &mut EditPlan) {
    edits.replacements.retain(|r| r.change != Change::Specialize);
    edits.clones = PrimaryMap::new();
    for code in edits.codes.values_mut() {
        code.enters.clear();
    }
}

/// Puts clones into a layout: what runs of each behind the function that it is a clone of, in the function's own order, the rest at the end.
pub fn place(program: &Program, weights: &Weights, edits: &EditPlan, plan: &mut LayoutPlan) {
    if edits.clones.is_empty() {
        return;
    }
    let mut order: FxHashMap<Func, Vec<Block>> = FxHashMap::default();
    for clone in edits.clones.values() {
        order.entry(clone.func).or_default();
    }
    for fragment in &plan.fragments {
        if let Some(blocks) = order.get_mut(&fragment.func) {
            blocks.extend(fragment.blocks.iter().filter(|planned| planned.copy.is_none()).map(|planned| planned.block));
        }
    }
    let mut behind: FxHashMap<Block, Vec<FragmentPlan>> = FxHashMap::default();
    let mut cold = Vec::new();
    for (id, clone) in edits.clones.iter() {
        let entries = count_of(weights, clone.entry).max(1);
        let own = order[&clone.func].iter().copied().filter(|&block| clone.contains(block));
        for blocks in blocks_by_class(program, own) {
            let (warm, idle): (Vec<Block>, Vec<Block>) = blocks.into_iter().partition(|&block| count_of(weights, block) > 0);
            let planned = |blocks: Vec<Block>, temperature: Temperature| {
                let count = |block: Block| u128::from(count_of(weights, block)) * u128::from(clone.count) / u128::from(entries);
                let planned = |block: Block| PlannedBlock { block, align: 1, copy: Some(count(block) as u64) };
                let blocks: Vec<PlannedBlock> = blocks.into_iter().map(planned).collect();
                FragmentPlan { func: clone.func, temperature, align: 1, blocks, clone: Some(id) }
            };
            if !warm.is_empty() {
                behind.entry(clone.entry).or_default().push(planned(warm, Temperature::Hot));
            }
            if !idle.is_empty() {
                cold.push(planned(idle, Temperature::Cold));
            }
        }
    }
    let mut fragments = Vec::with_capacity(plan.fragments.len() + 2 * edits.clones.len());
    for fragment in std::mem::take(&mut plan.fragments) {
        let entries: Vec<Block> =
            fragment.blocks.iter().filter(|planned| planned.copy.is_none()).map(|planned| planned.block).collect();
        fragments.push(fragment);
        for entry in entries {
            fragments.extend(behind.remove(&entry).into_iter().flatten());
        }
    }
    fragments.extend(cold);
    plan.fragments = fragments;
}

fn count_of(weights: &Weights, block: Block) -> u64 {
    weights.blocks.get(block.index()).copied().unwrap_or(0)
}
