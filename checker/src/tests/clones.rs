//! Clones of which the proof needs more than constants in straight code: jump tables, loops that begin decided, addresses that are not zero, string instructions, addresses of code.

use super::contexts::{clone_of_work, function, program};
use super::*;

pub(super) fn compare(input: (&str, &str), output: (&str, &str)) -> Option<Report> {
    let (before, after) = (program(input.0, input.1, "0")?, program(output.0, output.1, "0")?);
    Some(check(&before, &after).unwrap())
}

fn assert_same(input: (&str, &str), output: (&str, &str)) {
    let Some(report) = compare(input, output) else { return };
    assert!(report.is_ok(), "{input:?} became {output:?}: {}", report.summary(10));
    assert!(report.stats.entered_with_constants > 0, "{:?}", report.stats);
}

fn assert_different(input: (&str, &str), output: (&str, &str)) {
    let Some(report) = compare(input, output) else { return };
    assert!(!report.is_ok(), "{input:?} became {output:?}");
}

/// A call of `pick`, and of what stands for it.
pub(super) fn calls(arguments: &str) -> (String, String) {
    let call = |name: &str| format!("{arguments}; mov %rbx, %rsi; call {name}");
    (call("pick"), call(".Lclone"))
}

/// That `pick` may become a clone where it is called with these arguments, and none of the wrong ones.
fn assert_clone(arguments: &str, pick: &str, right: &str, wrong: &[&str]) {
    let (input, output) = calls(arguments);
    let original = function("pick", pick);
    let with = |clone: &str| format!("{original}{}", function(".Lclone", clone));
    assert_same((&input, &original), (&output, &with(right)));
    for wrong in wrong {
        assert_different((&input, &original), (&output, &with(wrong)));
    }
}

fn assert_not_for(arguments: &str, pick: &str, clone: &str) {
    let (input, output) = calls(arguments);
    let original = function("pick", pick);
    assert_different((&input, &original), (&output, &format!("{original}{}", function(".Lclone", clone))));
}

/// A function that jumps through a table, which lies in `section`.
fn switch(name: &str, table: &str, bodies: [&str; 4], order: [usize; 4], section: &str) -> String {
    let label = |index: usize| format!("{name}{index}");
    let mut body =
        format!("and $3, %esi; lea {table}(%rip), %rdx; movslq (%rdx,%rsi,4), %rax; add %rdx, %rax; notrack jmp *%rax");
    for (index, text) in bodies.iter().enumerate() {
        body += &format!("; {}: {text}; ret", label(index));
    }
    let entries: String = order.iter().map(|&index| format!("    .long {} - {table}\n", label(index))).collect();
    format!("{}    {section}\n    .balign 4\n{table}:\n{entries}    .text\n", function(name, &body))
}

pub(super) const ORIGINAL: [&str; 4] = ["lea 1(%rdi), %eax", "lea 2(%rdi), %eax", "lea 4(%rdi), %eax", "xor %eax, %eax"];
pub(super) const FOR_5: [&str; 4] = ["mov $6, %eax", "mov $7, %eax", "mov $9, %eax", "xor %eax, %eax"];

fn original() -> String {
    switch("pick", ".Ltable", ORIGINAL, [0, 1, 2, 3], ".section .rodata")
}

fn with_clone(bodies: [&str; 4], order: [usize; 4]) -> String {
    original() + &switch(".Lclone", ".Lcopied", bodies, order, "")
}

#[test]
fn what_is_known_goes_on_behind_a_jump_through_a_copied_table() {
    let (input, output) = calls("mov $5, %edi");
    let original = original();
    assert_same((&input, &original), (&output, &with_clone(FOR_5, [0, 1, 2, 3])));
    for wrong in 0..4 {
        let mut bodies = FOR_5;
        bodies[wrong] = "mov $8, %eax";
        assert_different((&input, &original), (&output, &with_clone(bodies, [0, 1, 2, 3])));
    }
    for order in [[1, 0, 2, 3], [0, 1, 3, 2], [0, 1, 2, 2]] {
        assert_different((&input, &original), (&output, &with_clone(FOR_5, order)));
    }
}

