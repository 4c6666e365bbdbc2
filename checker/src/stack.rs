//! Whether an instruction can tell where the stack is.
//!
//! What pushes, pops or leaves is told by its name. Of the rest, the disassembler's details name all registers that an instruction reads,
//! writes or addresses by, those that no operand shows among them. They are asked for a few instructions only, so the engine with
//! details (several times slower) is made when first needed. What it does not know uses the stack for all that is known.

use std::cell::OnceCell;

use capstone::arch::x86::{X86InsnGroup, X86OperandType, X86Reg};
use capstone::prelude::*;

/// Beginnings of the names of instructions that push, pop or leave: for some (`push fs`, `enter`) the details lack the stack pointer.
const REFUSED: [&str; 14] =
    ["push", "pop", "enter", "leave", "call", "lcall", "jmp", "ljmp", "ret", "int", "iret", "uiret", "sys", "xbegin"];
const ALLOWED: &str = "popcnt";

#[derive(Default)]
pub(crate) struct StackUse(OnceCell<Option<Capstone>>);

impl StackUse {
    /// Whether the instruction that `bytes` begin with neither uses the stack pointer nor leaves.
    pub(crate) fn is_free(&self, bytes: &[u8], address: u64) -> bool {
        let engine = self.0.get_or_init(|| Capstone::new().x86().mode(arch::x86::ArchMode::Mode64).detail(true).build().ok());
        engine.as_ref().is_some_and(|engine| is_free(engine, bytes, address).unwrap_or(false))
    }
}

fn is_free(engine: &Capstone, bytes: &[u8], address: u64) -> Option<bool> {
    let found = engine.disasm_count(bytes, address, 1).ok()?;
    let inst = found.iter().next().filter(|inst| inst.bytes().len() == bytes.len())?;
    let detail = engine.insn_detail(inst).ok()?;
    let groups = [
        X86InsnGroup::X86_GRP_CALL,
        X86InsnGroup::X86_GRP_RET,
        X86InsnGroup::X86_GRP_INT,
        X86InsnGroup::X86_GRP_IRET,
        X86InsnGroup::X86_GRP_PRIVILEGE,
    ];
    let is_special = detail.groups().iter().any(|group| groups.iter().any(|&known| u32::from(group.0) == known))
        || inst.mnemonic().is_none_or(|name| name != ALLOWED && REFUSED.iter().any(|&refused| name.starts_with(refused)));
    let is_stack = |register: RegId| {
        let names = [X86Reg::X86_REG_RSP, X86Reg::X86_REG_ESP, X86Reg::X86_REG_SP, X86Reg::X86_REG_SPL];
        names.iter().any(|&name| u32::from(register.0) == name)
    };
    let is_implied = detail.regs_read().iter().chain(detail.regs_write()).any(|&register| is_stack(register));
    let is_named = detail.arch_detail().x86()?.operands().any(|operand| match operand.op_type {
        X86OperandType::Reg(register) => is_stack(register),
        X86OperandType::Mem(memory) => is_stack(memory.base()) || is_stack(memory.index()),
        _ => false,
    });
    Some(!is_special && !is_implied && !is_named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uses_the_stack_pointer_or_leaves_is_told_from_what_does_not() {
        let uses: [&[u8]; 32] = [
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
        for bytes in uses {
            assert!(!stack.is_free(bytes, 0x1000), "{bytes:02x?}");
        }
        for bytes in free {
            assert!(stack.is_free(bytes, 0x1000), "{bytes:02x?}");
        }
    }
}
