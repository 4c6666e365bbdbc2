//! Which registers nobody reads once a function of the input has returned, or from a call on: general ones, and vector ones from [`VECTORS`] on.
//!
//! A register that only one of the programs leaves with a certain value does no harm if it is written before it is read. Calls inside one file need not
//! follow the psABI: a caller that knows the callee's code may keep a value in a register that the callee does not write. So the code behind each call of the function is followed.
//!
//! * A call of code of this file is followed into it, and behind the call where some way through it passes the register on.
//! * A call of what the compiler could not see (through a stub, a slot, a register) reads what the psABI passes arguments in and writes all other registers that calls do not keep. But
//!   what may be a call of a descriptor of thread-local storage keeps them all, and may be any other call too; and of a file with the profiling calls, which keep all as well, nothing is claimed.
//! * A call of what puts another return address in the place of its own, as thunks for indirect branches do, counts as a read.
//! * At a return, the code behind all calls of the function in this file is followed, and of those that end in a jump to it; of callers elsewhere, the psABI says that they
//!   read `rax` and `rdx` alone. These two count as read there, unless nothing names the function but direct calls and jumps.
//! * An indirect jump through a jump table leads where that says ([`jumps`]). Any other leads to all that the jump tables of its function name and to all of the function that data point to, and may be a tail call; it
//!   counts as a read where neither is known: with a frame and without targets, in a function that computes with addresses of its own code, and in a file at a fixed address of which
//!   the linker left no relocations where numbers may be such labels ([`labels`]).
//!
//! What is one function here is said in [`bodies`].
//!
//! The search itself, which looks for several registers at once, is that of [`search`].

mod bodies;
mod jumps;
mod labels;
mod search;

use std::rc::Rc;

use rustc_hash::FxHashMap;

use super::Prover;
use super::class::{Class, effect_of, is_exclusive_or, is_vector_move, plain};
use super::decoded::{Decoded, Operand, Reg};
use crate::decode::{Inst, Kind, Shape};
use crate::walk::Walk;
use bodies::Bodies;
pub(super) use jumps::Targets;
use jumps::Ways;
use search::{Free, Place, Registers, Search};

/// Registers that calls keep, and those that return values or pass arguments.
pub(super) const KEPT: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf000;
const RETURNED: u16 = 1 | 1 << 2;
/// `rcx`.
const COUNTER: u8 = 1;
/// `rdx`.
pub(super) const PRODUCT: u8 = 2;
pub(super) const ARGUMENTS: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10;
/// What functions call first in a file that is made for profiling.
const PROFILING: [&str; 3] = ["mcount", "_mcount", "__fentry__"];
/// Instructions that write their first operand and only read the others, without the `v` of the newer encoding.
const WRITE_FIRST: [&str; 14] = [
    "mov",
    "movabs",
    "movzx",
    "movsx",
    "movsxd",
    "movd",
    "movq",
    "lea",
    "pop",
    "popcnt",
    "lzcnt",
    "tzcnt",
    "cvttsd2si",
    "cvttss2si",
];
/// The place of all of the first vector register among the registers that are asked for: an instruction that leaves its upper part writes nothing.
pub(super) const VECTORS: u8 = 16;
/// The place of its low 128 bits.
pub(super) const LOWS: u8 = 32;
/// Vector registers that bring no arguments and return nothing (psABI, figure 3.4), as places among registers: `xmm8` to `xmm15`.
pub(super) const FREE_VECTORS: std::ops::Range<u8> = VECTORS + 8..VECTORS + 16;
/// Whether a set of general registers has one; it has no vector registers.
pub(super) fn has(set: u16, register: u8) -> bool {
    register < VECTORS && set >> register & 1 == 1
}

/// What was found out so far; it is about the input alone.
#[derive(Default)]
pub(crate) struct Liveness {
    /// By what is called and a register that calls keep, whether nobody reads that.
    pub(super) kept: FxHashMap<(u64, u8), bool>,
    /// By call, what is read from behind it on.
    behind: FxHashMap<u64, Answer>,
    bodies: Option<Rc<Bodies>>,
    /// By body, where its indirect jumps lead.
    ways: FxHashMap<u32, Rc<Ways>>,
    /// By body, what is read after a return.
    answers: FxHashMap<u32, Answer>,
    /// The same from a call or an indirect jump on, by its address.
    called: FxHashMap<u64, Answer>,
    /// What is known of code from which on nobody reads a register.
    free: Free,
    /// Whether functions may begin with calls that keep all registers.
    is_profiled: Option<bool>,
}

