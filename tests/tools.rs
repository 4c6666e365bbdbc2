//! The tools that people use on programs work on relinked ones: `strip`, `nm`, `objdump`, `gdb`.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, installed, relift, relift_succeeds, repository, run, skipped};

/// A program with jump tables that are copied, calls several deep, and a place to stop in.
const DEEP: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int stops;
__attribute__((noinline)) void stop_here(int depth) { stops += depth; }
__attribute__((noinline)) int pick(int kind, int value) {
    switch (kind & 7) {
    case 0: return value + 1;
    case 1: return value * 3;
    case 2: return value ^ 0x55;
    case 3: printf("three\n"); return value;
    case 4: return value - 7;
    case 5: return abs(value);
    case 6: return value << 2;
    default: __builtin_unreachable();
    }
}
__attribute__((noinline)) int inner(int n) { stop_here(n); return pick(n % 7, n) + 1; }
__attribute__((noinline)) int middle(int n) { int sum = 0; for (int i = 0; i < n; i++) sum += inner(i) * 2; return sum; }
__attribute__((noinline)) int outer(int n) { return n > 100 ? -1 : middle(n) + 3; }
int main(int argc, char **argv) { (void)argv; printf("%d\n", outer(20 + argc)); return 42; }
"#;

/// The program and three shuffled forms of it; the last has an overflow segment, which has to survive every tool.
fn originals_and_shuffled(folder: &Path) -> (PathBuf, Vec<PathBuf>) {
    compiled_and_shuffled(folder, "deep", &["-O2", "-fPIE", "-pie", "-g"])
}

fn compiled_and_shuffled(folder: &Path, name: &str, flags: &[&str]) -> (PathBuf, Vec<PathBuf>) {
    let original = support::compile_text(DEEP, flags, folder, name);
    let shuffled = ["1", "2", "3"].map(|seed| {
        let output = folder.join(format!("{name}.shuffled{seed}"));
        relift_succeeds(relift().args(["optimize", "--verify", "--shuffle", seed]).arg(&original).arg("-o").arg(&output), folder);
        output
    });
    (original, shuffled.to_vec())
}

fn output_of(program: &Path, folder: &Path) -> (End, String) {
    let ran = run(&mut Command::new(program), folder);
    (ran.end, ran.stdout_text())
}

