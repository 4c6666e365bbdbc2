//! What a branch implies of a place: the operand of its comparison, and whether that comes from the same value.

use iced_x86::{Instruction, Mnemonic, OpKind};

use crate::cfg::body::general;
use crate::cfg::interval::{Interval, mask};
use crate::cfg::ranges::transfer::{immediate, moved_with_offset};
use crate::cfg::ranges::{Found, Place, Ranges};
use crate::ir::Condition;
use crate::x86::{Flow, flow_of};

/// How many copies, and blocks with one predecessor, a value is followed through.
const MAX_COPIES: usize = 40;

/// The low `width` bits of a place are those of another one, plus a constant.
#[derive(Copy, Clone, Debug)]
struct Origin {
    /// The instruction that made it, or the block at whose start it is taken.
    point: Point,
    place: Place,
    offset: u64,
    width: u32,
    /// Whether the bits above `width` are zero in the place that was asked for.
    is_exact: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Point {
    Behind(usize),
    Start(usize),
}

/// A comparison of a place with a constant.
struct Comparison {
    place: Place,
    /// The place is meant as it is before this instruction.
    before: usize,
    width: u32,
    constant: u64,
    /// The place is what was compared less this.
    taken: u64,
}

impl Ranges<'_> {
    /// What an edge implies of a place at the end of its source: a fact if there is one, `None` if the edge is never taken.
    pub(super) fn implied_by_edge(&mut self, source: usize, target: usize, place: Place) -> Option<Option<Interval>> {
        let data = &self.body.blocks[source];
        let last = data.end as usize - 1;
        let instruction = &self.body.instructions[last];
        let Flow::Branch(condition, to) = flow_of(instruction) else { return Some(None) };
        let (taken, next) = (self.body.block_at(to), self.body.block_at(crate::address::Va(instruction.next_ip())));
        match (taken == Some(target), next == Some(target)) {
            (true, false) => self.implied(place, last, last, source, condition),
            (false, true) => self.implied(place, last, last, source, condition.inverted()),
            _ => Some(None),
        }
    }

    /// What a condition implies of a place before an instruction, the flags being those at `flags_at` in `block`.
    pub(super) fn implied(
        &self,
        place: Place,
        before: usize,
        flags_at: usize,
        block: usize,
        condition: Condition,
    ) -> Option<Option<Interval>> {
        let Some(comparison) = self.comparison(flags_at, block) else { return Some(None) };
        let Some(run) = values_that_pass(condition, comparison.width, comparison.constant) else { return Some(None) };
        let run = run?.plus(0u64.wrapping_sub(comparison.taken));
        let Some(narrow) = self.common_origin(&comparison, place, before, 0) else { return Some(None) };
        // Where a constant was added behind a copy of fewer bits, these say less than all of what was compared.
        let wide = match narrow.0.is_exact {
            true => None,
            false => self.common_origin(&comparison, place, before, comparison.width),
        };
        let (compared, asked) = wide.unwrap_or(narrow);
        let run = match compared.is_exact && compared.width < comparison.width {
            true => run.intersection(Interval::new(comparison.width, 0, mask(compared.width)))?,
            false => run,
        };
        let width = compared.width.min(asked.width);
        let difference = asked.offset.wrapping_sub(compared.offset);
        Some(Some(run.truncated(width).plus(difference & mask(width))))
    }

    /// Where a compared value and that of a place come from, if that is the same, through copies of at least so many bits.
    fn common_origin(&self, comparison: &Comparison, place: Place, before: usize, least: u32) -> Option<(Origin, Origin)> {
        let compared = self.origin(comparison.place, comparison.before, comparison.width, least);
        let asked = self.origin(place, before, 64, least);
        ((compared.point, compared.place) == (asked.point, asked.place)).then_some((compared, asked))
    }

    /// The comparison that set the flags which are read at an instruction.
    fn comparison(&self, flags_at: usize, mut block: usize) -> Option<Comparison> {
        let mut end = flags_at;
        for _ in 0..4 {
            let first = self.body.blocks[block].first as usize;
            if let Some(index) = (first..end).rev().find(|&i| sets_flags(&self.body.instructions[i])) {
                return self.comparison_at(index);
            }
            block = self.only_predecessor(block)?;
            end = self.body.blocks[block].end as usize;
        }
        None
    }

