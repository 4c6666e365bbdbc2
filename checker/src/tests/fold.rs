//! Functions that share one body: accepted where both do the same and no pointer tells them apart, seen where anything differs.

use super::dead::found;
use super::layout::{TWICE, UNUSED, build};
use super::*;

const DATA: &str = "    .long 0";

/// Calls two functions.
fn classify(first: &str, second: &str) -> String {
    format!(
        "
    .type classify, @function
classify:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    call {first}
    mov %eax, %edi
    call {second}
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size classify, . - classify
"
    )
}

/// A recursive function that handles exceptions of a call.
fn body(name: &str) -> String {
    "
    .type NAME, @function
NAME:
    .cfi_startproc
    .cfi_personality 0x9b, handlers
    .cfi_lsda 0x1b, .LtableNAME
    push %rax
    .cfi_def_cfa_offset 16
    test %edi, %edi
    je 1f
    dec %edi
    call NAME
1:
    lea message(%rip), %rsi
.LcallNAME:
    call twice
.LreturnNAME:
    pop %rcx
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    ret
.LpadNAME:
    .cfi_restore_state
    mov $5, %eax
    jmp .LreturnNAME
    .cfi_endproc
    .size NAME, . - NAME
    .pushsection .gcc_except_table, \"a\"
.LtableNAME:
    .byte 0xff, 0xff, 1
    .uleb128 .LtableendNAME - .LsitesNAME
.LsitesNAME:
    .uleb128 .LcallNAME - NAME
    .uleb128 .LreturnNAME - .LcallNAME
    .uleb128 .LpadNAME - NAME
    .uleb128 0
.LtableendNAME:
    .popsection
"
    .replace("NAME", name)
}

/// The input has both functions, the output the first alone.
fn fold(first: &str, second: &str) -> Option<Report> {
    let input = build(&[&classify("first", "second"), first, second, TWICE, UNUSED], DATA)?;
    let output = build(&[&classify("first", "first"), first, TWICE, UNUSED], DATA)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn recursive_functions_that_do_the_same_may_share_a_body() {
    let Some(report) = fold(&body("first"), &body("second")) else { return };
    assert_eq!(found(&report), [], "{}", report.summary(10));
}

#[test]
fn functions_that_differ_in_one_byte_may_not() {
    let Some(report) = fold(&body("first"), &body("second").replace("dec %edi", "inc %edi")) else { return };
    assert_eq!(found(&report), [ViolationKind::InstructionMismatch], "{}", report.summary(10));
}

#[test]
fn functions_that_differ_in_one_reference_may_not() {
    let Some(report) = fold(&body("first"), &body("second").replace("message(", "message+1(")) else { return };
    assert_eq!(found(&report), [ViolationKind::OperandMismatch], "{}", report.summary(10));
    let Some(report) = fold(&body("first"), &body("second").replace("call twice", "call unused")) else { return };
    assert!(found(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

#[test]
fn functions_that_differ_in_unwind_rows_may_not() {
    let other = body("second").replace("    test %edi", "    .cfi_offset rbx, -16\n    test %edi");
    let Some(report) = fold(&body("first"), &other) else { return };
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}

#[test]
fn functions_that_differ_in_a_landing_pad_may_not() {
    let other = body("second").replace("mov $5, %eax", "mov $6, %eax");
    let Some(report) = fold(&body("first"), &other) else { return };
    assert_eq!(found(&report), [ViolationKind::InstructionMismatch], "{}", report.summary(10));
    let other = body("second").replace(".uleb128 .Lpadsecond - second", ".uleb128 0");
    let Some(report) = fold(&body("first"), &other) else { return };
    assert_eq!(found(&report), [ViolationKind::CallSite], "{}", report.summary(10));
}

#[test]
fn functions_whose_addresses_are_taken_stay_apart() {
    let unused = TWICE.replace("twice", "unused");
    let classify = classify("twice", "unused");
    let Some(input) = build(&[&classify, TWICE, &unused], DATA) else { return };
    let report = check(&input, &input).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let merged = build(&[&classify, TWICE, "    .set unused, twice\n"], DATA).unwrap();
    let report = check(&input, &merged).unwrap();
    assert_eq!(found(&report), [ViolationKind::Conflict], "{}", report.summary(10));
}
