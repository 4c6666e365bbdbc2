//! `relift bolt`, `merge-fdata` and `perf2bolt`: the arguments of BOLT's programs, so that a build which knows them needs no change.
//!
//! What has a counterpart is mapped; what has none is named on standard error with the reason, and left out. An option that nobody knows is wrong usage,
//! as it is with BOLT. Options may have one hyphen or two, and their value behind `=` or as the next word.

pub(crate) mod door;
mod options;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{Style, instrument, optimize, print, profile};
use crate::args::{CloneMode, DebugInformation, Instrument, Optimize, Rewrite, Separate, TextFormat, Transform, Transforms};
use crate::failure::{Failure, Result};
use crate::timing::Timing;
use options::Words;

const HELP: &str = "\
Takes the arguments of BOLT's programs. What has a counterpart is done; what has none is named on standard error, with the reason.

  bolt INPUT -o OUTPUT [-data PROFILE] [-reorder-blocks=A] [-reorder-functions=A] [-split-functions] ...
  bolt INPUT -instrument -o OUTPUT [-instrumentation-file FILE] [-instrumentation-file-append-pid]
  merge-fdata PROFILES... [-o OUTPUT]
  perf2bolt -p PERF.DATA -o OUTPUT [-profile-format fdata|yaml] PROGRAM

A link to relift with the name llvm-bolt, merge-fdata or perf2bolt does the same. Relift's own options, such as --json, come before the command.
";

/// What llvm-bolt was asked for.
#[derive(Debug, Default)]
struct Request {
    input: Option<PathBuf>,
    output: Option<PathBuf>,
    profiles: Vec<PathBuf>,
    instrument: bool,
    instrumentation_file: Option<PathBuf>,
    append_pid: bool,
    reorder_blocks: bool,
    reorder_functions: bool,
    split_functions: bool,
    fold: bool,
    update_debug: bool,
    no_plt_calls: bool,
    no_inlining: bool,
    verbose: bool,
    time: bool,
    /// Nothing but this text is wanted.
    text: Option<String>,
}

