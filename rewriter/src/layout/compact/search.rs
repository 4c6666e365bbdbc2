//! Single chains moved to where they cost least.
//!
//! **Problem.** A chain may be tried at dozens of places, and what an order is worth depends on all branches of the function.
//!
//! **Method.** A chain goes from place to place by changing places with its neighbor: then only these two have other addresses, and only their branches and the
//! three seams around them are worth something else. So to pass all places costs about as much as to weigh one order from scratch. What the branches of the chain itself save is
//! carried along: after it has passed one neighbor that is what it is before it passes the next.
//!
//! **Invariant.** `starts` are the addresses of `order`, and `worth` is what [`Search::weigh`] says of it.

use super::seams::Told;
use super::{Model, WORK_MAX};

/// How many places near its own, and near each chain that it has to do with, a chain is tried at.
const NEAR: usize = 10;
const NEAR_KIN: usize = 2;

pub(super) struct Search<'a> {
    model: &'a Model<'a>,
    pub(super) order: Vec<u32>,
    /// By chain, where it begins.
    starts: Vec<i64>,
    /// What branches save, less what the order costs in unwind tables.
    worth: i64,
}

impl<'a> Search<'a> {
    pub(super) fn new(model: &'a Model<'a>, order: Vec<u32>) -> Self {
        let starts = vec![0; order.len()];
        let mut search = Search { model, order, starts, worth: 0 };
        search.worth = search.weigh();
        search
    }

    #[cfg(test)]
    pub(super) fn worth(&self) -> i64 {
        self.worth
    }

    /// Lays the order out, and adds up what it is worth.
    fn weigh(&mut self) -> i64 {
        let mut at = 0;
        for &chain in &self.order {
            self.starts[chain as usize] = at;
            at += self.model.lens[chain as usize];
        }
        let seams: i64 = (0..self.order.len()).map(|place| self.seam_behind(place)).sum();
        let saved = |chain: u32| self.model.ties.of_chain(chain).iter().filter(|tie| tie.is_source).map(move |tie| (chain, tie));
        let saved = (0..self.order.len() as u32).flat_map(saved);
        saved.map(|(chain, tie)| tie.saved(self.starts[chain as usize], self.starts[tie.other as usize])).sum::<i64>() - seams
    }

    /// Bytes of unwind tables between a place and the next.
    fn seam_behind(&self, place: usize) -> i64 {
        let next = self.order.get(place + 1).map_or(Told::default(), |&next| self.model.ends[next as usize].0);
        self.model.graph.seams.step(self.model.ends[self.order[place] as usize].1, next)
    }

    /// What the branches of a chain save, those that lead to it included.
    fn saved_by(&self, chain: u32) -> i64 {
        let start = self.starts[chain as usize];
        self.model.ties.of_chain(chain).iter().map(|tie| tie.saved(start, self.starts[tie.other as usize])).sum()
    }

    /// Lets the chain at a place and its neighbor at another change places. `own` is what the chain's branches save; returns what they save then.
    fn pass(&mut self, from: usize, to: usize, own: i64) -> i64 {
        let (chain, neighbor) = (self.order[from], self.order[to]);
        let first = from.min(to);
        let seams = |search: &Self| -> i64 { (first.saturating_sub(1)..=first + 1).map(|at| search.seam_behind(at)).sum() };
        let before = own - seams(self);
        let (len, neighbor_len) = (self.model.lens[chain as usize], self.model.lens[neighbor as usize]);
        let (by, neighbor_by) = if to > from { (neighbor_len, -len) } else { (-neighbor_len, len) };
        let here = self.starts[neighbor as usize];
        let there = here + neighbor_by;
        let mut more = 0;
        for tie in self.model.ties.of_chain(neighbor).iter().filter(|tie| tie.other != chain) {
            let other = self.starts[tie.other as usize];
            more += tie.saved(there, other) - tie.saved(here, other);
        }
        self.starts[neighbor as usize] = there;
        self.starts[chain as usize] += by;
        self.order.swap(from, to);
        let own = self.saved_by(chain);
        self.worth += more + own - seams(self) - before;
        own
    }

