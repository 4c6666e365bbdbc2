//! Sections of code of which the program knows the end.

use super::layout::{TWICE, UNUSED, build, function};
use super::*;

/// A function in a section of its own, which has two that return different numbers, in this order.
fn asks(name: &str, numbers: [u32; 2]) -> String {
    let inner = numbers.map(|number| function(&format!("inner{number}"), &format!("    mov ${number}, %eax\n    ret")));
    let calls = format!("    {name}\n    call inner1\n    call inner2\n    cmp %rsi, %rax\n    ret");
    format!("{}\n    .section secret, \"ax\"\n{}\n    .text\n", function("classify", &calls), inner.concat())
}

#[test]
fn functions_stay_in_a_section_of_which_the_end_is_named() {
    let program = |name: &str, numbers| build(&[TWICE, &asks(name, numbers), UNUSED], ".long 0\n");
    let (bounded, plain) = ("lea __stop_secret(%rip), %rsi", "lea handlers(%rip), %rsi");
    let Some(input) = program(bounded, [1, 2]) else { return };
    let report = check(&input, &program(bounded, [1, 2]).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let report = check(&input, &program(bounded, [2, 1]).unwrap()).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Conflict), "{}", report.summary(10));
    assert!(report.summary(10).contains("has to stay in one piece"), "{}", report.summary(10));
    // Where nobody asks, they come in any order.
    let report = check(&program(plain, [1, 2]).unwrap(), &program(plain, [2, 1]).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}
