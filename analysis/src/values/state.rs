//! What is known at one place of a function: the value of each register and of the frame's slots, and whether a pointer to the frame may be known elsewhere.
//!
//! **Frame slots.** Eight bytes at a fixed distance from the value that `rsp` had at the function's entry. A slot is tracked like a register while nothing
//! else can write it.
//!
//! **Escape.** The frame has *escaped* once its address may be anywhere but in the registers and slots that are known to hold it. Until then no other
//! pointer can be into it: it came to be when the function was entered, and an address that was not made from it names something else. From then on
//! anyone may read and write it at any time, other threads included, so that only register saves are still tracked.
//!
//! **Save slots.** A slot that holds what a callee-saved register had at entry is a register save and nothing else: that number means nothing to the function,
//! so no object of it is made there. Like the return address, it is only written through `rsp` or `rbp` themselves.
//!
//! **Meet.** Values with different bases become the arrival at the block; a slot that differs is forgotten. What is lost by that may be held by the new base:
//! a pointer to the frame has then escaped, and a pointer that the caller passed counts as kept. So at any time: *what is not known to be derived from
//! the frame is not, unless the frame has escaped*; and the same of each register's entry value and `Effects::keeps`.

use super::code::{CALLEE_SAVED, RSP, Register, RegisterSet};
use crate::domain::{Base, Value};

/// How many slots are tracked at a time.
const MAX_SLOTS: usize = 128;

/// Eight bytes of the frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    /// From the value of `rsp` at entry.
    pub offset: i32,
    pub value: Value,
}

impl Slot {
    /// Whether it holds nothing but a register save.
    pub fn is_save(&self) -> bool {
        is_save(&self.value) && self.offset < 0
    }
    fn overlaps(&self, low: i64, high: i64) -> bool {
        i64::from(self.offset) <= high && low < i64::from(self.offset) + 8
    }
}

/// Whether a value is what a callee-saved register had at entry.
pub fn is_save(value: &Value) -> bool {
    value.offset() == Some(0) && value.base.entry_register().is_some_and(|r| CALLEE_SAVED >> r & 1 != 0)
}

/// What may have become of the values that a function was entered with, and what it does to memory: what a caller has to know.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Effects {
    /// Registers whose entry values may be known somewhere after the function: in memory, or made into something else.
    pub keeps: RegisterSet,
    /// Registers through whose entry values memory is read, or written.
    pub reads: RegisterSet,
    pub writes: RegisterSet,
    /// Memory above the return address is read, or written, by its distance from the frame.
    pub reads_caller: bool,
    pub writes_caller: bool,
    /// Memory of the image is written.
    pub writes_image: bool,
    /// Memory is written that no base of the caller's names.
    pub writes_unknown: bool,
    pub returns_twice: bool,
}

impl Effects {
    /// Everything that may happen.
    pub const ANY: Self = Self {
        keeps: RegisterSet::MAX,
        reads: RegisterSet::MAX,
        writes: RegisterSet::MAX,
        reads_caller: true,
        writes_caller: true,
        writes_image: true,
        writes_unknown: true,
        returns_twice: true,
    };

    /// What either may do.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            keeps: self.keeps | other.keeps,
            reads: self.reads | other.reads,
            writes: self.writes | other.writes,
            reads_caller: self.reads_caller | other.reads_caller,
            writes_caller: self.writes_caller | other.writes_caller,
            writes_image: self.writes_image | other.writes_image,
            writes_unknown: self.writes_unknown | other.writes_unknown,
            returns_twice: self.returns_twice | other.returns_twice,
        }
    }
}

/// What is known at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub registers: [Value; 16],
    /// Ascending by offset, disjoint.
    pub slots: Vec<Slot>,
    pub has_escaped: bool,
    /// Whether the function was passed pointers into its callers' frames, which count from its own.
    pub knows_callers: bool,
}

impl State {
    /// At a function's entry: each register holds what it holds.
    pub fn at_entry() -> Self {
        let mut registers = [Value::UNKNOWN; 16];
        for (register, value) in registers.iter_mut().enumerate() {
            *value = Value::exact(Base::entry(register as u8), 0);
        }
        registers[RSP as usize] = Value::exact(Base::FRAME, 0);
        State { registers, slots: Vec::new(), has_escaped: false, knows_callers: false }
    }
    /// Where control comes from outside in the middle of a function. A frame that is older than that may be known elsewhere.
    pub fn at_arrival(block: u32) -> Self {
        let mut registers = [Value::UNKNOWN; 16];
        for (register, value) in registers.iter_mut().enumerate() {
            *value = Value::exact(Base::arrived(block, register as u8), 0);
        }
        State { registers, slots: Vec::new(), has_escaped: true, knows_callers: false }
    }
    /// What a landing pad finds when an exception leaves a call: this is the state behind the call, `before` what registers held there. Callee-saved ones are given
    /// back; what others hold is the landing's.
    #[must_use]
    pub fn thrown(&self, before: &[Value; 16], landing: u32) -> Self {
        let mut thrown = self.clone();
        for register in 0..16u8 {
            let is_kept = register == RSP || CALLEE_SAVED >> register & 1 != 0;
            let arrived = Value::exact(Base::arrived(landing, register), 0);
            thrown.set(register, if is_kept { before[register as usize] } else { arrived });
        }
        thrown
    }
    pub fn get(&self, register: Register) -> Value {
        self.registers[register as usize]
    }
    /// Whether others may hold an address that lies where a value says. Once it is not known how far from the frame that is, it may be in a
    /// caller's frame, of which nobody here knows who has its address.
    pub fn may_be_known_elsewhere(&self, value: &Value) -> bool {
        self.has_escaped || self.knows_callers && value.base == Base::FRAME && value.offsets.is_full()
    }
    pub fn set(&mut self, register: Register, value: Value) {
        self.registers[register as usize] = value;
    }

