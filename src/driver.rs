//! The list of phases. Every command that rewrites a file is one of the functions here; each line of them is a phase.

use std::path::Path;

use lifter::elf::Unwind;
use lifter::ir::{FuncData, Program};
use lifter::lift::{self, LiftOptions, Undescribed};
use lifter::{Image, verify};
use profiles::Weights;
use rewriter::edit::EditPlan;
use rewriter::fold::Folding;
use rewriter::layout::{self, LayoutOptions};
use rewriter::plan::LayoutPlan;
use rewriter::relink::{Payload, Relinked, Reported};
use rewriter::transform;
use rewriter::{debug, encode, instrument, materialize, relink};

use crate::failure::{Failure, Result, from_lifter, from_rewriter};
use crate::timing::Timing;

/// A file, lifted.
#[derive(Debug)]
pub(crate) struct Lifted<'a> {
    pub(crate) image: Image<'a>,
    pub(crate) program: Program,
}

impl Lifted<'_> {
    /// How many bytes of code move that neither unwind entries nor relocations speak for.
    pub(crate) fn undescribed_bytes(&self) -> u64 {
        let ranges = |func: &FuncData| &self.program.ranges[func.ranges.as_usize()];
        let is_described = |func: &FuncData| ranges(func).iter().all(|range| range.fde.is_some());
        let moved = self.program.funcs.iter().filter(|(_, func)| func.is_movable() && !is_described(func));
        moved.map(|(id, _)| self.program.func_size(id)).sum()
    }
}

/// Bytes to image.
pub(crate) fn read<'a>(path: &Path, bytes: &'a [u8]) -> Result<Image<'a>> {
    Image::parse(bytes).map_err(|e| from_lifter(path, &e))
}

/// Bytes to program.
pub(crate) fn lift<'a>(path: &Path, bytes: &'a [u8], verify: bool, timing: &mut Timing) -> Result<Lifted<'a>> {
    lift_with(path, bytes, LiftOptions::default(), verify, timing)
}

/// The same, of what the lifter may look at.
pub(crate) fn lift_with<'a>(
    path: &Path,
    bytes: &'a [u8],
    options: LiftOptions,
    verify: bool,
    timing: &mut Timing,
) -> Result<Lifted<'a>> {
    timing.phase("lift", |timing| {
        let image = timing.phase("read ELF", |_| read(path, bytes))?;
        lift_image(path, image, options, verify, timing)
    })
}

/// As `lift`, for an output with less code in it.
pub(crate) fn lift_to_shrink<'a>(
    path: &Path,
    bytes: &'a [u8],
    undescribed: Undescribed,
    verify: bool,
    timing: &mut Timing,
) -> Result<Lifted<'a>> {
    timing.phase("lift", |timing| {
        let mut image = timing.phase("read ELF", |_| read(path, bytes))?;
        image.moves_fini = true;
        lift_image(path, image, LiftOptions { undescribed, ..LiftOptions::default() }, verify, timing)
    })
}

fn lift_image<'a>(path: &Path, image: Image<'a>, options: LiftOptions, verify: bool, timing: &mut Timing) -> Result<Lifted<'a>> {
    let refuse = |e: lifter::Error| from_lifter(path, &e);
    // A file that is refused anyway is refused for the reason that says most.
    let better = |error| lift::refuse_unsupported(&image).err().unwrap_or(error);
    let unwind = timing.phase("read unwind tables", |_| Unwind::parse(&image)).map_err(|error| refuse(better(error)))?;
    let program =
        timing.phase("find functions, blocks and references", |_| lift::lift_with(&image, unwind, options)).map_err(refuse)?;
    let lifted = Lifted { image, program };
    if verify {
        self::verify(path, &lifted, "lifting", timing)?;
    }
    Ok(lifted)
}

/// Whether the invariants of the program hold after what was done to it.
pub(crate) fn verify(path: &Path, lifted: &Lifted<'_>, done: &str, timing: &mut Timing) -> Result<()> {
    let violations = timing.phase("verify the program", |_| verify::verify(&lifted.image, &lifted.program));
    match violations.first() {
        Some(first) => Err(Failure::at(path, format!("{done} broke {} invariants, the first: {first}", violations.len()))),
        None => Ok(()),
    }
}

/// How the output is laid out.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// By profile.
    ByWeights(LayoutOptions),
    /// As it was.
    Original,
    /// At random, by seed.
    Shuffled(u64),
}

