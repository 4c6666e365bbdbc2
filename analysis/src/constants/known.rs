//! Constants, and what is known of a procedure's registers at its entry.

use lifter::Va;
use smallvec::SmallVec;

use crate::domain::{Base, Value};
use crate::values::State;
use crate::values::code::{Register, RegisterSet};

/// A value that is the same in every execution, but for where the image lies.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Constant {
    Number(u64),
    /// An address of the file, in a position-independent one.
    Address(Va),
}

impl Constant {
    pub fn of(value: &Value) -> Option<Self> {
        let offset = value.offset()?;
        match value.base {
            Base::NUMBER => Some(Constant::Number(offset.cast_unsigned())),
            Base::IMAGE => Some(Constant::Address(Va(offset.cast_unsigned()))),
            _ => None,
        }
    }
    pub fn value(self) -> Value {
        match self {
            Constant::Number(number) => Value::number(number.cast_signed()),
            Constant::Address(at) => Value::exact(Base::IMAGE, at.0.cast_signed()),
        }
    }
    pub fn number(self) -> Option<u64> {
        match self {
            Constant::Number(number) => Some(number),
            Constant::Address(_) => None,
        }
    }
}

impl std::fmt::Display for Constant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Constant::Number(number) if *number < 1 << 63 => write!(f, "{number}"),
            Constant::Number(number) => write!(f, "{}", number.cast_signed()),
            Constant::Address(at) => write!(f, "image+{at}"),
        }
    }
}

/// Registers that hold constants where a procedure is entered; ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Facts(SmallVec<[(Register, Constant); 2]>);

impl Facts {
    /// What a state says of some registers.
    pub fn in_state(state: &State, registers: RegisterSet) -> Self {
        let wanted = (0..16u8).filter(|r| registers >> r & 1 != 0);
        Facts(wanted.filter_map(|r| Some((r, Constant::of(&state.get(r))?))).collect())
    }
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    pub fn iter(&self) -> impl Iterator<Item = (Register, Constant)> + '_ {
        self.0.iter().copied()
    }
    /// What both say.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        Facts(self.0.iter().filter(|fact| other.0.contains(fact)).copied().collect())
    }
    /// The state at an entry where these hold.
    pub fn entry_state(&self) -> State {
        let mut state = State::at_entry();
        for (register, constant) in self.iter() {
            state.set(register, constant.value());
        }
        state
    }
}

impl FromIterator<(Register, Constant)> for Facts {
    fn from_iter<I: IntoIterator<Item = (Register, Constant)>>(facts: I) -> Self {
        let mut facts: SmallVec<[(Register, Constant); 2]> = facts.into_iter().collect();
        facts.sort_unstable();
        facts.dedup_by_key(|f| f.0);
        Facts(facts)
    }
}

lifter::define_id!(
    /// A procedure with what is known at its entry.
    Case, "case");
