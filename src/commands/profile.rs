//! `relift profile`: profiles shown, added up, converted and judged.

mod load;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use profiles::{Fdata, ProfileFile, ProfileKind, SymbolIndex, Weights};
use serde_json::json;

use super::{Style, print, print_json};
use crate::args::{ProfileCommand, TextFormat};
use crate::driver::{self, Lifted};
use crate::failure::{Failure, Result};
use crate::files::{self, Draft};
use crate::progress::Progress;
use crate::report::{group, percent};
use crate::timing::Timing;

pub(crate) use load::{Source, load};

pub(crate) fn run(command: &ProfileCommand, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    match command {
        ProfileCommand::Show { profile, top } => show(profile, *top, style)?,
        ProfileCommand::Merge { profiles, output } => merge(profiles, output, timing.progress())?,
        ProfileCommand::Convert { profiles, output, format, program, profile_binary } => {
            convert(profiles, profile_binary.as_deref(), output, *format, program, timing)?;
        }
        ProfileCommand::Quality { profiles, program, profile_binary } => {
            quality(profiles, profile_binary.as_deref(), program, style, timing)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses an output in the place of one of these profiles.
pub(crate) fn keep_apart(output: &Path, profiles: &[PathBuf]) -> Result<()> {
    let sources: Vec<Source> = profiles.iter().map(|path| Source::parse(path)).collect::<Result<_>>()?;
    files::keep_apart(output, sources.iter().map(|source| (&*source.path, "the profile")))
}

fn read(path: &Path) -> Result<ProfileFile> {
    let bytes = files::read(path)?;
    load::parse(path, &bytes)
}

fn merge(paths: &[PathBuf], output: &Path, progress: &Progress) -> Result<()> {
    let like = Source::parse(&paths[0])?.path;
    Draft::write(output, &merged(paths, progress)?, &like)?.put_in_place()
}

/// Adds up files of one kind without the program.
pub(crate) fn merged(paths: &[PathBuf], progress: &Progress) -> Result<Vec<u8>> {
    let sources: Vec<Source> = paths.iter().map(|path| Source::parse(path)).collect::<Result<_>>()?;
    let inputs = sources.iter().map(|s| files::read(&s.path)).collect::<Result<Vec<_>>>()?;
    let kinds = sources.iter().zip(&inputs).map(|(s, bytes)| load::kind(&s.path, bytes)).collect::<Result<Vec<_>>>()?;
    Ok(if kinds.iter().all(|&kind| kind == ProfileKind::Relift) {
        let mut profiles = Vec::new();
        for (source, bytes) in sources.iter().zip(&inputs) {
            let mut profile = load::parse(&source.path, bytes)?;
            profile.scale(source.weight);
            profiles.push(profile);
        }
        sum(&profiles, paths)?.write()
    } else if kinds.iter().all(|&kind| kind == ProfileKind::Fdata) {
        let mut merged = Fdata::default();
        for (source, bytes) in sources.iter().zip(&inputs) {
            let reading = progress.reading(bytes.len() as u64);
            let fdata = Fdata::read_watched(bytes, &|bytes| reading.at(bytes)).map_err(|e| Failure::at(&source.path, e))?;
            merged.merge(&fdata, source.weight).map_err(|e| Failure::at(&source.path, e))?;
        }
        merged.write().into_bytes()
    } else {
        return Err(Failure::new("only profiles of one kind, relift's or fdata, can be added up without the program")
            .hint("`relift profile convert --program` adds up any"));
    })
}

fn sum(profiles: &[ProfileFile], paths: &[PathBuf]) -> Result<ProfileFile> {
    ProfileFile::merge(profiles).map_err(|e| {
        let names: Vec<_> = paths.iter().map(|p| p.display().to_string()).collect();
        Failure::new(format!("{}: {e}", names.join(", "))).hint("only profiles of one instrumented program can be added up")
    })
}

pub(crate) fn convert(
    paths: &[PathBuf],
    binary: Option<&Path>,
    output: &Path,
    format: TextFormat,
    program: &Path,
    timing: &mut Timing,
) -> Result<()> {
    let bytes = files::read(program)?;
    let lifted = driver::lift(program, &bytes, false, timing)?;
    let (weights, _) = timing.phase("attribute the profile", |timing| load(paths, binary, program, &lifted, timing))?;
    let text = timing.phase("write the profile", |_| export(&lifted, &weights, format));
    Draft::write(output, text.as_bytes(), &Source::parse(&paths[0])?.path)?.put_in_place()
}

/// A profile as text.
pub(crate) fn export(lifted: &Lifted<'_>, weights: &Weights, format: TextFormat) -> String {
    let Lifted { image, program } = lifted;
    let symbols = || SymbolIndex::build(image, program);
    match format {
        TextFormat::Fdata => profiles::fdata::export(image, program, weights, &symbols()).write(),
        TextFormat::Yaml => profiles::yaml::export(image, program, weights, &symbols()),
        TextFormat::Preaggregated => profiles::preaggregated::export(image, program, weights),
    }
}

fn quality(paths: &[PathBuf], binary: Option<&Path>, program: &Path, style: Style, timing: &mut Timing) -> Result<()> {
    let bytes = files::read(program)?;
    let lifted = driver::lift(program, &bytes, false, timing)?;
    let (_, quality) = timing.phase("attribute the profile", |timing| load(paths, binary, program, &lifted, timing))?;
    if style.json {
        return print_json(&quality);
    }
    print(&quality.to_text())
}

fn show(path: &Path, top: usize, style: Style) -> Result<()> {
    let bytes = files::read(path)?;
    match load::kind(path, &bytes)? {
        ProfileKind::Relift => {}
        ProfileKind::Fdata => return show_fdata(path, &bytes, top, style),
        kind => {
            return Err(Failure::at(path, format!("{} says nothing without the program", kind.name()))
                .hint("`relift profile quality --program` shows what it holds"));
        }
    }
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

/// The functions of an `fdata` file by how much of it is about them.
fn show_fdata(path: &Path, bytes: &[u8], top: usize, style: Style) -> Result<()> {
    let fdata = Fdata::read(bytes).map_err(|e| Failure::at(path, e))?;
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    let from_branches = fdata.branches.iter().map(|(&(_, to), &(_, count))| (to, count));
    for (place, count) in from_branches.chain(fdata.samples.iter().map(|(&place, &count)| (place, count))) {
        let sum = counts.entry(fdata.name(place.name)).or_default();
        *sum = sum.saturating_add(count);
    }
    let total = counts.values().fold(0u64, |sum, &count| sum.saturating_add(count));
    let mut rows: Vec<(&str, u64)> = counts.into_iter().collect();
    rows.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    if style.json {
        let functions: Vec<_> = rows.iter().take(top).map(|(name, count)| json!({ "name": name, "counted": count })).collect();
        return print_json(&json!({ "kind": "fdata", "records": fdata.branches.len() + fdata.samples.len(), "counted": total,
            "is_sampled": fdata.sampled_events.is_some(), "from_bolted": fdata.is_bolted, "functions": functions }));
    }
    let what = if fdata.sampled_events.is_some() { "samples" } else { "branches" };
    let mut text = format!(
        "fdata: {} records of {} {what} in {} functions\n",
        group((fdata.branches.len() + fdata.samples.len()) as u64),
        group(total),
        group(rows.len() as u64)
    );
    for (name, count) in rows.iter().take(top) {
        let _ = writeln!(text, "{:>16} {:>7}  {name}", group(*count), percent(*count, total));
    }
    print(&text)
}
