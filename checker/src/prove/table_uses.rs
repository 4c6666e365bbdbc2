//! What the input does with the address of a table that has a copy in the output.
//!
//! **Problem.** Where an instruction names a copy instead of the table, all that is read by the address it makes is read beside the copy. Hand-written code keeps constants beside its tables.
//!
//! **Method.** From the instruction that makes the address the input is followed forward, by registers and slots of the frame that hold the address. Its own uses are a load of 32 bits with an index, a sum
//! with what such a load read, and moves; whatever else reads all of such a register, or memory by it, is another use. Calls keep what the psABI says, but that straight code is followed that is a part of its caller ([`super::followed`]); calls of code without a frame
//! description, which need not follow the psABI, are followed into it up to its next call. An argument of a function is no use: compilers pass on what a register happens to hold where the argument means nothing.
//!
//! **Where a jump leads** is known by the register that is added to the entry: if it holds the table's own address, if a `lea` right before the jump names another table, or if a proof knows. Behind other jumps nothing
//! is looked for: a guess among the tables that the function names would find uses on ways that it does not go.
//!
//! **Terminates**: what is known at an address only grows, and at most [`STEPS_MAX`] instructions are looked at; if that is not enough, it counts as another use.

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Prover;
use super::class::is_vector_move;
use super::decoded::{Decoded, Memory, Operand, Reg};
use super::liveness::{ARGUMENTS, PRODUCT, Use, use_of};
use crate::decode::{Inst, Kind, Shape};
use crate::tables::{TableReference, certain_targets, instruction_before};
use crate::walk::{AT_RETURN_ADDRESS, Walk};

const STEPS_MAX: usize = 1_000_000;
/// Instructions between the one that names a table and the jump through it.
const BEFORE_MAX: usize = 8;
const SLOTS_MAX: usize = 63;
/// In [`Holding::slots`]: something that was pushed.
const PUSHED: u64 = 1 << SLOTS_MAX;
/// `rax` and `rdx`.
const RETURNED: u16 = 1 | 1 << 2;
/// What calls need not keep, by the psABI: `rax`, `rcx`, `rdx`, `rsi`, `rdi`, `r8` to `r11`.
const LOST: u16 = 0x0fc7;
const STACK: [u8; 2] = [4, 5];
/// Instructions on bits that only write their first operand.
const ONLY_WRITTEN: [&str; 17] = [
    "bsf", "bsr", "tzcnt", "lzcnt", "popcnt", "blsr", "blsi", "blsmsk", "andn", "bextr", "bzhi", "pdep", "pext", "rorx", "sarx",
    "shlx", "shrx",
];
/// Instructions that leave their first operand as it is.
const ONLY_READ: [&str; 8] = ["cmp", "test", "push", "bt", "mul", "div", "imul", "idiv"];

/// Which registers and slots hold the table's address, which registers may hold entries, which of them were seen to be loaded with one, and which hold a sum of the two.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Holding {
    registers: u16,
    slots: u64,
    entries: u16,
    loaded: u16,
    sums: u16,
}

/// The tables through which the indirect jumps of a function go: those that are asked about, and the others.
#[derive(Default)]
pub(crate) struct Tables {
    pub(crate) own: Vec<TableReference>,
    pub(crate) others: Vec<TableReference>,
}

impl Holding {
    fn is_empty(self) -> bool {
        self.registers == 0 && self.slots == 0 && self.loaded == 0
    }

    fn union(self, other: Self) -> Self {
        Self {
            registers: self.registers | other.registers,
            slots: self.slots | other.slots,
            entries: self.entries | other.entries,
            loaded: self.loaded | other.loaded,
            sums: self.sums | other.sums,
        }
    }

    /// The same, where registers with arguments hold nothing that is known.
    fn without_arguments(self) -> Self {
        Self { registers: self.registers & !ARGUMENTS, ..self }
    }

    fn has(self, register: u8) -> bool {
        self.registers >> register & 1 == 1
    }

    fn set(&mut self, register: u8, is_held: bool) {
        self.registers = self.registers & !(1 << register) | u16::from(is_held) << register;
        self.entries &= !(1 << register);
        self.loaded &= !(1 << register);
        self.sums &= !(1 << register);
    }

