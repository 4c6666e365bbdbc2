//! From the plan to a program that has an order: output blocks with what each copies, what is inserted or replaced and how each ends.
//!
//! **Method.** Every planned block becomes one `OutBlock`, every insertion on an edge one more, which holds nothing but the insertion. A
//! code target resolves to the output block that carries it, or, where the plan leaves a block in place, to its old address. Terminators
//! are made by `terminator::emit`, with the block that follows in the fragment in view. Edits belong to the block that they are in, so that its
//! copies have them too. Each part of new code that lies apart becomes an output block of its own: what runs of them at the end of the fragment,
//! the rest in the function's cold fragment or, if it has none, in one that is added behind all others.
//!
//! **Invariants.** Output blocks of a fragment have consecutive ids in output order. The successors of an output block, seen through
//! edge blocks, are those of its origin. Every block of a movable function is placed exactly once, unless the plan drops the function; copies of a block are not its place: nothing names them, what stands before one runs into it. A clone's blocks are
//! places for its own code alone (`clones`).

use std::collections::BTreeMap;
use std::ops::Range;

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func, PrimaryMap, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, Condition, EdgeKind, Program, Terminator};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::clones::CloneId;
use crate::edit::{EditPlan, NewCode, NewCodeId, Replacement, Snippet};
use crate::error::{Error, Result};
use crate::plan::{Filling, FragmentPlan, LayoutPlan, PlannedBlock, Temperature};
use crate::terminator::{Emitted, SuccessorCounts, emit_weighted};

lifter::define_id!(
    /// A block of the output.
    Out, "out");

/// Where output code goes: to a block of the output, or to an address that does not change.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutTarget {
    Placed(Out),
    Fixed(Va),
}

/// How an output block ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum OutTerminator {
    None,
    Jump(OutTarget),
    Branch {
        condition: Condition,
        taken: OutTarget,
        jump: Option<OutTarget>,
    },
    /// The loop instruction's bytes before the displacement are those of the origin's terminator.
    Loop {
        taken: OutTarget,
        jump: Option<OutTarget>,
    },
}

/// Bytes at `offset` of the origin that are not its own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub offset: u32,
    /// Bytes of the origin that go; 0 for an insertion before the instruction at `offset`.
    pub replaced: u32,
    pub len: u32,
    pub content: Content,
}

/// What an edit puts in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Made when addresses are known.
    Snippet(Snippet),
    Code(NewCodeId),
    /// A part of code that lies apart, with the output block that has the first one.
    Apart {
        code: NewCodeId,
        part: usize,
        of: Out,
    },
}

#[derive(Clone, Debug)]
pub struct OutBlock {
    /// The block whose body is copied; an edge block copies nothing and stands, for the unwinder, at the start of its target.
    pub origin: Block,
    pub copies_body: bool,
    /// A power of two.
    pub align: u8,
    /// Into `OutProgram::edits`, ascending by offset.
    pub edits: Range<u32>,
    pub terminator: OutTerminator,
}

#[derive(Clone, Debug)]
pub struct OutFragment {
    pub func: Func,
    pub temperature: Temperature,
    pub align: u8,
    pub unwind_class: u32,
    /// Ids of output blocks.
    pub blocks: Range<u32>,
    /// The clone that it is part of.
    pub clone: Option<CloneId>,
    /// By how many bytes the stack pointer is lower than in the input, where no edit says otherwise.
    pub deeper: u8,
}

#[derive(Debug)]
pub struct OutProgram {
    pub fragments: Vec<OutFragment>,
    /// What each block copies and how it ends: for who encodes it, and gone afterwards.
    pub blocks: PrimaryMap<Out, OutBlock>,
    /// By output block, as in `blocks`.
    pub origins: PrimaryMap<Out, Block>,
    pub edits: Vec<Edit>,
    pub codes: PrimaryMap<NewCodeId, NewCode>,
    /// The output block that carries an input block; `None` where it stays in place.
    pub placed: SecondaryMap<Block, Option<Out>>,
    /// By clone, where it is entered.
    pub clone_entries: Vec<Out>,
    /// The blocks of clones.
    pub in_clones: FxHashMap<(CloneId, Block), Out>,
    /// By the output block that has the first part of new code and the edit's offset in it: the blocks that have the parts which lie apart.
    pub apart: FxHashMap<(Out, u32), Vec<Out>>,
    /// As in the plan.
    pub filling: Filling,
    /// As in the plan.
    pub hot_from: Option<Va>,
    /// As in the plan.
    pub joins_kept_entries: bool,
}

