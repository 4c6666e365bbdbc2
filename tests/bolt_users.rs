//! Builds that know BOLT take relift under the names of BOLT's programs: the recipes of CPython's `--enable-bolt` and of `cargo pgo bolt`, word for word.

mod support;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use support::{End, Run, installed, relift, relift_succeeds, run, skipped};

/// A small interpreter, which runs itself in two processes: its profile is that of both.
const INTERPRETER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static long failures;
__attribute__((noinline)) static long failed(const char *what) { fprintf(stderr, "%s\n", what); exit(3); }
__attribute__((noinline)) static long step(int operation, long value) {
    switch (operation & 7) {
    case 0: return value + 1;
    case 1: return value * 3;
    case 2: return value ^ 0x55;
    case 3: if (value == -1) return failed("minus one"); return value;
    case 4: return value - 7;
    case 5: return labs(value);
    case 6: return (value << 2) & 0xffff;
    default: return value > 1000 ? value % 1000 : value;
    }
}
int main(int argc, char **argv) {
    long value = argc > 1 ? atol(argv[1]) : 11;
    pid_t child = fork();
    /* The compiler is told the opposite of what happens, so there is something to mend. */
    for (int i = 0; i < 20000; i++) {
        if (__builtin_expect(i % 1000 != 999, 0)) value = step(i * 5 + (child == 0), value);
        else value ^= failures++;
        if (__builtin_expect(i % 777 != 776, 0)) value = step(i * 3, value) + 1;
        else value -= failures++;
        if (__builtin_expect(i % 555 != 554, 0)) value = step(i * 11, value) ^ 2;
        else value += failures++;
    }
    if (child == 0) _exit(value < 0);
    int status = 0;
    waitpid(child, &status, 0);
    printf("%ld %d\n", value, status);
    return 0;
}
"#;

/// What BOLT's flags in CPython 3.13's `configure.ac` come to, all on one line as the macro leaves them.
const CPYTHON_COMMON: &str =
    "-update-debug-sections -skip-funcs=_PyEval_EvalFrameDefault,sre_ucs1_match/1,sre_ucs2_match/1,sre_ucs4_match/1";
const CPYTHON_APPLY: &str = "-reorder-blocks=ext-tsp -reorder-functions=cdsort -split-functions -icf=1 -inline-all -split-eh \
    -reorder-functions-use-hot-size -peepholes=none -jump-tables=aggressive -inline-ap -indirect-call-promotion=all -dyno-stats -use-gnu-stack \
    -frame-opt=hot";

