//! Which general registers nobody reads once a function of the input has returned, or from a call on.
//!
//! A register that only one of the programs leaves with a certain value does no harm if it is written before it is read. Calls inside one file need not
//! follow the psABI: a caller that knows the callee's code may keep a value in a register that the callee does not write. So the code behind each call of the function is followed.
//!
//! * The code of what is called in this file is followed too, and the code behind the call, to which it may pass the register on.
//! * A call of what the compiler could not see (through a stub, a slot, a register) reads what the psABI passes arguments in and writes all other registers that calls do not keep.
//! * At a return, the code behind all calls of the function in this file is followed; of callers elsewhere, the psABI says that they read `rax` and `rdx` alone. These two
//!   always count as read.
//! * An indirect jump leads to all that the jump tables of its function name. Without a frame it may be a tail call too; with a frame and without tables it counts as a read.
//! * What is passed to a call that the compiler could not see is what was put there for it, and not what a function that overwrites the register has left: that is garbage to its callers.
//!
//! A register that calls keep may differ at a call, if the callee does nothing with it but to put it on the stack and to take it back ([`super::kept`]).
//!
//! A function here is the group of frame descriptions that jumps connect, which is never too little.
//!
//! **Terminates**: each address is visited once a question.

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Prover;
use super::class::{Class, effect_of};
use super::decoded::{Decoded, Operand, Reg};
use crate::decode::{Inst, Kind};
use crate::image::Slot;
use crate::tables::TableReference;
use crate::walk::Walk;

/// Registers that calls keep, and those that return values or pass arguments.
pub(super) const KEPT: u16 = 1 << 3 | 1 << 4 | 1 << 5 | 0xf000;
const RETURNED: u16 = 1 | 1 << 2;
const ARGUMENTS: u16 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10;
/// Instructions that one question looks at.
pub(super) const STEPS_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Liveness {
    /// Targets and places of the input's direct calls, ascending.
    calls: Option<Vec<(u64, u64)>>,
    /// By group of functions and register, whether nobody reads it after a return.
    answers: FxHashMap<(u32, u8), bool>,
    /// By what is called, the registers that it may write.
    pub(super) written: FxHashMap<u64, u16>,
    /// The same from what is called on, by its address.
    called: FxHashMap<(u64, u8), bool>,
    /// By group of functions, the registers that it overwrites.
    overwritten: FxHashMap<u32, u16>,
    /// By what is called and a register that calls keep, whether nobody reads that.
    pub(super) kept: FxHashMap<(u64, u8), bool>,
    labels: Option<BTreeSet<u64>>,
    /// Direct jumps between frame descriptions, to and from, ascending.
    jumps: Option<Vec<(u32, u32)>>,
    /// By frame description, where its jump tables and labels lead.
    targets: FxHashMap<u32, Vec<u64>>,
}

/// Instructions before a function asks for the number of vector registers.
const PROLOGUE_MAX: usize = 32;

/// What an instruction does with a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Reads,
    Writes,
    Passes,
}

/// A place, and how control came there.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Place {
    at: u64,
    /// What is asked for was left there by a function that has returned.
    is_left: bool,
    /// In a call whose return is followed already.
    is_called: bool,
    /// Its lowest byte was overwritten.
    is_low_new: bool,
}

/// Where a question leads.
#[derive(Default)]
struct Question {
    seen: FxHashSet<Place>,
    work: Vec<Place>,
    /// The function that is asked about overwrites the register.
    is_garbage: bool,
    /// Frame descriptions of functions whose returns were followed.
    returned: FxHashSet<u32>,
}

impl Prover {
    /// Whether nobody reads a register after a return from the function around an address of the input.
    pub(super) fn is_dead_at_return(&mut self, walk: &Walk<'_, '_>, address: u64, register: u8) -> bool {
        let is_scratch = (KEPT | RETURNED) >> register & 1 == 0;
        let Some(fde) = walk.input.unwind.fde_at(address).filter(|_| is_scratch) else { return false };
        let group = walk.survey.group_of(fde);
        if let Some(&known) = self.liveness.answers.get(&(group, register)) {
            return known;
        }
        let is_garbage = self.overwrites(walk, fde, register);
        let mut question = Question { is_garbage, ..Question::default() };
        self.follow_return(walk, fde, &mut question);
        let is_dead = self.is_read_nowhere(walk, register, question);
        self.liveness.answers.insert((group, register), is_dead);
        is_dead
    }