    fn comparison_at(&self, index: usize) -> Option<Comparison> {
        let instruction = &self.body.instructions[index];
        if instruction.op_count() != 2 {
            return None;
        }
        let place = match instruction.op0_kind() {
            OpKind::Register if is_high_byte(instruction) => return None,
            OpKind::Register => Place::Register(general(instruction.op0_register())?),
            OpKind::Memory => self.operand_place(instruction, 0)?,
            _ => return None,
        };
        let width = match place {
            Place::Register(_) => 8 * instruction.op0_register().size() as u32,
            Place::Memory { size, .. } => 8 * u32::from(size),
        };
        let (before, constant, taken) = match instruction.mnemonic() {
            Mnemonic::Cmp => (index, immediate(instruction, 1)?, 0),
            Mnemonic::Sub => (index + 1, immediate(instruction, 1)?, immediate(instruction, 1)?),
            Mnemonic::Test => {
                let is_twice = instruction.op1_kind() == OpKind::Register && instruction.op0_kind() == OpKind::Register;
                let is_twice = is_twice && instruction.op0_register() == instruction.op1_register();
                (index, is_twice.then_some(0)?, 0)
            }
            _ => return None,
        };
        Some(Comparison { place, before, width, constant: constant & mask(width), taken })
    }

    fn only_predecessor(&self, block: usize) -> Option<usize> {
        let data = &self.body.blocks[block];
        match data.preds.as_slice() {
            &[pred] if self.body.is_entered_by_edges_only(block) => Some(pred as usize),
            _ => None,
        }
    }

    /// Follows a value back through copies of at least so many bits, as long as there is one way back.
    fn origin(&self, place: Place, before: usize, width: u32, least: u32) -> Origin {
        let mut block = self.body.block_of(before);
        let mut end = before;
        let mut origin = Origin { point: Point::Start(block), place, offset: 0, width, is_exact: true };
        for _ in 0..MAX_COPIES {
            match self.search(block, end, origin.place) {
                Found::Defined(index, place) => {
                    origin.place = place;
                    origin.point = Point::Behind(index);
                    if !self.follow_copy(index, &mut origin, least) {
                        return origin;
                    }
                    end = index;
                }
                Found::Killed(index, place) => return Origin { point: Point::Behind(index), place, ..origin },
                Found::Start(place) => {
                    origin.place = place;
                    origin.point = Point::Start(block);
                    let Some(pred) = self.only_predecessor(block) else { return origin };
                    block = pred;
                    end = self.body.blocks[block].end as usize;
                }
            }
        }
        // Cut off in the middle of a block: no other value is known to be taken here.
        Origin { point: Point::Behind(usize::MAX - end), ..origin }
    }

