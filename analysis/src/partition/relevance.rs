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

use lifter::Va;
use lifter::entity::EntityId;
use rayon::prelude::*;
use smallvec::SmallVec;

use crate::alias::{Region, Verdict, judge, pairs};
use crate::context::Context;
use crate::domain::Value;
use crate::engine::Summaries;
use crate::graph::SiteId;
use crate::hot::Counts;
use crate::procedures::Procedure;
use crate::values::code::{CALLEE_SAVED, Call, Callee, Effect, ProcedureCode, RegisterSet};
use crate::values::memory::Address;
use crate::values::{Observer, State, build, solve, walk};

/// Among the registers of a need: any one that is known may decide. It takes the place of one that no argument comes in.
const ANY: RegisterSet = 1 << 15;

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
    /// By procedure, what it passes on when nothing is known of what it is passed; for callers of relevant procedures.
    offers: Vec<Option<Vec<Offer>>>,
    /// How many times a procedure was analyzed.
    pub analyses: usize,
}

impl Offer {
    /// The registers that are known, or may be once the caller's own are.
    fn tells(&self) -> RegisterSet {
        let known = self.context.iter().fold(0, |set, (register, _)| set | 1 << register);
        (0..16).filter(|&r| self.dependence[r] != 0).fold(known, |set, r| set | 1 << r)
    }
    fn can_meet(&self, need: RegisterSet) -> bool {
        let tells = self.tells();
        if need & ANY != 0 { tells != 0 } else { need & !tells == 0 }
    }
    /// What the caller has to know for the callee to know what it needs.
    fn passed_up(&self, need: RegisterSet) -> RegisterSet {
        let registers = (0..16).filter(|r| need & ANY != 0 || need >> r & 1 != 0);
        registers.fold(0, |set, r: usize| set | self.dependence[r])
    }
}

/// What a call passes on.
#[derive(Clone, Debug)]
struct Offer {
    site: SiteId,
    /// By argument register, on which entry registers of the caller its value depends.
    dependence: [RegisterSet; 16],
    /// What is known whoever calls the caller.
    context: Context,
}

impl Relevance {
    pub fn compute(summaries: &Summaries<'_>, counts: &Counts<'_>) -> Self {
        let (program, procedures) = (summaries.around.program, &summaries.around.procedures);
        let all: Vec<Procedure> = procedures.all.keys().collect();
        let has_hot = |p: &Procedure| {
            let func = procedures.all[*p].func;
            summaries.summaries[p.index()].is_some() && program.funcs[func].blocks.iter().any(|b| counts.is_hot(b))
        };
        let own: Vec<(Needs, u128)> =
            all.par_iter().map(|p| if has_hot(p) { hot_needs(summaries, counts, *p) } else { (Needs::new(), 0) }).collect();
        let mut relevance = Relevance {
            needs: own.iter().map(|n| n.0.clone()).collect(),
            undecided: own.iter().map(|n| n.1).collect(),
            offers: vec![None; all.len()],
            analyses: all.iter().filter(|p| has_hot(p)).count(),
        };
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
            let unknown: Vec<Procedure> = callers.iter().copied().filter(|p| self.offers[p.index()].is_none()).collect();
            let results: Vec<Vec<Offer>> = unknown.par_iter().map(|&p| offers_of(summaries, p)).collect();
            self.analyses += unknown.len();
            for (procedure, result) in unknown.into_iter().zip(results) {
                self.offers[procedure.index()] = Some(result);
            }
            grown.clear();
            for caller in callers {
                let mut needs = self.needs[caller.index()].clone();
                let mut has_grown = false;
                for offer in self.offers[caller.index()].iter().flatten() {
                    let wanted = &self.needs[graph.sites[offer.site].callee.index()];
                    for up in wanted.iter().filter(|&&need| offer.can_meet(need)).map(|&need| offer.passed_up(need)) {
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
        for offer in self.offers.iter().flatten().flatten() {
            let needs = &self.needs[summaries.graph.sites[offer.site].callee.index()];
            tells[offer.site.index()] = needs.iter().any(|&need| offer.can_meet(need));
        }
        tells
    }

    /// What procedures that are not relevant pass on to those that are.
    pub fn into_known_calls(self, summaries: &Summaries<'_>) -> Vec<(SiteId, Context)> {
        let graph = &summaries.graph;
        let needs = self.needs;
        let offers = self.offers.into_iter().flatten().flatten();
        offers
            .filter(|o| {
                needs[graph.sites[o.site].caller.index()].is_empty() && !needs[graph.sites[o.site].callee.index()].is_empty()
            })
            .map(|o| (o.site, o.context))
            .collect()
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

/// On which entry registers a value depends: none, those of the set, or `ANY`. `None` if no caller can say what it is.
fn dependence(code: &ProcedureCode, value: &Value) -> Option<RegisterSet> {
    const ARGUMENTS: RegisterSet = !CALLEE_SAVED & !(1 << crate::values::code::RSP);
    if let Some(register) = value.base.entry_register() {
        let own = 1 << register & ARGUMENTS;
        // What was added may come from another register.
        return Some(if value.is_pure { own } else { own | ANY });
    }
    let Some(instruction) = value.base.defining_instruction() else {
        return Some(if value.base.is_stable() { 0 } else { ANY });
    };
    match code.instructions[instruction as usize].effect {
        Effect::Load { .. }
        | Effect::Pop { .. }
        | Effect::Leave
        | Effect::Call(_)
        | Effect::SystemCall
        | Effect::Generic { .. } => None,
        _ => Some(ANY),
    }
}

/// What a procedure's own hot pairs need, and how often undecided ones are executed.
fn hot_needs(summaries: &Summaries<'_>, counts: &Counts<'_>, procedure: Procedure) -> (Needs, u128) {
    let code = build(&summaries.around, procedure);
    let knowledge = summaries.knowledge();
    let solution = solve(&code, &knowledge, State::at_entry());
    let (mut needs, mut undecided) = (Needs::new(), 0);
    for (number, block) in code.blocks.iter().enumerate() {
        if !counts.is_hot(block.block) {
            continue;
        }
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

/// What a procedure passes on, in terms of what it is passed.
fn offers_of(summaries: &Summaries<'_>, procedure: Procedure) -> Vec<Offer> {
    let mut list = Vec::new();
    if summaries.summaries[procedure.index()].is_none() {
        return list;
    }
    let code = build(&summaries.around, procedure);
    let knowledge = summaries.knowledge();
    let solution = solve(&code, &knowledge, State::at_entry());
    let mut observer = PassObserver { summaries, code: &code, list: &mut list };
    for (number, start) in solution.at_start.iter().enumerate() {
        let Some(start) = start else { continue };
        walk(&code, &knowledge, number as u32, start, &mut observer);
    }
    list
}

struct PassObserver<'p, 'a> {
    summaries: &'p Summaries<'a>,
    code: &'p ProcedureCode,
    list: &'p mut Vec<Offer>,
}

impl Observer for PassObserver<'_, '_> {
    fn at_instruction(&mut self, _: u32, _: &State, _: &[Address]) {}
    fn at_call(&mut self, call: &Call, state: &State, is_tail: bool) {
        let Callee::Local(callee) = call.callee else { return };
        let site = self.summaries.graph.site_at(self.code.procedure, Va(call.at), callee);
        let Some(site) = site else { return };
        let of = |register: usize| dependence(self.code, &state.registers[register]).unwrap_or(0);
        self.list.push(Offer { site, dependence: std::array::from_fn(of), context: Context::at_call(state, is_tail) });
    }
}
