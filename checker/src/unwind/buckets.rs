//! Where to look in a sorted list of addresses.
//!
//! The rules at an address are asked for at nearly every step of the walk, and a binary search through a million of them misses the caches each time. Here is, for each stretch of addresses of
//! one size, how many of the list come before it: that leaves a few to look at. There are at most as many stretches as entries, whatever the addresses are.

/// The smallest stretch: 64 bytes.
const SHIFT_MIN: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Buckets {
    base: u64,
    shift: u32,
    /// How many entries begin before each stretch.
    before: Vec<u32>,
}

impl Buckets {
    /// Of starts that don't go down.
    pub(super) fn of(starts: impl ExactSizeIterator<Item = u64> + Clone) -> Self {
        let (Some(base), Some(last)) = (starts.clone().next(), starts.clone().last()) else { return Self::default() };
        let mut shift = SHIFT_MIN;
        while (last - base) >> shift > starts.len() as u64 {
            shift += 1;
        }
        let mut before = Vec::with_capacity(((last - base) >> shift) as usize + 2);
        for (number, start) in (0..).zip(starts) {
            let bucket = ((start - base) >> shift) as usize;
            before.resize(before.len().max(bucket + 1), number);
        }
        Self { base, shift, before }
    }

    /// The range of a list of `len` in which the first entry behind an address is, or the end of which is that.
    pub(super) fn range(&self, address: u64, len: usize) -> std::ops::Range<usize> {
        let Some(offset) = address.checked_sub(self.base) else { return 0..0 };
        let bucket = (offset >> self.shift) as usize;
        let at = |bucket: usize| self.before.get(bucket).map_or(len, |&before| before as usize);
        at(bucket)..at(bucket.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_found_as_a_search_through_all_finds_it() {
        let lists: [&[u64]; 6] = [
            &[],
            &[5],
            &[7, 7, 7, 300],
            &[0, 1, 63, 64, 65, 128, 128, 4096, 4097],
            &[100, 164, 1 << 40, u64::MAX - 1, u64::MAX],
            &[0, u64::MAX],
        ];
        for list in lists {
            let buckets = Buckets::of(list.iter().copied());
            let near = list.iter().flat_map(|&start| [start.saturating_sub(1), start, start.saturating_add(1)]);
            for address in near.chain([0, 2, 90, 200, 5000, 1 << 39, 1 << 41, u64::MAX]) {
                let range = buckets.range(address, list.len());
                let found = range.start + list[range].partition_point(|&start| start <= address);
                assert_eq!(found, list.partition_point(|&start| start <= address), "{address:#x} in {list:x?}");
            }
        }
    }
}
