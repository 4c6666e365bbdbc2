//! Code that no pair reaches: dead code, and what only an unread reference leads to.
//!
//! **Method.** In a file at a fixed address without the linker's relocations any constant may name code, so that every function must still
//! be found at its old address: unreached ones are walked from there. What is left becomes a graph of [`pieces`] of both files, and the coarsest [`partition`] in which equal pieces lead to equal
//! pieces is their bisimilarity: equal dead functions, which nothing tells apart, are one class, however many there are and whatever calls
//! whom. A piece of the output is explained by any piece of the input of its class, a function of the input by any piece of the output.
//! Pieces without a partner are then compared with all code of the other file that begins alike, reached or not (copies, and
//! pieces that begin in the middle of another). Equal content says nothing of dead code that was changed, that runs on into changed code, or that stands where what lies behind a call can be taken
//! for its way on: functions still without a counterpart are walked in lock-step with what is left of the output, as a guess that must hold to the end, and what leads to those that were found is compared again.
//! So is the rest of a reached function that only a proof knows, since a copy does its work: it is proven from there. What stands behind a call that never returns is compared with what stands there in the input, if nothing
//! else was found for it. At last every byte of the output's code is passed by the walk, a piece with a partner,
//! padding, a table, or the same byte as at the same address of the input.
//!
//! **Invariant.** Whatever is unreached in the output does what unreached or other code of the input does, for ever.
//!
//! **Terminates**: each leader is walked once; the graph is finite, and refined twice and once more for each function that a guess has found.

mod choice;
mod graph;
mod leaders;
mod missing;
mod partition;
mod pieces;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::decode::{Inst, Kind, UD2};
use crate::report::ViolationKind;
use crate::walk::{Bits, Pair, Reach, Side, Stands, Walk};
use choice::{Answer, Open};
use graph::{Graph, Node, Owner};
use leaders::leaders;
pub(crate) use missing::by_offsets;
use partition::Partition;
use pieces::{End, Of, Tables};

/// Pairs of functions and pieces that are tried where content differs.
const CHANGED_MAX: usize = 10_000;

/// Pairs of pieces that are proven, which takes longer.
const DEAD_MAX: usize = 512;

/// Explains what is left of both sides, then reports what stays.
pub(crate) fn settle(walk: &mut Walk<'_, '_>) {
    let keeps_old_text = walk.keeps_old_text();
    walk.settle();
    crate::tables::read_arguments(walk);
    walk.settle_tries(|reach| reach == Reach::Pointer || keeps_old_text);
    walk.try_doubtful();
    if keeps_old_text {
        walk_old_text(walk);
    }
    crate::tables::read_arguments(walk);
    walk.old_bodies = crate::remains::old_bodies(walk);
    walk.find_counted();
    walk.find_places_side_by_side();
    walk.find_bounded();
    walk.find_ordered();
    walk.find_pages();
    walk.walk_kept_whole();
    let mut roots = Roots::of(walk);
    let tables = graph::tables_named(walk, false);
    let mut found = match_pieces(walk, &roots, &tables, &FxHashSet::default(), false);
    std::mem::take(&mut found.matched).mark(walk);
    let unmatched = found.unmatched.iter().filter(|&&(address, _)| is_uncovered(walk, address)).map(|&(_, label)| label);
    let sought: FxHashSet<u64> = unmatched.chain(found.missing.iter().map(|&(_, label)| label)).collect();
    if !sought.is_empty() {
        let beginnings = beginnings(walk, &found);
        let tables = graph::tables_named(walk, true);
        roots.extend(walk, &tables, &sought, &beginnings);
        found = found.again(walk, &roots, &tables, false);
        let mut tries = CHANGED_MAX;
        while match_changed(walk, &found, &mut tries) {
            found = found.again(walk, &roots, &tables, false);
        }
        if match_dead(walk, &found, &roots, &tables) {
            found = found.again(walk, &roots, &tables, false);
        }
        if found.unmatched.iter().any(|&(address, _)| is_uncovered(walk, address)) && walk.try_again() {
            found = found.again(walk, &roots, &tables, false);
        }
        // Seldom needed, and another comparison of everything.
        if found.unmatched.iter().any(|&(address, _)| is_uncovered(walk, address)) {
            found = found.again(walk, &roots, &tables, true);
        }
    }
    crate::tables::read_arguments(walk);
    walk.settle_doubtful();
    missing::report(walk, &found.missing);
    walk.settle_all(true);
    crate::tables::read_arguments(walk);
    walk.settle_guesses();
    walk.walk_kept_whole();
    walk.report_returns();
    walk.report_places();
    walk.report_told_returns();
    walk.report_bounds();
    walk.report_system_calls();
    walk.report_sequences();
    walk.cover_dead_ways();
    report_unexplained(walk);
}

