//! Output blocks to bytes, fragment by fragment, with branches as short as they reach.
//!
//! **Method.** A fragment is the unit that is placed, so distances inside it are known before any address is. Two steps: `measure` says how long
//! everything is, and what stands for what (`runs`); branches inside the fragment start short and grow where they don't reach, until none does (`relax`); where the plan allows, several that don't reach share a jump that does (`relays`). `write`
//! makes the bytes, which the whole program need not have at once: bodies are copied; everything that leaves the fragment gets a 32-bit field and a
//! fixup. Inserted snippets get room there and bytes when addresses are known; new code is copied with its references as if it were the block's own.
//!
//! **Invariants.** A fragment's start address is a multiple of its `align`, and no block in it asks for more, so offsets inside don't
//! depend on where it goes. `offsets` of its blocks ascend. Every fixup's field lies inside `bytes`. Both steps give each block the same length.
//!
//! **Why it terminates.** Branches only ever grow, each at most once; then they only shrink.

mod relax;
mod relays;
mod runs;
mod windows;

use std::ops::Range;

use lifter::Image;
use lifter::address::Va;
use lifter::entity::{EntityId, Table};
use lifter::ir::{BlockFlags, Condition, Program, RefData, RefKind, RefRole, RefTarget};
use rayon::prelude::*;

use crate::clones::CloneId;
use crate::edit::{NewCode, Snippet};
use crate::error::{Error, Result};
use crate::materialize::{Content, Edit, Out, OutBlock, OutFragment, OutProgram, OutTarget, OutTerminator, block_bytes};
use crate::relink::eh_frame::Deeper;
use relax::{IsLong, Shape};
use relays::{Fragment, Island, Relayed};
pub use windows::WindowBranch;
pub(crate) use windows::{WINDOW, WORTH_PER_BYTE};

/// What a fixup's field is to hold.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum FixupTarget {
    Code(OutTarget),
    /// So many bytes behind the start of an output block.
    Within(Out, u32),
    /// So many bytes before.
    Before(OutTarget, u32),
    Table(Table),
    /// The registered unwind table.
    UnwindTable,
    /// A clone's own copy of a table.
    TableOf(CloneId, Table),
}

/// A field whose value needs addresses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Fixup {
    /// Of the field, in the fragment.
    pub offset: u32,
    /// From the field's start to the end of its instruction.
    pub to_end: u8,
    pub kind: RefKind,
    pub target: FixupTarget,
}

/// Room for a snippet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Late {
    pub offset: u32,
    pub len: u32,
    pub snippet: Snippet,
}

/// A run of output bytes that stands for a run of input bytes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub old_start: Va,
    pub old_len: u32,
    /// In the fragment.
    pub offset: u32,
    pub len: u32,
    /// New code: all of it stands where the first of the input's bytes did.
    pub is_new: bool,
    /// Nothing in new code can stop by itself.
    pub is_quiet: bool,
    pub deeper: Deeper,
}

impl Run {
    /// Takes in the run behind it, if that goes on where this one ends, in the input and in the output, with both as long here as there.
    fn take_in(&mut self, next: &Run) -> bool {
        let is_one = !self.is_new
            && !next.is_new
            && self.deeper == next.deeper
            && self.old_len == self.len
            && next.old_len == next.len
            && self.old_start + u64::from(self.old_len) == next.old_start
            && self.offset + self.len == next.offset;
        if is_one {
            self.old_len += next.old_len;
            self.len += next.len;
        }
        is_one
    }
}

/// Output bytes that do what code of the input did, elsewhere or with other registers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// In the fragment; up to the next one, or to the end of the run.
    pub offset: u32,
    /// Where it did that, in so many bytes.
    pub old: Va,
    pub old_len: u32,
    /// Whether variables are where they were there.
    pub keeps_variables: bool,
}

/// All fragments, measured: few vectors, since each fragment's own would take as much room as what they hold.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    /// By fragment, where what follows ends.
    ends: Vec<Ends>,
    offsets: Vec<u32>,
    is_long: Vec<IsLong>,
    relayed: Vec<Relayed>,
    islands: Vec<Island>,
    runs: Vec<Run>,
    rewritten: Vec<Rewritten>,
    window_branches: Vec<WindowBranch>,
}

