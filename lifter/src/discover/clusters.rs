//! Joins units that only make sense together.
//!
//! **Method.** Union-find over: control that runs out of a unit's end into the next; branches into the middle of another unit; 8-bit
//! branches that cannot be stretched; jump-table entries (added later by the caller); and a unit whose start nothing but branches of one other
//! cluster names, which is how a split-off cold part looks. A branch to the start of a unit that is an entry of its own is a tail call and joins
//! nothing.
//!
//! Joining is always safe: a cluster is moved or pinned as one, and its units keep their own unwind entries. Terminates because each round but
//! the last joins at least two clusters.

use crate::discover::names::{NamedBy, Names};
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Unit, Units, unit_at, unit_starting_at};
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

/// The clusters that direct control flow makes.
pub(crate) fn join_by_flow(units: &Units, surveys: &[Survey], names: &Names) -> Clusters {
    let mut clusters = Clusters::new(units.len());
    for unit in units.keys() {
        let survey = &surveys[unit.index()];
        if survey.falls_out
            && let Some(next) = following(units, unit)
        {
            clusters.join(unit, next);
        }
        for name in &survey.names {
            let Some(target) = unit_at(units, name.target) else { continue };
            let is_branch = matches!(name.how, How::Jump | How::Branch | How::Loop);
            let is_middle = name.target != units[target].start;
            let must_join = is_branch && is_middle || name.how == How::Loop;
            if must_join && target != unit {
                clusters.join(unit, target);
            }
        }
    }
    join_single_source(units, surveys, names, &mut clusters);
    clusters
}

/// The unit that execution runs into from the end of another: the next one of its section.
pub(crate) fn following(units: &Units, unit: Unit) -> Option<Unit> {
    let next = units.get(Unit::new(unit.index() + 1))?;
    (next.section == units[unit].section).then(|| Unit::new(unit.index() + 1))
}

/// Joins each unit that is no entry of its own to the one cluster whose branches reach its start.
fn join_single_source(units: &Units, surveys: &[Survey], names: &Names, clusters: &mut Clusters) {
    let mut arrivals: Vec<(Unit, Unit)> = Vec::new();
    for (unit, _) in units.iter() {
        let branches = surveys[unit.index()].names.iter().filter(|n| matches!(n.how, How::Jump | How::Branch));
        for target in branches.filter_map(|name| unit_starting_at(units, name.target)) {
            let by = names.at(units[target].start);
            if target != unit && !by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL) {
                arrivals.push((target, unit));
            }
        }
    }
    arrivals.sort();
    loop {
        let mut has_changed = false;
        for group in arrivals.chunk_by(|a, b| a.0 == b.0) {
            let target = group[0].0;
            let mut sources = group.iter().map(|a| clusters.find(a.1)).filter(|&root| root != clusters.find(target));
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
