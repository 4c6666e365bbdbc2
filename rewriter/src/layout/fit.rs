//! Pieces of code that fit between what stays.
//!
//! **Problem.** Between two addresses that are kept there are some hundred bytes. What is longer than the longest of these gaps would go behind the image, however much is free.
//!
//! **Method.** Placing is tried out, with lengths as the input has them. What ran goes first, in order; of it only what fits nowhere is cut, and only where execution does not run on. Then the rest, the
//! longest first, each into the smallest gap that takes it; what none takes is cut so that its first piece fills the longest gap, and the rest of it goes on. Each piece costs an unwind entry, so
//! there are no more of them than the gaps ask for.
//!
//! **Invariants.** All fragments of a function together have the same blocks in the same order, and the hot ones keep theirs. **Termination**: each cut leaves two fragments with fewer blocks.

use std::collections::BinaryHeap;
use std::ops::Range;

use lifter::Image;
use lifter::address::Va;
use lifter::ir::{CodeTarget, Program, Terminator};

use crate::plan::{FragmentPlan, Temperature};
use crate::relink::space::{Overflow, Space, free_text};

/// The shortest gap that is worth an unwind entry, in bytes.
const GAP_MIN: u64 = 128;
/// How many times as long as a fragment that stays in one piece the longest gap has to be: it may have been filled by others when the lengths are known.
const SPARE: u64 = 4;
/// The least length of a piece of what ran.
const HOT_PIECE_MIN: u64 = 1024;
/// From this length on it is cut where execution runs on.
const HOT_PIECE_MAX: u64 = 4096;
/// What may become longer: branches that were short, jumps to what ran on.
const JUMP_BYTES: u64 = 6;

/// Cuts the fragments that would fit nowhere; what ran begins at `from`.
pub(super) fn cut_to_fit(image: &Image<'_>, program: &Program, from: Va, fragments: &mut Vec<FragmentPlan>) {
    let mut space = Space::new(free_text(image, program), &[], Overflow::behind(image, 0));
    space.begin_at(from);
    let measured = std::mem::take(fragments).into_iter().map(|fragment| Measured::new(program, fragment));
    let (hot, others): (Vec<Measured>, Vec<Measured>) =
        measured.partition(|measured| measured.fragment.temperature == Temperature::Hot);
    for measured in hot {
        let whole = 0..measured.fragment.blocks.len();
        let stays_whole = space.has_room(SPARE * measured.len(&whole));
        let pieces = if stays_whole { vec![whole] } else { measured.cut_at_ends(program) };
        for piece in &pieces {
            space.take_lines_in_order(measured.len(piece), u64::from(measured.align(piece)));
        }
        fragments.extend(measured.into_pieces(&pieces));
    }
    space.give_up_order();
    let pieces = place_others(program, &others, &mut space);
    fragments.extend(others.into_iter().zip(pieces).flat_map(|(measured, pieces)| measured.into_pieces(&pieces)));
}

/// Finds gaps for fragments that may be cut; gives the pieces of each, in order.
fn place_others(program: &Program, others: &[Measured], space: &mut Space) -> Vec<Vec<Range<usize>>> {
    let piece = |index: usize, blocks: Range<usize>| (others[index].len(&blocks), index, blocks.start, blocks.end);
    let mut waiting: BinaryHeap<(u64, usize, usize, usize)> =
        others.iter().enumerate().map(|(index, measured)| piece(index, 0..measured.fragment.blocks.len())).collect();
    let mut pieces = vec![Vec::new(); others.len()];
    while let Some((len, index, start, mut end)) = waiting.pop() {
        let align = u64::from(others[index].align(&(start..end)));
        if space.take_hole(len, align).is_none()
            && let Some(gap) = space.longest_hole().filter(|&gap| gap >= GAP_MIN)
        {
            let cut = others[index].end_that_fits(program, start..end, gap);
            if start < cut && cut < end {
                space.take_hole(others[index].len(&(start..cut)), align);
                waiting.push(piece(index, cut..end));
                end = cut;
            }
        }
        pieces[index].push(start..end);
    }
    pieces.iter_mut().for_each(|pieces| pieces.sort_unstable_by_key(|piece| piece.start));
    pieces
}

/// A fragment, and how many bytes its blocks have from its start on.
struct Measured {
    fragment: FragmentPlan,
    lens: Vec<u64>,
}

impl Measured {
    fn new(program: &Program, fragment: FragmentPlan) -> Self {
        let mut lens = vec![0];
        lens.extend(fragment.blocks.iter().scan(0, |len, planned| {
            *len += u64::from(program.blocks[planned.block].len);
            Some(*len)
        }));
        Self { fragment, lens }
    }

    /// How long blocks may become one behind the other, in bytes.
    fn len(&self, blocks: &Range<usize>) -> u64 {
        let len = self.lens[blocks.end] - self.lens[blocks.start];
        len + len / 32 + JUMP_BYTES
    }

    /// What a piece asks for: the first one what the fragment does, any other what its blocks do.
    fn align(&self, blocks: &Range<usize>) -> u8 {
        let demanded = || self.fragment.blocks[blocks.clone()].iter().map(|planned| planned.align).max();
        if blocks.start == 0 { self.fragment.align } else { demanded().unwrap_or(1) }
    }