#[derive(Copy, Clone, Debug, Default)]
struct Ends {
    /// Of this fragment, in bytes.
    len: u32,
    blocks: u32,
    relayed: u32,
    islands: u32,
    runs: u32,
    rewritten: u32,
    window_branches: u32,
}

/// A fragment, measured.
#[derive(Copy, Clone, Debug)]
pub struct FragmentShape<'a> {
    /// In bytes.
    pub len: u32,
    /// The first byte of each output block (after alignment), one per block of the fragment.
    pub offsets: &'a [u32],
    /// By block.
    is_long: &'a [IsLong],
    /// Ascending.
    relayed: &'a [Relayed],
    /// Ascending.
    islands: &'a [Island],
    /// In output order; they cover all bytes but alignment.
    pub runs: &'a [Run],
    /// Ascending.
    pub rewritten: &'a [Rewritten],
    /// Those that are worth something.
    pub window_branches: &'a [WindowBranch],
}

impl Shapes {
    /// Fragments.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    pub fn of(&self, fragment: usize) -> FragmentShape<'_> {
        let from = fragment.checked_sub(1).map_or(Ends::default(), |before| self.ends[before]);
        let to = self.ends[fragment];
        let blocks = from.blocks as usize..to.blocks as usize;
        // What is forgotten is empty.
        let runs = self.runs.get(from.runs as usize..to.runs as usize).unwrap_or(&[]);
        let rewritten = self.rewritten.get(from.rewritten as usize..to.rewritten as usize).unwrap_or(&[]);
        let relayed = &self.relayed[from.relayed as usize..to.relayed as usize];
        let (offsets, is_long) = (&self.offsets[blocks.clone()], &self.is_long[blocks]);
        let islands = &self.islands[from.islands as usize..to.islands as usize];
        let window_branches = &self.window_branches[from.window_branches as usize..to.window_branches as usize];
        FragmentShape { len: to.len, offsets, is_long, relayed, islands, runs, rewritten, window_branches }
    }

    pub fn iter(&self) -> impl Iterator<Item = FragmentShape<'_>> {
        (0..self.count()).map(|fragment| self.of(fragment))
    }

    /// In bytes.
    pub fn len_of(&self, fragment: usize) -> u32 {
        self.ends[fragment].len
    }

    /// Branches that have relays, and the bytes that these save, their own taken off.
    pub fn relayed(&self) -> (u64, u64) {
        let saved: u64 = self.relayed.iter().map(|relayed| u64::from(relayed.saved())).sum();
        (self.relayed.len() as u64, saved - u64::from(Island::LEN) * self.islands.len() as u64)
    }

    /// Lets go what says what code stands for: more than all the rest.
    pub(crate) fn forget_runs(&mut self) {
        (self.runs, self.rewritten) = (Vec::new(), Vec::new());
    }

    fn append(&mut self, next: Shapes) {
        let last = self.ends.last().copied().unwrap_or_default();
        self.ends.extend(next.ends.iter().map(|ends| Ends {
            len: ends.len,
            blocks: last.blocks + ends.blocks,
            relayed: last.relayed + ends.relayed,
            islands: last.islands + ends.islands,
            runs: last.runs + ends.runs,
            rewritten: last.rewritten + ends.rewritten,
            window_branches: last.window_branches + ends.window_branches,
        }));
        self.offsets.extend(next.offsets);
        self.is_long.extend(next.is_long);
        self.relayed.extend(next.relayed);
        self.islands.extend(next.islands);
        self.runs.extend(next.runs);
        self.rewritten.extend(next.rewritten);
        self.window_branches.extend(next.window_branches);
    }
}

/// A fragment, encoded.
#[derive(Clone, Debug, Default)]
pub struct FragmentCode {
    /// As many as were measured.
    pub bytes: Vec<u8>,
    pub fixups: Vec<Fixup>,
    pub lates: Vec<Late>,
}

