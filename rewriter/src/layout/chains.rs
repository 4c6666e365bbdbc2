//! Orders the blocks of a function by merging chains, so that the extended TSP score is high.
//!
//! **Method.** (Newell and Pupyrev, "Improved Basic Block Reordering".) Each block begins as a chain of its own; the pair of chains whose merge
//! raises the score most is merged, until no merge does. A chain X may take in a chain Y at either end or, cut in two, in the
//! middle (`MergeType`); cutting is what rotates loops. What is left is joined where blocks fell through in the input, then
//! sorted by density (executions per byte). `polish` then moves single runs of blocks, which repairs what greed got wrong.
//!
//! **Cost.** Only chains joined by a jump are candidates. A candidate waits in a heap under an upper bound of its gain and is evaluated when it
//! comes up, so a merge does not re-evaluate every neighbor. The gain of a cut is counted from the jumps that cross the cut; in a chain longer than `SPLIT_BLOCKS_MAX`
//! only those near enough to earn anything are looked at, and only the cuts that a jump asks for. A cut that can't beat the best one so far (`inside`) is
//! not evaluated.
//!
//! **Invariants.** Each block is in one chain, at `place[block]`. The block that must come first is first in its chain. The result never scores
//! below the given order, nor has it fewer fallthroughs. Ties are broken by index, so the result depends on the graph alone.
//!
//! **Termination.** Each merge removes a chain; each evaluated candidate is pushed again at most once before a merge of one of its chains;
//! `polish` raises an integer that is bounded by the sum of all counts, and has a limit of passes.

mod inside;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::ext_tsp::{
    BlockGraph, FORWARD_BYTES_MAX, Jump, JumpKind, jump_score, jump_score_max, order_fallthroughs, order_score,
};
use super::links::{Link, Links};
use super::polish::polish;
use inside::{Inner, Inside};

/// Chains up to this length are cut at every seam.
const SPLIT_BLOCKS_MAX: usize = 128;
/// The same in functions of more than `LARGE_BLOCKS` blocks, where that would take seconds.
const SPLIT_BLOCKS_MAX_IN_LARGE: usize = 32;
const LARGE_BLOCKS: usize = 2000;
/// Cuts tried for the sake of a jump, per pair of chains and direction.
const SPLITS_ALONG_JUMPS_MAX: usize = 16;
/// A gain below this is rounding.
const GAIN_MIN: f64 = 1e-6;

/// An order of all blocks of the graph, at least as good as `0, 1, 2, …`.
pub(crate) fn order(graph: &BlockGraph) -> Vec<u32> {
    let mut original: Vec<u32> = (0..graph.len() as u32).collect();
    if let Some(entry) = graph.entry {
        original[..=entry as usize].rotate_right(1);
    }
    if graph.len() < 2 {
        return original;
    }
    let mut merged = Merger::new(graph).run();
    polish(graph, &mut merged);
    polish(graph, &mut original);
    // Fallthroughs first: taken branches are what the layout is for, and the score's other terms are a guess at locality.
    let quality = |order: &[u32]| (order_fallthroughs(graph, order), order_score(graph, order));
    let (merged_quality, original_quality) = (quality(&merged), quality(&original));
    if original_quality.partial_cmp(&merged_quality) == Some(Ordering::Greater) { original } else { merged }
}

/// How a chain X, cut into X1 and X2, and a chain Y become one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum MergeType {
    /// X Y, no cut.
    Append,
    /// X1 Y X2.
    Insert,
    /// Y X2 X1.
    RotateAfter,
    /// X2 X1 Y.
    RotateBefore,
}

#[derive(Copy, Clone, Debug)]
struct Merge {
    gain: f64,
    /// X and Y.
    into: u32,
    from: u32,
    kind: MergeType,
    /// The index in X of the first block of X2.
    cut: u32,
}

#[derive(Debug, Default)]
struct Chain {
    nodes: Vec<u32>,
    size: i64,
    count: f64,
}

/// Where a block is.
#[derive(Copy, Clone, Debug)]
struct Place {
    chain: u32,
    index: u32,
    offset: i64,
}

/// A merge of two linked chains that may pay. Many wait, so each is small.
#[derive(Copy, Clone, Debug)]
struct Candidate {
    gain: f64,
    chains: (u32, u32),
    link: u32,
    /// Of the link, times two; odd if the gain is exact, and the link's merge is known. Otherwise the gain is an upper bound.
    version: u32,
}

