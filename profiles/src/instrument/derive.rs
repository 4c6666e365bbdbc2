//! From the arcs that were counted to those that were not.
//!
//! A node with one unknown arc determines it. Solving goes from node to node, each of which is finished at most once: linear in
//! arcs. Where uncountable arcs form a cycle, the nodes that they join are first taken as one: in that network every arc off the
//! tree was counted, so all countable arcs follow; then what can be told of the uncountable ones. That calls may not return
//! (`exit`, `longjmp`, exceptions, a killed process) shows as *negative* counts, which are kept as they are for inference to
//! repair.

use lifter::entity::{EntityId, Func};
use lifter::ir::Program;
use rayon::prelude::*;

use super::{CounterPlan, CounterSite};
use crate::flow::{Adjacency, ArcKind, DisjointSets, FlowGraph, is_countable};

/// A raw count: unknown, or what conservation says, which is below zero where flow was lost.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Count(i64);

impl Count {
    pub const UNKNOWN: Count = Count(i64::MIN);

    pub fn new(value: i64) -> Self {
        Count(value.max(i64::MIN + 1))
    }
    pub fn get(self) -> Option<i64> {
        (self != Self::UNKNOWN).then_some(self.0)
    }
    pub fn is_known(self) -> bool {
        self != Self::UNKNOWN
    }
}

/// Raw counts by block and by edge, indexed like `Program::blocks` and `Program::edges`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    pub blocks: Vec<Count>,
    pub edges: Vec<Count>,
}

impl Counts {
    pub fn unknown(program: &Program) -> Self {
        Counts { blocks: vec![Count::UNKNOWN; program.blocks.len()], edges: vec![Count::UNKNOWN; program.edges.len()] }
    }
    pub(crate) fn of(&self, graph: &FlowGraph, kind: ArcKind) -> Count {
        match kind {
            ArcKind::Block(i) => self.blocks[graph.first_block + i as usize],
            ArcKind::Edge(index) => self.edges[index as usize],
            ArcKind::Arrival(_) | ArcKind::Departure(_) => Count::UNKNOWN,
        }
    }
    /// Whether anything is known of a function's blocks.
    pub fn knows(&self, program: &Program, func: Func) -> bool {
        self.blocks[program.funcs[func].blocks.as_usize()].iter().any(|c| c.is_known())
    }
}

/// The counts of all blocks and edges from those of a plan's counters, by position. Functions without counters stay unknown;
/// counters beyond `counts` and sites that the program does not have are passed over.
///
/// All counts are scaled down by the power of two that keeps their sum below 2^56, so that no sum on the way can overflow. A
/// profile of real processes is never scaled: at one increment a nanosecond that sum takes two years.
pub fn derive(program: &Program, plan: &CounterPlan, counts: &[u64]) -> Counts {
    let total: u128 = counts.iter().map(|&c| u128::from(c)).sum();
    let shift = (128 - total.leading_zeros()).saturating_sub(56);
    let mut raw = Counts::unknown(program);
    let mut has_counter = vec![false; program.funcs.len()];
    for (&site, &count) in plan.counters.iter().zip(counts) {
        let count = Count::new((u128::from(count) >> shift) as i64);
        let block = match site {
            CounterSite::Block(block) => block,
            CounterSite::Edge(index) => match program.edges.get(index as usize) {
                Some(edge) => edge.source,
                None => continue,
            },
        };
        let Some(data) = program.blocks.get(block) else { continue };
        has_counter[data.func.index()] = true;
        match site {
            CounterSite::Block(block) => raw.blocks[block.index()] = count,
            CounterSite::Edge(index) => raw.edges[index as usize] = count,
        }
    }
    let funcs: Vec<Func> = program.funcs.keys().filter(|f| has_counter[f.index()]).collect();
    let solved: Vec<Vec<(ArcKind, usize, Count)>> = funcs.par_iter().map(|&func| solve(program, func, &raw)).collect();
    for (kind, first_block, count) in solved.into_iter().flatten() {
        match kind {
            ArcKind::Block(i) => raw.blocks[first_block + i as usize] = count,
            ArcKind::Edge(index) => raw.edges[index as usize] = count,
            ArcKind::Arrival(_) | ArcKind::Departure(_) => {}
        }
    }
    raw
}

