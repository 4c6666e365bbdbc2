//! The part of the output that no loader reads: section headers, symbols, strings.
//!
//! **Method.** Every section of the input is kept, moved, changed or dropped; new ones describe the overflow. Then headers are sorted by
//! address (what `strip` and `objcopy` expect) and every index that names a section is renumbered. Sections that the move makes false are
//! dropped and named to the user: debug information, static relocations, the link to a debug file.
//!
//! Source: gABI chapter 4 (sections, symbol table).

use std::borrow::Cow;

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::SectionData;
use lifter::entity::{EntityId, Section};
use object::elf;

use super::room::Rooms;
use crate::debug::{self, Updated};

/// The link to a separate debug file.
pub(crate) const LINK: &str = ".gnu_debuglink";

/// A section header to write.
#[derive(Clone, Debug)]
pub(crate) struct OutSection<'a> {
    pub(crate) source: Option<Section>,
    pub(crate) name: String,
    pub(crate) sh_type: u32,
    pub(crate) sh_flags: u64,
    pub(crate) sh_addr: Va,
    pub(crate) sh_size: u64,
    pub(crate) sh_link: u32,
    pub(crate) sh_info: u32,
    pub(crate) sh_addralign: u64,
    pub(crate) sh_entsize: u64,
    pub(crate) place: ContentPlace<'a>,
}

/// Where a section's bytes are.
#[derive(Clone, Debug)]
pub(crate) enum ContentPlace<'a> {
    /// At a file offset that is already settled.
    Loaded(FileOffset),
    /// To be appended.
    Appended(Cow<'a, [u8]>),
}

impl OutSection<'_> {
    /// A section that the input does not have.
    pub(crate) fn of_debug_information(name: &str, bytes: Vec<u8>) -> Self {
        OutSection {
            source: None,
            name: name.to_owned(),
            sh_type: elf::SHT_PROGBITS,
            sh_flags: 0,
            sh_addr: Va(0),
            sh_size: bytes.len() as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
            place: ContentPlace::Appended(bytes.into()),
        }
    }

    /// How many bytes it adds to the file, if any are to be added.
    fn appended_size(&self) -> Option<u64> {
        match &self.place {
            ContentPlace::Loaded(_) => None,
            ContentPlace::Appended(bytes) => Some(bytes.len() as u64),
        }
    }

    pub(crate) fn is_alloc(&self) -> bool {
        self.sh_flags & u64::from(elf::SHF_ALLOC) != 0
    }
}

/// The output's sections, sorted; index 0 is the null section.
#[derive(Debug)]
pub(crate) struct SectionTable<'a> {
    pub(crate) sections: Vec<OutSection<'a>>,
    /// By input index: the output index, 0 for what was dropped. `None`: the file has no section headers, and an index in a symbol
    /// only says that it is defined.
    new_index: Option<Vec<u16>>,
    /// The section that holds the names of sections.
    names: Section,
    pub(crate) dropped: Vec<String>,
}

/// Where what no loader reads was written.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Written {
    pub(crate) e_shoff: u64,
    pub(crate) e_shnum: u16,
    pub(crate) e_shstrndx: u16,
    /// Where the link to a debug file is.
    pub(crate) link: Option<u64>,
}

/// Whether a new file makes the section false; `moves_code` says whether code is elsewhere in it, `updated` what was done about debug information.
pub(crate) fn is_made_false(section: &SectionData<'_>, moves_code: bool, updated: Option<&Updated>) -> bool {
    if section.is_alloc() || updated.is_some() && debug::keeps(section.name) && section.sh_type == elf::SHT_PROGBITS {
        return false;
    }
    const PREFIXES: [&str; 9] = [
        ".debug",
        ".zdebug",
        ".gnu_debuglink",
        ".gnu_debugaltlink",
        ".gnu_debugdata",
        ".gdb_index",
        ".stab",
        ".gnu.build.attributes",
        ".llvm_bb_addr_map",
    ];
    moves_code && PREFIXES.iter().any(|prefix| section.name.starts_with(prefix))
        || [elf::SHT_RELA, elf::SHT_REL, elf::SHT_GROUP].contains(&section.sh_type)
}

