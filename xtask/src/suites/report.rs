//! The table of a run of suites, for people (Markdown) and for machines (JSON).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Context;
use super::cases::Comparison;
use super::catalog::Suite;
use super::relink::Output;
use super::system::System;
use crate::shell::{self, Result};
use crate::stock::report::Outcome;

/// One suite.
#[derive(Debug)]
pub(super) struct Row {
    name: &'static str,
    about: &'static str,
    outputs: Vec<Output>,
    comparison: Option<Comparison>,
    seconds: f64,
    /// Why it could not run at all.
    problem: Option<String>,
}

/// How many differences of a suite are shown.
const SHOWN: usize = 12;

impl Row {
    pub(super) fn of(suite: &Suite, outputs: Vec<Output>, comparison: Option<Comparison>, elapsed: Duration) -> Row {
        let (name, about) = (suite.name, suite.about);
        Row { name, about, outputs, comparison, seconds: elapsed.as_secs_f64(), problem: None }
    }

    pub(super) fn not_run(suite: &Suite, problem: String) -> Row {
        let (name, about) = (suite.name, suite.about);
        Row { name, about, outputs: Vec::new(), comparison: None, seconds: 0.0, problem: Some(problem) }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.comparison.as_ref().is_none_or(|comparison| !comparison.different.is_empty())
            || self.outputs.iter().any(|output| output.outcome != Outcome::Relinked)
    }

    fn counts(&self) -> (usize, usize, usize, usize) {
        let of = |comparison: &Comparison| (comparison.cases, comparison.equal, comparison.different.len(), comparison.unsteady);
        self.comparison.as_ref().map_or((0, 0, 0, 0), of)
    }

    /// One line for the terminal, and one for each thing that is wrong.
    pub(super) fn summary(&self) -> String {
        let (cases, equal, different, unsteady) = self.counts();
        let mut text =
            format!("    {cases} cases: {equal} equal ({unsteady} unsteady), {different} different; {:.0} s", self.seconds);
        self.complaints().iter().for_each(|line| text = format!("{text}\n    {line}"));
        text
    }

    fn complaints(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.problem.iter().map(|problem| format!("not run: {problem}")).collect();
        for output in &self.outputs {
            match &output.outcome {
                Outcome::Relinked => {}
                Outcome::Refused(why) => lines.push(format!("{}: refused: {why}", output.of.display())),
                Outcome::Violation(what) => lines.push(format!("{}: violation: {what}", output.of.display())),
                Outcome::Crashed(how) => lines.push(format!("{}: relift crashed: {how}", output.of.display())),
            }
        }
        let different = self.comparison.iter().flat_map(|comparison| &comparison.different);
        lines.extend(different.take(SHOWN).map(|difference| format!("different: {difference}")));
        lines
    }

