//! What changes in code, as data: what is inserted, and which instructions become other ones.
//!
//! **Insertions** have a length that is known before any address is, and bytes that are made once addresses are (`Snippet` says of
//! what). They sit before the instruction at their offset; insertions on an edge get a block of their own.
//!
//! **Replacements** put code of our own ([`NewCode`]: bytes, and the fields in them that name places) where whole instructions of a block were.
//! Nothing in them is an output address: references are those of level 1 and are resolved with all others. One that reaches the end of its
//! block takes the terminator's place too and then has to leave by itself. A body is replaced whole by one from 0 to its end; a call
//! is led elsewhere by one whose reference names another block. What of it seldom runs may lie apart (`NewCode::apart`). Before a function's first block may stand code that only calls which say so enter (`EditPlan::leads`).
//!
//! **Invariants** (checked by [`EditPlan::check`]): replacements ascend, lie in one block each, at boundaries of instructions, and don't overlap.
//! For the unwinder and for exceptions, new code stands where the first replaced instruction did, or where it says: so it must not move the stack pointer but from
//! one such place to the next. In clones it may stand lower on the stack, by as much as it says (`NewCode::deeper`).

mod seldom;

use std::borrow::Cow;
use std::fmt::Write as _;
use std::ops::Range;

use lifter::Va;
use lifter::entity::{Block, EntityId, PrimaryMap};
use lifter::ir::{Program, RefData};
use profiles::Weights;
use rustc_hash::FxHashMap;

use crate::clones::{CloneData, CloneId};
use crate::error::{Error, Result};
use crate::specialize::emit::Tally;
pub use seldom::Seldom;

lifter::define_id!(
    /// A piece of code that some replacements put in.
    NewCodeId, "code");

/// What the inserted bytes do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Snippet {
    /// Increment a counter.
    Counter { index: u32, preserve_flags: bool },
    /// Record the target of the indirect call or jump that follows.
    RecordCall { site: u32 },
}

impl Snippet {
    /// Bytes by which the stack pointer is lower from an offset on, of a snippet that is `len` bytes long.
    pub(crate) fn depths(self, len: u32) -> Vec<(u32, u8)> {
        match self {
            Snippet::Counter { preserve_flags, .. } => profiles::runtime::counter_depths(preserve_flags),
            Snippet::RecordCall { .. } => profiles::runtime::call_site_depths(len as usize),
        }
    }
}

/// Bytes before the instruction at `offset` of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct BlockInsertion {
    pub block: Block,
    /// From the block's start; an instruction boundary.
    pub offset: u32,
    /// In bytes.
    pub len: u32,
    pub snippet: Snippet,
}

/// Bytes on the way from one block to another.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct EdgeInsertion {
    /// Into `Program::edges`; a `Fallthrough` or `Taken` edge.
    pub edge: u32,
    pub len: u32,
    pub snippet: Snippet,
}

/// Which transform changes something.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    PltCall,
    InlineLeaf,
    Specialize,
    ConstantLoad,
    LateSave,
    Schedule,
    EndBranch,
    Outline,
    Subroutine,
    DirectCall,
    Form,
}

impl Change {
    /// The transform as the command line and the report name it.
    pub fn transform(self) -> &'static str {
        match self {
            Change::PltCall => "plt-calls",
            Change::InlineLeaf => "inline-leaves",
            Change::Specialize => "specialize",
            Change::ConstantLoad => "constant-loads",
            Change::LateSave => "late-saves",
            Change::Schedule => "schedule",
            Change::EndBranch => "endbr",
            Change::Outline => "outline",
            Change::Subroutine => "subroutines",
            Change::DirectCall => "direct-calls",
            Change::Form => "forms",
        }
    }
}