impl OutProgram {
    pub fn edits_of(&self, block: &OutBlock) -> &[Edit] {
        &self.edits[block.edits.start as usize..block.edits.end as usize]
    }
    /// Lets go what nobody needs who has the encoded fragments: most of it.
    pub fn forget_blocks(&mut self) {
        self.blocks = PrimaryMap::default();
    }
    /// The index of the fragment that has an output block.
    pub fn fragment_of(&self, block: Out) -> usize {
        let index = block.index() as u32;
        self.fragments.partition_point(|fragment| fragment.blocks.end <= index)
    }
    pub fn fragment_blocks(&self, fragment: &OutFragment) -> impl DoubleEndedIterator<Item = (Out, &OutBlock)> {
        fragment.blocks.clone().map(|index| {
            let out = Out::new(index as usize);
            (out, &self.blocks[out])
        })
    }
}

/// Applies a plan.
pub fn materialize(program: &Program, weights: &Weights, layout: &LayoutPlan, edits: &EditPlan) -> Result<OutProgram> {
    edits.check(program)?;
    let classes: Vec<u32> = layout.fragments.par_iter().map(|plan| class_of_all(program, plan)).collect::<Result<_>>()?;
    let skeleton = Skeleton::build(program, (layout, &classes), edits)?;
    let mut out = OutProgram {
        fragments: Vec::with_capacity(layout.fragments.len()),
        blocks: PrimaryMap::default(),
        origins: PrimaryMap::default(),
        edits: Vec::new(),
        codes: edits.codes.clone(),
        placed: skeleton.placed,
        clone_entries: Vec::with_capacity(edits.clones.len()),
        in_clones: skeleton.in_clones,
        apart: skeleton.apart,
        filling: layout.filling,
        hot_from: layout.hot_from,
        joins_kept_entries: layout.joins_kept_entries,
    };
    for (clone, data) in edits.clones.iter() {
        let entry = out.in_clones.get(&(clone, data.entry));
        out.clone_entries.push(*entry.ok_or(Error::NotPlaced(data.entry, data.func))?);
    }
    for ((plan, &unwind_class), span) in layout.fragments.iter().zip(&classes).zip(&skeleton.spans) {
        let deeper = deeper(edits, plan.clone);
        let (blocks, temperature, align) = (span.clone(), plan.temperature, plan.align);
        out.fragments.push(OutFragment { func: plan.func, temperature, align, unwind_class, blocks, clone: plan.clone, deeper });
    }
    for (part, span) in skeleton.added.iter().zip(&skeleton.spans[layout.fragments.len()..]) {
        let PartOf { func, unwind_class, clone } = *part;
        let (deeper, temperature) = (deeper(edits, clone), Temperature::Cold);
        out.fragments.push(OutFragment { func, temperature, align: 1, unwind_class, blocks: span.clone(), clone, deeper });
    }
    let mut in_table = SecondaryMap::new(program.blocks.len(), false);
    for table in program.tables.keys() {
        program.targets_of(table).iter().for_each(|&target| in_table[target] = true);
    }
    let linker = Linker {
        program,
        weights,
        edits,
        placed: &out.placed,
        in_clones: &out.in_clones,
        edge_blocks: &skeleton.edge_blocks,
        parts: &skeleton.parts,
        in_table: &in_table,
    };
    (out.edits, out.blocks) = linker.link(&skeleton.entries, &skeleton.spans);
    out.origins = PrimaryMap::from_items(out.blocks.as_slice().par_iter().map(|block| block.origin).collect());
    Ok(out)
}

fn class_of(program: &Program, block: Block) -> u32 {
    program.ranges[program.blocks[block].range as usize].unwind_class
}

/// The class of all blocks of a fragment, which may move.
fn class_of_all(program: &Program, plan: &FragmentPlan) -> Result<u32> {
    let unwind_class = class_of(program, plan.blocks[0].block);
    for &PlannedBlock { block, .. } in &plan.blocks {
        let func = program.func_of(block);
        if !program.funcs[func].is_movable() {
            return Err(Error::PlacedPinned(block, func));
        }
        if class_of(program, block) != unwind_class {
            return Err(Error::MixedUnwindClasses(plan.func));
        }
    }
    Ok(unwind_class)
}

/// How many output blocks' edits are listed together.
const BLOCKS_AT_ONCE: usize = 4096;

/// One output block before its targets are known.
#[derive(Copy, Clone)]
enum Entry {
    Body {
        block: Block,
        align: u8,
        clone: Option<CloneId>,
    },
    Edge(u32),
    /// Into `Skeleton::parts`.
    Apart(u32),
}

