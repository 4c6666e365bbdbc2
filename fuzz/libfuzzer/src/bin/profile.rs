//! The target `profile` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("profile");
