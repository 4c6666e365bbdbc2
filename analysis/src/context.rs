//! What the callers of a class know of a function's registers at its entry.
//!
//! **Translation.** A value of the caller means something to the callee only if its base does: numbers and addresses of the image always; an address of the
//! caller's frame becomes a distance from the callee's, since the stack pointer at the call says how far apart they are, and so do the frames of all
//! callers above; of registers that count from the same base of the caller's, each is counted from the first.
//!
//! **Meet.** Over the sites of a class only what all agree on stays, joined. A class that keeps changing loses what changes, so that
//! recursion comes to an end.

use smallvec::SmallVec;

use crate::domain::{Base, Interval, Value};
use crate::values::State;
use crate::values::code::{CALLEE_SAVED, RSP, Register, RegisterSet};

/// What is known at a function's entry beyond that registers hold what they hold: by register, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Context {
    known: SmallVec<[(Register, Value); 2]>,
}

impl Context {
    /// What a state at a call, or at a jump in place of one, means for the callee.
    pub fn at_call(state: &State, is_tail: bool) -> Self {
        let top = state.get(RSP).add_constant(if is_tail { 0 } else { -8 });
        let mut known = SmallVec::new();
        for register in argument_registers() {
            let value = state.get(register);
            let passed = match value.base {
                base if base.is_global() => {
                    let says_nothing = value.offsets.is_full() && value.residues.is_all();
                    (!says_nothing).then_some(value)
                }
                base if base == top.base => {
                    value.subtract(top).filter(|distance| !distance.offsets.is_full()).map(|d| Value { base: Base::FRAME, ..d })
                }
                _ => counted_from_another(state, register, &value),
            };
            known.extend(passed.map(|value| (register, value)));
        }
        Context { known }
    }

    /// The state at entry of a function that is called so.
    pub fn entry_state(&self) -> State {
        let mut state = State::at_entry();
        for &(register, value) in &self.known {
            state.set(register, value);
            state.knows_callers |= value.base == Base::FRAME;
        }
        state
    }

    /// What is known of some registers alone.
    #[must_use]
    pub fn restricted_to(mut self, registers: RegisterSet) -> Self {
        self.known.retain(|(register, _)| registers >> *register & 1 != 0);
        self
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
    pub fn get(&self, register: Register) -> Option<&Value> {
        self.known.iter().find(|k| k.0 == register).map(|k| &k.1)
    }
    /// Bytes beyond the value itself.
    pub fn heap_bytes(&self) -> usize {
        if self.known.spilled() { self.known.capacity() * size_of::<(Register, Value)>() } else { 0 }
    }
    pub fn iter(&self) -> impl Iterator<Item = &(Register, Value)> {
        self.known.iter()
    }

    /// Keeps what both say. True if anything was lost.
    pub fn meet(&mut self, other: &Context, gives_up: bool) -> bool {
        let mut has_changed = false;
        self.known.retain(|(register, value)| {
            let joined = other.get(*register).and_then(|theirs| value.join(*theirs, false));
            match joined {
                Some(joined) if joined == *value => true,
                Some(joined) if !gives_up && joined.offsets != Interval::FULL => {
                    has_changed = true;
                    *value = joined;
                    true
                }
                _ => {
                    has_changed = true;
                    false
                }
            }
        });
        has_changed
    }
}

/// The registers in which arguments may come. What others hold belongs to callers, and saving it must stay what it is.
fn argument_registers() -> impl Iterator<Item = Register> {
    (0..16u8).filter(|&r| r != RSP && CALLEE_SAVED >> r & 1 == 0)
}

/// A value that counts from the same base as a register before it, exactly placed.
fn counted_from_another(state: &State, register: Register, value: &Value) -> Option<Value> {
    argument_registers().take_while(|&r| r < register).find_map(|first| {
        let other = state.get(first);
        let offset = other.offset().filter(|_| other.base == value.base && !value.is_unknown())?;
        let shifted = value.add_constant(offset.checked_neg()?);
        (!shifted.offsets.is_full()).then_some(Value { base: Base::entry(first), ..shifted })
    })
}
