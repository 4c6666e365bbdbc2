//! A progress display on a terminal; nothing when piped.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar on standard error, if that is a terminal, for a command of about so many phases.
    pub(crate) fn on_terminal(num_phases: u64) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::hidden();
        }
        let bar = ProgressBar::new(num_phases);
        if let Ok(style) = ProgressStyle::with_template("{spinner} [{bar:30}] {msg} ({elapsed})") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Progress { bar }
    }
    pub(crate) fn hidden() -> Self {
        Progress { bar: ProgressBar::hidden() }
    }
    pub(crate) fn begin(&self, phase: &'static str) {
        self.bar.set_message(phase);
    }
    pub(crate) fn end(&self) {
        self.bar.inc(1);
    }
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
