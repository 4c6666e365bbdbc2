//! Instructions in shorter forms: which do the same, and which do not.

use super::layout::{function, link};
use super::*;

const START: &str = "    .cfi_undefined rip
    mov $2, %edi
    call work
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt";
const OTHER: &str = "    lea (%rdi,%rdi), %eax
    ret";
const DATA: &str = "    .org 0x400, 0xcc
    .section .data
    .balign 16
shared:
    .quad 1, 2, 3, 4
";

/// What is said of a function that becomes another one.
fn report_of(input: &str, output: &str) -> Option<Report> {
    let build = |work: &str| {
        let functions = [("_start", START), ("work", work), ("other", OTHER)].map(|(name, body)| function(name, body));
        link(&format!("    .text\n    .globl _start\n{}{DATA}", functions.concat()), "-pie")
    };
    Some(check(&build(input)?, &build(output)?).unwrap())
}

/// Lines of which each may stand for the one beside it, in a function that knows some numbers, an address and a vector, and reads no flags afterwards.
fn reports(pairs: &[(&str, &str)]) -> Vec<(String, Report)> {
    let around = |line: &str| {
        let known =
            "    mov $5, %esi\n    xor %r9d, %r9d\n    lea shared(%rip), %r8\n    movups shared(%rip), %xmm1\n    cmp $3, %edi\n";
        format!("{known}    {line}\n    add %edi, %eax\n    add %edx, %eax\n    add %ecx, %eax\n    ret")
    };
    let report = |&(x, y): &(&str, &str)| Some((format!("{x}: {y}"), report_of(&around(x), &around(y))?));
    pairs.iter().filter_map(report).collect()
}

#[test]
fn shorter_forms_correspond() {
    let pairs = [
        ("movdqa shared(%rip), %xmm0", "movaps shared(%rip), %xmm0"),
        ("movapd %xmm1, 16(%r8)", "movaps %xmm1, 16(%r8)"),
        ("movdqu %xmm1, 3(%r8)", "movups %xmm1, 3(%r8)"),
        ("movupd 3(%r8), %xmm9", "movups 3(%r8), %xmm9"),
        ("movhpd (%r8), %xmm1", "movhps (%r8), %xmm1"),
        ("movlpd %xmm1, (%r8)", "movlps %xmm1, (%r8)"),
        ("pxor %xmm10, %xmm10", "xorps %xmm10, %xmm10"),
        ("punpcklqdq %xmm1, %xmm8", "movlhps %xmm1, %xmm8"),
        ("mov $9, %edx", "lea 4(%rsi), %edx"),
        ("mov $5, %edx", "mov %esi, %edx"),
        ("mov $-3, %rdx", "lea -3(%r9), %rdx"),
        ("mov $-3, %edx", "lea -8(%rsi), %edx"),
        ("mov $0, %edx", "xor %edx, %edx"),
        ("mov $0, %r10", "xor %r10d, %r10d"),
        ("lea shared+24(%rip), %rdx", "lea 24(%r8), %rdx"),
        ("lea shared(%rip), %rdx", "mov %r8, %rdx"),
        ("movl $5, (%r8)", "mov %esi, (%r8)"),
        ("movl $5, shared+4(%rip)", "mov %esi, shared+4(%rip)"),
        ("movq $0, 8(%r8,%rdi,8)", "mov %r9, 8(%r8,%rdi,8)"),
        ("movb $5, 1(%r8)", "mov %sil, 1(%r8)"),
        ("movq %xmm6, %xmm6\n    mov $9, %edx", "movq %xmm6, %xmm6\n    lea 4(%rsi), %edx"),
        // Prefixes that say nothing, as assemblers put them where branches are not to cross lines.
        (".byte 0x2e, 0x2e\n    xor %eax, %eax\n    mov $2, %edx", ".byte 0x2e, 0x2e\n    xor %eax, %eax\n    lea 2(%rax), %edx"),
        (".byte 0x3e\n    mov %esi, %ecx\n    mov $7, %edx", ".byte 0x3e\n    mov %esi, %ecx\n    lea 2(%rcx), %edx"),
    ];
    for (pair, report) in reports(&pairs) {
        assert!(report.is_ok(), "{pair}\n{}", report.summary(10));
    }
}

