//! llvm-bolt's options that are not mapped to anything of relift's, and why that is right.
//!
//! All that `llvm-bolt --help-hidden` lists in version 22 is here, but for what prints or dumps, which is told by its name, and what is for other processors, which
//! BOLT itself ignores on this one. An option's value is behind `=`; where BOLT demands one, it may be the next word instead.

use std::path::PathBuf;

use crate::failure::{Failure, Result};

/// What an option is to relift.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Relift always does it, or it has no effect on the output.
    Same,
    Ignored(&'static str),
}

/// Of an option that is not mapped: what it means, and whether its value may be the next word.
pub(super) fn meaning_of(name: &str) -> Option<(Meaning, bool)> {
    if SAME.contains(&name) {
        return Some((Meaning::Same, false));
    }
    if SAME_WITH_VALUE.contains(&name) {
        return Some((Meaning::Same, true));
    }
    for group in &IGNORED {
        let takes_value = group.with_value.contains(&name);
        if takes_value || group.alone.contains(&name) {
            return Some((Meaning::Ignored(group.why), takes_value));
        }
    }
    let is_for_developers = ["print-", "dump-", "dot-", "debug-", "time-", "report-"].iter().any(|start| name.starts_with(start));
    is_for_developers.then_some((Meaning::Ignored("what BOLT prints for its own developers has no counterpart"), false))
}

const SAME: [&str; 21] = [
    // The report always has them.
    "dyno-stats",
    // These name what BOLT must be told and relift finds out, or always does.
    "use-gnu-stack",
    "relocs",
    "allow-stripped",
    "force-data-relocations",
    "use-old-text",
    "no-huge-pages",
    "no-scan",
    "sequential-disassembly",
    "match-with-call-graph",
    "match-profile-with-function-hash",
    "infer-stale-profile",
    "infer-fall-throughs",
    "fix-block-counts",
    "fix-func-counts",
    "profile-ignore-hash",
    "keep-nops",
    "inline-ap",
    // Hot calls of small functions that use no stack become their bodies.
    "inline-small-functions",
    "strict",
    "q",
];

const SAME_WITH_VALUE: [&str; 3] = ["instrumentation-max-size", "runtime-instrumentation-lib", "tasks-per-thread"];

/// Options with one reason to be ignored.
struct Group {
    why: &'static str,
    /// These have no value, or one behind `=` only.
    alone: &'static [&'static str],
    with_value: &'static [&'static str],
}

