//! What holds of a lifted program: liveness of flags, values of registers and frame slots, and which memory references can't overlap.

pub mod alias;
pub mod census;
pub mod constants;
pub mod context;
mod dependents;
pub mod domain;
pub mod engine;
pub mod flags;
pub mod graph;
pub mod hot;
pub mod library;
pub mod liveness;
mod offers;
pub mod partition;
pub mod procedures;
#[cfg(test)]
mod testing;
pub mod traffic;
pub mod values;

pub use flags::FlagLiveness;
