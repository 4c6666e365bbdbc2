//! Calls that the output makes in another way: past a stub, or not at all because the callee's body stands there.
//!
//! **Past a stub.** `call stub` against `call *slot(%rip)`: the stub must be `[endbr64] [bnd] jmp *slot(%rip)` of the same slot. From the call to the
//! jump the input does nothing that can be seen, so both push a return address and go to what the slot holds then. A stub whose jump has any other prefix
//! (`notrack`) is none: its target might lack `endbr64`.
//!
//! **The body in the call's place.** Where the input calls and the output does not, the input steps into the callee alone, past an `endbr64`, and from then on pairs
//! stand *within* that call, until the input's `ret`, which it steps over alone too. In between the two states are the same but for the stack pointer,
//! which is 8 lower in the input, the word that it points to, and who is asked to unwind. So within a call
//! * no instruction reads or writes the stack pointer or addresses by it ([`crate::stack`]), and none is a call, an indirect jump or a trap: then none can tell;
//! * the callee's frame description says at each instruction what it says at an entry, and the output's says what the *call's* says: who unwinds
//!   arrives at the same frame with the same registers;
//! * the output's handlers are those of the call, and the callee has none.
//!
//! The word below the stack pointer is the return address in the input and something else in the output. Only code that reads below the stack pointer
//! what a call has left there could tell; signal handlers overwrite the same word, so it has no value to rely on.
//!
//! An output instruction within a call stands for that call alone ([`super::relation`]): no other way leads into it.
//!
//! **Bounds.** A call within a call is compared as a call, so there is one level; steps of the input alone are limited by the caller.

use super::{Side, Walk};
use crate::decode::{Inst, Kind, Shape};
use crate::report::{Violation, ViolationKind};

/// `ret`, and with prefixes that do nothing to it.
const RETURNS: [&[u8]; 3] = [&[0xc3], &[0xf3, 0xc3], &[0xf2, 0xc3]];
/// `jmp *slot(%rip)` and `call *slot(%rip)` without the slot.
const JUMP_THROUGH: [u8; 2] = [0xff, 0x25];
pub(crate) const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
/// Does nothing unless bounds are tracked, which no system does.
const BND: u8 = 0xf2;

impl Side<'_> {
    /// The slot through which the stub at an address jumps, if it does nothing else.
    pub(crate) fn slot_of_stub(&self, mut address: u64) -> Option<u64> {
        let mut inst = self.inst(address)?;
        if inst.kind == Kind::EndBranch {
            address += u64::from(inst.len);
            inst = self.inst(address)?;
        }
        let bytes = self.code.bytes(address, inst);
        let bytes = bytes.strip_prefix(&[BND]).unwrap_or(bytes);
        let is_jump = bytes.strip_prefix(&JUMP_THROUGH).is_some_and(|rest| rest.len() == 4);
        (is_jump && inst.disp != 0).then(|| self.operand(address, inst))
    }
}

impl Walk<'_, '_> {
    /// Whether the input's call leads to a stub and the output calls through the stub's slot.
    pub(super) fn is_call_past_stub(&self, i: u64, a: Inst, o: u64, b: Inst) -> bool {
        if a.kind != Kind::Call || b.kind != Kind::IndirectCall {
            return false;
        }
        let is_plain = self.output.code.bytes(o, b).strip_prefix(&CALL_THROUGH).is_some_and(|rest| rest.len() == 4);
        let slot = self.input.slot_of_stub(self.input.target(i, a));
        is_plain && slot == Some(self.output.operand(o, b)) && slot.is_some_and(|slot| !self.input.image.in_code(slot))
    }

    /// Where the input goes alone from an instruction that the output has no counterpart of: into a callee, or back out of it.
    pub(super) fn step_of_input(&self, i: u64, a: Inst, b: Inst, within: Option<u64>) -> Option<(u64, Option<u64>)> {
        match within {
            None if a.kind == Kind::Call && !matches!(b.kind, Kind::Call | Kind::IndirectCall) => {
                let opcode = Shape::of(self.input.code.bytes(i, a)).opcode;
                let target = self.input.target(i, a);
                let callee = self.input.inst(target)?;
                let skipped = if callee.kind == Kind::EndBranch { u64::from(callee.len) } else { 0 };
                (opcode == 0 && self.input.unwind.is_as_at_entry(target)).then_some((target + skipped, Some(i)))
            }
            Some(call) if a.kind == Kind::Return && RETURNS.contains(&self.input.code.bytes(i, a)) => {
                let is_right = self.input.unwind.is_as_at_entry(i);
                let len = self.input.inst(call)?.len;
                is_right.then_some((call + u64::from(len), None))
            }
            _ => None,
        }
    }

    /// What must hold of an instruction of a callee for the output to have it in the place of `call`.
    pub(super) fn compare_inlined(&mut self, call: u64, i: u64, a: Inst, o: u64) -> Result<(), Violation> {
        let fail = |kind, message: &str| {
            Err(Violation::new(kind, o, format!("{message} (the input's {i:#x}, in place of the call at {call:#x})")))
        };
        if !matches!(a.kind, Kind::Plain | Kind::Lea | Kind::Branch) {
            return fail(ViolationKind::InstructionMismatch, "only plain instructions may stand for a call");
        }
        if !self.stack_use.is_free(self.input.code.bytes(i, a), i) {
            return fail(ViolationKind::InstructionMismatch, "uses the stack of a call that is no more made");
        }
        if !self.input.unwind.is_as_at_entry(i) {
            return fail(ViolationKind::UnwindRow, "the callee is not as at its entry here");
        }
        self.compare_call_sites(call, o)
    }
}
