//! Edits of code as a user meets them: switched by name, counted, listed, and limited one by one.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use support::{End, SUCCESS};

/// The fixture with small leaves and calls of the C library, built; `None` without a compiler.
fn built(scratch: &Path) -> Option<PathBuf> {
    built_from("small_leaves", &[], scratch)
}

/// A fixture, built as a position-independent program; `None` without a compiler.
fn built_from(name: &str, options: &[&str], scratch: &Path) -> Option<PathBuf> {
    if !support::installed("gcc") {
        support::skipped("edits of code: there is no gcc");
        return None;
    }
    let program = scratch.join(name);
    let source = support::repository(&format!("fixtures/programs/{name}/{name}.c"));
    let status =
        Command::new("gcc").args(["-O2", "-fPIE", "-pie", "-w"]).arg(source).args(options).arg("-o").arg(&program).status();
    assert!(status.is_ok_and(|status| status.success()), "the fixture can't be built");
    Some(program)
}

/// Optimizes with every legal edit and these options; gives the report and what was listed. The output must behave.
fn optimized(program: &Path, options: &[&str], scratch: &Path) -> (Value, String) {
    let output = scratch.join("output");
    let mut command = support::relift();
    command.args(["optimize", "--edit-everywhere", "--json", "--verbose"]).args(options).arg(program).arg("-o").arg(&output);
    let said = support::run(&mut command, scratch);
    assert_eq!(said.end, End::Exit(0), "{command:?}: {said:?}");
    let ran = support::run(&mut Command::new(&output), scratch);
    assert_eq!(ran.end, End::Exit(SUCCESS), "after {command:?}: {ran:?}");
    let report = serde_json::from_str(&said.stdout_text()).expect("the report is JSON");
    (report, said.stderr_text())
}

fn sites(report: &Value, transform: &str) -> u64 {
    report["transforms"][transform]["sites"].as_u64().unwrap_or(0)
}

fn listed(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with("relift: edit: ")).count()
}

#[test]
fn what_seldom_runs_of_an_inlined_beginning_lies_apart() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = built(scratch.path()) else { return };
    let (_, text) = optimized(&program, &[], scratch.path());
    let count =
        text.lines().filter(|line| line.starts_with("relift: edit: inline-leaves") && line.contains(", apart from +")).count();
    assert!(count >= 1, "{text}");
}

#[test]
fn each_transform_is_a_switch_and_says_what_it_did() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = built(scratch.path()) else { return };
    let (all, text) = optimized(&program, &[], scratch.path());
    let (stubs, leaves) = (sites(&all, "plt-calls"), sites(&all, "inline-leaves"));
    assert!(stubs >= 1 && leaves >= 6, "{}", all["transforms"]);
    // Start-up code may have marks that go.
    assert_eq!(listed(&text) as u64, stubs + leaves + sites(&all, "endbr"));
    let (skipped, _) = optimized(&program, &["--skip", "inline-leaves"], scratch.path());
    assert_eq!((sites(&skipped, "plt-calls"), sites(&skipped, "inline-leaves")), (stubs, 0));
    let (only, _) = optimized(&program, &["--only", "inline-leaves"], scratch.path());
    assert_eq!((sites(&only, "plt-calls"), sites(&only, "inline-leaves")), (0, leaves));
}

#[test]
fn fuel_limits_edits_one_by_one_once_all_functions_are_laid_out() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = built(scratch.path()) else { return };
    let (all, text) = optimized(&program, &[], scratch.path());
    let functions = all["functions"]["moved"].as_u64().expect("functions are counted");
    for (fuel, edits) in [(0, 0), (functions, 0), (functions + 1, 1), (functions + 3, 3), (1 << 40, listed(&text))] {
        let (_, text) = optimized(&program, &["--fuel", &fuel.to_string()], scratch.path());
        assert_eq!(listed(&text), edits, "with fuel {fuel} and {functions} functions");
    }
}

