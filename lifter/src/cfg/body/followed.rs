//! Calls that are followed: callees of a few instructions, taken for part of their caller.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Register};
use rustc_hash::FxHashMap;

use super::{Accesses, Body, accesses, leaves};
use crate::address::Va;
use crate::discover::units::{Units, unit_at};
use crate::elf::Image;
use crate::x86::{Flow, flow_of};

/// The most instructions of a callee that is followed, and the most bytes.
const INSTRUCTIONS_MAX: usize = 64;
const BYTES_MAX: usize = 512;
/// The most instructions that are copied, for each of the cluster's: calls beyond it are not followed.
const GROWTH_MAX: usize = 8;

impl Body {
    /// Follows the calls of callees that go straight to their return.
    pub(crate) fn follow_calls(&mut self, image: &Image<'_>, units: &Units) {
        let mut callees: FxHashMap<Va, Option<Vec<Instruction>>> = FxHashMap::default();
        for call in 0..self.num_own {
            let Flow::Call(target) = flow_of(&self.instructions[call]) else { continue };
            let callee = callees.entry(target).or_insert_with(|| straight_to_return(image, units, target));
            let room = ((1 + GROWTH_MAX) * self.num_own).saturating_sub(self.instructions.len());
            let Some(callee) = callee.as_deref().filter(|callee| callee.len() <= room) else { continue };
            self.follow(call, callee);
        }
    }

    fn follow(&mut self, call: usize, callee: &[Instruction]) {
        // What it pushes is popped again.
        (self.leaves[call], self.stores[call], self.writes[call], self.reads[call]) = (false, false, 0, 0);
        if callee.is_empty() {
            return;
        }
        let first = self.instructions.len() as u32;
        self.instructions.extend_from_slice(callee);
        let Accesses { writes, reads, stores } = accesses(callee);
        self.writes.extend(writes);
        self.reads.extend(reads);
        self.stores.extend(stores);
        self.leaves.extend(callee.iter().map(leaves));
        self.leaders.push(Va(self.instructions[call].next_ip()));
        self.followed.push((call, first..self.instructions.len() as u32));
    }

    /// The block of the callee that an instruction calls, if the call is followed.
    pub(super) fn followed_from(&self, call: usize) -> Option<usize> {
        let index = self.followed.binary_search_by_key(&call, |followed| followed.0).ok()?;
        Some(self.block_starts.len() + index)
    }
}

/// The instructions of a callee up to its `ret`, if nothing but that leaves the straight way, and nothing uses the stack.
fn straight_to_return(image: &Image<'_>, units: &Units, target: Va) -> Option<Vec<Instruction>> {
    let unit = &units[unit_at(units, target)?];
    let len = ((unit.end - target) as usize).min(BYTES_MAX);
    let mut instructions = Decoder::with_ip(64, image.read(target, len)?, target.0, DecoderOptions::NONE).into_iter();
    let mut callee = Vec::new();
    loop {
        let instruction = instructions.next()?;
        match flow_of(&instruction) {
            Flow::Next if callee.len() < INSTRUCTIONS_MAX => callee.push(instruction),
            _ if instruction.code() == Code::Retnq => break,
            _ => return None,
        }
    }
    let mut factory = InstructionInfoFactory::new();
    let mut uses_stack = |i: &Instruction| {
        let info = factory.info(i);
        info.used_registers().iter().any(|used| used.register().full_register() == Register::RSP)
    };
    (!callee.iter().any(&mut uses_stack)).then_some(callee)
}
