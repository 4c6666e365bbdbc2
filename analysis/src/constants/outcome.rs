//! What becomes of a procedure in a case, by blocks and offsets: what who copies it needs to know.
//!
//! **What can be copied** as a function of its own: code that is understood, that no pointer leads into but at its entry, whose indirect jumps are decided or go through tables that can be
//! copied too, and which has all places where exceptions of its calls land.

use lifter::Va;
use lifter::entity::{Block, Table};
use lifter::ir::{CodeTarget, RefData, RefRole, RefTarget, StopKind, TableBase, Terminator};

use super::known::Constant;
use super::prepared::Prepared;
use super::simplify::{Fate, Simplified};
use crate::graph::Site;
use crate::procedures::Procedure;
use crate::values::Surroundings;
use crate::values::code::Register;

/// An instruction of a block.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub block: Block,
    pub offset: u32,
    pub len: u32,
}

/// Why a procedure can't be copied.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Uncopied {
    NotUnderstood,
    LandingPads,
    /// An indirect jump inside, which nothing decides.
    JumpTable,
    /// It takes the address of a place inside.
    NamesItself,
    Stays,
    /// A handler of faults may know its first instruction by its place.
    KnownByFault,
    /// A constant is an address of code of which it is not known what it names.
    CodeAddress,
}

/// What a copy of a procedure is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Blocks that the copy has; ascending.
    pub blocks: Vec<Block>,
    /// Instructions that are gone; ascending. Of decided blocks only those that are no terminator made anew.
    pub removed: Vec<Place>,
    pub constants: Vec<(Place, Register, Constant)>,
    /// Blocks that go one way; ascending.
    pub decided: Vec<(Block, CodeTarget)>,
}

impl Outcome {
    /// The copy for a case, or, where nothing is simplified, of all the procedure.
    pub fn of(around: &Surroundings<'_>, procedure: Procedure, simplified: Option<&Simplified>) -> Result<Self, Uncopied> {
        let prepared = Prepared::new(around, procedure);
        let code = &prepared.code;
        if code.is_opaque || code.blocks.iter().any(|b| b.is_arrival) {
            return Err(Uncopied::NotUnderstood);
        }
        if code.has_unknown_landings {
            return Err(Uncopied::LandingPads);
        }
        let mut outcome = Outcome {
            blocks: match simplified {
                Some(simplified) => simplified.reached.iter().map(|&b| code.blocks[b as usize].block).collect(),
                None => code.blocks.iter().map(|b| b.block).collect(),
            },
            ..Outcome::default()
        };
        outcome.blocks.sort_unstable();
        for &(number, fate) in simplified.map_or(&[][..], |s| &s.fates) {
            outcome.take(around, &prepared, number, fate).ok_or(Uncopied::NotUnderstood)?;
        }
        outcome.removed.sort_unstable();
        outcome.decided.sort_unstable_by_key(|d| d.0);
        outcome.blocks.iter().try_for_each(|&block| outcome.check_block(around, block))?;
        Ok(outcome)
    }

    fn take(&mut self, around: &Surroundings<'_>, prepared: &Prepared, number: u32, fate: Fate) -> Option<()> {
        let index = prepared.code.blocks.partition_point(|b| b.instructions.1 <= number);
        let block = prepared.code.blocks.get(index)?.block;
        let data = &around.program.blocks[block];
        let instruction = &prepared.instructions[number as usize];
        let offset = (instruction.ip() - data.start.0) as u32;
        let place = Place { block, offset, len: instruction.len() as u32 };
        match fate {
            Fate::Removed => self.removed.push(place),
            Fate::Becomes(register, constant) => self.constants.push((place, register, constant)),
            Fate::Decided(target) => {
                let is_inside = |block: Block| prepared.code.blocks.iter().any(|b| b.block == block);
                let leaves = |target: &CodeTarget| match *target {
                    CodeTarget::Block(block) => !is_inside(block),
                    CodeTarget::Fixed(_) => true,
                };
                let target = match (target, data.terminator) {
                    (Some(to), _) => CodeTarget::Block(prepared.code.blocks[to as usize].block),
                    (None, Terminator::Branch { taken, next, .. }) => {
                        [taken, CodeTarget::Block(next)].into_iter().find(leaves)?
                    }
                    _ => return None,
                };
                self.decided.push((block, target));
                if offset < data.body_len {
                    self.removed.push(place);
                }
            }
        }
        Some(())
    }

