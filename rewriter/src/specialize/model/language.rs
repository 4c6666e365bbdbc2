//! MiniLog, the source's language (figure 5), and its interpreter.
//!
//! Integers, variables of a function, arithmetic, functions as values, conditionals, calls and recursion. To the source's syntax come a second, hidden argument,
//! calls through a table that it indexes, and, because random programs recurse without end, a limit of calls after which a call returns at once.

use lifter::entity::EntityId;

use crate::specialize::forest::Forest;
use crate::specialize::machine::{Machine, State, StateKind};
use crate::specialize::{Body, CallSite, FunctionId};

pub(super) type Variable = usize;

/// The variable that every function's argument is in.
pub(super) const ARGUMENT: Variable = 0;
pub(super) const NUM_VARIABLES: usize = 4;

/// Functions as values: numbers that arithmetic on small ones does not reach.
pub(super) const FIRST_FUNCTION: i64 = 1 << 40;

const MAX_CALLS: usize = 300;
const MAX_DEPTH: usize = 24;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Less,
    Equal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Expression {
    Number(i64),
    Variable(Variable),
    /// Something that is not known before the program runs: the number of calls so far.
    Input,
    /// The function as a value: always the original.
    Function(FunctionId),
    Binary(Operator, Box<Expression>, Box<Expression>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Callee {
    Function(usize),
    Value(Expression),
    /// By the hidden argument: a function, and what it gets as its own.
    Table(Vec<(usize, i64)>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    Print(Expression),
    Set(Variable, Expression),
    Call {
        site: CallSite,
        callee: Callee,
        argument: Expression,
        hidden: i64,
        result: Variable,
    },
    If(Expression, Vec<Statement>, Vec<Statement>),
    /// By the hidden argument.
    IfState(i64, Vec<Statement>, Vec<Statement>),
    Return(Expression),
}

#[derive(Clone, Debug)]
pub(super) struct Function {
    /// What it is a version of, and which; originals and tracking copies have no body.
    pub(super) origin: (FunctionId, Option<Body>),
    pub(super) body: Vec<Statement>,
}

/// Function 0 is called first.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    pub(super) functions: Vec<Function>,
}

/// What a run shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) printed: Vec<i64>,
    pub(super) num_calls: usize,
}

/// Runs a program; with a forest and its machine, checks that each activation runs what its context asks for.
pub(super) fn run(program: &Program, monitor: Option<(&Forest, &Machine)>) -> Outcome {
    let mut run = Run { program, monitor, stack: Vec::new(), outcome: Outcome::default() };
    let root = monitor.and_then(|(forest, _)| forest.root_of(program.functions[0].origin.0));
    run.activate(0, None, 0, 0, root.map(|root| State::new(root.index())));
    run.outcome
}

struct Run<'a> {
    program: &'a Program,
    monitor: Option<(&'a Forest, &'a Machine)>,
    /// The site by which each activation was entered, and its function.
    stack: Vec<(Option<CallSite>, FunctionId)>,
    outcome: Outcome,
}

struct Activation {
    variables: [i64; NUM_VARIABLES],
    hidden: i64,
    state: Option<State>,
}

