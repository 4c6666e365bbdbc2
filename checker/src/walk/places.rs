//! Functions that have to stay in one piece: those in which other code names a place, and those that count with an address of their own.
//!
//! **Problem.** A handler of signals that looks at where the program was interrupted compares that with labels that it names: whether it lies between the first instruction of a system call
//! and the one behind it, or is the load that may fault. No step of either program shows what it finds. The walk pairs states at equal places, and an
//! interruption is between any two steps: so what such a handler asks must have the same answer at both places of each pair.
//!
//! **Rule.** Let an instruction that the walk passed name a place of a function's frame description, from another one and other than the entry, or the padding right behind one. Then all
//! instructions of that function stand at their own addresses, as the same kinds with the same lengths; no other instruction of the output stands for one of them; and none of
//! them stands for another of the input.
//!
//! The same holds where a word of `.got` names such a place: position-independent code names labels through it that other files could name too.
//!
//! The same holds for functions of which a word that the loader relocates names an instruction in the first eight bytes, other than the first: it may be a pointer that was marked in its low bits when the
//! program was linked, and from which the mark is taken before it is called; and of functions to which such a word leads without the bits above an address. What an address in data is, apart from that, no walk sees: to it, it is the second instruction.
//!
//! The same holds where words side by side name two places of a function, if neither it nor its parts have an indirect jump, which labels of a computed `goto` are for, and something is pushed at these places, so that they are no entries. At a fixed address small numbers, and what
//! lies a byte before a number, are no such words.
//!
//! The same holds for functions that count with the address of a place of their own ([`crate::prove::counted_with`]), and for their parts with frame descriptions of their own: what lies at a distance from a label in
//! data is then what lay there. Nothing but such a distance need lead to it, so what no pair reached of functions that have to stay is walked at its own address, and must correspond there; by its content alone, it
//! could have changed places with its like.
//!
//! And where the file has frames in GNU's simple form, no instruction may have another address than in the input: nothing else compares that table with the code.
//!
//! **Why that is enough.** The addresses between two labels of the function, or at a distance from one, are then the same in both programs, as are the instructions at them. An interrupted
//! address of the output lies in the function exactly if that of the input does, and is the same address then. A label and a distance make the same sum in both, and
//! instructions that correspond stand there, if it is in the function or its parts.
//!
//! **What is taken for granted.** Labels that only words of data name, and none beside these, are those of computed `goto`s. Who compares with the entry alone asks which function it is, not which part of it. Distances from a label lead into
//! the function of the label, or into a part of it that jumps there, or to which it does.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::{AT_RETURN_ADDRESS, Pair, Reach, Walk};
use crate::data::unaligned_words;
use crate::decode::Kind;
use crate::image::Slot;
use crate::report::{Violation, ViolationKind};
use crate::sframe::Frames;

/// Pointers to functions that are aligned to this have bits to mark them by.
const TAGS_END: u64 = 8;

/// Bits of the addresses that a program has: those above may mark pointers.
const ADDRESS_BITS: u32 = 48;

/// Bytes of an address.
const WORD: u64 = 8;

/// Numbers of bytes below this, and multiples of that, look like addresses of large programs.
const SMALL_END: u8 = 16;
const SHIFTED: u64 = 256;

impl Walk<'_, '_> {
    /// Notes an address that a word of data holds, and that the loader relocates. At a fixed address such a word may be in a table of jumps.
    pub(crate) fn note_tagged(&mut self, address: u64, word: u64) {
        let unwind = &self.input.unwind;
        let is_boundary = self.input.code.index(address).is_some_and(|index| self.survey.is_boundary(index));
        let Some(fde) = unwind.fde_at(address).filter(|_| is_boundary) else { return };
        let start = unwind.fdes[fde as usize].start;
        // The cold part of a function may begin with labels. It has a frame already.
        if (1..TAGS_END).contains(&(address - start)) && unwind.has_no_frame(start) {
            self.places_known.push((word, fde));
        }
    }

