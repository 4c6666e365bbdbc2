//! Tables in front of functions, and words that name others by their distance, which nothing marks: GHC keeps a table before each entry of its code.
//!
//! A word in code outside of all frame descriptions, aligned, that is the distance to where a function without one begins, or to such an address that the program holds, counted from the word itself or from a place a few words behind before which a table ends, is taken for one.
//! What it names may not have gone elsewhere, and no function that it is counted from: the word would still lead to where it was. Compilers that write frame descriptions keep no such words in code. What is executed is no data, so a word is none in which an instruction was passed, or that is filler;
//! nor is one that is counted from itself amid what can only be code, dead as it is: numbers in it look like distances by chance.
//!
//! A function without frame description stays if the word before it is what ends GHC's tables: a small number, the type of a closure, and 32 bits more.
//!
//! Such a table may begin with zeros, which look like filler behind the function before it. Where what follows is what it was, they are too.

use crate::decode::Kind;
use crate::report::{Violation, ViolationKind};
use crate::walk::{Relation, Side, Stands};

/// How far behind a word its distance may be counted from, in words.
const REACH: u64 = 12;

/// Above all types of closures, of which there are 64.
const TYPES: u64 = 128;

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, relation: &Relation, violations: &mut Vec<Violation>) {
    for area in input.code.areas() {
        let skipped = area.start.wrapping_neg() % 8;
        let words = area.bytes.get(skipped as usize..).unwrap_or(&[]).as_chunks::<8>().0;
        let size = area.bytes.len() as i64;
        let has_moved = |address: u64| input.unwind.fde_at(address).is_none() && has_moved(input, output, relation, address);
        for (index, word) in words.iter().enumerate() {
            let at = area.start + skipped + 8 * index as u64;
            let is_table = is_type(*word) && input.starts_undescribed(at + 8);
            let distance = distance_in(*word);
            let is_distance = distance != 0 && -size < distance && distance < size;
            if !is_table && !is_distance || input.unwind.fde_at(at).is_some() || is_code(input, relation, at) {
                continue;
            }
            if is_table && has_moved(at + 8) {
                let message = format!("{:#x} has moved away from the table before it", at + 8);
                violations.push(Violation::new(ViolationKind::StaleReference, at, message));
            }
            let places = (0..=REACH).map(|words| at.wrapping_add(8 * words)).filter(|_| is_distance);
            let mut named = places.map(|from| (from, from.wrapping_add_signed(distance)));
            let is_function = |address: u64| input.unwind.fde_at(address).is_none() && input.starts_undescribed(address);
            let may_be_counted =
                |from: u64| ends_table(input, from.wrapping_sub(8)) || from == at && !is_likely_code(input, relation, at);
            let holds_not = |&(from, to): &(u64, u64)| {
                (has_moved(to) || is_function(to) && is_function(from) && has_moved(from)) && may_be_counted(from)
            };
            if let Some((from, address)) = named.find(holds_not) {
                let message = format!(
                    "a word between functions may name {address:#x} by its distance from {from:#x}, and one of the two has moved"
                );
                violations.push(Violation::new(ViolationKind::StaleReference, at, message));
            }
        }
    }
}

/// Whether a word may end a table.
fn is_type(word: [u8; 8]) -> bool {
    (1..TYPES).contains(&(u64::from_le_bytes(word) & 0xffff_ffff))
}

fn ends_table(input: &Side<'_>, word: u64) -> bool {
    let bytes = input.image.at(word, 8).and_then(|bytes| bytes.first_chunk());
    bytes.is_some_and(|bytes| is_type(*bytes))
}

/// The most code around a word that is looked at.
const STRETCH_MAX: u64 = 1 << 16;

