//! Every kind of file: what linkers and their options make of the same library and programs is relinked, and does what it did.
//!
//! A *form* is a way to compile and link. Of each form a shared object and a program that uses it are built (`fixtures/kinds/`), both are
//! relinked under random layouts, checked, and run in all four combinations; a library that is loaded before takes the place of one of the
//! functions. Programs of one file come in the forms that need no library. Outputs and exit status must be those of the originals.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};
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

/// Relinks; the checker, run again on its own, agrees.
fn relink(input: &Path, way: &[&str], output: &Path, scratch: &Path) {
    support::relift_succeeds(relift().args(["optimize", "--verify"]).args(way).arg(input).arg("-o").arg(output), scratch);
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
        relink(&library, &["--shuffle", seed], &moved.join("libkinds.so"), scratch);
        relink(&program, &["--shuffle", seed], &moved.join("program"), scratch);
        for (program, library) in [(&original, &moved), (&moved, &original), (&moved, &moved)] {
            let found = runs(&program.join("program"), library, &interposer, scratch);
            assert_eq!(found, expected, "{}, seed {seed}: {} with {}", form.name, program.display(), library.display());
        }
    }
}

/// A program of one file, relinked under random layouts, does what it did.
fn stands_alone(form: &Form, source: &str, prepare: impl Fn(&Path)) {
    stands_alone_as(form, source, &[&["--shuffle", SEEDS[0]], &["--shuffle", SEEDS[1]]], prepare);
}

/// A program of one file, relinked with each of these arguments, does what it did.
fn stands_alone_as(form: &Form, source: &str, ways: &[&[&str]], prepare: impl Fn(&Path)) {
    if !is_there(form) {
        return;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let scratch = folder.path();
    let original = scratch.join("original");
    build(form, &[source], &[], &original);
    prepare(&original);
    let expected = run(&mut Command::new(&original), scratch);
    assert_eq!(expected.end, End::Exit(SUCCESS), "{}: the fixture itself fails: {expected:?}", form.name);
    let moved = scratch.join("moved");
    for way in ways {
        relink(&original, way, &moved, scratch);
        assert_eq!(run(&mut Command::new(&moved), scratch), expected, "{}, {way:?}", form.name);
    }
}

fn as_built(_: &Path) {}

/// Takes the names of functions away.
fn strip(path: &Path) {
    let status = Command::new("strip").arg(path).status().expect("strip runs");
    assert!(status.success(), "strip {}", path.display());
}

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
    stands_alone(&fixed, "plain.c", cut_section_headers);
}

#[test]
fn static_programs_resolve_their_own_indirect_functions() {
    for flags in [&["-static", "-Wl,--eh-frame-hdr"][..], &["-static-pie"]] {
        stands_alone(&Form { name: "static", compiler: "gcc", flags, ..GCC }, "plain.c", as_built);
    }
}

/// Start-up code may register the entries from somewhere inside of their section on. Under a random layout there are too many to stay there, and what registers them follows.
#[test]
fn static_programs_find_their_own_unwind_tables() {
    let registered = Form { name: "registered", flags: &["-static"], ..GCC };
    stands_alone_as(&registered, "throws.cc", &[&[]], as_built);
    stands_alone(&registered, "throws.cc", as_built);
    stands_alone(&Form { name: "registered, stripped", ..registered }, "throws.cc", strip);
    stands_alone(
        &Form { name: "registered, relocations", flags: &["-static", "-Wl,--emit-relocs"], ..GCC },
        "throws.cc",
        as_built,
    );
    stands_alone(&Form { name: "both", flags: &["-static", "-Wl,--eh-frame-hdr"], ..GCC }, "throws.cc", as_built);
    stands_alone(&Form { name: "search table", flags: &["-static-pie"], ..GCC }, "throws.cc", as_built);
}

#[test]
fn code_without_unwind_entries_is_found() {
    let form = Form { name: "no unwind entries", compiler: "gcc", flags: &["-fno-asynchronous-unwind-tables"], ..GCC };
    stands_alone(&form, "plain.c", as_built);
}

#[test]
fn a_function_whose_exception_table_only_its_own_personality_reads_stays() {
    let form = Form { name: "own personality", compiler: "gcc", flags: &["-fexceptions"], ..GCC };
    stands_alone(&form, "personality.c", as_built);
    let form = Form { flags: &["-fexceptions", "-no-pie"], ..form };
    stands_alone(&form, "personality.c", as_built);
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
        relink(&library, &["--shuffle", seed], &moved.join("libgcc_s.so.1"), scratch);
        assert_eq!(ends(&moved), End::Exit(SUCCESS), "seed {seed}");
    }
}

/// An instrumented program with its profile, made from `input` and run once.
fn counted(input: &Path, name: &str, scratch: &Path) -> (PathBuf, PathBuf) {
    let (counting, profile) = (scratch.join(format!("{name}.counting")), scratch.join(format!("{name}.rlp")));
    support::relift_succeeds(
        relift().arg("instrument").arg(input).arg("-o").arg(&counting).arg("--profile").arg(&profile),
        scratch,
    );
    (counting, profile)
}

