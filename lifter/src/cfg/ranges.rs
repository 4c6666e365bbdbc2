//! Which values a register may have at an instruction: the bound of a switch, proven over all paths.
//!
//! **Method.** A search back over the control-flow graph from the instruction, along every path, to the definitions of the place that is
//! asked for. On the way each conditional branch adds what it implies: the operand of its comparison and the place asked for are both traced
//! back through copies, extensions, spills and added constants, and where they come from the same value the comparison holds for both.
//! A definition is evaluated by asking for what it reads; the result is the union over the paths, each with what its branches imply. No path that
//! the graph has is left out, so the result holds whenever the graph is complete.
//!
//! **Invariants.** Every answer is a superset. What is not understood is the full range: an instruction, the value on entry, a block without
//! predecessors, a definition that depends on itself, a call (which leaves callee-saved registers and, where no address of the frame is
//! ever taken, the frame), a store that may overlap.
//!
//! Terminates: a place is searched in a block a bounded number of times, definitions nest to a bounded depth and never into
//! themselves, and a budget bounds the total.

mod origin;
mod transfer;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cfg::body::{Body, BodyBlock, CALLER_SAVED, general};
use crate::cfg::interval::Interval;
use crate::cfg::values::stack_step;
use crate::x86::has_segment_base;

const MAX_DEPTH: usize = 24;
const MAX_STEPS: u32 = 30_000;
/// How often a block is searched again with weaker knowledge before all of it is dropped.
const MAX_VISITS: u8 = 4;
/// Under how many names a place is looked for at the end of one block.
const MAX_NAMES: usize = 8;
/// A bound below this is taken as it is; what else is known of the value does not matter.
const SMALL: u64 = 1 << 16;
const RSP: u8 = 4;
const RBP: u8 = 5;
/// No register: a part of an address that is not there.
const NONE: u8 = u8::MAX;

/// Something that holds a value: a register, or memory at an address made of registers as they are at the point of the search.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Register(u8),
    Memory { base: u8, index: u8, scale: u8, disp: i64, size: u8 },
}

/// Where a search back through one block ends.
#[derive(Copy, Clone, Debug)]
enum Found {
    /// The instruction defines the place, which is called so behind it.
    Defined(usize, Place),
    /// The instruction may change it.
    Killed(usize, Place),
    /// The start of the block; the place is called so there.
    Start(Place),
}

/// What is known of the low 8, 16, 32 and 64 bits of one value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Known([Interval; 4]);

impl Known {
    const WIDTHS: [u32; 4] = [8, 16, 32, 64];

    fn nothing() -> Self {
        Self(Self::WIDTHS.map(Interval::full))
    }
    /// Adds a fact; `None` if it contradicts what is known.
    fn with(mut self, fact: Option<Interval>) -> Option<Self> {
        let Some(fact) = fact else { return Some(self) };
        let slot = self.0.iter_mut().find(|known| known.bits() == fact.bits())?;
        *slot = slot.intersection(fact)?;
        Some(self)
    }
    fn contains(&self, other: &Known) -> bool {
        self.0.iter().zip(other.0).all(|(a, b)| a.contains(b))
    }
    fn union(&self, other: &Known) -> Self {
        let mut result = *self;
        result.0.iter_mut().zip(other.0).for_each(|(a, b)| *a = a.union(b));
        result
    }
    /// The values of `run` that this allows; `None` if none is.
    fn restrict(&self, run: Interval) -> Option<Interval> {
        let bits = run.bits();
        self.0.iter().rev().try_fold(run, |run, known| {
            if known.bits() >= bits {
                return run.intersection(known.truncated(bits));
            }
            match run.max() <= crate::cfg::interval::mask(known.bits()) {
                true => run.intersection(known.zero_extended(bits)),
                false => Some(run),
            }
        })
    }
    fn of_width(&self, bits: u32) -> Interval {
        self.0.into_iter().find(|known| known.bits() == bits).unwrap_or(Interval::full(bits))
    }
}

/// Under which names a search went through the ends of blocks, and what was known there.
#[derive(Default)]
struct Seen(FxHashMap<usize, SmallVec<[Visit; 1]>>);

/// A place, what was known of it, and how often that was weakened.
type Visit = (Place, Known, u8);

/// Whether a block has to be searched again.
enum Weakened {
    Nothing,
    To(Known),
    /// The place moves along: an element of an array, say, is another one in each turn of a loop.
    TooManyNames,
}

impl Seen {
    fn weaken(&mut self, block: usize, place: Place, known: Known) -> Weakened {
        let names = self.0.entry(block).or_default();
        let Some((_, old, visits)) = names.iter_mut().find(|(name, ..)| *name == place) else {
            if names.len() >= MAX_NAMES {
                return Weakened::TooManyNames;
            }
            names.push((place, known, 0));
            return Weakened::To(known);
        };
        if old.contains(&known) {
            return Weakened::Nothing;
        }
        *visits += 1;
        *old = if *visits > MAX_VISITS { Known::nothing() } else { old.union(&known) };
        Weakened::To(*old)
    }
}

