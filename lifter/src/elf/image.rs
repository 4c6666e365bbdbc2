//! The parsed file: what is where, at which address, and which words the loader relocates.
//!
//! An `Image` borrows the input bytes. It is the only view of the file that later phases have: nothing after `elf/` parses ELF. Names
//! of fields and constants are the gABI's; `object::elf` spells them the same way.

use object::elf;

use crate::address::{FileOffset, Va};
use crate::entity::{PrimaryMap, Section, Symbol};

/// The largest span of loaded addresses that the reader accepts, so that rel32 arithmetic reaches everywhere and an address relative
/// to the image's start fits in 32 bits.
pub const MAX_IMAGE_SPAN: u64 = 1 << 31;
/// The section with the note of the build-id.
pub const BUILD_ID: &str = ".note.gnu.build-id";

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// `ET_EXEC`: linked at a fixed address.
    FixedExecutable,
    /// `ET_DYN` with an interpreter.
    PieExecutable,
    /// `ET_DYN` marked `DF_1_PIE`, without an interpreter.
    StaticPie,
    SharedObject,
}

impl FileKind {
    pub fn is_position_independent(self) -> bool {
        self != FileKind::FixedExecutable
    }
}

/// One program header, as in the file.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    pub p_type: u32,
    pub p_flags: u32,
    pub p_offset: FileOffset,
    pub p_vaddr: Va,
    pub p_filesz: u64,
    pub p_memsz: u64,
    pub p_align: u64,
}

impl Segment {
    pub fn end(&self) -> Va {
        self.p_vaddr + self.p_memsz
    }
    pub fn is_load(&self) -> bool {
        self.p_type == elf::PT_LOAD
    }
    pub fn is_executable(&self) -> bool {
        self.p_flags & elf::PF_X != 0
    }
    pub fn is_writable(&self) -> bool {
        self.p_flags & elf::PF_W != 0
    }
}

/// One section header, as in the file.
#[derive(Copy, Clone, Debug)]
pub struct SectionData<'a> {
    pub name: &'a str,
    pub sh_name: u32,
    pub sh_type: u32,
    pub sh_flags: u64,
    pub sh_addr: Va,
    pub sh_offset: FileOffset,
    pub sh_size: u64,
    pub sh_link: u32,
    pub sh_info: u32,
    pub sh_addralign: u64,
    pub sh_entsize: u64,
}

impl SectionData<'_> {
    pub fn is_alloc(&self) -> bool {
        self.sh_flags & u64::from(elf::SHF_ALLOC) != 0
    }
    pub fn is_executable(&self) -> bool {
        self.sh_flags & u64::from(elf::SHF_EXECINSTR) != 0
    }
    pub fn is_writable(&self) -> bool {
        self.sh_flags & u64::from(elf::SHF_WRITE) != 0
    }
    /// `.tbss`: it has an address but takes none of the address space.
    pub fn is_tls_bss(&self) -> bool {
        self.sh_flags & u64::from(elf::SHF_TLS) != 0 && self.sh_type == elf::SHT_NOBITS
    }
    pub fn has_bytes(&self) -> bool {
        self.sh_type != elf::SHT_NOBITS && self.sh_type != elf::SHT_NULL
    }
    pub fn end(&self) -> Va {
        self.sh_addr + self.sh_size
    }
}

/// The sections of a file, and the file.
#[derive(Copy, Clone, Debug)]
pub struct Sections<'s, 'a> {
    pub bytes: &'a [u8],
    pub data: &'s PrimaryMap<Section, SectionData<'a>>,
}

impl<'a> Sections<'_, 'a> {
    pub fn named(&self, name: &str) -> Option<Section> {
        self.data.iter().find(|(_, s)| s.name == name).map(|(id, _)| id)
    }
    /// The bytes of a section in the file; empty for `SHT_NOBITS`.
    pub fn bytes_of(&self, section: Section) -> &'a [u8] {
        let s = &self.data[section];
        if !s.has_bytes() {
            return &[];
        }
        // The reader has checked that the range lies in the file.
        let start = s.sh_offset.0 as usize;
        self.bytes.get(start..start + s.sh_size as usize).unwrap_or(&[])
    }
}

/// A symbol of `.symtab` or `.dynsym`, as in the file.
#[derive(Copy, Clone, Debug)]
pub struct SymbolData<'a> {
    pub name: &'a str,
    pub st_name: u32,
    pub st_info: u8,
    pub st_other: u8,
    pub st_shndx: u16,
    pub st_value: u64,
    pub st_size: u64,
}

