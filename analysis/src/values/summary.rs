//! What a function is to its callers: what registers hold when it returns, in terms of what they held when it was entered, and what it does to memory.
//!
//! A summary is made without regard to any caller: whatever a register holds at entry is its own base. So it is right in every context, and applying it
//! at a call substitutes what the caller knows. Summaries only grow while the functions of a cycle are analyzed: registers lose what was known of them,
//! effects are added. The height is bounded by widening.

use super::state::{Effects, State};
use crate::domain::Value;

/// A function in terms of its entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Whether it comes back.
    pub returns: bool,
    /// What each register holds then: counted from a register at entry, the frame, the image or zero; or unknown.
    pub results: [Value; 16],
    pub effects: Effects,
}

impl Summary {
    /// What is assumed of a function before it has been looked at: that it never returns.
    pub const UNSEEN: Self = Self { returns: false, results: [Value::UNKNOWN; 16], effects: Effects { ..NOTHING } };

    /// Takes in a way out.
    pub fn add_exit(&mut self, state: &State) {
        let is_first = !std::mem::replace(&mut self.returns, true);
        for (result, value) in self.results.iter_mut().zip(&state.registers) {
            let value = exported(value);
            if is_first {
                *result = value;
                continue;
            }
            let joined = result.join(value, false);
            if joined.is_none() {
                release(&mut self.effects, result);
                release(&mut self.effects, &value);
            }
            *result = joined.unwrap_or(Value::UNKNOWN);
        }
    }

    /// The next of a growing row: no less than what was before.
    #[must_use]
    pub fn grown_to(&self, next: &Summary, is_widening: bool) -> Summary {
        if !self.returns {
            return next.clone();
        }
        let mut grown = next.clone();
        grown.returns = true;
        for (result, old) in grown.results.iter_mut().zip(&self.results) {
            let joined = if next.returns { old.join(*result, is_widening) } else { Some(*old) };
            if joined.is_none() {
                release(&mut grown.effects, old);
                release(&mut grown.effects, result);
            }
            *result = joined.unwrap_or(Value::UNKNOWN);
        }
        grown.effects = grown.effects.union(self.effects);
        grown
    }
}

const NOTHING: Effects = Effects {
    keeps: 0,
    reads: 0,
    writes: 0,
    reads_caller: false,
    writes_caller: false,
    writes_image: false,
    writes_unknown: false,
    returns_twice: false,
};

/// A value that is lost sight of may be known anywhere.
fn release(effects: &mut Effects, value: &Value) {
    if let Some(register) = value.base.entry_register() {
        effects.keeps |= 1 << register;
    }
}

/// A value as the caller can read it.
fn exported(value: &Value) -> Value {
    let is_stable = value.base.is_stable() && value.base != crate::domain::Base::THREAD;
    if is_stable { *value } else { Value::UNKNOWN }
}
