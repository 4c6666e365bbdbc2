//! The independent checker: re-reads what the producer wrote with other parsers and another disassembler.
//!
//! **Problem.** A relinked program must do what its input did, and the producer's own maps are not a witness: a bug that puts a block at
//! the wrong address also puts the wrong address in the map. So nothing of the producer is used here, neither code nor data.
//!
//! **Method.** Translation validation by a product walk (Necula, PLDI 2000; Pnueli et al., TACAS 1998). The walk starts from pairs
//! (input address, output address) that must correspond because a loader or an unwinder says so: the entry point, the relocated
//! slots, the dynamic symbols, the arrays. From each pair both programs are decoded in lock-step ([`walk`]); references make
//! new pairs. What no pair reaches is matched by content ([`leftover`]), and what is then still unexplained is a violation. Around
//! the walk, the data ([`data`]), the unwind tables ([`unwind`]) and the file's structure ([`structure`]) are compared.
//!
//! **Invariant.** No violation means: there is a relation between input and output code addresses that contains all starting pairs, is
//! closed under execution, and relates only instructions with the same effect; every other byte that is loaded is the same.

mod data;
mod decode;
mod dynamic;
mod error;
mod image;
mod leftover;
mod noreturn;
mod prove;
mod registered;
mod report;
mod stack;
mod structure;
mod tables;
mod unwind;
mod walk;

pub use error::Error;
pub use report::{Report, Stats, Violation, ViolationKind};

use image::Image;
use rustc_hash::FxHashSet;
use unwind::Rows;
pub use walk::NOTHING_LEADS;
use walk::{Finished, Side, Walk};

/// Further walks of what does not correspond, with copies of functions followed by their callers.
const TRIES_MAX: usize = 3;

/// What somebody says of a program, and what no file shows.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Assumptions {
    /// No thread and no signal handler sees in which order accesses to memory are made that don't overlap.
    pub no_races: bool,
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
pub fn check_assuming(input: &[u8], output: &[u8], assumptions: Assumptions) -> Result<Report, Error> {
    let input = Image::parse(input).map_err(Error::Input)?;
    let output = Image::parse(output).map_err(Error::Output)?;
    let mut rows = Rows::default();
    let input = Side::new(input, &mut rows).map_err(Error::Input)?;
    let output = Side::new(output, &mut rows).map_err(Error::Output)?;

    let mut report = compare_code(&input, &output, &rows, assumptions, FxHashSet::default());
    for _ in 0..TRIES_MAX {
        if report.copies.is_empty() {
            break;
        }
        let copies = std::mem::take(&mut report.copies);
        report = compare_code(&input, &output, &rows, assumptions, copies);
    }

    data::compare(&input, &output, &report.explained, &mut report.violations);
    structure::check(&input, &output, &mut report.violations);
    registered::check(&input, &output, &mut report.violations);
    Ok(Report::new(report.violations, report.stats))
}

/// The walk of both programs; `copies` are put aside for what their callers know.
fn compare_code(
    input: &Side<'_>,
    output: &Side<'_>,
    rows: &Rows,
    assumptions: Assumptions,
    copies: FxHashSet<(u64, u64)>,
) -> Finished {
    let mut walk = Walk::new(input, output, copies);
    walk.rows = Some(rows);
    walk.assumptions = assumptions;
    data::seed(&mut walk);
    walk.settle_all(false);
    data::seed_symbols(&mut walk);
    walk.settle_all(false);
    walk.cover_metadata();
    leftover::settle(&mut walk);
    walk.finish()
}

#[cfg(test)]
mod tests;
