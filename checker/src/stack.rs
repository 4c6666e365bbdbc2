//! Whether an instruction can tell where the stack is, and whether another does the same where the stack pointer is lower.
//!
//! What pushes, pops or leaves is told by its name. Of the rest, the disassembler's details name all registers that an instruction reads,
//! writes or addresses by, those that no operand shows among them. They are asked for a few instructions only, so the engine with
//! details (several times slower) is made when first needed. What it does not know uses the stack for all that is known.
//!
//! Arguments of calls are alike all over a program, so for instructions that are the same byte for byte it is asked once, or again where the room for an answer was
//! taken by another instruction: what is answered does not depend on where the instruction is, nor on what was asked before.

use std::cell::{OnceCell, RefCell};
use std::hash::{Hash, Hasher};

use capstone::Insn;
use capstone::arch::x86::{X86InsnGroup, X86OperandType, X86Reg};
use capstone::prelude::*;
use rustc_hash::FxHasher;

/// Beginnings of the names of instructions that push, pop or leave, or tell or change where the shadow stack is: for some (`push fs`, `enter`) the details lack the stack pointer.
const REFUSED: [&str; 21] = [
    "push",
    "pop",
    "enter",
    "leave",
    "call",
    "lcall",
    "jmp",
    "ljmp",
    "ret",
    "int",
    "iret",
    "uiret",
    "sys",
    "xbegin",
    "encl",
    "rdssp",
    "incssp",
    "saveprevssp",
    "rstorssp",
    "setssbsy",
    "clrssbsy",
];
const ALLOWED: &str = "popcnt";

/// How many answers are kept.
const ANSWERS: usize = 1 << 12;

/// The bytes of an instruction, zeros, and their number.
type Encoding = [u8; 16];

/// What was said of instructions, each where its hash says.
struct Answers<T>(RefCell<Vec<Option<(Encoding, T)>>>);

impl<T> Default for Answers<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T: Copy> Answers<T> {
    fn get(&self, bytes: &[u8], ask: impl FnOnce() -> T) -> T {
        let Some(encoding) = encoding(bytes) else { return ask() };
        let mut hasher = FxHasher::default();
        encoding.hash(&mut hasher);
        let slot = hasher.finish() as usize % ANSWERS;
        let mut answers = self.0.borrow_mut();
        answers.resize(ANSWERS, None);
        match answers[slot] {
            Some((known, answer)) if known == encoding => answer,
            _ => answers[slot].insert((encoding, ask())).1,
        }
    }
}

#[derive(Default)]
pub(crate) struct StackUse {
    engine: OnceCell<Option<Capstone>>,
    free: Answers<bool>,
    in_frame: Answers<Option<InFrame>>,
}

impl StackUse {
    /// Whether the instruction that `bytes` begin with neither uses the stack pointer nor leaves.
    pub(crate) fn is_free(&self, bytes: &[u8], address: u64) -> bool {
        self.free.get(bytes, || self.engine().is_some_and(|engine| is_free(engine, bytes, address).unwrap_or(false)))
    }

    /// Whether `lower` does, with the stack pointer `depth` bytes lower, what `bytes` do: read or write the frame at or above the stack pointer, or take an address there, and
    /// know nothing else of the stack.
    pub(crate) fn is_same_below(&self, bytes: &[u8], lower: &[u8], depth: i64) -> bool {
        let expected = copied_to(bytes).map_or_else(|| self.in_frame(bytes), |register| Some(InFrame::address_to(register)));
        expected.zip(self.in_frame(lower)).is_some_and(|(expected, lower)| {
            expected.displacement >= 0 && lower.displacement == expected.displacement + depth && lower.others == expected.others
        })
    }

    fn in_frame(&self, bytes: &[u8]) -> Option<InFrame> {
        self.in_frame.get(bytes, || in_frame(self.engine()?, bytes))
    }

    fn engine(&self) -> Option<&Capstone> {
        self.engine.get_or_init(|| Capstone::new().x86().mode(arch::x86::ArchMode::Mode64).detail(true).build().ok()).as_ref()
    }
}

fn encoding(bytes: &[u8]) -> Option<Encoding> {
    let mut encoding = Encoding::default();
    encoding.get_mut(..bytes.len()).filter(|_| bytes.len() < size_of::<Encoding>())?.copy_from_slice(bytes);
    encoding[size_of::<Encoding>() - 1] = bytes.len() as u8;
    Some(encoding)
}

