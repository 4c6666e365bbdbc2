//! A separate debug file, and whether it belongs to its program.
//!
//! **Method.** Section headers are read and what they lead to; program headers of such files may lead anywhere, and nothing is looked up by them.
//!
//! Source: GDB's manual, "Debugging Information in Separate Files".

use flate2::Crc;
use goblin::container::{Container, Ctx, Endian};
use goblin::elf::section_header::{SHT_NOBITS, SHT_NOTE, SHT_SYMTAB};
use goblin::elf::sym::{STT_FUNC, STT_GNU_IFUNC, Sym, Symtab};
use goblin::elf::{Elf, SectionHeader};
use goblin::strtab::Strtab;
use rustc_hash::FxHashMap;

use super::contents::Source;
use crate::error::FileError;
use crate::image::{self, Image, NT_GNU_BUILD_ID, Section, notes_of, slice};
use crate::report::DebugReport;

/// A parsed debug file.
pub(crate) struct DebugFile<'a> {
    bytes: &'a [u8],
    sections: Vec<Section<'a>>,
    symbols: Symtab<'a>,
    names: Strtab<'a>,
}

impl<'a> DebugFile<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, FileError> {
        let header = Elf::parse_header(bytes)?;
        image::require_x86_64(&header)?;
        let context = Ctx::new(Container::Big, Endian::Little);
        let offset = usize::try_from(header.e_shoff).unwrap_or(usize::MAX);
        let headers = SectionHeader::parse(bytes, offset, usize::from(header.e_shnum), context)?;
        let strings = |index: usize| -> Result<Strtab<'a>, FileError> {
            let Some(section) = headers.get(index).filter(|section| section.sh_type != SHT_NOBITS) else {
                return Ok(Strtab::default());
            };
            let bytes = slice(bytes, section.sh_offset, section.sh_size).unwrap_or(&[]);
            Ok(Strtab::parse(bytes, 0, bytes.len(), 0)?)
        };
        let sections = image::sections(&headers, &strings(usize::from(header.e_shstrndx))?);
        let table = headers.iter().find(|section| section.sh_type == SHT_SYMTAB);
        let Some(table) = table else {
            return Ok(Self { bytes, sections, symbols: Symtab::default(), names: Strtab::default() });
        };
        let entries = slice(bytes, table.sh_offset, table.sh_size).unwrap_or(&[]);
        let symbols = Symtab::parse(entries, 0, entries.len() / 24, context)?;
        Ok(Self { bytes, sections, symbols, names: strings(table.sh_link as usize)? })
    }

    pub(super) fn source(&self) -> Source<'_, 'a> {
        Source { bytes: self.bytes, sections: &self.sections }
    }

    /// The functions that have a name which no other has, by their names. Parts of functions have other names wherever they lie otherwise.
    pub(super) fn functions(&self) -> Vec<(&'a str, u64)> {
        let is_function = |symbol: &Sym| matches!(symbol.st_type(), STT_FUNC | STT_GNU_IFUNC) && symbol.st_shndx != 0;
        let named = self.symbols.iter().filter(is_function).filter_map(|s| Some((self.names.get_at(s.st_name)?, s.st_value)));
        let named: Vec<(&str, u64)> = named.filter(|(name, _)| !name.is_empty() && !name.contains(".cold")).collect();
        let mut counts: FxHashMap<&str, usize> = FxHashMap::default();
        named.iter().for_each(|(name, _)| *counts.entry(name).or_default() += 1);
        named.into_iter().filter(|(name, _)| counts[name] == 1).collect()
    }

    fn build_id(&self) -> Option<&'a [u8]> {
        let notes = self.sections.iter().filter(|section| section.sh_type == SHT_NOTE && section.is_alloc());
        notes.map(|section| section.bytes_in(self.bytes)).find_map(|bytes| {
            let is_id = |&(kind, name, _): &(u32, &[u8], _)| kind == NT_GNU_BUILD_ID && name == b"GNU\0";
            // Its name is four bytes long, so both ways to align notes put its contents at the same place.
            notes_of(bytes, 4).find(is_id).and_then(|(_, _, place)| bytes.get(place))
        })
    }

    /// Whether debuggers take it for the program's.
    pub(super) fn belonging_to(&self, program: &Image<'a>) -> DebugReport {
        let mut report = DebugReport::default();
        let mut note = |is_right: bool, message: &dyn Fn() -> String| {
            report.compared += 1;
            if !is_right {
                report.different += 1;
                report.messages.push(message());
            }
        };
        let link = program.section(".gnu_debuglink").map_or(&[][..], |section| program.section_bytes(section));
        let mut crc = Crc::new();
        crc.update(self.bytes);
        note(link.ends_with(&crc.sum().to_le_bytes()), &|| "the output's link is not to its debug file".to_owned());
        let id = program.build_id().and_then(|range| program.at(range.start, usize::try_from(range.end - range.start).ok()?));
        note(id == self.build_id(), &|| "the debug file has another build id than the output".to_owned());
        for section in program.sections.iter().filter(|section| section.is_alloc()) {
            let is_same = |other: &&Section<'_>| (other.address, other.size) == (section.address, section.size);
            let other = self.sections.iter().filter(|other| other.is_alloc() && other.name == section.name);
            let is_right = other.clone().any(|other| is_same(&other));
            note(is_right, &|| format!("the debug file has {} elsewhere", section.name.escape_debug()));
        }
        report
    }
}