/// Code without a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewCode {
    pub bytes: Vec<u8>,
    /// Offsets from the start of `bytes`, ascending.
    pub refs: Vec<RefData>,
    /// How often what stands from an offset on runs, in 65,536ths of how often the whole does. Ascending; 1 where nothing is said.
    pub shares: Seldom<(u32, u32)>,
    /// How often the direct branch at an offset is taken, in the same unit. Ascending; never where nothing is said.
    pub taken: Seldom<(u32, u32)>,
    /// Blocks of the input whose work it does, each with how often, in the same unit: they run so much less themselves.
    pub instead_of: Seldom<(Block, u32)>,
    /// Calls and jumps to blocks that go to the entry of a clone, by the offsets of their references; ascending.
    pub enters: Seldom<(u32, CloneId)>,
    /// Calls that go so many bytes before the block that they name, to what runs into it (`EditPlan::leads`), by the offsets of their references; ascending.
    pub before: Seldom<(u32, u32)>,
    /// From an offset on, for the unwinder and for exceptions, the code stands where this instruction of the input does. Ascending; before the first, it stands
    /// where the first replaced instruction did.
    pub stands: Seldom<(u32, Va)>,
    /// Where `stands` says nothing, so many bytes before the end of what it replaces, if not 0: by that, code that is the same before each of many calls is there once.
    pub stands_before_end: u32,
    /// From an offset on, the code does the work of this instruction of the input, for debug information. Ascending; before the first, and where nothing is said,
    /// that of the first replaced instruction.
    pub works: Seldom<(u32, Va)>,
    /// From an offset on, by how many bytes the stack pointer is lower than in the input. Ascending; before the first, by as many as in the code around it
    /// (`CloneData::deeper`).
    pub deeper: Seldom<(u32, u8)>,
    /// Where parts begin that lie apart: what runs of them behind the code around it, the rest with what never runs. Control goes from part to part, and back,
    /// by `crossings` alone. Ascending.
    pub apart: Seldom<u32>,
    /// Displacements of four bytes at the ends of jumps into other parts: where they are, and the offset that they lead to, [`NewCode::END`] for what
    /// follows the code in its place. Ascending.
    pub crossings: Seldom<(u32, u32)>,
}

impl NewCode {
    pub const WHOLE: u32 = 1 << 16;

    pub const END: u32 = u32::MAX;

    /// Puts bytes and references behind those that are there, of code that says nothing else of itself.
    pub(crate) fn append(&mut self, code: NewCode) {
        let start = self.bytes.len() as u32;
        self.refs.extend(code.refs.into_iter().map(|reference| RefData { offset: start + reference.offset, ..reference }));
        self.bytes.extend(code.bytes);
    }

    /// The bytes of a part: of 0, which stands where the replaced bytes did, or of one that lies apart.
    pub fn part(&self, part: usize) -> Range<u32> {
        let start = |part: usize| self.apart.get(part).copied().unwrap_or(self.bytes.len() as u32);
        part.checked_sub(1).map_or(0, start)..start(part)
    }

    /// The part that an offset lies in.
    pub fn part_of(&self, offset: u32) -> usize {
        self.apart.partition_point(|&start| start <= offset)
    }

    /// Whether anything of a part is known to run.
    pub fn runs(&self, part: usize) -> bool {
        let part = self.part(part);
        let first = self.runs_at(part.start, Self::WHOLE.into()) != 0;
        first || self.shares.iter().any(|(start, share)| part.contains(start) && *share != 0)
    }

    /// How often the branch at `offset` is taken if all of this runs `count` times.
    pub fn taken_at(&self, offset: u32, count: u64) -> u64 {
        let known = self.taken.binary_search_by_key(&offset, |&(at, _)| at);
        let share = known.map_or(0, |index| self.taken[index].1);
        (u128::from(count) * u128::from(share) / u128::from(Self::WHOLE)) as u64
    }

    /// How often the instruction at `offset` runs if all of this does `count` times.
    pub fn runs_at(&self, offset: u32, count: u64) -> u64 {
        let after = self.shares.partition_point(|&(start, _)| start <= offset);
        let share = after.checked_sub(1).map_or(Self::WHOLE, |last| self.shares[last].1);
        (u128::from(count) * u128::from(share) / u128::from(Self::WHOLE)) as u64
    }
}

/// New code in the place of old.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    pub block: Block,
    /// From the block's start; an instruction boundary, as is `offset + len`.
    pub offset: u32,
    /// Bytes that go; none only in clones, where code may be put before an instruction.
    pub len: u32,
    pub code: NewCodeId,
    pub change: Change,
}

impl Replacement {
    pub fn end(&self) -> u32 {
        self.offset + self.len
    }
}

