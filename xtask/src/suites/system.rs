//! Every program and library of the system rewritten, and put in its place at once.
//!
//! **Problem.** A suite proves the files that it relinks, beside a system that is as it was. A user's loader, C library, compilers, shells and tools
//! may all be rewritten, and call each other.
//!
//! **Method.** The ELF files below `/usr` are rewritten into a folder of the same shape, which is laid over `/usr`, read only, in the namespace of the
//! suite's run. The run of the originals has an empty folder laid over it, so that both find `/usr` read only. What relift refuses stays what it
//! is, and is counted by reason.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::Context;
use super::relink;
use crate::shell::{self, Result};
use crate::stock::elf;
use crate::stock::report::Outcome;

/// What is rewritten.
pub(crate) const ROOT: &str = "/usr";
/// Debug files, which nobody runs.
const LEFT_OUT: &str = "/usr/lib/debug";

/// The system's files, rewritten.
pub(crate) struct System {
    /// In the shape of [`ROOT`].
    rewritten: PathBuf,
    nothing: PathBuf,
    max_megabytes: u64,
    num_files: usize,
    bytes: (u64, u64),
    refusals: BTreeMap<String, usize>,
    /// Violations and crashes.
    faults: Vec<String>,
}

impl System {
    /// Rewrites all files of at most so many bytes × 10⁶, on all processors.
    pub(super) fn rewrite(context: &Context, max_megabytes: u64) -> Result<System> {
        let layer = |name: &str| context.directory.join(name).join("usr");
        let mut system = System {
            rewritten: layer("system"),
            nothing: layer("nothing"),
            max_megabytes,
            num_files: 0,
            bytes: (0, 0),
            refusals: BTreeMap::new(),
            faults: Vec::new(),
        };
        let _absent = fs::remove_dir_all(&system.rewritten);
        shell::create_folder(&system.rewritten)?;
        shell::create_folder(&system.nothing)?;
        let mut files = Vec::new();
        find(Path::new(ROOT), &mut files);
        files.retain(|file| file.size <= max_megabytes * 1_000_000);
        shell::say(&format!("{} programs and libraries below {ROOT}", files.len()));
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let outcomes = shell::in_parallel(&files, workers, |_, _, file| system.rewrite_one(context, &file.path));
        for (file, (size, outcome)) in files.iter().zip(outcomes) {
            system.note(file, size, outcome);
        }
        shell::say(&format!("    {}", system.summary()));
        Ok(system)
    }

    fn rewrite_one(&self, context: &Context, input: &Path) -> (u64, Outcome) {
        let Ok(below) = input.strip_prefix(ROOT) else { return (0, Outcome::Crashed("not below the root".into())) };
        let output = self.rewritten.join(below);
        let made = output.parent().map_or(Ok(()), shell::create_folder);
        match made.and_then(|()| relink::run(context, input, &output, context.check, &["--threads", "1"])) {
            Ok((outcome, _)) => (fs::metadata(&output).map_or(0, |metadata| metadata.len()), outcome),
            Err(problem) => (0, Outcome::Crashed(problem)),
        }
    }

    fn note(&mut self, file: &elf::File, size: u64, outcome: Outcome) {
        self.num_files += 1;
        match outcome {
            Outcome::Relinked => {
                self.bytes.0 += file.size;
                self.bytes.1 += size;
            }
            // Up to where it says which.
            Outcome::Refused(why) => {
                *self.refusals.entry(why.split(" at 0x").next().unwrap_or_default().to_owned()).or_default() += 1
            }
            Outcome::Violation(what) => self.faults.push(format!("{}: violation: {what}", file.path.display())),
            Outcome::Crashed(how) => self.faults.push(format!("{}: relift crashed: {how}", file.path.display())),
        }
    }

    /// What is laid over [`ROOT`] for a run.
    pub(super) fn layer(&self, is_rewritten: bool) -> &Path {
        if is_rewritten { &self.rewritten } else { &self.nothing }
    }

    pub(super) fn faults(&self) -> &[String] {
        &self.faults
    }

    /// The option that asks for it.
    pub(super) fn argument(&self) -> String {
        format!(" --whole-system {}", self.max_megabytes)
    }

    /// One line.
    pub(super) fn summary(&self) -> String {
        let num_refused: usize = self.refusals.values().sum();
        let reasons: Vec<String> = self.refusals.iter().map(|(why, count)| format!("{count} × {why}")).collect();
        let num_left = num_refused + self.faults.len();
        let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
        format!(
            "all in their places at once: {} of {} programs and libraries below {ROOT}, {} bytes that became {}; {num_refused} refused{reasons}, {} faults",
            self.num_files - num_left,
            self.num_files,
            self.bytes.0,
            self.bytes.1,
            self.faults.len(),
        )
    }
}

/// The ELF files below a folder, behind no link.
fn find(folder: &Path, files: &mut Vec<elf::File>) {
    // What can't be read is no one's to rewrite.
    let Ok(entries) = shell::sorted_entries(folder) else { return };
    for path in entries {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() && path != Path::new(LEFT_OUT) {
            find(&path, files);
        } else if metadata.is_file() {
            files.extend(elf::look_at(&path));
        }
    }
}
