//! How many entries a jump's table has, by what the code compares before it.
//!
//! Linear decoding shows what precedes the instruction that names the table. Where nothing goes on to there, one jump may lead to it, and what precedes that is looked at: in a file that was relinked before, a comparison and its switch stand apart.
//!
//! A call between the two of what is straight up to a `ret` may stand for instructions of the function ([`crate::followed`]): these are looked at in its place, and the comparison counts only if none of them writes what was compared.
//!
//! Other data may be named right before a switch as well: where the jump adds the address of another `lea` behind that, the comparison is about the other's table.
//!
//! A table that is named before a loop has as many entries as the jumps of the function say that add its address from the same register.
//!
//! **Terminates**: windows are limited; for one instruction all of a function are looked at once.

use crate::decode::{Inst, Kind, Shape};
use crate::straight::Parts;
use crate::walk::Walk;

/// How many instructions before the `lea` the bounds check is looked for.
const BOUND_WINDOW: usize = 8;

/// How many instructions behind the `lea` the jump is looked for: all that a function saves may be pushed between the two.
const JUMP_WINDOW: usize = 12;

/// How many instructions before a comparison are looked at for a copy of what it compares.
const COPY_WINDOW: usize = 4;

/// How control comes from a branch to what is behind it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Way {
    Taken,
    On,
}

/// The number of entries by a comparison with an unsigned branch, or a mask, right before the instruction that names the table. Only
/// if the jump follows closely as well: a `lea` that was hoisted has other comparisons around it.
pub(super) fn bound(walk: &Walk<'_, '_>, from: u64) -> Option<usize> {
    let side = walk.input;
    let (_, end) = side.function(side.function_at(from)?);
    let mut address = from;
    let mut masked: Option<Masked> = None;
    let mut passed: Vec<(u64, Inst)> = Vec::new();
    for position in 0..=JUMP_WINDOW {
        let inst = side.inst(address).filter(|_| address < end)?;
        passed.push((address, inst));
        // Between the two, too, an index may be cut to size.
        masked = masked.or_else(|| Masked::by(side.code.bytes(address, inst)));
        masked = masked.or_else(|| Masked::by_one(walk, &called(walk, address, inst)));
        match inst.kind {
            Kind::IndirectJump if is_through_another(walk, from, address, inst) => return None,
            Kind::IndirectJump if masked.is_some() => return masked.map(|masked| masked.count),
            Kind::IndirectJump => break,
            Kind::Branch => return None,
            _ if inst.ends_flow() || position == JUMP_WINDOW => return None,
            _ => address += u64::from(inst.len),
        }
    }
    let begins_here = |address| side.function_at(address).is_some_and(|function| side.function(function).0 == address);
    let mut branch: Option<Deciding> = None;
    let mut address = from;
    let (mut others, mut jumps) = (0, 0);
    let mut in_calls: Vec<(u64, Inst)> = Vec::new();
    // From here on backward.
    passed.reverse();
    while others < BOUND_WINDOW && jumps < BOUND_WINDOW {
        // Where each block has a frame description, one that runs on into the next ends with a jump there.
        let runs_on = |(at, inst): (u64, Inst)| match inst.kind {
            Kind::Jump => side.target(at, inst) == address,
            _ => !begins_here(address) && !inst.ends_flow(),
        };
        let (before, inst, way) = match instruction_before(walk, address).filter(|&before| runs_on(before)) {
            Some((before, inst)) => (before, inst, Way::On),
            None => {
                let jump = walk.survey.only_jump_to(side, address);
                let (at, inst) = jump.filter(|&(at, inst)| may_lead_to_switch(side.code.bytes(at, inst), inst))?;
                (at, inst, Way::Taken)
            }
        };
        let bytes = side.code.bytes(before, inst);
        if let Some(branch) = branch.as_ref().filter(|branch| branch.decides_by(bytes))
            && let Some(compared) = compared_with(bytes)
            && let Some((below, more)) = below(side.code.bytes(branch.at, branch.inst))
        {
            // The other way has a number above the bound, and another switch: what stands before is about that one's.
            let is_kept = below == branch.gone
                && keep_compared(walk, &in_calls, bytes)
                && !is_about_another(walk, &passed, (before, bytes));
            return is_kept.then(|| compared.saturating_add(more));
        }
        *if inst.kind == Kind::Jump { &mut jumps } else { &mut others } += 1;
        let part = called(walk, before, inst);
        if let Some(masked) = Masked::by(bytes).or_else(|| Masked::by_one(walk, &part)) {
            let is_added = |&(at, inst): &(u64, Inst)| masked.is_added(side.code.bytes(at, inst));
            return (!passed.iter().any(is_added)).then_some(masked.count);
        }
        passed.push((before, inst));
        others += part.len();
        in_calls.extend(part);
        branch = match inst.kind {
            Kind::Branch => Some(Deciding { at: before, inst, gone: way, moved: Vec::new() }),
            _ => branch.filter(|_| way == Way::On).and_then(|branch| branch.behind_move(bytes)),
        };
        address = before;
    }
    None
}