impl SymbolData<'_> {
    pub fn st_type(&self) -> u8 {
        self.st_info & 0xf
    }
    pub fn st_bind(&self) -> u8 {
        self.st_info >> 4
    }
    pub fn is_defined(&self) -> bool {
        self.st_shndx != elf::SHN_UNDEF
    }
    /// Whether the value is an address in the image (not absolute, common, a TLS offset, a section or a file name).
    pub fn has_address(&self) -> bool {
        let is_special = self.st_shndx >= elf::SHN_LORESERVE && self.st_shndx != elf::SHN_XINDEX;
        let names_no_place = [elf::STT_TLS, elf::STT_SECTION, elf::STT_FILE].contains(&self.st_type());
        self.is_defined() && !is_special && !names_no_place
    }
}

/// Where a dynamic relocation is written down.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DynRelocPlace {
    /// An `Elf64_Rela` at this file offset.
    Rela(FileOffset),
    /// `DT_RELR`; the addend is the word at the slot.
    Relr,
}

/// A word that the loader writes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DynReloc {
    pub slot: Va,
    /// `R_X86_64_*`.
    pub r_type: u32,
    /// Index into `.dynsym`; 0 where none.
    pub symbol: u32,
    pub addend: i64,
    pub place: DynRelocPlace,
}

impl DynReloc {
    /// The address in the image that the loader makes of it without asking for a symbol. (What counts from the start of thread-local storage is none.)
    pub fn own_address(&self) -> Option<Va> {
        let is_relative = [elf::R_X86_64_RELATIVE, elf::R_X86_64_IRELATIVE].contains(&self.r_type);
        let is_absolute = self.r_type == elf::R_X86_64_64 && self.symbol == 0;
        (is_relative || is_absolute).then_some(Va(self.addend as u64))
    }
}

/// A relocation that the static linker applied and kept (`--emit-relocs`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct StaticReloc {
    /// The field that was relocated.
    pub at: Va,
    /// `R_X86_64_*`.
    pub r_type: u32,
    pub symbol: Symbol,
    pub addend: i64,
}

/// The parsed input.
#[derive(Debug)]
pub struct Image<'a> {
    pub bytes: &'a [u8],
    pub kind: FileKind,
    pub e_entry: Va,
    pub e_phoff: FileOffset,
    pub segments: Vec<Segment>,
    /// Those of the section headers, or, without any, what the program headers and the dynamic section imply (see `implied`).
    pub sections: PrimaryMap<Section, SectionData<'a>>,
    pub has_section_headers: bool,
    pub symbols: PrimaryMap<Symbol, SymbolData<'a>>,
    pub dynamic_symbols: Vec<SymbolData<'a>>,
    /// `(d_tag, d_val)` in file order, without the terminator.
    pub dynamic: Vec<(u64, u64)>,
    /// Ascending by slot.
    pub dynamic_relocs: Vec<DynReloc>,
    /// Ascending by address; empty without `--emit-relocs`.
    pub static_relocs: Vec<StaticReloc>,
    /// The descriptor of `NT_GNU_BUILD_ID`: its place in the file and its length in bytes.
    pub build_id: Option<(FileOffset, usize)>,
    /// Whether the GNU property note marks the file as compatible with indirect-branch tracking.
    pub has_ibt: bool,
    /// Whether `.fini` may move like a function. It stands behind all code, so that nothing can shrink before it; but only who makes
    /// the file smaller gains by moving it.
    pub moves_fini: bool,
}

