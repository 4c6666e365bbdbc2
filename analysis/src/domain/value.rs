//! Address descriptors: ⟨base, residues, interval⟩.
//!
//! **Meaning.** A value describes a 64-bit number `v` if `v - base` (modulo 2^64) is described by both the residues and the interval.
//!
//! **Purity.** Arithmetic alone does not tell which object an address is in: `p + (q - p)` counts from `p` and is an address in `q`'s object, and
//! compilers write loops like that. A value is *pure* if all that was added to the base are constants and numbers that are too small to be the
//! distance between two objects or that came to be without any address: then it lies in the object that the base points into, if it is the address of
//! anything. Only claims about objects ask for purity; claims about residues and distances do not.

use super::{Base, Interval, Residues};

/// An address descriptor.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Value {
    pub base: Base,
    pub is_pure: bool,
    pub residues: Residues,
    pub offsets: Interval,
}

impl Value {
    /// Nothing known.
    pub const UNKNOWN: Self = Self { base: Base::UNKNOWN, is_pure: false, residues: Residues::ALL, offsets: Interval::FULL };

    /// A base's own value, so many bytes on.
    pub const fn exact(base: Base, offset: i64) -> Self {
        Self { base, is_pure: true, residues: Residues::of(offset), offsets: Interval::of(offset) }
    }
    pub const fn number(number: i64) -> Self {
        Self::exact(Base::NUMBER, number)
    }
    /// A number within bounds.
    pub fn bounded(low: i64, high: i64) -> Self {
        let (residues, offsets) = (Residues::of_range(low, high), Interval::new(low, high));
        Self { base: Base::NUMBER, is_pure: true, residues, offsets }
    }
    /// The distance, where it is one number.
    pub fn offset(&self) -> Option<i64> {
        self.offsets.single()
    }
    pub fn is_unknown(&self) -> bool {
        self.base == Base::UNKNOWN
    }
    /// Whether it is the base, nothing added.
    pub fn is_exactly(&self, base: Base) -> bool {
        self.base == base && self.offset() == Some(0)
    }
    #[must_use]
    pub fn add_constant(self, number: i64) -> Self {
        let (residues, offsets) = (self.residues.add_constant(number), self.offsets.add(Interval::of(number)));
        Self { residues, offsets, ..self }.reduced()
    }
    /// The sum, counted from the only base among the two; `None` where both have one.
    #[expect(clippy::should_implement_trait, reason = "a sum of descriptors may not exist")]
    pub fn add(self, other: Self) -> Option<Self> {
        let (value, number) = match (self.base, other.base) {
            (_, Base::NUMBER) => (self, other),
            (Base::NUMBER, _) => (other, self),
            _ => return None,
        };
        let (residues, offsets) = (value.residues.add(number.residues), value.offsets.add(number.offsets));
        Some(Self { base: value.base, is_pure: value.is_pure && number.is_pure, residues, offsets }.reduced())
    }
    /// The difference of two values: exact where they count from the same base, which then drops out.
    pub fn subtract(self, other: Self) -> Option<Self> {
        if self.base == other.base && self.base != Base::UNKNOWN {
            let (residues, offsets) = (self.residues.add(other.residues.negate()), self.offsets.add(other.offsets.negate()));
            return Some(Self { base: Base::NUMBER, is_pure: self.is_pure && other.is_pure, residues, offsets }.reduced());
        }
        let (residues, offsets) = (other.residues.negate(), other.offsets.negate());
        (other.base == Base::NUMBER).then(|| self.add(Self { residues, offsets, ..other })).flatten()
    }
    /// So many times the value; of a value with a base only its residue is known.
    #[must_use]
    pub fn multiply(self, factor: i64) -> Self {
        if factor == 1 {
            return self;
        }
        if self.base != Base::NUMBER {
            return Self {
                base: Base::NUMBER,
                is_pure: false,
                residues: Residues::multiples_of(factor),
                offsets: Interval::FULL,
            };
        }
        let (residues, offsets) = (self.residues.multiply(factor), self.offsets.multiply(factor));
        Self { residues, offsets, ..self }.reduced()
    }
    /// `and` with a constant. A mask that only clears low bits leaves an address in its place, rounded down.
    pub fn and_constant(self, mask: i64) -> Option<Self> {
        if self.base == Base::NUMBER {
            let offsets = match (mask >= 0, self.offsets.low >= 0) {
                (true, _) => Interval::new(0, mask),
                (false, true) => Interval::new(0, self.offsets.high),
                _ => Interval::FULL,
            };
            let is_pure = self.is_pure || mask >= 0 && mask <= i64::from(u32::MAX);
            return Some(Self { base: Base::NUMBER, is_pure, residues: self.residues.and_constant(mask), offsets }.reduced());
        }
        if mask >= 0 && mask <= i64::from(u32::MAX) {
            let residues = Residues::ALL.and_constant(mask);
            return Some(Self { base: Base::NUMBER, is_pure: true, residues, offsets: Interval::new(0, mask) }.reduced());
        }
        // -2^n: clears n bits.
        let cleared = mask.wrapping_neg();
        let clears_low_bits = mask < 0 && cleared > 0 && cleared & (cleared - 1) == 0 && self.base != Base::UNKNOWN;
        clears_low_bits.then(|| {
            let offsets = self.offsets.add(Interval::new(1 - cleared, 0));
            Self { residues: Residues::ALL, offsets, ..self }.reduced()
        })
    }
    /// The low 32 bits, zero-extended.
    #[must_use]
    pub fn truncated(self) -> Self {
        let limit = i64::from(u32::MAX);
        if self.base != Base::NUMBER {
            return Self::bounded(0, limit);
        }
        if Interval::new(0, limit).includes(self.offsets) {
            return Self { is_pure: true, ..self };
        }
        Self { base: Base::NUMBER, is_pure: true, residues: self.residues, offsets: Interval::new(0, limit) }
    }
    /// The low bits, extended to 64.
    #[must_use]
    pub fn extended(self, bits: u32, is_signed: bool) -> Self {
        let (low, high) = match is_signed {
            true => (-(1i64 << (bits - 1)), (1i64 << (bits - 1)) - 1),
            false => (0, (1i64 << bits) - 1),
        };
        if self.base != Base::NUMBER {
            return Self::bounded(low, high);
        }
        if Interval::new(low, high).includes(self.offsets) {
            return Self { is_pure: true, ..self };
        }
        Self { base: Base::NUMBER, is_pure: true, residues: self.residues, offsets: Interval::new(low, high) }
    }
    /// What both allow, counted from the base that they share; `None` where they have none in common.
    pub fn join(self, other: Self, is_widening: bool) -> Option<Self> {
        if self.base != other.base || self.base == Base::UNKNOWN {
            return None;
        }
        let (residues, offsets) = match is_widening {
            true => (self.residues.widen(other.residues), self.offsets.widen(other.offsets)),
            false => (self.residues.union(other.residues), self.offsets.union(other.offsets)),
        };
        Some(Self { base: self.base, is_pure: self.is_pure && other.is_pure, residues, offsets })
    }
    /// The reduced product: a narrow interval bounds the residues.
    fn reduced(self) -> Self {
        let within = self.residues.intersection(Residues::of_range(self.offsets.low, self.offsets.high));
        Self { residues: within, ..self }
    }
    /// Whether it describes a number, given its base.
    pub fn describes(&self, base: u64, number: u64) -> bool {
        let distance = number.wrapping_sub(base) as i64;
        self.residues.contains(distance) && self.offsets.contains(distance)
    }
}

impl std::fmt::Debug for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(offset) = self.offset() {
            return write!(f, "{}{offset:+}", self.base);
        }
        write!(f, "{} + {:?}, mod 64 {:?}", self.base, self.offsets, self.residues)?;
        if self.is_pure { Ok(()) } else { f.write_str(", impure") }
    }
}
