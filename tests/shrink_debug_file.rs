//! Separate debug files of programs that are made smaller: the new one has the output's headers, says the same of code that is there, and nothing of code that is gone.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, SymbolSection};
use serde_json::Value;
use support::split::{Split, link, small, split, split_text, succeeds};
use support::{End, RELOCATED, compile, installed, only_line, relift, relift_succeeds, repository, run, skipped};

const SHRINK: [&str; 4] = ["shrink", "--relr", "on", "--verify"];

/// Some of it is dead, two functions do the same.
const PARTLY_DEAD: &str = r#"
#include <stdio.h>
#define LONG(n) volatile int sum = n; for (int i = 0; i < n; i++) { sum += i * n; printf("%s", sum == -1 ? "never\n" : ""); } return sum;
__attribute__((noinline, used)) static int dead(int n) { LONG(n) }
__attribute__((noinline, used)) static int dead_too(int n) { return n > 3 ? dead(n) + dead(n + 1) : 7; }
__attribute__((noipa)) static int one(const int *values, int count) { int sum = 3; while (count--) sum += values[count] * 5; return sum; }
__attribute__((noipa)) static int other(const int *values, int count) { int sum = 3; while (count--) sum += values[count] * 5; return sum; }
int main(int argc, char **argv) {
    int values[3] = { argc, 2, 3 };
    printf("%d %d\n", one(values, 3), other(values, 2));
    return 42;
}
"#;

/// The report of a run that must succeed.
fn report(split: &Split, options: &[&str]) -> Value {
    let how: Vec<&str> = SHRINK.iter().chain(&["--json"]).chain(options).copied().collect();
    let said = relift_succeeds(&mut split.rewrite(&how, &split.debug_file), split.folder.path());
    serde_json::from_slice(&said.stdout).expect("--json prints JSON")
}

fn same_when_run(split: &Split) {
    let expected = run(&mut Command::new(&split.program), split.folder.path());
    assert_eq!(run(&mut Command::new(split.path("output")), split.folder.path()), expected);
}

/// Names and places of loaded sections, and the number of loaded segments.
fn places(path: &Path) -> (BTreeSet<(String, u64, u64)>, usize) {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let is_loaded = |flags| matches!(flags, SectionFlags::Elf { sh_flags } if sh_flags & 2 != 0);
    let loaded = file.sections().filter(|section| is_loaded(section.flags()));
    let place =
        |section: object::Section<'_, '_>| (section.name().expect("it has a name").to_owned(), section.address(), section.size());
    let segments = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
    let loads = (0..segments).filter(|index| bytes[64 + 56 * index..][..4] == [1, 0, 0, 0]).count();
    (loaded.map(place).collect(), loads)
}

/// Names of functions, each in a section that holds it.
fn functions(path: &Path) -> BTreeSet<String> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let functions = file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_definition());
    let checked = functions.map(|symbol| {
        let SymbolSection::Section(index) = symbol.section() else { panic!("{symbol:?} is nowhere") };
        let section = file.section_by_index(index).expect("it is there");
        let range = section.address()..=section.address() + section.size();
        assert!(range.contains(&symbol.address()), "{symbol:?} is not in {:?}", section.name());
        symbol.name().expect("it has a name").to_owned()
    });
    checked.collect()
}

/// The contents of a section of debug information.
fn contents(path: &Path, name: &str) -> Vec<u8> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let section = file.section_by_name(name).expect("it has the section");
    section.uncompressed_data().expect("it can be read").into_owned()
}

#[test]
fn a_smaller_program_and_its_new_debug_file_name_each_other_whatever_is_left_out() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    for options in [&[][..], &["--strip"], &["--only", "holes"], &["--only", "unwind-entries,holes"], &["--pack", "safe"]] {
        report(&split, options);
        split.name_each_other();
        same_when_run(&split);
        assert_eq!(places(&split.path("output")), places(&split.path("output.debug")), "{options:?}");
    }
}

#[test]
fn debuggers_are_told_the_same_of_a_smaller_program_by_the_new_debug_file() {
    for (name, compiler) in [
        ("cold_paths", "gcc"),
        ("early_saves", "clang"),
        ("equal_functions", "gcc"),
        ("cpp_exceptions", "g++"),
        ("cpp_exceptions", "clang++"),
    ] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            if let Some(split) = split(name, compiler, &[version]) {
                split.tells_the_same(&SHRINK, &split.debug_file);
                same_when_run(&split);
            }
        }
    }
}

#[test]
fn the_debug_file_of_a_program_at_a_fixed_address_is_kept_true() {
    for flags in [&["-no-pie"][..], &["-no-pie", "-static"]] {
        let Some(split) = split("cpp_exceptions", "g++", flags) else { return };
        split.tells_the_same(&SHRINK, &split.debug_file);
        split.name_each_other();
        same_when_run(&split);
    }
}

