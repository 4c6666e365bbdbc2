//! Places that the kernel tells or asks for: around system calls, and restartable sequences.

use super::layout::{TWICE, UNUSED, build, build_fixed, function};
use super::*;

fn assert_ok(input: &[u8], output: &[u8]) {
    let report = check(input, output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

fn assert_conflict(input: &[u8], output: &[u8], says: &str) {
    let report = check(input, output).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::Conflict) && report.summary(10).contains(says), "{}", report.summary(10));
}

/// Holds that nothing is said of sequences, whatever else is.
fn assert_no_sequence(input: &[u8], output: &[u8]) {
    let report = check(input, output).unwrap();
    assert!(!kinds(&report).contains(&ViolationKind::Conflict), "{}", report.summary(10));
}

/// A function that makes a system call or not, with something between the call and the label behind it.
fn asks(named_by: &str, call: &str, between: &str) -> String {
    let body = format!(
        "    {named_by}\n    test %edi, %edi\n    je .Lbehind\n    {call}\n{between}.Lbehind:\n    mov %rcx, %rax\n    ret"
    );
    function("classify", &body)
}

const BY_CODE: &str = "lea .Lbehind(%rip), %rsi";
const CALLS: [&str; 6] = ["syscall", "sysenter", "int $0x80", "int3", ".byte 0xcd, 0x03", ".byte 0xf1"];

#[test]
fn what_the_program_holds_as_the_place_behind_a_system_call_or_breakpoint_is_right_behind_it() {
    for call in CALLS {
        let program = |order: [&str; 2], between| build(&[order[0], &asks(BY_CODE, call, between), order[1]], ".long 0\n");
        let Some(input) = program([TWICE, UNUSED], "") else { return };
        assert_ok(&input, &build(&[&asks(BY_CODE, call, ""), UNUSED, TWICE], ".long 0\n").unwrap());
        let parted = program([TWICE, UNUSED], "    jmp .Lbehind\n    .balign 4, 0xcc\n").unwrap();
        assert_conflict(&input, &parted, "enters the kernel");
    }
}

#[test]
fn the_same_holds_where_a_word_of_data_names_the_place() {
    let held = |name: &str| format!("    .data\n    .balign 8\n    .quad {name}\n    .text\n");
    for build in [build, build_fixed] {
        let program = |between, held: &str| build(&[TWICE, UNUSED, &asks("nop", "syscall", between), held], ".long 0\n");
        let parted = "    jmp .Lbehind\n    .balign 4, 0xcc\n";
        let Some(input) = program("", &held(".Lbehind")) else { return };
        let report = check(&input, &program(parted, &held(".Lbehind")).unwrap()).unwrap();
        assert!(!report.is_ok());
        // Where nothing names it, anything may be between.
        assert_ok(&program("", &held("twice")).unwrap(), &program(parted, &held("twice")).unwrap());
    }
}

#[test]
fn a_case_of_a_switch_may_be_parted_from_the_system_call_before_it() {
    let switch = |between: &str| {
        let body = format!(
            "    cmp $1, %edi\n    ja 9f\n    lea table(%rip), %rdx\n    movslq (%rdx,%rdi,4), %rax\n    add %rdx, %rax\n    jmp *%rax\n\
             .Lzero:\n    mov $39, %eax\n    syscall\n{between}.Lone:\n    ret\n9:  ud2"
        );
        build(&[TWICE, &function("classify", &body), UNUSED], "    .long .Lzero - table, .Lone - table\n")
    };
    let (Some(input), Some(output)) = (switch(""), switch("    jmp .Lone\n    .balign 4, 0xcc\n")) else { return };
    assert_ok(&input, &output);
}

/// A program with a sequence.
#[derive(Copy, Clone)]
struct Program<'a> {
    build: fn(&[&str], &str) -> Option<Vec<u8>>,
    /// The words of the descriptor before its addresses.
    head: &'a str,
    signature: &'a str,
    /// A part of the sequence.
    inside: &'a str,
    is_first: bool,
}

