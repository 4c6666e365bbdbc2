//! Jump tables that clones are followed through, beside the rules that take control to where nothing is known: tail calls, thunks, traps, calls that never return, frames that others see, instructions that are not looked into.

use super::clones::{FOR_5, JUMP, ORIGINAL, calls, compare, table};
use super::contexts::function;

/// A function with four bodies to which a table leads. In its code `@` is its name, `#` the table, and `JUMP` goes through the table in `rdx`.
fn through(name: &str, to: &str, code: &str, bodies: [&str; 4]) -> String {
    let mut body = code.replace("JUMP", JUMP).replace('@', name).replace('#', to);
    for (index, text) in bodies.iter().enumerate() {
        body += &format!("; {name}{index}: {text}; ret");
    }
    function(name, &body)
}

/// What becomes of a function that is called with 5, if its clone has this code and these bodies: whether the clone is found right.
fn is_right((code, clone): (&str, &str), bodies: [&str; 4], (more, more_of_output): (&str, &str), before: &str) -> Option<bool> {
    let order = [0, 1, 2, 3];
    let rodata = format!("    .section .rodata\n{}    .text\n", table(".Ltable", "pick", order));
    let original = through("pick", ".Ltable", code, ORIGINAL) + &rodata;
    let copies = table(".Lone", ".Lclone", order) + &table(".Ltwo", ".Lclone", order);
    let cloned = through(".Lclone", ".Lone", clone, bodies)
        + &copies[..if clone.contains(".Ltwo") { copies.len() } else { copies.len() / 2 }];
    let (input, output) = calls("mov $5, %edi");
    let (input, output) = (format!("{before}; {input}"), format!("{before}; {output}"));
    let report = compare((&input, &format!("{original}{more}")), (&output, &format!("{original}{more_of_output}{cloned}")))?;
    Some(report.is_ok())
}

fn assert_right(code: &str) {
    if let Some(found) = is_right((code, code), FOR_5, ("", ""), "nop") {
        assert!(found, "{code}");
        let wrong = ["mov $6, %eax", "mov $7, %eax", "mov $8, %eax", "xor %eax, %eax"];
        assert_eq!(is_right((code, code), wrong, ("", ""), "nop"), Some(false), "{code}");
    }
}

fn assert_given_away(code: &str) {
    if let Some(found) = is_right((code, code), FOR_5, ("", ""), "nop") {
        assert!(!found, "{code}");
    }
}

#[test]
fn at_a_tail_call_that_ends_a_proof_nothing_has_the_address_of_a_table() {
    // An address of the frame goes elsewhere, and what is called by a jump makes its frame late: the proof has to end there.
    let code = |last: &str| {
        format!(
            "lea #(%rip), %rdx; test %rsi, %rsi; js @8; JUMP; @8: sub $24, %rsp; .cfi_adjust_cfa_offset 24; lea (%rsp), %rax; \
             mov %rax, pointers(%rip); xor %eax, %eax; add $24, %rsp; .cfi_adjust_cfa_offset -24; {last}; jmp other"
        )
    };
    let enter = "push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16";
    let rest = "1: mov %rdi, %rbx; lea 1(%rbx), %rax; mov %rax, pointers(%rip); pop %rbx; .cfi_restore rbx; .cfi_adjust_cfa_offset -8; ret";
    let begin = "test %rdx, %rdx; jne 2f";
    let jump = "2: and $3, %esi; movslq (%rdx,%rsi,4), %rax; add %rdx, %rax; jmp *%rax";
    let early = format!(
        "{begin}; {enter}; test %esi, %esi; jne 1f; lea 3(%rdi), %rax; pop %rbx; .cfi_restore rbx; .cfi_adjust_cfa_offset -8; ret; \
         .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; {rest}; {jump}"
    );
    let late = format!("{begin}; test %esi, %esi; jne 1f; lea 3(%rdi), %rax; ret; 1: {enter}; {}; {jump}", &rest[3..]);
    let others = (function("other", &early), function("other", &late));
    let is_right = |last: &str| {
        let code = code(last);
        is_right((&code, &code), FOR_5, (&others.0, &others.1), "xor %edx, %edx; call other")
    };
    let Some(found) = is_right("xor %edx, %edx") else { return };
    assert!(found);
    for last in ["nop", "lea 8(%rdx), %rdx", "mov %edx, %edx", "mov (%rdx), %edx", "movq %rdx, %xmm0; xor %edx, %edx"] {
        assert_eq!(is_right(last), Some(false), "{last}");
    }
}

