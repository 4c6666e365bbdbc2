//! Procedures in which a caller's knowledge may decide something that is hot.
//!
//! **Needs.** A procedure needs an argument register if a pair of references in one of its hot blocks is undecided, both addresses may depend on what
//! callers know, and one depends on that register; or if it passes something that depends on the register on to a procedure that needs it. An address that was
//! loaded, or returned by something that is not known, is the same in every context: a pair with one such side stays undecided whoever calls.
//!
//! **Why this loses nothing hot.** What a context adds to an analysis is the values of argument registers at entry, and nothing else. Where no undecided hot pair depends
//! on them, here or in what they are passed on to, the answers are those of the analysis without any context.
//!
//! Sets of registers only grow; each growth of a callee's needs is passed on to its callers once.

use lifter::Va;
use lifter::entity::EntityId;
use rayon::prelude::*;

use crate::alias::{Region, Verdict, judge, pairs};
use crate::domain::Value;
use crate::engine::Summaries;
use crate::graph::SiteId;
use crate::hot::Counts;
use crate::procedures::Procedure;
use crate::values::code::{CALLEE_SAVED, Call, Callee, Effect, ProcedureCode, RegisterSet};
use crate::values::memory::Address;
use crate::values::{Observer, State, build, solve, walk};

/// What each procedure needs of its callers.
#[derive(Clone, Debug)]
pub struct Relevance {
    needs: Vec<RegisterSet>,
    /// By procedure, executions of undecided pairs that a caller may decide, here.
    undecided: Vec<u128>,
}

/// For one call: by argument register, on which entry registers of the caller its value depends.
type Passed = Vec<(SiteId, [RegisterSet; 16])>;

impl Relevance {
    pub fn compute(summaries: &Summaries<'_>, counts: &Counts<'_>) -> Self {
        let (program, procedures) = (summaries.around.program, &summaries.around.procedures);
        let all: Vec<Procedure> = procedures.all.keys().collect();
        let has_hot = |p: &Procedure| {
            let func = procedures.all[*p].func;
            summaries.summaries[p.index()].is_some() && program.funcs[func].blocks.iter().any(|b| counts.is_hot(b))
        };
        let own: Vec<(RegisterSet, u128)> =
            all.par_iter().map(|p| if has_hot(p) { hot_needs(summaries, counts, *p) } else { (0, 0) }).collect();
        let mut relevance = Relevance { needs: own.iter().map(|n| n.0).collect(), undecided: own.iter().map(|n| n.1).collect() };
        relevance.pass_up(summaries);
        relevance
    }

    pub fn is_relevant(&self, procedure: Procedure) -> bool {
        self.needs[procedure.index()] != 0
    }

    fn pass_up(&mut self, summaries: &Summaries<'_>) {
        let graph = &summaries.graph;
        let mut passed: Vec<Option<Passed>> = vec![None; self.needs.len()];
        let mut grown: Vec<Procedure> = summaries.around.procedures.all.keys().filter(|&p| self.is_relevant(p)).collect();
        while !grown.is_empty() {
            let mut callers: Vec<Procedure> =
                grown.iter().flat_map(|&p| graph.callers_of(p)).map(|&site| graph.sites[site].caller).collect();
            callers.sort_unstable();
            callers.dedup();
            let unknown: Vec<Procedure> = callers.iter().copied().filter(|p| passed[p.index()].is_none()).collect();
            let results: Vec<Passed> = unknown.par_iter().map(|&p| passed_on(summaries, p)).collect();
            for (procedure, result) in unknown.into_iter().zip(results) {
                passed[procedure.index()] = Some(result);
            }
            grown.clear();
            for caller in callers {
                let mut needs = self.needs[caller.index()];
                for (site, dependence) in passed[caller.index()].iter().flatten() {
                    let wanted = self.needs[graph.sites[*site].callee.index()];
                    let registers = (0..16).filter(|r| wanted >> r & 1 != 0);
                    needs |= registers.fold(0, |set, r: usize| set | dependence[r]);
                }
                if needs != self.needs[caller.index()] {
                    self.needs[caller.index()] = needs;
                    grown.push(caller);
                }
            }
        }
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
        let mut sites: Vec<(u128, SiteId)> = graph
            .sites
            .keys()
            .filter(|&site| self.is_relevant(graph.sites[site].callee))
            .map(|site| (score(site), site))
            .filter(|s| s.0 > 0)
            .collect();
        sites.sort_by_key(|&(score, site)| (std::cmp::Reverse(score), site));
        let mut is_chosen = vec![false; graph.sites.len()];
        sites.iter().take(number).for_each(|(_, site)| is_chosen[site.index()] = true);
        is_chosen
    }
}

/// On which entry registers a value depends, or may: all of them where ways met or values were chosen. `None` if no caller can say what it is.
fn dependence(code: &ProcedureCode, value: &Value) -> Option<RegisterSet> {
    const ARGUMENTS: RegisterSet = !CALLEE_SAVED & !(1 << crate::values::code::RSP);
    if let Some(register) = value.base.entry_register() {
        return Some(1 << register & ARGUMENTS);
    }
    let Some(instruction) = value.base.defining_instruction() else {
        return Some(if value.base.is_stable() { 0 } else { ARGUMENTS });
    };
    match code.instructions[instruction as usize].effect {
        Effect::Load { .. }
        | Effect::Pop { .. }
        | Effect::Leave
        | Effect::Call(_)
        | Effect::SystemCall
        | Effect::Generic { .. } => None,
        _ => Some(ARGUMENTS),
    }
}

/// What a procedure's own hot pairs need, and how often undecided ones are executed.
fn hot_needs(summaries: &Summaries<'_>, counts: &Counts<'_>, procedure: Procedure) -> (RegisterSet, u128) {
    let code = build(&summaries.around, procedure);
    let knowledge = summaries.knowledge();
    let solution = solve(&code, &knowledge, State::at_entry());
    let (mut needs, mut undecided) = (0, 0);
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
            let of = |v: &Value| if v.is_unknown() { Some(RegisterSet::MAX & !CALLEE_SAVED) } else { dependence(&code, v) };
            if let (Some(a), Some(b)) = (of(&a.value), of(&b.value))
                && a | b != 0
            {
                needs |= a | b;
                undecided += u128::from(counts.of_block(block.block));
            }
        }
    }
    (needs, undecided)
}

/// What a procedure passes on, in terms of what it is passed.
fn passed_on(summaries: &Summaries<'_>, procedure: Procedure) -> Passed {
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
    list: &'p mut Passed,
}

impl Observer for PassObserver<'_, '_> {
    fn at_instruction(&mut self, _: u32, _: &State, _: &[Address]) {}
    fn at_call(&mut self, call: &Call, state: &State, _: bool) {
        let Callee::Local(callee) = call.callee else { return };
        let site = self.summaries.graph.site_at(self.code.procedure, Va(call.at), callee);
        let Some(site) = site else { return };
        let of = |register: usize| dependence(self.code, &state.registers[register]).unwrap_or(0);
        self.list.push((site, std::array::from_fn(of)));
    }
}
