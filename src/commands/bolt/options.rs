//! llvm-bolt's options that have no counterpart, and why that is right.

use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// What an option is to relift.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Relift always does it, or it has no effect on the output.
    Same,
    Ignored(&'static str),
    /// A value follows as a word of its own if it is not behind `=`.
    IgnoredWithValue(&'static str),
}

pub(super) fn meaning_of(name: &str) -> Option<Meaning> {
    use Meaning::{Ignored, IgnoredWithValue, Same};
    const SHARED: &str = "all processes count into one file, at once and without locks";
    const NOT_DONE: &str = "relift has no such transform";
    const OWN: &str = "relift decides it by itself";
    Some(match name {
        "dyno-stats" | "use-gnu-stack" | "relocs" | "enable-bat" | "lite" | "no-threads" | "time-opts" | "time-build" | "v" => {
            Same
        }
        "update-debug-sections" => {
            Ignored("line tables and debugging information are not rewritten; what describes the old code is named in a warning")
        }
        "instrumentation-sleep-time" | "instrumentation-no-counters-clear" | "instrumentation-wait-forks" => Ignored(SHARED),
        "conservative-instrumentation" | "instrument-calls" | "instrument-hot-only" => Ignored(OWN),
        "icf" => Ignored(NOT_DONE),
        "plt" | "peepholes" | "hugify" | "hot-text" | "hot-data" | "indirect-call-promotion" | "frame-opt" | "reg-reassign" => {
            Ignored(NOT_DONE)
        }
        "inline-all" | "inline-ap" | "inline-small-functions" | "inline-memcpy" | "simplify-rodata-loads" => Ignored(NOT_DONE),
        "tail-duplication" | "three-way-branch" | "cmov-conversion" | "stoke" | "sctc-mode" | "memcpy1-spec" => Ignored(OWN),
        "split-all-cold" | "split-eh" | "split-strategy" | "split-threshold" | "split-align-threshold" => Ignored(OWN),
        "jump-tables" | "align-functions" | "align-blocks" | "align-macro-fusion" | "preserve-blocks-alignment" => Ignored(OWN),
        "reorder-functions-use-hot-size" | "reorder-data" | "group-stubs" | "eliminate-unreachable" | "strip-rep-ret" => {
            Ignored(OWN)
        }
        "skip-funcs" | "skip-funcs-file" => Ignored("what is not proven safe to move is pinned, function by function"),
        "profile-ignore-hash" | "infer-stale-profile" | "profile-use-dfs" | "min-branch-clusters" | "trap-old-code" => {
            Ignored(OWN)
        }
        "allow-stripped" | "force-data-relocations" | "keep-nops" | "match-with-call-graph" | "print-profile-stats" => Same,
        "thread-count" => IgnoredWithValue("use relift's own --threads"),
        "w" | "boltdbg" | "funcs" | "funcs-file" | "max-funcs" | "reorder-skip-symbols" => IgnoredWithValue(NOT_DONE),
        _ => return None,
    })
}

/// An option as its name and the value behind `=`; `None` for what is not an option.
pub(super) fn split(word: &str) -> Option<(&str, Option<&str>)> {
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|name| !name.is_empty())?;
    Some(match name.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (name, None),
    })
}

/// The words of a command line, one behind the other.
pub(super) struct Words<'a> {
    program: &'static str,
    rest: std::slice::Iter<'a, String>,
}

impl<'a> Words<'a> {
    pub(super) fn new(program: &'static str, arguments: &'a [String]) -> Self {
        Words { program, rest: arguments.iter() }
    }
    pub(super) fn next(&mut self) -> Option<&'a str> {
        self.rest.next().map(String::as_str)
    }
    /// An option's value: behind `=`, or the next word.
    pub(super) fn text(&mut self, name: &str, value: Option<&'a str>) -> Result<&'a str> {
        let value = value.or_else(|| self.next());
        value.ok_or_else(|| Failure::new(format!("{}: -{name} needs a value", self.program)))
    }
    pub(super) fn path(&mut self, name: &str, value: Option<&'a str>) -> Result<PathBuf> {
        self.text(name, value).map(PathBuf::from)
    }
}
