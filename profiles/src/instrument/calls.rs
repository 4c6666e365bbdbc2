//! Which indirect calls are worth recording: those whose target is not fixed once the program is loaded.
//!
//! `call *slot(%rip)` through a slot that the loader fills and then protects, or that holds an imported symbol, always goes to the same place; its
//! target would say nothing. Jumps through tables and computed gotos are edges, not calls. A call whose operand can't be read beforehand is left out too.

use iced_x86::{FlowControl, Instruction};
use lifter::entity::Func;
use lifter::ir::{BlockFlags, Program, StopKind, Terminator};
use lifter::x86::decode_block;
use lifter::{Image, Va};
use object::elf;

use super::CallSite;
use crate::runtime::is_recordable;

/// Words that hold the same code address from start-up on.
pub(super) struct ConstantSlots {
    /// Ascending.
    slots: Vec<Va>,
}

impl ConstantSlots {
    pub(super) fn build(image: &Image<'_>) -> Self {
        let relro: Vec<(Va, Va)> =
            image.segments.iter().filter(|s| s.p_type == elf::PT_GNU_RELRO).map(|s| (s.p_vaddr, s.end())).collect();
        let is_constant = |slot: Va, r_type: u32| match r_type {
            elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => true,
            _ => relro.iter().any(|&(start, end)| start <= slot && slot < end),
        };
        let mut slots: Vec<Va> = image.dynamic_relocs.iter().filter(|r| is_constant(r.slot, r.r_type)).map(|r| r.slot).collect();
        slots.sort_unstable();
        ConstantSlots { slots }
    }
    fn contains(&self, slot: Va) -> bool {
        self.slots.binary_search(&slot).is_ok()
    }
}

pub(super) fn recorded_calls(image: &Image<'_>, program: &Program, func: Func, constant: &ConstantSlots) -> Vec<CallSite> {
    let mut calls = Vec::new();
    for block in program.funcs[func].blocks.iter() {
        let data = &program.blocks[block];
        let is_tail_call = data.terminator == Terminator::Stop(StopKind::IndirectTailCall);
        let is_last_call = data.terminator == Terminator::Stop(StopKind::NoReturnCall);
        if !is_tail_call && !is_last_call && !data.flags.contains(BlockFlags::HAS_CALL) {
            continue;
        }
        for instruction in decode_block(image, program, block) {
            let is_recorded = match instruction.flow_control() {
                FlowControl::IndirectCall => true,
                FlowControl::IndirectBranch => is_tail_call,
                _ => false,
            };
            if is_recorded && is_recordable(&instruction) && !reads_constant_slot(&instruction, constant) {
                let offset = (Va(instruction.ip()) - data.start) as u32;
                calls.push(CallSite { block, offset, len: instruction.len() as u8 });
            }
        }
    }
    calls
}

fn reads_constant_slot(instruction: &Instruction, constant: &ConstantSlots) -> bool {
    instruction.is_ip_rel_memory_operand() && constant.contains(Va(instruction.ip_rel_memory_address()))
}
