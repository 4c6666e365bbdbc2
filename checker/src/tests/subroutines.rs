//! Straight code of the input stands where calls of the output lead: the right bodies correspond, and one thing wrong in them is seen.

use super::dead::found;
use super::layout::{exception_table, link};
use super::*;

/// `first` and `second` have a piece of code that is alike, in frames of different sizes, with other things around it. `@BODIES@` is behind all that.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $2, %edi
    call first
    call second
    call leaf
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type first, @function
first:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    .cfi_offset rbx, -16
    sub $16, %rsp
    .cfi_adjust_cfa_offset 16
    mov %edi, %ebx
    cmp $3, %edi
    je .Lfirst
    @FIRST@
    add %ebx, %eax
.Lfirst:
    add $16, %rsp
    .cfi_adjust_cfa_offset -16
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size first, . - first

    .type second, @function
second:
    .cfi_startproc
    sub $24, %rsp
    .cfi_adjust_cfa_offset 24
    @SECOND@
    xor $1, %eax
    setb 8(%rsp)
    add $24, %rsp
    .cfi_adjust_cfa_offset -24
    ret
    .cfi_endproc
    .size second, . - second

    .type leaf, @function
leaf:
    .cfi_startproc
    lea 1(%rdi), %eax
    ret
    .cfi_endproc
    .size leaf, . - leaf
    @BODIES@

    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 16
message:
    .asciz "a string that nobody prints"
other:
    .asciz "another"
    .data
    .balign 8
word:
    .quad 7
"#;

/// It reads flags that are made before, leaves some, and writes registers that functions keep.
const PIECE: &str = "lea message(%rip), %rdx\n    cmovb %edi, %eax\n    mov word(%rip), %rbx\n    add %edi, %ebx\n";
const CALL: &str = "call body";
const BODY: &str = ".cfi_startproc\n    body: @PIECE@    ret\n    .cfi_endproc\n";

fn program(first: &str, second: &str, bodies: &str) -> Option<Vec<u8>> {
    link(&PROGRAM.replace("@FIRST@", first).replace("@SECOND@", second).replace("@BODIES@", bodies), "-pie")
}

/// The report on an output of which the calls lead to a body with another piece than the input's.
fn report_of(piece: &str, calls: (&str, &str), body: &str, other: &str) -> Option<Report> {
    let input = program(piece, piece, "")?;
    let output = program(calls.0, calls.1, &body.replace("@PIECE@", other))?;
    Some(check(&input, &output).unwrap())
}

fn report(piece: &str, calls: (&str, &str), body: &str) -> Option<Report> {
    report_of(piece, calls, body, piece)
}

const BOTH: (&str, &str) = (CALL, CALL);

