//! Tables of which the output has more than one copy, and tables that more than one instruction names.

use super::layout::{TWICE, UNUSED, build, build_with_copies, function};
use super::*;

const CASES: [&str; 4] = ["    mov $10, %eax", "    mov $20, %eax", "    mov $30, %eax", "    mov $40, %eax"];

/// A function of four cases that reads the entry from one table, and adds the address of another or the same.
pub(super) fn switch(read: &str, jump: &str) -> String {
    let cases: String = CASES.iter().zip(0..).map(|(case, number)| format!(".L{number}:\n{case}\n    ret\n")).collect();
    function("classify", &format!("    cmp $3, %edi\n    ja 9f\n{read}{jump}{cases}9:  xor %eax, %eax\n    ret"))
}

/// Entries that count from `base`.
fn entries(base: &str) -> String {
    (0..4).map(|number| format!("    .long .L{number} - {base}\n")).collect()
}

/// A program whose second table is a copy that counts from itself.
fn with_copy(classify: &str) -> Option<Vec<u8>> {
    let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{}", entries("copy"));
    build_with_copies(&[classify, TWICE, UNUSED], &entries("table"), &copy)
}

pub(super) fn compare_with_copy(before: &str, after: &str) -> Option<Report> {
    Some(check(&build(&[before, TWICE, UNUSED], &entries("table"))?, &with_copy(after)?).unwrap())
}

pub(super) fn assert_same(before: &str, after: &str) {
    let Some(report) = compare_with_copy(before, after) else { return };
    assert!(report.is_ok(), "{after}\n{}", report.summary(10));
    assert!(report.stats.jump_table_entries >= 8, "{:?}", report.stats);
}

pub(super) fn assert_different(before: &str, after: &str) {
    let Some(report) = compare_with_copy(before, after) else { return };
    assert_eq!(kinds(&report), [ViolationKind::JumpTable], "{after}\n{}", report.summary(10));
}

fn read_from(table: &str) -> String {
    format!("    lea {table}(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n")
}

fn jump_by(table: &str) -> String {
    format!("    lea {table}(%rip), %rcx\n    add %rcx, %rax\n    jmp *%rax\n")
}

#[test]
fn an_entry_of_one_copy_that_is_added_to_the_address_of_another_is_seen() {
    let before = switch(&read_from("table"), &jump_by("table"));
    for (read, jump) in [("copy", "table"), ("table", "copy")] {
        assert_different(&before, &switch(&read_from(read), &jump_by(jump)));
    }
}

#[test]
fn a_copy_does_not_stand_for_a_table_that_the_program_may_write() {
    for (section, is_right) in [("    .section .rodata\n", true), ("    .data\n", false)] {
        let words = format!("{}{section}    .balign 4\nlabels:\n{}    .text\n", entries("table"), entries("labels"));
        let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{}", entries("copy"));
        let by = |table: &str| switch(&read_from(table), &jump_by(table));
        let Some(input) = build(&[&by("labels"), TWICE, UNUSED], &words) else { return };
        let output = build_with_copies(&[&by("copy"), TWICE, UNUSED], &words, &copy).unwrap();
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{section}: {}", report.summary(10));
    }
}

/// Two ways to a jump, each of which names a table; `read` is done on both, and `jump` where they have met.
pub(super) fn ways(tables: [&str; 2], read: &str, jump: &str) -> String {
    let way = |table: &str| format!("    lea {table}(%rip), %rdx\n{read}");
    switch(&format!("    test %esi, %esi\n    je 1f\n{}    jmp 2f\n1:\n{}2:\n", way(tables[0]), way(tables[1])), jump)
}

#[test]
fn each_way_to_a_jump_may_use_a_copy_of_its_own_where_what_is_added_is_what_the_entry_was_read_from() {
    const READ: &str = "    movslq (%rdx,%rdi,4), %rax\n";
    const ADD: &str = "    add %rdx, %rax\n    jmp *%rax\n";
    let both = format!("{READ}{ADD}");
    for tables in [["table", "copy"], ["copy", "table"]] {
        assert_same(&ways(["table"; 2], "", &both), &ways(tables, "", &both));
        assert_same(&ways(["table"; 2], READ, ADD), &ways(tables, READ, ADD));
        // The sum is made before the ways meet, or with another register.
        let sum = format!("{READ}    lea (%rdx,%rax), %rcx\n");
        assert_same(&ways(["table"; 2], &sum, "    jmp *%rcx\n"), &ways(tables, &sum, "    jmp *%rcx\n"));
    }
}

