//! Where the time goes: a tree of phases, each with its own and its total time, measured on the main thread.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::progress::Progress;

#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) depth: usize,
    pub(crate) total: Duration,
    /// `total` less what the phases inside took.
    pub(crate) own: Duration,
    children: Duration,
}

/// The clock of one command. Phases are listed in the order in which they began.
#[derive(Debug)]
pub(crate) struct Timing {
    phases: Vec<Phase>,
    /// Indices of the phases that are running.
    open: Vec<usize>,
    started: Instant,
    progress: Progress,
}

impl Timing {
    pub(crate) fn new(progress: Progress) -> Self {
        Timing { phases: Vec::new(), open: Vec::new(), started: Instant::now(), progress }
    }

    /// Runs a phase; phases that `body` runs are its children.
    pub(crate) fn phase<T>(&mut self, name: &'static str, body: impl FnOnce(&mut Self) -> T) -> T {
        let index = self.phases.len();
        self.phases.push(Phase {
            name,
            depth: self.open.len(),
            total: Duration::ZERO,
            own: Duration::ZERO,
            children: Duration::ZERO,
        });
        self.open.push(index);
        self.progress.begin(name);
        let started = Instant::now();
        let result = body(self);
        let total = started.elapsed();
        self.progress.end();
        self.open.pop();
        let phase = &mut self.phases[index];
        phase.total = total;
        phase.own = total.saturating_sub(phase.children);
        if let Some(&parent) = self.open.last() {
            self.phases[parent].children += total;
        }
        result
    }

    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
    pub(crate) fn phases(&self) -> &[Phase] {
        &self.phases
    }
    /// The tree for people.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::from("\n    total s     self s  phase\n");
        for Phase { name, depth, total, own, .. } in &self.phases {
            let (total, own, indent) = (total.as_secs_f64(), own.as_secs_f64(), "  ".repeat(*depth));
            let _ = writeln!(text, "{total:>11.4} {own:>10.4}  {indent}{name}");
        }
        text.push('\n');
        text
    }
    pub(crate) fn total(&self) -> Duration {
        self.started.elapsed()
    }
    /// Ends the progress display, before anything is printed.
    pub(crate) fn finish(&self) {
        self.progress.finish();
    }
}

/// The largest resident set of this process so far, in bytes; 0 where the system doesn't say.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// What all threads of this process have spent on processors so far, in seconds; 0 where the system doesn't say. Unlike the clock's time it
/// does not depend on what else the machine does.
pub(crate) fn processor_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let of_thread = |thread: std::fs::DirEntry| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    threads.flatten().filter_map(of_thread).sum::<u64>() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_time_of_a_phase_leaves_out_its_children() {
        let mut timing = Timing::new(Progress::hidden());
        timing.phase("outer", |t| {
            t.phase("inner", |_| std::thread::sleep(Duration::from_millis(20)));
        });
        let [outer, inner] = timing.phases() else { panic!("two phases") };
        assert_eq!((outer.name, outer.depth, inner.name, inner.depth), ("outer", 0, "inner", 1));
        assert!(inner.own >= Duration::from_millis(20));
        assert!(outer.total >= inner.total && outer.own < inner.total);
    }
}
