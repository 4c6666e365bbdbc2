//! Every kind of file: what linkers and their options make of the same library and programs is relinked, and does what it did.
//!
//! A *form* is a way to compile and link. Of each form a shared object and a program that uses it are built (`fixtures/kinds/`), both are
//! relinked under random layouts, checked, and run in all four combinations; a library that is loaded before takes the place of one of the
//! functions. Programs of one file come in the forms that need no library. Outputs and exit status must be those of the originals.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{End, Run, SUCCESS, installed, relift, repository, run, skipped};

const SEEDS: [&str; 2] = ["1", "2"];

/// A way to compile and link.
struct Form {
    name: &'static str,
    compiler: &'static str,
    /// For the library and for the program.
    flags: &'static [&'static str],
    library_flags: &'static [&'static str],
    /// What has to be installed.
    needs: &'static str,
}

const GCC: Form = Form { name: "", compiler: "g++", flags: &[], library_flags: &[], needs: "g++" };
const LLD: Form = Form { name: "", compiler: "clang++", flags: &["-fuse-ld=lld"], library_flags: &[], needs: "ld.lld" };

/// In a library, `answer` has two versions.
const VERSIONED: &[&str] = &["-DVERSIONED", "-Wl,--version-script=library.map"];

fn fixture(name: &str) -> PathBuf {
    repository("fixtures/kinds").join(name)
}

/// Compiles in the fixtures' folder, so that options can name files of it.
fn build(form: &Form, sources: &[&str], more: &[&str], output: &Path) {
    let mut command = Command::new(form.compiler);
    command.current_dir(repository("fixtures/kinds")).args(["-O2", "-w"]).args(form.flags).args(sources).args(more);
    let result = command.arg("-o").arg(output).output().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
    assert!(result.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&result.stderr));
}

fn is_there(form: &Form) -> bool {
    let missing = [form.compiler, form.needs].into_iter().find(|program| !installed(program));
    if let Some(program) = missing {
        skipped(&format!("{}: there is no {program}", form.name));
    }
    missing.is_none()
}

/// Relinks under a random layout; the checker, run again on its own, agrees.
fn shuffle(input: &Path, seed: &str, output: &Path, scratch: &Path) {
    support::relift_succeeds(
        relift().args(["optimize", "--verify", "--shuffle", seed]).arg(input).arg("-o").arg(output),
        scratch,
    );
    support::relift_succeeds(relift().arg("check").arg(input).arg(output), scratch);
}

/// Runs a program with its library from a folder, and with another one loaded before.
fn runs(program: &Path, library: &Path, interposer: &Path, scratch: &Path) -> [Run; 2] {
    let with = |preload: Option<&Path>| {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", library).env_remove("LD_BIND_NOW");
        preload.map(|path| command.env("LD_PRELOAD", path));
        run(&mut command, scratch)
    };
    [with(None), with(Some(interposer))]
}

/// Cuts off the section headers and all that no loader reads.
fn cut_section_headers(path: &Path) {
    let mut bytes = fs::read(path).expect("the file was built");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (table, count) = (word(32) as usize, u16::from_le_bytes([bytes[56], bytes[57]]) as usize);
    let entries = (0..count).map(|index| table + 56 * index);
    let end = entries.filter(|&at| bytes[at] == 1 && bytes[at + 1] == 0).map(|at| word(at + 8) + word(at + 32)).max();
    bytes.truncate(end.expect("something is loaded") as usize);
    bytes[40..48].fill(0);
    bytes[58..64].fill(0);
    fs::write(path, bytes).expect("the scratch folder can be written");
}

/// The library and the program of a form, relinked, do what they did.
fn behaves_the_same(form: &Form, prepare: impl Fn(&Path)) {
    if !is_there(form) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let scratch = folder.path();
    let original = scratch.join("original");
    fs::create_dir(&original).expect("the scratch folder can be written");
    let (library, program) = (original.join("libkinds.so"), original.join("program"));
    let shared = [&["-fPIC", "-shared", "-Wl,-soname,libkinds.so"], form.library_flags].concat();
    build(form, &["library.cc"], &shared, &library);
    let search = format!("-L{}", original.display());
    build(form, &["program.cc"], &["-pthread", &search, "-lkinds"], &program);
    let interposer = scratch.join("libinterposer.so");
    build(&Form { compiler: "gcc", flags: &[], ..GCC }, &["interposer.c"], &["-fPIC", "-shared"], &interposer);
    prepare(&library);
    prepare(&program);
    let expected = runs(&program, &original, &interposer, scratch);
    assert!(expected.iter().all(|run| run.end == End::Exit(SUCCESS)), "{}: the fixture itself fails: {expected:?}", form.name);
    for seed in SEEDS {
        let moved = scratch.join(format!("moved{seed}"));
        fs::create_dir(&moved).expect("the scratch folder can be written");
        shuffle(&library, seed, &moved.join("libkinds.so"), scratch);
        shuffle(&program, seed, &moved.join("program"), scratch);
        for (program, library) in [(&original, &moved), (&moved, &original), (&moved, &moved)] {
            let found = runs(&program.join("program"), library, &interposer, scratch);
            assert_eq!(found, expected, "{}, seed {seed}: {} with {}", form.name, program.display(), library.display());
        }
    }
}

