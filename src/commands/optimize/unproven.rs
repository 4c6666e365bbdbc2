//! Edits that the checker cannot follow are not made.
//!
//! **Problem.** The checker proves changed straight-line code by what it can find out itself, which is less than what the producer knew. A right edit that it cannot prove must
//! not cost the user the whole output, and an edit that is wrong must not get through.
//!
//! **Method.** Where an output does not pass, the edits in question are taken out of the functions that violations are about, and so are the clones that they are about; and all is made and
//! checked again. If no violation is about one of them, all are taken out. What is written is what passed, and the report says how many edits and clones were left out. Each round leaves out
//! at least one function that had an edit or one clone, and the rounds are limited. Clones are planned alike in each round, so a clone keeps its number.

use std::collections::BTreeSet;

use lifter::Va;
use lifter::entity::{EntityId, Func};
use lifter::ir::Program;
use rewriter::clones::{self, CloneId};
use rewriter::edit::{Change, EditPlan};
use rewriter::relink::Relinked;

/// Functions in which the checker could not follow an edit: they stay without.
#[derive(Debug, Default)]
pub(super) struct Unproven {
    functions: BTreeSet<Func>,
    /// How many edits went that way.
    num_edits: usize,
    /// Clones that it could not follow, by their numbers in the plan.
    clones: BTreeSet<CloneId>,
    /// How many clones went, those that nothing else leads to among them.
    num_clones: usize,
    /// By number in the plan that was made last, that in the plan of all.
    numbers: Vec<CloneId>,
    tries: u32,
}

impl Unproven {
    /// Outputs that are checked before none of the edits in question is made.
    const TRIES_MAX: u32 = 8;

    /// Whether an edit is of the kind that the checker proves piece by piece, which may be beyond it.
    fn is_in_question(change: Change) -> bool {
        matches!(change, Change::LateSave | Change::ConstantLoad)
    }

    pub(super) fn leave_out(&mut self, program: &Program, edits: &mut EditPlan) {
        let count = edits.replacements.len();
        edits.replacements.retain(|r| !Self::is_in_question(r.change) || !self.functions.contains(&program.func_of(r.block)));
        self.num_edits = count - edits.replacements.len();
        let count = edits.clones.len();
        self.numbers = clones::leave_out(edits, &self.clones);
        self.num_clones = count - edits.clones.len();
    }

    /// Finds the edited functions that violations are about. False if there is none, so that the check stands as it is.
    pub(super) fn find(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let mut edited: Vec<Func> =
            edits.replacements.iter().filter(|r| Self::is_in_question(r.change)).map(|r| program.func_of(r.block)).collect();
        edited.sort_unstable();
        edited.dedup();
        if checked.violations.is_empty() || (edited.is_empty() && edits.clones.is_empty()) {
            return false;
        }
        self.tries += 1;
        let is_last = self.tries >= Self::TRIES_MAX;
        let found_clones = self.find_clones(edits, relinked, checked);
        let is_about = |&func: &Func| {
            let ranges = program.funcs[func].blocks.iter().map(|block| relinked.blocks[block.index()]);
            let mut spans = ranges.map(|(start, len)| (start.0, start.0 + u64::from(len)));
            spans.any(|(start, end)| checked.violations.iter().any(|v| (start..end.max(start + 1)).contains(&v.address)))
        };
        let found: Vec<Func> = edited.iter().copied().filter(is_about).collect();
        let is_none = found.is_empty() && found_clones.is_empty();
        self.functions.extend(if is_none || is_last { edited } else { found });
        let all = edits.clones.keys().filter_map(|clone| self.numbers.get(clone.index()).copied());
        let clones: Vec<CloneId> = if is_none || is_last { all.collect() } else { found_clones };
        self.clones.extend(clones);
        true
    }

    /// The clones that violations are about.
    fn find_clones(&self, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> Vec<CloneId> {
        let about = |&&(_, start, end): &&(CloneId, Va, Va)| {
            checked.violations.iter().any(|violation| (start.0..end.0).contains(&violation.address))
        };
        let mut found: Vec<CloneId> = relinked.clones.iter().filter(about).map(|&(clone, ..)| clone).collect();
        found.sort_unstable();
        found.dedup();
        found.retain(|&clone| edits.clones.get(clone).is_some());
        found.into_iter().filter_map(|clone| self.numbers.get(clone.index()).copied()).collect()
    }

    pub(super) fn warning(&self) -> Option<String> {
        let (functions, edits) = (self.functions.len(), self.num_edits);
        let mut what = Vec::new();
        what.extend((edits > 0).then(|| format!("{edits} edits in {functions} functions")));
        what.extend((self.num_clones > 0).then(|| format!("{} clones of functions", self.num_clones)));
        let what = what.join(" and ");
        (!what.is_empty()).then(|| format!("{what} were left out: the checker could not follow them"))
    }
}