#[test]
fn outputs_of_relift_are_inputs_like_others() {
    for (flags, source) in [(&["-pie"][..], "throws.cc"), (&["-no-pie"], "throws.cc"), (&["-static-pie"], "plain.c")] {
        let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
        let folder = tempfile::tempdir().expect("a scratch folder can be made");
        let scratch = folder.path();
        let original = scratch.join("original");
        build(&Form { name: "again", compiler, flags, ..GCC }, &[source], &[], &original);
        let does = |program: &Path| run(&mut Command::new(program), scratch);
        let expected = does(&original);
        assert_eq!(expected.end, End::Exit(SUCCESS));
        let (first, second, third) = (scratch.join("first"), scratch.join("second"), scratch.join("third"));
        relink(&original, &["--shuffle", "1"], &first, scratch);
        relink(&first, &["--shuffle", "2"], &second, scratch);
        assert_eq!(does(&second), expected, "{flags:?}: relinked twice");
        // There is code behind the data now, so the counters need a segment of their own.
        let (counting, profile) = counted(&second, "second", scratch);
        assert_eq!(does(&counting), expected, "{flags:?}: counting");
        relink(&second, &["-p", &profile.display().to_string()], &third, scratch);
        assert_eq!(does(&third), expected, "{flags:?}: optimized after that");
        // Each round takes the room that the one before left.
        let (again, _) = counted(&third, "third", scratch);
        assert_eq!(does(&again), expected, "{flags:?}: counting again");
    }
}

/// Section headers end where the payload begins, as in files whose payload is found by that.
#[test]
fn a_payload_behind_the_file_stays_where_it_is_or_the_file_is_refused() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let scratch = folder.path();
    let original = scratch.join("original");
    build(&Form { name: "payload", compiler: "gcc", flags: &["-g"], ..GCC }, &["plain.c"], &[], &original);
    let mut bytes = fs::read(&original).expect("the file was built");
    let at = bytes.len();
    bytes.extend_from_slice(b"PK\x03\x04 the payload");
    fs::write(&original, &bytes).expect("the scratch folder can be written");
    let output = scratch.join("output");
    relink(&original, &[], &output, scratch);
    let found = fs::read(&output).expect("the output can be read");
    assert_eq!(found.len(), bytes.len());
    assert_eq!(found[at..], bytes[at..]);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes"));
    let end = |bytes: &[u8]| word(bytes) + 64 * u64::from(u16::from_le_bytes([bytes[60], bytes[61]]));
    assert_eq!(end(&found), end(&bytes));
    assert_eq!(run(&mut Command::new(&output), scratch), run(&mut Command::new(&original), scratch));
    // Without debug information that is dropped, a random layout takes more room than there is.
    let tight = scratch.join("tight");
    build(&Form { name: "payload", compiler: "gcc", flags: &["-s"], ..GCC }, &["plain.c"], &[], &tight);
    let with_payload = [fs::read(&tight).expect("the file was built"), b"the payload".to_vec()].concat();
    fs::write(&tight, with_payload).expect("the scratch folder can be written");
    let refused = run(relift().args(["optimize", "--shuffle", "1"]).arg(&tight).arg("-o").arg(scratch.join("none")), scratch);
    assert_eq!(refused.end, End::Exit(1));
    assert!(support::only_line(&refused).contains("payload"), "{refused:?}");
}

/// All that others know of it is that it is loaded.
const SECRETIVE: &str = r#"
#include <stdio.h>
static int step(int x) { return x % 3 ? x * 5 + 1 : x / 3; }
__attribute__((constructor)) static void said(void) {
    int value = 7;
    for (int i = 0; i < 1000; i++) value = step(value) & 0xffff;
    printf("%d\n", value);
}
"#;

#[test]
fn a_library_that_exports_nothing_has_an_empty_hash_table_which_may_move() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let flags = ["-O2", "-fPIC", "-shared", "-fcf-protection=none", "-Wl,--hash-style=gnu", "-Wl,--build-id"];
    let library = support::compile_text(SECRETIVE, &flags, folder.path(), "libsecretive.so");
    let says = |library: &Path| run(Command::new("true").env("LD_PRELOAD", library), folder.path());
    let expected = says(&library);
    assert!(expected.end == End::Exit(0) && !expected.stdout.is_empty(), "{expected:?}");
    for seed in SEEDS {
        let output = folder.path().join(format!("libsecretive{seed}.so"));
        relink(&library, &["--shuffle", seed], &output, folder.path());
        assert_eq!(says(&output), expected);
    }
}

/// Hand-written unwind entries may be in a writable section; then the linker puts all of them among data.
#[test]
fn unwind_tables_that_say_they_are_writable_move_to_where_nothing_is() {
    if ["g++", "objcopy"].iter().any(|tool| !installed(tool)) {
        return skipped("there is no g++ or no objcopy");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    let (object, program) = (folder.join("program.o"), folder.join("program"));
    build(&GCC, &["throws.cc"], &["-c"], &object);
    let flags = ".eh_frame=alloc,load,data,contents";
    let marked = Command::new("objcopy").args(["--set-section-flags", flags]).arg(&object).status();
    assert!(marked.is_ok_and(|status| status.success()));
    build(&GCC, &[&object.to_string_lossy()], &[], &program);
    let is_writable = |path: &Path| {
        let bytes = fs::read(path).expect("it was written");
        let file = object::File::parse(&*bytes).expect("it is an ELF file");
        let object::SectionFlags::Elf { sh_flags } = file.section_by_name(".eh_frame").expect("it has entries").flags() else {
            panic!("{} is no ELF file", path.display());
        };
        sh_flags & u64::from(object::elf::SHF_WRITE) != 0
    };
    assert!(is_writable(&program));
    let expected = run(&mut Command::new(&program), folder);
    for seed in SEEDS {
        let output = folder.join(format!("moved-{seed}"));
        relink(&program, &["--shuffle", seed], &output, folder);
        assert_eq!(run(&mut Command::new(&output), folder), expected, "--shuffle {seed}");
    }
    let (smaller, _) = support::shrink(&program, &[], "smaller", folder);
    assert_eq!(run(&mut Command::new(&smaller), folder), expected, "shrink");
}
