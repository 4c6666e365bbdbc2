//! Code that finds data by its own address and a number.

use super::layout::link;
use super::*;

const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    call find
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start
@FIRST@
@SECOND@
    .section .rodata, "a"
    .globl word
word:
    .long 7
"#;
const FIND: &str = "
    .type find, @function
find:
    .cfi_startproc
1:
    lea @PLACE@(%rip), %rax
    movabs $@NUMBER@, %rcx
    add %rcx, %rax
    mov (%rax), %eax
    ret
    .cfi_endproc
    .size find, . - find";
const OTHER: &str = "
    .type other, @function
    .globl other
other:
    .cfi_startproc
    lea 3(%rdi), %eax
    ret
    .cfi_endproc
    .size other, . - other";

fn build(parts: [&str; 2], place: &str, number: &str) -> Option<Vec<u8>> {
    let text = PROGRAM.replace("@FIRST@", parts[0]).replace("@SECOND@", parts[1]);
    link(&text.replace("@PLACE@", place).replace("@NUMBER@", number), "-pie -Wl,-E")
}

fn number_of(program: &[u8]) -> String {
    let at = program.windows(2).position(|bytes| bytes == [0x48, 0xb9]).unwrap() + 2;
    u64::from_le_bytes(program[at..at + 8].try_into().unwrap()).to_string()
}

#[test]
fn code_that_counts_from_its_own_address_may_not_move() {
    let Some(input) = build([FIND, OTHER], "1b", "word - 1b") else { return };
    assert!(check(&input, &input).unwrap().is_ok());
    let moved = build([OTHER, FIND], "1b", &number_of(&input)).unwrap();
    assert!(!check(&input, &moved).unwrap().is_ok());
}

#[test]
fn what_a_number_makes_of_an_address_of_data_is_no_matter_of_the_code_model() {
    let Some(input) = build([FIND, OTHER], "word", "0") else { return };
    let moved = build([OTHER, FIND], "word", "0").unwrap();
    assert!(check(&input, &moved).unwrap().is_ok());
}
