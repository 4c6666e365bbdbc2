//! What registers hold in code that is run straight through, read off the bytes of its instructions.
//!
//! **Method.** A move of a number, an exclusive or of a register with itself, and a `lea` by the instruction pointer make known what a register holds; copies, and sums with a number, of what is known do so too. Of other
//! instructions only those are understood of which the opcode tells which registers they write (Intel SDM vol. 2, appendix A); any other, a call too, makes all unknown.
//!
//! The same bytes tell of instructions that come next what they do to the flags, and which register they write.

mod raising;

use crate::decode::Shape;

/// Where the stack pointer is numbered, and what in ModRM says that a byte for base and index follows.
const STACK: u8 = 4;
/// Where `%rbp` is.
const FRAME: u8 = 5;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    /// Of something in the file.
    Address(u64),
}

impl Value {
    fn plus(self, more: i64) -> Self {
        match self {
            Value::Number(number) => Value::Number(number.wrapping_add_signed(more)),
            Value::Address(address) => Value::Address(address.wrapping_add_signed(more)),
        }
    }

    /// What is left of it in 32 bits; of an address nothing is known there.
    fn low(self) -> Option<Self> {
        match self {
            Value::Number(number) => Some(Value::Number(number & u64::from(u32::MAX))),
            Value::Address(_) => None,
        }
    }
}

/// The parts of an instruction that has no prefixes but some that are known.
#[derive(Copy, Clone)]
pub(crate) struct Parts<'b> {
    bytes: &'b [u8],
    shape: Shape,
    opcode: u8,
    modes: Option<u8>,
    rex: u8,
}

impl<'b> Parts<'b> {
    pub(crate) fn of(bytes: &'b [u8]) -> Self {
        let shape = Shape::of(bytes);
        let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
        let modes = bytes.get(shape.modrm).copied().filter(|_| shape.modrm > 0);
        Self { bytes, shape, opcode, modes, rex: shape.rex() }
    }

