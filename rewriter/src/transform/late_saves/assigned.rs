//! What the original has done where a region is left, and the copy has not: registers written that the copy keeps elsewhere, stores to the frame.
//!
//! Where it has, a late frame is followed by the same. Where it has not, it must not be: a saved register still holds the caller's value then. Where both may be, there is no such
//! region.
//!
//! **Stores.** A store to the frame can wait until the frame is there if what it stores does not change before, or is kept in a register of its own (`slots`), and nothing else is stored to the
//! same bytes. Nothing in a region loads from the frame but what is kept so.
//!
//! **Terminates**: what may be done only grows and what surely is only shrinks, in 32 bits.

use iced_x86::{Instruction, InstructionInfoFactory, OpKind};
use lifter::entity::Block;
use lifter::ir::Program;

use super::frame::{Part, stored_at, used, writes};
use super::names::{Name, Names};
use super::region::{Member, Region, inside};

/// Stores of one region.
const STORES_MAX: usize = 16;

/// The stores to the frame, with the member that each is in; `None` if one can't wait.
pub(super) fn stores(region: &Region, program: &Program, names: &Names) -> Option<Vec<(usize, Instruction)>> {
    let mut stores = Vec::new();
    let mut factory = InstructionInfoFactory::new();
    for (index, member) in region.members.iter().enumerate() {
        for (at, (store, _)) in member.body.iter().enumerate().filter(|(_, (_, part))| *part == Part::Store) {
            if store.op1_kind() == OpKind::Register && !names.slots.has(store) {
                let is_written = |(instruction, _): &(Instruction, Part)| writes(instruction, store.op1_register(), &mut factory);
                let behind = behind(region, program, index);
                let mut after = member.body[at + 1..].iter().chain(behind.iter().flat_map(|&later| &region.members[later].body));
                if after.any(is_written) {
                    return None;
                }
            }
            stores.push((index, *store));
        }
    }
    let mut ranges: Vec<(u64, u64)> = stores.iter().filter_map(|(_, store)| stored_at(store)).collect();
    ranges.sort_unstable();
    let overlap = ranges.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0);
    (!overlap && stores.len() <= STORES_MAX).then_some(stores)
}

/// Members that may run after one.
fn behind(region: &Region, program: &Program, from: usize) -> Vec<usize> {
    let mut found: Vec<usize> = Vec::new();
    let mut open = vec![from];
    while let Some(index) = open.pop() {
        if region.members[index].is_frameless {
            continue;
        }
        for next in inside(program, region.members[index].block).into_iter().filter_map(|target| region.find(target)) {
            if !found.contains(&next) {
                found.push(next);
                open.push(next);
            }
        }
    }
    found
}

/// What has been done on some way, and on all. A bit each for the registers, and for the stores above these.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Done {
    may: u32,
    must: u32,
}

impl Done {
    fn and(self, more: u32) -> Self {
        Self { may: self.may | more, must: self.must | more }
    }

    fn meet(self, other: Self) -> Self {
        Self { may: self.may | other.may, must: self.must & other.must }
    }
}

const UNREACHED: Done = Done { may: 0, must: u32::MAX };

/// A way out, and what has been done there.
#[derive(Copy, Clone, Debug)]
pub(super) struct Exit {
    pub(super) block: Block,
    done: u32,
}

impl Exit {
    /// Whether a register that the copy keeps elsewhere has been written.
    pub(super) fn has_written(&self, register: u8) -> bool {
        self.done >> register & 1 == 1
    }

    /// Whether a store has been made, by its place in the list.
    pub(super) fn has_stored(&self, store: usize) -> bool {
        self.done >> (16 + store) & 1 == 1
    }
}

/// The ways out of a region; `None` where it depends on the way what has been done.
pub(super) fn exits(region: &Region, program: &Program, names: &Names, stores: &[(usize, Instruction)]) -> Option<Vec<Exit>> {
    let others: u16 =
        (0..16).filter(|&register| matches!(names.of(register), Name::Other(_))).map(|register| 1 << register).sum();
    let mut factory = InstructionInfoFactory::new();
    let mut done_by = |(index, member): (usize, &Member)| {
        let working = member.body.iter().filter(|(_, part)| matches!(part, Part::Free | Part::Load | Part::Leave));
        let written = working.fold(0, |all, (instruction, _)| all | used(instruction, &mut factory).writes) & others;
        let stored = stores.iter().enumerate().filter(|(_, (member, _))| *member == index).map(|(at, _)| 1 << (16 + at));
        u32::from(written) | stored.sum::<u32>()
    };
    let each: Vec<u32> = region.members.iter().enumerate().map(&mut done_by).collect();
    let all = u32::from(others) | ((1 << stores.len()) - 1) << 16;
    let starts = region.at_starts(program, Done { may: 0, must: 0 }, |index, start| start.and(each[index]), Done::meet);
    let mut exits: Vec<(Block, Done)> = region.exits(program).into_iter().map(|exit| (exit, UNREACHED)).collect();
    let leaving = region.members.iter().zip(starts).zip(&each).filter(|((member, _), _)| !member.is_frameless);
    for ((member, start), &done) in leaving {
        let Some(end) = start.map(|start| start.and(done)) else { continue };
        for target in inside(program, member.block) {
            if let Some((_, done)) = exits.iter_mut().find(|(exit, _)| *exit == target) {
                *done = done.meet(end);
            }
        }
    }
    exits.into_iter().map(|(block, done)| (done.may == done.must & all).then_some(Exit { block, done: done.may })).collect()
}
