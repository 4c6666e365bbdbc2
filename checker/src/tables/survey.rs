//! What one pass over the input's functions tells, before anything is compared.
//!
//! **Groups.** Frame descriptions with jumps from one to the other are parts of one function, or functions that end with calls of each other: a table may lead into any of them.
//!
//! **Bodies.** Last calls aside, what nothing names and nothing named calls is led to by tables alone, though it may end with a call of a function that all know.
//!
//! **Terminates**: each instruction is looked at once, those of functions that name what is behind a call once more, and each body is reached once.

use goblin::elf::dynamic::{DT_FINI, DT_INIT};
use rustc_hash::FxHashSet;

use crate::decode::{Inst, Kind, Shape};
use crate::image::Slot;
use crate::walk::{Bits, Side};

/// A number in an instruction of a file at a fixed address, with the frame description around it: it may be an address.
struct Number {
    own: u32,
    at: u64,
    value: u64,
}

/// Bytes that are mapped as one.
const PAGE: u64 = 4096;

/// What one pass over the input's functions tells.
pub(crate) struct Survey {
    /// By frame description, with jumps to anywhere.
    groups: Groups,
    /// The same without jumps to entries of functions that something else names: last calls.
    bodies: Groups,
    /// Data addresses that instructions name, sorted.
    referenced: Vec<u64>,
    /// Addresses that instructions name and that lead into another frame description behind its entry, or right behind its end: the instruction, the address, and that description.
    places: Vec<(u64, u64, u32)>,
    /// Instructions that name a place in their own frame description, and the place.
    own_places: Vec<(u64, u64)>,
    /// By frame description: the entries of others whose addresses instructions take, and these.
    entries_taken: Vec<(u32, u64, u64)>,
    /// Places behind the start of a frame description that others call.
    pub(crate) calls_inside: Vec<u64>,
    /// Likewise, those that the same one calls.
    pub(crate) own_calls_inside: Vec<u64>,
    /// Instructions that read words out of other code, of frame descriptions that begin a page, and these.
    pub(crate) page_reads: Vec<(u64, u32)>,
    /// Frame descriptions, and others to which or from which there is a jump elsewhere than to an entry. Ascending.
    parts: Vec<(u32, u32)>,
    /// Where jumps lead into other functions, and the jumps; sorted.
    entered: Vec<(u64, u64)>,
    /// Functions whose last instruction is a call. Ascending.
    pub(crate) ending_with_calls: Vec<u32>,
    boundaries: Bits,
    /// The same of functions without frame descriptions: that what begins there is code is a guess.
    guessed: Bits,
    /// Instructions that stand right behind a call of the same frame description; of those that something names, the ones to which no jump leads.
    behind_calls: Bits,
    /// Frame descriptions that something names, other than a jump or a table.
    named: Bits,
    /// Those that begin where a direct call leads.
    called: Bits,
    /// The smallest ones of bodies to which something other than a table leads.
    rooted: Bits,
    /// Those of groups in which something is named.
    rooted_groups: Bits,
}

