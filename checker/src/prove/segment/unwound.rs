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

/// What was found under each of the rules that a piece came by, in order; none where it is not the same throughout, or not known.
#[derive(Clone, Debug, Default)]
pub(super) struct Unwound(Vec<Option<[Id; 6]>>);

impl Run<'_, '_, '_> {
    /// Takes in what an unwinder finds at an instruction under the latest rules; `has_address` if they were seen to give the frame address.
    pub(super) fn unwind(&mut self, cursor: &mut Cursor, row: u32, has_address: bool) {
        let found = if has_address { self.kept_by(cursor, row) } else { None };
        let (known, count) = (&mut cursor.unwound.0, cursor.rows.len());
        if known.len() < count {
            known.resize(count - 1, None);
            known.push(found);
        } else if let Some(last) = known.last_mut().filter(|last| **last != found) {
            *last = None;
        }
    }

    fn kept_by(&mut self, cursor: &mut Cursor, row: u32) -> Option<[Id; 6]> {
        let saves = self.walk.rows?.frame_of(row)?.plain_saves.as_ref()?;
        let is_known = |&(register, _): &(u64, i64)| KEPT.iter().any(|&(number, _)| number == register);
        let is_private = |&(_, slot): &(u64, i64)| self.privacy.covers(slot, 8) == Some(true);
        if !saves.iter().all(|save| is_known(save) && is_private(save)) {
            return None;
        }
        Some(KEPT.map(|(number, register)| match saves.iter().find(|save| save.0 == number) {
            Some(&(_, slot)) => cursor.machine.read_slot(&mut self.pool, slot, 64),
            None => cursor.machine.general[register],
        }))
    }
}

/// Whether unwinders find the same in both pieces. Where both end under the same rules, those are compared as anywhere else: by being the same.
pub(super) fn are_same(input: &Cursor, output: &Cursor) -> bool {
    let common = input.rows.iter().rev().zip(output.rows.iter().rev()).take_while(|(x, y)| x == y).count();
    let differing = |cursor: &Cursor| {
        let count = cursor.rows.len() - common;
        cursor.unwound.0.get(..count).map(<[_]>::to_vec)
    };
    let own = |cursor: &Cursor| cursor.rows[..cursor.rows.len() - common].to_vec();
    let frames: Vec<u32> = own(input).into_iter().chain(own(output)).map(|(_, frame)| frame).collect();
    let is_one = frames.windows(2).all(|pair| pair[0] == pair[1]);
    let (Some(x), Some(y)) = (differing(input), differing(output)) else { return false };
    // What the rules that differ give is the same under all of them, and what the common ones give to begin with.
    let value = |cursor: &Cursor| cursor.unwound.0.iter().copied().flatten().next();
    let wanted = value(input);
    is_one && wanted.is_some() && wanted == value(output) && x.into_iter().chain(y).all(|found| found == wanted)
}
