//! The state of one program along a segment: registers, flags, private slots of the frame, and what it did to memory that others see.
//!
//! **Private slots.** A slot of the function's own frame is private while no address of the frame exists but in `rsp` and in `rbp` at a known distance: then
//! only operands with these bases reach it. As soon as such an address goes anywhere else ([`Privacy::Frame`] no longer holds), only the slots in which the
//! frame descriptions say that registers are saved stay private: those are written by their names alone, in any compiled program. All other accesses are [`Event`]s.
//!
//! Slots are named by their distance from the canonical frame address, at which the caller's part begins; the return address and all above it are no private slots.

use std::collections::BTreeMap;

use super::aligned::Aligned;
use super::expr::{Flag, Id, Node, Pool};

pub(super) const FLAGS: [Flag; 6] = [Flag::Carry, Flag::Parity, Flag::Adjust, Flag::Zero, Flag::Sign, Flag::Overflow];
pub(super) const STACK: usize = 4;
pub(super) const BASE: usize = 5;
/// Nothing below this distance from the stack pointer keeps its value: a signal may come.
pub(super) const RED_ZONE: i64 = 128;
/// The return address is here; below it is the function's own part.
pub(super) const OWN_END: i64 = -8;

/// Which slots are private.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Privacy {
    Frame,
    /// Those at these offsets, 8 bytes each.
    Saves(Vec<i64>),
}

impl Privacy {
    pub(super) fn has_any(&self) -> bool {
        !matches!(self, Self::Saves(saves) if saves.is_empty())
    }

    /// `None` if a part is and a part is not.
    pub(super) fn covers(&self, offset: i64, bytes: i64) -> Option<bool> {
        let end = offset.checked_add(bytes)?;
        match self {
            Self::Frame if end <= OWN_END => Some(true),
            Self::Frame if offset >= OWN_END => Some(false),
            Self::Frame => None,
            Self::Saves(saves) => {
                let touches = saves.iter().any(|&save| save < end && offset < save + 8);
                let is_whole = saves.iter().any(|&save| save <= offset && end <= save + 8);
                if touches == is_whole { Some(is_whole) } else { None }
            }
        }
    }
}

/// An access that others may see.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) address: Id,
    /// Bits.
    pub(super) size: u16,
    /// What is stored; a load has none.
    pub(super) value: Option<Id>,
    /// The instruction.
    pub(super) at: u64,
    /// How many of the other kind came before.
    pub(super) others_before: u32,
}

/// Why a segment cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// An address of the frame goes somewhere.
    Escape,
    Other(String),
}

#[derive(Clone)]
pub(super) struct Machine {
    pub(super) general: [Id; 16],
    pub(super) vectors: [Id; 32],
    pub(super) flags: [Id; 6],
    /// Everything else that instructions read and write: control words, x87.
    pub(super) rest: Id,
    /// By offset: size in bits and value; they do not overlap.
    pub(super) slots: BTreeMap<i64, (u16, Id)>,
    pub(super) loads: Vec<Event>,
    pub(super) stores: Vec<Event>,
    /// Accesses, to private slots too, that fault unless they are aligned.
    pub(super) aligned: Vec<Aligned>,
    /// Instructions that may trap for their values: key and inputs, and how many loads and stores came before.
    pub(super) traps: Vec<(Id, u32, u32)>,
    /// Ranges of the frame that the stack pointer went up over, and that were not written again.
    pub(super) popped: Vec<(i64, i64)>,
    pub(super) slot_loads: u32,
    pub(super) slot_stores: u32,
    pub(super) fixed_loads: u32,
    /// Loads are told from each other by what they read, not by when.
    pub(super) no_races: bool,
}