#[test]
fn a_compressed_debug_file_stays_compressed_and_true() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    succeeds(Command::new("objcopy").arg("--compress-debug-sections=zlib").arg(&split.debug_file), split.folder.path());
    split.tells_the_same(&SHRINK, &split.debug_file);
    let bytes = fs::read(split.path("output.debug")).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let info = file.section_by_name(".debug_info").expect("it has entries").compressed_data().expect("it can be read");
    assert_ne!(info.format, object::CompressionFormat::None);
}

#[test]
fn what_is_gone_has_no_name_in_the_new_debug_file_and_what_is_folded_has_one_place() {
    let Some(split) = split_text(PARTLY_DEAD, &["-O1"]) else { return };
    let report = report(&split, &[]);
    let functions = functions(&split.path("output.debug"));
    assert!(!functions.contains("dead") && !functions.contains("dead_too"), "{functions:?}");
    assert!(functions.contains("main") && functions.contains("one"), "{functions:?}");
    let gone = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "dead-code");
    assert_eq!(gone.map(|saving| saving["count"].as_u64()), Some(Some(2)), "{report:#}");
    assert_eq!(split.told(&split.debug_file)["different"], 0, "{report:#}");
}

#[test]
fn a_debug_file_follows_segments_that_are_cut_and_tables_that_move() {
    let Some(split) = split_text(RELOCATED, &["-O1", "-fPIE", "-pie", "-Wl,-z,noseparate-code"]) else { return };
    let report = report(&split, &[]);
    assert!(report["cuts"].as_u64() >= Some(1), "{report:#}");
    let (output, new) = (places(&split.path("output")), places(&split.path("output.debug")));
    assert_eq!(output, new);
    assert!(output.1 > places(&split.program).1, "a segment became two");
    assert_eq!(functions(&split.path("output.debug")), functions(&split.debug_file));
    split.name_each_other();
    assert_eq!(split.told(&split.debug_file)["different"], 0);
    same_when_run(&split);
}

#[test]
fn of_code_that_stays_the_debug_file_says_what_it_said() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    report(&split, &["--only", "holes,spread,relr,hash"]);
    for name in [".debug_info", ".debug_line", ".debug_abbrev", ".debug_str"] {
        assert_eq!(contents(&split.path("output.debug"), name), contents(&split.debug_file, name), "{name}");
    }
    assert_eq!(split.told(&split.debug_file)["different"], 0);
}

#[test]
fn a_program_that_gets_no_smaller_changes_in_nothing_but_what_names_its_debug_file() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let report = report(&split, &["--only", "hash"]);
    let said = report["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    assert!(said.iter().any(|line| line.starts_with("nothing makes this file smaller")), "{said:?}");
    assert_eq!(report["output_bytes"].as_u64(), Some(support::size(&split.path("output"))));
    split.name_each_other();
    same_when_run(&split);
    assert_eq!(contents(&split.path("output"), ".text"), contents(&split.program, ".text"));
    assert_eq!(split.told(&split.debug_file)["different"], 0);
}

#[test]
fn a_program_that_named_no_debug_file_names_the_new_one() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    succeeds(Command::new("objcopy").args(["--remove-section", ".gnu_debuglink"]).arg(&split.program), split.folder.path());
    assert_eq!(link(&split.program), None);
    for options in [&[][..], &["--only", "holes"], &["--only", "hash"]] {
        report(&split, options);
        split.name_each_other();
        assert_eq!(split.told(&split.debug_file)["different"], 0, "{options:?}");
    }
}

#[test]
fn bytes_behind_a_program_stay_and_a_link_that_would_move_them_is_refused() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let mut bytes = fs::read(&split.program).expect("it is there");
    bytes.extend_from_slice(&b"an archive that the program finds by its end".repeat(40));
    fs::write(&split.program, &bytes).expect("the scratch folder can be written");
    // The old link has room for a name of twelve to fifteen letters, not for more.
    report(&split, &[]);
    assert!(fs::read(split.path("output")).expect("it was written").ends_with(&bytes[bytes.len() - 40 * 44..]));
    split.name_each_other();
    same_when_run(&split);
    assert_eq!(split.told(&split.debug_file)["different"], 0);
    fs::remove_file(split.path("output")).expect("it was written");
    let mut command = relift();
    command.arg("shrink").arg(&split.program).arg("-o").arg(split.path("output")).arg("--debug-file").arg(&split.debug_file);
    let said = run(command.arg("--debug-file-output").arg(split.path("a.longer.name.debug")), split.folder.path());
    assert_eq!(said.end, End::Exit(1), "{said:?}");
    assert!(only_line(&said).contains("bytes follow the ELF file"), "{said:?}");
    assert!(!split.path("output").exists());
}

