//! The order of the fragments that run: those that call each other near each other, the busiest first.
//!
//! **Method.** Cache-directed sort (S. Pupyrev and others' successor of the call-chain clustering of Ottoni and Maher, "Optimizing Function
//! Placement for Large-Scale Data-Center Applications", CGO 2017; LLVM has it as *CDSort*). Fragments begin as chains of their own, which are
//! merged greedily, end to end, by a gain of two terms: calls become shorter (each call counts with the inverse fourth root of its
//! distance), and a page of the joined chain is likelier to be in the instruction TLB already. Chains then
//! come by executions per byte.
//!
//! A merge makes the gains of both chains' other links stale. They mostly fall, so a stale gain stays in the queue as it is and is
//! computed again when it comes up; only a link that took in another one's calls, whose gain may have risen, is renewed at once.
//!
//! **Invariants.** A permutation of what was given. Ties are broken by index; the only functions of floating point used are exactly
//! rounded ones, so every machine finds the same order.
//!
//! **Termination.** Each merge removes a chain; a chain of `CHAIN_FRAGMENTS_MAX` takes part in no more merges that would lengthen it, which also bounds the work per merge.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use lifter::entity::Block;
use lifter::ir::{CodeTarget, Program, RefData, RefRole, RefTarget, Terminator};
use profiles::Weights;
use rustc_hash::FxHashMap;

use super::links::Links;
use super::{count_of, entries_of};
use crate::edit::EditPlan;
use crate::fold::Folding;
use crate::plan::FragmentPlan;
use crate::terminator::SuccessorCounts;

const CHAIN_FRAGMENTS_MAX: usize = 128;
/// The model of the instruction TLB: its entries, and the bytes that one holds. Half a page, since pages are seldom filled by one chain.
const CACHE_ENTRIES: i32 = 16;
const CACHE_BYTES: f64 = 2048.0;
/// The weight of the TLB's term against the distances'.
const FREQUENCY_SCALE: f64 = 0.25;
const GAIN_MIN: f64 = 1e-8;

/// A transfer of control from one fragment to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Call {
    source: u32,
    target: u32,
    source_offset: u64,
    target_offset: u64,
    count: u64,
}

/// The fragments and what runs between them.
#[derive(Debug, Default)]
struct CallGraph {
    sizes: Vec<u64>,
    counts: Vec<u64>,
    calls: Vec<Call>,
}

/// The fragments in the order in which they are laid out.
pub(super) fn order(
    program: &Program,
    weights: &Weights,
    (edits, folded): (&EditPlan, &Folding),
    fragments: Vec<FragmentPlan>,
) -> Vec<FragmentPlan> {
    let graph = call_graph(program, weights, (edits, folded), &fragments);
    let mut fragments: Vec<Option<FragmentPlan>> = fragments.into_iter().map(Some).collect();
    sort(&graph).into_iter().filter_map(|index| fragments[index as usize].take()).collect()
}

fn call_graph(
    program: &Program,
    weights: &Weights,
    (edits, folded): (&EditPlan, &Folding),
    fragments: &[FragmentPlan],
) -> CallGraph {
    let mut graph = CallGraph::default();
    let mut places: FxHashMap<Block, (u32, u64)> = FxHashMap::default();
    for (index, fragment) in (0..).zip(fragments) {
        let mut size = 0u64;
        for planned in &fragment.blocks {
            places.insert(planned.block, (index, size));
            size += size_of(program, edits, planned.block);
        }
        graph.sizes.push(size);
        // How often it is entered: a loop that stays in its own lines brings none of them in again.
        graph.counts.push(entries_of(weights, fragment));
    }
    let mut call = |from: Block, offset: u64, to: Block, count: u64| {
        let to = folded.stand_in(program, to);
        let (Some(&(source, start)), Some(&(target, target_offset))) = (places.get(&from), places.get(&to)) else { return };
        if source != target && count != 0 {
            graph.calls.push(Call { source, target, source_offset: start + offset, target_offset, count });
        }
    };
    for planned in fragments.iter().flat_map(|fragment| &fragment.blocks) {
        let block = planned.block;
        let (data, count) = (&program.blocks[block], count_of(weights, block));
        let replacements = edits.replacements_of(block);
        let is_call = |reference: &&RefData| reference.role == RefRole::Call;
        let goes = |offset: u32| replacements.iter().any(|r| r.offset <= offset && offset < r.end());
        for reference in program.block_refs(block).iter().filter(is_call).filter(|reference| !goes(reference.offset)) {
            if let RefTarget::Block(target) = reference.target {
                call(block, u64::from(reference.offset) + u64::from(reference.to_end), target, count);
            }
        }
        for r in replacements {
            let code = &edits.codes[r.code];
            for reference in code.refs.iter().filter(is_call) {
                if let RefTarget::Block(target) = reference.target {
                    call(block, u64::from(r.offset), target, code.runs_at(reference.offset, count));
                }
            }
        }
        let counts = SuccessorCounts::of(program, weights, block);
        let end = u64::from(data.len);
        match data.terminator {
            Terminator::Jump { target: CodeTarget::Block(target) } => call(block, end, target, counts.taken),
            Terminator::Branch { taken, next, .. } => {
                call(block, end, next, counts.next);
                if let CodeTarget::Block(taken) = taken {
                    call(block, end, taken, counts.taken);
                }
            }
            Terminator::Loop { taken, next } => {
                call(block, end, taken, counts.taken);
                call(block, end, next, counts.next);
            }
            Terminator::Fallthrough { next } => call(block, end, next, counts.next),
            Terminator::Jump { target: CodeTarget::Fixed(_) } | Terminator::Stop(_) => {}
        }
    }
    for site in &weights.indirect {
        for &(target, count) in &site.targets {
            let entry = program.funcs.get(target).map(|data: &lifter::ir::FuncData| data.entry);
            if let Some(entry) = entry {
                call(site.block, u64::from(site.return_offset), entry, count);
            }
        }
    }
    graph.calls.sort_unstable();
    graph
}

