//! Indirect branch tracking: what an indirect branch may come to still begins with `endbr64`.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, relaid};
use super::*;

/// `GNU_PROPERTY_X86_FEATURE_1_AND` with IBT.
const NOTE: &str = r#"
    .section .note.gnu.property, "a"
    .balign 8
    .long 4, 16, 5
    .asciz "GNU"
    .long 0xc0000002, 4, 1, 0
    .text
"#;

fn note(features: &str) -> String {
    NOTE.replace(" 4, 1, 0", &format!(" 4, {features}, 0"))
}

/// `twice` without its mark at the address that `handlers` holds.
fn unmarked() -> String {
    TWICE.replace("twice:\n    .cfi_startproc\n", "twice:\n    .cfi_startproc\n    jmp 1f\n1:\n")
}

fn check_layout(twice: &str, classify: &str, (before, after): (&str, &str)) -> Option<Report> {
    let notrack = CLASSIFY.replace("jmp *%rax", "notrack jmp *%rax");
    let input = build(&[&notrack, TWICE, UNUSED, before], TABLE)?;
    let output = build(&[UNUSED, twice, classify, after], TABLE)?;
    Some(check(&input, &output).unwrap())
}

fn relaid_with_prefix() -> String {
    relaid("je").replace("jmp *%rax", "notrack jmp *%rax")
}

