//! Sections of debug information as bytes, and back into what they were: some are compressed.
//!
//! **Method.** What was compressed is compressed again, by zlib, which all readers know.
//!
//! Source: gABI, "Compressed Sections".

use std::borrow::Cow;
use std::io::Write;

use flate2::{Compression, write::ZlibEncoder};
use lifter::elf::image::Sections;
use lifter::entity::Section;
use object::elf;
use object::read::{CompressedData, CompressionFormat};

use super::DebugError;

/// Bytes of the header of a compressed section.
const HEADER: usize = 24;

pub(super) fn is_compressed(sections: Sections<'_, '_>, id: Section) -> bool {
    sections.data[id].sh_flags & u64::from(elf::SHF_COMPRESSED) != 0
}

/// The bytes of a section as readers see them.
pub(super) fn read<'a>(sections: Sections<'_, 'a>, id: Section) -> Result<Cow<'a, [u8]>, DebugError> {
    let bytes = sections.bytes_of(id);
    if !is_compressed(sections, id) {
        return Ok(Cow::Borrowed(bytes));
    }
    let name = || DebugError::Compressed(sections.data[id].name.to_owned());
    let (header, data) = bytes.split_at_checked(HEADER).ok_or_else(name)?;
    let format = match u32::from_le_bytes([header[0], header[1], header[2], header[3]]) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return Err(name()),
    };
    let uncompressed_size = header[8..16].try_into().map(u64::from_le_bytes).unwrap_or_default();
    // No compression by these is better than a thousand to one.
    if uncompressed_size / 1100 > data.len() as u64 {
        return Err(name());
    }
    CompressedData { format, data, uncompressed_size }.decompress().map_err(|_| name())
}

/// Compresses new contents.
pub(super) fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut header = Vec::with_capacity(HEADER + bytes.len() / 2);
    header.extend_from_slice(&elf::ELFCOMPRESS_ZLIB.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    header.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    header.extend_from_slice(&1u64.to_le_bytes());
    let mut encoder = ZlibEncoder::new(header, Compression::default());
    encoder.write_all(bytes)?;
    encoder.finish()
}
