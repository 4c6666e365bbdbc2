//! The demo: its source still builds, the committed program still does what the source says, and `relift demo` shows the main job.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use support::{End, relift, relift_succeeds, repository, run};

/// Runs a build of the demo program on both scripts and compares with what is committed beside them.
fn behaves_as_expected(program: &Path, folder: &Path) {
    for (script, expected, end) in [("train.demo", "train.expected", End::Exit(0)), ("test.demo", "test.expected", End::Exit(1))]
    {
        let ended = run(Command::new(program).arg(repository("fixtures/demo").join(script)), folder);
        assert_eq!(ended.end, end, "{script}: {ended:?}");
        let expected = fs::read_to_string(repository("fixtures/demo").join(expected)).expect("the expected output can be read");
        assert_eq!(ended.stdout_text() + &ended.stderr_text(), expected, "{script}");
    }
}

#[test]
fn the_committed_program_does_what_its_scripts_expect() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    behaves_as_expected(&repository("fixtures/demo/demo.elf"), folder.path());
}

#[test]
fn the_source_builds_and_does_the_same() {
    for compiler in support::c_compilers() {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let program = folder.path().join("demo");
        let built =
            run(Command::new("sh").arg(repository("fixtures/demo/build.sh")).arg(&program).env("CC", compiler), folder.path());
        assert_eq!(built.end, End::Exit(0), "{compiler}: {built:?}");
        behaves_as_expected(&program, folder.path());
    }
}

#[test]
fn relift_demo_does_the_whole_job() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let text = relift_succeeds(relift().arg("demo").current_dir(folder.path()), folder.path()).stdout_text();
    assert!(text.contains("taken branches"), "no dyno-stats in {text}");
    let said = relift_succeeds(relift().args(["demo", "--json"]).current_dir(folder.path()), folder.path());
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("demo --json prints JSON");
    let taken = |side: &str| {
        report["dyno"][side]["taken_branches"].as_u64().unwrap_or_else(|| panic!("no taken branches {side} in {report}"))
    };
    assert!(taken("after") * 4 < taken("before") * 3, "taken branches: {} before, {} after", taken("before"), taken("after"));
    assert!(
        report["output_bytes"].as_u64() <= report["input_bytes"].as_u64().map(|bytes| bytes * 103 / 100),
        "the output grew: {report}"
    );
}

#[test]
fn the_optimized_demo_program_does_what_its_scripts_expect() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let output = folder.path().join("optimized");
    let mut train = relift();
    train.arg("train").arg(repository("fixtures/demo/demo.elf")).arg("-o").arg(&output).args(["--", "{}"]);
    relift_succeeds(train.arg(repository("fixtures/demo/train.demo")), folder.path());
    behaves_as_expected(&output, folder.path());
}
