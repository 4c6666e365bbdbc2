//! The one answer to "where is it now": output addresses of blocks, tables and targets.

use std::collections::BTreeMap;

use lifter::address::Va;
use lifter::entity::{Block, EntityId, SecondaryMap, Table};
use lifter::ir::{BlockFlags, CodeTarget, Program, RefRole, RefTarget};

use rustc_hash::FxHashMap;

use crate::clones::CloneId;
use crate::encode::{FixupTarget, Shapes};
use crate::materialize::{Out, OutProgram, OutTarget};
use crate::relink::place::{Placement, TablePlace};

/// Output addresses, all final.
#[derive(Debug)]
pub struct Addresses<'a> {
    program: &'a Program,
    edited: &'a OutProgram<'a>,
    placed: &'a SecondaryMap<Block, Option<Out>>,
    in_clones: &'a FxHashMap<(CloneId, Block), Out>,
    /// By `Out`.
    out: Vec<Va>,
    tables: Vec<Va>,
    clone_tables: BTreeMap<(CloneId, Table), Va>,
    /// What start-up code registers.
    unwind_table: Va,
}

impl<'a> Addresses<'a> {
    pub(crate) fn new(program: &'a Program, out: &'a OutProgram<'a>, shapes: &Shapes, placement: &Placement) -> Self {
        let mut vas = Vec::with_capacity(out.origins.len());
        for (code, &at) in shapes.iter().zip(&placement.fragments) {
            vas.extend(code.offsets.iter().map(|&offset| at + u64::from(offset)));
        }
        let tables = program
            .tables
            .iter()
            .map(|(table, data)| match placement.tables[table] {
                TablePlace::CopiedTo(va) => va,
                TablePlace::Untouched | TablePlace::InPlace => data.at,
            })
            .collect();
        Addresses {
            program,
            edited: out,
            placed: &out.placed,
            in_clones: &out.in_clones,
            out: vas,
            tables,
            clone_tables: placement.clone_tables.clone(),
            unwind_table: program.registered_table.unwrap_or(Va(0)),
        }
    }

    /// Once the unwind table has its place, if it is not at the one that is registered in the input.
    pub(crate) fn move_unwind_table(&mut self, to: Va) {
        self.unwind_table = to;
    }
    pub fn out(&self, out: Out) -> Va {
        self.out[out.index()]
    }
    /// Where a block runs now: its new place, or its old one if it has no other.
    pub fn block(&self, block: Block) -> Va {
        self.moved(block).unwrap_or(self.program.blocks[block].start)
    }
    /// Where a block of a clone runs; those that it does not have are the function's own.
    pub(crate) fn block_in(&self, clone: Option<CloneId>, block: Block) -> Va {
        let own = clone.and_then(|clone| self.in_clones.get(&(clone, block)));
        own.map_or_else(|| self.block(block), |&out| self.out(out))
    }
    /// The new place of a block that moved.
    pub fn moved(&self, block: Block) -> Option<Va> {
        self.placed[block].map(|out| self.out(out))
    }
    /// The address by which the block is known to pointers: an anchor's stays the old one.
    pub fn identity(&self, block: Block) -> Va {
        let data = &self.program.blocks[block];
        if data.flags.contains(BlockFlags::ANCHOR) { data.start } else { self.block(block) }
    }
    pub(crate) fn table(&self, table: Table) -> Va {
        self.tables[table.index()]
    }
    pub(crate) fn target(&self, target: OutTarget) -> Va {
        match target {
            OutTarget::Placed(out) => self.out(out),
            OutTarget::Fixed(va) => va,
        }
    }
    pub(crate) fn fixup(&self, target: FixupTarget) -> Va {
        match target {
            FixupTarget::Code(target) => self.target(target),
            FixupTarget::Within(block, offset) => self.out(block) + u64::from(offset),
            FixupTarget::Before(target, bytes) => Va(self.target(target).0.wrapping_sub(bytes.into())),
            FixupTarget::Table(table) => self.table(table),
            FixupTarget::UnwindTable => self.unwind_table,
            FixupTarget::TableOf(clone, table) => {
                self.clone_tables.get(&(clone, table)).copied().unwrap_or_else(|| self.table(table))
            }
        }
    }
    pub(crate) fn code(&self, target: CodeTarget) -> Va {
        match target {
            CodeTarget::Block(block) => self.block(block),
            CodeTarget::Fixed(va) => va,
        }
    }
    pub(crate) fn reference(&self, target: RefTarget, role: RefRole) -> Va {
        match target {
            RefTarget::Block(block) if matches!(role, RefRole::Call | RefRole::Branch) => self.block(block),
            RefTarget::Block(block) => self.identity(block),
            RefTarget::Fixed(va) => va,
            RefTarget::Table(table) => self.table(table),
            RefTarget::UnwindTable(_) => self.unwind_table,
        }
    }
    /// The new place of an address inside code: of a block's start or of an instruction in its body. `None` where nothing moved.
    pub fn translate(&self, va: Va) -> Option<Va> {
        let block = self.program.block_containing(va)?;
        let start = self.moved(block)?;
        let offset = (va - self.program.blocks[block].start) as u32;
        let edits = self.placed[block].map_or(&[][..], |out| self.edited.edits_of(out));
        let before = edits.iter().take_while(|edit| edit.offset + edit.replaced <= offset && edit.offset < offset);
        let changed: i64 = before.map(|edit| i64::from(edit.len) - i64::from(edit.replaced)).sum();
        Some(Va((start + u64::from(offset)).0.wrapping_add_signed(changed)))
    }
}
