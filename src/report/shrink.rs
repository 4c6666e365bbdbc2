//! What `relift shrink` says that it did: a table of what each technique saved.

use std::collections::BTreeMap;
use std::fmt::Write;

use lifter::ir::Program;
use serde::Serialize;

use super::{DebugFile, Functions, TextBytes, Told, coverage, group, mode_name};
use crate::args::Rewrite;
use crate::timing::{Timing, peak_rss_bytes};

/// The report. Field names are the `--json` contract.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) input: String,
    pub(crate) output: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<&'static str>,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) functions: Option<Functions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text_bytes: Option<TextBytes>,
    /// By technique; the bytes add up to what the file lost.
    pub(crate) techniques: Vec<Saving>,
    /// Segments that became two, and what would have stayed in the file otherwise of what the techniques freed.
    pub(crate) cuts: u64,
    pub(crate) cut_bytes: u64,
    /// Percent of time that was given for bytes by a guess of what runs, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slower: Option<f32>,
    pub(crate) dropped_sections: Vec<String>,
    /// The separate debug file of the output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debug_file: Option<DebugFile>,
    /// Where debug information was compared with the input's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) debug: Option<Told>,
    pub(crate) warnings: Vec<String>,
    pub(crate) checked: bool,
    pub(crate) phases: BTreeMap<&'static str, f64>,
    pub(crate) seconds: f64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) threads: usize,
}

/// What one technique did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Saving {
    pub(crate) technique: &'static str,
    /// Of what there are `count`.
    pub(crate) unit: &'static str,
    pub(crate) count: u64,
    /// Bytes that are no longer needed; less than none if it cost some.
    pub(crate) bytes: i64,
}

impl Saving {
    pub(crate) fn new(technique: &'static str, unit: &'static str, count: u64, bytes: i64) -> Self {
        Self { technique, unit, count, bytes }
    }
}

impl Report {
    pub(crate) fn new(rewrite: &Rewrite, input_bytes: u64) -> Self {
        Self {
            input: rewrite.input.display().to_string(),
            output: rewrite.output.display().to_string(),
            mode: None,
            input_bytes,
            output_bytes: input_bytes,
            functions: None,
            text_bytes: None,
            techniques: Vec::new(),
            cuts: 0,
            cut_bytes: 0,
            slower: None,
            dropped_sections: Vec::new(),
            debug_file: None,
            debug: None,
            warnings: Vec::new(),
            checked: !rewrite.no_check,
            phases: BTreeMap::new(),
            seconds: 0.0,
            peak_rss_bytes: 0,
            threads: 0,
        }
    }

    pub(crate) fn set_coverage(&mut self, program: &Program) {
        let (functions, text_bytes) = coverage(program, None);
        self.mode = Some(mode_name(program));
        (self.functions, self.text_bytes) = (Some(functions), Some(text_bytes));
    }

    /// What is not accounted for otherwise was, or came, between things in the file.
    pub(crate) fn set_savings(&mut self, savings: &[Saving], output_bytes: u64) {
        self.output_bytes = output_bytes;
        let saved = self.input_bytes as i64 - output_bytes as i64;
        let known: i64 = savings.iter().map(|saving| saving.bytes).sum();
        self.techniques = savings.to_vec();
        self.techniques.push(Saving::new("holes", "bytes", (saved - known).max(0) as u64, saved - known));
    }

    pub(crate) fn set_timing(&mut self, timing: &Timing) {
        for phase in timing.phases() {
            *self.phases.entry(phase.name).or_default() += phase.own.as_secs_f64();
        }
        self.seconds = timing.total().as_secs_f64();
        self.peak_rss_bytes = peak_rss_bytes();
        self.threads = rayon::current_num_threads();
    }

    /// The table for people.
    pub(crate) fn to_text(&self, phases: Option<&Timing>) -> String {
        let mode = self.mode.map_or(String::new(), |mode| format!("{mode} mode"));
        let checked = if self.checked { ", checked" } else { "" };
        let mut text = format!("{} -> {}  ({mode}{checked})\n\n", self.input, self.output);
        let percent = |bytes: i64| format!("{:+.1} %", bytes as f64 * 100.0 / self.input_bytes.max(1) as f64);
        let total = self.output_bytes as i64 - self.input_bytes as i64;
        let _ = writeln!(text, "file bytes {} -> {} ({})", group(self.input_bytes), group(self.output_bytes), percent(total));
        for saving in &self.techniques {
            let sign = if saving.bytes > 0 {
                "-"
            } else if saving.bytes < 0 {
                "+"
            } else {
                ""
            };
            let bytes = format!("{sign}{}", group(saving.bytes.unsigned_abs()));
            let count = if saving.unit == "bytes" { String::new() } else { format!("{} {}", group(saving.count), saving.unit) };
            let _ = writeln!(text, "  {:<16} {bytes:>14} {:>9}  {count}", saving.technique, percent(-saving.bytes));
        }
        if self.cuts > 0 {
            let bytes = group(self.cut_bytes);
            let _ = writeln!(text, "{} segments more, without which {bytes} of these bytes had to stay", self.cuts);
        }
        if let Some(percent) = self.slower {
            let _ =
                writeln!(text, "what runs was guessed, to take {percent} % more time for bytes (--slower); a profile (-p) knows");
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
