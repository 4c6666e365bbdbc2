//! Compares two instructions: the same bytes outside the fields that may move. The address of the unwind table where it is registered is one ([`crate::registered`]).

use super::Walk;
use crate::decode::{Inst, Kind, Shape};
use crate::registered::follow_table;
use crate::report::{Violation, ViolationKind};

/// What an instruction's field refers to, in both programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    Code(u64, u64),
    /// Data that may be a jump table of entries of this width.
    Table {
        input: u64,
        output: u64,
        width: u8,
    },
    /// Data at another address than in the input.
    Displaced(u64, u64),
}

/// What is wrong about two instructions. Nearly all that differ are explained in another way then, so it is put into words only where it is told.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    Instruction,
    Condition,
    /// An operand in the input's code, as addresses of both.
    ReadsElsewhere(u64, u64),
    /// An operand in the code where the output has other bytes.
    ReadsOther(u64),
}

/// The condition of a `jcc`, 0 to 15.
pub(crate) fn condition(bytes: &[u8]) -> u8 {
    let shape = Shape::of(bytes);
    bytes.get(shape.opcode).map_or(0, |opcode| opcode & 15)
}

/// The prefixes of a branch without the hints, which do nothing.
pub(crate) fn prefixes(bytes: &[u8]) -> impl Iterator<Item = &u8> {
    let shape = Shape::of(bytes);
    let size = shape.opcode - usize::from(shape.map == 1 && shape.opcode > 0);
    bytes[..size.min(bytes.len())].iter().filter(|byte| !matches!(byte, 0x2e | 0x3e))
}

/// The prefixes of a direct call that do something: a linker pads a call that it made of `call *slot` with one for the size of addresses, and such a call has none.
pub(super) fn prefixes_of_call(bytes: &[u8]) -> impl Iterator<Item = &u8> {
    prefixes(bytes).filter(|&&byte| byte != 0x67)
}

impl Walk<'_, '_> {
    pub(crate) fn compare(&self, i: u64, a: Inst, o: u64, b: Inst) -> Result<Option<Reference>, Difference> {
        let (x, y) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
        let mismatch = || Err(Difference::Instruction);
        if a.kind != b.kind {
            return mismatch();
        }
        match a.kind {
            Kind::Branch => {
                if condition(x) | 1 != condition(y) | 1 {
                    return Err(Difference::Condition);
                }
                return if prefixes(x).eq(prefixes(y)) { Ok(None) } else { mismatch() };
            }
            Kind::Call => {
                return if prefixes_of_call(x).eq(prefixes_of_call(y)) { Ok(None) } else { mismatch() };
            }
            Kind::Loop => {
                let field = if x.first() == Some(&0xc7) { 4 } else { 1 };
                let same = x.len() == y.len() && x.len() >= field && x[..x.len() - field] == y[..y.len() - field];
                return if same { Ok(None) } else { mismatch() };
            }
            _ => {}
        }
        if a.len != b.len || a.disp != b.disp {
            return mismatch();
        }
        if a.disp == 0 {
            if let Some(found) = self.linked_address(i, x, y) {
                return Ok(Some(found));
            }
            return if x == y {
                Ok(self.absolute(x).or_else(|| self.number(i, x)))
            } else if follow_table(self.input, (i, a), self.output, (o, b)) {
                Ok(None)
            } else {
                self.absolute_difference(x, y).map_or_else(mismatch, |found| Ok(Some(found)))
            };
        }
        let disp = usize::from(a.disp);
        if x.len() < disp + 4 || x[..disp] != y[..disp] {
            return mismatch();
        }
        let (to_i, to_o) = (self.input.operand(i, a), self.output.operand(o, b));
        // A store of an address in a file at a fixed address: the immediate behind the displacement.
        let is_linked = self.absolute_fields.contains(&(i + disp as u64 + 4));
        if is_linked
            && to_i == to_o
            && let (Some(input), Some(output)) = (field(x, disp + 4), field(y, disp + 4))
            && self.input.image.in_code(input)
        {
            return Ok(Some(Reference::Code(input, output)));
        }
        if x[disp + 4..] != y[disp + 4..] {
            return mismatch();
        }
        if to_i != to_o && follow_table(self.input, (i, a), self.output, (o, b)) {
            return Ok(None);
        }
        // A store of what may be an address.
        if to_i == to_o
            && a.kind != Kind::Lea
            && x.len() == disp + 8
            && !self.input.image.in_code(to_i)
            && let Some(found) = self.number(i, x)
        {
            return Ok(Some(found));
        }
        self.operand(a, to_i, to_o)
    }

    /// Puts into words how two instructions differ.
    pub(crate) fn tell(&self, difference: Difference, (i, a): (u64, Inst), (o, b): (u64, Inst)) -> Violation {
        let unlike = |message: &str| {
            let (x, y) = (self.input.code.bytes(i, a), self.output.code.bytes(o, b));
            format!("{message}, unlike the input's {i:#x}: {y:02x?}, not {x:02x?}")
        };
        let (kind, message) = match difference {
            Difference::Instruction => (ViolationKind::InstructionMismatch, unlike("another instruction")),
            Difference::Condition => (ViolationKind::ConditionMismatch, unlike("another condition")),
            Difference::ReadsElsewhere(to_i, to_o) => {
                (ViolationKind::OperandMismatch, format!("reads {to_o:#x}; the input reads {to_i:#x}, in its code"))
            }
            Difference::ReadsOther(place) => {
                (ViolationKind::OperandMismatch, format!("reads {place:#x}, in the code, where the output has other bytes"))
            }
        };
        Violation::new(kind, o, message)
    }

