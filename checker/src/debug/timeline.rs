//! What holds at an address, as one number.
//!
//! **Method.** What holds on an interval of addresses (a row, the range of an entry, an expression of a location list) has a key, which is a hash. The sum of
//! the keys of all intervals that contain an address says which ones do: two sums are the same if and only if the same keys are summed up, but for collisions of 64 bits.
//! The sums are kept where they change, so one is found by binary search.
//!
//! **Invariant.** Keys that hold twice at an address count twice; so who collects intervals joins those of one key first ([`join`]).

use rayon::prelude::*;

/// Something that holds from `start` to `end`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval {
    pub(super) key: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The entry that says so, for messages.
    pub(super) die: u64,
}

/// Sums of keys by address.
pub(super) struct Timeline {
    /// From each address on, up to the next one.
    sums: Vec<(u64, u64)>,
}

impl Timeline {
    pub(super) fn of(intervals: &[Interval]) -> Self {
        let mut changes: Vec<(u64, u64)> = Vec::with_capacity(2 * intervals.len());
        for interval in intervals {
            changes.push((interval.start, interval.key));
            changes.push((interval.end, interval.key.wrapping_neg()));
        }
        changes.par_sort_unstable_by_key(|&(address, _)| address);
        let mut sum = 0u64;
        for (_, change) in &mut changes {
            sum = sum.wrapping_add(*change);
            *change = sum;
        }
        // Of the sums at one address the last is that of all.
        changes.reverse();
        changes.dedup_by_key(|&mut (address, _)| address);
        changes.reverse();
        Self { sums: changes }
    }

    /// What holds at an address.
    pub(super) fn at(&self, address: u64) -> u64 {
        let after = self.sums.partition_point(|&(start, _)| start <= address);
        self.sums[..after].last().map_or(0, |&(_, sum)| sum)
    }
}

/// Joins what overlaps or meets and has the same key, from `first` on.
pub(super) fn join(intervals: &mut Vec<Interval>, first: usize) {
    if intervals.len() - first < 2 {
        return;
    }
    intervals[first..].sort_unstable();
    let mut kept = first;
    for next in first + 1..intervals.len() {
        let interval = intervals[next];
        let last = &mut intervals[kept];
        if last.key == interval.key && interval.start <= last.end {
            last.end = last.end.max(interval.end);
        } else {
            kept += 1;
            intervals[kept] = interval;
        }
    }
    intervals.truncate(kept + 1);
}

/// Two numbers as one in which each of their bits counts (the finalizer of `SplitMix64`).
pub(super) fn mix(a: u64, b: u64) -> u64 {
    let finish = |mut x: u64| {
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    finish(finish(a.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ b)
}

/// The same for bytes.
pub(super) fn mix_bytes(a: u64, bytes: &[u8]) -> u64 {
    let mut hash = mix(a, bytes.len() as u64);
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(word));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(key: u64, start: u64, end: u64) -> Interval {
        Interval { key, start, end, die: 0 }
    }

    #[test]
    fn the_sum_at_an_address_is_that_of_the_intervals_that_contain_it() {
        let intervals: Vec<Interval> = (0..200u64)
            .map(|n| {
                let start = mix(n, 1) % 300;
                interval(mix(n, 2), start, start + mix(n, 3) % 40)
            })
            .collect();
        let timeline = Timeline::of(&intervals);
        for address in 0..400 {
            let holds = intervals.iter().filter(|i| (i.start..i.end).contains(&address));
            assert_eq!(timeline.at(address), holds.fold(0, |sum: u64, i| sum.wrapping_add(i.key)), "{address}");
        }
        assert_eq!(Timeline::of(&[]).at(7), 0);
    }

    #[test]
    fn what_meets_is_joined_if_it_has_the_same_key() {
        let mut intervals = vec![interval(9, 0, 50), interval(1, 5, 8), interval(2, 0, 3), interval(1, 0, 5), interval(1, 9, 10)];
        join(&mut intervals, 1);
        assert_eq!(intervals, [interval(9, 0, 50), interval(1, 0, 8), interval(1, 9, 10), interval(2, 0, 3)]);
    }

    #[test]
    fn each_bit_of_what_is_mixed_counts() {
        let all: Vec<u64> = (0..64).flat_map(|bit| [mix(1 << bit, 0), mix(0, 1 << bit)]).collect();
        let mut distinct = all.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len());
        assert_ne!(mix_bytes(0, b"ab\0"), mix_bytes(0, b"ab"));
    }
}
