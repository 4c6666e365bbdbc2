//! A profile fits a program however it was stripped: symbols and the linker's relocations decide how code is cut into functions, not where it is.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{compile_text, installed, relift, relift_succeeds, run, skipped};

const PROGRAM: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noclone))
static APART int triple(int x) { return x % 3 ? 3 * x + 1 : x / 3; }
static APART int halve(int x) { return x & 1 ? triple(x) : x >> 1; }
static APART int step(int kind, int x) {
    switch (kind) { case 0: return halve(x); case 1: return triple(x) % 1000; case 2: return x ^ 5; case 3: return x + kind;
        case 4: return -x & 255; case 5: return x * x % 777; default: return 1; }
}
static int (*const steps[])(int) = { halve, triple };
int main(void) {
    int x = 27;
    for (int i = 0; i < 20000; i++) x = step(i % 7, x) + steps[i & 1](x) % 99;
    printf("%d\n", x);
    return 0;
}
"#;

const FORMS: [&[&str]; 5] = [
    &["-fPIE", "-pie", "-Wl,--emit-relocs"],
    &["-fPIE", "-pie", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables"],
    &["-fPIE", "-pie", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--emit-relocs"],
    &["-fno-pie", "-no-pie", "-Wl,--emit-relocs"],
    &["-fPIE", "-static-pie"],
];

fn profile_of(program: &Path, folder: &Path) -> PathBuf {
    let profile = folder.join("profile");
    let mut train = relift();
    train.arg("train").arg(program).arg("-o").arg(folder.join("trained")).arg("--profile").arg(&profile).args(["--", "{}"]);
    relift_succeeds(&mut train, folder);
    profile
}

/// What `optimize` says of a profile, and that its output does what the input does.
fn quality(program: &Path, options: &[&Path], folder: &Path) -> Value {
    let output = folder.join("optimized");
    let mut optimize = relift();
    optimize.arg("optimize").arg(program).arg("-o").arg(&output).args(["--json", "-p"]).args(options);
    let said = relift_succeeds(&mut optimize, folder);
    assert_eq!(run(&mut Command::new(&output), folder), run(&mut Command::new(program), folder), "{options:?}");
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    report["profile"].clone()
}

fn assert_whole(found: &Value, what: &str) {
    assert!(found["counts_total"].as_u64().is_some_and(|total| total > 10_000), "{what}: {found:#}");
    assert_eq!(found["counts_matched"], found["counts_total"], "{what}: {found:#}");
    assert_eq!(found["functions_matched"], found["functions_total"], "{what}: {found:#}");
    assert_eq!(found["stale"], Value::Null, "{what}: {found:#}");
}

#[test]
fn a_profile_of_the_program_with_symbols_is_one_of_the_stripped_program_and_the_other_way_round() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for form in FORMS {
        let whole = compile_text(PROGRAM, &[form, &["-O2", "-w"]].concat(), folder, "whole");
        let stripped = folder.join("stripped");
        let done = Command::new("strip").arg("-o").arg(&stripped).arg(&whole).status().expect("strip starts");
        assert!(done.success());
        for (trained, other) in [(&whole, &stripped), (&stripped, &whole)] {
            let profile = profile_of(trained, folder);
            assert_whole(&quality(other, &[&profile], folder), &format!("{form:?}"));
            let with_program = [profile.as_path(), Path::new("--profile-binary"), trained];
            assert_whole(&quality(other, &with_program, folder), &format!("{form:?}, with the program"));
        }
    }
}
