//! Frame descriptions that end with a call behind which code runs on.
//!
//! **Problem.** A compiler ends a frame description behind a call only if that does not come back. Assembly may do so anywhere, and relift does where a landing pad would be the start of its own description: no
//! pad can be told as that.
//!
//! **Rule.** Code runs on into what begins there, no-ops between two descriptions aside, if exceptions of that land where the description begins that ends; if on both sides nothing is saved or pushed, with which no compiler calls;
//! and if the rules are the same on both sides, or there are none behind, and neither instruction nor pointer nor landing pad leads there from elsewhere: then it is code of nobody's otherwise. Cold parts of functions have the same rules side by
//! side too, but jumps lead to them.
//!
//! Besides, code runs on behind a call of what returns at once and can be seen to be no function but a piece of the caller ([`crate::followed`]).
//!
//! At a fixed address any word may be a pointer, so that what has no description there must be in none.

use memchr::memmem;
use rustc_hash::FxHashSet;

use super::Survey;
use crate::decode::Kind;
use crate::followed::straight;
use crate::image::Image;
use crate::straight::Parts;
use crate::walk::Side;

/// `rbx`, `rbp` and `r12` to `r15`.
const KEPT: u16 = 0xf028;
const STACK: u8 = 4;
/// Bytes of a return address.
const RETURN_ADDRESS: i64 = 8;

/// Where these frame descriptions end. Ascending.
pub(crate) fn running_on(side: &Side<'_>, survey: &Survey) -> Vec<u64> {
    let (mut ends, mut unled) = (Vec::new(), Vec::new());
    for &from in survey.ending_with_calls.iter().take_while(|&&from| (from as usize) < side.unwind.fdes.len()) {
        let (start, end) = side.function(from);
        let Some(next) = behind_no_ops(side, end) else { continue };
        let Some(to) = side.function_at(next).filter(|&to| side.function(to).0 == next) else { continue };
        let is_described = side.unwind.starts_at(next);
        let is_adjacent = next == end;
        let are_alike = is_described && side.unwind.locate(end - 1).row == side.unwind.locate(next).row;
        let lands_before = || side.call_sites(to).is_some_and(|sites| sites.land_at(start));
        let is_seen = || lands_before() || are_alike && side.unwind.is_row_of_entry(next) || ends_with_part(side, start, end);
        if is_adjacent && is_described && is_seen() {
            ends.push(end);
        } else if (are_alike || is_adjacent && !is_described)
            && !survey.is_led_to(side, to, from)
            && (is_described || !is_held(&side.image, next))
        {
            unled.push((next, end));
        }
    }
    let pads = if unled.is_empty() { FxHashSet::default() } else { landing_pads(side) };
    ends.extend(unled.into_iter().filter(|(next, _)| !pads.contains(next)).map(|(_, end)| end));
    ends.sort_unstable();
    ends
}

/// Whether the last call of a frame description is one of straight code that can be seen to stand for instructions of the caller: it writes registers that functions keep, or addresses its caller's frame. Where such code is called, it returns.
fn ends_with_part(side: &Side<'_>, start: u64, end: u64) -> bool {
    let (mut at, mut last) = (start, None);
    while let Some(inst) = side.inst(at).filter(|_| at < end) {
        last = Some((at, inst)).filter(|_| inst.kind == Kind::Call);
        at += u64::from(inst.len);
    }
    let part = last.and_then(|(at, inst)| straight(side, side.target(at, inst)));
    part.into_iter().flatten().any(|(at, inst)| {
        let parts = Parts::of(side.code.bytes(at, inst));
        let is_of_caller = |(base, more): (u8, i64)| base == STACK && more >= RETURN_ADDRESS;
        parts.written().is_some_and(|written| written & KEPT != 0) || parts.base().is_some_and(is_of_caller)
    })
}

/// Where no-ops lead to, in the same section.
fn behind_no_ops(side: &Side<'_>, mut address: u64) -> Option<u64> {
    let left = side.code.tail(address.checked_sub(1)?)?.len() as u64;
    let end = address.saturating_add(left - 1);
    while side.unwind.fde_at(address).is_none()
        && let Some(inst) = side.inst(address).filter(|inst| inst.kind == Kind::Nop)
    {
        address += u64::from(inst.len);
    }
    (address < end).then_some(address)
}

/// Whether any four bytes of a file at a fixed address are an address.
fn is_held(image: &Image<'_>, address: u64) -> bool {
    let Ok(address) = u32::try_from(address) else { return true };
    image.is_position_dependent() && image.loads.iter().any(|area| memmem::find(area.bytes, &address.to_le_bytes()).is_some())
}

/// Where exceptions land.
fn landing_pads(side: &Side<'_>) -> FxHashSet<u64> {
    let tables = (0..side.unwind.fdes.len() as u32).filter_map(|fde| side.call_sites(fde));
    tables.flat_map(|sites| sites.landing_pads().collect::<Vec<u64>>()).collect()
}
