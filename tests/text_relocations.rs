//! Position-dependent code in programs that lie anywhere: the loader writes addresses into instructions (`DT_TEXTREL`), by places in the file.

mod support;

use std::fs;

use support::{compile, compile_text, every_form_does_the_same, installed, relift, relift_succeeds, skipped};

/// Constants that are addresses of data and of code, in functions of which one has two ways.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN extern long table[];
long table[4] = {11, 22, 33, 44};
__asm__(".text\n"
    ".globl place\n.hidden place\n.type place, @function\nplace:\n.cfi_startproc\n"
    "movabs $table + 8, %rax\ntest %edi, %edi\nje 1f\nmovabs $table + 16, %rax\n1: ret\n.cfi_endproc\n.size place, . - place\n"
    ".globl triple\n.hidden triple\n.type triple, @function\ntriple:\n.cfi_startproc\n"
    "movabs $target, %rax\njmp *%rax\n.cfi_endproc\n.size triple, . - triple\n");
HIDDEN long target(long x) { return x * 3 + 1; }
HIDDEN long *place(int which);
HIDDEN long triple(long x);
__attribute__((noinline)) static int differ(int rounds) {
    for (int i = 0; i < rounds; i++)
        if (place(i & 1) != table + 1 + (i & 1)) return 1;
    return 0;
}
__attribute__((noinline)) static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
int main(int argc, char **argv) {
    int numbers[200];
    for (int i = 0; i < 200; i++) numbers[i] = i * 7919 % 211;
    qsort(numbers, 200, sizeof *numbers, compare);
    printf("%ld %ld %ld %d %d\n", *place(0), *place(1), triple(argc + 5), differ(1000), numbers[100]);
    return 5;
}
"#;

const LINKS: [&[&str]; 4] = [&[], &["-Wl,--emit-relocs"], &["-fuse-ld=lld"], &["-fuse-ld=lld", "-Wl,--emit-relocs"]];

#[test]
fn programs_into_whose_code_the_loader_writes_do_the_same_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let source = folder.join("program.c");
    fs::write(&source, PROGRAM).expect("the source can be written");
    for link in LINKS {
        let program = folder.join("program");
        let flags = [&["-O2", "-fPIE", "-pie", "-Wl,-z,notext"], link].concat();
        if let Err(why) = compile("gcc", &flags, &[&source], &program) {
            assert!(link.contains(&"-fuse-ld=lld") && !installed("ld.lld"), "{link:?}: {why}");
            skipped(&format!("{link:?}: {why}"));
            continue;
        }
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}

#[test]
fn inspect_says_what_stays_because_the_loader_writes_into_it() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(PROGRAM, &["-O2", "-fPIE", "-pie", "-Wl,-z,notext"], folder, "program");
    let told = relift_succeeds(relift().arg("inspect").arg(&program), folder).stdout_text();
    assert!(told.contains("pinned: text-relocation"), "{told}");
}
