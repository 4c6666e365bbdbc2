//! Minimum-cost repair of a flow that is not balanced.
//!
//! The cost of an arc is convex and piecewise linear in its flow, zero at the expected value, so successive shortest paths in
//! the residual network find the minimum, and with potentials all reduced costs stay non-negative (Edmonds and Karp 1972). A
//! search starts at one node with too much and stops at the first that lacks flow; only the nodes that it reached change
//! their potentials, so it costs no more than its neighborhood. The arcs that all searches relax are bounded; when that budget is
//! spent, the remaining imbalance goes along trees to and from the outside.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use lifter::entity::{Block, EntityId};
use lifter::ir::{Program, StopKind, Terminator};

use super::Costs;
use crate::flow::{Adjacency, Arc, ArcKind, FlowGraph};
use crate::instrument::Counts;

const UNREACHED: u32 = u32::MAX;

/// What one unit more or less than expected costs.
#[derive(Copy, Clone, Debug)]
struct UnitCost {
    raise: i64,
    lower: i64,
}

#[derive(Debug)]
pub(super) struct Network {
    arcs: Vec<Arc>,
    outside: u32,
    pub(super) incoming: Adjacency,
    pub(super) outgoing: Adjacency,
    pub(super) flows: Vec<i64>,
    /// Where the cost of each arc is zero.
    pub(super) expected: Vec<i64>,
    pub(super) is_known: Vec<bool>,
    /// By node, what flows in less what flows out.
    pub(super) excess: Vec<i64>,
    costs: Vec<UnitCost>,
}

/// A step along an arc, or against it.
#[derive(Copy, Clone, Debug)]
struct Step {
    arc: u32,
    is_forward: bool,
}

impl Network {
    pub(super) fn build(program: &Program, graph: &FlowGraph, counts: &Counts, costs: Costs<'_>) -> Self {
        let raw: Vec<Option<i64>> = graph.arcs.iter().map(|arc| counts.of(graph, arc.kind).get()).collect();
        let flows: Vec<i64> = raw.iter().map(|count| count.unwrap_or(0).max(0)).collect();
        let mut excess = vec![0i64; graph.num_nodes()];
        for (arc, &flow) in graph.arcs.iter().zip(&flows) {
            excess[arc.from as usize] = excess[arc.from as usize].saturating_sub(flow);
            excess[arc.to as usize] = excess[arc.to as usize].saturating_add(flow);
        }
        let cost_of = |(arc, count): (&Arc, &Option<i64>)| match (costs, arc.kind, count) {
            (Costs::Estimated(costs), kind, _) => estimated_cost(program, graph, kind, costs),
            (Costs::Carried(trust), ArcKind::Block(i), Some(_)) => carried_cost(trust.blocks.get(graph.block(i).index())),
            (Costs::Carried(trust), ArcKind::Edge(index), Some(_)) => carried_cost(trust.edges.get(index as usize)),
            // However long a detour through uncounted arcs is in practice, it is cheaper than one count changed.
            (_, ArcKind::Block(_) | ArcKind::Edge(_), Some(_)) => UnitCost { raise: 4000, lower: 8000 },
            (_, ArcKind::Block(_) | ArcKind::Edge(_), None) => UnitCost { raise: 1, lower: 1 },
            (Costs::Carried(_), kind, _) => open_cost(program, graph, kind),
            (Costs::Exact, ArcKind::Arrival(_) | ArcKind::Departure(_), _) => UnitCost { raise: 1000, lower: 1 },
        };
        Network {
            incoming: Adjacency::build(graph.num_nodes(), graph.arcs.iter().map(|a| a.to)),
            outgoing: Adjacency::build(graph.num_nodes(), graph.arcs.iter().map(|a| a.from)),
            costs: graph.arcs.iter().zip(&raw).map(cost_of).collect(),
            arcs: graph.arcs.clone(),
            outside: graph.outside(),
            expected: flows.clone(),
            is_known: raw.iter().map(Option::is_some).collect(),
            flows,
            excess,
        }
    }

    /// Changes the flow of an arc and the balance of its ends.
    pub(super) fn push(&mut self, arc: usize, amount: i64) {
        let Arc { from, to, .. } = self.arcs[arc];
        self.flows[arc] = self.flows[arc].saturating_add(amount);
        self.excess[from as usize] = self.excess[from as usize].saturating_sub(amount);
        self.excess[to as usize] = self.excess[to as usize].saturating_add(amount);
    }

