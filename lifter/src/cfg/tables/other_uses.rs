//! Tables by whose address code reads other things too.
//!
//! **Problem.** Hand-written code may have constants beside a table and reach them by the address that is in a register already. Where the instruction that makes the address is made to name a copy of the
//! table, it reads what lies beside the copy.
//!
//! **Method.** From the instructions that make the address the search goes forward over the cluster's graph, by the registers and the slots of the frame that hold it. What the jumps through the table were
//! understood by, moves, spills and reloads are the table's own uses; any other read is another use. Calls of code without an unwind entry, which may keep to no convention,
//! are followed into it up to the next call. Other calls read no register that holds a table by chance.
//!
//! An instruction that names an entry of the table by an address of its own (`movslq table+8(%rip), %rdx`, where a compiler knows which entry it is) reads the old table, whatever the others are made to name. That is another use too.
//!
//! **Terminates**: what holds the address in front of a block only grows, up to 16 registers and [`SLOTS_MAX`] slots.

use std::sync::{Mutex, PoisonError};

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use rustc_hash::FxHashMap;

use crate::address::Va;
use crate::cfg::body::{Body, RegisterMask, general};
use crate::cfg::tables::{Table, TableContext, names_address};
use crate::discover::units::unit_at;
use crate::x86::{Flow, decode_bytes, flow_of, is_nop};

/// Slots of the frame that hold one table's address, at most; where there are more, all counts as another use.
const SLOTS_MAX: usize = 63;
/// `rax` and `rdx`: what calls return.
const RETURNED: RegisterMask = 1 | 1 << 2;

/// Where a table's address is.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Holding {
    registers: RegisterMask,
    /// By number in [`Search::slots`].
    slots: u64,
}

impl Holding {
    fn is_empty(self) -> bool {
        self == Self::default()
    }

    fn union(self, other: Self) -> Self {
        Self { registers: self.registers | other.registers, slots: self.slots | other.slots }
    }
}

/// In [`Holding::slots`]: something that was pushed.
const PUSHED: u64 = 1 << SLOTS_MAX;

struct Search<'s> {
    context: &'s TableContext<'s>,
    body: &'s Body,
    table: &'s Table,
    slots: Vec<(Register, u64)>,
}

/// What an instruction does with a table's address.
enum Use {
    Own(Holding),
    Other,
}

impl TableContext<'_> {
    /// Whether a table's address is used for anything but the jumps through the table.
    pub(super) fn has_other_uses(&self, body: &Body, table: &Table) -> bool {
        let mut search = Search { context: self, body, table, slots: Vec::new() };
        table.raw.entry_size == 4 && (search.is_any() || search.names_entry())
    }
}

