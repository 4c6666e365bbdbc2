//! What an instruction computes from constants: a result and the arithmetic flags, as the processor does it (Intel SDM vol. 2).
//!
//! An instruction that is not listed, or of which an operand is not known, gives nothing, and the flags that it writes are not known afterwards. Two addresses of the image
//! are compared only for equality, and none is zero: no image is mapped there.

use iced_x86::{ConditionCode, Instruction, Mnemonic, OpKind, Register as Machine};

use super::known::Constant;

pub(super) const CF: u8 = 1;
pub(super) const PF: u8 = 2;
pub(super) const ZF: u8 = 4;
pub(super) const SF: u8 = 8;
pub(super) const OF: u8 = 16;

/// The flags of which the value is known.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) known: u8,
    /// A subset of `known`.
    pub(super) set: u8,
}

impl Flags {
    pub(super) fn forget(&mut self, flags: u8) {
        self.known &= !flags;
        self.set &= !flags;
    }
    fn put(&mut self, flag: u8, is_set: bool) {
        self.known |= flag;
        self.set = if is_set { self.set | flag } else { self.set & !flag };
    }
    /// What both say.
    pub(super) fn meet(self, other: Self) -> Self {
        let known = self.known & other.known & !(self.set ^ other.set);
        Flags { known, set: self.set & known }
    }
    fn get(self, flag: u8) -> Option<bool> {
        (self.known & flag != 0).then_some(self.set & flag != 0)
    }

    /// Whether a condition holds.
    pub(super) fn decide(self, condition: ConditionCode) -> Option<bool> {
        use ConditionCode as C;
        let get = |flag| self.get(flag);
        let either = |a: Option<bool>, b: Option<bool>| match (a, b) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        };
        let less = || Some(get(SF)? != get(OF)?);
        match condition {
            C::o => get(OF),
            C::no => get(OF).map(|f| !f),
            C::b => get(CF),
            C::ae => get(CF).map(|f| !f),
            C::e => get(ZF),
            C::ne => get(ZF).map(|f| !f),
            C::be => either(get(CF), get(ZF)),
            C::a => either(get(CF), get(ZF)).map(|f| !f),
            C::s => get(SF),
            C::ns => get(SF).map(|f| !f),
            C::p => get(PF),
            C::np => get(PF).map(|f| !f),
            C::l => less(),
            C::ge => less().map(|f| !f),
            C::le => either(get(ZF), less()),
            C::g => either(get(ZF), less()).map(|f| !f),
            C::None => None,
        }
    }
}

/// The arithmetic flags that an instruction writes or leaves undefined.
pub(super) fn written_flags(instruction: &Instruction) -> u8 {
    named_flags(instruction.rflags_modified())
}
pub(super) fn read_flags(instruction: &Instruction) -> u8 {
    named_flags(instruction.rflags_read())
}

fn named_flags(bits: u32) -> u8 {
    use iced_x86::RflagsBits as R;
    let pairs = [(R::CF, CF), (R::PF, PF), (R::ZF, ZF), (R::SF, SF), (R::OF, OF)];
    pairs.iter().filter(|p| bits & p.0 != 0).fold(0, |flags, p| flags | p.1)
}

/// The operands' values, by operand number.
pub(super) type Operands<'a> = dyn Fn(u32) -> Option<Constant> + 'a;

