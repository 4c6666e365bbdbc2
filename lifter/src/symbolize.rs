//! From addresses to ids: drafts of all clusters become the program, and each address that code or data holds becomes a reference.
//!
//! Nothing is decided here but names: which cluster becomes which function, which of its blocks is the entry, and whether an address
//! is a block or stays fixed.

mod anchors;
mod bounds;
mod distances;
mod faults;
mod frames;
mod ordered;
pub(crate) mod pins;
mod places;
mod restartable;
pub(crate) mod slots;
mod system_calls;

use object::elf;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::address::Va;
use crate::address_index::AddressIndex;
use crate::cfg::build::{Draft, DraftBlock, DraftEnd, DraftRef};
use crate::cfg::tables::RawTable;
use crate::cfg::thunks::Thunks;
use crate::discover::names::{NamedBy, Names};
use crate::discover::registered::NamesInUnwind;
use crate::discover::units::{Bounds, Unit, Units};
use crate::elf::{Image, Unwind};
use crate::entity::{Block, EntityId, Func, IdRange, PrimaryMap, Symbol, Table};
use crate::ir::*;

/// A cluster with all that became known of it.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) members: Vec<Unit>,
    pub(crate) draft: Draft,
    pub(crate) pin: Option<PinReason>,
}

/// How many functions are turned from drafts into what stays before their drafts are dropped.
const FUNCS_AT_ONCE: usize = 2048;

/// What the assembly reads.
#[derive(Copy, Clone)]
pub(crate) struct Assembly<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) names: &'i Names,
    /// Ascending by address.
    pub(crate) tables: &'i [RawTable],
    /// `(instruction, table)`, ascending.
    pub(crate) table_names: &'i [(Va, Va)],
    pub(crate) names_in_unwind: &'i NamesInUnwind,
    pub(crate) thunks: &'i Thunks,
}

