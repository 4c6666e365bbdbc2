//! The transformation executed: the source's small language, an interpreter, and random programs that have to do afterwards what they did before.
//!
//! Two kinds of test. *Any contexts*: random sets of contexts get random bodies that do what the original does; the interpreter knows the true stack of calls and
//! demands at each activation just the body that the stack asks for, found by search and not by links; it drives the machine of algorithm 2 beside it, returns
//! included. *Constants*: contexts, bodies and situations come from following constant arguments, and a body in the wrong context computes something else.

mod constants;
mod examples;
mod language;
mod random;
mod transform;

use lifter::entity::EntityId;

use self::language::{Program, run};
use self::transform::{Dispatch, Specialized};
use super::copies::Copies;
use super::forest::Forest;
use super::machine::Machine;
use super::merge::Merged;
use crate::layout::Random;

/// How many programs a test runs: a few thousand, or as many as the environment says.
fn num_programs() -> u64 {
    std::env::var("RELIFT_MODEL_PROGRAMS").ok().and_then(|number| number.parse().ok()).unwrap_or(3000)
}

/// Transforms a program by a forest in both forms, runs all, compares. The number of calls made, so that who generates programs sees that they do something.
fn compare(program: &Program, forest: &Forest, is_exact: bool, code_of: &transform::CodeOf<'_>) -> usize {
    let (machine, merged) = (Machine::build(forest), Merged::build(forest));
    let copies = Copies::build(&merged);
    check_bounds(forest, &machine, &merged, &copies);
    let expected = run(program, None);
    for dispatch in [Dispatch::Inline, Dispatch::Table] {
        let specialized = Specialized::make(program, &copies, dispatch, code_of);
        let monitor = is_exact.then_some((forest, &machine));
        let got = run(&specialized.program, monitor);
        assert_eq!(expected, got, "{dispatch:?}\n{program:?}\n{}", machine.dump(forest, &super::Numbers));
    }
    expected.num_calls
}

fn check_bounds(forest: &Forest, machine: &Machine, merged: &Merged, copies: &Copies) {
    assert!(machine.states.len() <= 2 * forest.nodes.len());
    assert!(merged.num_tracked() <= forest.num_paths());
    let mut leaves: Vec<_> = forest.nodes.values().filter_map(|data| Some((data.function, data.body?))).collect();
    leaves.sort_unstable();
    leaves.dedup();
    assert!(copies.num_clones() <= leaves.len());
    let mut tracked: Vec<_> = copies.copies.values().filter(|copy| copy.body.is_none()).map(|copy| copy.function).collect();
    let count = tracked.len();
    tracked.dedup();
    assert_eq!(count, tracked.len());
    for (copy, data) in copies.copies.iter() {
        assert!(data.calls.iter().all(|call| call.targets.len() == data.states.len()), "{copy}");
    }
}

#[test]
fn any_set_of_contexts_gets_its_bodies_and_nothing_else_changes() {
    let mut calls = 0;
    for seed in 0..num_programs() {
        let mut random = Random::new(seed);
        let program = random::program(&mut random);
        let forest = random::forest(&mut random, &program);
        calls += compare(&program, &forest, true, &|program, function, _| program.functions[function.index()].body.clone());
    }
    assert!(calls as u64 > 10 * num_programs(), "{calls}");
}

#[test]
fn constants_followed_through_contexts_compute_what_the_program_computes() {
    let mut optimized = 0;
    for seed in 0..num_programs() {
        let mut random = Random::new(seed ^ 0x5eed << 32);
        let program = random::program(&mut random);
        let found = constants::explore(&program, 60);
        optimized += found.forest.num_optimized();
        compare(&program, &found.forest, false, &|_, _, body| found.bodies[body.index()].clone());
    }
    assert!(optimized as u64 > num_programs(), "{optimized}");
}