impl Candidate {
    fn is_exact(&self) -> bool {
        self.version % 2 == 1
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_gain = self.gain.total_cmp(&other.gain);
        by_gain.then(other.chains.cmp(&self.chains)).then(self.is_exact().cmp(&other.is_exact()))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Candidate {}

struct Merger<'g> {
    graph: &'g BlockGraph,
    split_blocks_max: usize,
    place: Vec<Place>,
    /// By the index of the block that it began with; empty once merged into another.
    chains: Vec<Chain>,
    /// By chain, what is known of its inside.
    insides: Vec<Option<Inside<'g>>>,
    links: Links,
    /// By link, the merge that its exact candidate stands for.
    merges: Vec<Option<Merge>>,
    candidates: BinaryHeap<Candidate>,
}

impl<'g> Merger<'g> {
    fn new(graph: &'g BlockGraph) -> Self {
        let single = |node: u32| Chain {
            nodes: vec![node],
            size: i64::from(graph.sizes[node as usize]),
            count: graph.counts[node as usize] as f64,
        };
        let nodes = 0..graph.len() as u32;
        Self {
            graph,
            split_blocks_max: if graph.len() > LARGE_BLOCKS { SPLIT_BLOCKS_MAX_IN_LARGE } else { SPLIT_BLOCKS_MAX },
            place: nodes.clone().map(|chain| Place { chain, index: 0, offset: 0 }).collect(),
            chains: nodes.map(single).collect(),
            insides: std::iter::repeat_with(|| None).take(graph.len()).collect(),
            links: Links::new(0, Vec::new()),
            merges: Vec::new(),
            candidates: BinaryHeap::new(),
        }
    }

    fn run(mut self) -> Vec<u32> {
        self.join_forced_pairs();
        self.link_chains();
        self.merge_by_gain();
        self.join_input_fallthroughs();
        self.concatenate()
    }

    /// Joins two blocks where the one is the other's only successor and the other its only predecessor: no order is better.
    fn join_forced_pairs(&mut self) {
        let mut num_preds = vec![0u32; self.graph.len()];
        for jump in &self.graph.jumps {
            num_preds[jump.target as usize] += 1;
        }
        let forced = |node: u32| match self.graph.jumps_from(node) {
            [jump] if jump.kind != JumpKind::Indirect => {
                (num_preds[jump.target as usize] == 1 && self.graph.entry != Some(jump.target)).then_some(jump.target)
            }
            _ => None,
        };
        let nexts: Vec<Option<u32>> = (0..self.graph.len() as u32).map(forced).collect();
        let mut has_forced_pred = vec![false; self.graph.len()];
        for &next in nexts.iter().flatten() {
            has_forced_pred[next as usize] = true;
        }
        // A ring of forced pairs has no head, so it is never entered here and stays apart.
        for head in (0..self.graph.len() as u32).filter(|&node| !has_forced_pred[node as usize]) {
            let mut last = head;
            while let Some(next) = nexts[last as usize] {
                self.append(head, next);
                last = next;
            }
        }
    }

    fn append(&mut self, into: u32, from: u32) {
        let len = self.chains[into as usize].nodes.len() as u32;
        self.apply(Merge { gain: 0.0, into, from, kind: MergeType::Append, cut: len });
    }

    /// Makes a link for each pair of chains with a jump between them, and its first candidate.
    fn link_chains(&mut self) {
        let chain = |node: u32| self.place[node as usize].chain;
        let pair = |(index, jump): (u32, &Jump)| {
            let (a, b) = (chain(jump.source), chain(jump.target));
            (a != b && jump.count != 0).then_some((a, b, index))
        };
        let pairs = (0..).zip(&self.graph.jumps).filter_map(pair).collect();
        self.links = Links::new(self.chains.len(), pairs);
        self.merges = vec![None; self.links.len() as usize];
        (0..self.links.len()).for_each(|link| self.push_bound(link));
    }

    /// At most two of a link's jumps become fallthroughs in one merge; the others earn at most what a near jump does.
    fn push_bound(&mut self, link: u32) {
        let Link { jumps, chains, version } = self.links.get(link);
        let (mut best, mut second, mut near) = (0.0f64, 0.0f64, 0.0f64);
        for &jump in jumps {
            let jump = &self.graph.jumps[jump as usize];
            let (gain, near_gain) = (jump_score_max(jump), jump_score(jump, 0, 1));
            near += near_gain;
            let extra = gain - near_gain;
            if extra > best {
                (best, second) = (extra, best);
            } else if extra > second {
                second = extra;
            }
        }
        let gain = best + second + near;
        self.candidates.push(Candidate { gain, chains: *chains, link, version: 2 * version });
    }

