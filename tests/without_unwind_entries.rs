//! Programs that were built without unwind entries and stripped: functions are found by what leads to them, moved, counted and laid out, and the program does what it did.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, SUCCESS, compile_text, installed, relift, rewritten_does_the_same, run, shuffled_does_the_same, skipped};

/// Functions that only tables of pointers, cases of a switch or calls in them lead to; one that nothing does; and one behind whose call nothing follows.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define APART __attribute__((noinline))
static APART int twice(int x) { return printf("twice %d\n", x) + 2 * x; }
static APART int thrice(int x) { return printf("thrice %d\n", x) + 3 * x; }
static APART int only_in_a_case(int x) { return puts("case") + x; }
static int (*const table[])(int) = { twice, thrice, only_in_a_case };
__attribute__((noreturn)) static APART void give_up(const char *why) { fprintf(stderr, "%s\n", why); exit(3); }
APART int nobody_calls_this(int x) { if (x < 0) give_up("negative"); return twice(x) - thrice(x); }
static APART int inner(int x) { switch (x & 7) { case 0: return 5; case 1: return twice(x); case 2: return -x; case 3: return x * x;
    case 4: return thrice(x) ^ x; case 5: return x >> 1; case 6: return x - 9; default: return x | 64; } }
static APART int step(const char *code, int x) {
    for (; *code; code++) switch (*code) {
        case 'a': x += 3; break;
        case 'b': x = inner(x); break;
        case 'c': x = table[(unsigned)x % 3](x); break;
        case 'd': x ^= 0x55; break;
        case 'e': x = (int)strlen(code) * x; break;
        case 'f': x = abs(x) % 1000; break;
        case 'g': if (x == 12345) give_up("a number"); break;
        case 'h': x = only_in_a_case(x); break;
        default: give_up("no such step");
    }
    return x;
}
int main(int argc, char **argv) {
    int x = argc;
    for (int i = 0; i < 40; i++) x = step("abcdefgbhcabfcbd", x + i) % 4096;
    printf("%d\n", x);
    if (argc > 1) step(argv[1], x);
    return 42;
}
"#;

const PLAIN: [&str; 5] = ["-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-w", "-s"];

/// The ways to link, and what of the program's own code has to move at least, in percent. A static program is mostly C library.
const FORMS: [(&str, &[&str], u64); 4] = [
    ("position-independent", &["-fPIE", "-pie"], 80),
    ("fixed", &["-fno-pie", "-no-pie"], 75),
    ("static", &["-static"], 60),
    ("static position-independent", &["-static-pie", "-fPIE"], 60),
];

fn build(form: &[&str], folder: &Path, name: &str) -> PathBuf {
    compile_text(PROGRAM, &[&PLAIN[..], form].concat(), folder, name)
}

/// What a program does, without and with a step that there is not.
fn behaviors(program: &Path, folder: &Path) -> [support::Run; 2] {
    [run(&mut Command::new(program), folder), run(Command::new(program).arg("?"), folder)]
}

fn report(command: &mut Command) -> serde_json::Value {
    let done = command.output().expect("relift starts");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    serde_json::from_slice(&done.stdout).expect("a report")
}

/// Of the code in a report, how much moved, in percent.
fn moved(report: &serde_json::Value) -> u64 {
    let bytes = |what: &str| report["text_bytes"][what].as_u64().unwrap_or_else(|| panic!("{report:#}"));
    100 * bytes("moved") / bytes("total")
}

