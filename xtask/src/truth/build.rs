//! Builds what is compared: every fixture in all variants of a matrix, the real programs in those that their recipes name.
//!
//! A program is `DIR/PROGRAM/VARIANT/PROGRAM`; sources, copies and objects stay in `DIR/build`. What exists is not made again. A variant is named
//! COMPILER-LEVEL[-EXTRA…]-KIND: `clang-O3-lld-pie`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use crate::corpus::sources;
use crate::shell::{self, Result};
use crate::truth::programs::{Origin, RECIPES, Recipe};

/// The variants of every fixture.
const COMPILERS: [&str; 2] = ["gcc", "clang"];
const LEVELS: [&str; 4] = ["O0", "O2", "O3", "Os"];
const KINDS: [&str; 2] = ["pie", "fixed"];
/// Of these every fixture has one variant more for each.
const EXTRAS: [&str; 5] = ["gcc-O2-cet-pie", "gcc-O2-thunk-pie", "clang-O2-lld-pie", "gcc-O2-lto-fixed", "clang-O2-static"];

/// How a compiler is called for a variant.
#[derive(Debug, Default)]
struct Calls {
    c: &'static str,
    cpp: &'static str,
    flags: Vec<String>,
    link: Vec<String>,
    kind: String,
}

pub(super) fn all(directory: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Result {
    let fixtures = crate::repository_root().join("fixtures/programs");
    let mut jobs: Vec<Job> = Vec::new();
    for folder in shell::sorted_entries(&fixtures)? {
        for source in shell::sorted_entries(&folder)? {
            let name = source.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            if is_wanted(&name) {
                jobs.extend(matrix().into_iter().map(|variant| Job::Fixture {
                    name: name.clone(),
                    source: source.clone(),
                    variant,
                }));
            }
        }
    }
    for recipe in RECIPES.iter().filter(|recipe| is_wanted(recipe.name)) {
        jobs.extend(recipe.variants.iter().map(|&variant| Job::Real { recipe, variant }));
    }
    jobs.retain(|job| !job.output(directory).is_file());
    jobs.reverse();
    let queue = Mutex::new(jobs);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(job) = queue.lock().ok().and_then(|mut queue| queue.pop()) {
                    // One program that this machine cannot build is no reason to compare none.
                    if let Err(problem) = job.build(directory) {
                        shell::complain(&format!("not built: {}: {problem}", job.output(directory).display()));
                    }
                }
            });
        }
    });
    Ok(())
}

fn matrix() -> Vec<String> {
    let mut variants = Vec::new();
    for compiler in COMPILERS {
        for level in LEVELS {
            variants.extend(KINDS.map(|kind| format!("{compiler}-{level}-{kind}")));
        }
    }
    variants.extend(EXTRAS.map(str::to_owned));
    variants
}

enum Job {
    Fixture { name: String, source: PathBuf, variant: String },
    Real { recipe: &'static Recipe, variant: &'static str },
}

impl Job {
    fn output(&self, directory: &Path) -> PathBuf {
        let (name, variant) = match self {
            Job::Fixture { name, variant, .. } => (name.as_str(), variant.as_str()),
            Job::Real { recipe, variant } => (recipe.name, *variant),
        };
        directory.join(name).join(variant).join(name)
    }

    fn build(&self, directory: &Path) -> Result {
        let output = self.output(directory);
        let partial = output.with_extension("partial");
        if let Some(folder) = output.parent() {
            shell::create_folder(folder)?;
        }
        match self {
            Job::Fixture { source, variant, .. } => build_fixture(source, variant, &partial)?,
            Job::Real { recipe, variant } => build_real(recipe, variant, directory, &partial)?,
        }
        std::fs::rename(&partial, &output).map_err(|error| format!("cannot rename {}: {error}", partial.display()))?;
        shell::say(&format!("built {}", output.display()));
        Ok(())
    }
}

fn build_fixture(source: &Path, variant: &str, output: &Path) -> Result {
    let calls = Calls::of(variant)?;
    let text = String::from_utf8_lossy(&shell::read_file(source)?).into_owned();
    let directive = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("//#")?.strip_prefix(name)?.strip_prefix(':'));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let is_cpp = source.extension().is_some_and(|extension| extension == "cc");
    let mut command = Command::new(if is_cpp { calls.cpp } else { calls.c });
    command.args(&calls.flags).args(directive("Flags")).args(["-pthread", "-o"]).arg(output).arg(source);
    shell::run(command.args(&calls.link).args(directive("Link")).arg("-lm")).map(|_| ())
}

