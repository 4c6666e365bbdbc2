//! Restartable sequences: what the kernel takes back where it was interrupted.
//!
//! **Problem.** The kernel reads a descriptor: where a sequence of instructions starts, how long it is, and where the program goes on if it is interrupted in between, which has to be
//! behind four bytes that the program registered. No step of either program shows that.
//!
//! **Rule.** Let 32 bytes of data, aligned to as many, look like a descriptor of a sequence of instructions in one function: a version of 0, three flags at most, the sequence's address and length, and the address of an instruction
//! outside of it, behind what is neither filler nor the end of other instructions. Then all of the sequence stands where it was, it stands nowhere else, and nothing else stands there; so do the handler and the four bytes before it; and the descriptor says so.
//!
//! Code may make descriptors of labels. So where an address that the program holds is behind the signature that C libraries register, the output's is too; and the
//! functions stay whole that compute such an address, and into which it leads.
//!
//! **What is taken for granted.** A program with another signature, that makes its descriptors by code, names the sequence from another function too.
//!
//! Source: Linux, `include/uapi/linux/rseq.h`, and what `kernel/rseq.c` asks of a descriptor.

use super::Walk;
use crate::data::{names_code, words};
use crate::decode::Kind;
use crate::image::{Image, Slot};
use crate::report::{Violation, ViolationKind};
use crate::tables::instruction_before;

const SIZE: u64 = 32;
const START: u64 = 8;
const LENGTH: u64 = 16;
const ABORT: u64 = 24;
const FLAGS_END: u64 = 8;

/// Of what is between functions.
const FILLERS: [u8; 11] = [0x00, 0x0f, 0x1f, 0x2e, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xcc];

const SIGNATURE: [u8; 4] = [0x53, 0x30, 0x05, 0x53];

struct Sequence {
    descriptor: u64,
    start: u64,
    end: u64,
    abort: u64,
}

impl Walk<'_, '_> {
    /// Reports sequences that are not what the kernel is told.
    pub(crate) fn report_sequences(&mut self) {
        self.report_signatures();
        let sequences = self.sequences();
        if sequences.is_empty() {
            return;
        }
        for sequence in &sequences {
            self.report_sequence(sequence);
        }
        let mut ranges: Vec<(u64, u64)> = sequences.iter().map(|sequence| (sequence.start, sequence.end)).collect();
        ranges = super::joined(ranges.into_iter().map(|(start, end)| (start, end - start)).collect());
        let range_of = |address: u64| {
            let after = ranges.partition_point(|&(start, _)| start <= address);
            ranges[..after].last().copied().filter(|&(_, end)| address < end)
        };
        let pairs = self.relation.pairs(self.output.code.size());
        let addresses = pairs.map(|(from, to)| (self.input.code.address(from), self.output.code.address(to)));
        let misplaced = addresses.filter(|(from, to)| from != to);
        let mut found: Vec<(u64, u64)> =
            misplaced.filter_map(|(from, to)| Some((range_of(from).or_else(|| range_of(to))?.0, to))).collect();
        found.sort_unstable();
        found.dedup_by_key(|misplaced| misplaced.0);
        for (start, to) in found {
            self.report(ViolationKind::Conflict, to, format!("of the restartable sequence at {start:#x}, or in it"));
        }
    }

    /// What is wrong with one of them, apart from what stands for its instructions elsewhere.
    fn report_sequence(&mut self, sequence: &Sequence) {
        let &Sequence { descriptor, start, end, abort } = sequence;
        let fields = |image: &Image<'_>| [START, ABORT].map(|field| address_at(image, descriptor + field));
        if fields(&self.input.image) != fields(&self.output.image) {
            self.report(ViolationKind::DataChanged, descriptor, "describes another restartable sequence, or another handler");
        }
        let before = |image: &Image<'_>| image.at(abort.wrapping_sub(4), 4).map(<[u8]>::to_vec);
        if before(&self.input.image) != before(&self.output.image) || !self.is_at_its_address(abort) {
            let message =
                format!("the handler of the restartable sequence at {start:#x}, or the signature before it, is not there");
            self.report(ViolationKind::Conflict, abort, message);
        }
        if let Some(address) = self.first_other_instruction(start, end) {
            let message = format!("of the restartable sequence at {start:#x}, which has to stay as it is");
            self.violations.push(Violation::new(ViolationKind::Conflict, address, message).about(start));
        }
    }

