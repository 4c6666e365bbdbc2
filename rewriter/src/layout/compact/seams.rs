//! What an order of blocks costs in unwind rows: behind a `ret`, say, the stack is lower than where a body goes on.
//!
//! **Method.** Of each block the row that it begins with and the one that it ends with. Where one block follows another, the section of unwind rows tells how
//! far it is to there and what leads from one row to the other, if they differ. Behind the last block of all comes another function, which begins with the common row.
//!
//! **Bounds.** Functions with very many rows are not weighed.

use lifter::ir::Program;

use crate::plan::FragmentPlan;
use crate::relink::eh_frame::{FrameRows, Row};

/// Different rows of a fragment, at most.
const ROWS_MAX: usize = 64;
/// How far it is to a row.
const ADVANCE: usize = 1;

/// What stands between one piece of a fragment and another.
#[derive(Debug, Default)]
pub(super) struct Seams {
    /// By piece, the rows that it begins and ends with. Row 0 is the common one.
    ends: Vec<(u8, u8)>,
    /// Bytes that lead from one row to another.
    costs: Vec<u8>,
    num_rows: usize,
}

impl Seams {
    pub(super) fn of(program: &Program, fragment: &FragmentPlan) -> Self {
        let first_range = program.funcs[fragment.func].ranges.as_usize().start;
        let entries = program.func_ranges(fragment.func).iter().map(|range| {
            let fde = program.unwind.fdes.get(range.fde?)?;
            FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)
        });
        let entries: Vec<Option<FrameRows<'_>>> = entries.collect();
        Self::between(program, fragment, &entries, first_range).unwrap_or_default()
    }

    /// `None` where rows are not understood or too many.
    fn between(
        program: &Program,
        fragment: &FragmentPlan,
        entries: &[Option<FrameRows<'_>>],
        first_range: usize,
    ) -> Option<Self> {
        let entry_of = |range: u32| entries.get((range as usize).checked_sub(first_range)?)?.as_ref();
        let mut rows: Vec<&Row<'_>> = Vec::new();
        let mut ends = Vec::with_capacity(fragment.blocks.len());
        for planned in &fragment.blocks {
            let data = &program.blocks[planned.block];
            let entry = entry_of(data.range)?;
            if rows.is_empty() {
                rows.push(entry.initial());
            }
            let mut index = |row| match rows.iter().position(|known| *known == row) {
                Some(index) => Some(index as u8),
                None if rows.len() == ROWS_MAX => None,
                None => {
                    rows.push(row);
                    Some(rows.len() as u8 - 1)
                }
            };
            ends.push((index(entry.at(data.start))?, index(entry.at(data.end().offset(-1)))?));
        }
        let entry = entry_of(program.blocks[fragment.blocks.first()?.block].range)?;
        let cost = |from: &&Row<'_>, to: &&Row<'_>| {
            let bytes = entry.difference_len(from, to);
            if bytes == 0 { 0 } else { (ADVANCE + bytes).min(usize::from(u8::MAX)) as u8 }
        };
        let costs = rows.iter().flat_map(|from| rows.iter().map(move |to| cost(from, to))).collect();
        Some(Self { ends, costs, num_rows: rows.len() })
    }

    /// The row that a run of pieces begins with, and the one that it ends with.
    pub(super) fn rows(&self, first: u32, last: u32) -> (u8, u8) {
        let of = |piece: u32| self.ends.get(piece as usize).copied().unwrap_or_default();
        (of(first).0, of(last).1)
    }

    /// Bytes that lead from one row to another.
    pub(super) fn step(&self, from: u8, to: u8) -> i64 {
        self.costs.get(usize::from(from) * self.num_rows + usize::from(to)).map_or(0, |&cost| i64::from(cost))
    }

    /// Bytes of rows between two pieces that follow each other; behind the last is the start of a function.
    pub(super) fn cost(&self, piece: u32, next: Option<u32>) -> i64 {
        self.step(self.rows(piece, piece).1, next.map_or(0, |next| self.rows(next, next).0))
    }

    /// Bytes of rows at the seams of this order of pieces.
    pub(super) fn total(&self, order: &[u32]) -> i64 {
        order.iter().enumerate().map(|(at, &piece)| self.cost(piece, order.get(at + 1).copied())).sum()
    }
}
