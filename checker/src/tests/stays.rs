//! Unreached code without a frame description that stays where it was: nothing equal is looked for, but what leads to it is compared as ever.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, relaid};
use super::*;

/// It goes on in what lies 16 bytes behind its start, whatever that is.
const STAYS: &str = r#"
    .balign 16
.Lstays:
    mov $7, %edi
    jmp .Lstays + 16
    .balign 16
"#;

/// The same at any address, if `twice` lies behind `STAYS`.
const COPY: &str = r#"
.Lcopy:
    mov $7, %edi
    jmp twice
"#;

/// A dead function, which no symbol names.
const CALLER: &str = r#"
.Lcaller:
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call .Lstays
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"#;

fn input() -> Option<Vec<u8>> {
    build(&[STAYS, TWICE, UNUSED, CALLER, CLASSIFY], TABLE)
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
fn another_byte_in_undescribed_code_is_seen_whether_a_function_calls_it_or_not() {
    for caller in ["", CALLER] {
        let Some(input) = build(&[STAYS, TWICE, UNUSED, caller, CLASSIFY], TABLE) else { return };
        for other in ["mov $8, %edi", "mov $7, %ecx", "mov $0x700, %edi"] {
            let changed = STAYS.replace("mov $7, %edi", other);
            let output = build(&[&changed, TWICE, &relaid("je"), caller, UNUSED], TABLE).unwrap();
            let report = check(&input, &output).unwrap();
            assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{other}: {}", report.summary(10));
        }
    }
}

#[test]
fn a_dead_function_that_calls_what_stays_may_move() {
    let Some(input) = input() else { return };
    let output = build(&[STAYS, TWICE, &relaid("je"), CALLER, UNUSED], TABLE).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_dead_function_is_compared_through_what_stays() {
    let Some(input) = input() else { return };
    let output = build(&[STAYS, UNUSED, &relaid("je"), CALLER, TWICE], TABLE).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn a_copy_of_what_stays_finds_it() {
    let Some(input) = input() else { return };
    let with_copy = |copy: &str| build(&[STAYS, TWICE, &relaid("je"), CALLER, copy, UNUSED], TABLE).unwrap();
    let report = check(&input, &with_copy(COPY)).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let report = check(&input, &with_copy(&COPY.replace("$7", "$6"))).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn what_jumps_to_itself_stays_whatever_is_behind_it() {
    let table = TABLE.replace(".Lend - table", ".Lspins - table");
    let spins = |to: &str| format!(".Lspins:\n    jmp {to}\n");
    let Some(input) = build(&[&spins(".Lspins"), CLASSIFY, TWICE, UNUSED], &table) else { return };
    let moved = |spins: &str| build(&[spins, TWICE, &relaid("je"), UNUSED], &table).unwrap();
    let report = check(&input, &moved(&spins(".Lspins"))).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    // Something else is there now.
    assert!(!check(&input, &moved(&spins("twice"))).unwrap().is_ok());
}
