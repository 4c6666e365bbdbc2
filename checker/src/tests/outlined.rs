//! What stands before calls of the input stands where the output's calls lead: the right bodies correspond, and one thing wrong in them is seen.

use super::dead::found;
use super::layout::{exception_table, link};
use super::*;

/// `first` and `second` call `report` with arguments of which three are alike. `@BODIES@` is behind all that.
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
    mov %edi, %ebx
    @FIRST@
    add %ebx, %eax
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size first, . - first

    .type second, @function
second:
    .cfi_startproc
    sub $8, %rsp
    .cfi_adjust_cfa_offset 8
    @SECOND@
    xor $1, %eax
    add $8, %rsp
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
    .size second, . - second

    .type report, @function
report:
    .cfi_startproc
    lea (%rdi,%rsi), %eax
    add (%rdx), %eax
    ret
    .cfi_endproc
    .size report, . - report
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

const ARGUMENTS: &str = "lea message(%rip), %rdx\n    mov word(%rip), %rsi\n    mov $17, %edi\n";
const CALL: &str = "call report";
const BODY: &str = ".cfi_startproc\n    body: @ARGUMENTS@    jmp report\n    .cfi_endproc\n";

fn program(first: &str, second: &str, bodies: &str) -> Option<Vec<u8>> {
    link(&PROGRAM.replace("@FIRST@", first).replace("@SECOND@", second).replace("@BODIES@", bodies), "-pie")
}

fn before(arguments: &str) -> String {
    format!("{arguments}    {CALL}")
}

/// The report on an output whose calls lead to bodies, of an input with these arguments.
fn report(arguments: &str, calls: (&str, &str), bodies: &str) -> Option<Report> {
    let input = program(&before(arguments), &before(arguments), "")?;
    let output = program(calls.0, calls.1, &bodies.replace("@ARGUMENTS@", arguments))?;
    Some(check(&input, &output).unwrap())
}

/// What `ARGUMENTS` have, and what is wrong in its place.
const WRONG: [(&str, &str); 6] = [
    ("message(%rip)", "other(%rip)"),
    ("$17", "$18"),
    ("mov $17, %edi\n", "\n"),
    ("mov $17, %edi\n", "mov $17, %edi\n    inc %edi\n"),
    ("word(%rip)", "word+1(%rip)"),
    ("%rsi\n    mov $17, %edi\n", "%rsi\n    mov $17, %esi\n"),
];

const BOTH: (&str, &str) = ("call body", "call body");

#[test]
fn arguments_that_stand_where_both_calls_lead_correspond() {
    let Some(right) = report(ARGUMENTS, BOTH, BODY) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    // One call alone, and a body of which the last instructions are those of another.
    let Some(right) = report(ARGUMENTS, ("call body", &before(ARGUMENTS)), BODY) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    let rest = before("mov word(%rip), %rsi\n    mov $17, %edi\n");
    let first = format!("lea message(%rip), %rdx\n    {}", "call body");
    let body = BODY.replace("@ARGUMENTS@", rest.strip_suffix(&format!("    {CALL}")).unwrap());
    let Some(right) = report(ARGUMENTS, (&first, &first), &body) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
}

/// A body that goes on in the middle of another one.
const JOINED: &str = ".cfi_startproc\n    other_body: mov $5, %eax\n    rest: mov word(%rip), %rsi\n    mov $17, %edi\n    jmp report\n    body: lea message(%rip), %rdx\n    jmp rest\n    .cfi_endproc\n";

