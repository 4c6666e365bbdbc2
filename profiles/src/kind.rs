//! Which format a profile file is in, by its first bytes.

use crate::error::{Error, Result};
use crate::format::MAGIC;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ProfileKind {
    /// What an instrumented program writes.
    Relift,
    /// `perf record`'s output.
    PerfData,
    Fdata,
    Yaml,
    Preaggregated,
}

impl ProfileKind {
    pub fn name(self) -> &'static str {
        match self {
            ProfileKind::Relift => "relift",
            ProfileKind::PerfData => "perf.data",
            ProfileKind::Fdata => "fdata",
            ProfileKind::Yaml => "yaml",
            ProfileKind::Preaggregated => "preaggregated",
        }
    }
}

/// The format of a file. A file of zeros is one of relift's whose program has not begun to count.
pub fn sniff(bytes: &[u8]) -> Result<ProfileKind> {
    let start = &bytes[..bytes.len().min(256)];
    if start.starts_with(&MAGIC) || start.starts_with(&[0; 8]) || start.is_empty() {
        return Ok(ProfileKind::Relift);
    }
    if start.starts_with(b"PERFILE2") || start.starts_with(b"2ELIFREP") || start.starts_with(b"PERFFILE") {
        return Ok(ProfileKind::PerfData);
    }
    let first = start.split(|&b| b == b'\n').find(|line| !line.is_empty()).unwrap_or(&[]);
    match first {
        [b'-', b'-', b'-', ..] => Ok(ProfileKind::Yaml),
        b"header:" => Ok(ProfileKind::Yaml),
        [b'0'..=b'5', b' ', ..] => Ok(ProfileKind::Fdata),
        line if line.starts_with(b"boltedcollection") || line.starts_with(b"no_lbr") => Ok(ProfileKind::Fdata),
        [b'B' | b'F' | b'f' | b'r' | b'T' | b'R' | b'S' | b'E', b' ', ..] => Ok(ProfileKind::Preaggregated),
        _ => Err(Error::UnknownFormat),
    }
}
