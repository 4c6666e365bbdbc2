//! Unwind tables that say what unwinders need where code can stop by itself, and nothing of where only a timer stops it.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};
use support::{End, built, installed, relift, relift_succeeds, run, said, shrink, skipped};

const GRANTED: [&str; 2] = ["--assume", "no-async-unwind"];

/// Functions that save much, some of them only on one way. Exceptions pass them from calls and from loads that fault; callers are counted from calls and from a handler of the fault.
const PROGRAM: &str = r#"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <unwind.h>
#define APART __attribute__((noinline, noclone))
static volatile long noted;
static long *volatile nowhere;
static int counted;
static _Unwind_Reason_Code count(_Unwind_Context *context, void *frames) { if (_Unwind_GetIP(context)) ++*(int *)frames; return _URC_NO_REASON; }
APART static int callers() { int frames = 0; _Unwind_Backtrace(count, &frames); return frames; }
static void faulted(int) {
    sigset_t all;
    sigemptyset(&all);
    sigprocmask(SIG_SETMASK, &all, nullptr);
    counted = callers();
    throw std::runtime_error("fault");
}
APART static long leaf(long a, long b, long c) {
    noted = noted + 1;
    switch (a % 5) {
    case 0: throw std::runtime_error("call");
    case 1: return *nowhere + b;
    case 2: return callers() + c;
    default: return a * b - c;
    }
}
template <int N> APART long wrapped(long a, long b, long c) {
    if (a % 7 == N) return b - c;
    long x = leaf(a + N, b, c), y = leaf(b | 3, c, x), z = leaf(c * 5 + 3, x, y);
    noted = noted + x + y;
    return x * y + z * leaf(3, x ^ y, a) + leaf(4, b, z) + c;
}
template <int N> APART long caught(long a) {
    char room[N * 40 + 8];
    std::snprintf(room, sizeof room, "%ld", a);
    try { return wrapped<N>(a, a + 1, a * N) + wrapped<N + 1>(a * 2, N, a) + room[0]; }
    catch (std::runtime_error &e) { return e.what()[0] + room[0]; }
}
int main() {
    struct sigaction action = {};
    action.sa_handler = faulted;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    for (long i = 0; i < 40; i++) {
        counted = 0;
        long sum = caught<1>(i) + caught<2>(i * 3) + caught<3>(i + 1) + caught<4>(i);
        std::printf("%ld %d %ld\n", sum, counted, (long)noted);
    }
    return 42;
}
"#;

fn program(compiler: &str, folder: &Path) -> Option<PathBuf> {
    if !installed(compiler) {
        skipped(&format!("{compiler}: it is not installed"));
        return None;
    }
    Some(built(PROGRAM, (compiler, "cc"), &["-fnon-call-exceptions", "-O2"], folder))
}

/// Where `.eh_frame` is in the file, and how long it is.
fn frames(file: &[u8]) -> (usize, usize) {
    let object = object::File::parse(file).expect("it is an ELF file");
    let section = object.section_by_name(".eh_frame").expect("it has unwind tables");
    let (offset, len) = section.file_range().expect("they are in the file");
    (offset as usize, len as usize)
}

fn check(input: &Path, output: &Path, options: &[&str], folder: &Path) -> (End, String) {
    let run = run(relift().arg("check").args(options).arg(input).arg(output), folder);
    (run.end, run.stdout_text())
}

#[test]
fn calls_and_faults_are_unwound_by_much_smaller_tables() {
    for compiler in ["g++", "clang++"] {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let folder = folder.path();
        let Some(input) = program(compiler, folder) else { continue };
        let lens = [&[][..], &GRANTED].map(|options| {
            let (output, _) = shrink(&input, options, "output", folder);
            said(&input, &output, folder);
            frames(&std::fs::read(&output).expect("it was written")).1
        });
        assert!(3 * lens[1] < 2 * lens[0], "{compiler}: {lens:?}");
        // The output says by itself how much it says, so that nothing need be granted again.
        let (output, _) = shrink(&input, &GRANTED, "output", folder);
        let again = folder.join("again");
        for form in [&["optimize", "--shuffle", "5"][..], &["shrink"], &["shrink", "--slower", "100"]] {
            relift_succeeds(relift().args(form).arg("--verify").arg(&output).arg("-o").arg(&again), folder);
            said(&input, &again, folder);
            let len = frames(&std::fs::read(&again).expect("it was written")).1;
            assert!(form[0] == "optimize" || len <= lens[1], "{compiler}, {form:?}: {len} of {lens:?}");
        }
        let optimized = folder.join("optimized");
        relift_succeeds(
            relift().args(["optimize", "--shuffle", "2"]).args(GRANTED).arg(&input).arg("-o").arg(&optimized),
            folder,
        );
        said(&input, &optimized, folder);
        assert_eq!(check(&input, &optimized, &GRANTED, folder).0, End::Exit(0), "{compiler}");
        assert_ne!(check(&input, &optimized, &[], folder).0, End::Exit(0), "{compiler}");
    }
}

