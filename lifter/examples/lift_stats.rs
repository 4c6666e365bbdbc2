//! Lifts each file named on the command line and prints how much of it may move, what is pinned and why, and how long it took.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::Instant;

use lifter::elf::Unwind;
use lifter::ir::{BlockData, PinReason, Program, StopKind, TableBound, Terminator};
use lifter::{Image, lift};

fn main() {
    for path in std::env::args().skip(1) {
        match report(&path) {
            Ok(line) => println!("{path}: {line}"),
            Err(error) => println!("{path}: {error}"),
        }
    }
}

fn report(path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(path)?;
    let start = Instant::now();
    let image = Image::parse(&bytes)?;
    let unwind = Unwind::parse(&image)?;
    let parsed = start.elapsed();
    let program = lift(&image, unwind)?;
    let elapsed = start.elapsed();
    let violations = lifter::verify::verify(&image, &program);
    for violation in violations.iter().take(5) {
        println!("  violation: {violation}");
    }
    let mut pins: BTreeMap<PinReason, (usize, u64)> = BTreeMap::new();
    let (mut moved, mut total) = (0, 0);
    for (func, data) in program.funcs.iter() {
        // Bytes of sections that the linker made are not text.
        if data.pin == Some(PinReason::LinkerSection) {
            continue;
        }
        let size = program.func_size(func);
        total += size;
        match data.pin {
            None => moved += size,
            Some(reason) => {
                let entry = pins.entry(reason).or_default();
                entry.0 += 1;
                entry.1 += size;
            }
        }
    }
    let is_unresolved = |b: &&BlockData| {
        b.terminator == Terminator::Stop(StopKind::Unknown) && program.funcs[b.func].pin != Some(PinReason::NoBounds)
    };
    for block in program.blocks.values().filter(is_unresolved).take(60) {
        println!("  unresolved: jump that ends at {} in {}", block.end(), block.func);
    }
    let pins: Vec<String> = pins.iter().map(|(r, (count, size))| format!("{} {count}/{size}B", r.name())).collect();
    Ok(format!(
        "{:.2}% of {total} moved, {} funcs {} blocks {} tables ({} proven, {} exclusive) {} unknown stops {} slots {:?}; pins [{}]; parse {parsed:.1?} all {elapsed:.1?}; {} violations",
        100.0 * moved as f64 / total.max(1) as f64,
        program.funcs.len(),
        program.blocks.len(),
        program.tables.len(),
        program.tables.values().filter(|t| t.bound == TableBound::Proven).count(),
        program.tables.values().filter(|t| t.is_exclusive).count(),
        unknown_stops(&program),
        program.slots.len(),
        program.mode,
        pins.join(", "),
        violations.len(),
    ))
}

fn unknown_stops(program: &Program) -> usize {
    program.blocks.values().filter(|b| b.terminator == Terminator::Stop(StopKind::Unknown)).count()
}
