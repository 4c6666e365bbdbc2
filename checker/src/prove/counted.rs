//! Code that counts with the address of a place in its own function.
//!
//! **Problem.** `goto *(&&base + offsets[i])` leads to places that no instruction and no relocation names: each is a distance from a label, in data of any width. What the entries are, and how many, is not to be seen
//! in general; that somebody counts from a label is.
//!
//! **Method.** From each instruction that names a place of its own function, the register that gets the address is followed forward on all ways, through copies, and through slots of the stack that are
//! named by the same register and distance. What is written over half of one and more, a number of the x87 too, leaves no address there, and does not read it. To move, store, pass, compare, return and jump to an address leaves it what it is. Whatever else reads it, or a memory operand with it, counts with it: what is not known to be harmless is not.
//!
//! **Why this is enough.** A sum of an address and a distance is made somewhere. What is looked for is each address from an instruction of the function, on each way on which it is still one, up to the sum.
//! Behind an indirect jump the search goes on at each place of the function to which one may lead: what tables and words of data name, and what neither runs on from anything nor is jumped to. (A place that is jumped to
//! may be at a distance from a label besides. Then that label is counted with before.) A jump through a register that holds the address leads to its place; where else it leads, the register holds something else.
//!
//! A call of straight code that is a part of its caller ([`super::followed`]) is followed into it, and it may come back with the address in any register. What begins with `endbr64` is a function, and keeps to the psABI.
//!
//! **What is taken for granted.** An address that leaves the function, by a call, a return, or memory other than the stack, is one that somebody jumps to, calls or compares: it is not counted with elsewhere. Slots of the stack are read as they
//! were written, not by a pointer to them. Half of an address of position-independent code is none, and at a fixed address nobody shifts or multiplies it. A function that names its own entry says which function it is, as Gambit's do in each call; labels are not looked for there.
//!
//! **Terminates**: what is held at a place only grows, and there are at most [`STEPS_MAX`] steps.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::decoded::{Decoded, Engine, Memory, Operand, Reg};
use super::followed::Followed;
use super::liveness::KEPT;
use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::tables::TableReference;
use crate::unwind::Fde;
use crate::walk::Walk;

/// Instructions that one address is followed for; who has more of them counts as one that counts.
const STEPS_MAX: usize = 100_000;
/// Slots of the stack in which it is followed. Where more seem to hold it, ways meet on which the stack pointer is another one, and what is where is not known.
const SLOTS_MAX: usize = 16;
const STACK: u8 = 4;
const FRAME: u8 = 5;

/// Instructions of the input that name a place of their own function with which somebody counts, and the place.
pub(crate) fn counted_with(walk: &Walk<'_, '_>) -> Vec<(u64, u64)> {
    let engine = Engine::new();
    let mut leaders: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    let mut decoded: FxHashMap<u64, Option<Decoded>> = FxHashMap::default();
    let mut found = walk.survey.own_places(walk.input);
    found.retain(|&(at, place)| {
        let Some(fde) = walk.input.unwind.fde_at(at) else { return false };
        let fde = &walk.input.unwind.fdes[fde as usize];
        let mut leaders_of = || leaders.entry(fde.start).or_insert_with(|| leaders_in(walk, fde)).clone();
        Follower { walk, engine: &engine, fde, source: at, place }.is_counted_with(&mut decoded, &mut leaders_of)
    });
    found
}

/// Where indirect jumps of a function may lead in it.
fn leaders_in(walk: &Walk<'_, '_>, fde: &Fde) -> Vec<u64> {
    let side = walk.input;
    let labels = side.image.slots.iter().filter_map(|&(_, slot)| match slot {
        Slot::Relative(place) => Some(place),
        _ => None,
    });
    let mut found: Vec<u64> = labels.collect();
    let mut jumped_to: FxHashSet<u64> = FxHashSet::default();
    let mut led_to_by_nothing = Vec::new();
    let (mut at, mut runs_on) = (fde.start, true);
    while let Some(inst) = side.inst(at).filter(|_| at < fde.end) {
        led_to_by_nothing.extend((!runs_on).then_some(at));
        if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) {
            jumped_to.insert(side.target(at, inst));
        }
        found.extend(led_to(walk, at, inst));
        runs_on = !inst.ends_flow();
        at += u64::from(inst.len);
    }
    found.extend(led_to_by_nothing.into_iter().filter(|at| !jumped_to.contains(at)));
    found.retain(|place| (fde.start..fde.end).contains(place));
    found.sort_unstable();
    found.dedup();
    found
}

