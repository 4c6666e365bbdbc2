//! Two builds of one program, as outlines made by hand: which functions and blocks are recognized, and what becomes of the counts.

use lifter::entity::EntityId;
use proptest::prelude::*;

use super::blocks::match_blocks;
use super::functions::base_name;
use super::*;
use crate::flow::FlowGraph;
use crate::infer::first_inconsistent;
use crate::outline::{BlockOutline, EdgeOutline, FuncOutline};
use crate::testing::{arbitrary_ends, empty_image, program, walk};
use lifter::ir::EdgeKind;

/// A function whose block `i` has the `i`th hash on every level, and these edges. The last block returns.
fn func(name: &str, hashes: &[u32], edges: &[(u32, u32)]) -> FuncOutline {
    let last = hashes.len() - 1;
    let block = |(i, &hash): (usize, &u32)| BlockOutline {
        offset: 8 * i as u32,
        strong: hash,
        middle: hash,
        loose: hash,
        num_insts: 6,
        may_arrive: i == 0,
        may_depart: i == last,
    };
    let mut edges: Vec<EdgeOutline> =
        edges.iter().map(|&(source, target)| EdgeOutline { source, target, kind: EdgeKind::Fallthrough }).collect();
    edges.sort_by_key(|e| e.source);
    let content_hash = hashes.iter().fold(7, |sum: u64, &h| sum.wrapping_mul(31).wrapping_add(u64::from(h)));
    FuncOutline {
        name: name.into(),
        content_hash,
        blocks: hashes.iter().enumerate().map(block).collect(),
        edges,
        ..FuncOutline::default()
    }
}

fn outline(funcs: Vec<FuncOutline>) -> Outline {
    Outline { funcs }
}

fn found(old: &Outline, new: &Outline) -> Vec<Option<usize>> {
    let wanted = vec![true; old.funcs.len()];
    match_functions(old, new, &wanted).into_iter().map(|m| m.map(|(func, _)| func.index())).collect()
}

fn pairs(old: &FuncOutline, new: &FuncOutline) -> Vec<Option<u32>> {
    match_blocks(old, new).into_iter().map(|m| m.map(|(block, _)| block)).collect()
}

const LINE: [(u32, u32); 3] = [(0, 1), (1, 2), (2, 3)];

#[test]
fn functions_are_recognized_by_name_wherever_they_went() {
    let old = outline(vec![func("a", &[1, 2], &[(0, 1)]), func("b", &[3, 4], &[(0, 1)])]);
    let new = outline(vec![func("b", &[3, 9], &[(0, 1)]), func("new", &[8], &[]), func("a", &[1, 7], &[(0, 1)])]);
    assert_eq!(found(&old, &new), [Some(2), Some(0)]);
}

#[test]
fn what_compilers_append_to_names_does_not_matter() {
    for (name, base) in [
        ("f.cold", "f"),
        ("f.part.0.cold", "f"),
        ("f.constprop.12", "f"),
        ("f.isra.0", "f"),
        ("f.lto_priv.345", "f"),
        ("f.llvm.789", "f"),
        ("_ZN1a.b", "_ZN1a.b"),
        (".cold", ".cold"),
    ] {
        assert_eq!(base_name(name), base);
    }
    let old = outline(vec![func("f.lto_priv.3", &[1, 2], &[(0, 1)])]);
    let new = outline(vec![func("g", &[1, 2, 3], &[(0, 1), (1, 2)]), func("f.lto_priv.17.constprop.0", &[5], &[])]);
    assert_eq!(found(&old, &new), [Some(1)]);
}

#[test]
fn local_functions_of_one_name_are_told_apart_by_content() {
    let old = outline(vec![func("init", &[1, 2], &[(0, 1)]), func("init", &[3, 4], &[(0, 1)])]);
    let new = outline(vec![func("init", &[3, 4], &[(0, 1)]), func("init", &[1, 2], &[(0, 1)])]);
    assert_eq!(found(&old, &new), [Some(1), Some(0)]);
}

#[test]
fn functions_without_a_name_are_recognized_by_content_by_their_blocks_and_by_their_callers() {
    let callers = |calls: &[(u32, u32)]| FuncOutline { calls: calls.to_vec(), ..func("main", &[1, 2, 3], &[(0, 1), (1, 2)]) };
    let old = outline(vec![
        callers(&[(1, 3)]),
        func("", &[10, 11], &[(0, 1)]),
        func("", &[20, 21, 22, 23], &LINE),
        func("", &[30, 31, 32], &[(0, 1), (1, 2)]),
    ]);
    let mut changed = func("", &[30, 39, 38], &[(0, 1), (1, 2)]);
    changed.blocks.iter_mut().for_each(|b| b.num_insts = 3);
    let new = outline(vec![
        changed,
        func("", &[20, 29, 22, 23], &LINE),
        func("", &[90, 91], &[(0, 1)]),
        func("", &[10, 11], &[(0, 1)]),
        callers(&[(1, 0)]),
    ]);
    assert_eq!(found(&old, &new), [Some(4), Some(3), Some(1), Some(0)]);
}

#[test]
fn a_function_that_nothing_speaks_for_is_not_matched() {
    let old = outline(vec![func("", &[1, 2, 3, 4], &LINE)]);
    let new = outline(vec![func("", &[5, 6, 7, 8], &LINE), func("other", &[1, 9], &[(0, 1)])]);
    assert_eq!(found(&old, &new), [None]);
}

#[test]
fn blocks_around_an_inserted_one_are_found() {
    let old = func("f", &[1, 2, 3, 4], &LINE);
    let new = func("f", &[1, 2, 50, 3, 4], &[(0, 1), (1, 2), (2, 3), (3, 4)]);
    assert_eq!(pairs(&old, &new), [Some(0), Some(1), Some(3), Some(4)]);
}

