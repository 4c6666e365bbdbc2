//! Functions that jump to a distance from one of their labels.

use super::layout::{TWICE, UNUSED, build, build_fixed, function};
use super::*;

const CASES: [&str; 2] = ["    mov $20, %eax\n    ret", "    mov $30, %eax\n    ret"];

/// A function that jumps to one of two cases, to which nothing leads but what `jump` does, and behind them a label.
fn counting(jump: &str, cases: [&str; 2]) -> String {
    let body = format!("{jump}.Lone:\n{}\n.Ltwo:\n{}\n.Lbase:\n    mov $40, %eax\n    ret", cases[0], cases[1]);
    function("classify", &body)
}

/// That other functions may move, and that the cases may not change places, with the table as it is.
fn assert_seen(table: &str, function: impl Fn([&str; 2]) -> String) {
    assert_seen_if(build, [UNUSED, TWICE], table, function);
}

fn assert_seen_if(
    build: impl Fn(&[&str], &str) -> Option<Vec<u8>>,
    moves: [&str; 2],
    table: &str,
    function: impl Fn([&str; 2]) -> String,
) {
    let [one, two] = CASES;
    let right = function(CASES);
    let Some(input) = build(&[&right, TWICE, UNUSED], table) else { return };
    let moved = build(&[&right, moves[0], moves[1]], table).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{right}\n{}", report.summary(10));
    let wrong = build(&[&function([two, one]), moves[0], moves[1]], table).unwrap();
    assert!(!check(&input, &wrong).unwrap().is_ok(), "{right}");
}

fn table(word: &str) -> String {
    format!("    {word} .Lone - .Lbase, .Ltwo - .Lbase\n")
}

const LOAD: &str = "    lea table(%rip), %rcx\n    movslq (%rcx,%rdi,4), %rax\n";
const NAME: &str = "    lea .Lbase(%rip), %rdx\n";
const ADD: &str = "    add %rdx, %rax\n    jmp *%rax\n";

#[test]
fn cases_at_distances_of_any_width_from_a_label_may_not_change_places() {
    let words = [
        (".long", "movslq (%rcx,%rdi,4), %rax"),
        (".quad", "mov (%rcx,%rdi,8), %rax"),
        (".short", "movswq (%rcx,%rdi,2), %rax"),
        (".byte", "movsbq (%rcx,%rdi), %rax"),
    ];
    for (word, load) in words {
        let jump = format!("    lea table(%rip), %rcx\n    {load}\n{NAME}{ADD}");
        assert_seen(&table(word), |cases| counting(&jump, cases));
    }
}

#[test]
fn a_label_is_followed_to_where_it_is_counted_with() {
    let ways = [
        // Another sum, a difference, a copy.
        format!("{LOAD}{NAME}    lea (%rdx,%rax), %rsi\n    jmp *%rsi\n"),
        format!("{LOAD}{NAME}    neg %rax\n    sub %rax, %rdx\n    jmp *%rdx\n"),
        format!("{NAME}    mov %rdx, %r8\n    xor %edx, %edx\n{LOAD}    add %r8, %rax\n    jmp *%rax\n"),
        format!(
            "{NAME}    xor %esi, %esi\n    test %edi, %edi\n    cmovns %rdx, %rsi\n{LOAD}    add %rsi, %rax\n    jmp *%rax\n"
        ),
        // It was on the stack meanwhile.
        format!("{NAME}    mov %rdx, -8(%rsp)\n    xor %edx, %edx\n{LOAD}    mov -8(%rsp), %rdx\n{ADD}"),
        format!("{NAME}    mov %rdx, -8(%rsp)\n    xor %edx, %edx\n{LOAD}    add -8(%rsp), %rax\n    jmp *%rax\n"),
        format!(
            "{NAME}    push %rdx\n    xor %edx, %edx\n{LOAD}    push %rdi\n    pop %rdi\n    pop %rsi\n    add %rsi, %rax\n    jmp *%rax\n"
        ),
        // A number of the x87 was stored beside it, and it was read as one.
        format!(
            "{NAME}    mov %rdx, -40(%rsp)\n    xor %edx, %edx\n    fldz\n    fstpl -32(%rsp)\n    fldz\n    fstpt -24(%rsp)\n{LOAD}    add -40(%rsp), %rax\n    jmp *%rax\n"
        ),
        format!(
            "{LOAD}    mov %rax, -16(%rsp)\n{NAME}    mov %rdx, -8(%rsp)\n    fildll -8(%rsp)\n    fildll -16(%rsp)\n    faddp\n    fistpll -8(%rsp)\n    jmp *-8(%rsp)\n"
        ),
        // A branch, a call that keeps it, and a jump to the sum at another place.
        format!("{NAME}    test %edi, %edi\n    js .Lbase\n{LOAD}    jmp 1f\n    ud2\n1:  add %rdx, %rax\n    jmp *%rax\n"),
        format!(
            "    mov %rbx, %r9\n    lea .Lbase(%rip), %rbx\n    call twice\n{LOAD}    add %rbx, %rax\n    mov %r9, %rbx\n    jmp *%rax\n"
        ),
        format!("{LOAD}{NAME}    add %rdx, %rax\n    push %rax\n    ret\n"),
        // In its low bits.
        format!("{LOAD}{NAME}    add %al, %dl\n    jmp *%rdx\n"),
        format!("{LOAD}{NAME}    add %ax, %dx\n    jmp *%rdx\n"),
    ];
    for jump in ways {
        assert_seen(&table(".long"), |cases| counting(&jump, cases));
    }
}

