//! Where the executed loads and stores of a program go: what a transform of memory accesses could gain at most.
//!
//! **Method.** Each block of an understood procedure that ran is walked once from what holds at its start, whoever called (a block that several procedures reach
//! counts for the first). Each reference is put into a class by its address, and counts as often as its block ran. *Known* are loads of eight bytes of which a
//! register, or none, already holds the value, as far as the states say.
//!
//! **Invariant.** Sums over blocks: independent of threads.

use std::collections::BTreeMap;

use lifter::entity::EntityId;
use lifter::{Image, Va};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use crate::domain::Base;
use crate::engine::Summaries;
use crate::procedures::Procedure;
use crate::values::code::{Call, Effect, MemoryReference, ProcedureCode, RSP};
use crate::values::memory::Address;
use crate::values::state::{State, is_save};
use crate::values::{Observer, build, solve, walk};

/// Executed accesses of one class.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    pub loads: u64,
    pub stores: u64,
    /// Loads of what a register holds.
    pub known: u64,
}

/// By class, in the order of the names.
pub type Traffic = BTreeMap<&'static str, Accesses>;

/// Counts for a whole program; `blocks` says how often each block ran.
pub fn traffic(summaries: &Summaries<'_>, blocks: &[u64]) -> Traffic {
    let around = &summaries.around;
    let all: Vec<Procedure> = around.procedures.all.keys().collect();
    let each: Vec<Vec<(u32, Traffic)>> = all.par_iter().map(|&p| of_procedure(summaries, blocks, p)).collect();
    let mut seen: FxHashSet<u32> = FxHashSet::default();
    let mut sum = Traffic::new();
    for (block, of_block) in each.into_iter().flatten() {
        if seen.insert(block) {
            for (class, accesses) in of_block {
                let into = sum.entry(class).or_default();
                into.loads += accesses.loads;
                into.stores += accesses.stores;
                into.known += accesses.known;
            }
        }
    }
    sum
}

fn of_procedure(summaries: &Summaries<'_>, blocks: &[u64], procedure: Procedure) -> Vec<(u32, Traffic)> {
    let around = &summaries.around;
    let func = around.procedures.all[procedure].func;
    let has_run = around.program.funcs[func].blocks.iter().any(|b| blocks[b.index()] != 0);
    if !has_run || summaries.summaries[procedure.index()].is_none() {
        return Vec::new();
    }
    let code = build(around, procedure);
    let knowledge = summaries.knowledge();
    let solution = solve(&code, &knowledge, State::at_entry());
    let mut list = Vec::new();
    for (number, start) in solution.at_start.iter().enumerate() {
        let block = code.blocks[number].block;
        let count = blocks[block.index()];
        let Some(start) = start.as_ref().filter(|_| count != 0) else { continue };
        let mut counter = Counter { code: &code, image: around.image, count, traffic: Traffic::new() };
        walk(&code, &knowledge, number as u32, start, &mut counter);
        list.push((block.index() as u32, counter.traffic));
    }
    list
}

struct Counter<'a> {
    code: &'a ProcedureCode,
    image: &'a Image<'a>,
    count: u64,
    traffic: Traffic,
}

impl Observer for Counter<'_> {
    fn at_instruction(&mut self, number: u32, state: &State, addresses: &[Address]) {
        let instruction = &self.code.instructions[number as usize];
        for (reference, address) in self.code.references_of(instruction).iter().zip(addresses) {
            let class = self.class(instruction.effect, reference, state, address);
            let accesses = self.traffic.entry(class).or_default();
            accesses.loads += if reference.reads { self.count } else { 0 };
            accesses.stores += if reference.writes { self.count } else { 0 };
            accesses.known += if is_known(instruction.effect, state, address) { self.count } else { 0 };
        }
    }
    fn at_call(&mut self, _: &Call, _: &State, _: bool) {}
}

/// Whether a register holds what a load reads.
fn is_known(effect: Effect, state: &State, address: &Address) -> bool {
    let Effect::Load { to } = effect else { return false };
    let offset = address.value.offset().filter(|_| address.value.base == Base::FRAME);
    let Some(slot) = offset.and_then(|offset| state.slot(offset)) else { return false };
    let is_same = |register: u8| register != RSP && state.get(register) == slot.value && slot.value.offset().is_some();
    let _ = to;
    (0..16).any(is_same)
}

impl Counter<'_> {
    fn class(&self, effect: Effect, reference: &MemoryReference, state: &State, address: &Address) -> &'static str {
        if reference.is_implicit {
            return "return addresses";
        }
        let value = &address.value;
        match value.base {
            Base::FRAME => self.class_in_frame(effect, state, address),
            Base::THREAD => "thread-local",
            Base::IMAGE | Base::NUMBER => match value.offset() {
                Some(at) if is_constant(self.image, Va(at as u64)) => "constant words",
                Some(_) => "static data, exact",
                None => "static data, indexed",
            },
            _ => "elsewhere",
        }
    }

    fn class_in_frame(&self, effect: Effect, state: &State, address: &Address) -> &'static str {
        let Some(offset) = address.value.offset() else { return "frame, indexed" };
        if offset >= 0 {
            return "arguments on the stack";
        }
        let holds_save = || state.slot(offset).is_some_and(|slot| slot.is_save());
        let is_save = match effect {
            Effect::Push { from: Some(from) } | Effect::Store { from } => is_save(&state.get(from)),
            Effect::Pop { .. } | Effect::Load { .. } | Effect::Leave => holds_save(),
            _ => false,
        };
        match (is_save, state.has_escaped) {
            (true, _) => "register saves",
            (false, false) => "private slots",
            (false, true) => "escaped frames",
        }
    }
}

/// Whether a word is in memory that nothing writes once the program runs.
fn is_constant(image: &Image<'_>, at: Va) -> bool {
    image.segment_at(at).is_some_and(|segment| !segment.is_writable())
}
