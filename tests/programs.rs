//! Each program in `fixtures/programs/<behavior>/` still does what it did after relift rewrote it.
//!
//! A program is one C or C++ file that checks itself and exits with 42. Lines that begin with `//#` tell how to build it:
//!
//! * `//#Flags: …` and `//#Link: …`: added to the compile command, before and after the source;
//! * `//#Compilers: gcc clang`: the families it can be built by (all, if not given);
//! * `//#Levels: -O0 -O2 …`: the optimization levels at which it makes sense (all, if not given);
//! * `//#Modes: pie nopie`: position-independent, or not, or both (both, if not given);
//! * `//#Stdout: …`: the exact standard output, a line per directive (that of the original, if not given).
//!
//! Every program is built in a matrix of compiler × level × PIE or not × relocations kept, none or stripped. `cargo test` takes a
//! selection that has every value of each axis; `RELIFT_FULL_MATRIX=1` takes all. Each variant is shuffled (a random legal layout,
//! the seed of which is in the failure message; `RELIFT_SHUFFLE_SEED` sets another), shuffled with every legal edit of code, shrunk, and trained
//! on its own run; all results are checked and run, and output and exit status must be those of the original.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, Run, SUCCESS};

/// How a variant keeps what the linker knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    Relocations,
    Symbols,
    Nothing,
}

/// One way to build a program.
#[derive(Clone, Copy, Debug)]
struct Variant {
    family: &'static str,
    level: &'static str,
    pie: bool,
    kept: Kept,
}

/// What the `//#` lines of a source say.
#[derive(Debug, Default)]
struct Directives {
    flags: Vec<String>,
    link: Vec<String>,
    compilers: Vec<String>,
    levels: Vec<String>,
    modes: Vec<String>,
    stdout: Option<String>,
}

const FAMILIES: [&str; 2] = ["gcc", "clang"];
const LEVELS: [&str; 4] = ["-O0", "-O2", "-O3", "-Os"];

/// The variants of a normal test run: every value of each axis, and the common ones together.
const SELECTION: [Variant; 7] = [
    Variant { family: "gcc", level: "-O2", pie: true, kept: Kept::Nothing },
    Variant { family: "gcc", level: "-O2", pie: true, kept: Kept::Relocations },
    Variant { family: "gcc", level: "-O3", pie: false, kept: Kept::Symbols },
    Variant { family: "gcc", level: "-Os", pie: false, kept: Kept::Relocations },
    Variant { family: "clang", level: "-O2", pie: true, kept: Kept::Symbols },
    Variant { family: "clang", level: "-O3", pie: false, kept: Kept::Nothing },
    Variant { family: "clang", level: "-O0", pie: true, kept: Kept::Relocations },
];

/// All variants that are asked for by the environment.
fn variants() -> Vec<Variant> {
    if std::env::var_os("RELIFT_FULL_MATRIX").is_none() {
        return SELECTION.to_vec();
    }
    let mut all = Vec::new();
    for family in FAMILIES {
        for level in LEVELS {
            for pie in [true, false] {
                for kept in [Kept::Relocations, Kept::Symbols, Kept::Nothing] {
                    all.push(Variant { family, level, pie, kept });
                }
            }
        }
    }
    all
}

impl Directives {
    fn parse(text: &str) -> Directives {
        let mut directives = Directives::default();
        for line in text.lines().filter_map(|line| line.strip_prefix("//#")) {
            let (key, value) = line.split_once(':').unwrap_or_else(|| panic!("a directive without a colon: {line}"));
            let words = || value.split_whitespace().map(str::to_owned);
            match key {
                "Flags" => directives.flags.extend(words()),
                "Link" => directives.link.extend(words()),
                "Compilers" => directives.compilers.extend(words()),
                "Levels" => directives.levels.extend(words()),
                "Modes" => directives.modes.extend(words()),
                "Stdout" => {
                    let expected = directives.stdout.get_or_insert_default();
                    expected.push_str(value.strip_prefix(' ').unwrap_or(value));
                    expected.push('\n');
                }
                _ => panic!("an unknown directive: {key}"),
            }
        }
        directives
    }

    /// Whether the program can be built in this way.
    fn allow(&self, variant: &Variant) -> bool {
        let listed = |list: &[String], word: &str| list.is_empty() || list.iter().any(|item| item == word);
        listed(&self.compilers, variant.family)
            && listed(&self.levels, variant.level)
            && listed(&self.modes, if variant.pie { "pie" } else { "nopie" })
    }
}