/// A part of a replacement's code that lies apart from the block it is in.
#[derive(Copy, Clone)]
struct ApartFrom {
    replacement: Replacement,
    part: usize,
    of: Out,
}

/// What an output fragment is part of.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct PartOf {
    func: Func,
    unwind_class: u32,
    clone: Option<CloneId>,
}

fn deeper(edits: &EditPlan, clone: Option<CloneId>) -> u8 {
    clone.map_or(0, |clone| edits.clones[clone].deeper)
}

/// Which output block carries what: ids are given out here, before any target is resolved.
struct Skeleton {
    entries: Vec<Entry>,
    spans: Vec<Range<u32>>,
    placed: SecondaryMap<Block, Option<Out>>,
    in_clones: FxHashMap<(CloneId, Block), Out>,
    edge_blocks: FxHashMap<u32, Out>,
    /// As in `OutProgram`.
    apart: FxHashMap<(Out, u32), Vec<Out>>,
    parts: Vec<ApartFrom>,
    /// Parts that lie apart and have no output block yet: those for the end of the fragment, and those that never run.
    running: Vec<ApartFrom>,
    pending: BTreeMap<PartOf, Vec<ApartFrom>>,
    /// The fragments that are added to those of the plan.
    added: Vec<PartOf>,
}

impl Skeleton {
    /// `classes` has the unwind class of each fragment.
    fn build(program: &Program, (layout, classes): (&LayoutPlan, &[u32]), edits: &EditPlan) -> Result<Self> {
        let mut skeleton = Skeleton {
            entries: Vec::with_capacity(program.blocks.len()),
            spans: Vec::with_capacity(layout.fragments.len()),
            placed: SecondaryMap::new(program.blocks.len(), None),
            in_clones: FxHashMap::default(),
            edge_blocks: FxHashMap::default(),
            apart: FxHashMap::default(),
            parts: Vec::new(),
            running: Vec::new(),
            pending: BTreeMap::new(),
            added: Vec::new(),
        };
        let has_apart = edits.codes.values().any(|code| !code.apart.is_empty());
        for (plan, &unwind_class) in layout.fragments.iter().zip(classes) {
            let start = skeleton.entries.len() as u32;
            let mut out_of_line = Vec::new();
            for planned in &plan.blocks {
                if has_apart {
                    skeleton.note_apart(program, edits, planned.block, plan.clone);
                }
                skeleton.place(planned, plan.clone)?;
                if edits.edges.is_empty() || plan.clone.is_some() {
                    continue;
                }
                for edge in program.blocks[planned.block].edges.as_usize() {
                    let edge = edge as u32;
                    if edits.insertion_on(edge).is_none() {
                        continue;
                    }
                    // The way that needs no jump keeps needing none; the other one is out of line, where it costs the hot path nothing.
                    let is_inline = !matches!(
                        (program.edges[edge as usize].kind, &program.blocks[planned.block].terminator),
                        (EdgeKind::Taken, Terminator::Branch { .. } | Terminator::Loop { .. })
                    );
                    if is_inline { skeleton.push_edge(edge) } else { out_of_line.push(edge) }
                }
            }
            out_of_line.into_iter().for_each(|edge| skeleton.push_edge(edge));
            let running = std::mem::take(&mut skeleton.running);
            skeleton.push_apart(running);
            let part = PartOf { func: plan.func, unwind_class, clone: plan.clone };
            if plan.temperature == Temperature::Cold
                && let Some(parts) = skeleton.pending.remove(&part)
            {
                skeleton.push_apart(parts);
            }
            skeleton.spans.push(start..skeleton.entries.len() as u32);
        }
        for (part, entries) in std::mem::take(&mut skeleton.pending) {
            let start = skeleton.entries.len() as u32;
            skeleton.push_apart(entries);
            skeleton.spans.push(start..skeleton.entries.len() as u32);
            skeleton.added.push(part);
        }
        for &(block, stays) in layout.folded_blocks.pairs() {
            skeleton.placed[block] = skeleton.placed[stays];
        }
        for &(func, _) in layout.folded.pairs() {
            for block in program.funcs[func].blocks.iter() {
                skeleton.placed[block] = skeleton.placed[layout.folded.stand_in(program, block)];
            }
        }
        skeleton.check_complete(program, layout)?;
        Ok(skeleton)
    }