#[test]
fn the_checker_asks_for_rows_where_code_can_stop_and_everywhere_if_nothing_is_granted() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    let Some(input) = program("g++", folder) else { return };
    let (output, _) = shrink(&input, &GRANTED, "output", folder);
    assert_eq!(check(&input, &output, &GRANTED, folder).0, End::Exit(0));
    let (end, told) = check(&input, &output, &[], folder);
    assert!(end != End::Exit(0) && told.contains("UnwindRow"), "{told}");

    let bytes = std::fs::read(&output).expect("it was written");
    let (start, len) = frames(&bytes);
    let table = start..start + len;
    // What is granted has to be told.
    let mut unmarked = bytes.clone();
    const MARKED: [u8; 6] = [0, 0x0c, 7, 8, 0x90, 1];
    let marks: Vec<usize> = table.clone().filter(|&at| bytes[at..].starts_with(&MARKED)).collect();
    assert!(!marks.is_empty());
    marks.iter().for_each(|&at| unmarked[at..at + 6].rotate_left(1));
    let changed = folder.join("changed");
    std::fs::write(&changed, &unmarked).expect("the scratch folder can be written");
    let (end, told) = check(&input, &changed, &GRANTED, folder);
    assert!(end != End::Exit(0) && told.contains("no common entry says so"), "{told}");

    // Whatever frame is left, something in it calls or touches memory.
    /// `DW_CFA_def_cfa_offset`.
    const OFFSET: u8 = 0x0e;
    let is_frame = |at: &usize| bytes[*at] == OFFSET && (48..=112).contains(&bytes[at + 1]) && bytes[at + 1].is_multiple_of(8);
    let offsets: Vec<usize> = table.filter(is_frame).collect();
    assert!(offsets.len() > 3, "{offsets:?}");
    for at in offsets.into_iter().take(8) {
        let mut wrong = bytes.clone();
        wrong[at + 1] += 8;
        std::fs::write(&changed, &wrong).expect("the scratch folder can be written");
        let (end, told) = check(&input, &changed, &GRANTED, folder);
        assert!(end != End::Exit(0) && told.contains("UnwindRow"), "at {at:#x}: {told}");
    }
}

#[test]
fn gdb_walks_the_stack_from_breakpoints_and_faults() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    if !installed("gdb") {
        return skipped("gdb: it is not installed");
    }
    let Some(input) = program("g++", folder) else { return };
    let (output, _) = shrink(&input, &[&GRANTED[..], &["--skip", "subroutines,outline,tails,fold"]].concat(), "output", folder);
    let walk = |program: &Path, stop: &[&str]| {
        let mut gdb = Command::new("gdb");
        gdb.args(["-nx", "-batch", "-ex", "set print address off", "-ex", "set print frame-arguments none"]);
        stop.iter().chain(&["run", "backtrace"]).for_each(|command| {
            gdb.args(["-ex", command]);
        });
        let text = run(gdb.arg(program), folder).stdout_text();
        let frames = text.lines().filter(|line| line.starts_with('#'));
        frames.map(|line| line.split(" from ").next().unwrap_or(line).to_owned()).collect::<Vec<_>>()
    };
    for stop in [&["break _Unwind_Backtrace"][..], &["handle SIGSEGV stop"], &["break __cxa_throw"]] {
        let (before, after) = (walk(&input, stop), walk(&output, stop));
        assert!(before.len() > 3 && before.last().is_some_and(|last| last.contains("main")), "{stop:?}: {before:?}");
        assert_eq!(before, after, "{stop:?}");
    }
}