/// Program and plan to output bytes.
pub(crate) fn rewrite(
    path: &Path,
    lifted: &Lifted<'_>,
    weights: &Weights,
    planned: (&LayoutPlan, &EditPlan),
    (wanted, reported): (debug::Wanted<'_>, Reported),
    timing: &mut Timing,
) -> Result<Relinked> {
    apply(path, lifted, weights, planned, (None, wanted, reported), timing)
}

/// The plan of all transforms that change code.
pub(crate) fn edits(
    lifted: &Lifted<'_>,
    weights: &Weights,
    folded: &Folding,
    options: transform::Options,
    timing: &mut Timing,
) -> EditPlan {
    timing.phase("plan edits", |_| transform::plan(&lifted.image, &lifted.program, weights, folded, options))
}

/// The functions that others stand for.
pub(crate) fn fold(lifted: &Lifted<'_>, timing: &mut Timing) -> Folding {
    timing.phase("fold", |_| Folding::find(&lifted.image, &lifted.program))
}

/// The plan for an order.
pub(crate) fn plan(
    lifted: &Lifted<'_>,
    weights: &Weights,
    order: &Order,
    (edits, folded): (&EditPlan, &Folding),
    timing: &mut Timing,
) -> LayoutPlan {
    timing.phase("lay out", |_| {
        let mut plan = match order {
            Order::ByWeights(options) => {
                let options = LayoutOptions { folded: folded.clone(), ..options.clone() };
                return layout::compute(&lifted.program, weights, edits, &options);
            }
            Order::Original => layout::original(&lifted.program),
            Order::Shuffled(seed) => layout::shuffle(&lifted.program, *seed),
        };
        plan.fold(folded.clone());
        plan
    })
}

/// A program that counts: every function in its old order, with counters and recorders between.
pub(crate) fn instrument(path: &Path, lifted: &Lifted<'_>, profile: &Path, timing: &mut Timing) -> Result<Relinked> {
    let Lifted { image, program } = lifted;
    let fail = |e: rewriter::Error| from_rewriter(path, &e);
    let unchanged = (&EditPlan::default(), &Folding::default());
    let plan = plan(lifted, &Weights::default(), &Order::Original, unchanged, timing);
    let mut instrumentation =
        timing.phase("place counters", |_| instrument::Instrumentation::plan(image, program, profile)).map_err(fail)?;
    let edits = instrumentation.edits().map_err(fail)?;
    apply(
        path,
        lifted,
        &Weights::default(),
        (&plan, &edits),
        (Some(&mut instrumentation), debug::Wanted::default(), Reported::File),
        timing,
    )
}

fn apply(
    path: &Path,
    lifted: &Lifted<'_>,
    weights: &Weights,
    (plan, edits): (&LayoutPlan, &EditPlan),
    (payload, wanted, reported): (Option<&mut dyn Payload>, debug::Wanted<'_>, Reported),
    timing: &mut Timing,
) -> Result<Relinked> {
    let Lifted { image, program } = lifted;
    let fail = |e: rewriter::Error| from_rewriter(path, &e);
    let out = timing.phase("materialize", |_| materialize::materialize(program, weights, plan, edits)).map_err(fail)?;
    crate::memory::give_back();
    let shapes = timing.phase("measure", |_| encode::measure(image, program, &out));
    crate::memory::give_back();
    timing.phase("relink", |_| relink::relink(image, program, &out, shapes, payload, wanted, reported)).map_err(fail)
}

/// The independent checker, which reads the input once for all outputs.
#[derive(Debug, Default)]
pub(crate) struct Examiner<'a>(Option<checker::Original<'a>>);

impl<'a> Examiner<'a> {
    /// What the checker finds, good or bad; if code differs, what was found by then may be enough.
    pub(crate) fn examine<'f>(
        &mut self,
        output: &Path,
        (before, after): (impl Into<checker::Files<'a>>, impl Into<checker::Files<'f>>),
        assumptions: checker::Assumptions,
        is_enough: &dyn Fn(&checker::Report) -> bool,
        timing: &mut Timing,
    ) -> Result<checker::Report> {
        let check = || {
            let original = match self.0.take() {
                Some(original) => original,
                None => {
                    let original = checker::Original::read(before)?;
                    crate::memory::give_back();
                    original
                }
            };
            self.0.insert(original).check_until(after, assumptions, is_enough)
        };
        timing.phase("check", |_| check()).map_err(|e| Failure::at(output, format!("the checker can't read it: {e}")))
    }
}

pub(crate) fn require_no_violations(output: &Path, report: &checker::Report) -> Result<()> {
    let Some(first) = report.violations.first() else { return Ok(()) };
    let number = report.violations.len();
    let least = if report.is_whole { "" } else { "at least " };
    Err(Failure::at(output, format!("not written: the checker found {least}{number} violations, the first: {first}"))
        .hint("please report this with the input file")
        .because_of(&report.violations))
}
