//! Moves of vectors, and zeros, without a prefix.
//!
//! What a prefix of `0x66` or `0xf3` says of a move of whole vectors is what type their elements have, which a move does not look at (Intel SDM vol. 2, MOVAPS, MOVAPD, MOVDQA: the same bits, the same
//! demand for alignment). The same goes for half a vector to or from memory, for the exclusive or of a register with itself, and for low halves that are put together.

use iced_x86::{Code, Instruction, Mnemonic, OpKind};
use lifter::ir::RefData;
use smallvec::SmallVec;

use super::{Form, Here};

/// The escape byte of opcodes of two bytes.
const ESCAPE: u8 = 0x0f;

pub(super) fn form(here: Here<'_>) -> Option<Form> {
    let (prefix, opcode) = without_prefix(here.instruction)?;
    let (&first, rest) = here.bytes.split_first()?;
    let escape = usize::from(rest.first()? & 0xf0 == 0x40);
    if first != prefix || rest.get(escape) != Some(&ESCAPE) {
        return None;
    }
    let mut bytes = SmallVec::from_slice(rest);
    *bytes.get_mut(escape + 1)? = opcode;
    let reference = here.reference.map(|reference| RefData { offset: reference.offset - 1, ..reference });
    Some(Form { reference, ..Form::plain(bytes) })
}

/// Whether an instruction moves vectors or parts of them, or is one of those that have another form: it reads and writes no flags, and of general registers those that are operands.
pub(super) fn moves(instruction: &Instruction) -> bool {
    use Mnemonic::*;
    let is_move = matches!(
        instruction.mnemonic(),
        Movaps | Movups | Movapd | Movupd | Movdqa | Movdqu | Movd | Movq | Movss | Movsd | Movhps | Movlps | Movhpd | Movlpd
    );
    // `movsd` is a move of a string too.
    let is_other = matches!(instruction.mnemonic(), Pxor | Xorps | Xorpd | Punpcklqdq | Unpcklpd);
    (is_move || is_other) && !instruction.is_string_instruction()
}

/// The prefix that an instruction can do without, and what its opcode becomes.
fn without_prefix(instruction: &Instruction) -> Option<(u8, u8)> {
    let are_registers = instruction.op_kind(0) == OpKind::Register && instruction.op_kind(1) == OpKind::Register;
    let is_same = are_registers && instruction.op0_register() == instruction.op1_register();
    Some(match instruction.code() {
        Code::Movupd_xmm_xmmm128 => (0x66, 0x10),
        Code::Movupd_xmmm128_xmm => (0x66, 0x11),
        Code::Movlpd_xmm_m64 => (0x66, 0x12),
        Code::Movlpd_m64_xmm => (0x66, 0x13),
        Code::Movhpd_xmm_m64 => (0x66, 0x16),
        Code::Movhpd_m64_xmm => (0x66, 0x17),
        Code::Movapd_xmm_xmmm128 | Code::Movdqa_xmm_xmmm128 => (0x66, 0x28),
        Code::Movapd_xmmm128_xmm | Code::Movdqa_xmmm128_xmm => (0x66, 0x29),
        Code::Movdqu_xmm_xmmm128 => (0xf3, 0x10),
        Code::Movdqu_xmmm128_xmm => (0xf3, 0x11),
        Code::Pxor_xmm_xmmm128 | Code::Xorpd_xmm_xmmm128 if is_same => (0x66, 0x57),
        Code::Punpcklqdq_xmm_xmmm128 | Code::Unpcklpd_xmm_xmmm128 if are_registers => (0x66, 0x16),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn decoded(bytes: &[u8]) -> Instruction {
        Decoder::new(64, bytes, DecoderOptions::NONE).decode()
    }

    #[test]
    fn vectors_move_as_they_did_without_a_prefix() {
        let pairs: [(&[u8], &str); 9] = [
            (&[0x66, 0x0f, 0x6f, 0x07], "movaps xmm0,[rdi]"),
            (&[0x66, 0x44, 0x0f, 0x7f, 0x47, 0x10], "movaps [rdi+10h],xmm8"),
            (&[0xf3, 0x0f, 0x6f, 0xca], "movups xmm1,xmm2"),
            (&[0xf3, 0x41, 0x0f, 0x7f, 0x0c, 0x24], "movups [r12],xmm1"),
            (&[0x66, 0x0f, 0x28, 0xd1], "movaps xmm2,xmm1"),
            (&[0x66, 0x0f, 0x11, 0x07], "movups [rdi],xmm0"),
            (&[0x66, 0x45, 0x0f, 0xef, 0xc9], "xorps xmm9,xmm9"),
            (&[0x66, 0x0f, 0x6c, 0xc1], "movlhps xmm0,xmm1"),
            (&[0x66, 0x0f, 0x17, 0x47, 0x08], "movhps [rdi+8],xmm0"),
        ];
        for (bytes, expected) in pairs {
            let form = form(Here { instruction: &decoded(bytes), bytes, reference: None }).expect("it has one");
            assert_eq!(decoded(&form.bytes).to_string(), expected);
            assert_eq!(form.bytes.len(), bytes.len() - 1);
        }
        // Other registers, memory, a prefix that comes twice, and moves of less.
        let others: [&[u8]; 6] = [
            &[0x66, 0x0f, 0xef, 0xc1],
            &[0x66, 0x0f, 0x6c, 0x07],
            &[0x66, 0x66, 0x0f, 0x6f, 0x07],
            &[0xf3, 0x0f, 0x7e, 0x07],
            &[0xf2, 0x0f, 0x10, 0x07],
            &[0x0f, 0x6f, 0x07],
        ];
        for bytes in others {
            assert!(form(Here { instruction: &decoded(bytes), bytes, reference: None }).is_none(), "{bytes:02x?}");
        }
    }
}