/// A query's state.
pub(crate) struct Ranges<'b> {
    body: &'b Body,
    steps: u32,
    in_progress: Vec<(usize, Place)>,
}

impl<'b> Ranges<'b> {
    pub(crate) fn new(body: &'b Body) -> Self {
        Self { body, steps: 0, in_progress: Vec::new() }
    }

    /// The largest value that the 64 bits of a register plus `bias` may have before an instruction, if it is small.
    pub(crate) fn small_max(&mut self, register: Register, before: usize, bias: i64) -> Option<u64> {
        self.steps = 0;
        let range = self.register(register, before)?.zero_extended(64).plus(bias as u64);
        (range.max() < SMALL).then(|| range.max())
    }

    /// The value of a register of any width before an instruction; `None` if no path leads there.
    fn register(&mut self, register: Register, before: usize) -> Option<Interval> {
        let bits = 8 * register.size() as u32;
        let is_high_byte = matches!(register, Register::AH | Register::BH | Register::CH | Register::DH);
        match general(register) {
            Some(number) if !is_high_byte => self.place(Place::Register(number), before, bits),
            _ => Some(Interval::full(bits.clamp(8, 64))),
        }
    }

    /// The low bits of a place before an instruction; `None` if no path leads there.
    fn place(&mut self, place: Place, before: usize, bits: u32) -> Option<Interval> {
        if self.in_progress.len() > MAX_DEPTH {
            return Some(Interval::full(bits));
        }
        let mut result: Option<Interval> = None;
        let mut seen = Seen::default();
        let mut pending = vec![(self.body.block_of(before), before, place, Known::nothing())];
        while let Some((block, end, place, known)) = pending.pop() {
            self.steps += 1;
            if self.steps > MAX_STEPS || result.is_some_and(Interval::is_full) {
                return Some(Interval::full(bits));
            }
            let mut arrive = |run: Interval| {
                if let Some(run) = known.restrict(run) {
                    result = Some(result.map_or(run, |old| old.union(run)));
                }
            };
            let place = match self.search(block, end, place) {
                Found::Defined(index, place) => {
                    if let Some(run) = self.defined(index, place, bits) {
                        arrive(run);
                    }
                    continue;
                }
                Found::Killed(_, place) => {
                    arrive(place.full(bits));
                    continue;
                }
                Found::Start(place) => place,
            };
            if !self.body.is_entered_by_edges_only(block) {
                arrive(place.full(bits));
            }
            for &pred in &self.body.blocks[block].preds {
                let pred = pred as usize;
                let Some(known) = self.implied_by_edge(pred, block, place).and_then(|fact| known.with(fact)) else { continue };
                if known.of_width(bits).max() < SMALL {
                    arrive_at(&mut result, known.of_width(bits));
                    continue;
                }
                match seen.weaken(pred, place, known) {
                    Weakened::Nothing => {}
                    Weakened::To(known) => pending.push((pred, self.body.blocks[pred].end as usize, place, known)),
                    Weakened::TooManyNames => return Some(Interval::full(bits)),
                }
            }
        }
        result
    }

    /// Walks back from `end` to the start of the block.
    fn search(&self, block: usize, end: usize, mut place: Place) -> Found {
        let data = &self.body.blocks[block];
        if end == data.end as usize && data.leaves_alone(place) {
            return Found::Start(place);
        }
        for index in (data.first as usize..end).rev() {
            match place {
                Place::Register(number) if self.body.leaves[index] => {
                    if (CALLER_SAVED | self.body.writes[index]) >> number & 1 == 1 {
                        return Found::Killed(index, place);
                    }
                }
                Place::Register(number) => {
                    if self.body.writes[index] >> number & 1 == 1 {
                        return Found::Defined(index, place);
                    }
                }
                Place::Memory { .. } => match self.search_memory(index, place) {
                    Ok(before) => place = before,
                    Err(found) => return found,
                },
            }
        }
        Found::Start(place)
    }

    /// What a place in memory is called before an instruction, or that the instruction changes it.
    fn search_memory(&self, index: usize, place: Place) -> Result<Place, Found> {
        let instruction = &self.body.instructions[index];
        let killed = Err(Found::Killed(index, place));
        let is_private = self.is_frame(place) && !self.body.frame_escapes;
        if self.body.leaves[index] {
            let Place::Memory { base, .. } = place else { return killed };
            return if is_private && base != NONE { Ok(place) } else { killed };
        }
        if self.body.stores[index] {
            match self.effect_of_store(instruction, place) {
                Store::Exact => return Err(Found::Defined(index, place)),
                Store::Overlapping => return killed,
                Store::Elsewhere => {}
            }
        }
        let writes = self.body.writes[index];
        let Place::Memory { base, index: second, .. } = place else { return Ok(place) };
        let is_written = |number: u8| number != NONE && writes >> number & 1 == 1;
        match (is_written(base), is_written(second)) {
            (false, false) => Ok(place),
            (true, true) => killed,
            (true, false) => self.before_write(instruction, place, base).ok_or(Found::Killed(index, place)),
            (false, true) => self.before_write(instruction, place, second).ok_or(Found::Killed(index, place)),
        }
    }

