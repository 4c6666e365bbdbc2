//! What unwinders must know at each address, and the instructions that lead from one such row to the next.
//!
//! **Method.** A small interpreter runs a frame entry's instructions and records a row at each address where something changes. A register's rule is
//! kept as the bytes of the instruction that set it: it need not be understood to be set again. A register that still has the common
//! entry's rule is absent.
//!
//! `DW_CFA_restore` means the common entry's rule by the standard, and "not saved" to libgcc. The two differ where that entry has a rule: for
//! the return address, and in cold parts, whose entry names what the function has saved. There it is an instruction that sets a
//! rule like any other, and what goes back to the common entry's rule says that in full: each unwinder reads what it read before.
//!
//! `DW_CFA_GNU_args_size` is no part of what remember and restore save, as in libgcc.
//!
//! **Bounds.** Rows share their registers until one changes; nesting and the count of registers are limited, so a hostile entry
//! costs a bounded multiple of its size.

use std::ops::Range;
use std::rc::Rc;

use lifter::Va;
use lifter::elf::cfi::Instruction;
use lifter::elf::eh_frame::{CfiOp, CieData, FdeData};

use crate::relink::eh_frame::{Deeper, UnwindError};
use crate::relink::lsda::{push_sleb, push_uleb};

/// Far more than any frame saves.
const MAX_REGISTERS: usize = 128;
const MAX_DEPTH: usize = 16;

/// DWARF's numbers of the stack pointer and of the return address.
const STACK_POINTER: u64 = 7;
const RETURN_ADDRESS: u64 = 16;

/// The entry for code with so many bytes more between the return address and what it has below it: where the frame address counts from the stack pointer it is so much further
/// from that, and the saves, but for the return address, are from the frame address. `None` where that is not understood: where saves are deeper, a frame address that counts from something else.
pub(crate) fn deepened(cie: &CieData, fde: &FdeData, deeper: Deeper) -> Option<FdeData> {
    let (by, saves_by) = (i64::from(deeper.stack), i64::from(deeper.saves));
    if !cie.is_standard() || by % 8 != 0 || saves_by % 8 != 0 {
        return None;
    }
    let frame_address = |(register, offset): (u64, i64)| {
        if register != STACK_POINTER && saves_by != 0 {
            return None;
        }
        let mut bytes = vec![gimli::DW_CFA_def_cfa.0];
        push_uleb(&mut bytes, register);
        push_uleb(&mut bytes, u64::try_from(if register == STACK_POINTER { offset + by } else { offset }).ok()?);
        Some(bytes)
    };
    let mut current = (STACK_POINTER, 8);
    let mut remembered = Vec::new();
    let mut ops = vec![CfiOp { at: fde.start, bytes: frame_address(current)?.into() }];
    for op in &fde.ops {
        let instruction = Instruction::decode(&op.bytes, cie.data_alignment)?.0;
        match instruction {
            Instruction::DefCfa { register, offset } => current = (register, offset),
            Instruction::DefCfaOffset(offset) => current.1 = offset,
            Instruction::DefCfaRegister(register) => current.0 = register,
            Instruction::RememberState => remembered.push(current),
            Instruction::RestoreState => current = remembered.pop()?,
            _ => {}
        }
        let bytes = match instruction {
            Instruction::DefCfa { .. } | Instruction::DefCfaOffset(_) | Instruction::DefCfaRegister(_) => {
                frame_address(current)?.into()
            }
            Instruction::Offset { register, offset } if saves_by != 0 && register < RETURN_ADDRESS && offset < 0 => {
                let mut bytes = vec![gimli::DW_CFA_offset.0 | register as u8];
                push_uleb(&mut bytes, (saves_by - offset).unsigned_abs() / 8);
                bytes.into()
            }
            Instruction::Offset { .. } if saves_by == 0 => op.bytes.clone(),
            Instruction::Restore(_) | Instruction::RememberState | Instruction::RestoreState | Instruction::Nop => {
                op.bytes.clone()
            }
            _ => return None,
        };
        ops.push(CfiOp { at: op.at, bytes });
    }
    Some(FdeData { ops, ..fde.clone() })
}

/// How the canonical frame address is computed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Cfa<'a> {
    Unset,
    Register {
        register: u64,
        offset: i64,
    },
    /// `expression` is the whole instruction. A register defined afterwards takes up the offset from before: not what the standard
    /// allows, but what unwinders do and hand-written assembly relies on.
    Expression {
        expression: &'a [u8],
        offset: i64,
    },
}

