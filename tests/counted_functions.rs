//! Functions that data tell apart by their distance from one of them: a call adds the distance to that one's address.

mod support;

use std::process::Command;

use support::{compile_text, installed, relift, run, skipped};

/// Words of 64 and of 32 bits, alone and as members of something larger, called and jumped to. Each of the functions is also named in another way, so that nothing says of it that it is
/// reached by distance only.
const PROGRAM: &str = r#"
#include <stdio.h>
#define APART __attribute__((noinline, noclone, no_icf))
APART int first(int x) { return x + 1; }
APART int second(int x) { return x * 3; }
APART int third(int x) { return x - 7; }
APART int fourth(int x) { return x ^ 0x55; }
extern const long wide[4];
extern const int narrow[4];
extern const struct { short name, kind; int distance; int unused; } members[4];
__asm__(".section .rodata\n.balign 8\nwide: .quad 0, second - first, third - first, fourth - first\n"
        "narrow: .long 0, second - first, third - first, fourth - first\n"
        "members:\n.irp f, first, second, third, fourth\n.short 7, 9\n.long \\f - first, 77\n.endr\n.text\n");
typedef int function(int);
function *volatile named[] = { first, second, third, fourth };
#define AT(distance) ((function *)((char *)first + (distance)))
APART int call(int which, int x) { return HOW; }
int main(int argc, char **argv) {
    int x = argc;
    for (int i = 0; i < 40; i++) {
        int which = (i * 7 + argc) & 3;
        x = (call(which, x) + named[which](x)) & 0xffff;
    }
    printf("%d\n", x);
    return 0;
}
"#;

/// Calls of the function at a distance, and a jump to it.
const WAYS: [&str; 4] =
    ["1 + AT(wide[which])(x)", "1 + AT(narrow[which])(x)", "1 + AT(members[which].distance)(x)", "AT(wide[which])(x)"];

const FORMS: [&[&str]; 4] =
    [&["-fPIE", "-pie"], &["-fno-pie", "-no-pie"], &["-fno-pie", "-no-pie", "-Wl,--emit-relocs"], &["-fPIE", "-static-pie"]];

#[test]
fn functions_that_calls_find_by_their_distance_from_another_are_found_when_code_has_moved() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for (form, way) in FORMS.iter().flat_map(|form| WAYS.iter().map(move |way| (form, way))) {
        let how = format!("-DHOW={way}");
        let program = compile_text(PROGRAM, &[*form, &["-O2", &how]].concat(), folder, "counting");
        let expected = run(&mut Command::new(&program), folder);
        for seed in 1..=4 {
            let output = folder.join("shuffled");
            let done = relift().args(["optimize", "--shuffle", &seed.to_string()]).arg(&program).arg("-o").arg(&output).output();
            let done = done.expect("relift starts");
            assert!(done.status.success(), "{form:?} {way}: {}", String::from_utf8_lossy(&done.stderr));
            assert_eq!(run(&mut Command::new(&output), folder), expected, "{form:?} {way}, seed {seed}");
        }
    }
}
