//! A profile of one build carried over to another.
//!
//! **Problem.** Programs are profiled on one day and built on another. Between the two, functions come and go, blocks are cut
//! otherwise, another level of optimization or another compiler was used. Layout only needs to know what is hot, and most
//! of that is the same.
//!
//! **Method**, after Ayupov, Panchenko and Pupyrev, "Stale Profile Matching" (CC 2024), on outlines of both builds (`outline`):
//! 1. Functions are matched by name, by content, and by the company that they keep (`functions`).
//! 2. In matched functions, blocks are matched by hash, by their neighbors in the control flow and by their order (`blocks`).
//! 3. Blocks and edges take over the counts of their matches; what a count is trusted with depends on how its block was recognized.
//! 4. Code that is inlined in one build and not in the other takes over the counts of its copies (`moved`).
//! 5. `infer` fills in the rest: the consistent flow that changes the trusted counts least.
//!
//! **What can go wrong**: a wrong match makes a worse layout. It never makes wrong code, since a profile decides about order only.

mod blocks;
mod functions;
mod moved;
#[cfg(test)]
mod tests;

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::Program;
use rayon::prelude::*;

use crate::infer::{Trust, infer_carried};
use crate::instrument::{Count, Counts};
use crate::outline::Outline;
use crate::weights::{IndirectTargets, Weights};
use blocks::{Level, Matches};
pub use functions::{Evidence, match_functions};

/// How much of a profile was carried over. Only functions, blocks and counts that ran are counted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct StaleQuality {
    pub functions_total: usize,
    /// Of these, by what they were recognized: equal content, their name, their neighborhood.
    pub functions_equal: usize,
    pub functions_named: usize,
    pub functions_found: usize,
    pub blocks_total: usize,
    pub blocks_matched: usize,
    /// The sum over blocks of how often each ran, times its instructions: executed instructions.
    pub counts_total: u64,
    pub counts_matched: u64,
}

impl StaleQuality {
    pub fn functions_matched(&self) -> usize {
        self.functions_equal + self.functions_named + self.functions_found
    }
}

/// An old function, its counterpart, and what speaks for it.
type Pair = (usize, Func, Evidence);

/// Weights of `program`, whose outline is `new`, from weights of the program whose outline is `old`.
pub fn carry_over(old: &Outline, weights: &Weights, new: &Outline, program: &Program) -> (Weights, StaleQuality) {
    let ran = first_blocks(old);
    let is_hot = |func: usize| weights.blocks[ran[func]..ran[func + 1]].iter().any(|&count| count != 0);
    let hot: Vec<bool> = (0..old.funcs.len()).map(is_hot).collect();
    let matches = match_functions(old, new, &hot);
    let pairs: Vec<Pair> =
        matches.iter().enumerate().filter(|&(old, _)| hot[old]).filter_map(|(old, m)| m.map(|(new, e)| (old, new, e))).collect();
    let matched: Vec<Matches> =
        pairs.par_iter().map(|&(from, to, _)| blocks::match_blocks(&old.funcs[from], &new.funcs[to.index()])).collect();
    // A name speaks for itself; what was only found must be recognized where it is hot.
    let is_believed = |&(&(from, _, evidence), matched): &(&Pair, &Matches)| {
        evidence != Evidence::Neighborhood || recognized(&weights.blocks[ran[from]..ran[from + 1]], matched)
    };
    let (pairs, matched): (Vec<_>, Vec<_>) =
        pairs.iter().zip(&matched).filter(is_believed).map(|(pair, matched)| (*pair, matched.clone())).unzip();

    let mut carrier = Carrier {
        program,
        weights,
        counts: Counts::unknown(program),
        trust: Trust::none(program),
        block_of: vec![None; weights.blocks.len()],
    };
    let mut edges_before = 0;
    let mut first_edges = Vec::with_capacity(old.funcs.len());
    for func in &old.funcs {
        first_edges.push(edges_before);
        edges_before += func.edges.len();
    }
    for (&(from, to, _), matched) in pairs.iter().zip(&matched) {
        carrier.carry(&old.funcs[from], (ran[from], first_edges[from]), to, matched);
    }
    let quality = judge(old, weights, &ran, &hot, &pairs, &carrier.block_of);
    let indirect = carrier.indirect(&matches);
    let builds = moved::Builds {
        old,
        new,
        old_first: &ran,
        new_first: &first_blocks(new),
        pairs: pairs.iter().map(|&(old, new, _)| (old, new.index())).collect(),
    };
    carrier.estimate_inlined_now(&builds);
    carrier.estimate_inlined_before(&builds);
    let (counts, trust) = (carrier.counts, carrier.trust);
    let mut result = infer_carried(program, &counts, &trust);
    result.indirect = indirect;
    (result, quality)
}

/// Whether half of what ran of a function is in blocks that are the same by a hash.
fn recognized(counts: &[u64], matched: &[Option<(u32, Level)>]) -> bool {
    let sum = |counts: &mut dyn Iterator<Item = u64>| counts.fold(0u128, |sum, count| sum + u128::from(count));
    let same = matched.iter().zip(counts).filter(|(m, _)| m.is_some_and(|(_, level)| level < Level::Position)).map(|(_, &c)| c);
    2 * sum(&mut same.into_iter()) >= sum(&mut counts.iter().copied())
}