#[test]
fn forms_with_one_thing_wrong_are_seen() {
    let pairs = [
        ("movdqa shared(%rip), %xmm1", "movaps shared+16(%rip), %xmm1"),
        ("movdqa %xmm1, (%r8)", "movaps %xmm2, (%r8)"),
        ("movdqa %xmm1, (%r8)", "movlps %xmm1, (%r8)"),
        ("movhpd %xmm1, (%r8)", "movlps %xmm1, (%r8)"),
        ("movq %xmm1, (%r8)", "movups %xmm1, (%r8)"),
        ("pxor %xmm1, %xmm0\n    movups %xmm0, (%r8)", "xorps %xmm0, %xmm0\n    movups %xmm0, (%r8)"),
        ("punpckhqdq %xmm1, %xmm0\n    movups %xmm0, (%r8)", "movlhps %xmm1, %xmm0\n    movups %xmm0, (%r8)"),
        ("mov $9, %edx", "lea 5(%rsi), %edx"),
        ("mov $9, %edx", "lea 4(%rdi), %edx"),
        ("mov $9, %edx", "lea 4(%rsi), %ecx"),
        ("mov $0xfffffff8, %edx\n    shr $4, %rdx", "lea -8(%r9), %rdx\n    shr $4, %rdx"),
        ("mov $0, %edx\n    adc $0, %edx", "xor %edx, %edx\n    adc $0, %edx"),
        ("mov $0, %edx\n    cmovb %edi, %edx", "xor %edx, %edx\n    cmovb %edi, %edx"),
        ("lea shared+24(%rip), %rdx", "lea 16(%r8), %rdx"),
        ("lea shared(%rip), %rdx", "mov %r9, %rdx"),
        ("movl $5, (%r8)", "mov %rsi, (%r8)"),
        ("movl $5, (%r8)", "mov %esi, 4(%r8)"),
        ("movl $5, (%r8)", "mov %edi, (%r8)"),
        ("movl $5, shared+4(%rip)", "mov %esi, shared(%rip)"),
        ("movl $5, (%r8,%rdi,4)", "mov %esi, (%r8,%rdi,8)"),
        ("movb $5, 1(%rdi)", "mov %dh, 1(%rdi)"),
        ("movw $5, 2(%r8)", "mov %esi, 2(%r8)"),
        ("movd %xmm6, %esi\n    mov $9, %edx", "movd %xmm6, %esi\n    lea 4(%rsi), %edx"),
        ("xor %ax, %ax\n    mov $2, %edx", "xor %ax, %ax\n    lea 2(%rax), %edx"),
        ("mov $9, %edx\n    mov %edi, %esi\n    mov $5, %ecx", "mov $9, %edx\n    mov %edi, %esi\n    mov %esi, %ecx"),
    ];
    for (pair, report) in reports(&pairs) {
        assert!(!report.is_ok(), "{pair}");
    }
}

const LOWER: &str = "    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n";
const PUSH: &str = "    push %rax\n    .cfi_def_cfa_offset 16\n";
const RAISE: &str = "    add $8, %rsp\n    .cfi_def_cfa_offset 8\n";
const POP: &str = "    pop %rcx\n    .cfi_def_cfa_offset 8\n";

