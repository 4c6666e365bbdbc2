//! Debug information (DWARF 2 to 5) for code that has moved.
//!
//! **Problem.** Line tables, scopes, variables and call sites name code by address. A function that was one run of bytes may lie in several parts now, in another
//! order, some of them more than once.
//!
//! **Method.** Entries of `.debug_info` are written over where they stand and keep their size, so that all that names them by offset (other entries, `.debug_names`,
//! `.debug_pubnames`, the index of `.gdb_index`) stays true; `abbreviations` says how one entry gets several ranges. What has no fixed size is made anew: lists of ranges and of locations
//! (`lists`), programs of lines (`lines`), tables by address (`indexes`). Strings, types and macros stay as they are. Where code went is asked of `map`, which is made of the same runs
//! as the unwind tables.
//!
//! **What can't be said.** In a copy of a function's beginning that saves its registers late, variables are in other registers: there they have no location, but
//! lines and scopes are true. Code that stands in the place of a call belongs to the call's line. Entries for code that is gone, or of which another function's stands for it, are left empty.
//!
//! **Where it is**: in the program, or in a file of its own ([`Separate`]), whose sections are read in the same way; what that file needs besides is in `relink::debug_file`.
//!
//! **What is dropped**: `.debug_frame`, for which `.eh_frame` does; all of it where units lie in other files (split DWARF), or where something is not understood.
//!
//! **Invariants.** Every entry keeps its offset. Nothing outside the sections of debug information is looked at or changed.
//!
//! **Terminates**: each section is read once.
//!
//! Sources: DWARF 5, chapters 2, 6 and 7; DWARF 2 to 4 for older units.

mod abbreviations;
mod contents;
mod expression;
mod indexes;
mod lines;
mod lists;
mod lower;
pub(crate) mod map;
#[cfg(test)]
mod tests;
mod unit;

use std::borrow::Cow;
use std::collections::BTreeMap;

use gimli::{Dwarf, Encoding, SectionId, Unit};
use lifter::elf::DebugFile;
use lifter::elf::image::Sections;
use lifter::entity::Section;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use abbreviations::{Conversions, Converted};
use lower::{Decided, Lowered, Patch, Planned, Value};
use map::CodeMap;
use unit::{Field, Slice};

#[derive(Debug, thiserror::Error)]
pub enum DebugError {
    #[error("it can't be read: {0}")]
    Unreadable(#[from] gimli::Error),
    #[error("the unit at {0:#x} keeps it in another file")]
    Split(usize),
    #[error("the unit at {0:#x} has addresses of another size than eight bytes")]
    AddressSize(usize),
    #[error("the attribute at {0:#x} has a form that is not known for it")]
    Form(usize),
    #[error("a unit numbers its lists without a table of them")]
    NoTable,
    #[error("the line table at {0:#x} is for another kind of machine, or nowhere")]
    Lines(usize),
    #[error("the macros at {0:#x} can't be read")]
    Macros(usize),
    #[error("an expression nests too deep")]
    Nested,
    #[error("{0} can't be decompressed")]
    Compressed(String),
    #[error("what would have to stand at {0:#x} is too large for its field")]
    TooLarge(usize),
    #[error("its .gdb_index has an unknown version")]
    Index,
}

/// What becomes of debug information.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It is left out where code moves.
    #[default]
    Drop,
    /// It is brought up to date.
    Update,
}

/// A program's debug information in a file of its own.
#[derive(Copy, Clone, Debug)]
pub struct Separate<'d> {
    pub file: &'d DebugFile<'d>,
    /// By which the output is to name the new one.
    pub name: &'d [u8],
}

/// What is wanted of all debug information.
#[derive(Copy, Clone, Debug, Default)]
pub struct Wanted<'d> {
    /// What becomes of the program's own.
    pub mode: Mode,
    /// It is brought up to date.
    pub separate: Option<Separate<'d>>,
}

