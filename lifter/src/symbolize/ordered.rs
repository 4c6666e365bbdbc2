//! Functions that a program knows by their order.
//!
//! **Problem.** A handler of signals, or what walks a stack, asks whether an address lies in a function: from its own address up to that of the one behind it in the source. Both are entries, named as any
//! callback is, but what lies between them has to stay between them, and nothing else may come there.
//!
//! **Method.** What is done with the addresses tells: code takes one into a register and compares it so that which of two is *above* the other counts. Where one function does that with two entries or
//! more, all from the first of these to the last stays, both included, if it is no more than [`RANGE_MAX`]. For equal or not equal nobody needs an order.
//!
//! **Left out**: one bound alone, larger ranges, addresses that come from data or callers, and comparisons further away than [`COMPARED_WITHIN`].

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};
use rayon::prelude::*;

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::survey::{How, NumberRole};
use crate::discover::units::{Unit, unit_at, unit_starting_at};
use crate::entity::EntityId;
use crate::ir::PinReason;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

/// Instructions after one that takes an address into a register, in the order of their addresses, among which a comparison is looked for, and behind that its use.
const COMPARED_WITHIN: usize = 12;

/// Bytes. Functions that are meant to be asked for in this way are copying loops and probes.
const RANGE_MAX: u64 = 1 << 16;

impl PinContext<'_> {
    pub(super) fn pin_by_order(&self, pins: &mut Pins) {
        let got = self.got_entries();
        let units = (0..self.units.len()).into_par_iter().map(Unit::new);
        let mut compared: Vec<(Unit, Va)> = units.flat_map_iter(|unit| self.entries_in_order(unit, &got)).collect();
        compared.sort_unstable();
        compared.dedup();
        for group in compared.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            let (first, last) = (group[0].1, group[group.len() - 1].1);
            if last - first > RANGE_MAX {
                continue;
            }
            let from = self.units.as_slice().partition_point(|data| data.start < first);
            let behind = self.units.as_slice().partition_point(|data| data.start <= last);
            (from..behind).for_each(|unit| pins.pin(self.clusters, Unit::new(unit), PinReason::PlaceNamed));
        }
    }

    /// The entries whose order matters to a unit, with the function that it is part of.
    fn entries_in_order(&self, unit: Unit, got: &[(Va, Va)]) -> Vec<(Unit, Va)> {
        let survey = &self.surveys[unit.index()];
        let computed = survey.names.iter().filter(|name| name.how == How::Address).map(|name| (name.at, name.target));
        let numbers = survey.absolutes.iter().filter(|number| matches!(number.role, NumberRole::Copied | NumberRole::Value));
        let numbers = numbers.map(|number| (number.at, number.value));
        let through_got = survey.data_names.iter().filter_map(|&(slot, at)| {
            let index = got.binary_search_by_key(&slot, |entry| entry.0).ok()?;
            Some((at, got[index].1))
        });
        let named = computed.chain(numbers).chain(through_got);
        let entries = named.filter(|&(_, va)| unit_starting_at(self.units, va).is_some_and(|named| named != unit));
        entries.filter(|&(at, _)| self.is_ordered(at)).map(|(_, va)| (self.clusters.find(unit), va)).collect()
    }

    /// Whether the address that an instruction takes is soon compared with something by which is above.
    fn is_ordered(&self, at: Va) -> bool {
        let Some(unit) = unit_at(self.units, at) else { return false };
        let len = (self.units[unit].end - at).min((2 * COMPARED_WITHIN * MAX_INSTRUCTION_LEN) as u64) as usize;
        let mut instructions =
            Decoder::with_ip(64, self.image.read(at, len).unwrap_or(&[]), at.0, DecoderOptions::NONE).into_iter();
        let Some(first) = instructions.next() else { return false };
        let register = first.op0_register().full_register();
        let is_taken = first.op0_kind() == OpKind::Register && register.is_gpr64();
        let is_compared = first.mnemonic() == Mnemonic::Cmp || is_taken && reaches_comparison(register, &mut instructions);
        is_compared && instructions.take(COMPARED_WITHIN).find_map(|next| use_of_flags(&next)).unwrap_or(false)
    }
}

/// Whether a register is compared before it is overwritten and before control goes elsewhere.
fn reaches_comparison(register: Register, instructions: &mut impl Iterator<Item = Instruction>) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let is_it = |instruction: &Instruction, operand: u32| {
        instruction.op_kind(operand) == OpKind::Register && instruction.op_register(operand).full_register() == register
    };
    for instruction in instructions.take(COMPARED_WITHIN) {
        // Above a small number is what is neither of the two that stand for no handler of a signal.
        if instruction.mnemonic() == Mnemonic::Cmp && (is_it(&instruction, 0) || is_it(&instruction, 1)) {
            return matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
        }
        let mut used = factory.info(&instruction).used_registers().iter();
        let is_gone = used.any(|used| used.register().full_register() == register && used.access() == OpAccess::Write);
        if is_gone || !matches!(flow_of(&instruction), Flow::Next | Flow::Branch(..)) {
            return false;
        }
    }
    false
}

/// Whether an instruction that uses flags asks which of two numbers without signs is above; `None` if it leaves the flags alone.
fn use_of_flags(instruction: &Instruction) -> Option<bool> {
    let asks =
        matches!(instruction.condition_code(), ConditionCode::a | ConditionCode::ae | ConditionCode::b | ConditionCode::be);
    if asks || matches!(instruction.mnemonic(), Mnemonic::Sbb | Mnemonic::Adc) {
        return Some(true);
    }
    (instruction.condition_code() != ConditionCode::None || instruction.rflags_modified() != 0).then_some(false)
}
