//! What stands before calls of the same function, put once where all of these calls lead: arguments that are alike.
//!
//! **Problem.** `lea message(%rip), %rdi; xor %eax, %eax; call report` stands in a program a hundred times over. Blocks that go on alike share a copy
//! ([`crate::fold::blocks`]); these go on each in a way of their own.
//!
//! **Method.** Each call that is direct or goes through a word (`call *slot(%rip)`) has the instructions before it in its block, up to one that can't come along, as a path in a tree: calls of one function are together at the
//! root, those with the same last instruction before them together below that, and so on. A node of the tree may become a *body*: its instructions, and a jump to the function called. Each of its calls is then a call
//! of the body alone. It stands right before the function, if something may, so that the jump is short ([`near`]). And what one way from the root down has may become the function's *lead*: it stands right before the function, which it runs into, and calls enter it where their own part of it begins. What saves the most bytes is
//! decided for each node ([`tree`]).
//!
//! **Safety.** A body or lead runs with the state that the instructions had, but for the stack pointer, which is lower by the return address that the call has pushed already. An
//! instruction that addresses the frame by it has a displacement that is so much larger there ([`lower`]); no other use of it comes along. What comes next is in the state that the call made, and what is called returns to where it returned to: so
//! nothing on the stack differs for it, nor for who unwinds, nor for a shadow stack. For an unwinder both are as a function at its entry: the instructions had one row, that of the call, and where one of them may fault,
//! the call's handlers. Callee-saved registers are left alone, so that who looks at a body as at a function finds that it keeps them.
//! The word in which the call leaves its return address is written earlier; a function that calls keeps nothing there.
//!
//! **Speed.** A body is a jump more for each call, so none where that is much of what is executed ([`crate::fold::shares`]), and where a profile has counts, nothing that ran. But where the call leads to a stub that jumps through a word
//! ([`crate::transform::plt_calls`] says why nobody can tell), or to a function that only jumps ([`callees`]), the body ends in that jump, and a lead needs none: both execute as many instructions and jumps as before, or less.
//!
//! **Termination.** Each node is looked at once from below and once from above.

use std::ops::{Range, RangeInclusive};

use lifter::Image;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{Program, RefData, RefRole, RefTarget, StopKind, Terminator};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::clones::{CloneData, CloneId};
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::fold::FUNCS_AT_ONCE;
use crate::fold::shares::Shares;
use crate::materialize::block_bytes;
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature, Times};
use crate::terminator::SHORT;
use crate::transform::direct_calls::{self, DirectCall};
use crate::transform::entry_row::has_entry_row;
use crate::transform::plt_calls;

pub(super) mod along;
mod callees;
pub(super) mod entries;
pub(super) mod lower;
mod near;
mod sites;
mod tree;

use callees::Callee;
use entries::Entries;
use lower::lowered;
use near::Near;
use sites::{Finder, Piece, Site, Sites};
use tree::{Lens, Tree, TreeCall, Way};

/// Bytes of a direct call.
pub(super) const CALL_LEN: u32 = 5;

/// What came of it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlined {
    /// Bodies and leads.
    pub num_bodies: u64,
    pub num_calls: u64,
    /// Bytes of code less, as far as is known before layout.
    pub bytes: u64,
}

/// What decides where arguments move.
#[derive(Copy, Clone, Debug)]
pub struct Asked<'a> {
    /// What a jump more would be in each block.
    pub shares: &'a Shares,
    /// The blocks that something leads to.
    pub is_open: &'a SecondaryMap<Block, bool>,
    /// Calls through memory that go to one function, ascending.
    pub calls: &'a [DirectCall],
}

/// Puts leads and bodies before functions of the plan, bodies for others behind all its code, and calls of them in its blocks.
pub fn plan(image: &Image<'_>, program: &Program, asked: Asked<'_>, plan: &mut LayoutPlan, edits: &mut EditPlan) -> Outlined {
    let Some(host) = host(program, plan) else { return Outlined::default() };
    let entries = Entries::of(image, program, plan);
    let all = sites(image, program, asked, (plan, &entries));
    let tree = Tree::of(entries.blocks.len(), all.sites.iter().map(|site| tree_call(site, all.pieces_of(site))));
    let mut writer = Writer { image, program, host, edits, outlined: Outlined::default(), added: 0 };
    let starts = writer.before_functions(&all, &tree, &entries.blocks);
    let bodies = writer.calls(&all, &tree, &entries.blocks, &starts);
    let Writer { mut outlined, added, .. } = writer;
    outlined.bytes = outlined.bytes.saturating_sub(added);
    edits.settle();
    plan.fragments.extend(bodies.into_iter().map(|clone| {
        let planned = PlannedBlock { block: host, align: 1, copy: Some(Times::new(0)) };
        let (func, temperature) = (program.func_of(host), Temperature::Cold);
        FragmentPlan { func, temperature, align: 1, blocks: vec![planned], clone: Some(clone) }
    }));
    outlined
}