#[test]
fn filler_that_nothing_runs_into_stands_before_a_jump_and_changes_nothing() {
    const READ: &str = "    movslq (%rdx,%rdi,4), %rax\n";
    let tables = ["table", "copy"];
    for filler in ["int3\n    int3", "nopl 0(%rax)", "nop\n    int3\n    nopl 0(%rax)"] {
        let apart = format!("    jmp 3f\n    {filler}\n3:  jmp *%rax\n");
        assert_same(
            &ways(["table"; 2], READ, "    add %rdx, %rax\n    jmp *%rax\n"),
            &ways(tables, READ, &format!("    add %rdx, %rax\n{apart}")),
        );
        let wrong = |jump: &str| format!("    lea table(%rip), %rdx\n    add %rdx, %rax\n{jump}");
        assert_different(&ways(["table"; 2], READ, &wrong("    jmp *%rax\n")), &ways(tables, READ, &wrong(&apart)));
    }
}

#[test]
fn a_copy_whose_entry_is_read_on_one_way_and_whose_address_is_added_on_all_is_seen() {
    // The base is named anew where the ways meet, or changed behind the load.
    const READ: &str = "    movslq (%rdx,%rdi,4), %rax\n";
    let jump = |table: &str| format!("    lea {table}(%rip), %rdx\n    add %rdx, %rax\n    jmp *%rax\n");
    assert_different(&ways(["table"; 2], READ, &jump("table")), &ways(["table", "copy"], READ, &jump("table")));
    assert_different(&ways(["table"; 2], READ, &jump("table")), &ways(["copy", "copy"], READ, &jump("table")));
    let named_again = |table: &str| {
        let read = "    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    test %esi, %esi\n    je 1f\n";
        switch(read, &format!("    lea {table}(%rip), %rdx\n1:  add %rdx, %rax\n    jmp *%rax\n"))
    };
    assert_different(&named_again("table"), &named_again("copy"));
}

/// Two ways that have a jump each: the tables that they read from and that they add.
fn jumps(read: impl Fn(&str) -> String, tables: [[&str; 2]; 2]) -> String {
    let [one, other] = tables;
    let first = format!("    test %esi, %esi\n    je 1f\n{}{}1:\n", read(one[0]), jump_by(one[1]));
    switch(&(first + &read(other[0])), &jump_by(other[1]))
}

#[test]
fn a_copy_may_be_named_again_before_the_sum() {
    let same = [["table"; 2]; 2];
    let right = [["table", "table"], ["copy", "copy"]];
    let wrong = [[["table", "copy"], ["copy", "copy"]], [["table", "table"], ["copy", "table"]]];
    assert_same(&jumps(read_from, same), &jumps(read_from, right));
    wrong.iter().for_each(|&wrong| assert_different(&jumps(read_from, same), &jumps(read_from, wrong)));
    // As compilers do it that optimize nothing.
    let plain =
        |table: &str| format!("    lea 0(,%rdi,4), %rdx\n    lea {table}(%rip), %rax\n    mov (%rdx,%rax), %eax\n    cltq\n");
    assert_same(&jumps(plain, same), &jumps(plain, right));
    wrong.iter().for_each(|&wrong| assert_different(&jumps(plain, same), &jumps(plain, wrong)));
}

#[test]
fn behind_a_thunk_nothing_is_shown_of_copies() {
    let body = "    call 1f\n2:  pause\n    lfence\n    jmp 2b\n1:  mov %rax, (%rsp)\n    ret";
    let thunked = |read: &str, jump: &str| {
        let text = switch(read, &jump.replace("jmp *%rax", "jmp thunk"));
        text + &function("thunk", body)
    };
    let before = thunked(&read_from("table"), &jump_by("table"));
    assert_different(&before, &thunked(&read_from("copy"), &jump_by("table")));
}

