//! Where to look in a sorted list of addresses.
//!
//! **Problem.** A large program asks a million times which block is at an address. A binary search over all blocks touches some twenty cache lines each.
//!
//! **Method.** The range of addresses is cut into buckets of equal size, about as many as there are addresses; of each the position of its
//! first address is kept. A search then looks at one bucket only.
//!
//! **Invariant.** The list is the one that the index was made of. An index of nothing (`default`) looks through the whole list.

use crate::address::Va;

#[derive(Clone, Debug, Default)]
pub struct AddressIndex {
    low: u64,
    shift: u32,
    /// By bucket, the number of addresses before it; one more than there are buckets.
    before: Vec<u32>,
}

impl AddressIndex {
    /// `addresses` must ascend.
    pub fn new(addresses: impl ExactSizeIterator<Item = Va> + Clone) -> Self {
        let (Some(first), Some(last)) = (addresses.clone().next(), addresses.clone().last()) else { return Self::default() };
        let (len, span) = (addresses.len() as u64, last.0 - first.0);
        let shift = (0..64).find(|&shift| span >> shift <= len).unwrap_or(63);
        let mut before = vec![0; (span >> shift) as usize + 2];
        for va in addresses {
            before[((va.0 - first.0) >> shift) as usize + 1] += 1;
        }
        for bucket in 1..before.len() {
            before[bucket] += before[bucket - 1];
        }
        Self { low: first.0, shift, before }
    }

    /// How many of the `len` addresses, each given by `at`, are not above `va`.
    pub fn count_up_to(&self, va: Va, len: usize, at: impl Fn(usize) -> Va) -> usize {
        let (mut low, mut high) = match (self.before.as_slice(), va.0.checked_sub(self.low)) {
            ([], _) => (0, len),
            (_, None) => (0, 0),
            (before, Some(offset)) => {
                let bucket = usize::try_from(offset >> self.shift).unwrap_or(usize::MAX).min(before.len() - 2);
                (before[bucket] as usize, before[bucket + 1] as usize)
            }
        };
        while low < high {
            let middle = low + (high - low) / 2;
            match at(middle) <= va {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        low
    }
}

#[cfg(test)]
mod tests {
    //! The index against a plain search.

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_index_finds_what_a_search_through_the_whole_list_finds(
            mut addresses in prop::collection::vec(prop_oneof![0..2_000u64, any::<u64>()], 0..60),
            asked in prop::collection::vec(prop_oneof![0..2_100u64, any::<u64>()], 1..40),
        ) {
            addresses.sort();
            addresses.dedup();
            let index = AddressIndex::new(addresses.iter().map(|&a| Va(a)));
            for va in asked.into_iter().chain(addresses.clone()) {
                let expected = addresses.partition_point(|&a| a <= va);
                prop_assert_eq!(index.count_up_to(Va(va), addresses.len(), |i| Va(addresses[i])), expected);
            }
        }
    }
}