/// Where a table leads that an instruction may name.
fn led_to(walk: &Walk<'_, '_>, at: u64, inst: Inst) -> Vec<u64> {
    let offsets = (inst.kind == Kind::Lea && inst.disp != 0).then(|| (walk.input.operand(at, inst), 4));
    let addresses = || walk.absolute_table(walk.input.code.bytes(at, inst)).map(|table| (table, 8));
    let Some((table, width)) = offsets.or_else(addresses) else { return Vec::new() };
    let table = TableReference { input: table, output: table, width, from: at, origin: at };
    crate::tables::targets(walk, table).into_iter().flatten().collect()
}

/// What holds the address that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    /// Whether half of a register is too narrow for it. To write less than half of one leaves the rest, and makes another address.
    is_wide: bool,
    registers: u16,
    /// Slots of the stack, by the register that names them and the distance from it.
    slots: Vec<(u8, u64)>,
}

impl Held {
    fn nothing(is_wide: bool) -> Self {
        Self { is_wide, registers: 0, slots: Vec::new() }
    }

    fn is_nothing(&self) -> bool {
        self.registers == 0 && self.slots.is_empty()
    }

    fn has(&self, register: Reg) -> bool {
        matches!(register, Reg::General(number, width, _) if self.registers >> (number & 15) & 1 == 1 && (width != HALF || !self.is_wide))
    }

    fn operand_has(&self, operand: Operand) -> bool {
        match operand {
            Operand::Reg(register) => self.has(register),
            Operand::Memory(memory) => slot_of(&memory).is_some_and(|slot| self.slots.contains(&slot)),
            Operand::Immediate(_) => false,
        }
    }

    /// Whether a memory operand is made with it.
    fn names(&self, memory: &Memory) -> bool {
        memory.base.is_some_and(|base| self.has(base)) || memory.index.is_some_and(|index| self.has(index))
    }

    /// Notes whether an operand that was written holds it. A part of a register that was written leaves the rest.
    fn set(&mut self, operand: Operand, holds: bool) {
        match operand {
            Operand::Reg(Reg::General(number, width, _)) => {
                let bit = 1 << (number & 15);
                if holds {
                    self.registers |= bit;
                } else if width >= 32 {
                    self.registers &= !bit;
                }
                self.slots.retain(|&(base, _)| base != number);
            }
            Operand::Memory(memory) => {
                if let Some(slot) = slot_of(&memory) {
                    self.slots.retain(|&known| known != slot);
                    self.slots.extend(holds.then_some(slot));
                    self.slots.sort_unstable();
                }
            }
            Operand::Reg(_) | Operand::Immediate(_) => {}
        }
    }

    /// Notes that the stack pointer went down by a distance.
    fn move_stack(&mut self, down: u64) {
        const RED_ZONE: i64 = 128;
        for (_, distance) in self.slots.iter_mut().filter(|slot| slot.0 == STACK) {
            *distance = distance.wrapping_add(down);
        }
        // What lies further below is nobody's.
        self.slots.retain(|&(base, distance)| base != STACK || distance.cast_signed() >= -RED_ZONE);
    }

    /// Whether something was new.
    fn add(&mut self, other: &Self) -> bool {
        let old = (self.registers, self.slots.len());
        self.registers |= other.registers;
        self.slots.extend(&other.slots);
        self.slots.sort_unstable();
        self.slots.dedup();
        old != (self.registers, self.slots.len())
    }
}

fn slot_of(memory: &Memory) -> Option<(u8, u64)> {
    let is_plain = memory.index.is_none() && memory.segment == 0;
    match memory.base {
        Some(Reg::General(base @ (STACK | FRAME), 64, _)) if is_plain => Some((base, memory.displacement)),
        _ => None,
    }
}