    fn merge_by_gain(&mut self) {
        while let Some(candidate) = self.candidates.pop() {
            if self.links.get(candidate.link).version != candidate.version / 2 {
                continue;
            }
            match self.merges[candidate.link as usize].filter(|_| candidate.is_exact()) {
                Some(merge) => {
                    self.apply(merge);
                    self.renew_links(merge);
                }
                None => {
                    let (a, b) = candidate.chains;
                    self.look_inside(a);
                    self.look_inside(b);
                    let (there, back) = (self.best_merge(a, b, candidate.link), self.best_merge(b, a, candidate.link));
                    let best = match (there, back) {
                        (Some(x), Some(y)) if y.gain > x.gain => Some(y),
                        (x, y) => x.or(y),
                    };
                    if let Some(merge) = best.filter(|merge| merge.gain > GAIN_MIN) {
                        self.merges[candidate.link as usize] = Some(merge);
                        self.candidates.push(Candidate { gain: merge.gain, version: candidate.version + 1, ..candidate });
                    }
                }
            }
        }
    }

    fn renew_links(&mut self, merge: Merge) {
        for renewed in self.links.merge(merge.into, merge.from) {
            self.push_bound(renewed.link);
        }
    }

    /// The best way for X to take in Y.
    fn best_merge(&self, x: u32, y: u32, link: u32) -> Option<Merge> {
        let graph = self.graph;
        let jumps = &self.links.get(link).jumps;
        let nodes = &self.chains[x as usize].nodes;
        let len = nodes.len() as u32;
        let mut best: Option<Merge> = None;
        let inside = self.insides[x as usize].as_ref();
        let bounds = inside.map(|inside| inside.bounds(self.chains[y as usize].size));
        let attempt = |best: &mut Option<Merge>, cut: u32, kind: MergeType| {
            if !(kind == MergeType::Append || 0 < cut && cut < len) || !self.keeps_entry_first(x, y, kind) {
                return;
            }
            let pieces = self.pieces(x, y, cut, kind);
            let between = self.between_gain(y, jumps, cut, &pieces);
            let is_beaten = |best: Merge| bounds.as_ref().is_some_and(|b| b.gain_max(between, cut, kind) <= best.gain);
            if best.is_some_and(is_beaten) {
                return;
            }
            let gain =
                if kind == MergeType::Append { between } else { self.crossing_gain((x, y), inside, cut, &pieces, between) };
            if best.is_none_or(|best| gain > best.gain) {
                *best = Some(Merge { gain, into: x, from: y, kind, cut });
            }
        };
        attempt(&mut best, len, MergeType::Append);

        let (first, last) = (self.first(y), self.last(y));
        let mut tries = 0;
        for &jump in jumps {
            let Jump { source, target, kind, .. } = graph.jumps[jump as usize];
            if kind == JumpKind::Indirect || tries == SPLITS_ALONG_JUMPS_MAX {
                continue;
            }
            let into_first = target == first && self.place[source as usize].chain == x;
            let out_of_last = source == last && self.place[target as usize].chain == x;
            if into_first {
                tries += 1;
                let cut = self.place[source as usize].index + 1;
                attempt(&mut best, cut, MergeType::Insert);
                attempt(&mut best, cut, MergeType::RotateBefore);
            }
            if out_of_last {
                tries += 1;
                let cut = self.place[target as usize].index;
                attempt(&mut best, cut, MergeType::Insert);
                attempt(&mut best, cut, MergeType::RotateAfter);
            }
        }
        if let Some(inside) = inside.filter(|_| nodes.len() <= self.split_blocks_max) {
            // A cut through a fallthrough pays only for a new fallthrough, and those were tried above.
            for cut in (1..len).filter(|&cut| !inside.falls_through[cut as usize]) {
                for kind in [MergeType::Insert, MergeType::RotateAfter, MergeType::RotateBefore] {
                    attempt(&mut best, cut, kind);
                }
            }
        }
        best
    }

    fn first(&self, chain: u32) -> u32 {
        self.chains[chain as usize].nodes[0]
    }