/// A program of one file, relinked, does what it did.
fn stands_alone(form: &Form, source: &str, more: &[&str], prepare: impl Fn(&Path)) {
    if !is_there(form) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let scratch = folder.path();
    let original = scratch.join("original");
    build(form, &[source], more, &original);
    prepare(&original);
    let expected = run(&mut Command::new(&original), scratch);
    assert_eq!(expected.end, End::Exit(SUCCESS), "{}: the fixture itself fails: {expected:?}", form.name);
    for seed in SEEDS {
        let moved = scratch.join(seed);
        shuffle(&original, seed, &moved, scratch);
        assert_eq!(run(&mut Command::new(&moved), scratch), expected, "{}, seed {seed}", form.name);
    }
}

fn as_built(_: &Path) {}

/// Makes one test of each form of the library and its program.
macro_rules! forms {
    ($($(#[$doc:meta])* $name:ident: $base:expr, $flags:expr, $library_flags:expr;)*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                behaves_the_same(&Form { name: stringify!($name), flags: $flags, library_flags: $library_flags, ..$base }, as_built);
            }
        )*
    };
}

forms! {
    versions_of_symbols_are_kept: GCC, &[], VERSIONED;
    functions_bound_when_first_called_are_found: GCC, &["-Wl,-z,lazy", "-Wl,-z,noseparate-code"], &[];
    functions_bound_at_start_are_found: GCC, &["-Wl,-z,now,-z,relro,-z,separate-code"], &[];
    calls_without_stubs_are_followed: GCC, &["-fno-plt", "-Wl,-z,nognustack"], &[];
    symbols_bound_inside_the_library_stay_bound: GCC, &[], &["-Wl,-Bsymbolic"];
    hash_tables_of_both_kinds_are_kept: GCC, &["-Wl,--hash-style=both"], &[];
    the_old_hash_table_alone_will_do: GCC, &["-Wl,--hash-style=sysv", "-Wl,--build-id=none"], &[];
    descriptors_of_thread_local_variables_are_kept: GCC, &["-mtls-dialect=gnu2"], &[];
    packed_relative_relocations_are_followed: GCC, &["-Wl,-z,pack-relative-relocs"], &[];
    thunks_in_place_of_indirect_branches_are_followed: GCC, &["-mindirect-branch=thunk", "-mfunction-return=thunk"], &[];
    a_program_at_a_fixed_address_uses_a_moved_library: GCC, &["-no-pie"], VERSIONED;
    kept_relocations_are_used: GCC, &["-Wl,--emit-relocs"], &[];
    branch_tracking_is_kept: GCC, &["-fcf-protection=full", "-Wl,-z,ibt,-z,shstk"], &[];
    stubs_in_two_tables_are_known: GCC, &["-fcf-protection=full", "-Wl,-z,ibtplt,-z,lazy"], &[];
    clang_and_lld_are_understood: LLD, &["-fuse-ld=lld"], &["-Wl,--icf=all"];
    lld_separates_segments: LLD, &["-fuse-ld=lld", "-Wl,-z,separate-code"], &[];
    one_segment_for_data_and_code_will_do: LLD, &["-fuse-ld=lld", "-Wl,--no-rosegment"], &[];
    gold_is_understood: Form { needs: "ld.gold", ..GCC }, &["-fuse-ld=gold"], VERSIONED;
    gold_folds_functions: Form { needs: "ld.gold", ..GCC }, &["-fuse-ld=gold", "-ffunction-sections", "-Wl,--icf=safe"], &[];
}

