//! Dyno-stats: what a profiled run executes under a given order of the code, counted rather than measured.
//!
//! **Method.** Counts of blocks and edges don't depend on the layout; which branches they run through does. Bodies are decoded where they
//! ran, terminators are taken as `terminator` says that they are emitted. The counters are those that BOLT prints under this
//! name. As there, a jump out of its function is a call that does not return here (`tail_calls`), not a branch, and a jump through a table or a
//! pointer is counted apart from the taken branches. Edited code is decoded as it became; what was inlined counts where it stands now, so that
//! the weights of an output with edits are `EditPlan::adjusted`.
//!
//! **Invariant.** `taken_branches` = taken conditional + unconditional; every other counter is a sum over blocks, so it does not depend on
//! threads.

use std::ops::AddAssign;

use iced_x86::{FlowControl, InstructionInfoFactory, OpAccess};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, SecondaryMap};
use lifter::ir::{CodeTarget, Program, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86::{decode_block, decode_bytes};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::edit::{EditPlan, NewCode, Replacement};
use crate::plan::LayoutPlan;
use crate::terminator::{Execution, SuccessorCounts, as_in_input, emit_weighted};

const PAGE_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 64;

/// Whose addresses and branches are counted.
#[derive(Copy, Clone)]
pub enum Order<'a> {
    Input,
    Output {
        plan: &'a LayoutPlan,
        edits: &'a EditPlan,
        /// Those of the input, before the edits.
        input_weights: &'a Weights,
        /// Where a block was put and how many bytes it takes there; pinned blocks where they were.
        placement: &'a (dyn Fn(Block) -> (Va, u32) + Sync),
    },
}

impl std::fmt::Debug for Order<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Order::Input => "Input",
            Order::Output { .. } => "Output",
        })
    }
}

/// The counters; all but the last three in executions.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DynoStats {
    pub instructions: u64,
    pub blocks: u64,
    /// Conditional branches whose target lies ahead.
    pub forward_branches: u64,
    pub taken_forward_branches: u64,
    /// Conditional branches whose target lies behind, or is the branch's own block.
    pub backward_branches: u64,
    pub taken_backward_branches: u64,
    /// Direct jumps inside a function.
    pub unconditional_branches: u64,
    pub taken_conditional_branches: u64,
    pub not_taken_conditional_branches: u64,
    /// Taken conditional and unconditional ones.
    pub taken_branches: u64,
    pub table_jumps: u64,
    /// Indirect jumps without a table.
    pub indirect_jumps: u64,
    /// Direct jumps to another function or to a stub.
    pub tail_calls: u64,
    /// All `call` instructions, indirect and to the PLT included.
    pub calls: u64,
    pub indirect_calls: u64,
    pub plt_calls: u64,
    pub loads: u64,
    pub stores: u64,
    /// Size of the blocks that make up 99 % of the executed instructions, and how many pages and cache lines they lie in.
    pub hot_bytes: u64,
    pub hot_pages: u64,
    pub hot_lines: u64,
}

impl DynoStats {
    /// Every counter with its key for machines and its name for people, in the order in which they are shown.
    pub fn rows(&self) -> [(&'static str, &'static str, u64); 21] {
        [
            ("instructions", "executed instructions", self.instructions),
            ("blocks", "executed blocks", self.blocks),
            ("taken_branches", "taken branches", self.taken_branches),
            ("taken_conditional_branches", "taken conditional branches", self.taken_conditional_branches),
            ("not_taken_conditional_branches", "not taken conditional branches", self.not_taken_conditional_branches),
            ("unconditional_branches", "unconditional branches", self.unconditional_branches),
            ("forward_branches", "forward branches", self.forward_branches),
            ("taken_forward_branches", "taken forward branches", self.taken_forward_branches),
            ("backward_branches", "backward branches", self.backward_branches),
            ("taken_backward_branches", "taken backward branches", self.taken_backward_branches),
            ("table_jumps", "jumps through tables", self.table_jumps),
            ("indirect_jumps", "other indirect jumps", self.indirect_jumps),
            ("tail_calls", "tail calls", self.tail_calls),
            ("calls", "calls", self.calls),
            ("indirect_calls", "indirect calls", self.indirect_calls),
            ("plt_calls", "PLT calls", self.plt_calls),
            ("loads", "loads", self.loads),
            ("stores", "stores", self.stores),
            ("hot_bytes", "hot code bytes", self.hot_bytes),
            ("hot_pages", "hot 4 KiB pages", self.hot_pages),
            ("hot_lines", "hot cache lines", self.hot_lines),
        ]
    }
}