    /// The same as another register.
    fn copy(&mut self, to: u8, from: u8) {
        let Self { registers, entries, loaded, sums, .. } = *self;
        let bit = |set: u16| (set >> from & 1) << to;
        self.set(to, false);
        self.registers |= bit(registers);
        self.entries |= bit(entries);
        self.loaded |= bit(loaded);
        self.sums |= bit(sums);
    }
}

pub(crate) struct TableUses<'s, 'w, 'a> {
    walk: &'s Walk<'w, 'a>,
    prover: &'s mut Prover,
    /// What is called where a frame description ends: it hardly returns elsewhere.
    last_called: FxHashSet<u64>,
    /// Where a jump leads by a table.
    places: FxHashMap<(u64, u64), Vec<u64>>,
}

/// Where control is: an address, and whether a call led there.
type At = (u64, bool);

/// The search from one instruction.
#[derive(Default)]
struct Search {
    held: FxHashMap<At, Holding>,
    work: Vec<At>,
    slots: Vec<(u8, u64)>,
    /// Slots in which something was put that had been loaded as an entry.
    entry_slots: FxHashSet<(u8, u64)>,
    /// The table, and its copies.
    copies: Vec<(u64, u64)>,
}

impl Search {
    fn come(&mut self, at: At, holding: Holding) {
        if holding.is_empty() {
            return;
        }
        let known = self.held.entry(at).or_default();
        let union = known.union(holding);
        if union != *known {
            *known = union;
            self.work.push(at);
        }
    }

    /// Takes note of a slot that may hold an entry; what was known before is looked at once more.
    fn put_entry(&mut self, place: (u8, u64)) {
        if self.entry_slots.insert(place) {
            self.work.extend(self.held.keys());
        }
    }

    fn slot(&self, place: (u8, u64)) -> Option<usize> {
        self.slots.iter().position(|&slot| slot == place)
    }
}

impl<'s, 'w, 'a> TableUses<'s, 'w, 'a> {
    pub(crate) fn new(walk: &'s Walk<'w, 'a>, prover: &'s mut Prover) -> Self {
        let side = walk.input;
        let ends = side.unwind.fdes.iter().filter(|fde| !side.runs_on_at(fde.end));
        let ends = ends.filter_map(|fde| instruction_before(walk, fde.end));
        let calls = ends.filter(|(_, inst)| inst.kind == Kind::Call);
        let last_called = calls.map(|(at, inst)| side.target(at, inst)).collect();
        Self { walk, prover, last_called, places: FxHashMap::default() }
    }

    /// An instruction of the input that uses the address of a table, made by some instructions, for something else than the jumps through the table.
    pub(crate) fn other_use(&mut self, made_at: &[u64], tables: &Tables) -> Option<u64> {
        let makes: FxHashMap<u64, u8> = made_at.iter().filter_map(|&at| Some((at, self.made(at)?))).collect();
        let is_copy = |table: &&TableReference| table.input != table.output;
        let copies = tables.own.iter().filter(is_copy).map(|table| (table.input, table.output)).collect();
        let mut search = Search { copies, ..Search::default() };
        for (&at, &register) in &makes {
            let Some(inst) = self.walk.input.inst(at) else { continue };
            // An entry may have been loaded before, by the same address in another register.
            let start = Holding { registers: 1 << register, entries: !(1 << register), ..Holding::default() };
            search.come((at + u64::from(inst.len), false), start);
        }
        let mut steps = 0;
        while let Some(at) = search.work.pop() {
            steps += 1;
            if steps > STEPS_MAX {
                return Some(at.0);
            }
            let holding = search.held.get(&at).copied().unwrap_or_default();
            let Some(inst) = self.walk.input.inst(at.0) else { continue };
            let (mut after, _) = self.step(at.0, inst, holding, &mut search);
            // The table's address again, whatever was there before.
            after.registers |= makes.get(&at.0).map_or(0, |register| 1 << register);
            self.go_on(at, inst, after, tables, &mut search);
        }
        // Only now all is known that holds the address.
        let mut held: Vec<(At, Holding)> = search.held.iter().map(|(&at, &holding)| (at, holding)).collect();
        held.sort_unstable_by_key(|&(at, _)| at);
        let is_other = |&(at, holding): &(At, Holding)| {
            let inst = self.walk.input.inst(at.0)?;
            self.step(at.0, inst, holding, &mut search).1.then_some(at.0)
        };
        held.iter().find_map(is_other)
    }

