//! Which instructions are looked into, by name (Intel SDM vol. 2).
//!
//! Only what is listed is followed; all else is the same in both programs or not proven. Of vector instructions the opcode, the prefixes and an immediate tell the
//! operation, whatever the disassembler calls it.

use super::decoded::{Decoded, Operand, Reg};
use super::expr::Flag;
use super::machine::FLAGS;

/// Beginnings of names of pure instructions on vectors, without the `v` of the newer encoding.
const VECTOR: [&str; 73] = [
    "adds", "addp", "addsub", "subs", "subp", "muls", "mulp", "divs", "divp", "sqrt", "mins", "minp", "maxs", "maxp", "andp",
    "andnp", "orp", "xorp", "cmpp", "cmps", "cmpe", "cmpl", "cmpn", "cmpu", "cmpo", "comis", "ucomis", "cvt", "unpck", "shufp",
    "movhlps", "movlhps", "movhp", "movlp", "movmskp", "movddup", "movshdup", "movsldup", "padd", "psub", "pmul", "pmadd",
    "pand", "por", "pxor", "pcmpeq", "pcmpgt", "pshuf", "psll", "psrl", "psra", "punpck", "pack", "pmax", "pmin", "pavg", "pabs",
    "psign", "phadd", "phsub", "pblend", "pextr", "pinsr", "pmov", "palignr", "psadbw", "blend", "round", "haddp", "insertps",
    "ptest", "movss", "movsd",
];
/// The same in the newer encoding only.
const VECTOR_NEW: [&str; 9] =
    ["vfmadd", "vfmsub", "vfnmadd", "vfnmsub", "vbroadcast", "vpbroadcast", "vperm", "vextract", "vinsert"];
/// Flags that are results on every processor; the rest may be what they were, or anything.
const CARRY: &[Flag] = &[Flag::Carry];
const ZERO: &[Flag] = &[Flag::Zero];
pub(super) const PRODUCT: &[Flag] = &[Flag::Carry, Flag::Overflow];
const FIELD: &[Flag] = &[Flag::Carry, Flag::Zero, Flag::Overflow];
const LOGIC: &[Flag] = &[Flag::Carry, Flag::Zero, Flag::Sign, Flag::Overflow];
/// Pure instructions on integers, and whether some flags stay as they were, or are inputs.
const INTEGER: [(&str, Effect); 30] = [
    ("bsf", Effect::Some(ZERO)),
    ("bsr", Effect::Some(ZERO)),
    ("bt", Effect::Some(CARRY)),
    ("bts", Effect::Some(CARRY)),
    ("btr", Effect::Some(CARRY)),
    ("btc", Effect::Some(CARRY)),
    ("bswap", Effect::None),
    ("popcnt", Effect::All),
    ("lzcnt", Effect::Some(ZERO)),
    ("tzcnt", Effect::Some(ZERO)),
    ("adc", Effect::Reads(&FLAGS)),
    ("sbb", Effect::Reads(&FLAGS)),
    ("rol", Effect::Some(&[])),
    ("ror", Effect::Some(&[])),
    ("rcl", Effect::Reads(&[])),
    ("rcr", Effect::Reads(&[])),
    ("shld", Effect::Some(&[])),
    ("shrd", Effect::Some(&[])),
    ("mul", Effect::Some(PRODUCT)),
    ("imul", Effect::Some(PRODUCT)),
    ("div", Effect::Some(&[])),
    ("idiv", Effect::Some(&[])),
    ("andn", Effect::Some(LOGIC)),
    ("bextr", Effect::Some(FIELD)),
    ("bzhi", Effect::Some(LOGIC)),
    ("rorx", Effect::None),
    ("sarx", Effect::None),
    ("shlx", Effect::None),
    ("shrx", Effect::None),
    ("mulx", Effect::None),
];

/// What an integer instruction does to the flags.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    All,
    /// Some may stay as they were, but not these.
    Some(&'static [Flag]),
    /// The same where results depend on them too.
    Reads(&'static [Flag]),
}

/// How an instruction is followed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Exact,
    Pure,
    Opaque,
}

/// What a pure instruction on integers does to the flags.
pub(super) fn effect_of(name: &str) -> Option<Effect> {
    INTEGER.iter().find(|&&(known, _)| known == name).map(|&(_, effect)| effect)
}

pub(super) fn plain(name: &str) -> &str {
    name.strip_prefix('v').unwrap_or(name)
}

pub(super) fn is_vector_move(name: &str) -> bool {
    let moves = ["movaps", "movups", "movapd", "movupd", "movdqa", "movdqu", "lddqu", "movq", "movd", "movss", "movsd"];
    moves.contains(&plain(name))
}

pub(super) fn is_exclusive_or(name: &str) -> bool {
    matches!(plain(name), "pxor" | "xorps" | "xorpd")
}

