//! Calls of small leaves become their bodies.
//!
//! A *leaf* here is what is called, up to a few blocks ([`BLOCKS_MAX`]), that ends in `ret` on each way and neither calls nor uses the stack. Its blocks are
//! copied one behind the other in the order in which they mostly run; branches between them are short and inside the copy; the last `ret`
//! falls out of the copy and others jump there.
//!
//! **Safety.** A call and its `ret` move the stack pointer, read and write the word below it, and pass control. No instruction of the body
//! reads, writes or addresses by the stack pointer, so none can tell that it is 8 higher than it was, nor where the body lies; all other registers, the flags and
//! memory are passed on by a call and a `ret` as they are. What goes is the store of the return address below the caller's stack pointer, which is dead when
//! the call is over: signal handlers and all other calls overwrite it. Bytes and references are the leaf's; an `endbr64` at its
//! start, which only marks it, is left out. The callee itself stays for who names it.
//!
//! For an unwinder (a handler of `SIGSEGV` in the body, a profiler) the copy has the row and the call site of the call: the leaf's own
//! row must be that of an entry throughout, and it has no exception table, so to unwind out of the leaf was to arrive at the call.
//! A leaf that begins with a no-op is left alone: it may be there to be patched. A call through a stub is left alone too, because another file
//! may interpose.
//!
//! **Profit.** A call and a return less each time, and what a copy costs in bytes. Only in hot blocks, the best first (executed instructions saved by
//! byte added), until [`BYTES_PER_MILLE_MAX`] of the movable code is spent.

use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, Register};
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program, RefData, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86::decode_block;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::Context;
use crate::edit::{Change, EditPlan, NewCode, NewCodeId, Replacement};
use crate::materialize::block_bytes;

/// Blocks of a leaf.
const BLOCKS_MAX: usize = 6;
/// Bytes of a leaf's copy: all its branches are short.
const BYTES_MAX: usize = 80;
/// What copies may add to the movable code.
const BYTES_PER_MILLE_MAX: u64 = 5;
/// The rows of a leaf: the frame address is 8 above the stack pointer, the return address below it (DWARF 5, 6.4.2).
const ENTRY_ROW: [u8; 5] = [0x0c, 7, 8, 0x90, 1];
const RETURN_ADDRESS_COLUMN: u64 = 16;

/// A call that could go.
struct Site {
    block: Block,
    offset: u32,
    len: u32,
    leaf: Block,
}

/// A leaf, ready to be copied.
struct Leaf {
    code: NewCode,
    /// Executed instructions less for each call, in the unit of `NewCode::shares`.
    saved: u64,
}

pub(super) fn plan(context: &Context<'_>, edits: &mut EditPlan) {
    let blocks = context.hot_blocks();
    let mut sites: Vec<Site> = blocks.par_iter().flat_map_iter(|&block| sites_in(context, block)).collect();
    let mut leaves: Vec<Block> = sites.iter().map(|site| site.leaf).collect();
    leaves.sort_unstable();
    leaves.dedup();
    let read = |&block: &Block| Some((block, leaf(context, block)?));
    let leaves: FxHashMap<Block, Leaf> = leaves.par_iter().filter_map(read).collect();
    sites.retain(|site| leaves.contains_key(&site.leaf));
    let added = |site: &Site| (leaves[&site.leaf].code.bytes.len() as u64).saturating_sub(u64::from(site.len));
    // Instructions saved by byte; the fixed point keeps small counts apart.
    let density = |site: &Site| {
        u128::from(context.count(site.block)) * u128::from(leaves[&site.leaf].saved) / u128::from(added(site).max(1))
    };
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
        let code = *codes.entry(site.leaf).or_insert_with(|| edits.codes.push(leaves[&site.leaf].code.clone()));
        let Site { block, offset, len, leaf } = site;
        let inlined = Some(context.program.func_of(leaf));
        edits.replacements.push(Replacement { block, offset, len, code, change: Change::InlineLeaf, inlined });
    }
}

fn sites_in(context: &Context<'_>, block: Block) -> Vec<Site> {
    let data = &context.program.blocks[block];
    let is_entry = |block: Block| context.program.funcs[context.program.func_of(block)].entry == block;
    let calls = context.instructions_with(block, |r| {
        r.role == RefRole::Call && matches!(r.target, RefTarget::Block(callee) if is_entry(callee))
    });
    let site = |(offset, call, reference): (u32, Instruction, RefData)| {
        let RefTarget::Block(leaf) = reference.target else { return None };
        let len = call.len() as u32;
        // A call that ends the block is one that does not return.
        let is_plain =
            call.code() == Code::Call_rel32_64 && (offset + len < data.len || !matches!(data.terminator, Terminator::Stop(_)));
        is_plain.then_some(Site { block, offset, len, leaf })
    };
    calls.into_iter().filter_map(site).collect()
}

