//! Tables between functions that name others by their distance, as GHC keeps before its entries.

mod support;

use std::path::Path;
use std::process::Command;

use support::{End, SUCCESS, compile_text, every_form_does_the_same, installed, relift_succeeds, run, skipped};

/// Entries have a table before them, which begins with a zero: by how far from the entry the function is that goes on with the work. None of it has unwind entries, as all that GHC makes; the functions of C do, and one stands before each table.
const PROGRAM: &str = r#"
typedef int function(int);
extern function entry, other, slow_entry, slow_other, first, second;
__asm__(".text\n.macro begin name\n.globl \\name\n.type \\name, @function\n\\name:\n.endm\n"
    ".macro described name, number\n.balign 8\nbegin \\name\n.cfi_startproc\nlea \\number(%rdi), %eax\nret\n.cfi_endproc\n.size \\name, . - \\name\n.endm\n"
    "described first, 11\n.balign 8\n.quad 0, 0\n.quad slow_entry - entry\n.quad 0x20000000e\nbegin entry\nlea 1(%rdi), %eax\nret\n.size entry, . - entry\n"
    ".balign 8\nbegin slow_entry\nlea 3(%rdi), %eax\nret\n.size slow_entry, . - slow_entry\n"
    "described second, 13\n.balign 8\n.quad 0, 0\n.quad slow_other - other\n.quad 0x20000000e\nbegin other\nlea 5(%rdi), %eax\nret\n.size other, . - other\n"
    ".balign 8\nbegin slow_other\nlea 7(%rdi), %eax\nret\n.size slow_other, . - slow_other\n");
static int (*volatile entries[])(int) = {entry, other};
__attribute__((noinline)) int enter(function *entry, int x) {
    function *slow = (function *)((const char *)entry + ((const long *)entry)[-2]);
    long zeros = ((const long *)entry)[-3] | ((const long *)entry)[-4];
    return zeros ? 1 : entry(x) * 100 + slow(x);
}
int main(void) { return enter(entries[0], 1) + enter(entries[1], 1) == 204 + 608 && slow_entry(0) + slow_other(0) == 10 && first(0) + second(0) == 24 ? 42 : 1; }
"#;

/// How many functions move, and how many stay for tables, or because nothing leads to them.
fn moved_and_stayed(program: &Path, folder: &Path) -> (u64, [u64; 2]) {
    let said = relift_succeeds(support::relift().args(["inspect", "--json", "-v"]).arg(program), folder);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let functions = &report["functions"];
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
    let stayed = ["unknown-metadata", "no-bounds"].map(|reason| number(&functions["pinned"][reason]));
    (number(&functions["moved"]), stayed)
}

#[test]
fn functions_that_tables_between_functions_name_stay_and_others_move() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [["-O2", "-fPIE", "-pie", "-rdynamic"], ["-O2", "-fPIE", "-static-pie", "-w"], ["-O2", "-fPIE", "-pie", "-s"]] {
        let program = compile_text(PROGRAM, &flags, folder, "program");
        assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
        let (moved, stayed) = moved_and_stayed(&program, folder);
        assert!(moved > 0 && stayed != [0, 0], "{flags:?}: {moved} {stayed:?}");
    }
}

/// Entries of 60 bytes with a table before each, in which nothing is a distance; the program reads what they are of, and how many words.
const TABLES_ALONE: &str = r#"
typedef int function(int);
__asm__(".text\n.macro entry name, words\n.balign 8\n.quad 2 * \\words + 1, 0x20000000e\n.globl \\name\n.type \\name, @function\n\\name:\nmov %edi, %eax\n"
    ".rept 19\nlea \\words(%rax), %eax\n.endr\nret\n.size \\name, . - \\name\n.endm\n"
    "entry a, 1\nentry b, 2\nentry c, 3\nentry d, 4\nentry e, 5\nentry f, 6\nentry g, 7\nentry h, 8\n");