    /// All before the opcode but the byte that extends registers, and what escapes to another map.
    pub(crate) fn legacy_prefixes(&self) -> &'b [u8] {
        let is_legacy = |byte: &u8| matches!(byte, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65);
        let size = self.bytes.iter().take_while(|byte| is_legacy(byte)).count();
        &self.bytes[..size]
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.opcode
    }

    /// Where the opcode's last byte is.
    pub(crate) fn opcode_at(&self) -> usize {
        self.shape.opcode
    }

    /// Whether it is of the first map and has no prefixes but such as say nothing: assemblers that keep branches within lines put segments, which 64-bit mode ignores (Intel SDM vol. 1, section 3.4.2.1), before instructions.
    fn is_plain(&self) -> bool {
        let says_nothing = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e);
        !self.shape.vector && self.shape.map == 0 && self.legacy_prefixes().iter().all(says_nothing)
    }

    fn is_wide(&self) -> bool {
        self.rex & 8 != 0
    }

    /// The register in the middle of ModRM.
    pub(crate) fn reg(&self) -> Option<u8> {
        Some(self.modes? >> 3 & 7 | self.rex << 1 & 8)
    }

    /// The number in the middle of ModRM that belongs to the opcode.
    fn group(&self) -> Option<u8> {
        Some(self.modes? >> 3 & 7)
    }

    /// The other register, if the operand is one.
    pub(crate) fn register_operand(&self) -> Option<u8> {
        let modes = self.modes?;
        (modes >> 6 == 3).then_some(modes & 7 | self.rex << 3 & 8)
    }

    pub(crate) fn is_of(&self, map: u8, opcode: u8) -> bool {
        !self.shape.vector && self.shape.map == map && self.opcode == opcode
    }

    /// The register that the opcode's last bits name.
    fn in_opcode(&self) -> u8 {
        self.opcode & 7 | self.rex << 3 & 8
    }

    fn number(&self, at: usize, size: usize) -> Option<u64> {
        let field = self.bytes.get(at..at + size)?;
        let value = field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte));
        let unused = 64 - 8 * size as u32;
        Some(((value << unused).cast_signed() >> unused).cast_unsigned())
    }

    /// The immediate of so many bytes in which the instruction ends, extended by its sign.
    pub(crate) fn immediate(&self, size: usize) -> Option<u64> {
        self.number(self.bytes.len().checked_sub(size)?, size)
    }

    /// The base of the operand in memory and what is added to it, where nothing else is.
    pub(crate) fn base(&self) -> Option<(u8, i64)> {
        let (modes, at) = (self.modes?, self.shape.modrm + 1);
        let (mode, rm) = (modes >> 6, modes & 7);
        let (base, at) = if rm == STACK {
            let sib = *self.bytes.get(at)?;
            if sib >> 3 & 7 != STACK || self.rex & 2 != 0 {
                return None;
            }
            (sib & 7, at + 1)
        } else {
            (rm, at)
        };
        let more = match mode {
            0 if base == 5 => return None,
            0 => 0,
            1 => self.number(at, 1)?,
            2 => self.number(at, 4)?,
            _ => return None,
        };
        Some((base | self.rex << 3 & 8, more.cast_signed()))
    }

    /// Whether the operand in memory is addressed by `%rbp` and lies below it, whatever else is added.
    pub(crate) fn is_below_frame(&self) -> bool {
        let Some(modes) = self.modes.filter(|modes| !matches!(modes >> 6, 0 | 3)) else { return false };
        let at = self.shape.modrm + 1;
        let (base, at) = if modes & 7 == STACK { (self.bytes.get(at).map_or(0, |sib| sib & 7), at + 1) } else { (modes & 7, at) };
        let size = if modes >> 6 == 1 { 1 } else { 4 };
        base == FRAME && !self.extends_base() && self.number(at, size).is_some_and(|more| more.cast_signed() < 0)
    }

    /// Whether the base of the operand in memory is one of the eight registers that came later.
    fn extends_base(&self) -> bool {
        match (self.shape.vector, self.bytes.iter().position(|byte| matches!(byte, 0xc4 | 0x62 | 0x8f))) {
            (true, Some(escape)) => self.bytes.get(escape + 1).is_some_and(|byte| byte & 0x20 == 0),
            _ => self.rex & 1 != 0,
        }
    }

    /// Whether the operand in memory is addressed by the stack pointer and lies below it, whatever else is added.
    fn is_below_stack(&self) -> bool {
        let Some(modes) = self.modes.filter(|modes| modes & 7 == STACK && modes >> 6 != 3) else { return false };
        let at = self.shape.modrm + 1;
        let is_by_stack = self.bytes.get(at).is_some_and(|sib| sib & 7 == STACK) && !self.extends_base();
        let size = if modes >> 6 == 1 { 1 } else { 4 };
        is_by_stack && modes >> 6 != 0 && self.number(at + 1, size).is_some_and(|more| more.cast_signed() < 0)
    }

    /// How far below the stack pointer this may reach, if it addresses anything there or may do so; `i64::MIN` where that is not known.
    pub(crate) fn depth_below_stack(&self) -> Option<i64> {
        if !self.is_below_stack() {
            return self.is_of(0, 0xc8).then_some(i64::MIN);
        }
        // Of an address that is made here others may be made; vectors may scale the number.
        let is_access = !self.shape.vector && !self.is_of(0, 0x8d);
        Some(self.base().filter(|_| is_access).map_or(i64::MIN, |(_, depth)| depth))
    }

    /// Whether this gives `%rbp` a new value that does not count from the stack pointer: it is moved there, is an address, or was saved.
    pub(crate) fn replaces_frame_pointer(&self) -> bool {
        let is_whole = !self.legacy_prefixes().contains(&0x66) || self.is_wide();
        let is_popped = matches!(self.opcode, 0x58..=0x5f) && self.in_opcode() == FRAME;
        let is_written = matches!(self.opcode, 0x8b | 0x8d) && self.reg() == Some(FRAME);
        let is_copied = self.opcode == 0x89 && self.register_operand() == Some(FRAME);
        let is_one = self.is_of(0, self.opcode) && (is_popped || is_written || is_copied || self.opcode == 0xc9);
        is_one && is_whole && !self.makes_frame_pointer()
    }

    /// Whether, after this, `%rbp` may count from the stack pointer.
    pub(crate) fn makes_frame_pointer(&self) -> bool {
        let copies_stack = self.is_of(0, 0x89) && self.reg() == Some(STACK) && self.register_operand() == Some(FRAME)
            || self.is_of(0, 0x8b) && self.reg() == Some(FRAME) && self.register_operand() == Some(STACK);
        let names_stack =
            |modes: u8| modes & 7 == STACK && self.bytes.get(self.shape.modrm + 1).is_some_and(|sib| sib & 7 == STACK);
        let is_address = self.is_of(0, 0x8d) && self.reg() == Some(FRAME) && !self.extends_base();
        let takes_address = is_address && self.modes.is_some_and(names_stack);
        let adds_stack = self.is_of(0, 0x01) && self.reg() == Some(STACK) && self.register_operand() == Some(FRAME)
            || self.is_of(0, 0x03) && self.reg() == Some(FRAME) && self.register_operand() == Some(STACK);
        copies_stack || takes_address || adds_stack
    }

    /// The register that this makes known on its own, whatever others hold; `operand` is what a `lea` by the instruction pointer names.
    pub(crate) fn value(&self, operand: Option<u64>) -> Option<(u8, Value)> {
        if !self.is_plain() {
            return None;
        }
        match (self.opcode, operand) {
            (0xb8..=0xbf, _) if self.is_wide() => Some((self.in_opcode(), Value::Number(self.immediate(8)?))),
            (0xb8..=0xbf, _) => Some((self.in_opcode(), Value::Number(self.immediate(4)?).low()?)),
            (0xc7, _) if self.group() == Some(0) => {
                let number = Value::Number(self.immediate(4)?);
                Some((self.register_operand()?, if self.is_wide() { number } else { number.low()? }))
            }
            (0x8d, Some(address)) if self.is_wide() => Some((self.reg()?, Value::Address(address))),
            _ => None,
        }
    }

    /// The register that a byte belongs to: without a prefix, numbers from 4 on are those of second bytes.
    fn of_byte(&self, number: u8) -> u8 {
        if self.rex == 0 { number & 3 } else { number }
    }

    /// What this stores if it stores a number, in bytes and by value.
    fn stored_number(&self) -> Option<(u32, u64)> {
        if self.register_operand().is_some() || self.group() != Some(0) {
            return None;
        }
        let size = match (self.is_of(0, 0xc6), self.is_of(0, 0xc7)) {
            (true, _) => 1,
            (_, true) if self.is_wide() => 8,
            (_, true) if self.legacy_prefixes().contains(&0x66) => 2,
            (_, true) => 4,
            _ => return None,
        };
        Some((size, self.immediate(size.min(4) as usize)?))
    }

    /// Where this stores a number and `other` a register, as many bytes at the same address: the register, how many bytes, and the number. Displacements by the instruction pointer are at these offsets, 0 for none; what they
    /// name is not compared.
    pub(crate) fn stored_by(&self, other: &Self, (here, there): (u8, u8)) -> Option<(u8, u32, u64)> {
        let (size, number) = self.stored_number()?;
        let register = other.reg()?;
        let is_second = size == 1 && other.rex == 0 && register > 3;
        let is_store = other.is_of(0, if size == 1 { 0x88 } else { 0x89 }) && !is_second;
        let is_as_wide = self.legacy_prefixes() == other.legacy_prefixes() && (self.rex ^ other.rex) & 0b1011 == 0;
        let modes = |parts: &Self| parts.modes.map(|modes| modes & 0o307);
        let address = self.bytes.get(self.shape.modrm + 1..self.bytes.len() - size.min(4) as usize)?;
        let found = other.bytes.get(other.shape.modrm + 1..)?;
        let is_same_address = modes(self) == modes(other)
            && if here == 0 { there == 0 && address == found } else { there != 0 && address.len() == found.len() };
        (is_store && is_as_wide && is_same_address).then_some((register, size, number))
    }

    /// Which registers this writes, a bit each, of those that the code around it may know; `None` if that is not understood.
    pub(crate) fn written(&self) -> Option<u16> {
        if !self.has_no_prefixes_but(&[0x66, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65]) {
            return None;
        }
        self.written_by_opcode()
    }

    /// Whether this adds one number to another, or takes one from another.
    pub(crate) fn adds(&self) -> bool {
        let is_of_group = matches!(self.opcode, 0x80 | 0x81 | 0x83) && matches!(self.group(), Some(0 | 2 | 3 | 5));
        let is_sum = matches!(self.opcode, 0x00..=0x05 | 0x10..=0x1d | 0x28..=0x2d) && self.opcode & 7 < 6;
        self.is_of(0, self.opcode) && (is_sum || is_of_group)
    }

    /// Whether one of two operands of arithmetic is a number, and what is in the middle of ModRM, if anything, belongs to the opcode.
    pub(crate) fn has_number(&self) -> bool {
        matches!(self.opcode, 0x80..=0x83) || self.opcode < 0x40 && self.opcode & 7 > 3
    }

    /// The one register that arithmetic on two operands changes.
    pub(crate) fn changed_register(&self) -> Option<u8> {
        let written = self.written().filter(|written| written.is_power_of_two())?;
        Some(written.trailing_zeros() as u8)
    }

    /// Whether there are none but these, and those that say which of several vector instructions it is.
    fn has_no_prefixes_but(&self, known: &[u8]) -> bool {
        let tells_vectors = |byte: &u8| matches!(byte, 0xf2 | 0xf3) && self.shape.map == 1;
        self.legacy_prefixes().iter().all(|byte| known.contains(byte) || tells_vectors(byte))
    }

    fn written_by_opcode(&self) -> Option<u16> {
        let opcode = self.opcode;
        let is_byte = self.shape.map == 0
            && match opcode {
                0x00..=0x3f | 0x80..=0x8b | 0xc0..=0xff => opcode & 1 == 0,
                _ => matches!(opcode, 0xb0..=0xb7),
            };
        let bit = |register: u8| 1u16 << if is_byte { self.of_byte(register) } else { register };
        if self.shape.vector {
            return None;
        }
        let none = Some(0);
        let operand = Some(self.register_operand().map_or(0, bit));
        let reg = self.reg().map(bit);
        match (self.shape.map, opcode) {
            (0, 0x38..=0x3d | 0x50..=0x57 | 0x68 | 0x6a | 0x84 | 0x85 | 0xa8 | 0xa9) => none,
            (0, 0x90) if self.rex == 0 => none,
            (0, 0x00..=0x37) => match opcode & 7 {
                0 | 1 => operand,
                2 | 3 => reg,
                4 | 5 => Some(1),
                _ => None,
            },
            (0, 0x58..=0x5f | 0xb0..=0xbf) => Some(bit(self.in_opcode())),
            (0, 0x63 | 0x69 | 0x6b | 0x8a | 0x8b | 0x8d) => reg,
            (0, 0x80 | 0x81 | 0x83) => {
                if self.group() == Some(7) {
                    none
                } else {
                    operand
                }
            }
            (0, 0x88 | 0x89) => operand,
            (0, 0xc0 | 0xc1 | 0xd0..=0xd3) if matches!(self.group(), Some(4 | 5 | 7)) => operand,
            (0, 0xc6 | 0xc7) if self.group() == Some(0) => operand,
            (0, 0xf6 | 0xf7) if self.group() == Some(0) => none,
            (0, 0xf6 | 0xf7) if matches!(self.group(), Some(2 | 3)) => operand,
            (0, 0xfe | 0xff) if matches!(self.group(), Some(0 | 1)) => operand,
            (0, 0xff) if self.group() == Some(6) => none,
            (1, 0x10..=0x17 | 0x1f | 0x28 | 0x29 | 0x57 | 0x6c | 0x6e | 0x6f | 0x7f | 0xd6 | 0xef) => none,
            // Between vector registers.
            (1, 0x7e) if self.legacy_prefixes().contains(&0xf3) => none,
            (1, 0x7e) => operand,
            (1, 0xaf | 0xb6 | 0xb7 | 0xbe | 0xbf) => reg,
            _ => None,
        }
    }

    /// What this does to the flags: `Some(true)` if it writes them and reads none, `Some(false)` if it leaves them alone, `None` otherwise.
    pub(crate) fn writes_flags(&self) -> Option<bool> {
        if !self.has_no_prefixes_but(&[0x66, 0x67, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65, 0xf0]) {
            return None;
        }
        self.written_by_opcode()?;
        match (self.shape.map, self.opcode) {
            // With or without carry.
            (0, 0x10..=0x1d) => None,
            (0, 0x00..=0x3d | 0x84 | 0x85 | 0xa8 | 0xa9) => Some(true),
            (0, 0x80 | 0x81 | 0x83) => (!matches!(self.group(), Some(2 | 3))).then_some(true),
            (0, 0xf6 | 0xf7) => match self.group() {
                Some(2) => Some(false),
                _ => Some(true),
            },
            (0, 0x69 | 0x6b | 0xc0 | 0xc1 | 0xd0..=0xd3 | 0xfe) | (1, 0xaf) => None,
            (0, 0xff) if self.group() != Some(6) => None,
            _ => Some(false),
        }
    }

    /// Of an instruction that cannot fault: the registers that it reads, a bit each, and the one that it writes, all of it, with whether that comes off the stack.
    pub(crate) fn moved(&self) -> Option<(u16, u8, bool)> {
        if self.shape.vector || self.shape.map != 0 || !self.legacy_prefixes().is_empty() {
            return None;
        }
        let bit = |register: u8| 1u16 << register;
        match self.opcode {
            0x58..=0x5f => Some((bit(STACK), self.in_opcode(), true)),
            0xb8..=0xbf => Some((0, self.in_opcode(), false)),
            0x31 | 0x33 if self.register_operand()? == self.reg()? => Some((0, self.reg()?, false)),
            0x89 => Some((bit(self.reg()?), self.register_operand()?, false)),
            0x8b => Some((bit(self.register_operand()?), self.reg()?, false)),
            0xc7 if self.group() == Some(0) => Some((0, self.register_operand()?, false)),
            0x8d => Some((self.read_by_address()?, self.reg()?, false)),
            _ => None,
        }
    }

    /// The registers that the operand in memory is addressed by.
    fn read_by_address(&self) -> Option<u16> {
        let modes = self.modes.filter(|modes| modes >> 6 != 3)?;
        if modes & 7 != STACK {
            let by_pointer = modes >> 6 == 0 && modes & 7 == 5;
            return Some(if by_pointer { 0 } else { 1 << (modes & 7 | self.rex << 3 & 8) });
        }
        let sib = *self.bytes.get(self.shape.modrm + 1)?;
        // One too many, where there is no base or no index, does no harm.
        Some(1 << (sib & 7 | self.rex << 3 & 8) | 1 << (sib >> 3 & 7 | self.rex << 2 & 8))
    }
}

