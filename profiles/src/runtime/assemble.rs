//! What `code_asm` leaves to do: rip-relative operands with absolute targets, and lengths that do not depend on addresses.

use iced_x86::code_asm::{AsmRegister64, CodeAssembler};
use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use lifter::Va;

use crate::error::{Error, Result};

pub(super) fn new_assembler(at: Va) -> Result<CodeAssembler> {
    CodeAssembler::new(64).map_err(|e| encode_error(at, e))
}

/// The code at its address. Its branches are all inside it, so their lengths are the same wherever it lies.
pub(super) fn finish(mut assembler: CodeAssembler, at: Va) -> Result<Vec<u8>> {
    assembler.assemble(at.0).map_err(|e| encode_error(at, e))
}

pub(super) fn encode_error(at: Va, error: IcedError) -> Error {
    Error::Encode { at, why: error.to_string() }
}

/// `lea register, [rip + target]`.
pub(super) fn lea(assembler: &mut CodeAssembler, register: AsmRegister64, target: Va) -> Result<(), IcedError> {
    let operand = MemoryOperand::with_base_displ(Register::RIP, target.0 as i64);
    assembler.add_instruction(Instruction::with2(Code::Lea_r64_m, Register::from(register), operand)?)
}

/// The displacement of an operand or branch that ends at `end`.
pub(super) fn displacement(end: Va, target: Va) -> Result<[u8; 4]> {
    let distance = i32::try_from(target.distance(end)).map_err(|_| Error::OutOfReach { at: end, target })?;
    Ok(distance.to_le_bytes())
}

/// `jmp target`, always 5 bytes.
pub(super) fn push_jump(bytes: &mut Vec<u8>, start: Va, target: Va) -> Result<()> {
    bytes.push(0xe9);
    bytes.extend(displacement(start + bytes.len() as u64 + 4, target)?);
    Ok(())
}

/// Fills with `int3`.
pub(super) fn pad_to(bytes: &mut Vec<u8>, len: u32, at: Va) -> Result<()> {
    if bytes.len() > len as usize {
        return Err(Error::Encode { at, why: format!("{} bytes of code where {len} are set aside", bytes.len()) });
    }
    bytes.resize(len as usize, 0xcc);
    Ok(())
}
