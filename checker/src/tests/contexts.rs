//! Clones of functions for constants that their callers pass: right ones are proven, and with one thing wrong they are seen.

use super::layout::link;
use super::*;

/// `@CALLS@` is in the middle of a function, with a number of which nothing is known in `rbx`; `@MORE@` are further functions, `@POINTER@` is what a word of data holds.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov (%rsp), %rdi
    call middle
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type middle, @function
middle:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    push %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset rbp, -24
    mov %rdi, %rbx
@CALLS@
    pop %rbp
    .cfi_def_cfa_offset 16
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size middle, . - middle

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
pub(super) fn function(name: &str, body: &str) -> String {
    format!("{name}:\n    .cfi_startproc\n    {}\n    .cfi_endproc\n", body.replace(';', "\n    "))
}

/// `work` for 1.
pub(super) fn clone_of_work() -> String {
    function(".Lclone", "lea 5(%rsi), %eax; ret")
}

pub(super) fn program(calls: &str, more: &str, pointer: &str) -> Option<Vec<u8>> {
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

#[test]
fn an_argument_that_a_clone_does_not_need_need_not_be_passed() {
    let dropped = "mov %rbx, %rsi; call .Lclone";
    assert_same(ONCE, (dropped, &clone_of_work()));
    // The clone reads it after all, or the function itself is called.
    assert_different(ONCE, (dropped, &function(".Lclone", "lea 4(%rsi,%rdi), %eax; ret")));
    assert_different(ONCE, ("mov %rbx, %rsi; call work", &clone_of_work()));
    // It is another argument that is missing.
    assert_different(ONCE, ("mov $1, %edi; call .Lclone", &clone_of_work()));
    // Somebody reads the register behind the call: nothing in between has written it.
    let read = |calls: &str| format!("{calls}; add %edi, %eax");
    assert_same(&read(ONCE), (&read(&led(ONCE)), &clone_of_work()));
    assert_different(&read(ONCE), (&read(dropped), &clone_of_work()));
    // One call of two passes another value.
    let second = "; mov %rax, %rsi; mov $2, %edi; call work";
    assert_different(&format!("{ONCE}{second}"), (&format!("{dropped}{}", led(second)), &clone_of_work()));
}

#[test]
fn a_register_in_which_a_clone_leaves_something_else_may_not_be_read() {
    let clone = function(".Lclone", "lea 5(%rsi), %ecx; mov %ecx, %eax; ret");
    let calls = format!("mov $7, %ecx; {ONCE}");
    assert_same(&calls, (&led(&calls), &clone));
    let read = format!("{calls}; add %ecx, %eax");
    assert_different(&read, (&led(&read), &clone));
    // The output alone relies on it.
    let number = format!("{calls}; add $7, %eax");
    assert_different(&number, (&led(&read), &clone));
    assert_same(&number, (&led(&read), &clone_of_work()));
}

#[test]
fn what_a_function_that_others_may_call_leaves_in_a_second_register_of_results_counts() {
    let outer = |name: &str, callee: &str| {
        let body = "sub $8, %rsp; .cfi_def_cfa_offset 16; mov $1, %edi; call CALLEE; add $8, %rsp; .cfi_def_cfa_offset 8; ret";
        function(name, &body.replace("CALLEE", callee))
    };
    let clone = function(".Lclone", "lea 5(%rsi), %edx; mov %edx, %eax; ret");
    let compare = |pointer: &str| {
        let calls = "mov %rbx, %rsi; call named; xor %edx, %edx";
        let before = program(calls, &outer("named", "work"), pointer)?;
        let after = program(calls, &(outer("named", ".Lclone") + &clone), pointer)?;
        Some(check(&before, &after).unwrap())
    };
    let Some(report) = compare("work") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let Some(report) = compare("named") else { return };
    assert!(!report.is_ok());
}

/// `work` for 1 and 2, told apart by a state.
const TOLD: &str = "cmp $1, %r11; jne 1f; lea 5(%rsi), %eax; ret; 1: lea 2(%rsi), %eax; ret";
const TWO: &str = "mov %rbx, %rsi; mov $1, %edi; call work; mov %rax, %rsi; mov $2, %edi; call work";

fn told(first: &str, second: &str) -> String {
    format!("mov %rbx, %rsi; mov $1, %edi; {first}; call .Lcopy; mov %rax, %rsi; mov $2, %edi; {second}; call .Lcopy")
}

#[test]
fn a_copy_that_is_told_a_state_is_proven_for_each() {
    let copy = function(".Lcopy", TOLD);
    assert_same(TWO, (&told("mov $1, %r11d", "mov $2, %r11d"), &copy));
    assert_same(TWO, (&told("mov $1, %r11d", "xor %r11d, %r11d"), &copy));
    for (first, second) in [
        ("mov $2, %r11d", "mov $1, %r11d"),
        ("mov $1, %r11d", "nop"),
        ("nop", "mov $2, %r11d"),
        ("mov $1, %r11d", "mov $1, %r11d"),
        ("mov %ebx, %r11d", "mov $2, %r11d"),
    ] {
        assert_different(TWO, (&told(first, second), &copy));
    }
    // Something else calls it too, with no state.
    let other = "; mov %rax, %rsi; mov $2, %edi; call work";
    let output = format!("{}{}", told("mov $1, %r11d", "mov $2, %r11d"), other.replace("work", ".Lcopy"));
    assert_different(&format!("{TWO}{other}"), (&output, &copy));
}

#[test]
fn a_clone_that_code_calls_to_which_nothing_leads_is_wrong() {
    let lonely = |callee: &str| function("lonely", &format!("mov %ebx, %edi; mov %rbx, %rsi; call {callee}; hlt"));
    let Some(before) = program(ONCE, &lonely("work"), "work") else { return };
    let Some(after) = program(&led(ONCE), &(lonely(".Lclone") + &clone_of_work()), "work") else { return };
    assert!(!check(&before, &after).unwrap().is_ok());
    let Some(after) = program(&led(ONCE), &(lonely("work") + &clone_of_work()), "work") else { return };
    let report = check(&before, &after).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}
