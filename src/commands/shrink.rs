//! `relift shrink`: smaller files.

mod closed;
mod code;
mod finish;
mod less;

use std::process::ExitCode;

use lifter::Image;
use lifter::lift::Undescribed;
use rewriter::debug;
use rewriter::plan::Filling;
use rewriter::relink::Reported;
use rewriter::shrink::unloaded;

use super::separate::{self, Paths};
use super::train::Training;
use super::{Style, print, print_json, profile};
use crate::args::DebugInformation;
use crate::args::shrink::{Shrink, Technique};
use crate::driver::{self, Examiner, Lifted};
use crate::failure::Result;
use crate::files;
use crate::memory;
use crate::report::{self, shrink::Report};
use crate::timing::Timing;
use closed::Closed;
use code::Planned;
use finish::{Finished, Known};

pub(crate) fn run(args: &Shrink, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    if args.workload.is_empty() {
        return run_with(args, style, timing);
    }
    let training = Training { rewrite: &args.rewrite, kept: None, workload: &args.workload };
    let recorded = training.record(style, timing)?;
    run_with(&Shrink { profile: vec![recorded.profile.clone()], ..args.clone() }, style, timing)
}

fn run_with(args: &Shrink, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    profile::keep_apart(&args.rewrite.output, &args.profile)?;
    separate::keep_apart(&args.separate, &args.rewrite, &args.profile)?;
    let debug_files = Paths::open(&args.separate)?;
    let mut report = less::shrink_or_less(args, debug_files.as_ref(), timing)?;
    timing.finish();
    report.set_timing(timing);
    for warning in &report.warnings {
        eprintln!("relift: warning: {warning}");
    }
    if style.json {
        print_json(&report)?
    } else {
        print(&report.to_text(style.time.then_some(timing)))?
    }
    Ok(ExitCode::SUCCESS)
}

/// What is to be made smaller, and how.
#[derive(Copy, Clone)]
struct Job<'j> {
    args: &'j Shrink,
    closed: &'j Closed,
    reported: Reported,
    /// The input; where it is to have a debug file, with the link to it.
    unchanged: &'j [u8],
    wanted: debug::Wanted<'j>,
    strips_headers: bool,
}

/// How much is tried.
#[derive(Copy, Clone)]
struct How<'h> {
    /// What is made of code without unwind entries.
    undescribed: Undescribed,
    closed: &'h Closed,
}

impl<'h> How<'h> {
    fn without(closed: &'h Closed) -> Self {
        Self { closed, ..Self::default() }
    }
}

impl Default for How<'_> {
    fn default() -> Self {
        static NONE: Closed = Closed::none();
        Self { undescribed: Undescribed::Sought, closed: &NONE }
    }
}

/// The functions that violations are about, in an output that is made so.
fn functions_about(args: &Shrink, how: How<'_>, violations: &[checker::Violation], timing: &mut Timing) -> Result<Closed> {
    let input = &args.rewrite.input;
    let bytes = files::read(input)?;
    let mut lifted = driver::lift_to_shrink(input, &bytes, how.undescribed, false, timing)?;
    let mode = args.rewrite.debug.unwrap_or(DebugInformation::Drop).mode();
    let wanted = debug::Wanted { mode, separate: None };
    let strips_headers = args.strip && reader_of_headers(args, &lifted.image).is_none();
    let job = Job { args, closed: how.closed, reported: Reported::Blocks, unchanged: &bytes, wanted, strips_headers };
    let (finished, planned) = shrink_program(job, &mut lifted, timing, &mut Vec::new())?;
    let plan = planned.map(|planned| planned.plan).filter(|_| !finished.blocks.is_empty());
    Ok(plan.map_or_else(Closed::none, |plan| Closed::about(violations, &lifted.program, &plan, &finished.blocks)))
}

fn shrink(
    args: &Shrink,
    How { undescribed, closed }: How<'_>,
    debug_files: Option<&Paths<'_>>,
    undescribed_bytes: &mut u64,
    timing: &mut Timing,
) -> Result<Report> {
    let input = &args.rewrite.input;
    let bytes = files::read(input)?;
    let mut report = Report::new(&args.rewrite, bytes.len() as u64);
    // Fails for what is no program at all.
    let image = driver::read(input, &bytes)?;
    let debug_file = debug_files.map(|paths| paths.parse(&image)).transpose()?;
    let reader = if args.strip { reader_of_headers(args, &image) } else { None };
    drop(image);
    let separate = debug_files.zip(debug_file.as_ref()).map(|(paths, file)| paths.wanted(file)).transpose()?;
    let linked = debug_files.map(|paths| paths.linked(&args.rewrite, &bytes)).transpose()?;
    let mode = args.rewrite.debug.unwrap_or(DebugInformation::Drop).mode();
    let wanted = debug::Wanted { mode, separate };
    let strips_headers = args.strip && reader.is_none();
    let unchanged = linked.as_deref().unwrap_or(&bytes);
    let job = Job { args, closed, reported: Reported::File, unchanged, wanted, strips_headers };
    let mut finished = match driver::lift_to_shrink(input, &bytes, undescribed, args.rewrite.verify, timing) {
        Ok(mut lifted) => {
            *undescribed_bytes = lifted.undescribed_bytes();
            memory::give_back();
            let finished = shrink_program(job, &mut lifted, timing, &mut report.warnings)?.0;
            report.set_coverage(&lifted.program);
            finished
        }
        Err(failure) => {
            report.warnings.push(format!("code stays as it is: {failure}"));
            finish::finish(job, None, &Known::default(), timing)?
        }
    };
    if !finished.is_packed && args.is_on(Technique::Holes) {
        report
            .warnings
            .push("file offsets stay: something counts on them (bytes behind the ELF file, or unusual headers)".to_owned());
    }
    if finished.bytes.len() >= job.unchanged.len() {
        let but = if linked.is_some() { ", but for what names its debug file" } else { "" };
        report.warnings.push(format!("nothing makes this file smaller: the output is the input{but}"));
        finished = Finished::unchanged(job);
        report.output_bytes = finished.bytes.len() as u64;
    } else {
        (report.cuts, report.cut_bytes) = (finished.num_cuts, finished.cut_bytes);
        report.set_savings(&finished.savings, finished.bytes.len() as u64);
        let has_guessed = finished.savings.iter().any(|saving| saving.count > 0 && TAKE_TIME.contains(&saving.technique));
        report.slower = (has_guessed && args.profile.is_empty()).then_some(args.slower);
    }
    if !finished.dropped_sections.is_empty() {
        let names = finished.dropped_sections.join(", ");
        report.warnings.push(format!("dropped sections that describe the old code: {names}"));
    }
    let shorter = finished.keeps_headers.then(|| "the file is shorter with them".to_owned());
    report.warnings.extend(reader.or(shorter).map(|why| format!("section headers stay: {why}")));
    report.dropped_sections = std::mem::take(&mut finished.dropped_sections);
    write(args, &bytes, debug_files, finished, &mut report, timing).map(|()| report)
}

