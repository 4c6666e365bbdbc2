//! One program of the suite: profile, outputs, measurements.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::judge::{self, Judged};
use super::programs::Program;
use super::time::{self, Used};
use super::tools::{self, Cost, Dyno};
use crate::shell::{self, Result};
use crate::workload;

/// How long a workload may take, under the slowest of valgrind's tools: a program that hangs must not hold up the others.
const SECONDS_MAX: u64 = 3600;

/// What all programs share.
pub(super) struct Bench {
    pub(super) relift: PathBuf,
    pub(super) relift_options: Vec<String>,
    pub(super) bolt: String,
    pub(super) merge_fdata: String,
    pub(super) rounds: usize,
    /// How much time the input must need in a round.
    pub(super) round_seconds: f64,
    pub(super) wants_time: bool,
    pub(super) wants_counts: bool,
    pub(super) directory: PathBuf,
    /// What runs a program and writes down the time that it took.
    pub(super) timed: PathBuf,
}

/// One program, with the folder that everything made of it goes to.
pub(super) struct Subject<'a> {
    pub(super) program: &'a Program,
    pub(super) input: PathBuf,
    pub(super) folder: PathBuf,
    build: PathBuf,
}

/// What was measured of one binary.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) judged: Option<Judged>,
    pub(super) stripped_bytes: u64,
    /// Of each timed round.
    pub(super) rounds: Vec<Used>,
    pub(super) cost: Cost,
    pub(super) dyno: Option<Dyno>,
}

/// A line of each table.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) input: Measured,
    /// BOLT's output, or how BOLT failed.
    pub(super) bolt: Result<Measured>,
    pub(super) relift: Measured,
    /// relift's output from the input without symbols and relocations; nothing was timed.
    pub(super) stripped: Option<Measured>,
    /// What relift costs with its own check of the output.
    pub(super) checked: Cost,
    /// How often a round repeats the workload.
    pub(super) repeats: usize,
}

/// What a workload printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) stdout: Vec<u8>,
    status: Option<i32>,
}

impl Bench {
    pub(super) fn row(&self, program: &Program) -> Result<Row> {
        let subject = self.subject(program)?;
        let (profile, bolt_problem) = tools::profile(self, &subject)?;
        let (bolted, relifted) = (subject.folder.join("bolt"), subject.folder.join("relift"));
        let mut bolt = match bolt_problem {
            Some(problem) => Err(problem),
            None => self.bolted(&subject, &profile, &bolted),
        };
        let mut costs = Vec::new();
        let mut dyno = Dyno::default();
        for _ in 0..self.tool_runs() {
            let (cost, counted) = tools::relift(self, &subject, &subject.input, &profile, &relifted, &["--no-check"])?;
            costs.push(cost);
            dyno = counted;
        }
        let (checked, _) = tools::relift(self, &subject, &subject.input, &profile, &relifted, &[])?;
        let relift = Measured { cost: Cost::median(costs), dyno: Some(dyno), ..Measured::default() };
        let expected = self.run_program(&subject, &subject.input)?;
        expected.require_success("bench")?;
        if self.run_program(&subject, &relifted)? != expected {
            return Err(format!("{} does not print what the input prints", relifted.display()));
        }
        if bolt.is_ok() && self.run_program(&subject, &bolted)? != expected {
            bolt = Err("its output does not print what the input prints".into());
        }
        let mut row =
            Row { label: program.label(), input: Measured::default(), bolt, relift, stripped: None, checked, repeats: 0 };
        if self.wants_time {
            self.time(&subject, &bolted, &relifted, &expected, &mut row)?;
        }
        let others = [(&mut row.input, &subject.input), (&mut row.relift, &relifted)];
        for (measured, binary) in others.into_iter().chain(row.bolt.as_mut().ok().map(|bolt| (bolt, &bolted))) {
            measured.judged = judge::judge(self, &subject, binary)?;
            measured.stripped_bytes = tools::stripped_size(&subject, binary)?;
        }
        row.stripped = match self.without_relocations(&subject, &profile, &expected) {
            Ok(measured) => Some(measured),
            Err(problem) => {
                shell::say(&format!("{} stripped: {problem}", row.label));
                None
            }
        };
        Ok(row)
    }

