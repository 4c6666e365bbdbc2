//! A region as bytes: its blocks in an order, branches between them, calls of what is not copied.
//!
//! **Method.** Several orders are written (`order`); the one that executes the fewest instructions and taken branches, counted alike, is used. What seldom
//! runs may lie apart from the caller's block: then what mostly runs goes straight on.
//!
//! **Invariant.** From the start of the copy to its end, what runs is what ran from the entry of the original to its return.

mod order;

use iced_x86::FlowControl;
use lifter::address::Va;
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Evidence, RefData, RefKind, RefRole, RefTarget, Terminator};
use lifter::x86::{decode_block, decode_bytes};

use self::order::Order;
use super::region::{Node, Region, Ways};
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

/// The best copy of a region.
pub(super) fn of(context: &Context<'_>, region: &Region) -> Option<Copied> {
    let orders = order::candidates(context, region)?;
    let copies = orders.iter().filter_map(|order| Writer::write(context, region, order));
    copies.max_by_key(|copy| (copy.saved - copy.taken, std::cmp::Reverse((copy.code.part(0).end, copy.code.bytes.len()))))
}

/// Where a jump of a copy leads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Target {
    /// To a place, by its index in the order.
    Place(usize),
    /// To what follows the call.
    End,
}

struct Writer<'a> {
    context: &'a Context<'a>,
    order: &'a Order,
    copied: Copied,
    /// Where each place begins.
    starts: Vec<u32>,
    /// Displacements: where they are, and what they name; those of four bytes lead from one part to another.
    short: Vec<(u32, Target)>,
    crossing: Vec<(u32, Target)>,
}

impl<'a> Writer<'a> {
    fn write(context: &'a Context<'a>, region: &Region, order: &'a Order) -> Option<Copied> {
        let copied = Copied { code: NewCode::default(), saved: WHOLE, taken: 0 };
        let starts = Vec::with_capacity(order.nodes.len());
        let mut writer = Writer { context, order, copied, starts, short: Vec::new(), crossing: Vec::new() };
        for (index, &node) in order.nodes.iter().enumerate() {
            let here = writer.here();
            if index > 0 && order.part(index) != order.part(index - 1) {
                writer.copied.code.apart.push(here);
            }
            writer.starts.push(here);
            match node {
                Node::Copy(block) => {
                    let share = u32::try_from(region.share(block)?).ok()?;
                    writer.runs(share);
                    writer.copied.code.instead_of.push((block, share));
                    writer.block(index, block, share.into(), region.ways(context, block)?)?;
                }
                Node::Exit { target, is_tail_call } => {
                    let share = order::exit_share(context, region, node)?;
                    writer.exit(index, share, target, is_tail_call)?;
                }
            }
        }
        writer.finish()
    }

    /// What comes next runs that often.
    fn runs(&mut self, share: u32) {
        self.copied.code.shares.push((self.here(), share));
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
        match ways {
            Ways::Return => {
                self.copied.saved += share.cast_signed();
                self.jump_unless_next(index, Target::End, share)?;
            }
            Ways::IndirectTailCall => {
                // The jump became the call that was elsewhere, so it is one instruction less in all.
                let start = self.copied.code.bytes.len() - last_len as usize;
                call_instead_of_jump(self.copied.code.bytes.get_mut(start..)?)?;
                self.jump_unless_next(index, Target::End, share)?;
            }
            Ways::One(way, is_jump) => {
                let is_own_jump = is_jump && !matches!(way.to, Node::Exit { .. });
                self.copied.saved += if is_own_jump { share.cast_signed() } else { 0 };
                self.jump_unless_next(index, self.target(way.to)?, share)?;
            }
            Ways::Two(condition, taken, next) => {
                // To what comes next there is no jump; if neither way does, the rare one has the jump besides.
                let falls_to_taken = self.is_next(index, self.target(taken.to)?);
                let prefers_taken = !self.is_next(index, self.target(next.to)?) && taken.share < next.share;
                let (condition, there, here) =
                    if falls_to_taken || prefers_taken { (condition.inverted(), next, taken) } else { (condition, taken, next) };
                self.branch(index, condition.0, self.target(there.to)?, there.share)?;
                self.jump_unless_next(index, self.target(here.to)?, here.share)?;
            }
        }
        Some(())
    }

