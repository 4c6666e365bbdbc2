//! `cargo xtask alias-random`: random machine code, executed for real, against what the analysis says of every address.
//!
//! **Method.** An assembly program of many random functions is generated, built and run under the checker of `alias-trace`, which holds each address against its
//! descriptor and each pair against its verdict. The functions use what the domain has rules for, and what it has none for: sums, differences,
//! products, masks and shifts, 32-, 16- and 8-bit writes, extensions, conditional moves, exchanges, pushes and pops, pointers kept in frame slots, pointers
//! into the frame given to callees, loops, calls and jumps in their place. They keep to no calling convention but that the stack pointer comes back.
//!
//! **Why they don't crash.** The generator knows of each register whether it holds an address in the middle of a large buffer (with how much room is left), or any number. Numbers become
//! addresses only masked.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::alias_trace::{self, AliasTraceArgs};
use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct AliasRandomArgs {
    /// Functions in a program
    #[arg(long, default_value_t = 400, value_name = "N")]
    functions: usize,
    /// How many times each is called from outside
    #[arg(long, default_value_t = 50, value_name = "N")]
    rounds: usize,
    /// Programs
    #[arg(long, default_value_t = 3, value_name = "N")]
    programs: u64,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    seed: u64,
    /// Add rows to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

pub(crate) fn run(args: &AliasRandomArgs) -> Result {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    for seed in args.seed..args.seed + args.programs {
        let source = folder.path().join(format!("random{seed}.s"));
        let program = folder.path().join(format!("random{seed}"));
        shell::write_file(&source, generate(seed, args.functions, args.rounds).as_bytes())?;
        let position = if seed % 2 == 0 { "-pie" } else { "-no-pie" };
        let mut build = Command::new("cc");
        build.args(["-nostdlib", "-Wl,--emit-relocs", "-Wl,-z,noexecstack", position, "-o"]).arg(&program).arg(&source);
        shell::run(&mut build)?;
        // For real first: what crashes is no test.
        shell::run(&mut Command::new(&program))?;
        alias_trace::run(&AliasTraceArgs::of(program, args.record.clone()))?;
    }
    Ok(())
}

/// A linear congruential generator (Knuth's MMIX), its high bits.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len() as u64) as usize]
    }
    fn one_in(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }
}

/// Registers by width: 64, 32, 16 and 8 bits. `rsp` is not among them, and neither is `r15`, which counts loops, nor `r14`, which holds a buffer that no function moves.
const REGISTERS: [[&str; 4]; 13] = [
    ["rax", "eax", "ax", "al"],
    ["rcx", "ecx", "cx", "cl"],
    ["rdx", "edx", "dx", "dl"],
    ["rbx", "ebx", "bx", "bl"],
    ["rbp", "ebp", "bp", "bpl"],
    ["rsi", "esi", "si", "sil"],
    ["rdi", "edi", "di", "dil"],
    ["r8", "r8d", "r8w", "r8b"],
    ["r9", "r9d", "r9w", "r9b"],
    ["r10", "r10d", "r10w", "r10b"],
    ["r11", "r11d", "r11w", "r11b"],
    ["r12", "r12d", "r12w", "r12b"],
    ["r13", "r13d", "r13w", "r13b"],
];

/// What the generator knows of a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Content {
    Number,
    /// An address with so many bytes around it that may be touched.
    Pointer(i64),
}

/// Room around a pointer into one of the large buffers.
const ROOM: i64 = 16 << 10;
/// Bytes of a function's locals.
const LOCALS: i64 = 256;

fn generate(seed: u64, functions: usize, rounds: usize) -> String {
    let mut text = String::from(".intel_syntax noprefix\n.text\n");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for number in 0..functions {
        Function {
            random: &mut random,
            text: &mut text,
            number,
            contents: [Content::Number; 13],
            label: 0,
            slots: [false; 32],
            pushed: 0,
        }
        .write();
    }
    let _ = writeln!(text, ".globl _start\n.type _start,@function\n_start:\n.cfi_startproc\nmov r15d, {rounds}");
    let _ = writeln!(text, "again:");
    for number in 0..functions {
        let (a, b) = (random.below(8) * 64, random.below(64) * 8);
        let _ = writeln!(
            text,
            "push r15\nlea r14, [rip+buffer+65536]\nlea rdi, [rip+buffer+{}]\nlea rsi, [rip+buffer+{}]",
            32768 + a,
            98304 + b
        );
        let _ = writeln!(text, "mov rdx, r15\ncall f{number}\npop r15");
    }
    text.push_str("dec r15\njnz again\nmov eax, 60\nxor edi, edi\nsyscall\n.cfi_endproc\n.size _start,.-_start\n");
    text.push_str(".bss\n.balign 4096\nbuffer: .zero 131072\n");
    text
}

