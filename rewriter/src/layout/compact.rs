//! The order of blocks that needs the fewest bytes: a branch that reaches has two, one that doesn't five or six.
//!
//! **Problem.** Compilers order blocks for speed. Error paths stand at a function's end or in a part of their own, so that most branches to them are
//! long: in CPython conditional ones with four bytes of distance are 12 % of the code.
//!
//! **Method.** What runs on into the next block stays together as a *chain*, so no instruction is executed more than before. The chains of a function, those of
//! its split-off part included where unwinders find the same rules, are put into another order: greedily, each time the chain by which the most branches become
//! short, less those that get out of reach by it; then single chains move to where they cost least, as long as that helps. What unwinders have to be told between one
//! chain and the next counts too ([`seams`]). Sizes are measured as the encoder makes them, and the order stays as it was where nothing is won.
//!
//! What a profile has seen to run is laid out for speed already, in front of the rest of its function, and stays as it is: all of it is one chain, the first. So does what ran by the profile of an optimizer before.
//!
//! **Invariants.** A permutation of each function's blocks; its entry is first; no chain is torn, so each fallthrough stays one. The result depends on the program and
//! the plan alone.
//!
//! **Termination.** The greedy order places a chain each time; a move needs a smaller sum of sizes, and there is a bound on the work.
//!
//! The problem is NP-hard (Bernhard and others, "Branch displacement optimization", the case with movable code); this is a local search.

use lifter::Image;
use lifter::entity::{Block, Func};
use lifter::ir::{CodeTarget, Program, Terminator};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use self::seams::{Seams, Told};
use self::search::Search;
use super::{align, count_of};
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature};
use crate::terminator::{LONG_BRANCH, LONG_JUMP, SHORT};

mod seams;
mod search;

/// As far as a short branch reaches forward.
const REACH: i64 = 127;
/// A `loop` that does not reach is `loop +2; jmp +5; jmp`.
const LONG_LOOP: u32 = 9;
/// Chains and branches looked at per fragment, at most.
const WORK_MAX: usize = 12_000_000;
/// Chains that the greedy order chooses from: those that came up last.
const RECENT: usize = 64;
/// Rounds of moving single chains.
const ROUNDS_MAX: usize = 4;

/// Orders the blocks of all fragments anew, but for what ran; returns how many bytes that saves, as far as is known before addresses are.
pub fn compact(image: &Image<'_>, program: &Program, weights: &Weights, plan: &mut LayoutPlan) -> u64 {
    let stand_in = |block: Block| plan.folded_blocks.stand_in(plan.folded.stand_in(program, block));
    let len = |fragment: &FragmentPlan| {
        // Only its code is measured, not its rows.
        let graph = Graph::new(program, fragment, Seams::default(), &stand_in, 0);
        let order: Vec<u32> = (0..graph.pieces.len() as u32).collect();
        graph.measure(&order).len
    };
    let before: u64 = plan.fragments.par_iter().map(len).sum();
    let mut fragments = joined(program, plan.fragments.clone());
    let after: u64 = fragments
        .par_iter_mut()
        .map(|fragment| {
            let seams = Seams::of(image, program, fragment);
            let (order, len) = Graph::new(program, fragment, seams, &stand_in, num_placed(weights, fragment)).best();
            fragment.blocks = order.iter().map(|&piece| fragment.blocks[piece as usize]).collect();
            len
        })
        .sum();
    plan.fragments = fragments;
    before.saturating_sub(after)
}

/// How many of a fragment's first blocks keep their order, since some of them ran.
fn num_placed(weights: &Weights, fragment: &FragmentPlan) -> usize {
    match fragment.blocks.iter().rposition(|planned| count_of(weights, planned.block) > 0) {
        Some(last) => last + 1,
        // That it was called is known, but not which way it went.
        None if fragment.temperature == Temperature::Hot => fragment.blocks.len(),
        None => 0,
    }
}

