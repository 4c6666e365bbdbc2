//! `cargo xtask corpus`: builds the real programs that relift is proved on, each in several forms.
//!
//! A program comes from Debian's source package (see `sources`), is compiled once per compiler setting and linked once per form:
//! with and without relocations, position-independent or not, stripped or not. The result is
//! `DIR/<program>/<form>/<program>`; sources and objects stay in `DIR/build`. What exists is not made again, so an interrupted
//! run is resumed by repeating the command.

pub(crate) mod sources;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use clap::Args;

use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct CorpusArgs {
    /// Where to build; `target/corpus` if not given
    directory: Option<PathBuf>,
    /// Build only this program (may be repeated)
    #[arg(long = "program")]
    programs: Vec<String>,
}

/// A program of the corpus and how it is compiled.
struct Program {
    name: &'static str,
    /// The Debian source package.
    package: &'static str,
    /// Commands run once in the unpacked source tree, to generate sources.
    prepare: &'static [&'static [&'static str]],
    /// Source files, relative to the tree; `folder/*.c` stands for all of them.
    sources: &'static [&'static str],
    /// Files that such a pattern names but that do not belong to the program.
    excluded: &'static [&'static str],
    compile_flags: &'static [&'static str],
    link_flags: &'static [&'static str],
    /// Whether the variants by clang and with `-O3` are built too.
    variants: bool,
}

const PROGRAMS: [Program; 4] = [
    Program {
        name: "lua",
        package: "lua5.4",
        // Debian's own build writes this header, which its patched configuration includes.
        prepare: &[&["sh", "-c", "echo '#define DEB_HOST_MULTIARCH \"x86_64-linux-gnu\"' > src/lua5.4-deb-multiarch.h"]],
        sources: &["src/*.c"],
        excluded: &["src/luac.c"],
        compile_flags: &["-std=gnu99", "-DLUA_COMPAT_5_3", "-DLUA_USE_LINUX"],
        link_flags: &["-Wl,-E", "-lm", "-ldl"],
        variants: true,
    },
    Program {
        name: "bzip2",
        package: "bzip2",
        prepare: &[],
        sources: &["blocksort.c", "huffman.c", "crctable.c", "randtable.c", "compress.c", "decompress.c", "bzlib.c", "bzip2.c"],
        excluded: &[],
        compile_flags: &["-D_FILE_OFFSET_BITS=64"],
        link_flags: &[],
        variants: true,
    },
    Program {
        name: "zstd",
        package: "libzstd",
        prepare: &[],
        sources: &[
            "lib/common/*.c",
            "lib/compress/*.c",
            "lib/decompress/*.c",
            "lib/decompress/*.S",
            "lib/dictBuilder/*.c",
            "programs/*.c",
        ],
        excluded: &[],
        compile_flags: &["-DXXH_NAMESPACE=ZSTD_", "-DZSTD_MULTITHREAD", "-DZSTD_LEGACY_SUPPORT=0", "-pthread"],
        link_flags: &["-pthread"],
        variants: false,
    },
    Program {
        name: "sqlite3",
        package: "sqlite3",
        prepare: &[&["./configure", "--quiet", "--disable-readline"], &["make", "--quiet", "sqlite3.c", "shell.c"]],
        sources: &["sqlite3.c", "shell.c"],
        excluded: &[],
        compile_flags: &["-DSQLITE_ENABLE_FTS5", "-DSQLITE_ENABLE_RTREE", "-DSQLITE_ENABLE_EXPLAIN_COMMENTS"],
        link_flags: &["-lm", "-ldl", "-pthread"],
        variants: false,
    },
];

/// One way to compile: the objects of a setting are shared by all forms that use it.
struct Setting {
    name: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
}

const GCC_PIE: Setting = Setting { name: "gcc-pie", compiler: "gcc", flags: &["-O2", "-fPIE"] };
const GCC_NO_PIE: Setting = Setting { name: "gcc-nonpie", compiler: "gcc", flags: &["-O2", "-fno-pie"] };
const GCC_O3: Setting = Setting { name: "gcc-o3", compiler: "gcc", flags: &["-O3", "-fPIE"] };
const CLANG_PIE: Setting = Setting { name: "clang-pie", compiler: "clang", flags: &["-O2", "-fPIE"] };

/// One way to link the objects of a setting.
struct Form {
    name: &'static str,
    setting: &'static Setting,
    link_flags: &'static [&'static str],
    strip: bool,
    /// Built only for programs with `variants`.
    variant: bool,
}

const FORMS: [Form; 9] = [
    Form { name: "relocs", setting: &GCC_PIE, link_flags: &["-pie", "-Wl,--emit-relocs"], strip: false, variant: false },
    Form { name: "plain", setting: &GCC_PIE, link_flags: &["-pie"], strip: false, variant: false },
    Form { name: "stripped", setting: &GCC_PIE, link_flags: &["-pie"], strip: true, variant: false },
    Form {
        name: "nonpie-relocs",
        setting: &GCC_NO_PIE,
        link_flags: &["-no-pie", "-Wl,--emit-relocs"],
        strip: false,
        variant: false,
    },
    Form { name: "nonpie", setting: &GCC_NO_PIE, link_flags: &["-no-pie"], strip: false, variant: false },
    Form { name: "clang-relocs", setting: &CLANG_PIE, link_flags: &["-pie", "-Wl,--emit-relocs"], strip: false, variant: true },
    Form { name: "clang", setting: &CLANG_PIE, link_flags: &["-pie"], strip: false, variant: true },
    Form { name: "o3-relocs", setting: &GCC_O3, link_flags: &["-pie", "-Wl,--emit-relocs"], strip: false, variant: true },
    Form { name: "o3", setting: &GCC_O3, link_flags: &["-pie"], strip: false, variant: true },
];

