//! Edits that the checker cannot follow are not made.
//!
//! **Problem.** The checker proves changed straight-line code by what it can find out itself, which is less than what the producer knew. A right edit that it cannot prove must
//! not cost the user the whole output, and an edit that is wrong must not get through.
//!
//! **Method.** Where an output does not pass, the edits in question are taken out of the functions that violations are about, and all is made and checked again; of all functions, if no
//! violation is about one of them. Clones go first, all of them, since what callers pass and clones take for granted is one plan. What is written is what passed, and the report says how many edits and clones
//! were left out. Each round leaves out the clones or at least one function that had an edit, and the rounds are limited. Schedules go first, in the first rounds block by block: there are many in a function, and one is worth least of all edits.

use std::collections::BTreeSet;

use checker::ViolationKind;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::Program;
use rewriter::clones;
use rewriter::edit::{Change, EditPlan};
use rewriter::relink::Relinked;

/// Functions in which the checker could not follow an edit: they stay without.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    functions: BTreeSet<Func>,
    /// The same of their schedule alone.
    schedules: BTreeSet<Func>,
    /// The same of single blocks.
    blocks: BTreeSet<Block>,
    /// How many edits went that way.
    num_edits: usize,
    /// It could not follow the clones.
    pub(super) has_no_clones: bool,
    num_clones: usize,
    tries: u32,
}

impl Unproven {
    /// Outputs that are checked before none of the edits in question is made.
    const TRIES_MAX: u32 = 6;
    /// Those of them in which schedules are left out block by block.
    const TRIES_BY_BLOCK: u32 = 3;

    /// Whether an edit is of the kind that the checker proves piece by piece, which may be beyond it.
    fn is_in_question(change: Change) -> bool {
        matches!(change, Change::LateSave | Change::ConstantLoad | Change::Schedule)
    }

    pub(super) fn leave_out(&mut self, program: &Program, edits: &mut EditPlan) {
        let count = edits.replacements.len();
        edits.replacements.retain(|r| {
            let func = program.func_of(r.block);
            let is_scheduled = r.change == Change::Schedule;
            let is_out = self.functions.contains(&func)
                || is_scheduled && (self.schedules.contains(&func) || self.blocks.contains(&r.block));
            !(is_out && Self::is_in_question(r.change))
        });
        self.num_edits = count - edits.replacements.len();
        if self.has_no_clones {
            self.num_clones = edits.clones.len();
            clones::leave_out(edits);
        }
    }

    /// Finds the edited functions that violations are about, or because of which others are not found. False if there is none, so that the check stands as it is.
    pub(super) fn find(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let mut edited: Vec<Func> =
            edits.replacements.iter().filter(|r| Self::is_in_question(r.change)).map(|r| program.func_of(r.block)).collect();
        edited.sort_unstable();
        edited.dedup();
        // Code that nothing leads to is found by its contents, which an edit of what it leads to changes.
        let is_whole = checked.violations.is_empty() && checked.stats.dropped_functions == 0;
        if is_whole || (edited.is_empty() && edits.clones.is_empty()) {
            return false;
        }
        if !edits.clones.is_empty() {
            self.has_no_clones = true;
            return true;
        }
        self.tries += 1;
        if self.tries <= Self::TRIES_BY_BLOCK && self.find_blocks(edits, relinked, checked) {
            return true;
        }
        let is_about = |&func: &Func| {
            let ranges = program.funcs[func].blocks.iter().map(|block| relinked.blocks[block.index()]);
            let mut spans = ranges.map(|(start, len)| (start.0, start.0 + u64::from(len)));
            let is_at =
                spans.any(|(start, end)| checked.violations.iter().any(|v| (start..end.max(start + 1)).contains(&v.address)));
            let owns = |address: u64| {
                let mut blocks = program.funcs[func].blocks.iter();
                blocks.any(|block| (program.blocks[block].start.0..program.blocks[block].end().0).contains(&address))
            };
            is_at || checked.violations.iter().filter_map(|v| v.input).any(owns)
        };
        let found: Vec<Func> = edited.iter().copied().filter(is_about).collect();
        let all = if found.is_empty() || self.tries >= Self::TRIES_MAX { edited } else { found };
        let mut scheduled: Vec<Func> =
            edits.replacements.iter().filter(|r| r.change == Change::Schedule).map(|r| program.func_of(r.block)).collect();
        scheduled.sort_unstable();
        let (scheduled, others): (Vec<Func>, Vec<Func>) = all.into_iter().partition(|func| scheduled.binary_search(func).is_ok());
        self.schedules.extend(scheduled);
        self.functions.extend(others);
        true
    }

    /// Finds the scheduled blocks that violations are about.
    fn find_blocks(&mut self, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let seen = checked.violations.iter().filter(|v| v.kind != ViolationKind::Unexplained);
        let mut places: Vec<u64> = seen.map(|v| v.address).collect();
        places.sort_unstable();
        let is_about = |&block: &Block| {
            let (start, len) = relinked.blocks[block.index()];
            let first = places.partition_point(|&place| place < start.0);
            places.get(first).is_some_and(|&place| place < start.0 + u64::from(len))
        };
        let scheduled = edits.replacements.iter().filter(|r| r.change == Change::Schedule).map(|r| r.block);
        let found: Vec<Block> = scheduled.filter(is_about).collect();
        self.blocks.extend(&found);
        !found.is_empty()
    }

    pub(super) fn warning(&self) -> Option<String> {
        let (functions, blocks, edits) = (self.functions.union(&self.schedules).count(), self.blocks.len(), self.num_edits);
        let clones = (self.num_clones > 0).then(|| format!("{} clones of functions", self.num_clones));
        let places = match (functions, blocks) {
            (0, 0) => return clones.map(|clones| format!("{clones} were left out: the checker could not follow them")),
            (_, 0) => format!("{functions} functions"),
            (0, _) => format!("{blocks} blocks"),
            _ => format!("{functions} functions and {blocks} blocks"),
        };
        let more = clones.map_or_else(String::new, |clones| format!(" and {clones}"));
        Some(format!("{edits} edits in {places}{more} were left out: the checker could not follow them"))
    }
}
