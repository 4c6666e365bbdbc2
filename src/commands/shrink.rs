//! `relift shrink`: smaller files.

mod code;
mod finish;

use std::process::ExitCode;

use lifter::Image;
use lifter::lift::Undescribed;
use rewriter::debug;
use rewriter::plan::Filling;
use rewriter::shrink::unloaded;

use super::separate::{self, Paths};
use super::{Style, print, print_json, profile};
use crate::args::DebugInformation;
use crate::args::shrink::{Shrink, Technique};
use crate::driver::{self, Examiner, Lifted};
use crate::failure::Result;
use crate::files;
use crate::memory;
use crate::report::{self, shrink::Report};
use crate::timing::Timing;
use code::OF_CODE;
use finish::{Finished, Known};

pub(crate) fn run(args: &Shrink, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    profile::keep_apart(&args.rewrite.output, &args.profile)?;
    separate::keep_apart(&args.separate, &args.rewrite, &args.profile)?;
    let debug_files = Paths::open(&args.separate)?;
    let mut report = shrink_or_less(args, debug_files.as_ref(), timing)?;
    timing.finish();
    report.set_timing(timing);
    for warning in &report.warnings {
        eprintln!("relift: warning: {warning}");
    }
    if style.json {
        print_json(&report)?
    } else {
        print(&report.to_text())?
    }
    Ok(ExitCode::SUCCESS)
}

/// Where the checker can't follow all techniques (it finds less than was known, or relift is wrong), those that change most are left out.
fn shrink_or_less(args: &Shrink, debug_files: Option<&Paths<'_>>, timing: &mut Timing) -> Result<Report> {
    let mut has_undescribed = false;
    let mut result = shrink(args, Undescribed::Sought, debug_files, &mut has_undescribed, timing);
    if result.is_err() {
        // Without a file, or with one that is no program, nothing else would do.
        let input = &args.rewrite.input;
        driver::read(input, &files::read(input)?)?;
    }
    let mut args = args.clone();
    let mut with_all = args.clone();
    let doubts = [Undescribed::Doubted, Undescribed::Stays].into_iter().filter(|_| has_undescribed).map(Less::Undescribed);
    let last = [Less::Tails, Less::Folding, Less::Code, Less::UnwindEntries];
    for less in [Less::Stripping, Less::Subroutines, Less::Forms, Less::Outline].into_iter().chain(doubts).chain(last) {
        let failure = match result {
            Err(failure) if !failure.is_of_debug_file => failure,
            result => return result,
        };
        let tried = match less {
            Less::Undescribed(undescribed) => Some((&with_all, undescribed)),
            _ => less.leave_out(&mut args).then_some((&args, Undescribed::Sought)),
        };
        result = match tried {
            None => Err(failure),
            Some((args, undescribed)) => shrink(args, undescribed, debug_files, &mut false, timing).map(|mut report| {
                report.warnings.push(format!("{}: {failure}", less.consequence()));
                report
            }),
        };
        if matches!(less, Less::Stripping) {
            with_all = args.clone();
        }
    }
    result
}

/// What is left out where the checker can't follow everything.
#[derive(Copy, Clone, Debug)]
enum Less {
    /// No technique, but less is believed of code without unwind entries.
    Undescribed(Undescribed),
    Subroutines,
    Forms,
    Outline,
    Tails,
    Folding,
    Stripping,
    Code,
    UnwindEntries,
}

impl Less {
    /// Whether there are techniques that are less.
    fn leave_out(self, args: &mut Shrink) -> bool {
        match self {
            Less::Undescribed(_) => false,
            Less::Stripping => std::mem::take(&mut args.strip),
            Less::Forms => skip(args, &[Technique::Forms]),
            Less::Subroutines => skip(args, &[Technique::Subroutines]),
            Less::Outline => skip(args, &[Technique::Outline]),
            Less::Tails => skip(args, &[Technique::Tails]),
            Less::Folding => skip(args, &[Technique::Fold]),
            Less::Code => skip(args, &OF_CODE),
            Less::UnwindEntries => skip(args, &[Technique::UnwindEntries]),
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Less::Undescribed(undescribed) => super::less_of(undescribed).unwrap_or("nothing is left out"),
            Less::Forms => "instructions keep their forms",
            Less::Subroutines => "instructions that many places have stay in each",
            Less::Outline => "calls keep their arguments",
            Less::Tails => "blocks that go on alike keep a copy each",
            Less::Folding => "functions that do the same keep a body each",
            Less::Stripping => "nothing is stripped",
            Less::Code => "code stays as it is",
            Less::UnwindEntries => "unwind tables stay as they are",
        }
    }
}

fn skip(args: &mut Shrink, techniques: &[Technique]) -> bool {
    let is_less = techniques.iter().any(|&technique| args.is_on(technique));
    args.skip.extend_from_slice(techniques);
    is_less
}

/// What is to be made smaller, and how.
#[derive(Copy, Clone)]
struct Job<'j> {
    args: &'j Shrink,
    /// The input; where it is to have a debug file, with the link to it.
    unchanged: &'j [u8],
    wanted: debug::Wanted<'j>,
    strips_headers: bool,
}

fn shrink(
    args: &Shrink,
    undescribed: Undescribed,
    debug_files: Option<&Paths<'_>>,
    has_undescribed: &mut bool,
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
    let job = Job { args, unchanged: linked.as_deref().unwrap_or(&bytes), wanted, strips_headers };
    let mut finished = match driver::lift_to_shrink(input, &bytes, undescribed, args.rewrite.verify, timing) {
        Ok(mut lifted) => {
            *has_undescribed = lifted.moves_undescribed();
            memory::give_back();
            let finished = shrink_program(job, &mut lifted, timing, &mut report.warnings)?;
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

/// Who would miss the headers of sections, if somebody would.
fn reader_of_headers(args: &Shrink, image: &Image<'_>) -> Option<String> {
    if args.separate.debug_file.is_some() {
        return Some("without them debuggers don't find the debug file".to_owned());
    }
    unloaded::own(image).map(|name| format!("without them the program may not find {name}, which is not loaded"))
}

/// What is left of the file if as much of its code goes as can.
fn shrink_program(job: Job<'_>, lifted: &mut Lifted<'_>, timing: &mut Timing, warnings: &mut Vec<String>) -> Result<Finished> {
    let args = job.args;
    let known = Known::of(lifted);
    let Some(mut planned) = code::plan(args, lifted, timing, warnings)? else {
        return finish::finish(job, None, &known, timing);
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
        return Ok(finished);
    }
    let Ok(code) = planned.rewrite(job, lifted, Filling::AroundHole, timing) else { return Ok(finished) };
    let other = finish::finish(job, Some(code), &known, timing)?;
    Ok(if other.bytes.len() < finished.bytes.len() { other } else { finished })
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
        let checked = Examiner::default().examine(output, (before, after), checker::Assumptions::default(), &|_| true, timing)?;
        driver::require_no_violations(output, &checked)?;
        report.warnings.extend(checked.debug.as_ref().and_then(report::about_differences));
        report.debug = checked.debug.as_ref().map(report::Told::from);
    }
    let written = debug_files.zip(new.as_ref());
    report.warnings.extend(timing.phase("write", |_| separate::write(&args.rewrite, after, written))?);
    report.debug_file = written.map(|(paths, new)| paths.report(new));
    Ok(())
}
