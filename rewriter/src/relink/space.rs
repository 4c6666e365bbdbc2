//! Where bytes may go: intervals of address space that the new code and its tables share.
//!
//! **Method.** Code goes into what the old text leaves free: its sections less every pinned range. It is handed out in order, so that
//! fragments laid out next to each other stay so; what an interval has left when a fragment doesn't fit becomes a hole, and small
//! fragments later go into the smallest hole that takes them. What fits nowhere goes to the *overflow*: a segment behind the image, which
//! exists only if something is in it.
//!
//! **Invariants.** No two things handed out overlap; nothing handed out lies on a pinned range. `Overflow::start` equals its file offset
//! modulo the page size.

use std::collections::BTreeSet;

use lifter::Image;
use lifter::address::{FileOffset, Va};
use lifter::elf::image::Segment;
use lifter::ir::{BlockData, BlockFlags, CodeRange, Program, Relay};
use object::elf;

use crate::encode::WORTH_PER_BYTE;

/// A cache line, which is what an instruction fetch that misses brings in.
const LINE_BYTES: u64 = 64;
/// What a byte that is skipped costs, and what a line is worth.
const BYTE_COST: u64 = WORTH_PER_BYTE as u64;
const LINE_WORTH: u64 = 33 * BYTE_COST;
/// The most that is skipped.
const SKIPPED_MAX: u64 = 32;
/// The page size that the psABI promises at least.
pub(crate) const PAGE: u64 = 4096;

/// Which addresses do: those of which some bytes further is a multiple of a power of two.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    /// The power of two.
    pub(crate) to: u64,
    pub(crate) after: u64,
}

impl Alignment {
    /// The first such address from one on.
    fn first_from(self, va: Va) -> Va {
        let aligned = (va + self.after).align_up(self.to);
        Va(aligned.0.saturating_sub(self.after))
    }
}

