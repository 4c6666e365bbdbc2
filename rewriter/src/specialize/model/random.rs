//! Random programs, and random contexts of them.

use lifter::entity::EntityId;

use super::language::{ARGUMENT, Callee, Expression, Function, NUM_VARIABLES, Operator, Program, Statement};
use crate::layout::Random;
use crate::specialize::forest::{Forest, ForestBuilder};
use crate::specialize::{Body, CallSite, FunctionId};

/// A program of a few functions that print, branch, and call each other in all ways.
pub(super) fn program(random: &mut Random) -> Program {
    let num_functions = 2 + random.below(6) as usize;
    let mut maker = Maker { random, num_functions, num_sites: 0 };
    let functions = (0..num_functions)
        .map(|index| {
            let mut body = maker.block(2);
            // The first function does something in most programs.
            if index == 0 {
                body.push(maker.call());
                body.push(maker.call());
            }
            body.push(Statement::Return(maker.expression(1)));
            Function { origin: (FunctionId::new(index), None), body }
        })
        .collect();
    Program { functions }
}

struct Maker<'r> {
    random: &'r mut Random,
    num_functions: usize,
    num_sites: usize,
}

impl Maker<'_> {
    fn block(&mut self, depth: u64) -> Vec<Statement> {
        (0..1 + self.random.below(3)).map(|_| self.statement(depth)).collect()
    }

    fn statement(&mut self, depth: u64) -> Statement {
        match self.random.below(8) {
            0 | 1 => Statement::Print(self.expression(2)),
            2 => Statement::Set(self.variable(), self.expression(2)),
            3 if depth > 0 => Statement::If(self.expression(2), self.block(depth - 1), self.block(depth - 1)),
            4 if self.random.below(6) == 0 => Statement::Return(self.expression(1)),
            _ => self.call(),
        }
    }

    fn call(&mut self) -> Statement {
        let site = CallSite::new(self.num_sites);
        self.num_sites += 1;
        let callee = match self.random.below(8) {
            0 => Callee::Value(self.expression(1)),
            1 => Callee::Value(Expression::Function(self.function())),
            _ => Callee::Function(self.function().index()),
        };
        Statement::Call { site, callee, argument: self.expression(2), hidden: 0, result: self.variable() }
    }

    fn function(&mut self) -> FunctionId {
        FunctionId::new(self.random.below(self.num_functions as u64) as usize)
    }
    fn variable(&mut self) -> usize {
        self.random.below(NUM_VARIABLES as u64) as usize
    }

    fn expression(&mut self, depth: u64) -> Expression {
        match self.random.below(if depth == 0 { 7 } else { 10 }) {
            0 | 1 => Expression::Number(self.random.below(4) as i64),
            2 => Expression::Input,
            3 => Expression::Function(self.function()),
            4 => Expression::Variable(self.variable()),
            5 | 6 => Expression::Variable(ARGUMENT),
            _ => {
                let all = [Operator::Add, Operator::Subtract, Operator::Multiply, Operator::Less, Operator::Equal];
                let operator = all[self.random.below(all.len() as u64) as usize];
                Expression::Binary(operator, Box::new(self.expression(depth - 1)), Box::new(self.expression(depth - 1)))
            }
        }
    }
}

/// By function, its direct calls and whom they reach.
pub(super) fn direct_calls(program: &Program) -> Vec<Vec<(CallSite, FunctionId)>> {
    fn collect(body: &[Statement], list: &mut Vec<(CallSite, FunctionId)>) {
        for statement in body {
            match statement {
                Statement::Call { site, callee: Callee::Function(callee), .. } => list.push((*site, FunctionId::new(*callee))),
                Statement::If(_, then, otherwise) => {
                    collect(then, list);
                    collect(otherwise, list);
                }
                _ => {}
            }
        }
    }
    let calls = |function: &Function| {
        let mut list = Vec::new();
        collect(&function.body, &mut list);
        list
    };
    program.functions.iter().map(calls).collect()
}

/// Random paths of direct calls, with one of a few bodies each.
pub(super) fn forest(random: &mut Random, program: &Program) -> Forest {
    let calls = direct_calls(program);
    let mut builder = ForestBuilder::default();
    for _ in 0..1 + random.below(8) {
        let mut function = if random.below(2) == 0 { 0 } else { random.below(program.functions.len() as u64) as usize };
        let mut node = builder.root(FunctionId::new(function));
        for _ in 0..1 + random.below(5) {
            if calls[function].is_empty() {
                break;
            }
            let (site, callee) = calls[function][random.below(calls[function].len() as u64) as usize];
            node = builder.child(node, site, callee);
            function = callee.index();
        }
        builder.set_body(node, Body::new(random.below(3) as usize));
    }
    builder.finish()
}
