//! Running a workload and seeing all that it did.
//!
//! A workload is a shell script `fixtures/workloads/<program>/<name>.sh` that is given the program as its only argument. It runs in
//! an empty folder, with a fixed environment, and with the program always at the same path, since programs print the path they were
//! started by. What counts as its behavior is standard output, standard error, exit status or signal, and every file that it left.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::shell::{self, Result};

/// How long a workload may take before it counts as hung.
const TIME_LIMIT: Duration = Duration::from_secs(300);

/// One workload of a program.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// `train`, `test1`, …
    pub(crate) name: String,
    pub(crate) script: PathBuf,
}

/// All that a workload did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Behavior {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    end: String,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Behavior {
    /// The first thing in which `other` differs, in words.
    pub(crate) fn difference(&self, other: &Behavior) -> Option<String> {
        if self.end != other.end {
            return Some(format!("ends with {} in place of {}", other.end, self.end));
        }
        for (stream, expected, found) in [("output", &self.stdout, &other.stdout), ("error output", &self.stderr, &other.stderr)]
        {
            if expected != found {
                return Some(format!("standard {stream} differs: {}", first_differing_line(expected, found)));
            }
        }
        if self.files == other.files {
            return None;
        }
        let differs = |path: &&PathBuf| self.files.get(*path) != other.files.get(*path);
        let path = self.files.keys().chain(other.files.keys()).find(differs);
        Some(format!("the file {} differs", path.map(|path| path.display().to_string()).unwrap_or_default()))
    }
}

/// Shows the first line that is not the same.
fn first_differing_line(expected: &[u8], found: &[u8]) -> String {
    let (expected, found) = (String::from_utf8_lossy(expected), String::from_utf8_lossy(found));
    let (mut left, mut right) = (expected.lines(), found.lines());
    for number in 1.. {
        match (left.next(), right.next()) {
            (None, None) => break,
            (wanted, got) if wanted != got => {
                return format!("line {number} is {:?} in place of {:?}", got.unwrap_or("missing"), wanted.unwrap_or("missing"));
            }
            _ => {}
        }
    }
    "in the ends of lines".into()
}

/// The workloads of `program`: the training one first.
pub(crate) fn workloads_of(program: &str) -> Result<Vec<Workload>> {
    let folder = crate::repository_root().join("fixtures/workloads").join(program);
    let mut found = Vec::new();
    for script in shell::sorted_entries(&folder)? {
        let name = script.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if script.extension().is_some_and(|extension| extension == "sh") && (name == "train" || name.starts_with("test")) {
            found.push(Workload { name, script });
        }
    }
    found.sort_by_key(|workload| (workload.name != "train", workload.name.clone()));
    if found.first().is_none_or(|workload| workload.name != "train") {
        return Err(format!("{} has no train.sh", folder.display()));
    }
    Ok(found)
}

/// A command that runs in the sandbox `folder/work`, which is emptied, with the fixed environment.
pub(crate) fn sandboxed(command: &str, folder: &Path) -> Result<Command> {
    let work = folder.join("work");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|error| format!("cannot empty {}: {error}", work.display()))?;
    }
    shell::create_folder(&work)?;
    let mut command = Command::new(command);
    command.current_dir(&work).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", &work);
    command.env("LC_ALL", "C").env("TZ", "UTC").stdin(Stdio::null());
    Ok(command)
}

/// Runs a workload with `program` (the file `binary`) in the sandbox `folder`.
pub(crate) fn observe(workload: &Workload, program: &str, binary: &Path, folder: &Path) -> Result<Behavior> {
    let bin = folder.join("bin");
    shell::create_folder(&bin)?;
    let placed = bin.join(program);
    shell::copy_program(binary, &placed)?;
    let (stdout, stderr) = (folder.join("stdout"), folder.join("stderr"));
    let create = |path: &Path| File::create(path).map_err(|error| format!("cannot make {}: {error}", path.display()));
    let mut command = sandboxed("sh", folder)?;
    command.arg(&workload.script).arg(&placed).stdout(create(&stdout)?).stderr(create(&stderr)?);
    let end = run_limited(&mut command)?;
    let mut files = BTreeMap::new();
    let work = folder.join("work");
    collect_files(&work, &work, &mut files)?;
    Ok(Behavior { stdout: shell::read_file(&stdout)?, stderr: shell::read_file(&stderr)?, end, files })
}

/// Runs to the end or to the time limit; says in words how it ended.
fn run_limited(command: &mut Command) -> Result<String> {
    let mut child = command.spawn().map_err(|error| format!("cannot start {}: {error}", shell::describe(command)))?;
    let started = Instant::now();
    loop {
        match child.try_wait().map_err(|error| format!("cannot wait for {}: {error}", shell::describe(command)))? {
            Some(status) => {
                return Ok(match status.signal() {
                    Some(signal) => format!("signal {signal}"),
                    None => format!("exit status {}", status.code().unwrap_or_default()),
                });
            }
            None if started.elapsed() > TIME_LIMIT => {
                let _already_gone = child.kill();
                let _status = child.wait();
                return Ok("a time-out".into());
            }
            None => std::thread::sleep(Duration::from_millis(3)),
        }
    }
}

/// Reads every file below `folder`. A repository's own state is left out: its index holds times and inode numbers.
fn collect_files(folder: &Path, root: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result {
    for path in shell::sorted_entries(folder)? {
        let metadata = fs::symlink_metadata(&path).map_err(|error| format!("cannot look at {}: {error}", path.display()))?;
        let relative = path.strip_prefix(root).unwrap_or(&path).to_owned();
        if metadata.is_dir() {
            if path.file_name().is_some_and(|name| name != ".git") {
                collect_files(&path, root, files)?;
            }
        } else if metadata.is_file() {
            files.insert(relative, shell::read_file(&path)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behavior(stdout: &str, end: &str) -> Behavior {
        Behavior { stdout: stdout.into(), stderr: Vec::new(), end: end.into(), files: BTreeMap::new() }
    }

    #[test]
    fn a_difference_is_told_by_its_first_line_or_its_end_or_its_file() {
        let original = behavior("same\nleft\n", "exit status 0");
        assert_eq!(original.difference(&original.clone()), None);
        let other = behavior("same\nright\n", "exit status 0").difference(&original);
        assert_eq!(other.as_deref(), Some("standard output differs: line 2 is \"left\" in place of \"right\""));
        assert_eq!(
            original.difference(&behavior("same\nleft\n", "signal 11")).as_deref(),
            Some("ends with signal 11 in place of exit status 0")
        );
        let mut wrote = original.clone();
        wrote.files.insert("made".into(), b"bytes".to_vec());
        assert_eq!(original.difference(&wrote).as_deref(), Some("the file made differs"));
        assert_eq!(wrote.difference(&original).as_deref(), Some("the file made differs"));
    }

    #[test]
    fn what_a_workload_does_is_seen_whole() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let script = folder.path().join("script.sh");
        fs::write(&script, "\"$1\" out; echo err >&2; echo file > made; exit 3").unwrap_or_else(|error| panic!("{error}"));
        let workload = Workload { name: "test".into(), script };
        let echo = shell::find_program("echo").unwrap_or_else(|| panic!("there is an echo"));
        let seen = observe(&workload, "echo", &echo, folder.path()).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(seen.stdout, b"out\n");
        assert_eq!(seen.stderr, b"err\n");
        assert_eq!(seen.end, "exit status 3");
        assert_eq!(seen.files.get(Path::new("made")).map(Vec::as_slice), Some(b"file\n".as_slice()));
    }
}
