//! Damaged and hostile input: the fuzz targets as ordinary functions.
//!
//! **Problem.** relift reads files that it did not make. Whatever they hold, it must not crash, not run for ever and not take memory beyond
//! a small multiple of the file; it says what is wrong, or its output passes the independent checker.
//!
//! **Method.** Random bytes never get past the first check of a format, so an input is not a file but a recipe: a sound file
//! ([`seeds`]) and a list of edits, each of which means something at its place ([`edits`]): a field moved a little, a reference led
//! elsewhere, a table entry copied over another. Any bytes are a recipe, so that a coverage-guided fuzzer may mutate them as it likes; a
//! mutator that knows the records comes with them ([`random`]). Each target ([`targets`]) makes the file, runs a part
//! of relift on it and panics if what came out is wrong. [`limits`] bounds memory and time.
//!
//! The same functions run under libFuzzer (`fuzz/libfuzzer`), and in the test command over the kept corpus and a fixed number of
//! mutations (`fuzz/tests/smoke.rs`).

pub mod corpus;
pub mod edits;
pub mod layout;
pub mod limits;
pub mod random;
pub mod seeds;
pub mod targets;
