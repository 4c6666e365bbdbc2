//! Which registers nobody reads once a function of the input has returned, or from a call on: general ones, and vector ones from [`VECTORS`] on.
//!
//! A register that only one of the programs leaves with a certain value does no harm if it is written before it is read. Calls inside one file need not
//! follow the psABI: a caller that knows the callee's code may keep a value in a register that the callee does not write. So the code behind each call of the function is followed.
//!
//! * A call of code of this file is followed into it, and behind the call where some way through it passes the register on.
//! * A call of what the compiler could not see (through a stub, a slot, a register) reads what the psABI passes arguments in and writes all other registers that calls do not keep. But
//!   what may be a call of a descriptor of thread-local storage keeps them all; and of a file with the profiling calls, which do so too, nothing is claimed.
//! * At a return, the code behind all calls of the function in this file is followed, and of those that end in a jump to it; of callers elsewhere, the psABI says that they
//!   read `rax` and `rdx` alone. These two count as read there, unless nothing names the function but direct calls and jumps.
//! * An indirect jump through a jump table leads where that says ([`jumps`]). Any other leads to all that the jump tables of its function name and to all of the function that data point to, and may be a tail call; it
//!   counts as a read where neither is known: with a frame and without targets, in a function that computes with addresses of its own code, in a file at a fixed address of which
//!   the linker left no relocations.
//!
//! What is one function here is said in [`bodies`].
//!
//! Code is visited by *context*: in a function that was entered by a call on the way, a return leads behind that call alone; else behind all calls of the function.
//!
//! **Terminates**: each address is visited once a question and context.

mod bodies;
mod jumps;

use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Prover;
use super::class::{Class, effect_of, is_exclusive_or, is_vector_move};
use super::decoded::{Decoded, Operand, Reg};
use crate::decode::{Inst, Kind, Shape};
use crate::walk::Walk;
use bodies::Bodies;
use jumps::Ways;

/// Registers that calls keep, and those that return values or pass arguments.
pub(super) const KEPT: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf000;
const RETURNED: u16 = 1 | 1 << 2;
/// `rcx`.
const COUNTER: u8 = 1;
const ARGUMENTS: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10;
/// What functions call first in a file that is made for profiling.
const PROFILING: [&str; 3] = ["mcount", "_mcount", "__fentry__"];
/// Instructions that write their first operand and only read the others.
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
/// Instructions that one question looks at.
const STEPS_MAX: usize = 2_000_000;

/// Whether a set of general registers has one; it has no vector registers.
pub(super) fn has(set: u16, register: u8) -> bool {
    register < VECTORS && set >> register & 1 == 1
}

/// Whose return is next.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Context {
    /// That of a body, to anyone that calls it.
    Open(u32),
    /// That of a function that was called on the way, by its entry.
    Called(u64),
}

/// Where a register is asked for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    context: Context,
    at: u64,
    /// Whether the low byte has been written: it may be read then.
    has_low: bool,
}

impl Place {
    fn new(context: Context, at: u64) -> Self {
        Self { context, at, has_low: false }
    }
}

/// What was found out so far; it is about the input alone.
#[derive(Default)]
pub(crate) struct Liveness {
    /// By what is called and a register that calls keep, whether nobody reads that.
    pub(super) kept: FxHashMap<(u64, u8), bool>,
    /// By call and register, whether nobody reads that from behind the call on.
    behind: FxHashMap<(u64, u8), bool>,
    bodies: Option<Rc<Bodies>>,
    /// By body, where its indirect jumps lead.
    ways: FxHashMap<u32, Rc<Ways>>,
    /// By body and register, whether nobody reads it after a return.
    answers: FxHashMap<(u32, u8), bool>,
    /// The same from a call or an indirect jump on, by its address.
    called: FxHashMap<(u64, u8), bool>,
    /// By register, what is known of code from which on nobody reads it.
    free: FxHashMap<u8, Free>,
    /// Whether functions may begin with calls that keep all registers.
    is_profiled: Option<bool>,
}

/// Code from which on nobody reads a register.
#[derive(Default)]
struct Free {
    places: FxHashSet<Place>,
    /// Entries of functions that pass it on.
    passing: FxHashSet<u64>,
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

/// Where a question leads.
#[derive(Default)]
struct Question {
    seen: FxHashSet<Place>,
    work: Vec<Place>,
    /// Entries of functions that pass the register on.
    passing: FxHashSet<u64>,
    /// What is behind calls of functions of which that is not known yet, by their entries.
    waiting: FxHashMap<u64, Vec<Place>>,
    /// Bodies whose returns were followed.
    returned: FxHashSet<u32>,
}

impl Prover {
    /// Whether nobody reads a register after a return from the function around an address of the input.
    pub(super) fn is_dead_at_return(&mut self, walk: &Walk<'_, '_>, address: u64, register: u8) -> bool {
        let bodies = self.bodies(walk);
        let is_scratch = !has(KEPT, register);
        let Some(body) = bodies.at(walk, address).filter(|_| is_scratch) else { return false };
        if let Some(&known) = self.liveness.answers.get(&(body, register)) {
            return known;
        }
        let mut question = Question::default();
        let is_dead = question.leave(walk, &bodies, body, register) && self.is_read_nowhere(walk, register, question);
        self.liveness.answers.insert((body, register), is_dead);
        is_dead
    }