/// By function the number of its first block, and the number of all blocks at the end.
pub(crate) fn first_blocks(outline: &Outline) -> Vec<usize> {
    let mut next = 0;
    let mut starts: Vec<usize> = Vec::with_capacity(outline.funcs.len() + 1);
    for func in &outline.funcs {
        starts.push(next);
        next += func.blocks.len();
    }
    starts.push(next);
    starts
}

struct Carrier<'p> {
    program: &'p Program,
    /// Of the old program.
    weights: &'p Weights,
    counts: Counts,
    trust: Trust,
    /// By block of the old program.
    block_of: Vec<Option<(Block, Level)>>,
}

impl Carrier<'_> {
    fn carry(
        &mut self,
        old: &crate::outline::FuncOutline,
        (first_block, first_edge): (usize, usize),
        func: Func,
        matched: &[Option<(u32, Level)>],
    ) {
        let program = self.program;
        let new_first = program.funcs[func].blocks.as_usize().start;
        for (number, found) in matched.iter().enumerate() {
            let Some((to, level)) = *found else { continue };
            let block = new_first + to as usize;
            self.block_of[first_block + number] = Some((Block::new(block), level));
            self.counts.blocks[block] = signed(self.weights.blocks[first_block + number]);
            self.trust.blocks[block] = cost(level);
        }
        for (number, edge) in old.edges.iter().enumerate() {
            let ends = (matched[edge.source as usize], matched[edge.target as usize]);
            let (Some((source, source_level)), Some((target, target_level))) = ends else { continue };
            let (source, target) = (new_first + source as usize, Block::new(new_first + target as usize));
            // A branch may lead to one block both ways.
            let edges = program.blocks[Block::new(source)].edges.as_usize();
            let mut to_target = edges.filter(|&e| program.edges[e].target == target);
            let same_kind = to_target.clone().find(|&e| program.edges[e].kind == edge.kind);
            let Some(index) = same_kind.or_else(|| to_target.next()) else { continue };
            let count = self.weights.edges[first_edge + number];
            let known = self.counts.edges[index].get().unwrap_or(0);
            self.counts.edges[index] = signed(count.saturating_add(known.max(0) as u64));
            self.trust.edges[index] = cost(source_level.max(target_level));
        }
    }

    /// Targets of calls in blocks that are the same but for addresses.
    fn indirect(&self, matches: &[Option<(Func, Evidence)>]) -> Vec<IndirectTargets> {
        let mut sites = Vec::new();
        for site in &self.weights.indirect {
            let found = self.block_of.get(site.block.index()).copied().flatten();
            let Some((block, Level::Strong)) = found else { continue };
            if site.return_offset > self.program.blocks[block].len {
                continue;
            }
            let mut carried =
                IndirectTargets { block, return_offset: site.return_offset, targets: Vec::new(), other: site.other };
            for &(func, count) in &site.targets {
                match matches.get(func.index()).copied().flatten() {
                    Some((func, _)) => carried.targets.push((func, count)),
                    None => carried.other = carried.other.saturating_add(count),
                }
            }
            sites.push(carried);
        }
        sites.sort_by_key(|site| (site.block, site.return_offset));
        sites.dedup_by_key(|site| (site.block, site.return_offset));
        sites
    }
}

/// As a count that may be added to others.
pub(crate) fn signed(count: u64) -> Count {
    Count::new(i64::try_from(count).unwrap_or(i64::MAX / 4).min(i64::MAX / 4))
}

/// What changing a count by one costs, by how its block was recognized.
fn cost(level: Level) -> u32 {
    match level {
        Level::Strong => 4000,
        Level::Middle => 3000,
        Level::Loose => 1500,
        Level::Position => 500,
    }
}

fn judge(
    old: &Outline,
    weights: &Weights,
    first_blocks: &[usize],
    hot: &[bool],
    pairs: &[Pair],
    block_of: &[Option<(Block, Level)>],
) -> StaleQuality {
    let mut quality = StaleQuality { functions_total: hot.iter().filter(|&&hot| hot).count(), ..StaleQuality::default() };
    for &(_, _, evidence) in pairs {
        match evidence {
            Evidence::Content => quality.functions_equal += 1,
            Evidence::Name => quality.functions_named += 1,
            Evidence::Neighborhood => quality.functions_found += 1,
        }
    }
    for (func, outline) in old.funcs.iter().enumerate().filter(|&(func, _)| hot[func]) {
        for (number, block) in outline.blocks.iter().enumerate() {
            let index = first_blocks[func] + number;
            let count = weights.blocks[index].saturating_mul(u64::from(block.num_insts.max(1)));
            if count == 0 {
                continue;
            }
            quality.blocks_total += 1;
            quality.counts_total = quality.counts_total.saturating_add(count);
            if block_of[index].is_some() {
                quality.blocks_matched += 1;
                quality.counts_matched = quality.counts_matched.saturating_add(count);
            }
        }
    }
    quality
}
