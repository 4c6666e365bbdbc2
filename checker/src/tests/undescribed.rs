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

/// The table's address is made before a loop, and its first case is a function that something else names.
const SWITCH: &str = r#"
    .text
@FUNCTIONS@
    .globl _start
    .type _start, @function
_start:
    lea pointers(%rip), %rdi
    call classify
    mov $60, %eax
    syscall
    hlt
last:
    mov $60, %eax
    syscall
    hlt

    .section .rodata
    .balign 8
table:
    .long @ENTRIES@
    .data
    .balign 8
pointers:
    .quad classify
    .quad one
"#;

#[test]
fn a_case_may_be_another_function_where_cases_are_counted_in_a_loop() {
    const CLASSIFY: &str = "classify: push %rbx\n    lea table(%rip), %rdx\n1:  cmpl $3, (%rdi)\n    ja cold\n    mov (%rdi), %eax\n    movslq (%rdx,%rax,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n\
        .La: mov 8(%rdi), %rdi\n    jmp 1b\n.Lb: pop %rbx\n    mov %edi, %eax\n    ret";
    const COLD: &str = "cold: call last";
    let program = |functions: [&str; 3], entries: [&str; 4]| {
        let entries = entries.map(|entry| format!("{entry} - table")).join(", ");
        link(&SWITCH.replace("@FUNCTIONS@", &functions.join("\n")).replace("@ENTRIES@", &entries), "-pie")
    };
    let right = ["one", ".La", ".Lb", "one"];
    let Some(input) = program([COLD, ONE, CLASSIFY], right) else { return };
    let moved = |entries| check(&input, &program([CLASSIFY, COLD, ONE], entries).unwrap()).unwrap();
    let report = moved(right);
    assert!(report.is_ok() && report.stats.jump_table_entries == 4, "{:?}\n{}", report.stats, report.summary(10));
    for wrong in [[".Lb", ".La", ".Lb", "one"], ["one", ".La", "one", "one"], ["one", ".La", ".Lb", ".Lb"]] {
        assert!(!moved(wrong).is_ok(), "{wrong:?}");
    }
}
