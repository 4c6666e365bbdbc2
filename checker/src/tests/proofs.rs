//! Changed straight-line code: what does the same is proven, and with one thing wrong it is seen.

use super::layout::link;
use super::*;

/// `work` is called by `_start` and by its address; `@WORK@` is its body with all its rules. Data stays where it is.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $2, %edi
    call work
@BEHIND@
    call other
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type work, @function
work:
    .cfi_startproc
@WORK@
    .cfi_endproc
    .size work, . - work

    .type other, @function
other:
    .cfi_startproc
    lea (%rdi,%rdi), %eax
    ret
    .cfi_endproc
    .size other, . - other

    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 16
numbers:
    .quad 17, 4
message:
    .asciz "a string that nobody prints"
    .section .data
    .balign 8
shared:
    .quad 1, 2, 3
pointers:
    .quad work
"#;

/// A frame of three slots and one saved register around a body.
fn framed(body: &str) -> String {
    format!(
        "    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    sub $32, %rsp
    .cfi_def_cfa_offset 48
{body}
    add $32, %rsp
    .cfi_def_cfa_offset 16
    pop %rbx
    .cfi_def_cfa_offset 8
    ret"
    )
}

/// A caller that reads all that a function may leave in registers.
const READER: &str = "    mov %rcx, shared(%rip)
    mov %rsi, shared(%rip)
    mov %rdi, shared(%rip)
    mov %r8, shared(%rip)
    mov %r9, shared(%rip)
    mov %r10, shared(%rip)
    mov %r11, shared(%rip)
    mov %eax, %edi";

fn program(work: &str, kind: &str) -> Option<Vec<u8>> {
    link(&PROGRAM.replace("@WORK@", work).replace("@BEHIND@", READER), kind)
}

fn report_of(input: &str, output: &str) -> Option<Report> {
    let (input, output) = (program(input, "-pie")?, program(output, "-pie")?);
    Some(check(&input, &output).unwrap())
}

/// The report on a framed body that became another one; `;` ends a line.
fn changed(input: &str, output: &str) -> Option<Report> {
    let lines = |body: &str| framed(&body.replace(';', "\n"));
    report_of(&lines(input), &lines(output))
}

pub(super) fn assert_same(input: &str, output: &str) {
    let Some(report) = changed(input, output) else { return };
    assert!(report.is_ok(), "{input} became {output}: {}", report.summary(10));
    assert!(report.stats.changed_pieces > 0, "{input} became {output}: {:?}", report.stats);
}

pub(super) fn assert_different(input: &str, output: &str) {
    let Some(report) = changed(input, output) else { return };
    assert!(!report.is_ok(), "{input} became {output}");
}

#[test]
fn a_load_of_a_slot_that_a_register_still_holds_may_be_a_move() {
    let input = "mov %rdi, 8(%rsp); add $1, %rdi; mov 8(%rsp), %rax";
    assert_same(input, "mov %rdi, 8(%rsp); mov %rdi, %rax; add $1, %rdi");
    assert_different(input, "mov %rdi, 8(%rsp); add $1, %rdi; mov %rdi, %rax");
    // The low half is in the register, but the slot's other half is not zero.
    let input = "mov %rdi, 8(%rsp); mov 8(%rsp), %rax";
    assert_different(input, "mov %rdi, 8(%rsp); mov %edi, %eax");
    let input = "mov %edi, 8(%rsp); mov 8(%rsp), %eax";
    assert_same(input, "mov %edi, 8(%rsp); mov %edi, %eax");
    assert_different(input, "mov %edi, 8(%rsp); mov %rdi, %rax");
    let input = "movb $3, 8(%rsp); movzbl 8(%rsp), %eax";
    assert_same(input, "movb $3, 8(%rsp); mov $3, %eax");
    assert_different(input, "movb $3, 8(%rsp); mov $3, %al");
}