    /// Whether nobody reads a register from a call of the input on.
    pub(super) fn is_dead_at_call(&mut self, walk: &Walk<'_, '_>, place: u64, inst: Inst, register: u8) -> bool {
        if has(KEPT, register) {
            return false;
        }
        let Some(target) = self.own_callee(walk, place, inst) else {
            return self.is_free_for_others(walk, place, inst, register);
        };
        if let Some(&known) = self.liveness.called.get(&(place, register)) {
            return known;
        }
        let Some(body) = self.bodies(walk).at(walk, place) else { return false };
        let after = Place::new(Context::Open(body), place + u64::from(inst.len));
        let mut question = Question::default();
        question.call(target, (!walk.call_never_returns(place, inst)).then_some(after), &Free::default());
        let is_dead = self.is_read_nowhere(walk, register, question);
        self.liveness.called.insert((place, register), is_dead);
        is_dead
    }

    /// Whether nobody reads a register from behind a call of the input on.
    pub(crate) fn is_dead_behind_call(&mut self, walk: &Walk<'_, '_>, place: u64, register: u8) -> bool {
        if let Some(&known) = self.liveness.behind.get(&(place, register)) {
            return known;
        }
        let (Some(inst), Some(body)) = (walk.input.inst(place), self.bodies(walk).at(walk, place)) else { return false };
        let after = Place::new(Context::Open(body), place + u64::from(inst.len));
        let is_dead = walk.call_never_returns(place, inst)
            || self.is_read_nowhere(walk, register, Question { work: vec![after], ..Question::default() });
        self.liveness.behind.insert((place, register), is_dead);
        is_dead
    }

    /// Whether nobody reads a register from an indirect jump of the input on.
    pub(super) fn is_dead_at_jump(&mut self, walk: &Walk<'_, '_>, place: u64, register: u8) -> bool {
        if has(KEPT | RETURNED, register) {
            return false;
        }
        if let Some(&known) = self.liveness.called.get(&(place, register)) {
            return known;
        }
        let Some(body) = self.bodies(walk).at(walk, place) else { return false };
        let question = Question { work: vec![Place::new(Context::Open(body), place)], ..Question::default() };
        let is_dead = self.is_read_nowhere(walk, register, question);
        self.liveness.called.insert((place, register), is_dead);
        is_dead
    }

    fn bodies(&mut self, walk: &Walk<'_, '_>) -> Rc<Bodies> {
        self.liveness.bodies.get_or_insert_with(|| Rc::new(Bodies::find(walk))).clone()
    }

    fn is_read_nowhere(&mut self, walk: &Walk<'_, '_>, register: u8, mut question: Question) -> bool {
        if *self.liveness.is_profiled.get_or_insert_with(|| is_profiled(walk)) {
            return false;
        }
        let mut free = self.liveness.free.remove(&register).unwrap_or_default();
        let mut is_read = false;
        while let Some(place) = question.work.pop() {
            if !self.follow_use(walk, place, register, &free, &mut question) {
                is_read = true;
                break;
            }
        }
        if !is_read {
            free.places.extend(question.seen);
            free.passing.extend(question.passing);
        }
        self.liveness.free.insert(register, free);
        !is_read
    }

