//! Lines and fields of text profiles, with the number of the line for messages.

use crate::error::{Error, Result};
use crate::watch::{SILENT, Watch, Watched};

/// The lines of a file that are not empty, numbered from 1.
pub(crate) struct Lines<'a> {
    len: usize,
    rest: &'a [u8],
    number: usize,
    format: &'static str,
    watched: Watched<'a>,
}

/// One line, taken apart at its spaces.
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    rest: &'a [u8],
    number: usize,
    format: &'static str,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(format: &'static str, bytes: &'a [u8]) -> Self {
        Lines::watched(format, bytes, SILENT)
    }
    pub(crate) fn watched(format: &'static str, bytes: &'a [u8], watch: Watch<'a>) -> Self {
        Lines { len: bytes.len(), rest: bytes, number: 0, format, watched: Watched::new(watch) }
    }
}

impl<'a> Iterator for Lines<'a> {
    type Item = Line<'a>;
    fn next(&mut self) -> Option<Line<'a>> {
        while !self.rest.is_empty() {
            self.watched.at((self.len - self.rest.len()) as u64);
            let end = self.rest.iter().position(|&b| b == b'\n').unwrap_or(self.rest.len());
            let line = &self.rest[..end];
            self.rest = self.rest.get(end + 1..).unwrap_or(&[]);
            self.number += 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if !line.is_empty() {
                return Some(Line { text: line, rest: line, number: self.number, format: self.format });
            }
        }
        None
    }
}

impl<'a> Line<'a> {
    pub(crate) fn fail(&self, why: impl ToString) -> Error {
        Error::Line { format: self.format, line: self.number, why: why.to_string() }
    }
    /// The next field, up to a space that no backslash precedes; empty at the end.
    pub(crate) fn field(&mut self) -> &'a [u8] {
        let start = self.rest.iter().position(|&b| b != b' ').unwrap_or(self.rest.len());
        let rest = &self.rest[start..];
        let mut is_escaped = false;
        let end = rest.iter().position(|&b| {
            let ends = b == b' ' && !is_escaped;
            is_escaped = b == b'\\' && !is_escaped;
            ends
        });
        let (field, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.rest = rest;
        field
    }
    pub(crate) fn is_done(&self) -> bool {
        self.rest.iter().all(|&b| b == b' ')
    }
    pub(crate) fn number(&mut self, what: &str, radix: u32) -> Result<u64> {
        let field = self.field();
        self.parse(field, what, radix)
    }
    pub(crate) fn parse(&self, field: &[u8], what: &str, radix: u32) -> Result<u64> {
        let text = std::str::from_utf8(field).ok().filter(|text| !text.is_empty() && !text.starts_with('+'));
        text.and_then(|text| u64::from_str_radix(text, radix).ok()).ok_or_else(|| {
            self.fail(format!("{what} is expected, not {:?}", String::from_utf8_lossy(&field[..field.len().min(40)])))
        })
    }
    pub(crate) fn finish(&self) -> Result<()> {
        if self.is_done() { Ok(()) } else { Err(self.fail("there is more on the line than belongs there")) }
    }
}
