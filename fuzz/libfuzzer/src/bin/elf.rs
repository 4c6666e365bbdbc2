//! The target `elf` under libFuzzer.
#![no_main]

fuzz_libfuzzer::fuzz_program!("elf");
