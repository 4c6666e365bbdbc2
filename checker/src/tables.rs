//! Jump tables: offsets to a base, the one class of code address without metadata.
//!
//! **Recognition.** A `lea` of data whose first word, added to the address, meets an instruction of the same function is the base of a table:
//! the distance from data to a function's instructions is not a value that other data has. The same holds for a table of absolute
//! addresses in a file at a fixed address. Functions that jump into each other's middle count as one. Where a bounds check precedes the
//! `lea` and a jump follows it, entries within the bound may meet any function: a cold part may be reached by nothing else. No compiler
//! makes a table of one entry, but strings of three letters meet instructions.
//!
//! **Extent.** A table ends where its section ends, where the next thing begins that any instruction refers to, or before the first word that
//! does not meet an instruction of the function. A comparison with a constant right before the `lea` bounds it too; of several instructions that name it the one with most entries counts. Up to that bound, or
//! without one up to the extent, entries must correspond. What lies between, and in a copied table behind, asks for nothing; it is explained if what it leads
//! to corresponds for other reasons, or, where that is reached in one file alone, if a comparison of both finds them equal.

mod copies;
mod named;

use rustc_hash::FxHashSet;

use crate::decode::{Inst, Kind, Shape};
use crate::image::Slot;
use crate::report::ViolationKind;
use crate::walk::{Bits, Displaced, Pair, Reach, Side, Walk};
pub(crate) use copies::{Copies, report_mixed, report_other_uses};
use named::goes_to_call;
pub(crate) use named::may_be_jumped_through;

/// How many instructions before the `lea` the bounds check is looked for, and after it the jump.
const BOUND_WINDOW: usize = 8;

#[derive(Copy, Clone, Debug)]
pub(crate) struct TableReference {
    pub(crate) input: u64,
    pub(crate) output: u64,
    /// 4: signed offsets to the table; 8: absolute addresses.
    pub(crate) width: u8,
    /// The instruction that names the table, in the input and in the output.
    pub(crate) from: u64,
    pub(crate) origin: u64,
}

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
    /// By frame description: the smallest one of its group.
    groups: Vec<u32>,
    /// Data addresses that instructions name, sorted.
    referenced: Vec<u64>,
    /// Addresses that instructions name and that lead into another frame description behind its entry, or right behind its end: the instruction, the address, and that description.
    places: Vec<(u64, u64, u32)>,
    /// Instructions that name a place in their own frame description, and the place.
    own_places: Vec<(u64, u64)>,
    /// By frame description: the entries of others whose addresses instructions take, and these.
    entries_taken: Vec<(u32, u64, u64)>,
    /// Instructions that read words out of other code, of frame descriptions that begin a page, and these.
    pub(crate) page_reads: Vec<(u64, u32)>,
    /// Frame descriptions, and others to which they jump elsewhere than to an entry.
    parts: Vec<(u32, u32)>,
    boundaries: Bits,
    /// The same of functions without frame descriptions: that what begins there is code is a guess.
    guessed: Bits,
    /// Instructions that stand right behind a call of the same frame description; of those that something names, the ones to which no jump leads.
    behind_calls: Bits,
    /// Frame descriptions that something names, other than a jump or a table.
    named: Bits,
    /// Those that begin where a direct call leads.
    called: Bits,
    /// The smallest ones of groups in which something is named.
    rooted: Bits,
}

