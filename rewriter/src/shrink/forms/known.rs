//! What registers hold, instruction by instruction in a block: numbers, and addresses of data.
//!
//! **Method.** A `mov` of a number, an `xor` of a register with itself and a `lea` of data make known what a register holds, and copies and sums of what is known with a number do too. A call ends all
//! that, and so does an instruction that is not listed here; one that is listed ends it for the registers that it writes. What became known more than [`REACH`] instructions ago is not used: the checker
//! looks as far back and no farther.

use iced_x86::{Code, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::ir::{RefData, RefRole};
use smallvec::smallvec;

use super::ahead::Ahead;
use super::{Bytes, Form, Here, vector};

/// Instructions from what makes something known to what uses it.
const REACH: u32 = 24;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Address(Va),
}

impl Value {
    fn plus(self, more: i64) -> Self {
        match self {
            Value::Number(number) => Value::Number(number.wrapping_add_signed(more)),
            Value::Address(at) => Value::Address(Va(at.0.wrapping_add_signed(more))),
        }
    }

    /// What is left of it in 32 bits: of an address nothing is known there.
    fn low(self) -> Option<Self> {
        match self {
            Value::Number(number) => Some(Value::Number(number & u64::from(u32::MAX))),
            Value::Address(_) => None,
        }
    }
}

/// A value, and the instruction from which on it is known, counted from the block's start.
type Since = (Value, u32);

pub(super) struct Known {
    values: [Option<Since>; 16],
    num_passed: u32,
    factory: InstructionInfoFactory,
}

impl Known {
    pub(super) fn new() -> Self {
        Self { values: [None; 16], num_passed: 0, factory: InstructionInfoFactory::new() }
    }

    pub(super) fn clear(&mut self) {
        (self.values, self.num_passed) = ([None; 16], 0);
    }

