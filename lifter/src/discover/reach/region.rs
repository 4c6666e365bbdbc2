//! A run of code without unwind entries: which of its bytes were decoded, and the functions that they make.
//!
//! **Pieces.** Instructions that run on into each other are a run. Runs side by side are one piece if jumps, branches or tables connect them, and a function begins where a call or a pointer
//! leads. What a piece holds too little of is joined later, as any units are; what it held too much of would lie side by side for ever.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use rustc_hash::FxHashSet;

use crate::address::Va;
use crate::cfg::thunks::begins_without_return_address;
use crate::discover::split_stack::Growth;
use crate::discover::stubs::Stubs;
use crate::discover::survey::{NumberRole, numbers};
use crate::x86::{Flow, flow_of, is_nop, nop_len, padding_len};

/// A run of code without unwind entries, and what is known of its bytes.
pub(super) struct Region<'i> {
    pub(super) start: Va,
    pub(super) bytes: &'i [u8],
    /// By byte.
    pub(super) states: Vec<State>,
    /// Addresses in it that instructions read or write.
    pub(super) data: Vec<Va>,
    /// Where execution may come from outside of what runs into it: calls, pointers.
    pub(super) entries: Vec<Va>,
    /// Those of them whose address something knows, or that may be such.
    pub(super) pointed: Vec<Va>,
    /// Jumps, branches and entries of tables: from where in the region, and to where.
    pub(super) links: Vec<(Va, Va)>,
    /// Calls: the byte behind, and the callee.
    pub(super) calls: Vec<(usize, Va)>,
    /// Whether numbers in instructions may be addresses.
    pub(super) reads_numbers: bool,
    pub(super) is_given_up: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    /// An instruction starts here; the flag says whether execution goes on behind it.
    Start(bool),
    Inside,
}

/// Why decoding from a place failed.
pub(super) struct NotCode;

/// What code was seen to name.
#[derive(Default)]
pub(super) struct Found {
    pub(super) called: Vec<Va>,
    /// Addresses that it computes.
    pub(super) addresses: Vec<Va>,
    /// Numbers that may be addresses.
    pub(super) numbers: Vec<Va>,
}

/// What a trial changed.
#[derive(Default)]
pub(super) struct Log {
    /// `(region, byte)`.
    pub(super) states: Vec<(usize, usize)>,
    /// `(region, how many)`.
    pub(super) data: Vec<(usize, usize)>,
    pub(super) found: Found,
    /// `(region, links, calls)`: how many each had before.
    pub(super) touched: Vec<(usize, usize, usize)>,
}

impl Log {
    pub(super) fn touch(&mut self, index: usize, region: &Region<'_>) {
        if self.touched.iter().all(|touched| touched.0 != index) {
            self.touched.push((index, region.links.len(), region.calls.len()));
        }
    }

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

impl Region<'_> {
    pub(super) fn end(&self) -> Va {
        self.start + self.bytes.len() as u64
    }

