//! How many pairs of references in hot blocks an analysis tells apart, and what cloning by it would take: the measures of Debray, tables 3 to 5.
//!
//! **Static**: pairs that are apart in at least one class that was executed. **Dynamic**: executions of such pairs, each class of a procedure with its share of
//! the calls. **Beyond**: the same for pairs that the insensitive analysis does not tell apart. **Clones**: classes of a procedure with the same set of such pairs
//! share a clone; one is made if its share of the calls makes a block with such a pair hot.

use lifter::entity::EntityId;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::alias::{Region, judge, pairs};
use crate::engine::Contexts;
use crate::hot::Counts;
use crate::procedures::Procedure;
use crate::values::code::ProcedureCode;
use crate::values::{Solution, State, build, solve};

/// What was counted.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Pairs in hot blocks.
    pub asked: u64,
    pub asked_executions: u128,
    /// Those that a look at the block alone tells apart.
    pub local: u64,
    pub local_executions: u128,
    pub apart: u64,
    pub apart_executions: u128,
    /// Those that the insensitive analysis does not.
    pub beyond: u64,
    pub beyond_executions: u128,
    pub clones: u64,
    pub clone_instructions: u64,
}

impl Census {
    fn plus(self, other: Self) -> Self {
        Census {
            asked: self.asked + other.asked,
            asked_executions: self.asked_executions + other.asked_executions,
            local: self.local + other.local,
            local_executions: self.local_executions + other.local_executions,
            apart: self.apart + other.apart,
            apart_executions: self.apart_executions + other.apart_executions,
            beyond: self.beyond + other.beyond,
            beyond_executions: self.beyond_executions + other.beyond_executions,
            clones: self.clones + other.clones,
            clone_instructions: self.clone_instructions + other.clone_instructions,
        }
    }

    /// Counts for a whole program.
    pub fn of(contexts: &Contexts<'_, '_>, insensitive: &Contexts<'_, '_>, counts: &Counts<'_>) -> Census {
        let summaries = contexts.summaries;
        let all: Vec<Procedure> = summaries.around.procedures.all.keys().collect();
        let each: Vec<Census> = all.par_iter().map(|&p| of_procedure(contexts, insensitive, counts, p)).collect();
        each.into_iter().fold(Census::default(), Census::plus)
    }
}

/// A pair of a hot block.
struct Asked {
    count: u64,
    is_local: bool,
    by_insensitive: bool,
}

fn of_procedure(
    contexts: &Contexts<'_, '_>,
    insensitive: &Contexts<'_, '_>,
    counts: &Counts<'_>,
    procedure: Procedure,
) -> Census {
    let summaries = contexts.summaries;
    let data = summaries.around.procedures.all[procedure];
    let program = summaries.around.program;
    let is_hot = program.funcs[data.func].blocks.iter().any(|b| counts.is_hot(b));
    if !is_hot || summaries.summaries[procedure.index()].is_none() {
        return Census::default();
    }
    let code = build(&summaries.around, procedure);
    let mut asked = Vec::new();
    for_pairs(contexts, counts, &code, &insensitive.solve(&code, 0), |count, is_local, is_apart| {
        asked.push(Asked { count, is_local, by_insensitive: is_apart });
    });
    // What callers pass may say less than that it is theirs: a pointer into a caller's frame that has moved on may be in any of its objects.
    let mut at = 0;
    for_pairs(contexts, counts, &code, &solve(&code, &summaries.knowledge(), State::at_entry()), |_, _, is_apart| {
        asked[at].by_insensitive |= is_apart;
        at += 1;
    });
    if asked.is_empty() {
        return Census::default();
    }
    let mut census = Census { asked: asked.len() as u64, ..Census::default() };
    for pair in &asked {
        census.asked_executions += u128::from(pair.count);
        census.local += u64::from(pair.is_local);
        census.local_executions += if pair.is_local { u128::from(pair.count) } else { 0 };
    }
    let mut is_apart = vec![false; asked.len()];
    let mut buckets: FxHashMap<Vec<u32>, u64> = FxHashMap::default();
    let entered = counts.of_procedure(procedure).max(1);
    for (class, calls) in classes(contexts, counts, procedure) {
        let mut at = 0;
        let mut gained = Vec::new();
        for_pairs(contexts, counts, &code, &contexts.solve(&code, class), |count, _, apart| {
            // What holds whoever calls holds for each caller, whether or not it follows from what this one knows.
            if apart || asked[at].by_insensitive {
                let executions = u128::from(count) * u128::from(calls) / u128::from(entered);
                is_apart[at] = true;
                census.apart_executions += executions;
                if !asked[at].by_insensitive {
                    census.beyond_executions += executions;
                    gained.push(at as u32);
                }
            }
            at += 1;
        });
        if class != 0 && !gained.is_empty() {
            *buckets.entry(gained).or_default() += calls;
        }
    }
    for (pair, apart) in asked.iter().zip(&is_apart) {
        census.apart += u64::from(*apart);
        census.beyond += u64::from(*apart && !pair.by_insensitive);
    }
    for (gained, calls) in buckets {
        let stays_hot = |&at: &u32| {
            let executions = u128::from(asked[at as usize].count) * u128::from(calls) / u128::from(entered);
            executions >= u128::from(counts.threshold)
        };
        if gained.iter().any(stays_hot) {
            census.clones += 1;
            census.clone_instructions += code.instructions.len() as u64;
        }
    }
    census
}

/// The classes of a procedure that were executed, with how often each was.
fn classes(contexts: &Contexts<'_, '_>, counts: &Counts<'_>, procedure: Procedure) -> Vec<(u32, u64)> {
    let mut calls = vec![0u64; contexts.partition.num_classes(procedure) as usize];
    let mut seen = 0u64;
    for &site in contexts.summaries.graph.callers_of(procedure) {
        calls[contexts.partition.class_of(site) as usize] += counts.of_site(site);
        seen += counts.of_site(site);
    }
    // Whoever else called is in class 0.
    calls[0] += counts.of_procedure(procedure).saturating_sub(seen);
    calls.into_iter().enumerate().filter(|c| c.1 > 0).map(|(class, calls)| (class as u32, calls)).collect()
}

/// Shows each pair of each hot block: its count, whether it is apart locally, whether by this solution.
fn for_pairs(
    contexts: &Contexts<'_, '_>,
    counts: &Counts<'_>,
    code: &ProcedureCode,
    solution: &Solution,
    mut show: impl FnMut(u64, bool, bool),
) {
    let summaries = contexts.summaries;
    for (number, block) in code.blocks.iter().enumerate() {
        if !counts.is_hot(block.block) || !summaries.is_understood(code.procedure, block.block) {
            continue;
        }
        let knowledge = summaries.knowledge();
        let region = Region::build(summaries.around.image, code, &knowledge, &[number as u32], &solution.at_start);
        for (i, j) in pairs(&region.references) {
            let (a, b) = (&region.references[i], &region.references[j]);
            show(counts.of_block(block.block), region.is_apart_locally(a, b), judge(&region.symbols, a, b).is_no_alias());
        }
    }
}