/// The fragments with the split-off parts of each function behind the rest of it.
fn joined(program: &Program, fragments: Vec<FragmentPlan>) -> Vec<FragmentPlan> {
    let class = |fragment: &FragmentPlan| {
        let first = fragment.blocks.first()?.block;
        Some(program.ranges[program.blocks[first].range as usize].unwind_class)
    };
    let mut mains: FxHashMap<(Func, Option<u32>), usize> = FxHashMap::default();
    for (index, fragment) in fragments.iter().enumerate().filter(|(_, fragment)| fragment.clone.is_none()) {
        if fragment.blocks.first().is_some_and(|first| first.block == program.funcs[fragment.func].entry) {
            mains.insert((fragment.func, class(fragment)), index);
        }
    }
    let mut parts: FxHashMap<usize, Vec<PlannedBlock>> = FxHashMap::default();
    let mut is_joined = vec![false; fragments.len()];
    for (index, fragment) in fragments.iter().enumerate().filter(|(_, fragment)| fragment.clone.is_none()) {
        let main = mains.get(&(fragment.func, class(fragment))).filter(|&&main| main != index);
        if let Some(&main) = main.filter(|&&main| fragments[main].temperature == fragment.temperature) {
            parts.entry(main).or_default().extend(&fragment.blocks);
            is_joined[index] = true;
        }
    }
    let mut all = Vec::with_capacity(fragments.len());
    for (index, mut fragment) in fragments.into_iter().enumerate().filter(|(index, _)| !is_joined[*index]) {
        if let Some(blocks) = parts.remove(&index) {
            fragment.blocks.extend(blocks);
            align::raise_to_blocks(&mut fragment);
        }
        all.push(fragment);
    }
    all
}

/// Where a branch goes: to a piece of the fragment, or out of it.
type Target = Option<u32>;

#[derive(Copy, Clone, Debug)]
enum End {
    Stop,
    Jump(Target),
    Branch(Target, Target),
    Loop(Target, Target),
}

/// A block.
#[derive(Copy, Clone, Debug)]
struct Piece {
    body: u32,
    align: u32,
    end: End,
}

/// The instructions that a piece ends with, by where they go: the conditional one, and the jump.
#[derive(Copy, Clone, Debug, Default)]
struct Emitted {
    branch: Option<(Target, u32)>,
    jump: Option<Target>,
}

impl Piece {
    /// As `terminator::emit` makes it, with the conditional one's long size.
    fn emitted(&self, following: Target) -> Emitted {
        let follows = |target: Target| target.is_some() && target == following;
        match self.end {
            End::Stop => Emitted::default(),
            End::Jump(target) => Emitted { branch: None, jump: (!follows(target)).then_some(target) },
            End::Branch(taken, next) if follows(next) => Emitted { branch: Some((taken, LONG_BRANCH)), jump: None },
            End::Branch(taken, next) if follows(taken) => Emitted { branch: Some((next, LONG_BRANCH)), jump: None },
            End::Branch(taken, next) => Emitted { branch: Some((taken, LONG_BRANCH)), jump: Some(next) },
            End::Loop(taken, next) => Emitted { branch: Some((taken, LONG_LOOP)), jump: (!follows(next)).then_some(next) },
        }
    }
}

struct Graph {
    pieces: Vec<Piece>,
    /// Runs of pieces, as ranges.
    chains: Vec<(u32, u32)>,
    seams: Seams,
}

/// Runs of pieces of which each runs on into the next; the first `placed` pieces are in one.
fn chains_of(pieces: &[Piece], placed: usize) -> Vec<(u32, u32)> {
    let mut chains: Vec<(u32, u32)> = Vec::new();
    for at in 0..pieces.len() as u32 {
        let runs_on = |before: &Piece| match before.end {
            End::Stop => false,
            End::Jump(next) | End::Loop(_, next) => next == Some(at),
            End::Branch(taken, next) => taken == Some(at) || next == Some(at),
        };
        let is_placed = (at as usize) < placed;
        match chains.last_mut().filter(|chain| is_placed || runs_on(&pieces[chain.1 as usize - 1])) {
            Some(chain) => chain.1 = at + 1,
            None => chains.push((at, at + 1)),
        }
    }
    chains
}

/// Sizes under some order.
struct Measured {
    len: u64,
    /// By piece: bytes of its conditional branch, and of its jump.
    sizes: Vec<(u32, u32)>,
}