impl From<u64> for Alignment {
    fn from(to: u64) -> Self {
        Self { to, after: 0 }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    pub(crate) start: Va,
    pub(crate) end: Va,
}

impl Interval {
    pub(crate) fn len(self) -> u64 {
        self.end.0.saturating_sub(self.start.0)
    }
    /// Where `len` bytes at `align` would begin, if they fit.
    fn fit(self, len: u64, align: impl Into<Alignment>) -> Option<Va> {
        let at = align.into().first_from(self.start);
        (at.0.checked_add(len)? <= self.end.0).then_some(at)
    }
}

/// What is added behind the image: a segment of its own, or more of the last one, where that is code already (in an output of relift's,
/// say).
#[derive(Copy, Clone, Debug)]
pub(crate) struct Overflow {
    pub(crate) start: Va,
    pub(crate) offset: FileOffset,
    pub(crate) end: Va,
    /// The segment that it continues.
    pub(crate) extends: Option<usize>,
}

impl Overflow {
    /// Behind everything loaded, `reserved` bytes of zero-filled memory included, and behind everything loaded from the file.
    pub(crate) fn behind(image: &Image<'_>, reserved: u64) -> Self {
        let file_end = loaded_file_end(image).next_multiple_of(16);
        if let Some((index, last)) = last_code(image).filter(|_| reserved == 0) {
            let skipped = file_end - (last.p_offset.0 + last.p_filesz);
            let start = last.end() + skipped;
            return Overflow { start, offset: FileOffset(file_end), end: start, extends: Some(index) };
        }
        let start = (image.high() + reserved).align_up(PAGE) + file_end % PAGE;
        Overflow { start, offset: FileOffset(file_end), end: start, extends: None }
    }
    pub(crate) fn take(&mut self, len: u64, align: impl Into<Alignment>) -> Va {
        let at = align.into().first_from(self.end);
        self.end = at + len;
        at
    }
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The last segment, in memory and in the file, if it is code and can grow at its end.
fn last_code<'i>(image: &'i Image<'_>) -> Option<(usize, &'i Segment)> {
    let loads = image.segments.iter().enumerate().filter(|(_, s)| s.is_load());
    let (index, last) = loads.max_by_key(|(_, s)| s.p_vaddr)?;
    let is_code = last.p_flags == elf::PF_R | elf::PF_X && last.p_filesz == last.p_memsz;
    (is_code && last.p_offset.0 + last.p_filesz == loaded_file_end(image)).then_some((index, last))
}

/// One past the last byte of the file that a loader maps.
pub(crate) fn loaded_file_end(image: &Image<'_>) -> u64 {
    image.loads().map(|s| s.p_offset.0 + s.p_filesz).max().unwrap_or(0)
}

/// What the cache lines cost that `len` bytes at an address lie in.
pub(crate) fn line_cost(at: Va, len: u64) -> u64 {
    (at.0 % LINE_BYTES + len).div_ceil(LINE_BYTES) * LINE_WORTH
}

/// Free space for code.
#[derive(Debug)]
pub(crate) struct Space {
    /// Ascending; `next` is the one being filled.
    intervals: Vec<Interval>,
    next: usize,
    /// Where among them a length fits: a file with many anchors has as many intervals.
    lengths: MaxTree,
    /// What was passed over, by (length, start).
    holes: BTreeSet<(u64, Va)>,
    /// Whether the last of them ends where a section does: pinned code may lie behind it.
    has_tail: bool,
    /// Where the text ends, if what is behind was given to something else than code.
    pub(crate) text_end: Option<Va>,
    /// Free, and not to be used.
    pub(crate) unused: Vec<Interval>,
    pub(crate) overflow: Overflow,
}

/// The smallest rest of an interval worth remembering.
const HOLE_BYTES_MIN: u64 = 16;

impl Space {
    /// `ends` are the ends of the sections that the intervals are in.
    pub(crate) fn new(intervals: Vec<Interval>, ends: &[Va], overflow: Overflow) -> Self {
        let lengths = MaxTree::new(intervals.iter().map(|i| i.len()));
        let has_tail = intervals.last().is_some_and(|last| ends.contains(&last.end));
        Self { intervals, next: 0, lengths, holes: BTreeSet::new(), has_tail, text_end: None, unused: Vec::new(), overflow }
    }

    /// Hands out in order from the interval on that an address is in; those before it are holes.
    pub(crate) fn begin_at(&mut self, from: Va) {
        let first = self.intervals.partition_point(|interval| interval.end <= from);
        for passed in self.next..first {
            self.add_hole(self.intervals[passed]);
        }
        self.next = first;
    }

    /// Where what is handed out in order goes next, if it fits.
    pub(crate) fn next_in_order(&self) -> Va {
        self.intervals.get(self.next).map_or(self.overflow.end, |interval| interval.start)
    }

    /// Whether so many bytes fit in order.
    pub(crate) fn has_room(&self, len: u64) -> bool {
        self.first_fit(len, 1).is_some()
    }

    /// The length of the longest hole.
    pub(crate) fn longest_hole(&self) -> Option<u64> {
        self.holes.last().map(|hole| hole.0)
    }

    /// Makes holes of all that is left.
    pub(crate) fn give_up_order(&mut self) {
        // Those before `next` are holes already, or what is left of them is.
        for interval in self.intervals.split_off(self.next.min(self.intervals.len())) {
            self.add_hole(interval);
        }
        self.intervals.clear();
        (self.next, self.has_tail, self.lengths) = (0, false, MaxTree::new([].into_iter()));
    }

    /// Room for `len` bytes behind what was handed out before, as far as possible.
    pub(crate) fn take_in_order(&mut self, len: u64, align: impl Into<Alignment>) -> Va {
        let align = align.into();
        // A large fragment must not close an interval that many small ones could still use: look on without moving on.
        let Some((index, at)) = self.first_fit(len, align) else { return self.take_anywhere(len, align) };
        self.take_from(index, at, len);
        at
    }

