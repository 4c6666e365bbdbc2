//! Data that is named right before a jump through a table elsewhere.

use super::layout::{TWICE, UNUSED, build, function};
use super::*;

/// A function of four cases: `bytes` is named first, then the table, whose jump adds the address in a register. The cases read the bytes.
fn switch(base: &str) -> String {
    let named = "    lea bytes(%rip), %rsi\n    and $3, %edi\n    lea table(%rip), %rdx\n";
    let jump = format!("    movslq (%{base},%rdi,4), %rax\n    add %{base}, %rax\n    jmp *%rax\n");
    let cases: String = (0..4).map(|case| format!(".L{case}:\n    movzbl {case}(%rsi), %eax\n    ret\n")).collect();
    function("classify", &format!("{named}{jump}{cases}"))
}

/// The table, and bytes that happen to be the distance to what is at an address among the functions.
fn data(order: [usize; 4]) -> String {
    let entries: String = order.iter().map(|case| format!("    .long .L{case} - table\n")).collect();
    format!("{entries}bytes:\n    .rept 4\n    .long .Lfirst + 4 - bytes\n    .endr\n")
}

/// The report of two programs in which functions changed places; the jump of the input adds the address in a register.
fn check_moved(base: &str, order: [usize; 4]) -> Option<Report> {
    let first = |text: &str| format!("    .p2align 2\n.Lfirst:\n{text}");
    let input = build(&[&first(TWICE), &switch(base), UNUSED], &data([0, 1, 2, 3]))?;
    let output = build(&[&first(UNUSED), TWICE, &switch(base)], &data(order))?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn what_is_compared_before_a_jump_through_one_table_says_nothing_of_other_data_that_is_named_there() {
    let Some(report) = check_moved("rdx", [0, 1, 2, 3]) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    assert_eq!(report.stats.jump_table_entries, 4, "{:?}", report.stats);
    // The table itself is looked at, and so is the data where its address is what the jump adds.
    let report = check_moved("rdx", [0, 2, 1, 3]).unwrap();
    assert!(!report.is_ok());
    let report = check_moved("rsi", [0, 1, 2, 3]).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}
