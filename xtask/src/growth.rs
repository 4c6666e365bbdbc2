//! `cargo xtask growth`: how relift's time and memory grow with the size of the program.
//!
//! **Method.** Of the machine's own programs and libraries, those are taken whose executable segments come nearest to a row of doublings. Each is relinked with every
//! block in another place (`--shuffle`, which costs more than any real layout), by one thread, without the checker. Processor time is the median of several runs,
//! memory the most of them. Both are fitted against the bytes of code on logarithmic scales: a slope of 1 is linear growth.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::bench::tools::{Cost, measured};
use crate::shell::{self, Result};
use crate::stock::elf::{self, File, Kind};

#[derive(Debug, Args)]
pub(crate) struct GrowthArgs {
    /// Folders with programs and libraries; /usr/bin and the library folder if none is given
    roots: Vec<PathBuf>,
    /// Runs of each file
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    /// Write the table to FILE
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// The least code that is looked for, in bytes; each further file has twice as much.
const SMALLEST: u64 = 100_000;
const DOUBLINGS: u32 = 9;

struct Row {
    path: PathBuf,
    code_bytes: u64,
    cost: Cost,
}

pub(crate) fn run(args: &GrowthArgs) -> Result {
    let roots = match args.roots.is_empty() {
        true => ["/usr/bin", "/usr/lib/x86_64-linux-gnu"].map(PathBuf::from).to_vec(),
        false => args.roots.clone(),
    };
    let relift = args.relift.clone().map_or_else(crate::e2e::build_relift, Ok)?;
    let scratch = tempfile::tempdir().map_err(|error| format!("cannot make a scratch folder: {error}"))?;
    let mut rows: Vec<Row> = Vec::new();
    for file in chosen(elf::find(&roots)?) {
        match row(&relift, &file.path, scratch.path(), args.runs.max(1)) {
            Ok(row) => rows.push(row),
            Err(problem) => shell::say(&format!("{}: {problem}", file.path.display())),
        }
    }
    let text = table(&mut rows)?;
    shell::say(&text);
    args.record.as_ref().map_or(Ok(()), |record| shell::write_file(record, text.as_bytes()))
}

/// For each size that is wanted the file that comes nearest, each file once. Only what can move whole says how cost grows.
fn chosen(files: Vec<File>) -> Vec<File> {
    let files: Vec<File> = files.into_iter().filter(|file| file.kind != Kind::Fixed).collect();
    let mut chosen: Vec<File> = Vec::new();
    for doublings in 0..=DOUBLINGS {
        let wanted = SMALLEST << doublings;
        let others = files.iter().filter(|file| !chosen.iter().any(|known| known.path == file.path));
        chosen.extend(others.min_by_key(|file| (file.code.abs_diff(wanted), file.path.clone())).cloned());
    }
    chosen
}

fn row(relift: &Path, path: &Path, scratch: &Path, runs: usize) -> Result<Row> {
    let output = scratch.join("output");
    let text = |path: &Path| path.display().to_string();
    let mut words = vec![text(relift), "optimize".into(), text(path), "-o".into(), text(&output)];
    words.extend(["--shuffle", "1", "--no-check", "--threads", "1", "--json"].map(str::to_owned));
    let mut costs = Vec::new();
    let mut code_bytes = 0;
    for _ in 0..runs {
        let (cost, said) = measured(scratch, &words)?;
        let json: serde_json::Value =
            serde_json::from_str(&said).map_err(|error| format!("relift --json printed no JSON: {error}"))?;
        code_bytes = json["text_bytes"]["total"].as_u64().ok_or("relift --json says nothing of text_bytes")?;
        costs.push(cost);
    }
    Ok(Row { path: path.to_owned(), code_bytes, cost: Cost::median(costs) })
}

fn table(rows: &mut [Row]) -> Result<String> {
    rows.sort_by_key(|row| row.code_bytes);
    if rows.len() < 2 {
        return Err("too few files to say how cost grows".into());
    }
    let mut text = String::from("| file | bytes of code | CPU s | ns a byte | peak MB |\n| --- | ---: | ---: | ---: | ---: |\n");
    for Row { path, code_bytes, cost } in &*rows {
        let _infallible = writeln!(
            text,
            "| {} | {code_bytes} | {:.3} | {:.0} | {:.1} |",
            path.file_name().unwrap_or_default().to_string_lossy(),
            cost.cpu_seconds,
            cost.cpu_seconds * 1e9 / *code_bytes as f64,
            cost.peak_kilobytes as f64 / 1000.0
        );
    }
    let points = |of: &dyn Fn(&Row) -> f64| rows.iter().map(|row| (row.code_bytes as f64, of(row))).collect::<Vec<_>>();
    let (time, memory) = (points(&|row| row.cost.cpu_seconds), points(&|row| row.cost.peak_kilobytes as f64));
    let _infallible = writeln!(text, "\nSlope on logarithmic scales: time {:.2}, memory {:.2}.", slope(&time), slope(&memory));
    Ok(text)
}

/// Of the line with the least squares through the logarithms.
fn slope(points: &[(f64, f64)]) -> f64 {
    let logs: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.ln(), y.max(1e-9).ln())).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0 / count, sum.1 + point.1 / count));
    let (covariance, variance) = logs.iter().fold((0.0, 0.0), |sum, point| {
        let (x, y) = (point.0 - mean.0, point.1 - mean.1);
        (sum.0 + x * y, sum.1 + x * x)
    });
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_of_a_power_is_its_exponent() {
        let points: Vec<(f64, f64)> = (1..9).map(|x| (f64::from(x), 3.0 * f64::from(x).powf(1.5))).collect();
        assert!((slope(&points) - 1.5).abs() < 1e-9);
    }

    #[test]
    fn files_are_chosen_by_size_and_only_once() {
        let file = |name: &str, size, kind| File { path: PathBuf::from(name), kind, size: 0, code: size };
        let files = vec![
            file("a", SMALLEST, Kind::Pie),
            file("b", SMALLEST * 2 + 5, Kind::Shared),
            file("c", SMALLEST * 2, Kind::Fixed),
            file("d", SMALLEST * 4, Kind::Pie),
        ];
        let names: Vec<PathBuf> = chosen(files).into_iter().map(|file| file.path).collect();
        assert_eq!(names, [PathBuf::from("a"), PathBuf::from("b"), PathBuf::from("d")]);
    }
}
