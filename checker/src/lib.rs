//! The independent checker: re-reads what the producer wrote with other parsers and another disassembler.
//!
//! **Problem.** A relinked program must do what its input did, and the producer's own maps are not a witness: a bug that puts a block at
//! the wrong address also puts the wrong address in the map. So nothing of the producer is used here, neither code nor data.
//!
//! **Method.** Translation validation by a product walk (Necula, PLDI 2000; Pnueli et al., TACAS 1998). The walk starts from pairs
//! (input address, output address) that must correspond because a loader or an unwinder says so: the entry point, the relocated
//! slots, the dynamic symbols, the arrays. From each pair both programs are decoded in lock-step ([`walk`]); references make
//! new pairs. What no pair reaches is matched by content ([`leftover`]), and what is then still unexplained is a violation. Around
//! the walk, the data ([`data`]), the unwind tables ([`unwind`]) and the file's structure ([`structure`]) are compared. What no program reads,
//! the information for debuggers ([`mod@debug`]), has a report of its own.
//!
//! **Invariant.** No violation means: there is a relation between input and output code addresses that contains all starting pairs, is
//! closed under execution, and relates only instructions with the same effect; every other byte that is loaded is the same.

mod arrays;
mod code_model;
mod data;
mod debug;
mod decode;
mod distances;
mod dynamic;
mod error;
mod faults;
mod followed;
mod functions;
mod image;
mod leftover;
mod noreturn;
mod own_loader;
mod prove;
mod quiet;
mod registered;
mod remains;
mod report;
mod sframe;
mod shared_entries;
mod stack;
mod straight;
mod structure;
mod tables;
mod text_relocations;
mod unloaded;
mod unwind;
mod walk;

pub use error::Error;
pub use report::{DebugReport, Report, Stats, Violation, ViolationKind};

use std::sync::Arc;

use debug::file::DebugFile;
use decode::Memo;
use image::Image;
use prove::Liveness;
use rustc_hash::FxHashSet;
use unwind::Rows;
pub use walk::NOTHING_LEADS;
use walk::{Finished, Known, Side, Walk};

/// Further walks of what does not correspond, with copies of functions followed by their callers, as long as they find no more that is wrong.
const TRIES_MAX: usize = 3;

/// What somebody says of a program, and what no file shows.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Assumptions {
    /// No thread and no signal handler sees in which order accesses to memory are made that don't overlap.
    pub no_races: bool,
    /// Nobody asks for the callers of code where it can't stop by itself.
    pub no_async_unwind: bool,
}

/// A program, and the file that holds its debug information if another does.
#[derive(Copy, Clone, Debug)]
pub struct Files<'a> {
    pub program: &'a [u8],
    pub debug_file: Option<&'a [u8]>,
}

impl<'a> From<&'a [u8]> for Files<'a> {
    fn from(program: &'a [u8]) -> Self {
        Self { program, debug_file: None }
    }
}

/// Compares two ELF files. `Err` only if one of them cannot be read at all; everything else is collected in the report.
///
/// # Errors
/// If the input or the output is not a 64-bit little-endian x86-64 ELF file with sane tables.
pub fn check(input: &[u8], output: &[u8]) -> Result<Report, Error> {
    check_assuming(input, output, Assumptions::default())
}

/// The same, for a program of which something is known besides.
///
/// # Errors
/// As [`check`].
pub fn check_assuming<'a>(
    input: impl Into<Files<'a>>,
    output: impl Into<Files<'a>>,
    assumptions: Assumptions,
) -> Result<Report, Error> {
    Original::read(input)?.check(output, assumptions)
}

/// Whether a program relocates itself when it starts, as its relocations ask, packed ones too: its start-up code is run for that.
///
/// # Errors
/// If it is not a 64-bit little-endian x86-64 ELF file with sane tables.
pub fn relocates_itself(program: &[u8]) -> Result<bool, Error> {
    let image = Image::parse(program).map_err(Error::Output)?;
    let side = Side::new(image, &mut Rows::default(), &Arc::new(Memo::new())).map_err(Error::Output)?;
    Ok(prove::relocates_itself(&side))
}

/// The program as it was, read once for all outputs that are compared with it.
pub struct Original<'a> {
    known: Known<'a>,
    debug_file: Option<DebugFile<'a>>,
    rows: Rows,
    memo: Arc<Memo>,
    liveness: Liveness,
}

impl std::fmt::Debug for Original<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Original").finish_non_exhaustive()
    }
}

impl<'a> Original<'a> {
    /// Reads a program.
    ///
    /// # Errors
    /// If it is not a 64-bit little-endian x86-64 ELF file with sane tables.
    pub fn read(files: impl Into<Files<'a>>) -> Result<Self, Error> {
        let files = files.into();
        let image = Image::parse(files.program).map_err(Error::Input)?;
        let debug_file = files.debug_file.map(DebugFile::parse).transpose().map_err(Error::InputDebugFile)?;
        let (mut rows, memo) = (Rows::default(), Arc::new(Memo::new()));
        let side = Side::new(image, &mut rows, &memo).map_err(Error::Input)?;
        Ok(Self { known: Known::of(side), debug_file, rows, memo, liveness: Liveness::default() })
    }

