//! Functions without unwind entries: found by following what reaches them.
//!
//! **Problem.** Hand-written code often has neither unwind entries nor symbols. Between what has bounds lie regions that may hold such code,
//! data, or both.
//!
//! **Method.** Recursive decoding (Schwarz, Debray, Andrews, WCRE 2002), never guessing: from every address in a region that code
//! with bounds calls, branches to or computes, that the loader writes or that is exported, and from what is reached so on. What calls and branches
//! name is code; what only has its address taken may be data, so it is tried: it counts if all that it reaches decodes, agrees with what
//! was decoded before and holds no instruction that user code does not have. Bytes that nothing reaches are padding or *left over*: dead
//! code, or data. They stay, opaque.
//!
//! **When a region is given up**, all of it: something that is certainly code does not decode or runs out of the region; what is code is also
//! read as data; or more is left over than was reached (a third of that at a fixed address), as in V8's built-in functions, which a table of offsets in data names.
//!
//! Nothing unwinds through code without unwind entries, so it may move like any other; it has no unwind entry where it goes, either.
//! Terminates: each step decodes an instruction that was not decoded before, or ends a trial; each seed is tried once.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use object::elf;
use rustc_hash::FxHashSet;

use crate::address::Va;
use crate::discover::names::dynamic_code_slots;
use crate::discover::stubs::Stubs;
use crate::discover::survey::{How, NumberRole, Survey, numbers};
use crate::discover::units::{Bounds, UnitData, Units};
use crate::discover::unseen::aligned_words;
use crate::elf::Image;
use crate::x86::{Flow, flow_of, is_nop, nop_len, padding_len};

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
}

/// A run of code without unwind entries, and what is known of its bytes.
struct Region<'i> {
    start: Va,
    bytes: &'i [u8],
    /// By byte.
    states: Vec<State>,
    /// Addresses in it that instructions read or write.
    data: Vec<Va>,
    /// Where execution may come from outside of what runs into it: calls, pointers.
    entries: Vec<Va>,
    /// Jumps, branches and entries of tables: from where in the region, and to where.
    links: Vec<(Va, Va)>,
    /// Calls: the byte behind, and the callee.
    calls: Vec<(usize, Va)>,
    /// Whether numbers in instructions may be addresses.
    reads_numbers: bool,
    is_given_up: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    /// An instruction starts here; the flag says whether execution goes on behind it.
    Start(bool),
    Inside,
}

/// Why decoding from a place failed.
struct NotCode;

