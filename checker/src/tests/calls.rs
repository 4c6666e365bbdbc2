//! Calls past a stub and bodies in the place of calls: the right ones correspond, and one thing wrong in them is seen.

use super::dead::found;
use super::layout::{exception_table, link};
use super::*;

/// `@FIRST@` calls a function through a stub, `@SECOND@` a leaf; both are stored too, so that they stay.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    lea pointers(%rip), %rbx
    mov $2, %edi
    push %rbx
    .cfi_adjust_cfa_offset 8
    @FIRST@
    mov %eax, %edi
    @SECOND@
    pop %rbx
    .cfi_adjust_cfa_offset -8
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type twice, @function
twice:
    .cfi_startproc
    endbr64
    lea (%rdi,%rdi), %eax
    ret
    .cfi_endproc
    .size twice, . - twice

    .type leaf, @function
leaf:
    .cfi_startproc
    @LEAF@
    .cfi_endproc
    .size leaf, . - leaf

    .balign 16
stub:
    @STUB@

    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 16
message:
    .asciz "a string that nobody prints"
    .data
    .balign 8
slot:
    .quad twice
other_slot:
    .quad leaf
pointers:
    .quad twice
    .quad leaf
    .quad stub
"#;

const STUB: &str = "endbr64\n    bnd jmp *slot(%rip)";
const LEAF: &str = "endbr64
    lea message(%rip), %rax
    test %edi, %edi
    js 1f
    movzbl (%rax,%rdi), %eax
    ret
1:
    xor %eax, %eax
    ret";
/// The same in the place of a call.
const BODY: &str = "lea message(%rip), %rax
    test %edi, %edi
    jns 1f
    xor %eax, %eax
    jmp 2f
1:
    movzbl (%rax,%rdi), %eax
2:";

fn program(first: &str, second: &str, leaf: &str, stub: &str) -> Option<Vec<u8>> {
    let text = PROGRAM.replace("@FIRST@", first).replace("@SECOND@", second).replace("@LEAF@", leaf).replace("@STUB@", stub);
    link(&text, "-pie")
}

/// The report on an output with these calls, of an input with this stub and this leaf.
fn report(first: &str, second: &str, leaf: &str, stub: &str) -> Option<Report> {
    let input = program("call stub", "call leaf", leaf, stub)?;
    let output = program(first, second, leaf, stub)?;
    Some(check(&input, &output).unwrap())
}

fn past_stub(call: &str, stub: &str) -> Option<Report> {
    report(call, "call leaf", LEAF, stub)
}

fn inlined(body: &str, leaf: &str) -> Option<Report> {
    report("call stub", body, leaf, STUB)
}

#[test]
fn a_call_past_a_stub_corresponds() {
    for stub in [STUB, "jmp *slot(%rip)", "endbr64\n    jmp *slot(%rip)", "jmp *slot(%rip)\n    push $1\n    jmp stub"] {
        let Some(report) = past_stub("call *slot(%rip)", stub) else { return };
        assert!(report.is_ok(), "{stub}: {}", report.summary(10));
    }
}

#[test]
fn a_call_past_a_stub_through_another_slot_is_seen() {
    let Some(report) = past_stub("call *other_slot(%rip)", STUB) else { return };
    assert_eq!(found(&report), [ViolationKind::InstructionMismatch], "{}", report.summary(10));
}

#[test]
fn a_call_past_what_does_more_than_jump_through_a_slot_is_seen() {
    let wrong = [
        "inc %edi\n    jmp *slot(%rip)",
        "notrack jmp *slot(%rip)",
        "jmp *%rbx",
        "jmp *slot(,%rdi,8)",
        "call *slot(%rip)\n    ret",
        "mov slot(%rip), %r11\n    jmp *%r11",
    ];
    for stub in wrong {
        // What is at an absolute address does not link into what can lie anywhere.
        let stub = stub.replace("slot(,%rdi,8)", "(%rbx)");
        let Some(report) = past_stub("call *slot(%rip)", &stub) else { return };
        assert!(found(&report).contains(&ViolationKind::InstructionMismatch), "{stub}: {}", report.summary(10));
    }
    for call in ["notrack call *slot(%rip)", "call *slot+1(%rip)", "call *%rbx", "jmp *slot(%rip)", "call *(%rbx)"] {
        let Some(report) = past_stub(call, STUB) else { return };
        assert!(!report.is_ok(), "{call}: {}", report.summary(10));
    }
}

