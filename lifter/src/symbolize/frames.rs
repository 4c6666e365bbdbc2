//! Code whose return addresses a table holds.
//!
//! **Problem.** OCaml's collector finds the live values of a frame by looking its return address up in a table. It must find those of each call, and those alone: the call can't be
//! copied, what follows it can't go elsewhere, and a jump at the old address is of no use. So such code stays.
//!
//! **Method.** An address that a relocated word of data holds, and that stands right behind a call of its function, is a return address that somebody looks up. At a fixed address the word is
//! 64 bits wide and aligned, since that is how such tables are written, and enough of the function's calls are named in this way.
//!
//! Whoever looks up return addresses also tells by the first and the last address of a stretch of such code whether one is in it (OCaml's code segments, when it writes closures out). The
//! leaves among it make no calls, and stay for that: what lies between two functions of such code, unless it is as long as a part of the program that was written in something
//! else. That a word happens to look like one of a function's return addresses doesn't make the function such code; half of its calls do.
//!
//! **Computed by code.** Code that is hardened against speculation computes the address behind a call, and compares it with the one that the callee returned to, which it finds below the
//! stack. So a function with an instruction that names one of its own return addresses stays as well, for any number of them.

use iced_x86::{Decoder, DecoderOptions};

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::NamedBy;
use crate::discover::units::{Unit, unit_at};
use crate::entity::EntityId;
use crate::ir::PinReason;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

/// Functions between two that look up return addresses, at most, if they are to be of the same part of the program.
const LEAVES_MAX: usize = 256;

/// Where this many of a function's calls have no named return address for one that has, the word is one of many constants that happens to look like a return address, or a label in a
/// table that is not understood: in long functions that is common. OCaml's functions that call little but C's, of which nothing is named, stand among others.
const UNLIKELY_BY_CHANCE: usize = 8;

/// A function of which words hold return addresses.
struct NamedReturns {
    unit: Unit,
    num_named: usize,
    num_calls: usize,
    /// One of the words is known to be an address.
    is_relocated: bool,
}

impl NamedReturns {
    fn is_named_in_one_of(&self, calls: usize) -> bool {
        calls * self.num_named >= self.num_calls
    }
}

impl PinContext<'_> {
    /// Functions of which data hold return addresses, and what lies among them.
    pub(super) fn pin_by_return_address(&self, pins: &mut Pins) {
        let named = self.functions_with_named_returns();
        for function in named.iter().filter(|function| function.is_relocated || function.is_named_in_one_of(UNLIKELY_BY_CHANCE)) {
            pins.pin(self.clusters, function.unit, PinReason::ReturnAddressNamed);
        }
        let framed: Vec<Unit> =
            named.iter().filter(|function| function.is_named_in_one_of(2)).map(|function| function.unit).collect();
        let gaps = framed.windows(2).map(|pair| pair[0].index() + 1..pair[1].index());
        for unit in gaps.filter(|gap| gap.len() <= LEAVES_MAX).flatten().map(Unit::new) {
            pins.pin(self.clusters, unit, PinReason::ReturnAddressNamed);
        }
    }

    /// Functions with a return address that an instruction names, by a distance or as a number.
    pub(super) fn pin_by_computed_return(&self, pins: &mut Pins) {
        let named = self.names.iter().filter(|(_, by)| by.contains(NamedBy::ADDRESS)).map(|(va, _)| va);
        let named = named.filter_map(|va| unit_at(self.units, va).map(|unit| (unit, va)));
        let numbers = self.units.iter().flat_map(|(unit, data)| {
            let own = self.surveys[unit.index()]
                .absolutes
                .iter()
                .filter(|a| !a.is_memory && data.start < a.value && a.value < data.end);
            own.map(move |a| (unit, a.value))
        });
        for (unit, va) in named.chain(numbers) {
            if self.is_return_address(unit, va) {
                pins.pin(self.clusters, unit, PinReason::ReturnAddressNamed);
            }
        }
    }

    /// In the order of their addresses.
    fn functions_with_named_returns(&self) -> Vec<NamedReturns> {
        let mut found: Vec<NamedReturns> = Vec::new();
        for (va, by) in self.names.iter() {
            // A label in a table of labels may happen to stand behind a call; execution goes there, whatever the call returns to.
            if !by.intersects(NamedBy::SLOT | NamedBy::WORD) || by.contains(NamedBy::TABLE) {
                continue;
            }
            let Some(unit) = unit_at(self.units, va).filter(|&unit| self.is_return_address(unit, va)) else { continue };
            if found.last().is_none_or(|last| last.unit != unit) {
                found.push(NamedReturns { unit, num_named: 0, num_calls: self.num_calls(unit), is_relocated: false });
            }
            if let Some(last) = found.last_mut() {
                last.num_named += 1;
                last.is_relocated |= by.contains(NamedBy::SLOT);
            }
        }
        found
    }

    /// Whether a call of a unit ends at an address inside it.
    fn is_return_address(&self, unit: Unit, va: Va) -> bool {
        let (survey, start) = (&self.surveys[unit.index()], self.units[unit].start);
        let Some(bytes) = self.image.read(start, (va - start) as usize).filter(|_| !survey.is_opaque()) else { return false };
        let Some(call_at) = (0..bytes.len()).rev().take(MAX_INSTRUCTION_LEN).find(|&offset| survey.is_start(offset as u64))
        else {
            return false;
        };
        let instruction = Decoder::with_ip(64, &bytes[call_at..], start.0 + call_at as u64, DecoderOptions::NONE).decode();
        matches!(flow_of(&instruction), Flow::Call(_) | Flow::IndirectCall) && instruction.next_ip() == va.0
    }

    fn num_calls(&self, unit: Unit) -> usize {
        let (survey, data) = (&self.surveys[unit.index()], &self.units[unit]);
        let bytes = self.image.read(data.start, (data.end - data.start) as usize).unwrap_or(&[]);
        let decoder = Decoder::with_ip(64, bytes, data.start.0, DecoderOptions::NONE);
        let instructions = decoder.into_iter().filter(|i| survey.is_start(i.ip() - data.start.0));
        instructions.filter(|i| matches!(flow_of(i), Flow::Call(_) | Flow::IndirectCall)).count()
    }
}
