//! What the disassembler said of an encoding, for the next instruction that is encoded alike.
//!
//! **Problem.** The disassembler takes half a microsecond an instruction, most of it to print what nobody reads, and a program has but a few thousand different
//! beginnings of instructions: prefixes, opcode, ModRM and SIB.
//!
//! **Method.** How long an instruction is and what kind it is of is a function of its beginning (Intel SDM vol. 2, section 2.1: the bytes behind it are a displacement and an
//! immediate of sizes that the beginning determines). So an answer of the disassembler is kept by the beginning, which [`Shape`] finds, and given again for the same bytes. Not so
//! where this does not hold or need not: 3DNow!, whose opcode stands last; vector encodings; beginnings of more than six bytes. A test compares all opcodes with
//! two different ends. Where the code ends before the instruction does, the disassembler is asked.
//!
//! **Invariant.** No beginning is the start of another, so one that is filled up with zeros stands for itself alone. A word of the table holds the beginning with the answer,
//! so it is right or about another beginning whatever threads write at the same time. A word that is taken by another beginning is asked for again: the result never depends on what is in the table.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Shape;

/// Bytes of a beginning that a word has room for beside the answer.
const BYTES_MAX: usize = 6;
const SLOTS_LOG: u32 = 15;

#[derive(Debug)]
pub(crate) struct Memo(Vec<AtomicU64>);

/// The beginning of an instruction, as a number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Beginning(u64);

impl Beginning {
    pub(super) fn of(bytes: &[u8], shape: &Shape) -> Option<Self> {
        let is_last_opcode = shape.map == 1 && bytes.get(shape.opcode) == Some(&0x0f);
        // A prefix behind one that has to be the last: where the opcode is, `Shape` does not say.
        let is_prefix = |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        let is_displaced = shape.map == 0 && bytes.get(shape.opcode).is_some_and(is_prefix);
        if shape.vector || is_last_opcode || is_displaced {
            return None;
        }
        let mut len = shape.opcode + 1;
        if shape.modrm != 0 {
            let modrm = *bytes.get(shape.modrm)?;
            len = shape.modrm + 1 + usize::from(modrm >> 6 != 3 && modrm & 7 == 4);
        }
        let begin = bytes.get(..len).filter(|begin| begin.len() <= BYTES_MAX)?;
        let mut word = [0; 8];
        word[..len].copy_from_slice(begin);
        Some(Self(u64::from_le_bytes(word)))
    }

    /// Where it may be kept, two to a line of the processor's cache.
    fn slots(self) -> [usize; 2] {
        let slot = (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS_LOG)) as usize;
        [slot, slot ^ 1]
    }
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self((0..1 << SLOTS_LOG).map(|_| AtomicU64::new(0)).collect())
    }

    /// The answer for a beginning, if it is known.
    pub(super) fn find(&self, beginning: Beginning) -> Option<u16> {
        let words = beginning.slots().map(|slot| self.0[slot].load(Ordering::Relaxed));
        words.into_iter().find(|&word| word != 0 && word >> 16 == beginning.0).map(|word| word as u16)
    }

    pub(super) fn keep(&self, beginning: Beginning, packed: u16) {
        let slots = beginning.slots();
        let is_empty = |&slot: &usize| self.0[slot].load(Ordering::Relaxed) == 0;
        let slot = slots.into_iter().find(is_empty).unwrap_or(slots[0]);
        self.0[slot].store(beginning.0 << 16 | u64::from(packed), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    /// What the disassembler itself says.
    fn asked(decoder: &Decoder, window: &[u8]) -> u16 {
        let found = decoder.0.disasm_count(window, 0x1000, 1).ok();
        let decoded = found.as_ref().and_then(|list| list.iter().next().map(|found| classify(found.id().0, found.bytes())));
        decoded.map_or(INVALID, pack)
    }

    #[test]
    fn what_follows_the_beginning_of_an_instruction_changes_neither_its_length_nor_its_kind() {
        let decoder = Decoder::new().unwrap();
        let prefixes: [&[u8]; 14] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0xf0],
            &[0x64],
            &[0x67],
            &[0x41],
            &[0x48],
            &[0x4f],
            &[0x66, 0x48],
            &[0xf3, 0x48],
            &[0xf2, 0x48],
            &[0x66, 0x67],
        ];
        let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        let tails: [[u8; 9]; 3] = [[0; 9], [0xff; 9], [0x90, 0x0f, 0x24, 0xe8, 0x05, 0xc8, 0x66, 0xf3, 0x48]];
        let mut num_compared = 0;
        for (prefixes, map, opcode) in
            prefixes.iter().flat_map(|p| maps.iter().flat_map(move |m| (0..=255u8).map(move |o| (p, m, o))))
        {
            // All of ModRM where the opcode is told apart by it, one SIB byte with and one without a base.
            for (modrm, sib) in (0..=255u8).flat_map(|modrm| [(modrm, 0x24), (modrm, 0x25)]) {
                let begin = [prefixes, map, &[opcode, modrm, sib][..]].concat();
                let answer = |tail: &[u8; 9]| {
                    let window = [&begin[..], tail].concat();
                    let beginning = Beginning::of(&window, &Shape::of(&window))?;
                    Some((beginning, asked(&decoder, &window[..15.min(window.len())])))
                };
                // Without ModRM the two bytes are part of the end.
                let shape = Shape::of(&begin);
                let has_sib = begin.get(shape.modrm).is_some_and(|modrm| modrm & 7 == 4);
                if sib != 0x24 && !has_sib {
                    continue;
                }
                let answers: Vec<(Beginning, u16)> = tails.iter().filter_map(answer).collect();
                // Where the opcode is a prefix or begins another map, the bytes behind are part of the beginning.
                for (index, &(beginning, said)) in answers.iter().enumerate() {
                    let others = answers[index + 1..].iter().filter(|(other, _)| *other == beginning);
                    for &(_, other) in others {
                        assert_eq!(said, other, "{begin:02x?}");
                        num_compared += 1;
                    }
                }
            }
        }
        assert!(num_compared > 1_000_000, "{num_compared}");
    }

    #[test]
    fn a_known_beginning_is_not_another_one() {
        let memo = Memo::new();
        let beginning = |bytes: &[u8]| Beginning::of(bytes, &Shape::of(bytes));
        let add = beginning(&[0x48, 0x01, 0x00, 0, 0]).unwrap();
        memo.keep(add, 0x123);
        assert_eq!(memo.find(add), Some(0x123));
        assert_eq!(memo.find(beginning(&[0x48, 0x01, 0x40, 0, 0]).unwrap()), None);
        assert_eq!(beginning(&[0x0f, 0x0f, 0xc0, 0x9e]), None);
        assert_eq!(beginning(&[0x48, 0x01]), None);
    }
}
