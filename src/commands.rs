//! One module a command: from what was typed to what is printed.

mod analyze;
mod bolt;
mod check;
mod demo;
mod diff;
mod inspect;
mod instrument;
mod optimize;
mod profile;
mod separate;
mod shrink;
mod train;

use lifter::lift::Undescribed;
use std::process::ExitCode;

pub(crate) use bolt::door::parse;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::timing::Timing;

/// How results are to be printed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Style {
    pub(crate) json: bool,
    pub(crate) time: bool,
    pub(crate) verbose: bool,
}

/// More only take longer to start; a hundred thousand bring a machine to a halt.
const THREADS_MAX: usize = 512;

/// How many threads to use; 0 for one per processor.
pub(crate) fn threads(cli: &Cli) -> usize {
    let wanted = match &cli.command {
        Command::Bolt(args) if cli.threads == 0 => bolt::threads(&args.arguments).unwrap_or(0),
        _ => cli.threads,
    };
    wanted.min(THREADS_MAX)
}

pub(crate) fn run(cli: Cli) -> Result<ExitCode> {
    let style = Style { json: cli.json, time: cli.time, verbose: cli.verbose };
    let mut timing = Timing::new(Progress::on_terminal(num_phases(&cli.command)));
    let has_report = has_report(&cli.command);
    let result = match cli.command {
        Command::Train(args) => train::run(&args, style, &mut timing),
        Command::Optimize(args) => optimize::run(&args, style, &mut timing),
        Command::Shrink(args) => shrink::run(&args, style, &mut timing),
        Command::Instrument(args) => instrument::run(&args, style, &mut timing),
        Command::Profile { command } => profile::run(&command, style, &mut timing),
        Command::Analyze(args) => analyze::run(&args, style, &mut timing),
        Command::Inspect(args) => inspect::run(&args, style, &mut timing),
        Command::Check(args) => check::run(&args, style, &mut timing),
        Command::Diff(args) => diff::run(&args, style),
        Command::Bolt(args) => bolt::run(&args.arguments, style, &mut timing),
        Command::MergeFdata(args) => bolt::merge_fdata(&args.arguments, &mut timing),
        Command::Perf2bolt(args) => bolt::perf2bolt(&args.arguments, &mut timing),
        Command::Demo(args) => demo::run(&args, style, &mut timing),
    };
    timing.finish();
    if style.time && !has_report {
        eprint!("{}", timing.to_text());
    }
    result
}

/// Whether what a command prints at the end says where the time went, if that is asked for.
fn has_report(command: &Command) -> bool {
    matches!(command, Command::Train(_) | Command::Optimize(_) | Command::Shrink(_) | Command::Bolt(_) | Command::Demo(_))
}

/// About how many phases a command has; only the progress bar goes by it.
fn num_phases(command: &Command) -> u64 {
    match command {
        Command::Train(_) | Command::Demo(_) => 24,
        Command::Optimize(_) | Command::Shrink(_) | Command::Instrument(_) | Command::Bolt(_) => 12,
        Command::Analyze(_) => 8,
        Command::Inspect(_) | Command::Perf2bolt(_) => 5,
        Command::Profile { .. } | Command::MergeFdata(_) | Command::Check(_) | Command::Diff(_) => 1,
    }
}

/// Prints a text. A reader that has seen enough (`| head`) is no failure.
fn print(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Failure::new(format!("can't write to standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Prints a serializable value.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::new(format!("can't print JSON: {e}")))?;
    print(&(text + "\n"))
}

/// What less is done where less is believed of code without unwind entries.
fn less_of(undescribed: Undescribed) -> Option<&'static str> {
    match undescribed {
        Undescribed::Sought => None,
        Undescribed::Doubted => Some("what may be named by code that nothing reaches stays as it is"),
        Undescribed::Stays => Some("code without unwind entries stays as it is"),
    }
}
