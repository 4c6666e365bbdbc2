//! `relift analyze --contexts` finds in compiled code the contexts, clones and machines of the source's figures.

mod support;

use std::path::{Path, PathBuf};

use support::{relift, relift_succeeds, repository};

fn compiled(folder: &Path, more: &[&str]) -> PathBuf {
    let source = repository("fixtures/programs/calling_contexts/calling_contexts.c");
    let program = folder.join("figure");
    let flags: Vec<&str> = ["-O1", "-fno-inline"].iter().chain(more).copied().collect();
    support::compile("gcc", &flags, &[&source], &program).expect("it compiles");
    program
}

fn analyzed(program: &Path, folder: &Path, more: &[&str]) -> serde_json::Value {
    let mut command = relift();
    command.args(["analyze", "--json", "--dump", "fsm"]).args(more).arg(program).args(["--contexts", "1000"]);
    serde_json::from_str(&relift_succeeds(&mut command, folder).stdout_text()).expect("it is JSON")
}

/// A dump with calls numbered by the functions that they are in, in order: `c1` is the first call of `c`.
fn with_calls_named(dump: &str, callers: &str) -> String {
    let mut sites: Vec<&str> =
        dump.split("call before ").skip(1).map(|rest| &rest[..rest.find([' ', ',', '\n']).unwrap()]).collect();
    sites.sort_by_key(|site| u64::from_str_radix(site.trim_start_matches("0x"), 16).expect("it is an address"));
    sites.dedup();
    let names: Vec<String> = callers.split(' ').map(str::to_owned).collect();
    assert_eq!(sites.len(), names.len(), "{dump}");
    sites.iter().zip(names).fold(dump.to_owned(), |text, (site, name)| text.replace(&format!("call before {site}"), &name))
}

/// What `analyze` finds in the program of a figure where contexts save so many instructions at least, and its dump with these names of calls.
fn figure(options: &[&str], least: &str, calls: &str) -> (serde_json::Value, String) {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compiled(folder.path(), options);
    let found = analyzed(&program, folder.path(), &["--least", least]);
    let dump = with_calls_named(found["dump"].as_str().expect("there is a dump"), calls);
    (found, dump)
}

#[test]
fn the_contexts_of_figure_3_are_found_in_compiled_code() {
    let (found, dump) = figure(&["-DFIGURES_ONLY"], "2", "b1 b2 c1 c2 main1");
    let machine = "contexts 1000\n\
         s0: main\n  main1 -> s1\n\
         s1: c by main1\n  c1 -> s2\n  c2 -> s3\n  return -> s0\n\
         s2: b by main1, c1\n  b1 -> s4\n  b2 -> s5\n  return -> s1\n\
         s3: b by main1, c2\n  b1 -> s6\n  b2 -> s7\n  return -> s1\n\
         s4: a as (rdi=0) by main1, c1, b1\n  return -> s2\n\
         s5: a as (rdi=1) by main1, c1, b2\n  return -> s2\n\
         s6: a as (rdi=2) by main1, c2, b1\n  return -> s3\n\
         s7: a as (rdi=3) by main1, c2, b2\n  return -> s3\n";
    assert!(dump.starts_with(machine), "{dump}");
    let copies = "a.(rdi=0): 1 state\na.(rdi=1): 1 state\na.(rdi=2): 1 state\na.(rdi=3): 1 state\n\
         b.tracking: 2 states\n  b1 -> a.(rdi=0), a.(rdi=2)\n  b2 -> a.(rdi=1), a.(rdi=3)\n\
         c.tracking: 1 state\n  c1 -> b.tracking(0)\n  c2 -> b.tracking(1)\n\
         main: main1 -> c.tracking\n";
    assert!(dump.ends_with(copies), "{dump}");
    let row = &found["contexts"][0];
    let numbers = ["contexts", "optimizable", "nodes", "states", "clones", "tracking_copies"].map(|name| row[name].as_u64());
    assert_eq!(numbers, [Some(7), Some(4), Some(7), Some(8), Some(4), Some(2)], "{found}");
}

#[test]
fn the_contexts_of_figure_4_are_found_in_compiled_code() {
    let (_, dump) = figure(&["-DFIGURES_ONLY", "-DFIGURE_4"], "2", "b1 b2 c1 main1");
    let machine = "contexts 1000\n\
         s0: main\n  main1 -> s1\n\
         s1: c by main1\n  c1 -> s2\n  return -> s0\n\
         s2: b by main1, c1\n  b1 -> s3\n  b2 -> s4\n  return -> s1\n\
         s3: a as (rdi=0) by main1, c1, b1\n  return -> s2\n\
         s4: a as (rdi=1) by main1, c1, b2\n  return -> s2\n";
    assert!(dump.starts_with(machine), "{dump}");
    assert!(dump.contains("b.tracking: 1 state\n") && dump.contains("main: main1 -> c.tracking\n"), "{dump}");
}

#[test]
fn a_mode_that_recursion_hands_down_makes_one_state_for_each_mode() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compiled(folder.path(), &[]);
    let found = analyzed(&program, folder.path(), &[]);
    let row = &found["contexts"][0];
    assert_eq!(row["contexts"], 1000, "recursion goes as deep as the budget: {found}");
    let dump = found["dump"].as_str().expect("there is a dump");
    for mode in 0..3 {
        let copy = dump.lines().find(|line| line.starts_with(&format!("sum.(rdi={mode}")) && line.contains("state"));
        assert!(copy.is_some_and(|copy| copy.ends_with(": 1 state")), "mode {mode}:\n{dump}");
    }
}

