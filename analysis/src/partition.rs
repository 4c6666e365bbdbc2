//! Which call sites of a procedure share one analysis of it: the one door through which a profile comes into this crate.
//!
//! **Classes.** The sites of each procedure are put into classes. Class 0 holds all that do not matter, and whoever calls the procedure in ways that are not seen;
//! each site that matters has a class of its own. With everything in class 0 the analysis is the classical context-insensitive one, with
//! every site on its own the context-sensitive one.
//!
//! **Skipped procedures.** Where nothing that a caller knows can matter for hot code, a procedure has one class of which nothing is assumed. What it passes on to
//! others is then the same in every context.

mod criteria;
mod relevance;

use lifter::entity::EntityId;

use crate::context::Context;
use crate::graph::{CallGraph, SiteId};
use crate::procedures::Procedure;

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
    /// What skipped procedures pass on to others, if it is known already.
    known_calls: Option<Vec<(SiteId, Context)>>,
    /// How many times a procedure was analyzed to make it.
    pub analyses: usize,
}

impl Partition {
    /// Each site that matters on its own, the others together.
    pub fn new(
        graph: &CallGraph,
        num_procedures: usize,
        matters: impl Fn(SiteId) -> bool,
        is_skipped: impl Fn(Procedure) -> bool,
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
            for &site in graph.callers_of(procedure) {
                if matters(site) {
                    last += 1;
                    class[site.index()] = last;
                    next += 1;
                }
            }
        }
        first_node.push(next);
        Partition { class, first_node, is_skipped: skipped, known_calls: None, analyses: 0 }
    }
    /// One class a procedure.
    pub fn insensitive(graph: &CallGraph, num_procedures: usize) -> Self {
        Self::new(graph, num_procedures, |_| false, |_| false)
    }
    /// One class a site.
    pub fn standard(graph: &CallGraph, num_procedures: usize) -> Self {
        Self::new(graph, num_procedures, |_| true, |_| false)
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
    pub fn known_calls(&self) -> Option<&[(SiteId, Context)]> {
        self.known_calls.as_deref()
    }
    pub fn is_skipped(&self, procedure: Procedure) -> bool {
        self.is_skipped[procedure.index()]
    }
}
