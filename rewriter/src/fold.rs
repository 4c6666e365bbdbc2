//! Identical code folding: functions that do the same share one body.
//!
//! **Problem.** Templates, inlined accessors and copied sources leave many functions with the same instructions, each in cache lines of its own.
//!
//! **Method.** Partition refinement. Functions begin in one class if all is equal that does not depend on where they and others lie: block
//! by block the bytes outside of reference fields, the references with what they do, how blocks end, unwind rows, exception tables. Then classes
//! are split as long as two members call or jump to blocks of different classes. What is left is the coarsest partition in which equal functions
//! use equal functions, so recursive ones fold too. Of each class one function stays; the blocks of the others stand where its blocks stand
//! ([`crate::plan::LayoutPlan::folded`]), and whatever names them is resolved to there.
//!
//! **Why it is safe.** A pointer may be compared, so a function disappears only if the program can't hold its address: nothing names a
//! block of it but calls and jumps. The one exception is an anchor, which stays at its old address as a jump. What a reference
//! computes (`lea`) has to be the same place, not an equal one, and so does all data. Functions with jump tables are left alone: their tables are
//! data of their own.
//!
//! **Termination.** A round that splits no class ends it; past `ROUNDS_MAX` nothing is folded.

use lifter::Image;
use lifter::entity::{Block, EntityId, Func, SecondaryMap};
use lifter::ir::{BlockData, BlockFlags, CodeRange, CodeTarget, Program, RefKind, RefRole, RefTarget, StopKind, Terminator};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::materialize::block_bytes;

pub mod blocks;
pub mod ends;
mod frequency;
mod heat;
pub mod shares;
#[cfg(test)]
mod tests;

const ROUNDS_MAX: usize = 200;

/// Which functions another one stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folding {
    /// Each function that goes, ascending, and the one that stays for it.
    pairs: Vec<(Func, Func)>,
}

impl Folding {
    /// All functions that may be folded.
    pub fn find(image: &Image<'_>, program: &Program) -> Self {
        let classes = classes(image, program);
        let mut members: FxHashMap<u32, Vec<Func>> = FxHashMap::default();
        for (func, class) in classes.iter().filter_map(|(func, class)| Some((func, (*class)?))) {
            members.entry(class).or_default().push(func);
        }
        let may_go = may_go(image, program);
        let mut pairs = Vec::new();
        for funcs in members.values().filter(|funcs| funcs.len() > 1) {
            // One that has to stay anyway, else the first.
            let stays = funcs.iter().copied().find(|&func| !may_go[func]).unwrap_or(funcs[0]);
            pairs.extend(funcs.iter().filter(|&&func| func != stays && may_go[func]).map(|&func| (func, stays)));
        }
        pairs.sort_unstable();
        Self { pairs }
    }

    pub fn pairs(&self) -> &[(Func, Func)] {
        &self.pairs
    }

