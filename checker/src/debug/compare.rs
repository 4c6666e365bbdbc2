//! What both sides say of instructions that correspond.

use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use super::contents::{Contents, Source};
use super::facts::{self, Facts, Role, Single};
use super::timeline::{Interval, Timeline, mix};
use crate::decode::{self, Inst};
use crate::report::DebugReport;
use crate::walk::{Relation, Side, leads_to};

/// An instruction of the output and one of the input that it stands for.
#[derive(Copy, Clone, Debug)]
struct Standing {
    output: u64,
    input: u64,
    /// The input's call in whose place the output stands.
    call: Option<u64>,
    /// How far behind their starts the last bytes are, of calls.
    last: (u8, u8),
    means: Means,
    /// The `endbr64` before it in the input, if there is none in the output.
    lost_mark: Option<u64>,
}

/// What is known of an instruction of the output besides.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Means {
    /// All is as in the input.
    Same,
    /// The instruction is the same, registers may hold other values.
    Proven,
    /// It is another one.
    Changed,
}

/// What is found at an address.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Rows,
    Stops,
    Ranges,
    Locations,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Self::Rows => "rows of the line table",
            Self::Stops => "places to stop of the line table",
            Self::Ranges => "ranges",
            Self::Locations => "locations",
        }
    }
}

/// What is found at addresses of one file.
struct Timelines {
    rows: Timeline,
    stops: Timeline,
    ranges: Timeline,
    locations: Timeline,
}

/// What was counted so far.
#[derive(Default)]
struct Tally(DebugReport);

impl Tally {
    fn note(&mut self, is_same: bool, message: impl FnOnce() -> String) {
        self.0.compared += 1;
        if !is_same {
            self.0.different += 1;
            if self.0.messages.len() < DebugReport::MESSAGES_MAX {
                self.0.messages.push(message());
            }
        }
    }
}

pub(super) struct Comparison<'c, 'a> {
    input: &'c Side<'a>,
    output: &'c Side<'a>,
    relation: &'c Relation,
    /// Sorted by the output's address.
    standings: Vec<Standing>,
    /// Input instructions that share their place with others.
    sharing: FxHashSet<usize>,
}

impl<'c, 'a> Comparison<'c, 'a> {
    pub(super) fn of(input: &'c Side<'a>, output: &'c Side<'a>, relation: &'c Relation) -> Self {
        let mut standings: Vec<Standing> = relation
            .standing(output.code.size())
            .map(|(from, to, call)| {
                let means = match relation.is_proven(to) {
                    false => Means::Same,
                    true if is_same_instruction((input, from), (output, to)) => Means::Proven,
                    true => Means::Changed,
                };
                let (from, to) = (input.code.address(from), output.code.address(to));
                let lost_mark = lost_mark((input, from), (output, to));
                Standing { output: to, input: from, call, last: lasts_of_call((input, from), (output, to)), means, lost_mark }
            })
            .collect();
        standings.sort_unstable_by_key(|standing| (standing.output, standing.input, standing.call));
        let mut sharing = FxHashSet::default();
        for each in standings.chunk_by(|a, b| a.output == b.output).filter(|each| each.len() > 1) {
            sharing.extend(each.iter().filter_map(|standing| input.code.index(standing.input)));
        }
        Self { input, output, relation, standings, sharing }
    }

    /// Compares what two files say of the programs, which may be these themselves; an error where something can't be read.
    pub(super) fn run(&self, from: Source<'_, '_>, to: Source<'_, '_>) -> Result<DebugReport, String> {
        let (input, output) = (&self.input.image, &self.output.image);
        let is_moved = self.standings.iter().any(|standing| standing.input != standing.output);
        let of_input = |error| format!("the input's {error}");
        let contents = (Contents::read(from).map_err(of_input)?, Contents::read(to)?);
        if !contents.1.of(".debug_frame").is_empty() && is_moved {
            return Err(".debug_frame is there, but code has moved".to_owned());
        }
        if let Some(name) = contents.1.first_lost(&contents.0) {
            return Err(format!("{name} is not what it was"));
        }
        let before = Facts::read(input, &contents.0).map_err(of_input)?;
        let after = Facts::read(output, &contents.1)?;
        if let Some(unit) = before.elsewhere.filter(|_| is_moved) {
            return Err(format!("the unit at {unit:#x} has its entries in another file"));
        }
        let mut tally = Tally::default();
        self.compare_units(&before, &after, &contents, &mut tally)?;
        for origin in &after.origins {
            let is_same = before.origins.binary_search(origin).is_ok();
            tally.note(is_same, || format!("the call at {:#x} says that it calls something else", origin.0));
        }
        self.compare_singles(&before.singles, &after.singles, &mut tally);
        self.compare_instructions(&before, &after, &mut tally);
        Ok(tally.0)
    }

