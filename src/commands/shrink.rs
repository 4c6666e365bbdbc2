//! `relift shrink`: smaller files.

mod code;
mod finish;

use std::process::ExitCode;

use rewriter::plan::Filling;

use super::{Style, print, print_json, profile};
use crate::args::shrink::{Shrink, Technique};
use crate::driver::{self, Examiner, Lifted};
use crate::failure::Result;
use crate::files::{self, Draft};
use crate::memory;
use crate::report::{self, shrink::Report};
use crate::timing::Timing;
use code::OF_CODE;
use finish::{Finished, Known};

pub(crate) fn run(args: &Shrink, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    profile::keep_apart(&args.rewrite.output, &args.profile)?;
    let mut report = shrink_or_less(args, timing)?;
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
fn shrink_or_less(args: &Shrink, timing: &mut Timing) -> Result<Report> {
    let mut result = shrink(args, timing);
    if result.is_err() {
        // Without a file, or with one that is no program, nothing else would do.
        let input = &args.rewrite.input;
        driver::read(input, &files::read(input)?)?;
    }
    let mut args = args.clone();
    for less in [Less::Stripping, Less::Tails, Less::Folding, Less::Code, Less::UnwindEntries] {
        let failure = match result {
            Err(failure) => failure,
            result => return result,
        };
        result = match less.leave_out(&mut args) {
            false => Err(failure),
            true => shrink(&args, timing).map(|mut report| {
                report.warnings.push(format!("{}: {failure}", less.consequence()));
                report
            }),
        };
    }
    result
}

/// What is left out where the checker can't follow everything.
#[derive(Copy, Clone, Debug)]
enum Less {
    Tails,
    Folding,
    Stripping,
    Code,
    UnwindEntries,
}

impl Less {
    /// Whether that is any less.
    fn leave_out(self, args: &mut Shrink) -> bool {
        match self {
            Less::Stripping => std::mem::take(&mut args.strip),
            Less::Tails => skip(args, &[Technique::Tails]),
            Less::Folding => skip(args, &[Technique::Fold]),
            Less::Code => skip(args, &OF_CODE),
            Less::UnwindEntries => skip(args, &[Technique::UnwindEntries]),
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Less::Tails => "blocks that go on alike keep a copy each",
            Less::Folding => "functions that do the same keep a body each",
            Less::Stripping => "section headers stay",
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

fn shrink(args: &Shrink, timing: &mut Timing) -> Result<Report> {
    let input = &args.rewrite.input;
    let bytes = files::read(input)?;
    let mut report = Report::new(&args.rewrite, bytes.len() as u64);
    // Fails for what is no program at all.
    driver::read(input, &bytes)?;
    let finished = match driver::lift_to_shrink(input, &bytes, args.rewrite.verify, timing) {
        Ok(mut lifted) => {
            memory::give_back();
            let finished = shrink_program(args, &bytes, &mut lifted, timing, &mut report.warnings)?;
            report.set_coverage(&lifted.program);
            finished
        }
        Err(failure) => {
            report.warnings.push(format!("code stays as it is: {failure}"));
            finish::finish(args, &bytes, None, &Known::default(), timing)?
        }
    };
    if !finished.is_packed && args.is_on(Technique::Holes) {
        report
            .warnings
            .push("file offsets stay: something counts on them (bytes behind the ELF file, or unusual headers)".to_owned());
    }
    (report.cuts, report.cut_bytes) = (finished.num_cuts, finished.cut_bytes);
    if finished.bytes.len() >= bytes.len() {
        report.warnings.push("nothing makes this file smaller: the output is the input".to_owned());
        report.warnings.extend(write(args, &bytes, &bytes, timing)?);
        return Ok(report);
    }
    report.set_savings(&finished.savings, finished.bytes.len() as u64);
    if !finished.dropped_sections.is_empty() {
        let names = finished.dropped_sections.join(", ");
        report.warnings.push(format!("dropped sections that describe the old code: {names}"));
    }
    report.dropped_sections = finished.dropped_sections;
    report.warnings.extend(write(args, &bytes, &finished.bytes, timing)?);
    Ok(report)
}

/// What is left of the file if as much of its code goes as can.
fn shrink_program(
    args: &Shrink,
    bytes: &[u8],
    lifted: &mut Lifted<'_>,
    timing: &mut Timing,
    warnings: &mut Vec<String>,
) -> Result<Finished> {
    let known = Known::of(lifted);
    let Some(mut planned) = code::plan(args, lifted, timing, warnings)? else {
        return finish::finish(args, bytes, None, &known, timing);
    };
    memory::give_back();
    let may_cut =
        args.is_on(Technique::Cuts) && args.is_on(Technique::Holes) && !planned.weights.has_counts() && !planned.is_in_place;
    let from_end = if may_cut { planned.rewrite(args, lifted, Filling::FromEnd, timing).ok() } else { None };
    let code = from_end.map_or_else(|| planned.rewrite(args, lifted, Filling::FromStart, timing), Ok);
    let code = code.map_err(|reason| warnings.push(format!("code stays as it is: {reason}"))).ok();
    memory::give_back();
    warnings.extend(code.as_ref().and_then(|code| report::about_debug_information(&code.relinked)));
    let has_code = code.is_some();
    let finished = finish::finish(args, bytes, code, &known, timing)?;
    if !may_cut || !has_code || finished.lost(bytes) < LOST_MIN {
        return Ok(finished);
    }
    let Ok(code) = planned.rewrite(args, lifted, Filling::AroundHole, timing) else { return Ok(finished) };
    let other = finish::finish(args, bytes, Some(code), &known, timing)?;
    Ok(if other.bytes.len() < finished.bytes.len() { other } else { finished })
}

/// What has to stay in the file of all that is free for another order of the code to be tried: a page more or less is for chance to decide.
const LOST_MIN: i64 = 8192;

/// Gives what the user is to be warned of.
fn write(args: &Shrink, before: &[u8], after: &[u8], timing: &mut Timing) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let output = &args.rewrite.output;
    // First: what is stopped while it checks leaves no half-made file behind.
    if !args.rewrite.no_check {
        memory::give_back();
        // Where code differs, less is tried next: what else is wrong does not matter then.
        let checked = Examiner::default().examine(output, (before, after), checker::Assumptions::default(), &|_| true, timing)?;
        driver::require_no_violations(output, &checked)?;
        warnings.extend(checked.debug.as_ref().and_then(report::about_differences));
    }
    let draft = timing.phase("write", |_| Draft::write(output, after, &args.rewrite.input))?;
    warnings.extend(draft.warning());
    draft.put_in_place().map(|()| warnings)
}
