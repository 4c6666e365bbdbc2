//! The values of a whole program: summaries from the callees up, contexts from the callers down.
//!
//! **Up.** Every procedure is summarized without regard to its callers, callees first. A cycle starts from the assumption that its procedures never
//! return and is repeated until no summary grows; summaries are widened, so it ends.
//!
//! **Down.** Callers first, each class of each procedure is analyzed with what its sites know (`context`), and what it knows at its own call sites goes
//! on to the classes of its callees. Who may be called from where nobody sees has a class of which nothing is known. A procedure that calls nothing need
//! not be looked at: what is asked of it later starts from its context.
//!
//! That summaries are symbolic has the effect that even the insensitive analysis does not confuse the returns of one site with another's; a partition
//! decides what is known inside a callee.
//!
//! **Order.** Procedures of one level don't depend on each other but in cycles, and are analyzed in parallel, a fixed number at a time; their
//! results are taken in in order. So the result does not depend on the number of threads.

use lifter::Va;
use lifter::entity::{Block, EntityId};
use rayon::prelude::*;

use crate::context::Context;
use crate::graph::{CallGraph, Components, SiteId};
use crate::offers::{ANY, Offer, offers};
use crate::partition::Partition;
use crate::procedures::Procedure;
use crate::values::calls::Knowledge;
use crate::values::code::{Call, Callee, ProcedureCode};
use crate::values::memory::Address;
use crate::values::{Observer, Solution, State, Summary, Surroundings, build, solve, walk};

/// Procedures analyzed in parallel before their results are taken in.
const AT_ONCE: usize = 128;

/// Rounds of a cycle after which summaries are widened, and contexts given up that still change.
const ROUNDS_BEFORE_WIDENING: u8 = 3;

/// What holds of procedures whoever calls them.
#[derive(Debug)]
pub struct Summaries<'a> {
    pub around: Surroundings<'a>,
    pub graph: CallGraph,
    pub components: Components,
    /// By procedure; `None` for one that is not understood.
    pub summaries: Vec<Option<Summary>>,
    /// By procedure, what its calls pass on.
    pub(crate) offers: Vec<Vec<Offer>>,
    /// How many times a procedure was analyzed.
    pub analyses: usize,
}

impl<'a> Summaries<'a> {
    pub fn compute(around: Surroundings<'a>) -> Self {
        let graph = CallGraph::build(around.program, &around.procedures);
        let count = around.procedures.all.len();
        let components = Components::find(count, |procedure| graph.callees(procedure));
        let mut all = Summaries {
            around,
            graph,
            components,
            summaries: vec![Some(Summary::UNSEEN); count],
            offers: vec![Vec::new(); count],
            analyses: 0,
        };
        for level in all.components.by_height() {
            all.settle(&level);
        }
        all
    }

    pub fn knowledge(&self) -> Knowledge<'_> {
        Knowledge { library: &self.around.library, summaries: &self.summaries }
    }

    /// Analyzes procedures that depend on each other only in cycles, until nothing changes.
    fn settle(&mut self, level: &[u32]) {
        let mut is_waiting = vec![true; level.len()];
        let mut rounds = vec![0u8; level.len()];
        let mut position = rustc_hash::FxHashMap::default();
        position.extend(level.iter().enumerate().map(|(at, &procedure)| (procedure, at)));
        while is_waiting.contains(&true) {
            for start in (0..level.len()).step_by(AT_ONCE) {
                let batch: Vec<usize> = (start..level.len().min(start + AT_ONCE)).filter(|&at| is_waiting[at]).collect();
                let results: Vec<(Option<Summary>, Vec<Offer>)> =
                    batch.par_iter().map(|&at| self.summarize(Procedure::new(level[at] as usize))).collect();
                self.analyses += batch.len();
                // Before any result is taken in: it may ask for another look at what was looked at beside it.
                batch.iter().for_each(|&at| is_waiting[at] = false);
                for (&at, (result, offers)) in batch.iter().zip(results) {
                    self.offers[level[at] as usize] = offers;
                    rounds[at] = rounds[at].saturating_add(1);
                    if self.take_in(level[at], result, rounds[at] > ROUNDS_BEFORE_WIDENING) {
                        self.wake_callers(level[at], &position, &mut is_waiting);
                    }
                }
            }
        }
    }

    fn summarize(&self, procedure: Procedure) -> (Option<Summary>, Vec<Offer>) {
        let code = build(&self.around, procedure);
        if code.is_opaque {
            return (None, Vec::new());
        }
        let knowledge = self.knowledge();
        let solution = solve(&code, &knowledge, State::at_entry());
        let offers = offers(&self.graph, &code, &knowledge, &solution);
        (Some(solution.summary), offers)
    }

    /// True if more is to be expected of the procedure than before.
    fn take_in(&mut self, procedure: u32, result: Option<Summary>, is_widening: bool) -> bool {
        let slot = &mut self.summaries[procedure as usize];
        let grown = match (slot.as_ref(), result) {
            (Some(old), Some(new)) => Some(old.grown_to(&new, is_widening)),
            _ => None,
        };
        let has_changed = *slot != grown;
        *slot = grown;
        has_changed
    }

    fn wake_callers(&self, procedure: u32, position: &rustc_hash::FxHashMap<u32, usize>, is_waiting: &mut [bool]) {
        let component = self.components.of[procedure as usize];
        for &site in self.graph.callers_of(Procedure::new(procedure as usize)) {
            let caller = self.graph.sites[site].caller.index();
            if self.components.of[caller] == component
                && let Some(&at) = position.get(&(caller as u32))
            {
                is_waiting[at] = true;
            }
        }
    }

    /// Whether anything can be said of what holds in a block of a procedure.
    pub fn is_understood(&self, procedure: Procedure, block: Block) -> bool {
        let procedures = &self.around.procedures;
        self.summaries[procedure.index()].is_some() && !procedures.may_be_entered_anywhere(self.around.program, block)
    }

    /// Whether a procedure can be called from places that are not seen, or not understood.
    fn has_unknown_callers(&self, procedure: Procedure) -> bool {
        let is_opaque = |&site: &SiteId| !self.is_understood(self.graph.sites[site].caller, self.graph.sites[site].block);
        self.around.procedures.has_unknown_callers(self.around.program, procedure)
            || self.graph.callers_of(procedure).iter().any(is_opaque)
    }
}