    /// Compares where the functions are that have a name which no other has.
    pub(super) fn run_names(&self, before: &[(&str, u64)], after: &[(&str, u64)]) -> DebugReport {
        let mut tally = Tally::default();
        let places: FxHashMap<&str, u64> = after.iter().copied().collect();
        for &(name, place) in before.iter().filter(|&&(_, place)| self.input.image.in_code(place)) {
            let other = places.get(name).copied();
            tally.note(self.is_place(place, other), || {
                let now = other.map_or_else(|| "nowhere".to_owned(), |other| format!("at {other:#x}"));
                format!("{} is {now} by the debug file's symbols; the input has it at {place:#x}", name.escape_debug())
            });
        }
        tally.0
    }

    /// What names no code.
    fn compare_units(
        &self,
        before: &Facts,
        after: &Facts,
        contents: &(Contents<'_>, Contents<'_>),
        tally: &mut Tally,
    ) -> Result<(), String> {
        if before.units.len() != after.units.len() {
            return Err(format!("there are {} units; the input has {}", after.units.len(), before.units.len()));
        }
        for (unit, other) in before.units.iter().zip(&after.units) {
            if unit.offset != other.offset {
                return Err(format!("a unit is at {:#x}; the input has it at {:#x}", other.offset, unit.offset));
            }
            if unit.fingerprint != other.fingerprint {
                let entries = facts::entries(&self.input.image, &contents.0, unit.offset)?;
                let others = facts::entries(&self.output.image, &contents.1, unit.offset)?;
                let same = entries.iter().zip(&others).take_while(|(entry, other)| entry == other).count();
                let place = entries.get(same).or(entries.last()).map_or(unit.offset, |entry| entry.0);
                tally.note(false, || format!("the entry at {place:#x} says something else"));
            }
            if unit.lines_of != other.lines_of {
                tally.note(false, || format!("the unit at {:#x} has another line table", unit.offset));
            }
        }
        Ok(())
    }

    /// Both in the order of entries and attributes.
    fn compare_singles(&self, before: &[Single], after: &[Single], tally: &mut Tally) {
        let returns = self.returns(before);
        let key = |single: &Single| (single.die, single.attribute);
        let mut rest = after;
        for each in before.chunk_by(|a, b| key(a) == key(b)) {
            let wanted = key(&each[0]);
            rest = &rest[rest.partition_point(|single| key(single) < wanted)..];
            let others = &rest[..rest.partition_point(|single| key(single) == wanted)];
            for (index, single) in each.iter().enumerate() {
                let address = others.get(index).map(|other| other.address);
                let is_same = self.is_counterpart(single, address, &returns);
                tally.note(is_same, || {
                    let now = address.map_or_else(|| "no address".to_owned(), |address| format!("{address:#x}"));
                    let attribute = match single.attribute {
                        0 => "first address".to_owned(),
                        code => gimli::DwAt(code).to_string(),
                    };
                    format!("{attribute} of the entry at {:#x} is {now}; the input has {:#x}", single.die, single.address)
                });
            }
            rest = &rest[others.len()..];
        }
        if after.len() > before.len() {
            tally.note(false, || "an entry names an address that has none in the input".to_owned());
        }
    }

    /// Where the output's calls end, by where the input's do that stand there, for the addresses that entries name.
    fn returns(&self, singles: &[Single]) -> FxHashMap<u64, Vec<u64>> {
        let wanted: FxHashSet<u64> =
            singles.iter().filter(|single| single.role == Role::Return).map(|single| single.address).collect();
        let mut returns: FxHashMap<u64, Vec<u64>> = FxHashMap::default();
        if wanted.is_empty() {
            return returns;
        }
        for standing in self.standings.iter().filter(|standing| standing.call.is_none()) {
            let (Some(a), Some(b)) = (self.input.inst(standing.input), self.output.inst(standing.output)) else { continue };
            let end = standing.input + u64::from(a.len);
            if wanted.contains(&end) {
                returns.entry(end).or_default().push(standing.output + u64::from(b.len));
            }
        }
        returns
    }

