//! The command line: exit status 0 done, 1 refused or failed with one line that says why, 2 wrong usage.

#![expect(clippy::print_stderr, reason = "warnings and refusals go to standard error; this is the command line")]

mod args;
mod commands;
mod driver;
mod failure;
mod files;
mod memory;
mod progress;
mod report;
mod timing;

use std::process::ExitCode;

use failure::{Failure, Result};

fn main() -> ExitCode {
    memory::fix_thresholds();
    match run() {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("relift: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let cli = commands::parse(std::env::args_os().collect())?;
    let threads = commands::threads(&cli);
    memory::limit_heaps(threads);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|e| Failure::new(format!("can't start {threads} threads: {e}")))?;
    commands::run(cli)
}
