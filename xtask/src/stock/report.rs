//! The table of a stock run: what became of the files, for people (Markdown) and for machines (JSON).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::elf::Kind;
use crate::shell::{self, Result};

/// What relift did with a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Outcome {
    #[default]
    Relinked,
    /// With the reason, without the file's own numbers.
    Refused(String),
    /// The checker, or the invariants of the lifted program, found something.
    Violation(String),
    /// A panic, a signal, a time-out.
    Crashed(String),
}

impl Outcome {
    /// Reads the one line that relift says when it writes nothing.
    pub(crate) fn of_complaint(complaint: &str, input: &Path, output: &Path) -> Outcome {
        let line = complaint.lines().next_back().unwrap_or("no word on stderr");
        let mut what = line.strip_prefix("relift: ").unwrap_or(line);
        for path in [input, output] {
            what = what.strip_prefix(&format!("{}: ", path.display())).unwrap_or(what);
        }
        if what.starts_with("not written: the checker") || what.starts_with("lifting broke") {
            return Outcome::Violation(what.to_owned());
        }
        let what = what.rsplit_once(" (").filter(|_| what.ends_with(')')).map_or(what, |parts| parts.0);
        Outcome::Refused(what.to_owned())
    }

    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Outcome::Refused(_))
    }
}

/// What running original and output showed.
#[derive(Clone, Debug, Default)]
pub(super) struct Behavior {
    pub(super) runs: usize,
    pub(super) equal: usize,
    /// Runs where the original did not say the same twice.
    pub(super) unsteady: usize,
    pub(super) different: Vec<String>,
    /// Why it was not run.
    pub(super) skipped: Option<&'static str>,
}

/// One file.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    pub(super) size: u64,
    pub(super) outcome: Outcome,
    /// What `relift optimize --shuffle --json` printed.
    pub(super) said: Value,
    /// The same without `--shuffle`.
    pub(super) in_order: Value,
    pub(super) behavior: Behavior,
}

impl Row {
    pub(super) fn new(path: &Path, kind: Kind, size: u64) -> Row {
        let (outcome, said, in_order, behavior) = (Outcome::default(), Value::Null, Value::Null, Behavior::default());
        Row { path: path.to_owned(), kind, size, outcome, said, in_order, behavior }
    }

    pub(super) fn has_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Violation(_) | Outcome::Crashed(_)) || !self.behavior.different.is_empty()
    }

    /// What is wrong, in lines.
    pub(super) fn complaint(&self) -> String {
        let mut text = self.path.display().to_string();
        match &self.outcome {
            Outcome::Relinked => {}
            Outcome::Refused(why) => text += &format!("\n    refused: {why}"),
            Outcome::Violation(what) => text += &format!("\n    violation: {what}"),
            Outcome::Crashed(how) => text += &format!("\n    crashed: {how}"),
        }
        for difference in &self.behavior.different {
            text += &format!("\n    different: {difference}");
        }
        text
    }

    fn number(&self, pointer: &str) -> u64 {
        self.said.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
    }

    fn json(&self) -> Value {
        let (outcome, why) = match &self.outcome {
            Outcome::Relinked => ("relinked", None),
            Outcome::Refused(why) => ("refused", Some(why)),
            Outcome::Violation(why) => ("violation", Some(why)),
            Outcome::Crashed(why) => ("crashed", Some(why)),
        };
        json!({
            "file": self.path.display().to_string(),
            "kind": self.kind.name(),
            "input_bytes": self.size,
            "outcome": outcome,
            "why": why,
            "output_bytes": self.in_order.get("output_bytes"),
            "shuffled_bytes": self.said.get("output_bytes"),
            "mode": self.said.get("mode"),
            "techniques": self.said.get("techniques"),
            "warnings": self.said.get("warnings"),
            "functions": self.said.get("functions"),
            "text_bytes": self.said.get("text_bytes"),
            "seconds": self.said.get("seconds"),
            "peak_rss_bytes": self.said.get("peak_rss_bytes"),
            "runs": self.behavior.runs,
            "runs_equal": self.behavior.equal,
            "runs_unsteady": self.behavior.unsteady,
            "different": self.behavior.different,
            "not_run": self.behavior.skipped,
        })
    }
}

/// Writes the record as `PREFIX.json` and `PREFIX.md` and returns the Markdown.
pub(super) fn write(rows: &[Row], prefix: &Path, command: &str, place: &str, elapsed: Duration) -> Result<String> {
    if let Some(folder) = prefix.parent() {
        shell::create_folder(folder)?;
    }
    let text = markdown(rows, command, place, elapsed);
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    let json = serde_json::to_string_pretty(&rows).map_err(|error| format!("cannot write the record: {error}"))?;
    shell::write_file(&prefix.with_extension("json"), (json + "\n").as_bytes())?;
    shell::write_file(&prefix.with_extension("md"), text.as_bytes())?;
    Ok(text)
}

