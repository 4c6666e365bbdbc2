//! relift and BOLT as processes: what they cost, and what they say of their own outputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::run::{Bench, Subject};
use crate::shell::{self, Result};

/// What BOLT is told, as in the issue that asked for the comparison.
pub(super) const BOLT_OPTIONS: [&str; 6] =
    ["-reorder-blocks=ext-tsp", "-reorder-functions=cdsort", "-split-functions", "-split-all-cold", "-icf=all", "-dyno-stats"];

/// What a run of a tool cost.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Cost {
    /// User and system time of the whole process.
    pub(crate) cpu_seconds: f64,
    pub(crate) peak_kilobytes: u64,
}

/// What a tool counts by the profile, before and after.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Dyno {
    pub(super) taken_before: u64,
    pub(super) taken_after: u64,
}

impl Cost {
    /// The middle one by time, with the most memory of all.
    pub(crate) fn median(mut costs: Vec<Cost>) -> Cost {
        costs.sort_by(|a, b| a.cpu_seconds.total_cmp(&b.cpu_seconds));
        let peak_kilobytes = costs.iter().map(|cost| cost.peak_kilobytes).max().unwrap_or(0);
        Cost { peak_kilobytes, ..costs.get(costs.len() / 2).copied().unwrap_or_default() }
    }
}

/// The profile that both tools get: BOLT's instrumentation, the training workload. What exists is not made again. Where BOLT's instrumentation fails,
/// relift's own takes its place, and the second value says how.
pub(super) fn profile(bench: &Bench, subject: &Subject<'_>) -> Result<(PathBuf, Option<String>)> {
    let (by_bolt, by_relift) = (subject.folder.join("profile.fdata"), subject.folder.join("profile.rlp"));
    if by_bolt.is_file() {
        return Ok((by_bolt, None));
    }
    match profile_by_bolt(bench, subject, &by_bolt) {
        Ok(()) => Ok((by_bolt, None)),
        Err(problem) => {
            profile_by_relift(bench, subject, &by_relift)?;
            Ok((by_relift, Some(format!("instrumenting: {problem}"))))
        }
    }
}

fn profile_by_bolt(bench: &Bench, subject: &Subject<'_>, profile: &Path) -> Result {
    let raw = subject.folder.join("raw");
    let _absent = fs::remove_dir_all(&raw);
    shell::create_folder(&raw)?;
    let instrumented = subject.folder.join("instrumented");
    let mut file_option = std::ffi::OsString::from("--instrumentation-file=");
    file_option.push(raw.join("profile"));
    let mut instrument = Command::new(&bench.bolt);
    instrument.arg(&subject.input).arg("-instrument").arg(file_option).arg("--instrumentation-file-append-pid");
    shell::run(instrument.arg("-o").arg(&instrumented))?;
    train(bench, subject, &instrumented)?;
    let parts = shell::sorted_entries(&raw)?;
    if parts.is_empty() {
        return Err("the instrumented program wrote no profile".into());
    }
    let said = shell::run(Command::new(&bench.merge_fdata).args(&parts))?;
    shell::write_file(profile, &said.stdout)
}

fn profile_by_relift(bench: &Bench, subject: &Subject<'_>, profile: &Path) -> Result {
    let instrumented = subject.folder.join("instrumented-by-relift");
    let _absent = fs::remove_file(profile);
    let mut instrument = Command::new(&bench.relift);
    instrument.arg("instrument").arg(&subject.input).arg("-o").arg(&instrumented).arg("--profile").arg(profile);
    shell::run(&mut instrument)?;
    train(bench, subject, &instrumented)
}

/// Runs the training workload, which must print what the input prints in it: a profile of a program that failed is none.
fn train(bench: &Bench, subject: &Subject<'_>, instrumented: &Path) -> Result {
    let run = |binary: &Path| bench.run_workload(subject, "train", &format!("#!/bin/sh\nexec \"{}\" \"$@\"\n", binary.display()));
    let expected = run(&subject.input)?;
    expected.require_success("train")?;
    if run(instrumented)? == expected {
        Ok(())
    } else {
        Err("the instrumented program does not print what the input prints".into())
    }
}

/// BOLT's output, with what it cost and counted.
pub(super) fn bolt(bench: &Bench, subject: &Subject<'_>, profile: &Path, output: &Path) -> Result<(Cost, Dyno)> {
    let mut words = vec![bench.bolt.clone(), subject.input.display().to_string()];
    words.push(format!("-data={}", profile.display()));
    words.extend(BOLT_OPTIONS.map(str::to_owned));
    words.extend(["-o".into(), output.display().to_string()]);
    let (cost, said) = measured(&subject.folder, &words)?;
    let taken: Vec<u64> = said.lines().filter_map(|line| counted(line, "taken branches")).collect();
    match taken[..] {
        [taken_before, taken_after, ..] => Ok((cost, Dyno { taken_before, taken_after })),
        _ => Err("it printed no dyno-stats".into()),
    }
}

