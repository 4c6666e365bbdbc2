//! Instructions with their operands, by the disassembler's details.
//!
//! What is here is only what the details are relied on for: operands in order with their sizes, and the implicit registers of instructions that
//! [`super::semantics`] lists by name. Lengths and positions of displacements are [`crate::decode`]'s.

use capstone::arch::x86::{X86InsnGroup, X86OpMem, X86OperandType, X86Reg};
use capstone::prelude::*;

use super::liveness::{LOWS, VECTORS};
use crate::decode::{Inst, Kind, Shape};
use crate::walk::Side;

/// A part of the state that an instruction names.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Reg {
    /// Number, bits, and whether it is the second byte.
    General(u8, u16, bool),
    Vector(u8, u16),
    Flags,
    /// The instruction pointer.
    Pointer,
    /// Anything else: x87, masks, segments, control.
    Other,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// `fs` is 1, `gs` is 2, all else does nothing.
    pub(super) segment: u8,
    pub(super) base: Option<Reg>,
    pub(super) index: Option<Reg>,
    pub(super) scale: u64,
    pub(super) displacement: u64,
    /// The address of a rip-relative operand.
    pub(super) place: Option<u64>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Reg(Reg),
    Immediate(u64),
    Memory(Memory),
}

#[derive(Clone, Debug)]
pub(super) struct Decoded {
    pub(super) name: String,
    pub(super) operands: Vec<(Operand, u16)>,
    pub(super) reads: Vec<Reg>,
    pub(super) writes: Vec<Reg>,
    pub(super) inst: Inst,
    pub(super) bytes: Vec<u8>,
    pub(super) shape: Shape,
    /// It changes privilege, interrupts, or is a call or return.
    pub(super) is_special: bool,
}

impl Decoded {
    pub(super) fn is_locked_or_repeated(&self) -> bool {
        let has = |wanted: &[u8]| self.bytes[..self.shape.opcode.min(self.bytes.len())].iter().any(|byte| wanted.contains(byte));
        has(&[0xf0]) || (self.shape.map == 0 && !self.shape.vector && has(&[0xf2, 0xf3]))
    }

    pub(super) fn is_evex(&self) -> bool {
        self.shape.vector && self.shape.opcode >= 4 && self.bytes.get(self.shape.opcode - 4) == Some(&0x62)
    }

    /// Whether a register is named, by an operand or by what the instruction always uses: a general one, or from [`VECTORS`] on a vector one.
    pub(super) fn names(&self, register: u8) -> bool {
        let is_it = |found: Reg| match found {
            Reg::General(number, ..) => number == register,
            Reg::Vector(number, _) => number + VECTORS == register || number + LOWS == register && number < 16,
            _ => false,
        };
        let in_operands = self.operands.iter().any(|&(operand, _)| match operand {
            Operand::Reg(found) => is_it(found),
            Operand::Memory(memory) => memory.base.is_some_and(is_it) || memory.index.is_some_and(is_it),
            Operand::Immediate(_) => false,
        });
        in_operands || self.reads.iter().chain(&self.writes).any(|&found| is_it(found))
    }

    /// Whether an instruction that is not looked into may read or write a register, or of a vector register a part. Where it uses more than general registers, others than those it names may be
    /// among that, except where these are the x87's or what rounds vectors; but `r8` to `r15` have to be named, but by `syscall`.
    pub(super) fn may_use(&self, register: u8) -> bool {
        if register >= VECTORS {
            // All of the state at once, or one of them that is not named, as none else is.
            let is_whole = ["xsave", "fxsave", "xrstor", "fxrstor"].iter().any(|beginning| self.name.starts_with(beginning));
            return self.is_special || is_whole || self.names(register);
        }
        let is_number =
            self.computes_on_vectors() || (self.name.starts_with('f') && (!self.name.starts_with("fx") || self.name == "fxch"));
        let has_others = !is_number && self.reads.iter().chain(&self.writes).any(|found| *found == Reg::Other);
        self.is_special || (has_others && register < 8) || self.name.starts_with("sys") || self.names(register)
    }

    pub(super) fn memory(&self) -> Option<(Memory, u16)> {
        self.operands.iter().find_map(|&(operand, size)| match operand {
            Operand::Memory(memory) => Some((memory, size)),
            _ => None,
        })
    }

    pub(super) fn condition(&self) -> u8 {
        crate::walk::condition(&self.bytes)
    }
}

/// A disassembler that tells operands.
pub(super) struct Engine(Option<Capstone>);

impl Engine {
    pub(super) fn new() -> Self {
        Self(Capstone::new().x86().mode(arch::x86::ArchMode::Mode64).detail(true).build().ok())
    }

