//! Blocks of a lifted program cut in two, where a later phase wants to name what stands in their middle.
//!
//! **Method.** All cuts at once: ids of blocks stay consecutive by function and ascending by address, so that every id behind a cut moves up, and
//! whatever names a block follows. The front part runs into the rear one, which has the terminator; references go where their bytes are. What
//! is said of a block (that it is named, that it begins a loop) is said of its front part.
//!
//! **Invariants.** Those of `ir`: a program that `verify` finds right is right afterwards. Functions, ranges, tables and slots keep their ids.

use crate::address_index::AddressIndex;
use crate::entity::{Block, EntityId, IdRange, PrimaryMap};
use crate::ir::{
    BlockData, BlockFlags, CodeTarget, EdgeData, EdgeKind, Program, RefData, RefTarget, StopKind, TableBase, Terminator,
};

/// Where a block becomes two: before an instruction of its body that is not its first.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cut {
    pub block: Block,
    /// From the block's start.
    pub offset: u32,
    /// Instructions in front of the cut.
    pub num_insts: u32,
}

/// What became of blocks and edges.
#[derive(Clone, Debug, Default)]
pub struct Split {
    /// By new block, the one that it is a part of.
    pub origins: Vec<Block>,
    /// By new edge, the index of the old one; `None` for those from a front part to a rear one.
    pub edges: Vec<Option<u32>>,
    /// By old block, its front part.
    fronts: Vec<Block>,
    /// By part, where it starts in the old block.
    offsets: Vec<u32>,
}

impl Split {
    /// The front part of an old block.
    pub fn front(&self, old: Block) -> Block {
        self.fronts.get(old.index()).copied().unwrap_or(old)
    }

    /// The part of an old block in which the instruction is that ends at an offset, and the offset in that part.
    pub fn part_before(&self, old: Block, offset: u32) -> (Block, u32) {
        let front = self.front(old);
        let parts = self.origins[front.index()..].iter().take_while(|origin| **origin == old).count();
        let offsets = &self.offsets[front.index()..front.index() + parts];
        let index = offsets.partition_point(|start| *start < offset).saturating_sub(1);
        (Block::new(front.index() + index), offset - offsets.get(index).copied().unwrap_or(0))
    }
}

/// Makes the cuts, which must ascend; one that is in no block's body is left out.
pub fn split(program: &mut Program, cuts: &[Cut]) -> Split {
    let cuts: Vec<Cut> = cuts.iter().copied().filter(|cut| is_inside(program, cut)).collect();
    let mut fronts = Vec::with_capacity(program.blocks.len() + 1);
    let mut rest = cuts.as_slice();
    for old in program.blocks.keys() {
        fronts.push(Block::new(old.index() + cuts.len() - rest.len()));
        rest = &rest[rest.iter().take_while(|cut| cut.block == old).count()..];
    }
    let mut splitter = Splitter::with_room(program, fronts, cuts.len());
    let mut rest = cuts.as_slice();
    for old in program.blocks.keys() {
        let (own, others) = rest.split_at(rest.iter().take_while(|cut| cut.block == old).count());
        splitter.push_parts(program, old, own);
        rest = others;
    }
    let Splitter { split, blocks, edges } = splitter;
    rename(program, &split);
    (program.blocks, program.edges) = (blocks, edges);
    program.blocks_by_address = program.blocks.keys().collect();
    program.blocks_by_address.sort_unstable_by_key(|&block| program.blocks[block].start);
    program.block_index = AddressIndex::new(program.blocks_by_address.iter().map(|&block| program.blocks[block].start));
    split
}

fn is_inside(program: &Program, cut: &Cut) -> bool {
    let data = program.blocks.get(cut.block);
    data.is_some_and(|data| (1..data.body_len).contains(&cut.offset) && (1..data.num_insts).contains(&cut.num_insts))
}

struct Splitter {
    split: Split,
    blocks: PrimaryMap<Block, BlockData>,
    edges: Vec<EdgeData>,
}

impl Splitter {
    /// Each cut makes a block and an edge.
    fn with_room(program: &Program, fronts: Vec<Block>, num_cuts: usize) -> Self {
        let (num_blocks, num_edges) = (program.blocks.len() + num_cuts, program.edges.len() + num_cuts);
        let split = Split {
            origins: Vec::with_capacity(num_blocks),
            edges: Vec::with_capacity(num_edges),
            fronts,
            offsets: Vec::with_capacity(num_blocks),
        };
        Self { split, blocks: PrimaryMap::with_capacity(num_blocks), edges: Vec::with_capacity(num_edges) }
    }