/// Functions of the input without a counterpart are tried at what is left of the output: their instructions may have changed, which equal content does not
/// know of. Whether one was found, so that what leads to it can be compared again. What has a frame description has one in the output, and no function begins with padding: there is more of
/// that than can be tried. Where there is too much of anything, functions are tried at what begins with an equal piece: what leads to something that was changed need not have changed itself.
fn match_changed(walk: &mut Walk<'_, '_>, found: &Found, tries: &mut usize) -> bool {
    let begins = |output: &Side<'_>, at| {
        output.unwind.fde_at(at).is_some() && output.inst(at).is_some_and(|inst| !matches!(inst.kind, Kind::Nop | Kind::Trap))
    };
    let is_left = |&&(at, _): &&(u64, u64)| is_uncovered(walk, at) && begins(walk.output, at);
    let starts: Vec<(u64, u64)> = found.unmatched.iter().filter(is_left).copied().collect();
    let are_few = found.missing.len().saturating_mul(starts.len()) <= *tries;
    let key = |label: u64| if are_few { 0 } else { label };
    let mut by_key: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
    starts.into_iter().for_each(|(at, label)| by_key.entry(key(label)).or_default().push(at));
    let mut has_found = false;
    for &(number, label) in &found.missing {
        // What a table leads to is compared too late for a guess.
        if has_table(walk.input, number) {
            continue;
        }
        let input = walk.input_leads_to(walk.input.unwind.fdes[number as usize].start);
        for &output in by_key.get(&key(label)).into_iter().flatten() {
            if *tries == 0 || !is_uncovered(walk, output) {
                continue;
            }
            *tries -= 1;
            if walk.attempt(Pair::new(input, output, output, Reach::Flow)) {
                has_found = true;
                break;
            }
        }
        walk.settle();
    }
    has_found
}

/// Code of the output that nothing leads to any more, since a copy made for the usual way does its work, runs on into code that may have been changed: it is compared once more, and proven, with code that
/// begins with an equal piece and is reached in the input. (What is reached in neither is called by nobody that is known, and a proof would ask for nothing.) Whether some was found.
fn match_dead(walk: &mut Walk<'_, '_>, found: &Found, roots: &Roots, tables: &Tables) -> bool {
    let is_left = |&&(at, _): &&(u64, u64)| is_uncovered(walk, at);
    let left: Vec<(u64, u64)> = found.unmatched.iter().filter(is_left).copied().collect();
    if left.is_empty() {
        return false;
    }
    let mut by_label: FxHashMap<u64, Vec<u64>> = left.iter().map(|&(_, label)| (label, Vec::new())).collect();
    let reader = pieces::Reader { walk, of: Of::Input, tables };
    let is_reached = |at: u64| walk.input.code.index(at).is_some_and(|index| walk.relation.seen.contains(index));
    for &input in roots.input.iter().filter(|&&at| is_reached(at)) {
        if let Some(alike) = by_label.get_mut(&reader.piece(input, |_, _| {}).label) {
            alike.push(input);
        }
    }
    let (mut has_found, mut tries) = (false, DEAD_MAX);
    for (output, label) in left {
        for &input in by_label.get(&label).into_iter().flatten() {
            if tries == 0 || !is_uncovered(walk, output) {
                break;
            }
            tries -= 1;
            let guess = Pair::new(input, output, output, Reach::Flow);
            has_found |= walk.attempt(guess) || walk.attempt_proof(guess);
        }
        walk.settle();
    }
    has_found
}