/// What is copied of the leaf that begins at `entry`; `None` if it is none.
fn leaf(context: &Context<'_>, entry: Block) -> Option<Leaf> {
    let program = context.program;
    let func = program.func_of(entry);
    if !program.funcs[func].is_movable() || program.funcs[func].blocks.len() > 4 * BLOCKS_MAX {
        return None;
    }
    let blocks = in_running_order(context, entry)?;
    let size: usize = blocks.iter().map(|&block| program.blocks[block].len as usize).sum();
    if size > BYTES_MAX || !blocks.iter().all(|&block| has_entry_row(program, block)) {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let mut writer = Writer { program, code: NewCode::default(), starts: vec![0; blocks.len()], jumps: Vec::new() };
    let entries = context.count(entry).max(1);
    let whole = u128::from(NewCode::WHOLE);
    let mut saved = 2 * u64::from(NewCode::WHOLE);
    for (index, &block) in blocks.iter().enumerate() {
        let instructions = decode_block(context.image, program, block);
        let mut body = instructions.as_slice();
        let mut skip = 0;
        if index == 0 && program.blocks[block].flags.contains(BlockFlags::ENDBR) {
            (skip, body) = (body.first()?.len() as u32, body.get(1..)?);
            saved += u64::from(NewCode::WHOLE);
        }
        let is_patchable = index == 0 && body.first().is_some_and(|first| first.mnemonic() == Mnemonic::Nop);
        let bytes = block_bytes(context.image, program, block).ok()?;
        if is_patchable || !is_stack_free(program, block, body, &mut factory) {
            return None;
        }
        let share = (u128::from(context.count(block)) * whole / u128::from(entries)).min(whole * 64) as u32;
        let jumps_before = writer.jumps.len();
        writer.block(index, &blocks, bytes, skip, if context.count(entry) == 0 { NewCode::WHOLE } else { share })?;
        // A `ret` that became a jump is no instruction less, and a way that fell through may have become a jump.
        let was_jump = !matches!(program.blocks[block].terminator, Terminator::Fallthrough { .. });
        let jumps = (writer.jumps.len() - jumps_before) as u64;
        saved = saved.saturating_sub(u64::from(share) * jumps.saturating_sub(u64::from(was_jump && !is_return(program, block))));
    }
    writer.finish(blocks.len())?;
    let is_worth_it = !writer.code.bytes.is_empty() && saved > 0;
    is_worth_it.then_some(Leaf { code: writer.code, saved })
}

fn is_return(program: &Program, block: Block) -> bool {
    program.blocks[block].terminator == Terminator::Stop(StopKind::Return)
}

/// The blocks of a leaf, each followed by the one that it mostly leads to where that is not placed yet.
fn in_running_order(context: &Context<'_>, entry: Block) -> Option<Vec<Block>> {
    let program = context.program;
    let mut order: Vec<Block> = Vec::new();
    let mut open = vec![entry];
    while let Some(block) = open.pop() {
        if order.contains(&block) {
            continue;
        }
        if order.len() == BLOCKS_MAX || program.func_of(block) != program.func_of(entry) {
            return None;
        }
        order.push(block);
        match program.blocks[block].terminator {
            Terminator::Stop(StopKind::Return) => {}
            Terminator::Fallthrough { next } => open.push(next),
            Terminator::Jump { target: CodeTarget::Block(target) } => open.push(target),
            Terminator::Branch { taken: CodeTarget::Block(taken), next, .. } => {
                let (first, second) = if context.count(taken) > context.count(next) { (taken, next) } else { (next, taken) };
                open.extend([second, first]);
            }
            _ => return None,
        }
    }
    Some(order)
}

/// Whether the frame description of a block says at each place what it says at an entry, and names no exception table.
fn has_entry_row(program: &Program, block: Block) -> bool {
    let Some(fde) = program.ranges[program.blocks[block].range as usize].fde else { return false };
    let data = &program.unwind.fdes[fde];
    let cie = &program.unwind.cies[data.cie as usize];
    let is_standard = cie.instructions.strip_prefix(&ENTRY_ROW).is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
        && cie.data_alignment == -8
        && cie.return_register == RETURN_ADDRESS_COLUMN
        && !cie.is_signal_frame;
    is_standard && data.ops.is_empty() && data.lsda.is_none() && data.opaque_lsda.is_none()
}

/// Whether the instructions of a block, the branch or the `ret` at its end aside, leave the stack pointer and what it points to alone and always run on.
fn is_stack_free(program: &Program, block: Block, body: &[Instruction], factory: &mut InstructionInfoFactory) -> bool {
    let data = &program.blocks[block];
    let body_end = data.start.0 + u64::from(data.body_len);
    let named = |r: &RefData| matches!(r.target, RefTarget::Table(_)) || matches!(r.role, RefRole::Call | RefRole::Branch);
    if program.block_refs(block).iter().any(named) {
        return false;
    }
    body.iter().take_while(|instruction| instruction.ip() < body_end).all(|instruction| {
        if instruction.flow_control() == FlowControl::Return {
            return instruction.code() == Code::Retnq && instruction.next_ip() == data.end().0;
        }
        let info = factory.info(instruction);
        let is_stack = |register: Register| register.full_register() == Register::RSP;
        let names_stack = info.used_registers().iter().any(|used| is_stack(used.register()))
            || info.used_memory().iter().any(|used| is_stack(used.base()) || is_stack(used.index()));
        instruction.flow_control() == FlowControl::Next
            && !instruction.is_stack_instruction()
            && !instruction.is_privileged()
            && !names_stack
            && !matches!(instruction.mnemonic(), Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Endbr64 | Mnemonic::Hlt)
    })
}

/// Makes the copy.
struct Writer<'a> {
    program: &'a Program,
    code: NewCode,
    /// Where the copy of each block begins.
    starts: Vec<u32>,
    /// Displacements of a byte: where they are, and the block they name by index; one past the last for the copy's end.
    jumps: Vec<(u32, usize)>,
}

