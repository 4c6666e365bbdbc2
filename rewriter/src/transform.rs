//! Transforms that change code, each a switch of its own: they read the program and the weights and add to one [`EditPlan`].
//!
//! **Method.** Each transform proposes replacements for single instructions of hot blocks; it says in its module's doc, in two separate parts, why the
//! program does the same afterwards (*safety*) and when it runs faster (*profit*). Where two want the same instruction the first one has it.
//! `everywhere` takes every block for hot: the torture test of safety.
//!
//! **Invariant.** The plan depends on the program, the weights and the options alone: blocks are looked at in parallel and their proposals
//! gathered in order.

pub mod constant_loads;
pub mod direct_calls;
pub mod endbr;
pub(crate) mod entry_row;
pub mod inline_leaves;
pub mod late_saves;
pub mod plt_calls;
pub mod reached;
pub mod schedule;
mod unchanging;

use std::cell::OnceCell;
use std::collections::BTreeMap;

use iced_x86::Instruction;
use lifter::Image;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::{Program, RefData};
use lifter::x86::decode_block;
use profiles::Weights;
use rustc_hash::FxHashSet;

use crate::edit::EditPlan;
use crate::fold::Folding;
use crate::layout::{BUSY_SHARE_LEFT, least_count_of_share};
use crate::specialize::emit::{self, Cloning};

/// Which transforms are on.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub plt_calls: bool,
    pub inline_leaves: bool,
    pub cloning: Cloning,
    pub constant_loads: bool,
    pub late_saves: bool,
    pub schedule: Option<schedule::Options>,
    pub endbr: bool,
    pub direct_calls: bool,
    /// Every site is hot, whatever the weights say.
    pub everywhere: bool,
}

/// What transforms did, by name.
pub type Counts = BTreeMap<&'static str, BTreeMap<&'static str, u64>>;

/// What all transforms are given.
#[derive(Clone)]
pub(crate) struct Context<'a> {
    pub(crate) image: &'a Image<'a>,
    pub(crate) program: &'a Program,
    pub(crate) weights: &'a Weights,
    pub(crate) everywhere: bool,
    /// The least count of a block that is worth a change.
    hot_min: u64,
    reached: &'a SecondaryMap<Block, bool>,
    /// Functions that stand for others too.
    stand_ins: FxHashSet<Func>,
    /// Functions that others stand for; they are not in the output.
    folded: FxHashSet<Func>,
    /// Blocks that begin with an `endbr64` that goes.
    unmarked: FxHashSet<Block>,
}

impl<'a> Context<'a> {
    pub(crate) fn count(&self, block: Block) -> u64 {
        self.weights.blocks.get(block.index()).copied().unwrap_or(0)
    }

    /// How many instructions ran.
    pub(crate) fn executed(&self) -> u128 {
        let blocks = self.program.blocks.iter();
        blocks.map(|(block, data)| u128::from(self.count(block)) * u128::from(data.num_insts)).sum()
    }

    /// Whether a function stands for others, whose calls are elsewhere in the input.
    pub(crate) fn is_stand_in(&self, func: Func) -> bool {
        self.stand_ins.contains(&func)
    }

    pub(crate) fn is_folded(&self, func: Func) -> bool {
        self.folded.contains(&func)
    }

    /// Whether the `endbr64` at the start of a block goes.
    pub(crate) fn loses_mark(&self, block: Block) -> bool {
        self.unmarked.contains(&block)
    }

    pub(crate) fn is_reached(&self, block: Block) -> bool {
        self.reached[block]
    }

    /// The blocks that may be changed and are worth it, in order.
    pub(crate) fn hot_blocks(&self) -> Vec<Block> {
        let is_worth_it = |block: Block| self.everywhere || self.count(block) >= self.hot_min.max(1);
        let is_hot = |&block: &Block| {
            is_worth_it(block) && self.reached[block] && self.program.funcs[self.program.func_of(block)].is_movable()
        };
        self.program.blocks.keys().filter(is_hot).collect()
    }

    /// The instructions of a block that have references which `wanted` takes, each with its offset and its reference.
    pub(crate) fn instructions_with(&self, block: Block, wanted: impl Fn(&RefData) -> bool) -> Vec<(u32, Instruction, RefData)> {
        let mut refs = self.program.block_refs(block).iter().filter(|r| wanted(r)).peekable();
        if refs.peek().is_none() {
            return Vec::new();
        }
        let start = self.program.blocks[block].start;
        let mut found = Vec::new();
        for instruction in decode_block(self.image, self.program, block) {
            let offset = (instruction.ip() - start.0) as u32;
            while let Some(reference) = refs.next_if(|r| r.offset < offset + instruction.len() as u32) {
                found.push((offset, instruction, *reference));
            }
        }
        found
    }
}

