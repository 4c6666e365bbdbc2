//! The checker against files that correspond, and against files in which one thing is wrong.

mod aligned;
mod arrays;
mod behind_calls;
mod beside_tables;
mod beyond_the_end;
mod bounds;
mod calls;
mod calls_through_words;
mod changed;
mod clones;
mod code_model;
mod contexts;
mod copies;
mod copies_and_calls;
mod counted;
mod dead;
mod debug;
mod distances;
mod doubtful;
mod dynamic_symbols;
mod fixed;
mod fold;
mod followed;
mod forms;
mod found_by_offset;
mod given;
mod known_to_the_kernel;
mod late;
mod layout;
mod liveness;
mod mutation;
mod named_below;
mod outlined;
mod parts;
mod places;
mod proofs;
mod registered;
mod rows;
mod running_on;
mod shared_entries;
mod start;
mod stays;
mod subroutines;
mod tables_of_relocations;
mod tails;
mod text_relocations;
mod told;
mod tracking;
mod undecoded;
mod undescribed;
mod unloaded;
mod witness;

use super::*;

/// A stock program, or `None` where it is not installed; the caller names what it skipped.
fn stock(path: &str) -> Option<Vec<u8>> {
    let file = std::fs::read(path).ok();
    if file.is_none() {
        skipped(path, "not installed");
    }
    file
}

#[allow(clippy::print_stderr)]
fn skipped(what: &str, why: &str) {
    eprintln!("skipped: {what}: {why}");
}

fn kinds(report: &Report) -> Vec<ViolationKind> {
    let mut kinds: Vec<_> = report.violations.iter().map(|violation| violation.kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

#[test]
fn a_program_corresponds_to_itself() {
    let programs = ["xz", "gzip", "bzip2", "ls", "bash", "perl", "git", "as", "ld.gold"].map(|name| format!("/usr/bin/{name}"));
    let libraries = ["libstdc++.so.6", "libc.so.6"].map(|name| format!("/usr/lib/x86_64-linux-gnu/{name}"));
    for path in programs.iter().chain(&libraries) {
        let Some(file) = stock(path) else { continue };
        let report = check(&file, &file).unwrap();
        assert!(report.is_ok(), "{path}:\n{}", report.summary(10));
        assert!(report.stats.identical_bytes * 100 <= report.stats.code_bytes, "{path}: {:?}", report.stats);
    }
}

#[test]
fn a_file_that_is_not_elf_is_an_error_and_never_a_panic() {
    let Some(file) = stock("/usr/bin/bzip2") else { return };
    assert!(matches!(check(b"no program", &file), Err(Error::Input(_))));
    assert!(matches!(check(&file, b""), Err(Error::Output(_))));
    for size in (0..file.len()).step_by(file.len() / 97) {
        if let Ok(report) = check(&file, &file[..size]) {
            assert!(!report.is_ok(), "cut to {size} bytes");
        }
    }
}

#[test]
fn a_damaged_file_is_never_a_panic() {
    let Some(file) = stock("/usr/bin/bzip2") else { return };
    let image = Image::parse(&file).unwrap();
    // Headers, tables and unwind data; code is damaged elsewhere.
    let mut areas = vec![(0, 4096), (file.len() - 2048, file.len())];
    for name in [".eh_frame", ".eh_frame_hdr", ".dynamic", ".dynsym", ".rela.dyn"] {
        let section = image.section(name).unwrap();
        areas.push((section.offset as usize, (section.offset + section.size) as usize));
    }
    let mut random = 7u64;
    for round in 0..400 {
        let mut damaged = file.clone();
        for _ in 0..1 + round % 3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (start, end) = areas[(random >> 40) as usize % areas.len()];
            let place = start + (random >> 20) as usize % (end - start);
            damaged[place] = if random >> 60 & 1 == 0 { 0xff } else { (random >> 52) as u8 };
        }
        // Whatever it says, it says it.
        let _ = check(&file, &damaged);
        let _ = check(&damaged, &file);
    }
}
