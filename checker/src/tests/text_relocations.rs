//! Code into which the loader writes: it stays, with what stands around, and has no copy.

use super::layout::{TWICE, UNUSED, build_with_copies, function};
use super::*;

const TABLE: &str = ".long 0\n";
const TAKES: &str = "    movabs $message, %rax\n    ret";

fn takes() -> String {
    function("takes", TAKES)
}

fn classify(calls: &str) -> String {
    function(
        "classify",
        &format!(
            "    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n    call {calls}\n    add $8, %rsp\n    .cfi_def_cfa_offset 8\n    ret"
        ),
    )
}

fn compare(after: &[&str], copy: &str) -> Option<Report> {
    let before = build_with_copies(&[&takes(), &classify("takes"), TWICE, UNUSED], TABLE, "")?;
    Some(check(&before, &build_with_copies(after, TABLE, copy)?).unwrap())
}

#[test]
fn code_with_text_relocations_that_stays_corresponds_and_the_rest_may_move() {
    let Some(report) = compare(&[&takes(), TWICE, UNUSED, &classify("takes")], "") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn an_instruction_with_a_text_relocation_that_moved_is_seen() {
    let Some(report) = compare(&[TWICE, UNUSED, &takes(), &classify("takes")], "") else { return };
    assert!(kinds(&report).contains(&ViolationKind::Relocation), "{}", report.summary(10));
}

/// A copy without the relocation: the address that the linker saw, wherever the program lies.
#[test]
fn a_copy_of_an_instruction_with_a_text_relocation_is_seen() {
    let before = build_with_copies(&[&takes(), &classify("takes"), TWICE, UNUSED], TABLE, "");
    let Some(before) = before else { return };
    let image = Image::parse(&before).unwrap();
    let written = image.slots.iter().find(|&&(place, _)| image.in_code(place));
    let Some((_, image::Slot::Relative(message))) = written else { panic!("a text relocation: {written:?}") };
    let copy = function("copied", &format!("    movabs ${message:#x}, %rax\n    ret"));
    let after = build_with_copies(&[&takes(), &classify("copied"), TWICE, UNUSED], TABLE, &copy).unwrap();
    let report = check(&before, &after).unwrap();
    assert!(!report.is_ok(), "{}", report.summary(10));
}