    /// Takes note that what a value describes may be known anywhere from now on.
    pub fn release(&mut self, value: &Value, effects: &mut Effects) {
        if let Some(register) = value.base.entry_register() {
            effects.keeps |= 1 << register;
        }
        // A pointer into the frames of callers says nothing of one's own.
        let is_callers = value.is_pure && !value.offsets.is_full() && value.offsets.low >= 8;
        if value.base == Base::FRAME && !is_callers {
            self.escape(effects);
        }
    }

    /// The frame can be read by others from now on, and so can what it holds.
    pub fn escape(&mut self, effects: &mut Effects) {
        if std::mem::replace(&mut self.has_escaped, true) {
            return;
        }
        self.slots.retain(|slot| {
            let is_save = slot.is_save();
            if let (false, Some(register)) = (is_save, slot.value.base.entry_register()) {
                effects.keeps |= 1 << register;
            }
            is_save
        });
    }

    /// Forgets the slots that a condition names; what they hold is lost sight of.
    pub fn forget_slots(&mut self, effects: &mut Effects, mut is_lost: impl FnMut(&Slot) -> bool) {
        let mut lost = Vec::new();
        self.slots.retain(|slot| {
            let is_kept = !is_lost(slot);
            if !is_kept && !slot.is_save() && slot.value.base.is_stable() && !slot.value.base.is_global() {
                lost.push(slot.value);
            }
            is_kept
        });
        for value in lost {
            self.release(&value, effects);
        }
    }

    /// Drops the slots that are overwritten: what they held is gone, not lost sight of.
    pub fn overwrite(&mut self, low: i64, high: i64) {
        if !self.slots.is_empty() {
            self.slots.retain(|slot| !slot.overlaps(low, high));
        }
    }

    /// The slot at exactly this place.
    pub fn slot(&self, offset: i64) -> Option<&Slot> {
        let found = self.slots.binary_search_by_key(&offset, |s| i64::from(s.offset)).ok()?;
        Some(&self.slots[found])
    }
    pub fn slots_within(&self, low: i64, high: i64) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(move |s| s.overlaps(low, high))
    }
    /// Makes a slot of eight bytes that nothing known overlaps. False where it can't be tracked.
    pub fn put_slot(&mut self, offset: i64, value: Value) -> bool {
        let Ok(offset) = i32::try_from(offset) else { return false };
        if self.slots.len() >= MAX_SLOTS || self.has_escaped && !(is_save(&value) && offset < 0) {
            return false;
        }
        let at = self.slots.partition_point(|s| s.offset < offset);
        self.slots.insert(at, Slot { offset, value });
        true
    }

    /// Takes in what another way to the same block brings. True if anything changed.
    pub fn meet(&mut self, other: &State, block: u32, is_widening: bool, effects: &mut Effects) -> bool {
        let mut has_changed = false;
        let mut lost: [Option<Value>; 32] = [None; 32];
        for register in 0..16u8 {
            let (old, new) = (self.get(register), other.get(register));
            if old == new {
                continue;
            }
            let arrival = Value::exact(Base::arrived(block, register), 0);
            let merged = match old.join(new, is_widening) {
                _ if old == arrival => {
                    lost[register as usize] = Some(new);
                    arrival
                }
                Some(joined) => joined,
                None => {
                    (lost[register as usize], lost[16 + register as usize]) = (Some(old), Some(new));
                    arrival
                }
            };
            has_changed |= merged != old;
            self.set(register, merged);
        }
        if other.has_escaped && !self.has_escaped {
            self.escape(effects);
            has_changed = true;
        }
        has_changed |= other.knows_callers && !self.knows_callers;
        self.knows_callers |= other.knows_callers;
        has_changed |= self.meet_slots(other, is_widening, effects);
        let had_escaped = self.has_escaped;
        for value in lost.iter().flatten() {
            self.release(value, effects);
        }
        has_changed || self.has_escaped != had_escaped
    }

    fn meet_slots(&mut self, other: &State, is_widening: bool, effects: &mut Effects) -> bool {
        if self.slots == other.slots {
            return false;
        }
        let count = self.slots.len();
        let (mut lost, mut has_changed) = (Vec::new(), false);
        self.slots.retain_mut(|slot| {
            let found = other.slot(i64::from(slot.offset));
            match found.and_then(|theirs| slot.value.join(theirs.value, is_widening)) {
                Some(joined) => {
                    has_changed |= joined != slot.value;
                    slot.value = joined;
                    true
                }
                None => {
                    lost.extend((!slot.is_save()).then_some(slot.value));
                    false
                }
            }
        });
        let is_missing = |s: &&Slot| !s.is_save() && self.slot(i64::from(s.offset)).is_none();
        lost.extend(other.slots.iter().filter(is_missing).map(|s| s.value));
        for value in lost {
            self.release(&value, effects);
        }
        has_changed || self.slots.len() != count
    }
}
