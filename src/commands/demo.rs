//! `relift demo`: the main job on a program that comes with relift, so that a newcomer sees it whole without looking for a program.
//!
//! The program is `fixtures/demo`, built once and embedded: the figures are the same on every machine. It is trained on one script and
//! then compared with the original on another.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use super::{Style, print, train};
use crate::args::{CloneMode, Demo, Rewrite, Separate, Train, Transforms};
use crate::failure::{Failure, Result};
use crate::timing::Timing;

const PROGRAM: &[u8] = include_bytes!("../../fixtures/demo/demo.elf");
const TRAINING_SCRIPT: &[u8] = include_bytes!("../../fixtures/demo/train.demo");
const TEST_SCRIPT: &[u8] = include_bytes!("../../fixtures/demo/test.demo");

pub(crate) fn run(args: &Demo, style: Style, timing: &mut Timing) -> Result<ExitCode> {
    let scratch = tempfile::Builder::new()
        .prefix("relift-demo-")
        .tempdir()
        .map_err(|e| Failure::new(format!("no scratch folder can be made: {e}")))?;
    let folder = args.keep.as_deref().unwrap_or(scratch.path());
    fs::create_dir_all(folder).map_err(|e| Failure::at(folder, e))?;
    let program = put(folder, "demo", PROGRAM)?;
    let training = put(folder, "train.demo", TRAINING_SCRIPT)?;
    let test = put(folder, "test.demo", TEST_SCRIPT)?;
    let output = folder.join("demo.relift");
    if !style.json {
        print("Training an interpreter on one script, optimizing it, and comparing it with the original on another.\n\n")?;
    }
    let job = Train {
        rewrite: Rewrite { input: program.clone(), output: output.clone(), verify: true, no_check: false, debug: None },
        separate: Separate::default(),
        profile: Some(folder.join("demo.rlp")),
        transforms: Transforms {
            only: Vec::new(),
            skip: Vec::new(),
            more: Vec::new(),
            fuel: None,
            clone: CloneMode::None,
            clone_everywhere: false,
            clone_contexts: 0,
            clone_least: 1,
            edit_everywhere: false,
            assume: Vec::new(),
            without_contexts: false,
        },
        workload: vec!["{}".to_owned(), training.display().to_string()],
    };
    let status = train::run(&job, style, timing)?;
    let (before, after) = (behavior(&program, &test)?, behavior(&output, &test)?);
    if (before.status, &before.stdout, &before.stderr) != (after.status, &after.stdout, &after.stderr) {
        return Err(Failure::at(&output, "behaves differently from the original on the test script").hint("please report this"));
    }
    if !style.json {
        print(&format!(
            "\nOn the test script the optimized program printed the same {} bytes and ended with the same status.\n",
            before.stdout.len()
        ))?;
    }
    Ok(status)
}

fn put(folder: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, bytes).map_err(|e| Failure::at(&path, e))?;
    fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(|e| Failure::at(&path, e))?;
    Ok(path)
}

fn behavior(program: &Path, script: &Path) -> Result<Output> {
    Command::new(program).arg(script).output().map_err(|e| Failure::at(program, format!("can't be run: {e}")))
}