    /// As `take_in_order`, at the start of a cache line where that spares the code a line and skips few bytes.
    pub(crate) fn take_lines_in_order(&mut self, len: u64, align: impl Into<Alignment>) -> Va {
        self.take_cheap_in_order(len, align, |at| line_cost(at, len)).0
    }

    /// As `take_in_order`, but further on by some bytes where that costs less than these do; `cost` is in sixteenths of a byte. With how many they are.
    pub(crate) fn take_cheap_in_order(&mut self, len: u64, align: impl Into<Alignment>, cost: impl Fn(Va) -> u64) -> (Va, u64) {
        let align = align.into();
        let Some((index, first)) = self.first_fit(len, align) else { return (self.take_in_order(len, align), 0) };
        let last = first.0.saturating_add(SKIPPED_MAX).min(self.intervals[index].end.0 - len);
        let places = (first.0..=last).step_by(align.to.max(1) as usize).map(Va);
        let at = places.min_by_key(|&at| (at - first) * BYTE_COST + cost(at)).unwrap_or(first);
        self.take_from(index, at, len);
        (at, at - first)
    }

    /// Hands out `len` bytes of an interval, and goes on from there.
    fn take_from(&mut self, index: usize, at: Va, len: u64) {
        for passed in self.next..index {
            self.add_hole(self.intervals[passed]);
        }
        self.next = index;
        self.take_start(index, at, len);
    }

    /// The first interval that takes `len` bytes, and where.
    fn first_fit(&self, len: u64, align: impl Into<Alignment>) -> Option<(usize, Va)> {
        let align = align.into();
        let mut from = self.next;
        loop {
            let index = self.lengths.first_at_least(from, len)?;
            match self.intervals[index].fit(len, align) {
                Some(at) => return Some((index, at)),
                None => from = index + 1,
            }
        }
    }

    /// Hands out the front of an interval up to `at + len`.
    fn take_start(&mut self, index: usize, at: Va, len: u64) {
        let skipped = Interval { start: self.intervals[index].start, end: at };
        self.add_hole(skipped);
        self.intervals[index].start = at + len;
        self.lengths.set(index, self.intervals[index].len());
    }

    /// Room for `len` bytes in the smallest hole that takes them, else in order, else behind the image.
    pub(crate) fn take_anywhere(&mut self, len: u64, align: impl Into<Alignment>) -> Va {
        let align = align.into();
        match self.take_hole(len, align).or_else(|| self.take_rest(len, align)) {
            Some(at) => at,
            None => self.overflow.take(len, align),
        }
    }

    /// Room for `len` bytes in the smallest hole that takes them.
    pub(crate) fn take_hole(&mut self, len: u64, align: impl Into<Alignment>) -> Option<Va> {
        let align = align.into();
        // With alignment the smallest hole that is long enough may still not do; a few more are tried, never all.
        const TRIES: usize = 8;
        let candidates = self.holes.range((len, Va(0))..).take(TRIES);
        let (hole, at) = candidates
            .map(|&(size, start)| Interval { start, end: start + size })
            .find_map(|hole| Some((hole, hole.fit(len, align)?)))?;
        self.holes.remove(&(hole.len(), hole.start));
        self.add_hole(Interval { start: hole.start, end: at });
        self.add_hole(Interval { start: at + len, end: hole.end });
        Some(at)
    }

    fn take_rest(&mut self, len: u64, align: impl Into<Alignment>) -> Option<Va> {
        let (index, at) = self.first_fit(len, align)?;
        self.take_start(index, at, len);
        Some(at)
    }

    fn add_hole(&mut self, hole: Interval) {
        if hole.len() >= HOLE_BYTES_MIN {
            self.holes.insert((hole.len(), hole.start));
        }
    }

    /// Room for what is no code: at the text's end, or behind the image if something is there already.
    pub(crate) fn take_together(&mut self, len: u64, align: u64) -> Option<Va> {
        let Some((tail, at)) = self.tail().and_then(|tail| Some((tail, tail.fit(len, align)?))) else {
            return (!self.overflow.is_empty()).then(|| self.overflow.take(len, align));
        };
        self.text_end = Some(tail.start);
        let index = self.intervals.len() - 1;
        self.intervals[index].start = at + len;
        self.lengths.set(index, self.intervals[index].len());
        Some(at)
    }

