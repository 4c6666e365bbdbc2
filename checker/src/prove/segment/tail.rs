//! A tail call: the end of a segment at a jump of the input to a function, from where all of the frame was taken off.
//!
//! **Problem.** Once an address of the frame has gone elsewhere, what a function called by a jump puts into a frame of its own, in the same place, would count as seen by others.
//!
//! **Method.** Where the input jumps to the beginning of a function, and the output comes to a place at which all is the same, the segment ends. That function and this place of the output must then correspond by
//! themselves, with nothing known, as they have to where a call leads there.
//!
//! **Why this is sound.** The return address is on top of the stack in both programs, so no slot of the frame is left, and no register holds an address of it. What stands
//! below the stack pointer and was not taken off is the same, as at other jumps; besides, direct calls enter the function as well, so it is no part of the one that jumps, which might use that. Of addresses
//! of a frame that was taken off, the same is taken for granted as between two calls: that nobody uses them. Flags are not passed, as at calls. A register that differs and that nobody reads from the jump
//! on, in that function or behind the calls to which it returns, may hold anything, so it may as well be the same.
//! The address of a jump table counts as one value in both programs only where the proof goes on; so none is in a register or on the stack that somebody may read ([`super::given`]).
//!
//! The output is only asked where it jumps, or where a frame description of it begins; which of these places is taken decides nothing, since each is compared in full.
//!
//! **Terminates**: each place of the output is asked once.

use super::super::machine::{OWN_END, RED_ZONE, STACK};
use super::{Cursor, Effect, Failure, Run, Step};
use crate::decode::{Inst, Kind};
use crate::walk::{Pair, Reach};

/// Where a segment ends but at transfers of control.
#[derive(Copy, Clone, Default)]
pub(in super::super) struct Ends {
    /// Before an address of the frame goes elsewhere.
    pub(in super::super) at_escape: bool,
    /// At tail calls.
    pub(in super::super) at_tail_call: bool,
}

impl Run<'_, '_, '_> {
    /// Where a jump of the input leads, if that is a tail call.
    pub(super) fn tail_call(&self, cursor: &Cursor, inst: Inst) -> Option<u64> {
        if cursor.within.is_some() || !self.has_no_frame(cursor) {
            return None;
        }
        let (side, unwind) = (self.walk.input, &self.walk.input.unwind);
        let target = side.target(cursor.at, inst);
        let callee = unwind.fde_at(target)?;
        let is_function = unwind.starts_at(target) && unwind.has_no_frame(target) && self.walk.survey.is_called(callee);
        let is_other = unwind.fde_at(cursor.at) != Some(callee);
        (is_other && is_function).then_some(target)
    }

    /// Whether the output may be where the input makes a tail call: it jumps, or comes to what begins a frame description.
    pub(super) fn may_be_at_tail_call(&self, cursor: &Cursor, inst: Inst) -> bool {
        let is_place = || inst.kind == Kind::Jump || self.walk.output.unwind.starts_at(cursor.at);
        cursor.asked != Some(cursor.at) && is_place() && self.has_no_frame(cursor)
    }

    /// Ends the segment where the output is in the same state as the input at its tail call; otherwise lets the output go on.
    pub(super) fn leave_by_tail_call(&mut self, input: &mut Cursor, a: Inst, target: u64, output: &mut Cursor) -> Step<bool> {
        if self.is_same_at_tail_call(input, output).is_err() {
            let was_asked = output.asked.replace(output.at) == Some(output.at);
            if was_asked && !self.step_output(output, input)? {
                return self.fail(output.at, format!("is nowhere in the state of the input's tail call at {:#x}", input.at));
            }
            self.advance_output(output, input)?;
            return Ok(false);
        }
        self.note_row(true, input)?;
        self.note_row(false, output)?;
        input.pass(a.len);
        self.segment.effects.push(Effect::Walk(Pair::new(target, output.at, output.at, Reach::Name)));
        Ok(true)
    }

    fn is_same_at_tail_call(&mut self, input: &Cursor, output: &Cursor) -> Result<(), Failure> {
        let has_address = |cursor: &Cursor| {
            let registers = cursor.machine.general.iter().chain(&cursor.machine.vectors).enumerate();
            registers.filter(|&(place, _)| place != STACK).any(|(_, &id)| self.pool.is_of_frame(id))
        };
        if !self.has_no_frame(output) || has_address(input) || has_address(output) {
            return self.fail(output.at, "the frame is still there");
        }
        if self.has_table_at_tail_call(input) {
            return self.fail(output.at, "the address of a jump table goes to where nothing is known");
        }
        self.compare_events(input, output)?;
        self.compare_jumped(input, output)?;
        self.compare_slots(input, output, RED_ZONE)
    }

    /// Whether the return address is on top of the stack.
    pub(super) fn has_no_frame(&self, cursor: &Cursor) -> bool {
        cursor.machine.stack_offset(&self.pool) == Some(OWN_END)
    }
}
