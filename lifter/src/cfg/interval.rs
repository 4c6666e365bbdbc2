//! Sets of machine words that a bound describes: runs of consecutive values modulo a power of two.
//!
//! **Why modulo.** A switch's bound is one unsigned comparison, but what precedes it often is signed, or excludes one value, or subtracts the
//! first case. All of these are runs on the circle of 2^n values, and a constant added to a run gives a run. Every operation returns a
//! superset of the exact result; that is all that soundness needs.

/// The run `start, start + 1, ..., start + extra` modulo `2^bits`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    bits: u32,
    start: u64,
    extra: u64,
}

/// `2^bits - 1`.
pub(crate) fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits.clamp(1, 64))
}

impl Interval {
    pub(crate) fn full(bits: u32) -> Self {
        Self { bits, start: 0, extra: mask(bits) }
    }
    /// From `first` up to `last`, around the end if need be.
    pub(crate) fn new(bits: u32, first: u64, last: u64) -> Self {
        let (start, last) = (first & mask(bits), last & mask(bits));
        Self { bits, start, extra: last.wrapping_sub(start) & mask(bits) }
    }
    pub(crate) fn constant(bits: u32, value: u64) -> Self {
        Self::new(bits, value, value)
    }
    pub(crate) fn bits(self) -> u32 {
        self.bits
    }
    pub(crate) fn is_full(self) -> bool {
        self.extra == mask(self.bits)
    }
    fn last(self) -> u64 {
        self.start.wrapping_add(self.extra) & mask(self.bits)
    }
    fn is_wrapped(self) -> bool {
        self.last() < self.start
    }
    /// The largest member as an unsigned number.
    pub(crate) fn max(self) -> u64 {
        if self.is_wrapped() { mask(self.bits) } else { self.last() }
    }
    fn holds(self, value: u64) -> bool {
        value.wrapping_sub(self.start) & mask(self.bits) <= self.extra
    }
    pub(crate) fn contains(self, other: Interval) -> bool {
        let offset = other.start.wrapping_sub(self.start) & mask(self.bits);
        self.is_full() || offset <= self.extra && other.extra <= self.extra - offset
    }

    /// The smaller run that covers both.
    pub(crate) fn union(self, other: Interval) -> Interval {
        let candidates =
            [self, other, Self::new(self.bits, self.start, other.last()), Self::new(self.bits, other.start, self.last())];
        let covers = |run: &Interval| run.contains(self) && run.contains(other);
        candidates.into_iter().filter(covers).min_by_key(|run| run.extra).unwrap_or(Self::full(self.bits))
    }

    /// What both hold, or more where that would be two runs; `None` if there is no such value.
    pub(crate) fn intersection(self, other: Interval) -> Option<Interval> {
        let smaller = if self.extra <= other.extra { self } else { other };
        match (self.holds(other.start), other.holds(self.start)) {
            (false, false) => None,
            (true, true) if self.start != other.start => Some(smaller),
            (true, _) => {
                let room = self.extra - (other.start.wrapping_sub(self.start) & mask(self.bits));
                Some(Interval { extra: other.extra.min(room), ..other })
            }
            (false, true) => {
                let room = other.extra - (self.start.wrapping_sub(other.start) & mask(self.bits));
                Some(Interval { extra: self.extra.min(room), ..self })
            }
        }
    }

    pub(crate) fn plus(self, value: u64) -> Interval {
        Interval { start: self.start.wrapping_add(value) & mask(self.bits), ..self }
    }
    pub(crate) fn sum(self, other: Interval) -> Interval {
        match self.extra.checked_add(other.extra).filter(|&extra| extra < mask(self.bits)) {
            Some(extra) => Interval { extra, ..self.plus(other.start) },
            None => Self::full(self.bits),
        }
    }
    pub(crate) fn negated(self) -> Interval {
        Interval { start: 0u64.wrapping_sub(self.last()) & mask(self.bits), ..self }
    }
    pub(crate) fn times(self, factor: u64) -> Interval {
        let fits = self.last().checked_mul(factor).is_some_and(|last| last <= mask(self.bits)) && !self.is_wrapped();
        match fits {
            true => Self::new(self.bits, self.start * factor, self.last() * factor),
            false => Self::full(self.bits),
        }
    }
    pub(crate) fn shifted_right(self, count: u32) -> Interval {
        match self.is_wrapped() || count >= self.bits {
            true => Self::new(self.bits, 0, mask(self.bits).checked_shr(count).unwrap_or(0)),
            false => Self::new(self.bits, self.start >> count, self.last() >> count),
        }
    }
    /// All members with only the bits of `kept` left: no more than either.
    pub(crate) fn and(self, kept: Interval) -> Interval {
        Self::new(self.bits, 0, self.max().min(kept.max()))
    }