/// What an instruction makes of its operands: the value of operand 0, cut to its size, if it writes it; and the flags. `None`, and the flags that it writes
/// forgotten, where that is not known.
pub(super) fn evaluate(instruction: &Instruction, operands: &Operands<'_>, flags: &mut Flags) -> Option<Constant> {
    let before = *flags;
    flags.forget(written_flags(instruction));
    let bits = operand_bits(instruction, 0)?;
    let number = |operand| operands(operand)?.number().map(|n| cut(n, bits));
    use Mnemonic as M;
    let same = instruction.op_count() == 2
        && instruction.op_kind(0) == OpKind::Register
        && instruction.op_kind(1) == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    let result = match instruction.mnemonic() {
        M::Mov => return cut_constant(operands(1)?, bits),
        M::Movzx => cut(operands(1)?.number()?, operand_bits(instruction, 1)?),
        M::Movsx | M::Movsxd => extend(operands(1)?.number()?, operand_bits(instruction, 1)?),
        M::Xor | M::Sub if same => {
            logic_flags(0, bits, flags);
            0
        }
        M::Add => add(number(0)?, number(1)?, bits, flags),
        M::Sub | M::Cmp => match (operands(0)?, operands(1)?) {
            (Constant::Number(a), Constant::Number(b)) => subtract(cut(a, bits), cut(b, bits), bits, flags),
            (a, b) => {
                compare_addresses(a, b, bits, flags);
                return None;
            }
        },
        M::Test => {
            if same && bits == 64 && matches!(operands(0)?, Constant::Address(_)) {
                flags.put(ZF, false);
                return None;
            }
            logic_flags(number(0)? & number(1)?, bits, flags)
        }
        M::And => logic_flags(number(0)? & number(1)?, bits, flags),
        M::Or => logic_flags(number(0)? | number(1)?, bits, flags),
        M::Xor => logic_flags(number(0)? ^ number(1)?, bits, flags),
        M::Not => !number(0)?,
        M::Neg => subtract(0, number(0)?, bits, flags),
        M::Inc | M::Dec => {
            let number = number(0)?;
            let one =
                if instruction.mnemonic() == M::Inc { add(number, 1, bits, flags) } else { subtract(number, 1, bits, flags) };
            // Neither touches the carry.
            flags.forget(CF);
            flags.known |= before.known & CF;
            flags.set |= before.set & CF;
            one
        }
        M::Shl | M::Sal | M::Shr | M::Sar => shift(instruction, number(0)?, operands(1)?.number()?, bits, before, flags),
        M::Imul if instruction.op_count() == 2 => number(0)?.wrapping_mul(number(1)?),
        M::Imul if instruction.op_count() == 3 => number(1)?.wrapping_mul(number(2)?),
        name if lifter::x86::is_conditional_move(name) => {
            let operand = u32::from(before.decide(instruction.condition_code())?);
            return cut_constant(operands(operand)?, bits);
        }
        _ if is_set(instruction) => u64::from(before.decide(instruction.condition_code())?),
        _ => return None,
    };
    Some(Constant::Number(cut(result, bits)))
}

/// Whether it is `setcc`.
pub(super) fn is_set(instruction: &Instruction) -> bool {
    instruction.condition_code() != ConditionCode::None
        && !lifter::x86::is_conditional_move(instruction.mnemonic())
        && !instruction.is_jcc_short_or_near()
        && instruction.op_count() == 1
        && operand_bits(instruction, 0) == Some(8)
}

/// The size of a register or memory operand.
pub(super) fn operand_bits(instruction: &Instruction, operand: u32) -> Option<u32> {
    if operand >= instruction.op_count() {
        return None;
    }
    let bytes = match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            let is_plain = register.is_gpr() && !matches!(register, Machine::AH | Machine::BH | Machine::CH | Machine::DH);
            if !is_plain {
                return None;
            }
            register.size()
        }
        OpKind::Memory => instruction.memory_size().size(),
        _ => return None,
    };
    matches!(bytes, 1 | 2 | 4 | 8).then_some(bytes as u32 * 8)
}

pub(super) fn cut(number: u64, bits: u32) -> u64 {
    if bits >= 64 { number } else { number & ((1 << bits) - 1) }
}

/// Half an address is not known.
fn cut_constant(constant: Constant, bits: u32) -> Option<Constant> {
    match constant {
        Constant::Number(number) => Some(Constant::Number(cut(number, bits))),
        Constant::Address(_) => (bits == 64).then_some(constant),
    }
}

fn extend(number: u64, bits: u32) -> u64 {
    let unused = 64 - bits;
    ((number << unused).cast_signed() >> unused).cast_unsigned()
}

fn sign(number: u64, bits: u32) -> bool {
    number >> (bits - 1) & 1 != 0
}

fn result_flags(result: u64, bits: u32, flags: &mut Flags) {
    flags.put(ZF, cut(result, bits) == 0);
    flags.put(SF, sign(result, bits));
    flags.put(PF, (result as u8).count_ones().is_multiple_of(2));
}

fn logic_flags(result: u64, bits: u32, flags: &mut Flags) -> u64 {
    result_flags(result, bits, flags);
    flags.put(CF, false);
    flags.put(OF, false);
    result
}

fn add(a: u64, b: u64, bits: u32, flags: &mut Flags) -> u64 {
    let result = cut(a.wrapping_add(b), bits);
    result_flags(result, bits, flags);
    flags.put(CF, result < a);
    flags.put(OF, sign(a, bits) == sign(b, bits) && sign(result, bits) != sign(a, bits));
    result
}

