//! Where the code is: every byte of every executable section is given to a unit, to padding, or to a linker-made stub.
//!
//! **Method.** Unwind entries give the bounds of nearly all compiled code (a linear decode of every entry of a whole Linux
//! distribution meets no invalid instruction); function symbols give some more; what is left between them is a gap. Each unit is decoded once, linearly
//! and in parallel ([`survey`]), and only what it names outside itself is kept. Units that only make sense together are then joined
//! ([`clusters`]).
//!
//! **Invariants.** Units are disjoint, ascending by address, each within one section. A unit whose decode meets anything
//! but whole instructions is opaque: it stays byte for byte, and everything that it may name stays too.

pub(crate) mod clusters;
pub(crate) mod code_model;
pub(crate) mod jump_runs;
pub(crate) mod names;
pub(crate) mod no_return;
pub(crate) mod reach;
pub(crate) mod registered;
pub(crate) mod replaced;
pub(crate) mod restartable;
pub(crate) mod run_on;
pub(crate) mod shared_entries;
pub(crate) mod split_stack;
pub(crate) mod stubs;
pub(crate) mod survey;
pub(crate) mod units;
pub(crate) mod unseen;