impl<'i> Reach<'i, '_> {
    /// Follows what code with bounds, the loader and exports name.
    pub(crate) fn explore(&self) -> Explored<'i> {
        let code = self.image.sections.values().filter(|s| s.is_alloc() && s.is_executable()).map(|s| (s.sh_addr, s.end()));
        let mut explored = Explored { regions: self.regions(), code: code.collect(), ..Explored::default() };
        let seeds = self.seeds();
        if let (true, Some(low), Some(high)) = (self.reads_numbers, explored.regions.first(), explored.regions.last()) {
            let is_within = |va: &Va| low.start <= *va && *va < high.end();
            explored.numbers = aligned_words(self.image).filter(is_within).chain(seeds.numbers).collect();
        }
        explored.follow_certain(&seeds.certain, self.stubs);
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
            let (data, entries, links, calls) = Default::default();
            let reads_numbers = self.reads_numbers;
            Some(Region { start, bytes, states, data, entries, links, calls, reads_numbers, is_given_up: false })
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
            if is_entry { &mut seeds.perhaps } else { &mut seeds.numbers }.extend(numbers);
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
    /// Sections of code.
    code: Vec<(Va, Va)>,
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
        while let Some(seed) = found.called.pop().or_else(|| found.addresses.pop()) {
            if self.tried.insert(seed)
                && let Ok(more) = self.follow(seed, stubs)
            {
                self.add_entry(seed);
                found.called.extend(more.called);
                found.addresses.extend(more.addresses);
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
        is_new
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
        va.0.is_multiple_of(16) || before.is_none_or(|byte| [RET, INT3, NOP].contains(&byte))
    }

    /// Takes note of functions that never return; says whether there are more than before.
    pub(crate) fn note_no_return(&mut self, functions: Vec<Va>) -> bool {
        let most = self.most_no_return.max(functions.len());
        self.no_return = functions;
        std::mem::replace(&mut self.most_no_return, most) < most
    }

    fn add_entry(&mut self, va: Va) {
        if let Some(index) = region_at(&self.regions, va) {
            self.regions[index].entries.push(va);
        }
    }

    /// Whether there is any code that nothing vouches for.
    pub(crate) fn has_regions(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Whether there are bytes that nothing reaches, and that are no padding.
    pub(crate) fn has_left_over(&mut self) -> bool {
        self.regions.iter_mut().any(|region| region.pieces(&self.no_return).1 > 0)
    }

    /// What is reached so far, were it all.
    pub(crate) fn so_far(&mut self) -> Reached {
        self.collect(|region, no_return| region.pieces(no_return).0)
    }

    /// What is reached, without the regions that are given up.
    pub(crate) fn finish(&mut self) -> Reached {
        self.collect(|region, no_return| {
            let (pieces, left_over) = region.pieces(no_return);
            let reached: u64 = pieces.iter().map(|&(start, end)| end - start).sum();
            if left_over > region.most_left_over(reached) { Vec::new() } else { pieces }
        })
    }

    fn collect(&mut self, pieces_of: impl Fn(&mut Region<'_>, &[Va]) -> Vec<(Va, Va)>) -> Reached {
        let mut reached = Reached::default();
        for region in &mut self.regions {
            let pieces = pieces_of(region, &self.no_return);
            if !pieces.is_empty() {
                reached.regions.push((region.start, region.end()));
                reached.pieces.extend(pieces);
            }
        }
        reached
    }

    /// Decodes all that a place reaches by jumps; gives what that calls and names. On failure nothing has happened.
    fn follow(&mut self, seed: Va, stubs: &Stubs) -> Result<Found, NotCode> {
        let mut log = Log::default();
        let mut pending = vec![seed];
        while let Some(place) = pending.pop() {
            let result = match region_at(&self.regions, place) {
                Some(index) => self.regions[index].run(index, place, stubs, &mut pending, &mut log),
                None if self.is_code(place) => Ok(()),
                None => Err(NotCode),
            };
            // A weak function that nobody defines is at 0, and its caller asks for it before.
            let is_callable = |&callee: &Va| callee.0 == 0 || self.is_code(callee);
            if result.is_err() || !log.found.called.iter().all(is_callable) {
                self.undo(log);
                return Err(NotCode);
            }
        }
        Ok(log.found)
    }

    fn undo(&mut self, log: Log) {
        for (index, at) in log.states {
            self.regions[index].states[at] = State::Unknown;
        }
        for (index, count) in log.data {
            let kept = self.regions[index].data.len() - count;
            self.regions[index].data.truncate(kept);
        }
    }

    fn is_code(&self, va: Va) -> bool {
        self.code.iter().any(|&(start, end)| start <= va && va < end)
    }
}

/// Few multiples of this are addresses of functions.
const ROUND: u64 = 4096;
const RET: u8 = 0xc3;
const INT3: u8 = 0xcc;
const NOP: u8 = 0x90;

/// What code was seen to name.
#[derive(Default)]
struct Found {
    called: Vec<Va>,
    /// Addresses that it computes.
    addresses: Vec<Va>,
    /// Numbers that may be addresses.
    numbers: Vec<Va>,
}

/// What a trial changed.
#[derive(Default)]
struct Log {
    /// `(region, byte)`.
    states: Vec<(usize, usize)>,
    /// `(region, how many)`.
    data: Vec<(usize, usize)>,
    found: Found,
}

impl Log {
    fn note_data(&mut self, region: usize) {
        match self.data.last_mut().filter(|last| last.0 == region) {
            Some(last) => last.1 += 1,
            None => self.data.push((region, 1)),
        }
    }
}

/// Whether compiled or hand-written code of a user program may hold this instruction. Two zero bytes are one, but rather data.
pub(crate) fn is_plausible(instruction: &Instruction, bytes: &[u8]) -> bool {
    let is_far =
        matches!(instruction.mnemonic(), Mnemonic::Retf | Mnemonic::Iret | Mnemonic::Iretd | Mnemonic::Iretq | Mnemonic::Int)
            || instruction.is_jmp_far()
            || instruction.is_call_far();
    let is_port = matches!(
        instruction.mnemonic(),
        Mnemonic::In
            | Mnemonic::Out
            | Mnemonic::Insb
            | Mnemonic::Insw
            | Mnemonic::Insd
            | Mnemonic::Outsb
            | Mnemonic::Outsw
            | Mnemonic::Outsd
    );
    let is_zero = instruction.code() == Code::Add_rm8_r8 && bytes.starts_with(&[0, 0]);
    // musl's way to crash is an instruction that the kernel keeps to itself.
    let is_privileged = instruction.is_privileged() && instruction.mnemonic() != Mnemonic::Hlt;
    !(instruction.is_invalid() || is_privileged || is_far || is_port || is_zero)
}

fn region_at(regions: &[Region<'_>], va: Va) -> Option<usize> {
    let index = regions.partition_point(|r| r.start <= va).checked_sub(1)?;
    (va < regions[index].end()).then_some(index)
}

impl Region<'_> {
    fn end(&self) -> Va {
        self.start + self.bytes.len() as u64
    }

    /// Decodes straight on from a place until something known or an end.
    fn run(&mut self, index: usize, place: Va, stubs: &Stubs, pending: &mut Vec<Va>, log: &mut Log) -> Result<(), NotCode> {
        let mut at = (place - self.start) as usize;
        let mut instruction = Instruction::default();
        // A call, and where it ends, if nothing but no-ops was met since: where no code follows those, it does not come back.
        let mut last_call: Option<(usize, usize)> = None;
        loop {
            match self.states.get(at) {
                Some(State::Start(_)) => return Ok(()),
                Some(State::Unknown) => {}
                Some(State::Inside) | None => return self.end_behind(last_call, at),
            }
            Decoder::with_ip(64, &self.bytes[at..], self.start.0 + at as u64, DecoderOptions::NONE).decode_out(&mut instruction);
            let end = at + instruction.len();
            let is_free = self.states.get(at..end).is_some_and(|s| s.iter().all(|&s| s == State::Unknown));
            if !is_plausible(&instruction, &self.bytes[at..]) || !is_free {
                return self.end_behind(last_call, at);
            }
            let flow = flow_of(&instruction);
            let goes_on = match flow {
                Flow::Jump(target) | Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) => {
                    pending.push(target);
                    self.links.push((Va(instruction.ip()), target));
                    !matches!(flow, Flow::Jump(_))
                }
                Flow::Call(target) => {
                    // `call` to what follows it reads its own address.
                    if target.0 == instruction.next_ip() {
                        return Err(NotCode);
                    }
                    pending.push(target);
                    log.found.called.push(target);
                    self.calls.push((end, target));
                    !stubs.is_no_return(target)
                }
                Flow::IndirectJump | Flow::Return | Flow::Trap => false,
                Flow::IndirectCall | Flow::Next => true,
            };
            if instruction.is_ip_rel_memory_operand() {
                let target = Va(instruction.ip_rel_memory_address());
                let is_own = self.start <= target && target < self.end();
                if instruction.mnemonic() == Mnemonic::Lea {
                    log.found.addresses.push(target);
                } else if is_own {
                    self.data.push(target);
                    log.note_data(index);
                }
            }
            for number in numbers(&instruction).filter(|_| self.reads_numbers) {
                match number {
                    (value, NumberRole::Memory) if self.start <= value && value < self.end() => {
                        self.data.push(value);
                        log.note_data(index);
                    }
                    (value, NumberRole::Copied) if self.start <= value && value < self.end() => log.found.numbers.push(value),
                    _ => {}
                }
            }
            for state in at..end {
                self.states[state] = if state == at { State::Start(goes_on) } else { State::Inside };
                log.states.push((index, state));
            }
            if !goes_on {
                return Ok(());
            }
            match flow {
                Flow::Call(_) | Flow::IndirectCall => last_call = Some((at, end)),
                _ if is_nop(&instruction) => {}
                _ => last_call = None,
            }
            at = end;
        }
    }

    /// What comes of code that runs on, at `at`, into what is none: behind a call that is the call's end, and no-ops between the two fill.
    fn end_behind(&mut self, call: Option<(usize, usize)>, at: usize) -> Result<(), NotCode> {
        let Some((call, end)) = call else { return Err(NotCode) };
        self.states[call] = State::Start(false);
        self.states[end..at].fill(State::Unknown);
        Ok(())
    }

    /// How many bytes may be left over of a region that is understood. A file at a fixed address without much more than what others call, as the library of klibc, has no table of what that is: the
    /// programs hold the addresses.
    fn most_left_over(&self, reached: u64) -> u64 {
        if self.reads_numbers { reached / 3 } else { reached }
    }

    fn state(&self, va: Va) -> State {
        self.states.get((va - self.start) as usize).copied().unwrap_or(State::Unknown)
    }

    /// The stretches of reached code, and how many bytes nothing reaches. A stretch ends where nothing runs on: before the start of a function, and before what no jump connects with it, as a part
    /// of another function.
    fn pieces(&mut self, no_return: &[Va]) -> (Vec<(Va, Va)>, u64) {
        for list in [&mut self.entries, &mut self.data] {
            list.sort();
            list.dedup();
        }
        let is_read = self.data.iter().any(|&va| self.state(va) != State::Unknown);
        if self.is_given_up || is_read {
            return (Vec::new(), 0);
        }
        let (runs, left_over) = self.runs(no_return);
        let joined = self.joined(&runs);
        let mut pieces: Vec<(Va, Va)> = Vec::new();
        let mut last = None;
        for (index, run) in runs.iter().enumerate() {
            let is_entry = || self.entries.binary_search(&run.start).is_ok();
            match pieces.last_mut().filter(|_| run.is_adjacent && !is_entry() && last == Some(joined[index])) {
                Some(piece) => piece.1 = run.end,
                None => pieces.push((run.start, run.end)),
            }
            last = Some(joined[index]);
        }
        (pieces, left_over)
    }

    /// What is reached, cut wherever execution does not go on; and how many bytes are not.
    fn runs(&self, no_return: &[Va]) -> (Vec<Run>, u64) {
        let stops: FxHashSet<usize> =
            self.calls.iter().filter(|call| no_return.binary_search(&call.1).is_ok()).map(|call| call.0).collect();
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, mut left_over) = (0, 0);
        let (mut goes_on, mut is_adjacent) = (false, false);
        while at < self.bytes.len() {
            let place = self.start + at as u64;
            match self.states[at] {
                State::Start(next_goes_on) => {
                    let end = (at + 1..self.bytes.len()).find(|&i| self.states[i] != State::Inside).unwrap_or(self.bytes.len());
                    match runs.last_mut().filter(|_| is_adjacent && goes_on) {
                        Some(last) => last.end = self.start + end as u64,
                        None => runs.push(Run { start: place, end: self.start + end as u64, is_adjacent }),
                    }
                    (goes_on, is_adjacent) = (next_goes_on && !stops.contains(&end), true);
                    at = end;
                }
                _ => {
                    let end = (at..self.bytes.len()).find(|&i| self.states[i] != State::Unknown).unwrap_or(self.bytes.len());
                    let padding = padding_len(&self.bytes[at..end]);
                    left_over += (end - at - padding) as u64;
                    is_adjacent = is_adjacent && is_no_ops(&self.bytes[at..end]);
                    at = end;
                }
            }
        }
        (runs, left_over)
    }

    /// By run, the first of those that jumps connect with it. A jump to where a function begins is a call at the end of another one.
    fn joined(&self, runs: &[Run]) -> Vec<usize> {
        fn root(parents: &mut [usize], mut at: usize) -> usize {
            while parents[at] != at {
                parents[at] = parents[parents[at]];
                at = parents[at];
            }
            at
        }
        let run_at = |va: Va| runs.partition_point(|run| run.start <= va).checked_sub(1).filter(|&run| va < runs[run].end);
        let mut parents: Vec<usize> = (0..runs.len()).collect();
        for &(from, to) in self.links.iter().filter(|link| self.entries.binary_search(&link.1).is_err()) {
            let (Some(from), Some(to)) = (run_at(from), run_at(to)) else { continue };
            let (one, other) = (root(&mut parents, from), root(&mut parents, to));
            parents[one.max(other)] = one.min(other);
        }
        (0..runs.len()).map(|run| root(&mut parents, run)).collect()
    }
}

