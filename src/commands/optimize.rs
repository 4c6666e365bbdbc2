//! `relift optimize`, and the part of `relift train` behind the training run.

mod unproven;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{FuncData, PinReason};
use lifter::lift::{LiftOptions, Undescribed};
use profiles::Weights;
use rewriter::debug;
use rewriter::dyno::{self, DynoStats};
use rewriter::edit::EditPlan;
use rewriter::fold::Folding;
use rewriter::layout::{self, LayoutOptions};
use rewriter::plan::{LayoutPlan, Temperature, Unwinds};
use rewriter::relink::{Relinked, Reported};
use rewriter::specialize::emit::{Cloning, Dispatch, Form};
use rewriter::transform::{self, schedule};

use super::{Style, print, print_json, profile, separate};
use crate::args::{Assumption, CloneMode, DebugInformation, Optimize, Rewrite, Separate, Transform, Transforms};
use crate::driver::{self, Examiner, Lifted, Order};
use crate::failure::{Failure, Result};
use crate::files;
use crate::report::{self, Report};
use crate::timing::Timing;
use unproven::Unproven;

pub(crate) fn run(args: &Optimize, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let order = match args.shuffle {
        Some(seed) => Order::Shuffled(seed),
        None => Order::ByWeights(options(&args.transforms)),
    };
    let job = Job {
        rewrite: &args.rewrite,
        separate: &args.separate,
        profiles: &args.profile,
        profile_binary: args.profile_binary.as_deref(),
        measure_by: &args.measure_by,
        order,
        edits: edits(&args.transforms),
        fold: args.transforms.is_on(Transform::Fold),
        fuel: args.transforms.fuel,
        unwinds: args.transforms.unwinds(),
        undescribed: Undescribed::Sought,
    };
    let done = optimize(&job, timing)?;
    timing.finish();
    done.print(style, timing)?;
    Ok(ExitCode::SUCCESS)
}

/// Layout options from the transforms that are switched on.
pub(crate) fn options(transforms: &Transforms) -> LayoutOptions {
    LayoutOptions {
        reorder_blocks: transforms.is_on(Transform::ReorderBlocks),
        reorder_functions: transforms.is_on(Transform::ReorderFunctions),
        split: transforms.is_on(Transform::SplitFunctions),
        align_loops: transforms.is_on(Transform::AlignLoops),
        duplicate_tails: transforms.is_on(Transform::DuplicateTails),
        warm_share: if transforms.is_on(Transform::SplitWarm) { LayoutOptions::WARM_SHARE } else { 0 },
        unroll_loops: transforms.is_on(Transform::UnrollLoops),
        ..LayoutOptions::default()
    }
}

/// The transforms of code that are switched on.
pub(crate) fn edits(transforms: &Transforms) -> transform::Options {
    transform::Options {
        plt_calls: transforms.is_on(Transform::PltCalls),
        inline_leaves: transforms.is_on(Transform::InlineLeaves),
        cloning: Cloning {
            form: match transforms.clone {
                CloneMode::None => Form::None,
                CloneMode::Direct => Form::Direct,
                CloneMode::Machine | CloneMode::All => Form::Machine(Dispatch::Cheaper),
                CloneMode::Inline => Form::Machine(Dispatch::Inline),
                CloneMode::Table => Form::Machine(Dispatch::Table),
                CloneMode::Shared => Form::Shared,
                CloneMode::Full => Form::Full,
            },
            everywhere: transforms.clone_everywhere || transforms.clone == CloneMode::All,
            max_contexts: transforms.clone_contexts,
            least: transforms.clone_least.max(1),
        },
        constant_loads: transforms.is_on(Transform::ConstantLoads),
        late_saves: transforms.is_on(Transform::LateSaves),
        schedule: transforms.is_on(Transform::Schedule).then(|| schedule::Options {
            no_races: transforms.assumes(Assumption::NoRaces),
            is_insensitive: transforms.without_contexts,
            takes_any: transforms.edit_everywhere,
        }),
        endbr: transforms.is_on(Transform::Endbr),
        direct_calls: transforms.is_on(Transform::DirectCalls),
        everywhere: transforms.edit_everywhere,
    }
}

