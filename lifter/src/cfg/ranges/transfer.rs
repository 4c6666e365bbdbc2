//! What one instruction leaves in the place that it defines.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use crate::cfg::body::general;
use crate::cfg::interval::{Interval, mask};
use crate::cfg::ranges::{Place, Ranges};
use crate::x86::condition_code;
use crate::x86::is_conditional_move;

impl Ranges<'_> {
    /// The low bits of a place behind the instruction that defines it; `None` if that is never reached.
    pub(super) fn defined(&mut self, index: usize, place: Place, bits: u32) -> Option<Interval> {
        if self.in_progress.contains(&(index, place)) {
            return Some(place.full(bits));
        }
        self.in_progress.push((index, place));
        let run = match place {
            Place::Register(number) => self.written(index, number, bits),
            Place::Memory { .. } => self.stored(index, place),
        };
        self.in_progress.pop();
        run.map(|run| run.zero_extended(bits))
    }

    fn stored(&mut self, index: usize, place: Place) -> Option<Interval> {
        let instruction = &self.body.instructions[index];
        let Place::Memory { size, .. } = place else { return Some(Interval::full(64)) };
        let (operand, is_copy) = match instruction.mnemonic() {
            Mnemonic::Push => (0, true),
            mnemonic => (1, mnemonic == Mnemonic::Mov),
        };
        match is_copy {
            true => self.operand(instruction, operand, index, 8 * u32::from(size)),
            false => Some(Interval::full(8 * u32::from(size))),
        }
    }

    /// What an instruction leaves in a register; the result may have fewer bits than asked for, all others being zero.
    fn written(&mut self, index: usize, number: u8, bits: u32) -> Option<Interval> {
        let instruction = &self.body.instructions[index];
        let unknown = Some(Interval::full(bits));
        let target = instruction.op0_register();
        let is_target = instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && general(target) == Some(number)
            && !instruction.has_lock_prefix();
        if !is_target || matches!(instruction.mnemonic(), Mnemonic::Xchg | Mnemonic::Xadd | Mnemonic::Cmpxchg | Mnemonic::Mul) {
            return match instruction.mnemonic() {
                Mnemonic::Cdqe if bits == 64 => Some(self.register(Register::EAX, index)?.sign_extended(64)),
                Mnemonic::Cdqe => self.register(Register::EAX, index).map(|run| run.truncated(bits)),
                _ => unknown,
            };
        }
        let width = 8 * target.size() as u32;
        let is_high_byte = matches!(target, Register::AH | Register::BH | Register::CH | Register::DH);
        if is_high_byte {
            return unknown;
        }
        let run = self.result(instruction, index, width)?;
        if width >= 32 || bits <= width {
            return Some(run.truncated(bits));
        }
        // The upper bits stay; where they are zero, so is the front of the result.
        let old = self.place(Place::Register(number), index, bits)?;
        if old.max() <= mask(width) { Some(run) } else { unknown }
    }

    /// The result of an operation on `width` bits.
    fn result(&mut self, instruction: &Instruction, index: usize, width: u32) -> Option<Interval> {
        use Mnemonic::*;
        let is_twice = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Register
            && instruction.op0_register() == instruction.op1_register();
        let run = match instruction.mnemonic() {
            Xor | Sub if is_twice => Interval::constant(width, 0),
            Sbb if is_twice => Interval::new(width, mask(width), 0),
            Mov | Movzx => self.operand(instruction, 1, index, width)?,
            Movsx | Movsxd => self.narrow_operand(instruction, 1, index)?.sign_extended(width),
            Lea => self.address(instruction, index)?.truncated(width),
            Add => self.operand(instruction, 0, index, width)?.sum(self.operand(instruction, 1, index, width)?),
            Sub => {
                let taken = self.operand(instruction, 1, index, width)?;
                self.operand(instruction, 0, index, width)?.sum(taken.negated())
            }
            Inc => self.operand(instruction, 0, index, width)?.plus(1),
            Dec => self.operand(instruction, 0, index, width)?.plus(mask(width)),
            Neg => self.operand(instruction, 0, index, width)?.negated(),
            Not => self.operand(instruction, 0, index, width)?.negated().plus(mask(width)),
            And => self.operand(instruction, 0, index, width)?.and(self.operand(instruction, 1, index, width)?),
            Or | Xor => {
                let bits = self.operand(instruction, 0, index, width)?.max() | self.operand(instruction, 1, index, width)?.max();
                Interval::new(width, 0, mask(64 - bits.leading_zeros().min(63)))
            }
            Shl | Sal | Shr => self.shifted(instruction, index, width)?,
            Popcnt | Lzcnt | Tzcnt => Interval::new(width, 0, u64::from(width)),
            Movmskpd => Interval::new(width, 0, 3),
            Movmskps => Interval::new(width, 0, 15),
            Pmovmskb => Interval::new(width, 0, 0xffff),
            mnemonic if is_set(mnemonic) => Interval::new(width, 0, 1),
            mnemonic if is_conditional_move(mnemonic) => return self.chosen(instruction, index, width),
            _ => Interval::full(width),
        };
        Some(run)
    }

    /// A conditional move: one operand or the other, each with what its condition implies.
    fn chosen(&mut self, instruction: &Instruction, index: usize, width: u32) -> Option<Interval> {
        let Some(condition) = condition_code(instruction) else { return Some(Interval::full(width)) };
        let kept = self.chosen_operand(instruction, 0, index, width, condition.inverted());
        let moved = self.chosen_operand(instruction, 1, index, width, condition);
        match (kept, moved) {
            (Some(kept), Some(moved)) => Some(kept.union(moved)),
            (one, other) => one.or(other),
        }
    }

    fn chosen_operand(
        &mut self,
        instruction: &Instruction,
        operand: u32,
        index: usize,
        width: u32,
        condition: crate::ir::Condition,
    ) -> Option<Interval> {
        let run = self.operand(instruction, operand, index, width)?;
        let place = match instruction.op_kind(operand) {
            OpKind::Register => general(instruction.op_register(operand)).map(Place::Register),
            _ => self.operand_place(instruction, operand),
        };
        let Some(place) = place else { return Some(run) };
        let known = super::Known::nothing().with(self.implied(place, index, index, self.body.block_of(index), condition)?)?;
        known.restrict(run)
    }

    fn shifted(&mut self, instruction: &Instruction, index: usize, width: u32) -> Option<Interval> {
        let run = self.operand(instruction, 0, index, width)?;
        let count = match instruction.op1_kind() {
            OpKind::Immediate8 => u32::from(instruction.immediate8()) & if width == 64 { 63 } else { 31 },
            _ => return Some(Interval::full(width)),
        };
        Some(match instruction.mnemonic() {
            Mnemonic::Shr => run.shifted_right(count),
            _ if count < width => run.times(1 << count),
            _ => Interval::full(width),
        })
    }

    /// An operand as a number of `width` bits: a smaller one is extended with zeros.
    fn operand(&mut self, instruction: &Instruction, operand: u32, index: usize, width: u32) -> Option<Interval> {
        self.narrow_operand(instruction, operand, index).map(|run| run.zero_extended(width))
    }

    /// An operand at its own width.
    fn narrow_operand(&mut self, instruction: &Instruction, operand: u32, index: usize) -> Option<Interval> {
        match instruction.op_kind(operand) {
            OpKind::Register => self.register(instruction.op_register(operand), index),
            OpKind::Memory => match self.operand_place(instruction, operand) {
                Some(place @ Place::Memory { size, .. }) if size <= 8 => self.place(place, index, 8 * u32::from(size)),
                _ => Some(Interval::full(8 * (instruction.memory_size().size() as u32).clamp(1, 8))),
            },
            _ => Some(immediate(instruction, operand).map_or(Interval::full(64), |value| Interval::constant(64, value))),
        }
    }

    /// What `lea` computes.
    fn address(&mut self, instruction: &Instruction, index: usize) -> Option<Interval> {
        if instruction.is_ip_rel_memory_operand() {
            return Some(Interval::constant(64, instruction.ip_rel_memory_address()));
        }
        let mut run = Interval::constant(64, instruction.memory_displacement64());
        if instruction.memory_base() != Register::None {
            run = run.sum(self.register(instruction.memory_base(), index)?.zero_extended(64));
        }
        if instruction.memory_index() != Register::None {
            let scaled = self.register(instruction.memory_index(), index)?.zero_extended(64);
            run = run.sum(scaled.times(u64::from(instruction.memory_index_scale())));
        }
        Some(run)
    }
}