/// The folder that holds the corpus if the command line names none.
pub(crate) fn default_directory() -> PathBuf {
    crate::repository_root().join("target/corpus")
}

pub(crate) fn run(args: &CorpusArgs) -> Result {
    let directory = args.directory.clone().unwrap_or_else(default_directory);
    if let Some(unknown) = args.programs.iter().find(|name| PROGRAMS.iter().all(|program| program.name != name.as_str())) {
        let known: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        return Err(format!("no program \"{unknown}\" in the corpus; there are {}", known.join(", ")));
    }
    shell::create_folder(&directory)?;
    let directory =
        std::path::absolute(&directory).map_err(|error| format!("cannot resolve {}: {error}", directory.display()))?;
    for program in &PROGRAMS {
        if args.programs.is_empty() || args.programs.iter().any(|name| name == program.name) {
            build_program(program, &directory)?;
        }
    }
    shell::say(&format!("the corpus is complete: {}", directory.display()));
    Ok(())
}

/// Builds every form of one program of the corpus that is not there yet.
pub(crate) fn build_named(name: &str, directory: &Path) -> Result {
    let program = PROGRAMS.iter().find(|program| program.name == name);
    program.map_or_else(|| Err(format!("no program \"{name}\" in the corpus")), |program| build_program(program, directory))
}

/// Builds every form of `program` that is not there yet.
fn build_program(program: &Program, directory: &Path) -> Result {
    for form in FORMS.iter().filter(|form| program.variants || !form.variant) {
        let output = directory.join(program.name).join(form.name).join(program.name);
        if output.is_file() {
            continue;
        }
        if shell::find_program(form.setting.compiler).is_none() {
            shell::say(&format!("{}/{}: skipped, there is no {}", program.name, form.name, form.setting.compiler));
            continue;
        }
        let tree = sources::unpacked(program.package, program.name, program.prepare, directory)?;
        let objects = compile(program, form.setting, &tree, directory)?;
        link(program, form, &objects, &output)?;
        shell::say(&format!("{}/{}: {}", program.name, form.name, output.display()));
    }
    Ok(())
}

/// Compiles all sources of `program` in one setting, as many at a time as there are processors; returns the objects in order.
fn compile(program: &Program, setting: &Setting, tree: &Path, directory: &Path) -> Result<Vec<PathBuf>> {
    let folder = directory.join("build").join(program.name).join(setting.name);
    shell::create_folder(&folder)?;
    let mut objects = Vec::new();
    let mut missing = VecDeque::new();
    for source in source_files(program, tree)? {
        let object = folder.join(source.replace('/', "-") + ".o");
        if !object.is_file() {
            missing.push_back((source, object.clone()));
        }
        objects.push(object);
    }
    let queue = Mutex::new(missing);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(|| compile_from(&queue, program, setting, tree))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a compile thread panicked".into())))
    })?;
    Ok(objects)
}

/// Compiles what the queue holds until it is empty. An object appears under its name only when it is complete.
fn compile_from(queue: &Mutex<VecDeque<(String, PathBuf)>>, program: &Program, setting: &Setting, tree: &Path) -> Result {
    loop {
        let next = queue.lock().map_err(|_| "another compile thread panicked".to_owned())?.pop_front();
        let Some((source, object)) = next else { return Ok(()) };
        let partial = object.with_extension("partial");
        let mut command = Command::new(setting.compiler);
        command.current_dir(tree).args(setting.flags).args(program.compile_flags).arg("-w");
        shell::run(command.arg("-c").arg(&source).arg("-o").arg(&partial))?;
        std::fs::rename(&partial, &object).map_err(|error| format!("cannot rename {}: {error}", partial.display()))?;
    }
}

/// The source files of `program` relative to `tree`, patterns resolved, in the order of their names.
fn source_files(program: &Program, tree: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    for pattern in program.sources {
        let Some((folder, extension)) = pattern.split_once("/*.") else {
            files.push((*pattern).to_owned());
            continue;
        };
        for path in shell::sorted_entries(&tree.join(folder))? {
            if path.extension().is_some_and(|found| found == extension) {
                let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                files.push(format!("{folder}/{name}"));
            }
        }
    }
    files.retain(|file| !program.excluded.contains(&file.as_str()));
    Ok(files)
}

/// Links one form. The program appears under its name only when it is complete.
fn link(program: &Program, form: &Form, objects: &[PathBuf], output: &Path) -> Result {
    let folder = output.parent().unwrap_or(Path::new("."));
    shell::create_folder(folder)?;
    let partial = folder.join("partial");
    let mut command = Command::new(form.setting.compiler);
    command.args(form.link_flags).args(objects).args(program.link_flags).arg("-o").arg(&partial);
    shell::run(&mut command)?;
    if form.strip {
        shell::run(Command::new("strip").arg(&partial))?;
    }
    std::fs::rename(&partial, output).map_err(|error| format!("cannot rename {}: {error}", partial.display()))
}
