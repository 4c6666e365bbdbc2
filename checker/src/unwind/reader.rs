//! Reads the entries of `.eh_frame`: lengths, augmentations, encoded pointers (LSB Core §10.5, §10.6).

use crate::error::FileError;
use crate::image::Image;

/// `DW_EH_PE_omit`.
pub(crate) const OMIT: u8 = 0xff;
const INDIRECT: u8 = 0x80;

/// A cursor that knows its address.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    address: u64,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], address: u64) -> Self {
        Self { bytes, address, at: 0 }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn skip(&mut self, size: usize) {
        self.at = self.at.saturating_add(size);
    }

    pub(crate) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(size)?)?;
        self.at += size;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn unsigned(&mut self, size: usize) -> Option<u64> {
        Some(self.take(size)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    pub(crate) fn signed(&mut self, size: usize) -> Option<i64> {
        let shift = 64 - 8 * size as u32;
        Some((self.unsigned(size)? << shift).cast_signed() >> shift)
    }

    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0i64, 0u32);
        loop {
            let byte = self.u8()?;
            if shift < 64 {
                value |= i64::from(byte & 0x7f) << shift;
            }
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(if shift < 64 && byte & 0x40 != 0 { value | -1i64 << shift } else { value });
            }
        }
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let size = rest.iter().position(|&byte| byte == 0)?;
        self.at += size + 1;
        Some(&rest[..size])
    }

    /// The value of the format alone, without base or indirection.
    pub(crate) fn encoded_value(&mut self, encoding: u8) -> Option<u64> {
        match encoding & 0x0f {
            0x00 | 0x04 => self.unsigned(8),
            0x01 => self.uleb(),
            0x02 => self.unsigned(2),
            0x03 => self.unsigned(4),
            0x09 => self.sleb().map(i64::cast_unsigned),
            0x0a => self.signed(2).map(i64::cast_unsigned),
            0x0b => self.signed(4).map(i64::cast_unsigned),
            0x0c => self.signed(8).map(i64::cast_unsigned),
            _ => None,
        }
    }

    /// A pointer; 0 stays 0 whatever the base. An indirect one gives the address of the cell.
    pub(crate) fn encoded(&mut self, encoding: u8, data_base: u64, image: &Image<'_>) -> Option<u64> {
        if encoding == OMIT {
            return Some(0);
        }
        let place = self.address.wrapping_add(self.at as u64);
        let value = self.encoded_value(encoding)?;
        if value == 0 {
            return Some(0);
        }
        let base = match encoding & 0x70 {
            0x00 => 0,
            0x10 => place,
            0x30 => data_base,
            0x20 => image.section(".text").map_or(0, |section| section.address),
            _ => return None,
        };
        Some(base.wrapping_add(value))
    }
}

/// The bounds of one entry.
pub(super) struct Entry<'a> {
    pub(super) start: usize,
    pub(super) end: usize,
    id: u32,
    id_at: usize,
    body: &'a [u8],
}

impl Entry<'_> {
    pub(super) fn is_cie(&self) -> bool {
        self.id == 0
    }

    pub(super) fn cie_offset(&self) -> Result<usize, FileError> {
        self.id_at
            .checked_sub(self.id as usize)
            .ok_or(FileError::Unwind { offset: self.start, reason: "its CIE lies before the table" })
    }
}

/// The entry at `offset`, `None` at the end of the table.
pub(super) fn entry(bytes: &[u8], offset: usize) -> Result<Option<Entry<'_>>, FileError> {
    let fail = |reason| FileError::Unwind { offset, reason };
    let mut reader = Reader::new(bytes, 0);
    reader.skip(offset);
    if reader.is_empty() {
        return Ok(None);
    }
    let mut size = reader.unsigned(4).ok_or_else(|| fail("truncated length"))?;
    if size == 0 {
        return Ok(None);
    }
    if size == 0xffff_ffff {
        size = reader.unsigned(8).ok_or_else(|| fail("truncated length"))?;
    }
    let id_at = reader.at();
    let size = usize::try_from(size).map_err(|_| fail("length out of range"))?;
    let end =
        id_at.checked_add(size).filter(|&end| end <= bytes.len() && size >= 4).ok_or_else(|| fail("length out of range"))?;
    let id = reader.unsigned(4).ok_or_else(|| fail("truncated"))? as u32;
    Ok(Some(Entry { start: offset, end, id, id_at, body: &bytes[id_at + 4..end] }))
}