#[test]
fn behind_a_jump_through_a_table_no_more_is_known_than_at_the_call() {
    let original = original();
    for arguments in ["mov $6, %edi", "mov %ebx, %edi"] {
        let (input, output) = calls(arguments);
        assert_different((&input, &original), (&output, &with_clone(FOR_5, [0, 1, 2, 3])));
    }
}

/// A function that begins with some code, which leaves the table's address in `rdx` or goes on with `rest`, and then jumps to one of these bodies.
fn jumping(name: &str, beginning: &str, rest: &str, results: [&str; 4]) -> String {
    let mut body = format!("{}; {rest}", beginning.replace('@', name));
    for (index, text) in results.iter().enumerate() {
        body += &format!("; {name}{index}: {text}; ret");
    }
    function(name, &body)
}

pub(super) const JUMP: &str = "and $3, %esi; movslq (%rdx,%rsi,4), %rax; add %rdx, %rax; jmp *%rax";

pub(super) fn table(table: &str, name: &str, order: [usize; 4]) -> String {
    let entries: String = order.iter().map(|index| format!("    .long {name}{index} - {table}\n")).collect();
    format!("    .balign 4\n{table}:\n{entries}")
}

/// The same function and a clone for 5 that begins otherwise and has these tables.
fn assert_jumps(beginnings: (&str, &str), rests: (&str, &str), tables: &[(&str, [usize; 4])], is_right: bool) {
    let rodata = format!("    .section .rodata\n{}    .text\n", table(".Ltable", "pick", [0, 1, 2, 3]));
    let original = jumping("pick", beginnings.0, rests.0, ORIGINAL) + &rodata;
    let clone = jumping(".Lclone", beginnings.1, rests.1, FOR_5);
    let copies: String = tables.iter().map(|&(name, order)| table(name, ".Lclone", order)).collect();
    let (input, output) = calls("mov $5, %edi");
    let more = format!("{original}{clone}{copies}");
    let Some(report) = compare((&input, &original), (&output, &more)) else { return };
    assert_eq!(report.is_ok(), is_right, "{beginnings:?} {tables:?}: {}", report.summary(10));
}

const IN_ORDER: [usize; 4] = [0, 1, 2, 3];
const SWAPPED: [usize; 4] = [1, 0, 2, 3];

#[test]
fn a_table_that_is_named_on_two_ways_is_followed_if_it_is_the_same_on_both() {
    let two = |first: &str, second: &str| {
        format!("test %rsi, %rsi; js @8; lea {first}(%rip), %rdx; jmp @9; @8: nop; lea {second}(%rip), %rdx; @9: nop")
    };
    let input = two(".Ltable", ".Ltable");
    for (order, is_right) in [(IN_ORDER, true), (SWAPPED, false)] {
        assert_jumps((&input, &two(".Lone", ".Lone")), (JUMP, JUMP), &[(".Lone", order)], is_right);
    }
    // Of two copies nobody sees at the jump which one it is.
    for order in [IN_ORDER, SWAPPED] {
        assert_jumps((&input, &two(".Lone", ".Ltwo")), (JUMP, JUMP), &[(".Lone", IN_ORDER), (".Ltwo", order)], false);
    }
    assert_jumps((&input, &two(".Lone", ".Ltable")), (JUMP, JUMP), &[(".Lone", IN_ORDER)], false);
}

#[test]
fn an_entry_of_one_table_added_to_the_address_of_another_is_wrong() {
    let name = |first: &str, second: &str| format!("lea {first}(%rip), %rdx; lea {second}(%rip), %rcx");
    let jump = "and $3, %esi; movslq (%rdx,%rsi,4), %rax; add %rcx, %rax; jmp *%rax";
    let input = name(".Ltable", ".Ltable");
    let tables = [(".Lone", IN_ORDER), (".Ltwo", IN_ORDER)];
    assert_jumps((&input, &name(".Lone", ".Lone")), (jump, jump), &tables[..1], true);
    assert_jumps((&input, &name(".Lone", ".Ltwo")), (jump, jump), &tables, false);
    assert_jumps((&input, &name(".Lone", ".Ltable")), (jump, jump), &tables[..1], false);
    assert_jumps((&input, &name(".Ltable", ".Lone")), (jump, jump), &tables[..1], false);
}

