//! The input has straight code up to a `ret` that stands for instructions of its callers, as an output of before has it: what that writes, makes and reads is seen in the place of the call.

use super::layout::{TWICE, UNUSED, build, build_with_copies, function, link};
use super::*;

/// `work` has a frame of 32 bytes and saves `rbx`; where it calls `body`, straight code stands for some of it. `@WORK@` is what comes between.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $2, %edi
    call work
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type work, @function
work:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    sub $32, %rsp
    .cfi_def_cfa_offset 48
@WORK@
    add $32, %rsp
    .cfi_def_cfa_offset 16
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size work, . - work

    .type body, @function
body:
    .cfi_startproc
@BODY@
    .cfi_endproc
    .size body, . - body

    .type inner, @function
inner:
    .cfi_startproc
    mov $5, %ebx
    mov %edi, 24(%rsp)
    ret
    .cfi_endproc
    .size inner, . - inner

    .type other, @function
other:
    .cfi_startproc
    mov shared(%rip), %eax
    ret
    .cfi_endproc
    .size other, . - other

    .org 0x400, 0xcc
    .data
    .balign 8
shared:
    .quad 1, 2, 3
"#;

fn program(work: &str, body: &str) -> Option<Vec<u8>> {
    let lines = |code: &str| code.replace(';', "\n");
    link(&PROGRAM.replace("@WORK@", &lines(work)).replace("@BODY@", &lines(body)), "-pie")
}

/// The report on a function that became another one, while the straight code that it calls stays as it is.
fn changed(body: &str, input: &str, output: &str) -> Option<Report> {
    Some(check(&program(input, body)?, &program(output, body)?).unwrap())
}

fn assert_same(body: &str, input: &str, output: &str) {
    let Some(report) = changed(body, input, output) else { return };
    assert!(report.is_ok(), "{body}: {input} became {output}: {}", report.summary(10));
    assert!(report.stats.changed_pieces > 0, "{body}: {input} became {output}: {:?}", report.stats);
}

fn assert_different(body: &str, input: &str, output: &str) {
    let Some(report) = changed(body, input, output) else { return };
    assert!(!report.is_ok(), "{body}: {input} became {output}");
}

#[test]
fn a_register_that_functions_keep_is_another_one_where_straight_code_writes_it() {
    let (input, output) = ("mov $7, %ebx; call body; mov %ebx, %eax", "mov $7, %ebx; call body; mov $7, %eax");
    for keeps in ["mov $5, %ecx; ret", "mov $5, %ecx; jmp other", "push %rbx; mov $5, %ebx; pop %rbx; ret"] {
        assert_same(keeps, input, output);
    }
    for writes in [
        "mov $5, %ebx; ret",
        "mov $5, %bl; ret",
        "mov shared(%rip), %rbx; ret",
        "mov $5, %ebx; jmp other",
        "jmp 1f; ud2; 1:; mov $5, %ebx; ret",
        "call inner; ret",
    ] {
        assert_different(writes, input, output);
        // It is a difference that nobody reads before.
        assert_different(writes, "mov $7, %ebx; call body; mov %ebx, %eax", "mov $8, %ebx; call body; mov $8, %eax");
    }
}

#[test]
fn what_straight_code_makes_of_the_same_is_the_same() {
    for body in ["lea 1(%rbx), %ebx; ret", "mov 16(%rsp), %ebx; ret", "mov $5, %ebx; jmp other"] {
        assert_same(
            body,
            "mov %edi, 8(%rsp); mov %edi, %ebx; call body; mov %ebx, 12(%rsp); mov 12(%rsp), %eax",
            "mov %edi, 8(%rsp); mov %edi, %ebx; call body; mov %ebx, 12(%rsp); mov %ebx, %eax",
        );
        // What is overwritten may be anything before.
        let (input, output) = (
            "mov %edi, 8(%rsp); mov %edi, %ebx; call body; mov %ebx, %eax",
            "mov %edi, 8(%rsp); mov $1, %ebx; call body; mov %ebx, %eax",
        );
        let assert = if body.starts_with("lea") { assert_different } else { assert_same };
        assert(body, input, output);
    }
}

