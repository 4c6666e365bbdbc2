//! The domain against plain arithmetic on the numbers that it describes.

use proptest::prelude::*;

use super::{Base, Interval, Residues, Value};

/// A value, its base's number, and a number that it describes.
fn described() -> impl Strategy<Value = (Value, u64, u64)> {
    let base = prop_oneof![Just((Base::NUMBER, 0u64)), any::<u64>().prop_map(|n| (Base::FRAME, n))];
    let distances = prop_oneof![(-200i64..200, 0i64..100), (any::<i64>(), 0i64..1000)];
    (base, distances, any::<u64>(), any::<bool>(), any::<bool>()).prop_map(
        |((base, at), (low, span), pick, is_bounded, is_pure)| {
            let high = low.saturating_add(span);
            let distance = low + (pick % (high.abs_diff(low) + 1)) as i64;
            let offsets = if is_bounded { Interval::new(low, high) } else { Interval::FULL };
            let residues = Residues::of(distance).union(Residues::of(pick as i64)).intersection(if is_bounded {
                Residues::of_range(low, high)
            } else {
                Residues::ALL
            });
            (Value { base, is_pure, residues, offsets }, at, at.wrapping_add(distance as u64))
        },
    )
}

fn base_of(value: &Value, number: u64) -> u64 {
    if value.base == Base::NUMBER { 0 } else { number }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn what_is_described_before_is_described_after((v, base, n) in described(), (w, other, m) in described(), c in any::<i64>()) {
        prop_assert!(v.describes(base, n));
        prop_assert!(v.add_constant(c).describes(base, n.wrapping_add(c as u64)));
        if let Some(sum) = v.add(w) {
            let at = if v.base == Base::NUMBER { other } else { base };
            prop_assert!(sum.describes(base_of(&sum, at), n.wrapping_add(m)));
        }
        // Two values of one base have the same number for it.
        let m = if v.base == w.base && v.base != Base::NUMBER { m.wrapping_sub(other).wrapping_add(base) } else { m };
        if let Some(difference) = v.subtract(w) {
            prop_assert!(difference.describes(base_of(&difference, base), n.wrapping_sub(m)));
        }
    }

    #[test]
    fn products_masks_and_narrow_results_are_described((v, base, n) in described(), factor in prop_oneof![-70i64..70, any::<i64>()], mask in prop_oneof![-70i64..5000, any::<i64>()]) {
        let product = v.multiply(factor);
        prop_assert!(product.describes(base_of(&product, base), n.wrapping_mul(factor as u64)));
        if let Some(masked) = v.and_constant(mask) {
            prop_assert!(masked.describes(base_of(&masked, base), n & mask as u64));
        }
        let low = v.truncated();
        prop_assert!(low.describes(base_of(&low, base), u64::from(n as u32)));
        for (bits, signed, unsigned) in [(8, n as i8 as u64, n as u8 as u64), (16, n as i16 as u64, n as u16 as u64), (32, n as i32 as u64, n as u32 as u64)] {
            let value = v.extended(bits, true);
            prop_assert!(value.describes(base_of(&value, base), signed));
            let value = v.extended(bits, false);
            prop_assert!(value.describes(base_of(&value, base), unsigned));
        }
    }

    #[test]
    fn a_meet_describes_what_either_does((v, base, n) in described(), (w, _, _) in described(), is_widening in any::<bool>()) {
        if let Some(both) = v.join(w, is_widening) {
            prop_assert!(both.describes(base, n));
        }
        if let Some(both) = w.join(v, is_widening) {
            prop_assert!(both.describes(base, n));
        }
    }

    #[test]
    fn residues_are_those_of_the_naive_set(a in any::<u64>(), b in any::<u64>(), c in any::<i64>(), low in -200i64..200, span in 0i64..80) {
        let set = |bits: u64| (0..64i64).filter(move |r| bits >> r & 1 != 0);
        let residues = |bits: u64| set(bits).fold(Residues::of(0).intersection(Residues::of(1)), |s, r| s.union(Residues::of(r)));
        let (x, y) = (residues(a), residues(b));
        prop_assert_eq!(x.bits(), a);
        let naive = |f: &dyn Fn(i64, i64) -> i64| set(a).flat_map(|r| set(b).map(move |s| (r, s))).fold(0u64, |bits, (r, s)| bits | 1 << (f(r, s) & 63));
        prop_assert_eq!(x.add(y).bits(), naive(&|r, s| r + s));
        prop_assert_eq!(x.negate().bits(), set(a).fold(0, |bits, r| bits | 1 << (-r & 63)));
        prop_assert_eq!(x.add_constant(c).bits(), set(a).fold(0, |bits, r| bits | 1 << (r.wrapping_add(c) & 63)));
        prop_assert_eq!(Residues::of_range(low, low + span).bits(), (low..=low + span).fold(0, |bits, r| bits | 1 << (r & 63)));
        let wide = x.widen(y);
        prop_assert_eq!(wide.union(x).union(y), wide);
        prop_assert_eq!(wide.widen(y), wide);
    }
}

#[test]
fn residues_widen_in_at_most_seven_steps() {
    let mut set = Residues::of(0);
    let mut steps = 0;
    for number in [32, 16, 8, 4, 2, 1, 3, 5, 63] {
        let next = set.widen(Residues::of(number));
        steps += usize::from(next != set);
        set = next;
    }
    assert!(set.is_all() && steps <= 7, "{steps} steps to {set:?}");
}

#[test]
fn an_interval_that_leaves_the_signed_range_says_nothing() {
    let near = Interval::new(i64::MAX - 3, i64::MAX - 1);
    assert!(near.add(Interval::of(2)).is_full() && near.multiply(2).is_full() && Interval::of(i64::MIN).negate().is_full());
    assert_eq!(near.add(Interval::of(-10)), Interval::new(i64::MAX - 13, i64::MAX - 11));
}