/// One instruction that names a place of its own function.
struct Follower<'f, 'w, 'a> {
    walk: &'f Walk<'w, 'a>,
    engine: &'f Engine,
    fde: &'f Fde,
    source: u64,
    place: u64,
}

impl Follower<'_, '_, '_> {
    fn is_counted_with(&self, decoded: &mut FxHashMap<u64, Option<Decoded>>, leaders: &mut impl FnMut() -> Vec<u64>) -> bool {
        let side = self.walk.input;
        let mut known: FxHashMap<u64, Held> = FxHashMap::default();
        let mut work = vec![self.source];
        // Position-independent code is not loaded where addresses have 32 bits.
        let is_wide = !self.walk.input.image.is_position_dependent();
        let nothing = || Held::nothing(is_wide);
        known.insert(self.source, nothing());
        let mut steps = 0;
        while let Some(at) = work.pop() {
            steps += 1;
            let Some(inst) = side.inst(at).filter(|_| steps < STEPS_MAX) else { return true };
            let held = known.get(&at).cloned().unwrap_or_else(nothing);
            let after = match inst.kind {
                Kind::Nop | Kind::EndBranch | Kind::Jump | Kind::Branch | Kind::Return | Kind::Stop | Kind::Trap => Some(held),
                Kind::Call => self.behind_call(at, inst, held),
                _ => {
                    let decoded = decoded.entry(at).or_insert_with(|| self.engine.decode(side, at, inst));
                    decoded.as_ref().and_then(|decoded| self.behind(at, decoded, &held))
                }
            };
            let Some(mut after) = after else { return true };
            if after.slots.len() > SLOTS_MAX {
                after.slots.clear();
            }
            if after.is_nothing() {
                continue;
            }
            if let Some(register) = self.jumped_through(at, inst, decoded).filter(|&register| after.has(register)) {
                // Whichever way it holds the address, execution goes on there.
                if known.entry(self.place).or_insert_with(nothing).add(&after) {
                    work.push(self.place);
                }
                after.set(Operand::Reg(register), false);
                if after.is_nothing() {
                    continue;
                }
            }
            for next in self.successors(at, inst, leaders) {
                if known.entry(next).or_insert_with(nothing).add(&after) {
                    work.push(next);
                }
            }
        }
        false
    }

    /// What holds the address behind a direct call, of which straight code that is a part of the caller is followed; `None` if somebody counts with it there.
    fn behind_call(&self, at: u64, inst: Inst, mut held: Held) -> Option<Held> {
        let side = self.walk.input;
        let target = side.target(at, inst);
        let mut returns = false;
        // Who can be called by a pointer is a function.
        if side.slot_of_stub(target).is_none() && !side.begins_with_mark(target) {
            let followed = Followed::of(side, target, |at, inst| self.engine.decode(side, at, inst).map(Rc::new));
            if followed.is_unknown && !held.is_nothing() {
                return None;
            }
            for (_, decoded) in &followed.insts {
                held = behind(decoded, &held)?;
            }
            returns = followed.returns;
        }
        if !returns {
            held.registers &= KEPT;
        }
        Some(held)
    }

    /// The register that says where an indirect jump goes.
    fn jumped_through(&self, at: u64, inst: Inst, decoded: &FxHashMap<u64, Option<Decoded>>) -> Option<Reg> {
        let jump = decoded.get(&at).filter(|_| inst.kind == Kind::IndirectJump)?.as_ref()?;
        match jump.operands.first()?.0 {
            Operand::Reg(register) => Some(register),
            _ => None,
        }
    }

    fn behind(&self, at: u64, decoded: &Decoded, held: &Held) -> Option<Held> {
        let after = behind(decoded, held)?;
        if at == self.source { named_behind(decoded, self.place, after) } else { Some(after) }
    }

    /// Where the function goes on behind an instruction.
    fn successors(&self, at: u64, inst: Inst, leaders: &mut impl FnMut() -> Vec<u64>) -> Vec<u64> {
        let side = self.walk.input;
        let after = at + u64::from(inst.len);
        match inst.kind {
            Kind::Return | Kind::Stop | Kind::Trap => Vec::new(),
            Kind::IndirectJump => leaders(),
            Kind::Jump | Kind::Branch | Kind::Loop => {
                let target = side.target(at, inst);
                let is_own = (self.fde.start..self.fde.end).contains(&target);
                // What is left as it was entered goes to another function.
                let goes_on = is_own || side.code.index(target).is_some() && !side.unwind.has_no_frame(target);
                let runs_on = inst.kind != Kind::Jump;
                [goes_on.then_some(target), runs_on.then_some(after)].into_iter().flatten().collect()
            }
            Kind::Call | Kind::IndirectCall => {
                let sites = side.unwind.fde_at(at).and_then(|fde| side.call_sites(fde));
                let landing = sites.and_then(|sites| sites.find(at).and_then(|site| site.landing_pad));
                let runs_on = !self.walk.call_never_returns(at, inst) && side.unwind.fde_at(after) == side.unwind.fde_at(at);
                [landing, runs_on.then_some(after)].into_iter().flatten().collect()
            }
            _ => vec![after],
        }
    }
}