struct Function<'r> {
    random: &'r mut Random,
    text: &'r mut String,
    number: usize,
    contents: [Content; 13],
    label: usize,
    /// Which of the frame's slots hold an address with `ROOM` left.
    slots: [bool; 32],
    /// Bytes pushed below the locals.
    pushed: i64,
}

impl Function<'_> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }
    fn push(&mut self, line: String) {
        self.line(&line);
    }
    fn any(&mut self) -> usize {
        self.random.below(13) as usize
    }
    fn set(&mut self, register: usize, content: Content) {
        self.contents[register] = content;
    }
    fn pointer(&mut self) -> Option<(usize, i64)> {
        let start = self.any();
        (0..13).map(|i| (start + i) % 13).find_map(|r| match self.contents[r] {
            Content::Pointer(room) if room > 512 => Some((r, room)),
            _ => None,
        })
    }

    fn write(mut self) {
        let number = self.number;
        self.push(format!(".type f{number},@function\nf{number}:\n.cfi_startproc"));
        self.set(5, Content::Pointer(ROOM));
        self.set(6, Content::Pointer(ROOM));
        self.push(format!("sub rsp, {}", self.frame_size()));
        let count = 10 + self.random.below(40);
        for _ in 0..count {
            self.statement(true);
        }
        self.push(format!("add rsp, {}", self.frame_size() + self.pushed));
        let leaves_by_jump = self.random.one_in(6);
        match self.callee().filter(|_| leaves_by_jump) {
            Some(callee) => {
                self.arguments(false);
                self.push(format!("jmp f{callee}"));
            }
            None => self.line("ret"),
        }
        self.push(format!(".cfi_endproc\n.size f{number},.-f{number}"));
    }

    fn statement(&mut self, may_nest: bool) {
        match self.random.below(if may_nest { 22 } else { 18 }) {
            0..4 => self.access(),
            4..6 => self.move_pointer(),
            6..9 => self.arithmetic(),
            9 => self.narrow(),
            10 => self.choose(),
            11 => self.exchange(),
            12..14 => self.spill(),
            14 => self.reload(),
            15 => self.frame_pointer(),
            16 => self.copy(),
            17 => self.masked_index(),
            18 => self.push_and_pop(),
            19 => self.branch(),
            20 => self.repeat(),
            _ => self.call(),
        }
    }

    /// Loads and stores of all widths around a pointer, or in the own frame.
    fn access(&mut self) {
        let (width, size) = *self.random.pick(&[("qword", 0), ("dword", 1), ("word", 2), ("byte", 3)]);
        let other = self.any();
        let place = match self.pointer() {
            Some((register, _)) if !self.random.one_in(4) => {
                format!("[{}{:+}]", REGISTERS[register][0], self.random.below(256) as i64 - 128)
            }
            _ => {
                let slot = self.random.below(32) as i64;
                self.slots[slot as usize] = false;
                format!("[rsp+{}]", slot * 8 + self.pushed)
            }
        };
        match self.random.below(3) {
            0 => self.push(format!("mov {width} ptr {place}, {}", REGISTERS[other][size])),
            1 => {
                let line = format!("add {width} ptr {place}, {}", self.random_byte());
                self.push(line)
            }
            _ => {
                self.push(format!("mov {}, {width} ptr {place}", REGISTERS[other][size]));
                self.set(other, Content::Number);
            }
        }
    }
    fn random_byte(&mut self) -> u64 {
        self.random.below(100)
    }
    fn move_pointer(&mut self) {
        let Some((from, room)) = self.pointer() else { return self.frame_pointer() };
        let (to, by) = (self.any(), self.random.below(128) as i64 - 64);
        match self.random.below(3) {
            0 => {
                self.push(format!("lea {}, [{}{by:+}]", REGISTERS[to][0], REGISTERS[from][0]));
                self.set(to, Content::Pointer(room - 64));
            }
            1 => {
                self.push(format!("add {}, {by}", REGISTERS[from][0]));
                self.set(from, Content::Pointer(room - 64));
            }
            _ => {
                self.push(format!("sub {}, {by}", REGISTERS[from][0]));
                self.set(from, Content::Pointer(room - 64));
            }
        }
    }
    /// A pointer plus a masked and scaled number.
    fn masked_index(&mut self) {
        let (Some((from, room)), index) = (self.pointer(), self.any()) else { return };
        if index == from {
            return;
        }
        let to = self.any();
        let scale = *self.random.pick(&[1, 2, 4, 8]);
        let line = format!("and {}, {}", REGISTERS[index][1], self.random.pick(&[7, 15, 24, 28, 31]));
        self.push(line);
        self.push(format!("lea {}, [{}+{}*{scale}]", REGISTERS[to][0], REGISTERS[from][0], REGISTERS[index][0]));
        self.set(index, Content::Number);
        self.set(to, Content::Pointer(room - 256));
    }
    fn arithmetic(&mut self) {
        let (to, from, narrow) = (self.any(), self.any(), usize::from(self.random.one_in(2)));
        let (t, f) = (REGISTERS[to][narrow], REGISTERS[from][narrow]);
        let number = self.random.below(5000) as i64 - 2500;
        let line = match self.random.below(10) {
            0 => format!("add {t}, {f}"),
            1 => format!("sub {t}, {f}"),
            2 => format!("imul {t}, {f}, {number}"),
            3 => format!("shl {t}, {}", self.random.below(8)),
            4 => format!("and {t}, {}", self.random.pick(&[-8, -16, -64, 63, 255, 4095])),
            5 => format!("xor {t}, {f}"),
            6 => format!("lea {}, [{}*{}+{number}]", REGISTERS[to][0], REGISTERS[from][0], self.random.pick(&[2, 4, 8])),
            7 => format!("mov {t}, {}", number.unsigned_abs()),
            8 => format!("or {t}, {}", number.unsigned_abs()),
            _ => format!("shr {t}, {}", self.random.below(20)),
        };
        self.line(&line);
        self.set(to, Content::Number);
    }
    fn narrow(&mut self) {
        let (to, from) = (self.any(), self.any());
        let line = match self.random.below(6) {
            0 => format!("movzx {}, {}", REGISTERS[to][1], REGISTERS[from][3]),
            1 => format!("movsx {}, {}", REGISTERS[to][0], REGISTERS[from][2]),
            2 => format!("movsxd {}, {}", REGISTERS[to][0], REGISTERS[from][1]),
            3 => format!("mov {}, {}", REGISTERS[to][1], REGISTERS[from][1]),
            4 => format!("mov {}, {}", REGISTERS[to][3], REGISTERS[from][3]),
            _ => format!("mov {}, {}", REGISTERS[to][2], REGISTERS[from][2]),
        };
        self.line(&line);
        self.set(to, Content::Number);
    }
    fn choose(&mut self) {
        let (to, from) = (self.any(), self.any());
        let compared = self.any();
        self.push(format!("cmp {}, {}", REGISTERS[compared][0], REGISTERS[from][0]));
        self.push(format!("cmovb {}, {}", REGISTERS[to][0], REGISTERS[from][0]));
        let content = match (self.contents[to], self.contents[from]) {
            (Content::Pointer(a), Content::Pointer(b)) => Content::Pointer(a.min(b)),
            _ => Content::Number,
        };
        self.set(to, content);
    }
    fn exchange(&mut self) {
        let (a, b) = (self.any(), self.any());
        self.push(format!("xchg {}, {}", REGISTERS[a][0], REGISTERS[b][0]));
        self.contents.swap(a, b);
    }
    fn copy(&mut self) {
        let (to, from) = (self.any(), self.any());
        self.push(format!("mov {}, {}", REGISTERS[to][0], REGISTERS[from][0]));
        self.set(to, self.contents[from]);
    }
    fn spill(&mut self) {
        let (from, slot) = (self.any(), self.random.below(32) as usize);
        self.push(format!("mov [rsp+{}], {}", slot as i64 * 8 + self.pushed, REGISTERS[from][0]));
        self.slots[slot] = matches!(self.contents[from], Content::Pointer(room) if room > 4096);
    }
    fn reload(&mut self) {
        let (to, slot) = (self.any(), self.random.below(32) as usize);
        self.push(format!("mov {}, [rsp+{}]", REGISTERS[to][0], slot as i64 * 8 + self.pushed));
        self.set(to, if self.slots[slot] { Content::Pointer(4096) } else { Content::Number });
    }
    /// A pointer into the own frame. What is written through it goes to the last part of the locals, behind the slots that hold addresses.
    fn frame_pointer(&mut self) {
        let to = self.any();
        let line = format!("lea {}, [rsp+{}]", REGISTERS[to][0], self.random.below(20) as i64 * 8 + self.pushed);
        self.push(line);
        // A write through it may change any slot.
        let line = format!("mov dword ptr [{}+{}], {}", REGISTERS[to][0], self.random.below(8) * 8, self.random.below(1000));
        self.push(line);
        self.slots = [false; 32];
        self.set(to, Content::Number);
    }
    fn push_and_pop(&mut self) {
        let (from, to) = (self.any(), self.any());
        self.push(format!("push {}", REGISTERS[from][0]));
        self.pushed += 8;
        let pushed = self.contents[from];
        for _ in 0..self.random.below(4) {
            self.statement(false);
        }
        // What is known of the slots is by their distance from the top, which `pushed` keeps right.
        self.push(format!("pop {}", REGISTERS[to][0]));
        self.pushed -= 8;
        self.set(to, pushed);
    }
    fn join(&mut self, before: [Content; 13], slots: [bool; 32]) {
        for (now, then) in self.contents.iter_mut().zip(before) {
            *now = match (*now, then) {
                (Content::Pointer(a), Content::Pointer(b)) => Content::Pointer(a.min(b)),
                _ => Content::Number,
            };
        }
        for (now, then) in self.slots.iter_mut().zip(slots) {
            *now &= then;
        }
    }
    fn new_label(&mut self) -> String {
        self.label += 1;
        format!(".L{}_{}", self.number, self.label)
    }
    fn branch(&mut self) {
        let (a, b, label) = (self.any(), self.any(), self.new_label());
        self.push(format!("cmp {}, {}\nja {label}", REGISTERS[a][0], REGISTERS[b][0]));
        let (contents, slots) = (self.contents, self.slots);
        for _ in 0..1 + self.random.below(5) {
            self.statement(false);
        }
        self.push(format!("{label}:"));
        self.join(contents, slots);
    }
    /// A short loop, counted in memory that nothing else touches. Only accesses and numbers in it, and pointers that go on by a little.
    fn repeat(&mut self) {
        let label = self.new_label();
        let Some((stepping, room)) = self.pointer() else { return };
        if room < 4096 {
            return;
        }
        let line = format!("push {}", self.random.below(6) + 1);
        self.push(line);
        self.pushed += 8;
        self.push(format!("{label}:"));
        self.slots = [false; 32];
        for register in 0..13 {
            if register != stepping {
                self.set(register, Content::Number);
            }
        }
        self.set(stepping, Content::Pointer(1024));
        let register = REGISTERS[stepping][0];
        let step = *self.random.pick(&[4, 8, 16, 64, 24, -8]);
        for _ in 0..1 + self.random.below(3) {
            let (offset, other) = (self.random.below(64) as i64, self.any());
            match self.random.below(2) {
                0 => self.push(format!("mov [{register}{:+}], {}", offset - 32, REGISTERS[other][1])),
                _ => self.push(format!("add qword ptr [{register}+{offset}], 3")),
            }
        }
        self.push(format!("add {register}, {step}\ndec qword ptr [rsp]\njnz {label}\nlea rsp, [rsp+8]"));
        self.pushed -= 8;
        self.set(stepping, Content::Pointer(512));
    }
    /// Functions are leaves, call leaves, or call any of these: nothing gets deep.
    fn level(&self) -> usize {
        self.number % 3
    }
    /// Those that call others have room in their frames for what callees do with a pointer.
    fn frame_size(&self) -> i64 {
        if self.level() == 0 { LOCALS } else { 3 * ROOM }
    }
    fn callee(&mut self) -> Option<usize> {
        let reach = self.number.min(30) as u64;
        let callee = self.number.checked_sub(1 + self.random.below(reach) as usize)?;
        (callee % 3 < self.level()).then_some(callee)
    }
    fn arguments(&mut self, may_be_own: bool) {
        let top = self.pushed + 3 * ROOM / 2;
        let places = ["r14", "r14", if may_be_own && self.level() > 0 { "rsp" } else { "r14" }];
        for (argument, register) in [("rdi", 6), ("rsi", 5)] {
            let base = *self.random.pick(&places);
            let offset = self.random.below(64) as i64 * 8 - 256 + if base == "rsp" { top } else { 0 };
            self.push(format!("lea {argument}, [{base}{offset:+}]"));
            self.set(register, Content::Pointer(ROOM));
        }
    }
    /// A call of a function before, with pointers into a buffer, or into the own frame.
    fn call(&mut self) {
        let Some(callee) = self.callee() else { return };
        self.arguments(true);
        self.push(format!("call f{callee}"));
        self.contents = [Content::Number; 13];
    }
}