    /// Passes an instruction, or the form that stands for it.
    pub(super) fn pass(&mut self, here: Here<'_>, form: Option<&Form>) {
        let instruction = here.instruction;
        let found = self.value_after(here);
        if !is_listed(instruction) {
            self.values = [None; 16];
        } else if self.values.iter().any(Option::is_some) {
            let info = self.factory.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
            let written =
                info.used_registers().iter().filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead));
            for used in written.filter(|used| used.register().is_gpr()) {
                self.values[used.register().full_register().number() & 15] = None;
            }
        }
        if let Some((register, (value, since))) = found {
            let since = form.and_then(|form| form.since).unwrap_or(since);
            self.values[usize::from(register)] = Some((value, since));
        }
        if let Some(register) = form.and_then(|form| form.spoils) {
            self.values[usize::from(register & 15)] = None;
        }
        self.num_passed += 1;
    }

    /// The register of which an instruction makes known what it holds, all of it.
    fn value_after(&self, here: Here<'_>) -> Option<(u8, Since)> {
        let instruction = here.instruction;
        let to = instruction.op0_register();
        let number = to.number() as u8;
        if let Some(value) = value_of(here) {
            return Some((number, (value, self.num_passed)));
        }
        let from = |register: Register| self.values[register.full_register().number() & 15];
        let are_registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
        let is_wide = to.size() == 8;
        let (value, since) = match instruction.code() {
            Code::Xor_r32_rm32 | Code::Xor_rm32_r32 | Code::Xor_r64_rm64 | Code::Xor_rm64_r64
                if are_registers && to == instruction.op1_register() =>
            {
                (Value::Number(0), self.num_passed)
            }
            Code::Mov_r32_rm32 | Code::Mov_rm32_r32 | Code::Mov_r64_rm64 | Code::Mov_rm64_r64 if are_registers => {
                from(instruction.op1_register())?
            }
            Code::Lea_r32_m | Code::Lea_r64_m if here.reference.is_none() => {
                let base = instruction.memory_base();
                let is_sum = instruction.memory_index() == Register::None && base.is_gpr64();
                let (value, since) = from(base).filter(|_| is_sum)?;
                (value.plus(instruction.memory_displacement64().cast_signed()), since)
            }
            _ => return None,
        };
        Some((number, (if is_wide { value } else { value.low()? }, since)))
    }

    /// A shorter instruction for one that makes or stores what is known already.
    pub(super) fn form(&self, image: &Image<'_>, here: Here<'_>) -> Option<Form> {
        if self.values.iter().all(Option::is_none) {
            return None;
        }
        match value_of(here) {
            Some(Value::Address(at)) if image.is_executable(at) => None,
            Some(value) => self.made_of(here.instruction.op0_register().number() as u8, value),
            None => self.stored(here),
        }
    }

    /// Registers of which something is known, with that.
    fn near(&self) -> impl Iterator<Item = (u8, Since)> {
        let is_near = |&(_, since): &Since| self.num_passed - since <= REACH;
        (0..16).zip(self.values).filter_map(move |(register, known)| Some((register, known.filter(is_near)?)))
    }

    fn made_of(&self, to: u8, wanted: Value) -> Option<Form> {
        let bytes = |from: u8, value: Value| match (wanted, value) {
            (Value::Number(wanted), Value::Number(value)) => match u32::try_from(wanted) {
                Ok(wanted) => sum(false, to, from, i64::from(wanted.wrapping_sub(value as u32).cast_signed())),
                Err(_) => sum(true, to, from, wanted.wrapping_sub(value).cast_signed()),
            },
            (Value::Address(wanted), Value::Address(value)) => sum(true, to, from, wanted.0.wrapping_sub(value.0).cast_signed()),
            _ => None,
        };
        let forms = self.near().filter_map(|(from, (value, since))| {
            bytes(from, value).map(|bytes| Form { since: Some(since), ..Form::plain(bytes) })
        });
        forms.min_by_key(|form| form.bytes.len())
    }

    /// A store of what a register holds, for a store of a number.
    fn stored(&self, here: Here<'_>) -> Option<Form> {
        let instruction = here.instruction;
        let (size, number) = match instruction.code() {
            Code::Mov_rm8_imm8 => (1, u64::from(instruction.immediate8())),
            Code::Mov_rm16_imm16 => (2, u64::from(instruction.immediate16())),
            Code::Mov_rm32_imm32 => (4, u64::from(instruction.immediate32())),
            Code::Mov_rm64_imm32 => (8, instruction.immediate32to64().cast_unsigned()),
            _ => return None,
        };
        let ignored = 64 - 8 * size as u32;
        let is_same = |value: Value| matches!(value, Value::Number(held) if (held ^ number) << ignored == 0);
        let holders = self.near().filter(|&(_, (value, _))| is_same(value));
        let forms = holders.filter_map(|(register, _)| store(here, size, register));
        forms.min_by_key(|form| form.bytes.len())
    }
}

/// What an instruction leaves in its first operand, a register, whatever registers held.
fn value_of(here: Here<'_>) -> Option<Value> {
    let instruction = here.instruction;
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    match (instruction.code(), here.reference) {
        (Code::Mov_r32_imm32 | Code::Mov_rm32_imm32, None) => Some(Value::Number(instruction.immediate32().into())),
        (Code::Mov_r64_imm64, None) => Some(Value::Number(instruction.immediate64())),
        (Code::Mov_rm64_imm32, None) => Some(Value::Number(instruction.immediate32to64().cast_unsigned())),
        (Code::Lea_r64_m, Some(RefData { role: RefRole::Address, .. })) if instruction.is_ip_rel_memory_operand() => {
            here.data().map(Value::Address)
        }
        _ => None,
    }
}

/// `xor` of a register with itself, for a move of zero.
pub(super) fn zero(here: Here<'_>, ahead: &Ahead<'_, '_>) -> Option<Form> {
    let is_zero = value_of(here) == Some(Value::Number(0)) && ahead.has_no_reader_of_flags();
    let number = here.instruction.op0_register().number() as u8;
    let modes = 0o300 | (number & 7) << 3 | number & 7;
    is_zero.then(|| Form::plain(if number < 8 { smallvec![0x31, modes] } else { smallvec![0x45, 0x31, modes] }))
}

