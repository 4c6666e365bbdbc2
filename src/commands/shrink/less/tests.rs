//! In which order things are left out, and for how many outputs.

use clap::Parser;
use lifter::lift;

use super::*;
use crate::args::{Cli, Command};

const MB: u64 = 1 << 20;

fn shrink_with(options: &[&str]) -> Shrink {
    let command = ["relift", "shrink", "demo", "-o", "smaller"].iter().chain(options);
    let cli = Cli::try_parse_from(command).expect("the arguments are right");
    let Command::Shrink(args) = cli.command else { panic!("another command") };
    args
}

#[test]
fn what_changes_code_least_is_left_out_first_and_one_thing_at_a_time_where_that_does_not_take_long() {
    use Less::*;
    let few = steps(&shrink_with(&[]), false, Outputs::of(MB, 0));
    assert_eq!(few, [Subroutines, Forms, Outline, Tails, Folding, Code, UnwindEntries].map(|less| vec![less]));
    let all = steps(&shrink_with(&["--strip"]), true, Outputs::of(MB, 0));
    let doubts = [lift::Undescribed::Doubted, lift::Undescribed::Stays].map(Undescribed);
    let expected =
        [Stripping, Subroutines, Forms, Outline].into_iter().chain(doubts).chain([Tails, Folding, Code, UnwindEntries]);
    assert_eq!(all, expected.map(|less| vec![less]).collect::<Vec<_>>());
}

#[test]
fn what_is_off_is_not_left_out() {
    use Less::*;
    let some = steps(&shrink_with(&["--skip", "subroutines,outline,unwind-entries"]), false, Outputs::of(MB, 0));
    assert_eq!(some, [Forms, Tails, Folding, Code].map(|less| vec![less]));
    assert!(steps(&shrink_with(&["--only", "relr"]), false, Outputs::of(MB, 0)).is_empty());
    assert_eq!(steps(&shrink_with(&["--only", "tails"]), false, Outputs::of(500 * MB, 0)), [[Tails]]);
}

#[test]
fn of_a_large_file_fewer_outputs_are_made_and_the_last_two_things_are_left_out_in_any_case() {
    use Less::*;
    let parts = [Subroutines, Forms, Outline, Tails, Folding, Code];
    for (megabytes, num_parts) in [(1000, 6), (100, 6), (80, 5), (64, 4), (50, 3), (40, 2), (36, 1)] {
        let steps = steps(&shrink_with(&[]), true, Outputs::of(megabytes * MB, 0));
        let first = parts[..num_parts].to_vec();
        assert_eq!((&steps[0], &steps[steps.len() - 1]), (&first, &vec![UnwindEntries]), "{megabytes} MB");
    }
}

#[test]
fn functions_are_closed_only_where_enough_outputs_are_left_then() {
    let rounds = |megabytes: u64| {
        let mut outputs = Outputs::of(megabytes * MB, 0);
        let rounds = std::iter::from_fn(|| outputs.close().then_some(())).count();
        assert!(outputs.0 >= Outputs::MIN);
        rounds
    };
    assert_eq!([1000, 100, 64, 40, 30].map(rounds), [0, 0, 1, 2, 3]);
    assert_eq!([0, 4, 28, 30].map(|undescribed| Outputs::of(32 * MB, undescribed * MB).0), [8, 5, 2, 2]);
}

#[test]
fn whoever_loses_all_of_the_code_is_not_told_of_its_parts() {
    assert_eq!(consequences(&[Less::Tails]), "blocks that go on alike keep a copy each");
    let all = [Less::Stripping, Less::Tails, Less::Folding, Less::Code];
    assert_eq!(consequences(&all), "nothing is stripped, code stays as it is");
}