impl Run<'_> {
    fn activate(&mut self, function: usize, site: Option<CallSite>, argument: i64, hidden: i64, state: Option<State>) -> i64 {
        if self.outcome.num_calls >= MAX_CALLS || self.stack.len() >= MAX_DEPTH {
            return 0;
        }
        self.outcome.num_calls += 1;
        let program = self.program;
        let (origin, body) = program.functions[function].origin;
        self.stack.push((site, origin));
        if let Some((forest, _)) = self.monitor {
            assert_eq!(body, self.expected_body(forest), "{:?}", self.stack);
        }
        let state = self.entered(state, origin, body);
        let mut activation = Activation { variables: [0; NUM_VARIABLES], hidden, state };
        activation.variables[ARGUMENT] = argument;
        let result = self.execute(&program.functions[function].body, &mut activation).unwrap_or(0);
        self.stack.pop();
        result
    }

    /// The machine's state as an activation begins: what its caller's call made of the caller's, or that of a root.
    fn entered(&self, state: Option<State>, function: FunctionId, body: Option<Body>) -> Option<State> {
        let (forest, machine) = self.monitor?;
        let root = forest.root_of(function).map(|root| State::new(root.index()));
        match machine.states[state?].kind {
            StateKind::Context(node) => {
                assert_eq!((function, body), (forest.nodes[node].function, forest.body_in(node)));
                state
            }
            StateKind::ReturnOnly(_) => {
                assert_eq!(body, None);
                root
            }
        }
    }

    /// By search: the longest context with a body among those that the last calls are.
    fn expected_body(&self, forest: &Forest) -> Option<Body> {
        (0..self.stack.len()).find_map(|first| {
            let mut node = forest.root_of(self.stack[first].1)?;
            for &(site, _) in &self.stack[first + 1..] {
                node = forest.child(node, site?)?;
            }
            forest.nodes[node].body
        })
    }

    fn execute(&mut self, body: &[Statement], activation: &mut Activation) -> Option<i64> {
        for statement in body {
            let branch = match statement {
                Statement::Print(value) => {
                    let value = self.value(value, activation);
                    self.outcome.printed.push(value);
                    continue;
                }
                Statement::Set(variable, value) => {
                    activation.variables[*variable] = self.value(value, activation);
                    continue;
                }
                Statement::Call { site, callee, argument, hidden, result } => {
                    let argument = self.value(argument, activation);
                    let (function, hidden) = self.callee(callee, *hidden, activation);
                    if let Some(function) = function {
                        activation.variables[*result] = self.call(function, *site, argument, hidden, activation.state);
                    }
                    continue;
                }
                Statement::If(condition, then, otherwise) => {
                    if self.value(condition, activation) != 0 {
                        then
                    } else {
                        otherwise
                    }
                }
                Statement::IfState(state, then, otherwise) => {
                    if activation.hidden == *state {
                        then
                    } else {
                        otherwise
                    }
                }
                Statement::Return(value) => return Some(self.value(value, activation)),
            };
            let returned = self.execute(branch, activation);
            if returned.is_some() {
                return returned;
            }
        }
        None
    }

    fn call(&mut self, function: usize, site: CallSite, argument: i64, hidden: i64, state: Option<State>) -> i64 {
        let Some((forest, machine)) = self.monitor else { return self.activate(function, Some(site), argument, hidden, None) };
        let callee = self.program.functions[function].origin.0;
        // Nobody tracks what is called from an original that is no root; a root's state is known.
        let after = match state.and_then(|state| machine.after_call(state, site)) {
            Some(after) => Some(after),
            None => forest.root_of(callee).map(|root| State::new(root.index())),
        };
        let result = self.activate(function, Some(site), argument, hidden, after);
        // The return goes back to the caller's state, where the machine says whose that is: a context that goes on as a shorter one has other callers too.
        if let (Some(state), Some(after)) = (state, after) {
            let is_own = match (machine.states[after].kind, machine.states[state].kind) {
                (StateKind::ReturnOnly(_), _) => true,
                (StateKind::Context(node), StateKind::Context(caller)) => forest.child(caller, site) == Some(node),
                _ => false,
            };
            assert!(!is_own || machine.states[after].back == Some(state));
        }
        result
    }

    fn callee(&self, callee: &Callee, hidden: i64, activation: &Activation) -> (Option<usize>, i64) {
        match callee {
            Callee::Function(function) => (Some(*function), hidden),
            Callee::Table(table) => {
                let (function, hidden) = table[activation.hidden as usize];
                (Some(function), hidden)
            }
            Callee::Value(value) => {
                let number = self.value(value, activation).wrapping_sub(FIRST_FUNCTION);
                // No copy can be named by a value.
                let is_one = |index: &usize| self.program.functions.get(*index).is_some_and(|f| f.origin.0.index() == *index);
                (usize::try_from(number).ok().filter(is_one), 0)
            }
        }
    }

    fn value(&self, expression: &Expression, activation: &Activation) -> i64 {
        match expression {
            Expression::Number(number) => *number,
            Expression::Variable(variable) => activation.variables[*variable],
            Expression::Input => self.outcome.num_calls as i64,
            Expression::Function(function) => FIRST_FUNCTION + function.index() as i64,
            Expression::Binary(operator, left, right) => {
                apply(*operator, self.value(left, activation), self.value(right, activation))
            }
        }
    }
}

pub(super) fn apply(operator: Operator, left: i64, right: i64) -> i64 {
    match operator {
        Operator::Add => left.wrapping_add(right),
        Operator::Subtract => left.wrapping_sub(right),
        Operator::Multiply => left.wrapping_mul(right),
        Operator::Less => i64::from(left < right),
        Operator::Equal => i64::from(left == right),
    }
}
