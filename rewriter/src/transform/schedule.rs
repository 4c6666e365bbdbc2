//! The instructions of hot blocks in an order that takes fewer cycles.
//!
//! **Method.** A block is cut into *runs* at all that stays where it is ([`effects`]), wherever the unwind row or the call site changes, and around code whose exceptions are handled in the
//! same function. Within a run, what depends on what makes a graph ([`graph`]), in which accesses to memory keep the order that the memory contract asks for ([`memory`]). List
//! scheduling proposes orders ([`list`]); the model of two processors judges them ([`model`]). Only the order changes: the instructions are those of the original,
//! byte for byte but for the operands that count from where they stand.
//!
//! **Safety.** Registers, flags and private memory hold at each place of the run's end what they held before, because whoever reads something still reads what the same instruction wrote. What
//! others see of memory is said in [`memory`].
//! * *Unwinders.* All instructions of a run have one row; none of them moves the stack pointer. A row names only slots and registers that hold the saved values up to an instruction that
//!   has another row.
//! * *Exceptions.* A call is in no run. An instruction that may raise one otherwise (`-fnon-call-exceptions`) could land in the function itself and see how far the run has come: so code with a
//!   landing pad is left alone.
//! * *Flags at the end of the run* are set by the same instructions as before.
//!
//! **Profit.** An order is taken if on no processor of the model it takes longer than the original, neither once nor over and over, and takes shorter on one of them. No byte is added. What a
//! branch is fused with stays before it.

mod effects;
mod graph;
mod list;
mod memory;
mod model;

use analysis::engine::{Contexts, Summaries};
use analysis::hot::Counts;
use analysis::partition::{Criterion, Partition};
use analysis::values::Surroundings;
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic};
use lifter::address::Va;
use lifter::entity::{Block, Func};
use lifter::ir::{BlockFlags, RefData, Terminator};
use rayon::prelude::*;

use self::effects::Effects;
use self::graph::{Graph, LENGTH_MAX};
use self::memory::BlockMemory;
use self::model::{Estimate, PROCESSORS, Step};
use super::Context;
use crate::edit::{Change, EditPlan, NewCode, Replacement};

/// The share of executed instructions that hot blocks make up.
const HOT_SHARE: f64 = 0.95;

/// How blocks are scheduled.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The program has no data races, and no signal handler looks at its memory.
    pub no_races: bool,
    /// Nothing is asked of the callers.
    pub is_insensitive: bool,
    /// Any other order that is legal is taken, whatever the model says.
    pub takes_any: bool,
}

pub(super) fn plan(context: &Context<'_>, options: Options, edits: &mut EditPlan) {
    let (image, program) = (context.image, context.program);
    let summaries = Summaries::compute(Surroundings::new(image, program));
    let weights = (context.weights.blocks.as_slice(), context.weights.edges.as_slice());
    let counts = Counts::new(program, &summaries.around.procedures, &summaries.graph, weights, HOT_SHARE);
    let criterion = if options.is_insensitive { Criterion::Insensitive } else { Criterion::Relevance { theta: 1.0 } };
    let contexts = Contexts::compute(&summaries, Partition::by(criterion, &summaries, &counts));
    let may_change = |block: Block| !program.blocks[block].flags.contains(BlockFlags::KNOWN_BY_FAULT);
    let is_hot = |&block: &Block| may_change(block) && (context.everywhere || counts.is_hot(block));
    let blocks: Vec<Block> = context.hot_blocks().into_iter().filter(is_hot).collect();
    let by_function: Vec<&[Block]> = blocks.chunk_by(|&a, &b| program.func_of(a) == program.func_of(b)).collect();
    let sites: Vec<Vec<Site>> = by_function
        .par_iter()
        .map(|blocks| {
            let func = program.func_of(blocks[0]);
            sites_of(context, &contexts, options, func, blocks)
        })
        .collect();
    for Site { block, offset, len, code } in sites.into_iter().flatten() {
        let code = edits.codes.push(code);
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::Schedule });
    }
}

/// Instructions of a block and their new order as code.
struct Site {
    block: Block,
    offset: u32,
    len: u32,
    code: NewCode,
}

fn sites_of(context: &Context<'_>, contexts: &Contexts<'_, '_>, options: Options, func: Func, blocks: &[Block]) -> Vec<Site> {
    let bodies: Vec<Body> = blocks.iter().map(|&block| Body::decode(context, block)).collect();
    let wanted: Vec<Block> = bodies.iter().filter(|body| body.has_memory()).map(|body| body.block).collect();
    let memory = memory::of_function(contexts, func, &wanted);
    let nothing = BlockMemory::default();
    let mut sites = Vec::new();
    for body in &bodies {
        let memory = memory.get(&body.block).unwrap_or(&nothing);
        if let Some(order) = body.schedule(memory, options) {
            sites.extend(body.sites(context, &order));
        }
    }
    sites
}

