//! Tables in front of functions, and words of theirs that name other functions by their distance.
//!
//! **Problem.** GHC puts a table before each entry of code, which is read by the entry's address, and in some the distance from the entry to another function, which nothing marks. Its code has no unwind entries and is left over, but what other
//! files may call is reached by its symbol and would move, without the table before it, and away from who names it.
//!
//! **Method.** The last word of such a table is the type of a closure, a small number, in 32 bits and 32 more (`rts/storage/InfoTables.h`, with tables next to code), and entries begin at multiples of a word. If one function in [`SHARE`] that begins so has such a table, no code
//! without unwind entries moves: by GHC's compilers from 8.8 to 9.10 that is at least every third one, elsewhere one in 300 at most, by chance.
//! Nor does any if a word outside of what has an unwind entry, or is reached and so no data, is the distance to a function without one from a place up to [`WORDS`] words behind it, unless both stay for other reasons. There such a table has to end (libraries of GHC 9.0 have from 7 to 13,765 of these words; `mold`, `deno` and
//! `shellcheck` have none, but 82, 19 and 2 that are distances from elsewhere, by chance), or it is the word itself, and not amid what can only be dead code. Compilers that write unwind entries keep no such words in code; a number that only looks like one costs moves.
//! (To pin no more than what such numbers name was tried. In `deno` and `libvips`, which had some by chance, the checker then refuses what moves for other reasons.) In all other files, what has a table stays.

use iced_x86::{Decoder, DecoderOptions};
use rustc_hash::FxHashSet;

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::NamedBy;
use crate::discover::units::{Bounds, UnitData, unit_at};
use crate::ir::PinReason;
use crate::x86::{Flow, flow_of, nop_len, padding_len};

/// How far behind a word its distance may be counted from, in words.
const WORDS: u64 = 12;

const WORD: u64 = 8;

/// Above all types of closures, of which there are 64.
const TYPES: u32 = 128;

/// The longest unit that is looked through for one word, in bytes.
const LIKELY_CODE_MAX: usize = 1 << 18;

/// Of so many functions one has a table in front where tables are no chance.
const SHARE: usize = 16;

