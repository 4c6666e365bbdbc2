//! Calls that the output makes in another way: past a stub, or not at all because the callee's body stands there.
//!
//! **Past a stub.** `call stub` against `call *slot(%rip)`: the stub must be `[endbr64] [bnd] jmp *slot(%rip)` of the same slot. From the call to the
//! jump the input does nothing that can be seen, so both push a return address and go to what the slot holds then. A stub whose jump has any other prefix
//! (`notrack`) is none: its target might lack `endbr64`.
//!
//! **Through a constant.** `call *slot(%rip)` against `call target`, where the slot never changes and holds the address of what stands at the target.
//!
//! **The body in the call's place.** Where the input calls and the output does not, the input steps into the callee alone, past an `endbr64`, and from then on pairs
//! stand *within* that call, until the input's `ret`, which it steps over alone too. In between the two states are the same but for the stack pointer,
//! which is 8 lower in the input, the word that it points to, and who is asked to unwind. So within a call
//! * no instruction reads or writes the stack pointer or addresses by it ([`crate::stack`]), and none is a call, an indirect jump or a trap: then none can tell;
//! * the callee's frame description says at each instruction what it says at an entry, and the output's says what the *call's* says: who unwinds
//!   arrives at the same frame with the same registers;
//! * the output's handlers are those of the call, and the callee has none.
//!
//! Prefixes of the call for segments and for the size of addresses don't matter: they act on memory operands, and a direct call has none. One for the size of
//! operands does, on some processors, and so may any other.
//!
//! The word below the stack pointer is the return address in the input and something else in the output. Only code that reads below the stack pointer
//! what a call has left there could tell. Code that is hardened against speculation does, and compares it with the address of what stands behind the call.
//!
//! **Named returns.** Where an instruction of the input names the address behind a call, it may compare it with a return address. So no callee's body takes the place of such a call, and
//! where the output names that address, each of its calls for the input's returns to the named place itself: not to a jump that leads there, and not to a copy.
//! A place to which jumps of the function lead as well is a label, as those of a computed `goto`: below the stack of who arrives by a jump stands no such address, so nobody compares it there.
//!
//! Where the input goes on in the callee, or in what the callee tail-calls, the output may call that place instead, or call through what the input jumps
//! through: then both have a return address on the stack again, from which both go on where the call ends, and the place itself is a pair like any other, within
//! nothing. A frame of what is called so is returned to as one of the original call was: the rows and handlers are compared as for any instruction within.
//!
//! An output instruction within a call stands for that call alone ([`super::relation`]): no other way leads into it.
//!
//! **Bounds.** A call within a call is compared as a call, so there is one level; steps of the input alone are limited by the caller.

use super::compare::prefixes_of_call;
use super::{Pair, Reach, Side, Walk, leads_to};
use crate::decode::{Inst, Kind, Shape};
use crate::faults::may_fault;
use crate::report::{Violation, ViolationKind};

/// `ret`, and with prefixes that do nothing to it.
const RETURNS: [&[u8]; 3] = [&[0xc3], &[0xf3, 0xc3], &[0xf2, 0xc3]];
/// `jmp *slot(%rip)` and `call *slot(%rip)` without the slot.
const JUMP_THROUGH: [u8; 2] = [0xff, 0x25];
pub(crate) const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
/// `push word(%rip)` without the word.
const PUSH_OF_WORD: [u8; 2] = [0xff, 0x35];
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

    /// The word through which an instruction of a kind goes that begins so and has nothing but a displacement behind that.
    fn slot_of(&self, address: u64, inst: Inst, kind: Kind, opcode: [u8; 2]) -> Option<u64> {
        let is_through = inst.kind == kind && inst.disp != 0;
        let is_plain = is_through && self.code.bytes(address, inst).strip_prefix(&opcode).is_some_and(|rest| rest.len() == 4);
        is_plain.then(|| self.operand(address, inst))
    }

    /// Whether the procedure linkage table begins at an address, or a part of it: with a stub, or with a push of one word and a jump through another.
    pub(crate) fn begins_stubs(&self, address: u64) -> bool {
        let is_push = |inst: &Inst| inst.disp != 0 && self.code.bytes(address, *inst).starts_with(&PUSH_OF_WORD);
        let behind_push = self.inst(address).filter(is_push).map(|push| address + u64::from(push.len));
        self.slot_of_stub(behind_push.unwrap_or(address)).is_some()
    }
}

