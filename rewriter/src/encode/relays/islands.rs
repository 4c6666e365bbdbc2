//! Jumps that are put between blocks as relays of several branches.
//!
//! **Method.** For each place to which long branches are left, from the first on: of the ends of blocks in its reach over which nothing runs the one that most of the others reach as well. A jump of five bytes is
//! put there if what becomes short saves more. It moves what lies behind, so no short branch over it may be at its limit; what several islands of one round add up to is counted.
//!
//! **Terminates**: each island makes two branches short at least.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{Island, Long, Place, Relays};
use crate::materialize::OutTarget;
use crate::terminator::{LONG_JUMP, SHORT};

/// As far as any short branch reaches, its own bytes included.
const REACH: u32 = 130;

/// Ends of blocks behind which there is room, and branches that must go on reaching.
struct Terrain {
    /// Ascending: the offset behind a block, and the block.
    points: Vec<(u32, u32)>,
    /// Short branches, from the lower of where they end and where they lead to the higher.
    spans: BTreeMap<u32, Vec<Span>>,
    /// Where islands were added. They shift what is there and behind.
    added: BTreeSet<u32>,
}

#[derive(Copy, Clone)]
struct Span {
    high: u32,
    /// Between both ends, at most.
    limit: u32,
}

impl Terrain {
    /// By how much islands moved apart what is at two places.
    fn grown(&self, one: u32, other: u32) -> u32 {
        let between = (Bound::Excluded(one.min(other)), Bound::Included(one.max(other)));
        if one == other { 0 } else { LONG_JUMP * self.added.range(between).count() as u32 }
    }

    /// Whether all that leads over a place still reaches if there is an island.
    fn has_room(&self, point: u32) -> bool {
        let near = self.spans.range(point.saturating_sub(REACH)..point);
        let mut over =
            near.flat_map(|(&low, spans)| spans.iter().map(move |span| (low, span))).filter(|(_, span)| point <= span.high);
        over.all(|(low, span)| span.high - low + self.grown(low, span.high) + LONG_JUMP <= span.limit)
    }

    fn add_span(&mut self, end: u32, to: u32) {
        let limit = if to >= end { super::FORWARD } else { super::BACKWARD };
        self.spans.entry(end.min(to)).or_default().push(Span { high: end.max(to), limit });
    }
}

impl<F: Fn(OutTarget) -> bool> Relays<'_, F> {
    /// Adds islands where they save bytes; whether there are any more.
    pub(super) fn add_islands(&mut self) -> bool {
        let longs = self.long_branches();
        if !longs.windows(2).any(|pair| pair[0].is_alike(&pair[1])) {
            return false;
        }
        let mut terrain = self.terrain();
        let (first_way, num_before) = (self.ways.len(), self.relaxed.islands.len());
        for alike in longs.chunk_by(Long::is_alike) {
            let mut left: Vec<&Long> = alike.iter().filter(|long| self.may_go(long)).collect();
            while left.len() > 1 {
                let served = self.best_island(&mut terrain, &left);
                match served.is_empty() {
                    true => drop(left.remove(0)),
                    false => left.retain(|long| !served.contains(&long.offset)),
                }
            }
        }
        if self.relaxed.islands.len() == num_before {
            return false;
        }
        self.shorten_from(first_way);
        true
    }

    /// Adds the island that serves the first of some branches and most of the others, if it is worth its bytes; returns the offsets of those that it serves.
    fn best_island(&mut self, terrain: &mut Terrain, alike: &[&Long]) -> Vec<u32> {
        let first = alike[0];
        let start = terrain.points.partition_point(|&(at, _)| at + REACH < first.offset);
        let in_reach = terrain.points[start..].iter().take_while(|&&(at, _)| at <= first.offset + REACH);
        let serves = |long: &Long, at: u32| long.reaches(at, terrain.grown(long.offset, at));
        let saved = |at: u32| {
            let near = alike.iter().take_while(|long| long.offset <= at + REACH).filter(|long| serves(long, at));
            near.map(|long| long.len() - SHORT).sum::<u32>()
        };
        let worth = in_reach.filter(|&&(at, _)| serves(first, at)).map(|&(at, block)| (saved(at), at, block));
        let best = worth.filter(|&(saved, at, _)| saved > LONG_JUMP && terrain.has_room(at)).max();
        let Some((_, at, block)) = best else { return Vec::new() };
        let near = alike.iter().copied().take_while(|long| long.offset <= at + REACH);
        let served: Vec<&Long> = near.filter(|long| serves(long, at)).collect();
        let Place::InBlock(source) = first.place else { return Vec::new() };
        let island = self.relaxed.islands.len() as u32;
        self.relaxed.islands.push(Island { block, target: first.target, stands: self.fragment.ends[source as usize].at });
        self.relaxed.has_island[block as usize] = true;
        self.unwinding.push(first.unwinding);
        terrain.points.retain(|point| point.1 != block);
        terrain.added.insert(at);
        for long in &served {
            self.lead(long, Place::Island(island));
            let end = if at > long.offset { long.offset + long.len() } else { long.offset + SHORT };
            terrain.add_span(end, at);
        }
        served.iter().map(|long| long.offset).collect()
    }

    fn terrain(&mut self) -> Terrain {
        let (shapes, ends) = (self.fragment.shapes, self.fragment.ends);
        self.relaxed.has_island.resize(shapes.len(), false);
        self.note_relayed();
        let mut terrain = Terrain { points: Vec::new(), spans: BTreeMap::new(), added: BTreeSet::new() };
        for (index, shape) in shapes.iter().enumerate() {
            if ends[index].is_closed && !self.relaxed.has_island[index] {
                terrain.points.push((self.relaxed.end_offset(shapes, index), index as u32));
            }
            for (end, to) in self.relaxed.short_branches(shape, index, self.fragment.blocks).into_iter().flatten() {
                terrain.add_span(end, to);
            }
        }
        terrain
    }
}