/// A folder with BOLT's programs, each a link to relift, and the interpreter compiled with `flags`.
fn prepared(flags: &[&str]) -> Option<tempfile::TempDir> {
    if !installed("gcc") {
        skipped("the recipes of BOLT's users: gcc is not installed");
        return None;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for name in ["llvm-bolt", "merge-fdata"] {
        symlink(relift().get_program(), folder.path().join(name)).expect("a link can be made");
    }
    support::compile_text(INTERPRETER, flags, folder.path(), "python");
    Some(folder)
}

/// Runs a recipe as make does: each line by a shell of its own, and the first that fails ends it.
fn make(lines: &[String], folder: &Path) -> Vec<Run> {
    let line = |line: &String| {
        let ran = run(Command::new("sh").args(["-e", "-c", line]).current_dir(folder), folder);
        assert_eq!(ran.end, End::Exit(0), "{line}: {ran:?}");
        ran
    };
    lines.iter().map(line).collect()
}

/// The names of the options that a run said it ignores.
fn ignored(ran: &Run) -> Vec<String> {
    let name = |line: &str| {
        let (option, reason) = line.strip_prefix("relift: bolt: -")?.split_once(" is ignored: ")?;
        assert!(reason.len() > 10, "a reason is given: {line}");
        Some(option.to_owned())
    };
    ran.stderr_text().lines().filter_map(name).collect()
}

/// The share of its taken branches that the optimized program still has, by the report.
fn taken_share(ran: &Run) -> f64 {
    let text = ran.stdout_text();
    let line = text.lines().find(|line| line.starts_with("taken branches")).unwrap_or_else(|| panic!("no dyno-stats: {text}"));
    let number = |word: &str| word.replace(',', "").parse::<f64>().ok();
    let numbers: Vec<f64> = line.split_whitespace().filter_map(number).collect();
    numbers[1] / numbers[0]
}

fn prints_the_same(original: &Path, optimized: &Path, folder: &Path) {
    for argument in ["11", "0", "123456", "-3"] {
        let of = |program: &Path| {
            let ran = run(Command::new(program).arg(argument), folder);
            (ran.end, ran.stdout_text(), ran.stderr_text())
        };
        assert_eq!(of(optimized), of(original), "{argument}");
    }
}

#[test]
fn the_recipe_of_cpythons_enable_bolt_works_with_relift_in_place_of_bolt() {
    // The flags that its configure adds; then the rule `profile-bolt-stamp` of its Makefile.
    let Some(folder) = prepared(&["-O2", "-g", "-fno-reorder-blocks-and-partition", "-fno-pie", "-no-pie", "-Wl,--emit-relocs"])
    else {
        return;
    };
    let here = folder.path();
    let at = here.display();
    let apply = format!("{CPYTHON_COMMON} {CPYTHON_APPLY}");
    let recipe = [
        "cp python python.prebolt; rm -f python.bolt.*.fdata python.fdata".to_owned(),
        format!(
            "bin=python; ./llvm-bolt \"${{bin}}\" -instrument -instrumentation-file-append-pid -instrumentation-file={at}/${{bin}}.bolt \
             -o ${{bin}}.bolt_inst {CPYTHON_COMMON}; mv ${{bin}}.bolt_inst ${{bin}}"
        ),
        "./python; ./python 5".to_owned(),
        "for bin in python; do ./merge-fdata ${bin}.*.fdata > \"${bin}.fdata\"; rm -f ${bin}.*.fdata; done".to_owned(),
        format!(
            "bin=python; ./llvm-bolt \"${{bin}}.prebolt\" -o \"${{bin}}.bolt\" -data=\"${{bin}}.fdata\" {apply}; mv ${{bin}}.bolt ${{bin}}"
        ),
    ];
    let ran = make(&recipe, here);
    assert_eq!(ignored(&ran[1]), ["skip-funcs"]);
    let left_out = ignored(&ran[4]);
    for option in ["skip-funcs", "inline-all", "peepholes", "indirect-call-promotion", "frame-opt", "jump-tables"] {
        assert!(left_out.iter().any(|name| name == option), "{option} is not among {left_out:?}");
    }
    for option in ["dyno-stats", "use-gnu-stack", "inline-ap", "reorder-blocks", "reorder-functions", "split-functions"] {
        assert!(!left_out.iter().any(|name| name == option), "{option} is done");
    }
    assert!(taken_share(&ran[4]) < 0.9, "{}", ran[4].stdout_text());
    prints_the_same(&here.join("python.prebolt"), &here.join("python"), here);
}

#[test]
fn the_commands_of_cargo_pgo_bolt_work_with_relift_in_place_of_bolt() {
    let Some(folder) = prepared(&["-O2", "-fPIE", "-pie", "-Wl,-q"]) else { return };
    let here = folder.path();
    let at = here.display();
    let instrument = format!(
        "mkdir -p profiles/python; ./llvm-bolt -instrument {at}/python --instrumentation-file-append-pid --instrumentation-file \
         {at}/profiles/python/profile -update-debug-sections -o {at}/python-bolt-instrumented"
    );
    // It gathers the files by their extension, and takes what is printed.
    let merge = "./merge-fdata $(find profiles/python -name '*.fdata') > profiles/python/merged.profdata".to_owned();
    let optimize = |more: &str| {
        format!(
            "./llvm-bolt {at}/python -data {at}/profiles/python/merged.profdata -o {at}/python-bolt-optimized -reorder-blocks=ext-tsp \
             -reorder-functions=hfsort -split-functions=2 -split-all-cold -jump-tables=move -use-gnu-stack -split-eh -lite=1 -icf=1 -relocs \
             -update-debug-sections -dyno-stats{more}"
        )
    };
    make(&[instrument, "./python-bolt-instrumented; ./python-bolt-instrumented 5".to_owned(), merge], here);
    // An older version of it has one option more.
    for more in ["", " -tail-duplication=cache"] {
        let ran = make(&[optimize(more)], here);
        assert!(taken_share(&ran[0]) < 0.9, "{}", ran[0].stdout_text());
        prints_the_same(&here.join("python"), &here.join("python-bolt-optimized"), here);
    }
}

#[test]
fn what_a_build_asks_bolts_programs_about_themselves_is_answered() {
    let Some(folder) = prepared(&["-O1"]) else { return };
    for name in ["llvm-bolt", "merge-fdata"] {
        for question in ["--version", "--help", "-help"] {
            let ran = relift_succeeds(Command::new(folder.path().join(name)).arg(question), folder.path());
            assert!(ran.stdout_text().contains("BOLT"), "{name} {question}: {ran:?}");
        }
    }
    let unknown =
        run(Command::new(folder.path().join("llvm-bolt")).args(["python", "-o", "x", "-no-such-option"]), folder.path());
    assert_eq!(unknown.end, End::Exit(1));
    assert!(support::only_line(&unknown).contains("-no-such-option"));
}

#[test]
fn samples_that_are_too_few_to_go_by_are_warned_of() {
    let Some(folder) = prepared(&["-O1", "-Wl,--emit-relocs"]) else { return };
    let warnings = |count: u32| {
        let profile = format!("no_lbr cpu-clock:\n1 main 20 {count}\n1 step 0 {count}\n");
        std::fs::write(folder.path().join("profile.fdata"), profile).expect("a profile can be written");
        let mut command = relift();
        let [input, output, profile] = ["python", "output", "profile.fdata"].map(|name| folder.path().join(name));
        command.arg("optimize").arg(input).arg("-o").arg(output).arg("-p").arg(profile);
        relift_succeeds(&mut command, folder.path()).stderr_text()
    };
    assert!(warnings(3).contains("6 samples for 2 functions are few"), "{}", warnings(3));
    assert!(!warnings(300).contains("are few"), "{}", warnings(300));
}
