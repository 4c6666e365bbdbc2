//! Programs at a fixed address: addresses are numbers, and what they name keeps a meaning there.

use super::dead::found;
use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build_fixed};
use super::*;

/// A function that gives the unwind table to nobody in particular.
fn registers(address: u64) -> String {
    format!("    .cfi_startproc\n    mov ${address:#x}, %edi\n    ret\n    .cfi_endproc\n")
}

#[test]
fn a_table_that_code_registers_must_begin_where_it_says() {
    // What a word of data names stays.
    let before = |address| build_fixed(&[TWICE, UNUSED, &registers(address), CLASSIFY], TABLE);
    let after = |address| build_fixed(&[TWICE, UNUSED, CLASSIFY, &registers(address)], TABLE).unwrap();
    let Some(input) = before(0) else { return };
    let entries = |file: &[u8]| unwind::entries(&Image::parse(file).unwrap());
    let (known, swapped) = (entries(&input), entries(&after(0)));
    let (first, last) = (known[0], *known.last().unwrap());
    let only_before = known.iter().copied().find(|entry| !swapped.contains(entry)).unwrap();
    let both = known.iter().copied().find(|&entry| entry > first && entry < last && swapped.contains(&entry)).unwrap();
    for (address, expected) in [(only_before, vec![ViolationKind::UnwindTable]), (both, vec![]), (only_before + 1, vec![])] {
        let report = check(&before(address).unwrap(), &after(address)).unwrap();
        assert_eq!(found(&report), expected, "{address:#x}: {}", report.summary(10));
    }
}

/// A function that nothing reaches. The last four bytes of its store read as 0x401044, which is no part of the instruction by itself.
const STORE: &str = "    .cfi_startproc\n    movb $0, 64(%rax,%rdx)\n    mov $9, %eax\n    ret\n    .cfi_endproc\n";
const IN_STORE: u64 = 0x40_1044;

#[test]
fn the_last_bytes_of_a_store_of_a_byte_are_no_address() {
    // Where the input has them, each byte begins an instruction.
    let steps = format!("    .cfi_startproc\n    .fill 256, 1, {STEP:#x}\n    ret\n    .cfi_endproc\n");
    let Some(input) = build_fixed(&[TWICE, UNUSED, &steps, CLASSIFY, STORE], TABLE) else { return };
    let output = |store: &str| build_fixed(&[TWICE, UNUSED, CLASSIFY, store, &steps], TABLE).unwrap();
    let right = output(STORE);
    let byte_there = |file: &[u8]| Image::parse(file).unwrap().at(IN_STORE, 1).map(|byte| byte[0]);
    assert_eq!(byte_there(&input), Some(STEP));
    assert_ne!(byte_there(&right), Some(STEP));
    let report = check(&input, &right).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
    for (from, to) in [("64(", "65("), ("$0,", "$1,"), ("%rdx", "%rcx")] {
        let report = check(&input, &output(&STORE.replace(from, to))).unwrap();
        assert!(!report.is_ok(), "{to}");
    }
}

/// `cld`.
const STEP: u8 = 0xfc;

/// A function that nothing reaches, with a table of absolute addresses; its labels are as long as a jump.
const SWITCH: &str = r#"
.Lswitch:
    .cfi_startproc
    cmp $2, %edi
    ja .Lnone
    mov %edi, %edi
    jmp *.Lswitch_table(,%rdi,8)
.Lfirst:
    mov $11, %eax
    ret
.Lsecond:
    mov $12, %eax
    ret
.Lthird:
    mov $13, %eax
    ret
.Lnone:
    xor %eax, %eax
    ret
    .cfi_endproc
"#;

fn switch_table() -> String {
    format!("{TABLE}    .balign 8\n.Lswitch_table:\n    .quad .Lfirst, .Lsecond, .Lthird\n")
}

/// The same elsewhere; where the labels were, jumps lead to them, for the table still says so.
fn moved(labels: [&str; 3]) -> String {
    let [first, second, third] = labels;
    let copy = SWITCH.replace(".L", ".Lnew_").replace(".Lnew_switch_table", ".Lswitch_table");
    format!(
        "    .fill 14, 1, 0xcc\n.Lfirst:\n    .byte 0xe9\n    .long {first} - . - 4\n    int3\n\
         .Lsecond:\n    .byte 0xe9\n    .long {second} - . - 4\n    int3\n\
         .Lthird:\n    .byte 0xe9\n    .long {third} - . - 4\n    int3\n    .fill 3, 1, 0xcc\n{copy}"
    )
}

