//! `relift instrument`: a program that counts into a file while it runs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Style, print, print_json};
use crate::args::{Instrument, Rewrite};
use crate::driver;
use crate::failure::{Failure, Result};
use crate::files::{self, Draft};
use crate::report;
use crate::timing::Timing;

pub(crate) fn run(args: &Instrument, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    instrument(&args.rewrite, &args.profile, timing)?;
    timing.finish();
    let profile = absolute(&args.profile)?;
    if style.json {
        print_json(&serde_json::json!({
            "input": args.rewrite.input, "output": args.rewrite.output, "profile": profile, "seconds": timing.total().as_secs_f64(),
        }))?;
    } else {
        print(&format!("{} counts into {}\n", args.rewrite.output.display(), profile.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the instrumented program.
pub(crate) fn instrument(rewrite: &Rewrite, profile: &Path, timing: &mut Timing) -> Result<()> {
    files::keep_apart(profile, [(&*rewrite.input, "the input"), (&*rewrite.output, "the output")])?;
    timing.phase("instrument", |timing| {
        let bytes = files::read(&rewrite.input)?;
        let lifted = driver::lift(&rewrite.input, &bytes, rewrite.verify, timing)?;
        let (functions, _) = report::coverage(&lifted.program, None);
        if functions.moved == 0 {
            return Err(Failure::at(&rewrite.input, "no function can be instrumented: all are pinned")
                .hint("`relift inspect --pinned` says why"));
        }
        let relinked = driver::instrument(&rewrite.input, &lifted, &absolute(profile)?, timing)?;
        let draft = timing.phase("write", |_| Draft::write(&rewrite.output, &relinked.bytes, &rewrite.input))?;
        if let Some(warning) = draft.warning() {
            eprintln!("relift: warning: {warning}");
        }
        draft.put_in_place()
    })
}

/// The path as the program will open it, from whatever folder it runs in.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::at(path, e))
}