impl AddAssign for DynoStats {
    fn add_assign(&mut self, other: Self) {
        macro_rules! add {
            ($($field:ident)*) => { $(self.$field = self.$field.saturating_add(other.$field);)* };
        }
        add!(instructions blocks forward_branches taken_forward_branches backward_branches taken_backward_branches
            unconditional_branches taken_conditional_branches not_taken_conditional_branches taken_branches table_jumps
            indirect_jumps tail_calls calls indirect_calls plt_calls loads stores hot_bytes hot_pages hot_lines);
    }
}

/// Counts what the weights say was executed, in the given order of the code.
pub fn compute(image: &Image<'_>, program: &Program, weights: &Weights, order: Order<'_>) -> DynoStats {
    let layout = Layout::new(program, order);
    let vouched = match order {
        Order::Output { edits, input_weights, .. } => edits.vouched(input_weights),
        Order::Input => FxHashMap::default(),
    };
    let executed: Vec<(Block, u64)> =
        program.blocks.keys().zip(weights.blocks.iter().copied()).filter(|&(_, count)| count != 0).collect();
    // Each chunk gives its sum and the instructions that each of its blocks executes.
    let count_chunk = |chunk: &[(Block, u64)]| {
        let mut factory = InstructionInfoFactory::new();
        let mut sum = DynoStats::default();
        let mut executed_insts = Vec::with_capacity(chunk.len());
        for &(block, count) in chunk {
            let before = sum.instructions;
            count_body(image, program, layout.replacements(block), block, count, &mut factory, &mut sum);
            if let Order::Output { edits, .. } = order {
                count_new_code((edits, &vouched), block, count, &mut factory, &mut sum);
                if edits.replaces_terminator(program, None, block) {
                    executed_insts.push((block, sum.instructions - before));
                    continue;
                }
            }
            count_terminator(program, weights, &layout, block, count, &mut sum);
            executed_insts.push((block, sum.instructions - before));
        }
        (sum, executed_insts)
    };
    let chunks: Vec<(DynoStats, Vec<(Block, u64)>)> = executed.par_chunks(1024).map(count_chunk).collect();
    let mut stats = DynoStats::default();
    let mut executed_insts = Vec::with_capacity(executed.len());
    for (sum, insts) in chunks {
        stats += sum;
        executed_insts.extend(insts);
    }
    stats.taken_branches = stats.taken_conditional_branches.saturating_add(stats.unconditional_branches);
    count_hot_code(&layout, executed_insts, &mut stats);
    stats
}

/// The order, ready to be asked of single blocks.
struct Layout<'a> {
    program: &'a Program,
    order: Order<'a>,
    /// For each block that the plan moves: the one behind it in its fragment. `None` for blocks that stay where they are.
    following: SecondaryMap<Block, Option<Option<Block>>>,
    /// Copies of blocks, ascending by block: what follows each in its fragment, and how often it runs.
    copies: Vec<(Block, Option<Block>, u64)>,
}

impl<'a> Layout<'a> {
    fn new(program: &'a Program, order: Order<'a>) -> Self {
        let mut following = SecondaryMap::new(program.blocks.len(), None);
        let mut copies = Vec::new();
        if let Order::Output { plan, .. } = order {
            for fragment in plan.fragments.iter().filter(|fragment| fragment.clone.is_none()) {
                let nexts = fragment.blocks.iter().skip(1).map(|planned| Some(planned.block)).chain([None]);
                for (planned, next) in fragment.blocks.iter().zip(nexts) {
                    match planned.copy {
                        None => following[planned.block] = Some(next),
                        Some(times) => copies.push((planned.block, next, times.count())),
                    }
                }
            }
            copies.sort_unstable();
        }
        Self { program, order, following, copies }
    }

    fn placement(&self, block: Block) -> (Va, u32) {
        match self.order {
            Order::Input => (self.program.blocks[block].start, self.program.blocks[block].len),
            Order::Output { placement, .. } => placement(block),
        }
    }

