//! What a register may hold at an instruction, as far as indirect jumps need to know.
//!
//! **Method.** A backward search over the control-flow graph ([`definitions`]) finds *all* definitions of a location (a register, or a spill slot of the
//! same frame) that reach a point; each is evaluated symbolically, and the results are joined. A value that depends on itself
//! contributes nothing (the least solution), so a loop that carries a table's base around is no obstacle.
//!
//! **The lattice.** `Nothing` below all, `Other` above all; in between an address, an entry of a table, an address plus such
//! an entry, and `Pointer`: a word that is complete as it is (loaded as 64 bits, passed in, returned), which in the closed set of a
//! position-independent file can only be an address that something else names. A word that is added to an unknown base is `Relative`: what
//! a table of differences whose place is not known (a relative vtable) makes.
//!
//! Terminates: a search visits each (block, location) once, definitions nest at most `MAX_DEPTH` deep, and a budget bounds the total.

mod definitions;
mod instructions;

use std::collections::HashSet;
use std::ops::Range;

use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use rustc_hash::FxHashSet;

use crate::address::Va;
use crate::cfg::body::{Body, general, sets_frame_pointer};
use crate::cfg::values::definitions::{Definition, Location};
pub(crate) use crate::cfg::values::definitions::{Seen, VISITED_MAX};
pub(crate) use crate::cfg::values::instructions::stack_step;
use crate::x86::{Flow, flow_of, has_segment_base, is_conditional_move};

const MAX_DEPTH: u32 = 16;
const RAX: u8 = 0;
const RSP: u8 = 4;
const RBP: u8 = 5;
/// `rbx`, `rbp`, `r12` to `r15`.
const CALLEE_SAVED: u16 = 1 << 3 | 1 << 5 | 0xf000;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Nothing,
    Address(Va),
    /// A 32-bit word of a table at this address, sign-extended to 64 bits if `is_extended`.
    Entry32 {
        table: Va,
        is_extended: bool,
    },
    /// A 64-bit word of a table at this address.
    Entry64 {
        table: Va,
    },
    /// `base` plus a word of `table`.
    Sum {
        base: Va,
        table: Va,
    },
    /// `base` plus words of different tables, or of one at a place that depends on more than an index.
    Several {
        base: Va,
    },
    /// An address in code plus something that is not known.
    Near {
        base: Va,
        /// What is added is a word of memory.
        is_by_word: bool,
    },
    /// A 32-bit word of memory that no constant names.
    Word {
        is_extended: bool,
        /// Which word depends on an index: an entry of a table rather than a member of an object.
        is_indexed: bool,
    },
    /// Something unknown plus such a word.
    Relative {
        is_indexed: bool,
    },
    Pointer,
    Other,
}

impl Value {
    /// Whether this is a code address as it stands, which something else names too.
    fn is_complete(self, is_code: &dyn Fn(Va) -> bool) -> bool {
        match self {
            Value::Pointer | Value::Entry64 { .. } => true,
            Value::Address(va) => is_code(va),
            _ => false,
        }
    }
    fn join(self, other: Value, is_code: &dyn Fn(Va) -> bool) -> Value {
        use Value::*;
        match (self, other) {
            (Nothing, v) | (v, Nothing) => v,
            (a, b) if a == b => a,
            (Sum { base, .. } | Several { base }, Sum { base: other, .. } | Several { base: other }) if base == other => {
                Several { base }
            }
            (a, b) if a.is_complete(is_code) && b.is_complete(is_code) => Pointer,
            _ => Other,
        }
    }
}

/// What numbers in instructions are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// Position-independent code has no addresses among them.
    NoAddresses,
    /// At a fixed address any may be one.
    MayBeAddresses,
    /// There too, but relocations say which: what leads to code is one.
    Relocated,
}

/// One query and what it saw.
pub(crate) struct Evaluator<'b> {
    body: &'b Body,
    is_code: &'b dyn Fn(Va) -> bool,
    /// Whether a table of differences may begin at an address.
    is_table: &'b dyn Fn(Va) -> bool,
    numbers: Numbers,
    steps: u32,
    seen: &'b mut Seen,
    in_progress: Vec<(usize, Location)>,
    /// The instructions that took part: loads, adds, copies and the `lea`s themselves.
    pub(crate) trace: FxHashSet<usize>,
    /// Whether a definition is what another cluster's branch or jump brought along.
    pub(crate) is_led_in: bool,
    /// The loads of entries, each once.
    pub(crate) loads: Vec<Load>,
    /// The instructions in whose blocks definitions were looked for: where nothing arrives from elsewhere than before, the answer stays.
    pub(crate) visited: Vec<Range<u32>>,
}

