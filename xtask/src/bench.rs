//! `cargo xtask bench`: relift beside LLVM BOLT, on real programs, with the same profile.
//!
//! **Method.** Each program is linked with `--emit-relocs`. BOLT's own instrumentation and the training workload make one profile, which both tools
//! are given. Input and both outputs then do a second workload, which nobody was trained on: under valgrind, for what does not depend on the
//! machine, and by the clock, in turns (`time`). Either can be had alone (`--measure`): what was counted once is kept, and shown again as long as the binaries are the
//! same, so that time can be measured later, on a machine that does nothing else. Sizes, and the tools' own time and memory, are measured besides. relift is also given the
//! program stripped of symbols and relocations, with the same profile by address; BOLT refuses that.
//!
//! What is compared is in `report`; a case that is lost stays in the table.

mod judge;
mod programs;
mod report;
mod run;
mod time;
pub(crate) mod tools;
mod worth;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};

use crate::e2e;
use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Where the programs are built and the results kept; `target/corpus` if not given
    directory: Option<PathBuf>,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// What to measure: `time` alone on a quiet machine, `counts` (under valgrind, slow) on any
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Measured::Time, Measured::Counts])]
    measure: Vec<Measured>,
    /// Timed rounds
    #[arg(long, alias = "pairs", default_value_t = 15)]
    rounds: usize,
    /// Seconds that the input needs, at least, in a timed round: the workload is repeated until then
    #[arg(long, default_value_t = 0.5)]
    round_seconds: f64,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// The llvm-bolt program
    #[arg(long, default_value = "llvm-bolt-22")]
    bolt: String,
    /// BOLT's merge-fdata
    #[arg(long, default_value = "merge-fdata-22")]
    merge_fdata: String,
    /// Options for relift besides its defaults, as in `--relift-option=--skip=unroll-loops`
    #[arg(long = "relift-option")]
    relift_options: Vec<String>,
    /// Instead of the comparison with BOLT: what these transforms are worth beside layout alone
    #[arg(long, value_delimiter = ',', value_name = "TRANSFORMS")]
    worth: Vec<String>,
    /// Write the tables to FILE
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
enum Measured {
    /// How long input and outputs take.
    Time,
    /// What they execute, by valgrind.
    Counts,
}

/// Builds the program that runs another and writes down the time that it took.
fn build_timed(directory: &Path) -> Result<PathBuf> {
    let folder = directory.join("bench");
    shell::create_folder(&folder)?;
    let (source, program) = (folder.join("timed.c"), folder.join("timed"));
    shell::write_file(&source, include_bytes!("bench/timed.c"))?;
    shell::run(Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}

pub(crate) fn run(args: &BenchArgs) -> Result {
    let directory = args.directory.clone().unwrap_or_else(crate::corpus::default_directory);
    shell::create_folder(&directory)?;
    let absolute =
        |path: &PathBuf| std::path::absolute(path).map_err(|error| format!("cannot resolve {}: {error}", path.display()));
    let directory = absolute(&directory)?;
    for tool in ["valgrind", "bash", "strip", "time", "gcc", "timeout", args.bolt.as_str(), args.merge_fdata.as_str()] {
        if shell::find_program(tool).is_none() {
            return Err(format!("the suite needs {tool}: run `apt-get install valgrind time binutils gcc bolt-22`"));
        }
    }
    let relift = match &args.relift {
        Some(path) => absolute(path)?,
        None => e2e::build_relift()?,
    };
    let bench = run::Bench {
        relift,
        relift_options: args.relift_options.clone(),
        bolt: args.bolt.clone(),
        merge_fdata: args.merge_fdata.clone(),
        rounds: args.rounds,
        round_seconds: args.round_seconds,
        wants_time: args.measure.contains(&Measured::Time),
        wants_counts: args.measure.contains(&Measured::Counts),
        timed: build_timed(&directory)?,
        directory,
    };
    let is_wanted = |name: &str| args.programs.is_empty() || args.programs.iter().any(|wanted| wanted == name);
    let mut programs = programs::PROGRAMS.iter().filter(|program| is_wanted(program.name)).peekable();
    if programs.peek().is_none() {
        return Err(format!("the suite has none of these programs: {}", args.programs.join(", ")));
    }
    let (text, failures) = match args.worth.is_empty() {
        true => beside_bolt(&bench, programs),
        false => worth::run(&bench, programs, &args.worth),
    };
    let record = args.record.clone().unwrap_or_else(|| bench.directory.join("bench.md"));
    shell::write_file(&record, text.as_bytes())?;
    shell::say(&format!("\nwritten to {}", record.display()));
    if failures.is_empty() { Ok(()) } else { Err(format!("not measured: {}", failures.join("; "))) }
}

/// The comparison with BOLT: the tables, and what could not be measured.
fn beside_bolt<'a>(bench: &run::Bench, programs: impl Iterator<Item = &'a programs::Program>) -> (String, Vec<String>) {
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    for program in programs {
        match bench.row(program) {
            Ok(row) => {
                shell::say(&report::row(&row));
                rows.push(row);
            }
            Err(problem) => {
                shell::say(&format!("{}: {problem}", program.label()));
                failures.push(format!("{}: {problem}", program.label()));
            }
        }
    }
    (report::tables(&rows, bench, &failures), failures)
}
