//! Relinks each file once, whatever number of suites need it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::Context;
use crate::shell::{self, Result};
use crate::stock::report::Outcome;
use crate::stock::sandbox::run_limited;

/// How long relift may take for one file.
const LIMIT: Duration = Duration::from_secs(1800);

/// What became of a file.
#[derive(Clone, Debug)]
pub(super) struct Output {
    pub(super) of: PathBuf,
    /// None if nothing was written.
    pub(super) file: Option<PathBuf>,
    pub(super) outcome: Outcome,
    /// What `relift --json` printed.
    pub(super) said: Value,
}

pub(super) struct Relinker<'c> {
    context: &'c Context,
    folder: PathBuf,
    done: BTreeMap<PathBuf, Output>,
}

impl Relinker<'_> {
    pub(super) fn new(context: &Context) -> Result<Relinker<'_>> {
        let folder = context.directory.join("relinked");
        let _absent = fs::remove_dir_all(&folder);
        shell::create_folder(&folder)?;
        Ok(Relinker { context, folder, done: BTreeMap::new() })
    }

    /// The output for a file. Where the checker finds something, it is written all the same: the suite tells a false alarm from a fault.
    pub(super) fn relink(&mut self, file: &Path) -> Result<Output> {
        if let Some(known) = self.done.get(file) {
            return Ok(known.clone());
        }
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let output = self.folder.join(format!("{}-{name}", self.done.len()));
        let (outcome, said) = run(self.context, file, &output, self.context.check, &[])?;
        let (mut file_of_output, mut said_last) = (Some(output.clone()), said);
        if matches!(outcome, Outcome::Violation(_)) {
            said_last = run(self.context, file, &output, false, &[])?.1;
        }
        if !output.is_file() {
            file_of_output = None;
        }
        let result = Output { of: file.to_owned(), file: file_of_output, outcome, said: said_last };
        self.done.insert(file.to_owned(), result.clone());
        Ok(result)
    }
}

/// Rewrites one file, with these options too; what is printed goes through files beside the output, which are gone then.
pub(super) fn run(context: &Context, input: &Path, output: &Path, check: bool, options: &[&str]) -> Result<(Outcome, Value)> {
    let beside = |extension: &str| {
        let mut name = output.as_os_str().to_owned();
        name.push(extension);
        PathBuf::from(name)
    };
    let (stdout, stderr) = (beside(".out"), beside(".err"));
    let create = |path: &Path| fs::File::create(path).map_err(|error| format!("cannot make {}: {error}", path.display()));
    let mut command = Command::new(&context.relift);
    command.args(context.treatment.command()).arg(input).arg("-o").arg(output);
    command.args(["--verify", "--json"]).args(options);
    if !check {
        command.arg("--no-check");
    }
    command.stdin(Stdio::null()).stdout(create(&stdout)?).stderr(create(&stderr)?);
    let end = run_limited(&mut command, LIMIT);
    let complaint = String::from_utf8_lossy(&shell::read_file(&stderr)?).trim().to_owned();
    let outcome = match end.as_str() {
        "status 0" => Outcome::Relinked,
        "status 1" => Outcome::of_complaint(&complaint, input, output),
        _ => Outcome::Crashed(format!("{end}: {}", complaint.lines().next().unwrap_or_default())),
    };
    let said = serde_json::from_slice(&shell::read_file(&stdout)?).unwrap_or(Value::Null);
    for path in [&stdout, &stderr] {
        fs::remove_file(path).map_err(|error| format!("cannot remove {}: {error}", path.display()))?;
    }
    Ok((outcome, said))
}
