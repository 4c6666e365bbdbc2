//! The header, and the features that are of use.

use std::ops::Range;

use super::attributes::{Attribute, Attributes};
use super::records::{text, word};
use super::{FORMAT, fail};
use crate::error::{Error, Result};

const PIPE_HEADER_LEN: u64 = 16;
const FILE_HEADER_LEN: u64 = 104;
const BUILD_ID_FEATURE: u32 = 2;
/// A file with more than this many kinds of events is damaged.
const ATTRIBUTES_MAX: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Layout {
    pub(super) attributes: Attributes,
    /// The stream of records; its end may lie beyond the file.
    pub(super) data: Range<usize>,
    /// Build-id and path.
    pub(super) build_ids: Vec<(Vec<u8>, String)>,
}

pub(super) fn read(bytes: &[u8]) -> Result<Layout> {
    if bytes.starts_with(b"2ELIFREP") {
        return Err(fail(0, "recorded on a big-endian machine"));
    }
    if !bytes.starts_with(b"PERFILE2") {
        return Err(fail(0, "no magic number of a version that is known"));
    }
    let field = |at: usize| bytes.get(at..at + 8).map(word).ok_or_else(|| fail(at as u64, "the file ends in its header"));
    let size = field(8)?;
    if size == PIPE_HEADER_LEN {
        let data = PIPE_HEADER_LEN as usize..bytes.len();
        return Ok(Layout { attributes: Attributes::default(), data, build_ids: Vec::new() });
    }
    if size < FILE_HEADER_LEN {
        return Err(fail(8, format!("a header of {size} bytes")));
    }
    let attribute_len = field(16)?;
    let (attributes_at, attributes_len) = (field(24)?, field(32)?);
    let (data_at, data_len) = (field(40)?, field(48)?);
    let features = field(72)?;
    if data_len == 0 {
        return Err(fail(48, "no records: `perf record` did not end as it should, or is still running"));
    }
    let attributes = read_attributes(bytes, attributes_at, attributes_len, attribute_len)?;
    let data_start = usize::try_from(data_at).map_err(|_| fail(40, "records beyond any file"))?;
    let data_end = data_at.checked_add(data_len).ok_or_else(|| fail(48, "records beyond any file"))?;
    let build_ids = read_build_ids(bytes, features, data_end);
    let data_end = usize::try_from(data_end).unwrap_or(usize::MAX);
    if data_start > bytes.len() {
        return Err(fail(40, "the records lie beyond the end of the file"));
    }
    Ok(Layout { attributes, data: data_start..data_end, build_ids })
}

fn read_attributes(bytes: &[u8], at: u64, len: u64, each: u64) -> Result<Attributes> {
    const IDS_LEN: u64 = 16;
    if each <= IDS_LEN || len / each > ATTRIBUTES_MAX {
        return Err(fail(16, format!("{len} bytes of attributes of {each} bytes each")));
    }
    let mut attributes = Attributes::default();
    for index in 0..len / each {
        let start = at.checked_add(index * each).ok_or_else(|| fail(24, "attributes beyond any file"))?;
        let entry = slice(bytes, start, each).ok_or_else(|| fail(start, "the file ends in its attributes"))?;
        let (attribute, _) = Attribute::read(entry, start)?;
        let ids = &entry[(each - IDS_LEN) as usize..];
        let ids =
            slice(bytes, word(ids), word(&ids[8..])).ok_or_else(|| fail(start, "the ids of an event lie beyond the file"))?;
        attributes.push(attribute, ids.chunks_exact(8).map(word).collect());
    }
    if attributes.is_empty() {
        return Err(Error::malformed(FORMAT, "it describes no event"));
    }
    Ok(attributes)
}

/// Sections of features lie behind the records, in the order of their bits. What can't be read there is left out: a build-id is a
/// help, not a need.
fn read_build_ids(bytes: &[u8], features: u64, data_end: u64) -> Vec<(Vec<u8>, String)> {
    let mut build_ids = Vec::new();
    if features & 1 << BUILD_ID_FEATURE == 0 {
        return build_ids;
    }
    let index = u64::from((features & ((1 << BUILD_ID_FEATURE) - 1)).count_ones());
    let Some(section) = data_end.checked_add(index * 16).and_then(|at| slice(bytes, at, 16)) else { return build_ids };
    let mut rest = slice(bytes, word(section), word(&section[8..])).unwrap_or(&[]);
    while rest.len() >= 8 {
        let fields = word(rest);
        let (misc, size) = ((fields >> 32) as u16, (fields >> 48) as usize);
        let Some(body) = rest.get(8..size.max(8)) else { break };
        build_ids.extend(read_build_id(body, misc));
        rest = &rest[size.max(8)..];
    }
    build_ids
}

/// The body of a build-id record: process, build-id, path.
pub(super) fn read_build_id(body: &[u8], misc: u16) -> Option<(Vec<u8>, String)> {
    const HAS_SIZE: u16 = 1 << 15;
    let id = body.get(4..24)?;
    let len = if misc & HAS_SIZE != 0 { usize::from(*body.get(24)?).min(20) } else { 20 };
    Some((id[..len].to_vec(), text(body.get(28..)?)))
}

fn slice(bytes: &[u8], at: u64, len: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(at).ok()?..usize::try_from(at.checked_add(len)?).ok()?)
}
