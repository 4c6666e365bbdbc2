//! Code that is known by its bounds, by distances in data, or by exception tables of other entries.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{compile_text, every_form_does_the_same, installed, rewritten_does_the_same, shuffled_does_the_same, skipped};

const LINKS: [&[&str]; 5] = [
    &["-no-pie"],
    &["-pie", "-fPIE"],
    &["-pie", "-fPIE", "-s"],
    &["-pie", "-fPIE", "-Wl,--emit-relocs"],
    &["-no-pie", "-Wl,--emit-relocs"],
];

fn in_every_form(program: &Path, folder: &Path) {
    every_form_does_the_same(program, &["1", "2", "3"], folder);
}

/// Of a program of which nothing may move, so that nothing can be counted.
fn in_forms_without_profile(program: &Path, folder: &Path) {
    rewritten_does_the_same(program, &["shrink"], folder);
    shuffled_does_the_same(program, &["1", "2", "3"], folder);
}

fn every_link_does_the_same(program: &str, links: &[&[&str]], flags: &[&str], tried: fn(&Path, &Path)) {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    for link in links {
        let program = compile_text(program, &[flags, link].concat(), scratch.path(), "program");
        tried(&program, scratch.path());
    }
}

#[test]
fn a_program_that_asks_for_the_bounds_of_a_section_of_code_finds_it_between_them() {
    const PROGRAM: &str = r#"
#include <stdio.h>
#define IN __attribute__((section("secret"), noinline))
extern char __start_secret[], __stop_secret[];
__attribute__((noinline)) int is_called_from_there(void) {
    char *caller = __builtin_return_address(0);
    return caller >= __start_secret && caller < __stop_secret;
}
IN int one(int x) { int there = is_called_from_there(); __asm__ volatile(""); return there + x; }
IN int two(int x) { if (x > 3) return one(x) * 2 + is_called_from_there() * 100; __asm__ volatile(""); return is_called_from_there() + 7; }
__attribute__((noinline)) int elsewhere(void) { int there = is_called_from_there(); __asm__ volatile(""); return there; }
int main(void) {
    int sum = 0;
    for (int i = 0; i < 8; i++) sum += two(i);
    printf("%d %d %d\n", sum, elsewhere(), (char *)one >= __start_secret && (char *)one < __stop_secret);
}
"#;
    every_link_does_the_same(PROGRAM, &LINKS, &["-O1"], in_every_form);
}

#[test]
fn a_program_that_asks_whether_an_address_lies_between_two_functions_finds_it_there() {
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
static sigjmp_buf out;
static int inside, elsewhere;
__attribute__((noinline, noclone)) static int other(int x) { __asm__ volatile(""); return x * 3; }
__attribute__((noinline, noclone)) long copy(char *to, const char *from, long n) {
    long k = 0;
    for (; k < n; k++) to[k] = from[k] == 'q' ? 'Q' : from[k];
    return k;
}
__attribute__((noinline, noclone)) void copy_end(void) { __asm__ volatile(""); }
__attribute__((noinline, noclone)) static int third(int x) { __asm__ volatile(""); return x - 5; }
static void handler(int signal, siginfo_t *info, void *context) {
    char *at = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    if (at >= (char *)copy && at < (char *)copy_end) inside++; else elsewhere++;
    siglongjmp(out, 1);
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, 0);
    char to[16];
    volatile long sum = 0;
    for (int round = 0; round < 100; round++)
        if (!sigsetjmp(out, 1)) sum += copy(to, round & 1 ? "hello q" : (char *)16, 7) + other(round) + third(round);
    copy_end();
    printf("%ld, %d inside, %d elsewhere\n", sum, inside, elsewhere);
}
"#;
    for level in ["-O0", "-O2"] {
        every_link_does_the_same(PROGRAM, &LINKS, &[level], in_every_form);
    }
}

