//! A new separate debug file for the output, and the names by which the two files know each other.
//!
//! **Problem.** A debug file repeats where the loaded sections of its program are: debuggers relate both files by these headers, count with them where they load symbols, and look for
//! it by the build id or by a name and a checksum that the program holds. All of it is another for the output.
//!
//! **Method.** Headers of loaded sections are the output's own, without bytes but for notes, as `objcopy --only-keep-debug` makes them; behind them stands what only the debug
//! file has, brought up to date like a program's own (`debug`, `symbols`). The output holds a `.gnu_debuglink` with the new file's name. Its build id is a hash of it and, by
//! the checksum in the link, of the debug file without the id; then the id goes into the debug file, and its checksum into the link. So a debugger that goes by build ids never
//! finds the input's file, and one that goes by names refuses it.
//!
//! **Invariants.** Both files have the same loaded sections, in the same order, under the same numbers. No byte of code or data is in the debug file.
//!
//! Source: GDB's manual, "Debugging Information in Separate Files"; gABI chapter 4.

mod head;
mod settle;

use std::borrow::Cow;

use flate2::Crc;
use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::DebugFile;
use lifter::elf::image::{SectionData, Segment};
use lifter::entity::Section;
use object::elf;

use super::renew_build_id;
use super::room::Rooms;
use super::sections::{ContentPlace, LINK, OutSection, SectionTable, is_made_false, section_names_of};
use super::symbols::{self, Names, Placed};
use crate::debug::map::CodeMap;
use crate::debug::{self, Separate, Updated};
use crate::error::{Error, Result};
use head::Head;

pub use settle::settle;

/// The debug file of an output.
#[derive(Debug)]
pub struct NewDebugFile {
    pub bytes: Vec<u8>,
    /// Entries of which only the first part could be said.
    pub partial: u64,
    /// The build id of both files.
    pub build_id: Option<Vec<u8>>,
    /// Where that is.
    build_id_at: Option<usize>,
}

/// What the debug file has to agree with.
#[derive(Copy, Clone)]
pub(super) struct Output<'o, 'a> {
    /// What its sections have their numbers of.
    pub(super) image: &'o Image<'a>,
    pub(super) sections: &'o [OutSection<'a>],
    /// As far as they are loaded.
    pub(super) bytes: &'o [u8],
    pub(super) segments: &'o [Segment],
    pub(super) entry: Va,
    pub(super) build_id: Option<(FileOffset, usize)>,
}

/// The section of the output that names the debug file.
pub(super) fn link(name: &[u8]) -> OutSection<'static> {
    OutSection { sh_addralign: LINK_ALIGN, ..OutSection::of_debug_information(LINK, link_bytes(name)) }
}

/// Of the link, which holds a word.
pub(crate) const LINK_ALIGN: u64 = 4;

/// The link to a debug file; the checksum is filled in by [`seal`].
pub(crate) fn link_bytes(name: &[u8]) -> Vec<u8> {
    let mut bytes = name.to_vec();
    bytes.resize(checksum_at(name) + 4, 0);
    bytes
}

/// Where the checksum is in the section: behind the name and its zero.
fn checksum_at(name: &[u8]) -> usize {
    (name.len() + 1).next_multiple_of(4)
}

/// Makes the debug file. `map` says where code went, if any did.
pub(super) fn build(
    separate: Separate<'_>,
    map: Option<&CodeMap<'_>>,
    placed: Placed<'_>,
    moved_address: &(dyn Fn(Va) -> Option<Va> + Sync),
    output: Output<'_, '_>,
) -> Result<NewDebugFile> {
    let file = separate.file;
    let updated = map.map(|map| debug::update(file.all_sections(), map)).transpose().map_err(Error::DebugFile)?;
    let partial = updated.as_ref().map_or(0, |updated| updated.partial);
    let head = Head::of(output);
    let mut table = table(file, output, &head, updated.unwrap_or_default(), map.is_some());
    let names = Names { sections: file.all_sections(), symbols: &file.symbols };
    symbols::rewrite(output.image, names, placed, &mut table, moved_address);
    Ok(NewDebugFile { partial, ..write(head, table, output) })
}

/// The file, before it has a build id.
fn write(head: Head, table: SectionTable<'_>, output: Output<'_, '_>) -> NewDebugFile {
    let build_id_at = output.build_id.and_then(|(at, len)| head.place_of(at, len));
    let mut bytes = head.bytes;
    let written = table.write(&mut bytes, Rooms::default(), None);
    bytes[24..32].copy_from_slice(&output.entry.0.to_le_bytes());
    bytes[40..48].copy_from_slice(&written.e_shoff.to_le_bytes());
    bytes[60..62].copy_from_slice(&written.e_shnum.to_le_bytes());
    bytes[62..64].copy_from_slice(&written.e_shstrndx.to_le_bytes());
    if let (Some(at), Some((_, len))) = (build_id_at, output.build_id) {
        bytes[at..at + len].fill(0);
    }
    NewDebugFile { bytes, partial: 0, build_id: None, build_id_at }
}

