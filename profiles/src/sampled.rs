//! Samples of a program carried over to its blocks and edges.
//!
//! **Problem.** A sampling profiler sees addresses; layout needs counts of blocks and edges that obey conservation.
//!
//! **Method, branch records.** A record between two blocks of a function that an edge joins counts that edge. One to a block that
//! may be entered from outside counts an arrival, one from an indirect call or jump also a target. A straight run counts each
//! edge that it falls through; what led to its start is a record of its own. An edge that no record mentions did not run, except where a block has only one:
//! producers whose blocks are longer don't know it. A block ran as often as the larger of what arrives and what leaves, since
//! records are lost more easily than invented.
//!
//! **Method, plain samples.** See `plain`: time spent in a block, divided by its number of instructions, is how often it ran.
//!
//! Either way `infer` makes the result consistent. Everything is linear in samples and blocks, but for a bisection by address.

mod plain;
#[cfg(test)]
mod tests;

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockFlags, EdgeKind, Program, StopKind, Terminator};
use lifter::x86::decode_block;
use lifter::{Image, Va};
use rustc_hash::FxHashMap;

use crate::flow::FlowGraph;
use crate::infer::{infer, infer_by_trust};
use crate::instrument::{Count, Counts};
use crate::samples::Samples;
use crate::weights::{IndirectTargets, Weights};

/// How good a sampled profile is.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct SampleQuality {
    /// What the source said of any program, in its own unit.
    pub total: u64,
    /// Of these, in this image.
    pub located: u64,
    /// Of these, in code that was lifted into blocks.
    pub mapped: u64,
    /// Functions with any count.
    pub functions: usize,
    /// Of the flow that was counted, how much was missing or too much at some block, before inference; 0 is perfect conservation.
    pub imbalance: f64,
    /// How much inference changed what was counted, as a share of it.
    pub changed: f64,
}

/// Consistent weights from samples, and how good they are.
pub fn weigh(image: &Image<'_>, program: &Program, samples: &Samples) -> (Weights, SampleQuality) {
    let mut quality = SampleQuality { total: samples.total, located: samples.located, ..SampleQuality::default() };
    let samples = &bounded(samples);
    let (counts, weights) = if samples.has_branches() {
        let (counts, known) = count_branches(image, program, samples, &mut quality);
        let weights = infer(program, &counts);
        (counts, Weights { blocks: weights.blocks, edges: weights.edges, ..known })
    } else {
        let (counts, costs) = plain::count(program, samples, &mut quality);
        let weights = infer_by_trust(program, &counts, &costs);
        (counts, weights)
    };
    quality.functions = program.funcs.keys().filter(|&func| has_counts(program, func, &counts)).count();
    quality.imbalance = imbalance(program, &counts);
    quality.changed = change(&counts, &weights);
    (weights, quality)
}

/// The same with all counts divided by the power of two that keeps their sum below 2^48, so that no sum on the way can overflow.
/// No real profile comes near.
fn bounded(samples: &Samples) -> std::borrow::Cow<'_, Samples> {
    let branches = samples.branches.iter().map(|b| b.count);
    let rest = samples.traces.iter().map(|t| t.count).chain(samples.addresses.iter().map(|a| a.1));
    let sum: u128 = branches.chain(rest).map(u128::from).sum();
    let shift = (128 - sum.leading_zeros()).saturating_sub(48);
    if shift == 0 {
        return std::borrow::Cow::Borrowed(samples);
    }
    let mut scaled = samples.clone();
    scaled.branches.iter_mut().for_each(|b| b.count >>= shift);
    scaled.traces.iter_mut().for_each(|t| t.count >>= shift);
    scaled.addresses.iter_mut().for_each(|a| a.1 >>= shift);
    std::borrow::Cow::Owned(scaled)
}

fn has_counts(program: &Program, func: Func, counts: &Counts) -> bool {
    program.funcs[func].blocks.iter().any(|b| counts.blocks[b.index()].get().unwrap_or(0) != 0)
}

/// What flows into each block but not out of it or the reverse, where all of it is known, as a share of what flows.
fn imbalance(program: &Program, counts: &Counts) -> f64 {
    let (mut wrong, mut whole) = (0f64, 0f64);
    for func in program.funcs.keys().filter(|&func| has_counts(program, func, counts)) {
        let graph = FlowGraph::build(program, func);
        let mut balance = vec![Some(0i64); graph.num_nodes()];
        for arc in &graph.arcs {
            let count = counts.of(&graph, arc.kind).get();
            for (node, sign) in [(arc.from, -1), (arc.to, 1)] {
                let sum = &mut balance[node as usize];
                *sum = sum.zip(count).map(|(sum, count)| sum.saturating_add(sign * count));
            }
        }
        wrong += balance.iter().flatten().map(|&b| b.unsigned_abs() as f64).sum::<f64>();
        let blocks = program.funcs[func].blocks.iter();
        whole += blocks.filter_map(|b| counts.blocks[b.index()].get()).map(|c| c as f64).sum::<f64>();
    }
    if whole == 0.0 { 0.0 } else { wrong / (2.0 * whole) }
}