#[test]
fn strip_leaves_the_link_and_the_headers_by_which_debuggers_find_it() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    // One that has symbols still.
    let source = repository("fixtures/programs/cold_paths/cold_paths.c");
    compile("gcc", &["-O2", "-w", "-g", "-Wl,--build-id"], &[&source], &split.program).unwrap_or_else(|error| panic!("{error}"));
    split.tells_the_same(&[&SHRINK[..], &["--strip"]].concat(), &split.debug_file);
    let bytes = fs::read(split.path("output")).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    for name in [".symtab", ".strtab", ".comment", ".debug_info"] {
        assert!(file.section_by_name(name).is_none(), "{name} is there");
    }
    split.name_each_other();
    same_when_run(&split);
}

#[test]
fn a_smaller_program_and_its_debug_file_can_be_rewritten_again() {
    let Some(mut split) = split("cpp_exceptions", "g++", &[]) else { return };
    report(&split, &[]);
    let (program, debug_file) = (split.path("smaller"), split.path("smaller.debug"));
    fs::rename(split.path("output"), &program).expect("it was written");
    fs::rename(split.path("output.debug"), &debug_file).expect("it was written");
    (split.program, split.debug_file) = (program, debug_file);
    for how in [&SHRINK[..], &["optimize", "--shuffle", "3"]] {
        split.tells_the_same(how, &split.debug_file);
        same_when_run(&split);
    }
}

#[test]
fn a_backtrace_in_gdb_of_a_smaller_program_is_that_of_the_original() {
    if !installed("gdb") {
        return skipped("gdb's backtraces: it is not installed");
    }
    let Some(split) = split("cpp_exceptions", "g++", &[]) else { return };
    let frames = |file: &Path| split.frames(file, &["catch throw", "run", "bt"]);
    let wanted = frames(&split.program);
    assert!(wanted.len() > 1, "gdb names files and lines of the frames: {wanted:?}");
    for options in [&[][..], &["--strip"], &["--only", "holes"]] {
        report(&split, options);
        assert_eq!(frames(&split.path("output")), wanted, "{options:?}");
    }
}

#[test]
fn a_debug_file_that_can_not_be_the_smaller_programs_is_refused_whatever_else_could_be_done() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let other = small(&split);
    let text = split.path("text");
    fs::write(&text, "no ELF file\n").expect("the scratch folder can be written");
    let copy = split.path("copy");
    fs::copy(&split.program, &copy).expect("the scratch folder can be written");
    for (file, why) in [
        (&other, "another program: its build id is"),
        (&text, "not an ELF file"),
        (&copy, "without debug information and symbols"),
        (&split.path("nowhere"), "can't be read"),
    ] {
        let line = split.refusal(&SHRINK, file);
        assert!(line.contains(why), "{line}");
    }
    let mut command = split.rewrite(&SHRINK, &split.debug_file);
    assert_eq!(run(command.args(["--debug-file-output"]).arg(&split.program), split.folder.path()).end, End::Exit(2));
    let Some(apart) = self::split("cold_paths", "gcc", &["-gsplit-dwarf"]) else { return };
    let line = apart.refusal(&SHRINK, &apart.debug_file);
    assert!(line.contains("keeps it in another file"), "{line}");
}

#[test]
fn neither_output_takes_the_place_of_an_input_or_of_the_other() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let before = (fs::read(&split.program).expect("it is there"), fs::read(&split.debug_file).expect("it is there"));
    let output = split.path("output");
    let pairs: [(&PathBuf, &PathBuf); 3] = [(&output, &split.program), (&output, &output), (&split.debug_file, &output)];
    for (program, debug_file) in pairs {
        let mut command = relift();
        command.arg("shrink").arg(&split.program).arg("-o").arg(program);
        command.arg("--debug-file").arg(&split.debug_file).arg("--debug-file-output").arg(debug_file);
        let said = run(&mut command, split.folder.path());
        assert_eq!(said.end, End::Exit(1), "{said:?}");
        assert!(only_line(&said).contains("not written: it is the "), "{said:?}");
    }
    let mut command = relift();
    command.arg("shrink").arg(&split.program).arg("-o").arg(&output).arg("--debug-file").arg(&split.debug_file);
    command.arg("--debug-file-output").arg(split.path("no folder").join("output.debug"));
    assert_eq!(run(&mut command, split.folder.path()).end, End::Exit(1));
    assert!(!output.exists(), "a program whose debug file can't be written is not written either");
    assert_eq!((fs::read(&split.program).expect("it is there"), fs::read(&split.debug_file).expect("it is there")), before);
}

#[test]
fn a_damaged_debug_file_of_a_smaller_program_is_an_error_or_is_read_but_never_a_crash() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    split.survives_damage(&SHRINK, 60);
    split.survives_damage(&["shrink", "--only", "holes"], 40);
}