/// Builds one variant. `None`: its compiler is not installed.
fn build(source: &Path, directives: &Directives, variant: &Variant, output: &Path) -> Option<Result<(), String>> {
    let is_cpp = source.extension().is_some_and(|extension| extension == "cc");
    let compiler = match (variant.family, is_cpp) {
        ("gcc", true) => "g++",
        ("clang", true) => "clang++",
        (family, _) => family,
    };
    if !support::installed(compiler) {
        support::skipped(&format!("{}: {variant:?}: there is no {compiler}", source.display()));
        return None;
    }
    let mut command = Command::new(compiler);
    command.arg(variant.level).args(if variant.pie { ["-fPIE", "-pie"] } else { ["-fno-pie", "-no-pie"] });
    command.args(&directives.flags).arg("-w").arg(source).arg("-o").arg(output).args(&directives.link);
    match variant.kept {
        Kept::Relocations => command.arg("-Wl,--emit-relocs"),
        Kept::Symbols => &mut command,
        Kept::Nothing => command.arg("-s"),
    };
    let built = command.output().map_err(|error| format!("cannot start {compiler}: {error}"));
    Some(built.and_then(|result| {
        if result.status.success() { Ok(()) } else { Err(format!("{command:?}\n{}", String::from_utf8_lossy(&result.stderr))) }
    }))
}

/// Runs relift and the program that it made; returns what is wrong, if anything is.
fn rewrite_and_compare(rewrite: &mut Command, input: &Path, output: &Path, original: &Run, scratch: &Path) -> Result<(), String> {
    let said = support::run(rewrite, scratch);
    if said.end != End::Exit(0) {
        return Err(format!("{rewrite:?}: {said:?}"));
    }
    let mut check = support::relift();
    check.arg("check").arg(input).arg(output);
    let checked = support::run(&mut check, scratch);
    if checked.end != End::Exit(0) {
        return Err(format!("after {rewrite:?}\n{check:?}: {checked:?}"));
    }
    compare(rewrite, output, original, scratch)
}

/// Runs the program that relift made.
fn compare(rewrite: &Command, output: &Path, original: &Run, scratch: &Path) -> Result<(), String> {
    let rewritten = support::run(&mut Command::new(output), scratch);
    if rewritten != *original {
        return Err(format!("after {rewrite:?}\nthe original: {original:?}\nthe output: {rewritten:?}"));
    }
    Ok(())
}

/// Builds, rewrites and compares one variant.
fn try_variant(source: &Path, directives: &Directives, variant: &Variant, seed: u64, scratch: &Path) -> Result<(), String> {
    let input = scratch.join("original");
    match build(source, directives, variant, &input) {
        None => return Ok(()),
        Some(built) => built?,
    }
    let original = support::run(&mut Command::new(&input), scratch);
    if original.end != End::Exit(SUCCESS) {
        return Err(format!("the fixture itself fails: {original:?}"));
    }
    if directives.stdout.as_ref().is_some_and(|expected| *expected != original.stdout_text()) {
        return Err(format!("the fixture itself does not print what its directives say: {original:?}"));
    }
    let shuffled = scratch.join("shuffled");
    let mut shuffle = support::relift();
    shuffle.arg("optimize").arg("--shuffle").arg(seed.to_string()).arg("--verify").arg(&input).arg("-o").arg(&shuffled);
    rewrite_and_compare(&mut shuffle, &input, &shuffled, &original, scratch)?;
    // Without relocations, what is reached at a fixed address is partly a guess, and only of what is reached an edit can be proven.
    if variant.pie || variant.kept == Kept::Relocations {
        let edited = scratch.join("edited");
        shuffle = support::relift();
        shuffle.args(["optimize", "--edit-everywhere", "--with", "constant-loads,late-saves", "--verify", "--shuffle"]);
        shuffle.arg(seed.to_string());
        shuffle.arg(&input).arg("-o").arg(&edited);
        rewrite_and_compare(&mut shuffle, &input, &edited, &original, scratch)?;
    }
    // Without the check all clones are made; with it, those that it does not follow are left out.
    // A whole C library has thousands of clones, and the check of each takes minutes.
    let is_small = !directives.flags.iter().chain(&directives.link).any(|flag| flag.starts_with("-static"));
    let ways = [("all", false), ("table", false), ("shared", false), ("direct", true), ("all", true)];
    for (clone, is_checked) in ways.into_iter().filter(|&(_, is_checked)| is_small || !is_checked) {
        let cloned = scratch.join("cloned");
        let mut rewrite = support::relift();
        rewrite.args(["optimize", "--verify", "--clone-everywhere", "--clone", clone, "--shuffle"]).arg(seed.to_string());
        rewrite.args((!is_checked).then_some("--no-check")).arg(&input).arg("-o").arg(&cloned);
        let said = support::run(&mut rewrite, scratch);
        if said.end != End::Exit(0) {
            return Err(format!("{rewrite:?}: {said:?}"));
        }
        compare(&rewrite, &cloned, &original, scratch)?;
    }
    let trained = scratch.join("trained");
    let mut train = support::relift();
    train.arg("train").arg("--verify").arg(&input).arg("-o").arg(&trained).args([
        "--",
        "sh",
        "-c",
        "\"$1\"; test $? = 42",
        "sh",
        "{}",
    ]);
    match rewrite_and_compare(&mut train, &input, &trained, &original, scratch) {
        // A program in which everything stays cannot count: a refusal, said in one line.
        Err(why) if why.contains("no function can be instrumented: all are pinned") => Ok(()),
        result => result,
    }
}