fn change(counts: &Counts, weights: &Weights) -> f64 {
    let known = counts.blocks.iter().zip(&weights.blocks).chain(counts.edges.iter().zip(&weights.edges));
    let (mut changed, mut whole) = (0f64, 0f64);
    for (count, &weight) in known.filter_map(|(count, weight)| Some((count.get()?, weight))) {
        changed += (weight as f64 - count as f64).abs();
        whole += count as f64;
    }
    if whole == 0.0 { 0.0 } else { changed / whole }
}

/// Where records meet the program.
struct Counter<'p> {
    image: &'p Image<'p>,
    program: &'p Program,
    edges: Vec<u64>,
    /// By block, from outside its function, and to there.
    arrivals: Vec<u64>,
    departures: Vec<u64>,
    /// By function: whether a record leaves one of its blocks.
    is_known_inside: Vec<bool>,
    targets: FxHashMap<(Block, Va), FxHashMap<Option<Func>, u64>>,
    has_fallthroughs: bool,
    mapped: u64,
}

fn count_branches(image: &Image<'_>, program: &Program, samples: &Samples, quality: &mut SampleQuality) -> (Counts, Weights) {
    let num_blocks = program.blocks.len();
    let mut counter = Counter {
        image,
        program,
        edges: vec![0; program.edges.len()],
        arrivals: vec![0; num_blocks],
        departures: vec![0; num_blocks],
        is_known_inside: vec![false; program.funcs.len()],
        targets: FxHashMap::default(),
        has_fallthroughs: false,
        mapped: 0,
    };
    for branch in &samples.branches {
        counter.branch(branch.from, branch.to, branch.count);
    }
    for trace in &samples.traces {
        counter.trace(trace.first, trace.last, trace.count);
    }
    quality.mapped = counter.mapped;
    let counts = counter.counts();
    let entered = counter.entered();
    (counts, Weights { entered, indirect: counter.indirect_targets(), ..Weights::default() })
}