    /// Follows code as long as it passes a register on; `false` if it reads it.
    fn follow_use(&mut self, walk: &Walk<'_, '_>, from: Place, register: u8, free: &Free, question: &mut Question) -> bool {
        let Place { context, mut at, mut has_low } = from;
        while !free.places.contains(&Place { context, at, has_low }) && question.seen.insert(Place { context, at, has_low }) {
            let Some(inst) = walk.input.inst(at).filter(|_| question.seen.len() < STEPS_MAX) else { return false };
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => at = after,
                Kind::Jump => {
                    let target = walk.input.target(at, inst);
                    if walk.input.slot_of_stub(target).is_some() {
                        return !has(ARGUMENTS, register);
                    }
                    at = target;
                }
                Kind::Loop if register == COUNTER => return false,
                Kind::Branch | Kind::Loop => {
                    question.work.push(Place { context, at: walk.input.target(at, inst), has_low });
                    at = after;
                }
                Kind::IndirectJump if walk.input.slot_of_stub(at).is_some() => return !has(ARGUMENTS, register),
                Kind::IndirectJump => {
                    let Some(targets) = self.targets_of(walk, at) else { return false };
                    question.work.extend(targets.places.into_iter().map(|at| Place { context, at, has_low }));
                    return match targets.is_table {
                        true => !self.is_named(walk, at, inst, register),
                        false => self.is_free_for_others(walk, at, inst, register),
                    };
                }
                Kind::Stop | Kind::Trap => return true,
                Kind::Return => match context {
                    Context::Open(body) => {
                        let bodies = self.bodies(walk);
                        return question.leave(walk, &bodies, body, register);
                    }
                    Context::Called(entry) => {
                        if question.passing.insert(entry) {
                            question.work.extend(question.waiting.remove(&entry).into_iter().flatten());
                        }
                        return true;
                    }
                },
                Kind::IndirectCall if self.may_keep_all(walk, at, inst) => at = after,
                Kind::Call | Kind::IndirectCall => {
                    let Some(target) = self.own_callee(walk, at, inst) else {
                        return self.is_free_for_others(walk, at, inst, register);
                    };
                    let behind = (!walk.call_never_returns(at, inst)).then_some(Place::new(context, after));
                    question.call(target, behind, free);
                    return true;
                }
                Kind::Plain | Kind::Lea if !may_name(walk.input.code.bytes(at, inst), register) => at = after,
                Kind::Plain | Kind::Lea => {
                    let Some(decoded) = self.decode(true, walk.input, at, inst) else { return false };
                    match use_of(&decoded, register, has_low) {
                        Use::Reads => return false,
                        Use::Writes => return true,
                        Use::WritesLow => has_low = true,
                        Use::Passes => {}
                    }
                    at = after;
                }
            }
        }
        true
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

impl Question {
    /// Goes into a function, and behind the call of it where it passes the register on.
    fn call(&mut self, target: u64, behind: Option<Place>, free: &Free) {
        let is_known = free.places.contains(&Place::new(Context::Called(target), target));
        let passes = self.passing.contains(&target) || is_known && free.passing.contains(&target);
        match behind {
            Some(place) if passes => self.work.push(place),
            Some(place) if !is_known => self.waiting.entry(target).or_default().push(place),
            _ => {}
        }
        self.work.push(Place::new(Context::Called(target), target));
    }

    /// Goes on behind all calls that a return from a body may return to; `false` if they are not known, or may read the register by the psABI.
    fn leave(&mut self, walk: &Walk<'_, '_>, bodies: &Bodies, body: u32, register: u8) -> bool {
        let is_returned = has(RETURNED, register);
        let mut open = vec![body];
        while let Some(number) = open.pop() {
            if !self.returned.insert(number) {
                continue;
            }
            let Some(body) = bodies.body(number).filter(|body| !body.is_unclear) else { return false };
            if is_returned && body.is_named {
                return false;
            }
            for &at in &body.behind_calls {
                let Some(caller) = bodies.at(walk, at) else { return false };
                self.work.push(Place::new(Context::Open(caller), at));
            }
            open.extend(&body.entered_from);
        }
        true
    }
}

/// Whether functions of the input may begin with calls that keep all registers.
fn is_profiled(walk: &Walk<'_, '_>) -> bool {
    let symbols = 0..walk.input.image.elf.dynsyms.len();
    symbols.into_iter().any(|symbol| PROFILING.contains(&walk.input.image.dynamic_symbol_name(symbol)))
}

/// Whether an instruction may name one of `r8` to `r15` at all, by its encoding, or a vector register; always, for others. Nothing but `syscall` uses `r8` to `r15` without naming them, and no opcode of
/// one byte uses a vector register.
fn may_name(bytes: &[u8], register: u8) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    let shape = Shape::of(bytes);
    if register >= VECTORS {
        return shape.vector || shape.map != 0;
    }
    if register < 8 || shape.vector || bytes.ends_with(&SYSCALL) {
        return true;
    }
    match shape.registers(bytes) {
        Some(named) => named.contains(&Some(register)),
        None => bytes.get(shape.opcode).is_none_or(|opcode| opcode & 7 == register & 7),
    }
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
    let writes_first = WRITE_FIRST.contains(&decoded.name.as_str()) || decoded.name == "imul" && decoded.operands.len() == 3;
    let [(first, _), rest @ ..] = &*decoded.operands else { return Use::Reads };
    let is_read = rest.iter().any(|(operand, _)| reads(operand));
    let clears = decoded.name == "xor" && rest.first().is_some_and(|(second, _)| first == second);
    match () {
        () if clears && is_it(first) || writes_first && is_it(first) && !is_read => Use::Writes,
        () if is_low(first) && (writes_first && !is_read || decoded.name.starts_with("set")) => Use::WritesLow,
        // The low byte may be read and written again, once it was written.
        () if !is_read && !reads(first) => Use::Passes,
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
