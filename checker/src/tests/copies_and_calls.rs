//! Tables with copies, in functions that call between the load of an entry and the jump.

use super::copies::{assert_different, assert_same, compare_with_copy, switch, ways};
use super::layout::function;
use super::*;

const READ: &str = "    movslq (%rdx,%rdi,4), %rax\n";
const JUMP: &str = "    jmp *%rax\n";

/// The two ways of [`ways`], and another function.
fn with(function_of_it: &str, tables: [&str; 2], read: &str, jump: &str) -> String {
    format!("{}{function_of_it}", ways(tables, read, jump))
}

#[test]
fn what_is_called_that_is_straight_up_to_a_return_is_a_part_of_the_way() {
    let adds = |body: &str| function("part", &format!("{body}    ret"));
    let same = [
        ("    movslq (%rdx,%rdi,4), %rax\n", "    add %rdx, %rax\n"),
        ("    movslq (%rdx,%rdi,4), %rax\n    mov %rdx, %rcx\n", "    add %rcx, %rax\n"),
        ("    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n", ""),
    ];
    for (part, sum) in same {
        let program = |tables| with(&adds(part), tables, "", &format!("    call part\n{sum}{JUMP}"));
        assert_same(&program(["table"; 2]), &program(["table", "copy"]));
    }
    // The part names another one than the entry is from.
    let named = "    lea table(%rip), %rcx\n";
    let program = |tables| with(&adds(named), tables, READ, &format!("    call part\n    add %rcx, %rax\n{JUMP}"));
    assert_different(&program(["table"; 2]), &program(["table", "copy"]));
    // It returns with something else.
    let program =
        |tables| with(&adds("    mov %rsi, %rdx\n"), tables, READ, &format!("    call part\n    add %rdx, %rax\n{JUMP}"));
    assert_different(&program(["table"; 2]), &program(["table", "copy"]));
}

#[test]
fn functions_keep_the_registers_that_they_have_to_keep() {
    let callee = |writes: &str| function("callee", &format!("{writes}    test %edi, %edi\n    je 1f\n    inc %esi\n1:  ret"));
    let program = |kept: &str, writes: &str, tables| {
        let sum = format!("    add %rdx, %rax\n    mov %rax, {kept}\n    call callee\n    jmp *{kept}\n");
        with(&callee(writes), tables, READ, &sum)
    };
    assert_same(&program("%r15", "", ["table"; 2]), &program("%r15", "", ["table", "copy"]));
    assert_different(&program("%r11", "", ["table"; 2]), &program("%r11", "", ["table", "copy"]));
    // What comes before the function is a part of its caller.
    let writes = "    mov %rsi, %r15\n";
    assert_different(&program("%r15", writes, ["table"; 2]), &program("%r15", writes, ["table", "copy"]));
}

#[test]
fn nothing_comes_back_from_what_never_returns() {
    let program = |last: &str, tables| {
        let sum = format!("    add %rdx, %rax\n    test %esi, %esi\n    jne 3f\n    call fails\n3:{JUMP}");
        with(&function("fails", &format!("    test %edi, %edi\n    je 1f\n    nop\n1:  {last}")), tables, READ, &sum)
    };
    assert_same(&program("hlt", ["table"; 2]), &program("hlt", ["table", "copy"]));
    assert_different(&program("ret", ["table"; 2]), &program("ret", ["table", "copy"]));
}

#[test]
fn a_table_that_a_register_happens_to_hold_may_be_passed_as_an_argument() {
    const KEPT: &str = "    lea @TABLE@(%rip), %rdx\n    movslq (%rdx,%rdi,4), %r13\n    mov %rdx, %r12\n";
    const SUM: &str = "    call callee\n    add %r12, %r13\n    jmp *%r13\n";
    let program = |table: &str, first: &str| {
        let callee = function("callee", &format!("{first}    jae 1f\n    inc %esi\n1:  ret"));
        format!("{}{callee}", switch(&KEPT.replace("@TABLE@", table), SUM))
    };
    let check = |first: &str| compare_with_copy(&program("table", first), &program("copy", first));
    let Some(report) = check("    cmp %rdx, %rsi\n") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // In a register that has no argument it is the caller's own.
    let report = check("    cmp %r12, %rsi\n").unwrap();
    assert!(kinds(&report).contains(&ViolationKind::JumpTable), "{}", report.summary(10));
}
