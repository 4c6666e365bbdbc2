//! Registers in which the two programs differ: where nobody reads them that is right, and where somebody may it is seen.

use super::layout::link;
use super::*;

/// `work` returns to `_start` and to `mid`; what both do with `r11` then is `@BEHIND@` and `@MID@`. `pass` keeps `r11`, and `user` relies on that.
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
    mov $7, %r11d
    ret
    .cfi_endproc
    .size other, . - other

    .type pass, @function
pass:
    .cfi_startproc
    lea 1(%rdi), %eax
    ret
    .cfi_endproc
    .size pass, . - pass

    .type user, @function
user:
    .cfi_startproc
    mov $5, %r11d
    call pass
    add %r11d, %eax
    ret
    .cfi_endproc
    .size user, . - user

    .type mid, @function
mid:
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call work
    mov %eax, %edi
    add $8, %rsp
    .cfi_def_cfa_offset 8
@MID@
    .cfi_endproc
    .size mid, . - mid

    .type tail, @function
tail:
    .cfi_startproc
    add $1, %edi
    jmp work
    .cfi_endproc
    .size tail, . - tail

    .type caller, @function
caller:
    .cfi_startproc
@CALLER@
    ret
    .cfi_endproc
    .size caller, . - caller

    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 4
table:
    .long 7b - table, 8b - table
    .section .data
    .balign 8
pointers:
    .quad work, user, mid, tail, caller
"#;

const EARLY: &str = "    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rdi, %rbx
    test %edi, %edi
    je 1f
    fld1
    fstp %st(0)
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
const LATE: &str = "    mov %rdi, %r11
    test %edi, %edi
    je 1f
    fld1
    fstp %st(0)
    lea 3(%r11), %rax
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

/// What is behind the calls of `work` in `_start` and `mid`, and what `caller` does.
#[derive(Copy, Clone, Debug)]
struct Behind {
    start: &'static str,
    mid: &'static str,
    caller: &'static str,
}

const QUIET: Behind = Behind { start: "    mov %eax, %edi", mid: "    mov $1, %r11d\n    ret", caller: "    nop" };
/// A jump through a table, one entry of which reads the register.
const SWITCH: &str = "    and $1, %eax
    lea table(%rip), %rdx
    movslq (%rdx,%rax,4), %rax
    add %rdx, %rax
    jmp *%rax
7:
    mov $1, %edi
    jmp 9f
8:
    mov $2, %edi
9:";

fn is_right(behind: Behind) -> bool {
    let table = if behind.start.contains("7:") { "" } else { "    jmp 9f\n7:\n8:\n    nop\n9:\n" };
    let text = PROGRAM.replace("@BEHIND@", &format!("{table}{}", behind.start));
    let text = text.replace("@MID@", behind.mid).replace("@CALLER@", behind.caller);
    let build = |work: &str| link(&text.replace("@WORK@", work), "-pie").unwrap();
    assert!(check(&build(EARLY), &build(EARLY)).unwrap().is_ok());
    check(&build(EARLY), &build(LATE)).unwrap().is_ok()
}

fn can_link() -> bool {
    link(
        &PROGRAM.replace("@BEHIND@", "7:\n8:").replace("@WORK@", EARLY).replace("@MID@", "ret").replace("@CALLER@", "nop"),
        "-pie",
    )
    .is_some()
}

#[test]
fn a_register_that_is_written_before_it_is_read_may_differ() {
    if !can_link() {
        return;
    }
    assert!(is_right(QUIET));
    assert!(is_right(Behind { start: "    test %eax, %eax\n    setg %r11b\n    movzbl %r11b, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    test %eax, %eax\n    setg %r11b\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    test %eax, %eax\n    cmovg %r11d, %edi", ..QUIET }));
}

#[test]
fn a_call_on_the_way_returns_to_where_it_was_made() {
    if !can_link() {
        return;
    }
    assert!(
        is_right(Behind { start: "    mov %eax, %edi\n    call pass\n    mov %eax, %edi", ..QUIET }),
        "`user` is not returned to"
    );
    assert!(!is_right(Behind { start: "    mov %eax, %edi\n    call pass\n    mov %r11d, %edi", ..QUIET }));
    assert!(is_right(Behind { mid: "    jmp pass", ..QUIET }), "`pass` returns to callers of `mid` then");
    assert!(!is_right(Behind { mid: "    jmp pass", caller: "    call mid\n    add %r11d, %eax", ..QUIET }));
}

#[test]
fn a_tail_call_returns_to_the_callers_of_both() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { caller: "    call tail\n    mov %eax, %edi\n    call other", ..QUIET }));
    assert!(!is_right(Behind { caller: "    call tail\n    add %r11d, %eax", ..QUIET }));
}

#[test]
fn a_register_is_read_where_a_jump_table_leads_to() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { start: SWITCH, ..QUIET }));
    let reads: &'static str = Box::leak(SWITCH.replace("mov $2, %edi", "mov %r11d, %edi").into_boxed_str());
    assert!(!is_right(Behind { start: reads, ..QUIET }));
}

#[test]
fn a_descriptor_of_thread_local_storage_keeps_all_registers() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { start: "    lea pointers(%rip), %rax\n    call *8(%rax)\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    lea pointers(%rip), %rax\n    call *(%rax)\n    mov %r11d, %edi", ..QUIET }));
}