#[test]
fn a_slot_that_was_written_in_between_is_another_value() {
    let input = "mov %rdi, 8(%rsp); mov %rsi, 8(%rsp); mov 8(%rsp), %rax";
    assert_same(input, "mov %rsi, 8(%rsp); mov %rsi, %rax");
    assert_different(input, "mov %rdi, 8(%rsp); mov %rsi, 8(%rsp); mov %rdi, %rax");
    // A part of it.
    let input = "mov %rdi, 8(%rsp); movb $0, 10(%rsp); mov 8(%rsp), %rax";
    assert_different(input, "mov %rdi, 8(%rsp); movb $0, 10(%rsp); mov %rdi, %rax");
    let input = "mov %rdi, 8(%rsp); movb $0, 16(%rsp); mov 8(%rsp), %rax";
    assert_same(input, "mov %rdi, 8(%rsp); movb $0, 16(%rsp); mov %rdi, %rax");
}

#[test]
fn what_is_known_flows_over_branches_and_loops() {
    let input = "mov %rdi, 8(%rsp); xor %eax, %eax; 1:; mov 8(%rsp), %rcx; add %rcx, %rax; dec %rsi; jne 1b";
    assert_same(input, "mov %rdi, 8(%rsp); xor %eax, %eax; 1:; mov %rdi, %rcx; add %rcx, %rax; dec %rsi; jne 1b");
    // In the second round the register is another one.
    let input = "mov %rdi, 8(%rsp); xor %eax, %eax; 1:; mov 8(%rsp), %rcx; add %rcx, %rax; inc %rdi; dec %rsi; jne 1b";
    assert_different(input, "mov %rdi, 8(%rsp); xor %eax, %eax; 1:; mov %rdi, %rcx; add %rcx, %rax; inc %rdi; dec %rsi; jne 1b");
    // On one of two ways.
    let input = "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; add $5, %rdx; 1:; mov 8(%rsp), %rax";
    assert_same(input, "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; add $5, %rdx; 1:; mov %rdi, %rax");
    let input = "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; add $5, %rdi; 1:; mov 8(%rsp), %rax";
    assert_different(input, "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; add $5, %rdi; 1:; mov %rdi, %rax");
    let input = "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; movq $5, 8(%rsp); 1:; mov 8(%rsp), %rax";
    assert_different(input, "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; movq $5, 8(%rsp); 1:; mov %rdi, %rax");
}

#[test]
fn a_call_keeps_private_slots_and_the_registers_that_the_abi_names() {
    let input = "mov %rdi, %rbx; mov %rdi, 8(%rsp); call other; mov 8(%rsp), %rcx; add %rcx, %rax";
    assert_same(input, "mov %rdi, %rbx; mov %rdi, 8(%rsp); call other; mov %rbx, %rcx; add %rcx, %rax");
    assert_different(input, "mov %rdi, %rbx; mov %rdi, 8(%rsp); call other; mov %rdi, %rcx; add %rcx, %rax");
    // The frame's address goes to the callee.
    let input = "mov %rdi, %rbx; mov %rdi, 8(%rsp); lea 8(%rsp), %rdi; call other; mov 8(%rsp), %rcx; add %rcx, %rax";
    assert_different(input, "mov %rdi, %rbx; mov %rdi, 8(%rsp); lea 8(%rsp), %rdi; call other; mov %rbx, %rcx; add %rcx, %rax");
    let input = "mov %rdi, %rbx; mov %rdi, 8(%rsp); mov %rsp, shared(%rip); call other; mov 8(%rsp), %rcx; add %rcx, %rax";
    assert_different(input, &input.replace("mov 8(%rsp), %rcx", "mov %rbx, %rcx"));
    // An access at an unknown distance may be one to the slot.
    let input = "mov %rdi, 8(%rsp); movq $0, (%rsp,%rsi,8); mov 8(%rsp), %rax";
    assert_different(input, "mov %rdi, 8(%rsp); movq $0, (%rsp,%rsi,8); mov %rdi, %rax");
    // What is below the stack pointer is lost.
    let input = "mov %rdi, %rbx; mov %rdi, -8(%rsp); call other; mov -8(%rsp), %rcx";
    assert_different(input, &input.replace("mov -8(%rsp), %rcx", "mov %rbx, %rcx"));
}