/// Two comparisons before two instructions that name one table; nothing but the table leads to the last two cases.
fn two_bounds(bounds: [u32; 2], cases: [usize; 4]) -> Option<Vec<u8>> {
    let jump = "    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n";
    let way = |bound: u32| format!("    cmp ${bound}, %edi\n    ja 9f\n    lea table(%rip), %rdx\n{jump}");
    let cases: String = cases.iter().map(|&case| format!(".L{case}:\n{}\n    ret\n", CASES[case])).collect();
    let body =
        format!("    test %esi, %esi\n    je 1f\n{}1:\n{}{cases}9:  xor %eax, %eax\n    ret", way(bounds[0]), way(bounds[1]));
    build(&[&function("classify", &body), TWICE, UNUSED], &entries("table"))
}

#[test]
fn a_table_that_two_instructions_name_has_as_many_entries_as_the_longer_comparison_says() {
    for bounds in [[1, 3], [3, 1]] {
        let (Some(input), Some(moved)) = (two_bounds(bounds, [0, 1, 2, 3]), two_bounds(bounds, [1, 3, 2, 0])) else { return };
        let report = check(&input, &moved).unwrap();
        assert!(report.is_ok(), "{bounds:?}: {}", report.summary(10));
        // The entries lead where they led, and there stand each other's cases.
        let mut swapped = moved.clone();
        let find = |needle: [u8; 5]| moved.windows(5).position(|found| found == needle).unwrap();
        let (third, fourth) = (find([0xb8, 30, 0, 0, 0]), find([0xb8, 40, 0, 0, 0]));
        swapped.swap(third + 1, fourth + 1);
        assert!(!check(&input, &swapped).unwrap().is_ok(), "{bounds:?}");
    }
}

/// A switch of two cases that compare where the jump went with their own address; the second case has a copy.
fn hardened(second: &str, named: &str, copies: &str) -> Option<Vec<u8>> {
    let case = |label: &str, named: &str, number: u32| {
        format!("{label}:\n    lea {named}(%rip), %rcx\n    cmp %rcx, %rax\n    jne 8f\n    mov ${number}, %eax\n    ret\n")
    };
    let body = format!(
        "    cmp $1, %edi\n    ja 9f\n    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n{}{}{}8:  ud2\n\
         9:  xor %eax, %eax\n    ret",
        case(".Lone", ".Lone", 1),
        case(".Ltwo", named, 2),
        if copies.is_empty() { String::new() } else { case(copies, named, 2) },
    );
    build(&[&function("classify", &body), TWICE, UNUSED], &format!("    .long .Lone - table, {second} - table\n"))
}

#[test]
fn what_compares_its_address_stands_where_the_table_leads() {
    let (Some(input), Some(same)) = (hardened(".Ltwo", ".Ltwo", ""), hardened(".Lcopy", ".Lcopy", ".Lcopy")) else { return };
    let report = check(&input, &same).unwrap();
    assert!(report.is_ok() || kinds(&report) == [ViolationKind::Unexplained], "{}", report.summary(10));
    for (second, named) in [(".Lcopy", ".Ltwo"), (".Ltwo", ".Lcopy")] {
        let report = check(&input, &hardened(second, named, ".Lcopy").unwrap()).unwrap();
        assert!(!report.is_ok(), "{second} {named}");
    }
}

#[test]
fn another_width_scale_or_bound_of_a_table_is_seen() {
    let before = switch(&read_from("table"), &jump_by("table"));
    let Some(input) = build(&[&before, TWICE, UNUSED], &entries("table")) else { return };
    for (from, to) in [
        ("%rdi,4", "%rdi,8"),
        ("%rdi,4", "%rsi,4"),
        ("movslq", "movzwq"),
        ("$3, %edi", "$2, %edi"),
        ("$3, %edi", "$4, %edi"),
        ("ja", "jg"),
    ] {
        let wrong = before.replacen(from, to, 1);
        assert_ne!(wrong, before);
        let report = check(&input, &build(&[&wrong, TWICE, UNUSED], &entries("table")).unwrap()).unwrap();
        assert!(!report.is_ok(), "{to} instead of {from}");
    }
}

