//! Arguments that a copy does not need are not passed to it.
//!
//! **Method.** What a copy knows it does not read; so what gave it to a register before the call is often for nothing. From the call backward through its block: the last instruction that
//! writes such a register goes if it does nothing else, if nobody reads the register in between, and if nobody reads it behind the call either.
//!
//! **Safety.** The copy does not read the register before it writes it (`Simplified::needed`), liveness across calls says that nobody does behind the call, and an
//! instruction that goes touches no memory and no flag that is read before the call.

use analysis::constants::Place;
use analysis::liveness::{RegisterLiveness, Registers};
use analysis::values::code::{ARGUMENTS, RegisterSet};
use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use lifter::x86::decode_block;

use crate::transform::Context;

/// Instructions before a call that only give it what it does not need. `flags_are_free` if nobody reads flags from the call on.
pub(super) fn unneeded(
    context: &Context<'_>,
    live: &RegisterLiveness,
    call: Place,
    is_tail: bool,
    needed: RegisterSet,
    flags_are_free: bool,
) -> Vec<Place> {
    let program = context.program;
    let start = program.blocks[call.block].start;
    let behind = match is_tail {
        true => Some(live.at_return(program.func_of(call.block))),
        false => {
            let list = live.behind_each(context.image, program, call.block);
            list.iter().find(|(i, _)| i.ip() == start.0 + u64::from(call.offset)).map(|&(_, live)| live)
        }
    };
    let Some(behind) = behind else { return Vec::new() };
    let dead = |r: u8| needed >> r & 1 == 0 && !behind.meets(Registers::general(r));
    let mut wanted: RegisterSet = (0..16u8).filter(|&r| ARGUMENTS >> r & 1 != 0 && dead(r)).fold(0, |set, r| set | 1 << r);
    let mut flags_are_free = flags_are_free;
    let mut factory = InstructionInfoFactory::new();
    let mut places = Vec::new();
    let body = decode_block(context.image, program, call.block);
    for instruction in body.iter().rev().filter(|i| i.ip() < start.0 + u64::from(call.offset)) {
        if wanted == 0 || instruction.is_call_near() || instruction.is_call_near_indirect() {
            break;
        }
        let (reads, writes) = used(instruction, &mut factory);
        let sets_flags = instruction.rflags_modified() != 0;
        let gives_one = writes & wanted != 0 && writes.count_ones() == 1;
        if gives_one && is_mere_move(instruction) && (flags_are_free || !sets_flags) {
            let offset = (instruction.ip() - start.0) as u32;
            places.push(Place { block: call.block, offset, len: instruction.len() as u32 });
            // What it read is read once less; what stands before it may be for nothing too, but is left alone.
            wanted &= !(writes | reads);
            continue;
        }
        wanted &= !(reads | writes);
        flags_are_free &= instruction.rflags_read() == 0;
    }
    places
}

/// General registers that an instruction reads, and that it writes at all.
fn used(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> (RegisterSet, RegisterSet) {
    let (mut reads, mut writes) = (0, 0);
    let info = factory.info(instruction);
    let number = |register: Register| register.is_gpr().then(|| register.full_register() as u32 - Register::RAX as u32);
    for register in info.used_registers() {
        let Some(number) = number(register.register()) else { continue };
        match register.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Read | OpAccess::CondRead => reads |= 1 << number,
            OpAccess::Write => writes |= 1 << number,
            _ => {
                reads |= 1 << number;
                writes |= 1 << number;
            }
        }
    }
    (reads, writes)
}

/// Whether it gives a whole register a constant, another register or a sum, and does nothing else.
fn is_mere_move(instruction: &Instruction) -> bool {
    let is_whole = instruction.op0_kind() == OpKind::Register && instruction.op0_register().size() >= 4;
    let is_memory = |operand| instruction.op_kind(operand) == OpKind::Memory;
    let is_same = || instruction.op1_kind() == OpKind::Register && instruction.op0_register() == instruction.op1_register();
    is_whole
        && match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movsxd | Mnemonic::Movsx | Mnemonic::Movzx => !is_memory(1),
            Mnemonic::Lea => true,
            Mnemonic::Xor | Mnemonic::Sub => instruction.op_count() == 2 && is_same(),
            _ => false,
        }
}
