//! The bytes of the sections for debuggers, as debuggers see them: some are compressed.
//!
//! Source: gABI, "Compressed Sections".

use std::borrow::Cow;
use std::io::Read;

use flate2::read::ZlibDecoder;
use goblin::elf::section_header::{SHF_COMPRESSED, SHT_NOBITS};
use rustc_hash::FxHashMap;

use crate::image::Section;

/// Sections whose contents name no code: they only must still be there.
const WITHOUT_ADDRESSES: [&str; 8] = [
    ".debug_str",
    ".debug_line_str",
    ".debug_str_offsets",
    ".debug_names",
    ".debug_pubnames",
    ".debug_pubtypes",
    ".debug_gnu_pubnames",
    ".debug_gnu_pubtypes",
];
/// The header of a compressed section, and the one kind that is read.
const HEADER: usize = 24;
const ZLIB: u32 = 1;
/// Zlib does not make less than one byte of so many.
const RATIO_MAX: u64 = 1100;

/// A file with sections for debuggers: a program, or its debug file.
#[derive(Copy, Clone)]
pub(super) struct Source<'s, 'a> {
    pub(super) bytes: &'a [u8],
    pub(super) sections: &'s [Section<'a>],
}

impl Source<'_, '_> {
    /// Whether it has any.
    pub(super) fn has_any(self) -> bool {
        self.sections.iter().any(is_debug)
    }
}

/// Bytes by section.
pub(super) struct Contents<'a>(FxHashMap<&'a str, Cow<'a, [u8]>>);

impl<'a> Contents<'a> {
    /// Reads all sections for debuggers; an error names one that can't be read.
    pub(super) fn read(file: Source<'_, 'a>) -> Result<Self, String> {
        let mut contents = FxHashMap::default();
        for section in file.sections.iter().filter(|section| is_debug(section)) {
            let bytes = bytes_of(file.bytes, section).ok_or_else(|| format!("{} can't be read", section.name))?;
            contents.insert(section.name, bytes);
        }
        Ok(Self(contents))
    }

    /// The bytes of a section, none where it is not there.
    pub(super) fn of(&self, name: &str) -> &[u8] {
        self.0.get(name).map_or(&[], |bytes| bytes)
    }

    pub(super) fn size(&self) -> usize {
        self.0.values().map(|bytes| bytes.len()).sum()
    }

    /// The first section of which `self` lacks something although it names no code.
    pub(super) fn first_lost(&self, input: &Self) -> Option<&'static str> {
        WITHOUT_ADDRESSES.into_iter().find(|name| !self.of(name).starts_with(input.of(name)))
    }
}

/// Whether a section is there for debuggers.
fn is_debug(section: &Section<'_>) -> bool {
    let is_named = [".debug_", ".zdebug_"].iter().any(|prefix| section.name.starts_with(prefix)) || section.name == ".gdb_index";
    is_named && !section.is_alloc() && section.size > 0 && section.sh_type != SHT_NOBITS
}

fn bytes_of<'a>(file: &'a [u8], section: &Section<'a>) -> Option<Cow<'a, [u8]>> {
    let bytes = section.bytes_in(file);
    if section.name.starts_with(".zdebug_") {
        return None;
    }
    if section.flags & u64::from(SHF_COMPRESSED) == 0 {
        return Some(Cow::Borrowed(bytes));
    }
    let (header, data) = bytes.split_at_checked(HEADER)?;
    let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
    let size = u64::from_le_bytes(header[8..16].try_into().ok()?);
    if kind != ZLIB || size > RATIO_MAX.saturating_mul(data.len() as u64) {
        return None;
    }
    let mut whole = Vec::new();
    ZlibDecoder::new(data).take(size).read_to_end(&mut whole).ok()?;
    (whole.len() as u64 == size).then_some(Cow::Owned(whole))
}
