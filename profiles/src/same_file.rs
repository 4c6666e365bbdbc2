//! A profile of the very same code that was lifted otherwise.
//!
//! **Problem.** Whether a file has symbols and the linker's relocations, and which version of relift looks at it, decides where functions without unwind entries begin, and which of them a
//! block belongs to. A profile that was recorded on a program with its symbols, and is used on the stripped one, is not of another build: each instruction is where it was.
//!
//! **Method.** A block runs as often as that in which it begins did. An edge has the count of the one between the two blocks at whose end and start its own ends are; where a block was counted as a whole
//! and is cut now, execution runs through the cut. What no block had before, [`infer`] finds out.
//!
//! **What it rests on**: `identity` says that all executable bytes are the same and at the same addresses, so that only the profile's places have to be right. Wrong ones make a worse layout, never wrong code.
//! Linear in blocks and edges but for sorting and looking up.

#[cfg(test)]
mod tests;

use lifter::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{EdgeKind, Program};

use crate::attribute::Quality;
use crate::infer::infer;
use crate::instrument::Counts;
use crate::outline::{FuncOutline, Outline};
use crate::stale::{first_blocks, signed};
use crate::weights::{IndirectTargets, Weights};

/// Weights of `program` from weights of the same code, which was cut as `old` says when it was counted; `old` has to be placed ([`Outline::is_placed`]).
pub fn carry_by_address(old: &Outline, weights: &Weights, program: &Program) -> (Weights, Quality) {
    let places = Places::build(old, weights);
    let mut counts = Counts::unknown(program);
    for (block, data) in program.blocks.iter() {
        let Some(before) = places.containing(data.start) else { continue };
        counts.blocks[block.index()] = signed(weights.blocks[before.number]);
    }
    for (index, edge) in program.edges.iter().enumerate() {
        if let Some(known) = places.edge(program, edge.source, edge.target, edge.kind) {
            counts.edges[index] = signed(known);
        }
    }
    let mut result = infer(program, &counts);
    result.indirect = places.indirect(weights, program);
    result.entered = weights.entered.iter().filter_map(|&(func, count)| Some((places.entered(program, func)?, count))).collect();
    result.entered.sort_unstable_by_key(|entered| entered.0);
    result.entered.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.saturating_add(next.1);
        }
        is_same
    });
    (result, places.quality(old, weights, program))
}

/// A block as it was.
#[derive(Copy, Clone, Debug)]
struct Place {
    start: Va,
    /// Of the block, padding behind it included.
    end: Va,
    number: usize,
}

/// An edge as it was; blocks by number.
type Edge = (usize, usize, EdgeKind, u64);

/// Where everything was when it was counted.
struct Places {
    /// Ascending.
    blocks: Vec<Place>,
    /// By number of the block.
    starts: Vec<Va>,
    /// By function.
    entries: Vec<Option<Va>>,
    /// Of functions that ran. Ascending.
    edges: Vec<Edge>,
}

impl Places {
    fn build(old: &Outline, weights: &Weights) -> Self {
        let num_blocks = old.funcs.iter().map(|func| func.blocks.len()).sum();
        let mut places = Places {
            blocks: Vec::with_capacity(num_blocks),
            starts: Vec::with_capacity(num_blocks),
            entries: Vec::new(),
            edges: Vec::new(),
        };
        let mut first_edge = 0;
        for func in &old.funcs {
            let first = places.starts.len();
            for block in &func.blocks {
                let (start, end) = func.place(block.offset).unwrap_or_default();
                places.blocks.push(Place { start, end, number: places.starts.len() });
                places.starts.push(start);
            }
            places.entries.push(places.starts.get(first + func.entry as usize).copied());
            if is_hot(weights, first, func) {
                let edges = func.edges.iter().zip(&weights.edges[first_edge..]);
                places.edges.extend(
                    edges.map(|(edge, &count)| (first + edge.source as usize, first + edge.target as usize, edge.kind, count)),
                );
            }
            first_edge += func.edges.len();
        }
        places.blocks.sort_unstable_by_key(|place| place.start);
        for index in 1..places.blocks.len() {
            let next = places.blocks[index].start;
            let place = &mut places.blocks[index - 1];
            place.end = place.end.min(next);
        }
        places.edges.sort_unstable_by_key(|&(source, target, kind, _)| (source, target, kind as u8));
        places
    }