/// A load of a table's entry.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) at: usize,
    pub(crate) table: Va,
    /// Holds which entry, in units of `unit` bytes.
    pub(crate) index: Register,
    pub(crate) unit: u32,
}

impl<'b> Evaluator<'b> {
    pub(crate) fn new(
        body: &'b Body,
        seen: &'b mut Seen,
        is_code: &'b dyn Fn(Va) -> bool,
        is_table: &'b dyn Fn(Va) -> bool,
        numbers: Numbers,
    ) -> Self {
        Self {
            body,
            is_code,
            is_table,
            numbers,
            steps: 0,
            seen,
            in_progress: Vec::new(),
            trace: HashSet::default(),
            is_led_in: false,
            loads: Vec::new(),
            visited: Vec::new(),
        }
    }

    /// Where an indirect jump or call goes.
    pub(crate) fn branch_target(&mut self, index: usize) -> Value {
        let instruction = &self.body.instructions[index];
        match instruction.op0_kind() {
            OpKind::Register => self.register(instruction.op0_register(), index),
            _ => self.load64(instruction, index),
        }
    }

    pub(crate) fn register(&mut self, register: Register, before: usize) -> Value {
        match general(register) {
            Some(number) if register.size() == 8 || register.size() == 4 => self.location(Location::Register(number), before),
            _ => Value::Other,
        }
    }

    fn location(&mut self, location: Location, before: usize) -> Value {
        if self.in_progress.len() as u32 > MAX_DEPTH {
            return Value::Other;
        }
        let mut value = Value::Nothing;
        for (definition, location) in self.reaching(location, before) {
            let one = match definition {
                Definition::At(index) => self.definition(index, location),
                // What a callee-saved register holds on entry is the caller's: compiled code saves it and never looks at it.
                Definition::Entry if matches!(location, Location::Register(n) if CALLEE_SAVED >> n & 1 == 1) => Value::Nothing,
                Definition::Entry | Definition::Foreign => Value::Pointer,
                Definition::Lost => Value::Other,
            };
            value = value.join(one, self.is_code);
            if value == Value::Other {
                break;
            }
        }
        value
    }

    fn definition(&mut self, index: usize, location: Location) -> Value {
        if self.in_progress.contains(&(index, location)) {
            return Value::Nothing;
        }
        self.in_progress.push((index, location));
        self.trace.insert(index);
        let value = match location {
            Location::Slot { .. } => self.stored(index),
            Location::Register(_) => self.written(index),
        };
        self.in_progress.pop();
        value
    }

    /// What a store to a spill slot stores.
    fn stored(&mut self, index: usize) -> Value {
        let instruction = &self.body.instructions[index];
        match (instruction.mnemonic(), instruction.op_count()) {
            (Mnemonic::Mov, 2) if instruction.op1_kind() == OpKind::Register => self.register(instruction.op1_register(), index),
            (Mnemonic::Push, 1) if instruction.op0_kind() == OpKind::Register => self.register(instruction.op0_register(), index),
            _ => Value::Other,
        }
    }

    /// What an instruction leaves in the register that it writes.
    fn written(&mut self, index: usize) -> Value {
        let instruction = &self.body.instructions[index];
        if matches!(flow_of(instruction), Flow::Call(_) | Flow::IndirectCall) {
            return Value::Pointer;
        }
        let is_wide = instruction.op0_kind() == OpKind::Register && instruction.op0_register().size() == 8;
        match instruction.mnemonic() {
            // Zero is no address: whoever jumps there crashes, before and after.
            Mnemonic::Xor if instruction.op0_register() == instruction.op1_register() => Value::Nothing,
            Mnemonic::Lea if is_wide => self.lea(instruction, index),
            Mnemonic::Pop if is_wide => self.location(Location::Slot { base: RSP, disp: 0 }, index),
            // A pointer that was stored mangled (`setjmp`, `atexit`) is complete again.
            Mnemonic::Ror | Mnemonic::Rol if is_wide => complete(self.register(instruction.op0_register(), index)),
            Mnemonic::Xor if is_wide && instruction.op1_kind() == OpKind::Memory => {
                complete(self.register(instruction.op0_register(), index))
            }
            Mnemonic::Mov => self.mov(instruction, index, is_wide),
            Mnemonic::Movsxd if is_wide => match instruction.op1_kind() {
                OpKind::Memory => self.load32(instruction, index, true),
                _ => extended(self.register(instruction.op1_register(), index)),
            },
            Mnemonic::Cdqe => extended(self.location(Location::Register(RAX), index)),
            Mnemonic::Add if is_wide => {
                let left = self.register(instruction.op0_register(), index);
                if instruction.op1_kind() == OpKind::Immediate32to64 {
                    return self.offset(left, instruction.immediate(1));
                }
                let right = self.operand1(instruction, index);
                let other = if instruction.op1_kind() == OpKind::Register { instruction.op1_register() } else { Register::None };
                self.sum(left, right, [instruction.op0_register(), other], index)
            }
            Mnemonic::Or if is_wide && instruction.op1_kind() == OpKind::Register => {
                let left = self.register(instruction.op0_register(), index);
                hardened(left, self.operand1(instruction, index))
            }
            name if is_wide && is_conditional_move(name) => {
                let kept = self.register(instruction.op0_register(), index);
                let moved = self.operand1(instruction, index);
                kept.join(moved, self.is_code)
            }
            _ => Value::Other,
        }
    }

