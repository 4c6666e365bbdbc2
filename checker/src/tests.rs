//! The checker against files that correspond, and against files in which one thing is wrong.

mod layout;
mod mutation;

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
