//! Legality of every layout, by properties over random programs, and what each decision does in small ones.

use lifter::ir::{CodeTarget, Terminator};
use proptest::prelude::*;

use super::*;
use crate::testing::{End, ProgramBuilder, TestBlock, random_program, walk};

fn compute(program: &Program, weights: &Weights, options: &LayoutOptions) -> LayoutPlan {
    super::compute(program, weights, &EditPlan::default(), options)
}

/// What every plan must hold to.
fn check_legal(program: &Program, plan: &LayoutPlan) {
    let mut times_planned = vec![0; program.blocks.len()];
    for fragment in &plan.fragments {
        assert!(!fragment.blocks.is_empty());
        assert!(program.funcs[fragment.func].is_movable(), "{} is pinned", fragment.func);
        assert!(fragment.align.is_power_of_two());
        let class = |block: Block| program.ranges[program.blocks[block].range as usize].unwind_class;
        for (position, planned) in fragment.blocks.iter().enumerate() {
            if planned.copy.is_some() {
                // A copy is run into from what stands before it; a tail call to the function's own entry has no edge.
                let before = fragment.blocks[position.checked_sub(1).expect("a copy never comes first")].block;
                let is_jump = program.blocks[before].terminator == Terminator::Jump { target: CodeTarget::Block(planned.block) };
                let has_edge = program.block_edges(before).iter().any(|edge| edge.target == planned.block);
                assert!(is_jump || has_edge, "{before} never goes to {}", planned.block);
                assert_eq!(class(planned.block), class(before), "classes mixed");
                continue;
            }
            times_planned[planned.block.index()] += 1;
            assert_eq!(program.func_of(planned.block), fragment.func);
            assert_eq!(class(planned.block), class(fragment.blocks[0].block), "classes mixed");
            assert!(planned.align.is_power_of_two() && planned.align <= fragment.align);
            assert!(planned.align >= align::demanded(program, planned.block));
        }
    }
    for (block, data) in program.blocks.iter() {
        let expected = i32::from(program.funcs[data.func].is_movable());
        assert_eq!(times_planned[block.index()], expected, "{block}");
    }
}

/// Executions that run from one block into the next.
fn fallthroughs(program: &Program, weights: &Weights, plan: &LayoutPlan) -> u64 {
    let pairs = plan.fragments.iter().flat_map(|fragment| fragment.blocks.windows(2));
    let count = |pair: &[PlannedBlock]| -> u64 {
        let data = &program.blocks[pair[0].block];
        let vanishes = |edge: &usize| {
            let edge = &program.edges[*edge];
            edge.target == pair[1].block && jump_kind(&data.terminator, edge.kind) != JumpKind::Indirect
        };
        data.edges.as_usize().filter(vanishes).map(|edge| weights.edges[edge]).sum()
    };
    pairs.map(count).sum()
}

fn temperature_of(plan: &LayoutPlan, block: usize) -> Option<Temperature> {
    let holds = |fragment: &&FragmentPlan| fragment.blocks.iter().any(|planned| planned.block.index() == block);
    plan.fragments.iter().find(holds).map(|fragment| fragment.temperature)
}

proptest! {
    #[test]
    fn every_layout_is_legal(num_funcs in 1usize..20, blocks_max in 1u64..30, seed: u64) {
        let program = random_program(num_funcs, blocks_max, seed);
        let weights = walk(&program, 50, seed);
        check_legal(&program, &original(&program));
        check_legal(&program, &shuffle(&program, seed));
        check_legal(&program, &compute(&program, &weights, &LayoutOptions::default()));
        let plain = LayoutOptions { reorder_blocks: false, reorder_functions: false, split: false, ..LayoutOptions::default() };
        check_legal(&program, &compute(&program, &weights, &plain));
    }

    #[test]
    fn the_entry_of_a_function_that_ran_comes_first(num_funcs in 1usize..10, seed: u64) {
        let program = random_program(num_funcs, 20, seed);
        let weights = walk(&program, 50, seed);
        let plan = compute(&program, &weights, &LayoutOptions { reorder_functions: false, ..LayoutOptions::default() });
        for fragment in plan.fragments.iter().filter(|fragment| fragment.temperature == Temperature::Hot) {
            let entry = program.funcs[fragment.func].entry;
            let at = fragment.blocks.iter().position(|planned| planned.block == entry);
            prop_assert!(at.is_none_or(|at| at == 0));
        }
    }

    #[test]
    fn reordering_never_adds_taken_branches(num_funcs in 1usize..10, seed: u64) {
        let program = random_program(num_funcs, 30, seed);
        let weights = walk(&program, 100, seed);
        let with = |reorder_blocks| {
            compute(&program, &weights, &LayoutOptions {
                reorder_blocks,
                duplicate_tails: false,
                unroll_loops: false,
                ..LayoutOptions::default()
            })
        };
        prop_assert!(fallthroughs(&program, &weights, &with(true)) >= fallthroughs(&program, &weights, &with(false)));
    }

    #[test]
    fn hot_comes_before_cold(num_funcs in 1usize..20, seed: u64) {
        let program = random_program(num_funcs, 20, seed);
        let plan = compute(&program, &walk(&program, 20, seed), &LayoutOptions::default());
        prop_assert!(plan.fragments.is_sorted_by_key(|fragment| fragment.temperature));
    }
}

