//! What the tests of the `relift` program share: compiling small fixtures with the compilers that are there, running programs with
//! a time limit, and comparing two runs.
//!
//! A compiler that is not installed is not an error: each variant skipped for want of one is named on standard error, and
//! `.ci/run` installs all of them first.
#![allow(dead_code, reason = "each test file uses a part of this module")]
#![allow(unreachable_pub, reason = "a module of test files has no outside")]

pub mod split;

use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use object::{Object, ObjectSection, ObjectSymbol};

/// How long any program of a test may run before it counts as hung.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// The exit status with which a fixture says that it found all well: a zero could come from anywhere.
pub const SUCCESS: i32 = 42;

/// The `relift` program under test.
pub fn relift() -> Command {
    Command::new(env!("CARGO_BIN_EXE_relift"))
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// What a finished program left behind.
#[derive(Clone, PartialEq, Eq)]
pub struct Run {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// The exit status, or the signal that ended the program.
    pub end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exit(i32),
    Signal(i32),
    TimedOut,
}

impl Run {
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}\n--- stdout\n{}\n--- stderr\n{}", self.end, self.stdout_text(), self.stderr_text())
    }
}

/// Runs `command` with empty input and the time limit. Output goes through files, so that a program that fills a pipe cannot hang the test.
pub fn run(command: &mut Command, scratch: &Path) -> Run {
    let (stdout, stderr) = (scratch.join("run.stdout"), scratch.join("run.stderr"));
    let create = |path: &Path| File::create(path).unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
    command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
    let mut child = start(command);
    let started = Instant::now();
    let end = loop {
        match child.try_wait().expect("a child of ours can be waited for") {
            Some(status) => break end_of(status),
            None if started.elapsed() > TIME_LIMIT => {
                child.kill().expect("a child of ours can be killed");
                child.wait().expect("a child of ours can be waited for");
                break End::TimedOut;
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let read = |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
    Run { stdout: read(&stdout), stderr: read(&stderr), end }
}

/// Starts a program that this process may have written a moment ago.
///
/// While it was open for writing, a neighboring test may have started a process, in which it is open until that process begins
/// its own program; so long nobody can execute it (`execve(2)`, `ETXTBSY`).
fn start(command: &mut Command) -> Child {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Ok(child) => return child,
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && started.elapsed() < TIME_LIMIT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("cannot start {command:?}: {error}"),
        }
    }
}

/// How a process ended.
pub fn end_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

/// Runs relift and panics with all it said unless it exits with 0.
pub fn relift_succeeds(command: &mut Command, scratch: &Path) -> Run {
    let run = run(command, scratch);
    assert_eq!(run.end, End::Exit(0), "{command:?} failed: {run:?}");
    run
}

/// Rewrites `program` in a form, and holds that the output does what it does: output, and how it ends.
pub fn rewritten_does_the_same(program: &Path, form: &[&str], folder: &Path) {
    let output = folder.join("output");
    let expected = run(&mut Command::new(program), folder);
    assert!(matches!(expected.end, End::Exit(_)), "{expected:?}");
    relift_succeeds(relift().args(form).arg(program).arg("-o").arg(&output), folder);
    assert_eq!(run(&mut Command::new(&output), folder), expected, "{form:?}");
}

/// Holds the same for layouts at random.
pub fn shuffled_does_the_same(program: &Path, seeds: &[&str], folder: &Path) {
    for seed in seeds {
        rewritten_does_the_same(program, &["optimize", "--shuffle", seed], folder);
    }
}

/// Holds the same for the instrumented program, by its profile, cut, and laid out at random.
pub fn every_form_does_the_same(program: &Path, seeds: &[&str], folder: &Path) {
    let profile = folder.join("profile").display().to_string();
    rewritten_does_the_same(program, &["instrument", "--profile", &profile], folder);
    rewritten_does_the_same(program, &["optimize", "-p", &profile], folder);
    rewritten_does_the_same(program, &["shrink"], folder);
    shuffled_does_the_same(program, seeds, folder);
}

/// Whether `program` is on the search path.
pub fn installed(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else { return false };
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The C compilers that are there, best known first; names each that is missing.
pub fn c_compilers() -> Vec<&'static str> {
    let (there, missing): (Vec<_>, Vec<_>) = ["gcc", "clang"].into_iter().partition(|compiler| installed(compiler));
    for compiler in missing {
        skipped(&format!("every variant built by {compiler}: it is not installed"));
    }
    assert!(!there.is_empty(), "these tests need a C compiler: install gcc or clang");
    there
}

/// Says that a part of a test was not run, and why.
#[expect(clippy::print_stderr, reason = "a skipped variant must be seen in the test's output")]
pub fn skipped(what: &str) {
    eprintln!("skipped: {what}");
}

/// Compiles `sources` into `output`, or says why not.
pub fn compile(compiler: &str, flags: &[&str], sources: &[&Path], output: &Path) -> Result<(), String> {
    let mut command = Command::new(compiler);
    command.args(flags).args(sources).arg("-o").arg(output);
    let result = command.output().map_err(|error| format!("cannot start {compiler}: {error}"))?;
    if result.status.success() {
        return Ok(());
    }
    Err(format!("{command:?} failed:\n{}", String::from_utf8_lossy(&result.stderr)))
}

/// Compiles one C text with a compiler that is there.
pub fn compile_text(text: &str, flags: &[&str], folder: &Path, name: &str) -> PathBuf {
    let source = folder.join(format!("{name}.c"));
    std::fs::write(&source, text).expect("the scratch folder can be written");
    let output = folder.join(name);
    compile(c_compilers()[0], flags, &[&source], &output).unwrap_or_else(|error| panic!("{error}"));
    output
}

/// Thousands of relocated words, so that packing them frees pages before the code, which is in the same segment.
pub const RELOCATED: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define A(n) "a" #n, "b" #n, "c" #n, "d" #n, "e" #n, "f" #n, "g" #n, "h" #n
#define B(n) A(n##0), A(n##1), A(n##2), A(n##3), A(n##4), A(n##5), A(n##6), A(n##7)
#define C(n) B(n##0), B(n##1), B(n##2), B(n##3), B(n##4), B(n##5), B(n##6), B(n##7)
static const char *volatile names[] = { C(1), C(2), C(3), C(4) };
static int order(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv) {
    int sum = 0, numbers[4] = { 3, 1, argc, 2 };
    qsort(numbers, 4, sizeof *numbers, order);
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) sum += names[i][0] * (int)(i % 7) + names[i][1];
    printf("%d %d\n", sum, numbers[0]);
    return 42;
}
"#;

