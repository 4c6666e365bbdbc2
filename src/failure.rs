//! What a person is told when nothing was written: one line with what, where, why, and what to do about it.

use std::fmt;
use std::path::Path;

/// A refusal or a failure. Exit status 1.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// It is the debug file's: to do less to the program helps nothing.
    pub(crate) is_of_debug_file: bool,
    /// What the checker found, if that is why.
    pub(crate) violations: Vec<checker::Violation>,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), is_of_debug_file: false, violations: Vec::new() }
    }
    /// A failure about a file.
    pub(crate) fn at(path: &Path, why: impl fmt::Display) -> Self {
        Failure::new(format!("{}: {why}", path.display()))
    }
    /// Adds what the user can do.
    pub(crate) fn hint(self, hint: &str) -> Self {
        Failure { message: format!("{} ({hint})", self.message), ..self }
    }
    pub(crate) fn because_of(self, violations: &[checker::Violation]) -> Self {
        Failure { violations: violations.to_vec(), ..self }
    }
    pub(crate) fn of_debug_file(self) -> Self {
        Failure { is_of_debug_file: true, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One line, whatever a message of a library or a path holds.
        f.write_str(&self.message.replace('\n', " "))
    }
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// What to do about a file that the lifter refuses.
pub(crate) fn from_lifter(path: &Path, error: &lifter::Error) -> Failure {
    use lifter::Error::*;
    let hint = match error {
        NotElf(_) => "give a linked program or shared object",
        WrongMachine(_) => "relift rewrites x86-64 only",
        WrongType(_) => "link it first: relift rewrites executables and shared objects",
        Malformed { .. } | MalformedUnwind { .. } => "the file is damaged or was made by an unusual tool",
        Unsupported(_) => "nothing was written",
        BuildIdsDiffer { .. } | LayoutsDiffer { .. } | NoDebugInformation | SplitDebugInformation { .. } => {
            return from_debug_file(path, error);
        }
    };
    Failure::at(path, error).hint(hint)
}

/// What to do about a debug file that the lifter refuses.
pub(crate) fn from_debug_file(path: &Path, error: &lifter::Error) -> Failure {
    use lifter::Error::*;
    let hint = match error {
        NotElf(_) | WrongMachine(_) | WrongType(_) => {
            "give the file that was split from the program, as `objcopy --only-keep-debug` makes it"
        }
        BuildIdsDiffer { .. } | LayoutsDiffer { .. } => "give the debug file that was made with this program",
        NoDebugInformation => "nothing in it needs an update: leave --debug-file out",
        SplitDebugInformation { .. } => "it can't be brought up to date: leave --debug-file out",
        Malformed { .. } | MalformedUnwind { .. } => "the file is damaged or was made by an unusual tool",
        Unsupported(_) => "leave --debug-file out",
    };
    Failure::at(path, error).hint(hint).of_debug_file()
}

/// What to do about a relinker's refusal.
pub(crate) fn from_rewriter(path: &Path, error: &rewriter::Error) -> Failure {
    use rewriter::Error::*;
    let hint = match error {
        TrailingPayload { .. } => "relinking would move what the program looks for behind its own end",
        NoProgramHeaderSlot => "link it with a spare program header, or with separate notes",
        UnwindTablesNamed => "link it with --eh-frame-hdr, so that its unwind tables may move",
        DebugFile(_) => {
            return Failure::at(path, error)
                .hint("nothing was written; without --debug-file the output has no debug information")
                .of_debug_file();
        }
        NeverInitialized => "record a profile of it with perf, and give that to relift optimize -p",
        _ => "nothing was written; please report this with the file",
    };
    Failure::at(path, error).hint(hint)
}
