//! Orders of a run that may be better: list scheduling.
//!
//! **Method.** Of the instructions that may come next, the one from which the way to the end of the run is longest comes first (*by height*); or, with an eye on the clock, the
//! longest of those whose operands are there (*by cycle*). In a tie the original order decides, so that what gains nothing stays. Both for each processor. An order is but a proposal: the model
//! judges it.
//!
//! **Terminates**: each round places an instruction or lets a cycle pass, up to the last latency.

use super::effects::Effects;
use super::graph::{Graph, Progress, latency, members};
use super::model::{PROCESSORS, Processor, Step};

/// Instructions that are placed in one cycle.
const WIDTH: u32 = 4;

/// Proposals, none twice, the original not among them.
pub(super) fn orders(graph: &Graph, run: &[Effects], steps: &[Step]) -> Vec<Vec<u32>> {
    let original: Vec<u32> = (0..run.len() as u32).collect();
    let mut all: Vec<Vec<u32>> = Vec::new();
    for processor in PROCESSORS {
        let heights = graph.heights(run, steps, processor);
        let proposals = [by_height(graph, &heights), by_cycle(graph, run, steps, &heights, processor)];
        for order in proposals.into_iter().flatten() {
            if order != original && !all.contains(&order) {
                all.push(order);
            }
        }
    }
    all
}

/// `None` if flags that are waited for leave nothing that may come next.
fn by_height(graph: &Graph, heights: &[u32]) -> Option<Vec<u32>> {
    let mut progress = Progress::new(graph);
    let mut order = Vec::with_capacity(heights.len());
    while order.len() < heights.len() {
        let next = progress.ready().max_by_key(|&at| (heights[at], std::cmp::Reverse(at)))?;
        progress.place(next);
        order.push(next as u32);
    }
    Some(order)
}

fn by_cycle(graph: &Graph, run: &[Effects], steps: &[Step], heights: &[u32], processor: &Processor) -> Option<Vec<u32>> {
    let mut progress = Progress::new(graph);
    let mut order = Vec::with_capacity(heights.len());
    let mut start = vec![0u32; heights.len()];
    let (mut cycle, mut placed) = (0u32, 0u32);
    while order.len() < heights.len() {
        let operands = |at: usize| {
            let waits =
                |earlier: usize| start[earlier] + latency(&run[earlier], &steps[earlier], &run[at], &steps[at], processor);
            members(graph.before[at]).map(waits).max().unwrap_or(0)
        };
        let ready: Vec<(usize, u32)> = progress.ready().map(|at| (at, operands(at))).collect();
        let first = ready.iter().map(|&(_, operands)| operands).min()?;
        if first > cycle {
            (cycle, placed) = (first, 0);
        }
        let now = ready.iter().filter(|&&(_, operands)| operands <= cycle);
        let &(next, _) = now.max_by_key(|&&(at, _)| (heights[at], std::cmp::Reverse(at)))?;
        progress.place(next);
        order.push(next as u32);
        start[next] = cycle;
        placed += 1;
        if placed == WIDTH {
            (cycle, placed) = (cycle + 1, 0);
        }
    }
    Some(order)
}