#[test]
fn what_is_read_beside_a_table_by_its_address_is_seen_where_a_copy_is_named() {
    const USE: &str = "    lea @TABLE@(%rip), %rdx\n@BEFORE@    movslq (%rdx,%rdi,4), %rax\n";
    const JUMP: &str = "    add %rdx, %rax\n    jmp *%rax\n";
    let named = |table: &str, before: &str, jump: &str| switch(&USE.replace("@TABLE@", table).replace("@BEFORE@", before), jump);
    // Moves, the frame, parts of a register, what is forgotten, and calls that overwrite it.
    let own = [
        "",
        "    mov %rdx, %rsi\n    mov %rsi, %rdx\n",
        "    mov %rdx, -16(%rsp)\n    mov $5, %edx\n    mov -16(%rsp), %rdx\n",
        "    push %rdx\n    pop %rdx\n",
        "    mov %rdx, %rsi\n    xor %rsi, %rsi\n    nopl 8(%rdx)\n",
        "    mov %rdx, %rsi\n    mov %esi, -16(%rsp)\n",
        "    mov %rdx, %rsi\n    cmovb %rsp, %rsi\n    mov 16(%rsi), %rsi\n",
        "    mov %rdx, %rsi\n    movq %xmm0, %rsi\n    mov 16(%rsi), %rsi\n",
        "    mov %rdx, %rsi\n    vmovq %xmm0, %rsi\n    mov 16(%rsi), %rsi\n",
        "    mov %rdx, %rsi\n    vmovq %xmm17, %rsi\n    mov 16(%rsi), %rsi\n",
        "    mov %rdx, %rsi\n    vmovd %xmm0, %esi\n    mov 16(%rsi), %rsi\n",
        "    mov %rdx, %rsi\n    kmovq %k1, %rsi\n    mov 16(%rsi), %rsi\n",
        // `{vex} vpdpbusd %ymm2, %ymm2, %ymm3`, which the disassembler does not know.
        "    .byte 0xc4, 0xe2, 0x6d, 0x50, 0xda\n",
        "    mov %rdx, %rsi\n    mov $5, %edx\n    mulx %rdi, %r8, %r9\n    mov %rsi, %rdx\n",
        "    mov %rdx, %rsi\n    mov %rdx, %r8\n    mov $5, %edx\n    mulx %rdi, %rsi, %rsi\n    mov 16(%rsi), %rsi\n    mov %r8, %rdx\n",
        "    mov %rdx, %rsi\n    mov %rdx, %r8\n    mov $5, %edx\n    mulx %rdi, %rsi, %rcx\n    mov 16(%rsi), %rsi\n    mov %r8, %rdx\n",
    ];
    for before in own {
        let Some(report) = compare_with_copy(&named("table", before, JUMP), &named("copy", before, JUMP)) else { return };
        assert!(report.is_ok(), "{before}\n{}", report.summary(10));
    }
    let others = [
        "    mov -8(%rdx), %esi\n",
        "    mov 16(%rdx), %rsi\n",
        "    mov %rdx, %rsi\n    movups 32(%rsi), %xmm1\n",
        "    lea 16(%rdx), %rsi\n",
        "    mov %rdx, -16(%rsp)\n    mov -16(%rsp), %rsi\n    mov (%rsi), %rsi\n",
        "    push %rdx\n    pop %rsi\n    mov (%rsi), %rsi\n",
        "    mov (%rdx,%rsi,2), %esi\n",
        "    mov %rdx, message(%rip)\n",
        "    cmp %rdx, %rsi\n",
        "    mov %rsp, %rsi\n    cmovb %rdx, %rsi\n",
        "    vpgatherdd %ymm1, (%rdx,%ymm2,4), %ymm3\n",
        "    vmovq %rdx, %xmm0\n",
        "    vmovq 16(%rdx), %xmm0\n",
        "    kmovq %rdx, %k1\n",
        // `{vex} vpdpbusd (%rdx), %ymm2, %ymm3`, and `movdiri %rdx, (%rdi)`.
        "    .byte 0xc4, 0xe2, 0x6d, 0x50, 0x1a\n",
        "    .byte 0x48, 0x0f, 0x38, 0xf9, 0x17\n",
        "    mulx %rdi, %r8, %r9\n",
        "    mov %rdx, %rsi\n    mov $5, %edx\n    mulx %rsi, %rsi, %rcx\n    mov %rsi, %rdx\n",
        "    mov %rdx, %rsi\n    mov $5, %edx\n    mulx 16(%rsi), %rsi, %rcx\n    mov %rsi, %rdx\n",
    ];
    for before in others {
        let Some(report) = compare_with_copy(&named("table", before, JUMP), &named("copy", before, JUMP)) else { return };
        assert!(kinds(&report).contains(&ViolationKind::JumpTable), "{before}\n{}", report.summary(10));
    }
    // Where the table leads to, the address is still there.
    let used_behind = |table: &str| named(table, "", JUMP).replacen("mov $20, %eax", "mov 16(%rdx), %eax", 1);
    let report = compare_with_copy(&used_behind("table"), &used_behind("copy")).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::JumpTable), "{}", report.summary(10));
}

