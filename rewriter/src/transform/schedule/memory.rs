//! Which accesses to memory may change places: what the memory contract grants, by what the alias analysis knows.
//!
//! **Contract.** Machine code does not say which accesses are atomic or volatile. So accesses to memory that others may see keep their order, but that a load may come before an earlier
//! store to another address, which x86-TSO lets the processor do anyway (Intel SDM vol. 3, 9.2.2: "Reads may be reordered with older writes to different locations"). Loads do not pass loads, stores pass nothing.
//! Where one of two accesses is *private*, nobody can tell: then the two may change places unless they may overlap. What never changes (*constant*) is read at any time.
//! With `no_races` the program is taken to have no data races and no signal handlers that look at its memory: then all that can't overlap may change places.
//!
//! **Private** is what lies in the procedure's own frame, below the return address, while no address of the frame can be known elsewhere: at both accesses and up to
//! what comes behind the second. **Constant** is an address in a segment that is never writable.
//!
//! **Faults.** A load that overtook a store and faults does so before the store is made: that is the exception above, seen from the program itself. Otherwise, where an access faults, all that others see of the accesses
//! before it has been made, and none of those behind. A division keeps its place among accesses, arithmetic with floating-point numbers among the stores that others see.
//!
//! **In which context.** What is said of a pair has to hold in each procedure that the block is part of, and there whoever calls, or in each class of callers on its own.

use analysis::alias::{Reference, Region, judge};
use analysis::domain::{Base, Value};
use analysis::engine::Contexts;
use analysis::values::code::{Call, CodeBlock, ProcedureCode};
use analysis::values::memory::Address;
use analysis::values::{Observer, Solution, State, build, solve, walk};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, EntityId, Func};
use rustc_hash::FxHashMap;

use super::effects::Effects;
use super::graph::LENGTH_MAX;

/// What is known of two accesses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) is_apart: bool,
    /// Nobody else can see one of them.
    pub(super) is_private: bool,
}

impl Pair {
    const NOTHING: Self = Pair { is_apart: false, is_private: false };
}

/// What is known of the memory that a block uses.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockMemory {
    /// By the addresses of two instructions, ascending.
    pairs: FxHashMap<(Va, Va), Pair>,
    /// Instructions that read what never changes.
    constants: Vec<Va>,
}

impl BlockMemory {
    #[cfg(test)]
    pub(super) fn of_pair(instructions: (Va, Va), pair: Pair) -> Self {
        Self { pairs: FxHashMap::from_iter([(instructions, pair)]), constants: Vec::new() }
    }

    /// What holds by two solutions.
    fn both(&self, other: &Self) -> Self {
        let pair = |(key, pair): (&(Va, Va), &Pair)| {
            let other = other.pairs.get(key)?;
            let both = Pair { is_apart: pair.is_apart && other.is_apart, is_private: pair.is_private && other.is_private };
            (both != Pair::NOTHING).then_some((*key, both))
        };
        let is_common = |at: &&Va| other.constants.binary_search(at).is_ok();
        Self {
            pairs: self.pairs.iter().filter_map(pair).collect(),
            constants: self.constants.iter().filter(is_common).copied().collect(),
        }
    }

    /// What holds by one of two solutions.
    fn either(mut self, other: Self) -> Self {
        for (key, pair) in other.pairs {
            let known = self.pairs.entry(key).or_insert(Pair::NOTHING);
            *known = Pair { is_apart: known.is_apart || pair.is_apart, is_private: known.is_private || pair.is_private };
        }
        self.constants.extend(other.constants);
        self.constants.sort_unstable();
        self.constants.dedup();
        self
    }

    /// Whether two instructions keep their order for what they do to memory, or for a trap.
    pub(super) fn stays(&self, (at, first): (Va, &Effects), (later, second): (Va, &Effects), no_races: bool) -> bool {
        let is_constant = |at: Va| self.constants.binary_search(&at).is_ok();
        let sees = |at: Va, effects: &Effects| effects.uses_memory() && !is_constant(at);
        let stops = |trap: &Effects, at: Va, other: &Effects| {
            let sees_it = sees(at, other) && (trap.is_division || other.stores);
            trap.may_trap && (sees_it || trap.is_division && other.is_division)
        };
        if stops(first, later, second) || stops(second, at, first) {
            return true;
        }
        if !sees(at, first) || !sees(later, second) || !(first.stores || second.stores) && no_races {
            return false;
        }
        let pair = self.pairs.get(&(at, later)).copied().unwrap_or(Pair::NOTHING);
        let is_free = match (first.stores, second.stores) {
            // A load comes before a store, if it is nothing but a load and the store nothing but a store.
            (true, false) => pair.is_apart && (!first.loads || pair.is_private || no_races),
            (false, false) => pair.is_private,
            _ => pair.is_apart && (pair.is_private || no_races),
        };
        !is_free
    }
}

