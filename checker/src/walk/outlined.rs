//! Calls that do more than the input's: what the input has before a call stands where the output's call leads.
//!
//! **The rule.** Where the output calls and the input has an instruction that is none, what is called may be a *body*: the instructions of the input from here to a direct
//! call, or one through a word, the same but for what they name, and then a jump to what that call calls; or they run into that, without a jump; or the jump goes through the word that leads there in the input: that of the stub that it calls, at once or where jumps from there end, or that of the call itself. From the output's call to the end of the jump the states of both programs are the same but for the stack
//! pointer, which is 8 lower in the output, and the word that it points to. Then the state is the one that the input's call makes: a return address on the stack, which leads
//! to what stands behind the call. So in a body
//! * no instruction knows of the stack pointer but what addresses the frame at or above it, and that with a displacement that is 8 larger ([`crate::stack`]); none leaves but the jump at the end;
//! * an instruction may be in a shorter form that counts on nothing before ([`super::forms`]);
//! * a jump of the output before the end leads to where the body goes on, which may be in the middle of another one;
//! * the frame description of the body says at each instruction what it says at an entry, without handlers, and where the output calls it says what the input says
//!   at each of the instructions: who unwinds arrives at the same frame with the same registers;
//! * an instruction that may fault has the handlers of the call, since who unwinds from the body finds those;
//! * no instruction is one whose faults a handler may know by its place.
//!
//! A body may stand for several pieces of the input, each of which is compared with it, and that anew for each call that leads to it: where a jump leads into one there is no return address, so what was found for a call says
//! nothing of it ([`super::relation`]). What returns from it returns to the one place of the output that is compared with what stands behind the input's call.
//!
//! A body that ends in a `ret` is of another kind ([`super::subroutines`]), unless the input calls a function that is nothing but a `ret`.
//!
//! The word below the stack pointer is overwritten before the instructions, not after. The input's call overwrites it too, so only an instruction between that reads what is below the
//! stack by another register than the stack pointer could tell; functions that call keep nothing there (psABI, section 3.2.2: signal handlers leave it alone, callees don't).
//!
//! **Bounds.** A body has at most [`BODY_MAX`] instructions.

use super::compare::prefixes_of_call;
use super::{Pair, Reach, Reference, Side, Walk, leads_to};
use crate::decode::{Inst, Kind};
use crate::faults::may_fault;
use crate::report::{Violation, ViolationKind};

/// Instructions of a body, its end aside; relift writes 17 at most.
pub(super) const BODY_MAX: usize = 32;
/// Bytes of a return address.
const RETURN_ADDRESS: i64 = 8;
/// Bytes of a call without prefixes.
pub(super) const CALL_LEN: u8 = 5;
/// `ret` without prefixes.
pub(super) const RETURN: [u8; 1] = [0xc3];

/// An instruction of both programs, and what it names.
pub(super) struct Same {
    pub(super) input: (u64, Inst),
    pub(super) output: (u64, Inst),
    pub(super) reference: Option<Reference>,
}

/// A body that stands for what the input has before a call.
struct Body {
    insts: Vec<Same>,
    /// Jumps from part to part, which the input has not.
    passed: Vec<(u64, Inst)>,
    /// The input's call.
    call: (u64, Inst),
    end: End,
}

/// How a body leads to what the input calls.
struct End {
    /// The jump at the end of the body; none if it runs into what is called.
    jump: Option<(u64, Inst)>,
    /// What is called in the output; none if the jump goes through the word that leads there in the input.
    callee: Option<u64>,
}

impl Walk<'_, '_> {
    /// Passes what the output's call at `o` does for the input from `i` to the end of a call; where both go on, which is nowhere behind a call that does not return. `None` in the first place
    /// if the output's call is no such one.
    pub(super) fn pass_outlined(
        &mut self,
        (i, a): (u64, Inst),
        (o, b): (u64, Inst),
    ) -> Result<Option<Option<(u64, u64)>>, Violation> {
        let Some(body) = self.body_of((i, a), (o, b)) else { return Ok(None) };
        self.enter(self.output.target(o, b));
        for Same { input, output, reference } in body.insts {
            self.record_in_body(input, output)?;
            self.compare_rows(input.0, o)?;
            self.follow(reference, input.0, output.0)?;
        }
        for (jump, b) in body.passed {
            self.output.code.index(jump).into_iter().for_each(|index| self.relation.pass(false, index, b.len));
        }
        let (call, a) = body.call;
        match body.end.jump {
            Some(jump) => self.record_in_body(body.call, jump)?,
            None => self.input.code.index(call).into_iter().for_each(|index| self.relation.pass(true, index, a.len)),
        }
        if let (Some(from), Some(to)) = (self.input.code.index(i), self.output.code.index(o)) {
            self.relation.rewrite(from, to);
        }
        self.compare_rows(call, o)?;
        self.compare_call_sites(call, o)?;
        match (body.end.callee, self.constant_target(call, a)) {
            (None, _) => {}
            (Some(target), Some(callee)) => self.queue.push(Pair::new(callee, target, o, Reach::Name)),
            (Some(target), None) => self.called(call, Pair::new(self.input.target(call, a), target, o, Reach::Call)),
        }
        Ok(Some(self.behind_call((call, a), (o, b))))
    }

