//! What an order of blocks costs in unwind tables: behind a `ret`, say, the stack is lower than where a body goes on, and another landing pad takes exceptions.
//!
//! **Method.** Of each block the row that it begins with and the one that it ends with. Where one block follows another, the section of unwind rows tells how
//! far it is to there and what leads from one row to the other, if they differ. Behind the last block of all comes another function, which begins with the common row.
//!
//! Likewise the call site of the first and the last instruction of a block from which exceptions can come: of neighbors with the same one the exception table has one for both.
//! Blocks without such instructions are told apart from all others, though they cost nothing between two that have the same.
//!
//! **Bounds.** Functions with very many rows are not weighed, and call sites beyond the first two hundred have no one in common.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::lsda::CallSite;
use lifter::ir::Program;
use rustc_hash::FxHashMap;

use crate::plan::FragmentPlan;
use crate::relink::eh_frame::{FrameRows, Row, may_raise};
use crate::relink::lsda::{Stretch, stretches};

/// Different rows of a fragment, at most.
const ROWS_MAX: usize = 64;
/// How far it is to a row.
const ADVANCE: usize = 1;
/// Where a call site begins, how long it is, its landing pad and its action: in tables of several compilers 5.6 to 5.9 bytes.
const CALL_SITE: i64 = 5;

/// What unwind tables say of code where a piece begins or ends.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    row: u8,
    site: u8,
}

/// Of code from which no exception comes, the call site is not asked for.
const UNASKED: u8 = 0;
/// It is in no call site.
const OUTSIDE: u8 = 1;
/// Like no other.
const UNLIKE: u8 = u8::MAX;

/// What stands between one piece of a fragment and another.
#[derive(Debug, Default)]
pub(super) struct Seams {
    /// By piece, what is told where it begins and where it ends. Row 0 is the common one.
    ends: Vec<(Told, Told)>,
    /// Bytes that lead from one row to another.
    costs: Vec<u8>,
    num_rows: usize,
}

impl Seams {
    /// Of pieces with these call sites, from which exceptions can come.
    #[cfg(test)]
    pub(super) fn with_sites(sites: &[u8]) -> Self {
        let told = |&site: &u8| (Told { row: 0, site }, Told { row: 0, site });
        Self { ends: sites.iter().map(told).collect(), costs: vec![0], num_rows: 1 }
    }

    pub(super) fn of(image: &Image<'_>, program: &Program, fragment: &FragmentPlan) -> Self {
        let first_range = program.funcs[fragment.func].ranges.as_usize().start;
        let entries = program.func_ranges(fragment.func).iter().map(|range| {
            let fde = program.unwind.fdes.get(range.fde?)?;
            FrameRows::evaluate(program.unwind.cies.get(fde.cie as usize)?, fde)
        });
        let entries: Vec<Option<FrameRows<'_>>> = entries.collect();
        let mut seams = Self::between(program, fragment, &entries, first_range).unwrap_or_default();
        seams.find_call_sites(image, program, fragment);
        seams
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
            let mut told = |row| match rows.iter().position(|known| *known == row) {
                Some(index) => Some(Told { row: index as u8, site: UNASKED }),
                None if rows.len() == ROWS_MAX => None,
                None => {
                    rows.push(row);
                    Some(Told { row: rows.len() as u8 - 1, site: UNASKED })
                }
            };
            ends.push((told(entry.at(data.start))?, told(entry.at(data.end().offset(-1)))?));
        }
        let entry = entry_of(program.blocks[fragment.blocks.first()?.block].range)?;
        let cost = |from: &&Row<'_>, to: &&Row<'_>| {
            let bytes = entry.difference_len(from, to);
            if bytes == 0 { 0 } else { (ADVANCE + bytes).min(usize::from(u8::MAX)) as u8 }
        };
        let costs = rows.iter().flat_map(|from| rows.iter().map(move |to| cost(from, to))).collect();
        Some(Self { ends, costs, num_rows: rows.len() })
    }

    /// Adds the call sites, where rows are known.
    fn find_call_sites(&mut self, image: &Image<'_>, program: &Program, fragment: &FragmentPlan) {
        let mut known: FxHashMap<(Option<Va>, u64), u8> = FxHashMap::default();
        let mut number = |site: Option<&CallSite>| {
            let Some(site) = site else { return OUTSIDE };
            let next = OUTSIDE + 1 + known.len().min(usize::from(UNLIKE - OUTSIDE - 1)) as u8;
            *known.entry((site.landing_pad, site.action)).or_insert(next)
        };
        for ((first, last), planned) in self.ends.iter_mut().zip(&fragment.blocks) {
            let data = &program.blocks[planned.block];
            let fde = program.ranges[data.range as usize].fde.and_then(|fde| program.unwind.fdes[fde].lsda);
            let Some(lsda) = fde.map(|index| &program.unwind.lsdas[index as usize]) else { continue };
            let stretches = stretches(lsda, data.start, data.end());
            let raises = |stretch: &&Stretch<'_>| {
                let bytes = image.read(stretch.start, (stretch.end - stretch.start) as usize);
                bytes.is_none_or(|bytes| may_raise(bytes, stretch.start))
            };
            if let Some(found) = stretches.iter().find(raises) {
                first.site = number(found.site);
                last.site = stretches.iter().rfind(raises).map_or(first.site, |found| number(found.site));
            }
        }
    }

    /// What is told where a run of pieces begins, and where it ends.
    pub(super) fn ends(&self, first: u32, last: u32) -> (Told, Told) {
        let of = |piece: u32| self.ends.get(piece as usize).copied().unwrap_or_default();
        let asked = |told: &Told| told.site != UNASKED;
        let begin = (first..=last).map(|piece| of(piece).0).find(asked).unwrap_or_default();
        let end = (first..=last).rev().map(|piece| of(piece).1).find(asked).unwrap_or_default();
        (Told { site: begin.site, ..of(first).0 }, Told { site: end.site, ..of(last).1 })
    }

    /// Bytes that lead from what is told to something else.
    pub(super) fn step(&self, from: Told, to: Told) -> i64 {
        let of_rows = self.costs.get(usize::from(from.row) * self.num_rows + usize::from(to.row));
        let begins_site = to.site > OUTSIDE && (to.site != from.site || to.site == UNLIKE);
        of_rows.map_or(0, |&cost| i64::from(cost)) + if begins_site { CALL_SITE } else { 0 }
    }

    /// Bytes at the seams of this order of pieces; behind the last is the start of a function.
    pub(super) fn total(&self, order: &[u32]) -> i64 {
        let mut before: Option<Told> = None;
        let mut total = 0;
        for &piece in order {
            let (begin, end) = self.ends(piece, piece);
            total += before.map_or(0, |before| self.step(before, begin));
            let site = if end.site == UNASKED { before.map_or(UNASKED, |before| before.site) } else { end.site };
            before = Some(Told { site, ..end });
        }
        total + before.map_or(0, |before| self.step(before, Told::default()))
    }
}