    /// Whether the output may name this address, or none, where the input names a single one.
    fn is_counterpart(&self, single: &Single, other: Option<u64>, returns: &FxHashMap<u64, Vec<u64>>) -> bool {
        let place = single.address;
        // Behind a section's last call there is no code.
        let behind = u64::from(single.role == Role::Return);
        if !self.input.image.in_code(place.wrapping_sub(behind)) {
            return other == Some(place);
        }
        let other = other.filter(|&other| self.output.image.in_code(other.wrapping_sub(behind)));
        if single.role == Role::Place {
            return self.is_place(place, other);
        }
        let ends = returns.get(&place);
        if ends.zip(other).is_some_and(|(ends, other)| ends.contains(&other) || self.is_only_proven(other)) {
            return true;
        }
        // Whose call it is nobody could tell who stops behind it.
        if other.is_none() && self.ends_shared(place) {
            return true;
        }
        if self.ends_rewritten_call(place) {
            return other.is_none() || self.is_place(place, other);
        }
        // If there is neither, the walk did not come to the call. If it did, the output's jump may be one that was made anew.
        self.is_left_by_jump(place, other, ends.is_none()).unwrap_or(ends.is_none())
    }

    /// Whether the output's address stands for the input's; of what the walk did not come to nobody can tell.
    fn is_place(&self, place: u64, other: Option<u64>) -> bool {
        let Some(input) = leads_to(self.input, place).and_then(|at| self.input.code.index(at)) else {
            return other.is_none_or(|other| other == place);
        };
        let stands = self.relation.output_of(input).is_some();
        let Some(other) = other else { return !stands || self.sharing.contains(&input) };
        let at = leads_to(self.output, other);
        let output = at.and_then(|at| self.output.code.index(at));
        if stands {
            return output.is_some_and(|output| self.relation.is_for(output, input))
                || at.is_some_and(|at| self.is_only_proven(at));
        }
        let is_proven = output.is_some_and(|output| self.relation.covered.contains(output));
        is_proven || !self.relation.seen.contains(input)
    }

    /// Whether an address of the output is in a piece that was proven as a whole: for which of the input's instructions it stands is not known then. Inside of an
    /// instruction that stands for one it is not.
    fn is_only_proven(&self, address: u64) -> bool {
        let relation = self.relation;
        let is_covered =
            |index: usize| relation.covered.contains(index) && relation.input_of(index).is_none() && !relation.is_in_body(index);
        let reaches = |before: u64| {
            let start = address.wrapping_sub(before);
            let stands = self.output.code.index(start).is_some_and(|index| self.relation.input_of(index).is_some());
            stands && self.output.inst(start).is_some_and(|inst| u64::from(inst.len) > before)
        };
        self.output.code.index(address).is_some_and(is_covered) && !(1..15).any(reaches)
    }

    /// Whether an instruction of the input ends at an address that shares its place in the output with others.
    fn ends_shared(&self, end: u64) -> bool {
        (1..=15).any(|size| {
            let start = end.wrapping_sub(size);
            let ends_here = self.input.inst(start).is_some_and(|inst| u64::from(inst.len) == size);
            ends_here && self.input.code.index(start).is_some_and(|index| self.sharing.contains(&index))
        })
    }

    /// Whether a call of the input ends at an address that the output makes otherwise, or not at all.
    fn ends_rewritten_call(&self, end: u64) -> bool {
        (1..=15).any(|size| {
            let start = end.wrapping_sub(size);
            let is_call =
                |inst: Inst| matches!(inst.kind, decode::Kind::Call | decode::Kind::IndirectCall) && u64::from(inst.len) == size;
            let is_rewritten = || self.input.code.index(start).is_some_and(|index| self.relation.is_rewritten_call(index));
            self.input.inst(start).is_some_and(is_call) && is_rewritten()
        })
    }

