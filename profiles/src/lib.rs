//! Profiles: where counters go, the file they live in, and consistent flow from them.
//!
//! `instrument` chooses the counters and derives what they leave out, `runtime` makes the code that counts, `format` is the file
//! that an instrumented process maps and that profiles are stored in, `attribute` carries a file's counts over to a program,
//! `infer` makes flow consistent. `flow` is the network that all of them agree on. Nothing here does I/O.

pub mod attribute;
pub mod error;
pub mod fdata;
pub mod flow;
pub mod format;
pub mod infer;
pub mod instrument;
pub mod kind;
pub mod outline;
pub mod perf;
pub mod preaggregated;
pub mod records;
pub mod runtime;
pub mod same_file;
pub mod sampled;
pub mod samples;
pub mod stale;
pub mod symbols;
mod text;
pub mod watch;
pub mod weights;
pub mod yaml;

#[cfg(test)]
mod testing;

pub use attribute::{Attribution, Quality, attribute};
pub use error::{Error, Result};
pub use fdata::Fdata;
pub use format::{Descriptor, ProfileFile, identity};
pub use infer::infer;
pub use instrument::{CallSite, Count, CounterPlan, CounterSite, Counts, derive, plan_counters};
pub use kind::{ProfileKind, sniff};
pub use outline::Outline;
pub use runtime::{RuntimeLayout, build_runtime, call_site_snippet, counter_snippet, runtime_len};
pub use same_file::carry_by_address;
pub use sampled::{SampleQuality, weigh};
pub use samples::Samples;
pub use stale::{StaleQuality, carry_over};
pub use symbols::SymbolIndex;
pub use watch::{SILENT, Watch};
pub use weights::Weights;