/// A program that does little: what happens to the file is what matters.
pub const SMALL: &str = r#"
#include <stdio.h>
static __attribute__((noinline)) int step(int x) { return x % 3 ? x * 5 + 1 : x / 3; }
int main(int argc, char **argv) {
    int value = argc;
    for (int i = 0; i < 1000; i++) value = step(value) & 0xffff;
    printf("%d\n", value);
    return 0;
}
"#;

/// So much that one jump more is a small share of it: in short functions nothing is shared with others.
pub const LONG_WAY: &str = r#"
#define GO(x) x = (x ^ x >> 7) * 37 + 11;
#define GO_ON(x) GO(x) GO(x) GO(x) GO(x) GO(x) GO(x) GO(x) GO(x) GO(x) GO(x)
#define LONG_WAY(x) GO_ON(x) GO_ON(x) GO_ON(x) GO_ON(x) GO_ON(x) GO_ON(x) GO_ON(x) GO_ON(x)
"#;

/// C before a program that is traced: in `STEP_THROUGH(statement)` each instruction raises a signal, whose handler unwinds from there, counts the step, and counts it as lost if it does not find the frame of
/// `main`, which `LOOK_FOR_MAIN` says.
pub const STEPPING: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <unwind.h>
static uintptr_t top;
static volatile long noted, num_steps, num_lost;
static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *found) {
    uintptr_t frame = _Unwind_GetCFA(context);
    *(int *)found |= frame == top;
    return frame < top ? _URC_NO_REASON : _URC_END_OF_STACK;
}
static void trap(int signal) { int found = 0; (void)signal; _Unwind_Backtrace(one, &found); num_steps++; num_lost += !found; }
// What takes room by a number counts its frame from a register that `pushfq` leaves alone.
#define LOOK_FOR_MAIN(count) \
    volatile char *room = __builtin_alloca(16 * (count)); \
    room[0] = 1; \
    top = (uintptr_t)__builtin_dwarf_cfa(); \
    signal(SIGTRAP, trap);
#define STEP_THROUGH(statement) \
    __asm__ volatile("pushfq; orq $256, (%%rsp); popfq" ::: "memory", "cc"); \
    statement; \
    __asm__ volatile("pushfq; andq $-257, (%%rsp); popfq" ::: "memory", "cc");
"#;

/// A position-independent program of this text.
pub fn built(text: &str, (compiler, extension): (&str, &str), flags: &[&str], folder: &Path) -> PathBuf {
    let (source, input) = (folder.join(format!("program.{extension}")), folder.join("input"));
    std::fs::write(&source, text).expect("the scratch folder can be written");
    let flags = [&["-O2", "-fPIE", "-pie", "-w"], flags].concat();
    compile(compiler, &flags, &[&source], &input).unwrap_or_else(|error| panic!("{error}"));
    input
}

/// What both say, which is the same.
pub fn said(input: &Path, output: &Path, folder: &Path) -> String {
    let (before, after) = (run(&mut Command::new(input), folder), run(&mut Command::new(output), folder));
    assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
    assert_eq!(before, after);
    before.stdout_text()
}

/// Shrinks a program, which must succeed; gives the output and the report.
pub fn shrink(input: &Path, options: &[&str], name: &str, folder: &Path) -> (PathBuf, serde_json::Value) {
    let output = folder.join(name);
    let mut command = relift();
    command.args(["shrink", "--verify", "--json"]).args(options).arg(input).arg("-o").arg(&output);
    let said = relift_succeeds(&mut command, folder);
    (output, serde_json::from_slice(&said.stdout).expect("--json prints JSON"))
}

/// Where a function's old address is in a file, by the symbols of the program that it was made of.
pub fn offset_of(symbol: &str, input: &[u8]) -> usize {
    let file = object::File::parse(input).expect("the compiler makes such files");
    let address = file.symbols().find(|s| s.name() == Ok(symbol)).expect("the fixture has the symbol").address();
    let text = file.section_by_name(".text").expect("there is code");
    (text.file_range().expect("it is in the file").0 + address - text.address()) as usize
}

/// In bytes, of a file that must be there.
pub fn size(path: &Path) -> u64 {
    std::fs::metadata(path).expect("the file was written").len()
}

/// The one line that a refusal must be: fails if there is none, or more than one, or if it does not begin with the program's name.
pub fn only_line(run: &Run) -> String {
    let text = run.stderr_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 1, "a refusal is one line on standard error: {run:?}");
    lines[0].to_owned()
}

/// What one technique of `shrink` has done, by its report.
pub fn technique<'r>(report: &'r serde_json::Value, name: &str) -> Option<&'r serde_json::Value> {
    report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == name)
}
