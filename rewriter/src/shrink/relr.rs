//! Relative relocations as bitmaps.
//!
//! **Format** (gABI, "Relative relocation table"): an even word is the address of a word that gets the load address added; an odd word
//! is a bitmap of which of the next 63 words get it too, counted from behind the last one.

use std::collections::BTreeMap;

use lifter::Image;
use lifter::address::Va;
use lifter::elf::image::DynRelocPlace;
use object::elf;

const WORD: u64 = 8;
const BITS: u64 = 63;

/// The table for some words, ascending and each at a multiple of 8.
pub(super) fn encode(slots: &[u64]) -> Vec<u8> {
    let mut words: Vec<u64> = Vec::new();
    let mut rest = slots;
    while let Some((&first, behind)) = rest.split_first() {
        words.push(first);
        rest = behind;
        let mut base = first + WORD;
        loop {
            let in_reach = rest.partition_point(|&slot| slot < base + BITS * WORD);
            if in_reach == 0 {
                break;
            }
            words.push(rest[..in_reach].iter().fold(1, |bits, &slot| bits | 1 << ((slot - base) / WORD + 1)));
            rest = &rest[in_reach..];
            base += BITS * WORD;
        }
    }
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What can be packed: by word, the address that it gets before the load address is added. Words that another relocation writes too, that
/// are not aligned or not in the file are left out.
pub(super) fn packable(image: &Image<'_>) -> BTreeMap<Va, u64> {
    let mut found = BTreeMap::new();
    let relocs = &image.dynamic_relocs;
    for same_slot in relocs.chunk_by(|a, b| a.slot == b.slot) {
        let first = same_slot[0];
        let is_plain = |r: &lifter::elf::image::DynReloc| {
            r.r_type == elf::R_X86_64_RELATIVE && r.addend == first.addend && matches!(r.place, DynRelocPlace::Rela(_))
        };
        let is_there = image.segment_at(first.slot).is_some_and(|s| s.is_writable()) && image.read_u64(first.slot).is_some();
        if first.slot.0.is_multiple_of(WORD) && is_there && same_slot.iter().all(is_plain) {
            found.insert(first.slot, first.addend as u64);
        }
    }
    // A relocation of another size may overlap a word.
    for reloc in relocs.iter().filter(|r| r.r_type != elf::R_X86_64_RELATIVE || !r.slot.0.is_multiple_of(WORD)) {
        found.remove(&Va(reloc.slot.0 & !(WORD - 1)));
        found.remove(&Va((reloc.slot.0 & !(WORD - 1)).wrapping_add(WORD)));
    }
    found
}

#[cfg(test)]
mod tests;
