//! What a profile says of a lifted program once its flow is consistent: how often each block and edge runs.

use lifter::entity::{Block, EntityId, Func};
use lifter::split::Split;

/// The targets seen at one indirect call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectTargets {
    pub block: Block,
    /// Of the call instruction's last byte + 1 (the return address), from the block's start.
    pub return_offset: u32,
    /// Most frequent first.
    pub targets: Vec<(Func, u64)>,
    /// Calls whose target is outside the image or was not recorded for want of room.
    pub other: u64,
}

impl IndirectTargets {
    fn place(&self) -> (Block, u32) {
        (self.block, self.return_offset)
    }
    fn merge(&mut self, other: &IndirectTargets) {
        self.other = self.other.saturating_add(other.other);
        for &(func, count) in &other.targets {
            match self.targets.iter_mut().find(|(known, _)| *known == func) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => self.targets.push((func, count)),
            }
        }
        self.targets.sort_by_key(|&(func, count)| (std::cmp::Reverse(count), func));
    }
}

/// Execution counts by block and by edge, indexed like `Program::blocks` and `Program::edges`.
///
/// Invariant: the counts of a block's incoming edges add up to its own, unless execution may come to it from outside its
/// function (an entry, a landing pad, a block whose address is taken): then to at most that. Likewise those of its outgoing
/// edges, unless execution may leave the function at its end. `flow::FlowGraph` says which blocks these are;
/// `infer::first_inconsistent` checks it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    pub blocks: Vec<u64>,
    pub edges: Vec<u64>,
    pub indirect: Vec<IndirectTargets>,
    /// How often functions were entered of which nothing else is known: the counts of their blocks and edges are zero for want of
    /// knowledge. By ascending function, each once.
    pub entered: Vec<(Func, u64)>,
}

impl Weights {
    /// Nothing known: all counts zero.
    pub fn none(num_blocks: usize, num_edges: usize) -> Self {
        Self { blocks: vec![0; num_blocks], edges: vec![0; num_edges], ..Self::default() }
    }
    /// The counts of a program whose blocks have been cut: each part ran as often as the whole.
    #[must_use]
    pub fn of_parts(mut self, split: &Split) -> Self {
        // Of which nothing is counted.
        if !self.blocks.is_empty() || !self.edges.is_empty() {
            (self.blocks, self.edges) = self.counts_of_parts(split);
        }
        for site in &mut self.indirect {
            (site.block, site.return_offset) = split.part_before(site.block, site.return_offset);
        }
        self
    }
    fn counts_of_parts(&self, split: &Split) -> (Vec<u64>, Vec<u64>) {
        let count = |counts: &[u64], index: usize| counts.get(index).copied().unwrap_or(0);
        let blocks: Vec<u64> = split.origins.iter().map(|origin| count(&self.blocks, origin.index())).collect();
        // Edges between parts are in the order of the parts that they lead out of.
        let fronts = split.origins.iter().zip(split.origins.iter().skip(1)).zip(&blocks);
        let mut between = fronts.filter(|((front, rear), _)| front == rear).map(|(_, count)| *count);
        let edges = split
            .edges
            .iter()
            .map(|edge| edge.map_or_else(|| between.next().unwrap_or(0), |old| count(&self.edges, old as usize)))
            .collect();
        (blocks, edges)
    }
    /// Adds another profile of the same program, each count so many times. Sums of consistent flows are consistent.
    pub fn add(&mut self, other: &Weights, weight: u64) {
        let add = |sum: &mut u64, count: u64| *sum = sum.saturating_add(count.saturating_mul(weight));
        self.blocks.iter_mut().zip(&other.blocks).for_each(|(sum, &count)| add(sum, count));
        self.edges.iter_mut().zip(&other.edges).for_each(|(sum, &count)| add(sum, count));
        self.entered.extend(other.entered.iter().map(|&(func, count)| (func, count.saturating_mul(weight))));
        let scaled = |site: &IndirectTargets| IndirectTargets {
            targets: site.targets.iter().map(|&(func, count)| (func, count.saturating_mul(weight))).collect(),
            other: site.other.saturating_mul(weight),
            ..*site
        };
        self.indirect.extend(other.indirect.iter().map(scaled));
        self.normalize();
    }

    /// Puts what is known by function and by site in order, and adds up what is said of the same one.
    pub fn normalize(&mut self) {
        self.entered.sort_by_key(|&(func, _)| func);
        self.entered.dedup_by(|next, own| {
            let is_same = next.0 == own.0;
            if is_same {
                own.1 = own.1.saturating_add(next.1);
            }
            is_same
        });
        self.indirect.sort_by_key(IndirectTargets::place);
        self.indirect.dedup_by(|next, own| {
            let is_same = next.place() == own.place();
            if is_same {
                own.merge(next);
            }
            is_same
        });
    }

    pub fn has_counts(&self) -> bool {
        self.blocks.iter().any(|&count| count != 0)
    }
}
