//! Branches that don't reach go by way of a jump that does: one jump of five bytes is the relay of others to the same place, which then need two bytes.
//!
//! **Problem.** After blocks are ordered a tenth of the code is still branches with four bytes of distance: to error paths, to a function's end, to ends that functions share. Many
//! in one function lead to the same place.
//!
//! **Method.** *Chaining* (Leverett and Szymanski, "Chaining span-dependent jump instructions", TOPLAS 2 (3), 1980). All branches start as short as they reach, the rest is long. Of the long jumps
//! to one place those stay that are needed so that each of the others has one in reach; the others, and the conditional branches in reach, become
//! short branches to a jump that stays. Code only shrinks by that, so what reached still does; what reaches its target now becomes short too, and more relays come into reach: all is
//! repeated until nothing changes. Where no jump is in reach of several branches, one is put behind an end of a block that nothing runs over ([`islands`]), and all begins again.
//!
//! **Why it is safe.** A jump does nothing but to go on. Unwinders and debuggers that find the program at the relay see its row, so relay and branch have equal rows and equal places in the exception table.
//! A relay is never a branch that has one, so no way goes round in a circle.
//!
//! **Profit.** Four bytes for a conditional branch, three for a jump; a branch that is taken executes a jump more. So the branches are the caller's choice: none where that is much of what is executed.
//!
//! **Invariants.** Nothing in the fragment is aligned, or it stays as it is: padding may grow where code shrinks. In the end each short branch reaches, or all stays as it was.
//!
//! **Terminates**: each round but the last makes a branch short, and short ones stay so.

mod islands;
#[cfg(test)]
mod tests;

use std::ops::Range;

use lifter::address::Va;
use lifter::entity::{Block, EntityId, SecondaryMap};
use lifter::ir::{Program, StopKind, Terminator};
use xxhash_rust::xxh3::xxh3_64;

use super::relax::{IsLong, Relaxed, Shape, lay_out, offset_in, sizes, targets};
use crate::materialize::{Out, OutBlock, OutTarget, OutTerminator};
use crate::relink::eh_frame::FrameRows;
use crate::terminator::{LONG_BRANCH, LONG_JUMP, SHORT};

/// As far as a short branch reaches, from its end.
const FORWARD: u32 = 127;
const BACKWARD: u32 = 128;

/// What is known of where a block ends.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Of the terminator in the input.
    pub at: Va,
    /// Whether no branch goes by way of another from here to what is spared as well.
    pub is_spared: bool,
    /// What unwinders find there: equal for equal places. `None` where that is not known.
    pub unwinding: Option<u64>,
    /// Whether nothing runs on from here, and nothing returns to behind it.
    pub is_closed: bool,
}

/// A short branch to a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Relayed {
    /// The block in the fragment.
    pub block: u32,
    /// The jump behind a conditional branch, or alone.
    pub is_jump: bool,
    /// Of the relay, in the fragment.
    pub offset: u32,
}

impl Relayed {
    /// Bytes that it is shorter by.
    pub(super) fn saved(&self) -> u32 {
        if self.is_jump { LONG_JUMP - SHORT } else { LONG_BRANCH - SHORT }
    }
}

/// A jump that is nothing but a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Island {
    /// It stands behind this block of the fragment.
    pub block: u32,
    pub target: OutTarget,
    /// The instruction of the input with the same unwind row.
    pub stands: Va,
}

impl Island {
    pub(super) const LEN: u32 = LONG_JUMP;
}

/// A fragment, as far as relays depend on it.
#[derive(Copy, Clone)]
pub(super) struct Fragment<'a> {
    pub shapes: &'a [Shape],
    pub ends: &'a [End],
    pub blocks: &'a Range<u32>,
    /// Bytes before its blocks.
    pub room: u32,
}

/// Which jump is a relay.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Place {
    /// That with which a block ends.
    InBlock(u32),
    /// By index.
    Island(u32),
}

