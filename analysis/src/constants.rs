//! Constants that callers pass, followed through the program context by context: what a procedure could be where its arguments are known.
//!
//! **Problem.** Linked code is full of functions that are called with a mode, a format or a flag that the caller knows. Which calls those are depends on the way that leads there, so the question
//! is asked for contexts, rows of direct calls and tail calls, and answered best first (`explore`).
//!
//! **Method.** From what is known at a procedure's entry its values are computed, with only the ways taken into account that can be taken then (`solve`, `evaluate`), on the states of the
//! analysis of values. What is left of the procedure when what is decided, computed and unused goes (`simplify`) tells what the context is worth: the instructions that are
//! gone, weighted by the profile. A context in which arguments become constants and nothing else is worth nothing.
//!
//! **What is taken for granted** is what the analysis of values takes (ARCHITECTURE.md), and that constant memory (`solve`) stays what the file has there.

mod evaluate;
pub mod explore;
mod known;
pub mod outcome;
mod prepared;
pub mod simplify;
mod solve;
pub mod tracked;
pub mod uses;

pub use explore::{CaseData, ContextId, Exploration, FoundContext};
pub use known::{Case, Constant, Facts};
pub use outcome::{Outcome, Place, Uncopied};
pub use simplify::{Fate, Simplified};
pub use tracked::{Leaving, Tracked, Unfit};
pub use uses::EntryUses;
