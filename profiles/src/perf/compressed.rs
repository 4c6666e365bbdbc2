//! What `perf record -z` packed.
//!
//! The payloads of all compressed records, one behind the other, are one Zstandard frame (RFC 8878): the recorder flushes its blocks and goes on, and never ends the frame. What is in it is a stream of
//! records as any other; records and blocks may go on in the next payload. Whoever unpacks holds a window of bytes back for blocks that repeat them, until the frame ends: an empty last block is put behind all payloads.

use std::ops::Range;

use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::FrameDecoderError;

use super::records::{HEADER_LEN, Parsed, parse};
use crate::error::Result;

/// A raw block of no bytes that is the last one (RFC 8878, 3.1.1.2), and a checksum for frames that have one, which is not compared.
const ENDING: [u8; 7] = [1, 0, 0, 0, 0, 0, 0];
/// The most that a frame's header takes, with its magic number (RFC 8878, 3.1.1).
const FRAME_HEADER_MAX: usize = 18;

/// Records of payloads that were read so far.
#[derive(Default)]
pub(super) struct Unpacked {
    /// Of a frame that has begun.
    decoder: Option<FrameDecoder>,
    /// What no whole block is there for yet.
    packed: Vec<u8>,
    records: Vec<u8>,
    /// Where in those the next record is.
    next: usize,
    /// Of the last payload, in the file.
    offset: u64,
}

impl Unpacked {
    /// Takes the payload of one more record, which stands there in the file. `Err` says what is wrong with it.
    pub(super) fn add(&mut self, payload: &[u8], offset: u64) -> std::result::Result<(), String> {
        self.offset = offset;
        self.packed.extend_from_slice(payload);
        // Records that were taken make room.
        self.records.drain(..self.next);
        self.next = 0;
        self.unpack().map_err(|error| error.to_string())
    }

    /// Ends the frame: all of its bytes are there then. Whether something is left that is not whole.
    pub(super) fn end(&mut self) -> std::result::Result<bool, String> {
        let is_cut = !self.packed.is_empty();
        self.packed.clear();
        if self.decoder.is_some() {
            self.packed.extend(ENDING);
            self.unpack().map_err(|error| error.to_string())?;
        }
        (self.decoder, self.packed) = (None, Vec::new());
        Ok(is_cut)
    }

    fn unpack(&mut self) -> std::result::Result<(), FrameDecoderError> {
        let mut rest = self.packed.as_slice();
        // Behind a frame that did end another one may begin.
        while !rest.is_empty() && (self.decoder.is_some() || rest.len() >= FRAME_HEADER_MAX) {
            let decoder = self.decoder.get_or_insert_default();
            let (read, _) = decoder.decode_from_to(rest, &mut [])?;
            self.records.extend(decoder.collect().unwrap_or_default());
            if decoder.is_finished() {
                self.decoder = None;
            } else if read == 0 || read > rest.len() {
                // It waits for a whole block, or for the four bytes of a checksum.
                break;
            }
            rest = rest.get(read..).unwrap_or(&[]);
        }
        self.packed = rest.to_vec();
        Ok(())
    }

    /// The next record that is there as a whole.
    pub(super) fn next(&mut self) -> Result<Option<(Parsed, Range<usize>)>> {
        let Some(parsed) = parse(&self.records, self.next..self.records.len(), self.offset)? else { return Ok(None) };
        let body = self.next + HEADER_LEN..self.next + parsed.size;
        self.next += parsed.size;
        Ok(Some((parsed, body)))
    }

    /// Whether a record began and is not there as a whole.
    pub(super) fn is_amid_record(&self) -> bool {
        self.next < self.records.len()
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.records[range]
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset
    }
}