impl PinContext<'_> {
    pub(crate) fn pin_by_table_in_front(&self, pins: &mut Pins) {
        let undescribed = || self.units.iter().filter(|(_, unit)| self.is_undescribed(unit));
        let named =
            |unit: &UnitData| self.names.within(unit.start, unit.end).iter().filter(|(_, by)| by.intersects(!NamedBy::BRANCH));
        let functions: FxHashSet<Va> =
            undescribed().flat_map(|(_, unit)| named(unit).map(|&(va, _)| va).chain([unit.start])).collect();
        if self.tables_are_no_chance() || self.has_self_relative_word(&functions) {
            undescribed().for_each(|(unit, _)| pins.pin(self.clusters, unit, PinReason::UnknownMetadata));
            return;
        }
        for va in functions.iter().filter(|&&va| self.has_table_in_front(va)).flat_map(|&va| [va, Va(va.0 - 1)]) {
            self.pin_at(va, PinReason::UnknownMetadata, pins);
        }
    }

    fn tables_are_no_chance(&self) -> bool {
        let is_found = |unit: &&UnitData| matches!(unit.bounds, Bounds::Reached | Bounds::Symbol(_)) && self.is_undescribed(unit);
        let aligned = self.units.values().filter(is_found).filter(|unit| unit.start.0.is_multiple_of(WORD));
        let (all, with_table) =
            aligned.fold((0, 0), |(all, with), unit| (all + 1, with + usize::from(self.has_table_in_front(unit.start))));
        with_table * SHARE > all
    }

    fn has_table_in_front(&self, va: Va) -> bool {
        let last = va.0.is_multiple_of(WORD).then(|| va.0.checked_sub(WORD)).flatten();
        let bytes = last.and_then(|last| self.image.read(Va(last), 4)).and_then(|bytes| bytes.first_chunk());
        bytes.is_some_and(|bytes| (1..TYPES).contains(&u32::from_le_bytes(*bytes)))
    }

    /// Whether a word may name a function by a distance, and that function may move, or the one from which it is counted.
    fn has_self_relative_word(&self, functions: &FxHashSet<Va>) -> bool {
        let sections =
            self.image.sections.iter().filter(|(id, _)| !functions.is_empty() && self.image.is_movable_code_section(*id));
        sections.into_iter().any(|(id, section)| {
            let skipped = section.sh_addr.0.wrapping_neg() % WORD;
            let words = self.image.section_bytes(id).get(skipped as usize..).unwrap_or(&[]).as_chunks::<8>().0;
            let size = section.sh_size.cast_signed();
            words.iter().enumerate().any(|(index, bytes)| {
                let distance = distance_in(*bytes);
                // Most words of code are no distance inside of it.
                if distance == 0 || distance <= -size || size <= distance || nop_len(bytes) == Some(bytes.len()) {
                    return false;
                }
                let at = section.sh_addr + skipped + index as u64 * WORD;
                let mut named = (0..=WORDS).map(|words| at + words * WORD).map(|from| (from, from.offset(distance)));
                let may_move = |va: &Va| functions.contains(va) && !self.is_unfounded(*va);
                let is_broken = |(from, to): (Va, Va)| may_move(&to) || functions.contains(&to) && may_move(&from);
                let is_told = |from: Va| self.has_table_in_front(from) || from == at && !self.is_in_likely_code(at);
                named.any(|pair| is_broken(pair) && !self.is_code(at) && is_told(pair.0))
            })
        })
    }

    /// Whether a word lies in what can only be code, though nothing reaches it: control comes there from the start of its unit, from calls in the unit, or from behind padding. No table is among what these lead to, since words that
    /// are a distance begin or end with `add %al,(%rax)` or with what is no instruction.
    fn is_in_likely_code(&self, at: Va) -> bool {
        let unit = unit_at(self.units, at).map(|unit| &self.units[unit]);
        let Some(unit) = unit.filter(|unit| unit.len() <= LIKELY_CODE_MAX) else { return false };
        let Some(bytes) = self.image.read(unit.start, unit.len()) else { return false };
        let mut open = vec![unit.start];
        let mut seen: FxHashSet<Va> = FxHashSet::default();
        let mut is_covered = false;
        while let Some(start) = open.pop() {
            let mut place = start;
            while unit.start <= place && place < unit.end && seen.insert(place) {
                let rest = &bytes[(place - unit.start) as usize..];
                let instruction = Decoder::with_ip(64, rest, place.0, DecoderOptions::NONE).decode();
                if instruction.is_invalid() || rest.starts_with(&[0, 0]) {
                    return false;
                }
                let next = Va(instruction.next_ip());
                is_covered |= place <= at && at < next;
                let behind = || next + padding_len(bytes.get((next - unit.start) as usize..).unwrap_or(&[])) as u64;
                match flow_of(&instruction) {
                    Flow::Jump(target) => {
                        open.extend([target, behind()]);
                        break;
                    }
                    Flow::IndirectJump | Flow::Return | Flow::Trap => {
                        open.push(behind());
                        break;
                    }
                    Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) | Flow::Call(target) => open.push(target),
                    Flow::Next | Flow::IndirectCall => {}
                }
                place = next;
            }
        }
        is_covered
    }

    fn is_undescribed(&self, unit: &UnitData) -> bool {
        !matches!(unit.bounds, Bounds::Unwind(_)) && self.image.is_movable_code_section(unit.section)
    }

    /// Whether it lies in what stays for lack of bounds.
    fn is_unfounded(&self, va: Va) -> bool {
        unit_at(self.units, va).is_some_and(|unit| matches!(self.units[unit].bounds, Bounds::Gap | Bounds::LeftOver))
    }

    fn is_code(&self, va: Va) -> bool {
        unit_at(self.units, va).is_some_and(|unit| matches!(self.units[unit].bounds, Bounds::Unwind(_) | Bounds::Reached))
    }
}

/// A distance in a word. Up to 9.0, GHC writes 32 bits of it and fills up with zeros.
fn distance_in(word: [u8; 8]) -> i64 {
    let distance = i64::from_le_bytes(word);
    u32::try_from(distance).map_or(distance, |low| i64::from(low.cast_signed()))
}
