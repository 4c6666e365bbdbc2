//! What a block's terminator becomes where the block is laid out: the one rule that the encoder, the layout's cost model and the
//! dyno-stats share.
//!
//! **Method.** A terminator is made anew from its meaning and from the block that follows in the same fragment. A successor that follows
//! is reached by running into it; any other costs a jump. A condition is inverted where that saves the jump.
//!
//! **Invariant.** The successors that the emitted form reaches, under the same conditions, are those of the terminator. So any order of
//! blocks is legal: the order only decides what is emitted.

use lifter::entity::{Block, EntityId};
use lifter::ir::{CodeTarget, Condition, EdgeKind, Program, Terminator};
use profiles::Weights;

/// Bytes of a branch that reaches, conditional or not.
pub(crate) const SHORT: u32 = 2;
/// Bytes of a jump that does not.
pub(crate) const LONG_JUMP: u32 = 5;
/// Bytes of a conditional branch that does not.
pub(crate) const LONG_BRANCH: u32 = 6;

/// The instructions that end a block, after its body.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Emitted {
    /// Nothing: the body runs into the following block, or its last instruction leaves.
    None,
    /// `jmp target`.
    Jump { target: CodeTarget },
    /// `jcc taken`, and the following block otherwise.
    Branch { condition: Condition, taken: CodeTarget },
    /// `jcc taken; jmp next`.
    BranchAndJump { condition: Condition, taken: CodeTarget, next: CodeTarget },
    /// `loop taken` or one of its kin, whose condition can't be inverted; then `jmp then_jump`, or the following block.
    Loop { taken: Block, then_jump: Option<Block> },
}

impl Emitted {
    /// Instructions in the emitted form, whether executed or not.
    pub fn num_insts(self) -> u32 {
        match self {
            Emitted::None => 0,
            Emitted::Jump { .. } | Emitted::Branch { .. } | Emitted::Loop { then_jump: None, .. } => 1,
            Emitted::BranchAndJump { .. } | Emitted::Loop { then_jump: Some(_), .. } => 2,
        }
    }
}

/// How often the two ways out of a block are taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct SuccessorCounts {
    /// To the `taken` target of the terminator, or to the only target of a jump.
    pub taken: u64,
    /// To its `next`.
    pub next: u64,
}

impl SuccessorCounts {
    /// From the counts of the block and of its edges. A target outside the function has no edge: it gets what the others leave.
    pub fn of(program: &Program, weights: &Weights, block: Block) -> Self {
        if weights.blocks.is_empty() && weights.edges.is_empty() {
            return Self::default();
        }
        let count = |kind: EdgeKind| {
            let mut edges = program.blocks[block].edges.as_usize();
            edges.find(|&edge| program.edges[edge].kind == kind).map(|edge| weights.edges.get(edge).copied().unwrap_or(0))
        };
        let whole = weights.blocks.get(block.index()).copied().unwrap_or(0);
        let taken = count(EdgeKind::Taken);
        let next = count(EdgeKind::Fallthrough);
        match program.blocks[block].terminator {
            Terminator::Fallthrough { .. } => Self { taken: 0, next: next.unwrap_or(whole) },
            Terminator::Jump { .. } => Self { taken: taken.unwrap_or(whole), next: 0 },
            Terminator::Branch { .. } | Terminator::Loop { .. } => {
                let next = next.unwrap_or(0);
                Self { taken: taken.unwrap_or(whole.saturating_sub(next)), next }
            }
            Terminator::Stop(_) => Self::default(),
        }
    }
}

impl SuccessorCounts {
    /// What falls to `count` of all executions, both ways in the proportion of the whole.
    pub fn share(self, count: u64) -> Self {
        let all = u128::from(self.taken) + u128::from(self.next);
        let part =
            |whole: u64| (u128::from(whole) * u128::from(count)).checked_div(all).map_or(0, |p| p.min(u128::from(whole)) as u64);
        Self { taken: part(self.taken), next: part(self.next) }
    }
    /// What is left when `other` is taken away.
    pub fn less(self, other: Self) -> Self {
        Self { taken: self.taken.saturating_sub(other.taken), next: self.next.saturating_sub(other.next) }
    }
}

/// A conditional branch or `loop` as executed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ConditionalExecution {
    pub target: CodeTarget,
    pub taken: u64,
    pub not_taken: u64,
}

/// How often the parts of an emitted terminator run.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Execution {
    pub conditional: Option<ConditionalExecution>,
    /// `jmp`: its target and how often it runs.
    pub jump: Option<(CodeTarget, u64)>,
    /// How often the following block is run into.
    pub runs_on: u64,
}

