//! Registers in which the two programs differ: where nobody reads them that is right, and where somebody may it is seen.

use super::layout::link;
use super::*;

/// `work` returns to `_start` and to `mid`; what both do with `r11` then is `@BEHIND@` and `@MID@`. `pass` keeps `r11`, and `user` relies on that.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    mov $2, %edi
    call work
@BEHIND@
    call other
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start

    .type work, @function
work:
    .cfi_startproc
@WORK@
    .cfi_endproc
    .size work, . - work

    .type other, @function
other:
    .cfi_startproc
    lea (%rdi,%rsi), %eax
    mov $7, %r11d
    ret
    .cfi_endproc
    .size other, . - other

    .type pass, @function
pass:
    .cfi_startproc
    lea 1(%rdi), %eax
    ret
    .cfi_endproc
    .size pass, . - pass

    .type user, @function
user:
    .cfi_startproc
    mov $5, %r11d
    call pass
    add %r11d, %eax
    ret
    .cfi_endproc
    .size user, . - user

    .type mid, @function
mid:
    .cfi_startproc
    sub $8, %rsp
    .cfi_def_cfa_offset 16
    call work
    mov %eax, %edi
    add $8, %rsp
    .cfi_def_cfa_offset 8
@MID@
    .cfi_endproc
    .size mid, . - mid

    .type tail, @function
tail:
    .cfi_startproc
    add $1, %edi
    jmp work
    .cfi_endproc
    .size tail, . - tail

    .type caller, @function
caller:
    .cfi_startproc
@CALLER@
    ret
    .cfi_endproc
    .size caller, . - caller

    .org 0x400, 0xcc
    .section .rodata, "a"
    .balign 4
table:
    .long 7b - table, 8b - table
other_table:
    .long 13b - other_table, 14b - other_table
    .section .data
    .balign 8
pointers:
    .quad work, user, mid, tail, caller
"#;

const EARLY: &str = "    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rdi, %rbx
    test %edi, %edi
    je 1f
    fld1
    fstp %st(0)
    lea 3(%rbx), %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
1:
    .cfi_def_cfa_offset 16
    call other
    add %rbx, %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret";
const LATE: &str = "    mov %rdi, %r11
    test %edi, %edi
    je 1f
    fld1
    fstp %st(0)
    lea 3(%r11), %rax
    ret
1:
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rdi, %rbx
    call other
    add %rbx, %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret";

/// `rsi`, which `other` reads, is put aside.
const ASIDE: &str = "    movq %rsi, %xmm15
    mov %rdi, %rsi
    test %edi, %edi
    je 1f
    fld1
    fstp %st(0)
    lea 3(%rsi), %rax
    movq %xmm15, %rsi
    ret
1:
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    mov %rsi, %rbx
    movq %xmm15, %rsi
    call other
    add %rbx, %rax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret";

/// What is behind the calls of `work` in `_start` and `mid`, and what `caller` does.
#[derive(Copy, Clone, Debug)]
struct Behind {
    start: &'static str,
    mid: &'static str,
    caller: &'static str,
}

const QUIET: Behind = Behind { start: "    mov %eax, %edi", mid: "    mov $1, %r11d\n    ret", caller: "    nop" };
/// A jump through a table, one entry of which reads the register.
const SWITCH: &str = "    and $1, %eax
    lea table(%rip), %rdx
    movslq (%rdx,%rax,4), %rax
    add %rdx, %rax
    jmp *%rax
7:
    mov $1, %edi
    jmp 9f
8:
    mov $2, %edi
9:";

fn is_right(behind: Behind) -> bool {
    is_right_as(LATE, behind)
}

fn is_right_as(late: &str, behind: Behind) -> bool {
    is_right_in(PROGRAM, late, behind)
}

fn is_right_in(program: &str, late: &str, behind: Behind) -> bool {
    let table = if behind.start.contains("7:") { "" } else { "    jmp 9f\n7:\n8:\n    nop\n9:\n" };
    let other = if behind.start.contains("13:") { "" } else { "    jmp 19f\n13:\n14:\n    nop\n19:\n" };
    let text = program.replace("@BEHIND@", &format!("{table}{other}{}", behind.start));
    let text = text.replace("@MID@", behind.mid).replace("@CALLER@", behind.caller);
    let build = |work: &str| link(&text.replace("@WORK@", work), "-pie").unwrap();
    assert!(check(&build(EARLY), &build(EARLY)).unwrap().is_ok());
    check(&build(EARLY), &build(late)).unwrap().is_ok()
}

