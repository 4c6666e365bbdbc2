//! Tables between functions that name others by their distance.

use super::layout::link;
use super::*;

const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    lea entry(%rip), %rbx
    xor %edi, %edi
    call *%rbx
    mov @PLACE@(%rbx), %rax
    add %rbx, %rax
    call *%rax
    mov $60, %eax
    syscall
    hlt

    .balign 8
table:
    .quad @DISTANCE@
    .quad 0x20000000e
entry:
    lea 1(%rdi), %edi
    ret
@FUNCTIONS@

    .data
    .balign 8
pointers:
    .quad one
    .quad two
"#;

const ONE: &str = "    .balign 8\none: lea 3(%rdi), %edi\n    ret";
const TWO: &str = "    .balign 8\ntwo: lea 5(%rdi), %edi\n    nop\n    nop\n    ret";

fn build(functions: [&str; 2], distance: &str) -> Option<Vec<u8>> {
    let text = PROGRAM.replace("@PLACE@", "-16").replace("@DISTANCE@", distance);
    link(&text.replace("@FUNCTIONS@", &functions.join("\n")), "-pie")
}

/// The word before the one that tells what the table is of.
fn distance_in(program: &[u8]) -> String {
    let marker = 0x2_0000_000e_u64.to_le_bytes();
    let at = program.windows(8).position(|bytes| bytes == marker).unwrap() - 8;
    i64::from_le_bytes(program[at..at + 8].try_into().unwrap()).to_string()
}

#[test]
fn what_a_word_between_functions_names_by_its_distance_may_not_move() {
    let Some(input) = build([ONE, TWO], "two - entry") else { return };
    assert!(check(&input, &input).unwrap().is_ok());
    let moved = build([TWO, ONE], &distance_in(&input)).unwrap();
    let report = check(&input, &moved).unwrap();
    assert_eq!(kinds(&report), [ViolationKind::StaleReference], "{}", report.summary(10));
}

