//! From a program and what is known of it to the output file: plan, layout, materialize, encode, relink.

pub mod clones;
pub mod debug;
pub mod dyno;
pub mod edit;
pub mod encode;
pub mod error;
pub mod fold;
pub mod instrument;
pub mod layout;
pub mod materialize;
pub mod plan;
pub mod relink;
pub mod shrink;
pub mod specialize;
pub mod terminator;
pub mod transform;

#[cfg(test)]
mod testing;

pub use error::{Error, Result};