/// Whether two accesses cannot overlap.
pub(super) fn are_apart(pool: &Pool, x: &Event, y: &Event) -> bool {
    let ((a, of_a), (b, of_b)) = (pool.split(x.address), pool.split(y.address));
    let (size_of_a, size_of_b) = (u64::from(x.size / 8), u64::from(y.size / 8));
    let is_frame = |id: Id| pool.as_frame(id).is_some();
    let is_image = |id: Id| pool.as_image(id).or(pool.as_const(id)).is_some();
    if of_a == of_b {
        let distance = b.wrapping_sub(a);
        return distance >= size_of_a && distance.wrapping_neg() >= size_of_b;
    }
    (is_frame(x.address) && is_image(y.address)) || (is_image(x.address) && is_frame(y.address))
}

impl Machine {
    pub(super) fn stack_offset(&self, pool: &Pool) -> Option<i64> {
        pool.as_frame(self.general[STACK])
    }

    /// Reads a part of a general register.
    pub(super) fn read_general(&self, pool: &mut Pool, number: u8, width: u16, is_second: bool) -> Id {
        let value = self.general[usize::from(number & 15)];
        if is_second { pool.extract(value, 8, 8) } else { pool.trunc(value, width) }
    }

    /// Writes one: 32 bits clear the rest, 8 and 16 keep it.
    pub(super) fn write_general(
        &mut self,
        pool: &mut Pool,
        privacy: &Privacy,
        (number, is_second): (u8, bool),
        value: Id,
    ) -> Result<(), Trouble> {
        let at = usize::from(number & 15);
        let old = self.general[at];
        let value = match pool.width(value) {
            64 => value,
            32 => pool.zext(value, 64),
            _ => pool.insert(old, value, if is_second { 8 } else { 0 }),
        };
        let is_pointer = matches!(at, STACK | BASE) && pool.as_frame(value).is_some();
        if pool.is_of_frame(value) && !is_pointer {
            self.escapes(privacy)?;
        }
        if at == STACK && !is_pointer && privacy.has_any() {
            return Err(Trouble::Escape);
        }
        if let Some(top) = pool.as_frame(value).filter(|_| at == STACK) {
            if let Some(from) = pool.as_frame(old).filter(|&from| from < top) {
                self.popped.push((from, top));
            }
            self.slots.retain(|&offset, _| offset >= top - RED_ZONE);
        }
        self.general[at] = value;
        Ok(())
    }

    /// Writes the low part of a vector register; the rest stays, or is cleared.
    pub(super) fn write_vector(
        &mut self,
        pool: &mut Pool,
        privacy: &Privacy,
        (number, clears): (u8, bool),
        value: Id,
    ) -> Result<(), Trouble> {
        if pool.is_of_frame(value) {
            self.escapes(privacy)?;
        }
        let register = &mut self.vectors[usize::from(number & 31)];
        *register = if clears { pool.zext(value, 512) } else { pool.insert(*register, value, 0) };
        Ok(())
    }

    pub(super) fn load(&mut self, pool: &mut Pool, privacy: &Privacy, address: Id, size: u16, at: u64) -> Result<Id, Trouble> {
        if let Some(offset) = self.slot_of(pool, privacy, address, size)? {
            self.slot_loads += 1;
            return Ok(self.read_slot(pool, offset, size));
        }
        let event = Event { address, size, value: None, at, others_before: self.stores.len() as u32 };
        let number = match self.no_races {
            true => self.stores.iter().filter(|store| !are_apart(pool, store, &event)).count(),
            false => self.loads.len(),
        };
        let value = pool.make(Node::Load(number as u32, address, size), size);
        self.loads.push(event);
        Ok(value)
    }

    pub(super) fn store(&mut self, pool: &mut Pool, privacy: &Privacy, address: Id, value: Id, at: u64) -> Result<(), Trouble> {
        if pool.is_of_frame(value) {
            self.escapes(privacy)?;
        }
        let size = pool.width(value);
        if let Some(offset) = self.slot_of(pool, privacy, address, size)? {
            self.slot_stores += 1;
            self.write_slot(pool, offset, value);
            return Ok(());
        }
        self.stores.push(Event { address, size, value: Some(value), at, others_before: self.loads.len() as u32 });
        Ok(())
    }

