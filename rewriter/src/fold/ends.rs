//! Where blocks are cut so that equal ends can share a copy: what functions give back before they return, what error paths go on with.
//!
//! **Problem.** [`super::blocks`] lets blocks share that are alike as a whole. A function's end is rarely one: it begins in the middle of whatever comes to it, and each way
//! out has its own. Its unwind rows, one for each register that is taken back, cost more than its instructions.
//!
//! **Method.** Each block has an end for each of its last instructions. Ends of the same hash do the same ([`super::blocks`]). A block is cut where more blocks share
//! an end than share the next longer one, if what is saved pays for a jump: inside a function by bytes alone, across functions if it is long. What
//! comes of a cut is decided later; a block that is cut for nothing runs into its rear part, and costs nothing.
//!
//! **Invariants.** No cut is in a block that is much of what is executed ([`super::shares`]). Functions that are folded are cut as the one that stands for them.

use iced_x86::Instruction;
use lifter::Image;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::Program;
use lifter::split::Cut;
use lifter::x86;
use rayon::prelude::*;

use super::blocks::hashes::{Hasher, Room, Suffix};
use super::blocks::pays;
use super::shares::{Reach, Shares};
use super::{Context, FUNCS_AT_ONCE, Folding};
use crate::materialize::block_bytes;

/// Instructions of an end that are looked at.
const DEPTH_MAX: usize = 24;

/// An end that may be worth sharing. There are more of these than of anything else: 790,000 in `git`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct End {
    hash: u64,
    block: Block,
    /// In bytes, up to where the block's body ends: no more than [`DEPTH_MAX`] instructions have.
    len: u16,
    /// Of which each changes the unwind row at most once.
    num_rows: u16,
}

impl End {
    fn of(block: Block, body_len: u32, suffix: &Suffix) -> Self {
        let (len, num_rows) = (body_len - suffix.offset, suffix.num_rows);
        debug_assert!(len.max(num_rows) <= u32::from(u16::MAX));
        Self { hash: suffix.hash as u64, block, len: len as u16, num_rows: num_rows as u16 }
    }

    fn pays(&self, reach: Reach) -> bool {
        pays(reach, self.len.into(), self.num_rows.into())
    }
}

/// An end that several blocks have.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shared {
    block: Block,
    offset: u32,
    /// How many have it.
    count: u32,
}

/// All cuts, ascending, in those blocks that `is_open` allows.
pub fn cuts(
    image: &Image<'_>,
    program: &Program,
    folded: &Folding,
    shares: &Shares,
    is_open: &SecondaryMap<Block, bool>,
) -> Vec<Cut> {
    let context = Context::new(image, program);
    let may_share = |block: Block| is_open[block] && shares.allows_cut(block);
    let stays = |func: Func| program.funcs[func].is_movable() && folded.representative(func) == func;
    let funcs: Vec<Func> = program.funcs.keys().filter(|&func| stays(func)).collect();
    let mut ends: Vec<End> = Vec::new();
    for funcs in funcs.chunks(FUNCS_AT_ONCE) {
        let found: Vec<Vec<End>> =
            funcs.par_iter().map_init(Room::default, |room, &func| ends_of(&context, folded, func, room, &may_share)).collect();
        found.into_iter().for_each(|found| ends.extend(found));
    }
    ends.par_sort_unstable();
    let mut shared: Vec<Shared> = Vec::new();
    for same in ends.chunk_by(|a, b| a.hash == b.hash).filter(|same| same.len() > 1) {
        let is_shared = same[0].pays(Reach::Program);
        for near in same.chunk_by(|a, b| program.func_of(a.block) == program.func_of(b.block)) {
            let count = if is_shared { same.len() } else { near.len() };
            if count > 1 {
                let offset = |end: &End| program.blocks[end.block].body_len - u32::from(end.len);
                shared.extend(near.iter().map(|end| Shared { block: end.block, offset: offset(end), count: count as u32 }));
            }
        }
    }
    drop(ends);
    shared.par_sort_unstable();
    let mut cuts: Vec<Cut> = Vec::new();
    let mut instructions = Vec::new();
    for ends in shared.chunk_by(|a, b| a.block == b.block) {
        let mut most = 1;
        for &Shared { block, offset, count } in ends {
            if count > most && offset > 0 {
                let num_insts = num_before(image, program, (block, offset), &mut instructions);
                cuts.extend(num_insts.map(|num_insts| Cut { block, offset, num_insts }));
            }
            most = most.max(count);
        }
    }
    mirror(program, folded, &mut cuts);
    cuts
}