/// Records of a number and the distance of a function from the word that holds it.
const DISTANCES: &str = r#"
#include <stdio.h>
struct record { WORD key, distance; };
#define FUNCTION(name, value) __attribute__((noinline, used)) static int name(int x) { __asm__ volatile(""); return value; } \
    __asm__(".section records, \"a\"\n.balign 8\n" TYPE " 7, " #name " - .\n.previous");
FUNCTION(f0, x + 1) FUNCTION(f1, x * 3) FUNCTION(f2, x > 3 ? x - 7 : 100) FUNCTION(f3, x ^ 0x55) FUNCTION(f4, -x)
extern const struct record __start_records[], __stop_records[];
__attribute__((noinline)) int all(int x) {
    for (const struct record *r = __start_records; r < __stop_records; r++) x = ((int (*)(int))((char *)&r->distance + r->distance))(x);
    return x;
}
int main(void) {
    int sum = 0;
    for (int i = 0; i < 20; i++) sum = sum * 5 + all(i);
    printf("%d\n", sum);
}
"#;

#[test]
fn distances_of_64_bits_that_the_linker_relocates_lead_to_the_functions_that_they_led_to() {
    every_link_does_the_same(DISTANCES, &LINKS[3..], &["-O2", "-DWORD=long", "-DTYPE=\".quad\""], in_every_form);
}

#[test]
fn distances_of_32_bits_in_the_middle_of_a_record_lead_to_the_functions_that_they_led_to() {
    every_link_does_the_same(DISTANCES, &LINKS[1..], &["-O2", "-DWORD=int", "-DTYPE=\".long\""], in_forms_without_profile);
}

#[test]
fn trampolines_that_read_one_page_behind_themselves_stay_on_a_page() {
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <fcntl.h>
#include <unistd.h>
__asm__(".text\n.balign 4096\n.type table, @function\ntable: .cfi_startproc\n.rept 128\n"
    "mov 4096(%rip), %rax\nmov 4096(%rip), %r10\njmp *%r10\n.balign 32\n.endr\n.cfi_endproc\n.size table, . - table\n.balign 4096\n"
    ".type target, @function\ntarget: .cfi_startproc\nadd %rdi, %rax\nret\n.fill 4096, 1, 0x90\nret\n.cfi_endproc\n.size target, . - target\n");
extern char table[], target[];
__attribute__((noinline)) char *where(void) { __asm__ volatile(""); return table; }
int main(void) {
    char *table = where(), line[4096], rights[8];
    unsigned long start = 0, end, offset = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s %lx", &start, &end, rights, &offset) == 4 && (char *)start <= table && table < (char *)end) break;
    char *twice = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int program = open("/proc/self/exe", O_RDONLY);
    if (mmap(twice, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, program, offset + ((unsigned long)table - start)) != twice) return 1;
    long sum = 0;
    for (int i = 0; i < 128; i++) {
        *(void **)(twice + 4096 + 32 * i + 7) = (void *)(long)i;
        *(void **)(twice + 4096 + 32 * i + 14) = target;
        sum = sum * 3 + ((long (*)(long))(twice + 32 * i))(5);
    }
    printf("%ld\n", sum);
    return 0;
}
"#;
    every_link_does_the_same(PROGRAM, &LINKS, &["-O1"], in_every_form);
}

/// Each block has an unwind entry and an exception table, of which some are cut short; exceptions land in other entries.
#[test]
fn exceptions_land_where_every_block_has_a_section_of_its_own() {
    const PROGRAM: &str = r#"
#include <cstdio>
struct Told { int n; Told(int n) : n(n) { printf("+%d", n); } ~Told() { printf("-%d", n); } };
__attribute__((noinline)) static int fail(int i) { if (i == 7) throw i; return i * 2; }
__attribute__((noinline)) static int all(int n) { int s = 0; Told told(n); for (int k = 0; k < n; k++) s += fail(k); return s; }
int main() { for (int i = 5; i < 10; i++) try { printf(" %d\n", all(i)); } catch (int e) { printf(" caught %d\n", e); } }
"#;
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    match compile_cc("clang++", PROGRAM, &["-O2", "-fbasic-block-sections=all", "-fPIE", "-pie"], scratch.path()) {
        Some(program) => in_forms_without_profile(&program, scratch.path()),
        None => skipped("clang++ is missing, or does not know -fbasic-block-sections"),
    }
}

/// Compiles a program in C++, if the compiler is there and can.
fn compile_cc(compiler: &str, text: &str, flags: &[&str], folder: &Path) -> Option<PathBuf> {
    let (source, program) = (folder.join("program.cc"), folder.join("program"));
    std::fs::write(&source, text).expect("a source can be written");
    let output = Command::new(compiler).args(flags).arg(&source).arg("-o").arg(&program).output().ok()?;
    output.status.success().then_some(program)
}

/// A byte that begins no instruction stands in the function, so that its blocks are not known, and neither is the one that exceptions come to.
#[test]
fn exceptions_land_in_a_function_that_does_not_decode() {
    const PROGRAM: &str = r#"
#include <cstdio>
__attribute__((noinline)) static int fail(int i) { if (i > 2) throw i; return i * 2; }
__attribute__((noinline)) static int odd(int i) {
    __asm__ volatile("jmp 1f\n.byte 0x06\n1:");
    try { return fail(i); } catch (int n) { return n + 100; }
}
int main() { for (int i = 0; i < 6; i++) printf("%d ", odd(i)); }
"#;
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    match compile_cc("g++", PROGRAM, &["-O2", "-fPIE", "-pie"], scratch.path()) {
        Some(program) => in_every_form(&program, scratch.path()),
        None => skipped("there is no g++"),
    }
}

/// Objects tell their function by its distance, as relative virtual tables do: whatever a word of data may name so stays. Unwind tables, which name all functions by distances, are no such data.
#[test]
fn functions_that_no_distance_in_data_names_move_though_others_are_called_by_one() {
    const PROGRAM: &str = r#"
#include <stdio.h>
typedef int function(int);
struct object { int distance; int value; };
extern const struct object objects[2];
__attribute__((noinline)) int first(int x) { return x * 3; }
__attribute__((noinline)) int second(int x) { return x - 5; }
__asm__(".section .rodata\n.balign 8\n.globl objects\nobjects: .long first - ., 7\n.long second - ., 9\n.text\n");
__attribute__((noinline)) int call(const struct object *object) {
    return ((function *)((const char *)object + object->distance))(object->value);
}
__attribute__((noinline)) int other(int x) { for (int i = 0; i < 3; i++) x = x * 5 + i; return x; }
int main(void) { printf("%d %d %d\n", call(&objects[0]), call(&objects[1]), other(2)); return 42; }
"#;
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(PROGRAM, &["-O2", "-fPIE", "-pie"], folder, "program");
    in_every_form(&program, folder);
    let said = support::relift_succeeds(support::relift().args(["inspect", "--json", "-v"]).arg(&program), folder);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let pinned = report["pinned_functions"].as_array().expect("-v names them");
    let stays = |name: &str| pinned.iter().any(|function| function["name"] == name);
    assert_eq!(["first", "second", "other"].map(stays), [true, true, false], "{report:#}");
}
