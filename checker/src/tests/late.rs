//! Frames that are made late: what the rest of the function may do, and what it must not.

use super::layout::{function, link};
use super::*;

/// Nothing reads what the others leave in registers that return nothing.
const START: &str = "    .cfi_undefined rip
    mov $2, %edi
    call work
    mov $7, %ecx
    mov %eax, %edi
    mov $60, %eax
    mov $1, %edx
    mov $1, %esi
    mov $1, %r11d
    syscall
    hlt";
const DATA: &str = "    .org 0x400, 0xcc
    .section .data
    .balign 8
shared:
    .quad 1, 2, 3
";
const OTHER: &str = "    lea (%rdi,%rdi), %eax
    ret";
const ENTER: &str = "    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    push %rbp
    .cfi_def_cfa_offset 24
    .cfi_offset rbp, -24
";
const LEAVE: &str = "    pop %rbp
    .cfi_def_cfa_offset 16
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
";

fn report_of(input: (&str, &str), output: (&str, &str)) -> Option<Report> {
    let build = |(work, other): (&str, &str)| {
        let functions = [("_start", START), ("work", work), ("other", other)].map(|(name, body)| function(name, body));
        link(&format!("    .text\n    .globl _start\n{}{DATA}", functions.concat()), "-pie")
    };
    Some(check(&build(input)?, &build(output)?).unwrap())
}

/// A function whose frame is made at once, and late; the rest of its work is the same in both.
fn early_and_late(first: &str, copied: &str, rest: &str) -> (String, String) {
    let test = "    test %edi, %edi\n    je 1f\n";
    let frame = "1:\n    .cfi_def_cfa_offset 24\n    .cfi_offset rbx, -16\n    .cfi_offset rbp, -24\n";
    let early = format!("{ENTER}{first}{test}    lea 3(%rdi), %rax\n{LEAVE}{frame}{rest}{LEAVE}");
    let late = format!("{copied}{test}    lea 3(%rdi), %rax\n    ret\n1:\n{ENTER}{first}{rest}{LEAVE}");
    (early, late)
}

#[test]
fn a_register_that_a_call_overwrites_may_differ_before_it() {
    let rest = "    call other\n    test %eax, %eax\n    je 2f\n    add %rbx, %rax\n2:\n";
    let (early, late) = early_and_late("    mov %rdi, %rbx\n", "    mov %rdi, %rax\n", rest);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // It comes back as it was, on one way at least.
    for other in ["    ret", "    test %edi, %edi\n    je 3f\n    mov $2, %eax\n3:\n    ret", "    add %edi, %eax\n    ret"] {
        let report = report_of((&early, other), (&late, other)).unwrap();
        assert!(!report.is_ok(), "{other}");
    }
    // The output takes for a result what it has put there itself.
    let wrong = late.replace("test %eax, %eax", "test %ecx, %ecx");
    assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok());
}

#[test]
fn a_base_register_of_no_frame_may_hold_an_address_of_the_frame_on_one_way_only() {
    let rest = "    mov %rsp, %rbp
    sub $16, %rsp
    .cfi_def_cfa_offset 40
    lea 8(%rsp), %rbx
    mov %rbx, shared(%rip)
    test $1, %sil
    je 2f
    mov shared+8(%rip), %rbp
    test $2, %sil
    je 2f
    mov shared(%rip), %rbx
2:
    mov %rbp, shared+16(%rip)
    add $16, %rsp
    .cfi_def_cfa_offset 24
";
    let (early, late) = early_and_late("", "", rest);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = [
        ("mov %rbx, shared(%rip)", "mov %rbp, shared(%rip)"),
        ("mov shared+8(%rip), %rbp", "mov shared(%rip), %rbp"),
        ("mov %rbp, shared+16(%rip)", "mov %rbx, shared+16(%rip)"),
        ("lea 8(%rsp), %rbx", "lea 16(%rsp), %rbx"),
        ("    pop %rbp\n", "    pop %rcx\n"),
    ];
    for (from, to) in wrong {
        assert!(late.contains(from));
        assert!(!report_of((&early, OTHER), (&late.replace(from, to), OTHER)).unwrap().is_ok(), "{from} became {to}");
    }
    // Where the frame is found by it, it must be what it was on all ways.
    let by_base =
        rest.replacen("    sub $16", "    .cfi_def_cfa_register rbp\n    sub $16", 1).replace("    .cfi_def_cfa_offset 40\n", "");
    let by_base = by_base.replace(".cfi_def_cfa_offset 24", ".cfi_def_cfa rsp, 24");
    let (early, late) = early_and_late("", "", &by_base);
    assert!(!report_of((&early, OTHER), (&late, OTHER)).unwrap().is_ok());
}

