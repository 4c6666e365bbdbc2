//! Which block of a function is which of the same function in another build.
//!
//! **Method.** Blocks are matched in passes, surest evidence first; each block is matched at most once.
//! 1. The entries.
//! 2. Blocks whose hash together with those of their neighbors is the only one of its kind on both sides, then those whose own hash is.
//! 3. After each pass, matches spread: if two blocks match, their successors are matched with each other by hash, and so are their predecessors.
//! 4. Blocks that share their hash with others go by their place between matched blocks, nearest first.
//! 5. What is left and stands where its counterpart should, as the only candidate among the successors or predecessors of a matched pair,
//!    is taken for it: its content was edited.
//!
//! Hashes are tried from strong to loose. A pass visits each block once and sorts; spreading visits each edge a fixed number of
//! times for each level. Groups of equal blocks are cut off at a bound, past which they are matched in order.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::flow::Adjacency;
use crate::outline::{BlockOutline, FuncOutline};

/// How two blocks were found to be the same, surest first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Strong,
    Middle,
    Loose,
    Position,
}

const HASHED: [Level; 3] = [Level::Strong, Level::Middle, Level::Loose];

impl Level {
    fn hash(self, block: &BlockOutline) -> u32 {
        match self {
            Level::Strong => block.strong,
            Level::Middle => block.middle,
            Level::Loose => block.loose,
            Level::Position => 0,
        }
    }
    /// How many instructions make a block that is alone in its function by this hash worth believing.
    fn len_min(self) -> u32 {
        match self {
            Level::Strong => 2,
            Level::Middle => 3,
            Level::Loose | Level::Position => 5,
        }
    }
}

/// The surest level at which two blocks are equal.
fn level_of(old: &BlockOutline, new: &BlockOutline) -> Level {
    HASHED.into_iter().find(|level| level.hash(old) == level.hash(new)).unwrap_or(Level::Position)
}

/// By block of the old function, its counterpart and how it was found.
pub(super) fn match_blocks(old: &FuncOutline, new: &FuncOutline) -> Matches {
    if old.content_hash == new.content_hash && old.blocks.len() == new.blocks.len() {
        return (0..old.blocks.len() as u32).map(|i| Some((i, Level::Strong))).collect();
    }
    let mut matcher = Matcher::new(old, new);
    matcher.run();
    matcher.to_new
}

/// One side of the match.
struct Side<'a> {
    func: &'a FuncOutline,
    successors: Adjacency,
    predecessors: Adjacency,
    /// By block, a hash of the loose hashes of its neighbors.
    around: Vec<u32>,
}

impl<'a> Side<'a> {
    fn new(func: &'a FuncOutline) -> Self {
        let successors = Adjacency::build(func.blocks.len(), func.edges.iter().map(|e| e.source));
        let predecessors = Adjacency::build(func.blocks.len(), func.edges.iter().map(|e| e.target));
        let mut side = Side { func, successors, predecessors, around: Vec::new() };
        side.around = (0..func.blocks.len() as u32).map(|block| side.surroundings(block)).collect();
        side
    }

    fn surroundings(&self, block: u32) -> u32 {
        let sum = |blocks: &mut dyn Iterator<Item = u32>, factor: u32| {
            blocks.fold(0u32, |sum, b| sum.wrapping_add(self.func.blocks[b as usize].loose.wrapping_mul(factor)))
        };
        sum(&mut self.next(block), 0x9e37_79b1) ^ sum(&mut self.before(block), 0x85eb_ca77).rotate_left(7)
    }

    fn next(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        self.successors.of(block).iter().map(|&e| self.func.edges[e as usize].target)
    }
    fn before(&self, block: u32) -> impl Iterator<Item = u32> + '_ {
        self.predecessors.of(block).iter().map(|&e| self.func.edges[e as usize].source)
    }
    fn block(&self, block: u32) -> &BlockOutline {
        &self.func.blocks[block as usize]
    }
}

/// An old and a new block with one key, and whether there are more.
type Candidates = (Option<u32>, Option<u32>, bool);

/// By block of the old function, its counterpart and how it was found.
pub(super) type Matches = Vec<Option<(u32, Level)>>;

struct Matcher<'a> {
    old: Side<'a>,
    new: Side<'a>,
    to_new: Matches,
    is_taken: Vec<bool>,
    /// Pairs from which matches have yet to spread.
    queue: VecDeque<(u32, u32)>,
}

impl<'a> Matcher<'a> {
    fn new(old: &'a FuncOutline, new: &'a FuncOutline) -> Self {
        Matcher {
            to_new: vec![None; old.blocks.len()],
            is_taken: vec![false; new.blocks.len()],
            old: Side::new(old),
            new: Side::new(new),
            queue: VecDeque::new(),
        }
    }

    fn run(&mut self) {
        let entries = (self.old.func.entry, self.new.func.entry);
        if self.to_new.len() as u32 > entries.0 && self.is_taken.len() as u32 > entries.1 {
            self.join(entries.0, entries.1, level_of(self.old.block(entries.0), self.new.block(entries.1)));
        }
        for level in HASHED {
            self.match_unique(level, true);
            self.spread(level);
            self.match_unique(level, false);
            self.spread(level);
        }
        for level in HASHED {
            self.match_by_order(level);
            self.requeue();
            self.spread(Level::Loose);
        }
        self.requeue();
        self.spread(Level::Position);
    }

    fn join(&mut self, old: u32, new: u32, level: Level) {
        self.to_new[old as usize] = Some((new, level));
        self.is_taken[new as usize] = true;
        self.queue.push_back((old, new));
    }

