//! Local search on a finished order: moves runs of blocks so that more executions fall through.
//!
//! **Method.** For each jump that is not a fallthrough, hottest first, two moves would make it one. A later target is fetched, with the
//! blocks that it runs into, to behind the source. An earlier target (a loop whose back edge is a jump) has the stretch from
//! target to source rotated, at the seam where that costs least. A move is made if it gains fallthroughs and does not lower
//! the extended TSP score.
//!
//! **Invariants.** The order stays a permutation with its first block in place. **Termination.** Each move raises the fallthroughs, an
//! integer; passes and lengths are limited besides.

use super::ext_tsp::{BlockGraph, JumpKind, order_score};

const PASSES_MAX: usize = 4;
/// Longer orders are left as they are: a move costs as much as the order is long.
const BLOCKS_MAX: usize = 4096;

pub(crate) fn polish(graph: &BlockGraph, order: &mut Vec<u32>) {
    if order.len() > BLOCKS_MAX {
        return;
    }
    let mut jumps: Vec<_> = graph.jumps.iter().filter(|jump| jump.count > 0 && jump.kind != JumpKind::Indirect).collect();
    jumps.sort_by_key(|jump| std::cmp::Reverse(jump.count));
    let mut positions = vec![0; order.len()];
    let mut score = None;
    for _ in 0..PASSES_MAX {
        let mut has_moved = false;
        renumber(order, &mut positions);
        for jump in &jumps {
            let (source, target) = (positions[jump.source as usize], positions[jump.target as usize]);
            let is_pinned = target == 0 && graph.entry.is_some();
            if source + 1 == target || is_pinned {
                continue;
            }
            let moved = if source < target {
                fetch_target(graph, order, source, target, jump.count)
            } else {
                rotate_loop(graph, order, target, source, jump.count)
            };
            let Some(moved) = moved else { continue };
            let old_score = *score.get_or_insert_with(|| order_score(graph, order));
            let new_score = order_score(graph, &moved);
            if new_score >= old_score {
                *order = moved;
                score = Some(new_score);
                renumber(order, &mut positions);
                has_moved = true;
            }
        }
        if !has_moved {
            break;
        }
    }
}

fn renumber(order: &[u32], positions: &mut [usize]) {
    for (position, &node) in order.iter().enumerate() {
        positions[node as usize] = position;
    }
}

/// Executions that fall through from the block at `position` to the next.
fn seam(graph: &BlockGraph, order: &[u32], position: usize) -> u64 {
    order.get(position + 1).map_or(0, |&next| graph.fallthrough_count(order[position], next))
}

/// `… source | between | target run | rest` to `… source | target run | between | rest`.
fn fetch_target(graph: &BlockGraph, order: &[u32], source: usize, target: usize, count: u64) -> Option<Vec<u32>> {
    let lost = seam(graph, order, source) + seam(graph, order, target - 1);
    if count <= lost {
        return None;
    }
    let run_end = (target..order.len()).find(|&position| seam(graph, order, position) == 0)? + 1;
    let mut moved = order.to_vec();
    moved[source + 1..run_end].rotate_left(target - source - 1);
    Some(moved)
}

/// `before | target … seam | after seam … source | rest` to `before | after seam … source | target … seam | rest`.
fn rotate_loop(graph: &BlockGraph, order: &[u32], target: usize, source: usize, count: u64) -> Option<Vec<u32>> {
    let entered = |node: u32| target.checked_sub(1).map_or(0, |before| graph.fallthrough_count(order[before], node));
    let left = |node: u32| order.get(source + 1).map_or(0, |&rest| graph.fallthrough_count(node, rest));
    let lost_outside = entered(order[target]) + left(order[source]);
    let change = |position: usize| {
        let gained = count + entered(order[position + 1]) + left(order[position]);
        i128::from(gained) - i128::from(lost_outside) - i128::from(seam(graph, order, position))
    };
    // The first of equals, so that the stretch moves as little as may be.
    let best = (target..source).map(|position| (change(position), std::cmp::Reverse(position))).max()?;
    let (gain, std::cmp::Reverse(position)) = best;
    if gain <= 0 {
        return None;
    }
    let mut moved = order.to_vec();
    moved[target..=source].rotate_left(position + 1 - target);
    Some(moved)
}
