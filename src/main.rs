//! The command line: exit status 0 done, 1 refused or failed with one line that says why, 2 wrong usage.

#![expect(clippy::print_stderr, reason = "warnings and refusals go to standard error; this is the command line")]

mod args;
mod commands;
mod driver;
mod failure;
mod files;
mod progress;
mod report;
mod timing;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = args::Cli::parse();
    if let Err(e) = rayon::ThreadPoolBuilder::new().num_threads(cli.threads).build_global() {
        eprintln!("relift: can't start {} threads: {e}", cli.threads);
        return ExitCode::FAILURE;
    }
    match commands::run(cli) {
        Ok(status) => status,
        Err(failure) => {
            eprintln!("relift: {failure}");
            ExitCode::FAILURE
        }
    }
}