    /// Ascending by descriptor.
    fn sequences(&self) -> Vec<Sequence> {
        let image = &self.input.image;
        let descriptor = |start_at: u64| start_at.checked_sub(START).filter(|descriptor| descriptor.is_multiple_of(SIZE));
        let places: Vec<u64> = if image.is_position_dependent() && image.sections.is_empty() {
            let data = image.loads.iter().filter(|area| !image.in_code(area.start));
            let first = |start: u64| start.checked_next_multiple_of(SIZE).unwrap_or(u64::MAX);
            data.flat_map(|area| (first(area.start)..area.end()).step_by(SIZE as usize)).collect()
        } else if image.is_position_dependent() {
            let named = words(image).filter(|&(place, value)| place % SIZE == START && image.in_code(value));
            named.filter_map(|(place, _)| descriptor(place)).collect()
        } else {
            let is_plain = |descriptor: &u64| [0, LENGTH].iter().all(|field| image.slot(descriptor + field).is_none());
            let is_named = |descriptor: &u64| image.slot(descriptor + ABORT).is_some();
            let slots = image.slots.iter().filter_map(|&(place, _)| descriptor(place));
            slots.filter(is_named).filter(is_plain).collect()
        };
        places.into_iter().filter_map(|descriptor| self.sequence_at(descriptor)).collect()
    }

    fn sequence_at(&self, descriptor: u64) -> Option<Sequence> {
        let image = &self.input.image;
        let head = image.u64_at(descriptor)?;
        let (start, abort) = (address_at(image, descriptor + START)?, address_at(image, descriptor + ABORT)?);
        let end = start.checked_add(image.u64_at(descriptor + LENGTH)?).filter(|&end| end > start)?;
        let begins = |address: u64| self.input.code.index(address).is_some_and(|index| self.survey.may_be_instruction(index));
        let function = self.input.function_at(start)?;
        let is_in_function = self.input.function_at(end - 1) == Some(function);
        let ends = begins(end) || self.input.function(function).1 == end;
        let is_outside = !(start..end).contains(&abort);
        let is_one = head as u32 == 0 && head >> 32 < FLAGS_END && is_in_function && is_outside;
        let has_handler = || has_signature(image, abort) || begins(abort) && self.may_be_signed(abort);
        (is_one && begins(start) && ends && has_handler()).then_some(Sequence { descriptor, start, end, abort })
    }

    /// Whether the four bytes before an address may be somebody's signature: neither filler nor instructions, but a field of one at most.
    fn may_be_signed(&self, abort: u64) -> bool {
        let bytes = abort.checked_sub(4).and_then(|place| self.input.image.at(place, 4));
        let begins = |back: u64| self.input.code.index(abort - back).is_some_and(|index| self.survey.may_be_instruction(index));
        let is_branch = |kind| matches!(kind, Kind::Jump | Kind::Branch | Kind::Loop | Kind::Call);
        bytes.is_some_and(|bytes| bytes.iter().any(|byte| !FILLERS.contains(byte)))
            && !(1..4).any(begins)
            && self.input.unwind.fde_at(abort - 1) == self.input.unwind.fde_at(abort - 4)
            && instruction_before(self, abort).is_none_or(|(_, inst)| !is_branch(inst.kind))
    }

    /// Notes an address that an instruction computes, if the signature that C libraries register is before it.
    pub(super) fn note_signature(&mut self, address: u64, at: u64) {
        if has_signature(&self.input.image, address) {
            let unwind = &self.input.unwind;
            self.places_known.extend([at, address].into_iter().filter_map(|place| Some((at, unwind.fde_at(place)?))));
        }
    }

    /// Before an address that the program holds stands the signature of C libraries if it did.
    fn report_signatures(&mut self) {
        let signed = self.relation.named().filter(|&(input, _)| has_signature(&self.input.image, input));
        let mut lost: Vec<(u64, u64)> = signed.filter(|&(_, output)| !has_signature(&self.output.image, output)).collect();
        lost.sort_unstable();
        for (input, output) in lost {
            let message =
                format!("no signature of a restartable sequence's handler before it; the input has one before {input:#x}");
            self.report(ViolationKind::Conflict, output, message);
        }
    }
}

fn has_signature(image: &Image<'_>, address: u64) -> bool {
    address.checked_sub(4).is_some_and(|place| image.at(place, 4) == Some(&SIGNATURE))
}

/// The address of code that a word holds when the program runs.
fn address_at(image: &Image<'_>, place: u64) -> Option<u64> {
    let address = match image.slot(place) {
        Some(Slot::Relative(address)) => address,
        Some(Slot::Symbol { symbol, addend, .. }) => {
            let symbol = image.elf.dynsyms.get(symbol).filter(|symbol| names_code(image, symbol))?;
            symbol.st_value.wrapping_add_signed(addend)
        }
        Some(Slot::Resolver(_)) => return None,
        None if image.is_position_dependent() => image.u64_at(place)?,
        None => return None,
    };
    image.in_code(address).then_some(address)
}
