//! What blocks and their ends do, as hashes of 128 bits: two that are the same do the same and go on alike.
//!
//! **Method.** From a block's end to its start, an instruction at a time: the hash of what follows, the instruction's bytes outside of reference fields, its references by what
//! they name, and what unwinders find there. The last of them is the block's own; what follows a block comes first, but where a path comes back to a
//! block on it: that block stands for itself.

use iced_x86::Instruction;
use lifter::Image;
use lifter::address::Va;
use lifter::elf::lsda::CallSite;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockData, CodeTarget, Program, RefData, RefKind, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86;
use xxhash_rust::xxh3::xxh3_128;

use super::successors;
use crate::fold::{Context, Folding};
use crate::materialize::block_bytes;
use crate::relink::eh_frame::FrameRows;

/// The end of a block from one of its instructions on.
#[derive(Copy, Clone, Debug)]
pub(in crate::fold) struct Suffix {
    /// Of the instruction, from the block's start.
    pub(in crate::fold) offset: u32,
    pub(in crate::fold) hash: u128,
    /// How often the unwind row changes behind it.
    pub(in crate::fold) num_rows: u32,
}

/// Makes the hashes of one function's blocks.
pub(in crate::fold) struct Hasher<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    folded: &'a Folding,
    /// By range of the function; `None` where rows are not understood.
    rows: Vec<Option<FrameRows<'a>>>,
    first_range: usize,
    /// By block of the function, what it does, as soon as that is known.
    hashes: Vec<Option<u128>>,
    first_block: usize,
}

/// What one block after the other is worked on in: there are hundreds of thousands of them, with an allocation or two for each instruction otherwise.
#[derive(Default)]
pub(in crate::fold) struct Room {
    suffixes: Vec<Suffix>,
    instructions: Vec<Instruction>,
    /// What is hashed.
    bytes: Vec<u8>,
    words: Vec<u64>,
    row: RowBytes,
}

