//! What a region stores to the frame and loads again: it stays in registers.
//!
//! **Method.** A slot that the first block stores, whole and once, and that is loaded whole later, gets a register of its own (`names`). The store becomes a copy to that register and each load
//! one from it; where the region is left, the late frame gets the slot from there. So the register that was stored may change meanwhile.
//!
//! **Invariant.** All loads come behind the store: it is in the first block, and before those of that block.

use iced_x86::{Code, Instruction, OpKind};

use super::frame::{Part, loaded_at, number, stored_at};
use super::names::{copy, sized_like};
use super::region::{Parts, Region};

/// A slot: its place from the stack pointer, its bytes, and the address of the instruction that stores it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    place: (u64, u64),
    stored_by: u64,
}

/// The store in a block before an address, of all that a load gets.
fn store_of(first: &Parts, load: &Instruction) -> Option<Slot> {
    let place = loaded_at(load)?;
    let is_it = |store: &Instruction| {
        let is_earlier = store.ip() < load.ip() || !first.iter().any(|(other, _)| other.ip() == load.ip());
        let is_simple =
            matches!(store.code(), Code::Mov_rm64_r64 | Code::Mov_rm32_r32 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32);
        is_earlier && is_simple && stored_at(store) == Some(place)
    };
    let mut stores = first.iter().filter(|(store, part)| *part == Part::Store && is_it(store));
    let (store, _) = stores.next()?;
    stores.next().is_none().then(|| Slot { place, stored_by: store.ip() })
}

/// Whether what a load gets is known.
pub(super) fn is_stored(first: &Parts, load: &Instruction) -> bool {
    store_of(first, load).is_some()
}

/// The slots that are loaded.
pub(super) fn loaded(region: &Region) -> Vec<Slot> {
    let Some(first) = region.members.first() else { return Vec::new() };
    let all = region.members.iter().flat_map(|member| &member.body).filter(|(_, part)| *part == Part::Load);
    let mut slots: Vec<Slot> = all.filter_map(|(load, _)| store_of(&first.body, load)).collect();
    slots.sort_unstable();
    slots.dedup();
    slots
}

/// Slots and the registers that hold them.
#[derive(Clone, Debug, Default)]
pub(super) struct Homes(pub(super) Vec<(Slot, u8)>);

impl Homes {
    fn of(&self, place: (u64, u64)) -> Option<u8> {
        self.0.iter().find(|(slot, _)| slot.place == place).map(|&(_, home)| home)
    }

    /// Whether a store goes to a register.
    pub(super) fn has(&self, store: &Instruction) -> bool {
        self.0.iter().any(|(slot, _)| slot.stored_by == store.ip())
    }

    /// What is done in the place of a store.
    pub(super) fn stored(&self, store: &Instruction) -> Option<Instruction> {
        let home = self.of(stored_at(store)?)?;
        let mut put = match store.code() {
            Code::Mov_rm64_r64 | Code::Mov_rm32_r32 => copy(home, number(store.op1_register())?, false)?,
            Code::Mov_rm64_imm32 => {
                Instruction::with2(Code::Mov_rm64_imm32, sized_like(home, 8)?, store.immediate(1).cast_signed()).ok()?
            }
            Code::Mov_rm32_imm32 => Instruction::with2(Code::Mov_r32_imm32, sized_like(home, 4)?, store.immediate32()).ok()?,
            _ => return None,
        };
        put.set_ip(store.ip());
        Some(put)
    }

    /// What is done in the place of a load.
    pub(super) fn loaded(&self, load: &Instruction) -> Option<Instruction> {
        let place = loaded_at(load)?;
        let mut get = copy(number(load.op0_register())?, self.of(place)?, place.1 == 4)?;
        get.set_ip(load.ip());
        Some(get)
    }

    /// The store as it is made late.
    pub(super) fn late(&self, store: &Instruction) -> Option<Instruction> {
        let mut late = *store;
        if self.has(store) && store.op1_kind() == OpKind::Register {
            late.set_op1_register(sized_like(self.of(stored_at(store)?)?, stored_at(store)?.1)?);
        }
        Some(late)
    }
}
