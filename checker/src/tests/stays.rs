//! Unreached code without a frame description that stays where it was: nothing equal is looked for, but what leads to it is compared as ever.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, function, relaid};
use super::*;

/// It goes on in what lies 16 bytes behind its start, whatever that is.
const STAYS: &str = r#"
    .balign 16
.Lstays:
    mov $7, %eax
    jmp .Lstays + 16
    .balign 16
"#;

/// The same at any address, if `twice` lies behind `STAYS`.
const COPY: &str = r#"
.Lcopy:
    mov $7, %eax
    jmp twice
"#;

/// A dead function.
fn caller() -> String {
    function(
        "caller",
        "    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n    call .Lstays\n    add $8, %rsp\n    .cfi_def_cfa_offset 8\n    ret",
    )
}

fn input() -> Option<Vec<u8>> {
    build(&[STAYS, TWICE, UNUSED, &caller(), CLASSIFY], TABLE)
}

#[test]
fn undescribed_code_that_stays_is_explained_by_itself() {
    let Some(input) = build(&[STAYS, TWICE, UNUSED, CLASSIFY], TABLE) else { return };
    let output = build(&[STAYS, TWICE, &relaid("je"), UNUSED], TABLE).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    assert_eq!((report.stats.matched_by_content, report.stats.identical_bytes), (0, 7));
}

#[test]
fn another_byte_in_undescribed_code_is_seen() {
    let Some(input) = input() else { return };
    for other in ["mov $8, %eax", "mov $7, %ecx", "mov $0x700, %eax"] {
        let output = build(&[&STAYS.replace("mov $7, %eax", other), TWICE, &relaid("je"), &caller(), UNUSED], TABLE).unwrap();
        let report = check(&input, &output).unwrap();
        assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{other}: {}", report.summary(10));
    }
}

#[test]
fn a_dead_function_that_calls_what_stays_may_move() {
    let Some(input) = input() else { return };
    let output = build(&[STAYS, TWICE, &relaid("je"), &caller(), UNUSED], TABLE).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_dead_function_is_compared_through_what_stays() {
    let Some(input) = input() else { return };
    let output = build(&[STAYS, UNUSED, &relaid("je"), &caller(), TWICE], TABLE).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn a_copy_of_what_stays_finds_it() {
    let Some(input) = input() else { return };
    let with_copy = |copy: &str| build(&[STAYS, TWICE, &relaid("je"), &caller(), copy, UNUSED], TABLE).unwrap();
    let report = check(&input, &with_copy(COPY)).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let report = check(&input, &with_copy(&COPY.replace("$7", "$6"))).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}