const IGNORED: [Group; 12] = [
    Group {
        why: "debug information is brought up to date where it stands: indexes that the input has stay true, and none are added",
        alone: &["create-debug-names-section", "keep-aranges"],
        with_value: &["dwarf-output-path", "dwp", "comp-dir-override", "debug-thread-count", "cu-processing-batch-size"],
    },
    Group {
        why: "all processes count into one file, at once and without locks",
        alone: &["instrumentation-no-counters-clear", "instrumentation-wait-forks"],
        with_value: &["instrumentation-sleep-time", "instrumentation-binpath", "runtime-lib-init-hook"],
    },
    Group {
        why: "what is counted follows from the control-flow graph: the edges off a spanning tree, and the targets of indirect calls",
        alone: &["conservative-instrumentation", "instrument-calls", "instrument-hot-only"],
        with_value: &[],
    },
    Group {
        why: "what is not proven safe to move stays by itself, function by function",
        alone: &["fail-on-invalid-padding", "trap-old-code", "force-patch", "terminal-trap", "terminal-x86-hlt", "trap-avx512"],
        with_value: &["skip-funcs", "skip-funcs-file", "break-funcs", "max-data-relocations", "custom-allocation-vma"],
    },
    Group {
        why: "all functions are looked at; `--fuel N` of relift's own commands limits how many are changed",
        alone: &["lite"],
        with_value: &[
            "funcs",
            "funcs-file",
            "funcs-no-regex",
            "funcs-file-no-regex",
            "max-funcs",
            "lite-threshold-pct",
            "lite-threshold-count",
            "execution-count-threshold",
        ],
    },
    Group {
        why: "relift decides it by the profile",
        alone: &[
            "split-all-cold",
            "split-eh",
            "reorder-functions-use-hot-size",
            "align-blocks",
            "align-macro-fusion",
            "preserve-blocks-alignment",
            "min-branch-clusters",
            "cg-from-perf-data",
            "cg-ignore-recursive-calls",
            "cg-use-split-hot-size",
            "use-edge-counts",
            "use-compact-aligner",
            "hot-functions-at-end",
            "iterative-guess",
            "equalize-bb-counts",
            "x86-align-branch-boundary-hot-only",
            "profile-use-dfs",
            "profile-write-pseudo-probes",
        ],
        with_value: &[
            "split-strategy",
            "split-threshold",
            "split-align-threshold",
            "jump-tables",
            "tail-duplication",
            "align-text",
            "align-functions",
            "align-functions-max-bytes",
            "align-blocks-min-size",
            "align-blocks-threshold",
            "block-alignment",
            "cold-threshold",
            "tsp-threshold",
            "stale-threshold",
            "stale-matching-max-func-size",
            "stale-matching-min-matched-block",
            "name-similarity-function-matching-threshold",
            "sctc-mode",
            "pad-funcs",
            "pad-funcs-before",
            "bolt-seed",
        ],
    },
    Group {
        why: "functions are inlined where they are small and use no stack, and the call is hot",
        alone: &["inline-all"],
        with_value: &["inline-small-functions-bytes", "inline-limit", "inline-max-iters", "force-inline", "skip-inline"],
    },
    Group {
        why: "an order of functions from a file is not taken, and none is written",
        alone: &[],
        with_value: &[
            "function-order",
            "generate-function-order",
            "generate-link-sections",
            "reorder-symbols",
            "reorder-skip-symbols",
        ],
    },
    Group {
        why: "data never moves",
        alone: &["hot-data", "reorder-data-inplace", "jt-footprint-reduction", "jt-footprint-optimize-for-icache"],
        with_value: &["reorder-data", "reorder-data-algo", "reorder-data-max-bytes", "reorder-data-max-symbols"],
    },
    Group {
        why: "relift has no such transform",
        alone: &[
            "icp",
            "icp-eliminate-loads",
            "icp-inline",
            "icp-jt-targets",
            "icp-jump-tables-targets",
            "icp-old-code-sequence",
            "icp-use-mp",
            "indirect-call-promotion-use-mispredicts",
            "inline-memcpy",
            "simplify-rodata-loads",
            "simplify-conditional-tail-calls",
            "eliminate-unreachable",
            "group-stubs",
            "strip-rep-ret",
            "shorten-instructions",
            "stoke",
            "three-way-branch",
            "cmov-conversion",
            "reg-reassign",
            "use-aggr-reg-reassign",
            "frame-opt-rm-stores",
            "assume-abi",
            "hugify",
            "hot-text",
            "insert-retpolines",
            "retpoline-lfence",
            "elim-link-veneers",
            "x86-strip-redundant-address-size",
        ],
        with_value: &[
            "peepholes",
            "frame-opt",
            "shrink-wrapping-threshold",
            "indirect-call-promotion",
            "indirect-call-promotion-topn",
            "indirect-call-promotion-calls-topn",
            "indirect-call-promotion-jump-tables-topn",
            "indirect-call-promotion-mispredict-threshold",
            "icp-topn",
            "icp-calls-topn",
            "icp-jt-topn",
            "icp-mp-threshold",
            "icp-top-callsites",
            "icp-funcs",
            "icp-calls-remaining-percent-threshold",
            "icp-calls-total-percent-threshold",
            "icp-jt-remaining-percent-threshold",
            "icp-jt-total-percent-threshold",
            "memcpy1-spec",
            "hot-text-move-sections",
            "runtime-hugify-lib",
            "r11-availability",
        ],
    },
    Group {
        why: "`relift profile convert` and `relift perf2bolt` write profiles, `relift optimize --json` the whole report",
        alone: &[
            "aggregate-only",
            "enable-bat",
            "bolt-info",
            "remove-symtab",
            "keep-tmp",
            "check-encoding",
            "verify-cfg",
            "dyno-stats-all",
        ],
        with_value: &[
            "w",
            "profile-format",
            "bolt-id",
            "log-file",
            "dyno-stats-scale",
            "top-called-limit",
            "top-functions-for-profile-quality-check",
            "percentile-for-profile-quality-check",
            "debug-only",
        ],
    },
    Group {
        why: "every sample of this program counts, whichever process it is of",
        alone: &["ignore-build-id", "parse-mem-profile"],
        with_value: &["pid", "max-samples", "itrace"],
    },
];

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
    pub(super) fn number(&mut self, name: &str, value: Option<&'a str>) -> Result<usize> {
        let text = self.text(name, value)?;
        text.parse().map_err(|_| Failure::new(format!("{}: -{name} is not a number: {text}", self.program)))
    }
    /// Takes an option that is not mapped, and says on standard error that it is left out, and why.
    pub(super) fn leave_out(&mut self, name: &str, value: Option<&'a str>) -> Result<()> {
        let Some((meaning, takes_value)) = meaning_of(name) else {
            return Err(Failure::new(format!("{}: the option -{name} is not known", self.program)));
        };
        if takes_value {
            self.text(name, value)?;
        }
        if let Meaning::Ignored(why) = meaning {
            eprintln!("relift: {}: -{name} is ignored: {why}", self.program);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_has_one_meaning() {
        let ignored = IGNORED.iter().flat_map(|group| group.alone.iter().chain(group.with_value));
        let mut all: Vec<&str> = ignored.chain(&SAME).chain(&SAME_WITH_VALUE).copied().collect();
        let number = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), number);
    }

    #[test]
    fn a_value_may_be_the_next_word_only_where_bolt_demands_one() {
        assert!(matches!(meaning_of("frame-opt"), Some((Meaning::Ignored(_), true))));
        assert!(matches!(meaning_of("icp"), Some((Meaning::Ignored(_), false))));
        assert!(matches!(meaning_of("dyno-stats"), Some((Meaning::Same, false))));
        assert!(matches!(meaning_of("print-cfg"), Some((Meaning::Ignored(_), false))));
        assert_eq!(meaning_of("no-such-option"), None);
    }
}
