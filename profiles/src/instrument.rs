//! Which blocks and edges get a counter, which calls record their targets, and how the counts of everything else follow.
//!
//! **Method.** In the flow network of a function the arcs off a spanning tree determine those on it (Knuth and Stevenson 1973; Ball and
//! Larus, "Optimally profiling and tracing programs", 1994). A *maximum* spanning tree by expected cost leaves the cheapest arcs to
//! count. Arcs that can't hold a counter weigh infinitely much: they enter the tree first, and only where they close a cycle among
//! themselves (two jumps through tables that share targets, a computed goto) is anything left to inference.
//!
//! **Invariants.** Only movable functions have counters. Counters are ordered by function, then blocks before edges, ascending. The plan depends on the program
//! alone. Kruskal's algorithm: O(arcs log arcs) a function, functions in parallel.

mod calls;
mod derive;
mod estimate;

#[cfg(test)]
mod tests;

use lifter::Image;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{EdgeData, EdgeKind, Program};
use rayon::prelude::*;

use crate::flow::{ArcKind, DisjointSets, FlowGraph, is_countable};

pub use derive::{Count, Counts, derive};

/// Where one 64-bit counter is incremented.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CounterSite {
    /// At the block's start, after its `endbr64` if it begins with one.
    Block(Block),
    /// On an edge, an index into `Program::edges`.
    Edge(u32),
}

/// An indirect call or tail call whose targets are recorded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub block: Block,
    /// Of the call instruction, from the block's start.
    pub offset: u32,
    /// Of the call instruction, in bytes.
    pub len: u8,
}

/// All that is inserted to make a profile. A counter's number is its position, and so is a call's site number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterPlan {
    pub counters: Vec<CounterSite>,
    pub calls: Vec<CallSite>,
}

/// Chooses the counters and the recorded calls of every movable function.
pub fn plan_counters(image: &Image<'_>, program: &Program) -> CounterPlan {
    let funcs: Vec<Func> = program.funcs.iter().filter(|(_, data)| data.is_movable()).map(|(func, _)| func).collect();
    let constant_slots = calls::ConstantSlots::build(image);
    let plans: Vec<CounterPlan> = funcs
        .par_iter()
        .map(|&func| CounterPlan {
            counters: place_counters(program, func),
            calls: calls::recorded_calls(image, program, func, &constant_slots),
        })
        .collect();
    let mut plan = CounterPlan::default();
    for mut part in plans {
        plan.counters.append(&mut part.counters);
        plan.calls.append(&mut part.calls);
    }
    plan
}

/// The arcs off a maximum spanning tree that can hold a counter.
fn place_counters(program: &Program, func: Func) -> Vec<CounterSite> {
    let graph = FlowGraph::build(program, func);
    let costs = arc_costs(program, &graph);
    let mut order: Vec<u32> = (0..graph.arcs.len() as u32).collect();
    // Of two equally dear blocks the later one is on the tree and the earlier one is counted: a call between them may not return.
    order.sort_by_key(|&arc| std::cmp::Reverse((costs[arc as usize], arc)));
    let mut trees = DisjointSets::new(graph.num_nodes());
    let mut sites: Vec<CounterSite> = order
        .into_iter()
        .filter(|&arc| {
            let arc = graph.arcs[arc as usize];
            !trees.unite(arc.from, arc.to)
        })
        .filter(|&arc| costs[arc as usize] != u64::MAX)
        .filter_map(|arc| match graph.arcs[arc as usize].kind {
            ArcKind::Block(i) => Some(CounterSite::Block(graph.block(i))),
            ArcKind::Edge(index) => Some(CounterSite::Edge(index)),
            ArcKind::Arrival(_) | ArcKind::Departure(_) => None,
        })
        .collect();
    sites.sort_unstable();
    sites
}

/// What a counter on each arc would cost: how often it is expected to run, times what one increment there costs. `u64::MAX`: can't be counted.
///
/// At equal frequency a block is cheaper than an edge (an increment in place), and an edge that falls through cheaper than a taken
/// one (which needs a jump there and back).
fn arc_costs(program: &Program, graph: &FlowGraph) -> Vec<u64> {
    const BLOCK_COST: u64 = 4;
    const FALLTHROUGH_COST: u64 = 5;
    const TAKEN_COST: u64 = 8;
    let frequencies = estimate(program, graph);
    let cost_of_edge = |index: u32, frequency: u64| match program.edges[index as usize].kind {
        kind if !is_countable(kind) => u64::MAX,
        EdgeKind::Fallthrough => frequency * FALLTHROUGH_COST,
        _ => frequency * TAKEN_COST,
    };
    // The edges of the estimate are those of the network, in order.
    let mut edge_frequencies = frequencies.edges.into_iter();
    let cost_of = |kind: ArcKind| match kind {
        ArcKind::Block(i) => frequencies.nodes[i as usize] * BLOCK_COST,
        ArcKind::Edge(index) => cost_of_edge(index, edge_frequencies.next().unwrap_or(1)),
        ArcKind::Arrival(_) | ArcKind::Departure(_) => u64::MAX,
    };
    graph.arcs.iter().map(|arc| arc.kind).map(cost_of).collect()
}

fn estimate(program: &Program, graph: &FlowGraph) -> estimate::Frequencies {
    let relative = |block: Block| (block.index() - graph.first_block) as u32;
    let edge_of = |kind: ArcKind| match kind {
        ArcKind::Edge(index) => {
            let EdgeData { source, target, kind } = program.edges[index as usize];
            Some(estimate::Edge { from: relative(source), to: relative(target), is_fallthrough: kind == EdgeKind::Fallthrough })
        }
        _ => None,
    };
    let edges: Vec<estimate::Edge> = graph.arcs.iter().filter_map(|arc| edge_of(arc.kind)).collect();
    let entry = program.funcs[graph.func].entry;
    let entry = program.funcs[graph.func].blocks.contains(entry).then(|| relative(entry));
    let arrivals = graph.arcs.iter().filter_map(|arc| match arc.kind {
        ArcKind::Arrival(i) => Some(i),
        _ => None,
    });
    let roots: Vec<u32> = entry.into_iter().chain(arrivals).collect();
    estimate::frequencies(graph.num_blocks as usize, &edges, &roots)
}
