//! What lies inside a chain X, and what cutting it costs at the least, so that most cuts need not be evaluated when it takes in a chain Y.
//!
//! **Method.** Of a jump inside X that crosses the cut into X1 and X2, the distance behind the merge does not depend on where the cut is: Y between the two adds
//! its size, and a rotation turns the jump round, by the size of X. So one pass over the jumps sums up, for all cuts at once, what those that cross them
//! earn more or less. What depends on X alone is kept as long as X stays what it is.
//!
//! **Invariant.** Sums in another order round differently: `gain_max` is above what `Merger` finds by a margin for that. So leaving out the cuts that can't
//! beat the best one changes nothing.

use super::super::ext_tsp::{Jump, JumpKind, jump_score, jump_score_max};
use super::MergeType;

/// Far above the rounding of a sum of a few hundred terms, relative to the largest.
const MARGIN: f64 = 1e-11;

/// A jump inside a chain that ran: the indices and offsets of its two ends, and what it earns where it is.
#[derive(Debug)]
pub(super) struct Inner<'g> {
    pub(super) jump: &'g Jump,
    pub(super) source: u32,
    pub(super) target: u32,
    pub(super) end: i64,
    pub(super) start: i64,
    pub(super) score: f64,
}

/// What is known of a chain's inside.
#[derive(Debug)]
pub(super) struct Inside<'g> {
    /// In the order of their sources.
    pub(super) jumps: Vec<Inner<'g>>,
    /// By cut, whether some jump falls through at it.
    pub(super) falls_through: Vec<bool>,
    /// By cut, the change of what the jumps across it earn when the chain is rotated.
    rotated: Vec<f64>,
    margin: f64,
}

impl<'g> Inside<'g> {
    /// For the jumps inside a chain of so many blocks and bytes.
    pub(super) fn new(jumps: Vec<Inner<'g>>, len: usize, size: i64) -> Self {
        let mut falls_through = vec![false; len];
        for inner in jumps.iter().filter(|inner| inner.jump.kind != JumpKind::Indirect && inner.source + 1 == inner.target) {
            falls_through[inner.target as usize] = true;
        }
        let rotated = changes(&jumps, len, -size);
        let margin = MARGIN * jumps.iter().map(|inner| jump_score_max(inner.jump)).sum::<f64>();
        Inside { jumps, falls_through, rotated, margin }
    }

    /// With a chain Y of so many bytes.
    pub(super) fn bounds(&self, size_y: i64) -> Bounds<'_> {
        Bounds { inside: self, inserted: changes(&self.jumps, self.falls_through.len(), size_y) }
    }
}

/// By cut, the change of what the jumps across it earn when they become so many bytes longer.
fn changes(jumps: &[Inner<'_>], len: usize, longer: i64) -> Vec<f64> {
    let mut changes = vec![0.0; len + 1];
    for &Inner { jump, source, target, end, start, score } in jumps {
        let shift = if source < target { longer } else { -longer };
        let change = jump_score(jump, end, start + shift) - score;
        // It crosses the cuts from the one behind its lower end up to the one before its upper end.
        changes[source.min(target) as usize + 1] += change;
        changes[source.max(target) as usize + 1] -= change;
    }
    let mut sum = 0.0;
    for change in &mut changes {
        sum += *change;
        *change = sum;
    }
    changes
}

pub(super) struct Bounds<'i> {
    inside: &'i Inside<'i>,
    inserted: Vec<f64>,
}

impl Bounds<'_> {
    /// The most that a merge gains in which the jumps between X and Y earn `between`.
    pub(super) fn gain_max(&self, between: f64, cut: u32, kind: MergeType) -> f64 {
        let change = match kind {
            MergeType::Append => 0.0,
            MergeType::Insert => self.inserted[cut as usize],
            MergeType::RotateAfter | MergeType::RotateBefore => self.inside.rotated[cut as usize],
        };
        between * (1.0 + MARGIN) + change + self.inside.margin
    }
}