/// The sum of a register and a small number, in 64 bits or in 32.
fn sum(is_wide: bool, to: u8, from: u8, more: i64) -> Option<Bytes> {
    let mut bytes = Bytes::new();
    let mut prefix = |reg: u8, rm: u8| {
        let rex = 0x40 | u8::from(is_wide) << 3 | reg >> 3 << 2 | rm >> 3;
        bytes.extend((rex != 0x40).then_some(rex));
    };
    if more == 0 {
        prefix(from, to);
        bytes.extend([0x89, 0o300 | (from & 7) << 3 | to & 7]);
        return Some(bytes);
    }
    let more = i8::try_from(more).ok()?;
    prefix(to, from);
    bytes.extend([0x8d, 0o100 | (to & 7) << 3 | from & 7]);
    // What would be `%rsp` or `%r12` says that another byte tells the base.
    bytes.extend((from & 7 == 4).then_some(0x24));
    bytes.extend(more.to_le_bytes());
    Some(bytes)
}

/// A store of a number with a register in its place.
fn store(here: Here<'_>, size: usize, register: u8) -> Option<Form> {
    let at_operand = here.bytes.iter().position(|byte| !matches!(byte, 0x66 | 0x64 | 0x65 | 0x2e | 0x36 | 0x3e | 0x26))?;
    let (prefixes, rest) = here.bytes.split_at(at_operand);
    let (rex, rest) = match rest {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        rest => (0, rest),
    };
    let [opcode @ (0xc6 | 0xc7), modes, rest @ ..] = rest else { return None };
    let operand = rest.len().checked_sub(size.min(4))?;
    // Without a prefix the numbers from 4 on mean second bytes.
    let needs_rex = register > 7 || size == 1 && register > 3;
    let new_rex = if needs_rex { rex | 0x40 | register >> 3 << 2 } else { rex };
    let mut bytes: Bytes = prefixes.into();
    bytes.extend((new_rex != 0).then_some(new_rex));
    bytes.extend([opcode - 0xc6 + 0x88, modes & 0o307 | (register & 7) << 3]);
    bytes.extend_from_slice(&rest[..operand]);
    // A displacement by the instruction pointer comes last now; nothing else names anything.
    let offset = bytes.len().saturating_sub(4) as u32;
    let reference = here.reference.map(|reference| RefData { offset, to_end: 4, ..reference });
    Some(Form { reference, ..Form::plain(bytes) })
}

/// Whether what an instruction writes of general registers is told by its operands, and the next one follows it.
fn is_listed(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_odd = instruction.has_lock_prefix()
        || instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
        || instruction.memory_base().is_gpr32()
        || instruction.memory_index().is_gpr32();
    let has_plain_registers = || {
        let registers = (0..instruction.op_count()).filter(|&operand| instruction.op_kind(operand) == OpKind::Register);
        registers.map(|operand| instruction.op_register(operand)).all(|register| register.is_gpr() || register.is_xmm())
    };
    let is_plain = match instruction.mnemonic() {
        Mov => !takes_absolute_address(instruction.code()),
        Movzx | Movsx | Movsxd | Lea | Add | Or | And | Sub | Xor | Cmp | Adc | Sbb | Test | Neg | Not | Inc | Dec | Shl
        | Shr | Sar | Nop => true,
        Imul => instruction.op_count() > 1,
        Push => instruction.op0_kind() != OpKind::Register || instruction.op0_register().is_gpr(),
        Pop => instruction.op0_kind() == OpKind::Register && instruction.op0_register().is_gpr64(),
        _ => vector::moves(instruction),
    };
    is_plain && !is_odd && has_plain_registers()
}

