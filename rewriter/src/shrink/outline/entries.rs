//! Functions before whose first instruction something may stand that runs into it.
//!
//! **Conditions.** The function is entered at the start of a fragment, of which nothing else is aligned: so nothing else runs into it, and what stands before lies at it. Its frame description says there what it says of
//! every entry, and names no handlers: so it says the right thing of what stands before too, which becomes a part of it. Its first instruction is no jump, with which what stands before would look like a body.

use lifter::Image;
use lifter::entity::Block;
use lifter::ir::{Program, RefTarget};
use rustc_hash::FxHashMap;

use crate::plan::{FragmentPlan, LayoutPlan};
use crate::transform::entry_row::has_entry_row;
use crate::transform::plt_calls::slot_of_stub;

/// Bytes that a function's first block has at least: more than the mark that may go from it, so that something is left.
const FIRST_BLOCK_MIN: u32 = 5;

/// Such functions, by number in the order of their fragments.
pub(in crate::shrink) struct Entries<'a> {
    program: &'a Program,
    plan: &'a LayoutPlan,
    numbers: FxHashMap<Block, u32>,
    pub(in crate::shrink) blocks: Vec<Block>,
}

impl<'a> Entries<'a> {
    pub(in crate::shrink) fn of(image: &Image<'_>, program: &'a Program, plan: &'a LayoutPlan) -> Self {
        let entry = |fragment: &FragmentPlan| {
            let (first, others) = fragment.blocks.split_first()?;
            let is_bare = fragment.clone.is_none() && first.copy.is_none() && others.iter().all(|other| other.align == 1);
            (is_bare && may_have_lead(image, program, first.block)).then_some(first.block)
        };
        let blocks: Vec<Block> = plan.fragments.iter().filter_map(entry).collect();
        Self { program, plan, numbers: blocks.iter().copied().zip(0..).collect(), blocks }
    }

    /// The number of the function that a call enters, or of the one that stands for it.
    pub(super) fn number_of(&self, target: RefTarget) -> Option<u32> {
        let RefTarget::Block(callee) = target else { return None };
        let stand_in = self.plan.folded_blocks.stand_in(self.plan.folded.stand_in(self.program, callee));
        self.numbers.get(&stand_in).copied()
    }
}

fn may_have_lead(image: &Image<'_>, program: &Program, block: Block) -> bool {
    let data = &program.blocks[block];
    let Some(fde) = program.ranges[data.range as usize].fde else { return false };
    let described = &program.unwind.fdes[fde];
    let has_handlers = described.lsda.is_some() || program.unwind.cies[described.cie as usize].personality.is_some();
    let is_start = described.start == data.start && program.funcs[data.func].entry == block;
    let is_jump = data.body_len < FIRST_BLOCK_MIN || slot_of_stub(image, data.start).is_some();
    is_start && !has_handlers && !is_jump && has_entry_row(program, block, data.start + 1)
}