pub(crate) fn run(arguments: &[String], style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let request = parse(arguments)?;
    if let Some(text) = request.text {
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let style = Style { verbose: style.verbose || request.verbose, time: style.time || request.time, ..style };
    let input = request.input.ok_or_else(|| Failure::new("bolt: no input is named"))?;
    let output = request.output.ok_or_else(|| Failure::new("bolt: no output is named").hint("name it with -o"))?;
    let debug = if request.update_debug { DebugInformation::Update } else { DebugInformation::Drop };
    let rewrite = Rewrite { input, output, verify: false, no_check: false, debug: Some(debug) };
    if request.instrument {
        let profile = instrumentation_file(request.instrumentation_file, request.append_pid);
        let done = instrument::run(&Instrument { rewrite, profile }, style, timing)?;
        if style.time {
            eprint!("{}", timing.to_text());
        }
        return Ok(done);
    }
    let switches = [
        (request.reorder_blocks, Transform::ReorderBlocks),
        (request.reorder_functions, Transform::ReorderFunctions),
        (request.split_functions, Transform::SplitFunctions),
        (request.fold, Transform::Fold),
        (!request.no_plt_calls, Transform::PltCalls),
        (!request.no_inlining, Transform::InlineLeaves),
    ];
    let skip = switches.into_iter().filter(|(is_on, _)| !is_on).map(|(_, transform)| transform).collect();
    let transforms = Transforms {
        only: Vec::new(),
        skip,
        more: Vec::new(),
        fuel: None,
        clone: CloneMode::None,
        clone_everywhere: false,
        clone_contexts: 0,
        clone_least: 1,
        edit_everywhere: false,
        assume: Vec::new(),
        without_contexts: false,
    };
    let args = Optimize {
        rewrite,
        separate: Separate::default(),
        profile: request.profiles,
        profile_binary: None,
        measure_by: Vec::new(),
        transforms,
        shuffle: None,
    };
    optimize::run(&args, style, timing)
}

/// How many threads BOLT's arguments ask for, if they do.
pub(crate) fn threads(arguments: &[String]) -> Option<usize> {
    let mut words = arguments.iter();
    let mut threads = None;
    while let Some(word) = words.next() {
        match options::split(word) {
            Some(("no-threads", None)) => threads = Some(1),
            Some(("thread-count", value)) => {
                threads = value.or_else(|| words.next().map(String::as_str)).and_then(|value| value.parse().ok());
            }
            _ => {}
        }
    }
    threads
}

/// The text that `-help` and `-version` print.
fn text_of(name: &str) -> Option<String> {
    match name {
        "h" | "help" | "help-hidden" | "help-list" | "help-list-hidden" => Some(HELP.to_owned()),
        "version" => {
            Some(format!("relift {}, which takes the arguments of LLVM BOLT 22's programs\n", env!("CARGO_PKG_VERSION")))
        }
        _ => None,
    }
}

/// BOLT's default, and its names where each process has a file of its own: here all processes count into one.
fn instrumentation_file(named: Option<PathBuf>, append_pid: bool) -> PathBuf {
    let file = named.unwrap_or_else(|| PathBuf::from("/tmp/prof.fdata"));
    if !append_pid {
        return file;
    }
    let mut name = file.into_os_string();
    name.push(".0.fdata");
    PathBuf::from(name)
}

fn parse(arguments: &[String]) -> Result<Request> {
    let mut request = Request::default();
    let mut words = Words::new("bolt", arguments);
    while let Some(word) = words.next() {
        let Some((name, value)) = options::split(word) else {
            if request.input.replace(PathBuf::from(word)).is_some() {
                return Err(Failure::new(format!("bolt: more than one input, the second: {word}")));
            }
            continue;
        };
        let is_on = !matches!(value, Some("0" | "false" | "none"));
        match name {
            "o" => request.output = Some(words.path(name, value)?),
            "data" | "b" | "p" | "perfdata" => request.profiles.push(words.path(name, value)?),
            "instrument" => request.instrument = is_on,
            "instrumentation-file" => request.instrumentation_file = Some(words.path(name, value)?),
            "instrumentation-file-append-pid" => request.append_pid = is_on,
            "reorder-blocks" => request.reorder_blocks = words.text(name, value)? != "none",
            "reorder-functions" => request.reorder_functions = words.text(name, value)? != "none",
            "split-functions" => request.split_functions = is_on,
            "update-debug-sections" => request.update_debug = is_on,
            // Alone it means all; what BOLT calls safe relift always is.
            // Alone it means all; what BOLT calls safe relift always is.
            "icf" => request.fold = is_on,
            "plt" => request.no_plt_calls = words.text(name, value)? == "none",
            "no-inline" => request.no_inlining = is_on,
            // `threads` has seen them.
            "thread-count" => drop(words.number(name, value)?),
            "no-threads" => {}
            "v" => request.verbose = words.number(name, value)? > 0,
            "time-opts" | "time-build" | "time-rewrite" => request.time = is_on,
            _ => match text_of(name) {
                Some(text) => request.text = Some(text),
                None => words.leave_out(name, value)?,
            },
        }
    }
    Ok(request)
}

/// `merge-fdata FILES… [-o OUTPUT]`, to standard output without one.
pub(crate) fn merge_fdata(arguments: &[String], timing: &mut Timing) -> Result<ExitCode> {
    use std::io::Write;
    let mut inputs = Vec::new();
    let mut output = None;
    let mut words = Words::new("merge-fdata", arguments);
    while let Some(word) = words.next() {
        match options::split(word) {
            None => inputs.push(PathBuf::from(word)),
            Some(("o", value)) => output = Some(words.path("o", value)?),
            Some((name, value)) => match text_of(name) {
                Some(text) => {
                    print(&text)?;
                    return Ok(ExitCode::SUCCESS);
                }
                None => words.leave_out(name, value)?,
            },
        }
    }
    if inputs.is_empty() {
        return Err(Failure::new("merge-fdata: no input is named"));
    }
    let bytes = profile::merged(&inputs, timing.progress())?;
    match output {
        Some(output) => crate::files::Draft::write(&output, &bytes, &inputs[0])?.put_in_place()?,
        None => std::io::stdout()
            .lock()
            .write_all(&bytes)
            .map_err(|e| Failure::new(format!("can't write to standard output: {e}")))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// `perf2bolt -p PERF.DATA -o OUTPUT PROGRAM`.
pub(crate) fn perf2bolt(arguments: &[String], timing: &mut Timing) -> Result<ExitCode> {
    let (mut input, mut output, mut yaml) = (None::<PathBuf>, None::<PathBuf>, None::<PathBuf>);
    let mut profiles = Vec::new();
    let mut format = TextFormat::Fdata;
    let mut words = Words::new("perf2bolt", arguments);
    while let Some(word) = words.next() {
        let Some((name, value)) = options::split(word) else {
            input = Some(PathBuf::from(word));
            continue;
        };
        match name {
            "o" => output = Some(words.path(name, value)?),
            "p" | "perfdata" => profiles.push(words.path(name, value)?),
            "w" => yaml = Some(words.path(name, value)?),
            "profile-format" => format = if words.text(name, value)? == "yaml" { TextFormat::Yaml } else { TextFormat::Fdata },
            // The file says itself what it is.
            "nl" | "ba" | "basic-events" | "pa" | "aggregate-only" => {}
            "thread-count" => drop(words.number(name, value)?),
            "v" => drop(words.number(name, value)?),
            "no-threads" | "time-aggr" => {}
            _ => match text_of(name) {
                Some(text) => {
                    print(&text)?;
                    return Ok(ExitCode::SUCCESS);
                }
                None => words.leave_out(name, value)?,
            },
        }
    }
    let input: &Path = input.as_deref().ok_or_else(|| Failure::new("perf2bolt: no program is named"))?;
    if profiles.is_empty() || (output.is_none() && yaml.is_none()) {
        return Err(Failure::new("perf2bolt: a profile (-p) and an output (-o) are needed"));
    }
    if let Some(output) = output {
        profile::convert(&profiles, None, &output, format, input, timing)?;
    }
    if let Some(yaml) = yaml {
        profile::convert(&profiles, None, &yaml, TextFormat::Yaml, input, timing)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_arguments_of_cpythons_build_are_understood() {
        let request = parse(&words(
            "python.prebolt -o python.bolt -data=python.fdata -update-debug-sections -skip-funcs=_PyEval_EvalFrameDefault \
             -reorder-blocks=ext-tsp -reorder-functions=cdsort -split-functions -icf=1 -inline-all -split-eh \
             -reorder-functions-use-hot-size -peepholes=none -jump-tables=aggressive -inline-ap -indirect-call-promotion=all \
             -dyno-stats -use-gnu-stack -frame-opt=hot",
        ))
        .unwrap();
        assert_eq!(request.input.as_deref(), Some(Path::new("python.prebolt")));
        assert_eq!(request.output.as_deref(), Some(Path::new("python.bolt")));
        assert_eq!(request.profiles, [PathBuf::from("python.fdata")]);
        assert!(request.reorder_blocks && request.reorder_functions && request.split_functions && request.fold);
        assert!(!parse(&words("python -o out -icf=none")).unwrap().fold);
    }

    #[test]
    fn instrumenting_with_a_file_for_each_process_names_one_that_the_same_pattern_finds() {
        let request =
            parse(&words("python -instrument --instrumentation-file-append-pid -instrumentation-file=python.bolt -o out"))
                .unwrap();
        assert!(request.instrument);
        let file = instrumentation_file(request.instrumentation_file, request.append_pid);
        assert_eq!(file, Path::new("python.bolt.0.fdata"));
    }

    #[test]
    fn what_relift_does_by_default_is_left_out_where_bolt_is_told_so() {
        let request = parse(&words("a -o b -plt=none -no-inline")).unwrap();
        assert!(request.no_plt_calls && request.no_inlining);
        let request = parse(&words("a -o b -plt hot -inline-small-functions")).unwrap();
        assert!(!request.no_plt_calls && !request.no_inlining);
        assert_eq!(request.input.as_deref(), Some(Path::new("a")));
    }

    #[test]
    fn an_unknown_option_is_wrong() {
        assert!(parse(&words("a -o b -no-such-option")).is_err());
        assert!(parse(&words("a -o")).is_err());
    }
}
