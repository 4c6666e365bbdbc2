//! A debug file for a program whose sections and segments have changed since.
//!
//! **Problem.** What makes a file smaller changes it after it was relinked: segments are cut in two, tables move, sections end earlier or become several. No code and no
//! variable moves, so nothing that debug information says is false; but the debug file repeats the headers, numbers its symbols by them, and is named by a checksum and by a
//! build id that is a hash of the program.
//!
//! **Method.** The headers are made anew from the finished program; contents stay as they are. A symbol of a table that has moved moves with it, and each symbol gets the number of
//! the section that has its address now. Then both files get their names of each other. A program that was not relinked at all is the same case, with the input's own debug file.
//!
//! **Invariant.** The program has a link of the name's length (`link_bytes`), which this fills in.

use lifter::Image;
use lifter::address::Va;
use lifter::elf::DebugFile;
use lifter::elf::image::{SectionData, SymbolData};
use lifter::entity::{EntityId, Section};
use object::elf;

use super::super::sections::{LINK, OutSection, SectionTable};
use super::{Head, NewDebugFile, Output, as_it_is, seal, table, write};
use crate::debug::Updated;
use crate::error::{Error, Result};

/// Bytes of an `Elf64_Sym`, and where in it section and value are.
const SYMBOL: usize = 24;
const SECTION_AT: usize = 6;
const VALUE_AT: usize = 8;

/// Makes the debug file of a program from one in which all is true but the headers, and gives both their names of each other.
///
/// # Errors
/// If one of both can't be read again, or the program has no such link.
pub fn settle(program: &mut [u8], debug_file: &[u8], name: &[u8]) -> Result<NewDebugFile> {
    let unreadable = |error| Error::Inconsistent(format!("what was made smaller can't be read again: {error}"));
    let file = DebugFile::read(debug_file).map_err(unreadable)?;
    let (mut new, build_id, link) = {
        let image = Image::parse(program).map_err(unreadable)?;
        let link = image.section_named(LINK).map(|id| image.sections[id].sh_offset.0);
        let link = link.ok_or_else(|| Error::Inconsistent("there is no link to the debug file".into()))?;
        (with_headers_of(&image, &file), image.build_id, link)
    };
    seal(program, build_id, (link, name), &mut new)?;
    Ok(new)
}

fn with_headers_of(image: &Image<'_>, file: &DebugFile<'_>) -> NewDebugFile {
    let sections: Vec<OutSection<'_>> = image.sections.iter().skip(1).map(|(id, section)| as_it_is(id, section)).collect();
    let output = Output {
        image,
        sections: &sections,
        bytes: image.bytes,
        segments: &image.segments,
        entry: image.e_entry,
        build_id: image.build_id,
    };
    let head = Head::of(output);
    let mut table = table(file, output, &head, Updated::default(), false);
    renumber_symbols(file, &mut table);
    write(head, table, output)
}

/// Gives each symbol the place and the number of its section.
fn renumber_symbols(file: &DebugFile<'_>, table: &mut SectionTable<'_>) {
    let Some((id, _)) = file.sections.iter().find(|(_, section)| section.sh_type == elf::SHT_SYMTAB) else { return };
    let mut bytes = file.all_sections().bytes_of(id).to_vec();
    for (raw, symbol) in bytes.chunks_exact_mut(SYMBOL).zip(file.symbols.values()) {
        let value = moved(file, table, symbol);
        let section = match symbol.has_address() {
            true => section_at(table, symbol, value),
            false => table.remap(symbol.st_shndx),
        };
        raw[SECTION_AT..SECTION_AT + 2].copy_from_slice(&section.to_le_bytes());
        raw[VALUE_AT..VALUE_AT + 8].copy_from_slice(&value.0.to_le_bytes());
    }
    table.set_content(id, bytes, None);
}

/// The value of a symbol. Code stays where it is, also where its section begins later now.
fn moved(file: &DebugFile<'_>, table: &SectionTable<'_>, symbol: &SymbolData<'_>) -> Va {
    let value = Va(symbol.st_value);
    let is_section = symbol.st_type() == elf::STT_SECTION;
    let id: Section = EntityId::new(usize::from(symbol.st_shndx));
    let old = file.sections.get(id).filter(|old| old.is_alloc() && (is_section || symbol.has_address()));
    let new = table.sections.iter().find(|new| new.source == Some(id));
    let Some((old, new)) = old.zip(new) else { return value };
    if is_section {
        return new.sh_addr;
    }
    // Of a section without contents there is but a mark at the end of its segment.
    let moves = !old.is_executable() && new.sh_size > 0 && is_within(old, value);
    if moves { new.sh_addr + (value.0 - old.sh_addr.0) } else { value }
}

/// Names of ends stand behind the last byte.
fn is_within(section: &SectionData<'_>, va: Va) -> bool {
    section.sh_addr <= va && va <= section.end()
}

/// The number of a symbol's own section while that has its address, else of the one that has it.
fn section_at(table: &SectionTable<'_>, symbol: &SymbolData<'_>, value: Va) -> u16 {
    let own = table.remap(symbol.st_shndx);
    let section = usize::from(own).checked_sub(1).and_then(|index| table.sections.get(index));
    let has_value = |section: &OutSection<'_>| section.sh_addr <= value && value <= section.sh_addr + section.sh_size;
    if section.is_some_and(has_value) {
        return own;
    }
    let last_resort = if own == 0 { elf::SHN_ABS } else { own };
    table.section_of(value).unwrap_or(last_resort)
}