    fn place(&mut self, planned: &PlannedBlock, clone: Option<CloneId>) -> Result<()> {
        let PlannedBlock { block, align, copy } = *planned;
        if let Some(clone) = clone {
            if self.in_clones.insert((clone, block), Out::new(self.entries.len())).is_some() {
                return Err(Error::PlacedTwice(block));
            }
        } else if copy.is_none() {
            if self.placed[block].is_some() {
                return Err(Error::PlacedTwice(block));
            }
            self.placed[block] = Some(Out::new(self.entries.len()));
        }
        self.entries.push(Entry::Body { block, align, clone });
        Ok(())
    }

    /// Notes what lies apart of the code in the block that is placed next.
    fn note_apart(&mut self, program: &Program, edits: &EditPlan, block: Block, clone: Option<CloneId>) {
        let of = Out::new(self.entries.len());
        let part_of = PartOf { func: program.func_of(block), unwind_class: class_of(program, block), clone };
        for &replacement in edits.replacements_in(clone, block) {
            let code = &edits.codes[replacement.code];
            for part in 1..=code.apart.len() {
                let apart = ApartFrom { replacement, part, of };
                if code.runs(part) { self.running.push(apart) } else { self.pending.entry(part_of).or_default().push(apart) }
            }
        }
    }

    fn push_apart(&mut self, parts: Vec<ApartFrom>) {
        for apart in parts {
            let ApartFrom { replacement, part, of } = apart;
            // The parts of one edit come in any order.
            let parts = self.apart.entry((of, replacement.offset)).or_default();
            parts.resize(parts.len().max(part), of);
            parts[part - 1] = Out::new(self.entries.len());
            self.entries.push(Entry::Apart(self.parts.len() as u32));
            self.parts.push(apart);
        }
    }

    fn push_edge(&mut self, edge: u32) {
        self.edge_blocks.insert(edge, Out::new(self.entries.len()));
        self.entries.push(Entry::Edge(edge));
    }

    fn check_complete(&self, program: &Program, layout: &LayoutPlan) -> Result<()> {
        let has_place = |func: Func| program.funcs[func].is_movable() && !layout.is_dropped(func);
        let missing = program.blocks.iter().find(|(block, data)| has_place(data.func) == self.placed[*block].is_none());
        match missing {
            Some((block, data)) => Err(Error::NotPlaced(block, data.func)),
            None => Ok(()),
        }
    }
}

/// Resolves targets and makes terminators.
struct Linker<'a> {
    program: &'a Program,
    weights: &'a Weights,
    edits: &'a EditPlan,
    placed: &'a SecondaryMap<Block, Option<Out>>,
    in_clones: &'a FxHashMap<(CloneId, Block), Out>,
    edge_blocks: &'a FxHashMap<u32, Out>,
    parts: &'a [ApartFrom],
    /// Whether an entry of a table names it: the program holds the address for a moment, and the checker takes it for held.
    in_table: &'a SecondaryMap<Block, bool>,
}