#[test]
fn a_store_to_a_private_slot_that_nobody_reads_may_be_missing() {
    let input = "mov %rdi, 8(%rsp); mov 8(%rsp), %rax; add %rdi, %rax";
    assert_same(input, "mov %rdi, %rax; add %rdi, %rax");
    assert_different("mov %rdi, 8(%rsp); mov 8(%rsp), %rax", "mov 8(%rsp), %rax");
    // A callee may read it: it may be an argument.
    assert_different("mov %rdi, (%rsp); call other", "call other");
    // It is read on another way.
    let input = "mov %rdi, 8(%rsp); test %esi, %esi; je 1f; mov 8(%rsp), %rax; 1:";
    assert_same(input, "test %esi, %esi; je 1f; mov %rdi, %rax; 1:");
    assert_different(input, "test %esi, %esi; je 1f; mov 8(%rsp), %rax; 1:");
    // Others see it.
    assert_different("mov %rdi, shared(%rip); xor %eax, %eax", "xor %eax, %eax");
    assert_different("lea 8(%rsp), %rax; mov %rdi, 8(%rsp); mov %rax, shared(%rip)", "lea 8(%rsp), %rax; mov %rax, shared(%rip)");
}

#[test]
fn shared_accesses_keep_number_and_order() {
    let two = "mov shared(%rip), %rax; mov shared+8(%rip), %rcx";
    assert_different(two, "mov shared+8(%rip), %rcx; mov shared(%rip), %rax");
    let again = "mov shared(%rip), %rax; mov shared(%rip), %rcx";
    assert_different(again, "mov shared(%rip), %rax; mov %rax, %rcx");
    assert_different("mov %rdi, shared(%rip); mov %rsi, shared+8(%rip)", "mov %rsi, shared+8(%rip); mov %rdi, shared(%rip)");
    assert_different("mov %rdi, shared(%rip); mov %rsi, shared(%rip)", "mov %rsi, shared(%rip)");
    assert_different("mov %rdi, shared(%rip); mov shared(%rip), %rax", "mov %rdi, shared(%rip); mov %rdi, %rax");
    assert_different("mov %rdi, shared(%rip)", "mov %edi, shared(%rip)");
    assert_different("mov %rdi, shared(%rip)", "mov %rdi, shared+8(%rip)");
    assert_different("mov shared(%rip), %rax; xor %eax, %eax", "xor %eax, %eax");
}

#[test]
fn a_load_may_move_up_over_a_store_elsewhere() {
    let input = "mov %rdi, shared(%rip); mov shared+8(%rip), %rax";
    assert_same(input, "mov shared+8(%rip), %rax; mov %rdi, shared(%rip)");
    let overlapping = "mov %rdi, shared(%rip); mov shared+4(%rip), %rax";
    assert_different(overlapping, "mov shared+4(%rip), %rax; mov %rdi, shared(%rip)");
    // Never down.
    assert_different("mov shared+8(%rip), %rax; mov %rdi, shared(%rip)", "mov %rdi, shared(%rip); mov shared+8(%rip), %rax");
    let input = "mov %rdi, (%rsi); mov 8(%rsi), %rax";
    assert_same(input, "mov 8(%rsi), %rax; mov %rdi, (%rsi)");
    assert_different("mov %rdi, (%rsi); mov 8(%rdx), %rax", "mov 8(%rdx), %rax; mov %rdi, (%rsi)");
    assert_different("mov %rdi, (%rsi); mov 7(%rsi), %rax", "mov 7(%rsi), %rax; mov %rdi, (%rsi)");
    assert_different("mov %rdi, (%rsi,%rcx); mov 8(%rsi), %rax", "mov 8(%rsi), %rax; mov %rdi, (%rsi,%rcx)");
    for fence in ["mfence", "lock addl $0, (%rsp)", "xchg %rcx, shared+16(%rip)", "call other"] {
        let input = format!("mov %rdi, shared(%rip); {fence}; mov shared+8(%rip), %rbx; mov %rbx, %rax");
        let output = format!("mov shared+8(%rip), %rbx; mov %rdi, shared(%rip); {fence}; mov %rbx, %rax");
        assert_different(&input, &output);
    }
}

