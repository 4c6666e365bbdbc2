//! Contexts: constants followed from call to call, the most frequent first.
//!
//! **Contexts.** A context is a root procedure, of whose callers nothing is known, and a row of direct calls from it. It is one of its own if more is known in it than in the context that is shorter by
//! the first call; otherwise that one says it all (`rewriter::specialize::forest` finds it). So the number of contexts does not grow with the number of ways that
//! lead to a constant.
//!
//! **Cases.** What a procedure is in a context depends only on the constants it is entered with: each case is solved once, however many contexts have it. After a few levels of
//! recursion only what all of them agree on is handed on; so recursion goes on in one case, until the budget or the frequency of ever deeper contexts ends it.
//!
//! **Order.** By how often a context is entered if what a caller does does not depend on who called it: its caller's frequency, times how often the call is made for each entry.
//! Without a profile, shorter contexts first. A fixed number of cases is solved in parallel at a time; so the result does not depend on the number of threads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use lifter::entity::{EntityId, PrimaryMap};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::known::{Case, Facts};
use super::prepared::Prepared;
use super::simplify::{Simplified, simplify};
use super::solve::{Setting, Solved, advance, solve, ways};
use super::uses::EntryUses;
use crate::engine::Summaries;
use crate::graph::SiteId;
use crate::hot::Counts;
use crate::procedures::Procedure;
use crate::values::code::{Callee, Effect};
use lifter::Va;

lifter::define_id!(
    /// A context.
    ContextId, "context");

/// Contexts whose calls are looked at before their results are taken in.
const AT_ONCE: usize = 64;

/// Levels of recursion that may differ in what is known.
const LEVELS_KEPT_APART: u32 = 3;

/// The frequency of a root without a profile.
const UNIT: u64 = 1 << 40;

/// A procedure with what is known at its entry, solved.
#[derive(Clone, Debug)]
pub struct CaseData {
    pub procedure: Procedure,
    pub facts: Facts,
    /// What is known at calls that are reached; ascending by site.
    pub passed: Vec<(SiteId, Facts)>,
    pub simplified: Simplified,
    /// Instructions of blocks that are reached that are gone only because of the facts.
    pub removed: u32,
    /// How many of them the profile counts, over all entries of the procedure.
    pub removed_runs: u64,
    /// The length of what is left, in bytes.
    pub len: u32,
}

/// A context that was found.
#[derive(Clone, Debug)]
pub struct FoundContext {
    pub parent: Option<(ContextId, SiteId)>,
    pub case: Case,
    /// What the context that is shorter by the first call knows; of roots, the same.
    shorter: Case,
    pub depth: u32,
    pub frequency: u64,
}

impl FoundContext {
    pub fn is_root(&self) -> bool {
        self.parent.is_none()
    }
}

/// All contexts within a budget.
#[derive(Debug)]
pub struct Exploration<'s, 'a> {
    summaries: &'s Summaries<'a>,
    counts: &'s Counts<'s>,
    uses: EntryUses,
    pub cases: PrimaryMap<Case, CaseData>,
    /// Parents before children, roots among them.
    pub contexts: PrimaryMap<ContextId, FoundContext>,
    pub num_roots: usize,
    by_facts: FxHashMap<(Procedure, Facts), Case>,
    prepared: FxHashMap<Procedure, Arc<Prepared>>,
    has_profile: bool,
}

impl<'s, 'a> Exploration<'s, 'a> {
    /// Explores up to `budget` contexts that are no roots.
    pub fn run(summaries: &'s Summaries<'a>, counts: &'s Counts<'s>, uses: EntryUses, budget: usize) -> Self {
        let mut all = Exploration {
            summaries,
            counts,
            uses,
            cases: PrimaryMap::new(),
            contexts: PrimaryMap::new(),
            num_roots: 0,
            by_facts: FxHashMap::default(),
            prepared: FxHashMap::default(),
            has_profile: counts.blocks.iter().any(|&count| count > 0),
        };
        let mut queue = all.roots();
        let mut batch = Vec::with_capacity(AT_ONCE);
        while all.contexts.len() - all.num_roots < budget {
            batch.clear();
            while let (true, Some((_, Reverse(index)))) = (batch.len() < AT_ONCE, queue.pop()) {
                batch.push(ContextId::new(index as usize));
            }
            if batch.is_empty() {
                break;
            }
            let mut wanted: Vec<Case> = batch.iter().flat_map(|&c| [all.contexts[c].case, all.contexts[c].shorter]).collect();
            all.solve_cases(&mut wanted);
            for &context in &batch {
                all.follow(context, budget, &mut queue);
            }
        }
        // Those that were found last have been counted but not looked at.
        let mut rest: Vec<Case> = all.contexts.values().flat_map(|context| [context.case, context.shorter]).collect();
        all.solve_cases(&mut rest);
        all
    }

