//! Which output bytes of a fragment stand for which of the input: what unwind tables and debug information are made from.
//!
//! **Method.** Block by block as `write` makes them: what is copied between edits, the edits, the terminator. A terminator that is not made leaves no run, nor does
//! padding before a block, but for what belongs to the first one.

use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::Program;

use super::relax::{self, Relaxed, Shape};
use super::relays::Island;
use super::{Rewritten, Run, Shapes};
use crate::materialize::{Content, Edit, Out, OutBlock, OutFragment, OutProgram};
use crate::relink::eh_frame::{Deeper, are_quiet};

/// Adds the runs of a fragment, and what is rewritten in them; before the block `padded`, if there is one, is room that is its own.
pub(super) fn push(
    program: &Program,
    out: &OutProgram<'_>,
    fragment: &OutFragment,
    (blocks, shapes): (&[(Out, OutBlock)], &[Shape]),
    layout: &Relaxed,
    padded: Option<Block>,
    all: &mut Shapes,
) {
    let first_run = all.runs.len();
    let mut walk = Walk { fragment, at: 0, first_run, all };
    if fragment.lead.is_some() {
        let first = blocks.first().map_or(Va(0), |(_, block)| program.blocks[block.origin].start);
        walk.push(Run { is_new: true, ..walk.plain(first, 0, out.lead_len(fragment)) });
    }
    if let Some(first) = padded {
        walk.push(Run { is_new: true, ..walk.plain(program.blocks[first].start, 0, layout.offsets[0] - walk.at) });
    }
    for (index, &(id, block)) in blocks.iter().enumerate() {
        let data = &program.blocks[block.origin];
        walk.at = layout.offsets[index];
        let end = if block.copies_body { data.body_len } else { 0 };
        let mut copied = 0;
        for edit in out.edits_of(id) {
            walk.copy(data.start, copied, edit.offset.min(end));
            copied = edit.offset + edit.replaced;
            walk.edit(edit, data.start + u64::from(edit.offset), out);
        }
        walk.copy(data.start, copied.min(end), end);
        let (taken, jump) = relax::sizes(&shapes[index], layout.is_long[index]);
        if taken + jump != 0 {
            walk.push(walk.plain(data.start + u64::from(data.body_len), data.len - data.body_len, taken + jump));
        }
        if let Some(island) = layout.island_behind(index) {
            walk.push(Run { is_new: true, ..walk.plain(island.stands, 0, Island::LEN) });
        }
    }
}

struct Walk<'a> {
    fragment: &'a OutFragment,
    /// In the fragment.
    at: u32,
    /// Of the fragment.
    first_run: usize,
    all: &'a mut Shapes,
}

impl Walk<'_> {
    /// A run that begins here.
    fn plain(&self, old_start: Va, old_len: u32, len: u32) -> Run {
        Run { old_start, old_len, offset: self.at, len, is_new: false, is_quiet: false, deeper: Deeper::by(self.fragment.deeper) }
    }

    /// Adds what comes next, if it is anything.
    fn push(&mut self, run: Run) {
        self.at = run.offset + run.len;
        let is_taken_in = self.all.runs[self.first_run..].last_mut().is_some_and(|last| last.take_in(&run));
        if !is_taken_in && (run.old_len != 0 || run.len != 0) {
            self.all.runs.push(run);
        }
    }

    /// Bytes of a body that starts at `start`.
    fn copy(&mut self, start: Va, from: u32, to: u32) {
        let len = to - from;
        self.push(self.plain(start + u64::from(from), len, len));
    }

    /// The pieces of an edit: all of it stands in one place, or as its code says.
    fn edit(&mut self, edit: &Edit, old_start: Va, out: &OutProgram<'_>) {
        let (code, depths, part) = match edit.content {
            Content::Code(code) => (Some(&out.codes[code]), Vec::new(), 0..edit.len),
            Content::Apart { code, part, .. } => (Some(&out.codes[code]), Vec::new(), out.codes[code].part(part as usize)),
            Content::Snippet(snippet) => (None, snippet.depths(edit.len), 0..edit.len),
        };
        let is_new = edit.replaced != 0 || matches!(edit.content, Content::Apart { .. });
        let (stands, deeper) = code.map_or((&[][..], &depths[..]), |code| (&code.stands[..], &code.deeper[..]));
        let before_end = code.map_or(0, |code| code.stands_before_end);
        let before_end = (before_end != 0).then(|| old_start + u64::from(edit.replaced.saturating_sub(before_end)));
        let inner = stands.iter().map(|s| s.0).chain(deeper.iter().map(|d| d.0)).filter(|start| part.contains(start));
        let mut starts: Vec<u32> = inner.chain([part.start]).collect();
        starts.sort_unstable();
        starts.dedup();
        // What stands in one place, as other forms of instructions do.
        let is_plain = matches!(edit.content, Content::Code(_)) && stands.is_empty() && deeper.is_empty();
        let is_quiet = is_plain && code.is_some_and(|code| are_quiet(&code.bytes));
        let base = self.at;
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(part.end);
            let elsewhere = last_at(stands, start).or(before_end);
            // What stands elsewhere stands at one instruction there.
            let old_len = if index == 0 && elsewhere.is_none() { edit.replaced } else { 0 };
            let old_start = elsewhere.unwrap_or(old_start);
            let deeper = Deeper { stack: last_at(deeper, start).unwrap_or(self.fragment.deeper), saves: self.fragment.deeper };
            self.push(Run { old_start, old_len, offset: base + start - part.start, len: end - start, is_new, is_quiet, deeper });
        }
        // A call that leads to its arguments stands at the call, and in the lines of all that it replaces.
        if self.fragment.clone.is_none() && edit.replaced != 0 && last_at(stands, part.start).or(before_end).is_some() {
            self.all.rewritten.push(Rewritten { offset: base, old: old_start, old_len: edit.replaced, keeps_variables: true });
        }
        if let Some(code) = code.filter(|code| !code.instead_of.is_empty()) {
            let works = &code.works[code.works.partition_point(|w| w.0 < part.start)..];
            let works = &works[..works.partition_point(|w| w.0 < part.end)];
            // One place for all of it is a call that it stands for.
            let old_len = if works.is_empty() { edit.replaced.max(1) } else { 1 };
            let first = works.first().is_none_or(|w| w.0 > part.start).then_some((part.start, old_start));
            let all = first.into_iter().chain(works.iter().copied());
            self.all.rewritten.extend(all.map(|(at, old)| Rewritten {
                offset: base + at - part.start,
                old,
                old_len,
                keeps_variables: false,
            }));
        }
    }
}

/// What holds at an offset, of what holds from offsets on.
fn last_at<T: Copy>(list: &[(u32, T)], offset: u32) -> Option<T> {
    list[..list.partition_point(|&(start, _)| start <= offset)].last().map(|&(_, what)| what)
}
