//! Bytes to [`Image`]: every offset, size and index of the file is checked here, once, so that later phases may trust them.
//!
//! Raw structures come from `object`; the checks are ours because `object` reads lazily and a rewriter must know before it starts.
//! Sources: gABI chapters 4 and 5, psABI x86-64 §4.4 (relocation types), the RELR proposal (generic ABI list).

use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, Rela, SectionHeader, Sym};
use rayon::prelude::*;

use crate::address::{FileOffset, Va};
use crate::elf::image::*;
use crate::entity::{EntityId, PrimaryMap, Section, Symbol};
use crate::error::{Error, Result};

pub(super) type Header = elf::FileHeader64<LittleEndian>;
const LE: LittleEndian = LittleEndian;

/// Sections that a rewriter may add.
const ADDED_SECTIONS_MAX: usize = 16;

/// Not yet among `object`'s constants.
const DT_RELRSZ: u32 = 35;
const DT_RELR: u32 = 36;

impl<'a> Image<'a> {
    /// Parses a linked x86-64 ELF file. Any inconsistency that later phases would stumble over is an error here.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let header = check_identity(bytes)?;
        let segments = parse_segments(header, bytes)?;
        let kind = file_kind(header, &segments, bytes)?;
        let sections = parse_sections(header, bytes)?;
        let has_section_headers = !sections.is_empty();
        if is_debug_information_only(&sections) {
            let what = "debug information that was split from a program, without the program's code and data";
            return Err(Error::Unsupported(what.into()));
        }
        let mut image = Image {
            bytes,
            kind,
            e_entry: Va(header.e_entry(LE)),
            e_phoff: FileOffset(header.e_phoff(LE)),
            segments,
            sections,
            has_section_headers,
            symbols: PrimaryMap::new(),
            dynamic_symbols: Vec::new(),
            dynamic: Vec::new(),
            dynamic_relocs: Vec::new(),
            static_relocs: Vec::new(),
            build_id: None,
            has_ibt: false,
            moves_fini: false,
        };
        image.parse_dynamic()?;
        if !has_section_headers {
            image.parse_dynamic_relocs()?;
            image.imply_sections()?;
        }
        image.symbols = parse_symbols(image.all_sections(), elf::SHT_SYMTAB)?.into_iter().collect();
        image.dynamic_symbols = parse_symbols(image.all_sections(), elf::SHT_DYNSYM)?;
        if has_section_headers {
            image.parse_dynamic_relocs()?;
        }
        image.parse_static_relocs()?;
        image.parse_notes();
        image.check_consistency()?;
        Ok(image)
    }

    fn parse_dynamic(&mut self) -> Result<()> {
        let Some(segment) = self.segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC) else { return Ok(()) };
        let bytes = file_range(self.bytes, segment.p_offset.0, segment.p_filesz)
            .ok_or_else(|| Error::malformed("PT_DYNAMIC", "reaches past the end of the file"))?;
        let count = bytes.len() / 16;
        let entries = object::slice_from_bytes::<elf::Dyn64<LittleEndian>>(bytes, count)
            .map_err(|()| Error::malformed("PT_DYNAMIC", "unreadable"))?
            .0;
        self.dynamic =
            entries.iter().map(|d| (d.d_tag(LE), d.d_val(LE))).take_while(|(tag, _)| *tag != u64::from(elf::DT_NULL)).collect();
        Ok(())
    }

    fn parse_dynamic_relocs(&mut self) -> Result<()> {
        let mut relocs = Vec::new();
        for (start, size) in self.rela_regions() {
            self.read_rela_region(start, size, &mut relocs)?;
        }
        if let (Some(start), Some(size)) = (self.dynamic_value(DT_RELR), self.dynamic_value(DT_RELRSZ)) {
            self.read_relr(Va(start), size, &mut relocs)?;
        }
        relocs.sort_by_key(|r| (r.slot, r.r_type));
        relocs.dedup();
        relocs.shrink_to_fit();
        self.dynamic_relocs = relocs;
        Ok(())
    }

    /// The address ranges of `Elf64_Rela` tables that are applied at run time: by the loader, or by the start-up code of a static
    /// executable (`.rela.plt` between `__rela_iplt_start` and `__rela_iplt_end`).
    fn rela_regions(&self) -> Vec<(Va, u64)> {
        let mut regions = Vec::new();
        for (address, size) in [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)] {
            if let (Some(address), Some(size)) = (self.dynamic_value(address), self.dynamic_value(size)) {
                regions.push((Va(address), size));
            }
        }
        if self.dynamic.is_empty() {
            let allocated = self.sections.values().filter(|s| s.sh_type == elf::SHT_RELA && s.is_alloc());
            regions.extend(allocated.map(|s| (s.sh_addr, s.sh_size)));
        }
        regions
    }

    fn read_rela_region(&self, start: Va, size: u64, relocs: &mut Vec<DynReloc>) -> Result<()> {
        if size == 0 {
            return Ok(());
        }
        let outside = || Error::malformed("dynamic relocations", format!("{start} + {size:#x} is not in the file"));
        let bytes = self.read(start, usize::try_from(size).map_err(|_| outside())?).ok_or_else(outside)?;
        let base = self.file_offset(start).ok_or_else(outside)?;
        let (entries, _) = object::slice_from_bytes::<elf::Rela64<LittleEndian>>(bytes, bytes.len() / 24)
            .map_err(|()| Error::malformed("dynamic relocations", "unreadable"))?;
        relocs.extend(entries.iter().enumerate().map(|(i, r)| DynReloc {
            slot: Va(r.r_offset(LE)),
            r_type: r.r_type(LE, false),
            symbol: r.r_sym(LE, false),
            addend: r.r_addend(LE),
            place: DynRelocPlace::Rela(FileOffset(base.0 + 24 * i as u64)),
        }));
        Ok(())
    }

    /// `DT_RELR`: an even word is the address of a relocated word, an odd one a bitmap of the 63 words that follow the last address.
    fn read_relr(&self, start: Va, size: u64, relocs: &mut Vec<DynReloc>) -> Result<()> {
        let outside = || Error::malformed("DT_RELR", format!("{start} + {size:#x} is not in the file"));
        let bytes = self.read(start, usize::try_from(size).map_err(|_| outside())?).ok_or_else(outside)?;
        let mut push = |slot: u64| -> Result<()> {
            let addend = self
                .read_u64(Va(slot))
                .ok_or_else(|| Error::malformed("DT_RELR", format!("relocates {slot:#x}, which is not in the file")))?;
            relocs.push(DynReloc {
                slot: Va(slot),
                r_type: elf::R_X86_64_RELATIVE,
                symbol: 0,
                addend: addend as i64,
                place: DynRelocPlace::Relr,
            });
            Ok(())
        };
        let mut next = 0u64;
        for word in bytes.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            if word & 1 == 0 {
                push(word)?;
                next = word.wrapping_add(8);
            } else {
                for bit in (0..63).filter(|bit| word >> (bit + 1) & 1 == 1) {
                    push(next.wrapping_add(8 * bit))?;
                }
                next = next.wrapping_add(8 * 63);
            }
        }
        Ok(())
    }

    fn parse_static_relocs(&mut self) -> Result<()> {
        let mut relocs = Vec::new();
        for (id, section) in self.sections.iter() {
            if section.sh_type != elf::SHT_RELA || section.is_alloc() {
                continue;
            }
            let Some(target) = self.sections.get(section_id(section.sh_info)) else { continue };
            if !target.is_alloc() {
                continue;
            }
            let bytes = self.section_bytes(id);
            let (entries, _) = object::slice_from_bytes::<elf::Rela64<LittleEndian>>(bytes, bytes.len() / 24)
                .map_err(|()| Error::malformed(section.name, "unreadable"))?;
            for r in entries {
                let symbol = r.r_sym(LE, false) as usize;
                if symbol >= self.symbols.len().max(1) {
                    return Err(Error::malformed(section.name, format!("names symbol {symbol}, which is not there")));
                }
                relocs.push(StaticReloc {
                    at: Va(r.r_offset(LE)),
                    r_type: r.r_type(LE, false),
                    symbol: Symbol::new(symbol),
                    addend: r.r_addend(LE),
                });
            }
        }
        relocs.retain(|r| r.r_type != elf::R_X86_64_NONE);
        relocs.sort_by_key(|r| (r.at, r.r_type));
        self.static_relocs = relocs;
        Ok(())
    }

    fn parse_notes(&mut self) {
        let is_note = |s: &&Segment| s.p_type == elf::PT_NOTE || s.p_type == elf::PT_GNU_PROPERTY;
        let notes = self.segments.iter().filter(is_note).map(|s| (s.p_offset, s.p_filesz, s.p_align));
        // Where there was no room for the header of the build-id, a section tells it.
        let told = self.section_named(BUILD_ID).map(|id| &self.sections[id]);
        let notes: Vec<(FileOffset, u64, u64)> = told.map(|s| (s.sh_offset, s.sh_size, 4)).into_iter().chain(notes).collect();
        for (offset, size, align) in notes {
            let Some(bytes) = file_range(self.bytes, offset.0, size) else { continue };
            let align = if align == 8 { 8 } else { 4 };
            for note in notes_of(bytes, align) {
                if note.name != b"GNU\0" {
                    continue;
                }
                let at = FileOffset(offset.0 + note.desc_offset as u64);
                match note.n_type {
                    elf::NT_GNU_BUILD_ID => self.build_id = Some((at, note.desc.len())),
                    elf::NT_GNU_PROPERTY_TYPE_0 => self.has_ibt |= property_has_ibt(note.desc),
                    _ => {}
                }
            }
        }
    }
}

