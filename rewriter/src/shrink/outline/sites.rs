//! Calls, and which instructions before each may stand where it leads.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory};
use lifter::Image;
use lifter::address::Va;
use lifter::entity::{Block, Func};
use lifter::ir::{Program, RefData, RefKind, RefRole, RefTarget};
use lifter::x86;
use xxhash_rust::xxh3::xxh3_64;

use super::CALL_LEN;
use super::along::{Described, keeps_saved, may_come_along};
use super::callees::{Callee, Callees};
use super::entries::Entries;
use super::lower::lowered;
use crate::fold::Folding;
use crate::fold::blocks::hashes::push_reference;
use crate::fold::shares::Shares;
use crate::materialize::block_bytes;
use crate::transform::direct_calls::{self, DirectCall};

/// `call *slot(%rip)` without the slot.
const CALL_THROUGH: [u8; 2] = [0xff, 0x15];
/// Instructions before a call that are looked at.
const DEPTH_MAX: usize = 16;

/// A call, and what may come along before it.
pub(super) struct Site {
    pub(super) block: Block,
    /// Of the call, from the block's start.
    pub(super) call: u32,
    pub(super) callee: Callee,
    /// Bytes of the call.
    pub(super) call_len: u32,
    /// Bytes that the call is longer than one of a body, if it stays so otherwise.
    pub(super) longer: u32,
    /// The function called, if something may stand before it.
    pub(super) entry: Option<u32>,
    /// How many bytes have to be put in a body to be worth its time here.
    pub(super) body_min: u32,
    /// What may come along: of the pieces of all sites, or of those of a function.
    pub(super) pieces: Range<u32>,
}

/// An instruction before a call, with all behind it.
#[derive(Copy, Clone)]
pub(super) struct Piece {
    /// Offset of the instruction, from the block's start.
    pub(super) start: u32,
    /// Bytes that all of it takes in a body.
    pub(super) len: u32,
    /// Of all of it up to the function called.
    pub(super) hash: u64,
}

/// Calls, and the pieces before each, the shortest first: few vectors, since each site's own would take more room than what they hold.
#[derive(Default)]
pub(super) struct Sites {
    pub(super) sites: Vec<Site>,
    pub(super) pieces: Vec<Piece>,
}

impl Sites {
    pub(super) fn append(&mut self, next: Sites) {
        let before = self.pieces.len() as u32;
        let moved = |site: Site| Site { pieces: site.pieces.start + before..site.pieces.end + before, ..site };
        self.sites.extend(next.sites.into_iter().map(moved));
        self.pieces.extend(next.pieces);
    }

    pub(super) fn pieces_of(&self, site: &Site) -> &[Piece] {
        &self.pieces[site.pieces.start as usize..site.pieces.end as usize]
    }
}

/// Looks for calls.
pub(super) struct Finder<'a> {
    pub(super) image: &'a Image<'a>,
    pub(super) program: &'a Program,
    pub(super) folded: &'a Folding,
    pub(super) entries: &'a Entries<'a>,
    pub(super) shares: &'a Shares,
    pub(super) calls: &'a [DirectCall],
}

/// A call of one function, in a block.
#[derive(Copy, Clone)]
struct Call {
    offset: u32,
    len: u32,
    callee: Callee,
    /// Whether a body is a jump more.
    adds_jump: bool,
    /// The function called, if something may stand before it.
    entry: Option<u32>,
}

impl Call {
    fn site(self, block: Block, jump_min: u32, pieces: Range<u32>) -> Site {
        let Call { offset: call, len: call_len, callee, adds_jump, entry } = self;
        let is_through = adds_jump && matches!(callee, Callee::Through(_));
        let longer = if is_through { call_len - CALL_LEN } else { 0 };
        let body_min = if adds_jump { jump_min } else { 0 };
        Site { block, call, callee, call_len, longer, entry, body_min, pieces }
    }
}

