//! Static programs without a search table in which nothing unwinds: C's by musl are like that. Nobody finds their unwind table at run time, unless something holds an address in it.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{compile_text, installed, relift, run, skipped};

/// A program without a C library. `LOOKS`: it looks at where its unwind table begins, which its data say; an entry has a length, and the first has no number of another.
const PROGRAM: &str = r#"
#define APART __attribute__((noinline, noclone, no_icf))
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
static char text[32];
APART static int digits(unsigned long value) {
    int at = 31;
    text[at] = '\n';
    do text[--at] = (char)('0' + value % 10); while (value /= 10);
    return at;
}
volatile int keep;
#define PART(name, factor, other) APART static unsigned long name(unsigned long x) { \
    if (x % 3 == 0) { keep++; x = x * factor + 1; if (x & 8) x ^= x >> 7; } \
    else if (x % 3 == 1) { keep--; x = x / 2 + factor; if (x & 16) return other(x >> 1) + 1; } \
    else { keep ^= 1; x = x + 7 * factor; if (keep & 4) x = x << 1 | 1; } \
    return x; }
APART static unsigned long last(unsigned long x) { return x ^ 0x5a5a; }
PART(first, 3, last) PART(second, 5, first) PART(third, 7, second) PART(fourth, 11, third) PART(fifth, 13, fourth) PART(sixth, 17, fifth)
#ifdef LOOKS
__asm__(".pushsection .eh_frame, \"a\", @progbits\ntable:\n.popsection\n");
extern const unsigned table[];
const unsigned *volatile const held = table;
#endif
void _start(void) {
    unsigned long x = 1;
    for (int i = 0; i < 3000; i++)
        x = (first(x) + second(x) + third(x) + fourth(x) + fifth(x) + sixth(x)) & 0xffffff;
#ifdef LOOKS
    x = x * 10 + (held[0] != 0 && held[1] == 0);
#endif
    int at = digits(x);
    call(1, 1, (long)(text + at), 32 - at);
    call(60, 3, 0, 0);
    __builtin_unreachable();
}
"#;

const FORMS: [&[&str]; 2] = [&["-fno-pie", "-no-pie", "-static"], &["-fPIE", "-static-pie"]];

fn build(form: &[&str], more: &[&str], folder: &Path) -> PathBuf {
    let always =
        ["-O2", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fasynchronous-unwind-tables", "-Wl,--no-eh-frame-hdr"];
    compile_text(PROGRAM, &[&always, form, more].concat(), folder, "alone")
}

#[test]
fn an_unwind_table_that_nobody_finds_may_lie_anywhere() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for form in FORMS {
        let program = build(form, &[], folder);
        let expected = run(&mut Command::new(&program), folder);
        let output = folder.join("output");
        for seed in 1..=6 {
            let seed = seed.to_string();
            let done = relift().args(["optimize", "--shuffle", &seed]).arg(&program).arg("-o").arg(&output).output();
            let done = done.expect("relift starts");
            assert!(done.status.success(), "{form:?} {seed}: {}", String::from_utf8_lossy(&done.stderr));
            assert_eq!(run(&mut Command::new(&output), folder), expected, "{form:?} {seed}");
        }
    }
}

#[test]
fn an_unwind_table_of_which_data_hold_the_address_begins_there_or_the_file_is_refused() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    // Nothing relocates the other form.
    let program = build(FORMS[0], &["-DLOOKS"], folder);
    let expected = run(&mut Command::new(&program), folder);
    assert!(expected.stdout_text().ends_with("1\n"), "the program finds its own table: {expected:?}");
    let output = folder.join("output");
    for seed in 1..=6 {
        let seed = seed.to_string();
        let done = relift().args(["optimize", "--shuffle", &seed]).arg(&program).arg("-o").arg(&output).output();
        let done = done.expect("relift starts");
        if done.status.success() {
            assert_eq!(run(&mut Command::new(&output), folder), expected, "{seed}");
        } else {
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(said.contains("finds its unwind tables by their address"), "{seed}: {said}");
        }
    }
}