    /// The same place in terms of the registers before an instruction that writes one of them.
    fn before_write(&self, instruction: &Instruction, place: Place, written: u8) -> Option<Place> {
        let Place::Memory { base, index, scale, disp, size } = place else { return None };
        if written == RSP {
            let step = stack_step(instruction).filter(|_| index != RSP)?;
            return Some(Place::Memory { base, index, scale, disp: disp.wrapping_add(step), size });
        }
        let (from, added) = transfer::moved_with_offset(instruction)?;
        let moved = |register: u8| if register == written { from } else { register };
        let factor = if base == written { 1 } else { i64::from(scale) };
        let disp = disp.wrapping_add(added.wrapping_mul(factor));
        (base != written || index != written).then(|| Place::Memory { base: moved(base), index: moved(index), scale, disp, size })
    }

    fn effect_of_store(&self, instruction: &Instruction, place: Place) -> Store {
        let Place::Memory { base, index, scale, disp, size } = place else { return Store::Elsewhere };
        if instruction.mnemonic() == Mnemonic::Push {
            // It writes at the stack pointer as it is behind it.
            return match (base, index) {
                (RSP, NONE) if disp == 0 && size == 8 => Store::Exact,
                (RSP, NONE) if disp >= 8 || disp.wrapping_add(i64::from(size)) <= 0 => Store::Elsewhere,
                _ if !self.is_frame(place) && !self.body.frame_escapes => Store::Elsewhere,
                (RBP, NONE) if self.is_frame(place) => Store::Elsewhere,
                _ => Store::Overlapping,
            };
        }
        let Some(Place::Memory { base: to, index: to_index, scale: to_scale, disp: to_disp, size: to_size }) =
            self.operand_place(instruction, 0)
        else {
            return if self.is_frame(place) && !self.body.frame_escapes { Store::Elsewhere } else { Store::Overlapping };
        };
        let is_same_base = base == to && index == to_index && (scale == to_scale || index == NONE);
        if is_same_base {
            let ends_before = to_disp.wrapping_add(i64::from(to_size)) <= disp;
            let starts_behind = disp.wrapping_add(i64::from(size)) <= to_disp;
            return match (to_disp == disp && to_size == size, ends_before || starts_behind) {
                (true, _) => Store::Exact,
                (false, true) => Store::Elsewhere,
                (false, false) => Store::Overlapping,
            };
        }
        let is_frame_base = to == RSP || to == RBP && self.body.has_frame_pointer;
        match (self.is_frame(place), is_frame_base) {
            (true, false) | (false, true) if !self.body.frame_escapes => Store::Elsewhere,
            _ => Store::Overlapping,
        }
    }

    /// Whether memory is named by the frame's own registers.
    fn is_frame(&self, place: Place) -> bool {
        matches!(place, Place::Memory { base, index: NONE, .. } if base == RSP || base == RBP && self.body.has_frame_pointer)
    }

    /// The memory that an operand names, if registers say where it is.
    fn operand_place(&self, instruction: &Instruction, operand: u32) -> Option<Place> {
        if instruction.op_kind(operand) != OpKind::Memory || has_segment_base(instruction) {
            return None;
        }
        let number = |register: Register| match register {
            Register::None => Some(NONE),
            register if register.size() == 8 => general(register),
            _ => None,
        };
        let size = u8::try_from(instruction.memory_size().size()).ok().filter(|&size| size > 0)?;
        if instruction.is_ip_rel_memory_operand() {
            let disp = instruction.ip_rel_memory_address() as i64;
            return Some(Place::Memory { base: NONE, index: NONE, scale: 1, disp, size });
        }
        Some(Place::Memory {
            base: number(instruction.memory_base())?,
            index: number(instruction.memory_index())?,
            scale: instruction.memory_index_scale() as u8,
            disp: instruction.memory_displacement64() as i64,
            size,
        })
    }
}

impl BodyBlock {
    /// Whether a place holds the same and is called the same from the start of the block to its end.
    fn leaves_alone(&self, place: Place) -> bool {
        let is_kept = |number: u8| number == NONE || self.clobbers >> number & 1 == 0;
        match place {
            Place::Register(number) => is_kept(number),
            Place::Memory { base, index, .. } => !self.stores && is_kept(base) && is_kept(index),
        }
    }
}

impl Place {
    /// Nothing known of it but its size.
    fn full(self, bits: u32) -> Interval {
        match self {
            Place::Memory { size, .. } if 8 * u32::from(size) < bits => Interval::full(8 * u32::from(size)).zero_extended(bits),
            _ => Interval::full(bits),
        }
    }
}

fn arrive_at(result: &mut Option<Interval>, run: Interval) {
    *result = Some(result.map_or(run, |old| old.union(run)));
}

/// What a store does to a place.
enum Store {
    Exact,
    Overlapping,
    Elsewhere,
}

#[cfg(test)]
mod tests;
