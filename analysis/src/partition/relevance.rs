//! Procedures in which a caller's knowledge may decide something that is hot.
//!
//! **Needs.** A pair of references in a hot block that is undecided, and whose two addresses may both depend on what callers know, needs the argument registers that they
//! depend on, all of them: as long as one address may be anything, the pair stays undecided. An address that was loaded, or returned by something that is not
//! known, is the same in every context. Where it can't be told which registers an address depends on, any may do (`ANY`).
//!
//! **Up.** A call can tell its callee something if it knows all registers of one such set, or may learn them from its own callers; these are then what the caller needs. So needs go up
//! the call graph along the arguments that they are about.
//!
//! **Why this loses nothing hot.** What a context adds to an analysis is the values of argument registers at entry, and nothing else. Where no undecided hot pair depends
//! on them, here or in what they are passed on to, the answers are those of the analysis without any context.
//!
//! Sets are added only, of which a procedure has few (`MAX_NEEDS`; beyond, any register will do).

use lifter::entity::EntityId;
use rayon::prelude::*;
use smallvec::SmallVec;

use crate::alias::{Region, Verdict, judge, pairs};
use crate::context::Context;
use crate::domain::Value;
use crate::engine::Summaries;
use crate::graph::SiteId;
use crate::hot::Counts;
use crate::offers::{ANY, dependence};
use crate::procedures::Procedure;
use crate::values::code::RegisterSet;
use crate::values::{State, build, solve};

/// Needs that a procedure may have before they become `ANY`.
const MAX_NEEDS: usize = 12;

/// What has to be known together; sets of registers, ascending, each once.
type Needs = SmallVec<[RegisterSet; 2]>;

fn add_need(needs: &mut Needs, need: RegisterSet) -> bool {
    let need = if need & ANY != 0 || needs.len() >= MAX_NEEDS { ANY } else { need };
    match needs.binary_search(&need) {
        Ok(_) => false,
        Err(at) => {
            needs.insert(at, need);
            true
        }
    }
}

/// What each procedure needs of its callers.
#[derive(Clone, Debug)]
pub struct Relevance {
    needs: Vec<Needs>,
    /// By procedure, executions of undecided pairs that a caller may decide, here.
    undecided: Vec<u128>,
    /// How many times a procedure was analyzed.
    pub analyses: usize,
}

impl Relevance {
    pub fn compute(summaries: &Summaries<'_>, counts: &Counts<'_>) -> Self {
        let (program, procedures) = (summaries.around.program, &summaries.around.procedures);
        let has_hot = |p: &Procedure| {
            let func = procedures.all[*p].func;
            summaries.summaries[p.index()].is_some() && program.funcs[func].blocks.iter().any(|b| counts.is_hot(b))
        };
        let hot: Vec<Procedure> = procedures.all.keys().filter(has_hot).collect();
        let own: Vec<(Needs, u128)> = hot.par_iter().map(|&p| hot_needs(summaries, counts, p)).collect();
        let count = procedures.all.len();
        let mut relevance = Relevance { needs: vec![Needs::new(); count], undecided: vec![0; count], analyses: hot.len() };
        for (procedure, (needs, undecided)) in hot.into_iter().zip(own) {
            relevance.needs[procedure.index()] = needs;
            relevance.undecided[procedure.index()] = undecided;
        }
        relevance.pass_up(summaries);
        relevance
    }

    pub fn is_relevant(&self, procedure: Procedure) -> bool {
        !self.needs[procedure.index()].is_empty()
    }

    fn pass_up(&mut self, summaries: &Summaries<'_>) {
        let graph = &summaries.graph;
        let mut grown: Vec<Procedure> = summaries.around.procedures.all.keys().filter(|&p| self.is_relevant(p)).collect();
        while !grown.is_empty() {
            let mut callers: Vec<Procedure> =
                grown.iter().flat_map(|&p| graph.callers_of(p)).map(|&site| graph.sites[site].caller).collect();
            callers.sort_unstable();
            callers.dedup();
            grown.clear();
            for caller in callers {
                let mut needs = self.needs[caller.index()].clone();
                let mut has_grown = false;
                for offer in &summaries.offers[caller.index()] {
                    let wanted = &self.needs[graph.sites[offer.site].callee.index()];
                    for up in wanted.iter().filter(|&&need| offer.can_meet(need)).map(|&need| offer.depends_on(need)) {
                        has_grown |= up != 0 && add_need(&mut needs, up);
                    }
                }
                if has_grown {
                    self.needs[caller.index()] = needs;
                    grown.push(caller);
                }
            }
        }
    }

