//! Tables whose entries are read in a callee, functions of which each block has a frame description, and calls that must return to a named place.

use super::layout::{TWICE, UNUSED, build, function};
use super::*;

const READ_ENTRY: &str = "    movslq (%rcx,%rax,4), %rax\n    add %rcx, %rax\n    ret";

/// A switch with two cases, in any order, through a table that goes to a call.
fn switch(table: &str, cases: [(&str, &str); 2]) -> String {
    let cases = cases.map(|(label, body)| format!(".L{label}:\n{body}\n    ret\n")).concat();
    format!(
        "    cmp $1, %edi\n    ja 9f\n    mov %edi, %eax\n    lea {table}(%rip), %rcx\n    call read_entry\n    jmp *%rax\n\
         {cases}9:  xor %eax, %eax\n    ret"
    )
}

/// A case of one switch calls the function with another one.
fn nested(inner: [(&str, &str); 2]) -> Option<Vec<u8>> {
    let classify = function("classify", &switch("table", [("a", "    call within"), ("b", "    mov $3, %eax")]));
    let within = function("within", &switch("inner", inner));
    let tables = ".long .La - table, .Lb - table\ninner: .long .Lc - inner, .Ld - inner\n";
    build(&[&classify, &within, &function("read_entry", READ_ENTRY), TWICE, UNUSED], tables)
}

#[test]
fn a_table_that_goes_to_a_call_behind_another_such_table_is_read() {
    let (five, six) = ("    mov $5, %eax", "    mov $6, %eax");
    let (Some(input), Some(moved)) = (nested([("c", five), ("d", six)]), nested([("d", six), ("c", five)])) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    // The words of the tables are the same, but those of the inner one lead to each other's cases.
    let Some(swapped) = nested([("c", six), ("d", five)]) else { return };
    let report = check(&input, &swapped).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::InstructionMismatch), "{}", report.summary(10));
}

/// A switch in a function of which each block has a frame description. Nothing but the table leads to the cases, of which two jump to each other.
fn parts(cases: [&str; 3], table: &str) -> Option<Vec<u8>> {
    parts_behind("cmp $2, %edi", cases, table)
}

fn parts_behind(comparison: &str, cases: [&str; 3], table: &str) -> Option<Vec<u8>> {
    parts_by("%rdi", comparison, cases, table)
}

fn parts_by(index: &str, comparison: &str, cases: [&str; 3], table: &str) -> Option<Vec<u8>> {
    let part = |body: &str| format!("    .cfi_startproc\n{body}\n    .cfi_endproc\n");
    let compare = part(&format!("classify:\n    {comparison}\n    ja .Lnone\n    .byte 0xe9\n    .long 0"));
    let jump = part(&format!("    lea table(%rip), %rdx\n    movslq (%rdx,{index},4), %rax\n    add %rdx, %rax\n    jmp *%rax"));
    let none = part(".Lnone:\n    xor %eax, %eax\n    ret");
    let text = [compare, jump, cases.map(part).concat(), none].concat();
    build(&[&text, TWICE, UNUSED], table)
}

const CASES: [&str; 3] = [
    ".Lx:\n    mov $1, %eax\n    dec %edi\n    jne .Ly\n    ret",
    ".Ly:\n    mov $2, %eax\n    dec %edi\n    jne .Lx\n    ret",
    ".Lz:\n    mov $3, %eax\n    ret",
];
const TABLE: &str = ".long .Lx - table, .Ly - table, .Lz - table\n";

#[test]
fn a_table_that_alone_leads_to_parts_with_frame_descriptions_of_their_own_is_read() {
    let [x, y, z] = CASES;
    let (Some(input), Some(moved)) = (parts(CASES, TABLE), parts([z, y, x], TABLE)) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    assert_eq!(report.stats.jump_table_entries, 3);
    let Some(wrong) = parts([z, y, x], ".long .Lx - table, .Lz - table, .Ly - table\n") else { return };
    assert!(!check(&input, &wrong).unwrap().is_ok());
}

