//! The source's figures: the same contexts, clones and machines.

use lifter::entity::EntityId;

use super::compare;
use super::constants::explore;
use super::language::{Callee, Expression, Function, Operator, Program, Statement};
use crate::specialize::copies::Copies;
use crate::specialize::forest::{Forest, ForestBuilder};
use crate::specialize::machine::Machine;
use crate::specialize::merge::Merged;
use crate::specialize::{Body, CallSite, FunctionId, Names};

const MAIN: usize = 0;
const A: usize = 1;
const B: usize = 2;
const C: usize = 3;

struct Letters;

impl Names for Letters {
    fn function(&self, function: FunctionId) -> String {
        ["main", "a", "b", "c"][function.index()].to_owned()
    }
    fn site(&self, site: CallSite) -> String {
        site.index().to_string()
    }
    fn body(&self, body: Body) -> String {
        body.index().to_string()
    }
}

fn argument() -> Expression {
    Expression::Variable(0)
}
fn doubled() -> Expression {
    Expression::Binary(Operator::Multiply, Box::new(Expression::Number(2)), Box::new(argument()))
}
fn doubled_and_one() -> Expression {
    Expression::Binary(Operator::Add, Box::new(doubled()), Box::new(Expression::Number(1)))
}
fn call(site: usize, callee: usize, argument: Expression) -> Statement {
    Statement::Call { site: CallSite::new(site), callee: Callee::Function(callee), argument, hidden: 0, result: 1 }
}

/// The program of figures 1, 4 and 7, with the calls numbered by the source's lines; `second` is what `c` passes in line 12.
fn program(lines: [usize; 5], second: Expression) -> Program {
    let bodies = [
        vec![call(lines[4], C, Expression::Number(0))],
        vec![Statement::Print(argument())],
        vec![call(lines[0], A, doubled()), call(lines[1], A, doubled_and_one())],
        vec![call(lines[2], B, doubled()), call(lines[3], B, second)],
    ];
    let function = |(index, body)| Function { origin: (FunctionId::new(index), None), body };
    Program { functions: bodies.into_iter().enumerate().map(function).collect() }
}

fn dumps(forest: &Forest) -> (String, String) {
    let copies = Copies::build(&Merged::build(forest));
    (Machine::build(forest).dump(forest, &Letters), copies.dump(&Letters))
}

#[test]
fn figure_3_has_four_clones_of_a_and_eight_states() {
    let program = program([3, 4, 7, 8, 11], doubled_and_one());
    let found = explore(&program, 100);
    let (machine, copies) = dumps(&found.forest);
    assert_eq!(
        machine,
        "s0: main\n  11 -> s1\n\
         s1: c by 11\n  7 -> s2\n  8 -> s3\n  return -> s0\n\
         s2: b by 11, 7\n  3 -> s4\n  4 -> s5\n  return -> s1\n\
         s3: b by 11, 8\n  3 -> s6\n  4 -> s7\n  return -> s1\n\
         s4: a as 0 by 11, 7, 3\n  return -> s2\n\
         s5: a as 1 by 11, 7, 4\n  return -> s2\n\
         s6: a as 2 by 11, 8, 3\n  return -> s3\n\
         s7: a as 3 by 11, 8, 4\n  return -> s3\n"
    );
    assert_eq!(
        copies,
        "a.0: 1 state\na.1: 1 state\na.2: 1 state\na.3: 1 state\n\
         b.tracking: 2 states\n  3 -> a.0, a.2\n  4 -> a.1, a.3\n\
         c.tracking: 1 state\n  7 -> b.tracking(0)\n  8 -> b.tracking(1)\n\
         main: 11 -> c.tracking\n"
    );
    compare(&program, &found.forest, false, &|_, _, body| found.bodies[body.index()].clone());
}

#[test]
fn figures_4_and_6_have_two_clones_of_a_and_five_states() {
    let program = program([6, 7, 11, 12, 15], Expression::Input);
    let found = explore(&program, 100);
    let (machine, copies) = dumps(&found.forest);
    assert_eq!(
        machine,
        "s0: main\n  15 -> s1\n\
         s1: c by 15\n  11 -> s2\n  return -> s0\n\
         s2: b by 15, 11\n  6 -> s3\n  7 -> s4\n  return -> s1\n\
         s3: a as 0 by 15, 11, 6\n  return -> s2\n\
         s4: a as 1 by 15, 11, 7\n  return -> s2\n"
    );
    // One context is left of `b`: it needs no state at all.
    assert_eq!(
        copies,
        "a.0: 1 state\na.1: 1 state\n\
         b.tracking: 1 state\n  6 -> a.0\n  7 -> a.1\n\
         c.tracking: 1 state\n  11 -> b.tracking\n\
         main: 15 -> c.tracking\n"
    );
    compare(&program, &found.forest, false, &|_, _, body| found.bodies[body.index()].clone());
}

#[test]
fn figure_7_has_two_return_only_states() {
    let program = program([6, 7, 11, 12, 15], doubled_and_one());
    let mut builder = ForestBuilder::default();
    let function = FunctionId::new;
    let path = |last: [usize; 3]| {
        [(CallSite::new(last[0]), function(C)), (CallSite::new(last[1]), function(B)), (CallSite::new(last[2]), function(A))]
    };
    for (body, last) in [[15, 11, 6], [15, 12, 7]].into_iter().enumerate() {
        let leaf = builder.path(function(MAIN), &path(last));
        builder.set_body(leaf, Body::new(body));
    }
    let forest = builder.finish();
    let (machine, copies) = dumps(&forest);
    assert_eq!(
        machine,
        "s0: main\n  15 -> s1\n\
         s1: c by 15\n  11 -> s2\n  12 -> s3\n  return -> s0\n\
         s2: b by 15, 11\n  6 -> s4\n  7 -> s6\n  return -> s1\n\
         s3: b by 15, 12\n  6 -> s7\n  7 -> s5\n  return -> s1\n\
         s4: a as 0 by 15, 11, 6\n  return -> s2\n\
         s5: a as 1 by 15, 12, 7\n  return -> s3\n\
         s6: an original, called from s2\n  return -> s2\n\
         s7: an original, called from s3\n  return -> s3\n"
    );
    assert_eq!(
        copies,
        "a.0: 1 state\na.1: 1 state\n\
         b.tracking: 2 states\n  6 -> a.0, original\n  7 -> original, a.1\n\
         c.tracking: 1 state\n  11 -> b.tracking(0)\n  12 -> b.tracking(1)\n\
         main: 15 -> c.tracking\n"
    );
    compare(&program, &forest, true, &|program, function, _| program.functions[function.index()].body.clone());
}