/// One optimization, from files to a file.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) rewrite: &'a Rewrite,
    pub(crate) separate: &'a Separate,
    pub(crate) profiles: &'a [PathBuf],
    /// The build that they are of, if another.
    pub(crate) profile_binary: Option<&'a Path>,
    /// What the report counts by, if not these.
    pub(crate) measure_by: &'a [PathBuf],
    pub(crate) order: Order,
    pub(crate) edits: transform::Options,
    /// Whether functions that do the same share one body.
    pub(crate) fold: bool,
    pub(crate) fuel: Option<u64>,
    /// From where unwinders may be asked for callers.
    pub(crate) unwinds: Unwinds,
    /// What is made of code without unwind entries.
    pub(crate) undescribed: Undescribed,
}

impl Job<'_> {
    fn assumptions(&self) -> checker::Assumptions {
        checker::Assumptions {
            no_races: self.edits.schedule.is_some_and(|options| options.no_races),
            no_async_unwind: self.unwinds == Unwinds::FromStops,
        }
    }
}

/// What an optimization did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) report: Report,
    dyno: Option<(DynoStats, DynoStats)>,
    /// One line for each pinned function.
    pinned: Vec<String>,
    /// One line for each edit.
    edits: Vec<String>,
    /// Why the checker could not follow others.
    unproven: Vec<String>,
}

impl Done {
    /// Prints the report; the phases only when asked for, or in JSON.
    pub(crate) fn print(mut self, style: Style, timing: &Timing) -> Result<()> {
        self.report.set_timing(timing);
        for warning in &self.report.warnings {
            eprintln!("relift: warning: {warning}");
        }
        if style.verbose {
            self.pinned.iter().for_each(|line| eprintln!("relift: pinned: {line}"));
            self.edits.iter().for_each(|line| eprintln!("relift: edit: {line}"));
            self.unproven.iter().for_each(|line| eprintln!("relift: edits left out: {line}"));
        }
        if style.json {
            return print_json(&self.report);
        }
        print(&self.report.to_text(self.dyno.as_ref().map(|(before, after)| (before, after)), style.time.then_some(timing)))
    }
}

/// Lifts, plans, rewrites, checks, and puts the output in place. The checker can't always follow what was folded where code that nothing reaches is
/// matched by its content, nor code without unwind entries; then less of the one, of the other or of both is changed.
pub(crate) fn optimize(job: &Job<'_>, timing: &mut Timing) -> Result<Done> {
    profile::keep_apart(&job.rewrite.output, job.profiles)?;
    profile::keep_apart(&job.rewrite.output, job.measure_by)?;
    separate::keep_apart(job.separate, job.rewrite, job.profiles)?;
    let mut has_undescribed = false;
    let failure = match optimize_once(job, &mut has_undescribed, timing) {
        Err(failure) => failure,
        result => return result,
    };
    let mut less = vec![(false, Undescribed::Sought)];
    if has_undescribed {
        let kinds = [Undescribed::Doubted, Undescribed::Stays];
        less.extend(kinds.into_iter().flat_map(|undescribed| [(true, undescribed), (false, undescribed)]));
    }
    let is_less =
        |&(fold, undescribed): &(bool, Undescribed)| (job.fold || !fold) && (fold, undescribed) != (job.fold, job.undescribed);
    for (fold, undescribed) in less.into_iter().filter(is_less) {
        let job = Job { order: job.order.clone(), fold, undescribed, ..*job };
        if let Ok(mut done) = optimize_once(&job, &mut false, timing) {
            let consequence = super::less_of(undescribed).unwrap_or("functions that do the same keep a body each");
            done.report.warnings.push(format!("{consequence}: {failure}"));
            return Ok(done);
        }
    }
    Err(failure)
}

