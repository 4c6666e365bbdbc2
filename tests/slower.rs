//! How much more time a program may take for fewer bytes, where there is no profile, and a profile from a command.

mod support;

use std::path::Path;
use std::process::Command;

use support::{End, Run, relift, relift_succeeds, run, shrink, skipped};

const BASH: &str = "/bin/bash";
const SCRIPT: &str = "for i in {1..300}; do s=$((s + i % 7)); t=\"$s-$i\"; case $t in *9) u=${t%-*};; *) u=${t#*-};; esac; done; echo $s $u; exit 42";

/// What a bash says to the script.
fn said(program: &Path, folder: &Path) -> Run {
    run(Command::new(program).args(["-c", SCRIPT]), folder)
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it was written").len()
}

#[test]
fn the_more_time_may_be_taken_the_smaller_the_file_and_it_does_the_same() {
    let program = Path::new(BASH);
    if !program.exists() {
        return skipped("time for bytes: there is no bash");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let said = |program: &Path| said(program, folder.path());
    let before = said(program);
    assert_eq!(before.end, End::Exit(42), "{before:?}");
    let mut sizes = Vec::new();
    for percent in ["0", "2", "10", "100"] {
        let (output, _) = shrink(program, &["--slower", percent], percent, folder.path());
        assert_eq!(said(&output), before, "{percent} %");
        sizes.push(len(&output));
    }
    assert!(sizes.is_sorted_by(|more, less| more > less), "{sizes:?}");
    let (output, _) = shrink(program, &[], "default", folder.path());
    assert_eq!(len(&output), sizes[1]);
}

#[test]
fn a_command_makes_the_profile() {
    let program = Path::new(BASH);
    if !program.exists() {
        return skipped("a command makes the profile: there is no bash");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let output = folder.path().join("output");
    let mut command = relift();
    command.args(["shrink", "--json"]).arg(program).arg("-o").arg(&output).args(["--", "{}", "-c", SCRIPT]);
    let report = relift_succeeds(&mut command, folder.path());
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("--json prints JSON");
    assert!(report["slower"].is_null(), "{report}");
    assert_eq!(said(&output, folder.path()), said(program, folder.path()));
    let (guessed, told) = shrink(program, &[], "guessed", folder.path());
    assert_eq!(told["slower"], 2.0, "{told}");
    assert!(len(&output) < len(&guessed), "what did not run is shared");
    let mut without = relift();
    without.arg("shrink").arg(program).arg("-o").arg(&output).args(["--", "true"]);
    let refused = run(&mut without, folder.path());
    assert_eq!(refused.end, End::Exit(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("doesn't mention {}"), "{refused:?}");
}

#[test]
fn a_profile_knows_and_numbers_that_mean_nothing_are_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = Path::new(env!("CARGO_BIN_EXE_relift"));
    let refused = |options: &[&str], why: &str| {
        let said = run(relift().arg("shrink").arg(program).args(["-o", "output"]).args(options), folder.path());
        assert_eq!(said.end, End::Exit(2), "{options:?}: {said:?}");
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(text.contains(why), "{text}");
    };
    refused(&["--slower", "1", "-p", "profile.rlp"], "cannot be used with");
    refused(&["--slower", "1", "--", "{}"], "cannot be used with");
    for number in ["101", "-1", "NaN", "much"] {
        refused(&[&format!("--slower={number}")], "a number from 0 to 100");
    }
}
