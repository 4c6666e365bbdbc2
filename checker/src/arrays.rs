//! Arrays of functions that are found by how far they begin from the first: nothing leads to most of them, and nothing may move away from among them.
//!
//! **Problem.** V8 keeps its built-in functions side by side, and a table in data tells by numbers where each begins. No reference names them, so that neither the walk nor the comparison of what is left ever asks
//! for the place of one. Those few that something else leads to, and those with a frame description, were compared; they could stand anywhere.
//!
//! **Method.** Code without a frame description that nothing passed, not even behind a trap, and that is no filler, is *left over*. What moved may not lie between code left over of which there is, on either side, more than four times as much as of
//! code that was passed or described, itself included: the greatest such surplus that begins right behind a place, and the greatest that ends right before it, come from one pass in each direction, as the sum that is started again whenever it
//! would be less than nothing (Kadane). What stands right before such a stretch may not have moved either if the program holds its address, since the rest may be counted from there.
//!
//! Ordinary code has dead functions without frame descriptions too, such as those of the language's run time that nobody calls, but described ones stand between them. Where numbers may be addresses (a fixed address
//! without relocations), all of them were followed, and what stays is decided by who holds it.

use crate::decode::{Kind, UD2};
use crate::report::{Violation, ViolationKind};
use crate::walk::{Bits, Relation, Side};

/// The fewest bytes left over that may be an array.
const ARRAY_MIN: u64 = 64;

const INT3: u8 = 0xcc;

/// As many bytes left over are outweighed by one that was passed.
const PASSED_WEIGHT: u64 = 4;

/// Code that is alike in whether something passed it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    is_left_over: bool,
}

pub(crate) fn check(input: &Side<'_>, output: &Side<'_>, relation: &Relation, violations: &mut Vec<Violation>) {
    if crate::data::has_numbers(&input.image) {
        return;
    }
    let runs = runs(input, relation);
    let before = surpluses(runs.iter());
    let mut behind = surpluses(runs.iter().rev());
    behind.reverse();
    for (index, run) in runs.iter().enumerate().filter(|(_, run)| !run.is_left_over) {
        let (left, right) = (before[index], behind[index]);
        let is_within = left.after > 0 && right.after > 0 && left.after + right.before >= ARRAY_MIN;
        let may_begin = runs.get(index + 1).is_some_and(|next| next.is_left_over) && right.before >= ARRAY_MIN;
        let moved = if is_within {
            first_moved(input, output, relation, run)
        } else if may_begin {
            last_function(input, run).filter(|&at| relation.is_named_elsewhere(at, at))
        } else {
            None
        };
        if let Some(at) = moved {
            let message = "moved away from code that nothing leads to, which may be found by its distance from there";
            violations.push(Violation::new(ViolationKind::StaleReference, at, message));
        }
    }
}

/// The greatest surplus of what is left over next to a run, on the way that was come: without the run, and with it.
#[derive(Copy, Clone, Debug)]
struct Surplus {
    before: u64,
    after: u64,
}

fn surpluses<'r>(runs: impl Iterator<Item = &'r Run>) -> Vec<Surplus> {
    let mut sum = 0u64;
    let surplus = |run: &Run| {
        let (before, size) = (sum, run.end - run.start);
        sum = if run.is_left_over { sum + size } else { sum.saturating_sub(PASSED_WEIGHT * size) };
        Surplus { before, after: sum }
    };
    runs.map(surplus).collect()
}

