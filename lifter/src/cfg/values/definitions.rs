//! All definitions of a location that reach a point of a body.
//!
//! **Method.** A backward search over the blocks, one visit per block and name of the location: a spill slot is called by its distance from the
//! stack pointer, so what it is called changes at each push. A block that by its masks leaves the location alone is passed over whole.
//!
//! Terminates: each (block, name) is visited once, and `MAX_STEPS` bounds what one query visits in all.

use rustc_hash::FxHashSet;

use super::Evaluator;
use super::instructions::{is_store_to, stack_step, switches_stack};
use crate::discover::names::NamedBy;
use crate::x86::{Flow, flow_of};

const MAX_STEPS: u32 = 200_000;
/// The most stretches of instructions that are remembered of one query.
pub(crate) const VISITED_MAX: usize = 1 << 10;
const RAX: u8 = 0;
const RDX: u8 = 2;
const RSP: u8 = 4;

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Location {
    Register(u8),
    /// `disp(base)` as of the point of the search.
    Slot {
        base: u8,
        disp: i64,
    },
}

#[derive(Copy, Clone, Debug)]
pub(super) enum Definition {
    At(usize),
    /// The value on entry to the function.
    Entry,
    /// On a stack that the function switched to: what another one put there.
    Foreign,
    /// Written in a way that can't be followed.
    Lost,
}

/// The blocks at whose ends a location was looked for. Nearly all searches know it by one name only. One serves all queries on a body as it
/// is cut.
#[derive(Default)]
pub(crate) struct Seen {
    first: Option<Location>,
    turn: u32,
    /// By block, the last turn in which it was searched for `first`.
    turns: Vec<u32>,
    others: FxHashSet<(u32, Location)>,
}

impl Seen {
    fn restart(&mut self, num_blocks: usize, location: Location) {
        // The last one is the hub.
        self.turns.resize(num_blocks + 1, 0);
        self.turn += 1;
        self.first = Some(location);
        self.others.clear();
    }
    fn insert(&mut self, block: u32, location: Location) -> bool {
        match self.first == Some(location) {
            true => std::mem::replace(&mut self.turns[block as usize], self.turn) != self.turn,
            false => self.others.insert((block, location)),
        }
    }
}

impl Evaluator<'_> {
    /// All definitions of a location that reach the point before an instruction.
    pub(super) fn reaching(&mut self, location: Location, before: usize) -> Vec<(Definition, Location)> {
        let mut found = Vec::new();
        self.seen.restart(self.body.blocks.len(), location);
        let mut pending = vec![(self.body.block_of(before), before, location)];
        while let Some((block, end, location)) = pending.pop() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return vec![(Definition::Lost, location)];
            }
            let first = self.body.blocks[block].first;
            if self.visited.len() <= VISITED_MAX {
                self.visited.push(first..(end as u32).max(first + 1));
            }
            let location = match self.search_block(block, end, location) {
                Ok(definition) => {
                    found.push(definition);
                    continue;
                }
                Err(location) => location,
            };
            let data = &self.body.blocks[block];
            if data.is_entry {
                self.is_led_in |= !data.named_by.intersects(NamedBy::ENTRY | NamedBy::FUNCTION_SYMBOL);
                found.push((Definition::Entry, location));
            }
            // Where the search has been at the whole hub under this name, there is nothing new in it.
            let preds = match &data.preds_beyond_hub {
                Some(beyond) if !self.seen.insert(self.body.blocks.len() as u32, location) => beyond,
                _ => &data.preds[..],
            };
            for &pred in preds {
                if self.seen.insert(pred, location) {
                    pending.push((pred as usize, self.body.blocks[pred as usize].end as usize, location));
                }
            }
        }
        found
    }

    /// Walks back from `end` to the start of the block; the definition, or the location as it is called there.
    fn search_block(&self, block: usize, end: usize, mut location: Location) -> Result<(Definition, Location), Location> {
        let data = &self.body.blocks[block];
        let is_left_alone = match location {
            // A call writes its result, which the masks of what instructions write do not show.
            Location::Register(number @ (RAX | RDX)) => data.clobbers >> number & 1 == 0,
            Location::Register(number) => data.writes >> number & 1 == 0,
            Location::Slot { base, .. } => !data.stores && data.writes >> base & 1 == 0,
        };
        if is_left_alone {
            return Err(location);
        }
        for index in (data.first as usize..end).rev() {
            let instruction = &self.body.instructions[index];
            let is_call = self.body.leaves[index] && matches!(flow_of(instruction), Flow::Call(_) | Flow::IndirectCall);
            match location {
                Location::Register(number) => {
                    let is_result = is_call && [RAX, RDX].contains(&number);
                    if is_result || !is_call && self.body.writes[index] >> number & 1 == 1 {
                        return Ok((Definition::At(index), location));
                    }
                }
                Location::Slot { base, disp } => {
                    if self.body.stores[index] && is_store_to(instruction, base, disp) {
                        return Ok((Definition::At(index), location));
                    }
                    let writes_base = self.body.writes[index] >> base & 1 == 1;
                    if writes_base && !is_call {
                        match stack_step(instruction).filter(|_| base == RSP) {
                            Some(step) => location = Location::Slot { base, disp: disp + step },
                            None if base == RSP && switches_stack(instruction) => return Ok((Definition::Foreign, location)),
                            None => return Ok((Definition::Lost, location)),
                        }
                    }
                }
            }
        }
        Err(location)
    }
}