/// What holds an address behind an instruction that names its place; `None` if it counts with it.
fn named_behind(decoded: &Decoded, place: u64, mut held: Held) -> Option<Held> {
    let &(first, _) = decoded.operands.first()?;
    let is_memory = |operand: &Operand| matches!(operand, Operand::Memory(memory) if memory.place == Some(place) || memory.displacement == place);
    let is_alone = |memory: Memory| memory.base.is_none_or(|base| base == Reg::Pointer) && memory.index.is_none();
    let name = decoded.name.as_str();
    if let Some(&(Operand::Memory(memory), _)) = decoded.operands.iter().find(|(operand, _)| is_memory(operand)) {
        if name != "lea" || !is_alone(memory) {
            return None;
        }
        held.set(first, true);
    } else if matches!(name, "mov" | "movabs") {
        held.set(first, true);
    } else if !matches!(name, "push" | "cmp" | "test") {
        return None;
    }
    Some(held)
}

/// What holds an address behind an instruction; `None` if it counts with it.
fn behind(decoded: &Decoded, held: &Held) -> Option<Held> {
    let mut after = held.clone();
    let name = decoded.name.as_str();
    if matches!(decoded.inst.kind, Kind::Call | Kind::IndirectCall) {
        let reads_code = decoded.memory().is_some_and(|(memory, _)| held.names(&memory));
        after.registers &= KEPT;
        return (!reads_code).then_some(after);
    }
    let is_copy = |memory: &Memory| name == "lea" && memory.index.is_none() && memory.displacement == 0 && memory.place.is_none();
    let is_sum_of_halves = name == "lea" && held.is_wide && decoded.operands.first().is_some_and(|&(first, _)| is_half(first));
    let is_address = !is_sum_of_halves && decoded.memory().is_some_and(|(memory, _)| held.names(&memory));
    if is_address && !decoded.memory().is_some_and(|(memory, _)| is_copy(&memory)) {
        return None;
    }
    match (name, &decoded.operands[..]) {
        ("lea", &[(to, _), _]) => after.set(to, is_address),
        ("mov" | "movabs", &[(to, _), (from, _)]) => after.set(to, held.operand_has(from)),
        ("xchg", &[(one, _), (other, _)]) if held.operand_has(one) || held.operand_has(other) => {
            after.set(one, true);
            after.set(other, true);
        }
        ("push", &[(from, _)]) => {
            after.move_stack(8);
            after.set(top(), held.operand_has(from));
        }
        ("pop", &[(to, _)]) => {
            after.set(top(), false);
            after.move_stack(8u64.wrapping_neg());
            after.set(to, held.operand_has(top()));
        }
        ("add", &[(Operand::Reg(Reg::General(STACK, ..)), _), (Operand::Immediate(by), _)]) => {
            after.move_stack(by.wrapping_neg());
        }
        ("sub", &[(Operand::Reg(Reg::General(STACK, ..)), _), (Operand::Immediate(by), _)]) => after.move_stack(by),
        ("xor" | "sub" | "sbb", &[(one, _), (other, _)]) if one == other => after.set(one, false),
        ("cmp" | "test" | "jmp" | "cmpxchg", _) => {}
        _ if name.starts_with("cmov") => {
            let &[(to, _), (from, _)] = &decoded.operands[..] else { return None };
            if held.operand_has(from) {
                after.set(to, true);
            }
        }
        _ => return otherwise(decoded, held, after),
    }
    Some(after)
}

