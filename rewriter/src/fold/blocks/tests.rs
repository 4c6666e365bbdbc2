//! Which blocks share a copy, and which don't, in small programs.

use super::*;
use crate::fold::shares::Slowdown;
use crate::layout;
use crate::testing::{End, ProgramBuilder, TEXT_START, TestBlock, image_of, random_program, walk};

fn program(funcs: Vec<Vec<TestBlock>>) -> Program {
    funcs.into_iter().fold(ProgramBuilder::default(), ProgramBuilder::func).build()
}

/// What goes, and what stays for it, if every byte of code is a no-op.
fn folded(program: &Program, weights: &Weights) -> Vec<(usize, usize)> {
    let found = find(program, weights);
    found.pairs().iter().map(|&(goes, stays)| (goes.index(), stays.index())).collect()
}

fn find(program: &Program, weights: &Weights) -> BlockFolding {
    find_for(program, weights, Slowdown::PERCENT_MAX)
}

fn find_for(program: &Program, weights: &Weights, percent: f32) -> BlockFolding {
    let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
    let text = vec![0x90; (end.0 - TEXT_START) as usize];
    let all = SecondaryMap::new(program.blocks.len(), true);
    let mut plan = layout::packed(program);
    let shares = Shares::of(program, weights, Slowdown::from_percent(percent));
    BlockFolding::apply(&image_of(&text), program, &mut plan, (weights, &shares), &all);
    plan.folded_blocks
}

/// A branch over a body of its own to a tail of two blocks.
fn with_tail(own: u32, tail: u32) -> Vec<TestBlock> {
    vec![
        TestBlock::new(own, End::Branch(2)),
        TestBlock::new(own, End::Return),
        TestBlock::new(40, End::Fallthrough),
        TestBlock::new(tail, End::Return),
    ]
}

#[test]
fn tails_that_nothing_runs_into_are_shared_across_functions() {
    let program = program(vec![with_tail(10, 30), with_tail(11, 30)]);
    assert_eq!(folded(&program, &Weights::default()), [(6, 2), (7, 3)]);
}

#[test]
fn a_difference_behind_a_tail_keeps_all_that_leads_to_it_apart() {
    let program = program(vec![with_tail(10, 30), with_tail(11, 31)]);
    assert_eq!(folded(&program, &Weights::default()), []);
}

#[test]
fn what_ran_or_has_a_name_stays() {
    let mut named = program(vec![with_tail(10, 90), with_tail(11, 90)]);
    let weights = Weights { blocks: vec![0, 0, 0, 0, 0, 0, 1, 1], ..Weights::default() };
    assert_eq!(folded(&named, &weights), [(2, 6), (3, 7)]);
    let weights = Weights { blocks: vec![0, 0, 1, 1, 0, 0, 1, 1], ..Weights::default() };
    assert_eq!(folded(&named, &weights), []);
    named.blocks[Block::new(6)].flags.insert(BlockFlags::LANDING_PAD);
    assert_eq!(folded(&named, &Weights::default()), [(2, 6), (7, 3)]);
    named.blocks[Block::new(2)].flags.insert(BlockFlags::ADDRESS_TAKEN);
    named.blocks[Block::new(6)].flags = BlockFlags::empty();
    assert_eq!(folded(&named, &Weights::default()), [(6, 2), (7, 3)]);
}

#[test]
fn another_unwind_class_keeps_tails_apart() {
    let mut second = with_tail(11, 30);
    second[2] = second[2].clone().in_new_range(5);
    let program = program(vec![with_tail(10, 30), second]);
    assert_eq!(folded(&program, &Weights::default()), []);
}

#[test]
fn what_is_run_into_goes_only_where_it_is_long_and_no_loop() {
    let straight = |own: u32, tail: u32| vec![TestBlock::new(own, End::Fallthrough), TestBlock::new(tail, End::Return)];
    let tails = |own: u32, tail: u32| program(vec![straight(own, tail), straight(own + 1, tail)]);
    assert_eq!(folded(&tails(8000, FAR_BYTES_MIN), &Weights::default()), [(3, 1)]);
    assert_eq!(folded(&tails(8000, FAR_BYTES_MIN - 1), &Weights::default()), []);
    let around = |own: u32| {
        vec![
            TestBlock::new(1000 + own, End::Fallthrough),
            TestBlock::new(own, End::Fallthrough),
            TestBlock::new(40, End::Branch(1)),
            TestBlock::new(80, End::Return),
        ]
    };
    // The bodies of the loops go back to different heads; what comes behind them is no loop.
    assert_eq!(folded(&program(vec![around(10), around(11)]), &Weights::default()), [(7, 3)]);
}

#[test]
fn what_is_run_into_stays_if_no_time_may_be_spent_unless_a_profile_says_that_it_does_not_run() {
    let straight = || vec![TestBlock::new(12, End::Fallthrough), TestBlock::new(40, End::Return)];
    let program = program(vec![straight(), straight(), straight()]);
    let num_folded = |weights: &Weights, percent: f32| find_for(&program, weights, percent).pairs().len();
    let unknown = Weights::default();
    assert_eq!([0.0, 2.0, 10.0].map(|percent| num_folded(&unknown, percent)), [0, 0, 2]);
    let elsewhere = Weights { blocks: vec![0, 0, 0, 0, 1, 0], ..Weights::default() };
    assert_eq!(num_folded(&elsewhere, 0.0), 2);
}

#[test]
fn blocks_that_share_lead_to_blocks_that_are_the_same_or_share() {
    for seed in 0..60 {
        let program = random_program(30, 8, seed);
        let folding = find(&program, &walk(&program, 3, seed));
        let place = |block: Block| {
            folding.pairs().binary_search_by_key(&block, |&(goes, _)| goes).map_or(block, |index| folding.pairs()[index].1)
        };
        for &(goes, stays) in folding.pairs() {
            assert_eq!(place(stays), stays, "seed {seed}: what stays for another does not go");
            assert_eq!(program.blocks[goes].body_len, program.blocks[stays].body_len, "seed {seed}");
        }
    }
}
