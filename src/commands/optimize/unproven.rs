//! Edits that the checker cannot follow are not made.
//!
//! **Problem.** The checker proves changed straight-line code by what it can find out itself, which is less than what the producer knew. A right edit that it cannot prove must
//! not cost the user the whole output, and an edit that is wrong must not get through.
//!
//! **Method.** Where an output does not pass, the edits in question are taken out of the functions that violations are about, and all is made and checked again; of all functions, if no
//! violation is about one of them. What is written is what passed, and the report says how many edits were left out. Each round leaves out at least one function that had
//! an edit, and the rounds are limited. Where violations in code that must correspond tell which edits these are, the rest of such an output is not looked at.
//! Schedules go first, in the first rounds block by block: there are many in a function, and one is worth least of all edits.
//! A function that nothing leads to any more, since its callers do its work, is found by its contents: so it goes without edits of any kind. If nothing else helps, no edit
//! is made at all, which the user is asked to report.

use std::collections::BTreeSet;

use checker::ViolationKind;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::Program;
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
    /// Functions that stay without an edit of any kind.
    unreached: BTreeSet<Func>,
    /// No edit is made.
    is_hopeless: bool,
    /// How many edits went that way.
    num_edits: usize,
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
            if self.is_hopeless || self.unreached.contains(&func) {
                return false;
            }
            let is_scheduled = r.change == Change::Schedule;
            let is_out = self.functions.contains(&func)
                || is_scheduled && (self.schedules.contains(&func) || self.blocks.contains(&r.block));
            !(is_out && Self::is_in_question(r.change))
        });
        self.num_edits = count - edits.replacements.len();
    }

    /// Finds the edited functions that violations are about, or because of which others are not found. False if there is none, so that the check stands as it is.
    pub(super) fn find(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        // Code that nothing leads to is found by its contents, which an edit of what it leads to changes.
        let is_right = checked.violations.is_empty() && checked.stats.dropped_functions == 0;
        if is_right || edits.replacements.is_empty() {
            return false;
        }
        self.tries += 1;
        let is_late = self.tries > Self::TRIES_MAX;
        if !is_late && checked.violations.iter().all(|v| v.kind == ViolationKind::Unexplained) {
            let count = self.unreached.len();
            self.find_unreached(program, edits, relinked, checked);
            if self.unreached.len() > count {
                return true;
            }
        }
        let edited = functions_with(program, edits, Self::is_in_question);
        if edited.is_empty() || is_late {
            self.is_hopeless = true;
            return true;
        }
        if self.tries <= Self::TRIES_BY_BLOCK && self.find_blocks(edits, relinked, checked) {
            return true;
        }
        let found: Vec<Func> = edited.iter().copied().filter(|&func| Self::is_about(func, program, relinked, checked)).collect();
        let all = if found.is_empty() || self.tries >= Self::TRIES_MAX { edited } else { found };
        let scheduled = functions_with(program, edits, |change| change == Change::Schedule);
        let (scheduled, others): (Vec<Func>, Vec<Func>) = all.into_iter().partition(|func| scheduled.binary_search(func).is_ok());
        self.schedules.extend(scheduled);
        self.functions.extend(others);
        true
    }

    /// Finds the edited functions of which nothing is found in the input.
    fn find_unreached(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) {
        let unexplained = checked.violations.iter().filter(|v| v.kind == ViolationKind::Unexplained);
        let mut places: Vec<u64> = unexplained.map(|v| v.address).collect();
        places.sort_unstable();
        let is_about = |&func: &Func| {
            program.funcs[func].blocks.iter().any(|block| {
                let (start, len) = relinked.blocks[block.index()];
                let first = places.partition_point(|&place| place < start.0);
                places.get(first).is_some_and(|&place| place < start.0 + u64::from(len))
            })
        };
        let edited = functions_with(program, edits, |_| true);
        self.unreached.extend(edited.into_iter().filter(is_about));
    }

    /// Whether any violation is about an edited function; if none is, more of them may be.
    pub(super) fn are_about(program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        functions_with(program, edits, Self::is_in_question)
            .into_iter()
            .any(|func| Self::is_about(func, program, relinked, checked))
    }

    fn is_about(func: Func, program: &Program, relinked: &Relinked, checked: &checker::Report) -> bool {
        let ranges = program.funcs[func].blocks.iter().map(|block| relinked.blocks[block.index()]);
        let mut spans = ranges.map(|(start, len)| (start.0, start.0 + u64::from(len)));
        let is_at = spans.any(|(start, end)| checked.violations.iter().any(|v| (start..end.max(start + 1)).contains(&v.address)));
        let owns = |address: u64| {
            let mut blocks = program.funcs[func].blocks.iter();
            blocks.any(|block| (program.blocks[block].start.0..program.blocks[block].end().0).contains(&address))
        };
        is_at || checked.violations.iter().filter_map(|v| v.input).any(owns)
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
        if self.is_hopeless {
            let edits = self.num_edits;
            return Some(format!(
                "all {edits} edits were left out: the checker could not follow the output with them (please report this with the input file)"
            ));
        }
        let functions: BTreeSet<Func> =
            [&self.functions, &self.schedules, &self.unreached].into_iter().flatten().copied().collect();
        let (functions, blocks, edits) = (functions.len(), self.blocks.len(), self.num_edits);
        let places = match (functions, blocks) {
            (0, 0) => return None,
            (_, 0) => format!("{functions} functions"),
            (0, _) => format!("{blocks} blocks"),
            _ => format!("{functions} functions and {blocks} blocks"),
        };
        Some(format!("{edits} edits in {places} were left out: the checker could not follow them"))
    }
}

/// The functions that have an edit of some kind, ascending.
fn functions_with(program: &Program, edits: &EditPlan, is_kind: impl Fn(Change) -> bool) -> Vec<Func> {
    let mut functions: Vec<Func> =
        edits.replacements.iter().filter(|r| is_kind(r.change)).map(|r| program.func_of(r.block)).collect();
    functions.sort_unstable();
    functions.dedup();
    functions
}