#[test]
fn without_a_profile_no_code_is_edited() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = built(scratch.path()) else { return };
    let output = scratch.path().join("output");
    let mut command = support::relift();
    command.args(["optimize", "--json"]).arg(&program).arg("-o").arg(&output);
    let said = support::run(&mut command, scratch.path());
    let report: Value = serde_json::from_str(&said.stdout_text()).expect("the report is JSON");
    assert!(report["transforms"].get("plt-calls").is_none() && report["transforms"].get("inline-leaves").is_none());
}

#[test]
fn constants_and_addresses_are_put_where_they_are_loaded() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let options = ["-fno-plt", "-Wl,--no-relax", "-Wl,-z,relro,-z,now"];
    let Some(program) = built_from("constant_words", &options, scratch.path()) else { return };
    let (report, text) = optimized(&program, &["--only", "constant-loads"], scratch.path());
    assert!(sites(&report, "constant-loads") >= 7, "{text}");
    assert!(text.contains("bytes become 48 c7"), "{text}");
    let (without, _) = optimized(&program, &["--skip", "constant-loads"], scratch.path());
    assert_eq!(sites(&without, "constant-loads"), 0);
}

/// Where a function's code is in a file.
fn code_of(bytes: &[u8], name: &str) -> std::ops::Range<usize> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let file = object::File::parse(bytes).expect("the output is an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).expect("the function has a symbol");
    let holds =
        |section: &object::Section<'_, '_>| (section.address()..section.address() + section.size()).contains(&symbol.address());
    let section = file.sections().find(holds).expect("the function is in a section");
    let start = (section.file_range().expect("it is in the file").0 + symbol.address() - section.address()) as usize;
    start..start + symbol.size() as usize
}

#[test]
fn registers_are_saved_late_and_a_fault_in_that_is_found() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = built_from("early_saves", &["-fno-shrink-wrap"], scratch.path()) else { return };
    let (report, text) = optimized(&program, &["--only", "late-saves"], scratch.path());
    assert!(sites(&report, "late-saves") >= 2, "{text}");
    // Each change of a bit is found, or does nothing.
    let right = std::fs::read(scratch.path().join("output")).expect("the output can be read");
    let wrong = scratch.path().join("wrong");
    let mut found = 0;
    let range = code_of(&right, "lookup");
    for at in range.clone().take(48) {
        for bit in [0, 3] {
            let mut bytes = right.clone();
            bytes[at] ^= 1 << bit;
            std::fs::copy(scratch.path().join("output"), &wrong).expect("a file can be copied");
            std::fs::write(&wrong, bytes).expect("a file can be written");
            let mut check = support::relift();
            let said = support::run(check.arg("check").arg(&program).arg(&wrong), scratch.path());
            if said.end == End::Exit(0) {
                let ran = support::run(&mut Command::new(&wrong), scratch.path());
                assert_eq!(
                    ran.end,
                    End::Exit(SUCCESS),
                    "bit {bit} of byte {} was changed, and the check passed",
                    at - range.start
                );
            } else {
                found += 1;
            }
        }
    }
    assert!(found > 60, "{found}");
}

#[test]
fn registers_are_put_aside_and_guards_of_frames_stay_in_registers() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for options in [&["-fno-shrink-wrap"][..], &["-fno-shrink-wrap", "-fstack-protector-all"]] {
        let Some(program) = built_from("early_saves", options, scratch.path()) else { return };
        let (report, text) = optimized(&program, &["--only", "late-saves"], scratch.path());
        assert!(sites(&report, "late-saves") >= 3, "{options:?}: {text}");
        // `movq` of a register to one of xmm8 to xmm15.
        let aside = text
            .lines()
            .filter(|line| line.contains("edit: late-saves") && (line.contains(" 66 4c 0f 6e") || line.contains(" 66 4d 0f 6e")));
        assert!(aside.count() >= 1, "{options:?}: {text}");
    }
}
