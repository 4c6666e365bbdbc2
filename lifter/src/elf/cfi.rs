//! One call frame instruction at a time: bytes to meaning (DWARF 5 §6.4.2, LSB 5.0 §10.6.1 for the GNU extensions).
//!
//! Offsets come multiplied by the data alignment factor, so that the three ways to write one offset read the same. Expressions stay opaque.

use gimli::{self as dw, DwCfa};

use crate::address::Va;
use crate::elf::cursor::{Cursor, Problem};

/// A call frame instruction. Registers are DWARF numbers; offsets are in bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Instruction<'a> {
    Nop,
    /// In units of the code alignment factor.
    AdvanceLoc(u64),
    /// The operand, an encoded pointer, is not read: its size is the caller's to know.
    SetLoc,
    DefCfa {
        register: u64,
        offset: i64,
    },
    DefCfaRegister(u64),
    DefCfaOffset(i64),
    DefCfaExpression(&'a [u8]),
    Undefined(u64),
    SameValue(u64),
    Offset {
        register: u64,
        offset: i64,
    },
    ValOffset {
        register: u64,
        offset: i64,
    },
    Register {
        register: u64,
        source: u64,
    },
    Expression {
        register: u64,
        expression: &'a [u8],
    },
    ValExpression {
        register: u64,
        expression: &'a [u8],
    },
    Restore(u64),
    RememberState,
    RestoreState,
    ArgsSize(u64),
}

impl<'a> Instruction<'a> {
    /// The instruction that the bytes begin with and the bytes behind it; `None` if it is unknown or cut off.
    pub fn decode(bytes: &'a [u8], data_alignment: i64) -> Option<(Self, &'a [u8])> {
        let mut cursor = Cursor::new(bytes, Va(0), false);
        let instruction = Self::read(&mut cursor, data_alignment).ok()?;
        Some((instruction, cursor.rest()))
    }

    pub(crate) fn read(cursor: &mut Cursor<'a>, data_alignment: i64) -> Result<Self, Problem> {
        let opcode = cursor.u8()?;
        let low = u64::from(opcode & 0x3f);
        let factored = |units: i64| units.wrapping_mul(data_alignment);
        match DwCfa(opcode & 0xc0) {
            dw::DW_CFA_advance_loc => return Ok(Self::AdvanceLoc(low)),
            dw::DW_CFA_offset => return Ok(Self::Offset { register: low, offset: factored(cursor.uleb()? as i64) }),
            dw::DW_CFA_restore => return Ok(Self::Restore(low)),
            _ => {}
        }
        let instruction = match DwCfa(opcode) {
            dw::DW_CFA_nop => Self::Nop,
            dw::DW_CFA_set_loc => Self::SetLoc,
            dw::DW_CFA_advance_loc1 => Self::AdvanceLoc(u64::from(cursor.u8()?)),
            dw::DW_CFA_advance_loc2 => Self::AdvanceLoc(u64::from(cursor.u16()?)),
            dw::DW_CFA_advance_loc4 => Self::AdvanceLoc(u64::from(cursor.u32()?)),
            dw::DW_CFA_MIPS_advance_loc8 => Self::AdvanceLoc(cursor.u64()?),
            dw::DW_CFA_def_cfa => Self::DefCfa { register: cursor.uleb()?, offset: cursor.uleb()? as i64 },
            dw::DW_CFA_def_cfa_sf => Self::DefCfa { register: cursor.uleb()?, offset: factored(cursor.sleb()?) },
            dw::DW_CFA_def_cfa_register => Self::DefCfaRegister(cursor.uleb()?),
            dw::DW_CFA_def_cfa_offset => Self::DefCfaOffset(cursor.uleb()? as i64),
            dw::DW_CFA_def_cfa_offset_sf => Self::DefCfaOffset(factored(cursor.sleb()?)),
            dw::DW_CFA_def_cfa_expression => Self::DefCfaExpression(block(cursor)?),
            dw::DW_CFA_undefined => Self::Undefined(cursor.uleb()?),
            dw::DW_CFA_same_value => Self::SameValue(cursor.uleb()?),
            dw::DW_CFA_offset_extended => Self::Offset { register: cursor.uleb()?, offset: factored(cursor.uleb()? as i64) },
            dw::DW_CFA_offset_extended_sf => Self::Offset { register: cursor.uleb()?, offset: factored(cursor.sleb()?) },
            dw::DW_CFA_GNU_negative_offset_extended => {
                Self::Offset { register: cursor.uleb()?, offset: factored(cursor.uleb()? as i64).wrapping_neg() }
            }
            dw::DW_CFA_val_offset => Self::ValOffset { register: cursor.uleb()?, offset: factored(cursor.uleb()? as i64) },
            dw::DW_CFA_val_offset_sf => Self::ValOffset { register: cursor.uleb()?, offset: factored(cursor.sleb()?) },
            dw::DW_CFA_register => Self::Register { register: cursor.uleb()?, source: cursor.uleb()? },
            dw::DW_CFA_expression => Self::Expression { register: cursor.uleb()?, expression: block(cursor)? },
            dw::DW_CFA_val_expression => Self::ValExpression { register: cursor.uleb()?, expression: block(cursor)? },
            dw::DW_CFA_restore_extended => Self::Restore(cursor.uleb()?),
            dw::DW_CFA_remember_state => Self::RememberState,
            dw::DW_CFA_restore_state => Self::RestoreState,
            dw::DW_CFA_GNU_args_size => Self::ArgsSize(cursor.uleb()?),
            _ => return Err("an unknown call frame instruction"),
        };
        Ok(instruction)
    }
}

/// An expression with its length in front.
fn block<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], Problem> {
    let len = cursor.uleb()?;
    cursor.take(len)
}