/// A block, decoded.
struct Body {
    block: Block,
    instructions: Vec<Instruction>,
    /// Of the instructions that may move.
    effects: Vec<Option<Effects>>,
    steps: Vec<Step>,
    /// First and last of each run, the last excluded.
    runs: Vec<(usize, usize)>,
    /// The last instruction of the body is fused with the branch behind it.
    is_fused: bool,
}

impl Body {
    fn decode(context: &Context<'_>, block: Block) -> Self {
        let program = context.program;
        let data = &program.blocks[block];
        let instructions = lifter::x86::decode_block(context.image, program, block);
        let body_end = data.start + u64::from(data.body_len);
        let mut factory = InstructionInfoFactory::new();
        let mut effects: Vec<Option<Effects>> = Vec::with_capacity(instructions.len());
        let mut steps = Vec::with_capacity(instructions.len());
        for instruction in &instructions {
            let is_body = Va(instruction.next_ip()) <= body_end;
            let found =
                effects::effects_of(&mut factory, instruction).filter(|_| is_body && is_named(context, block, instruction));
            steps.push(match &found {
                Some(effects) => Step::new(instruction, effects),
                None => fixed_step(&mut factory, instruction),
            });
            effects.push(found);
        }
        let last = instructions.iter().take_while(|i| Va(i.next_ip()) <= body_end).count();
        let is_branch = matches!(data.terminator, Terminator::Branch { .. });
        let is_fused = is_branch && last > 0 && may_fuse(&instructions[last - 1]);
        if is_fused && let Some(step) = steps.get_mut(last) {
            *step = step.fused();
        }
        let mut body = Body { block, instructions, effects, steps, runs: Vec::new(), is_fused };
        body.cut(context);
        body
    }

    fn has_memory(&self) -> bool {
        self.runs.iter().any(|&(start, end)| self.effects[start..end].iter().flatten().any(Effects::uses_memory))
    }

    /// Finds the runs.
    fn cut(&mut self, context: &Context<'_>) {
        let cuts = Cuts::of(context, self.block);
        let mut start = 0;
        for at in 0..=self.instructions.len() {
            let ends = self.effects.get(at).is_none_or(Option::is_none);
            let is_cut = ends || at - start == LENGTH_MAX || cuts.is_at(Va(self.instructions[at].ip()));
            if !is_cut {
                continue;
            }
            if at >= start + 2 && !cuts.is_handled(Va(self.instructions[start].ip())) {
                self.runs.push((start, at));
            }
            start = if ends { at + 1 } else { at };
        }
    }

    /// The best order of the whole block, if that is another than the original.
    fn schedule(&self, memory: &BlockMemory, options: Options) -> Option<Vec<u32>> {
        let original: Vec<u32> = (0..self.instructions.len() as u32).collect();
        let judge = |order: &[u32]| PROCESSORS.map(|processor| model::estimate(processor, &self.steps, order));
        let before = judge(&original);
        let (mut best, mut best_estimates) = (original.clone(), before);
        for &(start, end) in &self.runs {
            let run: Vec<Effects> = self.effects[start..end].iter().flatten().copied().collect();
            let at = |index: usize| Va(self.instructions[start + index].ip());
            let is_last = |index: usize| self.is_fused && start + index + 2 == self.instructions.len();
            let stays = |i: usize, j: usize| is_last(j) || memory.stays((at(i), &run[i]), (at(j), &run[j]), options.no_races);
            let graph = Graph::new(&run, stays);
            for proposal in list::orders(&graph, &run, &self.steps[start..end]) {
                let mut order = best.clone();
                proposal.iter().enumerate().for_each(|(at, &index)| order[start + at] = start as u32 + index);
                let estimates = judge(&order);
                let is_no_worse = estimates.iter().zip(&before).all(|(new, old)| new.is_no_worse(*old));
                if options.takes_any || is_no_worse && total(&estimates, &before) < total(&best_estimates, &before) {
                    (best, best_estimates) = (order, estimates);
                }
            }
        }
        (best != original).then_some(best)
    }

    /// The parts of the block that change, each as short as it can be.
    fn sites(&self, context: &Context<'_>, order: &[u32]) -> Vec<Site> {
        let mut sites = Vec::new();
        let mut start = 0;
        let mut reach = 0;
        for (at, &index) in order.iter().enumerate() {
            reach = reach.max(index as usize);
            if reach == at {
                if at > start {
                    sites.push(self.site(context, &order[start..=at], start));
                }
                start = at + 1;
            }
        }
        sites
    }

    /// Instructions from `first` on in a new order.
    fn site(&self, context: &Context<'_>, order: &[u32], first: usize) -> Site {
        let program = context.program;
        let block_start = program.blocks[self.block].start;
        let offset_of = |instruction: &Instruction| (instruction.ip() - block_start.0) as u32;
        let mut code = NewCode::default();
        for &index in order {
            let instruction = &self.instructions[index as usize];
            let offset = offset_of(instruction);
            let here = code.bytes.len() as u32;
            let bytes = context.image.read(Va(instruction.ip()), instruction.len()).unwrap_or_default();
            code.bytes.extend_from_slice(bytes);
            let own = references_of(program.block_refs(self.block), offset, instruction.len() as u32);
            code.refs.extend(own.iter().map(|r| RefData { offset: r.offset - offset + here, ..*r }));
        }
        Site { block: self.block, offset: offset_of(&self.instructions[first]), len: code.bytes.len() as u32, code }
    }
}

