//! Operands that follow the unwind table: those that register it, all of them, and no other number.

use super::layout::{CLASSIFY, TABLE, TWICE, UNUSED, build, build_fixed};
use super::*;
use goblin::elf::program_header::PT_GNU_EH_FRAME;

/// Start-up code that registers a table, code that takes it back, and what they call.
const CODE: &str = r#"
.Lstarts:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset rbp, -16
    @OBJECT@
    @OPERAND@
    mov %rsp, %rbp
    call .Ltakes
    pop %rbp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
.Lends:
    .cfi_startproc
    @OPERAND@
    jmp .Lforgets
    .cfi_endproc
.Ltakes:
    .cfi_startproc
    endbr64
    test %rdi, %rdi
    je 1f
    mov (%rdi), %r8d
    test %r8d, %r8d
    je 1f
    mov %rdi, 24(%rsi)
1:
    ret
    .cfi_endproc
.Lforgets:
    .cfi_startproc
    endbr64
    jmp .Linner
    .cfi_endproc
.Linner:
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset rbx, -16
    test %rdi, %rdi
    jne 2f
1:
    pop %rbx
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    ret
2:
    .cfi_restore_state
    mov (%rdi), %eax
    mov %rdi, %rbx
    test %eax, %eax
    je 1b
    mov %rbx, %rax
    jmp 1b
    .cfi_endproc
"#;
const ROOTS: &str = "    .balign 8\n    .quad .Lstarts, .Lends\n";

/// A form of the program: how it is linked and how code names the table.
#[derive(Copy, Clone)]
struct Form {
    build: fn(&[&str], &str) -> Option<Vec<u8>>,
    operand: &'static str,
    object: &'static str,
    opcode: &'static [u8],
}

const FIXED: Form = Form { build: build_fixed, operand: "mov $@TABLE@, %edi", object: "mov $message, %esi", opcode: &[0xbf] };
const ANYWHERE: Form = Form {
    build,
    operand: "lea @TABLE@ - .Lhere + _start(%rip), %rdi",
    object: "lea message(%rip), %rsi",
    opcode: &[0x48, 0x8d, 0x3d],
};

/// A program that registers an entry of its table, and what its output may register.
struct Program {
    form: Form,
    file: Vec<u8>,
    /// The address in the input.
    entry: u64,
    start: u64,
}

/// Nothing leads the unwinder to the table but what is registered.
fn without_search_table(mut file: Vec<u8>) -> Vec<u8> {
    let elf = goblin::elf::Elf::parse(&file).unwrap();
    let at = elf.program_headers.iter().position(|header| header.p_type == PT_GNU_EH_FRAME).unwrap();
    let place = elf.header.e_phoff as usize + 56 * at;
    file[place..place + 4].fill(0);
    file
}

impl Program {
    /// `code` and `words` say `@ENTRY@` where they mean the address.
    fn new(form: Form, code: &str, words: &str) -> Option<Self> {
        let with = |entry: u64, start: u64| {
            let operand = form.operand.replace("@TABLE@", &format!("{entry:#x}")).replace(".Lhere", &format!("{start:#x}"));
            let code = code.replace("@OPERAND@", &operand).replace("@OBJECT@", form.object);
            let fill = |text: &str| text.replace("@ENTRY@", &format!("{entry:#x}"));
            (form.build)(&[TWICE, UNUSED, CLASSIFY, &fill(&code)], &format!("{TABLE}{ROOTS}{}", fill(words)))
        };
        // Neither number makes any instruction longer.
        let first = with(0x40_0000, 0x40_0000)?;
        let image = Image::parse(&first).unwrap();
        let entries = unwind::entries(&image);
        let code_start = image.elf.entry;
        let file = without_search_table(with(entries[2], code_start).unwrap());
        Some(Self { form, file, entry: entries[2], start: entries[0] })
    }