/// Registers that were asked for, and those of them that somebody may read.
#[derive(Copy, Clone, Default)]
struct Answer {
    asked: Registers,
    read: Registers,
}

impl Answer {
    /// Whether nobody reads a register, if that was asked.
    fn is_dead(self, register: u8) -> Option<bool> {
        self.asked.has(register).then(|| !self.read.has(register))
    }
}

/// What an instruction does with a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Reads,
    Writes,
    /// The low byte alone.
    WritesLow,
    Passes,
}

impl Prover {
    /// Whether nobody reads a register after a return from the function around an address of the input.
    pub(super) fn is_dead_at_return(&mut self, walk: &Walk<'_, '_>, address: u64, register: u8) -> bool {
        let bodies = self.bodies(walk);
        let is_scratch = !has(KEPT, register);
        let Some(body) = bodies.at(walk, address).filter(|_| is_scratch) else { return false };
        if let Some(known) = self.liveness.answers.get(&body).and_then(|answer| answer.is_dead(register)) {
            return known;
        }
        let asked = asked_with(register);
        let mut search = Search::default();
        search.leave(walk, &bodies, body, asked);
        let read = self.read_from(walk, asked, search);
        self.liveness.answers.entry(body).or_default().add(asked, read, register)
    }

    /// Whether nobody reads a register from a call of the input on.
    pub(super) fn is_dead_at_call(&mut self, walk: &Walk<'_, '_>, place: u64, inst: Inst, register: u8) -> bool {
        if has(KEPT, register) {
            return false;
        }
        let Some(target) = self.own_callee(walk, place, inst) else {
            return self.is_free_for_others(walk, place, inst, register);
        };
        if let Some(known) = self.liveness.called.get(&place).and_then(|answer| answer.is_dead(register)) {
            return known;
        }
        if walk.input.drops_return_address(target) {
            return false;
        }
        let Some(body) = self.bodies(walk).at(walk, place) else { return false };
        let after = Place::open(body, place + u64::from(inst.len));
        let asked = asked_with(register);
        let mut search = Search::default();
        search.call(walk, target, (!walk.call_never_returns(place, inst)).then_some(after), asked, &Free::default());
        let read = self.read_from(walk, asked, search);
        self.liveness.called.entry(place).or_default().add(asked, read, register)
    }

    /// Whether nobody reads a register from behind a call of the input on.
    pub(crate) fn is_dead_behind_call(&mut self, walk: &Walk<'_, '_>, place: u64, register: u8) -> bool {
        if let Some(known) = self.liveness.behind.get(&place).and_then(|answer| answer.is_dead(register)) {
            return known;
        }
        let (Some(inst), Some(body)) = (walk.input.inst(place), self.bodies(walk).at(walk, place)) else { return false };
        if walk.call_never_returns(place, inst) {
            return true;
        }
        let asked = asked_with(register);
        let read = self.read_from(walk, asked, Search::from(Place::open(body, place + u64::from(inst.len)), asked));
        self.liveness.behind.entry(place).or_default().add(asked, read, register)
    }

    /// Whether nobody reads a register from an indirect jump of the input on.
    pub(super) fn is_dead_at_jump(&mut self, walk: &Walk<'_, '_>, place: u64, register: u8) -> bool {
        if has(KEPT | RETURNED, register) {
            return false;
        }
        if let Some(known) = self.liveness.called.get(&place).and_then(|answer| answer.is_dead(register)) {
            return known;
        }
        // Not all linkers describe their stubs.
        let from = match self.bodies(walk).at(walk, place) {
            Some(body) => Place::open(body, place),
            None if walk.input.slot_of_stub(place).is_some() => Place::entry(place),
            None => return false,
        };
        let asked = asked_with(register);
        let read = self.read_from(walk, asked, Search::from(from, asked));
        self.liveness.called.entry(place).or_default().add(asked, read, register)
    }