/// All calls in the blocks that the plan has and something leads to.
fn sites(image: &Image<'_>, program: &Program, asked: Asked<'_>, (plan, entries): (&LayoutPlan, &Entries<'_>)) -> Sites {
    let Asked { shares, is_open, calls } = asked;
    let blocks = super::changeable(program, plan, is_open);
    let funcs: Vec<&[(Func, Block)]> = blocks.chunk_by(|a, b| a.0 == b.0).collect();
    let finder = Finder { image, program, folded: &plan.folded, entries, shares, calls };
    let mut all = Sites::default();
    for funcs in funcs.chunks(FUNCS_AT_ONCE) {
        let found: Vec<Sites> = funcs.par_iter().map(|blocks| finder.sites_of(blocks)).collect();
        found.into_iter().for_each(|found| all.append(found));
    }
    all
}

fn tree_call<'s>(site: &'s Site, pieces: &'s [Piece]) -> TreeCall<impl Iterator<Item = (u64, Lens)> + use<'s>> {
    let jump = if site.entry.is_some() { SHORT } else { site.callee.jump_len() };
    let pieces =
        pieces.iter().map(move |piece| (piece.hash, Lens { call: site.call - piece.start + site.longer, body: piece.len, jump }));
    TreeCall { root: site.entry, body_min: site.body_min, pieces }
}

/// Makes the code and what leads to it.
struct Writer<'a> {
    image: &'a Image<'a>,
    program: &'a Program,
    host: Block,
    edits: &'a mut EditPlan,
    /// Bytes without those of bodies and leads, which are counted apart.
    outlined: Outlined,
    added: u64,
}

