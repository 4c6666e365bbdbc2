//! One program of the suite: profile, outputs, measurements.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::judge::{self, Judged};
use super::programs::Program;
use super::tools::{self, Cost, Dyno};
use crate::shell::{self, Result};
use crate::workload;

/// What all programs share.
pub(super) struct Bench {
    pub(super) relift: PathBuf,
    pub(super) relift_options: Vec<String>,
    pub(super) bolt: String,
    pub(super) merge_fdata: String,
    pub(super) pairs: usize,
    pub(super) directory: PathBuf,
}

/// One program, with the folder that everything made of it goes to.
pub(super) struct Subject<'a> {
    pub(super) program: &'a Program,
    pub(super) input: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) profile: PathBuf,
    build: PathBuf,
}

/// What was measured of one binary.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) judged: Judged,
    pub(super) stripped_bytes: u64,
    /// User time of each timed run, in seconds.
    pub(super) seconds: Vec<f64>,
    pub(super) cost: Cost,
    pub(super) dyno: Dyno,
}

/// A line of each table.
pub(super) struct Row {
    pub(super) label: String,
    pub(super) input: Measured,
    pub(super) bolt: Measured,
    pub(super) relift: Measured,
    /// relift's output from the input without symbols and relocations; nothing was timed.
    pub(super) stripped: Option<Measured>,
    /// What relift costs with its own check of the output.
    pub(super) checked: Cost,
}

impl Bench {
    pub(super) fn row(&self, program: &Program) -> Result<Row> {
        let input = program.binary(&self.directory)?;
        let folder = self.directory.join("bench").join(format!("{}-{}", program.name, program.form));
        shell::create_folder(&folder)?;
        let profile = folder.join("profile.fdata");
        let subject = Subject { program, input, profile, build: program.build_folder(&self.directory), folder };
        if !subject.profile.is_file() {
            tools::profile(self, &subject)?;
        }
        let (bolted, relifted) = (subject.folder.join("bolt"), subject.folder.join("relift"));
        let (bolt_cost, bolt_dyno) = tools::bolt(self, &subject, &bolted)?;
        let relift = |more: &[&str]| tools::relift(self, &subject, &subject.input, &subject.profile, &relifted, more);
        let (checked, _) = relift(&[])?;
        let (relift_cost, relift_dyno) = relift(&["--no-check"])?;
        let mut row = Row {
            label: program.label(),
            input: Measured::default(),
            bolt: Measured { cost: bolt_cost, dyno: bolt_dyno, ..Measured::default() },
            relift: Measured { cost: relift_cost, dyno: relift_dyno, ..Measured::default() },
            stripped: None,
            checked,
        };
        self.time(&subject, [&subject.input, &bolted, &relifted], &mut row)?;
        for (measured, binary) in [(&mut row.input, &subject.input), (&mut row.bolt, &bolted), (&mut row.relift, &relifted)] {
            measured.judged = judge::judge(self, &subject, binary)?;
            measured.stripped_bytes = tools::stripped_size(&subject, binary)?;
        }
        row.stripped = self.without_relocations(&subject).map(Some).or_else(|problem| {
            shell::say(&format!("{} stripped: {problem}", row.label));
            Ok::<_, String>(None)
        })?;
        Ok(row)
    }

    /// The input as a release would ship it: no symbols, no relocations. The profile then goes by address.
    fn without_relocations(&self, subject: &Subject<'_>) -> Result<Measured> {
        let (bare, profile, output) =
            (subject.folder.join("bare"), subject.folder.join("profile.addresses"), subject.folder.join("relift-bare"));
        shell::run(Command::new("strip").arg("-o").arg(&bare).arg(&subject.input))?;
        let mut convert = Command::new(&self.relift);
        convert.args(["profile", "convert"]).arg(&subject.profile).arg("-o").arg(&profile);
        shell::run(convert.args(["--format", "preaggregated", "--program"]).arg(&subject.input))?;
        let (cost, dyno) = tools::relift(self, subject, &bare, &profile, &output, &["--no-check"])?;
        let judged = judge::judge(self, subject, &output)?;
        Ok(Measured { judged, stripped_bytes: tools::stripped_size(subject, &output)?, cost, dyno, seconds: Vec::new() })
    }

    /// Runs input and outputs in turns; all must print the same.
    fn time(&self, subject: &Subject<'_>, binaries: [&PathBuf; 3], row: &mut Row) -> Result {
        let times = subject.folder.join("times");
        for _ in 0..self.pairs {
            let mut first: Option<Vec<u8>> = None;
            for (measured, binary) in [&mut row.input, &mut row.bolt, &mut row.relift].into_iter().zip(binaries) {
                let _absent = fs::remove_file(&times);
                // Only the program's own time counts, not that of what the workload does besides.
                let script = format!(
                    "#!/bin/bash\nTIMEFORMAT=%3U\n{{ time \"{}\" \"$@\" 2>&3; }} 3>&2 2>>\"{}\"\n",
                    binary.display(),
                    times.display()
                );
                let printed = self.run_workload(subject, "bench", &script)?;
                if first.as_ref().is_some_and(|first| *first != printed) {
                    return Err(format!("{} does not print what the input prints", binary.display()));
                }
                first.get_or_insert(printed);
                let text = String::from_utf8_lossy(&shell::read_file(&times)?).into_owned();
                measured.seconds.push(text.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum());
            }
        }
        Ok(())
    }

    /// Runs `fixtures/workloads/<program>/<name>.sh` with `script` in place of the program; returns its standard output.
    pub(super) fn run_workload(&self, subject: &Subject<'_>, name: &str, script: &str) -> Result<Vec<u8>> {
        let bin = subject.folder.join("bin");
        shell::create_folder(&bin)?;
        let placed = bin.join(subject.program.name);
        shell::write_file(&placed, script.as_bytes())?;
        set_executable(&placed)?;
        let workload = crate::repository_root().join("fixtures/workloads").join(subject.program.name).join(format!("{name}.sh"));
        if !workload.is_file() {
            return Err(format!("there is no {}", workload.display()));
        }
        let mut command = workload::sandboxed("sh", &subject.folder)?;
        command.arg(workload).arg(&placed).arg(&subject.build).stderr(Stdio::null());
        let output = command.output().map_err(|error| format!("cannot start {}: {error}", shell::describe(&command)))?;
        Ok(output.stdout)
    }
}

fn set_executable(path: &Path) -> Result {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", path.display()))
}