impl Decoded {
    pub(super) fn class(&self) -> Class {
        let known = self.reads.iter().chain(&self.writes).all(|register| *register != Reg::Other && *register != Reg::Pointer);
        let named =
            self.operands.iter().all(|&(operand, _)| !matches!(operand, Operand::Reg(Reg::Other | Reg::Pointer | Reg::Flags)));
        let memories = self.operands.iter().filter(|(operand, _)| matches!(operand, Operand::Memory(_))).count();
        if self.is_special || self.is_locked_or_repeated() || self.is_evex() || !named || memories > 1 {
            return Class::Opaque;
        }
        let name = self.name.as_str();
        let is_integer = self.operands.iter().all(|(operand, _)| !matches!(operand, Operand::Reg(Reg::Vector(..))));
        if is_integer && self.is_exact_integer() {
            return Class::Exact;
        }
        let is_zero = is_exclusive_or(name) && self.operands.len() == 3 && self.operands[1] == self.operands[2];
        if is_zero || (!is_integer && (is_vector_move(name) || is_exclusive_or(name)) && self.operands.len() == 2) {
            return Class::Exact;
        }
        if !known {
            return Class::Opaque;
        }
        if is_integer && INTEGER.iter().any(|&(known, _)| known == name) {
            // Bit strings in memory are addressed by their bits.
            let is_string = name.starts_with("bt") && memories > 0 && matches!(self.operands.get(1), Some((Operand::Reg(_), _)));
            return if is_string { Class::Opaque } else { Class::Pure };
        }
        if self.computes_on_vectors() { Class::Pure } else { Class::Opaque }
    }

    /// Whether the result is one of vector operands alone, or of these and what else is named.
    pub(super) fn computes_on_vectors(&self) -> bool {
        let name = self.name.as_str();
        let is_pure = |list: &[&str], name: &str| list.iter().any(|beginning| name.starts_with(beginning));
        let is_vector = is_pure(&VECTOR, plain(name)) || is_pure(&VECTOR_NEW, name);
        let has_hidden_operand = name.contains("blendv") && !self.shape.vector;
        let is_wide = !has_hidden_operand && self.shape.map != 0 && self.memory().is_none_or(|(_, size)| size > 0);
        let is_integer = self.operands.iter().all(|(operand, _)| !matches!(operand, Operand::Reg(Reg::Vector(..))));
        is_vector && is_wide && !is_integer
    }

    /// What `push` of an immediate pushes.
    pub(super) fn pushed_constant(&self) -> Option<u64> {
        match *self.bytes {
            [0x6a, value] => Some(i64::from(value.cast_signed()).cast_unsigned()),
            [0x68, a, b, c, d] => Some(i64::from(i32::from_le_bytes([a, b, c, d])).cast_unsigned()),
            _ => None,
        }
    }

    /// What tells the operation from others of the same name.
    pub(super) fn opcode(&self) -> Vec<u8> {
        let byte = |at: usize| self.bytes.get(at).copied().unwrap_or(0);
        let mut key = vec![self.shape.map, byte(self.shape.opcode), u8::from(self.shape.vector)];
        let prefixes = &self.bytes[..self.shape.opcode.min(self.bytes.len())];
        if self.shape.vector {
            // `L` and `pp`, and `W` where it is encoded.
            key.push(byte(self.shape.opcode.wrapping_sub(1)) & 7);
            key.push(if byte(self.shape.opcode.wrapping_sub(3)) == 0xc4 { byte(self.shape.opcode - 1) & 0x80 } else { 0 });
        } else {
            key.extend([0x66, 0xf2, 0xf3].map(|prefix| u8::from(prefixes.contains(&prefix))));
            key.push(prefixes.iter().filter(|&&byte| byte & 0xf0 == 0x40).fold(0, |_, byte| byte & 8));
        }
        let has_immediate = match self.shape.map {
            3 => true,
            1 => matches!(byte(self.shape.opcode), 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6),
            _ => false,
        };
        key.extend(self.bytes.last().filter(|_| has_immediate));
        key
    }

    fn is_exact_integer(&self) -> bool {
        let name = self.name.as_str();
        let count = self.operands.len();
        let has_memory = self.memory().is_some();
        match name {
            "imul" => count > 1,
            "xchg" => !has_memory,
            "push" if self.pushed_constant().is_some() => true,
            "push" | "pop" => self.operands.first().is_some_and(|&(_, size)| size == 64),
            "mov" | "movabs" | "movzx" | "movsx" | "movsxd" | "lea" | "add" | "sub" | "and" | "or" | "xor" | "inc" | "dec"
            | "neg" | "not" | "shl" | "sal" | "shr" | "sar" | "cmp" | "test" | "cdqe" | "cwde" | "cdq" | "cqo" | "leave"
            | "nop" | "endbr64" => true,
            _ => (name.starts_with("cmov") || name.starts_with("set")) && self.shape.map == 1,
        }
    }
}
