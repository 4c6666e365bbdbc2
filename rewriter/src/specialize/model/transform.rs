//! Algorithm 1 on programs of the language: copies as functions, their calls led by state.

use lifter::entity::EntityId;

use super::language::{Callee, Function, Program, Statement};
use crate::specialize::copies::{Call, Copies, Target};
use crate::specialize::{Body, FunctionId};

/// How a call chooses among targets.
#[derive(Copy, Clone, Debug)]
pub(super) enum Dispatch {
    /// By comparing the state, one after the other (the source's §3.7).
    Inline,
    /// By a table.
    Table,
}

/// The code of a body.
pub(super) type CodeOf<'a> = dyn Fn(&Program, FunctionId, Body) -> Vec<Statement> + 'a;

pub(super) struct Specialized {
    pub(super) program: Program,
}

struct Rewriter<'a> {
    calls: &'a [Call],
    dispatch: Dispatch,
    num_originals: usize,
}

impl Specialized {
    pub(super) fn make(program: &Program, copies: &Copies, dispatch: Dispatch, code_of: &CodeOf<'_>) -> Self {
        let num_originals = program.functions.len();
        let mut functions = Vec::new();
        for (index, function) in program.functions.iter().enumerate() {
            let led = copies.roots.iter().filter(|r| r.0.index() == index);
            let calls: Vec<Call> = led.map(|&(_, site, target)| Call { site, targets: vec![target] }).collect();
            let rewriter = Rewriter { calls: &calls, dispatch, num_originals };
            functions.push(Function { origin: function.origin, body: rewriter.all(&function.body) });
        }
        for data in copies.copies.values() {
            let code = match data.body {
                Some(body) => code_of(program, data.function, body),
                None => program.functions[data.function.index()].body.clone(),
            };
            let rewriter = Rewriter { calls: &data.calls, dispatch, num_originals };
            functions.push(Function { origin: (data.function, data.body), body: rewriter.all(&code) });
        }
        Specialized { program: Program { functions } }
    }
}

impl Rewriter<'_> {
    fn all(&self, body: &[Statement]) -> Vec<Statement> {
        body.iter().map(|statement| self.statement(statement)).collect()
    }

    fn statement(&self, statement: &Statement) -> Statement {
        match statement {
            Statement::If(condition, then, otherwise) => Statement::If(condition.clone(), self.all(then), self.all(otherwise)),
            Statement::Call { site, callee: Callee::Function(original), .. } => {
                match self.calls.iter().find(|call| call.site == *site) {
                    Some(call) => self.lead(statement, *original, call),
                    None => statement.clone(),
                }
            }
            _ => statement.clone(),
        }
    }

    fn lead(&self, statement: &Statement, original: usize, call: &Call) -> Statement {
        let with = |target: (usize, i64)| led(statement, Callee::Function(target.0), target.1);
        let targets: Vec<(usize, i64)> = call.targets.iter().map(|&target| self.function(original, target)).collect();
        if call.always().is_some() {
            return with(targets[0]);
        }
        if matches!(self.dispatch, Dispatch::Table) {
            return led(statement, Callee::Table(targets), 0);
        }
        let (last, others) = targets.split_last().unwrap();
        let chosen = |rest: Statement, (state, &target): (usize, &(usize, i64))| {
            Statement::IfState(state as i64, vec![with(target)], vec![rest])
        };
        others.iter().enumerate().rev().fold(with(*last), chosen)
    }

    fn function(&self, original: usize, target: Target) -> (usize, i64) {
        match target {
            Target::Original => (original, 0),
            Target::Copy { copy, state } => (self.num_originals + copy.index(), i64::from(state)),
        }
    }
}

fn led(statement: &Statement, to: Callee, state: i64) -> Statement {
    let mut statement = statement.clone();
    if let Statement::Call { callee, hidden, .. } = &mut statement {
        (*callee, *hidden) = (to, state);
    }
    statement
}