/// Optimizes with copies for all contexts in which so many instructions go; the output must behave. The report, by what was made.
fn cloned(program: &Path, folder: &Path, mode: &str, least: &str, is_checked: bool) -> serde_json::Value {
    let expected = support::run(&mut std::process::Command::new(program), folder);
    let output = folder.join(mode);
    let mut command = relift();
    command.args(["optimize", "--json", "--verify", "--clone-everywhere", "--clone", mode, "--clone-least", least]);
    // The checker does not follow all copies, and leaves out what it does not.
    command.args((!is_checked).then_some("--no-check"));
    let report = relift_succeeds(command.arg(program).arg("-o").arg(&output), folder);
    let report: serde_json::Value = serde_json::from_str(&report.stdout_text()).expect("it is JSON");
    let found = support::run(&mut std::process::Command::new(&output), folder);
    assert_eq!((found.end, found.stdout_text()), (expected.end, expected.stdout_text()), "--clone {mode}");
    report["transforms"]["specialize"].clone()
}

const MODES: [&str; 7] = ["direct", "machine", "inline", "table", "shared", "full", "all"];

#[test]
fn clones_for_all_contexts_leave_the_program_what_it_was() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compiled(folder.path(), &[]);
    for mode in MODES {
        let made = cloned(&program, folder.path(), mode, "1", false);
        assert!(made["clones"].as_u64() > Some(0), "{made}");
    }
}

/// Clones, copies on the way, those of them that keep a state, and states, as the output has them; what the two last modes make is what full cloning makes.
fn assert_machine(options: &[&str], least: &str, machine: [u64; 4], full: [u64; 4]) {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compiled(folder.path(), options);
    for mode in MODES {
        let made = cloned(&program, folder.path(), mode, least, false);
        let numbers = ["clones", "copies on the way", "copies that keep a state", "states"].map(|name| made[name].as_u64());
        let expected = match mode {
            "direct" => continue,
            "shared" | "full" => full,
            _ => machine,
        };
        assert_eq!(numbers, expected.map(Some), "--clone {mode}: {made}");
        let dispatch = |name: &str| made[name].as_u64().unwrap_or(0);
        if machine[2] > 0 && mode != "shared" && mode != "full" {
            let by = if mode == "table" { "calls by table" } else { "calls that compare" };
            assert_eq!(dispatch(by), 2, "--clone {mode}: {made}");
        }
    }
}

#[test]
fn the_program_of_figures_1_and_3_runs_with_the_machine_of_figure_3() {
    // Four clones of `a`; `b` in two states, `c` in one.
    assert_machine(&["-DFIGURES_ONLY"], "2", [4, 2, 1, 7], [4, 3, 0, 7]);
}

#[test]
fn the_program_of_figure_4_runs_as_figure_6_has_it() {
    assert_machine(&["-DFIGURES_ONLY", "-DFIGURE_4"], "2", [2, 2, 0, 4], [2, 2, 0, 4]);
}

#[test]
fn the_program_of_figure_7_enters_and_leaves_the_contexts_that_matter() {
    let options = ["-DFIGURES_ONLY", "-DFIGURE_7"];
    let (_, dump) = figure(&options, "9", "b1 b2 c1 c2 main1");
    let machine = "contexts 1000\n\
         s0: main\n  main1 -> s1\n\
         s1: c by main1\n  c1 -> s2\n  c2 -> s3\n  return -> s0\n\
         s2: b by main1, c1\n  b1 -> s4\n  b2 -> s6\n  return -> s1\n\
         s3: b by main1, c2\n  b1 -> s7\n  b2 -> s5\n  return -> s1\n\
         s4: a as (rdi=0) by main1, c1, b1\n  return -> s2\n\
         s5: a as (rdi=3) by main1, c2, b2\n  return -> s3\n\
         s6: an original, called from s2\n  return -> s2\n\
         s7: an original, called from s3\n  return -> s3\n";
    assert!(dump.starts_with(machine), "{dump}");
    let copies = "a.(rdi=0): 1 state\na.(rdi=3): 1 state\n\
         b.tracking: 2 states\n  b1 -> a.(rdi=0), original\n  b2 -> original, a.(rdi=3)\n\
         c.tracking: 1 state\n  c1 -> b.tracking(0)\n  c2 -> b.tracking(1)\n\
         main: main1 -> c.tracking\n";
    assert!(dump.ends_with(copies), "{dump}");
    assert_machine(&options, "9", [2, 2, 1, 5], [2, 3, 0, 5]);
}

#[test]
fn what_the_checker_can_not_follow_of_clones_is_left_out() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let program = compiled(folder.path(), &[]);
    for mode in MODES {
        let made = cloned(&program, folder.path(), mode, "1", true);
        let kept = |made: &serde_json::Value| {
            let count = |name: &str| made[name].as_u64().unwrap_or(0);
            count("clones") + count("copies on the way") > count("clones and copies left out") && count("bytes of copies") > 0
        };
        assert!(mode != "direct" || kept(&made), "--clone {mode}: {made}");
    }
}
