//! From the plan to a program that has an order: output blocks with what each copies, what is inserted or replaced and how each ends.
//!
//! **Method.** Every planned block becomes one output block, every insertion on an edge one more, which holds nothing but the insertion. First
//! all of them get their ids; what each copies and how it ends is made when somebody asks for it (`link`). Edits belong to the block that they are in, so
//! that its copies have them too. Each part of new code that lies apart becomes an output block of its own: what runs of them at the end of the fragment,
//! the rest in the function's cold fragment or, if it has none, in one that is added behind all others.
//!
//! **Invariants.** Output blocks of a fragment have consecutive ids in output order. The successors of an output block, seen through
//! edge blocks, are those of its origin. Every block of a movable function is placed exactly once, unless the plan drops the function; copies of a block are not its place: nothing names them, what stands before one runs into it. A clone's blocks are
//! places for its own code alone (`clones`).

mod link;

use std::collections::BTreeMap;
use std::ops::Range;

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func, PrimaryMap, SecondaryMap};
use lifter::ir::{Condition, EdgeKind, Program, Terminator};
use profiles::Weights;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::clones::CloneId;
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement, Snippet};
use crate::error::{Error, Result};
use crate::plan::{Filling, FragmentPlan, LayoutPlan, PlannedBlock, Temperature, Throws, Unwinds};
use link::Linker;

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
        part: u32,
        of: Out,
    },
}

#[derive(Copy, Clone, Debug)]
pub struct OutBlock {
    /// The block whose body is copied; an edge block copies nothing and stands, for the unwinder, at the start of its target.
    pub origin: Block,
    pub copies_body: bool,
    /// A power of two.
    pub align: u8,
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
    /// What stands before its first block.
    pub lead: Option<NewCodeId>,
    /// By how many bytes the stack pointer is lower than in the input, where no edit says otherwise.
    pub deeper: u8,
}

/// The output before it has addresses. Its blocks are made when they are asked for, with what each copies and how it ends: all of them at once would take more memory
/// than anything else.
#[derive(Debug)]
pub struct OutProgram<'p> {
    pub fragments: Vec<OutFragment>,
    /// What each output block copies, or stands for.
    pub origins: PrimaryMap<Out, Block>,
    pub codes: &'p PrimaryMap<NewCodeId, NewCode>,
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
    /// As in the plan.
    pub throws: Throws,
    pub unwinds: Unwinds,
    /// As in the plan.
    pub spared_by_relays: Option<&'p SecondaryMap<Block, bool>>,
    /// As in the plan.
    pub window_worths: Option<&'p SecondaryMap<Block, u16>>,
    sources: Sources<'p>,
}

/// What output blocks are made from.
#[derive(Debug)]
struct Sources<'p> {
    program: &'p Program,
    weights: &'p Weights,
    plan: &'p EditPlan,
    /// By output block.
    entries: Vec<Entry>,
    /// By output block one after the other, ascending by offset.
    edits: Vec<Edit>,
    /// By output block, where its edits end; empty if there are none at all.
    edit_ends: Vec<u32>,
    edge_blocks: FxHashMap<u32, Out>,
    parts: Vec<ApartFrom>,
    in_table: SecondaryMap<Block, bool>,
}

impl OutProgram<'_> {
    /// Ascending by offset.
    pub fn edits_of(&self, block: Out) -> &[Edit] {
        let ends = &self.sources.edit_ends;
        let end = |index: usize| ends.get(index).map_or(0, |&end| end as usize);
        &self.sources.edits[block.index().checked_sub(1).map_or(0, end)..end(block.index())]
    }
    /// Whether a clone is what stands before calls of the same function (`crate::shrink::outline`), and no copy of the one that it says.
    pub fn is_body(&self, clone: CloneId) -> bool {
        self.sources.plan.clones[clone].replacements.iter().any(|replacement| replacement.change == Change::Outline)
    }
    /// Bytes before the first block of a fragment that do what stood before calls of it.
    pub fn lead_len(&self, fragment: &OutFragment) -> u32 {
        fragment.lead.map_or(0, |code| self.codes[code].bytes.len() as u32)
    }
    /// The index of the fragment that has an output block.
    pub fn fragment_of(&self, block: Out) -> usize {
        let index = block.index() as u32;
        self.fragments.partition_point(|fragment| fragment.blocks.end <= index)
    }
    /// Makes the output blocks of a fragment.
    pub fn fragment_blocks(&self, fragment: &OutFragment) -> impl Iterator<Item = (Out, OutBlock)> {
        let linker = self.linker();
        let (clone, first) = (fragment.clone, fragment.blocks.start as usize);
        let entries = &self.sources.entries[first..fragment.blocks.end as usize];
        entries.iter().enumerate().map(move |(index, &entry)| {
            let id = Out::new(first + index);
            (id, linker.block(clone, (entry, self.edits_of(id)), entries.get(index + 1).copied()))
        })
    }
    fn linker(&self) -> Linker<'_> {
        let Sources { program, weights, plan, edge_blocks, parts, in_table, .. } = &self.sources;
        Linker { program, weights, edits: plan, placed: &self.placed, in_clones: &self.in_clones, edge_blocks, parts, in_table }
    }
    /// Lists the edits of all output blocks.
    fn list_edits(&mut self) {
        let Sources { entries, plan, .. } = &self.sources;
        if plan.is_empty() && plan.clones.is_empty() {
            return;
        }
        let linker = self.linker();
        let edits_of_all = |fragments: &[OutFragment]| {
            let (mut edits, mut ends) = (Vec::new(), Vec::new());
            for fragment in fragments {
                for &entry in &entries[fragment.blocks.start as usize..fragment.blocks.end as usize] {
                    linker.push_edits(fragment.clone, entry, &mut edits);
                    ends.push(edits.len() as u32);
                }
            }
            (edits, ends)
        };
        let chunks: Vec<(Vec<Edit>, Vec<u32>)> = self.fragments.par_chunks(FRAGMENTS_AT_ONCE).map(edits_of_all).collect();
        let num_edits = chunks.iter().map(|(edits, _)| edits.len()).sum();
        let (mut edits, mut edit_ends) = (Vec::with_capacity(num_edits), Vec::with_capacity(entries.len()));
        for (of_chunk, ends) in chunks {
            let base = edits.len() as u32;
            edits.extend(of_chunk);
            edit_ends.extend(ends.into_iter().map(|end| base + end));
        }
        (self.sources.edits, self.sources.edit_ends) = (edits, edit_ends);
    }
}

