//! Functions in which nobody here can decode the first instruction, and which therefore stay as they are.

use super::layout::{CLASSIFY, TABLE, TWICE, build};
use super::*;

/// In place of `unused`, whose address data hold: `movslq (%rdi), %r31` of APX and more.
const UNDECODED: &str = r#"
    .type unused, @function
unused:
    .cfi_startproc
    endbr64
    .byte 0xd5, 0x4c, 0x63, 0x3f
    .fill 16, 1, 0x90
    mov $7, %eax
    ret
    .cfi_endproc
    .size unused, . - unused
"#;

fn program(undecoded: &str) -> Option<Vec<u8>> {
    let caller = TWICE.replace("    ret", "    jmp unused");
    build(&[CLASSIFY, &caller, undecoded], TABLE)
}

#[test]
fn a_function_that_is_reached_and_cannot_be_decoded_is_not_missing() {
    for mark in ["    endbr64\n", ""] {
        let undecoded = UNDECODED.replace("    endbr64\n", mark);
        let Some(program) = program(&undecoded) else { return };
        let report = check(&program, &program).unwrap();
        assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    }
}

#[test]
fn a_function_that_cannot_be_decoded_may_neither_change_nor_move() {
    let Some(before) = program(UNDECODED) else { return };
    for (from, to) in [("0x3f", "0x3e"), ("$7", "$8"), ("    .type unused", "    .balign 64\n    .type unused")] {
        let after = program(&UNDECODED.replace(from, to)).unwrap();
        assert!(!check(&before, &after).unwrap().is_ok(), "{from} became {to}");
    }
}