/// What registers hold, each with the number of the instruction from which on it is known.
#[derive(Clone, Default)]
pub(crate) struct Registers([Option<(Value, usize)>; 16]);

impl Registers {
    pub(crate) fn of(&self, register: u8) -> Option<(Value, usize)> {
        self.0[usize::from(register & 15)]
    }

    /// What an instruction makes known: of which register, what, and since when.
    pub(crate) fn value_after(&self, parts: Parts<'_>, operand: Option<u64>, number: usize) -> Option<(u8, Value, usize)> {
        if let Some((register, held)) = parts.value(operand) {
            return Some((register, held, number));
        }
        if !parts.is_plain() {
            return None;
        }
        let (register, (held, since)) = match parts.opcode {
            0x31 | 0x33 if parts.register_operand()? == parts.reg()? => (parts.reg()?, (Value::Number(0), number)),
            0x89 => (parts.register_operand()?, self.of(parts.reg()?)?),
            0x8b => (parts.reg()?, self.of(parts.register_operand()?)?),
            0x8d if operand.is_none() => {
                let (base, more) = parts.base()?;
                let (held, since) = self.of(base)?;
                (parts.reg()?, (held.plus(more), since))
            }
            _ => return None,
        };
        Some((register, if parts.is_wide() { held } else { held.low()? }, since))
    }

