//! Edits that the checker cannot follow are not made.
//!
//! **Problem.** The checker proves changed straight-line code by what it can find out itself, which is less than what the producer knew. A right edit that it cannot prove must
//! not cost the user the whole output, and an edit that is wrong must not get through.
//!
//! **Method.** Where an output does not pass, the edits in question are taken out of the functions that violations are about, and all is made and checked again; of all functions, if no
//! violation is about one of them, nor about what some of them call. Where only edits of other kinds can be at fault, the functions that violations are about go without any. What is written is what passed, and the report says how many edits were left out. Each round leaves out at least one function that had
//! an edit, and the rounds are limited. Where violations in code that must correspond tell which edits these are, the rest of such an output is not looked at.
//! Schedules go first, in the first rounds block by block: there are many in a function, and one is worth least of all edits.
//! A function that nothing leads to any more, since its callers do its work, is found by its contents: so it goes without edits of any kind. If nothing else helps, no edit
//! is made at all, which the user is asked to report.
//!
//! Clones go before all that: those that violations are about, and calls of clones from functions that they are about; after some rounds all of them.

use std::collections::BTreeSet;

use checker::ViolationKind;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{Program, RefRole, RefTarget};
use rewriter::clones::{self, CloneId, LeftOut};
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
    bare: BTreeSet<Func>,
    /// No edit is made.
    is_hopeless: bool,
    /// How many edits went that way.
    num_edits: usize,
    /// Clones that it could not follow, by their numbers in the plan of all.
    clones: LeftOut,
    /// By number in the plan that was made last, that in the plan of all.
    numbers: Vec<CloneId>,
    num_clones: usize,
    tries: u32,
    tries_with_clones: u32,
    /// What the checker said, of each output that did not pass.
    reasons: Vec<String>,
}

impl Unproven {
    /// Outputs that are checked before none of the edits in question is made.
    const TRIES_MAX: u32 = 6;
    /// Those of them in which schedules are left out block by block.
    const TRIES_BY_BLOCK: u32 = 3;
    /// Calls on the way from an edited function to what a violation is about.
    const CALLS_MAX: u32 = 4;
    /// Outputs that are checked before no clone is made.
    const TRIES_WITH_CLONES: u32 = 8;

    /// Whether an edit is of the kind that the checker proves piece by piece, which may be beyond it.
    fn is_in_question(change: Change) -> bool {
        matches!(change, Change::LateSave | Change::ConstantLoad | Change::Schedule)
    }

    pub(super) fn leave_out(&mut self, program: &Program, edits: &mut EditPlan) {
        let count = edits.replacements.len();
        edits.replacements.retain(|r| {
            let func = program.func_of(r.block);
            if self.is_hopeless || self.bare.contains(&func) {
                return false;
            }
            let is_scheduled = r.change == Change::Schedule;
            let is_out = self.functions.contains(&func)
                || is_scheduled && (self.schedules.contains(&func) || self.blocks.contains(&r.block));
            !(is_out && Self::is_in_question(r.change))
        });
        self.num_edits = count - edits.replacements.len();
        let count = edits.clones.len();
        if self.is_hopeless {
            self.clones.clones.extend(edits.clones.keys());
        }
        self.clones.functions.extend(&self.bare);
        self.numbers = clones::leave_out(program, edits, &self.clones);
        self.num_clones = count - edits.clones.len();
    }

    /// Why edits were left out, a line for each violation.
    pub(super) fn reasons(&mut self) -> Vec<String> {
        std::mem::take(&mut self.reasons)
    }

    pub(super) fn num_clones(&self) -> u64 {
        self.num_clones as u64
    }

