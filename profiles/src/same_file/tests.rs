//! The same code, cut into functions and blocks in two ways.

use proptest::prelude::*;

use super::*;
use crate::attribute::attribute;
use crate::format::{Descriptor, ProfileFile};
use crate::infer::first_inconsistent;
use crate::instrument::plan_counters;
use crate::testing::{BLOCK_BYTES, End, arbitrary_ends, empty_image, program, walk};

/// The ends of blocks that come behind so many others.
fn behind(ends: &[End], before: usize) -> Vec<End> {
    let shift = |targets: &[usize]| targets.iter().map(|target| target + before).collect();
    let shifted = |end: &End| match end {
        End::Jump(target) => End::Jump(target + before),
        End::Branch(target) => End::Branch(target + before),
        End::Table(targets) => End::Table(shift(targets)),
        End::Computed(targets) => End::Computed(shift(targets)),
        End::Fallthrough => End::Fallthrough,
        End::Return => End::Return,
    };
    ends.iter().map(shifted).collect()
}

fn weights_of(program: &Program, walks: &[Vec<u8>]) -> Weights {
    let (blocks, edges) = walk(program, walks);
    let counts = |values: Vec<i64>| values.into_iter().map(|value| value as u64).collect();
    Weights { blocks: counts(blocks), edges: counts(edges), ..Weights::default() }
}

proptest! {
    // No file of past failures: a failing case belongs here as a test of its own.
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_counts_arrive_where_two_functions_are_one_now_and_where_one_is_two(
        first in arbitrary_ends(12),
        second in arbitrary_ends(12),
        walks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..8),
    ) {
        let apart = program(&[first.clone(), second.clone()]);
        let joined = program(&[[first.clone(), behind(&second, first.len())].concat()]);
        for (before, after) in [(&apart, &joined), (&joined, &apart)] {
            let weights = weights_of(before, &walks);
            let outline = Outline::build(&empty_image(), before);
            prop_assert!(outline.is_placed());
            let (carried, quality) = carry_by_address(&outline, &weights, after);
            prop_assert_eq!(&carried.blocks, &weights.blocks);
            prop_assert_eq!(&carried.edges, &weights.edges);
            prop_assert_eq!(first_inconsistent(after, &carried), None);
            prop_assert_eq!((quality.functions_matched, quality.counts_matched), (1, quality.counts_total));
        }
    }
}

/// A block of twice the length at the start of the second program stands for two of the first.
fn cut_and_whole() -> (Program, Program) {
    let cut = program(&[vec![End::Fallthrough, End::Branch(3), End::Return, End::Return]]);
    let mut whole = program(&[vec![End::Branch(2), End::Return, End::Return]]);
    for (index, block) in whole.blocks.values_mut().enumerate() {
        (block.start, block.len) = match index {
            0 => (block.start, 2 * BLOCK_BYTES),
            _ => (block.start + u64::from(BLOCK_BYTES), block.len),
        };
    }
    whole.ranges[0].end = whole.ranges[0].end + u64::from(BLOCK_BYTES);
    (cut, whole)
}

#[test]
fn execution_runs_through_a_cut_in_what_was_one_block_and_the_other_way_round() {
    let (cut, whole) = cut_and_whole();
    let of_cut = Weights { blocks: vec![10, 10, 7, 3], edges: vec![10, 7, 3], ..Weights::default() };
    let of_whole = Weights { blocks: vec![10, 7, 3], edges: vec![7, 3], ..Weights::default() };
    let carry = |before: &Program, weights: &Weights, after: &Program| {
        carry_by_address(&Outline::build(&empty_image(), before), weights, after).0
    };
    assert_eq!(carry(&cut, &of_cut, &whole), of_whole);
    assert_eq!(carry(&whole, &of_whole, &cut), of_cut);
}

#[test]
fn calls_and_what_they_called_are_found_by_address() {
    let (ends, callee) = (vec![End::Branch(2), End::Return, End::Return], vec![End::Return]);
    let apart = program(&[ends.clone(), ends.clone(), callee.clone()]);
    let joined = program(&[[ends.clone(), behind(&ends, 3)].concat(), callee]);
    let mut weights = Weights::none(7, 4);
    let site = |block: usize, callee: usize| IndirectTargets {
        block: Block::new(block),
        return_offset: 5,
        targets: vec![(Func::new(callee), 8)],
        other: 1,
    };
    weights.indirect = vec![site(4, 2), IndirectTargets { targets: vec![(Func::new(1), 3)], ..site(5, 2) }];
    weights.entered = vec![(Func::new(2), 6)];
    let (carried, _) = carry_by_address(&Outline::build(&empty_image(), &apart), &weights, &joined);
    // The second function is entered no more: what was called there is no function.
    let lost = IndirectTargets { targets: Vec::new(), other: 4, ..site(5, 1) };
    assert_eq!(carried.indirect, [site(4, 1), lost]);
    assert_eq!(carried.entered, [(Func::new(1), 6)]);
}

#[test]
fn a_profile_of_the_same_code_with_another_number_of_functions_is_of_no_other_build() {
    let ends = vec![End::Branch(2), End::Return, End::Return];
    let apart = program(&[ends.clone(), ends.clone()]);
    let joined = program(&[[ends.clone(), behind(&ends, 3)].concat()]);
    let mut file = ProfileFile::empty(Descriptor::build(&empty_image(), &apart, &plan_counters(&empty_image(), &apart)));
    (1u64..).zip(&mut file.counters).for_each(|(number, counter)| *counter = number * 10);
    let expected = attribute(&file, &empty_image(), &apart).expect("the same program");
    let found =
        attribute(&ProfileFile::read(&file.write()).expect("it reads back"), &empty_image(), &joined).expect("the same code");
    assert!(expected.quality.is_exact && !found.quality.is_exact && found.quality.stale.is_none());
    assert_eq!(found.weights.blocks, expected.weights.blocks);
    // As many functions as before, but others.
    let regrouped = program(&[ends[..2].to_vec(), [vec![End::Return], ends].concat()]);
    assert!(!attribute(&file, &empty_image(), &regrouped).expect("the same code").quality.is_exact);
    // What says nothing of places is carried over as another build's is.
    file.descriptor.funcs.iter_mut().for_each(|func| func.outline.parts.clear());
    assert!(attribute(&file, &empty_image(), &joined).expect("much is alike").quality.stale.is_some());
}
