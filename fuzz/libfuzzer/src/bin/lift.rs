//! The target `lift` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("lift");