impl Cfa<'_> {
    fn offset(self) -> Option<i64> {
        match self {
            Cfa::Unset => None,
            Cfa::Register { offset, .. } | Cfa::Expression { offset, .. } => Some(offset),
        }
    }
}

/// Ascending by register: the instruction that set its rule.
type Rules<'a> = Rc<[(u64, &'a [u8])]>;

/// The state that holds from one address to the next.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    cfa: Cfa<'a>,
    registers: Rules<'a>,
    /// The same of the common entry.
    initial: Rules<'a>,
    args_size: u64,
}

impl PartialEq for Row<'_> {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |a: &Rules<'_>, b: &Rules<'_>| Rc::ptr_eq(a, b) || a == b;
        self.cfa == other.cfa
            && self.args_size == other.args_size
            && is_same(&self.registers, &other.registers)
            && is_same(&self.initial, &other.initial)
    }
}

impl Eq for Row<'_> {}

/// The rows of one frame entry, ascending; the first is at its start.
#[derive(Debug)]
pub(super) struct Rows<'a>(Vec<(Va, Row<'a>)>);

impl<'a> Rows<'a> {
    pub(super) fn evaluate(cie: &'a CieData, fde: &'a FdeData) -> Result<Self, UnwindError> {
        Self::evaluate_from(Row::initial(cie)?, cie, fde)
    }

    /// The same, by the common entry's row.
    pub(super) fn evaluate_from(mut row: Row<'a>, cie: &CieData, fde: &'a FdeData) -> Result<Self, UnwindError> {
        let mut remembered = Vec::new();
        let mut rows: Vec<(Va, Row<'a>)> = Vec::with_capacity(fde.ops.len() + 1);
        rows.push((fde.start, row.clone()));
        for op in &fde.ops {
            row.apply(&op.bytes, cie.data_alignment, &mut remembered).ok_or(UnwindError::TooComplex(fde.start))?;
            match rows.last_mut() {
                Some((at, last)) if *at == op.at => last.clone_from(&row),
                _ => rows.push((op.at, row.clone())),
            }
        }
        Ok(Rows(rows))
    }

    /// The row that holds at an address of the entry.
    pub(super) fn at(&self, va: Va) -> &Row<'a> {
        &self.0[self.index_at(va)].1
    }
    fn index_at(&self, va: Va) -> usize {
        self.0.partition_point(|(at, _)| *at <= va).saturating_sub(1)
    }
    /// Changes after `start`, `end` included.
    pub(super) fn changes(&self, start: Va, end: Va) -> impl Iterator<Item = &(Va, Row<'a>)> {
        let first = self.0.partition_point(|(at, _)| *at <= start);
        self.0[first..].iter().take_while(move |(at, _)| *at <= end)
    }
}

/// The rows that common entries leave, each evaluated when it is asked for first.
#[derive(Default)]
pub(super) struct CommonRows<'a>(Vec<Option<Row<'a>>>);

impl<'a> CommonRows<'a> {
    /// The row of the common entry with this index.
    pub(super) fn of(&mut self, cies: &'a [CieData], index: usize) -> Result<Row<'a>, UnwindError> {
        if self.0.len() <= index {
            self.0.resize(index + 1, None);
        }
        if let Some(row) = &self.0[index] {
            return Ok(row.clone());
        }
        let row = Row::initial(&cies[index])?;
        self.0[index] = Some(row.clone());
        Ok(row)
    }
}

/// The rows of one frame entry as bytes that can be compared with those of entries with the same common one.
#[derive(Debug)]
pub(crate) struct FrameRows<'a> {
    initial: Row<'a>,
    rows: Rows<'a>,
    data_alignment: i64,
}

impl<'a> FrameRows<'a> {
    /// `None` for what is not understood.
    pub(crate) fn evaluate(cie: &'a CieData, fde: &'a FdeData) -> Option<Self> {
        let initial = Row::initial(cie).ok()?;
        let rows = Rows::evaluate_from(initial.clone(), cie, fde).ok()?;
        Some(Self { initial, rows, data_alignment: cie.data_alignment })
    }

