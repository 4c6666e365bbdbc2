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

/// What `relift profile show --json` says of a profile.
fn shown(profile: &Path, folder: &Path) -> serde_json::Value {
    let said = relift_succeeds(relift().args(["profile", "show", "--json"]).arg(profile), folder);
    serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("profile show --json printed no JSON ({error}): {said:?}"))
}

/// How often the function was entered, from the list of functions that `profile show --json` prints.
fn calls_of(profile: &serde_json::Value, function: &str) -> u64 {
    let functions = profile["functions"].as_array().unwrap_or_else(|| panic!("no list of functions in {profile}"));
    let found = functions.iter().find(|entry| entry["name"] == function).unwrap_or_else(|| panic!("no {function} in {profile}"));
    found["calls"].as_u64().unwrap_or_else(|| panic!("no number of calls in {found}"))
}

/// A program with a function that is called as often as its argument says, and that can end in several ways.
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
    case 'x':
        for (unsigned i = 0; i < 250; i++) value = counted(value);
        _exit(5);
    case 'a':
        for (unsigned i = 0; i < 250; i++) value = counted(value);
        abort();
    default:
        for (unsigned i = 0; i < 1000; i++) value = counted(value);
        printf("%u\n", value);
        return 0;
    }
}
"#;

const PIE: &[&str] = &["-O2", "-fPIE", "-pie"];

#[test]
fn a_finished_run_is_counted_exactly_and_two_runs_add_up() {
    let folder = scratch();
    let (program, profile) = instrumented(COUNTED, PIE, folder.path());
    for times in 1..=2 {
        assert_eq!(run(&mut Command::new(&program), folder.path()).end, End::Exit(0));
        assert_eq!(calls_of(&shown(&profile, folder.path()), "counted"), 1000 * times);
    }
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
    assert!(calls_of(&shown(&profile, folder.path()), "counted") > 1000);
}

#[test]
fn ten_forked_children_are_all_counted() {
    let folder = scratch();
    let (program, profile) = instrumented(COUNTED, PIE, folder.path());
    assert_eq!(run(Command::new(&program).arg("f"), folder.path()).end, End::Exit(0));
    let counts = shown(&profile, folder.path());
    assert_eq!(calls_of(&counts, "in_child"), 10);
    assert_eq!(calls_of(&counts, "counted"), 1000);
}

#[test]
fn an_end_without_cleaning_up_loses_nothing() {
    for (argument, end) in [("x", End::Exit(5)), ("a", End::Signal(6))] {
        let folder = scratch();
        let (program, profile) = instrumented(COUNTED, PIE, folder.path());
        assert_eq!(run(Command::new(&program).arg(argument), folder.path()).end, end);
        assert_eq!(calls_of(&shown(&profile, folder.path()), "counted"), 250);
    }
}

#[test]
fn a_program_linked_without_a_position_and_with_relocations_is_counted_too() {
    for flags in [&["-O2", "-fno-pie", "-no-pie", "-Wl,--emit-relocs"][..], &["-O2", "-fPIE", "-pie", "-Wl,--emit-relocs"]] {
        let folder = scratch();
        let (program, profile) = instrumented(COUNTED, flags, folder.path());
        assert_eq!(run(&mut Command::new(&program), folder.path()).end, End::Exit(0));
        assert_eq!(calls_of(&shown(&profile, folder.path()), "counted"), 1000);
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
    let calls = calls_of(&shown(&profile, folder.path()), "counted");
    assert!((40_000..=80_000).contains(&calls), "{calls} calls were counted of 80000");
}