    fn relinked(&self) -> String {
        let name = |output: &Output| output.of.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.outputs.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    fn json(&self) -> Value {
        let (cases, equal, different, unsteady) = self.counts();
        json!({
            "suite": self.name,
            "about": self.about,
            "relinked": self.outputs.iter().map(|output| output.of.display().to_string()).collect::<Vec<_>>(),
            "cases": cases,
            "equal": equal,
            "different": different,
            "unsteady": unsteady,
            "seconds": self.seconds,
            "complaints": self.complaints(),
        })
    }
}

/// Writes the record as `PREFIX.json` and `PREFIX.md` and returns the Markdown.
pub(super) fn write(rows: &[Row], prefix: &Path, context: &Context) -> Result<String> {
    if let Some(folder) = prefix.parent() {
        shell::create_folder(folder)?;
    }
    let text = markdown(rows, context);
    let rows: Vec<Value> = rows.iter().map(Row::json).collect();
    let json = serde_json::to_string_pretty(&rows).map_err(|error| format!("cannot write the record: {error}"))?;
    shell::write_file(&prefix.with_extension("json"), (json + "\n").as_bytes())?;
    shell::write_file(&prefix.with_extension("md"), text.as_bytes())?;
    Ok(text)
}

fn markdown(rows: &[Row], context: &Context) -> String {
    let treatment = context.treatment.argument();
    let check = if context.check { "" } else { " --no-check" };
    let system = context.system.as_ref();
    let whole = system.map(System::argument).unwrap_or_default();
    let mut text =
        format!("`cargo xtask suites {treatment}{check}{whole}`: what originals and outputs do, at the same paths.\n\n");
    if let Some(system) = system {
        let _ = writeln!(text, "{}.\n", system.summary());
    }
    text += "| suite | relinked | cases | equal | different | unsteady | seconds (two runs) |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |\n";
    for row in rows {
        let (cases, equal, different, unsteady) = row.counts();
        let (name, about, relinked) = (row.name, row.about, row.relinked());
        let _ = writeln!(
            text,
            "| **{name}**: {about} | {relinked} | {cases} | {equal} | {different} | {unsteady} | {:.0} |",
            row.seconds
        );
    }
    text += "\n| file | mode | functions moved | code moved | pinned | bytes | output | checker | seconds |\n";
    text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | ---: |\n";
    let outputs: BTreeMap<&Path, &Output> =
        rows.iter().flat_map(|row| &row.outputs).map(|output| (output.of.as_path(), output)).collect();
    outputs.values().for_each(|output| file_row(output, context.check, &mut text));
    if rows.iter().any(|row| !row.complaints().is_empty()) {
        text += "\nFailures:\n\n```\n";
        for row in rows {
            row.complaints().iter().for_each(|line| text = format!("{text}{}: {line}\n", row.name));
        }
        text += "```\n";
    }
    text
}

fn file_row(output: &Output, is_checked: bool, text: &mut String) {
    let number = |pointer: &str| output.said.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let (moved, total) = (number("/text_bytes/moved"), number("/text_bytes/total"));
    let share = if total == 0 { "-".into() } else { format!("{:.2} %", moved as f64 * 100.0 / total as f64) };
    let pinned: u64 = output
        .said
        .pointer("/functions/pinned")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(_, n)| n.as_u64())
        .sum();
    let checker = match &output.outcome {
        Outcome::Relinked if is_checked => "passed",
        Outcome::Relinked => "not run",
        Outcome::Violation(_) => "violations",
        Outcome::Refused(_) => "refused",
        Outcome::Crashed(_) => "crashed",
    };
    let _ = writeln!(
        text,
        "| {} | {} | {} | {share} | {pinned} | {} | {} | {checker} | {:.1} |",
        output.of.file_name().unwrap_or_default().display(),
        output.said.get("mode").and_then(Value::as_str).unwrap_or("-"),
        number("/functions/moved"),
        number("/input_bytes"),
        number("/output_bytes"),
        output.said.get("seconds").and_then(Value::as_f64).unwrap_or(0.0),
    );
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::suites::Treatment;

    fn row(outcome: Outcome, different: &[&str]) -> Row {
        let output = Output { of: PathBuf::from("/usr/bin/x"), file: None, outcome, said: Value::Null };
        let different: Vec<String> = different.iter().map(|&what| what.to_owned()).collect();
        let comparison = Comparison { cases: 2, equal: 2 - different.len(), unsteady: 0, different };
        Row { name: "s", about: "a", outputs: vec![output], comparison: Some(comparison), seconds: 1.0, problem: None }
    }

    #[test]
    fn a_suite_fails_by_a_difference_a_refusal_or_a_violation() {
        assert!(!row(Outcome::Relinked, &[]).has_failed());
        assert!(row(Outcome::Relinked, &["b"]).has_failed());
        assert!(row(Outcome::Violation("v".into()), &[]).has_failed());
        assert!(row(Outcome::Refused("r".into()), &[]).complaints()[0].ends_with("refused: r"));
    }

    #[test]
    fn the_table_counts_cases_and_names_what_differs() {
        let context = Context {
            relift: PathBuf::new(),
            treatment: Treatment::Shuffled(3),
            check: true,
            directory: PathBuf::new(),
            system: None,
        };
        let text = markdown(&[row(Outcome::Relinked, &["b"])], &context);
        assert!(text.starts_with("`cargo xtask suites --shuffle 3`"), "{text}");
        assert!(text.contains("| **s**: a | x | 2 | 1 | 1 | 0 | 1 |"), "{text}");
        assert!(text.contains("s: different: b"), "{text}");
    }
}
