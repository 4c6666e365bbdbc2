//! `relift profile show` and `merge`, and profiles as inputs of other commands.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use profiles::{ProfileFile, Weights};
use serde_json::json;

use super::{Style, print, print_json};
use crate::args::ProfileCommand;
use crate::driver::Lifted;
use crate::failure::{Failure, Result};
use crate::files::{self, Draft};
use crate::report::{ProfileQuality, group, percent};

pub(crate) fn run(command: &ProfileCommand, style: Style) -> Result<ExitCode> {
    match command {
        ProfileCommand::Show { profile, top } => show(profile, *top, style)?,
        ProfileCommand::Merge { profiles, output } => merge(profiles, output)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<ProfileFile> {
    let bytes = files::read(path)?;
    ProfileFile::read(&bytes)
        .map_err(|e| Failure::at(path, e).hint("give a file that a program made by `relift instrument` wrote"))
}

/// Reads, adds up and attributes profiles.
pub(crate) fn load(paths: &[PathBuf], lifted: &Lifted<'_>) -> Result<(Weights, ProfileQuality)> {
    let profile = sum(paths)?;
    let attribution = profiles::attribute(&profile, &lifted.image, &lifted.program).map_err(|e| {
        let path = paths.first().map_or(Path::new("profile"), PathBuf::as_path);
        Failure::at(path, e).hint("give a profile of this program")
    })?;
    // Start-up code is the same in all programs; a profile that has only that in common is another program's.
    const MATCHED_PERCENT_MIN: u64 = 10;
    let found = &attribution.quality;
    if found.counts_matched.saturating_mul(100) < found.counts_total.saturating_mul(MATCHED_PERCENT_MIN) {
        let path = paths.first().map_or(Path::new("profile"), PathBuf::as_path);
        let share = percent(found.counts_matched, found.counts_total);
        return Err(Failure::at(path, format!("a profile of another program: {share} of its counts match"))
            .hint("give a profile of this program"));
    }
    let quality = ProfileQuality {
        functions_matched: attribution.quality.functions_matched as u64,
        functions_total: attribution.quality.functions_total as u64,
        counts_matched: attribution.quality.counts_matched,
        counts_total: attribution.quality.counts_total,
    };
    Ok((attribution.weights, quality))
}

fn sum(paths: &[PathBuf]) -> Result<ProfileFile> {
    let profiles = paths.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    ProfileFile::merge(&profiles).map_err(|e| {
        let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
        Failure::new(format!("{}: {e}", names.join(", "))).hint("only profiles of one instrumented program can be added up")
    })
}

fn merge(paths: &[PathBuf], output: &Path) -> Result<()> {
    let merged = sum(paths)?;
    let like = &paths[0];
    Draft::write(output, &merged.write(), like)?.put_in_place()
}

fn show(path: &Path, top: usize, style: Style) -> Result<()> {
    let profile = read(path)?;
    let summary = profile.summary();
    let mut text = String::new();
    let name =
        |name: &str| if name.is_empty() { "(no name)".to_owned() } else { format!("{:#}", rustc_demangle::demangle(name)) };
    if style.json {
        let functions: Vec<_> = summary
            .functions
            .iter()
            .take(top)
            .map(|f| {
                json!({ "name": name(f.name), "content_hash": format!("{:016x}", f.content_hash), "bytes": f.size,
                "counted": f.counted, "calls": f.entered, "counters": f.num_counters })
            })
            .collect();
        return print_json(&json!({ "functions_total": summary.num_functions, "functions_executed": summary.functions.len(),
            "counters": summary.num_counters, "counters_nonzero": summary.num_nonzero, "counted": summary.counted, "functions": functions }));
    }
    let _ = writeln!(
        text,
        "{} of {} functions ran; {} of {} counters count; {} counts",
        group(summary.functions.len() as u64),
        group(summary.num_functions as u64),
        group(summary.num_nonzero as u64),
        group(summary.num_counters as u64),
        group(summary.counted),
    );
    let _ = writeln!(text, "{:>16} {:>7} {:>8}  function", "counts", "share", "bytes");
    for f in summary.functions.iter().take(top) {
        let _ = writeln!(
            text,
            "{:>16} {:>7} {:>8}  {} {:016x}",
            group(f.counted),
            percent(f.counted, summary.counted),
            f.size,
            name(f.name),
            f.content_hash
        );
    }
    print(&text)
}
