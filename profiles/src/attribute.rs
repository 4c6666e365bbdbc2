//! A profile file's counts carried over to a program.
//!
//! Where the profile was made from the program at hand, functions correspond by position; where that was lifted otherwise, by address (`same_file`). A file of another build that outlines that
//! build is carried over as `stale` does it. Of one that does not, functions are matched by name and
//! content hash together, then by content hash alone; of several that are equal, the first with the first, and so on. Within a
//! matched function, sites are found by their offsets. A function whose sites are not all found is not matched: half its
//! counters would derive wrong counts. What is left unmatched is told in [`Quality`].

use lifter::Image;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{EdgeKind, Program};
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::format::{CallCounts, Descriptor, FuncDescriptor, ProfileFile, Site, Target};
use crate::format::{block_offsets, identity, name_of};
use crate::infer::infer;
use crate::instrument::{Count, CounterPlan, CounterSite, Counts, derive};
use crate::outline::Outline;
use crate::same_file::carry_by_address;
use crate::stale::{StaleQuality, carry_over};
use crate::weights::{IndirectTargets, Weights};

/// How much of a profile found its place.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Whether the profile was made from this very program, lifted as it is now.
    pub is_exact: bool,
    /// Of the functions with counts.
    pub functions_matched: usize,
    pub functions_total: usize,
    /// Of the sum of all counters.
    pub counts_matched: u64,
    pub counts_total: u64,
    /// Where it was made from another build and says what that looked like: what was carried over.
    pub stale: Option<StaleQuality>,
}

/// What a profile says of a program: what was counted and derived, and the same made consistent.
#[derive(Clone, Debug)]
pub struct Attribution {
    pub counts: Counts,
    pub weights: Weights,
    pub quality: Quality,
}

/// Carries a profile over to a program and makes its flow consistent.
pub fn attribute(profile: &ProfileFile, image: &Image<'_>, program: &Program) -> Result<Attribution> {
    let funcs = &profile.descriptor.funcs;
    let is_same_file = profile.descriptor.identity == identity(image);
    let is_exact = is_same_file && profile.descriptor.is_cut_like(program);
    if !is_exact && let Some(outline) = profile.descriptor.outline() {
        if is_same_file && outline.is_placed() {
            let (weights, quality) = carry_by_address(&outline, &solve(profile, &outline), program);
            return Ok(Attribution::of_weights(weights, quality));
        }
        return carry(profile, &outline, image, program);
    }
    let matches = match is_exact {
        true => program.funcs.keys().map(Some).collect(),
        false => match_by_content(&profile.descriptor, image, program),
    };
    let mut quality = Quality { is_exact, ..Quality::default() };
    let mut plan = CounterPlan::default();
    let mut values = Vec::new();
    let mut matched = vec![None; funcs.len()];
    let mut next_counter = 0;
    for (index, descriptor) in funcs.iter().enumerate() {
        let counters = profile.counters.get(next_counter..next_counter + descriptor.sites.len()).unwrap_or(&[]);
        next_counter += descriptor.sites.len();
        let sum = counters.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
        quality.functions_total += usize::from(sum != 0);
        quality.counts_total = quality.counts_total.saturating_add(sum);
        let Some(func) = matches[index] else { continue };
        let Some(mut sites) = Places::build(program, func).find_sites(descriptor) else { continue };
        matched[index] = Some(func);
        quality.functions_matched += usize::from(sum != 0);
        quality.counts_matched = quality.counts_matched.saturating_add(sum);
        plan.counters.append(&mut sites);
        values.extend_from_slice(counters);
    }
    if funcs.iter().zip(&matched).all(|(func, matched)| func.sites.is_empty() || matched.is_none()) {
        return Err(Error::AnotherBinary { functions: funcs.len() });
    }
    let counts = derive(program, &plan, &values);
    let mut weights = infer(program, &counts);
    let places = |func: Func| Places::build(program, func);
    weights.indirect = indirect_targets(profile, &places, |block| program.blocks[block].len, &matched);
    Ok(Attribution { counts, weights, quality })
}