/// A long branch.
#[derive(Copy, Clone, Debug)]
struct Long {
    target: OutTarget,
    unwinding: u64,
    /// Of its first byte.
    offset: u32,
    place: Place,
    is_jump: bool,
    may_go: bool,
}

impl Long {
    fn key(&self) -> (u8, u64, u64, u32) {
        let (kind, target) = match self.target {
            OutTarget::Placed(out) => (0, out.index() as u64),
            OutTarget::Fixed(va) => (1, va.0),
        };
        (kind, target, self.unwinding, self.offset)
    }

    fn is_alike(&self, other: &Self) -> bool {
        self.target == other.target && self.unwinding == other.unwinding
    }

    fn len(&self) -> u32 {
        if self.is_jump { LONG_JUMP } else { LONG_BRANCH }
    }

    /// Whether a short branch in its place reaches an instruction, if between them come so many bytes more.
    fn reaches(&self, offset: u32, more: u32) -> bool {
        reaches((self.offset, self.len()), offset, more)
    }
}

/// Whether a branch that begins at an offset, and has so many bytes now, reaches another offset once it is short, if between them come so many bytes more.
fn reaches((start, len): (u32, u32), offset: u32, more: u32) -> bool {
    match offset.checked_sub(start + len) {
        Some(distance) => distance + more <= FORWARD,
        None => (start + SHORT).saturating_sub(offset) + more <= BACKWARD,
    }
}

/// Gives relays to branches of a fragment that has been laid out.
pub(super) fn place(fragment: Fragment<'_>, is_spared: impl Fn(OutTarget) -> bool, relaxed: &mut Relaxed) {
    if fragment.shapes.iter().skip(1).any(|shape| shape.align > 1) {
        return;
    }
    let before = relaxed.clone();
    let (ways, unwinding, is_relay) = (Vec::new(), Vec::new(), vec![false; fragment.shapes.len()]);
    let mut relays = Relays { fragment, is_spared, relaxed, ways, is_relay, unwinding };
    relays.settle();
    while relays.add_islands() {
        relays.settle();
    }
    relays.note_relayed();
    relaxed.islands.sort_unstable_by_key(|island| island.block);
    if !all_reach(fragment, relaxed) {
        *relaxed = before;
    }
}

/// A branch and its relay.
#[derive(Copy, Clone, Debug)]
struct Way {
    block: u32,
    is_jump: bool,
    relay: Place,
}

struct Relays<'a, F> {
    fragment: Fragment<'a>,
    is_spared: F,
    relaxed: &'a mut Relaxed,
    ways: Vec<Way>,
    /// By block, whether the jump at its end is one.
    is_relay: Vec<bool>,
    /// By island, what unwinders find there.
    unwinding: Vec<u64>,
}

