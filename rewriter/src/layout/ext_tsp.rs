//! The score of an order of blocks, which block layout maximizes.
//!
//! **Method.** The extended TSP score of A. Newell and S. Pupyrev, "Improved Basic Block Reordering" (IEEE Trans. Computers, 2020): a jump
//! that becomes a fallthrough earns its whole count; one that stays a jump earns a tenth of it, falling linearly to nothing at 1024 bytes
//! forward or 640 bytes backward, since a near target is likely in the same or the next cache line. The constants are those that the
//! paper's authors settled on for x86-64.
//!
//! **Invariant.** Only the jumps of `BlockGraph` count, each once, whatever the order.

/// Bytes beyond which a forward jump earns nothing.
pub(crate) const FORWARD_BYTES_MAX: i64 = 1024;
/// Bytes beyond which a backward jump earns nothing.
pub(crate) const BACKWARD_BYTES_MAX: i64 = 640;
const FALLTHROUGH_CONDITIONAL: f64 = 1.0;
/// Above the conditional one, since the whole jump instruction vanishes.
const FALLTHROUGH_UNCONDITIONAL: f64 = 1.05;
const NEAR_JUMP: f64 = 0.1;
/// Counts are cut to this, so that sums over a function don't overflow whatever the profile says.
const COUNT_MAX: u64 = 1 << 44;

/// Whether a jump disappears where its target follows its source.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum JumpKind {
    /// One of the two ways out of a conditional branch.
    Conditional,
    /// The only way out of its block.
    Unconditional,
    /// Through a table, or the taken way of a `loop`: never a fallthrough.
    Indirect,
}

/// A control transfer between two blocks of one graph, by index.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Jump {
    pub(crate) source: u32,
    pub(crate) target: u32,
    pub(crate) count: u64,
    pub(crate) kind: JumpKind,
}

/// The blocks to be put in order: one function's, of one unwind class.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockGraph {
    /// Bytes of each block, at least 1.
    pub(crate) sizes: Vec<u32>,
    pub(crate) counts: Vec<u64>,
    /// Ascending by source, without those from a block to itself, which no order changes.
    pub(crate) jumps: Vec<Jump>,
    /// The block that must come first.
    pub(crate) entry: Option<u32>,
    /// For each block and one past the last: the index of its first jump.
    first_jump: Vec<u32>,
}

impl BlockGraph {
    pub(crate) fn new(sizes: Vec<u32>, counts: Vec<u64>, mut jumps: Vec<Jump>, entry: Option<u32>) -> Self {
        debug_assert_eq!(sizes.len(), counts.len());
        jumps.retain(|jump| jump.source != jump.target);
        jumps.iter_mut().for_each(|jump| jump.count = jump.count.min(COUNT_MAX));
        jumps.sort_by_key(|jump| jump.source);
        let mut first_jump = Vec::with_capacity(sizes.len() + 1);
        first_jump.extend((0..=sizes.len() as u32).map(|node| jumps.partition_point(|jump| jump.source < node) as u32));
        let sizes = sizes.into_iter().map(|size| size.max(1)).collect();
        Self { sizes, counts, jumps, entry, first_jump }
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// The jumps that leave a block.
    pub(crate) fn jumps_from(&self, node: u32) -> &[Jump] {
        let node = node as usize;
        &self.jumps[self.first_jump[node] as usize..self.first_jump[node + 1] as usize]
    }

    /// Executions of jumps from `source` to `target` that vanish where the one follows the other.
    pub(crate) fn fallthrough_count(&self, source: u32, target: u32) -> u64 {
        let vanishes = |jump: &&Jump| jump.target == target && jump.kind != JumpKind::Indirect;
        self.jumps_from(source).iter().filter(vanishes).map(|jump| jump.count).sum()
    }
}

/// What one jump earns, from the address where its source ends and the one where its target starts.
pub(crate) fn jump_score(jump: &Jump, source_end: i64, target_start: i64) -> f64 {
    let count = jump.count as f64;
    let distance = target_start - source_end;
    let near = |distance: i64, bytes_max: i64| {
        if distance >= bytes_max { 0.0 } else { NEAR_JUMP * (1.0 - distance as f64 / bytes_max as f64) }
    };
    let weight = match (distance, jump.kind) {
        (0, JumpKind::Conditional) => FALLTHROUGH_CONDITIONAL,
        (0, JumpKind::Unconditional) => FALLTHROUGH_UNCONDITIONAL,
        (0.., _) => near(distance, FORWARD_BYTES_MAX),
        (..0, _) => near(-distance, BACKWARD_BYTES_MAX),
    };
    weight * count
}

/// The most that a jump can earn.
pub(crate) fn jump_score_max(jump: &Jump) -> f64 {
    jump_score(jump, 0, 0)
}

/// The score of a whole order.
pub(crate) fn order_score(graph: &BlockGraph, order: &[u32]) -> f64 {
    let mut starts = vec![0i64; graph.len()];
    let mut at = 0;
    for &node in order {
        starts[node as usize] = at;
        at += i64::from(graph.sizes[node as usize]);
    }
    let end = |node: u32| starts[node as usize] + i64::from(graph.sizes[node as usize]);
    graph.jumps.iter().map(|jump| jump_score(jump, end(jump.source), starts[jump.target as usize])).sum()
}

/// Executions of jumps that an order turns into fallthroughs: the rest of the direct ones are taken branches.
pub(crate) fn order_fallthroughs(graph: &BlockGraph, order: &[u32]) -> u64 {
    order.windows(2).map(|pair| graph.fallthrough_count(pair[0], pair[1])).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jump(source: u32, target: u32, count: u64, kind: JumpKind) -> Jump {
        Jump { source, target, count, kind }
    }

    #[test]
    fn a_fallthrough_earns_its_count_and_a_far_jump_nothing() {
        let conditional = jump(0, 1, 10, JumpKind::Conditional);
        assert_eq!(jump_score(&conditional, 100, 100), 10.0);
        assert_eq!(jump_score(&conditional, 100, 100 + 512), 0.5);
        assert_eq!(jump_score(&conditional, 100, 100 + 1024), 0.0);
        assert_eq!(jump_score(&conditional, 1000, 1000 - 320), 0.5);
        assert_eq!(jump_score(&conditional, 1000, 1000 - 640), 0.0);
        assert_eq!(jump_score(&jump(0, 1, 10, JumpKind::Unconditional), 7, 7), 10.5);
        assert_eq!(jump_score(&jump(0, 1, 10, JumpKind::Indirect), 7, 7), 1.0);
    }

    #[test]
    fn an_order_is_scored_by_the_places_it_gives() {
        let jumps = vec![jump(0, 2, 5, JumpKind::Conditional), jump(0, 1, 1, JumpKind::Conditional)];
        let graph = BlockGraph::new(vec![10, 10, 10], vec![6, 1, 5], jumps, Some(0));
        assert_eq!(order_fallthroughs(&graph, &[0, 1, 2]), 1);
        assert_eq!(order_fallthroughs(&graph, &[0, 2, 1]), 5);
        let near = 0.1 * (1.0 - 10.0 / 1024.0);
        assert!((order_score(&graph, &[0, 2, 1]) - (5.0 + near)).abs() < 1e-9);
        assert!((order_score(&graph, &[0, 1, 2]) - (1.0 + 5.0 * near)).abs() < 1e-9);
    }
}