impl Walk<'_, '_> {
    /// Whether the input's call leads to a stub and the output calls through the stub's slot.
    pub(crate) fn is_call_past_stub(&self, i: u64, a: Inst, o: u64, b: Inst) -> bool {
        let slot = self.output.slot_of(o, b, Kind::IndirectCall, CALL_THROUGH).filter(|_| a.kind == Kind::Call);
        slot.is_some_and(|slot| !self.input.image.in_code(slot) && self.input.slot_of_stub(self.input.target(i, a)) == Some(slot))
    }

    /// Whether the output jumps through the word through which the input calls, or behind which jumps of what it calls end.
    pub(super) fn is_jump_for_call(&self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> bool {
        let Some(slot) = self.output.slot_of(o, b, Kind::IndirectJump, JUMP_THROUGH) else { return false };
        let behind_jumps = || {
            let target = if a.kind == Kind::Call { self.input.target(i, a) } else { self.constant_target(i, a)? };
            self.input.slot_of_stub(leads_to(self.input, target).unwrap_or(target))
        };
        let is_same = self.slot_called(i, a) == Some(slot) || behind_jumps() == Some(slot);
        is_same && !self.input.image.in_code(slot)
    }

    /// The word through which an instruction of the input calls.
    pub(super) fn slot_called(&self, i: u64, a: Inst) -> Option<u64> {
        self.input.slot_of(i, a, Kind::IndirectCall, CALL_THROUGH)
    }

    /// Whether the input calls through a word that never changes and the output calls directly.
    pub(super) fn is_call_of_constant(&self, i: u64, a: Inst, b: Inst) -> bool {
        b.kind == Kind::Call && self.constant_target(i, a).is_some()
    }

    /// What an instruction of the input calls, if it calls through a word that never changes.
    pub(crate) fn constant_target(&self, i: u64, a: Inst) -> Option<u64> {
        let target = crate::prove::address_in(&self.input.image, self.slot_called(i, a)?)?;
        self.input.image.in_code(target).then_some(target)
    }

    /// Where the input goes alone from an instruction that the output has no counterpart of: into a callee, or back out of it.
    pub(crate) fn step_of_input(
        &self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
        within: Option<u64>,
    ) -> Option<(u64, Option<u64>)> {
        match within {
            None if a.kind == Kind::Call && !matches!(b.kind, Kind::Call | Kind::IndirectCall) => self.step_into(i, a),
            Some(call) if a.kind == Kind::Return && RETURNS.contains(&self.input.code.bytes(i, a)) => {
                let is_right = self.input.is_as_at_entry(i);
                let back = call + u64::from(self.input.inst(call)?.len);
                (is_right && !self.calls_return(back, o, b)).then_some((back, None))
            }
            _ => None,
        }
    }

    /// Whether the output calls a function that does nothing but return, and the input, where it returns to, calls none: then it is this return that is called.
    fn calls_return(&self, back: u64, o: u64, b: Inst) -> bool {
        let is_at = |side: &Side<'_>, address, kind| {
            leads_to(side, address).and_then(|at| side.inst(at)).is_some_and(|inst| inst.kind == kind)
        };
        b.kind == Kind::Call && is_at(self.output, self.output.target(o, b), Kind::Return) && !is_at(self.input, back, Kind::Call)
    }

    /// Where a direct call of the input leads, past a mark, and that what is there is within it.
    pub(crate) fn step_into(&self, i: u64, a: Inst) -> Option<(u64, Option<u64>)> {
        if self.is_named_return(i + u64::from(a.len)) {
            return None;
        }
        let target = self.input.target(i, a);
        let callee = self.input.inst(target)?;
        let skipped = if callee.kind == Kind::EndBranch { u64::from(callee.len) } else { 0 };
        let is_plain = prefixes_of_call(self.input.code.bytes(i, a)).next().is_none();
        (is_plain && self.input.is_as_at_entry(target)).then_some((target + skipped, Some(i)))
    }