impl Graph {
    fn new(program: &Program, fragment: &FragmentPlan, seams: Seams, stand_in: &dyn Fn(Block) -> Block, placed: usize) -> Self {
        let index: FxHashMap<Block, u32> = (0..).zip(&fragment.blocks).map(|(piece, planned)| (planned.block, piece)).collect();
        let target = |target: CodeTarget| match target {
            CodeTarget::Block(block) => index.get(&stand_in(block)).copied(),
            CodeTarget::Fixed(_) => None,
        };
        let piece = |planned: &PlannedBlock| {
            let data = &program.blocks[planned.block];
            let end = match data.terminator {
                Terminator::Fallthrough { next } => End::Jump(target(CodeTarget::Block(next))),
                Terminator::Jump { target: to } => End::Jump(target(to)),
                Terminator::Branch { taken, next, .. } => End::Branch(target(taken), target(CodeTarget::Block(next))),
                Terminator::Loop { taken, next } => End::Loop(target(CodeTarget::Block(taken)), target(CodeTarget::Block(next))),
                Terminator::Stop(_) => End::Stop,
            };
            Piece { body: data.body_len, align: u32::from(planned.align), end }
        };
        let pieces: Vec<Piece> = fragment.blocks.iter().map(piece).collect();
        let chains = chains_of(&pieces, placed);
        Graph { pieces, chains, seams }
    }

    fn pieces_of(&self, order: &[u32]) -> Vec<u32> {
        order.iter().flat_map(|&chain| self.chains[chain as usize].0..self.chains[chain as usize].1).collect()
    }

    /// The order of pieces with the fewest bytes that was found, rows included, and how many its code has.
    fn best(&self) -> (Vec<u32>, u64) {
        let in_order: Vec<u32> = (0..self.pieces.len() as u32).collect();
        let before = self.measure(&in_order);
        let rows = self.seams.total(&in_order);
        let mut best = (in_order, before.len, before.len as i64 + rows);
        // The first chain has its place.
        if self.chains.len() > 2 {
            let given: Vec<u32> = (0..self.chains.len() as u32).collect();
            let greedy = Some(self.greedy(&before)).filter(|greedy| *greedy != given);
            for start in greedy.into_iter().chain([given]) {
                let order = self.pieces_of(&self.improved(start));
                let len = self.measure(&order).len;
                let total = len as i64 + self.seams.total(&order);
                if total < best.2 {
                    best = (order, len, total);
                }
            }
        }
        (best.0, best.1)
    }

    /// Lays the pieces out as the encoder does: all short, then longer what doesn't reach.
    fn measure(&self, order: &[u32]) -> Measured {
        let count = self.pieces.len();
        let emitted: Vec<Emitted> = order
            .iter()
            .enumerate()
            .map(|(at, &piece)| self.pieces[piece as usize].emitted(order.get(at + 1).copied()))
            .collect();
        let mut starts = vec![0i64; count];
        let mut sizes = vec![(0, 0); count];
        for (&piece, emitted) in order.iter().zip(&emitted) {
            let size = |target: Target, long: u32| if target.is_some() { SHORT } else { long };
            sizes[piece as usize] = (
                emitted.branch.map_or(0, |(target, long)| size(target, long)),
                emitted.jump.map_or(0, |target| size(target, LONG_JUMP)),
            );
        }
        loop {
            let mut at = 0i64;
            for &piece in order {
                let data = &self.pieces[piece as usize];
                at = (at as u64).next_multiple_of(u64::from(data.align.max(1))) as i64;
                starts[piece as usize] = at;
                at += i64::from(data.body + sizes[piece as usize].0 + sizes[piece as usize].1);
            }
            let mut has_grown = false;
            for (&piece, emitted) in order.iter().zip(&emitted) {
                let (branch, jump) = sizes[piece as usize];
                let end = starts[piece as usize] + i64::from(self.pieces[piece as usize].body + branch);
                let is_far = |target: Target, end: i64| {
                    target.is_some_and(|target| !(-REACH - 1..=REACH).contains(&(starts[target as usize] - end)))
                };
                if let Some((_, long)) = emitted.branch.filter(|&(target, long)| branch < long && is_far(target, end)) {
                    sizes[piece as usize].0 = long;
                    has_grown = true;
                }
                if emitted.jump.is_some_and(|target| jump < LONG_JUMP && is_far(target, end + i64::from(jump))) {
                    sizes[piece as usize].1 = LONG_JUMP;
                    has_grown = true;
                }
            }
            if !has_grown {
                return Measured { len: at as u64, sizes };
            }
        }
    }