    fn last(&self, chain: u32) -> u32 {
        let nodes = &self.chains[chain as usize].nodes;
        nodes[nodes.len() - 1]
    }

    /// Looks at the inside of a chain, unless it is known, a single block or too long.
    fn look_inside(&mut self, x: u32) {
        let chain = &self.chains[x as usize];
        if self.insides[x as usize].is_none() && (2..=SPLIT_BLOCKS_MAX).contains(&chain.nodes.len()) {
            self.insides[x as usize] = Some(Inside::new(self.inner_jumps(x), chain.nodes.len(), chain.size));
        }
    }

    /// The jumps inside a chain that ran, in the order of their sources.
    fn inner_jumps(&self, x: u32) -> Vec<Inner<'g>> {
        let mut inner = Vec::new();
        for (source, &node) in (0..).zip(&self.chains[x as usize].nodes) {
            let end = self.place[node as usize].offset + i64::from(self.graph.sizes[node as usize]);
            for jump in self.graph.jumps_from(node).iter().filter(|jump| jump.count != 0) {
                let target = self.place[jump.target as usize];
                if target.chain == x {
                    let score = jump_score(jump, end, target.offset);
                    inner.push(Inner { jump, source, target: target.index, end, start: target.offset, score });
                }
            }
        }
        inner
    }

    fn keeps_entry_first(&self, x: u32, y: u32, kind: MergeType) -> bool {
        let Some(entry) = self.graph.entry else { return true };
        let chain = self.place[entry as usize].chain;
        match kind {
            MergeType::Append | MergeType::Insert => chain != y,
            MergeType::RotateAfter => chain != x,
            MergeType::RotateBefore => chain != x && chain != y,
        }
    }

    /// What the jumps between X and Y earn.
    fn between_gain(&self, y: u32, jumps: &[u32], cut: u32, pieces: &Pieces) -> f64 {
        jumps.iter().map(|&jump| self.earned(&self.graph.jumps[jump as usize], y, cut, pieces)).sum()
    }

    /// What a jump earns behind a merge.
    fn earned(&self, jump: &Jump, y: u32, cut: u32, pieces: &Pieces) -> f64 {
        let start = |node: u32| {
            let place = self.place[node as usize];
            place.offset + pieces.shift(place.chain == y, place.index < cut)
        };
        jump_score(jump, start(jump.source) + i64::from(self.graph.sizes[jump.source as usize]), start(jump.target))
    }

    /// `gain`, and how much more the jumps across the cut earn.
    fn crossing_gain(&self, (x, y): (u32, u32), inside: Option<&Inside<'g>>, cut: u32, pieces: &Pieces, mut gain: f64) -> f64 {
        if let Some(inside) = inside {
            let shift = |index: u32| pieces.shift(false, index < cut);
            for inner in inside.jumps.iter().filter(|inner| (inner.source < cut) != (inner.target < cut)) {
                gain += jump_score(inner.jump, inner.end + shift(inner.source), inner.start + shift(inner.target)) - inner.score;
            }
        } else {
            let place = |node: u32| self.place[node as usize];
            for (from, to) in self.near_cut(x, cut) {
                for &node in &self.chains[x as usize].nodes[from..to] {
                    let is_before = place(node).index < cut;
                    for jump in self.graph.jumps_from(node) {
                        let target = place(jump.target);
                        if target.chain == x && (target.index < cut) != is_before {
                            let end = place(node).offset + i64::from(self.graph.sizes[node as usize]);
                            gain += self.earned(jump, y, cut, pieces) - jump_score(jump, end, target.offset);
                        }
                    }
                }
            }
        }
        gain
    }

    /// Disjoint ranges of indices with every block of X from which a jump across the cut earns anything, before or after the merge: those
    /// near the cut and near X's two ends.
    fn near_cut(&self, x: u32, cut: u32) -> [(usize, usize); 3] {
        let chain = &self.chains[x as usize];
        let len = chain.nodes.len();
        let below = |offset: i64| chain.nodes.partition_point(|&node| self.place[node as usize].offset < offset);
        let at = self.place[chain.nodes[cut as usize] as usize].offset;
        // A source counts from its end, so the one that spans the window's lower bound is in.
        let reach = |from: i64, to: i64| (below(from).saturating_sub(1), below(to + 1));
        let head = (0, below(FORWARD_BYTES_MAX + 1));
        let middle = reach(at - FORWARD_BYTES_MAX, at + FORWARD_BYTES_MAX);
        let tail = (below(chain.size - FORWARD_BYTES_MAX).saturating_sub(1), len);
        let middle = (middle.0.max(head.1), middle.1.max(head.1));
        let tail = (tail.0.max(middle.1), tail.1.max(middle.1));
        [head, middle, tail]
    }

