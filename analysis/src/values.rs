//! What registers and frame slots hold, function by function: decoded code, states, transfer, calls, and the fixpoint over a function's blocks.

pub mod build;
pub mod calls;
pub mod code;
pub mod fixpoint;
pub mod memory;
pub mod state;
pub mod summary;
pub mod transfer;
mod translate;

pub use build::{Surroundings, build};
pub use fixpoint::{Observer, Solution, solve, walk};
pub use state::{Effects, State};
pub use summary::Summary;
pub use translate::touches_memory;