/// The source file of a behavior.
fn source_of(behavior: &str) -> PathBuf {
    let folder = support::repository("fixtures/programs").join(behavior);
    let c = folder.join(behavior).with_extension("c");
    if c.is_file() { c } else { c.with_extension("cc") }
}

/// Tries every variant of one program and fails with all that went wrong. The files of a failed variant are kept.
fn behaves_the_same(behavior: &str) {
    let source = source_of(behavior);
    let text = std::fs::read_to_string(&source).unwrap_or_else(|error| panic!("cannot read {}: {error}", source.display()));
    let directives = Directives::parse(&text);
    let chosen_seed = std::env::var("RELIFT_SHUFFLE_SEED").ok().map(|text| text.parse().expect("a seed is a number"));
    let mut failures = Vec::new();
    for (index, variant) in variants().iter().enumerate().filter(|(_, variant)| directives.allow(variant)) {
        let scratch = tempfile::tempdir().expect("a scratch folder can be made");
        let seed = chosen_seed.unwrap_or(index as u64 + 1);
        if let Err(problem) = try_variant(&source, &directives, variant, seed, scratch.path()) {
            failures.push(format!("{behavior}: {variant:?}, seed {seed}, files in {}\n{problem}", scratch.keep().display()));
        }
    }
    assert!(failures.is_empty(), "{} variants fail:\n\n{}", failures.len(), failures.join("\n\n"));
}

/// Makes one test per behavior, and the list of all of them.
macro_rules! behaviors {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                behaves_the_same(stringify!($name));
            }
        )*
        const BEHAVIORS: &[&str] = &[$(stringify!($name)),*];
    };
}

behaviors! {
    alloca_vla,
    base_behind_call,
    biased_tables,
    big_function,
    breakpoints,
    callers_frames,
    calling_contexts,
    case_behind_end,
    chance_numbers,
    checked_calls,
    cold_paths,
    computed_goto,
    constant_words,
    constructors,
    context_storm,
    copied_code,
    cpp_containers,
    cpp_exceptions,
    cpp_virtual,
    early_saves,
    equal_functions,
    fork_ten,
    frame_table,
    free_order,
    function_tables,
    hardened_loads,
    ifunc,
    inline_asm,
    interrupted_entries,
    interrupted_exports,
    interrupted_places,
    label_differences,
    label_holes,
    lands_on_itself,
    leaf_faults,
    longjmp,
    marked_pointers,
    memory_contract,
    mutual_recursion,
    near_labels,
    no_return_pointer,
    ordered_pointers,
    outlined_table,
    padding_numbers,
    parts_of_functions,
    patchable_entries,
    pointer_into_padding,
    private_calls,
    published_local,
    qsort_callbacks,
    rare_ways,
    relative_vtables,
    retpoline,
    retpoline_parts,
    return_address,
    return_numbers,
    self_address,
    signals_backtrace,
    small_leaves,
    static_fixed,
    static_init,
    static_pie,
    stepped_over,
    switch_bounds,
    switch_tables,
    switch_unbounded,
    tail_called_table,
    tail_calls,
    threaded_labels,
    threads_tls,
    unseen_pointers,
    varargs_float,
    weak_undefined,
}

#[test]
fn every_program_in_the_folder_has_a_test() {
    let mut found: Vec<String> = std::fs::read_dir(support::repository("fixtures/programs"))
        .expect("the folder of programs can be listed")
        .map(|entry| entry.expect("the folder of programs can be listed").file_name().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut listed = BEHAVIORS.to_vec();
    listed.sort_unstable();
    assert_eq!(found, listed);
}
