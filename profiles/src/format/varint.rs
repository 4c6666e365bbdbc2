//! LEB128 numbers (DWARF 5 §7.6) and strings, written to a vector and read with every bound checked.

use crate::error::{Error, Result};

const WHAT: &str = "descriptor";

pub(super) fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// A signed number, small either way where it is near zero.
pub(super) fn put_signed(bytes: &mut Vec<u8>, value: i64) {
    put(bytes, ((value << 1) ^ (value >> 63)) as u64);
}

pub(super) fn put_string(bytes: &mut Vec<u8>, string: &str) {
    put(bytes, string.len() as u64);
    bytes.extend_from_slice(string.as_bytes());
}

#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes }
    }
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(len).ok_or_else(|| Error::malformed(WHAT, "ends too early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                break;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::malformed(WHAT, "a number does not fit in 64 bits"))
    }

    pub(super) fn signed(&mut self) -> Result<i64> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| Error::malformed(WHAT, "a number does not fit in 32 bits"))
    }

    /// A number of things that each take at least one byte of what is left.
    pub(super) fn count(&mut self) -> Result<usize> {
        let count = self.number()?;
        let fits = count <= self.bytes.len() as u64;
        fits.then_some(count as usize)
            .ok_or_else(|| Error::malformed(WHAT, format!("{count} entries do not fit in what is left")))
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default()))
    }
    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default()))
    }

    pub(super) fn string(&mut self) -> Result<&'a str> {
        let len = self.count()?;
        std::str::from_utf8(self.take(len)?).map_err(|_| Error::malformed(WHAT, "a name is not UTF-8"))
    }
}
