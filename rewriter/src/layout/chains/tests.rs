//! Chains of small graphs against all orders, and large ones against bounds.

use proptest::prelude::*;

use super::*;

/// The best order there is, by trying all.
fn best_order(graph: &BlockGraph, quality: impl Fn(&[u32]) -> f64) -> f64 {
    fn try_all(order: &mut Vec<u32>, from: usize, visit: &mut dyn FnMut(&[u32])) {
        if from == order.len() {
            return visit(order);
        }
        for other in from..order.len() {
            order.swap(from, other);
            try_all(order, from + 1, visit);
            order.swap(from, other);
        }
    }
    let mut order: Vec<u32> = (0..graph.len() as u32).collect();
    let mut best = 0.0f64;
    let num_fixed = usize::from(graph.entry.is_some());
    try_all(&mut order, num_fixed, &mut |order| best = best.max(quality(order)));
    best
}

/// A graph with the counts of random walks from block 0, as a profile has them.
fn walked_graph(num_blocks: usize, seed: u64) -> BlockGraph {
    let mut random = crate::layout::shuffle::Random::new(seed);
    let ways: Vec<Vec<usize>> = (0..num_blocks)
        .map(|_| (0..random.below(4).min(2)).map(|_| random.below(num_blocks as u64) as usize).collect())
        .collect();
    let bias: Vec<u64> = (0..num_blocks).map(|_| random.below(11)).collect();
    let mut counts = vec![0u64; num_blocks];
    let mut taken = vec![[0u64; 2]; num_blocks];
    for _ in 0..20 {
        let mut at = 0;
        for _ in 0..200 {
            counts[at] += 1;
            let way = match ways[at].len() {
                0 => break,
                1 => 0,
                _ => usize::from(random.below(10) < bias[at]),
            };
            taken[at][way] += 1;
            at = ways[at][way];
        }
    }
    let mut jumps = Vec::new();
    for (source, ways) in ways.iter().enumerate() {
        let kind = if ways.len() == 2 { JumpKind::Conditional } else { JumpKind::Unconditional };
        for (way, &target) in ways.iter().enumerate() {
            jumps.push(Jump { source: source as u32, target: target as u32, count: taken[source][way], kind });
        }
    }
    let sizes = (0..num_blocks).map(|_| 1 + random.below(200) as u32).collect();
    BlockGraph::new(sizes, counts, jumps, Some(0))
}

fn original(graph: &BlockGraph) -> Vec<u32> {
    (0..graph.len() as u32).collect()
}

proptest! {
    #[test]
    fn the_order_is_a_permutation_that_starts_with_the_entry(num_blocks in 1usize..60, seed: u64) {
        let graph = walked_graph(num_blocks, seed);
        let mut found = order(&graph);
        prop_assert_eq!(found[0], 0);
        found.sort_unstable();
        prop_assert_eq!(found, original(&graph));
    }

    #[test]
    fn the_order_is_never_worse_than_the_given_one(num_blocks in 1usize..60, seed: u64) {
        let graph = walked_graph(num_blocks, seed);
        let (given, found) = (original(&graph), order(&graph));
        prop_assert!(order_fallthroughs(&graph, &found) >= order_fallthroughs(&graph, &given));
    }

    #[test]
    fn the_order_never_beats_the_exhaustive_search(num_blocks in 1usize..=6, seed: u64) {
        let graph = walked_graph(num_blocks, seed);
        let exact = best_order(&graph, |order| order_score(&graph, order));
        prop_assert!(order_score(&graph, &order(&graph)) <= exact + 1e-6);
    }

    #[test]
    fn polish_keeps_the_entry_first_and_never_loses_score(num_blocks in 2usize..40, seed: u64) {
        let graph = walked_graph(num_blocks, seed);
        let mut polished = original(&graph);
        polish(&graph, &mut polished);
        prop_assert_eq!(polished[0], 0);
        prop_assert!(order_score(&graph, &polished) >= order_score(&graph, &original(&graph)));
    }

    #[test]
    fn each_gain_is_the_rise_of_the_score(num_blocks in 2usize..30, seed: u64) {
        let graph = walked_graph(num_blocks, seed);
        check_gains(&graph);
    }
}