impl<F: Fn(OutTarget) -> bool> Relays<'_, F> {
    /// Makes short what can be with the jumps that there are.
    fn settle(&mut self) {
        loop {
            let longs = self.long_branches();
            let first = self.ways.len();
            longs.chunk_by(Long::is_alike).filter(|alike| alike.len() > 1).for_each(|alike| self.find(alike));
            self.shorten_from(first);
            let has_shortened = shorten_what_reaches(self.fragment, self.relaxed);
            if !has_shortened && self.ways.len() == first {
                return;
            }
            lay_out(self.fragment.shapes, self.fragment.room, self.relaxed);
        }
    }

    /// Long branches, those that are alike side by side and ascending.
    fn long_branches(&self) -> Vec<Long> {
        let Relaxed { is_long, offsets, islands, .. } = &*self.relaxed;
        let mut longs = Vec::new();
        for (index, (shape, end)) in self.fragment.shapes.iter().zip(self.fragment.ends).enumerate() {
            let (is_long, Some(unwinding)) = (is_long[index], end.unwinding) else { continue };
            let (taken, jump) = targets(shape.terminator);
            let (taken_size, _) = sizes(shape, is_long);
            let offset = offsets[index] + shape.body_len;
            let long = |target, offset, is_jump| {
                let may_go = !end.is_spared || !(self.is_spared)(target);
                Long { target, unwinding, offset, place: Place::InBlock(index as u32), is_jump, may_go }
            };
            longs.extend(taken.filter(|_| is_long.taken && !shape.is_loop()).map(|target| long(target, offset, false)));
            longs.extend(jump.filter(|_| is_long.jump).map(|target| long(target, offset + taken_size, true)));
        }
        let of_island = |(index, (island, &unwinding)): (usize, (&Island, &u64))| Long {
            target: island.target,
            unwinding,
            offset: self.relaxed.island_offset(self.fragment.shapes, island),
            place: Place::Island(index as u32),
            is_jump: true,
            may_go: false,
        };
        longs.extend(islands.iter().zip(&self.unwinding).enumerate().map(of_island));
        longs.sort_unstable_by_key(Long::key);
        longs
    }

    /// Finds relays among branches to one place, ascending.
    fn find(&mut self, alike: &[Long]) {
        let jumps: Vec<&Long> = alike.iter().filter(|long| long.is_jump).collect();
        let mut stays: Vec<&Long> = jumps.iter().copied().filter(|long| !self.may_go(long)).collect();
        for (index, &first) in jumps.iter().enumerate() {
            if stays.iter().any(|relay| relay.place == first.place || first.reaches(relay.offset, 0)) {
                continue;
            }
            // The last one in its reach serves those behind as well.
            let reached = jumps[index + 1..].iter().take_while(|other| first.reaches(other.offset, 0)).last();
            stays.push(reached.unwrap_or(&first));
        }
        let stays_itself = |long: &Long| long.is_jump && stays.iter().any(|relay| relay.place == long.place);
        let going: Vec<&Long> = alike.iter().filter(|long| self.may_go(long) && !stays_itself(long)).collect();
        for long in going {
            let relays = stays.iter().filter(|relay| relay.place != long.place && long.reaches(relay.offset, 0));
            if let Some(relay) = relays.min_by_key(|relay| relay.offset.abs_diff(long.offset)) {
                self.lead(long, relay.place);
            }
        }
    }

    /// Whether a branch may get a relay: one that is itself a relay may not.
    fn may_go(&self, long: &Long) -> bool {
        let is_relay = long.is_jump && matches!(long.place, Place::InBlock(block) if self.is_relay[block as usize]);
        long.may_go && !is_relay
    }

    /// Lets a branch go by way of a relay.
    fn lead(&mut self, long: &Long, relay: Place) {
        let Place::InBlock(block) = long.place else { return };
        if let Place::InBlock(relay) = relay {
            self.is_relay[relay as usize] = true;
        }
        self.ways.push(Way { block, is_jump: long.is_jump, relay });
    }

    /// Makes the branches short that got relays.
    fn shorten_from(&mut self, first: usize) {
        for way in &self.ways[first..] {
            let is_long = &mut self.relaxed.is_long[way.block as usize];
            *(if way.is_jump { &mut is_long.jump } else { &mut is_long.taken }) = false;
        }
        lay_out(self.fragment.shapes, self.fragment.room, self.relaxed);
    }

    /// Says where all ways lead by now.
    fn note_relayed(&mut self) {
        let (relaxed, shapes) = (&*self.relaxed, self.fragment.shapes);
        let relayed = |way: &Way| {
            let offset = match way.relay {
                Place::Island(index) => relaxed.island_offset(shapes, &relaxed.islands[index as usize]),
                Place::InBlock(block) => relaxed.jump_offset(shapes, block as usize),
            };
            Relayed { block: way.block, is_jump: way.is_jump, offset }
        };
        let mut relayed: Vec<Relayed> = self.ways.iter().map(relayed).collect();
        relayed.sort_unstable();
        self.relaxed.relayed = relayed;
    }
}

