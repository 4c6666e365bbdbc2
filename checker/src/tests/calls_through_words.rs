//! Calls through words that always hold the same address: of functions that never return, and such that the output makes directly.

use super::layout::link;
use super::*;

/// `first` has no frame description and ends with a call, right where the description of `second` begins.
const PROGRAM: &str = r#"
    .text
    .globl _start
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $1, %edi
    call second
    mov %eax, %edi
    call first
    hlt
    .cfi_endproc
first:
    push %rax
    call *@WORD@(%rip)
@BEHIND@
second:
    .cfi_startproc
    lea 5(%rdi), %eax
    ret
    .cfi_endproc
stop:
    .cfi_startproc
    mov $60, %eax
    syscall
    @STOP@
    .cfi_endproc
    .org 0x100, 0xcc
    .data
word:
    .quad stop
"#;
/// What the linker puts into `.got`, which the loader makes read-only.
const KEPT: &str = "stop@GOTPCREL";
const NEVER: &str = "hlt";

fn build(word: &str, behind: &str, stop: &str) -> Option<Vec<u8>> {
    let text = PROGRAM.replace("@WORD@", word).replace("@BEHIND@", behind).replace("@STOP@", stop);
    link(&text, "-pie -Wl,--no-relax -Wl,-z,now")
}

/// Whether what follows the call may be left out.
fn may_end(word: &str, stop: &str) -> Option<bool> {
    let (input, output) = (build(word, "", stop)?, build(word, "    int3", stop)?);
    let same = check(&input, &input).unwrap();
    assert!(same.is_ok(), "{}", same.summary(10));
    Some(check(&input, &output).unwrap().is_ok())
}

#[test]
fn what_follows_a_call_of_what_never_returns_may_be_left_out_though_a_word_holds_its_address() {
    let Some(may_end) = may_end(KEPT, NEVER) else { return };
    assert!(may_end);
}

#[test]
fn what_follows_is_reached_if_the_function_may_return_or_the_word_may_change() {
    for (word, stop) in [(KEPT, "ret"), (KEPT, "test %edi, %edi\n    jne second\n    hlt"), ("word", NEVER)] {
        let Some(may_end) = may_end(word, stop) else { return };
        assert!(!may_end, "{word} {stop}");
    }
}

/// `first` and `second` call `third`, or what holds its address.
const CALLS: &str = r#"
    .text
    .globl _start
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov third@GOTPCREL(%rip), %rdx
    mov $1, %edi
    call first
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
first:
    .cfi_startproc
    push %rbx
    .cfi_adjust_cfa_offset 8
    lea 7(%rdi), %ebx
    @FIRST@
    add %ebx, %eax
    pop %rbx
    .cfi_adjust_cfa_offset -8
    ret
    .cfi_endproc
third:
    .cfi_startproc
    lea 5(%rdi), %eax
    ret
    .cfi_endproc
fourth:
    .cfi_startproc
    lea 6(%rdi), %eax
    ret
    .cfi_endproc
body:
    .cfi_startproc
    mov $17, %edi
    jmp @CALLED@
    .cfi_endproc
    .org 0x100, 0xcc
    .data
word:
    .quad third
"#;
const IN_TABLE: &str = "mov $17, %edi\n    call *third@GOTPCREL(%rip)";
const IN_WORD: &str = "mov $17, %edi\n    call *word(%rip)";

/// Whether the second of two programs may stand for the first.
fn may_become(first: &str, becomes: &str, called: &str) -> Option<bool> {
    let built = |first: &str| {
        let text = CALLS.replace("@FIRST@", first).replace("@CALLED@", called);
        link(&text, "-pie -Wl,--no-relax -Wl,-z,now")
    };
    let (input, output) = (built(first)?, built(becomes)?);
    Some(check(&input, &output).unwrap().is_ok())
}

#[test]
fn a_call_through_a_word_that_never_changes_may_be_direct() {
    let direct = |callee: &str| format!("mov $17, %edi\n    call {callee}");
    let Some(may) = may_become(IN_TABLE, &direct("third"), "third") else { return };
    assert!(may);
    for (first, becomes) in [(IN_TABLE, direct("fourth")), (IN_WORD, direct("third"))] {
        let Some(may) = may_become(first, &becomes, "third") else { return };
        assert!(!may, "{first} becomes {becomes}");
    }
}

#[test]
fn a_call_through_a_word_that_never_changes_may_lead_to_its_arguments() {
    let Some(may) = may_become(IN_TABLE, "call body", "third") else { return };
    assert!(may);
    for (first, becomes, called) in [
        (IN_TABLE, "call body", "fourth"),
        (IN_WORD, "call body", "third"),
        (IN_TABLE, "mov $17, %edi\n    call body", "third"),
        ("mov $18, %edi\n    call *third@GOTPCREL(%rip)", "call body", "third"),
    ] {
        let Some(may) = may_become(first, becomes, called) else { return };
        assert!(!may, "{first} becomes {becomes}, which goes on to {called}");
    }
}
