//! Evaluates call frame instructions to rows (DWARF 5 §6.4.2), as unwinders do, which differ from the standard in two places.
//!
//! `DW_CFA_restore` gives a register the rule of the common entry; libgcc takes it for "not saved", whatever that entry says. A register
//! restored to a rule is therefore another thing than one that has the rule, or a file that only some unwinders can read would pass.
//! `DW_CFA_GNU_args_size` is no part of what `DW_CFA_remember_state` keeps.
//!
//! Terminates: each instruction consumes at least one byte.

use super::reader::{Cie, RawFde, Reader};
use crate::error::FileError;

/// How the caller's value of a register is found. `same_value` is left out: it is what a missing rule means.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Undefined,
    Offset(i64),
    ValueOffset(i64),
    Register(u64),
    Expression(Vec<u8>),
    ValueExpression(Vec<u8>),
    /// The common entry's rule by `DW_CFA_restore`: no rule at all for libgcc.
    Restored(Box<Rule>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Cfa {
    Register(u64, i64),
    Expression(Vec<u8>),
}

/// The rules at one address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    cfa: Cfa,
    /// By register.
    rules: Vec<(u64, Rule)>,
    arguments_size: u64,
}

/// The column of the return address in the ABI's numbering of registers.
pub(super) const RETURN_ADDRESS: u64 = 16;

impl Row {
    /// The rules at a function's first instruction: the frame is what the call pushed.
    pub(super) fn entry() -> Self {
        Self { cfa: Cfa::Register(7, 8), rules: vec![(RETURN_ADDRESS, Rule::Offset(-8))], arguments_size: 0 }
    }

    /// The register and the distance that give the frame address.
    pub(super) fn address_of_frame(&self) -> Option<(u64, i64)> {
        match self.cfa {
            Cfa::Register(register, offset) => Some((register, offset)),
            Cfa::Expression(_) => None,
        }
    }

    /// Where registers are saved, the return address left out.
    pub(super) fn saves(&self) -> Vec<i64> {
        let offset = |(register, rule): &(u64, Rule)| match rule {
            Rule::Offset(offset) if *register != RETURN_ADDRESS => Some(*offset),
            _ => None,
        };
        self.rules.iter().filter_map(offset).collect()
    }

    /// Which registers are saved where, if nothing else is said of any but that the return address is where calls put it.
    pub(super) fn plain_saves(&self) -> Option<Vec<(u64, i64)>> {
        let mut saves = Vec::new();
        for (register, rule) in &self.rules {
            match rule {
                Rule::Offset(-8) if *register == RETURN_ADDRESS => {}
                Rule::Offset(offset) if *register != RETURN_ADDRESS => saves.push((*register, *offset)),
                _ => return None,
            }
        }
        let has_return = self.rules.iter().any(|(register, _)| *register == RETURN_ADDRESS);
        (has_return && self.arguments_size == 0).then_some(saves)
    }

    fn set(&mut self, register: u64, rule: Option<Rule>) {
        match (self.rules.binary_search_by_key(&register, |&(known, _)| known), rule) {
            (Ok(at), Some(rule)) => self.rules[at].1 = rule,
            (Ok(at), None) => drop(self.rules.remove(at)),
            (Err(at), Some(rule)) => self.rules.insert(at, (register, rule)),
            (Err(_), None) => {}
        }
    }

    fn rule(&self, register: u64) -> Option<Rule> {
        let at = self.rules.binary_search_by_key(&register, |&(known, _)| known).ok()?;
        Some(self.rules[at].1.clone())
    }
}

struct Machine<'c> {
    cie: &'c Cie,
    row: Row,
    initial: Option<Row>,
    /// Register and offset of the last frame address that was none by expression: unwinders keep them behind an expression.
    last: (u64, i64),
    saved: Vec<(Row, (u64, i64))>,
    address: u64,
    done: Vec<(u64, Row)>,
}

/// The rows of a description, each with the address at which it begins to hold.
pub(super) fn rows(cie: &Cie, fde: &RawFde<'_>, offset: usize) -> Result<Vec<(u64, Row)>, FileError> {
    let row = Row { cfa: Cfa::Register(7, 8), rules: Vec::new(), arguments_size: 0 };
    let mut machine = Machine { cie, row, initial: None, last: (7, 8), saved: Vec::new(), address: fde.start, done: Vec::new() };
    let fail = || FileError::Unwind { offset, reason: "call frame instruction that cannot be evaluated" };
    machine.run(&cie.program).ok_or_else(fail)?;
    machine.initial = Some(machine.row.clone());
    machine.run(fde.program).ok_or_else(fail)?;
    machine.flush();
    machine.done.retain(|&(start, _)| start < fde.end);
    Ok(machine.done)
}