#[test]
fn a_copied_loop_leaves_out_what_only_a_jump_leads_to() {
    let program = ProgramBuilder::default()
        .func(vec![
            TestBlock::new(20_000, End::Fallthrough),
            TestBlock::new(8, End::Branch(3)),
            TestBlock::new(8, End::Jump(4)),
            TestBlock::new(8, End::Fallthrough),
            TestBlock::new(8, End::Branch(1)),
            TestBlock::new(8, End::Return),
        ])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[10, 1000, 900, 100, 1000, 10]);
    for (edge, count) in program.edges.iter().zip(&mut weights.edges) {
        *count = match (edge.source.index(), edge.target.index()) {
            (1, 2) | (2, 4) => 900,
            (1, 3) | (3, 4) => 100,
            (4, 1) => 990,
            _ => 10,
        };
    }
    let as_it_is = LayoutOptions { reorder_blocks: false, duplicate_tails: false, ..LayoutOptions::default() };
    let plan = compute(&program, &weights, &as_it_is);
    let blocks: Vec<usize> = plan.fragments[0].blocks.iter().map(|planned| planned.block.index()).collect();
    assert_eq!(blocks, [0, 1, 2, 3, 4, 1, 2, 4, 1, 2, 4, 1, 2, 4, 5]);
    check_legal(&program, &plan);
}

#[test]
fn copied_tails_save_taken_branches_within_their_budget() {
    let program = random_program(200, 30, 11);
    let weights = walk(&program, 2000, 11);
    let with = |duplicate_tails| {
        compute(&program, &weights, &LayoutOptions { duplicate_tails, unroll_loops: false, ..LayoutOptions::default() })
    };
    let (plain, copied) = (with(false), with(true));
    let copies = copied.fragments.iter().flat_map(|f| &f.blocks).filter(|b| b.copy.is_some());
    let bytes: u64 = copies.map(|b| u64::from(program.blocks[b.block].len)).sum();
    let all: u64 = program.blocks.values().filter(|b| program.funcs[b.func].is_movable()).map(|b| u64::from(b.len)).sum();
    assert!(bytes > 0, "nothing was copied");
    assert!(bytes <= all * LayoutOptions::default().duplicate_per_mille_max / 1000, "{bytes} of {all} bytes");
    let originals = |plan: &LayoutPlan| -> Vec<Block> {
        plan.fragments.iter().flat_map(|f| &f.blocks).filter(|b| b.copy.is_none()).map(|b| b.block).collect()
    };
    assert_eq!(originals(&plain), originals(&copied), "copies moved something");
}

#[test]
fn a_short_hot_loop_is_repeated_behind_itself_and_a_loop_that_is_left_at_once_is_not() {
    let program = ProgramBuilder::default()
        .func(vec![
            TestBlock::new(20_000, End::Fallthrough),
            TestBlock::new(20, End::Branch(1)),
            TestBlock::new(20_000, End::Return),
        ])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    let with = |rounds: u64, exits: u64, weights: &mut Weights| {
        weights.blocks.copy_from_slice(&[exits, rounds + exits, exits]);
        // Edges: 0→1; then the two ways out of 1, whichever comes first.
        let to_itself = program.edges[1].target == Block::new(1);
        weights.edges.copy_from_slice(&[exits, if to_itself { rounds } else { exits }, if to_itself { exits } else { rounds }]);
        let plan = compute(&program, weights, &LayoutOptions { duplicate_tails: false, ..LayoutOptions::default() });
        plan.fragments[0]
            .blocks
            .iter()
            .map(|planned| (planned.block.index(), planned.copy.map(|times| times.count())))
            .collect::<Vec<_>>()
    };
    let unrolled = with(1000, 10, &mut weights);
    assert_eq!(unrolled.iter().map(|&(block, _)| block).collect::<Vec<_>>(), [0, 1, 1, 1, 1, 2]);
    assert!(matches!(unrolled[2].1, Some(copied) if (200..=300).contains(&copied)), "{unrolled:?}");
    assert_eq!(with(10, 10, &mut weights).len(), 3);
}