    fn check_block(&self, around: &Surroundings<'_>, block: Block) -> Result<(), Uncopied> {
        let program = around.program;
        let data = &program.blocks[block];
        let is_decided = self.decided.binary_search_by_key(&block, |d| d.0).is_ok();
        let is_open = match data.terminator {
            Terminator::Stop(StopKind::TableJump(table)) => !can_have_copy(around, table),
            Terminator::Stop(StopKind::ComputedJump | StopKind::Unknown) => true,
            _ => false,
        };
        let names_other_table = |r: &RefData| matches!(r.target, RefTarget::Table(table) if !can_have_copy(around, table));
        let is_open = is_open || program.block_refs(block).iter().any(names_other_table);
        let fde = program.ranges[data.range as usize].fde.map(|fde| &program.unwind.fdes[fde]);
        let Some(fde) = fde.filter(|fde| fde.opaque_lsda.is_none()) else { return Err(Uncopied::NotUnderstood) };
        // What an exception finds registers hold is the copy's affair: it must land in the copy.
        let table = fde.lsda.and_then(|lsda| program.unwind.lsdas.get(lsda as usize));
        let sites = table.map_or(&[][..], |table| &table.call_sites);
        let first = sites.partition_point(|site| site.end <= data.start);
        let within = sites[first..].iter().take_while(|site| site.start < data.end());
        let is_here = |pad: Va| program.block_at(pad).is_some_and(|pad| self.blocks.binary_search(&pad).is_ok());
        let lands_elsewhere = within.filter_map(|site| site.landing_pad).any(|pad| !is_here(pad));
        // The address of a place inside, entry aside, is the original's.
        let names_itself = program.block_refs(block).iter().any(|r| match r.target {
            RefTarget::Block(target) => r.role != RefRole::Call && program.func_of(target) == data.func,
            RefTarget::Fixed(_) | RefTarget::Table(_) | RefTarget::UnwindTable(_) => false,
        });
        match () {
            () if is_open && !is_decided => Err(Uncopied::JumpTable),
            () if lands_elsewhere => Err(Uncopied::LandingPads),
            () if names_itself => Err(Uncopied::NamesItself),
            () => Ok(()),
        }
    }
}

/// Whether a copy of a jump table can lead into a copy of the code: what its entries count from must not be the code itself, nor may a loader fill them in or the program write them.
fn can_have_copy(around: &Surroundings<'_>, table: Table) -> bool {
    let Surroundings { image, program, .. } = around;
    let data = &program.tables[table];
    match data.base {
        TableBase::Own | TableBase::Fixed(_) => true,
        TableBase::Absolute => !image.kind.is_position_independent() && image.never_changes(data.at, data.byte_len()),
        TableBase::Code(_) => false,
    }
}

/// Where a site's call, or the jump in its place, is; `None` for a way that is neither a plain call nor a plain jump.
pub fn place_of(around: &Surroundings<'_>, site: &Site) -> Option<Place> {
    let program = around.program;
    let data = &program.blocks[site.block];
    let entry = around.procedures.all[site.callee].entry;
    if site.is_tail {
        let is_jump = data.terminator == Terminator::Jump { target: CodeTarget::Block(entry) };
        return is_jump.then_some(Place { block: site.block, offset: data.body_len, len: data.len - data.body_len });
    }
    let offset = (site.at.0.checked_sub(data.start.0)? as u32).checked_sub(5)?;
    let is_call = around.image.read(Va(site.at.0 - 5), 1)? == [0xe8];
    let has_field = program.block_refs(site.block).iter().any(|r| r.offset == offset + 1 && r.role == RefRole::Call);
    (is_call && has_field && offset + 5 <= data.body_len).then_some(Place { block: site.block, offset, len: 5 })
}