    /// The register into which an instruction puts an address that it names.
    fn made(&mut self, at: u64) -> Option<u8> {
        let made = self.decode(at, self.walk.input.inst(at)?)?;
        match (made.operands.first()?.0, &*made.name) {
            (Operand::Reg(Reg::General(register, 32 | 64, false)), "lea") => Some(register),
            (Operand::Reg(Reg::General(register, 32 | 64, false)), "mov" | "movabs") if made.memory().is_none() => Some(register),
            _ => None,
        }
    }

    /// The register into which an instruction loads an entry from where it names, as where the index is known to be 0: in the output it names the copy.
    fn loaded_by_name(&self, at: u64, inst: Inst, decoded: &Decoded, copies: &[(u64, u64)]) -> Option<u8> {
        let (input, output) = (self.walk.input, self.walk.output);
        let [(Operand::Reg(Reg::General(to, ..)), _), (Operand::Memory(_), 32)] = *decoded.operands else { return None };
        if inst.disp == 0 || !matches!(&*decoded.name, "mov" | "movsxd") {
            return None;
        }
        let moved = output.code.address(self.walk.relation.output_of(input.code.index(at)?)?);
        let named = (input.operand(at, inst), output.operand(moved, output.inst(moved).filter(|inst| inst.disp != 0)?));
        copies.contains(&named).then_some(to)
    }

    fn decode(&mut self, at: u64, inst: Inst) -> Option<Rc<Decoded>> {
        self.prover.decode(true, self.walk.input, at, inst)
    }

    fn go_on(&mut self, at: At, inst: Inst, holding: Holding, tables: &Tables, search: &mut Search) {
        let side = self.walk.input;
        let (address, is_called) = at;
        let next = (address + u64::from(inst.len), is_called);
        match inst.kind {
            Kind::Jump => self.jump((side.target(address, inst), is_called), holding, search),
            Kind::Branch | Kind::Loop => {
                self.jump((side.target(address, inst), is_called), holding, search);
                self.jump(next, holding, search);
            }
            // What another file has, by a stub or in place of it.
            Kind::IndirectJump if side.slot_of_stub(address).is_some() => {}
            Kind::IndirectJump => {
                let walk = self.walk;
                // A jump behind the end of a frame is a call, and leads to nothing inside of it.
                let is_outside = |place| walk.frame_address(side, place) == Some(AT_RETURN_ADDRESS);
                let may_lead = |place: &u64| is_outside(*place) == is_outside(address);
                for place in self.led_to(address, inst, holding, tables).into_iter().filter(may_lead) {
                    search.come((place, is_called), holding);
                }
            }
            Kind::Call | Kind::IndirectCall if self.walk.call_never_returns(address, inst) => {}
            Kind::Call if self.last_called.contains(&side.target(address, inst)) => {}
            Kind::Call => {
                let target = side.target(address, inst);
                if !is_called && side.unwind.fde_at(target).is_none() && side.slot_of_stub(target).is_none() {
                    search.come((target, true), holding);
                }
                // Behind a call in what was called, convention is believed in.
                if !is_called {
                    self.jump(next, holding, search);
                }
            }
            Kind::Return | Kind::Stop | Kind::Trap => {}
            _ => self.jump(next, holding, search),
        }
    }

    /// Where an indirect jump may lead.
    fn led_to(&mut self, address: u64, inst: Inst, holding: Holding, tables: &Tables) -> Vec<u64> {
        let walk = self.walk;
        let through = self.decode(address, inst).and_then(|decoded| Some(decoded.operands.first()?.0));
        let is_own = matches!(through, Some(Operand::Reg(Reg::General(register, ..))) if holding.sums >> register & 1 == 1);
        if is_own {
            return self.places_of(tables.own.iter(), address);
        }
        let base = self.base_before(address, through);
        let named = self.table_before(address, base);
        if let Some(table) = tables.others.iter().find(|table| named == Some(table.input)) {
            return self.places_of(std::iter::once(table), address);
        }
        self.prover.targets_of(walk, address).filter(|known| known.is_table).map_or_else(Vec::new, |known| known.places)
    }