    /// What the search looks at, with sizes as they were measured.
    fn model(&self, measured: &Measured) -> Model<'_> {
        let mut chain_of = vec![0u32; self.pieces.len()];
        let mut offsets = vec![0i64; self.pieces.len()];
        let mut lens = vec![0i64; self.chains.len()];
        for (chain, &(start, end)) in (0..).zip(&self.chains) {
            let mut at = 0;
            for piece in start..end {
                (chain_of[piece as usize], offsets[piece as usize]) = (chain, at);
                let (branch, jump) = measured.sizes[piece as usize];
                at += i64::from(self.pieces[piece as usize].body + branch + jump);
            }
            lens[chain as usize] = at;
        }
        let mut branches = Vec::new();
        for (chain, &(start, end)) in (0u32..).zip(&self.chains) {
            for piece in start..end {
                let data = &self.pieces[piece as usize];
                let is_last = piece + 1 == end;
                let emitted = data.emitted((!is_last).then_some(piece + 1));
                let from = offsets[piece as usize] + i64::from(data.body + SHORT);
                let jumps = [emitted.branch, emitted.jump.map(|target| (target, LONG_JUMP))];
                for (target, long) in jumps.into_iter().flatten() {
                    let Some(target) = target.filter(|&target| chain_of[target as usize] != chain) else { continue };
                    let (to_chain, to) = (chain_of[target as usize], offsets[target as usize]);
                    // The way that ends a chain costs nothing where it leads to what follows.
                    let is_end = is_last && to == 0 && self.chains[to_chain as usize].0 == target;
                    let spared = if is_end { SHORT } else { 0 };
                    branches.push(Branch { chain, from, to_chain, to, gain: long - SHORT, spared });
                }
            }
        }
        let ends = self.chains.iter().map(|&(first, end)| self.seams.ends(first, end - 1)).collect();
        Model { ties: Ties::of(&lens, &branches), lens, ends, graph: self }
    }

    /// Chains one after the other, each time the one that is worth most where the last one ends.
    fn greedy(&self, measured: &Measured) -> Vec<u32> {
        let model = self.model(measured);
        let count = self.chains.len();
        let mut places: Vec<Option<i64>> = vec![None; count];
        let mut order = Vec::with_capacity(count);
        let (mut at, mut next, mut chain) = (0, 0, 0u32);
        // Chains that something placed leads to or that lead there, in the order in which they came up.
        let mut open: Vec<u32> = Vec::new();
        let mut is_open = vec![false; count];
        // Of the branches between what is placed and each of these, those that reach from here.
        let mut reaching: Vec<Reaching> = Vec::new();
        loop {
            places[chain as usize] = Some(at);
            order.push(chain);
            at += model.lens[chain as usize];
            for other in model.ties.of_chain(chain).iter().map(|tie| tie.other) {
                if places[other as usize].is_none() && !std::mem::replace(&mut is_open[other as usize], true) {
                    open.push(other);
                }
            }
            if let Some(index) = open.iter().rposition(|&other| other == chain) {
                open.remove(index);
            }
            while next < count && places[next].is_some() {
                next += 1;
            }
            if next == count {
                return order;
            }
            // Only what came up lately is still in reach.
            let recent = &open[open.len().saturating_sub(RECENT)..];
            let candidates = recent.iter().rev().copied().chain([next as u32]);
            let (ties, known) = (&model.ties, &places);
            let reaching_from = |candidate: u32| {
                ties.of_chain(candidate).iter().filter_map(move |tie| {
                    let distance = at - known[tie.other as usize]? + if tie.is_source { -tie.offset } else { tie.offset };
                    let (more, gain) = (REACH - distance, i64::from(tie.gain));
                    (more >= 0).then_some(Reaching { chain: candidate, more, gain })
                })
            };
            reaching.clear();
            recent.iter().for_each(|&candidate| reaching.extend(reaching_from(candidate)));
            let gained = |candidate: u32| reaching_from(candidate).map(|branch| branch.gain).sum::<i64>();
            // What the others have to do without if so many bytes come between.
            let lost = |candidate: u32, len: i64| {
                let out_of_reach = reaching.iter().filter(|branch| branch.chain != candidate && branch.more < len);
                out_of_reach.map(|branch| branch.gain).sum::<i64>()
            };
            let follows = |candidate: u32| {
                model.ties.of_chain(chain).iter().any(|tie| tie.is_source && tie.other == candidate && tie.spared > 0)
            };
            let mut best: Option<(i64, std::cmp::Reverse<i64>, std::cmp::Reverse<u32>)> = None;
            for candidate in candidates {
                let len = model.lens[candidate as usize];
                let spared = if follows(candidate) { i64::from(SHORT) } else { 0 };
                let seam = model.seam(chain, candidate);
                let gain = gained(candidate) - lost(candidate, len) + spared - seam;
                let key = (gain, std::cmp::Reverse(len), std::cmp::Reverse(candidate));
                if best.is_none_or(|known| key > known) {
                    best = Some(key);
                }
            }
            let Some((_, _, std::cmp::Reverse(chosen))) = best else { return order };
            chain = chosen;
        }
    }

    /// Moves single chains to where they cost least.
    fn improved(&self, mut order: Vec<u32>) -> Vec<u32> {
        let mut work = 0;
        for _ in 0..ROUNDS_MAX {
            let model = self.model(&self.measure(&self.pieces_of(&order)));
            let mut search = Search::new(&model, order);
            let has_changed = search.round(&mut work);
            order = search.order;
            if !has_changed || work > WORK_MAX {
                break;
            }
        }
        order
    }
}

