//! How often each block and edge runs, guessed from the shape of the control flow.
//!
//! A block runs as often as the forward edges into it, eight times that if it heads a loop. A branch divides its block's
//! frequency between its targets, by how deep in loops each is (a loop is rarely left) and a little in favor of falling through.
//! One pass in reverse postorder.
//!
//! Loop nesting is found as by Havlak ("Nesting of reducible and irreducible loops", 1997): headers are taken innermost first,
//! by descending depth-first number; the body of each is what reaches its back edges backward without passing the header, and a
//! body once found is collapsed into its header by union-find, so that every block is walked once: near-linear. Irreducible
//! entries are not walked through, which at worst makes a guess low. Terminates because each step collapses a block that was not
//! collapsed before.

use crate::flow::Adjacency;

const NONE: u32 = u32::MAX;
/// Deeper nesting is not told apart: 8^6 is enough to order counters by.
const DEPTH_MAX: u32 = 6;

/// The frequency of a function's entry.
const ONCE: u64 = 1 << 16;
const FREQUENCY_MAX: u64 = 1 << 40;

/// An edge of the graph, as far as a guess at its frequency needs it.
#[derive(Copy, Clone, Debug)]
pub(super) struct Edge {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) is_fallthrough: bool,
}

/// Expected frequencies, at least 1.
#[derive(Debug)]
pub(super) struct Frequencies {
    pub(super) nodes: Vec<u64>,
    pub(super) edges: Vec<u64>,
}

/// Guesses all frequencies; `roots` are the nodes where execution comes from outside, the entry first.
pub(super) fn frequencies(num_nodes: usize, edges: &[Edge], roots: &[u32]) -> Frequencies {
    let pairs: Vec<(u32, u32)> = edges.iter().map(|e| (e.from, e.to)).collect();
    let succs = Adjacency::build(num_nodes, pairs.iter().map(|e| e.0));
    let order = DepthFirst::compute(num_nodes, &pairs, &succs, roots.iter().copied().chain(0..num_nodes as u32));
    let nesting = Nesting::compute(num_nodes, &pairs, &order);
    let share = |edge: &Edge| {
        let depth = nesting.depths[edge.from as usize].min(nesting.depths[edge.to as usize]);
        (if edge.is_fallthrough { 5 } else { 3u64 }) << (3 * depth)
    };
    let mut result = Frequencies { nodes: vec![0; num_nodes], edges: vec![0; edges.len()] };
    for &root in roots {
        result.nodes[root as usize] = ONCE;
    }
    for &node in order.postorder.iter().rev() {
        let loops = if nesting.is_header[node as usize] { 8 } else { 1 };
        let frequency = (result.nodes[node as usize] * loops).clamp(1, FREQUENCY_MAX);
        result.nodes[node as usize] = frequency;
        let total: u64 = succs.of(node).iter().map(|&e| share(&edges[e as usize])).sum();
        for &index in succs.of(node) {
            let edge = &edges[index as usize];
            let part = (u128::from(frequency) * u128::from(share(edge)) / u128::from(total.max(1))) as u64;
            result.edges[index as usize] = part.max(1);
            if !order.is_ancestor(edge.to, node) {
                let target = &mut result.nodes[edge.to as usize];
                *target = (*target + part).min(FREQUENCY_MAX);
            }
        }
    }
    result
}

/// Which nodes head a loop, and how many loops are around each.
struct Nesting {
    is_header: Vec<bool>,
    depths: Vec<u32>,
}

impl Nesting {
    fn compute(num_nodes: usize, edges: &[(u32, u32)], order: &DepthFirst) -> Self {
        let preds = Adjacency::build(num_nodes, edges.iter().map(|e| e.1));
        let (is_header, header_of) = find_loops(num_nodes, edges, &preds, order);
        let mut depths = vec![0u32; num_nodes];
        // A header comes before its body in preorder, so its depth is final when the body asks for it.
        for &node in &order.preorder {
            let around = match header_of[node as usize] {
                NONE => 0,
                header => depths[header as usize],
            };
            depths[node as usize] = (around + u32::from(is_header[node as usize])).min(DEPTH_MAX);
        }
        Nesting { is_header, depths }
    }
}

