//! `cargo xtask random`: random programs, before and after relift laid them out at random.
//!
//! **Method.** A program comes from the generator here (see `generate`) or from Csmith. It is built in several variants, and each of them is compared with
//! its relocations as `truth` does, relinked under `--shuffle` with every check on, and run: output and status must be the original's. What
//! the lifter and the checker are shown changes from program to program: relocations, symbols, or nothing. Files of a variant that failed are kept.
//!
//! **Proven ends.** Where the lifter proves that a jump reads fewer entries of its table than the compiler made, no relocation tells who is right. So
//! the original is run once more with all entries behind the proven end made zero, which no jump survives: it leads to read-only data, or nowhere.

mod generate;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use clap::Args;
use lifter::Image;
use lifter::address::Va;

use crate::shell::{self, Result};
use crate::stock::sandbox::{TIMED_OUT, run_limited};
use crate::truth::{Built, judge_file};
use generate::Language;

#[derive(Debug, Args)]
pub(crate) struct RandomArgs {
    /// How many programs
    #[arg(value_name = "N", default_value_t = 100)]
    count: u64,
    /// Seed of the first program; the others follow
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Print the program of the seed and do nothing else
    #[arg(long)]
    source: bool,
    /// Programs of Csmith in place of the generator's own
    #[arg(long)]
    csmith: bool,
    /// Programs worked on at a time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Where files of failed variants are kept; target/random if not given
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

const COMPILERS: [(&str, &str); 2] = [("gcc", "g++"), ("clang", "clang++")];
const LEVELS: [&str; 4] = ["O0", "O2", "O3", "Os"];
const KINDS: [(&str, &str, &str); 2] = [("pie", "-fPIE", "-pie"), ("fixed", "-fno-pie", "-no-pie")];

/// How long a program and its compiler may take.
const RUN_LIMIT: Duration = Duration::from_secs(10);
const BUILD_LIMIT: Duration = Duration::from_secs(120);

/// What became of one variant.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Same,
    /// The program itself does not end, or the compiler does not take it.
    NoProgram(String),
    Wrong(String),
}

pub(crate) fn run(args: &RandomArgs) -> Result {
    if args.source {
        shell::say(&generate::program(args.seed, Language::of_seed(args.seed)));
        return Ok(());
    }
    let relift = args.relift.clone().map_or_else(crate::e2e::build_relift, Ok)?;
    let relift = std::path::absolute(&relift).map_err(|error| format!("cannot resolve {}: {error}", relift.display()))?;
    let keep = args.keep.clone().unwrap_or_else(|| crate::repository_root().join("target/random"));
    let next = AtomicUsize::new(0);
    let ends: Mutex<Vec<(u64, String, End)>> = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if index >= args.count {
                        break;
                    }
                    let subject = Subject { seed: args.seed + index, is_csmith: args.csmith, relift: &relift, keep: &keep };
                    for (variant, end) in subject.all() {
                        if let End::Wrong(why) | End::NoProgram(why) = &end {
                            shell::say(&format!("seed {} {variant}: {why}", subject.seed));
                        }
                        if let Ok(mut ends) = ends.lock() {
                            ends.push((subject.seed, variant, end));
                        }
                    }
                }
            });
        }
    });
    let ends = ends.into_inner().unwrap_or_default();
    let count = |is: &dyn Fn(&End) -> bool| ends.iter().filter(|e| is(&e.2)).count();
    let same = count(&|end| *end == End::Same);
    let wrong = count(&|end| matches!(end, End::Wrong(_)));
    let none = count(&|end| matches!(end, End::NoProgram(_)));
    shell::say(&format!("{} programs, {} variants: {same} the same, {wrong} wrong, {none} not compared", args.count, ends.len()));
    if wrong == 0 { Ok(()) } else { Err(format!("{wrong} variants are wrong; their files are in {}", keep.display())) }
}

/// One program.
struct Subject<'a> {
    seed: u64,
    is_csmith: bool,
    relift: &'a Path,
    keep: &'a Path,
}