impl<'a> Image<'a> {
    /// The first loaded address.
    pub fn low(&self) -> Va {
        self.loads().map(|s| s.p_vaddr).min().unwrap_or_default()
    }
    /// One past the last loaded address, zero-filled memory included.
    pub fn high(&self) -> Va {
        self.loads().map(Segment::end).max().unwrap_or_default()
    }
    pub fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.is_load())
    }
    pub fn segment_at(&self, va: Va) -> Option<&Segment> {
        self.loads().find(|s| s.p_vaddr <= va && va < s.end())
    }
    pub fn is_executable(&self, va: Va) -> bool {
        self.segment_at(va).is_some_and(Segment::is_executable)
    }
    /// Whether the bytes at an address are what the file and the loader put there, for as long as the program runs. Of what is made read-only once the loader has relocated it only `.got` counts: static
    /// programs and the C library write some of the rest before.
    pub fn never_changes(&self, at: Va, size: u64) -> bool {
        const PAGE: u64 = 4096;
        let end = at + size;
        let is_read_only = self.loads().any(|segment| {
            !segment.is_writable()
                && !segment.is_executable()
                && segment.p_vaddr <= at
                && end <= segment.p_vaddr + segment.p_filesz
        });
        let is_protected = || {
            let is_table = self.section_at(at).is_some_and(|id| {
                let section = &self.sections[id];
                section.name == ".got" && end <= section.end()
            });
            let mut relro = self.segments.iter().filter(|segment| segment.p_type == elf::PT_GNU_RELRO);
            is_table && relro.any(|segment| segment.p_vaddr <= at && end.0 <= segment.end().0 & !(PAGE - 1))
        };
        is_read_only || is_protected()
    }
    /// The file offset of a loaded, file-backed address.
    pub fn file_offset(&self, va: Va) -> Option<FileOffset> {
        let segment = self.segment_at(va)?;
        let within = va - segment.p_vaddr;
        (within < segment.p_filesz).then(|| FileOffset(segment.p_offset.0 + within))
    }
    /// `len` bytes at a loaded address; `None` where they are not all file-backed by one segment.
    pub fn read(&self, va: Va, len: usize) -> Option<&'a [u8]> {
        let segment = self.segment_at(va)?;
        let within = va - segment.p_vaddr;
        if within.checked_add(len as u64)? > segment.p_filesz {
            return None;
        }
        let start = usize::try_from(segment.p_offset.0 + within).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
    pub fn read_u32(&self, va: Va) -> Option<u32> {
        Some(u32::from_le_bytes(self.read(va, 4)?.try_into().ok()?))
    }
    pub fn read_u64(&self, va: Va) -> Option<u64> {
        Some(u64::from_le_bytes(self.read(va, 8)?.try_into().ok()?))
    }
    /// The allocated section that contains an address.
    pub fn section_at(&self, va: Va) -> Option<Section> {
        let contains = |s: &SectionData<'_>| s.is_alloc() && !s.is_tls_bss() && s.sh_addr <= va && va < s.end();
        self.sections.iter().find(|(_, s)| contains(s)).map(|(id, _)| id)
    }
    pub fn all_sections(&self) -> Sections<'_, 'a> {
        Sections { bytes: self.bytes, data: &self.sections }
    }
    pub fn section_named(&self, name: &str) -> Option<Section> {
        self.all_sections().named(name)
    }
    /// Whether an unwinder finds the unwind entries by `PT_GNU_EH_FRAME`.
    pub fn has_search_table(&self) -> bool {
        self.segments.iter().any(|segment| segment.p_type == object::elf::PT_GNU_EH_FRAME)
    }
    /// The bytes of a section in the file; empty for `SHT_NOBITS`.
    pub fn section_bytes(&self, section: Section) -> &'a [u8] {
        self.all_sections().bytes_of(section)
    }
    /// The value of the first dynamic entry with this tag.
    pub fn dynamic_value(&self, d_tag: u32) -> Option<u64> {
        self.dynamic.iter().find(|(tag, _)| *tag == u64::from(d_tag)).map(|(_, value)| *value)
    }
    /// The address that a dynamic relocation makes of a symbol with an address in this file, whoever else may define such a symbol too.
    pub fn address_by_symbol(&self, reloc: &DynReloc) -> Option<Va> {
        let symbol =
            self.dynamic_symbols.get(reloc.symbol as usize).filter(|symbol| reloc.symbol != 0 && symbol.has_address())?;
        Some(Va(symbol.st_value.wrapping_add_signed(reloc.addend)))
    }
    pub fn has_static_relocs(&self) -> bool {
        !self.static_relocs.is_empty()
    }
    /// The static relocations of fields in `start..end`, ascending.
    pub fn static_relocs_in(&self, start: Va, end: Va) -> &[StaticReloc] {
        let first = self.static_relocs.partition_point(|r| r.at < start);
        let count = self.static_relocs[first..].partition_point(|r| r.at < end);
        &self.static_relocs[first..first + count]
    }
    /// Whether functions of this section may move: compiled code, not linker-made stubs or start-up glue.
    pub fn is_movable_code_section(&self, section: Section) -> bool {
        let s = &self.sections[section];
        let name = original_name(s.name);
        let is_compiled = name == ".text" || name.starts_with(".text.") || (self.moves_fini && s.name == ".fini");
        s.is_alloc() && s.is_executable() && s.has_bytes() && is_compiled
    }
}

/// What a section was called before BOLT wrote another one of that name beside it.
pub fn original_name(name: &str) -> &str {
    name.strip_prefix(".bolt.org").unwrap_or(name)
}