const SIGNATURE: &str = "    .byte 0x0f, 0xb9, 0x3d\n    .long 0x53053053\n";
const OTHER_SIGNATURE: &str = "    .byte 0x0f, 0xb9, 0x3d\n    .long 0x12345678\n";
const BASE: Program<'_> =
    Program { build, head: "0, 0", signature: SIGNATURE, inside: "    je .Lout\n    nopl 0(%rax)\n", is_first: false };

impl Program<'_> {
    fn link(self) -> Option<Vec<u8>> {
        let body = format!(
            "    lea descriptor(%rip), %rax\n    mov %rax, (%rsi)\n.Lstart:\n    test %edi, %edi\n{}    incq (%rdi)\n.Lend:\n    ret\n\
             .Lout:\n    xor %eax, %eax\n    ret\n{}.Labort:\n    mov $1, %eax\n    ret",
            self.inside, self.signature
        );
        let descriptor = format!(
            "    .data\n    .balign 32\ndescriptor:\n    .long {}\n    .quad .Lstart, .Lend - .Lstart, .Labort\n    .text\n",
            self.head
        );
        let spin = function("classify", &body);
        let order = if self.is_first { [&spin, TWICE] } else { [TWICE, &spin] };
        (self.build)(&[order[0], order[1], UNUSED, &descriptor], ".long 0\n")
    }
}

#[test]
fn a_restartable_sequence_stays_in_one_piece_with_the_signature_before_its_handler() {
    for base in [BASE, Program { build: build_fixed, ..BASE }, Program { head: "0, 7", signature: OTHER_SIGNATURE, ..BASE }] {
        let Some(input) = base.link() else { return };
        assert_ok(&input, &input);
        let moved = Program { is_first: true, ..base }.link().unwrap();
        assert_conflict(&input, &moved, "restartable sequence");
        let unsigned = Program { signature: "    .byte 0x0f, 0xb9, 0x3d\n    .long 0\n", ..base }.link().unwrap();
        assert_conflict(&input, &unsigned, "signature");
        let relaid = Program { inside: "    jne 1f\n    jmp .Lout\n    .byte 0x66, 0x90\n1:", ..base }.link().unwrap();
        assert_conflict(&input, &relaid, "restartable sequence");
    }
}

#[test]
fn what_does_not_look_like_a_descriptor_keeps_nothing() {
    let filler = "    .byte 0x0f, 0x1f, 0x80\n    .long 0\n";
    let instructions = "    mov %rax, %rcx\n    ret\n";
    let others = [("1, 0", OTHER_SIGNATURE), ("0, 8", OTHER_SIGNATURE), ("0, 0", filler), ("0, 0", instructions)];
    for (head, signature) in others {
        let base = Program { head, signature, ..BASE };
        let (Some(input), Some(moved)) = (base.link(), Program { is_first: true, ..base }.link()) else { return };
        assert_no_sequence(&input, &moved);
    }
}

#[test]
fn a_handler_keeps_the_signature_before_it_where_code_makes_the_descriptor() {
    let program = |signature: &str, first: &str, second: &str| {
        let body =
            format!("    lea .Labort(%rip), %rax\n    mov %rax, (%rsi)\n    ret\n{signature}.Labort:\n    mov $1, %eax\n    ret");
        build(&[first, &function("classify", &body), second, UNUSED], ".long 0\n")
    };
    let Some(input) = program(SIGNATURE, TWICE, "") else { return };
    assert_ok(&input, &input);
    assert_conflict(&input, &program("    .byte 0x0f, 0xb9, 0x3d\n    .long 0\n", TWICE, "").unwrap(), "signature");
    // It is not known which of the function is the sequence.
    assert_conflict(&input, &program(SIGNATURE, "", TWICE).unwrap(), "one piece");
    let (Some(input), Some(moved)) = (program(OTHER_SIGNATURE, TWICE, ""), program(OTHER_SIGNATURE, "", TWICE)) else { return };
    assert_no_sequence(&input, &moved);
}
