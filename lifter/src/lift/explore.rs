//! Code without unwind entries that only jump tables lead to.
//!
//! **Problem.** Following calls and branches stops at a `switch`: what its cases hold, and all that only they call, looks like code that nothing reaches. In a program that was
//! built without unwind entries that is most of the code.
//!
//! **Method.** What was reached so far is taken for all there is, its jumps are asked as those of any code are ([`tables`](crate::cfg::tables)), and what the tables lead to is followed. This
//! goes on in rounds until a round finds nothing new. While it does, bytes that nothing reaches name nothing: what is found is asked again afterwards, with all doubts.
//!
//! Where compilers know which cases there are they leave out the check of bounds, and nothing says how long the table is. If nothing else leads to its first case either, its words are followed one by one
//! ([`Explored::try_cases`]).
//!
//! At a fixed address any word of data may be the address of a function, or of a label in one: what words alone name is followed when tables lead to nothing more.
//!
//! **What is given up.** All of GHC's code is like this, in pieces that go on by jumps to places that are computed. In a large program 100,000 of these are one cluster, or some hundred rounds of seconds each find one
//! piece more: more than [`UNITS_MAX`], or a cluster that is too large for [`tables`](crate::cfg::tables), and the regions are given up. What such jumps reach would stay in any case.
//!
//! Terminates: each round but the last reaches an instruction that was not reached before, or knows more functions that don't return than any round before it.

use super::{Discovered, survey_again};
use crate::address::Va;
use crate::cfg::tables::ClusterJumps;
use crate::cfg::thunks::Thunks;
use crate::discover::clusters::join_by_flow;
use crate::discover::names;
use crate::discover::no_return::find_no_return;
use crate::discover::reach::{Explored, Reached};
use crate::discover::stubs::Stubs;
use crate::discover::survey::{LeftOver, Survey, Surveyor};
use crate::discover::units::{Bounds, Unit, Units, find_units};
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::ir::RelinkMode;

/// How many units all rounds look at together. A million bytes without unwind entries are some thousand units, and some ten rounds.
const UNITS_MAX: usize = 1 << 22;

/// What the search goes by.
#[derive(Copy, Clone)]
pub(super) struct Explorer<'i> {
    pub(super) image: &'i Image<'i>,
    pub(super) unwind: &'i Unwind,
    pub(super) stubs: &'i Stubs,
    pub(super) use_static_relocs: bool,
    pub(super) mode: RelinkMode,
    /// Whether what nothing reaches is code if it resembles code.
    pub(super) trusts_left_over: bool,
}

impl<'i> Explorer<'i> {
    pub(super) fn surveyor<'u>(&self, units: &'u Units) -> Surveyor<'u>
    where
        'i: 'u,
    {
        Surveyor {
            image: self.image,
            units,
            stubs: self.stubs,
            use_static_relocs: self.use_static_relocs,
            has_unseen_absolutes: self.mode == RelinkMode::Guard,
            left_over: if self.trusts_left_over { LeftOver::Code } else { LeftOver::Anything },
        }
    }

    /// Adds to what was explored what the jump tables in it lead to. `units` and `surveys` are those before; those of the last round come back, which need another look with
    /// all doubts.
    pub(super) fn follow_tables(
        &self,
        explored: &mut Explored<'_>,
        mut units: Units,
        mut surveys: Vec<Survey>,
    ) -> (Units, Vec<Survey>) {
        let mut looked_at = 0;
        while explored.has_left_over() {
            let found = find_units(self.image, self.unwind, &[], &explored.so_far());
            surveys = survey_again(Surveyor { left_over: LeftOver::Nothing, ..self.surveyor(&found) }, &units, surveys);
            units = found;
            looked_at += units.len();
            if looked_at > UNITS_MAX {
                explored.give_up_all();
                break;
            }
            match self.follow_round(explored, &units, &surveys) {
                Round::Reached => {}
                Round::ReachedNothing if explored.try_numbers(self.stubs) => {}
                Round::ReachedNothing | Round::TooLarge => break,
            }
        }
        (units, surveys)
    }

    /// Units as they are with what was reached and claimed, and what they name, all doubts included.
    pub(super) fn look_again(
        &self,
        claimed: &[Va],
        reached: &Reached,
        units: Units,
        surveys: Vec<Survey>,
    ) -> (Units, Vec<Survey>) {
        let found = find_units(self.image, self.unwind, claimed, reached);
        let surveys = survey_again(self.surveyor(&found), &units, surveys);
        (found, surveys)
    }

    fn follow_round(&self, explored: &mut Explored<'_>, units: &Units, surveys: &[Survey]) -> Round {
        let &Self { image, unwind, use_static_relocs, mode, .. } = self;
        let is_reached = |&unit: &Unit| units[unit].bounds == Bounds::Reached;
        if !units.keys().any(|unit| is_reached(&unit) && surveys[unit.index()].has_indirect_jumps) {
            return Round::ReachedNothing;
        }
        let names = names::collect(image, unwind, units, surveys);
        let mut clusters = join_by_flow(units, surveys, &names);
        let mut stubs = self.stubs.clone();
        stubs.add_witnesses(surveys.iter().filter_map(|s| s.last_call));
        let mut no_return = find_no_return(image, units, surveys, &stubs, &clusters);
        no_return.sort();
        stubs.add_no_return(no_return.iter().copied());
        let thunks = Thunks::find(image, units);
        let context = Discovered { image, unwind, units, surveys, stubs: &stubs, thunks: &thunks, use_static_relocs, mode };
        let answers = context.resolve_jumps(&names, &mut clusters, |members| members.iter().any(is_reached));
        let too_large = answers.iter().filter(|(_, answer)| answer.is_too_large).map(|&(unit, _)| units[unit].start);
        if explored.give_up(too_large) {
            return Round::TooLarge;
        }
        let is_reaching = explored.try_labels(answers.iter().flat_map(|(_, answer)| answer.edges()), self.stubs)
            | explored.try_labels_behind(answers.iter().flat_map(|(_, answer)| answer.edges_behind()), self.stubs);
        let doubted: Vec<(Va, Va)> = answers.iter().flat_map(|(_, answer)| answer.doubted.iter().copied()).collect();
        let has_cases = !doubted.is_empty() && explored.try_cases(image, &doubted, &named_data(surveys, &answers), self.stubs);
        match explored.note_no_return(no_return) || is_reaching || has_cases {
            true => Round::Reached,
            false => Round::ReachedNothing,
        }
    }
}

/// What came of a round.
enum Round {
    Reached,
    ReachedNothing,
    /// Jumps and labels are too many to be followed.
    TooLarge,
}

/// What code names outside of itself, and where tables begin. Ascending.
fn named_data(surveys: &[Survey], answers: &[(Unit, ClusterJumps)]) -> Vec<Va> {
    let named = surveys.iter().flat_map(|survey| survey.data_names.iter().map(|name| name.0));
    let mut all: Vec<Va> = named.chain(answers.iter().flat_map(|(_, answer)| answer.seen.iter().copied())).collect();
    all.sort_unstable();
    all.dedup();
    all
}
