//! Functions in which the place around a system call is known.
//!
//! **Problem.** The kernel says where a program was when it made a system call: to a filter of system calls, which may let pass by that (Chromium's sandbox), to the handler of a signal, and in `rcx` to the
//! program itself. All of these may compare it with the label behind the instruction, of which the program has the address. A label begins a block, and a block may be laid elsewhere
//! than behind the one that runs into it; then the label leads to where the program goes on, and is not what the kernel says. Who restarts a system call compares with the label at the instruction.
//! A handler of breakpoints is told what is behind one as well.
//!
//! **Method.** Where an address is known that ends or begins an instruction that calls the kernel, or ends a breakpoint in the same function, what holds it stays. Addresses that only tables of jumps hold are none. No more than a few functions of a
//! machine are like that.

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::NamedBy;
use crate::discover::units::unit_at;
use crate::ir::PinReason;

/// `syscall`, `sysenter`, `int $0x80`.
const SYSTEM_CALLS: [&[u8]; 3] = [&[0x0f, 0x05], &[0x0f, 0x34], &[0xcd, 0x80]];

/// `int3`, in its short form and its long one, and `int1`.
const BREAKPOINTS: [&[u8]; 3] = [&[0xcc], &[0xcd, 0x03], &[0xf1]];

impl PinContext<'_> {
    pub(super) fn pin_by_system_call(&self, pins: &mut Pins) {
        for (va, _) in self.names.iter().filter(|(_, by)| by.intersects(NamedBy::TAKEN)) {
            let is_call = |call: &Va| self.is_one_of(*call, 2, &SYSTEM_CALLS);
            if let Some(call) = self.told_behind(va).or(Some(va).filter(is_call)) {
                self.pin_at(call, PinReason::PlaceNamed, pins);
                self.pin_at(va, PinReason::PlaceNamed, pins);
            }
        }
    }

    /// The instruction that ends at an address, if the kernel says of a program there that it is behind. Breakpoints between functions are filler.
    fn told_behind(&self, va: Va) -> Option<Va> {
        (1..=2).filter_map(|len| Some((Va(va.0.checked_sub(len)?), len as usize))).find_map(|(before, len)| {
            let is_inside = || unit_at(self.units, before) == unit_at(self.units, va);
            let is_told = self.is_one_of(before, len, &SYSTEM_CALLS) || self.is_one_of(before, len, &BREAKPOINTS) && is_inside();
            is_told.then_some(before)
        })
    }

    fn is_one_of(&self, va: Va, len: usize, instructions: &[&[u8]]) -> bool {
        self.image.read(va, len).is_some_and(|bytes| instructions.contains(&bytes)) && self.may_be_instruction(va)
    }
}
