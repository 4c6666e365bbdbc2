//! Programs without frame descriptions, as `-fno-asynchronous-unwind-tables` makes them.

use super::layout::link;
use super::*;

/// `work` ends with a call that does not return; what stands behind it in the file is another function in each layout.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    xor %edi, %edi
    call work
    mov $60, %eax
    syscall
    hlt

work:
    test %edi, %edi
    jne 1f
    ret
1:  mov $1, %edi
    call @CALLEE@
@FUNCTIONS@

unreached:
    call @UNREACHED@
    mov $1, %eax
    ret

last:
    mov $60, %eax
    syscall
    hlt
not_last:
    mov $60, %eax
    syscall
    ret

    .data
    .balign 8
pointers:
    .quad work
    .quad one
    .quad two
"#;

const ONE: &str = "one: lea 1(%rdi), %eax\n    ret\n    nop";
const TWO: &str = "two: lea 2(%rdi), %eax\n    ret\n    nop";

fn report(callee: &str) -> Option<Report> {
    compare(callee, ["one"; 2])
}

/// `unreached` is what code calls that nothing leads to, in the input and in the output.
fn compare(callee: &str, unreached: [&str; 2]) -> Option<Report> {
    let program = |functions: [&str; 2], unreached: &str| {
        let text = PROGRAM.replace("@CALLEE@", callee).replace("@UNREACHED@", unreached);
        link(&text.replace("@FUNCTIONS@", &functions.join("\n")), "-pie")
    };
    Some(check(&program([ONE, TWO], unreached[0])?, &program([TWO, ONE], unreached[1])?).unwrap())
}

#[test]
fn what_nothing_leads_to_calls_functions_where_they_went() {
    let Some(report) = compare("last", ["one"; 2]) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let Some(report) = compare("last", ["one", "work"]) else { return };
    assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{}", report.summary(10));
}

#[test]
fn nothing_follows_the_call_of_what_never_returns() {
    let Some(report) = report("last") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn what_follows_the_call_of_what_may_return_has_to_follow_it() {
    let Some(report) = report("not_last") else { return };
    assert!(!report.is_ok());
}