    /// Compares an output with it. Nothing of an output is kept but numbers for unwind rules, so it makes no difference which ones were checked before.
    ///
    /// # Errors
    /// If the output is not a 64-bit little-endian x86-64 ELF file with sane tables.
    pub fn check<'o>(&mut self, output: impl Into<Files<'o>>, assumptions: Assumptions) -> Result<Report, Error> {
        self.check_until(output, assumptions, &|_| false)
    }

    /// The same, but if code that must correspond does not, and what was found by then `is_enough`, nothing else is looked at: for who makes another output then.
    ///
    /// # Errors
    /// As [`Original::check`].
    pub fn check_until<'o>(
        &mut self,
        output: impl Into<Files<'o>>,
        assumptions: Assumptions,
        is_enough: &dyn Fn(&Report) -> bool,
    ) -> Result<Report, Error> {
        let files = output.into();
        let output = Image::parse(files.program).map_err(Error::Output)?;
        let debug_file = files.debug_file.map(DebugFile::parse).transpose().map_err(Error::OutputDebugFile)?;
        let output = Side::new(output, &mut self.rows, &self.memo).map_err(Error::Output)?;
        let mut copies = FxHashSet::default();
        let mut tries = 0;
        let mut best: Option<(Vec<Violation>, Stats)> = None;
        let mut report = loop {
            let how = How { assumptions, is_enough, copies, liveness: std::mem::take(&mut self.liveness) };
            let mut report = match compare_code(&self.known, &output, &self.rows, how) {
                Compared::Whole(report) => *report,
                Compared::Differs(found) => {
                    let (report, liveness) = *found;
                    self.liveness = liveness;
                    return Ok(report);
                }
            };
            copies = std::mem::take(&mut report.copies);
            tries += 1;
            let is_worse = best.as_ref().is_some_and(|(fewer, _)| fewer.len() < report.violations.len());
            if copies.is_empty() || tries > TRIES_MAX || is_worse {
                break report;
            }
            self.liveness = report.liveness;
            best = Some((report.violations, report.stats));
        };
        // Copies were not what was wrong.
        if let Some((violations, stats)) = best.filter(|(fewer, _)| fewer.len() < report.violations.len()) {
            self.liveness = report.liveness;
            return Ok(Report { is_whole: false, ..Report::new(violations, stats) });
        }

        let input = &self.known.side;
        data::compare(input, &output, &report.explained, &mut report.violations);
        structure::check(input, &output, &mut report.violations);
        structure::check_mark(&output, &report.stats, &mut report.violations);
        unloaded::check(&input.image, &output.image, &mut report.violations);
        remains::check(&input.image, &output, &mut report.violations);
        code_model::check(input, &output, &mut report.violations);
        registered::check(input, &output, &mut report.violations);
        self.liveness = report.liveness;
        let relation = report.relation;
        distances::check_zeros(input, &output, &mut report.violations);
        distances::check(input, &output, &relation, &mut report.violations);
        arrays::check(input, &output, &relation, &mut report.violations);
        text_relocations::check(input, &output, &relation, &mut report.violations);
        let mut report = Report::new(report.violations, report.stats);
        if report.is_ok() {
            report.debug = debug::compare((input, self.debug_file.as_ref()), (&output, debug_file.as_ref()), &relation);
        }
        Ok(report)
    }
}

/// How code is compared.
struct How<'e> {
    assumptions: Assumptions,
    /// Asked where code that must correspond does not: nothing else is looked at then.
    is_enough: &'e dyn Fn(&Report) -> bool,
    /// They are put aside for what their callers know.
    copies: FxHashSet<(u64, u64)>,
    liveness: Liveness,
}

/// How far code was compared.
enum Compared {
    Whole(Box<Finished>),
    Differs(Box<(Report, Liveness)>),
}

/// The walk of both programs.
fn compare_code<'a>(known: &Known<'a>, output: &Side<'a>, rows: &Rows, how: How<'_>) -> Compared {
    let mut walk = Walk::new(known, output, how.copies);
    walk.rows = Some(rows);
    walk.assumptions = how.assumptions;
    // What the input does not say the output need not.
    walk.assumptions.no_async_unwind |= known.side.unwind.is_sparse;
    walk.begin_with(how.liveness);
    data::seed(&mut walk);
    walk.settle_all(false);
    data::seed_symbols(&mut walk);
    walk.settle_all(false);
    if !walk.violations.is_empty() {
        let report = Report { is_whole: false, ..Report::new(walk.violations.clone(), walk.stats) };
        if (how.is_enough)(&report) {
            return Compared::Differs(Box::new((report, walk.into_liveness())));
        }
    }
    walk.cover_metadata();
    leftover::settle(&mut walk);
    Compared::Whole(Box::new(walk.finish()))
}

#[cfg(test)]
mod tests;
