//! What callers know where they enter a function: registers that hold one constant, the same in both programs.
//!
//! A function of the output may hold only where certain arguments are constants, if nothing but direct calls that pass them leads to it. Which constants those are is no
//! claim of the producer: they are found at the calls ([`super::Prover::calls_from`]) and met over all of them.

use super::expr::{Id, Pool};
use super::facts::{Facts, Value};
use super::machine::Machine;

/// Registers that may bring arguments: `rax`, `rcx`, `rdx`, `rsi`, `rdi`, `r8` to `r11`.
const ARGUMENTS: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Known {
    Number(u64),
    /// A place of the image, by its address in the input.
    Address(u64),
}

/// What is known of the registers of [`ARGUMENTS`], all 64 bits of each.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry([Option<Known>; ARGUMENTS.len()]);

impl Entry {
    /// What both programs know at a call.
    pub(super) fn of(pool: &Pool, input: &Machine, output: &Machine) -> Self {
        let known = |id: Id| pool.as_const(id).map(Known::Number).or_else(|| pool.as_image(id).map(Known::Address));
        Self(ARGUMENTS.map(|register| {
            let id = input.general[register];
            known(id).filter(|_| output.general[register] == id)
        }))
    }

    /// What is known whichever of two ways one comes.
    pub(crate) fn meet(&self, other: &Self) -> Self {
        let mut met = *self;
        for (known, other) in met.0.iter_mut().zip(&other.0) {
            *known = known.filter(|_| known == other);
        }
        met
    }

    /// Facts at an entry, with what callers know.
    pub(super) fn add_to(&self, facts: &mut Facts) {
        let known = ARGUMENTS.into_iter().zip(self.0).filter_map(|(register, known)| {
            let value = match known? {
                Known::Number(value) => Value::Const(value),
                Known::Address(address) => Value::Image(address),
            };
            Some((register, value))
        });
        facts.know(known);
    }
}