fn optimize_once(job: &Job<'_>, has_undescribed: &mut bool, timing: &mut Timing) -> Result<Done> {
    let Rewrite { input, output, verify, no_check, debug } = job.rewrite;
    let mode = debug.unwrap_or(DebugInformation::Update).mode();
    let bytes = files::read(input)?;
    let debug_files = separate::Paths::open(job.separate)?;
    let options = LiftOptions { undescribed: job.undescribed, ..LiftOptions::default() };
    let mut lifted = driver::lift_with(input, &bytes, options, *verify, timing)?;
    let debug_file = debug_files.as_ref().map(|paths| paths.parse(&lifted.image)).transpose()?;
    let separate = debug_files.as_ref().zip(debug_file.as_ref()).map(|(paths, file)| paths.wanted(file)).transpose()?;
    let wanted = debug::Wanted { mode, separate };
    *has_undescribed = lifted.undescribed_bytes() > 0;
    let mut warnings = Vec::new();
    let (weights, quality) = match job.profiles {
        [] => (Weights::default(), None),
        paths => {
            let (weights, quality) = timing
                .phase("attribute the profile", |timing| profile::load(paths, job.profile_binary, input, &lifted, timing))?;
            (weights, Some(quality))
        }
    };
    if matches!(job.order, Order::ByWeights(_)) && !weights.has_counts() && !lifted.program.is_replaceable() {
        lifted.program.pin_all(PinReason::NotWorthMoving);
    }
    let mut folded = if job.fold { driver::fold(&lifted, timing) } else { Folding::default() };
    if let Some(fuel) = job.fuel {
        folded.limit(fuel);
    }
    let folded = folded;
    // They have told the lifter all; a megabyte for each 40,000.
    lifted.image.static_relocs = Vec::new();
    let weights = folded.weights(&lifted.program, weights);
    let (mut unproven, mut examiner) = (Unproven::default(), Examiner::default());
    let planned = driver::edits(&lifted, &weights, &folded, job.edits, timing);
    let mut hot_from = None;
    let mut told = None;
    let (plan, edits, relinked) = loop {
        let mut edits = planned.clone();
        unproven.leave_out(&lifted.program, &mut edits);
        let mut adjusted = edits.adjusted(&lifted.program, &weights);
        let mut plan = driver::plan(&lifted, &adjusted, &job.order, (&edits, &folded), timing);
        plan.unwinds = job.unwinds;
        if matches!(job.order, Order::ByWeights(_)) && weights.has_counts() {
            timing.phase("keep what never runs", |_| {
                let Lifted { image, program } = &mut lifted;
                let hot_from = *hot_from.get_or_insert_with(|| layout::pin_idle(image, program, &edits, &plan));
                hot_from.into_iter().for_each(|from| layout::around_idle(image, program, from, &mut plan));
            });
        }
        if let Some(fuel) = job.fuel {
            let fuel = fuel - folded.pairs().len() as u64;
            edits.limit(limit(&lifted, &mut plan, fuel));
            adjusted = edits.adjusted(&lifted.program, &weights);
        }
        rewriter::clones::place(&lifted.program, &adjusted, &edits, &mut plan);
        let relinked = driver::rewrite(input, &lifted, &adjusted, (&plan, &edits), (wanted, Reported::Blocks), timing)?;
        if !no_check {
            let before = separate::files(&bytes, separate::bytes(debug_files.as_ref()));
            let after = separate::files(&relinked.bytes, relinked.debug_file.as_ref().map(|file| &*file.bytes));
            let is_enough = |checked: &checker::Report| Unproven::is_decided(&lifted.program, &edits, &relinked, checked);
            let checked = examiner.examine(output, (before, after), job.assumptions(), &is_enough, timing)?;
            if unproven.find(&lifted.program, &edits, &relinked, &checked) {
                continue;
            }
            driver::require_no_violations(output, &checked)?;
            require_all_functions(output, &checked)?;
            told = checked.debug;
        }
        break (plan, edits, relinked);
    };
    drop(examiner);
    warnings.extend(unproven.warning());
    if unproven.num_clones() == 0 {
        warnings.extend(nothing_cloned(&lifted, &weights, job.edits.cloning, &edits));
    }
    let new_debug_file = debug_files.as_ref().zip(relinked.debug_file.as_ref());
    warnings.extend(timing.phase("write", |_| separate::write(job.rewrite, &relinked.bytes, new_debug_file))?);

    let judge = match job.measure_by {
        [] => None,
        paths => {
            let (judge, _) =
                timing.phase("attribute the profile", |timing| profile::load(paths, None, input, &lifted, timing))?;
            Some(folded.weights(&lifted.program, judge))
        }
    };
    let measure = judge.as_ref().unwrap_or(&weights);
    let dyno =
        measure.has_counts().then(|| timing.phase("dyno-stats", |_| dyno_stats(&lifted, measure, &plan, &edits, &relinked)));
    warnings.extend(report::about_debug_information(&relinked));
    warnings.extend(report::about_build_id(&relinked).map(str::to_owned));
    warnings.extend(told.as_ref().and_then(report::about_differences));
    if !relinked.dropped_sections.is_empty() {
        warnings.push(format!("dropped sections that describe the old code: {}", relinked.dropped_sections.join(", ")));
    }
    if lifted.program.funcs.values().all(|f| !f.is_movable()) {
        let is_by_choice = lifted.program.funcs.values().any(|f| f.pin == Some(PinReason::NotWorthMoving));
        let why = match is_by_choice {
            true => {
                "no function was moved: this file is bound to fixed addresses, where a move costs bytes, and no profile says what it would gain"
            }
            false => "no function could be moved: the output differs from the input in nothing that runs",
        };
        warnings.push(why.to_owned());
    }
    let (functions, text_bytes) = report::coverage(&lifted.program, Some(&plan));
    let mut counts = transforms(&lifted, &plan, &relinked, transform::counts(&lifted.program, measure, &edits));
    if let Some(specialize) = counts.get_mut("specialize").filter(|_| unproven.num_clones() > 0) {
        specialize.insert("clones and copies left out", unproven.num_clones());
    }
    let mut report = Report {
        input: input.display().to_string(),
        output: output.display().to_string(),
        mode: report::mode_name(&lifted.program),
        input_bytes: bytes.len() as u64,
        output_bytes: relinked.bytes.len() as u64,
        loaded_bytes: report::Change { before: report::loaded_bytes(&bytes), after: report::loaded_bytes(&relinked.bytes) },
        functions,
        text_bytes,
        transforms: counts,
        dyno: None,
        profile: quality,
        dropped_sections: relinked.dropped_sections.clone(),
        debug_file: new_debug_file.map(|(paths, new)| paths.report(new)),
        debug: told.as_ref().map(report::Told::from),
        warnings,
        checked: !no_check,
        phases: Vec::new(),
        seconds: 0.0,
        peak_rss_bytes: 0,
        threads: 0,
    };
    if let Some((before, after)) = &dyno {
        report.set_dyno(before, after);
    }
    let mut edits = edits.listing(&lifted.program);
    edits.extend(relinked.clones.iter().map(|(clone, start, end)| format!("{clone} {start} to {end}")));
    let pinned = pinned(&lifted);
    // The process ends soon, and its memory with it: to give it back piece by piece takes up to a twentieth of the time.
    std::mem::forget((lifted, plan, relinked));
    Ok(Done { report, dyno, pinned, edits, unproven: unproven.reasons() })
}

