//! Functions without unwind entries: found by following what reaches them.
//!
//! **Problem.** Hand-written code often has neither unwind entries nor symbols. Between what has bounds lie regions that may hold such code,
//! data, or both.
//!
//! **Method.** Recursive decoding (Schwarz, Debray, Andrews, WCRE 2002), never guessing: from every address in a region that code
//! with bounds calls, branches to or computes, that the loader writes or that is exported, and from what is reached so on, over jump tables too
//! ([`explore`](crate::lift)). What code with bounds calls and branches to is code; all else may be data, so it is tried: it counts if all that it reaches, by jumps and calls, decodes, agrees with what
//! was decoded before, calls code and holds no instruction that user code does not have. Where no code follows a call, the call does not come back. Bytes that nothing reaches are padding or
//! *left over*: dead code, or data. They stay. Where they resemble code, what they call may move all the same; else, what they may name stays too.
//!
//! **Numbers.** At a fixed address nothing marks pointers. The numbers that instructions copy and the aligned words of data are tried last, where functions seem to begin before the rest: most
//! lead into the middle of what is known by then, and are no addresses. Multiples of a page are sizes.
//!
//! **When a region is given up**, all of it: more is left over than was reached. At a fixed address, where the file does not say what is an address, a third of that is too much, and so is anything certain to be
//! code that does not decode, or that is also read as data; and what only numbers lead to is given up too, since it may be copied and run elsewhere. Elsewhere only what can't be followed stays, or is read.
//!
//! **Arrays.** V8's built-in functions lie side by side, and a table of offsets in data says where each begins. Few are reached in any other way; were one of these moved, or the first, from which the others
//! are counted, the program would no more find them. So stretches stay in which more is left over than was reached, whatever regions they span: the maximal ones (`Cut::without_arrays`). Functions with bounds that lie
//! in one stay too, and what stands before one if something knows its address. A region that is given up is left over whole: where V8's functions that C++ enters are all that has an unwind entry, they lie between such. In ordinary code what nothing reaches is a few percent, and such stretches are as long as themselves.
//!
//! Nothing unwinds through code without unwind entries, so it may move like any other; it has no unwind entry where it goes, either.
//! Terminates: each step decodes an instruction that was not decoded before, or ends a trial; each seed is tried once.

mod cases;
mod region;

use object::elf;
use rustc_hash::FxHashSet;

use crate::address::Va;
use crate::discover::names::dynamic_code_slots;
use crate::discover::stubs::Stubs;
use crate::discover::survey::{How, NumberRole, Survey};
use crate::discover::units::{Bounds, UnitData, Units, is_in, joined};
use crate::discover::unseen::aligned_words;
use crate::elf::Image;
use crate::x86::{BREAKPOINT, padding_len};
pub(crate) use region::is_plausible;
use region::{Cut, Found, Log, NotCode, Region, State};

/// What decoding looks at.
#[derive(Copy, Clone)]
pub(crate) struct Reach<'i, 's> {
    pub(crate) image: &'i Image<'i>,
    pub(crate) units: &'s Units,
    pub(crate) surveys: &'s [Survey],
    pub(crate) stubs: &'s Stubs,
    /// Whether a symbol's range is code for certain, as where the linker's relocations of it are there.
    pub(crate) trusts_symbols: bool,
    /// Whether a number may be an address, as at a fixed address where the linker's relocations are gone.
    pub(crate) reads_numbers: bool,
}

/// What was found, ascending and disjoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached {
    /// Code that something reaches.
    pub(crate) pieces: Vec<(Va, Va)>,
    /// Where the pieces are; what else is there is padding or left over.
    pub(crate) regions: Vec<(Va, Va)>,
    /// What may be arrays of functions that are found by their distance from where these begin. Functions with bounds may lie in them too.
    pub(crate) arrays: Vec<(Va, Va)>,
}

