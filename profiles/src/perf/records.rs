//! The stream of records.

use std::ops::Range;

use super::compressed::Unpacked;
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
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// `type`, `misc`, `size`.
pub(super) const HEADER_LEN: usize = 8;

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

/// The header of a record.
#[derive(Copy, Clone, Debug)]
pub(super) struct Parsed {
    kind: u32,
    misc: u16,
    /// With the header.
    pub(super) size: usize,
}

/// The record at the start of a range of bytes; `None` if it goes on behind that. Errors name where in the file that is.
pub(super) fn parse(bytes: &[u8], range: Range<usize>, offset: u64) -> Result<Option<Parsed>> {
    let Some(bytes) = bytes.get(range).filter(|bytes| bytes.len() >= HEADER_LEN) else { return Ok(None) };
    let fields = word(bytes);
    let parsed = Parsed { kind: fields as u32, misc: (fields >> 32) as u16, size: (fields >> 48) as usize };
    if parsed.size < HEADER_LEN {
        return Err(fail(offset, format!("a record of {} bytes: shorter than its own header", parsed.size)));
    }
    Ok((parsed.size <= bytes.len()).then_some(parsed))
}

/// Walks over the records of a file.
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    next: usize,
    end: usize,
    is_cut: bool,
    unpacked: Unpacked,
}

/// Where a record is.
enum Source {
    Unpacked(Parsed, Range<usize>),
    File(Parsed, Range<usize>),
}

impl<'a> Records<'a> {
    /// The stream may end beyond the file: then the file was cut short.
    pub(super) fn new(bytes: &'a [u8], data: Range<usize>) -> Self {
        let (end, is_cut) = (data.end.min(bytes.len()), data.end > bytes.len());
        Records { bytes, next: data.start, end, is_cut, unpacked: Unpacked::default() }
    }
    /// Where the stream stopped before its end.
    pub(super) fn cut_at(&self) -> Option<u64> {
        self.is_cut.then_some(self.next as u64)
    }

    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>> {
        let Some(source) = self.find()? else { return Ok(None) };
        Ok(Some(match source {
            Source::Unpacked(Parsed { kind, misc, .. }, body) => {
                Record { kind, misc, body: self.unpacked.bytes(body), offset: self.unpacked.offset() }
            }
            Source::File(Parsed { kind, misc, .. }, body) => {
                let offset = (body.start - HEADER_LEN) as u64;
                Record { kind, misc, body: &self.bytes[body], offset }
            }
        }))
    }

    /// The next record: of those that were unpacked as long as there are some, then of the file.
    fn find(&mut self) -> Result<Option<Source>> {
        loop {
            if let Some((parsed, body)) = self.unpacked.next()? {
                return Ok(Some(Source::Unpacked(parsed, body)));
            }
            let at = self.next;
            let damaged = |why: String| fail(at as u64, format!("compressed records that cannot be unpacked: {why}"));
            let Some((parsed, body)) = self.next_of_file()? else {
                self.is_cut |= self.unpacked.end().map_err(damaged)?;
                let last = self.unpacked.next()?.map(|(parsed, body)| Source::Unpacked(parsed, body));
                self.is_cut |= last.is_none() && self.unpacked.is_amid_record();
                return Ok(last);
            };
            let payload = match parsed.kind {
                COMPRESSED => self.bytes.get(body),
                // Its size is told apart from that of the record, which is a multiple of 8.
                COMPRESSED2 => self.bytes.get(body).and_then(|body| body.get(8..)?.get(..usize::try_from(word(body)).ok()?)),
                _ => return Ok(Some(Source::File(parsed, body))),
            };
            let payload = payload.ok_or_else(|| damaged("a payload that is longer than its record".to_owned()))?;
            self.unpacked.add(payload, at as u64).map_err(damaged)?;
        }
    }

    fn next_of_file(&mut self) -> Result<Option<(Parsed, Range<usize>)>> {
        let Some(parsed) = parse(self.bytes, self.next..self.end, self.next as u64)? else {
            self.is_cut |= self.next < self.end;
            return Ok(None);
        };
        let range = self.next + HEADER_LEN..self.next + parsed.size;
        let body = &self.bytes[range.clone()];
        self.next += parsed.size;
        // Two kinds have a payload behind them that the size leaves out.
        let payload = match parsed.kind {
            HEADER_TRACING_DATA => body.get(..4).map_or(0, |b| u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
            AUXTRACE => word(body),
            _ => 0,
        };
        let payload = usize::try_from(payload.checked_next_multiple_of(8).unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        self.next = self.next.saturating_add(payload);
        Ok(Some((parsed, range)))
    }
}