impl Counter<'_> {
    fn branch(&mut self, from: Option<Va>, to: Option<Va>, count: u64) {
        let program = self.program;
        let source = from.and_then(|at| program.block_containing(at));
        let target = to.and_then(|at| program.block_containing(at));
        if source.is_none() && target.is_none() {
            return;
        }
        self.mapped = self.mapped.saturating_add(count);
        if let Some(block) = source {
            self.is_known_inside[program.func_of(block).index()] = true;
        }
        let target_start = target.filter(|&b| to == Some(program.blocks[b].start));
        if let (Some(source), Some(target)) = (source, target_start)
            && let Some(index) = program.blocks[source].edges.as_usize().find(|&e| program.edges[e].target == target)
        {
            self.has_fallthroughs |= program.edges[index].kind == EdgeKind::Fallthrough;
            self.edges[index] = self.edges[index].saturating_add(count);
            return;
        }
        if let Some(block) = target_start.filter(|&b| self.may_be_entered(b)) {
            self.arrivals[block.index()] = self.arrivals[block.index()].saturating_add(count);
        }
        if let (Some(block), Some(from)) = (source, from) {
            self.leave(block, from, target_start, count);
        }
    }

    fn may_be_entered(&self, block: Block) -> bool {
        let outside = BlockFlags::ENTRY | BlockFlags::LANDING_PAD | BlockFlags::ADDRESS_TAKEN;
        let data = &self.program.blocks[block];
        data.flags.intersects(outside) || self.program.funcs[data.func].entry == block
    }

    /// A call, return or tail call out of a block.
    fn leave(&mut self, block: Block, from: Va, target: Option<Block>, count: u64) {
        let program = self.program;
        let data = &program.blocks[block];
        let is_terminator = from >= data.start + u64::from(data.body_len);
        let is_stop =
            matches!(data.terminator, Terminator::Stop(StopKind::Return | StopKind::IndirectTailCall | StopKind::NoReturnCall));
        let is_end = is_terminator || (is_stop && from + 16 >= data.end());
        let is_last = is_end && !self.has_instruction_behind(block, from);
        if is_last {
            self.departures[block.index()] = self.departures[block.index()].saturating_add(count);
        }
        let is_direct = is_terminator
            || program.block_refs(block).iter().any(|r| {
                let field = data.start + u64::from(r.offset);
                from < field && field < from + 8 && r.role == lifter::ir::RefRole::Call
            });
        let is_return = is_last && data.terminator == Terminator::Stop(StopKind::Return);
        if is_direct || is_return {
            return;
        }
        let func = target.map(|b| program.func_of(b)).filter(|&f| Some(program.funcs[f].entry) == target);
        let sum = self.targets.entry((block, from)).or_default().entry(func).or_default();
        *sum = sum.saturating_add(count);
    }

    fn has_instruction_behind(&self, block: Block, at: Va) -> bool {
        let data = &self.program.blocks[block];
        if at >= data.start + u64::from(data.body_len) && data.body_len < data.len {
            return false;
        }
        decode_block(self.image, self.program, block).last().is_some_and(|last| Va(last.ip()) > at)
    }

    /// Counts what a straight run falls through. A run that leaves the code known, or is longer than any real one, is cut there.
    fn trace(&mut self, first: Va, last: Va, count: u64) {
        const BLOCKS_MAX: usize = 4096;
        let program = self.program;
        let Some(mut block) = program.block_containing(first).filter(|_| first <= last) else { return };
        self.mapped = self.mapped.saturating_add(count);
        self.has_fallthroughs = true;
        self.is_known_inside[program.func_of(block).index()] = true;
        for _ in 0..BLOCKS_MAX {
            let fallthrough = program.blocks[block].edges.as_usize().find(|&e| program.edges[e].kind == EdgeKind::Fallthrough);
            let Some(index) = fallthrough.filter(|&e| program.blocks[program.edges[e].target].start <= last) else { break };
            self.edges[index] = self.edges[index].saturating_add(count);
            block = program.edges[index].target;
        }
    }

    fn counts(&self) -> Counts {
        let program = self.program;
        let mut counts = Counts::unknown(program);
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX / 4).min(i64::MAX / 4);
        let mut incoming = self.arrivals.clone();
        let mut outgoing = self.departures.clone();
        for (edge, &count) in program.edges.iter().zip(&self.edges) {
            incoming[edge.target.index()] = incoming[edge.target.index()].saturating_add(count);
            outgoing[edge.source.index()] = outgoing[edge.source.index()].saturating_add(count);
        }
        for (block, data) in program.blocks.iter().filter(|(_, data)| self.is_known(data.func)) {
            let index = block.index();
            counts.blocks[index] = Count::new(signed(incoming[index].max(outgoing[index])));
            let is_only = data.edges.len() == 1;
            for edge in data.edges.as_usize() {
                let is_silent = self.edges[edge] == 0
                    && (is_only || (!self.has_fallthroughs && program.edges[edge].kind == EdgeKind::Fallthrough));
                if !is_silent {
                    counts.edges[edge] = Count::new(signed(self.edges[edge]));
                }
            }
        }
        // A block that only a silent edge leads to is not known to be idle.
        for (edge, data) in program.edges.iter().enumerate() {
            if !counts.edges[edge].is_known() && incoming[data.target.index()] == 0 && outgoing[data.target.index()] == 0 {
                counts.blocks[data.target.index()] = Count::UNKNOWN;
            }
        }
        counts
    }

    /// Whether records say which way a function goes, or it has but one.
    fn is_known(&self, func: Func) -> bool {
        let program = self.program;
        self.is_known_inside[func.index()] || program.funcs[func].blocks.iter().all(|b| program.blocks[b].edges.len() <= 1)
    }

    /// Functions that others are seen to call, but nothing of what they do then: a producer that can't count in them (BOLT's
    /// instrumentation in what it can't disassemble) has no record of their branches, which is no sign that they did not run.
    fn entered(&self) -> Vec<(Func, u64)> {
        let unknown = self.program.funcs.iter().filter(|&(func, _)| !self.is_known(func));
        let entered = unknown.map(|(func, data)| (func, data.blocks.iter().map(|b| self.arrivals[b.index()]).sum()));
        entered.filter(|&(_, count)| count != 0).collect()
    }

    fn indirect_targets(self) -> Vec<IndirectTargets> {
        let mut sites = Vec::new();
        for ((block, from), counts) in self.targets {
            let instructions = decode_block(self.image, self.program, block);
            let Some(call) = instructions.iter().find(|i| Va(i.ip()) == from) else { continue };
            use iced_x86::FlowControl::{IndirectBranch, IndirectCall};
            if !matches!(call.flow_control(), IndirectCall | IndirectBranch) {
                continue;
            }
            let return_offset = (Va(call.next_ip()) - self.program.blocks[block].start) as u32;
            let mut site = IndirectTargets { block, return_offset, targets: Vec::new(), other: 0 };
            for (func, count) in counts {
                match func {
                    Some(func) => site.targets.push((func, count)),
                    None => site.other = site.other.saturating_add(count),
                }
            }
            site.targets.sort_unstable_by_key(|&(func, count)| (std::cmp::Reverse(count), func));
            sites.push(site);
        }
        sites.sort_unstable_by_key(|site| (site.block, site.return_offset));
        sites
    }
}