    /// Notes a word that the loader relocates and that holds an address of code with something in the bits above.
    pub(crate) fn note_marked_above(&mut self, value: u64, word: u64) {
        let address = value & ((1 << ADDRESS_BITS) - 1);
        let fde = self.input.unwind.fde_at(address).filter(|_| address != value);
        self.places_known.extend(fde.map(|fde| (word, fde)));
    }

    /// Notes functions without indirect jumps of which words side by side name several places.
    pub(crate) fn find_places_side_by_side(&mut self) {
        let (input, survey) = (self.input, &self.survey);
        let is_number = |value: u64| value.is_multiple_of(SHIFTED) || value.to_le_bytes().iter().all(|&byte| byte < SMALL_END);
        let function = |value: u64| {
            let is_boundary = input.code.index(value).is_some_and(|index| survey.is_boundary(index));
            let is_in_frame = self.frame_address(input, value).is_some_and(|frame| frame != AT_RETURN_ADDRESS);
            let is_place = |fde: &u32| input.unwind.fdes[*fde as usize].start != value;
            input.unwind.fde_at(value).filter(is_place).filter(|_| is_boundary && is_in_frame)
        };
        let relocated = input.image.slots.iter().filter_map(|&(at, slot)| match slot {
            Slot::Relative(value) => Some((at, value)),
            _ => None,
        });
        let mut words: Vec<(u64, u64)> = relocated.collect();
        if self.keeps_old_text() {
            words.extend(unaligned_words(&input.image, |value| input.image.in_code(value) && !is_number(value)));
        }
        let mut words: Vec<(u64, u64, u32)> =
            words.into_iter().filter_map(|(at, value)| Some((at, value, function(value)?))).collect();
        words.sort_unstable_by_key(|&(at, value, _)| (at % WORD, at, value));
        let mut jumping: FxHashMap<u32, bool> = FxHashMap::default();
        let mut found = Vec::new();
        for pair in words.windows(2) {
            let [(at, value, fde), (next, other, beside)] = [pair[0], pair[1]];
            let is_pair = next == at + WORD && value != other && survey.group_of(fde) == survey.group_of(beside);
            if is_pair && !*jumping.entry(survey.group_of(fde)).or_insert_with(|| self.has_indirect_jump(fde)) {
                found.extend([(at, fde), (next, beside)]);
            }
        }
        self.places_known.extend(found);
    }

    /// Whether a function has an indirect jump, or a part of it.
    pub(super) fn has_indirect_jump(&self, fde: u32) -> bool {
        let (input, survey) = (self.input, &self.survey);
        let group = survey.group_of(fde);
        let same = (0..input.unwind.fdes.len() as u32).filter(|&other| survey.group_of(other) == group).map(|other| (0, other));
        survey.with_parts(same.collect()).into_iter().any(|(_, part)| {
            let (mut at, end) = (input.unwind.fdes[part as usize].start, input.unwind.fdes[part as usize].end);
            while let Some(inst) = input.inst(at).filter(|_| at < end) {
                if inst.kind == Kind::IndirectJump {
                    return true;
                }
                at += u64::from(inst.len);
            }
            false
        })
    }

    /// Notes an address that a word holds through which code names what other files could name too.
    pub(crate) fn note_named_through(&mut self, address: u64, word: u64) {
        let fde = self.input.unwind.described_around(address).filter(|_| self.survey.may_be_place(self.input, address));
        self.places_known.extend(fde.map(|fde| (word, fde)));
    }

    /// Reports functions that have to stay in one piece, and did not.
    pub(crate) fn report_places(&mut self) {
        self.report_moved_frames();
        let input = self.input;
        let functions = self.kept_whole();
        if functions.is_empty() {
            return;
        }
        let function_of = |address: u64| {
            let (&start, &(end, at)) = functions.range(..=address).next_back()?;
            (address < end).then_some((start, at))
        };
        let mut found: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (input_index, output_index) in self.relation.pairs(self.output.code.size()) {
            let (from, to) = (input.code.address(input_index), self.output.code.address(output_index));
            if from != to
                && let Some((start, at)) = function_of(from).or_else(|| function_of(to))
            {
                let first = found.entry(start).or_insert((to, at));
                *first = (*first).min((to, at));
            }
        }
        for (&start, &(end, at)) in &functions {
            if let Some(address) = self.first_other_instruction(start, end) {
                found.entry(start).or_insert((address, at));
            }
        }
        self.violations.extend(found.into_iter().map(|(start, (address, at))| {
            let message =
                format!("of the function at {start:#x}, in which the input's {at:#x} names a place: it has to stay in one piece");
            Violation::new(ViolationKind::Conflict, address, message).about(start)
        }));
    }

