//! A short run of every fuzz target: over the kept inputs, then over a fixed number of new ones, the same on every machine.
//!
//! A failure names its input as a line for `fuzz/corpus`. Where the whole process ends instead (memory beyond the budget, a stack that
//! is used up), the input is the one in `last-input-<target>` of the folder for temporary files of the tests.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use fuzz::corpus::{kept, to_line};
use fuzz::random::{Random, mutate, recipe};
use fuzz::targets::{Outcome, Target};

/// How long one input may take. Most take a few milliseconds; a machine may be busy.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const LEN_MAX: usize = 200;

/// Ends the process if an input takes too long: a loop without end can't be stopped otherwise.
struct Watch(mpsc::Sender<()>);

impl Watch {
    fn over(what: String) -> Watch {
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            loop {
                match receiver.recv_timeout(TIME_LIMIT) {
                    Ok(()) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    Err(mpsc::RecvTimeoutError::Timeout) => end(&what),
                }
            }
        });
        Watch(sender)
    }

    fn next_input(&self) {
        self.0.send(()).expect("the watch is there as long as it is not given up");
    }
}

#[expect(clippy::print_stderr, clippy::exit, reason = "the test that hangs cannot speak for itself")]
fn end(what: &str) {
    eprintln!("{what}: an input takes more than {TIME_LIMIT:?}");
    std::process::exit(1);
}

/// Of a hundred new inputs, so many may be stopped by the checker: see "What is open" in `fuzz/README.md`.
const STOPPED_MAX: usize = 6;

/// Runs a target over its kept inputs and over `count` new ones; of these, at least `accepted_min` in a hundred must get through, or
/// the run would show little.
fn smoke(name: &str, count: usize, accepted_min: usize) {
    let target = Target::named(name).expect("the target is there");
    let kept = kept(name);
    let last = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("last-input-{name}"));
    let watch = Watch::over(format!("{name}: see {}", last.display()));
    let run = |input: &[u8]| {
        watch.next_input();
        std::fs::write(&last, to_line(input)).expect("the folder for temporary files can be written");
        match catch_unwind(AssertUnwindSafe(|| target.run(input))) {
            Ok(outcome) => outcome,
            Err(_) => panic!("target {name}, input {}", to_line(input)),
        }
    };
    kept.iter().for_each(|input| drop(run(input)));
    let mut random = Random::new(0);
    let (mut accepted, mut stopped) = (0, 0);
    for number in 0..count {
        let mut input = recipe(&mut random);
        if number % 2 == 0 && !kept.is_empty() {
            input.clone_from(&kept[random.below(kept.len())]);
            mutate(&mut input, LEN_MAX, &mut random);
        }
        match run(&input) {
            Outcome::Accepted => accepted += 1,
            Outcome::Stopped(_) => stopped += 1,
            Outcome::Refused(_) => {}
        }
    }
    assert!(stopped * 100 <= count * STOPPED_MAX, "{stopped} of {count} inputs of {name} were stopped by the checker");
    assert!(accepted * 100 >= count * accepted_min, "only {accepted} of {count} inputs of {name} were accepted");
    let _removed = std::fs::remove_file(last);
}

#[test]
fn a_damaged_elf_file_is_read_or_refused() {
    smoke("elf", 2000, 10);
}

#[test]
fn damaged_unwind_tables_are_read_or_refused() {
    smoke("eh_frame", 1000, 10);
}

#[test]
fn damaged_exception_tables_are_read_or_refused() {
    smoke("lsda", 1000, 10);
}

#[test]
fn damaged_code_is_lifted_within_the_invariants() {
    smoke("lift", 1000, 50);
}

#[test]
fn a_damaged_profile_is_used_or_refused() {
    smoke("profile", 1000, 5);
}

#[test]
fn a_damaged_file_is_optimized_soundly_or_refused() {
    smoke("optimize", 500, 30);
}

#[test]
fn the_checker_survives_damaged_files() {
    smoke("checker", 500, 30);
}
