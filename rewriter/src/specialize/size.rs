//! How many bytes of code each way to have the contexts would take, before any is made.
//!
//! The lengths of functions and bodies are those of their instructions. What states take beside is counted by the sequences of `emit::code`:
//! * to keep a state: two pushes, and a `lea` for each way out, of which one is counted;
//! * to pass one: a `mov`;
//! * to choose by comparing: for each target but the last a compare, a branch, the call and a jump behind the others;
//! * to choose by a table: the table's address, the sum, the indirect call; and 16 bytes for each state.
//!
//! Functions that can't keep a state get more copies than are counted here, those that can't be copied none.

use super::copies::{Call, Copies, Target};
use super::forest::Forest;
use super::{Body, FunctionId};

const KEEP_STATE: u64 = 4 + 5;
const PASS_STATE: u64 = 6;
const COMPARE: u64 = 5 + 2 + 5 + 2;
const CALL: u64 = 5;
const BY_TABLE: u64 = 7 + 5 + 4;
const TABLE_ENTRY: u64 = 16;

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
        for (copy, data) in copies.copies.iter() {
            add(len(data.function, data.body) + if copies.needs_state(copy) { KEEP_STATE } else { 0 });
        }
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
    let by_compares = (targets.len() as u64 - 1) * COMPARE + passed;
    let by_table = BY_TABLE - CALL + TABLE_ENTRY * call.targets.len() as u64;
    (by_compares, by_table)
}
