//! What the copy must not read: what a saved register holds when the region begins.
//!
//! An instruction that writes the low part of a register leaves what was above it. Where more is read later, as by `setne %bl; …; mov %ebx, %eax` of compilers that know that nobody looks at the rest, the
//! original hands on part of what its caller had in the register, and a copy that keeps it elsewhere would hand on something else.
//!
//! **Method.** How much of each such register has been written on all ways, from the first member on. What an instruction reads has to be within that; behind the region all is read of what has been written.
//!
//! **Terminates**: what has been written on all ways only shrinks, in four steps a register.

use iced_x86::{Instruction, InstructionInfoFactory, OpAccess, Register};
use lifter::ir::Program;

use super::frame::{Part, number};
use super::names::{Name, Names};
use super::region::{Member, Region, inside};

/// A write of so many bytes leaves nothing of what a register has held.
const WHOLE: u8 = 4;

/// Low bytes that have been written, by number of the register.
type Written = [u8; 16];

/// Whether nothing of what a register that the copy keeps elsewhere holds at first is read in the region, or behind it together with what is written there.
pub(super) fn is_unread(region: &Region, program: &Program, names: &Names) -> bool {
    let is_elsewhere = |register: usize| matches!(names.of(register as u8), Name::Other(_));
    let mut factory = InstructionInfoFactory::new();
    let after = |index: usize, mut written: Written| {
        working(&region.members[index]).for_each(|instruction| write(instruction, &mut written, &mut factory));
        written
    };
    let meet = |one: Written, other: Written| std::array::from_fn(|register| one[register].min(other[register]));
    let starts = region.at_starts(program, [0; 16], after, meet);
    region.members.iter().zip(starts).all(|(member, start)| {
        let Some(mut written) = start else { return true };
        for instruction in working(member) {
            let is_held = |register: &(usize, u8)| is_elsewhere(register.0) && written[register.0] < register.1;
            if reads(instruction, &mut factory).iter().any(is_held) {
                return false;
            }
            write(instruction, &mut written, &mut factory);
        }
        let is_left = !member.is_frameless && inside(program, member.block).into_iter().any(|to| region.find(to).is_none());
        !is_left || (0..16).all(|register| !is_elsewhere(register) || [0, WHOLE].contains(&written[register]))
    })
}

/// All instructions but those that make and unmake the frame.
fn working(member: &Member) -> impl Iterator<Item = &Instruction> {
    let all = member.body.iter().filter(|(_, part)| !matches!(part, Part::Make(_) | Part::Undo(_)));
    all.map(|(instruction, _)| instruction)
}

/// The general registers that an instruction reads, each with how many low bytes; of `ah` and its kin two.
fn reads(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Vec<(usize, u8)> {
    let read = |access| !matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Write | OpAccess::CondWrite);
    let used = factory.info(instruction).used_registers().iter().filter(|used| read(used.access()));
    used.filter_map(|used| Some((usize::from(number(used.register())?), extent(used.register())))).collect()
}

/// Notes what an instruction surely writes.
fn write(instruction: &Instruction, written: &mut Written, factory: &mut InstructionInfoFactory) {
    let surely = |access| matches!(access, OpAccess::Write | OpAccess::ReadWrite);
    for used in factory.info(instruction).used_registers().iter().filter(|used| surely(used.access())) {
        if let Some(known) = number(used.register()).and_then(|number| written.get_mut(usize::from(number))) {
            // The second byte alone is no more than the first.
            let is_low = !matches!(used.register(), Register::AH | Register::BH | Register::CH | Register::DH);
            *known = (*known).max(if is_low { extent(used.register()) } else { 0 });
        }
    }
}

/// How many low bytes a register takes of the one that it is part of, [`WHOLE`] for all.
fn extent(register: Register) -> u8 {
    match register {
        Register::AH | Register::BH | Register::CH | Register::DH => 2,
        _ => (register.size() as u8).min(WHOLE),
    }
}
