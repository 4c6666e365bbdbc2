//! Raw counts to consistent weights, function by function.
//!
//! **Problem.** What counters and conservation say may be negative or contradictory where calls did not return, counters were
//! lost or a profile comes from another build, and it leaves out the arcs on cycles of uncountable ones. `Weights` promises
//! conservation.
//!
//! **Method.** Functions whose counts are known and balanced pass through as they are, in time linear in their arcs. For the
//! rest, three steps:
//! 1. Arcs without a count that lead from blocks with flow to spare to blocks that lack some share it in proportion to the lack,
//!    which is how often each target of a table or of a computed goto runs.
//! 2. The imbalance that is left is routed by successive shortest paths (Levin, Newman and Haber, "Complementing missing and
//!    inaccurate profiling using a minimum cost circulation algorithm", 2008): raising a count is cheaper than lowering one, and
//!    changing what was never counted is cheapest.
//! 3. Past a bound on the work, each node passes what it has too much along one fixed tree to the outside, and takes what it
//!    lacks from there along another: not minimal, but consistent, in linear time.
//!
//! **Result**: for each block, the counts of its incoming edges add up to at most its own, and to exactly that where nothing but
//! edges leads to it; likewise for outgoing edges. **Termination**: step 1 visits each arc a fixed number of times, step 2 is
//! cut off by a budget, step 3 visits each node once.

mod network;
mod share;

#[cfg(test)]
mod tests;

use lifter::entity::{EntityId, Func};
use lifter::ir::Program;
use rayon::prelude::*;

use crate::flow::{ArcKind, FlowGraph, in_node, out_node};
use crate::instrument::{Count, Counts};
use crate::weights::Weights;
use network::Network;

/// Weights that obey conservation, as near to the counts as can be found with bounded work. What nothing is known of weighs zero.
pub fn infer(program: &Program, counts: &Counts) -> Weights {
    infer_with(program, counts, Costs::Exact)
}

/// The same where counts are estimates: `costs` says, by block, what changing its count by one costs. Flow may come to a function's entry and
/// leave at its returns as it needs to.
pub fn infer_by_trust(program: &Program, counts: &Counts, costs: &[u32]) -> Weights {
    infer_with(program, counts, Costs::Estimated(costs))
}

/// What changing a known count by one costs, by block and by edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    pub blocks: Vec<u32>,
    pub edges: Vec<u32>,
}

impl Trust {
    pub fn none(program: &Program) -> Self {
        Trust { blocks: vec![0; program.blocks.len()], edges: vec![0; program.edges.len()] }
    }
}

/// The same where counts were carried over from another build, some more surely than others.
pub fn infer_carried(program: &Program, counts: &Counts, trust: &Trust) -> Weights {
    infer_with(program, counts, Costs::Carried(trust))
}

/// What changing counts costs.
#[derive(Copy, Clone, Debug)]
enum Costs<'c> {
    /// Counts are taken for exact.
    Exact,
    /// By block; nothing is known of edges.
    Estimated(&'c [u32]),
    Carried(&'c Trust),
}

fn infer_with(program: &Program, counts: &Counts, costs: Costs<'_>) -> Weights {
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    let funcs: Vec<Func> = program.funcs.keys().filter(|&func| counts.knows(program, func)).collect();
    let solved: Vec<Option<(FlowGraph, Vec<i64>)>> = funcs.par_iter().map(|&func| repair(program, func, counts, costs)).collect();
    for (func, solved) in funcs.into_iter().zip(solved) {
        match solved {
            None => copy_counts(program, func, counts, &mut weights),
            Some((graph, flows)) => copy_flows(&graph, &flows, &mut weights),
        }
    }
    weights
}

/// Whether the weights keep what `infer` promises: the first function that does not is named.
pub fn first_inconsistent(program: &Program, weights: &Weights) -> Option<Func> {
    let as_known = |values: &[u64]| values.iter().map(|&v| Count::new(i64::try_from(v).unwrap_or(i64::MAX))).collect();
    let counts = Counts { blocks: as_known(&weights.blocks), edges: as_known(&weights.edges) };
    program.funcs.keys().find(|&func| {
        let graph = FlowGraph::build(program, func);
        !is_consistent(&graph, &counts)
    })
}

/// The flows of a function that had to be changed; `None` where the counts are right as they are.
fn repair(program: &Program, func: Func, counts: &Counts, costs: Costs<'_>) -> Option<(FlowGraph, Vec<i64>)> {
    let graph = FlowGraph::build(program, func);
    if is_consistent(&graph, counts) {
        return None;
    }
    let mut network = Network::build(program, &graph, counts, costs);
    share::share_unknown(&graph, &mut network);
    network.balance();
    Some((graph, network.flows))
}

/// Whether all counts are known, none is negative, and each node is balanced but for what comes from or goes to the outside.
fn is_consistent(graph: &FlowGraph, counts: &Counts) -> bool {
    let mut balance = vec![0i64; graph.num_nodes()];
    let mut may_arrive = vec![false; graph.num_blocks as usize];
    let mut may_depart = vec![false; graph.num_blocks as usize];
    for arc in &graph.arcs {
        match arc.kind {
            ArcKind::Arrival(i) => may_arrive[i as usize] = true,
            ArcKind::Departure(i) => may_depart[i as usize] = true,
            ArcKind::Block(_) | ArcKind::Edge(_) => {
                let Some(count) = counts.of(graph, arc.kind).get() else { return false };
                if count < 0 {
                    return false;
                }
                balance[arc.from as usize] = balance[arc.from as usize].saturating_sub(count);
                balance[arc.to as usize] = balance[arc.to as usize].saturating_add(count);
            }
        }
    }
    (0..graph.num_blocks).all(|i| {
        let arriving = -balance[in_node(i) as usize];
        let departing = balance[out_node(i) as usize];
        let is_fine = |value: i64, is_open: bool| value == 0 || (is_open && value > 0);
        is_fine(arriving, may_arrive[i as usize]) && is_fine(departing, may_depart[i as usize])
    })
}

fn copy_counts(program: &Program, func: Func, counts: &Counts, weights: &mut Weights) {
    for block in program.funcs[func].blocks.iter() {
        weights.blocks[block.index()] = counts.blocks[block.index()].get().unwrap_or(0).max(0) as u64;
        for edge in program.blocks[block].edges.as_usize() {
            weights.edges[edge] = counts.edges[edge].get().unwrap_or(0).max(0) as u64;
        }
    }
}

fn copy_flows(graph: &FlowGraph, flows: &[i64], weights: &mut Weights) {
    for (arc, &flow) in graph.arcs.iter().zip(flows) {
        match arc.kind {
            ArcKind::Block(i) => weights.blocks[graph.first_block + i as usize] = flow.max(0) as u64,
            ArcKind::Edge(index) => weights.edges[index as usize] = flow.max(0) as u64,
            ArcKind::Arrival(_) | ArcKind::Departure(_) => {}
        }
    }
}
