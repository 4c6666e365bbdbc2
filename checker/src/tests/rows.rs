//! Rules of unwinding where unwinders and the standard differ: what only some of them read as before is not the same.

use super::dead::found;
use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, relaid};
use super::*;

/// `unused` with `before` in front of its first instruction and `behind` in front of its last.
fn with_rules(before: &str, behind: &str) -> String {
    let text = UNUSED.replace("    lea message", &format!("    {before}\n    lea message"));
    text.replace("    ret", &format!("    {behind}\n    ret"))
}

fn check_rules(input: (&str, &str), output: (&str, &str)) -> Option<Report> {
    let input = build(&[CLASSIFY, TWICE, &with_rules(input.0, input.1)], TABLE)?;
    let output = build(&[&with_rules(output.0, output.1), TWICE, &relaid("je")], TABLE)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn a_return_address_that_libgcc_finds_no_more_is_seen() {
    let lost = ".cfi_undefined rip";
    let said = (lost, ".cfi_offset rip, -8");
    for restored in [".cfi_restore rip", ".cfi_escape 0x06, 16"] {
        let Some(report) = check_rules(said, (lost, restored)) else { return };
        assert_eq!(found(&report), [ViolationKind::UnwindRow], "{restored}: {}", report.summary(10));
    }
    // Without another rule before it too.
    let Some(report) = check_rules(("", ""), ("", ".cfi_restore rip")) else { return };
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
    let by_state = (".cfi_remember_state\n    .cfi_undefined rip", ".cfi_restore_state");
    let Some(report) = check_rules(said, by_state) else { return };
    assert_eq!(found(&report), [], "{}", report.summary(10));
}

#[test]
fn a_register_without_a_rule_at_first_may_be_restored() {
    let saved = ".cfi_offset rbx, -16";
    for same in [".cfi_restore rbx", ".cfi_same_value rbx"] {
        let Some(report) = check_rules((saved, ".cfi_same_value rbx"), (saved, same)) else { return };
        assert_eq!(found(&report), [], "{same}: {}", report.summary(10));
    }
    let Some(report) = check_rules((saved, ".cfi_restore rbx"), (saved, "")) else { return };
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}

#[test]
fn the_size_of_arguments_is_not_restored() {
    let pushed = ".cfi_remember_state\n    .cfi_escape 0x2e, 16";
    let Some(report) = check_rules((pushed, ".cfi_restore_state"), (".cfi_escape 0x2e, 16", "")) else { return };
    assert_eq!(found(&report), [], "{}", report.summary(10));
    let Some(report) = check_rules((pushed, ".cfi_restore_state"), (pushed, ".cfi_escape 0x2e, 0")) else { return };
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}
