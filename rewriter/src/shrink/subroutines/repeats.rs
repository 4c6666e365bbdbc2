//! Which sequences of pieces are worth a body.
//!
//! **Method.** Sequences in order (a suffix array, of which each suffix ends with its run) stand beside those that begin alike. So what repeats is an interval of them, with what all of it begins with: there are as many such
//! intervals as sequences at most (Abouelhoda, Kurtz and Ohlebusch, *Replacing suffix trees with enhanced suffix arrays*, 2004). Each is worth what its places save, less the body. The one that saves most is taken; then those that share pieces with it are worth less, which is counted when they
//! come to be the best.
//!
//! **Invariants.** The places of all repeats share no piece. The result depends on the pieces alone.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use super::super::outline::CALL_LEN;
use super::pieces::Pieces;

/// Bytes that a body has to save.
const SAVED_MIN: u32 = 4;

/// A sequence that gets a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Repeat {
    /// Pieces that it has.
    pub(super) count: u8,
    /// Its first piece at each of its places, ascending.
    pub(super) places: Vec<u32>,
}

/// Sequences that begin alike, neighbours in order.
#[derive(Copy, Clone, PartialEq, Eq)]
struct Interval {
    saved: u32,
    first: u32,
    end: u32,
    /// Pieces with which all begin.
    count: u8,
}

impl Ord for Interval {
    fn cmp(&self, other: &Self) -> Ordering {
        self.saved.cmp(&other.saved).then_with(|| (other.first, other.count).cmp(&(self.first, self.count)))
    }
}

impl PartialOrd for Interval {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Repeats, in the order of what they are read backwards: of those that end alike, the longest comes last.
pub(super) fn choose(pieces: &Pieces) -> Vec<Repeat> {
    let order = order(pieces);
    let mut heap: BinaryHeap<Interval> = intervals(pieces, &order).into();
    let mut taken = Taken { pieces, order: &order, is_taken: vec![false; pieces.hashes.len()] };
    let mut repeats: Vec<Repeat> = Vec::new();
    while let Some(interval) = heap.pop() {
        let places = taken.free_places(&interval);
        let saved = saved(pieces, &places, interval.count);
        if saved < SAVED_MIN {
            continue;
        }
        if saved < interval.saved {
            heap.push(Interval { saved, ..interval });
            continue;
        }
        taken.take(&places, interval.count);
        repeats.push(Repeat { count: interval.count, places });
    }
    let backwards = |repeat: &Repeat| {
        let first = repeat.places[0] as usize;
        pieces.hashes[first..first + usize::from(repeat.count)].iter().rev()
    };
    repeats.par_sort_unstable_by(|a, b| backwards(a).cmp(backwards(b)));
    repeats
}

/// All pieces, in the order of the sequences that begin with them.
fn order(pieces: &Pieces) -> Vec<u32> {
    let mut order: Vec<u32> = (0..pieces.hashes.len() as u32).collect();
    order.par_sort_unstable_by(|&a, &b| pieces.sequence(a).cmp(pieces.sequence(b)).then(a.cmp(&b)));
    order
}

/// How many pieces two sequences begin with alike.
fn common(pieces: &Pieces, a: u32, b: u32) -> u8 {
    pieces.sequence(a).iter().zip(pieces.sequence(b)).take_while(|(a, b)| a == b).count() as u8
}

/// What begins alike and is worth a body, if all of its places are free.
fn intervals(pieces: &Pieces, order: &[u32]) -> Vec<Interval> {
    let mut found = Vec::new();
    // Open ones, each of which has more in common than the one before.
    let mut open: Vec<(u32, u8)> = Vec::new();
    for index in 0..order.len() {
        let next = order.get(index + 1).map_or(0, |&next| common(pieces, order[index], next));
        let mut first = index as u32;
        while let Some(&(start, count)) = open.last().filter(|open| open.1 > next) {
            open.pop();
            first = start;
            // What is longer than those around it stands at fewer places; what is as short as they are is theirs.
            let shortest = open.last().map_or(0, |open| open.1).max(next) + 1;
            let places = &order[first as usize..=index];
            let all = (shortest..=count).rev().map(|count| (saved_at_most(pieces, places, count), count));
            let best = all.max_by_key(|&(saved, count)| (saved, count)).filter(|&(saved, _)| saved >= SAVED_MIN);
            found.extend(best.map(|(saved, count)| Interval { saved, first, end: index as u32 + 1, count }));
        }
        if next > 0 && open.last().is_none_or(|open| open.1 < next) {
            open.push((first, next));
        }
    }
    found
}

/// Bytes that calls save at all places where they are worth it, less the body.
fn saved(pieces: &Pieces, places: &[u32], count: u8) -> u32 {
    let Some(&first) = places.first() else { return 0 };
    let (len, body) = pieces.len_of(first, count);
    (places.len() as u32 * len.saturating_sub(CALL_LEN)).saturating_sub(body + 1)
}

fn saved_at_most(pieces: &Pieces, places: &[u32], count: u8) -> u32 {
    let (len, body) = pieces.len_of(places[0], count);
    let of_all = places.len() as u32 * len.saturating_sub(CALL_LEN);
    if of_all < body + 1 + SAVED_MIN {
        return 0;
    }
    let is_worth_it = |place: u32| pieces.min_at(place) <= len && pieces.is_closed(place, count);
    let num_worth_it = places.iter().filter(|&&place| is_worth_it(place)).count() as u32;
    (num_worth_it * (len - CALL_LEN)).saturating_sub(body + 1)
}

struct Taken<'a> {
    pieces: &'a Pieces,
    order: &'a [u32],
    is_taken: Vec<bool>,
}