/// A relinked file may have words behind a table that were another's, of a function that is gone.
#[test]
fn moves_between_a_comparison_and_its_branch_leave_the_bound() {
    let [x, y, z] = CASES;
    let compared = |behind: &str| {
        let comparison = format!("and $3, %edi\n    cmp $2, %edi\n    {behind}");
        // The word behind the table is the same number in both.
        let input = parts_behind(&comparison, CASES, &format!("{TABLE}    .long .Lx - table\n"))?;
        let moved = parts_behind(&comparison, [z, y, x], &format!("{TABLE}    .long .Lz - table\n"))?;
        Some(check(&input, &moved).unwrap())
    };
    for behind in ["", "mov %rsi, -8(%rsp)", "mov %esi, %ecx\n    lea 4(%rsi), %eax", "movb $1, -8(%rsp)"] {
        let Some(report) = compared(behind) else { return };
        assert!(report.is_ok(), "{behind}\n{}", report.summary(10));
    }
}

#[test]
fn strings_stored_between_a_comparison_and_its_branch_leave_the_bound_of_another_register() {
    let [x, y, z] = CASES;
    for (index, name, is_right) in [("%rsi", "%esi", true), ("%rdi", "%edi", false), ("%rcx", "%ecx", false)] {
        let comparison = format!("cmp $2, {name}\n    rep stosq");
        let words = |behind: &str| format!("{TABLE}    .long {behind} - table\n");
        let input = parts_by(index, &comparison, CASES, &words(".Lx"));
        let Some((input, moved)) = input.zip(parts_by(index, &comparison, [z, y, x], &words(".Lz"))) else { return };
        let report = check(&input, &moved).unwrap();
        assert_eq!(report.is_ok(), is_right, "{index}\n{}", report.summary(10));
    }
}

/// Looks where the call returned to, and compares that with where it should have.
fn hardened(call: &str) -> Option<Vec<u8>> {
    let body = format!(
        "    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n{call}\n1:  mov -8(%rsp), %rcx\n    lea 1b(%rip), %rdx\n    cmp %rdx, %rcx\n    jne 2f\n\
         \x20   add $8, %rsp\n    .cfi_def_cfa_offset 8\n    ret\n2:  ud2\n"
    );
    build(&[&function("classify", &body), TWICE, UNUSED], ".long 0\n")
}

#[test]
fn a_call_returns_to_the_place_that_the_input_names() {
    let (Some(input), Some(moved)) = (hardened("    call twice"), hardened("    nop\n    call twice")) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    // Behind the call stands a jump to the named place.
    let Some(wrong) = hardened("    call twice\n    jmp 1f") else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
    // The callee's body stands there, and below the stack whatever was there before.
    let Some(wrong) = hardened("    lea (%rdi,%rdi), %eax") else { return };
    assert!(!check(&input, &wrong).unwrap().is_ok());
}