#[test]
fn a_push_and_a_pop_may_make_room_for_a_word_and_give_it_up() {
    let body = |lower: &str, raise: &str| {
        format!("{lower}    call other\n{raise}    lea 1(%rdi), %ecx\n    test %edi, %edi\n    cmove %ecx, %eax\n    ret")
    };
    let Some(report) = report_of(&body(LOWER, RAISE), &body(PUSH, POP)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // What is taken off the stack next may be a register that functions keep.
    let save = "    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    mov %edi, %ebx\n";
    let body = |[lower, raise]: [&str; 2]| {
        format!(
            "{save}    {lower}\n    .cfi_def_cfa_offset 24\n    call other\n    {raise}\n    .cfi_def_cfa_offset 16\n    add %ebx, %eax\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret"
        )
    };
    let report = report_of(&body(["sub $8, %rsp", "add $8, %rsp"]), &body(["push %rdx", "pop %rbx"])).unwrap();
    assert!(!report.is_ok(), "it is read before");
    let body = |lines| body(lines).replace("    add %ebx, %eax\n", "    mov %edi, %eax\n");
    let report = report_of(&body(["sub $8, %rsp", "add $8, %rsp"]), &body(["push %rdx", "pop %rbx"])).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_push_or_a_pop_that_somebody_could_tell_is_seen() {
    let bodies: [fn(&str, &str) -> String; 12] = [
        // What is below the stack pointer is read.
        |lower, raise| {
            format!("    mov %edi, -8(%rsp)\n{lower}    call other\n    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret")
        },
        |lower, raise| {
            format!("    lea -8(%rsp), %rdx\n    mov %edi, (%rdx)\n{lower}    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret")
        },
        // What was taken off the stack is there again: the return address, what the function has pushed, and what it finds in a loop.
        |lower, _| {
            format!(
                "    pop shared(%rip)\n    .cfi_def_cfa_offset 0\n{}    add %edi, %edi\n    jmp other",
                lower.replace("offset 16", "offset 8")
            )
        },
        |lower, raise| {
            format!("    push %rdi\n    lea 8(%rsp), %rsp\n{lower}    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret")
        },
        |lower, raise| {
            format!(
                "    push %rdi\n    mov %rsp, %rdx\n    add $8, %rdx\n    xchg %rdx, %rsp\n{lower}    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret"
            )
        },
        |lower, raise| format!("    push %rdi\n    adc $8, %rsp\n{lower}    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret"),
        |lower, raise| {
            let up = "    inc %rsp\n".repeat(8);
            format!("    push %rdi\n{up}{lower}    mov (%rsp), %eax\n{raise}    mov $1, %ecx\n    ret")
        },
        |lower, raise| {
            format!(
                "1:\n{lower}    mov (%rsp), %eax\n    mov %edi, (%rsp)\n{raise}    dec %edi\n    jne 1b\n    mov $1, %ecx\n    ret"
            )
        },
        // The flags are.
        |lower, raise| format!("{lower}    setb %al\n{raise}    mov $1, %ecx\n    ret"),
        |lower, raise| format!("{lower}    call other\n{raise}    mov $1, %ecx\n    setb %al\n    ret"),
        // The register is.
        |lower, raise| format!("    mov %edi, %ecx\n{lower}{raise}    mov %ecx, %eax\n    mov $1, %ecx\n    ret"),
        // Before it is written the function may fault, or go elsewhere.
        |lower, raise| {
            format!(
                "    mov %edi, %ecx\n{lower}{raise}    test %edi, %edi\n    je 1f\n    mov $1, %ecx\n1:\n    mov %ecx, %eax\n    ret"
            )
        },
    ];
    for body in bodies {
        let Some(report) = report_of(&body(LOWER, RAISE), &body(PUSH, POP)) else { return };
        assert!(!report.is_ok(), "{}", body(PUSH, POP));
    }
}

#[test]
fn a_push_may_make_room_on_each_of_several_ways() {
    let body = |lower: &str| {
        let way = |end: &str| format!("{lower}    call other\n{RAISE}    {end}\n");
        format!("    test %edi, %edi\n    je 1f\n{}1:\n    inc %edi\n    je 2f\n{}2:\n    ret", way("ret"), way("ret"))
    };
    let Some(report) = report_of(&body(LOWER), &body(PUSH)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn what_a_register_holds_on_one_way_alone_is_no_number() {
    let body = |way: &str, line: &str| {
        format!(
            "    test %edi, %edi\n    je {way}\n    mov %edi, %esi\n    jmp 2f\n1:\n    mov $5, %esi\n2:\n    {line}\n    lea (%rdx,%rsi), %eax\n    ret"
        )
    };
    let (number, sum) = ("mov $9, %edx", "lea 4(%rsi), %edx");
    let Some(report) = report_of(&body("1f", number), &body("1f", sum)) else { return };
    assert!(!report.is_ok());
    // Nor is it where a loop comes back behind what makes it known.
    let around = |line: &str| {
        format!(
            "    mov $5, %esi\n1:\n    {line}\n    lea (%rdx,%rsi), %eax\n    lea 3(%rdi), %esi\n    dec %edi\n    jne 1b\n    ret"
        )
    };
    assert!(!report_of(&around(number), &around(sum)).unwrap().is_ok());
    // Where nothing else comes in between it is one.
    let straight = |line: &str| {
        body("1f", "nop")
            .replace("    mov $5, %esi\n", &format!("    mov $5, %esi\n    {line}\n"))
            .replace("mov %edi, %esi", "mov %edi, %edx\n    mov %edi, %esi")
    };
    let report = report_of(&straight(number), &straight(sum)).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}
