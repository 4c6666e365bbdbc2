//! `endbr64`, which compilers put wherever an indirect branch might arrive.

mod support;

use std::path::Path;

use iced_x86::{Code, Decoder, DecoderOptions};
use object::{Object, ObjectSection, ObjectSymbol};
use support::{
    compile_text, every_form_does_the_same, installed, relift, relift_succeeds, rewritten_does_the_same, shrink, skipped,
};

/// A function that only calls lead to, one of which the address is taken, one that is exported, a call that returns twice, a switch whose cases are marked, and one that is a mark and a jump.
const PROGRAM: &str = r#"
#include <setjmp.h>
#include <stdio.h>
static jmp_buf back;
__attribute__((noinline)) int only_called(int x) { __asm__ volatile(""); return x * 7 + 1; }
__attribute__((noinline)) int held(int x) { return x - 3; }
__attribute__((noinline, visibility("default"))) int exported(int x) { return x ^ 5; }
__attribute__((noinline)) int held_too(int x) { return held(x); }
int (*volatile pointer)(int) = held, (*volatile other)(int) = held_too;
__attribute__((noinline)) int choose(int x) {
    switch (x) {
    case 0: return puts("none");
    case 1: return printf("%s\n", "one");
    case 2: return printf("%s %d\n", "two", x);
    case 3: return putchar('\n');
    case 4: return only_called(x);
    default: return 0;
    }
}
__attribute__((noinline)) static void leave(int x) { longjmp(back, x); }
int main(void) {
    int sum = 0;
    for (int i = 0; i < 7; i++) sum += only_called(i) + pointer(i) + exported(i) + other(i) + choose(i);
    int came = setjmp(back);
    if (came < 3) leave(came + 1);
    printf("%d %d %d\n", sum, came, pointer == other);
    return 0;
}
"#;

const CLAIMED: [&str; 2] = ["-Wl,-z,ibt", "-Wl,--export-dynamic-symbol=exported"];
const MARKED: [&str; 3] = ["-O2", "-fcf-protection=full", "-mcet-switch"];
const KINDS: [&[&str]; 4] =
    [&["-pie", "-fPIE"], &["-no-pie", "-fno-pie"], &["-no-pie", "-fno-pie", "-Wl,--emit-relocs"], &["-static-pie", "-fPIE"]];

/// By the functions of the program, how many marks are in them.
fn marks(path: &Path, functions: &[&str]) -> Vec<usize> {
    let bytes = std::fs::read(path).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is a program");
    let count = |name: &&str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap_or_else(|| panic!("{name} has a symbol"));
        let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok()).expect("it is in a section");
        let code = section.data_range(symbol.address(), symbol.size()).ok().flatten().expect("it has bytes");
        Decoder::with_ip(64, code, symbol.address(), DecoderOptions::NONE).iter().filter(|i| i.code() == Code::Endbr64).count()
    };
    functions.iter().map(count).collect()
}

/// How many there are in all code.
fn all_marks(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is a program");
    let code = file.sections().filter(|section| section.kind() == object::SectionKind::Text);
    let count = |code: &[u8]| code.windows(4).filter(|bytes| *bytes == [0xf3, 0x0f, 0x1e, 0xfa]).count();
    code.map(|section| count(section.data().expect("it has bytes"))).sum()
}

#[test]
fn a_program_that_does_not_claim_tracking_does_without_marks_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for kind in KINDS {
        let program = compile_text(PROGRAM, &[&MARKED, kind].concat(), folder, "program");
        let functions = ["only_called", "held", "exported", "choose", "main"];
        assert!(marks(&program, &functions).iter().all(|&count| count > 0), "{kind:?}");
        every_form_does_the_same(&program, &["1", "2"], folder);
        if kind[0] != "-no-pie" {
            assert_eq!(marks(&folder.join("output"), &functions), [0; 5], "{kind:?}");
        }
        // What is nothing but a mark and a jump has an address of its own.
        rewritten_does_the_same(&program, &["optimize", "--skip", "endbr"], folder);
    }
}

#[test]
fn a_program_that_claims_tracking_loses_the_marks_of_functions_that_only_calls_lead_to() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for kind in [KINDS[0], KINDS[2]] {
        let program = compile_text(PROGRAM, &[&MARKED[..], &CLAIMED, kind].concat(), folder, "program");
        let functions = ["only_called", "held", "held_too", "exported", "choose", "main"];
        let before = marks(&program, &functions);
        assert!(before[4] > 4 && before[5] == 2, "cases of the switch and what is behind setjmp are marked: {before:?}");
        for form in [&["shrink"][..], &["optimize"]] {
            rewritten_does_the_same(&program, form, folder);
            let after = marks(&folder.join("output"), &functions);
            // `main` is held by start-up code.
            let expected = [0, before[1], before[2], before[3], before[4] - 1, before[5]];
            assert_eq!(after, expected, "{form:?}");
        }
        // Functions in pieces have as many in all.
        let in_order = all_marks(&folder.join("output"));
        rewritten_does_the_same(&program, &["optimize", "--shuffle", "3"], folder);
        assert_eq!(all_marks(&folder.join("output")), in_order);
        assert!(in_order < all_marks(&program));
    }
}

