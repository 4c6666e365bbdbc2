//! How long input and outputs take, in turns.
//!
//! **Method.** What counts is the processor time of the program's own processes, user and system together: the kernel measures the sum to the nanosecond,
//! but splits it into its two parts by what the clock's ticks happened to hit, which is noise for a process of a few milliseconds. A *round* repeats the
//! workload as often as the input needs for [`Bench::round_seconds`]; the number is found once and the same for all three. In each repeat the three
//! take their turns, and who begins changes from one repeat and from one round to the next, so that a machine that becomes slower meanwhile, or one that remembers what
//! ran before, favors none. A round's ratio is that of its sums.

use std::fs;
use std::path::{Path, PathBuf};

use super::run::{Bench, Measured, Row, Said, Subject};
use crate::shell::{self, Result};

/// The most repeats, for a program that takes next to no time.
const REPEATS_MAX: usize = 200;

/// All orders of three.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

/// Processor time, in seconds.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Used {
    pub(super) user: f64,
    pub(super) system: f64,
}

impl Used {
    pub(super) fn total(self) -> f64 {
        self.user + self.system
    }
    fn add(&mut self, other: Used) {
        self.user += other.user;
        self.system += other.system;
    }
}

/// Times input, BOLT's output if there is one, and relift's; all must print `expected`.
pub(super) fn measure(bench: &Bench, subject: &Subject<'_>, binaries: [&PathBuf; 3], expected: &Said, row: &mut Row) -> Result {
    let once = run(bench, subject, binaries[0], expected)?.total();
    row.repeats = repeats(bench.round_seconds, once);
    for round in 0..bench.rounds {
        let mut sums = [Used::default(); 3];
        for repeat in 0..row.repeats {
            for which in ORDERS[(round + repeat) % ORDERS.len()] {
                if which != 1 || row.bolt.is_ok() {
                    sums[which].add(run(bench, subject, binaries[which], expected)?);
                }
            }
        }
        let push = |measured: &mut Measured, used: Used| measured.rounds.push(used);
        push(&mut row.input, sums[0]);
        if let Ok(bolt) = &mut row.bolt {
            push(bolt, sums[1]);
        }
        push(&mut row.relift, sums[2]);
    }
    Ok(())
}

/// How often a workload that takes `once` seconds is repeated.
fn repeats(round_seconds: f64, once: f64) -> usize {
    let wanted = (round_seconds / once.max(1e-4)).ceil();
    (wanted as usize).clamp(1, REPEATS_MAX)
}

/// Runs the workload once.
fn run(bench: &Bench, subject: &Subject<'_>, binary: &Path, expected: &Said) -> Result<Used> {
    let times = subject.folder.join("times");
    let _absent = fs::remove_file(&times);
    // Only the program's own time counts, not that of what the workload does besides.
    let script =
        format!("#!/bin/sh\nexec \"{}\" \"{}\" \"{}\" \"$@\"\n", bench.timed.display(), times.display(), binary.display());
    if bench.run_workload(subject, "bench", &script)? != *expected {
        return Err(format!("{} does not always print what the input prints", binary.display()));
    }
    sum(&String::from_utf8_lossy(&shell::read_file(&times)?))
}

/// Adds up lines of user and system time in microseconds.
fn sum(text: &str) -> Result<Used> {
    let mut sum = Used::default();
    for line in text.lines() {
        let seconds = |word: &str| word.parse::<f64>().map(|microseconds| microseconds / 1e6).ok();
        let used = line.split_once(' ').and_then(|(user, system)| Some(Used { user: seconds(user)?, system: seconds(system)? }));
        sum.add(used.ok_or_else(|| format!("not a time: {line}"))?);
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_repeats_the_workload_until_the_input_needs_long_enough() {
        assert_eq!((repeats(0.5, 0.02), repeats(0.5, 0.3), repeats(0.5, 4.0), repeats(0.5, 0.0)), (25, 2, 1, REPEATS_MAX));
    }

    #[test]
    fn each_of_the_three_comes_first_second_and_last_equally_often() {
        for place in 0..3 {
            for which in 0..3 {
                assert_eq!(ORDERS.iter().filter(|order| order[place] == which).count(), 2);
            }
        }
    }

    #[test]
    fn the_times_of_all_processes_of_a_workload_are_added_up() {
        let used = sum("1500 500\n2000000 0\n").unwrap_or_default();
        assert!((used.user - 2.0015).abs() < 1e-9 && (used.system - 0.0005).abs() < 1e-9);
        assert!(sum("1500\n").is_err());
    }
}