    pub(super) fn decode(&self, side: &Side<'_>, address: u64, inst: Inst) -> Option<Decoded> {
        let bytes = side.code.bytes(address, inst);
        let found = self.0.as_ref()?.disasm_count(bytes, address, 1).ok()?;
        let known = found.iter().next().filter(|known| known.bytes().len() == bytes.len())?;
        let detail = self.0.as_ref()?.insn_detail(known).ok()?;
        let arch = detail.arch_detail();
        let arch = arch.x86()?;
        let place = (inst.disp != 0).then(|| side.operand(address, inst));
        let operands = arch.operands().map(|operand| {
            let size = u16::from(operand.size) * 8;
            let operand = match operand.op_type {
                X86OperandType::Reg(register) => Operand::Reg(register_of(register)?),
                X86OperandType::Imm(value) => Operand::Immediate(value.cast_unsigned()),
                X86OperandType::Mem(memory) => Operand::Memory(memory_of(memory, place)?),
                X86OperandType::Invalid => return None,
            };
            Some((operand, size))
        });
        let groups = [
            X86InsnGroup::X86_GRP_CALL,
            X86InsnGroup::X86_GRP_RET,
            X86InsnGroup::X86_GRP_INT,
            X86InsnGroup::X86_GRP_IRET,
            X86InsnGroup::X86_GRP_PRIVILEGE,
        ];
        let is_special = detail.groups().iter().any(|group| groups.iter().any(|&known| u32::from(group.0) == known));
        let list = |list: &[RegId]| list.iter().map(|&register| register_of(register).unwrap_or(Reg::Other)).collect();
        let shape = Shape::of(bytes);
        Some(Decoded {
            name: known.mnemonic()?.to_string(),
            operands: operands.collect::<Option<_>>()?,
            reads: list(detail.regs_read()),
            writes: list(detail.regs_write()),
            inst,
            bytes: bytes.to_vec(),
            shape,
            is_special: is_special || matches!(inst.kind, Kind::Trap | Kind::Stop),
        })
    }
}

fn memory_of(memory: X86OpMem, place: Option<u64>) -> Option<Memory> {
    let register = |register: RegId| if register.0 == 0 { Some(None) } else { register_of(register).map(Some) };
    let segment = match u32::from(memory.segment().0) {
        X86Reg::X86_REG_FS => 1,
        X86Reg::X86_REG_GS => 2,
        _ => 0,
    };
    let base = register(memory.base())?;
    if (base == Some(Reg::Pointer)) != place.is_some() {
        return None;
    }
    // `riz` and its like are no index.
    let index = register(memory.index())?.filter(|index| matches!(index, Reg::General(..)));
    let is_vector = matches!(register(memory.index())?, Some(Reg::Vector(..)));
    let scale = u64::try_from(memory.scale()).ok()?;
    let displacement = memory.disp().cast_unsigned();
    (!is_vector).then_some(Memory { segment, base, index, scale, displacement, place })
}

/// By the number of the 64-bit register in encodings: its names from long to short, the second byte last.
const GENERAL: [[u32; 5]; 16] = {
    use X86Reg::*;
    [
        [X86_REG_RAX, X86_REG_EAX, X86_REG_AX, X86_REG_AL, X86_REG_AH],
        [X86_REG_RCX, X86_REG_ECX, X86_REG_CX, X86_REG_CL, X86_REG_CH],
        [X86_REG_RDX, X86_REG_EDX, X86_REG_DX, X86_REG_DL, X86_REG_DH],
        [X86_REG_RBX, X86_REG_EBX, X86_REG_BX, X86_REG_BL, X86_REG_BH],
        [X86_REG_RSP, X86_REG_ESP, X86_REG_SP, X86_REG_SPL, 0],
        [X86_REG_RBP, X86_REG_EBP, X86_REG_BP, X86_REG_BPL, 0],
        [X86_REG_RSI, X86_REG_ESI, X86_REG_SI, X86_REG_SIL, 0],
        [X86_REG_RDI, X86_REG_EDI, X86_REG_DI, X86_REG_DIL, 0],
        [X86_REG_R8, X86_REG_R8D, X86_REG_R8W, X86_REG_R8B, 0],
        [X86_REG_R9, X86_REG_R9D, X86_REG_R9W, X86_REG_R9B, 0],
        [X86_REG_R10, X86_REG_R10D, X86_REG_R10W, X86_REG_R10B, 0],
        [X86_REG_R11, X86_REG_R11D, X86_REG_R11W, X86_REG_R11B, 0],
        [X86_REG_R12, X86_REG_R12D, X86_REG_R12W, X86_REG_R12B, 0],
        [X86_REG_R13, X86_REG_R13D, X86_REG_R13W, X86_REG_R13B, 0],
        [X86_REG_R14, X86_REG_R14D, X86_REG_R14W, X86_REG_R14B, 0],
        [X86_REG_R15, X86_REG_R15D, X86_REG_R15W, X86_REG_R15B, 0],
    ]
};
const WIDTHS: [u16; 5] = [64, 32, 16, 8, 8];

fn register_of(register: RegId) -> Option<Reg> {
    let wanted = u32::from(register.0);
    if wanted == 0 {
        return None;
    }
    for (names, number) in GENERAL.iter().zip(0..) {
        if let Some(at) = names.iter().position(|&name| name == wanted) {
            return Some(Reg::General(number, WIDTHS[at], at == 4));
        }
    }
    let vectors = [(X86Reg::X86_REG_XMM0, 128), (X86Reg::X86_REG_YMM0, 256), (X86Reg::X86_REG_ZMM0, 512)];
    for (first, width) in vectors {
        // The disassembler numbers the 32 of a kind one after the other.
        if let Some(number) = wanted.checked_sub(first).filter(|&number| number < 32) {
            return Some(Reg::Vector(number as u8, width));
        }
    }
    Some(match wanted {
        X86Reg::X86_REG_EFLAGS => Reg::Flags,
        X86Reg::X86_REG_RIP => Reg::Pointer,
        _ => Reg::Other,
    })
}
