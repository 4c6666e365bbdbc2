//! What start-up code registers is told from numbers that look like it, in programs made with the assembler.
#![allow(clippy::print_stderr)]

use std::process::Command;

use lifter::elf::{Unwind, eh_frame::entry_starts};
use lifter::ir::RefTarget;
use lifter::{Image, lift};

/// Code without unwind entries that registers what `@ENTRY@` is the address of, as GCC's start-up code does, and what it calls.
const CODE: &str = r#"
    .text
    .globl _start
    .type _start, @function
_start:
    .cfi_startproc
    .cfi_undefined rip
    call starts
    call ends
    mov $60, %eax
    syscall
    hlt
    .cfi_endproc
    .size _start, . - _start
    .type starts, @function
starts:
    push %rbp
    mov $object, %esi
    @OPERAND@
    mov %rsp, %rbp
    call takes
    pop %rbp
    ret
    .size starts, . - starts
    .type ends, @function
ends:
    @OPERAND@
    jmp forgets
    .size ends, . - ends
    .type takes, @function
takes:
    .cfi_startproc
    endbr64
    test %rdi, %rdi
    je 1f
    mov (%rdi), %edx
    test %edx, %edx
    je 1f
    mov %rdi, 24(%rsi)
1:
    ret
    .cfi_endproc
    .size takes, . - takes
    .type forgets, @function
forgets:
    .cfi_startproc
    endbr64
    jmp takes
    .cfi_endproc
    .size forgets, . - forgets
    .type other, @function
other:
    .cfi_startproc
    @OTHER@
    ret
    .cfi_endproc
    .size other, . - other
    .bss
    .balign 8
object:
    .skip 48
    .data
    .balign 8
    .quad other, @WORD@
"#;

struct Variant<'v> {
    /// Where the program registers from, in the list of entries.
    entry: usize,
    operand: &'v str,
    /// An instruction elsewhere.
    other: &'v str,
    word: &'v str,
    /// What is replaced in the code, and by what.
    change: (&'v str, &'v str),
    flags: &'v [&'v str],
}

const PLAIN: Variant<'_> =
    Variant { entry: 2, operand: "mov $@ENTRY@, %edi", other: "nop", word: "0", change: ("", ""), flags: &["-no-pie"] };

impl Variant<'_> {
    fn link(&self, entry: &str) -> Option<Vec<u8>> {
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let (source, program) = (folder.path().join("a.s"), folder.path().join("a"));
        let code = CODE.replacen(self.change.0, self.change.1, 1);
        let text = code.replace("@OPERAND@", self.operand).replace("@OTHER@", self.other).replace("@WORD@", self.word);
        std::fs::write(&source, text.replace("@ENTRY@", entry)).expect("the scratch folder can be written");
        let done =
            Command::new("gcc").args(["-nostdlib", "-static"]).args(self.flags).arg("-o").arg(&program).arg(&source).output();
        let Ok(done) = done else {
            eprintln!("skipped: no gcc");
            return None;
        };
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(std::fs::read(program).expect("it was linked"))
    }

    /// Whether the table's address is found to be registered, and how many references to it there are.
    fn found(&self) -> Option<(bool, usize)> {
        // No number makes an instruction longer.
        let first = self.link("0x400000")?;
        let entry = entry_starts(&Image::parse(&first).expect("it parses"))[self.entry];
        let file = self.link(&format!("{:#x}", entry.0))?;
        let image = Image::parse(&file).expect("it parses");
        assert_eq!(entry_starts(&image)[self.entry], entry);
        let program = lift(&image, Unwind::parse(&image).expect("its unwind entries parse")).expect("it lifts");
        assert!(program.names_in_unwind.contains(&entry));
        assert!(program.registered_table.is_none_or(|table| table == entry));
        let num_refs = program.refs.iter().filter(|r| r.target == RefTarget::UnwindTable(entry)).count();
        Some((program.registered_table.is_some(), num_refs))
    }
}

#[test]
fn operands_that_register_the_unwind_table_are_references_to_it() {
    let Some(found) = PLAIN.found() else { return };
    assert_eq!(found, (true, 2));
    let word = "0\n    .section .eh_frame, \"a\", @progbits\nbegins:\n    .data";
    let by_name = Variant { entry: 0, operand: "mov $begins, %edi", word, ..PLAIN };
    assert_eq!(by_name.found(), Some((true, 2)));
    let relocated = Variant { flags: &["-no-pie", "-Wl,--emit-relocs"], ..by_name };
    assert_eq!(relocated.found(), Some((true, 2)));
    let other_way = ("test %rdi, %rdi\n    je 1f", "test %rdi, %rdi\n    jne 2f\n    ret\n2:");
    assert_eq!(Variant { change: other_way, ..PLAIN }.found(), Some((true, 2)));
}

#[test]
fn a_number_that_nothing_reads_an_entry_at_is_a_number() {
    let changes = [
        ("mov (%rdi), %edx", "mov 4(%rdi), %edx"),
        ("mov (%rdi), %edx", "mov (%rdi), %rdx"),
        ("mov (%rdi), %edx", "mov %fs:(%rdi), %edx"),
        ("mov (%rdi), %edx", "mov (%rdi), %edi"),
        ("test %edx, %edx", "cmp $20, %edx"),
        ("test %edx, %edx", "mov $1, %edx\n    test %edx, %edx"),
        ("call takes", "inc %rdi\n    call takes"),
        ("call takes", "call *(%rsi)"),
        ("mov %rsp, %rbp", "test %eax, %eax\n    je 1f\n1:"),
        ("mov %rsp, %rbp", "mov %rdi, (%rsi)"),
        ("jmp forgets", "ret"),
    ];
    for change in changes {
        assert!(CODE.contains(change.0), "{}", change.0);
        let Some(found) = (Variant { change, ..PLAIN }).found() else { return };
        assert_eq!(found, (false, 0), "{}", change.1);
    }
    for operand in ["mov $@ENTRY@, %esi", "movq $@ENTRY@, %rdi", "push $@ENTRY@\n    pop %rdi"] {
        assert_eq!(Variant { operand, ..PLAIN }.found(), Some((false, 0)), "{operand}");
    }
}

#[test]
fn a_table_whose_address_something_else_may_hold_is_not_registered() {
    for other in
        ["mov $@ENTRY@, %eax", "cmp $@ENTRY@, %rax", "movq $@ENTRY@, (%rsi)", "and $@ENTRY@, %eax", ".byte 6\n    .long @ENTRY@"]
    {
        let Some(found) = (Variant { other, ..PLAIN }).found() else { return };
        assert_eq!(found, (false, 0), "{other}");
    }
    assert_eq!(Variant { word: "@ENTRY@", ..PLAIN }.found(), Some((false, 0)));
}