fn pinned(lifted: &Lifted<'_>) -> Vec<String> {
    let Lifted { image, program } = lifted;
    let line = |(func, data): (Func, &FuncData)| {
        let name = data.symbol.and_then(|symbol| image.symbols.get(symbol)).map_or("", |s| s.name);
        let start = program.blocks[data.entry].start;
        Some(format!("{start} {} bytes, {}: {func} {name}", program.func_size(func), data.pin?.name()))
    };
    program.funcs.iter().filter_map(line).collect()
}

/// Keeps the first `fuel` functions of the plan and lays out the others as they were; gives the fuel that is left.
fn limit(lifted: &Lifted<'_>, plan: &mut LayoutPlan, fuel: u64) -> u64 {
    let mut seen = vec![false; lifted.program.funcs.len()];
    let mut is_kept = vec![false; lifted.program.funcs.len()];
    let mut left = fuel;
    for fragment in &plan.fragments {
        let func = fragment.func.index();
        if !std::mem::replace(&mut seen[func], true) && left > 0 {
            is_kept[func] = true;
            left -= 1;
        }
    }
    plan.fragments.retain(|f| is_kept[f.func.index()]);
    let rest = rewriter::layout::original(&lifted.program);
    plan.fragments.extend(rest.fragments.into_iter().filter(|f| seen[f.func.index()] && !is_kept[f.func.index()]));
    left
}

