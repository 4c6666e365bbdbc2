//! What one instruction does to a state.
//!
//! **Soundness.** Each rule computes in the integers modulo 2^64 what the processor computes, on the sets that the values describe:
//! * a sum, difference or product of values follows `domain`: residues survive any wrap-around, intervals that leave the signed range become full;
//! * a 32-bit result is the low half, zero-extended: residues of a plain number stay, its interval becomes that of 32 bits, any other base is left behind;
//! * what follows no rule gets a new base, named after the instruction, which describes it whatever it is;
//! * a value that a new base may be derived from is *released* first (see `state`), halves of an address aside: no half of one is an address, and the rules by which
//!   it could become whole again all release.

use super::code::{Effect, Instruction, ProcedureCode, RAX, RBP, RCX, RSP, Register, RegisterSet, Sum};
use super::memory::{Address, combine, impure, read, sum_value, touch, write_elsewhere};
use super::state::{Effects, State};
use crate::domain::{Base, Value};

/// A new base for what an instruction gives to a register.
fn define(state: &mut State, number: u32, register: Register) {
    state.set(register, Value::exact(Base::defined(number, register), 0));
}

/// Everything but calls. The references' addresses are appended to `addresses` if the caller wants them.
pub fn step(
    code: &ProcedureCode,
    state: &mut State,
    effects: &mut Effects,
    number: u32,
    mut addresses: Option<&mut Vec<Address>>,
) {
    let instruction = &code.instructions[number as usize];
    let is_tracked = matches!(instruction.effect, Effect::Load { .. } | Effect::Pop { .. } | Effect::Leave);
    let mut first = None;
    for reference in code.references_of(instruction) {
        let address = touch(state, effects, reference, is_tracked);
        first.get_or_insert(address.value);
        if let Some(list) = addresses.as_deref_mut() {
            list.push(address);
        }
    }
    apply(instruction, state, effects, number, first);
}

fn apply(instruction: &Instruction, state: &mut State, effects: &mut Effects, number: u32, first: Option<Value>) {
    match instruction.effect {
        Effect::None | Effect::Call(_) => {}
        Effect::Linear { to, sum, is_32 } => linear(state, effects, number, to, &sum, is_32),
        Effect::Subtract { to, from, what, is_32 } => subtract(state, effects, number, (to, from, what), is_32),
        Effect::And { to, mask, is_32 } => {
            let value = state.get(to);
            match value.and_constant(mask) {
                Some(result) => state.set(to, if is_32 { result.truncated() } else { result }),
                None => {
                    state.release(&value, effects);
                    define(state, number, to);
                }
            }
        }
        Effect::Extend { to, from, bits, is_signed, is_32 } => {
            let value = state.get(from).extended(u32::from(bits), is_signed);
            state.set(to, if is_32 { value.truncated() } else { value });
        }
        Effect::Bounded { to, low, high } => state.set(to, Value::bounded(low, high)),
        Effect::Load { to } => load(state, effects, number, to, first),
        Effect::Store { from } => {
            let value = state.get(from);
            put(state, effects, first, value);
        }
        Effect::Push { from } => {
            let pushed = from.map(|register| state.get(register));
            let top = state.get(RSP).add_constant(-8);
            state.set(RSP, top);
            if let Some(value) = pushed {
                put(state, effects, Some(top), value);
            }
        }
        Effect::Pop { to } => {
            let top = state.get(RSP);
            load(state, effects, number, to, Some(top));
            state.set(RSP, top.add_constant(8));
        }
        Effect::Leave => {
            let top = state.get(RBP);
            load(state, effects, number, RBP, Some(top));
            state.set(RSP, top.add_constant(8));
        }
        Effect::Exchange { a, b } => {
            let (old_a, old_b) = (state.get(a), state.get(b));
            state.set(a, old_b);
            state.set(b, old_a);
        }
        Effect::Select { to, from } => {
            let (old, new) = (state.get(to), state.get(from));
            match old.join(new, false) {
                Some(either) => state.set(to, either),
                None => {
                    state.release(&old, effects);
                    state.release(&new, effects);
                    define(state, number, to);
                }
            }
        }
        Effect::Generic { reads, writes, is_32 } => generic(state, effects, number, reads, writes, is_32),
        Effect::SystemCall => system_call(state, effects, number),
    }
}

