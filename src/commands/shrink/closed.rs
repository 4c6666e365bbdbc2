//! Functions that stay as they are, since the checker could not follow what became of them.
//!
//! **Problem.** The checker finds less out than relift knows, or relift is wrong. A technique that fails in one function must not be lost for all.
//!
//! **Method.** Where an output does not pass, it is made once more to see which functions' code the violations are about, and those that share that code. Next time these are *closed*: they are moved, but
//! neither folded nor changed, and nothing of them is shared. There are a few rounds, and each closes at least one function more.

use std::collections::BTreeSet;

use checker::{Violation, ViolationKind};
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::Program;
use rewriter::plan::LayoutPlan;

/// By their entries, which are the same whenever the file is read.
#[derive(Clone, Debug, Default)]
pub(super) struct Closed(BTreeSet<Va>);

impl Closed {
    /// Outputs that are checked with more functions closed each time.
    pub(super) const ROUNDS_MAX: usize = 4;

    pub(super) const fn none() -> Self {
        Self(BTreeSet::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn contains(&self, program: &Program, func: Func) -> bool {
        self.0.contains(&entry(program, func))
    }

    /// Adds functions; whether one is new.
    pub(super) fn extend(&mut self, more: Self) -> bool {
        let count = self.0.len();
        self.0.extend(more.0);
        self.0.len() > count
    }

    /// Whether a violation may tell a function.
    pub(super) fn may_be_told(violations: &[Violation]) -> bool {
        let tells = |v: &Violation| v.input.is_some() || v.kind == ViolationKind::MissingFunction || is_about_code(v.kind);
        violations.iter().any(tells)
    }

    /// The functions that violations are about: those of the blocks that stand there in the output, those for which such blocks stand, and those of the input that are named.
    pub(super) fn about(violations: &[Violation], program: &Program, plan: &LayoutPlan, blocks: &[(Va, u32)]) -> Self {
        let mut input: Vec<Va> = violations.iter().filter_map(|violation| violation.input).map(Va).collect();
        let mut output: Vec<Va> = Vec::new();
        for violation in violations {
            match violation.kind {
                ViolationKind::MissingFunction => input.push(Va(violation.address)),
                kind if is_about_code(kind) => output.push(Va(violation.address)),
                _ => {}
            }
        }
        input.sort_unstable();
        output.sort_unstable();
        let is_about = |block: Block| {
            let data = &program.blocks[block];
            let stand_in = plan.folded_blocks.stand_in(plan.folded.stand_in(program, block));
            let (start, len) = blocks[stand_in.index()];
            has_one(&input, data.start, data.len) || has_one(&output, start, len)
        };
        let about = program.blocks.keys().filter(|&block| is_about(block));
        Self(about.map(|block| entry(program, program.func_of(block))).collect())
    }
}

fn entry(program: &Program, func: Func) -> Va {
    program.blocks[program.funcs[func].entry].start
}

/// Whether one of these addresses, ascending, lies in a range.
fn has_one(addresses: &[Va], start: Va, len: u32) -> bool {
    let first = addresses.partition_point(|&address| address < start);
    addresses.get(first).is_some_and(|address| address.0 < start.0 + u64::from(len))
}

/// Whether a violation of this kind is told at an address of the output's code, and that code need not be as it is.
fn is_about_code(kind: ViolationKind) -> bool {
    use ViolationKind::*;
    matches!(
        kind,
        InstructionMismatch | ConditionMismatch | OperandMismatch | BadTarget | Conflict | Unexplained | UnwindRow | CallSite
    )
}

#[cfg(test)]
mod tests;
