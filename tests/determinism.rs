//! The same input and profile give the same bytes: on every run, for any number of threads.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, relift, relift_succeeds, repository, run};

/// Instruments the demo program, runs its training script, and returns the profile.
fn demo_profile(folder: &Path) -> PathBuf {
    let (program, profile) = (folder.join("instrumented"), folder.join("demo.rlp"));
    let demo = repository("fixtures/demo/demo.elf");
    relift_succeeds(relift().arg("instrument").arg(&demo).arg("-o").arg(&program).arg("--profile").arg(&profile), folder);
    assert_eq!(run(Command::new(&program).arg(repository("fixtures/demo/train.demo")), folder).end, End::Exit(0));
    profile
}

#[test]
fn two_runs_and_any_number_of_threads_give_the_same_bytes() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let profile = demo_profile(folder.path());
    let mut outputs = Vec::new();
    for (run_number, threads) in [(1, "1"), (2, "1"), (3, "2"), (4, "5")] {
        let output = folder.path().join(format!("output{run_number}"));
        let mut optimize = relift();
        optimize.arg("optimize").arg(repository("fixtures/demo/demo.elf")).arg("-o").arg(&output).arg("-p").arg(&profile);
        relift_succeeds(optimize.args(["--threads", threads]), folder.path());
        outputs.push(fs::read(&output).expect("the output can be read"));
    }
    assert!(outputs.iter().all(|bytes| *bytes == outputs[0]), "the outputs differ");
}

#[test]
fn a_shuffle_depends_on_its_seed_alone() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let shuffled = |seed: &str, name: &str| {
        let output = folder.path().join(name);
        let mut optimize = relift();
        optimize.arg("optimize").arg(repository("fixtures/demo/demo.elf")).arg("-o").arg(&output).args(["--shuffle", seed]);
        relift_succeeds(&mut optimize, folder.path());
        fs::read(&output).expect("the output can be read")
    };
    let first = shuffled("1", "first");
    assert_eq!(first, shuffled("1", "again"));
    assert_ne!(first, shuffled("2", "second"));
}