    fn operand1(&mut self, instruction: &Instruction, index: usize) -> Value {
        match instruction.op1_kind() {
            OpKind::Register => self.register(instruction.op1_register(), index),
            OpKind::Memory => self.load64(instruction, index),
            _ => Value::Other,
        }
    }

    fn mov(&mut self, instruction: &Instruction, index: usize, is_wide: bool) -> Value {
        match instruction.op1_kind() {
            OpKind::Register if is_wide => self.register(instruction.op1_register(), index),
            OpKind::Register if instruction.op0_register().size() == 4 => {
                match self.register(instruction.op1_register(), index) {
                    v @ (Value::Entry32 { is_extended: false, .. } | Value::Word { is_extended: false, .. }) => v,
                    Value::Address(va) if self.numbers != Numbers::NoAddresses => Value::Address(va),
                    Value::Nothing => Value::Nothing,
                    _ => Value::Other,
                }
            }
            OpKind::Memory if is_wide => self.load64(instruction, index),
            OpKind::Memory if instruction.op0_register().size() == 4 => self.load32(instruction, index, false),
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 if instruction.immediate(1) == 0 => {
                Value::Nothing
            }
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 if self.numbers != Numbers::NoAddresses => {
                Value::Address(Va(instruction.immediate(1)))
            }
            _ => Value::Other,
        }
    }

    fn lea(&mut self, instruction: &Instruction, index: usize) -> Value {
        if instruction.is_ip_rel_memory_operand() {
            return Value::Address(Va(instruction.ip_rel_memory_address()));
        }
        let (base, second) = (instruction.memory_base(), instruction.memory_index());
        let disp = instruction.memory_displacement64();
        if base == Register::None || base.size() != 8 {
            return Value::Other;
        }
        let base = self.register(base, index);
        if second == Register::None {
            return match base {
                Value::Address(va) => Value::Address(va + disp),
                v if disp == 0 => v,
                v => self.offset(v, disp),
            };
        }
        if instruction.memory_index_scale() != 1 {
            return Value::Other;
        }
        let registers = [instruction.memory_base(), second];
        let second = self.register(second, index);
        let sum = self.sum(base, second, registers, index);
        if disp == 0 { sum } else { self.offset(sum, disp) }
    }

    /// What a register and a number are that may be an address.
    fn offset(&self, value: Value, number: u64) -> Value {
        // What a word is counted from is not known with the number either: it is a member of a record, say.
        if let Value::Relative { .. } = value {
            return value;
        }
        match sum(value, Value::Address(Va(number)), self.is_code) {
            _ if self.numbers != Numbers::Relocated || !(self.is_code)(Va(number)) => Value::Other,
            counted @ (Value::Near { is_by_word: true, .. } | Value::Sum { .. }) => counted,
            _ => Value::Other,
        }
    }

    /// What the sum of two registers is.
    fn sum(&mut self, left: Value, right: Value, registers: [Register; 2], index: usize) -> Value {
        let value = sum(left, right, self.is_code);
        match (left, right) {
            // Paths that the graph has but execution never takes may bring something else than the table.
            (Value::Entry32 { is_extended: true, table }, _) if self.only_table(registers[1], index) == Some(table) => {
                Value::Sum { base: table, table }
            }
            (_, Value::Entry32 { is_extended: true, table }) if self.only_table(registers[0], index) == Some(table) => {
                Value::Sum { base: table, table }
            }
            // Which of several tables is chosen by something else, but all of their words count from here.
            (Value::Address(base), Value::Word { is_extended: true, .. })
            | (Value::Word { is_extended: true, .. }, Value::Address(base))
                if (self.is_table)(base) =>
            {
                Value::Several { base }
            }
            _ => value,
        }
    }