/// An instruction that addresses by the stack pointer, and does nothing else with it.
#[derive(Copy, Clone)]
struct InFrame {
    /// Of the address, from the stack pointer.
    displacement: i64,
    /// All bytes but those of the displacement, with what says how long it is taken from the byte of addressing modes.
    others: Encoding,
}

impl InFrame {
    fn of(displacement: i64, others: &[u8]) -> Option<Self> {
        Some(Self { displacement, others: encoding(others)? })
    }

    /// What gets an address in the frame, without an index, into a register.
    fn address_to(register: u8) -> Self {
        let others = [0x48 | register >> 3 << 2, 0x8d, (register & 7) << 3 | 4, 0x24];
        Self { displacement: 0, others: encoding(&others).unwrap_or_default() }
    }
}

/// The escape byte of EVEX, whose displacements count in larger units.
const EVEX: u8 = 0x62;
const LEGACY_PREFIXES: [u8; 11] = [0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3];

/// The register that gets the stack pointer, if that is what an instruction does.
fn copied_to(bytes: &[u8]) -> Option<u8> {
    let &[rex @ (0x48 | 0x49), 0x89, modes] = bytes else { return None };
    (modes & 0o370 == 0o340).then_some((rex & 1) << 3 | modes & 7)
}

/// What the disassembler says of the instruction that `bytes` are, handed to `tell`.
fn decode<T>(
    engine: &Capstone,
    bytes: &[u8],
    address: u64,
    tell: impl FnOnce(&Insn<'_>, &InsnDetail<'_>) -> Option<T>,
) -> Option<T> {
    let found = engine.disasm_count(bytes, address, 1).ok()?;
    let inst = found.iter().next().filter(|inst| inst.bytes().len() == bytes.len())?;
    tell(inst, &engine.insn_detail(inst).ok()?)
}

fn is_free(engine: &Capstone, bytes: &[u8], address: u64) -> Option<bool> {
    decode(engine, bytes, address, |inst, detail| {
        let is_named = detail.arch_detail().x86()?.operands().any(|operand| match operand.op_type {
            X86OperandType::Reg(register) => is_stack(register),
            X86OperandType::Mem(memory) => is_stack(memory.base()) || is_stack(memory.index()),
            _ => false,
        });
        let is_implied = detail.regs_read().iter().chain(detail.regs_write()).any(|&register| is_stack(register));
        Some(!leaves_or_pushes(inst, detail) && !is_implied && !is_named)
    })
}

fn in_frame(engine: &Capstone, bytes: &[u8]) -> Option<InFrame> {
    let opcode = bytes.iter().find(|byte| !LEGACY_PREFIXES.contains(byte));
    decode(engine, bytes, 0, |inst, detail| {
        if leaves_or_pushes(inst, detail) || detail.regs_write().iter().any(|&written| is_stack(written)) || opcode == Some(&EVEX)
        {
            return None;
        }
        let arch = detail.arch_detail();
        let x86 = arch.x86()?;
        let mut is_by_stack = false;
        for operand in x86.operands() {
            match operand.op_type {
                X86OperandType::Reg(register) if is_stack(register) => return None,
                X86OperandType::Mem(memory) if is_stack(memory.index()) => return None,
                X86OperandType::Mem(memory) if is(memory.base(), X86Reg::X86_REG_RSP) => is_by_stack = true,
                X86OperandType::Mem(memory) if is_stack(memory.base()) => return None,
                _ => {}
            }
        }
        // The engine counts the displacement as two bytes where operands have two.
        let (before, modes) = bytes.split_at_checked(usize::from(x86.encoding().modrm_offset))?;
        let (displacement, len) = match *modes {
            [mode, _, ..] if mode >> 6 == 0 => (0, 0),
            [mode, _, short, ..] if mode >> 6 == 1 => (i64::from(short.cast_signed()), 1),
            [mode, _, a, b, c, d, ..] if mode >> 6 == 2 => (i64::from(i32::from_le_bytes([a, b, c, d])), 4),
            _ => return None,
        };
        let others = [before, &[modes[0] & 0o77, modes[1]], &modes[2 + len..]].concat();
        InFrame::of(displacement, &others).filter(|_| is_by_stack)
    })
}