    /// Where a jump leads by some tables.
    fn places_of<'t>(&mut self, tables: impl Iterator<Item = &'t TableReference>, address: u64) -> Vec<u64> {
        let mut all = Vec::new();
        for &table in tables {
            let known = self.places.entry((table.input, address));
            all.extend(known.or_insert_with(|| certain_targets(self.walk, table, address)).iter().copied());
        }
        all
    }

    /// The register that is added to an entry right before a jump.
    fn base_before(&mut self, mut address: u64, through: Option<Operand>) -> Option<u8> {
        for _ in 0..BEFORE_MAX {
            let (at, inst) = instruction_before(self.walk, address)?;
            if !matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::Nop) {
                return None;
            }
            let decoded = self.decode(at, inst)?;
            if decoded.operands.first().is_some_and(|first| Some(first.0) == through) {
                return match *decoded.operands {
                    [(_, 64), (Operand::Reg(Reg::General(base, 64, _)), _)] if decoded.name == "add" => Some(base),
                    _ => None,
                };
            }
            address = at;
        }
        None
    }

    /// The data that an instruction right before a jump names, by the register that is added to an entry if that is known.
    fn table_before(&mut self, mut address: u64, base: Option<u8>) -> Option<u64> {
        for _ in 0..BEFORE_MAX {
            let (at, inst) = instruction_before(self.walk, address)?;
            match inst.kind {
                Kind::Lea if inst.disp != 0 && (base.is_none() || self.made(at) == base) => {
                    return Some(self.walk.input.operand(at, inst));
                }
                Kind::Plain | Kind::Lea | Kind::Nop => address = at,
                _ => return None,
            }
        }
        None
    }

    /// A jump to what has a frame description of its own, and the frame of a function's entry, is a call.
    fn jump(&self, at: At, holding: Holding, search: &mut Search) {
        if !self.walk.input.begins_function(at.0) {
            search.come(at, holding);
        }
    }

    /// What is held behind an instruction, and whether it is another use.
    fn step(&mut self, at: u64, inst: Inst, mut holding: Holding, search: &mut Search) -> (Holding, bool) {
        match inst.kind {
            Kind::Nop | Kind::Jump | Kind::Branch | Kind::EndBranch | Kind::Return | Kind::Stop | Kind::Trap => {
                return (holding, false);
            }
            Kind::Call if !holding.is_empty() => {
                let mut is_other = false;
                if let Some(followed) = self.prover.followed(self.walk, true, at) {
                    let side = self.walk.input;
                    let is_function = !followed.returns && side.begins_function(side.target(at, inst));
                    for (at, decoded) in &followed.insts {
                        let read = if is_function { holding.without_arguments() } else { holding };
                        is_other |= self.step_decoded(*at, decoded, read, search).1;
                        holding = self.step_decoded(*at, decoded, holding, search).0;
                    }
                    is_other |= followed.is_unknown;
                    if followed.returns {
                        return (holding, is_other);
                    }
                }
                let has_frame = self.walk.input.unwind.fde_at(self.walk.input.target(at, inst)).is_some();
                holding.registers &= !if has_frame { LOST } else { RETURNED };
                // What the callee read for its caller, as outlined code does.
                holding.entries = !holding.registers;
                holding.loaded &= !LOST;
                return (holding, is_other);
            }
            Kind::Call => return (holding, false),
            _ => {}
        }
        let Some(decoded) = self.decode(at, inst) else {
            let bytes = self.walk.input.code.bytes(at, inst);
            let is_read = Shape::of(bytes).may_read(bytes).into_iter().flatten().any(|register| holding.has(register));
            return (holding, is_read);
        };
        self.step_decoded(at, &decoded, holding, search)
    }

    /// The same of an instruction that is not one of these.
    fn step_decoded(&mut self, at: u64, decoded: &Decoded, mut holding: Holding, search: &mut Search) -> (Holding, bool) {
        let inst = decoded.inst;
        if let Some(moved) = moved(decoded, holding, search) {
            return moved.map_or((holding, true), |holding| (holding, false));
        }
        let loaded = self.loaded_by_name(at, inst, decoded, &search.copies).or_else(|| entry_loaded(decoded, holding));
        let is_sum = adds_entry(decoded, holding, &search.entry_slots);
        let (held, mut is_other) = (holding, false);
        for register in (0..16).filter(|&register| held.has(register)) {
            match use_of(decoded, register, false) {
                Use::Reads if may_replace(decoded, register) => holding.registers &= !(1 << register),
                Use::Reads if loaded.is_none() && !is_sum && reads_whole(decoded, register) => is_other = true,
                Use::Reads if writes_unnamed(decoded, register) => holding.registers &= !(1 << register),
                Use::Reads | Use::Passes => {}
                Use::Writes | Use::WritesLow => holding.registers &= !(1 << register),
            }
        }
        if let Some((Operand::Reg(Reg::General(written, ..)), _)) = decoded.operands.first()
            && !ONLY_READ.contains(&&*decoded.name)
            && !matches!(inst.kind, Kind::IndirectJump | Kind::IndirectCall)
        {
            let extended = decoded.name == "movsxd"
                && matches!(decoded.operands.get(1), Some(&(Operand::Reg(Reg::General(from, ..)), _)) if holding.entries >> from & 1 == 1);
            holding.set(*written, false);
            let is_entry = u16::from(loaded == Some(*written) || extended) << written;
            holding.entries |= is_entry;
            holding.loaded |= is_entry;
            holding.sums |= u16::from(is_sum) << written;
        }
        if decoded.name == "cdqe" && holding.has(0) {
            holding.registers &= !1;
        }
        if inst.kind == Kind::IndirectCall {
            holding.registers &= !LOST;
            holding.loaded &= !LOST;
        }
        (holding, is_other)
    }
}