    fn pieces(&self, x: u32, y: u32, cut: u32, kind: MergeType) -> Pieces {
        let (chain_x, chain_y) = (&self.chains[x as usize], &self.chains[y as usize]);
        let size_1 = chain_x.nodes.get(cut as usize).map_or(chain_x.size, |&node| self.place[node as usize].offset);
        let (size_2, size_y) = (chain_x.size - size_1, chain_y.size);
        let (before, after, other) = match kind {
            MergeType::Append => (0, 0, chain_x.size),
            MergeType::Insert => (0, size_y, size_1),
            MergeType::RotateAfter => (size_y + size_2, size_y - size_1, 0),
            MergeType::RotateBefore => (size_2, -size_1, chain_x.size),
        };
        Pieces { before, after, other }
    }

    fn apply(&mut self, merge: Merge) {
        let Merge { into: x, from: y, kind, cut, .. } = merge;
        let taken = std::mem::take(&mut self.chains[y as usize]);
        (self.insides[x as usize], self.insides[y as usize]) = (None, None);
        let chain = &mut self.chains[x as usize];
        let (cut, len) = (cut as usize, chain.nodes.len());
        let first_moved = match kind {
            MergeType::Append => {
                chain.nodes.extend_from_slice(&taken.nodes);
                len
            }
            MergeType::Insert => {
                chain.nodes.splice(cut..cut, taken.nodes.iter().copied());
                cut
            }
            MergeType::RotateAfter => {
                chain.nodes.rotate_left(cut);
                chain.nodes.splice(0..0, taken.nodes.iter().copied());
                0
            }
            MergeType::RotateBefore => {
                chain.nodes.rotate_left(cut);
                chain.nodes.extend_from_slice(&taken.nodes);
                0
            }
        };
        chain.size += taken.size;
        chain.count += taken.count;
        let mut offset = match first_moved.checked_sub(1) {
            None => 0,
            Some(previous) => {
                let node = chain.nodes[previous] as usize;
                self.place[node].offset + i64::from(self.graph.sizes[node])
            }
        };
        for (index, &node) in chain.nodes.iter().enumerate().skip(first_moved) {
            self.place[node as usize] = Place { chain: x, index: index as u32, offset };
            offset += i64::from(self.graph.sizes[node as usize]);
        }
    }

    /// Joins chains whose ends are joined by a jump that never ran, which saves an instruction though no time.
    fn join_input_fallthroughs(&mut self) {
        for node in 0..self.graph.len() as u32 {
            for jump in self.graph.jumps_from(node) {
                let (x, y) = (self.place[node as usize].chain, self.place[jump.target as usize].chain);
                let joins = x != y && self.last(x) == node && self.first(y) == jump.target;
                if joins && jump.kind != JumpKind::Indirect && self.graph.entry != Some(jump.target) {
                    self.append(x, y);
                }
            }
        }
    }

    fn concatenate(self) -> Vec<u32> {
        let entry_chain = self.graph.entry.map(|entry| self.place[entry as usize].chain);
        let mut chains: Vec<(u32, Chain)> = (0u32..).zip(self.chains).filter(|(_, chain)| !chain.nodes.is_empty()).collect();
        let density = |chain: &Chain| chain.count / chain.size as f64;
        chains.sort_by(|(a, x), (b, y)| {
            let by_entry = (Some(*b) == entry_chain).cmp(&(Some(*a) == entry_chain));
            by_entry.then(density(y).total_cmp(&density(x))).then(a.cmp(b))
        });
        chains.into_iter().flat_map(|(_, chain)| chain.nodes).collect()
    }
}

/// How far each piece of a merge moves.
struct Pieces {
    /// X1, X2 and Y.
    before: i64,
    after: i64,
    other: i64,
}

impl Pieces {
    fn shift(&self, is_other: bool, is_before: bool) -> i64 {
        match (is_other, is_before) {
            (true, _) => self.other,
            (false, true) => self.before,
            (false, false) => self.after,
        }
    }
}

#[cfg(test)]
mod tests;
