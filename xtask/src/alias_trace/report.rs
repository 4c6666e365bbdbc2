//! What a run showed, as text and as a row of a table.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use super::facts::Pair;
use super::follow::Found;
use crate::shell::Result;

/// Of the pairs that never overlapped: all, and those that each analysis proves apart.
#[derive(Copy, Clone, Debug, Default)]
struct Precision {
    all: u64,
    local: u64,
    insensitive: u64,
    partitioned: u64,
    standard: u64,
}

impl Precision {
    fn add(&mut self, weight: u64, proves: [bool; 4]) {
        self.all += weight;
        self.local += weight * u64::from(proves[0]);
        self.insensitive += weight * u64::from(proves[1]);
        self.partitioned += weight * u64::from(proves[2]);
        self.standard += weight * u64::from(proves[3]);
    }
    fn shares(&self) -> [f64; 4] {
        [self.local, self.insensitive, self.partitioned, self.standard].map(|n| 100.0 * n as f64 / self.all.max(1) as f64)
    }
}

/// Of hot blocks: by pairs, where an analysis has to prove one in every context that was executed, and by executions. What holds whoever calls
/// holds in each context.
fn precision(found: &Found) -> (Precision, Precision) {
    let (mut by_pair, mut by_execution) = (Precision::default(), Precision::default());
    let proves = |pair: &Pair| {
        let always = pair.insensitive.is_no_alias();
        let in_context = [pair.partitioned, pair.standard].map(|verdict| always || verdict.is_no_alias());
        [pair.is_apart_locally, always, in_context[0], in_context[1]]
    };
    for ((block, _, _), contexts) in &found.pairs {
        if found.hot.binary_search(block).is_err() || contexts.iter().any(|p| p.overlaps > 0) {
            continue;
        }
        let all = contexts.iter().map(proves).fold([true; 4], |all, own| std::array::from_fn(|i| all[i] && own[i]));
        by_pair.add(1, all);
        for pair in contexts {
            by_execution.add(pair.executions, proves(pair));
        }
    }
    (by_pair, by_execution)
}

pub(super) fn text(name: &str, found: &Found) -> String {
    let (pairs, executions) = precision(found);
    let mut text = format!(
        "{name}: {} instructions, {} executions of blocks ({} given up), {} pairs of accesses seen, {} checked against a claim, {} addresses against their descriptors, {} contradictions\n",
        found.instructions,
        found.executions,
        found.given_up,
        found.seen,
        found.checked,
        found.described,
        found.contradictions.values().map(|c| c.1).sum::<u64>()
    );
    let mut row = |what: &str, p: &Precision| {
        let [local, insensitive, partitioned, standard] = p.shares();
        let _ = writeln!(
            text,
            "  {what} in hot blocks: {} never overlapped; proven: {local:.1} % block alone, {insensitive:.1} % insensitive, {partitioned:.1} % partitioned, {standard:.1} % standard",
            p.all
        );
    };
    row("pairs", &pairs);
    row("executions of pairs", &executions);
    for (contradiction, times) in found.contradictions.values().take(30) {
        let [a, b] = contradiction.spans;
        let _ = writeln!(
            text,
            "  WRONG {} times, {}: {} and {}: {} but {:#x}..{:#x} and {:#x}..{:#x}",
            times, contradiction.analysis, contradiction.first, contradiction.second, contradiction.claim, a.0, a.1, b.0, b.1
        );
    }
    text
}

/// Adds a row to a table, with its head if the file is new.
pub(super) fn append(record: &Path, name: &str, found: &Found) -> Result {
    let fail = |error: std::io::Error| format!("cannot write {}: {error}", record.display());
    let is_new = !record.exists();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(record).map_err(fail)?;
    if is_new {
        let head = "| program | instructions | pairs of accesses | checked | addresses described | contradictions | hot pairs that never overlapped | proven: block alone | insensitive | partitioned | standard | by executions: block alone | insensitive | partitioned | standard |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n";
        file.write_all(head.as_bytes()).map_err(fail)?;
    }
    let (pairs, executions) = precision(found);
    let ([a, b, c, d], [e, f, g, h]) = (pairs.shares(), executions.shares());
    let wrong: u64 = found.contradictions.values().map(|c| c.1).sum();
    let row = format!(
        "| {name} | {} | {} | {} | {} | {wrong} | {} | {a:.1} % | {b:.1} % | {c:.1} % | {d:.1} % | {e:.1} % | {f:.1} % | {g:.1} % | {h:.1} % |\n",
        found.instructions, found.seen, found.checked, found.described, pairs.all
    );
    file.write_all(row.as_bytes()).map_err(fail)
}