/// The symbols of the first table of a type.
pub(super) fn parse_symbols<'a>(sections: Sections<'_, 'a>, sh_type: u32) -> Result<Vec<SymbolData<'a>>> {
    let Some((id, section)) = sections.data.iter().find(|(_, s)| s.sh_type == sh_type) else { return Ok(Vec::new()) };
    if section.sh_entsize != 24 {
        return Err(Error::malformed(section.name, format!("entry size is {}, not 24", section.sh_entsize)));
    }
    let bytes = sections.bytes_of(id);
    let (entries, _) = object::slice_from_bytes::<elf::Sym64<LittleEndian>>(bytes, bytes.len() / 24)
        .map_err(|()| Error::malformed(section.name, "unreadable"))?;
    let strings = sections
        .data
        .get(section_id(section.sh_link))
        .map(|_| sections.bytes_of(section_id(section.sh_link)))
        .ok_or_else(|| Error::malformed(section.name, "sh_link names no string table"))?;
    entries
        .par_iter()
        .map(|s| {
            let name = string_at(strings, s.st_name(LE))
                .ok_or_else(|| Error::malformed(section.name, "a name lies outside the string table"))?;
            Ok(SymbolData {
                name,
                st_name: s.st_name(LE),
                st_info: s.st_info(),
                st_other: s.st_other(),
                st_shndx: s.st_shndx(LE),
                st_value: s.st_value(LE),
                st_size: s.st_size(LE),
            })
        })
        .collect()
}