extern function a, b, c, d, e, f, g, h;
static function *volatile entries[] = {a, b, c, d, e, f, g, h};
int main(void) {
    for (int i = 0; i < 8; i++) {
        const long *entry = (const long *)entries[i];
        if (entry[-1] != 0x20000000e || entry[-2] != 2 * i + 3 || entries[i](3) != 3 + 19 * (i + 1)) return 1;
    }
    return 42;
}
"#;

#[test]
fn no_code_without_unwind_entries_moves_where_functions_have_tables_without_a_distance() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [["-O2", "-fPIE", "-pie", "-rdynamic"], ["-O2", "-fPIE", "-pie", "-s"]] {
        let program = compile_text(TABLES_ALONE, &flags, folder, "program");
        assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
        every_form_does_the_same(&program, &["1", "2", "3"], folder);
        let (_, stayed) = moved_and_stayed(&program, folder);
        assert!(stayed[0] > 0, "{flags:?}: {stayed:?}");
    }
}

/// A hundred functions without tables, and two with one in which nothing is a distance.
const FEW: &str = r#"
typedef int function(int);
__asm__(".text\n.balign 8\n.type f_first, @function\nf_first:\n.rept 100\n.balign 8\nmov %edi, %eax\n.rept 12\nlea 1(%rax), %eax\n.endr\nret\n.endr\n"
    ".balign 8\n.globl call_all\n.type call_all, @function\ncall_all:\npush %rbx\nmov %edi, %ebx\n"
    ".set number, 0\n.rept 100\nmov %ebx, %edi\ncall f_first + 40 * number\nmov %eax, %ebx\n.set number, number + 1\n.endr\npop %rbx\nret\n"
    ".macro entry name, words\n.balign 8\n.quad 2 * \\words + 1, 0x20000000e\n.globl \\name\n.type \\name, @function\n\\name:\nmov %edi, %eax\n.rept 19\nlea \\words(%rax), %eax\n.endr\nret\n.size \\name, . - \\name\n.endm\n"
    "entry a, 5\nentry b, 6\n");
int call_all(int);
extern function a, b;
static function *volatile entries[] = {a, b};
int main(void) {
    const long *one = (const long *)entries[0], *two = (const long *)entries[1];
    return call_all(1) == 1201 && a(2) == 97 && b(2) == 116 && one[-1] == 0x20000000e && two[-1] == 0x20000000e && entries[0](1) + entries[1](1) == 211 ? 42 : 1;
}
"#;

#[test]
fn code_without_tables_moves_beside_a_few_functions_with_one() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(FEW, &["-O2", "-fPIE", "-pie", "-rdynamic"], folder, "program");
    assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
    every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    let (moved, stayed) = moved_and_stayed(&program, folder);
    assert!(moved > 90 && stayed.iter().sum::<u64>() >= 2, "{moved} {stayed:?}");
}

/// A function without an unwind entry has a number in an instruction which is how far another one is from there.
const NUMBER: &str = r#"
typedef int function(int);
extern long number(void);
extern function callee;
__asm__(".text\n.balign 8\n.globl number\n.type number, @function\nnumber:\nmov %edi, %eax\nmov %edi, %ecx\nxchg %ax, %ax\n"
    "movabs $(callee - number - 8), %rax\nret\n.size number, . - number\n"
    ".balign 8\n.globl callee\n.type callee, @function\ncallee:\nlea 3(%rdi), %eax\nret\n.size callee, . - callee\n"
    ".data\n.globl expected\nexpected: .quad callee - number - 8\n.text\n");
extern long expected;
int main(void) { return number() == expected && callee(4) == 7 ? 42 : 1; }
"#;

#[test]
fn a_number_in_what_is_reached_is_no_distance() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(NUMBER, &["-O2", "-fPIE", "-pie", "-s"], folder, "program");
    assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
    let (_, [by_distance, _]) = moved_and_stayed(&program, folder);
    assert_eq!(by_distance, 0);
    every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
}
