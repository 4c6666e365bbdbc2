//! Code that nothing reaches and that equal content cannot tell: it leads to what was changed, was changed itself, or goes on behind a call by chance.

use super::layout::{function, link};
use super::*;

const START: &str = "    .cfi_undefined rip
    mov $2, %edi
    call live
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt";
const LEAF: &str = "    lea (%rdi,%rdi), %eax\n    ret";
const CALL: &str = "    call leaf\n";
const BODY: &str = "    lea (%rdi,%rdi), %eax\n";
const ENTER: &str = "    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    mov %edi, %ebx\n";
const LEAVE: &str = "    pop %rbx\n    .cfi_def_cfa_offset 8\n";

/// Adds what it is called with to twice that; the callee's body may stand in the place of its call.
fn live(twice: &str) -> String {
    format!("    mov %edi, %ecx\n    test %edi, %edi\n    je 1f\n    shl $1, %edi\n{twice}1:\n    add %ecx, %eax\n    ret")
}

/// No symbol names these functions.
fn unnamed(label: &str, body: &str) -> String {
    format!("    .p2align 2\n.L{label}:\n    .cfi_startproc\n{body}\n    .cfi_endproc\n\n")
}

/// More filler than functions may be tried at.
fn program(live: &str, dead: &[(&str, &str)], filler: &str) -> Option<Vec<u8>> {
    let live = [("_start", START), ("live", live), ("leaf", LEAF)].map(|(name, body)| function(name, body)).concat();
    let dead: String = dead.iter().map(|(label, body)| unnamed(label, body)).collect();
    link(&format!("    .text\n    .globl _start\n{live}{dead}    .org 0x3000, {filler}\n    .data\n    .quad 1\n"), "-pie")
}

/// The report of two programs with this dead code; the first has its functions in another order, and other filler, which begins right behind a call in the second.
fn check_dead(live: [&str; 2], dead: [&[(&str, &str)]; 2]) -> Option<Report> {
    let stops = ("stops", "    push %rax\n    .cfi_def_cfa_offset 16\n    mov $1, %edi\n    call leaf");
    let (input, output) = ([&[stops], dead[0]].concat(), [dead[1], &[stops]].concat());
    Some(check(&program(live[0], &input, "0x90")?, &program(live[1], &output, "0xcc")?).unwrap())
}

#[test]
fn a_dead_function_that_runs_on_into_changed_code_is_found_whatever_filler_there_is() {
    // Its frame is made late.
    let test = "    test %edi, %edi\n    je 1f\n";
    let rest = format!("{CALL}    add %ebx, %eax\n{LEAVE}    ret\n");
    let before = format!("{ENTER}{test}{rest}1:\n    .cfi_def_cfa_offset 16\n    mov $7, %eax\n{LEAVE}    ret");
    let after = format!("{test}{ENTER}{rest}1:\n    .cfi_restore rbx\n    mov $7, %eax\n    ret");
    let dead = format!("{ENTER}{CALL}    lea 5(%rbx,%rax), %edi\n{LEAVE}    jmp live");
    let Some(report) = check_dead([&before, &after], [&[("dead", &dead)], &[("dead", &dead)]]) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    for (from, to) in [("lea 5", "lea 6"), ("jmp live", "jmp leaf"), ("mov %edi, %ebx", "mov %esi, %ebx"), ("-16", "-24")] {
        let wrong = dead.replace(from, to);
        let report = check_dead([&before, &after], [&[("dead", &dead)], &[("dead", &wrong)]]).unwrap();
        assert!(!report.is_ok(), "{from} became {to}");
    }
}

#[test]
fn what_leads_to_a_dead_function_that_was_changed_is_found_after_it() {
    let live = live(CALL);
    let dead = |twice: &str| format!("{ENTER}{twice}    lea 5(%rbx,%rax), %eax\n{LEAVE}    ret");
    // Where it jumps is known too late for a guess, so it is compared by content alone.
    let leads = "    test %edi, %edi\n    je 1f\n    jmp *%rsi\n1:\n    mov $3, %edi\n    call .Ldead\n    add $7, %eax\n    ret";
    let (before, after) = (dead(CALL), dead(BODY));
    let compare = |after: &str, leading: &str| {
        check_dead([&live, &live], [&[("dead", &before), ("leads", leads)], &[("dead", after), ("leads", leading)]])
    };
    let Some(report) = compare(&after, leads) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    for (from, to) in [("$3", "$4"), ("add $7", "add $8"), ("call .Ldead", "call live"), ("jmp *%rsi", "jmp *%rdi")] {
        assert!(!compare(&after, &leads.replace(from, to)).unwrap().is_ok(), "{from} became {to}");
    }
    for (from, to) in [("lea 5", "lea 6"), ("(%rdi,%rdi)", "(%rdi,%rsi)")] {
        assert!(!compare(&after.replace(from, to), leads).unwrap().is_ok(), "{from} became {to}");
    }
}

