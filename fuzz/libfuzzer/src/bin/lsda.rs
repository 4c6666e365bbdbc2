//! The target `lsda` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("lsda");