fn markdown(rows: &[Row], command: &str, place: &str, elapsed: Duration) -> String {
    let mut text = format!(
        "`cargo xtask stock {command}`: {} files, {} bytes, {:.0} s. Programs ran {place}.\n\n",
        rows.len(),
        rows.iter().map(|row| row.size).sum::<u64>(),
        elapsed.as_secs_f64(),
    );
    kinds_table(rows, &mut text);
    super::savings::table(rows, &mut text);
    let count = |is: fn(&Outcome) -> bool| rows.iter().filter(|row| is(&row.outcome)).count();
    let ran = rows.iter().filter(|row| row.behavior.runs > 0);
    let different = rows.iter().filter(|row| !row.behavior.different.is_empty()).count();
    let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
    let _ = writeln!(text, "\n| what | count |\n| --- | --- |");
    let counts = [
        ("refused", count(Outcome::is_refusal)),
        ("violations found by the checker or by `--verify`", count(|o| matches!(o, Outcome::Violation(_)))),
        ("crashes and time-outs of relift", count(|o| matches!(o, Outcome::Crashed(_)))),
        ("files run", ran.count()),
        ("files that behave differently", different),
        ("runs compared", sum(|row| row.behavior.runs)),
        ("runs equal", sum(|row| row.behavior.equal)),
        ("of these with an original that never says the same twice", sum(|row| row.behavior.unsteady)),
        ("programs not run", rows.iter().filter(|row| row.behavior.skipped.is_some()).count()),
    ];
    for (what, count) in counts {
        let _ = writeln!(text, "| {what} | {count} |");
    }
    pins_table(rows, &mut text);
    refusals_table(rows, &mut text);
    let failed: Vec<&Row> = rows.iter().filter(|row| row.has_failed()).collect();
    if !failed.is_empty() {
        text += "\nFailures:\n\n```\n";
        failed.iter().for_each(|row| text = format!("{text}{}\n", row.complaint()));
        text += "```\n";
    }
    text
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".into() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}

fn kinds_table(rows: &[Row], text: &mut String) {
    text.push_str(
        "| kind | files | relinked | text bytes | moved | input bytes | output bytes | size | shuffled | seconds | peak memory |\n",
    );
    text.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for kind in [Some(Kind::Pie), Some(Kind::Shared), Some(Kind::Fixed), None] {
        let of_kind: Vec<&Row> = rows.iter().filter(|row| kind.is_none_or(|kind| row.kind == kind)).collect();
        let relinked: Vec<&Row> = of_kind.iter().copied().filter(|row| row.outcome == Outcome::Relinked).collect();
        let sum = |pointer: &str| relinked.iter().map(|row| row.number(pointer)).sum::<u64>();
        let seconds: f64 = relinked.iter().filter_map(|row| row.said.get("seconds")?.as_f64()).sum();
        let peak = relinked.iter().map(|row| row.number("/peak_rss_bytes")).max().unwrap_or(0);
        let (input, shuffled) = (sum("/input_bytes"), sum("/output_bytes"));
        let output: u64 = relinked.iter().filter_map(|row| row.in_order.get("output_bytes")?.as_u64()).sum();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {input} | {output} | {} | {} | {seconds:.1} | {} MB |",
            kind.map_or("all", Kind::name),
            of_kind.len(),
            relinked.len(),
            sum("/text_bytes/total"),
            percent(sum("/text_bytes/moved"), sum("/text_bytes/total")),
            percent(output, input),
            percent(shuffled, input),
            peak / 1_000_000,
        );
    }
}

/// Bytes of code by the reason why they did not move.
fn pins_table(rows: &[Row], text: &mut String) {
    let mut pinned: BTreeMap<(&str, &str), (u64, u64)> = BTreeMap::new();
    for row in rows {
        for (pointer, is_bytes) in [("/text_bytes/pinned", true), ("/functions/pinned", false)] {
            for (reason, count) in row.said.pointer(pointer).and_then(Value::as_object).into_iter().flatten() {
                let sums = pinned.entry((row.kind.name(), reason)).or_default();
                let count = count.as_u64().unwrap_or(0);
                *(if is_bytes { &mut sums.0 } else { &mut sums.1 }) += count;
            }
        }
    }
    let mut pinned: Vec<_> = pinned.into_iter().collect();
    pinned.sort_by_key(|(key, (bytes, _))| (std::cmp::Reverse(*bytes), *key));
    text.push_str("\n| pinned in | because | bytes | functions |\n| --- | --- | --- | --- |\n");
    for ((kind, reason), (bytes, functions)) in pinned {
        let _ = writeln!(text, "| {kind} | {reason} | {bytes} | {functions} |");
    }
}

fn refusals_table(rows: &[Row], text: &mut String) {
    let mut refusals: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for row in rows {
        if let Outcome::Refused(why) = &row.outcome {
            refusals.entry(why).or_default().push(row.path.display().to_string());
        }
    }
    if refusals.is_empty() {
        return;
    }
    const SHOWN: usize = 6;
    text.push_str("\n| refused because | files | which |\n| --- | --- | --- |\n");
    for (why, files) in refusals {
        let shown = files.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "| {why} | {} | {shown}{} |", files.len(), if files.len() > SHOWN { ", ..." } else { "" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(line: &str) -> Outcome {
        Outcome::of_complaint(line, Path::new("/in"), Path::new("/out"))
    }

    #[test]
    fn a_complaint_is_a_refusal_without_its_hint_or_a_violation() {
        assert_eq!(outcome("relift: /in: no room (do that)"), Outcome::Refused("no room".into()));
        assert_eq!(outcome("relift: warning\nrelift: /in: no room"), Outcome::Refused("no room".into()));
        assert!(matches!(outcome("relift: /out: not written: the checker found 1 violations"), Outcome::Violation(_)));
    }

    #[test]
    fn the_table_sums_what_was_moved_by_kind() {
        let mut row = Row::new(Path::new("/in"), Kind::Pie, 10);
        row.said = json!({ "text_bytes": { "total": 200, "moved": 150, "pinned": { "undecodable": 50 } }, "input_bytes": 10, "output_bytes": 12 });
        row.in_order = json!({ "output_bytes": 9 });
        let text = markdown(&[row], "--shuffle 1", "here", Duration::from_secs(1));
        assert!(text.contains("| PIE | 1 | 1 | 200 | 75.00 % | 10 | 9 | 90.00 % | 120.00 % |"), "{text}");
        assert!(text.contains("| PIE | undecodable | 50 | 0 |"), "{text}");
    }
}