    /// Takes an origin behind an instruction to what the instruction copied; `false` if it is no copy of so many bits.
    fn follow_copy(&self, index: usize, origin: &mut Origin, least: u32) -> bool {
        let instruction = &self.body.instructions[index];
        let source = match instruction.mnemonic() {
            Mnemonic::Push => 0,
            _ if instruction.op_count() == 2 => 1,
            _ => return false,
        };
        let target_bits = match (origin.place, instruction.mnemonic()) {
            (Place::Memory { size, .. }, _) => 8 * u32::from(size),
            (Place::Register(_), Mnemonic::Push) => return false,
            (Place::Register(number), _) => {
                let is_target = instruction.op0_kind() == OpKind::Register && general(instruction.op0_register()) == Some(number);
                if !is_target || is_high_byte(instruction) {
                    return false;
                }
                8 * instruction.op0_register().size() as u32
            }
        };
        // Operations on 8 and 16 bits leave what is above them.
        if target_bits < 32 && origin.width > target_bits && matches!(origin.place, Place::Register(_)) {
            return false;
        }
        let (place, bits, added) = match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Push | Mnemonic::Movzx => match self.copied(instruction, source) {
                Some((place, bits)) => (place, bits, 0),
                None => return false,
            },
            Mnemonic::Movsx | Mnemonic::Movsxd => match self.copied(instruction, source) {
                Some((place, bits)) if bits >= origin.width => (place, bits, 0),
                _ => return false,
            },
            Mnemonic::Add | Mnemonic::Sub => match (origin.place, immediate(instruction, 1)) {
                (Place::Register(_), Some(value)) => {
                    let is_sub = instruction.mnemonic() == Mnemonic::Sub;
                    (origin.place, target_bits, if is_sub { 0u64.wrapping_sub(value) } else { value })
                }
                _ => return false,
            },
            Mnemonic::Lea => match lea_source(instruction) {
                Some((from, added)) => (Place::Register(from), target_bits, added as u64),
                None => return false,
            },
            _ => return false,
        };
        let bits = bits.min(target_bits);
        if bits < least {
            return false;
        }
        if bits < origin.width {
            // A constant that was added to the shorter value may have carried beyond it.
            origin.is_exact &= origin.offset == 0;
            origin.width = bits;
        }
        origin.offset = origin.offset.wrapping_add(added);
        origin.place = place;
        true
    }

    fn copied(&self, instruction: &Instruction, operand: u32) -> Option<(Place, u32)> {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                let is_low = !matches!(
                    register,
                    iced_x86::Register::AH | iced_x86::Register::BH | iced_x86::Register::CH | iced_x86::Register::DH
                );
                general(register).filter(|_| is_low).map(|number| (Place::Register(number), 8 * register.size() as u32))
            }
            OpKind::Memory => match self.operand_place(instruction, operand)? {
                place @ Place::Memory { size, .. } if size <= 8 => Some((place, 8 * u32::from(size))),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The register and the constant that `lea` adds, whatever the width of its result.
fn lea_source(instruction: &Instruction) -> Option<(u8, i64)> {
    let is_sum = instruction.memory_index() == iced_x86::Register::None && instruction.memory_base().size() == 8;
    let base = general(instruction.memory_base()).filter(|_| is_sum && !instruction.is_ip_rel_memory_operand());
    moved_with_offset(instruction).or_else(|| Some((base?, instruction.memory_displacement64() as i64)))
}

fn is_high_byte(instruction: &Instruction) -> bool {
    use iced_x86::Register::*;
    matches!(instruction.op0_register(), AH | BH | CH | DH)
}

/// A call leaves the flags as it likes.
fn sets_flags(instruction: &Instruction) -> bool {
    instruction.rflags_modified() != 0 || matches!(flow_of(instruction), Flow::Call(_) | Flow::IndirectCall)
}

/// The values of `bits` bits for which a condition holds after a comparison with a constant: `None` if that is not known, `Some(None)` if
/// there are none.
fn values_that_pass(condition: Condition, bits: u32, constant: u64) -> Option<Option<Interval>> {
    let (top, signed_top) = (mask(bits), mask(bits) >> 1);
    let run = |first: u64, last: u64| Some(Some(Interval::new(bits, first, last)));
    let (below, above) = (constant.wrapping_sub(1) & top, constant.wrapping_add(1) & top);
    match condition.0 {
        // b, ae
        2 if constant == 0 => Some(None),
        2 => run(0, below),
        3 => run(constant, top),
        // e, ne
        4 => run(constant, constant),
        5 => run(above, below),
        // be, a
        6 => run(0, constant),
        7 if constant == top => Some(None),
        7 => run(above, top),
        // s, ns: the sign of the difference, which is the number's own only where nothing is taken
        8 if constant == 0 => run(signed_top + 1, top),
        9 if constant == 0 => run(0, signed_top),
        // l, ge
        12 if constant == signed_top + 1 => Some(None),
        12 => run(signed_top + 1, below),
        13 => run(constant, signed_top),
        // le, g
        14 => run(signed_top + 1, constant),
        15 if constant == signed_top => Some(None),
        15 => run(above, signed_top),
        _ => None,
    }
}