fn has_table(side: &Side<'_>, number: u32) -> bool {
    let fde = &side.unwind.fdes[number as usize];
    let mut address = fde.start;
    while let Some(inst) = side.inst(address).filter(|_| address < fde.end) {
        if inst.kind == Kind::IndirectJump {
            return true;
        }
        address += u64::from(inst.len);
    }
    false
}

fn is_uncovered(walk: &Walk<'_, '_>, address: u64) -> bool {
    walk.output.code.index(address).is_some_and(|index| !walk.relation.covered.contains(index))
}

/// Where a constant may be an address that nobody sees, functions that nothing else reaches may be found where they were: there they stay, or
/// a jump leads to where they went. Then comes old text behind entries that now lead elsewhere.
fn walk_old_text(walk: &mut Walk<'_, '_>) {
    for (_, address) in unreached_functions(walk) {
        walk.attempt(Pair::new(address, address, address, Reach::Flow));
        walk.settle();
    }
    for address in leaders(walk, Of::Output) {
        if is_uncovered(walk, address) && walk.is_untouched(address) {
            walk.attempt(Pair::new(address, address, address, Reach::Flow));
            walk.settle();
        }
    }
    walk.settle_tries(|_| true);
}

/// Where the pieces that are compared begin.
struct Roots {
    input: Vec<u64>,
    output: Vec<u64>,
    /// By frame description of the input that was not reached: where its code begins.
    functions: Vec<(u32, u64)>,
}

impl Roots {
    fn of(walk: &mut Walk<'_, '_>) -> Self {
        let functions: Vec<(u32, u64)> = unreached_functions(walk);
        let mut input = leaders::changed(walk, Of::Input).starts;
        input.extend(functions.iter().map(|&(_, start)| start));
        let output = leaders::changed(walk, Of::Output);
        output.same.mark(walk, false);
        walk.stats.identical_bytes += output.num_same_bytes;
        Self { input, output: output.starts, functions }
    }

    /// Adds all code that begins a piece with a label that is sought. Traps are all alike, and fill most of what functions have left: one of the input's for each label is enough, and none of the output's needs a partner.
    fn extend(&mut self, walk: &Walk<'_, '_>, tables: &Tables, sought: &FxHashSet<u64>, beginnings: &Beginnings) {
        for (of, roots) in [(Of::Input, &mut self.input), (Of::Output, &mut self.output)] {
            let reader = pieces::Reader { walk, of, tables };
            let mut traps = FxHashSet::default();
            each_instruction(reader.side(), |address, inst| {
                let is_trap = inst.kind == Kind::Trap;
                // What is reached in the output is so in the input.
                let is_known = || of == Of::Output && (is_trap || reader.related(address).is_some());
                if !beginnings.contain(reader.side(), address, inst) || is_known() {
                    return;
                }
                let label = reader.piece(address, |_, _| {}).label;
                if sought.contains(&label) && (!is_trap || traps.insert(label)) {
                    roots.push(address);
                }
            });
        }
    }
}

/// What is the same of the first instruction of equal pieces, and quick to tell.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct Beginning(Kind, [u8; 15]);

impl Beginning {
    fn of(side: &Side<'_>, address: u64, inst: Inst) -> Self {
        let mut bytes = [0; 15];
        let known = if Self::is_whole(side, inst) { side.code.bytes(address, inst) } else { &[] };
        bytes[..known.len()].copy_from_slice(known);
        Self(inst.kind, bytes)
    }

    /// Whether no part of it may move.
    fn is_whole(side: &Side<'_>, inst: Inst) -> bool {
        inst.kind == Kind::Plain && inst.disp == 0 && !side.image.is_position_dependent()
    }
}

/// The first instructions of some pieces.
struct Beginnings {
    all: FxHashSet<Beginning>,
    /// Whether one of them has a first byte, zero where that may move.
    has: [bool; 256],
}