    /// Balances every node.
    pub(super) fn balance(&mut self) {
        let mut budget = 4_000_000 + 64 * self.arcs.len() as u64;
        let mut search = Search::new(self.excess.len());
        'sources: for source in 0..self.excess.len() as u32 {
            while self.excess[source as usize] > 0 {
                match search.run(self, source, &mut budget) {
                    Some(sink) => self.augment(&search, sink),
                    None => break 'sources,
                }
            }
        }
        if self.excess.iter().any(|&e| e != 0) {
            self.drain();
        }
    }

    /// What a step may carry at most, and what each unit of it costs.
    fn residual(&self, step: Step) -> Option<(i64, i64)> {
        let arc = step.arc as usize;
        let (flow, expected, cost) = (self.flows[arc], self.expected[arc], self.costs[arc]);
        match step.is_forward {
            true if flow < expected => Some((expected - flow, -cost.lower)),
            true => Some((i64::MAX, cost.raise)),
            false if flow > expected => Some((flow - expected, -cost.raise)),
            false if flow > 0 => Some((flow, cost.lower)),
            false => None,
        }
    }

    fn augment(&mut self, search: &Search, sink: u32) {
        let mut amount = -self.excess[sink as usize];
        let mut node = sink;
        while let Some(step) = search.steps[node as usize] {
            amount = amount.min(self.residual(step).map_or(0, |(capacity, _)| capacity));
            node = self.origin(step);
        }
        amount = amount.min(self.excess[node as usize]);
        node = sink;
        while let Some(step) = search.steps[node as usize] {
            self.push(step.arc as usize, if step.is_forward { amount } else { -amount });
            node = self.origin(step);
        }
    }

    fn origin(&self, step: Step) -> u32 {
        let arc = self.arcs[step.arc as usize];
        if step.is_forward { arc.from } else { arc.to }
    }

    /// Sends what every node has too much to the outside along a tree, and what it lacks from there along another. Flows only
    /// grow, so none becomes negative; the outside, last, is balanced because all balances add up to zero.
    fn drain(&mut self) {
        let (order, parents) = self.tree(&self.incoming, |arc| arc.from);
        for &node in order.iter().rev() {
            let excess = self.excess[node as usize];
            if excess > 0 && parents[node as usize] != UNREACHED {
                self.push(parents[node as usize] as usize, excess);
            }
        }
        let (order, parents) = self.tree(&self.outgoing, |arc| arc.to);
        for &node in order.iter().rev() {
            let excess = self.excess[node as usize];
            if excess < 0 && parents[node as usize] != UNREACHED {
                self.push(parents[node as usize] as usize, -excess);
            }
        }
    }

    /// Nodes by distance from the outside, and the arc that leads each one nearer. All nodes are reached (`FlowGraph`'s
    /// invariant).
    fn tree(&self, adjacency: &Adjacency, far_end: impl Fn(Arc) -> u32) -> (Vec<u32>, Vec<u32>) {
        let mut parents = vec![UNREACHED; self.excess.len()];
        let mut is_reached = vec![false; self.excess.len()];
        is_reached[self.outside as usize] = true;
        let mut order = vec![self.outside];
        let mut next = 0;
        while let Some(&node) = order.get(next) {
            next += 1;
            for &arc in adjacency.of(node) {
                let far = far_end(self.arcs[arc as usize]);
                if !std::mem::replace(&mut is_reached[far as usize], true) {
                    parents[far as usize] = arc;
                    order.push(far);
                }
            }
        }
        (order, parents)
    }
}

/// What changing a count that was carried over by one costs.
fn carried_cost(cost: Option<&u32>) -> UnitCost {
    let cost = cost.map_or(1, |&c| i64::from(c.max(1)));
    UnitCost { raise: cost, lower: cost * 2 }
}

/// What it costs that flow comes to a function or leaves it, where its counts are of another build.
fn open_cost(program: &Program, graph: &FlowGraph, kind: ArcKind) -> UnitCost {
    let is_usual = match kind {
        ArcKind::Arrival(i) => program.funcs[graph.func].entry == graph.block(i),
        ArcKind::Departure(i) => leaves_often(program, graph.block(i)),
        ArcKind::Block(_) | ArcKind::Edge(_) => true,
    };
    UnitCost { raise: if is_usual { 20 } else { 1000 }, lower: 1 }
}