    /// Moves a chain from one place to another, and says what each order on the way is worth.
    fn carry(&mut self, from: usize, to: usize, mut visit: impl FnMut(usize, i64)) {
        let mut own = self.saved_by(self.order[from]);
        for place in from..to {
            own = self.pass(place, place + 1, own);
            visit(place + 1, self.worth);
        }
        for place in (to..from).rev() {
            own = self.pass(place + 1, place, own);
            visit(place, self.worth);
        }
    }

    /// Undoes what moved between two places.
    fn put_back(&mut self, place: usize, chains: &[u32], worth: i64) {
        let mut at = self.starts[self.order[place] as usize];
        for (offset, &chain) in chains.iter().enumerate() {
            self.order[place + offset] = chain;
            self.starts[chain as usize] = at;
            at += self.model.lens[chain as usize];
        }
        self.worth = worth;
    }

    /// Tries other places for each chain but the first; whether any moved.
    pub(super) fn round(&mut self, work: &mut usize) -> bool {
        let count = self.order.len();
        let cost = count + self.model.ties.num_branches();
        let mut has_changed = false;
        let mut places_of: Vec<usize> = vec![0; count];
        for (place, &chain) in self.order.iter().enumerate() {
            places_of[chain as usize] = place;
        }
        let (mut places, mut passed) = (Places::new(count), Vec::new());
        for chain in 1..count as u32 {
            let from = places_of[chain as usize];
            self.choose_places(chain, from, &places_of, &mut places);
            if places.count == 0 {
                continue;
            }
            *work += cost * places.count;
            let known = self.worth;
            // The first of the best, if it is better than what is.
            let mut best: Option<(i64, std::cmp::Reverse<usize>)> = None;
            let mut note = |place: usize, worth: i64| {
                let found = Some((worth, std::cmp::Reverse(place)));
                if worth > known && places.contain(place) && found > best {
                    best = found;
                }
            };
            for end in [places.last.max(from), places.first.min(from)] {
                let range = from.min(end)..from.max(end) + 1;
                passed.clear();
                passed.extend_from_slice(&self.order[range.clone()]);
                self.carry(from, end, &mut note);
                self.put_back(range.start, &passed, known);
            }
            if let Some((_, std::cmp::Reverse(place))) = best {
                self.carry(from, place, |_, _| {});
                for at in from.min(place)..=from.max(place) {
                    places_of[self.order[at] as usize] = at;
                }
                has_changed = true;
            }
            if *work > WORK_MAX {
                break;
            }
        }
        has_changed
    }

    /// Places near its own, and near those of chains that it has to do with.
    fn choose_places(&self, chain: u32, from: usize, places_of: &[usize], places: &mut Places) {
        places.clear();
        let mut choose = |first: usize, last: usize| {
            // The first chain of all has its place.
            (first.max(1)..=last.min(self.order.len() - 1)).filter(|&place| place != from).for_each(|place| places.add(place));
        };
        choose(from.saturating_sub(NEAR), from + NEAR);
        for tie in self.model.ties.of_chain(chain) {
            // Where it is without this chain.
            let place = places_of[tie.other as usize] - usize::from(places_of[tie.other as usize] > from);
            choose((place + 1).saturating_sub(NEAR_KIN), place + 1 + NEAR_KIN);
        }
    }
}

/// A set of places, which is made anew for each chain without looking at all.
struct Places {
    turn: u32,
    /// By place, the last turn in which it was one of them.
    turns: Vec<u32>,
    count: usize,
    first: usize,
    last: usize,
}

impl Places {
    fn new(num_places: usize) -> Self {
        Self { turn: 0, turns: vec![0; num_places], count: 0, first: usize::MAX, last: 0 }
    }

    fn clear(&mut self) {
        self.turn += 1;
        (self.count, self.first, self.last) = (0, usize::MAX, 0);
    }

    fn add(&mut self, place: usize) {
        if std::mem::replace(&mut self.turns[place], self.turn) != self.turn {
            self.count += 1;
            (self.first, self.last) = (self.first.min(place), self.last.max(place));
        }
    }

    fn contain(&self, place: usize) -> bool {
        self.turns[place] == self.turn
    }
}