    /// The low bits.
    pub(crate) fn truncated(self, bits: u32) -> Interval {
        match bits >= self.bits {
            true => self,
            false if self.extra >= mask(bits) => Self::full(bits),
            false => Interval { bits, start: self.start & mask(bits), extra: self.extra },
        }
    }
    /// With zeros in front.
    pub(crate) fn zero_extended(self, bits: u32) -> Interval {
        match self.is_wrapped() {
            _ if bits <= self.bits => self.truncated(bits),
            true => Interval { bits, start: 0, extra: mask(self.bits) },
            false => Interval { bits, ..self },
        }
    }
    /// With copies of the sign in front.
    pub(crate) fn sign_extended(self, bits: u32) -> Interval {
        if bits <= self.bits {
            return self.truncated(bits);
        }
        let bias = 1u64 << (self.bits - 1);
        // On the biased circle the signed numbers are ascending from zero.
        let biased = self.plus(bias);
        let biased = if biased.is_wrapped() { Self::full(self.bits) } else { biased };
        Interval { bits, ..biased }.plus(0u64.wrapping_sub(bias))
    }
}

#[cfg(test)]
mod tests {
    //! Every operation against the exact result, for all runs of a few bits.

    use super::*;

    fn members(run: Interval) -> Vec<u64> {
        (0..=mask(run.bits)).filter(|&v| run.holds(v)).collect()
    }

    fn all_runs(bits: u32) -> Vec<Interval> {
        let values = 0..=mask(bits);
        values.clone().flat_map(|first| values.clone().map(move |last| Interval::new(bits, first, last))).collect()
    }

    /// Whether `run` holds at least what `exact` lists.
    fn covers(run: Interval, exact: impl IntoIterator<Item = u64>) -> bool {
        exact.into_iter().all(|v| run.holds(v & mask(run.bits)))
    }

    #[test]
    fn every_operation_on_two_runs_covers_the_exact_result() {
        for a in all_runs(3) {
            for b in all_runs(3) {
                let (left, right) = (members(a), members(b));
                let both: Vec<u64> = left.iter().copied().filter(|&v| b.holds(v)).collect();
                match a.intersection(b) {
                    Some(run) => assert!(covers(run, both), "{a:?} and {b:?}"),
                    None => assert!(both.is_empty(), "{a:?} and {b:?}"),
                }
                assert!(covers(a.union(b), left.iter().chain(&right).copied()), "{a:?} or {b:?}");
                assert_eq!(a.contains(b), right.iter().all(|v| left.contains(v)), "{a:?} contains {b:?}");
                for &x in &left {
                    assert!(covers(a.sum(b), right.iter().map(|y| x + y)), "{a:?} + {b:?}");
                    assert!(covers(a.and(b), right.iter().map(|y| x & y)), "{a:?} & {b:?}");
                }
            }
        }
    }

    #[test]
    fn every_operation_on_one_run_covers_the_exact_result() {
        for a in all_runs(4) {
            let left = members(a);
            let signed = |v: u64| if v >= 8 { v | !15 } else { v };
            assert!(covers(a.negated(), left.iter().map(|v| v.wrapping_neg())));
            assert!(covers(a.truncated(2), left.iter().copied()));
            assert!(covers(a.zero_extended(6), left.iter().copied()));
            assert!(covers(a.sign_extended(6), left.iter().map(|&v| signed(v))));
            assert_eq!(a.max(), left.iter().copied().max().unwrap_or(0));
            for k in 0..5 {
                assert!(covers(a.plus(k), left.iter().map(|v| v + k)));
                assert!(covers(a.times(k), left.iter().map(|v| v * k)));
                assert!(covers(a.shifted_right(k as u32), left.iter().map(|v| v >> k)));
            }
        }
    }

    #[test]
    fn a_run_through_the_sign_is_exact_as_a_signed_number() {
        let run = Interval::new(32, 0xffff_fffe, 3).sign_extended(64);
        assert_eq!(run, Interval::new(64, 0u64.wrapping_sub(2), 3));
        assert_eq!(run.plus(2).max(), 5);
    }
}
