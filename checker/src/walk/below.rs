//! What a function of the input keeps in the word below its stack pointer, which something of the output overwrites.
//!
//! **The rule.** Nothing is kept there where the frame description has no instruction that addresses what is below the stack pointer, nor both one that makes `%rbp` count from the stack pointer and one that addresses what is below `%rbp`,
//! and where control comes from none in it that raises the stack pointer without a call behind that. (What a function has taken off the stack is still there: some in assembly take their return address so, and only lower the stack pointer to have it
//! back. A call overwrites the word.) Where control leaves a frame description, and where a computed jump leads, it is not followed: there compilers' code goes on, which reads no word below the stack pointer that it has not written.
//!
//! A function that calls nothing may keep something below the stack pointer (psABI, section 3.2.2), and a part of it that has a frame description of its own need not show that. So who makes a call where there was none, which that
//! function would not survive, asks besides ([`Walk::is_bare_for_call`])
//! * that the frame is found by the stack pointer: where `%rbp` is a frame pointer, another part has made it one;
//! * that on no way from there the function addresses the word, in any frame description, before it pushes or calls, which overwrites it, makes room, or returns. What is addressed by the stack pointer is told from the word
//!   by where both are in the frame, as long as jumps from one description into another agree about where that is: a function that jumps to another one at its end has given its frame up, and what that one has below the stack
//!   pointer lies higher than the word; and what a function finds below the stack pointer where it begins is nothing that it reads, if who jumps there has raised the stack pointer on the way and has no other pointer to the frame (that tells a function from a part of one
//!   that keeps something there). At a computed jump no part that jumps connect with this one may address anything below the stack pointer. (A part to which tables alone lead reads what was written there before; so
//!   that wrote it, came here by a jump, and is connected.)
//!
//! **Terminates**: each address is followed once with what is known there, and at most [`STEPS_MAX`] are.

use std::cell::RefCell;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Walk;
use crate::decode::{Inst, Kind};
use crate::straight::Parts;

/// Instructions that are looked at on the ways from a place.
const STEPS_MAX: usize = 1 << 16;
/// Ways on which so many are looked at are remembered.
const STEPS_REMEMBERED: usize = 64;
/// Places of which so much is remembered, about: a function's are asked for one after the other.
const REMEMBERED_MAX: usize = 1 << 18;
/// The stack pointer, in DWARF's numbers.
const STACK: u64 = 7;

/// What is known of the input.
#[derive(Default)]
pub(super) struct Below {
    /// By frame description: where in it the word below the stack pointer may be one that was taken off the stack; `None` if others may be kept there too.
    given_up: RefCell<FxHashMap<u32, Option<FxHashSet<u64>>>>,
    /// From addresses of which it was asked, the lowest that is addressed by the stack pointer below it.
    lowest: RefCell<FxHashMap<(u64, OnWay), Lowest>>,
}

/// How far above the frame's address something is, which is a negative number; `i64::MIN` where that is not known, and the largest number for nothing.
type Lowest = i64;

