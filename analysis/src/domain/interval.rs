//! Intervals of distances: exact bounds where they are known.
//!
//! **Meaning.** An interval describes a distance `d` (modulo 2^64) if `d`, read as a signed number, lies within the bounds. `FULL` allows everything.
//! There are no half-open ones: an increasing pointer in a loop wraps around sooner or later as far as arithmetic can tell, so a bound that
//! grows is given up on both sides. An operation whose bounds leave the signed range gives `FULL`: the number may have wrapped.

/// Signed bounds, both included.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct Interval {
    pub low: i64,
    pub high: i64,
}

impl Interval {
    pub const FULL: Self = Self { low: i64::MIN, high: i64::MAX };

    pub const fn of(number: i64) -> Self {
        Self { low: number, high: number }
    }
    pub const fn new(low: i64, high: i64) -> Self {
        Self { low, high }
    }
    pub fn is_full(self) -> bool {
        self == Self::FULL
    }
    /// The one number, if it is one.
    pub fn single(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }
    pub fn contains(self, number: i64) -> bool {
        self.low <= number && number <= self.high
    }
    pub fn includes(self, other: Self) -> bool {
        self.low <= other.low && other.high <= self.high
    }
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
    #[must_use]
    #[expect(clippy::should_implement_trait, reason = "the operators of intervals would be mistaken for those of numbers")]
    pub fn add(self, other: Self) -> Self {
        if self.is_full() || other.is_full() {
            return Self::FULL;
        }
        Self::checked(self.low.checked_add(other.low), self.high.checked_add(other.high))
    }
    #[must_use]
    pub fn negate(self) -> Self {
        if self.is_full() {
            return self;
        }
        Self::checked(self.high.checked_neg(), self.low.checked_neg())
    }
    #[must_use]
    pub fn multiply(self, factor: i64) -> Self {
        if self.is_full() {
            return self;
        }
        let (a, b) = (self.low.checked_mul(factor), self.high.checked_mul(factor));
        if factor >= 0 { Self::checked(a, b) } else { Self::checked(b, a) }
    }
    /// A superset of both that grows only once.
    #[must_use]
    pub fn widen(self, other: Self) -> Self {
        if self.includes(other) { self } else { Self::FULL }
    }
    fn checked(low: Option<i64>, high: Option<i64>) -> Self {
        match (low, high) {
            (Some(low), Some(high)) => Self { low, high },
            _ => Self::FULL,
        }
    }
}

impl std::fmt::Debug for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.is_full(), self.single()) {
            (true, _) => f.write_str("any"),
            (_, Some(number)) => write!(f, "{number}"),
            _ => write!(f, "{}..={}", self.low, self.high),
        }
    }
}
