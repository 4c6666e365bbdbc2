//! Functions that a handler of faults may know by their entry.
//!
//! **Problem.** Java's machine reads memory that may be gone by a function that is nothing but a load and a return. Its handler of `SIGSEGV` compares the place of the fault with the address of that function, and goes on
//! elsewhere if they are equal. So the load has to be the first instruction of the function, at the address that names it, and no other instruction may be a copy of it. Nothing in the function
//! shows that, nor does the name: it is an address like that of any callback.
//!
//! **Method.** Who compares has the address from an instruction. So an entry that code names, by a computed address or through a word of `.got`, and whose first instruction may fault, is *known by
//! its faults*: the function moves as others do, but there is one of it, it begins with what it began with, and what counts how often it runs stands behind that ([`BlockFlags::KNOWN_BY_FAULT`](crate::ir::BlockFlags)).
//!
//! At a fixed address without relocations the address stays good by a jump, so that the load would no longer be at it: there such functions stay. Since that costs more, and any number may be an
//! address there, a number that goes to a register counts only if that is compared soon; most are callbacks that are passed on.
//!
//! **Left out**: addresses that only words of data hold, other than in `.got`. They are in tables of functions in all but a few programs, and most of those begin with a load.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use rayon::prelude::*;

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::survey::{Absolute, How, NumberRole};
use crate::discover::units::{unit_at, unit_starting_at};
use crate::ir::{PinReason, RelinkMode};
use crate::x86::MAX_INSTRUCTION_LEN;

/// Instructions after one that puts a number into a register, in the order of their addresses, among which a comparison is looked for.
const COMPARED_WITHIN: usize = 32;

impl PinContext<'_> {
    /// Where they begin. Ascending.
    pub(crate) fn entries_known_by_faults(&self) -> Vec<Va> {
        let computed = self.surveys.par_iter().flat_map_iter(|survey| {
            let names = survey.names.iter().filter(|name| name.how == How::Address).map(|name| name.target);
            let is_held = |number: &&Absolute| match number.role {
                NumberRole::Value => true,
                NumberRole::Copied => unit_starting_at(self.units, number.value).is_some() && self.is_compared(number.at),
                NumberRole::Memory | NumberRole::Bits | NumberRole::Tested => false,
            };
            names.chain(survey.absolutes.iter().filter(is_held).map(|number| number.value))
        });
        let mut entries: Vec<Va> = computed.collect();
        entries.extend(self.named_through_got());
        entries.sort_unstable();
        entries.dedup();
        let faults = |factory: &mut InstructionInfoFactory, va: Va| {
            self.first_instruction(va).is_some_and(|first| may_fault(&first, factory)).then_some(va)
        };
        entries.into_par_iter().map_init(InstructionInfoFactory::new, faults).flatten_iter().collect()
    }

    /// Pins them where their addresses would come to be those of jumps.
    pub(super) fn pin_by_fault(&self, pins: &mut Pins) {
        if self.mode != RelinkMode::Guard {
            return;
        }
        for unit in self.entries_known_by_faults().into_iter().filter_map(|va| unit_starting_at(self.units, va)) {
            pins.pin(self.clusters, unit, PinReason::PlaceNamed);
        }
    }

    /// Whether what an instruction puts into a register is compared with something soon.
    fn is_compared(&self, at: Va) -> bool {
        let Some(unit) = unit_at(self.units, at) else { return false };
        let len = (self.units[unit].end - at).min((COMPARED_WITHIN * MAX_INSTRUCTION_LEN) as u64) as usize;
        let mut decoder = Decoder::with_ip(64, self.image.read(at, len).unwrap_or(&[]), at.0, DecoderOptions::NONE);
        let register = decoder.decode().op0_register().full_register();
        let mut factory = InstructionInfoFactory::new();
        for instruction in decoder.into_iter().take(COMPARED_WITHIN) {
            let mut used = factory.info(&instruction).used_registers().iter();
            let Some(used) = used.find(|used| used.register().full_register() == register) else { continue };
            if used.access() == OpAccess::Write {
                return false;
            }
            if matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Sub | Mnemonic::Xor) {
                return true;
            }
        }
        false
    }

    /// What a unit that begins at an address does first; a mark for indirect calls does nothing.
    fn first_instruction(&self, va: Va) -> Option<Instruction> {
        let unit = unit_starting_at(self.units, va)?;
        let len = (self.units[unit].end - va).min(2 * MAX_INSTRUCTION_LEN as u64) as usize;
        let mut decoder = Decoder::with_ip(64, self.image.read(va, len)?, va.0, DecoderOptions::NONE);
        let first = decoder.decode();
        let first = if first.mnemonic() == Mnemonic::Endbr64 { decoder.decode() } else { first };
        (!first.is_invalid()).then_some(first)
    }
}

/// Whether an instruction may raise a fault that somebody counts on: by what it reads or writes other than on the stack, by a division, or as one that is made for it.
fn may_fault(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Lea => false,
        Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 | Mnemonic::Int3 => true,
        _ => {
            let has_operand = (0..instruction.op_count()).any(|operand| is_memory(instruction.op_kind(operand)));
            let memory = factory.info(instruction).used_memory();
            has_operand && memory.iter().any(|used| used.base() != Register::RSP)
        }
    }
}

fn is_memory(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Memory
            | MemorySegSI
            | MemorySegESI
            | MemorySegRSI
            | MemorySegDI
            | MemorySegEDI
            | MemorySegRDI
            | MemoryESDI
            | MemoryESEDI
            | MemoryESRDI
    )
}
