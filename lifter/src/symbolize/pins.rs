//! What stays where it is, and why: the obligations of the closed-set argument, each with the reason that its failure gives.
//!
//! In a position-independent file whose data does not move, a code address at run time comes from a decoded branch, a return address,
//! an address computed by a decoded instruction, a relocated word, a symbol, the unwind tables, or a jump table. A function may move if
//! all of these are known for it. Pinning is always safe, so every doubt pins; a pin spreads only along 8-bit branches, which can't be
//! stretched in place.

use object::elf;
use rayon::prelude::*;

use crate::address::Va;
use crate::cfg::tables::{ClusterJumps, Dispatch, RawTable};
use crate::discover::clusters::Clusters;
use crate::discover::names::{NamedBy, Names};
use crate::discover::restartable::{self, Sequence};
use crate::discover::survey::{How, Survey};
use crate::discover::units::{Bounds, Unit, Units, is_in, unit_at, unit_starting_at};
use crate::discover::unseen::Unseen;
use crate::elf::sframe::{self, Described};
use crate::elf::{Image, Unwind};
use crate::entity::EntityId;
use crate::ir::{PinReason, Relay, RelinkMode};
use crate::symbolize::slots::is_rebuilt;

/// Metadata that names code in ways that are not understood: relative to itself and without relocations, or as a whole stretch.
const UNKNOWN_METADATA: [&str; 11] = [
    // Places in functions by their distance from where these start: LLVM's maps for collectors, and .NET's for what it compiled ahead of time.
    ".llvm_stackmaps",
    ".llvm_faultmaps",
    "__managedcode",
    "xray_instr_map",
    "xray_fn_idx",
    ".kcfi_traps",
    "swift5_protocol_conformances",
    "swift5_types",
    "swift5_type_metadata",
    // Restartable sequences: the kernel compares the program counter with their bounds. Known where all descriptors are as they should be.
    restartable::DESCRIPTORS,
    restartable::POINTERS_TO_DESCRIPTORS,
];

/// Bytes that a relocation writes, at most.
const RELOCATED_LEN: i64 = 8;

/// Pins by cluster; the reason that is first in `PinReason` counts.
#[derive(Debug)]
pub(crate) struct Pins {
    by_root: Vec<Option<PinReason>>,
}

impl Pins {
    pub(crate) fn of(&self, clusters: &Clusters, unit: Unit) -> Option<PinReason> {
        self.by_root[clusters.find(unit).index()]
    }
    pub(crate) fn pin(&mut self, clusters: &Clusters, unit: Unit, reason: PinReason) {
        let slot = &mut self.by_root[clusters.find(unit).index()];
        *slot = Some(slot.map_or(reason, |old| old.min(reason)));
    }
}

/// What the obligations are checked against.
#[derive(Copy, Clone)]
pub(crate) struct PinContext<'i> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) unwind: &'i Unwind,
    pub(crate) units: &'i Units,
    pub(crate) surveys: &'i [Survey],
    pub(crate) names: &'i Names,
    pub(crate) clusters: &'i Clusters,
    /// Where functions may be found by their distance from others. Ascending and disjoint.
    pub(crate) arrays: &'i [(Va, Va)],
    /// *Guard* mode: words of data that may hold addresses of code, and these. Ascending by place.
    pub(crate) words: &'i [(Va, Va)],
    /// The same of words that are not aligned.
    pub(crate) unaligned_words: &'i [(Va, Va)],
    /// What looks like descriptors of restartable sequences. Ascending by place.
    pub(crate) sequences: &'i [Sequence],
    pub(crate) mode: RelinkMode,
    pub(crate) use_static_relocs: bool,
}