impl Beginnings {
    fn of(all: FxHashSet<Beginning>) -> Self {
        let mut has = [false; 256];
        all.iter().for_each(|beginning| has[usize::from(beginning.1[0])] = true);
        Self { all, has }
    }

    fn contain(&self, side: &Side<'_>, address: u64, inst: Inst) -> bool {
        let first =
            if Beginning::is_whole(side, inst) { side.code.bytes(address, inst).first().copied().unwrap_or(0) } else { 0 };
        self.has[usize::from(first)] && self.all.contains(&Beginning::of(side, address, inst))
    }
}

/// The first instructions of pieces without a partner.
fn beginnings(walk: &Walk<'_, '_>, found: &Found) -> Beginnings {
    let of = |side: &Side<'_>, address| side.inst(address).map(|inst| Beginning::of(side, address, inst));
    let output = found.unmatched.iter().filter(|&&(address, _)| is_uncovered(walk, address));
    let output = output.filter_map(|&(address, _)| of(walk.output, address));
    let starts = found.missing.iter().map(|&(number, _)| walk.input.unwind.fdes[number as usize].start);
    let input = starts.filter_map(|start| of(walk.input, walk.input_leads_to(start)));
    Beginnings::of(output.chain(input).collect())
}

/// Functions of the input that were not reached.
fn unreached_functions(walk: &Walk<'_, '_>) -> Vec<(u32, u64)> {
    let input = walk.input;
    let mut found = Vec::new();
    for (fde, number) in input.unwind.fdes.iter().zip(0..) {
        if walk.is_replaced(fde.start) {
            continue;
        }
        let address = walk.input_leads_to(fde.start);
        if input.code.index(address).is_none_or(|index| walk.relation.seen.contains(index)) || address >= fde.end {
            continue;
        }
        found.push((number, address));
    }
    found
}

/// What came of a comparison.
struct Found {
    matched: Matched,
    /// Pieces of the output without a partner, with their labels.
    unmatched: Vec<(u64, u64)>,
    /// Functions of the input without a counterpart, with their labels.
    missing: Vec<(u32, u64)>,
    /// The labels of all unreached pieces.
    labels: FxHashSet<u64>,
}

impl Found {
    /// The same with more code to compare, or more that is known. What one comparison has found stays found, though another one may have chosen otherwise where the output does
    /// not tell: each is a proof by itself.
    fn again(self, walk: &mut Walk<'_, '_>, roots: &Roots, tables: &Tables, by_context: bool) -> Self {
        let mut found = match_pieces(walk, roots, tables, &self.labels, by_context);
        std::mem::take(&mut found.matched).mark(walk);
        let before: FxHashSet<u32> = self.missing.iter().map(|&(number, _)| number).collect();
        found.missing.retain(|(number, _)| before.contains(number));
        found
    }
}

/// What the pieces with a partner explain.
#[derive(Default)]
struct Matched {
    input: Passed,
    output: Passed,
    /// Place, number of entries, and width of tables.
    tables: Vec<(u64, u64, u8)>,
    pieces: u64,
}

/// Instructions, those side by side as one: start and size.
#[derive(Default)]
struct Passed(Vec<(u64, u64)>);

impl Passed {
    fn push(&mut self, address: u64, inst: Inst) {
        let len = u64::from(inst.len);
        match self.0.last_mut().filter(|(start, size)| *start + *size == address) {
            Some((_, size)) => *size += len,
            None => self.0.push((address, len)),
        }
    }

    fn mark(self, walk: &mut Walk<'_, '_>, is_input: bool) {
        let side = if is_input { walk.input } else { walk.output };
        for address in self.0.into_iter().flat_map(|(start, size)| start..start + size) {
            if let Some(index) = side.code.index(address) {
                walk.relation.pass(is_input, index, 1);
            }
        }
    }
}

