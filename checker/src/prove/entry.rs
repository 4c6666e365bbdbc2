//! What is known where calls enter a function: registers that hold constants, and registers in which the two programs differ.
//!
//! A function of the output may hold only where certain arguments are constants, if nothing but direct calls that pass them leads to it. It may also hold where an argument is not passed to it
//! at all, because it has no use for a constant that it knows; and where it is told by a register in which of several states it was called. Which of that is so is no
//! claim of the producer: it is found at the calls and met over all of them.
//!
//! **States.** A function that is told a state does other things in each, so it is not proven once for all its calls, but once for each state ([`Entry::state`]): the
//! output's value of [`STATE`], where the input does not have the same there.

use super::expr::{Id, Pool};
use super::facts::{Facts, Value};
use super::machine::Machine;

/// Registers that may bring arguments, and that calls need not keep: `rax`, `rcx`, `rdx`, `rsi`, `rdi`, `r8` to `r11`.
pub(super) const ARGUMENTS: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// `r11`, in which a state is passed.
const STATE: usize = 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
enum Known {
    Number(u64),
    /// A place of the image, by its address in the input.
    Address(u64),
}

impl Known {
    fn of(pool: &Pool, id: Id) -> Option<Self> {
        pool.as_const(id).map(Self::Number).or_else(|| pool.as_image(id).map(Self::Address))
    }

    fn value(self) -> Value {
        match self {
            Self::Number(value) => Value::Const(value),
            Self::Address(address) => Value::Image(address),
        }
    }
}

/// What is known of a register, all 64 bits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    input: Option<Known>,
    output: Option<Known>,
    /// Both programs have the same value there.
    is_same: bool,
    /// They differ, but nobody of the input reads it.
    is_unread: bool,
}

/// What is known of the registers of [`ARGUMENTS`]; of all others, that they are the same.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry([Held; ARGUMENTS.len()]);

/// A pair of addresses, the registers in which the programs differ there, and the state that the output is told.
pub(crate) type Told = ((u64, u64), u16, Option<u64>);

/// A direct call in both programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Called {
    /// What it leads to in both programs.
    pub(crate) at: (u64, u64),
    pub(crate) entry: Entry,
    /// The call of the input behind which both go on.
    pub(crate) site: u64,
    /// The registers that were taken to be others than the input's behind it.
    pub(crate) left: u16,
}

impl Default for Entry {
    /// All is the same, and nothing else is known.
    fn default() -> Self {
        Self([Held { input: None, output: None, is_same: true, is_unread: false }; ARGUMENTS.len()])
    }
}

impl Entry {
    /// What both programs know at a call. What differs and is `unread` in the input from there on counts as the same, but for a state.
    pub(super) fn of(pool: &Pool, input: &Machine, output: &Machine, unread: u16) -> Self {
        Self(std::array::from_fn(|index| {
            let register = ARGUMENTS[index];
            let (x, y) = (input.general[register], output.general[register]);
            let held = Held { input: Known::of(pool, x), output: Known::of(pool, y), is_same: x == y, is_unread: false };
            let is_state = index == STATE && held.output.is_some();
            match unread >> register & 1 == 1 && !held.is_same {
                true if is_state => Held { input: None, is_unread: true, ..held },
                true => Held { input: None, output: None, is_same: true, is_unread: false },
                false => held,
            }
        }))
    }

    /// What is known whichever of two ways one comes.
    pub(crate) fn meet(&self, other: &Self) -> Self {
        let mut met = *self;
        for (held, other) in met.0.iter_mut().zip(&other.0) {
            held.input = held.input.filter(|_| held.input == other.input);
            held.output = held.output.filter(|_| held.output == other.output);
            held.is_unread = (held.is_unread || held.is_same) && (other.is_unread || other.is_same);
            held.is_same &= other.is_same;
        }
        met
    }

    /// The registers in which the programs differ, as bits.
    pub(crate) fn differing(&self) -> u16 {
        let differing = ARGUMENTS.into_iter().zip(&self.0).filter(|(_, held)| !held.is_same);
        differing.fold(0, |all, (register, _)| all | 1 << register)
    }

    /// Whether what is entered has to be proven with what is known here, because the programs differ in something that may be read.
    pub(crate) fn demands_proof(&self) -> bool {
        self.0.iter().any(|held| !held.is_same && !held.is_unread)
    }

    /// What the output alone is told.
    pub(crate) fn state(&self) -> Option<u64> {
        match self.0[STATE] {
            Held { output: Some(Known::Number(state)), is_same: false, .. } => Some(state),
            _ => None,
        }
    }

    /// Facts at an entry, with what is known there.
    pub(super) fn add_to(&self, facts: &mut Facts) {
        for (register, held) in ARGUMENTS.into_iter().zip(self.0) {
            facts.know(register, held.input.map(Known::value), held.output.map(Known::value), held.is_same);
        }
        facts.settle();
    }
}
