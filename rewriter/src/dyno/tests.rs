//! Counts of small programs, in the input's order and in others.

use proptest::prelude::*;

use super::*;
use crate::layout::{self, LayoutOptions};
use crate::testing::{End, ProgramBuilder, TEXT_START, TestBlock, image_of, random_program_with, walk};

const NOP: u8 = 0x90;

fn text_of(program: &Program) -> Vec<u8> {
    let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
    vec![NOP; (end.0 - TEXT_START) as usize]
}

/// Places for a plan: one block after the other, each as long as in the input.
fn places(program: &Program, plan: &LayoutPlan) -> SecondaryMap<Block, (Va, u32)> {
    let mut places = SecondaryMap::new(program.blocks.len(), (Va(0), 0));
    for (block, data) in program.blocks.iter() {
        places[block] = (data.start, data.len);
    }
    let mut at = Va(0x10_0000);
    for fragment in &plan.fragments {
        for planned in &fragment.blocks {
            let len = program.blocks[planned.block].len;
            places[planned.block] = (at, len);
            at = at + u64::from(len);
        }
    }
    places
}

fn after(image: &Image<'_>, program: &Program, weights: &Weights, plan: &LayoutPlan) -> DynoStats {
    let places = places(program, plan);
    compute(
        image,
        program,
        weights,
        Order::Output { plan, edits: &EditPlan::default(), input_weights: weights, placement: &|block| places[block] },
    )
}

/// A loop with its test on top, run 100 times: `0 → 1; 1 → 3 or 2; 2 → 1`.
fn loop_with_test_on_top() -> (Program, Weights) {
    let program = ProgramBuilder::default()
        .func(vec![
            TestBlock::new(4, End::Fallthrough),
            TestBlock::new(6, End::Branch(3)),
            TestBlock::new(10, End::Jump(1)),
            TestBlock::new(4, End::Return),
        ])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[1, 101, 100, 1]);
    // 0→1; 1→2, 1→3; 2→1.
    weights.edges.copy_from_slice(&[1, 100, 1, 100]);
    (program, weights)
}

#[test]
fn rotating_a_loop_saves_a_taken_branch_per_round() {
    let (program, weights) = loop_with_test_on_top();
    let text = text_of(&program);
    let image = image_of(&text);
    let before = compute(&image, &program, &weights, Order::Input);
    // Bodies of nops: 4 · 1, 4 · 101, 8 · 100, 4 · 1; 101 branches, 100 jumps.
    assert_eq!(before.instructions, 4 + 404 + 800 + 4 + 101 + 100);
    assert_eq!(before.blocks, 203);
    assert_eq!((before.taken_conditional_branches, before.not_taken_conditional_branches), (1, 100));
    assert_eq!((before.unconditional_branches, before.taken_branches), (100, 101));
    assert_eq!((before.forward_branches, before.taken_forward_branches, before.backward_branches), (101, 1, 0));

    let plan = layout::compute(&program, &weights, &EditPlan::default(), &LayoutOptions::default());
    let rotated = after(&image, &program, &weights, &plan);
    // The jump into the loop is new, the one per round is gone, and the branch at the end of each round is taken.
    assert_eq!((rotated.unconditional_branches, rotated.taken_conditional_branches), (1, 100));
    assert_eq!(rotated.instructions, before.instructions - 99);
    assert_eq!((rotated.backward_branches, rotated.taken_backward_branches), (101, 100));
}

#[test]
fn bodies_are_counted_by_what_they_hold() {
    let program = ProgramBuilder::default().func(vec![TestBlock::new(20, End::Return)]).build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks[0] = 7;
    // mov (%rdi),%rax; add %rax,(%rsi); call *%rdx; call next; xor %eax,%eax; ret; nops
    let mut text = vec![0x48, 0x8b, 0x07, 0x48, 0x01, 0x06, 0xff, 0xd2, 0xe8, 0, 0, 0, 0, 0x31, 0xc0, 0xc3];
    text.resize(20, NOP);
    let stats = compute(&image_of(&text), &program, &weights, Order::Input);
    assert_eq!(stats.instructions, 7 * 10);
    assert_eq!((stats.calls, stats.indirect_calls, stats.plt_calls), (14, 7, 0));
    // Each call pushes, the return pops; the addition reads and writes.
    assert_eq!((stats.loads, stats.stores), (7 * 3, 7 * 3));
    assert_eq!((stats.hot_bytes, stats.hot_pages, stats.hot_lines), (20, 1, 1));
}

#[test]
fn what_the_plan_leaves_out_runs_as_it_was() {
    let (program, weights) = loop_with_test_on_top();
    let text = text_of(&program);
    let image = image_of(&text);
    assert_eq!(after(&image, &program, &weights, &LayoutPlan::default()), compute(&image, &program, &weights, Order::Input));
}

#[test]
fn a_tail_call_is_no_branch() {
    let program = ProgramBuilder::default()
        .func(vec![TestBlock::new(10, End::TailCall(1))])
        .func(vec![TestBlock::new(10, End::Return)])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[5, 5]);
    let text = text_of(&program);
    let stats = compute(&image_of(&text), &program, &weights, Order::Input);
    assert_eq!((stats.tail_calls, stats.taken_branches), (5, 0));
    assert_eq!(stats.instructions, 5 * 5 + 5 + 5 * 10);
}

proptest! {
    #[test]
    fn the_layout_never_adds_taken_branches_and_no_layout_changes_the_work(num_funcs in 1usize..10, seed: u64) {
        let program = random_program_with(num_funcs, 20, false, seed);
        let weights = walk(&program, 100, seed);
        let text = text_of(&program);
        let image = image_of(&text);
        let before = compute(&image, &program, &weights, Order::Input);
        let optimized = layout::compute(&program, &weights, &EditPlan::default(), &LayoutOptions::default());
        let shuffled = layout::shuffle(&program, seed);
        for plan in [&optimized, &shuffled] {
            let stats = after(&image, &program, &weights, plan);
            prop_assert_eq!(stats.blocks, before.blocks);
            prop_assert_eq!((stats.calls, stats.loads, stats.stores), (before.calls, before.loads, before.stores));
            prop_assert_eq!(stats.tail_calls, before.tail_calls);
            prop_assert_eq!(stats.forward_branches + stats.backward_branches, before.forward_branches + before.backward_branches);
        }
        prop_assert!(after(&image, &program, &weights, &optimized).taken_branches <= before.taken_branches);
    }

    #[test]
    fn the_input_laid_out_as_it_was_takes_the_same_branches_but_for_useless_jumps(num_funcs in 1usize..10, seed: u64) {
        let program = random_program_with(num_funcs, 20, false, seed);
        let weights = walk(&program, 100, seed);
        let text = text_of(&program);
        let image = image_of(&text);
        let before = compute(&image, &program, &weights, Order::Input);
        let again = after(&image, &program, &weights, &layout::original(&program));
        prop_assert!(again.taken_branches <= before.taken_branches);
        prop_assert!(again.instructions <= before.instructions);
    }
}