    fn replacements(&self, block: Block) -> &'a [Replacement] {
        match self.order {
            Order::Input => &[],
            Order::Output { edits, .. } => edits.replacements_of(block),
        }
    }

    fn address(&self, target: CodeTarget) -> Va {
        match target {
            CodeTarget::Block(block) => self.placement(block).0,
            CodeTarget::Fixed(va) => va,
        }
    }

    /// How the terminators of a block and of its copies run.
    fn executions(&self, block: Block, counts: SuccessorCounts) -> Vec<Execution> {
        let data = &self.program.blocks[block];
        let following = match self.order {
            Order::Input => None,
            Order::Output { .. } => self.following[block],
        };
        let Some(following) = following else {
            return vec![Execution::of(as_in_input(&data.terminator), &data.terminator, counts)];
        };
        let first = self.copies.partition_point(|copy| copy.0 < block);
        let copies = self.copies[first..].iter().take_while(|copy| copy.0 == block);
        let mut left = counts;
        let mut executions = Vec::new();
        for &(_, next, count) in copies {
            let share = counts.share(count);
            left = left.less(share);
            executions.push(Execution::of(emit_weighted(&data.terminator, next, counts), &data.terminator, share));
        }
        executions.push(Execution::of(emit_weighted(&data.terminator, following, counts), &data.terminator, left));
        executions
    }
}

/// What the bytes that are copied execute.
fn count_body(
    image: &Image<'_>,
    program: &Program,
    replaced: &[Replacement],
    block: Block,
    count: u64,
    factory: &mut InstructionInfoFactory,
    stats: &mut DynoStats,
) {
    let data = &program.blocks[block];
    let body_end = data.start + u64::from(data.body_len);
    let goes = |offset: u32| replaced.iter().any(|r| r.offset <= offset && offset < r.end());
    for instruction in decode_block(image, program, block).iter().take_while(|instruction| instruction.ip() < body_end.0) {
        if !goes((instruction.ip() - data.start.0) as u32) {
            *stats += executed(instruction, count, factory);
        }
    }
    let through_plt = |va: Va| image.section_at(va).is_some_and(|section| image.sections[section].name.starts_with(".plt"));
    let calls_plt = |target: RefTarget| matches!(target, RefTarget::Fixed(va) if through_plt(va));
    let refs = program.block_refs(block).iter().filter(|reference| !goes(reference.offset));
    let plt_calls = refs.filter(|reference| reference.role == RefRole::Call && calls_plt(reference.target)).count() as u64;
    *stats += DynoStats { blocks: count, plt_calls: plt_calls.saturating_mul(count), ..DynoStats::default() };
}

/// What new code in a block executes.
fn count_new_code(
    (edits, vouched): (&EditPlan, &FxHashMap<Block, u32>),
    block: Block,
    count: u64,
    factory: &mut InstructionInfoFactory,
    stats: &mut DynoStats,
) {
    let mut instructions = Vec::new();
    for r in edits.replacements_of(block) {
        let code = &edits.codes[r.code];
        let share = code.instead_of.first().and_then(|(first, _)| vouched.get(first)).copied().unwrap_or(NewCode::WHOLE);
        let count = (u128::from(count) * u128::from(share) / u128::from(NewCode::WHOLE)) as u64;
        instructions.clear();
        decode_bytes(&code.bytes, Va(0), &mut instructions);
        for instruction in &instructions {
            let runs = code.runs_at(instruction.ip() as u32, count);
            *stats += executed(instruction, runs, factory);
            *stats += branched(instruction, runs, code.taken_at(instruction.ip() as u32, count).min(runs));
            // A jump through a slot is the tail call whose place it took.
            if instruction.flow_control() == FlowControl::IndirectBranch {
                stats.tail_calls = stats.tail_calls.saturating_add(runs);
            }
        }
    }
}

/// What a direct branch in new code adds as one.
fn branched(instruction: &iced_x86::Instruction, runs: u64, taken: u64) -> DynoStats {
    let mut stats = DynoStats::default();
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => {
            (stats.taken_conditional_branches, stats.not_taken_conditional_branches) = (taken, runs - taken);
            if instruction.near_branch_target() > instruction.ip() {
                (stats.forward_branches, stats.taken_forward_branches) = (runs, taken);
            } else {
                (stats.backward_branches, stats.taken_backward_branches) = (runs, taken);
            }
            stats.taken_branches = taken;
        }
        FlowControl::UnconditionalBranch => (stats.unconditional_branches, stats.taken_branches) = (runs, runs),
        _ => {}
    }
    stats
}

