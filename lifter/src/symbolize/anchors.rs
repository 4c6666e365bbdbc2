//! Where the jumps stand that keep old addresses good.
//!
//! **Problem.** In *guard* mode an anchor keeps a jump to where its code went ([`crate::discover::unseen`]). Five bytes are needed for it, and the next anchor, pinned code or the end of the
//! section may come sooner.
//!
//! **Method.** Where there are two bytes, a short jump leads to a *relay*: five bytes, within reach of it, in what its function leaves free, with the jump that is meant. Where there is no
//! room even so, the function stays.
//!
//! **Invariants.** Anchors and relays don't overlap each other or pinned code. A relay lies within the old bytes of a unit that moves, behind the anchors of the unit before. Where the
//! processor asks for marks of indirect branches' targets, an anchor has nine bytes or its function stays.
//!
//! **Terminates**: each round of [`PinContext::spread`] pins something more or is the last.

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::units::{Unit, unit_at};
use crate::discover::unseen::anchor_len;
use crate::entity::EntityId;
use crate::ir::{PinReason, Relay};

/// `jmp` with a displacement of 8 bits.
const SHORT_JUMP_LEN: u64 = 2;
/// How far the displacement of such a jump leads, from its end.
const REACH: std::ops::RangeInclusive<i64> = -128..=127;

/// What stays of one unit's old bytes: `(start, end)`, ascending.
#[derive(Default)]
struct Occupied {
    ranges: Vec<(Va, Va)>,
}

impl Occupied {
    /// Takes the place for a relay that is nearest to the short jump at `anchor`, in `low..high`.
    fn take_near(&mut self, anchor: Va, low: Va, high: Va) -> Option<Va> {
        let from = anchor + SHORT_JUMP_LEN;
        let first = self.ranges.partition_point(|range| range.1.0 + 2 * REACH.end().unsigned_abs() < from.0);
        let mut nearest: Option<(u64, usize, Va)> = None;
        for index in first..=self.ranges.len() {
            let begin = if index == 0 { low } else { self.ranges[index - 1].1.max(low) };
            let end = self.ranges.get(index).map_or(high, |range| range.0.min(high));
            if begin.0 > from.0 + REACH.end().unsigned_abs() {
                break;
            }
            if begin + Relay::LEN > end {
                continue;
            }
            // As near as the free bytes allow.
            let place = if end <= anchor { Va(end.0 - Relay::LEN) } else { begin };
            let distance = place.0.abs_diff(from.0);
            if REACH.contains(&(place.0.wrapping_sub(from.0) as i64)) && nearest.is_none_or(|known| distance < known.0) {
                nearest = Some((distance, index, place));
            }
        }
        let (_, index, place) = nearest?;
        self.ranges.insert(index, (place, place + Relay::LEN));
        Some(place)
    }
}

impl PinContext<'_> {
    /// Plans the relays of all units that move, and pins those whose anchors have no room. Says whether anything was pinned.
    pub(super) fn give_room(&self, anchors: &[Va], pins: &mut Pins, relays: &mut Vec<Relay>) -> bool {
        relays.clear();
        let (mut has_changed, mut first, mut behind) = (false, 0, Va(0));
        while let Some(&anchor) = anchors.get(first) {
            let Some(unit) = unit_at(self.units, anchor) else {
                first += 1;
                continue;
            };
            let count = anchors[first..].partition_point(|&anchor| anchor < self.units[unit].end);
            let range = first..first + count;
            first = range.end;
            if pins.of(self.clusters, unit).is_some() {
                continue;
            }
            match self.room_in(unit, &anchors[range], anchors.get(first).copied(), behind, pins) {
                Some((end, planned)) => {
                    behind = end;
                    relays.extend(planned);
                }
                None => {
                    pins.pin(self.clusters, unit, PinReason::UnprovenPointers);
                    has_changed = true;
                }
            }
        }
        has_changed
    }

    /// The relays of a unit, whose anchors these are, and where the last of these ends; `None` without room. `next` is the first anchor behind the unit, and up to `behind` the unit's bytes are
    /// those of anchors before it.
    fn room_in(&self, unit: Unit, anchors: &[Va], next: Option<Va>, behind: Va, pins: &Pins) -> Option<(Va, Vec<Relay>)> {
        let data = &self.units[unit];
        let mut occupied = Occupied::default();
        let mut short = Vec::new();
        for (index, &anchor) in anchors.iter().enumerate() {
            let len = anchor_len(self.image, anchor);
            let following = anchors.get(index + 1).copied().or(next);
            let room = following.unwrap_or(Va(u64::MAX)).min(self.end_of_room(unit, anchor + len, pins)) - anchor;
            let is_short = room < len;
            if is_short && (room < SHORT_JUMP_LEN || self.image.has_ibt) {
                return None;
            }
            let end = anchor + if is_short { SHORT_JUMP_LEN } else { len };
            occupied.ranges.push((anchor, end));
            short.extend(Some(anchor).filter(|_| is_short));
        }
        let end = occupied.ranges.last().map_or(behind, |last| last.1);
        let low = data.start.max(behind);
        let relays = short.into_iter().map(|anchor| Some(Relay { anchor, at: occupied.take_near(anchor, low, data.end)? }));
        Some((end, relays.collect::<Option<Vec<_>>>()?))
    }

    /// Where the next thing behind an anchor's unit begins that stays, if that is before `end`; `end` otherwise.
    fn end_of_room(&self, unit: Unit, end: Va, pins: &Pins) -> Va {
        let section = &self.image.sections[self.units[unit].section];
        let mut following = (unit.index() + 1..self.units.len()).map(Unit::new).take_while(|&next| self.units[next].start < end);
        let pinned = following.find(|&next| pins.of(self.clusters, next).is_some());
        pinned.map_or(end, |next| self.units[next].start).min(section.end())
    }
}
