//! What is left out where the checker can't follow an output: functions first, then whole techniques.
//!
//! **Problem.** Each output more takes as long as the first one, to make and to check: minutes, where a file is large. There are a dozen things to leave out.
//!
//! **Method.** How many outputs are made depends on the file alone, its size and how much of it has no unwind entries, never on the clock: the same file gives the same output on any machine. First the functions in question stay as they are. If that
//! does not help, one technique after the other is left out; where fewer outputs are made than that takes, those of the code that change most go at once.

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

/// Bytes of input that are made smaller once more, in all outputs behind the first one: a minute and a half on two processors, at the speed of most files.
const BYTES_MAX: u64 = 256 << 20;

/// How much more code without unwind entries counts: functions are looked for in it, and the checker has more to guess.
const UNDESCRIBED: u64 = 4;

/// How many outputs are still made.
#[derive(Copy, Clone, Debug)]
struct Outputs(usize);

impl Outputs {
    /// Without the code, and without the unwind entries: these are tried in any case.
    const MIN: usize = 2;
    const MAX: usize = 24;
    /// One to see where the violations are, and one without them.
    const TO_CLOSE: usize = 2;

    /// For a file of so many bytes, of which so many are code without unwind entries.
    fn of(len: u64, undescribed: u64) -> Self {
        let count = BYTES_MAX / (len + undescribed * UNDESCRIBED).max(1);
        Self(usize::try_from(count).unwrap_or(Self::MAX).clamp(Self::MIN, Self::MAX))
    }

    /// Takes those of a round of closing functions, if enough are left then.
    fn close(&mut self) -> bool {
        let is_enough = self.0 >= Self::MIN + Self::TO_CLOSE;
        self.0 -= if is_enough { Self::TO_CLOSE } else { 0 };
        is_enough
    }
}

/// Where the checker can't follow all (it finds less than was known, or relift is wrong), the functions in question stay as they are; if that does not help, the techniques that change most are left out.
pub(super) fn shrink_or_less(args: &Shrink, debug_files: Option<&Paths<'_>>, timing: &mut Timing) -> Result<Report> {
    let mut undescribed = 0;
    let failure = match shrink(args, How::default(), debug_files, &mut undescribed, timing) {
        Err(failure) => failure,
        result => return result,
    };
    // Without a file, or with one that is no program, nothing else would do.
    let input = &args.rewrite.input;
    let bytes = files::read(input)?;
    driver::read(input, &bytes)?;
    if failure.is_of_debug_file {
        return Err(failure);
    }
    let mut outputs = Outputs::of(bytes.len() as u64, undescribed);
    drop(bytes);
    match with_closed(args, &failure, &mut outputs, debug_files, timing) {
        Some(report) => Ok(report),
        None => without_techniques(args, failure, undescribed > 0, outputs, debug_files, timing),
    }
}

/// Closes the functions that violations are about, as long as there are more of them; `None` if that does not help.
fn with_closed(
    args: &Shrink,
    first: &Failure,
    outputs: &mut Outputs,
    debug_files: Option<&Paths<'_>>,
    timing: &mut Timing,
) -> Option<Report> {
    let mut closed = Closed::none();
    let mut violations = first.violations.clone();
    for _ in 0..Closed::ROUNDS_MAX {
        if !Closed::may_be_told(&violations) || !outputs.close() {
            return None;
        }
        let about = functions_about(args, How::without(&closed), &violations, timing).ok()?;
        if !closed.extend(about) {
            return None;
        }
        match shrink(args, How::without(&closed), debug_files, &mut 0, timing) {
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
    has_undescribed: bool,
    outputs: Outputs,
    debug_files: Option<&Paths<'_>>,
    timing: &mut Timing,
) -> Result<Report> {
    let mut result = Err(failure);
    let stripping = args.strip.then_some(Less::Stripping);
    let with_all = Shrink { strip: false, ..args.clone() };
    let mut args = args.clone();
    let mut left_out = Vec::new();
    for step in steps(&args, has_undescribed, outputs) {
        let failure = match result {
            Err(failure) if !failure.is_of_debug_file => failure,
            result => return result,
        };
        let (args, undescribed, all): (_, _, Vec<Less>) = match step.as_slice() {
            &[less @ Less::Undescribed(undescribed)] => (&with_all, undescribed, stripping.into_iter().chain([less]).collect()),
            step => {
                step.iter().for_each(|less| _ = less.leave_out(&mut args));
                left_out.extend_from_slice(step);
                (&args, Undescribed::Sought, left_out.clone())
            }
        };
        let how = How { undescribed, ..How::default() };
        result = shrink(args, how, debug_files, &mut 0, timing).map(|mut report| {
            report.warnings.push(format!("{}: {failure}", consequences(&all)));
            report
        });
    }
    result
}

/// What is left out for each output, in this order, of all that is on.
fn steps(args: &Shrink, has_undescribed: bool, outputs: Outputs) -> Vec<Vec<Less>> {
    let doubts = [Undescribed::Doubted, Undescribed::Stays].into_iter().filter(|_| has_undescribed).map(Less::Undescribed);
    let last = [Less::Tails, Less::Folding, Less::Code, Less::UnwindEntries];
    let all = [Less::Stripping, Less::Subroutines, Less::Forms, Less::Outline].into_iter().chain(doubts).chain(last);
    let mut left = args.clone();
    let mut steps: Vec<Less> = all.filter(|less| matches!(less, Less::Undescribed(_)) || less.leave_out(&mut left)).collect();
    if steps.len() > outputs.0 {
        steps.retain(|less| !matches!(less, Less::Undescribed(_)));
    }
    let num_at_once = steps.len().saturating_sub(outputs.0) + 1;
    let rest = steps.split_off(num_at_once.min(steps.len()));
    [steps].into_iter().filter(|first| !first.is_empty()).chain(rest.into_iter().map(|less| vec![less])).collect()
}

/// What leaving these out means to who reads the report. All of the code has its parts in it.
fn consequences(left_out: &[Less]) -> String {
    let has_code = left_out.iter().any(|less| matches!(less, Less::Code));
    let told = left_out.iter().filter(|less| !(has_code && less.is_part_of_code()));
    told.map(|less| less.consequence()).collect::<Vec<_>>().join(", ")
}

/// What is left out where the checker can't follow everything.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
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

#[cfg(test)]
mod tests;
