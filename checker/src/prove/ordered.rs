//! Functions whose addresses code compares by which is above.
//!
//! **Problem.** A handler of signals, or what walks a stack, asks whether an address lies from one function's entry up to another's. Each of the two is an entry like any other; what it finds between them is in no state that a
//! walk compares.
//!
//! **Method.** From each instruction that takes the address of an entry into a register, the instructions that follow in the order of their addresses are looked at, as long as control may come to them and the register
//! is not overwritten: whether one compares it with another register or with memory, and whether the first to use the flags asks for above or below. What straight code up to a `ret` does that is called stands in the place of the call ([`crate::followed`]). At a fixed address the number may stand in the comparison.
//!
//! **What is taken for granted.** One bound alone, bounds that are taken in different functions, or further apart than [`RANGE_MAX`], or that come out of memory, say nothing of what is between.

use super::decoded::{Decoded, Engine, Operand, Reg};
use crate::decode::{Kind, Shape};
use crate::followed::straight;
use crate::walk::Walk;

/// Instructions behind one that takes an address, up to a comparison, and behind that, up to its use.
const STEPS_MAX: usize = 12;
/// Bytes.
const RANGE_MAX: u64 = 1 << 16;

const ABOVE_OR_BELOW: [&str; 14] =
    ["ja", "jae", "jb", "jbe", "seta", "setae", "setb", "setbe", "cmova", "cmovae", "cmovb", "cmovbe", "sbb", "adc"];
/// Instructions that leave their first operand as it is.
const ONLY_READ: [&str; 3] = ["cmp", "test", "push"];

/// The first entry and the last of those that a function of the input compares in this way, with an instruction that takes one of them.
pub(crate) fn compared_by_order(walk: &Walk<'_, '_>) -> Vec<(u64, u64, u64)> {
    let engine = Engine::new();
    let mut compared: Vec<(u32, u64, u64)> =
        walk.survey.entries_taken().filter(|taken| is_ordered(walk, &engine, taken.2)).collect();
    compared.sort_unstable();
    let groups = compared.chunk_by(|a, b| a.0 == b.0);
    let ranges = groups.map(|group| (group[0].2, group[0].1, group[group.len() - 1].1));
    ranges.filter(|&(_, first, last)| first < last && last - first <= RANGE_MAX).collect()
}

fn is_ordered(walk: &Walk<'_, '_>, engine: &Engine, at: u64) -> bool {
    let side = walk.input;
    // The next instruction, and what is behind a call of straight code that is followed.
    let next = |from: &mut (u64, Option<u64>)| {
        loop {
            let (address, inst) = (from.0, side.inst(from.0)?);
            let after = address + u64::from(inst.len);
            let target = (inst.kind == Kind::Call && from.1.is_none()).then(|| side.target(address, inst));
            *from = match target.filter(|&target| straight(side, target).is_some()) {
                Some(target) => (target, Some(after)),
                None if inst.kind == Kind::Jump && from.1.is_some() => (side.target(address, inst), from.1),
                None if inst.kind == Kind::Return && from.1.is_some() => (from.1?, None),
                None => {
                    *from = (after, from.1);
                    return Some((address, inst));
                }
            };
        }
    };
    let is_comparison = |address: u64| {
        let bytes = side.image.at(address, 16).unwrap_or(&[]);
        let shape = Shape::of(bytes);
        shape.map == 0 && !shape.vector && matches!(bytes.get(shape.opcode), Some(0x39 | 0x3b | 0x3d | 0x81))
    };
    // Nearly all addresses are passed on, and not compared.
    let mut ahead = (at, None);
    if !(0..=STEPS_MAX).map_while(|_| next(&mut ahead)).any(|(address, _)| is_comparison(address)) {
        return false;
    }
    let mut here = (at, None);
    let mut step = || next(&mut here).and_then(|(address, inst)| engine.decode(side, address, inst));
    let Some(first) = step() else { return false };
    if first.name != "cmp" {
        let Some(&(Operand::Reg(Reg::General(register, ..)), _)) = first.operands.first() else { return false };
        let meets = std::iter::from_fn(&mut step).take(STEPS_MAX).find_map(|decoded| comparison_of(register, &decoded));
        if meets != Some(true) {
            return false;
        }
    }
    let uses_flags = |decoded: &Decoded| decoded.reads.contains(&Reg::Flags) || decoded.writes.contains(&Reg::Flags);
    let used = std::iter::from_fn(step).take(STEPS_MAX).find(uses_flags);
    used.is_some_and(|decoded| ABOVE_OR_BELOW.contains(&decoded.name.as_str()))
}

/// Whether an instruction compares a register with something that may be an address; `None` if it neither does, nor overwrites it, nor ends what is looked at.
fn comparison_of(register: u8, decoded: &Decoded) -> Option<bool> {
    let is_it = |operand: &(Operand, u16)| matches!(operand.0, Operand::Reg(Reg::General(number, ..)) if number == register);
    if decoded.name == "cmp" && decoded.operands.iter().any(is_it) {
        return Some(!decoded.operands.iter().any(|operand| matches!(operand.0, Operand::Immediate(_))));
    }
    let is_gone = decoded.operands.first().is_some_and(is_it) && !ONLY_READ.contains(&decoded.name.as_str());
    let goes_on = matches!(decoded.inst.kind, Kind::Plain | Kind::Nop | Kind::Lea | Kind::Branch | Kind::EndBranch);
    (is_gone || !goes_on).then_some(false)
}
