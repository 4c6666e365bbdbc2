//! An entry that stands for several functions, cut where these begin.
//!
//! **Method.** The instructions of the entry are followed. Where all that they say is what the common entry says, and what is remembered is the same, an entry may begin: it remembers as often as is still gone back to. What else
//! there is (expressions, rules for the return address, another common entry than compilers write) leaves the entry whole.
//!
//! Source: DWARF 5 §6.4.2.

use gimli as dw;
use smallvec::smallvec;

use super::row::Row;
use super::{CfiOp, CieData, FdeData};
use crate::address::Va;

/// A place where unwinding is as at a function's first instruction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Level {
    from: Va,
    /// How many rows are remembered there, all of them such.
    num_remembered: usize,
    is_entry: bool,
}

/// Where in an entry its rows change, with whether an entry could begin there. `None` if it must stay whole.
#[derive(Debug)]
pub(crate) struct Levels {
    all: Vec<Level>,
}

impl Levels {
    pub(crate) fn of(cie: &CieData, fde: &FdeData) -> Option<Self> {
        if !cie.is_standard() || fde.opaque_lsda.is_some() {
            return None;
        }
        let (mut row, mut remembered) = (Row::at_entry(), Vec::new());
        let mut all = vec![Level { from: fde.start, num_remembered: 0, is_entry: true }];
        for op in &fde.ops {
            row.follow(cie, op, &mut remembered)?;
            let is_entry = row.is_at_entry() && remembered.iter().all(Row::is_at_entry);
            let level = Level { from: op.at, num_remembered: remembered.len(), is_entry };
            match all.last_mut() {
                Some(last) if last.from == op.at => *last = level,
                _ => all.push(level),
            }
        }
        Some(Self { all })
    }

    fn at(&self, place: Va) -> Option<Level> {
        self.all[..self.all.partition_point(|level| level.from <= place)].last().copied()
    }

    /// Whether an entry could begin there.
    pub(crate) fn may_begin(&self, place: Va) -> bool {
        self.at(place).is_some_and(|level| level.is_entry)
    }

    /// Whether one could begin there, but none right before.
    pub(crate) fn begins_anew(&self, place: Va) -> bool {
        let before = place.0.checked_sub(1).map(Va);
        self.may_begin(place) && before.is_some_and(|before| !self.may_begin(before))
    }

    /// The entries that one becomes; `places` ascend, are inside of it, and one may begin at each.
    pub(super) fn cut(&self, fde: FdeData, places: &[Va]) -> Vec<FdeData> {
        let ends = places.iter().copied().chain([fde.end]);
        let starts = std::iter::once(fde.start).chain(places.iter().copied());
        let part = |(start, end): (Va, Va)| {
            let is_first = start == fde.start;
            let num_remembered = self.at(start).map_or(0, |level| level.num_remembered);
            let remember = || CfiOp { at: start, bytes: smallvec![dw::DW_CFA_remember_state.0] };
            let mut ops: Vec<CfiOp> = (0..num_remembered).filter(|_| !is_first).map(|_| remember()).collect();
            ops.extend(fde.ops.iter().filter(|op| (op.at > start || is_first) && op.at < end).cloned());
            FdeData { start, end, ops, ..fde.clone() }
        };
        starts.zip(ends).map(part).collect()
    }
}