/// Makes long branches short that reach where they go by now; whether there are any.
fn shorten_what_reaches(fragment: Fragment<'_>, relaxed: &mut Relaxed) -> bool {
    let mut has_shortened = false;
    for (index, shape) in fragment.shapes.iter().enumerate() {
        let is_long = relaxed.is_long[index];
        let (taken, jump) = targets(shape.terminator);
        let (taken_size, jump_size) = sizes(shape, is_long);
        let start = relaxed.offsets[index] + shape.body_len;
        let reaches = |target: Option<OutTarget>, start: u32, size: u32| {
            let offset = target.and_then(|target| offset_in(target, fragment.blocks, &relaxed.offsets));
            offset.is_some_and(|offset| reaches((start, size), offset, 0))
        };
        let still_long = IsLong {
            taken: is_long.taken && (shape.is_loop() || !reaches(taken, start, taken_size)),
            jump: is_long.jump && !reaches(jump, start + taken_size, jump_size),
        };
        has_shortened |= still_long != is_long;
        relaxed.is_long[index] = still_long;
    }
    has_shortened
}

/// Whether each short branch reaches where it leads.
fn all_reach(fragment: Fragment<'_>, relaxed: &Relaxed) -> bool {
    fragment.shapes.iter().enumerate().all(|(index, shape)| {
        let short = relaxed.short_branches(shape, index, fragment.blocks);
        short.into_iter().flatten().all(|(end, offset)| i8::try_from(i64::from(offset) - i64::from(end)).is_ok())
    })
}

/// What is known of where each block of a fragment ends.
pub(super) fn ends_of(program: &Program, spared: &SecondaryMap<Block, bool>, blocks: &[(Out, OutBlock)]) -> Vec<End> {
    let mut unwinding = Unwinding { program, last: None };
    let mut end_of = |&(_, block): &(Out, OutBlock)| {
        let data = &program.blocks[block.origin];
        let at = data.start + u64::from(data.body_len);
        let has_branches = block.copies_body && block.terminator != OutTerminator::None;
        let unwinding = if has_branches { unwinding.at(data.range, at) } else { None };
        End { at, is_spared: spared[block.origin], unwinding, is_closed: is_closed(block.terminator, &data.terminator) }
    };
    blocks.iter().map(&mut end_of).collect()
}

/// Whether nothing runs on behind a block, nor returns there: a call may come back though it is not known to.
fn is_closed(emitted: OutTerminator, meant: &Terminator) -> bool {
    match emitted {
        OutTerminator::None => {
            matches!(meant, Terminator::Stop(StopKind::Return | StopKind::TableJump(_) | StopKind::IndirectTailCall))
        }
        OutTerminator::Jump(_) => true,
        OutTerminator::Branch { jump, .. } | OutTerminator::Loop { jump, .. } => jump.is_some(),
    }
}

/// What unwinders find at places of one fragment after another.
struct Unwinding<'a> {
    program: &'a Program,
    /// The rows of the range that was asked for last, if they are understood.
    last: Option<(u32, Option<FrameRows<'a>>)>,
}

impl Unwinding<'_> {
    /// A number that is equal for equal rows and entries of the exception table; `None` where they are not known.
    fn at(&mut self, range: u32, at: Va) -> Option<u64> {
        let program = self.program;
        let Some(fde) = program.ranges[range as usize].fde.and_then(|fde| program.unwind.fdes.get(fde)) else { return Some(0) };
        if fde.opaque_lsda.is_some() {
            return None;
        }
        if self.last.as_ref().is_none_or(|(last, _)| *last != range) {
            let rows = program.unwind.cies.get(fde.cie as usize).and_then(|cie| FrameRows::evaluate(cie, fde));
            self.last = Some((range, rows));
        }
        let mut found = Vec::new();
        self.last.as_ref().and_then(|(_, rows)| rows.as_ref())?.describe(at, at, &mut found);
        let lsda = fde.lsda.and_then(|lsda| program.unwind.lsdas.get(lsda as usize));
        let site = lsda.and_then(|lsda| lsda.call_sites.iter().find(|site| site.start <= at && at < site.end));
        let pad = site.map_or(0, |site| 1 + site.landing_pad.map_or(0, |pad| pad.0));
        found.extend([pad, site.map_or(0, |site| site.action)].into_iter().flat_map(u64::to_le_bytes));
        Some(xxh3_64(&found))
    }
}
