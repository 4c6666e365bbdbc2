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

use failure::{Failure, Result};

fn main() -> ExitCode {
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
    share_memory(threads);
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build_global()
        .map_err(|e| Failure::new(format!("can't start {threads} threads: {e}")))?;
    commands::run(cli)
}

/// Lets four threads share what the allocator keeps for the next request. By default each thread has memory of its own, where what one phase has freed is of no use to the
/// next one on another thread: with two threads that is 10 % of the peak memory (CPython 121 to 109 MB, ripgrep 112 to 99 MB), at the same processor time.
#[cfg(target_env = "gnu")]
fn share_memory(threads: usize) {
    let threads = if threads > 0 { threads } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let arenas = libc::c_int::try_from(threads.div_ceil(4)).unwrap_or(libc::c_int::MAX);
    // SAFETY: a number is set in the allocator, before there is another thread. Where it is not taken, all stays as it was.
    #[expect(unsafe_code)]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, arenas);
    }
}

#[cfg(not(target_env = "gnu"))]
fn share_memory(_: usize) {}