    /// Finds the edited functions that violations are about, or because of which others are not found. False if there is none, so that the check stands as it is.
    pub(super) fn find(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        // Code that nothing leads to is found by its contents, which an edit of what it leads to changes.
        let is_right = checked.violations.is_empty() && checked.stats.dropped_functions == 0;
        if is_right || edits.replacements.is_empty() {
            return false;
        }
        self.reasons.extend(checked.violations.iter().map(ToString::to_string));
        if !edits.clones.is_empty() {
            self.find_clones(program, edits, relinked, checked);
            return true;
        }
        self.tries += 1;
        if self.tries > Self::TRIES_MAX {
            self.is_hopeless = true;
            return true;
        }
        let is_about_unreached =
            |v: &checker::Violation| [ViolationKind::Unexplained, ViolationKind::MissingFunction].contains(&v.kind);
        if checked.violations.iter().all(is_about_unreached) {
            let count = self.bare.len();
            self.find_unreached(program, edits, relinked, checked);
            if self.bare.len() > count {
                return true;
            }
        }
        if self.tries <= Self::TRIES_BY_BLOCK && self.find_blocks(edits, relinked, checked) {
            return true;
        }
        let edited = functions_with(program, edits, Self::is_in_question);
        let found: Vec<Func> = edited.iter().copied().filter(|&func| Self::is_about(func, program, relinked, checked)).collect();
        if found.is_empty() && self.find_others(program, edits, relinked, checked) {
            return true;
        }
        if edited.is_empty() {
            self.is_hopeless = true;
            return true;
        }
        let calling = if found.is_empty() { Self::calling(&edited, program, relinked, checked) } else { Vec::new() };
        let all = match (self.tries >= Self::TRIES_MAX, found.is_empty(), calling.is_empty()) {
            (false, false, _) => found,
            (false, true, false) => calling,
            _ => edited,
        };
        self.add(program, edits, all);
        true
    }

    /// Leaves out the schedules of functions that have one, and of others their other edits.
    fn add(&mut self, program: &Program, edits: &EditPlan, functions: Vec<Func>) {
        let scheduled = functions_with(program, edits, |change| change == Change::Schedule);
        let (scheduled, others): (Vec<Func>, Vec<Func>) =
            functions.into_iter().partition(|func| scheduled.binary_search(func).is_ok());
        self.schedules.extend(scheduled);
        self.functions.extend(others);
    }

    /// Finds the clones that violations are about, and functions that call clones.
    fn find_clones(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) {
        self.tries_with_clones += 1;
        // What is not explained may be so because of what would lead there.
        let is_first =
            |v: &&checker::Violation| v.kind != ViolationKind::Unexplained && !v.message.ends_with(checker::NOTHING_LEADS);
        let mut places: Vec<u64> = checked.violations.iter().filter(is_first).map(|v| v.address).collect();
        if places.is_empty() {
            places.extend(checked.violations.iter().map(|v| v.address));
        }
        places.sort_unstable();
        let meets = |start: u64, end: u64| {
            let first = places.partition_point(|&place| place < start);
            places.get(first).is_some_and(|&place| place < end)
        };
        let about = relinked.clones.iter().filter(|(_, start, end)| meets(start.0, end.0)).map(|&(clone, ..)| clone);
        let mut found: BTreeSet<CloneId> = about.filter_map(|clone| self.numbers.get(clone.index()).copied()).collect();
        let is_about = |func: &Func| {
            let mut blocks = program.funcs[*func].blocks.iter().map(|block| relinked.blocks[block.index()]);
            blocks.any(|(start, len)| meets(start.0, start.0 + u64::from(len)))
        };
        let calling = functions_with(program, edits, |change| change == Change::Specialize);
        let calling: Vec<Func> = calling.into_iter().filter(is_about).collect();
        // What is wrong may be another edit's fault.
        let edited = functions_with(program, edits, Self::is_in_question);
        let edited: Vec<Func> = edited.into_iter().filter(|&func| Self::is_about(func, program, relinked, checked)).collect();
        let has_others = self.find_blocks(edits, relinked, checked) || !edited.is_empty();
        let is_last = self.tries_with_clones >= Self::TRIES_WITH_CLONES;
        if found.is_empty() && calling.is_empty() && !has_others {
            // A function may be called by nobody any more because all its calls lead to clones.
            let stand_for_it = edits.clones.iter().filter(|(_, data)| is_about(&data.func));
            found.extend(stand_for_it.filter_map(|(clone, _)| self.numbers.get(clone.index())));
        }
        if is_last || found.is_empty() && calling.is_empty() && !has_others {
            self.clones.clones.extend(self.numbers.iter());
        }
        self.add(program, edits, edited);
        self.clones.clones.extend(found);
        self.clones.functions.extend(calling);
    }