/// Measures all fragments, in parallel; the result is in the order of `out.fragments`.
pub fn measure(image: &Image<'_>, program: &Program, out: &OutProgram<'_>) -> Shapes {
    /// So many that the pieces to put together are few.
    const FRAGMENTS_AT_ONCE: usize = 512;
    /// So many pieces on each thread that none waits long for the others; with all at once, what was measured would be there twice.
    const PIECES_AT_ONCE: usize = 2;
    let measured = |fragments: &[OutFragment]| {
        let mut shapes = Shapes::default();
        fragments.iter().for_each(|fragment| measure_fragment((image, program), out, fragment, &mut shapes));
        shapes
    };
    let mut shapes = Shapes::default();
    shapes.ends.reserve_exact(out.fragments.len());
    shapes.offsets.reserve_exact(out.origins.len());
    shapes.is_long.reserve_exact(out.origins.len());
    // Most blocks have a run or go on in one, and what is reserved for nothing takes no memory.
    shapes.runs.reserve_exact(out.origins.len());
    for fragments in out.fragments.chunks(FRAGMENTS_AT_ONCE * PIECES_AT_ONCE * rayon::current_num_threads()) {
        let parts: Vec<Shapes> = fragments.par_chunks(FRAGMENTS_AT_ONCE).map(measured).collect();
        parts.into_iter().for_each(|part| shapes.append(part));
    }
    shapes.runs.shrink_to_fit();
    shapes
}

