//! Returns that a split stack's prologue goes on behind.
//!
//! **Problem.** Where a function of `-fsplit-stack` (gccgo compiles all with it) finds too little room, it says in `r10` and `r11` how much it and its arguments need and calls `__morestack`, of which a `ret`
//! is all that seems to follow. But `__morestack` calls the function's body, on another stack, by its own return address and one more: what stands behind the `ret` is executed, and nothing names it.
//! The function is local, so in a stripped program nothing names that either.
//!
//! **Method.** A `ret` of one byte right behind a call, before which constants went to `r10` and `r11` with no other flow between, is no end: control goes on behind it as well. It is a part of
//! its block, which runs on, so that what follows is behind it wherever the block goes. Where the call is of something else, that costs a jump that nothing executes.
//!
//! Source: libgcc, `config/i386/morestack.S`, the comment on its parameters; the prologue is the same by GCC and LLVM.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::x86::Flow;

/// What was seen of such a prologue, instruction by instruction as they follow each other.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Growth {
    has_frame_size: bool,
    has_arguments_size: bool,
    is_called: bool,
}

impl Growth {
    /// Takes the next instruction and what it does to control; says whether it is a return behind which control goes on.
    pub(crate) fn goes_on_behind(&mut self, instruction: &Instruction, flow: Flow) -> bool {
        let before = *self;
        *self = Self::default();
        match flow {
            Flow::Return => return before.is_called && instruction.len() == 1,
            Flow::Call(_) | Flow::IndirectCall => self.is_called = before.has_frame_size && before.has_arguments_size,
            Flow::Next => {
                let constant_to = constant_to(instruction);
                self.has_frame_size = before.has_frame_size || constant_to == Some(Register::R10);
                self.has_arguments_size = before.has_arguments_size || constant_to == Some(Register::R11);
            }
            _ => {}
        }
        false
    }
}

/// The register that holds a constant behind an instruction.
fn constant_to(instruction: &Instruction) -> Option<Register> {
    if instruction.op_count() != 2 || instruction.op0_kind() != OpKind::Register {
        return None;
    }
    let to = instruction.op0_register();
    let is_constant = match instruction.mnemonic() {
        Mnemonic::Mov => !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory),
        Mnemonic::Xor => instruction.op1_kind() == OpKind::Register && instruction.op1_register() == to,
        _ => false,
    };
    is_constant.then(|| to.full_register())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Va;
    use crate::x86::{decode_bytes, flow_of};

    /// By instruction, whether control goes on behind it although it is a return.
    fn goes_on(bytes: &[u8]) -> Vec<bool> {
        let mut instructions = Vec::new();
        decode_bytes(bytes, Va(0x1000), &mut instructions);
        let mut growth = Growth::default();
        instructions.iter().map(|instruction| growth.goes_on_behind(instruction, flow_of(instruction))).collect()
    }

    const CALL_AND_RETURN: [u8; 6] = [0xe8, 0, 0, 0, 0, 0xc3];

    #[test]
    fn control_goes_on_behind_the_return_of_a_split_stack_s_prologue() {
        // mov $0xbc8,%r10d; xor %r11d,%r11d
        let prologue = [&[0x41, 0xba, 0xc8, 0x0b, 0, 0, 0x45, 0x31, 0xdb][..], &CALL_AND_RETURN].concat();
        assert_eq!(goes_on(&prologue), [false, false, false, true]);
    }

    #[test]
    fn a_return_behind_another_call_is_an_end() {
        // mov $0xbc8,%r10d
        assert_eq!(goes_on(&[&[0x41, 0xba, 0xc8, 0x0b, 0, 0][..], &CALL_AND_RETURN].concat()), [false; 3]);
        assert_eq!(goes_on(&CALL_AND_RETURN), [false; 2]);
    }
}