impl Assembly<'_> {
    /// Builds everything but `mode`, `slots` and `unwind`.
    pub(crate) fn assemble(&self, mut clusters: Vec<Cluster>) -> Program {
        clusters.retain(|c| !c.draft.blocks.is_empty());
        let entries: Vec<Unit> = clusters.par_iter().map(|c| self.entry_unit(c)).collect();
        let mut order: Vec<usize> = (0..clusters.len()).collect();
        order.sort_by_key(|&i| entries[i]);
        let mut program = Program::default();
        let symbols = self.function_symbols();
        let mut classes = UnwindClasses::default();
        let mut func_of_block: Vec<Func> = Vec::with_capacity(clusters.iter().map(|c| c.draft.blocks.len()).sum());
        for &index in &order {
            let cluster = &clusters[index];
            let func = program.funcs.next_id();
            let first_range = program.ranges.len();
            let mut primary_range = first_range;
            for &unit in &cluster.members {
                let data = &self.units[unit];
                if unit == entries[index] {
                    primary_range = program.ranges.len();
                }
                let unwind_class = classes.class_of(self.unwind, data.bounds);
                program.ranges.push(CodeRange { start: data.start, end: data.end, func, fde: data.fde(), unwind_class });
            }
            let first_block = func_of_block.len();
            func_of_block.extend(std::iter::repeat_n(func, cluster.draft.blocks.len()));
            let entry_start = self.units[entries[index]].start;
            let within = cluster.draft.blocks.partition_point(|b| b.start < entry_start);
            program.funcs.push(FuncData {
                entry: Block::new(first_block + within.min(cluster.draft.blocks.len() - 1)),
                blocks: IdRange::from_usize(first_block..func_of_block.len()),
                ranges: IdRange::from_usize(first_range..program.ranges.len()),
                primary_range: primary_range as u32,
                symbol: symbols.get(&entry_start).copied(),
                pin: cluster.pin,
                content_hash: cluster.draft.content_hash,
            });
        }
        let shell = |(index, &func): (usize, &Func)| {
            let (cluster, data) = (&clusters[order[func.index()]], &program.funcs[func]);
            let draft = &cluster.draft.blocks[index - data.blocks.as_usize().start];
            let range = data.ranges.as_usize().start + cluster.members.partition_point(|&u| u < draft.unit);
            self.block_shell(draft, func, range)
        };
        program.blocks = PrimaryMap::from_items(func_of_block.par_iter().enumerate().map(shell).collect());
        drop(func_of_block);
        program.blocks_by_address = program.blocks.keys().collect();
        program.blocks_by_address.par_sort_unstable_by_key(|&b| program.blocks[b].start);
        program.block_index = AddressIndex::new(program.blocks_by_address.iter().map(|&b| program.blocks[b].start));
        self.resolve_tables(&mut program);
        let drafts: Vec<Draft> = order.iter().map(|&i| std::mem::take(&mut clusters[i].draft)).collect();
        self.resolve_blocks(&mut program, drafts);
        mark_loops(&mut program);
        program
    }

    /// The unit where calls to the cluster arrive.
    fn entry_unit(&self, cluster: &Cluster) -> Unit {
        let rank = |unit: &Unit| {
            let by = self.names.at(self.units[*unit].start);
            let is_called = by.intersects(NamedBy::CALL | NamedBy::SLOT | NamedBy::ADDRESS | NamedBy::EXPORT | NamedBy::ROOT);
            let is_named = by.contains(NamedBy::FUNCTION_SYMBOL);
            let is_arrived_at = by.intersects(NamedBy::BRANCH | NamedBy::LABEL);
            (!is_called, !is_named, is_arrived_at, *unit)
        };
        cluster.members.iter().copied().min_by_key(|u| rank(u)).unwrap_or(Unit::new(0))
    }

    fn function_symbols(&self) -> FxHashMap<Va, Symbol> {
        let mut symbols: FxHashMap<Va, Symbol> = FxHashMap::default();
        for (id, symbol) in self.image.symbols.iter() {
            if !symbol.has_address() || ![elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&symbol.st_type()) {
                continue;
            }
            let kept = symbols.entry(Va(symbol.st_value)).or_insert(id);
            // Of aliases, a global one names the function best.
            if self.image.symbols[*kept].st_bind() == elf::STB_LOCAL && symbol.st_bind() != elf::STB_LOCAL {
                *kept = id;
            }
        }
        symbols
    }

    fn block_shell(&self, draft: &DraftBlock, func: Func, range: usize) -> BlockData {
        let by = self.names.at(draft.start);
        let mut flags = draft.flags;
        flags.set(BlockFlags::ENTRY, by.intersects(NamedBy::ENTRY));
        flags.set(BlockFlags::ADDRESS_TAKEN, by.intersects(NamedBy::TAKEN));
        flags.set(BlockFlags::LANDING_PAD, by.contains(NamedBy::LANDING_PAD));
        flags.set(BlockFlags::ANCHOR, by.contains(NamedBy::UNSEEN));
        flags.set(BlockFlags::TABLE_TARGET, by.contains(NamedBy::TABLE));
        flags.set(BlockFlags::THUNK, self.thunks.contains(draft.start));
        BlockData {
            start: draft.start,
            func,
            range: range as u32,
            body_len: draft.body_len,
            len: draft.len,
            num_insts: draft.num_insts,
            terminator: Terminator::Stop(StopKind::Unknown),
            edges: IdRange::EMPTY,
            refs: IdRange::EMPTY,
            flags,
        }
    }

    fn resolve_tables(&self, program: &mut Program) {
        // Targets in code whose instructions are not known are no blocks; such a table is nobody's to change.
        let targets = |raw: &RawTable| raw.targets.iter().map(|&va| program.block_at(va)).collect();
        let targets: Vec<Option<Vec<Block>>> = self.tables.par_iter().map(targets).collect();
        for (raw, targets) in self.tables.iter().zip(targets) {
            let first = program.table_targets.len();
            let is_known = targets.is_some();
            program.table_targets.extend(targets.unwrap_or_default());
            program.tables.push(TableData {
                at: raw.at,
                entry_size: raw.entry_size,
                base: if raw.entry_size == 8 { TableBase::Absolute } else { TableBase::Own },
                bound: if is_known { raw.bound } else { TableBound::Scanned },
                targets: IdRange::from_usize(first..program.table_targets.len()),
                is_exclusive: raw.is_exclusive && is_known,
            });
        }
    }

    /// The drafts go function by function, so that both forms of the program are never whole at the same time.
    fn resolve_blocks(&self, program: &mut Program, mut drafts: Vec<Draft>) {
        program.refs.reserve_exact(drafts.iter().map(|d| d.refs.len()).sum());
        let ids: Vec<Func> = program.funcs.keys().collect();
        for (funcs, drafts) in ids.chunks(FUNCS_AT_ONCE).zip(drafts.chunks_mut(FUNCS_AT_ONCE)) {
            let resolved: Vec<Resolved> =
                funcs.par_iter().zip(&*drafts).map(|(&f, draft)| self.resolve_func(program, f, draft)).collect();
            drafts.par_iter_mut().for_each(|draft| drop(std::mem::take(draft)));
            for (&func, resolved) in funcs.iter().zip(&resolved) {
                place_resolved(program, func, resolved);
            }
        }
        let tail_called: Vec<Block> = program
            .blocks
            .as_slice()
            .par_iter()
            .filter_map(|b| match b.terminator {
                Terminator::Jump { target: CodeTarget::Block(t) } => Some((b.func, t)),
                Terminator::Branch { taken: CodeTarget::Block(t), .. } => Some((b.func, t)),
                _ => None,
            })
            .filter(|&(func, target)| program.blocks[target].func != func)
            .map(|(_, target)| target)
            .collect();
        for block in tail_called {
            program.blocks[block].flags |= BlockFlags::ENTRY;
        }
    }

    fn resolve_func(&self, program: &Program, func: Func, draft: &Draft) -> Resolved {
        let data = &program.funcs[func];
        let labels: Vec<Block> = data
            .blocks
            .iter()
            .filter(|&b| b != data.entry && program.blocks[b].flags.contains(BlockFlags::ADDRESS_TAKEN))
            .collect();
        let mut resolved = Resolved {
            blocks: Vec::with_capacity(draft.blocks.len()),
            edges: Vec::with_capacity(2 * draft.blocks.len()),
            refs: Vec::with_capacity(draft.refs.len()),
        };
        for (id, block) in data.blocks.iter().zip(&draft.blocks) {
            let terminator = self.terminator(program, block);
            self.push_edges(program, id, terminator, &labels, &mut resolved.edges);
            let refs = draft.refs[block.refs.start as usize..block.refs.end as usize].iter();
            resolved.refs.extend(refs.map(|r| self.reference(program, r)));
            resolved.blocks.push((terminator, resolved.edges.len(), resolved.refs.len()));
        }
        resolved
    }

    fn terminator(&self, program: &Program, block: &DraftBlock) -> Terminator {
        let code = |va: Va| program.block_at(va).map_or(CodeTarget::Fixed(va), CodeTarget::Block);
        let terminator = match block.end {
            DraftEnd::Fallthrough(next) => program.block_at(next).map(|next| Terminator::Fallthrough { next }),
            DraftEnd::Jump(target) => Some(Terminator::Jump { target: code(target) }),
            DraftEnd::Branch(condition, taken, next) => {
                program.block_at(next).map(|next| Terminator::Branch { condition, taken: code(taken), next })
            }
            DraftEnd::Loop(taken, next) => {
                program.block_at(taken).zip(program.block_at(next)).map(|(taken, next)| Terminator::Loop { taken, next })
            }
            DraftEnd::Table(at) => self.table_id(at).map(|table| Terminator::Stop(StopKind::TableJump(table))),
            DraftEnd::Stop(kind) => Some(Terminator::Stop(kind)),
        };
        // Only in pinned functions: a branch into the middle of an instruction.
        terminator.unwrap_or(Terminator::Stop(StopKind::Unknown))
    }

    fn push_edges(&self, program: &Program, source: Block, terminator: Terminator, labels: &[Block], edges: &mut Vec<EdgeData>) {
        let func = program.blocks[source].func;
        let mut push = |target: Block, kind: EdgeKind| {
            if program.blocks[target].func == func {
                edges.push(EdgeData { source, target, kind });
            }
        };
        match terminator {
            Terminator::Fallthrough { next } => push(next, EdgeKind::Fallthrough),
            Terminator::Jump { target: CodeTarget::Block(target) } => push(target, EdgeKind::Taken),
            Terminator::Branch { taken, next, .. } => {
                push(next, EdgeKind::Fallthrough);
                if let CodeTarget::Block(taken) = taken {
                    push(taken, EdgeKind::Taken);
                }
            }
            Terminator::Loop { taken, next } => {
                push(next, EdgeKind::Fallthrough);
                push(taken, EdgeKind::Taken);
            }
            Terminator::Stop(StopKind::TableJump(table)) => {
                let mut targets = program.targets_of(table).to_vec();
                targets.sort();
                targets.dedup();
                targets.into_iter().for_each(|target| push(target, EdgeKind::Table));
            }
            Terminator::Stop(StopKind::ComputedJump) => labels.iter().for_each(|&target| push(target, EdgeKind::Computed)),
            _ => {}
        }
    }

    fn table_id(&self, at: Va) -> Option<Table> {
        self.tables.binary_search_by_key(&at, |t| t.at).ok().map(Table::new)
    }

    fn reference(&self, program: &Program, draft: &DraftRef) -> RefData {
        let table = self.table_names.binary_search(&(draft.at, draft.target)).ok().and_then(|_| self.table_id(draft.target));
        let target = match (table, program.block_at(draft.target)) {
            (Some(table), _) => RefTarget::Table(table),
            (None, Some(block)) => RefTarget::Block(block),
            (None, None) if self.names_in_unwind.registered_at(draft.at) == Some(draft.target) => {
                RefTarget::UnwindTable(draft.target)
            }
            (None, None) => RefTarget::Fixed(draft.target),
        };
        RefData {
            offset: draft.offset,
            to_end: draft.to_end,
            kind: draft.kind,
            role: draft.role,
            evidence: draft.evidence,
            target,
        }
    }
}

