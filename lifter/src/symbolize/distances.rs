//! Files with tables between functions, in which words name functions by their distance.
//!
//! **Problem.** GHC puts a table before each entry of code, and in it the distance from the entry, a few words behind, to another function: 64 bits that nothing marks. Its own code has no unwind entries and is left over, but what other files may
//! call is reached by its symbol and would move, without the table before it, and away from who names it.
//!
//! **Method.** If an aligned word in a section of code, outside of what has an unwind entry, is the distance to a function without one, from the word itself or from one of the next [`WORDS`] words, no code without unwind entries moves. Compilers that write
//! unwind entries keep no such words in code. A number that only looks like one costs moves.

use rustc_hash::FxHashSet;

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::units::{Bounds, unit_at};
use crate::ir::PinReason;

/// How far behind a word its distance may be counted from, in words.
const WORDS: u64 = 12;

const WORD: u64 = 8;

impl PinContext<'_> {
    pub(crate) fn pin_by_self_relative_word(&self, pins: &mut Pins) {
        let undescribed = || self.units.iter().filter(|(_, unit)| !matches!(unit.bounds, Bounds::Unwind(_)));
        let starts: FxHashSet<Va> = undescribed().map(|(_, unit)| unit.start).collect();
        if self.has_self_relative_word(&starts) {
            undescribed().for_each(|(unit, _)| pins.pin(self.clusters, unit, PinReason::UnknownMetadata));
        }
    }

    fn has_self_relative_word(&self, starts: &FxHashSet<Va>) -> bool {
        let sections = self.image.sections.iter().filter(|(id, _)| !starts.is_empty() && self.image.is_movable_code_section(*id));
        sections.into_iter().any(|(id, section)| {
            let skipped = section.sh_addr.0.wrapping_neg() % WORD;
            let words = self.image.section_bytes(id).get(skipped as usize..).unwrap_or(&[]).as_chunks::<8>().0;
            let size = section.sh_size.cast_signed();
            words.iter().enumerate().any(|(index, bytes)| {
                let distance = i64::from_le_bytes(*bytes);
                // Most words of code are no distance inside of it.
                if distance == 0 || distance <= -size || size <= distance {
                    return false;
                }
                let at = section.sh_addr + skipped + index as u64 * WORD;
                let mut named = (0..=WORDS).map(|word| Va((at + word * WORD).0.wrapping_add_signed(distance)));
                named.any(|va| starts.contains(&va)) && !self.is_described(at)
            })
        })
    }

    fn is_described(&self, va: Va) -> bool {
        unit_at(self.units, va).is_some_and(|unit| matches!(self.units[unit].bounds, Bounds::Unwind(_)))
    }
}