#[test]
fn equal_blocks_go_by_their_place_between_others() {
    // Three times block 5, one of them removed in the new build.
    let old = func("f", &[1, 5, 2, 5, 3, 5], &[(0, 1), (0, 3), (0, 5)]);
    let new = func("f", &[1, 2, 5, 3, 5], &[(0, 2), (0, 4)]);
    assert_eq!(pairs(&old, &new), [Some(0), None, Some(1), Some(2), Some(3), Some(4)]);
}

#[test]
fn a_block_whose_content_was_edited_is_found_by_its_place_in_the_flow() {
    let old = func("f", &[1, 2, 3, 4], &LINE);
    let new = func("f", &[1, 99, 3, 4], &LINE);
    assert_eq!(pairs(&old, &new), [Some(0), Some(1), Some(2), Some(3)]);
}

#[test]
fn counts_move_with_their_blocks_and_the_flow_through_new_ones_is_inferred() {
    // bb0 → bb1 → bb2, with a block put in between in the new build.
    let old = outline(vec![func("f", &[1, 2, 3], &[(0, 1), (1, 2)])]);
    let new = outline(vec![func("f", &[1, 2, 9, 3], &LINE)]);
    let weights = Weights { blocks: vec![50; 3], edges: vec![50; 2], ..Weights::default() };
    let program = new.to_program();
    let (carried, quality) = carry_over(&old, &weights, &new, &program);
    assert_eq!(first_inconsistent(&program, &carried), None);
    assert_eq!(carried.blocks, [50; 4]);
    assert_eq!((quality.functions_matched(), quality.blocks_matched, quality.blocks_total), (1, 3, 3));
    assert_eq!(quality.counts_matched, quality.counts_total);
}

#[test]
fn a_callee_that_was_inlined_before_is_entered_as_often_as_its_caller_says() {
    let old = outline(vec![func("f", &[1, 7, 3], &[(0, 1), (1, 2)])]);
    let caller = FuncOutline { calls: vec![(0, 1)], ..func("f", &[1, 3], &[(0, 1)]) };
    let new = outline(vec![caller, func("g", &[7, 8], &[(0, 1)])]);
    let weights = Weights { blocks: vec![40; 3], edges: vec![40; 2], ..Weights::default() };
    let program = new.to_program();
    let (carried, _) = carry_over(&old, &weights, &new, &program);
    assert_eq!(first_inconsistent(&program, &carried), None);
    assert_eq!(carried.blocks, [40; 4]);
}

#[test]
fn a_callee_that_is_inlined_now_lends_its_counts() {
    let caller = FuncOutline { calls: vec![(0, 1)], ..func("f", &[1, 3], &[(0, 1)]) };
    // The callee goes on to block 8 rarely.
    let old = outline(vec![caller, func("g", &[6, 7, 8, 9], &[(0, 1), (0, 2), (1, 3), (2, 3)])]);
    let new = outline(vec![func("f", &[1, 7, 8, 3], &[(0, 1), (0, 2), (1, 3), (2, 3)])]);
    let weights = Weights { blocks: vec![40, 40, 40, 37, 3, 40], edges: vec![40, 37, 3, 37, 3], ..Weights::default() };
    let program = new.to_program();
    let (carried, _) = carry_over(&old, &weights, &new, &program);
    assert_eq!(first_inconsistent(&program, &carried), None);
    assert_eq!(carried.blocks, [40, 37, 3, 40]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_outline_has_the_flow_network_of_its_program(ends in arbitrary_ends(12)) {
        let program = program(&[ends]);
        let outlined = Outline::build(&empty_image(), &program).to_program();
        let graph = |program: &Program| {
            let mut arcs = FlowGraph::build(program, lifter::entity::Func::new(0)).arcs;
            arcs.sort_by_key(|arc| (arc.from, arc.to, format!("{:?}", arc.kind)));
            arcs
        };
        prop_assert_eq!(graph(&program), graph(&outlined));
    }

    #[test]
    fn a_profile_carried_over_to_the_same_program_is_the_same(
        ends in arbitrary_ends(12),
        walks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..10),
    ) {
        let program = program(&[ends]);
        let (blocks, edges) = walk(&program, &walks);
        let unsigned = |values: Vec<i64>| values.into_iter().map(|v| v as u64).collect();
        let weights = Weights { blocks: unsigned(blocks), edges: unsigned(edges), ..Weights::default() };
        let outline = Outline::build(&empty_image(), &program);
        let (carried, _) = carry_over(&outline, &weights, &outline, &program);
        prop_assert_eq!(carried, weights);
    }

    #[test]
    fn whatever_is_carried_over_obeys_conservation(
        before in arbitrary_ends(12),
        after in arbitrary_ends(12),
        walks in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..10),
    ) {
        let (before, after) = (program(&[before]), program(&[after]));
        let (blocks, edges) = walk(&before, &walks);
        let unsigned = |values: Vec<i64>| values.into_iter().map(|v| v as u64).collect();
        let weights = Weights { blocks: unsigned(blocks), edges: unsigned(edges), ..Weights::default() };
        let named = |program: &Program| {
            let mut outline = Outline::build(&empty_image(), program);
            outline.funcs[0].name = "f".into();
            outline
        };
        let (carried, quality) = carry_over(&named(&before), &weights, &named(&after), &after);
        prop_assert_eq!(first_inconsistent(&after, &carried), None);
        prop_assert_eq!(quality.functions_matched(), 1);
    }
}
