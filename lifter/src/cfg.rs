//! Control flow: what lies behind indirect jumps, and the blocks of every function.
//!
//! `body` is a cluster decoded for analysis, `values` asks what a register may hold there and `ranges` between which bounds, `tables` turns the answer at each
//! indirect jump into a table, a jump of the closed set, or a reason to pin; `escape` follows code addresses that are computed; `build` cuts the blocks once all leaders are known.

pub(crate) mod body;
pub(crate) mod build;
pub(crate) mod escape;
pub(crate) mod interval;
pub(crate) mod ranges;
pub(crate) mod tables;
pub(crate) mod thunks;
pub(crate) mod values;
