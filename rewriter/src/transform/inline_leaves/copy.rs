//! A region as bytes: its blocks in an order, branches between them, calls of what is not copied.
//!
//! **Method.** Two orders are tried: the usual way first, which then jumps over the rest at its end; and the usual way last, where branches over
//! what is rare are taken instead. The one that executes fewer instructions is used, then the one with fewer taken branches.
//!
//! **Invariant.** From the start of the copy to its end, what runs is what ran from the entry of the original to its return.

use iced_x86::FlowControl;
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Evidence, RefData, RefKind, RefRole, RefTarget, Terminator};
use lifter::x86::{decode_block, decode_bytes};

use super::region::{Node, Region, Way, Ways};
use crate::edit::NewCode;
use crate::materialize::block_bytes;
use crate::transform::Context;

const ENDBR_LEN: u32 = 4;
/// A longer chain of jumps is not followed.
const JUMPS_MAX: usize = 8;
const WHOLE: i64 = NewCode::WHOLE as i64;

/// A copy and what it gains.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    pub(super) code: NewCode,
    /// Executed instructions less for each call, in the unit of `NewCode::shares`.
    pub(super) saved: i64,
    /// Jumps and branches that are taken, in the same unit.
    taken: i64,
}

/// The better of both copies of a region.
pub(super) fn of(context: &Context<'_>, region: &Region) -> Option<Copied> {
    let first = Writer::write(context, region, &usual_first(context, region)?);
    let last = Writer::write(context, region, &usual_last(context, region)?);
    let is_better = |a: &Copied, b: &Copied| (a.saved, -a.taken) > (b.saved, -b.taken);
    match (first, last) {
        (Some(first), Some(last)) => Some(if is_better(&last, &first) { last } else { first }),
        (first, last) => first.or(last),
    }
}

/// Where a block leads, the more frequent way first.
fn targets(context: &Context<'_>, region: &Region, node: Node) -> Option<Vec<Node>> {
    let Node::Copy(block) = node else { return Some(Vec::new()) };
    Some(match region.ways(context, block)? {
        Ways::Return | Ways::IndirectTailCall => Vec::new(),
        Ways::One(way, _) => vec![way.to],
        Ways::Two(_, taken, next) if taken.share > next.share => vec![taken.to, next.to],
        Ways::Two(_, taken, next) => vec![next.to, taken.to],
    })
}

/// Each place is followed by where it mostly leads, if that is not placed yet.
fn usual_first(context: &Context<'_>, region: &Region) -> Option<Vec<Node>> {
    let mut order = Vec::new();
    let mut open = vec![Node::Copy(region.blocks.first()?.0)];
    while let Some(node) = open.pop() {
        if !order.contains(&node) {
            order.push(node);
            open.extend(targets(context, region, node)?.into_iter().rev());
        }
    }
    Some(order)
}

/// Each place comes behind those that lead to it (loops aside), and behind what they rarely lead to.
fn usual_last(context: &Context<'_>, region: &Region) -> Option<Vec<Node>> {
    let mut done = Vec::new();
    let mut seen = vec![Node::Copy(region.blocks.first()?.0)];
    // A place and how many of its ways were gone.
    let mut path = vec![(seen[0], 0)];
    while let Some((node, gone)) = path.pop() {
        match targets(context, region, node)?.get(gone) {
            None => done.push(node),
            Some(&next) => {
                path.push((node, gone + 1));
                if !seen.contains(&next) {
                    seen.push(next);
                    path.push((next, 0));
                }
            }
        }
    }
    done.reverse();
    Some(done)
}

struct Writer<'a> {
    context: &'a Context<'a>,
    order: &'a [Node],
    copied: Copied,
    /// Where each place begins.
    starts: Vec<u32>,
    /// Displacements of a byte: where they are, and the place they name by index; one past the last for the end.
    jumps: Vec<(u32, usize)>,
}

