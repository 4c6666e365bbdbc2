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

use super::{INVALID, Inst, KINDS, Kind, UNKNOWN, unpack};

/// Packed words.
const WORDS: usize = 1 << 13;
const NUMBER_OF_UNKNOWN: u8 = 0;
const NUMBER_OF_INVALID: u8 = u8::MAX;
const ASIDE: u8 = u8::MAX - 1;

/// By packed word, its number.
static NUMBERS: [u8; WORDS] = numbers();

/// By number, the instruction: walks ask for little else.
static INSTS: [Option<Inst>; 256] = insts();

/// What is known of a code index.
pub(super) enum Known {
    /// It was decoded, and may be no instruction.
    Decoded(Option<Inst>),
    Nothing,
}

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

    #[inline]
    pub(super) fn get(&self, index: usize) -> Known {
        match self.numbers[index].load(Ordering::Relaxed) {
            NUMBER_OF_UNKNOWN => Known::Nothing,
            ASIDE => self.aside(index).map_or(Known::Nothing, |packed| Known::Decoded(unpack(packed))),
            number => Known::Decoded(INSTS[usize::from(number)]),
        }
    }

    /// The indexes of which something is known.
    pub(super) fn known(&self) -> impl Iterator<Item = usize> + '_ {
        let is_known = |number: &AtomicU8| number.load(Ordering::Relaxed) != NUMBER_OF_UNKNOWN;
        self.numbers.iter().enumerate().filter(move |(_, number)| is_known(number)).map(|(index, _)| index)
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

const fn insts() -> [Option<Inst>; 256] {
    let packed = packed();
    let mut insts = [None; 256];
    let mut number = NUMBER_OF_UNKNOWN as usize + 1;
    while number < ASIDE as usize {
        let word = packed[number];
        if word != UNKNOWN {
            insts[number] =
                Some(Inst { len: (word & 15) as u8, kind: KINDS[(word >> 4 & 31) as usize], disp: (word >> 9) as u8 });
        }
        number += 1;
    }
    insts
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
    use super::super::pack;
    use super::*;

    #[test]
    fn each_instruction_is_read_as_it_was_stored() {
        let all =
            KINDS.iter().flat_map(|&kind| (1..=15u8).flat_map(move |len| (0..=15u8).map(move |disp| Inst { len, kind, disp })));
        let all: Vec<Option<Inst>> = all.map(Some).chain([None]).collect();
        let numbered = Numbered::new(all.len());
        assert!((0..all.len()).all(|index| matches!(numbered.get(index), Known::Nothing)) && numbered.known().next().is_none());
        all.iter().enumerate().for_each(|(index, inst)| numbered.set(index, inst.map_or(INVALID, pack)));
        for (index, &stored) in all.iter().enumerate() {
            assert!(matches!(numbered.get(index), Known::Decoded(read) if read == stored), "{stored:?}");
        }
        assert_eq!(numbered.known().count(), all.len());
    }

    #[test]
    fn what_is_common_has_numbers_and_they_suffice() {
        let is_common = |word: &usize| KINDS.get(*word >> 4 & 31).is_some_and(|&kind| is_common(kind, *word & 15, *word >> 9));
        let common: Vec<usize> = (0..WORDS).filter(is_common).collect();
        assert!(common.iter().all(|&word| NUMBERS[word] != ASIDE));
        assert_eq!(INSTS.iter().flatten().count(), common.len());
    }
}