fn match_pieces(walk: &Walk<'_, '_>, roots: &Roots, tables: &Tables, wanted: &FxHashSet<u64>, by_context: bool) -> Found {
    let mut graph = Graph::new(walk, tables, wanted);
    for &root in &roots.input {
        graph.add(Of::Input, root);
    }
    let started: Vec<(u64, u32)> = roots.output.iter().map(|&root| (root, graph.add(Of::Output, root))).collect();
    graph.add_tables();
    let partition = choice::solve(&mut graph.nodes, &graph.shapes, by_context);
    let in_input = classes_of(&graph, &partition, Of::Input);
    let in_output = classes_of(&graph, &partition, Of::Output);

    let mut found =
        Found { matched: Matched::default(), unmatched: Vec::new(), missing: Vec::new(), labels: FxHashSet::default() };
    let unreached = graph.nodes.iter().filter(|node| node.owner != Owner::Both);
    found.labels = unreached.map(|node| node.label).collect();
    for (node, id) in graph.nodes.iter().zip(0..) {
        let class = partition.class(id);
        match node.owner {
            Owner::Only(Of::Output) if in_input.contains(&class) => found.matched.add(&graph, Of::Output, node),
            Owner::Only(Of::Output) => found.unmatched.push((node.address, node.label)),
            Owner::Only(Of::Input) if in_output.contains(&class) => found.matched.add(&graph, Of::Input, node),
            _ => {}
        }
    }
    // A jump to what is explained does nothing.
    for (root, id) in started {
        if in_input.contains(&partition.class(id)) {
            found.matched.lead(&graph, Of::Output, root);
        }
    }
    for &(number, start) in &roots.functions {
        let id = graph.id(Of::Input, start);
        if let Some(id) = id.filter(|&id| !in_output.contains(&partition.class(id))) {
            found.missing.push((number, graph.nodes[id as usize].label));
        }
    }
    found
}

/// The classes that have a node of a file.
fn classes_of(graph: &Graph<'_, '_, '_>, partition: &Partition, of: Of) -> FxHashSet<u32> {
    let nodes = graph.nodes.iter().zip(0..);
    nodes.filter(|(node, _)| [Owner::Only(of), Owner::Both].contains(&node.owner)).map(|(_, id)| partition.class(id)).collect()
}

impl Matched {
    fn add(&mut self, graph: &Graph<'_, '_, '_>, of: Of, node: &Node) {
        let reader = graph.reader(of);
        let passed = if of == Of::Input { &mut self.input } else { &mut self.output };
        let piece = reader.piece(node.address, |address, inst| passed.push(address, inst));
        match piece.end {
            End::Flow(next) => self.lead(graph, of, next),
            End::Ways(even, odd) => [even, odd].into_iter().for_each(|way| self.lead(graph, of, way)),
            End::Names { after, .. } | End::MayName { after: Some(after), .. } => self.lead(graph, of, after),
            End::Call { at, inst, .. } if node.answer == Some(Answer::GoesOn) => self.lead(graph, of, at + u64::from(inst.len)),
            _ => {}
        }
        if of == Of::Output {
            self.pieces += 1;
            if let (Some(Open::Field(field)), Some(Answer::Table(shape))) = (&node.open, node.answer) {
                self.tables.push((field.value, graph.shapes.get(shape).len() as u64, field.width));
            }
        }
    }

    /// The jumps and the padding on the way to a piece.
    fn lead(&mut self, graph: &Graph<'_, '_, '_>, of: Of, address: u64) {
        let passed = if of == Of::Input { &mut self.input } else { &mut self.output };
        graph.reader(of).flow(address, |address, inst| passed.push(address, inst));
    }

    fn mark(self, walk: &mut Walk<'_, '_>) {
        self.input.mark(walk, true);
        self.output.mark(walk, false);
        walk.stats.matched_by_content += self.pieces;
        for (start, entries, width) in self.tables {
            for place in (0..entries).map(|position| start + position * u64::from(width)) {
                walk.explain_entry(place, width);
            }
        }
    }
}

/// The frame descriptions and the gaps between them, by address.
fn ranges(side: &Side<'_>) -> Vec<(u64, u64)> {
    let mut ranges = Vec::new();
    for area in side.code.areas() {
        let mut at = area.start;
        let first = side.unwind.fdes.partition_point(|fde| fde.end <= area.start);
        for fde in side.unwind.fdes[first..].iter().take_while(|fde| fde.start < area.end()) {
            if at < fde.start {
                ranges.push((at, fde.start));
            }
            if at < fde.end {
                ranges.push((fde.start.max(at), fde.end.min(area.end())));
                at = fde.end;
            }
        }
        if at < area.end() {
            ranges.push((at, area.end()));
        }
    }
    ranges
}