impl<'a> Writer<'a> {
    fn write(context: &'a Context<'a>, region: &Region, order: &'a [Node]) -> Option<Copied> {
        let copied = Copied { code: NewCode::default(), saved: WHOLE, taken: 0 };
        let mut writer = Writer { context, order, copied, starts: Vec::with_capacity(order.len()), jumps: Vec::new() };
        for (index, &node) in order.iter().enumerate() {
            writer.starts.push(writer.here());
            match node {
                Node::Copy(block) => {
                    let share = region.share(block)?;
                    let share = u32::try_from(share).ok()?;
                    writer.copied.code.shares.push((writer.here(), share));
                    writer.copied.code.instead_of.push((block, share));
                    let share = u64::from(share);
                    writer.block(index, block, share, region.ways(context, block)?)?;
                }
                Node::Exit { target, is_tail_call } => writer.exit(index, region, target, is_tail_call)?,
            }
        }
        writer.finish()
    }

    fn here(&self) -> u32 {
        self.copied.code.bytes.len() as u32
    }

    fn block(&mut self, index: usize, block: Block, share: u64, ways: Ways) -> Option<()> {
        let program = self.context.program;
        let data = &program.blocks[block];
        let bytes = block_bytes(self.context.image, program, block).ok()?;
        let mut skip = 0;
        if index == 0 && data.flags.contains(BlockFlags::ENDBR) {
            skip = ENDBR_LEN;
            self.copied.saved += WHOLE;
        }
        let leaves = matches!(ways, Ways::Return | Ways::IndirectTailCall);
        let last_len = if leaves { last_instruction(bytes)? } else { 0 };
        let end = if ways == Ways::Return { data.body_len - last_len } else { data.body_len };
        let base = self.here();
        self.copied.code.bytes.extend_from_slice(bytes.get(skip as usize..end as usize)?);
        for reference in program.block_refs(block).iter().filter(|r| r.offset < end) {
            let offset = base + reference.offset.checked_sub(skip)?;
            self.copied.code.refs.push(RefData { offset, ..*reference });
        }
        let share = i64::try_from(share).ok()?;
        match ways {
            Ways::Return => {
                self.copied.saved += share;
                self.jump_unless_next(index, self.order.len(), share);
            }
            Ways::IndirectTailCall => {
                // The jump became the call that was elsewhere, so it is one instruction less in all.
                let start = self.copied.code.bytes.len() - last_len as usize;
                call_instead_of_jump(self.copied.code.bytes.get_mut(start..)?)?;
                self.jump_unless_next(index, self.order.len(), share);
            }
            Ways::One(way, is_jump) => {
                let is_own_jump = is_jump && !matches!(way.to, Node::Exit { .. });
                self.copied.saved += if is_own_jump { share } else { 0 };
                self.jump_unless_next(index, self.index_of(way.to)?, share);
            }
            Ways::Two(condition, taken, next) => {
                let (condition, there, here) = if self.index_of(taken.to)? == index + 1 {
                    (condition.inverted(), next, taken)
                } else {
                    (condition, taken, next)
                };
                self.branch(condition.0, there)?;
                self.jump_unless_next(index, self.index_of(here.to)?, i64::try_from(here.share).ok()?);
            }
        }
        Some(())
    }

