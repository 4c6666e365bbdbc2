//! What a call does to a state: by the callee's summary where it is known, by a fact of the library, by the psABI where the compiler could not see
//! through the call either, and otherwise by nothing at all.

use lifter::entity::EntityId;

use super::code::{ARGUMENTS, CALLEE_SAVED, Callee, RAX, RSP, Register, RegisterSet};
use super::memory::{Address, read, release_slots, write, write_elsewhere};
use super::state::{Effects, State};
use super::summary::Summary;
use super::transfer::displaced;
use crate::domain::{Base, Value};
use crate::library::{Fact, Library};

/// What is known of callees.
#[derive(Copy, Clone, Debug)]
pub struct Knowledge<'a> {
    pub library: &'a Library,
    /// By procedure; `None` for one of which nothing may be said.
    pub summaries: &'a [Option<Summary>],
}

/// What a call does, whoever is called.
struct Behavior<'a> {
    effects: Effects,
    /// What registers hold afterward, in terms of the callee's entry.
    results: &'a [Value; 16],
    writes_elsewhere: bool,
}

/// The registers after a call that keeps to the psABI.
fn by_convention(returned: Option<Register>) -> [Value; 16] {
    let mut results = [Value::UNKNOWN; 16];
    for register in (0..16u8).filter(|r| CALLEE_SAVED >> r & 1 != 0) {
        results[register as usize] = Value::exact(Base::entry(register), 0);
    }
    results[RSP as usize] = Value::exact(Base::FRAME, 8);
    if let Some(argument) = returned {
        results[RAX as usize] = Value::exact(Base::entry(argument), 0);
    }
    results
}

fn library_effects(fact: &Fact) -> Effects {
    Effects { keeps: fact.keeps, reads: fact.reads, writes: fact.writes, returns_twice: fact.returns_twice, ..Effects::default() }
}

/// Whatever may be behind a call that keeps to the psABI.
const BOUNDARY: Effects = Effects {
    keeps: ARGUMENTS,
    reads: ARGUMENTS,
    writes: ARGUMENTS,
    reads_caller: true,
    writes_caller: false,
    writes_image: true,
    writes_unknown: true,
    returns_twice: false,
};

/// Applies a call. False if it does not come back, as far as is known so far.
pub fn call(
    state: &mut State,
    effects: &mut Effects,
    knowledge: &Knowledge<'_>,
    callee: Callee,
    number: u32,
    is_tail: bool,
) -> bool {
    match callee {
        Callee::Local(procedure) => match &knowledge.summaries[procedure.index()] {
            Some(summary) => {
                let behavior = Behavior {
                    effects: summary.effects,
                    results: &summary.results,
                    writes_elsewhere: summary.effects.writes_unknown,
                };
                apply(state, effects, &behavior, number, is_tail);
                summary.returns
            }
            None => {
                anything(state, effects, number);
                true
            }
        },
        Callee::Inside => {
            anything(state, effects, number);
            true
        }
        Callee::Library(index) => {
            let fact = knowledge.library.fact(index);
            let behavior =
                Behavior { effects: library_effects(fact), results: &by_convention(fact.returns), writes_elsewhere: false };
            apply(state, effects, &behavior, number, is_tail);
            true
        }
        Callee::Boundary => {
            let behavior = Behavior { effects: BOUNDARY, results: &by_convention(None), writes_elsewhere: true };
            apply(state, effects, &behavior, number, is_tail);
            true
        }
    }
}

/// After this nothing is known.
fn anything(state: &mut State, effects: &mut Effects, number: u32) {
    state.escape(effects);
    *effects = Effects { returns_twice: effects.returns_twice, ..Effects::ANY };
    state.slots.clear();
    for register in 0..16 {
        state.set(register, Value::exact(Base::defined(number, register), 0));
    }
}