fn linear(state: &mut State, effects: &mut Effects, number: u32, to: Register, sum: &Sum, is_32: bool) {
    let value = sum_value(state, sum);
    if is_32 {
        let low_half = value.unwrap_or(Value::UNKNOWN).truncated();
        return state.set(to, low_half);
    }
    let base = value.map_or(Base::UNKNOWN, |v| v.base);
    for register in [sum.base, sum.index].into_iter().flatten() {
        let part = state.get(register);
        if part.base != base {
            state.release(&part, effects);
        }
    }
    match value {
        Some(value) => state.set(to, value),
        None => define(state, number, to),
    }
}

fn subtract(
    state: &mut State,
    effects: &mut Effects,
    number: u32,
    (to, from, what): (Register, Register, Register),
    is_32: bool,
) {
    let (left, right) = (state.get(from), state.get(what));
    let difference = left.subtract(right);
    if is_32 {
        return state.set(to, difference.unwrap_or(Value::UNKNOWN).truncated());
    }
    if let Some(difference) = difference {
        return state.set(to, difference);
    }
    state.release(&right, effects);
    if left.base == Base::FRAME {
        return state.set(to, impure(Base::FRAME));
    }
    state.release(&left, effects);
    define(state, number, to);
}

/// `to` becomes what is at an address: the slot there, or a new base, which then is what the slot holds.
fn load(state: &mut State, effects: &mut Effects, number: u32, to: Register, address: Option<Value>) {
    let offset = address.filter(|a| a.base == Base::FRAME).and_then(|a| a.offset());
    // It takes its own return address: it may be what returns twice.
    effects.returns_twice |= offset == Some(0);
    if let Some(slot) = offset.and_then(|offset| state.slot(offset)) {
        let value = slot.value;
        return state.set(to, value);
    }
    define(state, number, to);
    if let Some(offset) = offset
        && state.slots_within(offset, offset + 7).next().is_none()
    {
        let value = state.get(to);
        state.put_slot(offset, value);
    }
}

/// Memory at an address, of which nothing is tracked any more, becomes a value.
fn put(state: &mut State, effects: &mut Effects, address: Option<Value>, value: Value) {
    let offset = address.filter(|a| a.base == Base::FRAME).and_then(|a| a.offset());
    let is_tracked = offset.is_some_and(|offset| state.put_slot(offset, value));
    // Above the frame it is the caller's to read.
    if !is_tracked || offset.is_some_and(|offset| offset > -8) {
        state.release(&value, effects);
    }
}

fn generic(state: &mut State, effects: &mut Effects, number: u32, reads: RegisterSet, writes: RegisterSet, is_32: bool) {
    for register in (0..16).filter(|r| reads >> r & 1 != 0) {
        let value = state.get(register);
        state.release(&value, effects);
    }
    for register in (0..16).filter(|r| writes >> r & 1 != 0) {
        match is_32 {
            true => state.set(register, Value::bounded(0, i64::from(u32::MAX))),
            false => define(state, number, register),
        }
    }
}

/// The kernel reads and writes what it is told to, and may keep what it is told.
fn system_call(state: &mut State, effects: &mut Effects, number: u32) {
    const ARGUMENTS: [Register; 6] = [7, 6, 2, 10, 8, 9];
    for register in ARGUMENTS {
        let value = state.get(register);
        state.release(&value, effects);
        let parts = value.base.entry_register().map_or(0, |r| 1 << r);
        effects.writes |= parts;
        read(state, effects, &Address { value, parts }, 0, false);
    }
    effects.writes_unknown = true;
    effects.writes_image = true;
    write_elsewhere(state, effects, false);
    for register in [RAX, RCX, 11] {
        define(state, number, register);
    }
}

/// The sum of a value and a distance, whatever base it has.
pub fn displaced(value: Value, distance: &Value) -> Value {
    let number = Value { base: Base::NUMBER, ..*distance };
    combine(value, number).unwrap_or(Value::UNKNOWN)
}
