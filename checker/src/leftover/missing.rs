//! Functions that the output does not have: legal only where nothing can name them.
//!
//! **Problem.** A function that no pair reached and that has no equal in the output was left out. Nothing that a loader names leads to it, or
//! the walk would have asked for its counterpart; nor does dead code that was kept, or its pieces would not have matched. What is left is
//! what the walk does not read.
//!
//! **Method.** Three such things are read here, in the input alone. Plain numbers: in a file at a fixed address without
//! the linker's relocations, no function may be missing. Offsets: a 32-bit word that, added to its own address or to the address behind
//! which it lies and that an instruction names, is where the function begins (relative virtual tables; tables of offsets, in which others near it lead to functions too), unless it is an entry that compilers leave where a case never comes. Code that the
//! walk did not reach and that was not left out: an instruction of it, wherever linear decoding meets one, that leads to the function, and that
//! something in the output stands for or that is still where it was.

use rustc_hash::FxHashSet;

use super::each_instruction;
use crate::decode::Kind;
use crate::image::Section;
use crate::report::ViolationKind;
use crate::walk::Walk;

/// Reports what is missing and may be named; `missing` are numbers of frame descriptions of the input.
pub(super) fn report(walk: &mut Walk<'_, '_>, missing: &[(u32, u64)]) {
    let fdes = &walk.input.unwind.fdes;
    // What was walked last, from entries of tables that nobody may select, may have come to some.
    let is_reached = |number: u32| {
        let start = walk.input_leads_to(fdes[number as usize].start);
        walk.input.code.index(start).is_some_and(|index| walk.relation.seen.contains(index))
    };
    let missing: Vec<(u32, u64)> = missing.iter().filter(|missing| !is_reached(missing.0)).copied().collect();
    if missing.is_empty() {
        return;
    }
    let starts: FxHashSet<u64> = missing.iter().map(|&(number, _)| fdes[number as usize].start).collect();
    let mut named = FxHashSet::default();
    if !walk.keeps_old_text() {
        by_offsets(walk, &starts, &mut named);
        by_kept_code(walk, &missing, &starts, &mut named);
    }
    for (number, _) in missing {
        let (start, end) = (walk.input.unwind.fdes[number as usize].start, walk.input.unwind.fdes[number as usize].end);
        if walk.keeps_old_text() || named.contains(&start) {
            let size = end - start;
            let message =
                format!("{size} bytes of the input's code with a frame description have no counterpart (address of the input)");
            walk.report(ViolationKind::MissingFunction, start, message);
        } else {
            walk.stats.dropped_functions += 1;
        }
    }
}

/// Words of data that are the distance to one of the functions.
pub(crate) fn by_offsets(walk: &Walk<'_, '_>, starts: &FxHashSet<u64>, named: &mut FxHashSet<u64>) {
    let input = walk.input;
    let is_data = |section: &&Section<'_>| section.is_alloc() && !section.is_code();
    for section in input.image.sections.iter().filter(is_data) {
        let bytes = input.image.section_bytes(section);
        if crate::data::is_by_meaning(&input.image, section) {
            continue;
        }
        let mut base = None;
        let mut next = walk.survey.next_reference(section.address.wrapping_sub(1));
        for (place, word) in (section.address..).step_by(4).zip(bytes.chunks_exact(4)) {
            while next <= place {
                base = Some(next);
                next = walk.survey.next_reference(next);
            }
            if walk.never_selected.contains(&place) {
                continue;
            }
            let offset = i64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]])).cast_unsigned();
            let by_place = Some(place.wrapping_add(offset)).filter(|target| starts.contains(target));
            let is_named = |from: u64| {
                starts.contains(&from.wrapping_add(offset))
                    && (from == place || has_neighbor(walk, bytes, place - section.address, from))
            };
            named.extend(by_place);
            named.extend(base.filter(|&base| is_named(base)).map(|base| base.wrapping_add(offset)));
        }
    }
}

/// Words around one that may be of the same table: entries may be made of several.
const NEIGHBORS: u64 = 4;

/// Whether a word of a section near another one is the distance from the same place to the beginning of a function, too. By chance, in tens of megabytes, single words are.
fn has_neighbor(walk: &Walk<'_, '_>, bytes: &[u8], at: u64, from: u64) -> bool {
    let word =
        |at: u64| bytes.get(at as usize..)?.first_chunk::<4>().map(|word| i64::from(i32::from_le_bytes(*word)).cast_unsigned());
    let leads_to_function = |at: u64| word(at).is_some_and(|offset| walk.input.unwind.starts_at(from.wrapping_add(offset)));
    (1..=NEIGHBORS).any(|distance| {
        let before = at.checked_sub(4 * distance);
        before.is_some_and(leads_to_function) || leads_to_function(at + 4 * distance)
    })
}

/// Instructions that are neither walked nor part of what is missing.
fn by_kept_code(walk: &Walk<'_, '_>, missing: &[(u32, u64)], starts: &FxHashSet<u64>, named: &mut FxHashSet<u64>) {
    let input = walk.input;
    let gone: FxHashSet<u32> = missing.iter().map(|&(number, _)| number).collect();
    each_instruction(input, |address, inst| {
        let target = match inst.kind {
            Kind::Jump | Kind::Branch | Kind::Call | Kind::Loop => input.target(address, inst),
            _ if inst.disp != 0 => input.operand(address, inst),
            _ => return,
        };
        if !starts.contains(&target) || input.unwind.fde_at(address).is_some_and(|number| gone.contains(&number)) {
            return;
        }
        // Of a function in parts one may begin like something else, and so not be missing: what nothing stands for is not in the output, but where it was.
        let is_matched = || input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index));
        // What is replaced was dropped by who replaced it.
        if walk.is_replaced(address) {
            return;
        }
        let is_described = input.unwind.fde_at(address).is_some();
        if is_described && !is_matched() && !walk.is_untouched(address) {
            return;
        }
        named.insert(target);
    });
}
