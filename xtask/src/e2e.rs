//! `cargo xtask e2e`: the main job on real programs, as a user would do it.
//!
//! For each program and form: `relift train` with the training workload, `relift check`, then every workload on the original and on
//! the output, which must behave the same; sizes after `strip`; the same bytes from two runs and from one and two threads; and, with
//! `--shuffle A..B`, the same behavior under each of these random layouts. Results are printed as they come and written as a record
//! (JSON and a Markdown table). The exit status is 0 only if every row passes.

mod report;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::Value;

use self::report::Row;
use crate::corpus;
use crate::shell::{self, Result};
use crate::workload::{self, Behavior, Workload};

#[derive(Debug, Args)]
pub(crate) struct E2eArgs {
    /// Only this program (may be repeated)
    #[arg(long = "program")]
    programs: Vec<String>,
    /// Only this form: a folder of the corpus, or `stock` for the one installed on this machine (may be repeated)
    #[arg(long = "form")]
    forms: Vec<String>,
    /// Also try the random layouts of these seeds, as in 1..50
    #[arg(long, value_parser = parse_seeds)]
    shuffle: Option<(u64, u64)>,
    /// The folder that `cargo xtask corpus` built into
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Write the record to FILE.json and FILE.md
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The programs in the order of the table, and whether the machine's own binary of it is one of the forms.
const PROGRAMS: [(&str, bool); 8] = [
    ("lua", false),
    ("sqlite3", false),
    ("bzip2", true),
    ("zstd", false),
    ("xz", true),
    ("gzip", true),
    ("git", true),
    ("perl", true),
];

/// The forms that are tried if the command line names none.
const FORMS: [&str; 4] = ["relocs", "plain", "stripped", "stock"];

fn parse_seeds(text: &str) -> Result<(u64, u64)> {
    let (first, last) = text.split_once("..").ok_or("seeds are given as FIRST..LAST")?;
    let number = |part: &str| part.parse::<u64>().map_err(|error| format!("\"{part}\" is not a seed: {error}"));
    Ok((number(first)?, number(last)?))
}

/// One program in one form.
struct Subject<'a> {
    program: &'a str,
    form: &'a str,
    input: PathBuf,
    workloads: &'a [Workload],
}

/// What all subjects share.
struct Bench {
    relift: PathBuf,
    scratch: PathBuf,
    shuffle: Option<(u64, u64)>,
}

pub(crate) fn run(args: &E2eArgs) -> Result {
    let scratch = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let relift = match &args.relift {
        Some(path) => path.clone(),
        None => build_relift()?,
    };
    let relift = std::path::absolute(&relift).map_err(|error| format!("cannot resolve {}: {error}", relift.display()))?;
    let bench = Bench { relift, scratch: scratch.path().to_owned(), shuffle: args.shuffle };
    let corpus = args.corpus.clone().unwrap_or_else(corpus::default_directory);
    let forms: Vec<&str> = if args.forms.is_empty() { FORMS.to_vec() } else { args.forms.iter().map(String::as_str).collect() };
    let mut rows = Vec::new();
    shell::say(&report::header());
    for (program, stock) in
        PROGRAMS.iter().filter(|(name, _)| args.programs.is_empty() || args.programs.iter().any(|wanted| wanted == name))
    {
        let workloads = workload::workloads_of(program)?;
        for form in &forms {
            let input = if *form == "stock" {
                Path::new("/usr/bin").join(program)
            } else {
                corpus.join(program).join(form).join(program)
            };
            if (*form == "stock" && !stock) || !input.is_file() {
                continue;
            }
            let row = bench.row(&Subject { program, form, input, workloads: &workloads });
            shell::say(&row.line());
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return Err(format!("no program to try; is the corpus in {}? `cargo xtask corpus` builds it", corpus.display()));
    }
    let record = args.record.clone().unwrap_or_else(|| crate::repository_root().join("target/e2e/record"));
    report::write(&rows, &record)?;
    let failed: Vec<&Row> = rows.iter().filter(|row| !row.passed()).collect();
    for row in &failed {
        shell::say(&format!("\n{} {}:\n  {}", row.program, row.form, row.failures.join("\n  ")));
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("{} of {} rows fail", failed.len(), rows.len())) }
}

/// Builds the relift program of this repository for speed and returns its path.
pub(crate) fn build_relift() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let root = crate::repository_root();
    shell::run(Command::new(cargo).current_dir(&root).args([
        "build",
        "--release",
        "--locked",
        "--package",
        "relift",
        "--quiet",
    ]))?;
    Ok(root.join("target/release/relift"))
}