    /// Of a place behind a jump out of a function, which is a call that comes back to the caller's caller: whether the output's is one to the same place. A layout may
    /// have no jump there, if it `may_follow`. `None` if no jump ends there.
    fn is_left_by_jump(&self, end: u64, other: Option<u64>, may_follow: bool) -> Option<bool> {
        let target = |side: &Side<'_>, end: u64| {
            (1..=15).find_map(|size| {
                let at = end.checked_sub(size)?;
                let inst = side.inst(at).filter(|inst| inst.kind == decode::Kind::Jump && u64::from(inst.len) == size)?;
                leads_to(side, side.target(at, inst))
            })
        };
        let from = target(self.input, end).and_then(|at| self.input.code.index(at))?;
        let Some(other) = other else { return Some(may_follow) };
        let following = || leads_to(self.output, other).filter(|_| may_follow);
        let to = target(self.output, other).or_else(following).and_then(|at| self.output.code.index(at));
        let is_there = to.is_some_and(|to| self.relation.is_for(to, from));
        // Where a place is that the walk did not come to nobody can tell.
        (is_there || self.relation.output_of(from).is_some()).then_some(is_there)
    }

    /// Rows, ranges and locations of each instruction.
    fn compare_instructions(&self, before: &Facts, after: &Facts, tally: &mut Tally) {
        let name_before = |address| self.name_of_input(address);
        let name_after = |address| self.name_of_output(address);
        let (input, output) = (timelines(before, name_before), timelines(after, name_after));
        let differences: Vec<Option<Kind>> =
            self.standings.par_iter().map(|standing| difference(standing, &input, &output)).collect();
        let right: FxHashSet<u64> = self.inputs_told_elsewhere(&differences);
        let is_lost = |standing: &Standing| {
            let end = standing.output + u64::from(standing.last.1);
            let is_none = output.locations.at(standing.output) == 0 && output.locations.at(end) == 0;
            is_none && (standing.means == Means::Proven || right.contains(&standing.input))
        };
        let mut at = 0;
        for each in self.standings.chunk_by(|a, b| a.output == b.output) {
            let kinds = &differences[at..at + each.len()];
            at += each.len();
            let is_same = |(standing, kind): (&Standing, &Option<Kind>)| match *kind {
                None => true,
                Some(kind) => kind == Kind::Locations && is_lost(standing),
            };
            let is_any_same = each.iter().zip(kinds).any(is_same);
            tally.note(is_any_same, || self.explain(&each[0], kinds[0].unwrap_or(Kind::Rows), before, after));
        }
    }

    /// Instructions of the input of which a further copy has no locations, and some place has the right ones.
    fn inputs_told_elsewhere(&self, differences: &[Option<Kind>]) -> FxHashSet<u64> {
        let of = |wanted: Option<Kind>| {
            let each = self.standings.iter().zip(differences);
            each.filter(move |&(standing, &kind)| standing.call.is_none() && kind == wanted).map(|(standing, _)| standing.input)
        };
        let lacking: FxHashSet<u64> = of(Some(Kind::Locations)).collect();
        of(None).filter(|input| lacking.contains(input)).collect()
    }

    /// One number for all addresses of code of the input that stand at the same place.
    fn name_of_input(&self, address: u64) -> u64 {
        let index = leads_to(self.input, address).and_then(|at| self.input.code.index(at));
        index.and_then(|index| self.relation.first_of(index)).map_or(address, |first| self.input.code.address(first))
    }

    /// The same number for where they stand.
    fn name_of_output(&self, address: u64) -> u64 {
        use crate::walk::Stands;
        let index = leads_to(self.output, address).and_then(|at| self.output.code.index(at));
        match index.and_then(|index| self.relation.input_of(index)) {
            Some(Stands::For(input)) => self.input.code.address(self.relation.first_of(input).unwrap_or(input)),
            _ => mix(1, address),
        }
    }

    fn explain(&self, standing: &Standing, kind: Kind, before: &Facts, after: &Facts) -> String {
        let holding = |facts: &Facts, address: u64| -> Vec<(u64, u64)> {
            let intervals = match kind {
                Kind::Rows => &facts.rows,
                Kind::Stops => &facts.stops,
                Kind::Ranges => &facts.ranges,
                Kind::Locations => &facts.locations,
            };
            let holds = intervals.iter().filter(|interval| interval.start <= address && address < interval.end);
            holds.map(|interval| (interval.die, interval.key)).collect()
        };
        let place = if kind == Kind::Ranges { standing.call.unwrap_or(standing.input) } else { standing.input };
        let tell = |(from, to): (u64, u64)| {
            let (input, output) = (holding(before, from), holding(after, to));
            let only = |these: &[(u64, u64)], others: &[(u64, u64)]| {
                these.iter().find(|each| !others.contains(each)).map(|&(die, _)| die)
            };
            let gone = only(&input, &output).map(|die| format!("of the entry at {die:#x} the input has another"));
            gone.or(only(&output, &input).map(|die| format!("the entry at {die:#x} has one that is not the input's")))
        };
        let ends = (standing.input + u64::from(standing.last.0), standing.output + u64::from(standing.last.1));
        let told = tell((place, standing.output)).or_else(|| tell(ends)).unwrap_or_else(|| "names of code differ".to_owned());
        format!("{} at {:#x} are not those of the input's {place:#x}: {told}", kind.words(), standing.output)
    }
}