/// Calls `visit` with each instruction that linear decoding meets.
pub(crate) fn each_instruction(side: &Side<'_>, mut visit: impl FnMut(u64, Inst)) {
    for (start, end) in ranges(side) {
        each_instruction_between(side, (start, end), |address, inst| {
            visit(address, inst);
            address + u64::from(inst.len)
        });
    }
}

/// The same of the frame descriptions, and the gaps between them, in which something was not passed. What was passed as data ends where it ends, whatever instruction it seems to be the beginning of.
fn each_instruction_left(side: &Side<'_>, passed: &Bits, mut visit: impl FnMut(u64, Inst)) {
    for (start, end) in ranges(side) {
        let first = side.code.index(start);
        if first.is_some_and(|first| passed.contains_all(first..first + (end - start) as usize)) {
            continue;
        }
        each_instruction_between(side, (start, end), |address, inst| {
            let size = usize::from(inst.len);
            let of_data = side.code.index(address).filter(|&index| passed.contains(index));
            let of_data = of_data.map(|index| passed.first_outside(index) - index).filter(|&num_passed| num_passed < size);
            if of_data.is_none() {
                visit(address, inst);
            }
            address + of_data.unwrap_or(size) as u64
        });
    }
}

/// Decodes from one address to another; `visit` says where the next instruction begins.
fn each_instruction_between(side: &Side<'_>, (start, end): (u64, u64), mut visit: impl FnMut(u64, Inst) -> u64) {
    // Zeros that begin a gap between functions are no code, nor are those behind filler: the end of padding, of which the beginning was freed.
    let behind_zeros = |address: u64| {
        let bytes = side.image.at(address, (end - address) as usize).unwrap_or(&[]);
        address + bytes.iter().take_while(|&&byte| byte == 0).count() as u64
    };
    let is_gap = side.unwind.fde_at(start).is_none();
    let mut address = if is_gap { behind_zeros(start) } else { start };
    while address < end {
        let Some(inst) = side.inst(address) else {
            address += 1;
            continue;
        };
        let next = visit(address, inst);
        address = if is_gap && inst.kind == Kind::Trap { behind_zeros(next.min(end)) } else { next };
    }
}

/// Where the input has an `endbr64`, if the output has one at an address and what stands behind each is the same.
fn mark_before(walk: &Walk<'_, '_>, address: u64) -> Option<u64> {
    let mark = walk.output.inst(address).filter(|inst| inst.kind == Kind::EndBranch)?;
    let behind = walk.output.code.index(address + u64::from(mark.len))?;
    let Stands::For(index) = walk.relation.input_of(behind)? else { return None };
    let before = walk.input.code.address(index).checked_sub(u64::from(mark.len))?;
    walk.input.inst(before).filter(|inst| inst.kind == Kind::EndBranch).map(|_| before)
}

/// Where an old entry is looked for: up to where it was, in a row of bytes of which each may be asked about.
#[derive(Default)]
struct OldEntries {
    looked_to: u64,
}

impl OldEntries {
    const SHORT_REACH: u64 = 128;

    /// Whether an address is an old entry that now jumps to the function's copy, or lies before one that has no room for such a jump and goes by way of it.
    /// Addresses are asked for in ascending order; a jump that led nowhere from one is not tried again for the next.
    fn explain(&mut self, walk: &mut Walk<'_, '_>, address: u64) -> bool {
        let output = walk.output;
        let is_covered =
            |walk: &Walk<'_, '_>, at: u64| output.code.index(at).is_none_or(|index| walk.relation.covered.contains(index));
        let mut at = address.max(self.looked_to);
        while at < address + Self::SHORT_REACH && !is_covered(walk, at) {
            let Some(inst) = output.inst(at) else { break };
            if inst.kind == Kind::Jump
                && walk.input.code.index(at).is_some_and(|index| walk.survey.is_boundary(index))
                && walk.attempt(Pair::new(at, at, at, Reach::Flow))
                && is_covered(walk, address)
            {
                return true;
            }
            at += u64::from(inst.len);
        }
        self.looked_to = at;
        false
    }
}

