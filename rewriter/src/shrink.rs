//! Smaller files: what each technique frees, and how the bytes leave the file.
//!
//! **Method.** Techniques free *address space*: [`dead`] leaves out functions, [`crate::layout::packed`] padding, [`tables`] packs what
//! the dynamic loader reads. None of them moves data. [`pack`] then chooses new file offsets, so that pages of which nothing is left are
//! not in the file any more ([`cuts`] splits segments for that), and puts what no loader reads into the holes that are left. A separate debug file follows at the
//! end (`relink::settle`), by the link that [`debug_link`] keeps in the program.

mod below;
pub mod cuts;
pub mod dead;
pub mod debug_link;
mod dynamic;
mod evict;
pub mod forms;
pub mod home;
pub mod outline;
pub mod own_loader;
pub mod pack;
mod relr;
pub mod remains;
mod section_table;
pub mod spread;
pub mod subroutines;
pub mod tables;
pub mod unloaded;
mod unwind_shift;
mod versions;

pub use below::unfit_stand_ins;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::{BlockFlags, Program};

use crate::plan::LayoutPlan;

/// The blocks in which instructions may change, by function: those that the plan has, in their own place, to which something leads, and which nobody knows by what they do.
fn changeable(program: &Program, plan: &LayoutPlan, is_open: &SecondaryMap<Block, bool>) -> Vec<(Func, Block)> {
    let may_change =
        |block: Block| is_open[block] && !program.blocks[block].flags.intersects(BlockFlags::KNOWN_BY_FAULT | BlockFlags::THUNK);
    let placed = plan.fragments.iter().flat_map(|fragment| fragment.blocks.iter().map(|planned| (fragment.func, planned)));
    let chosen = placed.filter(|(_, planned)| planned.copy.is_none() && may_change(planned.block));
    let mut blocks: Vec<(Func, Block)> = chosen.map(|(func, planned)| (func, planned.block)).collect();
    blocks.sort_unstable();
    blocks
}