#[test]
fn the_same_input_gives_the_same_plan_on_any_number_of_threads() {
    let program = random_program(300, 40, 5);
    let weights = walk(&program, 2000, 5);
    let plan_with = |num_threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
        pool.install(|| compute(&program, &weights, &LayoutOptions::default()))
    };
    assert_eq!(plan_with(1), plan_with(3));
    assert_eq!(shuffle(&program, 9), shuffle(&program, 9));
    assert_ne!(shuffle(&program, 9), shuffle(&program, 10));
}

/// A hot path around a cold block of the given size, in a second function one that never ran.
fn hot_around_cold(cold_bytes: u32) -> (Program, Weights) {
    let program = ProgramBuilder::default()
        .func(vec![
            TestBlock::new(20_000, End::Branch(2)),
            TestBlock::new(cold_bytes, End::Fallthrough),
            TestBlock::new(20, End::Return),
        ])
        .func(vec![TestBlock::new(40, End::Return)])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks[..3].copy_from_slice(&[10, 0, 10]);
    weights.edges[..2].copy_from_slice(&[0, 10]);
    (program, weights)
}

#[test]
fn a_cold_block_leaves_its_function_if_it_is_large() {
    let (program, weights) = hot_around_cold(500);
    let plan = compute(&program, &weights, &LayoutOptions::default());
    assert_eq!(temperature_of(&plan, 1), Some(Temperature::Cold));
    assert_eq!(temperature_of(&plan, 2), Some(Temperature::Hot));
    assert_eq!(temperature_of(&plan, 3), Some(Temperature::Cold));
    let unsplit = compute(&program, &weights, &LayoutOptions { split: false, ..LayoutOptions::default() });
    assert_eq!(temperature_of(&unsplit, 1), Some(Temperature::Hot));
}

#[test]
fn a_small_cold_block_stays_behind_the_hot_ones() {
    let (program, weights) = hot_around_cold(6);
    let plan = compute(&program, &weights, &LayoutOptions::default());
    let order: Vec<usize> = plan.fragments[0].blocks.iter().map(|planned| planned.block.index()).collect();
    assert_eq!(order, [0, 2, 1]);
}

#[test]
fn without_a_profile_the_input_order_stays() {
    let program = random_program(20, 20, 3);
    let plan = compute(&program, &Weights::none(program.blocks.len(), program.edges.len()), &LayoutOptions::default());
    assert_eq!(plan, original(&program));
    let blocks: Vec<Block> = plan.fragments.iter().flat_map(|fragment| &fragment.blocks).map(|planned| planned.block).collect();
    assert!(blocks.is_sorted());
    assert!(plan.fragments.iter().all(|fragment| fragment.temperature == Temperature::Unknown));
}

#[test]
fn a_part_of_another_unwind_class_keeps_to_its_own_fragment() {
    let program = ProgramBuilder::default()
        .func(vec![TestBlock::new(20, End::Branch(1)), TestBlock::new(20, End::Jump(0)).in_new_range(1)])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[10, 10]);
    let plan = compute(&program, &weights, &LayoutOptions::default());
    assert_eq!(plan.fragments.len(), 2);
}

#[test]
fn the_target_of_a_hot_back_edge_is_aligned_and_a_cold_function_is_not() {
    let program = ProgramBuilder::default()
        .func(vec![TestBlock::new(9, End::Fallthrough), TestBlock::new(20, End::Branch(1)), TestBlock::new(20, End::Return)])
        .func(vec![TestBlock::new(40, End::Return)])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks.copy_from_slice(&[1, 1000, 1, 0]);
    // Edges: 0→1; 1→2, 1→1.
    weights.edges.copy_from_slice(&[1, 1, 999]);
    let plan = compute(&program, &weights, &LayoutOptions { align_loops: true, unroll_loops: false, ..LayoutOptions::default() });
    let aligns: Vec<u8> = plan.fragments[0].blocks.iter().map(|planned| planned.align).collect();
    assert_eq!(aligns, [1, 16, 1]);
    assert_eq!(plan.fragments[1].align, 1);
}