/// What the stack pointer points to.
fn top() -> Operand {
    Operand::Memory(Memory {
        segment: 0,
        base: Some(Reg::General(STACK, 64, false)),
        index: None,
        scale: 1,
        displacement: 0,
        place: None,
    })
}

/// Bits of half a register; what is written there clears the other half.
const HALF: u16 = 32;

fn is_half(operand: Operand) -> bool {
    matches!(operand, Operand::Reg(Reg::General(_, HALF, _)))
}

/// Operations that on half a register make no address of one: what they work on is a number of the program's, and what the register held before is dead.
const HALVES: [&str; 9] = ["shl", "shr", "sar", "rol", "ror", "imul", "mul", "div", "idiv"];

/// The same for an instruction of which only its operands are known.
fn otherwise(decoded: &Decoded, held: &Held, mut after: Held) -> Option<Held> {
    let only_writes = writes_first_only(decoded);
    let is_vector = matches!(decoded.operands.first(), Some((Operand::Reg(Reg::Vector(..)), _)));
    let is_number = |operand| is_half(operand) && HALVES.contains(&decoded.name.as_str());
    let operands = decoded.operands.iter().skip(usize::from(only_writes)).map(|&(operand, _)| operand);
    let reads = operands.filter(|&operand| !is_number(operand)).any(|operand| held.operand_has(operand));
    let is_store_of_all = matches!(decoded.name.as_str(), "stosq" | "movnti");
    let leaves = is_vector || is_store_of_all || decoded.name.starts_with("sys");
    if (reads || decoded.reads.iter().any(|&register| held.has(register))) && !leaves {
        return None;
    }
    let written: FxHashSet<u8> = decoded.writes.iter().filter_map(|&register| number_of(register)).collect();
    if let Some(&(first, _)) = decoded.operands.first().filter(|&&(first, _)| only_writes || is_number(first)) {
        after.set(first, false);
    }
    let first = decoded.operands.first().and_then(|&(operand, _)| match operand {
        Operand::Reg(register) => number_of(register),
        _ => None,
    });
    after.slots.retain(|&(base, _)| !written.contains(&base) && first != Some(base));
    for number in written {
        after.registers &= !(1 << number);
    }
    Some(after)
}

fn number_of(register: Reg) -> Option<u8> {
    match register {
        Reg::General(number, ..) => Some(number & 15),
        _ => None,
    }
}

/// Whether an instruction writes its first operand and does not read it.
fn writes_first_only(decoded: &Decoded) -> bool {
    const NAMES: [&str; 24] = [
        "movzx", "movsx", "movsxd", "movbe", "movd", "movq", "bsf", "bsr", "tzcnt", "lzcnt", "popcnt", "andn", "bextr", "blsr",
        "blsi", "blsmsk", "pdep", "pext", "rorx", "sarx", "shlx", "shrx", "bzhi", "mulx",
    ];
    let name = decoded.name.as_str();
    let plain = name.strip_prefix('v').unwrap_or(name);
    let is_vector = |&(operand, _): &(Operand, _)| matches!(operand, Operand::Reg(Reg::Vector(..)));
    let moves_vector = plain.starts_with("mov") && decoded.operands.iter().any(is_vector);
    let from_vector = ["movmsk", "pmovmsk", "pextr", "cvt", "movd", "movq", "extractps", "set"];
    // These store 32 bits and more, which leaves no address; other stores of the x87 may be narrower.
    let stores_number = matches!(name, "fst" | "fstp");
    NAMES.contains(&name)
        || moves_vector
        || stores_number
        || from_vector.iter().any(|beginning| plain.starts_with(beginning))
        || name == "imul" && decoded.operands.len() == 3
}