impl Survey {
    /// `absolute_fields` are the places where the linker put absolute addresses, if it says so.
    pub(crate) fn of(side: &Side<'_>, absolute_fields: &FxHashSet<u64>) -> Self {
        let (num_described, count) = (side.unwind.fdes.len(), side.num_functions());
        let mut survey = Self {
            groups: (0..count as u32).collect(),
            referenced: Vec::new(),
            places: Vec::new(),
            own_places: Vec::new(),
            entries_taken: Vec::new(),
            page_reads: Vec::new(),
            parts: Vec::new(),
            boundaries: Bits::new(side.code.size()),
            guessed: Bits::new(side.code.size()),
            behind_calls: Bits::new(side.code.size()),
            named: Bits::new(count),
            called: Bits::new(count),
            rooted: Bits::new(count),
        };
        survey.name_what_the_loader_knows(side);
        let fixed = side.image.is_position_dependent();
        let has_numbers = crate::data::has_numbers(&side.image);
        let mut numbers = Vec::new();
        let mut tail_calls = Vec::new();
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
                        if (target < start || target >= end)
                            && let Some(other) = side.function_at(target)
                        {
                            // Without frame descriptions functions begin where something names them, so that a jump there is a call.
                            if other as usize >= num_described && side.function(other).0 == target {
                                tail_calls.push((index as u32, other));
                            } else {
                                survey.join(index as u32, other);
                            }
                            survey.note_part(side, index as u32, other, target);
                        }
                    }
                    Kind::Call => survey.call(side, side.target(address, inst)),
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
        }
        for (from, to) in tail_calls {
            if !survey.named.contains(to as usize) {
                survey.join(from, to);
            }
        }
        survey.name_places(side, numbers);
        survey.referenced.sort_unstable();
        survey.referenced.dedup();
        survey.tell_labels_from_returns(side);
        for fde in (0..count).filter(|&fde| survey.named.contains(fde)) {
            survey.rooted.insert(survey.find(fde as u32) as usize);
        }
        survey
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

    /// Notes a jump from a frame description to another one.
    fn note_part(&mut self, side: &Side<'_>, from: u32, to: u32, target: u64) {
        let unwind = &side.unwind;
        if [from, to].iter().any(|&function| function as usize >= unwind.fdes.len()) {
            return;
        }
        if unwind.fdes[to as usize].start != target || !unwind.has_no_frame(target) {
            self.parts.push((from, to));
        }
    }

    /// Adds to frame descriptions those that are parts of the same functions, with jumps elsewhere than to an entry, from or to another part. The instructions because of which they are asked for
    /// stay with them.
    pub(crate) fn with_parts(&self, mut fdes: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
        let mut known: FxHashSet<(u64, u32)> = fdes.iter().copied().collect();
        let mut neighbors: Vec<(u32, u32)> = self.parts.iter().flat_map(|&(one, other)| [(one, other), (other, one)]).collect();
        neighbors.sort_unstable();
        let mut next = 0;
        while let Some(&(at, fde)) = fdes.get(next) {
            let first = neighbors.partition_point(|pair| pair.0 < fde);
            let parts = neighbors[first..].iter().take_while(|pair| pair.0 == fde).map(|pair| (at, pair.1));
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

    fn call(&mut self, side: &Side<'_>, target: u64) {
        if let Some(function) = side.function_at(target) {
            self.named.insert(function as usize);
            if side.function(function).0 == target {
                self.called.insert(function as usize);
            }
        }
    }

    fn name_what_the_loader_knows(&mut self, side: &Side<'_>) {
        self.name(side, side.image.elf.entry);
        for &(_, slot) in &side.image.slots {
            if let Slot::Relative(address) | Slot::Resolver(address) = slot {
                self.name(side, address);
            }
        }
        for symbol in side.image.elf.dynsyms.iter().filter(|symbol| crate::data::names_code(&side.image, symbol)) {
            self.name(side, symbol.st_value);
        }
    }

    /// Whether a direct call leads to where a frame description begins: that is a function.
    pub(crate) fn is_called(&self, fde: u32) -> bool {
        self.called.contains(fde as usize)
    }

    /// Whether nothing but a table can lead to a frame description: a cold part, or one of several with jumps among themselves where each block has a frame description.
    fn is_orphan(&self, fde: u32) -> bool {
        let root = self.find(fde);
        !self.named.contains(fde as usize) && (root == fde || !self.rooted.contains(root as usize))
    }

    /// Whether a function of its own begins at an address: something other than a jump or a table names it. What nothing else names may be a part of the function before it, where
    /// each block has a frame description.
    fn begins_function(&self, side: &Side<'_>, address: u64) -> bool {
        let function = side.function_at(address).filter(|&function| side.function(function).0 == address);
        function.is_some_and(|function| self.named.contains(function as usize))
    }

    /// The smallest frame description of those that jumps connect with this one.
    pub(crate) fn group_of(&self, fde: u32) -> u32 {
        self.find(fde)
    }

    fn find(&self, mut member: u32) -> u32 {
        while self.groups[member as usize] != member {
            member = self.groups[member as usize];
        }
        member
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        let (low, high) = (a.min(b), a.max(b));
        self.groups[high as usize] = low;
        // Paths stay short: the members that were asked for point to the root again.
        for member in [a, b] {
            self.groups[member as usize] = low;
        }
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

/// Whether a reference names the same data in both files, or what is a table in the input.
pub(crate) fn may_be_moved(walk: &Walk<'_, '_>, table: TableReference) -> bool {
    table.input == table.output || !input_entries(walk, table).is_empty()
}

/// Reads a table in both files, and asks for the pairs of its entries.
pub(crate) fn read(walk: &mut Walk<'_, '_>, table: TableReference) {
    let entries = input_entries(walk, table);
    note_copy(walk, table, !entries.is_empty(), false);
    if entries.is_empty() {
        if table.input != table.output {
            walk.displaced.push(Displaced { input: table.input, output: table.output, origin: table.origin });
        }
        return;
    }
    // Another comparison may stand before another instruction that names it.
    let (bound, guessed_from) = extent(walk, table, &entries);
    let certain = bound.min(guessed_from).min(entries.len());
    let known = walk.tables_seen.insert((table.input, table.output), certain);
    if let Some(known) = known.filter(|&known| known >= certain) {
        walk.tables_seen.insert((table.input, table.output), known);
        return;
    }
    if table.input == table.output && goes_to_call(walk.input, table.from) {
        walk.arguments.push(table);
        return;
    }
    read_entries(walk, table, &entries, false);
}

fn note_copy(walk: &mut Walk<'_, '_>, table: TableReference, is_table: bool, is_followed: bool) {
    if let Some(function) = walk.input.function_at(table.from) {
        walk.copies.note(table, walk.survey.find(function), walk.survey.is_orphan(function), is_table);
        if is_table && !is_followed {
            walk.copies.note_moved(table, walk.survey.find(function));
        }
    }
}

/// The pairs of the entries that must correspond; `None` if it is no table, or they cannot.
pub(crate) fn certain_pairs(walk: &Walk<'_, '_>, table: TableReference) -> Option<Vec<(u64, u64)>> {
    let entries = input_entries(walk, table);
    let (bound, guessed_from) = extent(walk, table, &entries);
    let mut pairs = Vec::new();
    for (position, &input) in entries.iter().enumerate().take(bound.min(guessed_from)) {
        let Entry::To(input) = input else { continue };
        let place = table.output + position as u64 * u64::from(table.width);
        let output = entry(walk.output, table.output, place, table.width);
        pairs.push((input, output.filter(|&output| walk.output.image.in_code(output))?));
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Where a jump of the input leads through a table, as far as entries must correspond: what is compared before the jump may say how many there are.
pub(crate) fn certain_targets(walk: &Walk<'_, '_>, table: TableReference, jump: u64) -> Vec<u64> {
    let entries = input_entries(walk, table);
    let (extent, guessed_from) = extent(walk, table, &entries);
    let count = bound(walk, jump).unwrap_or(guessed_from).min(extent);
    let target = |entry: &Entry| if let Entry::To(target) = *entry { Some(target) } else { None };
    entries.iter().take(count).filter_map(target).collect()
}

/// Explains the entries of a table that proofs have followed.
pub(crate) fn read_followed(walk: &mut Walk<'_, '_>, table: TableReference) {
    note_copy(walk, table, true, true);
    if walk.tables_followed.insert((table.input, table.output)) {
        let entries = input_entries(walk, table);
        read_entries(walk, table, &entries, true);
    }
}

/// Reads what is at the same time a table and an argument of a call, unless the jump uses a copy of the table: then it is what lies before the
/// table that the call gets, by its end. What is walked from there may turn up more of them.
pub(crate) fn read_arguments(walk: &mut Walk<'_, '_>) {
    while !walk.arguments.is_empty() {
        for table in std::mem::take(&mut walk.arguments) {
            if !walk.clones.iter().any(|&(input, output, _)| input == table.input && output != input) {
                let entries = input_entries(walk, table);
                read_entries(walk, table, &entries, false);
            }
        }
        walk.settle();
    }
}

/// The number of entries of a table that must correspond, and the first one that may belong to something else.
fn extent(walk: &Walk<'_, '_>, table: TableReference, entries: &[Entry]) -> (usize, usize) {
    let extent = walk.survey.next_reference(table.input).saturating_sub(table.input) / u64::from(table.width);
    // What is behind a hole may be another array.
    let hole = entries.iter().position(|&entry| entry == Entry::Hole).unwrap_or(usize::MAX);
    let bound = bound(walk, table.from);
    let guessed_from = if bound.is_some() { usize::MAX } else { hole };
    (bound.unwrap_or(usize::MAX).min(usize::try_from(extent).unwrap_or(usize::MAX)), guessed_from)
}

/// Asks for the pairs of a table's entries, unless those that must correspond have been followed.
fn read_entries(walk: &mut Walk<'_, '_>, table: TableReference, entries: &[Entry], are_followed: bool) {
    walk.stats.jump_tables += 1;
    let width = u64::from(table.width);
    let (bound, guessed_from) = extent(walk, table, entries);
    let mut size = 0;
    for (position, &input) in entries.iter().enumerate() {
        let place = table.output + position as u64 * width;
        let is_certain = position < bound;
        let output = entry(walk.output, table.output, place, table.width);
        output.into_iter().for_each(|output| walk.enter(output));
        if position >= guessed_from {
            if let (Entry::To(input), Some(output)) = (input, output) {
                walk.try_later(Pair::new(input, output, place, Reach::Pointer));
            }
            continue;
        }
        let is_asked_for = !(are_followed && is_certain);
        if is_asked_for && !read_entry(walk, place, input, output, (is_certain, table.width)) {
            break;
        }
        size += width;
        if is_certain || input == Entry::Unreachable {
            walk.stats.jump_table_entries += 1;
            walk.explain_entry(place, table.width);
        }
    }
    if table.input != table.output {
        walk.clones.push((table.input, table.output, size));
    }
}

/// An entry that the program may be unable to select.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Doubtful {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) place: u64,
    pub(crate) width: u8,
}

/// Asks for the pair of one entry, or puts it off; `false` if the table ends before it.
fn read_entry(walk: &mut Walk<'_, '_>, place: u64, input: Entry, output: Option<u64>, (is_certain, width): (bool, u8)) -> bool {
    let Entry::To(input) = input else { return output.is_some() };
    match output.filter(|&output| walk.output.image.in_code(output)) {
        Some(output) if is_certain && leads_into_copy(walk, width, (input, output)) => walk.seed(input, output, place),
        Some(output) if is_certain => {
            if width == 4 && walk.survey.is_referenced(input) && !copies::names_itself_alike(walk, input, output) {
                let message = format!(
                    "leads to {output:#x}, which names another address than its own; the input's {input:#x} names itself"
                );
                walk.report(ViolationKind::Conflict, place, message);
            }
            walk.seed_address(input, output, place);
        }
        Some(output) => walk.doubtful.push(Doubtful { input, output, place, width }),
        None if is_certain => {
            let message = format!("the entry leads out of the code; the input's leads to {input:#x}");
            walk.report(ViolationKind::JumpTable, place, message);
            return false;
        }
        None => return false,
    }
    true
}

/// Nothing compares where offsets lead inside of a function, unless it names the place: that of a copy of the function leads into the copy.
fn leads_into_copy(walk: &Walk<'_, '_>, width: u8, (input, output): (u64, u64)) -> bool {
    width == 4
        && walk.relation.is_named_elsewhere(input, output)
        && !walk.survey.is_referenced(input)
        && !walk.input.unwind.starts_at(input)
}

/// Whether an entry that must correspond leads to an address that the program holds for something else: code that names the table in place of the input's is no counterpart then, however alike it is.
pub(crate) fn contradicts(walk: &Walk<'_, '_>, table: TableReference) -> bool {
    if table.input == table.output && goes_to_call(walk.input, table.from) {
        return false;
    }
    let pairs = certain_pairs(walk, table).unwrap_or_default();
    pairs.into_iter().any(|pair| !leads_into_copy(walk, table.width, pair) && walk.relation.is_held_for_another(pair.0, pair.1))
}

/// Where an entry leads.
pub(crate) fn entry(side: &Side<'_>, base: u64, place: u64, width: u8) -> Option<u64> {
    if width == 8 {
        side.image.u64_at(place)
    } else {
        let offset = side.image.u32_at(place)?.cast_signed();
        Some(base.wrapping_add_signed(i64::from(offset)))
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Entry {
    To(u64),
    /// LLVM lets entries that the program cannot select point at the function's end.
    Unreachable,
    /// A zero in an array of labels.
    Hole,
}

/// The targets of a table of the input, `None` for entries that cannot be selected; none if it is not a table.
pub(crate) fn targets(walk: &Walk<'_, '_>, table: TableReference) -> Vec<Option<u64>> {
    let target = |entry| match entry {
        Entry::To(target) => Some(target),
        Entry::Unreachable | Entry::Hole => None,
    };
    input_entries(walk, table).into_iter().map(target).collect()
}

/// The targets of the input's entries; none if it is not a table.
fn input_entries(walk: &Walk<'_, '_>, table: TableReference) -> Vec<Entry> {
    let mut targets = Vec::new();
    let side = walk.input;
    let Some(from) = side.function_at(table.from) else { return targets };
    let Some(section_end) = side.image.section_at(table.input).map(|section| section.end()).or_else(|| {
        let tail = side.image.tail(table.input)?;
        Some(table.input + tail.len() as u64)
    }) else {
        return targets;
    };
    let group = walk.survey.find(from);
    // A copy may go on: whoever made it need not know where the next table begins.
    let is_copy = table.input != table.output;
    let next = walk.survey.next_reference(table.input);
    let end = if is_copy { section_end } else { section_end.min(next) };
    let mut place = table.input;
    let mut limit = None;
    let width = u64::from(table.width);
    while place + width <= end {
        let Some(target) = entry(side, table.input, place, table.width) else { break };
        let in_group = |address| side.function_at(address).is_some_and(|function| walk.survey.find(function) == group);
        let meets_instruction = side.code.index(target).is_some_and(|index| walk.survey.may_be_instruction(index));
        // A cold part that only the table leads to is in no group; the bounds check vouches for the entry then, or that nothing else names it.
        let is_orphan = |address| side.function_at(address).is_some_and(|function| walk.survey.is_orphan(function));
        let is_bounded =
            |limit: &mut Option<usize>| targets.len() < *limit.get_or_insert_with(|| bound(walk, table.from).unwrap_or(0));
        // What follows the function is no part of it where a function begins, though it may be in the group: by a tail call.
        let is_next_function = target == side.function(from).1 && walk.survey.begins_function(side, target);
        if meets_instruction && in_group(target) && !is_next_function {
            targets.push(Entry::To(target));
        } else if !targets.is_empty() && (is_next_function || !in_group(target) && target > 0 && in_group(target - 1)) {
            targets.push(Entry::Unreachable);
        } else if !targets.is_empty() && target == 0 && table.width == 8 && !is_copy {
            targets.push(Entry::Hole);
        } else if meets_instruction && (is_bounded(&mut limit) || is_orphan(target)) {
            targets.push(Entry::To(target));
        } else {
            break;
        }
        place += width;
    }
    let is_own = |&entry: &Entry| match entry {
        Entry::To(target) => side.function_at(target).is_some_and(|function| walk.survey.find(function) == group),
        Entry::Unreachable | Entry::Hole => false,
    };
    while targets.last() == Some(&Entry::Hole) {
        targets.pop();
    }
    // A short string may be the distance to an instruction by chance; two in a row are none.
    if targets.len() < 2 {
        targets.clear();
    }
    // Entries that all lead elsewhere are believed only where the code counts them and all are there: other numbers may look like one.
    if !targets.iter().any(is_own) && bound(walk, table.from).is_none_or(|count| targets.len() < count) {
        targets.clear();
    }
    targets
}

/// The number of entries by a comparison with an unsigned branch, or a mask, right before the instruction that names the table. Only
/// if the jump follows closely as well: a `lea` that was hoisted has other comparisons around it.
fn bound(walk: &Walk<'_, '_>, from: u64) -> Option<usize> {
    let side = walk.input;
    let (_, end) = side.function(side.function_at(from)?);
    let mut address = from;
    let mut mask = None;
    for position in 0..=BOUND_WINDOW {
        let inst = side.inst(address).filter(|_| address < end)?;
        // Between the two, too, an index may be cut to size.
        mask = mask.or_else(|| entries_by(side.code.bytes(address, inst), None));
        match inst.kind {
            Kind::IndirectJump if mask.is_some() => return mask,
            Kind::IndirectJump => break,
            Kind::Branch => return None,
            _ if inst.ends_flow() || position == BOUND_WINDOW => return None,
            _ => address += u64::from(inst.len),
        }
    }
    let begins_here = |address| side.function_at(address).is_some_and(|function| side.function(function).0 == address);
    let mut next: Option<(u64, Inst)> = None;
    let mut address = from;
    for position in 0..BOUND_WINDOW {
        let (before, inst) = instruction_before(walk, address)?;
        // Where each block has a frame description, one that runs on into the next ends with a jump there.
        let runs_on = inst.kind == Kind::Jump && side.target(before, inst) == address;
        if (begins_here(address) || inst.ends_flow()) && !runs_on {
            return None;
        }
        let branch = next.filter(|_| position > 0).map(|(address, inst)| (side.code.bytes(address, inst), inst.kind));
        if let Some(found) = entries_by(side.code.bytes(before, inst), branch) {
            return Some(found);
        }
        (next, address) = (Some((before, inst)), before);
    }
    None
}

/// The instruction that ends where another begins, as linear decoding meets it.
pub(crate) fn instruction_before(walk: &Walk<'_, '_>, address: u64) -> Option<(u64, Inst)> {
    let side = walk.input;
    (1..=15).find_map(|size| {
        let before = address.checked_sub(size)?;
        side.code.index(before).filter(|&index| walk.survey.may_be_instruction(index))?;
        side.inst(before).filter(|inst| u64::from(inst.len) == size).map(|inst| (before, inst))
    })
}

/// The number of values that pass a comparison and the branch after it, or a mask.
fn entries_by(bytes: &[u8], next: Option<(&[u8], Kind)>) -> Option<usize> {
    let shape = Shape::of(bytes);
    let opcode = *bytes.get(shape.opcode)?;
    let operation = *bytes.get(shape.modrm)? >> 3 & 7;
    let byte = usize::from(*bytes.last()?);
    if (shape.map, operation) == (0, 4) && matches!(opcode, 0x80 | 0x83) {
        return ((byte + 1).is_power_of_two() && byte < 0x80).then_some(byte + 1);
    }
    let immediate = match (shape.map, opcode, operation) {
        (0, 0x80, 7) | (0, 0x3c, _) => byte,
        (0, 0x83, 7) if byte < 0x80 => byte,
        (0, 0x81, 7) | (0, 0x3d, _) => {
            let field = bytes.get(bytes.len().checked_sub(4)?..)?;
            u32::from_le_bytes(field.try_into().ok()?) as usize
        }
        _ => return None,
    };
    let (branch, Kind::Branch) = next? else { return None };
    match branch.get(Shape::of(branch).opcode)? & 15 {
        2 | 3 => Some(immediate),
        6 | 7 => Some(immediate.saturating_add(1)),
        _ => None,
    }
}