    fn push_parts(&mut self, program: &mut Program, old: Block, cuts: &[Cut]) {
        let data = program.blocks[old].clone();
        let terminator = renamed(data.terminator, &self.split);
        let mut refs = data.refs.as_usize();
        let ends = cuts.iter().map(|cut| Some((cut.offset, cut.num_insts))).chain([None]);
        let (mut at, mut num_before) = (0, 0);
        for end in ends {
            let block = self.blocks.next_id();
            self.split.offsets.push(at);
            let num_refs = end.map_or(refs.len(), |(offset, _)| {
                program.refs[refs.clone()].partition_point(|reference: &RefData| reference.offset < offset)
            });
            let own_refs = refs.start..refs.start + num_refs;
            program.refs[own_refs.clone()].iter_mut().for_each(|reference| reference.offset -= at);
            refs.start = own_refs.end;
            let first_edge = self.edges.len();
            let flags = if at == 0 { data.flags } else { data.flags & (BlockFlags::HAS_CALL | BlockFlags::COLD) };
            let common = BlockData {
                start: data.start + u64::from(at),
                refs: IdRange::from_usize(own_refs),
                flags,
                terminator,
                body_len: data.body_len - at,
                len: data.len - at,
                num_insts: data.num_insts - num_before,
                ..data
            };
            let part = match end {
                Some((offset, num_insts)) => {
                    let next = Block::new(block.index() + 1);
                    self.edges.push(EdgeData { source: block, target: next, kind: EdgeKind::Fallthrough });
                    self.split.edges.push(None);
                    let (len, num_insts_own) = (offset - at, num_insts - num_before);
                    (at, num_before) = (offset, num_insts);
                    let terminator = Terminator::Fallthrough { next };
                    BlockData { terminator, body_len: len, len, num_insts: num_insts_own, ..common }
                }
                None => {
                    for index in data.edges.as_usize() {
                        let edge = program.edges[index];
                        self.edges.push(EdgeData { source: block, target: self.split.front(edge.target), ..edge });
                        self.split.edges.push(Some(index as u32));
                    }
                    common
                }
            };
            self.blocks.push(BlockData { edges: IdRange::from_usize(first_edge..self.edges.len()), ..part });
            self.split.origins.push(old);
        }
    }
}

fn renamed(terminator: Terminator, split: &Split) -> Terminator {
    let code = |target: CodeTarget| match target {
        CodeTarget::Block(block) => CodeTarget::Block(split.front(block)),
        CodeTarget::Fixed(_) => target,
    };
    match terminator {
        Terminator::Fallthrough { next } => Terminator::Fallthrough { next: split.front(next) },
        Terminator::Jump { target } => Terminator::Jump { target: code(target) },
        Terminator::Branch { condition, taken, next } => {
            Terminator::Branch { condition, taken: code(taken), next: split.front(next) }
        }
        Terminator::Loop { taken, next } => Terminator::Loop { taken: split.front(taken), next: split.front(next) },
        Terminator::Stop(
            StopKind::Return
            | StopKind::TableJump(_)
            | StopKind::ComputedJump
            | StopKind::IndirectTailCall
            | StopKind::NoReturnCall
            | StopKind::Trap
            | StopKind::Unknown,
        ) => terminator,
    }
}

/// Everything but blocks and edges.
fn rename(program: &mut Program, split: &Split) {
    for func in program.funcs.values_mut() {
        func.entry = split.front(func.entry);
        let old = func.blocks.as_usize();
        let end = split.fronts.get(old.end).map_or(split.origins.len(), |front| front.index());
        let start = split.fronts.get(old.start).map_or(end, |front| front.index());
        func.blocks = IdRange::from_usize(start..end);
    }
    for reference in &mut program.refs {
        if let RefTarget::Block(block) = &mut reference.target {
            *block = split.front(*block);
        }
    }
    program.slots.iter_mut().for_each(|slot| slot.target = split.front(slot.target));
    program.table_targets.iter_mut().for_each(|target| *target = split.front(*target));
    for table in program.tables.values_mut() {
        if let TableBase::Code(block) = &mut table.base {
            *block = split.front(*block);
        }
    }
}