#[test]
fn a_table_of_a_dead_function_may_lead_to_it_by_jumps() {
    let Some(input) = build_fixed(&[TWICE, UNUSED, CLASSIFY, SWITCH], &switch_table()) else { return };
    let output = |labels| build_fixed(&[TWICE, UNUSED, CLASSIFY, &moved(labels)], &switch_table());
    let right = output([".Lnew_first", ".Lnew_second", ".Lnew_third"]).unwrap();
    let report = check(&input, &right).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
    assert!(report.stats.matched_by_content > 0, "{:?}", report.stats);
    let wrong = output([".Lnew_first", ".Lnew_third", ".Lnew_second"]).unwrap();
    let report = check(&input, &wrong).unwrap();
    assert!(!report.is_ok());
}

/// Who calls the function with the table; `N` is what tells labels of a copy from others.
const BEGINS: &str = "    .globl _begin\n_begin:\n    .cfi_startproc\n    call .LNswitch\n    ret\n    .cfi_endproc\n";

#[test]
fn an_address_that_a_table_and_an_instruction_hold_is_one_address() {
    let held = "mov $.Lsecond, %eax";
    let words = |labels: &str| format!("{TABLE}    .balign 8\n.Lswitch_table:\n    .quad {labels}\n    .quad _begin\n");
    for (number, is_right) in [("xor %eax, %eax\n    nopl (%rax)", true), (held, false)] {
        let code = [&BEGINS.replace("LN", "L"), &SWITCH.replace("xor %eax, %eax", number)].map(String::as_str).concat();
        let Some(input) = build_fixed(&[TWICE, UNUSED, CLASSIFY, &code], &words(".Lfirst, .Lsecond, .Lthird")) else { return };
        let report = |labels: &str| {
            let moved = moved([".Lnew_first", ".Lnew_second", ".Lnew_third"]).replace("xor %eax, %eax", number);
            let moved = moved.replace("    .fill 3, 1, 0xcc\n", "    .fill 6, 1, 0xcc\n");
            let code = [&BEGINS.replace("LN", "Lnew_"), &moved].map(String::as_str).concat();
            check(&input, &build_fixed(&[TWICE, UNUSED, CLASSIFY, &code], &words(labels)).unwrap()).unwrap()
        };
        let kept = report(".Lfirst, .Lsecond, .Lthird");
        assert!(kept.is_ok(), "{}", kept.summary(20));
        let written = report(".Lnew_first, .Lnew_second, .Lnew_third");
        assert_eq!(written.is_ok(), is_right, "{number}: {}", written.summary(20));
        let partly = report(".Lnew_first, .Lsecond, .Lnew_third");
        assert!(partly.is_ok(), "{number}: {}", partly.summary(20));
    }
}

/// Code without a frame description that stands for a function, as entries of checked calls do, and who knows its address.
fn entry_to(target: &str) -> String {
    format!(
        "    .balign 16\n.Lentry:\n    jmp .L{target}\n    .balign 16, 0xcc\n.Lcaller:\n    .cfi_startproc\n    mov $.Lentry, %eax\n    jmp *%rax\n    .cfi_endproc\n    .balign 16, 0xcc\n"
    )
}

fn gives(name: &str, number: u32) -> String {
    format!(".L{name}:\n    .cfi_startproc\n    mov ${number}, %eax\n    ret\n    .cfi_endproc\n    .balign 16, 0xcc\n")
}

#[test]
fn an_entry_that_only_a_number_names_leads_where_it_led() {
    let table = format!("{TABLE}    .balign 8\n    .quad .Lcaller\n");
    let (first, second) = (gives("first", 1), gives("second", 2));
    let with =
        |target: &str, order: [&str; 2]| build_fixed(&[TWICE, UNUSED, CLASSIFY, &entry_to(target), order[0], order[1]], &table);
    let Some(input) = with("first", [&first, &second]) else { return };
    let is_right = |output: Vec<u8>| check(&input, &output).unwrap().is_ok();
    assert!(is_right(with("first", [&first, &second]).unwrap()));
    assert!(is_right(with("first", [&second, &first]).unwrap()));
    // The entry has the bytes that it had, and what lies where it leads is another function.
    assert!(!is_right(with("second", [&second, &first]).unwrap()));
}

