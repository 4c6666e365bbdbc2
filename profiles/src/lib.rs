//! Profiles: where counters go, the file they live in, and consistent flow from them.

pub mod weights;

pub use weights::Weights;
