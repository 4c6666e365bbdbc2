//! Where code runs on from one unit into the next, though its last instruction is a call, or fills a gap.
//!
//! **Problem.** A compiler ends a function behind a call only if that does not come back. Whoever writes assembly may end an unwind entry anywhere, and what follows is reached from behind the call alone: without
//! that edge it is left behind when the call moves.
//!
//! **Rule.** Code runs on if the next unit begins where this one ends, no-ops aside, unwinding is alike on both sides, and nothing else leads there: cold parts of functions stand side by side too, and may have the same frame, but
//! their functions jump to them. Where unwind entries alone tell ([`Unwind::parted`]), it does not matter what else leads there. Symbols lead nowhere.
//!
//! No-ops at the end of a unit fill a gap, unless something leads to them: from there code runs on. That is how functions look of which one was put before another one that is aligned, to run on into it, and
//! that were then moved apart.
//!
//! **Invariant.** An edge too many costs layout; one that is missing breaks the program. So jump tables, which are not known yet, are not asked.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::address::Va;
use crate::discover::clusters::following;
use crate::discover::names::{NamedBy, Names};
use crate::discover::survey::Survey;
use crate::discover::units::{Bounds, Unit, Units};
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::x86::nop_len;

/// What leads to a place, but for branches, of which it matters from where.
const LEADING: NamedBy = NamedBy::ENTRY.union(NamedBy::LANDING_PAD).union(NamedBy::MEMORY);

/// Units behind whose last call code runs on. Ascending.
pub(crate) fn find_running_on(image: &Image<'_>, unwind: &Unwind, units: &Units, surveys: &[Survey], names: &Names) -> Vec<Unit> {
    let may_run_on = |unit: &Unit| {
        // Of code that was found by following it, it is known where it ends.
        let (this, next) = (&units[*unit], following(units, *unit).map(|next| &units[next])?);
        let are_alike = match (this.fde(), next.fde()) {
            (Some(from), Some(to)) => are_no_ops(image, this.end, next.start) && unwind.may_run_on(from, to),
            _ => this.end == next.start && this.bounds != Bounds::Reached,
        };
        (are_alike && !names.at(next.start).intersects(LEADING)).then_some((*unit, next.start))
    };
    let ending = units.keys().filter(|unit| surveys[unit.index()].ends_with_call);
    let candidates: Vec<(Unit, Va)> = ending.filter_map(|unit| may_run_on(&unit)).collect();
    if candidates.is_empty() {
        return Vec::new();
    }
    let before: &FxHashMap<Va, Unit> = &candidates.iter().map(|&(unit, place)| (place, unit)).collect();
    let entered = units.keys().flat_map(|unit| {
        let targets = surveys[unit.index()].names.iter().map(|name| name.target);
        targets.filter(move |target| before.get(target).is_some_and(|&before| before != unit))
    });
    let entered: FxHashSet<Va> = entered.collect();
    candidates.into_iter().filter(|(_, place)| !entered.contains(place)).map(|(unit, _)| unit).collect()
}

/// Units that end with no-ops to which something leads from elsewhere. Ascending.
pub(crate) fn find_entered_padding(image: &Image<'_>, units: &Units, surveys: &[Survey], names: &Names) -> Vec<Unit> {
    let ending = units.iter().filter(|(unit, _)| {
        let survey = &surveys[unit.index()];
        !survey.falls_out && !survey.is_opaque() && following(units, *unit).is_some()
    });
    let is_entered = |start: Va, end: Va| {
        let last = names.within(Va(start.0 + 1), end).last();
        last.is_some_and(|&(place, _)| are_no_ops(image, place, end))
    };
    ending.filter(|(_, data)| is_entered(data.start, data.end)).map(|(unit, _)| unit).collect()
}

fn are_no_ops(image: &Image<'_>, start: Va, end: Va) -> bool {
    let mut at = start;
    while at < end {
        let bytes = image.read(at, (end - at) as usize);
        let Some(len) = bytes.and_then(nop_len) else { return false };
        at = at + len as u64;
    }
    at == end
}