impl Bench {
    /// Does all there is to do with one subject. What fails is told in the row, and the rest goes on where it can.
    fn row(&self, subject: &Subject<'_>) -> Row {
        let mut row = Row::new(subject.program, subject.form);
        let originals = match self.observe_all(subject, &subject.input) {
            Ok(originals) => originals,
            Err(problem) => {
                row.failures.push(problem);
                return row;
            }
        };
        let output = self.scratch.join("output");
        let _absent = fs::remove_file(&output);
        match self.train(subject, &output) {
            Ok(said) => row.read(&said),
            Err(problem) => {
                row.failures.push(format!("train: {problem}"));
                return row;
            }
        }
        let checked = shell::run(self.command("check").arg(&subject.input).arg(&output));
        row.note("check", checked.map(|_| ()));
        match self.stripped_sizes(subject, &output) {
            Ok(sizes) => row.stripped_bytes = Some(sizes),
            Err(problem) => row.note("strip", Err(problem)),
        }
        row.workloads = subject.workloads.len();
        for (workload, original) in subject.workloads.iter().zip(&originals) {
            let same = self.same_behavior(subject, workload, original, &output);
            row.same += usize::from(same.is_ok());
            row.note(&workload.name, same);
        }
        let deterministic = self.same_bytes(subject);
        row.deterministic = deterministic.is_ok();
        row.note("determinism", deterministic);
        self.shuffle_all(subject, &originals, &mut row);
        row
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.relift);
        command.arg(name);
        command
    }

    fn observe_all(&self, subject: &Subject<'_>, binary: &Path) -> Result<Vec<Behavior>> {
        subject.workloads.iter().map(|workload| workload::observe(workload, subject.program, binary, &self.scratch)).collect()
    }

    fn same_behavior(&self, subject: &Subject<'_>, workload: &Workload, original: &Behavior, output: &Path) -> Result {
        let found = workload::observe(workload, subject.program, output, &self.scratch)?;
        original.difference(&found).map_or(Ok(()), Err)
    }

    /// Runs `relift train --json` in the sandbox, the workload's own output thrown away, and returns the report.
    fn train(&self, subject: &Subject<'_>, output: &Path) -> Result<Value> {
        let mut command = workload::sandboxed(&self.relift.to_string_lossy(), &self.scratch)?;
        command.arg("train").arg(&subject.input).arg("-o").arg(output).arg("--json");
        command.args(["--", "sh", "-c", "sh \"$1\" \"$2\" > /dev/null 2>&1", "sh"]).arg(&subject.workloads[0].script).arg("{}");
        let said = shell::run(&mut command)?;
        serde_json::from_slice(&said.stdout).map_err(|error| format!("--json printed no JSON: {error}"))
    }

    /// The sizes of input and output after `strip`.
    fn stripped_sizes(&self, subject: &Subject<'_>, output: &Path) -> Result<(u64, u64)> {
        let size = |binary: &Path| -> Result<u64> {
            let stripped = self.scratch.join("stripped");
            let said = shell::run(Command::new("strip").arg("-o").arg(&stripped).arg(binary))?;
            if !said.stderr.is_empty() {
                return Err(format!("strip complains: {}", String::from_utf8_lossy(&said.stderr).trim()));
            }
            fs::metadata(&stripped)
                .map(|metadata| metadata.len())
                .map_err(|error| format!("cannot look at {}: {error}", stripped.display()))
        };
        Ok((size(&subject.input)?, size(output)?))
    }

    /// Two runs, and one and two threads, must give the same bytes from the same profile.
    fn same_bytes(&self, subject: &Subject<'_>) -> Result {
        let (instrumented, profile) = (self.scratch.join("instrumented"), self.scratch.join("profile.rlp"));
        let _absent = fs::remove_file(&profile);
        shell::run(self.command("instrument").arg(&subject.input).arg("-o").arg(&instrumented).arg("--profile").arg(&profile))?;
        workload::observe(&subject.workloads[0], subject.program, &instrumented, &self.scratch)?;
        let mut first: Option<Vec<u8>> = None;
        for threads in ["1", "2", "1"] {
            let output = self.scratch.join("again");
            let mut optimize = self.command("optimize");
            optimize.arg(&subject.input).arg("-o").arg(&output).arg("-p").arg(&profile).args(["--threads", threads]);
            shell::run(&mut optimize)?;
            let bytes = shell::read_file(&output)?;
            if first.as_ref().is_some_and(|first| *first != bytes) {
                return Err(format!("other bytes with {threads} threads"));
            }
            first.get_or_insert(bytes);
        }
        Ok(())
    }

    /// Tries each random layout on the first workload that is not the training one.
    fn shuffle_all(&self, subject: &Subject<'_>, originals: &[Behavior], row: &mut Row) {
        let Some((first, last)) = self.shuffle else { return };
        let Some((workload, original)) = subject.workloads.iter().zip(originals).nth(1) else { return };
        let mut passed = 0;
        for seed in first..=last {
            let result = self.shuffled(subject, workload, original, seed);
            passed += u64::from(result.is_ok());
            row.note(&format!("shuffle {seed}"), result);
        }
        row.shuffles = Some((passed, last + 1 - first));
    }

    fn shuffled(&self, subject: &Subject<'_>, workload: &Workload, original: &Behavior, seed: u64) -> Result {
        let output = self.scratch.join("shuffled");
        let mut optimize = self.command("optimize");
        optimize.arg(&subject.input).arg("-o").arg(&output).arg("--shuffle").arg(seed.to_string());
        shell::run(&mut optimize)?;
        self.same_behavior(subject, workload, original, &output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_a_first_and_a_last_number() {
        assert_eq!(parse_seeds("1..50"), Ok((1, 50)));
        assert_eq!(parse_seeds("7..7"), Ok((7, 7)));
        assert!(parse_seeds("7").is_err());
        assert!(parse_seeds("one..two").is_err());
    }

    #[test]
    fn every_program_has_a_training_workload_and_others() {
        for (program, _) in PROGRAMS {
            let workloads = workload::workloads_of(program).unwrap_or_else(|problem| panic!("{problem}"));
            assert_eq!(workloads[0].name, "train");
            assert!(workloads.len() > 1, "{program} has only the training workload");
        }
    }
}