impl Writer<'_> {
    /// Puts leads and bodies before functions; gives where those of each node of the tree begin, in bytes before the function.
    fn before_functions(&mut self, all: &Sites, tree: &Tree, entries: &[Block]) -> FxHashMap<u32, u32> {
        let mut starts = FxHashMap::default();
        for (&entry, wanted) in entries.iter().zip(wanted(all, tree, entries.len())) {
            let Some(code) = self.near(all, wanted, &mut starts).and_then(Near::code) else { continue };
            self.added += code.bytes.len() as u64;
            let code = self.edits.codes.push(code);
            self.edits.leads.push((entry, code));
        }
        self.edits.leads.sort_unstable_by_key(|lead| lead.0);
        starts
    }

    /// `None` where the lead can't be made.
    fn near(&mut self, all: &Sites, wanted: Wanted, starts: &mut FxHashMap<u32, u32>) -> Option<Near> {
        let mut near = Near::default();
        if let Some(Part { site, depth, .. }) = wanted.lead {
            let site = &all.sites[site];
            near.push(arguments_of(self.image, self.program, site, all.pieces_of(site), 0..=depth)?);
            self.outlined.num_bodies += 1;
        }
        for Part { node, site, depth, num_on_lead } in wanted.bodies {
            let site = &all.sites[site];
            let pieces = all.pieces_of(site);
            let Some(own) = arguments_of(self.image, self.program, site, pieces, num_on_lead..=depth) else { continue };
            let target = num_on_lead.checked_sub(1).map_or(0, |last| pieces[last].len);
            starts.insert(node, near.push_body(own, target));
            self.outlined.num_bodies += 1;
        }
        Some(near)
    }

    /// Makes calls of bodies and leads; gives the bodies that stand elsewhere.
    fn calls(&mut self, all: &Sites, tree: &Tree, entries: &[Block], starts: &FxHashMap<u32, u32>) -> Vec<CloneId> {
        let mut bodies: Vec<Option<CloneId>> = vec![None; tree.len()];
        let has_lead: Vec<bool> =
            entries.iter().map(|entry| self.edits.leads.binary_search_by_key(entry, |lead| lead.0).is_ok()).collect();
        // Calls of one place are alike.
        let mut known: FxHashMap<(Place, u32), NewCodeId> = FxHashMap::default();
        for (index, site) in all.sites.iter().enumerate() {
            let pieces = all.pieces_of(site);
            let entry = site.entry.filter(|&entry| has_lead[entry as usize]).map(|entry| entries[entry as usize]);
            let (place, depth) = match (tree.way_of(index), entry) {
                (Some(Way::Lead { depth }), Some(entry)) => (Place::Before { entry, bytes: pieces[depth].len }, depth),
                (Some(Way::Body { node, depth }), Some(entry)) => {
                    let Some(&bytes) = starts.get(&(node as u32)) else { continue };
                    (Place::Before { entry, bytes }, depth)
                }
                (Some(Way::Body { node, depth }), None) if site.entry.is_none() => {
                    let body = match bodies[node] {
                        Some(body) => body,
                        None => {
                            let Some(body) = self.body(site, pieces, depth) else { continue };
                            *bodies[node].insert(body)
                        }
                    };
                    (Place::Body(body), depth)
                }
                _ => continue,
            };
            let code = *known
                .entry((place, site.call_len))
                .or_insert_with(|| self.edits.codes.push(call_of(self.host, place, site.call_len)));
            let offset = pieces[depth].start;
            let len = site.call + site.call_len - offset;
            self.outlined.num_calls += 1;
            self.outlined.bytes += u64::from(len - CALL_LEN);
            self.edits.replacements.push(Replacement { block: site.block, offset, len, code, change: Change::Outline });
        }
        bodies.into_iter().flatten().collect()
    }

    /// The pieces up to one, and a jump to what is called.
    fn body(&mut self, site: &Site, pieces: &[Piece], depth: usize) -> Option<CloneId> {
        let mut body = arguments_of(self.image, self.program, site, pieces, 0..=depth)?;
        let end = body.bytes.len() as u32;
        match site.callee {
            Callee::Direct(reference) => {
                body.refs.push(RefData { offset: end + 1, role: RefRole::Branch, ..reference });
                body.bytes.extend([0xe9, 0, 0, 0, 0]);
            }
            Callee::Through(slot) => {
                let reference = plt_calls::reference_to(slot);
                body.refs.push(RefData { offset: end + reference.offset, ..reference });
                body.bytes.extend([0xff, 0x25, 0, 0, 0, 0]);
            }
        }
        body.stands = vec![(0, self.program.blocks[self.host].start)].into();
        self.outlined.num_bodies += 1;
        self.added += body.bytes.len() as u64;
        Some(push_clone(self.program, self.host, body, self.edits))
    }
}

/// What a call enters in the place of a function.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Body(CloneId),
    /// So many bytes before the function.
    Before {
        entry: Block,
        bytes: u32,
    },
}

/// Pieces that are put together: those of a site up to a depth, but for what is on the lead.
#[derive(Copy, Clone, Debug)]
struct Part {
    node: u32,
    site: usize,
    depth: usize,
    num_on_lead: usize,
}

/// What is to stand before a function.
#[derive(Debug, Default)]
struct Wanted {
    lead: Option<Part>,
    /// The shortest first.
    bodies: Vec<Part>,
}

/// By number of the function.
fn wanted(all: &Sites, tree: &Tree, num_entries: usize) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    wanted.resize_with(num_entries, Wanted::default);
    let mut is_known = vec![false; tree.len()];
    for (index, site) in all.sites.iter().enumerate() {
        let Some(entry) = site.entry else { continue };
        let wanted = &mut wanted[entry as usize];
        let num_on_lead = tree.num_on_lead(index);
        if let Some(depth) = num_on_lead.checked_sub(1) {
            // Of a call that has all of it.
            let is_longer = wanted.lead.is_none_or(|lead| lead.depth < depth);
            wanted.lead = if is_longer { Some(Part { node: 0, site: index, depth, num_on_lead: 0 }) } else { wanted.lead };
        }
        if let Some(Way::Body { node, depth }) = tree.way_of(index)
            && !std::mem::replace(&mut is_known[node], true)
        {
            wanted.bodies.push(Part { node: node as u32, site: index, depth, num_on_lead });
        }
    }
    let len = |part: &Part| {
        let pieces = all.pieces_of(&all.sites[part.site]);
        pieces[part.depth].len - part.num_on_lead.checked_sub(1).map_or(0, |last| pieces[last].len)
    };
    wanted.iter_mut().for_each(|wanted| wanted.bodies.sort_by_key(len));
    wanted
}

