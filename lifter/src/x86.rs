//! Level 2 of the program: instructions, decoded on demand from the file's bytes.
//!
//! Level 1 keeps no instructions. A pass that looks into a block asks for them here and drops them after its turn; their addresses
//! are those of the input, so that `near_branch_target` and rip-relative operands read as the file has them.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

use crate::address::Va;
use crate::elf::Image;
use crate::entity::Block;
use crate::ir::{Condition, Program};

/// Bytes of the longest instruction (Intel SDM vol. 2, 2.3.11).
pub(crate) const MAX_INSTRUCTION_LEN: usize = 15;

/// The instructions of a block, terminator included, at their input addresses. Bytes that are no instruction (only pinned functions
/// have any) end the list.
pub fn decode_block(image: &Image<'_>, program: &Program, block: Block) -> Vec<Instruction> {
    let mut instructions = Vec::with_capacity(program.blocks[block].num_insts as usize);
    decode_block_into(image, program, block, &mut instructions);
    instructions
}

/// The same in place of what a list holds, for passes over all blocks.
pub fn decode_block_into(image: &Image<'_>, program: &Program, block: Block, instructions: &mut Vec<Instruction>) {
    let data = &program.blocks[block];
    instructions.clear();
    decode_bytes(image.read(data.start, data.len as usize).unwrap_or(&[]), data.start, instructions);
}

/// Appends the instructions of `bytes`, which lie at `start`, up to the first byte that begins no instruction.
pub fn decode_bytes(bytes: &[u8], start: Va, instructions: &mut Vec<Instruction>) {
    let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        instructions.push(instruction);
    }
}

/// What an instruction does to the flow of control.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next,
    Call(Va),
    IndirectCall,
    Jump(Va),
    Branch(Condition, Va),
    /// `loop*`, `jrcxz`, `jecxz`.
    Loop(Va),
    /// `xbegin`: runs on, or aborts to the target.
    Begin(Va),
    IndirectJump,
    Return,
    Trap,
}

pub(crate) fn flow_of(instruction: &Instruction) -> Flow {
    let target = || Va(instruction.near_branch_target());
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Flow::Jump(target()),
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
            Flow::Branch(condition_of(instruction.mnemonic()), target())
        }
        FlowControl::ConditionalBranch => Flow::Loop(target()),
        FlowControl::IndirectBranch => Flow::IndirectJump,
        FlowControl::Return => Flow::Return,
        FlowControl::Call if instruction.is_call_near() => Flow::Call(target()),
        FlowControl::IndirectCall => Flow::IndirectCall,
        FlowControl::Exception => Flow::Trap,
        FlowControl::XbeginXabortXend if instruction.mnemonic() == Mnemonic::Xbegin => Flow::Begin(target()),
        _ if instruction.mnemonic() == Mnemonic::Hlt => Flow::Trap,
        _ => Flow::Next,
    }
}

/// The condition of a `cmov`, `set` or `jcc`.
pub(crate) fn condition_code(instruction: &Instruction) -> Option<Condition> {
    use iced_x86::ConditionCode::*;
    Some(Condition(match instruction.condition_code() {
        o => 0,
        no => 1,
        b => 2,
        ae => 3,
        e => 4,
        ne => 5,
        be => 6,
        a => 7,
        s => 8,
        ns => 9,
        p => 10,
        np => 11,
        l => 12,
        ge => 13,
        le => 14,
        g => 15,
        None => return Option::None,
    }))
}

fn condition_of(mnemonic: Mnemonic) -> Condition {
    Condition(match mnemonic {
        Mnemonic::Jo => 0,
        Mnemonic::Jno => 1,
        Mnemonic::Jb => 2,
        Mnemonic::Jae => 3,
        Mnemonic::Je => 4,
        Mnemonic::Jne => 5,
        Mnemonic::Jbe => 6,
        Mnemonic::Ja => 7,
        Mnemonic::Js => 8,
        Mnemonic::Jns => 9,
        Mnemonic::Jp => 10,
        Mnemonic::Jnp => 11,
        Mnemonic::Jl => 12,
        Mnemonic::Jge => 13,
        Mnemonic::Jle => 14,
        _ => 15,
    })
}

/// Whether an instruction is a direct branch with an 8-bit displacement.
pub(crate) fn is_short_branch(instruction: &Instruction) -> bool {
    instruction.is_jcc_short() || instruction.is_jmp_short() || matches!(flow_of(instruction), Flow::Loop(_))
}

/// Whether an instruction does nothing and may be dropped where it is padding.
pub(crate) fn is_nop(instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop => true,
        // `66 90`
        Mnemonic::Xchg => instruction.code() == Code::Xchg_r16_AX && instruction.op0_register() == Register::AX,
        _ => false,
    }
}

/// Whether an instruction's memory is counted from a segment's base: thread-local. The other segments begin at 0 in 64-bit code, so that their prefixes do nothing to memory: `notrack` is one of them, and assemblers
/// pad with them.
pub fn has_segment_base(instruction: &Instruction) -> bool {
    matches!(instruction.segment_prefix(), Register::FS | Register::GS)
}

/// Whether it is a conditional move.
pub fn is_conditional_move(name: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        name,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

/// `int3`.
pub(crate) const BREAKPOINT: u8 = 0xcc;

/// How many bytes at the front are padding: no-ops of any length, `int3`, zero bytes.
pub fn padding_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(len) = padding_instruction_len(&bytes[at..]) {
        at += len;
    }
    at
}

fn padding_instruction_len(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        &(0x00 | BREAKPOINT) => Some(1),
        _ => nop_len(bytes),
    }
}

/// The length of the no-op at the front, if there is one: `90` or `0f 1f /0` under any number of `66`, `2e` and `rex` prefixes as
/// assemblers emit them.
pub(crate) fn nop_len(bytes: &[u8]) -> Option<usize> {
    let prefixes = bytes.iter().take_while(|b| [0x66, 0x2e].contains(b)).count();
    match bytes.get(prefixes..)? {
        [0x90, ..] => Some(prefixes + 1),
        [0x0f, 0x1f, modrm, rest @ ..] if modrm >> 3 & 7 == 0 => {
            let has_sib = modrm & 7 == 4 && modrm >> 6 != 3;
            let displacement = match modrm >> 6 {
                1 => 1,
                2 => 4,
                0 if modrm & 7 == 5 => 4,
                _ => 0,
            };
            let operand = usize::from(has_sib) + displacement;
            (rest.len() >= operand).then_some(prefixes + 3 + operand)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    //! What is padding between functions, by its bytes.

    use super::*;

    #[test]
    fn padding_ends_at_the_first_instruction_that_does_something() {
        let bytes = [0x66, 0x90, 0x0f, 0x1f, 0x44, 0x00, 0x00, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0, 0xcc, 0xc3];
        assert_eq!(padding_len(&bytes), 19);
    }

    #[test]
    fn pause_and_endbr_are_not_padding() {
        assert_eq!(padding_len(&[0xf3, 0x90]), 0);
        assert_eq!(padding_len(&[0xf3, 0x0f, 0x1e, 0xfa]), 0);
    }
}
