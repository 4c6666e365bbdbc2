//! Which blocks are copied: what mostly runs from a block that saves registers to a return, without a call and without use of the frame.
//!
//! **Method.** From the block that makes the frame on, the more frequent way first, blocks join as long as they are fit, run often enough and are few. Then those go
//! again from which no return is reached inside.
//!
//! **Terminates**: each block joins at most once, and goes at most once.

use iced_x86::{Instruction, InstructionInfoFactory};
use lifter::entity::Block;
use lifter::ir::{BlockFlags, CodeTarget, Program, RefRole, RefTarget, StopKind, Terminator};
use lifter::x86::decode_block;

use super::frame::{Made, Part, Step, is_in_room, part_of, sets_flags};
use super::slots::is_stored;
use crate::edit::NewCode;
use crate::terminator::SuccessorCounts;
use crate::transform::Context;
use crate::transform::entry_row;

const BLOCKS_MAX: usize = 24;
const BYTES_MAX: u32 = 512;
const WHOLE: u64 = NewCode::WHOLE as u64;

/// Instructions of a block, each with what it is to the frame.
pub(super) type Parts = Vec<(Instruction, Part)>;

/// A copied block.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) block: Block,
    /// How often it runs for each time that the first does, in the unit of `NewCode::shares`.
    pub(super) share: u64,
    pub(super) body: Parts,
    /// Whether the frame is gone at its end.
    pub(super) is_frameless: bool,
}

/// The copied blocks; the first makes the frame.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) members: Vec<Member>,
    pub(super) steps: Vec<Step>,
}

impl Region {
    pub(super) fn find(&self, block: Block) -> Option<usize> {
        self.members.iter().position(|member| member.block == block)
    }

    /// How often the region is left to a block, in the unit of `NewCode::shares`.
    pub(super) fn share_of_exit(&self, context: &Context<'_>, exit: Block) -> u64 {
        let members = self.members.iter().filter(|member| !member.is_frameless);
        let ways = members.flat_map(|member| ways(context, member.block, member.share));
        ways.filter(|way| way.0 == exit).map(|way| way.1).sum()
    }

    /// Saves of the first steps of the frame, which may be made first of all.
    pub(super) fn first_saves(&self) -> Vec<u8> {
        let save = |step: &Step| match step.made {
            Made::Save(register) => Some(register),
            Made::Room(_) => None,
        };
        self.steps.iter().map_while(save).collect()
    }

    /// What holds where each member begins, by what holds at the first one, what a member makes of it, and what two ways that meet have in common; `None` for one that nothing leads to. Ends if what is
    /// in common with something else can only so often be another thing.
    pub(super) fn at_starts<T: Copy + PartialEq>(
        &self,
        program: &Program,
        first: T,
        mut after: impl FnMut(usize, T) -> T,
        meet: impl Fn(T, T) -> T,
    ) -> Vec<Option<T>> {
        let mut starts = vec![None; self.members.len()];
        let mut open = vec![(0, first)];
        while let Some((index, arriving)) = open.pop() {
            let (Some(member), Some(start)) = (self.members.get(index), starts.get_mut(index)) else { continue };
            let met = start.map_or(arriving, |known| meet(known, arriving));
            if start.replace(met) == Some(met) || member.is_frameless {
                continue;
            }
            let end = after(index, met);
            open.extend(inside(program, member.block).into_iter().filter_map(|target| Some((self.find(target)?, end))));
        }
        starts
    }

    /// Where control leaves to code that expects the frame.
    pub(super) fn exits(&self, program: &Program) -> Vec<Block> {
        let mut exits = Vec::new();
        for member in self.members.iter().filter(|member| !member.is_frameless) {
            exits.extend(inside(program, member.block).into_iter().filter(|&target| self.find(target).is_none()));
        }
        exits.sort_unstable();
        exits.dedup();
        exits
    }
}

/// The blocks that a terminator without a frame of its own leads to.
pub(super) fn inside(program: &Program, block: Block) -> Vec<Block> {
    let target_of = |target: CodeTarget| match target {
        CodeTarget::Block(block) => Some(block),
        CodeTarget::Fixed(_) => None,
    };
    match program.blocks[block].terminator {
        Terminator::Fallthrough { next } => vec![next],
        Terminator::Jump { target } => target_of(target).into_iter().collect(),
        Terminator::Branch { taken, next, .. } => target_of(taken).into_iter().chain([next]).collect(),
        _ => Vec::new(),
    }
}

