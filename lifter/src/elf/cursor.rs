//! Reads the little-endian, LEB128 and `DW_EH_PE_*` fields of unwind tables at known addresses.
//!
//! Every read is checked against the bytes at hand; a failed read gives the reason and no position is ever moved backwards, so a
//! loop that reads at least one byte per round ends (LSB 5.0 §10.5.1 for the pointer encodings).

use gimli::{EndianSlice, LittleEndian, Reader};

use crate::address::Va;

/// Why a table is not understood; the caller adds where.
pub(crate) type Problem = &'static str;

const TRUNCATED: Problem = "reaches past the end of its section";

/// A position in bytes that are loaded at an address.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Cursor<'a> {
    rest: EndianSlice<'a, LittleEndian>,
    at: Va,
    is_position_independent: bool,
}

impl<'a> Cursor<'a> {
    /// `at` is the address of the first byte. In a position-independent file an absolute pointer is what a relocation makes of it, so
    /// the bytes say nothing and the read fails.
    pub(crate) fn new(bytes: &'a [u8], at: Va, is_position_independent: bool) -> Self {
        Self { rest: EndianSlice::new(bytes, LittleEndian), at, is_position_independent }
    }
    pub(crate) fn va(&self) -> Va {
        self.at
    }
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest.slice()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn advance<T>(&mut self, read: impl FnOnce(&mut EndianSlice<'a, LittleEndian>) -> gimli::Result<T>) -> Result<T, Problem> {
        let before = self.rest.len();
        let value = read(&mut self.rest).map_err(|_| TRUNCATED)?;
        self.at = self.at.offset((before - self.rest.len()) as i64);
        Ok(value)
    }
    pub(crate) fn u8(&mut self) -> Result<u8, Problem> {
        self.advance(Reader::read_u8)
    }
    pub(crate) fn u16(&mut self) -> Result<u16, Problem> {
        self.advance(Reader::read_u16)
    }
    pub(crate) fn u32(&mut self) -> Result<u32, Problem> {
        self.advance(Reader::read_u32)
    }
    pub(crate) fn u64(&mut self) -> Result<u64, Problem> {
        self.advance(Reader::read_u64)
    }
    pub(crate) fn uleb(&mut self) -> Result<u64, Problem> {
        self.advance(Reader::read_uleb128)
    }
    pub(crate) fn sleb(&mut self) -> Result<i64, Problem> {
        self.advance(Reader::read_sleb128)
    }
    pub(crate) fn take(&mut self, len: u64) -> Result<&'a [u8], Problem> {
        let len = usize::try_from(len).map_err(|_| TRUNCATED)?;
        Ok(self.advance(|r| r.split(len))?.slice())
    }
    /// A cursor over the next `len` bytes, which this one skips.
    pub(crate) fn split(&mut self, len: u64) -> Result<Cursor<'a>, Problem> {
        let at = self.at;
        Ok(Cursor::new(self.take(len)?, at, self.is_position_independent))
    }
    /// Bytes up to a zero, which is skipped too.
    pub(crate) fn zero_terminated(&mut self) -> Result<&'a [u8], Problem> {
        Ok(self.advance(Reader::read_null_terminated_slice)?.slice())
    }

    /// The number in the format (the low four bits) of a pointer encoding, as two's complement.
    pub(crate) fn formatted(&mut self, encoding: u8) -> Result<u64, Problem> {
        match gimli::DwEhPe(encoding & 0x0f) {
            gimli::DW_EH_PE_absptr | gimli::DW_EH_PE_udata8 | gimli::DW_EH_PE_sdata8 => self.u64(),
            gimli::DW_EH_PE_uleb128 => self.uleb(),
            gimli::DW_EH_PE_udata2 => self.u16().map(u64::from),
            gimli::DW_EH_PE_udata4 => self.u32().map(u64::from),
            gimli::DW_EH_PE_sleb128 => self.sleb().map(|v| v as u64),
            gimli::DW_EH_PE_sdata2 => self.u16().map(|v| v as i16 as u64),
            gimli::DW_EH_PE_sdata4 => self.u32().map(|v| v as i32 as u64),
            _ => Err("unknown pointer format"),
        }
    }
    /// The address that an encoded pointer names, before any indirection; `None` for a null pointer.
    pub(crate) fn pointer(&mut self, encoding: u8) -> Result<Option<Va>, Problem> {
        let field = self.at;
        let base = match gimli::DwEhPe(encoding & 0x70) {
            gimli::DW_EH_PE_absptr if self.is_position_independent => {
                return Err("an absolute pointer in a position-independent file");
            }
            gimli::DW_EH_PE_absptr => Va(0),
            gimli::DW_EH_PE_pcrel => field,
            _ => return Err("a pointer that is neither absolute nor relative to its place"),
        };
        let value = self.formatted(encoding)?;
        Ok((value != 0).then(|| base.offset(value as i64)))
    }
}