/// A function of which three blocks end with a call that ends it, and the same with two of them in another order.
fn in_another_order() -> (String, String) {
    let block = |number: u32| format!("{number}:\n    mov ${number}, %edi\n{CALL}    mov %eax, %edi\n{CALL}");
    let head = format!(
        "    push %rax\n    .cfi_def_cfa_offset 16\n    test %edi, %edi\n    je 1f\n    js 2f\n{CALL}    mov %eax, %edi\n{CALL}"
    );
    let before = format!("{head}{}{}", block(1), block(2));
    let after = format!("{head}    jmp 1f\n{}{}    jmp 2b", block(2), block(1));
    (before, after)
}

#[test]
fn a_call_that_ends_a_dead_function_may_stand_before_another_block_of_it() {
    let live = live(CALL);
    let (before, after) = in_another_order();
    let compare = |after: &str| check_dead([&live, &live], [&[("dead", &before)], &[("dead", after)]]);
    let Some(report) = compare(&after) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    for (from, to) in [("$2", "$3"), ("jmp 1f", "jmp 2f"), ("jmp 2b", "jmp 1b"), ("js", "jns")] {
        assert!(!compare(&after.replace(from, to)).unwrap().is_ok(), "{from} became {to}");
    }
}

#[test]
fn of_equal_dead_functions_each_may_end_with_a_call_before_another_block_of_it() {
    let live = live(CALL);
    let (before, after) = in_another_order();
    // One has an equal, so no function of the input is missing.
    let compare = |after: &str| {
        let [input, output] = [[&*before, &before], [&before, after]].map(|[one, other]| [("one", one), ("other", other)]);
        check_dead([&live, &live], [&input, &output])
    };
    let Some(report) = compare(&after) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    for (from, to) in [("$2", "$3"), ("jmp 1f", "jmp 2f"), ("jmp 2b", "jmp 1b"), ("jmp 2b", "nop"), ("js", "jns")] {
        assert!(!compare(&after.replace(from, to)).unwrap().is_ok(), "{from} became {to}");
    }
}

#[test]
fn of_many_dead_functions_those_are_tried_that_begin_alike() {
    let live = live(CALL);
    let dead = |twice: &str| format!("{ENTER}{twice}    lea 5(%rbx,%rax), %eax\n{LEAVE}    ret");
    let labels: Vec<String> = (0..120).map(|number| format!("many{number}")).collect();
    let bodies = |added: u32| -> Vec<String> {
        let body = |number| format!("    mov ${number}, %edi\n    call .Ldead\n    add ${added}, %eax\n    ret");
        (0..120).map(body).collect()
    };
    let (before, after, many, wrong) = (dead(CALL), dead(BODY), bodies(7), bodies(8));
    let all = |dead, bodies| -> Vec<(&str, &str)> {
        let many = labels.iter().map(String::as_str).zip(<[String]>::iter(bodies).map(String::as_str));
        many.chain([("dead", dead)]).collect()
    };
    let compare = |dead, bodies| check_dead([&live, &live], [&all(&before, &many), &all(dead, bodies)]);
    let Some(report) = compare(&after, &many) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    assert!(!compare(&after, &wrong).unwrap().is_ok());
    assert!(!compare(&after.replace("lea 5", "lea 6"), &many).unwrap().is_ok());
}

#[test]
fn dead_code_that_ends_with_a_call_stays_found_when_more_code_is_compared_that_goes_on_behind_such_a_call() {
    let test = "    test %edi, %edi\n    je 1f\n";
    let rest = format!("{CALL}    add %ebx, %eax\n{LEAVE}    ret\n");
    let goes_on = "    mov $1, %edi\n    call leaf\n";
    let before = format!("{ENTER}{test}{goes_on}    nop\n{rest}1:\n    .cfi_def_cfa_offset 16\n    mov $7, %eax\n{LEAVE}    ret");
    let after = format!("{test}{ENTER}{goes_on}    nop\n{rest}1:\n    .cfi_restore rbx\n    mov $7, %eax\n    ret");
    // What is compared by content goes on to a function that is found by a guess, and begins as the other one's way on does.
    let changed = format!("{ENTER}{CALL}    lea 5(%rbx,%rax), %edi\n{LEAVE}    jmp live");
    let stops = ("stops", "    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    mov $1, %edi\n    call leaf");
    let behind = format!("    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    nop\n{rest}");
    let (changed, behind) = (("changed", &*changed), ("behind", &*behind));
    let Some(input) = program(&before, &[stops, changed, behind], "0x90") else { return };
    let output = program(&after, &[changed, stops, behind], "0xcc").unwrap();
    let report = check(&input, &output).unwrap();
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
}