impl Machine<'_> {
    fn flush(&mut self) {
        match self.done.last_mut() {
            Some((start, row)) if *start == self.address => row.clone_from(&self.row),
            Some((_, row)) if *row == self.row => {}
            _ => self.done.push((self.address, self.row.clone())),
        }
    }

    fn advance(&mut self, delta: u64) {
        self.flush();
        self.address = self.address.wrapping_add(delta.wrapping_mul(self.cie.code_align));
    }

    fn factored(&self, offset: u64) -> i64 {
        offset.cast_signed().wrapping_mul(self.cie.data_align)
    }

    fn restore(&mut self, register: u64) {
        let rule = self.initial.as_ref().and_then(|initial| initial.rule(register));
        self.row.set(register, rule.map(|rule| Rule::Restored(Box::new(rule))));
    }

    fn set_frame(&mut self, register: u64, offset: i64) {
        self.last = (register, offset);
        self.row.cfa = Cfa::Register(register, offset);
    }

    fn run(&mut self, program: &[u8]) -> Option<()> {
        let mut reader = Reader::new(program, 0);
        while !reader.is_empty() {
            let opcode = reader.u8()?;
            let low = u64::from(opcode & 0x3f);
            match opcode >> 6 {
                1 => self.advance(low),
                2 => {
                    let offset = self.factored(reader.uleb()?);
                    self.row.set(low, Some(Rule::Offset(offset)));
                }
                3 => self.restore(low),
                _ => self.extended(opcode, &mut reader)?,
            }
        }
        Some(())
    }

    fn extended(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Option<()> {
        match opcode {
            0x00 => {}
            0x01 => {
                self.flush();
                self.address = reader.unsigned(8)?;
            }
            0x02 => self.advance(reader.unsigned(1)?),
            0x03 => self.advance(reader.unsigned(2)?),
            0x04 => self.advance(reader.unsigned(4)?),
            0x06 => self.restore(reader.uleb()?),
            0x0a => self.saved.push((self.row.clone(), self.last)),
            0x0b => {
                let arguments_size = self.row.arguments_size;
                (self.row, self.last) = self.saved.pop()?;
                self.row.arguments_size = arguments_size;
            }
            0x0c => self.set_frame(reader.uleb()?, reader.uleb()?.cast_signed()),
            0x12 => {
                let (register, offset) = (reader.uleb()?, reader.sleb()?);
                self.set_frame(register, offset.wrapping_mul(self.cie.data_align));
            }
            0x0d => {
                let register = reader.uleb()?;
                self.set_frame(register, self.last.1);
            }
            0x0e | 0x13 => {
                let offset =
                    if opcode == 0x0e { reader.uleb()?.cast_signed() } else { reader.sleb()?.wrapping_mul(self.cie.data_align) };
                self.set_frame(self.last.0, offset);
            }
            0x0f => self.row.cfa = Cfa::Expression(block(reader)?),
            0x2e => self.row.arguments_size = reader.uleb()?,
            _ => self.register_rule(opcode, reader)?,
        }
        Some(())
    }

    fn register_rule(&mut self, opcode: u8, reader: &mut Reader<'_>) -> Option<()> {
        let register = reader.uleb()?;
        let signed = |reader: &mut Reader<'_>| Some(reader.sleb()?.wrapping_mul(self.cie.data_align));
        let rule = match opcode {
            0x05 => Some(Rule::Offset(self.factored(reader.uleb()?))),
            0x07 => Some(Rule::Undefined),
            0x08 => None,
            0x09 => Some(Rule::Register(reader.uleb()?)),
            0x10 => Some(Rule::Expression(block(reader)?)),
            0x11 => Some(Rule::Offset(signed(reader)?)),
            0x14 => Some(Rule::ValueOffset(self.factored(reader.uleb()?))),
            0x15 => Some(Rule::ValueOffset(signed(reader)?)),
            0x16 => Some(Rule::ValueExpression(block(reader)?)),
            0x2f => Some(Rule::Offset(self.factored(reader.uleb()?).wrapping_neg())),
            _ => return None,
        };
        self.row.set(register, rule);
        Some(())
    }
}

fn block(reader: &mut Reader<'_>) -> Option<Vec<u8>> {
    let size = usize::try_from(reader.uleb()?).ok()?;
    Some(reader.take(size)?.to_vec())
}
