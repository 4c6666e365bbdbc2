//! Which contexts are worth a body, and can have one.
//!
//! A context's copy is reached only through copies of all functions on the way, so a context counts only if each of these can be copied: as it stands, or as what becomes of
//! it there. What can't be is counted by cause.

use analysis::constants::{Case, ContextId, Exploration, Outcome, Simplified, Uncopied};
use analysis::procedures::Procedure;
use lifter::entity::EntityId;
use lifter::ir::BlockFlags;
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Cloning, Form, Tally, is_unknown_code};
use crate::transform::Context;

/// What clones may add to the movable code.
const BYTES_PER_MILLE_MAX: u64 = 20;
/// A body must save one executed instruction of so many.
const SAVED_SHARE_MIN: u128 = 100_000;

/// The contexts that get a body.
pub(super) struct Wanted {
    /// By context.
    pub(super) contexts: Vec<bool>,
    pub(super) tally: Tally,
}

/// A body, and what it saves in all the cases that have it.
struct Candidate {
    cases: Vec<Case>,
    saved: u128,
    len: u32,
}

impl Wanted {
    pub(super) fn choose(context: &Context<'_>, cloning: Cloning, found: &Exploration<'_, '_>) -> Self {
        let is_everything = cloning.everywhere || context.everywhere;
        let mut copyable = Copyable { context, found, whole: FxHashMap::default(), by_case: FxHashMap::default() };
        let mut wanted = Wanted { contexts: vec![false; found.contexts.len()], tally: Tally::new() };
        // Whether a context has a copy or can have one: originals are there anyway.
        let mut is_there = vec![false; found.contexts.len()];
        let mut by_content: FxHashMap<(Procedure, &Simplified), usize> = FxHashMap::default();
        let mut candidates: Vec<Candidate> = Vec::new();
        for (id, data) in found.contexts.iter() {
            let Some((parent, _)) = data.parent else {
                is_there[id.index()] = true;
                continue;
            };
            if cloning.form == Form::Direct && data.depth != 1 {
                continue;
            }
            let case = &found.cases[data.case];
            let own = copyable.of_case(data.case);
            is_there[id.index()] = is_there[parent.index()]
                && (copyable.of_whole(case.procedure).is_ok() || own.is_ok() && case.removed >= cloning.least);
            if case.removed < cloning.least {
                continue;
            }
            wanted.count(own, is_there[parent.index()], found.saved_in(id));
            wanted.contexts[id.index()] = own.is_ok() && is_there[parent.index()];
            if !wanted.contexts[id.index()] {
                continue;
            }
            let next = candidates.len();
            let index = *by_content.entry((case.procedure, &case.simplified)).or_insert(next);
            if index == next {
                candidates.push(Candidate { cases: Vec::new(), saved: 0, len: case.len });
            }
            candidates[index].cases.push(data.case);
            candidates[index].saved += u128::from(found.saved_in(id));
        }
        if !is_everything {
            candidates = best(context, candidates);
        }
        let taken = candidates.iter().map(|c| c.saved).sum::<u128>();
        wanted.tally.insert("saving taken", u64::try_from(taken).unwrap_or(u64::MAX));
        if !is_everything {
            let best: FxHashSet<Case> = candidates.into_iter().flat_map(|c| c.cases).collect();
            let is_best = |id: ContextId| best.contains(&found.contexts[id].case);
            for id in found.contexts.keys() {
                wanted.contexts[id.index()] &= is_best(id);
            }
        }
        wanted
    }

    fn count(&mut self, own: Result<(), Uncopied>, is_reached: bool, saved: u64) {
        let (contexts, saving) = match own {
            Ok(()) if is_reached => ("contexts", "saving of contexts"),
            Ok(()) => ("contexts without: the way", "saving without: the way"),
            Err(Uncopied::NotUnderstood) => ("contexts without: not understood", "saving without: not understood"),
            Err(Uncopied::LandingPads) => ("contexts without: landing pads", "saving without: landing pads"),
            Err(Uncopied::JumpTable) => ("contexts without: jump table", "saving without: jump table"),
            Err(Uncopied::NamesItself) => ("contexts without: names itself", "saving without: names itself"),
            Err(Uncopied::Stays) => ("contexts without: stays in place", "saving without: stays in place"),
            Err(Uncopied::KnownByFault) => ("contexts without: known by its faults", "saving without: known by its faults"),
            Err(Uncopied::CodeAddress) => ("contexts without: address of code", "saving without: address of code"),
        };
        *self.tally.entry(contexts).or_default() += 1;
        *self.tally.entry(saving).or_default() += saved;
    }
}

/// Bodies that save most for their bytes, until the bytes are spent.
fn best(context: &Context<'_>, mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    let program = context.program;
    let executed = context.executed();
    candidates.retain(|c| c.saved * SAVED_SHARE_MIN >= executed && c.saved > 0);
    candidates.sort_by_key(|c| (std::cmp::Reverse(c.saved * 1024 / u128::from(c.len.max(1))), c.cases[0]));
    let movable = program.blocks.values().filter(|block| program.funcs[block.func].is_movable());
    let mut left = movable.map(|block| u64::from(block.len)).sum::<u64>() * BYTES_PER_MILLE_MAX / 1000;
    candidates.retain(|c| {
        let rest = left.checked_sub(u64::from(c.len));
        left = rest.unwrap_or(left);
        rest.is_some()
    });
    candidates
}

/// Which procedures and cases can be copied, found when it is first asked for.
struct Copyable<'x, 'c> {
    context: &'x Context<'c>,
    found: &'x Exploration<'x, 'c>,
    whole: FxHashMap<Procedure, Result<(), Uncopied>>,
    by_case: FxHashMap<Case, Result<(), Uncopied>>,
}

impl Copyable<'_, '_> {
    fn of_whole(&mut self, procedure: Procedure) -> Result<(), Uncopied> {
        let (context, found) = (self.context, self.found);
        *self.whole.entry(procedure).or_insert_with(|| outcome_of(context, found, procedure, None).map(|_| ()))
    }
    fn of_case(&mut self, case: Case) -> Result<(), Uncopied> {
        let (context, found) = (self.context, self.found);
        let data = &found.cases[case];
        let simplified = Some(&data.simplified);
        *self.by_case.entry(case).or_insert_with(|| outcome_of(context, found, data.procedure, simplified).map(|_| ()))
    }
}

/// What is copied of a procedure, or why it can't be.
pub(super) fn outcome_of(
    context: &Context<'_>,
    found: &Exploration<'_, '_>,
    procedure: Procedure,
    simplified: Option<&Simplified>,
) -> Result<Outcome, Uncopied> {
    let around = &found.summaries().around;
    let func = around.procedures.all[procedure].func;
    if !context.program.funcs[func].is_movable() || context.is_folded(func) {
        return Err(Uncopied::Stays);
    }
    if context.program.blocks[context.program.funcs[func].entry].flags.contains(BlockFlags::KNOWN_BY_FAULT) {
        return Err(Uncopied::KnownByFault);
    }
    let outcome = Outcome::of(around, procedure, simplified)?;
    match outcome.constants.iter().any(|&(_, _, constant)| is_unknown_code(context, constant)) {
        true => Err(Uncopied::CodeAddress),
        false => Ok(outcome),
    }
}
