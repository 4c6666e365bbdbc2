//! Where code of the input went, as debug information asks: by ranges of old addresses.
//!
//! **Method.** The output is a list of *stretches*, each with the code of the input that it stands for. A *copied* one is that code byte for byte. A
//! *replaced* one is other code that does the work of one place of the input; its variables are where they were. In a *rewritten* one they may be elsewhere.
//! A range of old addresses becomes the union of what stands for it, in as many parts as that has.
//!
//! **Invariants.** Stretches don't overlap in the output. In the input they may, because code may be copied; old code that none stands for is gone.

use std::ops::Range;

use lifter::Image;
use lifter::address::Va;
use lifter::ir::{CodeTarget, Program, Terminator};
use lifter::x86::padding_len;
use rayon::prelude::*;

use crate::encode::{FragmentShape, Shapes};
use crate::materialize::OutProgram;
use crate::relink::addresses::Addresses;

/// What a stretch is to the code that it stands for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Copied,
    Replaced,
    Rewritten,
    /// A jump to what followed: it belongs to what it stands behind.
    Added,
}

/// A run of output bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Behind the alignment that follows in the same fragment.
    pub(crate) reach: u64,
    /// The code of the input.
    pub(crate) old: u64,
    pub(crate) old_end: u64,
    pub(crate) kind: Kind,
}

impl Stretch {
    /// The part of it that stands for some of the old addresses; not empty.
    pub(crate) fn part(&self, old: &Range<u64>) -> Option<Stretch> {
        let (from, to) = (old.start.max(self.old), old.end.min(self.old_end));
        if from >= to {
            return None;
        }
        let (start, end) = (self.place(from), self.place(to));
        let reach = if to == self.old_end { self.reach } else { end };
        (start < end).then_some(Stretch { start, end, reach, old: from, old_end: to, kind: self.kind })
    }

    /// Where an old address is. One inside of what is no copy is its last byte: GCC lets what is true of variables after a call begin with the call's last byte, and what is true of them once arguments are
    /// set is so for who looks up where a call is that sets them.
    fn place(&self, old: u64) -> u64 {
        match self.kind {
            Kind::Copied => self.start + (old - self.old),
            _ if old == self.old => self.start,
            _ if old == self.old_end => self.end,
            _ => self.end.saturating_sub(1).max(self.start),
        }
    }
}

/// A stretch as all of them are kept: there are as many as blocks.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Kept {
    start: u64,
    old: u64,
    len: u32,
    old_len: u32,
    /// From the end.
    reach: u32,
    kind: Kind,
}

impl Kept {
    /// The parts of a stretch that are short enough, mostly one.
    fn parts_of(stretch: Stretch) -> impl Iterator<Item = Kept> {
        let Stretch { start, end, reach, old, old_end, kind } = stretch;
        let longest = u64::from(u32::MAX);
        let part = move |from: u64| {
            let (len, old_len) = ((end - start - from).min(longest), (old_end - old).saturating_sub(from).min(longest));
            let (len, old_len, reach) = (len as u32, old_len as u32, (reach - end).min(longest) as u32);
            Kept { start: start + from, old: old + from, len, old_len, reach, kind }
        };
        (0..(end - start).max(1)).step_by(u32::MAX as usize).map(part)
    }

    fn stretch(&self) -> Stretch {
        let Kept { start, old, len, old_len, reach, kind } = *self;
        let end = start + u64::from(len);
        Stretch { start, end, reach: end + u64::from(reach), old, old_end: old + u64::from(old_len), kind }
    }
}

/// For so many stretches the furthest end is known together.
const TOGETHER: usize = 16;

/// Compilers align by less.
const PADDING_MAX: u64 = 256;

/// Bytes of an instruction (Intel SDM vol. 2, 2.3.11): what stands for more has no order in common with it.
const INSTRUCTION_MAX: u32 = 15;

/// The stretches by old address.
#[derive(Debug)]
pub(crate) struct CodeMap<'a> {
    stretches: Vec<Kept>,
    /// Of `TOGETHER` and all before them: the furthest end of old code.
    furthest: Vec<u64>,
    image: &'a Image<'a>,
    program: &'a Program,
    addresses: &'a Addresses<'a>,
    /// Of the sections whose code may move.
    code: Vec<Range<u64>>,
}

