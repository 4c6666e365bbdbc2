//! Which functions stay because of numbers in data, at a fixed address, where a pointer is a number like any other.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::{End, compile, installed, offset_of, relift, relift_succeeds, repository, run, skipped};

/// Builds a fixture at a fixed address; `None` without a compiler.
fn build(fixture: &str, scratch: &Path) -> Option<PathBuf> {
    build_with(fixture, &["-O2", "-no-pie", "-fno-pie"], scratch)
}

fn build_with(fixture: &str, options: &[&str], scratch: &Path) -> Option<PathBuf> {
    if !installed("gcc") {
        skipped("there is no gcc");
        return None;
    }
    let source = repository(&format!("fixtures/programs/{fixture}/{fixture}.c"));
    let program = scratch.join(fixture);
    compile("gcc", options, &[&source], &program).unwrap_or_else(|error| panic!("{error}"));
    Some(program)
}

/// The functions of a fixture at a fixed address that stay, by name and reason, in the order of their addresses.
fn functions_that_stay(fixture: &str, scratch: &Path) -> Option<Vec<(String, String)>> {
    Some(that_stay(&build(fixture, scratch)?, "guard", scratch))
}

fn that_stay(program: &Path, mode: &str, scratch: &Path) -> Vec<(String, String)> {
    let said = relift_succeeds(relift().args(["inspect", "--json", "-v"]).arg(program), scratch);
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    assert_eq!(report["mode"], mode);
    let pinned = report["pinned_functions"].as_array().expect("-v names them").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    pinned.map(|function| (text(&function["name"]), text(&function["reason"]))).collect()
}

const NAMED: &str = "return-address-named";

#[test]
fn functions_whose_calls_return_where_a_table_says_stay() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("frame_table", scratch.path()) else { return };
    for name in ["visit", "climb", "descend"] {
        assert!(stay.contains(&(name.to_owned(), NAMED.to_owned())), "{name} is not among {stay:?}");
    }
}

/// Position-independent code, in which all words that hold addresses are known.
#[test]
fn functions_whose_calls_return_where_a_relocated_table_says_stay() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for options in [["-O2", "-pie", "-fPIE"], ["-O2", "-no-pie", "-Wl,--emit-relocs"]] {
        let Some(program) = build_with("frame_table", &options, scratch.path()) else { return };
        let stay = that_stay(&program, "replace", scratch.path());
        for name in ["visit", "climb", "descend"] {
            assert!(stay.contains(&(name.to_owned(), NAMED.to_owned())), "{options:?}: {name} is not among {stay:?}");
        }
    }
}

#[test]
fn labels_side_by_side_of_which_some_stand_behind_calls_keep_nothing() {
    let fixed = ["-Os", "-no-pie", "-fno-pie"];
    let with_relocations = ["-Os", "-no-pie", "-fno-pie", "-Wl,--emit-relocs"];
    for (options, mode) in [(&fixed[..], "guard"), (&with_relocations, "replace"), (&["-Os", "-pie", "-fPIE"], "replace")] {
        let scratch = tempfile::tempdir().expect("a scratch folder can be made");
        let Some(program) = build_with("threaded_labels", options, scratch.path()) else { return };
        let stay = that_stay(&program, mode, scratch.path());
        assert!(!stay.iter().any(|function| function.1 == NAMED), "{options:?}: {stay:?}");
    }
}

#[test]
fn numbers_that_look_like_return_addresses_by_chance_keep_nothing() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("return_numbers", scratch.path()) else { return };
    assert!(!stay.iter().any(|function| function.1 == NAMED), "{stay:?}");
}

#[test]
fn padding_stays_for_a_number_that_leads_to_one_of_its_instructions_and_not_for_one_that_leads_into_one() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("padding_numbers", scratch.path()) else { return };
    let stays = |name: &str| stay.iter().any(|function| function.0 == name);
    assert!(stays("behind_beginning"), "{stay:?}");
    assert!(!stays("behind_middle"), "{stay:?}");
}

#[test]
fn labels_too_near_for_a_jump_at_each_keep_their_function_only_if_relays_have_no_room() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("near_labels", scratch.path()) else { return };
    let stays = |name: &str| stay.iter().any(|function| function.0 == name);
    assert!(!stays("ladder"), "{stay:?}");
    assert!(stays("tight") && stays("single"), "{stay:?}");
}

#[test]
fn the_checker_sees_a_relay_that_leads_elsewhere() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(program) = build("near_labels", scratch.path()) else { return };
    let output = scratch.path().join("moved");
    relift_succeeds(relift().args(["optimize", "--shuffle", "1"]).arg(&program).arg("-o").arg(&output), scratch.path());
    let (input, right) = (fs::read(&program).expect("it was built"), fs::read(&output).expect("it was made"));
    let is_right = |bytes: &[u8]| {
        let changed = scratch.path().join("changed");
        fs::write(&changed, bytes).expect("the scratch folder can be written");
        run(relift().arg("check").arg(&program).arg(&changed), scratch.path()).end == End::Exit(0)
    };
    assert!(is_right(&right));
    let (first, second) = (offset_of("ladder_1", &input), offset_of("ladder_2", &input));
    assert_eq!((right[first], right[second]), (0xeb, 0xeb), "both are short jumps");
    let relay = |at: usize| (at + 2).wrapping_add_signed(right[at + 1] as i8 as isize);
    assert_eq!((right[relay(first)], right[relay(second)]), (0xe9, 0xe9), "to jumps");
    // To the other's relay, and a relay that leads to the code of the other.
    let mut wrong = right.clone();
    wrong[first + 1] = wrong[second + 1].wrapping_add(2);
    assert!(!is_right(&wrong));
    let mut wrong = right.clone();
    let displacement = i32::from_le_bytes(right[relay(second) + 1..relay(second) + 5].try_into().expect("four bytes"));
    let other = displacement + (relay(second) as i32 - relay(first) as i32);
    wrong[relay(first) + 1..relay(first) + 5].copy_from_slice(&other.to_le_bytes());
    assert!(!is_right(&wrong));
}
