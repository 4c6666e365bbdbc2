//! What becomes of a procedure in a case, by blocks and offsets: what who copies it needs to know.
//!
//! **What can be copied** as a function of its own: code that is understood, that no exception lands in, that no pointer leads into but at its entry, and of which every indirect jump is decided, since a
//! jump table leads into the procedure itself and not into a copy.

use lifter::Va;
use lifter::entity::Block;
use lifter::ir::{CodeTarget, RefRole, RefTarget, StopKind, Terminator};

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
    /// The copy for a case, or, where nothing is simplified, of all the procedure. `None` if it can't be copied.
    pub fn of(around: &Surroundings<'_>, procedure: Procedure, simplified: Option<&Simplified>) -> Option<Self> {
        let prepared = Prepared::new(around, procedure);
        let code = &prepared.code;
        if code.is_opaque || code.blocks.iter().any(|b| b.is_arrival || b.is_landing_pad) {
            return None;
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
            outcome.take(around, &prepared, number, fate)?;
        }
        outcome.removed.sort_unstable();
        outcome.decided.sort_unstable_by_key(|d| d.0);
        outcome.blocks.iter().all(|&block| outcome.can_be_copied(around, block)).then_some(outcome)
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

    fn can_be_copied(&self, around: &Surroundings<'_>, block: Block) -> bool {
        let program = around.program;
        let data = &program.blocks[block];
        let is_decided = self.decided.binary_search_by_key(&block, |d| d.0).is_ok();
        let is_open =
            matches!(data.terminator, Terminator::Stop(StopKind::TableJump(_) | StopKind::ComputedJump | StopKind::Unknown));
        let fde = program.ranges[data.range as usize].fde.map(|fde| &program.unwind.fdes[fde]);
        let has_table = fde.is_none_or(|fde| fde.lsda.is_some() || fde.opaque_lsda.is_some());
        // The address of a place inside, entry aside, is the original's.
        let names_itself = program.block_refs(block).iter().any(|r| match r.target {
            RefTarget::Block(target) => r.role != RefRole::Call && program.func_of(target) == data.func,
            RefTarget::Fixed(_) | RefTarget::Table(_) => false,
        });
        !(is_open && !is_decided || has_table || names_itself)
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