fn subtract(a: u64, b: u64, bits: u32, flags: &mut Flags) -> u64 {
    let result = cut(a.wrapping_sub(b), bits);
    result_flags(result, bits, flags);
    flags.put(CF, a < b);
    flags.put(OF, sign(a, bits) != sign(b, bits) && sign(result, bits) != sign(a, bits));
    result
}

fn compare_addresses(a: Constant, b: Constant, bits: u32, flags: &mut Flags) {
    match (a, b) {
        _ if bits != 64 => {}
        (Constant::Address(a), Constant::Address(b)) => flags.put(ZF, a == b),
        (Constant::Address(_), Constant::Number(0)) => flags.put(ZF, false),
        _ => {}
    }
}

/// A shift by a constant; by nothing, it changes no flag.
fn shift(instruction: &Instruction, number: u64, count: u64, bits: u32, before: Flags, flags: &mut Flags) -> u64 {
    let count = (count & if bits == 64 { 63 } else { 31 }) as u32;
    if count == 0 {
        *flags = before;
        return number;
    }
    let wide = u128::from(number);
    let (result, out) = match instruction.mnemonic() {
        Mnemonic::Shr => ((wide >> count) as u64, wide >> (count - 1) & 1),
        Mnemonic::Sar => {
            let signed = i128::from(extend(number, bits).cast_signed());
            ((signed >> count) as u64, (signed >> (count - 1) & 1).cast_unsigned())
        }
        _ => ((wide << count) as u64, (wide << count) >> bits & 1),
    };
    result_flags(result, bits, flags);
    // Beyond the operand's size the carry is undefined.
    if count <= bits {
        flags.put(CF, out != 0);
    }
    result
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions};

    use super::*;

    fn decode(bytes: &[u8]) -> Instruction {
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        assert_ne!(instruction.code(), Code::INVALID);
        instruction
    }

    fn run(bytes: &[u8], values: &[u64]) -> (Option<Constant>, Flags) {
        let mut flags = Flags::default();
        let operand = |n: u32| values.get(n as usize).map(|&v| Constant::Number(v));
        (evaluate(&decode(bytes), &operand, &mut flags), flags)
    }

    #[test]
    fn a_32_bit_sum_is_cut_and_carries() {
        // add eax, ecx
        let (result, flags) = run(&[0x01, 0xc8], &[0xffff_ffff, 2]);
        assert_eq!(result, Some(Constant::Number(1)));
        assert_eq!(flags.decide(ConditionCode::b), Some(true));
        assert_eq!(flags.decide(ConditionCode::o), Some(false));
    }

    #[test]
    fn a_comparison_decides_signed_and_unsigned_conditions() {
        // cmp edi, esi
        let (_, flags) = run(&[0x39, 0xf7], &[0xffff_ffff, 1]);
        assert_eq!(flags.decide(ConditionCode::l), Some(true));
        assert_eq!(flags.decide(ConditionCode::a), Some(true));
        assert_eq!(flags.decide(ConditionCode::e), Some(false));
    }

    #[test]
    fn a_shift_by_nothing_leaves_the_flags_alone() {
        let mut flags = Flags { known: ZF, set: ZF };
        // shl eax, cl
        let operand = |n: u32| Some(Constant::Number(if n == 0 { 5 } else { 32 }));
        assert_eq!(evaluate(&decode(&[0xd3, 0xe0]), &operand, &mut flags), Some(Constant::Number(5)));
        assert_eq!(flags, Flags { known: ZF, set: ZF });
    }

    #[test]
    fn an_address_is_not_zero_and_nothing_else_is_known_of_it() {
        let mut flags = Flags::default();
        // test rdi, rdi
        let operand = |_: u32| Some(Constant::Address(lifter::Va(0x2000)));
        assert_eq!(evaluate(&decode(&[0x48, 0x85, 0xff]), &operand, &mut flags), None);
        assert_eq!(flags.decide(ConditionCode::e), Some(false));
        assert_eq!(flags.decide(ConditionCode::s), None);
    }

    #[test]
    fn the_flags_of_what_is_not_known_are_forgotten() {
        let mut flags = Flags { known: ZF | CF, set: CF };
        // add eax, ecx
        assert_eq!(evaluate(&decode(&[0x01, 0xc8]), &|_| None, &mut flags), None);
        assert_eq!(flags.known, 0);
    }
}