/// The bytes of a block with its edits; what lies apart of them is beside it or seldom runs.
fn size_of(program: &Program, edits: &EditPlan, block: Block) -> u64 {
    let replacements = edits.replacements_of(block);
    let gone: u32 = replacements.iter().map(|r| r.len).sum();
    let new: u32 = replacements.iter().map(|r| edits.codes[r.code].part(0).end).sum();
    u64::from((program.blocks[block].len + new).saturating_sub(gone).max(1))
}

#[derive(Debug)]
struct Chain {
    nodes: Vec<u32>,
    size: f64,
    count: f64,
}

impl Chain {
    fn density(&self) -> f64 {
        self.count / self.size
    }
}

#[derive(Copy, Clone, Debug)]
struct Candidate {
    gain: f64,
    /// The one that comes first, and the other.
    chains: (u32, u32),
    link: u32,
    version: u32,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        self.gain.total_cmp(&other.gain).then(other.chains.cmp(&self.chains)).then(self.version.cmp(&other.version))
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

struct Sorter<'g> {
    graph: &'g CallGraph,
    chains: Vec<Chain>,
    /// For each fragment its chain and its offset there.
    places: Vec<(u32, f64)>,
    total: f64,
}

fn sort(graph: &CallGraph) -> Vec<u32> {
    let nodes = 0..graph.sizes.len() as u32;
    let chain = |node: u32| Chain {
        nodes: vec![node],
        size: graph.sizes[node as usize].max(1) as f64,
        count: graph.counts[node as usize] as f64,
    };
    let mut sorter = Sorter {
        graph,
        chains: nodes.clone().map(chain).collect(),
        places: nodes.map(|node| (node, 0.0)).collect(),
        total: graph.counts.iter().map(|&count| count as f64).sum(),
    };
    sorter.merge_by_gain();
    sorter.concatenate()
}