impl<'a> CodeMap<'a> {
    pub(crate) fn new(image: &'a Image<'a>, program: &'a Program, addresses: &'a Addresses<'a>, moved: Vec<Kept>) -> Self {
        let executable = image.sections.iter().filter(|(_, s)| s.is_alloc() && s.is_executable() && s.sh_size > 0);
        let (movable, fixed): (Vec<_>, Vec<_>) = executable.partition(|(id, _)| image.is_movable_code_section(*id));
        let mut stretches = moved;
        stretches.extend(fixed.iter().flat_map(|(_, section)| in_place(section.sh_addr, section.end())));
        let stays = program.ranges.iter().filter(|range| !program.funcs[range.func].is_movable());
        stretches.extend(stays.flat_map(|range| in_place(range.start, range.end)));
        stretches.par_sort_unstable_by_key(|s| (s.old, s.start, s.len, s.old_len));
        let mut furthest = 0;
        let up_to = |together: &[Kept]| {
            furthest = together.iter().map(|s| s.stretch().old_end).fold(furthest, u64::max);
            furthest
        };
        let furthest = stretches.chunks(TOGETHER).map(up_to).collect();
        let code = movable.iter().map(|(_, section)| section.sh_addr.0..section.end().0).collect();
        CodeMap { stretches, furthest, image, program, addresses, code }
    }

    /// Whether code that may have moved was at an old address.
    pub(crate) fn is_code(&self, old: u64) -> bool {
        self.code.iter().any(|range| range.contains(&old))
    }

    /// What stands for a range of old addresses, by old address.
    pub(crate) fn parts(&self, old: Range<u64>) -> impl Iterator<Item = Stretch> {
        self.near(&old).filter_map(move |s| s.part(&old))
    }

    /// The same, with where a function begins: if its first instruction is not there where the code is rewritten, its lines are told at the next one.
    pub(crate) fn parts_of_lines(&self, old: Range<u64>) -> impl Iterator<Item = Stretch> {
        let range = old.clone();
        let part = move |s: Stretch| match s.start == s.end && old.contains(&s.old) && self.is_entry(s.old) {
            true => Some(s),
            false => s.part(&old),
        };
        self.near(&range).filter_map(part)
    }

    fn is_entry(&self, old: u64) -> bool {
        let program = self.program;
        program.block_at(Va(old)).is_some_and(|block| program.funcs[program.func_of(block)].entry == block)
    }

    /// All stretches that stand for old code in a range, and maybe others.
    fn near(&self, old: &Range<u64>) -> impl Iterator<Item = Stretch> + use<'_, 'a> {
        let first = TOGETHER * self.furthest.partition_point(|&furthest| furthest <= old.start);
        let end = self.stretches.partition_point(|s| s.old < old.end);
        self.stretches.get(first..end).unwrap_or(&[]).iter().map(Kept::stretch)
    }

    /// The output's ranges for old ones, ascending and apart from each other; those of one fragment are one if only alignment is between.
    pub(crate) fn ranges(&self, old: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
        self.joined(old, true)
    }

    /// The same for what is true of variables.
    pub(crate) fn ranges_of_variables(&self, old: Range<u64>) -> Vec<Range<u64>> {
        self.joined([old], false)
    }

    fn joined(&self, old: impl IntoIterator<Item = Range<u64>>, with_rewritten: bool) -> Vec<Range<u64>> {
        let parts = old.into_iter().flat_map(|old| self.parts(old));
        let mut parts: Vec<Stretch> = parts.filter(|s| with_rewritten || s.kind != Kind::Rewritten).collect();
        parts.sort_unstable_by_key(|s| (s.start, s.end));
        let mut reach = 0;
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for part in parts {
            match ranges.last_mut() {
                Some(last) if part.start <= reach => last.end = last.end.max(part.end),
                _ => ranges.push(part.start..part.end),
            }
            reach = part.reach.max(part.end);
        }
        ranges
    }

    /// The new place of one address of code, `None` if that is gone. Of several copies, that of the function itself. Of padding and of jumps that are not made, it is
    /// that of what runs next.
    pub(crate) fn place(&self, old: u64) -> Option<u64> {
        let mut at = old;
        // Padding, a jump, padding again at its target: more than a few are a circle.
        for _ in 0..8 {
            // One may be empty: what the instruction did is not done, and what follows runs.
            let holds = |s: &Stretch| s.old <= at && at < s.old_end;
            let places = self.near(&(at..at.checked_add(1)?)).filter(holds).map(|s| s.place(at));
            match self.own(at, places) {
                Some(place) => return Some(place),
                None => at = self.next(at)?,
            }
        }
        None
    }