impl Linker<'_> {
    /// Where a block is for code of the functions, or of a clone.
    fn resolve_block(&self, clone: Option<CloneId>, block: Block) -> OutTarget {
        let in_clone = clone.and_then(|clone| self.in_clones.get(&(clone, block)).copied());
        match in_clone.or(self.placed[block]) {
            Some(out) => OutTarget::Placed(out),
            None => OutTarget::Fixed(self.program.blocks[block].start),
        }
    }

    fn resolve(&self, clone: Option<CloneId>, target: CodeTarget) -> OutTarget {
        match target {
            CodeTarget::Block(block) => self.resolve_block(clone, block),
            CodeTarget::Fixed(va) => OutTarget::Fixed(va),
        }
    }

    /// All output blocks, and their edits.
    fn link(&self, entries: &[Entry], spans: &[Range<u32>]) -> (Vec<Edit>, PrimaryMap<Out, OutBlock>) {
        let edits_of_chunk = |chunk: &[Entry]| {
            let (mut edits, mut ends) = (Vec::new(), Vec::with_capacity(chunk.len()));
            for &entry in chunk {
                self.push_edits(entry, &mut edits);
                ends.push(edits.len() as u32);
            }
            (edits, ends)
        };
        let chunks: Vec<(Vec<Edit>, Vec<u32>)> = entries.par_chunks(BLOCKS_AT_ONCE).map(edits_of_chunk).collect();
        let bases: Vec<u32> =
            chunks.iter().scan(0, |end, chunk| Some(std::mem::replace(end, *end + chunk.0.len() as u32))).collect();
        let mut is_last = vec![false; entries.len()];
        for span in spans.iter().filter(|span| !span.is_empty()) {
            is_last[span.end as usize - 1] = true;
        }
        let block = |(index, &entry): (usize, &Entry)| {
            let (chunk, within) = (index / BLOCKS_AT_ONCE, index % BLOCKS_AT_ONCE);
            let end_of = |within: usize| bases[chunk] + chunks[chunk].1[within];
            let first = within.checked_sub(1).map_or(bases[chunk], end_of);
            let following = if is_last[index] { None } else { entries.get(index + 1).copied() };
            self.block(entry, following, first..end_of(within))
        };
        // All at once and in their places: for as many blocks as there are, putting pieces together takes longer than to make them.
        let blocks: Vec<OutBlock> = entries.par_iter().enumerate().map(block).collect();
        (chunks.into_iter().flat_map(|chunk| chunk.0).collect(), PrimaryMap::from_items(blocks))
    }

    fn push_edits(&self, entry: Entry, edits: &mut Vec<Edit>) {
        match entry {
            Entry::Edge(edge) => edits.extend(self.edits.insertion_on(edge).map(|i| insertion(0, i.len, i.snippet))),
            Entry::Apart(index) => {
                let ApartFrom { replacement: Replacement { offset, code, .. }, part, of } = self.parts[index as usize];
                let len = self.edits.codes[code].part(part).len() as u32;
                edits.push(Edit { offset, replaced: 0, len, content: Content::Apart { code, part, of } });
            }
            Entry::Body { block, clone, .. } => {
                let first = edits.len();
                edits.extend(self.edits.insertions_of(block).iter().map(|i| insertion(i.offset, i.len, i.snippet)));
                edits.extend(self.edits.replacements_in(clone, block).iter().map(|r| {
                    let len = self.edits.codes[r.code].part(0).end;
                    Edit { offset: r.offset, replaced: r.len, len, content: Content::Code(r.code) }
                }));
                // What is inserted before an instruction that goes stays before what comes in its place.
                edits[first..].sort_by_key(|edit| (edit.offset, edit.replaced));
            }
        }
    }

    fn block(&self, entry: Entry, following: Option<Entry>, edits: Range<u32>) -> OutBlock {
        match entry {
            Entry::Edge(edge) => {
                let target = self.program.edges[edge as usize].target;
                let falls = matches!(following, Some(Entry::Body { block, .. }) if block == target);
                let terminator = if falls { OutTerminator::None } else { OutTerminator::Jump(self.resolve_block(None, target)) };
                OutBlock { origin: target, copies_body: false, align: 1, edits, terminator }
            }
            Entry::Apart(index) => {
                let origin = self.parts[index as usize].replacement.block;
                OutBlock { origin, copies_body: false, align: 1, edits, terminator: OutTerminator::None }
            }
            Entry::Body { block, align, clone } => {
                let replaces_terminator = self.edits.replaces_terminator(self.program, clone, block);
                let terminator = if replaces_terminator { OutTerminator::None } else { self.terminator(clone, block, following) };
                OutBlock { origin: block, copies_body: true, align, edits, terminator }
            }
        }
    }

    fn terminator(&self, clone: Option<CloneId>, block: Block, following: Option<Entry>) -> OutTerminator {
        if let Some(target) = clone.and_then(|clone| self.edits.clones[clone].decided(block)) {
            let follows = matches!(following, Some(Entry::Body { block: next, .. }) if target == CodeTarget::Block(next));
            return if follows { OutTerminator::None } else { OutTerminator::Jump(self.resolve(clone, target)) };
        }
        let has_edge_blocks = clone.is_none()
            && !self.edge_blocks.is_empty()
            && self.program.blocks[block].edges.as_usize().any(|e| self.edge_blocks.contains_key(&(e as u32)));
        if has_edge_blocks {
            return self.terminator_through_edge_blocks(block, following);
        }
        let following = match following {
            Some(Entry::Body { block: next, .. }) if !self.would_share_an_address(block, next) => {
                Some(if clone.is_none() { self.stood_for(block, next) } else { next })
            }
            _ => None,
        };
        let counts = SuccessorCounts::of(self.program, self.weights, block);
        match emit_weighted(&self.program.blocks[block].terminator, following, counts) {
            Emitted::None => OutTerminator::None,
            Emitted::Jump { target } => OutTerminator::Jump(self.resolve(clone, target)),
            Emitted::Branch { condition, taken } => {
                OutTerminator::Branch { condition, taken: self.resolve(clone, taken), jump: None }
            }
            Emitted::BranchAndJump { condition, taken, next } => {
                OutTerminator::Branch { condition, taken: self.resolve(clone, taken), jump: Some(self.resolve(clone, next)) }
            }
            Emitted::Loop { taken, then_jump } => OutTerminator::Loop {
                taken: self.resolve_block(clone, taken),
                jump: then_jump.map(|next| self.resolve_block(clone, next)),
            },
        }
    }

    /// The target of a block that is where `next` is, if `next` stands for one.
    fn stood_for(&self, block: Block, next: Block) -> Block {
        let is_there = |target: Block| self.placed[target] == self.placed[next];
        let targets = match self.program.blocks[block].terminator {
            Terminator::Fallthrough { next } => [Some(CodeTarget::Block(next)), None],
            Terminator::Jump { target } => [Some(target), None],
            Terminator::Branch { taken, next, .. } => [Some(CodeTarget::Block(next)), Some(taken)],
            Terminator::Loop { next, .. } => [Some(CodeTarget::Block(next)), None],
            Terminator::Stop(_) => [None, None],
        };
        let blocks = targets.into_iter().flatten().filter_map(|target| match target {
            CodeTarget::Block(block) => Some(block),
            CodeTarget::Fixed(_) => None,
        });
        blocks.into_iter().find(|&target| is_there(target)).unwrap_or(next)
    }

    /// Whether a block that is nothing but a jump would begin where the next one does, though the program can hold and compare both addresses.
    /// Then the jump stays.
    fn would_share_an_address(&self, block: Block, next: Block) -> bool {
        let has_address = |block: Block| self.program.blocks[block].flags.contains(BlockFlags::ADDRESS_TAKEN);
        let is_taken = |block: Block| has_address(block) || self.in_table[block];
        let is_empty = |block: Block| self.program.blocks[block].body_len == 0;
        is_empty(block) && is_taken(block) && (is_taken(next) || is_empty(next))
    }

    /// As `terminator`, with no inversion: an edge block in line follows its source at once, so the way to it needs no jump.
    fn terminator_through_edge_blocks(&self, block: Block, following: Option<Entry>) -> OutTerminator {
        let edge_of = |kind: EdgeKind| {
            let mut edges = self.program.blocks[block].edges.as_usize();
            edges
                .find(|&e| self.program.edges[e].kind == kind)
                .and_then(|e| self.edge_blocks.get(&(e as u32)).map(|&out| (e as u32, out)))
        };
        let through = |kind: EdgeKind, plain: CodeTarget| -> (OutTarget, bool) {
            match edge_of(kind) {
                Some((edge, out)) => (OutTarget::Placed(out), matches!(following, Some(Entry::Edge(e)) if e == edge)),
                None => {
                    let follows =
                        matches!((plain, following), (CodeTarget::Block(b), Some(Entry::Body { block, .. })) if b == block);
                    (self.resolve(None, plain), follows)
                }
            }
        };
        let unless_follows = |(target, follows): (OutTarget, bool)| (!follows).then_some(target);
        match self.program.blocks[block].terminator {
            Terminator::Fallthrough { next } => unless_follows(through(EdgeKind::Fallthrough, CodeTarget::Block(next)))
                .map_or(OutTerminator::None, OutTerminator::Jump),
            Terminator::Jump { target } => {
                unless_follows(through(EdgeKind::Taken, target)).map_or(OutTerminator::None, OutTerminator::Jump)
            }
            Terminator::Branch { condition, taken, next } => OutTerminator::Branch {
                condition,
                taken: through(EdgeKind::Taken, taken).0,
                jump: unless_follows(through(EdgeKind::Fallthrough, CodeTarget::Block(next))),
            },
            Terminator::Loop { taken, next } => OutTerminator::Loop {
                taken: through(EdgeKind::Taken, CodeTarget::Block(taken)).0,
                jump: unless_follows(through(EdgeKind::Fallthrough, CodeTarget::Block(next))),
            },
            Terminator::Stop(_) => OutTerminator::None,
        }
    }
}

fn insertion(offset: u32, len: u32, snippet: Snippet) -> Edit {
    Edit { offset, replaced: 0, len, content: Content::Snippet(snippet) }
}

/// The bytes of a block in the input.
pub fn block_bytes<'a>(image: &Image<'a>, program: &Program, block: Block) -> Result<&'a [u8]> {
    let data = &program.blocks[block];
    image.read(data.start, data.len as usize).ok_or(Error::NoBytes(block))
}