#[test]
fn a_word_between_functions_that_is_no_distance_to_one_holds_nothing() {
    let Some(input) = build([ONE, TWO], "0x100000") else { return };
    let moved = build([TWO, ONE], "0x100000").unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// Nothing holds its address.
#[test]
fn what_is_only_called_and_named_by_its_distance_may_not_move() {
    let calls = |functions: [&str; 2], distance: &str| {
        let text = PROGRAM.replace("xor %edi, %edi", "call two").replace(".quad two", ".quad 0").replace(".quad one", ".quad 0");
        let text = text.replace("@PLACE@", "-16").replace("@DISTANCE@", distance);
        link(&text.replace("@FUNCTIONS@", &functions.join("\n")), "-pie")
    };
    let Some(input) = calls([ONE, TWO], "two - entry") else { return };
    let moved = calls([TWO, ONE], &distance_in(&input)).unwrap();
    let report = check(&input, &moved).unwrap();
    assert!(kinds(&report).contains(&ViolationKind::StaleReference), "{}", report.summary(10));
}

/// The zeros look like filler, and are where a layout might put something.
#[test]
fn zeros_with_which_a_table_between_functions_begins_stay() {
    let filled = |zeros: &str| {
        let table =
            format!("    .cfi_startproc\n    lea 9(%rdi), %edi\n    ret\n    .cfi_endproc\n    .balign 8\n    {zeros}\ntable:");
        let text =
            PROGRAM.replace("    .balign 8\ntable:", &table).replace("@PLACE@", "-16").replace("@DISTANCE@", "two - entry");
        link(&text.replace("@FUNCTIONS@", &[ONE, TWO].join("\n")), "-pie")
    };
    let Some(input) = filled(".quad 0, 0") else { return };
    assert!(check(&input, &input).unwrap().is_ok());
    for other in [".fill 16, 1, 0xcc", ".quad 0, -1"] {
        let report = check(&input, &filled(other).unwrap()).unwrap();
        assert!(kinds(&report).contains(&ViolationKind::DataChanged), "{other}: {}", report.summary(10));
    }
}

/// Up to 9.0, GHC's compiler wrote 32 bits of a distance, and zeros.
#[test]
fn what_32_bits_and_zeros_name_by_a_distance_back_may_not_move() {
    let before = |functions: [&str; 2], distance: &str| {
        let table = format!("{}\n    .balign 8\ntable:", functions.join("\n"));
        let text = PROGRAM.replace("    .balign 8\ntable:", &table).replace("@FUNCTIONS@", "");
        let text = text.replace("mov @PLACE@(%rbx), %rax", "movslq -16(%rbx), %rax");
        link(&text.replace(".quad @DISTANCE@", &format!(".long {distance}, 0")), "-pie")
    };
    let Some(input) = before([ONE, TWO], "two - entry") else { return };
    assert!(check(&input, &input).unwrap().is_ok());
    let moved = before([TWO, ONE], &distance_in(&input)).unwrap();
    let report = check(&input, &moved).unwrap();
    assert_eq!(kinds(&report), [ViolationKind::StaleReference], "{}", report.summary(10));
}

/// The table is read by the function's address, and only it may be in front of it.
#[test]
fn code_without_a_frame_description_may_not_move_away_from_a_table_before_it() {
    let behind = |table: &str, functions: [&str; 2]| {
        let text = PROGRAM.replace("@PLACE@", "-16").replace("@DISTANCE@", "0x100000");
        link(&text.replace("@FUNCTIONS@", &format!("    .balign 8\n    {table}\n{}", functions.join("\n"))), "-pie")
    };
    for (table, is_one) in
        [(".quad 2, 14", true), (".quad 2, 0x30000001e", true), (".quad 2, 0x100", false), (".quad 2, 0", false)]
    {
        let Some(input) = behind(table, [ONE, TWO]) else { return };
        assert!(check(&input, &input).unwrap().is_ok());
        let report = check(&input, &behind(table, [TWO, ONE]).unwrap()).unwrap();
        assert_eq!(kinds(&report).contains(&ViolationKind::StaleReference), is_one, "{table}: {}", report.summary(10));
    }
}

/// The number is 24 bytes before the second function.
#[test]
fn a_distance_in_an_instruction_that_is_executed_holds_nothing() {
    let behind = |functions: [&str; 2]| {
        let three = "    .balign 8\nthree:\n    .rept 6\n    nop\n    .endr\n    movabs $24, %rax\n    ret";
        let text = PROGRAM.replace("xor %edi, %edi", "call three").replace("@PLACE@", "-16").replace("@DISTANCE@", "0x100000");
        link(&text.replace("@FUNCTIONS@", &format!("{three}\n{}", functions.join("\n"))), "-pie")
    };
    let Some(input) = behind([ONE, TWO]) else { return };
    let report = check(&input, &behind([TWO, ONE]).unwrap()).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

/// Nothing calls what stands before the two functions. The number is 24 bytes before the second of them.
#[test]
fn a_number_in_dead_code_is_no_distance_and_between_functions_it_is_one() {
    let behind = |dead: &str, functions: [&str; 2]| {
        let text = PROGRAM.replace("@PLACE@", "-16").replace("@DISTANCE@", "0x100000");
        link(&text.replace("@FUNCTIONS@", &format!("    .balign 8\n{dead}\n{}", functions.join("\n"))), "-pie")
    };
    let calling = "    push %rbx\n    call 1f\n    movabs $24, %rax\n1:  ret";
    for (dead, is_right) in [
        ("    .rept 6\n    nop\n    .endr\n    movabs $24, %rax\n    ret", true),
        (calling, true),
        // Control does not come to it, or comes from what is no code.
        ("    mov $1, %eax\n    ret\n    nop\n    nop\n    .quad 24\n", false),
        ("    .quad 24", false),
    ] {
        let Some(input) = behind(dead, [ONE, TWO]) else { return };
        let report = check(&input, &behind(dead, [TWO, ONE]).unwrap()).unwrap();
        assert_eq!(report.is_ok(), is_right, "{dead}: {}", report.summary(10));
    }
}
