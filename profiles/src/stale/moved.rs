//! Code that another build inlined, or no longer inlines.
//!
//! **Problem.** At another level of optimization, functions are inlined elsewhere. A callee that was inlined everywhere has no counts of its own
//! in the old profile, and a block that a caller now has inside has none in the caller.
//!
//! **Method.** What a function does leaves blocks with the same hashes on either side:
//! * *inlined now*: blocks of a matched function that have no counterpart are looked up among the blocks of what the old function
//!   called. Their count is the callee's, in proportion to how many of the callee's runs came from this caller, divided among the copies.
//! * *inlined before*: a function without a counterpart is entered as often as its callers say; its blocks are looked up among
//!   those of the old callers that found no counterpart, and the counts of all copies are added up.
//!
//! Such counts are estimates and trusted little. Everything is linear in the blocks and calls of functions that ran, but for sorting.

use rustc_hash::FxHashMap;

use super::blocks::Level;
use super::{Carrier, cost, signed};
use crate::outline::{BlockOutline, EdgeOutline, FuncOutline, Outline};

/// Shorter blocks are alike by chance.
const INSTRUCTIONS_MIN: u32 = 2;

/// What changing an estimate by one costs.
const ESTIMATE_COST: u32 = 100;

/// The two builds, and who is who.
pub(super) struct Builds<'a> {
    pub(super) old: &'a Outline,
    pub(super) new: &'a Outline,
    /// By old function, the number of its first block.
    pub(super) old_first: &'a [usize],
    /// By new function.
    pub(super) new_first: &'a [usize],
    /// Old and new functions that match, of those that ran.
    pub(super) pairs: Vec<(usize, usize)>,
}