#[test]
fn an_entry_may_wait_in_a_slot_and_be_added_to_the_address_of_its_table_from_there() {
    const READ: &str = "    lea @TABLE@(%rip), %rax\n    movslq (%rax,%rdi,4), %rax\n    mov @KEPT@, -16(%rsp)\n";
    const JUMP: &str = "    lea @TABLE@(%rip), %rax\n    add -16(%rsp), %rax\n    jmp *%rax\n";
    let named = |table: &str, kept: &str| {
        switch(&READ.replace("@TABLE@", table).replace("@KEPT@", kept), &JUMP.replace("@TABLE@", table))
    };
    let Some(report) = compare_with_copy(&named("table", "%rax"), &named("copy", "%rax")) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    // What was put there is no entry: the sum may be anything beside the table.
    let report = compare_with_copy(&named("table", "%rsi"), &named("copy", "%rsi")).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::JumpTable), "{}", report.summary(10));
    // The entry of one, added to the address of the other.
    let mixed = switch(&READ.replace("@TABLE@", "table").replace("@KEPT@", "%rax"), &JUMP.replace("@TABLE@", "copy"));
    assert_different(&named("table", "%rax"), &mixed);
}

/// The report of a live function that moved and names a copy of its table, of a dead one, which no symbol names, and of `unused`, which a pointer leads to; the table has the input's entries.
fn check_array_before(dead: [&str; 2], unused: [&str; 2]) -> Option<Report> {
    let live = |table: &str| switch(&read_from(table), "    add %rdx, %rax\n    jmp *%rax\n");
    let dead = dead.map(|body| format!("    .p2align 2\n    .cfi_startproc\n{body}\n    .cfi_endproc\n"));
    let input = build(&[&live("table"), TWICE, unused[0], &dead[0]], &entries("table"))?;
    let first = format!("    .p2align 2\n.Lfirst:\n{TWICE}");
    let stale: String = (0..4).map(|number| format!("    .long .Lfirst + (.L{number} - classify) - table\n")).collect();
    let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{}", entries("copy"));
    let output = build_with_copies(&[&first, unused[1], &live("copy"), "    .p2align 7\n", &dead[1]], &stale, &copy)?;
    Some(check(&input, &output).unwrap())
}

/// A search in an array that ends where the table begins, and a call of the table's function at last.
const COMPARES: &str = "    lea message(%rip), %rax\n    lea table(%rip), %rdx\n1:  cmp %rdx, %rax\n    je 2f\n    cmp %edi, (%rax)\n    je 2f\n    add $4, %rax\n    jmp 1b\n2:  jmp classify";
/// A jump through the table of another function.
const JUMPS: &str = "    mov %edi, %edi\n    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    test %esi, %esi\n    je 1f\n    jmp *%rax\n1:  jmp classify";

