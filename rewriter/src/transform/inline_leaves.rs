//! Calls become the beginning of what they call, where that uses no stack.
//!
//! The *beginning* of a function here is its entry block and what mostly follows, up to a few blocks, none of which calls or uses the stack
//! (`region`). It is copied to where the call was (`copy`). Where control leaves it by `ret` the copy runs on; by a tail call (`jmp g`), the copy calls
//! `g`; to a block that is not copied, the copy calls that block. A leaf is copied whole; of a function that mostly returns early, that way.
//!
//! **Safety.** A call and its `ret` move the stack pointer, write and read the word below it, and pass control. No instruction of the
//! beginning reads, writes or addresses by the stack pointer, so none can tell that it is 8 higher than it was, nor where it lies itself; all other registers, the
//! flags and memory are passed on by a call and a `ret` as they are. What goes is the store of the return address below the caller's stack pointer,
//! which is dead when the call is over: signal handlers and all other calls overwrite it. Where the beginning is left for other code of the
//! callee, or of what it tail-calls, the original state was: a return address on top of the stack, all else as now. A call of that code makes
//! just that state, and what is returned to goes on where the original went on. Bytes and references are the callee's; an `endbr64` at its
//! start, which only marks it, is left out. The callee itself stays for who names it. What seldom runs of a copy lies apart, with the cold code of the
//! caller; jumps lead there and back and change nothing else.
//!
//! For an unwinder (a handler of `SIGSEGV` in the copy, a profiler, an exception through a call that the copy makes) the copy has, in both parts, the row and the call
//! site of the call: the callee's own row must be that of an entry in all that is copied, and it has no exception table, so to unwind out of it was to
//! arrive at the call. A callee that begins with a no-op is left alone: it may be there to be patched; so is one that is known by its faults. A call through a stub is left alone too,
//! because another file may interpose.
//!
//! **Profit.** A call and a return less where the copy returns, the jump of a tail call where it leaves by one, nothing where it calls the rest; at
//! the cost of bytes. Only in hot blocks, the best first (executed instructions saved by byte added), until [`BYTES_PER_MILLE_MAX`] of the
//! movable code is spent.

mod copy;
mod region;

use iced_x86::{Code, Instruction};
use lifter::entity::Block;
use lifter::ir::{BlockFlags, RefData, RefRole, RefTarget, Terminator};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use self::copy::Copied;
use super::Context;
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::layout::saved_min_per_byte;

/// What copies may add to the movable code.
const BYTES_PER_MILLE_MAX: u64 = 10;
/// Executed instructions that a copy must save each time it runs, in the unit of `NewCode::shares`.
const SAVED_MIN: i64 = NewCode::WHOLE as i64 / 2;

/// A call that could go.
struct Site {
    block: Block,
    offset: u32,
    len: u32,
    callee: Block,
}

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    // Where one body stands for several functions, a copy in it would stand for calls at several places: who checks the output tells those apart.
    let mut blocks = context.hot_blocks();
    blocks.retain(|&block| !context.is_stand_in(context.program.func_of(block)));
    let mut sites: Vec<Site> = blocks.par_iter().flat_map_iter(|&block| sites_in(context, block)).collect();
    let mut callees: Vec<Block> = sites.iter().map(|site| site.callee).collect();
    callees.sort_unstable();
    callees.dedup();
    let copied = |&callee: &Block| Some((callee, region::of(context, callee).and_then(|region| copy::of(context, &region))?));
    let copies: FxHashMap<Block, Copied> = callees.par_iter().filter_map(copied).collect();
    sites.retain(|site| copies.get(&site.callee).is_some_and(|copy| context.everywhere || copy.saved >= SAVED_MIN));
    let added = |site: &Site| (copies[&site.callee].code.bytes.len() as u64).saturating_sub(u64::from(site.len));
    // Instructions saved by byte; the fixed point keeps small counts apart.
    let density = |site: &Site| {
        let saved = copies[&site.callee].saved.max(0).cast_unsigned();
        u128::from(context.count(site.block)) * u128::from(saved) / u128::from(added(site).max(1))
    };
    // What is seldom run is not worth the room among what is busy.
    let density_min =
        u128::from(saved_min_per_byte(context.program, context.weights, context.hot_min)) * u128::from(NewCode::WHOLE);
    sites.retain(|site| context.everywhere || density(site) >= density_min);
    sites.sort_by_cached_key(|site| (std::cmp::Reverse(density(site)), site.block, site.offset));
    let movable = context.program.funcs.iter().filter(|(_, data)| data.is_movable());
    let movable_bytes: u64 = movable.map(|(func, _)| context.program.func_size(func)).sum();
    let mut left = if context.everywhere { u64::MAX } else { movable_bytes * BYTES_PER_MILLE_MAX / 1000 };
    let mut codes: FxHashMap<Block, NewCodeId> = FxHashMap::default();
    for site in sites {
        let cost = added(&site);
        if cost > left {
            continue;
        }
        left -= cost;
        let Site { block, offset, len, callee } = site;
        let code = *codes.entry(callee).or_insert_with(|| edits.codes.push(copies[&callee].code.clone()));
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::InlineLeaf });
    }
}

fn sites_in(context: &Context<'_>, block: Block) -> Vec<Site> {
    let program = context.program;
    let data = &program.blocks[block];
    let is_entry = |callee: Block| {
        let func = &program.funcs[program.func_of(callee)];
        func.entry == callee && func.is_movable() && !program.blocks[callee].flags.contains(BlockFlags::KNOWN_BY_FAULT)
    };
    let is_call = |r: &RefData| r.role == RefRole::Call && matches!(r.target, RefTarget::Block(callee) if is_entry(callee));
    let site = |(offset, call, reference): (u32, Instruction, RefData)| {
        let RefTarget::Block(callee) = reference.target else { return None };
        let len = call.len() as u32;
        // A call that ends the block is one that does not return.
        let is_last = offset + len >= data.len && matches!(data.terminator, Terminator::Stop(_));
        (call.code() == Code::Call_rel32_64 && !is_last).then_some(Site { block, offset, len, callee })
    };
    context.instructions_with(block, is_call).into_iter().filter_map(site).collect()
}
