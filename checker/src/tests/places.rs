//! Functions that have to stay in one piece, because others look at where the program was interrupted, or mark pointers to them.

use super::layout::{TWICE, UNUSED, build, build_fixed, function};
use super::*;

/// A function, then one that calls it, then more, in an order that moves the last two.
fn around(first: &str, second: &str) -> [Option<Vec<u8>>; 2] {
    let build = |functions: &[&str]| build(functions, ".long 0\n");
    [build(&[first, second, TWICE, UNUSED]), build(&[first, second, UNUSED, TWICE])]
}

fn assert_ok(input: &[u8], output: &[u8]) {
    let report = check(input, output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
}

const AS_WRITTEN: &str =
    "    test %edi, %edi\n.Lfirst:\n    je .Llast\n    mov $7, %eax\n    ret\n.Llast:\n    xor %eax, %eax\n    ret";
const RELAID: &str = "    test %edi, %edi\n.Lfirst:\n    jne 1f\n.Llast:\n    xor %eax, %eax\n    ret\n1:  mov $7, %eax\n    ret";

/// Asks whether an address is between two labels.
fn asks(first: &str, last: &str) -> String {
    let body = format!(
        "    lea {first}(%rip), %rax\n    lea {last}(%rip), %rdx\n    cmp %rax, %rsi\n    jb 1f\n    cmp %rdx, %rsi\n    ja 1f\n    nop\n1:  call wait\n    ret"
    );
    function("classify", &body)
}

#[test]
fn a_function_in_which_another_names_places_may_not_be_laid_out_anew() {
    let (wait, relaid) = (function("wait", AS_WRITTEN), function("wait", RELAID));
    let asks = asks(".Lfirst", ".Llast");
    let [Some(input), Some(moved)] = around(&wait, &asks) else { return };
    assert_ok(&input, &moved);
    let [Some(wrong), _] = around(&relaid, &asks) else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
    // As a whole it may not move either: nothing says from where the places are counted.
    let [Some(wrong), _] = around(&asks, &wait) else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
}

#[test]
fn a_function_may_not_be_laid_out_anew_if_the_global_offset_table_names_a_place_in_it() {
    let (wait, relaid) = (function("wait", AS_WRITTEN), function("wait", RELAID));
    let asks = |first: &str| {
        let body = format!("    cmp {first}@GOTPCREL(%rip), %rsi\n    jb 1f\n    nop\n1:  call wait\n    ret");
        function("classify", &body)
    };
    let through_table = asks(".Lfirst");
    let [Some(input), Some(moved)] = around(&wait, &through_table) else { return };
    assert_ok(&input, &moved);
    let [Some(wrong), _] = around(&relaid, &through_table) else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
    let ([Some(input), _], [Some(relaid), _]) = (around(&wait, &asks("wait")), around(&relaid, &asks("wait"))) else { return };
    assert_ok(&input, &relaid);
}

#[test]
fn a_function_of_which_another_names_the_entry_alone_may_be_laid_out_anew() {
    let asks = asks("wait", "wait");
    let ([Some(input), _], [Some(moved), _]) =
        (around(&function("wait", AS_WRITTEN), &asks), around(&function("wait", RELAID), &asks))
    else {
        return;
    };
    assert_ok(&input, &moved);
}

#[test]
fn a_function_of_which_another_names_the_end_may_not_be_laid_out_anew() {
    let ended = |body| function("wait", body) + "wait_end:\n    .balign 16, 0x90\n";
    let asks = asks("wait", "wait_end");
    let [Some(input), Some(moved)] = around(&ended(AS_WRITTEN), &asks) else { return };
    assert_ok(&input, &moved);
    let [Some(wrong), _] = around(&ended(RELAID), &asks) else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
}

/// A function with a pointer to it in data that is `mark` bytes behind its entry, and one that calls it.
fn marked(mark: u8) -> [String; 2] {
    let body =
        "    push %rbx\n    .cfi_def_cfa_offset 16\n    lea 1(%rdi), %eax\n    pop %rbx\n    .cfi_def_cfa_offset 8\n    ret";
    let data = format!("    .data\n    .balign 8\n    .quad marked + {mark}\n    .text\n");
    [function("marked", body) + &data, function("classify", "    call marked\n    ret")]
}

#[test]
fn a_function_with_a_marked_pointer_to_it_may_not_move() {
    let [with, caller] = marked(1);
    let [Some(input), Some(moved)] = around(&with, &caller) else { return };
    assert_ok(&input, &moved);
    let [Some(wrong), _] = around(&caller, &with) else { return };
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::Conflict]);
    let [with, caller] = marked(0);
    let ([Some(input), _], [Some(moved), _]) = (around(&with, &caller), around(&caller, &with)) else { return };
    assert_ok(&input, &moved);
}

