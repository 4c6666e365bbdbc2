//! A random legal layout: the torture test for everything that comes after layout.
//!
//! **Method.** Fragments come in random order; in each function blocks of one unwind class come in random order, cut into fragments at random
//! places, each block with a random alignment. The entry has no privilege. Nothing is kept but what the plan's types demand.
//!
//! **Invariant.** The same program and seed give the same plan on every machine: the generator is our own.

use lifter::ir::Program;

use super::{align, blocks_by_class};
use crate::plan::{FragmentPlan, LayoutPlan, PlannedBlock, Temperature};

/// Sebastiano Vigna's splitmix64: 64 bits of state, enough to shuffle with.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0; its bias is far too small to matter here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Mostly none, else a power of two up to 16.
    fn align(&mut self) -> u8 {
        if self.below(4) == 0 { 1 << self.below(5) } else { 1 }
    }
}

/// A random legal layout of everything that moves.
pub fn shuffle(program: &Program, seed: u64) -> LayoutPlan {
    let mut random = Random::new(seed);
    let mut fragments = Vec::new();
    for (func, data) in program.funcs.iter().filter(|(_, data)| data.is_movable()) {
        for mut blocks in blocks_by_class(program, data.blocks.iter()) {
            random.shuffle(&mut blocks);
            let cut_odds = 1 + random.below(blocks.len() as u64 + 1);
            let mut rest = &blocks[..];
            while !rest.is_empty() {
                let len = 1 + (1..rest.len()).take_while(|_| random.below(cut_odds + 1) != 0).count();
                let planned =
                    |&block| PlannedBlock { block, align: random.align().max(align::demanded(program, block)), copy: None };
                let planned: Vec<PlannedBlock> = rest[..len].iter().map(planned).collect();
                let align = planned.iter().map(|planned| planned.align).max().unwrap_or(1);
                fragments.push(FragmentPlan { func, temperature: Temperature::Hot, align, blocks: planned, clone: None });
                rest = &rest[len..];
            }
        }
    }
    random.shuffle(&mut fragments);
    LayoutPlan { fragments, ..LayoutPlan::default() }
}
