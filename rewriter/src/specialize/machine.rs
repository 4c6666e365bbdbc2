//! The state machine of a forest: the source's algorithm 2.
//!
//! **States.** One for each context (phase 1), and one more, which can only be returned from, for each context whose function has a call that leads somewhere in another
//! context but not in this one (phase 3): the original of the callee runs then.
//!
//! **Transitions.** By the call that is made (phase 2), and back by the return (the source's label -1). A return leads to the caller's state. In a tree that is one state; where a
//! context ends and a shorter one goes on (`Forest::after_call`, which the source does not have), callers differ, and only the caller knows its own. The code that
//! relift makes needs no returns at all (see `specialize`); they are here because the machine is the source's, and the tests drive it.
//!
//! **Size**: at most two states for each context (the source's property 3.14).

use std::fmt::Write as _;

use lifter::entity::{EntityId, PrimaryMap};
use rustc_hash::FxHashMap;

use super::forest::{Forest, Node};
use super::{CallSite, FunctionId, Names};

lifter::define_id!(
    /// A state.
    State, "s");

/// What a state stands for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateKind {
    Context(Node),
    /// An original runs, called from this context.
    ReturnOnly(Node),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateData {
    pub kind: StateKind,
    /// Ascending by site.
    pub calls: Vec<(CallSite, State)>,
    /// The caller's state; `None` at a root.
    pub back: Option<State>,
}

/// All states; those of contexts come first, in the order of the forest.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub states: PrimaryMap<State, StateData>,
}

/// By function, the calls that lead somewhere in any of its contexts, ascending.
pub fn relevant_sites(forest: &Forest) -> FxHashMap<FunctionId, Vec<CallSite>> {
    let mut sites: FxHashMap<FunctionId, Vec<CallSite>> = FxHashMap::default();
    for data in forest.nodes.values().filter(|data| !data.children.is_empty()) {
        sites.entry(data.function).or_default().extend(data.children.iter().map(|c| c.0));
    }
    for list in sites.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    sites
}

impl Machine {
    pub fn build(forest: &Forest) -> Self {
        let sites = relevant_sites(forest);
        let state_of = |node: Node| State::new(node.index());
        let mut machine = Machine::default();
        for (node, data) in forest.nodes.iter() {
            let back = data.parent.map(|(parent, _)| state_of(parent));
            machine.states.push(StateData { kind: StateKind::Context(node), calls: Vec::new(), back });
        }
        for (node, data) in forest.nodes.iter() {
            let mut return_only = None;
            for &site in sites.get(&data.function).map_or(&[][..], |list| list) {
                // A root is entered as any function is: what runs there is the original.
                let target = forest.after_call(node, site).filter(|&target| forest.nodes[target].parent.is_some());
                let target = target.map(state_of).unwrap_or_else(|| {
                    let kind = StateKind::ReturnOnly(node);
                    let back = Some(state_of(node));
                    *return_only.get_or_insert_with(|| machine.states.push(StateData { kind, calls: Vec::new(), back }))
                });
                machine.states[state_of(node)].calls.push((site, target));
            }
        }
        machine
    }

    pub fn after_call(&self, state: State, site: CallSite) -> Option<State> {
        let calls = &self.states[state].calls;
        calls.binary_search_by_key(&site, |c| c.0).ok().map(|found| calls[found].1)
    }

    /// The machine as text: each state with its function and what it runs, then where its calls lead and its return.
    pub fn dump(&self, forest: &Forest, names: &dyn Names) -> String {
        let mut text = String::new();
        for (state, data) in self.states.iter() {
            match data.kind {
                StateKind::Context(node) => {
                    let what = forest.body_in(node).map_or_else(String::new, |body| format!(" as {}", names.body(body)));
                    let _ = write!(text, "{state}: {}{what}", names.function(forest.nodes[node].function));
                    let path = forest.path_of(node);
                    if !path.is_empty() {
                        let _ = write!(text, " by {}", super::joined(path.iter().map(|&site| names.site(site)), ", "));
                    }
                }
                StateKind::ReturnOnly(node) => {
                    let _ = write!(text, "{state}: an original, called from {}", State::new(node.index()));
                }
            }
            text.push('\n');
            for &(site, target) in &data.calls {
                let _ = writeln!(text, "  {} -> {target}", names.site(site));
            }
            if let Some(back) = data.back {
                let _ = writeln!(text, "  return -> {back}");
            }
        }
        text
    }
}