#[test]
fn an_address_that_arithmetic_makes_is_no_table() {
    let input = "lea .Ltable(%rip), %rdx";
    let right = "lea .Lone(%rip), %rdx";
    assert_jumps((input, right), (JUMP, JUMP), &[(".Lone", IN_ORDER)], true);
    for made in [
        "lea .Lone(%rip), %rcx; lea .Ltable-16(%rip), %rdx; add $16, %rdx",
        "lea .Lone(%rip), %rcx; lea .Ltable(%rip), %rdx",
        "lea .Lone+4(%rip), %rdx; sub $4, %rdx",
    ] {
        assert_jumps((input, made), (JUMP, JUMP), &[(".Lone", IN_ORDER)], false);
    }
}

#[test]
fn another_index_into_a_table_is_wrong() {
    let input = "lea .Ltable(%rip), %rdx";
    let right = "lea .Lone(%rip), %rdx";
    for (from, to) in [
        ("and $3", "and $1"),
        ("(%rdx,%rsi,4)", "4(%rdx,%rsi,4)"),
        ("(%rdx,%rsi,4)", "(%rdx,%rsi,2)"),
        ("(%rdx,%rsi,4)", "(%rdx,%rdi,4)"),
        ("add %rdx", "sub %rdx"),
        ("and $3, %esi;", "and $3, %esi; inc %esi; and $3, %esi;"),
    ] {
        assert_jumps((input, right), (JUMP, &JUMP.replace(from, to)), &[(".Lone", IN_ORDER)], false);
    }
    // Nor is it an entry where both have something else.
    for (from, to) in
        [("(%rdx,%rsi,4)", "4(%rdx,%rsi,4)"), ("(%rdx,%rsi,4)", "(%rdx,%rsi,2)"), ("(%rdx,%rsi,4)", "1(%rdx,%rsi,4)")]
    {
        let jump = JUMP.replace(from, to);
        assert_jumps((input, right), (&jump, &jump), &[(".Lone", IN_ORDER)], false);
    }
}

#[test]
fn a_table_whose_address_others_get_is_not_followed() {
    let (input, right) = ("lea .Ltable(%rip), %rdx", "lea .Lone(%rip), %rdx");
    let stored = format!("mov %rdx, pointers(%rip); {JUMP}");
    assert_jumps((input, right), (&stored, &stored), &[(".Lone", IN_ORDER)], false);
    // Nor where control may come back with the address in a register.
    let sometimes = |first: &str, then: &str| format!("{first}; test %rsi, %rsi; js @8; {then}; @8: nop");
    assert_jumps((&sometimes(input, "nop"), &sometimes(right, "nop")), (JUMP, JUMP), &[(".Lone", IN_ORDER)], true);
    assert_jumps((&sometimes(input, "int3"), &sometimes(right, "int3")), (JUMP, JUMP), &[(".Lone", IN_ORDER)], false);
    let handlers = format!(".cfi_personality 0x9b, pointers; .cfi_lsda 0x1b, .Lhandlers; {input}");
    let handlers_of_clone = format!(".cfi_personality 0x9b, pointers; .cfi_lsda 0x1b, .Lhandlers; {right}");
    let no_handlers = "nop; .section .gcc_except_table, \"a\"; .Lhandlers: .byte 0xff, 0xff, 1, 0; .text; nop";
    let jump = format!("{JUMP}; {no_handlers}");
    assert_jumps((input, right), (&jump, JUMP), &[(".Lone", IN_ORDER)], true);
    assert_jumps((&handlers, &handlers_of_clone), (&jump, JUMP), &[(".Lone", IN_ORDER)], false);
    // Nor one that comes from the callers.
    let original =
        jumping("pick", "nop", JUMP, ORIGINAL) + "    .section .rodata\n" + &table(".Ltable", "pick", IN_ORDER) + "    .text\n";
    let more = jumping(".Lclone", "nop", JUMP, FOR_5) + &table(".Lone", ".Lclone", IN_ORDER);
    let call = |table: &str, name: &str| format!("mov $5, %edi; lea {table}(%rip), %rdx; mov %rbx, %rsi; call {name}");
    assert_different((&call(".Ltable", "pick"), &original), (&call(".Lone", ".Lclone"), &format!("{original}{more}")));
    assert_different((&call(".Ltable", "pick"), &original), (&call(".Ltable", ".Lclone"), &format!("{original}{more}")));
}

