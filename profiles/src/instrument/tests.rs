//! Where counters go, and that the counts of random walks come back from them exactly.

use proptest::prelude::*;

use super::*;
use crate::testing::{End, arbitrary_ends, empty_image, program, walk};

/// What the counters of a plan read after runs with these true counts.
fn read_counters(plan: &CounterPlan, blocks: &[i64], edges: &[i64]) -> Vec<u64> {
    let read = |site: &CounterSite| match *site {
        CounterSite::Block(block) => blocks[block.index()] as u64,
        CounterSite::Edge(index) => edges[index as usize] as u64,
    };
    plan.counters.iter().map(read).collect()
}

#[test]
fn a_straight_function_needs_one_counter() {
    let program = program(&[vec![End::Fallthrough, End::Fallthrough, End::Return]]);
    let plan = plan_counters(&empty_image(), &program);
    // Where it is entered, since it may be left by any call in it.
    assert_eq!(plan.counters, [CounterSite::Block(Block::new(0))]);
}

#[test]
fn a_loop_with_a_branch_counts_one_side_of_it_in_place() {
    // bb0 → bb1 (header) → bb2 | bb3; both → bb4 → bb1 | bb5.
    let ends = vec![End::Fallthrough, End::Branch(3), End::Jump(4), End::Fallthrough, End::Branch(1), End::Return];
    let program = program(&[ends]);
    let plan = plan_counters(&empty_image(), &program);
    // Arcs minus nodes plus one: 6 blocks + 7 edges + 2 - 13 + 1.
    assert_eq!(plan.counters.len(), 3);
    let is_block = |i: usize| plan.counters.contains(&CounterSite::Block(Block::new(i)));
    assert!(is_block(2) && is_block(3), "{plan:?}");
}

#[test]
fn tables_that_share_targets_leave_no_block_open() {
    let (one, other) = (vec![4, 5], vec![5, 4]);
    let ends = vec![End::Branch(2), End::Table(one), End::Table(other), End::Return, End::Branch(0), End::Branch(3), End::Return];
    let program = program(&[ends]);
    let plan = plan_counters(&empty_image(), &program);
    let counts = derive(&program, &plan, &vec![0; plan.counters.len()]);
    assert!(counts.blocks.iter().all(|count| count.get() == Some(0)), "{counts:?}");
}

#[test]
fn pinned_functions_have_no_counters() {
    let mut program = program(&[vec![End::Return], vec![End::Return]]);
    program.funcs[Func::new(0)].pin = Some(lifter::ir::PinReason::NoBounds);
    let plan = plan_counters(&empty_image(), &program);
    assert_eq!(plan.counters, [CounterSite::Block(Block::new(1))]);
    let counts = derive(&program, &plan, &[7]);
    assert_eq!(counts.blocks[0].get(), None);
    assert_eq!(counts.blocks[1].get(), Some(7));
}

#[test]
fn counts_beyond_a_lifetime_are_scaled_down_not_overflowed() {
    let program = program(&[vec![End::Branch(1), End::Return], vec![End::Return]]);
    let plan = plan_counters(&empty_image(), &program);
    let counts = derive(&program, &plan, &vec![u64::MAX; plan.counters.len()]);
    assert!(counts.blocks.iter().all(|c| c.get().is_some_and(|c| c < 1 << 58)));
}

proptest! {
    // No file of past failures: a failing case belongs here as a test of its own.
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn derive_reproduces_the_counts_of_walks_exactly(
        ends in arbitrary_ends(24),
        walks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..6),
    ) {
        let program = program(&[ends]);
        let plan = plan_counters(&empty_image(), &program);
        let (blocks, edges) = walk(&program, &walks);
        let counts = derive(&program, &plan, &read_counters(&plan, &blocks, &edges));
        for (found, truth) in counts.blocks.iter().zip(&blocks) {
            prop_assert_eq!(found.get(), Some(*truth));
        }
        for (index, (found, truth)) in counts.edges.iter().zip(&edges).enumerate() {
            match found.get() {
                Some(found) => prop_assert_eq!(found, *truth),
                None => prop_assert!(!is_countable(program.edges[index].kind), "a countable edge was left open"),
            }
        }
    }

    #[test]
    fn counters_are_never_more_than_the_cycles_of_the_network(ends in arbitrary_ends(24)) {
        let program = program(&[ends]);
        let plan = plan_counters(&empty_image(), &program);
        let graph = FlowGraph::build(&program, Func::new(0));
        prop_assert!(plan.counters.len() < graph.arcs.len() + 2 - graph.num_nodes());
        for site in &plan.counters {
            if let CounterSite::Edge(index) = site {
                prop_assert!(is_countable(program.edges[*index as usize].kind));
            }
        }
    }
}