/// What holds of each class of each procedure.
#[derive(Debug)]
pub struct Contexts<'s, 'a> {
    pub summaries: &'s Summaries<'a>,
    pub partition: Partition,
    /// By class; `None` for one that nothing calls.
    contexts: Vec<Option<Context>>,
    /// How many times a class was analyzed.
    pub analyses: usize,
}

impl<'s, 'a> Contexts<'s, 'a> {
    pub fn compute(summaries: &'s Summaries<'a>, partition: Partition) -> Self {
        let contexts = vec![None; partition.num_nodes()];
        let mut all = Contexts { summaries, analyses: partition.analyses, partition, contexts };
        for procedure in (0..summaries.summaries.len()).map(Procedure::new) {
            if all.partition.is_skipped(procedure) || summaries.has_unknown_callers(procedure) {
                let node = all.partition.node(procedure, 0);
                all.contexts[node] = Some(Context::default());
            }
        }
        for level in summaries.components.by_depth() {
            all.settle(&level);
        }
        all
    }

    /// What a class knows; `None` if nothing calls the procedure so.
    pub fn context(&self, procedure: Procedure, class: u32) -> Option<&Context> {
        self.contexts[self.partition.node(procedure, class)].as_ref()
    }

    /// Solves a procedure as a class knows it. For one of which nothing calls it, what holds whoever did.
    pub fn solve(&self, code: &ProcedureCode, class: u32) -> Solution {
        let entry = self.context(code.procedure, class).map_or_else(State::at_entry, Context::entry_state);
        solve(code, &self.summaries.knowledge(), entry)
    }

    /// Classes that are analyzed with what their callers know: each call site on its own or those that pass on the same, and the rest of each procedure.
    pub fn sites_analyzed(&self) -> usize {
        let all = self.summaries.around.procedures.all.keys().filter(|&p| !self.partition.is_skipped(p));
        all.map(|p| (0..self.partition.num_classes(p)).filter(|&class| self.is_analyzed(p, class)).count()).sum()
    }

    /// Whether anything calls a class and knows anything: otherwise what holds whoever calls is all there is.
    fn is_analyzed(&self, procedure: Procedure, class: u32) -> bool {
        self.context(procedure, class).is_some_and(|context| !context.is_empty())
    }

    /// Bytes that the contexts take.
    pub fn bytes(&self) -> usize {
        let spilled: usize = self.contexts.iter().flatten().map(Context::heap_bytes).sum();
        self.contexts.len() * size_of::<Option<Context>>() + spilled
    }

