//! Instructions that may stand where a call leads, in runs.
//!
//! A run is of one block; who unwinds from any instruction of it, or right behind it, finds the same. Nothing is kept in the word below the stack pointer there, and no other edit has anything of it.
//! What leaves flags for later, or takes some from before, may only stand inside of a sequence: calls and returns hand on none, which whoever relinks the file counts on (psABI, section 3.2.1).

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, RflagsBits};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func};
use lifter::ir::{Program, RefTarget};
use lifter::x86;
use xxhash_rust::xxh3::xxh3_64;

use super::super::below::Below;
use super::super::forms::ahead::{Ahead, writes_all_flags};
use super::super::outline::CALL_LEN;
use super::super::outline::along::{Described, may_come_along};
use super::super::outline::lower::lowered;
use crate::edit::EditPlan;
use crate::fold::Folding;
use crate::fold::blocks::hashes::push_reference;
use crate::fold::shares::Shares;
use crate::materialize::block_bytes;

/// Pieces that a sequence has at most.
pub(super) const COUNT_MAX: u8 = 24;

/// Bytes that a call saves at least: for less the two instructions more are not worth it, however seldom they are guessed to run.
const SAVED_MIN: u32 = 4;

const FLAGS: u32 = RflagsBits::CF | RflagsBits::PF | RflagsBits::AF | RflagsBits::ZF | RflagsBits::SF | RflagsBits::OF;

/// Bytes of a piece.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Lens {
    /// Where it is.
    pub(super) len: u8,
    /// In a body.
    pub(super) body: u8,
    /// Pieces from it to the end of its run, itself too; [`COUNT_MAX`] at most.
    pub(super) left: u8,
    /// Whether nobody reads the flags that are there before it, and behind it.
    pub(super) may_begin: bool,
    pub(super) may_end: bool,
}

/// Pieces that stand one behind the other.
struct Run {
    /// Of all.
    first: u32,
    block: Block,
    /// Of the first, from the block's start.
    offset: u32,
    /// Bytes that a place has to have to be worth a call.
    min: u32,
}

/// All of them, one run after the other.
#[derive(Default)]
pub(super) struct Pieces {
    /// What each is: of two that have the same hash the one stands for the other.
    pub(super) hashes: Vec<u64>,
    pub(super) lens: Vec<Lens>,
    runs: Vec<Run>,
}

/// Pieces of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) block: Block,
    /// From the block's start.
    pub(super) start: u32,
    pub(super) len: u32,
    /// Bytes in a body.
    pub(super) body_len: u32,
    pub(super) pieces: Range<usize>,
}

impl Pieces {
    /// Pieces of so many bytes each, in runs, each of which asks for so many at a place.
    #[cfg(test)]
    pub(super) fn of_runs(runs: &[&[u64]], len: u8, min: u32) -> Self {
        use lifter::entity::EntityId;
        let mut pieces = Self::default();
        for run in runs {
            let first = pieces.hashes.len();
            pieces.runs.push(Run { first: first as u32, block: Block::new(0), offset: 0, min });
            pieces.hashes.extend(run.iter());
            pieces.lens.extend(run.iter().map(|_| Lens { len, body: len, left: 1, may_begin: true, may_end: true }));
            pieces.count_left(first);
        }
        pieces
    }

    pub(super) fn append(&mut self, next: Pieces) {
        let before = self.hashes.len() as u32;
        self.hashes.extend(next.hashes);
        self.lens.extend(next.lens);
        self.runs.extend(next.runs.into_iter().map(|run| Run { first: run.first + before, ..run }));
    }

    fn run(&self, piece: u32) -> &Run {
        &self.runs[self.runs.partition_point(|run| run.first <= piece) - 1]
    }

    /// What a sequence is, as far as its run goes.
    pub(super) fn sequence(&self, piece: u32) -> &[u64] {
        let first = piece as usize;
        &self.hashes[first..first + usize::from(self.lens[first].left)]
    }