    /// A call of what is not copied. Nobody calls a `ret`: that is what the end of the copy is for.
    fn exit(&mut self, index: usize, region: &Region, target: RefTarget, is_tail_call: bool) -> Option<()> {
        if matches!(target, RefTarget::Block(block) if leads_to_return(self.context, block)) {
            return None;
        }
        let node = self.order[index];
        let into = |ways: Ways| match ways {
            Ways::One(way, _) => vec![way],
            Ways::Two(_, taken, next) => vec![taken, next],
            Ways::Return | Ways::IndirectTailCall => Vec::new(),
        };
        let mut share = 0;
        for &(block, _) in &region.blocks {
            let ways = into(region.ways(self.context, block)?);
            share += ways.iter().filter(|way| way.to == node).map(|way| way.share).sum::<u64>();
        }
        let offset = self.here() + 1;
        self.copied.code.shares.push((self.here(), u32::try_from(share).ok()?));
        self.copied.code.bytes.extend_from_slice(&[0xe8, 0, 0, 0, 0]);
        let evidence = Evidence::Derived;
        self.copied.code.refs.push(RefData { offset, to_end: 4, kind: RefKind::Rel32, role: RefRole::Call, evidence, target });
        let share = i64::try_from(share).ok()?;
        // The call is not gone, but where the original jumped, the jump is.
        self.copied.saved -= if is_tail_call { 0 } else { share };
        self.jump_unless_next(index, self.order.len(), share);
        Some(())
    }

    fn index_of(&self, node: Node) -> Option<usize> {
        self.order.iter().position(|&known| known == node)
    }

    fn branch(&mut self, condition: u8, way: Way) -> Option<()> {
        self.copied.taken += i64::try_from(way.share).ok()?;
        self.copied.code.taken.push((self.here(), u32::try_from(way.share).ok()?));
        self.copied.code.bytes.push(0x70 | condition);
        let target = self.index_of(way.to)?;
        self.displacement(target);
        Some(())
    }

    fn jump_unless_next(&mut self, index: usize, target: usize, share: i64) {
        if target != index + 1 {
            self.copied.saved -= share;
            self.copied.taken += share;
            self.copied.code.taken.push((self.here(), u32::try_from(share).unwrap_or(u32::MAX)));
            self.copied.code.bytes.push(0xeb);
            self.displacement(target);
        }
    }

    fn displacement(&mut self, target: usize) {
        self.jumps.push((self.here(), target));
        self.copied.code.bytes.push(0);
    }

    /// Fills in the displacements.
    fn finish(mut self) -> Option<Copied> {
        let end = self.here();
        for &(at, target) in &self.jumps {
            let to = self.starts.get(target).copied().unwrap_or(end);
            let displacement = i8::try_from(i64::from(to) - i64::from(at) - 1).ok()?;
            self.copied.code.bytes[at as usize] = displacement.cast_unsigned();
        }
        // A call in the place of a call is that call led elsewhere, which is another thing to prove.
        let mut instructions = Vec::new();
        decode_bytes(&self.copied.code.bytes, Va(0), &mut instructions);
        let first = instructions.first()?.flow_control();
        (!matches!(first, FlowControl::Call | FlowControl::IndirectCall)).then_some(self.copied)
    }
}

/// Whether a block does nothing but return.
fn leads_to_return(context: &Context<'_>, mut block: Block) -> bool {
    for _ in 0..JUMPS_MAX {
        let data = &context.program.blocks[block];
        let instructions = decode_block(context.image, context.program, block);
        match data.terminator {
            _ if instructions.first().is_some_and(|first| first.flow_control() == FlowControl::Return) => return true,
            Terminator::Fallthrough { next } | Terminator::Jump { target: CodeTarget::Block(next) } if data.body_len == 0 => {
                block = next;
            }
            _ => return false,
        }
    }
    true
}

/// The length of the last instruction.
fn last_instruction(bytes: &[u8]) -> Option<u32> {
    let mut instructions = Vec::new();
    decode_bytes(bytes, Va(0), &mut instructions);
    instructions.last().map(|last| last.len() as u32)
}

/// `jmp` through a register or memory to `call` through the same: `ff /4` to `ff /2`.
fn call_instead_of_jump(bytes: &mut [u8]) -> Option<()> {
    let opcode = bytes.iter().position(|&byte| byte == 0xff)?;
    let modrm = bytes.get_mut(opcode + 1).filter(|modrm| **modrm & 0x38 == 0x20)?;
    *modrm = *modrm & !0x38 | 0x10;
    Some(())
}