/// The region that begins with a block; blocks that run less often than `rare` are not in it.
pub(super) fn of(context: &Context<'_>, first: Block, rare: u64) -> Option<Region> {
    let program = context.program;
    if !begins_like_an_entry(program, first) {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let (body, steps) = prologue(context, first, &mut factory)?;
    let mut region = Region { members: Vec::new(), steps };
    region.members.push(Member { block: first, share: WHOLE, body, is_frameless: false });
    let mut len = program.blocks[first].len;
    let mut open = ways(context, first, WHOLE);
    while let Some((block, guess)) = open.pop() {
        let data = &program.blocks[block];
        let counted = (u128::from(context.count(block)) << 16).checked_div(u128::from(context.count(first)));
        let share = counted.map_or(guess, |share| u64::try_from(share).unwrap_or(u64::MAX).min(1 << 24));
        let has_room = region.members.len() < BLOCKS_MAX && len + data.len <= BYTES_MAX;
        let is_own = data.func == program.func_of(first) && !data.flags.contains(BlockFlags::LANDING_PAD);
        if !is_own || !has_room || share < rare || region.find(block).is_some() || has_handlers(program, block) {
            continue;
        }
        let Some(member) = member(context, block, share, (&region.members[0].body, &region.steps), &mut factory) else {
            continue;
        };
        len += data.len;
        if !member.is_frameless {
            open.extend(ways(context, block, share));
        }
        region.members.push(member);
    }
    prune(program, &mut region);
    (region.members.first()?.block == first && region.members.len() > 1).then_some(region)
}

/// Where a block goes inside its function, each with how often, rare ones first.
pub(super) fn ways(context: &Context<'_>, block: Block, share: u64) -> Vec<(Block, u64)> {
    let targets = inside(context.program, block);
    let counts = SuccessorCounts::of(context.program, context.weights, block);
    let whole = u128::from(counts.taken) + u128::from(counts.next);
    let part = |count: u64| (u128::from(share) * u128::from(count)).checked_div(whole).map_or(share / 2, |part| part as u64);
    let mut list: Vec<(Block, u64)> = match (context.program.blocks[block].terminator, targets.as_slice()) {
        (Terminator::Branch { .. }, &[taken, next]) => vec![(taken, part(counts.taken)), (next, part(counts.next))],
        _ => targets.into_iter().map(|target| (target, share)).collect(),
    };
    list.sort_by_key(|way| way.1);
    list
}

/// Drops the members from which no return is reached.
fn prune(program: &Program, region: &mut Region) {
    let mut is_kept: Vec<bool> = region.members.iter().map(|member| member.is_frameless).collect();
    loop {
        let reaches = |index: usize| {
            let targets = inside(program, region.members[index].block);
            targets.into_iter().any(|target| region.find(target).is_some_and(|to| is_kept[to]))
        };
        let Some(more) = (0..is_kept.len()).find(|&index| !is_kept[index] && reaches(index)) else { break };
        is_kept[more] = true;
    }
    let mut kept = is_kept.into_iter();
    region.members.retain(|_| kept.next().unwrap_or(false));
}

/// Whether a block begins with the row of an entry.
fn begins_like_an_entry(program: &Program, block: Block) -> bool {
    !has_handlers(program, block) && entry_row::has_entry_row(program, block, program.blocks[block].start)
}

/// Whether an exception that leaves an instruction of a block may be handled.
fn has_handlers(program: &Program, block: Block) -> bool {
    let data = &program.blocks[block];
    let table = program.ranges[data.range as usize].fde.and_then(|fde| program.unwind.fdes[fde].lsda);
    let sites = table.and_then(|t| program.unwind.lsdas.get(t as usize)).map_or(&[][..], |l| &l.call_sites);
    let first = sites.partition_point(|site| site.end <= data.start);
    sites[first..].iter().take_while(|site| site.start < data.end()).any(|site| site.landing_pad.is_some())
}

/// The body of a block, decoded, if no reference in it is of a kind that can't be copied.
fn body(context: &Context<'_>, block: Block) -> Option<Vec<Instruction>> {
    let program = context.program;
    let data = &program.blocks[block];
    let is_bound =
        |r: &lifter::ir::RefData| matches!(r.target, RefTarget::Table(_)) || matches!(r.role, RefRole::Call | RefRole::Branch);
    let (refs, ends) = (program.block_refs(block), data.terminator);
    let is_fit = match ends {
        Terminator::Fallthrough { .. } | Terminator::Jump { .. } | Terminator::Branch { .. } => true,
        Terminator::Stop(kind) => kind == StopKind::Return,
        Terminator::Loop { .. } => false,
    };
    if !is_fit || refs.iter().any(is_bound) {
        return None;
    }
    let body_end = data.start.0 + u64::from(data.body_len);
    Some(decode_block(context.image, program, block).into_iter().take_while(|i| i.ip() < body_end).collect())
}

/// The first block: it makes the frame, and has steps of that only.
fn prologue(context: &Context<'_>, block: Block, factory: &mut InstructionInfoFactory) -> Option<(Parts, Vec<Step>)> {
    let mut parts = Vec::new();
    let mut steps = Vec::new();
    for (index, instruction) in body(context, block)?.into_iter().enumerate() {
        let is_mark = index == 0 && instruction.mnemonic() == iced_x86::Mnemonic::Endbr64;
        // It may be there to be patched.
        if index == 0 && instruction.mnemonic() == iced_x86::Mnemonic::Nop {
            return None;
        }
        let part = if is_mark { Part::Free } else { part_of(&instruction, false, factory) };
        match part {
            Part::Make(made) => {
                let at = lifter::address::Va(instruction.ip());
                steps.push(Step { made, at, sets_flags: matches!(made, Made::Room(_)) && sets_flags(&instruction) });
            }
            Part::Free | Part::Store => {}
            // Where the stack pointer is before the frame is whole, the same place has another distance.
            Part::Load if is_stored(&parts, &instruction) => {}
            Part::Load | Part::Undo(_) | Part::Leave | Part::Unfit => return None,
        }
        parts.push((instruction, part));
    }
    // Where a store puts its register is known when the frame is whole.
    let made = parts.iter().rposition(|(_, part)| matches!(part, Part::Make(_)));
    let is_early = |(at, (store, part)): (usize, &(Instruction, Part))| {
        *part == Part::Store && (Some(at) < made || !is_in_room(store, &steps))
    };
    if parts.iter().enumerate().any(is_early) {
        return None;
    }
    let leaves_function = |target: &Block| context.program.func_of(*target) != context.program.func_of(block);
    let goes_elsewhere = match context.program.blocks[block].terminator {
        Terminator::Jump { target: CodeTarget::Fixed(_) } | Terminator::Branch { taken: CodeTarget::Fixed(_), .. } => true,
        _ => inside(context.program, block).iter().any(leaves_function),
    };
    let saves = steps.iter().any(|step| matches!(step.made, Made::Save(_)));
    (saves && !goes_elsewhere).then_some((parts, steps))
}

/// Another block: it leaves the frame alone, or takes all of it down and then leaves.
fn member(
    context: &Context<'_>,
    block: Block,
    share: u64,
    (first, steps): (&Parts, &[Step]),
    factory: &mut InstructionInfoFactory,
) -> Option<Member> {
    let program = context.program;
    let data = &program.blocks[block];
    let mut left = steps.len();
    let mut parts = Vec::new();
    let mut undone = 0u16;
    for instruction in body(context, block)? {
        let is_last = instruction.next_ip() == data.end().0;
        let part = part_of(&instruction, is_last, factory);
        match part {
            Part::Undo(made) => {
                left = left.checked_sub(1).filter(|&next| steps[next].made == made)?;
                if let Made::Save(register) = made {
                    undone |= 1 << register;
                }
            }
            // A restored register is the caller's.
            Part::Free | Part::Load | Part::Leave if super::frame::used(&instruction, factory).any() & undone != 0 => {
                return None;
            }
            Part::Free => {}
            Part::Store if left == steps.len() && is_in_room(&instruction, steps) => {}
            Part::Load if left == steps.len() && is_stored(first, &instruction) => {}
            Part::Leave if left == 0 => {}
            Part::Load | Part::Leave | Part::Make(_) | Part::Store | Part::Unfit => return None,
        }
        parts.push((instruction, part));
    }
    let is_frameless = left == 0;
    if !is_frameless && left != steps.len() {
        return None;
    }
    let own = |target: &Block| program.func_of(*target) == data.func;
    // Of what is called by a jump, who checks the output can't know that it reads nothing that saves have left below the stack pointer.
    let is_fit = match data.terminator {
        Terminator::Stop(kind) => is_frameless && kind == StopKind::Return,
        Terminator::Jump { target: CodeTarget::Block(target) } => !is_frameless && own(&target),
        Terminator::Fallthrough { .. } | Terminator::Branch { .. } => {
            let is_fixed = matches!(data.terminator, Terminator::Branch { taken: CodeTarget::Fixed(_), .. });
            !is_frameless && !is_fixed && inside(program, block).iter().all(own)
        }
        Terminator::Jump { .. } | Terminator::Loop { .. } => false,
    };
    is_fit.then_some(Member { block, share, body: parts, is_frameless })
}
