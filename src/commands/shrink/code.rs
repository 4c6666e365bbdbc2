//! Which code goes, and how what stays is laid out.

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{PinReason, Program};
use lifter::split;
use profiles::Weights;
use rewriter::edit::{Change, EditPlan, Replacement};
use rewriter::fold::Folding;
use rewriter::fold::blocks::BlockFolding;
use rewriter::fold::ends;
use rewriter::fold::shares::{Shares, Slowdown};
use rewriter::layout::{self, LayoutOptions};
use rewriter::plan::{Filling, LayoutPlan, Throws, Unwinds};
use rewriter::relink::Relinked;
use rewriter::shrink::{dead, forms, outline, subroutines, unfit_stand_ins};
use rewriter::transform::direct_calls::{self, DirectCall};
use rewriter::transform::endbr;
use rewriter::transform::reached::reached;

use super::super::profile;
use super::Job;
use crate::args::shrink::{Shrink, Technique};
use crate::driver::{self, Lifted};
use crate::failure::{Failure, Result};
use crate::memory;
use crate::report::shrink::Saving;
use crate::timing::Timing;

/// Techniques that move code.
pub(super) const OF_CODE: [Technique; 12] = [
    Technique::DeadCode,
    Technique::Fold,
    Technique::Tails,
    Technique::DirectCalls,
    Technique::Outline,
    Technique::Subroutines,
    Technique::Forms,
    Technique::Endbr,
    Technique::Order,
    Technique::Relays,
    Technique::Padding,
    Technique::Windows,
];

/// What came of the code.
pub(super) struct Code {
    pub(super) relinked: Relinked,
    pub(super) savings: Vec<Saving>,
}

/// What is to become of the code.
pub(super) struct Planned {
    pub(super) plan: LayoutPlan,
    pub(super) edits: EditPlan,
    pub(super) weights: Weights,
    gone: Gone,
    pub(super) is_in_place: bool,
}

impl Planned {
    /// Relinks; `Err` says why that is not to be had.
    pub(super) fn rewrite(&mut self, job: Job<'_>, lifted: &Lifted<'_>, filling: Filling, timing: &mut Timing) -> Result<Code> {
        self.plan.filling = filling;
        let planned = (&self.plan, &self.edits);
        let relinked =
            driver::rewrite(&job.args.rewrite.input, lifted, &self.weights, planned, (job.wanted, job.reported), timing)?;
        if relinked.overflow_bytes > 0 {
            return Err(Failure::new("it would need a segment more"));
        }
        let savings = match self.is_in_place {
            true => vec![unwind_saving(&relinked)],
            false => savings(&lifted.image, &relinked, &self.gone),
        };
        Ok(Code { relinked, savings })
    }
}

