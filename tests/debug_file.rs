//! Separate debug files: the new one is the output's, debuggers find it and are told what they were told of the input, and one that is not the input's is refused.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::Object;
use serde_json::Value;
use support::{End, SMALL, compile, compile_text, installed, only_line, relift, relift_succeeds, repository, run, skipped};

/// A program that was stripped, and its debug file.
struct Split {
    folder: tempfile::TempDir,
    program: PathBuf,
    debug_file: PathBuf,
}

fn succeeds(command: &mut Command, folder: &Path) {
    let done = run(command, folder);
    assert_eq!(done.end, End::Exit(0), "{command:?}: {done:?}");
}

/// Moves the debug information of a program to a file beside it, as packages of distributions have it; `None` without the tool for it.
fn split(name: &str, compiler: &str, flags: &[&str]) -> Option<Split> {
    if !installed("objcopy") || !installed(compiler) {
        skipped(&format!("debug files by objcopy of programs by {compiler}: one of them is not installed"));
        return None;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let here = folder.path();
    let (program, debug_file) = (here.join("program"), here.join("program.debug"));
    let language = if compiler.ends_with("++") { "cc" } else { "c" };
    let source = repository(&format!("fixtures/programs/{name}/{name}.{language}"));
    let flags: Vec<&str> = ["-O2", "-g", "-w", "-Wl,--build-id"].iter().chain(flags).copied().collect();
    compile(compiler, &flags, &[&source], &program).unwrap_or_else(|error| panic!("{error}"));
    succeeds(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug_file]), here);
    strip(&program, here);
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&debug_file);
    succeeds(Command::new("objcopy").arg(link).arg(&program), here);
    Some(Split { folder, program, debug_file })
}

fn strip(program: &Path, folder: &Path) {
    succeeds(Command::new("objcopy").arg("--strip-all").arg(program), folder);
}

impl Split {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `relift optimize` with a debug file and its outputs, before it is run.
    fn optimize(&self, debug_file: &Path) -> Command {
        let mut command = relift();
        command.args(["optimize", "--shuffle", "7"]).arg(&self.program).arg("-o").arg(self.path("output"));
        command.arg("--debug-file").arg(debug_file).arg("--debug-file-output").arg(self.path("output.debug"));
        command
    }

    /// What `relift check` says of the debug information of the outputs.
    fn told(&self, debug_file: &Path) -> Value {
        let mut check = relift();
        check.args(["check", "--json"]).args([&self.program, &self.path("output")]);
        check.arg("--debug-file").arg(debug_file).arg("--debug-file-output").arg(self.path("output.debug"));
        let said = run(&mut check, self.folder.path());
        let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
        assert_eq!(report["violations"].as_array().map(Vec::len), Some(0), "{report:#}");
        report["debug"].clone()
    }

    /// Optimizes, and fails unless debuggers are told the same.
    fn tells_the_same(&self, debug_file: &Path) {
        relift_succeeds(&mut self.optimize(debug_file), self.folder.path());
        let debug = self.told(debug_file);
        assert!(debug["compared"].as_u64() > Some(200), "{debug:#}");
        assert_eq!(debug["different"], 0, "{debug:#}");
    }

    /// The one line of a refusal, after which there is no output.
    fn refusal(&self, debug_file: &Path) -> String {
        let said = run(&mut self.optimize(debug_file), self.folder.path());
        assert_eq!(said.end, End::Exit(1), "{said:?}");
        assert!(!self.path("output").exists() && !self.path("output.debug").exists(), "{said:?}");
        only_line(&said)
    }
}

fn build_id(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    file.build_id().expect("its notes can be read").map(<[u8]>::to_vec)
}

/// Name and checksum of the debug file that a program names.
fn link(path: &Path) -> Option<(String, u32)> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let (name, checksum) = file.gnu_debuglink().expect("the link can be read")?;
    Some((String::from_utf8_lossy(name).into_owned(), checksum))
}

/// CRC-32 as GDB's manual has it, bit by bit.
fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

#[test]
fn the_output_names_its_debug_file_and_both_have_a_build_id_of_their_own() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    relift_succeeds(&mut split.optimize(&split.debug_file), split.folder.path());
    let new = fs::read(split.path("output.debug")).expect("it was written");
    assert_eq!(link(&split.path("output")), Some(("output.debug".to_owned(), checksum(&new))));
    let id = build_id(&split.path("output"));
    assert!(id.is_some() && id != build_id(&split.program), "{id:?}");
    assert_eq!(id, build_id(&split.path("output.debug")));
}

#[test]
fn debuggers_are_told_the_same_by_the_new_debug_file() {
    for (name, compiler) in
        [("cold_paths", "gcc"), ("early_saves", "clang"), ("cpp_exceptions", "g++"), ("cpp_exceptions", "clang++")]
    {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            if let Some(split) = split(name, compiler, &[version]) {
                split.tells_the_same(&split.debug_file);
            }
        }
    }
}

#[test]
fn a_compressed_debug_file_is_brought_up_to_date() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    succeeds(Command::new("objcopy").arg("--compress-debug-sections=zlib").arg(&split.debug_file), split.folder.path());
    split.tells_the_same(&split.debug_file);
}