    /// The one address among the definitions of a register at which a table may begin. Where the register is the base of an indexed load whose
    /// result is added to it again, every other definition is on a path that does not come here (behind a call that never returns,
    /// say): nothing but a table can be such a base. `None` if there are more tables, or a definition that can't be followed.
    fn only_table(&mut self, register: Register, index: usize) -> Option<Va> {
        let mut pending = vec![(Location::Register(general(register).filter(|_| register.size() == 8)?), index)];
        let mut seen: FxHashSet<(usize, Location)> = HashSet::default();
        let mut tables: Vec<Va> = Vec::new();
        while let Some((location, before)) = pending.pop() {
            for (definition, location) in self.reaching(location, before) {
                match definition {
                    Definition::Lost => return None,
                    Definition::At(at) if seen.insert((at, location)) => {
                        let instruction = &self.body.instructions[at];
                        if let Some((source, is_address)) = self.copied(instruction, at, location) {
                            self.trace.insert(at);
                            match source {
                                Some(source) => pending.push((source, at)),
                                None => tables.extend(is_address.filter(|&va| (self.is_table)(va))),
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        tables.sort();
        tables.dedup();
        match tables.as_slice() {
            &[table] => Some(table),
            _ => None,
        }
    }

    /// What a definition copies: another location, or an address; `None` if it computes something.
    fn copied(&mut self, instruction: &Instruction, at: usize, location: Location) -> Option<(Option<Location>, Option<Va>)> {
        let register = |register: Register| general(register).filter(|_| register.size() == 8).map(Location::Register);
        let is_store = matches!(location, Location::Slot { .. });
        match (instruction.mnemonic(), instruction.op_count()) {
            (Mnemonic::Lea, _) if instruction.is_ip_rel_memory_operand() => {
                Some((None, Some(Va(instruction.ip_rel_memory_address()))))
            }
            (Mnemonic::Push, _) if is_store => Some((Some(register(instruction.op0_register())?), None)),
            (Mnemonic::Pop, _) if !is_store => Some((Some(Location::Slot { base: RSP, disp: 0 }), None)),
            (Mnemonic::Mov, 2) if instruction.op1_kind() == OpKind::Register => {
                Some((Some(register(instruction.op1_register())?), None))
            }
            (Mnemonic::Mov, 2) if instruction.op1_kind() == OpKind::Memory => {
                Some((Some(self.frame_slot(instruction, at)?), None))
            }
            _ => None,
        }
    }

    /// The slot that a memory operand names, if it is one of the frame.
    fn frame_slot(&mut self, instruction: &Instruction, index: usize) -> Option<Location> {
        let base = instruction.memory_base();
        let is_frame_base = base == Register::RSP || base == Register::RBP && self.body.has_frame_pointer;
        let is_frame = is_frame_base && instruction.memory_index() == Register::None;
        let is_frame = is_frame && (base == Register::RSP || self.holds_frame_pointer(index));
        is_frame.then(|| Location::Slot { base: base.number() as u8, disp: instruction.memory_displacement64() as i64 })
    }

    /// Whether `rbp` may point into the frame: in a function that also uses it for other things.
    fn holds_frame_pointer(&mut self, index: usize) -> bool {
        let definitions = self.reaching(Location::Register(RBP), index);
        definitions.iter().any(|(definition, _)| match definition {
            Definition::At(at) => sets_frame_pointer(&self.body.instructions[*at]),
            Definition::Lost => true,
            Definition::Entry | Definition::Foreign => false,
        })
    }

    fn load64(&mut self, instruction: &Instruction, index: usize) -> Value {
        if has_segment_base(instruction) {
            return Value::Pointer;
        }
        if let Some(slot) = self.frame_slot(instruction, index) {
            // Where nothing stores, it is an argument: the search has met the entry.
            return self.location(slot, index);
        }
        match self.table_address(instruction, index, 8) {
            Some(table) => Value::Entry64 { table },
            None => Value::Pointer,
        }
    }

    fn load32(&mut self, instruction: &Instruction, index: usize, is_extended: bool) -> Value {
        if let Some(slot) = self.frame_slot(instruction, index) {
            let value = self.location(slot, index);
            return if is_extended { extended(value) } else { value };
        }
        if instruction.is_ip_rel_memory_operand() {
            return Value::Entry32 { table: Va(instruction.ip_rel_memory_address()), is_extended };
        }
        match self.table_address(instruction, index, 4) {
            Some(table) => Value::Entry32 { table, is_extended },
            None => Value::Word { is_extended, is_indexed: instruction.memory_index() != Register::None },
        }
    }

    /// The address of the table that an indexed load reads: `disp(base, index, size)`, `disp(, index, size)`, or `(scaled, table)` in
    /// either order as unoptimized code has it.
    fn table_address(&mut self, instruction: &Instruction, index: usize, size: u32) -> Option<Va> {
        let (base, second) = (instruction.memory_base(), instruction.memory_index());
        let disp = instruction.memory_displacement64();
        let scale = instruction.memory_index_scale();
        if instruction.is_ip_rel_memory_operand() {
            return None;
        }
        if base == Register::None {
            let is_table = self.numbers != Numbers::NoAddresses && second != Register::None && scale == size;
            return is_table.then(|| self.note_load(index, Va(disp), second, 1));
        }
        if second == Register::None {
            // `(base)` where base is the table plus a scaled index.
            return None;
        }
        if scale == size {
            let table = self.address_in(base, index)? + disp;
            return Some(self.note_load(index, table, second, 1));
        }
        if scale != 1 {
            return None;
        }
        let trace = self.trace.clone();
        if let Some(table) = self.address_in(base, index) {
            return Some(self.note_load(index, table + disp, second, size));
        }
        self.trace = trace;
        let table = self.address_in(second, index)? + disp;
        Some(self.note_load(index, table, base, size))
    }

    fn address_in(&mut self, register: Register, index: usize) -> Option<Va> {
        match self.register(register, index) {
            Value::Address(va) => Some(va),
            _ => self.only_table(register, index),
        }
    }

    fn note_load(&mut self, at: usize, table: Va, index: Register, unit: u32) -> Va {
        let load = Load { at, table, index, unit };
        if !self.loads.contains(&load) {
            self.loads.push(load);
        }
        table
    }
}

fn extended(value: Value) -> Value {
    match value {
        Value::Entry32 { table, .. } => Value::Entry32 { table, is_extended: true },
        Value::Word { is_indexed, .. } => Value::Word { is_extended: true, is_indexed },
        Value::Nothing => Value::Nothing,
        _ => Value::Other,
    }
}

/// A rearranged word, if it was a complete one.
fn complete(value: Value) -> Value {
    match value {
        Value::Pointer | Value::Entry64 { .. } => Value::Pointer,
        Value::Nothing => Value::Nothing,
        _ => Value::Other,
    }
}

/// Where a switch goes, with all bits set if the processor only guesses that it does: what it is or-ed with is zero whenever that matters.
fn hardened(left: Value, right: Value) -> Value {
    let is_switch = |value: Value| matches!(value, Value::Sum { .. } | Value::Several { .. } | Value::Entry64 { .. });
    let is_relative = |value: Value| matches!(value, Value::Relative { .. });
    match (left, right) {
        (Value::Nothing, _) | (_, Value::Nothing) => Value::Nothing,
        _ if is_switch(left) && is_switch(right) => Value::Other,
        _ if is_switch(left) || is_relative(left) => left,
        _ if is_switch(right) || is_relative(right) => right,
        _ => Value::Other,
    }
}

fn sum(left: Value, right: Value, is_code: &dyn Fn(Va) -> bool) -> Value {
    match (left, right) {
        (Value::Address(base), Value::Entry32 { table, is_extended: true })
        | (Value::Entry32 { table, is_extended: true }, Value::Address(base)) => Value::Sum { base, table },
        (Value::Nothing, _) | (_, Value::Nothing) => Value::Nothing,
        (Value::Address(base), Value::Word { is_extended: true, .. })
        | (Value::Word { is_extended: true, .. }, Value::Address(base))
            if is_code(base) =>
        {
            Value::Near { base, is_by_word: true }
        }
        (_, Value::Word { is_extended: true, is_indexed }) | (Value::Word { is_extended: true, is_indexed }, _) => {
            Value::Relative { is_indexed }
        }
        (_, Value::Entry32 { is_extended: true, .. }) | (Value::Entry32 { is_extended: true, .. }, _) => {
            Value::Relative { is_indexed: true }
        }
        (Value::Address(base), word) | (word, Value::Address(base)) if is_code(base) => {
            Value::Near { base, is_by_word: matches!(word, Value::Entry64 { .. } | Value::Pointer) }
        }
        _ => Value::Other,
    }
}
