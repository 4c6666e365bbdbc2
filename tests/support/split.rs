//! Programs that were stripped, with their debug information in a file of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::Object;
use serde_json::Value;

use super::{
    End, SMALL, c_compilers, compile, compile_text, installed, only_line, relift, relift_succeeds, repository, run, skipped,
};

/// A program that was stripped, and its debug file.
pub struct Split {
    pub folder: tempfile::TempDir,
    pub program: PathBuf,
    pub debug_file: PathBuf,
}

pub fn succeeds(command: &mut Command, folder: &Path) {
    let done = run(command, folder);
    assert_eq!(done.end, End::Exit(0), "{command:?}: {done:?}");
}

/// Moves the debug information of a program to a file beside it, as packages of distributions have it; `None` without the tool for it.
pub fn split(name: &str, compiler: &str, flags: &[&str]) -> Option<Split> {
    if !installed("objcopy") || !installed(compiler) {
        skipped(&format!("debug files by objcopy of programs by {compiler}: one of them is not installed"));
        return None;
    }
    let language = if compiler.ends_with("++") { "cc" } else { "c" };
    Some(split_source(&repository(&format!("fixtures/programs/{name}/{name}.{language}")), compiler, flags))
}

/// The same, of a C text; `None` without the tool for it.
pub fn split_text(text: &str, flags: &[&str]) -> Option<Split> {
    if !installed("objcopy") {
        skipped("debug files by objcopy: it is not installed");
        return None;
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let source = folder.path().join("program.c");
    fs::write(&source, text).expect("the scratch folder can be written");
    Some(split_source(&source, c_compilers()[0], flags))
}

fn split_source(source: &Path, compiler: &str, flags: &[&str]) -> Split {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let here = folder.path();
    let (program, debug_file) = (here.join("program"), here.join("program.debug"));
    let flags: Vec<&str> = ["-O2", "-g", "-w", "-Wl,--build-id"].iter().chain(flags).copied().collect();
    compile(compiler, &flags, &[source], &program).unwrap_or_else(|error| panic!("{error}"));
    succeeds(Command::new("objcopy").arg("--only-keep-debug").args([&program, &debug_file]), here);
    strip(&program, here);
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(&debug_file);
    succeeds(Command::new("objcopy").arg(link).arg(&program), here);
    Split { folder, program, debug_file }
}

pub fn strip(program: &Path, folder: &Path) {
    succeeds(Command::new("objcopy").arg("--strip-all").arg(program), folder);
}

impl Split {
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of relift's with a debug file and its outputs, before it is run.
    pub fn rewrite(&self, how: &[&str], debug_file: &Path) -> Command {
        let mut command = relift();
        command.args(how).arg(&self.program).arg("-o").arg(self.path("output"));
        command.arg("--debug-file").arg(debug_file).arg("--debug-file-output").arg(self.path("output.debug"));
        command
    }

    /// What `relift check` says of the debug information of the outputs.
    pub fn told(&self, debug_file: &Path) -> Value {
        let mut check = relift();
        check.args(["check", "--json"]).args([&self.program, &self.path("output")]);
        check.arg("--debug-file").arg(debug_file).arg("--debug-file-output").arg(self.path("output.debug"));
        let said = run(&mut check, self.folder.path());
        let report: Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
        assert_eq!(report["violations"].as_array().map(Vec::len), Some(0), "{report:#}");
        report["debug"].clone()
    }

    /// Makes the outputs, and fails unless debuggers are told the same.
    pub fn tells_the_same(&self, how: &[&str], debug_file: &Path) {
        relift_succeeds(&mut self.rewrite(how, debug_file), self.folder.path());
        let debug = self.told(debug_file);
        assert!(debug["compared"].as_u64() > Some(200), "{debug:#}");
        assert_eq!(debug["different"], 0, "{debug:#}");
    }

    /// The one line of a refusal, after which there is no output.
    pub fn refusal(&self, how: &[&str], debug_file: &Path) -> String {
        let said = run(&mut self.rewrite(how, debug_file), self.folder.path());
        assert_eq!(said.end, End::Exit(1), "{said:?}");
        assert!(!self.path("output").exists() && !self.path("output.debug").exists(), "{said:?}");
        only_line(&said)
    }

    /// Fails unless the output names its debug file as debuggers ask, and both have a build id of their own.
    pub fn name_each_other(&self) {
        let new = fs::read(self.path("output.debug")).expect("it was written");
        assert_eq!(link(&self.path("output")), Some(("output.debug".to_owned(), checksum(&new))));
        let id = build_id(&self.path("output"));
        assert!(id.is_some() && id != build_id(&self.program), "{id:?}");
        assert_eq!(id, build_id(&self.path("output.debug")));
    }

    /// Files and lines of the frames that gdb shows where these commands have led it.
    pub fn frames(&self, program: &Path, commands: &[&str]) -> Vec<String> {
        let mut gdb = Command::new("gdb");
        gdb.args(["-q", "-batch", "-nx"]);
        commands.iter().for_each(|command| {
            gdb.args(["-ex", command]);
        });
        let text = String::from_utf8_lossy(&run(gdb.arg(program), self.folder.path()).stdout).into_owned();
        let frames = text.lines().filter(|line| line.starts_with('#'));
        frames.filter_map(|line| Some(line.rsplit_once(" at ")?.1.to_owned())).collect()
    }

    /// Runs a command on so many damaged debug files: each is refused, or the outputs can be read.
    pub fn survives_damage(&self, how: &[&str], rounds: usize) {
        let whole = fs::read(&self.debug_file).expect("it is there");
        let damaged = self.path("damaged");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % below
        };
        for round in 0..rounds {
            let mut bytes = whole.clone();
            match round % 4 {
                0 => bytes.truncate(next(whole.len())),
                // The section headers are last.
                1 => (0..4).for_each(|_| bytes[whole.len() - 1 - next(64 * 40)] = next(256) as u8),
                _ => (0..8).for_each(|_| bytes[next(whole.len())] = next(256) as u8),
            }
            fs::write(&damaged, &bytes).expect("the scratch folder can be written");
            let said = run(self.rewrite(how, &damaged).arg("--no-check"), self.folder.path());
            assert!(matches!(said.end, End::Exit(0 | 1)), "round {round}: {said:?}");
            if said.end == End::Exit(0) {
                let mut check = relift();
                check.arg("check").args([&self.program, &self.path("output")]).arg("--debug-file").arg(&damaged);
                let said = run(check.arg("--debug-file-output").arg(self.path("output.debug")), self.folder.path());
                assert!(matches!(said.end, End::Exit(0 | 1)), "round {round}: {said:?}");
            }
        }
    }
}

pub fn build_id(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    file.build_id().expect("its notes can be read").map(<[u8]>::to_vec)
}

/// Name and checksum of the debug file that a program names.
pub fn link(path: &Path) -> Option<(String, u32)> {
    let bytes = fs::read(path).expect("the file was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let (name, checksum) = file.gnu_debuglink().expect("the link can be read")?;
    Some((String::from_utf8_lossy(name).into_owned(), checksum))
}

/// CRC-32 as GDB's manual has it, bit by bit.
pub fn checksum(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), |crc, _| step(crc)))
}

/// Another program, with debug information.
pub fn small(split: &Split) -> PathBuf {
    compile_text(SMALL, &["-O2", "-g", "-Wl,--build-id"], split.folder.path(), "small")
}
