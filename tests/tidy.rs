//! The source tree itself: what every Rust file of the project keeps to.

use std::fs;
use std::path::{Path, PathBuf};

/// The longest that a file may be, in lines.
const LINES_MAX: usize = 800;

const FOLDERS: [&str; 10] = ["src", "fuzz", "lifter", "analysis", "profiles", "rewriter", "checker", "xtask", "tests", "benches"];

/// Written apart, so that this file does not contain them.
const FORBIDDEN: [(&str, &str); 5] = [("TO", "DO"), ("FIX", "ME"), ("#[ig", "nore"), ("todo", "!("), ("dbg", "!(")];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.expect("the source tree can be listed").path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Fails with the list of all files for which `problem` finds one, given the path and the text.
fn no_file_has(problem: impl Fn(&Path, &str) -> Option<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in FOLDERS {
        rust_files(&root.join(folder), &mut files);
    }
    files.sort();
    assert!(files.len() > 20, "only {} source files were found", files.len());
    let mut problems = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()));
        if let Some(what) = problem(&file, &text) {
            problems.push(format!("{}: {what}", file.strip_prefix(root).unwrap_or(&file).display()));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_file_says_first_what_it_is_for() {
    // A file of unit tests belongs to the module that it is named below.
    let documented = |file: &Path, text: &str| file.ends_with("tests.rs") || text.starts_with("//!");
    no_file_has(|file, text| (!documented(file, text)).then(|| "does not begin with //!".into()));
}

#[test]
fn no_file_is_too_long() {
    no_file_has(|_, text| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{lines} lines, more than {LINES_MAX}"))
    });
}

#[test]
fn nothing_is_left_for_later() {
    no_file_has(|_, text| {
        FORBIDDEN
            .iter()
            .map(|(left, right)| format!("{left}{right}"))
            .find(|word| text.contains(word))
            .map(|word| format!("contains {word}"))
    });
}

#[test]
fn the_texts_name_no_place_that_is_yet_to_be_filled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["README.md", "BENCHMARKING.md", "CHANGELOG.md", "ARCHITECTURE.md", "fixtures/README.md"] {
        let text = fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("cannot read {name}: {error}"));
        if let Some(line) = text.lines().find(|line| line.contains("@@")) {
            panic!("{name} still says: {line}");
        }
    }
}