    /// Bytes that a sequence has where it stands, and in a body.
    pub(super) fn len_of(&self, piece: u32, count: u8) -> (u32, u32) {
        let lens = &self.lens[piece as usize..][..usize::from(count)];
        lens.iter().fold((0, 0), |(len, body), piece| (len + u32::from(piece.len), body + u32::from(piece.body)))
    }

    /// Whether no flags come to a sequence, or leave it.
    pub(super) fn is_closed(&self, piece: u32, count: u8) -> bool {
        let (first, last) = (piece as usize, piece as usize + usize::from(count) - 1);
        self.lens[first].may_begin && self.lens[last].may_end
    }

    /// Bytes that a sequence has to have at a place to be worth a call there.
    pub(super) fn min_at(&self, piece: u32) -> u32 {
        self.run(piece).min
    }

    pub(super) fn span(&self, piece: u32, count: u8) -> Span {
        let run = self.run(piece);
        let (first, end) = (piece as usize, piece as usize + usize::from(count));
        let before: u32 = self.lens[run.first as usize..first].iter().map(|piece| u32::from(piece.len)).sum();
        let (len, body_len) = self.len_of(piece, count);
        Span { block: run.block, start: run.offset + before, len, body_len, pieces: first..end }
    }

    pub(super) fn ends_with(&self, longer: &Span, shorter: &Span) -> bool {
        self.hashes[longer.pieces.clone()].ends_with(&self.hashes[shorter.pieces.clone()])
    }
}

/// Looks for pieces.
pub(super) struct Finder<'a> {
    pub(super) image: &'a Image<'a>,
    pub(super) program: &'a Program,
    pub(super) folded: &'a Folding,
    pub(super) shares: &'a Shares,
    pub(super) edits: &'a EditPlan,
}

/// What decides in a block whether an instruction may come along.
struct Here<'h, 'a> {
    block: Block,
    described: &'h Described<'a>,
    below: &'h Below,
}

impl Here<'_, '_> {
    /// Whether an unwinder finds the frame by the stack pointer, and the same at an instruction and right behind it.
    fn has_one_row(&self, instruction: &Instruction) -> bool {
        let (at, behind) = (Va(instruction.ip()), Va(instruction.next_ip()));
        self.described.is_by_stack(at) && self.described.has_row_of(at, behind)
    }
}

