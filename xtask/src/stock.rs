//! `cargo xtask stock`: relinks the ELF files that a machine has, and compares how they behave.
//!
//! Each file is relinked twice with `relift optimize --verify`, which runs the independent checker too: in its own order, for the size,
//! and laid out at random with `--shuffle`, which needs more jumps and so more room. Then the original and the shuffled output are run at the original's path (see `sandbox`): programs without arguments, with `--version` and with `--help`;
//! shared objects by a program that does nothing but load them, and by programs that need them. What a file's own copy does is the control:
//! where two runs of the original already differ, only what they have in common is compared. A table is printed and stored.
//!
//! With `--shrink`, `relift shrink` takes the place of both; the table says what each technique saved.

pub(crate) mod elf;
pub(crate) mod report;
pub(crate) mod sandbox;
mod savings;
mod skip;
mod users;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;

use self::elf::Kind;
use self::report::{Behavior, Outcome, Row};
use self::sandbox::{Place, Sandbox};
use self::users::Users;
use crate::shell::{self, Result};

#[derive(Debug, Args)]
pub(crate) struct StockArgs {
    /// Folders, whose own files are taken, or single files; /usr/bin, /usr/sbin and the library folder if none is given
    #[arg(value_name = "DIR")]
    roots: Vec<PathBuf>,
    /// Only so many files, chosen by the seed
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Seed of the random layout and of the sample
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    shuffle: u64,
    /// Make the files smaller instead
    #[arg(long)]
    shrink: bool,
    /// Options for relift besides, as in `--relift-option=--with=schedule --relift-option=--edit-everywhere`
    #[arg(long = "relift-option", value_name = "OPTION")]
    relift_options: Vec<String>,
    /// Files worked on at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Write the record to FILE.json and FILE.md
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Keep the outputs in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Where a Debian machine has its programs and libraries.
const ROOTS: [&str; 3] = ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu"];

/// How long relift may take for one file.
const RELINK_LIMIT: Duration = Duration::from_secs(300);

/// How many programs that need a library are run against its output.
const USERS_MAX: usize = 2;

/// What all files share.
struct Stock {
    relift: PathBuf,
    seed: u64,
    shrinks: bool,
    relift_options: Vec<String>,
    scratch: PathBuf,
    keep: Option<PathBuf>,
    users: Users,
    place: Place,
}

pub(crate) fn run(args: &StockArgs) -> Result {
    // Not where temporary files are: programs get an empty folder in that place.
    let scratch = tempfile::tempdir_in("/var/tmp").map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let relift = args.relift.clone().map_or_else(crate::e2e::build_relift, Ok)?;
    let relift = std::path::absolute(&relift).map_err(|error| format!("cannot resolve {}: {error}", relift.display()))?;
    let roots = if args.roots.is_empty() { ROOTS.iter().map(PathBuf::from).collect() } else { args.roots.clone() };
    let mut files = elf::find(&roots)?;
    if let Some(count) = args.sample {
        files.sort_by_key(|file| sample_key(&file.path, args.shuffle));
        files.truncate(count);
        files.sort_by(|a, b| a.path.cmp(&b.path));
    }
    if files.is_empty() {
        return Err("no x86-64 ELF file is there".into());
    }
    if let Some(folder) = &args.keep {
        shell::create_folder(folder)?;
    }
    let place = sandbox::best_place();
    shell::say(&format!("{} files; programs run {}", files.len(), place.describe()));
    let is_library = files.iter().any(|file| file.kind == Kind::Shared);
    let users = if is_library { Users::find(Path::new("/usr/bin")) } else { Users::default() };
    let (seed, shrinks, keep) = (args.shuffle, args.shrink, args.keep.clone());
    let relift_options = args.relift_options.clone();
    let stock = Stock { relift, seed, shrinks, relift_options, scratch: scratch.path().to_owned(), keep, users, place };
    let started = Instant::now();
    let rows = stock.all(&files, args.jobs.max(1));
    let record = args.record.clone().unwrap_or_else(|| crate::repository_root().join("target/stock/record"));
    let mut command = if shrinks { "--shrink".to_owned() } else { format!("--shuffle {seed}") };
    args.relift_options.iter().for_each(|option| command.push_str(&format!(" --relift-option={option}")));
    let text = report::write(&rows, &record, &command, place.describe(), started.elapsed())?;
    shell::say(&text);
    let failed = rows.iter().filter(|row| row.has_failed()).count();
    if failed == 0 { Ok(()) } else { Err(format!("{failed} of {} files fail", rows.len())) }
}

/// Orders files for a sample: by a hash of the path and the seed (FNV-1a, then a finalizer that mixes all bits).
fn sample_key(path: &Path, seed: u64) -> u64 {
    let bytes = path.as_os_str().as_encoded_bytes();
    let mut hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

impl Stock {
    /// Rows in the order of the files, whatever the order in which they come to an end.
    fn all(&self, files: &[elf::File], jobs: usize) -> Vec<Row> {
        shell::in_parallel(files, jobs, |job, index, file| {
            let row = self.row(file, job);
            if row.has_failed() || row.outcome.is_refusal() {
                shell::say(&format!("{}/{} {}", index + 1, files.len(), row.complaint()));
            }
            row
        })
    }

    fn row(&self, file: &elf::File, job: usize) -> Row {
        let mut row = Row::new(&file.path, file.kind, file.size);
        let folder = self.scratch.join(format!("job{job}"));
        if let Err(problem) = shell::create_folder(&folder) {
            row.outcome = Outcome::Crashed(problem);
            return row;
        }
        let name = file.path.file_name().unwrap_or_default();
        let output = folder.join("output");
        let _absent = fs::remove_file(&output);
        let seed = self.seed.to_string();
        let shuffle = ["--verify", "--shuffle", &seed];
        let options = if self.shrinks { &["--verify"][..] } else { &shuffle };
        // Without a profile the order stays; how large the file becomes then is what a user sees.
        row.outcome = self.relink(&file.path, &output, &["--verify"], &folder, &mut row.in_order);
        if self.shrinks {
            row.said = row.in_order.clone();
        } else if row.outcome == Outcome::Relinked {
            row.outcome = self.relink(&file.path, &output, options, &folder, &mut row.said);
        }
        if matches!(row.outcome, Outcome::Violation(_)) {
            // How it behaves all the same tells a false alarm from a fault.
            let unchecked = [options, &["--no-check"]].concat();
            let _outcome = self.relink(&file.path, &output, &unchecked, &folder, &mut Value::Null);
        }
        if output.is_file() {
            row.behavior = self.compare(file, &output, &folder);
            if let Some(keep) = &self.keep {
                let _kept = fs::copy(&output, keep.join(name));
            }
        }
        row
    }

    fn relink(&self, input: &Path, output: &Path, options: &[&str], folder: &Path, said: &mut Value) -> Outcome {
        let (stdout, stderr) = (folder.join("relift.out"), folder.join("relift.err"));
        let (Ok(out), Ok(err)) = (fs::File::create(&stdout), fs::File::create(&stderr)) else {
            return Outcome::Crashed("no scratch file".into());
        };
        let mut command = Command::new(&self.relift);
        command
            .arg(if self.shrinks { "shrink" } else { "optimize" })
            .arg(input)
            .arg("-o")
            .arg(output)
            .arg("--json")
            .args(options)
            .args(&self.relift_options);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let end = sandbox::run_limited(&mut command, RELINK_LIMIT);
        let complaint = String::from_utf8_lossy(&fs::read(&stderr).unwrap_or_default()).trim().to_owned();
        match end.as_str() {
            "status 0" => match fs::read(&stdout).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(json) => {
                    *said = json;
                    Outcome::Relinked
                }
                None => Outcome::Crashed("--json printed no JSON".into()),
            },
            "status 1" => Outcome::of_complaint(&complaint, input, output),
            _ => Outcome::Crashed(format!("{end}: {}", complaint.lines().next().unwrap_or_default())),
        }
    }

    /// Runs the original and the output in all the ways there are.
    fn compare(&self, file: &elf::File, output: &Path, folder: &Path) -> Behavior {
        let mut behavior = Behavior::default();
        let sandbox = Sandbox { folder, place: self.place };
        if file.kind == Kind::Shared {
            let preload = vec![
                ("LD_PRELOAD".to_owned(), file.path.to_string_lossy().into_owned()),
                ("LD_BIND_NOW".to_owned(), "1".to_owned()),
            ];
            let programs = self.users.of(&file.path).iter().take(USERS_MAX);
            let runs = programs.map(|program| (program.clone(), vec!["--version"], Vec::new()));
            for (program, arguments, environment) in [(PathBuf::from("/usr/bin/true"), vec![], preload)].into_iter().chain(runs) {
                sandbox.compare(&file.path, output, &program, &arguments, &environment, &mut behavior);
            }
            return behavior;
        }
        if let Some(why) = skip::reason(&file.path) {
            behavior.skipped = Some(why);
            return behavior;
        }
        for arguments in [&["--version"][..], &["--help"], &[]] {
            sandbox.compare(&file.path, output, &file.path, arguments, &[], &mut behavior);
        }
        behavior
    }
}