impl Subject<'_> {
    /// Both compilers, two levels each and both kinds, other ones for the next seed.
    fn variants(&self) -> Vec<(usize, usize, usize)> {
        let seed = self.seed as usize;
        let pairs = (0..COMPILERS.len()).flat_map(|compiler| (0..2).map(move |k| (compiler, k)));
        pairs.map(|(compiler, k)| (compiler, (seed + 2 * k + compiler) % LEVELS.len(), (seed / 4 + k) % KINDS.len())).collect()
    }

    fn all(&self) -> Vec<(String, End)> {
        let folder = match tempfile::tempdir() {
            Ok(folder) => folder,
            Err(error) => return vec![("all".into(), End::NoProgram(format!("cannot make a folder: {error}")))],
        };
        let language = if self.is_csmith { Language::C } else { Language::of_seed(self.seed) };
        let source = folder.path().join(if language == Language::C { "program.c" } else { "program.cc" });
        if let Err(problem) = self.write_source(&source, language) {
            return vec![("all".into(), End::NoProgram(problem))];
        }
        let variants = self.variants();
        variants.into_iter().map(|variant| self.one(variant, language, &source, folder.path())).collect()
    }

    fn write_source(&self, source: &Path, language: Language) -> Result {
        if !self.is_csmith {
            return shell::write_file(source, generate::program(self.seed, language).as_bytes());
        }
        let mut csmith = Command::new("csmith");
        // It leaves a file where it is run.
        csmith.current_dir(source.parent().unwrap_or(Path::new("."))).args(["--seed", &self.seed.to_string()]);
        let output = shell::run(&mut csmith)?;
        shell::write_file(source, &output.stdout)
    }

    fn one(&self, variant: (usize, usize, usize), language: Language, source: &Path, folder: &Path) -> (String, End) {
        let (compiler, level, (kind, compile_kind, link_kind)) = (COMPILERS[variant.0], LEVELS[variant.1], KINDS[variant.2]);
        let compiler = if language == Language::C { compiler.0 } else { compiler.1 };
        let name = format!("{compiler}-{level}-{kind}");
        let shown = ["stripped", "symbols", "relocations"][(self.seed % 3) as usize];
        let place = folder.join(&name);
        let end = self.build(compiler, level, (compile_kind, link_kind), shown, source, &place);
        let end = match end {
            Ok(()) => self.compare(&name, &place),
            Err(problem) => End::NoProgram(problem),
        };
        if matches!(end, End::Wrong(_)) {
            let kept = self.keep.join(format!("{}-{name}", self.seed));
            let _kept = shell::create_folder(&kept).and_then(|()| {
                shell::run(Command::new("cp").arg("-a").arg(source).arg(format!("{}/.", place.display())).arg(&kept))
            });
        }
        (format!("{name} {shown}"), end)
    }

    /// Makes `oracle`, with relocations, and `input`, which relift is given.
    fn build(&self, compiler: &str, level: &str, kind: (&str, &str), shown: &str, source: &Path, place: &Path) -> Result {
        shell::create_folder(place)?;
        let object = place.join("program.o");
        let compile = |more: &[&str]| {
            let mut compile = Command::new(compiler);
            compile.args([&format!("-{level}"), kind.0, "-w", "-I/usr/include/csmith"]).args(more);
            run_limited(quiet(compile.arg("-c").arg(source).arg("-o").arg(&object)), BUILD_LIMIT)
        };
        // GCC can't take differences of labels that it puts into different sections.
        if compile(&[]) != "status 0" {
            let end = compile(&["-fno-reorder-blocks-and-partition"]);
            if end != "status 0" {
                return Err(format!("the compiler ends with {end}"));
            }
        }
        let link = |flags: &[&str], output: &Path| {
            shell::run(Command::new(compiler).arg(kind.1).args(flags).arg(&object).arg("-o").arg(output)).map(|_| ())
        };
        link(&["-Wl,--emit-relocs"], &place.join("oracle"))?;
        match shown {
            "stripped" => link(&["-s"], &place.join("input")),
            "symbols" => link(&[], &place.join("input")),
            _ => shell::copy_program(&place.join("oracle"), &place.join("input")),
        }
    }

    fn compare(&self, name: &str, place: &Path) -> End {
        let (input, output) = (place.join("input"), place.join("output"));
        let original = observed(&input, place);
        if original.0 == TIMED_OUT {
            return End::NoProgram("the program does not end".into());
        }
        let built = Built { program: format!("seed {}", self.seed), variant: name.to_owned(), path: place.join("oracle") };
        let judged = judge_file(&built);
        if let Some(complaint) = judged.wrong.first() {
            return End::Wrong(complaint.clone());
        }
        if !judged.idle_entries.is_empty() {
            match trapped(&built.path, &judged.idle_entries, &place.join("trapped")) {
                Ok(trapped) if observed(&trapped, place) == original => {}
                Ok(_) => return End::Wrong(format!("a table target behind a proven end is used: {:?}", judged.idle_entries)),
                Err(problem) => return End::Wrong(problem),
            }
        }
        let mut relink = Command::new(self.relift);
        relink.arg("optimize").arg(&input).arg("-o").arg(&output).args(["--verify", "--shuffle", &self.seed.to_string()]);
        if let Err(problem) = shell::run(&mut relink) {
            return End::Wrong(problem);
        }
        let moved = observed(&output, place);
        if moved == original {
            End::Same
        } else {
            End::Wrong(format!("it ends with {}, not {}, or prints something else", moved.0, original.0))
        }
    }
}

/// A copy of a program in which these table targets lead to no code.
fn trapped(program: &Path, entries: &[(Va, u8)], copy: &Path) -> Result<PathBuf> {
    let mut bytes = shell::read_file(program)?;
    let image = Image::parse(&bytes).map_err(|error| error.to_string())?;
    let places: Option<Vec<_>> =
        entries.iter().map(|&(at, size)| Some((image.file_offset(at)?.0 as usize, usize::from(size)))).collect();
    for (offset, size) in places.ok_or("a table target is not in the file")? {
        bytes.get_mut(offset..offset + size).ok_or("a table target is cut off")?.fill(0);
    }
    let staged = copy.with_extension("staged");
    shell::write_file(&staged, &bytes)?;
    fs::set_permissions(&staged, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
    shell::copy_program(&staged, copy)?;
    Ok(copy.to_owned())
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// How a run ends and what it prints.
fn observed(program: &Path, place: &Path) -> (String, Vec<u8>) {
    let printed = place.join("printed");
    let Ok(file) = File::create(&printed) else { return ("no scratch file".into(), Vec::new()) };
    let end = run_limited(Command::new(program).stdin(Stdio::null()).stderr(Stdio::null()).stdout(file), RUN_LIMIT);
    (end, fs::read(&printed).unwrap_or_default())
}
