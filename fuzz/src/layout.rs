//! What lies where in a sound file: the regions that edits are aimed at, and addresses worth leading a pointer to.
//!
//! Only sound files are looked at here, so the lifter itself may say what is in them; an output of relift is a sound file too.

use lifter::elf::image::{SectionData, Segment};
use lifter::elf::{Image, Unwind};
use object::elf;

/// What a region of a file holds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Class {
    FileHeader,
    ProgramHeaders,
    SectionHeaders,
    Dynamic,
    Symbols,
    Strings,
    Relocations,
    Notes,
    Code,
    /// Data that is only read: jump tables are here.
    Constants,
    Data,
    /// `.eh_frame`.
    Frames,
    /// `.eh_frame_hdr`.
    FrameIndex,
    /// `.gcc_except_table`.
    Exceptions,
    /// Bytes that no class above describes.
    Other,
}

/// A stretch of the file.
#[derive(Copy, Clone, Debug)]
pub struct Region {
    pub class: Class,
    pub start: usize,
    pub len: usize,
    /// Bytes of one entry, 1 where there are none.
    pub entry: usize,
}

/// The map of a file.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    pub regions: Vec<Region>,
    /// Addresses that mean something in this file, ascending: bounds of sections and segments, starts of blocks.
    pub addresses: Vec<u64>,
    /// Values at the edge of what a number can be.
    pub extremes: Vec<u64>,
    /// File offsets of 32-bit fields in code that name a place relative to themselves.
    pub fields: Vec<usize>,
    /// `(file offset, address, length)` of what is loaded.
    pub(crate) loads: Vec<(u64, u64, u64)>,
}

impl Layout {
    /// Maps a sound file; one that the lifter does not take gives a map without blocks, one that is no ELF file an empty map.
    pub fn of(bytes: &[u8]) -> Layout {
        let Ok(image) = Image::parse(bytes) else { return Layout::default() };
        let mut layout = Layout {
            regions: header_regions(&image),
            extremes: extremes(bytes.len() as u64),
            loads: image.loads().map(|s| (s.p_offset.0, s.p_vaddr.0, s.p_filesz)).collect(),
            ..Layout::default()
        };
        let sections = image.sections.values().filter(|s| s.has_bytes() && s.sh_size > 0);
        layout.regions.extend(sections.map(section_region));
        let sections = image.sections.values().filter(|s| s.is_alloc());
        layout.addresses.extend(sections.flat_map(|s| [s.sh_addr.0, s.end().0]));
        layout.addresses.extend(image.loads().flat_map(|s| [s.p_vaddr.0, s.end().0]));
        layout.add_code(&image);
        layout.addresses.sort_unstable();
        layout.addresses.dedup();
        layout
    }

    fn add_code(&mut self, image: &Image<'_>) {
        let Ok(program) = Unwind::parse(image).and_then(|unwind| lifter::lift(image, unwind)) else { return };
        let offset = |va| image.file_offset(va).map(|offset| offset.0 as usize);
        for (block, data) in program.blocks.iter() {
            self.addresses.push(data.start.0);
            let refs = program.block_refs(block).iter().map(|r| data.start + u64::from(r.offset));
            self.fields.extend(refs.filter_map(offset));
            if data.len - data.body_len >= 5 {
                self.fields.extend(offset(data.start + u64::from(data.len - 4)));
            }
        }
    }

    /// The address at which a byte of the file is loaded; its offset if it is not.
    pub fn address_of(&self, offset: usize) -> u64 {
        let offset = offset as u64;
        let load = self.loads.iter().find(|&&(start, _, len)| start <= offset && offset < start + len);
        load.map_or(offset, |&(start, address, _)| address + (offset - start))
    }
}

fn header_regions(image: &Image<'_>) -> Vec<Region> {
    let table = image.bytes.get(40..48).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap_or_default()));
    let region = |class, start, len, entry| Region { class, start, len, entry };
    let headers = [
        region(Class::FileHeader, 0, 64, 1),
        region(Class::ProgramHeaders, image.e_phoff.0 as usize, 56 * image.segments.len(), 56),
        region(Class::SectionHeaders, table as usize, 64 * image.sections.len(), 64),
    ];
    let dynamic = |s: &&Segment| s.p_type == elf::PT_DYNAMIC;
    let dynamic = image.segments.iter().find(dynamic);
    let dynamic = dynamic.map(|s| region(Class::Dynamic, s.p_offset.0 as usize, 16 * (image.dynamic.len() + 1), 16));
    headers.into_iter().chain(dynamic).filter(|r| r.len > 0).collect()
}

fn section_region(section: &SectionData<'_>) -> Region {
    let (class, entry) = match section.sh_type {
        elf::SHT_SYMTAB | elf::SHT_DYNSYM => (Class::Symbols, 24),
        elf::SHT_STRTAB => (Class::Strings, 1),
        elf::SHT_RELA => (Class::Relocations, 24),
        elf::SHT_RELR => (Class::Relocations, 8),
        elf::SHT_NOTE => (Class::Notes, 4),
        elf::SHT_DYNAMIC => (Class::Dynamic, 16),
        _ if section.name == ".eh_frame" => (Class::Frames, 4),
        _ if section.name == ".eh_frame_hdr" => (Class::FrameIndex, 8),
        _ if section.name == ".gcc_except_table" => (Class::Exceptions, 1),
        _ if !section.is_alloc() => (Class::Other, 1),
        _ if section.is_executable() => (Class::Code, 1),
        _ if section.is_writable() => (Class::Data, 8),
        _ => (Class::Constants, 4),
    };
    Region { class, start: section.sh_offset.0 as usize, len: section.sh_size as usize, entry }
}

/// Numbers at which arithmetic goes wrong.
fn extremes(file_len: u64) -> Vec<u64> {
    let mut extremes = vec![0, 1, 2, 7, 24, file_len - 1, file_len, file_len + 1, 1 << 20, 1 << 47];
    extremes.extend([8, 16, 31, 32, 63].into_iter().flat_map(|bits| [(1u64 << bits) - 1, 1 << bits, (1 << bits) + 1]));
    extremes.extend([u64::MAX, u64::MAX - 1, u64::MAX - 7, u64::MAX - 4095]);
    extremes
}