    /// Whether nobody reads a register from a call of the input on.
    pub(super) fn is_dead_at_call(&mut self, walk: &Walk<'_, '_>, place: u64, inst: Inst, register: u8) -> bool {
        if (KEPT | RETURNED) >> register & 1 == 1 {
            return false;
        }
        let Some(target) = self.own_callee(walk, place, inst) else {
            return self.is_free_for_others(walk, place, inst, register, false);
        };
        if let Some(&known) = self.liveness.called.get(&(target, register)) {
            return known;
        }
        let start = Place { at: target, is_left: false, is_called: true, is_low_new: false };
        let question = Question { work: vec![start], ..Question::default() };
        let is_dead = self.is_read_nowhere(walk, register, question);
        self.liveness.called.insert((target, register), is_dead);
        is_dead
    }

    fn is_read_nowhere(&mut self, walk: &Walk<'_, '_>, register: u8, mut question: Question) -> bool {
        while let Some(place) = question.work.pop() {
            if !self.follow_use(walk, place, register, &mut question) {
                return false;
            }
        }
        true
    }

    /// Goes on behind all direct calls of a function, and of those that jump to it.
    fn follow_return(&mut self, walk: &Walk<'_, '_>, fde: u32, question: &mut Question) {
        let jumps = match self.liveness.jumps.take() {
            Some(jumps) => jumps,
            None => jumps_between(walk),
        };
        let mut work = vec![fde];
        while let Some(fde) = work.pop() {
            if !question.returned.insert(fde) {
                continue;
            }
            let first = jumps.partition_point(|&(to, _)| to < fde);
            work.extend(jumps[first..].iter().take_while(|&&(to, _)| to == fde).map(|&(_, from)| from));
            // A cold part may be reached by a table alone.
            if !walk.survey.is_named(fde) {
                let group = walk.survey.group_of(fde);
                work.extend(self.members_of(walk, group).iter().filter_map(|&(start, _)| walk.input.unwind.fde_at(start)));
            }
            let calls = self.liveness.calls.get_or_insert_with(|| direct_calls(walk));
            let (start, end) = (walk.input.unwind.fdes[fde as usize].start, walk.input.unwind.fdes[fde as usize].end);
            let first = calls.partition_point(|&(target, _)| target < start);
            for &(_, place) in calls[first..].iter().take_while(|&&(target, _)| target < end) {
                if let Some(inst) = walk.input.inst(place).filter(|&inst| !walk.call_never_returns(place, inst)) {
                    let at = place + u64::from(inst.len);
                    question.work.push(Place { at, is_left: question.is_garbage, is_called: false, is_low_new: false });
                }
            }
        }
        self.liveness.jumps = Some(jumps);
    }

