//! `endbr64` goes where no tracked indirect branch can arrive.
//!
//! Compilers that are told to prepare for indirect branch tracking (`-fcf-protection`, the default of most distributions) begin each function with one, because another file might take its address, and put
//! one behind each call that may return twice, and at landing pads.
//!
//! **Safety.** The instruction does nothing but to be looked for by the processor behind an indirect branch, where the process runs with tracking (Intel SDM vol. 1, 18.3). A process does so only if all of its files say in
//! their property notes that they are prepared (x86-64 psABI, *program property*).
//! * A file that does not say so is never run with tracking: there all go.
//! * In one that does, those go that begin functions to which nothing but direct calls and jumps leads: no pointer, no symbol that others see, no table, no exception.
//!
//! A function that begins with two of them keeps both: the checker takes the second one for an instruction. Where something else may know the bytes at an address (a handler of faults, a thunk), they stay. A block that would be empty keeps its mark: what is at its address has to stay apart from what follows.
//!
//! **Profit.** Four bytes, and one executed instruction for each call. It needs no profile.

use iced_x86::{Code, Instruction};
use lifter::Image;
use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::{BlockFlags, Program};
use lifter::x86::decode_block_into;
use memchr::memmem;
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::reached::reached;
use crate::edit::{Change, EditPlan, NewCode, Replacement};
use crate::fold::Folding;
use crate::fold::blocks::BlockFolding;

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

const LEN: u32 = ENDBR64.len() as u32;

/// The marks that go: blocks, and offsets in them. Ascending. What runs is asked of the weights only where other code stays where it is.
pub fn find(image: &Image<'_>, program: &Program, weights: &Weights, stand_ins: StandIns<'_>) -> Vec<(Block, u32)> {
    let all_moves = program.is_replaceable();
    let runs = |block: Block| weights.blocks.get(block.index()).is_some_and(|&count| count != 0);
    let may_go = |block: &Block| {
        let data = &program.blocks[*block];
        let is_known = data.flags.intersects(BlockFlags::KNOWN_BY_FAULT | BlockFlags::THUNK);
        program.funcs[data.func].is_movable() && !is_known && (all_moves || runs(*block))
    };
    let blocks: Vec<Block> = program.blocks.keys().filter(may_go).collect();
    let marks_of = |instructions: &mut Vec<_>, &block: &Block| marks_in(image, program, block, instructions);
    let mut marks: Vec<(Block, u32)> = blocks.par_iter().with_min_len(64).map_init(Vec::new, marks_of).flatten_iter().collect();
    if image.has_ibt && !marks.is_empty() {
        let untracked = Untracked::of(image, program, stand_ins);
        let doubled: FxHashSet<Block> = marks.iter().filter(|&&(_, offset)| offset == LEN).map(|&(block, _)| block).collect();
        marks.retain(|&(block, offset)| offset == 0 && !doubled.contains(&block) && untracked.contains(block));
    }
    marks
}

/// Plans that marks go, but for those that other edits already have.
pub fn plan(marks: &[(Block, u32)], edits: &mut EditPlan) {
    if marks.is_empty() {
        return;
    }
    let code = edits.codes.push(NewCode::default());
    let replacement = |&(block, offset)| Replacement { block, offset, len: LEN, code, change: Change::EndBranch };
    edits.replacements.extend(marks.iter().map(replacement));
    edits.settle();
}

fn marks_in(image: &Image<'_>, program: &Program, block: Block, instructions: &mut Vec<Instruction>) -> Vec<(Block, u32)> {
    let data = &program.blocks[block];
    let bytes = image.read(data.start, data.body_len as usize).unwrap_or(&[]);
    if data.body_len <= LEN || memmem::find(bytes, &ENDBR64).is_none() {
        return Vec::new();
    }
    decode_block_into(image, program, block, instructions);
    let marks = instructions.iter().filter(|instruction| instruction.code() == Code::Endbr64);
    marks.map(|mark| (block, (mark.ip() - data.start.0) as u32)).collect()
}

/// What stands for others, which may be entered in other ways.
#[derive(Copy, Clone, Debug)]
pub struct StandIns<'a> {
    pub functions: &'a Folding,
    pub blocks: Option<&'a BlockFolding>,
}

/// Which functions no indirect branch enters, in a file that may run with tracking.
struct Untracked<'a> {
    program: &'a Program,
    reached: SecondaryMap<Block, bool>,
    stand_ins: FxHashSet<Block>,
}

impl<'a> Untracked<'a> {
    fn of(image: &Image<'_>, program: &'a Program, stand_ins: StandIns<'_>) -> Self {
        let functions = stand_ins.functions.pairs().iter().map(|&(_, stays)| program.funcs[stays].entry);
        let blocks = stand_ins.blocks.into_iter().flat_map(|blocks| blocks.pairs()).map(|&(_, stays)| stays);
        Self { program, reached: reached(image, program), stand_ins: functions.chain(blocks).collect() }
    }

    fn contains(&self, block: Block) -> bool {
        let data = &self.program.blocks[block];
        let may_arrive = BlockFlags::ADDRESS_TAKEN | BlockFlags::ANCHOR | BlockFlags::LANDING_PAD | BlockFlags::TABLE_TARGET;
        // Of what has no unwind entry, and of what nothing leads to, the checker knows less.
        let fde = self.program.ranges[data.range as usize].fde;
        let is_start = fde.is_some_and(|fde| self.program.unwind.fdes[fde].start == data.start);
        let is_entry = self.program.funcs[data.func].entry == block && is_start;
        is_entry && self.reached[block] && !data.flags.intersects(may_arrive) && !self.stand_ins.contains(&block)
    }
}