/// The number of a line such as `  123 : taken branches (-4.5%)`.
fn counted(line: &str, name: &str) -> Option<u64> {
    let (number, rest) = line.trim().split_once(" : ")?;
    let is_it = rest == name || rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(" ("));
    if is_it { number.parse().ok() } else { None }
}

/// relift's output, with what it cost and counted; `more` are options besides those of the command line.
pub(super) fn relift(
    bench: &Bench,
    subject: &Subject<'_>,
    input: &Path,
    profile: &Path,
    output: &Path,
    more: &[&str],
) -> Result<(Cost, Dyno)> {
    let (cost, report) = report(bench, subject, input, profile, output, more)?;
    let dyno = Dyno {
        taken_before: dyno_stat(&report, "before", "taken_branches"),
        taken_after: dyno_stat(&report, "after", "taken_branches"),
    };
    Ok((cost, dyno))
}

/// One of relift's counts by the profile, `before` or `after`; none if the report does not have it.
pub(super) fn dyno_stat(report: &serde_json::Value, order: &str, name: &str) -> u64 {
    report.pointer(&format!("/dyno/{order}/{name}")).and_then(serde_json::Value::as_u64).unwrap_or(0)
}

/// relift's output, with what it cost and its report.
pub(super) fn report(
    bench: &Bench,
    subject: &Subject<'_>,
    input: &Path,
    profile: &Path,
    output: &Path,
    more: &[&str],
) -> Result<(Cost, serde_json::Value)> {
    let text = |path: &Path| path.display().to_string();
    let mut words = vec![text(&bench.relift), "optimize".into(), text(input), "-o".into(), text(output)];
    // As BOLT does without a word.
    words.extend(["-p".into(), text(profile), "--debug=drop".into(), "--json".into()]);
    words.extend(bench.relift_options.iter().cloned());
    words.extend(more.iter().map(|&word| word.to_owned()));
    let (cost, said) = measured(&subject.folder, &words)?;
    let report = serde_json::from_str(&said).map_err(|error| format!("relift --json printed no JSON: {error}"))?;
    Ok((cost, report))
}

/// Runs a tool; what it cost, and its standard output.
pub(crate) fn measured(folder: &Path, words: &[String]) -> Result<(Cost, String)> {
    let (times, memory) = (folder.join("times"), folder.join("memory"));
    // The shell's own clock has milliseconds; the memory is that of `time`'s one child.
    let script = r#"TIMEFORMAT='%3U %3S'; times=$1; memory=$2; shift 2; { time command time -f %M -o "$memory" "$@" 2>&3; } 3>&2 2>"$times""#;
    let said = shell::run(Command::new("bash").args(["-c", script, "bash"]).arg(&times).arg(&memory).args(words))?;
    let read = |path: &Path| Ok::<_, String>(String::from_utf8_lossy(&shell::read_file(path)?).into_owned());
    let cpu_seconds = read(&times)?.split_whitespace().filter_map(|word| word.parse::<f64>().ok()).sum();
    let peak_kilobytes = read(&memory)?.trim().parse().map_err(|error| format!("time printed no size: {error}"))?;
    Ok((Cost { cpu_seconds, peak_kilobytes }, String::from_utf8_lossy(&said.stdout).into_owned()))
}

/// The size of a binary after `strip`.
pub(super) fn stripped_size(subject: &Subject<'_>, binary: &Path) -> Result<u64> {
    let stripped = subject.folder.join("stripped-copy");
    shell::run(Command::new("strip").arg("-o").arg(&stripped).arg(binary))?;
    fs::metadata(&stripped)
        .map(|metadata| metadata.len())
        .map_err(|error| format!("cannot look at {}: {error}", stripped.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_costs_the_middle_of_its_times_and_the_most_of_its_memory() {
        let cost = |cpu_seconds, peak_kilobytes| Cost { cpu_seconds, peak_kilobytes };
        let median = Cost::median(vec![cost(3.0, 10), cost(1.0, 30), cost(2.0, 20)]);
        assert_eq!((median.cpu_seconds, median.peak_kilobytes), (2.0, 30));
    }

    #[test]
    fn the_counters_of_bolt_are_told_apart() {
        assert_eq!(counted("           153024 : taken branches", "taken branches"), Some(153_024));
        assert_eq!(counted("           153024 : taken branches (-12.1%)", "taken branches"), Some(153_024));
        assert_eq!(counted("            15302 : taken forward branches (=)", "taken branches"), None);
        assert_eq!(counted("BOLT-INFO: taken branches", "taken branches"), None);
    }
}