#[test]
fn a_slot_of_the_frame_is_another_one_where_straight_code_writes_it() {
    let (input, output) = (
        "mov $7, %ebx; mov %ebx, 8(%rsp); call body; mov 8(%rsp), %eax",
        "mov $7, %ebx; mov %ebx, 8(%rsp); call body; mov %ebx, %eax",
    );
    for keeps in ["mov 16(%rsp), %eax; ret", "mov %eax, -16(%rsp); ret", "cmp %eax, 16(%rsp); ret", "mov %edi, shared(%rip); ret"]
    {
        assert_same(keeps, input, output);
    }
    for writes in [
        "mov %edi, 16(%rsp); ret",
        "movups %xmm0, 8(%rsp); ret",
        "xchg %edi, 16(%rsp); ret",
        "mov %edi, 16(%rsp); jmp other",
        "mov %edi, 8(%rsp,%rdi,4); ret",
        "call inner; ret",
    ] {
        assert_different(writes, input, output);
    }
    // What it reads has to be there.
    let reads = "mov 16(%rsp), %eax; ret";
    assert_different(reads, "mov $7, %ebx; mov %ebx, 8(%rsp); call body", "mov $7, %ebx; call body");
}

#[test]
fn an_address_of_the_frame_that_straight_code_makes_reads_what_is_there() {
    let input = "movl $1, 8(%rsp); call body; movl $2, 8(%rsp); mov (%rcx), %eax; movl $3, 8(%rsp); mov 8(%rsp), %edx";
    let output = "movl $1, 8(%rsp); call body; mov (%rcx), %eax; movl $3, 8(%rsp); mov 8(%rsp), %edx";
    assert_same("lea shared(%rip), %rcx; ret", input, output);
    for body in [
        "lea 16(%rsp), %rcx; ret",
        "lea 8(%rsp), %rcx; add $8, %rcx; ret",
        "lea 16(%rsp), %rcx; mov %rcx, shared(%rip); jmp other",
    ] {
        assert_different(body, input, output);
    }
    // Behind it the frame is as any memory, and before it nobody has the address.
    let body = "lea 16(%rsp), %rcx; ret";
    let before = "mov %edi, 8(%rsp); mov 8(%rsp), %edx; mov %edx, shared(%rip); call body; mov (%rcx), %eax";
    assert_same(body, before, &before.replace("mov 8(%rsp), %edx", "mov %edi, %edx"));
}

/// A function that jumps to one of two cases at a distance from a label, where a part of that stands in straight code behind it.
fn assert_counted(jump: &str, part: &str) {
    let cases = ["    mov $20, %eax\n    ret", "    mov $30, %eax\n    ret"];
    let text = |[one, two]: [&str; 2]| {
        let body = format!("    {}\n.Lone:\n{one}\n.Ltwo:\n{two}\n.Lbase:\n    mov $40, %eax\n    ret", jump.replace(';', "\n"));
        function("classify", &body)
    };
    let part = function("part", &format!("    {}", part.replace(';', "\n")));
    let table = ".long .Lone - .Lbase, .Ltwo - .Lbase\n";
    let Some(input) = build(&[&text(cases), &part, TWICE, UNUSED], table) else { return };
    let moved = build(&[&text(cases), UNUSED, TWICE, &part], table).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{jump}: {}", report.summary(10));
    let wrong = build(&[&text([cases[1], cases[0]]), &part, TWICE, UNUSED], table).unwrap();
    assert!(!check(&input, &wrong).unwrap().is_ok(), "{jump}");
}

#[test]
fn straight_code_may_count_with_a_label_of_its_caller() {
    const LOAD: &str = "lea table(%rip), %rcx; movslq (%rcx,%rdi,4), %rax; ";
    const NAME: &str = "lea .Lbase(%rip), %rdx; ";
    assert_counted(&format!("{LOAD}{NAME}call part; jmp *%rax"), "add %rdx, %rax; ret");
    // It comes back in a register that calls need not keep, or in another one, or from the frame.
    assert_counted(&format!("{LOAD}{NAME}call part; add %rdx, %rax; jmp *%rax"), "mov $1, %esi; ret");
    assert_counted(&format!("{LOAD}{NAME}call part; add %rsi, %rax; jmp *%rax"), "mov %rdx, %rsi; ret");
    assert_counted(
        &format!("push %rdi; {LOAD}{NAME}call part; xor %edx, %edx; add (%rsp), %rax; pop %rdi; jmp *%rax"),
        "mov %rdx, 8(%rsp); ret",
    );
}