impl Taken<'_> {
    /// The places that are worth a call, of which nothing is taken, and which share nothing; ascending.
    fn free_places(&self, interval: &Interval) -> Vec<u32> {
        let (count, order) = (u32::from(interval.count), &self.order[interval.first as usize..interval.end as usize]);
        let (len, _) = self.pieces.len_of(order[0], interval.count);
        let is_free = |place: u32| !self.is_taken[place as usize..(place + count) as usize].contains(&true);
        let is_fit =
            |place: u32| self.pieces.min_at(place) <= len && self.pieces.is_closed(place, interval.count) && is_free(place);
        let mut places: Vec<u32> = order.iter().copied().filter(|&place| is_fit(place)).collect();
        places.sort_unstable();
        let mut end = 0;
        places.retain(|&place| {
            let is_behind = place >= end;
            end = if is_behind { place + count } else { end };
            is_behind
        });
        places
    }

    fn take(&mut self, places: &[u32], count: u8) {
        for &place in places {
            self.is_taken[place as usize..place as usize + usize::from(count)].fill(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(runs: &[&[u64]], len: u8, min: u32) -> Vec<(u8, Vec<u32>)> {
        let repeats = choose(&Pieces::of_runs(runs, len, min));
        repeats.into_iter().map(|repeat| (repeat.count, repeat.places)).collect()
    }

    #[test]
    fn what_saves_the_most_has_a_body_and_what_shares_pieces_with_it_has_none() {
        let runs: [&[u64]; 3] = [&[1, 2, 3, 4], &[9, 1, 2, 3], &[5, 2, 3]];
        assert_eq!(chosen(&runs, 8, 0), [(2, vec![1, 6, 9])], "three places of two pieces save more than two of three");
        assert_eq!(chosen(&runs[..2], 8, 0), [(3, vec![0, 5])]);
    }

    #[test]
    fn places_do_not_overlap_and_no_sequence_goes_on_into_the_next_run() {
        assert_eq!(chosen(&[&[7, 7, 7, 7, 7]], 10, 0), [(1, vec![0, 1, 2, 3, 4])]);
        assert_eq!(chosen(&[&[1], &[2], &[1, 3], &[2, 3]], 5, 0), [], "a call is as long as one piece");
    }

    #[test]
    fn places_that_would_not_be_worth_a_call_count_for_nothing() {
        let runs: [&[u64]; 2] = [&[1, 2, 3], &[1, 2, 3]];
        assert_eq!(chosen(&runs, 10, 30), [(3, vec![0, 3])]);
        assert_eq!(chosen(&runs, 10, 31), []);
    }
}