/// What stands where a call leads that is a part of its caller ([`crate::followed`]).
fn called(walk: &Walk<'_, '_>, address: u64, inst: Inst) -> Vec<(u64, Inst)> {
    let target = (inst.kind == Kind::Call).then(|| walk.input.target(address, inst));
    target.and_then(|target| crate::followed::straight(walk.input, target)).unwrap_or_default()
}

/// Whether none of these instructions may write what an instruction compared.
fn keep_compared(walk: &Walk<'_, '_>, insts: &[(u64, Inst)], comparison: &[u8]) -> bool {
    let Some(compared) = compared_register(comparison) else { return insts.is_empty() };
    let written = |&(at, inst)| Parts::of(walk.input.code.bytes(at, inst)).written();
    insts.iter().map(written).all(|written| written.is_some_and(|written| written >> compared & 1 == 0))
}

/// Whether a comparison is about another number than the one by which instructions behind it, the last one first, find where to jump: nothing reads what it compared, nor is it a copy of something or has one; or it is
/// written before anything reads it, and nothing addresses by a copy either.
fn is_about_another(walk: &Walk<'_, '_>, insts: &[(u64, Inst)], (place, comparison): (u64, &[u8])) -> bool {
    let Some(compared) = compared_register(comparison) else { return false };
    let mut is_written = false;
    for &(at, inst) in insts.iter().rev() {
        let bytes = walk.input.code.bytes(at, inst);
        let [register, base, index] = registers_of(walk, at, inst);
        if [base, index].contains(&Some(compared)) || register == Some(compared) && !is_load_or_extension(bytes) {
            return false;
        }
        if Parts::of(bytes).written().is_some_and(|written| written >> compared & 1 == 1) {
            is_written = true;
            break;
        }
    }
    let addresses_by = |other: u8| insts.iter().any(|&(at, inst)| registers_of(walk, at, inst)[1..].contains(&Some(other)));
    let before = std::iter::successors(instruction_before(walk, place), |&(at, _)| instruction_before(walk, at));
    !before.take(COPY_WINDOW).any(|(at, inst)| {
        let bytes = walk.input.code.bytes(at, inst);
        let is_move = is_load_or_extension(bytes) || Parts::of(bytes).is_of(0, 0x89);
        let is_copy = is_move && Parts::of(bytes).register_operand().is_some();
        let registers = registers_of(walk, at, inst);
        let mut others = registers.into_iter().flatten().filter(|&register| register != compared);
        is_copy && registers.contains(&Some(compared)) && (!is_written || others.any(addresses_by))
    })
}

/// Whether an instruction writes the register in the middle of ModRM, and reads it only if it is the operand as well.
fn is_load_or_extension(bytes: &[u8]) -> bool {
    let shape = Shape::of(bytes);
    let opcode = bytes.get(shape.opcode).copied().unwrap_or(0);
    matches!((shape.map, opcode), (0, 0x63 | 0x8a | 0x8b | 0x8d) | (1, 0xb6 | 0xb7 | 0xbe | 0xbf))
}

/// The register that a comparison is about; `None` if that is memory.
fn compared_register(comparison: &[u8]) -> Option<u8> {
    let shape = Shape::of(comparison);
    let is_accumulator = matches!(comparison.get(shape.opcode), Some(0x3c | 0x3d));
    let is_register = comparison.get(shape.modrm).is_some_and(|modrm| modrm >> 6 == 3);
    match (is_accumulator, is_register) {
        (true, _) => Some(0),
        (false, true) => shape.registers(comparison).and_then(|registers| registers[1]),
        (false, false) => None,
    }
}

/// What a move or `push` writes: a register, or memory; `None` if the instruction is neither.
fn written(bytes: &[u8]) -> Option<Option<u8>> {
    let shape = Shape::of(bytes);
    if shape.map == 0 && matches!(bytes.get(shape.opcode)?, 0x50..=0x57) {
        return Some(None);
    }
    let registers = shape.registers(bytes)?;
    let is_register = bytes.get(shape.modrm)? >> 6 == 3;
    Some(match (shape.map, *bytes.get(shape.opcode)?) {
        (0, 0x89 | 0xc7) if is_register => registers[1],
        (0, 0x88 | 0x89 | 0xc6 | 0xc7) if !is_register => None,
        (0, 0x63 | 0x8b | 0x8d) | (1, 0xb6 | 0xb7 | 0xbe | 0xbf) => registers[0],
        _ => return None,
    })
}