impl Survey {
    /// `absolute_fields` are the places where the linker put absolute addresses, if it says so.
    pub(crate) fn of(side: &Side<'_>, absolute_fields: &FxHashSet<u64>) -> Self {
        let (num_described, count) = (side.unwind.fdes.len(), side.num_functions());
        let mut survey = Self {
            groups: Groups::new(count),
            bodies: Groups::new(count),
            referenced: Vec::new(),
            places: Vec::new(),
            own_places: Vec::new(),
            entries_taken: Vec::new(),
            calls_inside: Vec::new(),
            own_calls_inside: Vec::new(),
            page_reads: Vec::new(),
            parts: Vec::new(),
            entered: Vec::new(),
            ending_with_calls: Vec::new(),
            boundaries: Bits::new(side.code.size()),
            guessed: Bits::new(side.code.size()),
            behind_calls: Bits::new(side.code.size()),
            named: Bits::new(count),
            called: Bits::new(count),
            rooted: Bits::new(count),
            rooted_groups: Bits::new(count),
        };
        survey.name_what_the_loader_knows(side);
        let fixed = side.image.is_position_dependent();
        let has_numbers = crate::data::has_numbers(&side.image);
        let mut numbers = Vec::new();
        let mut last_calls = Vec::new();
        for index in 0..count {
            let (start, end) = side.function(index as u32);
            let is_described = index < num_described;
            let mut address = start;
            let mut is_behind_call = false;
            while address < end {
                let (Some(code_index), Some(inst)) = (side.code.index(address), side.inst(address)) else { break };
                if is_described { &mut survey.boundaries } else { &mut survey.guessed }.insert(code_index);
                if is_behind_call {
                    survey.behind_calls.insert(code_index);
                }
                is_behind_call = matches!(inst.kind, Kind::Call | Kind::IndirectCall);
                match inst.kind {
                    Kind::Jump | Kind::Branch => {
                        let target = side.target(address, inst);
                        if target < start || target >= end {
                            survey.jump(side, (index as u32, address), target, &mut last_calls);
                        }
                    }
                    Kind::Call => survey.call(side, index as u32, side.target(address, inst)),
                    _ if inst.disp != 0 => {
                        let operand = side.operand(address, inst);
                        survey.name(side, operand);
                        survey.referenced.push(operand);
                        if inst.kind == Kind::Plain && is_described && start.is_multiple_of(PAGE) && side.image.in_code(operand) {
                            survey.page_reads.extend((!(start..end).contains(&operand)).then_some((address, index as u32)));
                        }
                        if inst.kind == Kind::Lea && is_described {
                            survey.take_entry(side, index, address, operand);
                            survey.name_place(side, index, address, operand);
                            survey.own_places.extend((start..end).contains(&operand).then_some((address, operand)));
                        }
                    }
                    _ if fixed && is_described => {
                        let bytes = side.code.bytes(address, inst);
                        let named = Shape::of(bytes).wide_displacement(bytes).and_then(|at| bytes.get(at..at + 4));
                        let value = |field: &[u8]| field.try_into().ok().map(u32::from_le_bytes).map(u64::from);
                        let is_own = |value: &u64| (start..end).contains(value);
                        let displacement = named.and_then(value).filter(|_| absolute_fields.is_empty());
                        survey.referenced.extend(named.and_then(value).filter(|&value| side.image.tail(value).is_some()));
                        let number = Shape::of(bytes).wide_immediate(bytes).filter(|_| has_numbers);
                        survey.referenced.extend(number.filter(is_own));
                        let leads_to_code = |value: &u64| value.checked_sub(1).is_some_and(|last| side.image.in_code(last));
                        let number = number.filter(leads_to_code);
                        let meant = number.filter(|_| !Shape::of(bytes).counts_bits(bytes));
                        if let Some(value) = meant {
                            survey.take_entry(side, index, address, value);
                        }
                        numbers.extend(meant.map(|value| Number { own: index as u32, at: address, value }));
                        let linked = (address..address + u64::from(inst.len)).find(|at| absolute_fields.contains(at));
                        let linked = linked.and_then(|at| value(bytes.get((at - address) as usize..)?.first_chunk::<4>()?));
                        let own = [number, displacement, linked].into_iter().flatten().find(is_own);
                        survey.own_places.extend(own.map(|value| (address, value)));
                        if let Some(value) = linked {
                            survey.take_entry(side, index, address, value);
                            survey.name_place(side, index, address, value);
                        }
                    }
                    _ => {}
                }
                address += u64::from(inst.len);
            }
            survey.ending_with_calls.extend((is_behind_call && address == end).then_some(index as u32));
        }
        for &(from, to) in last_calls.iter().filter(|call| !survey.named.contains(call.1 as usize)) {
            survey.groups.join(from, to);
        }
        survey.name_places(side, numbers);
        survey.referenced.sort_unstable();
        survey.referenced.dedup();
        survey.entered.sort_unstable();
        survey.parts.sort_unstable();
        survey.parts.dedup();
        survey.tell_labels_from_returns(side);
        survey.find_rooted(count, last_calls);
        survey
    }

    /// Tells what something other than a table leads to: bodies in which something is named, and those that they call last.
    fn find_rooted(&mut self, count: usize, last_calls: Vec<(u32, u32)>) {
        for fde in (0..count).filter(|&fde| self.named.contains(fde)) {
            self.rooted.insert(self.bodies.find(fde as u32) as usize);
            self.rooted_groups.insert(self.groups.find(fde as u32) as usize);
        }
        let mut calls: Vec<[u32; 2]> =
            last_calls.into_iter().map(|(from, to)| [from, to].map(|fde| self.bodies.find(fde))).collect();
        calls.sort_unstable();
        calls.dedup();
        let mut reached: Vec<u32> =
            calls.iter().map(|call| call[0]).filter(|&body| self.rooted.contains(body as usize)).collect();
        while let Some(body) = reached.pop() {
            let first = calls.partition_point(|call| call[0] < body);
            for &[_, called] in calls[first..].iter().take_while(|call| call[0] == body) {
                reached.extend(self.rooted.insert(called as usize).then_some(called));
            }
        }
    }

