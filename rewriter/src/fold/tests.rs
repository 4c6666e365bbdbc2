//! What is folded and what is not, in small programs.

use lifter::ir::{SlotData, SlotKind};
use lifter::{Va, ir::Evidence};

use super::*;
use crate::layout::{self, LayoutOptions};
use crate::testing::{End, ProgramBuilder, TEXT_START, TestBlock, image_of, random_program, walk};

/// What is folded if every byte of code is a no-op.
fn folded(program: &Program) -> Vec<(usize, usize)> {
    let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
    let text = vec![0x90; (end.0 - TEXT_START) as usize];
    let found = Folding::find(&image_of(&text), program);
    found.pairs().iter().map(|&(func, stays)| (func.index(), stays.index())).collect()
}

fn leaf(len: u32) -> Vec<TestBlock> {
    vec![TestBlock::new(len, End::Return)]
}

fn calling(func: usize) -> Vec<TestBlock> {
    vec![TestBlock::new(20, End::Fallthrough).calling(func), TestBlock::new(4, End::Return)]
}

fn program(funcs: Vec<Vec<TestBlock>>) -> Program {
    funcs.into_iter().fold(ProgramBuilder::default(), ProgramBuilder::func).build()
}

#[test]
fn equal_functions_and_those_that_call_them_are_folded() {
    // 0 and 1 are equal, 2 is not; 3 calls 0, 4 calls 1, 5 calls 2.
    let program = program(vec![leaf(8), leaf(8), leaf(9), calling(0), calling(1), calling(2)]);
    assert_eq!(folded(&program), [(1, 0), (4, 3)]);
}

#[test]
fn where_the_first_of_equal_functions_is_left_out_the_next_one_stands_for_the_rest() {
    let program = program(vec![leaf(8), leaf(8), leaf(8), calling(0), calling(1), calling(2)]);
    let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
    let text = vec![0x90; (end.0 - TEXT_START) as usize];
    let among = |closed: &[usize]| {
        let found = Folding::find(&image_of(&text), &program).among(|func| !closed.contains(&func.index()));
        found.pairs().iter().map(|&(func, stays)| (func.index(), stays.index())).collect::<Vec<_>>()
    };
    assert_eq!(among(&[]), [(1, 0), (2, 0), (4, 3), (5, 3)]);
    // Where 5 is folded with 4, nothing leads to 2 any more.
    assert_eq!(among(&[0, 3]), [(2, 1), (5, 4)]);
    assert_eq!(among(&[1, 4]), [(2, 0), (5, 3)]);
    assert_eq!(among(&[0, 1, 3]), [(5, 4)]);
}

#[test]
fn recursive_functions_are_folded_and_a_difference_far_away_is_not_overlooked() {
    // Two rings of two functions each, that call each other.
    assert_eq!(folded(&program(vec![calling(1), calling(0), calling(3), calling(2)])), [(1, 0), (2, 0), (3, 0)]);
    // Two chains of calls that differ at their ends alone.
    let chain = |start: usize| (0..40).map(move |i| calling(start + i + 1));
    let mut funcs: Vec<_> = chain(0).chain([leaf(8)]).chain(chain(41)).collect();
    funcs.push(leaf(9));
    assert_eq!(folded(&program(funcs.clone())), []);
    *funcs.last_mut().expect("not empty") = leaf(8);
    let expected: Vec<(usize, usize)> = (0..41).map(|i| (41 + i, i)).collect();
    assert_eq!(folded(&program(funcs)), expected);
}

#[test]
fn a_function_whose_address_may_be_held_stays_and_stands_for_others() {
    let mut program = program(vec![leaf(8), leaf(8), leaf(8), leaf(8)]);
    for func in [1, 2] {
        program.slots.push(SlotData {
            at: Va(0x9000 + 8 * func as u64),
            kind: SlotKind::Abs64,
            target: Block::new(func),
            evidence: Evidence::Exact,
        });
    }
    // What the program starts with stays too.
    assert_eq!(folded(&program), [(3, 0)]);
    program.blocks[Block::new(3)].flags.insert(BlockFlags::ADDRESS_TAKEN);
    assert_eq!(folded(&program), []);
    // An anchor keeps the old address, so the function may go.
    program.blocks[Block::new(3)].flags.insert(BlockFlags::ANCHOR);
    assert_eq!(folded(&program), [(3, 0)]);
}

#[test]
fn an_address_that_is_computed_has_to_be_the_same() {
    let mut with_addresses = program(vec![leaf(8), leaf(8), calling(0), calling(1)]);
    with_addresses.refs.iter_mut().for_each(|reference| reference.role = RefRole::Address);
    assert_eq!(folded(&with_addresses), []);
    let mut of_one = program(vec![leaf(8), leaf(8), calling(0), calling(0)]);
    of_one.refs.iter_mut().for_each(|reference| reference.role = RefRole::Address);
    assert_eq!(folded(&of_one), [(1, 0), (3, 2)]);
}

#[test]
fn what_stays_weighs_as_much_as_all_that_it_stands_for() {
    let program = program(vec![calling(4), calling(4), leaf(8), leaf(8), leaf(7)]);
    let folding = Folding { pairs: vec![(Func::new(1), Func::new(0)), (Func::new(3), Func::new(2))] };
    let weights = Weights {
        blocks: vec![3, 3, 5, 5, 0, 0, 1],
        edges: vec![3, 5],
        entered: vec![(Func::new(2), 10), (Func::new(3), 20)],
        ..Weights::default()
    };
    let merged = folding.weights(&program, weights.clone());
    assert_eq!(merged.blocks, [8, 8, 0, 0, 0, 0, 1]);
    assert_eq!(merged.edges, [8, 0]);
    assert_eq!(merged.entered, [(Func::new(2), 30)]);
}

#[test]
fn a_layout_has_no_folded_function_and_loses_no_other() {
    for seed in 0..20 {
        let program = random_program(40, 6, seed);
        let end = program.blocks.values().map(|data| data.end()).max().unwrap_or_default();
        let text = vec![0x90; (end.0 - TEXT_START) as usize];
        let folded = Folding::find(&image_of(&text), &program);
        let weights = folded.weights(&program, walk(&program, 100, seed));
        let options = LayoutOptions { folded: folded.clone(), ..LayoutOptions::default() };
        let plan = layout::compute(&program, &weights, &crate::edit::EditPlan::default(), &options);
        for (func, data) in program.funcs.iter().filter(|(_, data)| data.is_movable()) {
            let is_there = plan.fragments.iter().any(|fragment| fragment.func == func);
            assert_eq!(is_there, folded.representative(func) == func && !data.blocks.is_empty(), "{func} of seed {seed}");
        }
    }
}
