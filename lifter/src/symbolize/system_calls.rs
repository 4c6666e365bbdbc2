//! Functions in which the place around a system call is known.
//!
//! **Problem.** The kernel says where a program was when it made a system call: to a filter of system calls, which may let pass by that (Chromium's sandbox), to the handler of a signal, and in `rcx` to the
//! program itself. All of these may compare it with the label behind the instruction, of which the program has the address. A label begins a block, and a block may be laid elsewhere
//! than behind the one that runs into it; then the label leads to where the program goes on, and is not what the kernel says. Who restarts a system call compares with the label at the instruction.
//!
//! **Method.** Where an address is known that ends or begins an instruction that calls the kernel, what holds it stays. Addresses that only tables of jumps hold are none. No more than a few functions of a
//! machine are like that.

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::NamedBy;
use crate::ir::PinReason;

/// `syscall`, `sysenter`, `int $0x80`.
const SYSTEM_CALLS: [[u8; 2]; 3] = [[0x0f, 0x05], [0x0f, 0x34], [0xcd, 0x80]];

impl PinContext<'_> {
    pub(super) fn pin_by_system_call(&self, pins: &mut Pins) {
        for (va, _) in self.names.iter().filter(|(_, by)| by.intersects(NamedBy::TAKEN)) {
            let before = va.0.checked_sub(2).map(Va).filter(|&call| self.is_system_call(call));
            if let Some(call) = before.or(Some(va).filter(|&call| self.is_system_call(call))) {
                self.pin_at(call, PinReason::PlaceNamed, pins);
                self.pin_at(va, PinReason::PlaceNamed, pins);
            }
        }
    }

    fn is_system_call(&self, va: Va) -> bool {
        let bytes = self.image.read(va, 2);
        SYSTEM_CALLS.iter().any(|call| bytes == Some(call)) && self.may_be_instruction(va)
    }
}
