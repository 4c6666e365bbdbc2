//! Calls of stubs that jump through a slot become calls through the slot.
//!
//! `call stub`, where `stub` is `[endbr64] [bnd] jmp *slot(%rip)`, becomes `call *slot(%rip)`.
//!
//! **Safety.** The stub reads the slot when it runs, and so does the new call, one instruction earlier: nothing runs between. The return
//! address is pushed by the same call, at the same place of the same stack, and names what follows it; registers and flags are those that
//! the stub would have passed on (`bnd` and a jump change none). So the callee cannot tell the difference. That holds for every value
//! of the slot: for the function, for what an `IFUNC` resolver chose, and before binding for the address that leads back into the stub
//! (`push index; jmp resolver`), which the dynamic linker handles from the stack alone. Where indirect branches are
//! tracked the stub's jump asks its target for `endbr64` as the new call does; a stub with `notrack` is left alone. The slot is data, and data stays.
//! What does anything else than such a jump (a retpoline, a profiler's stub) is no stub here.
//!
//! **Profit.** One executed jump less a call, and no entry of the stub in the branch predictor and in the instruction cache, for one
//! byte more: a call through memory has six bytes, not five. Only in hot blocks.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use lifter::Image;
use lifter::address::Va;
use lifter::ir::{Evidence, Program, RefData, RefKind, RefRole, RefTarget};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::Context;
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};

/// `endbr64; bnd jmp *slot(%rip)`.
const STUB_LEN_MAX: usize = 11;
/// `jmp *slot(%rip)`.
pub(crate) const JUMP_LEN: usize = 6;
const BND: u8 = 0xf2;

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    let blocks = context.hot_blocks();
    let sites: Vec<_> = blocks.par_iter().flat_map_iter(|&block| sites_in(context, block)).collect();
    let mut codes: FxHashMap<Va, NewCodeId> = FxHashMap::default();
    for (block, offset, len, slot) in sites {
        let code = *codes.entry(slot).or_insert_with(|| edits.codes.push(call_through(slot)));
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::PltCall });
    }
}

fn sites_in(context: &Context<'_>, block: lifter::entity::Block) -> Vec<(lifter::entity::Block, u32, u32, Va)> {
    let calls = context.instructions_with(block, |r| r.role == RefRole::Call && stub_of(context.program, r).is_some());
    let site = |(offset, call, reference): (u32, Instruction, RefData)| {
        let slot = slot_called(context.image, context.program, &reference).filter(|_| call.code() == Code::Call_rel32_64)?;
        Some((block, offset, call.len() as u32, slot))
    };
    calls.into_iter().filter_map(site).collect()
}

/// What may be a stub: those are in sections that stay.
fn stub_of(program: &Program, reference: &RefData) -> Option<Va> {
    match reference.target {
        RefTarget::Fixed(va) => Some(va),
        RefTarget::Block(callee) if !program.funcs[program.func_of(callee)].is_movable() => Some(program.blocks[callee].start),
        _ => None,
    }
}

/// The slot through which what a call names jumps, if it is a stub.
pub(crate) fn slot_called(image: &Image<'_>, program: &Program, reference: &RefData) -> Option<Va> {
    slot_of_stub(image, stub_of(program, reference)?)
}

/// The slot through which a stub jumps, if it does nothing else.
pub(crate) fn slot_of_stub(image: &Image<'_>, stub: Va) -> Option<Va> {
    let bytes = image.read(stub, STUB_LEN_MAX).or_else(|| image.read(stub, 6))?;
    let mut decoder = Decoder::with_ip(64, bytes, stub.0, DecoderOptions::NONE);
    let mut jump = decoder.decode();
    if jump.code() == Code::Endbr64 {
        jump = decoder.decode();
    }
    let start = (jump.ip() - stub.0) as usize;
    let is_through_slot =
        jump.code() == Code::Jmp_rm64 && jump.op0_kind() == OpKind::Memory && jump.memory_base() == Register::RIP;
    // Of prefixes, `bnd` alone changes nothing: not `notrack`, not a segment.
    let prefixes = bytes.get(start..start + jump.len().checked_sub(JUMP_LEN)?)?;
    let slot = Va(jump.ip_rel_memory_address());
    // A slot in code that moves would not stay.
    (is_through_slot && matches!(prefixes, [] | [BND]) && !image.is_executable(slot)).then_some(slot)
}

/// A reference to the slot that a call or jump at the start of new code goes through.
pub(crate) fn reference_to(slot: Va) -> RefData {
    RefData {
        offset: 2,
        to_end: 4,
        kind: RefKind::Rel32,
        role: RefRole::IndirectThroughSlot,
        evidence: Evidence::Derived,
        target: RefTarget::Fixed(slot),
    }
}

/// `call *slot(%rip)`.
fn call_through(slot: Va) -> NewCode {
    NewCode { bytes: vec![0xff, 0x15, 0, 0, 0, 0], refs: vec![reference_to(slot)], ..NewCode::default() }
}
