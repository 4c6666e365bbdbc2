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
//! **Labels.** A threaded interpreter keeps the labels of its function in a table, side by side, and copies them to where others read them, so that no jump resolves to that table. A few stand behind a
//! call that does not come back, or many behind one that does (Ruby's traced instructions call the tracer and go on as the plain ones). Words for return addresses never look like that: either something stands between them (the sizes of frames), or all of them stand behind calls. So many words side by side
//! ([`LABELS_MIN`]) that lead into one function are labels if half of them or more stand elsewhere than behind calls ([`RETURNS_AMONG_LABELS`]). And an address that stands there twice is nobody's return address: it would be found once.
//!
//! **Computed by code.** Code that is hardened against speculation computes the address behind a call, and compares it with the one that the callee returned to, which it finds below the
//! stack. So a function with an instruction that names one of its own return addresses stays as well, for any number of them. If jumps of the function lead there too, it is a label: who
//! arrives by a jump has returned from no call, and would find something else below the stack.
//!
//! **Told to somebody.** gccgo tells its runtime a label behind the call of a deferred function, and goes around the call by a jump to the label if it is told to. The deferred function may `recover` if its return
//! address is that label, or up to 16 bytes before it. A label is of no use for jumps in a function that has no indirect one, nor have its parts: so where such a function names a place of its own as close behind one of its calls, it stays, whatever jumps there.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::pins::{PinContext, Pins};
use super::slots::static_code_slots;
use crate::address::Va;
use crate::discover::names::{NamedBy, dynamic_code_slots};
use crate::discover::survey::{How, NumberRole};
use crate::discover::units::{Unit, unit_at};
use crate::entity::EntityId;
use crate::ir::PinReason;
use crate::x86::{Flow, MAX_INSTRUCTION_LEN, flow_of};

/// Functions between two that look up return addresses, at most, if they are to be of the same part of the program.
const LEAVES_MAX: usize = 256;

/// The same for each function with named return addresses in that part: two in all the program may be two by chance, such as those whose first call does not return and has the next function behind it.
const LEAVES_EACH: usize = 8;

/// Where this many of a function's calls have no named return address for one that has, the word is one of many constants that happens to look like a return address, or a label in a
/// table that is not understood: in long functions that is common. OCaml's functions that call little but C's, of which nothing is named, stand among others.
const UNLIKELY_BY_CHANCE: usize = 8;

/// So many words side by side may be a table of labels.
const LABELS_MIN: usize = 16;

/// So far behind a call may be what its return address is compared with: gccgo's runtime allows for what its compiler may put between.
const CLOSE_BEHIND: u64 = 16;