    fn open_old(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.to_new.len() as u32).filter(|&b| self.to_new[b as usize].is_none())
    }
    fn open_new(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.is_taken.len() as u32).filter(|&b| !self.is_taken[b as usize])
    }

    /// Matches blocks whose key is the only one of its kind on both sides.
    fn match_unique(&mut self, level: Level, with_neighbors: bool) {
        let key = |side: &Side<'_>, block: u32| {
            (level.hash(side.block(block)), if with_neighbors { side.around[block as usize] } else { 0 })
        };
        let is_telling = |side: &Side<'_>, block: u32| with_neighbors || side.block(block).num_insts >= level.len_min();
        let mut found: FxHashMap<(u32, u32), Candidates> = FxHashMap::default();
        for block in self.open_old().filter(|&b| is_telling(&self.old, b)) {
            let entry = found.entry(key(&self.old, block)).or_default();
            entry.2 |= entry.0.replace(block).is_some();
        }
        for block in self.open_new().filter(|&b| is_telling(&self.new, b)) {
            let entry = found.entry(key(&self.new, block)).or_default();
            entry.2 |= entry.1.replace(block).is_some();
        }
        let mut pairs: Vec<(u32, u32)> = found.into_values().filter(|e| !e.2).filter_map(|e| Some((e.0?, e.1?))).collect();
        pairs.sort_unstable();
        for (old, new) in pairs {
            self.join(old, new, level);
        }
    }

    fn requeue(&mut self) {
        self.queue = (0..).zip(&self.to_new).filter_map(|(old, found)| Some((old, found.as_ref()?.0))).collect();
    }

    /// From matched pairs to their successors and predecessors, down to a level.
    fn spread(&mut self, lowest: Level) {
        while let Some((old, new)) = self.queue.pop_front() {
            for is_forward in [true, false] {
                let (mut left, mut right): (Vec<u32>, Vec<u32>) = match is_forward {
                    true => (self.old.next(old).collect(), self.new.next(new).collect()),
                    false => (self.old.before(old).collect(), self.new.before(new).collect()),
                };
                for level in HASHED.into_iter().chain([Level::Position]).filter(|&level| level <= lowest) {
                    self.retain_open(&mut left, &mut right);
                    if left.is_empty() || right.is_empty() {
                        break;
                    }
                    self.pair_up(&left, &right, level);
                }
            }
        }
    }

    fn retain_open(&self, left: &mut Vec<u32>, right: &mut Vec<u32>) {
        left.retain(|&b| self.to_new[b as usize].is_none());
        right.retain(|&b| !self.is_taken[b as usize]);
        for list in [left, right] {
            let mut seen = Vec::with_capacity(list.len().min(8));
            // Parallel edges are rare and short.
            if list.len() <= 8 {
                list.retain(|b| {
                    !seen.contains(b) && {
                        seen.push(*b);
                        true
                    }
                });
            } else {
                list.sort_unstable();
                list.dedup();
            }
        }
    }

    /// Matches the blocks of two lists whose hash is the only one of its kind in each.
    fn pair_up(&mut self, left: &[u32], right: &[u32], level: Level) {
        let keyed = |side: &Side<'_>, list: &[u32]| {
            let mut keyed: Vec<(u32, u32)> = list.iter().map(|&b| (level.hash(side.block(b)), b)).collect();
            keyed.sort_unstable();
            keyed
        };
        let (left, right) = (keyed(&self.old, left), keyed(&self.new, right));
        let mut pairs = Vec::new();
        let mut at = 0;
        for group in left.chunk_by(|a, b| a.0 == b.0) {
            let hash = group[0].0;
            while at < right.len() && right[at].0 < hash {
                at += 1;
            }
            let end = at + right[at..].iter().take_while(|r| r.0 == hash).count();
            if group.len() == 1 && end == at + 1 {
                pairs.push((group[0].1, right[at].1));
            }
        }
        for (old, new) in pairs {
            self.join(old, new, level);
        }
    }

    /// Matches what shares its hash with others by its distance from matched blocks.
    fn match_by_order(&mut self, level: Level) {
        const PAIRS_MAX: usize = 20_000;
        let mut groups: FxHashMap<u32, (Vec<u32>, Vec<u32>)> = FxHashMap::default();
        for block in self.open_old() {
            groups.entry(level.hash(self.old.block(block))).or_default().0.push(block);
        }
        for block in self.open_new() {
            groups.entry(level.hash(self.new.block(block))).or_default().1.push(block);
        }
        let mut groups: Vec<_> = groups.into_values().filter(|(old, new)| !old.is_empty() && !new.is_empty()).collect();
        groups.sort_unstable();
        let places = self.places();
        for (old, new) in groups {
            if old.len() == new.len() || old.len() * new.len() > PAIRS_MAX {
                old.iter().zip(&new).for_each(|(&old, &new)| self.join(old, new, level));
                continue;
            }
            let mut pairs: Vec<(u32, u32, u32)> = Vec::with_capacity(old.len() * new.len());
            for &a in &old {
                pairs.extend(new.iter().map(|&b| (places[a as usize].abs_diff(b), a, b)));
            }
            pairs.sort_unstable();
            for (_, a, b) in pairs {
                if self.to_new[a as usize].is_none() && !self.is_taken[b as usize] {
                    self.join(a, b, level);
                }
            }
        }
    }

    /// By old block, where its counterpart should be: as far behind that of the last matched block as it is behind that one.
    fn places(&self) -> Vec<u32> {
        let (mut last_old, mut last_new) = (0u32, 0u32);
        let mut places = Vec::with_capacity(self.to_new.len());
        for (block, found) in (0..).zip(&self.to_new) {
            if let Some((new, _)) = *found {
                (last_old, last_new) = (block, new);
            }
            places.push(last_new + (block - last_old));
        }
        places
    }
}