    /// Where the operands' fields are, and their addresses.
    fn fields(&self) -> Vec<(usize, u64)> {
        let image = Image::parse(&self.file).unwrap();
        let area = image.code[0];
        let opcode = self.form.opcode;
        let at_file = |at: u64| {
            let header =
                image.elf.program_headers.iter().find(|header| header.p_vaddr <= at && at < header.p_vaddr + header.p_memsz);
            (at - header.unwrap().p_vaddr + header.unwrap().p_offset) as usize
        };
        let found = area.bytes.windows(opcode.len() + 4).enumerate().filter(|(index, bytes)| {
            let next = area.start + (index + opcode.len() + 4) as u64;
            bytes.starts_with(opcode) && bytes[opcode.len()..] == self.value(self.entry, next)
        });
        let places = found.map(|(index, _)| area.start + (index + opcode.len()) as u64);
        places.map(|at| (at_file(at), at)).collect()
    }

    /// What the field of an operand says of which the next instruction is at an address.
    fn value(&self, table: u64, next: u64) -> [u8; 4] {
        let base = if self.form.opcode.len() == 1 { 0 } else { next };
        (table.wrapping_sub(base) as u32).to_le_bytes()
    }

    /// The program with the operands of these numbers changed.
    fn registering(&self, table: u64, which: &[usize]) -> Vec<u8> {
        let (fields, mut file) = (self.fields(), self.file.clone());
        for &(place, at) in which.iter().map(|&index| &fields[index]) {
            file[place..place + 4].copy_from_slice(&self.value(table, at + 4));
        }
        file
    }

    fn report(&self, table: u64, which: &[usize]) -> Report {
        check(&self.file, &self.registering(table, which)).unwrap()
    }
}

#[test]
fn operands_that_register_the_table_may_follow_it() {
    for form in [FIXED, ANYWHERE] {
        let Some(program) = Program::new(form, CODE, "") else { return };
        assert_eq!(program.fields().len(), 2);
        let report = program.report(program.start, &[0, 1]);
        assert!(report.is_ok(), "{}", report.summary(20));
        assert!(check(&program.file, &program.file).unwrap().is_ok());
    }
}

#[test]
fn an_operand_that_follows_the_table_elsewhere_is_seen() {
    for form in [FIXED, ANYWHERE] {
        let Some(program) = Program::new(form, CODE, "") else { return };
        let other = unwind::entries(&Image::parse(&program.file).unwrap())[3];
        for wrong in [other, program.start + 4, program.start - 8, program.entry + 1, program.entry - 4, 0x40_2000] {
            assert!(!program.report(wrong, &[0, 1]).is_ok(), "{wrong:#x}");
        }
    }
}

#[test]
fn a_table_that_is_registered_and_not_found_again_is_seen() {
    for form in [FIXED, ANYWHERE] {
        let Some(program) = Program::new(form, CODE, "") else { return };
        for which in [0, 1] {
            let report = program.report(program.start, &[which]);
            assert_eq!(kinds(&report), [ViolationKind::UnwindTable], "{}", report.summary(20));
        }
    }
}

#[test]
fn a_number_that_nothing_reads_an_entry_at_stays() {
    let changes = [
        // Not the length of an entry, not read there, not asked whether it is zero.
        ("mov (%rdi), %r8d", "mov 4(%rdi), %r8d"),
        ("mov (%rdi), %r8d", "mov (%rdi), %r8"),
        ("mov (%rdi), %r8d", "mov (%rsi), %r8d"),
        ("mov (%rdi), %r8d", "mov (%rdi,%rax), %r8d"),
        ("mov (%rdi), %r8d", "movzwl (%rdi), %r8d"),
        ("test %r8d, %r8d", "test %r9d, %r9d"),
        ("test %r8d, %r8d", "cmp $9, %r8d"),
        ("test %r8d, %r8d", "mov $1, %r8d\n    test %r8d, %r8d"),
        // Something else is given to it.
        ("call .Ltakes", "add $1, %rdi\n    call .Ltakes"),
        ("call .Ltakes", "mov $1, %edi\n    call .Ltakes"),
        ("mov %rsp, %rbp", "xchg %rdi, %rbp"),
        ("mov %rsp, %rbp", "pop %rdi"),
        ("mov %rsp, %rbp", "mov %rdi, (%rsi)"),
        // Whether it is given to anybody is not known.
        ("mov %rsp, %rbp", "test %rax, %rax\n    je 1f\n1:"),
        ("test %rdi, %rdi\n    je 1f\n    mov (%rdi), %r8d", "cmp %rsi, %rdi\n    je 1f\n    mov (%rdi), %r8d"),
        ("test %rdi, %rdi\n    je 1f\n    mov (%rdi), %r8d", "test %rdi, %rdi\n    js 1f\n    mov (%rdi), %r8d"),
        ("call .Ltakes", "call *(%rsi)"),
    ];
    for (from, to) in changes {
        assert!(CODE.contains(from), "{from}");
        let Some(program) = Program::new(FIXED, &CODE.replacen(from, to, 1), "") else { return };
        assert!(!program.report(program.start, &[0, 1]).is_ok(), "{to}");
        assert!(check(&program.file, &program.file).unwrap().is_ok(), "{to}");
    }
}