fn measure_fragment((image, program): (&Image<'_>, &Program), out: &OutProgram<'_>, fragment: &OutFragment, all: &mut Shapes) {
    let blocks: Vec<(Out, OutBlock)> = out.fragment_blocks(fragment).collect();
    let shape = |&(id, block): &(Out, OutBlock)| {
        let data = &program.blocks[block.origin];
        let edits = out.edits_of(id);
        let inserted: u32 = edits.iter().map(|edit| edit.len).sum();
        // What is replaced behind the body is the terminator, which then is not made at all.
        let replaced: u32 =
            edits.iter().map(|edit| (edit.offset + edit.replaced).min(data.body_len).saturating_sub(edit.offset)).sum();
        let body = if block.copies_body { data.body_len - replaced } else { 0 };
        Shape {
            align: u32::from(block.align),
            body_len: body + inserted,
            terminator: block.terminator,
            loop_prefix_len: (data.len - data.body_len).saturating_sub(1),
        }
    };
    let mut shapes: Vec<Shape> = blocks.iter().map(shape).collect();
    if let Some(first) = shapes.first_mut().filter(|_| fragment.lead.is_some()) {
        // Where it is aligned depends on where the fragment begins.
        first.align = 1;
    }
    // A jump to the block that follows is not made, so the code may begin with a later block than the fragment does.
    let first = shapes.iter().position(|shape| !shape.is_empty());
    let padded = first.filter(|&first| lands_on_itself(program, &blocks[..=first])).map(|first| blocks[first].1.origin);
    let room = out.lead_len(fragment) + u32::from(padded.is_some());
    let mut layout = relax::relax(&shapes, &fragment.blocks, room);
    if let Some(spared) = out.spared_by_relays.filter(|_| fragment.clone.is_none() && layout.has_long()) {
        let is_spared = |target: OutTarget| matches!(target, OutTarget::Placed(block) if spared[out.origins[block]]);
        let ends = relays::ends_of(program, spared, &blocks);
        relays::place(Fragment { shapes: &shapes, ends: &ends, blocks: &fragment.blocks, room }, is_spared, &mut layout);
    }
    runs::push(program, out, fragment, (&blocks, &shapes), &layout, padded, all);
    let is_body = fragment.clone.is_some_and(|clone| out.is_body(clone));
    if let Some(worths) = out.window_worths.filter(|_| !is_body) {
        windows::push((image, program), out, worths, (&blocks, &shapes), &layout, all);
    }
    all.offsets.extend_from_slice(&layout.offsets);
    all.is_long.extend_from_slice(&layout.is_long);
    all.relayed.extend_from_slice(&layout.relayed);
    all.islands.extend_from_slice(&layout.islands);
    all.ends.push(Ends {
        len: layout.len,
        blocks: all.offsets.len() as u32,
        relayed: all.relayed.len() as u32,
        islands: all.islands.len() as u32,
        runs: all.runs.len() as u32,
        rewritten: all.rewritten.len() as u32,
        window_branches: all.window_branches.len() as u32,
    });
}

/// Makes the bytes of a fragment.
///
/// # Errors
/// If the input does not have those of a block.
pub fn write(
    image: &Image<'_>,
    program: &Program,
    out: &OutProgram<'_>,
    (fragment, shape): (&OutFragment, FragmentShape<'_>),
) -> Result<FragmentCode> {
    let mut writer = Writer { program, fragment, shape, code: FragmentCode::default() };
    writer.code.bytes.reserve_exact(shape.len as usize);
    if let Some(lead) = fragment.lead {
        writer.new_code(&out.codes[lead], 0, (Out::new(fragment.blocks.start as usize), 0), out)?;
    }
    for (index, (id, block)) in out.fragment_blocks(fragment).enumerate() {
        writer.align_to(shape.offsets[index]);
        let input = block_bytes(image, program, block.origin)?;
        writer.body(id, block, input, out)?;
        writer.terminator(index, block.terminator, input, &program.blocks[block.origin]);
        if let Ok(found) = shape.islands.binary_search_by_key(&(index as u32), |island| island.block) {
            writer.jump(Way::Long(shape.islands[found].target));
        }
    }
    debug_assert_eq!(writer.here(), shape.len, "a fragment of {} is not as long as it was measured", fragment.func);
    Ok(writer.code)
}

/// Whether code is its own landing pad from its first byte on: that of the last of these blocks, where all others come to lie too, since nothing is left of them.
/// Pads count from where their unwind entry starts, and 0 means none, so such code can't be the first of its entry.
fn lands_on_itself(program: &Program, blocks: &[(Out, OutBlock)]) -> bool {
    let is_pad = |block: &OutBlock| program.blocks[block.origin].flags.contains(BlockFlags::LANDING_PAD);
    let Some((_, code)) = blocks.last().filter(|_| blocks.iter().any(|(_, block)| is_pad(block))) else { return false };
    let start = program.blocks[code.origin].start;
    let lsda = program.unwind.fde_containing(start).and_then(|fde| program.unwind.fdes[fde].lsda);
    let sites = lsda.map_or(&[][..], |lsda| &program.unwind.lsdas[lsda as usize].call_sites);
    let lies_here = |pad: Va| blocks.iter().any(|(_, block)| program.blocks[block.origin].start == pad);
    sites.iter().any(|site| site.start <= start && start < site.end && site.landing_pad.is_some_and(lies_here))
}

fn usize_range(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

struct Writer<'a> {
    program: &'a Program,
    fragment: &'a OutFragment,
    shape: FragmentShape<'a>,
    code: FragmentCode,
}

impl Writer<'_> {
    fn here(&self) -> u32 {
        self.code.bytes.len() as u32
    }

    fn align_to(&mut self, offset: u32) {
        let padding = offset as usize - self.code.bytes.len();
        push_nops(&mut self.code.bytes, padding);
    }

    fn body(&mut self, id: Out, block: OutBlock, input: &[u8], out: &OutProgram<'_>) -> Result<()> {
        let OutBlock { origin, copies_body, .. } = block;
        let edits = out.edits_of(id);
        let data = &self.program.blocks[origin];
        let body = &input[..if copies_body { data.body_len as usize } else { 0 }];
        let end = body.len() as u32;
        let mut refs = if copies_body { self.program.block_refs(origin) } else { &[] };
        let mut at = 0u32;
        for edit in edits {
            refs = self.copy(body, at..edit.offset.min(end), refs, out);
            at = edit.offset + edit.replaced;
            refs = &refs[refs.partition_point(|r| r.offset < at)..];
            match edit.content {
                Content::Snippet(snippet) => {
                    self.code.lates.push(Late { offset: self.here(), len: edit.len, snippet });
                    self.code.bytes.resize(self.code.bytes.len() + edit.len as usize, 0xcc);
                }
                Content::Code(code) => self.new_code(&out.codes[code], 0, (id, edit.offset), out)?,
                Content::Apart { code, part, of } => self.new_code(&out.codes[code], part as usize, (of, edit.offset), out)?,
            }
        }
        self.copy(body, at.min(end)..end, refs, out);
        Ok(())
    }

    /// One part of new code; `first` is the block that has the first one, and where that is in the block's origin.
    fn new_code(&mut self, code: &NewCode, part: usize, first: (Out, u32), out: &OutProgram<'_>) -> Result<()> {
        let base = self.here();
        let range = code.part(part);
        let refs = &code.refs[code.refs.partition_point(|r| r.offset < range.start)..];
        let refs = &refs[..refs.partition_point(|r| r.offset < range.end)];
        self.push_fixups(refs, range.start, Some(code), out);
        for &(at, to) in code.crossings.iter().filter(|(at, _)| range.contains(at)) {
            let nowhere = || Error::Inconsistent(format!("new code in {}: a jump at {at} to {to}, which is nowhere", first.0));
            let (block, inner) = place_of(code, to, first, out).ok_or_else(nowhere)?;
            let (offset, target) = (base + at - range.start, FixupTarget::Within(block, inner));
            self.code.fixups.push(Fixup { offset, to_end: 4, kind: RefKind::Rel32, target });
        }
        self.code.bytes.extend_from_slice(&code.bytes[usize_range(&range)]);
        Ok(())
    }

    /// Copies `part` of a body with its references; returns the references behind it.
    fn copy<'r>(&mut self, body: &[u8], part: Range<u32>, refs: &'r [RefData], out: &OutProgram<'_>) -> &'r [RefData] {
        let count = refs.partition_point(|r| r.offset < part.end);
        self.push_fixups(&refs[..count], part.start, None, out);
        self.code.bytes.extend_from_slice(&body[usize_range(&part)]);
        &refs[count..]
    }

    /// Fixups for references of bytes that come next; `from` is their offset by which the references count. New code says which of them go to clones and leads.
    fn push_fixups(&mut self, refs: &[RefData], from: u32, code: Option<&NewCode>, out: &OutProgram<'_>) {
        let base = self.here();
        let (enters, before) = code.map_or((&[][..], &[][..]), |code| (&code.enters[..], &code.before[..]));
        for r in refs {
            let target = match r.target {
                RefTarget::Table(table) => {
                    self.fragment.clone.map_or(FixupTarget::Table(table), |clone| FixupTarget::TableOf(clone, table))
                }
                RefTarget::Fixed(va) => FixupTarget::Code(OutTarget::Fixed(va)),
                RefTarget::UnwindTable(_) => FixupTarget::UnwindTable,
                RefTarget::Block(block) => {
                    let clone = enters.binary_search_by_key(&r.offset, |e| e.0).ok().map(|found| enters[found].1);
                    let entry = clone.map(|clone| OutTarget::Placed(out.clone_entries[clone.index()]));
                    let target = entry.unwrap_or_else(|| self.ref_target(block, r, out));
                    let before = before.binary_search_by_key(&r.offset, |b| b.0).ok().map(|found| before[found].1);
                    before.map_or(FixupTarget::Code(target), |bytes| FixupTarget::Before(target, bytes))
                }
            };
            self.code.fixups.push(Fixup { offset: base + r.offset - from, to_end: r.to_end, kind: r.kind, target });
        }
    }

    /// A call goes to the new body. The address of an anchor stays the old one, which is what unseen pointers name too.
    fn ref_target(&self, block: lifter::entity::Block, r: &RefData, out: &OutProgram<'_>) -> OutTarget {
        let is_anchor = self.program.blocks[block].flags.contains(BlockFlags::ANCHOR);
        let keeps_identity = is_anchor && !matches!(r.role, RefRole::Call | RefRole::Branch);
        match out.placed[block] {
            Some(placed) if !keeps_identity => OutTarget::Placed(placed),
            _ => OutTarget::Fixed(self.program.blocks[block].start),
        }
    }

    fn terminator(&mut self, index: usize, terminator: OutTerminator, input: &[u8], data: &lifter::ir::BlockData) {
        match terminator {
            OutTerminator::None => {}
            OutTerminator::Jump(target) => self.jump(self.way(index, target, true)),
            OutTerminator::Branch { condition, taken, jump } => {
                self.branch(condition, self.way(index, taken, false));
                if let Some(target) = jump {
                    self.jump(self.way(index, target, true));
                }
            }
            OutTerminator::Loop { taken, jump } => {
                let prefix = &input[data.body_len as usize..data.len as usize - 1];
                self.code.bytes.extend_from_slice(prefix);
                match self.way(index, taken, false) {
                    // loop .+2; jmp .+5 (over the next one); jmp taken
                    long @ Way::Long(_) => {
                        self.code.bytes.extend_from_slice(&[2, 0xeb, 5]);
                        self.jump(long);
                    }
                    Way::Short(offset) => self.short_displacement(offset),
                }
                if let Some(target) = jump {
                    self.jump(self.way(index, target, true));
                }
            }
        }
    }

    /// How a branch of a block gets to its target, as was measured.
    fn way(&self, index: usize, target: OutTarget, is_jump: bool) -> Way {
        let is_long = self.shape.is_long[index];
        if if is_jump { is_long.jump } else { is_long.taken } {
            return Way::Long(target);
        }
        let relay = self.shape.relayed.binary_search_by_key(&(index as u32, is_jump), |relayed| (relayed.block, relayed.is_jump));
        Way::Short(match relay {
            Ok(found) => self.shape.relayed[found].offset,
            Err(_) => relax::offset_in(target, &self.fragment.blocks, self.shape.offsets).unwrap_or_else(|| self.here() + 1),
        })
    }

    fn branch(&mut self, condition: Condition, way: Way) {
        match way {
            Way::Long(target) => {
                self.code.bytes.extend_from_slice(&[0x0f, 0x80 | condition.0]);
                self.long_displacement(target);
            }
            Way::Short(offset) => {
                self.code.bytes.push(0x70 | condition.0);
                self.short_displacement(offset);
            }
        }
    }

    fn jump(&mut self, way: Way) {
        match way {
            Way::Long(target) => {
                self.code.bytes.push(0xe9);
                self.long_displacement(target);
            }
            Way::Short(offset) => {
                self.code.bytes.push(0xeb);
                self.short_displacement(offset);
            }
        }
    }

    fn long_displacement(&mut self, target: OutTarget) {
        let offset = self.here();
        self.code.fixups.push(Fixup { offset, to_end: 4, kind: RefKind::Rel32, target: FixupTarget::Code(target) });
        self.code.bytes.extend_from_slice(&[0; 4]);
    }

    /// To an offset in the fragment.
    fn short_displacement(&mut self, offset: u32) {
        let displacement = i64::from(offset) - i64::from(self.here()) - 1;
        debug_assert!(i8::try_from(displacement).is_ok(), "a short branch that does not reach");
        self.code.bytes.push(displacement as i8 as u8);
    }
}

/// Where a branch leads.
#[derive(Copy, Clone, Debug)]
enum Way {
    Long(OutTarget),
    /// To an offset in the fragment.
    Short(u32),
}

/// Where an offset of new code is: an output block, and bytes from its start.
fn place_of(code: &NewCode, offset: u32, (block, origin_offset): (Out, u32), out: &OutProgram<'_>) -> Option<(Out, u32)> {
    let part = if offset == NewCode::END { 0 } else { code.part_of(offset) };
    if part > 0 {
        let apart = out.apart.get(&(block, origin_offset))?.get(part - 1)?;
        return Some((*apart, offset - code.part(part).start));
    }
    let edits = out.edits_of(block);
    let is_first = |edit: &Edit| edit.offset == origin_offset && matches!(edit.content, Content::Code(_));
    let index = edits.iter().position(is_first)?;
    let before: u32 = edits[..index].iter().map(|edit| edit.len).sum();
    let gone: u32 = edits[..index].iter().map(|edit| edit.replaced).sum();
    Some((block, origin_offset + before - gone + offset.min(code.part(0).end)))
}

/// Appends `count` bytes of no-ops, as few instructions as there are (Intel SDM vol. 2, NOP, recommended sequences).
pub fn push_nops(bytes: &mut Vec<u8>, mut count: usize) {
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
        &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    ];
    while count > 0 {
        let nop = NOPS[count.min(NOPS.len()) - 1];
        bytes.extend_from_slice(nop);
        count -= nop.len();
    }
}
