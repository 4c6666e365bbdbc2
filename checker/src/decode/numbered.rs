//! What was decoded, by code index, in one byte each.
//!
//! **Problem.** There is an answer for each byte of code, in the input and in the output, since an instruction may begin at any. Sixteen bits each, of which three in four say
//! nothing, were a quarter of all that the checker keeps.
//!
//! **Method.** A packed instruction is its length, its kind, and where a displacement lies in it. Of the 8,192 such words compilers make some 200: these have a number of eight bits. Any
//! other one is kept aside, with its index.
//!
//! **Invariant.** What is stored and read does not depend on which words have a number. The cache is filled by several threads: relaxed stores are enough, because whoever
//! decodes an address decodes the same bytes to the same value; a word is aside before its index says so, and who does not find it decodes again.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use rustc_hash::FxHashMap;

use super::{INVALID, KINDS, Kind, UNKNOWN};

/// Packed words.
const WORDS: usize = 1 << 13;
const NUMBER_OF_UNKNOWN: u8 = 0;
const NUMBER_OF_INVALID: u8 = u8::MAX;
const ASIDE: u8 = u8::MAX - 1;

/// By packed word, its number.
static NUMBERS: [u8; WORDS] = numbers();
/// By number, the packed word.
static PACKED: [u16; 256] = packed();

/// Packed instructions by code index.
pub(super) struct Numbered {
    numbers: Vec<AtomicU8>,
    aside: Mutex<FxHashMap<u32, u16>>,
}

impl Numbered {
    /// Nothing is known of so many indexes.
    pub(super) fn new(size: usize) -> Self {
        Self { numbers: (0..size).map(|_| AtomicU8::new(NUMBER_OF_UNKNOWN)).collect(), aside: Mutex::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn get(&self, index: usize) -> u16 {
        match self.numbers[index].load(Ordering::Relaxed) {
            ASIDE => self.aside(index).unwrap_or(UNKNOWN),
            number => PACKED[usize::from(number)],
        }
    }

    pub(super) fn set(&self, index: usize, packed: u16) {
        let number = match packed {
            INVALID => NUMBER_OF_INVALID,
            _ => NUMBERS.get(usize::from(packed)).copied().unwrap_or(ASIDE),
        };
        if number == ASIDE {
            let mut aside = self.aside.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            aside.insert(index as u32, packed);
        }
        self.numbers[index].store(number, Ordering::Relaxed);
    }

    #[cold]
    fn aside(&self, index: usize) -> Option<u16> {
        let aside = self.aside.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        aside.get(&(index as u32)).copied()
    }
}

/// Whether an instruction like this is one of those that have a number.
const fn is_common(kind: Kind, len: usize, disp: usize) -> bool {
    if disp == 0 {
        let (shortest, longest) = match kind {
            Kind::Plain | Kind::Nop => (1, 15),
            Kind::Lea | Kind::IndirectJump | Kind::IndirectCall => (2, 15),
            Kind::Jump | Kind::Branch | Kind::Loop => (2, 10),
            Kind::Call => (5, 10),
            Kind::Return => (1, 8),
            Kind::Stop => (1, 10),
            Kind::Trap => (1, 4),
            Kind::EndBranch => (4, 4),
        };
        return shortest <= len && len <= longest;
    }
    // An opcode and ModRM come before it, and what is behind it may be an immediate.
    let has_room = disp >= 2 && disp + 4 <= len;
    match kind {
        Kind::Plain => has_room && matches!(len - disp, 4 | 5 | 6 | 8),
        Kind::Nop | Kind::Lea | Kind::IndirectJump | Kind::IndirectCall => has_room && len - disp == 4,
        _ => false,
    }
}

const fn packed() -> [u16; 256] {
    let mut packed = [UNKNOWN; 256];
    packed[NUMBER_OF_INVALID as usize] = INVALID;
    let (mut word, mut number) = (1, NUMBER_OF_UNKNOWN as usize + 1);
    while word < WORDS {
        let (len, kind, disp) = (word & 15, word >> 4 & 31, word >> 9);
        if kind < KINDS.len() && is_common(KINDS[kind], len, disp) && number < ASIDE as usize {
            packed[number] = word as u16;
            number += 1;
        }
        word += 1;
    }
    packed
}

const fn numbers() -> [u8; WORDS] {
    let packed = packed();
    let mut numbers = [ASIDE; WORDS];
    numbers[UNKNOWN as usize] = NUMBER_OF_UNKNOWN;
    let mut number = NUMBER_OF_UNKNOWN as usize + 1;
    while number < ASIDE as usize {
        if packed[number] != UNKNOWN {
            numbers[packed[number] as usize] = number as u8;
        }
        number += 1;
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::super::{Inst, pack, unpack};
    use super::*;

    #[test]
    fn each_instruction_is_read_as_it_was_stored() {
        let all =
            KINDS.iter().flat_map(|&kind| (1..=15u8).flat_map(move |len| (0..=15u8).map(move |disp| Inst { len, kind, disp })));
        let all: Vec<u16> = all.map(pack).chain([UNKNOWN, INVALID]).collect();
        let numbered = Numbered::new(all.len());
        assert!((0..all.len()).all(|index| numbered.get(index) == UNKNOWN));
        all.iter().enumerate().for_each(|(index, &packed)| numbered.set(index, packed));
        for (index, &packed) in all.iter().enumerate() {
            assert_eq!(numbered.get(index), packed, "{:?}", unpack(packed));
        }
    }

    #[test]
    fn what_is_common_has_numbers_and_they_suffice() {
        let is_common = |word: &usize| KINDS.get(*word >> 4 & 31).is_some_and(|&kind| is_common(kind, *word & 15, *word >> 9));
        let with_number = (0..WORDS).filter(is_common).filter(|&word| NUMBERS[word] != ASIDE).count();
        assert_eq!(with_number, (0..WORDS).filter(is_common).count());
        assert_eq!(PACKED.iter().filter(|&&packed| packed != UNKNOWN && packed != INVALID).count(), with_number);
    }
}
