//! Steps of a segment that are no pair of transfers of control: branches that what is known decides, calls and returns of the input where the output has the body, and the end
//! before an address of the frame goes elsewhere.
//!
//! **Branches that are decided in both programs** end a segment, because one may be that of a loop: what is known there is weakened when the loop comes back, and then they are compared. Each program goes its
//! own decided way, which is right whether or not one branch stands for the other; where they do not look as if, the input goes on alone, for branches are gone in the output. That is a guess of how to
//! get far, and no part of what is proven.

use std::cmp::Ordering;
use std::rc::Rc;

use super::super::Key;
use super::super::entry::Entry;
use super::super::facts::Facts;
use super::super::machine::{Privacy, RED_ZONE};
use super::{Cursor, Effect, Failure, Run, STEPS_MAX, Side, Step};
use crate::decode::{Inst, Kind};

impl Run<'_, '_, '_> {
    /// Goes on where what is known decides a branch that the other side does not have.
    pub(super) fn decide(&mut self, input: &mut Cursor, a: Inst, output: &mut Cursor, b: Inst) -> Step<bool> {
        let (mut of_input, mut of_output) = (None, None);
        let (mut x, mut y) = (None, None);
        if a.kind == Kind::Branch {
            let condition = self.condition_of(self.walk.input, input, a);
            (x, of_input) = (Some(condition), self.pool.as_const(condition));
        }
        if b.kind == Kind::Branch {
            let condition = self.condition_of(self.walk.output, output, b);
            (y, of_output) = (Some(condition), self.pool.as_const(condition));
        }
        let is_pair = x.is_some() && y.is_some() && of_input.is_some() == of_output.is_some();
        if is_pair && (of_input.is_none() || !self.prover.decides_first) {
            return Ok(false);
        }
        if is_pair {
            let events = |cursor: &Cursor| cursor.machine.loads.len() + cursor.machine.stores.len();
            match events(input).cmp(&events(output)) {
                Ordering::Equal if self.looks_the_same(input, a, output, b) => return Ok(false),
                // Branches are gone in the output, if anywhere.
                Ordering::Equal | Ordering::Less => of_output = None,
                Ordering::Greater => of_input = None,
            }
        }
        if let Some(value) = of_input {
            if let Some(call) = input.within {
                self.check_within(call, input.at, a)?;
            }
            self.take(true, input, a, value != 0)?;
            self.advance_input(input)?;
            return Ok(true);
        }
        if let Some(value) = of_output {
            self.take(false, output, b, value != 0)?;
            self.advance_output(output, input)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Whether one branch probably stands for the other. Both are decided, so it proves as much if it does not, if it gets as far.
    fn looks_the_same(&self, input: &Cursor, a: Inst, output: &Cursor, b: Inst) -> bool {
        let condition = |side: &Side<'_>, at, inst| crate::walk::condition(side.code.bytes(at, inst)) | 1;
        let is_same_before = match (input.instructions.last(), output.instructions.last()) {
            (Some(&(i, x)), Some(&(o, y))) => self.walk.compare(i, x, o, y).is_ok(),
            _ => true,
        };
        is_same_before && condition(self.walk.input, input.at, a) == condition(self.walk.output, output.at, b)
    }

    fn take(&mut self, is_input: bool, cursor: &mut Cursor, inst: Inst, is_taken: bool) -> Step<()> {
        self.note_row(is_input, cursor)?;
        let side: &Side<'_> = if is_input { self.walk.input } else { self.walk.output };
        cursor.pass(inst.len);
        cursor.decided += 1;
        if cursor.decided > 64 {
            return self.fail(cursor.at, "too many branches that are decided");
        }
        let (mut next, mut never) = (cursor.at + u64::from(inst.len), side.target(cursor.at, inst));
        if is_taken {
            std::mem::swap(&mut next, &mut never);
        }
        if !is_input {
            self.segment.effects.push(Effect::Never(never));
        }
        cursor.at = next;
        Ok(())
    }

    /// Goes on where the input calls or returns and the output has the callee's body.
    pub(super) fn step_alone(&mut self, input: &mut Cursor, a: Inst, output: &Cursor, b: Inst) -> Step<bool> {
        let mut step = self.walk.step_of_input((input.at, a), (output.at, b), input.within);
        if step.is_none() && self.calls_what_is_within(input, a, output, b) {
            step = self.walk.step_into(input.at, a);
        }
        let Some((at, within)) = step else { return Ok(false) };
        input.marks.clear();
        if input.within.is_none() {
            self.note_row(true, input)?;
            input.pass(a.len);
            let replaced = self.replaced_at(input, output);
            self.segment.effects.push(Effect::Rewritten { input: input.at, output: replaced });
        }
        (input.at, input.within) = (at, within);
        input.went_alone = true;
        if input.instructions.is_empty() {
            input.first_within = within;
        }
        if input.steps > STEPS_MAX {
            return self.fail(output.at, "too many calls in a row");
        }
        self.advance_input(input)?;
        Ok(true)
    }

    /// Where the output has something else than a call of the input, which has come to that. The output has gone on to where it transfers control: the place is behind what is the
    /// same there as most of what the input ran last.
    fn replaced_at(&self, input: &Cursor, output: &Cursor) -> u64 {
        let count = output.instructions.len();
        let common = |place: usize| {
            let each = input.instructions.iter().rev().zip(output.instructions[..place].iter().rev());
            each.take_while(|&(&(i, a), &(o, b))| self.walk.compare(i, a, o, b).is_ok()).count()
        };
        // The first of those that are as good.
        let best = (0..=count).rev().map(|place| (common(place), place)).max_by_key(|&(common, _)| common);
        let place = best.filter(|&(common, _)| common > 0).map_or(count, |(_, place)| place);
        output.instructions.get(place).map_or(output.at, |&(at, _)| at)
    }

    /// Whether the output's call cannot be that of the input, but one that the output makes in the place of it, behind the beginning of the callee's body: the other way of calling, or another state there.
    /// Going into the callee is right whatever the output does; so this decides only what is tried.
    fn calls_what_is_within(&mut self, input: &Cursor, a: Inst, output: &Cursor, b: Inst) -> bool {
        if input.within.is_some() || a.kind != Kind::Call {
            return false;
        }
        match b.kind {
            Kind::IndirectCall => !self.walk.is_call_past_stub(input.at, a, output.at, b),
            Kind::Call => {
                let stats = self.segment.stats;
                let is_other = self.compare_events(input, output).is_err()
                    || match self.compare_entered(input, a, output) {
                        Err(_) => true,
                        Ok(unread) => {
                            let entry = Entry::of(&self.pool, &input.machine, &output.machine, unread);
                            entry.demands_proof() && self.is_same_within(input, a, output)
                        }
                    };
                self.segment.stats = stats;
                is_other
            }
            _ => false,
        }
    }

    /// Whether the input, when it goes into a call, comes to where all is the same as at a call of the output, although at the two calls it is not.
    fn is_same_within(&mut self, input: &Cursor, a: Inst, output: &Cursor) -> bool {
        let Some((at, within)) = self.walk.step_into(input.at, a) else { return false };
        let mut inside = Cursor::new(at, input.machine.clone(), within);
        if self.advance_input(&mut inside).is_err() {
            return false;
        }
        inside.marks.iter().any(|mark| matches!(self.is_here(mark, output), Some((_, 0))))
    }

    /// Whether the segment is to end before a call by which an address of the frame goes elsewhere.
    pub(super) fn lets_out_by_call(&mut self, input: &Cursor, a: Inst, output: &Cursor) -> bool {
        let may_let_out = self.ends.at_escape && *self.privacy == Privacy::Frame && a.kind == Kind::Call;
        may_let_out && self.broken_by_calls(input, output).is_let_out
    }

    /// Both come to where an address of the frame goes elsewhere: from there on others may see what is in it, so it is the same.
    pub(super) fn let_out(&mut self, input: &mut Cursor, output: &mut Cursor) -> Step<()> {
        if !(input.lets_out && output.lets_out && input.within.is_none()) {
            return Err(Failure::escape(output.at));
        }
        self.note_row(true, input)?;
        self.note_row(false, output)?;
        self.compare_events(input, output)?;
        self.compare_slots(input, output, RED_ZONE)?;
        let facts = Rc::new(Facts::end(&mut self.pool, &input.machine, &output.machine));
        self.segment.successors.push((Key { input: input.at, output: output.at, within: None }, facts));
        self.segment.is_let_out = true;
        Ok(())
    }
}
