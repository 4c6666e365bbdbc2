//! What suites need before they run: sources and packages of tests, fetched once and kept, and programs built from them.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Context;
use crate::corpus;
use crate::shell::{self, Result};

/// Written when a folder is complete, so that half of it is never taken for all.
const READY_MARK: &str = "relift-suites-ready";

pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|error| format!("{} is not installed: {error}", path.display()))
}

pub(super) fn write(folder: &Path, name: &str, text: &str) -> Result {
    shell::create_folder(folder)?;
    shell::write_file(&folder.join(name), text.as_bytes())
}

/// A copy of `file` in `folder`, under its own name.
pub(super) fn copy_of(file: &Path, folder: &Path) -> Result<PathBuf> {
    shell::create_folder(folder)?;
    let copy = folder.join(file.file_name().unwrap_or_default());
    shell::copy_program(file, &copy)?;
    Ok(copy)
}

/// Runs `make` in a new folder `name` unless that was done before.
fn once(folder: &Path, name: &str, make: impl FnOnce(&Path) -> Result) -> Result<PathBuf> {
    let made = folder.join(name);
    if !made.join(READY_MARK).is_file() {
        let _absent = std::fs::remove_dir_all(&made);
        shell::create_folder(&made)?;
        make(&made)?;
        shell::write_file(&made.join(READY_MARK), b"")?;
    }
    Ok(made)
}

/// The folder of what a build script made of the project's own sources.
pub(super) fn build(folder: &Path, script: &str, arguments: &[&str], _context: &Context) -> Result<PathBuf> {
    let sources = crate::repository_root().join("fixtures/suites");
    let built = folder.join("built");
    // Made anew every time unless it comes from elsewhere: sources may have changed.
    if script.contains("cargo install") {
        return once(folder, "built", |made| build_in(made, script, &sources, arguments));
    }
    let _absent = std::fs::remove_dir_all(&built);
    shell::create_folder(&built)?;
    build_in(&built, script, &sources, arguments)?;
    Ok(built)
}

fn build_in(folder: &Path, script: &str, sources: &Path, arguments: &[&str]) -> Result {
    let mut command = Command::new("sh");
    command.args(["-euc", script, "sh"]).arg(sources).args(arguments).current_dir(folder);
    shell::run(&mut command).map(|_| ())
}

/// The Debian package of CPython's tests, put into a copy of the installed library: that copy, and what it is mounted over.
pub(super) fn python_with_tests(context: &Context, _folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let interpreter = resolve(Path::new("/usr/bin/python3"))?;
    let version = interpreter.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let installed = Path::new("/usr/lib").join(&version);
    let made = once(&context.directory, "python-with-tests", |made| {
        let script = r#"
            apt-get download --quiet "lib$1-testsuite"
            dpkg-deb --extract lib*-testsuite*.deb unpacked
            cp -a "$2" library
            cp -a "unpacked$2/." library/"#;
        let mut command = Command::new("sh");
        shell::run(command.args(["-euc", script, "sh"]).arg(&version).arg(&installed).current_dir(made)).map(|_| ())
    })?;
    Ok((made.join("library"), installed))
}

/// perl's `t` folder beside a `lib` folder with the modules that are installed, as the tests expect them.
pub(super) fn perl_tests(context: &Context, folder: &Path) -> Result {
    let source = perl_source(context)?;
    once(folder, "tree", |made| {
        let script = r#"
            cp -a "$1/t" .
            mkdir lib
            for part in $(perl -e 'print join " ", grep { m{^/usr/(share|lib)/} && -d } reverse @INC'); do cp -aL "$part/." lib/; done
            ln -s /usr/bin/perl perl"#;
        shell::run(Command::new("sh").args(["-euc", script, "sh"]).arg(&source).current_dir(made)).map(|_| ())
    })?;
    Ok(())
}

/// The newest version that the package source has is sometimes listed but not there: then an older one will do.
fn perl_source(context: &Context) -> Result<PathBuf> {
    let mut problem = String::new();
    for package in ["perl", "perl/stable", "perl/oldstable", "perl/bookworm"] {
        match corpus::sources::unpacked(package, "perl", &[], &context.directory) {
            Ok(source) => return Ok(source),
            Err(said) => problem = said,
        }
    }
    Err(problem)
}