    /// The common entry's row.
    pub(crate) fn initial(&self) -> &Row<'a> {
        &self.initial
    }
    /// The row that holds at an address of the entry.
    pub(crate) fn at(&self, va: Va) -> &Row<'a> {
        self.rows.at(va)
    }
    /// Bytes of the instructions that turn a row into another of the same common entry.
    pub(crate) fn difference_len(&self, from: &Row<'_>, to: &Row<'_>) -> usize {
        let mut bytes = Vec::new();
        from.emit_difference(to, self.data_alignment, &mut bytes);
        bytes.len()
    }

    /// The number of the row that holds at an address.
    pub(crate) fn index_at(&self, va: Va) -> usize {
        self.rows.index_at(va)
    }

    /// The row at `start`, and each other one up to `end` with its distance.
    pub(crate) fn describe(&self, start: Va, end: Va, out: &mut Vec<u8>) {
        self.push(0, self.rows.at(start), out);
        for (at, row) in self.rows.changes(start, end).filter(|(at, _)| *at < end) {
            self.push(*at - start, row, out);
        }
    }

    /// As `describe` at a place where the row with this number holds.
    pub(crate) fn describe_row(&self, index: usize, out: &mut Vec<u8>) {
        self.push(0, &self.rows.0[index].1, out);
    }

    fn push(&self, distance: u64, row: &Row<'a>, out: &mut Vec<u8>) {
        out.extend_from_slice(&distance.to_le_bytes());
        let length_at = out.len();
        out.extend_from_slice(&[0; 8]);
        self.initial.emit_difference(row, self.data_alignment, out);
        let length = (out.len() - length_at - 8) as u64;
        out[length_at..length_at + 8].copy_from_slice(&length.to_le_bytes());
    }
}

impl<'a> Row<'a> {
    /// The row that the common entry's instructions leave. Their register rules are what absence from a row means.
    pub(super) fn initial(cie: &'a CieData) -> Result<Self, UnwindError> {
        let mut row = Row { cfa: Cfa::Unset, registers: Rc::default(), initial: Rc::default(), args_size: 0 };
        let mut rest = cie.instructions.as_slice();
        while !rest.is_empty() {
            let (_, after) = Instruction::decode(rest, cie.data_alignment).ok_or(UnwindError::CommonEntry)?;
            row.apply(&rest[..rest.len() - after.len()], cie.data_alignment, &mut Vec::new()).ok_or(UnwindError::CommonEntry)?;
            rest = after;
        }
        row.initial = std::mem::take(&mut row.registers);
        Ok(row)
    }

    /// Whether the frame address is `rsp` and a number.
    pub(crate) fn is_by_stack(&self) -> bool {
        matches!(self.cfa, Cfa::Register { register: STACK_POINTER, .. })
    }

    /// Whether the frame address is `rsp` and a number, and these registers and no other are saved, one below the other, behind the return address.
    pub(super) fn has_pushed(&self, registers: &[u64], data_alignment: i64) -> bool {
        let depth = 8 * (registers.len() as i64 + 1);
        let own = self.registers.iter().filter(|(register, _)| !self.initial.iter().any(|(of_entry, _)| of_entry == register));
        let mut expected: Vec<(u64, i64)> =
            registers.iter().zip(0..).map(|(&register, index)| (register, -16 - 8 * index)).collect();
        expected.sort_unstable();
        let saved = own.map(|&(_, bytes)| match Instruction::decode(bytes, data_alignment)?.0 {
            Instruction::Offset { register, offset } => Some((register, offset)),
            _ => None,
        });
        self.cfa == Cfa::Register { register: STACK_POINTER, offset: depth }
            && saved.collect::<Option<Vec<_>>>().as_ref() == Some(&expected)
    }

    /// One instruction; `None` if it is unknown, unbalanced or beyond the bounds.
    fn apply(&mut self, bytes: &'a [u8], data_alignment: i64, remembered: &mut Vec<Row<'a>>) -> Option<()> {
        match Instruction::decode(bytes, data_alignment)?.0 {
            Instruction::DefCfa { register, offset } => self.cfa = Cfa::Register { register, offset },
            Instruction::DefCfaRegister(register) => {
                self.cfa = Cfa::Register { register, offset: self.cfa.offset()? };
            }
            Instruction::DefCfaOffset(offset) => {
                let Cfa::Register { register, .. } = self.cfa else { return None };
                self.cfa = Cfa::Register { register, offset };
            }
            Instruction::DefCfaExpression(_) => {
                self.cfa = Cfa::Expression { expression: bytes, offset: self.cfa.offset().unwrap_or(0) };
            }
            Instruction::Undefined(register)
            | Instruction::SameValue(register)
            | Instruction::Offset { register, .. }
            | Instruction::ValOffset { register, .. }
            | Instruction::Register { register, .. }
            | Instruction::Expression { register, .. }
            | Instruction::ValExpression { register, .. } => self.set_register(register, bytes)?,
            Instruction::Restore(register) => {
                if rule_of(register, &self.initial).is_some() {
                    self.set_register(register, bytes)?;
                } else if let Ok(index) = self.registers.binary_search_by_key(&register, |r| r.0) {
                    self.replace(index..index + 1, None);
                }
            }
            Instruction::RememberState if remembered.len() < MAX_DEPTH => remembered.push(self.clone()),
            Instruction::RestoreState => {
                let args_size = self.args_size;
                *self = Row { args_size, ..remembered.pop()? };
            }
            Instruction::ArgsSize(size) => self.args_size = size,
            Instruction::Nop => {}
            Instruction::RememberState | Instruction::AdvanceLoc(_) | Instruction::SetLoc => return None,
        }
        Some(())
    }