/// A block that bodies can say they are copies of: a function's first, for whose start the unwind tables say what they say of every entry, and behind which nothing is run into.
fn host(program: &Program, plan: &LayoutPlan) -> Option<Block> {
    let is_fit = |block: &Block| {
        let data = &program.blocks[*block];
        let Some(fde) = program.ranges[data.range as usize].fde else { return false };
        let described = &program.unwind.fdes[fde];
        let has_handlers = described.lsda.is_some() || program.unwind.cies[described.cie as usize].personality.is_some();
        let is_start = described.start == data.start && program.funcs[data.func].entry == *block;
        let ends = !matches!(data.terminator, Terminator::Fallthrough { .. } | Terminator::Stop(StopKind::TableJump(_)));
        let names_table = || program.block_refs(*block).iter().any(|r| matches!(r.target, RefTarget::Table(_)));
        is_start && ends && !has_handlers && !names_table() && has_entry_row(program, *block, data.start + 1)
    };
    plan.fragments.iter().filter(|fragment| fragment.clone.is_none()).map(|fragment| fragment.blocks[0].block).find(is_fit)
}

fn push_clone(program: &Program, host: Block, body: NewCode, edits: &mut EditPlan) -> CloneId {
    let code = edits.codes.push(body);
    let data = &program.blocks[host];
    let replacement = Replacement { block: host, offset: 0, len: data.len, code, change: Change::Outline };
    edits.clones.push(CloneData {
        func: data.func,
        entry: host,
        blocks: vec![host],
        replacements: vec![replacement],
        decided: Vec::new(),
        count: 0,
        deeper: 0,
        dropped: Vec::new(),
        bound: Vec::new(),
    })
}

/// Some of a site's pieces, without a place.
fn arguments_of(
    image: &Image<'_>,
    program: &Program,
    site: &Site,
    pieces: &[Piece],
    wanted: RangeInclusive<usize>,
) -> Option<NewCode> {
    pieces.get(wanted.clone())?;
    let wanted = wanted.rev().map(|index| {
        let end = index.checked_sub(1).map_or(site.call, |next| pieces[next].start);
        pieces[index].start..end
    });
    lowered_copy(image, program, site.block, wanted)
}

/// Instructions of a block, each by its offsets, as they are where the stack pointer is lower by a return address.
pub(super) fn lowered_copy(
    image: &Image<'_>,
    program: &Program,
    block: Block,
    instructions: impl Iterator<Item = Range<u32>>,
) -> Option<NewCode> {
    let (bytes, refs) = (block_bytes(image, program, block).ok()?, program.block_refs(block));
    let mut code = NewCode::default();
    for range in instructions {
        let inside = refs.iter().filter(|reference| range.contains(&reference.offset));
        let moved = |reference: &RefData| RefData { offset: reference.offset - range.start, ..*reference };
        let own = lowered(bytes.get(range.start as usize..range.end as usize)?)?;
        code.append(NewCode { bytes: own, refs: inside.map(moved).collect(), ..NewCode::default() });
    }
    Some(code)
}

/// A call of what stands elsewhere, which unwinders take for the call that it stands for: so many bytes before the end of what it replaces, or the first instruction of that if none.
pub(super) fn call_of(host: Block, place: Place, call_len: u32) -> NewCode {
    let block = match place {
        Place::Body(_) => host,
        Place::Before { entry, .. } => entry,
    };
    let reference = direct_calls::reference_to(block, RefRole::Call);
    let (enters, before) = match place {
        Place::Body(clone) => (vec![(reference.offset, clone)], Vec::new()),
        Place::Before { bytes, .. } => (Vec::new(), vec![(reference.offset, bytes)]),
    };
    NewCode {
        bytes: vec![0xe8, 0, 0, 0, 0],
        refs: vec![reference],
        enters: enters.into(),
        before: before.into(),
        stands_before_end: call_len,
        ..NewCode::default()
    }
}