    /// Follows code as long as it passes a register on; `false` if it reads it.
    fn follow_use(&mut self, walk: &Walk<'_, '_>, place: Place, register: u8, question: &mut Question) -> bool {
        let (mut place, is_left) = (place, place.is_left);
        let mut at = place.at;
        while question.seen.insert(Place { at, ..place }) {
            let Some(inst) = walk.input.inst(at).filter(|_| question.seen.len() < STEPS_MAX) else { return false };
            let after = at + u64::from(inst.len);
            match inst.kind {
                Kind::Nop | Kind::EndBranch => at = after,
                Kind::Jump => {
                    at = walk.input.target(at, inst);
                    if is_left && ARGUMENTS >> register & 1 == 1 && walk.input.unwind.starts_at(at) && self.is_variadic(walk, at)
                    {
                        return true;
                    }
                }
                Kind::Branch => {
                    question.work.push(Place { at: walk.input.target(at, inst), ..place });
                    at = after;
                }
                Kind::IndirectJump => {
                    let targets = self.targets_around(walk, at);
                    let is_free = if may_be_tail_call(walk, at) {
                        self.is_free_for_others(walk, at, inst, register, is_left)
                    } else {
                        !targets.is_empty() && !self.is_named(walk, at, inst, register)
                    };
                    question.work.extend(targets.into_iter().map(|at| Place { at, ..place }));
                    return is_free;
                }
                Kind::Loop => return false,
                Kind::Stop | Kind::Trap => return true,
                Kind::Return if place.is_called => return true,
                Kind::Return => {
                    let Some(fde) = walk.input.unwind.fde_at(at) else { return false };
                    self.follow_return(walk, fde, question);
                    return true;
                }
                Kind::Call | Kind::IndirectCall => match self.own_callee(walk, at, inst) {
                    Some(target) => {
                        if !(is_left && ARGUMENTS >> register & 1 == 1 && self.is_variadic(walk, target)) {
                            question.work.push(Place { at: target, is_called: true, ..place });
                        }
                        if walk.call_never_returns(at, inst) {
                            return true;
                        }
                        at = after;
                    }
                    None => return self.is_free_for_others(walk, at, inst, register, is_left),
                },
                Kind::Plain | Kind::Lea => {
                    let Some(decoded) = self.decode(true, walk.input, at, inst) else { return false };
                    let used = if place.is_low_new { use_of_rest(&decoded, register) } else { use_of(&decoded, register) };
                    match used {
                        Use::Reads if overwrites_low_byte(&decoded, register) => {
                            place.is_low_new = true;
                            at = after;
                        }
                        Use::Reads => return false,
                        Use::Writes => return true,
                        Use::Passes => at = after,
                    }
                }
            }
        }
        true
    }

    /// Whether a function stores all registers that may bring arguments, as those do that take any number of them: it asks `al` for the number of vector registers.
    fn is_variadic(&mut self, walk: &Walk<'_, '_>, mut at: u64) -> bool {
        for _ in 0..PROLOGUE_MAX {
            let Some(inst) = walk.input.inst(at) else { return false };
            match inst.kind {
                // `test al, al`
                Kind::Plain if walk.input.code.bytes(at, inst) == [0x84, 0xc0] => return true,
                Kind::Plain | Kind::Nop | Kind::EndBranch => at += u64::from(inst.len),
                _ => return false,
            }
        }
        false
    }

    /// Where the jump tables that a function of the input names lead, and the places in it whose addresses are in relocated words.
    pub(super) fn targets_around(&mut self, walk: &Walk<'_, '_>, address: u64) -> Vec<u64> {
        let Some(fde) = walk.input.unwind.fde_at(address) else { return Vec::new() };
        if let Some(known) = self.liveness.targets.get(&fde) {
            return known.clone();
        }
        let mut targets = Vec::new();
        for (start, end) in self.members_of(walk, walk.survey.group_of(fde)) {
            targets.extend(self.labels(walk).range(start + 1..end).copied());
            let mut at = start;
            while let Some(inst) = walk.input.inst(at).filter(|_| at < end) {
                if inst.kind == Kind::Lea && inst.disp != 0 {
                    let place = walk.input.operand(at, inst);
                    let table = TableReference { input: place, output: place, width: 4, from: at, origin: at };
                    targets.extend(crate::tables::targets(walk, table).into_iter().flatten());
                }
                at += u64::from(inst.len);
            }
        }
        targets.sort_unstable();
        targets.dedup();
        self.liveness.targets.insert(fde, targets.clone());
        targets
    }

    /// Places whose addresses are in relocated words.
    fn labels(&mut self, walk: &Walk<'_, '_>) -> &BTreeSet<u64> {
        self.liveness.labels.get_or_insert_with(|| {
            let address = |&(_, slot): &(u64, Slot)| match slot {
                Slot::Relative(address) => Some(address),
                _ => None,
            };
            walk.input.image.slots.iter().filter_map(address).collect()
        })
    }