/// The forms of `mov` with an address of 64 bits.
fn takes_absolute_address(code: Code) -> bool {
    use Code::*;
    matches!(
        code,
        Mov_AL_moffs8
            | Mov_AX_moffs16
            | Mov_EAX_moffs32
            | Mov_RAX_moffs64
            | Mov_moffs8_AL
            | Mov_moffs16_AX
            | Mov_moffs32_EAX
            | Mov_moffs64_RAX
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn decoded(bytes: &[u8]) -> Instruction {
        let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
        let instruction = decoder.decode();
        assert!(!instruction.is_invalid() && instruction.len() == bytes.len(), "{bytes:02x?}");
        instruction
    }

    #[test]
    fn sums_are_those_of_the_registers_and_the_number_that_were_asked_for() {
        for (to, from, is_wide, more) in (0..16).flat_map(|to| {
            (0..16)
                .flat_map(move |from| [(to, from, true, -128), (to, from, false, 127), (to, from, true, 0), (to, from, false, 0)])
        }) {
            let instruction = decoded(&sum(is_wide, to, from, more).expect("it is small"));
            let (target, source) =
                (instruction.op0_register(), if more == 0 { instruction.op1_register() } else { instruction.memory_base() });
            assert_eq!((target.number(), target.size()), (usize::from(to), if is_wide { 8 } else { 4 }));
            assert_eq!(source.number(), usize::from(from), "{instruction}");
            assert!(
                more == 0 || instruction.mnemonic() == Mnemonic::Lea && instruction.memory_displacement64().cast_signed() == more
            );
            assert!(more == 0 || instruction.memory_index() == Register::None && source.size() == 8);
        }
        assert!(sum(true, 0, 1, 128).is_none() && sum(false, 0, 1, -129).is_none());
    }

    #[test]
    fn stores_go_to_the_same_address_and_are_as_wide() {
        let stores: [&[u8]; 10] = [
            &[0xc7, 0x00, 5, 0, 0, 0],                               // movl $5, (%rax)
            &[0x41, 0xc7, 0x44, 0x24, 8, 5, 0, 0, 0],                // movl $5, 8(%r12)
            &[0x48, 0xc7, 0x84, 0xcb, 0, 1, 0, 0, 5, 0, 0, 0],       // movq $5, 256(%rbx,%rcx,8)
            &[0x66, 0x43, 0xc7, 0x04, 0xc1, 5, 0],                   // movw $5, (%r9,%r8,8)
            &[0xc6, 0x44, 0x24, 1, 5],                               // movb $5, 1(%rsp)
            &[0x41, 0xc6, 0x45, 0, 5],                               // movb $5, (%r13)
            &[0x64, 0xc7, 0x04, 0x25, 8, 0, 0, 0, 5, 0, 0, 0],       // movl $5, %fs:8
            &[0x66, 0xc7, 0x05, 0, 0, 0, 0, 5, 0],                   // movw $5, 0(%rip)
            &[0xc6, 0x05, 0, 0, 0, 0, 5],                            // movb $5, 0(%rip)
            &[0x64, 0x48, 0xc7, 0x04, 0x25, 8, 0, 0, 0, 5, 0, 0, 0], // movq $5, %fs:8
        ];
        for (bytes, register) in stores.iter().flat_map(|&bytes| (0..16).map(move |register| (bytes, register))) {
            let before = decoded(bytes);
            let size = before.memory_size().size();
            let here = Here { instruction: &before, bytes, reference: None };
            let after = decoded(&store(here, size, register).expect("it is a store of a number").bytes);
            let address = |store: &Instruction| {
                let displacement = if store.is_ip_rel_memory_operand() { 0 } else { store.memory_displacement64() };
                (store.memory_base(), store.memory_index(), store.memory_index_scale(), displacement, store.memory_segment())
            };
            assert_eq!(address(&before), address(&after), "{before} {after}");
            assert_eq!((after.mnemonic(), after.op0_kind(), after.memory_size().size()), (Mnemonic::Mov, OpKind::Memory, size));
            let stored = after.op1_register();
            assert_eq!((stored.full_register().number(), stored.size()), (usize::from(register), size), "{after}");
            assert!(![Register::AH, Register::CH, Register::DH, Register::BH].contains(&stored), "{after}");
        }
    }
}
