//! Debug information of optimized programs: the checker, which reads both files and knows nothing of the producer, finds that debuggers are told the same.

mod support;

use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{compile, installed, relift, relift_succeeds, repository, run, skipped};

/// Programs with functions that are split, inlined calls, loops, switches, ways that seldom run, and exceptions.
const PROGRAMS: [(&str, &str); 4] = [("cold_paths", "c"), ("early_saves", "c"), ("small_leaves", "c"), ("cpp_exceptions", "cc")];

/// What is done to them: all code is put elsewhere, in other parts.
const WAYS: [&[&str]; 2] = [&["--shuffle", "7"], &["--shuffle", "8"]];

fn compilers(language: &str) -> impl Iterator<Item = &'static str> {
    let all = if language == "c" { ["gcc", "clang"] } else { ["g++", "clang++"] };
    all.into_iter().filter(|compiler| {
        let is_there = installed(compiler);
        if !is_there {
            skipped(&format!("debug information by {compiler}: it is not installed"));
        }
        is_there
    })
}

/// A program, optimized, and what `relift check` says of the debug information of both.
fn told(input: &Path, options: &[&str], folder: &Path) -> Value {
    let output = folder.join("output");
    let mut command = relift();
    relift_succeeds(command.args(["optimize", "--verify"]).args(options).arg(input).arg("-o").arg(&output), folder);
    let said = run(relift().args(["check", "--json"]).arg(input).arg(&output), folder);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    assert_eq!(report["violations"].as_array().map(Vec::len), Some(0), "{report:#}");
    report["debug"].clone()
}

fn program(name: &str, language: &str, compiler: &str, flags: &[&str], folder: &Path) -> PathBuf {
    let source = repository(&format!("fixtures/programs/{name}/{name}.{language}"));
    let input = folder.join("input");
    compile(compiler, flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    input
}

#[test]
fn debuggers_are_told_the_same_of_an_optimized_program() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for (name, language) in PROGRAMS {
        for compiler in compilers(language) {
            for version in ["-gdwarf-4", "-gdwarf-5"] {
                let input = program(name, language, compiler, &["-O2", "-g", version, "-w"], folder.path());
                for options in WAYS {
                    let debug = told(&input, options, folder.path());
                    let what = format!("{name} {compiler} {version} {options:?}");
                    assert!(debug["compared"].as_u64() > Some(100), "{what}: {debug:#}");
                    assert_eq!(debug["different"], 0, "{what}: {debug:#}");
                }
            }
        }
    }
}

/// The linker leaves out a function whose entries are of the same form as those of one that comes in pieces.
#[test]
fn what_the_linker_left_out_is_nowhere_as_before() {
    const TEXT: &str = "#include <stdio.h>\nstatic volatile int sum;\n\
        static inline __attribute__((always_inline)) int each(int x) { do { sum += x; x -= 3; } while (x > 0 && sum != 1234); return x * 3; }\n\
        int left_out(int x) { return each(x + 1) + 1; }\n\
        __attribute__((noinline)) int kept(int x) { return each(x) + 2; }\n\
        int main(int count, char **words) { (void)words; return kept(count) + kept(count + 20) + kept(-7 * count); }\n";
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (source, input) = (folder.path().join("input.c"), folder.path().join("input"));
    std::fs::write(&source, TEXT).expect("the scratch folder can be written");
    for compiler in compilers("c") {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            let flags = ["-O1", "-g", version, "-ffunction-sections", "-Wl,--gc-sections"];
            compile(compiler, &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
            for options in WAYS {
                let debug = told(&input, options, folder.path());
                assert_eq!(debug["different"], 0, "{compiler} {version} {options:?}: {debug:#}");
            }
        }
    }
}

