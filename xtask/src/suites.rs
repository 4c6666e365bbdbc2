//! `cargo xtask suites`: real test-suites on relinked programs and libraries.
//!
//! A suite names the files that it relinks and a script. Each file is laid out at random with `relift optimize --shuffle --verify` (or in its
//! order, without a profile, or made smaller by `relift shrink`), which runs the independent checker too. The script then runs twice, each time in a mount namespace of its own, at the same paths: once with the
//! originals, once with the outputs mounted in their places (or put in a private folder of libraries). It leaves its results in a folder, and
//! both folders must hold the same cases with the same bytes. Where one differs, the originals run again, up to three times: where these
//! already say two things, numbers are left out of the comparison. The system's own files are never changed.

mod cases;
mod catalog;
mod prepare;
mod relink;
mod report;
mod system;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use self::cases::Cases;
use self::catalog::{Place, Plan, SUITES, Suite};
use self::relink::Relinker;
use self::report::Row;
use self::system::System;
use crate::shell::{self, Result};
use crate::stock::sandbox::run_limited;

#[derive(Debug, Args)]
pub(crate) struct SuitesArgs {
    /// Suites to run; all of them if none is given
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Seed of the random layout
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    shuffle: u64,
    /// Lay everything out in its order, as without a profile, in place of at random
    #[arg(long, conflicts_with = "shrink")]
    in_order: bool,
    /// Make everything smaller, by `relift shrink`, in place of laying it out at random
    #[arg(long)]
    shrink: bool,
    /// Leave the checker out: where it takes too long, or gives an alarm that is known to be false
    #[arg(long)]
    no_check: bool,
    /// Rewrite all programs and libraries below /usr of at most MB million bytes, and run the suites with all of them in their places at once
    #[arg(long, value_name = "MB", num_args = 0..=1, default_missing_value = "64")]
    whole_system: Option<u64>,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Where sources are fetched to and suites run; `target/suites` if not given
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Write the record to FILE.json and FILE.md
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// How often the originals run again to find out what they do not always say.
const MOST_REPEATS: usize = 3;

/// How long a script may run.
const SCRIPT_LIMIT: Duration = Duration::from_secs(3600);

/// Says a suite's own functions to every script: `record NAME COMMAND…` keeps what a command prints and its status as a case.
const PRELUDE: &str = r#"
set -u
record() {
    case_name=$1; shift
    "$@" > "$RESULTS/$case_name" 2>&1 < /dev/null
    echo "status $?" >> "$RESULTS/$case_name"
}
"#;

/// What is done to the files before the suites run on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// `relift optimize --shuffle SEED`.
    Shuffled(u64),
    /// `relift optimize` without a profile.
    InOrder,
    /// `relift shrink`, which keeps debug information true.
    Shrunk,
}

impl Treatment {
    /// The command, without the files.
    pub(crate) fn command(self) -> Vec<String> {
        match self {
            Treatment::Shuffled(seed) => vec!["optimize".into(), "--shuffle".into(), seed.to_string()],
            Treatment::InOrder => vec!["optimize".into()],
            Treatment::Shrunk => vec!["shrink".into(), "--debug".into(), "update".into()],
        }
    }

    /// The argument of `cargo xtask suites` that asks for it.
    pub(crate) fn argument(self) -> String {
        match self {
            Treatment::Shuffled(seed) => format!("--shuffle {seed}"),
            Treatment::InOrder => "--in-order".into(),
            Treatment::Shrunk => "--shrink".into(),
        }
    }
}

impl SuitesArgs {
    fn treatment(&self) -> Treatment {
        if self.shrink {
            Treatment::Shrunk
        } else if self.in_order {
            Treatment::InOrder
        } else {
            Treatment::Shuffled(self.shuffle)
        }
    }
}

/// What all suites share.
pub(crate) struct Context {
    pub(crate) relift: PathBuf,
    pub(crate) treatment: Treatment,
    pub(crate) check: bool,
    /// Where sources are fetched to, once for all runs.
    pub(crate) directory: PathBuf,
    pub(crate) system: Option<System>,
}

pub(crate) fn run(args: &SuitesArgs) -> Result {
    if let Some(unknown) = args.names.iter().find(|name| SUITES.iter().all(|suite| suite.name != name.as_str())) {
        let known: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("no suite \"{unknown}\"; there are {}", known.join(", ")));
    }
    may_mount()?;
    let relift = args.relift.clone().map_or_else(crate::e2e::build_relift, Ok)?;
    let directory = args.directory.clone().unwrap_or_else(|| crate::repository_root().join("target/suites"));
    shell::create_folder(&directory)?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(|error| format!("cannot resolve {}: {error}", path.display()));
    let mut context = Context {
        relift: absolute(&relift)?,
        treatment: args.treatment(),
        check: !args.no_check,
        directory: absolute(&directory)?,
        system: None,
    };
    context.system = args.whole_system.map(|megabytes| System::rewrite(&context, megabytes)).transpose()?;
    let mut relinker = Relinker::new(&context)?;
    let mut rows = Vec::new();
    let record = args.record.clone().unwrap_or_else(|| directory.join("record"));
    for suite in SUITES.iter().filter(|suite| args.names.is_empty() || args.names.iter().any(|name| name == suite.name)) {
        shell::say(&format!("{}: {}", suite.name, suite.about));
        let row = run_suite(&context, suite, &mut relinker).unwrap_or_else(|problem| Row::not_run(suite, problem));
        shell::say(&row.summary());
        rows.push(row);
        report::write(&rows, &record, &context)?;
    }
    shell::say(&report::write(&rows, &record, &context)?);
    if let Some(fault) = context.system.iter().flat_map(System::faults).next() {
        return Err(format!("not all of the system was rewritten: {fault}"));
    }
    let failed = rows.iter().filter(|row| row.has_failed()).count();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} suites fail", rows.len())) }
}