#[test]
fn a_thunk_takes_control_elsewhere_with_all_that_registers_have() {
    let code = |callee: &str| {
        let restore = "pop %rbx; .cfi_restore rbx; .cfi_adjust_cfa_offset -8";
        format!(
            "push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; lea #(%rip), %rbx; mov %rsi, %r11; test %rsi, %rsi; js @8; mov %rbx, %rdx; \
             {restore}; JUMP; @8: .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; call {callee}; {restore}; ret"
        )
    };
    let others = function(".Lthunk", "mov %r11, (%rsp); ret") + &function(".Lleaf", "mov %r11, -8(%rsp); mov %r11, %rax; ret");
    let is_right = |callee| {
        let code = code(callee);
        is_right((&code, &code), FOR_5, (&others, &others), "nop")
    };
    let Some(found) = is_right(".Lleaf") else { return };
    assert!(found);
    assert_eq!(is_right(".Lthunk"), Some(false));
}

#[test]
fn what_was_made_of_the_address_of_a_table_is_known_wherever_it_goes() {
    let sometimes = "test %rsi, %rsi; js @8; nop; @8: nop";
    let begin = "lea #(%rip), %rdx";
    assert_right(&format!("{begin}; lea 8(%rdx), %rcx; {sometimes}; JUMP"));
    for (made, given) in [
        ("lea 8(%rdx), %rcx", "mov %rcx, pointers(%rip)"),
        ("mov %edx, %ecx", "mov %rcx, pointers(%rip)"),
        ("lea (%rdx,%rsi,4), %rcx", "mov %rcx, pointers(%rip)"),
        ("movslq 4(%rdx), %rcx", "mov %rcx, pointers(%rip)"),
        ("movq %rdx, %xmm1", "movq %xmm1, pointers(%rip)"),
        ("mov %rdx, -8(%rsp)", "mov -8(%rsp), %rcx; mov %rcx, pointers(%rip)"),
        ("mov %rdi, %rcx; test %rsi, %rsi; js @7; mov %rdx, %rcx; @7: nop", "mov %rcx, pointers(%rip)"),
    ] {
        assert_given_away(&format!("{begin}; {made}; {sometimes}; {given}; JUMP"));
        assert_given_away(&format!("{begin}; {made}; {given}; JUMP"));
    }
}

#[test]
fn what_is_not_looked_into_may_give_the_address_of_a_table_away() {
    let begin = "lea #(%rip), %rdx; mov %rdx, %rcx";
    assert_right(&format!("{begin}; lock cmpxchg %rsi, pointers(%rip); JUMP"));
    assert_given_away(&format!("{begin}; lock cmpxchg %rcx, pointers(%rip); JUMP"));
    assert_given_away(&format!("{begin}; lock xadd %rcx, pointers(%rip); JUMP"));
}

#[test]
fn behind_a_trap_or_a_call_that_never_returns_nothing_has_the_address_of_a_table() {
    let with_slot = |last: &str| {
        format!(
            "sub $24, %rsp; .cfi_adjust_cfa_offset 24; lea #(%rip), %rdx; mov %rdx, 8(%rsp); xor %edx, %edx; test %rsi, %rsi; js @8; {last}; \
             @8: mov 8(%rsp), %rdx; add $24, %rsp; .cfi_adjust_cfa_offset -24; JUMP"
        )
    };
    assert_right(&with_slot("nop"));
    assert_given_away(&with_slot("int3"));
    let code = |last: &str| {
        format!(
            "push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; lea #(%rip), %rbx; test %rsi, %rsi; js @8; {last}; @8: \
             mov %rbx, %rdx; pop %rbx; .cfi_restore rbx; .cfi_adjust_cfa_offset -8; JUMP"
        )
    };
    let others = function(".Lend", "hlt") + &function(".Lleaf", "ret");
    let is_right = |last: &str| {
        let code = code(last);
        is_right((&code, &code), FOR_5, (&others, &others), "nop")
    };
    assert_ne!(is_right("call .Lleaf"), Some(false));
    assert_ne!(is_right("call .Lend"), Some(true));
}

#[test]
fn a_slot_with_the_address_of_a_table_is_seen_where_the_frame_is() {
    let code = |value: &str| {
        format!(
            "sub $24, %rsp; .cfi_adjust_cfa_offset 24; lea #(%rip), %rdx; mov {value}, 8(%rsp); lea 8(%rsp), %rcx; mov %rcx, pointers(%rip); \
             add $24, %rsp; .cfi_adjust_cfa_offset -24; JUMP"
        )
    };
    assert_right(&code("%rsi"));
    assert_given_away(&code("%rdx"));
}