#[test]
fn files_without_section_headers_are_read_by_segments() {
    behaves_the_same(&Form { name: "cut, GNU ld", ..GCC }, cut_section_headers);
    behaves_the_same(&Form { name: "cut, lld", ..LLD }, cut_section_headers);
    let fixed = Form { name: "cut, at a fixed address", compiler: "gcc", flags: &["-no-pie"], ..GCC };
    stands_alone(&fixed, "plain.c", &[], cut_section_headers);
}

#[test]
fn static_programs_resolve_their_own_indirect_functions() {
    // Without a search table the unwinder is told where the entries begin, and under a random layout there are too many to fit there.
    for flags in [&["-static", "-Wl,--eh-frame-hdr"][..], &["-static-pie"]] {
        stands_alone(&Form { name: "static", compiler: "gcc", flags, ..GCC }, "plain.c", &[], as_built);
    }
}

#[test]
fn code_without_unwind_entries_is_found() {
    let form = Form { name: "no unwind entries", compiler: "gcc", flags: &["-fno-asynchronous-unwind-tables"], ..GCC };
    stands_alone(&form, "plain.c", &[], as_built);
}

#[test]
fn a_function_whose_exception_table_only_its_own_personality_reads_stays() {
    let form = Form { name: "own personality", compiler: "gcc", flags: &["-fexceptions"], ..GCC };
    stands_alone(&form, "personality.c", &[], as_built);
    let form = Form { flags: &["-fexceptions", "-no-pie"], ..form };
    stands_alone(&form, "personality.c", &[], as_built);
}

/// Throws through several frames, throws again, ends a thread by unwinding, and says whether the library that unwinds came from the folder that it was told.
const THROWER: &str = r#"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <string>
struct Guard { int *count; ~Guard() { ++*count; } };
__attribute__((noinline)) static int deep(int depth, int *count) {
    Guard guard{count};
    std::string text(20 + depth, 'x');
    if (depth == 0) throw text.size();
    return deep(depth - 1, count) + static_cast<int>(text.size());
}
static int ended;
static void *leaves(void *) {
    Guard guard{&ended};
    pthread_exit(nullptr);
}
int main() {
    int count = 0, caught = 0;
    for (int i = 0; i < 8; i++) {
        try {
            try { deep(i, &count); } catch (...) { throw; }
        } catch (std::size_t size) { caught += size == 20; }
    }
    pthread_t thread;
    if (pthread_create(&thread, nullptr, leaves, nullptr) || pthread_join(thread, nullptr)) return 2;
    std::string library = std::string(std::getenv("LD_LIBRARY_PATH")) + "/libgcc_s.so.1";
    bool is_loaded = false;
    if (FILE *maps = std::fopen("/proc/self/maps", "r")) {
        char line[4096];
        while (std::fgets(line, sizeof line, maps)) is_loaded |= std::strstr(line, library.c_str()) != nullptr;
    }
    return caught == 8 && count == 36 && ended == 1 && is_loaded ? 42 : 1;
}
"#;

#[test]
fn exceptions_pass_through_the_machines_own_unwinder_when_it_is_moved() {
    if !is_there(&Form { name: "libgcc_s", ..GCC }) {
        return;
    }
    let asked = Command::new("gcc").arg("-print-file-name=libgcc_s.so.1").output().expect("gcc runs");
    let library = PathBuf::from(String::from_utf8_lossy(&asked.stdout).trim());
    if !library.is_absolute() || !library.is_file() {
        return skipped("libgcc_s: the machine has no libgcc_s.so.1");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let scratch = folder.path();
    let source = scratch.join("thrower.cc");
    fs::write(&source, THROWER).expect("the scratch folder can be written");
    let program = scratch.join("thrower");
    build(&GCC, &[&source.display().to_string()], &["-pthread", "-shared-libgcc"], &program);
    let ends = |folder: &Path| run(Command::new(&program).env("LD_LIBRARY_PATH", folder), scratch).end;
    let copy = scratch.join("copy");
    fs::create_dir(&copy).expect("the scratch folder can be written");
    fs::copy(&library, copy.join("libgcc_s.so.1")).expect("the library can be copied");
    assert_eq!(ends(&copy), End::Exit(SUCCESS), "the fixture itself fails");
    for seed in ["1", "2", "3", "4"] {
        let moved = scratch.join(seed);
        fs::create_dir(&moved).expect("the scratch folder can be written");
        shuffle(&library, seed, &moved.join("libgcc_s.so.1"), scratch);
        assert_eq!(ends(&moved), End::Exit(SUCCESS), "seed {seed}");
    }
}
