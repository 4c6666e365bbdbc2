//! `.debug_line` for code that has moved.
//!
//! **Method.** The header of each program, with its files and folders, stays as it is, byte for byte, for its strings lie in other sections. The program behind it is made anew: every stretch of
//! output code that stands for code of one of its sequences becomes rows at the new addresses, and stretches that follow each other become one sequence.
//!
//! **Invariant.** A row that goes on in a stretch, and began in another one, is no place for breakpoints: only where its code begins a debugger may stop for it.
//!
//! Source: DWARF 5 §6.2.

use std::ops::Range;

use gimli::{DebugLineOffset, Encoding, LineProgramHeader, LineRow, Reader};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::DebugError;
use super::map::{CodeMap, Kind, Stretch};
use super::unit::Slice;
use crate::relink::lsda::{push_sleb, push_uleb};

/// The section anew: its bytes, and where each program is, by its old offset.
pub(super) fn write(section: &[u8], map: &CodeMap<'_>) -> Result<(Vec<u8>, FxHashMap<u64, u64>), DebugError> {
    let offsets = programs(section)?;
    let written: Vec<Vec<u8>> = offsets.par_iter().map(|range| program(section, range, map)).collect::<Result<_, _>>()?;
    let (mut bytes, mut places) = (Vec::with_capacity(section.len()), FxHashMap::default());
    for (range, program) in offsets.iter().zip(written) {
        places.insert(range.start as u64, bytes.len() as u64);
        bytes.extend_from_slice(&program);
    }
    Ok((bytes, places))
}

/// Where the programs lie, one behind the other.
fn programs(section: &[u8]) -> Result<Vec<Range<usize>>, DebugError> {
    let mut input = Slice::new(section, gimli::LittleEndian);
    let mut ranges = Vec::new();
    while !input.is_empty() {
        let start = section.len() - input.len();
        let (len, _) = input.read_initial_length()?;
        input.skip(len)?;
        ranges.push(start..section.len() - input.len());
    }
    Ok(ranges)
}

/// What a row says but its address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) file: u64,
    pub(super) line: u64,
    pub(super) column: u64,
    pub(super) discriminator: u64,
    pub(super) isa: u64,
    pub(super) is_stmt: bool,
    pub(super) basic_block: bool,
    pub(super) prologue_end: bool,
    pub(super) epilogue_begin: bool,
}

impl Row {
    pub(super) fn of(row: &LineRow) -> Self {
        Row {
            file: row.file_index(),
            line: row.line().map_or(0, |line| line.get()),
            column: match row.column() {
                gimli::ColumnType::LeftEdge => 0,
                gimli::ColumnType::Column(column) => column.get(),
            },
            discriminator: row.discriminator(),
            isa: row.isa(),
            is_stmt: row.is_stmt(),
            basic_block: row.basic_block(),
            prologue_end: row.prologue_end(),
            epilogue_begin: row.epilogue_begin(),
        }
    }

    /// The same, where it only goes on.
    fn going_on(self) -> Self {
        Row { is_stmt: false, basic_block: false, prologue_end: false, epilogue_begin: false, ..self }
    }

    /// Whether it says of the code nothing that the row before does not say.
    pub(super) fn goes_on_from(self, last: Row) -> bool {
        self == self.going_on() && self == last.going_on()
    }
}

/// Rows of the input, by address, and where they end.
#[derive(Debug, Default)]
struct Sequence {
    rows: Vec<(u64, Row)>,
    end: u64,
}