#[test]
fn a_taken_address_that_lost_its_mark_is_seen_where_tracking_is_claimed() {
    let ibt = note("1");
    let Some(report) = check_layout(TWICE, &relaid_with_prefix(), (&ibt, &ibt)) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let Some(report) = check_layout(&unmarked(), &relaid_with_prefix(), (&ibt, &ibt)) else { return };
    assert_eq!(kinds(&report), [ViolationKind::IndirectBranchTarget], "{}", report.summary(10));
    // Without the claim a jump in front does nothing.
    let Some(report) = check_layout(&unmarked(), &relaid_with_prefix(), ("", "")) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// The report where the input has a mark at a place of `classify`, and whether the program claims tracking.
fn check_mark_of_classify(place: &str, claims: bool) -> Option<Report> {
    let note = if claims { note("1") } else { String::new() };
    let classify = CLASSIFY.replace("jmp *%rax", "notrack jmp *%rax");
    let marked = classify.replace(place, &format!("{place}\n    endbr64"));
    assert_ne!(marked, classify, "{place}");
    let input = build(&[&marked, TWICE, UNUSED, &note], TABLE)?;
    let output = build(&[UNUSED, TWICE, &relaid_with_prefix(), &note], TABLE)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn a_mark_that_is_gone_is_seen_where_tracking_is_claimed() {
    let ibt = note("1");
    let unmarked = TWICE.replace("endbr64", "");
    let Some(report) = check_layout(&unmarked, &relaid_with_prefix(), (&ibt, &ibt)) else { return };
    assert_eq!(kinds(&report), [ViolationKind::IndirectBranchTarget], "{}", report.summary(10));
    let Some(report) = check_layout(&unmarked, &relaid_with_prefix(), ("", "")) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn a_function_that_only_calls_lead_to_needs_no_mark() {
    for claims in [true, false] {
        let Some(report) = check_mark_of_classify("classify:\n    .cfi_startproc", claims) else { return };
        assert!(report.is_ok(), "{claims}: {}", report.summary(10));
    }
}

/// Two dead functions: the first calls and jumps to `classify`, the second leads to the first, and `@NAMED@` is what it names. Both end with jumps that might be by tables, so that nobody guesses
/// what stands for them.
const DEAD: &str = r#"
.Ldead:
    .cfi_startproc
    endbr64
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %edi, %ebx
    call classify
    mov %ebx, %edi
    pop %rbx
    .cfi_def_cfa_offset 8
    test %eax, %eax
    je classify
    add $3, %edi
    jg 1f
    jmp classify
1:
    mov (%rsi), %rax
    jmp *%rax
    .cfi_endproc
.Lsecond:
    .cfi_startproc
    endbr64
    lea @NAMED@(%rip), %rsi
    sub $5, %edi
    jne .Ldead
    jmp *%rsi
    .cfi_endproc
"#;

/// The report where `classify` lost its mark, and dead code is this in the two files.
fn check_dead_code([before, after]: [&str; 2]) -> Option<Report> {
    let (ibt, start) = (note("1"), "classify:\n    .cfi_startproc");
    let marked = CLASSIFY.replace("jmp *%rax", "notrack jmp *%rax").replace(start, &format!("{start}\n    endbr64"));
    let input = build(&[&marked, TWICE, UNUSED, before, &ibt], TABLE)?;
    let output = build(&[UNUSED, after, TWICE, &relaid_with_prefix(), &ibt], TABLE)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn dead_code_may_call_and_jump_to_a_function_that_lost_its_mark() {
    let dead = DEAD.replace("@NAMED@", "twice");
    let Some(report) = check_dead_code([&dead, &dead]) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{}", report.summary(10));
    for lead in ["call classify", "je classify", "jmp classify"] {
        let wrong = dead.replace(lead, &lead.replace("classify", "twice"));
        let report = check_dead_code([&dead, &wrong]).unwrap();
        assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{lead}: {}", report.summary(10));
    }
}

/// Where a pointer still leads, a mark and a jump to what stands behind another mark: that is a second entry, which no pointer names.
#[test]
fn dead_code_may_lead_to_a_second_entry_of_a_function() {
    let dead = DEAD.replace("classify", "twice").replace("@NAMED@", "unused");
    let entries = TWICE.replace("    endbr64\n", "    endbr64\n    jmp .Lbody\n.Lanew:\n    endbr64\n.Lbody:\n");
    let ibt = note("1");
    let notrack = CLASSIFY.replace("jmp *%rax", "notrack jmp *%rax");
    let Some(input) = build(&[&notrack, TWICE, UNUSED, &dead, &ibt], TABLE) else { return };
    let compared = |dead: &str| {
        let output = build(&[UNUSED, dead, &entries, &relaid_with_prefix(), &ibt], TABLE).unwrap();
        check(&input, &output).unwrap()
    };
    let [call, branch, jump] = ["call", "je", "jmp"].map(|lead| format!("{lead} twice"));
    let anew =
        [&call, &branch, &jump].into_iter().fold(dead.clone(), |dead, lead| dead.replace(lead, &lead.replace("twice", ".Lanew")));
    assert_ne!(anew, dead);
    for right in [&dead, &anew] {
        let report = compared(right);
        assert!(report.is_ok() && report.stats.dropped_functions == 0, "{}", report.summary(10));
    }
    for lead in ["call", "je", "jmp"] {
        let wrong = anew.replace(&format!("{lead} .Lanew"), &format!("{lead} unused"));
        assert_ne!(wrong, anew);
        assert_eq!(kinds(&compared(&wrong)), [ViolationKind::Unexplained], "{lead}");
    }
}

#[test]
fn a_function_whose_address_dead_code_takes_needs_its_mark() {
    let dead = DEAD.replace("@NAMED@", "classify");
    let Some(report) = check_dead_code([&dead, &dead]) else { return };
    assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{}", report.summary(10));
}

#[test]
fn a_dead_function_keeps_its_mark() {
    let dead = DEAD.replace("@NAMED@", "twice");
    for function in [".Ldead", ".Lsecond"] {
        let start = format!("{function}:\n    .cfi_startproc\n");
        let wrong = dead.replace(&format!("{start}    endbr64\n"), &start);
        assert_ne!(wrong, dead);
        let Some(report) = check_dead_code([&dead, &wrong]) else { return };
        // The second, which nothing names, is one that was left out: what is there now begins behind its mark.
        let expected: &[ViolationKind] = if function == ".Ldead" { &[ViolationKind::Unexplained] } else { &[] };
        assert_eq!(kinds(&report), expected, "{function}: {}", report.summary(10));
        assert!(report.stats.dropped_functions > 0, "{function}");
    }
}

#[test]
fn a_function_that_unwinders_call_needs_its_mark() {
    let (ibt, start) = (note("1"), "classify:\n    .cfi_startproc");
    let unmarked = CLASSIFY.replace("jmp *%rax", "notrack jmp *%rax");
    let marked = unmarked.replace(start, &format!("{start}\n    endbr64"));
    let handled = TWICE.replace(".cfi_startproc", ".cfi_startproc\n    .cfi_personality 0x1b, classify");
    let Some(input) = build(&[&marked, &handled, UNUSED, &ibt], TABLE) else { return };
    let report = check(&input, &build(&[UNUSED, &handled, &marked, &ibt], TABLE).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let report = check(&input, &build(&[UNUSED, &handled, &unmarked, &ibt], TABLE).unwrap()).unwrap();
    assert_eq!(kinds(&report), [ViolationKind::IndirectBranchTarget], "{}", report.summary(10));
}

#[test]
fn where_a_call_may_return_twice_or_a_table_lead_a_mark_stays_if_tracking_is_claimed() {
    for place in ["call twice", ".Lone:", "9:\n    .cfi_def_cfa_offset 16"] {
        let Some(report) = check_mark_of_classify(place, true) else { return };
        assert!(!report.is_ok(), "{place}");
        let Some(report) = check_mark_of_classify(place, false) else { return };
        assert!(report.is_ok(), "{place}: {}", report.summary(10));
    }
}

#[test]
fn a_prefix_that_is_lost_is_seen() {
    let Some(report) = check_layout(TWICE, &relaid("je"), (&note("1"), &note("1"))) else { return };
    assert!(kinds(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

#[test]
fn another_property_note_is_seen() {
    for (before, after) in [("1", "0"), ("1", "3"), ("0", "1"), ("3", "1")] {
        let Some(report) = check_layout(TWICE, &relaid_with_prefix(), (&note(before), &note(after))) else { return };
        assert!(kinds(&report).contains(&ViolationKind::Header), "{before} to {after}: {}", report.summary(10));
    }
}