impl Attribution {
    /// Where all that is known is already consistent.
    fn of_weights(weights: Weights, quality: Quality) -> Self {
        let known = |values: &[u64]| values.iter().map(|&v| Count::new(i64::try_from(v).unwrap_or(i64::MAX / 4))).collect();
        Attribution { counts: Counts { blocks: known(&weights.blocks), edges: known(&weights.edges) }, weights, quality }
    }
}

/// What a profile says of the program that it outlines.
fn solve(profile: &ProfileFile, outline: &Outline) -> Weights {
    let old = outline.to_program();
    let mut plan = CounterPlan::default();
    let mut values = Vec::new();
    let mut rest = profile.counters.as_slice();
    let places = |func: Func| Places::of_outline(&old, func, outline);
    for (func, descriptor) in old.funcs.keys().zip(&profile.descriptor.funcs) {
        let (counters, behind) = rest.split_at(descriptor.sites.len().min(rest.len()));
        rest = behind;
        if let Some(mut sites) = places(func).find_sites(descriptor) {
            plan.counters.append(&mut sites);
            values.extend_from_slice(counters);
        }
    }
    let mut weights = infer(&old, &derive(&old, &plan, &values));
    let all: Vec<Option<Func>> = old.funcs.keys().map(Some).collect();
    weights.indirect = indirect_targets(profile, &places, |_| u32::MAX, &all);
    weights
}

/// Carries over the profile of another build.
fn carry(profile: &ProfileFile, outline: &Outline, image: &Image<'_>, program: &Program) -> Result<Attribution> {
    let (weights, stale) = carry_over(outline, &solve(profile, outline), &Outline::build(image, program), program);
    if stale.functions_matched() == 0 && stale.functions_total != 0 {
        return Err(Error::AnotherBinary { functions: profile.descriptor.funcs.len() });
    }
    let quality = Quality {
        is_exact: false,
        functions_matched: stale.functions_matched(),
        functions_total: stale.functions_total,
        counts_matched: stale.counts_matched,
        counts_total: stale.counts_total,
        stale: Some(stale),
    };
    Ok(Attribution::of_weights(weights, quality))
}

/// For each function of the descriptor, the one of the program with the same content.
fn match_by_content(descriptor: &Descriptor, image: &Image<'_>, program: &Program) -> Vec<Option<Func>> {
    // Candidates in descending order, so that `pop` gives the first that is left.
    let mut by_name: FxHashMap<(&str, u64), Vec<Func>> = FxHashMap::default();
    let mut by_hash: FxHashMap<u64, Vec<Func>> = FxHashMap::default();
    for func in program.funcs.keys().rev() {
        let hash = program.funcs[func].content_hash;
        by_name.entry((name_of(image, program, func), hash)).or_default().push(func);
        by_hash.entry(hash).or_default().push(func);
    }
    let mut is_taken = vec![false; program.funcs.len()];
    let mut matches: Vec<Option<Func>> = descriptor
        .funcs
        .iter()
        .map(|f| {
            let found = by_name.get_mut(&(f.name.as_str(), f.content_hash))?.pop()?;
            is_taken[found.index()] = true;
            Some(found)
        })
        .collect();
    for (found, f) in matches.iter_mut().zip(&descriptor.funcs).filter(|(found, _)| found.is_none()) {
        let Some(candidates) = by_hash.get_mut(&f.content_hash) else { continue };
        while let Some(candidate) = candidates.pop() {
            if !is_taken[candidate.index()] {
                *found = Some(candidate);
                break;
            }
        }
    }
    matches
}

/// A function's blocks by their offset from its start.
struct Places<'p> {
    program: &'p Program,
    /// Ascending by offset.
    blocks: Vec<(u32, Block)>,
}