/// `rcx` and `rdi`, by their numbers.
const COUNTER: u8 = 1;
const DESTINATION: u8 = 7;

/// Whether an instruction is `stos`, repeated or not, which writes memory, where that is, and how often.
fn stores_string(bytes: &[u8]) -> bool {
    let shape = Shape::of(bytes);
    shape.map == 0 && !shape.vector && matches!(bytes.get(shape.opcode), Some(0xaa | 0xab))
}

/// A branch, as long as all between it and the instruction that is looked at are moves or `push`, which leave the flags.
struct Deciding {
    at: u64,
    inst: Inst,
    /// How control came from it.
    gone: Way,
    /// Registers that the moves write; `None` for memory.
    moved: Vec<Option<u8>>,
}

impl Deciding {
    /// Whether it decides by a comparison with what is still there behind the moves.
    fn decides_by(&self, comparison: &[u8]) -> bool {
        let compared = compared_register(comparison);
        self.moved.is_empty() || compared.is_some() && !self.moved.contains(&compared)
    }

    fn behind_move(mut self, bytes: &[u8]) -> Option<Self> {
        match stores_string(bytes) {
            true => self.moved.extend([None, Some(COUNTER), Some(DESTINATION)]),
            false => self.moved.push(written(bytes)?),
        }
        Some(self)
    }
}

/// Whether a jump adds the address that another `lea`, between an instruction that names data and the jump, makes of other data: then the jump goes through a table there, and what is compared before it says nothing of
/// the data.
fn is_through_another(walk: &Walk<'_, '_>, from: u64, jump: u64, inst: Inst) -> bool {
    let side = walk.input;
    let is_named = |at, inst: Inst| (inst.kind == Kind::Lea && inst.disp != 0).then(|| side.operand(at, inst));
    let own = side.inst(from).and_then(|inst| is_named(from, inst));
    let (Some(own), Some((mut place, base))) = (own, added_before(walk, jump, inst)) else { return false };
    loop {
        let Some((at, inst)) = instruction_before(walk, place).filter(|&(at, _)| at > from) else { return false };
        place = at;
        let bytes = side.code.bytes(at, inst);
        let used = registers_of(walk, at, inst);
        if used[0] == Some(base) {
            return is_named(at, inst).is_some_and(|other| other != own);
        }
        // A load by the address.
        let is_load = || matches!(bytes.get(Shape::of(bytes).opcode), Some(0x63 | 0x8b)) && Shape::of(bytes).map == 0;
        if !matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::Nop) || used.contains(&Some(base)) && !is_load() {
            return false;
        }
    }
}

/// The instruction that ends where another begins, as linear decoding meets it.
pub(crate) fn instruction_before(walk: &Walk<'_, '_>, address: u64) -> Option<(u64, Inst)> {
    let side = walk.input;
    (1..=15).find_map(|size| {
        let before = address.checked_sub(size)?;
        side.code.index(before).filter(|&index| walk.survey.may_be_instruction(index))?;
        side.inst(before).filter(|inst| u64::from(inst.len) == size).map(|inst| (before, inst))
    })
}

/// The number of entries by what stands before the instruction that names the table, or else before the jumps that use it.
pub(super) fn num_compared(walk: &Walk<'_, '_>, from: u64) -> Option<usize> {
    bound(walk, from).or_else(|| bound_by_jumps(walk, from))
}

/// The number of entries that jumps of the function ask for which add an address from the register that an instruction writes: the largest, if all of them compare.
fn bound_by_jumps(walk: &Walk<'_, '_>, from: u64) -> Option<usize> {
    let side = walk.input;
    let register = registers_of(walk, from, side.inst(from).filter(|inst| inst.kind == Kind::Lea)?)[0]?;
    let parts: Vec<(u64, u64)> = match side.unwind.fde_at(from) {
        Some(fde) => walk.survey.with_parts(vec![(from, fde)]).iter().map(|&(_, part)| side.function(part)).collect(),
        None => vec![side.function(side.function_at(from)?)],
    };
    let mut most = None;
    for (start, end) in parts {
        let mut address = start;
        while let Some(inst) = side.inst(address).filter(|_| address < end) {
            if inst.kind == Kind::IndirectJump && added_before(walk, address, inst).is_some_and(|(_, added)| added == register) {
                most = most.max(Some(bound(walk, address)?));
            }
            address += u64::from(inst.len);
        }
    }
    most
}

