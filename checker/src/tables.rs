//! Jump tables: offsets to a base, the one class of code address without metadata.
//!
//! **Recognition.** A `lea` of data whose first word, added to the address, meets an instruction of the same function is the base of a table:
//! the distance from data to a function's instructions is not a value that other data has. The same holds for a table of absolute
//! addresses in a file at a fixed address. Functions that jump into each other's middle count as one. Where a bounds check precedes the
//! `lea` and a jump follows it, or the jumps that add its address have such checks, entries within the bound may meet any function: a cold part may be reached by nothing else. No compiler
//! makes a table of one entry, but strings of three letters meet instructions.
//!
//! **Extent.** A table ends where its section ends, where the next thing begins that any instruction refers to, or before the first word that
//! does not meet an instruction of the function. A comparison with a constant right before the `lea` bounds it too; of several instructions that name it the one with most entries counts. Up to that bound, or
//! without one up to the extent, entries must correspond. What lies between, and in a copied table behind, asks for nothing; it is explained if what it leads
//! to corresponds for other reasons, or, where that is reached in one file alone, if a comparison of both finds them equal. So does what leads from a jump that is made where there is a frame to the
//! beginning of the function right behind, which has none: compilers leave that where a case never comes.

mod bounds;
mod copies;
mod named;
mod running_on;
mod survey;

use crate::decode::Kind;
use crate::prove::never_changes;
use crate::report::ViolationKind;
use crate::walk::{Displaced, Pair, Reach, Side, Walk};
pub(crate) use bounds::instruction_before;
use bounds::{bound, num_compared};
pub(crate) use copies::{Copies, report_mixed, report_other_uses};
use named::goes_to_call;
pub(crate) use named::{may_be_jumped_through, may_jump_to_labels};
pub(crate) use running_on::running_on;
pub(crate) use survey::Survey;

/// Instructions between the one that names a table and the jump.
const BEFORE_JUMP_MAX: usize = 16;

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

/// Whether a reference names the same data in both files, or what is a table in the input.
pub(crate) fn may_be_moved(walk: &Walk<'_, '_>, table: TableReference) -> bool {
    table.input == table.output || !input_entries(walk, table).is_empty()
}