/// Plans less code; `None` where nothing of it can move.
pub(super) fn plan(
    Job { args, closed, .. }: Job<'_>,
    lifted: &mut Lifted<'_>,
    timing: &mut Timing,
    warnings: &mut Vec<String>,
) -> Result<Option<Planned>> {
    let Lifted { image, program } = &*lifted;
    if !OF_CODE.into_iter().any(|technique| args.is_on(technique)) {
        return Ok(plan_in_place(args, lifted));
    }
    if !program.is_replaceable() {
        warnings.push("code stays as it is: in a file at a fixed address any number may be a pointer".to_owned());
        return Ok(plan_in_place(args, lifted));
    }
    if program.funcs.values().all(|func| !func.is_movable()) {
        warnings.push("code stays as it is: no function can be moved".to_owned());
        return Ok(plan_in_place(args, lifted));
    }
    let input = &args.rewrite.input;
    let weights = match args.profile.as_slice() {
        // A zero for each block and edge would say as much, and take a tenth of the program's room.
        [] => Weights::default(),
        paths => timing.phase("attribute the profile", |timing| profile::load(paths, None, input, lifted, timing))?.0,
    };
    let mut dropped = match args.is_on(Technique::DeadCode) {
        true => timing.phase("find dead code", |_| dead::find(image, program)),
        false => Vec::new(),
    };
    // What nothing leads to the checker can only match by content: it keeps its body.
    let mut is_reached = timing.phase("find dead code", |_| reached(image, program));
    if !closed.is_empty() {
        dropped.retain(|&func| !closed.contains(program, func));
        let blocks = program.funcs.keys().filter(|&func| closed.contains(program, func));
        blocks.flat_map(|func| program.funcs[func].blocks.iter()).for_each(|block| is_reached[block] = false);
    }
    let is_open = |func: Func| is_reached[program.funcs[func].entry] && dropped.binary_search(&func).is_err();
    let folded = match args.is_on(Technique::Fold) {
        true => driver::fold(lifted, timing).among(is_open),
        false => Folding::default(),
    };
    let slowdown = Slowdown::from_percent(args.slower);
    let (weights, is_reached) = match args.is_on(Technique::Tails) {
        true => timing.phase("cut blocks", |_| cut_blocks(lifted, &folded, (weights, slowdown), is_reached)),
        false => (weights, is_reached),
    };
    memory::give_back();
    if args.rewrite.verify {
        driver::verify(input, lifted, "cutting blocks", timing)?;
    }
    let Lifted { image, program } = &*lifted;
    let mut plan = timing.phase("lay out", |_| match (weights.has_counts(), args.is_on(Technique::Padding)) {
        (true, _) => layout::compute(program, &weights, &EditPlan::default(), &layout_options()),
        (false, true) => layout::packed(program),
        (false, false) => layout::original(program),
    });
    let weights = folded.weights(program, weights);
    let mut gone = Gone {
        num_dead: dropped.len() as u64,
        dead_bytes: dropped.iter().map(|&func| program.func_size(func)).sum(),
        num_folded: folded.pairs().len() as u64,
        folded_bytes: folded.bytes(program),
        ..Gone::default()
    };
    let shares = timing.phase("weigh jumps", |_| Shares::of(program, &weights, slowdown));
    plan.drop_functions(dropped);
    plan.fold(folded);
    if args.is_on(Technique::Tails) {
        timing.phase("find equal tails", |_| BlockFolding::apply(image, program, &mut plan, (&weights, &shares), &is_reached));
        (gone.num_tails, gone.tail_bytes) = (plan.folded_blocks.pairs().len() as u64, plan.folded_blocks.saved());
    }
    let mut edits = EditPlan::default();
    if args.is_on(Technique::Endbr) {
        let stand_ins = endbr::StandIns { functions: &plan.folded, blocks: Some(&plan.folded_blocks) };
        let marks = timing.phase("find marks", |_| endbr::find(image, program, &weights, stand_ins));
        endbr::plan(&marks, &mut edits);
    }
    if args.is_on(Technique::Order) {
        gone.order_bytes = timing.phase("order blocks", |_| layout::compact(image, program, &weights, &mut plan));
    }
    if args.is_on(Technique::Relays) {
        plan.relay(program, &shares);
    }
    // With a profile, lines of what runs decide.
    if args.is_on(Technique::Windows) && !weights.has_counts() {
        plan.fit_windows(&shares);
    }
    if args.is_on(Technique::UnwindEntries) {
        plan.share_unwind_entries(throws(args));
    }
    plan.unwinds = args.unwinds();
    let calls: Vec<DirectCall> = match args.is_on(Technique::DirectCalls) {
        true => timing.phase("find calls", |_| direct_calls::find(image, program, &weights, || &is_reached)),
        false => Vec::new(),
    };
    if args.is_on(Technique::Outline) {
        memory::give_back();
        let asked = outline::Asked { shares: &shares, is_open: &is_reached, calls: &calls };
        gone.outlined = timing.phase("outline", |_| outline::plan(image, program, asked, &mut plan, &mut edits));
    }
    direct_calls::plan(&calls, &mut edits);
    // At a fixed address neither changes anything.
    let is_asked = args.is_on(Technique::Subroutines) || args.is_on(Technique::Forms);
    let unfit = match is_asked && image.kind.is_position_independent() {
        true => timing.phase("find what is kept on stacks", |_| unfit_stand_ins(image, program, &plan)),
        false => Vec::new(),
    };
    if args.is_on(Technique::Subroutines) {
        memory::give_back();
        let asked = subroutines::Asked { shares: &shares, is_open: &is_reached, unfit: &unfit };
        gone.subroutines = timing.phase("find subroutines", |_| subroutines::plan(image, program, asked, &plan, &mut edits));
    }
    if args.is_on(Technique::Forms) {
        memory::give_back();
        timing.phase("find shorter forms", |_| forms::plan(image, program, (&is_reached, &unfit), &plan, &mut edits));
    }
    (gone.num_marks, gone.mark_bytes) = bytes_less(program, &plan, &edits, Change::EndBranch);
    (gone.num_direct, gone.direct_bytes) = bytes_less(program, &plan, &edits, Change::DirectCall);
    (gone.num_forms, gone.form_bytes) = bytes_less(program, &plan, &edits, Change::Form);
    Ok(Some(Planned { plan, edits, weights, gone, is_in_place: false }))
}

/// Whether the program may spend its time on exceptions, as far as time matters.
fn throws(args: &Shrink) -> Throws {
    match args.slower {
        _ if !args.profile.is_empty() => Throws::Seldom,
        0.0 => Throws::Dear,
        Slowdown::PERCENT_MAX => Throws::Seldom,
        _ => Throws::Unknown,
    }
}

/// Plans smaller unwind tables for code that stays.
fn plan_in_place(args: &Shrink, lifted: &mut Lifted<'_>) -> Option<Planned> {
    if !args.is_on(Technique::UnwindEntries) && args.unwinds() == Unwinds::Anywhere {
        return None;
    }
    lifted.program.pin_all(PinReason::NotWorthMoving);
    let mut plan = LayoutPlan::default();
    if args.is_on(Technique::UnwindEntries) {
        plan.share_unwind_entries(throws(args));
    }
    plan.unwinds = args.unwinds();
    let (edits, weights, gone) = (EditPlan::default(), Weights::default(), Gone::default());
    Some(Planned { plan, edits, weights, gone, is_in_place: true })
}