/// Why there are no clones, if some were asked for.
fn nothing_cloned(lifted: &Lifted<'_>, weights: &Weights, cloning: Cloning, edits: &EditPlan) -> Option<String> {
    if cloning.is_off() || !edits.clones.is_empty() {
        return None;
    }
    let why = if !lifted.program.is_replaceable() {
        "in a file that is bound to fixed addresses and has no relocations none are made"
    } else if !cloning.everywhere && !weights.has_counts() {
        "without a profile nobody knows which contexts run"
    } else {
        "no calling context saves enough"
    };
    Some(format!("no function was cloned: {why}"))
}

/// The checker lets functions be missing that nothing can reach, for `shrink`'s sake. Here all of them have to be there.
fn require_all_functions(output: &Path, checked: &checker::Report) -> Result<()> {
    match checked.stats.dropped_functions {
        0 => Ok(()),
        lost => Err(Failure::at(output, format!("not written: {lost} functions of the input are missing"))
            .hint("please report this with the input file")),
    }
}

fn dyno_stats(
    lifted: &Lifted<'_>,
    weights: &Weights,
    plan: &LayoutPlan,
    edits: &EditPlan,
    relinked: &Relinked,
) -> (DynoStats, DynoStats) {
    let Lifted { image, program } = lifted;
    let placement = |block: Block| relinked.blocks[block.index()];
    let before = dyno::compute(image, program, weights, dyno::Order::Input);
    let adjusted = edits.adjusted(program, weights);
    let after = dyno::compute(
        image,
        program,
        &adjusted,
        dyno::Order::Output { plan, edits, input_weights: weights, placement: &placement },
    );
    (before, after)
}

fn transforms(lifted: &Lifted<'_>, plan: &LayoutPlan, relinked: &Relinked, mut counts: transform::Counts) -> transform::Counts {
    if !plan.folded.is_empty() {
        let folded = [("functions", plan.folded.pairs().len() as u64), ("bytes", plan.folded.bytes(&lifted.program))];
        counts.insert("fold", folded.into());
    }
    let count = |temperature: Temperature| plan.fragments.iter().filter(|f| f.temperature == temperature).count() as u64;
    let mut layout = std::collections::BTreeMap::new();
    layout.insert("hot fragments", count(Temperature::Hot));
    layout.insert("cold fragments", count(Temperature::Cold));
    layout.insert("other fragments", count(Temperature::Unknown));
    let copies = plan.fragments.iter().flat_map(|f| &f.blocks).filter(|b| b.copy.is_some()).count();
    layout.insert("duplicated blocks", copies as u64);
    layout.insert("bytes behind the image", relinked.overflow_bytes);
    if relinked.num_anchors > 0 {
        layout.insert("old addresses kept by a jump", relinked.num_anchors as u64);
    }
    counts.insert("layout", layout);
    let clone_bytes: u64 = relinked.clones.iter().map(|(_, start, end)| end.0 - start.0).sum();
    if let Some(specialize) = counts.get_mut("specialize").filter(|_| clone_bytes > 0) {
        specialize.insert("bytes of copies", clone_bytes);
    }
    counts
}
