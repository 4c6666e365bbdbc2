//! Outputs of relift are inputs: what was shrunk or laid out is relinked again, as functions, and does what it did.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection};
use serde_json::Value;
use support::{c_compilers, compile, compile_text, relift, relift_succeeds, run, shuffled_does_the_same, skipped};

/// Functions with and without frames, called and known by their addresses; a switch with last calls. `main` has an exception table, so that its unwind entry stays its own.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define APART __attribute__((noinline, noclone, noipa))
#define LEAF(N) APART static int leaf##N(int x) { return x * (N + 3) ^ N; }
#define FRAMED(N) APART static int framed##N(int x) { char text[32]; snprintf(text, sizeof text, "%d", x + N); return leaf##N((int)strlen(text)) + leaf##N(x); }
#define BOTH(N) LEAF(N) FRAMED(N)
BOTH(1) BOTH(2) BOTH(3) BOTH(4) BOTH(5) BOTH(6) BOTH(7) BOTH(8)
static int (*const handlers[])(int) = {framed1, leaf2, framed3, leaf4, framed5, leaf6, framed7, leaf8};
APART static int choose(int which, int x) {
    switch (which) {
    case 0: return leaf1(x);
    case 1: return framed2(x + 1);
    case 2: return leaf3(x) + 1;
    case 3: return framed4(x);
    case 4: x += leaf5(x);
    case 5: return framed6(x);
    case 6: return leaf7(x) - framed8(x);
    case 7: puts("seven"); return 7;
    default: return -1;
    }
}
static void done(int (*all)[24]) { if (**all == 1) puts("one"); }
APART static int before(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int count, char **words) {
    (void)words;
    __attribute__((cleanup(done))) int all[24];
    int sum = 0;
    for (int i = 0; i < 24; i++) all[i] = handlers[i % 8](i * count) + choose(i % 10, i);
    qsort(all, 24, sizeof *all, before);
    for (int i = 0; i < 24; i++) { sum = sum * 31 + all[i]; printf("%d ", all[i]); }
    printf("%d\n", sum);
    return 42;
}
"#;

/// Rewrites a program in a form, checked; gives the report.
fn rewrite(program: &Path, form: &[&str], output: &Path, folder: &Path) -> Value {
    let said =
        relift_succeeds(relift().args(["--json"]).args(form).args(["--verify"]).arg(program).arg("-o").arg(output), folder);
    serde_json::from_slice(&said.stdout).expect("--json prints JSON")
}

fn moved(report: &Value) -> u64 {
    assert_eq!(report["checked"], true);
    report["functions"]["moved"].as_u64().expect("the report counts functions")
}

#[test]
fn what_was_relinked_is_relinked_again_function_by_function() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (first, second) = (folder.join("first"), folder.join("second"));
    for flags in [["-O2", "-fexceptions", "-fPIE", "-pie"], ["-O1", "-fexceptions", "-fPIE", "-pie"]] {
        let program = compile_text(PROGRAM, &flags, folder, "program");
        let stripped = folder.join("stripped");
        fs::copy(&program, &stripped).expect("the program is copied");
        support::split::strip(&stripped, folder);
        for input in [&program, &stripped] {
            let expected = run(&mut Command::new(input), folder);
            for form in [&["shrink"][..], &["optimize"], &["optimize", "--shuffle", "7"]] {
                let once = moved(&rewrite(input, form, &first, folder));
                for again in [&["optimize", "--shuffle", "3"][..], &["shrink"]] {
                    let twice = moved(&rewrite(&first, again, &second, folder));
                    assert!(5 * twice >= 3 * once, "{form:?}, then {again:?}: {twice} functions of {once} moved");
                    assert_eq!(run(&mut Command::new(&second), folder), expected, "{form:?}, then {again:?}");
                }
            }
        }
    }
}

/// Has the unwind entry of the last function of `.text` go on to the end of `.fini`, as that of code which `shrink` put where `.fini` was.
fn describe_fini_with_last(program: &Path, output: &Path) {
    let mut bytes = fs::read(program).expect("the program is there");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let section = |name: &str| {
        let section = file.section_by_name(name).expect("each program has it");
        (section.address(), section.size(), section.file_range().expect("it is in the file").0 as usize)
    };
    let ((text, text_size, _), (fini, fini_size, _), (_, size, start)) =
        (section(".text"), section(".fini"), section(".eh_frame"));
    let address = section(".eh_frame").0;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut last = None;
    let mut at = start;
    while at + 16 <= start + size as usize && word(at) != 0 {
        let field = at + 8;
        let begins = (address + (field - start) as u64).wrapping_add_signed(i64::from(word(field).cast_signed()));
        if word(at + 4) != 0 && (text..text + text_size).contains(&begins) {
            last = last.max(Some((begins, field + 4)));
        }
        at += 4 + word(at) as usize;
    }
    let (begins, length) = last.expect("functions have unwind entries");
    bytes[length..length + 4].copy_from_slice(&((fini + fini_size - begins) as u32).to_le_bytes());
    fs::write(output, bytes).expect("it is written");
    fs::set_permissions(output, fs::metadata(program).expect("it is there").permissions()).expect("it may be run");
}