#[test]
fn a_function_may_compare_with_the_end_of_an_array_behind_which_a_table_was_that_moved() {
    // Where a jump of it goes, nobody can tell; and it is in one group with both.
    const VIRTUAL: &str = ".Lvirtual:\n    sub $24, %rsp\n    .cfi_def_cfa_offset 32\n    mov (%rdi), %rax\n    mov 8(%rax), %rdx\n    mov %rdx, 8(%rsp)\n    call twice\n    mov 8(%rsp), %rdx\n    add $24, %rsp\n    .cfi_def_cfa_offset 8\n    jmp *%rdx";
    let unused = |body: &str| function("unused", &format!("    endbr64\n    test %esi, %esi\n    je .Lvirtual\n{body}"));
    let dead = [VIRTUAL; 2];
    let Some(report) = check_array_before(dead, [&unused(COMPARES); 2]) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = unused(&COMPARES.replace("lea table", "lea copy"));
    assert!(!check_array_before(dead, [&unused(COMPARES), &wrong]).unwrap().is_ok());
    // One that jumps through it needs the entries, or runs on into what does.
    assert!(!check_array_before(dead, [&unused(JUMPS); 2]).unwrap().is_ok());
    let (sum, jump) = JUMPS.split_once("    test %esi, %esi").unwrap();
    let jump = format!("    test %esi, %esi{jump}");
    let runs_on = unused(&format!("    test %edi, %edi\n    js classify\n{sum}")) + &function("jumps", &jump);
    assert!(!check_array_before(dead, [&runs_on; 2]).unwrap().is_ok());
}

#[test]
fn a_dead_function_may_compare_with_the_end_of_an_array_behind_which_a_table_was_that_moved() {
    let check = |dead: [&str; 2]| check_array_before(dead, [UNUSED; 2]);
    let Some(report) = check([COMPARES; 2]) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    let wrong = check([COMPARES, &COMPARES.replace("lea table", "lea copy")]).unwrap();
    assert!(!wrong.is_ok(), "{:?}", wrong.stats);
    // One that jumps through it needs the entries.
    let report = check([JUMPS; 2]).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Unexplained), "{:?}\n{}", report.stats, report.summary(10));
}

/// Two functions of the same four cases, the second of which is dead and has no symbol; the table of each stands behind the other's in `table`.
fn alike(table: &str, [first, second]: [&str; 2], is_moved: bool) -> String {
    let head = |read: &str, table: &str| {
        format!("{read}    lea {table}(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n")
    };
    let cases = |label: &str| -> String {
        CASES.iter().zip(0..).map(|(case, number)| format!(".L{label}{number}:\n{case}\n    ret\n")).collect()
    };
    let behind = if is_moved { [second, first] } else { [first, second] };
    let live = function("classify", &(head("    mov %edi, %edi\n", table) + &cases(behind[0])));
    let dead = head("    mov (%rdi), %edi\n", &format!("{table}+16")) + &cases(behind[1]);
    format!("{live}    .p2align 5\n    .cfi_startproc\n{dead}    .cfi_endproc\n")
}

/// What stands at the end of a program's constants.
fn last_bytes_of_data(program: &[u8], count: usize) -> String {
    let image = Image::parse(program).unwrap();
    let data = image.section_bytes(image.section(".rodata").unwrap());
    data[data.len() - count..].iter().map(|byte| format!("    .byte {byte}\n")).collect()
}

/// The report of these two, in whose output the head of the first stands before the cases of the second: so it is where the word behind the first one's table seems to lead.
fn check_alike(orders: [[usize; 4]; 2]) -> Option<Report> {
    let all = |table: &str, orders: [[usize; 4]; 2]| -> String {
        let entries = |label: &'static str, base: String, order: [usize; 4]| {
            order.map(|number| format!("    .long .L{label}{number} - {base}\n")).concat()
        };
        entries("live", table.to_owned(), orders[0]) + &entries("dead", format!("({table}+16)"), orders[1])
    };
    let labels = ["live", "dead"];
    let input = build(&[&alike("table", labels, false), TWICE, UNUSED], &all("table", [[0, 1, 2, 3]; 2]))?;
    let same = last_bytes_of_data(&input, 32);
    let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{}", all("copy", orders));
    let output = build_with_copies(&[UNUSED, &alike("copy", labels, true), TWICE], &same, &copy)?;
    Some(check(&input, &output).unwrap())
}

#[test]
fn a_word_behind_a_copied_table_may_lead_to_what_resembles_a_dead_function() {
    let right = [0, 1, 2, 3];
    let Some(report) = check_alike([right; 2]) else { return };
    assert!(report.is_ok() && report.stats.dropped_functions == 0, "{:?}\n{}", report.stats, report.summary(10));
    for wrong in [[[0, 2, 1, 3], right], [right, [0, 2, 1, 3]], [right, [1, 1, 2, 3]]] {
        assert!(!check_alike(wrong).unwrap().is_ok(), "{wrong:?}");
    }
}