#[test]
fn a_load_that_code_knows_by_its_place_in_the_place_of_a_call_is_seen() {
    let with = |leaf: &str, caller: &str| {
        let input = program("call stub", &format!("{caller}\n    call leaf"), leaf, STUB)?;
        let output = program("call stub", &format!("{caller}\n    movzbl (%rdi), %eax"), leaf, STUB)?;
        Some(check(&input, &output).unwrap())
    };
    for leaf in ["movzbl (%rdi), %eax\n    ret", "endbr64\n    movzbl (%rdi), %eax\n    ret"] {
        let Some(report) = with(leaf, "lea message(%rip), %rsi") else { return };
        assert!(report.is_ok(), "{leaf}: {}", report.summary(10));
        let Some(report) = with(leaf, "lea leaf(%rip), %rsi") else { return };
        assert_eq!(found(&report), [ViolationKind::InstructionMismatch], "{leaf}: {}", report.summary(10));
    }
}

#[test]
fn a_body_in_the_place_of_its_call_corresponds() {
    let Some(report) = inlined(BODY, LEAF) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // In the callee's order too, and without the mark.
    let same = "lea message(%rip), %rax\n    test %edi, %edi\n    js 1f\n    movzbl (%rax,%rdi), %eax\n    jmp 2f\n1:\n    xor %eax, %eax\n2:";
    for leaf in [LEAF, &LEAF.replace("endbr64", "")] {
        let Some(report) = inlined(same, leaf) else { return };
        assert!(report.is_ok(), "{}", report.summary(10));
    }
}

/// A linker that makes `call leaf` of `call *leaf@GOTPCREL(%rip)` has a byte to spare.
#[test]
fn a_body_in_the_place_of_a_padded_call_corresponds() {
    let report = |call: &str, body: &str| {
        let input = program("call stub", call, LEAF, STUB)?;
        let output = program("call stub", body, LEAF, STUB)?;
        Some(check(&input, &output).unwrap())
    };
    let Some(right) = report("addr32 call leaf", BODY) else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    for (call, body) in
        [("addr32 call leaf", BODY.replace("jns", "js")), ("data16 call leaf", BODY.into()), ("bnd call leaf", BODY.into())]
    {
        let Some(wrong) = report(call, &body) else { return };
        assert!(!wrong.is_ok(), "{call}: {}", wrong.summary(10));
    }
}

#[test]
fn a_body_with_one_thing_wrong_is_seen() {
    let wrong = [
        ("message(%rip)", "message+1(%rip)"),
        ("test %edi, %edi", "test %esi, %esi"),
        ("test %edi, %edi\n", "\n"),
        ("xor %eax, %eax\n", "xor %eax, %eax\n    inc %eax\n"),
        ("jns 1f", "js 1f"),
        ("jns 1f", "jne 1f"),
        ("jmp 2f\n", "\n"),
        ("movzbl (%rax,%rdi), %eax", "movsbl (%rax,%rdi), %eax"),
        ("movzbl (%rax,%rdi), %eax", ""),
        ("2:", "2:\n    xor %edi, %edi"),
        ("2:", "2:\n    ret"),
    ];
    for (right, wrong) in wrong {
        assert!(BODY.contains(right));
        let Some(report) = inlined(&BODY.replacen(right, wrong, 1), LEAF) else { return };
        assert!(!report.is_ok(), "{right} became {wrong}: {}", report.summary(10));
    }
    let Some(report) = inlined("", LEAF) else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
}