impl Search<'_> {
    fn is_any(&mut self) -> bool {
        let mut held: FxHashMap<usize, Holding> = FxHashMap::default();
        let named = self.table.uses.iter().filter(|&&index| self.makes_address(index));
        let mut work: Vec<usize> = named.map(|&index| self.body.block_of(index)).collect();
        while let Some(block) = work.pop() {
            let mut holding = held.get(&block).copied().unwrap_or_default();
            let range = &self.body.blocks[block];
            for index in range.first as usize..range.end as usize {
                holding = match self.step(index, holding) {
                    Use::Own(holding) => holding,
                    Use::Other => return true,
                };
            }
            for &next in self.body.successors(block) {
                flow(&mut held, &mut work, next as usize, holding);
            }
        }
        false
    }

    /// Whether a use of the table names an entry other than the first one, or what a load counts its index from.
    fn names_entry(&self) -> bool {
        let Table { raw, loads, uses, .. } = self.table;
        let is_entry = |va: Va| raw.at < va && va < raw.end() || va != raw.at && loads.iter().any(|load| load.table == va);
        let mut named = uses.iter().filter_map(|&index| named_by(&self.body.instructions[index]));
        named.any(is_entry)
    }

    fn makes_address(&self, index: usize) -> bool {
        let instruction = &self.body.instructions[index];
        matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Mov)
            && instruction.op0_kind() == OpKind::Register
            && (instruction.mnemonic() == Mnemonic::Lea || instruction.op1_kind() != OpKind::Memory)
            && names_address(instruction, self.table.raw.at)
    }

    fn step(&mut self, index: usize, holding: Holding) -> Use {
        let instruction = &self.body.instructions[index];
        let Holding { mut registers, mut slots } = holding;
        let written = self.body.writes[index];
        if is_nop(instruction) {
            return Use::Own(holding);
        }
        if self.makes_address(index) {
            return Use::Own(Holding { registers: registers | written, slots });
        }
        if holding.is_empty() {
            return Use::Own(holding);
        }
        if let Some(registers) = self.pushed_or_popped(index, holding) {
            return Use::Own(registers);
        }
        if let Some((to, from)) = self.moved(index) {
            let is_held = match from {
                Place::Register(from) => registers >> from & 1 == 1,
                Place::Slot(from) => self.slot(from).is_some_and(|slot| slots >> slot & 1 == 1),
            };
            match to {
                Place::Register(to) => registers = registers & !(1 << to) | RegisterMask::from(is_held) << to,
                Place::Slot(to) => match self.slot(to).or_else(|| if is_held { self.add_slot(to) } else { None }) {
                    Some(slot) => slots = slots & !(1 << slot) | u64::from(is_held) << slot,
                    None if is_held => return Use::Other,
                    None => {}
                },
            }
            return Use::Own(Holding { registers, slots });
        }
        let instruction = &self.body.instructions[index];
        let is_own = self.table.uses.binary_search(&index).is_ok() || forgets_operand(instruction);
        if !is_own && reads_address(instruction, self.body.reads[index] & registers) {
            return Use::Other;
        }
        if self.body.leaves[index] {
            if self.is_read_in_callee(instruction, registers) {
                return Use::Other;
            }
            registers &= !RETURNED;
        }
        Use::Own(Holding { registers: registers & !written, slots })
    }

    /// What is held behind a push or a pop of a register: which of them belong together is not followed.
    fn pushed_or_popped(&self, index: usize, holding: Holding) -> Option<Holding> {
        let instruction = &self.body.instructions[index];
        let register = 1 << general(instruction.op0_register()).filter(|_| instruction.op0_kind() == OpKind::Register)?;
        let Holding { registers, slots } = holding;
        match instruction.mnemonic() {
            Mnemonic::Push if registers & register != 0 => Some(Holding { registers, slots: slots | PUSHED }),
            Mnemonic::Push => Some(holding),
            Mnemonic::Pop if slots & PUSHED != 0 => Some(Holding { registers: registers | register, slots }),
            Mnemonic::Pop => Some(Holding { registers: registers & !register, slots }),
            _ => None,
        }
    }

    /// What an instruction only moves, all of it.
    fn moved(&self, index: usize) -> Option<(Place, Place)> {
        let instruction = &self.body.instructions[index];
        if instruction.mnemonic() != Mnemonic::Mov {
            return None;
        }
        let place = |operand: u32| match instruction.op_kind(operand) {
            OpKind::Register if instruction.op_register(operand).is_gpr64() => {
                general(instruction.op_register(operand)).map(Place::Register)
            }
            OpKind::Memory => slot_of(instruction).map(Place::Slot),
            _ => None,
        };
        Some((place(0)?, place(1)?))
    }

    /// The number of a slot that holds the address somewhere.
    fn slot(&self, place: (Register, u64)) -> Option<usize> {
        self.slots.iter().position(|&slot| slot == place)
    }

    /// The number of one more; `None` if there are too many.
    fn add_slot(&mut self, place: (Register, u64)) -> Option<usize> {
        (self.slots.len() < SLOTS_MAX).then(|| {
            self.slots.push(place);
            self.slots.len() - 1
        })
    }

    /// Whether a callee without an unwind entry, which may keep to no convention, reads one of these registers as it finds it.
    fn is_read_in_callee(&self, call: &Instruction, registers: RegisterMask) -> bool {
        let Flow::Call(target) = flow_of(call) else { return false };
        let Some(unit) = unit_at(self.context.units, target).filter(|_| registers != 0) else { return false };
        let data = &self.context.units[unit];
        if data.fde().is_some() {
            return false;
        }
        let read = self.context.callees.read_by(target, || {
            let mut instructions = Vec::new();
            decode_bytes(self.context.image.read(data.start, data.len()).unwrap_or(&[]), data.start, &mut instructions);
            let names = crate::discover::names::Names::default();
            read_from(&Body::of(instructions, vec![target], &names, self.context.stubs), target)
        });
        read & registers != 0
    }
}

/// By callee, the registers that it reads as it finds them: many tables are held at calls of the same few functions, and to decode one is dear.
#[derive(Debug, Default)]
pub(crate) struct Callees(Mutex<FxHashMap<Va, RegisterMask>>);

impl Callees {
    fn read_by(&self, callee: Va, find: impl FnOnce() -> RegisterMask) -> RegisterMask {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known().get(&callee).copied();
        found.unwrap_or_else(|| {
            // Whoever else looks meanwhile finds the same.
            let found = find();
            known().insert(callee, found);
            found
        })
    }
}

