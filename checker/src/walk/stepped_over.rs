//! Instructions that fault by what they are, and a handler that steps over them: who emulates them, or asserts, reports and goes on.
//!
//! **Rule.** What stands behind such an instruction of the input is executed as well where it may be meant to be: in the same frame description, with the same row, so that the frame is the one of the instruction, and not
//! behind a call, which need not come back; compilers end what does not return in this way. Then what the output has behind its own stands for what the input has.

use super::Walk;
use crate::decode::{Inst, Kind};
use crate::tables::instruction_before;
use crate::unwind::NONE;

impl Walk<'_, '_> {
    /// Whether control may go on behind an instruction of the input that stops.
    pub(crate) fn is_stepped_over(&self, address: u64, inst: Inst) -> bool {
        let mut next = address + u64::from(inst.len);
        while let Some(filler) = self.input.inst(next).filter(|inst| inst.kind == Kind::Nop) {
            next += u64::from(filler.len);
        }
        let (here, there) = (self.input.unwind.locate(address), self.input.unwind.locate(next));
        let is_one_frame = here.fde != NONE && (here.fde, here.row) == (there.fde, there.row);
        let is_code = self.input.inst(next).is_some();
        let is_behind_call = || {
            let before = instruction_before(self, address);
            before.is_some_and(|(_, before)| matches!(before.kind, Kind::Call | Kind::IndirectCall))
        };
        is_one_frame && is_code && !is_behind_call()
    }
}