    /// Passes an instruction, the one with this number.
    pub(crate) fn pass(&mut self, parts: Parts<'_>, operand: Option<u64>, number: usize) {
        let found = self.value_after(parts, operand, number);
        let written = parts.written().unwrap_or(u16::MAX);
        for (register, held) in self.0.iter_mut().enumerate() {
            if written >> register & 1 != 0 {
                *held = None;
            }
        }
        if let Some((register, held, since)) = found {
            self.0[usize::from(register)] = Some((held, since));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `%edx` holds after `mov $9, %edx` and these instructions.
    fn held_after(instructions: &[&[u8]]) -> Option<Value> {
        let mut registers = Registers::default();
        let first: &[u8] = &[0xba, 9, 0, 0, 0];
        for (number, bytes) in [first].iter().chain(instructions).enumerate() {
            registers.pass(Parts::of(bytes), None, number);
        }
        registers.of(2).map(|(held, _)| held)
    }

    #[test]
    fn prefixes_that_say_nothing_hide_nothing() {
        // xor %edx, %edx; mov $2, %edx; both behind segments of 64-bit mode.
        assert_eq!(held_after(&[&[0x2e, 0x2e, 0x31, 0xd2]]), Some(Value::Number(0)));
        assert_eq!(held_after(&[&[0x3e, 0xba, 2, 0, 0, 0]]), Some(Value::Number(2)));
        // xor %dx, %dx; repz xor %edx, %edx.
        assert_eq!(held_after(&[&[0x66, 0x31, 0xd2]]), None);
        assert_eq!(held_after(&[&[0xf3, 0x31, 0xd2]]), None);
    }

    #[test]
    fn a_move_between_vector_registers_writes_no_other() {
        // movq %xmm2, %xmm2; movd %xmm2, %edx; movq %xmm2, %rdx.
        assert_eq!(held_after(&[&[0xf3, 0x0f, 0x7e, 0xd2]]), Some(Value::Number(9)));
        assert_eq!(held_after(&[&[0x66, 0x0f, 0x7e, 0xd2]]), None);
        assert_eq!(held_after(&[&[0x66, 0x48, 0x0f, 0x7e, 0xd2]]), None);
    }
}
