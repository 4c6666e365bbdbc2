//! `cargo xtask truth`: how right lifting is, on whole programs whose linker kept what it knew.
//!
//! **Method.** Every program is built with `--emit-relocs`, by several compilers, at several levels, position-independent and not (see `build`). Each is
//! lifted in three ways: with its relocations, without them, and stripped of symbols too. What was lifted is compared with the
//! relocations and the symbols of the file as it was built (`lifter::ground_truth`). The table has a row for each program and way; what is
//! wrong is also named by file and address. This is the one command here that links the lifter: `relift` does not print what it took for a reference.

mod build;
mod judge;
mod programs;
mod report;

use std::path::{Path, PathBuf};

use clap::Args;
use lifter::address::Va;

use crate::shell::{self, Result};
use judge::Verdict;

#[derive(Debug, Args)]
pub(crate) struct TruthArgs {
    /// Where programs are built, as PROGRAM/VARIANT/PROGRAM; target/truth if not given
    directory: Option<PathBuf>,
    /// Only this program (may be repeated)
    #[arg(long = "program")]
    programs: Vec<String>,
    /// Compare what is there; build nothing
    #[arg(long)]
    no_build: bool,
    /// Programs compared at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Write the table to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: &TruthArgs) -> Result {
    let directory = args.directory.clone().unwrap_or_else(|| crate::repository_root().join("target/truth"));
    shell::create_folder(&directory)?;
    let directory =
        std::path::absolute(&directory).map_err(|error| format!("cannot resolve {}: {error}", directory.display()))?;
    let is_wanted = |name: &str| args.programs.is_empty() || args.programs.iter().any(|p| p == name);
    if !args.no_build {
        build::all(&directory, &is_wanted)?;
    }
    let files = built_files(&directory, &is_wanted)?;
    if files.is_empty() {
        return Err(format!("no program is in {}", directory.display()));
    }
    let verdicts = judge_all(&files, args.jobs.max(1));
    let text = report::text(&verdicts);
    shell::say(&text);
    if let Some(record) = &args.record {
        shell::write_file(record, text.as_bytes())?;
    }
    let wrong = verdicts.iter().filter(|v| !v.is_right()).count();
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} of {} comparisons show something wrong", verdicts.len())) }
}

/// A built program.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) program: String,
    pub(crate) variant: String,
    pub(crate) path: PathBuf,
}

/// What is wrong with the lifting of one file.
#[derive(Debug)]
pub(crate) struct Judged {
    /// A line each; none if all is right.
    pub(crate) wrong: Vec<String>,
    /// `(word, size)` of table targets that never lead anywhere, if the lifter's proofs are right. Ascending.
    pub(crate) idle_entries: Vec<(Va, u8)>,
}

pub(crate) fn judge_file(file: &Built) -> Judged {
    let verdicts = judge::judge(file);
    let mut idle_entries: Vec<(Va, u8)> = verdicts.iter().flat_map(|v| v.idle_entries().iter().copied()).collect();
    idle_entries.sort();
    idle_entries.dedup();
    Judged { wrong: verdicts.iter().flat_map(Verdict::wrong_lines).collect(), idle_entries }
}

fn built_files(directory: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result<Vec<Built>> {
    let mut files = Vec::new();
    let name_of = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    for folder in shell::sorted_entries(directory)?.into_iter().filter(|path| path.is_dir()) {
        let program = name_of(&folder);
        if !is_wanted(&program) {
            continue;
        }
        for variant in shell::sorted_entries(&folder)?.into_iter().filter(|path| path.is_dir()) {
            let path = variant.join(&program);
            if path.is_file() {
                files.push(Built { program: program.clone(), variant: name_of(&variant), path });
            }
        }
    }
    Ok(files)
}

/// The verdicts on all files, in their order.
fn judge_all(files: &[Built], jobs: usize) -> Vec<Verdict> {
    let verdicts = shell::in_parallel(files, jobs, |_, _, file| {
        let found = judge::judge(file);
        found.iter().flat_map(Verdict::complaints).for_each(|complaint| shell::say(&complaint));
        found
    });
    verdicts.into_iter().flatten().collect()
}