/// Whether two instructions are the same but for places that they name.
fn is_same_instruction((input, from): (&Side<'_>, usize), (output, to): (&Side<'_>, usize)) -> bool {
    let (i, o) = (input.code.address(from), output.code.address(to));
    let (Some(a), Some(b)) = (input.inst(i), output.inst(o)) else { return false };
    let names_place = |inst: Inst| inst.disp != 0 || !matches!(inst.kind, decode::Kind::Plain | decode::Kind::Lea);
    a.kind == b.kind && (names_place(a) && names_place(b) || input.code.bytes(i, a) == output.code.bytes(o, b))
}

/// The `endbr64` that stands before an instruction of the input, and not before the output's.
fn lost_mark((input, from): (&Side<'_>, u64), (output, to): (&Side<'_>, u64)) -> Option<u64> {
    let mark = |at: u64| at.wrapping_sub(decode::MARK_LEN);
    (input.begins_with_mark(mark(from)) && !output.begins_with_mark(mark(to))).then(|| mark(from))
}

/// How far behind the start the last bytes of two calls are; nothing if they are no calls.
fn lasts_of_call((input, from): (&Side<'_>, u64), (output, to): (&Side<'_>, u64)) -> (u8, u8) {
    match (input.inst(from), output.inst(to)) {
        (Some(a), Some(b)) if matches!(a.kind, decode::Kind::Call | decode::Kind::IndirectCall) => (a.len - 1, b.len - 1),
        _ => (0, 0),
    }
}

fn timelines(facts: &Facts, name: impl Fn(u64) -> u64) -> Timelines {
    let named = facts.named.iter().map(|&(interval, address)| Interval { key: mix(interval.key, name(address)), ..interval });
    let locations: Vec<Interval> = facts.locations.iter().copied().chain(named).collect();
    Timelines {
        rows: Timeline::of(&facts.rows),
        stops: Timeline::of(&facts.stops),
        ranges: Timeline::of(&facts.ranges),
        locations: Timeline::of(&locations),
    }
}

/// What differs first, if anything.
fn difference(standing: &Standing, input: &Timelines, output: &Timelines) -> Option<Kind> {
    let Standing { output: o, input: i, call, last, means, lost_mark } = *standing;
    // What is new there belongs to a neighbor, and none is the right one.
    if means == Means::Changed {
        return None;
    }
    if output.ranges.at(o) != input.ranges.at(call.unwrap_or(i)) {
        return Some(Kind::Ranges);
    }
    let rows = output.rows.at(o);
    if rows != input.rows.at(i) && call.is_none_or(|call| rows != input.rows.at(call)) {
        return Some(Kind::Rows);
    }
    if call.is_some() {
        return None;
    }
    let (stops, told) = (input.stops.at(i), output.stops.at(o));
    if stops != told && lost_mark.is_none_or(|mark| stops.wrapping_add(input.stops.at(mark)) != told) {
        return Some(Kind::Stops);
    }
    let is_same = |from, to| input.locations.at(from) == output.locations.at(to);
    let is_same_at_end = || is_same(i + u64::from(last.0), o + u64::from(last.1));
    (!(is_same(i, o) && is_same_at_end())).then_some(Kind::Locations)
}
