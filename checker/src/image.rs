//! A loaded view of an ELF file, read with `goblin`: bytes by address, sections, code areas, relocated slots.
//!
//! Invariants: `loads` and `code` are sorted by address; a slice that is handed out lies in the file. RELR is expanded here (gABI,
//! "Relative relocation table"), so that a RELATIVE slot is the same thing however it is packed.

use std::ops::Range;

use goblin::elf::dynamic::{DT_GNU_HASH, DT_HASH, DT_SYMTAB};
use goblin::elf::header::{EI_CLASS, EI_DATA, ELFCLASS64, ELFDATA2LSB, EM_X86_64, Header};
use goblin::elf::program_header::{PF_X, PT_LOAD, PT_NOTE};
use goblin::elf::section_header::{SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHT_NOBITS, SHT_RELA};
use goblin::elf::{Elf, Reloc, SectionHeader, reloc};
use goblin::strtab::Strtab;

use crate::error::FileError;

/// `DT_RELR`, `DT_RELRSZ` of the gABI.
pub(crate) const DT_RELR: u64 = 36;
pub(crate) const DT_RELRSZ: u64 = 35;
/// The type of the note that is a build id.
pub(crate) const NT_GNU_BUILD_ID: u32 = 3;
pub(crate) const BUILD_ID: &str = ".note.gnu.build-id";
/// Code is indexed with 32 bits, and one value is reserved.
const CODE_SIZE_MAX: u64 = 0xffff_fff0;

/// The file's bytes at `start..end`.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Area<'a> {
    pub(crate) start: u64,
    pub(crate) bytes: &'a [u8],
}

impl Area<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// What the dynamic loader does to a place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// `R_X86_64_RELATIVE` or RELR: the place gets this address.
    Relative(u64),
    /// `R_X86_64_IRELATIVE`: the resolver at this address is called.
    Resolver(u64),
    Symbol {
        r_type: u32,
        symbol: usize,
        addend: i64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) offset: u64,
    pub(crate) flags: u64,
    pub(crate) sh_type: u32,
}

impl Section<'_> {
    pub(crate) fn is_alloc(&self) -> bool {
        self.flags & u64::from(SHF_ALLOC) != 0
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.flags & u64::from(SHF_WRITE) != 0
    }

    pub(crate) fn is_code(&self) -> bool {
        self.is_alloc() && self.flags & u64::from(SHF_EXECINSTR) != 0 && self.sh_type != SHT_NOBITS
    }

    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    /// Its bytes, none where they are not in the file.
    pub(crate) fn bytes_in<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        if self.sh_type == SHT_NOBITS {
            return &[];
        }
        slice(file, self.offset, self.size).unwrap_or(&[])
    }
}

/// The sections that headers describe.
pub(crate) fn sections<'a>(headers: &[SectionHeader], names: &Strtab<'a>) -> Vec<Section<'a>> {
    let section = |header: &SectionHeader| Section {
        name: names.get_at(header.sh_name).unwrap_or(""),
        address: header.sh_addr,
        size: header.sh_size,
        offset: header.sh_offset,
        flags: header.sh_flags,
        sh_type: header.sh_type,
    };
    headers.iter().map(section).collect()
}

/// A parsed file.
pub(crate) struct Image<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) elf: Elf<'a>,
    /// The file-backed part of each `PT_LOAD`.
    pub(crate) loads: Vec<Area<'a>>,
    pub(crate) sections: Vec<Section<'a>>,
    /// Executable sections, or executable segments where there are no sections.
    pub(crate) code: Vec<Area<'a>>,
    pub(crate) slots: Vec<(u64, Slot)>,
}

