//! Local functions that never return, by proof: their clusters contain no return, no indirect jump, no call of what puts another return address in the
//! place of its own, and no way out but into others like them.
//!
//! The greatest solution is wanted (two functions that only jump to each other never return), so every cluster without a return of its own is a
//! candidate until a way out is found. Terminates because each round removes a candidate.

use crate::address::Va;
use crate::cfg::thunks::drops_its_return_address;
use crate::discover::clusters::Clusters;
use crate::discover::stubs::Stubs;
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Bounds, Units, unit_at};
use crate::elf::Image;
use crate::entity::EntityId;

/// The start of every unit whose cluster can't return.
pub(crate) fn find_no_return(
    image: &Image<'_>,
    units: &Units,
    surveys: &[Survey],
    stubs: &Stubs,
    clusters: &Clusters,
) -> Vec<Va> {
    let mut is_candidate = vec![true; units.len()];
    let mut exits: Vec<(usize, Option<usize>)> = Vec::new();
    for (unit, data) in units.iter() {
        let (root, survey) = (clusters.find(unit).index(), &surveys[unit.index()]);
        let is_left_by_a_call = || survey.names.iter().any(|n| n.how == How::Call && drops_its_return_address(image, n.target));
        if survey.may_return || survey.problem.is_some() || data.bounds == Bounds::Gap || is_left_by_a_call() {
            is_candidate[root] = false;
            continue;
        }
        for name in survey.names.iter().filter(|n| matches!(n.how, How::Jump | How::Branch | How::Loop)) {
            match unit_at(units, name.target).map(|target| clusters.find(target).index()) {
                Some(target) if target != root => exits.push((root, Some(target))),
                None if !stubs.is_no_return(name.target) => exits.push((root, None)),
                _ => {}
            }
        }
    }
    loop {
        let mut has_changed = false;
        for &(root, target) in &exits {
            if is_candidate[root] && target.is_none_or(|t| !is_candidate[t]) {
                is_candidate[root] = false;
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    units.iter().filter(|(unit, _)| is_candidate[clusters.find(*unit).index()]).map(|(_, data)| data.start).collect()
}