    fn bodies(&mut self, walk: &Walk<'_, '_>) -> Rc<Bodies> {
        self.liveness.bodies.get_or_insert_with(|| Rc::new(Bodies::find(walk))).clone()
    }

    /// The code of this file that a call enters; its return is followed to all of its callers.
    pub(super) fn own_callee(&self, walk: &Walk<'_, '_>, at: u64, inst: Inst) -> Option<u64> {
        let target = (inst.kind == Kind::Call).then(|| walk.input.target(at, inst))?;
        walk.input.slot_of_stub(target).is_none().then_some(target)
    }

    /// Whether a call may be that of a descriptor of thread-local storage, `call *(%rax)`, which keeps all registers but `rax`.
    fn may_keep_all(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst) -> bool {
        let decoded = self.decode(true, walk.input, at, inst);
        decoded.and_then(|decoded| decoded.memory()).is_some_and(|(memory, _)| {
            memory.base == Some(Reg::General(0, 64, false)) && memory.index.is_none() && memory.displacement == 0
        })
    }

    /// Whether a call of what the compiler could not see reads no such register: it writes it, by the psABI.
    fn is_free_for_others(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst, register: u8) -> bool {
        !has(ARGUMENTS, register) && (inst.kind == Kind::Call || !self.is_named(walk, at, inst, register))
    }

    /// Whether an instruction has a register among its operands, or may have.
    pub(super) fn is_named(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst, register: u8) -> bool {
        self.decode(true, walk.input, at, inst).is_none_or(|decoded| decoded.names(register))
    }
}

impl Answer {
    /// Adds an answer to a question, and tells it of one register.
    fn add(&mut self, asked: Registers, read: Registers, register: u8) -> bool {
        *self = Self { asked: self.asked.union(asked), read: self.read.union(read) };
        !self.read.has(register)
    }
}

/// What is asked for at once with a register. Where one of [`FREE_VECTORS`] matters others do too, and nearly all of one search is that of another.
fn asked_with(register: u8) -> Registers {
    let lows = FREE_VECTORS.start + (LOWS - VECTORS)..FREE_VECTORS.end + (LOWS - VECTORS);
    match [FREE_VECTORS, lows].into_iter().find(|all| all.contains(&register)) {
        Some(all) => all.map(Registers::of).fold(Registers::default(), Registers::union),
        None => Registers::of(register),
    }
}

/// Whether functions of the input may begin with calls that keep all registers.
fn is_profiled(walk: &Walk<'_, '_>) -> bool {
    let symbols = 0..walk.input.image.elf.dynsyms.len();
    symbols.into_iter().any(|symbol| PROFILING.contains(&walk.input.image.dynamic_symbol_name(symbol)))
}

/// Whether an instruction may name one of `r8` to `r15` at all, by its encoding, or a vector register; always, for others. Nothing but `syscall` uses `r8` to `r15` without naming them, and no opcode of
/// one byte uses a vector register.
fn may_name(bytes: &[u8], shape: Shape, register: u8) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    if register >= VECTORS {
        let number = (register - VECTORS) & 15;
        let names = || shape.registers(bytes).is_none_or(|named| named.contains(&Some(number)));
        return shape.vector || shape.map != 0 && (!names_in_modrm(bytes, shape) || names());
    }
    if register < 8 || shape.vector || bytes.ends_with(&SYSCALL) {
        return true;
    }
    match shape.registers(bytes) {
        Some(named) => named.contains(&Some(register)),
        None => bytes.get(shape.opcode).is_none_or(|opcode| opcode & 7 == register & 7),
    }
}

/// Whether an opcode of the map `0f` names all vector registers that it uses in ModRM. The others save state, change privilege, or are rare (SDM, volume 2, table A-3).
fn names_in_modrm(bytes: &[u8], shape: Shape) -> bool {
    let is_known = |opcode: u8| {
        matches!(
            opcode,
            0x10..=0x17 | 0x28..=0x2f | 0x40..=0x76 | 0x7c..=0x7f | 0x90..=0x9f | 0xa3..=0xa5 | 0xab..=0xad | 0xaf..=0xb7
                | 0xba..=0xc6 | 0xd0..=0xfe
        )
    };
    shape.map == 1 && !shape.vector && bytes.get(shape.opcode).copied().is_some_and(is_known)
}