/// A branch from one chain to another.
#[derive(Copy, Clone, Debug)]
struct Branch {
    chain: u32,
    /// The branch's end if it is short, from its chain's start.
    from: i64,
    to_chain: u32,
    to: i64,
    /// What it saves to be short.
    gain: u32,
    /// What it saves besides not to be there, where it leads to the chain that follows.
    spared: u32,
}

/// Of a branch between what is placed and what is not, how many bytes more may come between.
#[derive(Copy, Clone, Debug)]
struct Reaching {
    /// The one that is not placed.
    chain: u32,
    more: i64,
    gain: i64,
}

/// A branch as one of its two chains has it.
#[derive(Copy, Clone, Debug)]
struct Tie {
    /// How much further the target is from the branch than one chain's start from the other's.
    offset: i64,
    /// The length of the chain that the branch is in: so far behind it follows what follows it.
    behind: i64,
    other: u32,
    gain: u32,
    spared: u32,
    is_source: bool,
}

impl Tie {
    /// What the branch saves if its chains begin at these addresses.
    fn saved(&self, start: i64, other: i64) -> i64 {
        let apart = if self.is_source { other - start } else { start - other };
        let is_short = (-REACH - 1..=REACH).contains(&(apart + self.offset));
        let follows = apart == self.behind;
        i64::from(if is_short { self.gain } else { 0 }) + i64::from(if follows { self.spared } else { 0 })
    }
}

/// The ties of all chains, side by side.
#[derive(Debug)]
struct Ties {
    /// By chain, where its ties begin; and the end of all.
    starts: Vec<u32>,
    all: Vec<Tie>,
}

impl Ties {
    /// Those of one chain are in the order of the branches.
    fn of(lens: &[i64], branches: &[Branch]) -> Self {
        let mut ends = vec![0u32; lens.len() + 1];
        let chains = branches.iter().flat_map(|branch| [branch.chain, branch.to_chain]);
        chains.for_each(|chain| ends[chain as usize + 1] += 1);
        (0..lens.len()).for_each(|chain| ends[chain + 1] += ends[chain]);
        let starts = ends.clone();
        let none = Tie { offset: 0, behind: 0, other: 0, gain: 0, spared: 0, is_source: false };
        let mut all = vec![none; 2 * branches.len()];
        for &Branch { chain, from, to_chain, to, gain, spared } in branches {
            let (offset, behind) = (to - from, lens[chain as usize]);
            for (own, other) in [(chain, to_chain), (to_chain, chain)] {
                all[ends[own as usize] as usize] = Tie { offset, behind, other, gain, spared, is_source: own == chain };
                ends[own as usize] += 1;
            }
        }
        Self { starts, all }
    }

    fn of_chain(&self, chain: u32) -> &[Tie] {
        &self.all[self.starts[chain as usize] as usize..self.starts[chain as usize + 1] as usize]
    }
    fn num_branches(&self) -> usize {
        self.all.len() / 2
    }
}

struct Model<'a> {
    lens: Vec<i64>,
    /// By chain, what unwind tables say where it begins and where it ends.
    ends: Vec<(Told, Told)>,
    ties: Ties,
    graph: &'a Graph,
}

impl Model<'_> {
    /// Bytes of unwind tables between two chains that follow each other.
    fn seam(&self, chain: u32, next: u32) -> i64 {
        self.graph.seams.step(self.ends[chain as usize].1, self.ends[next as usize].0)
    }
}

#[cfg(test)]
mod tests;