/// Reads a table in both files, and asks for the pairs of its entries.
pub(crate) fn read(walk: &mut Walk<'_, '_>, table: TableReference) {
    let entries = entries_there(walk, table);
    if is_other_data(walk, table, &entries) {
        return;
    }
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
        walk.copies.note(table, walk.survey.group_of(function), walk.survey.is_apart(function), is_table);
        if is_table && !is_followed {
            walk.copies.note_moved(table, walk.survey.group_of(function));
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
    let bound = num_compared(walk, table.from);
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
        if input == Entry::Unreachable {
            walk.never_selected.insert(table.input + position as u64 * width);
        }
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
        if !is_asked_for
            && let (Entry::To(input), Some(output)) = (input, output)
            && let Err(violation) = walk.compare_marks(input, output)
        {
            walk.violations.push(violation);
        }
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

/// Whether the jump that straight code behind an instruction ends with is made where a function has a frame: it leads to no function's beginning then.
fn has_frame_at_jump(side: &Side<'_>, from: u64) -> bool {
    let mut address = from;
    for _ in 0..BEFORE_JUMP_MAX {
        match side.inst(address) {
            Some(inst) if inst.kind == Kind::IndirectJump => {
                return side.unwind.fde_at(address).is_some() && !side.unwind.has_no_frame(address);
            }
            Some(inst) if matches!(inst.kind, Kind::Plain | Kind::Lea | Kind::Nop) => address += u64::from(inst.len),
            _ => return false,
        }
    }
    false
}

/// The targets of the input's entries; none if it is not a table.
fn input_entries(walk: &Walk<'_, '_>, table: TableReference) -> Vec<Entry> {
    let entries = entries_there(walk, table);
    if is_other_data(walk, table, &entries) { Vec::new() } else { entries }
}

/// Whether what looks like a table is other data to who names it, and no copy of it: numbers may look like distances to code, and where a table begins, an array may end for a function that is in one group with the
/// table's because it ends with a call of that.
fn is_other_data(walk: &Walk<'_, '_>, table: TableReference, entries: &[Entry]) -> bool {
    table.input == table.output && !entries.is_empty() && !may_be_jumped_through(walk, table.from)
}

/// The same, whatever the function does that names it.
fn entries_there(walk: &Walk<'_, '_>, table: TableReference) -> Vec<Entry> {
    let mut targets = Vec::new();
    let side = walk.input;
    let Some(from) = side.function_at(table.from) else { return targets };
    let section = side.image.section_at(table.input);
    let Some(section_end) = section.map(|section| section.end()).or_else(|| {
        let tail = side.image.tail(table.input)?;
        Some(table.input + tail.len() as u64)
    }) else {
        return targets;
    };
    let group = walk.survey.group_of(from);
    // A copy may go on, behind the bound too: whoever made it need not know where the next table begins. It has nothing of what the program writes into the table.
    let is_copy = table.input != table.output;
    let may_be_written = || match section {
        Some(section) => section.is_writable(),
        None => !never_changes(&side.image, table.input, u64::from(table.width)),
    };
    if is_copy && may_be_written() {
        return targets;
    }
    let next = walk.survey.next_reference(table.input);
    let end = if is_copy { section_end } else { section_end.min(next) };
    let mut place = table.input;
    let mut limit = None;
    let width = u64::from(table.width);
    while place + width <= end {
        let Some(target) = entry(side, table.input, place, table.width) else { break };
        let in_group = |address| side.function_at(address).is_some_and(|function| walk.survey.group_of(function) == group);
        let meets_instruction = side.code.index(target).is_some_and(|index| walk.survey.may_be_instruction(index));
        // A cold part that only the table leads to is in no group; the bounds check vouches for the entry then, or that nothing else names it.
        let is_orphan = |address| side.function_at(address).is_some_and(|function| walk.survey.is_orphan(function));
        // It may stand right behind the function, too, where entries lead that cannot be selected: what has a frame where it begins is no function.
        let is_part = |address| is_orphan(address) && side.unwind.fde_at(address).is_some() && !side.unwind.has_no_frame(address);
        let num_compared = || num_compared(walk, table.from).unwrap_or(0);
        let is_bounded = |limit: &mut Option<usize>| targets.len() < *limit.get_or_insert_with(num_compared);
        let is_behind_bound = |limit: Option<usize>| limit.is_some_and(|limit| (2..=targets.len()).contains(&limit));
        // What follows the function is no part of it where a function begins, though it may be in the group: by a tail call.
        let is_next_function = target == side.function(from).1 && walk.survey.begins_function(side, target);
        // An entry that the code counts is selected, wherever it leads, but for the next function's beginning where there is a frame, which compilers leave for what never comes.
        let is_left = is_next_function && has_frame_at_jump(side, table.from) && side.unwind.has_no_frame(target);
        let is_counted = |limit: &mut Option<usize>| !is_left && walk.survey.begins_function(side, target) && is_bounded(limit);
        if meets_instruction && in_group(target) && !is_next_function {
            targets.push(Entry::To(target));
        } else if !(targets.is_empty() && !is_bounded(&mut limit) || meets_instruction && is_counted(&mut limit))
            && (is_next_function || !in_group(target) && !is_part(target) && target > 0 && in_group(target - 1))
        {
            targets.push(Entry::Unreachable);
        } else if !targets.is_empty() && target == 0 && table.width == 8 && !is_copy {
            targets.push(Entry::Hole);
        } else if meets_instruction && (is_bounded(&mut limit) || is_orphan(target) || is_copy && is_behind_bound(limit)) {
            targets.push(Entry::To(target));
        } else {
            break;
        }
        place += width;
    }
    let is_own = |&entry: &Entry| match entry {
        Entry::To(target) => side.function_at(target).is_some_and(|function| walk.survey.group_of(function) == group),
        Entry::Unreachable | Entry::Hole => false,
    };
    while targets.last() == Some(&Entry::Hole) {
        targets.pop();
    }
    // A short string may be the distance to an instruction by chance; two in a row are none.
    if targets.len() < 2 {
        return Vec::new();
    }
    // Entries that all lead elsewhere are believed only where the code counts them and all are there: other numbers may look like one.
    if !targets.iter().any(is_own) && bound(walk, table.from).is_none_or(|count| targets.len() < count) {
        targets.clear();
    }
    targets
}