/// A common information entry.
#[derive(Clone)]
pub(super) struct Cie {
    pub(super) code_align: u64,
    pub(super) data_align: i64,
    pub(super) return_register: u64,
    /// Address of the function or of the cell that holds it, and whether it is a cell.
    pub(super) personality: Option<(u64, bool)>,
    pub(super) is_signal: bool,
    pointer_encoding: u8,
    lsda_encoding: u8,
    has_augmentation: bool,
    /// Whether a no-op stands before the rules.
    pub(super) is_sparse: bool,
    pub(super) program: Vec<u8>,
}

pub(super) fn cie(image: &Image<'_>, address: u64, bytes: &[u8], offset: usize) -> Result<Cie, FileError> {
    let fail = |reason| FileError::Unwind { offset, reason };
    let entry = entry(bytes, offset)?.filter(Entry::is_cie).ok_or_else(|| fail("not a CIE"))?;
    parse_cie(image, address, &entry).ok_or_else(|| fail("malformed CIE"))
}

fn parse_cie(image: &Image<'_>, address: u64, entry: &Entry<'_>) -> Option<Cie> {
    let mut reader = Reader::new(entry.body, address + entry.id_at as u64 + 4);
    let version = reader.u8()?;
    let augmentation = reader.string()?;
    if version == 4 {
        reader.skip(2);
    }
    let code_align = reader.uleb()?;
    let data_align = reader.sleb()?;
    let return_register = if version == 1 { u64::from(reader.u8()?) } else { reader.uleb()? };
    let mut cie = Cie {
        code_align,
        data_align,
        return_register,
        personality: None,
        is_signal: false,
        pointer_encoding: 0,
        lsda_encoding: OMIT,
        has_augmentation: augmentation.first() == Some(&b'z'),
        is_sparse: false,
        program: Vec::new(),
    };
    if cie.has_augmentation {
        let size = reader.uleb()?;
        let end = reader.at().checked_add(usize::try_from(size).ok()?)?;
        for letter in &augmentation[1..] {
            match letter {
                b'R' => cie.pointer_encoding = reader.u8()?,
                b'L' => cie.lsda_encoding = reader.u8()?,
                b'S' => cie.is_signal = true,
                b'P' => {
                    let encoding = reader.u8()?;
                    let target = reader.encoded(encoding, 0, image)?;
                    cie.personality = Some((target, encoding & INDIRECT != 0));
                }
                b'B' => {}
                _ => break,
            }
        }
        reader.skip(end.checked_sub(reader.at())?);
    } else if !augmentation.is_empty() {
        return None;
    }
    cie.program = entry.body.get(reader.at()..)?.to_vec();
    cie.is_sparse = cie.program.first() == Some(&0) && cie.program.iter().any(|&byte| byte != 0);
    Some(cie)
}

/// A frame description entry before its rules are evaluated.
pub(super) struct RawFde<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) lsda: Option<u64>,
    pub(super) program: &'a [u8],
}

pub(super) fn fde<'a>(
    image: &Image<'_>,
    address: u64,
    bytes: &'a [u8],
    entry: &Entry<'a>,
    cie: &Cie,
) -> Result<RawFde<'a>, FileError> {
    debug_assert!(entry.end <= bytes.len());
    parse_fde(image, address, entry, cie).ok_or(FileError::Unwind { offset: entry.start, reason: "malformed FDE" })
}

fn parse_fde<'a>(image: &Image<'_>, address: u64, entry: &Entry<'a>, cie: &Cie) -> Option<RawFde<'a>> {
    let mut reader = Reader::new(entry.body, address + entry.id_at as u64 + 4);
    let start = reader.encoded(cie.pointer_encoding, 0, image)?;
    let size = reader.encoded_value(cie.pointer_encoding & 0x07)?;
    let end = start.checked_add(size)?;
    let mut lsda = None;
    if cie.has_augmentation {
        let size = usize::try_from(reader.uleb()?).ok()?;
        let after = reader.at().checked_add(size)?;
        if cie.lsda_encoding != OMIT && size > 0 {
            lsda = Some(reader.encoded(cie.lsda_encoding, 0, image)?).filter(|&lsda| lsda != 0);
        }
        reader.skip(after.checked_sub(reader.at())?);
    }
    Some(RawFde { start, end, lsda, program: entry.body.get(reader.at()..)? })
}
