//! The programs of the suite, and how each comes to be linked with its relocations kept.
//!
//! Four are built by `cargo xtask corpus`. The others are built by their own build systems, driven by `fixtures/workloads/<program>/build.sh SOURCE
//! OUTPUT`, from Debian's source package or, for the one in Rust, by cargo. What exists is not made again.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::corpus;
use crate::shell::{self, Result};

/// A program in one form of linking.
#[derive(Copy, Clone, Debug)]
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) form: &'static str,
    source: Source,
}

#[derive(Copy, Clone, Debug)]
enum Source {
    /// `cargo xtask corpus` knows it.
    Corpus,
    /// The Debian source package; an older version where the newest is listed but gone.
    Debian(&'static [&'static str]),
    /// The build script fetches it.
    Script,
}

const fn corpus(name: &'static str, form: &'static str) -> Program {
    Program { name, form, source: Source::Corpus }
}
const fn debian(name: &'static str, packages: &'static [&'static str]) -> Program {
    Program { name, form: "relocs", source: Source::Debian(packages) }
}

/// All programs, the quick ones first. Lua comes twice: position-independent, BOLT leaves its main loop alone.
pub(super) const PROGRAMS: [Program; 12] = [
    corpus("lua", "nonpie-relocs"),
    corpus("lua", "relocs"),
    corpus("sqlite3", "relocs"),
    corpus("bzip2", "relocs"),
    corpus("zstd", "relocs"),
    debian("tcc", &["tcc"]),
    debian("redis", &["redis"]),
    debian("cpython", &["python3.11", "python3.11/bookworm"]),
    debian("cppcheck", &["cppcheck"]),
    debian("perl", &["perl", "perl/bookworm"]),
    debian("postgres", &["postgresql-15", "postgresql-15/bookworm"]),
    Program { name: "ripgrep", form: "relocs", source: Source::Script },
];

impl Program {
    pub(super) fn label(&self) -> String {
        if self.form == "relocs" { self.name.to_owned() } else { format!("{} ({})", self.name, self.form) }
    }

    /// The binary in the suite's folder, built first if it is not there.
    pub(super) fn binary(&self, directory: &Path) -> Result<PathBuf> {
        let binary = directory.join(self.name).join(self.form).join(self.name);
        if !binary.is_file() {
            shell::say(&format!("building {}", self.label()));
            self.build(directory, &binary)?;
        }
        Ok(binary)
    }

    /// The folder in which its own build system ran: what workloads need besides the program.
    pub(super) fn build_folder(&self, directory: &Path) -> PathBuf {
        directory.join("build").join(self.name).join("made")
    }

    fn build(&self, directory: &Path, binary: &Path) -> Result {
        let source = match self.source {
            Source::Corpus => return corpus::build_named(self.name, directory),
            Source::Debian(packages) => self.unpacked(packages, directory)?,
            Source::Script => directory.to_owned(),
        };
        let made = self.build_folder(directory);
        let _absent = std::fs::remove_dir_all(&made);
        shell::create_folder(&made)?;
        shell::create_folder(binary.parent().unwrap_or(directory))?;
        let script = crate::repository_root().join("fixtures/workloads").join(self.name).join("build.sh");
        let partial = binary.with_extension("partial");
        shell::run(Command::new("sh").arg(script).arg(source).arg(&partial).current_dir(&made))?;
        std::fs::rename(&partial, binary).map_err(|error| format!("cannot rename {}: {error}", partial.display()))
    }

    fn unpacked(&self, packages: &[&str], directory: &Path) -> Result<PathBuf> {
        let mut problem = format!("{} has no source package", self.name);
        for package in packages {
            match corpus::sources::unpacked(package, self.name, &[], directory) {
                Ok(source) => return Ok(source),
                Err(said) => problem = said,
            }
        }
        Err(problem)
    }
}
