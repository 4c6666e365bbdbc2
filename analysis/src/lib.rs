//! What holds of a lifted program: liveness of flags, values of registers and frame slots, and which memory references can't overlap.

pub mod alias;
pub mod census;
pub mod constants;
pub mod context;
pub mod domain;
pub mod engine;
pub mod flags;
pub mod graph;
pub mod hot;
pub mod library;
mod offers;
pub mod partition;
pub mod procedures;
pub mod values;

pub use flags::FlagLiveness;