/// What an instruction does with a register. A write counts only where all of it is known to be written.
pub(super) fn use_of(decoded: &Decoded, register: u8, has_low: bool) -> Use {
    if register >= VECTORS {
        return use_of_vector(decoded, register);
    }
    let class = decoded.class();
    // It overwrites `rcx` and `r11`.
    if decoded.name == "syscall" && matches!(register, 1 | 11) {
        return Use::Writes;
    }
    if class == Class::Opaque {
        return if decoded.may_use(register) { Use::Reads } else { Use::Passes };
    }
    // `rax` and `rdx` are named by no operand here.
    if matches!(decoded.name.as_str(), "cdqe" | "cwde" | "cdq" | "cqo" | "cbw" | "cwd") {
        return match register {
            0 => Use::Reads,
            2 => Use::Writes,
            _ => Use::Passes,
        };
    }
    if effect_of(&decoded.name).is_some() && decoded.operands.len() < 2 && register <= 2 && register != 1 {
        return Use::Reads;
    }
    // `mulx` has two results, and a factor that no operand names.
    let is_product = decoded.name == "mulx";
    if is_product && register == PRODUCT {
        return Use::Reads;
    }
    if !decoded.names(register) {
        return Use::Passes;
    }
    let is_it =
        |operand: &Operand| matches!(*operand, Operand::Reg(Reg::General(number, width, _)) if number == register && width >= 32);
    let is_low = |operand: &Operand| matches!(*operand, Operand::Reg(Reg::General(number, 8, false)) if number == register);
    let reads = |operand: &Operand| match *operand {
        Operand::Reg(Reg::General(number, ..)) => number == register && !(has_low && is_low(operand)),
        Operand::Memory(memory) => [memory.base, memory.index]
            .into_iter()
            .flatten()
            .any(|found| matches!(found, Reg::General(number, ..) if number == register)),
        _ => false,
    };
    let writes_first =
        WRITE_FIRST.contains(&plain(&decoded.name)) || is_product || decoded.name == "imul" && decoded.operands.len() == 3;
    let (written, rest) = decoded.operands.split_at(decoded.operands.len().min(1 + usize::from(is_product)));
    let [(first, _), ..] = written else { return Use::Reads };
    let is_read = rest.iter().any(|(operand, _)| reads(operand));
    let clears = decoded.name == "xor" && rest.first().is_some_and(|(second, _)| first == second);
    match () {
        () if clears && is_it(first) => Use::Writes,
        () if writes_first && written.iter().any(|(operand, _)| is_it(operand)) && !is_read => Use::Writes,
        () if is_low(first) && (writes_first && !is_read || decoded.name.starts_with("set")) => Use::WritesLow,
        // The low byte may be read and written again, once it was written.
        () if !is_read && !written.iter().any(|(operand, _)| reads(operand)) => Use::Passes,
        () => Use::Reads,
    }
}

/// The same of a vector register, or of its low 128 bits. A move of the older encoding leaves what is above; one of the newer clears all that it does not write.
fn use_of_vector(decoded: &Decoded, register: u8) -> Use {
    if !decoded.may_use(register) || decoded.name == "syscall" || decoded.name.starts_with("vzero") {
        return Use::Passes;
    }
    let is_it = |operand: &(Operand, u16)| matches!(operand.0, Operand::Reg(Reg::Vector(number, _)) if number == (register - VECTORS) & 15);
    let name = decoded.name.as_str();
    let is_write = match &*decoded.operands {
        [to, from] if is_exclusive_or(name) => is_it(to) && to == from,
        // Between registers these leave bits of the lower part.
        [_, (Operand::Reg(_), _)] if matches!(name, "movss" | "movsd") => false,
        [to, from] => is_vector_move(name) && is_it(to) && !is_it(from),
        [to, from, other] => is_exclusive_or(name) && is_it(to) && from == other,
        _ => false,
    };
    match (is_write, decoded.shape.vector) {
        (true, false) if register >= LOWS => Use::Writes,
        (true, false) => Use::Passes,
        (true, true) if !decoded.is_evex() => Use::Writes,
        _ => Use::Reads,
    }
}
