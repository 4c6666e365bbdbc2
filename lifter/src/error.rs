//! Why a file is refused. A function that is not understood is never an error: it is pinned (see `ir::PinReason`).

use crate::address::Va;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not an ELF file: {0}")]
    NotElf(&'static str),
    #[error("not an x86-64 ELF file: {0}")]
    WrongMachine(String),
    #[error("not a linked executable or shared object (e_type is {0})")]
    WrongType(u16),
    #[error("malformed ELF file: {what}: {why}")]
    Malformed { what: String, why: String },
    #[error("malformed .eh_frame at {at}: {why}")]
    MalformedUnwind { at: Va, why: String },
    #[error("unsupported file: {0}")]
    Unsupported(String),
}

impl Error {
    pub(crate) fn malformed(what: impl Into<String>, why: impl ToString) -> Self {
        Error::Malformed { what: what.into(), why: why.to_string() }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
