//! Arguments that calls have alike, put where these calls lead: what the program does, what unwinders, debuggers and handlers find there, and what becomes of it when it is relinked again.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, LONG_WAY, STEPPING, SUCCESS, built, installed, relift, relift_succeeds, run, said, skipped};

/// Functions that call `report` with arguments of which most are alike, and go on each in its own way. `REPORT` says what `report` does.
const REPORTS: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <unwind.h>
static uintptr_t top;
static volatile long noted;
static long table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *depth) {
    uintptr_t frame = _Unwind_GetCFA(context);
    if (++*(int *)depth > 1 && frame <= top) printf(" %ld", (long)(top - frame));
    return frame < top ? _URC_NO_REASON : _URC_END_OF_STACK;
}
__attribute__((noipa)) static long report(long x, const char *text, long kind, long level, const long *where) {
    int depth = 0;
    printf("%s %ld %ld %ld %ld", text, x, kind, level, *where);
    _Unwind_Backtrace(one, &depth);
    printf("\n");
    return x + kind;
}
#define F(n) __attribute__((noipa)) static long f##n(long a) { \
    unsigned long way = a; LONG_WAY(way) \
    long x = a * n + (way & 8); \
    if (x & 1) x = x * 3 + report(x, "an odd number", 17, 23, &table[3]); \
    if (x & 2) x ^= report(x + n, "an odd number", 17, 23, &table[3]) * n; \
    if (x & 4) noted += n, x -= report(a, "a square", 19, 29, &table[5]); \
    return x ^ report(x, "a square", 19, 29, &table[5]) << (n & 3); }
F(3) F(5) F(7) F(11) F(13) F(17)
int main(void) {
    top = (uintptr_t)__builtin_dwarf_cfa();
    long sum = f3(1) + f5(2) + f7(3) + f11(4) + f13(5) + f17(6) + f3(f5(7));
    printf("%ld %ld\n", sum, (long)noted);
    return 42;
}
"#;

/// Each instruction of `traced` and of what it calls raises a signal, whose handler unwinds to `main` from there.
const STEPS: &str = r#"
static long table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
__attribute__((noipa)) static long report(long x, const char *text, long kind, long level, const long *where) { noted += x; return text[x & 3] + kind * level + *where; }
#define F(n) __attribute__((noipa)) static long f##n(long a) { \
    unsigned long way = a; LONG_WAY(way) \
    long x = a * n + (way & 8); \
    if (x & 1) x = x * 3 + report(x, "an odd number", 17, 23, &table[3]); \
    if (x & 2) x ^= report(x + n, "an odd number", 17, 23, &table[3]) * n; \
    if (x & 4) noted += n, x -= report(a, "a square", 19, 29, &table[5]); \
    return x ^ report(x, "a square", 19, 29, &table[5]) << (n & 3); }
F(3) F(5) F(7) F(11) F(13) F(17)
__attribute__((noinline)) static long traced(long i) { return f3(i) + f5(i + 1) + f7(i + 2) + f11(i + 3) + f13(i + 4) + f17(i + 5); }
int main(int count, char **arguments) {
    LOOK_FOR_MAIN(count)
    raise(SIGTRAP);
    STEP_THROUGH(long sum = traced(1))
    STEP_THROUGH(sum += traced(4))
    printf("%ld %ld, lost %ld\n", sum, (long)noted, (long)num_lost);
    return num_steps > 300 ? 42 : 1;
}
"#;

fn calls() -> String {
    format!("{LONG_WAY}{REPORTS}")
}

fn stepping() -> String {
    format!("{STEPPING}{LONG_WAY}{STEPS}")
}