/// The blocks and edges of a function that follow from what is known of it.
fn solve(program: &Program, func: Func, raw: &Counts) -> Vec<(ArcKind, usize, Count)> {
    let graph = FlowGraph::build(program, func);
    let values = graph.arcs.iter().map(|arc| raw.of(&graph, arc.kind)).collect();
    let mut solver = Solver { program, graph: &graph, values, found: Vec::new() };
    let nodes: Vec<u32> = (0..graph.num_nodes() as u32).collect();
    solver.solve_between(&nodes);
    if solver.lacks_countable() {
        // Uncountable arcs that form a cycle hide what flows through their nodes one by one, but not what flows through all of them.
        solver.solve_between(&solver.joined_by_uncountable());
        solver.solve_between(&nodes);
    }
    solver.found
}

struct Solver<'p> {
    program: &'p Program,
    graph: &'p FlowGraph,
    /// By arc.
    values: Vec<Count>,
    found: Vec<(ArcKind, usize, Count)>,
}

impl Solver<'_> {
    fn is_countable(&self, kind: ArcKind) -> bool {
        match kind {
            ArcKind::Block(_) => true,
            ArcKind::Edge(index) => is_countable(self.program.edges[index as usize].kind),
            ArcKind::Arrival(_) | ArcKind::Departure(_) => false,
        }
    }
    fn lacks_countable(&self) -> bool {
        self.graph.arcs.iter().zip(&self.values).any(|(arc, value)| !value.is_known() && self.is_countable(arc.kind))
    }
    /// For each node one that stands for all that uncountable arcs join it with.
    fn joined_by_uncountable(&self) -> Vec<u32> {
        let mut sets = DisjointSets::new(self.graph.num_nodes());
        for arc in self.graph.arcs.iter().filter(|arc| !self.is_countable(arc.kind)) {
            sets.unite(arc.from, arc.to);
        }
        (0..self.graph.num_nodes() as u32).map(|node| sets.find(node)).collect()
    }

    /// Solves the network in which each node is taken for its group; arcs within a group say nothing.
    fn solve_between(&mut self, groups: &[u32]) {
        let graph = self.graph;
        let ends = |arc: u32| {
            let arc = graph.arcs[arc as usize];
            (groups[arc.from as usize], groups[arc.to as usize])
        };
        let between: Vec<u32> = (0..graph.arcs.len() as u32).filter(|&arc| ends(arc).0 != ends(arc).1).collect();
        let incoming = Adjacency::build(graph.num_nodes(), between.iter().map(|&arc| ends(arc).1));
        let outgoing = Adjacency::build(graph.num_nodes(), between.iter().map(|&arc| ends(arc).0));
        let mut num_unknown = vec![0u32; graph.num_nodes()];
        for &arc in between.iter().filter(|&&arc| !self.values[arc as usize].is_known()) {
            num_unknown[ends(arc).0 as usize] += 1;
            num_unknown[ends(arc).1 as usize] += 1;
        }
        let mut ready: Vec<u32> = (0..graph.num_nodes() as u32).filter(|&node| num_unknown[node as usize] == 1).collect();
        while let Some(node) = ready.pop() {
            if num_unknown[node as usize] != 1 {
                continue;
            }
            let signed = incoming.of(node).iter().map(|&i| (i, 1)).chain(outgoing.of(node).iter().map(|&i| (i, -1)));
            let Some(arc) = self.balance(signed.map(|(index, sign)| (between[index as usize], sign))) else { continue };
            for end in [ends(arc).0, ends(arc).1] {
                num_unknown[end as usize] -= 1;
                if num_unknown[end as usize] == 1 {
                    ready.push(end);
                }
            }
        }
    }

    /// Sets the one unknown arc of a node from its others, given with 1 where they lead in and -1 where they lead out.
    fn balance(&mut self, arcs: impl Iterator<Item = (u32, i64)>) -> Option<u32> {
        let mut balance = 0i64;
        let mut unknown = None;
        for (arc, sign) in arcs {
            match self.values[arc as usize].get() {
                Some(value) => balance = balance.saturating_add(sign * value),
                None => unknown = Some((arc, sign)),
            }
        }
        let (arc, sign) = unknown?;
        let value = Count::new(-sign * balance);
        self.values[arc as usize] = value;
        self.found.push((self.graph.arcs[arc as usize].kind, self.graph.first_block, value));
        Some(arc)
    }
}