fn can_link() -> bool {
    link(
        &PROGRAM
            .replace("@BEHIND@", "7:\n8:\n13:\n14:")
            .replace("@WORK@", EARLY)
            .replace("@MID@", "ret")
            .replace("@CALLER@", "nop"),
        "-pie",
    )
    .is_some()
}

#[test]
fn a_register_that_is_written_before_it_is_read_may_differ() {
    if !can_link() {
        return;
    }
    assert!(is_right(QUIET));
    assert!(is_right(Behind { start: "    test %eax, %eax\n    setg %r11b\n    movzbl %r11b, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    test %eax, %eax\n    setg %r11b\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    test %eax, %eax\n    cmovg %r11d, %edi", ..QUIET }));
}

#[test]
fn a_call_on_the_way_returns_to_where_it_was_made() {
    if !can_link() {
        return;
    }
    assert!(
        is_right(Behind { start: "    mov %eax, %edi\n    call pass\n    mov %eax, %edi", ..QUIET }),
        "`user` is not returned to"
    );
    assert!(!is_right(Behind { start: "    mov %eax, %edi\n    call pass\n    mov %r11d, %edi", ..QUIET }));
    assert!(is_right(Behind { mid: "    jmp pass", ..QUIET }), "`pass` returns to callers of `mid` then");
    assert!(!is_right(Behind { mid: "    jmp pass", caller: "    call mid\n    add %r11d, %eax", ..QUIET }));
}

/// `_start` calls what `rax` says, through a thunk in parts, the first of which looks as if it never came back.
const THUNK: &str = "    mov %eax, %edi
    lea caller(%rip), %rax
@CLEAR@
    call 31f
    jmp 39f
31:
    call 33f
32:
    pause
    lfence
    jmp 32b
33:
    mov %rax, (%rsp)
    ret
39:";

#[test]
fn a_thunk_for_indirect_calls_leads_to_what_may_read_arguments() {
    if !can_link() {
        return;
    }
    let late = LATE.replace("r11", "rcx");
    let caller = "    lea (%rdi,%rcx), %edi";
    let with = |clear: &str| Behind { start: THUNK.replace("@CLEAR@", clear).leak(), caller, ..QUIET };
    assert!(is_right_as(&late, QUIET));
    assert!(is_right_as(&late, with("    xor %ecx, %ecx")), "what is written before the call is nobody's");
    assert!(!is_right_as(&late, with("    nop")));
}

#[test]
fn what_holds_for_the_callers_of_a_tail_call_does_not_hold_for_others() {
    if !can_link() {
        return;
    }
    // Nobody reads `rsi` behind `tail`, which ends in a jump to `work`; behind calls of `work` somebody does.
    let lost = ASIDE.replace("lea 3(%rsi), %rax\n    movq %xmm15, %rsi", "lea 3(%rsi), %rax");
    for set in ["mov pointers(%rip), %rsi", "add $1, %edi", "nop"] {
        let program = PROGRAM.replace("    add $1, %edi\n    jmp work", &format!("    {set}\n    jmp work"));
        assert!(!is_right_in(&program, &lost, QUIET), "{set}");
        assert!(is_right_in(&program, &lost, Behind { start: "    mov %eax, %edi\n    mov $4, %esi", ..QUIET }), "{set}");
    }
}

#[test]
fn a_tail_call_returns_to_the_callers_of_both() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { caller: "    call tail\n    mov %eax, %edi\n    call other", ..QUIET }));
    assert!(!is_right(Behind { caller: "    call tail\n    add %r11d, %eax", ..QUIET }));
}

#[test]
fn a_register_is_read_where_a_jump_table_leads_to() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { start: SWITCH, ..QUIET }));
    let reads: &'static str = Box::leak(SWITCH.replace("mov $2, %edi", "mov %r11d, %edi").into_boxed_str());
    assert!(!is_right(Behind { start: reads, ..QUIET }));
}

