//! Programs without frame descriptions, as `-fno-asynchronous-unwind-tables` makes them.

use super::layout::link;
use super::*;

/// `work` ends with a call that does not return; what stands behind it in the file is another function in each layout.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    xor %edi, %edi
    call work
    mov $60, %eax
    syscall
    hlt

work:
    test %edi, %edi
    jne 1f
    ret
1:  mov $1, %edi
    call @CALLEE@
@FUNCTIONS@

unreached:
    call @UNREACHED@
    mov $1, %eax
    ret

last:
    mov $60, %eax
    syscall
    hlt
not_last:
    mov $60, %eax
    syscall
    ret

    .data
    .balign 8
pointers:
    .quad work
    .quad one
    .quad two
"#;

const ONE: &str = "one: lea 1(%rdi), %eax\n    ret\n    nop";
const TWO: &str = "two: lea 2(%rdi), %eax\n    ret\n    nop";

fn report(callee: &str) -> Option<Report> {
    compare(callee, ["one"; 2])
}

/// `unreached` is what code calls that nothing leads to, in the input and in the output.
fn compare(callee: &str, unreached: [&str; 2]) -> Option<Report> {
    let program = |functions: [&str; 2], unreached: &str| {
        let text = PROGRAM.replace("@CALLEE@", callee).replace("@UNREACHED@", unreached);
        link(&text.replace("@FUNCTIONS@", &functions.join("\n")), "-pie")
    };
    Some(check(&program([ONE, TWO], unreached[0])?, &program([TWO, ONE], unreached[1])?).unwrap())
}

#[test]
fn what_nothing_leads_to_calls_functions_where_they_went() {
    let Some(report) = compare("last", ["one"; 2]) else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
    let Some(report) = compare("last", ["one", "work"]) else { return };
    assert_eq!(kinds(&report), [ViolationKind::Unexplained], "{}", report.summary(10));
}

#[test]
fn nothing_follows_the_call_of_what_never_returns() {
    let Some(report) = report("last") else { return };
    assert!(report.is_ok(), "{}", report.summary(10));
}

#[test]
fn what_follows_the_call_of_what_may_return_has_to_follow_it() {
    let Some(report) = report("not_last") else { return };
    assert!(!report.is_ok());
}

/// The table's address is made before a loop, and its first case is a function that something else names.
const SWITCH: &str = r#"
    .text
@FUNCTIONS@
    .globl _start
    .type _start, @function
_start:
    lea pointers(%rip), %rdi
    call classify
    mov $60, %eax
    syscall
    hlt
last:
    mov $60, %eax
    syscall
    hlt

    .section .rodata
    .balign 8
table:
    .long @ENTRIES@
    .data
    .balign 8
pointers:
    .quad classify
    .quad one
"#;

#[test]
fn a_case_may_be_another_function_where_cases_are_counted_in_a_loop() {
    const CLASSIFY: &str = "classify: push %rbx\n    lea table(%rip), %rdx\n1:  cmpl $3, (%rdi)\n    ja cold\n    mov (%rdi), %eax\n    movslq (%rdx,%rax,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n\
        .La: mov 8(%rdi), %rdi\n    jmp 1b\n.Lb: pop %rbx\n    mov %edi, %eax\n    ret";
    const COLD: &str = "cold: call last";
    let program = |functions: [&str; 3], entries: [&str; 4]| {
        let entries = entries.map(|entry| format!("{entry} - table")).join(", ");
        link(&SWITCH.replace("@FUNCTIONS@", &functions.join("\n")).replace("@ENTRIES@", &entries), "-pie")
    };
    let right = ["one", ".La", ".Lb", "one"];
    let Some(input) = program([COLD, ONE, CLASSIFY], right) else { return };
    let moved = |entries| check(&input, &program([CLASSIFY, COLD, ONE], entries).unwrap()).unwrap();
    let report = moved(right);
    assert!(report.is_ok() && report.stats.jump_table_entries == 4, "{:?}\n{}", report.stats, report.summary(10));
    for wrong in [[".Lb", ".La", ".Lb", "one"], ["one", ".La", "one", "one"], ["one", ".La", ".Lb", ".Lb"]] {
        assert!(!moved(wrong).is_ok(), "{wrong:?}");
    }
}

/// `first` and `second` end alike, and what traps in `first` goes on, for who wrote it.
const TRAPS: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    call first
    call second
    mov $60, %eax
    syscall
    hlt
first:
    test %edi, %edi
    jne 1f
    ret
1:  test %esi, %esi
    jne @WAY@
    @TRAP@