#[test]
fn a_locked_instruction_makes_flags_anew_that_differed_before() {
    let rest = "    lock cmpxchg %edi, shared(%rip)\n    sete %cl\n    test %cl, %cl\n    je 2f\n    add $1, %eax\n2:\n";
    let (early, late) = early_and_late("", "    add $0, %esi\n", &format!("    mov $5, %eax\n    call other\n{rest}"));
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // `cmpxchg16b` leaves all flags but one as they were.
    let reads_carry =
        |text: &str| text.replace("lock cmpxchg %edi, shared(%rip)\n    sete %cl", "lock cmpxchg16b (%rsp)\n    setc %cl");
    assert!(!report_of((&reads_carry(&early), OTHER), (&reads_carry(&late), OTHER)).unwrap().is_ok());
}

#[test]
fn the_sign_of_a_part_of_a_register_is_followed_into_a_slot() {
    let rest = "    sub $16, %rsp\n    .cfi_def_cfa_offset 40\n    mov %dl, 3(%rsp)\n    mov %edx, 4(%rsp)\n    call other
    movsbl 3(%rsp), %eax\n    add $16, %rsp\n    .cfi_def_cfa_offset 24\n";
    let (early, late) = early_and_late("    movsbl %dl, %edx\n", "    movsbl %dl, %edx\n", rest);
    let late = late.replacen("    movsbl %dl, %edx\n    sub", "    sub", 1);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = late.replacen("movsbl %dl", "movsbl %cl", 1);
    assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok());
}

