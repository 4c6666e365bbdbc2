//! Where the executed loads and stores go.

use std::fmt::Write;
use std::process::ExitCode;

use analysis::engine::Summaries;
use analysis::traffic::traffic;
use profiles::Weights;
use serde_json::json;

use super::super::{Style, print, print_json};
use crate::failure::Result;
use crate::report::{group, percent};
use crate::timing::Timing;

pub(super) fn run(summaries: &Summaries<'_>, weights: &Weights, style: Style, timing: &Timing) -> Result<ExitCode> {
    let found = traffic(summaries, &weights.blocks);
    timing.finish();
    if style.json {
        let of = |a: &analysis::traffic::Accesses| json!({"loads": a.loads, "stores": a.stores, "known": a.known});
        let by_name: serde_json::Map<String, serde_json::Value> = found.iter().map(|(n, a)| ((*n).to_owned(), of(a))).collect();
        print_json(&by_name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all: u64 = found.values().map(|a| a.loads.saturating_add(a.stores)).sum();
    let mut text = String::new();
    let _ = writeln!(text, "{:<24} {:>16} {:>16} {:>8} {:>16}", "", "loads", "stores", "of all", "known loads");
    for (name, a) in &found {
        let share = percent(a.loads.saturating_add(a.stores), all);
        let _ = writeln!(text, "{name:<24} {:>16} {:>16} {share:>8} {:>16}", group(a.loads), group(a.stores), group(a.known));
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}