/// A function of four cases with a table, and straight code that stands between its comparison and its jump.
fn switch(between: &str, part: &str, cases: usize) -> String {
    let all: String = (0..6).map(|number| format!(".L{number}:\n    mov ${number}0, %eax\n    pop %rbx\n    ret\n")).collect();
    let jump = format!("    push %rbx\n    mov %rdi, %rbx\n    cmp ${}, %ebx\n    ja 9f\n    {between}\n", cases - 1);
    let jump = format!("{jump}    lea table(%rip), %rdx\n    movslq (%rdx,%rbx,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n");
    format!(
        "{}{}",
        function("classify", &format!("{jump}{all}9:  xor %eax, %eax\n    pop %rbx\n    ret")),
        function("part", part)
    )
}

#[test]
fn a_comparison_bounds_no_table_behind_straight_code_that_makes_another_index() {
    let table = |order: [u32; 6]| order.map(|number| format!("    .long .L{number} - table\n")).concat();
    let (right, wrong) = (table([0, 1, 2, 3, 4, 5]), table([0, 1, 2, 3, 5, 4]));
    for part in [
        "    mov (%rsi), %ebx\n    ret",
        "    mov (%rsi), %ecx\n    and $7, %ecx\n    mov %ecx, %ebx\n    ret",
        "    add %esi, %ebx\n    ret",
    ] {
        let text = switch("call part", part, 4);
        let Some(input) = build(&[&text, TWICE, UNUSED], &right) else { return };
        let report = check(&input, &build(&[&text, UNUSED, TWICE], &right).unwrap()).unwrap();
        assert!(report.is_ok(), "{part}: {}", report.summary(10));
        assert!(!check(&input, &build(&[&text, TWICE, UNUSED], &wrong).unwrap()).unwrap().is_ok(), "{part}");
    }
    // Where it writes something else, entries behind the bound ask for nothing.
    let text = switch("call part", "    mov (%rsi), %ecx\n    ret", 4);
    let Some(input) = build(&[&text, TWICE, UNUSED], &right) else { return };
    let output = build(&[&text, TWICE, UNUSED], &right).unwrap();
    assert_eq!(check(&input, &output).unwrap().stats.jump_table_entries, 4);
}

#[test]
fn what_straight_code_reads_beside_a_table_is_seen_where_a_copy_is_named() {
    let entries = |base: &str| (0..4).map(|number| format!("    .long .L{number} - {base}\n")).collect::<String>();
    let copy = format!("    .section .copies, \"ax\"\n    .balign 16\ncopy:\n{}", entries("copy"));
    let classify = |table: &str, between: &str| {
        let cases: String =
            (0..4).map(|number| format!(".L{number}:\n    mov ${number}0, %eax\n    pop %rbx\n    ret\n")).collect();
        let jump = format!(
            "    push %rbx\n    cmp $3, %edi\n    ja 9f\n    lea {table}(%rip), %rdx\n    {}\n",
            between.replace(';', "\n")
        );
        let jump = format!("{jump}    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n");
        function("classify", &format!("{jump}{cases}9:  xor %eax, %eax\n    pop %rbx\n    ret"))
    };
    let report = |between: &str, part: &str| {
        let part = function("part", &format!("    {}", part.replace(';', "\n")));
        let input = build(&[&classify("table", between), &part, TWICE, UNUSED], &entries("table"))?;
        let output = build_with_copies(&[&classify("copy", between), &part, TWICE, UNUSED], &entries("table"), &copy)?;
        Some(check(&input, &output).unwrap())
    };
    for part in ["mov $1, %esi; ret", "mov %rdx, %rbx; ret", "movslq (%rdx,%rdi,4), %rax; ret"] {
        let Some(report) = report("call part", part) else { return };
        assert!(report.is_ok(), "{part}: {}", report.summary(10));
    }
    for (between, part) in [
        ("call part", "mov 16(%rdx), %esi; ret"),
        ("call part", "mov %rdx, %rsi; mov 16(%rsi), %esi; ret"),
        ("call part", "mov 16(%rdx), %edi; jmp twice"),
        ("call part; mov 16(%rsi), %esi", "mov %rdx, %rsi; ret"),
        ("call part; mov (%rsp), %rsi; mov 16(%rsi), %esi", "mov %rdx, 8(%rsp); ret"),
    ] {
        let Some(report) = report(between, part) else { return };
        assert!(kinds(&report).contains(&ViolationKind::JumpTable), "{between}: {part}: {}", report.summary(10));
    }
}