/// What is known of some blocks of a function.
pub(super) fn of_function(contexts: &Contexts<'_, '_>, func: Func, wanted: &[Block]) -> FxHashMap<Block, BlockMemory> {
    let summaries = contexts.summaries;
    let mut all: FxHashMap<Block, BlockMemory> = FxHashMap::default();
    for procedure in summaries.around.procedures.of_func(func) {
        let code = build(&summaries.around, procedure);
        let is_understood = |data: &CodeBlock| !code.is_opaque && summaries.is_understood(procedure, data.block);
        let own: Vec<(u32, &CodeBlock)> = (0u32..).zip(&code.blocks).filter(|(_, data)| wanted.contains(&data.block)).collect();
        if own.is_empty() {
            continue;
        }
        let solutions = if own.iter().any(|(_, data)| is_understood(data)) { Solutions::of(contexts, &code) } else { None };
        for (number, data) in own {
            let known = match &solutions {
                Some(solutions) if is_understood(data) => solutions.of_block(contexts, &code, number),
                _ => BlockMemory::default(),
            };
            let merged = all.get(&data.block).map_or_else(|| known.clone(), |other| other.both(&known));
            all.insert(data.block, merged);
        }
    }
    all
}

/// A procedure, solved for whoever calls it and as each class of its callers knows it.
struct Solutions {
    whoever_calls: Solution,
    by_class: Vec<Solution>,
}

impl Solutions {
    fn of(contexts: &Contexts<'_, '_>, code: &ProcedureCode) -> Option<Self> {
        contexts.summaries.summaries[code.procedure.index()].as_ref()?;
        let classes = 0..contexts.partition.num_classes(code.procedure);
        let called: Vec<u32> = classes.filter(|&class| contexts.context(code.procedure, class).is_some()).collect();
        // A class that knows nothing decides nothing, and what all know decides.
        let all_know = called.iter().all(|&class| contexts.context(code.procedure, class).is_some_and(|known| !known.is_empty()));
        let by_class = if all_know { called } else { Vec::new() };
        Some(Self {
            whoever_calls: solve(code, &contexts.summaries.knowledge(), State::at_entry()),
            by_class: by_class.into_iter().map(|class| contexts.solve(code, class)).collect(),
        })
    }

    fn of_block(&self, contexts: &Contexts<'_, '_>, code: &ProcedureCode, number: u32) -> BlockMemory {
        let known = of_block(contexts, code, number, &self.whoever_calls);
        let classes = self.by_class.iter().map(|solution| of_block(contexts, code, number, solution));
        match classes.reduce(|x, y| x.both(&y)) {
            Some(common) => known.either(common),
            None => known,
        }
    }
}

/// What is known of a block as a solution has it.
fn of_block(contexts: &Contexts<'_, '_>, code: &ProcedureCode, number: u32, solution: &Solution) -> BlockMemory {
    let image = contexts.summaries.around.image;
    let knowledge = contexts.summaries.knowledge();
    let mut memory = BlockMemory::default();
    let Some(start) = &solution.at_start[number as usize] else { return memory };
    let region = Region::build(image, code, &knowledge, &[number], &solution.at_start);
    let mut escapes =
        Escapes { first: code.instructions_of(&code.blocks[number as usize]).start as u32, has_escaped: Vec::new() };
    walk(code, &knowledge, number, start, &mut escapes);
    let of_instruction = |at: usize| {
        let same =
            |other: usize| region.references.get(other).is_some_and(|r| r.instruction == region.references[at].instruction);
        !same(at.wrapping_sub(1)) && !same(at + 1)
    };
    // An instruction with more than one place in memory does not move.
    let alone: Vec<&Reference> =
        (0..region.references.len()).filter(|&at| of_instruction(at)).map(|at| &region.references[at]).collect();
    for (index, a) in alone.iter().enumerate() {
        if !a.writes && is_constant(image, a) {
            memory.constants.push(a.at);
        }
        let near = |b: &&&Reference| b.stretch == a.stretch && ((b.instruction - a.instruction) as usize) < LENGTH_MAX;
        for b in alone[index + 1..].iter().take_while(near) {
            let is_hidden = !escapes.behind(b.instruction);
            let pair =
                Pair { is_apart: judge(&region.symbols, a, b).is_no_alias(), is_private: is_hidden && (is_own(a) || is_own(b)) };
            if pair != Pair::NOTHING {
                memory.pairs.insert((a.at, b.at), pair);
            }
        }
    }
    memory.constants.sort_unstable();
    memory
}

/// Whether a reference lies in the procedure's own frame, the return address not included.
fn is_own(reference: &Reference) -> bool {
    let Value { base, is_pure, offsets, .. } = reference.value;
    base == Base::FRAME && is_pure && !offsets.is_full() && reference.size != 0 && offsets.high <= -i64::from(reference.size)
}

/// Whether what is read lies where nobody ever writes.
fn is_constant(image: &Image<'_>, reference: &Reference) -> bool {
    let base = if image.kind.is_position_independent() { Base::IMAGE } else { Base::NUMBER };
    let offset = reference.value.offset().filter(|_| reference.value.base == base && reference.size != 0);
    offset.is_some_and(|at| image.never_changes(Va(at.cast_unsigned()), u64::from(reference.size)))
}

/// By instruction, whether an address of the frame may be known elsewhere before it.
struct Escapes {
    first: u32,
    has_escaped: Vec<bool>,
}

impl Escapes {
    /// The same, behind an instruction; behind the last one of the block nothing is said.
    fn behind(&self, instruction: u32) -> bool {
        self.has_escaped.get((instruction + 1 - self.first) as usize).copied().unwrap_or(true)
    }
}

impl Observer for Escapes {
    fn at_instruction(&mut self, _: u32, state: &State, _: &[Address]) {
        self.has_escaped.push(state.may_be_known_elsewhere(&Value::exact(Base::FRAME, 0)));
    }
    fn at_call(&mut self, _: &Call, _: &State, _: bool) {}
}
