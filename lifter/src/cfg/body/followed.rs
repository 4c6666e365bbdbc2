//! Calls that are followed: callees of a few instructions, taken for part of their caller.
//!
//! What a callee addresses by the stack pointer is the caller's frame, above the return address: in the copy it has the displacement that the caller knows it by. One that ends in a jump instead of a return ([`Straight::calls`]) does something before it calls another
//! function for its caller, as relift's own outlined arguments do; that matters where it is the frame to which it does it, or of which it passes an address on.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpKind, Register};
use rustc_hash::FxHashMap;

use super::{Accesses, Body, accesses, leaks_frame, leaves};
use crate::address::Va;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::x86::{Flow, flow_of};

/// The most instructions of a callee that is followed, and the most bytes.
const INSTRUCTIONS_MAX: usize = 64;
const BYTES_MAX: usize = 512;
/// The most instructions that are copied, for each of the cluster's: calls beyond it are not followed.
const GROWTH_MAX: usize = 8;
/// Bytes of a return address.
const RETURN_ADDRESS: i64 = 8;

impl Body {
    /// Follows the calls of callees that go straight to their return.
    pub(crate) fn follow_calls(&mut self, image: &Image<'_>, units: &Units) {
        let mut callees: FxHashMap<Va, Option<Straight>> = FxHashMap::default();
        for call in 0..self.num_own {
            let Flow::Call(target) = flow_of(&self.instructions[call]) else { continue };
            let callee = callees.entry(target).or_insert_with(|| Straight::of(image, units, target));
            let room = ((1 + GROWTH_MAX) * self.num_own).saturating_sub(self.instructions.len());
            match callee {
                Some(callee) if callee.instructions.len() < room => self.follow(call, callee),
                Some(callee) => self.frame_escapes |= callee.uses_frame,
                None => {}
            }
        }
    }

    fn follow(&mut self, call: usize, callee: &Straight) {
        let caller = self.instructions[call];
        // What it pushes is popped again.
        (self.leaves[call], self.stores[call], self.writes[call], self.reads[call]) = (false, false, 0, 0);
        if callee.instructions.is_empty() {
            return;
        }
        let first = self.instructions.len() as u32;
        self.instructions.extend_from_slice(&callee.instructions);
        self.instructions.extend(callee.calls.then_some(caller));
        let copied = &self.instructions[first as usize..];
        let Accesses { writes, reads, stores } = accesses(copied);
        self.writes.extend(writes);
        self.reads.extend(reads);
        self.stores.extend(stores);
        self.leaves.extend(copied.iter().map(leaves));
        self.frame_escapes |= copied.iter().any(|instruction| leaks_frame(instruction, self.has_frame_pointer));
        self.leaders.push(Va(self.instructions[call].next_ip()));
        self.followed.push((call, first..self.instructions.len() as u32));
    }

    /// The block of the callee that an instruction calls, if the call is followed.
    pub(super) fn followed_from(&self, call: usize) -> Option<usize> {
        let index = self.followed.binary_search_by_key(&call, |followed| followed.0).ok()?;
        Some(self.block_starts.len() + index)
    }
}

/// A callee of which nothing but its end leaves the straight way, and which changes no stack pointer.
struct Straight {
    /// Up to its end, as if they stood in the caller.
    instructions: Vec<Instruction>,
    uses_frame: bool,
    /// Whether it ends in a jump to what it calls for its caller.
    calls: bool,
}

impl Straight {
    /// `None` if it is none, or does nothing that matters before it jumps.
    fn of(image: &Image<'_>, units: &Units, target: Va) -> Option<Self> {
        let unit = &units[unit_at(units, target)?];
        let len = ((unit.end - target) as usize).min(BYTES_MAX);
        let mut decoder = Decoder::with_ip(64, image.read(target, len)?, target.0, DecoderOptions::NONE).into_iter();
        let mut callee = Self { instructions: Vec::new(), uses_frame: false, calls: false };
        let mut factory = InstructionInfoFactory::new();
        loop {
            let instruction = decoder.next()?;
            match flow_of(&instruction) {
                Flow::Next if callee.instructions.len() < INSTRUCTIONS_MAX => callee.push(instruction, &mut factory)?,
                Flow::Jump(_) | Flow::IndirectJump if callee.uses_frame => callee.calls = true,
                _ if instruction.code() == Code::Retnq => {}
                _ => return None,
            }
            if flow_of(&instruction) != Flow::Next {
                return Some(callee);
            }
        }
    }

    /// `None` if it does something to the stack but to read or write what lies above the return address, or to take its address.
    fn push(&mut self, mut instruction: Instruction, factory: &mut InstructionInfoFactory) -> Option<()> {
        let mut uses = factory.info(&instruction).used_registers().iter();
        if uses.any(|used| used.register().full_register() == Register::RSP) {
            let is_operand = |operand| {
                instruction.op_kind(operand) == OpKind::Register
                    && instruction.op_register(operand).full_register() == Register::RSP
            };
            let displacement = instruction.memory_displacement64().cast_signed();
            let is_by_stack = instruction.memory_base() == Register::RSP && !instruction.is_stack_instruction();
            if !is_by_stack || displacement < RETURN_ADDRESS || (0..instruction.op_count()).any(is_operand) {
                return None;
            }
            instruction.set_memory_displacement64((displacement - RETURN_ADDRESS).cast_unsigned());
            self.uses_frame = true;
        }
        self.instructions.push(instruction);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The displacement that an instruction has in the caller, if it may be followed.
    fn followed(bytes: &[u8]) -> Option<(i64, bool)> {
        let mut callee = Straight { instructions: Vec::new(), uses_frame: false, calls: false };
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        callee.push(instruction, &mut InstructionInfoFactory::new())?;
        Some((callee.instructions[0].memory_displacement64().cast_signed(), callee.uses_frame))
    }

    #[test]
    fn what_a_callee_does_to_the_frame_is_called_as_the_caller_calls_it() {
        assert_eq!(followed(&[0x48, 0x89, 0x44, 0x24, 0x18]), Some((0x10, true)), "mov %rax, 0x18(%rsp)");
        assert_eq!(followed(&[0x48, 0x8d, 0x7c, 0x24, 0x08]), Some((0, true)), "lea 8(%rsp), %rdi");
        assert_eq!(followed(&[0x89, 0xfb]), Some((0, false)), "mov %edi, %ebx");
    }

    #[test]
    fn what_a_callee_does_to_its_own_stack_is_not_followed() {
        let others: [&[u8]; 4] = [&[0x50], &[0x48, 0x89, 0xe0], &[0x48, 0x8b, 0x04, 0x24], &[0x48, 0x8d, 0x64, 0x24, 0x08]];
        others.iter().for_each(|bytes| assert_eq!(followed(bytes), None, "{bytes:02x?}"));
    }
}