impl<'a> SectionTable<'a> {
    /// Starts from the input's sections; `added` describe what the relinker placed, `updated` is debug information anew. Symbol and string tables are filled in later.
    pub(crate) fn new(
        image: &Image<'a>,
        moves_code: bool,
        mut added: Vec<OutSection<'a>>,
        mut updated: Option<Updated>,
        edit: impl Fn(Section, &mut OutSection<'a>),
    ) -> Self {
        let mut sections = Vec::new();
        let mut dropped = Vec::new();
        let names = section_names_of(image.bytes);
        if !image.has_section_headers {
            return SectionTable { sections, new_index: None, names, dropped };
        }
        let new_link = added.iter_mut().find(|section| section.name == LINK);
        let has_new_link = new_link.is_some();
        if let Some(link) = new_link {
            // What the input says of its own link goes for the new one.
            link.source = image.section_named(LINK);
        }
        for (id, s) in image.sections.iter().skip(1) {
            if s.name == LINK && has_new_link {
                continue;
            }
            if is_made_false(s, moves_code, updated.as_ref()) {
                dropped.push(s.name.to_owned());
                continue;
            }
            let place = if s.is_alloc() || !s.has_bytes() {
                ContentPlace::Loaded(s.sh_offset)
            } else {
                ContentPlace::Appended(image.section_bytes(id).into())
            };
            let mut section = OutSection {
                source: Some(id),
                name: s.name.to_owned(),
                sh_type: s.sh_type,
                sh_flags: s.sh_flags,
                sh_addr: s.sh_addr,
                sh_size: s.sh_size,
                sh_link: s.sh_link,
                sh_info: s.sh_info,
                sh_addralign: s.sh_addralign,
                sh_entsize: s.sh_entsize,
                place,
            };
            edit(id, &mut section);
            sections.push(section);
        }
        for (name, bytes) in updated.iter_mut().flat_map(|updated| updated.added.drain(..)) {
            added.push(OutSection::of_debug_information(name, bytes));
        }
        sections.extend(added);
        // Stable: sections at one address (`.tbss` and what follows) keep their order, and so do those with no address.
        sections.sort_by_key(|s| (!s.is_alloc(), if s.is_alloc() { s.sh_addr } else { Va(0) }));
        let mut table = SectionTable::of(sections, image.sections.len(), names);
        table.dropped = dropped;
        for (id, bytes) in updated.into_iter().flat_map(|updated| updated.contents) {
            table.set_content(id, bytes, None);
        }
        table
    }

    /// Of sections in their final order, of a file with so many sections.
    pub(crate) fn of(sections: Vec<OutSection<'a>>, num_sources: usize, names: Section) -> Self {
        let mut new_index = vec![0u16; num_sources];
        for (index, section) in sections.iter().enumerate() {
            if let Some(source) = section.source {
                new_index[source.index()] = (index + 1) as u16;
            }
        }
        SectionTable { sections, new_index: Some(new_index), names, dropped: Vec::new() }
    }

    /// The output index for a section index of the input; reserved indices stay.
    pub(crate) fn remap(&self, shndx: u16) -> u16 {
        match &self.new_index {
            Some(new_index) if shndx < elf::SHN_LORESERVE => new_index.get(usize::from(shndx)).copied().unwrap_or(0),
            _ => shndx,
        }
    }

    /// The output index for a definition of `.dynsym`, which is at `address` if it has one. 0 would make of it something that is missed.
    ///
    /// `strip` renumbers sections, but not in what is loaded: a number may stand for no section, or for one that is not loaded and that is dropped here. No loader asks which it is, so long as it is neither
    /// undefined nor absolute. Where no section holds the address, the symbol is in the one that is always there, and never loaded: the section names. A number that stands for nothing stays.
    pub(crate) fn remap_definition(&self, shndx: u16, address: Option<Va>) -> u16 {
        let new = self.remap(shndx);
        if new != 0 || shndx == elf::SHN_UNDEF {
            return new;
        }
        let stood_for_one = self.new_index.as_ref().is_some_and(|all| usize::from(shndx) < all.len());
        let instead = || if stood_for_one { self.remap(self.names.index() as u16) } else { shndx };
        address.and_then(|address| self.section_of(address)).unwrap_or_else(instead)
    }

    /// The output index of the loaded section that holds an address.
    pub(crate) fn section_of(&self, va: Va) -> Option<u16> {
        let holds = |s: &OutSection<'_>| s.is_alloc() && s.sh_addr <= va && va < s.sh_addr + s.sh_size;
        self.sections.iter().position(holds).map(|index| (index + 1) as u16)
    }

    /// Replaces the bytes of an appended section.
    pub(crate) fn set_content(&mut self, source: Section, bytes: Vec<u8>, sh_info: Option<u32>) {
        if let Some(section) = self.sections.iter_mut().find(|s| s.source == Some(source)) {
            section.sh_size = bytes.len() as u64;
            section.sh_info = sh_info.unwrap_or(section.sh_info);
            section.place = ContentPlace::Appended(bytes.into());
        }
    }

    /// Adds all contents to the file, in its rooms as far as they fit, and the headers behind everything: they end at `end`, if there is room.
    pub(crate) fn write(mut self, file: &mut Vec<u8>, rooms: Rooms, end: Option<u64>) -> Written {
        let mut written = Written::default();
        if self.new_index.is_none() {
            return written;
        }
        let names = self.name_table();
        let places = self.write_contents(file, rooms);
        let mut headers = vec![0u8; 64];
        for (index, (section, &sh_offset)) in self.sections.iter().zip(&places).enumerate() {
            if section.source == Some(self.names) {
                written.e_shstrndx = (index + 1) as u16;
            }
            if section.name == LINK {
                written.link = Some(sh_offset);
            }
            headers.extend(self.header(section, names[index], sh_offset));
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let start = end.and_then(|end| (end as usize).checked_sub(headers.len()));
        if let Some(start) = start.filter(|start| start.is_multiple_of(8) && *start > file.len()) {
            file.resize(start, 0);
        }
        written.e_shoff = file.len() as u64;
        written.e_shnum = (self.sections.len() + 1) as u16;
        file.extend_from_slice(&headers);
        written
    }

    /// Gives where each content is. The largest are the first to take a room; behind the file they are in their order.
    fn write_contents(&self, file: &mut Vec<u8>, mut rooms: Rooms) -> Vec<u64> {
        let align = |section: &OutSection<'_>| section.sh_addralign.clamp(1, 4096);
        let mut places: Vec<Option<u64>> = vec![None; self.sections.len()];
        let mut by_size: Vec<usize> = (0..self.sections.len()).collect();
        by_size.sort_by_key(|&index| std::cmp::Reverse(self.sections[index].appended_size()));
        for index in by_size {
            let section = &self.sections[index];
            places[index] = section.appended_size().and_then(|size| rooms.take(size, align(section)));
        }
        rooms.clear(file);
        let behind = self.sections.iter().zip(&places).filter(|(_, place)| place.is_none());
        let size: u64 = behind.filter_map(|(s, _)| Some(s.appended_size()? + align(s))).sum();
        file.reserve_exact(size as usize + 64 * (self.sections.len() + 2));
        let mut settled = Vec::with_capacity(self.sections.len());
        for (section, place) in self.sections.iter().zip(places) {
            settled.push(match &section.place {
                ContentPlace::Loaded(offset) => offset.0,
                ContentPlace::Appended(bytes) => {
                    let at = place.map_or_else(|| file.len().next_multiple_of(align(section) as usize), |at| at as usize);
                    file.resize(file.len().max(at + bytes.len()), 0);
                    file[at..at + bytes.len()].copy_from_slice(bytes);
                    at as u64
                }
            });
        }
        settled
    }

    /// Fills in the section-name string table; gives where each name is in it.
    fn name_table(&mut self) -> Vec<u32> {
        let mut strings = vec![0u8];
        let mut offsets = Vec::with_capacity(self.sections.len());
        for s in &self.sections {
            offsets.push(strings.len() as u32);
            strings.extend_from_slice(s.name.as_bytes());
            strings.push(0);
        }
        self.set_content(self.names, strings, None);
        offsets
    }

    fn header(&self, section: &OutSection<'_>, sh_name: u32, sh_offset: u64) -> Vec<u8> {
        let is_symbols = [elf::SHT_SYMTAB, elf::SHT_DYNSYM].contains(&section.sh_type);
        let info_is_section = section.sh_flags & u64::from(elf::SHF_INFO_LINK) != 0 && !is_symbols;
        let links = (section.sh_link as usize) < self.new_index.as_ref().map_or(0, Vec::len);
        let sh_link = if links { u32::from(self.remap(section.sh_link as u16)) } else { 0 };
        let sh_info = if info_is_section { u32::from(self.remap(section.sh_info as u16)) } else { section.sh_info };
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&sh_name.to_le_bytes());
        bytes.extend_from_slice(&section.sh_type.to_le_bytes());
        for word in [section.sh_flags, section.sh_addr.0, sh_offset, section.sh_size] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(&sh_link.to_le_bytes());
        bytes.extend_from_slice(&sh_info.to_le_bytes());
        bytes.extend_from_slice(&section.sh_addralign.to_le_bytes());
        bytes.extend_from_slice(&section.sh_entsize.to_le_bytes());
        bytes
    }
}

/// The section that holds section names, of a file whose reader has checked that it is there.
pub(crate) fn section_names_of(file: &[u8]) -> Section {
    // e_shstrndx is the last half-word of the ELF header.
    let index = file.get(62..64).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
    Section::new(usize::from(index))
}
