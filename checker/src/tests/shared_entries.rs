//! Frame descriptions that stand for several functions, as relift writes them.

use super::layout::{TWICE, UNUSED, build, function};
use super::*;

const ASKS: &str = "    call called\n    lea named(%rip), %rsi\n    call *%rsi\n    ret";

/// Functions with one frame description; the second one's last call goes through a word of data.
#[test]
fn what_is_named_behind_a_jump_through_a_word_is_a_function_too() {
    let shared = "    lea 1(%rdi), %eax\n    ret\ncalled:\n    jmp *handlers(%rip)\n    .p2align 2\nnamed:\n    lea 3(%rdi), %eax\n    ret";
    let (shared, asks) = (function("shared", shared), function("classify", ASKS));
    let Some(input) = build(&[TWICE, &shared, &asks, UNUSED], ".long 0\n") else { return };
    let moved = build(&[&asks, UNUSED, &shared, TWICE], ".long 0\n").unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// Where the jump goes to where a register says, it may be a label.
#[test]
fn what_is_named_behind_another_jump_may_be_a_label() {
    let shared = "    lea 1(%rdi), %eax\n    ret\ncalled:\n    jmp *%rsi\n    .p2align 2\nnamed:\n    lea 3(%rdi), %eax\n    ret";
    let (shared, asks) = (function("shared", shared), function("classify", ASKS));
    let Some(input) = build(&[TWICE, &shared, &asks, UNUSED], ".long 0\n") else { return };
    let moved = build(&[&asks, UNUSED, &shared, TWICE], ".long 0\n").unwrap();
    assert!(check(&input, &moved).unwrap().summary(10).contains("has to stay in one piece"));
}