#[test]
fn a_descriptor_of_thread_local_storage_keeps_all_registers() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { start: "    lea pointers(%rip), %rax\n    call *8(%rax)\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    lea pointers(%rip), %rax\n    call *(%rax)\n    mov %r11d, %edi", ..QUIET }));
}

#[test]
fn what_may_be_a_call_of_a_descriptor_may_be_any_other_and_reads_arguments() {
    if !can_link() {
        return;
    }
    let lost = ASIDE.replace("lea 3(%rsi), %rax\n    movq %xmm15, %rsi", "lea 3(%rsi), %rax");
    let start = |start: &'static str| is_right_as(&lost, Behind { start, ..QUIET });
    assert!(start("    mov $4, %esi\n    lea pointers(%rip), %rax\n    call *(%rax)\n    mov $4, %esi"));
    assert!(!start("    lea pointers(%rip), %rax\n    call *(%rax)\n    mov $4, %esi"));
    assert!(!start("    lea pointers(%rip), %rax\n    call *8(%rax)\n    mov $4, %esi"));
}

/// Two registers are put aside, of which one search asks.
fn is_right_for_two(start: &'static str) -> bool {
    let two = ASIDE.replacen("movq %rsi, %xmm15", "movq %rdx, %xmm14\n    movq %rsi, %xmm15", 1);
    is_right_as(&two, Behind { start, ..QUIET })
}

#[test]
fn registers_that_are_asked_for_at_once_are_answered_one_by_one() {
    if !can_link() {
        return;
    }
    assert!(is_right_for_two("    movq %xmm13, %rdi"));
    assert!(!is_right_for_two("    movq %xmm14, %rdi"));
    assert!(!is_right_for_two("    movq %xmm15, %rdi"));
    assert!(!is_right_for_two("    pxor %xmm15, %xmm15\n    movq %xmm14, %rdi"));
    assert!(is_right_for_two("    pxor %xmm15, %xmm15\n    pxor %xmm14, %xmm14\n    movq %xmm14, %rdi\n    movq %xmm15, %rdi"));
}

#[test]
fn a_place_is_looked_at_again_for_a_register_that_comes_there_on_another_way_only() {
    if !can_link() {
        return;
    }
    const WAYS: &str = "    test %eax, %eax\n    je 1f\n    pxor @FIRST@\n@CALL@    jmp 2f\n1:\n    pxor @SECOND@\n@CALL@2:\n    movq %xmm14, %rdi";
    let ways = |first: &str, second: &str, call: &str| -> &'static str {
        let text = WAYS.replace("@FIRST@", first).replace("@SECOND@", second).replace("@CALL@", call);
        Box::leak(text.into_boxed_str())
    };
    let (read, other) = ("%xmm14, %xmm14", "%xmm15, %xmm15");
    for call in ["", "    call pass\n"] {
        assert!(is_right_for_two(ways(read, read, call)), "{call}");
        assert!(!is_right_for_two(ways(read, other, call)), "{call}");
        assert!(!is_right_for_two(ways(other, read, call)), "{call}");
    }
}

#[test]
fn what_is_put_aside_may_be_an_extension_of_less() {
    if !can_link() {
        return;
    }
    let tail = |set: &str| PROGRAM.replace("    add $1, %edi\n    jmp work", &format!("    {set}\n    jmp work"));
    for set in ["mov %edi, %esi", "mov pointers(%rip), %esi", "movzbl pointers(%rip), %esi", "mov pointers(%rip), %rsi"] {
        let program = tail(set);
        assert!(is_right_in(&program, ASIDE, QUIET), "{set}");
        let wrong = ASIDE.replacen("lea 3(%rsi), %rax\n    movq %xmm15, %rsi", "lea 3(%rsi), %rax\n    movd %xmm15, %esi", 1);
        assert!(!is_right_in(&program, &wrong, QUIET), "{set}: half of it comes back");
        let wrong = ASIDE.replacen("lea 3(%rsi), %rax\n    movq %xmm15", "lea 3(%rsi), %rax\n    movq %xmm14", 1);
        assert!(!is_right_in(&program, &wrong, QUIET), "{set}: another one comes back");
    }
}