    fn is_named_return(&self, address: u64) -> bool {
        self.input.code.index(address).is_some_and(|index| self.survey.is_named_return(address, index))
    }

    /// Notes where the output has what stands behind a call of the input: by a call of its own, or by naming it.
    pub(super) fn note_return(&mut self, input: u64, output: u64, origin: u64) {
        if self.is_named_return(input) {
            self.returns.push((input, output, origin));
        }
    }

    /// Each address behind a call that the input names is one address in the output.
    pub(crate) fn report_returns(&mut self) {
        let mut returns = std::mem::take(&mut self.returns);
        returns.sort_unstable();
        for pair in returns.windows(2).filter(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1) {
            let (input, output, origin) = pair[1];
            let message =
                format!("names or returns to {output:#x} for the input's {input:#x}, which is {:#x} elsewhere", pair[0].1);
            self.report(ViolationKind::Conflict, origin, message);
        }
    }

    /// Whether the output leaves the body of `call` by a call of its own; gives where both return to.
    pub(super) fn leave_by_call(&mut self, call: u64, i: u64, a: Inst, o: u64, b: Inst) -> Result<Option<(u64, u64)>, Violation> {
        let (x, y) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
        match b.kind {
            Kind::Call if y.len() == 5 => {
                let target = self.output.target(o, b);
                if self.is_for_callers((i, target)) {
                    let message = format!(
                        "calls what holds for certain callers only; the input's {i:#x}, in place of the call at {call:#x}"
                    );
                    return Err(Violation::new(ViolationKind::InstructionMismatch, o, message));
                }
                self.called_inside(call, Pair::new(i, target, o, Reach::Call));
            }
            Kind::IndirectCall if a.kind == Kind::IndirectJump && self.is_call_for_jump((i, a, x), (o, b, y)) => {
                // The jump itself may fault.
                if !self.input.is_as_at_entry(i) {
                    let message = format!("the input's {i:#x}, in place of the call at {call:#x}, is not as at an entry");
                    return Err(Violation::new(ViolationKind::UnwindRow, o, message));
                }
            }
            _ => return Ok(None),
        }
        self.compare_call_sites(call, o)?;
        let len = self.input.inst(call).map_or(0, |inst| inst.len);
        Ok(Some((call + u64::from(len), o + u64::from(b.len))))
    }

    /// `jmp` and `call` (`ff /4` and `ff /2`) through the same register or memory, which is not the stack's.
    pub(crate) fn is_call_for_jump(&self, (i, a, x): (u64, Inst, &[u8]), (o, b, y): (u64, Inst, &[u8])) -> bool {
        let shape = Shape::of(x);
        let is_through = |bytes: &[u8], group: u8| {
            let opcode = bytes.get(shape.opcode) == Some(&0xff);
            opcode && shape.map == 0 && bytes.get(shape.modrm).is_some_and(|modrm| modrm & 0x38 == group << 3)
        };
        let Some([_, base, index]) = shape.registers(x) else { return false };
        let is_stack = |register: Option<u8>| register == Some(4);
        let is_field = |at: usize| a.disp != 0 && (usize::from(a.disp)..usize::from(a.disp) + 4).contains(&at);
        let is_same =
            |(at, (p, q)): (usize, (&u8, &u8))| is_field(at) || if at == shape.modrm { p & !0x38 == q & !0x38 } else { p == q };
        let is_same_place = a.disp == 0 || {
            let place = self.input.operand(i, a);
            place == self.output.operand(o, b) && !self.input.image.in_code(place)
        };
        x.len() == y.len()
            && a.disp == b.disp
            && is_through(x, 4)
            && is_through(y, 2)
            && !is_stack(base)
            && !is_stack(index)
            && x.iter().zip(y).enumerate().all(is_same)
            && is_same_place
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
        if self.is_known_by_fault(i, a) {
            return fail(ViolationKind::InstructionMismatch, "a handler may know this instruction's faults by its place");
        }
        if !self.input.is_as_at_entry(i) {
            return fail(ViolationKind::UnwindRow, "the callee is not as at its entry here");
        }
        // No exception comes from what neither calls nor faults.
        if may_fault(self.input.code.bytes(i, a), a.kind) { self.compare_call_sites(call, o) } else { Ok(()) }
    }
}
