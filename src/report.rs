//! What a person wants to know after a rewrite, and the same for machines.

pub(crate) mod shrink;

use std::collections::BTreeMap;
use std::fmt::Write;

use lifter::ir::{PinReason, Program, RelinkMode};
use rewriter::debug::Outcome;
use rewriter::dyno::DynoStats;
use rewriter::plan::LayoutPlan;
use rewriter::relink::Relinked;
use serde::Serialize;

use crate::timing::{Timing, peak_rss_bytes};

/// The report of `train`, `optimize` and `instrument`. Field names are the `--json` contract.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) input: String,
    pub(crate) output: String,
    /// `replace`: the new text took the old one's place. `guard`: old addresses that an unseen pointer may hold keep a jump.
    pub(crate) mode: &'static str,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    /// What a loader maps from the file: what `strip` would leave, headers aside.
    pub(crate) loaded_bytes: Change,
    pub(crate) functions: Functions,
    pub(crate) text_bytes: TextBytes,
    pub(crate) transforms: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dyno: Option<Dyno>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) profile: Option<ProfileQuality>,
    pub(crate) dropped_sections: Vec<String>,
    /// The separate debug file of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debug_file: Option<DebugFile>,
    /// Where debug information was compared with the input's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debug: Option<Told>,
    pub(crate) warnings: Vec<String>,
    pub(crate) checked: bool,
    pub(crate) phases: Vec<PhaseTime>,
    pub(crate) seconds: f64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) threads: usize,
}

#[derive(Copy, Clone, Debug, Serialize)]
pub(crate) struct Change {
    pub(crate) before: u64,
    pub(crate) after: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Functions {
    pub(crate) total: usize,
    pub(crate) moved: usize,
    /// Reason to number of functions.
    pub(crate) pinned: BTreeMap<&'static str, usize>,
}

/// Bytes of functions; linker-made stubs and padding between functions are not counted.
#[derive(Debug, Serialize)]
pub(crate) struct TextBytes {
    pub(crate) total: u64,
    pub(crate) moved: u64,
    pub(crate) pinned: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Dyno {
    pub(crate) before: BTreeMap<&'static str, u64>,
    pub(crate) after: BTreeMap<&'static str, u64>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct ProfileQuality {
    pub(crate) functions_matched: u64,
    pub(crate) functions_total: u64,
    pub(crate) counts_matched: u64,
    pub(crate) counts_total: u64,
    /// Where some of it was sampled: what was, and how good it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) sampled: Vec<SampledQuality>,
    /// Where some of it is of another build: what was carried over.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stale: Vec<StaleShare>,
}

/// What was carried over from another build, of what ran.
#[derive(Copy, Clone, Debug, Serialize)]
pub(crate) struct StaleShare {
    pub(crate) functions_total: usize,
    /// Recognized because they are equal, by their names, by their blocks and neighbors.
    pub(crate) functions_equal: usize,
    pub(crate) functions_named: usize,
    pub(crate) functions_found: usize,
    pub(crate) blocks_total: usize,
    pub(crate) blocks_matched: usize,
    /// Executed instructions.
    pub(crate) counts_total: u64,
    pub(crate) counts_matched: u64,
}

impl From<profiles::StaleQuality> for StaleShare {
    fn from(found: profiles::StaleQuality) -> Self {
        StaleShare {
            functions_total: found.functions_total,
            functions_equal: found.functions_equal,
            functions_named: found.functions_named,
            functions_found: found.functions_found,
            blocks_total: found.blocks_total,
            blocks_matched: found.blocks_matched,
            counts_total: found.counts_total,
            counts_matched: found.counts_matched,
        }
    }
}

impl StaleShare {
    fn to_text(self) -> String {
        let matched = self.functions_equal + self.functions_named + self.functions_found;
        let share = |part: usize, whole: usize| percent(part as u64, whole as u64);
        format!(
            "stale      of another build; carried over: {} of {} functions ({}: {} equal, {} by name, {} by their blocks and neighbors), {} of blocks that ran, {} of executed instructions\n",
            group(matched as u64),
            group(self.functions_total as u64),
            share(matched, self.functions_total),
            group(self.functions_equal as u64),
            group(self.functions_named as u64),
            group(self.functions_found as u64),
            share(self.blocks_matched, self.blocks_total),
            percent(self.counts_matched, self.counts_total),
        )
    }
}

/// The quality of the samples of one kind.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SampledQuality {
    /// `branches` or `addresses`.
    pub(crate) kind: &'static str,
    /// In the source's own unit.
    pub(crate) total: u64,
    /// Of these, in the program.
    pub(crate) located: u64,
    /// Of these, in code that was lifted.
    pub(crate) mapped: u64,
    pub(crate) functions: usize,
    /// Share of the counted flow that was missing or too much at some block before inference; after it there is none.
    pub(crate) imbalance_before: f64,
    /// Share of the counts that inference changed.
    pub(crate) changed: f64,
}

impl ProfileQuality {
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        if self.functions_total != 0 {
            let _ = writeln!(
                text,
                "profile    {} of {} functions and {} of counts matched",
                group(self.functions_matched),
                group(self.functions_total),
                percent(self.counts_matched, self.counts_total),
            );
        }
        self.stale.iter().for_each(|stale| text.push_str(&stale.to_text()));
        for sampled in &self.sampled {
            let _ = writeln!(
                text,
                "samples    {} of {} {} in the program ({}), {} of these in lifted code; {} functions; flow out of balance {:.1} % before inference, 0 after; {:.1} % of counts changed",
                group(sampled.located),
                group(sampled.total),
                sampled.kind,
                percent(sampled.located, sampled.total),
                percent(sampled.mapped, sampled.located),
                group(sampled.functions as u64),
                sampled.imbalance_before * 100.0,
                sampled.changed * 100.0,
            );
        }
        text
    }
}

