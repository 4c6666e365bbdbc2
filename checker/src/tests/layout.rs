//! The same program in two layouts, made with the assembler: nothing of the producer is involved.

use std::process::Command;

use super::*;

/// Code of a program without libraries. The functions come in some order, then filler up to a fixed size, so that data stays.
const FRAME: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    lea handlers(%rip), %rbx
    mov $2, %edi
    call *(%rbx)
    mov %eax, %edi
    call classify
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

@FUNCTIONS@

    .org 0x400, 0xcc
@COPIES@

    .section .rodata, "a"
    .balign 16
message:
    .asciz "a string that nobody prints"
    .balign 4
table:
@TABLE@
    .data
    .balign 8
handlers:
    .quad twice
    .quad unused
"#;

pub(super) const TWICE: &str = r#"
    .type twice, @function
twice:
    .cfi_startproc
    endbr64
    lea (%rdi,%rdi), %eax
    ret
    .cfi_endproc
    .size twice, . - twice
"#;

pub(super) const UNUSED: &str = r#"
    .type unused, @function
unused:
    .cfi_startproc
    endbr64
    lea message(%rip), %rax
    ret
    .cfi_endproc
    .size unused, . - unused
"#;

/// As a compiler lays it out.
pub(super) const CLASSIFY: &str = r#"
    .type classify, @function
