//! The order of what the profile did not see running: other inputs will run some of it, so what is likelier to run lies together.
//!
//! **Method.** First the parts that were split off functions that ran, in the order of these functions: an error path of the busiest code is
//! likelier to be met than code that was never near. Then the functions that were not entered at all, by how many calls or
//! references away from code that ran they are, so that what hot code could call next comes before what nothing leads to; at the same
//! distance, and where nothing is known, in input order, in which the compiler and the author left neighbors that belong together.
//!
//! **Invariant.** A permutation of what was given. **Termination**: a breadth-first search, each function once, each of its references once.

use lifter::entity::{Block, EntityId, Func};
use lifter::ir::{CodeTarget, Program, RefTarget, Terminator};

use super::by_address;
use crate::plan::FragmentPlan;

/// Behind `hot`, the fragments that ran in their order, those that did not.
pub(super) fn order(program: &Program, hot: &[FragmentPlan], cold: Vec<FragmentPlan>) -> Vec<FragmentPlan> {
    let mut ranks: Vec<Option<u32>> = vec![None; program.funcs.len()];
    for (rank, fragment) in (0..).zip(hot) {
        ranks[fragment.func.index()].get_or_insert(rank);
    }
    let distances = distances(program, hot);
    let has_run = |fragment: &FragmentPlan| ranks[fragment.func.index()].is_some();
    let (parts, rest): (Vec<_>, Vec<_>) = cold.into_iter().partition(has_run);
    let (mut parts, mut rest) = (by_address(program, parts), by_address(program, rest));
    parts.sort_by_key(|fragment| ranks[fragment.func.index()]);
    rest.sort_by_key(|fragment| distances[fragment.func.index()]);
    parts.append(&mut rest);
    parts
}

/// By function, how many references away it is from the functions of `hot`; `u32::MAX` where none leads to it.
fn distances(program: &Program, hot: &[FragmentPlan]) -> Vec<u32> {
    let mut distances = vec![u32::MAX; program.funcs.len()];
    let mut reached: Vec<Func> = Vec::new();
    let mut reach = |func: Func, distance: u32, reached: &mut Vec<Func>| {
        if distances[func.index()] == u32::MAX {
            distances[func.index()] = distance;
            reached.push(func);
        }
        distances[func.index()]
    };
    hot.iter().for_each(|fragment| {
        reach(fragment.func, 0, &mut reached);
    });
    let mut next = 0;
    while let Some(&func) = reached.get(next) {
        next += 1;
        let distance = reach(func, 0, &mut reached) + 1;
        for block in program.funcs[func].blocks.iter() {
            for target in named_by(program, block) {
                reach(program.func_of(target), distance, &mut reached);
            }
        }
    }
    distances
}

/// Blocks that a block calls, names or jumps to.
fn named_by(program: &Program, block: Block) -> impl Iterator<Item = Block> + '_ {
    let by_reference = program.block_refs(block).iter().filter_map(|reference| match reference.target {
        RefTarget::Block(target) => Some(target),
        RefTarget::Fixed(_) | RefTarget::Table(_) | RefTarget::UnwindTable(_) => None,
    });
    let by_jump = match program.blocks[block].terminator {
        Terminator::Jump { target: CodeTarget::Block(target) } => Some(target),
        Terminator::Branch { taken: CodeTarget::Block(target), .. } => Some(target),
        _ => None,
    };
    by_reference.chain(by_jump)
}