impl<'a> Image<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, FileError> {
        let elf = Elf::parse(bytes)?;
        require_x86_64(&elf.header)?;
        let mut loads = Vec::new();
        for (index, header) in elf.program_headers.iter().enumerate().filter(|(_, header)| header.p_type == PT_LOAD) {
            let data = slice(bytes, header.p_offset, header.p_filesz).ok_or(FileError::SegmentOutsideFile { index })?;
            if header.p_vaddr.checked_add(header.p_memsz.max(header.p_filesz)).is_none() {
                return Err(FileError::SegmentOutsideFile { index });
            }
            loads.push(Area { start: header.p_vaddr, bytes: data });
        }
        loads.sort_by_key(|area| area.start);
        let sections = sections(&elf.section_headers, &elf.shdr_strtab);
        let code = code_areas(bytes, &elf, &sections)?;
        let mut image = Self { bytes, elf, loads, sections, code, slots: Vec::new() };
        image.slots = image.collect_slots();
        Ok(image)
    }

    /// Where the first segment begins and the last one ends.
    pub(crate) fn extent(&self) -> Option<(u64, u64)> {
        let loads = || self.elf.program_headers.iter().filter(|header| header.p_type == PT_LOAD);
        let start = loads().map(|header| header.p_vaddr).min()?;
        Some((start, loads().map(|header| header.p_vaddr.saturating_add(header.p_memsz)).max()?))
    }

    /// The bytes from `address` to the end of the file-backed part of its segment.
    pub(crate) fn tail(&self, address: u64) -> Option<&'a [u8]> {
        let after = self.loads.partition_point(|area| area.start <= address);
        let area = self.loads[..after].last()?;
        area.bytes.get(usize::try_from(address - area.start).ok()?..).filter(|tail| !tail.is_empty())
    }

    pub(crate) fn at(&self, address: u64, size: usize) -> Option<&'a [u8]> {
        self.tail(address)?.get(..size)
    }

    pub(crate) fn u32_at(&self, address: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(address, 4)?.try_into().ok()?))
    }

    pub(crate) fn u64_at(&self, address: u64) -> Option<u64> {
        Some(u64::from_le_bytes(self.at(address, 8)?.try_into().ok()?))
    }

    pub(crate) fn in_code(&self, address: u64) -> bool {
        let after = self.code.partition_point(|area| area.start <= address);
        self.code[..after].last().is_some_and(|area| address < area.end())
    }

    pub(crate) fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// The loaded section that holds `address`.
    pub(crate) fn section_at(&self, address: u64) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.is_alloc() && section.address <= address && address < section.end())
    }

    pub(crate) fn section_bytes(&self, section: &Section<'a>) -> &'a [u8] {
        section.bytes_in(self.bytes)
    }

    pub(crate) fn slot(&self, address: u64) -> Option<Slot> {
        let index = self.slots.binary_search_by_key(&address, |&(place, _)| place).ok()?;
        Some(self.slots[index].1)
    }

    pub(crate) fn is_position_dependent(&self) -> bool {
        self.elf.header.e_type == goblin::elf::header::ET_EXEC
    }

    pub(crate) fn dynamic_symbol_name(&self, index: usize) -> &'a str {
        self.elf.dynsyms.get(index).and_then(|symbol| self.elf.dynstrtab.get_at(symbol.st_name)).unwrap_or("")
    }

    pub(crate) fn dynamic_value(&self, wanted: u64) -> Option<u64> {
        let dynamic = self.elf.dynamic.as_ref()?;
        dynamic.dyns.iter().find(|entry| entry.d_tag == wanted).map(|entry| entry.d_val)
    }

    /// The bytes of the table of symbols or of a hash table that a dynamic tag names, at its own place.
    pub(crate) fn loader_table(&self, tag: u64) -> Option<(u64, &'a [u8])> {
        let address = self.dynamic_value(tag)?;
        let word = |index: u64| self.u32_at(address.checked_add(4 * index)?).map(u64::from);
        let symbols = self.elf.dynsyms.len() as u64;
        let size = match tag {
            DT_SYMTAB => 24 * symbols,
            DT_HASH => 4 * (2 + word(0)? + word(1)?),
            // Buckets, the first symbol that is hashed, words of the filter; then these, and a word for each such symbol. Where none is, linkers
            // name the first of those that are not.
            DT_GNU_HASH => {
                let (buckets, first, filter) = (word(0)?, word(1)?, word(2)?);
                let chains = 16 + 8 * filter + 4 * buckets;
                let bytes = self.at(address, usize::try_from(chains).ok()?)?;
                let is_empty = bytes[bytes.len() - 4 * buckets as usize..].iter().all(|&byte| byte == 0);
                chains + if is_empty { 0 } else { 4 * symbols.saturating_sub(first) }
            }
            _ => return None,
        };
        Some((address, self.at(address, usize::try_from(size).ok()?)?))
    }

    /// Where the build-id's bytes are: new contents have a new one.
    pub(crate) fn build_id(&self) -> Option<Range<u64>> {
        let headers = self.elf.program_headers.iter().filter(|header| header.p_type == PT_NOTE);
        let notes = headers.map(|header| (header.p_vaddr, header.p_filesz, header.p_align));
        // Where there was no room for its header, a section tells it.
        let told = self.section(BUILD_ID).map(|section| (section.address, section.size, 4));
        notes
            .chain(told)
            .flat_map(|place| self.notes(place))
            .find(|&(kind, name, _)| kind == NT_GNU_BUILD_ID && name == b"GNU\0")
            .map(|n| n.2)
    }

    /// Type, name and place of the contents of each note at an address, of so many bytes, aligned so.
    fn notes(&self, (start, size, align): (u64, u64, u64)) -> impl Iterator<Item = (u32, &'a [u8], Range<u64>)> {
        let bytes = usize::try_from(size).ok().and_then(|size| self.at(start, size)).unwrap_or(&[]);
        let place = move |contents: Range<usize>| start + contents.start as u64..start + contents.end as u64;
        notes_of(bytes, align).map(move |(kind, name, contents)| (kind, name, place(contents)))
    }

    fn collect_slots(&self) -> Vec<(u64, Slot)> {
        let mut slots: Vec<(u64, Slot)> = Vec::new();
        let mut add = |relocation: Reloc| {
            let addend = relocation.r_addend.unwrap_or(0);
            let slot = match relocation.r_type {
                reloc::R_X86_64_NONE => return,
                reloc::R_X86_64_RELATIVE => Slot::Relative(addend.cast_unsigned()),
                reloc::R_X86_64_IRELATIVE => Slot::Resolver(addend.cast_unsigned()),
                r_type => Slot::Symbol { r_type, symbol: relocation.r_sym, addend },
            };
            slots.push((relocation.r_offset, slot));
        };
        self.elf.dynrelas.iter().for_each(&mut add);
        self.elf.pltrelocs.iter().for_each(&mut add);
        if self.elf.dynamic.is_none() {
            // A static file has its IRELATIVE relocations in a loaded section without a dynamic tag.
            for (index, relocations) in &self.elf.shdr_relocs {
                if self.sections.get(*index).is_some_and(|section| section.is_alloc() && section.sh_type == SHT_RELA) {
                    relocations.iter().for_each(&mut add);
                }
            }
        }
        for place in self.packed_relative_places() {
            slots.push((place, Slot::Relative(self.u64_at(place).unwrap_or(0))));
        }
        slots.sort_by_key(|&(place, _)| place);
        slots
    }

    fn packed_relative_places(&self) -> Vec<u64> {
        let tag = |wanted| {
            let dynamic = self.elf.dynamic.as_ref()?;
            dynamic.dyns.iter().find(|entry| entry.d_tag == wanted).map(|entry| entry.d_val)
        };
        let mut places = Vec::new();
        let (Some(table), Some(size)) = (tag(DT_RELR), tag(DT_RELRSZ)) else { return places };
        let words = self.tail(table).map_or(&[][..], |tail| &tail[..tail.len().min(usize::try_from(size).unwrap_or(0))]);
        let mut next = 0u64;
        for word in words.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if word & 1 == 0 {
                places.push(word);
                next = word.wrapping_add(8);
            } else {
                places.extend((0..63).filter(|bit| word >> (bit + 1) & 1 == 1).map(|bit| next.wrapping_add(8 * bit)));
                next = next.wrapping_add(63 * 8);
            }
        }
        places
    }
}

