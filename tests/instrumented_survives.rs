//! An instrumented program keeps its profile whatever becomes of it: killed, forked, ended by `_exit`, threaded; and it runs as ever
//! where the profile cannot be written.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{End, relift, relift_succeeds, run};
use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a scratch folder can be made")
}

/// Compiles `text` and instruments it; returns the instrumented program and the path of its profile.
fn instrumented(text: &str, flags: &[&str], folder: &Path) -> (PathBuf, PathBuf) {
    let original = support::compile_text(text, flags, folder, "original");
    let (output, profile) = (folder.join("instrumented"), folder.join("profile.rlp"));
    relift_succeeds(relift().arg("instrument").arg(&original).arg("-o").arg(&output).arg("--profile").arg(&profile), folder);
    (output, profile)
}

/// The sum of the counters of a function, from what `relift profile show --json` prints. Which places of the function have a counter is
/// relift's choice, so tests compare sums with those of another run and expect no number.
fn counted_in(function: &str, profile: &Path, folder: &Path) -> u64 {
    let said = relift_succeeds(relift().args(["profile", "show", "--json", "--top", "1000"]).arg(profile), folder);
    let shown: serde_json::Value = serde_json::from_slice(&said.stdout)
        .unwrap_or_else(|error| panic!("profile show --json printed no JSON ({error}): {said:?}"));
    let functions = shown["functions"].as_array().unwrap_or_else(|| panic!("no list of functions in {shown}"));
    let found = functions.iter().find(|entry| entry["name"] == function).unwrap_or_else(|| panic!("no {function} in {shown}"));
    found["counted"].as_u64().unwrap_or_else(|| panic!("no sum of counters in {found}"))
}

/// The same for a fresh profile of one run with `argument`, which must end like that.
fn counted_by_a_run(argument: &str, end: End, functions: &[&str], flags: &[&str]) -> Vec<u64> {
    let folder = scratch();
    let (program, profile) = instrumented(COUNTED, flags, folder.path());
    assert_eq!(run(Command::new(&program).arg(argument), folder.path()).end, end);
    functions.iter().map(|function| counted_in(function, &profile, folder.path())).collect()
}

/// A program that does the same work in several ways and ends in several ways.
const COUNTED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noclone)) unsigned counted(unsigned x) {
    if (x % 3 == 0) return x / 3 + 7;
    return x % 2 ? x * 5 + 1 : x / 2;
}

__attribute__((noinline, noclone)) void in_child(unsigned number) {
    volatile unsigned value = number;
    for (unsigned i = 0; i < 100; i++) value = counted(value);
}

int main(int argc, char **argv) {
    volatile unsigned value = 1;
    switch (argc > 1 ? argv[1][0] : 'e') {
    case 'k': /* until it is killed */
        printf("ready\n");
        fflush(stdout);
        for (;;) value = counted(value);
    case 'f': /* ten children */
        for (unsigned i = 0; i < 10; i++) {
            pid_t child = fork();
            if (child < 0) return 9;
            if (child == 0) {
                in_child(i);
                if (i % 2) _exit(0);
                kill(getpid(), SIGKILL);
            }
        }
        while (wait(0) > 0) {}
        return 0;
    case 'w': /* the work of the ten children, without children */
        for (unsigned i = 0; i < 10; i++) in_child(i);
        return 0;
    case 'x':
        in_child(3);
        _exit(5);
    case 'a':
        in_child(3);
        abort();
    default:
        in_child(3);
        printf("%u\n", value);
        return 0;
    }
}
"#;

const PIE: &[&str] = &["-O2", "-fPIE", "-pie"];

#[test]
fn two_runs_add_up() {
    let folder = scratch();
    let (program, profile) = instrumented(COUNTED, PIE, folder.path());
    let mut sums = Vec::new();
    for _ in 0..3 {
        assert_eq!(run(&mut Command::new(&program), folder.path()).end, End::Exit(0));
        sums.push(counted_in("counted", &profile, folder.path()));
    }
    assert!(sums[0] > 0);
    assert_eq!(sums, [sums[0], sums[0] * 2, sums[0] * 3]);
}

#[test]
fn a_program_killed_halfway_leaves_a_profile() {
    let folder = scratch();
    let (program, profile) = instrumented(COUNTED, PIE, folder.path());
    let mut child = Command::new(&program).arg("k").stdout(Stdio::null()).spawn().expect("the program starts");
    let started = Instant::now();
    // The profile is a mapped file: it is there, and its counters move, while the program runs.
    while fs::read(&profile).is_ok_and(|bytes| bytes.is_empty()) || !profile.exists() {
        assert!(started.elapsed() < Duration::from_secs(20), "no profile appears while the program runs");
        sleep(Duration::from_millis(20));
    }
    sleep(Duration::from_millis(200));
    child.kill().expect("a child of ours can be killed");
    let status = child.wait().expect("a child of ours can be waited for");
    assert_eq!(support::end_of(status), End::Signal(9));
    assert!(counted_in("counted", &profile, folder.path()) > 1000);
}

#[test]
fn ten_forked_children_are_all_counted() {
    let functions = ["in_child", "counted"];
    let alone = counted_by_a_run("w", End::Exit(0), &functions, PIE);
    assert!(alone[1] > 0);
    assert_eq!(counted_by_a_run("f", End::Exit(0), &functions, PIE), alone);
}

#[test]
fn an_end_without_cleaning_up_loses_nothing() {
    let functions = ["in_child", "counted"];
    let clean = counted_by_a_run("e", End::Exit(0), &functions, PIE);
    assert_eq!(counted_by_a_run("x", End::Exit(5), &functions, PIE), clean);
    assert_eq!(counted_by_a_run("a", End::Signal(6), &functions, PIE), clean);
}

