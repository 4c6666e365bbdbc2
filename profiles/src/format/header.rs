//! The fixed part of a profile file.

use crate::error::{Error, Result};

pub const MAGIC: [u8; 8] = *b"relift\x1ap";
pub const VERSION: u32 = 2;
/// The first version said nothing of where functions are.
const VERSION_MIN: u32 = 1;
/// The flag of a file whose descriptor outlines the functions.
pub(super) const HAS_OUTLINES: u32 = 1;
/// The flag of one that says where the parts of functions are.
pub(super) const HAS_PARTS: u32 = 2;
pub const HEADER_BYTES: u64 = 128;
/// Counters begin at a multiple of this in the file, and the mapping's length is one.
pub const PAGE_BYTES: u64 = 4096;
/// How many targets of an indirect call have a count of their own.
pub const SLOTS_PER_CALL: u64 = 4;
/// What a recorded call takes in the file: its slots, and the count of what found no slot.
pub const CALL_BYTES: u64 = SLOTS_PER_CALL * 16 + 8;

/// The fields of the header, in the order of the file after the magic number and the version.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub flags: u32,
    pub descriptor_offset: u64,
    pub descriptor_len: u64,
    pub counters_offset: u64,
    pub num_counters: u64,
    pub num_calls: u64,
    pub slots_per_call: u64,
    /// What the instrumented program was made from.
    pub identity: [u64; 2],
    /// Of the counters and calls, without addresses.
    pub plan_hash: u64,
    pub descriptor_hash: u64,
}

impl Header {
    /// The header in front of a descriptor.
    pub fn new(identity: [u64; 2], plan_hash: u64, descriptor: &[u8], num_counters: u64, num_calls: u64) -> Self {
        let descriptor_len = descriptor.len() as u64;
        Header {
            flags: HAS_OUTLINES | HAS_PARTS,
            descriptor_offset: HEADER_BYTES,
            descriptor_len,
            counters_offset: (HEADER_BYTES + descriptor_len).next_multiple_of(PAGE_BYTES),
            num_counters,
            num_calls,
            slots_per_call: SLOTS_PER_CALL,
            identity,
            plan_hash,
            descriptor_hash: xxhash_rust::xxh3::xxh3_64(descriptor),
        }
    }

    /// From the first counter to the first call's slots, in bytes.
    pub fn calls_within_counters(&self) -> u64 {
        self.num_counters * 8
    }
    /// What is mapped, in bytes: whole pages, at least one.
    pub fn counters_len(&self) -> u64 {
        (self.num_counters * 8 + self.num_calls * CALL_BYTES).max(1).next_multiple_of(PAGE_BYTES)
    }
    pub fn file_len(&self) -> u64 {
        self.counters_offset + self.counters_len()
    }

    pub fn encode(&self) -> [u8; HEADER_BYTES as usize] {
        let words = [
            u64::from_le_bytes(MAGIC),
            u64::from(VERSION) | u64::from(self.flags) << 32,
            self.descriptor_offset,
            self.descriptor_len,
            self.counters_offset,
            self.num_counters,
            self.num_calls,
            self.slots_per_call,
            self.identity[0],
            self.identity[1],
            self.plan_hash,
            self.descriptor_hash,
        ];
        let mut bytes = [0; HEADER_BYTES as usize];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads and checks the header of a whole file.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some(fixed) = bytes.get(..HEADER_BYTES as usize) else {
            return Err(Error::NotAProfile(if bytes.is_empty() { "the file is empty" } else { "the file is too short" }));
        };
        if fixed[..8] == [0; 8] {
            return Err(Error::NotWrittenYet);
        }
        if fixed[..8] != MAGIC {
            return Err(Error::NotAProfile("no magic number of a relift profile"));
        }
        let word = |index: usize| u64::from_le_bytes(fixed[index * 8..index * 8 + 8].try_into().unwrap_or_default());
        let version = word(1) as u32;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(Error::Version { found: version, expected: VERSION });
        }
        let header = Header {
            flags: (word(1) >> 32) as u32,
            descriptor_offset: word(2),
            descriptor_len: word(3),
            counters_offset: word(4),
            num_counters: word(5),
            num_calls: word(6),
            slots_per_call: word(7),
            identity: [word(8), word(9)],
            plan_hash: word(10),
            descriptor_hash: word(11),
        };
        header.check(bytes.len() as u64)?;
        Ok(header)
    }

    fn check(&self, file_len: u64) -> Result<()> {
        let malformed = |why: &str| Err(Error::malformed("header", why));
        if self.slots_per_call != SLOTS_PER_CALL {
            return malformed("the number of slots for each call is not the one of this version");
        }
        // Bounding the counts by the file's length first keeps the products below from overflowing.
        if self.num_counters > file_len || self.num_calls > file_len || self.counters_offset > file_len {
            return malformed("there are more counters than the file has room for");
        }
        if !self.counters_offset.is_multiple_of(PAGE_BYTES) || self.file_len() > file_len {
            return malformed("the counters do not lie in the file");
        }
        let descriptor_end = self.descriptor_offset.checked_add(self.descriptor_len);
        if self.descriptor_offset != HEADER_BYTES || descriptor_end.is_none_or(|end| end > self.counters_offset) {
            return malformed("the descriptor does not lie between header and counters");
        }
        Ok(())
    }
}