/// What may not stand in the place of a call although it is the callee's: it could tell where the stack is, or is no plain instruction.
#[test]
fn a_body_that_uses_the_stack_or_leaves_otherwise_is_seen() {
    let wrong = [
        "push %rbx\n    pop %rbx",
        "mov (%rsp), %rax",
        "mov -8(%rsp), %rax",
        "mov %rdi, -16(%rsp)",
        "lea (%rsp), %rax",
        "mov %rsp, %rax",
        "add $0, %rsp",
        "pushf\n    popf",
        "enter $0, $0\n    leave",
        "syscall",
        "int3",
    ];
    for instruction in wrong {
        let body = format!("{instruction}\n    xor %eax, %eax");
        let Some(report) = inlined(&body, &format!("{body}\n    ret")) else { return };
        let kinds = found(&report);
        assert!(kinds.contains(&ViolationKind::InstructionMismatch), "{instruction}: {}", report.summary(10));
    }
    let Some(report) = inlined("xor %eax, %eax\n    add $8, %rsp", "xor %eax, %eax\n    ret $8") else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_body_whose_callee_unwinds_otherwise_is_seen() {
    const PERSONALITY: &str = ".cfi_personality 0x9b, pointers\n    .cfi_lsda 0x1b, message";
    let rules = [".cfi_def_cfa_offset 16", ".cfi_offset rbx, -16", ".cfi_register rip, rdx", ".cfi_signal_frame"];
    let in_registers = rules.map(|rule| (rule, "xor %eax, %eax", false));
    // Of an exception who handles it is asked, and of nothing else.
    let of_exceptions = [(PERSONALITY, "mov message(%rip), %eax", false), (PERSONALITY, "xor %eax, %eax", true)];
    for (rule, body, is_right) in in_registers.into_iter().chain(of_exceptions) {
        let Some(report) = inlined(body, &format!("{rule}\n    {body}\n    ret")) else { return };
        assert_eq!(report.is_ok(), is_right, "{rule}, {body}: {}", report.summary(10));
    }
    // The body's own rules must be those of the call.
    let body = "xor %eax, %eax\n    .cfi_adjust_cfa_offset -8\n    lea 1(%rax), %eax\n    .cfi_adjust_cfa_offset 8";
    let Some(report) = inlined(body, "xor %eax, %eax\n    lea 1(%rax), %eax\n    ret") else { return };
    assert_eq!(found(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}

/// The second call, or what is in its place, with an exception table in which what stands from `from` to `to` has a landing pad.
fn covered(what: &str, from: &str, to: &str) -> String {
    let table = exception_table("_start", [from, to], "0x9b, pointers");
    format!("{table}.Lbefore: nop\n.Lcall: {what}\n.Lbehind: jmp .Lreturn\n.Lpad: dec %eax\n.Lreturn:")
}

#[test]
fn what_may_fault_in_the_place_of_a_call_has_its_handlers_and_the_rest_needs_none() {
    let (quiet, loud) = ("lea 1(%rdi), %eax", "lea message(%rip), %rax\n    movzbl (%rax,%rdi), %eax");
    for (body, from, to, is_right) in [
        (quiet, ".Lcall", ".Lbehind", true),
        (quiet, ".Lbefore", ".Lcall", true),
        (loud, ".Lcall", ".Lbehind", true),
        (loud, ".Lbefore", ".Lcall", false),
    ] {
        let leaf = format!("{body}\n    ret");
        let before = program("call stub", &covered("call leaf", ".Lcall", ".Lbehind"), &leaf, STUB);
        let Some((input, output)) = before.zip(program("call stub", &covered(body, from, to), &leaf, STUB)) else { return };
        let report = check(&input, &output).unwrap();
        let expected = if is_right { vec![] } else { vec![ViolationKind::CallSite] };
        assert_eq!(found(&report), expected, "{body} {from}: {}", report.summary(10));
    }
}

#[test]
fn a_way_into_a_body_from_elsewhere_is_seen() {
    // The leaf itself, which is stored, may not be found in the body: its `ret` is missing there.
    let text = PROGRAM
        .replace("@FIRST@", "call stub")
        .replace("@SECOND@", "3:\n    xor %eax, %eax\n    inc %eax")
        .replace("@STUB@", STUB)
        .replace("@LEAF@", "jmp 3b");
    let Some(output) = link(&text, "-pie") else { return };
    let Some(input) = program("call stub", "call leaf", "xor %eax, %eax\n    inc %eax\n    ret", STUB) else { return };
    let report = check(&input, &output).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Conflict), "{}", report.summary(10));
}

/// A function that mostly returns early, and otherwise goes on with a frame, tail-calls, or jumps through a slot.
const EARLY: &str = "endbr64
    test %edi, %edi
    je 1f
    js 2f
    cmp $7, %edi
    je 3f
    cmp $8, %edi
    je 4f
    lea 1(%rdi), %eax
    ret
1:
    push %rbx
    .cfi_adjust_cfa_offset 8
    mov $5, %eax
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
2:
    inc %edi
    jmp twice
3:
    jmp *slot(%rip)
4:
    lea pointers(%rip), %rax
    jmp *8(%rax)";
/// Its beginning in the place of a call.
const BEGINNING: &str = "test %edi, %edi
    jne 1f
    call leaf_rest
    jmp 5f
1:
    jns 2f
    inc %edi
    call twice
    jmp 5f
2:
    cmp $7, %edi
    jne 3f
    call *slot(%rip)
    jmp 5f
3:
    cmp $8, %edi
    jne 4f
    lea pointers(%rip), %rax
    call *8(%rax)
    jmp 5f
4:
    lea 1(%rdi), %eax
5:";

fn begun(body: &str) -> Option<Report> {
    inlined(body, &EARLY.replace("1:\n", "1:\nleaf_rest:\n"))
}

#[test]
fn a_beginning_that_calls_the_rest_corresponds() {
    let Some(report) = begun(BEGINNING) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_beginning_with_one_thing_wrong_is_seen() {
    let wrong = [
        ("call leaf_rest\n    jmp 5f", "call leaf_rest\n    jmp 4f"),
        ("call leaf_rest\n    jmp 5f", "jmp 5f"),
        ("call leaf_rest", "call leaf"),
        ("call leaf_rest", "call leaf_rest + 1"),
        ("call leaf_rest", "call twice"),
        ("call twice", "call leaf"),
        ("call twice", "jmp twice"),
        ("call *slot(%rip)", "call *other_slot(%rip)"),
        ("call *slot(%rip)", "jmp *slot(%rip)"),
        ("call *slot(%rip)", "notrack call *slot(%rip)"),
        ("call *8(%rax)", "call *16(%rax)"),
        ("call *8(%rax)", "call *8(%rcx)"),
        ("call *8(%rax)", "call *%rax"),
        ("inc %edi\n    call", "call"),
    ];
    for (right, wrong) in wrong {
        assert!(BEGINNING.contains(right));
        let Some(report) = begun(&BEGINNING.replacen(right, wrong, 1)) else { return };
        assert!(!report.is_ok(), "{right} became {wrong}: {}", report.summary(10));
    }
}

#[test]
fn a_beginning_may_call_a_rest_that_only_returns() {
    let leaf = "endbr64\n    lea 1(%rdi), %eax\n    jmp nothing\n    int3\nnothing:\n    ret";
    let body = "lea 1(%rdi), %eax\n    call nothing";
    let Some(report) = inlined(body, leaf) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // The return may also be left out.
    let report = inlined("lea 1(%rdi), %eax", leaf).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    for wrong in ["lea 1(%rdi), %eax\n    call twice", "lea 1(%rdi), %eax\n    call nothing\n    call nothing", "call nothing"] {
        assert!(!inlined(wrong, leaf).unwrap().is_ok(), "{wrong}");
    }
}

#[test]
fn a_beginning_that_calls_the_rest_with_a_frame_already_made_is_seen() {
    // Behind the `push` the stack of the input is not as at an entry.
    let leaf = EARLY.replace(".cfi_adjust_cfa_offset 8\n    mov", ".cfi_adjust_cfa_offset 8\nleaf_rest:\n    mov");
    let Some(report) = inlined(&BEGINNING.replace("call leaf_rest", "push %rbx\n    call leaf_rest"), &leaf) else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
    let Some(report) = inlined("call leaf_rest", &leaf) else { return };
    assert!(!report.is_ok(), "{}", report.summary(10));
}

#[test]
fn code_that_nothing_reaches_may_call_the_stub_that_its_twin_calls_past() {
    // Nothing leads to the second of two equal functions; the output shares what follows the call in the first.
    let twin = |name: &str, call: &str, after: &str| {
        format!(
            "{name}:\n    .cfi_startproc\n    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n    {call}\n{after}    .cfi_endproc\n"
        )
    };
    let after = "12:\n    test %eax, %eax\n    je 11f\n    add $8, %rsp\n    .cfi_def_cfa_offset 8\n    ret\n11:\n    .cfi_def_cfa_offset 16\n    ud2\n";
    let with = |first: &str, second: &str| {
        let text = PROGRAM.replace("@FIRST@", "call maker").replace("@SECOND@", "call leaf").replace("@LEAF@", LEAF);
        link(
            &text.replace("@STUB@", STUB).replace("    .balign 16\nstub:", &format!("{first}{second}    .balign 16\nstub:")),
            "-pie",
        )
    };
    let Some(input) = with(&twin("maker", "call stub", after), &twin("twin", "call stub", after)) else { return };
    let live = twin("maker", "call *slot(%rip)", after);
    let report = check(&input, &with(&live, &twin("twin", "call stub", "    jmp 12b\n")).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let report = check(&input, &with(&live, &twin("twin", "call leaf", "    jmp 12b\n")).unwrap()).unwrap();
    assert!(!report.is_ok());
}