fn apply(state: &mut State, effects: &mut Effects, behavior: &Behavior<'_>, number: u32, is_tail: bool) {
    let callee = &behavior.effects;
    let top = state.get(RSP);
    pass_on(state, effects, callee);
    if callee.reads_caller {
        effects.reads_caller |= is_tail;
        release_slots(state, effects, i64::MIN, i64::MAX);
    }
    if callee.writes_caller {
        effects.writes_caller |= is_tail;
        state.forget_slots(effects, |s| !s.is_save());
    }
    effects.writes_image |= callee.writes_image;
    if behavior.writes_elsewhere {
        effects.writes_unknown = true;
        write_elsewhere(state, effects, false);
    }
    if callee.returns_twice {
        forget_executions(state, effects, number);
    }
    let mut results = results(state, behavior.results, number, is_tail);
    if callee.returns_twice {
        // What it returns the second time is another's to say.
        for register in (0..16u8).filter(|&r| r != RSP && CALLEE_SAVED >> r & 1 == 0) {
            results[register as usize] = Value::exact(Base::defined(number, register), 0);
        }
    }
    drop_below(state, effects, &top);
    state.registers = results;
}

/// What the callee does with what it is given, as something that the caller does.
fn pass_on(state: &mut State, effects: &mut Effects, callee: &Effects) {
    let registers = |set: RegisterSet| (0..16u8).filter(move |r| set >> r & 1 != 0);
    for register in registers(callee.keeps) {
        let value = state.get(register);
        state.release(&value, effects);
    }
    let address = |state: &State, register: Register| {
        let value = state.get(register);
        // How far the callee goes from there is not known.
        let parts = value.base.entry_register().map_or(0, |r| 1 << r);
        Address {
            value: Value { residues: crate::domain::Residues::ALL, offsets: crate::domain::Interval::FULL, ..value },
            parts,
        }
    };
    for register in registers(callee.reads) {
        let address = address(state, register);
        // What a stack pointer that is passed down reaches of the caller's is the caller's own doing.
        let reads_caller = effects.reads_caller;
        read(state, effects, &address, 0, false);
        effects.reads_caller = reads_caller || is_callers(&state.get(register));
    }
    for register in registers(callee.writes) {
        let address = address(state, register);
        effects.writes_caller |= is_callers(&state.get(register));
        write(state, effects, &address, 0);
    }
}

/// Whether a pointer may be to what the caller keeps above the frame.
fn is_callers(value: &Value) -> bool {
    value.base == Base::FRAME && (value.offsets.is_full() || value.offsets.high >= 8)
}

/// The registers afterward, from what they are in terms of the callee's entry.
fn results(state: &State, results: &[Value; 16], number: u32, is_tail: bool) -> [Value; 16] {
    let frame = state.get(RSP).add_constant(if is_tail { 0 } else { -8 });
    let mut after = [Value::UNKNOWN; 16];
    for (register, (after, result)) in after.iter_mut().zip(results).enumerate() {
        let value = match result.base {
            base if base.is_global() => *result,
            Base::FRAME => displaced(frame, result),
            base => base.entry_register().map_or(Value::UNKNOWN, |entry| displaced(state.get(entry), result)),
        };
        *after = if value.is_unknown() { Value::exact(Base::defined(number, register as u8), 0) } else { value };
    }
    after
}

/// Below the stack pointer nothing stays.
fn drop_below(state: &mut State, effects: &mut Effects, top: &Value) {
    if top.base != Base::FRAME {
        state.slots.clear();
        return;
    }
    match top.offset() {
        Some(offset) => state.overwrite(i64::MIN, offset - 1),
        None if top.offsets.is_full() => state.forget_slots(effects, |s| !s.is_save()),
        None => state.forget_slots(effects, |s| i64::from(s.offset) < top.offsets.high),
    }
}

/// The call may come back again when what was named by executions since then has been executed anew.
fn forget_executions(state: &mut State, effects: &mut Effects, number: u32) {
    state.forget_slots(effects, |s| !s.is_save());
    for register in 0..16 {
        if !state.get(register).base.is_stable() {
            state.set(register, Value::exact(Base::defined(number, register), 0));
        }
    }
}
