//! A progress display on a terminal; nothing when piped.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

/// The bar while it shows how much of a file has been read; it shows phases again when this is dropped.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    bar: &'a ProgressBar,
    phases: Option<(u64, u64, String)>,
}

impl Reading<'_> {
    pub(crate) fn at(&self, bytes: u64) {
        if self.phases.is_some() {
            self.bar.set_position(bytes);
            let megabytes = |bytes: u64| bytes / 1_000_000;
            let total = self.bar.length().unwrap_or_default();
            self.bar.set_message(format!("read the profile: {} of {} MB", megabytes(bytes), megabytes(total)));
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some((length, position, message)) = self.phases.take() {
            self.bar.set_length(length);
            self.bar.set_position(position);
            self.bar.set_message(message);
        }
    }
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
    /// Shows how much of a file has been read, if it is one to wait for.
    pub(crate) fn reading(&self, bytes: u64) -> Reading<'_> {
        const LONG_READING: u64 = 100_000_000;
        let bar = &self.bar;
        let phases = (bytes >= LONG_READING).then(|| (bar.length().unwrap_or_default(), bar.position(), bar.message()));
        if phases.is_some() {
            bar.set_length(bytes);
        }
        let reading = Reading { bar, phases };
        reading.at(0);
        reading
    }
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_a_long_file_while_it_is_read_and_phases_before_and_after() {
        let progress = Progress { bar: ProgressBar::with_draw_target(Some(12), indicatif::ProgressDrawTarget::hidden()) };
        let state = || (progress.bar.length(), progress.bar.position(), progress.bar.message());
        progress.end();
        progress.begin("attribute the profile");
        let before = state();
        drop(progress.reading(1000));
        assert_eq!(state(), before);
        let reading = progress.reading(300_000_000);
        reading.at(120_000_000);
        assert_eq!(state(), (Some(300_000_000), 120_000_000, "read the profile: 120 of 300 MB".to_owned()));
        drop(reading);
        assert_eq!(state(), before);
    }
}
