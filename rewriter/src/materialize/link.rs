//! How an output block ends, and what is edited in it.
//!
//! **Method.** A code target resolves to the output block that carries it, or, where the plan leaves a block in place, to its old address. Terminators are made by
//! `terminator::emit`, with the block that follows in the fragment in view.

use lifter::entity::{Block, SecondaryMap};
use lifter::ir::{BlockFlags, CodeTarget, EdgeKind, Program, Terminator};
use profiles::Weights;
use rustc_hash::FxHashMap;

use super::{ApartFrom, Content, Edit, Entry, Out, OutBlock, OutTarget, OutTerminator};
use crate::clones::CloneId;
use crate::edit::{EditPlan, Replacement, Snippet};
use crate::terminator::{Emitted, SuccessorCounts, emit_weighted};

/// Resolves targets and makes terminators.
pub(super) struct Linker<'a> {
    pub(super) program: &'a Program,
    pub(super) weights: &'a Weights,
    pub(super) edits: &'a EditPlan,
    pub(super) placed: &'a SecondaryMap<Block, Option<Out>>,
    pub(super) in_clones: &'a FxHashMap<(CloneId, Block), Out>,
    pub(super) edge_blocks: &'a FxHashMap<u32, Out>,
    pub(super) parts: &'a [ApartFrom],
    /// Whether an entry of a table names it: the program holds the address for a moment, and the checker takes it for held.
    pub(super) in_table: &'a SecondaryMap<Block, bool>,
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

    /// Adds the edits of one output block of the functions, or of a clone.
    pub(super) fn push_edits(&self, clone: Option<CloneId>, entry: Entry, edits: &mut Vec<Edit>) {
        match entry {
            Entry::Edge(edge) => edits.extend(self.edits.insertion_on(edge).map(|i| insertion(0, i.len, i.snippet))),
            Entry::Apart(index) => {
                let ApartFrom { replacement: Replacement { offset, code, .. }, part, of } = self.parts[index as usize];
                let len = self.edits.codes[code].part(part).len() as u32;
                edits.push(Edit { offset, replaced: 0, len, content: Content::Apart { code, part: part as u32, of } });
            }
            Entry::Body { block, .. } => {
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

    /// An output block of the functions, or of a clone, with these edits, before another of the same fragment.
    pub(super) fn block(&self, clone: Option<CloneId>, (entry, edits): (Entry, &[Edit]), following: Option<Entry>) -> OutBlock {
        match entry {
            Entry::Edge(edge) => {
                let target = self.program.edges[edge as usize].target;
                let falls = matches!(following, Some(Entry::Body { block, .. }) if block == target);
                let terminator = if falls { OutTerminator::None } else { OutTerminator::Jump(self.resolve_block(None, target)) };
                OutBlock { origin: target, copies_body: false, align: 1, terminator }
            }
            Entry::Apart(index) => {
                let origin = self.parts[index as usize].replacement.block;
                OutBlock { origin, copies_body: false, align: 1, terminator: OutTerminator::None }
            }
            Entry::Body { block, align } => {
                let data = &self.program.blocks[block];
                let reaches_behind =
                    |edit: &Edit| matches!(edit.content, Content::Code(_)) && edit.offset + edit.replaced > data.body_len;
                let replaces_terminator = data.body_len < data.len && edits.iter().any(reaches_behind);
                let terminator = if replaces_terminator { OutTerminator::None } else { self.terminator(clone, block, following) };
                OutBlock { origin: block, copies_body: true, align, terminator }
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