    /// Finds the edited functions of which nothing is found in the input, and those of the input of which nothing is found in the output: where tracking is claimed, one may have lost its mark that
    /// nothing calls any more.
    fn find_unreached(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) {
        let addresses = |kind: ViolationKind| {
            let mut places: Vec<u64> = checked.violations.iter().filter(|v| v.kind == kind).map(|v| v.address).collect();
            places.sort_unstable();
            places
        };
        let (places, missing) = (addresses(ViolationKind::Unexplained), addresses(ViolationKind::MissingFunction));
        let is_missing = |block: Block| missing.binary_search(&program.blocks[block].start.0).is_ok();
        let is_about = |&func: &Func| {
            let mut blocks = program.funcs[func].blocks.iter();
            blocks.any(|block| is_missing(block) || holds_one(relinked, block, &places))
        };
        let edited = functions_with(program, edits, |_| true);
        self.bare.extend(edited.into_iter().filter(is_about));
    }

    /// Finds the functions with edits of any kind that violations are about. They have none in the next round, so that others are found then.
    fn find_others(&mut self, program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let edited = functions_with(program, edits, |_| true);
        let others = edited.into_iter().filter(|&func| Self::is_about(func, program, relinked, checked));
        let count = self.bare.len();
        self.bare.extend(others);
        self.bare.len() > count
    }