/// The registers that code reads as it finds them, on ways of direct jumps.
fn read_from(code: &Body, start: Va) -> RegisterMask {
    let mut read = 0;
    let mut asked: FxHashMap<usize, RegisterMask> = FxHashMap::default();
    let mut work: Vec<(usize, RegisterMask)> = code.index_of(start).map(|index| (index, RegisterMask::MAX)).into_iter().collect();
    while let Some((index, registers)) = work.pop() {
        let known = asked.entry(index).or_default();
        if *known & registers == registers || index >= code.num_own {
            continue;
        }
        *known |= registers;
        let instruction = &code.instructions[index];
        let is_save = instruction.mnemonic() == Mnemonic::Push || is_nop(instruction) || forgets_operand(instruction);
        if !is_save {
            read |= read_whole(instruction) & code.reads[index] & registers;
        }
        let left = registers & !code.writes[index] & !read;
        let next = (index + 1, left);
        let at = |target: Va| code.index_of(target).map(|index| (index, left));
        match flow_of(instruction) {
            _ if left == 0 => {}
            Flow::Next => work.push(next),
            Flow::Jump(target) => work.extend(at(target)),
            Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) => {
                work.extend([at(target), Some(next)].into_iter().flatten())
            }
            _ => {}
        }
    }
    read
}

/// Where a value is moved from or to.
enum Place {
    Register(u8),
    /// By the register that it counts from.
    Slot((Register, u64)),
}

fn slot_of(instruction: &Instruction) -> Option<(Register, u64)> {
    let base = instruction.memory_base();
    let is_frame = matches!(base, Register::RSP | Register::RBP) && instruction.memory_index() == Register::None;
    is_frame.then(|| (base, instruction.memory_displacement64()))
}

/// Whether an instruction reads one of these registers whole, or memory by it: parts of a register are no address.
fn reads_address(instruction: &Instruction, registers: RegisterMask) -> bool {
    read_whole(instruction) & registers != 0
}

/// The registers that an instruction has for operands whole, or addresses memory by.
fn read_whole(instruction: &Instruction) -> RegisterMask {
    let whole = |register: Register| general(register).filter(|_| register.is_gpr64()).map_or(0, |number| 1 << number);
    let operands = (0..instruction.op_count()).filter(|&operand| instruction.op_kind(operand) == OpKind::Register);
    let named = operands.fold(0, |all, operand| all | whole(instruction.op_register(operand)));
    named | whole(instruction.memory_base()) | whole(instruction.memory_index())
}

/// Whether the result does not depend on what the operand was, or nothing but flags is made of it that tell zero.
fn forgets_operand(instruction: &Instruction) -> bool {
    let is_same = instruction.op_count() == 2
        && instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    let is_immediate = |value: i64| {
        instruction.op_count() == 2
            && instruction.op0_kind() == OpKind::Register
            && instruction.op1_kind() != OpKind::Register
            && instruction.op1_kind() != OpKind::Memory
            && instruction.immediate(1).cast_signed() == value
    };
    match instruction.mnemonic() {
        Mnemonic::Xor | Mnemonic::Sub | Mnemonic::Sbb | Mnemonic::Test => is_same,
        Mnemonic::Or => is_immediate(-1),
        Mnemonic::And => is_immediate(0),
        _ => false,
    }
}

fn flow(held: &mut FxHashMap<usize, Holding>, work: &mut Vec<usize>, block: usize, holding: Holding) {
    if holding.is_empty() {
        return;
    }
    let known = held.entry(block).or_default();
    let union = known.union(holding);
    if union != *known {
        *known = union;
        work.push(block);
    }
}

/// The address that a memory operand without registers names, or a `lea`.
fn named_by(instruction: &Instruction) -> Option<Va> {
    if instruction.is_ip_rel_memory_operand() {
        return Some(Va(instruction.ip_rel_memory_address()));
    }
    let has_memory = (0..instruction.op_count()).any(|operand| instruction.op_kind(operand) == OpKind::Memory);
    let is_bare = has_memory && instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    is_bare.then(|| Va(instruction.memory_displacement64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_callee_reads_is_looked_for_once() {
        let callees = Callees::default();
        let mut num_looked = 0;
        for _ in 0..3 {
            let mut find = |read| {
                num_looked += 1;
                read
            };
            assert_eq!(callees.read_by(Va(0x1000), || find(1 << 3)), 1 << 3);
            assert_eq!(callees.read_by(Va(0x2000), || find(0)), 0);
        }
        assert_eq!(num_looked, 2);
    }
}
