//! Whether a function of the input makes an address of its frame anywhere.
//!
//! A root in the middle of a function does not see what the function did before. So all code of the function, and of what jumps connect with it, is looked through: `rsp`, and `rbp` where
//! a frame description counts from it, may only be a base without index, or be moved by constants and to each other. The same goes for what it calls that is a part of it ([`super::followed`]). Reading one byte of doubt is a yes.

use super::Prover;
use super::decoded::{Decoded, Memory, Operand, Reg};
use crate::decode::Kind;
use crate::walk::Walk;

impl Prover {
    /// Whether the function around an address may let an address of its frame out.
    pub(super) fn lets_frame_out(&mut self, walk: &Walk<'_, '_>, address: u64) -> bool {
        let Some(fde) = walk.input.unwind.fde_at(address) else { return true };
        let group = walk.survey.group_of(fde);
        if let Some(&known) = self.escapes.get(&group) {
            return known;
        }
        let members = self.members_of(walk, group);
        let counts_from_base = members.iter().any(|&(start, _)| {
            let mut rows = walk.input.unwind.fde_at(start).into_iter().flat_map(|fde| walk.input.unwind.rows_of(fde));
            rows.any(|row| {
                let frame = walk.rows.and_then(|rows| rows.frame_of(row));
                frame.is_none_or(|frame| frame.address.is_none_or(|(register, _)| register != 7))
            })
        });
        let found = members.iter().any(|&(start, end)| self.lets_out(walk, start, end, counts_from_base));
        self.escapes.insert(group, found);
        found
    }

    /// The starts and ends of the frame descriptions of a group.
    pub(super) fn members_of(&mut self, walk: &Walk<'_, '_>, group: u32) -> Vec<(u64, u64)> {
        if self.groups.is_empty() {
            for (fde, number) in walk.input.unwind.fdes.iter().zip(0..) {
                self.groups.entry(walk.survey.group_of(number)).or_default().push((fde.start, fde.end));
            }
        }
        self.groups.get(&group).cloned().unwrap_or_default()
    }

    fn lets_out(&mut self, walk: &Walk<'_, '_>, start: u64, end: u64, counts_from_base: bool) -> bool {
        let mut at = start;
        while at < end {
            let Some(inst) = walk.input.inst(at) else { return true };
            let is_known = matches!(inst.kind, Kind::Plain | Kind::Lea);
            if is_known && self.decode(true, walk.input, at, inst).is_none_or(|decoded| makes_address(&decoded, counts_from_base))
            {
                return true;
            }
            if inst.kind == Kind::Call && self.broken_by_call(walk, true, at, counts_from_base).is_let_out {
                return true;
            }
            at += u64::from(inst.len);
        }
        false
    }
}

/// Whether an instruction may put an address of the frame elsewhere than in `rsp` or `rbp`.
pub(super) fn makes_address(decoded: &Decoded, counts_from_base: bool) -> bool {
    let is_frame = |register: Reg| match register {
        Reg::General(4, ..) => true,
        Reg::General(5, ..) => counts_from_base,
        _ => false,
    };
    let is_plain =
        |memory: &Memory| !memory.index.is_some_and(is_frame) && (memory.index.is_none() || !memory.base.is_some_and(is_frame));
    let names: Vec<&Operand> = decoded.operands.iter().map(|(operand, _)| operand).collect();
    let memories_are_plain = names.iter().all(|operand| match operand {
        Operand::Memory(memory) => is_plain(memory),
        _ => true,
    });
    let is_register = |operand: &Operand| matches!(operand, Operand::Reg(register) if is_frame(*register));
    let is_between = |operand: &Operand| matches!(operand, Operand::Reg(Reg::General(4 | 5, 64, false)));
    let allowed = match (decoded.name.as_str(), &*names) {
        ("lea", [to, Operand::Memory(memory)]) => is_between(to) || !memory.base.is_some_and(is_frame),
        ("mov", [to, from]) if is_register(from) => is_between(to),
        ("add" | "sub" | "and", [to, Operand::Immediate(_)]) if is_register(to) => decoded.name != "and",
        // What a function pushes is its caller's, and what it pops is given back.
        ("push" | "pop", [Operand::Reg(Reg::General(5, 64, false))]) | ("leave", _) => true,
        ("mov", [to, Operand::Memory(_) | Operand::Immediate(_)]) => !matches!(to, Operand::Reg(Reg::General(4, ..))),
        _ => !names.iter().any(|operand| is_register(operand)),
    };
    !allowed || !memories_are_plain
}
