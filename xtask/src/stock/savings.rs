//! What `relift shrink` saved, by technique and kind of file.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::elf::Kind;
use super::report::{Outcome, Row};

/// A file that `relift shrink` has read.
struct Shrunk<'a> {
    input: f64,
    output: f64,
    techniques: &'a [Value],
    /// What would have stayed in the middle of segments.
    cut: f64,
    /// Whether a technique was left out because the checker found something.
    is_less: bool,
}

/// Adds the table; nothing if no file was shrunk.
pub(super) fn table(rows: &[Row], text: &mut String) {
    let kinds = [Some(Kind::Pie), Some(Kind::Shared), Some(Kind::Fixed), None];
    let shrunk: Vec<Vec<Shrunk<'_>>> = kinds.iter().map(|kind| of_kind(rows, *kind)).collect();
    if shrunk.iter().all(Vec::is_empty) {
        return;
    }
    text.push_str("\n| of the input's bytes | PIE | shared | fixed | all |\n| --- | --- | --- | --- | --- |\n");
    let mut line = |what: &str, of: &dyn Fn(&[Shrunk<'_>]) -> String| {
        let _ = write!(text, "| {what} |");
        shrunk.iter().for_each(|files| {
            let _ = write!(text, " {} |", if files.is_empty() { "-".to_owned() } else { of(files) });
        });
        text.push('\n');
    };
    let total = |files: &[Shrunk<'_>]| files.iter().map(|file| file.input).sum::<f64>();
    line("files", &|files| files.len().to_string());
    line("all techniques", &|files| change(files.iter().map(|file| file.output).sum::<f64>() / total(files)));
    line("the median file", &|files| change(median(files)));
    line("files that are larger", &|files| files.iter().filter(|file| file.output > file.input).count().to_string());
    line("files that are the same", &|files| files.iter().filter(|file| file.output == file.input).count().to_string());
    line("where the checker stopped a technique", &|files| files.iter().filter(|file| file.is_less).count().to_string());
    let names: BTreeMap<&str, ()> = shrunk.iter().flatten().flat_map(|file| file.techniques).filter_map(name).collect();
    for (technique, ()) in names {
        line(technique, &|files| {
            let saved = files.iter().flat_map(|file| file.techniques).filter(|saving| saving["technique"] == technique);
            change(1.0 - saved.filter_map(|saving| saving["bytes"].as_f64()).sum::<f64>() / total(files))
        });
    }
    line("of these only by cuts", &|files| change(1.0 - files.iter().map(|file| file.cut).sum::<f64>() / total(files)));
}

fn name(saving: &Value) -> Option<(&str, ())> {
    saving["technique"].as_str().map(|name| (name, ()))
}

fn of_kind(rows: &[Row], kind: Option<Kind>) -> Vec<Shrunk<'_>> {
    let rows = rows.iter().filter(|row| kind.is_none_or(|kind| row.kind == kind) && row.outcome == Outcome::Relinked);
    rows.filter_map(shrunk).collect()
}

fn shrunk(row: &Row) -> Option<Shrunk<'_>> {
    let techniques = row.in_order.get("techniques")?.as_array()?;
    let bytes = |what: &str| row.in_order.get(what).and_then(Value::as_f64);
    let warnings = row.in_order.get("warnings").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    Some(Shrunk {
        input: bytes("input_bytes")?,
        output: bytes("output_bytes")?,
        techniques,
        cut: bytes("cut_bytes").unwrap_or(0.0),
        is_less: warnings.into_iter().any(|warning| warning.contains("the checker")),
    })
}

fn median(files: &[Shrunk<'_>]) -> f64 {
    let mut ratios: Vec<f64> = files.iter().map(|file| file.output / file.input).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or(1.0)
}

fn change(ratio: f64) -> String {
    format!("{:+.2} %", (ratio - 1.0) * 100.0)
}
