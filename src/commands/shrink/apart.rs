//! Functions that share no code with others, because the checker could not follow an output in which they do.
//!
//! **Problem.** relift may take for reached what the checker does not, and what its walk does not reach the checker knows by content alone: it does not find such a function where
//! blocks of it, or of what it calls, stand in another one. In `libLLVM-15` these are a few of 100,000 functions; without any shared code the file is 5 % larger.
//!
//! **Method.** A violation is at an address of the output, where blocks of one function are, or of several that share them, or at one of the input. In the next attempt these functions, and what they
//! alone lead to, are taken for code that nothing leads to, which keeps its body. Where very many functions are concerned, something else is wrong.
//!
//! **Terminates**: each attempt but the first has more functions in it, and there are at most [`TRIES_MAX`].

use std::collections::BTreeSet;

use checker::{Violation, ViolationKind};
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func};
use lifter::ir::Program;

/// Further attempts with functions apart: each takes as long as the first one.
const TRIES_MAX: u32 = 1;
/// So many functions are always worth an attempt; else one in so many of all.
const FUNCTIONS_ALWAYS: usize = 16;
const FUNCTIONS_SHARE: usize = 64;

/// Blocks of one function that lie side by side in the output.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    start: u64,
    end: u64,
    func: Func,
}

/// Where the functions of an output are.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// By start. Functions that share code overlap.
    runs: Vec<Run>,
    /// No run is longer.
    longest: u64,
    num_functions: usize,
}

impl Places {
    /// `blocks` are the places and sizes of the program's blocks.
    pub(super) fn of(program: &Program, blocks: &[(Va, u32)]) -> Self {
        let mut order: Vec<u32> = (0..blocks.len() as u32).collect();
        order.sort_unstable_by_key(|&index| (program.func_of(Block::new(index as usize)), blocks[index as usize].0));
        let mut runs: Vec<Run> = Vec::new();
        for index in order {
            let (start, len) = blocks[index as usize];
            let (func, start, end) = (program.func_of(Block::new(index as usize)), start.0, start.0 + u64::from(len));
            match runs.last_mut().filter(|last| last.func == func && start <= last.end) {
                Some(last) => last.end = last.end.max(end),
                None => runs.push(Run { start, end, func }),
            }
        }
        runs.sort_unstable();
        runs.shrink_to_fit();
        let longest = runs.iter().map(|run| run.end - run.start).max().unwrap_or(0);
        Self { runs, longest, num_functions: program.funcs.len() }
    }

    /// The functions that have code at an address.
    fn at(&self, address: u64) -> impl Iterator<Item = Func> + '_ {
        let after = self.runs.partition_point(|run| run.start <= address);
        let near = self.runs[..after].iter().rev().take_while(move |run| address - run.start <= self.longest);
        near.filter(move |run| address < run.end).map(|run| run.func)
    }
}

/// What is kept apart, and how often that was tried.
#[derive(Debug, Default)]
pub(super) struct Apart {
    functions: BTreeSet<Func>,
    /// Addresses of the input, in functions that are kept apart too.
    addresses: BTreeSet<u64>,
    tries: u32,
    /// There is more since it was last asked.
    has_more: bool,
}

impl Apart {
    /// Takes in what an attempt came to.
    pub(super) fn learn(&mut self, places: &Places, violations: &[Violation]) {
        let count = self.functions.len() + self.addresses.len();
        let mut functions = self.functions.clone();
        let mut addresses = self.addresses.clone();
        for violation in violations {
            match violation.kind {
                ViolationKind::MissingFunction => drop(addresses.insert(violation.address)),
                _ => functions.extend(places.at(violation.address)),
            }
            addresses.extend(violation.input);
        }
        let found = functions.len() + addresses.len();
        let is_few = found <= FUNCTIONS_ALWAYS.max(places.num_functions / FUNCTIONS_SHARE);
        if count < found && is_few && self.tries < TRIES_MAX {
            (self.functions, self.addresses, self.has_more) = (functions, addresses, true);
            self.tries += 1;
        }
    }

    /// Whether another attempt may come further; once for each that does.
    pub(super) fn take_more(&mut self) -> bool {
        std::mem::take(&mut self.has_more)
    }

    /// The functions that are kept apart.
    pub(super) fn of(&self, program: &Program) -> BTreeSet<Func> {
        let containing = self.addresses.iter().filter_map(|&address| program.block_containing(Va(address)));
        self.functions.iter().copied().chain(containing.map(|block| program.func_of(block))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(runs: &[(u64, u64, usize)]) -> Places {
        let mut runs: Vec<Run> = runs.iter().map(|&(start, end, func)| Run { start, end, func: Func::new(func) }).collect();
        runs.sort_unstable();
        let longest = runs.iter().map(|run| run.end - run.start).max().unwrap_or(0);
        Places { runs, longest, num_functions: 1000 }
    }

    fn at(address: u64) -> Violation {
        Violation { kind: ViolationKind::Unexplained, address, input: None, message: String::new() }
    }

    #[test]
    fn all_functions_that_share_code_at_an_address_are_found_there_and_no_others() {
        let places = places(&[(0, 1000, 1), (100, 110, 2), (100, 120, 3), (1000, 1010, 4)]);
        let found = |address| places.at(address).collect::<BTreeSet<Func>>();
        let functions = |indices: &[usize]| indices.iter().map(|&index| Func::new(index)).collect::<BTreeSet<Func>>();
        assert_eq!(found(99), functions(&[1]));
        assert_eq!(found(105), functions(&[1, 2, 3]));
        assert_eq!(found(115), functions(&[1, 3]));
        assert_eq!(found(1000), functions(&[4]));
        assert_eq!(found(1010), functions(&[]));
    }

    #[test]
    fn one_more_attempt_is_made_and_only_where_a_function_is_found() {
        let (places, mut apart) = (places(&[(0, 10, 1), (10, 20, 2)]), Apart::default());
        apart.learn(&places, &[at(500)]);
        assert!(!apart.take_more());
        apart.learn(&places, &[at(5), at(500)]);
        assert!(apart.take_more() && !apart.take_more());
        apart.learn(&places, &[at(15)]);
        assert!(!apart.take_more());
    }

    #[test]
    fn what_many_functions_are_concerned_by_is_left_to_others() {
        let runs: Vec<(u64, u64, usize)> = (0..100).map(|func| (func * 10, func * 10 + 10, func as usize)).collect();
        let violations: Vec<Violation> = (0..100).map(|func| at(func * 10)).collect();
        let mut apart = Apart::default();
        apart.learn(&places(&runs), &violations);
        assert!(!apart.take_more() && apart.functions.is_empty());
    }
}