#[test]
fn independent_instructions_may_change_places() {
    let input = "imul %rsi, %rdi; lea 3(%rdx), %rcx; mov %rdi, %rax; addsd %xmm1, %xmm0; mulsd %xmm2, %xmm3";
    assert_same(input, "lea 3(%rdx), %rcx; mulsd %xmm2, %xmm3; imul %rsi, %rdi; addsd %xmm1, %xmm0; mov %rdi, %rax");
    assert_different(input, "mov %rdi, %rax; imul %rsi, %rdi; lea 3(%rdx), %rcx; addsd %xmm1, %xmm0; mulsd %xmm2, %xmm3");
    assert_different(input, &input.replace("%xmm1, %xmm0", "%xmm0, %xmm1"));
    assert_different("addsd %xmm1, %xmm0; mulsd %xmm2, %xmm0", "mulsd %xmm2, %xmm0; addsd %xmm1, %xmm0");
    // The rounding mode is an input of all of these.
    let input = "addsd %xmm1, %xmm0; ldmxcsr shared(%rip)";
    assert_different(input, "ldmxcsr shared(%rip); addsd %xmm1, %xmm0");
    // A division may trap.
    let input = "mov %rdi, %rax; xor %edx, %edx; div %rsi; xor %eax, %eax; xor %edx, %edx";
    assert_different(input, "xor %eax, %eax; xor %edx, %edx; test %edx, %edx");
    assert_different("mov %rdi, shared(%rip); div %rsi", "div %rsi; mov %rdi, shared(%rip)");
}

#[test]
fn flags_are_followed_one_by_one() {
    let input = "cmp %rsi, %rdi; lea 1(%rdx), %rcx; jb 1f; inc %rcx; 1: mov %rcx, %rax";
    assert_same(input, "lea 1(%rdx), %rcx; cmp %rsi, %rdi; jb 1f; inc %rcx; 1: mov %rcx, %rax");
    // `add` writes them.
    assert_different(input, "cmp %rsi, %rdi; mov %rdx, %rcx; add $1, %rcx; jb 1f; inc %rcx; 1: mov %rcx, %rax");
    // `inc` leaves the carry, but not the rest.
    assert_same(input, "cmp %rsi, %rdi; mov %rdx, %rcx; inc %rcx; jb 1f; inc %rcx; 1: mov %rcx, %rax");
    let input = input.replace("jb", "jbe");
    assert_different(&input, "cmp %rsi, %rdi; mov %rdx, %rcx; inc %rcx; jbe 1f; inc %rcx; 1: mov %rcx, %rax");
    assert_different(&input, "cmp %rdi, %rsi; lea 1(%rdx), %rcx; jbe 1f; inc %rcx; 1: mov %rcx, %rax");
    assert_different(&input, "lea 1(%rdx), %rcx; cmp %rsi, %rdi; jb 1f; inc %rcx; 1: mov %rcx, %rax");
    let input = "cmp %rsi, %rdi; setl %al; cmovg %rdx, %rcx";
    assert_same(input, "cmp %rsi, %rdi; cmovg %rdx, %rcx; setl %al");
    assert_different(input, "cmp %rsi, %rdi; cmovge %rdx, %rcx; setl %al");
}

