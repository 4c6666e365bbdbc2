//! Which call sites of a procedure share one analysis of it: the one door through which a profile comes into this crate.
//!
//! **Classes.** The sites of each procedure are put into classes. Class 0 holds all that do not matter, and whoever calls the procedure in ways that are not seen;
//! each site that matters has a class of its own. With everything in class 0 the analysis is the classical context-insensitive one, with
//! every site on its own the context-sensitive one.
//!
//! **Skipped procedures.** Where nothing that a caller knows can matter for hot code, a procedure has one class of which nothing is assumed. What it passes on to
//! others is then the same in every context.
//!
//! **What is wanted.** Where it is known which registers matter, contexts are kept of those alone; sites that pass on the same of them, whoever calls, share a class.

mod criteria;
mod relevance;

use lifter::entity::EntityId;
use rustc_hash::FxHashMap;

use crate::context::Context;
use crate::graph::{CallGraph, SiteId};
use crate::procedures::Procedure;
use crate::values::code::RegisterSet;

pub use criteria::Criterion;
pub use relevance::Relevance;

/// Call sites in classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// By site, its class among those of the callee.
    class: Vec<u32>,
    /// By procedure, the number of its class 0 among all classes; one more at the end.
    first_node: Vec<u32>,
    /// By procedure.
    is_skipped: Vec<bool>,
    /// By procedure, the registers of which it matters what callers know; without it, all.
    wanted: Option<Vec<RegisterSet>>,
    /// How many times a procedure was analyzed to make it.
    pub analyses: usize,
}

impl Partition {
    /// Each site that matters on its own, the others together. Sites that are known to pass on the same share a class.
    fn new<'c>(
        graph: &CallGraph,
        num_procedures: usize,
        matters: impl Fn(SiteId) -> bool,
        is_skipped: impl Fn(Procedure) -> bool,
        alike_by: impl Fn(SiteId) -> Option<&'c Context>,
    ) -> Self {
        let mut class = vec![0; graph.sites.len()];
        let mut first_node = Vec::with_capacity(num_procedures + 1);
        let mut next = 0u32;
        let mut skipped = vec![false; num_procedures];
        for procedure in (0..num_procedures).map(Procedure::new) {
            first_node.push(next);
            next += 1;
            skipped[procedure.index()] = is_skipped(procedure);
            if skipped[procedure.index()] {
                continue;
            }
            let mut last = 0;
            let mut alike: FxHashMap<&Context, u32> = FxHashMap::default();
            for &site in graph.callers_of(procedure).iter().filter(|&&site| matters(site)) {
                let shared = alike_by(site).map(|context| *alike.entry(context).or_insert(last + 1));
                class[site.index()] = shared.unwrap_or(last + 1);
                if class[site.index()] > last {
                    last += 1;
                    next += 1;
                }
            }
        }
        first_node.push(next);
        Partition { class, first_node, is_skipped: skipped, wanted: None, analyses: 0 }
    }
    /// One class a procedure.
    pub fn insensitive(graph: &CallGraph, num_procedures: usize) -> Self {
        Self::new(graph, num_procedures, |_| false, |_| false, |_| None)
    }
    /// One class a site.
    pub fn standard(graph: &CallGraph, num_procedures: usize) -> Self {
        Self::new(graph, num_procedures, |_| true, |_| false, |_| None)
    }

    pub fn class_of(&self, site: SiteId) -> u32 {
        self.class[site.index()]
    }
    pub fn num_classes(&self, procedure: Procedure) -> u32 {
        self.first_node[procedure.index() + 1] - self.first_node[procedure.index()]
    }
    /// A procedure's class as one number among all.
    pub fn node(&self, procedure: Procedure, class: u32) -> usize {
        (self.first_node[procedure.index()] + class) as usize
    }
    pub fn num_nodes(&self) -> usize {
        self.first_node.last().map_or(0, |&n| n as usize)
    }
    /// The registers of a procedure of which it matters what callers know.
    pub fn wanted(&self, procedure: Procedure) -> RegisterSet {
        self.wanted.as_ref().map_or(RegisterSet::MAX, |wanted| wanted[procedure.index()])
    }
    pub fn is_skipped(&self, procedure: Procedure) -> bool {
        self.is_skipped[procedure.index()]
    }
}
