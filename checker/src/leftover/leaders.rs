//! Where unreached code begins, and which of it needs no partner.
//!
//! **Problem.** A Haskell or Go program is mostly code without frame descriptions that nothing readable leads to, and nearly all of it stays; where functions moved and their old text
//! is kept, that text is such code of the output as well. As pieces of both files it would be a graph of tens of millions of nodes.
//!
//! **Method.** A *stretch* is what linear decoding meets from one leader to the next. A stretch that its file has no frame description for, and whose unreached instructions, but for padding, the other file has, byte
//! for byte, at the same addresses, is explained by itself: nothing that is equal to it is looked for.
//!
//! **Why that is enough.** What is asked of such a byte does not become less. A byte of the output that the input has at the same address is explained by that in the end, whether it has a
//! partner or not ([`super::report_unexplained`]). Partners decide one thing more: whether a function of the input is missing. Only what has a frame description counts as one, none of it is left out
//! here, and no code without a frame description is equal to code that has one (rules of unwinding are part of a label). What functions lead to becomes part of the graph, whether it stays or not, so a function is compared
//! through such code as ever: it is no leaf. Code of the output that is elsewhere and equals only what is left out here finds it in the second round, which looks through all of the input.
//!
//! **What it does not say** is that a place which such code leads to, and nothing else asks for, is what it was. No partner ever said so either, as its lack was no violation; it is what
//! [`super::walk_old_text`] tries, before, where constants may be addresses.

use super::{Of, Passed, each_instruction_left};
use crate::decode::{Inst, Kind};
use crate::walk::{Bits, Walk};

/// Calls `visit` with each unreached instruction: its address, its size, and whether a straight piece of code begins with it.
fn each_unreached(walk: &Walk<'_, '_>, of: Of, mut visit: impl FnMut(u64, Inst, bool)) {
    let (side, passed): (_, &Bits) = match of {
        Of::Input => (walk.input, &walk.relation.seen),
        Of::Output => (walk.output, &walk.relation.covered),
    };
    let mut next = None;
    each_instruction_left(side, passed, |address, inst| {
        let is_reached = side.code.index(address).is_none_or(|index| passed.contains(index));
        let after = address + u64::from(inst.len);
        // Only what goes on from unreached code needs no beginning of its own.
        let goes_on = next == Some(address);
        next = match inst.kind {
            _ if is_reached => None,
            Kind::Nop => next.filter(|_| goes_on).map(|_| after),
            Kind::Trap | Kind::Call | Kind::IndirectCall => None,
            _ => Some(after).filter(|_| !inst.ends_flow()),
        };
        if !is_reached {
            visit(address, inst, !goes_on && !matches!(inst.kind, Kind::Nop | Kind::Trap));
        }
    });
}

/// The starts of straight pieces of code that were not reached.
pub(super) fn leaders(walk: &Walk<'_, '_>, of: Of) -> Vec<u64> {
    let mut leaders = Vec::new();
    each_unreached(walk, of, |address, _, begins| {
        if begins {
            leaders.push(address);
        }
    });
    leaders
}

/// The leaders of a file, but for those of stretches that stay as they are.
#[derive(Default)]
pub(super) struct Changed {
    pub(super) starts: Vec<u64>,
    /// What is left out.
    pub(super) same: Passed,
    pub(super) num_same_bytes: u64,
}

impl Changed {
    /// Takes the instructions of a stretch, and leaves room for the next.
    fn take(&mut self, stretch: &mut Vec<(u64, Inst)>, is_same: impl Fn(u64, Inst) -> bool) {
        let Some(&(start, _)) = stretch.first() else { return };
        if stretch.iter().all(|&(address, inst)| is_same(address, inst)) {
            for &(address, inst) in stretch.iter() {
                self.same.push(address, inst);
                self.num_same_bytes += u64::from(inst.len);
            }
        } else {
            self.starts.push(start);
        }
        stretch.clear();
    }
}

pub(super) fn changed(walk: &Walk<'_, '_>, of: Of) -> Changed {
    let (side, other) = match of {
        Of::Input => (walk.input, walk.output),
        Of::Output => (walk.output, walk.input),
    };
    let is_same = |address, inst: Inst| {
        let has_same = || other.code.tail(address).is_some_and(|tail| tail.starts_with(side.code.bytes(address, inst)));
        side.unwind.fde_at(address).is_none() && has_same()
    };
    let mut changed = Changed::default();
    let mut stretch = Vec::new();
    each_unreached(walk, of, |address, inst, begins| {
        if begins {
            changed.take(&mut stretch, is_same);
        }
        let is_padding = matches!(inst.kind, Kind::Nop | Kind::Trap);
        if begins || !stretch.is_empty() && !is_padding {
            stretch.push((address, inst));
        }
    });
    changed.take(&mut stretch, is_same);
    changed
}