impl Sorter<'_> {
    fn merge_by_gain(&mut self) {
        let pairs = (0..).zip(&self.graph.calls).map(|(index, call)| (call.source, call.target, index)).collect();
        let mut links = Links::new(self.chains.len(), pairs);
        let mut candidates: BinaryHeap<Candidate> = (0..links.len()).filter_map(|link| self.candidate(&links, link)).collect();
        // The version of each link's one valid candidate.
        let mut queued = vec![0; links.len() as usize];
        while let Some(Candidate { chains: (x, y), link, version, .. }) = candidates.pop() {
            if queued[link as usize] != version {
                continue;
            }
            let is_current = links.get(link).version == version;
            let mut renew = vec![link];
            if is_current {
                self.append(x, y);
                renew = links.merge(x, y).iter().filter(|renewed| renewed.has_grown).map(|renewed| renewed.link).collect();
            }
            for link in renew {
                queued[link as usize] = links.get(link).version;
                candidates.extend(self.candidate(&links, link));
            }
        }
    }

    /// The better of the two ways to join two chains end to end.
    fn candidate(&self, links: &Links, link: u32) -> Option<Candidate> {
        let (a, b) = links.get(link).chains;
        if links.get(link).jumps.is_empty() {
            return None;
        }
        let (chain_a, chain_b) = (&self.chains[a as usize], &self.chains[b as usize]);
        if chain_a.nodes.len() + chain_b.nodes.len() > CHAIN_FRAGMENTS_MAX {
            return None;
        }
        let frequency_gain = self.misses(chain_a.count, chain_a.density()) + self.misses(chain_b.count, chain_b.density())
            - self.misses(chain_a.count + chain_b.count, (chain_a.count + chain_b.count) / (chain_a.size + chain_b.size));
        // Which comes first is the same to the TLB, so the nearer calls decide; at a tie the lower index comes first.
        let jumps = &links.get(link).jumps;
        let (straight, crossed) = (self.nearness(a, jumps), self.nearness(b, jumps));
        let (nearness, chains) = if crossed > straight { (crossed, (b, a)) } else { (straight, (a, b)) };
        let mut gain = nearness + FREQUENCY_SCALE * frequency_gain;
        if gain > 0.0 {
            // Short chains first: a long one has few ends to offer.
            gain /= chain_a.size.min(chain_b.size);
        }
        (gain > GAIN_MIN).then(|| Candidate { gain, chains, link, version: links.get(link).version })
    }

    /// Expected misses of `count` executions in code of this density.
    fn misses(&self, count: f64, density: f64) -> f64 {
        let in_page = density * CACHE_BYTES;
        if in_page >= self.total {
            return 0.0;
        }
        let misses_once = 1.0 - in_page / self.total;
        count * (0..CACHE_ENTRIES).fold(1.0, |product, _| product * misses_once)
    }

    /// What the calls of a link are worth if chain `first` comes before the other.
    fn nearness(&self, first: u32, jumps: &[u32]) -> f64 {
        let shift = self.chains[first as usize].size;
        let at = |node: u32, offset: u64| {
            let (chain, start) = self.places[node as usize];
            start + offset as f64 + if chain == first { 0.0 } else { shift }
        };
        let worth = |&jump: &u32| {
            let call = &self.graph.calls[jump as usize];
            let distance = (at(call.source, call.source_offset) - at(call.target, call.target_offset)).abs();
            call.count as f64 / distance.max(0.1).sqrt().sqrt()
        };
        jumps.iter().map(worth).sum()
    }

    fn append(&mut self, x: u32, y: u32) {
        let nodes = std::mem::take(&mut self.chains[y as usize].nodes);
        let (size, count) = (self.chains[y as usize].size, self.chains[y as usize].count);
        let chain = &mut self.chains[x as usize];
        for &node in &nodes {
            let place = &mut self.places[node as usize];
            *place = (x, place.1 + chain.size);
        }
        chain.nodes.extend(nodes);
        chain.size += size;
        chain.count += count;
    }

    fn concatenate(self) -> Vec<u32> {
        let mut chains: Vec<(u32, Chain)> = (0..).zip(self.chains).filter(|(_, chain)| !chain.nodes.is_empty()).collect();
        chains.sort_by(|(a, x), (b, y)| y.density().total_cmp(&x.density()).then(a.cmp(b)));
        chains.into_iter().flat_map(|(_, chain)| chain.nodes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(source: u32, target: u32, count: u64) -> Call {
        Call { source, target, source_offset: 4, target_offset: 0, count }
    }

    #[test]
    fn a_caller_and_its_callee_become_neighbors() {
        // 0 calls 3 often, 1 and 2 are as busy but call nobody.
        let graph = CallGraph { sizes: vec![100; 4], counts: vec![100; 4], calls: vec![call(0, 3, 90)] };
        let order = sort(&graph);
        let position = |node| order.iter().position(|&other| other == node).unwrap_or(usize::MAX);
        assert_eq!(position(3), position(0) + 1);
    }

    #[test]
    fn busier_chains_come_first() {
        let graph = CallGraph { sizes: vec![100; 4], counts: vec![1, 1000, 10, 100], calls: Vec::new() };
        assert_eq!(sort(&graph), [1, 3, 2, 0]);
    }

    #[test]
    fn no_chain_grows_past_the_limit_and_nothing_is_lost() {
        let num_nodes = 1000u32;
        let calls = (1..num_nodes).map(|node| call(node - 1, node, 50)).collect();
        let graph = CallGraph { sizes: vec![64; num_nodes as usize], counts: vec![50; num_nodes as usize], calls };
        let mut order = sort(&graph);
        order.sort_unstable();
        assert_eq!(order, (0..num_nodes).collect::<Vec<_>>());
    }

    #[test]
    fn a_function_that_all_call_does_not_make_the_sort_quadratic() {
        let num_nodes = 50_000u32;
        let calls = (1..num_nodes).map(|node| call(node, 0, u64::from(node % 7) + 1)).collect();
        let graph = CallGraph { sizes: vec![64; num_nodes as usize], counts: vec![50; num_nodes as usize], calls };
        let started = std::time::Instant::now();
        assert_eq!(sort(&graph).len(), num_nodes as usize);
        assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
    }
}
