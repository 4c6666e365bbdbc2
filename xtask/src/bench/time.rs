//! How long input and outputs take, in turns.
//!
//! **Method.** What counts is the processor time of the program's own processes, user and system together: the kernel measures the sum to the nanosecond,
//! but splits it into its two parts by what the clock's ticks happened to hit, which is noise for a process of a few milliseconds. A *round* repeats the
//! workload as often as the input needs for [`Bench::round_seconds`]; the number is found once and the same for all. In each repeat all
//! take their turns, and who begins changes from one repeat and from one round to the next, so that a machine that becomes slower meanwhile, or one that remembers what
//! ran before, favors none. A round's ratio is that of its sums.

use std::fs;
use std::path::Path;

use super::run::{Bench, Said, Subject};
use crate::shell::{self, Result};

/// The most repeats, for a program that takes next to no time.
const REPEATS_MAX: usize = 200;

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

/// Times `binaries`, the first of which is what the others are compared with; all must print `expected`. What each used, by rounds, and how
/// often a round repeats the workload.
pub(super) fn measure<const N: usize>(
    bench: &Bench,
    subject: &Subject<'_>,
    binaries: [&Path; N],
    expected: &Said,
) -> Result<([Vec<Used>; N], usize)> {
    let once = run(bench, subject, binaries[0], expected)?.total();
    let repeats = repeats(bench.round_seconds, once);
    let mut rounds = [const { Vec::new() }; N];
    for round in 0..bench.rounds {
        let mut sums = [Used::default(); N];
        for repeat in 0..repeats {
            for which in order(round + repeat, N) {
                sums[which].add(run(bench, subject, binaries[which], expected)?);
            }
        }
        for (rounds, sum) in rounds.iter_mut().zip(sums) {
            rounds.push(sum);
        }
    }
    Ok((rounds, repeats))
}

/// Who comes when in a turn: all begin equally often, and are followed by each other one.
fn order(turn: usize, count: usize) -> Vec<usize> {
    let forward = (0..count).map(|place| (place + turn / 2) % count);
    if turn.is_multiple_of(2) { forward.collect() } else { forward.rev().collect() }
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
    fn each_of_two_or_three_comes_equally_often_at_each_place() {
        for count in [2, 3] {
            let orders: Vec<Vec<usize>> = (0..2 * count).map(|turn| order(turn, count)).collect();
            for place in 0..count {
                for which in 0..count {
                    assert_eq!(orders.iter().filter(|order| order[place] == which).count(), 2);
                }
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