/// A program that the installed gcc runs.
pub(super) fn gcc_program(name: &str) -> Result<PathBuf> {
    let said = shell::run(Command::new("gcc").arg(format!("-print-prog-name={name}")))?;
    resolve(Path::new(String::from_utf8_lossy(&said.stdout).trim()))
}

/// Sources of two real programs and of the project's own fixtures, as folders.
pub(super) fn sources_to_compile(context: &Context) -> Result<Vec<String>> {
    let configure = &[&["sh", "-c", "echo '#define DEB_HOST_MULTIARCH \"x86_64-linux-gnu\"' > src/lua5.4-deb-multiarch.h"][..]];
    let lua = corpus::sources::unpacked("lua5.4", "lua", configure, &context.directory)?;
    let bzip2 = corpus::sources::unpacked("bzip2", "bzip2", &[], &context.directory)?;
    let fixtures = crate::repository_root().join("fixtures/programs");
    Ok([lua.join("src"), bzip2, fixtures].iter().map(|folder| folder.display().to_string()).collect())
}

/// The source of a Debian package, unpacked.
pub(super) fn package(context: &Context, name: &str) -> Result<String> {
    Ok(corpus::sources::unpacked(name, name, &[], &context.directory)?.display().to_string())
}

/// The library with this name's beginning that a program loads.
pub(super) fn library_of(program: &str, name: &str) -> Result<PathBuf> {
    let path = shell::find_program(program).ok_or_else(|| format!("{program} is not installed"))?;
    let said = shell::run(Command::new("ldd").arg(resolve(&path)?))?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with(name));
    let found = line.and_then(|line| line.split_once("=> ")).and_then(|(_, rest)| rest.split(" (").next());
    found.ok_or_else(|| format!("{program} loads no {name}")).and_then(|found| resolve(Path::new(found.trim())))
}

pub(super) fn rust_sysroot() -> Result<PathBuf> {
    let said = shell::run(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()))
}

/// The compiler itself and its LLVM.
pub(super) fn rust_libraries(sysroot: &Path) -> Result<Vec<PathBuf>> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let is_wanted = |path: &PathBuf| name(path).starts_with("librustc_driver") || name(path).starts_with("libLLVM.so");
    Ok(shell::sorted_entries(&sysroot.join("lib"))?.into_iter().filter(is_wanted).collect())
}

/// Crates that need no others, with the one file to start from, out of what this project's own build has fetched.
pub(super) fn crates_to_compile() -> Result<Vec<String>> {
    const WANTED: [&str; 4] = ["memchr", "itoa", "smallvec", "bitflags"];
    let root = crate::repository_root();
    let said = shell::run(Command::new("cargo").args(["metadata", "--format-version", "1"]).current_dir(&root))?;
    let json: serde_json::Value = serde_json::from_slice(&said.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = json.get("packages").and_then(|packages| packages.as_array());
    let mut found = Vec::new();
    for package in packages.into_iter().flatten() {
        let text = |pointer: &str| package.pointer(pointer).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        let start = text("/targets/0/src_path");
        if WANTED.contains(&text("/name").as_str()) && start.ends_with("src/lib.rs") {
            found.push(format!("{}:{}:{start}", text("/name").replace('-', "_"), text("/edition")));
        }
    }
    if found.is_empty() { Err("no crate to compile was found".into()) } else { Ok(found) }
}

/// The programs of relift's own integration tests, built now.
pub(super) fn own_tests() -> Result<Vec<String>> {
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--package", "relift", "--tests", "--no-run", "--message-format=json"]);
    let said = shell::run(command.current_dir(crate::repository_root()))?;
    let mut tests = Vec::new();
    for line in String::from_utf8_lossy(&said.stdout).lines() {
        let json: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        let is_test = json.pointer("/target/kind/0").and_then(|kind| kind.as_str()) == Some("test");
        let program = json.get("executable").and_then(|program| program.as_str());
        tests.extend(program.filter(|_| is_test).map(str::to_owned));
    }
    tests.sort();
    if tests.is_empty() { Err("cargo built no test".into()) } else { Ok(tests) }
}
