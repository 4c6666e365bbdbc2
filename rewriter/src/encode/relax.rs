//! Which branches of a fragment are short: the least set of long ones under which every short one reaches.
//!
//! **Method.** All branches inside the fragment start short. Lay the blocks out; make those long that don't reach; repeat until nothing
//! changes. Branches that leave the fragment are long from the start. After `MAX_ROUNDS` whatever is still short and near its limit is made
//! long at once, so that the work is linear in the blocks.

use std::ops::Range;

use lifter::entity::EntityId;

use super::relays::{Island, Relayed};
use crate::materialize::{OutTarget, OutTerminator};
use crate::terminator::{LONG_BRANCH, LONG_JUMP, SHORT};

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

impl Shape {
    /// Whether the block has no bytes of its own.
    pub(super) fn is_empty(&self) -> bool {
        self.body_len == 0 && self.terminator == OutTerminator::None
    }

    pub(super) fn is_loop(&self) -> bool {
        matches!(self.terminator, OutTerminator::Loop { .. })
    }
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
    /// Short branches that go by way of others, ascending.
    pub relayed: Vec<Relayed>,
    /// Jumps behind blocks, by which others go; ascending in the end.
    pub islands: Vec<Island>,
    /// By block, whether one is behind it; empty where there are none.
    pub has_island: Vec<bool>,
    pub len: u32,
}

impl Relaxed {
    /// Of the jump at a block's end.
    pub(super) fn jump_offset(&self, shapes: &[Shape], index: usize) -> u32 {
        self.offsets[index] + shapes[index].body_len + sizes(&shapes[index], self.is_long[index]).0
    }

    /// Behind a block and its terminator.
    pub(super) fn end_offset(&self, shapes: &[Shape], index: usize) -> u32 {
        self.jump_offset(shapes, index) + sizes(&shapes[index], self.is_long[index]).1
    }

    pub(super) fn island_offset(&self, shapes: &[Shape], island: &Island) -> u32 {
        self.end_offset(shapes, island.block as usize)
    }

    pub(super) fn island_behind(&self, index: usize) -> Option<&Island> {
        let found = self.islands.binary_search_by_key(&(index as u32), |island| island.block).ok()?;
        self.islands.get(found)
    }

    /// The short branches of a block: where each ends, and where it leads.
    pub(super) fn short_branches(&self, shape: &Shape, index: usize, blocks: &Range<u32>) -> [Option<(u32, u32)>; 2] {
        let (is_long, (taken, jump)) = (self.is_long[index], targets(shape.terminator));
        let (taken_size, jump_size) = sizes(shape, is_long);
        let end = self.offsets[index] + shape.body_len + taken_size;
        let lead = |target: OutTarget, is_jump: bool| {
            let key = (index as u32, is_jump);
            match self.relayed.binary_search_by_key(&key, |relayed| (relayed.block, relayed.is_jump)) {
                Ok(found) => Some(self.relayed[found].offset),
                Err(_) => offset_in(target, blocks, &self.offsets),
            }
        };
        let short = |target: Option<OutTarget>, end: u32, is_jump: bool| Some((end, lead(target?, is_jump)?));
        [short(taken.filter(|_| !is_long.taken), end, false), short(jump.filter(|_| !is_long.jump), end + jump_size, true)]
    }