/// Whether a word lies in code that was not passed, though all around it is code as compilers make it: what is led to from where the stretch begins that was not passed, from behind an end and filler, and from calls, is all
/// instructions, and the word in one of them. None of these is `add %al,(%rax)`: of a distance either the one half is zeros or it begins with bytes that are no instruction.
fn is_likely_code(input: &Side<'_>, relation: &Relation, at: u64) -> bool {
    let is_open = |place: u64| input.code.index(place).is_some_and(|index| !relation.seen.contains(index));
    let Some(start) = (at.saturating_sub(STRETCH_MAX)..at).rev().find(|&place| !is_open(place)).map(|last| last + 1) else {
        return false;
    };
    let Some(end) = (at..at + STRETCH_MAX).find(|&place| !is_open(place)) else { return false };
    let behind_filler = |mut place: u64| {
        while let Some(inst) = input.inst(place).filter(|inst| matches!(inst.kind, Kind::Nop | Kind::Trap)) {
            place += u64::from(inst.len);
        }
        place
    };
    let mut open = vec![behind_filler(start)];
    let mut seen = rustc_hash::FxHashSet::default();
    let mut is_covered = false;
    while let Some(mut place) = open.pop() {
        while start <= place && place < end && seen.insert(place) {
            let Some(inst) = input.inst(place) else { return false };
            if input.code.bytes(place, inst).starts_with(&[0, 0]) {
                return false;
            }
            let next = place + u64::from(inst.len);
            is_covered |= place <= at && at < next;
            if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop | Kind::Call) {
                open.push(input.target(place, inst));
            }
            if inst.ends_flow() || inst.kind == Kind::Trap {
                open.push(behind_filler(next));
                break;
            }
            place = next;
        }
    }
    is_covered
}

/// A distance in a word. Up to 9.0, GHC writes 32 bits of it and fills up with zeros.
fn distance_in(word: [u8; 8]) -> i64 {
    let distance = i64::from_le_bytes(word);
    u32::try_from(distance).map_or(distance, |low| i64::from(low.cast_signed()))
}

/// Whether a word is passed by execution, or filler of its size.
fn is_code(input: &Side<'_>, relation: &Relation, word: u64) -> bool {
    let is_passed = |at: u64| input.code.index(at).is_some_and(|index| relation.seen.contains(index));
    let is_filler = || input.inst(word).is_some_and(|inst| inst.kind == Kind::Nop && inst.len == 8);
    (word..word.saturating_add(8)).any(is_passed) || is_filler()
}

/// How many bytes a table begins with at most, that are zeros.
const ZEROS_MAX: u64 = 64;

/// Words of zeros right before code without a frame description that stays.
pub(crate) fn check_zeros(input: &Side<'_>, output: &Side<'_>, violations: &mut Vec<Violation>) {
    for (start, end) in input.undescribed() {
        let Some((zeros, behind)) = zeros_before_code(input, start, end) else { continue };
        let same = |at: u64| input.image.at(at, 8).is_some_and(|bytes| output.image.at(at, 8) == Some(bytes));
        let Some(first) = zeros.max(behind.saturating_sub(ZEROS_MAX)).checked_next_multiple_of(8) else { continue };
        let changed = (first..behind).step_by(8).find(|&word| behind - word >= 8 && !same(word));
        if let Some(word) = changed.filter(|_| same(behind)) {
            let message = "zeros between functions, with which a table may begin, are something else now";
            violations.push(Violation::new(ViolationKind::DataChanged, word, message));
        }
    }
}

/// Where the zeros behind the filler of a gap begin, and where something follows them.
fn zeros_before_code(side: &Side<'_>, start: u64, end: u64) -> Option<(u64, u64)> {
    let (mut at, mut zeros) = (start, start);
    while at < end {
        if side.image.at(at, 1)? == [0] {
            at += 1;
            continue;
        }
        let Some(filler) = side.inst(at).filter(|inst| matches!(inst.kind, Kind::Nop | Kind::Trap)) else {
            return Some((zeros, at));
        };
        at += u64::from(filler.len);
        zeros = at;
    }
    None
}

/// Whether what the program holds or a function stands elsewhere, and not where it was.
fn has_moved(input: &Side<'_>, output: &Side<'_>, relation: &Relation, address: u64) -> bool {
    if !input.starts_undescribed(address) {
        return relation.is_named_elsewhere(address, address);
    }
    let Some(index) = input.code.index(address).filter(|&index| relation.output_of(index).is_some()) else { return false };
    let here = output.code.index(address).and_then(|index| relation.input_of(index));
    !matches!(here, Some(Stands::For(from)) if from == index)
}
