//! Sets of residues modulo 64, one bit each: the domain of Debray, *Profile-Guided Context-Sensitive Program Analysis*, §3, with k = 64.
//!
//! **Meaning.** A set describes a 64-bit number `v` if `v mod 64` is in it. Machine arithmetic is modulo 2^64 and 64 divides 2^64, so taking
//! the residue commutes with addition, subtraction and multiplication however often they wrap. A truncation to 32, 16 or 8 bits changes
//! a number by a multiple of 2^8 and keeps its residue too. `and` with a constant acts on the low six bits alone.
//!
//! **Widening.** A set may grow 64 times; `widen` goes to the smallest residue class modulo a power of two that holds both sets, of
//! which there are chains of seven at most.

/// A set of residues modulo 64.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Residues(u64);

impl Residues {
    pub const ALL: Self = Self(u64::MAX);

    /// Of one number.
    pub const fn of(number: i64) -> Self {
        Self(1 << (number & 63))
    }
    /// Of all numbers of `low..=high`.
    pub fn of_range(low: i64, high: i64) -> Self {
        match high.checked_sub(low) {
            Some(span @ 0..63) => Self(((1u64 << (span + 1)) - 1).rotate_left((low & 63) as u32)),
            _ => Self::ALL,
        }
    }
    /// Of all multiples of a number.
    pub fn multiples_of(number: i64) -> Self {
        match number.trailing_zeros().min(6) {
            6 => Self(1),
            zeros => Self(stride(zeros)),
        }
    }
    pub fn bits(self) -> u64 {
        self.0
    }
    pub fn is_all(self) -> bool {
        self == Self::ALL
    }
    pub fn contains(self, number: i64) -> bool {
        self.0 >> (number & 63) & 1 != 0
    }
    pub fn is_disjoint(self, other: Self) -> bool {
        self.0 & other.0 == 0
    }
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// What both allow. The caller knows that both describe the same number, so it is not empty.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    #[must_use]
    pub fn add_constant(self, number: i64) -> Self {
        Self(self.0.rotate_left((number & 63) as u32))
    }
    /// All sums of one residue of each.
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "the operators of sets would be mistaken for those of numbers")]
    pub fn add(self, other: Self) -> Self {
        let (few, many) = if self.0.count_ones() <= other.0.count_ones() { (self, other) } else { (other, self) };
        if many.is_all() {
            return many;
        }
        few.iter().fold(Self(0), |sums, residue| sums.union(many.add_constant(residue)))
    }
    #[must_use]
    pub fn negate(self) -> Self {
        Self(self.0.reverse_bits().rotate_left(1))
    }
    #[must_use]
    pub fn multiply(self, factor: i64) -> Self {
        if self.is_all() {
            return Self::multiples_of(factor);
        }
        self.iter().fold(Self(0), |products, residue| products.union(Self::of(residue.wrapping_mul(factor))))
    }
    #[must_use]
    pub fn and_constant(self, mask: i64) -> Self {
        self.iter().fold(Self(0), |results, residue| results.union(Self::of(residue & mask)))
    }
    /// A superset of both, by steps of which there are few.
    #[must_use]
    pub fn widen(self, other: Self) -> Self {
        let both = self.union(other);
        if both == self {
            return self;
        }
        let first = i64::from(both.0.trailing_zeros());
        let differences = both.iter().fold(0, |bits, residue| bits | (residue ^ first));
        // Numbers that agree below a bit are one residue class modulo that power of two.
        let zeros = differences.trailing_zeros().min(6);
        if zeros == 6 { both } else { Self(stride(zeros)).add_constant(first) }
    }
    pub fn iter(self) -> impl Iterator<Item = i64> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let lowest = (rest != 0).then(|| i64::from(rest.trailing_zeros()));
            rest &= rest.wrapping_sub(1);
            lowest
        })
    }
}

/// The residues that are multiples of 2^zeros, zeros below 6.
fn stride(zeros: u32) -> u64 {
    u64::MAX / ((1u64 << (1u32 << zeros)) - 1).max(1)
}

impl std::fmt::Debug for Residues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_all() {
            return f.write_str("any");
        }
        f.debug_set().entries(self.iter()).finish()
    }
}