/// A function with ids in place of addresses.
struct Resolved {
    /// Of each block, its terminator and where its edges and references end.
    blocks: Vec<(Terminator, usize, usize)>,
    edges: Vec<EdgeData>,
    refs: Vec<RefData>,
}

fn place_resolved(program: &mut Program, func: Func, resolved: &Resolved) {
    let (base_edge, base_ref) = (program.edges.len(), program.refs.len());
    let (mut first_edge, mut first_ref) = (base_edge, base_ref);
    program.edges.extend_from_slice(&resolved.edges);
    program.refs.extend_from_slice(&resolved.refs);
    for (block, &(terminator, edges_end, refs_end)) in program.funcs[func].blocks.iter().zip(&resolved.blocks) {
        let data = &mut program.blocks[block];
        data.terminator = terminator;
        if matches!(terminator, Terminator::Stop(_)) {
            // A branch that could not be resolved is not made anew: it stays with the body.
            data.body_len = data.len;
        }
        data.edges = IdRange::from_usize(first_edge..base_edge + edges_end);
        data.refs = IdRange::from_usize(first_ref..base_ref + refs_end);
        (first_edge, first_ref) = (base_edge + edges_end, base_ref + refs_end);
    }
}

/// Numbers the ways in which ranges unwind: by the content of their CIE and by their exception table.
#[derive(Default)]
struct UnwindClasses {
    classes: FxHashMap<(Option<u32>, Option<u32>), u32>,
    /// The first CIE with the same content, by CIE.
    canonical: Vec<u32>,
}

impl UnwindClasses {
    fn class_of(&mut self, unwind: &Unwind, bounds: Bounds) -> u32 {
        if self.canonical.is_empty() {
            let first = |cie| unwind.cies.iter().position(|c| c == cie).unwrap_or(0) as u32;
            self.canonical = unwind.cies.iter().map(first).collect();
        }
        let key = match bounds {
            Bounds::Unwind(fde) => {
                let data = &unwind.fdes[fde];
                (self.canonical.get(data.cie as usize).copied(), data.lsda)
            }
            _ => (None, None),
        };
        let next = self.classes.len() as u32;
        *self.classes.entry(key).or_insert(next)
    }
}

/// A branch back, by address, marks the header of a loop.
fn mark_loops(program: &mut Program) {
    let headers: Vec<Block> = program
        .edges
        .par_iter()
        .filter(|e| program.blocks[e.target].start <= program.blocks[e.source].start)
        .map(|e| e.target)
        .collect();
    for header in headers {
        program.blocks[header].flags |= BlockFlags::LOOP_HEADER;
    }
}
