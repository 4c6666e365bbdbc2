//! Runs a program where it can do no harm, with a file put in another one's place.
//!
//! **Method.** With privileges: in namespaces of its own (mounts, processes, network), the output is mounted over the original, so that a
//! program that looks at its own path or is loaded by name finds it there; then all privileges are given up before the program starts.
//! Without: programs run as copies in the scratch folder, under their own name, and libraries are found by `LD_LIBRARY_PATH`.
//! No terminal, no input, few variables, a time limit.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::report::Behavior;
use crate::shell;

/// How long a program may run.
const RUN_LIMIT: Duration = Duration::from_secs(5);

/// How often original and output are run again before a difference counts.
const RETRIES: usize = 3;

/// How much of each output is kept for the comparison.
const OUTPUT_MAX: usize = 4 << 20;

/// Where outputs are run.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Mounted over the original.
    Mounted,
    /// As a copy in a scratch folder.
    Copied,
}

impl Place {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Place::Mounted => "at the original's path, by a bind mount in a private namespace, without privileges",
            Place::Copied => "as copies in a scratch folder (no privilege to mount)",
        }
    }
}

const NAMESPACES: [&str; 7] = ["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc"];

/// Mounting needs a privilege; it is tried once.
pub(super) fn best_place() -> Place {
    let tried = Command::new("unshare").args(NAMESPACES).args(["mount", "--bind", "/usr/bin/true", "/usr/bin/false"]).output();
    if tried.is_ok_and(|output| output.status.success()) { Place::Mounted } else { Place::Copied }
}

#[derive(Copy, Clone, Debug)]
pub(super) struct Sandbox<'a> {
    pub(super) folder: &'a Path,
    pub(super) place: Place,
}

/// What is seen of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    stdout: String,
    stderr: String,
    end: String,
}

impl Seen {
    /// Without what differs from run to run: runs of hexadecimal digits become one sign.
    fn blurred(&self) -> Seen {
        Seen { stdout: blur(&self.stdout), stderr: blur(&self.stderr), end: self.end.clone() }
    }

    fn difference(&self, other: &Seen) -> Option<String> {
        if self.end != other.end {
            return Some(format!("ends with {} in place of {}", other.end, self.end));
        }
        // What a program had time to say before it was stopped is chance.
        if self.end == TIMED_OUT {
            return None;
        }
        let pairs = [("stdout", &self.stdout, &other.stdout), ("stderr", &self.stderr, &other.stderr)];
        let (name, expected, found) = pairs.into_iter().find(|(_, expected, found)| expected != found)?;
        let line = expected.lines().zip(found.lines()).find(|(a, b)| a != b);
        Some(match line {
            Some((expected, found)) => format!("{name}: {found:?} in place of {expected:?}"),
            None => format!("{name}: {} bytes in place of {}", found.len(), expected.len()),
        })
    }
}

fn blur(text: &str) -> String {
    let mut blurred = String::with_capacity(text.len());
    for character in text.chars() {
        if !character.is_ascii_hexdigit() {
            blurred.push(character);
        } else if !blurred.ends_with('#') {
            blurred.push('#');
        }
    }
    blurred
}

/// Each run gets namespaces of its own; the kernel numbers them from here on.
const NAMESPACES_FROM: u64 = 0xf000_0000;

fn without_namespaces(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let len = rest[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - start);
        let number = &rest[start..start + len];
        let is_namespace = number.parse().is_ok_and(|n: u64| (NAMESPACES_FROM..=u64::from(u32::MAX)).contains(&n));
        kept.push_str(&rest[..start]);
        kept.push_str(if is_namespace { "(namespace)" } else { number });
        rest = &rest[start + len..];
    }
    kept + rest
}

pub(crate) const TIMED_OUT: &str = "a time-out";