    /// By site, whether it knows anything of what its callee needs, or may learn it from its own callers. A site that does not would have a class of which nothing
    /// is known, and what all classes agree on is no more than that.
    pub fn telling_sites(&self, summaries: &Summaries<'_>) -> Vec<bool> {
        let mut tells = vec![false; summaries.graph.sites.len()];
        for offer in summaries.offers.iter().flatten() {
            let needs = &self.needs[summaries.graph.sites[offer.site].callee.index()];
            tells[offer.site.index()] = needs.iter().any(|&need| offer.can_meet(need));
        }
        tells
    }

    /// By procedure, the registers that are in any of its needs.
    pub fn wanted(&self) -> Vec<RegisterSet> {
        let all = |needs: &Needs| needs.iter().fold(0, |set, &need| if need & ANY != 0 { RegisterSet::MAX } else { set | need });
        self.needs.iter().map(all).collect()
    }

    /// By site, what it passes on, as far as that matters, where it is the same in every context.
    pub fn settled_sites(&self, summaries: &Summaries<'_>) -> Vec<Option<Context>> {
        let wanted = self.wanted();
        let mut settled = vec![None; summaries.graph.sites.len()];
        for offer in summaries.offers.iter().flatten() {
            let wanted = wanted[summaries.graph.sites[offer.site].callee.index()];
            if offer.depends_on(wanted) == 0 {
                settled[offer.site.index()] = Some(offer.context.clone().restricted_to(wanted));
            }
        }
        settled
    }

    /// By site, whether it is among so many that may decide most.
    pub fn best_sites(&self, summaries: &Summaries<'_>, counts: &Counts<'_>, number: usize) -> Vec<bool> {
        let graph = &summaries.graph;
        let score = |site: SiteId| {
            let callee = graph.sites[site].callee;
            let calls = u128::from(counts.of_procedure(callee).max(1));
            // A procedure that only passes something on counts for what it is called for.
            let worth = self.undecided[callee.index()].max(u128::from(counts.of_procedure(callee)));
            worth * u128::from(counts.of_site(site)) / calls
        };
        let tells = self.telling_sites(summaries);
        let mut sites: Vec<(u128, SiteId)> =
            graph.sites.keys().filter(|&site| tells[site.index()]).map(|site| (score(site), site)).filter(|s| s.0 > 0).collect();
        sites.sort_by_key(|&(score, site)| (std::cmp::Reverse(score), site));
        let mut is_chosen = vec![false; graph.sites.len()];
        sites.iter().take(number).for_each(|(_, site)| is_chosen[site.index()] = true);
        is_chosen
    }
}

/// What a procedure's own hot pairs need, and how often undecided ones are executed.
fn hot_needs(summaries: &Summaries<'_>, counts: &Counts<'_>, procedure: Procedure) -> (Needs, u128) {
    let code = build(&summaries.around, procedure);
    let knowledge = summaries.knowledge();
    let solution = solve(&code, &knowledge, State::at_entry());
    let (mut needs, mut undecided) = (Needs::new(), 0);
    for (number, block) in code.blocks.iter().enumerate().filter(|(_, block)| counts.is_hot(block.block)) {
        let region = Region::build(summaries.around.image, &code, &knowledge, &[number as u32], &solution.at_start);
        for (i, j) in pairs(&region.references) {
            let (a, b) = (&region.references[i], &region.references[j]);
            if !matches!(judge(&region.symbols, a, b), Verdict::MayAlias(_)) {
                continue;
            }
            // An address without a base may be a sum of several registers.
            let of = |v: &Value| if v.is_unknown() { Some(ANY) } else { dependence(&code, v) };
            if let (Some(a), Some(b)) = (of(&a.value), of(&b.value))
                && a | b != 0
            {
                add_need(&mut needs, a | b);
                undecided += u128::from(counts.of_block(block.block));
            }
        }
    }
    (needs, undecided)
}
