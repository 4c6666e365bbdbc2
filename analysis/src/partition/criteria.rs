//! Which call sites matter: the paper's criteria, and one of ours.
//!
//! * *Frequency*: of each callee, its sites from the most frequent on, until they make up the share θ of its calls; never one that was not executed.
//! * *Relevance*: those of them from which something can still be learned. The paper takes a procedure as relevant if it contains a hot block or leads to one
//!   that does; here it has to be a hot block with a pair that is not decided yet and that depends on what a register holds at entry, and the way up goes through
//!   the arguments on which that depends (`relevance`).
//! * *Conservative*: sites that alone would make some block of the callee hot.
//! * *Budgeted* (ours): relevant sites, best first by how many executions of undecided pairs they may decide, as many as the budget has.

use lifter::entity::EntityId;

use super::Partition;
use super::relevance::Relevance;
use crate::engine::Summaries;
use crate::graph::SiteId;
use crate::hot::Counts;
use crate::procedures::Procedure;

/// How the sites that matter are chosen.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Criterion {
    Insensitive,
    Standard,
    Frequency { theta: f64 },
    Relevance { theta: f64 },
    Conservative,
    Budgeted { sites: usize },
}

impl Partition {
    /// Sites that matter and from which something can be learned, of relevant procedures alone.
    fn of_relevant(summaries: &Summaries<'_>, relevance: Relevance, chosen: impl Fn(SiteId) -> bool) -> Self {
        let tells = relevance.telling_sites(summaries);
        let settled = relevance.settled_sites(summaries);
        let mut partition = Partition::new(
            &summaries.graph,
            summaries.around.procedures.all.len(),
            |site| tells[site.index()] && chosen(site),
            |procedure| !relevance.is_relevant(procedure),
            |site| settled[site.index()].as_ref(),
        );
        partition.analyses = relevance.analyses;
        partition.wanted = Some(relevance.wanted());
        partition
    }

    /// The partition of a criterion. Without a profile there are but the two ends.
    pub fn by(criterion: Criterion, summaries: &Summaries<'_>, counts: &Counts<'_>) -> Partition {
        let graph = &summaries.graph;
        let count = summaries.around.procedures.all.len();
        match criterion {
            Criterion::Insensitive => Partition::insensitive(graph, count),
            Criterion::Standard => Partition::standard(graph, count),
            Criterion::Frequency { theta } => {
                let frequent = frequent_sites(summaries, counts, theta);
                Partition::new(graph, count, |site| frequent[site.index()], |_| false, |_| None)
            }
            Criterion::Relevance { theta } => {
                let frequent = frequent_sites(summaries, counts, theta);
                let relevance = Relevance::compute(summaries, counts);
                Partition::of_relevant(summaries, relevance, |site| frequent[site.index()])
            }
            Criterion::Conservative => {
                let hottest = hottest_blocks(summaries, counts);
                let matters = |site: SiteId| {
                    let callee = graph.sites[site].callee;
                    let calls = counts.of_procedure(callee).max(1);
                    let own = u128::from(hottest[callee.index()]) * u128::from(counts.of_site(site)) / u128::from(calls);
                    own >= u128::from(counts.threshold)
                };
                Partition::new(graph, count, matters, |_| false, |_| None)
            }
            Criterion::Budgeted { sites } => {
                let relevance = Relevance::compute(summaries, counts);
                let chosen = relevance.best_sites(summaries, counts, sites);
                Partition::of_relevant(summaries, relevance, |site| chosen[site.index()])
            }
        }
    }
}

/// By site, whether it is among the most frequent ones of its callee that make up a share of the calls.
fn frequent_sites(summaries: &Summaries<'_>, counts: &Counts<'_>, theta: f64) -> Vec<bool> {
    let graph = &summaries.graph;
    let mut is_frequent = vec![false; graph.sites.len()];
    for procedure in summaries.around.procedures.all.keys() {
        let mut sites: Vec<SiteId> = graph.callers_of(procedure).to_vec();
        sites.sort_by_key(|&site| (std::cmp::Reverse(counts.of_site(site)), site));
        let total: u128 = sites.iter().map(|&site| u128::from(counts.of_site(site))).sum();
        let wanted = (total as f64 * theta.clamp(0.0, 1.0)).ceil() as u128;
        let mut sum = 0u128;
        for site in sites {
            let own = counts.of_site(site);
            if own == 0 || sum >= wanted && theta < 1.0 {
                break;
            }
            is_frequent[site.index()] = true;
            sum += u128::from(own);
        }
    }
    is_frequent
}

/// By procedure, the count of its most frequent block.
fn hottest_blocks(summaries: &Summaries<'_>, counts: &Counts<'_>) -> Vec<u64> {
    let (program, procedures) = (summaries.around.program, &summaries.around.procedures);
    let most = |p: Procedure| procedures.reach(program, p).into_iter().map(|b| counts.of_block(b)).max().unwrap_or(0);
    procedures.all.keys().map(most).collect()
}