#[test]
fn what_reads_an_argument_gets_no_address_of_a_table() {
    let code =
        |callee: &str| format!("lea #(%rip), %rdx; mov %rdx, %rcx; call {callee}; lea #(%rip), %rdx; mov %eax, %esi; JUMP");
    let aligned = |callee| {
        format!(
            "sub $8, %rsp; .cfi_adjust_cfa_offset 8; {}",
            code(callee).replace("JUMP", "add $8, %rsp; .cfi_adjust_cfa_offset -8; JUMP")
        )
    };
    let others = function(".Lreads", "mov (%rcx), %eax; ret") + &function(".Lleaves", "mov %esi, %eax; ret");
    let is_right = |callee| {
        let code = aligned(callee);
        is_right((&code, &code), FOR_5, (&others, &others), "nop")
    };
    assert_ne!(is_right(".Lleaves"), Some(false));
    assert_ne!(is_right(".Lreads"), Some(true));
}

#[test]
fn all_entries_are_followed_that_any_instruction_that_names_the_table_counts() {
    // The clone is not passed the number, and one of its bodies needs it.
    let jump = "mov %esi, %ecx; movslq (%rdx,%rcx,4), %rax; add %rdx, %rax; jmp *%rax";
    let counted = |count: u32| format!("cmp ${count}, %esi; ja @9; lea #(%rip), %rdx; {jump}");
    let needs = ["mov $6, %eax", "mov $7, %eax", ORIGINAL[2], "xor %eax, %eax"];
    for (first, second) in [(1, 3), (3, 1)] {
        let code = format!("test %rsi, %rsi; js @8; {}; @8: {}; @9: xor %eax, %eax; ret", counted(first), counted(second));
        let with =
            |bodies| is_right((&code, &code.replacen("test %rsi", "mov %ebx, %edi; test %rsi", 1)), bodies, ("", ""), "nop");
        assert_ne!(with(FOR_5), Some(false));
        assert_ne!(with(needs), Some(true), "{code}");
    }
}

#[test]
fn an_entry_of_another_table_is_wrong_even_where_all_that_both_lead_to_is_the_same() {
    let code = |first: &str, second: &str, between: &str| {
        format!("lea {first}(%rip), %rdx; lea {second}(%rip), %rcx; {between}; {}", JUMP.replace("add %rdx", "add %rcx"))
    };
    let input = format!("{}; @9: xor %eax, %eax; ret", code("#", "#", "cmp $5, %edi; jne @9"));
    let with = |first, second| is_right((&input, &code(first, second, "nop")), ORIGINAL, ("", ""), "nop");
    assert_ne!(with(".Lone", ".Lone"), Some(false));
    for (first, second) in [(".Lone", ".Ltwo"), (".Ltwo", ".Lone"), (".Lone", ".Ltable"), (".Ltable", ".Lone")] {
        assert_ne!(with(first, second), Some(true), "{first} {second}");
    }
}

#[test]
fn a_return_to_what_was_put_on_the_stack_goes_where_the_input_goes() {
    let clone = "lea 1(%rsi), %rax; push %rsi; .cfi_adjust_cfa_offset 8; ret";
    let original = function("pick", &format!("cmp $5, %edi; jne 1f; {clone}; .cfi_adjust_cfa_offset -8; 1: xor %eax, %eax; ret"));
    let (input, output) = calls("mov $5, %edi");
    let with = |clone: &str| {
        let report = compare((&input, &original), (&output, &format!("{original}{}", function(".Lclone", clone))))?;
        Some(report.is_ok())
    };
    assert_ne!(with(clone), Some(false));
    assert_ne!(with(&clone.replace("push %rsi", "push %rax")), Some(true));
    assert_ne!(with(&clone.replace("push %rsi", "push %rbx")), Some(true));
}

#[test]
fn a_call_through_a_table_follows_none_of_its_entries() {
    // Another body is called than is jumped to, of which nobody knows more than that it is an entry.
    let code = |call: &str| {
        format!(
            "test %rsi, %rsi; js @8; lea #(%rip), %rdx; JUMP; @8: sub $8, %rsp; .cfi_adjust_cfa_offset 8; lea #(%rip), %rdx; movslq 4(%rdx), %rax; \
             add %rdx, %rax; {call}; add $8, %rsp; .cfi_adjust_cfa_offset -8; ret"
        )
    };
    assert_right(&code("xor %eax, %eax"));
    assert_given_away(&code("call *%rax"));
}

#[test]
fn what_is_read_beside_a_table_is_not_what_is_read_beside_its_copy() {
    for read in ["mov -8(%rdx), %ecx", "mov 64(%rdx), %rcx", "mov -16(%rdx,%rsi,4), %ecx"] {
        let code = format!("lea #(%rip), %rdx; {read}; mov %rcx, -8(%rsp); mov -8(%rsp), %ecx; add %ecx, %esi; {JUMP}");
        assert_ne!(is_right((&code, &code), FOR_5, ("", ""), "nop"), Some(true), "{read}");
    }
}
