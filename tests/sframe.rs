//! Frames in GNU's simple form: what they describe stays, and the rest moves.

mod support;

use std::process::Command;

use support::{compile_text, installed, relift, relift_succeeds, run, skipped};

/// `kept` is the only function that the table describes.
const PROGRAM: &str = r#"
#include <stdio.h>
__asm__(".section .sfrXme, \"a\"\n.byte 0xe2, 0xde, VERSION, 5, 3, 0, 0xf8, 0\n.long 1, 0, 0, 0, 20\n.long kept - ., 2, 0, 0, 0\n.text\n");
__attribute__((noinline)) int kept(int x) { return x * 3 + 1; }
__attribute__((noinline)) int moved(int x) { return x % 7 + kept(x); }
__attribute__((noinline)) int also(int x) { return moved(x) ^ 5; }
int main(void) {
    printf("%d\n", also(9) + moved(4));
    return 0;
}
"#;

#[test]
fn functions_whose_frames_are_described_in_the_simple_form_stay_and_others_move() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    for (version, moves) in [("2", true), ("3", false)] {
        let scratch = tempfile::tempdir().expect("a scratch folder can be made");
        let folder = scratch.path();
        let program = compile_text(&PROGRAM.replace("VERSION", version), &["-O1", "-pie", "-fPIE"], folder, "program");
        // Not every linker keeps what it does not know in a section of that name.
        let mut bytes = std::fs::read(&program).expect("the program can be read");
        let name = memchr::memmem::find(&bytes, b"\0.sfrXme\0").expect("the section has a name");
        bytes[name + 5] = b'a';
        std::fs::write(&program, bytes).expect("the program can be written");
        let pinned = |name: &str| {
            let said = relift_succeeds(relift().args(["inspect", "--func", name]).arg(&program), folder);
            said.stdout_text().contains("unknown-metadata")
        };
        assert!(pinned("kept"), "version {version}");
        assert_eq!(!pinned("moved"), moves, "version {version}");
        let shuffled = folder.join("shuffled");
        relift_succeeds(relift().args(["optimize", "--shuffle", "5"]).arg(&program).arg("-o").arg(&shuffled), folder);
        assert_eq!(run(&mut Command::new(&shuffled), folder), run(&mut Command::new(&program), folder));
    }
}
