//! In which order the places of a region lie, and which of them lie apart.
//!
//! **Method.** Places that run less often than some share lie apart, for each share that occurs; of the others, the order is the one that costs least, by
//! dynamic programming over sets of places and the last of each (Held and Karp's, for paths), or with many of them two orders that are mostly good: what
//! mostly follows follows, and what mostly follows comes last. A branch that is taken costs one each time, a jump two: it is executed besides. Which of the candidates is
//! best `copy` finds out by writing them.

use lifter::entity::Block;

use super::super::region::{Node, Region, Ways};
use crate::transform::Context;

/// Of more places not all orders are looked at.
const PLACES_MAX: usize = 8;

/// Places in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) nodes: Vec<Node>,
    /// How many of them stand where the call was; the others lie apart.
    pub(super) in_place: usize,
    /// From here on, places lie apart from these too: they never run.
    idle_from: usize,
}

impl Order {
    /// The number of the part that a place is in.
    pub(super) fn part(&self, index: usize) -> usize {
        usize::from(index >= self.in_place) + usize::from(index >= self.idle_from && self.idle_from > self.in_place)
    }
}

/// Where control goes from a place.
struct Place {
    node: Node,
    share: u64,
    ways: Option<Ways>,
}

/// Orders of which one is best.
pub(super) fn candidates(context: &Context<'_>, region: &Region) -> Option<Vec<Order>> {
    let places = places(context, region)?;
    let mut shares: Vec<u64> = places.iter().map(|place| place.share).collect();
    shares.sort_unstable();
    shares.dedup();
    let mut orders: Vec<Order> = Vec::new();
    for least in shares {
        let stays = |index: usize| index == 0 || places[index].share >= least;
        let (in_place, apart): (Vec<usize>, Vec<usize>) = (0..places.len()).partition(|&index| stays(index));
        let (running, idle): (Vec<usize>, Vec<usize>) = apart.into_iter().partition(|&index| places[index].share > 0);
        let paths = if in_place.len() <= PLACES_MAX {
            vec![cheapest(&places, &in_place)]
        } else {
            let last: Vec<usize> = usual_last(&places).into_iter().filter(|&index| stays(index)).collect();
            vec![in_place, last]
        };
        for path in paths {
            let nodes = path.iter().chain(&running).chain(&idle).map(|&index| places[index].node).collect();
            let order = Order { nodes, in_place: path.len(), idle_from: path.len() + running.len() };
            if !orders.contains(&order) {
                orders.push(order);
            }
        }
    }
    Some(orders)
}

/// The places of a region, each followed by where it mostly leads, if that is not placed yet.
fn places(context: &Context<'_>, region: &Region) -> Option<Vec<Place>> {
    let mut places: Vec<Place> = Vec::new();
    let mut open = vec![Node::Copy(region.blocks.first()?.0)];
    while let Some(node) = open.pop() {
        if places.iter().any(|place| place.node == node) {
            continue;
        }
        let (share, ways) = match node {
            Node::Copy(block) => (region.share(block)?, Some(region.ways(context, block)?)),
            Node::Exit { .. } => (exit_share(context, region, node)?, None),
        };
        let place = Place { node, share, ways };
        open.extend(targets(&place).into_iter().rev());
        places.push(place);
    }
    Some(places)
}

/// How often a place that is called is reached.
pub(super) fn exit_share(context: &Context<'_>, region: &Region, exit: Node) -> Option<u64> {
    let into = |block: Block| -> Option<u64> {
        let ways = match region.ways(context, block)? {
            Ways::One(way, _) => vec![way],
            Ways::Two(_, taken, next) => vec![taken, next],
            Ways::Return | Ways::IndirectTailCall => Vec::new(),
        };
        Some(ways.iter().filter(|way| way.to == exit).map(|way| way.share).sum())
    };
    region.blocks.iter().map(|&(block, _)| into(block)).sum()
}

/// Where a place leads, the more frequent way first.
fn targets(place: &Place) -> Vec<Node> {
    match place.ways {
        None | Some(Ways::Return | Ways::IndirectTailCall) => Vec::new(),
        Some(Ways::One(way, _)) => vec![way.to],
        Some(Ways::Two(_, taken, next)) if taken.share > next.share => vec![taken.to, next.to],
        Some(Ways::Two(_, taken, next)) => vec![next.to, taken.to],
    }
}

/// Each place comes behind those that lead to it (loops aside), and behind what they rarely lead to.
fn usual_last(places: &[Place]) -> Vec<usize> {
    let index_of = |node: Node| places.iter().position(|place| place.node == node);
    let mut done = Vec::new();
    let mut seen = vec![0];
    // A place and how many of its ways were gone.
    let mut path = vec![(0, 0)];
    while let Some((index, gone)) = path.pop() {
        match targets(&places[index]).get(gone) {
            None => done.push(index),
            Some(&next) => {
                path.push((index, gone + 1));
                if let Some(next) = index_of(next).filter(|next| !seen.contains(next)) {
                    seen.push(next);
                    path.push((next, 0));
                }
            }
        }
    }
    done.reverse();
    done
}

/// What it costs that one place is followed by another, or by the end.
fn cost(place: &Place, next: Option<&Place>) -> u64 {
    let follows = |node: Node| next.is_some_and(|next| next.node == node);
    match place.ways {
        None | Some(Ways::Return | Ways::IndirectTailCall) if next.is_none() => 0,
        None | Some(Ways::Return | Ways::IndirectTailCall) => 2 * place.share,
        Some(Ways::One(way, _)) if follows(way.to) => 0,
        Some(Ways::One(way, _)) => 2 * way.share,
        Some(Ways::Two(_, taken, next)) if follows(taken.to) => next.share,
        Some(Ways::Two(_, taken, next)) if follows(next.to) => taken.share,
        Some(Ways::Two(_, taken, next)) => taken.share.max(next.share) + 2 * taken.share.min(next.share),
    }
}

/// The order of some places, the first of which stays first, that costs least.
fn cheapest(places: &[Place], chosen: &[usize]) -> Vec<usize> {
    let count = chosen.len();
    let place = |index: usize| &places[chosen[index]];
    let all = (1usize << count) - 1;
    // By the set of places passed and the last of them: the cost so far, and the place before.
    let mut best: Vec<Option<(u64, usize)>> = vec![None; (all + 1) * count];
    best[count] = Some((0, 0));
    for set in 1..=all {
        for last in 0..count {
            let Some((so_far, _)) = best[set * count + last] else { continue };
            for next in (0..count).filter(|next| set & (1 << next) == 0) {
                let sum = so_far + cost(place(last), Some(place(next)));
                let known = &mut best[(set | 1 << next) * count + next];
                if known.is_none_or(|(known, _)| sum < known) {
                    *known = Some((sum, last));
                }
            }
        }
    }
    let whole = |last: usize| best[all * count + last].map(|(sum, _)| (sum + cost(place(last), None), last));
    let mut path = Vec::with_capacity(count);
    let (mut set, mut last) = (all, (0..count).filter_map(whole).min().map_or(0, |(_, last)| last));
    while let Some((_, before)) = best[set * count + last] {
        path.push(chosen[last]);
        set &= !(1 << last);
        last = before;
    }
    path.reverse();
    path
}
