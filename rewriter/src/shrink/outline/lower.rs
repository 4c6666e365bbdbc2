//! What an instruction becomes where the stack pointer is lower by a return address.
//!
//! **Method.** One that addresses the frame by the stack pointer has a displacement that is larger by 8 there; it is written by hand, so that all its other bytes stay what they are. One that
//! copies the stack pointer becomes `lea`. Others stay as they are, or have no form there.
//!
//! Where code calls, nothing is kept below the stack pointer, and what it addresses by it lies at or above (psABI, section 3.2.2).

use iced_x86::{Code, ConstantOffsets, Decoder, DecoderOptions, EncodingKind, Instruction, OpKind, Register};

/// Bytes of a return address.
const DEPTH: i64 = 8;

/// Whether an instruction does more with the stack pointer than to address memory by it, or to copy it as [`lowered`] knows.
pub(super) fn has_other_use(instruction: &Instruction) -> bool {
    let is_stack = |register: Register| register.full_register() == Register::RSP;
    let is_operand = |operand| instruction.op_kind(operand) == OpKind::Register && is_stack(instruction.op_register(operand));
    copy_of(instruction).is_none() && (0..instruction.op_count()).any(is_operand)
}

/// The bytes of an instruction without references, or of one that doesn't address by the stack pointer, in a body. `None` if there is no such form.
pub(in crate::shrink) fn lowered(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    let instruction = decoder.decode();
    if let Some(register) = copy_of(&instruction) {
        return Some(address_of_frame(register));
    }
    match instruction.memory_base() {
        Register::RSP => farther(bytes, &instruction, decoder.get_constant_offsets(&instruction)),
        Register::ESP => None,
        _ => Some(bytes.to_vec()),
    }
}

/// The number of the register into which an instruction copies the stack pointer.
fn copy_of(instruction: &Instruction) -> Option<u8> {
    let is_copy = instruction.code() == Code::Mov_rm64_r64 && instruction.op_kind(0) == OpKind::Register;
    let is_plain = is_copy && instruction.op_register(1) == Register::RSP && instruction.len() == 3;
    is_plain.then(|| instruction.op_register(0).number() as u8)
}

/// `lea 8(%rsp), register`.
fn address_of_frame(register: u8) -> Vec<u8> {
    vec![0x48 | register >> 3 << 2, 0x8d, 0o104 | (register & 7) << 3, 0x24, DEPTH as u8]
}

fn farther(bytes: &[u8], instruction: &Instruction, constants: ConstantOffsets) -> Option<Vec<u8>> {
    let is_scaled = !matches!(instruction.code().encoding(), EncodingKind::Legacy | EncodingKind::VEX);
    let displacement = instruction.memory_displacement64() as i64;
    if is_scaled || displacement < 0 {
        return None;
    }
    let (at, len) = match (constants.has_displacement(), constants.has_immediate()) {
        (true, _) => (constants.displacement_offset(), constants.displacement_size()),
        (false, true) => (constants.immediate_offset(), 0),
        (false, false) => (bytes.len(), 0),
    };
    let new = i32::try_from(displacement + DEPTH).ok()?;
    let (mode, new) = match i8::try_from(new) {
        Ok(short) => (0o100, short.to_le_bytes().to_vec()),
        Err(_) => (0o200, new.to_le_bytes().to_vec()),
    };
    let (before, behind) = (bytes.get(..at)?, bytes.get(at + len..)?);
    let (&[modes, scale], before) = before.split_last_chunk::<2>().map(|(before, last)| (last, before))?;
    let is_by_scale = modes & 7 == 4 && scale & 7 == 4;
    is_by_scale.then(|| [before, &[modes & 0o77 | mode, scale], &new, behind].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> Instruction {
        Decoder::new(64, bytes, DecoderOptions::NONE).decode()
    }

    #[test]
    fn what_addresses_the_frame_has_a_larger_displacement() {
        let forms: [(&[u8], &[u8]); 8] = [
            (&[0x48, 0x8d, 0x3c, 0x24], &[0x48, 0x8d, 0x7c, 0x24, 8]),
            (&[0x48, 0x8d, 0x7c, 0x24, 0x77], &[0x48, 0x8d, 0x7c, 0x24, 0x7f]),
            (&[0x48, 0x89, 0x44, 0x24, 0x78], &[0x48, 0x89, 0x84, 0x24, 0x80, 0, 0, 0]),
            (&[0xc7, 0x04, 0x24, 1, 2, 3, 4], &[0xc7, 0x44, 0x24, 8, 1, 2, 3, 4]),
            (&[0xc7, 0x84, 0x24, 0xff, 0, 0, 0, 1, 2, 3, 4], &[0xc7, 0x84, 0x24, 0x07, 1, 0, 0, 1, 2, 3, 4]),
            (&[0xc5, 0xf8, 0x11, 0x04, 0x24], &[0xc5, 0xf8, 0x11, 0x44, 0x24, 8]),
            (&[0x49, 0x89, 0xe1], &[0x4c, 0x8d, 0x4c, 0x24, 8]),
            (&[0x89, 0xf8], &[0x89, 0xf8]),
        ];
        for (bytes, expected) in forms {
            assert_eq!(lowered(bytes).as_deref(), Some(expected), "{bytes:02x?}");
        }
    }

    #[test]
    fn what_lies_below_the_stack_pointer_and_scaled_displacements_have_no_form() {
        let forms: [&[u8]; 3] =
            [&[0x48, 0x8d, 0x7c, 0x24, 0xf8], &[0x67, 0x8b, 0x44, 0x24, 8], &[0x62, 0xf1, 0x7c, 0x48, 0x10, 0x44, 0x24, 1]];
        for bytes in forms {
            assert_eq!(lowered(bytes), None, "{bytes:02x?}");
        }
    }

    #[test]
    fn other_uses_of_the_stack_pointer_are_told() {
        let others: [&[u8]; 4] = [&[0x48, 0x89, 0x64, 0x24, 8], &[0x48, 0x39, 0xe0], &[0x48, 0x83, 0xc4, 8], &[0x89, 0xe7]];
        let plain: [&[u8]; 3] = [&[0x48, 0x89, 0xe7], &[0x48, 0x8d, 0x7c, 0x24, 8], &[0x89, 0xf8]];
        assert!(others.iter().all(|bytes| has_other_use(&decode(bytes))));
        assert!(plain.iter().all(|bytes| !has_other_use(&decode(bytes))));
    }
}
