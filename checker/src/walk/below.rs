//! What a function of the input keeps in the word below its stack pointer, which something of the output overwrites.
//!
//! **The rule.** Nothing is kept there where the frame description has no instruction that addresses what is below the stack pointer, nor both one that makes `%rbp` count from the stack pointer and one that addresses what is below `%rbp`,
//! and where control comes from none in it that raises the stack pointer without a call behind that. (What a function has taken off the stack is still there: some in assembly take their return address so, and only lower the stack pointer to have it
//! back. A call overwrites the word.) Where control leaves a frame description, and where a computed jump leads, it is not followed: there compilers' code goes on, which reads no word below the stack pointer that it has not written.
//!
//! A function that calls nothing may keep something below the stack pointer (psABI, section 3.2.2), and a part of it that has a frame description of its own need not show that. So who makes a call where there was none, which that
//! function would not survive, asks besides ([`Walk::is_bare_for_call`])
//! * that the frame is found by the stack pointer: where `%rbp` is a frame pointer, another part has made it one;
//! * that on no way from there the function addresses what is below the stack pointer, in any frame description, before it pushes or calls, which overwrites the word, makes room, or returns. At a computed jump no part that
//!   jumps connect with this one may do so. (A part to which tables alone lead reads what was written there before; so that wrote it, came here by a jump, and is connected.)
//!
//! **Terminates**: each address is followed once, and at most [`STEPS_MAX`] are.

use std::cell::RefCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Walk;
use crate::decode::Kind;
use crate::straight::Parts;

/// Instructions that are looked at on the ways from a place.
const STEPS_MAX: usize = 1 << 16;
/// Ways on which so many are looked at are remembered.
const STEPS_REMEMBERED: usize = 64;
/// The stack pointer, in DWARF's numbers.
const STACK: u64 = 7;

/// What is known of the input.
#[derive(Default)]
pub(super) struct Below {
    /// By frame description: where in it the word below the stack pointer may be one that was taken off the stack; `None` if others may be kept there too.
    given_up: RefCell<FxHashMap<u32, Option<FxHashSet<u64>>>>,
    /// What `%rbp` is used for on all ways from addresses from which nothing below the stack pointer is addressed.
    clear: RefCell<FxHashMap<u64, ByFrame>>,
}

/// What instructions do with `%rbp`.
#[derive(Copy, Clone, Default)]
struct ByFrame {
    is_frame_pointer: bool,
    is_below: bool,
}

impl ByFrame {
    /// Whether this instruction, or one before it by `%rbp`, may address what is below the stack pointer.
    fn may_reach(&mut self, parts: &Parts<'_>) -> bool {
        self.is_frame_pointer |= parts.makes_frame_pointer();
        self.is_below |= parts.is_below_frame();
        parts.reaches_below_stack() || self.reaches()
    }

    fn reaches(self) -> bool {
        self.is_frame_pointer && self.is_below
    }

    fn and(self, other: Self) -> Self {
        Self { is_frame_pointer: self.is_frame_pointer || other.is_frame_pointer, is_below: self.is_below || other.is_below }
    }
}

impl Walk<'_, '_> {
    /// Whether nothing is kept in the word below the stack pointer at an address of the input.
    pub(super) fn is_bare_below(&self, address: u64) -> bool {
        let fde = self.input.unwind.fde_at(address);
        fde.is_some_and(|fde| self.given_up(fde, |given_up| given_up.is_some_and(|given_up| !given_up.contains(&address))))
    }

    fn given_up(&self, fde: u32, tell: impl FnOnce(Option<&FxHashSet<u64>>) -> bool) -> bool {
        let mut known = self.below.given_up.borrow_mut();
        tell(known.entry(fde).or_insert_with(|| self.given_up_in(fde)).as_ref())
    }

    /// Whether a call may be made at an address of the input where there is none.
    pub(super) fn is_bare_for_call(&self, address: u64) -> bool {
        let is_by_stack = self.frame_address(self.input, address).is_some_and(|(register, _)| register == STACK);
        is_by_stack && self.is_bare_below(address) && !self.is_reached_below(address)
    }

    /// Where in a frame description of the input control comes from something in it that raises the stack pointer; `None` if something may be kept below that in another way.
    fn given_up_in(&self, fde: u32) -> Option<FxHashSet<u64>> {
        let (start, end) = (self.input.unwind.fdes[fde as usize].start, self.input.unwind.fdes[fde as usize].end);
        let (mut at, mut pending) = (start, Vec::new());
        let mut by_frame = ByFrame::default();
        while at < end {
            let inst = self.input.inst(at)?;
            let parts = Parts::of(self.input.code.bytes(at, inst));
            if by_frame.may_reach(&parts) {
                return None;
            }
            at += u64::from(inst.len);
            pending.extend(parts.raises_stack().then_some(at));
        }
        let mut found = FxHashSet::default();
        while let Some(at) = pending.pop() {
            let Some(inst) = self.input.inst(at).filter(|_| start < at && at < end) else { continue };
            if !found.insert(at) {
                continue;
            }
            let next = at + u64::from(inst.len);
            match inst.kind {
                Kind::Jump => pending.push(self.input.target(at, inst)),
                Kind::Branch | Kind::Loop => pending.extend([self.input.target(at, inst), next]),
                Kind::IndirectJump | Kind::Return | Kind::Stop | Kind::Call | Kind::IndirectCall => {}
                _ => pending.push(next),
            }
        }
        Some(found)
    }

    /// Whether, on some way from an address of the input, what is below the stack pointer there may be addressed.
    fn is_reached_below(&self, address: u64) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), vec![address]);
        let mut by_frame = ByFrame::default();
        while let Some(at) = work.pop() {
            if !seen.insert(at) {
                continue;
            }
            if let Some(known) = self.below.clear.borrow().get(&at) {
                by_frame = by_frame.and(*known);
                if by_frame.reaches() {
                    return true;
                }
                continue;
            }
            let Some(inst) = self.input.inst(at).filter(|_| seen.len() <= STEPS_MAX) else { return true };
            let parts = Parts::of(self.input.code.bytes(at, inst));
            if by_frame.may_reach(&parts) {
                return true;
            }
            let next = at + u64::from(inst.len);
            match inst.kind {
                Kind::Jump => work.push(self.input.target(at, inst)),
                Kind::Branch | Kind::Loop => work.extend([self.input.target(at, inst), next]),
                Kind::Call | Kind::IndirectCall | Kind::Return => {}
                Kind::Stop => work.extend(self.is_stepped_over(at, inst).then_some(next)),
                // Through a word it leads to a function of another file.
                Kind::IndirectJump if inst.disp != 0 => {}
                Kind::IndirectJump if self.may_jump_to_reach_below(at) => return true,
                Kind::IndirectJump => {}
                _ => work.extend((!parts.lowers_stack()).then_some(next)),
            }
        }
        if seen.len() > STEPS_REMEMBERED {
            self.below.clear.borrow_mut().extend(seen.into_iter().map(|at| (at, by_frame)));
        }
        false
    }

    /// Whether a part of a function may address what is below the stack pointer to which a computed jump leads.
    fn may_jump_to_reach_below(&self, jump: u64) -> bool {
        let Some(fde) = self.input.unwind.fde_at(jump) else { return true };
        let reaches = |fde: u32| self.given_up(fde, |given_up| given_up.is_none());
        self.survey.with_parts(vec![(jump, fde)]).into_iter().any(|(_, part)| reaches(part))
    }
}