const CALLER: &str = ".LNcaller:\n    .cfi_startproc\n    push %rbx\n    .cfi_def_cfa_offset 16\n    call .LNnear\n    call .LNfar\n    pop %rbx\n    call .LNnever\n    .cfi_endproc\n";
const NEVER: &str = ".LNnever:\n    .cfi_startproc\n    ud2\n    .cfi_endproc\n";

/// A function of two cases, and behind it what gives them numbers. `N` is what tells labels of a copy from others.
fn two_cases(name: &str, results: [u32; 2]) -> String {
    format!(
        ".LN{name}:\n    .cfi_startproc\n    cmp $1, %edi\n    ja .LN{name}_none\n    mov %edi, %edi\n    jmp *.L{name}_table(,%rdi,8)\n.LN{name}_0:\n    \
         mov ${}, %eax\n    ret\n.LN{name}_1:\n    mov ${}, %eax\n    ret\n.LN{name}_none:\n    xor %eax, %eax\n    ret\n    .cfi_endproc\n",
        results[0], results[1]
    )
}

/// Where such a function was: jumps at its labels, for the table still says so.
fn old_cases(name: &str) -> String {
    let label = |case: u32| format!(".L{name}_{case}:\n    .byte 0xe9\n    .long .Lnew_{name}_{case} - . - 4\n    int3\n");
    format!("    .fill 14, 1, 0xcc\n{}{}    .fill 3, 1, 0xcc\n", label(0), label(1))
}

#[test]
fn the_function_behind_a_call_that_never_returns_is_no_guess_for_what_it_returns_to() {
    let (near, far) = (two_cases("near", [1, 2]), two_cases("far", [3, 4]));
    let quads = "    .balign 8\n    .quad .Lcaller\n.Lnear_table:\n    .quad .Lnear_0, .Lnear_1\n.Lfar_table:\n    .quad .Lfar_0, .Lfar_1\n";
    let table = format!("{TABLE}{quads}");
    let code = [CALLER, &near, &far, NEVER].concat().replace(".LN", ".L");
    let Some(input) = build_fixed(&[TWICE, UNUSED, CLASSIFY, "    .balign 2, 0xcc\n", &code], &table) else { return };
    let old = [
        "    .balign 2, 0xcc\n.Lcaller:\n    .byte 0xe9\n    .long .Lnew_caller - . - 4\n    .fill 12, 1, 0xcc\n",
        &old_cases("near"),
        &old_cases("far"),
        "    .fill 2, 1, 0xcc\n",
    ]
    .concat();
    let new = [CALLER, &far, &near, NEVER].concat().replace(".LN", ".Lnew_");
    let report = check(&input, &build_fixed(&[TWICE, UNUSED, CLASSIFY, &old, &new], &table).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
    let wrong = new.replace("call .Lnew_far", "call .Lnew_near");
    let report = check(&input, &build_fixed(&[TWICE, UNUSED, CLASSIFY, &old, &wrong], &table).unwrap()).unwrap();
    assert!(!report.is_ok());
}

/// A function to which a word leads, and of which somebody may hold an inner address.
const STEPS: &str = ".LNsteps:\n    .cfi_startproc\n    mov $1, %eax\n    add $2, %eax\n    add $3, %eax\n.LNheld:\n    add $4, %eax\n    add $5, %eax\n    imul $77, %eax, %eax\n    ret\n    .cfi_endproc\n";

/// It is elsewhere. Where the held address was is room for a short jump only, to one before it.
fn with_relay(target: &str) -> String {
    let copy = STEPS.replace(".LN", ".Lnew_");
    format!(
        ".Lsteps:\n    .byte 0xe9\n    .long .Lnew_steps - . - 4\n.Lrelay:\n    .byte 0xe9\n    .long {target} - . - 4\n    int3\n    .byte 0xeb\n    .byte .Lrelay - . - 1\n    .fill 8, 1, 0xcc\n{copy}"
    )
}

#[test]
fn an_old_entry_that_nothing_is_seen_to_hold_may_lead_on_by_a_jump_before_it() {
    let table = format!("{TABLE}    .balign 8\n    .quad .Lsteps\n");
    let Some(input) = build_fixed(&[TWICE, UNUSED, CLASSIFY, &STEPS.replace(".LN", ".L")], &table) else { return };
    let output = |target: &str| build_fixed(&[TWICE, UNUSED, CLASSIFY, &with_relay(target)], &table).unwrap();
    let report = check(&input, &output(".Lnew_held")).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
    // To other code of the input it may lead as well: nothing tells who comes there.
    assert!(!check(&input, &output(".Lnew_held + 1")).unwrap().is_ok());
}