#[test]
fn a_register_may_be_put_aside_in_a_vector_register_and_has_to_come_back() {
    if !can_link() {
        return;
    }
    assert!(is_right_as(ASIDE, QUIET));
    assert!(!is_right_as(&ASIDE.replacen("movq %rsi, %xmm15", "movq %rdx, %xmm15", 1), QUIET), "another one is put aside");
    assert!(!is_right_as(&ASIDE.replace("mov %rsi, %rbx\n    movq %xmm15, %rsi", "mov %rsi, %rbx"), QUIET), "it stays away");
    assert!(!is_right_as(&ASIDE.replacen("movq %xmm15, %rsi\n    call", "movd %xmm15, %esi\n    call", 1), QUIET), "half of it");
    assert!(!is_right_as(&ASIDE.replacen("movq %xmm15, %rsi\n    call", "movq %xmm14, %rsi\n    call", 1), QUIET));
    // `other` reads it behind one of the calls; with a number of its own it does not.
    let lost = ASIDE.replace("lea 3(%rsi), %rax\n    movq %xmm15, %rsi", "lea 3(%rsi), %rax");
    assert!(!is_right_as(&lost, QUIET));
    let sets = Behind { start: "    mov %eax, %edi\n    mov $4, %esi", ..QUIET };
    assert!(is_right_as(&lost, sets) && is_right_as(ASIDE, sets));
}

#[test]
fn a_vector_register_in_which_something_is_put_aside_is_read_by_nobody() {
    if !can_link() {
        return;
    }
    let start = |start: &'static str| is_right_as(ASIDE, Behind { start, ..QUIET });
    assert!(!start("    movq %xmm15, %rdi"));
    assert!(start("    pxor %xmm15, %xmm15\n    movq %xmm15, %rdi"));
    assert!(start("    movaps %xmm1, %xmm15\n    addps %xmm15, %xmm0"));
    assert!(!start("    movsd %xmm1, %xmm15\n    addps %xmm15, %xmm0"), "half of it stays");
    assert!(!start("    cvtsi2sd %rdi, %xmm15\n    movq %xmm15, %rdi"), "so it does here");
    assert!(!start("    vaddps %ymm15, %ymm0, %ymm0"));
    assert!(start("    vpxor %xmm15, %xmm15, %xmm15\n    vmovq %xmm15, %rdi"));
    assert!(start("    vmovd %edi, %xmm15\n    vmovq %xmm15, %rdi"));
    assert!(!start("    fxsave -512(%rsp)"));
    assert!(start("    movq %xmm14, %rdi"));
    assert!(!is_right_as(&ASIDE.replace("xmm15", "xmm7"), QUIET), "it may bring an argument");
    assert!(!is_right_as(ASIDE, Behind { caller: "    call work\n    movaps %xmm15, %xmm0", ..QUIET }));
    assert!(!is_right_as(ASIDE, Behind { mid: "    jmp pass", caller: "    call mid\n    addps %xmm15, %xmm0", ..QUIET }));
    assert!(is_right_as(ASIDE, Behind { mid: "    jmp pass", caller: "    call mid\n    addps %xmm14, %xmm0", ..QUIET }));
}

/// A jump through a table that is named before a loop, so that the instructions right before the jump don't say which it is. `@LOST@` is what the loop does with the register. Another
/// jump leads to what reads `r11`, which is written right before.
const HOISTED: &str = "    lea table(%rip), %rbx
    mov $3, %ecx
5:
    mov %ecx, %eax
    and $1, %eax
    movslq (%rbx,%rax,4), %rax
    add %rbx, %rax
    jmp *%rax
    nop
7:
    mov $1, %edi
@LOST@
    jmp 6f
8:
    mov $1, %edi
6:
    sub $1, %ecx
    jne 5b
    mov $1, %r11d
    lea other_table(%rip), %rdx
    movslq (%rdx,%rcx,4), %rcx
    add %rdx, %rcx
    jmp *%rcx
13:
    add %r11d, %edi
14:";

