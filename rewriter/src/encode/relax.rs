//! Which branches of a fragment are short: the least set of long ones under which every short one reaches.
//!
//! **Method.** All branches inside the fragment start short. Lay the blocks out; make those long that don't reach; repeat until nothing
//! changes. Branches that leave the fragment are long from the start. After `MAX_ROUNDS` whatever is still short and near its limit is made
//! long at once, so that the work is linear in the blocks.

use std::ops::Range;

use lifter::entity::EntityId;

use crate::materialize::{OutTarget, OutTerminator};

/// Rounds before the rest grows at once; real fragments need two to five.
const MAX_ROUNDS: u32 = 24;

/// What decides the size of an output block.
#[derive(Copy, Clone, Debug)]
pub(super) struct Shape {
    pub align: u32,
    pub body_len: u32,
    pub terminator: OutTerminator,
    /// Bytes of a loop instruction before its displacement.
    pub loop_prefix_len: u32,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IsLong {
    pub taken: bool,
    pub jump: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Relaxed {
    /// Of each block's first byte.
    pub offsets: Vec<u32>,
    pub is_long: Vec<IsLong>,
    pub len: u32,
}

/// The offset of a target in the fragment that holds `blocks`; `None` for one outside.
pub(super) fn offset_in(target: OutTarget, blocks: &Range<u32>, offsets: &[u32]) -> Option<u32> {
    match target {
        OutTarget::Placed(out) => {
            let index = (out.index() as u32).checked_sub(blocks.start)?;
            offsets.get(index as usize).copied()
        }
        OutTarget::Fixed(_) => None,
    }
}

/// Decides all branches of a fragment.
pub(super) fn relax(shapes: &[Shape], blocks: &Range<u32>) -> Relaxed {
    let mut relaxed = Relaxed { offsets: vec![0; shapes.len()], is_long: vec![IsLong::default(); shapes.len()], len: 0 };
    for (shape, is_long) in shapes.iter().zip(&mut relaxed.is_long) {
        let leaves = |target: Option<OutTarget>| target.is_some_and(|t| offset_in(t, blocks, &relaxed.offsets).is_none());
        let (taken, jump) = targets(shape.terminator);
        *is_long = IsLong { taken: leaves(taken), jump: leaves(jump) };
    }
    for round in 0.. {
        lay_out(shapes, &mut relaxed);
        let reach = if round < MAX_ROUNDS { 0 } else { 64 };
        if !grow(shapes, blocks, &mut relaxed, reach) {
            break;
        }
    }
    relaxed
}

fn targets(terminator: OutTerminator) -> (Option<OutTarget>, Option<OutTarget>) {
    match terminator {
        OutTerminator::None => (None, None),
        OutTerminator::Jump(target) => (None, Some(target)),
        OutTerminator::Branch { taken, jump, .. } | OutTerminator::Loop { taken, jump } => (Some(taken), jump),
    }
}

/// Sizes of the two branches of a terminator.
fn sizes(shape: &Shape, is_long: IsLong) -> (u32, u32) {
    let jump = |present: bool| match (present, is_long.jump) {
        (false, _) => 0,
        (true, false) => 2,
        (true, true) => 5,
    };
    match shape.terminator {
        OutTerminator::None => (0, 0),
        OutTerminator::Jump(_) => (0, jump(true)),
        OutTerminator::Branch { jump: next, .. } => (if is_long.taken { 6 } else { 2 }, jump(next.is_some())),
        OutTerminator::Loop { jump: next, .. } => {
            let rest = if is_long.taken { 1 + 2 + 5 } else { 1 };
            (shape.loop_prefix_len + rest, jump(next.is_some()))
        }
    }
}

fn lay_out(shapes: &[Shape], relaxed: &mut Relaxed) {
    let mut at = 0u32;
    for (index, shape) in shapes.iter().enumerate() {
        at = at.next_multiple_of(shape.align.max(1));
        relaxed.offsets[index] = at;
        let (taken, jump) = sizes(shape, relaxed.is_long[index]);
        at += shape.body_len + taken + jump;
    }
    relaxed.len = at;
}

/// Makes long what doesn't reach, less `margin` bytes; whether anything did.
fn grow(shapes: &[Shape], blocks: &Range<u32>, relaxed: &mut Relaxed, margin: i64) -> bool {
    let mut has_grown = false;
    for (index, shape) in shapes.iter().enumerate() {
        let is_long = relaxed.is_long[index];
        let (taken, jump) = targets(shape.terminator);
        let (taken_size, jump_size) = sizes(shape, is_long);
        let taken_end = relaxed.offsets[index] + shape.body_len + taken_size;
        let reaches = |target: OutTarget, end: u32| {
            offset_in(target, blocks, &relaxed.offsets).is_some_and(|offset| {
                let distance = i64::from(offset) - i64::from(end);
                (-128 + margin..=127 - margin).contains(&distance)
            })
        };
        let grown = IsLong {
            taken: is_long.taken || taken.is_some_and(|t| !reaches(t, taken_end)),
            jump: is_long.jump || jump.is_some_and(|t| !reaches(t, taken_end + jump_size)),
        };
        has_grown |= grown != is_long;
        relaxed.is_long[index] = grown;
    }
    has_grown
}