    /// The end of those blocks that fit into a gap, the last of which does not run on, if that leaves at most half of it empty.
    fn end_that_fits(&self, program: &Program, blocks: Range<usize>, gap: u64) -> usize {
        let ends = blocks.start + 1..=blocks.end;
        let count = self.lens[ends.clone()].partition_point(|&end| {
            let len = end - self.lens[blocks.start];
            len + len / 32 + JUMP_BYTES <= gap
        });
        let last = blocks.start + count;
        let is_long = |end: &usize| self.len(&(blocks.start..*end)) * 2 >= gap;
        let way_ends = (blocks.start + 1..=last).rev().take_while(is_long).find(|&end| self.ends_way(program, end));
        // What is a copy has no other way to it.
        way_ends.unwrap_or_else(|| (blocks.start..=last).rev().find(|&end| !self.is_copy(end)).unwrap_or(blocks.start))
    }

    /// Pieces of what ran. One runs on into the next only where nothing ends for long.
    fn cut_at_ends(&self, program: &Program) -> Vec<Range<usize>> {
        let (mut pieces, mut first) = (Vec::new(), 0);
        let all = self.fragment.blocks.len();
        for end in 1..=all {
            let len = self.len(&(first..end));
            let may_end = || self.ends_way(program, end) || len >= HOT_PIECE_MAX && !self.is_copy(end);
            if end == all || len >= HOT_PIECE_MIN && may_end() {
                pieces.push(first..end);
                first = end;
            }
        }
        pieces
    }

    fn is_copy(&self, index: usize) -> bool {
        self.fragment.blocks.get(index).is_some_and(|planned| planned.copy.is_some())
    }

    /// Whether nothing runs on from before a block into it.
    fn ends_way(&self, program: &Program, index: usize) -> bool {
        let Some(next) = self.fragment.blocks.get(index) else { return true };
        match program.blocks[self.fragment.blocks[index - 1].block].terminator {
            Terminator::Stop(_) => !self.is_copy(index),
            // A jump to the next block is none in the output.
            Terminator::Jump { target } => !self.is_copy(index) && target != CodeTarget::Block(next.block),
            _ => false,
        }
    }

    fn into_pieces(self, pieces: &[Range<usize>]) -> Vec<FragmentPlan> {
        if let [_] = pieces {
            return vec![self.fragment];
        }
        let piece = |blocks: &Range<usize>| FragmentPlan {
            align: self.align(blocks),
            blocks: self.fragment.blocks[blocks.clone()].to_vec(),
            ..self.fragment
        };
        pieces.iter().map(piece).collect()
    }
}

#[cfg(test)]
mod tests {
    use lifter::entity::{Block, EntityId, Func};

    use super::*;
    use crate::plan::PlannedBlock;
    use crate::testing::{End, ProgramBuilder, TestBlock};

    /// One function with blocks of a hundred bytes that end so, as one fragment; the blocks at `copies` are copies.
    fn measured(ends: Vec<End>, copies: &[usize]) -> (Program, Measured) {
        let blocks: Vec<TestBlock> = ends.into_iter().map(|end| TestBlock::new(100, end)).collect();
        let planned = |index| PlannedBlock {
            block: Block::new(index),
            align: 1,
            copy: copies.contains(&index).then_some(crate::plan::Times::new(1)),
        };
        let fragment = FragmentPlan {
            func: Func::new(0),
            temperature: Temperature::Hot,
            align: 16,
            blocks: (0..blocks.len()).map(planned).collect(),
            clone: None,
        };
        let program = ProgramBuilder::default().func(blocks).build();
        let measured = Measured::new(&program, fragment);
        (program, measured)
    }

    #[test]
    fn a_piece_ends_where_nothing_runs_on_and_fills_a_gap() {
        use End::{Fallthrough, Jump, Return};
        let ends = vec![Fallthrough, Jump(0), Fallthrough, Return, Fallthrough, Return];
        let (program, measured) = measured(ends, &[]);
        assert_eq!(measured.end_that_fits(&program, 0..6, 450), 4);
        assert_eq!(measured.end_that_fits(&program, 0..6, 360), 2, "the third block runs on");
        assert_eq!(measured.end_that_fits(&program, 2..6, 120), 3, "a jump is better than half a gap");
        assert_eq!(measured.end_that_fits(&program, 0..6, 80), 0, "nothing fits");
    }

    #[test]
    fn a_copy_stays_behind_the_block_that_runs_into_it() {
        use End::{Fallthrough, Jump, Return};
        let (program, measured) = measured(vec![Fallthrough, Jump(2), Return, Return], &[2]);
        assert_eq!(measured.end_that_fits(&program, 0..4, 250), 1);
        assert_eq!(measured.end_that_fits(&program, 1..4, 150), 1);
        assert_eq!(measured.end_that_fits(&program, 1..4, 250), 3);
    }

    #[test]
    fn what_runs_is_cut_where_it_ends_or_else_where_it_is_long() {
        let mut ends = vec![End::Fallthrough; 60];
        ends[13] = End::Return;
        ends[59] = End::Return;
        let (program, measured) = measured(ends, &[54]);
        let pieces = measured.cut_at_ends(&program);
        assert_eq!(pieces, [0..14, 14..55, 55..60]);
        let fragments = measured.into_pieces(&pieces);
        assert_eq!(
            fragments.iter().map(|fragment| (fragment.blocks.len(), fragment.align)).collect::<Vec<_>>(),
            [(14, 16), (41, 1), (5, 1)]
        );
    }
}
