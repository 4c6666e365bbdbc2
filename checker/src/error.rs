//! What keeps the checker from comparing at all.

use thiserror::Error;

/// One of the files cannot be read.
#[derive(Debug, Error)]
pub enum Error {
    #[error("the input cannot be read: {0}")]
    Input(FileError),
    #[error("the output cannot be read: {0}")]
    Output(FileError),
    #[error("the input's debug file cannot be read: {0}")]
    InputDebugFile(FileError),
    #[error("the output's debug file cannot be read: {0}")]
    OutputDebugFile(FileError),
}

/// Why a file cannot be read.
#[derive(Debug, Error)]
pub enum FileError {
    #[error("malformed ELF: {0}")]
    Malformed(#[from] goblin::error::Error),
    #[error("not a 64-bit little-endian x86-64 ELF file (class {class}, machine {machine})")]
    NotX86_64 { class: u8, machine: u16 },
    #[error("segment {index} reaches past the end of the file")]
    SegmentOutsideFile { index: usize },
    #[error("{size} bytes of executable segments: more than the checker can index")]
    TooMuchCode { size: u64 },
    #[error("unwind table entry at {offset:#x} of the table: {reason}")]
    Unwind { offset: usize, reason: &'static str },
    #[error("the disassembler cannot be started: {0}")]
    Disassembler(String),
}
