//! What a profile says, as plain counts: which blocks are hot, and how often each call site calls.

use lifter::entity::{Block, EntityId};
use lifter::ir::{EdgeKind, Program, Terminator};

use crate::graph::{CallGraph, SiteId};
use crate::procedures::{Procedure, Procedures};

/// Hot blocks and call counts of a program.
#[derive(Clone, Debug)]
pub struct Counts<'p> {
    /// By block; empty if nothing is known, as if all were zero.
    pub blocks: &'p [u64],
    /// Blocks executed at least so often are hot.
    pub threshold: u64,
    /// By site.
    sites: Vec<u64>,
    /// By procedure: how often it was entered, whoever called.
    entries: Vec<u64>,
}

impl<'p> Counts<'p> {
    /// `phi` is the share of all executed instructions that hot blocks account for: the threshold is the largest count such that blocks executed as often
    /// as that have this share.
    pub fn new(
        program: &Program,
        procedures: &Procedures,
        graph: &CallGraph,
        (blocks, edges): (&'p [u64], &[u64]),
        phi: f64,
    ) -> Self {
        let site_count = |id: SiteId| {
            let site = &graph.sites[id];
            let all = count_of(blocks, site.block.index());
            // What a conditional jump out of the procedure does not leave by stays.
            let stays = |kind: EdgeKind| kind == EdgeKind::Fallthrough;
            let data = &program.blocks[site.block];
            let kept: u64 = match (site.is_tail, data.terminator) {
                (true, Terminator::Branch { .. }) => {
                    data.edges.as_usize().filter(|&e| stays(program.edges[e].kind)).map(|e| count_of(edges, e)).sum()
                }
                _ => 0,
            };
            all.saturating_sub(kept)
        };
        Counts {
            blocks,
            threshold: threshold(program, blocks, phi),
            sites: graph.sites.keys().map(site_count).collect(),
            entries: procedures.all.values().map(|p| count_of(blocks, p.entry.index())).collect(),
        }
    }

    pub fn is_hot(&self, block: Block) -> bool {
        self.of_block(block) >= self.threshold
    }
    pub fn of_block(&self, block: Block) -> u64 {
        count_of(self.blocks, block.index())
    }
    pub fn of_site(&self, site: SiteId) -> u64 {
        self.sites[site.index()]
    }
    /// How often a procedure was entered. A loop back to the entry counts too, so this is no less than the sum over its sites only by and large.
    pub fn of_procedure(&self, procedure: Procedure) -> u64 {
        self.entries[procedure.index()]
    }
}

fn count_of(counts: &[u64], index: usize) -> u64 {
    counts.get(index).copied().unwrap_or(0)
}

fn threshold(program: &Program, blocks: &[u64], phi: f64) -> u64 {
    let mut executed: Vec<(u64, u128)> = program
        .blocks
        .iter()
        .map(|(id, data)| (count_of(blocks, id.index()), u128::from(data.num_insts)))
        .filter(|e| e.0 > 0)
        .map(|(count, instructions)| (count, u128::from(count) * instructions))
        .collect();
    executed.sort_unstable_by_key(|e| std::cmp::Reverse(e.0));
    let total: u128 = executed.iter().map(|e| e.1).sum();
    let wanted = (total as f64 * phi.clamp(0.0, 1.0)) as u128;
    let mut sum = 0u128;
    for (count, instructions) in executed {
        sum += instructions;
        if sum >= wanted {
            return count;
        }
    }
    u64::MAX
}
