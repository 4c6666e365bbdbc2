//! What a sampling profiler saw of one program, by address in its file: the common form of every outside format.
//!
//! **Problem.** `perf.data`, BOLT's text formats and hand-made aggregates all say the same three things: a branch went from here to
//! there, code ran straight from here to there, the program was here. They differ in how they name a place and in how often they
//! repeat themselves.
//!
//! **Method.** Readers resolve names and load addresses to addresses of the input file and add up in a [`Collector`]; `Samples` is the
//! result, sorted, so that what follows depends neither on the order of the records nor on hashing.

use lifter::Va;
use rustc_hash::FxHashMap;

/// A taken branch, call or return. `None` is a place outside the image.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    /// Any address inside the instruction.
    pub from: Option<Va>,
    pub to: Option<Va>,
    pub count: u64,
    pub mispredicted: u64,
}

/// Code that ran straight, without a taken branch.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trace {
    pub first: Va,
    /// Of the last instruction that ran.
    pub last: Va,
    pub count: u64,
}

/// All that was seen, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    pub branches: Vec<Branch>,
    pub traces: Vec<Trace>,
    /// Where the program was when it was interrupted, and how often.
    pub addresses: Vec<(Va, u64)>,
    /// Everything the source had to say of any program, in its own unit (records or samples).
    pub total: u64,
    /// That part of it whose place in this image was found.
    pub located: u64,
}

impl Samples {
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty() && self.traces.is_empty() && self.addresses.is_empty()
    }
    /// Whether it says where control went, not only where the program was.
    pub fn has_branches(&self) -> bool {
        !self.branches.is_empty() || !self.traces.is_empty()
    }
}

/// Adds samples up.
#[derive(Clone, Debug, Default)]
pub struct Collector {
    branches: FxHashMap<(Option<Va>, Option<Va>), (u64, u64)>,
    traces: FxHashMap<(Va, Va), u64>,
    addresses: FxHashMap<Va, u64>,
    total: u64,
    located: u64,
}

impl Collector {
    /// Counts something the source said, and whether it is about this image.
    pub fn note(&mut self, count: u64, is_located: bool) {
        self.total = self.total.saturating_add(count);
        if is_located {
            self.located = self.located.saturating_add(count);
        }
    }
    pub fn branch(&mut self, from: Option<Va>, to: Option<Va>, count: u64, mispredicted: u64) {
        if from.is_some() || to.is_some() {
            let sum = self.branches.entry((from, to)).or_default();
            sum.0 = sum.0.saturating_add(count);
            sum.1 = sum.1.saturating_add(mispredicted);
        }
    }
    pub fn trace(&mut self, first: Va, last: Va, count: u64) {
        let sum = self.traces.entry((first, last)).or_default();
        *sum = sum.saturating_add(count);
    }
    pub fn address(&mut self, at: Va, count: u64) {
        let sum = self.addresses.entry(at).or_default();
        *sum = sum.saturating_add(count);
    }

    /// Adds other samples of the same image, each so many times.
    pub fn merge(&mut self, other: &Samples, weight: u64) {
        let times = |count: u64| count.saturating_mul(weight);
        for branch in &other.branches {
            self.branch(branch.from, branch.to, times(branch.count), times(branch.mispredicted));
        }
        for trace in &other.traces {
            self.trace(trace.first, trace.last, times(trace.count));
        }
        for &(at, count) in &other.addresses {
            self.address(at, times(count));
        }
        self.note(times(other.total - other.located.min(other.total)), false);
        self.note(times(other.located), true);
    }

    pub fn finish(self) -> Samples {
        let mut branches: Vec<Branch> = self
            .branches
            .into_iter()
            .map(|((from, to), (count, mispredicted))| Branch { from, to, count, mispredicted })
            .collect();
        branches.sort_unstable();
        let mut traces: Vec<Trace> = self.traces.into_iter().map(|((first, last), count)| Trace { first, last, count }).collect();
        traces.sort_unstable();
        let mut addresses: Vec<(Va, u64)> = self.addresses.into_iter().collect();
        addresses.sort_unstable();
        Samples { branches, traces, addresses, total: self.total, located: self.located }
    }
}