#[test]
fn partial_registers_keep_what_they_keep() {
    assert_different("mov %edi, %eax", "mov %rdi, %rax");
    assert_different("mov %di, %ax", "mov %edi, %eax");
    assert_different("mov %dil, %al", "movzbl %dil, %eax");
    assert_different("movsbl %dil, %eax", "movzbl %dil, %eax");
    assert_different("movsbl %dil, %eax", "movsbq %dil, %rax");
    assert_different("mov %dl, %al; mov %cl, %ah", "mov %cl, %al; mov %dl, %ah");
    assert_same("mov %dil, %al; mov %bl, %ah", "mov %bl, %ah; mov %dil, %al");
    assert_same("movzbl %dil, %eax; mov %eax, %eax", "movzbl %dil, %eax; and $255, %eax; test %eax, %eax");
    assert_same(
        "movaps %xmm1, %xmm0; movss %xmm2, %xmm0; mov %rdi, %rax",
        "mov %rdi, %rax; movups %xmm1, %xmm0; movss %xmm2, %xmm0",
    );
    assert_different("movaps %xmm1, %xmm0; movss %xmm2, %xmm0", "movss %xmm2, %xmm0; movaps %xmm1, %xmm0");
    assert_different("movss %xmm2, %xmm0", "movaps %xmm2, %xmm0");
    assert_different("movsd (%rsi), %xmm0", "movlps (%rsi), %xmm0");
    assert_different("movq %xmm2, %xmm0", "movsd %xmm2, %xmm0");
}

#[test]
fn memory_that_never_changes_may_be_its_value() {
    let input = "mov numbers(%rip), %rax; add %rdi, %rax";
    assert_same(input, "mov $17, %eax; add %rdi, %rax");
    assert_different(input, "mov $18, %eax; add %rdi, %rax");
    assert_different(input, "mov $4, %eax; add %rdi, %rax");
    // What can be written is not known.
    assert_different("mov shared(%rip), %rax", "mov $1, %eax");
    // A pointer in data may change too.
    assert_different("mov pointers(%rip), %rax", "lea work(%rip), %rax");
}

#[test]
fn what_constants_decide_may_be_gone() {
    let input = "mov $3, %esi; test %esi, %esi; je 1f; lea 7(%rdi), %rax; jmp 2f; 1: lea 9(%rdi), %rax; 2:";
    assert_same(input, "mov $3, %esi; test %esi, %esi; lea 7(%rdi), %rax");
    assert_different(input, "mov $3, %esi; test %esi, %esi; lea 9(%rdi), %rax");
    assert_different(&input.replace("mov $3, %esi;", ""), "test %esi, %esi; lea 7(%rdi), %rax");
    assert_same("mov $3, %esi; lea (%rsi,%rsi,4), %rax", "mov $3, %esi; mov $15, %eax");
    assert_different("mov $3, %esi; lea (%rsi,%rsi,4), %rax", "mov $3, %esi; mov $12, %eax");
}

#[test]
fn what_is_read_at_the_end_must_be_there() {
    // A register that a caller might read.
    assert_different("mov %rdi, %rcx; mov %rcx, %rax", "mov %rdi, %rax");
    assert_different("mov %rdi, %rcx; call other", "call other");
    assert_different("movaps %xmm1, %xmm0", "nop");
    // It is overwritten before.
    assert_same("mov %rdi, %rcx; mov %rcx, %rax; mov $1, %ecx", "mov %rdi, %rax; mov $1, %ecx");
    assert_different("mov %rdi, %rcx; jmp *pointers(%rip)", "jmp *pointers(%rip)");
    assert_different("call *pointers(%rip)", "call *shared(%rip)");
}

#[test]
fn a_saved_register_comes_back_from_its_slot() {
    let work = framed("mov %rdi, %rbx; mov %rbx, %rax; mov %rax, 8(%rsp); mov 8(%rsp), %rax".replace(';', "\n").as_str());
    let right = work.replacen("mov 8(%rsp), %rax", "mov %rdi, %rax", 1);
    let Some(report) = report_of(&work, &right) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("pop %rbx", "pop %rcx"), ("pop %rbx", "add $8, %rsp"), ("push %rbx", "push %rcx"), ("add $32", "add $40")]
    {
        let Some(report) = report_of(&work, &right.replacen(from, to, 1)) else { return };
        assert!(!report.is_ok(), "{from} became {to}");
    }
    let wrong_rule = right.replace(".cfi_def_cfa_offset 48", ".cfi_def_cfa_offset 40");
    let Some(report) = report_of(&work, &wrong_rule) else { return };
    assert!(!report.is_ok());
}

