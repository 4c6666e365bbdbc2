//! Level 2 of the program: instructions, decoded on demand from the file's bytes.
//!
//! Level 1 keeps no instructions. A pass that looks into a block asks for them here and drops them after its turn; their addresses
//! are those of the input, so that `near_branch_target` and rip-relative operands read as the file has them.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::address::Va;
use crate::elf::Image;
use crate::entity::Block;
use crate::ir::Program;

/// The instructions of a block, terminator included, at their input addresses. Bytes that are no instruction (only pinned functions
/// have any) end the list.
pub fn decode_block(image: &Image<'_>, program: &Program, block: Block) -> Vec<Instruction> {
    let data = &program.blocks[block];
    let bytes = image.read(data.start, data.len as usize).unwrap_or(&[]);
    let mut instructions = Vec::with_capacity(data.num_insts as usize);
    decode_bytes(bytes, data.start, &mut instructions);
    instructions
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
