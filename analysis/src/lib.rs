//! What holds of a lifted program: graphs and liveness.

pub mod flags;

pub use flags::FlagLiveness;
