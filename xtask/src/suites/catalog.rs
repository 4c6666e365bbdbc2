//! The suites: what each relinks, what it needs, and the script that runs it.

use std::path::{Path, PathBuf};

use super::{Context, Treatment, prepare};
use crate::shell::Result;

pub(super) struct Suite {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) prepare: fn(&Context, &Path) -> Result<Plan>,
}

/// Where a subject, or its output, is put for a run.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Over this path.
    Mounted(PathBuf),
    /// In the folder of libraries that the loader searches first, by this name.
    Private(String),
}

/// A file that a suite relinks.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) file: PathBuf,
    pub(super) place: Place,
}

/// A suite that is ready to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    pub(super) subjects: Vec<Subject>,
    /// Folders or files mounted over others for both runs.
    pub(super) mounts: Vec<(PathBuf, PathBuf)>,
    pub(super) environment: Vec<(String, String)>,
    pub(super) script: &'static str,
    pub(super) arguments: Vec<String>,
}

pub(super) const SUITES: [Suite; 17] = [
    Suite { name: "python", about: "CPython's own tests on the installed interpreter", prepare: python },
    Suite {
        name: "python-libraries",
        about: "the same, with the C library, its loader, and five more libraries from a private folder",
        prepare: python_libraries,
    },
    Suite { name: "perl", about: "perl's core tests, each assertion a case", prepare: perl },
    Suite { name: "bash", about: "a session of shell commands, each a case", prepare: bash },
    Suite { name: "git", about: "a session on one repository, each command a case", prepare: git },
    Suite { name: "exceptions", about: "C++ exceptions thrown across shared libraries", prepare: exceptions },
    Suite { name: "threads", about: "threads with thread-local variables in a program and two libraries", prepare: threads },
    Suite { name: "gdb", about: "backtraces in relinked code, by a gdb that is relinked too", prepare: gdb },
    Suite { name: "ripgrep", about: "ripgrep from its crate searches a tree of sources", prepare: ripgrep },
    Suite { name: "ripgrep-relocations", about: "the same, linked with --emit-relocs", prepare: ripgrep_relocations },
    Suite { name: "panics", about: "Rust panics, caught, in threads, and with a backtrace", prepare: panics },
    Suite {
        name: "compilers",
        about: "GCC's compilers, gold and ldconfig make the same objects, programs and cache",
        prepare: compilers,
    },
    Suite {
        name: "packages",
        about: "GNU packages, built by relinked compilers and tools, are the same files and pass the same tests",
        prepare: packages,
    },
    Suite { name: "node", about: "JSON, regular expressions, zlib, crypto, workers", prepare: node },
    Suite { name: "llvm", about: "clang, opt and llc with a relinked libLLVM make the same objects", prepare: llvm },
    Suite { name: "rustc", about: "rustc with its driver and LLVM relinked compiles crates to the same bytes", prepare: rustc },
    Suite {
        name: "relift",
        about: "relift, relinked by itself, passes its own tests and makes the same outputs",
        prepare: relift,
    },
];

fn over_itself(file: &Path) -> Subject {
    Subject { file: file.to_owned(), place: Place::Mounted(file.to_owned()) }
}