/// Exceptions come out of `report`, and out of loads among its arguments, each inside and outside of what catches them.
const EXCEPTIONS: &str = r#"
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <string>
static volatile long noted;
static long table[8] = {3, 1, 4, 1, 5, 9, 2, 6};
// clang covers calls alone.
#ifdef __clang__
static long *volatile nowhere = table + 1, *volatile somewhere = table + 2;
#else
static long *volatile nowhere = nullptr, *volatile somewhere = table + 2;
#endif
struct Guard { long x; __attribute__((noinline)) ~Guard() { noted = noted * 31 + x; std::printf("~%ld ", x); } };
// Not all functions have something to clean up.
__attribute__((noinline)) static unsigned plain(unsigned x) { return x * 77 >> 3; }
static void fault(int) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGSEGV); sigprocmask(SIG_UNBLOCK, &set, nullptr); throw std::runtime_error("nowhere"); }
__attribute__((noinline)) static long report(long x, const char *text, long kind, long level, long word) {
    noted += plain(x);
    if (x % 3 == 0) throw std::runtime_error("three " + std::to_string(x));
    if (x % 5 == 0) throw x;
    return text[x & 3] + kind * level + word;
}
#define F(n) __attribute__((noinline)) static long f##n(long a, long *at) { \
    Guard guard{n}; long x = a * n + 1; \
    try { if (x & 1) x += report(x, "an odd number", 17, 23, *at); } catch (long thrown) { std::printf("caught %ld ", thrown); x ^= thrown; } \
    if (x & 2) x = x * n - report(x, "an odd number", 17, 23, *at); \
    try { Guard other{x & 7}; x ^= report(a + n, "a square", 19, 29, *at) << 1; } catch (const std::runtime_error &error) { std::printf("%s ", error.what()); x++; } \
    return x + report(x | 1, "a square", 19, 29, *at) * n; }
F(2) F(7) F(11) F(13)
static long call(int which, long a, long *at) { return which == 0 ? f2(a, at) : which == 1 ? f7(a, at) : which == 2 ? f11(a, at) : f13(a, at); }
int main() {
    std::signal(SIGSEGV, fault);
    long sum = 0;
    for (int i = 0; i < 64; i++) {
        try { sum += call(i & 3, i, i % 7 == 3 ? nowhere : somewhere); }
        catch (const std::exception &error) { std::printf("out: %s\n", error.what()); sum ^= i; }
        catch (long thrown) { std::printf("out: %ld\n", thrown); }
    }
    std::printf("%ld %ld\n", sum, (long)noted);
    return 42;
}
"#;

/// How many calls lead to arguments that they have alike, in what `shrink` makes of a program.
fn shrunk(input: &Path, output: &Path, options: &[&str], folder: &Path) -> i64 {
    let mut command = relift();
    command.args(["shrink", "--verify", "--json"]).args(options).arg(input).arg("-o").arg(output);
    let said = relift_succeeds(&mut command, folder);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let warned = report["warnings"].to_string();
    assert!(!warned.contains("checker"), "{warned}");
    let technique = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "outline");
    technique.and_then(|saving| saving["count"].as_i64()).unwrap_or(0)
}

/// The program without what tails do, which would leave less to this.
fn outlined(input: &Path, folder: &Path) -> PathBuf {
    let output = folder.join("output");
    let count = shrunk(input, &output, &["--skip", "tails", "--slower", "100"], folder);
    assert!(count >= 10, "{count} calls lead to what they have alike");
    output
}

#[test]
fn frames_lie_where_they_did_for_calls_that_lead_to_their_arguments() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in support::c_compilers() {
        let input = built(&calls(), (compiler, "c"), &[], folder.path());
        let output = outlined(&input, folder.path());
        let text = said(&input, &output, folder.path());
        assert!(text.lines().filter(|line| line.ends_with(" 0")).count() > 15, "every walk ends in main: {text}");
        // With all techniques, and what is without them.
        shrunk(&input, &output, &[], folder.path());
        said(&input, &output, folder.path());
        let text = String::from_utf8_lossy(&std::fs::read(&output).expect("it was written")).into_owned();
        assert!(text.contains("outlined.relift.1") && !text.contains("main.relift"), "it has a name of its own");
        assert_eq!(shrunk(&input, &output, &["--skip", "outline"], folder.path()), 0);
    }
}

#[test]
fn main_is_found_from_every_instruction_of_arguments_elsewhere() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = built(&stepping(), (support::c_compilers()[0], "c"), &[], folder.path());
    let output = outlined(&input, folder.path());
    // A jump more is a step more.
    let (before, after) = (run(&mut Command::new(&input), folder.path()), run(&mut Command::new(&output), folder.path()));
    assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
    assert_eq!(before, after);
    assert!(before.stdout_text().ends_with("lost 0\n"), "{before:?}");
}