/// What is held behind an instruction that only moves all of something; the inner `None` if it goes where it is not followed.
fn moved(decoded: &Decoded, mut holding: Holding, search: &mut Search) -> Option<Option<Holding>> {
    let general = |operand: Operand| match operand {
        Operand::Reg(Reg::General(register, 64, _)) => Some(register),
        _ => None,
    };
    match (&*decoded.name, &*decoded.operands) {
        ("push", &[(operand, _)]) => {
            let is_held = general(operand).map(|register| holding.has(register))?;
            holding.slots |= if is_held { PUSHED } else { 0 };
        }
        ("pop", &[(operand, _)]) => holding.set(general(operand)?, holding.slots & PUSHED != 0),
        ("mov", &[(to, 64), (from, 64)]) => match (to, from) {
            (Operand::Reg(_), Operand::Reg(_)) => {
                let (to, from) = (general(to)?, general(from)?);
                holding.copy(to, from);
            }
            (Operand::Reg(_), Operand::Memory(memory)) => {
                let slot = search.slot(slot_of(&memory)?);
                holding.set(general(to)?, slot.is_some_and(|slot| holding.slots >> slot & 1 == 1));
            }
            (Operand::Memory(memory), Operand::Reg(_)) => {
                let (place, from) = (slot_of(&memory)?, general(from)?);
                let is_held = holding.has(from);
                if holding.loaded >> from & 1 == 1 {
                    search.put_entry(place);
                }
                let slot = match search.slot(place) {
                    None if is_held && search.slots.len() == SLOTS_MAX => return Some(None),
                    None if is_held => {
                        search.slots.push(place);
                        search.slots.len() - 1
                    }
                    None => return Some(Some(holding)),
                    Some(slot) => slot,
                };
                holding.slots = holding.slots & !(1 << slot) | u64::from(is_held) << slot;
            }
            _ => return None,
        },
        _ => return None,
    }
    Some(Some(holding))
}

fn slot_of(memory: &Memory) -> Option<(u8, u64)> {
    match (memory.base, memory.index, memory.segment) {
        (Some(Reg::General(base, 64, _)), None, 0) if STACK.contains(&base) => Some((base, memory.displacement)),
        _ => None,
    }
}