/// For each node whether it heads a loop, and the header of the innermost loop that it is in the body of.
fn find_loops(num_nodes: usize, edges: &[(u32, u32)], preds: &Adjacency, order: &DepthFirst) -> (Vec<bool>, Vec<u32>) {
    let mut collapsed: Vec<u32> = (0..num_nodes as u32).collect();
    let mut header_of = vec![NONE; num_nodes];
    let mut is_header = vec![false; num_nodes];
    let mut body = Vec::new();
    let mut in_body = vec![NONE; num_nodes];
    for &header in order.preorder.iter().rev() {
        let is_below_header = |node: u32| order.is_ancestor(header, node);
        let mut enqueue = |node: u32, body: &mut Vec<u32>, collapsed: &mut [u32]| {
            let node = find(collapsed, node);
            if node != header && is_below_header(node) && in_body[node as usize] != header {
                in_body[node as usize] = header;
                body.push(node);
            }
        };
        for &edge in preds.of(header) {
            let source = edges[edge as usize].0;
            if order.is_ancestor(header, source) {
                is_header[header as usize] = true;
                enqueue(source, &mut body, &mut collapsed);
            }
        }
        while let Some(node) = body.pop() {
            header_of[node as usize] = header;
            collapsed[node as usize] = header;
            for &edge in preds.of(node) {
                enqueue(edges[edge as usize].0, &mut body, &mut collapsed);
            }
        }
    }
    (is_header, header_of)
}

fn find(collapsed: &mut [u32], mut node: u32) -> u32 {
    while collapsed[node as usize] != node {
        collapsed[node as usize] = collapsed[collapsed[node as usize] as usize];
        node = collapsed[node as usize];
    }
    node
}

/// Depth-first numbers: `node` is below `ancestor` in the search tree exactly if it was entered after and left before.
struct DepthFirst {
    preorder: Vec<u32>,
    postorder: Vec<u32>,
    entered: Vec<u32>,
    left: Vec<u32>,
}

impl DepthFirst {
    fn compute(num_nodes: usize, edges: &[(u32, u32)], succs: &Adjacency, roots: impl Iterator<Item = u32>) -> Self {
        let mut order = DepthFirst {
            preorder: Vec::with_capacity(num_nodes),
            postorder: Vec::with_capacity(num_nodes),
            entered: vec![NONE; num_nodes],
            left: vec![0; num_nodes],
        };
        let mut stack: Vec<(u32, u32)> = Vec::new();
        for root in roots {
            if order.entered[root as usize] == NONE {
                order.enter(root);
                stack.push((root, 0));
            }
            while let Some((node, next)) = stack.last_mut() {
                let Some(&edge) = succs.of(*node).get(*next as usize) else {
                    order.left[*node as usize] = order.preorder.len() as u32;
                    order.postorder.push(*node);
                    stack.pop();
                    continue;
                };
                *next += 1;
                let target = edges[edge as usize].1;
                if order.entered[target as usize] == NONE {
                    order.enter(target);
                    stack.push((target, 0));
                }
            }
        }
        order
    }
    fn enter(&mut self, node: u32) {
        self.entered[node as usize] = self.preorder.len() as u32;
        self.preorder.push(node);
    }
    fn is_ancestor(&self, ancestor: u32, node: u32) -> bool {
        let (first, end) = (self.entered[ancestor as usize], self.left[ancestor as usize]);
        (first..end).contains(&self.entered[node as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loop_depths(num_nodes: usize, edges: &[(u32, u32)]) -> Vec<u32> {
        let succs = Adjacency::build(num_nodes, edges.iter().map(|e| e.0));
        let order = DepthFirst::compute(num_nodes, edges, &succs, 0..num_nodes as u32);
        Nesting::compute(num_nodes, edges, &order).depths
    }

    #[test]
    fn nested_loops_count_each_header_that_is_around() {
        // 0 → 1 → 2 → 2 (self), 2 → 3 → 1, 3 → 4.
        let edges = [(0, 1), (1, 2), (2, 2), (2, 3), (3, 1), (3, 4)];
        assert_eq!(loop_depths(5, &edges), [0, 1, 2, 1, 0]);
    }

    #[test]
    fn two_back_edges_to_one_header_are_one_loop() {
        let edges = [(0, 1), (1, 2), (1, 3), (2, 1), (3, 1), (1, 4)];
        assert_eq!(loop_depths(5, &edges), [0, 1, 1, 1, 0]);
    }

    #[test]
    fn a_loop_is_left_about_as_often_as_it_is_entered() {
        let edge = |from, to, is_fallthrough| Edge { from, to, is_fallthrough };
        let edges = [edge(0, 1, true), edge(1, 1, false), edge(1, 2, true)];
        let found = frequencies(3, &edges, &[0]);
        assert_eq!(found.nodes[1], 8 * ONCE);
        assert!((ONCE..3 * ONCE).contains(&found.nodes[2]), "{found:?}");
    }

    #[test]
    fn an_irreducible_loop_terminates() {
        let edges = [(0, 1), (0, 2), (1, 2), (2, 1), (2, 3)];
        assert_eq!(loop_depths(4, &edges)[3], 0);
    }
}
