//! The tables of a function at a fixed address, which follow each other: each ends where its switch says.

mod support;

use std::fmt::Write;
use std::process::Command;

use support::{compile_text, installed, relift, relift_succeeds, run, skipped};

const SWITCHES: usize = 40;

/// A function with many switches of eight cases, each of which has a table.
fn program() -> String {
    let mut text = String::from("#include <stdio.h>\nvolatile unsigned in[64];\nint main(void) {\n    unsigned x = 1;\n");
    for switch in 0..SWITCHES {
        writeln!(text, "    switch (in[{switch}] & 7) {{").expect("a string takes all");
        for case in 0..8 {
            let (factor, more) = (2 * case + 3, switch * 8 + case);
            writeln!(text, "    case {case}: x = x * {factor} + {more}; in[{case}] = x; break;").expect("a string takes all");
        }
        text.push_str("    }\n");
    }
    text.push_str("    printf(\"%u\\n\", x);\n    return 0;\n}\n");
    text
}

#[test]
fn a_switch_leads_to_its_own_cases_only() {
    if !installed("gcc") || !installed("strip") {
        return skipped("there is no gcc, or no strip");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(&program(), &["-O2", "-fno-pie", "-no-pie"], folder, "program");
    support::split::strip(&program, folder);
    let said = relift_succeeds(relift().args(["inspect", "--json"]).arg(&program), folder);
    let counts: serde_json::Value = serde_json::from_slice(&said.stdout).expect("it is JSON");
    let count = |name: &str| counts[name].as_u64().unwrap_or_else(|| panic!("{name} is a number: {counts}")) as usize;
    let num_tables = count("tables");
    assert!(num_tables >= SWITCHES, "{num_tables} tables");
    // Eight of each table, and a few of each case.
    assert!(count("edges") < 8 * num_tables * 4, "{} edges of {num_tables} tables", count("edges"));

    let shuffled = folder.join("shuffled");
    relift_succeeds(relift().args(["optimize", "--shuffle", "5"]).arg(&program).arg("-o").arg(&shuffled), folder);
    assert_eq!(run(&mut Command::new(&shuffled), folder), run(&mut Command::new(&program), folder));
}