impl From<Mode> for Wanted<'_> {
    fn from(mode: Mode) -> Self {
        Self { mode, separate: None }
    }
}

/// What became of it.
#[derive(Debug, Default)]
pub enum Outcome {
    /// There is none, or nothing was done about it.
    #[default]
    Nothing,
    /// It is up to date, but for so many entries of which only the first part could be said.
    Updated { partial: u64 },
    /// It is left out, for it is not understood.
    NotUnderstood(DebugError),
}

/// New contents of sections, and what is worth telling.
#[derive(Debug, Default)]
pub(crate) struct Updated {
    /// Of sections that the input has.
    pub(crate) contents: Vec<(Section, Vec<u8>)>,
    /// Of sections that it does not have, by name.
    pub(crate) added: Vec<(&'static str, Vec<u8>)>,
    /// Entries of which only the first part could be said.
    pub(crate) partial: u64,
}

/// Whether a section stays or is made anew where debug information is brought up to date.
pub(crate) fn keeps(name: &str) -> bool {
    let is_debug = name.starts_with(".debug_") && name != ".debug_frame";
    is_debug || name == ".gdb_index" || name == ".gnu_debugaltlink"
}

/// Whether a file has debug information.
pub(crate) fn is_in(sections: Sections<'_, '_>) -> bool {
    sections.named(".debug_info").is_some()
}

/// The sections, read.
struct Source<'a> {
    dwarf: Dwarf<Slice<'a>>,
    info: &'a [u8],
    types: &'a [u8],
    range_lists: &'a [u8],
    location_lists: &'a [u8],
}