    /// Only what is folded among some functions. Where the one that stands for others is none of them, the first of these that is stands for the rest: what was equal stays so, and if one function were kept
    /// whose callers are folded, nothing would lead to it.
    #[must_use]
    pub fn among(mut self, is_open: impl Fn(Func) -> bool) -> Self {
        let mut stand_ins: FxHashMap<Func, Func> = FxHashMap::default();
        // Ascending, so that the first comes first.
        self.pairs.retain_mut(|(func, stand_in)| {
            if !is_open(*func) {
                return false;
            }
            if !is_open(*stand_in) {
                *stand_in = *stand_ins.entry(*stand_in).or_insert(*func);
            }
            func != stand_in
        });
        self
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Keeps only the first so many.
    pub fn limit(&mut self, count: u64) {
        self.pairs.truncate(usize::try_from(count).unwrap_or(usize::MAX));
    }

    /// The function that stands for this one: mostly itself.
    pub fn representative(&self, func: Func) -> Func {
        self.pairs.binary_search_by_key(&func, |&(folded, _)| folded).map_or(func, |index| self.pairs[index].1)
    }

    /// The block that stands for this one.
    pub fn stand_in(&self, program: &Program, block: Block) -> Block {
        let func = program.func_of(block);
        let index = block.index() - program.funcs[func].blocks.as_usize().start;
        Block::new(program.funcs[self.representative(func)].blocks.as_usize().start + index)
    }

    /// Bytes of code that go.
    pub fn bytes(&self, program: &Program) -> u64 {
        self.pairs.iter().map(|&(func, _)| program.func_size(func)).sum()
    }

    /// Weights in which what stays runs as often as all that it stands for.
    pub fn weights(&self, program: &Program, mut merged: Weights) -> Weights {
        let take = |counts: &mut Vec<u64>, from: usize, to: usize| {
            if let Some(count) = counts.get_mut(from).map(std::mem::take)
                && let Some(sum) = counts.get_mut(to)
            {
                *sum = sum.saturating_add(count);
            }
        };
        for &(func, _) in &self.pairs {
            for block in program.funcs[func].blocks.iter() {
                let stand_in = self.stand_in(program, block);
                take(&mut merged.blocks, block.index(), stand_in.index());
                let edges = program.blocks[block].edges.as_usize().zip(program.blocks[stand_in].edges.as_usize());
                edges.for_each(|(from, to)| take(&mut merged.edges, from, to));
            }
        }
        merged.entered.iter_mut().for_each(|(func, _)| *func = self.representative(*func));
        merged.indirect.iter_mut().for_each(|site| {
            site.block = self.stand_in(program, site.block);
            site.targets.iter_mut().for_each(|(func, _)| *func = self.representative(*func));
        });
        merged.normalize();
        merged
    }
}

/// What of a function does not depend on where anything lies that may move.
#[derive(PartialEq, Eq, Hash)]
struct Signature {
    bytes: Vec<u8>,
    words: Vec<u64>,
}

/// A function as refinement sees it: its signature, and what it calls and jumps to elsewhere, in order.
struct Candidate {
    func: Func,
    signature: Signature,
    targets: Vec<Block>,
}

/// How many functions' hashes are made before they are put where all are: those of all at once would be there twice.
pub(crate) const FUNCS_AT_ONCE: usize = 2048;

/// What comparing needs.
struct Context<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    /// By common information entry, the first that equals it: several object files bring the same.
    cies: Vec<u32>,
}

impl<'a> Context<'a> {
    fn new(image: &'a Image<'a>, program: &'a Program) -> Self {
        let mut firsts = FxHashMap::default();
        let cies = (0..).zip(&program.unwind.cies).map(|(index, cie)| *firsts.entry(cie).or_insert(index)).collect();
        Self { image, program, cies }
    }
}

/// By function, its class; `None` for what is like no other.
fn classes(image: &Image<'_>, program: &Program) -> SecondaryMap<Func, Option<u32>> {
    let mut same: FxHashMap<u64, Vec<Func>> = FxHashMap::default();
    for (func, data) in program.funcs.iter().filter(|(_, data)| data.is_movable() && !data.blocks.is_empty()) {
        same.entry(data.content_hash).or_default().push(func);
    }
    let mut funcs: Vec<Func> = same.into_values().filter(|funcs| funcs.len() > 1).flatten().collect();
    funcs.sort_unstable();
    let context = Context::new(image, program);
    let candidates: Vec<Candidate> = funcs.into_par_iter().filter_map(|func| Candidate::of(&context, func)).collect();

    let mut classes = SecondaryMap::new(program.funcs.len(), None);
    let mut ids: FxHashMap<&Signature, u32> = FxHashMap::default();
    for candidate in &candidates {
        let next = ids.len() as u32;
        classes[candidate.func] = Some(*ids.entry(&candidate.signature).or_insert(next));
    }
    let mut num_classes = ids.len();
    for _ in 0..ROUNDS_MAX {
        let refined = refine(program, &candidates, &classes);
        let count = refined.1;
        if count == num_classes {
            return classes;
        }
        (classes, num_classes) = refined;
    }
    SecondaryMap::new(program.funcs.len(), None)
}