/// Of a table of labels, one in so many words stands behind a call, at most.
const RETURNS_AMONG_LABELS: usize = 2;

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
        for part in framed.chunk_by(|a, b| b.index() - a.index() <= LEAVES_MAX + 1) {
            let leaves_max = LEAVES_MAX.min(part.len() * LEAVES_EACH);
            let gaps = part.windows(2).map(|pair| pair[0].index() + 1..pair[1].index());
            for unit in gaps.filter(|gap| gap.len() <= leaves_max).flatten().map(Unit::new) {
                pins.pin(self.clusters, unit, PinReason::ReturnAddressNamed);
            }
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
                .filter(|a| a.role != NumberRole::Memory && data.start < a.value && a.value < data.end);
            own.map(move |a| (unit, a.value))
        });
        for (unit, va) in named.chain(numbers) {
            if self.is_return_address(unit, va) && !self.is_jumped_to(unit, va) {
                pins.pin(self.clusters, unit, PinReason::ReturnAddressNamed);
            }
        }
    }

    /// Functions without indirect jumps that name a place of their own close behind one of their calls.
    pub(super) fn pin_by_told_return(&self, pins: &mut Pins) {
        let jumping = self.clusters_with_indirect_jumps();
        for (unit, data) in self.units.iter().filter(|(unit, _)| !jumping.contains(&self.clusters.find(*unit))) {
            let survey = &self.surveys[unit.index()];
            let computed = survey.names.iter().filter(|name| name.how == How::Address).map(|name| (name.at, name.target));
            let named = computed.chain(survey.absolutes.iter().map(|number| (number.at, number.value)));
            // Who names its own place asks where it is.
            let mut own = named.filter(|&(at, va)| data.start < va && va < data.end && va != at);
            if own.any(|(_, va)| self.is_close_behind_call(unit, va)) {
                pins.pin(self.clusters, unit, PinReason::ReturnAddressNamed);
            }
        }
    }

    fn is_close_behind_call(&self, unit: Unit, va: Va) -> bool {
        let mut calls = self.instructions(unit).filter(|i| matches!(flow_of(i), Flow::Call(_) | Flow::IndirectCall));
        calls.any(|call| (call.next_ip()..=call.next_ip() + CLOSE_BEHIND).contains(&va.0))
    }

    /// Whether a jump or branch of a unit leads to an address inside it.
    fn is_jumped_to(&self, unit: Unit, va: Va) -> bool {
        self.instructions(unit).any(|instruction| match flow_of(&instruction) {
            Flow::Jump(target) | Flow::Branch(_, target) | Flow::Loop(target) => target == va,
            _ => false,
        })
    }

    /// In the order of their addresses.
    fn functions_with_named_returns(&self) -> Vec<NamedReturns> {
        // A label in a table of labels may happen to stand behind a call; execution goes there, whatever the call returns to.
        let is_pointer = |by: NamedBy| by.intersects(NamedBy::SLOT | NamedBy::WORD) && !by.contains(NamedBy::TABLE);
        let returns = self.names.iter().filter(|&(_, by)| is_pointer(by)).filter_map(|(va, by)| {
            let unit = unit_at(self.units, va).filter(|&unit| self.is_return_address(unit, va))?;
            Some((va, (by, unit)))
        });
        let returns: Vec<(Va, (NamedBy, Unit))> = returns.collect();
        let labels = self.labels_among(&returns.iter().map(|named| named.0).collect::<Vec<Va>>());
        let mut found: Vec<NamedReturns> = Vec::new();
        for (_, (by, unit)) in returns.into_iter().filter(|(va, _)| labels.binary_search(va).is_err()) {
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

    /// Of the return addresses that words of data hold (ascending), those that stand in tables of labels and nowhere else. Ascending.
    fn labels_among(&self, returns: &[Va]) -> Vec<Va> {
        if returns.is_empty() {
            return Vec::new();
        }
        let into = |va: Va| unit_at(self.units, va).map(|unit| self.clusters.find(unit));
        let words = self.words_to_code();
        let (mut labels, mut others) = (Vec::new(), Vec::new());
        for run in words.chunk_by(|a, b| a.0 + 8 == b.0 && into(a.1) == into(b.1)) {
            let mut targets: Vec<Va> = run.iter().map(|word| word.1).collect();
            targets.sort_unstable();
            let once = targets.chunk_by(|a, b| a == b).filter(|same| same.len() == 1).map(|same| same[0]);
            let once: Vec<Va> = once.filter(|va| returns.binary_search(va).is_ok()).collect();
            let are_few = once.len() * RETURNS_AMONG_LABELS <= run.len();
            for va in targets.into_iter().filter(|va| returns.binary_search(va).is_ok()) {
                let is_label = run.len() >= LABELS_MIN && (are_few || once.binary_search(&va).is_err());
                if is_label { &mut labels } else { &mut others }.push(va);
            }
        }
        labels.sort_unstable();
        labels.dedup();
        others.sort_unstable();
        labels.retain(|va| others.binary_search(va).is_err());
        labels
    }

    /// Words of data that hold addresses of code, or may, and these. Ascending by place, each once.
    pub(super) fn words_to_code(&self) -> Vec<(Va, Va)> {
        let relocated = dynamic_code_slots(self.image, self.units);
        let mut words: Vec<(Va, Va)> = relocated.map(|(index, va)| (self.image.dynamic_relocs[index].slot, va)).collect();
        words.extend_from_slice(self.words);
        if self.use_static_relocs && !self.image.kind.is_position_independent() {
            words.extend(static_code_slots(self.image, self.units).map(|(at, va, _)| (at, va)));
        }
        words.sort_unstable();
        words.dedup();
        words
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
        self.instructions(unit).filter(|i| matches!(flow_of(i), Flow::Call(_) | Flow::IndirectCall)).count()
    }

    fn instructions(&self, unit: Unit) -> impl Iterator<Item = Instruction> {
        let (survey, data) = (&self.surveys[unit.index()], &self.units[unit]);
        let bytes = self.image.read(data.start, (data.end - data.start) as usize).unwrap_or(&[]);
        let decoder = Decoder::with_ip(64, bytes, data.start.0, DecoderOptions::NONE);
        decoder.into_iter().filter(|i| survey.is_start(i.ip() - data.start.0))
    }
}