impl<'i> Reach<'i, '_> {
    /// Follows what code with bounds, the loader and exports name.
    pub(crate) fn explore(&self) -> Explored<'i> {
        let code = self.image.sections.values().filter(|s| s.is_alloc() && s.is_executable()).map(|s| (s.sh_addr, s.end()));
        let mut explored = Explored { regions: self.regions(), code: joined(code.collect()), ..Explored::default() };
        let seeds = self.seeds();
        if let (true, Some(low), Some(high)) = (self.reads_numbers, explored.regions.first(), explored.regions.last()) {
            let is_within = |va: &Va| low.start <= *va && *va < high.end();
            explored.numbers = aligned_words(self.image).filter(is_within).chain(seeds.numbers).collect();
        }
        explored.follow_certain(&seeds.certain, self.stubs);
        explored.entered.extend(seeds.certain.iter().chain(&seeds.main).filter_map(|&seed| region_at(&explored.regions, seed)));
        explored.try_from(seeds.main, self.stubs);
        explored.try_from(seeds.perhaps, self.stubs);
        let reads = self.surveys.iter().flat_map(|s| &s.names).filter(|n| n.how == How::Memory).map(|n| n.target);
        let absolutes = self.surveys.iter().flat_map(|s| &s.absolutes).filter(|a| a.role == NumberRole::Memory).map(|a| a.value);
        for read in reads.chain(absolutes) {
            if let Some(index) = region_at(&explored.regions, read) {
                explored.regions[index].data.push(read);
            }
        }
        explored
    }

    /// Whether something vouches for a unit, so that nothing has to be found out.
    fn is_known(&self, unit: &UnitData) -> bool {
        unit.fde().is_some() || self.trusts_symbols && matches!(unit.bounds, Bounds::Symbol(_))
    }

    /// Runs of units that nothing vouches for, and that may move.
    fn regions(&self) -> Vec<Region<'i>> {
        let mut ranges: Vec<(Va, Va, bool)> = Vec::new();
        let mut previous = None;
        for unit in self.units.values() {
            let is_open = !self.is_known(unit) && self.image.is_movable_code_section(unit.section);
            match ranges.last_mut().filter(|_| is_open && previous == Some(unit.section)) {
                Some(last) if last.2 => last.1 = unit.end,
                _ if is_open => ranges.push((unit.start, unit.end, true)),
                _ => {
                    if let Some(last) = ranges.last_mut() {
                        last.2 = false;
                    }
                }
            }
            previous = Some(unit.section);
        }
        let region = |(start, end, _): (Va, Va, bool)| {
            let bytes = self.image.read(start, (end - start) as usize)?;
            let states = vec![State::Unknown; bytes.len()];
            let (data, entries, pointed, links, calls) = Default::default();
            let reads_numbers = self.reads_numbers;
            Some(Region { start, bytes, states, data, entries, pointed, links, calls, reads_numbers, is_given_up: false })
        };
        ranges.into_iter().filter_map(region).collect()
    }

    /// Where code begins for certain, and where it may.
    fn seeds(&self) -> Seeds {
        let mut seeds = Seeds { certain: vec![self.image.e_entry], ..Seeds::default() };
        for (unit, survey) in
            self.units.values().zip(self.surveys).filter(|(unit, survey)| self.is_known(unit) && !survey.is_opaque())
        {
            debug_assert!(unit.start < unit.end);
            for name in &survey.names {
                match name.how {
                    How::Call | How::Jump | How::Branch | How::Loop => seeds.certain.push(name.target),
                    How::Address => seeds.perhaps.push(name.target),
                    How::Memory | How::Perhaps => {}
                }
            }
            // The code that the program starts with names the function that it is about.
            let is_entry = unit.start <= self.image.e_entry && self.image.e_entry < unit.end;
            let numbers = survey.absolutes.iter().filter(|number| number.role == NumberRole::Copied).map(|number| number.value);
            if is_entry { &mut seeds.main } else { &mut seeds.numbers }.extend(numbers);
        }
        seeds.certain.extend([elf::DT_INIT, elf::DT_FINI].iter().filter_map(|&tag| self.image.dynamic_value(tag)).map(Va));
        seeds.perhaps.extend(dynamic_code_slots(self.image, self.units).map(|(_, target)| target));
        let is_function = |t: u8| [elf::STT_FUNC, elf::STT_GNU_IFUNC].contains(&t);
        let exports = self.image.dynamic_symbols.iter().filter(|s| s.has_address() && is_function(s.st_type()));
        seeds.perhaps.extend(exports.map(|s| Va(s.st_value)));
        for list in [&mut seeds.certain, &mut seeds.perhaps] {
            list.sort();
            list.dedup();
        }
        seeds
    }
}

