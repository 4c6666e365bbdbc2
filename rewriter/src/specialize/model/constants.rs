//! Context-sensitive constant propagation on the language: what the product does with registers, with one argument.
//!
//! All that a function is known to be given is its argument; so the *situation* of a context is the argument, and each is explored once.

use lifter::entity::EntityId;
use rustc_hash::FxHashMap;

use super::language::{ARGUMENT, Callee, Expression, FIRST_FUNCTION, NUM_VARIABLES, Program, Statement, Variable, apply};
use crate::specialize::forest::{Forest, ForestBuilder, Node, Situation};
use crate::specialize::{Body, CallSite, FunctionId};

pub(super) struct Found {
    pub(super) forest: Forest,
    /// By body.
    pub(super) bodies: Vec<Vec<Statement>>,
}

type Known = [Option<i64>; NUM_VARIABLES];

/// A function given an argument: its code then, and what it gives to others.
#[derive(Clone)]
struct Result {
    code: Vec<Statement>,
    passed: Vec<(CallSite, FunctionId, Option<i64>)>,
}

/// Follows constant arguments from every function, up to so many contexts.
pub(super) fn explore(program: &Program, max_contexts: usize) -> Found {
    let mut explorer = Explorer { program, results: FxHashMap::default() };
    let mut builder = ForestBuilder::default();
    let (mut bodies, mut body_ids) = (Vec::new(), FxHashMap::<(FunctionId, Vec<Statement>), Body>::default());
    let mut situations = FxHashMap::<(FunctionId, i64), Situation>::default();
    let mut open: Vec<(Node, FunctionId, Option<i64>)> = Vec::new();
    for index in 0..program.functions.len() {
        let function = FunctionId::new(index);
        open.push((builder.root(function), function, None));
    }
    let mut next = 0;
    while next < open.len() && open.len() < max_contexts {
        let (node, function, argument) = open[next];
        next += 1;
        let result = explorer.result(function, argument);
        let plain = explorer.result(function, None);
        for &(site, callee, passed) in &result.passed {
            // What every activation of the caller passes is known from its root.
            let is_known = argument.is_some() && plain.passed.contains(&(site, callee, passed));
            let Some(number) = passed.filter(|_| !is_known) else { continue };
            let child = builder.child(node, site, callee);
            let count = situations.len();
            let entry = situations.entry((callee, number));
            let is_new = matches!(entry, std::collections::hash_map::Entry::Vacant(_));
            builder.set_situation(child, *entry.or_insert(Situation::new(count)));
            let code = explorer.result(callee, passed).code;
            if code != program.functions[callee.index()].body {
                let next = Body::new(bodies.len());
                let body = *body_ids.entry((callee, code.clone())).or_insert_with(|| {
                    bodies.push(code);
                    next
                });
                builder.set_body(child, body);
            }
            if is_new {
                open.push((child, callee, passed));
            }
        }
    }
    Found { forest: builder.finish(), bodies }
}

struct Explorer<'a> {
    program: &'a Program,
    results: FxHashMap<(FunctionId, Option<i64>), Result>,
}

impl Explorer<'_> {
    fn result(&mut self, function: FunctionId, argument: Option<i64>) -> Result {
        let program = self.program;
        let solve = || {
            let mut known: Known = [Some(0); NUM_VARIABLES];
            known[ARGUMENT] = argument;
            let mut passed = Vec::new();
            let code = specialize(&program.functions[function.index()].body, &mut known, &mut passed);
            Result { code, passed }
        };
        self.results.entry((function, argument)).or_insert_with(solve).clone()
    }
}

/// The code with what is known put in, decided branches gone.
fn specialize(body: &[Statement], known: &mut Known, passed: &mut Vec<(CallSite, FunctionId, Option<i64>)>) -> Vec<Statement> {
    let mut code = Vec::new();
    for statement in body {
        match statement {
            Statement::Print(value) => code.push(Statement::Print(folded(value, known))),
            Statement::Return(value) => code.push(Statement::Return(folded(value, known))),
            Statement::Set(variable, value) => {
                code.push(Statement::Set(*variable, folded(value, known)));
                known[*variable] = evaluate(value, known);
            }
            Statement::Call { callee, argument, site, result, .. } => {
                if let Callee::Function(callee) = callee {
                    passed.push((*site, FunctionId::new(*callee), evaluate(argument, known)));
                }
                // Replacing an argument by a constant alone is no gain, and a value that is called stays.
                code.push(statement.clone());
                known[*result] = None;
            }
            Statement::If(condition, then, otherwise) => match evaluate(condition, known) {
                Some(0) => code.extend(specialize(otherwise, known, passed)),
                Some(_) => code.extend(specialize(then, known, passed)),
                None => {
                    let mut other = *known;
                    let then = specialize(then, known, passed);
                    let otherwise = specialize(otherwise, &mut other, passed);
                    meet(known, &other);
                    code.push(Statement::If(condition.clone(), then, otherwise));
                }
            },
            Statement::IfState(..) => {}
        }
    }
    code
}

fn meet(known: &mut Known, other: &Known) {
    for (one, two) in known.iter_mut().zip(other) {
        *one = one.filter(|_| *one == *two);
    }
}

fn folded(expression: &Expression, known: &Known) -> Expression {
    match expression {
        // Variables that are 0 at the start are known to everyone; the argument is what contexts tell.
        Expression::Number(_) | Expression::Input | Expression::Function(_) => expression.clone(),
        _ => evaluate(expression, known).map_or_else(|| expression.clone(), Expression::Number),
    }
}

fn evaluate(expression: &Expression, known: &Known) -> Option<i64> {
    let variable = |variable: Variable| known[variable];
    match expression {
        Expression::Number(number) => Some(*number),
        Expression::Variable(name) => variable(*name),
        Expression::Input => None,
        Expression::Function(function) => Some(FIRST_FUNCTION + function.index() as i64),
        Expression::Binary(operator, left, right) => Some(apply(*operator, evaluate(left, known)?, evaluate(right, known)?)),
    }
}