#[test]
fn a_table_that_is_named_before_a_loop_says_where_the_jump_leads() {
    if !can_link() {
        return;
    }
    let with = |lost: &str| Behind { start: Box::leak(HOISTED.replace("@LOST@", lost).into_boxed_str()), ..QUIET };
    assert!(is_right(with("")));
    assert!(is_right(with("    mov %rbx, %rsi\n    mov %rsi, %rbx")), "a copy of the address, and back");
    assert!(!is_right(with("    mov %r11d, %edi")), "a label that reads the register");
    assert!(!is_right(with("    mov %edi, %ebx\n    lea 3(%rbx), %ebx")), "the table may be another then");
    assert!(!is_right(with("    mov pointers(%rip), %rbx")));
    // The same where straight code does it that stands for some of the loop.
    let by_call = |part: &str| {
        let part = format!("part:\n    .cfi_startproc\n{part}\n    .cfi_endproc\n");
        let program = PROGRAM.replacen("    .org 0x400", &format!("{part}    .org 0x400"), 1);
        is_right_in(&program, LATE, with("    call part"))
    };
    assert!(by_call("    mov %edi, %ecx\n    ret"));
    assert!(by_call("    mov %rbx, %rsi\n    mov %rsi, %rbx\n    ret"));
    assert!(!by_call("    mov pointers(%rip), %rbx\n    ret"));
    assert!(!by_call("    mov pointers(%rip), %rbx\n    jmp pass"));
}

#[test]
fn an_instruction_that_names_all_it_writes_leaves_a_table_in_the_register_of_products() {
    if !can_link() {
        return;
    }
    let with = |lost: &str| {
        let start = HOISTED.replace("%rbx", "%rdx").replace("@LOST@", lost);
        Behind { start: Box::leak(start.into_boxed_str()), ..QUIET }
    };
    for named in ["inc %edi\n    dec %edi", "neg %edi\n    neg %edi", "push %rcx\n    pop %rcx", "sete %sil", "bswap %esi"] {
        assert!(is_right(with(&format!("    {named}"))), "{named}");
    }
    for unnamed in ["mul %ecx", "cltd", "rdtsc", "pop %rdx\n    push %rdx"] {
        assert!(!is_right(with(&format!("    {unnamed}"))), "{unnamed}");
    }
}

#[test]
fn a_product_with_a_number_only_writes_its_first_operand() {
    if !can_link() {
        return;
    }
    assert!(is_right(Behind { start: "    mov %eax, %edi\n    imul $-100, %edi, %r11d\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    mov %eax, %edi\n    imul $-100, %r11d, %r11d\n    mov %r11d, %edi", ..QUIET }));
    assert!(!is_right(Behind { start: "    mov %eax, %edi\n    imul %edi, %r11d\n    mov %r11d, %edi", ..QUIET }));
}

#[test]
fn a_product_without_flags_has_two_results_and_a_factor_that_it_does_not_name() {
    if !can_link() {
        return;
    }
    let start = |start| is_right(Behind { start, ..QUIET });
    assert!(start("    mov %eax, %edi\n    mulx %rdi, %r11, %rax\n    mov %r11d, %edi"));
    assert!(start("    mov %eax, %edi\n    mulx %rdi, %rax, %r11\n    mov %r11d, %edi"));
    assert!(!start("    mov %eax, %edi\n    mulx %r11, %rax, %r11\n    mov %r11d, %edi"));
    assert!(!start("    mov %eax, %edi\n    mulx (%r11), %r11, %rax\n    mov %r11d, %edi"));
    assert!(start("    mov %eax, %edi\n    vmovq %xmm0, %r11\n    mov %r11d, %edi"));
    assert!(!start("    mov %eax, %edi\n    vmovq %r11, %xmm0\n    mov $1, %r11d"));
    // `rdx` in place of `r11`, in a function that nothing but calls and jumps lead to.
    let (program, late) = (PROGRAM.replace(".quad work, user, mid, tail", ".quad user, mid"), LATE.replace("r11", "rdx"));
    let with = |start| is_right_in(&program, &late, Behind { start, mid: "    mov $1, %edx\n    ret", ..QUIET });
    assert!(with("    mov %eax, %edi\n    mov $1, %edx\n    mulx %rdi, %rcx, %rsi"));
    assert!(!with("    mov %eax, %edi\n    mulx %rdi, %rcx, %rsi\n    mov $1, %edx"));
}

/// The same with room between functions, so that one of another length moves none.
fn apart(program: &str) -> String {
    program.replace("    .type", "    .balign 256, 0xcc\n    .type").replace(".org 0x400", ".org 0x1000")
}

