//! The invariants of the program, checked: what lifting promises and the phases after it rely on.

use std::fmt;

use iced_x86::{Decoder, DecoderOptions, Mnemonic};

use crate::address::Va;
use crate::elf::Image;
use crate::entity::{Block, EntityId, Func, Table};
use crate::ir::*;
use crate::x86::is_nop;

/// A broken invariant, with where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub at: Va,
    pub func: Option<Func>,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        if let Some(func) = self.func {
            write!(f, " in {func}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// All violations, ascending by address within each kind.
pub fn verify(image: &Image<'_>, program: &Program) -> Vec<Violation> {
    let mut verifier = Verifier { image, program, violations: Vec::new() };
    for (func, data) in program.funcs.iter() {
        verifier.check_func(func, data);
    }
    for (block, data) in program.blocks.iter() {
        verifier.check_block(block, data);
    }
    verifier.check_index();
    verifier.check_tables();
    verifier.check_slots();
    verifier.violations
}

/// The length of the no-op or breakpoint at the front, if there is one.
fn filler_len(bytes: &[u8]) -> Option<usize> {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    (is_nop(&instruction) || instruction.mnemonic() == Mnemonic::Int3).then(|| instruction.len())
}

struct Verifier<'p> {
    image: &'p Image<'p>,
    program: &'p Program,
    violations: Vec<Violation>,
}

impl Verifier<'_> {
    fn report(&mut self, at: Va, func: Option<Func>, what: impl Into<String>) {
        self.violations.push(Violation { at, func, what: what.into() });
    }

    fn check_func(&mut self, func: Func, data: &FuncData) {
        let program = self.program;
        let at = program.blocks.get(data.entry).map_or(Va(0), |b| b.start);
        if data.blocks.is_empty() || !data.blocks.contains(data.entry) {
            return self.report(at, Some(func), "the entry is not among the function's blocks");
        }
        let blocks = program.blocks.range(data.blocks);
        for pair in blocks.windows(2) {
            if pair[0].end() > pair[1].start || pair[0].start >= pair[1].start {
                self.report(pair[1].start, Some(func), "blocks overlap or are not ascending");
            }
        }
        for range in program.func_ranges(func) {
            if range.func != func || range.start >= range.end {
                self.report(range.start, Some(func), "a range is empty or claims another function");
            }
            self.check_cover(func, data, *range);
        }
        let is_primary_inside = data.ranges.as_usize().contains(&(data.primary_range as usize));
        if !is_primary_inside {
            self.report(at, Some(func), "the primary range is not the function's");
        }
    }

    /// Between the blocks of a range lies padding only.
    fn check_cover(&mut self, func: Func, data: &FuncData, range: CodeRange) {
        let blocks = self.program.blocks.range(data.blocks);
        let first = blocks.partition_point(|b| b.start < range.start);
        let mut at = range.start;
        for block in blocks[first..].iter().take_while(|b| b.start < range.end) {
            if block.end() > range.end {
                self.report(block.start, Some(func), "a block reaches out of its range");
            }
            self.check_padding(func, at, block.start);
            at = block.end();
        }
        self.check_padding(func, at, range.end);
    }

    fn check_padding(&mut self, func: Func, start: Va, end: Va) {
        if start >= end {
            return;
        }
        let bytes = self.image.read(start, (end - start) as usize).unwrap_or(&[]);
        let mut rest = bytes;
        while let Some(len) = filler_len(rest) {
            rest = &rest[len..];
        }
        if !rest.is_empty() || bytes.is_empty() {
            self.report(start, Some(func), format!("bytes up to {end} belong to no block and are not padding"));
        }
    }

    fn check_block(&mut self, block: Block, data: &BlockData) {
        let program = self.program;
        let func = Some(data.func);
        let is_pinned = program.funcs.get(data.func).is_none_or(|f| f.pin.is_some());
        if data.body_len > data.len || data.len == 0 {
            self.report(data.start, func, "a block is empty or shorter than its body");
        }
        let range = program.ranges.get(data.range as usize);
        if !range.is_some_and(|r| r.func == data.func && r.start <= data.start && data.end() <= r.end) {
            self.report(data.start, func, "a block does not lie in its range");
        }
        if data.terminator == Terminator::Stop(StopKind::Unknown) && !is_pinned {
            self.report(data.start, func, "a block of a movable function is not understood");
        }
        let is_made_anew =
            matches!(data.terminator, Terminator::Jump { .. } | Terminator::Branch { .. } | Terminator::Loop { .. });
        if is_made_anew != (data.body_len < data.len) {
            self.report(data.start, func, "the body must leave out exactly the branch that is made anew");
        }
        if let Terminator::Jump { target: CodeTarget::Fixed(va) } | Terminator::Branch { taken: CodeTarget::Fixed(va), .. } =
            data.terminator
        {
            self.check_fixed(data, va);
        }
        self.check_refs(block, data);
        self.check_edges(block, data);
    }

    fn check_refs(&mut self, block: Block, data: &BlockData) {
        let mut end = 0;
        for reference in self.program.block_refs(block) {
            let width = if reference.kind == RefKind::Abs64 { 8 } else { 4 };
            if reference.offset < end || reference.offset + width > data.body_len || u32::from(reference.to_end) < width {
                self.report(data.start, Some(data.func), format!("a reference at {} does not fit the body", reference.offset));
            }
            end = reference.offset + width;
            if let RefTarget::Fixed(va) = reference.target {
                self.check_fixed(data, va);
            }
        }
    }

    /// A fixed address is outside everything that can move.
    fn check_fixed(&mut self, data: &BlockData, va: Va) {
        let Some(target) = self.program.block_containing(va) else { return };
        let target = self.program.blocks[target].func;
        if self.program.funcs[target].is_movable() {
            self.report(data.start, Some(data.func), format!("{va} is taken for fixed but lies in {target}, which may move"));
        }
    }

    fn check_edges(&mut self, block: Block, data: &BlockData) {
        let mut last = EdgeKind::Fallthrough as u8;
        for edge in self.program.block_edges(block) {
            let is_ordered = edge.kind as u8 >= last;
            last = edge.kind as u8;
            let is_inside = self.program.blocks.get(edge.target).is_some_and(|t| t.func == data.func);
            if edge.source != block || !is_inside || !is_ordered {
                self.report(data.start, Some(data.func), "an edge leaves the function or is out of order");
            }
        }
        let next = match data.terminator {
            Terminator::Fallthrough { next } | Terminator::Branch { next, .. } | Terminator::Loop { next, .. } => next,
            _ => return,
        };
        if self.program.blocks.get(next).is_none_or(|n| n.func != data.func) {
            self.report(data.start, Some(data.func), "a block falls out of its function");
        }
    }

    fn check_index(&mut self) {
        let program = self.program;
        let is_complete = program.blocks_by_address.len() == program.blocks.len();
        let starts = program.blocks_by_address.windows(2).map(|w| (&program.blocks[w[0]], &program.blocks[w[1]]));
        let broken: Vec<Va> = starts.filter(|(a, b)| a.end() > b.start || a.start >= b.start).map(|(_, b)| b.start).collect();
        for at in broken {
            self.report(at, None, "blocks of two functions overlap, or the index is out of order");
        }
        if !is_complete {
            self.report(Va(0), None, "the index does not name every block");
        }
    }

    fn is_table_of_movable(&self, table: Table) -> bool {
        let jumps = |data: &BlockData| data.terminator == Terminator::Stop(StopKind::TableJump(table));
        self.program.blocks.values().any(|data| jumps(data) && self.program.funcs[data.func].is_movable())
    }

    fn check_tables(&mut self) {
        for (table, data) in self.program.tables.iter() {
            let targets = self.program.targets_of(table);
            // Of a table that leads to something else than blocks nothing is known; then what jumps through it stays.
            if targets.is_empty() && self.is_table_of_movable(table) {
                self.report(data.at, None, format!("{table} has no targets"));
            }
            for (index, &target) in targets.iter().enumerate() {
                let word = data.at + index as u64 * u64::from(data.entry_size);
                let flags = self.program.blocks[target].flags;
                if !flags.contains(BlockFlags::TABLE_TARGET) {
                    self.report(word, None, format!("{table} names {target}, which is not marked so"));
                }
            }
        }
    }

    fn check_slots(&mut self) {
        for pair in self.program.slots.windows(2) {
            if pair[0].at >= pair[1].at {
                self.report(pair[1].at, None, "slots are not ascending");
            }
        }
        for slot in &self.program.slots {
            let is_taken = self.program.blocks.get(slot.target).is_some_and(|b| b.flags.contains(BlockFlags::ADDRESS_TAKEN));
            if !is_taken {
                self.report(slot.at, None, format!("a slot names {}, whose address is not marked as taken", slot.target));
            }
        }
        let ids = self.program.funcs.len();
        if let Some(range) = self.program.ranges.iter().find(|r| r.func.index() >= ids) {
            self.report(range.start, None, "a range names a function that is not there");
        }
    }
}
