//! A function as a flow network: what counter placement, derivation and inference agree on.
//!
//! Each block is split into an *in* node and an *out* node, joined by the *block arc* that carries the block's count. CFG edges
//! join out nodes to in nodes. One *outside* node stands for everything that is not the function: arcs from it lead to the
//! blocks where execution may arrive other than by an edge (entries, landing pads, blocks whose address is taken), arcs to it
//! come from the blocks that leave. In a run in which every call returns, the flow into each node is the flow out of it (Knuth
//! and Stevenson, "Optimal measurement points for program frequency counts", 1973).
//!
//! **Invariant**: every node is reachable from the outside node and reaches it. Blocks that no edge and no flag explains get an
//! arrival, and each loop that nothing leaves gets a departure (the process ends inside it), so that any imbalance can be routed
//! to the outside. Construction is two graph searches, linear in arcs.

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, CodeTarget, EdgeKind, Program, StopKind, Terminator};

/// What an arc stands for. Block indices are relative to the function's first block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ArcKind {
    Block(u32),
    /// An index into `Program::edges`.
    Edge(u32),
    /// Execution comes from outside the function.
    Arrival(u32),
    /// Execution leaves the function.
    Departure(u32),
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Arc {
    pub from: u32,
    pub to: u32,
    pub kind: ArcKind,
}

/// The network of one function.
#[derive(Clone, Debug)]
pub struct FlowGraph {
    pub func: Func,
    /// The function's first block; block `i` of the network is this one's id plus `i`.
    pub first_block: usize,
    pub num_blocks: u32,
    /// Block arcs first, in block order; then edges, block by block; then arrivals and departures.
    pub arcs: Vec<Arc>,
}

impl FlowGraph {
    pub fn build(program: &Program, func: Func) -> Self {
        let blocks = program.funcs[func].blocks;
        let first_block = blocks.as_usize().start;
        let num_blocks = blocks.len() as u32;
        let mut graph = FlowGraph { func, first_block, num_blocks, arcs: Vec::with_capacity(blocks.len() * 4) };
        for i in 0..num_blocks {
            graph.arcs.push(Arc { from: in_node(i), to: out_node(i), kind: ArcKind::Block(i) });
        }
        for (i, block) in (0..num_blocks).zip(blocks.iter()) {
            for index in program.blocks[block].edges.as_usize() {
                let target = program.edges[index].target;
                if blocks.contains(target) {
                    let to = in_node((target.index() - first_block) as u32);
                    graph.arcs.push(Arc { from: out_node(i), to, kind: ArcKind::Edge(index as u32) });
                }
            }
        }
        for (i, block) in (0..num_blocks).zip(blocks.iter()) {
            if may_arrive(program, func, block) {
                graph.push_arrival(i);
            }
            if may_depart(program, func, block) {
                graph.push_departure(i);
            }
        }
        graph.connect();
        graph
    }

    pub fn num_nodes(&self) -> usize {
        self.num_blocks as usize * 2 + 1
    }
    /// The node that stands for everything that is not the function.
    pub fn outside(&self) -> u32 {
        self.num_blocks * 2
    }
    pub fn block(&self, index: u32) -> Block {
        Block::new(self.first_block + index as usize)
    }

    fn push_arrival(&mut self, i: u32) {
        self.arcs.push(Arc { from: self.outside(), to: in_node(i), kind: ArcKind::Arrival(i) });
    }
    fn push_departure(&mut self, i: u32) {
        self.arcs.push(Arc { from: out_node(i), to: self.outside(), kind: ArcKind::Departure(i) });
    }

    /// Establishes the invariant: each search is resumed at the first block that it has not seen, after joining that block to
    /// the outside.
    fn connect(&mut self) {
        let forward = Adjacency::build(self.num_nodes(), self.arcs.iter().map(|a| a.from));
        let backward = Adjacency::build(self.num_nodes(), self.arcs.iter().map(|a| a.to));
        let num_arcs = self.arcs.len();
        let mut seen = vec![false; self.num_nodes()];
        let mut stack = vec![self.outside()];
        for i in 0..=self.num_blocks {
            self.search(&mut stack, &mut seen, |arcs, node, visit| {
                forward.of(node).iter().for_each(|&a| visit(arcs[a as usize].to));
            });
            if i < self.num_blocks && !seen[in_node(i) as usize] {
                self.push_arrival(i);
                stack.push(in_node(i));
            }
        }
        seen.fill(false);
        stack.push(self.outside());
        // Latest block first: the end of a loop's body is where a process that never leaves it is most likely to be interrupted.
        for i in (0..=self.num_blocks).rev() {
            if i < self.num_blocks && !seen[out_node(i) as usize] {
                self.push_departure(i);
                stack.push(out_node(i));
            }
            self.search(&mut stack, &mut seen, |arcs, node, visit| {
                backward.of(node).iter().for_each(|&a| visit(arcs[a as usize].from));
            });
        }
        debug_assert!(self.arcs.len() >= num_arcs);
    }

