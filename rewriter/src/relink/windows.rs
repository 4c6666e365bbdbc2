//! Which fragment is placed next, so that few branches lie on the ends of decode windows.
//!
//! **Problem.** See [`crate::encode::WindowBranch`]. Bytes left out before a fragment cost room.
//!
//! **Method.** Of the next few fragments the one is taken that has most to gain from where the last one ended, over what it could expect anywhere else. One whose turn it has been for long is taken first, so none goes far
//! from where the plan has it; what is hot keeps its place.
//!
//! **Invariants.** Each fragment is taken once; without windows to fit, in the plan's order. **Termination**: each turn takes one.

use std::collections::VecDeque;

use lifter::address::Va;

use crate::encode::{Shapes, WINDOW, WORTH_PER_BYTE, WindowBranch};
use crate::materialize::OutProgram;
use crate::plan::Temperature;

/// How many fragments are to choose from, and how many may be taken before the first of them.
const LOOK_AHEAD: usize = 16;
const PLACES: usize = WINDOW as usize;

/// Fragments in the order in which they are placed.
pub(super) struct Queue<'a> {
    out: &'a OutProgram<'a>,
    shapes: &'a Shapes,
    /// If not, fragments come in their order, and none costs anything anywhere.
    fits_windows: bool,
    /// The next fragment to wait.
    next: usize,
    waiting: VecDeque<Waiting>,
}

/// A fragment, and what it costs where.
pub(super) struct Waiting {
    pub(super) index: usize,
    /// By its place in a window, what its branches cost; nothing if they cost nothing anywhere.
    costs: Option<Box<[u32; PLACES]>>,
    /// What its branches cost, or the bytes left out to spare that, where it comes to lie by chance.
    expected: u64,
    /// How many were taken before it.
    passed: usize,
}

impl Waiting {
    fn new(index: usize, branches: &[WindowBranch]) -> Self {
        let mut waiting = Waiting { index, costs: None, expected: 0, passed: 0 };
        if !branches.is_empty() {
            let cost = |place: usize| {
                let exposed = branches.iter().filter(|branch| branch.is_exposed(place as u64));
                exposed.map(|branch| u32::from(branch.worth)).sum()
            };
            waiting.costs = Some(Box::new(std::array::from_fn(cost)));
            let all: u64 = (0..WINDOW).map(|place| waiting.least_cost_from(Va(place))).sum();
            waiting.expected = all / WINDOW;
        }
        waiting
    }

    pub(super) fn is_indifferent(&self) -> bool {
        self.costs.is_none()
    }

    /// In sixteenths of a byte.
    pub(super) fn cost_at(&self, at: Va) -> u64 {
        self.costs.as_ref().map_or(0, |costs| u64::from(costs[(at.0 % WINDOW) as usize]))
    }

    /// With the bytes that are left out.
    fn least_cost_from(&self, at: Va) -> u64 {
        (0..WINDOW).map(|skipped| skipped * u64::from(WORTH_PER_BYTE) + self.cost_at(at + skipped)).min().unwrap_or(0)
    }
}

impl<'a> Queue<'a> {
    pub(super) fn new(out: &'a OutProgram<'a>, shapes: &'a Shapes, fits_windows: bool) -> Self {
        Self { out, shapes, fits_windows, next: 0, waiting: VecDeque::new() }
    }

    /// The one to place next, if the next address is this one.
    pub(super) fn take(&mut self, at: Va) -> Option<Waiting> {
        self.fill();
        let chosen = choice(&self.waiting, at)?;
        self.waiting.range_mut(..chosen).for_each(|passed| passed.passed += 1);
        self.waiting.remove(chosen)
    }

    fn fill(&mut self) {
        let is_hot = |index: usize| self.out.fragments[index].temperature == Temperature::Hot;
        while self.next < self.shapes.count() && self.waiting.len() < LOOK_AHEAD {
            let keeps_order = |first: &Waiting| !self.fits_windows || is_hot(first.index) || is_hot(self.next);
            if self.waiting.front().is_some_and(keeps_order) {
                break;
            }
            let branches = if self.fits_windows { self.shapes.of(self.next).window_branches } else { &[] };
            self.waiting.push_back(Waiting::new(self.next, branches));
            self.next += 1;
        }
    }
}

/// Which of those that wait is to be placed at `at`.
fn choice(waiting: &VecDeque<Waiting>, at: Va) -> Option<usize> {
    let more_than_expected = |index: &usize| waiting[*index].least_cost_from(at) as i64 - waiting[*index].expected as i64;
    match waiting.front()?.passed >= LOOK_AHEAD {
        true => Some(0),
        false => (0..waiting.len()).min_by_key(more_than_expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch(start: u32, bytes_worth: u16) -> WindowBranch {
        WindowBranch { start, len: 2, worth: bytes_worth * WORTH_PER_BYTE }
    }

    #[test]
    fn a_fragment_costs_the_branches_that_lie_badly_or_the_bytes_that_spare_them() {
        let cost = u64::from(WORTH_PER_BYTE);
        let fragment = Waiting::new(0, &[branch(0, 5), branch(4, 9)]);
        let costs: Vec<u64> = (24..33).map(|at| fragment.cost_at(Va(at)) / cost).collect();
        assert_eq!(costs, [0, 0, 9, 9, 0, 0, 5, 5, 0]);
        assert_eq!(fragment.least_cost_from(Va(26)), 2 * cost, "two bytes left out are less than the branch is worth");
        assert_eq!(fragment.least_cost_from(Va(28)), 0);
        assert!(Waiting::new(1, &[]).is_indifferent());
    }

    #[test]
    fn what_gains_most_comes_first_but_none_waits_for_long() {
        let choose = |passed: usize, at: u64| {
            let mut first = Waiting::new(0, &[]);
            first.passed = passed;
            let all = VecDeque::from([first, Waiting::new(1, &[branch(0, 9)]), Waiting::new(2, &[branch(0, 9), branch(8, 9)])]);
            choice(&all, Va(at))
        };
        assert_eq!(choose(0, 30), Some(0), "both others would lie badly");
        assert_eq!(choose(0, 0), Some(2), "what has the most branches has the most to lose elsewhere");
        assert_eq!(choose(LOOK_AHEAD, 0), Some(0));
    }
}