/// Techniques that add jumps where the code is guessed to run seldom.
const TAKE_TIME: [&str; 4] = ["tails", "outline", "subroutines", "relays"];

/// Who would miss the headers of sections, if somebody would.
fn reader_of_headers(args: &Shrink, image: &Image<'_>) -> Option<String> {
    if args.separate.debug_file.is_some() {
        return Some("without them debuggers don't find the debug file".to_owned());
    }
    unloaded::own(image).map(|name| format!("without them the program may not find {name}, which is not loaded"))
}

/// What is left of the file if as much of its code goes as can, and by which plan.
fn shrink_program(
    job: Job<'_>,
    lifted: &mut Lifted<'_>,
    timing: &mut Timing,
    warnings: &mut Vec<String>,
) -> Result<(Finished, Option<Planned>)> {
    let args = job.args;
    let known = Known::of(lifted);
    let Some(mut planned) = code::plan(job, lifted, timing, warnings)? else {
        return Ok((finish::finish(job, None, &known, timing)?, None));
    };
    memory::give_back();
    let may_cut =
        args.is_on(Technique::Cuts) && args.is_on(Technique::Holes) && !planned.weights.has_counts() && !planned.is_in_place;
    let from_end = if may_cut { planned.rewrite(job, lifted, Filling::FromEnd, timing).ok() } else { None };
    let code = match from_end.map_or_else(|| planned.rewrite(job, lifted, Filling::FromStart, timing), Ok) {
        Ok(code) => Some(code),
        Err(failure) if failure.is_of_debug_file => return Err(failure),
        Err(failure) => {
            warnings.push(format!("code stays as it is: {failure}"));
            None
        }
    };
    memory::give_back();
    warnings.extend(code.as_ref().and_then(|code| report::about_debug_information(&code.relinked)));
    warnings.extend(code.as_ref().and_then(|code| report::about_build_id(&code.relinked)).map(str::to_owned));
    let has_code = code.is_some();
    let finished = finish::finish(job, code, &known, timing)?;
    if !may_cut || !has_code || finished.lost(job.unchanged) < LOST_MIN {
        return Ok((finished, Some(planned)));
    }
    let Ok(code) = planned.rewrite(job, lifted, Filling::AroundHoles, timing) else { return Ok((finished, Some(planned))) };
    let other = finish::finish(job, Some(code), &known, timing)?;
    Ok((if other.bytes.len() < finished.bytes.len() { other } else { finished }, Some(planned)))
}

/// What has to stay in the file of all that is free for another order of the code to be tried: a page more or less is for chance to decide.
const LOST_MIN: i64 = 8192;

/// Checks and writes the output, and its debug file with it.
fn write(
    args: &Shrink,
    before: &[u8],
    debug_files: Option<&Paths<'_>>,
    mut finished: Finished,
    report: &mut Report,
    timing: &mut Timing,
) -> Result<()> {
    let Finished { bytes: after, debug_file, .. } = &mut finished;
    let new = debug_files.map(|paths| paths.settle(&args.rewrite, after, debug_file.as_ref())).transpose()?;
    *debug_file = None;
    // First: what is stopped while it checks leaves no half-made file behind.
    if !args.rewrite.no_check {
        memory::give_back();
        let before = separate::files(before, separate::bytes(debug_files));
        let after = separate::files(after, new.as_ref().map(|new| &*new.bytes));
        let output = &args.rewrite.output;
        // Where code differs, less is tried next: what else is wrong does not matter then.
        let checked = Examiner::default().examine(output, (before, after), args.assumptions(), &|_| true, timing)?;
        driver::require_no_violations(output, &checked)?;
        report.warnings.extend(checked.debug.as_ref().and_then(report::about_differences));
        report.debug = checked.debug.as_ref().map(report::Told::from);
    }
    let written = debug_files.zip(new.as_ref());
    report.warnings.extend(timing.phase("write", |_| separate::write(&args.rewrite, after, written))?);
    report.debug_file = written.map(|(paths, new)| paths.report(new));
    Ok(())
}
