//! `cargo xtask alias-trace PROGRAM ARGS…`: the alias analysis against what a program really does.
//!
//! **Method.** The program runs under `valgrind --tool=lackey --trace-mem=yes`, a tracer that is not ours. Its trace, which names every instruction executed and every
//! address loaded and stored, is read through a pipe and never kept. A shadow call stack (`follow`) tells which execution of which block in which
//! calling context each access belongs to. At the end of each execution of a block, every pair of its references that the analysis calls `NoAlias`
//! in that context must have touched different bytes, and every `MustAlias` pair the same address. Where an address is described relative to something
//! that the trace shows (the frame, the load address, zero), it must be among those described.
//!
//! **Output.** How many pairs were checked; each contradiction with its place, reason and addresses; and how precise the analysis is: of the pairs that never overlapped
//! in the whole run, how many each analysis proves apart, by pairs and by executions.

mod facts;
mod follow;
mod report;
mod trace;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use analysis::engine::{Contexts, Summaries};
use analysis::partition::Partition;
use analysis::values::Surroundings;
use clap::Args;
use lifter::Image;
use lifter::elf::Unwind;

use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct AliasTraceArgs {
    /// The program, without setuid and not a script
    program: PathBuf,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Read the program's standard input from this file
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// Run in this folder
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Stop after so many instructions of the program itself
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    limit: u64,
    /// Add a row to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

impl AliasTraceArgs {
    /// A program without arguments.
    pub(crate) fn of(program: PathBuf, record: Option<PathBuf>) -> Self {
        AliasTraceArgs { program, arguments: Vec::new(), stdin: None, directory: None, limit: u64::MAX, record }
    }
}

pub(crate) fn run(args: &AliasTraceArgs) -> Result {
    let bytes = std::fs::read(&args.program).map_err(|error| format!("cannot read {}: {error}", args.program.display()))?;
    let refuse = |error: lifter::Error| format!("{}: {error}", args.program.display());
    let image = Image::parse(&bytes).map_err(refuse)?;
    let unwind = Unwind::parse(&image).map_err(refuse)?;
    let program = lifter::lift(&image, unwind).map_err(refuse)?;
    let summaries = Summaries::compute(Surroundings::new(&image, &program));
    let count = summaries.around.procedures.all.len();
    let insensitive = Contexts::compute(&summaries, Partition::insensitive(&summaries.graph, count));
    let standard = Contexts::compute(&summaries, Partition::standard(&summaries.graph, count));
    let facts = facts::Facts::new(&insensitive, &standard);
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let pipe = folder.path().join("trace");
    shell::run(Command::new("mkfifo").arg(&pipe))?;
    let mut child = start(args, &pipe)?;
    let mut follower = follow::Follower::new(&image, &program, facts);
    let outcome = trace::read(&pipe, args.limit, &mut follower);
    // The reader may have had enough before the program was done.
    if outcome.as_ref().is_ok_and(|is_whole| *is_whole) {
        child.wait().map_err(|error| format!("cannot wait for valgrind: {error}"))?;
    } else {
        let _ = child.kill();
        let _ = child.wait();
    }
    outcome?;
    let name = args.program.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let found = follower.finish();
    let text = report::text(&name, &found);
    shell::say(&text);
    if let Some(record) = &args.record {
        report::append(record, &name, &found)?;
    }
    match found.contradictions.len() {
        0 => Ok(()),
        number => Err(format!("{number} kinds of contradictions")),
    }
}

fn start(args: &AliasTraceArgs, pipe: &Path) -> Result<Child> {
    let program = std::path::absolute(&args.program).map_err(|error| format!("cannot resolve the program: {error}"))?;
    let mut command = Command::new("valgrind");
    command.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"]);
    command.arg(format!("--log-file={}", pipe.display())).arg(program).args(&args.arguments);
    if let Some(directory) = &args.directory {
        command.current_dir(directory);
    }
    let stdin = match &args.stdin {
        Some(path) => std::fs::File::open(path).map_err(|error| format!("cannot open {}: {error}", path.display()))?.into(),
        None => Stdio::null(),
    };
    command.stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().map_err(|error| format!("cannot start valgrind: {error}"))
}
