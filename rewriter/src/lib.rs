//! From a program and what is known of it to the output file: plan, layout, materialize, encode, relink.

pub mod edit;
pub mod encode;
pub mod error;
pub mod materialize;
pub mod plan;
pub mod relink;
pub mod terminator;

pub use error::{Error, Result};