    /// A rip-relative operand.
    pub(super) fn operand(&self, a: Inst, to_i: u64, to_o: u64) -> Result<Option<Reference>, Difference> {
        let is_code = self.input.image.in_code(to_i);
        match (is_code, a.kind == Kind::Lea) {
            (true, true) => Ok(Some(Reference::Code(to_i, to_o))),
            (true, false) if to_i != to_o => Err(Difference::ReadsElsewhere(to_i, to_o)),
            (true, false) => {
                let size = [16, 8, 4, 1].into_iter().find(|&size| self.input.image.at(to_i, size).is_some()).unwrap_or(0);
                if self.input.image.at(to_i, size.min(8)) == self.output.image.at(to_i, size.min(8)) {
                    Ok(None)
                } else {
                    Err(Difference::ReadsOther(to_i))
                }
            }
            (false, true) => Ok(Some(Reference::Table { input: to_i, output: to_o, width: 4 })),
            (false, false) if to_i == to_o => Ok(None),
            (false, false) => Ok(Some(Reference::Displaced(to_i, to_o))),
        }
    }

    /// The code address in a field that the input's relocations name, if nothing else differs.
    fn linked_address(&self, i: u64, x: &[u8], y: &[u8]) -> Option<Reference> {
        if self.absolute_fields.is_empty() {
            return None;
        }
        let at = (1..x.len()).find(|&at| self.absolute_fields.contains(&(i + at as u64)))?;
        // `movabs` alone has a field of eight bytes.
        let size = if x.len() >= at + 8 { 8 } else { 4 };
        let read =
            |bytes: &[u8]| Some(bytes.get(at..at + size)?.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)));
        let (input, output) = (read(x)?, read(y)?);
        let same = x.len() == y.len() && x[..at] == y[..at] && x[at + size..] == y[at + size..];
        (same && self.input.image.in_code(input)).then_some(Reference::Code(input, output))
    }

    /// The base of an indexed access that may be a table of absolute addresses, where both have the same bytes.
    fn absolute(&self, x: &[u8]) -> Option<Reference> {
        let value = self.absolute_table(x)?;
        Some(Reference::Table { input: value, output: value, width: 8 })
    }

    /// The base of an indexed access of the input that may be a table of absolute addresses.
    pub(crate) fn absolute_table(&self, bytes: &[u8]) -> Option<u64> {
        if !self.input.image.is_position_dependent() {
            return None;
        }
        let value = field(bytes, Shape::of(bytes).wide_displacement(bytes)?)?;
        self.may_be_absolute_table(value).then_some(value)
    }

    /// In a file at a fixed address without the linker's relocations, a number at an instruction's end that is the address of a function, or that is copied and is a little less: it
    /// has to stay good.
    fn number(&self, at: u64, x: &[u8]) -> Option<Reference> {
        if !self.has_numbers {
            return None;
        }
        let value = Shape::of(x).wide_immediate(x)?;
        let is_label = || {
            let unwind = &self.input.unwind;
            let is_start = self.input.code.index(value).is_some_and(|index| self.survey.is_boundary(index));
            is_start && unwind.fde_at(value).is_some() && unwind.fde_at(value) == unwind.fde_at(at)
        };
        if let Some((input, output)) = self.past_entry(value) {
            return Some(Reference::Code(input, output));
        }
        let is_start = self.input.unwind.starts_at(value) || self.input.starts_undescribed(value);
        if is_start || is_label() {
            return Some(Reference::Code(value, value));
        }
        let is_copied = matches!((Shape::of(x).map, x.get(Shape::of(x).opcode)?), (0, 0x68 | 0xb8..=0xbf | 0xc7));
        self.named_below(value).filter(|_| is_copied).map(|start| Reference::Code(start, start))
    }

    /// The function that begins a few bytes behind an address at which no instruction begins.
    pub(crate) fn named_below(&self, address: u64) -> Option<u64> {
        let index = self.input.code.index(address)?;
        if self.survey.is_boundary(index) { None } else { self.input.function_behind(address) }
    }

    /// Where an entry at an address leads in both, that stands for a function and has no frame description: as a number names it, it stays, and nothing else shows
    /// that it is code.
    pub(crate) fn past_entry(&self, address: u64) -> Option<(u64, u64)> {
        let jump = self.input.undescribed_jump(address)?;
        let moved = self.output.undescribed_jump(address);
        self.input.unwind.starts_at(jump).then(|| moved.map_or((address, address), |moved| (jump, moved)))
    }

    fn may_be_absolute_table(&self, address: u64) -> bool {
        let first = self.input.image.u64_at(address);
        !self.input.image.in_code(address) && first.is_some_and(|first| self.input.image.in_code(first))
    }

    /// In a file at a fixed address, a 32-bit field may hold an address that moved.
    fn absolute_difference(&self, x: &[u8], y: &[u8]) -> Option<Reference> {
        if !self.input.image.is_position_dependent() || x.len() != y.len() {
            return None;
        }
        let first = x.iter().zip(y).position(|(a, b)| a != b)?;
        // Only the displacement and a last immediate can hold an address of 32 bits.
        let shape = Shape::of(x);
        let displacement = shape.wide_displacement(x);
        let immediate = shape.wide_immediate_at(x).filter(|&at| x.len() - at == 4);
        let at = [displacement, immediate].into_iter().flatten().find(|&at| at <= first && first < at + 4)?;
        if at <= shape.opcode || x[..at] != y[..at] || x.get(at + 4..)? != y.get(at + 4..)? {
            return None;
        }
        let (input, output) = (field(x, at)?, field(y, at)?);
        if self.input.image.in_code(input) {
            Some(Reference::Code(input, output))
        } else if displacement == Some(at) && self.may_be_absolute_table(input) {
            Some(Reference::Table { input, output, width: 8 })
        } else {
            None
        }
    }
}

fn field(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)))
}
