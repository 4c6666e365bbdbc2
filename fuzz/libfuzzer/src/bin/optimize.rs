//! The target `optimize` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("optimize");
