//! Clones of functions for constants that their callers pass: right ones are proven, and with one thing wrong they are seen.

use super::layout::link;
use super::*;

/// `@CALLS@` is between `_start` and the end of the program, `@MORE@` are further functions, `@POINTER@` is what a word of data holds.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov (%rsp), %rbx
@CALLS@
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type work, @function
work:
    .cfi_startproc
    cmp $1, %edi
    jne 1f
    lea 5(%rsi), %eax
    ret
1:  lea (%rsi,%rdi), %eax
    ret
    .cfi_endproc
    .size work, . - work

    .type outer, @function
outer:
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    add $3, %rsi
    call work
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size outer, . - outer
@MORE@
    .org 0x400, 0xcc
    .section .data
    .balign 8
pointers:
    .quad @POINTER@
"#;

/// A function without a frame.
fn function(name: &str, body: &str) -> String {
    format!("{name}:\n    .cfi_startproc\n    {}\n    .cfi_endproc\n", body.replace(';', "\n    "))
}

/// `work` for 1.
fn clone_of_work() -> String {
    function(".Lclone", "lea 5(%rsi), %eax; ret")
}

fn program(calls: &str, more: &str, pointer: &str) -> Option<Vec<u8>> {
    let text = PROGRAM.replace("@CALLS@", &format!("    {}", calls.replace(';', "\n    ")));
    link(&text.replace("@MORE@", more).replace("@POINTER@", pointer), "-pie")
}

fn report(input: &str, output: (&str, &str), pointer: &str) -> Option<Report> {
    let (before, after) = (program(input, "", "work")?, program(output.0, output.1, pointer)?);
    Some(check(&before, &after).unwrap())
}

fn assert_same(input: &str, output: (&str, &str)) {
    let Some(report) = report(input, output, "work") else { return };
    assert!(report.is_ok(), "{input} became {output:?}: {}", report.summary(10));
    assert!(report.stats.entered_with_constants > 0, "{:?}", report.stats);
}

fn assert_different(input: &str, output: (&str, &str)) {
    let Some(report) = report(input, output, "work") else { return };
    assert!(!report.is_ok(), "{input} became {output:?}");
}

const ONCE: &str = "mov %rbx, %rsi; mov $1, %edi; call work";

fn led(calls: &str) -> String {
    calls.replace("call work", "call .Lclone")
}

#[test]
fn a_clone_for_a_constant_that_all_its_calls_pass_is_proven() {
    assert_same(ONCE, (&led(ONCE), &clone_of_work()));
    // From two places, of which one has it from a register that calls keep.
    let calls = "mov $1, %ebp; mov %rbx, %rsi; mov $1, %edi; call work; mov %rax, %rsi; mov %ebp, %edi; call work";
    assert_same(calls, (&led(calls), &clone_of_work()));
    // The rest goes to the function.
    let calls = "mov $1, %edi; mov %rbx, %rsi; call work; mov %ebx, %edi; call work";
    assert_same(calls, ("mov $1, %edi; mov %rbx, %rsi; call .Lclone; mov %ebx, %edi; call work", &clone_of_work()));
}

#[test]
fn a_clone_for_another_constant_is_wrong() {
    for wrong in ["lea 6(%rsi), %eax; ret", "lea 5(%rsi,%rsi), %eax; ret", "lea (%rsi,%rdi), %edx; ret"] {
        assert_different(ONCE, (&led(ONCE), &function(".Lclone", wrong)));
    }
    let two = ONCE.replace("$1", "$2");
    assert_different(&two, (&led(&two), &clone_of_work()));
}

#[test]
fn a_clone_that_one_call_enters_with_another_value_is_wrong() {
    let calls = "mov $1, %edi; mov %rbx, %rsi; call work; mov $2, %edi; mov %rax, %rsi; call work";
    assert_different(calls, (&led(calls), &clone_of_work()));
    let calls = "mov $1, %edi; mov %rbx, %rsi; call work; mov %ebx, %edi; mov %rax, %rsi; call work";
    assert_different(calls, (&led(calls), &clone_of_work()));
    // On one of two ways.
    let calls = "mov $1, %edi; test %rbx, %rbx; je 3f; mov %ebx, %edi; 3: mov %rbx, %rsi; call work";
    assert_different(calls, (&led(calls), &clone_of_work()));
    // Only a half of the register is known.
    let calls = "mov %rbx, %rdi; mov $1, %dil; mov %rbx, %rsi; call work";
    assert_different(calls, (&led(calls), &clone_of_work()));
}

#[test]
fn a_clone_whose_address_is_held_is_wrong() {
    let more = clone_of_work();
    let Some(found) = report(ONCE, (&led(ONCE), &more), ".Lclone") else { return };
    assert!(!found.is_ok());
    let calls = format!("{ONCE}; lea work(%rip), %rcx; call *%rcx");
    let output = format!("{}; lea .Lclone(%rip), %rcx; call *%rcx", led(ONCE));
    assert_different(&calls, (&output, &more));
}

#[test]
fn a_clone_that_is_entered_in_its_middle_is_wrong() {
    let clone = function(".Lclone", "nop; .Lmiddle: lea 5(%rsi), %eax; ret");
    let other = "mov %ebx, %edi; mov %rbx, %rsi; call work";
    let output = format!("{}; mov %ebx, %edi; mov %rbx, %rsi; call .Lmiddle", led(ONCE));
    assert_different(&format!("{ONCE}; {other}"), (&output, &clone));
}

#[test]
fn what_is_known_goes_on_through_a_copy_of_the_function_between() {
    let copy = |inner: &str| {
        let body = "sub $8, %rsp; .cfi_def_cfa_offset 16; add $3, %rsi; call INNER; add $8, %rsp; .cfi_def_cfa_offset 8; ret";
        function(".Lcopy", &body.replace("INNER", inner)) + &clone_of_work()
    };
    let calls = "mov %rbx, %rsi; mov $1, %edi; call outer; mov %rax, %rsi; mov %ebx, %edi; call outer";
    let output = "mov %rbx, %rsi; mov $1, %edi; call .Lcopy; mov %rax, %rsi; mov %ebx, %edi; call outer";
    assert_same(calls, (output, &copy(".Lclone")));
    // Both calls lead to the copy.
    assert_different(calls, (&calls.replace("outer", ".Lcopy"), &copy(".Lclone")));
    // The constant is another one.
    let calls = calls.replace("$1", "$2");
    assert_different(&calls, (&output.replace("$1", "$2"), &copy(".Lclone")));
}