#[test]
fn the_program_before_it_was_stripped_serves_as_a_debug_file() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let whole = split.path("whole");
    let source = repository("fixtures/programs/cold_paths/cold_paths.c");
    compile("gcc", &["-O2", "-g", "-w", "-Wl,--build-id"], &[&source], &whole).unwrap_or_else(|error| panic!("{error}"));
    split.tells_the_same(&whole);
    let new = fs::read(split.path("output.debug")).expect("it was written");
    let text = object::File::parse(&*new).expect("it is an ELF file");
    let text = object::Object::section_by_name(&text, ".text").expect("its place is told");
    assert_eq!(object::ObjectSection::data(&text), Ok(&[][..]), "no code is in a debug file");
}

#[test]
fn a_program_without_a_build_id_and_its_debug_file_are_recognized_by_their_sections() {
    let Some(split) = split("cold_paths", "gcc", &["-Wl,--build-id=none"]) else { return };
    split.tells_the_same(&split.debug_file);
    let other = small(&split);
    fs::remove_file(split.path("output")).expect("it is there");
    fs::remove_file(split.path("output.debug")).expect("it is there");
    let line = split.refusal(&other);
    assert!(line.contains("a debug file of another program: "), "{line}");
    assert!(line.contains("is not the same in both"), "{line}");
}

/// Another program, with debug information.
fn small(split: &Split) -> PathBuf {
    compile_text(SMALL, &["-O2", "-g", "-Wl,--build-id"], split.folder.path(), "small")
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
    relift_succeeds(&mut split.optimize(&split.debug_file), here);
    let frames = |file: &Path| -> Vec<String> {
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-batch", "-nx", "-ex", "catch throw", "-ex", "run", "-ex", "bt"]).arg(file);
        let text = String::from_utf8_lossy(&run(&mut gdb, here).stdout).into_owned();
        let frames = text.lines().filter(|line| line.starts_with('#'));
        frames.filter_map(|line| Some(line.rsplit_once(" at ")?.1.to_owned())).collect()
    };
    let wanted = frames(&split.program);
    assert!(wanted.len() > 1, "gdb names files and lines of the frames: {wanted:?}");
    assert_eq!(frames(&split.path("output")), wanted);
}

#[test]
fn a_debug_file_that_is_not_the_programs_is_refused_with_the_reason() {
    let Some(split) = split("cold_paths", "gcc", &[]) else { return };
    let other = small(&split);
    assert!(split.refusal(&other).contains("another program: its build id is"), "{}", split.refusal(&other));
    let text = split.path("text");
    fs::write(&text, "no ELF file\n").expect("the scratch folder can be written");
    assert!(split.refusal(&text).contains("not an ELF file"), "{}", split.refusal(&text));
    let stripped = split.path("stripped");
    fs::copy(&split.program, &stripped).expect("the scratch folder can be written");
    assert!(split.refusal(&stripped).contains("without debug information and symbols"), "{}", split.refusal(&stripped));
    assert!(split.refusal(&split.path("nowhere")).contains("can't be read"));
}

#[test]
fn split_debug_information_in_a_debug_file_is_refused() {
    let Some(split) = split("cold_paths", "gcc", &["-gsplit-dwarf"]) else { return };
    let line = split.refusal(&split.debug_file);
    assert!(line.contains("keeps it in another file"), "{line}");
    let object = split.path("object");
    let source = repository("fixtures/programs/cold_paths/cold_paths.c");
    compile("gcc", &["-O2", "-g", "-gsplit-dwarf", "-w", "-c"], &[&source], &object).unwrap_or_else(|error| panic!("{error}"));
    let parts: Vec<PathBuf> = fs::read_dir(split.folder.path())
        .expect("the scratch folder can be listed")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "dwo"))
        .collect();
    let line = split.refusal(&parts[0]);
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
    let whole = fs::read(&split.debug_file).expect("it is there");
    let damaged = split.path("damaged");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as usize % below
    };
    for round in 0..60 {
        let mut bytes = whole.clone();
        match round % 4 {
            0 => bytes.truncate(next(whole.len())),
            // The section headers are last.
            1 => (0..4).for_each(|_| bytes[whole.len() - 1 - next(64 * 40)] = next(256) as u8),
            _ => (0..8).for_each(|_| bytes[next(whole.len())] = next(256) as u8),
        }
        fs::write(&damaged, &bytes).expect("the scratch folder can be written");
        let said = run(split.optimize(&damaged).arg("--no-check"), split.folder.path());
        assert!(matches!(said.end, End::Exit(0 | 1)), "round {round}: {said:?}");
        if said.end == End::Exit(0) {
            let mut check = relift();
            check.arg("check").args([&split.program, &split.path("output")]).arg("--debug-file").arg(&damaged);
            let said = run(check.arg("--debug-file-output").arg(split.path("output.debug")), split.folder.path());
            assert!(matches!(said.end, End::Exit(0 | 1)), "round {round}: {said:?}");
        }
    }
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