impl Finder<'_> {
    /// In blocks of one function, ascending.
    pub(super) fn sites_of(&self, blocks: &[(Func, Block)]) -> Sites {
        let mut sites = Sites::default();
        let mut infos = InstructionInfoFactory::new();
        let mut instructions = Vec::new();
        let mut described: Option<(u32, Option<Described<'_>>)> = None;
        for &(_, block) in blocks {
            let jump_min = self.shares.outlining_min(block);
            let mut calls = self.calls_in(block);
            calls.retain(|call| jump_min < u32::MAX || !call.adds_jump || call.entry.is_some());
            if calls.is_empty() {
                continue;
            }
            let range = self.program.blocks[block].range;
            if described.as_ref().is_none_or(|(known, _)| *known != range) {
                described = Some((range, Described::of(self.program, range)));
            }
            let Some((_, Some(described))) = &described else { continue };
            x86::decode_block_into(self.image, self.program, block, &mut instructions);
            for call in calls {
                let first = sites.pieces.len();
                if self.pieces(block, &instructions, call, described, &mut infos, &mut sites.pieces).is_none() {
                    sites.pieces.truncate(first);
                }
                if sites.pieces.len() > first {
                    let pieces = first as u32..sites.pieces.len() as u32;
                    sites.sites.push(call.site(block, jump_min, pieces));
                }
            }
        }
        sites
    }

    /// Ascending.
    fn calls_in(&self, block: Block) -> Vec<Call> {
        let refs = self.program.block_refs(block);
        let direct = refs.iter().filter(|r| r.role == RefRole::Call);
        let direct = direct.filter_map(|r| self.call(r.offset.checked_sub(1)?, CALL_LEN, *r));
        let known = direct_calls::of_block(self.calls, block);
        let constant = known.iter().filter_map(|call| {
            let reference = direct_calls::reference_to(call.callee, RefRole::Call);
            self.call(call.offset, direct_calls::LEN, RefData { offset: call.offset + reference.offset, ..reference })
        });
        let is_known = |offset: u32| known.iter().any(|call| call.offset == offset);
        let through = refs.iter().filter_map(|r| self.call_through(block, r)).filter(|call| !is_known(call.offset));
        let mut calls: Vec<Call> = direct.chain(constant).chain(through).collect();
        calls.sort_unstable_by_key(|call| call.offset);
        calls
    }

    /// A call that is direct, or will be.
    fn call(&self, offset: u32, len: u32, reference: RefData) -> Option<Call> {
        let (callee, passes_jump) = Callees { image: self.image, program: self.program }.of(reference)?;
        let entry = match callee {
            Callee::Direct(reference) => self.entries.number_of(reference.target),
            Callee::Through(_) => None,
        };
        Some(Call { offset, len, callee, adds_jump: !passes_jump, entry })
    }

    /// `call *slot(%rip)`, whatever the slot will hold.
    fn call_through(&self, block: Block, reference: &RefData) -> Option<Call> {
        let RefTarget::Fixed(slot) = reference.target else { return None };
        let offset = reference.offset.checked_sub(2)?;
        let is_through_slot = reference.role == RefRole::IndirectThroughSlot && reference.kind == RefKind::Rel32;
        // A slot in code that moves would not stay.
        if !is_through_slot || self.image.is_executable(slot) {
            return None;
        }
        let bytes = block_bytes(self.image, self.program, block).ok()?;
        let is_call = bytes.get(offset as usize..)?.starts_with(&CALL_THROUGH);
        let (len, callee) = (direct_calls::LEN, Callee::Through(slot));
        is_call.then_some(Call { offset, len, callee, adds_jump: true, entry: None })
    }

    /// Appends what may come along before a call; `None` where that is not known.
    fn pieces(
        &self,
        block: Block,
        instructions: &[Instruction],
        call: Call,
        described: &Described<'_>,
        infos: &mut InstructionInfoFactory,
        pieces: &mut Vec<Piece>,
    ) -> Option<()> {
        let start = self.program.blocks[block].start;
        let Call { offset: call, len: call_len, callee, .. } = call;
        let at = start + u64::from(call);
        let index = instructions.binary_search_by_key(&at.0, Instruction::ip).ok()?;
        let is_call = matches!(instructions[index].code(), Code::Call_rel32_64 | Code::Call_rm64);
        if !is_call || instructions[index].len() != call_len as usize {
            return None;
        }
        // `__morestack` finds a function's body behind the return behind its call, and who relinks the file knows that call by the instructions before it.
        if instructions.get(index + 1).is_some_and(|next| next.flow_control() == FlowControl::Return) {
            return None;
        }
        let bytes = block_bytes(self.image, self.program, block).ok()?;
        let mut refs = self.program.block_refs(block);
        let mut words = Vec::new();
        match callee {
            Callee::Direct(reference) => {
                push_reference(self.program, self.folded, &reference, reference.offset, &mut [0; 4], &mut words)?;
            }
            Callee::Through(slot) => words.push(slot.0),
        }
        let mut hash = xxh3_64(&bytes_of(&words));
        let mut len = 0;
        refs = &refs[..refs.partition_point(|r| r.offset < call)];
        let mut end = at.0;
        for instruction in instructions[..index].iter().rev().take(DEPTH_MAX) {
            let (offset, next) = ((instruction.ip() - start.0) as u32, (instruction.next_ip() - start.0) as u32);
            if instruction.next_ip() != end
                || !may_come_along(instruction, infos)
                || !keeps_saved(instruction, infos)
                || !described.is_as_at((Va(instruction.ip()), instruction), at)
            {
                break;
            }
            let (before, inside) = refs.split_at(refs.partition_point(|r| r.offset < offset));
            if inside.iter().any(|r| matches!(r.target, RefTarget::Table(_) | RefTarget::UnwindTable(_))) {
                break;
            }
            let mut own = bytes.get(offset as usize..next as usize)?.to_vec();
            let Some(lowered) = lowered(&own).filter(|lowered| inside.is_empty() || lowered.len() == own.len()) else { break };
            len += lowered.len() as u32;
            words.clear();
            for reference in inside {
                push_reference(self.program, self.folded, reference, offset, &mut own, &mut words)?;
            }
            own.extend(bytes_of(&words));
            own.extend(hash.to_le_bytes());
            hash = xxh3_64(&own);
            pieces.push(Piece { start: offset, len, hash });
            (refs, end) = (before, instruction.ip());
        }
        Some(())
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
