//! Entries of tables that no path selects, into code that is reached in one file alone.

use super::layout::{function, link};
use super::*;

const START: &str = "    call classify\n    mov %eax, %edi\n    mov $60, %eax\n    syscall\n    hlt";
const CLASSIFY: &str =
    "    cmp $1, %edi\n    ja 9f\n    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax
    jmp *%rax\n.Lten:\n    mov $10, %eax\n    ret\n.Ltwenty:\n    mov $20, %eax\n    ret\n@MORE@9:  xor %eax, %eax\n    ret";
/// Nothing but the third entry leads here.
const ANOTHER_TEN: &str = ".Lanother_ten:\n    mov $10, %eax\n    ret\n";

fn program(more: &str, third: &str) -> Option<Vec<u8>> {
    let functions = [function("_start", START), function("classify", &CLASSIFY.replace("@MORE@", more))].concat();
    let table = format!("table:\n    .long .Lten - table, .Ltwenty - table, {third} - table\n");
    link(&format!("    .text\n    .globl _start\n{functions}\n    .section .rodata, \"a\"\n    .balign 4\n{table}"), "-pie")
}

#[test]
fn what_only_such_an_entry_leads_to_may_share_a_copy_with_what_is_reached() {
    let (Some(input), Some(output)) = (program(ANOTHER_TEN, ".Lanother_ten"), program("", ".Lten")) else { return };
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn such_an_entry_that_leads_to_what_does_something_else_is_seen() {
    let (Some(input), Some(output)) = (program(ANOTHER_TEN, ".Lanother_ten"), program("", ".Ltwenty")) else { return };
    assert!(!check(&input, &output).unwrap().is_ok());
}

/// `rbx` has the table; a number of at most 1 goes another way than to it. The third case calls `leaf`.
const ABOVE: &str = "    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    lea table(%rip), %rbx\n    mov %edi, %eax\n    cmp $1, %edi\n    jbe 9f
    dec %eax\n    movslq (%rbx,%rax,4), %rax\n    add %rbx, %rax\n    jmp *%rax
.Lten:\n    mov $10, %eax\n    jmp 9f\n.Ltwenty:\n    mov $20, %eax\n    jmp 9f\n.Lcalls:\n    @CALL@\n9:\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret";

#[test]
fn a_comparison_whose_other_way_leads_to_the_table_says_nothing_of_its_entries() {
    let leaf = function("leaf", "    lea 1(%rsi), %eax\n    ret");
    let program = |call: &str, third: &str| {
        let functions = [function("_start", START), function("classify", &ABOVE.replace("@CALL@", call)), leaf.clone()].concat();
        let table = format!("table:\n    .long .Lten - table, .Ltwenty - table, {third} - table\n");
        link(&format!("    .text\n    .globl _start\n{functions}\n    .section .rodata, \"a\"\n    .balign 4\n{table}"), "-pie")
    };
    // Nothing but the third entry leads to a body in the place of the call, which equal content does not know of.
    let (Some(input), Some(output)) = (program("call leaf", ".Lcalls"), program("lea 1(%rsi), %eax", ".Lcalls")) else { return };
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    for (call, third) in [("lea 2(%rsi), %eax", ".Lcalls"), ("call leaf", ".Lten")] {
        assert!(!check(&input, &program(call, third).unwrap()).unwrap().is_ok(), "{call} {third}");
    }
}

/// What the third entry leads to goes on through a table of its own, to a call of `leaf` among others.
const SECOND: &str =
    ".Lsecond:\n    cmp $1, %esi\n    ja 9f\n    lea second(%rip), %rdx\n    movslq (%rdx,%rsi,4), %rax\n    add %rdx, %rax
    jmp *%rax\n.Lcalls:\n    @CALL@\n    add $3, %eax\n    ret\n.Lthirty:\n    mov $30, %eax\n    ret\n";

#[test]
fn what_only_such_an_entry_leads_to_may_lead_on_through_a_table() {
    let leaf = function("leaf", "    lea 1(%rsi), %eax\n    ret");
    let program = |call: &str, entries: &str| {
        let classify = function("classify", &CLASSIFY.replace("@MORE@", &SECOND.replace("@CALL@", call)));
        // A call that is made in another way for all to see: without one, nobody looks for more.
        let start =
            format!("    @CALL@\n{START}").replace("@CALL@", if call == "call leaf" { call } else { "lea 1(%rsi), %eax" });
        let functions = [function("_start", &start), classify, leaf.clone()].concat();
        let tables = format!(
            "table:\n    .long .Lten - table, .Ltwenty - table, .Lsecond - table\n    .long 0x7fffffff\nsecond:\n    .long {entries}\n"
        );
        link(&format!("    .text\n    .globl _start\n{functions}\n    .section .rodata, \"a\"\n    .balign 4\n{tables}"), "-pie")
    };
    const RIGHT: &str = ".Lcalls - second, .Lthirty - second";
    let (Some(input), Some(output)) = (program("call leaf", RIGHT), program("lea 1(%rsi), %eax", RIGHT)) else { return };
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    for (call, entries) in [("lea 2(%rsi), %eax", RIGHT), ("lea 1(%rsi), %eax", ".Lthirty - second, .Lthirty - second")] {
        assert!(!check(&input, &program(call, entries).unwrap()).unwrap().is_ok(), "{call} {entries}");
    }
}
