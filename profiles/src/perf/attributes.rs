//! Attributes of events, and the samples whose layout they set.

use rustc_hash::FxHashMap;

use super::fail;
use super::records::{Record, word};
use crate::error::Result;

const IP: u64 = 1;
const TID: u64 = 1 << 1;
const TIME: u64 = 1 << 2;
const ADDR: u64 = 1 << 3;
const READ: u64 = 1 << 4;
const CALLCHAIN: u64 = 1 << 5;
const ID: u64 = 1 << 6;
const CPU: u64 = 1 << 7;
const PERIOD: u64 = 1 << 8;
const STREAM_ID: u64 = 1 << 9;
const RAW: u64 = 1 << 10;
const BRANCH_STACK: u64 = 1 << 11;
const IDENTIFIER: u64 = 1 << 16;

/// What is used of a `perf_event_attr`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Attribute {
    kind: u32,
    config: u64,
    sample_type: u64,
    read_format: u64,
    has_sample_id: bool,
    branch_sample_type: u64,
}

impl Attribute {
    /// Also its length in bytes.
    pub(super) fn read(bytes: &[u8], offset: u64) -> Result<(Self, usize)> {
        // The first published version ends behind `config1`.
        const LEN_MIN: usize = 64;
        let fixed = bytes.get(..LEN_MIN).ok_or_else(|| fail(offset, "the attributes of an event are too short"))?;
        let fields = word(fixed);
        let len = ((fields >> 32) as usize).max(LEN_MIN);
        if len > bytes.len() {
            return Err(fail(offset, format!("the attributes of an event say that they have {len} bytes")));
        }
        let branch_sample_type = if len >= 80 { word(&bytes[72..]) } else { 0 };
        let attribute = Attribute {
            kind: fields as u32,
            config: word(&bytes[8..]),
            sample_type: word(&bytes[24..]),
            read_format: word(&bytes[32..]),
            has_sample_id: word(&bytes[40..]) & 1 << 18 != 0,
            branch_sample_type,
        };
        Ok((attribute, len))
    }

    /// Whether samples of the event grow with time or with instructions: clocks, cycles, instructions, and what only the processor's
    /// manual knows.
    fn is_of_time(&self) -> bool {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        const RAW_EVENT: u32 = 4;
        match (self.kind, self.config & 0xffff_ffff) {
            (HARDWARE, 0 | 1 | 6 | 9) => true,
            (SOFTWARE, 0 | 1) => true,
            (kind, _) => kind >= RAW_EVENT,
        }
    }
}

/// What is used of a sample.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct SampleRecord<'a> {
    pub(super) ip: Option<u64>,
    pub(super) pid: u32,
    pub(super) time: u64,
    /// Entries of 24 bytes.
    pub(super) branches: &'a [u8],
    pub(super) is_of_time: bool,
}

/// All events of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes {
    list: Vec<Attribute>,
    by_id: FxHashMap<u64, usize>,
}

impl Attributes {
    pub(super) fn push(&mut self, attribute: Attribute, ids: Vec<u64>) {
        for id in ids {
            self.by_id.insert(id, self.list.len());
        }
        self.list.push(attribute);
    }
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// When a record that is not a sample was made: from the copy of a sample's head behind it. Zero where there is none.
    pub(super) fn time_of(&self, record: &Record<'_>) -> u64 {
        let Some(first) = self.list.first().filter(|a| a.has_sample_id && a.sample_type & TIME != 0) else { return 0 };
        let behind = first.sample_type & (TIME | ID | STREAM_ID | CPU | IDENTIFIER);
        let len = behind.count_ones() as usize * 8;
        record.body.len().checked_sub(len).and_then(|at| record.u64_at(at)).unwrap_or(0)
    }

    pub(super) fn sample<'a>(&self, record: &Record<'a>) -> Result<SampleRecord<'a>> {
        let attribute = self.attribute_of(record).ok_or_else(|| fail(record.offset, "a sample of no event that is described"))?;
        let mut fields = Fields { rest: record.body, record };
        let has = |bit: u64| attribute.sample_type & bit != 0;
        let mut sample = SampleRecord { is_of_time: attribute.is_of_time(), ..SampleRecord::default() };
        if has(IDENTIFIER) {
            fields.u64()?;
        }
        if has(IP) {
            sample.ip = Some(fields.u64()?);
        }
        if has(TID) {
            sample.pid = fields.u64()? as u32;
        }
        if has(TIME) {
            sample.time = fields.u64()?;
        }
        for bit in [ADDR, ID, STREAM_ID, CPU, PERIOD] {
            if has(bit) {
                fields.u64()?;
            }
        }
        if !has(BRANCH_STACK) {
            return Ok(sample);
        }
        if has(READ) {
            fields.skip_read(attribute.read_format)?;
        }
        if has(CALLCHAIN) {
            let len = fields.u64()?;
            fields.words(len)?;
        }
        if has(RAW) {
            let len = fields.u32()?;
            fields.bytes(u64::from(len))?;
        }
        const HAS_INDEX: u64 = 1 << 17;
        let len = fields.u64()?;
        if attribute.branch_sample_type & HAS_INDEX != 0 {
            fields.u64()?;
        }
        sample.branches = fields.words(len.checked_mul(3).ok_or_else(|| record.short())?)?;
        Ok(sample)
    }

    /// The event of a sample, by its id where there are several.
    fn attribute_of(&self, record: &Record<'_>) -> Option<&Attribute> {
        let first = self.list.first()?;
        if self.list.len() == 1 {
            return Some(first);
        }
        let at = if first.sample_type & IDENTIFIER != 0 {
            0
        } else if first.sample_type & ID != 0 {
            8 * (first.sample_type & (IP | TID | TIME | ADDR)).count_ones() as usize
        } else {
            return Some(first);
        };
        let id = record.u64_at(at)?;
        self.by_id.get(&id).and_then(|&index| self.list.get(index)).or(Some(first))
    }
}

/// The fields of a record, one behind the other.
struct Fields<'r, 'a> {
    rest: &'a [u8],
    record: &'r Record<'a>,
}

impl<'a> Fields<'_, 'a> {
    fn bytes(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = usize::try_from(len).map_err(|_| self.record.short())?;
        let (taken, rest) = self.rest.split_at_checked(len).ok_or_else(|| self.record.short())?;
        self.rest = rest;
        Ok(taken)
    }
    fn words(&mut self, len: u64) -> Result<&'a [u8]> {
        let len = len.checked_mul(8).ok_or_else(|| self.record.short())?;
        self.bytes(len)
    }
    fn u64(&mut self) -> Result<u64> {
        self.bytes(8).map(word)
    }
    fn u32(&mut self) -> Result<u32> {
        self.bytes(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Counter values, whose layout `read_format` sets: of one event, or of a group.
    fn skip_read(&mut self, read_format: u64) -> Result<()> {
        const TIMES: u64 = 3;
        const WITH_ID: u64 = 1 << 2;
        const GROUP: u64 = 1 << 3;
        const LOST: u64 = 1 << 4;
        let times = u64::from((read_format & TIMES).count_ones());
        let each = 1 + u64::from(read_format & WITH_ID != 0) + u64::from(read_format & LOST != 0);
        let num_values = if read_format & GROUP != 0 { self.u64()? } else { 1 };
        let len = num_values.checked_mul(each).and_then(|len| len.checked_add(times)).ok_or_else(|| self.record.short())?;
        self.words(len).map(drop)
    }
}