/// An immediate operand, extended to 64 bits as the processor does.
pub(super) fn immediate(instruction: &Instruction, operand: u32) -> Option<u64> {
    use OpKind::*;
    let is_immediate = matches!(
        instruction.op_kind(operand),
        Immediate8 | Immediate16 | Immediate32 | Immediate64 | Immediate8to16 | Immediate8to32 | Immediate8to64 | Immediate32to64
    );
    is_immediate.then(|| instruction.immediate(operand))
}

/// A 64-bit register that is another one plus a constant, behind the instruction: `(other, constant)`.
pub(super) fn moved_with_offset(instruction: &Instruction) -> Option<(u8, i64)> {
    let is_wide =
        instruction.op_count() == 2 && instruction.op0_kind() == OpKind::Register && instruction.op0_register().size() == 8;
    if !is_wide {
        return None;
    }
    let target = general(instruction.op0_register())?;
    match instruction.mnemonic() {
        Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => Some((general(instruction.op1_register())?, 0)),
        Mnemonic::Lea if instruction.memory_index() == Register::None && instruction.memory_base().size() == 8 => {
            Some((general(instruction.memory_base())?, instruction.memory_displacement64() as i64))
        }
        Mnemonic::Add => Some((target, immediate(instruction, 1)? as i64)),
        Mnemonic::Sub => Some((target, (immediate(instruction, 1)? as i64).wrapping_neg())),
        _ => None,
    }
}

fn is_set(mnemonic: Mnemonic) -> bool {
    use Mnemonic::*;
    matches!(
        mnemonic,
        Seta | Setae | Setb | Setbe | Sete | Setg | Setge | Setl | Setle | Setne | Setno | Setnp | Setns | Seto | Setp | Sets
    )
}