    pub(super) fn escapes(&self, privacy: &Privacy) -> Result<(), Trouble> {
        if *privacy == Privacy::Frame { Err(Trouble::Escape) } else { Ok(()) }
    }

    /// The private slot that an address names.
    fn slot_of(&self, pool: &Pool, privacy: &Privacy, address: Id, size: u16) -> Result<Option<i64>, Trouble> {
        let Some(offset) = pool.as_frame(address) else {
            if pool.is_of_frame(address) {
                self.escapes(privacy)?;
            }
            return Ok(None);
        };
        match privacy.covers(offset, i64::from(size / 8)) {
            Some(is_private) => Ok(is_private.then_some(offset)),
            None => Err(Trouble::Other(format!("an access at {offset:#x} of the frame is partly private"))),
        }
    }

    /// Gives a slot's value; what it was when the segment began is kept.
    pub(super) fn read_slot(&mut self, pool: &mut Pool, offset: i64, size: u16) -> Id {
        let end = offset + i64::from(size / 8);
        let touched = self.touched(offset, end);
        match *touched {
            [] => {
                let value = pool.make(Node::Slot(offset, (size / 8) as u8), size);
                self.slots.insert(offset, (size, value));
                value
            }
            [(start, width, value)] if start <= offset && end <= start + i64::from(width / 8) => {
                pool.extract(value, ((offset - start) * 8) as u16, size)
            }
            _ => {
                let mut pieces = Vec::new();
                let mut at = offset;
                for (start, width, value) in touched {
                    if at < start {
                        pieces.push(pool.make(Node::Slot(at, (start - at) as u8), ((start - at) * 8) as u16));
                        at = start;
                    }
                    let stop = end.min(start + i64::from(width / 8));
                    pieces.push(pool.extract(value, ((at - start) * 8) as u16, ((stop - at) * 8) as u16));
                    at = stop;
                }
                if at < end {
                    pieces.push(pool.make(Node::Slot(at, (end - at) as u8), ((end - at) * 8) as u16));
                }
                pool.pieces(pieces)
            }
        }
    }

    pub(super) fn write_slot(&mut self, pool: &mut Pool, offset: i64, value: Id) {
        let size = pool.width(value);
        let end = offset + i64::from(size / 8);
        for (start, stop) in std::mem::take(&mut self.popped) {
            // What is left of it on both sides.
            let rest = [(start, stop.min(offset)), (start.max(end), stop)];
            self.popped.extend(rest.into_iter().filter(|&(start, stop)| start < stop));
        }
        for (start, width, old) in self.touched(offset, end) {
            self.slots.remove(&start);
            let stop = start + i64::from(width / 8);
            if start < offset {
                let bits = ((offset - start) * 8) as u16;
                let kept = pool.extract(old, 0, bits);
                self.slots.insert(start, (bits, kept));
            }
            if end < stop {
                let bits = ((stop - end) * 8) as u16;
                let kept = pool.extract(old, ((end - start) * 8) as u16, bits);
                self.slots.insert(end, (bits, kept));
            }
        }
        self.slots.insert(offset, (size, value));
    }

    /// The known slots that overlap a range.
    fn touched(&self, start: i64, end: i64) -> Vec<(i64, u16, Id)> {
        let before = self.slots.range(..start).next_back();
        let before = before.filter(|&(&at, &(size, _))| at + i64::from(size / 8) > start);
        before.into_iter().chain(self.slots.range(start..end)).map(|(&at, &(size, value))| (at, size, value)).collect()
    }

    /// Where known slots begin and end.
    pub(super) fn boundaries(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.slots.iter().map(|(&at, &(size, _))| (at, at + i64::from(size / 8)))
    }
}