impl<'a> Hasher<'a> {
    pub(in crate::fold) fn new(context: &Context<'a>, folded: &'a Folding, func: Func) -> Self {
        let Context { image, program, .. } = *context;
        let rows = program.func_ranges(func).iter().map(|range| {
            let fde = program.unwind.fdes.get(range.fde?)?;
            FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)
        });
        let first_range = program.funcs[func].ranges.as_usize().start;
        let blocks = program.funcs[func].blocks.as_usize();
        let (hashes, first_block) = (vec![None; blocks.len()], blocks.start);
        Self { image, program, folded, rows: rows.collect(), first_range, hashes, first_block }
    }

    /// Blocks in post-order, each with its ends from the shortest on, and the block as a whole. What can't be compared is left out.
    pub(in crate::fold) fn each(mut self, func: Func, room: &mut Room, mut visit: impl FnMut(Block, &[Suffix], Suffix)) {
        let program = self.program;
        let mut is_seen = vec![false; self.hashes.len()];
        let mut path: Vec<(Block, usize)> = Vec::new();
        for root in program.funcs[func].blocks.iter() {
            if !std::mem::replace(&mut is_seen[root.index() - self.first_block], true) {
                path.push((root, 0));
            }
            while let Some((block, index)) = path.last_mut() {
                let next = successors(program, *block).nth(*index);
                *index += 1;
                match next {
                    Some(next) => {
                        let is_new = |local| is_seen.get_mut(local).is_some_and(|seen| !std::mem::replace(seen, true));
                        if self.local(next).is_some_and(is_new) {
                            path.push((next, 0));
                        }
                    }
                    None => {
                        let block = *block;
                        if let Some(own) = self.suffixes(block, room) {
                            self.hashes[block.index() - self.first_block] = Some(own.hash);
                            visit(block, &room.suffixes, own);
                        }
                        path.pop();
                    }
                }
            }
        }
    }

    /// The number of a block in its function, or one that no block has.
    fn local(&self, block: Block) -> Option<usize> {
        block.index().checked_sub(self.first_block)
    }

    /// Leaves the block's ends in the room, shortest first; the block as a whole. `None` where it can't be compared.
    fn suffixes(&self, block: Block, room: &mut Room) -> Option<Suffix> {
        let program = self.program;
        let data = &program.blocks[block];
        let bytes = block_bytes(self.image, program, block).ok()?.get(..data.body_len as usize)?;
        let unwinding = self.unwinding(data)?;
        let Room { suffixes, instructions, bytes: own, words, row } = room;
        suffixes.clear();
        let (mut end, mut num_rows) = (data.body_len, 0);
        row.forget();
        row.go_to(&unwinding, data.start + u64::from(end));
        let mut hash = self.end(block, data, (unwinding.class, &row.bytes), (&mut *own, &mut *words))?;
        instructions.clear();
        x86::decode_bytes(bytes, data.start, instructions);
        let mut refs = program.block_refs(block);
        for instruction in instructions.iter().rev() {
            let start = u32::try_from(instruction.ip() - data.start.0).ok()?;
            if instruction.next_ip() != data.start.0 + u64::from(end) {
                return None;
            }
            own.clear();
            own.extend_from_slice(bytes.get(start as usize..end as usize)?);
            let (before, inside) = refs.split_at(refs.partition_point(|reference| reference.offset < start));
            words.clear();
            for reference in inside {
                push_reference(program, self.folded, reference, start, own, words)?;
            }
            refs = before;
            let at = data.start + u64::from(start);
            num_rows += u32::from(row.go_to(&unwinding, at));
            unwinding.sites(at, data.start + u64::from(end), words);
            own.extend_from_slice(&hash.to_le_bytes());
            push_words(words, own);
            own.extend_from_slice(&row.bytes);
            hash = xxh3_128(own);
            end = start;
            suffixes.push(Suffix { offset: start, hash, num_rows });
        }
        (end == 0).then_some(Suffix { offset: 0, hash, num_rows })
    }

    /// How a block ends, behind its body.
    fn end(
        &self,
        block: Block,
        data: &BlockData,
        (class, row): (u32, &[u8]),
        (bytes, words): (&mut Vec<u8>, &mut Vec<u64>),
    ) -> Option<u128> {
        words.clear();
        words.push(u64::from(class));
        bytes.clear();
        bytes.extend_from_slice(row);
        match data.terminator {
            // Whether a jump is there is a matter of layout.
            Terminator::Fallthrough { next } => self.target(CodeTarget::Block(next), words),
            Terminator::Jump { target } => self.target(target, words),
            Terminator::Branch { condition, taken, next } => {
                words.extend([12, u64::from(condition.0)]);
                self.target(taken, words);
                self.target(CodeTarget::Block(next), words);
            }
            Terminator::Loop { taken, next } => {
                let all = block_bytes(self.image, self.program, block).ok()?;
                bytes.extend(all.get(data.body_len as usize..data.len.checked_sub(1)? as usize)?);
                words.push(13);
                self.target(CodeTarget::Block(taken), words);
                self.target(CodeTarget::Block(next), words);
            }
            Terminator::Stop(stop) => {
                // Nothing runs on to what is behind it.
                bytes.clear();
                words.push(match stop {
                    StopKind::Return => 20,
                    StopKind::IndirectTailCall => 21,
                    StopKind::NoReturnCall => 22,
                    StopKind::Trap => 23,
                    StopKind::ComputedJump | StopKind::TableJump(_) | StopKind::Unknown => return None,
                });
            }
        }
        push_words(words, bytes);
        Some(xxh3_128(bytes))
    }

    fn target(&self, target: CodeTarget, words: &mut Vec<u64>) {
        match target {
            CodeTarget::Fixed(va) => words.extend([30, va.0]),
            CodeTarget::Block(block) => match self.local(block).and_then(|local| self.hashes.get(local)?.as_ref()) {
                Some(hash) => words.extend([31, *hash as u64, (hash >> 64) as u64]),
                None => words.extend([32, self.folded.stand_in(self.program, block).index() as u64]),
            },
        }
    }

    /// What unwinders find at the block's instructions; `None` where it is not understood.
    fn unwinding(&self, data: &BlockData) -> Option<Unwinding<'_>> {
        let program = self.program;
        let range = &program.ranges[data.range as usize];
        let class = range.unwind_class;
        let Some(fde) = range.fde.and_then(|fde| program.unwind.fdes.get(fde)) else {
            return Some(Unwinding { class, rows: None, sites: Vec::new() });
        };
        if fde.opaque_lsda.is_some() {
            return None;
        }
        let rows = self.rows.get((data.range as usize).checked_sub(self.first_range)?)?.as_ref()?;
        let mut sites = Vec::new();
        if let Some(lsda) = fde.lsda {
            let all = &program.unwind.lsdas.get(lsda as usize)?.call_sites;
            sites.extend(all.iter().filter(|site| site.start < data.end() && data.start < site.end));
        }
        Some(Unwinding { class, rows: Some(rows), sites })
    }
}