/// What changing an estimated flow by one costs. Functions are called and return as often as they need to.
fn estimated_cost(program: &Program, graph: &FlowGraph, kind: ArcKind, costs: &[u32]) -> UnitCost {
    const ODD: i64 = 200;
    let block = |i: u32| graph.block(i);
    match kind {
        ArcKind::Block(i) => {
            let cost = costs.get(block(i).index()).map_or(1, |&c| i64::from(c.max(1)));
            UnitCost { raise: cost, lower: cost }
        }
        ArcKind::Edge(_) => UnitCost { raise: 1, lower: 1 },
        ArcKind::Arrival(i) if program.funcs[graph.func].entry == block(i) => UnitCost { raise: 1, lower: 1 },
        ArcKind::Departure(i) if leaves_often(program, block(i)) => UnitCost { raise: 1, lower: 1 },
        ArcKind::Arrival(_) | ArcKind::Departure(_) => UnitCost { raise: ODD, lower: 1 },
    }
}

/// Whether a block's end is one of a function's usual ends.
fn leaves_often(program: &Program, block: Block) -> bool {
    let kind = program.blocks[block].terminator;
    !matches!(kind, Terminator::Stop(StopKind::NoReturnCall | StopKind::Trap | StopKind::ComputedJump | StopKind::TableJump(_)))
}

/// Shortest paths from a node with too much, by Dijkstra's algorithm on reduced costs.
struct Search {
    potentials: Vec<i64>,
    distances: Vec<i64>,
    /// The last step of the shortest path to each node; none at its start.
    steps: Vec<Option<Step>>,
    is_done: Vec<bool>,
    /// Nodes with a distance.
    reached: Vec<u32>,
    heap: BinaryHeap<Reverse<(i64, u32)>>,
}

impl Search {
    fn new(num_nodes: usize) -> Self {
        Search {
            potentials: vec![0; num_nodes],
            distances: vec![i64::MAX; num_nodes],
            steps: vec![None; num_nodes],
            is_done: vec![false; num_nodes],
            reached: Vec::new(),
            heap: BinaryHeap::new(),
        }
    }

    /// The nearest node that lacks flow; `None` when the budget is spent.
    fn run(&mut self, network: &Network, source: u32, budget: &mut u64) -> Option<u32> {
        for node in self.reached.drain(..) {
            self.distances[node as usize] = i64::MAX;
            self.steps[node as usize] = None;
            self.is_done[node as usize] = false;
        }
        self.heap.clear();
        self.distances[source as usize] = 0;
        self.reached.push(source);
        self.heap.push(Reverse((0, source)));
        while let Some(Reverse((distance, node))) = self.heap.pop() {
            if std::mem::replace(&mut self.is_done[node as usize], true) {
                continue;
            }
            if network.excess[node as usize] < 0 {
                self.raise_potentials(distance);
                return Some(node);
            }
            let (out, back) = (network.outgoing.of(node), network.incoming.of(node));
            *budget = budget.checked_sub(1 + (out.len() + back.len()) as u64)?;
            let forward = out.iter().map(|&arc| Step { arc, is_forward: true });
            let backward = back.iter().map(|&arc| Step { arc, is_forward: false });
            for step in forward.chain(backward) {
                self.relax(network, node, step, distance);
            }
        }
        None
    }

    fn relax(&mut self, network: &Network, node: u32, step: Step, distance: i64) {
        let Some((_, cost)) = network.residual(step) else { return };
        let arc = network.arcs[step.arc as usize];
        let next = if step.is_forward { arc.to } else { arc.from };
        let reduced = distance + cost + self.potentials[node as usize] - self.potentials[next as usize];
        if !self.is_done[next as usize] && reduced < self.distances[next as usize] {
            if self.distances[next as usize] == i64::MAX {
                self.reached.push(next);
            }
            self.distances[next as usize] = reduced;
            self.steps[next as usize] = Some(step);
            self.heap.push(Reverse((reduced, next)));
        }
    }

    /// Nodes nearer than the sink are lowered by what they are nearer, which is the same as raising all others.
    fn raise_potentials(&mut self, sink_distance: i64) {
        for &node in &self.reached {
            if self.is_done[node as usize] {
                self.potentials[node as usize] += self.distances[node as usize] - sink_distance;
            }
        }
    }
}
