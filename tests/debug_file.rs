//! Separate debug files: the new one is the output's, debuggers find it and are told what they were told of the input, and one that is not the input's is refused.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection, ObjectSymbol};
use serde_json::Value;
use support::split::{link, small, split, split_text, succeeds};
use support::{End, compile, installed, only_line, relift, relift_succeeds, repository, run, skipped};

const OPTIMIZE: [&str; 3] = ["optimize", "--shuffle", "7"];

#[test]
fn the_output_names_its_debug_file_and_both_have_a_build_id_of_their_own() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    relift_succeeds(&mut split.rewrite(&OPTIMIZE, &split.debug_file), split.folder.path());
    split.name_each_other();
}

#[test]
fn debuggers_are_told_the_same_by_the_new_debug_file() {
    for (name, compiler) in
        [("cold_paths", "gcc"), ("early_saves", "clang"), ("cpp_exceptions", "g++"), ("cpp_exceptions", "clang++")]
    {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            if let Some(split) = split(name, compiler, &[version]) {
                split.tells_the_same(&OPTIMIZE, &split.debug_file);
            }
        }
    }
}

#[test]
fn a_compressed_debug_file_is_brought_up_to_date() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    succeeds(Command::new("objcopy").arg("--compress-debug-sections=zlib").arg(&split.debug_file), split.folder.path());
    split.tells_the_same(&OPTIMIZE, &split.debug_file);
}

#[test]
fn the_program_before_it_was_stripped_serves_as_a_debug_file() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let whole = split.path("whole");
    let source = repository("fixtures/programs/cold_paths/cold_paths.c");
    compile("gcc", &["-O2", "-g", "-w", "-Wl,--build-id"], &[&source], &whole).unwrap_or_else(|error| panic!("{error}"));
    split.tells_the_same(&OPTIMIZE, &whole);
    let new = fs::read(split.path("output.debug")).expect("it was written");
    let text = object::File::parse(&*new).expect("it is an ELF file");
    let text = object::Object::section_by_name(&text, ".text").expect("its place is told");
    assert_eq!(object::ObjectSection::data(&text), Ok(&[][..]), "no code is in a debug file");
}

#[test]
fn a_program_without_a_build_id_and_its_debug_file_are_recognized_by_their_sections() {
    let Some(split) = split("cold_paths", "gcc", &["-Wl,--build-id=none"]) else { return };
    split.tells_the_same(&OPTIMIZE, &split.debug_file);
    let other = small(&split);
    fs::remove_file(split.path("output")).expect("it is there");
    fs::remove_file(split.path("output.debug")).expect("it is there");
    let line = split.refusal(&OPTIMIZE, &other);
    assert!(line.contains("a debug file of another program: "), "{line}");
    assert!(line.contains("is not the same in both"), "{line}");
}

#[test]
fn a_training_writes_the_debug_file_of_its_output() {
    let Some(split) = split("cpp_exceptions", "g++", &[]) else { return };
    let mut train = relift();
    train.args(["train", "--edit-everywhere"]).arg(&split.program).arg("-o").arg(split.path("output"));
    train.arg("--debug-file").arg(&split.debug_file).arg("--debug-file-output").arg(split.path("output.debug"));
    relift_succeeds(train.args(["--", "{}"]), split.folder.path());
    let debug = split.told(&split.debug_file);
    assert!(debug["compared"].as_u64() > Some(200), "{debug:#}");
    assert_eq!(debug["different"], 0, "{debug:#}");
}

#[test]
fn a_backtrace_in_gdb_by_the_new_debug_file_is_that_of_the_original() {
    if !installed("gdb") {
        return skipped("gdb's backtraces: it is not installed");
    }
    let Some(split) = split("cpp_exceptions", "g++", &[]) else { return };
    let here = split.folder.path();
    relift_succeeds(&mut split.rewrite(&OPTIMIZE, &split.debug_file), here);
    let frames = |file: &Path| split.frames(file, &["catch throw", "run", "bt"]);
    let wanted = frames(&split.program);
    assert!(wanted.len() > 1, "gdb names files and lines of the frames: {wanted:?}");
    assert_eq!(frames(&split.path("output")), wanted);
}

#[test]
fn a_debug_file_that_is_not_the_programs_is_refused_with_the_reason() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let other = small(&split);
    assert!(
        split.refusal(&OPTIMIZE, &other).contains("another program: its build id is"),
        "{}",
        split.refusal(&OPTIMIZE, &other)
    );
    let text = split.path("text");
    fs::write(&text, "no ELF file\n").expect("the scratch folder can be written");
    assert!(split.refusal(&OPTIMIZE, &text).contains("not an ELF file"), "{}", split.refusal(&OPTIMIZE, &text));
    let stripped = split.path("stripped");
    fs::copy(&split.program, &stripped).expect("the scratch folder can be written");
    assert!(
        split.refusal(&OPTIMIZE, &stripped).contains("without debug information and symbols"),
        "{}",
        split.refusal(&OPTIMIZE, &stripped)
    );
    assert!(split.refusal(&OPTIMIZE, &split.path("nowhere")).contains("can't be read"));
}