#[test]
fn a_jump_through_a_table_may_be_gone_where_the_entry_is_known() {
    let bodies = ["lea 1(%rsi), %eax", "lea 2(%rsi), %eax", "lea 4(%rsi), %eax", "xor %eax, %eax"];
    let pick = jumping("pick", "lea .Ltable(%rip), %rdx", &JUMP.replace("rsi", "rdi").replace("esi", "edi"), bodies)
        + "    .section .rodata\n"
        + &table(".Ltable", "pick", [0, 1, 2, 2])
        + "    .text\n";
    for (argument, right) in
        [("mov $0, %edi", 0), ("mov $2, %edi", 2), ("mov $3, %edi", 2), ("mov $5, %edi", 1), ("mov %ebx, %edi", 4)]
    {
        for (index, body) in bodies.iter().enumerate() {
            // Nobody reads where the table was.
            let (input, output) = calls(argument);
            let (input, output) = (input + "; xor %edx, %edx", output + "; xor %edx, %edx");
            let more = format!("{pick}{}", function(".Lclone", &format!("{body}; ret")));
            let Some(report) = compare((&input, &pick), (&output, &more)) else { return };
            assert_eq!(report.is_ok(), index == right, "{argument}, {body}: {}", report.summary(10));
        }
    }
}

#[test]
fn a_branch_that_is_decided_may_be_gone_before_a_loop_that_begins_decided() {
    let pick = "xor %eax, %eax; test %edi, %edi; je 2f; xor %ecx, %ecx; 1: cmp %edi, %ecx; jge 2f; add %esi, %eax; inc %ecx; jmp 1b; 2: ret";
    let clone = |count: u32, step: &str| {
        format!("xor %eax, %eax; xor %ecx, %ecx; mov ${count}, %edi; 1: cmp %edi, %ecx; jge 2f; {step}; inc %ecx; jmp 1b; 2: ret")
    };
    let (right, count, step) = (clone(100, "add %esi, %eax"), clone(99, "add %esi, %eax"), clone(100, "add %ecx, %eax"));
    let (late, inverted) = (right.replace("jge", "jg"), right.replace("jge", "jl"));
    // What is decided when it begins is not so the next time.
    let once = "mov %esi, %eax; ret";
    assert_clone(
        "mov $100, %edi",
        pick,
        &right,
        &[&count, &clone(101, "add %esi, %eax"), &step, &late, &inverted, once, "xor %eax, %eax; ret"],
    );
    assert_not_for("mov $0, %edi", pick, &clone(100, "add %esi, %eax"));
    assert_not_for("mov %ebx, %edi", pick, &clone(100, "add %esi, %eax"));
    // All of it may be unrolled, each time once.
    let unrolled = |times: usize| format!("xor %eax, %eax; {}ret", "add %esi, %eax; ".repeat(times));
    assert_clone("mov $3, %edi", pick, &unrolled(3), &[&unrolled(2), &unrolled(4), &unrolled(0)]);
}

#[test]
fn the_address_of_something_in_the_image_is_not_zero() {
    let pick = "test %rdi, %rdi; je 1f; lea 5(%rsi), %eax; ret; 1: lea 7(%rsi), %eax; ret";
    let (set, unset) = ("lea 5(%rsi), %eax; ret", "lea 7(%rsi), %eax; ret");
    assert_clone("lea pointers(%rip), %rdi", pick, set, &[unset]);
    assert_clone("xor %edi, %edi", pick, unset, &[set]);
    assert_not_for("mov %rbx, %rdi", pick, set);
    // Nobody knows what is far from it, nor half of an address.
    assert_not_for("lea pointers+0x10000000(%rip), %rdi", pick, set);
    assert_not_for("lea pointers(%rip), %rdi", &pick.replace("%rdi, %rdi", "%edi, %edi"), set);
    // What a word holds may be zero, and so may the difference of two addresses.
    assert_not_for("mov pointers(%rip), %rdi", pick, set);
    assert_not_for("lea pointers(%rip), %rdi; lea pointers(%rip), %rax; sub %rax, %rdi", pick, set);
    assert_not_for("lea pointers(%rip), %rdi; and $7, %edi", pick, set);
    assert_not_for("lea pointers(%rip), %rdi; sub %rbx, %rdi", pick, set);
}

