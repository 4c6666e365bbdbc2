//! All definitions of a location that reach a point of a body.
//!
//! **Method.** A backward search over the blocks, one visit per block and name of the location: a spill slot is called by its distance from the
//! stack pointer, so what it is called changes at each push. A block that by its masks leaves the location alone is passed over whole.
//!
//! **Long searches.** In a function of ten thousand blocks hundreds of calls go through a register that is written far away, and each search would walk through the same blocks. So
//! after a long one, what is found from the busiest block that it passed over is remembered, for this block and for the others of a cycle in which nothing writes the register: from any
//! of these all the same is found. Later searches end there ([`Remembered`]).
//!
//! Where pushes and pops don't add up, a slot has another name each time that a loop is passed, and one block is passed under thousands of them. So in a long search what a whole block does to such
//! slots is found once ([`Passage`]). And where many queries on a body have come to nothing for their length, as in an output of relift's in which functions with different frames share code, the others may not be as long.
//!
//! Terminates: each (block, name) is visited once, and `MAX_STEPS` bounds what one query visits in all. To remember costs one more search and a
//! walk over what it has seen, a bounded number of times.

use rustc_hash::FxHashSet;

use super::Evaluator;
use super::instructions::{is_store_to, stack_step, stored_slot, switches_stack};
use crate::cfg::body::Body;
use crate::discover::names::NamedBy;
use crate::x86::{Flow, flow_of};

const MAX_STEPS: u32 = 200_000;
/// The same once so many queries on the body have gone that far.
const MAX_STEPS_THEN: u32 = 8_000;
const LONGEST_QUERIES: u32 = 32;
/// A search with more steps is long: more than stretches are remembered of a query, so that an answer is not thought to hold where it would not have been.
const LONG_SEARCH: u32 = 2 * VISITED_MAX as u32;
/// How many long searches on one body are remembered.
const REMEMBERED_MAX: usize = 1 << 10;
/// The most edges of one body that are followed to find blocks of cycles. Those that are not found are searched as before.
const CYCLE_EDGES_MAX: usize = 1 << 22;
/// The most stretches of instructions that are remembered of one query.
pub(crate) const VISITED_MAX: usize = 1 << 10;
/// The displacements that are named in a word: the least, and how many.
const SLOT_NEAREST: i64 = -(1 << 22);
const SLOTS_END: u32 = 1 << 23;
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

impl Location {
    /// A number that no other location has, if there is room for it: for slots that are not far from their base.
    fn in_a_word(self) -> Option<u32> {
        match self {
            Location::Register(number) => Some(u32::from(number)),
            Location::Slot { base, disp } => {
                let disp = u32::try_from(disp.checked_sub(SLOT_NEAREST)?).ok().filter(|&disp| disp < SLOTS_END)?;
                Some((disp + 1) << 8 | u32::from(base))
            }
        }
    }
}

#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
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
    /// Blocks with other names, in one word each: where pushes and pops don't add up there may be as many as there are steps.
    others: FxHashSet<u64>,
    /// Those of which the name takes more.
    far: FxHashSet<(u32, Location)>,
    /// Of the blocks that the last search passed over, the number of predecessors and the index of one with the most.
    busiest: Option<(usize, usize)>,
    remembered: Remembered,
    /// How many queries have visited as much as they may.
    num_longest: u32,
    /// By block, as far as they were asked for.
    passages: Vec<Option<Passage>>,
    /// Room for what is to be searched.
    pending: Vec<(u32, u32, Location)>,
}

/// What a block as a whole does to slots that are named from the stack pointer, found from its end to its start.
struct Passage {
    /// The name at the block's end, the name at the store, and the instruction, of each store to a slot; the last of the block first.
    stores: Box<[(i64, i64, u32)]>,
    /// What is added to a name on the way to the start, or to where it can't be followed.
    step: i64,
    /// What all other slots are then.
    end: Option<Definition>,
}

impl Passage {
    fn of(body: &Body, block: usize) -> Self {
        let (mut stores, mut step, mut end) = (Vec::new(), 0, None);
        let range = body.blocks[block].first as usize..body.blocks[block].end as usize;
        for index in range.rev() {
            let instruction = &body.instructions[index];
            if body.stores[index]
                && let Some(disp) = stored_slot(instruction, RSP)
            {
                stores.push((disp - step, disp, index as u32));
            }
            if body.writes[index] >> RSP & 1 == 1 && !is_call(body, index) {
                match stack_step(instruction) {
                    Some(one) => step += one,
                    None => {
                        end = Some(if switches_stack(instruction) { Definition::Foreign } else { Definition::Lost });
                        break;
                    }
                }
            }
        }
        Self { stores: stores.into(), step, end }
    }