pub(super) struct Note<'a> {
    pub(super) n_type: u32,
    pub(super) name: &'a [u8],
    pub(super) desc: &'a [u8],
    desc_offset: usize,
}

/// The notes of a segment, up to the first one that does not fit.
pub(super) fn notes_of(bytes: &[u8], align: usize) -> impl Iterator<Item = Note<'_>> {
    let mut at = 0usize;
    std::iter::from_fn(move || {
        let word = |offset: usize| -> Option<usize> {
            Some(u32::from_le_bytes(bytes.get(offset..offset.checked_add(4)?)?.try_into().ok()?) as usize)
        };
        let (name_size, desc_size, n_type) = (word(at)?, word(at + 4)?, word(at + 8)?);
        let name_start = at + 12;
        let desc_start = name_start.checked_add(name_size)?.checked_next_multiple_of(align)?;
        let desc_end = desc_start.checked_add(desc_size)?;
        let note = Note {
            n_type: n_type as u32,
            name: bytes.get(name_start..name_start + name_size)?,
            desc: bytes.get(desc_start..desc_end)?,
            desc_offset: desc_start,
        };
        at = desc_end.checked_next_multiple_of(align)?;
        Some(note)
    })
}

/// Whether a GNU property array has `GNU_PROPERTY_X86_FEATURE_1_IBT`.
fn property_has_ibt(mut desc: &[u8]) -> bool {
    while let (Some(pr_type), Some(size)) = (desc.get(..4), desc.get(4..8)) {
        let pr_type = u32::from_le_bytes(pr_type.try_into().unwrap_or_default());
        let size = u32::from_le_bytes(size.try_into().unwrap_or_default()) as usize;
        let Some(data) = size.checked_add(8).and_then(|end| desc.get(8..end)) else { return false };
        if pr_type == elf::GNU_PROPERTY_X86_FEATURE_1_AND && data.first().is_some_and(|b| b & 1 == 1) {
            return true;
        }
        let Some(rest) = size.checked_next_multiple_of(8).and_then(|s| desc.get(8 + s..)) else { return false };
        desc = rest;
    }
    false
}