/// What code that was passed runs on into behind `ud2`, and nothing else leads to: a compiler may think that execution goes on there.
fn behind_traps(side: &Side<'_>, relation: &Relation) -> Bits {
    let mut found = Bits::new(side.code.size());
    let is_passed = |at: u64| side.code.index(at).is_some_and(|index| relation.seen.contains(index));
    let mut work: Vec<u64> = Vec::new();
    for (start, end) in side.undescribed() {
        let bytes = side.image.at(start, (end - start) as usize).unwrap_or(&[]);
        // Each may stand behind `int3`.
        let is_int3 = |at: u64| is_passed(at) && side.image.at(at, 1) == Some(&[INT3]);
        let is_trap = |&at: &u64| is_passed(at) || at.checked_sub(1).is_some_and(is_int3);
        let traps = memchr::memmem::find_iter(bytes, &UD2).map(|offset| start + offset as u64).filter(is_trap);
        work.extend(traps.map(|at| at + UD2.len() as u64));
    }
    while let Some(mut at) = work.pop() {
        while let Some(inst) = side.inst(at).filter(|_| !is_passed(at)) {
            let Some(first) = side.code.index(at).filter(|&first| !found.contains(first)) else { break };
            for index in first..first + usize::from(inst.len) {
                found.insert(index);
            }
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Return | Kind::IndirectJump => break,
                Kind::Jump => at = side.target(at, inst),
                Kind::Branch | Kind::Loop => {
                    work.push(side.target(at, inst));
                    at = after;
                }
                _ => at = after,
            }
        }
    }
    found
}

/// All code but filler that nothing passed, by address: one for each frame description, and those between as long as they can be.
fn runs(side: &Side<'_>, relation: &Relation) -> Vec<Run> {
    let behind_traps = behind_traps(side, relation);
    let described = side.unwind.fdes.iter().map(|fde| Run { start: fde.start, end: fde.end, is_left_over: false });
    let mut runs: Vec<Run> = described.collect();
    for (start, end) in side.undescribed().into_iter().filter(|&gap| !is_replaced(side, gap)) {
        let mut last: Option<Run> = None;
        let mut at = start;
        while at < end {
            let is_left_over =
                side.code.index(at).is_none_or(|index| !relation.seen.contains(index) && !behind_traps.contains(index));
            if let Some(size) = is_left_over.then(|| filler(side, at)).flatten() {
                at += size;
                continue;
            }
            match last.as_mut().filter(|last| last.is_left_over == is_left_over && last.end == at) {
                Some(last) => last.end = at + 1,
                None => runs.extend(last.replace(Run { start: at, end: at + 1, is_left_over })),
            }
            at += 1;
        }
        runs.extend(last);
    }
    runs.sort_unstable_by_key(|run| run.start);
    runs
}

/// Whether what lies between two descriptions was one function, which is elsewhere now.
fn is_replaced(side: &Side<'_>, (start, end): (u64, u64)) -> bool {
    let replaced = &side.unwind.replaced;
    let last = replaced[..replaced.partition_point(|part| part.0 <= start)].last();
    let is_filler = |from: u64| {
        let mut at = from;
        while let Some(size) = (at < end).then(|| filler(side, at)).flatten() {
            at += size;
        }
        at >= end
    };
    last.is_some_and(|&(from, to)| from == start && is_filler(to))
}

/// The size of the filler at an address.
fn filler(side: &Side<'_>, at: u64) -> Option<u64> {
    if side.image.at(at, 1)? == [0] {
        return Some(1);
    }
    let inst = side.inst(at).filter(|inst| matches!(inst.kind, Kind::Nop | Kind::Trap))?;
    Some(u64::from(inst.len))
}

/// The first instruction of a run that stands elsewhere, and not where it was.
fn first_moved(input: &Side<'_>, output: &Side<'_>, relation: &Relation, run: &Run) -> Option<u64> {
    let has_moved = |&at: &u64| {
        let stands = |&index: &usize| relation.output_of(index).is_some() || relation.stands_in_body(index);
        let Some(index) = input.code.index(at).filter(stands) else { return false };
        // Where a trap was there is filler, which is one too.
        let is_trap = || input.inst(at).is_some_and(|inst| matches!(inst.kind, Kind::Trap | Kind::Stop));
        !is_trap() && !output.code.index(at).is_some_and(|here| relation.is_for(here, index))
    };
    (run.start..run.end).find(has_moved)
}

/// Where the last function of a run begins, if the run has no frame description.
fn last_function(side: &Side<'_>, run: &Run) -> Option<u64> {
    let is_undescribed = side.unwind.fde_at(run.start).is_none();
    (run.start..run.end).rev().filter(|_| is_undescribed).find(|&at| side.starts_undescribed(at))
}
