//! From contexts that constant propagation has found to a forest.
//!
//! A context has a body if instructions are gone in its case that stay where nothing is known. Bodies are shared by content: cases in which the same becomes of the same
//! instructions have one. The case is the situation: all that a context passes on depends on it alone.

use analysis::constants::{Case, CaseData, ContextId, Exploration, FoundContext, Simplified};
use analysis::procedures::Procedure;
use lifter::entity::{EntityId, PrimaryMap};
use rustc_hash::FxHashMap;

use super::forest::{Forest, ForestBuilder, Node, Situation};
use super::{Body, CallSite, FunctionId};

/// A forest of a binary's contexts; functions are its procedures, call sites those of its call graph.
#[derive(Debug)]
pub struct ContextForest {
    pub forest: Forest,
    /// By body, a case that has it.
    pub bodies: PrimaryMap<Body, Case>,
    /// Contexts that have a body.
    pub num_optimizable: usize,
}

pub fn function_of(procedure: Procedure) -> FunctionId {
    FunctionId::new(procedure.index())
}
pub fn procedure_of(function: FunctionId) -> Procedure {
    Procedure::new(function.index())
}

impl ContextForest {
    /// The forest in which contexts have a body if their case is worth one.
    pub fn build(found: &Exploration<'_, '_>, is_worth_it: impl Fn(ContextId, &FoundContext, &CaseData) -> bool) -> Self {
        let mut builder = ForestBuilder::default();
        let mut nodes: Vec<Node> = Vec::with_capacity(found.contexts.len());
        let mut bodies: PrimaryMap<Body, Case> = PrimaryMap::new();
        let mut by_content: FxHashMap<(Procedure, &Simplified), Body> = FxHashMap::default();
        let mut num_optimizable = 0;
        for (id, context) in found.contexts.iter() {
            let case = &found.cases[context.case];
            let function = function_of(case.procedure);
            let node = match context.parent {
                None => builder.root(function),
                Some((parent, site)) => builder.child(nodes[parent.index()], CallSite::new(site.index()), function),
            };
            nodes.push(node);
            if context.is_root() {
                continue;
            }
            builder.set_situation(node, Situation::new(context.case.index()));
            if case.removed > 0 && is_worth_it(id, context, case) {
                num_optimizable += 1;
                let body = by_content.entry((case.procedure, &case.simplified)).or_insert_with(|| bodies.push(context.case));
                builder.set_body(node, *body);
            }
        }
        ContextForest { forest: builder.finish(), bodies, num_optimizable }
    }
}
