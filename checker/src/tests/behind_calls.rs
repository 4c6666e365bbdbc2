//! What lies behind calls that never return, where the output has one of these for several functions, belongs to one of them.

use super::layout::link;
use super::*;

/// `first` and `second` leave by the same call, and differ behind it in no more than the function that they call; and these in no more than where their tables lead.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $2, %edi
    call first
    mov $3, %edi
    call second
    mov %eax, %edi
    call leave
    .cfi_endproc
    .size _start, . - _start

    .type leave, @function
leave:
    .cfi_startproc
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size leave, . - leave
    @FIRST@
    @SECOND@
    @ONE@
    @TWO@

    .type report, @function
report:
    .cfi_startproc
    lea (%rdi,%rsi), %eax
    ret
    .cfi_endproc
    .size report, . - report
    .type eleven, @function
eleven:
    .cfi_startproc
    mov $11, %eax
    ret
    .cfi_endproc
    .size eleven, . - eleven
    .type twelve, @function
twelve:
    .cfi_startproc
    mov $12, %eax
    ret
    .cfi_endproc
    .size twelve, . - twelve
    @BODY@
    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 16
    @TABLES@
"#;

const OWN: &str = "mov $17, %edi\n    mov $18, %esi\n    call report";
const BODY: &str = ".cfi_startproc\nbody: mov $17, %edi\n    mov $18, %esi\n    jmp report\n    .cfi_endproc\n";

/// A function that reports and calls another one, or leaves; `leaves` says where that is done, if not here.
const CALLER: &str = "
    .type NAME, @function
NAME:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %edi, %ebx
    cmp $LIMIT, %edi
    LEAVE
    REPORT
    mov %ebx, %edi
    and $3, %edi
    call CALLEE
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size NAME, . - NAME
";

fn caller(name: &str, limit: u32, callee: &str, report: &str, leave: &str) -> String {
    let text = CALLER.replace("LEAVE", leave).replace("NAME", name).replace("REPORT", report);
    text.replace("LIMIT", &limit.to_string()).replace("CALLEE", callee)
}

const LEAVES: &str = "jbe .Lon_NAME\n.Lleave_NAME: mov $3, %edi\n    call leave\n.Lon_NAME:";

/// A function that goes on in one of two others.
const CHOOSER: &str = "
    .type NAME, @function
NAME:
    .cfi_startproc
    cmp $1, %edi
    ja .Lnone_NAME
    lea .Ltable_NAME(%rip), %rcx
    movslq (%rcx,%rdi,4), %rax
    add %rcx, %rax
    jmp *%rax
.Lzero_NAME:
    jmp eleven
.Lone_NAME:
    jmp OTHER
.Lnone_NAME:
    xor %eax, %eax
    ret
    .cfi_endproc
    .size NAME, . - NAME
";

fn program(first: &str, second: &str, body: &str) -> Option<Vec<u8>> {
    let chooser = |name: &str, other: &str| CHOOSER.replace("NAME", name).replace("OTHER", other);
    let table = |name: &str| ".Ltable_NAME: .long .Lzero_NAME - .Ltable_NAME, .Lone_NAME - .Ltable_NAME\n".replace("NAME", name);
    let text = PROGRAM.replace("@FIRST@", first).replace("@SECOND@", second).replace("@BODY@", body);
    let text = text.replace("@ONE@", &chooser("one", "eleven")).replace("@TWO@", &chooser("two", "twelve"));
    link(&text.replace("@TABLES@", &(table("one") + &table("two"))), "-pie")
}

/// The report on an output in which `second` leaves where `first` does, and only `first` reports in another way.
fn report(limit: u32, callee: &str) -> Option<Report> {
    let input = program(&caller("first", 100, "one", OWN, LEAVES), &caller("second", 200, "two", OWN, LEAVES), "")?;
    let second = caller("second", limit, callee, OWN, "ja .Lleave_first");
    let output = program(&caller("first", 100, "one", "call body", LEAVES), &second, BODY)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn what_lies_behind_a_shared_call_is_one_function_s_alone() {
    let Some(right) = report(200, "two") else { return };
    assert!(right.is_ok(), "{}", right.summary(10));
    for (limit, callee) in [(201, "two"), (200, "one")] {
        let Some(wrong) = report(limit, callee) else { return };
        assert!(!wrong.is_ok(), "{limit} {callee}: {}", wrong.summary(10));
    }
}
