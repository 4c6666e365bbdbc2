//! Stacks that grow in pieces (`-fsplit-stack`, and all that gccgo compiles): a function's body is called by an address behind the return of its own prologue.

mod support;

use std::fs;

use support::{compile, compile_text, every_form_does_the_same, installed, relift, relift_succeeds, skipped};

/// Frames of 3,000 bytes, 5,000 of them: each piece of the stack is too small for long.
const PROGRAM: &str = r#"
#include <stdio.h>
__attribute__((noinline)) long deep(long n) {
    volatile char a[3000];
    a[n % 3000] = n;
    if (n == 0) return 0;
    return deep(n - 1) + a[n % 3000];
}
__attribute__((noinline)) long many(long a, long b, long c, long d, long e, long f, long g, long h) {
    volatile long kept[400];
    kept[a % 400] = b;
    if (a == 0) return c + d * 2 + e * 3 + f * 5 + g * 7 + h * 11;
    return many(a - 1, b, d, c, f, e, h, g) + kept[a % 400];
}
int main(void) {
    long sum = 0;
    for (int i = 0; i < 200; i++) sum += deep(i % 7);
    printf("%ld %ld %ld\n", sum, deep(5000), many(2000, 1, 2, 3, 4, 5, 6, 7));
    return 3;
}
"#;

#[test]
fn functions_whose_stack_grows_are_found_behind_their_return_in_every_form() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let source = folder.join("program.c");
    fs::write(&source, PROGRAM).expect("the source can be written");
    for flags in [&["-O2", "-fPIE", "-pie"][..], &["-O2", "-fno-pie", "-no-pie"], &["-O0", "-fPIE", "-pie"], &["-Os", "-static"]]
    {
        let program = folder.join("program");
        if let Err(why) = compile("gcc", &[flags, &["-fsplit-stack"]].concat(), &[&source], &program) {
            skipped(&format!("{flags:?}: {why}"));
            continue;
        }
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
    }
}

/// Frames of one size, so that what asks for room is alike.
#[test]
fn what_was_shrunk_can_be_relinked_again() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    const FUNCTION: &str = "__attribute__((noipa)) long deepN(long n) { volatile char a[3000]; a[n % 3000] = n; return n == 0 ? N : deepN(n - 1) + a[n % 3000]; }\n";
    let functions: String = (0..8).map(|number| FUNCTION.replace('N', &number.to_string())).collect();
    let calls: String = (0..8).map(|number| format!(" + deep{number}(2000)")).collect();
    let text = format!("#include <stdio.h>\n{functions}int main(void) {{ printf(\"%ld\\n\", 0L{calls}); return 3; }}\n");
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(&text, &["-O2", "-fsplit-stack"], folder, "program");
    let smaller = folder.join("smaller");
    relift_succeeds(relift().arg("shrink").arg(&program).arg("-o").arg(&smaller), folder);
    every_form_does_the_same(&smaller, &["1", "2", "3", "4"], folder);
}

#[test]
fn the_checker_asks_for_what_stands_behind_the_return_of_such_a_prologue() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let program = compile_text(PROGRAM, &["-O2", "-fsplit-stack"], folder, "program");
    let output = folder.join("output");
    let mut bytes = fs::read(&program).expect("the program can be read");
    // xor %r11d,%r11d; call; ret: then a jump to the body, here a breakpoint.
    let is_prologue = |window: &[u8]| window.starts_with(&[0x45, 0x31, 0xdb, 0xe8]) && window[8] == 0xc3;
    let at = bytes.windows(10).position(is_prologue).expect("a prologue that grows the stack");
    relift_succeeds(relift().arg("check").args([&program, &program]), folder);
    bytes[at + 9] = 0xcc;
    fs::write(&output, bytes).expect("the output can be written");
    let said = relift().arg("check").args([&program, &output]).output().expect("relift can be started");
    assert!(!said.status.success());
    assert!(
        String::from_utf8_lossy(&said.stdout).contains("BadTarget") || String::from_utf8_lossy(&said.stdout).contains("Mismatch")
    );
}