fn section_id(index: u32) -> Section {
    Section::new(index.min(u32::MAX - 1) as usize)
}

fn file_range(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(size)?).ok()?)
}

fn raw_name(strings: &[u8], offset: u32) -> Option<&[u8]> {
    let rest = strings.get(offset as usize..)?;
    Some(&rest[..memchr::memchr(0, rest)?])
}

fn string_at(strings: &[u8], offset: u32) -> Option<&str> {
    // Names that are not UTF-8 can't be shown, and those with control characters must not be: a terminal obeys them. But they are no
    // reason to refuse a file; they are never written anew either.
    let name = std::str::from_utf8(raw_name(strings, offset)?).unwrap_or("");
    Some(if name.contains(char::is_control) { "" } else { name })
}

fn check_identity(bytes: &[u8]) -> Result<&Header> {
    let header = check_machine(bytes)?;
    check_type(header)?;
    Ok(header)
}

/// Whether it is an ELF file for the machine, of any type.
pub(super) fn check_machine(bytes: &[u8]) -> Result<&Header> {
    if bytes.is_empty() {
        return Err(Error::NotElf("the file is empty"));
    }
    if bytes.len() < 20 || bytes[..4] != elf::ELFMAG {
        return Err(Error::NotElf("no ELF magic number"));
    }
    if bytes[4] != elf::ELFCLASS64 {
        return Err(Error::WrongMachine("a 32-bit file".into()));
    }
    if bytes[5] != elf::ELFDATA2LSB {
        return Err(Error::WrongMachine("a big-endian file".into()));
    }
    let e_machine = u16::from_le_bytes([bytes[18], bytes[19]]);
    match e_machine {
        elf::EM_X86_64 => {}
        elf::EM_AARCH64 => return Err(Error::WrongMachine("made for aarch64".into())),
        other => return Err(Error::WrongMachine(format!("e_machine is {other}"))),
    }
    Header::parse(bytes).map_err(|e| Error::malformed("ELF header", e))
}

pub(super) fn check_type(header: &Header) -> Result<()> {
    match header.e_type(LE) {
        elf::ET_EXEC | elf::ET_DYN => Ok(()),
        other => Err(Error::WrongType(other)),
    }
}

fn parse_segments(header: &Header, bytes: &[u8]) -> Result<Vec<Segment>> {
    let raw = header.program_headers(LE, bytes).map_err(|e| Error::malformed("program headers", e))?;
    let mut segments = Vec::with_capacity(raw.len());
    for (index, p) in raw.iter().enumerate() {
        let segment = Segment {
            p_type: p.p_type(LE),
            p_flags: p.p_flags(LE),
            p_offset: FileOffset(p.p_offset(LE)),
            p_vaddr: Va(p.p_vaddr(LE)),
            p_filesz: p.p_filesz(LE),
            p_memsz: p.p_memsz(LE),
            p_align: p.p_align(LE),
        };
        let what = || format!("program header {index}");
        if segment.p_type != elf::PT_NULL && file_range(bytes, segment.p_offset.0, segment.p_filesz).is_none() {
            return Err(Error::malformed(what(), "reaches past the end of the file"));
        }
        if segment.is_load() {
            if segment.p_memsz < segment.p_filesz {
                return Err(Error::malformed(what(), "p_memsz is less than p_filesz"));
            }
            if segment.p_vaddr.0.checked_add(segment.p_memsz).is_none_or(|end| end > 1 << 47) {
                return Err(Error::malformed(what(), "lies outside the address space"));
            }
            if segment.p_align > 1 && (segment.p_vaddr.0 ^ segment.p_offset.0) & 0xfff != 0 {
                return Err(Error::malformed(what(), "p_offset and p_vaddr differ modulo the page size"));
            }
        }
        segments.push(segment);
    }
    check_loads(&segments)?;
    Ok(segments)
}

fn check_loads(segments: &[Segment]) -> Result<()> {
    let mut loads: Vec<&Segment> = segments.iter().filter(|s| s.is_load()).collect();
    if loads.is_empty() {
        return Err(Error::malformed("program headers", "nothing is loaded"));
    }
    loads.sort_by_key(|s| s.p_vaddr);
    if loads.windows(2).any(|w| w[0].end() > w[1].p_vaddr) {
        return Err(Error::malformed("program headers", "loaded segments overlap"));
    }
    let span = loads[loads.len() - 1].end() - loads[0].p_vaddr;
    if span >= MAX_IMAGE_SPAN {
        return Err(Error::Unsupported(format!("the image spans {span:#x} bytes; the limit is 2 GiB")));
    }
    Ok(())
}