    /// Where control goes from what need not be in the output.
    fn next(&self, old: u64) -> Option<u64> {
        let Some(block) = self.program.block_containing(Va(old)) else {
            let section = self.code.iter().find(|range| range.contains(&old))?;
            let rest = self.image.read(Va(old), (section.end - old).min(PADDING_MAX) as usize)?;
            return Some(padding_len(rest) as u64).filter(|&len| len > 0).map(|len| old + len);
        };
        let data = &self.program.blocks[block];
        if Va(old) < data.start + u64::from(data.body_len) {
            return None;
        }
        match data.terminator {
            Terminator::Jump { target: CodeTarget::Block(next) } | Terminator::Fallthrough { next } => {
                Some(self.program.blocks[next].start.0)
            }
            Terminator::Jump { target: CodeTarget::Fixed(va) } => Some(va.0),
            _ => None,
        }
    }

    /// The new address behind the code that ends at `old`: of a return address.
    pub(crate) fn end(&self, old: u64) -> Option<u64> {
        let last = old.checked_sub(1)?;
        let end = |s: Stretch| match s.kind {
            Kind::Copied => s.part(&(last..old)).map(|part| part.end),
            Kind::Replaced | Kind::Rewritten | Kind::Added => (s.old_end == old).then_some(s.end),
        };
        let ends = |is_added: bool| {
            let near = self.near(&(last..old)).filter(move |s| s.old_end >= old && (s.kind == Kind::Added) == is_added);
            self.own(last, near.filter_map(end))
        };
        ends(false).or_else(|| ends(true))
    }

    fn own(&self, old: u64, places: impl Iterator<Item = u64>) -> Option<u64> {
        let guess = self.program.block_containing(Va(old)).map_or(old, |block| {
            let within = Va(old) - self.program.blocks[block].start;
            self.addresses.block(block).0 + within
        });
        places.min_by_key(|place| place.abs_diff(guess))
    }
}

fn in_place(start: Va, end: Va) -> impl Iterator<Item = Kept> {
    Kept::parts_of(Stretch { start: start.0, end: end.0, reach: end.0, old: start.0, old_end: end.0, kind: Kind::Copied })
}

/// The stretches of all fragments, which are placed at these addresses. What stands before calls of several functions belongs to none of them.
pub(crate) fn all_stretches(out: &OutProgram<'_>, shapes: &Shapes, places: &[Va]) -> Vec<Kept> {
    let is_of_function = |fragment: usize| !out.fragments[fragment].clone.is_some_and(|clone| out.is_body(clone));
    places
        .par_iter()
        .enumerate()
        .filter(|&(fragment, _)| is_of_function(fragment))
        .flat_map_iter(|(fragment, &at)| {
            let lead_len = out.lead_len(&out.fragments[fragment]);
            stretches(shapes.of(fragment), lead_len, at).into_iter().flat_map(Kept::parts_of)
        })
        .collect()
}

/// The stretches of a fragment that is placed at an address, behind its lead.
fn stretches(code: FragmentShape<'_>, lead_len: u32, at: Va) -> Vec<Stretch> {
    let mut stretches: Vec<Stretch> = Vec::with_capacity(code.runs.len());
    let mut rewritten = code.rewritten.iter().peekable();
    // What is left out for nothing keeps a place: that of what follows.
    for run in code.runs.iter().filter(|run| run.offset >= lead_len && (run.len > 0 || run.old_len > 0)) {
        let (start, end) = (at.0 + u64::from(run.offset), at.0 + u64::from(run.offset + run.len));
        let old = run.old_start.0;
        while rewritten.next_if(|r| r.offset < run.offset).is_some() {}
        if rewritten.peek().is_some_and(|r| r.offset < run.offset + run.len) {
            while let Some(r) = rewritten.next_if(|r| r.offset < run.offset + run.len) {
                let start = at.0 + u64::from(r.offset);
                close(&mut stretches, start);
                let (old, old_end) = (r.old.0, r.old.0 + u64::from(r.old_len));
                let kind = if r.keeps_variables { Kind::Replaced } else { Kind::Rewritten };
                stretches.push(Stretch { start, end, reach: end, old, old_end, kind });
            }
            continue;
        }
        close(&mut stretches, start);
        let is_copied = !run.is_new && run.old_len == run.len;
        let is_added = !run.is_new && run.old_len == 0;
        let kind = match is_copied {
            true => Kind::Copied,
            false if is_added => Kind::Added,
            false => Kind::Replaced,
        };
        let old = if is_added { old.saturating_sub(1) } else { old };
        let old_len = if is_copied || run.old_len <= INSTRUCTION_MAX { run.old_len.max(1) } else { 1 };
        stretches.push(Stretch { start, end, reach: end, old, old_end: old + u64::from(old_len), kind });
    }
    stretches
}

/// What comes next begins at `next`: the last one ends there, or reaches up to there.
fn close(stretches: &mut [Stretch], next: u64) {
    if let Some(last) = stretches.last_mut() {
        last.end = last.end.min(next);
        last.reach = next;
    }
}