    pub(super) fn has_long(&self) -> bool {
        self.is_long.iter().any(|is_long| is_long.taken || is_long.jump)
    }
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

/// Decides all branches of a fragment, whose first `room` bytes are before its blocks.
pub(super) fn relax(shapes: &[Shape], blocks: &Range<u32>, room: u32) -> Relaxed {
    let (offsets, is_long) = (vec![0; shapes.len()], vec![IsLong::default(); shapes.len()]);
    let mut relaxed = Relaxed { offsets, is_long, relayed: Vec::new(), islands: Vec::new(), has_island: Vec::new(), len: 0 };
    for (shape, is_long) in shapes.iter().zip(&mut relaxed.is_long) {
        let leaves = |target: Option<OutTarget>| target.is_some_and(|t| offset_in(t, blocks, &relaxed.offsets).is_none());
        let (taken, jump) = targets(shape.terminator);
        *is_long = IsLong { taken: leaves(taken), jump: leaves(jump) };
    }
    for round in 0.. {
        lay_out(shapes, room, &mut relaxed);
        let reach = if round < MAX_ROUNDS { 0 } else { 64 };
        if !grow(shapes, blocks, &mut relaxed, reach) {
            break;
        }
    }
    relaxed
}

pub(super) fn targets(terminator: OutTerminator) -> (Option<OutTarget>, Option<OutTarget>) {
    match terminator {
        OutTerminator::None => (None, None),
        OutTerminator::Jump(target) => (None, Some(target)),
        OutTerminator::Branch { taken, jump, .. } | OutTerminator::Loop { taken, jump } => (Some(taken), jump),
    }
}

/// Sizes of the two branches of a terminator.
pub(super) fn sizes(shape: &Shape, is_long: IsLong) -> (u32, u32) {
    let jump = |present: bool| match (present, is_long.jump) {
        (false, _) => 0,
        (true, false) => SHORT,
        (true, true) => LONG_JUMP,
    };
    match shape.terminator {
        OutTerminator::None => (0, 0),
        OutTerminator::Jump(_) => (0, jump(true)),
        OutTerminator::Branch { jump: next, .. } => (if is_long.taken { LONG_BRANCH } else { SHORT }, jump(next.is_some())),
        OutTerminator::Loop { jump: next, .. } => {
            let rest = if is_long.taken { 1 + SHORT + LONG_JUMP } else { 1 };
            (shape.loop_prefix_len + rest, jump(next.is_some()))
        }
    }
}

pub(super) fn lay_out(shapes: &[Shape], room: u32, relaxed: &mut Relaxed) {
    let mut at = room;
    for (index, shape) in shapes.iter().enumerate() {
        at = at.next_multiple_of(shape.align.max(1));
        relaxed.offsets[index] = at;
        let (taken, jump) = sizes(shape, relaxed.is_long[index]);
        let has_island = relaxed.has_island.get(index).is_some_and(|&has| has);
        at += shape.body_len + taken + jump + if has_island { Island::LEN } else { 0 };
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

#[cfg(test)]
mod tests {
    use lifter::address::Va;

    use super::*;
    use crate::materialize::Out;

    fn block(body_len: u32, terminator: OutTerminator) -> Shape {
        Shape { align: 1, body_len, terminator, loop_prefix_len: 1 }
    }
    fn jump(to: usize) -> OutTerminator {
        OutTerminator::Jump(OutTarget::Placed(Out::new(to)))
    }

    #[test]
    fn a_jump_is_short_up_to_127_bytes_and_long_beyond() {
        let reaching = [block(0, jump(2)), block(127, OutTerminator::None), block(1, OutTerminator::None)];
        assert_eq!(relax(&reaching, &(0..3), 0).offsets, [0, 2, 129]);
        let beyond = [block(0, jump(2)), block(128, OutTerminator::None), block(1, OutTerminator::None)];
        assert_eq!(relax(&beyond, &(0..3), 0).offsets, [0, 5, 133]);
    }

    #[test]
    fn growth_of_one_branch_makes_another_grow() {
        // The first jump just reaches as long as the second one is short.
        let shapes = [
            block(0, jump(3)),
            block(60, jump(4)),
            block(65, OutTerminator::None),
            block(63, OutTerminator::None),
            block(1, OutTerminator::None),
        ];
        let relaxed = relax(&shapes, &(0..5), 0);
        assert!(relaxed.is_long[1].jump && relaxed.is_long[0].jump);
    }

    #[test]
    fn what_leaves_the_fragment_is_long() {
        let shapes = [block(3, jump(9)), block(3, OutTerminator::Jump(OutTarget::Fixed(Va(0x1000))))];
        assert_eq!(relax(&shapes, &(4..6), 0).len, 3 + 5 + 3 + 5);
    }

    #[test]
    fn ids_of_a_fragment_need_not_begin_at_zero() {
        let shapes = [block(3, jump(8)), block(3, jump(7))];
        assert_eq!(relax(&shapes, &(7..9), 0).len, 3 + 2 + 3 + 2);
    }

    #[test]
    fn every_short_branch_of_a_random_fragment_reaches() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let count = 2 + next(60) as usize;
            let shapes: Vec<Shape> = (0..count)
                .map(|_| {
                    let mut shape = block(next(40) as u32, jump(next(count as u64) as usize));
                    shape.align = 1 << next(5);
                    shape
                })
                .collect();
            let relaxed = relax(&shapes, &(0..count as u32), 0);
            for (index, shape) in shapes.iter().enumerate() {
                let OutTerminator::Jump(target) = shape.terminator else { unreachable!() };
                let size = if relaxed.is_long[index].jump { 5 } else { 2 };
                let end = i64::from(relaxed.offsets[index] + shape.body_len) + size;
                let to = offset_in(target, &(0..count as u32), &relaxed.offsets).map(i64::from);
                let distance = to.map(|to| to - end);
                assert!(size == 5 || distance.is_some_and(|d| (-128..=127).contains(&d)), "{distance:?}");
            }
        }
    }
}