/// Splits classes whose members use different classes; how many there are now.
fn refine(
    program: &Program,
    candidates: &[Candidate],
    classes: &SecondaryMap<Func, Option<u32>>,
) -> (SecondaryMap<Func, Option<u32>>, usize) {
    // Another function's class, or the function itself where it has none, and the block's index there.
    let place = |block: &Block| {
        let func = program.func_of(*block);
        let index = block.index() - program.funcs[func].blocks.as_usize().start;
        (classes[func].ok_or(func), index)
    };
    type Key = (Option<u32>, Vec<(Result<u32, Func>, usize)>);
    let mut ids: FxHashMap<Key, u32> = FxHashMap::default();
    let mut refined = SecondaryMap::new(program.funcs.len(), None);
    for candidate in candidates {
        let key = (classes[candidate.func], candidate.targets.iter().map(place).collect());
        let next = ids.len() as u32;
        refined[candidate.func] = Some(*ids.entry(key).or_insert(next));
    }
    let count = ids.len();
    (refined, count)
}

impl Candidate {
    /// `None` where a function can't be compared.
    fn of(context: &Context<'_>, func: Func) -> Option<Self> {
        let program = context.program;
        let signature = Signature { bytes: Vec::new(), words: Vec::new() };
        let mut candidate = Candidate { func, signature, targets: Vec::new() };
        let data = &program.funcs[func];
        candidate
            .signature
            .words
            .extend([data.blocks.len() as u64, u64::from(data.primary_range) - data.ranges.as_usize().start as u64]);
        candidate.target(program, CodeTarget::Block(data.entry));
        for range in program.func_ranges(func) {
            candidate.unwinding(context, range)?;
        }
        for block in data.blocks.iter() {
            candidate.block(context, block)?;
        }
        Some(candidate)
    }

    fn block(&mut self, context: &Context<'_>, block: Block) -> Option<()> {
        let Context { image, program, .. } = *context;
        let data = &program.blocks[block];
        let has_table = matches!(data.terminator, Terminator::Stop(StopKind::TableJump(_) | StopKind::Unknown));
        if has_table || data.flags.intersects(BlockFlags::TABLE_TARGET | BlockFlags::KNOWN_BY_FAULT) {
            return None;
        }
        let mut bytes = block_bytes(image, program, block).ok()?.get(..data.body_len as usize)?.to_vec();
        let first_range = program.funcs[data.func].ranges.as_usize().start as u64;
        let range = u64::from(data.range) - first_range;
        self.signature.words.extend([u64::from(data.len), u64::from(data.body_len), u64::from(data.num_insts), range]);
        for reference in program.block_refs(block) {
            let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
            let offset = reference.offset as usize;
            bytes.get_mut(offset..offset + width)?.fill(0);
            let (kind, role) = (reference.kind as u64, reference.role as u64);
            self.signature.words.extend([u64::from(reference.offset), u64::from(reference.to_end), kind, role]);
            match reference.target {
                RefTarget::Block(target) if matches!(reference.role, RefRole::Call | RefRole::Branch) => {
                    self.target(program, CodeTarget::Block(target));
                }
                // An address that is computed or read has to be the same.
                RefTarget::Block(target) => self.signature.words.extend([1, target.index() as u64]),
                RefTarget::Fixed(va) => self.signature.words.extend([0, va.0]),
                RefTarget::Table(_) | RefTarget::UnwindTable(_) => return None,
            }
        }
        self.signature.bytes.extend(bytes);
        self.terminator(image, program, block, data)
    }

    fn terminator(&mut self, image: &Image<'_>, program: &Program, block: Block, data: &BlockData) -> Option<()> {
        match data.terminator {
            Terminator::Fallthrough { next } => {
                self.signature.words.push(10);
                self.target(program, CodeTarget::Block(next));
            }
            Terminator::Jump { target } => {
                self.signature.words.push(11);
                self.target(program, target);
            }
            Terminator::Branch { condition, taken, next } => {
                self.signature.words.extend([12, u64::from(condition.0)]);
                self.target(program, taken);
                self.target(program, CodeTarget::Block(next));
            }
            Terminator::Loop { taken, next } => {
                // Which of them it is its bytes before the displacement say.
                let all = block_bytes(image, program, block).ok()?;
                let opcode = all.get(data.body_len as usize..data.len.checked_sub(1)? as usize)?;
                self.signature.words.extend([13, opcode.len() as u64]);
                self.signature.bytes.extend(opcode);
                self.target(program, CodeTarget::Block(taken));
                self.target(program, CodeTarget::Block(next));
            }
            Terminator::Stop(stop) => {
                let kind = match stop {
                    StopKind::Return => 20,
                    StopKind::IndirectTailCall => 21,
                    StopKind::NoReturnCall => 22,
                    StopKind::Trap => 23,
                    // Its targets are labels, which are addresses.
                    StopKind::ComputedJump | StopKind::TableJump(_) | StopKind::Unknown => return None,
                };
                self.signature.words.push(kind);
            }
        }
        Some(())
    }

