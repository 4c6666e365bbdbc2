//! Functions side by side that are found by how far they begin from the first.

use super::layout::link;
use super::*;

const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    @ENTER@
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc

    .org 0x100, 0xcc
@FRONT@
    .org 0x200, 0xcc
@AMONG@
    .org 0x300, 0xcc
@BEHIND@
    .org 0x400, 0xcc
@APART@
    .org 0x500, 0xcc
"#;

/// Functions that nothing leads to.
const NOT_REACHED: &str = ".rept 20\n    lea 7(%rdi), %eax\n    ret\n.endr";
const DESCRIBED: &str = "one:\n    .cfi_startproc\n    lea 3(%rdi), %eax\n    ret\n    .cfi_endproc";
const UNDESCRIBED: &str = "one:\n    lea 3(%rdi), %eax\n    ret";
const CALL: &str = "call one";
const HOLD: &str = "lea one(%rip), %rax\n    call *%rax";

/// What is in front, among and behind, and what is far from these.
fn build(enter: &str, parts: [&str; 4]) -> Option<Vec<u8>> {
    let [front, among, behind, apart] = parts;
    let text = PROGRAM.replace("@ENTER@", enter).replace("@FRONT@", front).replace("@AMONG@", among);
    link(&text.replace("@BEHIND@", behind).replace("@APART@", apart), "-pie")
}

/// What is reported where a function moves from among others to far away.
fn reported(enter: &str, function: &str, front: &str, behind: &str) -> Option<Vec<ViolationKind>> {
    let input = build(enter, [front, function, behind, ""])?;
    assert!(check(&input, &input).unwrap().is_ok());
    let moved = build(enter, [front, "", behind, function])?;
    Some(kinds(&check(&input, &moved).unwrap()))
}

#[test]
fn a_function_may_not_move_away_from_among_those_that_nothing_leads_to() {
    for function in [DESCRIBED, UNDESCRIBED] {
        let Some(reported) = reported(CALL, function, NOT_REACHED, NOT_REACHED) else { return };
        assert_eq!(reported, [ViolationKind::StaleReference], "{function}");
    }
}

#[test]
fn a_function_beside_those_that_nothing_leads_to_may_move() {
    for (front, behind) in [(NOT_REACHED, ""), ("", NOT_REACHED)] {
        for function in [DESCRIBED, UNDESCRIBED] {
            let Some(reported) = reported(CALL, function, front, behind) else { return };
            assert_eq!(reported, [], "{function}");
        }
    }
}

#[test]
fn the_first_of_those_that_nothing_leads_to_may_not_move_if_its_address_is_held() {
    let Some(before) = reported(HOLD, UNDESCRIBED, "", NOT_REACHED) else { return };
    assert_eq!(before, [ViolationKind::StaleReference]);
    let Some(behind) = reported(HOLD, UNDESCRIBED, NOT_REACHED, "") else { return };
    assert_eq!(behind, []);
}

#[test]
fn a_function_may_move_from_where_not_much_more_is_left_over_than_reached() {
    let large = DESCRIBED.replace("    ret", "    .rept 6\n    lea 1(%rax), %eax\n    .endr\n    ret");
    let Some(reported) = reported(CALL, &large, NOT_REACHED, NOT_REACHED) else { return };
    assert_eq!(reported, []);
}

/// Filler is where it was.
#[test]
fn a_trap_may_move_away_from_among_those_that_nothing_leads_to() {
    let trap = DESCRIBED.replace("lea 3(%rdi), %eax\n    ret", "ud2");
    let Some(reported) = reported(CALL, &trap, NOT_REACHED, NOT_REACHED) else { return };
    assert_eq!(reported, []);
}