/// Merges by gain, comparing each promised gain with the score of all chains before and after.
fn check_gains(graph: &BlockGraph) {
    let mut merger = Merger::new(graph);
    merger.join_forced_pairs();
    merger.link_chains();
    let score = |merger: &Merger<'_>| -> f64 {
        let inside = |jump: &&Jump| merger.place[jump.source as usize].chain == merger.place[jump.target as usize].chain;
        let place = |node: u32| merger.place[node as usize].offset;
        let end = |node: u32| place(node) + i64::from(graph.sizes[node as usize]);
        graph.jumps.iter().filter(inside).map(|jump| jump_score(jump, end(jump.source), place(jump.target))).sum()
    };
    while let Some(candidate) = merger.candidates.pop() {
        if merger.links.get(candidate.link).version != candidate.version / 2 {
            continue;
        }
        let (a, b) = candidate.chains;
        let Some(merge) = merger.best_merge(a, b, candidate.link).or(merger.best_merge(b, a, candidate.link)) else { continue };
        let before = score(&merger);
        merger.apply(merge);
        merger.renew_links(merge);
        let rise = score(&merger) - before;
        assert!((rise - merge.gain).abs() < 1e-6 * (1.0 + rise.abs()), "{merge:?} raised the score by {rise}");
    }
}

#[test]
fn on_small_graphs_the_order_is_close_to_the_best() {
    let (mut score, mut best_score, mut fallthroughs, mut best_fallthroughs, mut num_best) = (0.0, 0.0, 0.0, 0.0, 0);
    const NUM_GRAPHS: u64 = 300;
    for seed in 0..NUM_GRAPHS {
        let graph = walked_graph(2 + seed as usize % 6, seed);
        let found = order(&graph);
        let found_fallthroughs = order_fallthroughs(&graph, &found) as f64;
        let most = best_order(&graph, |order| order_fallthroughs(&graph, order) as f64);
        score += order_score(&graph, &found);
        best_score += best_order(&graph, |order| order_score(&graph, order));
        fallthroughs += found_fallthroughs;
        best_fallthroughs += most;
        num_best += u64::from(found_fallthroughs == most);
    }
    let (score, fallthroughs) = (score / best_score, fallthroughs / best_fallthroughs);
    assert!(score > 0.99, "{score} of the best score");
    assert!(fallthroughs > 0.99, "{fallthroughs} of the most fallthroughs");
    assert!(num_best * 100 > NUM_GRAPHS * 95, "best in {num_best} of {NUM_GRAPHS}");
}

#[test]
fn in_a_long_chain_the_windows_hold_every_jump_that_earns() {
    for seed in 0..20 {
        let num_blocks = 400;
        let mut random = crate::layout::shuffle::Random::new(seed);
        let jumps = (0..1500)
            .map(|_| Jump {
                source: random.below(num_blocks) as u32,
                target: random.below(num_blocks) as u32,
                count: random.below(1000),
                kind: JumpKind::Conditional,
            })
            .collect();
        let sizes = (0..num_blocks).map(|_| 1 + random.below(60) as u32).collect();
        check_gains(&BlockGraph::new(sizes, vec![1; num_blocks as usize], jumps, Some(0)));
    }
}

#[test]
fn a_loop_with_its_test_at_the_top_is_rotated() {
    // 0 → 1 (test) → 2 (body) → 1, and 1 → 3 once: the jump 2 → 1 becomes a fallthrough, the test's branch the back edge.
    let jump = |source, target, count, kind| Jump { source, target, count, kind };
    let jumps = vec![
        jump(0, 1, 1, JumpKind::Unconditional),
        jump(1, 2, 100, JumpKind::Conditional),
        jump(1, 3, 1, JumpKind::Conditional),
        jump(2, 1, 100, JumpKind::Unconditional),
    ];
    let graph = BlockGraph::new(vec![8; 4], vec![1, 101, 100, 1], jumps, Some(0));
    assert_eq!(order(&graph), [0, 2, 1, 3]);
}

#[test]
fn counts_of_a_hostile_profile_do_not_overflow() {
    let jump = |source, target| Jump { source, target, count: u64::MAX, kind: JumpKind::Unconditional };
    let graph = BlockGraph::new(vec![8; 3], vec![u64::MAX; 3], vec![jump(0, 1), jump(1, 2), jump(2, 1)], Some(0));
    assert_eq!(order(&graph).len(), 3);
}

#[test]
fn ten_thousand_blocks_are_ordered_without_quadratic_work() {
    let graph = walked_graph(10_000, 7);
    let hub = |source: u32| Jump { source, target: 1 + source % 97, count: u64::from(source % 13), kind: JumpKind::Conditional };
    let jumps = graph.jumps.iter().copied().chain((200..10_000).map(hub)).collect();
    let graph = BlockGraph::new(graph.sizes.clone(), vec![1; graph.len()], jumps, Some(0));
    let started = std::time::Instant::now();
    assert_eq!(order(&graph).len(), 10_000);
    assert!(started.elapsed().as_secs() < 20, "took {:?}", started.elapsed());
}