/// Type, name and place of the contents of each note.
pub(crate) fn notes_of(bytes: &[u8], align: u64) -> impl Iterator<Item = (u32, &[u8], Range<usize>)> {
    let align = if align == 8 { 8 } else { 4 };
    let mut at = 0usize;
    std::iter::from_fn(move || {
        let word = |offset: usize| Some(u32::from_le_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?));
        let (name, contents, kind) = (word(at)? as usize, word(at + 4)? as usize, word(at + 8)?);
        let name_end = (at + 12).checked_add(name)?;
        let from = name_end.checked_next_multiple_of(align)?;
        let to = from.checked_add(contents)?;
        let note = (kind, bytes.get(at + 12..name_end)?, from..to);
        at = to.checked_next_multiple_of(align)?;
        Some(note)
    })
}

pub(crate) fn require_x86_64(header: &Header) -> Result<(), FileError> {
    let [class, data] = [header.e_ident[EI_CLASS], header.e_ident[EI_DATA]];
    match class == ELFCLASS64 && data == ELFDATA2LSB && header.e_machine == EM_X86_64 {
        true => Ok(()),
        false => Err(FileError::NotX86_64 { class, machine: header.e_machine }),
    }
}

fn code_areas<'a>(bytes: &'a [u8], elf: &Elf<'a>, sections: &[Section<'a>]) -> Result<Vec<Area<'a>>, FileError> {
    let mut areas: Vec<Area<'a>> = sections
        .iter()
        .filter(|section| section.is_code())
        .filter_map(|section| Some(Area { start: section.address, bytes: slice(bytes, section.offset, section.size)? }))
        .filter(|area| area.start.checked_add(area.bytes.len() as u64).is_some())
        .collect();
    if sections.is_empty() {
        let executable = |header: &&goblin::elf::ProgramHeader| header.p_type == PT_LOAD && header.p_flags & PF_X != 0;
        areas = elf
            .program_headers
            .iter()
            .filter(executable)
            .filter_map(|header| Some(Area { start: header.p_vaddr, bytes: slice(bytes, header.p_offset, header.p_filesz)? }))
            .collect();
    }
    areas.sort_by_key(|area| area.start);
    // Overlapping sections are reported by the structure check; here each byte has one owner.
    let mut end = 0;
    areas.retain(|area| {
        let keep = area.start >= end && !area.bytes.is_empty();
        end = if keep { area.end() } else { end };
        keep
    });
    let size = areas.iter().map(|area| area.bytes.len() as u64).sum();
    if size > CODE_SIZE_MAX {
        return Err(FileError::TooMuchCode { size });
    }
    Ok(areas)
}

pub(crate) fn slice(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(usize::try_from(size).ok()?)?;
    bytes.get(start..end)
}
