//! What is to be done, as data: which blocks go where, and what is inserted. A plan can be printed, halved and replayed; nothing in
//! it has an address of the output.

use std::num::NonZeroU64;

use lifter::address::Va;
use lifter::entity::{Block, Func, SecondaryMap};
use lifter::ir::Program;

use crate::clones::CloneId;
use crate::fold::Folding;
use crate::fold::blocks::BlockFolding;
use crate::fold::shares::Shares;

/// How often a fragment runs, which decides where it goes and how it is aligned.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Temperature {
    Hot,
    /// No profile says anything of it.
    Unknown,
    /// The profile says that it does not run.
    Cold,
}

/// How often something happens. There are as many as blocks, so none of it takes no room.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Times(NonZeroU64);

impl Times {
    pub fn new(count: u64) -> Self {
        Times(NonZeroU64::MIN.saturating_add(count))
    }
    pub fn count(self) -> u64 {
        self.0.get() - 1
    }
}

/// A block with the alignment of its first byte in the output.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PlannedBlock {
    pub block: Block,
    /// A power of two, 1 for none. Never above the fragment's.
    pub align: u8,
    /// `None` for the block itself; for a copy that only the block before it runs into, how often that happens.
    pub copy: Option<Times>,
}

/// A contiguous piece of output code: blocks of one function, all of the same unwind class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentPlan {
    pub func: Func,
    pub temperature: Temperature,
    /// A power of two.
    pub align: u8,
    /// In output order, never empty.
    pub blocks: Vec<PlannedBlock>,
    /// The clone that all of it belongs to; `None` for the functions themselves.
    pub clone: Option<CloneId>,
}

/// Whether a program may spend its time on exceptions, which take longer where functions share unwind entries and exception tables.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Throws {
    /// What shares entries is known not to run, or the time does not matter.
    #[default]
    Seldom,
    Unknown,
    /// They must not take longer.
    Dear,
}

/// From where unwinders may be asked for the callers of code.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Unwinds {
    /// From any instruction: that is what profilers and debuggers do.
    #[default]
    Anywhere,
    /// From where code calls, jumps, touches memory or traps.
    FromStops,
}

/// Where what the code leaves free of the old text lies.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Filling {
    /// Behind the code.
    #[default]
    FromStart,
    /// Before it, where something stays behind it and a segment starts there: no header more is needed to leave it out.
    FromEnd,
    /// In the largest rooms between what is pinned: one header more for each leaves it out.
    AroundHoles,
}

/// The order of everything that moves. Each block of each function that moves occurs exactly once, copies and what is folded aside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayoutPlan {
    /// In output order.
    pub fragments: Vec<FragmentPlan>,
    /// Movable functions that the output does not have, ascending: nothing that it has may name them.
    pub dropped: Vec<Func>,
    /// Movable functions whose blocks are where those of another one are, which the output has.
    pub folded: Folding,
    /// Blocks of other functions that are where another block is, which the output has.
    pub folded_blocks: BlockFolding,
    pub filling: Filling,
    /// Where the code that ran begins, in a file of which most stays; what else moves goes wherever it fits then.
    pub hot_from: Option<Va>,
    /// Whether neighbors that stay where they are share unwind entries.
    pub joins_kept_entries: bool,
    /// Whether what shares an entry may be thrown through.
    pub throws: Throws,
    /// Where unwind rows are right, if they are right anywhere in the input.
    pub unwinds: Unwinds,
    /// Lets branches go by way of jumps to the same place where that is shorter, but not from one of these blocks to another; nowhere if nothing is said.
    pub spared_by_relays: Option<SecondaryMap<Block, bool>>,
    /// By block, what it is worth to keep a branch of it off the end of a decode window (`crate::encode::WindowBranch`); nothing if nothing is said.
    pub window_worths: Option<SecondaryMap<Block, u16>>,
}

impl LayoutPlan {
    /// Leaves out functions, ascending, for good.
    pub fn drop_functions(&mut self, dropped: Vec<Func>) {
        self.dropped = dropped;
        let dropped = &self.dropped;
        self.fragments.retain(|fragment| dropped.binary_search(&fragment.func).is_err());
    }

    /// Leaves out functions that others stand for.
    pub fn fold(&mut self, folded: Folding) {
        self.fragments.retain(|fragment| folded.representative(fragment.func) == fragment.func);
        self.folded = folded;
    }

    /// Leaves out blocks that others stand for, besides those that are left out already. Last of all: what is planned behind them is not known of them.
    pub fn fold_blocks(&mut self, folded: BlockFolding) {
        for fragment in &mut self.fragments {
            fragment.blocks.retain(|planned| !folded.goes(planned.block));
        }
        self.fragments.retain(|fragment| !fragment.blocks.is_empty());
        self.folded_blocks = std::mem::take(&mut self.folded_blocks).and(folded);
    }

    /// Lets branches that don't reach share jumps, but none where that is much of what is executed, nor where the profile says that it ran.
    pub fn relay(&mut self, program: &Program, shares: &Shares) {
        let mut spared = SecondaryMap::new(program.blocks.len(), false);
        program.blocks.keys().for_each(|block| spared[block] = !shares.allows_relay(block));
        self.spared_by_relays = Some(spared);
    }

    /// Spends bytes before fragments so that few branches of what runs much lie on the ends of decode windows.
    pub fn fit_windows(&mut self, shares: &Shares) {
        self.window_worths = Some(shares.window_worths().clone());
    }

    /// Lets code of which no profile says anything share unwind entries as cold code does, and code that stays: smaller tables, in which unwinders take a few more steps.
    pub fn share_unwind_entries(&mut self, throws: Throws) {
        self.joins_kept_entries = true;
        self.throws = throws;
        for fragment in self.fragments.iter_mut().filter(|fragment| fragment.temperature == Temperature::Unknown) {
            fragment.temperature = Temperature::Cold;
        }
    }

    pub fn is_dropped(&self, func: Func) -> bool {
        self.dropped.binary_search(&func).is_ok()
    }
}