    /// What was not handed out.
    pub(crate) fn rest(&self) -> Vec<Interval> {
        let holes = self.holes.iter().map(|&(size, start)| Interval { start, end: start + size });
        holes
            .chain(self.unused.iter().copied())
            .chain(self.intervals[self.next.min(self.intervals.len())..].iter().copied())
            .collect()
    }

    /// The last interval's unused end, if its section ends there too.
    pub(crate) fn tail(&self) -> Option<Interval> {
        self.intervals.last().copied().filter(|i| i.len() > 0 && self.has_tail)
    }
    /// Gives up `tail`: nothing more is placed there.
    pub(crate) fn close_tail(&mut self) {
        if let Some(last) = self.intervals.last_mut() {
            last.end = last.start;
            self.lengths.set(self.intervals.len() - 1, 0);
        }
    }
}

/// Ranges of addresses, or of a file, ascending, with what touches made one.
pub(crate) fn joined<T: Copy + Ord>(mut ranges: Vec<(T, T)>) -> Vec<(T, T)> {
    ranges.retain(|(start, end)| start < end);
    ranges.sort_by_key(|&(start, _)| start);
    let mut joined: Vec<(T, T)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Lengths, of which the first that is long enough is found in logarithmic time: a tree of maxima in a vector, children of `i` at
/// `2i` and `2i + 1`.
#[derive(Debug)]
struct MaxTree {
    nodes: Vec<u64>,
    num_leaves: usize,
}

impl MaxTree {
    fn new(lengths: impl ExactSizeIterator<Item = u64>) -> Self {
        let num_leaves = lengths.len().next_power_of_two();
        let mut nodes = vec![0; 2 * num_leaves];
        for (index, length) in lengths.enumerate() {
            nodes[num_leaves + index] = length;
        }
        for node in (1..num_leaves).rev() {
            nodes[node] = nodes[2 * node].max(nodes[2 * node + 1]);
        }
        Self { nodes, num_leaves }
    }

    fn set(&mut self, index: usize, length: u64) {
        let mut node = self.num_leaves + index;
        self.nodes[node] = length;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node].max(self.nodes[2 * node + 1]);
        }
    }

