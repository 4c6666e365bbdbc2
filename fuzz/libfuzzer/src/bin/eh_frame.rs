//! The target `eh_frame` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("eh_frame");
