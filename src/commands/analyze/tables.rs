//! The paper's tables for one program: what each way to choose call sites costs, and what it finds.
//!
//! Time is what processors spent on the analysis by context, the choice of sites included, all threads together; the summaries, which all ways share, are a line of their own. Memory is
//! what contexts take. Pairs are those of hot blocks (`analysis::census`).

use std::process::ExitCode;

use analysis::census::Census;
use analysis::engine::{Contexts, Summaries};
use analysis::hot::Counts;
use analysis::partition::{Criterion, Partition};
use serde_json::json;

use super::super::{Style, print, print_json};
use crate::args::Analyze;
use crate::failure::Result;
use crate::report::group;
use crate::timing::{self, Timing};

/// A column of the tables.
struct Column {
    name: String,
    sites: usize,
    analyses: usize,
    seconds: f64,
    bytes: usize,
    census: Census,
}

pub(super) fn run(
    args: &Analyze,
    summaries: &Summaries<'_>,
    counts: &Counts<'_>,
    style: Style,
    timing: &mut Timing,
) -> Result<ExitCode> {
    let criteria = [
        ("insensitive".to_owned(), Criterion::Insensitive),
        ("standard".to_owned(), Criterion::Standard),
        ("frequency 1.0".to_owned(), Criterion::Frequency { theta: 1.0 }),
        ("frequency 0.8".to_owned(), Criterion::Frequency { theta: 0.8 }),
        ("frequency 0.67".to_owned(), Criterion::Frequency { theta: 0.67 }),
        ("relevance 1.0".to_owned(), Criterion::Relevance { theta: 1.0 }),
        ("conservative".to_owned(), Criterion::Conservative),
        (format!("budgeted {}", args.budget), Criterion::Budgeted { sites: args.budget }),
    ];
    let insensitive = Contexts::compute(summaries, Partition::by(Criterion::Insensitive, summaries, counts));
    let mut columns = Vec::new();
    for (name, criterion) in criteria {
        let column = timing.phase("analyze by context", |_| {
            let started = timing::processor_seconds();
            let contexts = Contexts::compute(summaries, Partition::by(criterion, summaries, counts));
            let seconds = timing::processor_seconds() - started;
            Column {
                name,
                sites: contexts.sites_analyzed(),
                analyses: contexts.analyses,
                seconds,
                bytes: contexts.bytes(),
                census: Census::of(&contexts, &insensitive, counts),
            }
        });
        columns.push(column);
    }
    timing.finish();
    if style.json {
        print_json(&json!({
            "procedures": summaries.around.procedures.all.len(), "sites": summaries.graph.sites.len(),
            "summaries": { "analyses": summaries.analyses, "seconds": summary_seconds(timing) },
            "hot_threshold": counts.threshold, "peak_rss_bytes": timing::peak_rss_bytes(),
            "columns": columns.iter().map(column_json).collect::<Vec<_>>(),
        }))?;
    } else {
        print(&text(summaries, counts, &columns, timing))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn summary_seconds(timing: &Timing) -> f64 {
    timing.phases().iter().filter(|p| p.name == "summarize procedures").map(|p| p.total.as_secs_f64()).sum()
}

fn column_json(column: &Column) -> serde_json::Value {
    let Column { name, sites, analyses, seconds, bytes, census } = column;
    json!({ "criterion": name, "sites": sites, "analyses": analyses, "seconds": seconds, "bytes": bytes,
        "pairs": { "hot": census.asked, "block_alone": census.local, "independent": census.apart, "beyond_insensitive": census.beyond },
        "executions": { "hot": census.asked_executions as f64, "block_alone": census.local_executions as f64,
            "independent": census.apart_executions as f64, "beyond_insensitive": census.beyond_executions as f64 },
        "clones": census.clones, "clone_instructions": census.clone_instructions })
}

fn text(summaries: &Summaries<'_>, counts: &Counts<'_>, columns: &[Column], timing: &Timing) -> String {
    let first = &columns[0].census;
    let mut text = format!(
        "{} procedures, {} call sites; summaries: {} analyses, {:.3} s; blocks are hot from {} executions on\n\
         pairs in hot blocks: {} ({} by a look at the block alone), {} executions ({})\n\n",
        group(summaries.around.procedures.all.len() as u64),
        group(summaries.graph.sites.len() as u64),
        group(summaries.analyses as u64),
        summary_seconds(timing),
        group(counts.threshold),
        group(first.asked),
        group(first.local),
        group128(first.asked_executions),
        group128(first.local_executions),
    );
    let standard = &columns[1];
    let share = |part: f64, whole: f64| if whole > 0.0 { format!("{:.1} %", 100.0 * part / whole) } else { "-".to_owned() };
    let header = [
        "criterion",
        "call sites",
        "",
        "analyses",
        "seconds",
        "",
        "bytes",
        "independent",
        "beyond insensitive",
        "executions",
        "beyond insensitive",
        "",
        "clones/instructions",
    ];
    let mut rows: Vec<Vec<String>> = vec![header.iter().map(|h| (*h).to_owned()).collect()];
    for c in columns {
        let dynamic = |census: &Census| census.beyond_executions as f64;
        rows.push(vec![
            c.name.clone(),
            group(c.sites as u64),
            share(c.sites as f64, standard.sites as f64),
            group(c.analyses as u64),
            format!("{:.3}", c.seconds),
            share(c.seconds, standard.seconds),
            group(c.bytes as u64),
            group(c.census.apart),
            group(c.census.beyond),
            group128(c.census.apart_executions),
            group128(c.census.beyond_executions),
            share(dynamic(&c.census), dynamic(&standard.census)),
            format!("{}/{}", c.census.clones, group(c.census.clone_instructions)),
        ]);
    }
    push_table(&mut text, &rows);
    text
}

fn group128(number: u128) -> String {
    group(u64::try_from(number).unwrap_or(u64::MAX))
}

/// Columns as wide as they have to be, the first to the left and the others to the right.
fn push_table(text: &mut String, rows: &[Vec<String>]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, &width))| if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
}
