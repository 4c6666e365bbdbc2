//! `.gcc_except_table`: language-specific data areas (Itanium C++ ABI, exception handling tables).

pub(crate) mod parse;

use crate::address::Va;

/// One row of a call-site table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CallSite {
    pub start: Va,
    pub end: Va,
    pub landing_pad: Option<Va>,
    /// 0: clean-up only; else one plus the offset into the action table.
    pub action: u64,
}

/// One exception table, the one that an FDE names.
#[derive(Clone, Debug)]
pub struct Lsda {
    pub at: Va,
    /// Bytes in the input, from `at`.
    pub len: u64,
    pub call_sites: Vec<CallSite>,
    /// The action table, opaque: its offsets are relative to itself and its filters to the type table.
    pub actions: Vec<u8>,
    /// `DW_EH_PE_*` of the type table.
    pub type_encoding: u8,
    /// The decoded address of each type table entry, index 1 first (the table grows downwards); `None` for a null entry (catch-all).
    pub types: Vec<Option<Va>>,
    /// Exception specifications behind the type table's base, opaque.
    pub specifications: Vec<u8>,
}
