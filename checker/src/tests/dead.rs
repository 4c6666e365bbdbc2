//! Code that nothing reaches: its order and its copies don't matter, what it does still does. No symbol names these functions.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, build_with_copies, compare, relaid};
use super::*;

/// Two functions that call each other, and one that calls both; `@BASE@` is what the first gives for 0.
const MUTUAL: &str = r#"
.Leven:
    .cfi_startproc
    test %edi, %edi
    jne 1f
    mov $@BASE@, %eax
    ret
1:
    sub $1, %edi
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call @CALLEE@
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.Lodd:
    .cfi_startproc
    test %edi, %edi
    jne 1f
    mov $6, %eax
    ret
1:
    sub $1, %edi
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call .Leven
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"#;

const CALLER: &str = r#"
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %edi, %ebx
    call @FIRST@
    mov %ebx, %edi
    call @SECOND@
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"#;

/// The first of the two with its blocks in another order.
const EVEN_RELAID: &str = r#"
.Leven:
    .cfi_startproc
    test %edi, %edi
    je 2f
    jmp 1f
2:
    mov $5, %eax
    ret
    .cfi_endproc
    .cfi_startproc
1:
    sub $1, %edi
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call .Lodd
    add $8, %rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"#;

const SWITCH: &str = r#"
.Lswitch:
    .cfi_startproc
    cmp $2, %edi
    ja 9f
    lea .Lswitch_table(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
.Lfirst:
    mov $11, %eax
    ret
.Lsecond:
    mov $12, %eax
    ret
.Lthird:
    mov $13, %eax
    ret
9:
    xor %eax, %eax
    ret
    .cfi_endproc
"#;

fn mutual(base: &str, callee: &str) -> String {
    MUTUAL.replace("@BASE@", base).replace("@CALLEE@", callee)
}

fn caller(first: &str, second: &str) -> String {
    CALLER.replace("@FIRST@", first).replace("@SECOND@", second)
}

fn switch_table(entries: [&str; 3]) -> String {
    let words: Vec<String> = entries.iter().map(|entry| format!("{entry} - .Lswitch_table")).collect();
    format!("{TABLE}    .balign 4\n.Lswitch_table:\n    .long {}\n", words.join(", "))
}

/// The report of two programs with this dead code; the live code of the second is laid out anew.
fn check_dead(input: &str, output: &str) -> Option<Report> {
    let input = build(&[CLASSIFY, TWICE, UNUSED, input], TABLE)?;
    let output = build(&[UNUSED, output, &relaid("je"), TWICE], TABLE)?;
    Some(check(&input, &output).unwrap())
}

/// What is found, but for the segment with the frame descriptions, which ends earlier where there are fewer of them.
pub(super) fn found(report: &Report) -> Vec<ViolationKind> {
    kinds(report).into_iter().filter(|&kind| kind != ViolationKind::Segment).collect()
}

fn right() -> String {
    mutual("5", ".Lodd") + &caller(".Leven", ".Lodd")
}

#[test]
fn dead_functions_that_call_each_other_correspond_in_any_layout() {
    let even_and_odd = mutual("5", ".Lodd");
    let odd = &even_and_odd[even_and_odd.find(".Lodd:\n").unwrap()..];
    let output = caller(".Leven", ".Lodd") + odd + EVEN_RELAID;
    let Some(report) = check_dead(&right(), &output) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
    assert!(report.stats.matched_by_content > 8, "{:?}", report.stats);
}

#[test]
fn a_dead_function_may_stand_twice() {
    let twice = right() + &caller(".Leven", ".Lodd");
    let Some(report) = check_dead(&right(), &twice) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
    let Some(report) = check_dead(&twice, &right()) else { return };
    assert_eq!(found(&report), [], "{}", report.summary(20));
}

#[test]
fn another_byte_in_dead_code_is_seen() {
    let Some(report) = check_dead(&right(), &right().replace("mov $5, %eax", "mov $4, %eax")) else { return };
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn another_target_in_dead_code_is_seen() {
    let wrong = mutual("5", ".Leven") + &caller(".Leven", ".Lodd");
    let Some(report) = check_dead(&right(), &wrong) else { return };
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn different_dead_functions_that_changed_places_are_seen() {
    let wrong = mutual("5", ".Lodd") + &caller(".Lodd", ".Leven");
    let Some(report) = check_dead(&right(), &wrong) else { return };
    assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{}", report.summary(10));
}

#[test]
fn a_live_function_called_in_place_of_another_is_seen_in_dead_code() {
    let right = caller("twice", "classify");
    let Some(report) = check_dead(&right, &right) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
    let Some(report) = check_dead(&right, &caller("twice", "twice")) else { return };
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn a_dead_function_may_be_left_out() {
    let Some(report) = check_dead(&(right() + &caller(".Lodd", ".Lodd")), &right()) else { return };
    assert_eq!(kinds(&report), [], "{}", report.summary(10));
    assert_eq!(report.stats.dropped_functions, 1);
}

/// What the first of two parts begins with is in the output, as all kinds of code are: the jump behind it is not, and leads nowhere.
#[test]
fn a_dead_function_in_two_parts_may_be_left_out() {
    let parts = "    .cfi_startproc\n1:  ret\n    test %edi, %edi\n    jne 1b\n    jmp .Lrest\n    .cfi_endproc\n    .p2align 4\n.Lrest:\n    .cfi_startproc\n    mov $77, %eax\n    jmp classify\n    .cfi_endproc\n";
    let other = "    .cfi_startproc\n    ret\n    .cfi_endproc\n";
    let Some(report) = check_dead(&format!("{other}{parts}"), other) else { return };
    assert_eq!(kinds(&report), [], "{}", report.summary(10));
    assert_eq!(report.stats.dropped_functions, 1);
    // The jump is still where it was.
    let Some(input) = build(&[TWICE, UNUSED, other, parts, CLASSIFY], TABLE) else { return };
    let kept = parts.replace("    mov $77, %eax\n    jmp classify", "    .fill 10, 1, 0xcc");
    let report = check(&input, &build(&[TWICE, UNUSED, other, &kept, CLASSIFY], TABLE).unwrap()).unwrap();
    assert!(!report.is_ok(), "{:?}", report.stats);
}

#[test]
fn a_function_that_only_an_offset_in_data_leads_to_may_not_be_left_out() {
    let offset = |word: &str| format!("{TABLE}    .balign 4\n.Loffset:\n    .long {word}\n");
    let Some(input) = build(&[CLASSIFY, TWICE, UNUSED, &right()], &offset(".Leven - .Loffset")) else { return };
    let output = build(&[UNUSED, &relaid("je"), TWICE], &offset("0")).unwrap();
    let report = check(&input, &output).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::MissingFunction), "{}", report.summary(10));
    let free = build(&[CLASSIFY, TWICE, UNUSED, &right()], &offset("0")).unwrap();
    let report = check(&free, &output).unwrap();
    assert_eq!(kinds(&report), [], "{}", report.summary(10));
}

#[test]
fn a_live_function_may_not_be_left_out() {
    let Some(input) = build(&[CLASSIFY, TWICE, UNUSED], TABLE) else { return };
    let emptied = UNUSED.replace("ret", "int3");
    let output = build(&[&emptied, &relaid("je"), TWICE], TABLE).unwrap();
    assert!(!check(&input, &output).unwrap().is_ok());
}

#[test]
fn another_unwind_rule_in_dead_code_is_seen() {
    let wrong = right().replacen("call .Lodd\n", "call .Lodd\n    .cfi_def_cfa_offset 24\n", 1);
    let Some(report) = check_dead(&right(), &wrong) else { return };
    assert!(!report.is_ok(), "{:?}", report.stats);
}

#[test]
fn a_branch_inverted_alone_in_dead_code_is_seen() {
    let Some(report) = check_dead(&right(), &right().replacen("jne 1f", "je 1f", 1)) else { return };
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

#[test]
fn the_jump_table_of_a_dead_function_is_compared() {
    let order = [".Lfirst", ".Lsecond", ".Lthird"];
    let Some(input) = build(&[CLASSIFY, TWICE, UNUSED, SWITCH], &switch_table(order)) else { return };
    let moved = build(&[SWITCH, UNUSED, &relaid("je"), TWICE], &switch_table(order)).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
    let swapped = build(&[SWITCH, UNUSED, &relaid("je"), TWICE], &switch_table([".Lfirst", ".Lthird", ".Lsecond"])).unwrap();
    let report = check(&input, &swapped).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
}

/// The case is known where the table is used: its entry is loaded without an index, by a distance that changes with the table's place.
#[test]
fn the_jump_table_of_a_dead_function_may_be_a_copy_and_read_without_an_index() {
    const ENTRIES_LEN: usize = 12;
    let known_case = SWITCH.replace("movslq (%rdx,%rdi,4), %rax", "movslq .Lswitch_table(%rip), %rax");
    let order = [".Lfirst", ".Lsecond", ".Lthird"];
    for switch in [SWITCH, &known_case] {
        let Some(input) = build(&[CLASSIFY, TWICE, UNUSED, switch], &switch_table(order)) else { return };
        let image = Image::parse(&input).unwrap();
        let data = image.section_bytes(image.section(".rodata").unwrap());
        let same: String = data[data.len() - ENTRIES_LEN..].iter().map(|byte| format!("    .byte {byte}\n")).collect();
        let with_copy = |order| {
            let copy = format!("    .section .copies, \"ax\"\n{}", &switch_table(order)[TABLE.len()..]);
            let table = format!("{TABLE}    .balign 4\n{same}");
            build_with_copies(&[switch, UNUSED, &relaid("je"), TWICE], &table, &copy).unwrap()
        };
        let report = check(&input, &with_copy(order)).unwrap();
        assert!(report.is_ok(), "{}", report.summary(20));
        let report = check(&input, &with_copy([".Lsecond", ".Lfirst", ".Lthird"])).unwrap();
        assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{}", report.summary(10));
    }
}

#[test]
fn any_flipped_bit_of_dead_code_is_seen() {
    let Some(file) = build(&[UNUSED, &right(), &relaid("je"), TWICE], TABLE) else { return };
    let input = build(&[CLASSIFY, TWICE, UNUSED, &right()], TABLE).unwrap();
    let code = Image::parse(&file).unwrap();
    let text = code.section(".text").unwrap();
    // From the constant of the first function on.
    let bytes = code.section_bytes(text);
    let start = bytes.windows(5).position(|window| window == [0xb8, 5, 0, 0, 0]).unwrap();
    let size = mutual_size(&bytes[start..]);
    for place in start..start + size {
        for bit in 0..8 {
            let mut output = file.clone();
            output[text.offset as usize + place] ^= 1 << bit;
            let report = check(&input, &output).unwrap();
            // `REX.R` and `REX.X` change nothing of an instruction with one operand in a register.
            let is_same_instruction = bytes[place] == 0x48 && [1, 2].contains(&bit);
            assert_eq!(report.is_ok(), is_same_instruction, "bit {bit} of byte {} of {size}", place - start);
        }
    }
    assert!(compare(&[UNUSED, TWICE, &relaid("je")], TABLE).is_some_and(|report| report.is_ok()));
}

/// The bytes up to the second constant.
fn mutual_size(bytes: &[u8]) -> usize {
    bytes.windows(5).position(|window| window == [0xb8, 6, 0, 0, 0]).unwrap() + 6
}