#[test]
fn functions_that_only_tables_and_calls_lead_to_move_in_every_form_and_the_program_does_what_it_did() {
    for (form, flags, least) in FORMS {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let input = build(flags, folder.path(), "input");
        let expected = behaviors(&input, folder.path());
        assert_eq!((expected[0].end, expected[1].end), (End::Exit(SUCCESS), End::Exit(3)), "{form}");
        for seed in ["1", "2", "3"] {
            let output = folder.path().join(seed);
            let report =
                report(relift().args(["optimize", "--json", "--verify", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
            assert!(moved(&report) >= least, "{form}: {report:#}");
            assert!(behaviors(&output, folder.path()) == expected, "{form}, seed {seed}");
        }
    }
}

#[test]
fn a_training_counts_in_them_and_takes_jumps_away() {
    for (form, flags, _) in FORMS {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let (input, output) = (build(flags, folder.path(), "input"), folder.path().join("output"));
        let expected = behaviors(&input, folder.path());
        let report = report(relift().args(["train", "--json"]).arg(&input).arg("-o").arg(&output).args(["--", "{}"]));
        let taken = |when: &str| report["dyno"][when]["taken_branches"].as_u64().unwrap_or_else(|| panic!("{report:#}"));
        assert!(taken("after") < taken("before"), "{form}: {report:#}");
        assert!(behaviors(&output, folder.path()) == expected, "{form}");
    }
}

#[test]
fn shrinking_one_makes_it_smaller_and_it_does_what_it_did() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = build(FORMS[0].1, folder.path(), "input");
    let (output, _) = support::shrink(&input, &[], "output", folder.path());
    assert!(support::size(&output) < support::size(&input));
    assert!(behaviors(&output, folder.path()) == behaviors(&input, folder.path()));
}

/// A library at a fixed address, as klibc's: programs hold the addresses of its functions, and nothing in it says which those are.
#[test]
fn a_file_at_a_fixed_address_of_which_little_is_reached_stays() {
    const LIBRARY: &str = r#"
        int a(int x) { return x * 3 + 1; }
        int b(int x) { for (int i = 0; i < x; i++) x = a(x) % 77; return x; }
        int c(int x, int y) { return x > y ? a(x) : b(y); }
        __attribute__((noreturn)) void _start(void) { for (;;) __asm__ volatile("" ::: "memory"); }
    "#;
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let flags = [&PLAIN[..], &["-ffreestanding", "-nostdlib", "-static", "-fno-inline"]].concat();
    let input = compile_text(LIBRARY, &flags, folder.path(), "library");
    let output = folder.path().join("output");
    let report = report(relift().args(["optimize", "--json", "--shuffle", "1"]).arg(&input).arg("-o").arg(&output));
    assert_eq!(moved(&report), 0, "{report:#}");
}

/// musl and klibc leave unwind tables out; so do its programs' makers, often.
#[test]
fn a_static_program_with_musl_moves() {
    if !installed("musl-gcc") {
        return skipped("there is no musl-gcc");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let source = folder.path().join("input.c");
    std::fs::write(&source, PROGRAM).expect("a file can be written");
    let input = folder.path().join("input");
    let built = Command::new("musl-gcc").args(PLAIN).args(["-Os", "-static"]).arg(&source).arg("-o").arg(&input).status();
    assert!(built.expect("musl-gcc starts").success());
    let expected = behaviors(&input, folder.path());
    for seed in ["1", "2"] {
        let output = folder.path().join(seed);
        let report = report(relift().args(["optimize", "--json", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
        assert!(moved(&report) >= 60, "{report:#}");
        assert!(behaviors(&output, folder.path()) == expected, "seed {seed}");
    }
}

/// Functions side by side that a table of distances in data tells apart, as V8's built-in ones; the program calls two of them by name too, and knows where the first is.
const ARRAY: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 6\nfirst:\n"
    ".set number, 0\n.rept 12\n.p2align 6\n.if number == 4\nfifth:\n.endif\n.if number == 9\ntenth:\n.endif\n"
    "mov %edi, %eax\n.rept 15\nadd $number, %eax\n.endr\nimul $(number + 3), %eax, %eax\nret\n.set number, number + 1\n.endr\n.p2align 6\n"
    "long: mov %edi, %eax\n.rept 1000\nadd $1, %eax\n.endr\nret\n");
extern int first(int), fifth(int), tenth(int), longer(int) __asm__("long");
static const unsigned distances[12] = { 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704 };
__attribute__((noinline)) static int call(const char *base, unsigned number, int x) {
    return ((int (*)(int))(base + distances[number]))(x);
}
int main(int argc, char **argv) {
    int x = argc;
    for (unsigned i = 0; i < 60; i++) x = (x + call((const char *)first, i % 12, x) + fifth(x) + tenth(x) + longer(x)) % 9973;
    printf("%d\n", x);
    return 42;
}
"#;

#[test]
fn functions_side_by_side_of_which_most_are_reached_by_nothing_stay_together() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(ARRAY, &[&PLAIN[..], FORMS[0].1].concat(), folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    for seed in ["1", "2", "3", "4"] {
        let output = folder.path().join(seed);
        let report = report(relift().args(["optimize", "--json", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
        assert!(moved(&report) >= 60, "{report:#}");
        assert!(run(&mut Command::new(&output), folder.path()) == expected, "seed {seed}");
    }
}

/// The same of which one in the middle has an unwind entry, as V8's functions that are entered from C++; nothing but the table leads to any.
const ARRAY_WITH_ENTRY: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 6\nfirst:\n"
    ".set number, 0\n.rept 12\n.p2align 6\n.if number == 5\n.cfi_startproc\n.endif\n"
    "mov %edi, %eax\n.rept 15\nadd $number, %eax\n.endr\nimul $(number + 3), %eax, %eax\nret\n"
    ".if number == 5\n.cfi_endproc\n.endif\n.set number, number + 1\n.endr\n.p2align 6\n");
extern int first(int);
static const unsigned distances[12] = { 0, 64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704 };
__attribute__((noinline)) static int call(const char *base, unsigned number, int x) {
    int result = ((int (*)(int))(base + distances[number]))(x);
    __asm__ volatile("" : "+r"(result));
    return result;
}
int main(int argc, char **argv) {
    int x = argc;
    for (unsigned i = 0; i < 60; i++) x = (x + call((const char *)first, i % 12, x)) % 9973;
    printf("%d\n", x);
    return 42;
}
"#;

#[test]
fn a_function_with_an_unwind_entry_between_regions_that_nothing_reaches_stays_with_them() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(ARRAY_WITH_ENTRY, &["-O2", "-fPIE", "-pie"], folder.path(), "input");
    let expected = run(&mut Command::new(&input), folder.path());
    assert_eq!(expected.end, End::Exit(SUCCESS));
    shuffled_does_the_same(&input, &["1", "2", "3", "4"], folder.path());
}

/// The case that crashes is at the end of the function, begins like padding, and only the table leads there.
const CRASHING_CASE: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 4, 0xcc\npick:\ncmp $4, %edi\nja 9f\nmov %edi, %eax\nlea cases(%rip), %rdx\nmovslq (%rdx,%rax,4), %rax\nadd %rdx, %rax\njmp *%rax\n"
    "1: mov $10, %eax\nret\n2: mov $20, %eax\nret\n3: mov $30, %eax\nret\n9: xor %eax, %eax\nret\n8: int3\nud2\n.p2align 4, 0xcc\n"
    ".section .rodata\n.p2align 2\ncases: .long 1b - cases, 8b - cases, 2b - cases, 3b - cases, 1b - cases\n.long 0\n.text\n");
extern int pick(int);
int main(int argc, char **argv) { printf("%d\n", pick(0)); fflush(stdout); printf("%d\n", pick(argc)); return 42; }
"#;

#[test]
fn a_case_that_begins_with_a_breakpoint_behind_all_others_still_crashes() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(CRASHING_CASE, &[&PLAIN[..], FORMS[0].1].concat(), folder.path(), "input");
    let behaviors = |program: &Path| {
        let with = |arguments: &[&str]| run(Command::new(program).args(arguments), folder.path());
        [with(&[]), with(&["?"]), with(&["?", "?"])]
    };
    let expected = behaviors(&input);
    assert!(matches!(expected[0].end, End::Signal(_)) && expected[1].end == End::Exit(SUCCESS), "{:?}", expected[0].end);
    for seed in ["1", "2", "3"] {
        let output = folder.path().join(seed);
        let report = report(relift().args(["optimize", "--json", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
        assert!(moved(&report) >= 90, "{report:#}");
        assert!(behaviors(&output) == expected, "seed {seed}");
    }
}

/// Switches of which the compiler knows that there are no other cases, so that it asks for none; one stands in a case of the other. And what only their cases call.
const UNCHECKED_CASES: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noclone))
#define TWICE(a) a a
#define MUCH(k) TWICE(TWICE(TWICE(TWICE(x = x * 5 + k; x ^= x >> 3; x %= 99991;))))
APART static int called_there(int x) { MUCH(11) return x; }
APART static int inner(unsigned kind, int x) {
    switch (kind) {
        case 0: MUCH(1) return x; case 1: return called_there(x) - 1; case 2: MUCH(2) return -x; case 3: MUCH(3) return x / 3;
        case 4: MUCH(4) return called_there(-x); case 5: MUCH(5) return x & 255; case 6: MUCH(6) return 1;
        default: __builtin_unreachable();
    }
}
APART static int outer(unsigned kind, int x) {
    switch (kind) {
        case 0: MUCH(21) return inner(x & 3, x); case 1: MUCH(22) return x + 1; case 2: return inner(4 + (x & 1), x) ^ 9; case 3: MUCH(23) return x;
        case 4: x = inner(6, x); MUCH(24) return x; case 5: MUCH(25) return x * 2; case 6: MUCH(26) return 7;
        default: __builtin_unreachable();
    }
}
int main(int argc, char **argv) {
    int x = argc;
    for (unsigned i = 0; i < 300; i++) x = (x + outer(i % 7, x)) % 9973;
    printf("%d\n", x);
    return 42;
}
"#;

#[test]
fn cases_to_which_only_a_table_leads_that_nobody_checks_move() {
    for compiler in ["gcc", "clang"] {
        if !installed(compiler) {
            skipped(&format!("there is no {compiler}"));
            continue;
        }
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let (source, input) = (folder.path().join("input.c"), folder.path().join("input"));
        std::fs::write(&source, UNCHECKED_CASES).expect("a file can be written");
        support::compile(compiler, &[&PLAIN[..], FORMS[0].1].concat(), &[&source], &input)
            .unwrap_or_else(|error| panic!("{error}"));
        let expected = run(&mut Command::new(&input), folder.path());
        assert_eq!(expected.end, End::Exit(SUCCESS));
        for seed in ["1", "2", "3", "4"] {
            let output = folder.path().join(seed);
            let report =
                report(relift().args(["optimize", "--json", "--verify", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
            assert!(moved(&report) >= 95, "{compiler}: {report:#}");
            assert!(run(&mut Command::new(&output), folder.path()) == expected, "{compiler}, seed {seed}");
        }
    }
}

/// What clang leaves behind calls that do not return, and behind what crashes, for who reads the core.
const TRAPS: &str = r#"
#include <stdio.h>
__asm__(".text\n.p2align 4, 0xcc\nchecked:\nmov %edi, %eax\n.rept 200\nadd $3, %eax\n.endr\ncmp $3, %edi\njne 1f\nsub $8, %rsp\nmov $5, %edi\n"
    "call exit@plt\n.byte 0x67, 0x0f, 0xb9, 0x40, 0x01\n1: test %edi, %edi\njns 2f\nint3\nud2\n.byte 0x67, 0x0f, 0xb9, 0x40, 0x02\n2:\n"
    ".rept 200\nxor $5, %eax\nadd $3, %eax\n.endr\nret\n.p2align 4, 0xcc\n");
extern int checked(int);
int main(int argc, char **argv) { printf("%d\n", checked(argc)); return 42; }
"#;

/// That nearly all of a position-independent program moves, and that it does what it did, without arguments and with two, by which it ends with 5.
fn assert_moves(program: &str) {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let input = compile_text(program, &[&PLAIN[..], FORMS[0].1].concat(), folder.path(), "input");
    let behaviors = |program: &Path| {
        [&[][..], &["?", "?"]].map(|arguments: &[&str]| run(Command::new(program).args(arguments), folder.path()))
    };
    let expected = behaviors(&input);
    assert_eq!(expected.each_ref().map(|run| run.end), [End::Exit(SUCCESS), End::Exit(5)]);
    for seed in ["1", "2", "3"] {
        let output = folder.path().join(seed);
        let report = report(relift().args(["optimize", "--json", "--shuffle", seed]).arg(&input).arg("-o").arg(&output));
        assert!(moved(&report) >= 90, "{report:#}");
        assert!(behaviors(&output) == expected, "seed {seed}");
    }
}

#[test]
fn a_function_with_traps_that_nothing_comes_to_moves() {
    assert_moves(TRAPS);
}

/// Behind a call that does not return stands code that names the table of jumps, as that before the call does.
const TABLE_BEHIND_AN_END: &str = r#"
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline, noreturn, used)) void die(void) { puts("end"); exit(5); }
__asm__(".text\n.p2align 4, 0xcc\npick:\ncmp $3, %edi\nja 5f\nmov %edi, %eax\nlea cases(%rip), %rsi\njmp 6f\n5: sub $8, %rsp\ncall die\n"
    "mov 16(%rsp), %rdx\nlea cases(%rip), %rsi\nadd $3, %rdx\njmp 6f\n.rept 300\nint3\n.endr\n6: movslq (%rsi,%rax,4), %rax\nadd %rsi, %rax\njmp *%rax\n"
    "1: mov $10, %eax\nret\n2: mov $20, %eax\nret\n3: mov $30, %eax\nret\n4: mov $40, %eax\nret\n.p2align 4, 0xcc\n"
    ".section .rodata\n.p2align 2\ncases: .long 1b - cases, 2b - cases, 3b - cases, 4b - cases\n.text\n");
extern int pick(int);
int main(int argc, char **argv) { printf("%d\n", pick(argc) + pick(0)); fflush(stdout); return argc > 2 ? pick(9) : 42; }
"#;

#[test]
fn code_behind_a_call_that_does_not_return_may_name_a_table_that_moves() {
    assert_moves(TABLE_BEHIND_AN_END);
}

/// Dead code with a number that is the distance from itself to a function; the same with a table like GHC's, of which it may be a word.
#[test]
fn a_number_in_dead_code_that_looks_like_a_distance_holds_nothing_unless_a_table_ends_behind_it() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    let dead = "#define DEAD(TABLE) __asm__(\".text\\n.balign 8\\n.rept 6\\nnop\\n.endr\\n.Lword: movabs $(nobody_calls_this - .Lword - 2), %rax\\nmov %eax, 8(%rdi)\\nret\\n\" TABLE);\n";
    for (table, moves) in [("", true), (".balign 8\\n.quad 14\\n.globl entry\\nentry: ret\\n", false)] {
        // The table counts from where it ends.
        let place = if moves { ".Lword - 2" } else { "entry" };
        let dead = dead.replace(".Lword - 2", place);
        let text =
            format!("{PROGRAM}{dead}DEAD(\"{table}\")\n").replace("APART int nobody", "__attribute__((used)) APART int nobody");
        let program = compile_text(&text, &[&PLAIN[..], &["-fPIE", "-pie", "-rdynamic"]].concat(), folder, "dead");
        let report =
            report(relift().args(["optimize", "--shuffle", "3", "--json"]).arg(&program).arg("-o").arg(folder.join("output")));
        assert_eq!(report["functions"]["pinned"]["unknown-metadata"].is_null(), moves, "{table}: {report}");
        rewritten_does_the_same(&program, &["optimize", "--shuffle", "3"], folder);
        rewritten_does_the_same(&program, &["shrink"], folder);
    }
}

#[test]
fn a_search_table_of_nothing_as_mold_makes_it_is_none() {
    const PROGRAM: &str = r#"
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
__attribute__((noinline)) static long length(const char *text) { long n = 0; while (text[n]) n++; return n; }
__attribute__((noinline)) static void say(const char *text) { call(1, 1, (long)text, length(text)); }
__attribute__((noinline)) static long sum(long n) { long all = 0; for (long i = 1; i <= n; i++) all += i * i; return all; }
void _start(void) {
    say(sum(10) == 385 ? "right\n" : "wrong\n");
    call(231, (int)(sum(3) % 256), 0, 0);
}
"#;
    if !installed("gcc") || !installed("mold") {
        return skipped("there is no mold");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let flags = ["-O1", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-static", "-fuse-ld=mold"];
    let program = compile_text(PROGRAM, &[&flags[..], &PLAIN].concat(), folder.path(), "program");
    rewritten_does_the_same(&program, &["shrink"], folder.path());
    shuffled_does_the_same(&program, &["1", "2"], folder.path());
}
