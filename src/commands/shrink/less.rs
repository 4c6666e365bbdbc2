//! What is left out where the checker can't follow an output: functions first, then whole techniques.

use lifter::lift::Undescribed;

use super::super::less_of;
use super::closed::Closed;
use super::code::OF_CODE;
use super::{How, functions_about, shrink};
use crate::args::shrink::{Shrink, Technique};
use crate::commands::separate::Paths;
use crate::driver;
use crate::failure::{Failure, Result};
use crate::files;
use crate::report::shrink::Report;
use crate::timing::Timing;

/// Larger files keep their code where the checker can't follow it: each output of one takes minutes to make and to check, and there could be a dozen.
const LARGEST: u64 = 64 << 20;

/// Where the checker can't follow all (it finds less than was known, or relift is wrong), the functions in question stay as they are; if that does not help, the techniques that change most are left out.
pub(super) fn shrink_or_less(args: &Shrink, debug_files: Option<&Paths<'_>>, timing: &mut Timing) -> Result<Report> {
    let mut has_undescribed = false;
    let failure = match shrink(args, How::default(), debug_files, &mut has_undescribed, timing) {
        Err(failure) => failure,
        result => return result,
    };
    // Without a file, or with one that is no program, nothing else would do.
    let input = &args.rewrite.input;
    driver::read(input, &files::read(input)?)?;
    if failure.is_of_debug_file {
        return Err(failure);
    }
    let is_large = std::fs::metadata(input).is_ok_and(|metadata| metadata.len() > LARGEST);
    let by_functions = if is_large { None } else { with_closed(args, &failure, debug_files, timing) };
    match by_functions {
        Some(report) => Ok(report),
        None => without_techniques(args, failure, (has_undescribed, is_large), debug_files, timing),
    }
}

/// Closes the functions that violations are about, as long as there are more of them; `None` if that does not help.
fn with_closed(args: &Shrink, first: &Failure, debug_files: Option<&Paths<'_>>, timing: &mut Timing) -> Option<Report> {
    let mut closed = Closed::none();
    let mut violations = first.violations.clone();
    for _ in 0..Closed::ROUNDS_MAX {
        // An output more is made to see where they are.
        if !Closed::may_be_told(&violations) {
            return None;
        }
        let about = functions_about(args, How::without(&closed), &violations, timing).ok()?;
        if !closed.extend(about) {
            return None;
        }
        match shrink(args, How::without(&closed), debug_files, &mut false, timing) {
            Ok(mut report) => {
                report.warnings.push(format!("{} functions are not changed: {first}", closed.len()));
                return Some(report);
            }
            Err(failure) => violations = failure.violations,
        }
    }
    None
}

/// One technique after the other is left out.
fn without_techniques(
    args: &Shrink,
    failure: Failure,
    (has_undescribed, is_large): (bool, bool),
    debug_files: Option<&Paths<'_>>,
    timing: &mut Timing,
) -> Result<Report> {
    let mut result = Err(failure);
    let stripping = args.strip.then_some(Less::Stripping);
    let with_all = Shrink { strip: false, ..args.clone() };
    let mut args = args.clone();
    let mut left_out = Vec::new();
    let doubts = [Undescribed::Doubted, Undescribed::Stays].into_iter().filter(|_| has_undescribed).map(Less::Undescribed);
    let last = [Less::Tails, Less::Folding, Less::Code, Less::UnwindEntries];
    for less in [Less::Stripping, Less::Subroutines, Less::Forms, Less::Outline].into_iter().chain(doubts).chain(last) {
        if is_large && less.is_part_of_code() {
            continue;
        }
        let failure = match result {
            Err(failure) if !failure.is_of_debug_file => failure,
            result => return result,
        };
        let (args, undescribed, all): (_, _, Vec<Less>) = match less {
            Less::Undescribed(undescribed) => (&with_all, undescribed, stripping.into_iter().chain([less]).collect()),
            _ if less.leave_out(&mut args) => {
                left_out.push(less);
                (&args, Undescribed::Sought, left_out.clone())
            }
            _ => {
                result = Err(failure);
                continue;
            }
        };
        let how = How { undescribed, ..How::default() };
        result = shrink(args, how, debug_files, &mut false, timing).map(|mut report| {
            let consequences: Vec<&str> = all.into_iter().map(Less::consequence).collect();
            report.warnings.push(format!("{}: {failure}", consequences.join(", ")));
            report
        });
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
    /// Whether leaving out all of what is done to code leaves this out too.
    fn is_part_of_code(self) -> bool {
        use Less::{Folding, Forms, Outline, Subroutines, Tails, Undescribed};
        matches!(self, Subroutines | Forms | Outline | Undescribed(_) | Tails | Folding)
    }

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
            Less::Undescribed(undescribed) => less_of(undescribed).unwrap_or("nothing is left out"),
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