    fn search(&self, stack: &mut Vec<u32>, seen: &mut [bool], neighbors: impl Fn(&[Arc], u32, &mut dyn FnMut(u32))) {
        for &node in stack.iter() {
            seen[node as usize] = true;
        }
        while let Some(node) = stack.pop() {
            neighbors(&self.arcs, node, &mut |next| {
                if !std::mem::replace(&mut seen[next as usize], true) {
                    stack.push(next);
                }
            });
        }
    }
}

pub fn in_node(block: u32) -> u32 {
    block * 2
}
pub fn out_node(block: u32) -> u32 {
    block * 2 + 1
}

/// Whether execution may come to a block other than by an edge of its function.
fn may_arrive(program: &Program, func: Func, block: Block) -> bool {
    let outside = BlockFlags::ENTRY | BlockFlags::LANDING_PAD | BlockFlags::ADDRESS_TAKEN;
    program.funcs[func].entry == block || program.blocks[block].flags.intersects(outside)
}

/// Whether execution may leave the function at the end of a block.
fn may_depart(program: &Program, func: Func, block: Block) -> bool {
    let leaves = |b: Block| program.func_of(b) != func;
    let target_leaves = |t: CodeTarget| match t {
        CodeTarget::Block(b) => leaves(b),
        CodeTarget::Fixed(_) => true,
    };
    match program.blocks[block].terminator {
        Terminator::Fallthrough { next } => leaves(next),
        Terminator::Jump { target } => target_leaves(target),
        Terminator::Branch { taken, next, .. } => target_leaves(taken) || leaves(next),
        Terminator::Loop { taken, next } => leaves(taken) || leaves(next),
        Terminator::Stop(StopKind::TableJump(table)) => program.targets_of(table).iter().any(|&b| leaves(b)),
        Terminator::Stop(_) => true,
    }
}

/// Whether a counter can be put on an edge: a jump through a table or to a computed address has no place of its own to hold one.
pub fn is_countable(kind: EdgeKind) -> bool {
    matches!(kind, EdgeKind::Fallthrough | EdgeKind::Taken)
}

/// Lists of arc indices by node, flattened.
#[derive(Clone, Debug)]
pub struct Adjacency {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Adjacency {
    /// Groups the positions of `keys` by key; positions of one key ascend.
    pub fn build(num_nodes: usize, keys: impl Iterator<Item = u32> + Clone) -> Self {
        let mut starts = vec![0u32; num_nodes + 1];
        for key in keys.clone() {
            starts[key as usize + 1] += 1;
        }
        for node in 0..num_nodes {
            starts[node + 1] += starts[node];
        }
        let mut next = starts.clone();
        let mut items = vec![0u32; starts[num_nodes] as usize];
        for (position, key) in keys.enumerate() {
            items[next[key as usize] as usize] = position as u32;
            next[key as usize] += 1;
        }
        Adjacency { starts, items }
    }
    pub fn of(&self, node: u32) -> &[u32] {
        &self.items[self.starts[node as usize] as usize..self.starts[node as usize + 1] as usize]
    }
}

/// Disjoint sets with path halving and union by size: near-constant time an operation (Tarjan 1975).
#[derive(Clone, Debug)]
pub struct DisjointSets {
    parents: Vec<u32>,
    sizes: Vec<u32>,
}

impl DisjointSets {
    pub fn new(len: usize) -> Self {
        DisjointSets { parents: (0..len as u32).collect(), sizes: vec![1; len] }
    }
    pub fn find(&mut self, mut item: u32) -> u32 {
        while self.parents[item as usize] != item {
            let grandparent = self.parents[self.parents[item as usize] as usize];
            self.parents[item as usize] = grandparent;
            item = grandparent;
        }
        item
    }
    /// Whether the two were in different sets.
    pub fn unite(&mut self, a: u32, b: u32) -> bool {
        let (a, b) = (self.find(a), self.find(b));
        if a == b {
            return false;
        }
        let (small, large) = if self.sizes[a as usize] < self.sizes[b as usize] { (a, b) } else { (b, a) };
        self.parents[small as usize] = large;
        self.sizes[large as usize] += self.sizes[small as usize];
        true
    }
}