impl Finder<'_> {
    /// In blocks of one function, ascending.
    pub(super) fn pieces_of(&self, blocks: &[(Func, Block)]) -> Pieces {
        let mut pieces = Pieces::default();
        let Some(below) = blocks.first().and_then(|&(func, _)| Below::of(self.image, self.program, func)) else { return pieces };
        let mut infos = InstructionInfoFactory::new();
        let mut instructions = Vec::new();
        let mut described: Option<(u32, Option<Described<'_>>)> = None;
        for &(_, block) in blocks {
            let min = self.shares.subroutine_min(block).max(SAVED_MIN).saturating_add(CALL_LEN);
            let data = &self.program.blocks[block];
            if min > data.body_len {
                continue;
            }
            if described.as_ref().is_none_or(|(known, _)| *known != data.range) {
                described = Some((data.range, Described::of(self.program, data.range)));
            }
            let Some((_, Some(described))) = &described else { continue };
            x86::decode_block_into(self.image, self.program, block, &mut instructions);
            let here = Here { block, described, below: &below };
            self.pieces_in(&here, min, &instructions, &mut infos, &mut pieces);
        }
        pieces
    }

    fn pieces_in(
        &self,
        here: &Here<'_, '_>,
        min: u32,
        instructions: &[Instruction],
        infos: &mut InstructionInfoFactory,
        pieces: &mut Pieces,
    ) {
        let start = self.program.blocks[here.block].start;
        let first = pieces.hashes.len();
        let mut last: Option<&Instruction> = None;
        let are_read = self.flags_read(here.block, instructions);
        for (index, instruction) in instructions.iter().enumerate() {
            let is_before_return = instructions.get(index + 1).is_some_and(|next| next.flow_control() == FlowControl::Return);
            let piece = Some(instruction)
                .filter(|instruction| !is_before_return && may_come_along(instruction, infos))
                .filter(|instruction| here.below.is_bare(here.block, Va(instruction.ip())))
                .filter(|instruction| here.has_one_row(instruction))
                .and_then(|instruction| self.piece(here.block, instruction));
            let Some((hash, lens)) = piece else {
                last = None;
                continue;
            };
            let goes_on = last.is_some_and(|last| here.described.is_alike(Va(last.ip()), Va(instruction.ip())));
            if !goes_on {
                let offset = (instruction.ip() - start.0) as u32;
                pieces.runs.push(Run { first: pieces.hashes.len() as u32, block: here.block, offset, min });
            }
            last = Some(instruction);
            pieces.hashes.push(hash);
            pieces.lens.push(Lens { may_begin: !are_read[index], may_end: !are_read[index + 1], ..lens });
        }
        pieces.count_left(first);
    }

    /// Before each instruction of a block, and at its end, whether somebody may read flags that are there.
    fn flags_read(&self, block: Block, instructions: &[Instruction]) -> Vec<bool> {
        let behind = Ahead { image: self.image, program: self.program, block, rest: &[] };
        let mut is_read = !behind.has_no_reader_of_flags();
        let mut are_read = vec![is_read; instructions.len() + 1];
        for (index, instruction) in instructions.iter().enumerate().rev() {
            let is_left = matches!(instruction.mnemonic(), Mnemonic::Ret | Mnemonic::Call);
            is_read &= !is_left && !writes_all_flags(instruction);
            is_read |= instruction.rflags_read() & FLAGS != 0;
            are_read[index] = is_read;
        }
        are_read
    }

    /// What an instruction is.
    fn piece(&self, block: Block, instruction: &Instruction) -> Option<(u64, Lens)> {
        let data = &self.program.blocks[block];
        let (offset, end) = ((instruction.ip() - data.start.0) as u32, (instruction.next_ip() - data.start.0) as u32);
        let is_taken = self.edits.replacements_of(block).iter().any(|r| r.offset < end && offset < r.end());
        if is_taken || end > data.body_len {
            return None;
        }
        let refs = self.program.block_refs(block);
        let refs = &refs[refs.partition_point(|r| r.offset < offset)..];
        let inside = &refs[..refs.partition_point(|r| r.offset < end)];
        if inside.iter().any(|r| matches!(r.target, RefTarget::Table(_) | RefTarget::UnwindTable(_))) {
            return None;
        }
        let bytes = block_bytes(self.image, self.program, block).ok()?;
        let mut own = bytes.get(offset as usize..end as usize)?.to_vec();
        let body = lowered(&own).filter(|lowered| inside.is_empty() || lowered.len() == own.len())?;
        let mut words = Vec::new();
        for reference in inside {
            push_reference(self.program, self.folded, reference, offset, &mut own, &mut words)?;
        }
        own.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        let lens = Lens {
            len: u8::try_from(end - offset).ok()?,
            body: u8::try_from(body.len()).ok()?,
            left: 1,
            may_begin: false,
            may_end: false,
        };
        Some((xxh3_64(&own), lens))
    }
}

impl Pieces {
    /// Says of the pieces from one on how many are left in their runs.
    fn count_left(&mut self, first: usize) {
        let mut ends = self.runs.iter().rev().map(|run| run.first as usize).peekable();
        let mut left = 0;
        for index in (first..self.lens.len()).rev() {
            left = COUNT_MAX.min(left + 1);
            self.lens[index].left = left;
            if ends.next_if_eq(&index).is_some() {
                left = 0;
            }
        }
    }
}