#[test]
fn a_stripped_output_still_runs() {
    if !installed("strip") {
        return skipped("strip: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (original, shuffled) = originals_and_shuffled(folder.path());
    let demo = folder.path().join("demo.shuffled");
    relift_succeeds(
        relift().args(["optimize", "--shuffle", "7"]).arg(repository("fixtures/demo/demo.elf")).arg("-o").arg(&demo),
        folder.path(),
    );
    let expected = output_of(&original, folder.path());
    assert_eq!(expected.0, End::Exit(42));
    for program in shuffled {
        let stripped = program.with_extension("stripped");
        let strip = run(Command::new("strip").arg("-o").arg(&stripped).arg(&program), folder.path());
        assert_eq!((strip.end, strip.stderr_text()), (End::Exit(0), String::new()));
        assert_eq!(output_of(&stripped, folder.path()), expected, "{}", stripped.display());
    }
    let stripped = folder.path().join("demo.stripped");
    assert_eq!(run(Command::new("strip").arg("-o").arg(&stripped).arg(&demo), folder.path()).end, End::Exit(0));
    let does = |program: &Path| {
        let ran = run(Command::new(program).arg(repository("fixtures/demo/test.demo")), folder.path());
        (ran.end, ran.stdout_text(), ran.stderr_text())
    };
    assert_eq!(does(&stripped), does(&repository("fixtures/demo/demo.elf")));
}

#[test]
fn an_instrumented_program_survives_strip_and_still_counts() {
    if !installed("strip") {
        return skipped("strip: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let original = support::compile_text(DEEP, &["-O2", "-fPIE", "-pie"], folder.path(), "deep");
    let (counting, profile) = (folder.path().join("counting"), folder.path().join("deep.rlp"));
    relift_succeeds(
        relift().arg("instrument").arg(&original).arg("-o").arg(&counting).arg("--profile").arg(&profile),
        folder.path(),
    );
    assert_eq!(run(Command::new("strip").arg(&counting), folder.path()).end, End::Exit(0));
    assert_eq!(output_of(&counting, folder.path()), output_of(&original, folder.path()));
    let shown = relift_succeeds(relift().args(["profile", "show"]).arg(&profile), folder.path()).stdout_text();
    assert!(shown.contains("inner"), "{shown}");
}

#[test]
fn every_function_symbol_of_the_output_is_where_its_code_is() {
    if !installed("nm") {
        return skipped("nm: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (original, shuffled) = originals_and_shuffled(folder.path());
    let names = |program: &Path| -> Vec<String> {
        let listed = run(Command::new("nm").arg(program), folder.path());
        assert_eq!(listed.stderr_text(), "");
        let mut names: Vec<String> = listed
            .stdout_text()
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(_, name)| name.to_owned())
            .filter(|name| !name.contains(".cold"))
            .collect();
        names.sort();
        names
    };
    let expected = names(&original);
    for program in shuffled {
        assert_eq!(names(&program), expected);
    }
}

/// Valgrind dies of a request that it does not know.
#[test]
fn no_name_that_begins_as_a_request_to_valgrind_is_added() {
    if !installed("nm") {
        return skipped("nm: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for kind in [["-fPIE", "-pie"], ["-fno-pie", "-no-pie"]] {
        let text = DEEP.replace("middle", "_vgnU_middle");
        let original = support::compile_text(&text, &[&["-O2"], &kind[..]].concat(), folder.path(), "requests");
        let output = folder.path().join("shuffled");
        relift_succeeds(relift().args(["optimize", "--shuffle", "1"]).arg(&original).arg("-o").arg(&output), folder.path());
        let listed = run(Command::new("nm").arg(&output), folder.path()).stdout_text();
        let with = |text: &str| listed.lines().filter(|line| line.contains(text)).count();
        assert_eq!((with("_vgnU_middle"), with("pick.cold") > 0), (1, true), "{kind:?}: {listed}");
    }
}

/// Position-independent, at fixed addresses (where old entries keep jumps), and with C++ names.
const KINDS: [(&str, &[&str]); 3] = [
    ("moving", &["-O2", "-fPIE", "-pie"]),
    ("fixed", &["-O2", "-fno-pie", "-no-pie"]),
    ("mangled", &["-O2", "-fno-pie", "-no-pie", "-xc++"]),
];

fn gdb(program: &Path, folder: &Path, commands: &[&str]) -> String {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "set print address off"]);
    for command in commands {
        gdb.args(["-ex", command]);
    }
    run(gdb.arg(program), folder).stdout_text()
}

#[test]
fn gdb_shows_the_same_backtrace_in_moved_code() {
    if !installed("gdb") {
        return skipped("gdb: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let frames = |program: &Path| -> Vec<String> {
        let text = gdb(program, folder.path(), &["break stop_here", "run", "backtrace"]);
        let name = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // gdb marks a further fragment of a function, by its symbol's name. It shows parameters of C++ only.
            words.get(1).map(|name| name.split(['(', '[', '.']).next().unwrap_or_default().to_owned())
        };
        text.lines().filter(|line| line.starts_with('#')).filter_map(name).collect()
    };
    for (kind, flags) in KINDS {
        let (original, shuffled) = compiled_and_shuffled(folder.path(), kind, flags);
        let expected = frames(&original);
        if expected.is_empty() {
            return skipped("gdb: it can't run programs here");
        }
        assert_eq!(expected, ["stop_here", "inner", "middle", "outer", "main"]);
        for program in shuffled {
            // Behind a part of `main`, gdb goes on to what called it.
            assert_eq!(&frames(&program)[..expected.len()], expected, "{}", program.display());
        }
    }
}

#[test]
fn gdb_shows_the_same_backtrace_in_a_shrunk_program() {
    if !installed("gdb") {
        return skipped("gdb: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let original = support::compile_text(DEEP, &["-O2", "-fPIE", "-pie"], folder.path(), "deep");
    let shrunk = folder.path().join("shrunk");
    relift_succeeds(relift().args(["shrink", "--verify"]).arg(&original).arg("-o").arg(&shrunk), folder.path());
    let frames = |program: &Path| -> Vec<String> {
        let text = gdb(program, folder.path(), &["break stop_here", "run", "backtrace"]);
        let frames = text.lines().filter(|line| line.starts_with('#'));
        frames.filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
    };
    let expected = frames(&original);
    if expected.is_empty() {
        return skipped("gdb: it can't run programs here");
    }
    assert_eq!(expected, ["stop_here", "inner", "middle", "outer", "main"]);
    assert_eq!(frames(&shrunk), expected);
}

#[test]
fn gdb_stops_where_a_cut_function_begins_and_nowhere_else() {
    if !installed("gdb") {
        return skipped("gdb: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    // Which breakpoints are hit, one after the other.
    let commands = ["break middle", "break pick", "break outer", "run", "continue", "continue", "continue", "continue"];
    let stops = |program: &Path| -> Vec<String> {
        let text = gdb(program, folder.path(), &commands);
        assert!(!text.contains("locations"), "{}: {text}", program.display());
        text.lines().filter(|line| line.starts_with("Breakpoint") && line.contains(',')).map(str::to_owned).collect()
    };
    for (kind, flags) in KINDS {
        let (original, shuffled) = compiled_and_shuffled(folder.path(), kind, flags);
        let expected = stops(&original);
        if expected.is_empty() {
            return skipped("gdb: it can't run programs here");
        }
        for program in shuffled {
            assert_eq!(stops(&program), expected, "{}", program.display());
        }
    }
}

#[test]
fn no_exported_function_claims_the_code_of_another() {
    if !installed("nm") {
        return skipped("nm: it is not installed");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for (kind, flags) in KINDS {
        let flags = [flags, &["-rdynamic", "-s"]].concat();
        let (original, shuffled) = compiled_and_shuffled(folder.path(), kind, &flags);
        for program in shuffled.iter().chain([&original]) {
            let listed = run(Command::new("nm").args(["-D", "-S", "--defined-only"]).arg(program), folder.path()).stdout_text();
            let mut extents: Vec<(u64, u64)> = listed
                .lines()
                .filter(|line| line.contains(" T "))
                .filter_map(|line| {
                    let number = |word: &str| u64::from_str_radix(word, 16).ok();
                    let (at, size) = line.split_once(' ')?;
                    Some((number(at)?, number(size.split(' ').next()?)?))
                })
                .collect();
            extents.sort_unstable();
            assert!(extents.len() >= 5, "{listed}");
            assert!(extents.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{}: {listed}", program.display());
        }
    }
}
