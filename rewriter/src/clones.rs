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

use std::collections::BTreeSet;

use lifter::entity::{Block, EntityId, Func, PrimaryMap};
use lifter::ir::{CodeTarget, Program};
use profiles::Weights;
use rustc_hash::FxHashMap;

use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::layout::blocks_by_class;
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature, Times};

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
    /// What is not there because what a call enters needs none of it.
    pub dropped: Vec<Dropped>,
    /// Blocks that end in jumps to other clones, for which there is no other way out of this one.
    pub bound: Vec<Block>,
}

/// Code before a call that only passed what is not needed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    pub block: Block,
    /// Offset of the call.
    pub call: u32,
    pub offset: u32,
    pub len: u32,
    /// What was to stand there instead without that; the function's own code, if nothing.
    pub before: Option<NewCodeId>,
}

/// Clones that are left out, and functions whose own calls lead to none.
#[derive(Clone, Debug, Default)]
pub struct LeftOut {
    pub clones: BTreeSet<CloneId>,
    pub functions: BTreeSet<Func>,
}

impl CloneData {
    pub fn contains(&self, block: Block) -> bool {
        self.blocks.binary_search(&block).is_ok()
    }
    pub fn decided(&self, block: Block) -> Option<CodeTarget> {
        self.decided.binary_search_by_key(&block, |d| d.0).ok().map(|found| self.decided[found].1)
    }
}

/// Leaves clones out: calls of them, and the code before these, are the functions' own again. So do clones to which nothing leads then, and those
/// that can't be left but for a clone that goes. Gives by number what each of those that stay was before.
pub fn leave_out(program: &Program, edits: &mut EditPlan, left_out: &LeftOut) -> Vec<CloneId> {
    if left_out.clones.is_empty() && left_out.functions.is_empty() {
        return edits.clones.keys().collect();
    }
    let mut gone = left_out.clones.clone();
    let codes = std::mem::take(&mut edits.codes);
    while add_bound(&edits.clones, &codes, &mut gone) {}
    let enters = |r: &Replacement| codes[r.code].enters.iter().map(|&(_, clone)| clone);
    let is_undone = |r: &Replacement| enters(r).any(|clone| gone.contains(&clone));
    restore_originals(&mut edits.replacements, &codes, |r| {
        is_undone(r) || left_out.functions.contains(&program.func_of(r.block))
    });
    for (id, data) in edits.clones.iter_mut() {
        if !gone.contains(&id) {
            restore(data, is_undone);
        }
    }
    let mut reached: BTreeSet<CloneId> = BTreeSet::new();
    let mut open: Vec<CloneId> = edits.replacements.iter().flat_map(enters).collect();
    while let Some(clone) = open.pop() {
        if reached.insert(clone) {
            open.extend(edits.clones[clone].replacements.iter().flat_map(enters));
        }
    }
    let before: Vec<CloneId> = reached.into_iter().collect();
    let old = std::mem::take(&mut edits.clones);
    let mut numbers: FxHashMap<CloneId, CloneId> = FxHashMap::default();
    for &id in &before {
        numbers.insert(id, edits.clones.push(old[id].clone()));
    }
    edits.codes = codes;
    for code in edits.codes.values_mut() {
        code.enters.retain_mut(|(_, clone)| numbers.get(clone).map(|&number| *clone = number).is_some());
    }
    before
}

/// Adds clones that can't be left but for one that goes; whether there are any.
fn add_bound(
    clones: &PrimaryMap<CloneId, CloneData>,
    codes: &PrimaryMap<NewCodeId, NewCode>,
    gone: &mut BTreeSet<CloneId>,
) -> bool {
    let count = gone.len();
    for (id, data) in clones.iter() {
        let enters_gone = |r: &Replacement| codes[r.code].enters.iter().any(|(_, clone)| gone.contains(clone));
        let is_bound = |r: &Replacement| data.bound.contains(&r.block) && enters_gone(r);
        if data.replacements.iter().any(is_bound) {
            gone.insert(id);
        }
    }
    gone.len() > count
}

/// In functions themselves: code of no bytes belongs to the next call behind it.
fn restore_originals(
    replacements: &mut Vec<Replacement>,
    codes: &PrimaryMap<NewCodeId, NewCode>,
    is_undone: impl Fn(&Replacement) -> bool,
) {
    let mut undone: Option<Block> = None;
    let mut kept: Vec<Replacement> = Vec::with_capacity(replacements.len());
    for &r in replacements.iter().rev() {
        if r.change != Change::Specialize {
            kept.push(r);
            continue;
        }
        let is_call = !codes[r.code].bytes.is_empty();
        if is_call {
            undone = is_undone(&r).then_some(r.block);
        }
        if undone != Some(r.block) {
            kept.push(r);
        }
    }
    kept.reverse();
    *replacements = kept;
}

/// In a clone: calls are the function's own again.
fn restore(data: &mut CloneData, is_undone: impl Fn(&Replacement) -> bool) {
    let undone: Vec<(Block, u32)> = data.replacements.iter().filter(|r| is_undone(r)).map(|r| (r.block, r.offset)).collect();
    data.replacements.retain(|r| !is_undone(r));
    for dropped in data.dropped.iter().filter(|dropped| undone.contains(&(dropped.block, dropped.call))) {
        let is_it = |r: &Replacement| (r.block, r.offset, r.len) == (dropped.block, dropped.offset, dropped.len);
        let Some(place) = data.replacements.iter().position(is_it) else { continue };
        match dropped.before {
            Some(code) => data.replacements[place].code = code,
            None => drop(data.replacements.remove(place)),
        }
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
                let planned = |block: Block| PlannedBlock { block, align: 1, copy: Some(Times::new(count(block) as u64)) };
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