    /// Functions that have to stay in one piece, by start: the end, and the instruction or the word because of which.
    fn kept_whole(&self) -> BTreeMap<u64, (u64, u64)> {
        let input = self.input;
        let is_passed = |address: u64| input.code.index(address).is_some_and(|index| self.relation.seen.contains(index));
        let counted = self.counted.iter().filter(|&&(at, _)| is_passed(at)).copied();
        let named = self.survey.places(input).filter(|&(at, _)| is_passed(at)).chain(self.places_known.iter().copied());
        let functions = named.chain(counted).map(|(at, fde)| (&input.unwind.fdes[fde as usize], at));
        let is_reached = |start: u64, end: u64| (start..end).any(is_passed);
        functions.filter(|(fde, _)| is_reached(fde.start, fde.end)).map(|(fde, at)| (fde.start, (fde.end, at))).collect()
    }

    /// Finds the functions that count with an address of their own.
    pub(crate) fn find_counted(&mut self) {
        let found = crate::prove::counted_with(self).into_iter();
        let functions = found.filter_map(|(at, place)| Some((at, self.input.unwind.fde_at(place)?)));
        self.counted = self.survey.with_parts(functions.collect());
    }

    /// Compares what nothing was seen to lead to in functions that have to stay in one piece, at its own address.
    pub(crate) fn walk_kept_whole(&mut self) {
        for (start, (end, _)) in self.kept_whole() {
            let mut at = start;
            while let Some(inst) = self.input.inst(at).filter(|_| at < end) {
                let is_known = self.input.code.index(at).is_none_or(|index| self.relation.output_of(index).is_some());
                if !is_known && !matches!(inst.kind, Kind::Nop | Kind::Trap) {
                    self.queue.push(Pair::new(at, at, at, Reach::Flow));
                    self.settle();
                }
                at += u64::from(inst.len);
            }
        }
    }

    /// Where a table of frames names code by its distance from the table, and the output has the same table, that code may not have moved.
    fn report_moved_frames(&mut self) {
        let frames = Frames::of(&self.input.image);
        if frames.is_empty() {
            return;
        }
        let pairs = self.relation.pairs(self.output.code.size());
        let places = pairs.map(|(from, to)| (self.input.code.address(from), self.output.code.address(to)));
        let moved = places.filter(|&(from, to)| from != to && frames.describe(from));
        if let Some((from, to)) = moved.min_by_key(|&(_, to)| to) {
            let message = format!("stands for the input's {from:#x}, of which the frame is described in .sframe where it was");
            self.report(ViolationKind::UnwindTable, to, message);
        }
    }

    /// The first place of a function where the output has another instruction, as far as lengths and kinds tell.
    pub(super) fn first_other_instruction(&self, start: u64, end: u64) -> Option<u64> {
        let mut address = start;
        while address < end {
            let inst = self.input.inst(address)?;
            let is_same = self.output.inst(address).is_some_and(|other| other.len == inst.len && other.kind == inst.kind);
            let is_related = matches!(inst.kind, Kind::Jump | Kind::Nop) || self.is_at_its_address(address);
            if !is_same || !is_related {
                return Some(address);
            }
            address += u64::from(inst.len);
        }
        None
    }

    /// Whether an instruction of the input stands at its own address, or nowhere.
    pub(super) fn is_at_its_address(&self, address: u64) -> bool {
        let place = self.input.code.index(address).and_then(|index| self.relation.output_of(index));
        place.is_none_or(|place| self.output.code.address(place) == address)
    }
}