    fn settle(&mut self, level: &[u32]) {
        let passes_on = |procedure: u32| {
            let matters = |&callee: &u32| !self.partition.is_skipped(Procedure::new(callee as usize));
            self.summaries.summaries[procedure as usize].is_some() && self.summaries.graph.callees(procedure).iter().any(matters)
        };
        let level: Vec<u32> = level.iter().copied().filter(|&procedure| passes_on(procedure)).collect();
        let mut waiting: Vec<Vec<u32>> = level
            .iter()
            .map(|&procedure| (0..self.partition.num_classes(Procedure::new(procedure as usize))).collect())
            .collect();
        let mut position = rustc_hash::FxHashMap::default();
        position.extend(level.iter().enumerate().map(|(at, &procedure)| (procedure, at)));
        let mut rounds: rustc_hash::FxHashMap<usize, u8> = rustc_hash::FxHashMap::default();
        while waiting.iter().any(|classes| !classes.is_empty()) {
            for start in (0..level.len()).step_by(AT_ONCE) {
                let end = level.len().min(start + AT_ONCE);
                let batch: Vec<(Procedure, Vec<u32>)> = (start..end)
                    .map(|at| (Procedure::new(level[at] as usize), std::mem::take(&mut waiting[at])))
                    .filter(|(_, classes)| !classes.is_empty())
                    .collect();
                let results: Vec<Passed> =
                    batch.par_iter().map(|(procedure, classes)| self.calls_of(*procedure, classes)).collect();
                self.analyses += results.iter().map(|passed| passed.analyses).sum::<usize>();
                for (site, context) in results.into_iter().flat_map(|passed| passed.calls) {
                    let callee = self.summaries.graph.sites[site].callee;
                    let class = self.partition.class_of(site);
                    let node = self.partition.node(callee, class);
                    let round = rounds.entry(node).or_default();
                    let has_changed = self.take_in(site, context, *round > ROUNDS_BEFORE_WIDENING);
                    if has_changed {
                        *round = round.saturating_add(1);
                        if let Some(&at) = position.get(&(callee.index() as u32))
                            && !waiting[at].contains(&class)
                        {
                            waiting[at].push(class);
                        }
                    }
                }
            }
        }
    }

    /// Adds what a call passes on to the class of its site. True if that now knows less.
    fn take_in(&mut self, site: SiteId, context: Context, gives_up: bool) -> bool {
        let callee = self.summaries.graph.sites[site].callee;
        let context = context.restricted_to(self.partition.wanted(callee));
        let node = self.partition.node(callee, self.partition.class_of(site));
        match &mut self.contexts[node] {
            Some(known) => known.meet(&context, gives_up),
            empty => {
                *empty = Some(context);
                true
            }
        }
    }

    /// What the calls of a procedure mean for its callees, in each of some of its classes.
    fn calls_of(&self, procedure: Procedure, classes: &[u32]) -> Passed {
        let mut passed = Passed::default();
        let mut contexts: Vec<&Context> = classes.iter().filter_map(|&class| self.context(procedure, class)).collect();
        let count = contexts.len();
        contexts.retain(|context| self.makes_a_difference(procedure, context));
        if contexts.len() < count {
            let offers = self.summaries.offers[procedure.index()].iter().filter(|offer| self.is_followed(offer.site));
            passed.calls.extend(offers.map(|offer| (offer.site, offer.context.clone())));
        }
        let mut seen = rustc_hash::FxHashSet::default();
        contexts.retain(|&context| seen.insert(context));
        if contexts.is_empty() {
            return passed;
        }
        let code = build(&self.summaries.around, procedure);
        let knowledge = self.summaries.knowledge();
        for context in contexts {
            passed.analyses += 1;
            let solution = solve(&code, &knowledge, context.entry_state());
            let mut observer = CallObserver { all: self, caller: procedure, list: &mut passed.calls };
            for block in code.blocks_with_calls() {
                if let Some(start) = &solution.at_start[block as usize] {
                    walk(&code, &knowledge, block, start, &mut observer);
                }
            }
        }
        passed
    }

    /// Whether anything that a procedure passes on depends on what a context knows.
    fn makes_a_difference(&self, procedure: Procedure, context: &Context) -> bool {
        let known = context.iter().fold(0, |set, (register, _)| set | 1 << register);
        let wanted = |site: SiteId| self.partition.wanted(self.summaries.graph.sites[site].callee);
        let depends = |offer: &Offer| offer.depends_on(wanted(offer.site)) & (known | ANY) != 0;
        known != 0 && self.summaries.offers[procedure.index()].iter().any(|o| self.is_followed(o.site) && depends(o))
    }

    /// Whether a site's callee is analyzed by context at all.
    fn is_followed(&self, site: SiteId) -> bool {
        !self.partition.is_skipped(self.summaries.graph.sites[site].callee)
    }
}

/// What a procedure's calls pass on, and how often it was analyzed to find out.
#[derive(Default)]
struct Passed {
    calls: Vec<(SiteId, Context)>,
    analyses: usize,
}

struct CallObserver<'c, 's, 'a> {
    all: &'c Contexts<'s, 'a>,
    caller: Procedure,
    list: &'c mut Vec<(SiteId, Context)>,
}

impl Observer for CallObserver<'_, '_, '_> {
    const SEES_INSTRUCTIONS: bool = false;
    fn at_instruction(&mut self, _: u32, _: &State, _: &[Address]) {}
    fn at_call(&mut self, call: &Call, state: &State, is_tail: bool) {
        let Callee::Local(callee) = call.callee else { return };
        if self.all.partition.is_skipped(callee) {
            return;
        }
        if let Some(site) = self.all.summaries.graph.site_at(self.caller, Va(call.at), callee) {
            self.list.push((site, Context::at_call(state, is_tail)));
        }
    }
}