#[test]
fn an_escape_elsewhere_in_the_function_counts_where_a_walk_begins_in_its_middle() {
    // The pad is walked from the address that is stored, with the frame made and its address known to others.
    let input = "lea 8(%rsp), %rax; mov %rax, shared(%rip); lea 3f(%rip), %rcx; mov %rcx, shared+8(%rip); ud2;
        3: mov %rdi, %rbx; mov %rdi, 8(%rsp); call other; mov 8(%rsp), %rcx";
    assert_different(input, &input.replace("mov 8(%rsp), %rcx", "mov %rbx, %rcx"));
}

/// A function with a frame on one of two ways; it may keep its argument in another register where it makes no frame.
const EARLY: &str = "    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rdi, %rbx
    test %edi, %edi
    je 1f
    lea 3(%rbx), %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
1:
    .cfi_def_cfa_offset 16
    call other
    add %rbx, %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret";
/// The frame is made on the way that needs it.
const LATE: &str = "    mov %rdi, @FREE@
    test %edi, %edi
    je 1f
    lea 3(@FREE@), %rax
    ret
1:
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rdi, %rbx
    call other
    add %rbx, %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret";

#[test]
fn a_frame_may_be_made_late_if_unwinders_find_the_same() {
    let late = LATE.replace("    mov %rdi, @FREE@\n", "").replace("@FREE@", "%rdi");
    let Some(report) = report_of(EARLY, &late) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = [
        ("    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16", "    push %rbx"),
        (".cfi_offset rbx, -16", ".cfi_offset r12, -16"),
        (".cfi_def_cfa_offset 16", ".cfi_def_cfa_offset 24"),
        ("push %rbx", "push %rcx"),
        ("    mov %rdi, %rbx\n", ""),
        ("    test %edi", "    .cfi_offset rbx, -16\n    test %edi"),
        ("    test %edi", "    mov %rdi, %rbx\n    test %edi"),
        ("lea 3(%rdi)", "lea 3(%rbx)"),
        ("je 1f", "jne 1f"),
    ];
    for (from, to) in wrong {
        assert!(late.contains(from));
        let Some(report) = report_of(EARLY, &late.replacen(from, to, 1)) else { return };
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

#[test]
fn a_register_may_differ_at_a_return_if_no_caller_reads_it() {
    let late = |register: &str| LATE.replace("@FREE@", register);
    let Some(input) = program(EARLY, "-pie") else { return };
    let check_with = |start: &str, register: &str| {
        let build = |work: &str| link(&PROGRAM.replace("@WORK@", work).replace("@BEHIND@", start), "-pie").unwrap();
        check(&build(EARLY), &build(&late(register))).unwrap()
    };
    assert!(!input.is_empty());
    // `other`, which is called next, reads no `r11`, and the system call overwrites it.
    for (start, register, is_right) in [
        ("    mov %eax, %edi\n    mov $1, %r11d\n", "%r11", true),
        ("    mov %eax, %edi\n    mov $1, %r11d\n", "%r10", false),
        ("    mov %r11d, %edi\n", "%r11", false),
        ("    test %esi, %esi\n    je 5f\n    mov $1, %r11d\n5:\n    mov %r11d, %edi\n", "%r11", false),
        ("    mov $1, %r11b\n    mov %r11d, %edi\n", "%r11", false),
        ("    mov (%rax,%r11), %r11\n", "%r11", false),
        ("    mov %eax, %edi\n    mov $1, %r11d\n", "%rdx", false),
        ("    mov %eax, %edi\n    mov $1, %r11d\n", "%r12", false),
    ] {
        let report = check_with(start, register);
        assert_eq!(report.is_ok(), is_right, "{start} {register}: {}", report.summary(10));
    }
}