impl Writer<'_> {
    fn block(&mut self, index: usize, blocks: &[Block], bytes: &[u8], skip: u32, share: u32) -> Option<()> {
        let block = blocks[index];
        let data = &self.program.blocks[block];
        let base = self.code.bytes.len() as u32;
        self.starts[index] = base;
        self.code.shares.push((base, share));
        let is_return = is_return(self.program, block);
        // The last instruction of the body is the `ret`, one byte or, behind a prefix, two.
        let ret_len = match bytes.get(..data.len as usize)? {
            [.., 0xf2 | 0xf3, 0xc3] if is_return => self.prefixed_ret(data.len, bytes)?,
            [.., 0xc3] if is_return => 1,
            _ if is_return => return None,
            _ => 0,
        };
        let end = data.body_len - ret_len;
        self.code.bytes.extend_from_slice(bytes.get(skip as usize..end as usize)?);
        for reference in self.program.block_refs(block).iter().filter(|r| r.offset < end) {
            let offset = base + reference.offset.checked_sub(skip)?;
            self.code.refs.push(RefData { offset, ..*reference });
        }
        let index_of = |target: Block| blocks.iter().position(|&known| known == target);
        match data.terminator {
            Terminator::Stop(_) => self.jump_unless_next(index, blocks.len()),
            Terminator::Fallthrough { next } => self.jump_unless_next(index, index_of(next)?),
            Terminator::Jump { target: CodeTarget::Block(target) } => self.jump_unless_next(index, index_of(target)?),
            Terminator::Branch { condition, taken: CodeTarget::Block(taken), next } => {
                let (taken, next) = (index_of(taken)?, index_of(next)?);
                let (condition, to, other) =
                    if taken == index + 1 { (condition.inverted(), next, taken) } else { (condition, taken, next) };
                self.code.bytes.push(0x70 | condition.0);
                self.displacement(to);
                self.jump_unless_next(index, other);
            }
            _ => return None,
        }
        Some(())
    }

    /// How long a `ret` with what looks like a prefix is: the byte may belong to the instruction before.
    fn prefixed_ret(&self, len: u32, bytes: &[u8]) -> Option<u32> {
        let mut instructions = Vec::new();
        lifter::x86::decode_bytes(bytes.get(..len as usize)?, lifter::address::Va(0), &mut instructions);
        instructions.last().map(|ret| ret.len() as u32)
    }

    fn jump_unless_next(&mut self, index: usize, target: usize) {
        if target != index + 1 {
            self.code.bytes.push(0xeb);
            self.displacement(target);
        }
    }

    fn displacement(&mut self, target: usize) {
        self.jumps.push((self.code.bytes.len() as u32, target));
        self.code.bytes.push(0);
    }

    /// Fills in the displacements.
    fn finish(&mut self, num_blocks: usize) -> Option<()> {
        let end = self.code.bytes.len() as u32;
        for &(at, target) in &self.jumps {
            let to = if target == num_blocks { end } else { self.starts[target] };
            let displacement = i8::try_from(i64::from(to) - i64::from(at) - 1).ok()?;
            self.code.bytes[at as usize] = displacement as u8;
        }
        Some(())
    }
}