#[test]
fn a_body_may_go_on_in_another_one() {
    let Some(right) = report(ARGUMENTS, BOTH, JOINED) else { return };
    // Nothing of the input is what the other one begins with.
    assert_eq!(found(&right), [ViolationKind::Unexplained], "{}", right.summary(10));
    let alone = JOINED.replace("other_body: mov $5, %eax\n    ", "");
    let Some(right) = report(ARGUMENTS, BOTH, &alone) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    for (right, wrong) in [
        ("jmp rest", "jmp report"),
        ("jmp rest", "jmp body"),
        ("jmp rest", "jmp first"),
        ("jmp rest", "jmp rest + 7"),
        ("jmp rest", "jmp *word(%rip)"),
        ("jmp rest", "je rest"),
        ("jmp report", "jmp rest"),
    ] {
        let Some(report) = report(ARGUMENTS, BOTH, &alone.replace(right, wrong)) else { return };
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
}

#[test]
fn a_body_that_goes_on_where_unwinders_find_another_frame_is_seen() {
    let body = JOINED.replace("other_body: mov $5, %eax\n    ", ".cfi_adjust_cfa_offset 8\n    ");
    let body = body.replace("    body:", "    .cfi_adjust_cfa_offset -8\n    body:");
    let Some(report) = report(ARGUMENTS, BOTH, &body) else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_body_in_which_one_thing_is_wrong_is_seen() {
    for (right, wrong) in WRONG {
        let input = program(&before(ARGUMENTS), &before(ARGUMENTS), "").zip(Some(ARGUMENTS.replace(right, wrong)));
        let Some((input, arguments)) = input else { return };
        let Some(output) = program(BOTH.0, BOTH.1, &BODY.replace("@ARGUMENTS@", &arguments)) else { return };
        let report = check(&input, &output).unwrap();
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
}

#[test]
fn a_body_that_leads_elsewhere_is_seen() {
    for body in [
        BODY.replace("jmp report", "jmp first"),
        BODY.replace("jmp report", "ret"),
        BODY.replace("jmp report", "call report\n    inc %eax\n    ret"),
    ] {
        let Some(report) = report(ARGUMENTS, BOTH, &body) else { return };
        assert!(!report.is_ok(), "{body}: {}", report.summary(10));
    }
}

#[test]
fn arguments_that_tell_where_the_stack_is_are_no_body() {
    for own in ["mov %rsp, %rcx", "mov 8(%rsp), %rcx", "lea 16(%rsp), %rcx", "push %rcx\n    pop %rcx", "mov %ecx, -8(%rsp)"] {
        let arguments = format!("{own}\n    {ARGUMENTS}");
        let Some(report) = report(&arguments, BOTH, BODY) else { return };
        assert!(found(&report).contains(&ViolationKind::InstructionMismatch), "{own}: {}", report.summary(10));
    }
}

/// Arguments in the frame, and what they are where the stack pointer is 8 lower.
const IN_FRAME: &str =
    "mov %rsp, %rcx\n    lea 16(%rsp), %rdx\n    mov %edi, 120(%rsp)\n    movw %r9w, 8(%rsp)\n    mov $17, %edi\n";
const LOWER: &str =
    "lea 8(%rsp), %rcx\n    lea 24(%rsp), %rdx\n    mov %edi, 128(%rsp)\n    movw %r9w, 16(%rsp)\n    mov $17, %edi\n";

#[test]
fn arguments_in_the_frame_are_farther_from_the_stack_pointer_in_a_body() {
    let lower = |arguments: &str| {
        let input = program(&before(IN_FRAME), &before(IN_FRAME), "")?;
        let output = program(BOTH.0, BOTH.1, &BODY.replace("@ARGUMENTS@", arguments))?;
        Some(check(&input, &output).unwrap())
    };
    let Some(right) = lower(LOWER) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    let wrong = [
        (LOWER, IN_FRAME),
        ("lea 8(%rsp), %rcx", "lea 16(%rsp), %rcx"),
        ("lea 24(%rsp), %rdx", "lea 16(%rsp), %rdx"),
        ("lea 24(%rsp), %rdx", "lea 24(%rsp), %rsi"),
        ("128(%rsp)", "120(%rsp)"),
        ("movw %r9w", "mov %r9d"),
    ];
    for (right, wrong) in wrong {
        let Some(report) = lower(&LOWER.replace(right, wrong)) else { return };
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
}

#[test]
fn a_body_from_which_unwinders_find_another_frame_is_seen() {
    let described = "body: .cfi_adjust_cfa_offset 8\n    @ARGUMENTS@";
    for body in [BODY.replace(".cfi_startproc", "").replace(".cfi_endproc", ""), BODY.replace("body: @ARGUMENTS@", described)] {
        let Some(report) = report(ARGUMENTS, BOTH, &body) else { return };
        assert!(!report.is_ok(), "{body}: {}", report.summary(10));
    }
    // The frame changes between the arguments.
    let changing = format!(".cfi_undefined rbx\n    {ARGUMENTS}");
    let input = program(&format!("{ARGUMENTS}    .cfi_undefined rbx\n    {CALL}"), &before(ARGUMENTS), "");
    let output = program(
        &format!("{}\n    call body", changing.lines().next().unwrap_or("")),
        "call body",
        &BODY.replace("@ARGUMENTS@", ARGUMENTS),
    );
    let Some((input, output)) = input.zip(output) else { return };
    let report = check(&input, &output).unwrap();
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}

/// Another way of `first` leads into the arguments, and the output's leads into the body, where there is no return address.
#[test]
fn a_jump_to_a_body_is_no_call_of_it() {
    let rest = "mov word(%rip), %rsi\n    mov $17, %edi\n";
    let own = ARGUMENTS.strip_suffix(rest).unwrap();
    let input = format!("test $8, %edi\n    jne .Lmiddle\n    {own}    .Lmiddle: {}", before(rest));
    let body = BODY.replace("@ARGUMENTS@", &format!("{own}    middle: {rest}"));
    for (branch, is_right) in [("jne .Lmiddle", true), ("jne middle", false)] {
        let whole = format!("test $8, %edi\n    {branch}\n    {own}    .Lmiddle: call middle");
        let apart = format!("test $8, %edi\n    {branch}\n    call body\n    jmp 1f\n    .Lmiddle: {}\n    1:", before(rest));
        for first in [whole, apart] {
            let (input, output) = (program(&input, &before(ARGUMENTS), ""), program(&first, "call body", &body));
            let Some((input, output)) = input.zip(output) else { return };
            let report = check(&input, &output).unwrap();
            assert_eq!(report.is_ok(), is_right, "{first}: {}", report.summary(10));
        }
    }
}

#[test]
fn what_stands_behind_a_call_of_a_body_is_compared() {
    let input = program(&before(ARGUMENTS), &before(ARGUMENTS), "");
    let output = program("call body\n    inc %eax", "call body", &BODY.replace("@ARGUMENTS@", ARGUMENTS));
    let Some((input, output)) = input.zip(output) else { return };
    let report = check(&input, &output).unwrap();
    assert!(!report.is_ok(), "{}", report.summary(10));
}

/// Never returns, which nothing but its code tells: what stands behind its calls is reached in neither program.
const DIE: &str = "
    .type die, @function
die:
    .cfi_startproc
    mov $60, %eax
    syscall
    jmp die
    .cfi_endproc
    .size die, . - die
    ";

/// Two ways of `first` to the arguments, and to each of them another way from behind a call that does not come back.
const TWO_WAYS: &str = "
    cmp $1, %edi
    jb .Lnone
    je .Lother
    js .Lnever
    @ONE@
    @OTHER@
    .Lnone: call die
    @FROM_NONE@
    jmp .Lone
    .Lnever: call die
    inc %ebx
    jmp @FROM_NEVER@
    .Ldone:";

#[test]
fn dead_code_that_leads_to_arguments_which_two_ways_share_corresponds() {
    let end = |name: &str, arguments: &str, call: &str| format!("{name}: {arguments}    {call}\n    jmp .Ldone");
    let first = |one: &str, other: &str, from_none: &str, from_never: &str| {
        let ways = TWO_WAYS.replace("@ONE@", one).replace("@OTHER@", other);
        ways.replace("@FROM_NONE@", from_none).replace("@FROM_NEVER@", from_never)
    };
    let ends = [".Lone", ".Lother"].map(|name| end(name, ARGUMENTS, CALL));
    let input = program(&first(&ends[0], &ends[1], "xor %ebx, %ebx", ".Lother"), &before(ARGUMENTS), DIE);
    let bodies = DIE.to_owned() + &BODY.replace("@ARGUMENTS@", ARGUMENTS);
    for (from_none, is_right) in [("xor %ebx, %ebx", true), ("xor %ecx, %ecx", false)] {
        let shared = end(".Lone: .Lother", "", "call body");
        let output = program(&first(&shared, "", from_none, ".Lone"), "call body", &bodies);
        let Some((input, output)) = input.as_ref().zip(output) else { return };
        let report = check(input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{from_none}: {}", report.summary(10));
    }
}

/// `second` with an exception table in which what stands from `from` to behind the call has a landing pad.
fn covered(arguments: &str, call: &str, from: &str) -> String {
    let table = exception_table("second", [from, ".Lreturn"], "0x1b, report");
    format!("{table}    .Larguments: {arguments}    .Lcall: {call}\n    jmp .Lreturn\n    .Lpad: dec %eax\n    .Lreturn:")
}

#[test]
fn a_load_among_arguments_elsewhere_has_the_handlers_of_the_call() {
    for (from, is_right) in [(".Larguments", true), (".Lcall", false)] {
        let input = program(&before(ARGUMENTS), &covered(ARGUMENTS, CALL, from), "");
        let body = BODY.replace("@ARGUMENTS@", ARGUMENTS);
        let output = program("call body", &covered("", "call body", ".Lcall"), &body);
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{from}: {}", report.summary(10));
    }
    // What can't fault needs no handlers.
    let without_load = ARGUMENTS.replace("mov word(%rip), %rsi", "lea word(%rip), %rsi");
    let input = program(&before(&without_load), &covered(&without_load, CALL, ".Lcall"), "");
    let output = program("call body", &covered("", "call body", ".Lcall"), &BODY.replace("@ARGUMENTS@", &without_load));
    let Some((input, output)) = input.zip(output) else { return };
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// With `-fnon-call-exceptions` the fault of a load is an exception.
#[test]
fn a_load_that_loses_its_landing_pad_or_gets_one_is_seen() {
    let with = |from: &str| program(&before(ARGUMENTS), &covered(ARGUMENTS, CALL, from), "");
    let Some((all, call)) = with(".Larguments").zip(with(".Lcall")) else { return };
    for (input, output, is_right) in [(&all, &all, true), (&call, &call, true), (&all, &call, false), (&call, &all, false)] {
        let report = check(input, output).unwrap();
        assert_eq!(found(&report), if is_right { vec![] } else { vec![ViolationKind::CallSite] }, "{}", report.summary(10));
    }
}

/// What stands before `report` runs into it, and belongs to it.
fn led(program: &str, lead: &str) -> String {
    let start = "report:\n    .cfi_startproc";
    assert!(program.contains(start));
    program.replace(start, &format!(".cfi_startproc\n    body: {lead}    report:"))
}

/// The report on an output in which a lead stands before `report`.
fn report_of_lead(calls: (&str, &str), lead: &str) -> Option<Report> {
    let input = program(&before(ARGUMENTS), &before(ARGUMENTS), "")?;
    let text = PROGRAM.replace("@FIRST@", calls.0).replace("@SECOND@", calls.1).replace("@BODIES@", "");
    let output = link(&led(&text, lead), "-pie")?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn arguments_that_run_into_what_is_called_correspond() {
    let Some(right) = report_of_lead(BOTH, ARGUMENTS) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    // One call enters where its own part begins, the rest it has itself.
    let rest = "mov word(%rip), %rsi\n    mov $17, %edi\n";
    let whole = format!("lea message(%rip), %rdx\n    part: {rest}");
    for other in ["lea message(%rip), %rdx\n    call part", &before(ARGUMENTS)] {
        let Some(right) = report_of_lead((BOTH.0, other), &whole) else { return };
        assert!(right.is_ok(), "{other}: {}", right.summary(10));
    }
}

#[test]
fn arguments_that_run_into_what_is_called_with_one_thing_wrong_are_seen() {
    let leaving = [
        ("mov $17, %edi\n", "mov $17, %edi\n    jmp second\n"),
        ("mov $17, %edi\n", "mov $17, %edi\n    .cfi_adjust_cfa_offset 8\n"),
    ];
    for (right, wrong) in WRONG.into_iter().chain(leaving) {
        let Some(report) = report_of_lead(BOTH, &ARGUMENTS.replace(right, wrong)) else { return };
        assert!(!report.is_ok(), "{wrong} for {right}: {}", report.summary(10));
    }
    // It runs into another function.
    let input = program(&before(ARGUMENTS), &before(ARGUMENTS), "");
    let text = PROGRAM.replace("@FIRST@", BOTH.0).replace("@SECOND@", BOTH.1).replace("@BODIES@", "");
    let elsewhere = text.replace("first:\n    .cfi_startproc", &format!(".cfi_startproc\n    body: {ARGUMENTS}    first:"));
    let Some((input, output)) = input.zip(link(&elsewhere, "-pie")) else { return };
    let report = check(&input, &output).unwrap();
    assert!(!report.is_ok(), "{}", report.summary(10));
}

/// Where `report` is called through, and another word.
const STUB: &str = "
    .balign 16
stub: bnd jmp *slot(%rip)
    .pushsection .data
    .balign 8
slot:
    .quad report
other_slot:
    .quad first
    .popsection
    ";

#[test]
fn a_body_may_jump_through_the_word_of_the_stub_that_the_input_calls() {
    let through_stub = format!("{ARGUMENTS}    call stub");
    for (jump, is_right) in [
        ("jmp *slot(%rip)", true),
        ("jmp stub", true),
        ("jmp *other_slot(%rip)", false),
        ("jmp *slot+1(%rip)", false),
        ("notrack jmp *slot(%rip)", false),
        ("call *slot(%rip)\n    ret", false),
        ("jmp report", false),
    ] {
        let body = BODY.replace("@ARGUMENTS@", ARGUMENTS).replace("jmp report", jump);
        let input = program(&through_stub, &through_stub, STUB);
        let output = program(BOTH.0, BOTH.1, &format!("{STUB}{body}"));
        let Some((input, output)) = input.zip(output) else { return };
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{jump}: {}", report.summary(10));
    }
    // A direct call's body does not jump through a word.
    let body = BODY.replace("@ARGUMENTS@", ARGUMENTS).replace("jmp report", "jmp *slot(%rip)");
    let input = program(&before(ARGUMENTS), &before(ARGUMENTS), STUB);
    let output = program(BOTH.0, BOTH.1, &format!("{STUB}{body}"));
    let Some((input, output)) = input.zip(output) else { return };
    let report = check(&input, &output).unwrap();
    assert!(!report.is_ok(), "{}", report.summary(10));
}

/// Does nothing but jump to a stub; and what keeps the word with its address in programs that do not call through it.
const PAST: &str = "
    .type past, @function
past:
    .cfi_startproc
    jmp stub
    .cfi_endproc
    .size past, . - past

    .type keeps_word, @function
keeps_word:
    .cfi_startproc
    mov past@GOTPCREL(%rip), %rax
    ret
    .cfi_endproc
    .size keeps_word, . - keeps_word
    ";

/// Whether a body that ends so may stand for calls that are these in the input.
fn may_end_in(jump: &str, call: &str) -> Option<bool> {
    let beside = format!("{PAST}{STUB}");
    let whole = format!("{ARGUMENTS}    {call}");
    let body = BODY.replace("@ARGUMENTS@", ARGUMENTS).replace("jmp report", jump);
    let linked = |calls: (&str, &str), bodies: &str| {
        let text = PROGRAM.replace("@FIRST@", calls.0).replace("@SECOND@", calls.1).replace("@BODIES@", bodies);
        link(&text, "-pie -Wl,--no-relax -Wl,-z,now")
    };
    let input = linked((&whole, &whole), &beside)?;
    let output = linked(BOTH, &format!("{beside}{body}"))?;
    Some(check(&input, &output).unwrap().is_ok())
}

#[test]
fn a_body_may_jump_through_the_word_behind_a_jump_to_a_stub() {
    for call in ["call past", "call *past@GOTPCREL(%rip)"] {
        for (jump, is_right) in [
            ("jmp *slot(%rip)", true),
            ("jmp stub", true),
            ("jmp past", true),
            ("jmp *other_slot(%rip)", false),
            ("jmp *past@GOTPCREL(%rip)", call != "call past"),
            ("notrack jmp *slot(%rip)", false),
            ("jmp report", false),
        ] {
            let Some(may_end) = may_end_in(jump, call) else { return };
            assert_eq!(may_end, is_right, "{jump} for {call}");
        }
    }
}

#[test]
fn a_body_may_jump_through_the_word_through_which_the_input_calls() {
    for (jump, call, is_right) in [
        ("jmp *slot(%rip)", "call *slot(%rip)", true),
        ("jmp *other_slot(%rip)", "call *other_slot(%rip)", true),
        ("jmp *other_slot(%rip)", "call *slot(%rip)", false),
        ("jmp *slot+1(%rip)", "call *slot(%rip)", false),
        ("jmp *slot(%rip)", "notrack call *slot(%rip)", false),
        ("notrack jmp *slot(%rip)", "call *slot(%rip)", false),
        ("jmp *slot(%rip)", "call *%fs:slot(%rip)", false),
        ("jmp *slot(%rip)", "call *%rax", false),
        ("call *slot(%rip)\n    ret", "call *slot(%rip)", false),
        // Nothing tells that the word, which can be written, leads there.
        ("jmp report", "call *slot(%rip)", false),
        ("jmp stub", "call *slot(%rip)", false),
    ] {
        let Some(may_end) = may_end_in(jump, call) else { return };
        assert_eq!(may_end, is_right, "{jump} for {call}");
    }
}
