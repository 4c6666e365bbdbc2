//! Samples of the forms that others record, and the counts of blocks and edges that they become.

use super::*;
use crate::infer::first_inconsistent;
use crate::samples::Collector;
use crate::testing::{BLOCK_BYTES, End, empty_image, program};

fn block_at(index: u64) -> Va {
    Va(0x1000 + u64::from(BLOCK_BYTES) * index)
}

fn end_of(index: u64) -> Va {
    Va(block_at(index).0 + u64::from(BLOCK_BYTES) - 1)
}

#[test]
fn branch_records_become_edges_and_what_they_imply() {
    // bb0 → bb1 | bb2; bb1 → bb3; bb2 → bb3.
    let program = program(&[vec![End::Branch(2), End::Jump(3), End::Fallthrough, End::Return]]);
    let mut collector = Collector::default();
    collector.branch(None, Some(block_at(0)), 10, 0);
    collector.branch(Some(end_of(0)), Some(block_at(2)), 7, 0);
    collector.branch(Some(end_of(0)), Some(block_at(1)), 3, 0);
    let (weights, quality) = weigh(&empty_image(), &program, &collector.finish());
    assert_eq!(first_inconsistent(&program, &weights), None);
    assert_eq!(weights.blocks, [10, 3, 7, 10]);
    assert_eq!((quality.mapped, quality.functions), (20, 1));
}

#[test]
fn a_straight_run_counts_what_it_falls_through() {
    let program = program(&[vec![End::Branch(2), End::Fallthrough, End::Branch(0), End::Return]]);
    let mut collector = Collector::default();
    collector.trace(block_at(0), end_of(2), 4);
    collector.branch(Some(end_of(2)), Some(block_at(0)), 3, 0);
    collector.branch(None, Some(block_at(0)), 1, 0);
    let (weights, _) = weigh(&empty_image(), &program, &collector.finish());
    assert_eq!(first_inconsistent(&program, &weights), None);
    assert_eq!(weights.blocks[..3], [4, 4, 4]);
}

#[test]
fn plain_samples_become_consistent_weights() {
    let program = program(&[vec![End::Branch(2), End::Fallthrough, End::Return]]);
    let mut collector = Collector::default();
    for (block, count) in [(0, 100), (1, 60), (2, 110)] {
        collector.note(count, true);
        collector.address(block_at(block), count);
    }
    let (weights, quality) = weigh(&empty_image(), &program, &collector.finish());
    assert_eq!(first_inconsistent(&program, &weights), None);
    assert!(weights.blocks[1] > weights.blocks[0] / 3, "{weights:?}");
    assert_eq!(quality.mapped, quality.total);
}

#[test]
fn counts_beyond_any_real_profile_do_not_overflow() {
    let program = program(&[vec![End::Branch(0), End::Return]]);
    let mut collector = Collector::default();
    collector.branch(Some(end_of(0)), Some(block_at(0)), u64::MAX, 0);
    collector.branch(None, Some(block_at(0)), u64::MAX, 0);
    let (weights, _) = weigh(&empty_image(), &program, &collector.finish());
    assert_eq!(first_inconsistent(&program, &weights), None);
}

#[test]
fn a_function_that_is_called_but_has_no_record_of_its_own_is_entered_not_idle() {
    let straight = vec![End::Fallthrough, End::Return];
    let program = program(&[vec![End::Return], vec![End::Branch(3), End::Jump(3), End::Return], straight, vec![End::Return]]);
    let mut collector = Collector::default();
    collector.branch(Some(block_at(0)), Some(block_at(1)), 9, 0);
    collector.branch(Some(block_at(0)), Some(block_at(4)), 5, 0);
    let (weights, _) = weigh(&empty_image(), &program, &collector.finish());
    assert_eq!(first_inconsistent(&program, &weights), None);
    let entered: Vec<(usize, u64)> = weights.entered.iter().map(|&(func, count)| (func.index(), count)).collect();
    assert_eq!(entered, [(1, 9)], "whichever way it went");
    assert_eq!(weights.blocks[4..6], [5, 5], "there is but one way");
    let mut twice = weights.clone();
    twice.add(&weights, 2);
    assert_eq!(twice.entered, [(weights.entered[0].0, 27)]);
}