/// Plans all transforms that are on.
pub fn plan(image: &Image<'_>, program: &Program, weights: &Weights, folded: &Folding, options: Options) -> EditPlan {
    let stand_ins = endbr::StandIns { functions: folded, blocks: None };
    let marks = if options.endbr { endbr::find(image, program, weights, stand_ins) } else { Vec::new() };
    let reached = OnceCell::new();
    let reached = || reached.get_or_init(|| reached::reached(image, program));
    let mut edits = plan_by_weights(image, program, weights, folded, options, &marks, reached);
    endbr::plan(&marks, &mut edits);
    if options.direct_calls {
        direct_calls::plan(&direct_calls::find(image, program, weights, reached), &mut edits);
    }
    edits
}

/// What is worth it only where something is hot; the marks that go besides are known.
fn plan_by_weights<'r>(
    image: &Image<'_>,
    program: &Program,
    weights: &Weights,
    folded: &Folding,
    options: Options,
    marks: &[(Block, u32)],
    reached: impl FnOnce() -> &'r SecondaryMap<Block, bool>,
) -> EditPlan {
    let Options {
        everywhere,
        plt_calls,
        inline_leaves,
        cloning,
        constant_loads,
        late_saves,
        schedule,
        endbr: _,
        direct_calls: _,
    } = options;
    let is_off = !(plt_calls || inline_leaves || constant_loads || late_saves || schedule.is_some()) && cloning.is_off();
    let clones_everywhere = cloning.everywhere && !cloning.is_off();
    let is_idle = is_off || !(everywhere || clones_everywhere || weights.has_counts());
    if is_idle {
        return EditPlan::default();
    }
    let hot_min = least_count_of_share(program, weights, BUSY_SHARE_LEFT);
    let reached = reached();
    let stand_ins = folded.pairs().iter().map(|&(_, stays)| stays).collect();
    let folded = folded.pairs().iter().map(|&(gone, _)| gone).collect();
    let unmarked = marks.iter().filter(|mark| mark.1 == 0).map(|mark| mark.0).collect();
    let context = Context { image, program, weights, everywhere, hot_min, reached, stand_ins, folded, unmarked };
    let mut edits = EditPlan::default();
    if options.late_saves {
        late_saves::plan(&context, &mut edits);
    }
    if options.plt_calls {
        plt_calls::plan(&context, &mut edits);
    }
    if options.inline_leaves {
        inline_leaves::plan(&context, &mut edits);
    }
    if options.constant_loads {
        constant_loads::plan(&context, &mut edits);
    }
    if let Some(options) = options.schedule {
        schedule::plan(&context, options, &mut edits);
    }
    edits.settle();
    if program.is_replaceable() {
        emit::plan(&context, cloning, &mut edits);
        edits.settle();
    }
    edits
}

/// What a plan does, and how often that runs by these weights.
pub fn counts(program: &Program, weights: &Weights, edits: &EditPlan) -> Counts {
    let mut counts = Counts::new();
    for r in &edits.replacements {
        let of = counts.entry(r.change.transform()).or_default();
        let runs = weights.blocks.get(r.block.index()).copied().unwrap_or(0);
        let mut add = |what, count: u64| {
            let sum = of.entry(what).or_insert(0u64);
            *sum = sum.saturating_add(count);
        };
        add("sites", 1);
        add("executions", runs);
        add("bytes added", (edits.codes[r.code].bytes.len() as u64).saturating_sub(u64::from(r.len)));
        add("bytes removed", u64::from(r.len).saturating_sub(edits.codes[r.code].bytes.len() as u64));
        debug_assert!(program.funcs[program.func_of(r.block)].is_movable());
    }
    if !edits.clones.is_empty() {
        let of = counts.entry("specialize").or_default();
        of.extend(edits.tally.iter().map(|(&what, &count)| (what, count)));
        of.insert("entries of copies", edits.clones.values().map(|clone| clone.count).fold(0, u64::saturating_add));
        let blocks = edits.clones.values().flat_map(|clone| &clone.blocks);
        of.insert("bytes copied", blocks.map(|&block| u64::from(program.blocks[block].len)).sum());
    }
    counts
}