    /// A program of the suite, built.
    pub(super) fn subject<'a>(&self, program: &'a Program) -> Result<Subject<'a>> {
        let input = program.binary(&self.directory)?;
        let folder = self.directory.join("bench").join(format!("{}-{}", program.name, program.form));
        shell::create_folder(&folder)?;
        Ok(Subject { program, input, build: program.build_folder(&self.directory), folder })
    }

    fn time(&self, subject: &Subject<'_>, bolted: &Path, relifted: &Path, expected: &Said, row: &mut Row) -> Result {
        match &mut row.bolt {
            Ok(bolt) => {
                let binaries = [&subject.input, bolted, relifted];
                ([row.input.rounds, bolt.rounds, row.relift.rounds], row.repeats) =
                    time::measure(self, subject, binaries, expected)?;
            }
            Err(_) => {
                let binaries = [&subject.input, relifted];
                ([row.input.rounds, row.relift.rounds], row.repeats) = time::measure(self, subject, binaries, expected)?;
            }
        }
        Ok(())
    }

    /// How often each tool runs: its time is the median.
    fn tool_runs(&self) -> usize {
        if self.wants_time { 3 } else { 1 }
    }

    fn bolted(&self, subject: &Subject<'_>, profile: &Path, output: &Path) -> Result<Measured> {
        let mut costs = Vec::new();
        let mut dyno = Dyno::default();
        for _ in 0..self.tool_runs() {
            let (cost, counted) = tools::bolt(self, subject, profile, output)?;
            costs.push(cost);
            dyno = counted;
        }
        Ok(Measured { cost: Cost::median(costs), dyno: Some(dyno), ..Measured::default() })
    }

    /// The input as a release would ship it: no symbols, no relocations. The profile then goes by address.
    fn without_relocations(&self, subject: &Subject<'_>, profile: &Path, expected: &Said) -> Result<Measured> {
        let (bare, addresses, output) =
            (subject.folder.join("bare"), subject.folder.join("profile.addresses"), subject.folder.join("relift-bare"));
        shell::run(Command::new("strip").arg("-o").arg(&bare).arg(&subject.input))?;
        let mut convert = Command::new(&self.relift);
        convert.args(["profile", "convert"]).arg(profile).arg("-o").arg(&addresses);
        shell::run(convert.args(["--format", "preaggregated", "--program"]).arg(&subject.input))?;
        let (cost, dyno) = tools::relift(self, subject, &bare, &addresses, &output, &["--no-check"])?;
        if self.run_program(subject, &output)? != *expected {
            return Err(format!("{} does not print what the input prints", output.display()));
        }
        let judged = judge::judge(self, subject, &output)?;
        let stripped_bytes = tools::stripped_size(subject, &output)?;
        Ok(Measured { judged, stripped_bytes, cost, dyno: Some(dyno), rounds: Vec::new() })
    }

    /// Runs the evaluation workload with `binary`.
    pub(super) fn run_program(&self, subject: &Subject<'_>, binary: &Path) -> Result<Said> {
        self.run_workload(subject, "bench", &format!("#!/bin/sh\nexec \"{}\" \"$@\"\n", binary.display()))
    }

    /// Runs `fixtures/workloads/<program>/<name>.sh` with `script` in place of the program.
    pub(super) fn run_workload(&self, subject: &Subject<'_>, name: &str, script: &str) -> Result<Said> {
        let bin = subject.folder.join("bin");
        shell::create_folder(&bin)?;
        let placed = bin.join(subject.program.name);
        shell::write_file(&placed, script.as_bytes())?;
        set_executable(&placed)?;
        let workload = subject.workload_folder().join(format!("{name}.sh"));
        if !workload.is_file() {
            return Err(format!("there is no {}", workload.display()));
        }
        let mut command = workload::sandboxed("timeout", &subject.folder)?;
        command.args(["--kill-after=10", &SECONDS_MAX.to_string(), "sh"]);
        command.arg(workload).arg(&placed).arg(&subject.build).stderr(Stdio::null());
        let output = command.output().map_err(|error| format!("cannot start {}: {error}", shell::describe(&command)))?;
        match output.status.code() {
            Some(124 | 137) => Err(format!("{name}.sh did not end within {SECONDS_MAX} s")),
            status => Ok(Said { stdout: output.stdout, status }),
        }
    }
}

impl Said {
    /// A workload that the input itself fails measures nothing.
    pub(super) fn require_success(&self, name: &str) -> Result {
        match self.status {
            Some(0) => Ok(()),
            status => Err(format!("{name}.sh fails with the input itself: {status:?}")),
        }
    }
}

impl Subject<'_> {
    pub(super) fn workload_folder(&self) -> PathBuf {
        crate::repository_root().join("fixtures/workloads").join(self.program.name)
    }
}

fn set_executable(path: &Path) -> Result {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", path.display()))
}