/// Appends what a field of an instruction at `start` names, and clears the field in the instruction's bytes. Functions are called by the name of the one that stands for them.
pub(crate) fn push_reference(
    program: &Program,
    folded: &Folding,
    reference: &RefData,
    start: u32,
    bytes: &mut [u8],
    words: &mut Vec<u64>,
) -> Option<()> {
    let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
    let offset = (reference.offset - start) as usize;
    bytes.get_mut(offset..offset + width)?.fill(0);
    words.extend([offset as u64, u64::from(reference.to_end), reference.kind as u64, reference.role as u64]);
    match reference.target {
        RefTarget::Block(target) if matches!(reference.role, RefRole::Call | RefRole::Branch) => {
            words.extend([1, folded.stand_in(program, target).index() as u64]);
        }
        RefTarget::Block(target) => words.extend([2, target.index() as u64]),
        RefTarget::Fixed(va) => words.extend([3, va.0]),
        RefTarget::Table(table) => words.extend([4, table.index() as u64]),
        RefTarget::UnwindTable(va) => words.extend([5, va.0]),
    }
    Some(())
}

fn push_words(words: &[u64], bytes: &mut Vec<u8>) {
    words.iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
}

/// What unwinders find in one block.
struct Unwinding<'a> {
    class: u32,
    rows: Option<&'a FrameRows<'a>>,
    /// Entries of the exception table that say something of the block.
    sites: Vec<&'a CallSite>,
}

impl Unwinding<'_> {
    /// What the exception table says of one instruction.
    fn sites(&self, start: Va, end: Va, words: &mut Vec<u64>) {
        let within = |va: Va| va.0.clamp(start.0, end.0) - start.0;
        for site in self.sites.iter().filter(|site| site.start < end && start < site.end) {
            words.extend([42, within(site.start), within(site.end), site.landing_pad.map_or(0, |pad| pad.0), site.action]);
        }
    }
}

/// A row as bytes, which are made anew only where another row holds.
#[derive(Default)]
struct RowBytes {
    /// Its index in those of its unwind entry.
    index: Option<usize>,
    bytes: Vec<u8>,
    /// Of the row before.
    last: Vec<u8>,
}

impl RowBytes {
    fn forget(&mut self) {
        self.index = None;
        self.bytes.clear();
    }

    /// The row that holds at an address; whether it differs from the last.
    fn go_to(&mut self, unwinding: &Unwinding<'_>, at: Va) -> bool {
        let Some(rows) = unwinding.rows else { return false };
        let index = rows.index_at(at);
        if self.index.replace(index) == Some(index) {
            return false;
        }
        std::mem::swap(&mut self.bytes, &mut self.last);
        self.bytes.clear();
        rows.describe_row(index, &mut self.bytes);
        self.bytes != self.last
    }
}