classify:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    cmp $4, %edi
    ja 9f
    lea table(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
.Lzero:
    mov $10, %ebx
    jmp 8f
    .balign 16
.Lone:
    lea message(%rip), %rbx
    test %edi, %edi
    jne 8f
.Ltwo:
    call twice
    mov %eax, %ebx
8:
    mov %ebx, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
9:
    .cfi_def_cfa_offset 16
    xor %ebx, %ebx
    jmp 8b
    .cfi_endproc
.Lend:
    .size classify, . - classify
"#;

/// Blocks in another order, a condition inverted, jumps added and removed, padding dropped.
const RELAID: &str = r#"
    .type classify, @function
classify:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    cmp $4, %edi
    jbe 7f
    xor %ebx, %ebx
8:
    mov %ebx, %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
.Ltwo:
    .cfi_def_cfa_offset 16
    call twice
    mov %eax, %ebx
    jmp 8b
.Lone:
    lea message(%rip), %rbx
    test %edi, %edi
    @CONDITION@ .Ltwo
    jmp 8b
7:
    lea table(%rip), %rdx
    movslq (%rdx,%rdi,4), %rax
    add %rdx, %rax
    jmp *%rax
.Lzero:
    mov $10, %ebx
    jmp 8b
    .cfi_endproc
.Lend:
    .size classify, . - classify
"#;

/// The third entry cannot be selected, as far as LLVM knows, and points behind the function.
pub(super) const TABLE: &str = ".long .Lzero - table, .Lone - table, .Lend - table, .Ltwo - table, .Lone - table\n";

fn text(functions: &[&str], table: &str, copies: &str) -> String {
    FRAME.replace("@FUNCTIONS@", &functions.concat()).replace("@TABLE@", table).replace("@COPIES@", copies)
}

pub(super) fn build(functions: &[&str], table: &str) -> Option<Vec<u8>> {
    build_with_copies(functions, table, "")
}

pub(super) fn build_with_copies(functions: &[&str], table: &str, copies: &str) -> Option<Vec<u8>> {
    link(&text(functions, table, copies), "-pie")
}

/// The same, linked in another way.
pub(super) fn build_with(functions: &[&str], table: &str, flags: &str) -> Option<Vec<u8>> {
    link(&text(functions, table, ""), flags)
}

/// The same at a fixed address.
pub(super) fn build_fixed(functions: &[&str], table: &str) -> Option<Vec<u8>> {
    link(&text(functions, table, ""), "-no-pie")
}

/// The text of a function with a frame description of its own.
pub(super) fn function(name: &str, body: &str) -> String {
    format!(
        "    .type {name}, @function\n{name}:\n    .cfi_startproc\n{body}\n    .cfi_endproc\n    .size {name}, . - {name}\n\n"
    )
}

pub(super) fn link(text: &str, kind: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.s"), folder.path().join("a"));
    // As compilers do it, and as outputs have to keep it.
    let aligned = text
        .lines()
        .map(|line| if line.contains(", @function") { format!("    .p2align 2\n{line}\n") } else { format!("{line}\n") });
    std::fs::write(&source, aligned.collect::<String>()).unwrap();
    let command = Command::new("gcc")
        .arg("-nostdlib")
        .args(kind.split(' '))
        .args(["-Wl,--eh-frame-hdr", "-o"])
        .arg(&program)
        .arg(&source)
        .output();
    let Ok(done) = command else {
        skipped("layouts made with the assembler", "no gcc");
        return None;
    };
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(std::fs::read(program).unwrap())
}

pub(super) fn relaid(condition: &str) -> String {
    RELAID.replace("@CONDITION@", condition)
}

pub(super) fn compare(functions: &[&str], table: &str) -> Option<Report> {
    let input = build(&[CLASSIFY, TWICE, UNUSED], TABLE)?;
    let output = build(functions, table)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn another_layout_of_the_same_program_corresponds() {
    let Some(report) = compare(&[UNUSED, TWICE, &relaid("je")], TABLE) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
    assert!(report.stats.moved_instructions > 20 && report.stats.jump_table_entries == 5, "{:?}", report.stats);
}

#[test]
fn a_branch_that_should_have_been_inverted_is_seen() {
    let Some(report) = compare(&[UNUSED, TWICE, &relaid("jne")], TABLE) else { return };
    assert!(!report.is_ok());
}

#[test]
fn a_jump_that_was_forgotten_is_seen() {
    let wrong = relaid("je").replace("mov %eax, %ebx\n    jmp 8b", "mov %eax, %ebx");
    let Some(report) = compare(&[UNUSED, TWICE, &wrong], TABLE) else { return };
    assert!(!report.is_ok());
}

#[test]
fn a_table_that_was_not_updated_is_seen() {
    let swapped = TABLE.replace(".Ltwo - table, .Lone", ".Lone - table, .Ltwo");
    let Some(report) = compare(&[UNUSED, TWICE, &relaid("je")], &swapped) else { return };
    assert!(!report.is_ok());
}

#[test]
fn another_unwind_rule_is_seen() {
    let wrong = relaid("je").replace(".Ltwo:\n    .cfi_def_cfa_offset 16", ".Ltwo:\n    .cfi_def_cfa_offset 8");
    let Some(report) = compare(&[UNUSED, TWICE, &wrong], TABLE) else { return };
    assert_eq!(kinds(&report), [ViolationKind::UnwindRow], "{}", report.summary(10));
}

#[test]
fn code_that_corresponds_to_nothing_is_seen() {
    let extra = format!("{UNUSED}\n    mov $5, %eax\n    ret\n");
    let Some(report) = compare(&[&extra, TWICE, &relaid("je")], TABLE) else { return };
    assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{}", report.summary(10));
}

/// Old text that stays, with a jump at the entry of what was copied; the copy has its own table, in an executable section.
fn guarded(copy: &str, table: &str) -> Option<Report> {
    let entry = "push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    cmp $4, %edi\n    ja 9f";
    let jump = ".byte 0xe9\n .cfi_def_cfa_offset 16\n .cfi_offset rbx, -16\n .long classify_copy - . - 4\n .byte 0x90";
    assert!(CLASSIFY.contains(entry));
    let rename = |text: &str| text.replace("classify", "classify_copy").replace("table", "table_copy").replace(".L", ".Lc");
    let copies = format!("    .section .copies, \"ax\"\n{}\n    .balign 4\ntable_copy:\n{}", rename(copy), rename(table));
    let input = build(&[CLASSIFY, TWICE, UNUSED], TABLE)?;
    let output = build_with_copies(&[&CLASSIFY.replace(entry, jump), TWICE, UNUSED], TABLE, &copies)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn a_copy_behind_a_jump_at_the_old_entry_corresponds() {
    let Some(report) = guarded(&relaid("je"), TABLE) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
    assert!(report.stats.moved_instructions > 10 && report.stats.jump_table_entries >= 5, "{:?}", report.stats);
}

#[test]
fn a_copied_table_with_a_wrong_entry_is_seen() {
    let swapped = TABLE.replace(".Ltwo - table, .Lone", ".Lone - table, .Ltwo");
    let Some(report) = guarded(&relaid("je"), &swapped) else { return };
    assert!(!report.is_ok());
}

/// `classify` with its shared tail copied behind the first case.
fn with_copied_tail() -> String {
    let jump = "mov $10, %ebx\n    jmp 8b";
    let tail = "mov $10, %ebx\n    mov %ebx, %eax\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret\n    .cfi_def_cfa_offset 16";
    let text = relaid("je");
    assert!(text.contains(jump));
    text.replace(jump, tail)
}

#[test]
fn a_tail_that_is_copied_behind_a_jump_corresponds() {
    let Some(report) = compare(&[UNUSED, TWICE, &with_copied_tail()], TABLE) else { return };
    assert!(report.is_ok(), "{}", report.summary(20));
}

#[test]
fn a_copied_tail_that_differs_is_seen() {
    let wrong = with_copied_tail().replace("mov $10, %ebx\n    mov %ebx, %eax", "mov $10, %ebx\n    mov %ecx, %eax");
    let Some(report) = compare(&[UNUSED, TWICE, &wrong], TABLE) else { return };
    assert!(kinds(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

#[test]
fn a_function_may_be_called_elsewhere_than_where_pointers_lead_if_it_is_the_same() {
    let second = TWICE.replace("twice", "again");
    let calls_the_other = relaid("je").replace("call twice", "call again");
    let Some(report) = compare(&[UNUSED, TWICE, &second, &calls_the_other], TABLE) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let other = second.replace("(%rdi,%rdi)", "(%rdi,%rdi,2)");
    let Some(report) = compare(&[UNUSED, TWICE, &other, &calls_the_other], TABLE) else { return };
    assert_eq!(kinds(&report), [ViolationKind::InstructionMismatch], "{}", report.summary(10));
}

/// An exception table for a function, of which what stands from `from` to `to` lands at `.Lpad`.
pub(super) fn exception_table(function: &str, [from, to]: [&str; 2], personality: &str) -> String {
    format!(
        "
    .pushsection .gcc_except_table, \"a\"
.Ltable:
    .byte 0xff, 0xff, 0x01
    .uleb128 .Ltableend - .Lsites
.Lsites:
    .uleb128 {from} - {function}
    .uleb128 {to} - {from}
    .uleb128 .Lpad - {function}
    .uleb128 0
.Ltableend:
    .popsection
    .cfi_personality {personality}
    .cfi_lsda 0x1b, .Ltable
"
    )
}