/// Where, shortly before a jump, a register is added to what it goes to, and which one.
fn added_before(walk: &Walk<'_, '_>, jump: u64, inst: Inst) -> Option<(u64, u8)> {
    let [_, through, _] = registers_of(walk, jump, inst);
    let register = through?;
    let keeps_it = |&(at, inst): &(u64, Inst)| {
        let written = Parts::of(walk.input.code.bytes(at, inst)).written();
        matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::Nop) && written.is_some_and(|written| written >> register & 1 == 0)
    };
    let between = std::iter::successors(instruction_before(walk, jump), |&(at, _)| instruction_before(walk, at));
    let (before, inst) = between.take(COPY_WINDOW).find(|before| !keeps_it(before))?;
    let bytes = walk.input.code.bytes(before, inst);
    let shape = Shape::of(bytes);
    let [register, base, _] = registers_of(walk, before, inst);
    let added = match (shape.map, *bytes.get(shape.opcode)?) {
        (0, 0x01) if base == through => register,
        (0, 0x03) if register == through => base,
        _ => None,
    };
    added.map(|added| (before, added))
}

fn registers_of(walk: &Walk<'_, '_>, address: u64, inst: Inst) -> [Option<u8>; 3] {
    let bytes = walk.input.code.bytes(address, inst);
    Shape::of(bytes).registers(bytes).unwrap_or_default()
}

/// Whether a jump is always taken, or below a bound.
fn may_lead_to_switch(bytes: &[u8], inst: Inst) -> bool {
    match inst.kind {
        Kind::Jump => true,
        Kind::Branch => bytes.get(Shape::of(bytes).opcode).is_some_and(|opcode| matches!(opcode & 15, 2 | 6)),
        _ => false,
    }
}

/// What a mask has left of something.
struct Masked {
    /// How many values it may have.
    count: usize,
    /// Where it is; `None` for memory.
    register: Option<u8>,
}

impl Masked {
    fn by(bytes: &[u8]) -> Option<Self> {
        let shape = Shape::of(bytes);
        let is_mask = shape.map == 0
            && matches!(bytes.get(shape.opcode), Some(0x80 | 0x83))
            && bytes.get(shape.modrm).is_some_and(|modrm| modrm >> 3 & 7 == 4);
        let bits = usize::from(*bytes.last()?);
        let is_low = is_mask && (bits + 1).is_power_of_two() && bits < 0x80;
        is_low.then(|| Self { count: bits + 1, register: Parts::of(bytes).changed_register() })
    }

    /// By the last mask of some instructions.
    fn by_one(walk: &Walk<'_, '_>, insts: &[(u64, Inst)]) -> Option<Self> {
        insts.iter().rev().find_map(|&(at, inst)| Self::by(walk.input.code.bytes(at, inst)))
    }

    /// Whether an instruction makes a sum or a difference of it and something else.
    fn is_added(&self, bytes: &[u8]) -> bool {
        let parts = Parts::of(bytes);
        let Some(register) = self.register.filter(|_| parts.adds()) else { return false };
        parts.changed_register() == Some(register) || parts.reg() == Some(register) && !parts.has_number()
    }
}

/// The number that something is compared with.
fn compared_with(bytes: &[u8]) -> Option<usize> {
    let shape = Shape::of(bytes);
    let operation = *bytes.get(shape.modrm)? >> 3 & 7;
    let byte = usize::from(*bytes.last()?);
    match (shape.map, *bytes.get(shape.opcode)?, operation) {
        (0, 0x80, 7) | (0, 0x3c, _) => Some(byte),
        (0, 0x83, 7) if byte < 0x80 => Some(byte),
        (0, 0x81, 7) | (0, 0x3d, _) => {
            let field = bytes.get(bytes.len().checked_sub(4)?..)?;
            Some(u32::from_le_bytes(field.try_into().ok()?) as usize)
        }
        _ => None,
    }
}

/// The way from an unsigned branch on which the number is no larger than what it was compared with, and 1 if it may be equal there.
fn below(branch: &[u8]) -> Option<(Way, usize)> {
    match branch.get(Shape::of(branch).opcode)? & 15 {
        2 => Some((Way::Taken, 0)),
        3 => Some((Way::On, 0)),
        6 => Some((Way::Taken, 1)),
        7 => Some((Way::On, 1)),
        _ => None,
    }
}