/// The same place is where a branch leads to.
#[test]
fn a_call_may_return_to_a_jump_to_a_label_that_the_input_names_and_leaves_to() {
    let halting = |behind: &str| {
        let body = format!(
            "    lea 1f(%rip), %rdx\n    mov %rdx, (%rsi)\n    test %rdi, %rdi\n    je 1f\n    sub $8, %rsp\n    .cfi_def_cfa_offset 16\n    call twice\n\
             \x20   add $8, %rsp\n    .cfi_def_cfa_offset 8\n    test %eax, %eax\n    jne 2f\n    call twice\n{behind}1:  xor %eax, %eax\n2:  ret\n"
        );
        build(&[&function("classify", &body), TWICE, UNUSED], ".long 0\n")
    };
    let (Some(input), Some(moved)) = (halting(""), halting("    jmp 1f\n")) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// Nothing says how many cases there are: each counts because nothing else leads to it, though one ends with a call of a function that others know and stands right behind the function.
#[test]
fn a_part_that_a_table_alone_leads_to_may_end_with_a_call_of_a_known_function() {
    let z = ".Lz:\n    .cfi_def_cfa_offset 16\n    mov $3, %edi\n    jmp twice";
    let [x, y] = [".Lx:\n    mov $1, %eax\n    dec %edi\n    jne .Ly\n    jmp .Lnone", CASES[1]];
    let build = |cases, table| parts_behind("cmp %esi, %edi", cases, table);
    let (Some(input), Some(moved)) = (build([x, y, z], TABLE), build([z, y, x], TABLE)) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    assert_eq!(report.stats.jump_table_entries, 3);
    let Some(wrong) = build([z, y, x], ".long .Lx - table, .Ly - table, .Lx - table\n") else { return };
    assert!(!check(&input, &wrong).unwrap().is_ok());
}

/// A switch whose comparison is elsewhere, and behind whose table words are that were a table once: they lead to instructions, but to others in the two files.
fn apart(bodies: [&str; 2], jump: &str) -> Option<Vec<u8>> {
    let [first, second] = bodies;
    let body = format!(
        "    cmp $1, %edi\n    {jump}\n.Lnone:\n    xor %eax, %eax\n    ret\n.Lswitch:\n    mov %edi, %eax\n    lea table(%rip), %rdx\n    movslq (%rdx,%rax,4), %rax\n\
         \x20   add %rdx, %rax\n    jmp *%rax\n{first}\n    ret\n{second}\n    ret\n    .org classify + 0x60, 0xcc\n"
    );
    build(
        &[&function("classify", &body), TWICE, UNUSED],
        ".long .La - table, .Lb - table, classify - table, classify + 3 - table, classify + 5 - table\n",
    )
}

#[test]
fn a_comparison_from_which_one_jump_leads_to_the_switch_bounds_its_table() {
    let (a, b) = (".La:\n    mov $1, %eax\n    dec %edi", ".Lb:\n    mov $2, %eax\n    inc %edi");
    let (Some(input), Some(moved)) = (apart([a, b], "jbe .Lswitch"), apart([b, a], "jbe .Lswitch")) else { return };
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    assert_eq!(report.stats.jump_table_entries, 2);
    // By the other branch the numbers above the bound come to the table: all its words count.
    let Some(input) = apart([a, b], "ja .Lswitch") else { return };
    assert_eq!(check(&input, &input).unwrap().stats.jump_table_entries, 5);
}

/// A table that is named before a loop: the jumps that add its address say how many entries it has.
#[test]
fn a_table_that_is_named_before_a_loop_has_as_many_entries_as_its_jumps_compare_with() {
    let looping = |jump: &str| {
        let body = format!(
            "    lea table(%rip), %rdx\n1:  dec %esi\n    js .Lb\n    cmp $1, %edi\n    {jump} .Lb\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n\
             .La:\n    inc %edi\n    jmp 1b\n.Lb:\n    mov %edi, %eax\n    ret\n"
        );
        let table = ".long .La - table, .Lb - table, classify - table, classify + 7 - table\n";
        build(&[&function("classify", &body), TWICE, UNUSED], table)
    };
    for (jump, entries) in [("ja", 2), ("jg", 4)] {
        let Some(input) = looping(jump) else { return };
        assert_eq!(check(&input, &input).unwrap().stats.jump_table_entries, entries, "{jump}");
    }
}

/// The comparison of one switch says nothing of another one's table, of which the address is in the same register, though its jump does not stand right behind the sum.
#[test]
fn a_jump_behind_moves_adds_the_address_of_its_own_table() {
    let two = |between: &str| {
        let body = format!(
            "    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n{between}    jmp *%rax\n\
             .La:\n    cmp $1, %esi\n    ja .Lb\n    lea table+16(%rip), %rdx\n    movslq (%rdx,%rsi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n\
             .Lb:\n    mov %edi, %eax\n    ret\n.Lc:\n    mov %esi, %eax\n    ret\n"
        );
        let table = ".long .La - table, .Lb - table, .Lc - table, .Lb - table, .Lb - table - 16, .Lc - table - 16\n";
        build(&[&function("classify", &body), TWICE, UNUSED], table)
    };
    for between in ["", "    mov %esi, %ecx\n", "    lea 1(%rsi), %ecx\n    mov %ecx, (%rsp)\n"] {
        let Some(input) = two(between) else { return };
        assert_eq!(check(&input, &input).unwrap().stats.jump_table_entries, 6, "{between}");
    }
}
