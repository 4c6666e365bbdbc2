//! What of a run of instructions has to stay before what.
//!
//! **Fixed order.** Writer before reader, reader before writer, writer before writer, for each register; for memory and traps, what [`super::memory`] says.
//!
//! **Flags** are written by most instructions and read by few, so two writers may change places if nobody reads what they wrote. Who reads flags gets them from the writer that it has in
//! the original order: between the two no other writer may come. The last writer of each flag stays the last, so that all is the same behind the run, whoever reads it there.
//!
//! **No dead ends.** Once a writer is placed whose flags are read, others that would write them wait for the reader. What leads to the reader must not be among
//! those that wait; so writers among what leads to a reader stay before the one it reads from. They did in the original.

use super::effects::{Effects, FLAGS};
use super::model::{Processor, Step};

/// Instructions in a run: a set of them is a word.
pub(super) const LENGTH_MAX: usize = 128;

/// A set of instructions of a run.
pub(super) type Set = u128;

pub(super) const fn bit(at: usize) -> Set {
    1 << at
}

/// Members of a set, ascending.
pub(super) fn members(mut set: Set) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let first = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(first)
    })
}

/// The order within a run.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    /// By instruction, those that stay before it, all of them.
    pub(super) before: Vec<Set>,
    /// By flag and writer, who reads from it.
    readers: Vec<[Set; 6]>,
    writes: Vec<u32>,
}

impl Graph {
    /// `stays` says of two instructions, by their numbers, whether memory or a trap keeps them in order.
    pub(super) fn new(run: &[Effects], stays: impl Fn(usize, usize) -> bool) -> Self {
        let count = run.len();
        let mut direct: Vec<Set> = vec![0; count];
        for (j, second) in run.iter().enumerate() {
            for (i, first) in run[..j].iter().enumerate() {
                let (first_reads, second_reads) = (first.reads | first.address, second.reads | second.address);
                let is_kept =
                    first.writes & (second_reads | second.writes) != 0 || first_reads & second.writes != 0 || stays(i, j);
                direct[j] |= if is_kept { bit(i) } else { 0 };
            }
        }
        let mut graph = Graph {
            before: direct,
            readers: vec![[0; 6]; count],
            writes: run.iter().map(|effects| effects.flags_written).collect(),
        };
        (0..6).filter(|flag| FLAGS >> flag & 1 != 0).for_each(|flag| graph.order_flag(run, flag));
        graph.close();
        graph.order_ways_to_readers();
        graph
    }

    /// Orders who reads and writes one flag.
    fn order_flag(&mut self, run: &[Effects], flag: usize) {
        let mut last: Option<usize> = None;
        let mut writers: Set = 0;
        let mut early: Set = 0;
        let mut all_readers: Set = 0;
        for (at, effects) in run.iter().enumerate() {
            if effects.flags_read >> flag & 1 != 0 {
                match last {
                    Some(writer) => {
                        self.readers[writer][flag] |= bit(at);
                        self.before[at] |= bit(writer);
                    }
                    None => early |= bit(at),
                }
                all_readers |= bit(at);
            }
            if effects.flags_written >> flag & 1 != 0 {
                self.before[at] |= early & !bit(at);
                writers |= bit(at);
                last = Some(at);
            }
        }
        if let Some(last) = last {
            let earlier = bit(last) - 1;
            self.before[last] |= (writers | all_readers) & earlier;
        }
    }

    /// Makes `before` transitive.
    fn close(&mut self) {
        for at in 0..self.before.len() {
            let all = members(self.before[at]).fold(self.before[at], |set, earlier| set | self.before[earlier]);
            self.before[at] = all;
        }
    }

    fn order_ways_to_readers(&mut self) {
        for flag in 0..6 {
            let writers = (0..self.writes.len()).filter(|&at| self.writes[at] >> flag & 1 != 0).fold(0, |set, at| set | bit(at));
            for writer in members(writers) {
                let on_the_way = members(self.readers[writer][flag]).fold(0, |set, reader| set | self.before[reader] & writers);
                self.before[writer] |= on_the_way & (bit(writer) - 1);
            }
        }
        self.close();
    }

    /// How long it takes from the start of each instruction to the end of the run, on a processor with ports without number.
    pub(super) fn heights(&self, run: &[Effects], steps: &[Step], processor: &Processor) -> Vec<u32> {
        let mut heights = vec![0u32; run.len()];
        for at in (0..run.len()).rev() {
            heights[at] = heights[at].max(steps[at].latency(processor));
            for earlier in members(self.before[at]) {
                let latency = latency(&run[earlier], &steps[earlier], &run[at], &steps[at], processor);
                heights[earlier] = heights[earlier].max(heights[at] + latency);
            }
        }
        heights
    }
}

/// Cycles from the start of one instruction to that of another that waits for it.
pub(super) fn latency(first: &Effects, step: &Step, second: &Effects, later: &Step, processor: &Processor) -> u32 {
    let reads_flags = first.flags_written & second.flags_read != 0;
    if first.writes & second.address != 0 {
        return step.latency(processor);
    }
    if first.writes & second.reads != 0 || reads_flags {
        // A load of the second one does not wait.
        let ahead = later.latency(processor) - later.late_latency(processor);
        return step.latency(processor).saturating_sub(ahead);
    }
    0
}

/// How far an order has come.
pub(super) struct Progress<'g> {
    graph: &'g Graph,
    pub(super) done: Set,
    /// By flag, who still has to read what was written last.
    waiting: [Set; 6],
}

impl<'g> Progress<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, done: 0, waiting: [0; 6] }
    }

    /// Instructions that may come next.
    pub(super) fn ready(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.graph.before.len()).filter(|&at| self.is_ready(at))
    }

    fn is_ready(&self, at: usize) -> bool {
        let writes = self.graph.writes[at];
        let spoils = |flag: usize| writes >> flag & 1 != 0 && self.waiting[flag] & !bit(at) != 0;
        self.done & bit(at) == 0 && self.graph.before[at] & !self.done == 0 && !(0..6).any(spoils)
    }

    pub(super) fn place(&mut self, at: usize) {
        self.done |= bit(at);
        for (flag, waiting) in self.waiting.iter_mut().enumerate() {
            *waiting &= !bit(at);
            if self.graph.writes[at] >> flag & 1 != 0 {
                *waiting = self.graph.readers[at][flag];
            }
        }
    }
}