    fn set_register(&mut self, register: u64, bytes: &'a [u8]) -> Option<()> {
        match self.registers.binary_search_by_key(&register, |r| r.0) {
            Ok(index) if self.registers[index].1 == bytes => {}
            Ok(index) => self.replace(index..index + 1, Some((register, bytes))),
            Err(_) if self.registers.len() >= MAX_REGISTERS => return None,
            Err(index) => self.replace(index..index, Some((register, bytes))),
        }
        Some(())
    }

    /// Puts a rule in the place of others. Rows before this one keep theirs.
    fn replace(&mut self, range: Range<usize>, rule: Option<(u64, &'a [u8])>) {
        let (before, after) = (&self.registers[..range.start], &self.registers[range.end..]);
        self.registers = before.iter().copied().chain(rule).chain(after.iter().copied()).collect();
    }

    pub(super) fn has_args_size_of(&self, other: &Row<'_>) -> bool {
        self.args_size == other.args_size
    }

    /// Appends the instructions that turn this row into another of the same common entry.
    pub(super) fn emit_difference(&self, to: &Row<'_>, data_alignment: i64, out: &mut Vec<u8>) {
        if self.cfa != to.cfa {
            emit_cfa(self.cfa, to.cfa, data_alignment, out);
        }
        if !Rc::ptr_eq(&self.registers, &to.registers) {
            for &(register, _) in self.registers.iter() {
                match rule_of(register, &self.initial) {
                    _ if rule_of(register, &to.registers).is_some() => {}
                    Some(rule) => out.extend_from_slice(rule),
                    None => emit_restore(register, out),
                }
            }
            for &(register, bytes) in to.registers.iter() {
                if rule_of(register, &self.registers) != Some(bytes) {
                    out.extend_from_slice(bytes);
                }
            }
        }
        if self.args_size != to.args_size {
            out.push(gimli::DW_CFA_GNU_args_size.0);
            push_uleb(out, to.args_size);
        }
    }
}

fn rule_of<'a>(register: u64, rules: &[(u64, &'a [u8])]) -> Option<&'a [u8]> {
    rules.binary_search_by_key(&register, |rule| rule.0).ok().map(|index| rules[index].1)
}

fn emit_restore(register: u64, out: &mut Vec<u8>) {
    if register < 0x40 {
        out.push(gimli::DW_CFA_restore.0 | register as u8);
    } else {
        out.push(gimli::DW_CFA_restore_extended.0);
        push_uleb(out, register);
    }
}

fn emit_cfa(from: Cfa<'_>, to: Cfa<'_>, data_alignment: i64, out: &mut Vec<u8>) {
    let (register, offset) = match to {
        Cfa::Register { register, offset } => (register, offset),
        Cfa::Expression { expression, .. } => return out.extend_from_slice(expression),
        Cfa::Unset => return,
    };
    let known = match from {
        Cfa::Register { register, offset } => Some((register, offset)),
        Cfa::Unset | Cfa::Expression { .. } => None,
    };
    if known.is_some_and(|(_, same)| same == offset) {
        out.push(gimli::DW_CFA_def_cfa_register.0);
        push_uleb(out, register);
        return;
    }
    let is_negative = offset < 0;
    if known.is_some_and(|(same, _)| same == register) {
        out.push(if is_negative { gimli::DW_CFA_def_cfa_offset_sf.0 } else { gimli::DW_CFA_def_cfa_offset.0 });
    } else {
        out.push(if is_negative { gimli::DW_CFA_def_cfa_sf.0 } else { gimli::DW_CFA_def_cfa.0 });
        push_uleb(out, register);
    }
    if is_negative {
        // Read as a multiple of the factor, so it divides.
        push_sleb(out, offset.checked_div(data_alignment).unwrap_or(0));
    } else {
        push_uleb(out, offset as u64);
    }
}

#[cfg(test)]
mod tests;