/// Where functions begin with `endbr64` their addresses are named as those of what follows.
#[test]
fn debuggers_are_told_the_same_where_marks_of_tracking_go() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for (name, language) in PROGRAMS.into_iter().chain([("qsort_callbacks", "c")]) {
        for compiler in compilers(language) {
            for flags in [["-O2", "-fcf-protection=full"], ["-O0", "-fcf-protection=branch"]] {
                let input = program(name, language, compiler, &[&flags[..], &["-g", "-w"]].concat(), folder.path());
                for options in WAYS.into_iter().chain([&[][..]]) {
                    let debug = told(&input, options, folder.path());
                    assert_eq!(debug["different"], 0, "{name} {compiler} {flags:?} {options:?}: {debug:#}");
                }
            }
        }
    }
}

#[test]
fn debuggers_are_told_the_same_of_a_trained_program_with_all_edits() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let here = folder.path();
    for (name, language) in PROGRAMS {
        for compiler in compilers(language) {
            let input = program(name, language, compiler, &["-O2", "-g", "-w"], here);
            let output = here.join("output");
            let mut train = relift();
            train.args(["train", "--edit-everywhere"]).arg(&input).arg("-o").arg(&output).args(["--", "{}"]);
            relift_succeeds(&mut train, here);
            let said = run(relift().args(["check", "--json"]).arg(&input).arg(&output), here);
            let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
            assert!(report["debug"]["compared"].as_u64() > Some(100), "{name} {compiler}: {report:#}");
            assert_eq!(report["debug"]["different"], 0, "{name} {compiler}: {report:#}");
        }
    }
}

#[test]
fn a_breakpoint_and_a_backtrace_in_gdb_are_those_of_the_original() {
    if !installed("gdb") {
        return skipped("gdb's backtraces: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let here = folder.path();
    for compiler in compilers("c++") {
        let input = program("cpp_exceptions", "cc", compiler, &["-O2", "-g", "-w"], here);
        let output = here.join("output");
        relift_succeeds(relift().args(["optimize", "--shuffle", "7"]).arg(&input).arg("-o").arg(&output), here);
        let frames = |file: &Path| -> Vec<String> {
            let mut gdb = std::process::Command::new("gdb");
            gdb.args(["-q", "-batch", "-nx", "-ex", "catch throw", "-ex", "run", "-ex", "bt"]).arg(file);
            let text = String::from_utf8_lossy(&run(&mut gdb, here).stdout).into_owned();
            let places =
                text.lines().filter(|line| line.starts_with('#')).filter_map(|line| Some(line.rsplit_once(" at ")?.1.to_owned()));
            places.collect()
        };
        let wanted = frames(&input);
        assert!(wanted.len() > 1, "gdb names files and lines of the frames: {wanted:?}");
        assert_eq!(frames(&output), wanted, "{compiler}");
    }
}

#[test]
fn debug_information_that_lies_in_other_files_is_left_out_with_the_reason() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let here = folder.path();
    let input = program("cold_paths", "c", "gcc", &["-O2", "-g", "-gsplit-dwarf", "-w"], here);
    let output = here.join("output");
    let said = run(relift().args(["optimize", "--shuffle", "7"]).arg(&input).arg("-o").arg(&output), here);
    let warnings = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(output.is_file() && warnings.contains("debug information is left out"), "{warnings}");
    assert!(warnings.contains("keeps it in another file"), "{warnings}");
}

#[test]
fn compressed_debug_information_is_brought_up_to_date() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in compilers("c") {
        let flags = ["-O2", "-g", "-gz=zlib", "-w"];
        let input = program("cold_paths", "c", compiler, &flags, folder.path());
        let debug = told(&input, WAYS[0], folder.path());
        assert!(debug["compared"].as_u64() > Some(100), "{compiler}: {debug:#}");
        assert_eq!(debug["different"], 0, "{compiler}: {debug:#}");
    }
}

#[test]
fn nothing_is_told_where_debug_information_is_dropped() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in compilers("c") {
        let input = program("cold_paths", "c", compiler, &["-O2", "-g", "-w"], folder.path());
        assert_eq!(told(&input, &["--debug", "drop", "--shuffle", "7"], folder.path()), Value::Null);
    }
}