    /// The first index from `from` on with at least this length; empty intervals never count.
    fn first_at_least(&self, from: usize, length: u64) -> Option<usize> {
        let length = length.max(1);
        if from >= self.num_leaves {
            return None;
        }
        let mut node = self.num_leaves + from;
        // Up until something to the right is long enough, then down to the first such leaf.
        while self.nodes[node] < length {
            while node & 1 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.num_leaves {
            node = if self.nodes[2 * node] >= length { 2 * node } else { 2 * node + 1 };
        }
        Some(node - self.num_leaves)
    }
}

/// What pinned functions occupy: their ranges, and the padding between two that follow each other, which execution may run through. Zeros before code without an unwind entry are no padding: the table before an entry of GHC's begins with them.
fn pinned_text(image: &Image<'_>, program: &Program) -> Vec<Interval> {
    let mut ranges: Vec<&CodeRange> = program.ranges.iter().filter(|r| r.start < r.end).collect();
    ranges.sort_by_key(|r| r.start);
    let mut pinned = Vec::new();
    for (index, range) in ranges.iter().enumerate().filter(|(_, r)| !program.funcs[r.func].is_movable()) {
        let next = ranges.get(index + 1).filter(|next| next.func == range.func);
        let before = index.checked_sub(1).map_or(image.low(), |last| ranges[last].end);
        let num_zeros = if range.fde.is_none() { zeros_before(image, before, range.start) } else { 0 };
        pinned.push(Interval { start: Va(range.start.0 - num_zeros), end: next.map_or(range.end, |next| next.start) });
    }
    pinned
}

/// How many zero bytes end at `end`, from `start` on.
fn zeros_before(image: &Image<'_>, start: Va, end: Va) -> u64 {
    /// More than any table begins with.
    const ZEROS_MAX: u64 = 64;
    let len = end.0.saturating_sub(start.0).min(ZEROS_MAX);
    let bytes = image.read(Va(end.0 - len), len as usize).unwrap_or(&[]);
    bytes.iter().rev().take_while(|&&byte| byte == 0).count() as u64
}

/// What the jumps occupy that stay at anchors of movable functions, and their relays.
fn anchored_text(program: &Program, has_ibt: bool) -> impl Iterator<Item = Interval> {
    let is_kept = |data: &&BlockData| data.flags.contains(BlockFlags::ANCHOR) && program.funcs[data.func].is_movable();
    let anchors = program.blocks.values().filter(is_kept);
    let is_used =
        |relay: &&Relay| program.block_at(relay.anchor).is_some_and(|at| program.funcs[program.func_of(at)].is_movable());
    let relays = program.relays.iter().filter(is_used).map(|relay| Interval { start: relay.at, end: relay.at + Relay::LEN });
    anchors.map(move |data| Interval { start: data.start, end: data.start + data.anchor_len(has_ibt) }).chain(relays)
}

/// What the old text leaves free when everything movable has left it: the movable sections less what pinned functions and anchors occupy.
pub(crate) fn free_text(image: &Image<'_>, program: &Program) -> Vec<Interval> {
    let mut pinned = pinned_text(image, program);
    pinned.extend(anchored_text(program, image.has_ibt));
    pinned.sort_by_key(|i| i.start);
    let mut free = Vec::new();
    for (id, section) in image.sections.iter() {
        if !image.is_movable_code_section(id) {
            continue;
        }
        let mut at = section.sh_addr;
        let first = pinned.partition_point(|i| i.end <= section.sh_addr);
        for pin in pinned[first..].iter().take_while(|i| i.start < section.end()) {
            if at < pin.start {
                free.push(Interval { start: at, end: pin.start });
            }
            at = at.max(pin.end);
        }
        if at < section.end() {
            free.push(Interval { start: at, end: section.end() });
        }
    }
    free.sort_by_key(|i| i.start);
    free
}

/// Of that, what another optimizer has written elsewhere: it goes where code stays, too.
pub(crate) fn replaced_text(image: &Image<'_>, program: &Program) -> Vec<Interval> {
    let replaced = &program.unwind.replaced;
    let mut parts = Vec::new();
    for free in free_text(image, program) {
        let first = replaced.partition_point(|&(_, end)| end <= free.start);
        let within = replaced[first..].iter().take_while(|&&(start, _)| start < free.end);
        parts.extend(within.map(|&(start, end)| Interval { start: start.max(free.start), end: end.min(free.end) }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(intervals: &[(u64, u64)]) -> Space {
        let intervals: Vec<Interval> =
            intervals.iter().map(|&(start, end)| Interval { start: Va(start), end: Va(end) }).collect();
        let end = intervals.last().map_or(Va(0), |last| last.end);
        Space::new(intervals, &[end], Overflow { start: Va(0x9000), offset: FileOffset(0x3000), end: Va(0x9000), extends: None })
    }

    #[test]
    fn nothing_but_code_is_put_before_pinned_code() {
        let intervals = vec![Interval { start: Va(0x1000), end: Va(0x1040) }];
        let overflow = Overflow { start: Va(0x9000), offset: FileOffset(0x3000), end: Va(0x9000), extends: None };
        let mut space = Space::new(intervals, &[Va(0x1080)], overflow);
        assert_eq!(space.tail(), None, "up to 0x1080 lies what is pinned");
        assert_eq!(space.take_in_order(0x40, 16), Va(0x1000));
    }

    #[test]
    fn code_is_placed_in_order_until_an_interval_is_full() {
        let mut space = space(&[(0x1000, 0x1040), (0x2000, 0x2100)]);
        assert_eq!(space.take_in_order(0x30, 16), Va(0x1000));
        assert_eq!(space.take_in_order(0x20, 16), Va(0x2000));
        assert_eq!(space.take_in_order(0x10, 1), Va(0x2020));
    }

    #[test]
    fn the_first_interval_that_is_long_enough_is_found_among_many() {
        let mut random = 7u64;
        let mut lengths = vec![0; 77];
        let mut tree = MaxTree::new(lengths.iter().copied());
        for round in 0..2000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (index, length) = ((random >> 40) as usize % lengths.len(), (random >> 20) % 100);
            lengths[index] = length;
            tree.set(index, length);
            let (from, wanted) = (round % 80, (random >> 10) % 100);
            let expected = (from..lengths.len()).find(|&i| lengths[i] >= wanted.max(1));
            assert_eq!(tree.first_at_least(from, wanted), expected);
        }
    }

    #[test]
    fn what_an_interval_has_left_is_a_hole_for_what_fits() {
        let mut space = space(&[(0x1000, 0x1040), (0x2000, 0x2100)]);
        space.take_in_order(0x28, 1);
        space.take_in_order(0x80, 1);
        assert_eq!(space.take_hole(0x18, 8), Some(Va(0x1028)));
        assert_eq!(space.take_hole(0x18, 8), None);
    }

    #[test]
    fn what_fits_nowhere_goes_behind_the_image() {
        let mut space = space(&[(0x1000, 0x1040)]);
        assert_eq!(space.take_in_order(0x41, 1), Va(0x9000));
        assert_eq!(space.take_anywhere(0x20, 64), Va(0x1000));
        assert_eq!(space.take_anywhere(0x21, 64), Va(0x9080));
        assert_eq!(space.overflow.len(), 0xa1);
    }

    #[test]
    fn handing_out_may_begin_in_the_middle_and_no_gap_is_handed_out_twice() {
        let mut space = space(&[(0x1000, 0x1100), (0x2000, 0x2100), (0x3000, 0x3100)]);
        space.begin_at(Va(0x2010));
        assert_eq!(space.take_in_order(0x80, 1), Va(0x2000));
        assert_eq!(space.take_in_order(0xc0, 1), Va(0x3000));
        assert_eq!(space.take_in_order(0xd0, 1), Va(0x1000), "before the beginning, if nowhere else");
        space.give_up_order();
        let rest: u64 = space.rest().iter().map(|interval| interval.len()).sum();
        assert_eq!((rest, space.longest_hole()), (0x300 - 0x210, Some(0x80)));
        assert_eq!(space.take_anywhere(0x80, 1), Va(0x2080));
        assert_eq!(space.take_anywhere(0x40, 1), Va(0x30c0));
        assert_eq!(space.take_anywhere(0x40, 1), Va(0x9000));
    }

    #[test]
    fn what_is_aligned_may_be_a_place_behind_the_start() {
        let mut space = space(&[(0x1001, 0x1100)]);
        let entry = |after| Alignment { to: 16, after };
        assert_eq!(space.take_in_order(0x10, entry(3)), Va(0x100d));
        assert_eq!(space.take_in_order(0x10, entry(3)), Va(0x101d));
        assert_eq!(space.take_cheap_in_order(0x10, entry(19), |_| 0), (Va(0x102d), 0));
        assert_eq!(space.take_anywhere(0x1000, entry(1)), Va(0x900f));
    }

    #[test]
    fn nothing_handed_out_overlaps() {
        let mut space = space(&[(0x1000, 0x1333), (0x1400, 0x1500), (0x1501, 0x1fff)]);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        let mut random = 1u64;
        for _ in 0..400 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (len, align) = (1 + (random >> 33) % 40, 1 << ((random >> 20) % 5));
            let at = if random >> 63 == 0 { space.take_in_order(len, align) } else { space.take_anywhere(len, align) };
            assert_eq!(at.0 % align, 0);
            taken.push((at.0, at.0 + len));
        }
        taken.sort();
        assert!(taken.windows(2).all(|w| w[0].1 <= w[1].0));
    }
}
