//! Calls of the output in the place of straight code of the input, which stands where they lead.
//!
//! **The rule.** Where the output calls and the input has an instruction that is none, what is called may be a *subroutine*: the instructions of the input from here on, one by one, and then a plain `ret`. Then the
//! output goes on behind its call, and the input behind the last of them. In a subroutine the states of both programs are the same but for the stack pointer, which is 8 lower in the output, and the word that it points
//! to, the return address. What may stand in one is what may stand in a body of the other kind ([`super::outlined`]): instructions that know nothing of the stack pointer or address the frame at or above it, with
//! a displacement that is 8 larger, or a shorter form that counts on nothing before ([`super::forms`]); none that leaves, pushes, pops, or tells where the shadow stack is. No instruction of it can see, or change, the return address, and nothing else is above what the input has on its stack;
//! so the `ret` comes back behind the call, with all registers, flags and memory as in the input, but for the word below the stack pointer.
//!
//! **That word** the output has overwritten, and the input has not. So nothing may be kept there where the call is ([`super::below`]), which is asked before anything else.
//!
//! **Who unwinds**, because an instruction faults, or the program is interrupted, finds at each instruction of the subroutine and at its `ret` a frame without handlers in which nothing is saved yet, as at an entry; so he goes on
//! at the call, with all registers as they are. There the output says what the input says at each of the instructions, and behind the last one, where the `ret` is; and an instruction that may fault
//! has the handlers of the call. No instruction is one whose faults a handler may know by its place.
//!
//! **What is called is no function.** It may write registers that functions keep, read and leave flags. Here that makes no difference, since the walk follows it in the place of the call. What else reasons over the *output's* code:
//! * what registers hold in code that was come straight through ([`super::forms`]) is read off the instructions of the subroutine in the place of the call, behind which control arrives by the `ret` alone;
//! * a proof of changed code ([`crate::prove`]) does not go on at a call for which the input has none: it fails. Calls that both programs have lead to what corresponds as a function, and what such a function of the output
//!   writes, subroutines in it too, is looked for in its code;
//! * the search backwards from a jump to the copy of a table that it adds ([`crate::prove::Ways`]) goes back through what is straight up to a `ret` in the place of its call, and ends, showing nothing, at what calls lead to.
//!
//! A subroutine may be entered in its middle, by calls that do less, and may stand for many pieces of the input. What a call has found of it says nothing of jumps to it ([`super::relation`]).
//!
//! **Bounds.** As there, [`BODY_MAX`] instructions and jumps from part to part.

use super::Walk;
use super::outlined::{BODY_MAX, CALL_LEN, RETURN, Same, may_call_body};
use crate::decode::{Inst, Kind};
use crate::faults::may_fault;
use crate::report::Violation;

struct Subroutine {
    insts: Vec<Same>,
    /// Jumps from part to part, and the `ret`: the input has neither.
    others: Vec<(u64, Inst)>,
    /// Where the input goes on.
    end: u64,
}

impl Walk<'_, '_> {
    /// Passes what the output's call at `o` does for the input from `i` on; where both go on. `None` if it is no such call.
    pub(super) fn pass_subroutine(&mut self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Result<Option<(u64, u64)>, Violation> {
        let Some(subroutine) = self.subroutine_of((i, a), (o, b)) else { return Ok(None) };
        self.enter(self.output.target(o, b));
        for Same { input, output, reference } in subroutine.insts {
            self.record_in_body(input, output)?;
            self.compare_rows(input.0, o)?;
            if may_fault(self.input.code.bytes(input.0, input.1), input.1.kind) {
                self.compare_call_sites(input.0, o)?;
            }
            self.follow(reference, input.0, output.0)?;
        }
        self.compare_rows(subroutine.end, o)?;
        for (at, inst) in subroutine.others {
            self.output.code.index(at).into_iter().for_each(|index| self.relation.pass(false, index, inst.len));
        }
        if let (Some(from), Some(to)) = (self.input.code.index(i), self.output.code.index(o)) {
            self.relation.rewrite(from, to);
        }
        Ok(Some((subroutine.end, o + u64::from(CALL_LEN))))
    }

    /// What of the output is done from an instruction to the next one: itself, or of the call of a subroutine all that stands there.
    pub(super) fn done_by(&self, address: u64, inst: Inst) -> Vec<(u64, Inst)> {
        let alone = || vec![(address, inst)];
        let target = (inst.kind == Kind::Call).then(|| self.output.target(address, inst));
        let is_in_body = |at: &u64| self.output.code.index(*at).is_some_and(|index| self.relation.is_in_body(index));
        let Some(mut at) = target.filter(is_in_body) else { return alone() };
        let mut found = Vec::new();
        for _ in 0..=BODY_MAX {
            let Some(inst) = self.output.inst(at) else { return alone() };
            let next = at + u64::from(inst.len);
            at = match inst.kind {
                Kind::Plain | Kind::Lea => {
                    found.push((at, inst));
                    next
                }
                Kind::Jump => self.output.target(at, inst),
                Kind::Return => return found,
                _ => return alone(),
            };
        }
        alone()
    }

    /// The subroutine that the output calls, if it is one.
    fn subroutine_of(&self, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Option<Subroutine> {
        if !may_call_body(a, b) || !self.is_bare_for_call(i) {
            return None;
        }
        let (mut insts, mut others): (Vec<Same>, Vec<(u64, Inst)>) = (Vec::new(), Vec::new());
        let (mut from, mut to) = (i, self.output.target(o, b));
        while insts.len() + others.len() <= BODY_MAX {
            let inst = self.output.inst(to).filter(|_| self.output.is_as_at_entry(to))?;
            match inst.kind {
                Kind::Return => {
                    others.push((to, inst));
                    let is_plain = self.output.code.bytes(to, inst) == RETURN;
                    return (is_plain && !insts.is_empty()).then_some(Subroutine { insts, others, end: from });
                }
                Kind::Jump => {
                    others.push((to, inst));
                    to = self.output.target(to, inst);
                }
                _ => {
                    let same = self.same_in_body((from, self.input.inst(from)?), (to, inst))?;
                    (from, to) = (from + u64::from(same.input.1.len), to + u64::from(inst.len));
                    insts.push(same);
                }
            }
        }
        None
    }
}
