//! What a memory access does to what is known: which slots it may change, what may have been read, what the caller has to know.
//!
//! **Whose memory.** Below the frame's base is the function's own; from eight bytes above it on, its caller's. A pure address that counts from a register's value at
//! entry is into something that is older than the frame, so never into the function's own part. An address of the image is in no frame. Any other
//! address may be into the frame if, and only if, the frame has escaped.
//!
//! **Indexed accesses to the frame.** An address that counts from the frame by an unknown index is in an object of the frame or of the stack arguments: if the index
//! had been made from another object's address and this one's, the frame would have escaped, and if it was not, the access moves with the frame.
//! Arguments on the stack are the callee's to change (psABI §3.2.3), and callers don't read them again.

use super::code::{MemoryReference, Place, RegisterSet, Sum};
use super::state::{Effects, Slot, State};
use crate::domain::{Base, Interval, Residues, Value};

/// An address, and the entry values that are part of it.
#[derive(Copy, Clone, Debug)]
pub struct Address {
    pub value: Value,
    pub parts: RegisterSet,
}

/// The sum of two values, counted from whichever base survives; `None` where none does.
pub fn combine(a: Value, b: Value) -> Option<Value> {
    if let Some(sum) = a.add(b) {
        return Some(sum);
    }
    let keeps = [a, b].into_iter().find(|v| v.base == Base::FRAME);
    keeps.map(|v| impure(v.base))
}

/// Anything that counts from a base.
pub fn impure(base: Base) -> Value {
    Value { base, is_pure: false, residues: Residues::ALL, offsets: Interval::FULL }
}

/// The value of a sum; `None` where it has no single base.
pub fn sum_value(state: &State, sum: &Sum) -> Option<Value> {
    let start = match sum.is_image {
        true => Value::exact(Base::IMAGE, sum.constant),
        false => Value::number(sum.constant),
    };
    let with_base = match sum.base {
        Some(base) => combine(start, state.get(base))?,
        None => start,
    };
    match sum.index {
        Some(index) => combine(with_base, state.get(index).multiply(sum.scale)),
        None => Some(with_base),
    }
}

/// Where a reference goes.
pub fn address(state: &State, place: &Place) -> Address {
    let unknown = |parts| Address { value: Value::UNKNOWN, parts };
    match place {
        Place::Unknown => unknown(RegisterSet::MAX),
        Place::Thread(sum) => match sum_value(state, sum) {
            Some(value) if value.base == Base::NUMBER => Address { value: Value { base: Base::THREAD, ..value }, parts: 0 },
            _ => unknown(parts(state, sum)),
        },
        Place::Sum(sum) => {
            let value = sum_value(state, sum).unwrap_or(Value::UNKNOWN);
            Address { value, parts: parts(state, sum) }
        }
    }
}

fn parts(state: &State, sum: &Sum) -> RegisterSet {
    // What is multiplied is an index, no address.
    let index = sum.index.filter(|_| sum.scale == 1);
    let registers = [sum.base, index].into_iter().flatten();
    registers.filter_map(|r| state.get(r).base.entry_register()).fold(0, |set, r| set | 1 << r)
}

/// The distances from the frame that an access covers; `None` for any.
fn extent(value: &Value, size: u32) -> Option<(i64, i64)> {
    let end = value.offsets.high.checked_add(i64::from(size) - 1)?;
    (!value.offsets.is_full() && size != 0).then_some((value.offsets.low, end))
}

/// An access by an instruction; `is_tracked` if its effect follows what it reads.
pub fn touch(state: &mut State, effects: &mut Effects, reference: &MemoryReference, is_tracked: bool) -> Address {
    let address = address(state, &reference.address);
    if reference.is_implicit {
        return address;
    }
    if reference.reads {
        read(state, effects, &address, reference.size, is_tracked);
    }
    if reference.writes {
        write(state, effects, &address, reference.size);
    }
    address
}

/// Memory is read in ways that may lose sight of what is in it.
pub fn read(state: &mut State, effects: &mut Effects, address: &Address, size: u32, is_tracked: bool) {
    effects.reads |= address.parts;
    if address.value.base != Base::FRAME {
        return;
    }
    let extent = extent(&address.value, size);
    if extent.is_none_or(|(_, high)| high >= 8) {
        effects.reads_caller = true;
    }
    if !is_tracked && extent.is_some_and(|(low, high)| low < 8 && high >= 0 && high - low < 8) {
        // It looks at its own return address: it may be the kind of function that returns twice.
        effects.returns_twice = true;
    }
    let is_exact_slot = is_tracked && address.value.offset().is_some_and(|offset| size == 8 && state.slot(offset).is_some());
    if is_exact_slot {
        return;
    }
    let (low, high) = extent.unwrap_or((i64::MIN, i64::MAX));
    release_slots(state, effects, low, high);
}

/// What slots hold may be known elsewhere from now on.
pub fn release_slots(state: &mut State, effects: &mut Effects, low: i64, high: i64) {
    let held: Vec<Value> = state
        .slots_within(low, high)
        .filter(|s| !s.is_save() && s.value.base.is_stable() && !s.value.base.is_global())
        .map(|s| s.value)
        .collect();
    for value in held {
        state.release(&value, effects);
    }
}

/// Memory is written.
pub fn write(state: &mut State, effects: &mut Effects, address: &Address, size: u32) {
    let value = &address.value;
    effects.writes |= address.parts;
    if value.base == Base::FRAME {
        return write_frame(state, effects, value, size);
    }
    let is_number = value.base == Base::NUMBER && value.offset().is_some();
    if value.base == Base::IMAGE && value.is_pure || is_number || value.base == Base::THREAD {
        effects.writes_image = true;
        return;
    }
    let is_older = value.base.entry_register().is_some() && value.is_pure;
    if !is_older {
        effects.writes_unknown = true;
    }
    write_elsewhere(state, effects, is_older);
}

/// A store to what is surely not named by the frame's own address; `is_older` if it is surely not the function's own part.
pub fn write_elsewhere(state: &mut State, effects: &mut Effects, is_older: bool) {
    let may_be_own = state.has_escaped && !is_older;
    state.forget_slots(effects, |slot: &Slot| slot.offset >= 0 || may_be_own && !slot.is_save());
}

fn write_frame(state: &mut State, effects: &mut Effects, value: &Value, size: u32) {
    match extent(value, size) {
        Some((low, high)) => {
            if high >= 8 {
                effects.writes_caller = true;
            }
            if value.offset().is_some() {
                state.overwrite(low, high);
            } else {
                state.forget_slots(effects, |s| i64::from(s.offset) <= high && low < i64::from(s.offset) + 8 && !s.is_save());
            }
        }
        None => state.forget_slots(effects, |s| !s.is_save()),
    }
    if !value.is_pure && state.has_escaped {
        effects.writes_unknown = true;
    }
}