impl Execution {
    /// Of `emitted`, which some `terminator` became whose successors have these counts.
    pub fn of(emitted: Emitted, terminator: &Terminator, counts: SuccessorCounts) -> Self {
        let SuccessorCounts { taken, next } = counts;
        let whole = taken.saturating_add(next);
        let branch = |emitted: Condition, target: CodeTarget| match *terminator {
            Terminator::Branch { condition, .. } if condition != emitted => {
                ConditionalExecution { target, taken: next, not_taken: taken }
            }
            _ => ConditionalExecution { target, taken, not_taken: next },
        };
        match emitted {
            Emitted::None => Self { runs_on: whole, ..Self::default() },
            Emitted::Jump { target } => Self { jump: Some((target, whole)), ..Self::default() },
            Emitted::Branch { condition, taken } => {
                let conditional = branch(condition, taken);
                Self { conditional: Some(conditional), jump: None, runs_on: conditional.not_taken }
            }
            Emitted::BranchAndJump { condition, taken, next } => {
                let conditional = branch(condition, taken);
                Self { conditional: Some(conditional), jump: Some((next, conditional.not_taken)), runs_on: 0 }
            }
            Emitted::Loop { taken: target, then_jump } => {
                let conditional = ConditionalExecution { target: CodeTarget::Block(target), taken, not_taken: next };
                let jump = then_jump.map(|target| (CodeTarget::Block(target), next));
                Self { conditional: Some(conditional), jump, runs_on: if jump.is_some() { 0 } else { next } }
            }
        }
    }
}

/// What `terminator` becomes before `following`, the next block of the same fragment; without a profile.
pub fn emit(terminator: &Terminator, following: Option<Block>) -> Emitted {
    emit_weighted(terminator, following, SuccessorCounts::default())
}

/// As `emit`; where both successors are elsewhere the more frequent one gets the `jcc`, so that it runs one instruction, not two.
pub fn emit_weighted(terminator: &Terminator, following: Option<Block>, counts: SuccessorCounts) -> Emitted {
    let follows = |target: CodeTarget| matches!(target, CodeTarget::Block(block) if following == Some(block));
    match *terminator {
        Terminator::Fallthrough { next } => jump_unless(follows(CodeTarget::Block(next)), CodeTarget::Block(next)),
        Terminator::Jump { target } => jump_unless(follows(target), target),
        Terminator::Branch { condition, taken, next } => {
            let next = CodeTarget::Block(next);
            if follows(next) {
                Emitted::Branch { condition, taken }
            } else if follows(taken) {
                Emitted::Branch { condition: condition.inverted(), taken: next }
            } else if counts.next > counts.taken {
                Emitted::BranchAndJump { condition: condition.inverted(), taken: next, next: taken }
            } else {
                Emitted::BranchAndJump { condition, taken, next }
            }
        }
        Terminator::Loop { taken, next } => {
            Emitted::Loop { taken, then_jump: (!follows(CodeTarget::Block(next))).then_some(next) }
        }
        Terminator::Stop(_) => Emitted::None,
    }
}

/// What the input has, where `next` always follows and a jump is there even if its target follows.
pub fn as_in_input(terminator: &Terminator) -> Emitted {
    match *terminator {
        Terminator::Fallthrough { .. } | Terminator::Stop(_) => Emitted::None,
        Terminator::Jump { target } => Emitted::Jump { target },
        Terminator::Branch { condition, taken, .. } => Emitted::Branch { condition, taken },
        Terminator::Loop { taken, .. } => Emitted::Loop { taken, then_jump: None },
    }
}

fn jump_unless(follows: bool, target: CodeTarget) -> Emitted {
    if follows { Emitted::None } else { Emitted::Jump { target } }
}

#[cfg(test)]
mod tests {
    use lifter::address::Va;
    use lifter::ir::StopKind;

    use super::*;

    fn block(index: usize) -> Block {
        Block::new(index)
    }
    fn to(index: usize) -> CodeTarget {
        CodeTarget::Block(block(index))
    }
    const EQUAL: Condition = Condition(4);
    const NOT_EQUAL: Condition = Condition(5);