#[test]
fn nothing_may_move_where_frames_are_described_in_a_form_that_is_not_compared() {
    let frames = "    .section .sframe, \"a\"\n    .quad 0\n    .text\n";
    let classify = function("classify", "    call twice\n    ret") + frames;
    let [Some(input), Some(wrong)] = around(&classify, "") else { return };
    assert_ok(&input, &input);
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::UnwindTable]);
}

/// A table of version 2 that describes one function.
fn frames_of(label: &str, version: u8) -> String {
    format!(
        "    .section .sframe, \"a\"\n    .byte 0xe2, 0xde, {version}, 5, 3, 0, 0xf8, 0\n    .long 1, 0, 0, 0, 20\n    .long {label} - ., 8, 0, 0, 0\n    .text\n"
    )
}

#[test]
fn only_code_of_which_frames_are_described_has_to_stay() {
    let classify = |label: &str, version| function("classify", "    call twice\n    ret") + &frames_of(label, version);
    let [Some(input), Some(moved)] = around(&classify("classify", 2), "") else { return };
    assert_ok(&input, &moved);
    for (label, version) in [("twice", 2), ("classify", 3)] {
        let [Some(input), Some(mut wrong)] = around(&classify(label, version), "") else { return };
        assert_ok(&input, &input);
        // The table is what it was.
        let table = |bytes: &[u8]| bytes.windows(5).position(|window| window == [0xe2, 0xde, version, 5, 3]).unwrap();
        let (from, to) = (table(&input), table(&wrong));
        wrong[to..to + 48].copy_from_slice(&input[from..from + 48]);
        let report = check(&input, &wrong).unwrap();
        assert_eq!(kinds(&report), [ViolationKind::UnwindTable], "{label} {version}: {}", report.summary(10));
    }
}

#[test]
fn code_to_which_nothing_leads_is_compared_at_its_place_in_a_function_that_has_to_stay_in_one_piece() {
    let with = |numbers: [u8; 2]| {
        let [one, other] = numbers.map(|number| format!("    mov ${number}, %eax\n    ret\n"));
        function("wait", &format!("{AS_WRITTEN}\n{one}{other}"))
    };
    let asks = asks(".Lfirst", ".Llast");
    let ([Some(input), Some(moved)], [_, Some(wrong)]) = (around(&with([1, 2]), &asks), around(&with([2, 1]), &asks)) else {
        return;
    };
    assert_ok(&input, &moved);
    assert_eq!(kinds(&check(&input, &wrong).unwrap()), [ViolationKind::InstructionMismatch]);
}

/// A function with two instructions behind its entry, as it is written, and with a jump where it was.
const STAYS: &str = "wait:\n    .cfi_startproc\n    test %edi, %edi\n    je .Lnone\n    cmp $1, %edi\n    nop\n.Lplace:\n    mov $7, %eax\n    ret\n\
                     .Lnone:\n    xor %eax, %eax\n    ret\n    .cfi_endproc\n";

fn jumps_to_copy() -> String {
    let copy = STAYS.replace("wait", "copy").replace(".L", ".Lcopied_");
    format!(
        "wait:\n    .byte 0xe9\n    .long copy - . - 4\n    .fill 3, 1, 0xcc\n.Lplace:\n    .byte 0xe9\n    .long .Lcopied_place - . - 4\n    .fill 4, 1, 0xcc\n{copy}"
    )
}

/// A function with numbers that may be addresses, and a call of the one that they may be in.
fn has_numbers(numbers: [&str; 2]) -> String {
    let [first, second] = numbers;
    function("classify", &format!("    {first}\n    {second}\n    call wait\n    ret"))
}

