//! Running other programs, with errors that show the command and the end of what it said.
//!
//! Every failure of a developer command is a sentence for a person, so the error type is a `String`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The result of a developer command: its error is the sentence to show.
pub(crate) type Result<T = (), E = String> = std::result::Result<T, E>;

/// How many lines of a failed command's output an error repeats.
const LINES_SHOWN: usize = 15;

/// Prints one line of progress.
#[expect(clippy::print_stdout, reason = "the commands of xtask talk to a person")]
pub(crate) fn say(line: &str) {
    println!("{line}");
}

/// Prints the sentence that ends a failed command.
#[expect(clippy::print_stderr, reason = "the commands of xtask talk to a person")]
pub(crate) fn complain(line: &str) {
    eprintln!("xtask: {line}");
}

/// Runs `command` to its end and returns what it printed, or an error that shows the command and the end of its output.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().map_err(|error| format!("cannot start {}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(output);
    }
    let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = said.lines().collect();
    let tail = lines[lines.len().saturating_sub(LINES_SHOWN)..].join("\n");
    Err(format!("{} failed ({}):\n  {}\n{tail}", command.get_program().display(), output.status, describe(command)))
}

/// The command as one would type it.
pub(crate) fn describe(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Where `program` is found on the search path, if it is.
pub(crate) fn find_program(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|candidate| candidate.is_file())
}

/// Makes `folder` and all above it.
pub(crate) fn create_folder(folder: &Path) -> Result {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make the folder {}: {error}", folder.display()))
}

/// Writes `bytes` to `path`.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> Result {
    std::fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Copies a program that is run next, its mode included, and takes the place of what `to` was.
///
/// Another process writes it. What this one has open for writing while another of its threads starts a process is open in
/// that process too, until it begins its own program, and so long nobody can execute it (`execve(2)`, `ETXTBSY`).
pub(crate) fn copy_program(from: &Path, to: &Path) -> Result {
    run(Command::new("cp").args(["--preserve=mode", "--force", "--"]).args([from, to])).map(drop)
}

/// Reads all of `path`.
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// The entries of `folder` in the order of their names, so that nothing depends on the file system's own order.
pub(crate) fn sorted_entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("cannot list {}: {error}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(|error| format!("cannot list {}: {error}", folder.display()))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// What `work` makes of each item, in the items' order, by so many threads at once; it is given the thread's number and the item's, too.
pub(crate) fn in_parallel<T: Sync, R: Send>(items: &[T], jobs: usize, work: impl Fn(usize, usize, &T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (next, done, work) = (&next, &done, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let made = work(job, index, item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, made));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, made)| made).collect()
}