    pub fn summaries(&self) -> &'s Summaries<'a> {
        self.summaries
    }
    pub fn counts(&self) -> &'s Counts<'s> {
        self.counts
    }
    /// The calls from a root to a context.
    pub fn path_of(&self, context: ContextId) -> Vec<SiteId> {
        let mut path = Vec::new();
        let mut at = self.contexts[context].parent;
        while let Some((parent, site)) = at {
            path.push(site);
            at = self.contexts[parent].parent;
        }
        path.reverse();
        path
    }
    /// Instructions that are not executed, by the profile, if a context's own case runs in it and not that of the next shorter context. The sum over all
    /// contexts is what all save together.
    pub fn saved_in(&self, context: ContextId) -> u64 {
        let data = &self.contexts[context];
        let case = &self.cases[data.case];
        let more = case.removed_runs.saturating_sub(self.cases[data.shorter].removed_runs);
        let entries = u128::from(self.counts.of_procedure(case.procedure).max(1));
        (u128::from(data.frequency) * u128::from(more) / entries) as u64
    }

    fn setting(&self) -> Setting<'_> {
        Setting { around: &self.summaries.around, knowledge: self.summaries.knowledge() }
    }

    fn roots(&mut self) -> BinaryHeap<(u64, Reverse<u32>)> {
        let mut queue = BinaryHeap::new();
        for procedure in self.summaries.around.procedures.all.keys() {
            let entries = self.counts.of_procedure(procedure);
            let is_wanted = !self.has_profile || entries > 0;
            let is_understood = self.summaries.summaries[procedure.index()].is_some();
            if is_wanted && is_understood && self.summaries.graph.has_sites(procedure) {
                let case = self.case(procedure, Facts::default());
                let frequency = if self.has_profile { entries } else { UNIT };
                let context = FoundContext { parent: None, case, shorter: case, depth: 0, frequency };
                let id = self.contexts.push(context);
                queue.push((frequency, Reverse(id.index() as u32)));
            }
        }
        self.num_roots = self.contexts.len();
        queue
    }

    fn case(&mut self, procedure: Procedure, facts: Facts) -> Case {
        let cases = &mut self.cases;
        *self.by_facts.entry((procedure, facts)).or_insert_with_key(|(procedure, facts)| {
            cases.push(CaseData {
                procedure: *procedure,
                facts: facts.clone(),
                passed: Vec::new(),
                simplified: Simplified::default(),
                removed: 0,
                removed_runs: 0,
                len: 0,
            })
        })
    }

    /// The contexts that the calls of one make.
    fn follow(&mut self, context: ContextId, budget: usize, queue: &mut BinaryHeap<(u64, Reverse<u32>)>) {
        let parent = self.contexts[context].clone();
        let caller = self.cases[parent.case].procedure;
        let passed = self.cases[parent.case].passed.clone();
        for (site, facts) in passed {
            let callee = self.summaries.graph.sites[site].callee;
            // What the shorter context would pass; a root has none, and what it calls is known shorter as a root itself.
            let facts = self.without_what_recursion_changes(context, callee, facts);
            let shorter = match parent.is_root() {
                true => Facts::default(),
                false => self.passed_at(parent.shorter, site),
            };
            if shorter == facts || facts.is_empty() || self.contexts.len() - self.num_roots >= budget {
                continue;
            }
            let (case, shorter) = (self.case(callee, facts), self.case(callee, shorter));
            let frequency = match self.has_profile {
                true => {
                    let calls = u128::from(parent.frequency) * u128::from(self.counts.of_site(site));
                    (calls / u128::from(self.counts.of_procedure(caller).max(1))) as u64
                }
                false => parent.frequency / 2,
            };
            if self.has_profile && frequency == 0 {
                continue;
            }
            let child = FoundContext { parent: Some((context, site)), case, shorter, depth: parent.depth + 1, frequency };
            let id = self.contexts.push(child);
            queue.push((frequency, Reverse(id.index() as u32)));
        }
    }

    /// Where recursion has come back to a procedure before, only what stays the same is handed on: a count that changes with the depth would make each level a
    /// case of its own.
    fn without_what_recursion_changes(&self, context: ContextId, callee: Procedure, facts: Facts) -> Facts {
        let mut levels = 0;
        let mut at = Some(context);
        let mut last = None;
        while let Some(ancestor) = at {
            let data = &self.contexts[ancestor];
            let case = &self.cases[data.case];
            if case.procedure == callee && data.parent.is_some() {
                levels += 1;
                last = last.or(Some(&case.facts));
            }
            if levels >= LEVELS_KEPT_APART {
                break;
            }
            at = data.parent.map(|(parent, _)| parent);
        }
        match last.filter(|_| levels >= LEVELS_KEPT_APART) {
            Some(known) => facts.common(known),
            None => facts,
        }
    }

    fn passed_at(&self, case: Case, site: SiteId) -> Facts {
        let passed = &self.cases[case].passed;
        passed.binary_search_by_key(&site, |p| p.0).map_or_else(|_| Facts::default(), |found| passed[found].1.clone())
    }

    /// Solves those cases that are not solved, and the plain ones of their procedures.
    fn solve_cases(&mut self, wanted: &mut Vec<Case>) {
        for index in 0..wanted.len() {
            let procedure = self.cases[wanted[index]].procedure;
            wanted.push(self.case(procedure, Facts::default()));
        }
        // A procedure that is reached has a length.
        wanted.retain(|&case| self.cases[case].len == 0);
        // Plain cases first: the others count against them.
        wanted.sort_unstable_by_key(|&case| (!self.cases[case].facts.is_empty(), case));
        wanted.dedup();
        let mut procedures: Vec<Procedure> = wanted.iter().map(|&case| self.cases[case].procedure).collect();
        procedures.sort_unstable();
        procedures.dedup();
        procedures.retain(|procedure| !self.prepared.contains_key(procedure));
        for chunk in procedures.chunks(AT_ONCE) {
            let prepare = |&procedure: &Procedure| (procedure, Arc::new(Prepared::new(&self.summaries.around, procedure)));
            let prepared: Vec<(Procedure, Arc<Prepared>)> = chunk.par_iter().map(prepare).collect();
            self.prepared.extend(prepared);
        }
        let split = wanted.partition_point(|&case| self.cases[case].facts.is_empty());
        for part in [&wanted[..split], &wanted[split..]] {
            for chunk in part.chunks(AT_ONCE) {
                let solved: Vec<CaseData> = chunk.par_iter().map(|&case| self.solved(case)).collect();
                for (&case, data) in chunk.iter().zip(solved) {
                    self.cases[case] = data;
                }
            }
        }
    }

    fn solved(&self, case: Case) -> CaseData {
        let mut data = self.cases[case].clone();
        let prepared = &*self.prepared[&data.procedure];
        data.len = 1;
        if prepared.code.is_opaque {
            return data;
        }
        let setting = self.setting();
        let solved = solve(setting, prepared, data.facts.entry_state());
        data.passed = self.passed(prepared, &solved);
        data.simplified = simplify(setting, prepared, &self.uses, &solved);
        data.len = data.simplified.len(prepared).max(1);
        if !data.facts.is_empty() {
            self.count_removed(prepared, &mut data);
        }
        data
    }

    /// What goes that does not go anyway.
    fn count_removed(&self, prepared: &Prepared, data: &mut CaseData) {
        let Some(&plain) = self.by_facts.get(&(data.procedure, Facts::default())) else { return };
        let plain: Vec<u32> = self.cases[plain].simplified.gone().collect();
        let blocks = &prepared.code.blocks;
        let mut runs = 0u64;
        for number in data.simplified.gone().filter(|number| plain.binary_search(number).is_err()) {
            data.removed += 1;
            let block = blocks.partition_point(|b| b.instructions.1 <= number);
            runs = runs.saturating_add(blocks.get(block).map_or(0, |b| self.counts.of_block(b.block)));
        }
        data.removed_runs = runs;
    }

    /// What is known at each direct call that is reached.
    fn passed(&self, prepared: &Prepared, solved: &Solved) -> Vec<(SiteId, Facts)> {
        let setting = self.setting();
        let code = &prepared.code;
        let mut passed: FxHashMap<SiteId, Option<Facts>> = FxHashMap::default();
        let mut note = |call: u32, state: &crate::values::State| {
            let call = &code.calls[call as usize];
            let Callee::Local(callee) = call.callee else { return };
            if let Some(site) = self.summaries.graph.site_at(code.procedure, Va(call.at), callee) {
                let facts = Facts::in_state(state, self.uses.of_interest(callee));
                // Two jumps of one block to one procedure are one site.
                let known = passed.entry(site).or_insert_with(|| Some(facts.clone()));
                if known.as_ref() != Some(&facts) {
                    *known = None;
                }
            }
        };
        for (block, start) in solved.at_start.iter().enumerate() {
            let Some(start) = start else { continue };
            let data = &code.blocks[block];
            let (mut knowing, mut before_last, mut returns) = (start.clone(), None, true);
            for number in code.instructions_of(data) {
                before_last = Some(knowing.clone());
                if let Effect::Call(call) = code.instructions[number].effect {
                    note(call, &knowing.state);
                }
                returns = advance(setting, prepared, &mut knowing, number as u32);
                if !returns {
                    break;
                }
            }
            if returns {
                for call in ways(setting, prepared, block as u32, before_last.as_ref()).tails {
                    note(call, &knowing.state);
                }
            }
        }
        let known = passed.into_iter().filter_map(|(site, facts)| Some((site, facts?)));
        let mut known: Vec<(SiteId, Facts)> = known.filter(|(_, facts)| !facts.is_empty()).collect();
        known.sort_unstable();
        known
    }
}