impl Sandbox<'_> {
    /// Runs `program` with the original of `replaced` and with `output` in its place, and notes what differs.
    pub(super) fn compare(
        &self,
        replaced: &Path,
        output: &Path,
        program: &Path,
        arguments: &[&str],
        environment: &[(String, String)],
        behavior: &mut Behavior,
    ) {
        let control = self.folder.join("control");
        if let Err(problem) = shell::copy_program(replaced, &control) {
            behavior.different.push(format!("no control: {problem}"));
            return;
        }
        let run = |file: &Path| self.run(file, replaced, program, arguments, environment);
        let (original, found) = (run(&control), run(output));
        behavior.runs += 1;
        let Some(difference) = original.difference(&found) else {
            behavior.equal += 1;
            return;
        };
        // Perhaps the program never says the same twice; in alternation, because what changes may change slowly.
        let (mut originals, mut outputs) = (vec![original], vec![found]);
        for _ in 0..RETRIES {
            originals.push(run(&control));
            outputs.push(run(output));
        }
        let is_steady = |all: &[Seen]| all.iter().all(|seen| *seen == all[0] && seen.end != TIMED_OUT);
        if !is_steady(&originals) || !is_steady(&outputs) {
            let [originals, outputs] = [originals, outputs].map(|all| all.iter().map(Seen::blurred).collect::<Vec<_>>());
            let is_chance = !is_steady(&originals) && outputs.iter().any(|o| originals.iter().any(|seen| seen.end == o.end));
            if is_chance || outputs.iter().any(|output| originals.contains(output)) {
                behavior.unsteady += 1;
                behavior.equal += 1;
                return;
            }
        }
        let words: Vec<String> =
            [program.display().to_string()].into_iter().chain(arguments.iter().map(|a| (*a).into())).collect();
        behavior.different.push(format!("{}: {difference}", words.join(" ")));
    }

    fn run(&self, file: &Path, replaced: &Path, program: &Path, arguments: &[&str], environment: &[(String, String)]) -> Seen {
        self.try_run(file, replaced, program, arguments, environment).unwrap_or_else(|problem| Seen {
            stdout: String::new(),
            stderr: String::new(),
            end: problem,
        })
    }

    fn try_run(
        &self,
        file: &Path,
        replaced: &Path,
        program: &Path,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> shell::Result<Seen> {
        let work = self.folder.join("work");
        if work.exists() {
            fs::remove_dir_all(&work).map_err(|error| format!("cannot empty {}: {error}", work.display()))?;
        }
        shell::create_folder(&work)?;
        for folder in [self.folder, &work] {
            let open = fs::Permissions::from_mode(0o777);
            fs::set_permissions(folder, open).map_err(|error| format!("cannot open {}: {error}", folder.display()))?;
        }
        // One file for both: programs that list mounts or open files show its name and number.
        let subject = self.folder.join("subject");
        shell::copy_program(file, &subject)?;
        let mut command = match self.place {
            Place::Mounted => mounted(&subject, replaced, program, environment),
            Place::Copied => self.copied(file, replaced, program, environment)?,
        };
        command.args(arguments).current_dir(&work).env_clear();
        command.env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", &work).env("LC_ALL", "C").env("TZ", "UTC");
        let (stdout, stderr) = (self.folder.join("stdout"), self.folder.join("stderr"));
        let create = |path: &Path| File::create(path).map_err(|error| format!("cannot make {}: {error}", path.display()));
        command.stdin(Stdio::null()).stdout(create(&stdout)?).stderr(create(&stderr)?);
        let end = run_limited(&mut command, RUN_LIMIT);
        let text = |path: &Path| {
            let mut bytes = fs::read(path).unwrap_or_default();
            bytes.truncate(OUTPUT_MAX);
            without_namespaces(&String::from_utf8_lossy(&bytes))
        };
        Ok(Seen { stdout: text(&stdout), stderr: text(&stderr), end })
    }

    fn copied(&self, file: &Path, replaced: &Path, program: &Path, environment: &[(String, String)]) -> shell::Result<Command> {
        let folder = self.folder.join("copies");
        let _absent = fs::remove_dir_all(&folder);
        shell::create_folder(&folder)?;
        let copy = folder.join(replaced.file_name().unwrap_or_default());
        shell::copy_program(file, &copy)?;
        let is_program = program == replaced;
        let mut command = Command::new("env");
        command.args(environment.iter().map(|(name, value)| {
            let value = if Path::new(value) == replaced { copy.display().to_string() } else { value.clone() };
            format!("{name}={value}")
        }));
        if !is_program {
            command.arg(format!("LD_LIBRARY_PATH={}", folder.display()));
        }
        command.arg(if is_program { &copy } else { program });
        Ok(command)
    }
}

/// The command that mounts `file` over `replaced` and starts `program` without privileges.
fn mounted(file: &Path, replaced: &Path, program: &Path, environment: &[(String, String)]) -> Command {
    // A folder for temporary files of its own: programs of other jobs leave locks there.
    const SCRIPT: &str = r#"mount --bind "$1" "$2" && mount -t tmpfs -o mode=1777 tmpfs /tmp || exit 99; shift 2; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(NAMESPACES).args(["sh", "-c", SCRIPT, "sh"]).arg(file).arg(replaced);
    command.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "--inh-caps=-all", "env"]);
    command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    command.arg(program);
    command
}

/// Runs to the end or to the limit, in a process group of its own that is ended with it, and says in words how it ended.
pub(crate) fn run_limited(command: &mut Command, limit: Duration) -> String {
    let mut child = match command.process_group(0).spawn() {
        Ok(child) => child,
        Err(error) => return format!("cannot start: {error}"),
    };
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                return match (status.signal(), status.code()) {
                    (Some(signal), _) => format!("signal {signal}"),
                    (None, code) => format!("status {}", code.unwrap_or_default()),
                };
            }
            Ok(None) if started.elapsed() > limit => {
                let group = format!("-{}", child.id());
                let _ended = Command::new("kill").args(["-KILL", "--", &group]).output();
                let _status = child.wait();
                return TIMED_OUT.into();
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => return format!("cannot wait: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(stdout: &str, end: &str) -> Seen {
        Seen { stdout: stdout.into(), stderr: String::new(), end: end.into() }
    }

    #[test]
    fn numbers_are_blurred_and_words_are_not() {
        assert_eq!(blur("pid 4711 at 0x7ffe12"), blur("pid 12 at 0x7fee"));
        assert_ne!(blur("yes"), blur("no"));
    }

    #[test]
    fn numbers_of_namespaces_are_left_out_and_others_stay() {
        assert_eq!(without_namespaces("0 ipc:[4026532180] 17"), "0 ipc:[(namespace)] 17");
        assert_eq!(without_namespaces("40265321801"), "40265321801");
    }

    #[test]
    fn a_difference_is_told_by_its_end_or_its_first_line() {
        let original = seen("a\nb\n", "status 0");
        assert_eq!(original.difference(&original), None);
        assert_eq!(
            original.difference(&seen("a\nb\n", "signal 11")).as_deref(),
            Some("ends with signal 11 in place of status 0")
        );
        assert_eq!(original.difference(&seen("a\nc\n", "status 0")).as_deref(), Some("stdout: \"c\" in place of \"b\""));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut command = Command::new("sleep");
        assert_eq!(run_limited(command.arg("60"), Duration::from_millis(50)), TIMED_OUT);
        assert_eq!(run_limited(&mut Command::new("false"), RUN_LIMIT), "status 1");
    }
}