#[test]
fn what_a_caller_knows_behind_straight_code_is_what_that_leaves() {
    let original = contexts::function("pick", "lea 1(%rdi), %eax; ret");
    let clone = contexts::function(".Lclone", "mov $6, %eax; ret");
    let is_right = |arguments: &str, part: &str| {
        let part = contexts::function("part", part);
        let call = |name: &str| {
            format!(
                "sub $16, %rsp; .cfi_adjust_cfa_offset 16; {arguments}; call {name}; add $16, %rsp; .cfi_adjust_cfa_offset -16"
            )
        };
        let input = (call("pick"), format!("{original}{part}"));
        let output = (call(".Lclone"), format!("{original}{clone}{part}"));
        clones::compare((&input.0, &input.1), (&output.0, &output.1)).map(|report| report.is_ok())
    };
    for (arguments, right, wrong) in [
        ("mov $5, %ebp; call part; mov %ebp, %edi", "mov $4, %edi; ret", "mov $4, %ebp; ret"),
        ("mov $5, %ebp; call part; mov %ebp, %edi", "mov $4, %edi; jmp 1f; ud2; 1: ret", "mov $4, %ebp; jmp 1f; ud2; 1: ret"),
        ("movq $5, 8(%rsp); call part; mov 8(%rsp), %rdi", "mov %edi, -16(%rsp); ret", "mov %rbx, 16(%rsp); ret"),
        ("movq $5, 8(%rsp); call part; mov %rbx, (%rcx); mov 8(%rsp), %rdi", "mov %rbx, %rcx; ret", "lea 16(%rsp), %rcx; ret"),
    ] {
        let Some(is_right_with) = is_right(arguments, right) else { return };
        assert!(is_right_with, "{arguments}: {right}");
        assert_eq!(is_right(arguments, wrong), Some(false), "{arguments}: {wrong}");
    }
}

#[test]
fn a_function_may_have_a_register_written_that_it_saved() {
    let body = |first: &str| {
        format!(
            "push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; sub $32, %rsp; .cfi_adjust_cfa_offset 32; {first}; mov %ebx, %eax; \
             add $32, %rsp; .cfi_adjust_cfa_offset -32; pop %rbx; .cfi_adjust_cfa_offset -8; ret"
        )
    };
    let (input, output) = ("mov %edi, %ebx; call body; mov $1, %ebx", "mov $3, %ebx; call body; mov $1, %ebx");
    assert_same(&body("call inner"), input, output);
    assert_different(&body("call other"), input, output);
    assert_different(&body("mov %ebx, %edi; call inner"), input, output);
}

#[test]
fn code_runs_on_behind_straight_code_that_a_frame_description_ends_with() {
    // Another function jumps to what is behind it, as to a part of both.
    let third = function(
        "third",
        "    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    lea 3(%rdi), %ebx\n    jmp .Lsecond",
    );
    let first = "    .type classify, @function\nclassify:\n    .cfi_startproc\n    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n    call part\n    .cfi_endproc\n    .size classify, . - classify\n";
    let second = "    .cfi_startproc\n    .cfi_def_cfa_offset 16\n    .cfi_offset rbx, -16\n.Lsecond:  mov %ebx, %eax\n    pop %rbx\n    \
                  .cfi_def_cfa_offset 8\n    ret\n    .cfi_endproc\n";
    let other = second.replace(".Lsecond:", "").replace("mov %ebx, %eax", "mov %edi, %eax");
    for part in ["    mov (%rsi), %ebx\n    ret", "    mov 8(%rsp), %eax\n    ret"] {
        let part = function("part", part);
        let program = |order: [&str; 3]| build(&[&order.concat(), &part, &third, TWICE, UNUSED], "    .long 0\n");
        let Some(input) = program([first, second, &other]) else { return };
        assert!(check(&input, &input).unwrap().is_ok());
        let report = check(&input, &program([first, &other, second]).unwrap()).unwrap();
        assert!(!report.is_ok(), "{}", report.summary(10));
    }
}