    /// The code of this file that a call enters; its return is followed to all of its callers.
    pub(super) fn own_callee(&self, walk: &Walk<'_, '_>, at: u64, inst: Inst) -> Option<u64> {
        let target = (inst.kind == Kind::Call).then(|| walk.input.target(at, inst))?;
        walk.input.slot_of_stub(target).is_none().then_some(target)
    }

    /// Whether a call of what the compiler could not see reads no such register: it writes it, by the psABI.
    fn is_free_for_others(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst, register: u8, is_left: bool) -> bool {
        (is_left || ARGUMENTS >> register & 1 == 0) && (inst.kind == Kind::Call || !self.is_named(walk, at, inst, register))
    }

    /// Whether an instruction has a register among its operands, or may have.
    pub(super) fn is_named(&mut self, walk: &Walk<'_, '_>, at: u64, inst: Inst, register: u8) -> bool {
        self.decode(true, walk.input, at, inst).is_none_or(|decoded| names(&decoded, register))
    }

    /// Whether code of a function, or what it calls by the psABI, overwrites a register.
    fn overwrites(&mut self, walk: &Walk<'_, '_>, fde: u32, register: u8) -> bool {
        let group = walk.survey.group_of(fde);
        if let Some(&known) = self.liveness.overwritten.get(&group) {
            return known >> register & 1 == 1;
        }
        let mut overwritten = 0;
        for (start, end) in self.members_of(walk, group) {
            let mut at = start;
            while let Some(inst) = walk.input.inst(at).filter(|_| at < end) {
                match inst.kind {
                    Kind::IndirectCall => overwritten |= !(KEPT | RETURNED),
                    Kind::Call if self.own_callee(walk, at, inst).is_none() => overwritten |= !(KEPT | RETURNED),
                    Kind::Plain | Kind::Lea => {
                        if let Some(decoded) = self.decode(true, walk.input, at, inst) {
                            let is_written = |&number: &u8| use_of(&decoded, number) == Use::Writes;
                            overwritten |= (0..16).filter(is_written).fold(0, |all, number| all | 1 << number);
                        }
                    }
                    _ => {}
                }
                at += u64::from(inst.len);
            }
        }
        self.liveness.overwritten.insert(group, overwritten);
        overwritten >> register & 1 == 1
    }
}

/// Whether the stack is as at an entry, so that a jump may leave the function.
pub(super) fn may_be_tail_call(walk: &Walk<'_, '_>, at: u64) -> bool {
    let row = walk.input.unwind.locate(at).row;
    let address = walk.rows.and_then(|rows| rows.frame_of(row)).and_then(|frame| frame.address);
    walk.input.unwind.is_as_at_entry(at) || matches!(address, Some((7, 8)))
}

/// The input's direct calls: target and place.
fn direct_calls(walk: &Walk<'_, '_>) -> Vec<(u64, u64)> {
    let mut calls = Vec::new();
    crate::leftover::each_instruction(walk.input, |address, inst| {
        if inst.kind == Kind::Call {
            calls.push((walk.input.target(address, inst), address));
        }
    });
    calls.sort_unstable();
    calls
}

/// The input's direct jumps from one frame description to another: to and from.
fn jumps_between(walk: &Walk<'_, '_>) -> Vec<(u32, u32)> {
    let mut jumps = Vec::new();
    crate::leftover::each_instruction(walk.input, |address, inst| {
        if matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) {
            let unwind = &walk.input.unwind;
            let ends = unwind.fde_at(walk.input.target(address, inst)).zip(unwind.fde_at(address));
            jumps.extend(ends.filter(|(to, from)| to != from));
        }
    });
    jumps.sort_unstable();
    jumps.dedup();
    jumps
}

pub(super) fn names(decoded: &Decoded, register: u8) -> bool {
    let is_it = |found: Reg| matches!(found, Reg::General(number, ..) if number == register);
    let in_operands = decoded.operands.iter().any(|(operand, _)| names_in(operand, register));
    in_operands || decoded.reads.iter().chain(&decoded.writes).any(|&found| is_it(found))
}