/// What is known of a place on a way.
#[derive(Copy, Clone, Default, PartialEq, Eq, Hash)]
struct OnWay {
    /// `%rbp` counts from the stack pointer since a place on the way.
    has_frame_pointer: bool,
    /// Where the frame is by its description is not where that of the way's start is.
    has_other_frame: bool,
    /// Something on the way has raised the stack pointer.
    has_given_up: bool,
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
        let height = self.height(address);
        height.is_some_and(|height| self.is_bare_below(address) && !self.is_reached_below(address, height))
    }

    /// How far the frame's address is above the stack pointer, where the frame is found by that.
    fn height(&self, address: u64) -> Option<i64> {
        self.frame_address(self.input, address).filter(|&(register, _)| register == STACK).map(|(_, height)| height)
    }

    /// Where in a frame description of the input control comes from something in it that raises the stack pointer; `None` if something may be kept below that in another way.
    fn given_up_in(&self, fde: u32) -> Option<FxHashSet<u64>> {
        let (start, end) = (self.input.unwind.fdes[fde as usize].start, self.input.unwind.fdes[fde as usize].end);
        let (mut at, mut pending) = (start, Vec::new());
        let (mut is_frame_pointer, mut is_below_frame) = (false, false);
        while at < end {
            let inst = self.input.inst(at)?;
            let parts = Parts::of(self.input.code.bytes(at, inst));
            is_frame_pointer |= parts.makes_frame_pointer();
            is_below_frame |= parts.is_below_frame();
            if parts.depth_below_stack().is_some() || is_frame_pointer && is_below_frame {
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

    /// Whether, on some way from an address of the input, the word below the stack pointer there, or something below that, may be addressed. The frame's address is so high above the stack pointer there.
    fn is_reached_below(&self, address: u64, height: i64) -> bool {
        let (mut seen, mut work) = (FxHashSet::default(), vec![(address, OnWay::default())]);
        let mut lowest = Lowest::MAX;
        while let Some((at, mut on_way)) = work.pop() {
            if !seen.insert((at, on_way)) {
                continue;
            }
            if let Some(&known) = self.below.lowest.borrow().get(&(at, on_way)) {
                lowest = lowest.min(known);
            } else {
                let Some(inst) = self.input.inst(at).filter(|_| seen.len() <= STEPS_MAX) else { return true };
                let parts = Parts::of(self.input.code.bytes(at, inst));
                if on_way.has_frame_pointer && parts.is_below_frame() {
                    return true;
                }
                if let Some(depth) = parts.depth_below_stack() {
                    let height = self.height(at).filter(|_| !on_way.has_other_frame);
                    lowest = lowest.min(height.map_or(Lowest::MIN, |height| depth.saturating_sub(height)));
                }
                on_way.has_frame_pointer |= parts.makes_frame_pointer();
                on_way.has_frame_pointer &= !parts.replaces_frame_pointer();
                let Some(ways) = self.ways_below(at, inst, &parts) else { return true };
                on_way.has_given_up |= parts.raises_stack();
                let other_frame = |to| on_way.has_other_frame || !self.has_frame_of((at, inst.kind), to);
                let is_given_up = on_way.has_given_up && !on_way.has_frame_pointer;
                let goes_on = |&to: &u64| !(is_given_up && self.enters_function((at, inst.kind), to));
                let ways = ways.into_iter().filter(goes_on);
                work.extend(ways.map(|to| (to, OnWay { has_other_frame: other_frame(to), ..on_way })));
            }
            if lowest.saturating_add(height) < 0 {
                return true;
            }
        }
        if seen.len() > STEPS_REMEMBERED {
            let mut known = self.below.lowest.borrow_mut();
            if known.len() > REMEMBERED_MAX {
                known.clear();
            }
            known.extend(seen.into_iter().map(|at| (at, lowest)));
        }
        false
    }

    /// Where control goes from an instruction of the input with what is below the stack pointer as it was; `None` where it may go to what addresses that.
    fn ways_below(&self, at: u64, inst: Inst, parts: &Parts<'_>) -> Option<Vec<u64>> {
        let next = at + u64::from(inst.len);
        Some(match inst.kind {
            Kind::Jump => vec![self.input.target(at, inst)],
            Kind::Branch | Kind::Loop => vec![self.input.target(at, inst), next],
            Kind::Call | Kind::IndirectCall | Kind::Return => Vec::new(),
            Kind::Stop if self.is_stepped_over(at, inst) => vec![next],
            Kind::Stop => Vec::new(),
            // Through a word it leads to a function of another file.
            Kind::IndirectJump if inst.disp == 0 && self.may_jump_to_reach_below(at) => return None,
            Kind::IndirectJump => Vec::new(),
            _ if parts.lowers_stack() => Vec::new(),
            _ => vec![next],
        })
    }

    /// Whether a jump of the input leads to the beginning of another function, by what frame descriptions say.
    fn enters_function(&self, (from, kind): (u64, Kind), to: u64) -> bool {
        let unwind = &self.input.unwind;
        let is_jump = matches!(kind, Kind::Jump | Kind::Branch);
        is_jump && unwind.fde_at(from) != unwind.fde_at(to) && self.input.begins_function(to)
    }

    /// Whether the frame is in the same place of the stack where an instruction of the input leads, as far as descriptions tell: within one they are taken to be right.
    fn has_frame_of(&self, (from, kind): (u64, Kind), to: u64) -> bool {
        let fde_at = |address| self.input.unwind.fde_at(address);
        let is_jump = matches!(kind, Kind::Jump | Kind::Branch | Kind::Loop);
        fde_at(from) == fde_at(to) || is_jump && self.height(from).is_some_and(|height| self.height(to) == Some(height))
    }

    /// Whether a part of a function may address what is below the stack pointer to which a computed jump leads.
    fn may_jump_to_reach_below(&self, jump: u64) -> bool {
        let Some(fde) = self.input.unwind.fde_at(jump) else { return true };
        let reaches = |fde: u32| self.given_up(fde, |given_up| given_up.is_none());
        self.survey.with_parts(vec![(jump, fde)]).into_iter().any(|(_, part)| reaches(part))
    }
}