/// A separate debug file that was written.
#[derive(Debug, Serialize)]
pub(crate) struct DebugFile {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// That of the output too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) build_id: Option<String>,
}

impl DebugFile {
    /// For people.
    fn line(&self) -> String {
        let build_id = self.build_id.as_ref().map_or_else(String::new, |id| format!("; build id {id}"));
        format!("debug file {}, {} bytes{build_id}", self.path, group(self.bytes))
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct PhaseTime {
    pub(crate) name: &'static str,
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
    pub(crate) self_seconds: f64,
}

/// What was lifted and what of it the plan moves.
pub(crate) fn coverage(program: &Program, plan: Option<&LayoutPlan>) -> (Functions, TextBytes) {
    let mut is_placed = vec![plan.is_none(); program.funcs.len()];
    for fragment in plan.iter().flat_map(|p| &p.fragments) {
        is_placed[lifter::entity::EntityId::index(fragment.func)] = true;
    }
    let mut functions = Functions { total: 0, moved: 0, pinned: BTreeMap::new() };
    let mut text = TextBytes { total: 0, moved: 0, pinned: BTreeMap::new() };
    for (func, data) in program.funcs.iter() {
        if data.pin == Some(PinReason::LinkerSection) {
            continue;
        }
        let size = program.func_size(func);
        functions.total += 1;
        text.total += size;
        match data.pin {
            Some(reason) => {
                *functions.pinned.entry(reason.name()).or_default() += 1;
                *text.pinned.entry(reason.name()).or_default() += size;
            }
            None if is_placed[lifter::entity::EntityId::index(func)] => {
                functions.moved += 1;
                text.moved += size;
            }
            None => {}
        }
    }
    (functions, text)
}

pub(crate) fn mode_name(program: &Program) -> &'static str {
    match program.mode {
        Some(RelinkMode::Guard) => "guard",
        Some(RelinkMode::Replace) | None => "replace",
    }
}

/// Bytes that the loader maps from a file, by its program headers alone; 0 for one that can't be read.
pub(crate) fn loaded_bytes(bytes: &[u8]) -> u64 {
    // ELF64: `e_phoff`, `e_phentsize`, `e_phnum`; of an entry `p_type` and `p_filesz`.
    const LOAD: u64 = 1;
    let field = |at: u64, size: u64| -> Option<u64> {
        let start = usize::try_from(at).ok()?;
        let field = bytes.get(start..start.checked_add(size as usize)?)?;
        Some(field.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let of_entry = |at: u64| Some(if field(at, 4)? == LOAD { field(at.checked_add(32)?, 8)? } else { 0 });
    let sum = || {
        let (table, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
        let entries = (0..count).map(|index| of_entry(table.checked_add(index * size)?));
        entries.sum::<Option<u64>>()
    };
    sum().unwrap_or(0)
}

impl Report {
    pub(crate) fn set_timing(&mut self, timing: &Timing) {
        self.phases = timing
            .phases()
            .iter()
            .map(|p| PhaseTime {
                name: p.name,
                depth: p.depth,
                seconds: p.total.as_secs_f64(),
                self_seconds: p.own.as_secs_f64(),
            })
            .collect();
        self.seconds = timing.total().as_secs_f64();
        self.peak_rss_bytes = peak_rss_bytes();
        self.threads = rayon::current_num_threads();
    }

    pub(crate) fn set_dyno(&mut self, before: &DynoStats, after: &DynoStats) {
        let by_name = |stats: &DynoStats| stats.rows().into_iter().map(|(key, _, value)| (key, value)).collect();
        self.dyno = Some(Dyno { before: by_name(before), after: by_name(after) });
    }

    /// The table for people.
    pub(crate) fn to_text(&self, dyno: Option<(&DynoStats, &DynoStats)>, phases: Option<&Timing>) -> String {
        let mut text = String::new();
        let _ = writeln!(
            text,
            "{} -> {}  ({} mode{})",
            self.input,
            self.output,
            self.mode,
            if self.checked { ", checked" } else { "" }
        );
        let _ = writeln!(text);
        row(&mut text, "", "before", "after", "change");
        size_row(&mut text, "file bytes", self.input_bytes, self.output_bytes);
        size_row(&mut text, "loaded bytes", self.loaded_bytes.before, self.loaded_bytes.after);
        if let Some((before, after)) = dyno {
            for ((_, label, old), (_, _, new)) in before.rows().into_iter().zip(after.rows()) {
                size_row(&mut text, label, old, new);
            }
        }
        let _ = writeln!(text);
        let moved = percent(self.text_bytes.moved, self.text_bytes.total);
        let _ = writeln!(
            text,
            "functions  {} of {} moved; {} of {} bytes of code ({moved})",
            group(self.functions.moved as u64),
            group(self.functions.total as u64),
            group(self.text_bytes.moved),
            group(self.text_bytes.total),
        );
        for (reason, count) in &self.functions.pinned {
            let bytes = self.text_bytes.pinned.get(reason).copied().unwrap_or(0);
            let _ = writeln!(text, "  pinned   {} {reason} ({} bytes)", group(*count as u64), group(bytes));
        }
        for (transform, counts) in &self.transforms {
            let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{} {what}", group(*count))).collect();
            let _ = writeln!(text, "{transform}  {}", counts.join(", "));
        }
        if let Some(quality) = &self.profile {
            text.push_str(&quality.to_text());
        }
        if let Some(file) = &self.debug_file {
            let _ = writeln!(text, "{}", file.line());
        }
        if let Some(phases) = phases {
            text.push_str(&phases.to_text());
        }
        let _ = writeln!(text, "{:.2} s, {} MB at most, {} threads", self.seconds, self.peak_rss_bytes / 1_000_000, self.threads);
        text
    }
}

fn row(text: &mut String, label: &str, before: &str, after: &str, change: &str) {
    let _ = writeln!(text, "{label:<34} {before:>18} {after:>18} {change:>9}");
}

/// From so many times on, a growth is told in times and not in percent.
const TIMES_MIN: u64 = 100;

fn size_row(text: &mut String, label: &str, before: u64, after: u64) {
    let change = if before == 0 {
        if after == 0 { "=".to_owned() } else { "new".to_owned() }
    } else if after / before >= TIMES_MIN {
        format!("× {}", group(after / before))
    } else {
        format!("{:+.1} %", (after as f64 - before as f64) * 100.0 / before as f64)
    };
    row(text, label, &group(before), &group(after), &change);
}

/// A number with its digits in groups of three.
pub(crate) fn group(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1} %", part as f64 * 100.0 / whole as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three() {
        assert_eq!(group(0), "0");
        assert_eq!(group(999), "999");
        assert_eq!(group(1_000), "1,000");
        assert_eq!(group(1_234_567), "1,234,567");
    }
}

/// At how many instructions and addresses debug information was compared, and where it says something else.
#[derive(Copy, Clone, Debug, Serialize)]
pub(crate) struct Told {
    pub(crate) compared: u64,
    pub(crate) different: u64,
}

impl From<&checker::DebugReport> for Told {
    fn from(told: &checker::DebugReport) -> Self {
        Self { compared: told.compared, different: told.different }
    }
}

/// What the user is to know of what the checker found in it: a program with wrong debug information still does what it should.
pub(crate) fn about_differences(told: &checker::DebugReport) -> Option<String> {
    let first = told.first()?;
    let (different, compared) = (told.different, told.compared);
    Some(format!(
        "debug information says something else than the input's at {different} of {compared} places, the first: {first} (`relift check --verbose` names more)"
    ))
}

/// What the user is to know of debug information.
/// What the output lacks for want of room for a program header more.
pub(crate) fn about_build_id(relinked: &Relinked) -> Option<&'static str> {
    let why = "there was no room for a program header more, and the build-id's is given up: a section tells it still, but who looks for it in memory or in a core file does not find it";
    relinked.gives_up_build_id.then_some(why)
}

pub(crate) fn about_debug_information(relinked: &Relinked) -> Option<String> {
    let partial = match &relinked.debug {
        Outcome::NotUnderstood(error) => return Some(format!("debug information is left out: {error}")),
        Outcome::Updated { partial } => *partial,
        Outcome::Nothing => 0,
    };
    let partial = partial + relinked.debug_file.as_ref().map_or(0, |file| file.partial);
    let told = "entries of debug information describe one part of their code only: there is no room in them for more";
    (partial > 0).then(|| format!("{partial} {told}"))
}