impl Carrier<'_> {
    /// Counts for blocks that were in callees before.
    pub(super) fn estimate_inlined_now(&mut self, builds: &Builds<'_>) {
        for &(old, new) in &builds.pairs {
            let func = &builds.old.funcs[old];
            // What the function called and how often.
            let mut callees: FxHashMap<u32, u64> = FxHashMap::default();
            for &(block, callee) in &func.calls {
                let count = self.weights.blocks[builds.old_first[old] + block as usize];
                let sum = callees.entry(callee).or_default();
                *sum = sum.saturating_add(count);
            }
            let mut donors: FxHashMap<u32, u64> = FxHashMap::default();
            let mut callees: Vec<(u32, u64)> = callees.into_iter().filter(|&(_, count)| count != 0).collect();
            callees.sort_unstable();
            for (callee, calls) in callees {
                self.offer(builds, callee as usize, calls, &mut donors);
            }
            if !donors.is_empty() {
                self.take(&builds.new.funcs[new], builds.new_first[new], &donors);
            }
        }
    }

    /// What a callee's blocks ran on behalf of one caller, by hash.
    fn offer(&self, builds: &Builds<'_>, callee: usize, calls: u64, donors: &mut FxHashMap<u32, u64>) {
        let (func, first) = (&builds.old.funcs[callee], builds.old_first[callee]);
        if func.blocks.is_empty() {
            return;
        }
        let entered = self.weights.blocks[first + func.entry as usize].max(calls).max(1);
        for (number, block) in func.blocks.iter().enumerate().filter(|(_, b)| b.num_insts >= INSTRUCTIONS_MIN) {
            let count = u128::from(self.weights.blocks[first + number]) * u128::from(calls) / u128::from(entered);
            let sum = donors.entry(block.middle).or_default();
            *sum = sum.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
        }
    }

    /// Gives blocks without a count that of the donor of their hash, divided among all that share it.
    fn take(&mut self, func: &FuncOutline, first: usize, donors: &FxHashMap<u32, u64>) {
        let is_open = |carrier: &Self, number: usize, block: &BlockOutline| {
            block.num_insts >= INSTRUCTIONS_MIN && !carrier.counts.blocks[first + number].is_known()
        };
        let mut copies: FxHashMap<u32, u64> = FxHashMap::default();
        for (number, block) in func.blocks.iter().enumerate() {
            if donors.contains_key(&block.middle) && is_open(self, number, block) {
                *copies.entry(block.middle).or_default() += 1;
            }
        }
        for (number, block) in func.blocks.iter().enumerate() {
            let Some(&copies) = copies.get(&block.middle).filter(|_| is_open(self, number, block)) else { continue };
            let count = donors.get(&block.middle).copied().unwrap_or(0) / copies.max(1);
            self.counts.blocks[first + number] = signed(count);
            self.trust.blocks[first + number] = ESTIMATE_COST;
        }
    }

    /// Counts for functions that were inside their callers before, or are new.
    pub(super) fn estimate_inlined_before(&mut self, builds: &Builds<'_>) {
        let mut is_matched = vec![false; builds.new.funcs.len()];
        let mut old_of: FxHashMap<usize, usize> = FxHashMap::default();
        for &(old, new) in &builds.pairs {
            is_matched[new] = true;
            old_of.insert(new, old);
        }
        // A callee's callee may be new as well: a few rounds, callers first as far as they are known.
        const ROUNDS: usize = 3;
        for _ in 0..ROUNDS {
            let mut entered: FxHashMap<u32, (u64, Vec<usize>)> = FxHashMap::default();
            for (caller, func) in builds.new.funcs.iter().enumerate() {
                for &(block, callee) in func.calls.iter().filter(|&&(_, callee)| !is_matched[callee as usize]) {
                    let count = self.counts.blocks[builds.new_first[caller] + block as usize].get().unwrap_or(0).max(0) as u64;
                    if count != 0 {
                        let entry = entered.entry(callee).or_default();
                        entry.0 = entry.0.saturating_add(count);
                        entry.1.extend(old_of.get(&caller));
                    }
                }
            }
            let mut entered: Vec<(u32, (u64, Vec<usize>))> = entered.into_iter().collect();
            entered.sort_unstable_by_key(|&(callee, _)| callee);
            if entered.is_empty() {
                break;
            }
            for (callee, (count, mut callers)) in entered {
                callers.sort_unstable();
                callers.dedup();
                self.enter(builds, callee as usize, count, &callers);
                is_matched[callee as usize] = true;
            }
        }
    }

    fn enter(&mut self, builds: &Builds<'_>, callee: usize, count: u64, callers: &[usize]) {
        let (func, first) = (&builds.new.funcs[callee], builds.new_first[callee]);
        if func.blocks.is_empty() {
            return;
        }
        let mut donors: FxHashMap<u32, u64> = FxHashMap::default();
        for &caller in callers {
            let old_first = builds.old_first[caller];
            for (number, block) in builds.old.funcs[caller].blocks.iter().enumerate() {
                if self.block_of[old_first + number].is_none() {
                    let sum = donors.entry(block.middle).or_default();
                    *sum = sum.saturating_add(self.weights.blocks[old_first + number]);
                }
            }
        }
        self.take(func, first, &donors);
        let probable = probable_flow(func, count);
        for (number, &flow) in probable.iter().enumerate() {
            if !self.counts.blocks[first + number].is_known() {
                self.counts.blocks[first + number] = signed(flow);
                self.trust.blocks[first + number] = ESTIMATE_COST / 10;
            }
        }
        let entry = first + func.entry as usize;
        self.counts.blocks[entry] = signed(count);
        self.trust.blocks[entry] = cost(Level::Loose);
    }
}

/// How often the blocks of a function run if it is entered so often and nothing is known but its shape: what runs goes either way
/// alike, but leads back nine times as often as onward, and half as often to where it ends in an instruction or two. A bounded
/// number of sweeps, each linear in edges.
fn probable_flow(func: &FuncOutline, count: u64) -> Vec<u64> {
    const SWEEPS: usize = 24;
    const BACK: f64 = 9.0;
    let num_blocks = func.blocks.len();
    let mut has_exit = vec![0usize; num_blocks];
    for edge in &func.edges {
        has_exit[edge.source as usize] += 1;
    }
    let is_dead_end = |block: u32| has_exit[block as usize] == 0 && func.blocks[block as usize].num_insts <= 2;
    let share = |edge: &EdgeOutline| {
        if edge.target <= edge.source {
            BACK
        } else if is_dead_end(edge.target) {
            0.5
        } else {
            1.0
        }
    };
    let mut total = vec![0f64; num_blocks];
    for edge in &func.edges {
        total[edge.source as usize] += share(edge);
    }
    let mut flow = vec![0f64; num_blocks];
    for _ in 0..SWEEPS {
        let mut next = vec![0f64; num_blocks];
        next[func.entry as usize] = count as f64;
        for edge in &func.edges {
            let source = edge.source as usize;
            next[edge.target as usize] += flow[source] * share(edge) / total[source];
        }
        flow = next;
    }
    flow.into_iter().map(|flow| flow as u64).collect()
}
