//! BOLT's pre-aggregated text (`perf2bolt -pa`): samples by address, added up by some other tool.
//!
//! ```text
//! E cycles:u                       the event of the lines below
//! B 4b1942 4b57f0 12 1             taken branch: source, target, count, mispredictions
//! F 41be50 41be90 4                straight-line run: first and last instruction, count; `f` where an outside branch began it,
//!                                  `r` where a return did
//! T 4b196f 4b19e0 4b19ef 2         branch and the run behind it; `R` where the branch is a return
//! S 41be50 7                       sample
//! ```
//!
//! Addresses are hexadecimal offsets from where the object is loaded, each with `BUILD-ID:` in front if it is not the main object's;
//! counts are decimal. An address of another object is a place outside. For a position-independent program the offset is the address in the
//! file; for a fixed one both forms are seen, and a reader takes addresses as they are, as BOLT does.

use std::fmt::Write;

use lifter::ir::Program;
use lifter::{Image, Va};

use crate::error::Result;
use crate::records::{FlowKind, flow_records};
use crate::samples::{Collector, Samples};
use crate::text::{Line, Lines};
use crate::watch::{SILENT, Watch};
use crate::weights::Weights;

const FORMAT: &str = "pre-aggregated profile";

/// Reads samples of an object; `build_id` in hexadecimal digits says which prefix is its own.
pub fn read(bytes: &[u8], build_id: Option<&str>) -> Result<Samples> {
    read_watched(bytes, build_id, SILENT)
}

/// The same; `watch` is told how far it is.
pub fn read_watched(bytes: &[u8], build_id: Option<&str>, watch: Watch<'_>) -> Result<Samples> {
    let mut collector = Collector::default();
    for mut line in Lines::watched(FORMAT, bytes, watch) {
        read_line(&mut line, build_id, &mut collector)?;
    }
    Ok(collector.finish())
}

fn read_line(line: &mut Line<'_>, build_id: Option<&str>, collector: &mut Collector) -> Result<()> {
    let kind = line.field();
    match kind {
        b"E" => return Ok(()),
        b"B" => {
            let (from, to) = (address(line, build_id)?, address(line, build_id)?);
            let count = line.number("a count", 10)?;
            let mispredicted = line.number("a number of mispredictions", 10)?;
            collector.note(count, from.is_some() || to.is_some());
            collector.branch(from, to, count, mispredicted);
        }
        b"F" | b"f" | b"r" => {
            let (first, last) = (address(line, build_id)?, address(line, build_id)?);
            let count = line.number("a count", 10)?;
            collector.note(count, first.is_some() && last.is_some());
            if let (Some(first), Some(last)) = (first, last) {
                collector.trace(first, last, count);
            }
        }
        b"T" | b"R" => {
            let (from, to, last) = (address(line, build_id)?, address(line, build_id)?, address(line, build_id)?);
            let count = line.number("a count", 10)?;
            collector.note(count, from.is_some() || to.is_some());
            collector.branch(from, to, count, 0);
            if let (Some(first), Some(last)) = (to, last) {
                collector.trace(first, last, count);
            }
        }
        b"S" => {
            let at = address(line, build_id)?;
            let count = line.number("a count", 10)?;
            collector.note(count, at.is_some());
            if let Some(at) = at {
                collector.address(at, count);
            }
        }
        _ => return Err(line.fail("a line begins with B, F, f, r, T, R, S or E")),
    }
    line.finish()
}

/// An address of the object itself; `None` for another object's and for what comes from nowhere (zero).
fn address(line: &mut Line<'_>, build_id: Option<&str>) -> Result<Option<Va>> {
    let field = line.field();
    let (object, digits) = match field.iter().position(|&b| b == b':') {
        Some(colon) => (&field[..colon], &field[colon + 1..]),
        None => (&[][..], field),
    };
    let is_signed = digits.first() == Some(&b'-');
    // A hand-made "nowhere" is written as -1 too.
    let value = if is_signed { 0 } else { line.parse(digits, "an address in hexadecimal digits", 16)? };
    let is_own = object.is_empty() || build_id.is_some_and(|own| own.as_bytes() == object);
    Ok((is_own && value != 0 && value < u64::MAX / 2).then_some(Va(value)))
}

/// Everything that has a count: taken branches and calls as branches, falling through as a run over two blocks.
pub fn export(image: &Image<'_>, program: &Program, weights: &Weights) -> String {
    let mut text = String::new();
    for record in flow_records(image, program, weights) {
        let target = program.blocks[record.target].start.0;
        let count = record.count;
        let _ = match record.kind {
            FlowKind::Taken | FlowKind::Call => writeln!(text, "B {:x} {target:x} {count} 0", record.from.0),
            FlowKind::Fallthrough => {
                let first = program.blocks[record.source].start.0;
                writeln!(text, "F {first:x} {target:x} {count}")
            }
            FlowKind::Entry => writeln!(text, "B X:0 {target:x} {count} 0"),
        };
    }
    text
}

#[cfg(test)]
mod tests;