    fn containing(&self, va: Va) -> Option<Place> {
        let after = self.blocks.partition_point(|place| place.start <= va);
        self.blocks.get(after.checked_sub(1)?).copied().filter(|place| va < place.end)
    }

    /// How often an edge ran, as far as it was one.
    fn edge(&self, program: &Program, source: Block, target: Block, kind: EdgeKind) -> Option<u64> {
        let (end, start) = (program.blocks[source].end(), program.blocks[target].start);
        let from = self.containing(Va(end.0.checked_sub(1)?))?;
        let to = self.containing(start)?;
        if to.start != start {
            // Execution ran through the cut, where there was none.
            return None;
        }
        let first = self.edges.partition_point(|edge| (edge.0, edge.1) < (from.number, to.number));
        let mut between = self.edges[first..].iter().take_while(|edge| (edge.0, edge.1) == (from.number, to.number));
        between.find(|edge| edge.2 == kind).map(|edge| edge.3)
    }

    fn indirect(&self, weights: &Weights, program: &Program) -> Vec<IndirectTargets> {
        let mut sites: Vec<IndirectTargets> = weights.indirect.iter().filter_map(|site| self.site(site, program)).collect();
        sites.sort_by_key(|site| (site.block, site.return_offset));
        sites.dedup_by_key(|site| (site.block, site.return_offset));
        sites
    }

    /// A call that was counted, where it is now.
    fn site(&self, site: &IndirectTargets, program: &Program) -> Option<IndirectTargets> {
        let after = *self.starts.get(site.block.index())? + u64::from(site.return_offset);
        let block = program.block_containing(Va(after.0.checked_sub(1)?))?;
        let return_offset = (after - program.blocks[block].start) as u32;
        let mut carried = IndirectTargets { block, return_offset, targets: Vec::new(), other: site.other };
        for &(func, count) in &site.targets {
            match self.entered(program, func) {
                Some(func) => carried.targets.push((func, count)),
                None => carried.other = carried.other.saturating_add(count),
            }
        }
        Some(carried)
    }

    /// The function that is entered now where one was.
    fn entered(&self, program: &Program, func: Func) -> Option<Func> {
        let block = program.block_at((*self.entries.get(func.index())?)?)?;
        let func = program.func_of(block);
        (program.funcs[func].entry == block).then_some(func)
    }

    /// Of what ran: functions whose entries begin something, and executions of instructions that are in something.
    fn quality(&self, old: &Outline, weights: &Weights, program: &Program) -> Quality {
        let mut quality = Quality::default();
        for ((func, entry), first) in old.funcs.iter().zip(&self.entries).zip(first_blocks(old)) {
            if is_hot(weights, first, func) {
                quality.functions_total += 1;
                quality.functions_matched += usize::from(entry.is_some_and(|entry| program.block_at(entry).is_some()));
                for (block, number) in func.blocks.iter().zip(first..) {
                    let count = weights.blocks[number].saturating_mul(u64::from(block.num_insts.max(1)));
                    quality.counts_total = quality.counts_total.saturating_add(count);
                    if program.block_containing(self.starts[number]).is_some() {
                        quality.counts_matched = quality.counts_matched.saturating_add(count);
                    }
                }
            }
        }
        quality
    }
}

/// Whether anything of a function ran, whose first block has this number.
fn is_hot(weights: &Weights, first: usize, func: &FuncOutline) -> bool {
    weights.blocks[first..first + func.blocks.len()].iter().any(|&count| count != 0)
}