fn program(section: &[u8], range: &Range<usize>, map: &CodeMap<'_>) -> Result<Vec<u8>, DebugError> {
    let lines = gimli::DebugLine::new(section, gimli::LittleEndian);
    let program = lines.program(DebugLineOffset(range.start), 8, None, None)?;
    let header = program.header().clone();
    if header.minimum_instruction_length() != 1 || header.maximum_operations_per_instruction() != 1 || header.line_range() == 0 {
        return Err(DebugError::Lines(range.start));
    }
    let mut sequences = Vec::new();
    let mut open = Sequence::default();
    let mut rows = program.rows();
    while let Some((_, row)) = rows.next_row()? {
        if row.end_sequence() {
            open.end = row.address();
            sequences.push(std::mem::take(&mut open));
        } else {
            open.rows.push((row.address(), Row::of(row)));
        }
    }
    let mut parts: Vec<(Stretch, u32)> = Vec::new();
    for (sequence, number) in sequences.iter_mut().zip(0..) {
        sequence.rows.sort_by_key(|row| row.0);
        let Some(&(start, _)) = sequence.rows.first() else { continue };
        parts.extend(map.parts_of_lines(start..sequence.end).map(|part| (part, number)));
    }
    parts.sort_unstable_by_key(|&(part, number)| (part.start, part.end, part.old, number));

    let body_at = range.end - header.raw_program_buf().len();
    let mut bytes = section[range.start..body_at].to_vec();
    let mut writer = Writer::new(&header);
    let mut reach = None;
    for (part, number) in parts {
        if reach != Some(part.start) {
            if let Some(reach) = reach {
                writer.end(reach);
            }
            writer.begin(part.start);
        }
        // The last one's alignment is its own.
        reach = Some(part.reach.max(part.end));
        writer.part(&part, &sequences[number as usize].rows);
    }
    if let Some(reach) = reach {
        writer.end(reach);
    }
    bytes.extend_from_slice(&writer.bytes);
    set_length(&mut bytes, header.encoding());
    Ok(bytes)
}

fn set_length(bytes: &mut [u8], encoding: Encoding) {
    let (start, size) = if encoding.format == gimli::Format::Dwarf64 { (4, 8) } else { (0, 4) };
    let len = (bytes.len() - start - size) as u64;
    bytes[start..start + size].copy_from_slice(&len.to_le_bytes()[..size]);
}

/// The state machine of DWARF 5 §6.2.2, driven backwards.
pub(super) struct Writer {
    pub(super) bytes: Vec<u8>,
    initial: Row,
    address: u64,
    row: Row,
    /// The last row of this sequence that was written.
    last: Option<Row>,
    /// The last one with a line.
    last_line: Option<Row>,
    line_base: i64,
    line_range: i64,
    opcode_base: u8,
}

impl Writer {
    pub(super) fn new(header: &LineProgramHeader<Slice<'_>>) -> Self {
        let initial = Row {
            file: 1,
            line: 1,
            column: 0,
            discriminator: 0,
            isa: 0,
            is_stmt: header.default_is_stmt(),
            basic_block: false,
            prologue_end: false,
            epilogue_begin: false,
        };
        Writer {
            bytes: Vec::new(),
            initial,
            address: 0,
            row: initial,
            last: None,
            last_line: None,
            line_base: i64::from(header.line_base()),
            line_range: i64::from(header.line_range()),
            opcode_base: header.opcode_base(),
        }
    }

    pub(super) fn begin(&mut self, address: u64) {
        (self.row, self.address, self.last, self.last_line) = (self.initial, address, None, None);
        self.bytes.extend_from_slice(&[0, 9, gimli::DW_LNE_set_address.0]);
        self.bytes.extend_from_slice(&address.to_le_bytes());
    }

    pub(super) fn end(&mut self, address: u64) {
        self.advance(address);
        self.bytes.extend_from_slice(&[0, 1, gimli::DW_LNE_end_sequence.0]);
    }

    /// The rows of a stretch.
    fn part(&mut self, part: &Stretch, rows: &[(u64, Row)]) {
        let first = rows.partition_point(|row| row.0 < part.old);
        let begins = rows.get(first).filter(|row| row.0 == part.old);
        if begins.or(rows[..first].last()).is_some_and(|row| row.1.line == 0) {
            self.nearest_line(part.start, &rows[..first]);
        }
        if begins.is_none()
            && let Some(before) = first.checked_sub(1)
        {
            // Of rows at one address the last holds.
            self.put(part.start, rows[before].1.going_on());
        }
        let end = if part.kind == Kind::Copied { part.old_end } else { part.old + 1 };
        for &(address, row) in rows[first..].iter().take_while(|row| row.0 < end) {
            self.put(part.start + (address - part.old), row);
        }
    }