/// Cycles on all processors, as shares of those of the original order.
fn total(estimates: &[Estimate; PROCESSORS.len()], before: &[Estimate; PROCESSORS.len()]) -> u64 {
    let share = |new: u32, old: u32| u64::from(new) * 10_000 / u64::from(old.max(1));
    let shares = |(new, old): (&Estimate, &Estimate)| share(new.once, old.once) + share(new.again, old.again);
    estimates.iter().zip(before).map(shares).sum()
}

fn references_of(refs: &[RefData], offset: u32, len: u32) -> &[RefData] {
    let first = refs.partition_point(|r| r.offset < offset);
    let count = refs[first..].partition_point(|r| r.offset < offset + len);
    &refs[first..first + count]
}

/// Whether all that an instruction's bytes say of its place is known to be a reference.
fn is_named(context: &Context<'_>, block: Block, instruction: &Instruction) -> bool {
    let offset = (instruction.ip() - context.program.blocks[block].start.0) as u32;
    !instruction.is_ip_rel_memory_operand()
        || !references_of(context.program.block_refs(block), offset, instruction.len() as u32).is_empty()
}

/// What stays where it is, as the model sees it.
fn fixed_step(factory: &mut InstructionInfoFactory, instruction: &Instruction) -> Step {
    let info = factory.info(instruction);
    let mut reads = 0;
    let mut writes = 0;
    for used in info.used_registers().iter().filter(|used| used.register().is_gpr()) {
        use iced_x86::OpAccess::{CondRead, NoMemAccess, None, Read, ReadCondWrite, ReadWrite};
        let bit = 1 << used.register().full_register().number();
        // The stack pointer has an adder of its own.
        if used.register().full_register() == iced_x86::Register::RSP {
            continue;
        }
        reads |= if matches!(used.access(), Read | CondRead | ReadWrite | ReadCondWrite) { bit } else { 0 };
        writes |= if matches!(used.access(), None | NoMemAccess | Read | CondRead) { 0 } else { bit };
    }
    let accesses = |wanted: fn(iced_x86::OpAccess) -> bool| info.used_memory().iter().any(|used| wanted(used.access()));
    let loads = accesses(|access| matches!(access, iced_x86::OpAccess::Read | iced_x86::OpAccess::ReadWrite));
    let stores = accesses(|access| matches!(access, iced_x86::OpAccess::Write | iced_x86::OpAccess::ReadWrite));
    let reads_flags = instruction.rflags_read() & effects::FLAGS != 0;
    Step::fixed(reads, writes, reads_flags, loads, stores)
}

/// Whether a processor makes one operation of an instruction and a conditional jump behind it (Intel optimization manual, section 3.4.2.2).
fn may_fuse(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    matches!(instruction.mnemonic(), Cmp | Test | Add | Sub | Inc | Dec | And)
}

/// Where the unwind row or the call site of a block's code changes.
struct Cuts {
    /// Ascending.
    places: Vec<Va>,
    /// Starts and ends of code with a landing pad, ascending.
    handled: Vec<(Va, Va)>,
}

impl Cuts {
    fn of(context: &Context<'_>, block: Block) -> Self {
        let program = context.program;
        let data = &program.blocks[block];
        let mut cuts = Cuts { places: Vec::new(), handled: Vec::new() };
        let Some(fde) = program.ranges[data.range as usize].fde else { return cuts };
        let fde = &program.unwind.fdes[fde];
        let first = fde.ops.partition_point(|op| op.at <= data.start);
        cuts.places.extend(fde.ops[first..].iter().map(|op| op.at).take_while(|&at| at < data.end()));
        if let Some(table) = fde.lsda.and_then(|table| program.unwind.lsdas.get(table as usize)) {
            let first = table.call_sites.partition_point(|site| site.end <= data.start);
            for site in table.call_sites[first..].iter().take_while(|site| site.start < data.end()) {
                cuts.places.extend([site.start, site.end]);
                cuts.handled.extend(site.landing_pad.map(|_| (site.start, site.end)));
            }
        }
        if fde.opaque_lsda.is_some() {
            cuts.handled.push((data.start, data.end()));
        }
        cuts.places.sort_unstable();
        cuts
    }

    fn is_at(&self, va: Va) -> bool {
        self.places.binary_search(&va).is_ok()
    }

    fn is_handled(&self, va: Va) -> bool {
        self.handled.iter().any(|&(start, end)| start <= va && va < end)
    }
}

#[cfg(test)]
mod tests;
