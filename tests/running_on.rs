//! Code that runs on behind a call with which its unwind entry ends, or through no-ops, as whoever writes assembly may have it.

mod support;

use support::{compile_text, every_form_does_the_same, installed, run, skipped};

const FORMS: [&[&str]; 5] = [
    &["-pie", "-fPIE"],
    &["-no-pie", "-fno-pie"],
    &["-pie", "-fPIE", "-Wl,--emit-relocs"],
    &["-no-pie", "-fno-pie", "-Wl,--emit-relocs"],
    &["-static-pie", "-fPIE"],
];

/// Each function `f` ends with a call, and its unwind entry with it; the rest adds 5 to its argument. `count` counts its calls. What comes behind has an unwind entry of its own with the same rules (by what
/// is called: a function of another file, one of this file, a pointer), stands behind no-ops, is jumped to by the same function too, or has no unwind entry. Of the last two functions, nothing is pushed, and the second part is called by others.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
char text[8] = "abcdefg";
int calls;
#define PARTS(F) F(foreign) F(own) F(pointer) F(padded) F(entered) F(undescribed) F(bare)
#define DECLARE(NAME) int f_##NAME(int x, char *where);
PARTS(DECLARE)
int rest_of_bare(int x);
__asm__(".text\n"
    ".type count, @function\ncount: .cfi_startproc\nincl calls(%rip)\nret\n.cfi_endproc\n.size count, . - count\n"
    ".macro first name, middle:vararg\n"
    ".globl f_\\name\n.type f_\\name, @function\nf_\\name: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx, -16\n"
    "mov %edi, %ebx\nmov %rsi, %rdi\nmov $'x', %esi\nmov $1, %edx\n\\middle\n.cfi_endproc\n.size f_\\name, . - f_\\name\n.endm\n"
    ".macro rest\n.cfi_startproc\n.cfi_def_cfa_offset 16\n.cfi_offset %rbx, -16\n"
    "lea 5(%rbx), %eax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.endm\n"
    "first foreign, call memset@plt\nrest\n"
    "first own, call count\nrest\n"
    "first pointer, lea count(%rip), %rax; call *%rax\nrest\n"
    "first padded, call count\n.p2align 6\nrest\n"
    "first entered, test %ebx, %ebx; je 1f; call count\n1: rest\n"
    "first undescribed, call count\nlea 5(%rbx), %eax\npop %rbx\nret\n"
    ".globl f_bare\n.type f_bare, @function\nf_bare: .cfi_startproc\ncall count\n.cfi_endproc\n.size f_bare, . - f_bare\n"
    ".globl rest_of_bare\n.type rest_of_bare, @function\nrest_of_bare: .cfi_startproc\nlea 5(%rdi), %eax\nret\n.cfi_endproc\n.size rest_of_bare, . - rest_of_bare\n");
int main(void) {
#define CALL(NAME) printf("%s %d %d %s\n", #NAME, f_##NAME(0, text), f_##NAME(3, text), text);
    PARTS(CALL)
    printf("%d %d\n", rest_of_bare(7), calls);
    return 0;
}
"#;

#[test]
fn code_runs_on_behind_the_call_that_ends_an_unwind_entry_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let expected: Vec<String> = ["foreign", "own", "pointer", "padded", "entered", "undescribed", "bare"]
        .iter()
        .map(|name| format!("{name} 5 8 xbcdefg\n"))
        .chain(["12 11\n".to_string()])
        .collect();
    for flags in FORMS {
        let program = compile_text(PROGRAM, &[&["-O1"], flags].concat(), folder, "program");
        let said = run(&mut std::process::Command::new(&program), folder).stdout_text();
        assert_eq!(said, expected.concat(), "{flags:?}");
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}

/// Two functions that end with nothing, as where a compiler thinks that execution never comes there, with breakpoints behind them; a third is nothing but a mark. What comes behind may be called, and does not trap.
const TRAPS: &str = r#"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
static sigjmp_buf back;
static void trapped(int signal) { siglongjmp(back, signal); }
int first(int x), second(int x), third(int x), behind(int x);
__asm__(".text\n.macro begin name\n.p2align 4, 0xcc\n.globl \\name\n.type \\name, @function\n\\name: .cfi_startproc\n.endm\n"
    ".macro end name\n.cfi_endproc\n.size \\name, . - \\name\n.endm\n"
    "begin first\nlea 1(%rdi), %eax\nend first\nbegin second\ntest %edi, %edi\njne behind\nend second\n"
    "begin third\nendbr64\nend third\nbegin behind\nlea 3(%rdi), %eax\nret\nend behind\n");
static int (*volatile functions[])(int) = {first, second, third, behind};
int main(void) {
    struct sigaction action = {.sa_handler = trapped, .sa_flags = SA_NODEFER};
    sigaction(SIGTRAP, &action, 0);
    for (int i = 0; i < 4; i++)
        for (int x = 0; x < 2; x++) {
            int number = sigsetjmp(back, 1);
            if (number) printf("%d %d: signal %d\n", i, x, number);
            else printf("%d %d: %d\n", i, x, functions[i](x));
        }
    return 0;
}
"#;

#[test]
fn a_function_that_runs_into_breakpoints_still_does() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in FORMS {
        let program = compile_text(TRAPS, &[&["-O1"], flags].concat(), folder, "program");
        let said = run(&mut std::process::Command::new(&program), folder).stdout_text();
        assert_eq!(said.matches("signal 5").count(), 5, "{flags:?}: {said}");
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}

/// Of each function the unwind entry ends with no-ops, to which another one jumps to run on into the function behind them; one of these has no unwind entry.
const THROUGH_PADDING: &str = r#"
#include <stdio.h>
int jumping(int x), jumping_far(int x), aligned(int x), described_not(int x);
__asm__(".text\n.macro begin name\n.globl \\name\n.type \\name, @function\n\\name: .cfi_startproc\n.endm\n"
    ".macro end name\n.cfi_endproc\n.size \\name, . - \\name\n.endm\n"
    "begin jumping\ncmpl $3, %edi\nje 1f\njmp .Lpadding\n1: xor %eax, %eax\nret\nend jumping\n"
    ".p2align 5\nbegin first\nlea 1(%rdi), %eax\nret\n.Lpadding: nopw 0(%rax,%rax,1)\n.p2align 4\nend first\n"
    "begin aligned\nlea 5(%rdi), %eax\nret\nend aligned\n"
    "begin jumping_far\ntest %edi, %edi\njne .Lother\nlea 9(%rdi), %eax\nret\nend jumping_far\n"
    ".p2align 4\nbegin second\nlea 2(%rdi), %eax\nret\nnop\n.Lother: nopl 0(%rax)\nend second\n"
    "described_not: lea 7(%rdi), %eax\nret\n");
static int (*volatile functions[])(int) = {jumping, jumping_far, aligned, described_not};
int main(void) {
    for (int i = 0; i < 4; i++)
        for (int x = 0; x < 5; x++) printf("%d\n", functions[i](x));
    return 0;
}
"#;

#[test]
fn code_runs_on_through_no_ops_that_something_jumps_to() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let expected = [5, 6, 7, 0, 9, 9, 8, 9, 10, 11, 5, 6, 7, 8, 9, 7, 8, 9, 10, 11].map(|number| format!("{number}\n")).concat();
    for flags in FORMS {
        let program = compile_text(THROUGH_PADDING, &[&["-O1"], flags].concat(), folder, "program");
        let said = run(&mut std::process::Command::new(&program), folder).stdout_text();
        assert_eq!(said, expected, "{flags:?}");
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}