/// Where code begins.
#[derive(Default)]
struct Seeds {
    /// Calls and jumps lead there, or the loader.
    certain: Vec<Va>,
    /// Addresses.
    perhaps: Vec<Va>,
    /// Numbers in the code that the program starts with.
    main: Vec<Va>,
    /// Numbers that may be addresses.
    numbers: Vec<Va>,
}

/// What is known so far of the regions.
#[derive(Default)]
pub(crate) struct Explored<'i> {
    regions: Vec<Region<'i>>,
    /// Where code may begin, as far as that was tried.
    tried: FxHashSet<Va>,
    /// Functions behind calls of which nothing goes on, ascending.
    no_return: Vec<Va>,
    /// The most that there were of these in any round.
    most_no_return: usize,
    /// Numbers, in data and instructions, that may be addresses and were not tried.
    numbers: Vec<Va>,
    /// Where code is, ascending and disjoint.
    code: Vec<(Va, Va)>,
    /// Regions into which code with bounds calls, or with which the program starts.
    entered: Vec<usize>,
}

impl Explored<'_> {
    fn follow_certain(&mut self, certain: &[Va], stubs: &Stubs) {
        for &seed in certain {
            let Some(index) = region_at(&self.regions, seed) else { continue };
            match self.follow(seed, stubs) {
                Ok(found) => {
                    self.regions[index].entries.push(seed);
                    self.try_found(found, stubs);
                }
                Err(NotCode) => self.regions[index].is_given_up = true,
            }
        }
    }

    /// Follows what may be code: what fails is data, or code that is not understood. It stays, with all that it may name.
    fn try_from(&mut self, perhaps: Vec<Va>, stubs: &Stubs) {
        self.try_found(Found { addresses: perhaps, ..Found::default() }, stubs);
    }

    /// The same of what code was seen to name: callees before addresses. Numbers are for later.
    fn try_found(&mut self, mut found: Found, stubs: &Stubs) {
        for &address in &found.addresses {
            self.add_pointed(address);
        }
        while let Some(seed) = found.called.pop().or_else(|| found.addresses.pop()) {
            if self.tried.insert(seed)
                && let Ok(more) = self.follow(seed, stubs)
            {
                self.add_entry(seed);
                found.called.extend(more.called);
                for address in more.addresses {
                    self.add_pointed(address);
                    found.addresses.push(address);
                }
                found.numbers.extend(more.numbers);
            }
        }
        self.numbers.extend(found.numbers);
    }

    /// Follows what tables of jumps lead to; says whether any of it is new.
    pub(crate) fn try_labels(&mut self, edges: impl Iterator<Item = (Va, Va)>, stubs: &Stubs) -> bool {
        let mut is_new = false;
        for (jump, label) in edges {
            let Some(region) = region_at(&self.regions, label) else { continue };
            if self.regions[region].state(label) == State::Unknown
                && let Ok(found) = self.follow(label, stubs)
            {
                self.try_found(found, stubs);
                is_new = true;
            }
            self.regions[region].links.push((jump, label));
        }
        // Each round gives all of them again.
        for region in &mut self.regions {
            region.links.sort_unstable();
            region.links.dedup();
        }
        is_new
    }

    /// The same of labels at the end of what was reached so far: a case that never occurs leads to filler, but one that crashes may begin with a breakpoint, which looks alike.
    pub(crate) fn try_labels_behind(&mut self, edges: impl Iterator<Item = (Va, Va)>, stubs: &Stubs) -> bool {
        let mut edges: Vec<(Va, Va)> = edges.collect();
        let mut is_new = false;
        edges.retain(|&(_, label)| {
            let is_filler = self.is_filler(label);
            is_new |= is_filler && self.take_breakpoint(label);
            !is_filler
        });
        self.try_labels(edges.into_iter(), stubs) | is_new
    }

    /// Takes the breakpoint at an address for an instruction, whatever it is there for; says whether it is one, and was none before.
    fn take_breakpoint(&mut self, va: Va) -> bool {
        let Some(region) = region_at(&self.regions, va).map(|index| &mut self.regions[index]) else { return false };
        let at = (va - region.start) as usize;
        let is_new = region.bytes[at] == BREAKPOINT && region.states[at] == State::Unknown;
        if is_new {
            region.states[at] = State::Start(false);
        }
        is_new
    }

    /// Whether nothing but filler is at an address, up to something that was reached or the end.
    fn is_filler(&self, va: Va) -> bool {
        let Some(region) = region_at(&self.regions, va).map(|index| &self.regions[index]) else { return true };
        let at = (va - region.start) as usize;
        let end = at + padding_len(&region.bytes[at..]);
        region.states.get(at..end).is_some_and(|states| states.iter().any(|&state| state != State::Unknown))
            || region.states.get(end).is_none_or(|&state| state != State::Unknown)
    }

    /// Follows what numbers may name and nothing else leads to, first where functions seem to begin: some are labels of a table, and some no addresses at all. Says whether any of it is new.
    pub(crate) fn try_numbers(&mut self, stubs: &Stubs) -> bool {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.sort();
        numbers.dedup();
        // Code seldom begins where sizes and masks lead to.
        numbers.retain(|&va| self.is_unknown(va) && !va.0.is_multiple_of(ROUND));
        let (likely, rest): (Vec<Va>, Vec<Va>) = numbers.into_iter().partition(|&va| self.may_begin_function(va));
        let is_new = self.try_each(likely, stubs);
        self.numbers.extend(&rest);
        is_new || self.try_each(rest, stubs)
    }

    fn try_each(&mut self, numbers: Vec<Va>, stubs: &Stubs) -> bool {
        let mut is_new = false;
        for number in numbers {
            if self.is_unknown(number) {
                self.try_from(vec![number], stubs);
                is_new |= !self.is_unknown(number);
            }
        }
        is_new
    }

    fn is_unknown(&self, va: Va) -> bool {
        region_at(&self.regions, va).is_some_and(|index| self.regions[index].state(va) == State::Unknown)
    }

    /// Whether an address is as aligned as those of functions, or stands behind what ends one.
    fn may_begin_function(&self, va: Va) -> bool {
        let Some(region) = region_at(&self.regions, va).map(|index| &self.regions[index]) else { return false };
        let before = ((va - region.start) as usize).checked_sub(1).map(|at| region.bytes[at]);
        va.0.is_multiple_of(16) || before.is_none_or(|byte| [RET, BREAKPOINT, NOP].contains(&byte))
    }

    /// Takes note of functions that never return; says whether there are more than before.
    pub(crate) fn note_no_return(&mut self, functions: Vec<Va>) -> bool {
        let most = self.most_no_return.max(functions.len());
        self.no_return = functions;
        std::mem::replace(&mut self.most_no_return, most) < most
    }

    /// Gives up the regions that these places are in; says whether there are any.
    pub(crate) fn give_up(&mut self, places: impl Iterator<Item = Va>) -> bool {
        let mut is_any = false;
        for index in places.filter_map(|va| region_at(&self.regions, va)).collect::<Vec<_>>() {
            self.regions[index].is_given_up = true;
            is_any = true;
        }
        is_any
    }

    pub(crate) fn give_up_all(&mut self) {
        self.regions.iter_mut().for_each(|region| region.is_given_up = true);
    }

    fn add_entry(&mut self, va: Va) {
        if let Some(index) = region_at(&self.regions, va) {
            self.regions[index].entries.push(va);
        }
    }

    fn add_pointed(&mut self, va: Va) {
        if let Some(index) = region_at(&self.regions, va) {
            self.regions[index].pointed.push(va);
        }
    }

    /// Whether there is any code that nothing vouches for.
    pub(crate) fn has_regions(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether there are bytes that nothing reaches, and that are no padding.
    pub(crate) fn has_left_over(&mut self) -> bool {
        self.regions.iter_mut().any(|region| !region.cut(&self.no_return).left_over.is_empty())
    }

    /// What is reached so far, were it all.
    pub(crate) fn so_far(&mut self) -> Reached {
        let mut reached = Reached::default();
        for region in &mut self.regions {
            let pieces = region.cut(&self.no_return).pieces;
            if !pieces.is_empty() {
                reached.regions.push((region.start, region.end()));
                reached.pieces.extend(pieces);
            }
        }
        reached
    }

    /// What is reached, without the regions that are given up, and without what may be arrays.
    pub(crate) fn finish(&mut self) -> Reached {
        let is_entered = self.entered_regions();
        let mut reached = Reached::default();
        let (mut all, mut pointed) = (Cut::default(), Vec::new());
        let mut end = None;
        for (index, region) in self.regions.iter_mut().enumerate() {
            let cut = region.cut(&self.no_return);
            let is_understood =
                cut.num_left_over() <= region.most_left_over(cut.num_reached()) && (!region.reads_numbers || is_entered[index]);
            // What has bounds stands between regions; it counts like what is reached.
            all.pieces.extend(end.filter(|&end| end < region.start).map(|end| (end, region.start)));
            end = Some(region.end());
            if is_understood && !cut.pieces.is_empty() {
                reached.regions.push((region.start, region.end()));
                all.pieces.extend(cut.pieces);
                all.left_over.extend(cut.left_over);
                pointed.extend(&region.pointed);
            } else {
                // It stays, whatever reaches it. What has bounds between two such regions may be found by its distance from one of them.
                all.left_over.extend(joined([cut.pieces, cut.left_over].concat()));
            }
        }
        // At a fixed address a region is understood as a whole or not at all.
        if !self.regions.iter().any(|region| region.reads_numbers) {
            reached.arrays = all.without_arrays(&pointed);
        }
        all.pieces.retain(|piece| is_in(&reached.regions, piece.0));
        reached.pieces = all.pieces;
        reached
    }

    /// By region, whether calls and jumps lead there from code with bounds, or from where the program starts. What only numbers lead to may be meant to be copied and to run elsewhere.
    fn entered_regions(&self) -> Vec<bool> {
        let mut is_entered = vec![false; self.regions.len()];
        let mut pending = self.entered.clone();
        while let Some(index) = pending.pop() {
            if !std::mem::replace(&mut is_entered[index], true) {
                let region = &self.regions[index];
                let targets = region.links.iter().map(|link| link.1).chain(region.calls.iter().map(|call| call.1));
                pending.extend(targets.filter_map(|target| region_at(&self.regions, target)));
            }
        }
        is_entered
    }

    /// Decodes all that a place reaches by jumps and calls; gives what that calls, each of which begins a function, and what it names. On failure nothing has happened.
    fn follow(&mut self, seed: Va, stubs: &Stubs) -> Result<Found, NotCode> {
        let mut log = Log::default();
        let mut pending = vec![seed];
        while let Some(place) = pending.pop() {
            let result = match region_at(&self.regions, place) {
                Some(index) => {
                    log.touch(index, &self.regions[index]);
                    self.regions[index].run(index, place, stubs, &mut pending, &mut log)
                }
                None if self.is_code(place) => Ok(()),
                None => Err(NotCode),
            };
            if result.is_err() {
                self.undo(log);
                return Err(NotCode);
            }
        }
        // A weak function that nobody defines is at 0, and its caller asks for it before.
        if log.found.called.iter().any(|&callee| callee.0 != 0 && !self.is_code(callee)) {
            self.undo(log);
            return Err(NotCode);
        }
        Ok(log.found)
    }

    fn undo(&mut self, log: Log) {
        for (index, links, calls) in log.touched {
            self.regions[index].links.truncate(links);
            self.regions[index].calls.truncate(calls);
        }
        for (index, at) in log.states {
            self.regions[index].states[at] = State::Unknown;
        }
        for (index, count) in log.data {
            let kept = self.regions[index].data.len() - count;
            self.regions[index].data.truncate(kept);
        }
    }

    fn is_code(&self, va: Va) -> bool {
        is_in(&self.code, va)
    }
}

/// Few multiples of this are addresses of functions.
const ROUND: u64 = 4096;
const RET: u8 = 0xc3;
const NOP: u8 = 0x90;

fn region_at(regions: &[Region<'_>], va: Va) -> Option<usize> {
    let index = regions.partition_point(|r| r.start <= va).checked_sub(1)?;
    (va < regions[index].end()).then_some(index)
}