/// Whether an instruction leaves, or moves the stack pointer by itself.
fn leaves_or_pushes(inst: &Insn<'_>, detail: &InsnDetail<'_>) -> bool {
    let groups = [
        X86InsnGroup::X86_GRP_CALL,
        X86InsnGroup::X86_GRP_RET,
        X86InsnGroup::X86_GRP_INT,
        X86InsnGroup::X86_GRP_IRET,
        X86InsnGroup::X86_GRP_PRIVILEGE,
    ];
    detail.groups().iter().any(|group| groups.iter().any(|&known| u32::from(group.0) == known))
        || inst.mnemonic().is_none_or(|name| name != ALLOWED && REFUSED.iter().any(|&refused| name.starts_with(refused)))
}

fn is_stack(register: RegId) -> bool {
    [X86Reg::X86_REG_RSP, X86Reg::X86_REG_ESP, X86Reg::X86_REG_SP, X86Reg::X86_REG_SPL].iter().any(|&name| is(register, name))
}

fn is(register: RegId, name: u32) -> bool {
    u32::from(register.0) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uses_the_stack_pointer_or_leaves_is_told_from_what_does_not() {
        let uses: [&[u8]; 34] = [
            &[0xf3, 0x48, 0x0f, 0x1e, 0xc8], // rdsspq rax
            &[0xf3, 0x48, 0x0f, 0xae, 0xe8], // incsspq rax
            &[0x0f, 0xa0],                   // push fs
            &[0x0f, 0xa9],                   // pop gs
            &[0x66, 0x50],                   // push ax
            &[0xff, 0x34, 0x24],             // push [rsp]
            &[0x8f, 0x04, 0x24],             // pop [rsp]
            &[0x66, 0x9c],                   // pushf
            &[0xcf],                         // iret
            &[0xcc],                         // int3
            &[0x0f, 0x34],                   // sysenter
            &[0x48, 0xff, 0xe4],             // jmp rsp
            &[0x50],                         // push rax
            &[0x41, 0x5f],                   // pop r15
            &[0x6a, 0x01],                   // push 1
            &[0xff, 0x30],                   // push [rax]
            &[0x8f, 0x00],                   // pop [rax]
            &[0x9c],                         // pushf
            &[0x9d],                         // popf
            &[0xc9],                         // leave
            &[0xc8, 0x10, 0x00, 0x00],       // enter 16, 0
            &[0xe8, 0, 0, 0, 0],             // call
            &[0xc3],                         // ret
            &[0xc2, 8, 0],                   // ret 8
            &[0x0f, 0x05],                   // syscall
            &[0xcd, 0x80],                   // int 0x80
            &[0x8b, 0x44, 0x24, 0xf8],       // mov eax, [rsp - 8]
            &[0x48, 0x8d, 0x04, 0x24],       // lea rax, [rsp]
            &[0x48, 0x83, 0xc4, 0x08],       // add rsp, 8
            &[0x48, 0x89, 0xe0],             // mov rax, rsp
            &[0x40, 0x88, 0xe0],             // mov al, spl
            &[0x48, 0x94],                   // xchg rax, rsp
            &[0x0f, 0xcc],                   // bswap esp
            &[0xc4, 0xe2, 0x58, 0xf2, 0xc1], // andn eax, esp, ecx
        ];
        let free: [&[u8]; 9] = [
            &[0xf3, 0x0f, 0xb8, 0xc7],                      // popcnt eax, edi
            &[0x89, 0xf8],                                  // mov eax, edi
            &[0x0f, 0x28, 0xe4],                            // movaps xmm4, xmm4
            &[0x41, 0x8b, 0x04, 0x24],                      // mov eax, [r12]
            &[0x8b, 0x45, 0xf8],                            // mov eax, [rbp - 8]
            &[0x48, 0x8d, 0x05, 0, 0, 0, 0],                // lea rax, [rip]
            &[0x74, 0x00],                                  // je
            &[0xb4, 0x01],                                  // mov ah, 1
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], // mov rax, fs:[0x28]
        ];
        let stack = StackUse::default();
        // The second time by what was answered before.
        for address in [0x1000, 0x2000] {
            for bytes in uses {
                assert!(!stack.is_free(bytes, address), "{bytes:02x?}");
            }
            for bytes in free {
                assert!(stack.is_free(bytes, address), "{bytes:02x?}");
            }
        }
    }

    #[test]
    fn what_addresses_the_frame_does_the_same_from_below_if_its_displacement_is_larger() {
        let same: [(&[u8], &[u8]); 10] = [
            (&[0x66, 0x44, 0x89, 0x7c, 0x24, 0x78], &[0x66, 0x44, 0x89, 0xbc, 0x24, 0x80, 0, 0, 0]), // mov [rsp + 120], r15w
            (&[0x48, 0x8d, 0x3c, 0x24], &[0x48, 0x8d, 0x7c, 0x24, 8]),                               // lea rdi, [rsp]
            (&[0x48, 0x8d, 0x7c, 0x24, 0x10], &[0x48, 0x8d, 0x7c, 0x24, 0x18]),                      // lea rdi, [rsp + 16]
            (&[0x48, 0x89, 0x44, 0x24, 0x78], &[0x48, 0x89, 0x84, 0x24, 0x80, 0, 0, 0]),             // mov [rsp + 120], rax
            (&[0xc7, 0x44, 0x24, 4, 1, 2, 3, 4], &[0xc7, 0x44, 0x24, 12, 1, 2, 3, 4]), // mov dword [rsp + 4], 0x4030201
            (&[0x8b, 0x44, 0x84, 0x20], &[0x8b, 0x44, 0x84, 0x28]),                    // mov eax, [rsp + rax * 4 + 32]
            (&[0xc5, 0xf8, 0x11, 0x04, 0x24], &[0xc5, 0xf8, 0x11, 0x44, 0x24, 8]),     // vmovups [rsp], xmm0
            (&[0xc6, 0x44, 0x24, 0x62, 0x62], &[0xc6, 0x44, 0x24, 0x6a, 0x62]),        // mov byte [rsp + 98], 98
            (&[0x48, 0x89, 0xe7], &[0x48, 0x8d, 0x7c, 0x24, 8]),                       // mov rdi, rsp
            (&[0x49, 0x89, 0xe1], &[0x4c, 0x8d, 0x4c, 0x24, 8]),                       // mov r9, rsp
        ];
        let differ: [(&[u8], &[u8]); 14] = [
            (&[0x48, 0x8d, 0x3c, 0x24], &[0x48, 0x8d, 0x3c, 0x24]),       // not lower
            (&[0x48, 0x8d, 0x7c, 0x24, 0xf8], &[0x48, 0x8d, 0x3c, 0x24]), // below the stack pointer
            (&[0x48, 0x8d, 0x7c, 0x24, 0x10], &[0x48, 0x8d, 0x74, 0x24, 0x18]), // another register
            (&[0x48, 0x8b, 0x7c, 0x24, 0x10], &[0x48, 0x8d, 0x7c, 0x24, 0x18]), // a load, an address
            (&[0xc7, 0x44, 0x24, 4, 1, 2, 3, 4], &[0xc7, 0x44, 0x24, 12, 1, 2, 3, 5]), // another number
            (&[0x8b, 0x44, 0x84, 0x20], &[0x8b, 0x44, 0xc4, 0x28]),       // another scale
            (&[0x64, 0x8b, 0x44, 0x24, 8], &[0x8b, 0x44, 0x24, 16]),      // another segment
            (&[0x67, 0x8b, 0x44, 0x24, 8], &[0x67, 0x8b, 0x44, 0x24, 16]), // [esp + 8]
            (&[0x48, 0x89, 0x64, 0x24, 8], &[0x48, 0x89, 0x64, 0x24, 16]), // mov [rsp + 8], rsp
            (&[0xff, 0x74, 0x24, 8], &[0xff, 0x74, 0x24, 16]),            // push [rsp + 8]
            (&[0x48, 0x83, 0xc4, 8], &[0x48, 0x83, 0xc4, 16]),            // add rsp, 8
            (&[0x48, 0x89, 0xe7], &[0x48, 0x8d, 0x74, 0x24, 8]),          // mov rdi, rsp; lea rsi
            (&[0x89, 0xe7], &[0x48, 0x8d, 0x7c, 0x24, 8]),                // mov edi, esp
            (&[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x44, 0x24, 1], &[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x44, 0x24, 9]), // in units of 64
        ];
        let stack = StackUse::default();
        for (bytes, lower) in same {
            assert!(stack.is_same_below(bytes, lower, 8), "{bytes:02x?} {lower:02x?}");
        }
        for (bytes, lower) in differ {
            assert!(!stack.is_same_below(bytes, lower, 8), "{bytes:02x?} {lower:02x?}");
        }
    }
}