/// All changes.
#[derive(Clone, Debug, Default)]
pub struct EditPlan {
    /// Ascending by block, then offset.
    pub blocks: Vec<BlockInsertion>,
    /// Ascending by edge.
    pub edges: Vec<EdgeInsertion>,
    /// Ascending by block, then offset.
    pub replacements: Vec<Replacement>,
    pub codes: PrimaryMap<NewCodeId, NewCode>,
    /// Code that stands before the first block of a fragment and runs into it or jumps there, for an unwinder where that block begins. No other block of the fragment is aligned. Ascending by block.
    pub leads: Vec<(Block, NewCodeId)>,
    /// Copies of functions, with edits of their own.
    pub clones: PrimaryMap<CloneId, CloneData>,
    /// What `specialize` did, for the report.
    pub tally: Tally,
    /// A bit for each block that had replacements when they were last settled, in words; empty where that is not known. Most blocks have none, and each is asked several times.
    edited: Vec<u64>,
}

impl EditPlan {
    pub fn insertions_of(&self, block: Block) -> &[BlockInsertion] {
        let first = self.blocks.partition_point(|i| i.block < block);
        let count = self.blocks[first..].partition_point(|i| i.block == block);
        &self.blocks[first..first + count]
    }
    pub fn insertion_on(&self, edge: u32) -> Option<&EdgeInsertion> {
        self.edges.binary_search_by_key(&edge, |i| i.edge).ok().map(|found| &self.edges[found])
    }
    pub fn replacements_of(&self, block: Block) -> &[Replacement] {
        let is_none = |word: &u64| word >> (block.index() % 64) & 1 == 0;
        if !self.edited.is_empty() && self.edited.get(block.index() / 64).is_none_or(is_none) {
            return &[];
        }
        of_block(&self.replacements, block)
    }
    /// Those of a block where it stands: in its function, or in a clone.
    pub fn replacements_in(&self, clone: Option<CloneId>, block: Block) -> &[Replacement] {
        clone.map_or_else(|| self.replacements_of(block), |clone| of_block(&self.clones[clone].replacements, block))
    }
    /// Whether new code stands where the block's terminator was.
    pub fn replaces_terminator(&self, program: &Program, clone: Option<CloneId>, block: Block) -> bool {
        let data = &program.blocks[block];
        data.body_len < data.len && self.replacements_in(clone, block).last().is_some_and(|r| r.end() > data.body_len)
    }
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.edges.is_empty() && self.replacements.is_empty()
    }

    /// Puts replacements in order. Of those that overlap the first that was planned stays.
    pub fn settle(&mut self) {
        // In each block they stay in the order in which they were planned.
        self.replacements.sort_by_key(|r| r.block);
        let (mut block, mut taken) = (None, Vec::new());
        self.replacements.retain(|r| {
            if block.replace(r.block) != Some(r.block) {
                taken.clear();
            }
            let is_free = taken.iter().all(|&(start, end)| r.end() <= start || end <= r.offset);
            taken.extend(is_free.then_some((r.offset, r.end())));
            is_free
        });
        self.replacements.sort_by_key(|r| (r.block, r.offset));
        let len = self.replacements.last().map_or(0, |last| last.block.index() / 64 + 1);
        self.edited = vec![0; len];
        self.replacements.iter().for_each(|r| self.edited[r.block.index() / 64] |= 1 << (r.block.index() % 64));
    }

    /// Keeps the first `fuel` replacements.
    pub fn limit(&mut self, fuel: u64) {
        self.replacements.truncate(usize::try_from(fuel).unwrap_or(usize::MAX));
    }

    /// Whether the invariants hold that materializing relies on.
    pub fn check(&self, program: &Program) -> Result<()> {
        check_replacements(program, &self.replacements, false)?;
        self.clones.values().try_for_each(|clone| check_replacements(program, &clone.replacements, true))
    }
}

fn of_block(replacements: &[Replacement], block: Block) -> &[Replacement] {
    let first = replacements.partition_point(|r| r.block < block);
    let count = replacements[first..].partition_point(|r| r.block == block);
    &replacements[first..first + count]
}