fn build_real(recipe: &Recipe, variant: &str, directory: &Path, output: &Path) -> Result {
    let calls = Calls::of(variant)?;
    let folder = directory.join("build").join(recipe.name);
    shell::create_folder(&folder)?;
    let copy = folder.join(variant);
    let place = match recipe.origin {
        Origin::Debian(package) => {
            let tree = sources::unpacked(package, recipe.name, &[], directory)?;
            let _absent = std::fs::remove_dir_all(&copy);
            shell::run(Command::new("cp").arg("-a").arg(&tree).arg(&copy))?;
            make_old(&copy)?;
            copy.clone()
        }
        Origin::Here => crate::repository_root(),
    };
    let mut command = Command::new("sh");
    command.current_dir(&place).arg("-e").arg("-c").arg(recipe.script);
    command.env("MAKEINFO", "true").env("CC", calls.c).env("CXX", calls.cpp).env("KIND", &calls.kind);
    command.env("FLAGS", calls.flags.join(" ")).env("LINK", calls.link.join(" "));
    command.env("OUT", output).env("TARGET", folder.join("target"));
    shell::run(&mut command)?;
    let _copied_nothing = std::fs::remove_dir_all(&copy);
    Ok(())
}

/// Makes the sources of generated files look older than those, so that `make` asks for no Autoconf, Bison or Texinfo.
fn make_old(tree: &Path) -> Result {
    let names = ["*.am", "configure.ac", "*.m4", "*.texi", "*.y", "*.l"];
    let mut find = Command::new("find");
    find.arg(tree).args(["-type", "f", "("]);
    for (index, name) in names.iter().enumerate() {
        find.args(if index == 0 { &["-name"][..] } else { &["-o", "-name"] }).arg(name);
    }
    shell::run(find.args([")", "-exec", "touch", "-d", "2000-01-01", "{}", "+"])).map(|_| ())
}

impl Calls {
    fn of(variant: &str) -> Result<Self> {
        let unknown = || format!("no variant is called \"{variant}\"");
        let parts: Vec<&str> = variant.split('-').collect();
        let [compiler, level, extras @ .., kind] = parts.as_slice() else { return Err(unknown()) };
        let (c, cpp) = match *compiler {
            "gcc" => ("gcc", "g++"),
            "clang" => ("clang", "clang++"),
            "rustc" => return Self::of_rust(level, kind).ok_or_else(unknown),
            _ => return Err(unknown()),
        };
        let mut calls = Self { c, cpp, kind: (*kind).to_owned(), ..Self::default() };
        let (flags, link): (&[&str], &[&str]) = match *kind {
            "pie" => (&["-fPIE"], &["-pie"]),
            "fixed" => (&["-fno-pie"], &["-no-pie"]),
            "static" => (&["-fno-pie"], &["-static"]),
            "library" => (&["-fPIC"], &["-shared"]),
            _ => return Err(unknown()),
        };
        calls.add(&[&format!("-{level}"), "-w"], &["-Wl,--emit-relocs"]);
        calls.add(flags, link);
        for extra in extras {
            match *extra {
                "lld" => calls.add(&[], &["-fuse-ld=lld"]),
                "lto" => calls.add(&["-flto"], &["-flto", &format!("-{level}"), flags[0]]),
                "cet" => calls.add(&["-fcf-protection"], &[]),
                "thunk" => calls.add(&["-mindirect-branch=thunk"], &[]),
                _ => return Err(unknown()),
            }
        }
        Ok(calls)
    }

    /// Flags of `rustc` itself.
    fn of_rust(level: &str, kind: &str) -> Option<Self> {
        let level = level.strip_prefix('O')?;
        let model = match kind {
            "pie" => "pie",
            "fixed" => "static",
            _ => return None,
        };
        let flags = vec![format!("-Copt-level={level}"), format!("-Crelocation-model={model}")];
        Some(Self { kind: kind.to_owned(), flags, link: vec!["-Clink-arg=-Wl,--emit-relocs".into()], ..Self::default() })
    }

    fn add(&mut self, flags: &[&str], link: &[&str]) {
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self.link.extend(link.iter().map(|&flag| flag.to_owned()));
    }
}