#[test]
fn exceptions_out_of_arguments_and_out_of_what_is_called_arrive_where_they_did() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for compiler in ["g++", "clang++"] {
        if !installed(compiler) {
            skipped(&format!("{compiler}: it is not installed"));
            continue;
        }
        let input = built(EXCEPTIONS, (compiler, "cpp"), &["-fnon-call-exceptions"], folder.path());
        let output = outlined(&input, folder.path());
        let text = said(&input, &output, folder.path());
        for thrown in ["out: three", "out: nowhere", "caught ", "nowhere ~", "three "] {
            assert!(text.contains(thrown) || compiler != "g++", "{thrown} is among what is thrown: {text}");
        }
    }
}

#[test]
fn debuggers_find_main_from_what_is_called_through_arguments_elsewhere() {
    if !installed("gdb") {
        skipped("gdb is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = built(&calls(), (support::c_compilers()[0], "c"), &["-g"], folder.path());
    let output = outlined(&input, folder.path());
    let frames = |program: &Path| {
        let mut command = Command::new("gdb");
        command.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break report", "-ex", "run"]);
        for _ in 0..15 {
            command.args(["-ex", "backtrace", "-ex", "continue"]);
        }
        let text = run(command.arg(program), folder.path()).stdout_text();
        let names = text.lines().filter(|line| line.starts_with('#')).filter_map(|line| line.split(" (").next());
        names.filter_map(|line| line.split_whitespace().last().map(str::to_owned)).collect::<Vec<String>>()
    };
    let (before, after) = (frames(&input), frames(&output));
    assert_eq!(before.iter().filter(|name| *name == "main").count(), 15, "{before:?}");
    assert_eq!(before, after);
}

#[test]
fn debug_information_describes_arguments_elsewhere_as_nobody_s() {
    if !installed("gdb") {
        skipped("gdb is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = built(&calls(), (support::c_compilers()[0], "c"), &["-g"], folder.path());
    let output = folder.path().join("output");
    assert!(shrunk(&input, &output, &["--skip", "tails", "--slower", "100", "--debug", "update"], folder.path()) >= 10);
    let said = relift_succeeds(relift().arg("check").arg(&input).arg(&output), folder.path());
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(text.contains(": 0 differences"), "{text}");
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-ex", "set debuginfod enabled off", "-ex", "break *(&'outlined.relift.1')", "-ex", "run"]);
    let text = run(command.args(["-ex", "backtrace"]).arg(&output), folder.path()).stdout_text();
    let names = ["#0", "in outlined.relift", "#1", "in f3 (a=a@entry=1)", "#2", "in main ()"];
    let mut rest = text.as_str();
    for name in names {
        rest = rest.split_once(name).unwrap_or_else(|| panic!("{name} is not where it should be: {text}")).1;
    }
}

#[test]
fn arguments_elsewhere_are_relinked_again() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let again = folder.path().join("again");
    for text in [calls(), stepping()] {
        let input = built(&text, (support::c_compilers()[0], "c"), &[], folder.path());
        let output = outlined(&input, folder.path());
        for form in [&["shrink"][..], &["optimize"], &["optimize", "--shuffle", "1"], &["optimize", "--shuffle", "2"]] {
            let mut command = relift();
            relift_succeeds(command.args(form).arg(&output).arg("-o").arg(&again), folder.path());
            said(&input, &again, folder.path());
        }
    }
}

#[test]
fn a_call_of_another_file_s_function_has_the_jump_of_its_stub_and_none_more() {
    // Each function is so short that a jump more would be much of it.
    const SHORT: &str = "#include <fcntl.h>
        #include <stdio.h>
        #include <unistd.h>
        #define F(n, kind) __attribute__((noipa)) static long f##n(long a) { return a * n + fcntl(4711, F_GETFD, kind); }
        F(3, 170001) F(5, 170001) F(7, 190001) F(11, 190001) F(13, 190001)
        int main(int count, char **arguments) { printf(\"%ld\\n\", f3(count) + f5(count) + f7(count) + f11(count) + f13(count)); return 42; }";
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (output, again) = (folder.path().join("output"), folder.path().join("again"));
    for compiler in support::c_compilers() {
        for flags in [["-Wl,-z,lazy", "-fcf-protection=none"], ["-Wl,-z,now", "-fcf-protection=full"]] {
            let input = built(SHORT, (compiler, "c"), &flags, folder.path());
            assert_eq!(shrunk(&input, &output, &["--skip", "tails"], folder.path()), 5, "{compiler} {flags:?}");
            said(&input, &output, folder.path());
            let mut command = relift();
            relift_succeeds(command.args(["optimize", "--shuffle", "1"]).arg(&output).arg("-o").arg(&again), folder.path());
            said(&input, &again, folder.path());
        }
    }
}

/// Calls of a function of another file, through a word, which calls back; `compare` says what it finds.
const CALLING_BACK: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unwind.h>
static uintptr_t top;
static long table[2] = {3, 1};
static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *depth) {
    uintptr_t frame = _Unwind_GetCFA(context);
    if (++*(int *)depth > 1 && frame <= top) printf(" %ld", (long)(top - frame));
    return frame < top ? _URC_NO_REASON : _URC_END_OF_STACK;
}
static int compare(const void *a, const void *b) {
    int depth = 0;
    _Unwind_Backtrace(one, &depth);
    printf("\n");
    return *(const long *)a < *(const long *)b;
}
#define F(n) __attribute__((noipa)) static long f##n(long a) { \
    unsigned long way = a; LONG_WAY(way) \
    long x = a * n + (way & 8); \
    if (x & 1) qsort(table, 2, sizeof(long), compare), x = x * 3 + table[0]; \
    if (x & 2) qsort(table, 2, sizeof(long), compare), x ^= n * table[1]; \
    qsort(table, 2, sizeof(long), compare); \
    return x ^ table[0] << (n & 3); }
F(3) F(5) F(7) F(11) F(13) F(17) F(19) F(23) F(29)
int main(void) {
    top = (uintptr_t)__builtin_dwarf_cfa();
    printf("%ld\n", f3(1) + f5(2) + f7(3) + f11(4) + f13(5) + f17(6) + f19(7) + f23(8) + f29(9) + f3(f5(7)));
    return 42;
}
"#;

/// The same, with exceptions that come through it.
const THROWING_BACK: &str = r#"
#include <cstdio>
#include <cstdlib>
static long table[2] = {3, 1};
static volatile long noted;
struct Guard { long x; __attribute__((noinline)) ~Guard() { noted = noted * 31 + x; std::printf("~%ld ", x); } };
static int compare(const void *a, const void *b) { if (++noted % 3 == 0) throw long(noted); return *(const long *)a < *(const long *)b; }
#define F(n) __attribute__((noipa)) static long f##n(long a) { \
    unsigned long way = a; LONG_WAY(way) \
    Guard guard{n}; long x = a * n + (way & 8) + 1; \
    try { if (x & 1) std::qsort(table, 2, sizeof(long), compare), x ^= table[0]; } catch (long thrown) { std::printf("caught %ld ", thrown); x ^= thrown; } \
    if (x & 2) std::qsort(table, 2, sizeof(long), compare), x *= n; \
    try { Guard other{x & 7}; std::qsort(table, 2, sizeof(long), compare); } catch (long thrown) { x++; } \
    std::qsort(table, 2, sizeof(long), compare); \
    return x + table[1]; }
F(2) F(7) F(11) F(13)
int main() {
    long sum = 0;
    for (int i = 0; i < 64; i++) {
        try { sum += i & 2 ? i & 1 ? f13(i) : f11(i) : i & 1 ? f7(i) : f2(i); } catch (long thrown) { std::printf("out: %ld\n", thrown); sum ^= thrown; }
    }
    std::printf("%ld %ld\n", sum, (long)noted);
    return 42;
}
"#;

#[test]
fn calls_through_words_find_their_frames_and_handlers_from_what_they_call() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let again = folder.path().join("again");
    let compilers = support::c_compilers().into_iter().map(|compiler| (compiler, "c", CALLING_BACK, " 0"));
    let all = compilers.chain(["g++", "clang++"].map(|compiler| (compiler, "cpp", THROWING_BACK, "")));
    for (compiler, extension, text, in_main) in all {
        if !installed(compiler) {
            skipped(&format!("{compiler}: it is not installed"));
            continue;
        }
        let text = format!("{LONG_WAY}{text}");
        let input = built(&text, (compiler, extension), &["-fno-plt", "-Wl,-z,now"], folder.path());
        let output = outlined(&input, folder.path());
        let text = said(&input, &output, folder.path());
        assert!(text.lines().filter(|line| line.ends_with(in_main)).count() > 15, "{text}");
        assert!(extension == "c" || text.contains("out: ") && text.contains("caught "), "{text}");
        let mut command = relift();
        relift_succeeds(command.args(["optimize", "--shuffle", "1"]).arg(&output).arg("-o").arg(&again), folder.path());
        said(&input, &again, folder.path());
    }
}

#[test]
fn a_call_of_what_only_jumps_has_its_jump_and_none_more() {
    // Each function is so short that a jump more would be much of it.
    const SHORT: &str = "#include <stdio.h>
        #include <unistd.h>
        __attribute__((noipa)) static long past(int file, long offset, int kind) { return lseek(file, offset, kind); }
        #define F(n, kind) __attribute__((noipa)) static long f##n(long a) { return a * n + past(4711, 170001, kind); }
        F(3, 170001) F(5, 170001) F(7, 190001) F(11, 190001) F(13, 190001)
        int main(int count, char **arguments) { printf(\"%ld\\n\", f3(count) + f5(count) + f7(count) + f11(count) + f13(count)); return 42; }";
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let (output, again) = (folder.path().join("output"), folder.path().join("again"));
    // The first compiler alone keeps all arguments of a function that it sees.
    let compiler = support::c_compilers()[0];
    for flags in [["-fplt", "-fcf-protection=none"], ["-fno-plt", "-fcf-protection=full"]] {
        let input = built(SHORT, (compiler, "c"), &flags, folder.path());
        assert_eq!(shrunk(&input, &output, &["--skip", "tails"], folder.path()), 5, "{flags:?}");
        said(&input, &output, folder.path());
        let mut command = relift();
        relift_succeeds(command.args(["optimize", "--shuffle", "1"]).arg(&output).arg("-o").arg(&again), folder.path());
        said(&input, &again, folder.path());
    }
}

#[test]
fn what_is_in_loops_and_what_ran_has_no_jump_more() {
    // Two of the calls enter what is before the function, which costs nothing; the others have nothing but a jump more to share.
    const LOOPS: &str = "#include <stdio.h>
        __attribute__((noinline)) static long report(long x, const char *text, long kind, long level) { return text[x & 3] + kind * level; }
        #define F(n, text, kind) __attribute__((noipa)) static long f##n(long a) { long x = a; \\
            for (long i = 0; i < a + n; i++) x = x * n + report(x, text, kind, 23); return x; }
        F(3, \"an odd number\", 17) F(5, \"an odd number\", 17) F(7, \"a square\", 19) F(11, \"a square\", 19)
        int main(int count, char **arguments) { printf(\"%ld\\n\", f3(count) + f5(count) + f7(count) + f11(count)); return 42; }";
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let compiler = support::c_compilers()[0];
    let output = folder.path().join("output");
    let input = built(LOOPS, (compiler, "c"), &[], folder.path());
    assert_eq!(shrunk(&input, &output, &["--skip", "tails"], folder.path()), 2);
    said(&input, &output, folder.path());
    let input = built(&calls(), (compiler, "c"), &[], folder.path());
    let profile = folder.path().join("profile.rlp");
    let counting = folder.path().join("counting");
    let mut command = relift();
    relift_succeeds(command.arg("instrument").arg(&input).arg("-o").arg(&counting).arg("--profile").arg(&profile), folder.path());
    assert_eq!(run(&mut Command::new(&counting), folder.path()).end, End::Exit(SUCCESS));
    let profile = profile.to_str().expect("the scratch folder has a plain name");
    let without = shrunk(&input, &output, &["--skip", "tails", "--slower", "100"], folder.path());
    let with = shrunk(&input, &output, &["--skip", "tails", "-p", profile], folder.path());
    assert!(with < without, "{with} of {without} calls did not run");
    said(&input, &output, folder.path());
}