/// How many edits of one kind are in what stays, and by how many bytes it is shorter.
fn bytes_less(program: &Program, plan: &LayoutPlan, edits: &EditPlan, change: Change) -> (u64, u64) {
    let mut has_place = SecondaryMap::new(program.blocks.len(), false);
    plan.fragments.iter().flat_map(|fragment| &fragment.blocks).for_each(|planned| has_place[planned.block] = true);
    let of_kind = edits.replacements.iter().filter(|r| r.change == change);
    let placed = of_kind.filter(|r| has_place[r.block] && plan.folded_blocks.stand_in(r.block) == r.block);
    let less = |r: &Replacement| u64::from(r.len).saturating_sub(edits.codes[r.code].bytes.len() as u64);
    placed.fold((0, 0), |(count, bytes), r| (count + 1, bytes + less(r)))
}

/// Makes blocks of ends that may be worth sharing; what was known of blocks is known of their parts.
fn cut_blocks(
    lifted: &mut Lifted<'_>,
    folded: &Folding,
    (weights, slowdown): (Weights, Slowdown),
    is_reached: SecondaryMap<Block, bool>,
) -> (Weights, SecondaryMap<Block, bool>) {
    let Lifted { image, program } = lifted;
    let shares = Shares::of(program, &weights, slowdown);
    let cuts = ends::cuts(image, program, folded, &shares, &is_reached);
    drop(shares);
    memory::give_back();
    let split = split::split(program, &cuts);
    let mut parts = SecondaryMap::new(split.origins.len(), false);
    program.blocks.keys().zip(&split.origins).for_each(|(part, origin)| parts[part] = is_reached[*origin]);
    (weights.of_parts(&split), parts)
}

/// Hot code for speed, but without copies.
fn layout_options() -> LayoutOptions {
    LayoutOptions { split: false, duplicate_tails: false, unroll_loops: false, ..LayoutOptions::default() }
}

/// Functions that have no body any more, and blocks.
#[derive(Default)]
struct Gone {
    num_dead: u64,
    dead_bytes: u64,
    num_folded: u64,
    folded_bytes: u64,
    num_tails: u64,
    tail_bytes: u64,
    num_marks: u64,
    mark_bytes: u64,
    num_direct: u64,
    direct_bytes: u64,
    num_forms: u64,
    form_bytes: u64,
    outlined: outline::Outlined,
    subroutines: subroutines::Subroutines,
    /// What shorter branches leave.
    order_bytes: u64,
}

fn savings(image: &Image<'_>, relinked: &Relinked, gone: &Gone) -> Vec<Saving> {
    let code = image.sections.iter().filter(|(id, _)| image.is_movable_code_section(*id)).map(|(_, section)| section);
    let free_in = |start: Va, end: Va| {
        let inside = relinked.free.iter().map(|&(from, to)| to.min(end).0.saturating_sub(from.max(start).0));
        inside.sum::<u64>()
    };
    let free_text: u64 = code.map(|section| free_in(section.sh_addr, section.end())).sum();
    let bodies = gone.dead_bytes
        + gone.folded_bytes
        + gone.tail_bytes
        + gone.mark_bytes
        + gone.direct_bytes
        + gone.form_bytes
        + gone.outlined.bytes
        + gone.subroutines.bytes
        + gone.order_bytes
        + relinked.relayed.1;
    let unpadded = free_text + relinked.fitted.bytes;
    let is_stale = |name: &&str| relinked.dropped_sections.iter().any(|dropped| dropped == name);
    let stale = image.sections.values().filter(|section| is_stale(&section.name)).map(|section| section.sh_size + 64);
    vec![
        Saving::new("stale-sections", "sections", relinked.dropped_sections.len() as u64, stale.sum::<u64>() as i64),
        Saving::new("dead-code", "functions", gone.num_dead, gone.dead_bytes as i64),
        Saving::new("fold", "functions", gone.num_folded, gone.folded_bytes as i64),
        Saving::new("tails", "blocks", gone.num_tails, gone.tail_bytes as i64),
        Saving::new("direct-calls", "calls", gone.num_direct, gone.direct_bytes as i64),
        Saving::new("outline", "calls", gone.outlined.num_calls, gone.outlined.bytes as i64),
        Saving::new("subroutines", "calls", gone.subroutines.num_calls, gone.subroutines.bytes as i64),
        Saving::new("forms", "instructions", gone.num_forms, gone.form_bytes as i64),
        Saving::new("endbr", "instructions", gone.num_marks, gone.mark_bytes as i64),
        Saving::new("order", "bytes", gone.order_bytes, gone.order_bytes as i64),
        Saving::new("relays", "branches", relinked.relayed.0, relinked.relayed.1 as i64),
        Saving::new("padding", "bytes", unpadded.saturating_sub(bodies), unpadded as i64 - bodies as i64),
        Saving::new("windows", "functions", relinked.fitted.num_fragments, -(relinked.fitted.bytes as i64)),
        unwind_saving(relinked),
    ]
}

fn unwind_saving(relinked: &Relinked) -> Saving {
    let (before, after) = relinked.unwind_bytes;
    Saving::new("unwind-entries", "bytes", before.saturating_sub(after), before as i64 - after as i64)
}
