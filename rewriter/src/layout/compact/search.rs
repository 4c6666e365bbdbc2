//! Single chains moved to where they cost least.
//!
//! **Problem.** A chain may be tried at dozens of places, and what an order is worth depends on all branches of the function.
//!
//! **Method.** A chain goes from place to place by changing places with its neighbor: then only these two have other addresses, and only their branches and the
//! three seams around them are worth something else. So to pass all places costs about as much as to weigh one order from scratch.
//!
//! **Invariant.** `starts` are the addresses of `order`, and `worth` is what [`Search::weigh`] says of it.

use super::{Branch, Model, REACH, WORK_MAX};

/// How many places near its own, and near each chain that it has to do with, a chain is tried at.
const NEAR: usize = 10;
const NEAR_KIN: usize = 2;

pub(super) struct Search<'a> {
    model: &'a Model<'a>,
    pub(super) order: Vec<u32>,
    /// By chain, where it begins.
    starts: Vec<i64>,
    /// By chain, its branches and those that lead to it, each once.
    branches: Vec<Vec<u32>>,
    /// What branches save, less what the order costs in unwind rows.
    worth: i64,
}

impl<'a> Search<'a> {
    pub(super) fn new(model: &'a Model<'a>, order: Vec<u32>) -> Self {
        let mut branches: Vec<Vec<u32>> = vec![Vec::new(); order.len()];
        for (index, branch) in (0..).zip(&model.branches) {
            branches[branch.chain as usize].push(index);
            branches[branch.to_chain as usize].push(index);
        }
        let starts = vec![0; order.len()];
        let mut search = Search { model, order, starts, branches, worth: 0 };
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
        self.model.branches.iter().map(|branch| self.saved(branch)).sum::<i64>() - seams
    }

    fn saved(&self, branch: &Branch) -> i64 {
        let from = self.starts[branch.chain as usize];
        let to = self.starts[branch.to_chain as usize];
        let distance = to + branch.to - from - branch.from;
        let follows = branch.spared > 0 && to == from + self.model.lens[branch.chain as usize];
        let is_short = (-REACH - 1..=REACH).contains(&distance);
        i64::from(if is_short { branch.gain } else { 0 }) + i64::from(if follows { branch.spared } else { 0 })
    }

    /// Bytes of unwind rows between a place and the next.
    fn seam_behind(&self, place: usize) -> i64 {
        self.model.seam(self.order[place], self.order.get(place + 1).copied())
    }

    /// What the branches of two chains save.
    fn saved_by(&self, first: u32, second: u32) -> i64 {
        let all = &self.model.branches;
        let of_first = self.branches[first as usize].iter().map(|&index| self.saved(&all[index as usize]));
        let is_new = |branch: &&Branch| branch.chain != first && branch.to_chain != first;
        let of_second = self.branches[second as usize].iter().map(|&index| &all[index as usize]).filter(is_new);
        of_first.sum::<i64>() + of_second.map(|branch| self.saved(branch)).sum::<i64>()
    }

    /// Lets the chains at a place and at the next change places.
    fn swap(&mut self, place: usize) {
        let (first, second) = (self.order[place], self.order[place + 1]);
        let seams = |search: &Self| -> i64 { (place.saturating_sub(1)..=place + 1).map(|at| search.seam_behind(at)).sum() };
        let before = self.saved_by(first, second) - seams(self);
        self.starts[second as usize] = self.starts[first as usize];
        self.starts[first as usize] += self.model.lens[second as usize];
        self.order.swap(place, place + 1);
        self.worth += self.saved_by(first, second) - seams(self) - before;
    }

    /// Moves a chain from one place to another, and says what each order on the way is worth.
    fn carry(&mut self, from: usize, to: usize, mut visit: impl FnMut(usize, i64)) {
        for place in from..to {
            self.swap(place);
            visit(place + 1, self.worth);
        }
        for place in (to..from).rev() {
            self.swap(place);
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
        let cost = count + self.model.branches.len();
        let mut has_changed = false;
        let mut places_of: Vec<usize> = vec![0; count];
        for (place, &chain) in self.order.iter().enumerate() {
            places_of[chain as usize] = place;
        }
        for chain in 1..count as u32 {
            let from = places_of[chain as usize];
            let places = self.places_to_try(chain, from, &places_of);
            let (Some(&first), Some(&last)) = (places.first(), places.last()) else { continue };
            *work += cost * places.len();
            let mut found: Vec<(usize, i64)> = Vec::with_capacity(places.len());
            let mut note = |place: usize, worth: i64| {
                if places.binary_search(&place).is_ok() {
                    found.push((place, worth));
                }
            };
            let known = self.worth;
            for end in [last.max(from), first.min(from)] {
                let passed = self.order[from.min(end)..=from.max(end)].to_vec();
                self.carry(from, end, &mut note);
                self.put_back(from.min(end), &passed, known);
            }
            // The first of the best.
            let best = found.into_iter().max_by_key(|&(place, worth)| (worth, std::cmp::Reverse(place)));
            if let Some((place, _)) = best.filter(|&(_, worth)| worth > known) {
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

    /// Places near its own, and near those of chains that it has to do with, ascending.
    fn places_to_try(&self, chain: u32, from: usize, places_of: &[usize]) -> Vec<usize> {
        let mut places: Vec<usize> = (from.saturating_sub(NEAR)..=from + NEAR).collect();
        for &index in &self.branches[chain as usize] {
            let branch = &self.model.branches[index as usize];
            let other = if branch.chain == chain { branch.to_chain } else { branch.chain };
            // Where it is without this chain.
            let place = places_of[other as usize] - usize::from(places_of[other as usize] > from);
            places.extend((place + 1).saturating_sub(NEAR_KIN)..=place + 1 + NEAR_KIN);
        }
        places.sort_unstable();
        places.dedup();
        places.retain(|&place| place >= 1 && place < self.order.len() && place != from);
        places
    }
}
