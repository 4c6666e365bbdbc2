//! Places in a function that words of data name, for a handler of signals to ask where the program was interrupted (Valgrind, around its client's system calls).

mod support;

use support::{compile_text, every_form_does_the_same, installed, relift, relift_succeeds, skipped};

/// The words are not aligned, as in Valgrind.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>
__asm__(".text\n.globl send\n.type send, @function\nsend:\n.cfi_startproc\n"
    "push %rbx\n.cfi_def_cfa_offset 16\n.cfi_offset 3, -16\nmov %edx, %ebx\nmov $62, %eax\n1: syscall\n2: test %rax, %rax\njs 3f\nlea 5(%rbx), %eax\n"
    "pop %rbx\n.cfi_remember_state\n.cfi_def_cfa_offset 8\nret\n3: .cfi_restore_state\nneg %rax\npop %rbx\n.cfi_def_cfa_offset 8\nret\n"
    ".cfi_endproc\n.size send, . - send\n"
    ".section .data.rel.ro, \"aw\"\n.byte 0\n.globl from, to\nfrom: .quad 1b\nto: .quad 2b\n.text\n");
extern const unsigned long from, to;
long send(long process, long signal, long number);
static volatile int inside, outside;
static void interrupted(int signal, siginfo_t *info, void *context) {
    unsigned long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (from <= at && at <= to) inside++;
    else outside++;
}
int main(void) {
    struct sigaction action = {.sa_sigaction = interrupted, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    long sum = 0;
    for (int i = 0; i < 5; i++) sum += send(getpid(), SIGUSR1, i);
    printf("%ld, in the call %d, elsewhere %d\n", sum, inside, outside);
    return 0;
}
"#;

#[test]
fn a_handler_that_reads_places_from_words_side_by_side_finds_the_program_there() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [
        &["-no-pie"][..],
        &["-static"],
        &["-pie", "-fPIE"],
        &["-pie", "-fPIE", "-Wl,--emit-relocs"],
        &["-no-pie", "-Wl,--emit-relocs"],
    ] {
        let program = compile_text(PROGRAM, &[&["-O1"], flags].concat(), folder, "program");
        let told = relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text();
        assert!(told.contains("pinned: place-named"), "{flags:?}: {told}");
        every_form_does_the_same(&program, &["1", "2", "3"], folder);
    }
}

/// Functions of which no two do the same.
const FUNCTIONS: &str = r#"
#include <stdint.h>
#include <stdio.h>
typedef long (*function)(long);
#define FUNCTION(name, value) __attribute__((noinline)) long name(long x) { __asm__ volatile(""); return value; }
FUNCTION(f0, x + 1) FUNCTION(f1, x * 3) FUNCTION(f2, -x) FUNCTION(f3, x ^ 0x55)
"#;

/// That a program with these functions does the same in each form, linked in each of these ways.
fn functions_are_found(text: &str, ways: &[&[&str]]) {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for flags in ways {
        let program = compile_text(&format!("{FUNCTIONS}{text}"), &[&["-O2"], *flags].concat(), scratch.path(), "program");
        every_form_does_the_same(&program, &["1", "2", "3"], scratch.path());
    }
}

#[test]
fn pointers_that_are_marked_in_their_high_bits_lead_to_the_functions_that_they_led_to() {
    const MARKED: &str = r#"
static volatile uintptr_t marked[] = {(uintptr_t)f0 + (5UL << 56), (uintptr_t)f1 + (1UL << 63), (uintptr_t)f2 + (3UL << 48), (uintptr_t)f3};
int main(void) {
    unsigned long sum = 0;
    for (int round = 0; round < 300; round++)
        for (int i = 0; i < 4; i++) sum = sum * 31 + ((function)(marked[i] & 0xffffffffffff))(round);
    printf("%lx\n", sum);
}
"#;
    functions_are_found(
        MARKED,
        &[
            &["-no-pie"][..],
            &["-pie", "-fPIE"],
            &["-static-pie", "-fPIE"],
            &["-pie", "-fPIE", "-Wl,--emit-relocs"],
            &["-pie", "-fPIE", "-rdynamic"],
        ],
    );
}

#[test]
fn functions_that_are_named_by_their_address_less_one_are_found_there() {
    const NAMED: &str = r#"
static char *volatile words[] = {(char *)f0 - 1, (char *)f1 - 1};
static char *volatile computed;
int main(void) {
    unsigned long sum = 0;
    for (int round = 0; round < 300; round++) {
        computed = (char *)f2 - 1;
        sum = sum * 31 + ((function)(computed + 1))(round);
        computed = (char *)f3 - 1;
        sum = sum * 31 + ((function)(computed + 1))(round);
        for (int i = 0; i < 2; i++) sum = sum * 31 + ((function)(words[i] + 1))(round);
    }
    printf("%lx\n", sum);
}
"#;
    functions_are_found(
        NAMED,
        &[
            &["-no-pie"][..],
            &["-static"],
            &["-pie", "-fPIE"],
            &["-static-pie", "-fPIE"],
            &["-pie", "-fPIE", "-Wl,--emit-relocs"],
            &["-no-pie", "-Wl,--emit-relocs"],
        ],
    );
}