impl<'p> Places<'p> {
    fn build(program: &'p Program, func: Func) -> Self {
        Self::new(program, func, block_offsets(program, func).into_iter())
    }

    fn of_outline(program: &'p Program, func: Func, outline: &Outline) -> Self {
        let blocks = outline.funcs.get(func.index()).map_or(&[][..], |f| f.blocks.as_slice());
        Self::new(program, func, blocks.iter().map(|b| b.offset))
    }

    fn new(program: &'p Program, func: Func, offsets: impl Iterator<Item = u32>) -> Self {
        let mut blocks: Vec<(u32, Block)> = offsets.zip(program.funcs[func].blocks.iter()).collect();
        blocks.sort_unstable();
        Places { program, blocks }
    }

    fn block(&self, offset: u32) -> Option<Block> {
        let index = self.blocks.binary_search_by_key(&offset, |&(o, _)| o).ok()?;
        Some(self.blocks[index].1)
    }

    fn find_sites(&self, descriptor: &FuncDescriptor) -> Option<Vec<CounterSite>> {
        descriptor.sites.iter().map(|&site| self.find(site)).collect()
    }

    fn find(&self, site: Site) -> Option<CounterSite> {
        match site {
            Site::Block { offset } => Some(CounterSite::Block(self.block(offset)?)),
            Site::Edge { source, is_taken, target } => {
                let (source, target) = (self.block(source)?, self.block(target)?);
                let kind = if is_taken { EdgeKind::Taken } else { EdgeKind::Fallthrough };
                let mut edges = self.program.blocks[source].edges.as_usize();
                let index = edges.find(|&e| self.program.edges[e].kind == kind && self.program.edges[e].target == target)?;
                Some(CounterSite::Edge(index as u32))
            }
        }
    }
}

/// Recorded calls of matched functions, with their targets as functions of the program.
fn indirect_targets<'p>(
    profile: &ProfileFile,
    places_of: &impl Fn(Func) -> Places<'p>,
    len_of: impl Fn(Block) -> u32,
    matched: &[Option<Func>],
) -> Vec<IndirectTargets> {
    let funcs = &profile.descriptor.funcs;
    let mut entries: Vec<(u64, Func)> =
        funcs.iter().zip(matched).filter_map(|(f, matched)| Some((u64::from(f.entry?), (*matched)?))).collect();
    entries.sort_unstable();
    let func_at = |target: Target| match target {
        Target::Image(offset) => {
            let index = entries.binary_search_by_key(&offset, |&(entry, _)| entry).ok()?;
            Some(entries[index].1)
        }
        Target::External => None,
    };
    let mut result = Vec::new();
    let mut next_call = 0;
    for (descriptor, &matched) in funcs.iter().zip(matched) {
        let calls = profile.calls.get(next_call..next_call + descriptor.calls.len()).unwrap_or(&[]);
        next_call += descriptor.calls.len();
        let Some(func) = matched.filter(|_| !calls.is_empty()) else { continue };
        let places = places_of(func);
        for (call, counts) in descriptor.calls.iter().zip(calls) {
            let Some(block) = places.block(call.block_offset) else { continue };
            let return_offset = call.offset.saturating_add(u32::from(call.len));
            if counts.targets.is_empty() && counts.other == 0 || return_offset > len_of(block) {
                continue;
            }
            result.push(resolve_targets(block, return_offset, counts, func_at));
        }
    }
    result.sort_by_key(|site| (site.block, site.return_offset));
    result
}

fn resolve_targets(
    block: Block,
    return_offset: u32,
    counts: &CallCounts,
    func_at: impl Fn(Target) -> Option<Func>,
) -> IndirectTargets {
    let mut site = IndirectTargets { block, return_offset, targets: Vec::new(), other: counts.other };
    for &(target, count) in &counts.targets {
        match func_at(target) {
            Some(func) => site.targets.push((func, count)),
            None => site.other = site.other.saturating_add(count),
        }
    }
    site
}
