//! A number for code indexes, in less room than a word for each byte of code.
//!
//! **Method.** Linear decoding of the frame descriptions, and of what lies between them, meets nearly every instruction that a walk comes to. [`Starts`] has a bit for each of these and, with each word of
//! bits, how many come before it; so a start is found among all starts by counting bits, and [`Numbers`] keeps a word for each start. An index that is none of them (an
//! instruction that begins inside of another) has its number in a hash map.
//!
//! **Invariant.** What is asked and answered does not depend on which indexes are starts: only how much room that takes does.

use std::sync::Arc;

use rustc_hash::FxHashMap;

const BITS: usize = 64;

#[derive(Copy, Clone, Default)]
struct Word {
    bits: u64,
    /// Starts in all words before.
    before: u32,
}

/// Where linear decoding met instructions, by code index.
#[derive(Default)]
pub(crate) struct Starts {
    words: Vec<Word>,
    count: usize,
}

impl Starts {
    /// Of indexes below `size`.
    pub(crate) fn of(size: usize, indexes: impl Iterator<Item = usize>) -> Self {
        let mut words = vec![Word::default(); size.div_ceil(BITS)];
        for index in indexes {
            words[index / BITS].bits |= 1 << (index % BITS);
        }
        let mut count = 0;
        for word in &mut words {
            word.before = count;
            count += word.bits.count_ones();
        }
        Self { words, count: count as usize }
    }

    /// How many starts come before this one.
    fn place(&self, index: usize) -> Option<usize> {
        let word = self.words.get(index / BITS)?;
        let bit = 1u64 << (index % BITS);
        (word.bits & bit != 0).then(|| word.before as usize + (word.bits & (bit - 1)).count_ones() as usize)
    }
}

/// Numbers by code index.
pub(crate) struct Numbers {
    starts: Arc<Starts>,
    /// By start, the number plus one; 0 for none.
    of_starts: Vec<u32>,
    others: FxHashMap<u32, u32>,
}

impl Numbers {
    pub(crate) fn new(starts: Arc<Starts>) -> Self {
        Self { of_starts: vec![0; starts.count], starts, others: FxHashMap::default() }
    }

    pub(crate) fn get(&self, index: usize) -> Option<usize> {
        let number = match self.starts.place(index) {
            Some(place) => self.of_starts[place].checked_sub(1),
            None => self.others.get(&(index as u32)).copied(),
        };
        number.map(|number| number as usize)
    }

    /// Numbers are indexes of code, which are below `u32::MAX`.
    pub(crate) fn set(&mut self, index: usize, number: usize) {
        match self.starts.place(index) {
            Some(place) => self.of_starts[place] = number as u32 + 1,
            None => drop(self.others.insert(index as u32, number as u32)),
        }
    }

    pub(crate) fn clear(&mut self, index: usize) {
        match self.starts.place(index) {
            Some(place) => self.of_starts[place] = 0,
            None => drop(self.others.remove(&(index as u32))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_as_if_there_were_a_word_for_each_index() {
        const SIZE: usize = 1000;
        let is_start =
            [|_: &usize| false, |_: &usize| true, |index: &usize| index % 7 == 3, |index: &usize| (60..70).contains(index)];
        for is_start in is_start {
            let mut numbers = Numbers::new(Arc::new(Starts::of(SIZE, (0..SIZE).filter(is_start))));
            let mut words = vec![None; SIZE];
            for step in 0..5000usize {
                let index = step * 379 % SIZE;
                if step % 3 == 2 {
                    numbers.clear(index);
                    words[index] = None;
                } else {
                    numbers.set(index, step);
                    words[index] = Some(step);
                }
            }
            let kept: Vec<Option<usize>> = (0..SIZE).map(|index| numbers.get(index)).collect();
            assert_eq!(kept, words);
        }
    }

    #[test]
    fn an_index_behind_all_code_has_a_number_only_once_it_got_one() {
        let mut numbers = Numbers::new(Arc::default());
        assert_eq!(numbers.get(5), None);
        numbers.set(5, 0);
        assert_eq!(numbers.get(5), Some(0));
    }
}