#[test]
fn a_program_linked_at_a_fixed_place_or_with_relocations_is_counted_too() {
    for flags in [&["-O2", "-fno-pie", "-no-pie", "-Wl,--emit-relocs"][..], &["-O2", "-fPIE", "-pie", "-Wl,--emit-relocs"]] {
        let counted = counted_by_a_run("w", End::Exit(0), &["counted"], flags);
        assert!(counted[0] > 0, "{flags:?}");
    }
}

#[test]
fn it_runs_as_ever_where_the_profile_cannot_be_written() {
    let folder = scratch();
    let original = support::compile_text(COUNTED, PIE, folder.path(), "original");
    let output = folder.path().join("instrumented");
    let nowhere = folder.path().join("no/such/folder/profile.rlp");
    relift_succeeds(
        relift().arg("instrument").arg(&original).arg("-o").arg(&output).arg("--profile").arg(&nowhere),
        folder.path(),
    );
    for argument in ["e", "x", "f"] {
        let expected = run(Command::new(&original).arg(argument), folder.path());
        assert_eq!(run(Command::new(&output).arg(argument), folder.path()), expected);
    }
    assert!(!nowhere.exists());
}

#[test]
fn threads_lose_few_counts_and_behave_the_same() {
    let folder = scratch();
    let text = r#"
        #include <pthread.h>
        #include <stdio.h>
        __attribute__((noinline, noclone)) unsigned counted(unsigned x) { return x % 3 ? x * 5 + 1 : x / 3; }
        static void *worker(void *argument) {
            unsigned value = (unsigned)(unsigned long)argument;
            for (int i = 0; i < 20000; i++) value = counted(value);
            return (void *)(unsigned long)value;
        }
        int main(void) {
            pthread_t threads[4];
            unsigned long sum = 0;
            for (unsigned long i = 0; i < 4; i++) pthread_create(&threads[i], 0, worker, (void *)i);
            for (int i = 0; i < 4; i++) { void *result; pthread_join(threads[i], &result); sum += (unsigned long)result; }
            printf("%lu\n", sum);
            return 0;
        }
    "#;
    let (program, profile) = instrumented(text, &["-O2", "-fPIE", "-pie", "-pthread"], folder.path());
    let expected = run(&mut Command::new(folder.path().join("original")), folder.path());
    assert_eq!(run(&mut Command::new(&program), folder.path()), expected);
    let sum = |profile: &Path| counted_in("counted", profile, folder.path());
    // Counters are not atomic, and threads that meet may lose some; most of 80000 calls are there.
    assert!(sum(&profile) > 10_000, "80000 calls in four threads leave a sum of {}", sum(&profile));
}

/// Goes on in single steps, and unwinds at each of them, as a profiler that samples the program does now and then. Says at how many steps in functions with unwind entries `main`'s caller was not found.
const UNWOUND_AT_EACH_STEP: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unwind.h>
static long num_steps, num_lost;
static void *caller;
static volatile int is_stepping;
static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *depth) {
    int *count = depth;
    if ((void *)_Unwind_GetIP(context) == caller) { *count = -1; return _URC_END_OF_STACK; }
    return ++*count > 60 ? _URC_END_OF_STACK : _URC_NO_REASON;
}
static void step(int signal, siginfo_t *info, void *context) {
    void *at = (void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (!is_stepping || !_Unwind_FindEnclosingFunction((char *)at + 1)) return;
    int depth = 0;
    num_steps++;
    _Unwind_Backtrace(frame, &depth);
    num_lost += depth >= 0;
}
static int twice(int x) { return 2 * x; }
static int plus(int x) { return x + 1; }
int (*volatile functions[2])(int) = {twice, plus};
__attribute__((noinline)) long work(int n, int middle) {
    caller = __builtin_return_address(0);
    is_stepping = 1;
    __asm__ volatile("sub $128, %%rsp; pushfq; orq $0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    long sum = 0;
    for (int i = 0; i < n; i++) {
        sum += functions[i & 1](i);
        if (i < middle) __asm__ volatile("dec %0" : "+r"(sum) : : "cc");
        else if (i > middle) __asm__ volatile("inc %0" : "+r"(sum) : : "cc");
    }
    __asm__ volatile("sub $128, %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; add $128, %%rsp" ::: "memory", "cc");
    is_stepping = 0;
    return sum;
}
int main(void) {
    struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, 0);
    int depth = 0;
    _Unwind_Backtrace(frame, &depth);
    long sum = work(9, 4);
    printf("%ld %s %ld\n", sum, num_steps > 50 ? "enough steps, lost" : "too few steps, lost", num_lost);
}
"#;

#[test]
fn a_profiler_that_unwinds_from_any_instruction_of_a_counting_program_finds_its_callers() {
    let folder = scratch();
    for flags in [&["-O1", "-pie", "-fPIE"][..], &["-O2", "-no-pie"], &["-O2", "-fno-omit-frame-pointer"], &["-O0"]] {
        let (program, _) = instrumented(UNWOUND_AT_EACH_STEP, flags, folder.path());
        let original = run(&mut Command::new(folder.path().join("original")), folder.path());
        assert!(original.stdout_text().contains("enough steps"), "{flags:?}: {original:?}");
        let counting = run(&mut Command::new(&program), folder.path());
        assert_eq!((counting.end, counting.stdout_text()), (original.end, original.stdout_text()), "{flags:?}");
    }
}
