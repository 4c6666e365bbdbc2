//! Labels that functions tell others for what their calls return to.

use super::layout::{TWICE, UNUSED, build, function};
use super::*;

/// A function that names a label behind a call, and may leave to it without that.
fn telling(named: &str, behind: &str) -> Option<Vec<u8>> {
    let body = format!(
        "    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n    lea {named}(%rip), %rdi\n    call twice\n    test %eax, %eax\n    jne 1f\n\
         \x20   mov $5, %edi\n    call twice\n{behind}1:  add $8, %rsp\n    .cfi_def_cfa_offset 8\n    ret\n"
    );
    build(&[&function("classify", &body), TWICE, UNUSED], ".long 0\n")
}

const FAR: &str = "    jmp 1f\n    .skip 20, 0xcc\n";

#[test]
fn a_call_stays_close_before_the_label_that_is_told_for_it() {
    let (Some(input), Some(close)) = (telling("1f", ""), telling("1f", "    jmp 1f\n")) else { return };
    let report = check(&input, &close).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let far = check(&input, &telling("1f", FAR).unwrap()).unwrap();
    assert_eq!(kinds(&far), [ViolationKind::Conflict]);
}

#[test]
fn where_no_label_is_told_a_call_may_stand_anywhere() {
    let (Some(input), Some(far)) = (telling("message", ""), telling("message", FAR)) else { return };
    let report = check(&input, &far).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}