    /// A call of what is not copied. Nobody calls a `ret`: that is what the end of the copy is for.
    fn exit(&mut self, index: usize, share: u64, target: RefTarget, is_tail_call: bool) -> Option<()> {
        if matches!(target, RefTarget::Block(block) if leads_to_return(self.context, block)) {
            return None;
        }
        self.runs(u32::try_from(share).ok()?);
        let offset = self.here() + 1;
        self.copied.code.bytes.extend_from_slice(&[0xe8, 0, 0, 0, 0]);
        let evidence = Evidence::Derived;
        self.copied.code.refs.push(RefData { offset, to_end: 4, kind: RefKind::Rel32, role: RefRole::Call, evidence, target });
        // The call is not gone, but where the original jumped, the jump is.
        self.copied.saved -= if is_tail_call { 0 } else { share.cast_signed() };
        self.jump_unless_next(index, Target::End, share)
    }

    fn target(&self, node: Node) -> Option<Target> {
        self.order.nodes.iter().position(|&known| known == node).map(Target::Place)
    }

    fn part(&self, target: Target) -> usize {
        match target {
            Target::Place(index) => self.order.part(index),
            Target::End => 0,
        }
    }

    /// Whether a target is what follows a place.
    fn is_next(&self, index: usize, target: Target) -> bool {
        match target {
            Target::End => index + 1 == self.order.in_place,
            Target::Place(next) => next == index + 1 && self.order.part(next) == self.order.part(index),
        }
    }

    fn branch(&mut self, index: usize, condition: u8, target: Target, share: u64) -> Option<()> {
        self.copied.taken += share.cast_signed();
        self.copied.code.taken.push((self.here(), u32::try_from(share).ok()?));
        self.jump(index, target, &[0x70 | condition], &[0x0f, 0x80 | condition]);
        Some(())
    }

    fn jump_unless_next(&mut self, index: usize, target: Target, share: u64) -> Option<()> {
        if !self.is_next(index, target) {
            self.copied.saved -= share.cast_signed();
            self.copied.taken += share.cast_signed();
            let share = u32::try_from(share).ok()?;
            self.runs(share);
            self.copied.code.taken.push((self.here(), share));
            self.jump(index, target, &[0xeb], &[0xe9]);
        }
        Some(())
    }

    fn jump(&mut self, index: usize, target: Target, short: &[u8], long: &[u8]) {
        if self.order.part(index) == self.part(target) {
            self.copied.code.bytes.extend_from_slice(short);
            self.short.push((self.here(), target));
            self.copied.code.bytes.push(0);
        } else {
            self.copied.code.bytes.extend_from_slice(long);
            self.crossing.push((self.here(), target));
            self.copied.code.bytes.extend_from_slice(&[0; 4]);
        }
    }

    /// Fills in the displacements.
    fn finish(mut self) -> Option<Copied> {
        let end = self.copied.code.part(0).end;
        let (starts, order) = (&self.starts, self.order);
        let offset = |target: Target| match target {
            Target::Place(index) => starts[index],
            Target::End => end,
        };
        for &(at, target) in &self.short {
            let displacement = i8::try_from(i64::from(offset(target)) - i64::from(at) - 1).ok()?;
            self.copied.code.bytes[at as usize] = displacement.cast_unsigned();
        }
        // A place without code at the end of the first part is that end.
        let is_end = |target: Target| match target {
            Target::Place(index) => order.part(index) == 0 && starts[index] == end,
            Target::End => true,
        };
        let crossing = |&(at, target): &(u32, Target)| (at, if is_end(target) { NewCode::END } else { offset(target) });
        self.copied.code.crossings = self.crossing.iter().map(crossing).collect();
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