#[test]
fn an_unwind_entry_may_go_on_into_the_next_section() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let program = compile_text(PROGRAM, &["-O2", "-fexceptions", "-fPIE", "-pie"], folder, "program");
    let described = folder.join("described");
    describe_fini_with_last(&program, &described);
    shuffled_does_the_same(&described, &["1", "2"], folder);
}

/// A function as relift may leave it: its landing pad stands first in a piece of code, behind which an exception lands there, so that the piece has two unwind entries. The first one ends with
/// a call that comes back.
const PARTED: &str = r#"
    .text
    .globl work
    .type work, @function
work:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    mov %edi, %ebx
    jmp .Lbody
    .cfi_endproc

    .p2align 4
.Lpad:
    .cfi_startproc
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    mov %rax, %rdi
    call __cxa_begin_catch@plt
    call __cxa_end_catch@plt
    lea 40(%rbx), %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_def_cfa_offset 16
    .org .Lpad + 57, 0x90
.Lbody:
    mov %ebx, %edi
    call clear@plt
    .cfi_endproc
.Lsecond:
    .cfi_startproc
    .cfi_personality 0x9b, DW.ref.__gxx_personality_v0
    .cfi_lsda 0x1b, .Ltable
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    call may_throw@plt
    lea 10(%rbx), %eax
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
    .size work, . - work

    .section .gcc_except_table, "a", @progbits
    .p2align 2
.Ltable:
    .byte 0xff, 0x9b
    .uleb128 .Ltypes - .Lsites_at
.Lsites_at:
    .byte 1
    .uleb128 .Lsites_end - .Lsites
.Lsites:
    .byte 0, 5
    # The landing pad is 64 bytes before the entry.
    .byte 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1
    .byte 1
.Lsites_end:
    .byte 1, 0
    .p2align 2
    .long 0
.Ltypes:
    .hidden DW.ref.__gxx_personality_v0
    .weak DW.ref.__gxx_personality_v0
    .section .data.rel.local.DW.ref.__gxx_personality_v0, "awG", @progbits, DW.ref.__gxx_personality_v0, comdat
    .p2align 3
    .type DW.ref.__gxx_personality_v0, @object
    .size DW.ref.__gxx_personality_v0, 8
DW.ref.__gxx_personality_v0:
    .quad __gxx_personality_v0
    .section .note.GNU-stack, "", @progbits
"#;

const CALLS_PARTED: &str = r#"
#include <cstdio>
extern "C" {
int work(int n);
int cleared;
__attribute__((noinline, noclone)) void clear(int n) { cleared += n; }
__attribute__((noinline, noclone)) void may_throw(int n) { if ((n + cleared) & 1) throw n; }
}
int main() {
    for (int n = 0; n < 9; n++) std::printf("%d ", work(n));
    std::puts("");
}
"#;

#[test]
fn code_runs_on_behind_a_call_where_an_entry_is_parted_for_its_landing_pad() {
    if !support::installed("g++") {
        return support::skipped("g++ is not installed");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    let (assembly, main, program) = (folder.join("work.s"), folder.join("main.cc"), folder.join("program"));
    fs::write(&assembly, PARTED).expect("the source can be written");
    fs::write(&main, CALLS_PARTED).expect("the source can be written");
    support::compile("g++", &["-O2", "-fPIE", "-pie"], &[&main, &assembly], &program).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(run(&mut Command::new(&program), folder).stdout, b"10 11 42 43 14 15 46 47 18 \n");
    support::every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
}

/// Two sections of code side by side, of which the unwind entries say the same.
const SECTIONS: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline))
#define BESIDE __attribute__((noinline, section("beside")))
APART int one(int x) { printf("one %d\n", x); return x + 1; }
APART int last(int x) { printf("last %d\n", x); return x * 2; }
BESIDE int other(int x) { printf("other %d\n", x); return x * 3; }
BESIDE int next(int x) { printf("next %d\n", x); return x * 5; }
int main(int argc, char **argv) { (void)argv; return one(last(other(next(argc)))) & 63; }
"#;

#[test]
fn unwind_entries_that_shrink_joined_are_of_one_section_and_the_file_can_be_relinked_again() {
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let source = scratch.path().join("sections.c");
    fs::write(&source, SECTIONS).expect("the scratch folder can be written");
    for flags in [&["-O2", "-static"][..], &["-O2", "-static", "-Wl,-q"]] {
        let program = scratch.path().join("sections");
        if let Err(why) = compile(c_compilers()[0], flags, &[&source], &program) {
            skipped(&format!("{flags:?}: {why}"));
            continue;
        }
        let smaller = scratch.path().join("smaller");
        relift_succeeds(relift().arg("shrink").arg(&program).arg("-o").arg(&smaller), scratch.path());
        shuffled_does_the_same(&smaller, &["1", "2"], scratch.path());
    }
}
