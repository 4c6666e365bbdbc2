//! From a program and what is known of it to the output file: plan, layout, materialize, encode, relink.

pub mod dyno;
pub mod layout;
pub mod plan;
pub mod terminator;

#[cfg(test)]
mod testing;