#[test]
fn a_mask_is_no_bound_of_what_is_added_to_what_it_leaves() {
    assert_bounds(&[
        ("    add %edi, %edi\n    and $2, %edi\n    and $1, %esi\n    add %esi, %edi\n", true),
        ("    and $1, %edi\n    lea (%rdi,%rsi), %eax\n    add %eax, %edi\n    mov %edi, %edi\n", true),
        ("    and $3, %edi\n    add $7, %esi\n", true),
        ("    add %esi, %edi\n    and $1, %edi\n", false),
    ]);
}

#[test]
fn a_comparison_is_no_bound_of_another_number_in_the_same_register() {
    let compare = "    cmp $1, %edi\n    ja 9f\n";
    assert_bounds(&[
        (&format!("{compare}    mov (%rsi), %edi\n"), true),
        (&format!("{compare}    lea (%rsi,%rsi), %edi\n"), true),
        (&format!("{compare}    mov $3, %edi\n"), true),
        // Another register is the index, which has a copy, or has none.
        ("    lea -1(%rdi), %ecx\n    xor %eax, %eax\n    cmp $1, %cl\n    ja 9f\n    movzbl %dil, %edi\n", true),
        ("    mov %edi, %ecx\n    xor %eax, %eax\n    cmp $1, %ecx\n    ja 9f\n", false),
        ("    mov %ecx, %edi\n    cmp $1, %ecx\n    ja 9f\n    movzbl %dil, %edi\n", false),
        (&format!("{compare}    mov %edi, %edi\n"), false),
        (&format!("{compare}    movzbl %dil, %edi\n"), false),
        (&format!("{compare}    mov %edi, %ecx\n    mov (%rsi), %edi\n    mov %ecx, %edi\n"), false),
        (compare, false),
    ]);
}

/// Where the fourth entry must correspond it may lead to code in another form in the output, which content does not tell.
fn assert_bounds(indexes: &[(&str, bool)]) {
    let program = |index: &str, fourth: &str| {
        let cases = [CASES[0], CASES[1], CASES[2], fourth];
        let cases: String = cases.iter().zip(0..).map(|(case, number)| format!(".L{number}:\n{case}\n    ret\n")).collect();
        let body = format!("{index}{}    add %rdx, %rax\n    jmp *%rax\n{cases}9:  mov %edi, %eax\n    ret", read_from("table"));
        build(&[&function("classify", &body), TWICE, UNUSED], &entries("table"))
    };
    let (long, short) = ("    mov $0, %eax", "    xor %eax, %eax");
    for &(index, is_certain) in indexes {
        let Some(input) = program(index, long) else { return };
        let report = check(&input, &program(index, short).unwrap()).unwrap();
        assert_eq!(report.is_ok(), is_certain, "{index}\n{}", report.summary(10));
        let report = check(&input, &program(index, "    mov $41, %eax").unwrap()).unwrap();
        assert!(!report.is_ok(), "{index}\n{}", report.summary(10));
    }
}

/// Linear decoding of the copy would go on into the code behind it, in the middle of an instruction.
#[test]
fn code_that_nothing_leads_to_begins_behind_a_copy_of_a_table() {
    let program = |functions: &[&str], table: &str, before: &str, named: &str| {
        let dead = format!("dead:\n    sub $16, %rsp\n    lea {named}(%rip), %rax\n    add $16, %rsp\n    ret\n");
        let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{before}{dead}");
        build_with_copies(functions, table, &copy)
    };
    let [plain, copied] = ["table", "copy"].map(|table| switch(&read_from(table), "    add %rdx, %rax\n    jmp *%rax\n"));
    let Some(input) = program(&[&plain, TWICE, UNUSED], &entries("table"), "    .fill 16, 1, 0x90\n", "twice") else { return };
    let same = last_bytes_of_data(&input, 16);
    for (named, is_right) in [("twice", true), ("unused", false)] {
        let output = program(&[UNUSED, &copied, TWICE], &same, &entries("copy"), named).unwrap();
        let report = check(&input, &output).unwrap();
        assert_eq!(report.is_ok(), is_right, "{named}\n{}", report.summary(10));
    }
}
