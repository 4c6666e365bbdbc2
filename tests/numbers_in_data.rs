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

/// Two functions of which each happens to have a return address that data name (of a call that does not come back, where the next function begins), and many between them.
#[test]
fn what_lies_between_two_functions_with_return_addresses_by_chance_moves() {
    const PROGRAM: &str = r#"
#include <stdlib.h>
#include <stdio.h>
#define APART __attribute__((noinline, noclone, no_icf))
#define LEAF(n) APART int leaf##n(int x) { return x * (n + 3) ^ n; }
APART int leave(int x) { if (x > 1000000) exit(9); return x + 1; }
int before(int x), behind(int x);
__asm__(".text\n.globl before\n.type before, @function\nbefore: .cfi_startproc\nsub $8, %rsp\n.cfi_def_cfa_offset 16\ncall leave\n1: add $8, %rsp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size before, .-before\n"
        ".section .data.rel.ro, \"aw\"\n.balign 8\n.globl held\nheld: .quad 1b, 7, 2f\n.text\n");
LEAF(0) LEAF(1) LEAF(2) LEAF(3) LEAF(4) LEAF(5) LEAF(6) LEAF(7) LEAF(8) LEAF(9) LEAF(10) LEAF(11) LEAF(12) LEAF(13) LEAF(14) LEAF(15) LEAF(16) LEAF(17) LEAF(18) LEAF(19)
__asm__(".text\n.globl behind\n.type behind, @function\nbehind: .cfi_startproc\nsub $8, %rsp\n.cfi_def_cfa_offset 16\ncall leave\n2: add $8, %rsp\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size behind, .-behind\n");
extern const unsigned char *const held[3];
typedef int function(int);
function *volatile all[] = { leaf0, leaf1, leaf2, leaf3, leaf4, leaf5, leaf6, leaf7, leaf8, leaf9, leaf10, leaf11, leaf12, leaf13, leaf14, leaf15, leaf16, leaf17, leaf18, leaf19, before, behind };
int main(void) {
    int x = 1;
    for (int i = 0; i < 22 * 50; i++) x = all[i % 22](x) & 0xffff;
    printf("%d %d\n", x, *held[0] == *held[2]);
    return 0;
}
"#;
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let options = ["-O2", "-pie", "-fPIE", "-fno-toplevel-reorder"];
    let program = support::compile_text(PROGRAM, &options, scratch.path(), "between");
    let mut stay = that_stay(&program, "replace", scratch.path());
    stay.retain(|function| function.1 == NAMED);
    let names: Vec<&str> = stay.iter().map(|function| function.0.as_str()).collect();
    assert_eq!(names, ["before", "behind"]);
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
fn a_function_stays_for_two_places_that_are_compared_with_and_not_for_masks_of_bits_or_a_single_number() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let Some(stay) = functions_that_stay("chance_numbers", scratch.path()) else { return };
    let stays = |name: &str| stay.iter().any(|function| function.0 == name);
    assert!(stays("compared"), "{stay:?}");
    assert!(!stays("masked") && !stays("counted"), "{stay:?}");
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
