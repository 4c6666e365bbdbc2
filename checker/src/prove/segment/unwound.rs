//! What an unwinder finds at the instructions of a segment, where the rules of the frame are not those of the input.
//!
//! From any instruction an unwinder computes the frame address and the registers that a function keeps: from their slots, where the rules say so, and otherwise from
//! themselves. If that is the same at every instruction of both programs' pieces, then it does not matter where in the pieces one of them is
//! stopped: by a signal, a profiler, an exception. The frame address is compared where rules are noted; here are the registers.
//!
//! Only rules of the plain kind are followed, and only slots that are private: what others may write is not what it was.

use super::super::expr::Id;
use super::{Cursor, Run};

/// `rbx`, `rbp`, `r12` to `r15`: by the ABI's numbers for unwinders, and by those of the encoding.
const KEPT: [(u64, usize); 6] = [(3, 3), (6, 5), (12, 12), (13, 13), (14, 14), (15, 15)];

/// What was found so far.
#[derive(Clone, Debug, Default)]
pub(super) enum Unwound {
    #[default]
    Nothing,
    Always([Id; 6]),
    /// Not the same everywhere, or not known.
    Unknown,
}

impl Run<'_, '_, '_> {
    /// Takes in what an unwinder finds at an instruction; `has_address` if the rules were seen to give the frame address.
    pub(super) fn unwind(&mut self, cursor: &mut Cursor, row: u32, has_address: bool) {
        let found = self.walk.rows.and_then(|rows| rows.frame_of(row)).and_then(|frame| frame.plain_saves.as_ref());
        let Some(saves) = found.filter(|_| has_address) else {
            cursor.unwound = Unwound::Unknown;
            return;
        };
        let is_known = |&(register, _): &(u64, i64)| KEPT.iter().any(|&(number, _)| number == register);
        let is_private = |&(_, slot): &(u64, i64)| self.privacy.covers(slot, 8) == Some(true);
        if !saves.iter().all(|save| is_known(save) && is_private(save)) {
            cursor.unwound = Unwound::Unknown;
            return;
        }
        let values = KEPT.map(|(number, register)| match saves.iter().find(|save| save.0 == number) {
            Some(&(_, slot)) => cursor.machine.read_slot(&mut self.pool, slot, 64),
            None => cursor.machine.general[register],
        });
        cursor.unwound = match &cursor.unwound {
            Unwound::Nothing => Unwound::Always(values),
            Unwound::Always(known) if *known == values => return,
            _ => Unwound::Unknown,
        };
    }
}

/// Whether unwinders find the same in both pieces.
pub(super) fn are_same(input: &Cursor, output: &Cursor) -> bool {
    let mut frames = input.rows.iter().chain(&output.rows).map(|&(_, frame)| frame);
    let first = frames.next();
    let is_one = frames.all(|frame| Some(frame) == first);
    match (&input.unwound, &output.unwound) {
        (Unwound::Always(x), Unwound::Always(y)) => is_one && x == y,
        _ => false,
    }
}
