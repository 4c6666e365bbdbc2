//! Unwinding through ends that functions share: where a call is made from one, and at each single instruction of it.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, LONG_WAY, STEPPING, SUCCESS, compile, installed, relift, relift_succeeds, run, skipped};

/// Functions that begin apart and end alike, with a call in what they share. `walk` says how deep each frame's canonical address lies below that of `main`.
const CALLS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <unwind.h>
static uintptr_t top;
static volatile long noted;
static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *depth) {
    uintptr_t frame = _Unwind_GetCFA(context);
    if (++*(int *)depth > 1 && frame <= top) printf(" %ld", (long)(top - frame));
    return frame < top ? _URC_NO_REASON : _URC_END_OF_STACK;
}
__attribute__((noinline)) static long walk(long x) { int depth = 0; _Unwind_Backtrace(one, &depth); printf("\n"); return x + 1; }
__attribute__((noinline)) static long step(long a, long b) { noted += a; return a * 3 + b; }
__attribute__((noinline)) static void note(long x) { noted ^= x; }
#define F(n) __attribute__((noinline)) static long f##n(long a, long b, long c, long d) { \
    unsigned long way = a * n; LONG_WAY(way) \
    long x = step(a * n + (way & 8), b), y = step(b + n, c), z = step(c, d ^ n); note(x); note(y); note(z); walk(x); note(y); return x + y + z; }
F(3) F(5) F(7) F(11) F(13)
#define G(n) __attribute__((noinline)) static long g##n(long a, long b) { \
    long x = step(a + n, b); if (x & 1) { note(x * n); return walk(x) + f3(a, b, n, x); } note(b); return walk(a) + f3(b, a, n, 1); }
G(21) G(35) G(77)
int main(void) {
    top = (uintptr_t)__builtin_dwarf_cfa();
    long sum = 0;
    for (long i = 1; i < 4; i++) sum += f3(i, 2, 3, 4) + f5(i, 2, 3, 4) + f7(i, 2, 3, 4) + f11(i, 2, 3, 4) + f13(i, 2, 3, 4) + g21(i, 2) + g35(i, 3) + g77(i, 4);
    printf("%ld %ld\n", sum, (long)noted);
    return 42;
}
"#;

/// Each instruction of `traced` and of what it calls raises a signal, whose handler unwinds to `main` from there.
const STEPS: &str = r#"
__attribute__((noinline)) static long step(long a, long b) { noted += a; return a * 3 + b; }
__attribute__((noinline)) static void note(long x) { noted ^= x; }
#define F(n) __attribute__((noinline)) static long f##n(long a, long b, long c, long d) { \
    unsigned long way = a * n; LONG_WAY(way) \
    long x = step(a * n + (way & 8), b), y = step(b + n, c), z = step(c, d ^ n); note(x); note(y); note(z); if (x == y) return z; note(y); return x + y + z; }
F(3) F(5) F(7) F(11) F(13)
__attribute__((noinline)) static long traced(long i) { return f3(i, 2, 3, 4) + f5(i, 2, 3, 4) + f7(i, 2, 3, 4) + f11(i, 2, 3, 4) + f13(i, 2, 3, 4); }
int main(int count, char **arguments) {
    LOOK_FOR_MAIN(count)
    raise(SIGTRAP);
    long sum = 0;
    for (long i = 0; i < 3; i++) {
        STEP_THROUGH(sum += traced(i))
    }
    printf("%ld %ld, lost %ld\n", sum, (long)noted, (long)num_lost);
    return num_steps > 500 ? 42 : 1;
}
"#;

/// Exceptions are thrown from what functions share, run through destructors that end alike, and arrive in functions with several ends.
const EXCEPTIONS: &str = r#"
#include <cstdio>
#include <stdexcept>
#include <string>
static volatile long noted;
struct Guard { long x; __attribute__((noinline)) ~Guard() { noted = noted * 31 + x; std::printf("~%ld ", x); } };
__attribute__((noinline)) static long step(long a, long b) { noted = noted + a; return a * 3 + b; }
__attribute__((noinline)) static void may_throw(long x) {
    if (x % 3 == 0) throw std::runtime_error("three " + std::to_string(x));
    if (x % 5 == 0) throw x;
}
#define F(n) __attribute__((noinline)) static long f##n(long a, long b, long c) { \
    long x = step(a * n, b), y = step(b + n, c), z = step(c, a ^ n); may_throw(x); may_throw(y); may_throw(z); return x + y + z; }
