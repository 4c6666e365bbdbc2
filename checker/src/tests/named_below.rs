//! Functions that something names by their address less a number.

use super::layout::link;
use super::*;

/// The places of functions do not depend on what stands there.
const PROGRAM: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    @BEGIN@
    @NAME@
    add $1, %rbx
    mov $3, %edi
    call *%rbx
    call one
    call two
    mov %eax, %edi
    mov $60, %eax
    syscall
    hlt
    @END@
@FUNCTIONS@
    .org 0x1c0, 0xcc

    .data
    .balign 8
word:
    .quad @WORD@
"#;

/// Who names a place, in code or in data: instruction, word of data, and how it is linked.
type Way = (String, String, &'static str);

fn ways(place: u32) -> [Way; 4] {
    let (named, kinds) = (format!("_start+{place:#x}"), ["-pie", "-no-pie -static"]);
    let load = "mov word(%rip), %rbx".to_string();
    let word = |kind| (load.clone(), named.clone(), kind);
    let [lea, number] = [format!("lea {named}(%rip), %rbx"), format!("mov ${named}, %ebx")];
    [(lea, "0".into(), kinds[0]), (number, "0".into(), kinds[1]), word(kinds[0]), word(kinds[1])]
}

#[derive(Copy, Clone)]
struct Functions {
    are_described: bool,
    /// What comes before each.
    padding: &'static str,
}

impl Functions {
    /// Those at 0x100, 0x140 and 0x180.
    fn build(self, (name, word, kind): &Way, functions: [&str; 3]) -> Option<Vec<u8>> {
        let frame = if self.are_described { [".cfi_startproc", ".cfi_endproc"] } else { [""; 2] };
        let function = |(name, place): (&str, u32)| {
            let number = if name == "one" { 3 } else { 5 };
            let body = format!("    .type {name}, @function\n{name}:\n    {}\n    lea {number}(%rdi), %eax\n    ret\n", frame[0]);
            let body = if name.is_empty() { String::new() } else { format!("{body}    {}\n", frame[1]) };
            format!("    .org {place:#x} - 8, 0xcc\n    {}\n{body}", self.padding)
        };
        let text: String = functions.into_iter().zip([0x100, 0x140, 0x180]).map(function).collect();
        let text = PROGRAM.replace("@FUNCTIONS@", &text).replace("@NAME@", name).replace("@WORD@", word);
        link(&text.replace("@BEGIN@", frame[0]).replace("@END@", frame[1]), kind)
    }

    fn reported(self, way: &Way, moved: [&str; 3]) -> Option<Report> {
        let input = self.build(way, ["one", "two", ""])?;
        let same = check(&input, &input).unwrap();
        assert!(same.is_ok(), "{}", same.summary(10));
        Some(check(&input, &self.build(way, moved).unwrap()).unwrap())
    }
}

/// `nopl` of eight bytes, and of seven with a `nop` behind it.
const PADDINGS: [&str; 2] = [".byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", ".byte 0x0f, 0x1f, 0x80, 0, 0, 0, 0, 0x90"];

#[test]
fn a_function_whose_address_less_one_is_held_may_not_move() {
    for (are_described, padding) in [true, false].into_iter().flat_map(|is| PADDINGS.map(|padding| (is, padding))) {
        let functions = Functions { are_described, padding };
        for way in ways(0xff) {
            let Some(stays) = functions.reported(&way, ["one", "", "two"]) else { return };
            assert!(stays.is_ok(), "{way:?} {padding}: {}", stays.summary(10));
            let moves = functions.reported(&way, ["", "two", "one"]).unwrap();
            assert!(!moves.is_ok(), "{are_described} {way:?} {padding}");
        }
    }
}

#[test]
fn a_function_whose_address_is_held_may_not_move_whether_it_has_a_frame_description_or_not() {
    for are_described in [true, false] {
        let functions = Functions { are_described, padding: PADDINGS[0] };
        for way in ways(0x100) {
            let Some(moves) = functions.reported(&way, ["", "two", "one"]) else { return };
            assert!(!moves.is_ok(), "{are_described} {way:?}");
        }
    }
}

#[test]
fn what_is_far_from_a_function_does_not_name_it() {
    let functions = Functions { are_described: true, padding: PADDINGS[0] };
    for way in ways(0xf4) {
        let Some(moves) = functions.reported(&way, ["", "two", "one"]) else { return };
        assert!(moves.is_ok(), "{way:?}: {}", moves.summary(10));
    }
}