/// How many instructions of a block come before an offset. Few ends become cuts, so it is counted again for these.
fn num_before(
    image: &Image<'_>,
    program: &Program,
    (block, offset): (Block, u32),
    instructions: &mut Vec<Instruction>,
) -> Option<u32> {
    let bytes = block_bytes(image, program, block).ok()?.get(..offset as usize)?;
    instructions.clear();
    x86::decode_bytes(bytes, program.blocks[block].start, instructions);
    Some(instructions.len() as u32)
}

fn ends_of(
    context: &Context<'_>,
    folded: &Folding,
    func: Func,
    room: &mut Room,
    may_share: &(impl Fn(Block) -> bool + Sync),
) -> Vec<End> {
    let mut ends = Vec::new();
    Hasher::new(context, folded, func).each(func, room, |block, suffixes, _| {
        if may_share(block) {
            let body_len = context.program.blocks[block].body_len;
            let all = suffixes.iter().take(DEPTH_MAX).map(|suffix| End::of(block, body_len, suffix));
            ends.extend(all.filter(|end| end.pays(Reach::Function)));
        }
    });
    ends
}

/// Cuts functions that others stand for as those.
fn mirror(program: &Program, folded: &Folding, cuts: &mut Vec<Cut>) {
    let mut more = Vec::new();
    for &(func, stand_in) in folded.pairs() {
        let (own, other) = (program.funcs[func].blocks.as_usize(), program.funcs[stand_in].blocks.as_usize());
        let first = cuts.partition_point(|cut| cut.block.index() < other.start);
        let same = cuts[first..].iter().take_while(|cut| other.contains(&cut.block.index()));
        more.extend(same.map(|cut| Cut { block: Block::new(cut.block.index() - other.start + own.start), ..*cut }));
    }
    cuts.extend(more);
    cuts.sort_unstable();
}

#[cfg(test)]
mod tests {
    //! Where programs of no-ops are cut.

    use profiles::Weights;

    use super::*;
    use crate::fold::shares::Slowdown;
    use crate::testing::{End::*, ProgramBuilder, TEXT_START, TestBlock, image_of};

    /// Each cut as block and offset.
    fn cut(funcs: &[&[TestBlock]], folded: &Folding, weights: &Weights) -> Vec<(usize, u32)> {
        let program = funcs.iter().fold(ProgramBuilder::default(), |builder, func| builder.func(func.to_vec())).build();
        let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
        let text = vec![0x90; (end.0 - TEXT_START) as usize];
        let is_open = SecondaryMap::new(program.blocks.len(), true);
        let shares = Shares::of(&program, weights, Slowdown::from_percent(Slowdown::PERCENT_MAX));
        let cuts = cuts(&image_of(&text), &program, folded, &shares, &is_open);
        cuts.iter().map(|cut| (cut.block.index(), cut.offset)).collect()
    }

    #[test]
    fn blocks_are_cut_where_what_they_share_begins() {
        let [a, b] = [140, 130].map(|len| [TestBlock::new(len, Return)]);
        let c = [TestBlock::new(200, Fallthrough), TestBlock::new(14, Return)];
        let deepest = DEPTH_MAX as u32;
        assert_eq!(cut(&[&a, &b], &Folding::default(), &Weights::default()), [(0, 140 - deepest), (1, 130 - deepest)]);
        // All of the third's last block is the end of the others.
        let all = [(0, 140 - deepest), (0, 126), (1, 130 - deepest), (1, 116)];
        assert_eq!(cut(&[&a, &b, &c], &Folding::default(), &Weights::default()), all);
    }

    #[test]
    fn across_functions_a_short_end_is_no_reason_and_inside_of_one_it_is() {
        let short = [TestBlock::new(200, Branch(2)), TestBlock::new(9, Return), TestBlock::new(6, Return)];
        let other = [TestBlock::new(7, Return)];
        assert_eq!(cut(&[&other, &other[..]], &Folding::default(), &Weights::default()), []);
        assert_eq!(cut(&[&short], &Folding::default(), &Weights::default()), [(1, 3)]);
    }

    #[test]
    fn what_ran_and_what_is_in_a_short_loop_is_not_cut() {
        let [a, b] = [140, 130].map(|len| [TestBlock::new(len, Return)]);
        let weights = Weights { blocks: vec![1, 0], ..Weights::default() };
        assert_eq!(cut(&[&a, &b], &Folding::default(), &weights), []);
        let looping = |len| [TestBlock::new(len, Branch(0)), TestBlock::new(3, Return)];
        assert_eq!(cut(&[&looping(60), &looping(50)], &Folding::default(), &Weights::default()), []);
    }
}
