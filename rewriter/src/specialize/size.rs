//! How many bytes of code each way to have the contexts would take, before any is made.
//!
//! The lengths of functions and bodies are those of their instructions. What calls take beside the call itself is counted by these sequences:
//! * to pass a state: two pushes of a byte, which keep the stack aligned, and a `lea` that takes them off;
//! * to choose by comparing: a load of the state from the frame, then for each target but the last a compare, a branch, the call and a jump behind the others;
//! * to choose by a table: the load, the table's address, the entry, the indirect call; and eight bytes for each state.

use super::copies::{Call, Copies, Target};
use super::forest::Forest;
use super::{Body, FunctionId};

const PASS_STATE: u64 = 2 + 2 + 5;
const LOAD_STATE: u64 = 5;
const COMPARE: u64 = 4 + 2 + 5 + 2;
const CALL: u64 = 5;
const BY_TABLE: u64 = LOAD_STATE + 7 + 5 + 3 + 3;
const TABLE_ENTRY: u64 = 8;

/// How long functions and bodies are.
pub trait Lengths {
    fn function(&self, function: FunctionId) -> u64;
    fn body(&self, body: Body) -> u64;
}

/// Bytes added by each way.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Copies, each call that depends on the state with compares.
    pub inline: u64,
    /// The same with tables.
    pub table: u64,
    /// The same, for each call what is shorter.
    pub shorter: u64,
    /// A clone of every context's function, contexts that are no root's.
    pub full: u64,
    /// A clone for every state that can be told apart.
    pub full_shared: u64,
}

impl Sizes {
    pub fn of(forest: &Forest, copies: &Copies, lengths: &dyn Lengths) -> Self {
        let len = |function, body: Option<Body>| body.map_or_else(|| lengths.function(function), |body| lengths.body(body));
        let paths = forest.nodes.iter().filter(|(_, data)| data.parent.is_some());
        let mut sizes =
            Sizes { full: paths.map(|(node, data)| len(data.function, forest.body_in(node))).sum(), ..Sizes::default() };
        let passes = |target: Target| match target {
            Target::Copy { copy, .. } if copies.needs_state(copy) => PASS_STATE,
            _ => 0,
        };
        let mut add = |bytes: u64| {
            sizes.inline += bytes;
            sizes.table += bytes;
            sizes.shorter += bytes;
        };
        copies.copies.values().for_each(|copy| add(len(copy.function, copy.body)));
        copies.roots.iter().for_each(|&(_, _, target)| add(passes(target)));
        for copy in copies.copies.values() {
            sizes.full_shared += len(copy.function, copy.body) * copy.states.len() as u64;
            for call in &copy.calls {
                let (by_compares, by_table) = choosing(call, &passes);
                sizes.inline += by_compares;
                sizes.table += by_table;
                sizes.shorter += by_compares.min(by_table);
            }
        }
        sizes
    }
}

/// What a call takes beside itself, by compares and by a table.
fn choosing(call: &Call, passes: &dyn Fn(Target) -> u64) -> (u64, u64) {
    if let Some(always) = call.always() {
        return (passes(always), passes(always));
    }
    let mut targets = call.targets.clone();
    targets.sort_unstable();
    targets.dedup();
    let passed: u64 = targets.iter().map(|&target| passes(target)).sum();
    let by_compares = LOAD_STATE + (targets.len() as u64 - 1) * COMPARE + passed;
    let most = targets.iter().map(|&target| passes(target)).max().unwrap_or(0);
    let by_table = BY_TABLE - CALL + most + TABLE_ENTRY * call.targets.len() as u64;
    (by_compares, by_table)
}
