//! The target `checker` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("checker");
