//! Edits that the checker cannot follow are not made.
//!
//! **Problem.** The checker proves changed straight-line code by what it can find out itself, which is less than what the producer knew. A right edit that it cannot prove must
//! not cost the user the whole output, and an edit that is wrong must not get through.
//!
//! **Method.** Where an output does not pass, the edits in question are taken out of the functions that violations are about, and all is made and checked again; of all functions, if no
//! violation is about one of them. What is written is what passed, and the report says how many edits were left out. Each round leaves out at least one function that had
//! an edit, and the rounds are limited.

use std::collections::BTreeSet;

use lifter::entity::{EntityId, Func};
use lifter::ir::Program;
use rewriter::edit::{Change, EditPlan};
use rewriter::relink::Relinked;

/// Functions in which the checker could not follow an edit: they stay without.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    functions: BTreeSet<Func>,
    /// How many edits went that way.
    num_edits: usize,
    tries: u32,
}

impl Unproven {
    /// Outputs that are checked before none of the edits in question is made.
    const TRIES_MAX: u32 = 4;

    /// Whether an edit is of the kind that the checker proves piece by piece, which may be beyond it.
    fn is_in_question(change: Change) -> bool {
        matches!(change, Change::LateSave | Change::ConstantLoad)
    }

    pub(super) fn leave_out(&mut self, program: &Program, edits: &mut EditPlan) {
        let count = edits.replacements.len();
        edits.replacements.retain(|r| !Self::is_in_question(r.change) || !self.functions.contains(&program.func_of(r.block)));
        self.num_edits = count - edits.replacements.len();
    }

    /// Finds the edited functions that violations are about, or because of which others are not found. False if there is none, so that the check stands as it is.
    pub(super) fn find(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let mut edited: Vec<Func> =
            edits.replacements.iter().filter(|r| Self::is_in_question(r.change)).map(|r| program.func_of(r.block)).collect();
        edited.sort_unstable();
        edited.dedup();
        // Code that nothing leads to is found by its contents, which an edit of what it leads to changes.
        let is_whole = checked.violations.is_empty() && checked.stats.dropped_functions == 0;
        if is_whole || edited.is_empty() {
            return false;
        }
        self.tries += 1;
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
        self.functions.extend(all);
        true
    }

    pub(super) fn warning(&self) -> Option<String> {
        let (functions, edits) = (self.functions.len(), self.num_edits);
        (functions > 0)
            .then(|| format!("{edits} edits in {functions} functions were left out: the checker could not follow them"))
    }
}