fn file_kind(header: &Header, segments: &[Segment], bytes: &[u8]) -> Result<FileKind> {
    if header.e_type(LE) == elf::ET_EXEC {
        return Ok(FileKind::FixedExecutable);
    }
    let has_interpreter = segments.iter().any(|s| s.p_type == elf::PT_INTERP);
    let flags_1 = segments.iter().find(|s| s.p_type == elf::PT_DYNAMIC).and_then(|s| {
        let dynamic = file_range(bytes, s.p_offset.0, s.p_filesz)?;
        let flag_entry = dynamic.chunks_exact(16).find(|d| d[..8] == u64::from(elf::DT_FLAGS_1).to_le_bytes())?;
        Some(u64::from_le_bytes(flag_entry[8..].try_into().ok()?))
    });
    let is_pie = flags_1.unwrap_or(0) & u64::from(elf::DF_1_PIE) != 0;
    Ok(match (has_interpreter, is_pie) {
        // A shared object may carry an interpreter to be runnable (libc does), but then it has a DT_SONAME and no DF_1_PIE; older
        // linkers never set DF_1_PIE, so an interpreter alone counts.
        (true, _) => FileKind::PieExecutable,
        (false, true) => FileKind::StaticPie,
        (false, false) => FileKind::SharedObject,
    })
}

/// What `objcopy --only-keep-debug` leaves: of all that would be loaded, but for notes, nothing but the places.
fn is_debug_information_only(sections: &PrimaryMap<Section, SectionData<'_>>) -> bool {
    let mut loaded = sections.values().filter(|section| section.is_alloc() && section.sh_type != elf::SHT_NOTE).peekable();
    loaded.peek().is_some() && loaded.all(|section| !section.has_bytes())
}

pub(super) fn parse_sections<'a>(header: &Header, bytes: &'a [u8]) -> Result<PrimaryMap<Section, SectionData<'a>>> {
    let raw = header.section_headers(LE, bytes).map_err(|e| Error::malformed("section headers", e))?;
    // Half-words index sections from here on only by way of tables that are not rewritten.
    if raw.len() >= usize::from(elf::SHN_LORESERVE) - ADDED_SECTIONS_MAX {
        return Err(Error::Unsupported(format!("{} sections; the limit is that of 16-bit indices", raw.len())));
    }
    let names: &[u8] = match header.shstrndx(LE, bytes) {
        Ok(index) if index != 0 => raw
            .get(index as usize)
            .and_then(|s| file_range(bytes, s.sh_offset(LE), s.sh_size(LE)))
            .ok_or_else(|| Error::malformed("section names", "e_shstrndx names no section of the file"))?,
        _ => &[],
    };
    let mut sections = PrimaryMap::with_capacity(raw.len());
    for (index, s) in raw.iter().enumerate() {
        let data = SectionData {
            name: string_at(names, s.sh_name(LE)).unwrap_or(""),
            sh_name: s.sh_name(LE),
            sh_type: s.sh_type(LE),
            sh_flags: s.sh_flags(LE),
            sh_addr: Va(s.sh_addr(LE)),
            sh_offset: FileOffset(s.sh_offset(LE)),
            sh_size: s.sh_size(LE),
            sh_link: s.sh_link(LE),
            sh_info: s.sh_info(LE),
            sh_addralign: s.sh_addralign(LE),
            sh_entsize: s.sh_entsize(LE),
        };
        let what = || format!("section header {index} ({})", data.name);
        if data.name.is_empty() && raw_name(names, data.sh_name) != Some(&[]) && !names.is_empty() {
            return Err(Error::malformed(what(), "has a name that cannot be shown"));
        }
        if data.has_bytes() && file_range(bytes, data.sh_offset.0, data.sh_size).is_none() {
            return Err(Error::malformed(what(), "reaches past the end of the file"));
        }
        if data.sh_addr.0.checked_add(data.sh_size).is_none() {
            return Err(Error::malformed(what(), "reaches past the end of the address space"));
        }
        sections.push(data);
    }
    Ok(sections)
}
