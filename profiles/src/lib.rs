//! Profiles: where counters go, the file they live in, and consistent flow from them.
//!
//! `instrument` chooses the counters and derives what they leave out, `runtime` makes the code that counts, `format` is the file that an
//! instrumented process maps and that profiles are stored in, `attribute` carries a file's counts over to a program, `infer` makes
//! flow consistent. `flow` is the network that all of them agree on. Nothing here does I/O.

pub mod error;
pub mod flow;

pub mod infer;
pub mod instrument;

pub mod weights;

#[cfg(test)]
mod testing;

pub use error::{Error, Result};
pub use infer::infer;
pub use instrument::{CallSite, CounterPlan, CounterSite, Counts, derive, plan_counters};
pub use weights::Weights;