    #[test]
    fn a_successor_that_follows_costs_no_jump() {
        let fallthrough = Terminator::Fallthrough { next: block(1) };
        assert_eq!(emit(&fallthrough, Some(block(1))), Emitted::None);
        assert_eq!(emit(&fallthrough, Some(block(2))), Emitted::Jump { target: to(1) });
        assert_eq!(emit(&fallthrough, None), Emitted::Jump { target: to(1) });
        let jump = Terminator::Jump { target: to(1) };
        assert_eq!(emit(&jump, Some(block(1))), Emitted::None);
        assert_eq!(emit(&jump, None), Emitted::Jump { target: to(1) });
    }

    #[test]
    fn a_branch_is_inverted_where_its_taken_successor_follows() {
        let branch = Terminator::Branch { condition: EQUAL, taken: to(1), next: block(2) };
        assert_eq!(emit(&branch, Some(block(2))), Emitted::Branch { condition: EQUAL, taken: to(1) });
        assert_eq!(emit(&branch, Some(block(1))), Emitted::Branch { condition: NOT_EQUAL, taken: to(2) });
        assert_eq!(emit(&branch, None), Emitted::BranchAndJump { condition: EQUAL, taken: to(1), next: to(2) });
    }

    #[test]
    fn of_two_successors_elsewhere_the_more_frequent_gets_the_conditional_branch() {
        let branch = Terminator::Branch { condition: EQUAL, taken: to(1), next: block(2) };
        let counts = SuccessorCounts { taken: 3, next: 4 };
        let inverted = Emitted::BranchAndJump { condition: NOT_EQUAL, taken: to(2), next: to(1) };
        assert_eq!(emit_weighted(&branch, Some(block(7)), counts), inverted);
        // Where one follows, counts have no say.
        assert_eq!(emit_weighted(&branch, Some(block(2)), counts), emit(&branch, Some(block(2))));
    }

    #[test]
    fn a_branch_to_a_fixed_address_is_never_mistaken_for_a_fallthrough() {
        let fixed = CodeTarget::Fixed(Va(1));
        let branch = Terminator::Branch { condition: EQUAL, taken: fixed, next: block(2) };
        assert_eq!(emit(&branch, Some(block(1))), Emitted::BranchAndJump { condition: EQUAL, taken: fixed, next: to(2) });
        assert_eq!(emit(&branch, Some(block(2))), Emitted::Branch { condition: EQUAL, taken: fixed });
        assert_eq!(emit(&Terminator::Jump { target: fixed }, Some(block(1))), Emitted::Jump { target: fixed });
    }

    #[test]
    fn a_branch_whose_two_ways_lead_to_the_following_block_keeps_its_polarity() {
        let branch = Terminator::Branch { condition: EQUAL, taken: to(1), next: block(1) };
        assert_eq!(emit(&branch, Some(block(1))), Emitted::Branch { condition: EQUAL, taken: to(1) });
    }

    #[test]
    fn a_loop_is_not_inverted() {
        let looping = Terminator::Loop { taken: block(1), next: block(2) };
        assert_eq!(emit(&looping, Some(block(2))), Emitted::Loop { taken: block(1), then_jump: None });
        assert_eq!(emit(&looping, Some(block(1))), Emitted::Loop { taken: block(1), then_jump: Some(block(2)) });
    }

    #[test]
    fn an_inverted_branch_is_taken_as_often_as_the_original_fell_through() {
        let branch = Terminator::Branch { condition: EQUAL, taken: to(1), next: block(2) };
        let counts = SuccessorCounts { taken: 9, next: 4 };
        let execution = Execution::of(emit_weighted(&branch, Some(block(1)), counts), &branch, counts);
        assert_eq!(execution.conditional, Some(ConditionalExecution { target: to(2), taken: 4, not_taken: 9 }));
        assert_eq!((execution.jump, execution.runs_on), (None, 9));
        let apart = Execution::of(emit_weighted(&branch, None, counts), &branch, counts);
        assert_eq!(apart.conditional, Some(ConditionalExecution { target: to(1), taken: 9, not_taken: 4 }));
        assert_eq!((apart.jump, apart.runs_on), (Some((to(2), 4)), 0));
    }

    #[test]
    fn the_input_keeps_a_jump_to_the_next_block() {
        let jump = Terminator::Jump { target: to(1) };
        let counts = SuccessorCounts { taken: 3, next: 0 };
        assert_eq!(Execution::of(as_in_input(&jump), &jump, counts).jump, Some((to(1), 3)));
        assert_eq!(Execution::of(emit(&jump, Some(block(1))), &jump, counts).runs_on, 3);
    }

    #[test]
    fn a_block_that_leaves_gets_nothing() {
        assert_eq!(emit(&Terminator::Stop(StopKind::Return), Some(block(1))), Emitted::None);
    }
}