/// Subjects of this machine, behind all links.
fn installed(paths: &[&str]) -> Result<Vec<Subject>> {
    paths.iter().map(|path| prepare::resolve(Path::new(path)).map(|file| over_itself(&file))).collect()
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

const PYTHON_TESTS: [&str; 30] = [
    "test_json",
    "test_re",
    "test_dict",
    "test_list",
    "test_generators",
    "test_exceptions",
    "test_threading",
    "test_subprocess",
    "test_ctypes",
    "test_zlib",
    "test_hashlib",
    "test_set",
    "test_unicode",
    "test_bytes",
    "test_float",
    "test_math",
    "test_decimal",
    "test_struct",
    "test_pickle",
    "test_sqlite3",
    "test_descr",
    "test_coroutines",
    "test_contextlib",
    "test_itertools",
    "test_collections",
    "test_datetime",
    "test_ast",
    "test_compile",
    "test_gc",
    "test_sort",
];

fn python(context: &Context, folder: &Path) -> Result<Plan> {
    let (library, mount) = prepare::python_with_tests(context, folder)?;
    Ok(Plan {
        subjects: installed(&["/usr/bin/python3"])?,
        mounts: vec![(library, mount)],
        script: include_str!("scripts/python.sh"),
        arguments: strings(&PYTHON_TESTS),
        ..Plan::default()
    })
}

const LIBRARIES: [&str; 6] = ["libc.so.6", "libm.so.6", "libcrypto.so.3", "libz.so.1", "libstdc++.so.6", "libgcc_s.so.1"];

fn python_libraries(context: &Context, folder: &Path) -> Result<Plan> {
    let mut plan = python(context, folder)?;
    for name in LIBRARIES {
        let file = prepare::resolve(&Path::new("/usr/lib/x86_64-linux-gnu").join(name))?;
        plan.subjects.push(Subject { file, place: Place::Private(name.into()) });
    }
    plan.subjects.extend(installed(&["/lib64/ld-linux-x86-64.so.2"])?);
    plan.environment.push(("LD_LIBRARY_PATH".into(), folder.join("private").display().to_string()));
    plan.arguments.truncate(11);
    Ok(plan)
}

fn perl(context: &Context, folder: &Path) -> Result<Plan> {
    let subjects = installed(&["/usr/bin/perl"])?;
    prepare::perl_tests(context, folder)?;
    Ok(Plan { subjects, script: include_str!("scripts/perl.sh"), ..Plan::default() })
}

fn session(folder: &Path, program: &str, commands: &str) -> Result<Plan> {
    prepare::write(folder, "commands", commands)?;
    let subjects = installed(&[program])?;
    Ok(Plan { subjects, script: include_str!("scripts/session.sh"), ..Plan::default() })
}

fn bash(_context: &Context, folder: &Path) -> Result<Plan> {
    session(folder, "/usr/bin/bash", include_str!("scripts/bash.commands"))
}

fn git(_context: &Context, folder: &Path) -> Result<Plan> {
    let mut plan = session(folder, "/usr/bin/git", include_str!("scripts/git.commands"))?;
    let fixed = [("NAME", "A U Thor"), ("EMAIL", "author@example.com"), ("DATE", "2026-01-02T03:04:05+00:00")];
    for role in ["AUTHOR", "COMMITTER"] {
        plan.environment.extend(fixed.iter().map(|(what, value)| (format!("GIT_{role}_{what}"), (*value).to_owned())));
    }
    plan.environment.push(("GIT_CONFIG_NOSYSTEM".into(), "1".into()));
    Ok(plan)
}

fn exceptions(context: &Context, folder: &Path) -> Result<Plan> {
    let built = prepare::build(folder, include_str!("scripts/exceptions-build.sh"), &[], context)?;
    let mut subjects: Vec<Subject> = ["libthrower.so", "catcher", "libthrower-clang.so", "catcher-clang", "catcher-fixed"]
        .iter()
        .map(|name| over_itself(&built.join(name)))
        .collect();
    for name in ["libstdc++.so.6", "libgcc_s.so.1"] {
        subjects.extend(installed(&[&format!("/usr/lib/x86_64-linux-gnu/{name}")])?);
    }
    Ok(Plan { subjects, script: include_str!("scripts/exceptions.sh"), ..Plan::default() })
}

fn threads(context: &Context, folder: &Path) -> Result<Plan> {
    let built = prepare::build(folder, include_str!("scripts/threads-build.sh"), &[], context)?;
    let names = ["libthread-first.so", "libthread-second.so", "threads", "threads-fixed", "threads-descriptors"];
    let subjects = names.iter().map(|name| over_itself(&built.join(name))).collect();
    Ok(Plan { subjects, script: include_str!("scripts/threads.sh"), ..Plan::default() })
}

fn gdb(context: &Context, folder: &Path) -> Result<Plan> {
    let built = prepare::build(folder, include_str!("scripts/exceptions-build.sh"), &[], context)?;
    let mut subjects = installed(&["/usr/bin/gdb", "/usr/bin/perl", "/usr/bin/python3"])?;
    subjects.extend(["libthrower.so", "catcher", "catcher-fixed"].iter().map(|name| over_itself(&built.join(name))));
    let layout = if context.treatment == Treatment::InOrder { "in-order" } else { "in-pieces" };
    Ok(Plan { subjects, script: include_str!("scripts/gdb.sh"), arguments: strings(&[layout]), ..Plan::default() })
}

fn ripgrep_linked(context: &Context, folder: &Path, flags: &str) -> Result<Plan> {
    let built = prepare::build(folder, include_str!("scripts/ripgrep-build.sh"), &[flags], context)?;
    Ok(Plan {
        subjects: vec![over_itself(&built.join("bin/rg"))],
        script: include_str!("scripts/ripgrep.sh"),
        arguments: vec![crate::repository_root().display().to_string()],
        ..Plan::default()
    })
}

fn ripgrep(context: &Context, folder: &Path) -> Result<Plan> {
    ripgrep_linked(context, folder, "-C strip=none")
}

fn ripgrep_relocations(context: &Context, folder: &Path) -> Result<Plan> {
    ripgrep_linked(context, folder, "-C link-arg=-Wl,--emit-relocs")
}

fn panics(context: &Context, folder: &Path) -> Result<Plan> {
    let built = prepare::build(folder, include_str!("scripts/panics-build.sh"), &[], context)?;
    let subjects =
        ["panics", "panics-relocs", "panics-stripped", "panics-fixed"].iter().map(|name| over_itself(&built.join(name)));
    Ok(Plan { subjects: subjects.collect(), script: include_str!("scripts/panics.sh"), ..Plan::default() })
}

fn compilers(context: &Context, _folder: &Path) -> Result<Plan> {
    let mut subjects = Vec::new();
    for name in ["cc1", "cc1plus", "lto1"] {
        subjects.push(over_itself(&prepare::gcc_program(name)?));
    }
    subjects.extend(installed(&["/usr/bin/ld.gold", "/usr/sbin/ldconfig"])?);
    let arguments = prepare::sources_to_compile(context)?;
    Ok(Plan { subjects, script: include_str!("scripts/compilers.sh"), arguments, ..Plan::default() })
}

/// Debian source packages, with how long their tests take in mind.
const PACKAGES: [&str; 5] = ["sed", "grep", "gzip", "m4", "diffutils"];

fn packages(context: &Context, _folder: &Path) -> Result<Plan> {
    let mut subjects = vec![over_itself(&prepare::gcc_program("cc1")?)];
    let tools = ["as", "ld", "ar", "make", "dash", "bash", "perl", "sed", "grep", "mawk", "sort"];
    subjects.extend(installed(&tools.map(|name| format!("/usr/bin/{name}")).each_ref().map(String::as_str))?);
    let mut arguments = Vec::new();
    for package in PACKAGES {
        arguments.push(prepare::package(context, package)?);
    }
    Ok(Plan { subjects, script: include_str!("scripts/packages.sh"), arguments, ..Plan::default() })
}

fn node(_context: &Context, folder: &Path) -> Result<Plan> {
    prepare::write(folder, "session.js", include_str!("scripts/session.js"))?;
    let subjects = installed(&["/usr/bin/node"])?;
    Ok(Plan { subjects, script: include_str!("scripts/node.sh"), ..Plan::default() })
}

fn llvm(context: &Context, _folder: &Path) -> Result<Plan> {
    let subjects = vec![over_itself(&prepare::library_of("clang", "libLLVM")?)];
    let arguments = prepare::sources_to_compile(context)?;
    Ok(Plan { subjects, script: include_str!("scripts/llvm.sh"), arguments, ..Plan::default() })
}

fn rustc(_context: &Context, _folder: &Path) -> Result<Plan> {
    let sysroot = prepare::rust_sysroot()?;
    let mut subjects = vec![over_itself(&prepare::resolve(&sysroot.join("bin/rustc"))?)];
    for library in prepare::rust_libraries(&sysroot)? {
        subjects.push(over_itself(&library));
    }
    let mut arguments = vec![sysroot.join("bin/rustc").display().to_string()];
    arguments.extend(prepare::crates_to_compile()?);
    Ok(Plan { subjects, script: include_str!("scripts/rustc.sh"), arguments, ..Plan::default() })
}

/// The seed that relift, relinked, lays out others by.
const SEED_WITHIN: u64 = 2;

fn relift(_context: &Context, folder: &Path) -> Result<Plan> {
    let tests = prepare::own_tests()?;
    let program = crate::repository_root().join("target/release/relift");
    // What is relinked is a copy, so that the tests' program may be built anew.
    let copy = prepare::copy_of(&program, folder)?;
    let subject = Subject { file: copy, place: Place::Mounted(program.clone()) };
    let root = crate::repository_root().display().to_string();
    let mut arguments = vec![program.display().to_string(), root, SEED_WITHIN.to_string()];
    arguments.extend(tests);
    Ok(Plan { subjects: vec![subject], script: include_str!("scripts/relift.sh"), arguments, ..Plan::default() })
}
