//! The stream of records.

use std::ops::Range;

use super::fail;
use crate::error::Result;

pub(super) const MMAP: u32 = 1;
pub(super) const LOST: u32 = 2;
pub(super) const COMM: u32 = 3;
pub(super) const FORK: u32 = 7;
pub(super) const SAMPLE: u32 = 9;
pub(super) const MMAP2: u32 = 10;
pub(super) const HEADER_ATTR: u32 = 64;
pub(super) const HEADER_TRACING_DATA: u32 = 66;
pub(super) const HEADER_BUILD_ID: u32 = 67;
pub(super) const AUXTRACE: u32 = 71;
pub(super) const COMPRESSED: u32 = 81;
pub(super) const COMPRESSED2: u32 = 83;

/// `type`, `misc`, `size`.
const HEADER_LEN: usize = 8;

/// One record, without its header.
#[derive(Copy, Clone, Debug)]
pub(super) struct Record<'a> {
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: &'a [u8],
    /// In the file.
    pub(super) offset: u64,
}

impl Record<'_> {
    pub(super) fn body_offset(&self) -> u64 {
        self.offset + HEADER_LEN as u64
    }
    pub(super) fn u32_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.body.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }
    pub(super) fn u64_at(&self, at: usize) -> Option<u64> {
        self.body.get(at..at.checked_add(8)?).map(word)
    }
    pub(super) fn short(&self) -> crate::error::Error {
        fail(self.offset, format!("the record of kind {} is too short", self.kind))
    }
}

/// The first eight bytes as a number; fewer are taken for zero.
pub(super) fn word(bytes: &[u8]) -> u64 {
    bytes.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// A text up to its zero byte.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Walks over the records of a file.
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    next: usize,
    end: usize,
    is_cut: bool,
}

impl<'a> Records<'a> {
    /// The stream may end beyond the file: then the file was cut short.
    pub(super) fn new(bytes: &'a [u8], data: Range<usize>) -> Self {
        Records { bytes, next: data.start, end: data.end.min(bytes.len()), is_cut: data.end > bytes.len() }
    }
    /// Where the stream stopped before its end.
    pub(super) fn cut_at(&self) -> Option<u64> {
        self.is_cut.then_some(self.next as u64)
    }

    pub(super) fn next(&mut self) -> Result<Option<Record<'a>>> {
        let Some(header) = self.bytes.get(self.next..self.end.min(self.next.saturating_add(HEADER_LEN))) else {
            return Ok(None);
        };
        if header.len() < HEADER_LEN {
            self.is_cut |= !header.is_empty();
            return Ok(None);
        }
        let fields = word(header);
        let (kind, misc, size) = (fields as u32, (fields >> 32) as u16, (fields >> 48) as usize);
        let offset = self.next as u64;
        if size < HEADER_LEN {
            return Err(fail(offset, format!("a record of {size} bytes: shorter than its own header")));
        }
        let Some(body) = self.bytes.get(self.next + HEADER_LEN..self.next + size).filter(|_| self.next + size <= self.end) else {
            self.is_cut = true;
            return Ok(None);
        };
        self.next += size;
        // Two kinds have a payload behind them that the size leaves out.
        let payload = match kind {
            HEADER_TRACING_DATA => body.get(..4).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            AUXTRACE => word(body),
            _ => 0,
        };
        let payload = usize::try_from(payload.checked_next_multiple_of(8).unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        self.next = self.next.saturating_add(payload);
        Ok(Some(Record { kind, misc, body, offset }))
    }
}