/// Gives both files their names of each other: the output's link is at `link`.
pub(super) fn seal(
    output: &mut [u8],
    build_id: Option<(FileOffset, usize)>,
    (link, name): (u64, &[u8]),
    debug_file: &mut NewDebugFile,
) -> Result<()> {
    let at = link as usize + checksum_at(name);
    let checksum = |bytes: &[u8]| {
        let mut crc = Crc::new();
        crc.update(bytes);
        crc.sum().to_le_bytes()
    };
    let outside = || Error::Inconsistent("the link to the debug file is not in the file".into());
    output.get_mut(at..at + 4).ok_or_else(outside)?.copy_from_slice(&checksum(&debug_file.bytes));
    if let Some((offset, len)) = build_id {
        renew_build_id(output, offset, len);
        let id = output.get(offset.0 as usize..offset.0 as usize + len).unwrap_or(&[]).to_vec();
        if let Some(place) = debug_file.build_id_at.and_then(|at| debug_file.bytes.get_mut(at..at + id.len())) {
            place.copy_from_slice(&id);
        }
        debug_file.build_id = Some(id);
    }
    output[at..at + 4].copy_from_slice(&checksum(&debug_file.bytes));
    Ok(())
}

/// The sections: loaded ones are the output's, all others the debug file's.
fn table<'a>(
    file: &DebugFile<'a>,
    output: Output<'_, '_>,
    head: &Head,
    mut updated: Updated,
    moves_code: bool,
) -> SectionTable<'a> {
    let loaded = output.sections.iter().filter(|section| section.is_alloc());
    let mut sections: Vec<OutSection<'a>> = loaded.map(|section| without_bytes(file, output.image, head, section)).collect();
    for (id, section) in file.sections.iter().skip(1).filter(|(_, section)| !section.is_alloc()) {
        if section.name == LINK || is_made_false(section, moves_code, Some(&updated)) {
            continue;
        }
        let place = match probes_of(output, section) {
            Some(bytes) => ContentPlace::Appended(bytes.to_vec().into()),
            None if section.has_bytes() => ContentPlace::Appended(Cow::Borrowed(file.all_sections().bytes_of(id))),
            None => ContentPlace::Loaded(FileOffset(0)),
        };
        sections.push(OutSection { place, ..as_it_is(id, section) });
    }
    for (name, bytes) in updated.added.drain(..) {
        sections.push(OutSection::of_debug_information(name, bytes));
    }
    let mut table = SectionTable::of(sections, file.sections.len(), section_names_of(file.bytes));
    for (id, bytes) in updated.contents {
        table.set_content(id, bytes, None);
    }
    table
}

/// Notes that name code, which the output has too.
fn probes_of<'o>(output: Output<'o, '_>, section: &SectionData<'_>) -> Option<&'o [u8]> {
    let same = output.sections.iter().find(|s| s.name == section.name && s.name == ".note.stapsdt")?;
    match &same.place {
        ContentPlace::Appended(bytes) if bytes.len() as u64 == section.sh_size => Some(bytes),
        _ => None,
    }
}

fn as_it_is(id: Section, section: &SectionData<'_>) -> OutSection<'static> {
    OutSection {
        source: Some(id),
        name: section.name.to_owned(),
        sh_type: section.sh_type,
        sh_flags: section.sh_flags,
        sh_addr: section.sh_addr,
        sh_size: section.sh_size,
        sh_link: section.sh_link,
        sh_info: section.sh_info,
        sh_addralign: section.sh_addralign,
        sh_entsize: section.sh_entsize,
        place: ContentPlace::Loaded(section.sh_offset),
    }
}

/// A loaded section of the output, of which the debug file says where it is. What it links to is said in the debug file's own numbers.
fn without_bytes(file: &DebugFile<'_>, image: &Image<'_>, head: &Head, section: &OutSection<'_>) -> OutSection<'static> {
    let input = section.source.and_then(|id| image.sections.get(id));
    let same = input.and_then(|input| {
        let of_name = file.sections.iter().filter(|(_, s)| s.is_alloc() && s.name == input.name);
        of_name.min_by_key(|(_, s)| s.sh_addr != input.sh_addr)
    });
    let note = head.notes.iter().find(|note| note.address == section.sh_addr && section.sh_type == elf::SHT_NOTE);
    let info_is_section = section.sh_flags & u64::from(elf::SHF_INFO_LINK) != 0;
    let holds = |segment: &&Segment| segment.is_load() && segment.p_vaddr <= section.sh_addr && section.sh_addr < segment.end();
    let before = head.segments.iter().find(holds).map_or(0, |segment| segment.p_offset.0 + segment.p_filesz);
    OutSection {
        source: same.map(|(id, _)| id),
        name: section.name.clone(),
        sh_type: if note.is_some() { elf::SHT_NOTE } else { elf::SHT_NOBITS },
        sh_flags: section.sh_flags & !u64::from(elf::SHF_INFO_LINK),
        sh_addr: section.sh_addr,
        sh_size: section.sh_size,
        sh_link: same.map_or(0, |(_, s)| s.sh_link),
        sh_info: if info_is_section { 0 } else { section.sh_info },
        sh_addralign: section.sh_addralign,
        sh_entsize: section.sh_entsize,
        place: ContentPlace::Loaded(FileOffset(note.map_or(before, |note| note.to))),
    }
}