/// Instructions that run on into each other.
struct Run {
    start: Va,
    end: Va,
    /// Whether nothing but no-ops lies between it and the one before.
    is_adjacent: bool,
}

/// Whether bytes are whole no-ops, which decode like the code around them.
fn is_no_ops(mut bytes: &[u8]) -> bool {
    while let Some(len) = nop_len(bytes).filter(|&len| len <= bytes.len()) {
        bytes = &bytes[len..];
    }
    bytes.is_empty()
}

#[cfg(test)]
mod tests {
    //! Regions whose bytes were reached in ways that are told by hand, and seeds that are no code.

    use super::*;

    fn region<'b>(bytes: &'b [u8], states: &[(usize, usize, bool)]) -> Region<'b> {
        let mut region = Region {
            start: Va(0x1000),
            bytes,
            states: vec![State::Unknown; bytes.len()],
            data: Vec::new(),
            entries: Vec::new(),
            links: Vec::new(),
            calls: Vec::new(),
            reads_numbers: false,
            is_given_up: false,
        };
        for &(at, len, goes_on) in states {
            region.states[at..at + len].fill(State::Inside);
            region.states[at] = State::Start(goes_on);
        }
        region
    }

    #[test]
    fn functions_are_cut_where_nothing_runs_into_them() {
        // nop-free code: `push; ret`, two bytes of padding, `ret` that is an entry, and two instructions that a table of the function before them leads to, or nobody.
        let bytes = [0x50, 0xc3, 0x66, 0x90, 0xc3, 0x50, 0xc3];
        let mut region = region(&bytes, &[(0, 1, true), (1, 1, false), (4, 1, false), (5, 1, true), (6, 1, false)]);
        region.entries = vec![Va(0x1000), Va(0x1004), Va(0x1006)];
        let cut = [(Va(0x1000), Va(0x1002)), (Va(0x1004), Va(0x1005)), (Va(0x1005), Va(0x1007))];
        assert_eq!(region.pieces(&[]).0, cut);
        region.links = vec![(Va(0x1004), Va(0x1005))];
        assert_eq!(region.pieces(&[]).0, [(Va(0x1000), Va(0x1002)), (Va(0x1004), Va(0x1007))]);
    }

    #[test]
    fn functions_are_cut_behind_calls_that_never_return() {
        // `call` of what does not come back, then `ret`.
        let bytes = [0xe8, 0, 0, 0, 0, 0xc3];
        let mut region = region(&bytes, &[(0, 5, true), (5, 1, false)]);
        region.calls = vec![(5, Va(0x5000))];
        assert_eq!(region.pieces(&[]).0, [(Va(0x1000), Va(0x1006))]);
        assert_eq!(region.pieces(&[Va(0x5000)]).0, [(Va(0x1000), Va(0x1005)), (Va(0x1005), Va(0x1006))]);
    }

    #[test]
    fn a_region_of_which_most_is_reached_by_nothing_is_given_up() {
        let bytes = [0xc3, 0x50, 0x58, 0xc3];
        // `finish` compares the two.
        let (pieces, left_over) = region(&bytes, &[(0, 1, false)]).pieces(&[]);
        assert_eq!((pieces.len(), left_over), (1, 3));
    }

    #[test]
    fn code_that_is_read_as_data_is_given_up() {
        let bytes = [0x50, 0xc3];
        let mut region = region(&bytes, &[(0, 1, true), (1, 1, false)]);
        region.data = vec![Va(0x1001)];
        assert_eq!(region.pieces(&[]).0, []);
    }

    #[test]
    fn text_and_zeros_are_no_code() {
        for bytes in [&[0u8, 0, 0, 0][..], b"outbound", b"lmno", &[0xfa], &[0x06]] {
            let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
            assert!(!is_plausible(&instruction, bytes), "{bytes:x?}");
        }
    }
}