/// Programs of the machine that the tests run on, those that are there.
const PROGRAMS: [&str; 5] = ["/usr/bin/bash", "/usr/bin/bzip2", "/usr/bin/gdb", "/usr/bin/perl", "/usr/bin/xz"];

#[test]
fn layouts_of_real_programs_are_legal_and_take_fewer_branches() {
    for path in PROGRAMS {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let image = lifter::Image::parse(&bytes).unwrap();
        let program = lifter::lift(&image, lifter::elf::Unwind::parse(&image).unwrap()).unwrap();
        let weights = walk(&program, program.funcs.len() as u64, 1);
        let plan = compute(&program, &weights, &LayoutOptions::default());
        for plan in [&plan, &original(&program), &shuffle(&program, 1)] {
            check_legal(&program, plan);
        }
        let (before, after) = (fallthroughs(&program, &weights, &original(&program)), fallthroughs(&program, &weights, &plan));
        assert!(after > before, "{path}: {before} executions fell through, now {after}");
    }
}

#[test]
fn a_function_of_which_only_calls_are_known_stays_whole_among_what_runs() {
    let quiet =
        || vec![TestBlock::new(16, End::Branch(2)), TestBlock::new(16, End::Fallthrough), TestBlock::new(16, End::Return)];
    let program = ProgramBuilder::default().func(quiet()).func(quiet()).func(vec![TestBlock::new(16, End::Return)]).build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks[6] = 10;
    weights.entered = vec![(Func::new(1), 1000)];
    let plan = compute(&program, &weights, &LayoutOptions::default());
    check_legal(&program, &plan);
    let order: Vec<(usize, Temperature, usize)> =
        plan.fragments.iter().map(|f| (f.func.index(), f.temperature, f.blocks.len())).collect();
    assert_eq!(order, [(1, Temperature::Hot, 3), (2, Temperature::Hot, 1), (0, Temperature::Cold, 3)]);
    let blocks: Vec<usize> = plan.fragments[0].blocks.iter().map(|planned| planned.block.index()).collect();
    assert_eq!(blocks, [3, 4, 5], "nobody knows a better order");
}

#[test]
fn of_cold_code_the_parts_of_hot_functions_come_first_then_what_is_called_from_near() {
    // 0 is called by 2, which 3 calls; 3 ran and has a cold part; nothing leads to 1.
    let program = ProgramBuilder::default()
        .func(vec![TestBlock::new(100, End::Return)])
        .func(vec![TestBlock::new(100, End::Return)])
        .func(vec![TestBlock::new(100, End::Return).calling(0)])
        .func(vec![
            TestBlock::new(20, End::Branch(2)),
            TestBlock::new(20, End::Return),
            TestBlock::new(90, End::Return).calling(2),
        ])
        .build();
    let mut weights = Weights::none(program.blocks.len(), program.edges.len());
    weights.blocks[3..5].copy_from_slice(&[9, 9]);
    let generous = LayoutOptions { split_cost_per_mille_max: 1000, ..LayoutOptions::default() };
    let plan = compute(&program, &weights, &generous);
    check_legal(&program, &plan);
    let order: Vec<usize> = plan.fragments.iter().map(|f| f.func.index()).collect();
    assert_eq!(order, [3, 3, 2, 0, 1]);
}

#[test]
fn what_seldom_runs_leaves_only_where_no_fallthrough_goes_with_it() {
    // 0 → 1 mostly, 2 seldom, by a branch; 3 is run into from 1 and runs on into 4.
    let jump = |source, target, count| Jump { source, target, count, kind: JumpKind::Conditional };
    let jumps = vec![jump(0, 1, 90), jump(0, 2, 10), jump(1, 3, 5), jump(3, 4, 5), jump(1, 4, 85)];
    let graph = BlockGraph::new(vec![10; 5], vec![100, 90, 10, 5, 90], jumps, Some(0));
    let is_warm = [false, false, true, true, false];
    assert_eq!(split::apart(&graph, &[0, 1, 4, 3, 2], &is_warm), (vec![0, 1, 4], vec![3, 2]));
    assert_eq!(split::apart(&graph, &[0, 1, 3, 4, 2], &is_warm), (vec![0, 1, 4], vec![3, 2]), "4 follows 1 the more often");
    assert_eq!(split::apart(&graph, &[0, 2, 1, 4, 3], &is_warm), (vec![0, 1, 4], vec![2, 3]));
    assert_eq!(split::apart(&graph, &[0, 4, 1, 3, 2], &is_warm), (vec![0, 4, 1, 3, 2], vec![]), "3 is run into");
}