#[test]
fn numbers_at_a_fixed_address_name_places_if_two_in_one_function_lead_to_instructions_of_another() {
    let kinds_with = |numbers| {
        let asks = has_numbers(numbers);
        let input = build_fixed(&[TWICE, UNUSED, &asks, STAYS], ".long 0\n")?;
        let output = build_fixed(&[TWICE, UNUSED, &asks, &jumps_to_copy()], ".long 0\n")?;
        Some(kinds(&check(&input, &output).unwrap()))
    };
    let places =
        ["mov $.Lplace, %eax", "movabs $.Lplace, %rax", "cmp $.Lplace, %eax", "sub $.Lplace, %ecx", "add $.Lplace, %rdx"];
    for first in places {
        let Some(found) = kinds_with([first, "mov $wait, %edx"]) else { return };
        assert_eq!(found, [ViolationKind::Conflict], "{first}");
    }
    // Nobody takes bits of an address.
    for first in ["test $.Lplace, %eax", "test $.Lplace, %ecx", "and $.Lplace, %edx", "or $.Lplace, %rax", "xor $.Lplace, %esi"] {
        assert_eq!(kinds_with([first, "mov $wait, %edx"]).unwrap(), [], "{first}");
    }
    // Middles of instructions are no places, and the upper half of a number is no number.
    let upper_half = [".byte 0x48, 0xb8\n    .long 0, .Lplace", ".byte 0x48, 0xba\n    .long 0, wait"];
    let chances =
        [["mov $.Lplace, %eax", "mov $.Lplace + 1, %edx"], ["mov $.Lplace + 2, %eax", "mov $.Lplace + 1, %edx"], upper_half];
    for numbers in chances {
        assert_eq!(kinds_with(numbers).unwrap(), [], "{numbers:?}");
    }
}

#[test]
fn a_marked_pointer_to_a_short_function_that_stays_is_good_whatever_filler_is_behind_it() {
    let stays = |body: &str, filler: &str| {
        let code = format!("    .balign 16\nmarked:\n    .cfi_startproc\n{body}    .cfi_endproc\n");
        format!("{code}    .balign 16, {filler}\n")
    };
    let holder = function("classify", "    lea marked + 1(%rip), %rax\n    ret");
    let body = "    endbr64\n    ret\n";
    let Some(input) = build(&[&stays(body, "0x90"), &holder, TWICE, UNUSED], ".long 0\n") else { return };
    let output = |body: &str| build(&[&stays(body, "0xcc"), TWICE, &holder, UNUSED], ".long 0\n").unwrap();
    assert_ok(&input, &output(body));
    let report = check(&input, &output("    endbr64\n    hlt\n")).unwrap();
    assert!(!report.is_ok());
}

#[test]
fn stubs_with_one_frame_description_are_no_places_of_each_other() {
    let stubs = "    .balign 16\nstubs:\n    .cfi_startproc\n    push handlers(%rip)\n    jmp *handlers(%rip)\n    .balign 16\n\
                 wait:\n    jmp *handlers(%rip)\n    .balign 16\n\
                 other:\n    jmp *handlers + 8(%rip)\n    .cfi_endproc\n";
    let asks =
        |call: &str| function("classify", &format!("    mov $wait, %rax\n    mov $other, %rdx\n    {call}\n    nop\n    ret"));
    let build = |call: &str| build_fixed(&[TWICE, UNUSED, stubs, &asks(call)], ".long 0\n");
    let (Some(input), Some(output)) = (build("call wait\n    nop"), build("call *handlers(%rip)")) else { return };
    assert_ok(&input, &output);
}

/// A function that counts from an address behind its end, what stands there, and more functions in an order that moves them.
fn counts(behind: u32, filler: &str) -> [Option<Vec<u8>>; 2] {
    let body = format!("    lea .Lcounts+{behind}(%rip), %rax\n    mov 0x10(%rax,%rdi), %eax\n    ret");
    let counts = function("classify", &body).replace("    .cfi_endproc\n", "    .cfi_endproc\n.Lcounts:\n");
    let build = |functions: &[&str]| build(functions, ".long 0\n");
    let more = function("more", "    mov $0x12345678, %eax\n    add $0x12345678, %edi\n    add %edi, %eax\n    ret");
    [build(&[&counts, filler, TWICE, &more, UNUSED]), build(&[&counts, UNUSED, TWICE, &more])]
}

#[test]
fn what_is_counted_from_inside_an_instruction_of_filler_names_nothing_that_is_there() {
    const NOP: &str = "    .byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0\n";
    let twice = NOP.repeat(2);
    for behind in [2, 13] {
        let [Some(input), Some(moved)] = counts(behind, &twice) else { return };
        assert_ok(&input, &moved);
    }
    // Between two of them a label may stand, and where anything else does, data may.
    let with = |more: &str| format!("{twice}{more}");
    let wrong =
        [(8, twice.clone()), (2, with("    ret\n")), (2, with("    .byte 0x0f, 0x1f\n    .quad 7\n")), (26, twice.clone())];
    for (behind, filler) in wrong {
        let [Some(input), Some(moved)] = counts(behind, &filler) else { return };
        let report = check(&input, &moved).unwrap();
        assert!(kinds(&report).contains(&ViolationKind::StaleReference), "{behind} {filler}: {}", report.summary(10));
    }
}