fn check_replacements(program: &Program, replacements: &[Replacement], may_insert: bool) -> Result<()> {
    let fail = |r: &Replacement, what: &str| Err(Error::Inconsistent(format!("a replacement in {}: {what}", r.block)));
    for (index, r) in replacements.iter().enumerate() {
        let data = &program.blocks[r.block];
        if r.len == 0 && !may_insert || r.end() > data.len || (r.end() > data.body_len && r.end() != data.len) {
            return fail(r, "does not end at an instruction of its block");
        }
        if !program.funcs[data.func].is_movable() {
            return fail(r, "is in code that stays");
        }
        let next = replacements.get(index + 1);
        if next.is_some_and(|next| (next.block, next.offset) < (r.block, r.end())) {
            return fail(r, "overlaps the next one");
        }
    }
    Ok(())
}
impl EditPlan {
    /// The weights when all this is done: what is inlined runs at its new places, so the original runs less.
    pub fn adjusted<'w>(&self, program: &Program, weights: &'w Weights) -> Cow<'w, Weights> {
        let changes_counts =
            |r: &Replacement| !self.codes[r.code].instead_of.is_empty() || self.replaces_terminator(program, None, r.block);
        if !self.replacements.iter().any(changes_counts) {
            return Cow::Borrowed(weights);
        }
        let count_of = |block: Block| weights.blocks.get(block.index()).copied().unwrap_or(0);
        let instead_of = |r: &Replacement| {
            let count = u128::from(count_of(r.block));
            self.codes[r.code].instead_of.iter().map(move |&(block, share)| (block, (count * u128::from(share)) >> 16))
        };
        let mut saved: Vec<(Block, u128)> = self.replacements.iter().flat_map(instead_of).collect();
        saved.sort_unstable();
        let mut adjusted = weights.clone();
        for group in saved.chunk_by(|a, b| a.0 == b.0) {
            let block = group[0].0;
            let whole = u128::from(count_of(block));
            let left = whole.saturating_sub(group.iter().map(|&(_, count)| count).sum());
            let scale = |count: &mut u64| {
                *count = (u128::from(*count) * left).checked_div(whole).map_or(*count, |scaled| scaled as u64);
            };
            adjusted.blocks.get_mut(block.index()).into_iter().for_each(scale);
            for edge in program.blocks[block].edges.as_usize() {
                adjusted.edges.get_mut(edge).into_iter().for_each(scale);
            }
        }
        // New code that leaves a block by itself goes where it says, not along the block's edges.
        for r in self.replacements.iter().filter(|r| self.replaces_terminator(program, None, r.block)) {
            for edge in program.blocks[r.block].edges.as_usize() {
                adjusted.edges.get_mut(edge).into_iter().for_each(|count| *count = 0);
            }
        }
        Cow::Owned(adjusted)
    }

    /// By the first block of what is inlined, the share of the executions of its sites that its own count vouches for, in 65,536ths; only where that is less
    /// than all. A profile may know the caller and not the callee: what did not count before must not count afterwards.
    pub fn vouched(&self, weights: &Weights) -> FxHashMap<Block, u32> {
        let count_of = |block: Block| u128::from(weights.blocks.get(block.index()).copied().unwrap_or(0));
        let mut sums: FxHashMap<Block, u128> = FxHashMap::default();
        for r in &self.replacements {
            if let Some(&(first, _)) = self.codes[r.code].instead_of.first() {
                *sums.entry(first).or_default() += count_of(r.block);
            }
        }
        let whole = u128::from(NewCode::WHOLE);
        let share = |(first, sum): (Block, u128)| {
            let known = count_of(first);
            (known < sum).then(|| (first, (known * whole / sum) as u32))
        };
        sums.into_iter().filter_map(share).collect()
    }

    /// One line for each replacement, for people.
    pub fn listing(&self, program: &Program) -> Vec<String> {
        let line = |r: &Replacement| {
            let code = &self.codes[r.code];
            let at = program.blocks[r.block].start + u64::from(r.offset);
            let func = program.func_of(r.block);
            let mut text = format!("{} {at} in {func} {}: {} bytes become", r.change.transform(), r.block, r.len);
            for byte in &code.bytes {
                let _ = write!(text, " {byte:02x}");
            }
            for apart in &code.apart {
                let _ = write!(text, ", apart from +{apart} on");
            }
            for reference in &code.refs {
                let _ = write!(text, ", +{} {:?} {:?}", reference.offset, reference.role, reference.target);
            }
            text
        };
        self.replacements.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests;