/// Whether an instruction writes the lowest byte of a register and reads nothing of it.
fn overwrites_low_byte(decoded: &Decoded, register: u8) -> bool {
    let is_it = |operand: &Operand| *operand == Operand::Reg(Reg::General(register, 8, false));
    let names_it = |operand: &Operand| names_in(operand, register);
    match &*decoded.operands {
        [(first, _)] => decoded.name.starts_with("set") && is_it(first),
        [(first, _), (second, _)] => decoded.name == "mov" && is_it(first) && !names_it(second),
        _ => false,
    }
}

/// What an instruction does with all of a register but its lowest byte.
fn use_of_rest(decoded: &Decoded, register: u8) -> Use {
    let is_low = |operand: &Operand| *operand == Operand::Reg(Reg::General(register, 8, false));
    let is_whole =
        |operand: &Operand| matches!(*operand, Operand::Reg(Reg::General(number, width, _)) if number == register && width >= 32);
    let implied = decoded.reads.iter().chain(&decoded.writes);
    let is_implied = implied.copied().any(|found| matches!(found, Reg::General(number, ..) if number == register));
    let rest_is_low = |rest: &[(Operand, u16)]| rest.iter().all(|(operand, _)| is_low(operand) || !names_in(operand, register));
    match &*decoded.operands {
        _ if is_implied || decoded.class() == Class::Opaque => use_of(decoded, register),
        [(first, _), rest @ ..] if decoded.name == "movzx" && is_whole(first) && rest_is_low(rest) => Use::Writes,
        operands if rest_is_low(operands) && operands.len() > 1 => Use::Passes,
        _ => use_of(decoded, register),
    }
}

fn names_in(operand: &Operand, register: u8) -> bool {
    let is_it = |found: Reg| matches!(found, Reg::General(number, ..) if number == register);
    match *operand {
        Operand::Reg(found) => is_it(found),
        Operand::Memory(memory) => memory.base.is_some_and(is_it) || memory.index.is_some_and(is_it),
        Operand::Immediate(_) => false,
    }
}

/// What an instruction does with a register. A write counts only where all of it is known to be written.
pub(super) fn use_of(decoded: &Decoded, register: u8) -> Use {
    let class = decoded.class();
    // It overwrites `rcx` and `r11`.
    if decoded.name == "syscall" && matches!(register, 1 | 11) {
        return Use::Writes;
    }
    // Another system call, or another instruction of which too little is known.
    if class == Class::Opaque {
        let reads = decoded.is_special || decoded.reads.iter().chain(&decoded.writes).any(|found| *found == Reg::Other);
        return if reads || names(decoded, register) { Use::Reads } else { Use::Passes };
    }
    // `rax` and `rdx` are named by no operand here.
    if matches!(decoded.name.as_str(), "cdqe" | "cwde" | "cdq" | "cqo" | "cbw" | "cwd") {
        return match register {
            0 => Use::Reads,
            2 => Use::Writes,
            _ => Use::Passes,
        };
    }
    if effect_of(&decoded.name).is_some() && decoded.operands.len() < 2 && register <= 2 && register != 1 {
        return Use::Reads;
    }
    if !names(decoded, register) {
        return Use::Passes;
    }
    let is_it =
        |operand: &Operand| matches!(*operand, Operand::Reg(Reg::General(number, width, _)) if number == register && width >= 32);
    let writes_first = ["mov", "movabs", "movzx", "movsx", "movsxd", "lea", "pop"].contains(&decoded.name.as_str());
    let of_rest = |operand: &Operand| match *operand {
        Operand::Reg(Reg::General(number, ..)) => number == register,
        Operand::Memory(memory) => [memory.base, memory.index]
            .into_iter()
            .flatten()
            .any(|found| matches!(found, Reg::General(number, ..) if number == register)),
        _ => false,
    };
    match &*decoded.operands {
        [(first, _), (second, _)] if decoded.name == "xor" && first == second && is_it(first) => Use::Writes,
        [(first, _), rest @ ..] if writes_first && is_it(first) && !rest.iter().any(|(operand, _)| of_rest(operand)) => {
            Use::Writes
        }
        _ => Use::Reads,
    }
}
