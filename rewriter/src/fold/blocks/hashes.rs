//! What blocks and their ends do, as hashes of 128 bits: two that are the same do the same and go on alike.
//!
//! **Method.** From a block's end to its start, an instruction at a time: the hash of what follows, the instruction's bytes outside of reference fields, its references by what
//! they name, and what unwinders find there. The last of them is the block's own; what follows a block comes first, but where a path comes back to a
//! block on it: that block stands for itself.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::lsda::CallSite;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{BlockData, CodeTarget, Program, RefData, RefKind, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86;
use rustc_hash::FxHashMap;
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
    /// Instructions before it.
    pub(in crate::fold) num_before: u32,
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
    hashes: FxHashMap<Block, u128>,
}

impl<'a> Hasher<'a> {
    pub(in crate::fold) fn new(context: &Context<'a>, folded: &'a Folding, func: Func) -> Self {
        let Context { image, program, .. } = *context;
        let rows = program.func_ranges(func).iter().map(|range| {
            let fde = program.unwind.fdes.get(range.fde?)?;
            FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)
        });
        let first_range = program.funcs[func].ranges.as_usize().start;
        Self { image, program, folded, rows: rows.collect(), first_range, hashes: FxHashMap::default() }
    }

    /// Blocks in post-order, each with its ends from the shortest on, and the block as a whole. What can't be compared is left out.
    pub(in crate::fold) fn each(mut self, func: Func, mut visit: impl FnMut(Block, &[Suffix], Suffix)) {
        let program = self.program;
        let mut is_seen: FxHashMap<Block, ()> = FxHashMap::default();
        let mut suffixes = Vec::new();
        for root in program.funcs[func].blocks.iter() {
            let mut path: Vec<(Block, usize)> = Vec::new();
            if is_seen.insert(root, ()).is_none() {
                path.push((root, 0));
            }
            while let Some((block, index)) = path.last_mut() {
                let next = successors(program, *block).nth(*index);
                *index += 1;
                match next {
                    Some(next) if program.func_of(next) == func && is_seen.insert(next, ()).is_none() => path.push((next, 0)),
                    Some(_) => {}
                    None => {
                        let block = *block;
                        suffixes.clear();
                        if let Some(own) = self.suffixes(block, &mut suffixes) {
                            self.hashes.insert(block, own.hash);
                            visit(block, &suffixes, own);
                        }
                        path.pop();
                    }
                }
            }
        }
    }

    /// Appends the block's ends, shortest first; the block as a whole. `None` where it can't be compared.
    fn suffixes(&self, block: Block, suffixes: &mut Vec<Suffix>) -> Option<Suffix> {
        let program = self.program;
        let data = &program.blocks[block];
        let bytes = block_bytes(self.image, program, block).ok()?.get(..data.body_len as usize)?;
        let unwinding = self.unwinding(data)?;
        let mut hash = self.end(block, data, &unwinding)?;
        let mut instructions = Vec::with_capacity(data.num_insts as usize);
        x86::decode_bytes(bytes, data.start, &mut instructions);
        let mut refs = program.block_refs(block);
        let (mut end, mut num_rows) = (data.body_len, 0);
        let mut row = unwinding.row(data.start + u64::from(end));
        let mut words = Vec::new();
        for (num_before, instruction) in (0..instructions.len() as u32).zip(&instructions).rev() {
            let start = u32::try_from(instruction.ip() - data.start.0).ok()?;
            if instruction.next_ip() != data.start.0 + u64::from(end) {
                return None;
            }
            let mut own = bytes.get(start as usize..end as usize)?.to_vec();
            let (before, inside) = refs.split_at(refs.partition_point(|reference| reference.offset < start));
            words.clear();
            for reference in inside {
                push_reference(program, self.folded, reference, start, &mut own, &mut words)?;
            }
            refs = before;
            let at = data.start + u64::from(start);
            let above = unwinding.row(at);
            num_rows += u32::from(above != row);
            row = above;
            unwinding.sites(at, data.start + u64::from(end), &mut words);
            own.extend([hash as u64, (hash >> 64) as u64].iter().flat_map(|word| word.to_le_bytes()));
            own.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            own.extend_from_slice(&row);
            hash = xxh3_128(&own);
            end = start;
            suffixes.push(Suffix { offset: start, num_before, hash, num_rows });
        }
        (end == 0).then_some(Suffix { offset: 0, num_before: 0, hash, num_rows })
    }

    /// How a block ends, behind its body.
    fn end(&self, block: Block, data: &BlockData, unwinding: &Unwinding<'_>) -> Option<u128> {
        let mut words = vec![u64::from(unwinding.class)];
        let mut bytes = unwinding.row(data.start + u64::from(data.body_len));
        match data.terminator {
            // Whether a jump is there is a matter of layout.
            Terminator::Fallthrough { next } => self.target(CodeTarget::Block(next), &mut words),
            Terminator::Jump { target } => self.target(target, &mut words),
            Terminator::Branch { condition, taken, next } => {
                words.extend([12, u64::from(condition.0)]);
                self.target(taken, &mut words);
                self.target(CodeTarget::Block(next), &mut words);
            }
            Terminator::Loop { taken, next } => {
                let all = block_bytes(self.image, self.program, block).ok()?;
                bytes.extend(all.get(data.body_len as usize..data.len.checked_sub(1)? as usize)?);
                words.push(13);
                self.target(CodeTarget::Block(taken), &mut words);
                self.target(CodeTarget::Block(next), &mut words);
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
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        Some(xxh3_128(&bytes))
    }

    fn target(&self, target: CodeTarget, words: &mut Vec<u64>) {
        match target {
            CodeTarget::Fixed(va) => words.extend([30, va.0]),
            CodeTarget::Block(block) => match self.hashes.get(&block) {
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

/// What unwinders find in one block.
struct Unwinding<'a> {
    class: u32,
    rows: Option<&'a FrameRows<'a>>,
    /// Entries of the exception table that say something of the block.
    sites: Vec<&'a CallSite>,
}

impl Unwinding<'_> {
    fn row(&self, at: Va) -> Vec<u8> {
        let mut row = Vec::new();
        if let Some(rows) = self.rows {
            rows.describe(at, at, &mut row);
        }
        row
    }

    /// What the exception table says of one instruction.
    fn sites(&self, start: Va, end: Va, words: &mut Vec<u64>) {
        let within = |va: Va| va.0.clamp(start.0, end.0) - start.0;
        for site in self.sites.iter().filter(|site| site.start < end && start < site.end) {
            words.extend([42, within(site.start), within(site.end), site.landing_pad.map_or(0, |pad| pad.0), site.action]);
        }
    }
}
