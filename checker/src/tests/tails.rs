//! Functions that share a tail: accepted where both go on alike, seen where an instruction, an unwind row or an exception table differs.

use super::dead::found;
use super::layout::{TWICE, UNUSED, build};
use super::*;

const DATA: &str = "    .long 0";

/// Calls both functions.
const CALLS: &str = "
    .type classify, @function
classify:
    .cfi_startproc
    push %rax
    .cfi_def_cfa_offset 16
    call first
    mov %eax, %edi
    call second
    pop %rcx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size classify, . - classify
";

/// A function with a frame, and a tail behind a branch. `own` says whether the tail is its own or that of `first`.
fn body(name: &str, own: bool) -> String {
    let head = "
    .type NAME, @function
NAME:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    test %edi, %edi
    je .LtailOF
    add $VALUE, %edi
    mov %edi, %eax
    .cfi_remember_state
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_restore_state
";
    let tail = "
.LtailNAME:
    lea message(%rip), %rsi
    call twice
    mov %eax, %ebx
    mov %ebx, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
";
    let end = "
    .cfi_endproc
    .size NAME, . - NAME
";
    let value = if name == "first" { "7" } else { "9" };
    let parts = if own { [head, tail, end] } else { [head, "", end] };
    parts.concat().replace("OF", if own { name } else { "first" }).replace("NAME", name).replace("VALUE", value)
}

/// The input has this second function, the output one that jumps to the first one's tail.
fn merge(second: &str) -> Option<Report> {
    let input = build(&[CALLS, &body("first", true), second, TWICE, UNUSED], DATA)?;
    let head = second.split(".Ltailsecond:").next().unwrap_or_default().replace("je .Ltailsecond", "je .Ltailfirst");
    let merged = format!("{head}    .cfi_endproc\n    .size second, . - second\n");
    let output = build(&[CALLS, &body("first", true), &merged, TWICE, UNUSED], DATA)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn tails_that_do_the_same_may_be_shared() {
    let Some(report) = merge(&body("second", true)) else { return };
    assert_eq!(found(&report), [], "{}", report.summary(10));
}

#[test]
fn tails_that_differ_in_an_instruction_or_a_reference_may_not() {
    let other = body("second", true).replace("mov %ebx, %eax", "mov %ebx, %ecx");
    let Some(report) = merge(&other) else { return };
    assert_eq!(found(&report), [ViolationKind::InstructionMismatch], "{}", report.summary(10));
    let Some(report) = merge(&body("second", true).replace("message(", "message+1(")) else { return };
    assert_eq!(found(&report), [ViolationKind::OperandMismatch], "{}", report.summary(10));
    let Some(report) = merge(&body("second", true).replace("call twice", "call unused")) else { return };
    assert!(found(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

#[test]
fn tails_that_differ_in_the_frame_may_not() {
    let other = body("second", true)
        .replace("    test %edi", "    push %r12\n    .cfi_def_cfa_offset 24\n    .cfi_offset r12, -24\n    test %edi")
        .replace(
            "    .cfi_remember_state\n    pop %rbx",
            "    .cfi_remember_state\n    pop %r12\n    .cfi_def_cfa_offset 16\n    pop %rbx",
        );
    let Some(report) = merge(&other) else { return };
    assert!(found(&report).contains(&ViolationKind::UnwindRow), "{}", report.summary(10));
}

/// `second` with its call covered by an exception table, which begins with `base`.
fn covered(base: &str) -> String {
    let table = format!(
        ".Lpad:\n    mov $5, %eax\n    jmp .Lreturn\n    .cfi_endproc
    .pushsection .gcc_except_table, \"a\"
.Ltable:
    {base}
    .byte 0xff, 1
    .uleb128 .Ltableend - .Lsites
.Lsites:
    .uleb128 .Lcall - second
    .uleb128 .Lreturn - .Lcall
    .uleb128 .Lpad - second
    .uleb128 0
.Ltableend:
    .popsection"
    );
    body("second", true)
        .replace(
            "    push %rbx\n    .cfi_def_cfa_offset 16",
            "    .cfi_personality 0x9b, handlers\n    .cfi_lsda 0x1b, .Ltable\n    push %rbx\n    .cfi_def_cfa_offset 16",
        )
        .replace("    call twice", ".Lcall:\n    call twice\n.Lreturn:")
        .replace("    .cfi_endproc", &table)
}

#[test]
fn a_tail_whose_call_is_covered_by_an_exception_table_is_not_one_that_is_not() {
    let Some(input) = build(&[CALLS, &body("first", true), &covered(".byte 0xff"), TWICE, UNUSED], DATA) else { return };
    let output = build(&[CALLS, &body("first", true), &body("second", false), TWICE, UNUSED], DATA).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(found(&report).contains(&ViolationKind::CallSite), "{}", report.summary(10));
}

#[test]
fn landing_pads_count_from_a_base_only_where_they_did() {
    let with = |base: &str| build(&[CALLS, &body("first", true), &covered(base), TWICE, UNUSED], DATA);
    let (Some(without), Some(with)) = (with(".byte 0xff"), with(".byte 0x1b\n    .long second - .")) else { return };
    let report = check(&without, &with).unwrap();
    assert_eq!(found(&report), [ViolationKind::CallSite], "{}", report.summary(10));
    for (input, output) in [(&with, &without), (&with, &with), (&without, &without)] {
        let report = check(input, output).unwrap();
        assert_eq!(found(&report), [], "{}", report.summary(10));
    }
}
