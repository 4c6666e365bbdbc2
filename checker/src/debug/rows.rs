//! The rows of a line table, as intervals.
//!
//! A row holds up to the next one of its sequence; where several stand at one address, the last one holds from there on. That a row is a place to stop at, or one where a
//! prologue ends, is said of its own address alone, which is an interval of one byte: where a row only goes on, because its code was parted, nobody should stop.

use gimli::{ColumnType, LineProgramHeader, LineRow, UnitHeader};

use super::facts::{Budget, Dwarf, Slice};
use super::timeline::{Interval, join, mix, mix_bytes};
use super::unit::offset_of;
use crate::image::Image;

const ROW: u64 = 0x726f_7701;
const STOP: u64 = 0x726f_7702;
const PROLOGUE_END: u64 = 0x726f_7703;
const EPILOGUE_BEGIN: u64 = 0x726f_7704;

/// What a line table says.
#[derive(Default)]
pub(super) struct Table {
    /// Where a row holds.
    pub(super) rows: Vec<Interval>,
    /// What rows say of their own address.
    pub(super) stops: Vec<Interval>,
    /// A fingerprint of its files: entries name them by number.
    pub(super) files: u64,
}

/// A row of the sequence that is read.
struct Row {
    address: u64,
    key: u64,
    is_stop: bool,
    is_prologue_end: bool,
    is_epilogue_begin: bool,
}

/// The table that a unit names.
pub(super) fn collect(
    dwarf: &Dwarf<'_>,
    header: UnitHeader<Slice<'_>>,
    image: &Image<'_>,
    budget: &Budget,
) -> Result<Table, String> {
    let offset = offset_of(&header);
    let fail = |error: gimli::Error| format!("the line table of the unit at {offset:#x} can't be read: {error}");
    let unit = dwarf.unit(header).map_err(fail)?;
    let Some(program) = unit.line_program else { return Ok(Table::default()) };
    let files = files_of(dwarf, program.header());
    let mut table = Table::default();
    let mut sequence: Vec<Row> = Vec::new();
    let mut rows = program.rows();
    while let Some((_, row)) = rows.next_row().map_err(fail)? {
        budget.take()?;
        if row.end_sequence() {
            if sequence.first().is_some_and(|first| image.in_code(first.address)) {
                add_sequence(&sequence, row.address(), offset, &mut table);
            }
            sequence.clear();
            continue;
        }
        let key = key_of(row, &files, offset);
        sequence.push(Row {
            address: row.address(),
            key,
            is_stop: row.is_stmt(),
            is_prologue_end: row.prologue_end(),
            is_epilogue_begin: row.epilogue_begin(),
        });
    }
    join(&mut table.rows, 0);
    join(&mut table.stops, 0);
    Ok(Table { files: files.into_iter().fold(0, mix), ..table })
}

fn add_sequence(rows: &[Row], end: u64, die: u64, table: &mut Table) {
    let ends = rows.iter().skip(1).map(|row| row.address).chain([end]);
    for (row, next) in rows.iter().zip(ends) {
        let start = row.address;
        // What stands at the end of its sequence is no place of it.
        if start >= end {
            continue;
        }
        if start < next {
            table.rows.push(Interval { key: mix(ROW, row.key), start, end: next, die });
        }
        let marks = [(STOP, row.is_stop), (PROLOGUE_END, row.is_prologue_end), (EPILOGUE_BEGIN, row.is_epilogue_begin)];
        for (salt, _) in marks.into_iter().filter(|&(_, is_said)| is_said) {
            table.stops.push(Interval { key: mix(salt, row.key), start, end: start.saturating_add(1), die });
        }
    }
}

/// Directory and name of each file, as numbers.
fn files_of(dwarf: &Dwarf<'_>, header: &LineProgramHeader<Slice<'_>>) -> Vec<u64> {
    let text = |value| dwarf.attr_line_string(value).map_or(0, |text| mix_bytes(1, text.slice()));
    // Up to DWARF 4 they are counted from 1.
    let count = header.file_names().len() as u64 + u64::from(header.version() < 5);
    let name = |index| header.file(index).map_or(0, |file| mix(file.directory(header).map_or(0, text), text(file.path_name())));
    (0..count).map(name).collect()
}

fn key_of(row: &LineRow, files: &[u64], offset: u64) -> u64 {
    let file = usize::try_from(row.file_index()).ok().and_then(|index| files.get(index));
    let column = match row.column() {
        ColumnType::LeftEdge => 0,
        ColumnType::Column(column) => column.get(),
    };
    let line = row.line().map_or(0, std::num::NonZeroU64::get);
    let fields = [file.copied().unwrap_or(row.file_index()), line, column, row.discriminator()];
    fields.into_iter().fold(offset, mix)
}
