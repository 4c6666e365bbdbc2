//! From the bytes of a linked file to a [`ir::Program`]: what the code is, who names whom, and how sure that is.
//!
//! `elf` reads the file, `discover` finds the functions, `cfg` cuts them into blocks and resolves jump tables, `symbolize` turns
//! addresses into references with their evidence, `verify` states and checks the invariants. Nothing here knows of profiles or plans.

pub mod address;
pub mod address_index;
mod cfg;
mod discover;
pub mod elf;
pub mod entity;
pub mod error;
pub mod ground_truth;
pub mod ir;
pub mod lift;
pub mod split;
mod symbolize;
pub mod verify;
pub mod x86;

pub use address::{FileOffset, Va};
pub use elf::Image;
pub use error::{Error, Result};
pub use lift::lift;
