//! Where code can't stop by itself: there unwinders need not find what called it, if nobody stops it from outside (`Unwinds::FromStops`).
//!
//! **Method.** An instruction is quiet if it is on a list of those that only compute with general and vector registers, push registers, pop them or return. Everything else may call, jump, fault or trap: what touches memory, divides,
//! or computes with floating-point numbers, of which processors can be told to trap. Jumps stop nothing by themselves, but loops are made of them, and a tail call is one: only no exception comes of a jump to a
//! number ([`may_raise`]).

use iced_x86::{ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use lifter::address::Va;

/// Those of the instructions in some bytes that are not quiet; what can't be decoded is none that is.
pub(super) fn stops(bytes: &[u8], at: Va) -> impl Iterator<Item = Va> {
    Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).into_iter().filter(|i| !is_quiet(i)).map(|i| Va(i.ip()))
}

/// Whether all instructions in some bytes are.
pub(crate) fn are_quiet(bytes: &[u8]) -> bool {
    stops(bytes, Va(0)).next().is_none()
}

/// Whether one of the instructions in some bytes may call, fault or trap, so that an exception could come from there.
pub(crate) fn may_raise(bytes: &[u8], at: Va) -> bool {
    raising(bytes, at).next().is_some()
}

/// Those instructions.
pub(super) fn raising(bytes: &[u8], at: Va) -> impl Iterator<Item = Va> {
    let is_near_jump = |i: &Instruction| {
        let is_jump = matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch);
        is_jump && i.op_kind(0) == OpKind::NearBranch64
    };
    let all = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).into_iter();
    all.filter(move |i| !is_quiet(i) && !is_near_jump(i)).map(|i| Va(i.ip()))
}

fn is_quiet(instruction: &Instruction) -> bool {
    let mnemonic = instruction.mnemonic();
    if matches!(mnemonic, Mnemonic::Ret | Mnemonic::Leave | Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Vzeroupper) {
        return true;
    }
    // `setcc` and `cmovcc`.
    let is_conditional = instruction.condition_code() != ConditionCode::None && instruction.flow_control() == FlowControl::Next;
    let computes = is_conditional
        || matches!(
            mnemonic,
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Lea | Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd
        )
        || matches!(
            mnemonic,
            Mnemonic::Add
                | Mnemonic::Sub
                | Mnemonic::And
                | Mnemonic::Or
                | Mnemonic::Xor
                | Mnemonic::Cmp
                | Mnemonic::Test
                | Mnemonic::Inc
                | Mnemonic::Dec
                | Mnemonic::Neg
                | Mnemonic::Not
                | Mnemonic::Shl
                | Mnemonic::Shr
                | Mnemonic::Sar
                | Mnemonic::Imul
        )
        || matches!(mnemonic, Mnemonic::Cwde | Mnemonic::Cdqe | Mnemonic::Cdq | Mnemonic::Cqo)
        || matches!(
            mnemonic,
            Mnemonic::Movaps
                | Mnemonic::Movups
                | Mnemonic::Movdqa
                | Mnemonic::Movd
                | Mnemonic::Movq
                | Mnemonic::Xorps
                | Mnemonic::Pxor
        );
    let is_plain = |operand: u32| match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            register.is_gpr() || register.is_xmm()
        }
        OpKind::Memory => mnemonic == Mnemonic::Lea,
        _ => true,
    };
    computes && (0..instruction.op_count()).all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_neither_touches_memory_nor_jumps_nor_traps_is_quiet() {
        let quiet: [&[u8]; 12] = [
            &[0x55],                         // push %rbp
            &[0x41, 0x5f],                   // pop %r15
            &[0x48, 0x83, 0xec, 0x18],       // sub $24,%rsp
            &[0x48, 0x89, 0xe5],             // mov %rsp,%rbp
            &[0x31, 0xc0],                   // xor %eax,%eax
            &[0x0f, 0x94, 0xc0],             // sete %al
            &[0x48, 0x0f, 0x44, 0xc2],       // cmove %rdx,%rax
            &[0x48, 0x8d, 0x44, 0x24, 0x08], // lea 8(%rsp),%rax
            &[0xc3],                         // ret
            &[0xc9],                         // leave
            &[0x0f, 0x1f, 0x00],             // nopl (%rax)
            &[0x66, 0x0f, 0xef, 0xc0],       // pxor %xmm0,%xmm0
        ];
        let stopping: [&[u8]; 14] = [
            &[0xe8, 0, 0, 0, 0],             // call
            &[0xeb, 0x00],                   // jmp
            &[0x74, 0x00],                   // je
            &[0x48, 0x8b, 0x44, 0x24, 0x08], // mov 8(%rsp),%rax
            &[0xff, 0x30],                   // push (%rax)
            &[0x0f, 0x94, 0x00],             // sete (%rax)
            &[0xa4],                         // movsb
            &[0x0f, 0x05],                   // syscall
            &[0x0f, 0x0b],                   // ud2
            &[0x48, 0xf7, 0xf9],             // idiv %rcx
            &[0xf2, 0x0f, 0x5e, 0xc1],       // divsd %xmm1,%xmm0
            &[0x8e, 0xd8],                   // mov %eax,%ds
            &[0xf4],                         // hlt
            &[0x06],                         // no instruction
        ];
        for bytes in quiet {
            assert!(are_quiet(bytes), "{bytes:x?}");
            assert!(!may_raise(bytes, Va(0)), "{bytes:x?}");
        }
        for bytes in stopping {
            assert!(!are_quiet(bytes), "{bytes:x?}");
            // Of the jumps no exception comes.
            assert_eq!(may_raise(bytes, Va(0)), !matches!(bytes[0], 0xeb | 0x74), "{bytes:x?}");
        }
        for indirect in [&[0xff, 0xe0][..], &[0xff, 0x25, 0, 0, 0, 0]] {
            assert!(may_raise(indirect, Va(0)), "{indirect:x?}");
        }
    }
}