#[test]
fn a_table_whose_address_something_else_holds_stays() {
    let number = "    .cfi_startproc\n    mov $@ENTRY@, %eax\n    ret\n    .cfi_endproc\n";
    let compared = "    .cfi_startproc\n    cmp $@ENTRY@, %rax\n    ret\n    .cfi_endproc\n";
    let stored = "    .cfi_startproc\n    movq $@ENTRY@, (%rsi)\n    ret\n    .cfi_endproc\n";
    let word = "    .balign 8\n    .quad @ENTRY@\n";
    // Behind what is no code, where nothing shows that it is none.
    let hidden = "    .byte 6, 0xbf\n    .long @ENTRY@\n    .byte 6\n";
    for (code, words) in [(number, ""), (compared, ""), (stored, ""), (hidden, ""), ("", word)] {
        let Some(program) = Program::new(FIXED, &format!("{CODE}{code}"), words) else { return };
        let report = program.report(program.start, &[0, 1]);
        assert_eq!(kinds(&report), [ViolationKind::UnwindTable], "{code}{words}: {}", report.summary(20));
    }
}

#[test]
fn another_register_or_field_is_no_operand() {
    for other in ["mov $@TABLE@, %esi", "mov $@TABLE@, %r15d", "movq $@TABLE@, %rdi", "cmp $@TABLE@, %edi", "push $@TABLE@"] {
        let opcode: &[u8] = match other {
            _ if other.contains("%esi") => &[0xbe],
            _ if other.contains("r15d") => &[0xbf],
            _ if other.starts_with("movq") => &[0xc7],
            _ if other.starts_with("cmp") => &[0xff],
            _ => &[0x68],
        };
        let Some(program) = Program::new(Form { operand: other, opcode, ..FIXED }, CODE, "") else { return };
        let fields: Vec<usize> = (0..program.fields().len()).collect();
        if !fields.is_empty() {
            assert!(!program.report(program.start, &fields).is_ok(), "{other}");
        }
    }
}

/// A linker that writes no terminator (tcc's) may put anything behind the table: `.init`, whose address the loader is told.
#[test]
fn what_lies_behind_a_table_without_a_terminator_is_no_table() {
    let Some(program) = Program::new(FIXED, CODE, "    .balign 8\n    .quad @ENTRY@\n") else { return };
    let end = Image::parse(&program.file).unwrap().section(".eh_frame").unwrap().end();
    assert!(!unwind::entries(&Image::parse(&program.file).unwrap()).contains(&end));
    let word = program.entry.to_le_bytes();
    let at = program.file.windows(8).position(|bytes| bytes == word).unwrap();
    let told = |mut file: Vec<u8>| {
        file[at..at + 8].copy_from_slice(&end.to_le_bytes());
        file
    };
    let report = check(&told(program.file.clone()), &told(program.registering(program.start, &[0, 1]))).unwrap();
    assert!(report.is_ok(), "{}", report.summary(20));
}