impl<'a> Source<'a> {
    /// The section with a unit's entries.
    fn entries(&self, unit: &Unit<Slice<'a>>) -> &'a [u8] {
        if unit.header.section() == SectionId::DebugTypes { self.types } else { self.info }
    }
}

/// The bytes of all sections, by name.
type Contents<'a> = FxHashMap<&'a str, (Section, Cow<'a, [u8]>)>;

/// Brings debug information up to date.
///
/// # Errors
/// If it is damaged, or of a kind that is not understood.
pub(crate) fn update(sections: Sections<'_, '_>, map: &CodeMap<'_>) -> Result<Updated, DebugError> {
    let mut contents = Contents::default();
    for (id, section) in sections.data.iter().filter(|(_, s)| !s.is_alloc() && s.has_bytes() && keeps(s.name)) {
        contents.insert(section.name, (id, contents::read(sections, id)?));
    }
    let bytes = |name: &str| contents.get(name).map_or(&[][..], |(_, bytes)| bytes);
    let mut dwarf = Dwarf::load(|id| Ok::<_, gimli::Error>(Slice::new(bytes(id.name()), gimli::LittleEndian)))?;
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let source = Source {
        info: bytes(".debug_info"),
        types: bytes(".debug_types"),
        range_lists: bytes(".debug_rnglists"),
        location_lists: bytes(".debug_loclists"),
        dwarf,
    };

    let units = units(&source)?;
    let mut planned: Vec<Planned> = units.par_iter().map(|unit| plan(&source, unit, map)).collect::<Result<_, _>>()?;
    let decided = decide(bytes(".debug_abbrev"), &units, &mut planned)?;
    let pairs: Vec<(&Unit<Slice<'_>>, &Planned)> = units.iter().zip(&planned).collect();
    let lowered: Vec<Lowered> =
        pairs.par_iter().map(|(unit, planned)| lower::lower(&source, unit, planned, &decided, map)).collect::<Result<_, _>>()?;
    let (line_programs, lines) = lines::write(bytes(".debug_line"), map)?;

    let mut output = Output { contents: &contents, lines: &lines, new: BTreeMap::new(), partial: 0 };
    output.write_units(&units, &lowered, &decided.conversions)?;
    output.replace(".debug_line", line_programs);
    output.replace(".debug_aranges", indexes::aranges(bytes(".debug_aranges"), map)?);
    if contents.contains_key(".gdb_index") {
        output.replace(".gdb_index", indexes::gdb_index(bytes(".gdb_index"), map).ok_or(DebugError::Index)?);
    }
    output.finish(sections)
}

fn units<'a>(source: &Source<'a>) -> Result<Vec<Unit<Slice<'a>>>, DebugError> {
    let mut headers = Vec::new();
    let mut of_info = source.dwarf.units();
    while let Some(header) = of_info.next()? {
        headers.push(header);
    }
    let mut of_types = source.dwarf.type_units();
    while let Some(header) = of_types.next()? {
        headers.push(header);
    }
    headers.into_par_iter().map(|header| Ok(source.dwarf.unit(header)?)).collect()
}

fn plan(source: &Source<'_>, unit: &Unit<Slice<'_>>, map: &CodeMap<'_>) -> Result<Planned, DebugError> {
    if unit.encoding().address_size != 8 {
        return Err(DebugError::AddressSize(unit.header.offset().0));
    }
    lower::plan(&source.dwarf, unit, unit::read(&source.dwarf, unit, unit.header.offset().0)?, map)
}

/// Abbreviations are shared by units, and calls may lead from one to another.
fn decide(abbreviations: &[u8], units: &[Unit<Slice<'_>>], planned: &mut [Planned]) -> Result<Decided, DebugError> {
    let in_many_parts = planned.iter().flat_map(|planned| planned.in_many_parts.iter().copied()).collect();
    let mut decided = Decided { in_many_parts, ..Decided::default() };
    for (unit, planned) in units.iter().zip(planned) {
        lower::convert_calls(planned, &decided.in_many_parts);
        let converted = planned.converts.iter().map(|(&code, &conversion)| (code, Converted { conversion, code: None }));
        decided.conversions.entry(unit.header.debug_abbrev_offset().0 as u64).or_default().extend(converted);
    }
    abbreviations::assign(abbreviations, &mut decided.conversions)?;
    Ok(decided)
}

/// New contents, growing.
struct Output<'o, 'a> {
    contents: &'o Contents<'a>,
    lines: &'o FxHashMap<u64, u64>,
    new: BTreeMap<&'static str, Vec<u8>>,
    partial: u64,
}

impl Output<'_, '_> {
    /// New contents for a section that the input has.
    fn replace(&mut self, name: &'static str, bytes: Vec<u8>) {
        if self.contents.contains_key(name) {
            self.new.insert(name, bytes);
        }
    }

    /// The contents of a section, to write over.
    fn over(&mut self, name: &'static str) -> &mut Vec<u8> {
        let old = self.contents.get(name);
        self.new.entry(name).or_insert_with(|| old.map_or_else(Vec::new, |(_, bytes)| bytes.to_vec()))
    }

    fn write_units(
        &mut self,
        units: &[Unit<Slice<'_>>],
        lowered: &[Lowered],
        conversions: &Conversions,
    ) -> Result<(), DebugError> {
        let tables: Vec<(u64, Encoding)> =
            units.iter().map(|unit| (unit.header.debug_abbrev_offset().0 as u64, unit.encoding())).collect();
        let old = self.contents.get(".debug_abbrev").map_or(&[][..], |(_, bytes)| bytes);
        let (abbreviations, tables) = abbreviations::write(old, &tables, conversions)?;
        self.replace(".debug_abbrev", abbreviations);
        for list in [".debug_ranges", ".debug_rnglists", ".debug_loc", ".debug_loclists"] {
            self.new.insert(list, Vec::new());
        }
        for (unit, lowered) in units.iter().zip(lowered) {
            self.partial += u64::from(lowered.partial);
            let is_new = unit.encoding().version >= 5;
            let ranges = self.append(if is_new { ".debug_rnglists" } else { ".debug_ranges" }, &lowered.ranges);
            let locations = self.append(if is_new { ".debug_loclists" } else { ".debug_loc" }, &lowered.locations);
            for patch in &lowered.patches {
                self.patch(unit, patch, (ranges, locations))?;
            }
            let table = tables.get(&(unit.header.debug_abbrev_offset().0 as u64)).copied().unwrap_or(0);
            let field = Field { at: abbreviations_field(unit), len: unit.encoding().format.word_size() };
            self.patch(unit, &Patch { field, value: Value::Plain(table) }, (0, 0))?;
            for &(at, address) in &lowered.addresses {
                put(self.over(".debug_addr"), Field { at, len: 8 }, address)?;
            }
        }
        Ok(())
    }

    /// Returns where they begin.
    fn append(&mut self, name: &'static str, bytes: &[u8]) -> u64 {
        let section = self.new.entry(name).or_default();
        let at = section.len() as u64;
        section.extend_from_slice(bytes);
        at
    }

    fn patch(&mut self, unit: &Unit<Slice<'_>>, patch: &Patch, (ranges, locations): (u64, u64)) -> Result<(), DebugError> {
        let value = match patch.value {
            Value::Plain(value) => value,
            Value::Leb(value) => padded(value, patch.field.len),
            Value::Ranges(at) => ranges + at,
            Value::Locations(at) => locations + at,
            Value::Lines(old) => self.new_lines(old)?,
            // Units may share them, so it is the input's that are read.
            Value::Macros(at) => {
                let macros = self.contents.get(".debug_macro").map_or(&[][..], |(_, bytes)| bytes);
                let Some((field, old)) = indexes::lines_of_macros(macros, at as usize)? else { return Ok(()) };
                let new = self.new_lines(old)?;
                return put(self.over(".debug_macro"), field, new);
            }
        };
        let is_types = unit.header.section() == SectionId::DebugTypes;
        put(self.over(if is_types { ".debug_types" } else { ".debug_info" }), patch.field, value)
    }

    /// Where a line table is now.
    fn new_lines(&self, old: u64) -> Result<u64, DebugError> {
        self.lines.get(&old).copied().ok_or(DebugError::Lines(old as usize))
    }

    fn finish(self, sections: Sections<'_, '_>) -> Result<Updated, DebugError> {
        let mut updated = Updated { partial: self.partial, ..Updated::default() };
        for (name, bytes) in self.new {
            match self.contents.get(name) {
                Some(&(id, _)) if contents::is_compressed(sections, id) => {
                    let bytes = contents::compress(&bytes).map_err(|_| DebugError::Compressed(name.to_owned()))?;
                    updated.contents.push((id, bytes));
                }
                Some(&(id, _)) => updated.contents.push((id, bytes)),
                None if bytes.is_empty() => {}
                None => updated.added.push((name, bytes)),
            }
        }
        Ok(updated)
    }
}

/// Where a unit's header says where its abbreviations are (DWARF 5 §7.5.1).
fn abbreviations_field(unit: &Unit<Slice<'_>>) -> usize {
    let encoding = unit.encoding();
    let before = usize::from(encoding.format.initial_length_size()) + if encoding.version >= 5 { 4 } else { 2 };
    unit.header.offset().0 + before
}

/// A number as one of LEB128 with so many bytes, its bytes in the order of a word.
fn padded(value: u64, len: u8) -> u64 {
    let byte = |index: u8| (value >> (7 * index)) & 0x7f | if index + 1 < len { 0x80 } else { 0 };
    (0..len.min(8)).fold(0, |word, index| word | byte(index) << (8 * index))
}

fn put(bytes: &mut [u8], field: Field, value: u64) -> Result<(), DebugError> {
    let len = usize::from(field.len);
    if len < 8 && value >> (8 * len) != 0 {
        return Err(DebugError::TooLarge(field.at));
    }
    let place = bytes.get_mut(field.at..field.at + len.min(8)).ok_or(DebugError::Form(field.at))?;
    place.copy_from_slice(&value.to_le_bytes()[..len.min(8)]);
    Ok(())
}