@COPY@
second:
    lea 12(%rdi), %eax
3:  add $1, %eax
    js 4f
    ret
4:  neg %eax
    ret
@APART@
"#;

const REST: &str = "2:  lea 11(%rdi), %edi\n    call second";
const END: &str = "    add $1, %eax\n    js 6f\n    ret\n6:  neg %eax\n    ret";

#[test]
fn a_copy_of_code_behind_a_trap_is_explained_by_what_the_input_has_there() {
    for trap in ["ud2", "int3\n    ud2", "int3"] {
        let program = |way: &str, copy: &str, apart: &str| {
            let text = TRAPS.replace("@TRAP@", trap).replace("@WAY@", way).replace("@COPY@", copy).replace("@APART@", apart);
            link(&text, "-pie")
        };
        let Some(input) = program("2f", &format!("{REST}\n{END}"), "") else { return };
        let apart = format!("{}\n{END}", REST.replace("2:", "5:"));
        // The copy goes on where the other function ends alike.
        let right = program("5f", &format!("{REST}\n    jmp 3f"), &apart).unwrap();
        let report = check(&input, &right).unwrap();
        assert!(report.is_ok(), "{trap}: {}", report.summary(10));
        let wrong = program("5f", &format!("{}\n    jmp 3f", REST.replace("11", "10")), &apart).unwrap();
        assert!(!check(&input, &wrong).unwrap().is_ok(), "{trap}");
    }
}

/// Nothing leads to `kept`, and what it names moves.
#[test]
fn code_that_stays_is_found_behind_padding_of_which_the_beginning_was_freed() {
    let program = |padding: &str, functions: [&str; 2]| {
        let text = format!(
            "    .text\n    .globl _start\n    .type _start, @function\n_start:\n    call one\n    call two\n    mov $60, %eax\n    syscall\n    hlt\n{}\n{}\n    .org 0x80, 0xcc\n{padding}\n    \
             sub $1, %ecx\n    lea one(%rip), %rax\n    add %rcx, %rax\n    ret\n",
            functions[0], functions[1]
        );
        link(&text, "-pie")
    };
    // `nopw` of ten bytes, of which the last five are zeros.
    let whole = "    .byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0";
    let freed = "    .byte 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0, 0, 0, 0, 0";
    let Some(input) = program(whole, [ONE, TWO]) else { return };
    let report = check(&input, &program(freed, [TWO, ONE]).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// Between the comparison and the jump stands all that the function saves, and entries that nobody selects lead behind it.
#[test]
fn a_table_is_as_long_as_its_function_compares_and_may_begin_with_what_nobody_selects() {
    let classify = |cases: [&str; 2]| {
        let saves = "    push %rbx\n    push %rbp\n    push %r12\n    lea table(%rip), %rdx\n    mov %esi, %ebx\n    mov %edi, %ebp\n    lea 1(%rsi), %r12d\n    \
                     mov %ebx, %ecx\n    mov %ebp, %r8d\n    mov %r12d, %r9d\n    mov %ebx, %r10d\n";
        let case = |name: &str| {
            let number = if name == "ten" { 10 } else { 20 };
            format!(".L{name}:\n    mov ${number}, %eax\n    pop %r12\n    pop %rbp\n    pop %rbx\n    ret\n")
        };
        format!(
            "classify:\n    cmp $3, %edi\n    ja .Lnone\n{saves}    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n.Lnone:\n    ret\n{}{}.Lend:\n    .balign 16, 0x90\n",
            case(cases[0]),
            case(cases[1])
        )
    };
    let program = |functions: [&str; 2], entries: &str| {
        let start = "_start:\n    call classify\n    call one\n    mov $60, %eax\n    syscall\n    hlt\n    .balign 16, 0x90\n";
        let entries: Vec<String> = entries.split(' ').map(|label| format!(".L{label} - table")).collect();
        let code = format!(
            "    .text\n    .globl _start\n    .type _start, @function\n{start}{}\n{}\n    .org 0x100, 0xcc\n",
            functions[0], functions[1]
        );
        link(&format!("{code}    .section .rodata, \"a\"\n    .balign 4\ntable:\n    .long {}\n", entries.join(", ")), "-pie")
    };
    let [before, after] = [classify(["ten", "twenty"]), classify(["twenty", "ten"])];
    let Some(input) = program([&before, ONE], "end ten twenty end") else { return };
    let right = program([ONE, &after], "end ten twenty end").unwrap();
    let report = check(&input, &right).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    assert!(!check(&input, &program([ONE, &after], "end twenty ten end").unwrap()).unwrap().is_ok());
}
