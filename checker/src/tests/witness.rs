//! Calls that end a frame description, of functions that return elsewhere: the compiler knew something of that call alone.

use super::layout::{function, link};
use super::*;

/// Ends with a status that comes of both numbers.
const START: &str =
    "    test %edi, %edi\n    je 1f\n    call work\n    mov %eax, %ebx\n    call play\n    lea (%rax,%rbx,2), %edi
    mov $60, %eax\n    syscall\n    hlt\n1:  call cut_off\n    hlt";
/// Returns, unless its argument is 0.
const CALLEE: &str = "    test %edi, %edi\n    je 1f\n    ret\n1:  hlt";
/// Never returns.
const LAST: &str = "    mov $60, %eax\n    syscall\n    hlt";

/// `cut_off` ends with a call of `callee`, behind which `work` and `play` go on, each to its own number. The functions between come in the given order.
fn program(callee: &str, [work, play]: [u32; 2], order: [usize; 3]) -> Option<Vec<u8>> {
    let goes_on = |number: u32| format!("    mov $1, %edi\n    call callee\n    mov ${number}, %eax\n    ret");
    let first = [function("_start", START), function("callee", callee)];
    let movable = [
        function("cut_off", "    xor %edi, %edi\n    call callee"),
        function("work", &goes_on(work)),
        function("play", &goes_on(play)),
    ];
    let movable = order.map(|index| movable[index].as_str());
    link(&format!("    .text\n    .globl _start\n{}{}", first.concat(), movable.concat()), "-pie")
}

fn report(callee: &str, numbers: [u32; 2]) -> Option<Report> {
    let (input, output) = (program(callee, [7, 8], [0, 1, 2])?, program(callee, numbers, [2, 0, 1])?);
    Some(check(&input, &output).unwrap())
}

#[test]
fn other_places_of_functions_that_end_with_a_call_correspond() {
    for callee in [CALLEE, LAST] {
        let Some(report) = report(callee, [7, 8]) else { return };
        assert!(report.is_ok(), "{}", report.summary(10));
    }
}

#[test]
fn code_behind_calls_that_return_may_not_change_places_because_another_call_ends_a_function() {
    let Some(report) = report(CALLEE, [8, 7]) else { return };
    assert!(kinds(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

#[test]
fn what_stands_behind_calls_of_what_never_returns_may_change_places() {
    let Some(report) = report(LAST, [8, 7]) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}