#[test]
fn a_table_of_addresses_says_where_a_jump_leads_where_the_linker_left_its_relocations() {
    if !can_link() {
        return;
    }
    let build = |work: &str, read: &str, kind: &str| {
        let start = format!(
            "    mov %eax, %edi\n    and $1, %eax\n    jmp *places(,%rax,8)\n7:\n    mov $1, %edi\n    jmp 9f\n8:\n    mov {read}, %edi\n9:\n13:\n14:"
        );
        let text = PROGRAM.replace("@BEHIND@", &start).replace("@MID@", QUIET.mid).replace("@CALLER@", QUIET.caller);
        let text = text.replace("    .section .data", "    .balign 8\nplaces:\n    .quad 7b, 8b\n    .section .data");
        link(&apart(&text.replace("@WORK@", work)), kind).unwrap()
    };
    let is_right = |read: &str, kind: &str| {
        let input = build(EARLY, read, kind);
        assert!(check(&input, &input).unwrap().is_ok());
        check(&input, &build(LATE, read, kind)).unwrap().is_ok()
    };
    assert!(is_right("$2", "-no-pie -Wl,--emit-relocs"));
    assert!(!is_right("%r11d", "-no-pie -Wl,--emit-relocs"), "an entry leads to what reads the register");
    assert!(is_right("$2", "-no-pie"), "no number leads to the jump");
    assert!(!is_right("%r11d", "-no-pie"));
}

/// Whether it is right at a fixed address without relocations, with this behind the call in `mid`, and with a number in data.
fn is_right_with_number(mid: &str, number: &str) -> bool {
    let build = |work: &str| {
        let text = PROGRAM.replace("@BEHIND@", "7:\n8:\n13:\n14:").replace("@CALLER@", QUIET.caller);
        let text = text.replace("    .section .data", "    .balign 8\nplaces:\n    .quad 57f, 58f\n    .section .data");
        let text = text.replace("@MID@", mid).replace("57f", ".Lone").replace("58f", ".Lother");
        let text = format!("{}    .byte 1\n    .long {number}\n", text.replace("@WORK@", work));
        link(&apart(&text), "-no-pie").unwrap()
    };
    let input = build(EARLY);
    assert!(check(&input, &input).unwrap().is_ok());
    check(&input, &build(LATE)).unwrap().is_ok()
}

const PLACES: &str = ".Lone:\n    mov $1, %eax\n    ret\n.Lother:\n    mov $2, %eax\n    ret\n";

#[test]
fn a_jump_to_anywhere_may_go_where_a_number_leads_in_its_function() {
    if !can_link() {
        return;
    }
    let mid = format!("    mov pointers(%rip), %rax\n    jmp *%rax\n.Llabel:\n    mov %r11d, %eax\n    ret\n{PLACES}");
    let mid_without_table = mid.replace("jmp *%rax", "jmp .Lone");
    assert!(is_right_with_number(&mid_without_table, "0"));
    assert!(!is_right_with_number(&mid, ".Llabel"), "it reads the register");
    assert!(!is_right_with_number(&mid.replace("%r11d", "%edi"), ".Llabel + 3"), "the table's words are labels too");
    let tail_call = "    mov pointers(%rip), %rax\n    jmp *%rax\n.Llabel:\n    mov %r11d, %eax\n    ret\n";
    let elsewhere = |mid: &str, number: &str| {
        is_right_with_number(
            &format!(
                "{mid}    .cfi_endproc\n    .size mid, . - mid\n    .type apart, @function\napart:\n    .cfi_startproc\n    .cfi_def_cfa_offset 16\n{PLACES}"
            ),
            number,
        )
    };
    assert!(elsewhere(tail_call, "0"), "no number leads into the function");
    assert!(!elsewhere(tail_call, ".Llabel"));
}

#[test]
fn a_number_may_lead_to_a_jump_behind_what_reads_a_table() {
    if !can_link() {
        return;
    }
    let mid = format!("    and $1, %eax\n    mov places(,%rax,8), %rax\n.Llabel:\n    jmp *%rax\n{PLACES}");
    assert!(is_right_with_number(&mid, "0"));
    assert!(!is_right_with_number(&mid, ".Llabel"));
    assert!(is_right_with_number(&mid, ".Llabel + 1"), "no instruction begins there");
    assert!(!is_right_with_number(&mid.replace("mov $2, %eax", "mov %r11d, %eax"), "0"));
}
