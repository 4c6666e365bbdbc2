//! Joins units that only make sense together.
//!
//! **Method.** Union-find over: control that runs out of a unit's end into the next; branches into the middle of another unit; 8-bit
//! branches that cannot be stretched; jump-table entries (added later by the caller); and a unit whose start nothing but branches of one other
//! cluster names, which is how a split-off cold part looks. A branch to the start of a unit that is an entry of its own is a tail call and joins
//! nothing.
//!
//! Joining is always safe: a cluster is moved or pinned as one, and its units keep their own unwind entries. Terminates because each round but
//! the last joins at least two clusters.

use rayon::prelude::*;

use crate::discover::names::{NamedBy, Names};
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Unit, Units, unit_at};
use crate::entity::EntityId;

/// Disjoint sets of units; the smallest unit of a set represents it.
#[derive(Debug)]
pub(crate) struct Clusters {
    parent: Vec<u32>,
}

impl Clusters {
    pub(crate) fn new(len: usize) -> Self {
        Self { parent: (0..len as u32).collect() }
    }
    pub(crate) fn find(&self, unit: Unit) -> Unit {
        let mut at = unit.index();
        while self.parent[at] as usize != at {
            at = self.parent[at] as usize;
        }
        Unit::new(at)
    }
    /// Joins two sets; says whether they were apart.
    pub(crate) fn join(&mut self, a: Unit, b: Unit) -> bool {
        let (a, b) = (self.shorten(a), self.shorten(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parent[high.index()] = low.index() as u32;
        low != high
    }
    /// The root, with the path to it halved on the way.
    fn shorten(&mut self, unit: Unit) -> Unit {
        let mut at = unit.index();
        while self.parent[at] as usize != at {
            self.parent[at] = self.parent[self.parent[at] as usize];
            at = self.parent[at] as usize;
        }
        Unit::new(at)
    }
    /// The units of each cluster, clusters and units ascending.
    pub(crate) fn members(&self) -> Vec<Vec<Unit>> {
        let mut by_root: Vec<(Unit, Unit)> = (0..self.parent.len()).map(|i| (self.find(Unit::new(i)), Unit::new(i))).collect();
        by_root.sort();
        by_root.chunk_by(|a, b| a.0 == b.0).map(|group| group.iter().map(|m| m.1).collect()).collect()
    }
}

/// A branch from a unit into another.
struct Arrival {
    target: Unit,
    source: Unit,
    /// Into its middle, or by an instruction that can't be stretched.
    joins: bool,
}

/// The clusters that direct control flow makes.
pub(crate) fn join_by_flow(units: &Units, surveys: &[Survey], names: &Names) -> Clusters {
    let mut clusters = Clusters::new(units.len());
    for unit in units.keys().filter(|unit| surveys[unit.index()].falls_out) {
        if let Some(next) = following(units, unit) {
            clusters.join(unit, next);
        }
    }
    let arrivals =
        surveys.par_iter().enumerate().flat_map_iter(|(index, survey)| arrivals_from(units, names, Unit::new(index), survey));
    let (joining, mut others): (Vec<Arrival>, Vec<Arrival>) = arrivals.partition(|arrival| arrival.joins);
    for arrival in joining {
        clusters.join(arrival.source, arrival.target);
    }
    others.sort_unstable_by_key(|arrival| (arrival.target, arrival.source));
    join_single_source(&others, &mut clusters);
    clusters
}

/// Where branches of a unit arrive in others, but for those at entries of their own: these are tail calls.
fn arrivals_from<'a>(
    units: &'a Units,
    names: &'a Names,
    source: Unit,
    survey: &'a Survey,
) -> impl Iterator<Item = Arrival> + use<'a> {
    let branches = survey.names.iter().filter(|name| matches!(name.how, How::Jump | How::Branch | How::Loop));
    branches.filter_map(move |name| {
        let target = unit_at(units, name.target).filter(|&target| target != source)?;
        let joins = name.target != units[target].start || name.how == How::Loop;
        let is_entry = || names.at(name.target).intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL);
        (joins || !is_entry()).then_some(Arrival { target, source, joins })
    })
}

/// The unit that execution runs into from the end of another: the next one of its section.
pub(crate) fn following(units: &Units, unit: Unit) -> Option<Unit> {
    let next = units.get(Unit::new(unit.index() + 1))?;
    (next.section == units[unit].section).then(|| Unit::new(unit.index() + 1))
}

/// Joins each unit that is no entry of its own to the one cluster whose branches reach its start. `arrivals` ascend by their target.
fn join_single_source(arrivals: &[Arrival], clusters: &mut Clusters) {
    loop {
        let mut has_changed = false;
        for group in arrivals.chunk_by(|a, b| a.target == b.target) {
            let target = group[0].target;
            let mut sources = group.iter().map(|a| clusters.find(a.source)).filter(|&root| root != clusters.find(target));
            let Some(first) = sources.next() else { continue };
            if sources.all(|root| root == first) {
                has_changed |= clusters.join(first, target);
            }
        }
        if !has_changed {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    //! Joining does not depend on the order.

    use super::*;

    #[test]
    fn the_smallest_unit_stands_for_its_cluster_whatever_the_order_of_joins() {
        let unit = |index: usize| Unit::new(index);
        let mut clusters = Clusters::new(6);
        for (a, b) in [(5, 4), (3, 5), (1, 3)] {
            assert!(clusters.join(unit(a), unit(b)));
        }
        assert!(!clusters.join(unit(4), unit(1)));
        let members = clusters.members();
        assert_eq!(members, [vec![unit(0)], vec![unit(1), unit(3), unit(4), unit(5)], vec![unit(2)]]);
        assert!((3..6).all(|i| clusters.find(unit(i)) == unit(1)));
    }
}
