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
    #[error("a debug file of another program: its build id is {debug_file}, the program's is {program}")]
    BuildIdsDiffer { program: String, debug_file: String },
    #[error("a debug file of another program: {section} is not the same in both")]
    LayoutsDiffer { section: String },
    #[error("a debug file without debug information and symbols")]
    NoDebugInformation,
    #[error("split debug information: it has a section {section}")]
    SplitDebugInformation { section: String },
}

impl Error {
    pub(crate) fn malformed(what: impl Into<String>, why: impl ToString) -> Self {
        Error::Malformed { what: what.into(), why: why.to_string() }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