    /// Decodes straight on from a place until something known or an end.
    pub(super) fn run(
        &mut self,
        index: usize,
        place: Va,
        stubs: &Stubs,
        pending: &mut Vec<Va>,
        log: &mut Log,
    ) -> Result<(), NotCode> {
        let mut at = (place - self.start) as usize;
        let mut instruction = Instruction::default();
        // A call, and where it ends, if nothing but no-ops was met since: where no code follows those, it does not come back.
        let mut last_call: Option<(usize, usize)> = None;
        let mut growth = Growth::default();
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
            let goes_on_behind = growth.goes_on_behind(&instruction, flow);
            let goes_on = match flow {
                Flow::Jump(target) | Flow::Branch(_, target) | Flow::Loop(target) | Flow::Begin(target) => {
                    pending.push(target);
                    self.links.push((Va(instruction.ip()), target));
                    !matches!(flow, Flow::Jump(_))
                }
                Flow::Call(target) => {
                    // A call of what follows it reads its own address, if it is not of a function that never returns.
                    if target.0 == instruction.next_ip() && begins_without_return_address(&self.bytes[end..], target) {
                        return Err(NotCode);
                    }
                    pending.push(target);
                    log.found.called.push(target);
                    self.calls.push((end, target));
                    !stubs.is_no_return(target)
                }
                Flow::Return => goes_on_behind,
                Flow::IndirectJump | Flow::Trap => false,
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
            self.mark((index, at..end), goes_on, log);
            if !goes_on {
                self.take_traps(index, end, log);
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

    /// Marks the bytes of an instruction.
    fn mark(&mut self, (index, bytes): (usize, Range<usize>), goes_on: bool, log: &mut Log) {
        for at in bytes.clone() {
            self.states[at] = if at == bytes.start { State::Start(goes_on) } else { State::Inside };
            log.states.push((index, at));
        }
    }

    /// Takes what crashes behind an end for a part of it: compilers leave it there, against processors that go on all the same, and to say why it ends.
    fn take_traps(&mut self, index: usize, mut at: usize, log: &mut Log) {
        let mut instruction = Instruction::default();
        while self.states.get(at) == Some(&State::Unknown) {
            Decoder::with_ip(64, &self.bytes[at..], self.start.0 + at as u64, DecoderOptions::NONE).decode_out(&mut instruction);
            let end = at + instruction.len();
            let is_free = self.states.get(at..end).is_some_and(|s| s.iter().all(|&s| s == State::Unknown));
            if !matches!(instruction.mnemonic(), Mnemonic::Ud1 | Mnemonic::Ud2) || !is_free {
                return;
            }
            self.mark((index, at..end), false, log);
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
    pub(super) fn most_left_over(&self, reached: u64) -> u64 {
        if self.reads_numbers { reached / 3 } else { reached }
    }

    pub(super) fn state(&self, va: Va) -> State {
        self.states.get((va - self.start) as usize).copied().unwrap_or(State::Unknown)
    }

    /// The stretches of reached code, and what nothing reaches. A stretch ends where nothing runs on: before the start of a function, and before what no jump connects with it, as a part
    /// of another function.
    pub(super) fn cut(&mut self, no_return: &[Va]) -> Cut {
        for list in [&mut self.entries, &mut self.data, &mut self.pointed] {
            list.sort();
            list.dedup();
        }
        let read: Vec<Va> = self.data.iter().copied().filter(|&va| self.state(va) != State::Unknown).collect();
        if self.reads_numbers && (self.is_given_up || !read.is_empty()) {
            return Cut::default();
        }
        let (runs, mut left_over) = self.runs(no_return);
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
        let is_read = |&(start, end): &(Va, Va)| read.get(read.partition_point(|&va| va < start)).is_some_and(|&va| va < end);
        left_over.extend(pieces.iter().copied().filter(is_read));
        left_over.sort();
        pieces.retain(|piece| !is_read(piece));
        Cut { pieces, left_over }
    }

    /// What is reached, cut wherever execution does not go on; and what is not, without padding.
    fn runs(&self, no_return: &[Va]) -> (Vec<Run>, Vec<(Va, Va)>) {
        let stops: FxHashSet<usize> =
            self.calls.iter().filter(|call| no_return.binary_search(&call.1).is_ok()).map(|call| call.0).collect();
        let mut runs: Vec<Run> = Vec::new();
        let (mut at, mut left_over) = (0, Vec::new());
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
                    if at + padding < end {
                        left_over.push((place + padding as u64, self.start + end as u64));
                    }
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
        // What only runs on from a call that does not return is that call's: a trap, say.
        let mut targets: Vec<Va> = self.links.iter().map(|link| link.1).chain(self.entries.iter().copied()).collect();
        targets.sort_unstable();
        let is_led_to = |run: &Run| targets.get(targets.partition_point(|&va| va < run.start)).is_some_and(|&va| va < run.end);
        for (index, _) in runs.iter().enumerate().skip(1).filter(|(_, run)| run.is_adjacent && !is_led_to(run)) {
            let (one, other) = (root(&mut parents, index - 1), root(&mut parents, index));
            parents[one.max(other)] = one.min(other);
        }
        (0..runs.len()).map(|run| root(&mut parents, run)).collect()
    }
}

/// What became of a region. Ascending and disjoint.
#[derive(Debug, Default)]
pub(super) struct Cut {
    pub(super) pieces: Vec<(Va, Va)>,
    /// What nothing reaches, or what is read as data.
    pub(super) left_over: Vec<(Va, Va)>,
}

impl Cut {
    /// How many bytes are left over.
    pub(super) fn num_left_over(&self) -> u64 {
        size_of_all(&self.left_over)
    }

    /// How many bytes are reached.
    pub(super) fn num_reached(&self) -> u64 {
        size_of_all(&self.pieces)
    }

    /// Takes the pieces away that lie in stretches in which more is left over than was reached; gives those stretches. Such a one may be an array of functions that are found by their distance from
    /// its start, so a piece before it that is `pointed` to stays too.
    pub(super) fn without_arrays(&mut self, pointed: &[Va]) -> Vec<(Va, Va)> {
        let arrays: Vec<Stretch> = stretches(&self.pieces, &self.left_over);
        let is_pointed =
            |&(start, end): &(Va, Va)| pointed.get(pointed.partition_point(|&va| va < start)).is_some_and(|&va| va < end);
        let mut outside = Vec::new();
        let mut next = 0;
        for (index, &piece) in self.pieces.iter().enumerate() {
            while arrays.get(next).is_some_and(|array| array.end <= piece.0) {
                next += 1;
            }
            let following = self.pieces.get(index + 1).map_or(Va(u64::MAX), |following| following.0);
            let may_begin = |array: &Stretch| array.excess >= ARRAY_MIN && array.start < following && is_pointed(&piece);
            if arrays.get(next).is_none_or(|array| piece.0 < array.start && !may_begin(array)) {
                outside.push(piece);
            }
        }
        self.pieces = outside;
        arrays.into_iter().filter(|array| array.excess >= ARRAY_MIN).map(|array| (array.start, array.end)).collect()
    }
}

/// A stretch in which more bytes are left over than reached.
struct Stretch {
    start: Va,
    end: Va,
    /// How many more.
    excess: u64,
}

/// The fewest unreached bytes that may be an array of functions.
const ARRAY_MIN: u64 = 64;

fn size_of_all(ranges: &[(Va, Va)]) -> u64 {
    ranges.iter().map(|&(start, end)| end - start).sum()
}

/// The stretches that have the most bytes left over, less those reached: all maximal ones, which begin and end with something left over (Ruzzo and Tompa, ISMB 1999).
fn stretches(pieces: &[(Va, Va)], left_over: &[(Va, Va)]) -> Vec<Stretch> {
    struct Candidate {
        start: Va,
        end: Va,
        /// The sum of all before it, and of all up to its end.
        sums: (i64, i64),
        /// The last candidate before it with a smaller sum of all before.
        lower: Option<usize>,
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    let (mut sum, mut num_pieces) = (0i64, 0);
    for &(start, end) in left_over {
        while let Some(piece) = pieces.get(num_pieces).filter(|piece| piece.0 < start) {
            sum -= (piece.1 - piece.0) as i64;
            num_pieces += 1;
        }
        let before = sum;
        sum += (end - start) as i64;
        let mut next = Candidate { start, end, sums: (before, sum), lower: None };
        // What is skipped in this search is skipped by following `lower` in any later one, and each candidate is joined with once: all this is linear.
        loop {
            let mut found = candidates.len().checked_sub(1);
            while let Some(at) = found.filter(|&at| candidates[at].sums.0 >= next.sums.0) {
                found = candidates[at].lower;
            }
            next.lower = found;
            let Some(at) = found.filter(|&at| candidates[at].sums.1 < next.sums.1) else { break };
            (next.start, next.sums.0) = (candidates[at].start, candidates[at].sums.0);
            candidates.truncate(at);
        }
        candidates.push(next);
    }
    let stretch = |c: Candidate| Stretch { start: c.start, end: c.end, excess: (c.sums.1 - c.sums.0) as u64 };
    candidates.into_iter().map(stretch).collect()
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
            pointed: Vec::new(),
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
        assert_eq!(region.cut(&[]).pieces, cut);
        region.links = vec![(Va(0x1004), Va(0x1005))];
        assert_eq!(region.cut(&[]).pieces, [(Va(0x1000), Va(0x1002)), (Va(0x1004), Va(0x1007))]);
    }

    #[test]
    fn functions_are_cut_behind_calls_that_never_return() {
        // `call` of what does not come back, then `ret`, to which something jumps or nothing does.
        let bytes = [0xe8, 0, 0, 0, 0, 0xc3];
        let mut region = region(&bytes, &[(0, 5, true), (5, 1, false)]);
        region.calls = vec![(5, Va(0x5000))];
        assert_eq!(region.cut(&[Va(0x5000)]).pieces, [(Va(0x1000), Va(0x1006))]);
        region.links = vec![(Va(0x2000), Va(0x1005))];
        assert_eq!(region.cut(&[]).pieces, [(Va(0x1000), Va(0x1006))]);
        assert_eq!(region.cut(&[Va(0x5000)]).pieces, [(Va(0x1000), Va(0x1005)), (Va(0x1005), Va(0x1006))]);
    }

    #[test]
    fn a_region_of_which_most_is_reached_by_nothing_is_given_up() {
        let bytes = [0xc3, 0x50, 0x58, 0xc3];
        // `finish` compares the two.
        let cut = region(&bytes, &[(0, 1, false)]).cut(&[]);
        assert_eq!((cut.pieces.len(), cut.num_left_over()), (1, 3));
    }

    #[test]
    fn code_that_is_read_as_data_is_given_up() {
        let bytes = [0x50, 0xc3, 0x50, 0xc3];
        let mut region = region(&bytes, &[(0, 1, true), (1, 1, false), (2, 1, true), (3, 1, false)]);
        region.entries = vec![Va(0x1000), Va(0x1002)];
        region.data = vec![Va(0x1001)];
        let cut = region.cut(&[]);
        assert_eq!((cut.pieces, cut.left_over), (vec![(Va(0x1002), Va(0x1004))], vec![(Va(0x1000), Va(0x1002))]));
        // At a fixed address all of it is.
        region.reads_numbers = true;
        assert_eq!(region.cut(&[]).pieces, []);
    }

    #[test]
    fn what_lies_between_the_functions_of_an_array_that_nothing_names_stays() {
        let range = |start: u64, end: u64| (Va(start), Va(end));
        // Functions of 100 bytes, between which 400 are reached by nothing; then one among 50.
        let pieces = vec![range(0, 100), range(500, 600), range(1000, 1100), range(1100, 1200), range(1250, 1350)];
        let left_over = vec![range(100, 500), range(600, 1000), range(1200, 1250)];
        let outside = |pointed: &[Va]| {
            let mut cut = Cut { pieces: pieces.clone(), left_over: left_over.clone() };
            assert_eq!(cut.without_arrays(pointed), [range(100, 1000)]);
            cut.pieces
        };
        assert_eq!(outside(&[Va(1000)]), [pieces[0], pieces[2], pieces[3], pieces[4]]);
        // What the array may be counted from stays with it, but not what stands before a little that nothing reaches.
        assert_eq!(outside(&[Va(0), Va(1100)]), pieces[2..]);
    }

    #[test]
    fn stretches_are_joined_where_that_leaves_more_over() {
        let range = |start: u64, end: u64| (Va(start), Va(end));
        let found = |pieces: &[(Va, Va)], left_over: &[(Va, Va)]| -> Vec<(u64, u64, u64)> {
            stretches(pieces, left_over).iter().map(|stretch| (stretch.start.0, stretch.end.0, stretch.excess)).collect()
        };
        assert_eq!(found(&[range(10, 15)], &[range(0, 10), range(15, 25)]), [(0, 25, 15)]);
        assert_eq!(found(&[range(10, 30)], &[range(0, 10), range(30, 40)]), [(0, 10, 10), (30, 40, 10)]);
        // A small one joins the two around it, though it could join neither alone.
        let pieces = [range(100, 150), range(160, 210)];
        assert_eq!(found(&pieces, &[range(0, 100), range(150, 160), range(210, 310)]), [(0, 310, 110)]);
    }

    #[test]
    fn a_call_of_what_stands_behind_it_is_one_unless_that_takes_the_return_address() {
        let run = |bytes: &[u8]| {
            let stubs = Stubs::default();
            region(bytes, &[]).run(0, Va(0x1000), &stubs, &mut Vec::new(), &mut Log::default()).is_ok()
        };
        assert!(run(&[0xe8, 0, 0, 0, 0, 0x50, 0x58, 0xc3]));
        assert!(!run(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]));
    }

    #[test]
    fn text_and_zeros_are_no_code() {
        for bytes in [&[0u8, 0, 0, 0][..], b"outbound", b"lmno", &[0xfa], &[0x06]] {
            let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
            assert!(!is_plausible(&instruction, bytes), "{bytes:x?}");
        }
    }
}
