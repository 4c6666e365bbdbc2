//! Which functions stay because data hold their return addresses, at a fixed address, where a word is a number like any other.

mod support;

use std::path::Path;

use serde_json::Value;
use support::{compile, installed, relift, relift_succeeds, repository, skipped};

/// The names of the functions that stay for it, in the order of their addresses; `None` without a compiler.
fn functions_that_stay(fixture: &str, scratch: &Path) -> Option<Vec<String>> {
    if !installed("gcc") {
        skipped("there is no gcc");
        return None;
    }
    let source = repository(&format!("fixtures/programs/{fixture}/{fixture}.c"));
    let program = scratch.join(fixture);
    compile("gcc", &["-O2", "-no-pie", "-fno-pie"], &[&source], &program).unwrap_or_else(|error| panic!("{error}"));
    let said = relift_succeeds(relift().args(["inspect", "--json", "-v"]).arg(&program), scratch);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    assert_eq!(report["mode"], "guard");
    let pinned = report["pinned_functions"].as_array().expect("-v names them").iter();
    let stay = pinned.filter(|function| function["reason"] == "return-address-named");
    Some(stay.map(|function| function["name"].as_str().unwrap_or_default().to_owned()).collect())
}

#[test]
fn functions_whose_calls_return_where_a_table_says_stay() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("frame_table", scratch.path()) else { return };
    for name in ["visit", "climb", "descend"] {
        assert!(stay.iter().any(|function| function == name), "{name} is not among {stay:?}");
    }
}

#[test]
fn numbers_that_look_like_return_addresses_by_chance_keep_nothing() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("return_numbers", scratch.path()) else { return };
    assert_eq!(stay, Vec::<String>::new());
}