    /// Where control goes: a block of its own by index, or one elsewhere.
    fn target(&mut self, program: &Program, target: CodeTarget) {
        match target {
            CodeTarget::Fixed(va) => self.signature.words.extend([0, va.0]),
            CodeTarget::Block(block) if program.func_of(block) == self.func => {
                let first = program.funcs[self.func].blocks.as_usize().start;
                self.signature.words.extend([1, (block.index() - first) as u64]);
            }
            CodeTarget::Block(block) => {
                self.signature.words.push(2);
                self.targets.push(block);
            }
        }
    }

    /// Unwind rows and exception table of a range, by distance from where it starts.
    fn unwinding(&mut self, context: &Context<'_>, range: &CodeRange) -> Option<()> {
        let program = context.program;
        let words = &mut self.signature.words;
        let distance = |va: lifter::Va| va.0.wrapping_sub(range.start.0);
        words.push(distance(range.end));
        let Some(fde) = range.fde.and_then(|fde| program.unwind.fdes.get(fde)) else {
            words.push(0);
            return Some(());
        };
        if fde.opaque_lsda.is_some() {
            return None;
        }
        let cie = *context.cies.get(fde.cie as usize)?;
        words.extend([1, u64::from(cie), distance(fde.start), distance(fde.end), fde.ops.len() as u64]);
        for op in &fde.ops {
            words.extend([distance(op.at), op.bytes.len() as u64]);
            self.signature.bytes.extend(&op.bytes);
        }
        let Some(lsda) = fde.lsda else {
            words.push(0);
            return Some(());
        };
        let lsda = program.unwind.lsdas.get(lsda as usize)?;
        let (pads, types) = (lsda.call_sites.len() as u64, lsda.types.len() as u64);
        words.extend([
            1,
            u64::from(lsda.type_encoding),
            pads,
            types,
            lsda.actions.len() as u64,
            lsda.specifications.len() as u64,
        ]);
        for site in &lsda.call_sites {
            words.extend([distance(site.start), distance(site.end), site.action]);
            // A pad in another range of the function is as far away as it is.
            words.extend([u64::from(site.landing_pad.is_some()), site.landing_pad.map_or(0, distance)]);
        }
        words.extend(lsda.types.iter().flat_map(|va| [u64::from(va.is_some()), va.map_or(0, |va| va.0)]));
        self.signature.bytes.extend(&lsda.actions);
        self.signature.bytes.extend(&lsda.specifications);
        Some(())
    }
}

/// Functions of which the program can't hold an address: nothing but calls and jumps names them, or an anchor keeps the name.
fn may_go(image: &Image<'_>, program: &Program) -> SecondaryMap<Func, bool> {
    let mut may_go = SecondaryMap::new(program.funcs.len(), true);
    let is_anchor = |data: &BlockData| data.flags.contains(BlockFlags::ANCHOR);
    for data in program.blocks.values() {
        if data.flags.contains(BlockFlags::ADDRESS_TAKEN) && !is_anchor(data) {
            may_go[data.func] = false;
        }
        for reference in &program.refs[data.refs.as_usize()] {
            if let RefTarget::Block(target) = reference.target
                && !matches!(reference.role, RefRole::Call | RefRole::Branch)
                && !is_anchor(&program.blocks[target])
            {
                may_go[program.func_of(target)] = false;
            }
        }
    }
    let slots = program.slots.iter().map(|slot| slot.target);
    let started = program.block_at(image.e_entry);
    let tables = program.tables.iter().flat_map(|(table, _)| program.targets_of(table)).copied();
    for block in slots.chain(started).chain(tables) {
        may_go[program.func_of(block)] = false;
    }
    may_go
}
