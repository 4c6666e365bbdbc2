//! What a register or a frame slot holds: a base, and what is known of the distance from it.

pub mod base;
pub mod interval;
pub mod residue;
pub mod value;

#[cfg(test)]
mod tests;

pub use base::Base;
pub use interval::Interval;
pub use residue::Residues;
pub use value::Value;