/// Files can't be put in each other's place without the privilege to mount.
fn may_mount() -> Result {
    let mut tried = Command::new("unshare");
    tried.args(["--mount", "mount", "--bind", "/usr/bin/true", "/usr/bin/false"]);
    shell::run(&mut tried).map(|_| ()).map_err(|_| "the suites need the privilege to mount, in a namespace of their own".into())
}

fn run_suite(context: &Context, suite: &Suite, relinker: &mut Relinker<'_>) -> Result<Row> {
    let folder = context.directory.join(suite.name);
    let plan = (suite.prepare)(context, &folder)?;
    let mut outputs = Vec::new();
    for subject in &plan.subjects {
        outputs.push(relinker.relink(&subject.file)?);
    }
    if outputs.iter().any(|output| output.file.is_none()) {
        return Ok(Row::of(suite, outputs, None, Duration::ZERO));
    }
    let started = Instant::now();
    let originals: Vec<&Path> = plan.subjects.iter().map(|subject| subject.file.as_path()).collect();
    let relinked: Vec<&Path> = outputs.iter().filter_map(|output| output.file.as_deref()).collect();
    let layer = |is_rewritten| context.system.as_ref().map(|system| system.layer(is_rewritten));
    let before = run_side(&plan, &folder, (&originals, layer(false)), "original")?;
    let after = run_side(&plan, &folder, (&relinked, layer(true)), "relinked")?;
    let mut comparison = before.compare(&after);
    let mut agains = Vec::new();
    while !comparison.different.is_empty() && agains.len() < MOST_REPEATS {
        agains.push(run_side(&plan, &folder, (&originals, layer(false)), "again")?);
        comparison = before.compare_unsteady(&agains, &after);
    }
    Ok(Row::of(suite, outputs, Some(comparison), started.elapsed()))
}

/// Runs the script with these files in the places of the subjects, and a folder laid over the system's, if there is one.
fn run_side(plan: &Plan, folder: &Path, (files, layer): (&[&Path], Option<&Path>), side: &str) -> Result<Cases> {
    let (work, results, private) = (folder.join("work"), folder.join("results"), folder.join("private"));
    for part in [&work, &results, &private] {
        if part.exists() {
            fs::remove_dir_all(part).map_err(|error| format!("cannot empty {}: {error}", part.display()))?;
        }
        shell::create_folder(part)?;
    }
    let mut mounts: Vec<(PathBuf, PathBuf)> = plan.mounts.clone();
    for (subject, file) in plan.subjects.iter().zip(files) {
        match &subject.place {
            Place::Mounted(over) => mounts.push((file.to_path_buf(), over.clone())),
            Place::Private(name) => shell::copy_program(file, &private.join(name))?,
        }
    }
    let script = folder.join("script.sh");
    shell::write_file(&script, format!("{PRELUDE}{}", plan.script).as_bytes())?;
    let mut command = mounted(layer, &mounts, &plan.environment);
    command.arg("sh").arg(&script).args(&plan.arguments).current_dir(&work);
    command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", &work).env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
    command.env("RESULTS", &results).env("SUITE", folder).env("PRIVATE", &private).env("TMPDIR", &work);
    let log = folder.join(format!("{side}.log"));
    let create = || fs::File::create(&log).map_err(|error| format!("cannot make {}: {error}", log.display()));
    let out = create()?;
    let err = out.try_clone().map_err(|error| format!("cannot share {}: {error}", log.display()))?;
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let end = run_limited(&mut command, SCRIPT_LIMIT);
    let cases = Cases::read(&results, &end)?;
    let kept = folder.join(format!("results.{side}"));
    let _absent = fs::remove_dir_all(&kept);
    fs::rename(&results, &kept).map_err(|error| format!("cannot keep {}: {error}", results.display()))?;
    Ok(cases)
}

/// A command that lays a folder over the system's and mounts each file over another's path in a namespace of its own, sets the variables, and runs what is appended to it.
fn mounted(layer: Option<&Path>, mounts: &[(PathBuf, PathBuf)], environment: &[(String, String)]) -> Command {
    const SCRIPT: &str = r#"
        [ -z "$1" ] || mount -t overlay overlay -o ro,lowerdir="$1:$2" "$2" || exit 99
        shift 2
        while [ "$1" != -- ]; do mount --bind "$1" "$2" || exit 99; shift 2; done
        shift; "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SCRIPT, "sh"]);
    command.arg(layer.unwrap_or(Path::new(""))).arg(system::ROOT);
    for (file, over) in mounts {
        command.arg(file).arg(over);
    }
    command.args(["--", "env"]).args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command
}