    /// What stands behind a call is a label, and no return address that somebody compares, if jumps of its function lead there too: who arrives by a jump has returned from no call.
    fn tell_labels_from_returns(&mut self, side: &Side<'_>) {
        let is_named = |&address: &u64| side.code.index(address).is_some_and(|index| self.behind_calls.contains(index));
        let named: Vec<u64> = self.referenced.iter().copied().filter(is_named).collect();
        let mut last = None;
        for fde in named.iter().filter_map(|&address| side.unwind.fde_at(address)) {
            if last.replace(fde) == Some(fde) {
                continue;
            }
            let mut address = side.unwind.fdes[fde as usize].start;
            while let Some(inst) = side.inst(address).filter(|_| address < side.unwind.fdes[fde as usize].end) {
                let target = matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop).then(|| side.target(address, inst));
                let label = target.filter(|target| named.binary_search(target).is_ok());
                if let Some(index) = label.and_then(|label| side.code.index(label)) {
                    self.behind_calls.remove(index);
                }
                address += u64::from(inst.len);
            }
        }
    }

    /// Notes a jump into another function. Where there is no frame, one may begin, also with one frame description for several: the jump is its last call then.
    fn jump(&mut self, side: &Side<'_>, (from, at): (u32, u64), target: u64, last_calls: &mut Vec<(u32, u32)>) {
        let Some(to) = side.function_at(target) else { return };
        self.entered.push((target, at));
        let is_described = |function: u32| (function as usize) < side.unwind.fdes.len();
        let is_beginning = side.function(to).0 == target;
        // Without frame descriptions functions begin where something names them, so that a jump there is a call. So is one to a stub of an import: all of them have one frame description, and are parts of no function.
        if is_beginning && !is_described(to) || side.slot_of_stub(target).is_some() {
            last_calls.push((from, to));
            return;
        }
        self.groups.join(from, to);
        let has_no_frame = side.unwind.has_no_frame(target);
        if has_no_frame {
            last_calls.push((from, to));
        } else {
            self.bodies.join(from, to);
        }
        // Stubs that the linker makes in another way.
        let is_stub = side.inst(target).is_some_and(|inst| inst.kind == Kind::IndirectJump);
        let is_part = is_described(from) && is_described(to) && !(is_beginning && has_no_frame) && !is_stub;
        if is_part {
            self.parts.extend([(from, to), (to, from)]);
        }
    }

    /// Adds to frame descriptions those that are parts of the same functions, with jumps elsewhere than to an entry, from or to another part. The instructions because of which they are asked for
    /// stay with them.
    pub(crate) fn with_parts(&self, mut fdes: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
        let mut known: FxHashSet<(u64, u32)> = fdes.iter().copied().collect();
        let mut next = 0;
        while let Some(&(at, fde)) = fdes.get(next) {
            let first = self.parts.partition_point(|pair| pair.0 < fde);
            let parts = self.parts[first..].iter().take_while(|pair| pair.0 == fde).map(|pair| (at, pair.1));
            fdes.extend(parts.filter(|&part| known.insert(part)));
            next += 1;
        }
        fdes
    }

    /// Notes that an instruction takes the address of an entry, of another frame description.
    fn take_entry(&mut self, side: &Side<'_>, own: usize, at: u64, address: u64) {
        if side.unwind.starts_at(address) && side.unwind.fdes[own].start != address {
            self.entries_taken.push((own as u32, address, at));
        }
    }

    /// By function, the entries of frame descriptions whose addresses its instructions take, and these.
    pub(crate) fn entries_taken(&self) -> impl Iterator<Item = (u32, u64, u64)> {
        self.entries_taken.iter().map(|&(own, entry, at)| (self.group_of(own), entry, at))
    }

    fn name(&mut self, side: &Side<'_>, address: u64) {
        if let Some(function) = side.function_at(address) {
            self.named.insert(function as usize);
        }
    }

    /// Notes that an instruction of a frame description names an address, if that leads into another one behind its entry, or right behind its end.
    fn name_place(&mut self, side: &Side<'_>, own: usize, at: u64, address: u64) {
        let unwind = &side.unwind;
        let own = &unwind.fdes[own];
        if (own.start..=own.end).contains(&address) {
            return;
        }
        self.places.extend(unwind.described_around(address).map(|fde| (at, address, fde)));
    }

    /// The same for all numbers in code. Large programs have round numbers that happen to lead into some function, also into its instructions; two in one function that lead to
    /// instructions of the same other one are no chance, if they are not masks of bits.
    fn name_places(&mut self, side: &Side<'_>, mut numbers: Vec<Number>) {
        let leads_to = |number: &Number| {
            let last = number.value.checked_sub(1).and_then(|last| side.unwind.fde_at(last));
            side.unwind.fde_at(number.value).or(last).map(|fde| (number.own, fde))
        };
        numbers.retain(|number| leads_to(number).is_some() && self.may_be_place(side, number.value));
        numbers.sort_unstable_by_key(|number| (number.own, number.value, number.at));
        numbers.dedup_by_key(|number| (number.own, number.value));
        for group in numbers.chunk_by(|a, b| leads_to(a) == leads_to(b)).filter(|group| group.len() > 1) {
            group.iter().for_each(|number| self.name_place(side, number.own as usize, number.at, number.value));
        }
    }

    /// Places inside of frame descriptions that instructions name, or right behind one.
    pub(crate) fn named_inside(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.iter().map(|place| place.1).chain(self.own_places.iter().map(|place| place.1))
    }

    /// Instructions of the input, and the frame descriptions in which they name an instruction other than the first, from another one, or the end.
    pub(crate) fn places(&self, side: &Side<'_>) -> impl Iterator<Item = (u64, u32)> {
        self.places.iter().filter(|place| self.may_be_place(side, place.1)).map(|&(at, _, fde)| (at, fde))
    }

    /// Instructions of the input that name a place in their own frame description behind its entry, and the place. At a fixed address, numbers that lead into an instruction name none.
    pub(crate) fn own_places(&self, side: &Side<'_>) -> Vec<(u64, u64)> {
        let is_fixed = side.image.is_position_dependent();
        let may_be_place = |place: u64| !side.unwind.starts_at(place) && (!is_fixed || self.may_be_place(side, place));
        self.own_places.iter().filter(|place| may_be_place(place.1)).copied().collect()
    }

    /// Whether an address is neither the middle of an instruction nor one of many stubs with one frame description: that is an entry.
    pub(crate) fn may_be_place(&self, side: &Side<'_>, address: u64) -> bool {
        match (side.code.index(address), side.unwind.fde_at(address)) {
            (Some(index), Some(fde)) => {
                let has_stubs = || side.begins_stubs(side.unwind.fdes[fde as usize].start);
                self.is_boundary(index) && !(side.slot_of_stub(address).is_some() && has_stubs())
            }
            _ => true,
        }
    }

    fn call(&mut self, side: &Side<'_>, from: u32, target: u64) {
        if let Some(function) = side.function_at(target) {
            self.named.insert(function as usize);
            if side.function(function).0 == target {
                self.called.insert(function as usize);
            } else if (function as usize) < side.unwind.fdes.len() {
                let calls = if function == from { &mut self.own_calls_inside } else { &mut self.calls_inside };
                calls.push(target);
            }
        }
    }

    fn name_what_the_loader_knows(&mut self, side: &Side<'_>) {
        self.name(side, side.image.elf.entry);
        for at in [DT_INIT, DT_FINI].into_iter().filter_map(|tag| side.image.dynamic_value(tag)) {
            self.name(side, at);
        }
        for &(_, slot) in &side.image.slots {
            if let Slot::Relative(address) | Slot::Resolver(address) = slot {
                self.name(side, address);
            }
        }
        for symbol in side.image.elf.dynsyms.iter().filter(|symbol| crate::data::names_code(&side.image, symbol)) {
            self.name(side, symbol.st_value);
        }
        // What nothing leads to was written elsewhere, with the tables that led there: it is no part of anything.
        crate::remains::unnamed(side).into_iter().for_each(|number| {
            self.named.insert(number as usize);
        });
    }

    /// Whether a direct call leads to where a frame description begins: that is a function.
    pub(crate) fn is_called(&self, fde: u32) -> bool {
        self.called.contains(fde as usize)
    }

    /// Whether nothing but a table can lead to a frame description: a cold part, or one of several with jumps among themselves where each block has a frame description. What follows may be a call of
    /// another function.
    pub(super) fn is_orphan(&self, fde: u32) -> bool {
        let has_name = |root: u32| root != fde && self.rooted.contains(root as usize);
        !self.named.contains(fde as usize) && (self.groups.find(fde) == fde || !has_name(self.bodies.find(fde)))
    }

    /// The same, and no last call of it leads to a function that something else leads to.
    pub(crate) fn is_apart(&self, fde: u32) -> bool {
        let root = self.groups.find(fde);
        !self.named.contains(fde as usize) && (root == fde || !self.rooted_groups.contains(root as usize))
    }

    /// The one jump to an address, if no instruction, call or pointer names that.
    pub(super) fn only_jump_to(&self, side: &Side<'_>, address: u64) -> Option<(u64, Inst)> {
        if self.is_referenced(address) || self.begins_function(side, address) {
            return None;
        }
        let first = self.entered.partition_point(|jump| jump.0 < address);
        let from_outside = self.entered[first..].iter().take_while(|jump| jump.0 == address).map(|jump| jump.1);
        let (start, end) = side.function(side.function_at(address)?);
        let mut found: Vec<u64> = from_outside.take(2).collect();
        let mut at = start;
        while let Some(inst) = side.inst(at).filter(|_| at < end && found.len() < 2) {
            let leads_there = matches!(inst.kind, Kind::Jump | Kind::Branch | Kind::Loop) && side.target(at, inst) == address;
            found.extend(leads_there.then_some(at));
            at += u64::from(inst.len);
        }
        let &[jump] = found.as_slice() else { return None };
        side.inst(jump).map(|inst| (jump, inst))
    }

    /// Whether a function of its own begins at an address: something other than a jump or a table names it. What nothing else names may be a part of the function before it, where
    /// each block has a frame description.
    pub(super) fn begins_function(&self, side: &Side<'_>, address: u64) -> bool {
        let function = side.function_at(address).filter(|&function| side.function(function).0 == address);
        function.is_some_and(|function| self.named.contains(function as usize))
    }

    /// Whether something other than a table leads to a function's first instruction, from elsewhere than some function.
    pub(super) fn is_led_to(&self, side: &Side<'_>, function: u32, from: u32) -> bool {
        let (address, from) = (side.function(function).0, side.function(from));
        let first = self.entered.partition_point(|jump| jump.0 < address);
        let mut jumps = self.entered[first..].iter().take_while(|jump| jump.0 == address);
        self.named.contains(function as usize) || jumps.any(|&(_, jump)| jump < from.0 || from.1 <= jump)
    }

    /// The smallest frame description of those that jumps connect with this one.
    pub(crate) fn group_of(&self, fde: u32) -> u32 {
        self.groups.find(fde)
    }

    /// Whether linear decoding of a frame description meets the instruction with this index.
    pub(crate) fn is_boundary(&self, index: usize) -> bool {
        self.boundaries.contains(index)
    }

    /// Whether an instruction begins there, also of code without a frame description.
    pub(crate) fn may_be_instruction(&self, index: usize) -> bool {
        self.is_boundary(index) || self.guessed.contains(index)
    }

    /// Whether an instruction names the address, with this index, to which a call returns: it may compare them.
    pub(crate) fn is_named_return(&self, address: u64, index: usize) -> bool {
        self.behind_calls.contains(index) && self.is_referenced(address)
    }

    /// Whether an instruction names an address.
    pub(crate) fn is_referenced(&self, address: u64) -> bool {
        self.referenced.binary_search(&address).is_ok()
    }

    pub(crate) fn next_reference(&self, address: u64) -> u64 {
        let after = self.referenced.partition_point(|&known| known <= address);
        self.referenced.get(after).copied().unwrap_or(u64::MAX)
    }
}

/// Frame descriptions that belong together.
struct Groups {
    /// By frame description: itself, or a smaller one of its group.
    smaller: Vec<u32>,
}

impl Groups {
    fn new(count: usize) -> Self {
        Self { smaller: (0..count as u32).collect() }
    }

    /// The smallest of the group.
    fn find(&self, mut member: u32) -> u32 {
        while self.smaller[member as usize] != member {
            member = self.smaller[member as usize];
        }
        member
    }

    fn join(&mut self, a: u32, b: u32) {
        let (one, other) = (self.find(a), self.find(b));
        let low = one.min(other);
        // Paths stay short: the members that were asked for point to the smallest again.
        for member in [one, other, a, b] {
            self.smaller[member as usize] = low;
        }
    }
}