/// The register into which an entry is loaded by the table's address, and an index.
fn entry_loaded(decoded: &Decoded, holding: Holding) -> Option<u8> {
    let [(Operand::Reg(Reg::General(to, ..)), _), (Operand::Memory(memory), 32)] = *decoded.operands else { return None };
    let is_held = |register: Option<Reg>| matches!(register, Some(Reg::General(register, 64, _)) if holding.has(register));
    let is_indexed = match (is_held(memory.base), is_held(memory.index)) {
        (true, _) => memory.index.is_some() && matches!(memory.scale, 1 | 4),
        (false, true) => memory.base.is_some() && memory.scale == 1,
        (false, false) => false,
    };
    (matches!(&*decoded.name, "mov" | "movsxd") && is_indexed && memory.segment == 0).then_some(to)
}

/// Whether an instruction adds an entry and the table's address.
fn adds_entry(decoded: &Decoded, holding: Holding, entry_slots: &FxHashSet<(u8, u64)>) -> bool {
    let is_pair = |one: u8, other: u8| {
        let is_entry = |register: u8| holding.entries >> register & 1 == 1;
        holding.has(one) && is_entry(other) || holding.has(other) && is_entry(one)
    };
    match (&*decoded.name, &*decoded.operands) {
        ("add", &[(Operand::Reg(Reg::General(one, 64, _)), _), (Operand::Reg(Reg::General(other, 64, _)), _)]) => {
            is_pair(one, other)
        }
        // Where registers are few, an entry waits in a slot.
        ("add", &[(Operand::Reg(Reg::General(one, 64, _)), _), (Operand::Memory(memory), _)]) => {
            holding.has(one) && slot_of(&memory).is_some_and(|place| entry_slots.contains(&place))
        }
        ("lea", &[_, (Operand::Memory(Memory { base, index, scale: 1, displacement: 0, .. }), _)]) => match (base, index) {
            (Some(Reg::General(one, 64, _)), Some(Reg::General(other, 64, _))) => is_pair(one, other),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a conditional move puts something else into a register. If it does not, what is there stays, which is not the table's address where anything is made of it: a compiler has
/// the register for something else by then, and a way on which that was not made is none that the program takes.
fn may_replace(decoded: &Decoded, register: u8) -> bool {
    let general = |index: usize| match decoded.operands.get(index) {
        Some(&(Operand::Reg(Reg::General(number, ..)), _)) => Some(number),
        _ => None,
    };
    decoded.name.starts_with("cmov") && general(0) == Some(register) && general(1) != Some(register)
}

/// Whether an instruction writes a register that it does not name.
fn writes_unnamed(decoded: &Decoded, register: u8) -> bool {
    let is_product = matches!(&*decoded.name, "mul" | "imul" | "div" | "idiv") && decoded.operands.len() == 1;
    is_product && matches!(register, 0 | 2)
        || decoded.writes.iter().any(|&found| matches!(found, Reg::General(number, ..) if number == register))
}

/// Whether all of a register is an operand, or memory is named by it; what forgets it reads nothing.
fn reads_whole(decoded: &Decoded, register: u8) -> bool {
    let is_it = |found: Reg| matches!(found, Reg::General(number, 64, _) if number == register);
    let operand = |operand: &Operand| match *operand {
        Operand::Reg(found) => is_it(found),
        Operand::Memory(memory) => [memory.base, memory.index].into_iter().flatten().any(is_it),
        Operand::Immediate(_) => false,
    };
    let forgets = match &*decoded.operands {
        [(one, _), (other, _)] if one == other => matches!(&*decoded.name, "xor" | "sub" | "sbb" | "test"),
        [_, (Operand::Immediate(0), _)] => decoded.name == "and",
        [_, (Operand::Immediate(u64::MAX), _)] => decoded.name == "or",
        _ => false,
    };
    // Of the first operand these only write all, or what is left of it is used nowhere.
    let only_writes = ONLY_WRITTEN.contains(&&*decoded.name)
        || decoded.name.contains("cvt")
        || decoded.name.starts_with("kmov")
        || is_vector_move(&decoded.name)
        || decoded.computes_on_vectors();
    // `mulx` has two results, and a factor that no operand names.
    let is_product = decoded.name == "mulx";
    let first =
        if is_product { 2 } else { usize::from(only_writes && matches!(decoded.operands.first(), Some((Operand::Reg(_), _)))) };
    is_product && register == PRODUCT || !forgets && decoded.operands.iter().skip(first).any(|(found, _)| operand(found))
}
