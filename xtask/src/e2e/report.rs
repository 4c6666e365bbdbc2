//! The record of an end-to-end run: a row per program and form, as a Markdown table for people and as JSON.

use std::path::Path;

use serde_json::{Value, json};

use crate::shell::{self, Result};

/// What became of one program in one form.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub(super) program: String,
    pub(super) form: String,
    /// Workloads that behave the same, of how many.
    pub(super) same: usize,
    pub(super) workloads: usize,
    pub(super) deterministic: bool,
    /// Seeds that behave the same, of how many.
    pub(super) shuffles: Option<(u64, u64)>,
    /// Sizes of input and output after `strip`.
    pub(super) stripped_bytes: Option<(u64, u64)>,
    pub(super) failures: Vec<String>,
    /// The JSON that `relift train` printed.
    train: Value,
}

const COLUMNS: [&str; 12] = [
    "program",
    "form",
    "taken before",
    "taken after",
    "change",
    "stripped size",
    "text moved",
    "functions moved",
    "same behavior",
    "same bytes",
    "shuffles",
    "seconds",
];

/// The two lines above the rows of the table.
pub(super) fn header() -> String {
    format!("| {} |\n|{}", COLUMNS.join(" | "), " --- |".repeat(COLUMNS.len()))
}

impl Row {
    pub(super) fn new(program: &str, form: &str) -> Row {
        Row { program: program.into(), form: form.into(), ..Row::default() }
    }

    /// Takes over what `relift train --json` said.
    pub(super) fn read(&mut self, said: &Value) {
        self.train = said.clone();
    }

    /// Remembers a failure under the name of what was tried.
    pub(super) fn note(&mut self, tried: &str, result: Result) {
        if let Err(problem) = result {
            self.failures.push(format!("{tried}: {problem}"));
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.failures.is_empty()
    }

    fn number(&self, path: &str) -> Option<f64> {
        self.train.pointer(path).and_then(Value::as_f64)
    }

    /// The row as a line of the table.
    pub(super) fn line(&self) -> String {
        let whole = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.0}"));
        let change = |before: Option<f64>, after: Option<f64>| match (before, after) {
            (Some(before), Some(after)) if before > 0.0 => format!("{:+.1} %", (after / before - 1.0) * 100.0),
            _ => "-".into(),
        };
        let part = |some: Option<f64>, all: Option<f64>| match (some, all) {
            (Some(some), Some(all)) if all > 0.0 => format!("{:.1} %", some / all * 100.0),
            _ => "-".into(),
        };
        let (before, after) = (self.number("/dyno/before/taken_branches"), self.number("/dyno/after/taken_branches"));
        let (input, output) =
            self.stripped_bytes.map_or((None, None), |(input, output)| (Some(input as f64), Some(output as f64)));
        let cells = [
            self.program.clone(),
            self.form.clone(),
            whole(before),
            whole(after),
            change(before, after),
            change(input, output),
            part(self.number("/text_bytes/moved"), self.number("/text_bytes/total")),
            format!("{}/{}", whole(self.number("/functions/moved")), whole(self.number("/functions/total"))),
            format!("{}/{}", self.same, self.workloads),
            if self.deterministic { "yes" } else { "no" }.into(),
            self.shuffles.map_or("-".into(), |(passed, all)| format!("{passed}/{all}")),
            self.number("/seconds").map_or("-".into(), |seconds| format!("{seconds:.2}")),
        ];
        format!("| {} |", cells.join(" | "))
    }

    fn json(&self) -> Value {
        json!({
            "program": self.program,
            "form": self.form,
            "passed": self.passed(),
            "workloads_same": self.same,
            "workloads": self.workloads,
            "deterministic": self.deterministic,
            "shuffles_same": self.shuffles.map(|(passed, _)| passed),
            "shuffles": self.shuffles.map(|(_, all)| all),
            "stripped_input_bytes": self.stripped_bytes.map(|(input, _)| input),
            "stripped_output_bytes": self.stripped_bytes.map(|(_, output)| output),
            "failures": self.failures,
            "train": self.train,
        })
    }
}

/// Writes the record as `PREFIX.json` and `PREFIX.md`.
pub(super) fn write(rows: &[Row], prefix: &Path) -> Result {
    if let Some(folder) = prefix.parent() {
        shell::create_folder(folder)?;
    }
    let rows_json: Vec<Value> = rows.iter().map(Row::json).collect();
    let text = serde_json::to_string_pretty(&rows_json).map_err(|error| format!("cannot write the record: {error}"))?;
    shell::write_file(&prefix.with_extension("json"), (text + "\n").as_bytes())?;
    let lines: Vec<String> = rows.iter().map(Row::line).collect();
    shell::write_file(&prefix.with_extension("md"), format!("{}\n{}\n", header(), lines.join("\n")).as_bytes())
}