#[test]
fn the_last_bit_that_a_shift_of_a_constant_moves_out_is_known() {
    let pick = "shr $1, %edi; jc 1f; lea 5(%rsi), %eax; ret; 1: lea 7(%rsi), %eax; ret";
    assert_clone("mov $5, %edi", pick, "lea 7(%rsi), %eax; ret", &["lea 5(%rsi), %eax; ret"]);
    assert_clone("mov $6, %edi", pick, "lea 5(%rsi), %eax; ret", &["lea 7(%rsi), %eax; ret"]);
    let left = pick.replace("shr $1", "shl $2");
    assert_clone("mov $0x40000000, %edi", &left, "lea 7(%rsi), %eax; ret", &["lea 5(%rsi), %eax; ret"]);
    assert_clone("mov $0x80000000, %edi", &left, "lea 5(%rsi), %eax; ret", &["lea 7(%rsi), %eax; ret"]);
    let signed = pick.replace("shr $1", "sar $2");
    assert_clone("mov $-2, %edi", &signed, "lea 7(%rsi), %eax; ret", &["lea 5(%rsi), %eax; ret"]);
    assert_clone("mov $-4, %edi", &signed, "lea 5(%rsi), %eax; ret", &["lea 7(%rsi), %eax; ret"]);
    // A shift by nothing leaves it as it was, and one by the whole size leaves nobody knows what.
    for (shift, value) in [("shr $8, %dil", 0x80), ("shl $8, %dil", 1), ("shr $9, %dil", 0xff), ("shr $32, %edi", 1)] {
        let pick = pick.replace("shr $1, %edi", &format!("cmp %rsi, %rdx; {shift}"));
        for clone in ["lea 5(%rsi), %eax; ret", "lea 7(%rsi), %eax; ret"] {
            assert_not_for(&format!("mov ${value}, %edi"), &pick, clone);
        }
    }
}

#[test]
fn copying_a_string_reads_no_flags_but_leaves_them_to_be_read() {
    let copy = "lea pointers(%rip), %rdi; lea pointers(%rip), %rsi; mov $1, %ecx; rep movsb";
    let pick = format!("mov %rsi, %rax; cmp $1, %edi; jne 1f; {copy}; ret; 1: add %edi, %eax; ret");
    assert_clone("mov $1, %edi", &pick, &format!("mov %rsi, %rax; {copy}; ret"), &[&format!("mov %rdi, %rax; {copy}; ret")]);
    let read = pick.replace("movsb", "movsb; adc $0, %eax");
    assert_not_for("mov $1, %edi", &read, &format!("mov %rsi, %rax; add $-1, %esi; {copy}; adc $0, %eax; ret"));
}

#[test]
fn a_clone_may_name_code_that_it_is_passed_the_address_of() {
    let pick = "cmp %rdi, %rdx; mov %rsi, %rdi; sete %al; movzx %al, %eax; ret";
    let clone = |code: &str| format!("lea {code}(%rip), %rcx; cmp %rcx, %rdx; sete %al; movzx %al, %eax; ret");
    assert_clone("lea outer(%rip), %rdi; mov %rbx, %rdx", pick, &clone("outer"), &[&clone("work"), &clone("outer+1")]);
}

#[test]
fn functions_that_nothing_calls_any_more_may_call_each_other() {
    let copy = "sub $8, %rsp; .cfi_def_cfa_offset 16; add $3, %rsi; call .Lwork; add $8, %rsp; .cfi_def_cfa_offset 8; ret";
    let more = function(".Lcopy", copy) + &clone_of_work().replace(".Lclone", ".Lwork");
    let calls = |name: &str| format!("mov %rbx, %rsi; mov $1, %edi; call {name}");
    assert_same((&calls("outer"), ""), (&calls(".Lcopy"), &more));
}