F(2) F(7) F(11) F(13)
#define G(n) __attribute__((noinline)) static long g##n(long a, long b) { \
    Guard one{a}; Guard two{b + n}; \
    try { if (a & 1) return f##n(a, b, 1); Guard three{n}; return f##n(b, a, 2) + f2(a, b, 3); } \
    catch (long thrown) { std::printf("long %ld ", thrown); return thrown; } }
G(7) G(11) G(13)
int main() {
    long sum = 0;
    for (long i = 0; i < 40; i++) {
        try { sum += g7(i, i * 2) + g11(i + 1, 5) + g13(i, i ^ 9); } catch (const std::exception &error) { std::printf("%s\n", error.what()); sum ^= i; }
    }
    std::printf("%ld %ld\n", sum, (long)noted);
    return 42;
}
"#;

/// The program, and what `shrink` makes of it with its ends shared. Functions that are equal as a whole would be folded, not cut.
fn shrunk(text: &str, compiler: &str, extension: &str, flags: &[&str], folder: &Path) -> (PathBuf, PathBuf) {
    let (source, input, output) = (folder.join(format!("program.{extension}")), folder.join("input"), folder.join("output"));
    std::fs::write(&source, text).expect("the scratch folder can be written");
    let flags = [&["-O2", "-fPIE", "-pie", "-w"], flags].concat();
    compile(compiler, &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    let mut command = relift();
    command.args(["shrink", "--slower", "100", "--verify", "--json"]).arg(&input).arg("-o").arg(&output);
    let said = relift_succeeds(&mut command, folder);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let tails = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "tails");
    let count = tails.and_then(|saving| saving["count"].as_i64()).unwrap_or(0);
    assert!(count >= 3, "{count} ends are shared: {report}");
    (input, output)
}

/// What both say, which is the same.
fn said(input: &Path, output: &Path, folder: &Path) -> String {
    let before = run(&mut Command::new(input), folder);
    let after = run(&mut Command::new(output), folder);
    assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
    assert_eq!(before, after);
    before.stdout_text()
}

#[test]
fn frames_lie_where_they_did_for_calls_from_shared_ends() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in support::c_compilers() {
        let (input, output) = shrunk(&format!("{LONG_WAY}{CALLS}"), compiler, "c", &[], folder.path());
        let text = said(&input, &output, folder.path());
        assert!(text.lines().filter(|line| line.ends_with(" 0")).count() > 30, "every walk ends in main: {text}");
    }
}

#[test]
fn main_is_found_from_every_instruction_of_shared_ends() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (input, output) = shrunk(&format!("{STEPPING}{LONG_WAY}{STEPS}"), support::c_compilers()[0], "c", &[], folder.path());
    assert!(said(&input, &output, folder.path()).ends_with("lost 0\n"));
}

#[test]
fn exceptions_run_through_shared_ends() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in ["g++", "clang++"] {
        if !installed(compiler) {
            skipped(&format!("{compiler}: it is not installed"));
            continue;
        }
        let (input, output) = shrunk(EXCEPTIONS, compiler, "cpp", &[], folder.path());
        let text = said(&input, &output, folder.path());
        assert!(text.contains("three") && text.contains("long"), "both kinds are thrown: {text}");
    }
}

#[test]
fn debuggers_find_main_from_a_call_in_a_shared_end() {
    if !installed("gdb") {
        skipped("gdb is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (input, output) = shrunk(&format!("{LONG_WAY}{CALLS}"), support::c_compilers()[0], "c", &["-g"], folder.path());
    let frames = |program: &Path| {
        let mut command = Command::new("gdb");
        command.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break walk", "-ex", "run"]);
        for _ in 0..20 {
            command.args(["-ex", "backtrace", "-ex", "continue"]);
        }
        let found = run(command.arg(program), folder.path());
        let text = found.stdout_text();
        // A shared end is shown as part of one of the functions that share it.
        let depths = text.lines().filter(|line| line.starts_with('#'));
        depths.map(|line| (line.split_whitespace().next().unwrap_or("").to_owned(), line.contains("main ("))).collect::<Vec<_>>()
    };
    let (before, after) = (frames(&input), frames(&output));
    assert!(before.iter().filter(|(_, is_main)| *is_main).count() == 20, "{before:?}");
    assert_eq!(before, after);
}