#[test]
fn a_piece_that_stands_where_calls_lead_corresponds() {
    for calls in [BOTH, (CALL, PIECE), (PIECE, CALL)] {
        let Some(report) = report(PIECE, calls, BODY) else { return };
        assert!(report.is_ok(), "{calls:?}: {}", report.summary(10));
    }
    // One instruction is enough.
    let piece = "lea message(%rip), %rdx\n";
    let Some(report) = report(piece, BOTH, BODY) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_call_may_enter_the_middle_of_what_another_one_does() {
    let rest = "mov word(%rip), %rbx\n    add %edi, %ebx\n";
    let own = PIECE.strip_suffix(rest).unwrap();
    let body = BODY.replace("@PIECE@", &format!("{own}    middle: {rest}"));
    let Some(report) = report(PIECE, (CALL, &format!("{own}    call middle")), &body) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // It may go on there by a jump as well.
    let body = format!(".cfi_startproc\n    middle: {rest}    ret\n    body: {own}    jmp middle\n    .cfi_endproc\n");
    let Some(report) = report_of(PIECE, (CALL, &format!("{own}    call middle")), &body, "") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // And in a function that ends so.
    let piece = "lea 1(%rdi), %eax\n";
    let Some(report) = report_of(piece, ("call leaf", "call leaf"), "", "") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_body_with_one_thing_wrong_is_seen() {
    for (right, wrong) in [
        ("message(%rip)", "other(%rip)"),
        ("%edi, %ebx", "%esi, %ebx"),
        ("%edi, %ebx", "%edi, %ebp"),
        ("cmovb", "cmova"),
        ("cmovb %edi, %eax\n", "\n"),
        ("add %edi, %ebx\n", "\n"),
        ("add %edi, %ebx\n", "add %edi, %ebx\n    inc %ebx\n"),
        ("word(%rip)", "word+1(%rip)"),
        ("add %edi, %ebx\n", "add %edi, %ebx\n    jmp leaf\n"),
        ("add %edi, %ebx\n", "add %edi, %ebx\n    jmp body\n"),
    ] {
        let Some(report) = report_of(PIECE, BOTH, BODY, &PIECE.replace(right, wrong)) else { return };
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
    for end in ["ret $8", "repz ret", "bnd ret", "jmp *word(%rip)", "call leaf\n    ret", "ud2", "jmp leaf"] {
        let Some(report) = report(PIECE, BOTH, &BODY.replace("    ret\n", &format!("    {end}\n"))) else { return };
        assert!(!report.is_ok(), "{end}: {}", report.summary(10));
    }
    // Nothing at all, and a prefix of the call.
    let Some(report) = report_of(PIECE, (&format!("call body\n    {PIECE}"), PIECE), BODY, "") else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
    let Some(report) = report_of(PIECE, ("data16 call body", CALL), BODY, PIECE) else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
}

#[test]
fn what_stands_behind_the_call_of_a_body_is_compared() {
    for behind in ["inc %eax", "add %ebx, %eax", "jmp .Lfirst", "call leaf"] {
        let Some(report) = report(PIECE, (&format!("call body\n    {behind}"), CALL), BODY) else { return };
        assert!(!report.is_ok(), "{behind}: {}", report.summary(10));
    }
}

#[test]
fn a_jump_to_a_body_is_no_call_of_it() {
    let rest = "mov word(%rip), %rbx\n    add %edi, %ebx\n";
    let own = PIECE.strip_suffix(rest).unwrap();
    // Another way of the first function leads to the middle of the piece. In the second one all is right, and found first or last.
    let input = format!("test $8, %edi\n    jne .Lmiddle\n    {own}    .Lmiddle: {rest}");
    let body = BODY.replace("@PIECE@", &format!("{own}    middle: {rest}"));
    let whole = format!("{own}    {rest}");
    for (branch, is_right) in [("jne .Lmiddle", true), ("jne middle", false), ("jne body", false)] {
        let first = format!("test $8, %edi\n    {branch}\n    {own}    .Lmiddle: call middle");
        let again = format!("test $8, %edi\n    {branch}\n    call body\n    jmp 1f\n    .Lmiddle: {rest}    1:");
        for first in [first, again] {
            let (input, output) = (program(&input, &whole, ""), program(&first, CALL, &body));
            let Some((input, output)) = input.zip(output) else { return };
            let report = check(&input, &output).unwrap();
            assert_eq!(report.is_ok(), is_right, "{branch}: {first}: {}", report.summary(10));
        }
    }
}

/// A piece that addresses the frame, and what that is where the stack pointer is 8 lower.
const IN_FRAME: &str =
    "mov %rsp, %rcx\n    lea 16(%rsp), %rdx\n    mov %edi, 120(%rsp)\n    movw %r9w, (%rsp)\n    mov $17, %ebx\n";
const LOWER: &str =
    "lea 8(%rsp), %rcx\n    lea 24(%rsp), %rdx\n    mov %edi, 128(%rsp)\n    movw %r9w, 8(%rsp)\n    mov $17, %ebx\n";

#[test]
fn a_piece_in_the_frame_is_farther_from_the_stack_pointer_in_a_body() {
    let Some(right) = report_of(IN_FRAME, BOTH, BODY, LOWER) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    let wrong = [
        (LOWER, IN_FRAME),
        ("lea 8(%rsp), %rcx", "lea 16(%rsp), %rcx"),
        ("lea 8(%rsp), %rcx", "mov %rsp, %rcx"),
        ("lea 24(%rsp), %rdx", "lea 16(%rsp), %rdx"),
        ("lea 24(%rsp), %rdx", "lea 24(%rsp), %rsi"),
        ("128(%rsp)", "120(%rsp)"),
        ("movw %r9w", "mov %r9d"),
        ("movw %r9w, 8(%rsp)", "movw %r9w, (%rsp)"),
    ];
    for (right, wrong) in wrong {
        let Some(report) = report_of(IN_FRAME, BOTH, BODY, &LOWER.replace(right, wrong)) else { return };
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
}

#[test]
fn a_piece_that_tells_where_the_stack_is_is_no_body() {
    let own = [
        "push %rcx\n    pop %rcx",
        "push %rcx",
        "mov %esp, %ecx",
        "add $8, %rsp",
        "mov %rsp, word(%rip)",
        "mov %ecx, -8(%rsp)",
        "pushf\n    popf",
        "rdsspq %rcx",
        "incsspq %rcx",
        "syscall",
        "endbr64",
        "leave",
        "int $0x80",
        "jrcxz .",
    ];
    for own in own {
        let piece = format!("{own}\n    {PIECE}");
        let Some(report) = report(&piece, BOTH, BODY) else { return };
        assert!(!report.is_ok(), "{own}: {}", report.summary(10));
    }
}

#[test]
fn a_body_from_which_unwinders_find_another_frame_is_seen() {
    for body in [
        BODY.replace(".cfi_startproc", "").replace(".cfi_endproc", ""),
        BODY.replace("body: @PIECE@", "body: .cfi_adjust_cfa_offset 8\n    @PIECE@"),
        BODY.replace("    ret", "    .cfi_adjust_cfa_offset 8\n    ret"),
        BODY.replace("body:", ".cfi_undefined rbx\n    body:"),
        BODY.replace("body:", ".cfi_signal_frame\n    body:"),
        format!("{}\n", BODY.replace("@PIECE@", ".cfi_personality 0x1b, leaf\n    .cfi_lsda 0x1b, message\n    @PIECE@")),
    ] {
        let Some(report) = report(PIECE, BOTH, &body) else { return };
        assert!(!report.is_ok(), "{body}: {}", report.summary(10));
    }
}

#[test]
fn the_frame_is_the_same_from_the_first_instruction_to_behind_the_last() {
    let rest = "add %edi, %ebx\n";
    let own = PIECE.strip_suffix(rest).unwrap();
    let undefined = ".cfi_undefined r12\n";
    // Before it the output may change it as well, and behind the last instruction the call has returned.
    for (input, call, is_right) in [
        (format!("{undefined}    {PIECE}"), format!("{undefined}    {CALL}"), true),
        (format!("{own}    {undefined}    {rest}"), format!("{undefined}    {CALL}"), false),
        (format!("{own}    {undefined}    {rest}"), format!("{CALL}\n    {undefined}"), false),
        (format!("{PIECE}    {undefined}"), format!("{CALL}\n    {undefined}"), false),
        (format!("{PIECE}    nop\n    {undefined}"), format!("{CALL}\n    {undefined}"), true),
    ] {
        let (input, output) = (program(&input, PIECE, ""), program(&call, CALL, &BODY.replace("@PIECE@", PIECE)));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        let expected = if is_right { vec![] } else { vec![ViolationKind::UnwindRow] };
        assert_eq!(found(&report), expected, "{call}: {}", report.summary(10));
    }
}

/// `second` with an exception table in which what stands from `from` to `to` has a landing pad.
fn covered(piece: &str, from: &str, to: &str) -> String {
    let table = exception_table("second", [from, to], "0x1b, leaf");
    format!("{table}    .Lbefore: nop\n    .Lpiece: {piece}    .Lbehind: jmp .Lreturn\n    .Lpad: dec %eax\n    .Lreturn:")
}

#[test]
fn a_load_has_the_handlers_of_the_call_of_its_body() {
    let load = "cmovb %edi, %eax\n    .Lload: mov word(%rip), %rbx\n    .Lloaded: add %edi, %ebx\n";
    let without = "cmovb %edi, %eax\n    .Lload: lea word(%rip), %rbx\n    .Lloaded: add %edi, %ebx\n";
    for (piece, input, output, is_right) in [
        (load, (".Lpiece", ".Lbehind"), (".Lpiece", ".Lbehind"), true),
        (load, (".Lload", ".Lloaded"), (".Lpiece", ".Lbehind"), true),
        (load, (".Lpiece", ".Lload"), (".Lpiece", ".Lbehind"), false),
        (load, (".Lload", ".Lloaded"), (".Lbefore", ".Lpiece"), false),
        (load, (".Lbefore", ".Lpiece"), (".Lbefore", ".Lpiece"), true),
        // What can't fault needs no handlers.
        (without, (".Lload", ".Lloaded"), (".Lbefore", ".Lpiece"), true),
    ] {
        let body = BODY.replace("@PIECE@", &piece.replace(".Lload: ", "").replace(".Lloaded: ", ""));
        let (before, after) = (covered(piece, input.0, input.1), covered("call body\n", output.0, output.1));
        let plain = piece.replace(".Lload: ", "").replace(".Lloaded: ", "");
        let Some((input, output)) = program(&plain, &before, "").zip(program(CALL, &after, &body)) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{before} {after}: {}", report.summary(10));
    }
}

#[test]
fn a_function_that_keeps_something_below_the_stack_pointer_makes_no_calls() {
    let whole = |around: &str| {
        let code = |piece: &str| around.replace("@", piece);
        let (input, output) = (program(&code(PIECE), PIECE, ""), program(&code(CALL), CALL, &BODY.replace("@PIECE@", PIECE)));
        Some(check(&input?, &output?).unwrap())
    };
    for (around, is_right) in [
        ("mov %ecx, 8(%rsp)\n    @\n    mov 8(%rsp), %ecx", true),
        ("mov %ecx, -8(%rsp)\n    @\n    mov -8(%rsp), %ecx", false),
        ("movups %xmm0, -24(%rsp)\n    @", false),
        // `%rbp` counts from the stack pointer, and something below it is addressed, or one of these alone.
        ("mov %rsp, %rbp\n    mov %ecx, -8(%rbp)\n    @", false),
        ("lea 8(%rsp), %rbp\n    @\n    mov %ecx, -16(%rbp)", false),
        ("mov %rsp, %rbp\n    @", true),
        ("lea 8(%r12), %rbp\n    mov %ecx, -8(%rbp)\n    @", true),
        ("mov %rsp, %rbp\n    mov %ecx, -8(%r13)\n    @", true),
        ("lea -8(%rsp), %rcx\n    @", false),
        // A word that was taken off the stack.
        ("push %rcx\n    pop %rcx\n    @", false),
        ("push %rcx\n    inc %rsp\n    @", false),
        ("push %rcx\n    pop %rcx\n    call leaf\n    @", true),
        ("push %rcx\n    .cfi_adjust_cfa_offset 8\n    @\n    pop %rcx\n    .cfi_adjust_cfa_offset -8", true),
    ] {
        let Some(report) = whole(around) else { return };
        assert_eq!(report.is_ok(), is_right, "{around}: {}", report.summary(10));
    }
}

/// A part of `leaf` with a frame description of its own.
fn with_part(part: &str) -> String {
    format!(".cfi_startproc\n    part: {part}\n    jmp back\n    .cfi_endproc\n")
}

#[test]
fn a_part_of_a_function_that_keeps_something_below_the_stack_pointer_makes_no_calls() {
    for (around, back, is_right) in [
        ("", "xor %ecx, %eax", true),
        ("mov %ecx, -8(%rsp)", "xor -8(%rsp), %eax", false),
        ("mov %ecx, -8(%rsp)", "call leaf\n    xor -8(%rsp), %eax", true),
        ("push %rbp\n    mov %rsp, %rbp\n    mov %ecx, -8(%rbp)", "xor -8(%rbp), %eax\n    pop %rbp", true),
    ] {
        let function = |piece: &str| {
            let first = format!("{around}\n    test %edi, %edi\n    jne part\n    back: {back}\n    ret\n");
            let part = with_part(piece);
            format!(".cfi_startproc\n    keeping: {first}    .cfi_endproc\n    {part}")
        };
        let call = "call keeping";
        let input = program(&format!("{PIECE}    {call}"), PIECE, &function(PIECE));
        let output = program(&format!("{CALL}\n    {call}"), CALL, &(function(CALL) + &BODY.replace("@PIECE@", PIECE)));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{around} {back}: {}", report.summary(10));
    }
}

#[test]
fn a_function_may_jump_to_one_that_keeps_something_below_the_stack_pointer_if_it_has_given_up_its_frame() {
    let given_up = "pop %rbx\n    .cfi_adjust_cfa_offset -8\n    jmp other_one";
    for (end, other, is_right) in [
        (given_up, "mov %ecx, -8(%rsp)", true),
        (given_up, "mov %ecx, -16(%rsp)", true),
        (given_up, "mov %cl, -9(%rsp)", true),
        (given_up, "mov %ecx, -8(%rsp,%rdx)", true),
        (given_up, "lea -8(%rsp), %rcx", true),
        (given_up, "enter $8, $0", true),
        (given_up, "call leaf\n    mov %ecx, -16(%rsp)", true),
        // A part of the same function, by its description.
        ("jmp other_one", ".cfi_def_cfa_offset 16\n    mov 8(%rsp), %ecx", true),
        ("jmp other_one", ".cfi_def_cfa_offset 16\n    mov -8(%rsp), %ecx", false),
        ("jmp other_one", ".cfi_def_cfa_offset 16\n    mov -16(%rsp), %ecx", false),
        ("jmp other_one", ".cfi_def_cfa_offset 16\n    lea -8(%rsp), %rcx", false),
        (given_up, ".cfi_def_cfa_offset 24\n    mov -16(%rsp), %ecx", false),
        // Descriptions disagree about the frame, or say nothing of it.
        ("jmp other_one", "mov %ecx, -8(%rsp)", false),
        ("jmp other_one", "mov %ecx, 8(%rsp)", true),
        (given_up, ".cfi_def_cfa rbx, 8\n    mov %ecx, -8(%rsp)", false),
        // `%rbp` counts from the stack pointer, or has before.
        ("lea (%rsp), %rbp\n    pop %rbx\n    .cfi_adjust_cfa_offset -8\n    jmp other_one", "mov %ecx, -8(%rbp)", false),
        ("lea (%rsp), %rbp\n    pop %rbp\n    .cfi_adjust_cfa_offset -8\n    jmp other_one", "mov %ecx, -8(%rbp)", true),
        (
            "lea (%rsp), %rbp\n    mov %rdi, %rbp\n    pop %rbx\n    .cfi_adjust_cfa_offset -8\n    jmp other_one",
            "mov %ecx, -8(%rbp)",
            true,
        ),
        (
            "lea (%rsp), %rbp\n    mov %di, %bp\n    pop %rbx\n    .cfi_adjust_cfa_offset -8\n    jmp other_one",
            "mov %ecx, -8(%rbp)",
            false,
        ),
        // It runs on into the other.
        ("pop %rbx\n    .cfi_adjust_cfa_offset -8", "mov %ecx, -8(%rsp)", false),
    ] {
        let function = |piece: &str| {
            let own = format!("push %rbx\n    .cfi_adjust_cfa_offset 8\n    {piece}    {end}\n    .cfi_endproc\n");
            format!(".cfi_startproc\n    own: {own}    .cfi_startproc\n    other_one: {other}\n    ret\n    .cfi_endproc\n")
        };
        let call = "call own";
        let input = program(&format!("{PIECE}    {call}"), PIECE, &function(PIECE));
        let body = BODY.replace("@PIECE@", PIECE);
        let output = program(&format!("{CALL}\n    {call}"), CALL, &(function("call body\n") + &body));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{end} {other}: {}", report.summary(10));
    }
}

#[test]
fn what_a_register_holds_is_read_off_the_body_that_is_called() {
    let piece = "lea message(%rip), %rdx\n    mov $9, %r8d\n    add %edi, %ebx\n";
    for (before, store, form, is_right) in [
        // The body leaves it alone, makes it known, makes another number known, and writes it.
        ("mov $7, %ecx", "movl $7, word(%rip)", "mov %ecx, word(%rip)", true),
        ("nop", "movl $9, word(%rip)", "mov %r8d, word(%rip)", true),
        ("mov $7, %r8d", "movl $7, word(%rip)", "mov %r8d, word(%rip)", false),
        ("mov $7, %ebx", "movl $7, word(%rip)", "mov %ebx, word(%rip)", false),
        // Control arrives behind the call, or before it, by another way.
        (
            "mov $7, %ecx",
            "1: movl $7, word(%rip)\n    dec %ecx\n    jne 1b",
            "1: mov %ecx, word(%rip)\n    dec %ecx\n    jne 1b",
            false,
        ),
        (
            "mov $7, %ecx\n    2:",
            "movl $7, word(%rip)\n    dec %ecx\n    jne 2b",
            "mov %ecx, word(%rip)\n    dec %ecx\n    jne 2b",
            false,
        ),
    ] {
        let input = program(&format!("{before}\n    {piece}    {store}"), piece, "");
        let output = program(&format!("{before}\n    {CALL}\n    {form}"), CALL, &BODY.replace("@PIECE@", piece));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{form}: {}", report.summary(10));
    }
}

#[test]
fn a_piece_before_a_call_is_told_from_arguments() {
    // The call is behind it in both.
    for callee in ["leaf", "nothing"] {
        let nothing = ".cfi_startproc\n    nothing: ret\n    .cfi_endproc\n";
        let (piece, call) = (format!("{PIECE}    call {callee}"), format!("{CALL}\n    call {callee}"));
        let body = format!("{nothing}{}", BODY.replace("@PIECE@", PIECE));
        let Some((input, output)) = program(&piece, &piece, nothing).zip(program(&call, &call, &body)) else { return };
        let report = check(&input, &output).unwrap();
        assert!(report.is_ok(), "{callee}: {}", report.summary(10));
        // It is lost, or made by the body.
        for (second, body) in [
            (CALL, body.clone()),
            (CALL, body.replace("    ret\n    .cfi_endproc\n", "    call leaf\n    ret\n    .cfi_endproc\n")),
        ] {
            let Some(output) = program(&call, second, &body) else { return };
            let report = check(&input, &output).unwrap();
            assert_eq!(report.is_ok(), callee == "nothing" && !body.contains("call leaf"), "{callee}: {}", report.summary(10));
        }
    }
}

#[test]
fn instructions_in_a_body_may_be_in_shorter_forms_that_count_on_nothing_before() {
    let piece = "movdqa word(%rip), %xmm0\n    mov $0, %edx\n    add %edi, %ebx\n";
    let shorter = "movaps word(%rip), %xmm0\n    xor %edx, %edx\n    add %edi, %ebx\n";
    let Some(right) = report_of(piece, BOTH, BODY, shorter) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    // Another place, another register, flags that are read, and what counts on a register.
    let read = |text: &str| text.replace("add %edi", "adc %edi");
    let known = |edx: &str| format!("mov $5, %esi\n    {edx}\n    add %edi, %ebx\n");
    for (piece, shorter) in [
        (piece.to_owned(), shorter.replace("word(%rip)", "word+16(%rip)")),
        (piece.to_owned(), shorter.replace("xor %edx, %edx", "xor %ecx, %ecx")),
        (read(piece), read(shorter)),
        (piece.replace("    add %edi, %ebx\n", ""), shorter.replace("    add %edi, %ebx\n", "")),
        (known("mov $9, %edx"), known("lea 4(%rsi), %edx")),
    ] {
        // Behind the piece of `second` the carry flag is read.
        let second = |text: &str| format!("{text}    adc $1, %eax");
        let input = program(&piece, &second(&piece), "");
        let output = program(CALL, &second("call body\n"), &BODY.replace("@PIECE@", &shorter));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert!(!report.is_ok(), "{shorter}: {}", report.summary(10));
    }
}

/// A function whose address code holds, and that begins with `load`; its output does all but the return in a body.
fn with_entry(load: &str, loaded: &str) -> Option<Report> {
    let program = |leaf: &str, body: &str| {
        let text = PROGRAM
            .replace("    lea 1(%rdi), %eax\n    ret\n", leaf)
            .replace("    call leaf\n", "    lea leaf(%rip), %rcx\n    call *%rcx\n");
        link(&text.replace("@FIRST@", PIECE).replace("@SECOND@", PIECE).replace("@BODIES@", body), "-pie")
    };
    let input = program(&format!("    {load}\n    add %edi, %eax\n    ret\n"), "")?;
    let body =
        format!("{}    ret\n    .cfi_endproc\n", BODY.split("@PIECE@").next()?.to_owned() + loaded + "\n    add %edi, %eax\n");
    Some(check(&input, &program("    call body\n    ret\n", &body)?).unwrap())
}

#[test]
fn a_load_off_the_stack_is_no_fault_that_a_handler_knows_by_its_place() {
    let Some(right) = with_entry("mov 16(%rsp), %eax", "mov 24(%rsp), %eax") else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    for (load, loaded) in [("mov (%rdi), %eax", "mov (%rdi), %eax"), ("mov 16(%rsp), %eax", "mov 16(%rsp), %eax")] {
        let Some(wrong) = with_entry(load, loaded) else { return };
        assert!(!wrong.is_ok(), "{load}");
    }
}