    /// As `Evaluator::search_block`, from the block's end.
    fn search(&self, disp: i64) -> Result<(Definition, Location), Location> {
        let slot = |disp| Location::Slot { base: RSP, disp };
        if let Some(&(_, disp, index)) = self.stores.iter().find(|store| store.0 == disp) {
            return Ok((Definition::At(index as usize), slot(disp)));
        }
        let location = slot(disp + self.step);
        self.end.map_or(Err(location), |definition| Ok((definition, location)))
    }
}

/// Whether an instruction is a call, to which nothing else than its result counts as written.
fn is_call(body: &Body, index: usize) -> bool {
    body.leaves[index] && matches!(flow_of(&body.instructions[index]), Flow::Call(_) | Flow::IndirectCall)
}

/// What long searches for registers have found.
#[derive(Default)]
struct Remembered {
    found: Vec<Found>,
    /// By register and block, one more than the index in `found`; 0 for nothing. Empty where nothing is remembered.
    of_register: [Vec<u32>; 16],
    /// How many have been followed to find blocks of cycles.
    num_edges: usize,
}

/// What a search from the start of a block found.
struct Found {
    definitions: Vec<(Definition, Location)>,
    is_led_in: bool,
}

impl Remembered {
    fn at(&self, location: Location, block: usize) -> Option<&Found> {
        let Location::Register(number) = location else { return None };
        let index = *self.of_register[usize::from(number)].get(block)?;
        self.found.get((index as usize).checked_sub(1)?)
    }
}

impl Seen {
    fn restart(&mut self, num_blocks: usize, location: Location) {
        // The last one is the hub.
        self.turns.resize(num_blocks + 1, 0);
        self.turn += 1;
        self.first = Some(location);
        self.others.clear();
        self.far.clear();
        self.busiest = None;
    }
    fn max_steps(&self) -> u32 {
        if self.num_longest < LONGEST_QUERIES { MAX_STEPS } else { MAX_STEPS_THEN }
    }
    fn insert(&mut self, block: u32, location: Location) -> bool {
        match self.first == Some(location) {
            true => std::mem::replace(&mut self.turns[block as usize], self.turn) != self.turn,
            false => match location.in_a_word() {
                Some(name) => self.others.insert(u64::from(block) << 32 | u64::from(name)),
                None => self.far.insert((block, location)),
            },
        }
    }
    /// Whether the last search, of a location that kept its name, has been at the end of a block.
    fn contains(&self, block: usize) -> bool {
        self.turns[block] == self.turn
    }
}

