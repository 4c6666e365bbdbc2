//! Functions that the kernel knows by the descriptors of restartable sequences.
//!
//! **Method.** Of what looks like a descriptor ([`crate::discover::restartable`]), those are believed whose sequence starts and ends between instructions of one cluster, and whose handler begins with an instruction. The four bytes before a handler are a
//! field of one instruction, or none at all: where they are the last ones of a function that ends there, the descriptor is something else with addresses of two functions.
//! What holds the sequence stays, and so do its handler and the signature before that. Of a program that makes descriptors by code, all that
//! names a handler with the known signature stays, with whatever else it names; the sequence is most often in the same function.
//!
//! A section that holds nothing but descriptors that are believed is understood. If one is not, nothing moves.

use iced_x86::{Decoder, DecoderOptions};

use super::pins::{PinContext, Pins};
use crate::address::Va;
use crate::discover::names::{NamedBy, relocated_addresses};
use crate::discover::restartable::{
    DESCRIPTOR_LEN, DESCRIPTORS, POINTERS_TO_DESCRIPTORS, SIGNATURE_LEN, Sequence, aborts_named_by, has_signature,
};
use crate::discover::survey::How;
use crate::discover::units::{Unit, unit_at};
use crate::elf::image::SectionData;
use crate::entity::EntityId;
use crate::ir::PinReason;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

impl PinContext<'_> {
    /// What the kernel may know of a program, ascending by descriptor.
    pub(super) fn believed_sequences(&self) -> Vec<Sequence> {
        self.sequences.iter().copied().filter(|sequence| self.is_believed(sequence)).collect()
    }

    fn is_believed(&self, sequence: &Sequence) -> bool {
        let mut clusters = self.units_within(sequence.start, sequence.end).map(|unit| self.clusters.find(unit));
        let Some(first) = clusters.next() else { return false };
        let ends_unit = || unit_at(self.units, Va(sequence.end.0 - 1)).is_some_and(|unit| self.units[unit].end == sequence.end);
        clusters.all(|cluster| cluster == first)
            && self.may_be_instruction(sequence.start)
            && (self.may_be_instruction(sequence.end) || ends_unit())
            && (has_signature(self.image, sequence.abort) || self.may_be_handler(sequence.abort))
    }

    /// Whether an instruction starts at an address, and what is before that may be somebody's signature.
    fn may_be_handler(&self, abort: Va) -> bool {
        // Filler is no unit, unless it is a signature.
        let Some(unit) = unit_at(self.units, Va(abort.0 - 1)) else { return false };
        if self.units[unit].fde().is_none() {
            return self.may_be_instruction(abort);
        }
        let (start, survey) = (self.units[unit].start, &self.surveys[unit.index()]);
        let starts_at = |back: u64| abort.0 - start.0 >= back && survey.is_start(abort - start - back);
        let Some(len) = (1..=MAX_INSTRUCTION_LEN as u64).find(|&back| starts_at(back)) else {
            return self.may_be_instruction(abort);
        };
        let last = self.image.read(Va(abort.0 - len), len as usize).unwrap_or(&[]);
        let last = Decoder::with_ip(64, last, abort.0 - len, DecoderOptions::NONE).decode();
        len >= SIGNATURE_LEN && matches!(flow_of(&last), Flow::Next | Flow::Trap) && self.may_be_instruction(abort)
    }

    /// The units of which some part lies in a range.
    fn units_within(&self, start: Va, end: Va) -> impl Iterator<Item = Unit> {
        let first = self.units.as_slice().partition_point(|unit| unit.end <= start);
        let within = self.units.as_slice()[first..].iter().take_while(move |unit| unit.start < end);
        within.zip(first..).map(|(_, index)| Unit::new(index))
    }

    /// Whether an instruction starts at an address, as far as is known.
    pub(super) fn may_be_instruction(&self, va: Va) -> bool {
        unit_at(self.units, va).is_some_and(|unit| {
            let survey = &self.surveys[unit.index()];
            survey.is_opaque() || survey.is_start(va - self.units[unit].start)
        })
    }

    pub(super) fn pin_by_sequence(&self, sequences: &[Sequence], pins: &mut Pins) {
        for sequence in sequences {
            let signature = Va(sequence.abort.0.saturating_sub(SIGNATURE_LEN));
            let within = self.units_within(sequence.start, sequence.end);
            for unit in within.chain(self.units_within(signature, sequence.abort + 1)) {
                pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            }
        }
    }

    /// The same of descriptors that code makes.
    pub(super) fn pin_by_signature(&self, pins: &mut Pins) {
        let taken = self.names.iter().filter(|(_, by)| by.intersects(NamedBy::TAKEN)).map(|(va, _)| va);
        for abort in taken.filter(|&va| has_signature(self.image, va)) {
            for unit in self.units_within(Va(abort.0 - SIGNATURE_LEN), abort + 1) {
                pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            }
        }
        for (unit, survey) in self.units.keys().zip(self.surveys) {
            if aborts_named_by(self.image, survey).next().is_none() {
                continue;
            }
            pins.pin(self.clusters, unit, PinReason::PlaceNamed);
            for named in survey.names.iter().filter(|name| name.how == How::Address) {
                self.pin_at(named.target, PinReason::PlaceNamed, pins);
            }
        }
    }

    /// Whether a section has nothing but descriptors that are believed, or pointers to them.
    pub(super) fn has_descriptors_only(&self, section: &SectionData<'_>, sequences: &[Sequence]) -> bool {
        let is_descriptor = |va: Va| sequences.binary_search_by_key(&va, |sequence| sequence.descriptor).is_ok();
        let (start, end) = (section.sh_addr, section.end());
        match section.name {
            DESCRIPTORS => {
                let mut records = (start.0..end.0).step_by(DESCRIPTOR_LEN as usize);
                (end - start).is_multiple_of(DESCRIPTOR_LEN) && records.all(|va| is_descriptor(Va(va)))
            }
            POINTERS_TO_DESCRIPTORS if self.image.kind.is_position_independent() => {
                let slot = |index: usize| self.image.dynamic_relocs[index].slot;
                let mut named = relocated_addresses(self.image).filter(|&(index, _)| start <= slot(index) && slot(index) < end);
                named.all(|(_, va)| is_descriptor(va))
            }
            POINTERS_TO_DESCRIPTORS => {
                (start.0..end.0).step_by(8).all(|word| self.image.read_u64(Va(word)).is_some_and(|va| is_descriptor(Va(va))))
            }
            _ => false,
        }
    }
}
