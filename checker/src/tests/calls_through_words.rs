//! Calls of functions that never return, through words that always hold the same address.

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