impl Evaluator<'_> {
    /// All definitions of a location that reach the point before an instruction.
    pub(super) fn reaching(&mut self, location: Location, before: usize) -> Vec<(Definition, Location)> {
        let steps = self.steps;
        let found = self.search(location, (self.body.block_of(before), before));
        if let Location::Register(number) = location
            && self.steps - steps > LONG_SEARCH
            && self.seen.remembered.found.len() < REMEMBERED_MAX
        {
            self.remember(number);
        }
        found
    }

    /// The same from a place in a block on.
    fn search(&mut self, location: Location, (block, before): (usize, usize)) -> Vec<(Definition, Location)> {
        let mut found = Vec::new();
        self.seen.restart(self.body.blocks.len(), location);
        let max_steps = self.seen.max_steps();
        let mut is_repeated = false;
        let mut pending = std::mem::take(&mut self.seen.pending);
        pending.clear();
        pending.push((block as u32, before as u32, location));
        while let Some((block, end, location)) = pending.pop() {
            let (block, end) = (block as usize, end as usize);
            self.steps += 1;
            if self.steps > max_steps {
                // What a query asks after that comes here too.
                self.seen.num_longest += u32::from(self.steps == max_steps + 1);
                self.seen.pending = pending;
                return vec![(Definition::Lost, location)];
            }
            let first = self.body.blocks[block].first;
            if self.visited.len() <= VISITED_MAX {
                self.visited.push(first..(end as u32).max(first + 1));
            }
            let is_whole = end == self.body.blocks[block].end as usize;
            let found_in_block = match location {
                Location::Slot { base: RSP, disp } if is_whole && self.steps > LONG_SEARCH => self.pass_block(block, disp),
                _ => self.search_block(block, end, location),
            };
            let location = match found_in_block {
                Ok(definition) => {
                    found.push(definition);
                    continue;
                }
                Err(location) => location,
            };
            if let Some(known) = self.seen.remembered.at(location, block) {
                found.extend_from_slice(&known.definitions);
                self.is_led_in |= known.is_led_in;
                self.visited.resize(VISITED_MAX + 1, 0..1);
                is_repeated = true;
                continue;
            }
            if is_whole && self.is_left_alone(block, location) {
                self.seen.busiest = self.seen.busiest.max(Some((self.body.blocks[block].preds.len(), block)));
            }
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
                    pending.push((pred, self.body.blocks[pred as usize].end, location));
                }
            }
        }
        self.seen.pending = pending;
        if is_repeated {
            let mut distinct = FxHashSet::default();
            found.retain(|&one| distinct.insert(one));
        }
        found
    }

    /// After a long search for a register: remembers what is found from the busiest block that it passed over.
    fn remember(&mut self, number: u8) {
        let location = Location::Register(number);
        let blocks = &self.body.blocks;
        let Some((_, head)) = self.seen.busiest else { return };
        let before = (self.steps, self.visited.len(), std::mem::take(&mut self.is_led_in));
        let definitions = self.search(location, (head, blocks[head].first as usize));
        let is_lost = definitions.iter().any(|(definition, _)| matches!(definition, Definition::Lost));
        let found = Found { definitions, is_led_in: self.is_led_in };
        self.steps = before.0;
        self.visited.truncate(before.1);
        self.is_led_in = before.2;
        if is_lost {
            return;
        }
        let mut members = std::mem::take(&mut self.seen.remembered.of_register[usize::from(number)]);
        members.resize(blocks.len(), 0);
        self.seen.remembered.found.push(found);
        let index = self.seen.remembered.found.len() as u32;
        // Forward from the head, as far as the search from there came: both ways, so the cycle around it.
        let mut pending = vec![head];
        while let Some(block) = pending.pop().filter(|_| self.seen.remembered.num_edges <= CYCLE_EDGES_MAX) {
            let is_in_cycle = self.seen.contains(block) && self.is_left_alone(block, location);
            if is_in_cycle && std::mem::replace(&mut members[block], index) != index {
                let successors = self.body.successors(block);
                self.seen.remembered.num_edges += successors.len();
                pending.extend(successors.iter().map(|&next| next as usize));
            }
        }
        members[head] = index;
        self.seen.remembered.of_register[usize::from(number)] = members;
    }

    /// Whether by its masks a block does not change what a location holds or is called.
    fn is_left_alone(&self, block: usize, location: Location) -> bool {
        let data = &self.body.blocks[block];
        match location {
            // A call writes its result, which the masks of what instructions write do not show.
            Location::Register(number @ (RAX | RDX)) => data.clobbers >> number & 1 == 0,
            Location::Register(number) => data.writes >> number & 1 == 0,
            Location::Slot { base, .. } => !data.stores && data.writes >> base & 1 == 0,
        }
    }

    /// As `search_block` for all of a block, for a slot that is named from the stack pointer.
    fn pass_block(&mut self, block: usize, disp: i64) -> Result<(Definition, Location), Location> {
        let body = self.body;
        self.seen.passages.resize_with(body.blocks.len(), || None);
        self.seen.passages[block].get_or_insert_with(|| Passage::of(body, block)).search(disp)
    }

    /// Walks back from `end` to the start of the block; the definition, or the location as it is called there.
    fn search_block(&self, block: usize, end: usize, mut location: Location) -> Result<(Definition, Location), Location> {
        if self.is_left_alone(block, location) {
            return Err(location);
        }
        let first = self.body.blocks[block].first as usize;
        let (stores, writes) = (&self.body.stores[first..end], &self.body.writes[first..end]);
        for (index, (&stores, &writes)) in (first..end).zip(stores.iter().zip(writes)).rev() {
            match location {
                Location::Register(number) => {
                    let writes = writes >> number & 1 == 1;
                    let may_be_result = [RAX, RDX].contains(&number);
                    if (writes || may_be_result) && if is_call(self.body, index) { may_be_result } else { writes } {
                        return Ok((Definition::At(index), location));
                    }
                }
                Location::Slot { base, disp } => {
                    let writes_base = writes >> base & 1 == 1;
                    if !stores && !writes_base {
                        continue;
                    }
                    let instruction = &self.body.instructions[index];
                    if stores && is_store_to(instruction, base, disp) {
                        return Ok((Definition::At(index), location));
                    }
                    if writes_base && !is_call(self.body, index) {
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

#[cfg(test)]
mod tests;