    /// Whether violations in code that must correspond tell what to leave out next: if none of them is about an edited function, more of them may be. Where there is nothing that could be left out
    /// but all, one is enough, and a clone's fault is told at the end.
    pub(super) fn is_decided(program: &Program, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let is_about = |func| Self::is_about(func, program, relinked, checked);
        let is_decided = functions_with(program, edits, Self::is_in_question).is_empty()
            || functions_with(program, edits, |_| true).into_iter().any(is_about);
        edits.clones.is_empty() && is_decided
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

    /// Edited functions that lead to what violations are about, by as few calls and jumps as any: it is entered there with registers other than the input's.
    fn calling(edited: &[Func], program: &Program, relinked: &Relinked, checked: &checker::Report) -> Vec<Func> {
        let is_about = |func: &Func| Self::is_about(*func, program, relinked, checked);
        let mut about: BTreeSet<Func> = program.funcs.keys().filter(is_about).collect();
        for _ in 0..Self::CALLS_MAX {
            let leads_there = |func: &Func| {
                let mut refs = program.funcs[*func].blocks.iter().flat_map(|block| program.block_refs(block));
                let names = |to: RefTarget| matches!(to, RefTarget::Block(to) if about.contains(&program.func_of(to)));
                refs.any(|r| matches!(r.role, RefRole::Call | RefRole::Branch) && names(r.target))
            };
            let found: Vec<Func> = edited.iter().copied().filter(leads_there).collect();
            if !found.is_empty() {
                return found;
            }
            about = program.funcs.keys().filter(leads_there).collect();
        }
        Vec::new()
    }

    /// Finds the scheduled blocks that violations are about.
    fn find_blocks(&mut self, edits: &EditPlan, relinked: &Relinked, checked: &checker::Report) -> bool {
        let seen = checked.violations.iter().filter(|v| v.kind != ViolationKind::Unexplained);
        let mut places: Vec<u64> = seen.map(|v| v.address).collect();
        places.sort_unstable();
        let scheduled = edits.replacements.iter().filter(|r| r.change == Change::Schedule).map(|r| r.block);
        let found: Vec<Block> = scheduled.filter(|&block| holds_one(relinked, block, &places)).collect();
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
        let functions: BTreeSet<Func> = [&self.functions, &self.schedules, &self.bare].into_iter().flatten().copied().collect();
        let (functions, blocks, edits) = (functions.len(), self.blocks.len(), self.num_edits);
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

/// The functions that have an edit of some kind, ascending.
fn functions_with(program: &Program, edits: &EditPlan, is_kind: impl Fn(Change) -> bool) -> Vec<Func> {
    let mut functions: Vec<Func> =
        edits.replacements.iter().filter(|r| is_kind(r.change)).map(|r| program.func_of(r.block)).collect();
    functions.sort_unstable();
    functions.dedup();
    functions
}

/// Whether one of these addresses of the output, ascending, lies in a block.
fn holds_one(relinked: &Relinked, block: Block, places: &[u64]) -> bool {
    let (start, len) = relinked.blocks[block.index()];
    let first = places.partition_point(|&place| place < start.0);
    places.get(first).is_some_and(|&place| place < start.0 + u64::from(len))
}

#[cfg(test)]
mod tests {
    use checker::{Report, Violation};
    use lifter::Va;
    use lifter::entity::IdRange;
    use lifter::ir::{BlockData, BlockFlags, FuncData, Terminator};
    use rewriter::edit::{NewCode, Replacement};

    use super::*;

    /// Functions of one block each, which lie at multiples of 0x100 and go to multiples of 0x1000.
    fn program(num_funcs: usize) -> (Program, Relinked) {
        let mut program = Program::default();
        let mut blocks = Vec::new();
        for index in 0..num_funcs {
            let block = BlockData {
                start: Va(0x100 * (index as u64 + 1)),
                func: Func::new(index),
                range: 0,
                body_len: 16,
                len: 16,
                num_insts: 4,
                terminator: Terminator::Stop(lifter::ir::StopKind::Return),
                edges: IdRange::EMPTY,
                refs: IdRange::EMPTY,
                flags: BlockFlags::ENTRY,
            };
            let function = FuncData {
                entry: program.blocks.push(block),
                blocks: IdRange::from_usize(index..index + 1),
                ranges: IdRange::EMPTY,
                primary_range: 0,
                symbol: None,
                pin: None,
                content_hash: 0,
            };
            program.funcs.push(function);
            blocks.push((Va(0x1000 * (index as u64 + 1)), 16));
        }
        let relinked = Relinked {
            bytes: Vec::new(),
            blocks,
            dropped_sections: Vec::new(),
            overflow_bytes: 0,
            num_anchors: 0,
            free: Vec::new(),
            clones: Vec::new(),
            unwind_bytes: (0, 0),
            relayed: (0, 0),
            fitted: rewriter::relink::Fitted::default(),
            gives_up_build_id: false,
            debug: rewriter::debug::Outcome::default(),
            debug_file: None,
        };
        (program, relinked)
    }

    /// One edit in each function.
    fn plan(changes: &[Change]) -> EditPlan {
        let mut edits = EditPlan::default();
        for (index, &change) in changes.iter().enumerate() {
            let code = edits.codes.push(NewCode::default());
            edits.replacements.push(Replacement { block: Block::new(index), offset: 0, len: 5, code, change });
        }
        edits
    }

    /// What is left of a plan after checks that find something wrong at these addresses, one after the other.
    fn left(changes: &[Change], wrong: &[u64]) -> (Vec<Change>, Option<String>) {
        let (program, relinked) = program(changes.len());
        let mut unproven = Unproven::default();
        let mut edits = plan(changes);
        for &address in wrong {
            let message = "another instruction".to_owned();
            let violation = Violation { kind: ViolationKind::InstructionMismatch, address, input: None, message };
            let report = Report { violations: vec![violation], ..Report::default() };
            assert!(unproven.find(&program, &edits, &relinked, &report));
            edits = plan(changes);
            unproven.leave_out(&program, &mut edits);
        }
        (edits.replacements.iter().map(|r| r.change).collect(), unproven.warning())
    }

    #[test]
    fn an_edit_that_nothing_proves_goes_alone_of_whatever_kind() {
        let changes = [Change::PltCall, Change::LateSave, Change::InlineLeaf, Change::LateSave];
        let said = |text: &str| Some(format!("{text} were left out: the checker could not follow them"));
        let of_function = |number: u64| 0x1000 * number + 4;
        let (rest, warning) = left(&changes, &[of_function(2)]);
        assert_eq!(rest, [Change::PltCall, Change::InlineLeaf, Change::LateSave]);
        assert_eq!(warning, said("1 edits in 1 functions"));
        let (rest, warning) = left(&changes, &[of_function(3)]);
        assert_eq!(rest, [Change::PltCall, Change::LateSave, Change::LateSave]);
        assert_eq!(warning, said("1 edits in 1 functions"));
        let (rest, _) = left(&changes, &[of_function(3), of_function(4)]);
        assert_eq!(rest, [Change::PltCall, Change::LateSave]);
    }

    #[test]
    fn what_is_wrong_elsewhere_costs_all_edits_at_last() {
        let changes = [Change::PltCall, Change::LateSave];
        let (rest, warning) = left(&changes, &[0x9000, 0x9000]);
        assert_eq!(rest, []);
        assert!(warning.is_some_and(|text| text.starts_with("all 2 edits were left out")));
    }
}
