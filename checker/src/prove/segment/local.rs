//! A few instructions that differ where all before and all behind is the same.
//!
//! Most changes are such: a load of a constant that became a number, two instructions that changed places. From a pair at which all is the same, flags too, the input
//! is run for at most [`LENGTH_MAX`] instructions, then the output, until both have the same state and have made the same accesses. No slot counts as private: nothing is
//! known of the frame here.

use super::super::facts::{self, Facts};
use super::super::machine::Machine;
use super::{Cursor, Effect, Run, Segment, Step};

const LENGTH_MAX: usize = 48;

/// A run of which all that differs is proven, and where it ends.
pub(crate) struct Local {
    pub(crate) effects: Vec<Effect>,
    pub(crate) input: Vec<(u64, u8)>,
    pub(crate) output: Vec<(u64, u8)>,
    pub(crate) end: (u64, u64),
}

/// A cursor as it was behind some instructions.
pub(super) struct Mark {
    pub(super) at: u64,
    pub(super) machine: Machine,
    passed: usize,
    pub(super) instructions: usize,
    rows: usize,
    handling: usize,
}

impl Mark {
    pub(super) fn of(cursor: &Cursor) -> Self {
        Self {
            at: cursor.at,
            machine: cursor.machine.clone(),
            passed: cursor.passed.len(),
            instructions: cursor.instructions.len(),
            rows: cursor.rows.len(),
            handling: cursor.handling.len(),
        }
    }

    pub(super) fn has_same_events(&self, other: &Machine) -> bool {
        let counts = |machine: &Machine| (machine.loads.len(), machine.stores.len(), machine.traps.len());
        counts(&self.machine) == counts(other)
    }

    fn has_same_state(&self, other: &Machine) -> bool {
        facts::places(&self.machine) == facts::places(other) && self.has_same_events(other)
    }
}

impl Run<'_, '_, '_> {
    /// Where both programs are in the same state again.
    pub(in super::super) fn meet_again(mut self, input: u64, output: u64, within: Option<u64>) -> Step<Local> {
        let met = self.run_until_same(input, output, within);
        self.leave_room();
        met
    }

    fn run_until_same(&mut self, input: u64, output: u64, within: Option<u64>) -> Step<Local> {
        let (mut x, mut y) = Facts::identity(None).start(&mut self.pool, false);
        y.flags = x.flags;
        let no_races = self.walk.assumptions.no_races;
        (x.no_races, y.no_races) = (no_races, no_races);
        let mut input = Cursor::new(input, x, within);
        let mut output = Cursor::new(output, y, None);
        let mut marks = vec![Mark::of(&input)];
        while marks.len() <= LENGTH_MAX && matches!(self.step_input(&mut input), Ok(true)) {
            marks.push(Mark::of(&input));
        }
        for steps in 0..=LENGTH_MAX {
            let is_same = |(count, mark): &(usize, &Mark)| (*count > 0 || steps > 0) && mark.has_same_state(&output.machine);
            let found: Vec<&Mark> = marks.iter().enumerate().filter(is_same).map(|(_, mark)| mark).collect();
            for mark in found {
                if let Some(local) = self.local(&input, mark, &output, within) {
                    return Ok(local);
                }
            }
            if !self.step_output(&mut output, &input)? {
                break;
            }
        }
        self.fail(output.at, "no place behind it where both are in the same state")
    }

    fn local(&mut self, input: &Cursor, mark: &Mark, output: &Cursor, within: Option<u64>) -> Option<Local> {
        let mut cut = Cursor::new(mark.at, mark.machine.clone(), within);
        cut.passed = input.passed[..mark.passed].to_vec();
        cut.instructions = input.instructions[..mark.instructions].to_vec();
        cut.rows = input.rows[..mark.rows].to_vec();
        cut.handling = input.handling[..mark.handling].to_vec();
        self.compare_events(&cut, output).ok()?;
        self.compare_marks(&cut, output).ok()?;
        if within.is_none() && !cut.rows.is_empty() && !output.rows.is_empty() {
            self.compare_rows(&cut, output).ok()?;
        }
        let mut effects = std::mem::take(&mut self.segment).effects;
        let handlers = output.instructions.iter().map(|&(at, _)| (within.unwrap_or(cut.at), at));
        effects.extend(handlers.filter(|_| within.is_some()).map(|(input, output)| Effect::CallSite { input, output }));
        self.segment = Segment::default();
        Some(Local { effects, input: cut.passed, output: output.passed.clone(), end: (cut.at, output.at) })
    }
}