#[test]
fn a_label_is_followed_behind_jumps_through_tables() {
    // The first jump goes to the second, which adds the label that was named before both.
    let words = "    .long .Lhere - table, .Lthere - table\noffsets:\n    .long .Lone - .Lbase, .Ltwo - .Lbase\n";
    let jump = "    cmp $1, %edi\n    ja .Lbase\n    lea .Lbase(%rip), %rdx\n    lea table(%rip), %rcx\n    movslq (%rcx,%rdi,4), %rax\n    add %rcx, %rax\n    jmp *%rax\n\
        .Lthere:\n    mov $1, %esi\n.Lhere:\n    lea offsets(%rip), %rcx\n    movslq (%rcx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n";
    assert_seen(words, |cases| counting(jump, cases));
}

#[test]
fn a_label_that_was_jumped_to_may_be_counted_with_there() {
    let words = "    .long .Lone - .Lhere, .Ltwo - .Lhere\n";
    let jump = format!("    lea .Lhere(%rip), %rdx\n    jmp *%rdx\n    ud2\n.Lhere:\n{LOAD}{ADD}");
    assert_seen(words, |cases| counting(&jump, cases));
}

#[test]
fn a_part_with_a_frame_description_of_its_own_stays_with_the_function_that_counts() {
    let part = |case: &str| {
        format!(
            "    .type part, @function\npart:\n    .cfi_startproc\n    .cfi_def_cfa_offset 16\n.Lone:\n    mov ${case}, %eax\n    jmp .Lend\n.Ltwo:\n    mov $30, %eax\n    \
             jmp .Lend\n    .cfi_endproc\n    .size part, . - part\n"
        )
    };
    let whole = |cases: [&str; 2]| {
        let body = format!(
            "    push %rbx\n    .cfi_def_cfa_offset 16\n{LOAD}{NAME}{ADD}.Lbase:\n    mov $40, %eax\n.Lend:\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret"
        );
        let [one, two] = cases.map(|case| if case == CASES[0] { "20" } else { "30" });
        function("classify", &body) + &part(one).replace("$30", &format!("${two}"))
    };
    assert_seen(&table(".long"), whole);
}

/// Linkers write one frame description for all stubs of imports.
#[test]
fn what_jumps_to_the_same_stubs_as_a_function_that_counts_may_move() {
    let stubs = function("stubs", "    jmp *handlers(%rip)\n    .p2align 3\nsecond_stub:\n    jmp *handlers+8(%rip)\n");
    let jumping = function("twice", "    endbr64\n    lea (%rdi,%rdi), %edi\n    jmp second_stub\n");
    let counting = |cases| counting(&format!("    test %edi, %edi\n    js second_stub\n{LOAD}{NAME}{ADD}"), cases);
    let [one, two] = CASES;
    let right = stubs.clone() + &counting([one, two]);
    let Some(input) = build(&[&right, &jumping, UNUSED], &table(".long")) else { return };
    let moved = build(&[&right, UNUSED, &jumping], &table(".long")).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    let wrong = build(&[&(stubs + &counting([two, one])), UNUSED, &jumping], &table(".long")).unwrap();
    assert!(!check(&input, &wrong).unwrap().is_ok());
}

#[test]
fn at_a_fixed_address_a_number_may_be_the_label() {
    const LOAD: &str = "    movslq table(,%rdi,4), %rax\n";
    for sum in [
        "    mov $.Lbase, %edx\n    add %rdx, %rax\n    jmp *%rax\n",
        "    add $.Lbase, %rax\n    jmp *%rax\n",
        "    lea .Lbase(%rax), %rdx\n    jmp *%rdx\n",
    ] {
        assert_seen_if(build_fixed, [TWICE, UNUSED], &table(".long"), |cases| counting(&format!("{LOAD}{sum}"), cases));
    }
}

