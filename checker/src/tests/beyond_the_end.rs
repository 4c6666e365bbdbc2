//! Ways of functions to what stands behind them, which compilers leave where they know that nobody goes there.

use super::layout::{function, link};
use super::*;

const START: &str = "    call classify\n    call next\n    mov %eax, %edi\n    mov $60, %eax\n    syscall\n    hlt";
const CLASSIFY: &str =
    "@PUSH@    and $3, %edi\n    lea table(%rip), %rcx\n    movslq (%rcx,%rdi,4), %rax\n    add %rcx, %rax\n    jmp *%rax
.Lten:\n    mov $10, %eax\n@POP@    ret\n@AGAIN@.Ltwenty:\n    mov $20, %eax\n@POP@    ret\n    .balign 4, 0x90";
const NEXT: &str = "    lea 3(%rdi), %eax\n    ret";

fn classify(has_frame: bool) -> String {
    let [push, pop, again] = match has_frame {
        true => [
            "    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n",
            "    pop %rbx\n    .cfi_def_cfa_offset 8\n",
            "    .cfi_def_cfa_offset 16\n",
        ],
        false => [""; 3],
    };
    function("classify", &CLASSIFY.replace("@PUSH@", push).replace("@POP@", pop).replace("@AGAIN@", again))
}

fn program(functions: &[&str], entries: [&str; 4]) -> Option<Vec<u8>> {
    program_from(START, functions, &entries)
}

fn program_from(start: &str, functions: &[&str], entries: &[&str]) -> Option<Vec<u8>> {
    let entries: Vec<String> = entries.iter().map(|entry| format!("{entry} - table")).collect();
    let (start, table) = (function("_start", start), entries.join(", "));
    let code = format!("    .text\n    .globl _start\n{start}{}", functions.concat());
    link(&format!("{code}    .section .rodata, \"a\"\n    .balign 4\ntable:\n    .long {table}\n"), "-pie")
}

#[test]
fn an_entry_to_the_next_function_is_never_selected_where_there_is_a_frame() {
    let next = function("next", NEXT);
    for has_frame in [true, false] {
        let classify = classify(has_frame);
        let Some(input) = program(&[&classify, &next], [".Lten", ".Ltwenty", "next", "next"]) else { return };
        let compared = |entries| {
            let output = program(&[&next, &classify], entries).unwrap();
            check(&input, &output).unwrap()
        };
        let moved = compared([".Lten", ".Ltwenty", "next", "next"]);
        assert!(moved.is_ok(), "{}", moved.summary(10));
        let elsewhere = compared([".Lten", ".Ltwenty", ".Lten", ".Lten"]);
        assert_eq!(elsewhere.is_ok(), has_frame, "{}", elsewhere.summary(10));
        assert!(!compared([".Lten", ".Lten", "next", "next"]).is_ok());
    }
}

#[test]
fn what_only_such_an_entry_names_may_be_left_out() {
    let (classify, next) = (classify(true), function("next", NEXT));
    let start = START.replace("    call next\n", "");
    let compared = |entries: &[&str], without: &[&str]| {
        let input = program_from(&start, &[&classify, &next], entries)?;
        Some(check(&input, &program_from(&start, &[&classify], without).unwrap()).unwrap())
    };
    let Some(report) = compared(&[".Lten", ".Ltwenty", "next", "next"], &[".Lten", ".Ltwenty", ".Lten", ".Lten"]) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 1, "{}", report.summary(10));
    // One more is read by nothing that is seen.
    let named = |last| [".Lten", ".Ltwenty", "next", "next", ".Lten + 0x100000", last];
    let report =
        compared(&named("next"), &named("table + 48").map(|entry| if entry == "next" { ".Lten" } else { entry })).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::MissingFunction), "{}", report.summary(10));
}

/// The number is copied before it is compared, and what was compared is overwritten by the table's address.
#[test]
fn a_copy_of_what_was_compared_says_which_entries_are_selected() {
    let copied = "    mov %rdi, %rax\n    cmp $3, %rdi\n    ja .Lten\n    lea table(%rip), %rdi\n    movslq (%rdi,%rax,4), %rax\n    add %rdi, %rax\n    jmp *%rax\n";
    let (next, whole) = (function("next", NEXT), classify(false));
    let body = &whole[whole.find(".Lten:").unwrap()..];
    let classify = format!("{}\n", function("classify", &format!("{copied}{}", body.split("    .cfi_endproc").next().unwrap())));
    let entries = [".Lten", ".Ltwenty", "next", "next"];
    let Some(input) = program(&[&classify, &next], entries) else { return };
    let compared = |entries| check(&input, &program(&[&next, &classify], entries).unwrap()).unwrap();
    assert!(compared(entries).is_ok(), "{}", compared(entries).summary(10));
    assert!(!compared([".Lten", ".Ltwenty", "next", ".Lten"]).is_ok());
}

/// A function that ends where the compiler knew that nobody comes, and what fills the room behind it.
fn lone(filler: &str) -> String {
    function("classify", "    endbr64\n    push %rbp\n    .cfi_def_cfa_offset 16\n    mov %rsp, %rbp")
        + &format!("    nopl 0(%rax,%rax)\n    {filler}\n")
}

#[test]
fn a_function_goes_on_behind_no_zeros() {
    let (next, other) = (function("next", NEXT), function("other", "    endbr64\n    mov $4, %eax\n    ret"));
    let entries = ["table"; 4];
    for (filler, is_end) in [(".zero 4", true), (".zero 4\n    nop\n    nop\n    nop\n    nop", false), ("nopl (%rax)", false)] {
        let Some(input) = program(&[&lone(filler), &next, &other], entries) else { return };
        let report = check(&input, &program(&[&lone(".byte 0xcc, 0xcc, 0xcc"), &other, &next], entries).unwrap()).unwrap();
        assert_eq!(report.is_ok(), is_end, "{filler}: {}", report.summary(10));
        let report = check(&input, &program(&[&lone(filler), &next, &other], entries).unwrap()).unwrap();
        assert!(report.is_ok(), "{filler}: {}", report.summary(10));
    }
}
