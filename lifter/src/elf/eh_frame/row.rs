//! What an unwinder knows of a place, as far as it matters for where one entry could end and another begin.
//!
//! What else there is than what compilers write (expressions, rules for the return address, another common entry) is not followed.
//!
//! Source: DWARF 5 §6.4.2.

use super::{CfiOp, CieData, FdeData, RETURN_ADDRESS};
use crate::elf::cfi::Instruction;

/// Register and offset.
const CFA_AT_ENTRY: (u64, i64) = (7, 8);

/// Where the frame is, and which registers are saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    cfa: (u64, i64),
    /// Registers that have a rule.
    saved: Vec<u64>,
}

impl Row {
    pub(super) fn at_entry() -> Self {
        Self { cfa: CFA_AT_ENTRY, saved: Vec::new() }
    }

    pub(super) fn is_at_entry(&self) -> bool {
        self.cfa == CFA_AT_ENTRY && self.saved.is_empty()
    }

    /// The row of an entry's first instruction; `None` if it is not understood.
    pub(super) fn first_of(cie: &CieData, fde: &FdeData) -> Option<Self> {
        Self::after(cie, fde.ops.iter().take_while(|op| op.at == fde.start))
    }

    /// The row in which an entry ends; `None` if it is not understood.
    pub(super) fn last_of(cie: &CieData, fde: &FdeData) -> Option<Self> {
        Self::after(cie, fde.ops.iter().filter(|op| op.at < fde.end))
    }

    fn after<'o>(cie: &CieData, ops: impl Iterator<Item = &'o CfiOp>) -> Option<Self> {
        let (mut row, mut remembered) = (Self::at_entry(), Vec::new());
        if !cie.is_standard() {
            return None;
        }
        for op in ops {
            row.follow(cie, op, &mut remembered)?;
        }
        Some(row)
    }

    /// Does what a call frame instruction says; `None` if it is not understood.
    pub(super) fn follow(&mut self, cie: &CieData, op: &CfiOp, remembered: &mut Vec<Self>) -> Option<()> {
        let (instruction, _) = Instruction::decode(&op.bytes, cie.data_alignment)?;
        match instruction {
            Instruction::Nop => {}
            Instruction::DefCfa { register, offset } => self.cfa = (register, offset),
            Instruction::DefCfaRegister(register) => self.cfa.0 = register,
            Instruction::DefCfaOffset(offset) => self.cfa.1 = offset,
            Instruction::Offset { register, .. } => self.save(register)?,
            Instruction::Restore(register) if register != RETURN_ADDRESS => self.saved.retain(|&saved| saved != register),
            Instruction::RememberState => remembered.push(self.clone()),
            Instruction::RestoreState => *self = remembered.pop()?,
            _ => return None,
        }
        Some(())
    }

    fn save(&mut self, register: u64) -> Option<()> {
        if !self.saved.contains(&register) {
            self.saved.push(register);
            self.saved.sort_unstable();
        }
        (register != RETURN_ADDRESS).then_some(())
    }
}
