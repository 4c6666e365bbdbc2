//! From a program and what is known of it to the output file: plan, layout, materialize, encode, relink.

pub mod plan;
pub mod relink;