fn report_unexplained(walk: &mut Walk<'_, '_>) {
    let output = walk.output;
    for area in output.code.areas() {
        let mut address = area.start;
        let mut old_entries = OldEntries::default();
        while address < area.end() {
            let Some(index) = output.code.index(address) else { break };
            let num_covered = (walk.relation.covered.first_outside(index) - index) as u64;
            if num_covered > 0 {
                address += num_covered.min(area.end() - address);
                continue;
            }
            if old_entries.explain(walk, address) {
                continue;
            }
            // A mark that jumps from the old address go past, since they have executed one there.
            if let Some(mark) = mark_before(walk, address)
                && walk.attempt(Pair::new(mark, address, address, Reach::Flow))
                && walk.relation.covered.contains(index)
            {
                continue;
            }
            if let Some(size) = explained_size(walk, address, area.end()) {
                address += size;
                continue;
            }
            if let Some(end) = end_of_unreached_call(walk, address) {
                address = end;
                continue;
            }
            let rest = (address..area.end())
                .take_while(|&at| output.code.index(at).is_some_and(|index| !walk.relation.covered.contains(index)));
            let size = rest.count() as u64;
            let name = output.image.section_at(address).map_or("code", |section| section.name);
            walk.report(
                ViolationKind::Unexplained,
                address,
                format!("up to {size} bytes of {name} correspond to nothing in the input"),
            );
            address += size;
        }
    }
}

/// Where an instruction ends that has this byte in its distance to a callee, in code without a frame description that nothing leads to: it stays, and calls the callee where that went.
fn end_of_unreached_call(walk: &mut Walk<'_, '_>, address: u64) -> Option<u64> {
    const DISTANCE: usize = 4;
    const LENGTH_MAX: u64 = 6;
    (1..LENGTH_MAX).filter_map(|before| address.checked_sub(before)).find_map(|at| {
        let (input, output) = (walk.input, walk.output);
        if input.unwind.fde_at(at).is_some() || output.unwind.fde_at(at).is_some() {
            return None;
        }
        let (inst, other) = (input.inst(at)?, output.inst(at)?);
        let opcode = output.code.bytes(at, other).len().checked_sub(DISTANCE)?;
        let is_same = inst == other && input.code.bytes(at, inst)[..opcode] == output.code.bytes(at, other)[..opcode];
        let is_in_distance = (opcode as u64..u64::from(inst.len)).contains(&(address - at));
        let reach = match inst.kind {
            Kind::Call => Reach::Call,
            Kind::Jump | Kind::Branch => Reach::Flow,
            _ => return None,
        };
        let pair = Pair::new(input.target(at, inst), output.target(at, other), at, reach);
        (is_same && is_in_distance && walk.attempt(pair)).then(|| at + u64::from(inst.len))
    })
}

/// The size of the padding or of the bytes that equal the input's at the same address.
fn explained_size(walk: &mut Walk<'_, '_>, address: u64, end: u64) -> Option<u64> {
    let inst = walk.output.inst(address);
    if let Some(inst) = inst
        && (matches!(inst.kind, Kind::Nop | Kind::Trap) || walk.output.code.bytes(address, inst) == UD2)
        && address + u64::from(inst.len) <= end
    {
        return Some(u64::from(inst.len));
    }
    if let Some(inst) = inst.filter(|inst| inst.kind == Kind::Jump && walk.leads_nowhere(address, *inst)) {
        return Some(u64::from(inst.len));
    }
    let byte = walk.output.image.at(address, 1)?;
    if byte == [0] {
        return Some(1);
    }
    let is_same = walk.input.image.in_code(address) && walk.input.image.at(address, 1) == Some(byte);
    walk.stats.identical_bytes += u64::from(is_same);
    is_same.then_some(1)
}
