//! `relift train`: the main job in one step.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use lifter::lift::Undescribed;
use tempfile::TempDir;

use super::optimize::{self, Job};
use super::{Style, instrument};
use crate::args::{Rewrite, Train};
use crate::driver::Order;
use crate::failure::{Failure, Result};
use crate::files;
use crate::timing::Timing;

pub(crate) fn run(args: &Train, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let training = Training { rewrite: &args.rewrite, kept: args.profile.as_deref(), workload: &args.workload };
    let recorded = training.record(style, timing)?;
    let job = Job {
        rewrite: &args.rewrite,
        separate: &args.separate,
        profiles: std::slice::from_ref(&recorded.profile),
        profile_binary: None,
        measure_by: &[],
        order: Order::ByWeights(optimize::options(&args.transforms)),
        edits: optimize::edits(&args.transforms),
        fold: args.transforms.is_on(crate::args::Transform::Fold),
        fuel: args.transforms.fuel,
        unwinds: args.transforms.unwinds(),
        undescribed: Undescribed::Sought,
    };
    let done = optimize::optimize(&job, timing)?;
    timing.finish();
    done.print(style, timing)?;
    Ok(ExitCode::SUCCESS)
}

/// What is run to get a profile.
pub(super) struct Training<'t> {
    pub(super) rewrite: &'t Rewrite,
    /// Where the profile is kept, if it is.
    pub(super) kept: Option<&'t Path>,
    /// The command, with `{}` for the program.
    pub(super) workload: &'t [String],
}

/// A profile, as long as this is there.
pub(super) struct Recorded {
    pub(super) profile: PathBuf,
    _scratch: TempDir,
    _sweeper: Option<Child>,
}

impl Training<'_> {
    /// Runs the command with a program that counts.
    pub(super) fn record(&self, style: Style, timing: &mut Timing) -> Result<Recorded> {
        let scratch = tempfile::Builder::new()
            .prefix("relift-train-")
            .tempdir()
            .map_err(|e| Failure::new(format!("no scratch folder can be made: {e}")).hint("set TMPDIR to a folder with room"))?;
        let sweeper = sweep_after(scratch.path());
        let (input, output) = (&*self.rewrite.input, &*self.rewrite.output);
        let name = input.file_name().ok_or_else(|| Failure::at(input, "names no file"))?;
        let counting = scratch.path().join(name);
        // Always a new file: what an earlier training left in the one that is kept must not be added to this one.
        let profile = scratch.path().join("profile.rlp");
        let verify = self.rewrite.verify;
        let rewrite = Rewrite { input: input.to_owned(), output: counting.clone(), verify, no_check: true, debug: None };
        if let Some(kept) = self.kept {
            files::keep_apart(kept, [(input, "the input"), (output, "the output")])?;
            files::require_writable(kept)?;
        }
        files::require_writable(output)?;
        instrument::instrument(&rewrite, &profile, timing)?;
        let status = timing.phase("train", |_| run_workload(self.workload, &counting))?;
        if !status.success() && !style.json {
            eprintln!("relift: warning: the training command ended with {status}; its profile is used all the same");
        }
        if !profile.exists() {
            return Err(Failure::new("the training command left no profile").hint("does it run the program that {} stands for?"));
        }
        if let Some(kept) = self.kept {
            std::fs::copy(&profile, kept).map_err(|e| Failure::at(kept, format!("can't be written: {e}")))?;
        }
        Ok(Recorded { profile, _scratch: scratch, _sweeper: sweeper })
    }
}

/// Removes the folder once relift is gone, also if it was stopped, as trainings that take long are: a process of its own group, which no signal for relift's
/// reaches, waits for the end of a pipe. Where that can't be begun, only a stopped relift leaves the folder.
fn sweep_after(folder: &Path) -> Option<Child> {
    let mut sweeper = Command::new("sh");
    sweeper.args(["-c", r#"cat; rm -rf "$1""#, "sh"]).arg(folder).process_group(0);
    sweeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()
}

/// Runs the training command with `{}` replaced. Its output is not ours to show; its errors are.
fn run_workload(workload: &[String], program: &Path) -> Result<ExitStatus> {
    if !workload.iter().any(|word| word.contains("{}")) {
        return Err(Failure::new("the training command doesn't mention {}").hint("write {} where the program's name goes"));
    }
    let words: Vec<OsString> = workload.iter().map(|word| substitute(word, program)).collect();
    let (command, arguments) = words.split_first().ok_or_else(|| Failure::new("the training command is empty"))?;
    Command::new(command)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|e| Failure::new(format!("the training command can't be run: {}: {e}", Path::new(command).display())))
}

fn substitute(word: &str, program: &Path) -> OsString {
    let mut result = Vec::new();
    for (index, part) in word.split("{}").enumerate() {
        if index > 0 {
            result.extend_from_slice(program.as_os_str().as_bytes());
        }
        result.extend_from_slice(part.as_bytes());
    }
    OsStr::from_bytes(&result).to_owned()
}