#[test]
fn the_report_counts_marks_that_went() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(PROGRAM, &[&MARKED, KINDS[0]].concat(), folder, "program");
    let run = |arguments: &[&str]| {
        let mut command = relift();
        let said =
            relift_succeeds(command.args(arguments).arg("--json").arg(&program).arg("-o").arg(folder.join("output")), folder);
        serde_json::from_slice::<serde_json::Value>(&said.stdout).expect("--json prints JSON")
    };
    let optimized = run(&["optimize"]);
    let sites = optimized["transforms"]["endbr"]["sites"].as_u64().expect("it is counted");
    assert!(sites > 10 && optimized["transforms"]["endbr"]["bytes removed"] == sites * 4, "{optimized}");
    let shrunk = run(&["shrink"]);
    let saved = shrunk["techniques"].as_array().and_then(|all| all.iter().find(|one| one["technique"] == "endbr"));
    assert!(saved.is_some_and(|saved| saved["bytes"].as_i64() > Some(40)), "{shrunk}");
    assert!(run(&["optimize", "--skip", "endbr"])["transforms"].get("endbr").is_none());
}

/// A function whose beginning stands in the place of all its calls: nothing calls it any more but for its rest.
const TAKEN_IN: &str = r#"
#include <stdio.h>
int count;
__attribute__((noinline)) int part(int *p) {
    if (!p) return 7;
    count += printf("some %d\n", *p);
    return puts("slow") - *p;
}
__attribute__((noinline)) int caller(int *p) { printf("%d\n", count); return part(p) * 3 - 1; }
__attribute__((noinline)) int other(int *p) { puts("other"); return part(p) * 5 - 2; }
int main(void) {
    int sum = 0, x = 5;
    for (int i = 0; i < 4; i++) sum += caller(i & 1 ? &x : 0) + other(i & 2 ? &x : 0);
    printf("%d\n", sum);
    return 0;
}
"#;

#[test]
fn where_tracking_is_claimed_a_function_that_nothing_calls_any_more_keeps_its_mark_and_others_their_edits() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(TAKEN_IN, &[&MARKED[..], &CLAIMED[..1], KINDS[0]].concat(), folder, "program");
    for seed in ["1", "2", "3", "4"] {
        let form = ["optimize", "--shuffle", seed, "--edit-everywhere"];
        rewritten_does_the_same(&program, &form, folder);
        let mut command = relift();
        let said = relift_succeeds(command.args(form).arg("--json").arg(&program).arg("-o").arg(folder.join("again")), folder);
        let report = serde_json::from_slice::<serde_json::Value>(&said.stdout).expect("--json prints JSON");
        let sites = |name: &str| report["transforms"][name]["sites"].as_u64();
        assert!(sites("inline-leaves") == Some(2) && sites("endbr") >= Some(2), "seed {seed}: {report}");
    }
}

/// Cold parts in which a compiler saw no way on: nothing but a mark, which nothing leads to, and the last one runs on into a part that is reached. And a function with two marks.
const EMPTY_PARTS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__asm__(
    ".section .text.unlikely,\"ax\",@progbits\n"
    "one.cold: .cfi_startproc\n endbr64\n .cfi_endproc\n"
    "two.cold: .cfi_startproc\n endbr64\n .cfi_endproc\n"
    "three.cold: .cfi_startproc\n endbr64\n .cfi_endproc\n"
    "checked.cold: .cfi_startproc\n .cfi_def_cfa_offset 32\n .cfi_offset 3,-16\n call abort@PLT\n .cfi_endproc\n"
    ".text\n .globl checked\n .type checked,@function\n"
    "checked: .cfi_startproc\n endbr64\n push %rbx\n .cfi_def_cfa_offset 16\n .cfi_offset 3,-16\n sub $16, %rsp\n .cfi_def_cfa_offset 32\n"
    "test %edi, %edi\n je checked.cold\n lea 1(%rdi), %eax\n add $16, %rsp\n .cfi_def_cfa_offset 16\n pop %rbx\n .cfi_def_cfa_offset 8\n ret\n .cfi_endproc\n"
    ".size checked, .-checked\n .globl twice\n .hidden twice\n .type twice,@function\n"
    "twice: .cfi_startproc\n endbr64\n endbr64\n lea 3(%rdi), %eax\n imul %edi, %eax\n ret\n .cfi_endproc\n .size twice, .-twice\n");
int checked(int), twice(int) __attribute__((visibility("hidden")));
int main(int count, char **words) { (void)words; printf("%d %d\n", checked(count), twice(count)); return 0; }
"#;

#[test]
fn parts_that_are_but_a_mark_and_functions_with_two_do_the_same_in_every_form() {
    for claimed in [&CLAIMED[..1], &[]] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let flags = [&["-O2", "-fcf-protection=full", "-fPIE", "-pie"], claimed].concat();
        let program = compile_text(EMPTY_PARTS, &flags, folder.path(), "program");
        every_form_does_the_same(&program, &["1", "2", "3", "4", "5"], folder.path());
        // Nothing had to be left out for that.
        let (_, report) = shrink(&program, &[], "shrunk", folder.path());
        assert!(report["warnings"].as_array().is_some_and(Vec::is_empty), "{report:#}");
    }
}