    /// Notes that an instruction of a body stands for one of the input.
    pub(super) fn record_in_body(&mut self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Result<(), Violation> {
        let (Some(from), Some(to)) = (self.input.code.index(i), self.output.code.index(o)) else { return Ok(()) };
        if !self.relation.record_in_body(from, to, (a.len, b.len)) {
            let message = format!("stands in the place of a call, and for the input's {i:#x}");
            return Err(Violation::new(ViolationKind::Conflict, o, message));
        }
        self.stats.instructions += 1;
        self.stats.moved_instructions += u64::from(i != o);
        Ok(())
    }

    /// The body that the output calls, if it is one.
    fn body_of(&self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Option<Body> {
        if !may_call_body(a, b) {
            return None;
        }
        let (mut insts, mut passed): (Vec<Same>, Vec<(u64, Inst)>) = (Vec::new(), Vec::new());
        let (mut from, mut to) = (i, self.output.target(o, b));
        while insts.len() + passed.len() <= BODY_MAX {
            let (a, b) = (self.input.inst(from)?, self.output.inst(to)?);
            if !self.output.is_as_at_entry(to) {
                return None;
            }
            if a.kind == Kind::Call || self.slot_called(from, a).is_some() {
                let end = self.end_of_body((from, a), (to, b), o + u64::from(CALL_LEN))?;
                return self.have_handlers_of(&insts, from).then_some(Body { insts, passed, call: (from, a), end });
            }
            if b.kind == Kind::Jump {
                passed.push((to, b));
                to = self.output.target(to, b);
                continue;
            }
            insts.push(self.same_in_body((from, a), (to, b))?);
            (from, to) = (from + u64::from(a.len), to + u64::from(b.len));
        }
        None
    }

    /// What instructions name that do the same, the output's in a body; `None` if it may not be there.
    pub(super) fn same_in_body(&self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Option<Same> {
        if !is_plain(a) {
            return None;
        }
        let (bytes, lower) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
        // Nobody counts on a fault of what is on the stack.
        let reference = if self.stack_use.is_free(bytes, i) {
            if self.is_known_by_fault(i, a) {
                return None;
            }
            let shorter = || self.compare_form_alone((i, a), (o, b)).ok().flatten();
            self.compare(i, a, o, b).ok().or_else(shorter)?
        } else {
            self.stack_use.is_same_below(bytes, lower, RETURN_ADDRESS).then_some(None)?
        };
        Some(Same { input: (i, a), output: (o, b), reference })
    }

    /// `None` if it does not lead there. What is `behind` the output's call tells whether it makes the input's as well.
    fn end_of_body(&self, (i, a): (u64, Inst), (o, b): (u64, Inst), behind: u64) -> Option<End> {
        let is_direct = a.kind == Kind::Call;
        if is_direct && prefixes_of_call(self.input.code.bytes(i, a)).next().is_some() {
            return None;
        }
        if self.is_jump_for_call((i, a), (o, b)) {
            // The call reads the word where it stands.
            let may_move = is_direct || !self.is_known_by_fault(i, a);
            return may_move.then_some(End { jump: Some((o, b)), callee: None });
        }
        let callee = self.constant_target(i, a).or(is_direct.then(|| self.input.target(i, a)))?;
        match b.kind {
            Kind::Jump => Some(End { jump: Some((o, b)), callee: Some(self.output.target(o, b)) }),
            // The end of another kind of body, but for a function that is nothing else.
            Kind::Return if !does_nothing(self.input, callee) || self.calls_nothing(behind) => None,
            _ => Some(End { jump: None, callee: Some(o) }),
        }
    }

    /// Whether the output calls a function that does nothing, maybe behind jumps.
    fn calls_nothing(&self, address: u64) -> bool {
        let Some(at) = leads_to(self.output, address) else { return false };
        let call = self.output.inst(at).filter(|inst| inst.kind == Kind::Call);
        call.is_some_and(|call| does_nothing(self.output, self.output.target(at, call)))
    }

    /// Whether those that may fault have the handlers of the call.
    fn have_handlers_of(&self, insts: &[Same], call: u64) -> bool {
        let handlers_at = |address: u64| {
            let fde = self.input.unwind.fde_at(address)?;
            self.input.call_sites(fde).map(|sites| sites.find(address).map(|site| (site.handlers.clone(), site.landing_pad)))
        };
        let mut risky =
            insts.iter().map(|same| same.input).filter(|&(at, inst)| may_fault(self.input.code.bytes(at, inst), inst.kind));
        risky.all(|(at, _)| handlers_at(at) == handlers_at(call))
    }
}

/// Whether a function is a plain `ret`.
fn does_nothing(side: &Side<'_>, address: u64) -> bool {
    leads_to(side, address)
        .and_then(|at| Some((at, side.inst(at)?)))
        .is_some_and(|(at, inst)| side.code.bytes(at, inst) == RETURN)
}

pub(super) fn is_plain(inst: Inst) -> bool {
    matches!(inst.kind, Kind::Plain | Kind::Lea)
}

/// Whether a call of the output may lead to a body that has an instruction of the input.
pub(super) fn may_call_body(input: Inst, output: Inst) -> bool {
    output.kind == Kind::Call && output.len == CALL_LEN && is_plain(input)
}