/// What one instruction that is no direct branch adds.
fn executed(instruction: &iced_x86::Instruction, count: u64, factory: &mut InstructionInfoFactory) -> DynoStats {
    let once = |is: bool| if is { count } else { 0 };
    let flow = instruction.flow_control();
    let (is_load, is_store) = memory_accesses(factory, instruction);
    DynoStats {
        instructions: count,
        calls: once(matches!(flow, FlowControl::Call | FlowControl::IndirectCall)),
        indirect_calls: once(flow == FlowControl::IndirectCall),
        loads: once(is_load),
        stores: once(is_store),
        ..DynoStats::default()
    }
}

/// Whether an instruction reads memory, and whether it writes any; the stack counts.
fn memory_accesses(factory: &mut InstructionInfoFactory, instruction: &iced_x86::Instruction) -> (bool, bool) {
    let memory = factory.info(instruction).used_memory();
    let any = |kinds: &[OpAccess]| memory.iter().any(|used| kinds.contains(&used.access()));
    let loads = any(&[OpAccess::Read, OpAccess::CondRead, OpAccess::ReadWrite, OpAccess::ReadCondWrite]);
    let stores = any(&[OpAccess::Write, OpAccess::CondWrite, OpAccess::ReadWrite, OpAccess::ReadCondWrite]);
    (loads, stores)
}

fn count_terminator(program: &Program, weights: &Weights, layout: &Layout<'_>, block: Block, count: u64, stats: &mut DynoStats) {
    let terminator = &program.blocks[block].terminator;
    match terminator {
        Terminator::Stop(StopKind::TableJump(_)) => stats.table_jumps = stats.table_jumps.saturating_add(count),
        Terminator::Stop(StopKind::ComputedJump | StopKind::IndirectTailCall) => {
            stats.indirect_jumps = stats.indirect_jumps.saturating_add(count);
        }
        _ => {}
    }
    for execution in layout.executions(block, SuccessorCounts::of(program, weights, block)) {
        *stats += counted(program, layout, block, execution);
    }
}

fn counted(program: &Program, layout: &Layout<'_>, block: Block, execution: Execution) -> DynoStats {
    let mut more = DynoStats::default();
    if let Some(branch) = execution.conditional {
        let runs = branch.taken.saturating_add(branch.not_taken);
        more.instructions = runs;
        more.taken_conditional_branches = branch.taken;
        more.not_taken_conditional_branches = branch.not_taken;
        if layout.address(branch.target) > layout.placement(block).0 {
            (more.forward_branches, more.taken_forward_branches) = (runs, branch.taken);
        } else {
            (more.backward_branches, more.taken_backward_branches) = (runs, branch.taken);
        }
    }
    if let Some((target, runs)) = execution.jump {
        more.instructions = more.instructions.saturating_add(runs);
        let stays = matches!(target, CodeTarget::Block(target) if program.func_of(target) == program.func_of(block));
        if stays {
            more.unconditional_branches = runs;
        } else {
            more.tail_calls = runs;
        }
    }
    more
}

/// The fewest blocks that make up 99 % of the executed instructions: their bytes, pages and lines.
fn count_hot_code(layout: &Layout<'_>, mut executed_insts: Vec<(Block, u64)>, stats: &mut DynoStats) {
    let total: u128 = executed_insts.iter().map(|&(_, insts)| u128::from(insts)).sum();
    // By executions per byte, so that the set is the densest.
    let density = |block: Block, insts: u64| u128::from(insts) * (1 << 20) / u128::from(layout.program.blocks[block].len.max(1));
    executed_insts.sort_by_cached_key(|&(block, insts)| (std::cmp::Reverse(density(block, insts)), block));
    let (mut covered, mut pages, mut lines) = (0u128, Vec::new(), Vec::new());
    for (block, insts) in executed_insts {
        if covered * 100 >= total * 99 {
            break;
        }
        covered += u128::from(insts);
        let (start, len) = layout.placement(block);
        let last = start.0 + u64::from(len.max(1)) - 1;
        stats.hot_bytes += u64::from(len);
        pages.extend(start.0 / PAGE_BYTES..=last / PAGE_BYTES);
        lines.extend(start.0 / LINE_BYTES..=last / LINE_BYTES);
    }
    let distinct = |mut numbers: Vec<u64>| {
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len() as u64
    };
    (stats.hot_pages, stats.hot_lines) = (distinct(pages), distinct(lines));
}

#[cfg(test)]
mod tests;