/// That a function may be laid out anew.
fn assert_free(jump: &str) {
    let Some(report) = lay_out_anew(jump, TWICE) else { return };
    assert!(report.is_ok(), "{jump}\n{}", report.summary(10));
}

/// What is said of a function that is laid out anew and may call `twice`.
fn lay_out_anew(jump: &str, twice: &str) -> Option<Report> {
    let [one, two] = CASES;
    let relaid = function("classify", &format!("{jump}.Ltwo:\n{two}\n.Lbase:\n    mov $40, %eax\n    ret\n.Lone:\n{one}"));
    let input = build(&[&counting(jump, CASES), twice, UNUSED], ".long 0\n")?;
    Some(check(&input, &build(&[UNUSED, &relaid, twice], ".long 0\n").unwrap()).unwrap())
}

#[test]
fn a_function_that_only_keeps_compares_and_jumps_to_its_labels_may_be_laid_out_anew() {
    const BOTH: &str = "    lea .Lone(%rip), %rax\n    lea .Ltwo(%rip), %rdx\n";
    let ways = [
        format!("{BOTH}    test %edi, %edi\n    cmovne %rdx, %rax\n    jmp *%rax\n"),
        format!("{BOTH}    test %edi, %edi\n    jne 1f\n    jmp *%rax\n1:  jmp *%rdx\n"),
        format!("{BOTH}    mov %rax, -16(%rsp)\n    mov %rdx, -8(%rsp)\n    and $1, %edi\n    jmp *-16(%rsp,%rdi,8)\n"),
        format!(
            "{BOTH}    push %rax\n    push %rdx\n    pop %rcx\n    pop %rax\n    test %edi, %edi\n    cmove %rax, %rcx\n    jmp *%rcx\n"
        ),
        // The registers have something else when they are counted with.
        format!("{BOTH}    mov %rax, %rsi\n    mov %edi, %eax\n    movzbl %dil, %edx\n    add %rdx, %rax\n    jmp *%rsi\n"),
        format!("{BOTH}    cmp %rax, %rdi\n    je .Lbase\n    xor %eax, %eax\n    add $3, %rax\n    jmp *%rdx\n"),
        // What nothing runs into may be led to by the jumps, but not with the register that says where they go.
        format!(
            "{BOTH}    test %edi, %edi\n    jne 1f\n    xor %edx, %edx\n    jmp *%rax\n1:  xor %eax, %eax\n    jmp *%rdx\n    add %rax, %rcx\n    add %rdx, %rcx\n    ret\n"
        ),
        // Half of an address is none, and a vector that is stored over one does not read it.
        format!(
            "{BOTH}    test %edi, %edi\n    cmovne %rdx, %rax\n    jmp *%rax\n    imul %edx, %ecx\n    lea 3(%rcx,%rdx), %eax\n    ret\n"
        ),
        format!(
            "{BOTH}    mov %rax, -32(%rsp)\n    mov %rdx, -24(%rsp)\n    and $1, %edi\n    jmp *-32(%rsp,%rdi,8)\n    movups %xmm0, -32(%rsp)\n    movups %xmm0, -24(%rsp)\n    ret\n"
        ),
        // Nor does a number of the x87 that is stored over one.
        format!(
            "{BOTH}    mov %rax, (%rsp)\n    push -40(%rsp)\n    push -40(%rsp)\n    pop %rcx\n    pop %rcx\n    fldz\n    fstpt (%rsp)\n    fldt (%rsp)\n    fstps (%rsp)\n    \
             addl $1, (%rsp)\n    jmp *%rdx\n"
        ),
        // It names itself to others.
        format!(
            "    lea classify(%rip), %rdi\n    call twice\n    add %rdi, %rax\n{BOTH}    test %edi, %edi\n    cmovne %rdx, %rax\n    jmp *%rax\n"
        ),
    ];
    for jump in ways {
        assert_free(&jump);
    }
}

/// As straight code that is a part of its caller would, a leaf may overwrite a part of a register and read all of it.
#[test]
fn who_can_be_called_by_a_pointer_does_not_count_with_what_registers_happen_to_hold() {
    let narrow = "    mov message(%rip), %dl\n    and $3, %rdx\n    lea (%rdi,%rdx), %eax\n    ret";
    let call = "    lea .Lone(%rip), %rax\n    lea .Ltwo(%rip), %rdx\n    test %edi, %edi\n    js 1f\n    jmp *%rax\n1:  cmp $-1, %edi\n    jl 2f\n    jmp *%rdx\n2:  call twice\n    ret\n";
    let Some(report) = lay_out_anew(call, &function("twice", &format!("    endbr64\n{narrow}"))) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let part = lay_out_anew(call, &function("twice", narrow)).unwrap();
    assert!(part.summary(10).contains("has to stay in one piece"), "{}", part.summary(10));
}