impl PinContext<'_> {
    /// `jumps` are the answers by the cluster's first unit; `relative_words` are places that unclaimed pc-relative data may name.
    pub(crate) fn compute(&self, jumps: &[(Unit, ClusterJumps)], relative_words: &[[Va; 2]]) -> Pins {
        let mut pins = Pins { by_root: vec![None; self.units.len()] };
        let sequences = self.believed_sequences();
        self.pin_by_unit(&sequences, &mut pins);
        self.pin_by_name(&mut pins);
        self.pin_by_return_address(&mut pins);
        self.pin_by_computed_return(&mut pins);
        self.pin_by_told_return(&mut pins);
        self.pin_by_named_place(&mut pins);
        self.pin_by_address_before(&mut pins);
        self.pin_by_places_side_by_side(&mut pins);
        self.pin_by_system_call(&mut pins);
        self.pin_by_sequence(&sequences, &mut pins);
        self.pin_by_signature(&mut pins);
        self.pin_by_bounds(&mut pins);
        self.pin_by_order(&mut pins);
        self.pin_by_fault(&mut pins);
        self.pin_by_text_relocation(&mut pins);
        self.pin_by_table_in_front(&mut pins);
        self.pin_by_jump(jumps, &mut pins);
        for &va in relative_words.iter().flatten() {
            self.pin_at(va, PinReason::UnknownMetadata, &mut pins);
        }
        pins
    }

    /// Code into which the loader writes (`DT_TEXTREL`: position-dependent code in what may lie anywhere), and what it writes the address of: a relocation names a place, not an instruction, and
    /// instructions with some can't be taken apart or put elsewhere.
    fn pin_by_text_relocation(&self, pins: &mut Pins) {
        for reloc in self.image.dynamic_relocs.iter().filter(|reloc| self.image.is_executable(reloc.slot)) {
            let named = (reloc.symbol == 0).then_some(Va(reloc.addend as u64));
            for va in [reloc.slot, reloc.slot.offset(RELOCATED_LEN - 1)].into_iter().chain(named) {
                self.pin_at(va, PinReason::TextRelocation, pins);
            }
        }
    }

    /// Pins what contains an address, if anything does.
    pub(crate) fn pin_at(&self, va: Va, reason: PinReason, pins: &mut Pins) {
        if let Some(unit) = unit_at(self.units, va) {
            pins.pin(self.clusters, unit, reason);
        }
    }

    /// Pins all that overlaps with stretches of code.
    fn pin_stretches(&self, stretches: &[(Va, Va)], reason: PinReason, pins: &mut Pins) {
        for &(start, end) in stretches {
            let first = self.units.as_slice().partition_point(|unit| unit.end <= start);
            let within = (first..self.units.len()).map(Unit::new).take_while(|&unit| self.units[unit].start < end);
            within.for_each(|unit| pins.pin(self.clusters, unit, reason));
        }
    }

    fn pin_by_unit(&self, sequences: &[Sequence], pins: &mut Pins) {
        let is_fixed = !self.image.kind.is_position_independent();
        let frames = sframe::described(self.image);
        if let Described::Known(functions) = &frames {
            self.pin_stretches(functions, PinReason::UnknownMetadata, pins);
        }
        let mut metadata = self.image.sections.values().filter(|s| s.is_alloc() && UNKNOWN_METADATA.contains(&s.name));
        let has_unknown_metadata = metadata.any(|section| !self.has_descriptors_only(section, sequences))
            || frames == Described::Unknown
            || self.unwind.fdes.values().filter_map(|fde| fde.opaque_lsda).any(|lsda| self.lands_elsewhere(lsda));
        for (unit, data) in self.units.iter() {
            let mut pin = |reason| pins.pin(self.clusters, unit, reason);
            if !self.image.is_movable_code_section(data.section) {
                pin(PinReason::LinkerSection);
            }
            let is_unfounded = match data.bounds {
                Bounds::Gap | Bounds::LeftOver => true,
                // A symbol says where a function is, not that all that reaches it is known. At a fixed address, code without an unwind entry
                // may be meant to run where it was copied to.
                Bounds::Symbol(_) => !self.use_static_relocs || is_fixed,
                Bounds::Reached | Bounds::Unwind(_) => false,
            };
            if is_unfounded {
                pin(PinReason::NoBounds);
            } else if is_in(self.arrays, data.start) {
                pin(PinReason::UnprovenPointers);
            }
            if let Some(problem) = self.surveys[unit.index()].problem {
                pin(problem);
            }
            // What an exception table that is not understood says of the code is not known.
            if has_unknown_metadata || data.fde().is_some_and(|fde| self.unwind.fdes[fde].opaque_lsda.is_some()) {
                pin(PinReason::UnknownMetadata);
            }
            let cie = data.fde().and_then(|fde| self.unwind.cies.get(self.unwind.fdes[fde].cie as usize));
            if cie.is_some_and(|c| c.is_signal_frame) {
                pin(PinReason::SignalTrampoline);
            }
        }
        let objects = self.image.symbols.values().chain(&self.image.dynamic_symbols);
        for object in objects.filter(|s| s.has_address() && s.st_type() == elf::STT_OBJECT && s.st_size > 0) {
            if let Some(unit) = unit_at(self.units, Va(object.st_value)) {
                pins.pin(self.clusters, unit, PinReason::DataInText);
            }
        }
    }

    /// Whether the landing pads of an exception table are counted from a place of their own, and so may be in other entries (clang's `-fbasic-block-sections`); else it is the start of the code that
    /// the table is of (Itanium C++ ABI, "Exception Handling Tables").
    fn lands_elsewhere(&self, lsda: Va) -> bool {
        self.image.read(lsda, 1) != Some(&[gimli::DW_EH_PE_omit.0])
    }

    fn pin_by_name(&self, pins: &mut Pins) {
        for (va, by) in self.names.iter() {
            let Some(unit) = unit_at(self.units, va) else { continue };
            let mut pin = |reason| pins.pin(self.clusters, unit, reason);
            let survey = &self.surveys[unit.index()];
            if !survey.is_opaque() && !survey.is_start(va - self.units[unit].start) {
                pin(PinReason::MidInstructionTarget);
            }
            if by.contains(NamedBy::MEMORY) {
                pin(PinReason::DataInText);
            }
            if by.contains(NamedBy::PERHAPS) {
                pin(PinReason::Undecodable);
            }
        }
    }

    /// Jumps through tables of which only a copy can be changed, where code would read other things beside the copy.
    pub(crate) fn pin_by_table_address(&self, tables: &[RawTable], pins: &mut Pins) {
        for table in tables.iter().filter(|table| table.has_other_uses && !table.is_exclusive) {
            for &va in &table.named_at {
                self.pin_at(va, PinReason::TableAddressUsed, pins);
            }
        }
    }

    fn pin_by_jump(&self, jumps: &[(Unit, ClusterJumps)], pins: &mut Pins) {
        for (unit, answer) in jumps.iter().filter(|(_, answer)| answer.has_unresolved()) {
            pins.pin(self.clusters, *unit, PinReason::UnresolvedJump);
            for &candidate in &answer.candidates {
                pins.pin(self.clusters, candidate, PinReason::MayBeTableTarget);
            }
        }
        if jumps.iter().any(|(_, answer)| answer.has_relative_calls) {
            self.pin_relative_targets(pins);
        }
        self.pin_by_distance(jumps, pins);
        self.pin_shared_labels(jumps, pins);
        if !jumps.iter().any(|(_, answer)| answer.is_open()) {
            return;
        }
        let known = NamedBy::ENTRY | NamedBy::BRANCH | NamedBy::FUNCTION_SYMBOL | NamedBy::TABLE;
        let mut is_reached = vec![false; self.units.len()];
        for (va, by) in self.names.iter().filter(|n| n.1.intersects(known)) {
            if let Some(unit) = unit_at(self.units, va) {
                is_reached[self.clusters.find(unit).index()] |= !by.is_empty();
            }
        }
        for unit in self.units.keys().filter(|&u| !is_reached[self.clusters.find(u).index()]) {
            pins.pin(self.clusters, unit, PinReason::MayBeTableTarget);
        }
    }

    /// Tables of functions as 32-bit differences from the table (relative vtables) have no relocations, and code may add to the address of
    /// one before it counts from there. So each word of data is taken for the place that the words behind it count from, up to where
    /// several in a row lead to no code.
    fn pin_relative_targets(&self, pins: &mut Pins) {
        const GAP_WORDS: usize = 8;
        // More virtual functions than any class has; without a limit long tables would be read once per word.
        const WORDS_MAX: usize = 1024;
        for (id, section) in self.image.sections.iter() {
            // Unwind tables have distances too, to all that there is, and nothing counts with them but unwinders.
            if !section.is_alloc() || section.is_executable() || !section.has_bytes() || is_rebuilt(section.name) {
                continue;
            }
            let words: Vec<i64> = self.image.section_bytes(id).chunks_exact(4).map(signed_word).collect();
            for first in 0..words.len() {
                let base = section.sh_addr + 4 * first as u64;
                let mut misses = 0;
                for &word in words[first..].iter().take(WORDS_MAX) {
                    let target = base.offset(word);
                    let unit = unit_at(self.units, target);
                    misses = if unit.is_some() || self.image.is_executable(target) { 0 } else { misses + 1 };
                    if misses == GAP_WORDS {
                        break;
                    }
                    // A virtual function begins where something does; cases of switches lie inside of a function.
                    let begins = |&unit: &Unit| match self.units[unit].bounds {
                        Bounds::Unwind(_) => self.units[unit].start == target,
                        _ => !self.names.at(target).is_empty(),
                    };
                    if let Some(unit) = unit.filter(begins) {
                        pins.pin(self.clusters, unit, PinReason::MayBeTableTarget);
                    }
                }
            }
        }
    }

    /// Data may tell functions by their distances from one of them, to which calls add them. Distances have no relocations, so each word of data is taken for one if it leads to where something
    /// begins. (Where numbers may be addresses, a jump stays at each old one.)
    fn pin_by_distance(&self, jumps: &[(Unit, ClusterJumps)], pins: &mut Pins) {
        let bases = jumps.iter().flat_map(|(_, answer)| &answer.counted_from).copied();
        let mut bases: Vec<Va> = bases.filter(|&base| unit_starting_at(self.units, base).is_some()).collect();
        bases.sort();
        bases.dedup();
        if bases.is_empty() || self.mode == RelinkMode::Guard {
            return;
        }
        for (id, section) in self.image.sections.iter() {
            if !section.is_alloc() || section.is_executable() || section.sh_type != elf::SHT_PROGBITS || is_rebuilt(section.name)
            {
                continue;
            }
            let bytes = self.image.section_bytes(id);
            for distance in bytes.chunks_exact(4).map(signed_word) {
                for unit in bases.iter().filter_map(|base| unit_starting_at(self.units, base.offset(distance))) {
                    pins.pin(self.clusters, unit, PinReason::MayBeTableTarget);
                }
            }
        }
    }

    /// A label of a switch may lie in a cold part that belongs to another cluster (it runs into that one's code, say). A bounds check goes
    /// there too, so whatever a cluster with an unresolved jump branches to may be in the jump's table.
    fn pin_shared_labels(&self, jumps: &[(Unit, ClusterJumps)], pins: &mut Pins) {
        let mut is_unresolved = vec![false; self.units.len()];
        for (unit, _) in jumps.iter().filter(|(_, answer)| answer.is_open()) {
            is_unresolved[self.clusters.find(*unit).index()] = true;
        }
        for unit in self.units.keys().filter(|&unit| is_unresolved[self.clusters.find(unit).index()]) {
            let branches =
                self.surveys[unit.index()].names.iter().filter(|n| matches!(n.how, How::Jump | How::Branch | How::Loop));
            for target in branches.filter_map(|name| unit_at(self.units, name.target)) {
                if self.clusters.find(target) != self.clusters.find(unit) {
                    pins.pin(self.clusters, target, PinReason::MayBeTableTarget);
                }
            }
        }
    }

    /// *Guard* mode: what an unseen pointer may name, and where that can't be answered by a jump.
    pub(crate) fn pin_unseen(&self, unseen: &Unseen, jumps: &[(Unit, ClusterJumps)], pins: &mut Pins) {
        if self.mode == RelinkMode::Replace {
            return;
        }
        // Nothing says what code is that has neither an unwind entry nor is reached: V8's built-in functions are copied elsewhere at run time.
        for (unit, _) in self.units.iter().filter(|(_, data)| data.fde().is_none() && data.bounds != Bounds::Reached) {
            pins.pin(self.clusters, unit, PinReason::UnprovenPointers);
        }
        unseen.torn.iter().for_each(|&va| self.pin_at(va, PinReason::MidInstructionTarget, pins));
        unseen.memory.iter().for_each(|&va| self.pin_at(va, PinReason::DataInText, pins));
        let mut has_labels = vec![false; self.units.len()];
        for unit in unseen.anchors.iter().filter_map(|&va| unit_at(self.units, va).filter(|&u| self.units[u].start != va)) {
            has_labels[self.clusters.find(unit).index()] = true;
        }
        // Tables of differences were read without the ways that lead over such labels.
        let is_doubted = |answer: &ClusterJumps| {
            answer.dispatches.iter().any(|d| matches!(d.1, Dispatch::Closed | Dispatch::Pointer))
                && answer.tables.iter().any(|t| t.entry_size == 4)
        };
        for (unit, _) in jumps.iter().filter(|(unit, answer)| has_labels[self.clusters.find(*unit).index()] && is_doubted(answer))
        {
            pins.pin(self.clusters, *unit, PinReason::UnresolvedJump);
        }
    }

    /// Pins what 8-bit branches of pinned clusters reach, and anchors without room; gives the relays of the others, ascending by anchor. Terminates because each round but
    /// the last pins at least one more cluster.
    pub(crate) fn spread(&self, anchors: &[Va], pins: &mut Pins) -> Vec<Relay> {
        let mut relays = Vec::new();
        let short: Vec<(Unit, Unit)> = self
            .surveys
            .par_iter()
            .enumerate()
            .flat_map_iter(|(index, survey)| {
                let targets = survey.names.iter().filter(|n| n.is_short).filter_map(|n| unit_at(self.units, n.target));
                targets.map(move |target| (Unit::new(index), target))
            })
            .filter(|&(source, target)| self.clusters.find(source) != self.clusters.find(target))
            .collect();
        loop {
            let mut has_changed = self.give_room(anchors, pins, &mut relays);
            for &(source, target) in &short {
                if pins.of(self.clusters, source).is_some() && pins.of(self.clusters, target).is_none() {
                    pins.pin(self.clusters, target, PinReason::ShortReach);
                    has_changed = true;
                }
            }
            if !has_changed {
                return relays;
            }
        }
    }
}

fn signed_word(bytes: &[u8]) -> i64 {
    bytes.try_into().map_or(0, |word| i64::from(i32::from_le_bytes(word)))
}
