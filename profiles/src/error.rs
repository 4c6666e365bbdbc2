//! Why a profile can't be read, matched or merged, and why an insertion can't be made.

use lifter::address::Va;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not a relift profile: {0}")]
    NotAProfile(&'static str),
    #[error("the profile has version {found}; this relift reads versions up to {expected}")]
    Version { found: u32, expected: u32 },
    #[error("malformed profile: {what}: {why}")]
    Malformed { what: &'static str, why: String },
    #[error("{format}, line {line}: {why}")]
    Line { format: &'static str, line: usize, why: String },
    #[error("{format}, at byte {offset}: {why}")]
    Byte { format: &'static str, offset: u64, why: String },
    #[error("no kind of profile that is known: neither relift's, perf's nor BOLT's")]
    UnknownFormat,
    #[error("the profile is still being created: its header has not been written yet")]
    NotWrittenYet,
    #[error("profile of another binary: none of its {functions} functions is in this program")]
    AnotherBinary { functions: usize },
    #[error("profiles {first} and {other} come from different instrumented programs and can't be added up")]
    DifferentPlans { first: usize, other: usize },
    #[error("nothing to merge")]
    NothingToMerge,
    #[error("the runtime at {at} does not reach {target} with a 32-bit displacement")]
    OutOfReach { at: Va, target: Va },
    #[error("{what} at {at} is not a multiple of the page size")]
    NotPageAligned { what: &'static str, at: Va },
    #[error("the instruction at {at} is no indirect call or jump whose target can be recorded")]
    NotRecordable { at: Va },
    #[error("the runtime at {at} can't be encoded: {why}")]
    Encode { at: Va, why: String },
}

impl Error {
    pub(crate) fn malformed(what: &'static str, why: impl ToString) -> Self {
        Error::Malformed { what, why: why.to_string() }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