/// Applies a plan.
pub fn materialize<'p>(
    program: &'p Program,
    weights: &'p Weights,
    layout: &'p LayoutPlan,
    edits: &'p EditPlan,
) -> Result<OutProgram<'p>> {
    edits.check(program)?;
    let classes: Vec<u32> = layout.fragments.par_iter().map(|plan| class_of_all(program, plan)).collect::<Result<_>>()?;
    let skeleton = Skeleton::build(program, (layout, &classes), edits)?;
    let mut fragments = Vec::with_capacity(skeleton.spans.len());
    for ((plan, &unwind_class), span) in layout.fragments.iter().zip(&classes).zip(&skeleton.spans) {
        let deeper = deeper(edits, plan.clone);
        let (blocks, temperature, align) = (span.clone(), plan.temperature, plan.align);
        let (func, clone, lead) = (plan.func, plan.clone, lead_of(edits, plan));
        fragments.push(OutFragment { func, temperature, align, unwind_class, blocks, clone, lead, deeper });
    }
    for (part, span) in skeleton.added.iter().zip(&skeleton.spans[layout.fragments.len()..]) {
        let PartOf { func, unwind_class, clone } = *part;
        let (deeper, temperature) = (deeper(edits, clone), Temperature::Cold);
        let (align, blocks, lead) = (1, span.clone(), None);
        fragments.push(OutFragment { func, temperature, align, unwind_class, blocks, clone, lead, deeper });
    }
    if fragments.iter().filter(|fragment| fragment.lead.is_some()).count() != edits.leads.len() {
        return Err(Error::Inconsistent(
            "code before a block that begins no fragment, or before others that are aligned".to_owned(),
        ));
    }
    let mut in_table = SecondaryMap::new(program.blocks.len(), false);
    for table in program.tables.keys() {
        program.targets_of(table).iter().for_each(|&target| in_table[target] = true);
    }
    let Skeleton { entries, placed, in_clones, edge_blocks, apart, parts, .. } = skeleton;
    let mut clone_entries = Vec::with_capacity(edits.clones.len());
    for (clone, data) in edits.clones.iter() {
        let entry = in_clones.get(&(clone, data.entry));
        clone_entries.push(*entry.ok_or(Error::NotPlaced(data.entry, data.func))?);
    }
    let origin = |entry: &Entry| match *entry {
        Entry::Body { block, .. } => block,
        Entry::Edge(edge) => program.edges[edge as usize].target,
        Entry::Apart(index) => parts[index as usize].replacement.block,
    };
    let mut out = OutProgram {
        fragments,
        origins: PrimaryMap::from_items(entries.par_iter().map(origin).collect()),
        codes: &edits.codes,
        placed,
        clone_entries,
        in_clones,
        apart,
        filling: layout.filling,
        hot_from: layout.hot_from,
        joins_kept_entries: layout.joins_kept_entries,
        throws: layout.throws,
        unwinds: layout.unwinds,
        spared_by_relays: layout.spared_by_relays.as_ref(),
        window_worths: layout.window_worths.as_ref(),
        sources: Sources {
            program,
            weights,
            plan: edits,
            entries,
            edits: Vec::new(),
            edit_ends: Vec::new(),
            edge_blocks,
            parts,
            in_table,
        },
    };
    out.list_edits();
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

/// How many fragments' edits are listed together.
const FRAGMENTS_AT_ONCE: usize = 256;

/// One output block before its targets are known.
#[derive(Copy, Clone, Debug)]
enum Entry {
    Body {
        block: Block,
        align: u8,
    },
    Edge(u32),
    /// Into `Sources::parts`.
    Apart(u32),
}

/// A part of a replacement's code that lies apart from the block it is in.
#[derive(Copy, Clone, Debug)]
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

/// What stands before the first block of a fragment, where nothing else lies between and no other block is aligned.
fn lead_of(edits: &EditPlan, plan: &FragmentPlan) -> Option<NewCodeId> {
    let (first, others) = plan.blocks.split_first()?;
    let is_fit = plan.clone.is_none() && first.copy.is_none() && others.iter().all(|other| other.align == 1);
    let found = edits.leads.binary_search_by_key(&first.block, |lead| lead.0).ok()?;
    is_fit.then_some(edits.leads[found].1)
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
        self.entries.push(Entry::Body { block, align });
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

/// The bytes of a block in the input.
pub fn block_bytes<'a>(image: &Image<'a>, program: &Program, block: Block) -> Result<&'a [u8]> {
    let data = &program.blocks[block];
    image.read(data.start, data.len as usize).ok_or(Error::NoBytes(block))
}