#[test]
fn what_nothing_leads_to_may_lead_into_what_was_proven() {
    // What the late frame makes needless stands behind it, and goes on in the middle of a changed piece.
    let rest = "    mov %rdi, %rbx\n    call other\n    add %rbx, %rax\n";
    let (early, late) = early_and_late("", "", &format!("2:\n{rest}"));
    let dead =
        |text: &str| format!("{text}    .cfi_def_cfa_offset 24\n    .cfi_offset rbx, -16\n    .cfi_offset rbp, -24\n@DEAD@");
    let right = dead(&late).replace("@DEAD@", "    test %edi, %edi\n    je 2b\n    lea 3(%rdi), %rax\n    pop %rbp\n    .cfi_def_cfa_offset 16\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret\n");
    let Some(report) = report_of((&early, OTHER), (&right, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = right.replace("je 2b\n    lea 3", "je 2b\n    lea 4");
    assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok());
}

#[test]
fn behind_a_late_frame_a_call_may_be_the_beginning_of_the_callee_and_a_call_of_the_rest() {
    let rest = "    mov %rdi, %rbx\n    cmp %edi, %edi\n    call other\n    add %rbx, %rax\n";
    let (early, late) = early_and_late("", "", rest);
    // Through what the callee jumps through, and of what stands in it behind a few instructions.
    let through = ("    mov 8(%rdi), %rax\n    jmp *24(%rax)", "    mov 8(%rdi), %rax\n    call *24(%rax)");
    let other = "    mov shared(%rip), %rdx\n3:\n    lea (%rdi,%rdx), %rax\n4:\n    lea 1(%rax), %rax\n    ret";
    let direct = (other, "    mov shared(%rip), %rdx\n    call 3f");
    let begun = |text: &str| late.replacen("    call other", text, 1);
    for (other, text) in [through, direct] {
        let Some(report) = report_of((&early, other), (&begun(text), other)) else { return };
        assert!(report.is_ok(), "{text}: {}", report.summary(10));
    }
    let wrong = [
        (through, "mov 8(%rdi)", "mov 16(%rdi)"),
        (through, "*24(%rax)", "*32(%rax)"),
        (through, "*24(%rax)", "*24(%rdi)"),
        (through, "    call", "    mov %rax, shared(%rip)\n    call"),
        (through, "mov 8(%rdi), %rax\n", "mov 8(%rdi), %rax\n    add $1, %rdi\n"),
        (direct, "shared(", "shared+8("),
        (direct, "call 3f", "call 4f"),
        (direct, "    call", "    mov shared(%rip), %rax\n    call"),
        (direct, "call 3f", "add $1, %rdi\n    call 3f"),
        (direct, "call 3f", "call work"),
    ];
    for ((other, text), from, to) in wrong {
        assert!(text.contains(from));
        let report = report_of((&early, other), (&begun(&text.replacen(from, to, 1)), other)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

/// Without the second of two equal pieces.
fn without_second(text: &str, piece: &str) -> String {
    let (before, after) = text.rsplit_once(piece).unwrap();
    assert!(before.contains(piece));
    format!("{before}{after}")
}

#[test]
fn what_moves_strings_reads_no_flags_but_the_direction() {
    let rest =
        "    mov %rdi, %rbx\n    call other\n    lea shared(%rip), %rdi\n    mov $3, %ecx\n    rep stosq\n    mov %rbx, %rax\n";
    let (early, late) = early_and_late("", "", rest);
    for moves in ["rep stosq", "stosb", "rep movsb", "movsq", "lodsl"] {
        let with = |text: &str| text.replace("rep stosq", moves);
        let Some(report) = report_of((&with(&early), OTHER), (&with(&late), OTHER)) else { return };
        assert!(report.is_ok(), "{moves}: {}", report.summary(10));
    }
    // Behind the call nothing is known of the flags; these read some, or leave them as they were.
    for reads in ["cmc", "lahf", "repe cmpsb\n    sete %bl", "repne scasb\n    setc %bl"] {
        let with = |text: &str| text.replace("rep stosq", reads);
        assert!(!report_of((&with(&early), OTHER), (&with(&late), OTHER)).unwrap().is_ok(), "{reads}");
    }
    let wrong = late.replace("mov $3, %ecx", "mov $2, %ecx");
    assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok());
}

#[test]
fn an_instruction_that_names_the_image_sees_no_slot_of_the_frame() {
    let load = "    movhps shared(%rip), %xmm0\n";
    let (early, late) = early_and_late(load, load, "    movhps %xmm0, shared+8(%rip)\n    call other\n");
    let late = without_second(&late, load);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = late.replace(load, "    movhps shared+8(%rip), %xmm0\n");
    assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok());
    // On the stack are slots that the output has not written yet.
    let of_frame = |text: &str| text.replace("movhps shared(%rip)", "movhps -32(%rsp)");
    assert!(!report_of((&of_frame(&early), OTHER), (&of_frame(&late), OTHER)).unwrap().is_ok());
}

#[test]
fn zeros_in_a_vector_register_may_be_stored_behind_a_branch() {
    let make = "    sub $24, %rsp\n    .cfi_def_cfa_offset 48\n    movups %xmm0, (%rsp)\n";
    let drop = "    add $24, %rsp\n    .cfi_def_cfa_offset 24\n";
    let clear = "    pxor %xmm0, %xmm0\n";
    let rest = format!("    lea (%rsp), %rdi\n    call other\n    add 8(%rsp), %rax\n{drop}");
    let (early, late) = early_and_late(&format!("{clear}{make}"), clear, &rest);
    let early = early.replacen("lea 3(%rdi), %rax\n", &format!("lea 3(%rdi), %rax\n{drop}"), 1);
    let early = early.replacen("1:\n    .cfi_def_cfa_offset 24", "1:\n    .cfi_def_cfa_offset 48", 1);
    let late = without_second(&late, clear);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = [
        ("movups %xmm0, (%rsp)", "movups %xmm1, (%rsp)"),
        ("movups %xmm0, (%rsp)", "movups %xmm0, 8(%rsp)"),
        ("movups %xmm0, (%rsp)", "movsd %xmm0, (%rsp)"),
        ("pxor %xmm0, %xmm0", "pxor %xmm1, %xmm0"),
        ("pxor %xmm0, %xmm0", "pxor %xmm1, %xmm1"),
        ("pxor %xmm0, %xmm0", "xor %eax, %eax\n    pinsrw $0, %eax, %xmm0"),
    ];
    for (from, to) in wrong {
        assert!(late.contains(from));
        assert!(!report_of((&early, OTHER), (&late.replace(from, to), OTHER)).unwrap().is_ok(), "{from} became {to}");
    }
}

#[test]
fn a_tail_call_out_of_a_frame_that_others_know_enters_a_function_by_itself() {
    let rest = "    mov %rdi, %rbx\n    lea 1(%rbx), %rax\n    mov %rax, shared+8(%rip)\n";
    let (early, late) = early_and_late("", "", rest);
    // It is called as well, so it is a function.
    let work = "    sub $24, %rsp
    .cfi_def_cfa_offset 32
    lea (%rsp), %rax
    mov %rax, shared(%rip)
    call other
    lea 2(%rax), %edi
    mov $4, %esi
    add $24, %rsp
    .cfi_def_cfa_offset 8
    jmp other";
    let Some(report) = report_of((work, &early), (work, &late)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = [
        ("jmp other", "jmp _start"),
        ("jmp other", "jmp other + 1"),
        ("jmp other", "mov $1, %edi\n    jmp other"),
        ("jmp other", "mov $1, %ebx\n    jmp other"),
        ("jmp other", "movups %xmm1, %xmm0\n    jmp other"),
        ("lea 2(%rax)", "lea 3(%rax)"),
        ("lea (%rsp), %rax", "lea 8(%rsp), %rax"),
    ];
    for (from, to) in wrong {
        assert!(work.contains(from));
        let report = report_of((work, &early), (&work.replacen(from, to, 1), &late)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
    for (from, to) in [("lea 3(%rdi)", "lea 4(%rdi)"), ("lea 1(%rbx)", "lea 2(%rbx)"), ("    pop %rbx\n", "    pop %rcx\n")] {
        assert!(late.contains(from));
        let report = report_of((work, &early), (work, &late.replace(from, to))).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
    // A register that differs at the jump, and that the function does not read, or does.
    let other = work.replace("mov $4, %esi", "mov $5, %esi");
    let report = report_of((work, &early), (&other, &late)).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let reads = |text: &str| text.replace("lea 1(%rbx)", "lea (%rbx,%rsi)");
    assert!(!report_of((work, &reads(&early)), (&other, &reads(&late))).unwrap().is_ok());
}

#[test]
fn of_two_ways_to_pair_a_call_that_is_taken_where_all_is_the_same() {
    let rest = "    mov %rdi, %rbx\n    call other\n    add %rbx, %rax\n    add %rsi, %rax\n";
    let (early, late) = early_and_late("", "", rest);
    let other = "    mov %esi, %ecx\n    xor %esi, %esi\n3:\n    lea (%rdi,%rcx), %rax\n    ret";
    let begun = |text: &str| late.replacen("    call other", text, 1);
    let right = "    mov %esi, %ecx\n    xor %esi, %esi\n    call 3f";
    let Some(report) = report_of((&early, other), (&begun(right), other)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("xor %esi, %esi\n", "xor %edx, %edx\n"), ("mov %esi, %ecx", "mov %edi, %ecx"), ("call 3f", "call other")]
    {
        let report = report_of((&early, other), (&begun(&right.replace(from, to)), other)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

#[test]
fn a_flag_that_is_a_result_does_not_depend_on_what_flags_were_and_others_do() {
    let rest = "    call other\n    bt %eax, %ebx\n    jb 2f\n    add %rbx, %rax\n2:\n";
    let (early, late) = early_and_late("    mov %rdi, %rbx\n", "", rest);
    let Some(report) = report_of((&early, OTHER), (&late, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("bt %eax, %ebx", "bt %eax, %ebp"), ("jb 2f", "jae 2f"), ("bt %eax", "bt %ecx")] {
        assert!(late.contains(from));
        let report = report_of((&early, OTHER), (&late.replacen(from, to, 1), OTHER)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
    // What it was behind the call may be another flag in each program.
    let left = |text: &str| text.replace("jb 2f", "jo 2f");
    assert!(!report_of((&left(&early), OTHER), (&left(&late), OTHER)).unwrap().is_ok());
    for (name, jump) in [("bsr", "je"), ("mul", "jo"), ("sbb", "js")] {
        let text = if name == "mul" { "mul %ebx".to_string() } else { format!("{name} %ebx, %ecx") };
        let with = |body: &str| body.replace("bt %eax, %ebx", &text).replace("jb 2f", &format!("{jump} 2f"));
        let is_known = name != "sbb";
        let report = report_of((&with(&early), OTHER), (&with(&late), OTHER)).unwrap();
        assert_eq!(report.is_ok(), is_known, "{name}: {}", report.summary(10));
    }
}

#[test]
fn behind_a_late_frame_the_last_call_of_what_was_called_may_go_through_a_stub() {
    let rest = "    mov %rdi, %rbx\n    call other\n    add %rbx, %rax\n";
    let (early, late) = early_and_late("", "", rest);
    let other = "    test %rdi, %rdi\n    je 3f\n    jmp 4f\n3:\n    ret\n4:\n    jmp *shared(%rip)\n6:\n    jmp *shared+8(%rip)";
    let begun = |text: &str| late.replacen("    call other\n", text, 1);
    let right = "    test %rdi, %rdi\n    je 5f\n    call 4f\n5:\n";
    let Some(report) = report_of((&early, other), (&begun(right), other)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("call 4f", "call 6f"), ("je 5f", "jne 5f"), ("call 4f", "mov %rbx, %rdi\n    add $1, %rdi\n    call 4f")]
    {
        let report = report_of((&early, other), (&begun(&right.replacen(from, to, 1)), other)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

#[test]
fn behind_a_way_without_a_frame_a_stub_that_no_frame_description_is_about_reads_arguments_alone() {
    let stub = format!("{OTHER}\n    .cfi_endproc\nstub:\n    jmp *shared(%rip)\n    .cfi_startproc\n    ud2");
    let test = "    test %edi, %edi\n    je 1f\n";
    let frame = "1:\n    .cfi_def_cfa_offset 24\n    .cfi_offset rbx, -16\n    .cfi_offset rbp, -24\n";
    let rest = "    call other\n    add %rbx, %rax\n";
    let leave = LEAVE.replace("ret", "jmp stub");
    let early = format!("{ENTER}    mov %rdi, %rbx\n{test}    lea 3(%rbx), %rdi\n{leave}{frame}{rest}{LEAVE}");
    let late =
        format!("    mov %rdi, %r11\n{test}    lea 3(%r11), %rdi\n    jmp stub\n1:\n{ENTER}    mov %rdi, %rbx\n{rest}{LEAVE}");
    let Some(report) = report_of((&early, &stub), (&late, &stub)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("lea 3(%r11)", "lea 4(%r11)"), ("r11", "r9"), ("r11", "r12")] {
        let report = report_of((&early, &stub), (&late.replace(from, to), &stub)).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

#[test]
fn what_nothing_leads_to_may_lead_to_the_body_of_a_call_in_what_was_proven() {
    let rest = "2:\n    call other\n    add %rbx, %rax\n";
    // `r11` is another one from the copy on, so that all of the function is proven at once.
    let (early, late) = early_and_late("    mov %rdi, %rbx\n", "    mov %rdi, %r11\n", rest);
    let late = late.replace("call other", "lea (%rdi,%rdi), %eax");
    let dead = "    .cfi_def_cfa_offset 24\n    .cfi_offset rbx, -16\n    .cfi_offset rbp, -24\n    test %edi, %edi\n    je 2b
    lea 3(%rdi), %rax\n    pop %rbp\n    .cfi_def_cfa_offset 16\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret\n";
    let right = format!("{late}{dead}");
    let Some(report) = report_of((&early, OTHER), (&right, OTHER)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    for (from, to) in [("je 2b\n    lea 3", "je 2b\n    lea 4"), ("je 2b", "jne 2b"), ("(%rdi,%rdi), %eax", "(%rdi,%rsi), %eax")]
    {
        let wrong = right.replace(from, to);
        assert_ne!(wrong, right);
        assert!(!report_of((&early, OTHER), (&wrong, OTHER)).unwrap().is_ok(), "{from} became {to}");
    }
}