    /// Code without a line (line 0) is told to debuggers by some of them as the last line before it, so that has to stand there first.
    fn nearest_line(&mut self, address: u64, before: &[(u64, Row)]) {
        let Some((_, nearest)) = before.iter().rev().find(|row| row.1.line != 0) else { return };
        if self.last_line != Some(nearest.going_on()) {
            self.put(address, nearest.going_on());
        }
    }

    pub(super) fn put(&mut self, address: u64, row: Row) {
        if self.last.is_some_and(|last| row.goes_on_from(last)) {
            return;
        }
        self.set(row);
        // One special opcode for both steps, if there is one (DWARF 5 §6.2.5.1).
        let by_line = row.line.wrapping_sub(self.row.line).cast_signed();
        if !(self.line_base..self.line_base + self.line_range).contains(&by_line) {
            self.bytes.push(gimli::DW_LNS_advance_line.0);
            push_sleb(&mut self.bytes, by_line);
            self.row.line = row.line;
        }
        let by_line = row.line.wrapping_sub(self.row.line).cast_signed();
        if let Some(code) = self.special(address - self.address, by_line) {
            self.bytes.push(code);
        } else {
            self.advance(address);
            match self.special(0, by_line) {
                Some(code) => self.bytes.push(code),
                None => {
                    if by_line != 0 {
                        self.bytes.push(gimli::DW_LNS_advance_line.0);
                        push_sleb(&mut self.bytes, by_line);
                    }
                    self.bytes.push(gimli::DW_LNS_copy.0);
                }
            }
        }
        self.address = address;
        self.row = Row { basic_block: false, prologue_end: false, epilogue_begin: false, discriminator: 0, ..row };
        self.last = Some(row);
        if row.line != 0 {
            self.last_line = Some(row.going_on());
        }
    }

    /// The opcode that takes both steps and makes a row.
    fn special(&self, by: u64, by_line: i64) -> Option<u8> {
        if !(self.line_base..self.line_base + self.line_range).contains(&by_line) {
            return None;
        }
        let from = by_line - self.line_base + i64::from(self.opcode_base);
        let code = i64::try_from(by).ok()?.checked_mul(self.line_range)?.checked_add(from)?;
        u8::try_from(code).ok()
    }

    /// All registers but address and line.
    fn set(&mut self, row: Row) {
        if row.file != self.row.file {
            self.bytes.push(gimli::DW_LNS_set_file.0);
            push_uleb(&mut self.bytes, row.file);
        }
        if row.column != self.row.column {
            self.bytes.push(gimli::DW_LNS_set_column.0);
            push_uleb(&mut self.bytes, row.column);
        }
        if row.is_stmt != self.row.is_stmt {
            self.bytes.push(gimli::DW_LNS_negate_stmt.0);
        }
        if row.basic_block {
            self.bytes.push(gimli::DW_LNS_set_basic_block.0);
        }
        let knows = |opcode: gimli::DwLns| opcode.0 < self.opcode_base;
        if row.prologue_end && knows(gimli::DW_LNS_set_prologue_end) {
            self.bytes.push(gimli::DW_LNS_set_prologue_end.0);
        }
        if row.epilogue_begin && knows(gimli::DW_LNS_set_epilogue_begin) {
            self.bytes.push(gimli::DW_LNS_set_epilogue_begin.0);
        }
        if row.isa != self.row.isa && knows(gimli::DW_LNS_set_isa) {
            self.bytes.push(gimli::DW_LNS_set_isa.0);
            push_uleb(&mut self.bytes, row.isa);
        }
        if row.discriminator != 0 {
            let mut operand = Vec::with_capacity(5);
            push_uleb(&mut operand, row.discriminator);
            self.bytes.push(0);
            push_uleb(&mut self.bytes, 1 + operand.len() as u64);
            self.bytes.push(gimli::DW_LNE_set_discriminator.0);
            self.bytes.extend_from_slice(&operand);
        }
    }

    fn advance(&mut self, address: u64) {
        if address != self.address {
            self.bytes.push(gimli::DW_LNS_advance_pc.0);
            push_uleb(&mut self.bytes, address - self.address);
            self.address = address;
        }
    }
}
