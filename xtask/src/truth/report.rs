//! The table: a row for each program and way to lift it, over all its variants.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::judge::{Compared, Shown, Verdict};

/// Sums over the variants of a program that were lifted in the same way.
#[derive(Default)]
struct Sums {
    variants: usize,
    refused: usize,
    code_bytes: u64,
    movable_bytes: u64,
    refs: usize,
    missed_refs: usize,
    invented_refs: usize,
    slots: usize,
    missed_slots: usize,
    invented_slots: usize,
    entries: usize,
    lifted_entries: usize,
    pinned_entries: usize,
    missed_entries: usize,
    idle_entries: usize,
    extra_entries: usize,
    invented_entries: usize,
    starts: usize,
    missed_starts: usize,
    extra_starts: usize,
    crowded: usize,
    violations: usize,
}

impl Sums {
    fn add(&mut self, compared: &Compared) {
        let truth = &compared.truth;
        self.code_bytes += compared.code_bytes;
        self.movable_bytes += compared.movable_bytes;
        self.refs += truth.num_refs;
        self.missed_refs += truth.missed_refs.len();
        self.invented_refs += truth.invented_refs.len();
        self.slots += truth.num_slots;
        self.missed_slots += truth.missed_slots.len();
        self.invented_slots += truth.invented_slots.len();
        self.entries += truth.num_entries;
        self.lifted_entries += truth.num_lifted_entries + truth.num_unreachable_entries;
        self.pinned_entries += truth.num_pinned_entries;
        self.missed_entries += truth.missed_entries.len();
        self.idle_entries += truth.idle_entries.len();
        self.extra_entries += truth.num_extra_entries;
        self.invented_entries += truth.invented_entries.len();
        self.starts += truth.num_starts;
        self.missed_starts += truth.missed_starts.len();
        self.extra_starts += truth.num_extra_starts;
        self.crowded += truth.crowded_anchors.len();
        self.violations += compared.violations.len();
    }

    fn row(&self, out: &mut String, name: &str, kind: &str, shown: &str) {
        let share = 100.0 * self.movable_bytes as f64 / self.code_bytes.max(1) as f64;
        let cells = [
            self.variants.to_string(),
            format!("{}", self.code_bytes / 1024),
            format!("{share:.1}"),
            self.refs.to_string(),
            self.missed_refs.to_string(),
            self.invented_refs.to_string(),
            self.slots.to_string(),
            format!("{}/{}", self.missed_slots, self.invented_slots),
            self.entries.to_string(),
            self.lifted_entries.to_string(),
            self.idle_entries.to_string(),
            self.pinned_entries.to_string(),
            self.missed_entries.to_string(),
            format!("{}/{}", self.extra_entries, self.invented_entries),
            self.starts.to_string(),
            format!("{}/{}", self.missed_starts, self.extra_starts),
            (self.crowded + self.violations).to_string(),
        ];
        let _written = writeln!(out, "| {name} | {kind} | {shown} | {} |", cells.join(" | "));
    }
}

const HEAD: &str = "\
| program | kind | shown | variants | code KiB | may move % | references | missed | invented | code words | missed/invented | table targets | read | behind the end | pinned | missed | \
extra/written | function starts | missed/extra | other |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
";

/// The whole record.
pub(super) fn text(verdicts: &[Verdict]) -> String {
    let mut rows: BTreeMap<(String, &str, Shown), Sums> = BTreeMap::new();
    let mut totals: BTreeMap<(&str, Shown), Sums> = BTreeMap::new();
    let mut problems: Vec<String> = Vec::new();
    for verdict in verdicts {
        problems.extend(verdict.complaints());
        let kind = kind_of(verdict);
        let row = rows.entry((verdict.file.program.clone(), kind, verdict.shown)).or_default();
        let total = totals.entry((kind, verdict.shown)).or_default();
        for sums in [row, total] {
            sums.variants += 1;
            match &verdict.result {
                Ok(compared) => sums.add(compared),
                Err(_) => sums.refused += 1,
            }
        }
    }
    let mut out = String::from(HEAD);
    for ((program, kind, shown), sums) in &rows {
        sums.row(&mut out, program, kind, shown.name());
    }
    for ((kind, shown), sums) in &totals {
        sums.row(&mut out, "**all**", kind, shown.name());
    }
    let mut names: Vec<&str> = rows.keys().map(|key| key.0.as_str()).collect();
    names.dedup();
    let files: std::collections::BTreeSet<_> = verdicts.iter().map(|v| &v.file.path).collect();
    let mut head = format!("{} programs, {} files, {} comparisons.\n\n", names.len(), files.len(), verdicts.len());
    if !problems.is_empty() {
        head.push_str("Wrong:\n\n");
        problems.iter().for_each(|line| {
            let _written = writeln!(head, "* {line}");
        });
        head.push('\n');
    }
    head + &out
}

fn kind_of(verdict: &Verdict) -> &'static str {
    let variant = &verdict.file.variant;
    ["fixed", "static", "library"].into_iter().find(|kind| variant.ends_with(kind)).unwrap_or("pie")
}