#[test]
fn split_debug_information_in_a_debug_file_is_refused() {
    let Some(split) = split("cold_paths", "gcc", &["-gsplit-dwarf"]) else { return };
    let line = split.refusal(&OPTIMIZE, &split.debug_file);
    assert!(line.contains("keeps it in another file"), "{line}");
    let object = split.path("object");
    let source = repository("fixtures/programs/cold_paths/cold_paths.c");
    compile("gcc", &["-O2", "-g", "-gsplit-dwarf", "-w", "-c"], &[&source], &object).unwrap_or_else(|error| panic!("{error}"));
    let parts: Vec<PathBuf> = fs::read_dir(split.folder.path())
        .expect("the scratch folder can be listed")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "dwo"))
        .collect();
    let line = split.refusal(&OPTIMIZE, &parts[0]);
    assert!(line.contains("split debug information"), "{line}");
}

#[test]
fn no_debug_file_takes_the_place_of_what_is_needed() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let before = fs::read(&split.program).expect("it is there");
    for taken in [&split.program, &split.path("output")] {
        let mut command = relift();
        command.arg("optimize").arg(&split.program).arg("-o").arg(split.path("output"));
        command.arg("--debug-file").arg(&split.debug_file).arg("--debug-file-output").arg(taken);
        let said = run(&mut command, split.folder.path());
        assert_eq!(said.end, End::Exit(1), "{said:?}");
        assert!(only_line(&said).contains("not written: it is the "), "{said:?}");
    }
    assert_eq!(fs::read(&split.program).expect("it is there"), before);
    let mut command = relift();
    command.arg("optimize").arg(&split.program).arg("-o").arg(split.path("output")).arg("--debug-file").arg(&split.debug_file);
    assert_eq!(run(&mut command, split.folder.path()).end, End::Exit(2), "one of both options alone is wrong usage");
}

#[test]
fn a_damaged_debug_file_is_an_error_or_is_read_but_never_a_crash() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    split.survives_damage(&OPTIMIZE, 60);
}

#[test]
fn symbols_that_are_packed_into_the_program_are_left_out_for_they_name_old_places() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let data = split.path("data");
    fs::write(&data, [0; 64]).expect("the scratch folder can be written");
    let mut section = std::ffi::OsString::from("--add-section=.gnu_debugdata=");
    section.push(&data);
    succeeds(Command::new("objcopy").arg(section).arg(&split.program), split.folder.path());
    let mut command = relift();
    command.args(["optimize", "--json", "--shuffle", "7"]).arg(&split.program).arg("-o").arg(split.path("output"));
    let said = relift_succeeds(&mut command, split.folder.path());
    let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let dropped: Vec<&str> = report["dropped_sections"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert!(dropped.contains(&".gnu_debugdata") && dropped.contains(&".gnu_debuglink"), "{report:#}");
    assert_eq!(link(&split.path("output")), None);
}

/// `rustc`'s libraries export one symbol of a section that is not loaded, and `strip` renumbers sections but not what is loaded: so it may be in the link to the debug file.
#[test]
fn a_dynamic_symbol_in_the_link_stays_one_that_is_defined() {
    const EXPORTING: &str = "int told[2] = { 3, 4 };\nint main(int argc, char **argv) { return argc + 41; }\n";
    let Some(split) = split_text(EXPORTING, &["-O1", "-rdynamic"]) else { return };
    let mut bytes = fs::read(&split.program).expect("it is there");
    let (place, in_link) = section_of_told(&bytes);
    assert_ne!(in_link, 0);
    bytes[place..place + 2].copy_from_slice(&in_link.to_le_bytes());
    bytes[place + 2..place + 10].fill(0);
    fs::write(&split.program, &bytes).expect("the scratch folder can be written");
    for command in [&["optimize", "--shuffle", "7"][..], &["shrink"]] {
        let mut alone = relift();
        relift_succeeds(alone.args(command).arg(&split.program).arg("-o").arg(split.path("output")), split.folder.path());
        let output = fs::read(split.path("output")).expect("it was written");
        let (place, _) = section_of_told(&output);
        assert!((1..0xff00).contains(&u16::from_le_bytes([output[place], output[place + 1]])), "{command:?}");
    }
    // The new link is where the old one was.
    for command in [&["optimize", "--shuffle", "7"][..], &["shrink"]] {
        relift_succeeds(&mut split.rewrite(command, &split.debug_file), split.folder.path());
        let output = fs::read(split.path("output")).expect("it was written");
        let (place, in_link) = section_of_told(&output);
        assert_eq!(u16::from_le_bytes([output[place], output[place + 1]]), in_link, "{command:?}");
    }
}

/// Where in the file the number of the section of `told` is, and the number of the link, or 0.
fn section_of_told(bytes: &[u8]) -> (usize, u16) {
    let file = object::File::parse(bytes).expect("it is an ELF file");
    let symbol = file.dynamic_symbols().find(|symbol| symbol.name() == Ok("told")).expect("it is exported");
    let table = file.section_by_name(".dynsym").and_then(|section| section.file_range()).expect("it is in the file").0;
    let link = file.section_by_name(".gnu_debuglink").map_or(0, |section| section.index().0 as u16);
    (table as usize + 24 * symbol.index().0 + 6, link)
}
